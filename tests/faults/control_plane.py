"""The service's test build, workers whose jobs only pretend, and the database between them.

Real processes, which tests kill, stop and cut off. A journal stands for the history of the tables.
"""

import secrets
import signal
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import count, pairwise
from pathlib import Path
from typing import cast

import httpx
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from sqlmodel import select

from service.app import prepare
from service.db.database import Database
from service.records.catalogs import Catalog
from service.records.jobs import Attempt, AttemptStatus, Event, Job, JobStatus
from service.records.policies import Policy, PolicyAttachment
from service.records.system import Lease
from service.records.workers import Worker
from service.settings import Settings
from tests.faults.forked import Process
from tests.faults.injection import Fault, Faults
from tests.faults.proxy import Proxy
from tests.faults.recovery import TALLY, Recovery, read_watched
from tests.faults.service_build import HURRY
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.server_process import free_port
from tests.service.conftest import PLAIN_HTTP
from tests.service.queue_calls import add_tables

LEASE_SECONDS = 600.0
"""Too long to run out on any machine; whatever is to lose an attempt lets the service's time pass."""
SCHEDULER_SECONDS = 0.1
KINDS = ("index", "convert", "compact", "rebuild", "verify")


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
        process = Process("tests.faults.service_build", environment, self.directory / "service.log")
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
            return httpx.get(
                f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_SECONDS, verify=PLAIN_HTTP
            ).is_success
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
        log = self.directory / f"worker-{len(self.processes)}.log"
        process = Process("tests.faults.stub_worker", environment, log)
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
                answer = httpx.post(
                    path, json=body, headers=headers, timeout=PATIENCE_SECONDS, verify=PLAIN_HTTP
                )
            except httpx.TransportError:
                return None
            assert answer.status_code == 202 or answer.status_code >= 500, answer.text
            return str(answer.json()["id"]) if answer.status_code == 202 else None

        return wait_until(ask, "a job to be queued")

    def kill_service(self, kills: int) -> None:
        """While jobs are asked for and done, ten for each time; none is lost."""
        service, port = self.service()
        for _ in range(4):
            self.worker(port)
        ids: set[str] = set()
        numbers = count()
        for killed in range(1, kills + 1):
            while len(ids) < 10 * killed or not self.running():  # they may be done before this looks
                ids.add(self.request(port, next(numbers)))
            service.send(signal.SIGKILL)
            wait_until(lambda starts=killed + 1: service.starts == starts, "the next start")  # type: ignore[misc]
            self.wait_until_ready(port)
        self.wait_for_jobs(ids)
        self.check(ids, injected=kills)
        assert service.starts == 1 + kills

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
        """A job that its worker did get, and has begun."""
        if not (begun := self.journal / "addresses").exists():
            return None
        known = {tuple(line.split()[2:]) for line in begun.read_text().splitlines()}
        running = [each for each in self.jobs() if each.status == JobStatus.RUNNING.value]
        return next((each for each in running if (each.id, str(each.attempt)) in known), None)

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
            assert all(after - before >= 10 for before, after in pairwise(sorted(granted)))

    def lose_attempt(self) -> None:
        """Let the service's time pass until it gives up the attempt of a worker that is silent."""
        (self.faults_dir / HURRY).write_text("1")
        wait_until(lambda: not (self.faults_dir / HURRY).exists(), "the attempt to be given up")

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
    try:
        return look()
    except OperationalError:
        return False


def scheduler(world: World) -> str | None:
    """The replica that schedules."""
    with world.database.read() as session:
        lease = session.exec(select(Lease)).first()
    return None if lease is None else lease.holder


def create_database(server: str, name: str) -> None:
    engine = create_engine(f"{server}/postgres", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()


def tell(sentence: str) -> None:
    """For `pytest -s`, and for whoever reads the output of a failed test."""
    sys.stdout.write(f"\n{sentence}\n")


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


# How long a lease is, and an outage within and beyond it. Where it is short, a slow machine loses an attempt
# once more, and no job.
OUTAGES = {"within": (LEASE_SECONDS, 1.0), "beyond": (1.5, 4.0)}
