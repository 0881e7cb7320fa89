"""What was seen of each table, over time: samples of its figures, and lists of these."""

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, bindparam, func, insert
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from service.db.database import FOR_UPDATE
from service.http.paging import Page, PageRequest, Sorting, read_page, within
from service.index_health.models import HealthSampleView, KeySetSample
from service.index_health.service import Judged
from service.records.health import HealthSample, HealthStatus, Resolution, TableHealth
from service.settings import Settings

_UNSEEN_SECONDS = 600.0
_MISSED_POLLS = 20
"""So many in a row: the patience of a poller that is told of changes is less."""
_SAMPLE_SECONDS = 60
"""Samples are at most this dense while nothing but the lag changes."""
_QUIET_SECONDS = 600
"""Of a table that is quiet for longer, history keeps until when: what comes then did not come evenly."""
# Numbered in the order of their times, and found by these numbers.
SORTING = Sorting({"at": HealthSample.id}, key=HealthSample.id, default="-at")
_AGES = ("lag_seconds", "staged_age_seconds")
"""Of a sample: what grows by itself while nothing changes."""
_OF_TIME = {
    *("id", "at", "resolution", "hour_most_deletes", "hour_longest_lag_seconds"),
    *("day_most_deletes", "day_longest_lag_seconds"),
}
"""Of a sample: what follows from when it was taken, and from those before it."""
_COMPARED = HealthSample.model_fields.keys() - {*_OF_TIME, *_AGES}
_OF_SHAPE = ("data_files", "rows", "vectors", "positions", "data_bytes", "delete_bytes")
_IN_HISTORY = set(KeySetSample.model_fields)
_ADD = insert(HealthSample)
# As `service.last_jobs`.
_LAST_ID = select(func.max(HealthSample.id)).where(HealthSample.table_id == bindparam("table_id"))
_HEALTH = (
    select(TableHealth, HealthSample)
    .outerjoin(HealthSample, col(HealthSample.id) == _LAST_ID.scalar_subquery())
    .where(TableHealth.table_id == bindparam("table_id"))
    .with_for_update(of=TableHealth, **FOR_UPDATE)
)


def read_health(session: Session, table_id: str) -> tuple[TableHealth, HealthSample | None]:
    """To be changed, and the table's last sample: a report that comes meanwhile waits."""
    health, last = session.exec(_HEALTH, params={"table_id": table_id}).one()
    return health, last


def record_sample(
    session: Session,
    settings: Settings,
    health: TableHealth,
    found: Judged,
    last: HealthSample | None,
    looked_at: datetime | None,
    now: datetime,
) -> None:
    """Append a sample if the figures changed, or if the last one is a while ago.

    last: the table's last sample. looked_at: when it was looked at before.
    """
    shape: dict[str, Any] = health.reader_shapes.get("now", {})
    # A row and no object: making that takes longer than writing it.
    sample: dict[str, Any] = {
        "table_id": health.table_id,
        "at": now,
        "status": found.status.value,
        "iceberg_snapshot_id": health.iceberg_snapshot_id,
        "pending_equality_delete_files": health.pending_equality_delete_files,
        "pending_equality_deletes": health.pending_equality_deletes,
        "lag_seconds": health.lag_seconds(now),
        **vars(found.totals),
        "unconvertible": len(health.unconvertible),
        "staged_rows": health.staged_rows,
        "staged_age_seconds": health.staged_age_seconds(now),
        "key_sets": [one.model_dump(include=_IN_HISTORY) for one in found.key_sets],
        "snapshots": health.snapshots,
        "small_manifests": health.small_manifests,
        **{name: shape.get(name, 0) for name in _OF_SHAPE},
    }
    # But for what grows by itself.
    is_same = last is not None and all(getattr(last, name) == sample[name] for name in _COMPARED)
    if last is not None and looked_at is not None:
        last = _keep_last_look(session, settings, last, looked_at, now, is_same=is_same)
    if last is None or not is_same or now - last.at >= timedelta(seconds=_SAMPLE_SECONDS):
        placed = _placed(last, now, health.pending_equality_deletes, sample["lag_seconds"])
        session.connection().execute(_ADD, sample | placed)


def unseen_after(settings: Settings) -> timedelta:
    """Figures of a table that nobody has looked at for longer say nothing of now."""
    return timedelta(seconds=max(_UNSEEN_SECONDS, _MISSED_POLLS * settings.poll_interval_seconds))


