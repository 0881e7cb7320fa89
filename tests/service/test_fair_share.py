"""Whose job goes first, how many of a catalog run, and budgets: on both databases."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update
from sqlmodel import col, select

from service.auth.models import SYSTEM
from service.db.database import Database
from service.jobs.views import view, views
from service.policies.models import AttachmentRequest, PolicyPatch, PolicyRequest
from service.policies.service import attach_policy, create_policy, update_policy
from service.records.catalogs import Catalog
from service.records.health import TableHealth
from service.records.jobs import Event, Job, JobKind
from service.records.policies import Level
from service.records.tables import EnrolledTable
from service.scheduling.preview import preview
from service.scheduling.scheduler import schedule
from service.scheduling.state import read_known
from tests.service.queue_calls import (
    FATAL,
    SETTINGS,
    START,
    add_tables,
    add_worker,
    at_once,
    claim,
    finish,
    job,
    request,
    statements_of,
)


def later(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_a_catalog_with_a_hundred_tables_does_not_hold_up_one_with_a_single_table(database: Database) -> None:
    """Every table always has a job waiting, those of the large catalog for longer; two workers take turns."""
    many = add_tables(database, [f"many-{number}" for number in range(100)])
    (single,) = add_tables(database, ["single"], "small")
    workers = [add_worker(database), add_worker(database)]
    for table in many:
        request(database, table, now=later(-3600))
    taken: Counter[str] = Counter()
    running: dict[str, str] = {}
    for second in range(60):
        worker = workers[second % 2]
        if worker in running:
            finish(database, running.pop(worker), 1, "succeeded", later(second))
        request(database, single, now=later(second))
        assignment = claim(database, worker, later(second))
        assert assignment is not None
        running[worker] = assignment.job.id
        taken[assignment.table.id] += 1
        request(database, assignment.table.id, now=later(second))
    # The single table runs as often as one at a time may: each second claim.
    assert taken[single] == 30
    assert sum(taken[table] for table in many) == 30
    assert max(taken[table] for table in many) == 1


def test_the_tables_of_a_catalog_take_turns(database: Database) -> None:
    busy, quiet, other = add_tables(database, ["a", "b", "c"])
    worker = add_worker(database)
    order = []
    for second in range(9):
        # The busy table asks for several kinds at once, and long before the others.
        for kind in (JobKind.INDEX, JobKind.CONVERT, JobKind.COMPACT):
            request(database, busy, kind, now=later(-100))
        for table in (quiet, other):
            request(database, table, now=later(second))
        assignment = claim(database, worker, later(second))
        assert assignment is not None
        finish(database, assignment.job.id, 1, "succeeded", later(second))
        order.append(assignment.table.id)
    assert Counter(order) == {busy: 3, quiet: 3, other: 3}
    assert all(len(set(order[at : at + 3])) == 3 for at in (0, 3, 6))


def test_only_jobs_that_wait_are_put_behind_others(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)
    for kind in (JobKind.COMPACT, JobKind.INDEX, JobKind.CONVERT):
        request(database, table, kind)
        with statements_of(database) as statements:
            assignment = claim(database, worker)
        assert assignment is not None
        assert not any("SET table_claimed_at" in statement for statement, _ in statements)
        finish(database, assignment.job.id, 1, "failed", error=FATAL)


def test_a_higher_priority_goes_before_any_turn(database: Database) -> None:
    (served,) = add_tables(database, ["a"])
    (waiting,) = add_tables(database, ["b"], "other")
    worker = add_worker(database)
    request(database, served, now=START)
    first = claim(database, worker)
    assert first is not None
    finish(database, first.job.id, 1, "succeeded")
    request(database, waiting, now=START)
    urgent = request(database, served, JobKind.INDEX, now=later(5), priority=1)
    second = claim(database, worker, later(10))
    assert second is not None
    assert second.job.id == urgent


def test_no_more_jobs_of_a_catalog_run_than_are_allowed(database: Database) -> None:
    tables = add_tables(database, list("abcdef"))
    (other,) = add_tables(database, ["z"], "other")
    with database.write() as session:
        session.exec(update(Catalog).where(col(Catalog.name) == "local").values(max_running_jobs=2))
    requested = [request(database, table) for table in tables]
    workers = [add_worker(database) for _ in range(8)]
    claimed: list[str] = []

    def work(number: int) -> None:
        assignment = claim(database, workers[number])
        if assignment is not None:
            claimed.append(assignment.job.id)

    at_once(8, work)
    assert len(claimed) == 2
    assert claim(database, add_worker(database)) is None
    waiting = next(each for each in requested if each not in claimed)
    with database.read() as session:
        text = view(session, session.get_one(Job, waiting)).waiting_for
    assert text == "Waits: 2 jobs of catalog local run, as many as it allows."
    request(database, other)
    free = claim(database, add_worker(database))
    assert free is not None
    assert free.table.id == other
    finish(database, claimed[0], 1, "succeeded")
    assert claim(database, add_worker(database)) is not None


def test_a_page_of_jobs_takes_as_many_statements_as_a_single_one(database: Database) -> None:
    tables = [
        table
        for catalog in ("local", "other")
        for table in add_tables(database, [f"{catalog}-{number}" for number in range(10)], catalog)
    ]
    jobs = [request(database, table, now=START) for table in tables]
    running = claim(database, add_worker(database))
    assert running is not None
    waiting = next(job for job in jobs if job != running.job.id)  # of which there is more to say

    def statements_for(ids: list[str]) -> int:
        with statements_of(database) as asked, database.read() as session:
            found = views(session, session.exec(select(Job).where(col(Job.id).in_(ids))).all())
        assert len(found) == len(ids)
        return len(asked)

    assert statements_for(jobs) == statements_for([waiting])


class Budgeted:
    """Two tables of a catalog under a policy with a budget, and jobs that its triggers start."""

    def __init__(self, database: Database, rewriting: dict[str, Any] | None = None, **budget: Any) -> None:
        self.database = database
        self.tables = add_tables(database, ["a", "b"])
        self.worker = add_worker(database)
        self.settings = {
            "budget": budget,
            "schedule": {"time_zone": "Asia/Tokyo"},
            "convert": {"delete_files": 1},
            "compact": {"enabled": False},
            "rewrite_data_files": {"min_interval_seconds": 0, "small_data_files": 1} | (rewriting or {}),
        }
        with database.write() as session:
            wanted = PolicyRequest.model_validate({"name": "budgeted", "settings": self.settings})
            create_policy(session, SETTINGS, SYSTEM, wanted)
            place = AttachmentRequest(level=Level.CATALOG, catalog="local", policy="budgeted")
            attach_policy(session, SYSTEM, place)
            for table in self.tables:
                session.merge(
                    TableHealth(
                        table_id=table,
                        pending_equality_delete_files=1,
                        convertible_delete_files=1,
                        convertible_deletes=1,
                        small_data_files=1,
                    )
                )

    def schedule(self, table: str, now: datetime, kind: str = "convert") -> dict[str, Any]:
        """What the scheduler decides about a kind."""
        with self.database.write() as session:
            health = session.get_one(TableHealth, table)
            row = session.get_one(EnrolledTable, table)
            schedule(session, row, health, read_known(session, row, now), now)
            return dict(health.decisions[kind])

    def change(self, **settings: dict[str, Any]) -> None:
        """Make another policy of it."""
        self.settings |= settings
        with self.database.write() as session:
            patch = PolicyPatch.model_validate({"settings": self.settings})
            update_policy(session, SETTINGS, SYSTEM, "budgeted", patch, "*")

    def run(self, now: datetime, seconds: float, **report: Any) -> str:
        """The next job; which table's it is."""
        assignment = claim(self.database, self.worker, now)
        assert assignment is not None
        finish(
            self.database,
            assignment.job.id,
            assignment.attempt,
            "succeeded",
            now + timedelta(seconds=seconds),
            **report,
        )
        return assignment.table.id

    def waiting_for(self, job_id: str) -> str | None:
        with self.database.read() as session:
            return view(session, session.get_one(Job, job_id)).waiting_for


