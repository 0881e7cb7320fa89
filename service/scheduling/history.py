"""What a table has seen, as far as it was kept: commits of others, what jobs cost, and how it stood.

What others than jobs did to a table is what its samples differ by, but for what jobs reported that they did
in between. What jobs cost is the table's own history.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import StatisticsError, linear_regression, median
from typing import Any

from sqlalchemy import func, type_coerce
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from service.catalogs.measure import Volume
from service.db.database import Json
from service.reader_cost import HEADLINE, Shape, model
from service.records.health import HealthSample, TableHealth
from service.records.jobs import Job, JobKind, JobStatus
from service.records.tables import EnrolledTable
from service.scheduling.facts import LastJob
from service.scheduling.simulation import (
    REPLAYED,
    USUAL,
    Arrival,
    Beginning,
    Cost,
    Costs,
    JobCost,
    Outcome,
    Pending,
    Ran,
    ReadCost,
    growing,
    weighted_median,
)

SPAN = timedelta(days=7)
COARSE = timedelta(minutes=15)
"""Samples that are farther apart do not tell commits."""
_GAP = timedelta(seconds=60)
"""Commits that come closer are taken together."""
MOST_ARRIVALS = 2_000
"""The latest of them: of a table with a commit each minute, a day and a third."""
_MOST_JOBS = 6_000
_READ = [*REPLAYED, JobKind.PUBLISH]
"""Kinds whose reports tell what they did to a table's files."""
_MOST_SAMPLES = 20_000
_FITTED = 200
"""Jobs of a kind, the latest."""
_FIT_BY = 5
"""Jobs of a kind that it takes to tell what each of them costs from what each of what it handles does."""
_FOREIGN = timedelta(minutes=10)
"""After it, what is fewer and no job has reported was taken away by somebody else."""
_NUMBERS = (
    ("delete_files_added",),
    ("delete_files_removed",),
    ("data_files_touched",),
    ("equality_delete_files_removed",),
    ("equality_deletes_resolved",),
    ("rows_deleted",),
    ("bytes_written",),
    ("data_files", "data_files_added"),
    ("data_files", "data_files_rewritten"),
    ("data_files", "bytes_added"),
    ("data_files", "bytes_rewritten"),
    ("delete_files", "delete_files_rewritten"),
    ("delete_files", "bytes_added"),
    ("manifests", "manifests_rewritten"),
    ("manifests", "bytes_rewritten"),
    ("expiry", "snapshots_expired"),
)
"""All that is read of a job's report, besides of key sets what follows: it may name very many files."""
_OF_KEY_SETS = ("rows_indexed", "bytes_written", "entries_after", "rows_checked")
_JOBS_AT_ONCE = 50
_TABLE_FIELDS = ("data_files", "rows", "equality_delete_files", "equality_deletes", "data_bytes")


@dataclass(frozen=True)
class Sample:
    """How a table was doing at one time."""

    at: datetime
    snapshot_id: int | None
    shape: Shape
    lag_seconds: float
    coverage: float | None
    entries: int
    index_bytes: int
    sorted_runs: int
    dead_ratio: float
    unconvertible: int
    snapshots: int
    small_manifests: int


