"""How tables did over time, in equal intervals: what a strip of a timeline is coloured by."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlmodel import Session, col, func, select

from service.index_health.service import at_least
from service.records.health import HealthSample, Resolution
from service.records.tables import EnrolledTable

_INTERVALS = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
"""In seconds; each begins at a multiple of itself, by UTC."""
_MOST = 100
"""Intervals of a strip."""
_TOLERANCE_SECONDS = 60
_RESOLUTIONS = (
    (timedelta(days=2), Resolution.ALL),
    (timedelta(days=31), Resolution.HOUR),
    (timedelta.max, Resolution.DAY),
)
"""Which samples are read for a span: not so many that a page of tables takes long."""


@dataclass(frozen=True)
class Intervals:
    """Equal parts of a span of time, which it may begin before and end after."""

    since: datetime
    seconds: int
    number: int

    @property
    def until(self) -> datetime:
        return self.since + timedelta(seconds=self.seconds * self.number)

    def __iter__(self) -> Iterator[datetime]:
        """When each of them ends."""
        return (self.since + timedelta(seconds=self.seconds * step) for step in range(1, self.number + 1))


def divide(since: datetime, until: datetime) -> Intervals:
    """`until` is later than `since`."""
    span = (until - since).total_seconds()
    seconds = next((each for each in _INTERVALS if span <= each * _MOST), _INTERVALS[-1])
    first, last = int(since.timestamp() // seconds), int(-(-until.timestamp() // seconds))
    return Intervals(datetime.fromtimestamp(first * seconds, UTC), seconds, last - first)


@dataclass
class Strip:
    """Of one table: the most of each interval; None before its first sample, and of what is to come."""

    pending_equality_deletes: list[int | None]
    lag_seconds: list[float | None]


@dataclass
class _Held:
    """What holds until the next sample."""

    pending: int
    lag: float
    at: datetime
    grows: bool = True
    """Whether the same is pending for as long, so that its age grows."""

    def lag_at(self, moment: datetime) -> float:
        grown = (moment - self.at).total_seconds() if self.grows else 0.0
        return self.lag + grown if self.pending else 0.0

    def is_pending_until(self, later: "_Held") -> bool:
        """Whether what was pending still is, as its age says."""
        return later.lag >= self.lag_at(later.at) - _TOLERANCE_SECONDS


def strips(
    session: Session, table_ids: Sequence[str], intervals: Intervals, now: datetime, fine_days: float
) -> dict[str, Strip]:
    """By the table's id, in few statements however many samples there are.

    fine_days: for so long all samples are kept.
    """
    held = _held_before(session, table_ids, intervals.since)
    resolution = next(each for most, each in _RESOLUTIONS if intervals.until - intervals.since <= most)
    found = _most_within(session, table_ids, intervals, resolution)
    has_all = resolution is Resolution.ALL and now - intervals.since <= timedelta(days=fine_days)
    return {
        table_id: _strip(held.get(table_id), found.get(table_id, {}), intervals, now, has_all)
        for table_id in table_ids
    }


def _strip(
    held: _Held | None,
    found: dict[int, tuple[int, float, _Held]],
    intervals: Intervals,
    now: datetime,
    has_all: bool,
) -> Strip:
    """has_all: nothing changed between two samples; else lag grows only where the next one tells so."""
    strip = Strip([], [])
    following = sorted(found)
    for number, end in enumerate(intervals):
        while following and following[0] < number:
            del following[0]
        if held is not None and not has_all:
            later = found[following[0]][2] if following else None
            if later is None or not held.is_pending_until(later):
                held = replace(held, grows=False)
        began = end - timedelta(seconds=intervals.seconds)
        pending: int | None = None
        lag: float | None = None
        if began < now:
            if held is not None:
                pending, lag = held.pending, held.lag_at(max(began, held.at))
            if number in found:
                most, longest, held = found[number]
                pending, lag = max(pending or 0, most), max(lag or 0.0, longest)
            elif held is not None:
                lag = held.lag_at(min(end, now))
        strip.pending_equality_deletes.append(pending)
        strip.lag_seconds.append(None if lag is None else round(lag, 1))
    return strip


def _last_before(session: Session, moment: datetime) -> int:
    """The number of the last sample of any table before; 0 if there is none."""
    # Numbers tell the order of times, and cut off what is older without a look at it.
    older = select(HealthSample.id).where(HealthSample.at < moment)
    return session.exec(older.order_by(col(HealthSample.at).desc()).limit(1)).first() or 0


def _held_before(session: Session, table_ids: Sequence[str], since: datetime) -> dict[str, _Held]:
    last = (
        select(func.max(HealthSample.id))
        .where(
            HealthSample.table_id == EnrolledTable.id, col(HealthSample.id) <= _last_before(session, since)
        )
        .correlate(EnrolledTable)
        .scalar_subquery()
    )
    rows = session.execute(
        sa.select(
            col(HealthSample.table_id),
            col(HealthSample.pending_equality_deletes),
            col(HealthSample.lag_seconds),
            col(HealthSample.at),
        )
        .join(EnrolledTable, col(EnrolledTable.id) == col(HealthSample.table_id))
        .where(col(EnrolledTable.id).in_(table_ids), col(HealthSample.id) == last)
    )
    return {table_id: _Held(*rest) for table_id, *rest in rows}


def _most_within(
    session: Session, table_ids: Sequence[str], intervals: Intervals, resolution: Resolution
) -> dict[str, dict[int, tuple[int, float, _Held]]]:
    """By table and number of the interval: most deletes, longest lag, and the last sample in it."""
    # Both databases cut off: one of them would round by itself.
    second = sa.cast(func.floor(sa.extract("epoch", col(HealthSample.at))), sa.BigInteger)
    number = ((second - int(intervals.since.timestamp())) // intervals.seconds).label("number")
    alike = (
        sa.select(
            col(HealthSample.table_id),
            number,
            func.max(HealthSample.pending_equality_deletes).label("most"),
            func.max(HealthSample.lag_seconds).label("longest"),
            func.max(HealthSample.id).label("last"),
        )
        .where(
            col(HealthSample.table_id).in_(table_ids),
            col(HealthSample.id) > _last_before(session, intervals.since),
            col(HealthSample.at) >= intervals.since,
            col(HealthSample.at) < intervals.until,
            col(HealthSample.resolution).in_(at_least(resolution)),
        )
        .group_by(col(HealthSample.table_id), number)
        .subquery()
    )
    rows = session.execute(
        sa.select(
            alike.c.table_id,
            alike.c.number,
            alike.c.most,
            alike.c.longest,
            col(HealthSample.pending_equality_deletes),
            col(HealthSample.lag_seconds),
            col(HealthSample.at),
        ).join(alike, alike.c.last == col(HealthSample.id))
    )
    found: dict[str, dict[int, tuple[int, float, _Held]]] = {}
    for table_id, interval, most, longest, *last in rows:
        found.setdefault(table_id, {})[int(interval)] = (most, longest, _Held(*last))
    return found
