"""Jobs end, once each, whatever happens to the processes, the network and the database between them.

Real processes: the service's test build, and workers whose jobs only pretend. A journal stands for the
history of the tables.
"""

import os
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from sqlalchemy.engine import make_url
from sqlmodel import select

from service.app import prepare
from service.db.database import Database
from service.records.catalogs import Catalog
from service.records.jobs import Attempt, AttemptStatus, Event, Job, JobStatus
from service.records.policies import Policy, PolicyAttachment
from service.records.system import Lease
from service.records.workers import Worker
from service.settings import Settings
from tests.faults.injection import Fault, Faults, When, fired
from tests.faults.proxy import CUT, HANG, PASS, Mode, Proxy
from tests.faults.recovery import TALLY, Recovery, read_watched, summary
from tests.faults.service_build import POINTS
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.service.conftest import PLAIN_HTTP
from tests.service.postgresql import Server, restartable_server
from tests.service.queue_calls import add_tables
from tests.service.test_database_trouble import locked

pytestmark = pytest.mark.integration

LEASE_SECONDS = 2.0
SCHEDULER_SECONDS = 0.1
FAULTS: tuple[tuple[When, str], ...] = (
    ("before", "error"),
    ("before", "timeout"),
    ("before", "kill"),
    ("after", "timeout"),
    ("after", "kill"),
)
KINDS = ("index", "convert", "compact", "rebuild", "verify")


def python(module: str) -> list[str]:
    return [sys.executable, "-m", module]