def test_a_spent_budget_holds_up_what_starts_by_itself_until_the_day_turns(database: Database) -> None:
    budgeted = Budgeted(database, table_seconds_per_day=100)
    first, second = budgeted.tables
    assert budgeted.schedule(first, START)["action"] == "trigger"
    budgeted.run(START, 99)
    assert budgeted.schedule(first, later(100))["action"] == "trigger"
    budgeted.run(later(100), 1)
    found = budgeted.schedule(first, later(200))
    assert (found["action"], found["code"]) == ("skip", "budget-spent")
    assert found["sentence"] == (
        "1 equality delete file (policy: 1). It waits until 2026-01-01 15:00:00 UTC, since the budget of "
        "table db.t0 for this day is spent: 100 s of jobs (policy: 100 s); the day turns at 2026-01-02 00:00 "
        "Asia/Tokyo. Requesting one runs it at once."
    )
    with database.read() as session:
        table, health = session.get_one(EnrolledTable, first), session.get_one(TableHealth, first)
        planned = next(
            each for each in preview(session, table, health, later(200)).jobs if each.kind is JobKind.CONVERT
        )
    assert (planned.starts_at, planned.now) == (
        datetime.fromisoformat("2026-01-01T15:00Z"),
        found["sentence"],
    )
    # Neither another table nor a person waits, and in Tokyo the day turns at 15:00 UTC.
    assert budgeted.schedule(second, later(200))["action"] == "trigger"
    assert budgeted.run(later(200), 1) == second
    request(database, first, now=later(300))
    assert budgeted.run(later(300), 1) == first
    assert budgeted.schedule(first, later(15 * 3600 - 1))["action"] == "skip"
    assert budgeted.schedule(first, later(15 * 3600))["action"] == "trigger"


