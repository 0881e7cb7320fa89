"""All tables together: what polls have found of them, and which of them are in trouble."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Float, Select, String, cast, func
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
    oldest_awaited_seconds: float
    """Of tables that are not paused, and whose policy converts by itself."""
    snapshots: int
    small_data_files: int
    small_delete_files: int
    small_manifests: int
    reads: ReadTotals
    saved_ever_seconds: float
    """Of reads, also of tables that are enrolled no more: it only grows."""
    staged_rows: int
    oldest_staged_seconds: float
    """Of tables that are not paused, and whose policy publishes by itself."""
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


def summarize(session: Session, now: datetime) -> Summary:
    """What the last poll of each table found; as many queries, however many tables there are."""
    # As floats: SQLite's sum of integers fails beyond 64 bits.
    sums = [func.coalesce(func.sum(cast(getattr(TableHealth, name), Float)), 0) for name in _SUMMED]
    oldest = [func.min(TableHealth.oldest_equality_delete_at), func.min(TableHealth.maintenance_due_at)]
    groups = (col(TableHealth.status), col(TableHealth.is_removed))
    rows = session.execute(select_columns(*groups, func.count(), *oldest, *sums).group_by(*groups)).all()
    found = [row for row in rows if not row[1]]
    tables: Counter[HealthStatus] = Counter()
    for status, _, number, *_ in found:
        tables[HealthStatus(status)] += number
    of_all = _added_up(rows)
    of = _added_up(found)
    return Summary(
        tables=tables,
        pending_equality_delete_files=int(of["pending_equality_delete_files"]),
        pending_equality_deletes=int(of["pending_equality_deletes"]),
        oldest_age_seconds=age_seconds(_oldest(row[3] for row in found), now),
        oldest_awaited_seconds=age_seconds(
            _oldest_awaited(session, col(TableHealth.oldest_equality_delete_at), JobKind.CONVERT), now
        ),
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
        saved_ever_seconds=of_all["read_saved_seconds"],
        staged_rows=int(of["staged_rows"]),
        oldest_staged_seconds=age_seconds(
            _oldest_awaited(session, col(TableHealth.oldest_staged_at), JobKind.PUBLISH), now
        ),
        # One that can't be looked at is told of as such, and nobody knows what it still wants.
        oldest_due_seconds=age_seconds(
            _oldest(row[4] for row in found if row[0] != HealthStatus.UNKNOWN.value), now
        ),
    )


def _oldest(moments: Iterable[datetime | None]) -> datetime | None:
    return min((at for at in moments if at is not None), default=None)


def _added_up(rows: Sequence[Any]) -> dict[str, float]:
    """The sums of several groups of tables, by the names of their columns."""
    return {name: sum(row[5 + number] for row in rows) for number, name in enumerate(_SUMMED)}


def _oldest_awaited(session: Session, moment: Mapped[datetime | None], kind: JobKind) -> datetime | None:
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
    rows = session.execute(
        select_columns(
            col(EnrolledTable.id),
            col(EnrolledTable.name),
            col(Catalog.name),
            col(TableHealth.status_reason),
            col(TableHealth.what_to_do),
        )
        .join(TableHealth, col(TableHealth.table_id) == col(EnrolledTable.id))
        .join(Catalog, col(Catalog.id) == col(EnrolledTable.catalog_id))
        .where(col(TableHealth.status) == status.value, col(EnrolledTable.deleted_at).is_(None))
        .order_by(col(EnrolledTable.name), col(EnrolledTable.id))
        .limit(number)
    )
    return [Troubled(*row) for row in rows]


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
    first = session.exec(select(func.min(PendingChange.minute)).where(PendingChange.minute >= began)).one()
    has_older = _has_changes_before(session, began)
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


def _has_changes_before(session: Session, minute: int) -> bool:
    older = select(PendingChange.minute).where(PendingChange.minute < minute).limit(1)
    return session.exec(older).first() is not None
