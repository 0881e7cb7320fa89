"""What conversions came to: how much they converted, when, and which of them came first or last."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from math import ceil
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import BindParameter, ColumnElement, Engine, Float, Select, String, bindparam, cast, func
from sqlalchemy import select as columns
from sqlmodel import Session, col, select

from service.jobs.models import JobView
from service.jobs.views import views
from service.records.jobs import NEVER, Attempt, Job, JobKind, JobStatus
from service.records.tables import EnrolledTable

_DIGITS = 19
"""So many, or more, no figure of a job has."""
_STRETCH_SECONDS = 600
_STRETCHES = 24 * 3600 // _STRETCH_SECONDS
_SETTLED_AFTER = timedelta(minutes=10)
"""Nothing is written any more that ended before, by a clock that is not far off."""
LISTED_CONVERSIONS = 5_000
"""So many conversions of a table are listed one by one."""
_CONVERTING = [JobKind.CONVERT.value, JobKind.REWRITE_DATA_FILES.value, JobKind.ERASE.value]
"""A rewriting converts what is pending first, an erasure what is in its way."""


class Converted(NamedTuple):
    """What jobs that converted came to; those that converted nothing are none."""

    jobs: int
    equality_deletes: int
    rows: int
    bytes: int
    """Read and written."""


_CONVERTED: WeakKeyDictionary[Engine, dict[int, Converted]] = WeakKeyDictionary()
"""By stretches since 1970."""


def converted_since(session: Session, since: datetime, now: datetime) -> Converted:
    """All jobs that converted and succeeded since a time, which is a day ago or less if this is to be fast.

    Of a day, stretches that are over are read once by each process: nothing in them changes any more.
    """
    first = ceil(since.timestamp() / _STRETCH_SECONDS)
    over = int((now - _SETTLED_AFTER).timestamp() // _STRETCH_SECONDS)
    if not first < over <= first + _STRETCHES:
        return _converted(session, since)
    known = _CONVERTED.setdefault(session.get_bind().engine, {})
    for gone in [number for number in list(known) if number < over - _STRETCHES]:
        known.pop(gone, None)
    begins = [datetime.fromtimestamp(number * _STRETCH_SECONDS, UTC) for number in range(first, over + 1)]
    parts = [_converted(session, since, begins[0]), _converted(session, begins[-1])]
    for number, (begin, end) in enumerate(pairwise(begins), first):
        if number not in known:
            known[number] = _converted(session, begin, end)
        parts.append(known[number])
    return Converted(*(sum(figures) for figures in zip(*parts, strict=True)))


def _converted(session: Session, since: datetime, until: datetime | None = None) -> Converted:
    results: Sequence[Any] = (
        session.execute(_figures(is_open=True), {"since": since}).all()
        if until is None
        else session.execute(_figures(is_open=False), {"since": since, "until": until}).all()
    )
    return Converted(
        jobs=sum(number for *_, number, _ in results),
        equality_deletes=sum(_amount(told) * number for told, _, number, _ in results),
        rows=sum(_amount(told) * number for _, told, number, _ in results),
        bytes=int(sum(part for *_, part in results)),
    )


@cache
def _figures(*, is_open: bool) -> Select[Any]:
    """Made once, as that takes longer than to ask. is_open: until now, and not until a time."""
    done = list(_has_converted(bindparam("since")))
    if not is_open:
        done.append(col(Job.ended_at) < bindparam("until"))
    # Only these: reading all of each result takes seconds where many tables are converted.
    resolved, deleted = (
        cast(col(Job.result)[name].as_string(), String)
        for name in ("equality_deletes_resolved", "rows_deleted")
    )
    # As a float: SQLite's sum of integers fails beyond 64 bits.
    of_attempts = select(func.sum(cast(Attempt.bytes, Float))).where(col(Attempt.job_id) == col(Job.id))
    moved = func.coalesce(func.sum(of_attempts.correlate(Job).scalar_subquery()), 0)
    return columns(resolved, deleted, func.count(), moved).where(*done).group_by(resolved, deleted)


def first_conversion(session: Session) -> JobView | None:
    """The first of those that are kept that has converted anything."""
    first = select(Job).where(*_has_converted(NEVER)).order_by(col(Job.ended_at)).limit(1)
    return next(iter(views(session, session.exec(first).all())), None)


def first_dry_run(session: Session) -> Job | None:
    """The first of those that are kept that told what a conversion of an enrolled table would do."""
    first = (
        select(Job)
        .join(EnrolledTable, col(EnrolledTable.id) == col(Job.table_id))
        .where(
            Job.kind == JobKind.CONVERT.value,
            # As in `_has_converted`: the times lead to fewer than the status.
            col(Job.status).not_in([one.value for one in JobStatus if one is not JobStatus.SUCCEEDED]),
            Job.dry_run,
            col(EnrolledTable.deleted_at).is_(None),
        )
    )
    return session.exec(first.order_by(col(Job.created_at)).limit(1)).first()


def latest_conversion(session: Session, table_id: str | None = None) -> JobView | None:
    """The conversion, or dry run of one, that was asked for last, of a table or of all that are enrolled."""
    latest = (
        select(Job)
        .join(EnrolledTable, col(EnrolledTable.id) == col(Job.table_id))
        .where(Job.kind == JobKind.CONVERT.value, col(EnrolledTable.deleted_at).is_(None))
        .order_by(col(Job.created_at).desc())
        .limit(1)
    )
    if table_id is not None:
        latest = latest.where(Job.table_id == table_id)
    return next(iter(views(session, session.exec(latest).all())), None)


def list_conversion_times(session: Session, table_id: str, since: datetime) -> list[datetime]:
    """When jobs that converted a table's deletes ended since a time, oldest first.

    Of more than LISTED_CONVERSIONS every second, third, ... one, counted from the latest.
    """
    done = (col(Job.table_id) == table_id, *_has_converted(since))
    number = session.exec(select(func.count()).select_from(Job).where(*done)).one()
    age = func.row_number().over(order_by=col(Job.ended_at).desc())
    aged = select(col(Job.ended_at), age.label("age")).where(*done).subquery()
    every = max(1, ceil(number / LISTED_CONVERSIONS))
    listed = select(aged.c.ended_at).where(aged.c.age % every == 1 % every).order_by(aged.c.ended_at)
    return list(session.exec(listed))


def _amount(told: str | None) -> int:
    """0 for what is none, as a worker of another version may have reported it."""
    return int(told) if told is not None and told.isdecimal() and len(told) < _DIGITS else 0


def _has_converted(since: datetime | BindParameter[datetime]) -> tuple[ColumnElement[bool], ...]:
    """Conditions of jobs that ended since a time and removed equality deletes, as their workers say."""
    # As text: workers of any version reported it, and PostgreSQL fails on a number that is none.
    removed = cast(col(Job.result)["equality_delete_files_removed"].as_string(), String)
    return (
        col(Job.kind).in_(_CONVERTING),
        # As most are: an index of the table, or of the time, leads to fewer.
        col(Job.status).not_in([status.value for status in JobStatus if status is not JobStatus.SUCCEEDED]),
        ~col(Job.dry_run),
        col(Job.ended_at) >= since,
        removed != "0",
    )
