"""What jobs took today, against the budget of a policy."""

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from sqlalchemy import Float, cast, func
from sqlmodel import Session, col, select

from service.policies.models import EffectivePolicy
from service.policies.schedules import day_of
from service.quantities import sized
from service.records.catalogs import Catalog
from service.records.jobs import Attempt, Job
from service.records.tables import EnrolledTable


@dataclass(frozen=True)
class SpentBudget:
    """Why no job of a table starts by itself, and until when."""

    reason: str
    until: datetime


def spent_budget(
    session: Session, table: EnrolledTable, policy: EffectivePolicy, now: datetime
) -> SpentBudget | None:
    """The budget that is spent today, if any. Attempts count on the day they end."""
    budget, zone = policy.budget, policy.schedule.time_zone
    begin, end = day_of(zone, now)
    of_catalog = f"catalog {session.get_one(Catalog, table.catalog_id).name}"
    for place, owner, max_seconds, max_bytes in (
        (
            f"table {table.name}",
            EnrolledTable.id == table.id,
            budget.table_seconds_per_day,
            budget.table_bytes_per_day,
        ),
        (
            of_catalog,
            EnrolledTable.catalog_id == table.catalog_id,
            budget.catalog_seconds_per_day,
            budget.catalog_bytes_per_day,
        ),
    ):
        if not max_seconds and not max_bytes:
            continue
        seconds, size = session.exec(
            select(
                func.coalesce(func.sum(Attempt.seconds), 0),
                # As a float: SQLite's sum of integers fails beyond 64 bits.
                func.coalesce(func.sum(cast(Attempt.bytes, Float)), 0),
            )
            .join(Job, col(Job.id) == col(Attempt.job_id))
            .join(EnrolledTable, col(EnrolledTable.id) == col(Job.table_id))
            .where(col(Attempt.ended_at) >= begin, owner)
        ).one()
        spent = None
        if max_seconds and seconds >= max_seconds:
            spent = f"{seconds:,.0f} s of jobs (policy: {max_seconds:,.0f} s)"
        elif max_bytes and size >= max_bytes:
            spent = f"{sized(int(size))} read and written (policy: {sized(max_bytes)})"
        if spent is not None:
            turns = end.astimezone(ZoneInfo(zone))
            reason = (
                f"the budget of {place} for this day is spent: {spent}; the day turns at "
                f"{turns:%Y-%m-%d %H:%M} {zone}"
            )
            return SpentBudget(reason, end)
    return None
