"""What jobs took today, against the budgets of a policy."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

from sqlalchemy import ColumnElement, Float, cast, func
from sqlmodel import Session, col, select

from service.policies.models import EffectivePolicy
from service.policies.schedules import day_of
from service.quantities import sized
from service.records.catalogs import Catalog
from service.records.jobs import Attempt, Job, JobKind
from service.records.tables import EnrolledTable


@dataclass(frozen=True)
class SpentBudget:
    """Why no job of a table starts by itself, and until when."""

    reason: str
    until: datetime


def spent_budget(
    session: Session, table: EnrolledTable, policy: EffectivePolicy, now: datetime
) -> SpentBudget | None:
    """The budget of all jobs that is spent today, if any. Attempts count on the day they end."""
    budget = policy.budget
    limit = _Limit(budget.table_seconds_per_day, budget.table_bytes_per_day)
    if limit.is_set:
        place = f"table {table.name}"
        spent = _spent(session, place, limit, policy, now, EnrolledTable.id == table.id)
        if spent is not None:
            return spent
    limit = _Limit(budget.catalog_seconds_per_day, budget.catalog_bytes_per_day)
    if not limit.is_set:
        return None
    place = f"catalog {session.get_one(Catalog, table.catalog_id).name}"
    return _spent(session, place, limit, policy, now, EnrolledTable.catalog_id == table.catalog_id)


def spent_budget_of(
    session: Session, table: EnrolledTable, policy: EffectivePolicy, kind: JobKind, now: datetime
) -> SpentBudget | None:
    """That of the table's jobs of a kind, if the kind has one and it is spent today."""
    if not kind.is_maintenance:
        return None
    limit = _Limit(getattr(policy, kind.value).max_seconds_per_day, 0)
    if not limit.is_set:
        return None
    which = EnrolledTable.id == table.id, Job.kind == kind.value
    return _spent(session, f"{kind.words} jobs of table {table.name}", limit, policy, now, *which)


class _Limit(NamedTuple):
    """What jobs may take in a day; 0 is any amount."""

    seconds: float
    bytes: int

    @property
    def is_set(self) -> bool:
        return bool(self.seconds or self.bytes)


def _spent(
    session: Session,
    place: str,
    limit: _Limit,
    policy: EffectivePolicy,
    now: datetime,
    *which: ColumnElement[bool] | bool,
) -> SpentBudget | None:
    """place: what the limit is of, in words. which: conditions of the jobs that count."""
    zone = policy.schedule.time_zone
    begin, end = day_of(zone, now)
    seconds, size = session.exec(
        select(
            func.coalesce(func.sum(Attempt.seconds), 0),
            # As a float: SQLite's sum of integers fails beyond 64 bits.
            func.coalesce(func.sum(cast(Attempt.bytes, Float)), 0),
        )
        .join(Job, col(Job.id) == col(Attempt.job_id))
        .join(EnrolledTable, col(EnrolledTable.id) == col(Job.table_id))
        .where(col(Attempt.ended_at) >= begin, *which)
    ).one()
    if limit.seconds and seconds >= limit.seconds:
        spent = f"{seconds:,.0f} s of jobs (policy: {limit.seconds:,.0f} s)"
    elif limit.bytes and size >= limit.bytes:
        spent = f"{sized(int(size))} read and written (policy: {sized(limit.bytes)})"
    else:
        return None
    turns = end.astimezone(ZoneInfo(zone))
    reason = (
        f"the budget of {place} for this day is spent: {spent}; the day turns at "
        f"{turns:%Y-%m-%d %H:%M} {zone}"
    )
    return SpentBudget(reason, end)