class Process:
    """A child that may be killed, stopped, and started again."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self._command = command
        self._environment, self.log = environment, log
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, **self._environment},
                stdout=log,
                stderr=log,
            )
        self.starts += 1

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def wait(self, seconds: float) -> int:
        assert self._process is not None
        return self._process.wait(seconds)

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def assert_no_crash(self) -> None:
        """It runs, or was asked to end, or killed."""
        code = self._process.poll() if self._process is not None else None
        assert code is None or code <= 0, self.log.read_text()


class World:
    """One database, the processes around it, and what they did."""

    def __init__(self, directory: Path, database_url: str, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self.directory, self.lease_seconds = directory, lease_seconds
        self.journal, self.faults_dir = directory / "journal", directory / "faults"
        for each in (self.journal, self.faults_dir):
            each.mkdir()
        self.key = secrets.token_urlsafe(32)
        self._settings = {
            "ICESTREAM_DATABASE_URL": database_url,
            "ICESTREAM_DATA_DIR": str(directory),
            "ICESTREAM_BOOTSTRAP_KEY": self.key,
            "ICESTREAM_LEASE_SECONDS": str(lease_seconds),
            "ICESTREAM_SCHEDULER_INTERVAL_SECONDS": str(SCHEDULER_SECONDS),
            # The tables exist only in the control database.
            "ICESTREAM_POLL_INTERVAL_SECONDS": "3600",
        }
        prepare(Settings(data_dir=directory, database_url=database_url))
        self.database = Database(database_url)
        self.tables = add_tables(self.database, ["a", "a", "b", "c", "d"])
        self._retry_soon()
        self.processes: list[Process] = []
        self.workers: list[Process] = []
        self._stopping = threading.Event()
        self._keepers: list[threading.Thread] = []

    @contextmanager
    def database_through_proxy(self) -> Iterator[Proxy]:
        """Services that start from now on reach PostgreSQL by it; this world still does directly."""
        url = make_url(self.database.url)
        assert url.port is not None
        with Proxy(url.port) as proxy:
            through = url.set(port=proxy.port).render_as_string(hide_password=False)
            self._settings["ICESTREAM_DATABASE_URL"] = through
            yield proxy

    def _retry_soon(self) -> None:
        retries = {"max_attempts": 100, "backoff_seconds": 0.1, "max_backoff_seconds": 0.2}
        with self.database.write() as session:
            catalog = session.exec(select(Catalog)).one()
            policy = Policy(name="soon", settings={"retries": retries})
            session.add(policy)
            session.flush()
            session.add(
                PolicyAttachment(
                    target=f"catalog:{catalog.id}",
                    level="catalog",
                    catalog_id=catalog.id,
                    policy_id=policy.id,
                )
            )

    def service(self, faults: tuple[Fault, ...] = (), *, kept_alive: bool = True) -> tuple[Process, int]:
        """A service and its port; started again whenever it dies."""
        port = free_port()
        environment = {
            **self._settings,
            **Faults.environment(faults, self.faults_dir),
            "ICESTREAM_PORT": str(port),
        }
        process = Process(python("tests.faults.service_build"), environment, self.directory / "service.log")
        process.start()
        self.processes.append(process)
        if kept_alive:
            keeper = threading.Thread(target=self._keep_alive, args=(process,))
            keeper.start()
            self._keepers.append(keeper)
        self.wait_until_ready(port)
        return process, port

    def _keep_alive(self, process: Process) -> None:
        while not self._stopping.wait(0.05):
            if not process.is_alive:
                process.start()

    def wait_until_ready(self, port: int) -> None:
        wait_until(lambda: self.answers(port, "/readyz"), "the service to be ready")

    def answers(self, port: int, path: str) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=2, verify=PLAIN_HTTP).is_success
        except httpx.TransportError:
            return False

    def worker(self, port: int, seconds: float = 0.1) -> Process:
        environment = {
            "ICESTREAM_URL": f"http://127.0.0.1:{port}",
            "ICESTREAM_API_KEY": self.key,
            "ICESTREAM_WORKER_NAME": f"stub-{len(self.processes)}",
            "STUB_JOURNAL": str(self.journal),
            "STUB_SECONDS": str(seconds),
        }
        process = Process(
            python("tests.faults.stub_worker"),
            environment,
            self.directory / f"worker-{len(self.processes)}.log",
        )
        process.start()
        self.processes.append(process)
        self.workers.append(process)
        return process

    @contextmanager
    def held(self) -> Iterator[None]:
        """No job of a worker's ends meanwhile, however slow this machine is."""
        hold = self.journal / "hold"
        hold.touch()
        yield
        hold.unlink()

    def close(self) -> None:
        self._stopping.set()
        for keeper in self._keepers:
            keeper.join()
        for process in self.processes:
            process.kill()
        self.database.dispose()

    def request(self, port: int, number: int) -> str:
        """Queue the job of a number, however often it takes to learn its id."""
        path = f"http://127.0.0.1:{port}/api/v1/tables/{self.tables[number % len(self.tables)]}/jobs"
        headers = {"Authorization": f"Bearer {self.key}", "Idempotency-Key": f"job-{number}"}
        body = {"kind": KINDS[number // len(self.tables) % len(KINDS)]}

        def ask() -> str | None:
            try:
                answer = httpx.post(path, json=body, headers=headers, timeout=10, verify=PLAIN_HTTP)
            except httpx.TransportError:
                return None
            assert answer.status_code == 202 or answer.status_code >= 500, answer.text
            return str(answer.json()["id"]) if answer.status_code == 202 else None

        return wait_until(ask, "a job to be queued")

    def jobs(self) -> list[Job]:
        for worker in self.workers:  # one that never began would be waited for in vain
            worker.assert_no_crash()
        with self.database.read() as session:
            return list(session.exec(select(Job)))

    def attempts(self) -> list[Attempt]:
        for worker in self.workers:
            worker.assert_no_crash()
        with self.database.read() as session:
            return list(session.exec(select(Attempt).order_by(Attempt.job_id, Attempt.attempt)))  # type: ignore[arg-type]

    def running(self) -> Attempt | None:
        return next((each for each in self.attempts() if each.status == AttemptStatus.RUNNING.value), None)

    def at_work(self) -> Job | None:
        """A job whose worker was heard of, so it did get it."""
        running = [each for each in self.jobs() if each.status == JobStatus.RUNNING.value]
        return next((each for each in running if each.renewals), None)

    def wait_for_jobs(self, ids: set[str]) -> None:
        def ended() -> bool:
            jobs = self.jobs()
            return ids <= {each.id for each in jobs if JobStatus(each.status).is_final}

        wait_until(lambda: patiently(ended), "all jobs to end")

    def check(self, ids: set[str], *, injected: int = 1) -> None:
        """Nothing lost, nothing twice, nothing left behind, and a history that says so.

        injected: how many faults; for the figures.
        """
        jobs, attempts = self.jobs(), self.attempts()
        TALLY.injected += injected
        for lost, following in self.followed():
            heard_at = lost.lease_expires_at - timedelta(seconds=self.lease_seconds)
            TALLY.add_followed(heard_at, following.started_at, self.lease_seconds)
        assert {each.id for each in jobs} == ids
        assert Counter(each.status for each in jobs) == {"succeeded": len(ids)}
        committed = Counter(
            line.split()[0]
            for table in self.tables
            if (self.journal / table).exists()
            for line in (self.journal / table).read_text().splitlines()
        )
        assert committed == dict.fromkeys(ids, 1)
        assert not (self.journal / "refused").exists()
        assert {each.lease_expires_at for each in jobs} == {None}
        assert all(each.ended_at is not None for each in attempts)
        with self.database.read() as session:
            events = list(session.exec(select(Event)))
        of_job: dict[str, Counter[str]] = defaultdict(Counter)
        for event in events:
            if event.job_id is not None:
                of_job[event.job_id][event.kind] += 1
        for job in jobs:
            mine = [each for each in attempts if each.job_id == job.id]
            assert [each.attempt for each in mine] == list(range(1, job.attempt + 1))
            assert [each.status for each in mine].count("succeeded") == 1
            assert mine[-1].status == "succeeded"
            kinds = of_job[job.id]
            assert (kinds["job.queued"], kinds["job.succeeded"]) == (1, 1)
            assert kinds["job.running"] == len(mine)
            assert kinds["job.retry"] == len(mine) - 1
        self._check_addresses()

    def _check_addresses(self) -> None:
        bases: dict[str, list[int]] = defaultdict(list)
        for line in (self.journal / "addresses").read_text().splitlines():
            table_uuid, base, *_ = line.split()
            bases[table_uuid].append(int(base))
        for granted in bases.values():
            assert all(
                after - before >= 10
                for before, after in zip(sorted(granted), sorted(granted)[1:], strict=False)
            )

    def lost(self) -> list[Attempt]:
        return [each for each in self.attempts() if each.status == AttemptStatus.LOST.value]

    def followed(self) -> Iterator[tuple[Attempt, Attempt]]:
        """Each lost attempt that was followed by another one, with that."""
        attempts = {(each.job_id, each.attempt): each for each in self.attempts()}
        for lost in self.lost():
            following = attempts.get((lost.job_id, lost.attempt + 1))
            if following is not None and lost.ended_at is not None:
                yield lost, following

    def recoveries(self) -> list[Recovery]:
        """Of each lost attempt that was followed by another one."""
        watched = read_watched(self.faults_dir)
        with self.database.read() as session:
            registered_at = {each.id: each.registered_at for each in session.exec(select(Worker))}
        return [
            Recovery.of(
                watched[lost.job_id, lost.attempt],
                heard_at=lost.lease_expires_at - timedelta(seconds=self.lease_seconds),
                given_up_at=cast("datetime", lost.ended_at),
                free_at=registered_at[following.worker_id],
                followed_at=following.started_at,
            )
            for lost, following in self.followed()
        ]


def patiently(look: Callable[[], bool]) -> bool:
    """The database may just be away."""
    from sqlalchemy.exc import OperationalError

    try:
        return look()
    except OperationalError:
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def note(record_property: Callable[[str, object], None], name: str, seconds: list[float]) -> None:
    figures = (
        {"count": len(seconds), "median": round(statistics.median(seconds), 2), "max": round(max(seconds), 2)}
        if seconds
        else {"count": 0}
    )
    record_property(name, figures)
    tell(f"{name}: {figures}")


def tell(sentence: str) -> None:
    """For `pytest -s`, and for whoever reads the output of a failed test."""
    sys.stdout.write(f"\n{sentence}\n")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with restartable_server() as server:
        yield server


@pytest.fixture
def new_world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., World]]:
    with ExitStack() as stack:

        def make(kind: str, **options: Any) -> World:
            url = f"sqlite:///{tmp_path / 'icestream.db'}"
            if kind == "postgresql":
                name = f"faults_{secrets.token_hex(4)}"
                server: Server = request.getfixturevalue("server")
                create_database(server.url, name)
                url = f"{server.url}/{name}"
            world = World(tmp_path, url, **options)
            stack.callback(world.close)
            return world

        yield make


