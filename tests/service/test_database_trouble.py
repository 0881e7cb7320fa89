"""A database that is locked, full or away means 503, with nothing half done and no restart afterwards."""

import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import TimeoutError as NoConnectionError
from sqlmodel import Session, select

from service.db.database import Database, _AnsweredConnection, _FairPool, _FairSemaphore
from service.records.api_keys import ApiKey
from service.records.jobs import Event, Job
from service.settings import Settings
from tests.faults.proxy import HANG, PASS, Proxy
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.service.conftest import ADMIN_KEY, Running, running
from tests.service.postgresql import execute, restartable_server
from tests.service.queue_calls import add_tables

ON_SQLITE = pytest.mark.parametrize("database_kind", ["sqlite"])
"""For what only SQLite does: one writer at a time, and a file whose size can be bounded."""
_HOLD_LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process locks is waited for, but not as long as really."""
    for name, seconds in (("LOCK", 1), ("TURN", 4), ("POOL", 5), ("ANSWER", 6.0), ("IDLE", 10)):
        monkeypatch.setattr(f"service.db.database._{name}_SECONDS", seconds)


def test_threads_take_turns_in_the_order_in_which_they_came() -> None:
    semaphore = _FairSemaphore(1)
    went_on: list[int] = []

    def go_on(number: int) -> None:
        assert semaphore.acquire(60)
        went_on.append(number)
        semaphore.release()

    assert semaphore.acquire(0)
    threads = [threading.Thread(target=go_on, args=(number,)) for number in range(5)]
    for number, thread in enumerate(threads):
        thread.start()
        while len(semaphore._waiting) == number:
            time.sleep(0.001)
    semaphore.release()
    for thread in threads:
        thread.join()
    assert went_on == list(range(5))
    # Who gave up waiting gets no turn that nobody would pass on.
    assert semaphore.acquire(0)
    assert not semaphore.acquire(0.01)
    semaphore.release()
    assert semaphore.acquire(0)


def test_who_returns_a_connection_gets_it_again_after_those_who_wait() -> None:
    fails = False

    def connect() -> sqlite3.Connection:
        if fails:
            raise sqlite3.OperationalError("no")
        return sqlite3.connect(":memory:", check_same_thread=False)

    pool = _FairPool(connect, pool_size=1, max_overflow=1, timeout=60)
    first, second = pool.connect(), pool.connect()
    got: list[str] = []

    def work() -> None:
        connection = pool.connect()
        got.append("who waited")
        connection.close()

    waiting = [threading.Thread(target=work) for _ in range(3)]
    for number, thread in enumerate(waiting):
        thread.start()
        while len(pool._semaphore._waiting) == number:
            time.sleep(0.001)
    first.close()
    first = pool.connect()
    got.append("who returned it")
    for thread in waiting:
        thread.join()
    assert got == ["who waited"] * 3 + ["who returned it"]
    first.close()
    second.close()
    pool.dispose()
    # A connection that could not be made takes no turn away.
    pool = _FairPool(connect, pool_size=1, max_overflow=1, timeout=0.01)
    fails = True
    for _ in range(3):
        with pytest.raises(sqlite3.OperationalError):
            pool.connect()
    fails = False
    again = [pool.connect(), pool.connect()]
    with pytest.raises(NoConnectionError, match="none of the connections was free"):
        pool.connect()
    for connection in again:
        connection.close()
    pool.dispose()


@pytest.fixture
def few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("KEPT_CONNECTIONS", 4), ("MOST_CONNECTIONS", 8), ("REQUESTS_AT_ONCE", 6)):
        monkeypatch.setattr(f"service.db.database._{name}", number)
    # However busy the machine is.
    for name in ("POOL", "ANSWER", "IDLE"):
        monkeypatch.setattr(f"service.db.database._{name}_SECONDS", PATIENCE_SECONDS)


@pytest.mark.integration
@pytest.mark.usefixtures("few_connections")
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_none_of_many_requests_at_once_is_refused(service: Running) -> None:
    # More than there are connections and threads together: each holds one while it waits for the other.
    service.admin.get("/jobs")
    at_once = 60
    barrier = threading.Barrier(at_once)

    def read(_: int) -> int:
        barrier.wait()
        return service.admin.get("/jobs").status_code

    with ThreadPoolExecutor(at_once) as threads:
        assert Counter(threads.map(read, range(at_once))) == {200: at_once}


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Another process is in the middle of a write."""
    path = make_url(url).database
    assert path is not None
    command = [sys.executable, "-c", _HOLD_LOCK, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield
        process.communicate()


def is_ready(service: Running) -> bool:
    return service.admin.get(f"{service.url}/readyz").is_success


def check_unavailable(answer: httpx.Response) -> None:
    assert answer.status_code == 503, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["Retry-After"]) > 0
    assert answer.json()["type"] == "/problems/database-unavailable"
    assert "again" in answer.json()["remedy"]


def wait_until_ready(service: Running) -> None:
    wait_until(lambda: is_ready(service), "the service to be ready")


def request_job(service: Running, table_id: str) -> httpx.Response:
    return service.admin.post(
        f"/tables/{table_id}/jobs", json={"kind": "index"}, headers={"Idempotency-Key": "the-one"}
    )


def rows(service: Running, model: Any) -> list[Any]:
    with service.database.read() as session:
        return list(session.exec(select(model)))


