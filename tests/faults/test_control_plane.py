"""Jobs end, once each, whatever happens to the processes and the network between them."""

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.app import prepare
from service.settings import Settings
from tests.faults.control_plane import LEASE_SECONDS, OUTAGES, World, survive, tell
from tests.faults.injection import Fault
from tests.faults.proxy import CUT, PASS, Proxy
from tests.faults.recovery import summary
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.server_process import free_port
from tests.service.conftest import PLAIN_HTTP
from tests.service.test_database_trouble import locked
from tests.thorough import EXHAUSTIVE, first_always

pytestmark = pytest.mark.integration


@pytest.fixture
def new_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Its database is SQLite."""
    with ExitStack() as stack:

        def make(**options: Any) -> World:
            world = World(tmp_path, f"sqlite:///{tmp_path / 'icestream.db'}", **options)
            stack.callback(world.close)
            return world

        yield make


@pytest.mark.exhaustive
@pytest.mark.parametrize("kills", [3, 10])
def test_a_service_that_is_killed_again_and_again_loses_no_job(
    kills: int, new_world: Callable[..., World]
) -> None:
    new_world(lease_seconds=2.0).kill_service(kills)


@pytest.mark.exhaustive
def test_a_killed_worker_is_followed_by_another(new_world: Callable[..., World]) -> None:
    world = new_world()
    _, port = world.service()
    ids = set()
    for number in range(2):
        # It is not done before it is killed, however slow this machine is.
        worker = world.worker(port, 600)
        ids.add(world.request(port, number))
        wait_until(world.at_work, "a job at work")
        worker.send(signal.SIGKILL)
        world.lose_attempt()
        other = world.worker(port)
        world.wait_for_jobs(ids)
        other.send(signal.SIGTERM)
        assert other.wait(PATIENCE_SECONDS) == 0
    world.check(ids, injected=2)
    recoveries = world.recoveries()
    assert len(recoveries) == 2
    for recovery in recoveries:
        recovery.check(LEASE_SECONDS)
    tell(summary(recoveries))


def test_a_worker_that_is_asked_to_stop_before_it_learns_of_its_job_hands_it_back(
    new_world: Callable[..., World],
) -> None:
    world = new_world()
    _, port = world.service((Fault("claim", "after", "sleep:1"),))
    worker = world.worker(port)
    ids = {world.request(port, 0)}
    wait_until(world.running, "the service to give the job away")
    worker.send(signal.SIGTERM)
    assert worker.wait(PATIENCE_SECONDS) == 0
    world.worker(port)
    world.wait_for_jobs(ids)
    assert [attempt.status for attempt in world.attempts()] == ["released", "succeeded"]


def test_a_job_that_was_claimed_by_a_report_whose_answer_is_lost_is_given_out_again(
    new_world: Callable[..., World],
) -> None:
    world = new_world()
    _, port = world.service((Fault("finish", "after", "timeout"),))
    ids = {world.request(port, number) for number in (0, 2)}
    world.worker(port)
    world.wait_for_jobs(ids)
    world.check(ids)
    assert sorted(attempt.status for attempt in world.attempts()) == ["lost", "succeeded", "succeeded"]
    assert [attempt.error["code"] for attempt in world.lost() if attempt.error] == ["claim_answer_lost"]
    assert {job.failures for job in world.jobs()} == {0}


@pytest.mark.exhaustive
def test_a_worker_that_stood_still_past_its_lease_changes_nothing_and_works_on(
    new_world: Callable[..., World],
) -> None:
    world = new_world()
    _, port = world.service()
    stopped = world.worker(port)
    with world.held():
        ids = {world.request(port, 0)}
        wait_until(world.at_work, "a job at work")
        stopped.send(signal.SIGSTOP)
        world.lose_attempt()
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


# Within the lease, PostgreSQL is cut off in test_control_database.py.
@first_always("outage", ["beyond", "within"], EXHAUSTIVE)
def test_a_locked_sqlite_costs_no_attempt_within_the_lease_and_never_a_job(
    outage: str, new_world: Callable[..., World]
) -> None:
    lease_seconds, outage_seconds = OUTAGES[outage]
    world = new_world(lease_seconds=lease_seconds)
    service, port = world.service()

    def lock(seconds: float) -> None:
        with locked(world.database.url):
            time.sleep(seconds)

    survive(world, port, lock, outage_seconds)
    assert outage == "beyond" or world.lost() == []
    assert service.starts == 1


def test_a_cut_shorter_than_the_lease_costs_no_attempt(new_world: Callable[..., World]) -> None:
    world = new_world()
    _, port = world.service()
    with Proxy(port) as proxy:
        worker = world.worker(proxy.port)
        with world.held():
            ids = {world.request(port, 0)}
            wait_until(world.at_work, "a job at work")
            proxy.set(CUT)
            wait_until(lambda: "Heartbeat failed" in worker.log.read_text(), "the worker to notice")
            proxy.set(PASS)
        world.wait_for_jobs(ids)
    assert world.lost() == []
    world.check(ids)


def test_a_cut_longer_than_the_lease_costs_an_attempt_and_no_job(new_world: Callable[..., World]) -> None:
    """The worker gives it up by its own clock, which is real: so is this lease."""
    world = new_world(lease_seconds=2.0)
    _, port = world.service()
    with Proxy(port) as proxy:
        worker = world.worker(proxy.port)
        with world.held():
            ids = {world.request(port, 0)}
            wait_until(world.at_work, "a job at work")
            proxy.set(CUT)
            wait_until(world.lost, "the attempt to be given up")
        wait_until(lambda: "the lease ran out while" in worker.log.read_text(), "the worker to give up")
        proxy.set(PASS)
        world.wait_for_jobs(ids)
    world.check(ids)


def test_a_clock_that_jumps_loses_no_attempt_and_holds_up_no_job(new_world: Callable[..., World]) -> None:
    world = new_world()
    _, port = world.service()
    for _ in range(3):
        world.worker(port)
    ids: set[str] = set()
    for seconds in (-3600, 3600):
        with world.held():
            ids |= {world.request(port, len(ids) + number) for number in range(4)}
            wait_until(world.at_work, "a job at work")
            (world.faults_dir / "clock").write_text(str(seconds))
            ids |= {world.request(port, len(ids) + number) for number in range(4)}
        world.wait_for_jobs(ids)
    world.check(ids, injected=2)
    assert world.lost() == []


def test_the_real_service_does_not_know_of_faults() -> None:
    assert not any("fault" in name for name in Settings.model_fields)
    sources = [path.read_text() for path in (Path(__file__).parents[2] / "service").rglob("*.py")]
    assert not any("ICESTREAM_FAULTS" in source or "tests.faults" in source for source in sources)


def test_sigterm_ends_the_service_and_answers_what_is_asked(tmp_path: Path) -> None:
    with real_service(tmp_path) as (http, process), ExitStack() as stack:
        body = {"hostname": "h", "pid": 1, "version": "0"}
        workers = [http.post("/api/v1/workers", json={**body, "name": f"w{i}"}).json() for i in range(3)]
        answers: list[int] = []

        def claim(worker_id: str) -> None:
            path = f"/api/v1/workers/{worker_id}/claim"
            answers.append(http.post(path, json={"wait_seconds": 60}).status_code)

        polls = [threading.Thread(target=claim, args=[worker["id"]]) for worker in workers]
        for poll in polls:
            poll.start()
        stream = stack.enter_context(http.stream("GET", "/api/v1/events"))
        assert stream.status_code == 200
        registered = {worker["id"]: worker["last_seen_at"] for worker in workers}

        def wait_for_work() -> bool:
            seen = {each["id"]: each["last_seen_at"] for each in http.get("/api/v1/workers").json()["items"]}
            return all(seen[worker_id] != at for worker_id, at in registered.items())

        wait_until(wait_for_work, "all claims to have found nothing yet")
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
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
def real_service(tmp_path: Path) -> Iterator[tuple[httpx.Client, subprocess.Popen[bytes]]]:
    key, port = secrets.token_urlsafe(32), free_port()
    environment = {
        "ICESTREAM_DATA_DIR": str(tmp_path),
        "ICESTREAM_BOOTSTRAP_KEY": key,
        "ICESTREAM_PORT": str(port),
    }
    prepare(Settings(data_dir=tmp_path, bootstrap_key=key))
    command = [str(Path(sys.executable).with_name("icestream")), "serve"]
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    with (
        ExitStack() as stack,
        httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            verify=PLAIN_HTTP,
            timeout=PATIENCE_SECONDS,
        ) as http,
    ):
        stack.callback(process.wait)
        stack.callback(process.kill)

        def is_ready() -> bool:
            try:
                return http.get("/readyz").is_success
            except httpx.TransportError:
                return False

        wait_until(is_ready, "the service to be ready")
        yield http, process
