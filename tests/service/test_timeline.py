"""Tables over time, and what ran for them: each value is the most of its interval, and nothing is made up."""

import json
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlmodel import col, delete, select, text

from service.db.database import Database, new_id, utc_now
from service.http.paging import PageRequest, make_cursor
from service.index_health.samples import append_sample
from service.index_health.strips import Strip, divide, strips
from service.jobs.runs import attempts_within, latest_jobs_of_each, waiting_jobs
from service.overview.models import Run, TableTimeline, Timeline
from service.records.health import HealthSample, HealthStatus, TableHealth
from service.records.jobs import AttemptStatus, Job, JobKind
from service.ui.formats import rfc3339
from service.ui.timeline import _data
from tests.service.conftest import ON_BOTH, Running, alike_on_both
from tests.service.health_samples import health_sample
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.pages.person import Page, Person
from tests.service.queue_calls import (
    RETRYABLE,
    START,
    add_tables,
    add_worker,
    claim,
    finish,
    request,
    statements_of,
)

database_kind = alike_on_both
MINUTE = timedelta(minutes=1)
KEPT = {"fine_days": 2.0, "hourly_days": 30.0}


@given(seconds=st.integers(60, 100 * 86_400), begin=st.integers(0, 10**6))
def test_intervals_cover_what_was_asked_for_and_are_few(seconds: int, begin: int) -> None:
    since = START + timedelta(seconds=begin)
    until = since + timedelta(seconds=seconds)
    found = divide(since, until, until, **KEPT)
    assert found.since <= since < until <= found.until
    assert since - found.since < timedelta(seconds=found.seconds) > found.until - until
    assert 1 <= found.number <= 102
    assert int(found.since.timestamp()) % found.seconds == 0


def measure(database: Database, table: str, told: list[tuple[float, int, float]]) -> None:
    """told: minutes since START, equality deletes, and seconds of lag, oldest first."""
    with database.write() as session:
        of_table = select(HealthSample).where(HealthSample.table_id == table)
        last = session.exec(of_table.order_by(col(HealthSample.id).desc()).limit(1)).first()
        for minutes, deletes, lag in told:
            sample = health_sample(table, START + MINUTE * minutes, deletes, lag_seconds=lag)
            append_sample(session, last, sample)
            session.flush()
            last = sample


def strip_of(database: Database, table: str, since: datetime, until: datetime, now: datetime) -> Strip:
    with database.read() as session:
        return strips(session, [table], divide(since, until, now, **KEPT), now, MINUTE * 10)[table]


@ON_BOTH
def test_a_strip_has_the_most_of_each_interval_and_what_held_where_nothing_was_measured(
    database: Database,
) -> None:
    first, other = add_tables(database, ["a", "b"])
    # The table's own samples count, whatever others were measured in between.
    measure(database, first, [(-100, 7, 600)])
    measure(database, other, [(-50, 99, 9)])
    measure(database, first, [(2, 30, 30.5), (2.5, 50, 60), (2.9, 0, 0), (5, 4, 10)])
    now = START + MINUTE * 7.5
    told = strip_of(database, first, START, START + MINUTE * 10, now)
    assert told.pending_equality_deletes == [7, 7, 50, 0, 0, 4, 4, 4, None, None]
    minutes = [6600 + 60, 6600 + 120, 6600 + 120, 0, 0, 10 + 60, 10 + 120, 10 + 150]
    assert told.lag_seconds == [*map(float, minutes), None, None]
    early = strip_of(database, first, START - MINUTE * 110, START - MINUTE * 90, now)
    assert early.pending_equality_deletes[:10] == [None] * 10
    assert early.pending_equality_deletes[10:] == [7] * 10