def create_database(server: str, name: str) -> None:
    from sqlalchemy import create_engine, text

    engine = create_engine(f"{server}/postgres", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()


Record = Callable[[str, object], None]


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.thorough)])
def test_a_service_killed_ten_times_loses_no_job_of_a_hundred(
    kind: str, new_world: Callable[..., World], record_property: Record
) -> None:
    world = new_world(kind)
    service, port = world.service()
    for _ in range(4):
        world.worker(port)
    ids: set[str] = set()
    number, back = 0, []
    for killed in range(1, 11):
        while len(ids) < 10 * killed:
            ids.add(world.request(port, number))
            number += 1
        while not world.running():  # they may be done before this looks
            ids.add(world.request(port, number))
            number += 1
        begun = time.monotonic()
        service.send(signal.SIGKILL)
        wait_until(lambda starts=killed + 1: service.starts == starts, "the next start")  # type: ignore[misc]
        world.wait_until_ready(port)
        back.append(time.monotonic() - begun)
    world.wait_for_jobs(ids)
    world.check(ids, injected=10)
    assert service.starts == 11
    note(record_property, f"{kind}: seconds from a kill to a ready service", back)


def test_postgresql_that_crashes_under_load_loses_no_job(
    server: Server, new_world: Callable[..., World], record_property: Record
) -> None:
    world = new_world("postgresql")
    service, port = world.service()
    for _ in range(4):
        world.worker(port)
    ids: set[str] = set()
    number, back = 0, []
    for crashed in range(1, 6):
        while len(ids) < 10 * crashed:
            ids.add(world.request(port, number))
            number += 1
        begun = time.monotonic()
        server.restart()
        assert world.answers(port, "/livez")
        world.wait_until_ready(port)
        back.append(time.monotonic() - begun)
    world.wait_for_jobs(ids)
    world.check(ids, injected=5)
    assert service.starts == 1, "the service goes on without a restart"
    note(record_property, "postgresql: seconds from a crash of the database to a ready service", back)


