"""What reads of a table cost: kept with each look at it, and as it is told."""

from datetime import datetime

from service.catalogs.measure import Measurement, Since
from service.index_health.models import ReadCost, ReaderCostView
from service.reader_cost import HEADLINE, Read, Reader, Shape, model, shape_of
from service.records.health import TableHealth
from service.records.jobs import JobKind

_DAY_SECONDS = 86_400
_MOST_TIMES = 100
"""What a read of the table just rewritten costs: no look is believed to find each read spared more."""
_MOST_SECONDS = 86_400
"""Nor all looks together."""
_NONE = 0
"""Partitions of a table that has none, as a look says; a job counts them."""


def store_reader_cost(
    health: TableHealth, found: Measurement, at: datetime, target_file_bytes: int = 0
) -> None:
    """Keep what a reader has to do with since this look, at the first one, and before files last went.

    target_file_bytes: of the files that a rewriting makes, as the policy says; 0 for what the table says.
    """
    now, shapes = found.shape, dict(health.reader_shapes)
    before = shapes.get("now")
    health.rows_deleted_since, health.most_rows_deleted = rows_deleted_since(
        health.rows_deleted_since, health.most_rows_deleted, now.positions, at
    )
    if before is not None and _is_less(now, shape_of(before)):
        shapes["before"] = before
    reported = shapes.get("reported")
    if reported is not None and (not reported or now.data_files < reported["data_files"]):
        shapes["reported"] = now.as_json()
    shapes["now"] = now.as_json()
    shapes.setdefault("enrolled", now.as_json())
    health.reader_shapes = shapes
    health.target_file_bytes = target_file_bytes or found.target_file_bytes
    if not found.is_partitioned:
        health.partitions = _NONE
    elif health.partitions == _NONE:
        health.partitions = None  # until a job has counted those that it has now
    headline, point = _read_cost(health, *HEADLINE), _read_cost(health, HEADLINE[0], Read.POINT)
    health.read_seconds, health.read_overhead_seconds = headline.seconds, headline.overhead_seconds
    told = headline.before_seconds
    health.read_before_seconds = told if told is not None else headline.seconds
    health.point_read_seconds, health.point_read_overhead_seconds = point.seconds, point.overhead_seconds
    health.delete_files, health.delete_bytes = now.delete_files, now.delete_bytes


def store_savings(
    health: TableHealth, before: Shape | None, since: Since, reads_per_day: float, now: datetime
) -> None:
    """Add up what readers were spared since the look before, and what each read is spared from now on.

    before: what a reader had to do with then; None at the first look. since: what was committed since. After
    `store_reader_cost`.
    """
    if health.saved_at is not None:
        # A clock that jumps ahead, or a service that was away, does not tell of days of reads.
        days = min(max((now - health.saved_at).total_seconds() / _DAY_SECONDS, 0), 1)
        health.read_saved_seconds += health.read_avoided_seconds * reads_per_day * days
    health.saved_at = now
    after = shape_of(health.reader_shapes["now"])
    if before is None or (since.is_whole and JobKind.REWRITE_DATA_FILES in since.by_others):
        # Whoever else compacts would have taken away what jobs did.
        health.read_avoided_seconds = 0
        return
    # What a writer has removed would be gone without jobs, too; a job drops rows that are deleted already.
    left = before.rows - (before.positions + before.equality_deletes if since.by_jobs else 0)
    share = after.rows / left if after.rows < left else 1.0
    health.read_avoided_seconds *= share
    if since.is_whole and since.by_jobs and not since.by_others:
        fall = share * _overhead(health, before) - _overhead(health, after)
        # What there was is as metadata told it, which a writer may get wrong.
        most = _MOST_TIMES * model().seconds(fresh_shape(health, after), *HEADLINE)
        saved = health.read_avoided_seconds + min(max(fall, 0), most)
        health.read_avoided_seconds = min(saved, _MOST_SECONDS)


def _overhead(health: TableHealth, shape: Shape) -> float:
    """What the read by which tables are compared pays for deletes and small files."""
    return model().seconds(shape, *HEADLINE) - model().seconds(fresh_shape(health, shape), *HEADLINE)


def rows_deleted_since(
    since: datetime | None, most: int, now: int, at: datetime
) -> tuple[datetime | None, int]:
    """Since when a table has had rows that are deleted by position of which no rewritings have taken most,
    and the most of them that there have been since.

    most: as of the look before. now: how many there are.
    """
    if not now:
        return None, 0
    return (at, now) if since is None or 2 * now < most else (since, max(most, now))


def _is_less(now: Shape, before: Shape) -> bool:
    """Whether somebody has converted, rewritten or removed files."""
    return (
        now.data_files < before.data_files
        or now.equality_delete_files < before.equality_delete_files
        or now.vectors < before.vectors
    )


def view_reader_cost(health: TableHealth) -> ReaderCostView | None:
    """What reads cost as of the last look at a table; None before the first."""
    if "now" not in health.reader_shapes:
        return None
    now = shape_of(health.reader_shapes["now"])
    return ReaderCostView(
        data_files=now.data_files,
        data_bytes=now.data_bytes,
        delete_files=now.delete_files,
        delete_bytes=now.delete_bytes,
        fresh_data_files=fresh_shape(health, now).data_files,
        reads=[_read_cost(health, reader, read) for reader in Reader for read in Read],
        avoided_seconds=health.read_avoided_seconds,
        saved_seconds=health.read_saved_seconds,
        maintenance_seconds=health.maintenance_seconds,
        measured_on=model().measured_on,
        machine=model().machine,
    )


def fresh_shape(health: TableHealth, shape: Shape) -> Shape:
    """A shape that the table has had as if it had just been rewritten then."""
    return shape.fresh(health.partitions, health.target_file_bytes)


def _read_cost(health: TableHealth, reader: Reader, read: Read) -> ReadCost:
    def seconds(shape: Shape) -> float:
        return model().seconds(shape, reader, read)

    shapes = {name: shape_of(stored) for name, stored in health.reader_shapes.items() if name != "reported"}
    fresh = {name: seconds(fresh_shape(health, shape)) for name, shape in shapes.items()}
    overhead = {name: seconds(shape) - fresh[name] for name, shape in shapes.items()}
    return ReadCost(
        reader=reader,
        read=read,
        seconds=seconds(shapes["now"]),
        fresh_seconds=fresh["now"],
        overhead_seconds=overhead["now"],
        overhead_ratio=seconds(shapes["now"]) / fresh["now"] if fresh["now"] else 1.0,
        before_seconds=seconds(shapes["before"]) if "before" in shapes else None,
        enrolled_overhead_seconds=overhead["enrolled"],
    )
