"""All tables together: what polls have found of them, and which of them are in trouble."""

import math
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Float, Select, String, bindparam, case, cast, func
from sqlalchemy import select as select_columns
from sqlalchemy.orm import Mapped
from sqlmodel import Session, col, select

from service.records.catalogs import Catalog
from service.records.health import HealthStatus, PendingChange, TableHealth, age_seconds, minute_of
from service.records.jobs import JobKind
from service.records.tables import EnrolledTable

_STEPS = ((24 * 60, 1), (7 * 24 * 60, 10), (30 * 24 * 60, 60), (math.inf, 120))
"""Spans in minutes, and the intervals that totals over them are told for: 1,440 of them at most."""
_OF_CATALOGS = {"catalog-unreachable", "catalog-redirects", "host-unknown"}
"""Problems of a catalog, and not of a single table of it."""
_CODE = cast(col(TableHealth.poll_error)["code"].as_string(), String)


@dataclass(frozen=True)
class ReadTotals:
    """What reading all tables once costs, by the read by which tables are compared, and what maintaining them
    has cost so far."""

    seconds: float
    overhead_seconds: float
    """For deletes and small files."""
    before_seconds: float
    """Before files last went, of each table where any did."""
    point_seconds: float
    """Of a read that looks for one key."""
    point_overhead_seconds: float
    delete_files: int
    """That are joined with data files."""
    delete_bytes: int
    avoided_seconds: float
    """So much more it would be had no job taken that away."""
    saved_seconds: float
    """The sum of that over time since each was enrolled, for as many reads as policies say."""
    maintenance_seconds: float

    @property
    def overhead_ratio(self) -> float:
        return _ratio(self.seconds, self.overhead_seconds)

    @property
    def point_overhead_ratio(self) -> float:
        return _ratio(self.point_seconds, self.point_overhead_seconds)


def _ratio(seconds: float, overhead_seconds: float) -> float:
    fresh = seconds - overhead_seconds
    return seconds / fresh if fresh else 1.0


@dataclass(frozen=True)
class Summary:
    """All enrolled tables together."""

    tables: Counter[HealthStatus]
    pending_equality_delete_files: int
    pending_equality_deletes: int
    oldest_age_seconds: float
    snapshots: int
    small_data_files: int
    small_delete_files: int
    small_manifests: int
    reads: ReadTotals
    staged_rows: int
    oldest_due_seconds: float
    """For which maintenance that a policy wants has been due."""


_SUMMED = (
    "pending_equality_delete_files",
    "pending_equality_deletes",
    "snapshots",
    "small_data_files",
    "small_delete_files",
    "small_manifests",
    "staged_rows",
    "delete_files",
    "delete_bytes",
    "read_seconds",
    "read_overhead_seconds",
    "read_before_seconds",
    "point_read_seconds",
    "point_read_overhead_seconds",
    "read_avoided_seconds",
    "read_saved_seconds",
    "maintenance_seconds",
)
"""Columns of TableHealth."""
_COUNTS = (
    select_columns(col(TableHealth.status), func.count())
    .where(~col(TableHealth.is_removed))
    .group_by(col(TableHealth.status))
)
"""Which an index has."""
_SUMS = select_columns(
    func.min(TableHealth.oldest_equality_delete_at),
    # One that can't be looked at is told of as such, and nobody knows what it still wants.
    func.min(case((col(TableHealth.status) != HealthStatus.UNKNOWN.value, TableHealth.maintenance_due_at))),
    # As floats: SQLite's sum of integers fails beyond 64 bits.
    *(func.coalesce(func.sum(cast(getattr(TableHealth, name), Float)), 0).label(name) for name in _SUMMED),
).where(~col(TableHealth.is_removed))
"""In one walk through the table; to group it by status would take half as long again."""