@dataclass(frozen=True)
class PastJob:
    """A job that has succeeded, with what it reported."""

    kind: JobKind
    available_at: datetime
    started_at: datetime
    ended_at: datetime
    result: Mapping[str, Any] = field(default_factory=dict)
    has_failures: bool = False
    """Then its time has the pauses between attempts in it."""

    @property
    def seconds(self) -> float:
        return (self.ended_at - self.started_at).total_seconds()

    def number(self, *names: str) -> float:
        """Of its report; 0 where it has none."""
        return _number_of(self.result, *names)

    def of_key_sets(self, name: str) -> float:
        """The sum over key sets."""
        return _sum_of(self.result.get("key_sets"), name)

    @property
    def work(self) -> float:
        """As `simulation.USUAL` counts it."""
        match self.kind:
            case JobKind.INDEX:
                return self.of_key_sets("rows_indexed")
            case JobKind.CONVERT:
                return self.number("delete_files_added")
            case JobKind.REWRITE_DATA_FILES:
                return self.number("data_files", "bytes_rewritten")
            case JobKind.REWRITE_POSITION_DELETE_FILES:
                return self.number("delete_files", "delete_files_rewritten")
            case JobKind.REWRITE_MANIFESTS:
                return self.number("manifests", "manifests_rewritten")
            case JobKind.EXPIRE_SNAPSHOTS:
                return self.number("expiry", "snapshots_expired")
            case JobKind.COMPACT:
                return self.of_key_sets("entries_after")
            case _:
                return self.of_key_sets("rows_checked")

    @property
    def bytes_written(self) -> float:
        match self.kind:
            case JobKind.REWRITE_DATA_FILES:
                return self.number("data_files", "bytes_added") + self.number("bytes_written")
            case JobKind.REWRITE_POSITION_DELETE_FILES:
                return self.number("delete_files", "bytes_added")
            case JobKind.REWRITE_MANIFESTS:
                return self.number("manifests", "bytes_rewritten")
            case _:
                return self.number("bytes_written") + self.of_key_sets("bytes_written")

    @property
    def changed(self) -> Mapping[str, float]:
        """What the table has more since, by names of `Shape`."""
        return {
            "data_files": self.number("data_files", "data_files_added")
            - self.number("data_files", "data_files_rewritten"),
            "data_bytes": self.number("data_files", "bytes_added")
            - self.number("data_files", "bytes_rewritten"),
            "equality_delete_files": -self.number("equality_delete_files_removed"),
            "equality_deletes": -self.number("equality_deletes_resolved"),
        }


def _number_of(told: Any, *names: str) -> float:
    for name in names:
        told = told.get(name) if isinstance(told, Mapping) else None
    return float(told) if isinstance(told, int | float) and not isinstance(told, bool) else 0.0


def _sum_of(key_sets: Any, name: str) -> float:
    return sum(_number_of(one, name) for one in key_sets) if isinstance(key_sets, list) else 0.0


@dataclass(frozen=True)
class History:
    """What was kept of a table's last days."""

    samples: Sequence[Sample]
    """Oldest first."""
    jobs: Sequence[PastJob]
    """Those that succeeded since the first sample, oldest first."""
    earlier: Mapping[JobKind, datetime] = field(default_factory=dict)
    """When the last one of each kind ended before."""


def arrivals_of(history: History) -> list[Arrival]:
    """What others than jobs have done, oldest first, those taken together that come within a minute."""
    found: list[Arrival] = []
    jobs = iter(history.jobs)
    job = next(jobs, None)
    owed: dict[str, float] = dict.fromkeys(_TABLE_FIELDS, 0.0)
    owed_since: datetime | None = None
    positions = 0.0
    """Positions that are there and that no job has told of; below 0 where they went."""
    for before, now in pairwise(history.samples):
        did_any = did_rewrite = False
        while job is not None and job.ended_at <= now.at:
            did_any = did_any or any(job.changed.values())
            did_rewrite = did_rewrite or job.kind is JobKind.REWRITE_DATA_FILES
            positions -= job.number("rows_deleted")
            for name, number in job.changed.items():
                owed[name] -= number
            job = next(jobs, None)
        there, left = before.shape.as_json(), now.shape.as_json()
        for name in _TABLE_FIELDS:
            owed[name] += left[name] - there[name]
        positions += left["positions"] - there["positions"]
        if did_rewrite:
            # It drops rows that were deleted, as many as positions went or more: no report counts them.
            owed["rows"] = max(owed["rows"] + max(-positions, 0.0), 0.0)
            positions = max(positions, 0.0)
            # Nor does each report count what it converted first: those of earlier versions don't.
            for name in ("equality_delete_files", "equality_deletes"):
                owed[name] = max(owed[name], 0.0)
        if now.snapshot_id == before.snapshot_id and not did_any:
            continue
        # A job's commit may be seen before the job has ended: until then something seems to be gone.
        is_gone = any(owed[name] < 0 for name in ("equality_delete_files", "data_files", "rows"))
        owed_since = (owed_since or now.at) if is_gone else None
        is_foreign = owed_since is not None and now.at - owed_since > _FOREIGN
        added = {name: int(number if is_foreign else max(number, 0.0)) for name, number in owed.items()}
        for name, number in added.items():
            owed[name] -= number
        if is_foreign:
            owed_since = None
        if not did_any and owed_since is None:
            added |= {name: left[name] - there[name] for name in ("vectors", "positions")}
        if owed_since is None:
            positions = 0.0
        if added["equality_delete_files"] > 0:
            added["delete_bytes"] = _delete_bytes(before, now, added["equality_delete_files"])
        if any(added.values()):
            found += _pieces(before.at, now.at, Shape(**added), found)
    return _together(found)[-MOST_ARRIVALS:]


