"""What the background does about leases and clocks, with a clock that the test sets."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from sqlmodel import select

from service.auth.models import SYSTEM
from service.catalogs.iceberg import IcebergCatalogs
from service.catalogs.observations import count_request
from service.db.database import Database
from service.errors import ConflictError, UnreachableError
from service.jobs import attempts
from service.jobs.contract import HeartbeatRequest
from service.jobs.leases import LeaseObserver
from service.records.catalogs import Catalog, CatalogHealth
from service.records.jobs import Event, Job, JobStatus
from service.records.policies import Policy, PolicyAttachment
from service.scheduling.background import Background
from service.settings import Settings
from tests.service.conftest import ON_BOTH, ManualTime, alike_on_both
from tests.service.queue_calls import RETRYABLE, add_tables, add_worker, claim, finish, job, request

# Its time does not come from the database.
database_kind = alike_on_both


def test_a_lease_ends_once_it_stood_still_for_its_time() -> None:
    time = ManualTime()
    observer = LeaseObserver[str, int](30, time.clock.monotonic)
    for second in range(30):
        assert observer.look({"a": 1}) == {}, second
        time.pass_by(1)
    assert observer.look({"a": 1, "b": 1}) == {"a": 1}
    assert observer.look({"a": 2, "b": 1}) == {}


def test_a_holder_that_was_gone_has_its_time_before_it_again() -> None:
    time = ManualTime()
    observer = LeaseObserver[str, int](30, time.clock.monotonic)
    for leases in ({"a": 1}, {}, {"a": 1}):
        observer.look(leases)
        time.pass_by(7)
    assert observer.look({"a": 1}) == {}


def test_time_in_which_nobody_looked_ends_no_lease() -> None:
    time = ManualTime()
    observer = LeaseObserver[str, int](30, time.clock.monotonic)
    observer.look({"a": 1})
    time.pass_by(1000)
    assert observer.look({"a": 1}) == {}
    # Who looks too seldom still ends it some time.
    for _ in range(3):
        time.pass_by(1000)
        ended = observer.look({"a": 1})
    assert ended == {"a": 1}


@dataclass
class Replica:
    background: Background
    database: Database
    time: ManualTime
    settings: Settings

    def again(self) -> "Replica":
        """The same service after a restart, or another replica."""
        new = Background(self.database, self.settings, IcebergCatalogs(self.settings), self.time.clock)
        return Replica(new, self.database, self.time, self.settings)

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.time.pass_by(1)
            self.background.tick()


@pytest.fixture
def replica(database: Database, tmp_path: Path) -> Iterator[Replica]:
    settings = Settings(data_dir=tmp_path, database_url=database.url, lease_seconds=30)
    time = ManualTime()
    background = Background(database, settings, IcebergCatalogs(settings), time.clock)
    yield Replica(background, database, time, settings)
    background.stop()


@pytest.fixture
def start_job(database: Database, replica: Replica) -> Callable[[], str]:
    """Queues a job that a worker claims at once."""

    def start() -> str:
        (table,) = add_tables(database, ["a"])
        job_id = request(database, table, now=replica.time.wall)
        assert claim(database, add_worker(database), replica.time.wall) is not None
        return job_id

    return start


def beat(replica: Replica, job_id: str) -> None:
    with replica.database.write() as session:
        attempts.heartbeat(
            session, replica.settings, SYSTEM, job_id, 1, HeartbeatRequest(), replica.time.wall
        )


@pytest.mark.parametrize("jump_seconds", [-7200, 7200])
def test_a_clock_that_jumps_neither_ends_nor_keeps_an_attempt(
    jump_seconds: float, replica: Replica, start_job: Callable[[], str]
) -> None:
    job_id = start_job()
    replica.run(5)
    replica.time.jump(jump_seconds)
    for _ in range(5):
        replica.run(9)
        beat(replica, job_id)
    assert job(replica.database, job_id).status == JobStatus.RUNNING.value
    replica.time.jump(-jump_seconds)
    replica.run(30)
    assert job(replica.database, job_id).status == JobStatus.RUNNING.value
    # Seen at the first tick after the heartbeat, given up at the first one after a whole lease.
    replica.run(2)
    assert job(replica.database, job_id).status == JobStatus.QUEUED.value


def test_an_attempt_that_takes_too_long_is_taken_from_a_worker_that_goes_on_beating(
    replica: Replica, database: Database
) -> None:
    with database.write() as session:
        settings = {"retries": {"timeout_seconds": 60, "max_attempts": 2}}
        policy = Policy(name="bounded", settings=settings)
        session.add(policy)
        session.flush()
        session.get_one(PolicyAttachment, "system").policy_id = policy.id
    table_ids, start = add_tables(database, ["u1", "u2"]), replica.time.wall
    job_ids = [request(database, table_id, now=start) for table_id in table_ids]
    workers = [add_worker(database) for _ in table_ids]
    given = [claim(database, worker, start) for worker in workers]
    assert [one.timeout_seconds for one in given if one] == [60, 60]
    with database.write() as session:
        session.get_one(Job, job_ids[1]).timeout_seconds = 0
    replica.time.jump(7200)
    for _ in range(11):
        replica.run(8)
        for job_id in job_ids:
            beat(replica, job_id)
    # The worker had a lease's time to end it itself.
    assert job(database, job_ids[0]).status == JobStatus.RUNNING.value
    replica.run(4)
    timed_out, unbounded = (job(database, job_id) for job_id in job_ids)
    assert (timed_out.status, timed_out.failures) == (JobStatus.QUEUED.value, 1)
    assert timed_out.error is not None
    assert timed_out.error["code"] == "timed_out"
    assert unbounded.status == JobStatus.RUNNING.value
    with pytest.raises(ConflictError, match="is queued"):
        beat(replica, job_ids[0])
    assert claim(database, workers[0], replica.time.wall + timedelta(minutes=1)) is not None


@ON_BOTH
def test_a_restart_gives_each_running_attempt_a_whole_lease(
    replica: Replica, start_job: Callable[[], str]
) -> None:
    job_id = start_job()
    replica.run(5)
    replica.time.pass_by(3600)
    restarted = replica.again()
    restarted.run(29)
    assert job(replica.database, job_id).status == JobStatus.RUNNING.value
    restarted.run(3)
    assert job(replica.database, job_id).status == JobStatus.QUEUED.value
    restarted.background.stop()


@ON_BOTH
def test_another_replica_gives_up_an_attempt_in_time_although_it_did_not_schedule(
    replica: Replica, start_job: Callable[[], str]
) -> None:
    job_id = start_job()
    other = replica.again()
    for _ in range(5):
        replica.run(1)
        other.background.tick()
    # Now the scheduling replica and the worker are gone at once.
    other.run(27)
    assert job(replica.database, job_id).status == JobStatus.QUEUED.value
    other.background.stop()


def test_a_job_that_waits_follows_a_clock_that_was_set_back(
    replica: Replica, start_job: Callable[[], str]
) -> None:
    job_id = start_job()
    finish(replica.database, job_id, 1, "failed", replica.time.wall, RETRYABLE)
    replica.run(1)
    replica.time.jump(-3600)
    replica.run(1)
    assert claim(replica.database, add_worker(replica.database), replica.time.wall) is None
    replica.run(10)
    assert claim(replica.database, add_worker(replica.database), replica.time.wall) is not None
    with replica.database.read() as session:
        told = session.exec(select(Event).where(Event.job_id == job_id, Event.kind == "job.clock")).all()
        assert len(told) == 1
        assert len(session.exec(select(Job)).all()) == 1


def test_of_a_catalog_that_is_well_answers_are_noted_seldom_and_all_else_at_once(replica: Replica) -> None:
    with replica.database.write() as session:
        catalog = Catalog(name="lake", type="hadoop", properties={"warehouse": "file:///lake"})
        session.add(catalog)

    def ask(error: UnreachableError | None = None) -> None:
        with suppress(UnreachableError), replica.background._observations.of(catalog.id) as asking:
            asking.opened()
            count_request()
            if error is not None:
                raise error

    def noted() -> int:
        with replica.database.read() as session:
            return session.get_one(CatalogHealth, catalog.id).requests

    for error, seconds, requests in (
        (None, 1, 1),  # it answers
        (None, 1, 1),
        (UnreachableError("catalog-unreachable", "It is silent.", "Wait."), 1, 3),
        (None, 1, 4),  # it answers again
        (None, 1, 4),
        (None, 10, 6),
    ):
        ask(error)
        replica.run(seconds)
        assert noted() == requests
    ask()
    replica.background.stop()
    assert noted() == 7
