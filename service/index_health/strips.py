"""How tables did over time, in equal intervals: what a strip of a timeline is coloured by."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import sqlalchemy as sa
from sqlmodel import Session, col, func, select

from service.index_health.samples import at_least
from service.records.health import HealthSample, HealthStatus, Resolution, TableHealth
from service.records.tables import EnrolledTable

_INTERVALS = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
"""In seconds; each begins at a multiple of itself, by UTC."""
_MOST = 100
"""Intervals of a strip."""
_TOLERANCE_SECONDS = 60
_MOST_OF_ALL = timedelta(days=2)
_MOST_OF_HOURS = timedelta(days=14)
"""The longest spans for which all samples are read, or those of hours: not so many that it takes long."""
_SLACK = timedelta(hours=1)
"""Somebody asks for just as long as samples are kept, and history is forgotten a bit later."""
_BEFORE = -1
_SECONDS = {Resolution.ALL: 0, Resolution.HOUR: 3600, Resolution.DAY: 86_400}
"""What a sample that stays has the most of: no shorter interval knows its own."""


@dataclass(frozen=True)
class Intervals:
    """Equal parts of a span of time, which it may begin before and end after."""

    since: datetime
    seconds: int
    number: int
    resolution: Resolution
    """Which samples tell of them."""

    @property
    def until(self) -> datetime:
        return self.since + timedelta(seconds=self.seconds * self.number)


def divide(
    since: datetime, until: datetime, now: datetime, *, fine_days: float, hourly_days: float
) -> Intervals:
    """Into intervals so long that each knows the most of all samples in it, whether these are kept or not.

    `until` is later than `since`. fine_days, hourly_days: all samples, and those of hours, are kept so long.
    """
    span, age = until - since, now - since - _SLACK
    if span <= _MOST_OF_ALL and age <= timedelta(days=fine_days):
        resolution = Resolution.ALL
    elif span <= _MOST_OF_HOURS and age <= timedelta(days=hourly_days):
        resolution = Resolution.HOUR
    else:
        resolution = Resolution.DAY
    least = max(_SECONDS[resolution], span.total_seconds() / _MOST)
    seconds = next((each for each in _INTERVALS if each >= least), _INTERVALS[-1])
    first, last = int(since.timestamp() // seconds), int(-(-until.timestamp() // seconds))
    return Intervals(datetime.fromtimestamp(first * seconds, UTC), seconds, last - first, resolution)


@dataclass
class Strip:
    """Of one table: the most of each interval; None where nothing was measured, and of what is to come."""

    pending_equality_deletes: list[int | None]
    lag_seconds: list[float | None]


@dataclass
class _Held:
    """What holds until the next sample. Times are seconds since 1970: strips are made of thousands."""

    pending: int
    lag: float
    at: float
    status: str
    """`unknown`: nobody looked any more, so it holds no longer."""
    grows: bool = True
    """Whether the same is pending for as long, so that its age grows."""

    @property
    def holds(self) -> bool:
        return self.status != HealthStatus.UNKNOWN

    def lag_at(self, moment: float) -> float:
        grown = moment - self.at if self.grows else 0.0
        return self.lag + grown if self.pending else 0.0


def _held(pending: int, lag: float, at: datetime, status: str) -> _Held:
    return _Held(pending, lag, at.timestamp(), status)


def strips(
    session: Session, table_ids: Sequence[str], intervals: Intervals, now: datetime, unseen_after: timedelta
) -> dict[str, Strip]:
    """By the table's id, in few statements however many samples there are.

    unseen_after: a look tells of so long a time at most, if none follows it.
    """
    last_before = _last_before(session, intervals.since)
    held = _held_before(session, table_ids, last_before)
    found = _most_within(session, table_ids, intervals, last_before)
    looks = _last_looks(session, table_ids)
    return {
        table_id: _strip(
            held.get(table_id),
            found.get(table_id, {}),
            intervals,
            now.timestamp(),
            (look if (look := looks.get(table_id, now)) < now - unseen_after else now).timestamp(),
        )
        for table_id in table_ids
    }


def _strip(
    held: _Held | None,
    found: dict[int, tuple[int, float, _Held]],
    intervals: Intervals,
    now: float,
    seen_until: float,
) -> Strip:
    since, seconds = intervals.since.timestamp(), intervals.seconds
    if _BEFORE in found:
        held = found.pop(_BEFORE)[2]
    following = dict(pairwise([-1, *sorted(found)]))

    def judge(held: _Held, after: int) -> None:
        """Whether what was pending still was when the next interval with samples began, as these tell; where
        all samples are read, nothing changed between two of them."""
        later = following.get(after)
        if intervals.resolution is Resolution.ALL:
            return
        if later is None:
            held.grows = now <= since + seconds * intervals.number
        else:
            began = since + seconds * later
            held.grows = found[later][1] >= held.lag_at(began) - _TOLERANCE_SECONDS

    strip = Strip([], [])
    if held is not None:
        judge(held, -1)
    for number in range(intervals.number):
        began, end = since + seconds * number, since + seconds * (number + 1)
        pending: int | None = None
        lag: float | None = None
        if began < now:
            if held is not None and held.holds and began < seen_until:
                pending, lag = held.pending, held.lag_at(max(began, held.at))
            if number in found:
                most, longest, held = found[number]
                judge(held, number)
                pending, lag = max(pending or 0, most), max(lag or 0.0, longest)
            if held is not None and held.holds and began < seen_until:
                lag = max(lag or 0.0, held.lag_at(min(end, seen_until)))
        strip.pending_equality_deletes.append(pending)
        strip.lag_seconds.append(None if lag is None else round(lag, 1))
    return strip


def _last_before(session: Session, moment: datetime) -> int:
    """The number of the last sample of any table before; 0 if there is none."""
    # Numbers tell the order of times, and cut off what is older without a look at it.
    older = select(HealthSample.id).where(HealthSample.at < moment)
    return session.exec(older.order_by(col(HealthSample.at).desc()).limit(1)).first() or 0


def most_of_each(intervals: Intervals, best: int | None = None) -> sa.Subquery:
    """By `table_id`, the `most` deletes that were pending within the hours of the intervals, or the days if
    these are many: of few samples, which an index has.

    best: of so many tables at least, those with the most and, where it is alike, the last ids: to group all
    takes some times as long.
    """
    since, until = intervals.since.timestamp(), intervals.until.timestamp()
    is_short = until - since <= 86_400 and intervals.resolution is not Resolution.DAY
    resolution = Resolution.HOUR if is_short else Resolution.DAY
    seconds = _SECONDS[resolution]
    first, last = int(since // seconds), int(-(-until // seconds))
    deletes = HealthSample.hour_most_deletes if is_short else HealthSample.day_most_deletes
    most: sa.Label[int] = col(deletes).label("most")
    rows = sa.select(col(HealthSample.table_id), most).where(
        sa.text("resolution <> 'all'"),  # as the index has it
        col(HealthSample.resolution).in_(at_least(resolution)),
        col(HealthSample.at) >= datetime.fromtimestamp(first * seconds, UTC),
        col(HealthSample.at) < datetime.fromtimestamp(last * seconds, UTC),
    )
    if best is not None:
        # Whatever goes before a table's own most is of a table that goes before it, with a sample an hour.
        rows = rows.order_by(most.desc(), col(HealthSample.table_id).desc()).limit(best * 2 * (last - first))
    chosen = rows.subquery()
    return (
        sa.select(chosen.c.table_id, func.max(chosen.c.most).label("most"))
        .group_by(chosen.c.table_id)
        .subquery()
    )


def _last_looks(session: Session, table_ids: Sequence[str]) -> dict[str, datetime]:
    rows = session.execute(
        sa.select(col(TableHealth.table_id), col(TableHealth.measured_at)).where(
            col(TableHealth.table_id).in_(table_ids), col(TableHealth.measured_at).is_not(None)
        )
    )
    return {row.table_id: row.measured_at for row in rows}


def _held_before(session: Session, table_ids: Sequence[str], last_before: int) -> dict[str, _Held]:
    last = (
        select(func.max(HealthSample.id))
        .where(HealthSample.table_id == EnrolledTable.id, col(HealthSample.id) <= last_before)
        .correlate(EnrolledTable)
        .scalar_subquery()
    )
    rows = session.execute(
        sa.select(
            col(HealthSample.table_id),
            col(HealthSample.pending_equality_deletes),
            col(HealthSample.lag_seconds),
            col(HealthSample.at),
            col(HealthSample.status),
        )
        .join(EnrolledTable, col(EnrolledTable.id) == col(HealthSample.table_id))
        .where(col(EnrolledTable.id).in_(table_ids), col(HealthSample.id) == last)
    )
    return {table_id: _held(*rest) for table_id, *rest in rows}


def _most_within(
    session: Session, table_ids: Sequence[str], intervals: Intervals, last_before: int
) -> dict[str, dict[int, tuple[int, float, _Held]]]:
    """By table and number of the interval: most deletes, longest lag, and the last sample in it.

    _BEFORE is the number of what is of a time before and was stored later: the last look before another.
    """
    # Both databases cut off: one of them would round by itself.
    second = sa.cast(func.floor(sa.extract("epoch", col(HealthSample.at))), sa.BigInteger)
    within = (second - int(intervals.since.timestamp())) // intervals.seconds
    number = sa.case((col(HealthSample.at) < intervals.since, _BEFORE), else_=within).label("number")
    most, longest = {
        Resolution.ALL: (HealthSample.pending_equality_deletes, HealthSample.lag_seconds),
        Resolution.HOUR: (HealthSample.hour_most_deletes, HealthSample.hour_longest_lag_seconds),
        Resolution.DAY: (HealthSample.day_most_deletes, HealthSample.day_longest_lag_seconds),
    }[intervals.resolution]
    alike = (
        sa.select(
            col(HealthSample.table_id),
            number,
            func.max(most).label("most"),
            func.max(longest).label("longest"),
            func.max(HealthSample.id).label("last"),
        )
        .where(
            col(HealthSample.table_id).in_(table_ids),
            col(HealthSample.id) > last_before,
            col(HealthSample.at) < intervals.until,
            col(HealthSample.resolution).in_(at_least(intervals.resolution)),
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
            col(HealthSample.status),
        )
        .join(alike, alike.c.last == col(HealthSample.id))
        # It follows, but PostgreSQL takes these for so many that it would read the samples of all tables.
        .where(col(HealthSample.table_id).in_(table_ids), col(HealthSample.id) > last_before)
    )
    found: dict[str, dict[int, tuple[int, float, _Held]]] = {}
    for table_id, interval, deletes, lag, *last in rows:
        found.setdefault(table_id, {})[int(interval)] = (deletes, lag, _held(*last))
    return found