def _delete_bytes(before: Sample, now: Sample, files: int) -> int:
    """Of so many equality delete files that came."""
    came = now.shape.delete_bytes - before.shape.delete_bytes
    each = now.shape.delete_bytes / max(now.shape.delete_files, 1)
    return int(came if came > 0 else each * files)


def _pieces(since: datetime, at: datetime, added: Shape, before: Sequence[Arrival]) -> list[Arrival]:
    """One arrival; or several at even intervals, where samples are too far apart to tell commits."""
    span = at - since
    parts = max(added.equality_delete_files, added.data_files)
    if span <= COARSE or parts < 2:
        return [Arrival(at, added)]
    recent = [(later.at - one.at).total_seconds() for one, later in pairwise(before[-20:])]
    usual = max(timedelta(seconds=median(recent) if recent else 300), _GAP)
    number = int(max(min(parts, span / usual), 1))
    pieces = []
    done = dict.fromkeys(added.as_json(), 0)
    for part in range(1, number + 1):
        until = {name: total * part // number for name, total in added.as_json().items()}
        pieces.append(Arrival(since + span * part / number, Shape(**{k: until[k] - done[k] for k in until})))
        done = until
    return pieces


def _together(arrivals: Iterable[Arrival]) -> list[Arrival]:
    found: list[Arrival] = []
    for one in arrivals:
        if found and one.at - found[-1].at < _GAP:
            last = found.pop()
            sums = {name: number + getattr(one.added, name) for name, number in last.added.as_json().items()}
            found.append(Arrival(last.at, Shape(**sums), last.commits + one.commits))
        else:
            found.append(one)
    return found


def costs_of(history: History) -> Costs:
    """What jobs of the table take, by its own history; as is usual where none of a kind has run."""
    by_kind: dict[JobKind, list[PastJob]] = defaultdict(list)
    for job in history.jobs:
        by_kind[job.kind].append(job)
    known: dict[JobKind, JobCost] = {
        kind: JobCost(
            _fitted([(job.work, job.seconds) for job in ran if not job.has_failures]) or USUAL[kind].seconds,
            _in_proportion([(job.work, job.bytes_written) for job in ran]) or USUAL[kind].bytes_written,
        )
        for kind in REPLAYED
        if (ran := by_kind[kind][-_FITTED:])
    }
    converted = [job for job in by_kind[JobKind.CONVERT] if job.number("equality_deletes_resolved")]
    resolved = sum(job.number("equality_deletes_resolved") for job in converted)
    hits = [found for job in converted[-_FITTED:] if (found := _hits(job, history.samples)) is not None]
    waits = [(job.started_at - job.available_at).total_seconds() for job in history.jobs]
    return Costs(
        {**USUAL, **known},
        hits=median(hits) if hits else 1.0,
        rows_deleted=sum(job.number("rows_deleted") for job in converted) / resolved if resolved else 1.0,
        wait_seconds=max(median(waits), 0.0) if waits else 1.0,
    )


def _fitted(points: Sequence[tuple[float, float]]) -> Cost | None:
    """Seconds by work; None without points."""
    if not points:
        return None
    works, seconds = zip(*points, strict=True)
    if len(points) >= _FIT_BY:
        try:
            each, fixed = linear_regression(works, seconds)
        except StatisticsError:  # all of the same size
            each, fixed = 0.0, median(seconds)
        if each > 0 and fixed > 0:
            return Cost(fixed, each)
        if each > 0:
            return Cost(0.0, sum(seconds) / sum(works))
    return Cost(median(seconds))


def _in_proportion(points: Sequence[tuple[float, float]]) -> Cost | None:
    work, size = (sum(each) for each in zip(*points, strict=True))
    return Cost(0.0, size / work) if work else None


def _hits(job: PastJob, samples: Sequence[Sample]) -> float | None:
    """Data files that each delete of a conversion hit, had they been many; None if that can't be told."""
    files = next((one.shape.data_files for one in reversed(samples) if one.at <= job.started_at), 0)
    touched, deletes = job.number("data_files_touched"), job.number("equality_deletes_resolved")
    if not files or not 0 < touched <= files:
        return None
    share = min(touched / files, 1 - 0.5 / files)
    return -math.log1p(-share) * files / deletes


def beginning_of(history: History, since: datetime, table: EnrolledTable, health: TableHealth) -> Beginning:
    """The table at the last sample before a time, or at the first one."""
    first = next((one for one in reversed(history.samples) if one.at <= since), history.samples[0])
    shape = first.shape
    left = max(shape.equality_delete_files - first.unconvertible, 0)
    each = shape.delete_bytes / max(shape.delete_files, 1)
    last = {
        kind: LastJob(at, committed_at=at, seconds=_usual_seconds(kind, history.jobs))
        for kind, at in (
            dict(history.earlier) | {job.kind: job.ended_at for job in history.jobs if job.ended_at <= since}
        ).items()
    }
    indexed = [
        job.ended_at
        for job in history.jobs
        if job.ended_at <= since and (job.kind is JobKind.INDEX or job.of_key_sets("rows_indexed"))
    ]
    uncovered = round((1 - (first.coverage or 0.0)) * shape.data_files)
    rows = shape.rows * uncovered // max(shape.data_files, 1)
    return Beginning(
        max(since, first.at),
        replace(shape, equality_delete_files=left, equality_deletes=shape.equality_deletes if left else 0),
        table.created_at,
        pending_since=first.at - timedelta(seconds=first.lag_seconds) if left else None,
        equality_bytes=int(each * left),
        has_keys=health.has_keys,
        partitions=health.partitions,
        target_file_bytes=health.target_file_bytes,
        format_version=table.format_version,
        snapshots=max(first.snapshots, 1),
        oldest_snapshot_at=_oldest(history, first, health),
        small_manifests=first.small_manifests,
        has_sort_order=health.has_sort_order,
        sorted_runs=first.sorted_runs,
        entries=first.entries,
        dead_ratio=first.dead_ratio,
        entry_bytes=first.index_bytes / first.entries if first.entries else 12.0,
        new=Volume(uncovered, rows, shape.data_bytes * uncovered // max(shape.data_files, 1)),
        indexed_at=max(indexed, default=history.earlier.get(JobKind.INDEX)),
        last=last,
    )


def _usual_seconds(kind: JobKind, jobs: Sequence[PastJob]) -> float | None:
    took = [job.seconds for job in jobs if job.kind is kind]
    return median(took) if took else None


def _oldest(history: History, first: Sample, health: TableHealth) -> datetime | None:
    """Since when there were snapshots; not known if some have expired since."""
    if health.oldest_snapshot_at is not None and health.oldest_snapshot_at < first.at:
        return health.oldest_snapshot_at
    expired = any(job.kind is JobKind.EXPIRE_SNAPSHOTS for job in history.jobs)
    return first.at - SPAN if expired or first.snapshots > 1 else None


def happened(history: History, since: datetime, until: datetime, arrivals: Sequence[Arrival]) -> Outcome:
    """What jobs did and what readers paid, as it was."""
    found = Outcome(since, until)
    for job in history.jobs:
        if not since < job.ended_at <= until or job.kind not in REPLAYED:
            continue
        totals = found.jobs[job.kind]
        totals.jobs += 1
        totals.seconds += job.seconds
        totals.bytes_written += job.bytes_written
        found.ran.append(Ran(job.kind, job.started_at, job.ended_at, not job.work))
        if job.kind is JobKind.CONVERT:
            found.delete_files_written += job.number("delete_files_added")
            found.delete_files_rewritten += job.number("delete_files_removed")
    lags: list[tuple[float, float]] = []
    for one, later in pairwise(history.samples):
        begin, end = max(one.at, since), min(later.at, until)
        passed = (end - begin).total_seconds()
        if passed <= 0:
            continue
        if one.shape.equality_delete_files:
            lags += growing(one.lag_seconds + (begin - one.at).total_seconds(), passed)
        else:
            lags.append((0.0, passed))
        seen = later.lag_seconds if later.at <= until else 0.0
        found.lag_seconds_max = max(found.lag_seconds_max, one.lag_seconds if one.at >= since else 0.0, seen)
    found.lag_seconds_median = weighted_median(lags)
    found.pending = _pending(history.samples, since, until)
    found.bytes_arrived = float(
        sum(
            max(one.added.data_bytes, 0) + max(one.added.delete_bytes, 0)
            for one in arrivals
            if since < one.at <= until
        )
    )
    return found


def _pending(samples: Sequence[Sample], since: datetime, until: datetime) -> list[Pending]:
    """What samples tell, from the last one before a time on."""
    found: list[Pending] = []
    for one in samples:
        if one.at >= until:
            break
        if one.at <= since:
            found.clear()
        shape = one.shape
        oldest_at = one.at - timedelta(seconds=one.lag_seconds) if shape.equality_delete_files else None
        found.append(Pending(max(one.at, since), shape.equality_deletes, oldest_at))
    return found


def reads_of(
    samples: Sequence[Sample], since: datetime, until: datetime, partitions: int | None, target: int
) -> list[ReadCost]:
    """What a read cost, at as many moments as a replay tells of, evenly."""
    found, left = [], iter(samples)
    now, following = next(left), next(left, None)
    step = (until - since) / 500
    for number in range(500):
        at = since + step * number
        while following is not None and following.at <= at:
            now, following = following, next(left, None)
        fresh = now.shape.fresh(partitions, target)
        found.append(ReadCost(at, model().seconds(now.shape, *HEADLINE), model().seconds(fresh, *HEADLINE)))
    return found


def read_history(session: Session, table_id: str, since: datetime) -> History:
    """What was kept since then: the latest of it, if it is more than is ever replayed."""
    columns = (
        HealthSample.at,
        HealthSample.iceberg_snapshot_id,
        HealthSample.data_files,
        HealthSample.rows,
        HealthSample.pending_equality_delete_files,
        HealthSample.pending_equality_deletes,
        HealthSample.vectors,
        HealthSample.positions,
        HealthSample.data_bytes,
        HealthSample.delete_bytes,
        HealthSample.lag_seconds,
        HealthSample.coverage,
        HealthSample.entries,
        HealthSample.bytes,
        HealthSample.sorted_runs,
        HealthSample.dead_ratio,
        HealthSample.unconvertible,
        HealthSample.snapshots,
        HealthSample.small_manifests,
    )
    rows = session.execute(
        select_columns(*map(col, columns))
        .where(col(HealthSample.table_id) == table_id, col(HealthSample.at) >= since)
        .order_by(col(HealthSample.id).desc())
        .limit(_MOST_SAMPLES)
    ).all()
    samples = [Sample(at, snapshot, Shape(*rest[:8]), *rest[8:]) for at, snapshot, *rest in reversed(rows)]
    if not samples:
        return History([], [])
    succeeded = (
        col(Job.table_id) == table_id,
        ~col(Job.dry_run),
        col(Job.status) == JobStatus.SUCCEEDED.value,
        col(Job.started_at).is_not(None),
    )
    result = type_coerce(col(Job.result), Json)
    ran = session.execute(
        select_columns(
            col(Job.kind),
            col(Job.available_at),
            col(Job.started_at),
            col(Job.ended_at),
            col(Job.failures),
            result["key_sets"],
            *(result[path] for path in _NUMBERS),
        )
        .where(*succeeded, col(Job.kind).in_(_READ), col(Job.ended_at) > samples[0].at)
        .order_by(col(Job.ended_at).desc())
        .limit(_MOST_JOBS)
        .execution_options(yield_per=_JOBS_AT_ONCE)
    )
    jobs = [
        PastJob(JobKind(kind), available, started, ended, _told(key_sets, numbers), failures > 0)
        for kind, available, started, ended, failures, key_sets, *numbers in ran
    ][::-1]
    if len(jobs) == _MOST_JOBS:
        # What jobs did before is not known, so neither is what others did.
        samples = [one for one in samples if one.at >= jobs[0].ended_at]
    before = select(Job.kind, func.max(Job.ended_at)).where(*succeeded, col(Job.ended_at) <= samples[0].at)
    earlier = {
        JobKind(kind): at for kind, at in session.exec(before.group_by(Job.kind)).all() if at is not None
    }
    return History(samples, jobs, {kind: at for kind, at in earlier.items() if kind in REPLAYED})


def _told(key_sets: Any, numbers: Sequence[Any]) -> dict[str, Any]:
    """Of a job's result what is replayed: `_NUMBERS`, and sums over key sets."""
    found: dict[str, Any] = {}
    for (*outer, name), number in zip(_NUMBERS, numbers, strict=True):
        (found.setdefault(outer[0], {}) if outer else found)[name] = number
    return found | {"key_sets": [{name: _sum_of(key_sets, name) for name in _OF_KEY_SETS}]}
