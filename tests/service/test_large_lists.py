"""What lists ask of the database does not grow with what there is: pages of a fleet, years of jobs."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from fastapi import Request
from sqlalchemy import insert, update
from sqlmodel import Session, col, delete, select

from service.auth.audit import list_entries
from service.auth.models import SYSTEM, AuditFilter
from service.db.database import Database, utc_now
from service.http.paging import COUNTED, EVERYTHING, PageRequest, Total, count_rows
from service.index_health.strips import divide, strips
from service.index_health.summary import failed_polls, failed_with_their_catalogs, tables_with_status
from service.jobs import service as jobs
from service.jobs.conversions import converted_since, list_conversion_times
from service.jobs.runs import attempts_within
from service.jobs.service import last_failure_at, list_jobs
from service.policies.places import namespace_target
from service.policies.service import tables_under
from service.records.audit import AuditEntry
from service.records.health import HealthStatus, TableHealth
from service.records.jobs import REQUEST, Job, JobKind, JobStatus
from service.records.policies import Policy, PolicyAttachment
from service.records.tables import EnrolledTable
from service.records.workers import Worker
from service.settings import Settings
from service.tables.models import TableFilter
from service.tables.service import count_by_status, list_tables, views
from service.ui.first_hour import first_hour
from service.ui.search import _found
from service.ui.tables import rows_of
from service.workers.service import list_workers
from tests.service.queue_calls import (
    FATAL,
    SETTINGS,
    START,
    add_tables,
    add_worker,
    claim,
    finish,
    request,
    statements_of,
)


@pytest.fixture(params=["sqlite"])
def database_kind(request: pytest.FixtureRequest) -> str:
    """It chooses an index by the schema alone, PostgreSQL by what the tables have."""
    return str(request.param)


def test_a_list_of_tables_takes_as_many_statements_as_a_single_one(database: Database) -> None:
    tables = add_tables(database, [f"t{number}" for number in range(10)])
    for table in tables:
        request(database, table, JobKind.INDEX, START)
    last = [request(database, table, JobKind.CONVERT, START + timedelta(days=1)) for table in tables]

    def statements_for(ids: list[str]) -> int:
        with database.read() as session:
            enrolled = [session.get_one(EnrolledTable, table) for table in ids]
            with statements_of(database) as asked:
                rows = rows_of(session, views(session, Settings(), enrolled))
        assert [row["last_job"].id for row in rows] == last[: len(ids)]
        return len(asked)

    assert statements_for(tables) == statements_for(tables[:1])


def test_a_list_of_workers_takes_as_many_statements_as_one_of_them(database: Database) -> None:
    def statements() -> int:
        with statements_of(database) as asked, database.read() as session:
            listed = list_workers(session, SETTINGS, PageRequest(limit=EVERYTHING)).items
        assert {worker.id: worker.job_id for worker in listed} == running
        return len(asked)

    table, other = add_tables(database, ["a", "b"])
    running: dict[str, str | None] = {}
    for number in (table, other):
        worker = add_worker(database)
        running[worker] = request(database, number, JobKind.INDEX, START)
        assert claim(database, worker, utc_now()) is not None
        if len(running) == 1:
            for_one = statements()
    running[add_worker(database)] = None
    assert statements() == for_one


@pytest.mark.parametrize(
    ("sort", "index"),
    [
        ("name", "ix_tables_name"),
        ("-pending_equality_deletes", "ix_table_health_pending_equality_deletes"),
        ("-read_overhead_seconds", "ix_table_health_read_overhead_seconds"),
    ],
)
def test_tables_are_listed_without_sorting_all_of_them(database: Database, sort: str, index: str) -> None:
    add_tables(database, ["a", "b", "c"])
    with statements_of(database) as asked, database.read() as session:
        first = list_tables(session, SETTINGS, PageRequest(limit=2, sort=sort), TableFilter())
        following = PageRequest(limit=2, sort=sort, cursor=first.next_cursor)
        assert len(list_tables(session, SETTINGS, following, TableFilter()).items) == 1
    listed = [
        pair for pair in asked if "ORDER BY tables.name" in pair[0] or "ORDER BY table_health" in pair[0]
    ]
    assert len(listed) == 2
    with database.engine.connect() as connection:
        for statement, values in listed:
            steps = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
            assert index in steps[0][-1], steps
            assert "TEMP B-TREE" not in str(steps)


def test_numbers_of_tables_by_status_and_what_strips_are_made_of_are_in_indexes(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    later = START + timedelta(days=20)
    intervals = divide(START, later, later, fine_days=7, hourly_days=90)
    with statements_of(database) as asked, database.read() as session:
        assert count_by_status(session, TableFilter(status=HealthStatus.HEALTHY)) == {HealthStatus.UNKNOWN: 1}
        strips(session, [table], intervals, later, timedelta(hours=1))
    with database.engine.connect() as connection:
        for word, index in (
            ("count(*)", "ix_table_health_status"),
            ("max(", "ix_health_samples_table_id_id"),
        ):
            statement, values = next(pair for pair in asked if word in pair[0] and "GROUP BY" in pair[0])
            steps = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
            assert f"COVERING INDEX {index}" in str(steps), steps


def test_the_first_tables_of_a_status_are_found_by_a_walk_through_names(database: Database) -> None:
    tables = add_tables(database, ["c", "b", "a"])
    with database.write() as session:
        session.get_one(TableHealth, tables[1]).status = HealthStatus.LAGGING.value
    with statements_of(database) as asked, database.read() as session:
        unknown = tables_with_status(session, HealthStatus.UNKNOWN, 2)
        lagging = tables_with_status(session, HealthStatus.LAGGING, 2)
    assert [one.table_id for one in (*unknown, *lagging)] == [tables[0], tables[2], tables[1]]
    statement, values = next(pair for pair in asked if "SELECT" in pair[0])
    with database.engine.connect() as connection:
        steps = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
    assert "SCAN tables USING INDEX ix_tables_name" in str(steps), steps


def test_of_the_tables_that_fail_with_their_catalog_only_one_is_read(database: Database) -> None:
    tables = add_tables(database, ["a", "b", "c", "d"])
    codes = ["host-unknown", "table-missing", "catalog-unreachable", "catalog-unreachable"]
    with database.write() as session:
        for table, code in zip(tables, codes, strict=True):
            session.get_one(TableHealth, table).poll_error = {
                "code": code,
                "detail": "So it was.",
                "remedy": None,
            }
    with database.read() as session:
        ((first, number),) = failed_with_their_catalogs(session)
        assert (first.table_id, first.error["code"], number) == (tables[0], "host-unknown", 3)
        assert [poll.table_id for poll in failed_polls(session, 5)] == [tables[1]]
        assert failed_polls(session, 0) == []


def test_who_asks_for_names_of_catalogs_does_not_have_their_tables_counted(database: Database) -> None:
    add_tables(database, ["a", "b"])
    with statements_of(database) as asked, database.read() as session:
        (found,) = _found(session, Settings(), SYSTEM, "LOCA")
        nobody = Request({"type": "http", "headers": []})
        hour = first_hour(session, Settings(), nobody, utc_now(), is_any_enrolled=True)
    assert found.items == [("local", "/catalogs/local")]
    assert hour is not None
    assert hour.catalog == "local"
    assert not [
        statement for statement, _ in asked if "count(*)" in statement and "table_health" in statement
    ]


def test_a_policy_reaches_tables_of_any_name(database: Database) -> None:
    last = add_tables(database, [f"t{number}" for number in range(1_001)])[999]
    (inside,) = add_tables(database, ["u"], "b")
    (beside,) = add_tables(database, ["v"], "c")
    with database.write() as session:
        policy = Policy(name="late", settings={})
        session.add(policy)
        session.flush()

        def attach(target: str, **place: Any) -> None:
            session.add(PolicyAttachment(target=target, policy_id=policy.id, **place))
            session.flush()

        def reached() -> list[str]:
            return [table.id for table in tables_under(session, policy, 5)]

        attach(f"table:{last}", level="table", table_id=last)
        assert reached() == [last]
        catalog = session.get_one(EnrolledTable, inside).catalog_id
        other = session.get_one(EnrolledTable, beside).catalog_id
        attach(namespace_target(catalog, ["db"]), level="namespace", catalog_id=catalog, namespace=["db"])
        attach(namespace_target(other, ["d"]), level="namespace", catalog_id=other, namespace=["d"])
        assert reached() == [inside, last]
        attach(f"catalog:{other}", level="catalog", catalog_id=other)
        assert sorted(reached()) == sorted([inside, beside, last])
        session.exec(delete(PolicyAttachment).where(col(PolicyAttachment.target) == "system"))
        attach("system", level="system")
        assert len(reached()) == 5


def test_jobs_of_the_status_that_most_have_are_neither_all_read_nor_sorted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_FEW", 0)
    request(database, add_tables(database, ["a"])[0], JobKind.INDEX, START)
    with database.write() as session:
        session.exec(update(Job).values(status=JobStatus.FAILED.value))

    def plan_of(read: Callable[[Session], object]) -> str:
        with statements_of(database) as asked, database.read() as session:
            read(session)
        statement, values = next(
            pair for pair in asked if "FROM jobs" in pair[0] and "AS fits" not in pair[0]
        )
        with database.engine.connect() as connection:
            steps = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
        return "; ".join(step for *_, step in steps)

    page = PageRequest(limit=50, sort="-created_at")
    listed = plan_of(lambda session: list_jobs(session, page, statuses=[JobStatus.SUCCEEDED]))
    assert "ix_jobs_created_at_id" in listed
    assert "TEMP B-TREE" not in listed
    failed = plan_of(lambda session: list_jobs(session, page, statuses=[JobStatus.FAILED]))
    assert "ix_jobs_unsuccessful" in failed
    assert "TEMP B-TREE" not in failed
    # Those that have not ended come last, in a statement of their own, so an index has the order.
    page = PageRequest(limit=50, sort="-ended_at")
    for ended in (
        plan_of(lambda session: list_jobs(session, page)),
        plan_of(lambda session: list_jobs(session, page, kinds=[JobKind.CONVERT])),
    ):
        assert "USING INDEX ix_jobs_ended_at" in ended
        assert "B-TREE FOR ORDER BY" not in ended
    assert "ix_jobs_ended_at" in plan_of(lambda session: converted_since(session, START, START))
    assert "ix_jobs_failed" in plan_of(last_failure_at)
    assert "ix_jobs_table_id" in plan_of(lambda session: list_conversion_times(session, "t", START))
    later = START + timedelta(days=1)
    ran = plan_of(lambda session: attempts_within(session, ["t"], START, later, of_each=9))
    assert ran.count("COVERING INDEX ix_jobs_table_id_ended_at (table_id=? AND ended_at>?") == 2, ran


def test_a_total_looks_at_so_many_rows_and_says_whether_there_may_be_more(database: Database) -> None:
    for table in add_tables(database, [f"t{number}" for number in range(4)]):
        for kind in (JobKind.INDEX, JobKind.CONVERT, JobKind.VERIFY):
            request(database, table, kind, START)
    conversions = col(Job.kind) == JobKind.CONVERT.value
    with database.read() as session:
        every = select(Job)
        assert count_rows(session, every, most=12) == Total(12)
        assert count_rows(session, every, most=11) == Total(11, is_least=True)
        assert count_rows(session, every, conversions, most=12) == Total(4)
        found = count_rows(session, every, conversions, most=6)
        assert found.is_least
        assert found.number is not None
        assert found.number <= 4
        assert count_rows(session, every.where(col(Job.status) == "failed")) == Total(0)


def test_jobs_by_status_are_counted_up_to_so_many_by_walking_an_index(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_COUNTED", 2)
    for table in add_tables(database, ["a", "b", "c"]):
        request(database, table, JobKind.CONVERT, START)
    with statements_of(database) as asked, database.read() as session:
        counted = jobs.count_by_status(session)
        page = list_jobs(session, PageRequest(limit=1, counts=True))
    assert counted[JobStatus.QUEUED] == Total(2, is_least=True)
    assert {counted[status] for status in JobStatus} == {Total(0), Total(2, is_least=True)}
    assert (page.total, page.total_is_least) == (3, False)
    with database.engine.connect() as connection:
        for statement, values in asked:
            if "count(*)" in statement and "status" in statement:
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
                assert re.search("ix_jobs_(status_catalog_id_table_id|turn|failed)", str(plan)), plan


@pytest.mark.parametrize(
    ("filters", "is_found_by"),
    [
        ({"catalog": "local"}, "ix_jobs_status_catalog_id_table_id (status=? AND catalog_id=?)"),
        ({"table_id": "t"}, "ix_jobs_status_catalog_id_table_id (status=? AND catalog_id=? AND table_id=?)"),
        ({"since": START}, "ix_jobs_created_at_id_kind (created_at>?)"),
        ({"until": START, "catalog": "local"}, "ix_jobs_created_at_id_kind (created_at<?)"),
        ({"since": START, "table_id": "t"}, "ix_jobs_table_id_created_at (table_id=? AND created_at>?)"),
        ({"kinds": [JobKind.VERIFY]}, "ix_jobs_uncommon (kind=?"),
        pytest.param({"kinds": [JobKind.VERIFY, JobKind.INDEX]}, "ix_jobs_created_at_id", id="two-kinds"),
        ({"trigger": "request", "catalog": "local"}, "ix_jobs_requested"),
        ({"trigger": "policy", "table_id": "t"}, "ix_jobs_table_id_created_at (table_id=?)"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_no_filter_makes_a_count_walk_all_jobs_that_succeeded(
    database: Database, monkeypatch: pytest.MonkeyPatch, filters: dict[str, Any], is_found_by: str
) -> None:
    monkeypatch.setattr(jobs, "_FEW", 0)
    (table,) = add_tables(database, ["a"])
    for kind in (JobKind.VERIFY, JobKind.INDEX):
        request(database, table, kind, START)
    with statements_of(database) as asked, database.read() as session:
        jobs.count_by_status(session, **filters)
    # The others look at one job, to see whether few fit.
    counts = [pair for pair in asked if "count(*)" in pair[0] and pair[1][-2] > 1]
    assert counts
    with database.engine.connect() as connection:
        for statement, values in counts:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
            assert is_found_by in str(plan), plan
            assert "ORDER BY" not in str(plan), plan


@pytest.mark.parametrize(
    ("filters", "few", "many"),
    [
        ({"kinds": [JobKind.VERIFY]}, "ix_jobs_uncommon (kind=?)", "ix_jobs_uncommon (kind=?)"),
        pytest.param(
            {"kinds": [JobKind.VERIFY, JobKind.DELETE]},
            "ix_jobs_uncommon (kind=?)",
            None,
            id="two-kinds",
        ),
        ({"trigger": "request"}, "ix_jobs_requested", "ix_jobs_requested"),
        ({"catalog": "b"}, "ix_jobs_status_catalog_id_table_id (status=? AND catalog_id=?)", None),
        ({"statuses": [JobStatus.CANCELLED]}, "ix_jobs_status_catalog_id_table_id (status=?)", None),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_jobs_that_fit_a_filter_are_listed_without_a_walk_through_the_others(
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    filters: dict[str, Any],
    few: str,
    many: str | None,
) -> None:
    *others, _ = add_tables(database, ["a", "b", "c", "d"])
    for table in others:
        request(database, table, JobKind.CONVERT, START)
    found = request(database, add_tables(database, ["a"], "b")[0], JobKind.VERIFY, START)
    with database.write() as session:
        for job in session.exec(select(Job)):
            job.trigger = REQUEST if job.id == found else "It was time."
            job.status = (JobStatus.CANCELLED if job.id == found else JobStatus.SUCCEEDED).value
    for most, index in ((2, few), (0, many)):
        monkeypatch.setattr(jobs, "_FEW", most)
        for sort in ("-created_at", "created_at", "-ended_at"):
            with statements_of(database) as asked, database.read() as session:
                page = list_jobs(session, PageRequest(limit=9, sort=sort), **filters)
            assert [job.id for job in page.items] == [found], sort
            if index is None or (most == 0 and sort == "-ended_at"):
                continue
            statement, values = next(pair for pair in asked if "jobs.progress" in pair[0])
            with database.engine.connect() as connection:
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
            steps = [str(step[-1]) for step in plan]
            assert [step for step in steps if index in step], steps
            assert not [step for step in steps if "SCAN jobs" in step and index not in step], steps
            assert most > 0 or not [step for step in steps if step.endswith("B-TREE FOR ORDER BY")], steps


@pytest.mark.parametrize("sort", ["-created_at", "-ended_at"])
def test_jobs_of_other_kinds_are_passed_over_in_the_index_alone(database: Database, sort: str) -> None:
    page = PageRequest(limit=9, sort=sort)
    with statements_of(database) as asked, database.read() as session:
        list_jobs(session, page, kinds=[JobKind.INDEX])
    statement, values = next(pair for pair in asked if "jobs.progress" in pair[0])
    with database.engine.connect() as connection:
        program = connection.exec_driver_sql(f"EXPLAIN {statement}", values).all()
    # Rows of the table are sought when one of their columns is read: before that, the kind is, of the index.
    sought = next(number for number, step in enumerate(program) if step[1] == "DeferredSeek")
    of_index, *read_from = [
        program[sought][2],
        *(step[2] for step in program[sought:] if step[1] == "Column"),
    ]
    assert read_from[0] == of_index
    assert {*read_from} > {of_index}


@pytest.mark.parametrize("few", [3, 2], ids=["few", "many"])
def test_the_jobs_of_a_worker_are_listed_and_counted_without_a_walk_through_all_jobs(
    database: Database, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(jobs, "_FEW", few)
    tables = add_tables(database, ["a", "b", "c", "d", "e"])
    with database.write() as session:
        session.add(
            Worker(id="one", name="first", hostname="h", pid=1, version="0", registered_by=SYSTEM.key)
        )
    other = add_worker(database)
    ran = []
    for table, worker in zip(tables[:4], ["one", "one", "one", other], strict=True):
        ran.append(request(database, table, now=utc_now()))
        assert claim(database, worker, utc_now()) is not None
        finish(
            database, ran[-1], 1, "failed" if table == tables[1] else "succeeded", error=FATAL, now=utc_now()
        )
    request(database, tables[4], now=utc_now())
    first = PageRequest(limit=1, counts=True)
    for worker in ("one", "first"):
        for filters, expected in (
            ({}, ran[2::-1]),
            ({"statuses": [JobStatus.SUCCEEDED]}, [ran[2], ran[0]]),
            ({"statuses": [JobStatus.FAILED]}, [ran[1]]),
            ({"statuses": [JobStatus.FAILED], "kinds": [JobKind.INDEX]}, []),
            ({"table_id": tables[2]}, [ran[2]]),
            ({"until": START}, []),
        ):
            with statements_of(database) as asked, database.read() as session:
                page = list_jobs(session, first, worker=worker, **filters)
                found = list_jobs(session, PageRequest(limit=9), worker=worker, **filters)
            assert [job.id for job in found.items] == expected, filters
            assert (page.total, page.total_is_least) == (len(expected), False), filters
            with database.engine.connect() as connection:
                for statement, values in asked:
                    plan = str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all())
                    assert not re.search("SCAN (jobs|attempts)", plan), plan
    with database.read() as session:
        counted = jobs.count_by_status(session, worker="one")
    assert {status: total.number for status, total in counted.items() if total.number} == {
        JobStatus.SUCCEEDED: 2,
        JobStatus.FAILED: 1,
    }


def test_jobs_of_a_catalog_are_counted_among_its_own_and_those_of_a_time_among_the_newest(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_FEW", 0)
    monkeypatch.setattr(jobs, "_COUNTED", 3)
    monkeypatch.setattr(jobs, "COUNTED", 3)
    for table in add_tables(database, [f"a{number}" for number in range(20)]):
        request(database, table, JobKind.CONVERT, START)
    later = START + timedelta(hours=1)
    (table, *_) = add_tables(database, ["b", "c"], "b")
    request(database, table, JobKind.CONVERT, later)
    request(database, table, JobKind.INDEX, later)
    first = PageRequest(limit=1, counts=True)
    with database.read() as session:
        for filters in ({"catalog": "b"}, {"table_id": table}, {"since": later}):
            assert jobs.count_by_status(session, **filters)[JobStatus.QUEUED] == Total(2), filters
            page = list_jobs(session, first, **filters)
            assert (page.total, page.total_is_least) == (2, False), filters
        every = jobs.count_by_status(session, since=START)
        assert every[JobStatus.QUEUED] == Total(15, is_least=True)
        assert every[JobStatus.FAILED] == Total(0, is_least=True)
        # Of a kind that is common, those are counted that the list begins with.
        indexing = jobs.count_by_status(session, kinds=[JobKind.INDEX])
        assert indexing[JobStatus.QUEUED] == Total(1, is_least=True)
        # None of those that are looked at, and yet there are more than are shown.
        page = list_jobs(session, first, catalog="local", since=START, kinds=[JobKind.CONVERT])
        assert (page.total, page.total_is_least) == (14, True)
        monkeypatch.setattr(jobs, "COUNTED", 0)
        page = list_jobs(session, first, catalog="local", since=START)
        assert (page.total, page.total_is_least) == (2, True)


def test_a_total_is_never_less_than_what_a_page_shows(database: Database) -> None:
    entry = {"at": START, "principal": "n", "role": "admin", "target": "t", "outcome": "allowed"}
    with database.write() as session:
        rare, others = [entry | {"action": "rare"}] * 3, [entry | {"action": "other"}] * (COUNTED + 1)
        session.connection().execute(insert(AuditEntry), rare + others)
    with database.read() as session:
        page = list_entries(session, PageRequest(limit=2, counts=True), AuditFilter(action="rare"))
    assert (len(page.items), page.total, page.total_is_least) == (2, 3, True)