@ON_BOTH
def test_an_interval_has_its_maximum_however_long_the_span_and_however_old(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    # Three days of a stream; at 13:40 of the second one, deletes pile up for some minutes.
    told = dict.fromkeys(range(0, 3 * 1440, 20), (10, 30.0))
    peak = 1440 + 13 * 60 + 40
    told |= {peak: (5000, 900), peak + 3: (3000, 1080), peak + 5: (10, 30), 3 * 1440 - 1: (0, 0)}
    measure(database, table, [(minute, *told[minute]) for minute in sorted(told)])
    since, until = START, START + timedelta(days=3)

    def assert_shown(begin: datetime, end: datetime, now: datetime, seconds: int) -> None:
        intervals = divide(begin, end, now, **KEPT)
        assert intervals.seconds == seconds
        shown = strip_of(database, table, begin, end, now)
        at = int((START + MINUTE * peak - intervals.since).total_seconds()) // seconds
        assert shown.pending_equality_deletes[at] == 5000
        assert 1080 <= (shown.lag_seconds[at] or 0) < 1080 + 5 * 60
        others = zip(shown.pending_equality_deletes, shown.lag_seconds, strict=True)
        assert all((deletes, lag) == (10, 30) for number, (deletes, lag) in enumerate(others) if number != at)

    assert_shown(since, until, until, 3600)
    with database.write() as session:
        session.exec(delete(HealthSample).where(col(HealthSample.resolution) == "all"))
    assert_shown(since, until, until, 3600)
    # No part of an hour knows its own, once its samples have gone.
    assert_shown(START + MINUTE * (peak - 90), START + MINUTE * (peak + 90), until + timedelta(days=9), 3600)
    with database.write() as session:
        session.exec(delete(HealthSample).where(col(HealthSample.resolution) == "hour"))
    assert_shown(since, until, until + timedelta(days=40), 86_400)


def test_lag_does_not_grow_between_samples_that_stay_but_where_the_next_one_has_it_grown(
    database: Database,
) -> None:
    (table,) = add_tables(database, ["a"])
    hour = 60
    # A healthy stream, of which one sample an hour is left, and three hours in which nothing was converted.
    lags = [30, 30, 30 + 2 * 3600, 30 + 3 * 3600, 30]
    at = [0, 1, 3, 4, 5]
    measure(database, table, [(hour * when, 5, lag) for when, lag in zip(at, lags, strict=True)])
    since, until = START, START + timedelta(hours=7)
    told = strip_of(database, table, since, until, until + timedelta(days=9))
    grown = 30 + 3 * 3600
    assert told.lag_seconds == [30, 30 + 3600, 30 + 2 * 3600, grown, grown, grown, 30]
    # What is pending still grows on, since samples would tell of a change.
    now = until - MINUTE
    assert strip_of(database, table, now - timedelta(days=3), now, now).lag_seconds[-1] == 30 + 119 * 60


@ON_BOTH
def test_a_sample_at_the_end_of_an_interval_is_in_it(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    measure(database, table, [(0.5, 1, 0), (0.999, 9, 0), (1.5, 2, 0)])
    told = strip_of(database, table, START, START + MINUTE * 3, START + MINUTE * 3)
    assert told.pending_equality_deletes == [9, 9, 2]


def run(database: Database, table: str, worker: str, minutes: float, took: float) -> str:
    begin = START + MINUTE * minutes
    job = request(database, table, JobKind.CONVERT, begin)
    assignment = claim(database, worker, begin)
    assert assignment is not None
    finish(database, job, assignment.attempt, "succeeded", begin + MINUTE * took)
    return job


@ON_BOTH
def test_what_ran_within_a_span_is_told_with_its_worker_and_so_many_of_each_table(database: Database) -> None:
    first, other = add_tables(database, ["a", "b"])
    worker = add_worker(database)
    jobs = [run(database, first, worker, minutes, 3) for minutes in (0, 10, 20, 30)]
    of_other = run(database, other, worker, 15, 1)
    with database.read() as session:

        def told(since: float, until: float, of_each: int) -> list[str]:
            begin, end = START + MINUTE * since, START + MINUTE * until
            found, _ = attempts_within(session, [first, other], begin, end, of_each=of_each)
            return [ran.job_id for ran in found]

        assert told(2, 31, 10) == [jobs[0], jobs[1], of_other, jobs[2], jobs[3]]
        assert told(4, 20, 10) == [jobs[1], of_other]
        assert told(0, 60, 2) == [of_other, jobs[2], jobs[3]]
        assert told(0, 14, 1) == [jobs[1]], "the last one before the end, whatever came later"
        assert latest_jobs_of_each(session, [], 5) == {}
        latest = latest_jobs_of_each(session, [first, other], 3)
    assert [job for job, *_ in latest[first]] == jobs[1:]
    assert latest[other] == [(of_other, "convert", False, "succeeded", START + MINUTE * 16)]


@ON_BOTH
def test_a_job_that_was_made_long_before_is_told_of_while_it_runs_and_after(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    held_up = request(database, table, JobKind.CONVERT, START)
    begin = START + timedelta(days=3)
    assignment = claim(database, add_worker(database), begin)
    assert assignment is not None
    for ended in (False, True):
        if ended:
            finish(database, held_up, assignment.attempt, "succeeded", begin + MINUTE * 3)
        with database.read() as session:
            # What runs is found though it is none of the latest.
            of_each = 10 if ended else 0
            found, _ = attempts_within(session, [table], begin, begin + MINUTE * 60, of_each=of_each)
            assert [ran.job_id for ran in found] == [held_up]
    with database.read() as session:
        assert attempts_within(session, [table], START, START + MINUTE * 60, of_each=10) == ([], set())


@ON_BOTH
def test_a_long_run_is_told_of_beside_any_number_of_shorter_ones(database: Database) -> None:
    table, other = add_tables(database, ["a", "b"])
    worker = add_worker(database)
    long = request(database, table, JobKind.CONVERT, START, dry_run=True)
    assignment = claim(database, add_worker(database), START)
    assert assignment is not None
    before = [run(database, table, worker, minute, 0.5) for minute in (1, 2, 3, 4, 5, 6)]
    finish(database, long, assignment.attempt, "succeeded", START + MINUTE * 7)
    after = [run(database, table, worker, minute, 0.5) for minute in (8, 9, 10, 11, 12, 13)]
    few = run(database, other, worker, 14, 1)
    with database.read() as session:

        def told(since: float, until: float) -> tuple[list[str], set[str]]:
            begin, end = START + MINUTE * since, START + MINUTE * until
            found, with_more = attempts_within(session, [table, other], begin, end, of_each=4)
            return [ran.job_id for ran in found], with_more

        assert told(0, 60) == ([long, *after[3:], few], {table})
        assert told(0, 6.9) == ([long, *before[3:]], {table}), "though it ended after them"
        assert told(6.9, 9.9) == ([long, *after[:2]], set())
        assert told(7.1, 60) == ([*after[2:], few], {table})


@ON_BOTH
def test_what_waits_is_told_since_it_was_made_or_last_tried(database: Database) -> None:
    table, other = add_tables(database, ["a", "b"])
    tried = request(database, table, JobKind.CONVERT, START)
    assignment = claim(database, add_worker(database), START)
    assert assignment is not None
    made = request(database, table, JobKind.INDEX, START + MINUTE * 3)
    of_other = request(database, other, JobKind.CONVERT, START + MINUTE)
    with database.read() as session:
        assert {one.job_id for one in waiting_jobs(session, [table, other])} == {made, of_other}
    finish(database, tried, assignment.attempt, "failed", START + MINUTE * 5, RETRYABLE)
    with database.read() as session:
        waiting = waiting_jobs(session, [table, other])
        backoff = timedelta(seconds=session.get_one(Job, tried).backoff_seconds)
    assert [(one.job_id, one.since) for one in waiting] == [
        (of_other, START + MINUTE),
        (made, START + MINUTE * 3),
        (tried, START + MINUTE * 5),
    ]
    assert [one.available_at - one.since for one in waiting] == [timedelta(0), timedelta(0), backoff]
    assert backoff


@ON_BOTH
def test_what_ran_for_many_tables_is_asked_for_together(database: Database) -> None:
    tables = add_tables(database, ["a", "b", "c"])
    parts = []
    for some in (tables[:1], tables):
        with statements_of(database) as asked, database.read() as session:
            attempts_within(session, some, START, START + MINUTE, of_each=4)
            latest_jobs_of_each(session, some, 4)
        parts.append([statement.count("LIMIT") for statement, _ in asked])
    assert len({len(each) for each in parts}) == 1
    # PostgreSQL plans each part before it reads it.
    assert database.is_sqlite or parts[0] == parts[1]


@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_no_further_process_is_begun_for_a_statement(database: Database) -> None:
    with database.write() as session:
        # By these, any walk through a table would be worth some.
        for setting in ("parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size"):
            session.execute(text(f"SET LOCAL {setting} = 0"))
        plan = session.execute(text("EXPLAIN SELECT count(*) FROM jobs")).scalars()
        assert not [line for line in plan if "Workers" in line]


def test_more_runs_than_are_shown_are_told_of(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    table = service.enroll(policy="manual")["id"]
    worker = add_worker(service.database)
    for minute in range(40):
        run(service.database, table, worker, minute, 0.5)
    # It goes on beside all that come later, and before them in the order of starts.
    running = request(service.database, table, JobKind.CONVERT, START - MINUTE, dry_run=True)
    assert claim(service.database, add_worker(service.database), START - MINUTE) is not None
    asked = {"since": f"{START:%Y-%m-%dT%H:%M:%SZ}", "until": f"{START + MINUTE * 60:%Y-%m-%dT%H:%M:%SZ}"}

    def told() -> Any:
        found = service.admin.get("/overview/timeline", params=asked).raise_for_status().json()
        return found["items"][0]

    assert (len(told()["runs"]), told()["has_more_runs"]) == (41, False)
    last = run(service.database, table, worker, 50, 0.5)
    assert (len(told()["runs"]), told()["has_more_runs"], told()["runs"][-1]["job_id"]) == (41, True, last)
    assert told()["runs"][0]["job_id"] == running


def test_the_call_shows_tables_with_most_pending_first_and_pages_through_them(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    ids = {}
    for name, deletes in (("db.few", 1), ("db.many", 3), ("db.none", 0)):
        iceberg.create(name)
        ids[name] = service.enroll(name, policy="manual")["id"]
        if deletes:
            iceberg.delete_keys(name, list(range(deletes)))
        service.poll(ids[name])
    job = service.admin.post(f"/tables/{ids['db.few']}/jobs", json={"kind": "index"}).json()["id"]
    assert service.claim(service.start_worker()) is not None

    def ask(**parameters: Any) -> Any:
        return service.admin.get("/overview/timeline", params=parameters).raise_for_status().json()

    with statements_of(service.database) as statements:
        assert ask(limit=1)["next_cursor"]
    assert not [statement for statement, _ in statements if "count(" in statement]
    told = ask()
    assert [one["table"] for one in told["items"]] == ["db.many", "db.few", "db.none"]
    strips = [one["pending_equality_deletes"] for one in told["items"]]
    assert [max(filter(None, strip), default=0) for strip in strips] == [3, 1, 0]
    span = datetime.fromisoformat(told["until"]) - datetime.fromisoformat(told["since"])
    number = span.total_seconds() / told["interval_seconds"]
    assert {len(one["lag_seconds"]) for one in told["items"]} == {number}
    assert [len(one["runs"]) for one in told["items"]] == [0, 1, 0]
    waits = service.admin.post(f"/tables/{ids['db.none']}/jobs", json={"kind": "index"}).json()
    assert [one["waiting"] for one in told["items"]] == [[], [], []]
    (waiting,) = ask()["items"][2]["waiting"]
    assert waiting == {
        "job_id": waits["id"],
        "kind": "index",
        "dry_run": False,
        "since": waits["created_at"],
        "available_at": waits["available_at"],
    }
    for kind in (
        JobKind.CONVERT,
        JobKind.COMPACT,
        JobKind.VERIFY,
        JobKind.EXPIRE_SNAPSHOTS,
        JobKind.REWRITE_MANIFESTS,
    ):
        later = {"run_at": rfc3339(utc_now() + timedelta(hours=1))} if kind is JobKind.VERIFY else {}
        service.admin.post(f"/tables/{ids['db.none']}/jobs", json={"kind": kind, **later}).raise_for_status()
    many = ask()["items"][2]
    assert (many["waiting_jobs"], len(many["waiting"]), many["waiting"][0]) == (6, 5, waiting)
    before = {"since": "2020-01-01T00:00:00Z", "until": "2020-01-02T00:00:00Z"}
    assert [one["waiting"] for one in ask(**before)["items"]] == [[], [], []], "it was not made yet"
    (ran,) = told["items"][1]["runs"]
    assert (ran["job_id"], ran["worker_name"]) == (job, "w1")
    assert (ran["status"], ran["ended_at"]) == ("running", None)
    first = ask(limit=1)
    assert ask(limit=1, cursor=first["next_cursor"])["items"][0]["table"] == "db.few"
    assert [one["table"] for one in ask(search="none")["items"]] == ["db.none"]
    # What was pending last night, of which nothing is left.
    now = utc_now()
    with service.database.write() as session:
        peak = {"resolution": "day", "hour_most_deletes": 9, "day_most_deletes": 9}
        session.add(health_sample(ids["db.none"], now - timedelta(hours=20), 9, **peak))
    night = {"since": rfc3339(now - timedelta(hours=21)), "until": rfc3339(now - timedelta(hours=19))}
    by_most = {**night, "sort": "-most_pending_equality_deletes"}
    pages = [ask(**by_most, limit=1)]
    while (following := pages[-1]["next_cursor"]) is not None:
        pages.append(ask(**by_most, limit=1, cursor=following))
    listed = [one["table"] for page in pages for one in page["items"]]
    alike = sorted(("db.many", "db.few"), key=ids.__getitem__, reverse=True)
    assert listed == ["db.none", *alike]
    turned = ask(**night, sort="most_pending_equality_deletes")["items"]
    assert [one["table"] for one in turned] == listed[::-1]
    everything = [one["table"] for one in ask(**by_most)["items"]]
    assert [[one["table"] for one in ask(**by_most, limit=some)["items"]] for some in (1, 2, 3)] == [
        everything[:some] for some in (1, 2, 3)
    ]
    day = ask(
        since=rfc3339(now - timedelta(days=3)), until=rfc3339(now), sort="-most_pending_equality_deletes"
    )
    assert next(one["table"] for one in day["items"]) == "db.none"
    for cursor in (first["next_cursor"], make_cursor(PageRequest(), by_most["sort"], 2.5, "x")):
        refused = service.admin.get("/overview/timeline", params={**by_most, "cursor": cursor})
        assert refused.status_code == 400
    began = utc_now() - timedelta(days=200)
    for asked in (
        {"since": began, "until": began + timedelta(seconds=30)},
        {"since": began, "until": began + timedelta(days=101)},
        {"since": began, "until": began - timedelta(hours=1)},
        {"since": datetime(1, 1, 2, tzinfo=UTC)},
        {"until": datetime(1, 1, 1, tzinfo=UTC)},
        {"since": datetime(9999, 12, 31, tzinfo=UTC)},
        {
            "since": datetime(9999, 12, 30, tzinfo=UTC),
            "until": datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
        },
    ):
        written = {name: at.isoformat().replace("+00:00", "Z") for name, at in asked.items()}
        refused = service.admin.get("/overview/timeline", params=written)
        assert (refused.status_code, refused.json()["type"]) == (422, "/problems/validation-error"), asked
        old = ask(since=(utc_now() - timedelta(days=29)).isoformat())
        assert old["interval_seconds"] == 3600, "of part of an hour, no samples are kept"

    with Person(service) as admin:
        page = admin.open("/timeline")
        assert next(words for words in page.links if words.startswith("db.")) == "db.many"
        moved = admin.open(f"/timeline?{urlencode(night)}")
        assert next(words for words in moved.links if words.startswith("db.")) == "db.none"
        assert "1 running" in page.text
        assert "6 waiting some until " in page.text
        assert "(1 run)" in page.text
        assert "a gap may hold what they ran for others" in page.text
        assert f'<a class="cell running" href="/jobs/{job}" title="index running, ' in page.html
        assert "/timeline?since=" in page.links["Earlier"]
        earlier = admin.follow("Earlier")
        assert {"Now", "Later"} <= earlier.links.keys()
        assert "nothing is enrolled" not in earlier.text
        assert "No table fits these filters" in admin.open("/timeline?search=nowhere").text
        assert admin.open("/timeline?colour=lag&hours=1").status == 200
        by_worker = admin.open(page.links["w1"])
        assert f'href="/jobs/{job}"' in by_worker.html
        assert waits["id"] not in by_worker.html


def test_while_nobody_could_look_nothing_is_said_to_have_held(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    table = service.enroll(policy="manual")["id"]
    for key in (1, 2):
        iceberg.delete_keys("db.t", [key])
        service.poll(table)
    now = utc_now()
    with service.database.write() as session:
        samples = session.exec(select(HealthSample).order_by(col(HealthSample.id)))
        for sample, hours in zip(samples.all(), (5, 4), strict=True):
            sample.at -= timedelta(hours=hours)
        session.get_one(TableHealth, table).measured_at = now - timedelta(hours=3)

    def told(hours: float, until: datetime) -> list[int | None]:
        asked = {"since": rfc3339(now - timedelta(hours=hours)), "until": rfc3339(until)}
        found = service.admin.get("/overview/timeline", params=asked).raise_for_status().json()
        (one,) = found["items"]
        assert [lag is None for lag in one["lag_seconds"]] == [
            deletes is None for deletes in one["pending_equality_deletes"]
        ]
        return [deletes for deletes, _ in groupby(one["pending_equality_deletes"])]

    def plotted(person: Person) -> tuple[Page, list[list[float]]]:
        page = person.open(f"/tables/{table}")
        drawn = page.plots["Pending equality deletes over the last 24 hours"]
        return page, drawn["unseen"]

    with Person(service) as viewer:
        assert told(6, now) == [None, 1, 2, None]
        page, unseen = plotted(viewer)
        ((begin, end),) = unseen
        assert [round(second) // 60 for second in (begin, end)] == [2 * 60, 5 * 60]
        assert "2 when it was last looked at" in page.text
        assert page.text.count("not looked at") > 5, "in the table, too"
        service.poll(table)
        # An interval that is still to come may follow.
        assert told(6, utc_now())[:5] == [None, 1, 2, None, 2]
        assert told(2, utc_now())[:2] == [None, 2], "also where it begins meanwhile"
        page, unseen = plotted(viewer)
        assert len(unseen) == 1
        assert "2 now" in page.text
    history = service.admin.get(f"/tables/{table}/health/history").raise_for_status().json()["items"]
    assert [one["status"] for one in history] == ["healthy", "unknown", "healthy", "healthy"]


def test_what_the_page_draws_is_short_with_all_runs_that_are_shown() -> None:
    def run(number: int) -> Run:
        began = START + timedelta(minutes=number)
        return Run(
            job_id=new_id(),
            kind=list(JobKind)[number % len(JobKind)],
            dry_run=number % 2 == 0,
            attempt=1,
            status=list(AttemptStatus)[number % len(AttemptStatus)],
            worker_name=f"worker-{number % 3}",
            started_at=began,
            ended_at=began + timedelta(seconds=30),
        )

    runs = [run(number) for number in range(1_000)]
    table = TableTimeline(
        table_id=new_id(),
        table="a",
        catalog="c",
        status=HealthStatus.HEALTHY,
        pending_equality_deletes=[],
        lag_seconds=[],
        runs=runs,
        has_more_runs=False,
        waiting=[],
        waiting_jobs=0,
    )
    until = START + timedelta(days=1)
    shown = Timeline(since=START, until=until, interval_seconds=3600, items=[table], next_cursor=None)
    data = _data(shown, until, names_catalogs=False)
    assert len(data) < 65_000
    told = json.loads(data)
    _, worker, kind, status, start, end, job = told["runs"][3]
    assert (told["workers"][worker], told["kinds"][kind]) == (
        "worker-0",
        runs[3].kind.value.replace("_", " "),
    )
    assert (told["statuses"][status], start, end, job) == (runs[3].status, 180, 210, runs[3].job_id)


def test_a_page_draws_some_kilobytes_for_each_table_and_so_not_more_of_them(service: Running) -> None:
    tables = add_tables(service.database, [f"t{number}" for number in range(26)])
    with Person(service) as admin:
        html = admin.open("/timeline?limit=100").html
    assert sum(f'href="/tables/{table}"' in html for table in tables) == 25