def summarize(session: Session, now: datetime) -> Summary:
    """What the last poll of each table found; as many queries, however many tables there are."""
    counts = session.execute(_COUNTS).all()
    oldest_at, due_at, *sums = session.execute(_SUMS).one()
    of = dict(zip(_SUMMED, sums, strict=True))
    return Summary(
        tables=Counter({HealthStatus(status): number for status, number in counts}),
        pending_equality_delete_files=int(of["pending_equality_delete_files"]),
        pending_equality_deletes=int(of["pending_equality_deletes"]),
        oldest_age_seconds=age_seconds(oldest_at, now),
        snapshots=int(of["snapshots"]),
        small_data_files=int(of["small_data_files"]),
        small_delete_files=int(of["small_delete_files"]),
        small_manifests=int(of["small_manifests"]),
        reads=ReadTotals(
            seconds=of["read_seconds"],
            overhead_seconds=of["read_overhead_seconds"],
            before_seconds=of["read_before_seconds"],
            point_seconds=of["point_read_seconds"],
            point_overhead_seconds=of["point_read_overhead_seconds"],
            delete_files=int(of["delete_files"]),
            delete_bytes=int(of["delete_bytes"]),
            avoided_seconds=of["read_avoided_seconds"],
            saved_seconds=of["read_saved_seconds"],
            maintenance_seconds=of["maintenance_seconds"],
        ),
        staged_rows=int(of["staged_rows"]),
        oldest_due_seconds=age_seconds(due_at, now),
    )


def saved_ever_seconds(session: Session) -> float:
    """Of reads, also of tables that are enrolled no more: it only grows."""
    saved = func.sum(cast(TableHealth.read_saved_seconds, Float))
    return float(session.execute(select_columns(func.coalesce(saved, 0.0))).scalar_one())


def oldest_awaited_seconds(session: Session, now: datetime) -> float:
    """Age of the oldest delete of tables that are not paused, and whose policy converts by itself."""
    return age_seconds(_oldest(session, col(TableHealth.oldest_equality_delete_at), JobKind.CONVERT), now)


def oldest_staged_seconds(session: Session, now: datetime) -> float:
    """The same of what is staged, where the policy publishes by itself."""
    return age_seconds(_oldest(session, col(TableHealth.oldest_staged_at), JobKind.PUBLISH), now)


def _oldest(session: Session, moment: Mapped[datetime | None], kind: JobKind) -> datetime | None:
    """The oldest one of all tables for which a job of a kind starts by itself, as the last decision says."""
    oldest_first = session.exec(
        select(moment, TableHealth.decisions)
        .where(~col(TableHealth.is_removed), moment.is_not(None))
        .order_by(moment)
        .execution_options(yield_per=100)
    )
    with closing(oldest_first):
        for at, decisions in oldest_first:
            if decisions.get(kind.value, {}).get("code") not in ("policy-off", "paused"):
                return at
    return None


class Troubled(NamedTuple):
    table_id: str
    table: str
    catalog: str
    reason: str
    what_to_do: str | None


def tables_with_status(session: Session, status: HealthStatus, number: int) -> list[Troubled]:
    """So many enrolled tables at most that have a status by their last poll, by name, with its reason."""
    rows = session.execute(_OF_STATUS, {"status": status.value, "number": number})
    return [Troubled(*row) for row in rows]


def _of_status() -> Select[Any]:
    """Walks the index of names: to sort all of a status would be to look at each of them."""
    of_status = select(TableHealth.table_id).where(TableHealth.status == bindparam("status"))
    first = (
        select_columns(col(EnrolledTable.id), col(EnrolledTable.name), col(EnrolledTable.catalog_id))
        # An id itself would lead SQLite from each table of the status to its name.
        .where(col(EnrolledTable.deleted_at).is_(None), (col(EnrolledTable.id) + "").in_(of_status))
        .order_by(col(EnrolledTable.name), col(EnrolledTable.id))
        .limit(bindparam("number"))
        .subquery()
    )
    return (
        select_columns(
            first.c.id,
            first.c.name,
            col(Catalog.name),
            col(TableHealth.status_reason),
            col(TableHealth.what_to_do),
        )
        .join(TableHealth, col(TableHealth.table_id) == first.c.id)
        .join(Catalog, col(Catalog.id) == first.c.catalog_id)
        .order_by(first.c.name, first.c.id)
    )


_OF_STATUS = _of_status()
"""As `tables_with_status` reads them."""