def _keep_last_look(
    session: Session,
    settings: Settings,
    last: HealthSample,
    looked_at: datetime,
    now: datetime,
    *,
    is_same: bool,
) -> HealthSample:
    """Append a sample of the last look at a table in which nothing but ages had changed until then; returns
    the last sample.

    While that is so, tables are not measured. Without it, history would show neither how long the lag became,
    nor when at the earliest there came what is new; nor that nobody has looked since: then the sample's
    status is `unknown`. Where nothing is new, what is seen now tells as much.
    """
    is_unseen = now - looked_at > unseen_after(settings)
    ages = {name: age for name in _AGES if (age := getattr(last, name))}
    since = max(looked_at - last.at, timedelta())
    is_late = since >= timedelta(seconds=_SAMPLE_SECONDS if ages else _QUIET_SECONDS)
    if is_unseen or (is_late and not is_same):
        grown = {
            "id": None,
            "at": last.at + since,
            "status": HealthStatus.UNKNOWN.value if is_unseen else last.status,
            **{name: age + since.total_seconds() for name, age in ages.items()},
        }
        kept = HealthSample(**last.model_dump() | grown)
        append_sample(session, last, kept)
        session.flush()
        return kept
    return last


def append_sample(session: Session, last: HealthSample | None, sample: HealthSample) -> None:
    """Add the latest sample of a table; last: the one before it. Both are of UTC."""
    placed = _placed(last, sample.at, sample.pending_equality_deletes, sample.lag_seconds)
    for name, value in placed.items():
        setattr(sample, name, value)
    session.add(sample)


def _placed(last: HealthSample | None, at: datetime, deletes: int, lag: float) -> dict[str, Any]:
    """What a sample that comes after `last` has besides what was seen.

    The last of an hour or a day stays longer than others, since its figures hold until the next one, and has
    the most of these.
    """
    is_of_day = last is not None and last.at.date() == at.date()
    is_of_hour = is_of_day and last is not None and last.at.hour == at.hour
    placed = {
        "resolution": Resolution.DAY.value,
        "hour_most_deletes": deletes,
        "hour_longest_lag_seconds": lag,
        "day_most_deletes": deletes,
        "day_longest_lag_seconds": lag,
    }
    if last is not None and is_of_hour:
        placed["hour_most_deletes"] = max(deletes, last.hour_most_deletes)
        placed["hour_longest_lag_seconds"] = max(lag, last.hour_longest_lag_seconds)
    if last is not None and is_of_day:
        placed["day_most_deletes"] = max(deletes, last.day_most_deletes)
        placed["day_longest_lag_seconds"] = max(lag, last.day_longest_lag_seconds)
        last.resolution = (Resolution.ALL if is_of_hour else Resolution.HOUR).value
    return placed


def samples_around(
    session: Session, table_id: str, begins: datetime, ends: datetime
) -> tuple[HealthSample | None, HealthSample | None]:
    """What was seen of a table last before something began, and first after it ended."""
    of_table = select(HealthSample).where(HealthSample.table_id == table_id)
    place = col(HealthSample.id)
    return (
        session.exec(of_table.where(HealthSample.at < begins).order_by(place.desc()).limit(1)).first(),
        session.exec(of_table.where(HealthSample.at >= ends).order_by(place).limit(1)).first(),
    )


def at_least(resolution: Resolution) -> list[str]:
    """What is stored of samples that are as coarse, or coarser."""
    return [each.value for each in list(Resolution)[list(Resolution).index(resolution) :]]


def list_history(
    session: Session,
    page: PageRequest,
    table_id: str,
    *,
    resolution: Resolution = Resolution.ALL,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Page[HealthSampleView]:
    """Samples from `since` until before `until`: all that are kept, or the last of each hour or day."""
    query = select(HealthSample).where(*_of_history(table_id, resolution, since, until))
    return read_page(
        session,
        query,
        page,
        SORTING,
        lambda rows: [HealthSampleView.model_validate(row, from_attributes=True) for row in rows],
    )


def _of_history(
    table_id: str, resolution: Resolution, since: datetime | None, until: datetime | None
) -> list[ColumnElement[bool]]:
    conditions = [col(HealthSample.table_id) == table_id, *within(col(HealthSample.at), since, until)]
    if resolution is not Resolution.ALL:
        conditions.append(col(HealthSample.resolution).in_(at_least(resolution)))
    return conditions


class DrawnSample(NamedTuple):
    """What plots show of a sample."""

    at: datetime
    status: str
    pending_equality_deletes: int
    lag_seconds: float
    coverage: float | None
    bytes: int
    sorted_runs: int
    dead_ratio: float
    staged_rows: int
    staged_age_seconds: float


def drawn_samples(
    session: Session,
    table_id: str,
    most: int,
    *,
    since: datetime | None = None,
    until: datetime,
    resolution: Resolution = Resolution.ALL,
) -> list[DrawnSample]:
    """So many of `list_history`, the latest first."""
    columns = (getattr(HealthSample, name) for name in DrawnSample._fields)
    query = select_columns(*columns).where(*_of_history(table_id, resolution, since, until))
    rows = session.execute(query.order_by(col(HealthSample.id).desc()).limit(most))
    return [DrawnSample(*row) for row in rows]