def test_waiting_jobs_of_a_catalog_are_held_when_its_budget_is_spent(
    database: Database,
) -> None:
    budgeted = Budgeted(database, catalog_bytes_per_day=1000)
    for table in budgeted.tables:
        assert budgeted.schedule(table, START)["action"] == "trigger"
    ran = budgeted.run(START, 1, bytes=1000, rows=5, stages=[{"name": "plan", "seconds": 0.5}])
    (left,) = [table for table in budgeted.tables if table != ran]
    assert claim(database, budgeted.worker, later(10)) is None
    with database.read() as session:
        held = session.exec(select(Job).where(Job.table_id == left)).one()
        (event,) = session.exec(select(Event).where(Event.job_id == held.id, Event.kind == "job.held"))
    assert held.available_at == datetime.fromisoformat("2026-01-01T15:00Z")
    why = "the budget of catalog local for this day is spent: 1.0 KB read and written (policy: 1.0 KB)"
    assert why in event.message
    assert why in str(budgeted.waiting_for(held.id))
    found = budgeted.schedule(left, later(20))
    assert (found["action"], found["code"]) == ("skip", "budget-spent")
    with database.read() as session:
        row, health = session.get_one(EnrolledTable, left), session.get_one(TableHealth, left)
        planned = preview(session, row, health, later(20)).jobs[1]
    assert planned.starts_at == held.available_at

    # A person who asks for it gets it at once.
    assert request(database, left, now=later(30)) == held.id
    assert budgeted.run(later(30), 1) == left
    assert job(database, held.id).requested_by == "test"


@pytest.mark.parametrize(
    ("priority", "convert"), [(-1, ("trigger", "delete-files")), (0, ("wait", "rewriting"))]
)
def test_no_conversion_waits_for_a_rewriting_that_goes_behind_it(
    database: Database, priority: int, convert: tuple[str, str]
) -> None:
    budgeted = Budgeted(database)
    table, _ = budgeted.tables
    request(database, table, JobKind.REWRITE_DATA_FILES, priority=priority)
    found = budgeted.schedule(table, START)
    assert (found["action"], found["code"]) == convert


