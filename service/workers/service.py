"""Register workers, hand them work, and say which are alive."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, case, func, not_
from sqlmodel import Session, col, select

from service.auth.models import Principal
from service.auth.service import require_role
from service.db.database import utc_now
from service.http.paging import Page, PageRequest, Sorting, read_page
from service.jobs.claims import Ask
from service.jobs.contract import Assignment
from service.records.api_keys import Role
from service.records.jobs import Attempt, AttemptStatus
from service.records.workers import Worker
from service.settings import Settings
from service.workers.models import ClaimRequest, WorkerRequest, WorkerView
from service.workers.waiting import Claims

_FORGET_AFTER = timedelta(days=1)
SORTING = Sorting(
    {"name": Worker.name, "registered_at": Worker.registered_at}, key=Worker.id, default="-registered_at"
)


def register_worker(
    session: Session, settings: Settings, principal: Principal, request: WorkerRequest
) -> WorkerView:
    """A new identity for a process that just started."""
    require_role(principal, Role.WORKER, "worker.register", request.name)
    row = Worker(**request.model_dump(), registered_by=principal.key)
    session.add(row)
    session.flush()
    return _views(session, settings, [row], utc_now())[0]


async def claim_job(
    claims: Claims,
    caller: Principal,
    worker_id: str,
    request: ClaimRequest,
    is_gone: Callable[[], Awaitable[bool]],
) -> Assignment | None:
    """Wait for a job, at most its `wait_seconds`.

    A worker that `is_gone` takes none: the job would wait for the end of a lease that nobody keeps. Nor does
    one that got a job by another call meanwhile: it has given this one up. Raises ForbiddenError for a worker
    that the caller did not register.
    """
    if await is_gone():
        return None  # the call lay in a queue: its worker has asked anew, and may run what it got
    ask = Ask(caller, worker_id, request.given_up, is_stopping=request.is_stopping)
    assignment = await claims.claim_in_thread(ask)
    if assignment is not None or request.is_stopping or not request.wait_seconds:
        return assignment
    return await claims.wait(Ask(caller, worker_id, has_waited=True), request.wait_seconds, is_gone)


def list_workers(
    session: Session,
    settings: Settings,
    page: PageRequest,
    *,
    alive: bool | None = None,
    search: str | None = None,
) -> Page[WorkerView]:
    """Workers heard of within a day; `search` is a part of the name."""
    now = utc_now()
    query = select(Worker).where(col(Worker.last_seen_at) > now - _FORGET_AFTER)
    if alive is not None:
        is_alive = and_(*_alive(settings, now))
        query = query.where(is_alive if alive else not_(is_alive))
    if search:
        query = query.where(col(Worker.name).icontains(search, autoescape=True))
    return read_page(session, query, page, SORTING, lambda rows: _views(session, settings, rows, now))


def count_by_life(
    session: Session, settings: Settings, now: datetime, *, search: str | None = None
) -> dict[bool, int]:
    """How many workers `list_workers` would list by whether they are alive."""
    is_alive = case((and_(*_alive(settings, now)), 1), else_=0)
    query = select(func.count(), func.coalesce(func.sum(is_alive), 0)).where(
        col(Worker.last_seen_at) > now - _FORGET_AFTER
    )
    if search:
        query = query.where(col(Worker.name).icontains(search, autoescape=True))
    number, alive = session.exec(query).one()
    return {True: alive, False: number - alive}


def count_alive(session: Session, settings: Settings, now: datetime) -> int:
    query = select(func.count()).where(*_alive(settings, now))
    return session.exec(query).one()


def _views(session: Session, settings: Settings, rows: Sequence[Worker], now: datetime) -> list[WorkerView]:
    """With one query, however many they are."""
    running = select(Attempt.worker_id, Attempt.job_id).where(
        col(Attempt.worker_id).in_([row.id for row in rows]), Attempt.status == AttemptStatus.RUNNING.value
    )
    jobs = dict(session.exec(running).all()) if rows else {}
    return [
        WorkerView(
            **row.model_dump(),
            alive=now - row.last_seen_at < _patience(settings) and row.problem is None,
            job_id=jobs.get(row.id),
        )
        for row in rows
    ]


def _alive(settings: Settings, now: datetime) -> tuple[ColumnElement[bool], ...]:
    return col(Worker.last_seen_at) > now - _patience(settings), col(Worker.problem).is_(None)


def _patience(settings: Settings) -> timedelta:
    # A claim may wait a minute without a sign of life in between.
    return timedelta(seconds=60 + settings.lease_seconds)
