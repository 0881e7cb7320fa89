"""Claims that wait for a job, by the queue alone."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from functools import partial
from unittest.mock import Mock

import pytest
from sqlalchemy.exc import OperationalError

from service.auth.models import SYSTEM
from service.db.database import Database
from service.errors import NotFoundError
from service.jobs.claims import Ask, claim_together
from service.jobs.contract import Assignment
from service.workers.waiting import Claims
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import Running, alike_on_both, run_apart
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.queue_calls import SETTINGS, add_tables, add_worker, request

database_kind = alike_on_both


async def here() -> bool:
    return False


async def gone() -> bool:
    return True


@pytest.fixture
def stopping() -> threading.Event:
    return threading.Event()


@pytest.fixture
def claims(database: Database, stopping: threading.Event, monkeypatch: pytest.MonkeyPatch) -> Claims:
    monkeypatch.setattr("service.workers.waiting._LOOK_SECONDS", 0)
    return Claims(database, SETTINGS, stopping)


def wait_all(
    claims: Claims, *waiting: tuple[str, Callable[[], Awaitable[bool]]], seconds: float = 60
) -> list[Assignment | BaseException | None]:
    """What each of these workers gets, which began to wait in this order."""

    async def wait() -> list[Assignment | BaseException | None]:
        asks = [
            claims.wait(Ask(SYSTEM, worker, has_waited=True), seconds, is_gone) for worker, is_gone in waiting
        ]
        return await asyncio.gather(*asks, return_exceptions=True)

    return run_apart(wait())


def test_one_look_serves_all_who_wait_in_their_order(
    database: Database, claims: Claims, stopping: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = add_tables(database, ["a", "b"])
    workers = [add_worker(database) for _ in range(4)]
    looks: list[bool] = []
    has_work = claims._has_work

    def look() -> bool:
        if len(looks) == 2:
            for priority, table in enumerate(reversed(tables)):
                request(database, table, priority=priority)
        looks.append(has_work())
        if len(looks) == 5:
            stopping.set()
        return looks[-1]

    monkeypatch.setattr(claims, "_has_work", look)
    shared = Mock(wraps=claim_together)
    monkeypatch.setattr("service.jobs.claims.claim_together", shared)
    first, left, second, third = wait_all(
        claims, (workers[0], here), (workers[1], gone), (workers[2], here), (workers[3], here)
    )
    assert isinstance(first, Assignment)
    assert isinstance(second, Assignment)
    assert [first.table.id, second.table.id] == tables
    assert left is third is None
    assert looks == [False, False, True, False, False]
    (call,) = shared.call_args_list
    assert [ask.worker_id for ask in call.args[2]] == [workers[0], workers[2], workers[3]]


def test_a_job_that_is_queued_here_is_given_at_once_to_who_waits(
    database: Database, stopping: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.workers.waiting._LOOK_SECONDS", 2 * PATIENCE_SECONDS)
    claims = Claims(database, SETTINGS, stopping)
    (table,) = add_tables(database, ["a"])
    worker = add_worker(database)

    async def wait() -> Assignment | None:
        ask = Ask(SYSTEM, worker, has_waited=True)
        waiting = asyncio.create_task(claims.wait(ask, PATIENCE_SECONDS, here))
        while claims._loop is None:
            await asyncio.sleep(0)
        await asyncio.to_thread(request, database, table)
        return await waiting

    assert isinstance(run_apart(wait()), Assignment)


def test_what_is_wrong_with_a_claim_that_waits_harms_no_other(database: Database, claims: Claims) -> None:
    table, other = add_tables(database, ["a", "b"])
    request(database, table)

    async def broken() -> bool:
        raise ValueError

    unknown, found = wait_all(claims, ("unknown", here), (add_worker(database), here))
    assert isinstance(unknown, NotFoundError)
    assert isinstance(found, Assignment)
    request(database, other)
    failed, found = wait_all(claims, (add_worker(database), broken), (add_worker(database), here))
    assert isinstance(failed, ValueError)
    assert isinstance(found, Assignment)


def test_who_waited_long_enough_gets_nothing_and_holds_up_nobody(database: Database, claims: Claims) -> None:
    assert wait_all(claims, (add_worker(database), here), seconds=0.05) == [None]
    (table,) = add_tables(database, ["a"])
    request(database, table)
    (found,) = wait_all(claims, (add_worker(database), here))
    assert isinstance(found, Assignment)


def test_trouble_of_the_database_is_told_to_all_who_wait(
    database: Database, claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> bool:
        raise OperationalError("SELECT", None, Exception("locked"))

    monkeypatch.setattr(claims, "_has_work", fail)
    workers = [(add_worker(database), here) for _ in range(2)]
    assert all(isinstance(answer, OperationalError) for answer in wait_all(claims, *workers))


def test_who_is_cancelled_while_served_is_served_no_more_and_harms_nobody(
    database: Database, claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    (table,) = add_tables(database, ["a"])
    request(database, table)
    left, other = add_worker(database), add_worker(database)
    is_served, goes_on = threading.Event(), threading.Event()
    asked: list[str] = []
    call_all = claims._claims.call_all

    def noted_calls(asks: Sequence[tuple[Ask, str]]) -> Sequence[Callable[[], Assignment | None]]:
        asked.extend(worker for _, worker in asks)
        if is_served.is_set():
            return call_all(asks)
        is_served.set()
        goes_on.wait(PATIENCE_SECONDS)
        return [lambda: None for _ in asks]

    monkeypatch.setattr(claims._claims, "call_all", noted_calls)

    async def wait() -> Assignment | None:
        cancelled, waiting = (
            asyncio.create_task(claims.wait(Ask(SYSTEM, worker, has_waited=True), 60, here))
            for worker in (left, other)
        )
        assert await asyncio.to_thread(is_served.wait, PATIENCE_SECONDS)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        goes_on.set()
        assignment = await waiting
        assert claims._looks is not None
        await asyncio.wait([claims._looks], timeout=PATIENCE_SECONDS)
        return assignment

    assert run_apart(wait()) is not None
    assert asked == [left, other, other]


def test_each_claim_is_served_in_the_context_of_its_own_request(
    database: Database, claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
    (table,) = add_tables(database, ["a"])
    request(database, table)
    workers = [add_worker(database) for _ in range(2)]
    served, looked = [], []
    has_work = claims._has_work

    def noted_calls(asks: Sequence[tuple[Ask, str]]) -> Sequence[Callable[[], None]]:
        return [partial(note, worker) for _, worker in asks]

    def note(worker: str) -> None:
        served.append((worker, request_id.get()))

    def noted_look() -> bool:
        looked.append(request_id.get())
        return has_work()

    monkeypatch.setattr(claims._claims, "call_all", noted_calls)
    monkeypatch.setattr(claims, "_has_work", noted_look)

    async def wait(worker: str) -> None:
        request_id.set(f"of {worker}")
        await claims.wait(Ask(SYSTEM, worker, has_waited=True), 60, here)

    async def wait_for_both() -> None:
        waiting = [asyncio.create_task(wait(worker)) for worker in workers]
        while len(served) < 2:
            await asyncio.sleep(0.01)
        for one in waiting:
            one.cancel()
        assert claims._looks is not None
        await asyncio.wait([*waiting, claims._looks])  # it may have a connection

    run_apart(wait_for_both())
    assert set(served) == {(worker, f"of {worker}") for worker in workers}
    assert set(looked) == {None}


class Places:
    """Those of requests; how many were asked for."""

    asked = 0

    async def __aenter__(self) -> None:
        self.asked += 1

    async def __aexit__(self, *_: object) -> None:
        pass


def test_claims_and_reports_that_wait_leave_a_thread_to_others(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold one each while others are answered, and a heartbeat that these wait for needs one to end."""
    service.register(iceberg)
    table = service.enroll()
    assert service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "index"}).is_success
    worker = service.start_worker()
    places = Places()
    monkeypatch.setattr(service.database, "requests", places)
    assignment = service.claim(worker)
    assert assignment is not None
    assert places.asked == 1
    service.finish(assignment, status="succeeded")
    assert places.asked == 2