@pytest.mark.parametrize("kind", [pytest.param("sqlite", marks=pytest.mark.thorough), "postgresql"])
def test_every_fault_at_every_point_loses_no_job(
    kind: str, new_world: Callable[..., World], record_property: Record
) -> None:
    world = new_world(kind)
    faults = tuple(Fault(point, when, action) for point in POINTS for when, action in FAULTS)
    service, port = world.service(faults)
    for _ in range(3):
        world.worker(port, 0.8)
    ids: set[str] = set()
    number = 0
    while len(ids) < 30 or any(fired(world.faults_dir, fault) == 0 for fault in faults):
        assert number < 200, [fault for fault in faults if not fired(world.faults_dir, fault)]
        ids.add(world.request(port, number))
        number += 1
        time.sleep(0.1)
    world.wait_for_jobs(ids)
    world.check(ids, injected=len(faults))
    assert {fired(world.faults_dir, fault) for fault in faults} == {1}
    assert service.starts == 1 + sum(fault.action == "kill" for fault in faults)
    record_property(f"{kind}: faults", len(faults))
    tell(f"{kind}: {len(faults)} faults, once each; {len(ids)} jobs, {len(world.lost())} attempts lost")


def test_a_killed_worker_is_followed_by_another(new_world: Callable[..., World]) -> None:
    world = new_world("sqlite")
    _, port = world.service()
    ids = set()
    for number in range(3):
        # It is not done before it is killed, however slow this machine is.
        worker = world.worker(port, 600)
        ids.add(world.request(port, number))
        wait_until(world.at_work, "a job at work")
        worker.send(signal.SIGKILL)
        other = world.worker(port)
        world.wait_for_jobs(ids)
        other.send(signal.SIGTERM)
        assert other.wait(PATIENCE_SECONDS) == 0
    world.check(ids, injected=3)
    recoveries = world.recoveries()
    assert len(recoveries) == 3
    for recovery in recoveries:
        recovery.check(LEASE_SECONDS)
    tell(summary(recoveries))


def test_a_worker_that_is_asked_to_stop_before_it_learns_of_its_job_hands_it_back(
    new_world: Callable[..., World],
) -> None:
    world = new_world("sqlite", lease_seconds=60)
    _, port = world.service((Fault("claim", "after", "sleep:1"),))
    worker = world.worker(port)
    ids = {world.request(port, 0)}
    wait_until(world.running, "the service to give the job away")
    worker.send(signal.SIGTERM)
    assert worker.wait(PATIENCE_SECONDS) == 0
    world.worker(port)
    world.wait_for_jobs(ids)
    assert [attempt.status for attempt in world.attempts()] == ["released", "succeeded"]


def next_attempt(world: World, before: Attempt) -> bool:
    with world.database.read() as session:
        return session.get(Attempt, (before.job_id, before.attempt + 1)) is not None