def with_most_pending(session: Session, number: int) -> list[str]:
    """Ids of so many enrolled tables at most that have pending deletes, those with the most first."""
    pending = col(TableHealth.pending_equality_deletes)
    return list(
        session.scalars(
            select(TableHealth.table_id)
            .where(pending > 0, ~col(TableHealth.is_removed))
            .order_by(pending.desc(), col(TableHealth.table_id).desc())
            .limit(number)
        )
    )


@dataclass(frozen=True)
class FailedPoll:
    """A table that cannot be looked at, and why."""

    table_id: str
    table: str
    catalog_id: str
    catalog: str
    error: Mapping[str, Any]
    """`code`, `title`, `detail` and `remedy`."""


def failed_polls(session: Session, number: int) -> list[FailedPoll]:
    """So many tables at most whose last poll failed for a reason of their own, by catalog and name."""
    chosen = _failed(_CODE.not_in(_OF_CATALOGS)).order_by(col(Catalog.name), col(EnrolledTable.name))
    return [FailedPoll(*row) for row in session.execute(chosen.limit(number))]


def failed_with_their_catalogs(session: Session) -> list[tuple[FailedPoll, int]]:
    """Of each catalog that failed when its tables were polled: the first of them by name, and how many.

    None of these is read but the first: all tables of a large catalog fail at the same time.
    """
    counted = session.execute(
        _failed(_CODE.in_(_OF_CATALOGS))
        .with_only_columns(col(Catalog.id), func.count(), maintain_column_froms=True)
        .group_by(col(Catalog.id), col(Catalog.name))
        .order_by(col(Catalog.name))
    ).all()
    found = []
    for catalog_id, number in counted:
        first = _failed(_CODE.in_(_OF_CATALOGS), col(Catalog.id) == catalog_id)
        row = session.execute(first.order_by(col(EnrolledTable.name)).limit(1)).one()
        found.append((FailedPoll(*row), number))
    return found


def _failed(*which: ColumnElement[bool]) -> Select[Any]:
    return (
        select_columns(
            col(EnrolledTable.id),
            col(EnrolledTable.name),
            col(Catalog.id),
            col(Catalog.name),
            col(TableHealth.poll_error),
        )
        .join(TableHealth, col(TableHealth.table_id) == col(EnrolledTable.id))
        .join(Catalog, col(Catalog.id) == col(EnrolledTable.catalog_id))
        .where(~col(TableHealth.is_removed), col(TableHealth.poll_error).is_not(None), *which)
    )


def total_pending(session: Session, since: datetime, now: datetime) -> list[tuple[datetime, int]]:
    """Equality deletes pending in all tables that were enrolled, oldest first, from their first sample on.

    Each is the total at the end of a minute, of a longer interval if there are too many of them, or now.
    The first one is of `since`, if anything was pending before or nothing has been since.
    """
    began = minute_of(since)
    earliest = select(func.min(PendingChange.minute)).where(PendingChange.minute >= began)
    older = select(PendingChange.minute).where(PendingChange.minute < began).exists()
    first, has_older = session.execute(select_columns(earliest.scalar_subquery(), older)).one()
    span = minute_of(now) - (began if first is None or has_older else first)
    step = next(minutes for most, minutes in _STEPS if span <= most)
    began = began // step * step
    interval = (col(PendingChange.minute) // step).label("interval")
    counted = select(func.coalesce(func.sum(TableHealth.counted_equality_deletes), 0))
    # By one statement, or a change that comes meanwhile would be in one of both alone.
    changes = session.exec(
        select(interval, func.sum(PendingChange.equality_deletes), counted.scalar_subquery())
        .where(PendingChange.minute >= began)
        .group_by(interval)
        .order_by(interval)
    ).all()
    # From the end: what is older than the changes that are kept is in no row any more.
    total = int(changes[0][2] if changes else session.exec(counted).one())
    total -= sum(int(change) for _, change, _ in changes)
    totals = {since: total} if total or has_older or (not changes and _is_any_measured(session)) else {}
    for number, change, _ in changes:
        total += int(change)
        end = datetime.fromtimestamp((number + 1) * step * 60, UTC)
        totals[min(end, now)] = total
    return list(totals.items())


def _is_any_measured(session: Session) -> bool:
    return (
        session.exec(
            select(TableHealth.table_id).where(col(TableHealth.measured_at).is_not(None)).limit(1)
        ).first()
        is not None
    )