@ON_SQLITE
@pytest.mark.integration
def test_a_database_that_another_process_locks_for_long_is_answered_with_503(service: Running) -> None:
    (table_id,) = add_tables(service.database, ["a"])
    with locked(service.settings.database_url):
        check_unavailable(request_job(service, table_id))
        assert service.admin.get("/jobs").json()["items"] == []
        assert not is_ready(service)
        assert service.admin.get(f"{service.url}/livez").is_success
    answer = request_job(service, table_id)
    assert answer.status_code == 202
    assert [each.id for each in rows(service, Job)] == [answer.json()["id"]]


@ON_SQLITE
def test_a_full_disk_leaves_nothing_half_written(service: Running) -> None:
    (table_id,) = add_tables(service.database, ["a"])
    full = False

    def limit(connection: sqlite3.Connection, *_: object) -> None:
        # SQLite never takes less than what there is, so 1 means: not one page more.
        connection.execute(f"PRAGMA max_page_count={1 if full else 1 << 30}")

    event.listen(service.database.engine, "checkout", limit)
    worker_id = service.start_worker()
    job_id = request_job(service, table_id).json()["id"]
    assignment = service.claim(worker_id)
    assert assignment is not None
    path = f"/jobs/{job_id}/attempts/1/heartbeat"
    before = rows(service, Event)
    full = True
    body = {"events": [{"message": "x" * 10_000, "fields": {}}]}
    check_unavailable(service.admin.post(path, json=body))
    assert [each.id for each in rows(service, Event)] == [each.id for each in before]
    assert rows(service, Job)[0].renewals == 0
    assert not is_ready(service)
    full = False
    assert service.admin.post(path, json=body).status_code == 200
    assert len(rows(service, Event)) == len(before) + 1
    assert service.finished(assignment)["status"] == "succeeded"


@ON_SQLITE
@pytest.mark.integration
def test_a_denial_that_cannot_be_recorded_is_answered_with_503(service: Running) -> None:
    with service.client_with({"Authorization": "Bearer nothing"}) as stranger:
        assert stranger.post("/system/pause").status_code == 401
        with locked(service.settings.database_url):
            check_unavailable(stranger.post("/system/pause"))


@pytest.mark.exhaustive
@ON_SQLITE  # but for the one that this test starts with
@pytest.mark.integration
def test_postgresql_that_stands_still_is_answered_with_503_until_it_goes_on(
    settings: Settings, new_database_url: Callable[[str], str]
) -> None:
    url = make_url(new_database_url("postgresql"))
    assert url.port is not None
    with Proxy(url.port) as proxy:
        settings.database_url = url.set(port=proxy.port).render_as_string(hide_password=False)
        with running(settings) as service:
            (table_id,) = add_tables(service.database, ["a"])
            assert is_ready(service)
            proxy.set(HANG)
            check_unavailable(request_job(service, table_id))
            assert not is_ready(service)
            proxy.set(PASS)
            wait_until_ready(service)
            assert request_job(service, table_id).status_code == 202
            assert len(rows(service, Job)) == 1


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_a_connection_is_waited_for_as_long_as_an_answer(database: Database) -> None:
    with database.read() as session:
        connection = session.connection().connection.driver_connection
        assert isinstance(connection, _AnsweredConnection)
        waits = connection.info.get_parameters()["connect_timeout"]
    assert float(waits) == connection.answer_seconds


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_a_connection_that_has_just_answered_is_asked_only_if_its_server_has_spoken(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    ping = database.engine.dialect.do_ping

    def noted(connection: Any) -> bool:
        asked.append(connection)
        return ping(connection)

    monkeypatch.setattr(database.engine.dialect, "do_ping", noted)

    def process() -> int:
        with database.read() as session:
            return int(session.connection().scalar(text("SELECT pg_backend_pid()")) or 0)

    first = process()
    assert process() == first
    assert not asked
    execute(database.url, f"SELECT pg_terminate_backend({first}, 10000)")
    assert process() != first
    assert len(asked) == 1
    with database.read() as session:
        dead = session.connection().connection.driver_connection
    assert dead is not None
    dead.close()
    process()
    assert asked == [asked[0], dead]
    monkeypatch.setattr("service.db.database._FRESH_SECONDS", -1)
    process()
    assert len(asked) == 3


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_what_threads_hold_when_the_service_ends_is_closed_once_they_give_it_back(database: Database) -> None:
    def connected(session: Session) -> Any:
        return session.connection().connection.driver_connection

    with database.read() as held:
        connections = [connected(held)]
        database.dispose()
        with database.read() as late:
            connections.append(connected(late))
    assert connections[0] is not connections[1]
    assert all(each.closed for each in connections)


@pytest.mark.integration
def test_postgresql_may_crash_and_come_back(tmp_path: Path) -> None:
    with restartable_server() as server:
        settings = Settings(
            data_dir=tmp_path,
            database_url=f"{server.url}/postgres",
            bootstrap_key=ADMIN_KEY,
            lease_seconds=2,
            scheduler_interval_seconds=0.1,
            poll_interval_seconds=3600,
        )
        with running(settings) as service:
            (table_id,) = add_tables(service.database, ["a"])
            job_id = request_job(service, table_id).json()["id"]
            assert service.claim(service.start_worker()) is not None
            server.stop()
            check_unavailable(request_job(service, table_id))
            check_unavailable(service.admin.post("/workers/x/claim", json={"wait_seconds": 0}))
            assert not is_ready(service)
            assert service.admin.get(f"{service.url}/livez").is_success
            server.start()
            wait_until_ready(service)
            assert request_job(service, table_id).json()["id"] == job_id
            assert len(rows(service, ApiKey)) == 1
            # The background went on, too: the attempt that nobody keeps is given up.
            wait_until(lambda: rows(service, Job)[0].status == "queued", "the attempt to be given up")