def test_a_rewriting_waits_for_a_conversion_only_so_long_however_often_it_is_looked_at(
    database: Database,
) -> None:
    budgeted = Budgeted(database, {"enabled": True})
    table, _ = budgeted.tables
    request(database, table)
    for seconds in (0, 300, 599):
        found = budgeted.schedule(table, later(seconds), "rewrite_data_files")
        assert found["code"] == "with-conversion"
    assert budgeted.schedule(table, later(600), "rewrite_data_files")["action"] == "trigger"


def test_held_jobs_go_when_the_day_turns_or_the_budget_grows(database: Database) -> None:
    budgeted = Budgeted(database, catalog_seconds_per_day=5)
    first, second = budgeted.tables
    for table in (first, second):
        budgeted.schedule(table, START)
    ran = budgeted.run(START, 5)
    left = second if ran == first else first
    assert claim(database, budgeted.worker, later(10)) is None
    settings = {"budget": {"catalog_seconds_per_day": 50}, "convert": {"delete_files": 1}}
    with database.write() as session:
        patch = PolicyPatch.model_validate({"settings": settings})
        update_policy(session, SETTINGS, SYSTEM, "budgeted", patch, "*")
    budgeted.schedule(left, later(20))
    assert budgeted.run(later(20), 45) == left
    assert budgeted.schedule(ran, later(100))["code"] == "budget-spent"
    # In UTC now, since the policy names no time zone any more.
    assert budgeted.schedule(ran, later(24 * 3600))["action"] == "trigger"
    assert budgeted.run(later(24 * 3600), 1) == ran


def test_a_kind_of_maintenance_has_a_budget_of_its_own_that_holds_up_no_other(database: Database) -> None:
    kind, often = "rewrite_data_files", {"enabled": True, "min_interval_seconds": 0, "small_data_files": 1}
    budgeted = Budgeted(database, often | {"max_seconds_per_day": 100})
    first, second = budgeted.tables
    assert budgeted.schedule(first, START, kind)["action"] == "trigger"
    assert budgeted.run(START, 100) == first  # what is pending is left to it
    found = budgeted.schedule(first, later(200), kind)
    assert (found["action"], found["code"]) == ("skip", "budget-spent")
    assert (
        "the budget of rewrite data files jobs of table db.t0 for this day is spent: 100 s of jobs (policy: "
        "100 s); the day turns at 2026-01-02 00:00 Asia/Tokyo."
    ) in found["sentence"]
    assert budgeted.schedule(second, later(200), kind)["action"] == "trigger"
    # A conversion of the one, since no rewriting comes that would convert, and a rewriting of the other.
    assert Counter(budgeted.run(later(at), 1) for at in (210, 220)) == {first: 1, second: 1}
    assert claim(database, budgeted.worker, later(250)) is None
    # It was queued before the budget was made smaller.
    budgeted.change(rewrite_data_files=often | {"max_seconds_per_day": 1000})
    assert budgeted.schedule(first, later(300), kind)["action"] == "trigger"
    assert budgeted.schedule(first, later(301))["code"] == "rewriting"
    budgeted.change(rewrite_data_files=often | {"max_seconds_per_day": 50})
    assert budgeted.schedule(first, later(302))["action"] == "trigger", "the one that is queued has no turn"
    assert budgeted.run(later(310), 1) == first
    assert claim(database, budgeted.worker, later(320)) is None
    with database.read() as session:
        query = select(Job.id).where(Job.kind == kind, col(Job.held_because).is_not(None))
        held = session.exec(query).one()
    assert "the budget of rewrite data files jobs of table db.t0" in str(budgeted.waiting_for(held))
    assert budgeted.schedule(first, later(330), kind)["code"] == "budget-spent"
    budgeted.change(rewrite_data_files=often | {"max_seconds_per_day": 1000})
    budgeted.schedule(first, later(340))
    assert budgeted.waiting_for(held) == "Waits for a free worker."