def test_a_worker_that_stood_still_past_its_lease_changes_nothing_and_works_on(
    new_world: Callable[..., World],
) -> None:
    world = new_world("sqlite")
    _, port = world.service()
    stopped = world.worker(port, 4.0)
    with world.held():
        ids = {world.request(port, 0)}
        wait_until(world.at_work, "a job at work")
        stopped.send(signal.SIGSTOP)
    other = world.worker(port)
    world.wait_for_jobs(ids)
    other.send(signal.SIGTERM)
    other.wait(PATIENCE_SECONDS)
    before = world.jobs()[0].model_dump()
    stopped.send(signal.SIGCONT)
    wait_until(
        lambda: any(words in stopped.log.read_text() for words in ("was taken away", "came too late")),
        "the late worker to learn of it",
    )
    assert world.jobs()[0].model_dump() == before
    ids.add(world.request(port, 1))
    world.wait_for_jobs(ids)
    world.check(ids)


LONG_LEASE_SECONDS = 600.0
"""Too long to run out on any machine: an attempt that is lost nevertheless was given up too early."""


def survive(world: World, port: int, outage: Callable[[float], None], seconds: float) -> None:
    """No job is lost to an outage."""
    world.worker(port)
    with world.held():
        ids = {world.request(port, 0)}
        wait_until(world.at_work, "a job at work")
        outage(seconds)
    ids.add(world.request(port, 1))
    world.wait_for_jobs(ids)
    world.check(ids)


def outage_seconds(lease_seconds: float) -> float:
    return 3.0 if lease_seconds == LONG_LEASE_SECONDS else 3 * lease_seconds


@pytest.mark.parametrize("lease_seconds", [LONG_LEASE_SECONDS, 4.0], ids=["within", "beyond"])
def test_a_locked_sqlite_costs_no_attempt_within_the_lease_and_never_a_job(
    lease_seconds: float, new_world: Callable[..., World]
) -> None:
    world = new_world("sqlite", lease_seconds=lease_seconds)
    service, port = world.service()

    def lock(seconds: float) -> None:
        with locked(world.database.url):
            time.sleep(seconds)

    survive(world, port, lock, outage_seconds(lease_seconds))
    assert lease_seconds != LONG_LEASE_SECONDS or world.lost() == []
    assert service.starts == 1


@pytest.mark.parametrize("lease_seconds", [LONG_LEASE_SECONDS, 6.0], ids=["within", "beyond"])
@pytest.mark.parametrize("mode", [CUT, HANG], ids=["cut", "hang"])
def test_postgresql_out_of_reach_costs_no_attempt_within_the_lease_and_never_a_job(
    mode: Mode, lease_seconds: float, new_world: Callable[..., World]
) -> None:
    world = new_world("postgresql", lease_seconds=lease_seconds)
    with world.database_through_proxy() as proxy:
        service, port = world.service()

        def break_off(seconds: float) -> None:
            proxy.set(mode)
            time.sleep(seconds)
            proxy.set(PASS)

        survive(world, port, break_off, outage_seconds(lease_seconds))
        assert lease_seconds != LONG_LEASE_SECONDS or world.lost() == []
        assert service.starts == 1


def test_a_cut_shorter_than_the_lease_costs_no_attempt(new_world: Callable[..., World]) -> None:
    world = new_world("sqlite", lease_seconds=LONG_LEASE_SECONDS)
    _, port = world.service()
    with Proxy(port) as proxy:
        world.worker(proxy.port)
        with world.held():
            ids = {world.request(port, 0)}
            wait_until(world.at_work, "a job at work")
            proxy.set(CUT)
            time.sleep(0.8)
            proxy.set(PASS)
        world.wait_for_jobs(ids)
    assert world.lost() == []
    world.check(ids)


def test_a_cut_longer_than_the_lease_costs_an_attempt_and_no_job(new_world: Callable[..., World]) -> None:
    world = new_world("sqlite")
    _, port = world.service()
    with Proxy(port) as proxy:
        world.worker(proxy.port)
        with world.held():
            ids = {world.request(port, 0)}
            wait_until(world.at_work, "a job at work")
            proxy.set(CUT)
            wait_until(world.lost, "the attempt to be given up")
            proxy.set(PASS)
        world.wait_for_jobs(ids)
    assert world.lost()
    world.check(ids)


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_a_clock_that_jumps_loses_no_attempt_and_holds_up_no_job(
    seconds: int, new_world: Callable[..., World]
) -> None:
    world = new_world("sqlite", lease_seconds=LONG_LEASE_SECONDS)
    _, port = world.service()
    for _ in range(3):
        world.worker(port)
    with world.held():
        ids = {world.request(port, number) for number in range(4)}
        wait_until(world.at_work, "a job at work")
        (world.faults_dir / "clock").write_text(str(seconds))
        ids |= {world.request(port, number) for number in range(4, 8)}
    world.wait_for_jobs(ids)
    world.check(ids)
    assert world.lost() == []


def test_another_replica_takes_over_from_one_that_stands_still(new_world: Callable[..., World]) -> None:
    # The scheduler's is half as long: it must not be lost to a busy machine before it is to be.
    world = new_world("postgresql", lease_seconds=6.0)
    first, first_port = world.service(kept_alive=False)
    holder = wait_until(lambda: scheduler(world), "a scheduler")
    _, second_port = world.service(kept_alive=False)
    worker = world.worker(first_port, 600)  # it is not done before it is killed
    ids = {world.request(first_port, 0)}
    attempt = wait_until(world.running, "a running job")
    assert scheduler(world) == holder
    first.send(signal.SIGSTOP)
    worker.kill()
    world.worker(second_port)
    wait_until(lambda: next_attempt(world, attempt), "the next attempt")
    assert scheduler(world) != holder
    world.wait_for_jobs(ids)
    first.send(signal.SIGCONT)
    ids.add(world.request(first_port, 1))
    world.wait_for_jobs(ids)
    world.check(ids)
    (recovery,) = world.recoveries()
    recovery.check(world.lease_seconds)
    tell(summary([recovery]))


def scheduler(world: World) -> str | None:
    with world.database.read() as session:
        lease = session.exec(select(Lease)).first()
    return None if lease is None else lease.holder


def test_the_real_service_does_not_know_of_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Fault("register", "before", "error", times=100)
    for name, value in Faults.environment([fault], tmp_path).items():
        monkeypatch.setenv(name, value)
    settings = Settings(data_dir=tmp_path)
    assert not any("fault" in name for name in settings.model_dump())
    with real_service(tmp_path) as (http, _):
        body = {"name": "w", "hostname": "h", "pid": 1, "version": "0"}
        assert http.post("/api/v1/workers", json=body).status_code == 201
    assert fired(tmp_path, fault) == 0


def test_sigterm_ends_the_service_and_answers_what_is_asked(tmp_path: Path) -> None:
    with real_service(tmp_path) as (http, process), ExitStack() as stack:
        body = {"hostname": "h", "pid": 1, "version": "0"}
        workers = [http.post("/api/v1/workers", json={**body, "name": f"w{i}"}).json() for i in range(3)]
        answers: list[int] = []

        def claim(worker_id: str) -> None:
            path = f"/api/v1/workers/{worker_id}/claim"
            answers.append(http.post(path, json={"wait_seconds": 60}, timeout=70).status_code)

        polls = [threading.Thread(target=claim, args=[worker["id"]]) for worker in workers]
        for poll in polls:
            poll.start()
        stream = stack.enter_context(http.stream("GET", "/api/v1/events", timeout=70))
        assert stream.status_code == 200
        registered = {worker["id"]: worker["last_seen_at"] for worker in workers}

        def wait_for_work() -> bool:
            seen = {each["id"]: each["last_seen_at"] for each in http.get("/api/v1/workers").json()["items"]}
            return all(seen[worker_id] != at for worker_id, at in registered.items())

        wait_until(wait_for_work, "all claims to have found nothing yet")
        begun = time.monotonic()
        process.send(signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)
        took = time.monotonic() - begun
        for poll in polls:
            poll.join()
        # A stream has no end of its own, so a browser connects again either way.
        with suppress(httpx.RemoteProtocolError):
            stream.read()
    # One that waited for the end of its time would have been cut off.
    assert answers == [204] * 3
    tell(f"seconds from SIGTERM to the end: {took:.2f}")


@contextmanager
def real_service(tmp_path: Path) -> Iterator[tuple[httpx.Client, Process]]:
    key, port = secrets.token_urlsafe(32), free_port()
    environment = {
        "ICESTREAM_DATA_DIR": str(tmp_path),
        "ICESTREAM_BOOTSTRAP_KEY": key,
        "ICESTREAM_PORT": str(port),
    }
    prepare(Settings(data_dir=tmp_path, bootstrap_key=key))
    process = Process(
        [str(Path(sys.executable).with_name("icestream")), "serve"], environment, tmp_path / "service.log"
    )
    process.start()
    url = f"http://127.0.0.1:{port}"
    with (
        ExitStack() as stack,
        httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, verify=PLAIN_HTTP) as http,
    ):
        stack.callback(process.kill)

        def is_ready() -> bool:
            try:
                return http.get("/readyz").is_success
            except httpx.TransportError:
                return False

        wait_until(is_ready, "the service to be ready")
        yield http, process
