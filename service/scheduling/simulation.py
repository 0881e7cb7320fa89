"""What a policy makes of a table to which a writer commits: its decisions, and a model of what jobs do. Pure.

Decisions are those of `service.scheduling.decisions`, at the moments at which a scheduler makes them: after
each commit, after each job, and when time alone makes another one. One job at a time writes the table. What a
job leaves, writes and takes follows from the table's shape and from `Costs`. Publications, attempts and
budgets are not simulated.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from service.catalogs.measure import Past, Volume
from service.index_health.reader_cost import rows_deleted_since
from service.policies.models import EffectivePolicy
from service.policies.schedules import fires, openings
from service.reader_cost import HEADLINE, TARGET_FILE_BYTES, Shape, model, small_files
from service.records.jobs import JobKind
from service.scheduling.decisions import cron_of, deadlines, decide_kind
from service.scheduling.facts import (
    SCHEDULED,
    WAITS,
    Action,
    LastJob,
    TableState,
    grown_files,
    may_take_some_again,
    weighing,
    windows_of,
)
from service.scheduling.simulated_files import SimulatedFiles, Taken

MOST_STEPS = 10_000
"""Events of one simulation: commits, ends of jobs, and moments at which time makes another decision."""
_LOOKS = 500
"""At what a read costs, at uneven intervals: no rhythm of jobs hides from them."""
_GOLDEN = 0.618033988749895
_KEPT_RUNS, _DEAD_SHARE, _FEW_ENTRIES = 8, 0.3, 4_000_000
"""Of an index: sorted runs that a compaction leaves, from which share on it drops all dead entries, and up to
how many of all sorts it puts them together in any case."""
_INDEXED_ROWS = 10_000_000
"""Of new data files that a conversion indexes at most, as `worker.jobs.conversion` has it."""
REPLAYED = tuple(kind for kind in SCHEDULED if kind is not JobKind.PUBLISH)


@dataclass(frozen=True)
class Arrival:
    """What others than jobs have made of a table by a moment, since the arrival before."""

    at: datetime
    added: Shape
    """Numbers below 0 where somebody has taken files away."""
    commits: int = 1


class Cost(NamedTuple):
    """So much for each job, and so much for each of what it handles."""

    fixed: float
    each: float = 0.0

    def of(self, work: float) -> float:
        return self.fixed + self.each * work


@dataclass(frozen=True)
class JobCost:
    """What jobs of a kind take; `simulate` says what is handled."""

    seconds: Cost
    bytes_written: Cost


USUAL: Mapping[JobKind, JobCost] = {
    JobKind.INDEX: JobCost(Cost(3, 1e-6), Cost(0, 12)),
    JobKind.CONVERT: JobCost(Cost(3, 0.003), Cost(0, 1_000)),
    JobKind.REWRITE_DATA_FILES: JobCost(Cost(5, 5e-8), Cost(0, 1)),
    JobKind.REWRITE_POSITION_DELETE_FILES: JobCost(Cost(5, 0.01), Cost(0, 1_000)),
    JobKind.REWRITE_MANIFESTS: JobCost(Cost(5, 0.01), Cost(0, 8_000)),
    JobKind.EXPIRE_SNAPSHOTS: JobCost(Cost(5, 0.01), Cost(0)),
    JobKind.COMPACT: JobCost(Cost(3, 1e-6), Cost(0, 12)),
    JobKind.VERIFY: JobCost(Cost(5, 1e-6), Cost(0)),
}
"""What a job is taken to cost where none of its kind has run yet.

They handle: an index job new rows; a conversion the delete files that it writes; a rewriting of data files
their bytes, of delete files and manifests their number; an expiry snapshots; a compaction the entries that it
writes; a verification the table's rows.
"""


@dataclass(frozen=True)
class Costs:
    """What jobs of one table take and do."""

    jobs: Mapping[JobKind, JobCost] = field(default_factory=lambda: USUAL)
    hits: float = 1.0
    """Data files that each delete hits, while there are many more files than deletes."""
    rows_deleted: float = 1.0
    """Rows that each delete deletes."""
    wait_seconds: float = 1.0
    """Between a decision and the start of its job."""
    fails_each: int = 0
    """Each such job fails; 0 for none."""


@dataclass(frozen=True)
class Beginning:
    """A table at the time at which a simulation begins."""

    at: datetime
    shape: Shape
    enrolled_at: datetime
    pending_since: datetime | None = None
    equality_bytes: int = 0
    """Of the equality delete files in `shape`."""
    has_keys: bool = True
    partitions: int | None = 1
    """As `Shape.fresh` takes it."""
    target_file_bytes: int = TARGET_FILE_BYTES
    format_version: int = 3
    snapshots: int = 1
    oldest_snapshot_at: datetime | None = None
    small_manifests: int = 0
    has_sort_order: bool | None = None
    sorted_runs: int = 0
    entries: int = 0
    """Of the index; 0 without one."""
    dead_ratio: float = 0.0
    entry_bytes: float = 12.0
    new: Volume = field(default_factory=Volume)
    indexed_at: datetime | None = None
    """As `TableState` has it."""
    last: Mapping[JobKind, LastJob] = field(default_factory=dict)


@dataclass
class Totals:
    """Of the jobs of one kind."""

    jobs: int = 0
    seconds: float = 0.0
    bytes_written: float = 0.0


class ReadCost(NamedTuple):
    """What a full read costs at a moment, in seconds, and what it would had the table just been rewritten."""

    at: datetime
    seconds: float
    fresh_seconds: float

    @property
    def ratio(self) -> float:
        return self.seconds / (self.fresh_seconds or 1)


class Queued(NamedTuple):
    """A job that waits for a worker."""

    kind: JobKind
    decided_at: datetime
    begins_at: datetime
    state: TableState
    """That the decision was about."""


class Ran(NamedTuple):
    """A job."""

    kind: JobKind
    began_at: datetime
    ended_at: datetime
    is_idle: bool
    """Whether it found nothing to do."""
    pending_files: int = 0
    """Equality delete files that were pending when it began."""
    share: float = 0.0
    """Of the table's bytes, which a rewriting of data files took."""
    queued: Queued | None = None
    """None of one that was not simulated."""


class Pending(NamedTuple):
    """Equality deletes that were pending from a moment on, until the next one."""

    at: datetime
    equality_deletes: int
    since: datetime | None
    """When the oldest of them was committed; None without any."""


@dataclass
class Outcome:
    """What came of a table in a span of time."""

    since: datetime
    until: datetime
    """Earlier than asked for where the simulation was cut off."""
    jobs: dict[JobKind, Totals] = field(default_factory=lambda: defaultdict(Totals))
    lag_seconds_median: float = 0.0
    """Over time: of the age of the oldest pending delete."""
    lag_seconds_max: float = 0.0
    delete_files_written: float = 0.0
    """Deletion vectors and position delete files that conversions wrote."""
    delete_files_rewritten: float = 0.0
    """So many of them took the place of one that a data file had."""
    bytes_arrived: float = 0.0
    sorted_runs_max: int = 0
    reads: list[ReadCost] = field(default_factory=list)
    ran: list[Ran] = field(default_factory=list)
    pending: list[Pending] = field(default_factory=list)
    """In order: each time that it changed."""

    @property
    def bytes_written(self) -> float:
        return sum(totals.bytes_written for totals in self.jobs.values())

    @property
    def write_amplification(self) -> float | None:
        """Bytes that writers and jobs wrote for each that a writer did; None if that wrote none."""
        return 1 + self.bytes_written / self.bytes_arrived if self.bytes_arrived else None

    @property
    def read_seconds(self) -> float | None:
        """Of a full read, on average over time."""
        return sum(one.seconds for one in self.reads) / len(self.reads) if self.reads else None

    @property
    def read_ratio(self) -> float | None:
        """How many times as much reads cost as of a table that had just been rewritten, over time."""
        fresh = sum(one.fresh_seconds for one in self.reads)
        return sum(one.seconds for one in self.reads) / fresh if fresh else None


def simulate(
    beginning: Beginning,
    arrivals: Sequence[Arrival],
    policy: EffectivePolicy,
    until: datetime,
    costs: Costs | None = None,
    most_steps: int = MOST_STEPS,
) -> Outcome:
    """What the policy makes of a table from its beginning on, if these commits come in this order.

    It is cut off after `most_steps` events, which `Outcome.until` tells.
    """
    table = _Table(beginning, policy, costs or Costs())
    outcome = Outcome(beginning.at, until)
    lags: list[tuple[float, float]] = []
    looks = _looks(beginning.at, until)
    look = next(looks, None)
    moments = iter(_moments(policy, beginning.at, until))
    moment = next(moments, until)
    at, arrived, due = beginning.at, 0, beginning.at
    for _ in range(most_steps):
        following = min(until, due, moment)
        if arrived < len(arrivals):
            following = min(following, arrivals[arrived].at)
        if table.running is not None:
            following = min(following, table.running.ends_at)
        following = max(following, at)
        if (passed := (following - at).total_seconds()) > 0:
            is_pending = table.pending_since is not None
            lags += growing(table.lag_seconds(at), passed) if is_pending else [(0.0, passed)]
            outcome.lag_seconds_max = max(outcome.lag_seconds_max, table.lag_seconds(following))
        while look is not None and look < following:
            outcome.reads.append(table.read_cost(look))
            look = next(looks, None)
        at = following
        if at >= until:
            break
        if table.running is not None and table.running.ends_at <= at:
            table.end(outcome)
        while arrived < len(arrivals) and arrivals[arrived].at <= at:
            table.arrive(arrivals[arrived], outcome)
            arrived += 1
        while moment <= at and moment < until:
            moment = next(moments, until)
        outcome.sorted_runs_max = max(outcome.sorted_runs_max, table.sorted_runs)
        due = table.decide(at) or until
        pending = Pending(at, table.pending.rows, table.pending_since)
        if not outcome.pending or outcome.pending[-1][1:] != pending[1:]:
            outcome.pending.append(pending)
    outcome.until = at
    outcome.lag_seconds_median = weighted_median(lags)
    return outcome


def growing(lag: float, seconds: float) -> list[tuple[float, float]]:
    """A lag that grows for so long, as pairs (lag, seconds)."""
    parts = min(int(seconds // 60) + 1, 50)
    return [(lag + seconds * (part + 0.5) / parts, seconds / parts) for part in range(parts)]


def weighted_median(values: Iterable[tuple[float, float]]) -> float:
    """Of pairs (value, weight); 0 of none."""
    ordered = sorted(values)
    half, seen = sum(weight for _, weight in ordered) / 2, 0.0
    for value, weight in ordered:
        seen += weight
        if seen >= half:
            return value
    return 0.0


def _looks(since: datetime, until: datetime) -> Iterator[datetime]:
    step = (until - since) / _LOOKS
    return iter([since + step * (number + number * _GOLDEN % 1) for number in range(_LOOKS)])


def _moments(policy: EffectivePolicy, since: datetime, until: datetime) -> list[datetime]:
    """When cron expressions come and windows open, in order."""
    zone, found = policy.schedule.time_zone, set[datetime]()
    for kind, cron in cron_of(policy).items():
        if cron and getattr(policy, kind.value).enabled:
            found.update(fires(cron, zone, since, until))
        begin = since
        while begin < until:  # a week at a time, as `openings` takes it
            end = min(begin + timedelta(days=7), until)
            found.update(openings(windows_of(policy, kind), zone, begin, end))
            begin = end
    return sorted(found)


@dataclass
class _Running:
    kind: JobKind
    ends_at: datetime
    seconds: float
    pending: Volume
    """Equality delete files that it saw when it began; likewise what follows."""
    shape: Shape
    new: Volume
    taken: Taken
    """Data files that a rewriting takes."""
    takes_new_files: bool
    """Whether a conversion is told to index what is new."""
    queued: Queued


class _Table:
    """A table between events."""

    def __init__(self, beginning: Beginning, policy: EffectivePolicy, costs: Costs) -> None:
        self._beginning, self._policy, self._costs = beginning, policy, costs
        shape = beginning.shape
        self.shape = shape
        self.pending = Volume(shape.equality_delete_files, shape.equality_deletes, beginning.equality_bytes)
        self.pending_since = beginning.pending_since if self.pending.files else None
        self._came_since: datetime | None = None
        """When the first delete came after the running job began."""
        self.running: _Running | None = None
        self._ended = 0
        self._queue: list[Queued] = []
        self._new, self._unverified = beginning.new, Volume()
        self._indexed_at = beginning.indexed_at
        self._last = dict(beginning.last)
        self._entries = float(beginning.entries)
        self._dead = beginning.entries * beginning.dead_ratio
        runs = beginning.sorted_runs
        self._runs = [float(beginning.entries), *[0.0] * (runs - 1)] if runs else []
        """Of the index: the entries of each sorted run."""
        self._manifests = beginning.small_manifests
        self._snapshots = deque(_spread(beginning))
        self._snapshot_count = sum(number for _, number in self._snapshots)
        self._target = policy.rewrite_data_files.target_file_size_bytes or beginning.target_file_bytes
        full = int(shape.data_bytes // self._target) if shape.data_files else 0
        full = min(full, max(shape.data_files - 1, 0))
        self._files = SimulatedFiles(self._partitions, self._target, policy.rewrite_data_files)
        of_full = min(full * self._target / shape.data_bytes, 1.0) if full else 0.0
        for number, share in ((full, of_full), (shape.data_files - full, 1 - of_full)):
            self._files.add(number, shape.data_bytes * share, shape.rows * share)
        self._files.delete(shape.positions)
        self._counted = (0, 0)
        """Small data files, and those with many deleted rows, as the last job told."""
        self._reported = shape if beginning.entries or beginning.last else Shape(0, 0)
        self._idle_at: tuple[int, int] | None = None
        """What was counted when a rewriting found nothing to take."""
        self._waits_since: dict[JobKind, datetime] = {}
        self._most_deleted = shape.positions
        self._rows_deleted_since = beginning.at if shape.positions else None
        self._delete_ratio = policy.rewrite_data_files.delete_ratio_threshold
        """From which share of deleted rows on a queued or running rewriting takes files."""
        self._kinds = [kind for kind in REPLAYED if getattr(policy, kind.value).enabled]

    def lag_seconds(self, at: datetime) -> float:
        return max((at - self.pending_since).total_seconds(), 0.0) if self.pending_since is not None else 0.0

    @property
    def sorted_runs(self) -> int:
        return len(self._runs)

    def read_cost(self, at: datetime) -> ReadCost:
        return ReadCost(at, model().seconds(self.shape, *HEADLINE), model().seconds(self._fresh(), *HEADLINE))

    def _fresh(self) -> Shape:
        return self.shape.fresh(self._beginning.partitions, self._target)

    @property
    def _partitions(self) -> int:
        return max(self._beginning.partitions or 1, 1)

    def arrive(self, arrival: Arrival, outcome: Outcome) -> None:
        added = arrival.added
        self.shape = _plus(self.shape, added)
        data_files = max(added.data_files, 0)
        if added.equality_delete_files > 0:
            self.pending += Volume(
                added.equality_delete_files, added.equality_deletes, max(added.delete_bytes, 0)
            )
            self.pending_since = self.pending_since or arrival.at
            self._came_since = self._came_since or arrival.at
        elif added.equality_delete_files < 0:
            left = max(self.pending.files + added.equality_delete_files, 0)
            share = left / self.pending.files if self.pending.files else 0.0
            self._set_pending(Volume(left, int(self.pending.rows * share), int(self.pending.bytes * share)))
        written = max(added.data_bytes, 0) + max(added.delete_bytes, 0)
        outcome.bytes_arrived += written
        came = Volume(data_files, max(added.rows, 0), written)
        self._new += came if data_files else Volume()
        self._unverified += came if data_files else Volume()
        if added.data_files >= 0:
            self._files.add(added.data_files, max(added.data_bytes, 0), max(added.rows, 0))
        else:
            self._files.put_together(-added.data_files, added.data_bytes)
        self._files.delete(added.positions)
        self._commit(arrival.at, arrival.commits, 2 if added.equality_delete_files > 0 else 1)

    def _commit(self, at: datetime, commits: int, manifests: int = 1) -> None:
        self._rows_deleted_since, self._most_deleted = rows_deleted_since(
            self._rows_deleted_since, self._most_deleted, self.shape.positions, at
        )
        self._snapshots.append((at, commits))
        self._snapshot_count += commits
        self._manifests += commits * manifests

    def _set_pending(self, left: Volume) -> None:
        self.pending = left
        self.pending_since = self.pending_since if left.files else None
        equality = {"equality_delete_files": left.files, "equality_deletes": left.rows}
        self.shape = replace(self.shape, **equality)

    def decide(self, at: datetime) -> datetime | None:
        """Queue what the policy asks for, start what may; when time alone may change that again."""
        state = self._state()
        weighed = weighing(state, self._policy)
        waiting = {one.kind for one in self._queue}
        busy = self.running.kind if self.running is not None else None
        for kind in self._kinds:
            if kind in waiting or kind is busy:
                continue
            decision = decide_kind(kind, state, self._policy, at, weighed, tells_cost=False)
            since = self._waits_since.pop(kind, at)
            if decision.code in WAITS:
                self._waits_since[kind] = since
            if decision.action is Action.TRIGGER:
                if kind is JobKind.REWRITE_DATA_FILES:
                    threshold = self._policy.rewrite_data_files.delete_ratio_threshold
                    self._delete_ratio = min(decision.delete_ratio or threshold, threshold)
                begins_at = at + timedelta(seconds=self._costs.wait_seconds)
                self._queue.append(Queued(kind, at, begins_at, state))
        state = replace(state, waits_since=dict(self._waits_since))
        moments = [moment for moment in deadlines(state, self._policy, weighed) if moment > at]
        if self.running is None and self._queue:
            first = self._queue[0]
            if first.begins_at <= at:
                self._queue.pop(0)
                self._begin(first, at)
            else:
                moments.append(first.begins_at)
        return min(moments, default=None)

    def _state(self) -> TableState:
        small, deleted = self._counted
        new_files = max(self.shape.data_files - self._reported.data_files, 0)
        new_bytes = max(self.shape.data_bytes - self._reported.data_bytes, 0)
        grown = max(new_files + self.shape.vectors - self._reported.vectors, 0)
        are_reported = self._reported.data_files > 0
        grown = grown_files(self._beginning, self._policy, grown, self._partitions, are_reported=are_reported)
        last = dict(self._last)
        rewriting = last.get(JobKind.REWRITE_DATA_FILES)
        may_take = self._idle_at != self._counted or may_take_some_again(self._beginning, self._policy, grown)
        if rewriting is not None and rewriting.idle and may_take:
            last = last | {JobKind.REWRITE_DATA_FILES: replace(rewriting, idle=0)}
        active = {one.kind for one in self._queue}
        if self.running is not None:
            active.add(self.running.kind)
        is_v2 = self._beginning.format_version == 2
        small_deletes = self.shape.vectors - self._partitions if is_v2 else 0
        enough = self._policy.rewrite_position_delete_files.min_input_files * self._partitions
        oldest = self._snapshots[0][0] if self._snapshot_count > 1 else None
        return TableState(
            paused=None,
            has_keys=self._beginning.has_keys,
            new=self._new,
            indexed_at=self._indexed_at,
            pending_delete_files=self.pending.files,
            convertible=self.pending,
            oldest_convertible_at=self.pending_since,
            staged=None,
            small_data_files=small,
            deleted_data_files=deleted,
            small_delete_files=self.shape.vectors if small_deletes >= enough else 0,
            small_manifests=self._manifests,
            past=Past(self._snapshot_count, None, oldest),
            sorted_runs=self.sorted_runs,
            dead_ratio=self._dead / self._entries if self._entries else 0.0,
            dead_bytes=int(self._dead * self._beginning.entry_bytes),
            unverified=self._unverified,
            has_index=self._entries > 0,
            enrolled_at=self._beginning.enrolled_at,
            active=frozenset(active),
            held=frozenset(),
            later=frozenset(),
            running=frozenset({self.running.kind} if self.running is not None else ()),
            spent=None,
            last=last,
            shape=self.shape,
            fresh=self._fresh(),
            grown_files=grown,
            new_small_files=small_files(new_files, new_bytes, self._target),
            has_sort_order=self._beginning.has_sort_order,
            rows_deleted_since=None if is_v2 else self._rows_deleted_since,
            waits_since=dict(self._waits_since),
        )

    def _touched(self, shape: Shape, deletes: float) -> float:
        """Data files that so many deletes hit, each as likely as any other."""
        files = shape.data_files
        if not files or not deletes:
            return 0.0
        return max(files * -math.expm1(-self._costs.hits * deletes / files), min(1.0, deletes))

    def _work(self, kind: JobKind) -> float:
        match kind:
            case JobKind.INDEX:
                return self._new.rows
            case JobKind.CONVERT:
                return self._touched(self.shape, self.pending.rows)
            case JobKind.REWRITE_DATA_FILES:
                return self._files.taken(self._delete_ratio).bytes
            case JobKind.REWRITE_POSITION_DELETE_FILES:
                return self.shape.vectors
            case JobKind.REWRITE_MANIFESTS:
                return self._manifests
            case JobKind.EXPIRE_SNAPSHOTS:
                return self._snapshot_count
            case JobKind.COMPACT:
                return sum(self._merged())
            case _:
                return self.shape.rows

    def _begin(self, queued: Queued, at: datetime) -> None:
        kind = queued.kind
        seconds = self._costs.jobs[kind].seconds.of(self._work(kind))
        if kind is JobKind.REWRITE_DATA_FILES and self.pending.files:
            touched = self._touched(self.shape, self.pending.rows)
            seconds += self._costs.jobs[JobKind.CONVERT].seconds.each * touched
        ends_at = at + timedelta(seconds=max(seconds, 0.001))
        takes_new_files = kind is JobKind.CONVERT and self._is_indexing_near(at)
        taken = self._files.taken(self._delete_ratio)
        self.running = _Running(
            kind, ends_at, seconds, self.pending, self.shape, self._new, taken, takes_new_files, queued
        )
        self._came_since = None

    def _is_indexing_near(self, at: datetime) -> bool:
        """As `service.jobs.assignments` tells a conversion."""
        index, since, last = self._policy.index, self._indexed_at, self._last.get(JobKind.INDEX)
        if not index.enabled or since is None or (last is not None and last.failed):
            return False
        return (at - since).total_seconds() >= index.age_seconds / 2

    def end(self, outcome: Outcome) -> None:
        """What the running job leaves: what came meanwhile stays as it came."""
        job = self.running
        assert job is not None
        self.running, kind, at = None, job.kind, job.ends_at
        before = self._last.get(kind) or LastJob(at, has_succeeded=False)
        self._ended += 1
        if self._costs.fails_each and self._ended % self._costs.fails_each == 0:
            self._last[kind] = replace(before, ended_at=at, failed=before.failed + 1, failed_at=at)
            return
        work, is_idle = self._effect(job, outcome)
        if kind is JobKind.INDEX or (self._entries and not self._new.files):
            self._indexed_at = at
        began_at = at - timedelta(seconds=job.seconds)
        share = work / max(job.shape.data_bytes, 1) if kind is JobKind.REWRITE_DATA_FILES else 0.0
        outcome.ran.append(Ran(kind, began_at, at, is_idle, job.pending.files, share, job.queued))
        totals = outcome.jobs[kind]
        totals.jobs += 1
        totals.seconds += job.seconds
        totals.bytes_written += self._costs.jobs[kind].bytes_written.of(work) if not is_idle else 0.0
        is_vain = is_idle or (kind is JobKind.REWRITE_DATA_FILES and not work)
        if is_vain:
            self._idle_at = self._counted
        self._last[kind] = LastJob(
            at,
            idle=before.idle + 1 if is_vain else 0,
            has_counted=True,
            committed_at=before.committed_at if is_idle else at,
            seconds=before.seconds if is_idle else job.seconds,
            delete_ratio=self._delete_ratio,
            works=before.works if is_vain else (*before.works[-2:], (work, job.seconds)),
        )

    def _effect(self, job: _Running, outcome: Outcome) -> tuple[float, bool]:
        """Change the table as a job does; what it handled, and whether it found nothing to do."""
        match job.kind:
            case JobKind.INDEX:
                self._index(job.new)
                self._count()
                return job.new.rows, not job.new.files
            case JobKind.CONVERT:
                written = self._convert(job, outcome)
                # It looks again after its commit; what that costs is in what conversions do.
                if job.takes_new_files and job.pending.files and self._new.rows <= _INDEXED_ROWS:
                    self._index(self._new)
                self._count()
                return written, not job.pending.files
            case JobKind.REWRITE_DATA_FILES:
                if job.pending.files:
                    self._convert(job, outcome, writes=not job.taken.numbers)
                rewritten = self._rewrite(job)
                self._count()
                return rewritten, not rewritten and not job.pending.files
            case JobKind.REWRITE_POSITION_DELETE_FILES:
                files, few = self.shape.vectors, min(self.shape.vectors, self._partitions)
                self.shape = replace(self.shape, vectors=few)
                self._commit(job.ends_at, 1)
                return files, files == few
            case JobKind.REWRITE_MANIFESTS:
                manifests, self._manifests = self._manifests, 2
                self._commit(job.ends_at, 1, 0)
                return manifests, manifests <= 2
            case JobKind.EXPIRE_SNAPSHOTS:
                return 0.0, not self._expire(job.ends_at)
            case JobKind.COMPACT:
                return self._compact()
            case _:
                self._unverified = Volume()
                return job.shape.rows, False

    def _index(self, new: Volume) -> None:
        if not new.files:
            return
        self._new = _less(self._new, new)
        self._entries += new.rows
        self._runs.append(float(new.rows))

    def _convert(self, job: _Running, outcome: Outcome, *, writes: bool = True) -> float:
        """Put vectors in the place of what was pending when a job began; how many it wrote.

        writes: whether they stay, and are not of files that the same job writes anew.
        """
        shape, resolved = self.shape, job.pending
        touched = self._touched(job.shape, resolved.rows)
        files = max(job.shape.data_files, 1)
        again = touched * min(job.shape.vectors / files, 1.0)
        if self._beginning.format_version == 2:
            again = 0.0
        if writes:
            outcome.delete_files_written += touched
            outcome.delete_files_rewritten += again
            self._commit(job.ends_at, 1)
        most = shape.data_files if self._beginning.format_version > 2 else shape.vectors + math.ceil(touched)
        deleted = min(round(self._costs.rows_deleted * resolved.rows), shape.rows - shape.positions)
        self._files.delete(deleted)
        self.shape = replace(
            shape,
            vectors=min(round(shape.vectors + touched - again), most),
            positions=shape.positions + deleted,
        )
        self._set_pending(_less(self.pending, resolved))
        if self.pending.files:
            self.pending_since = self._came_since or job.ends_at
        return touched

    def _rewrite(self, job: _Running) -> float:
        """Put data files together that were chosen when a job began; how many bytes it read of these."""
        if not job.taken.numbers:
            return 0.0
        shape, found = self.shape, self._files.rewrite(job.taken)
        left = max(shape.data_files - found.removed + found.added, found.added)
        of_files = min(found.removed / max(shape.data_files, 1), 1.0)
        deleted = min(round(found.deleted), shape.positions)
        self.shape = replace(
            shape,
            data_files=left,
            rows=max(shape.rows - deleted, 0),
            vectors=min(round(shape.vectors * (1 - of_files)), left),
            positions=shape.positions - deleted,
            data_bytes=max(int(shape.data_bytes - found.bytes_less), 0),
        )
        if job.taken.small:  # the newest are the smallest
            self._new = _less(self._new, job.new)
        if self._entries:
            self._dead += min(found.rows, self._entries - self._dead)
            self._entries += max(found.rows - deleted, 0.0)
            self._runs.append(max(found.rows - deleted, 0.0))
        self._commit(job.ends_at, 1)
        return job.taken.bytes

    def _count(self) -> None:
        """As a job reports at its end."""
        taken = self._files.taken(self._policy.rewrite_data_files.delete_ratio_threshold)
        self._counted = (taken.small, taken.deleted)
        self._reported = self.shape

    def _merged(self) -> list[float]:
        """Sorted runs that a compaction puts together: the smallest, or all where many entries are dead."""
        runs = sorted(self._runs)
        if self._dead >= _DEAD_SHARE * self._entries > 0:
            return runs
        if len(runs) <= _KEPT_RUNS and self._entries <= _FEW_ENTRIES:
            return runs if len(runs) > 1 or self._dead else []
        merged = runs[: max(len(runs) - _KEPT_RUNS + 1, 0)]
        while len(merged) < len(runs) and runs[len(merged)] <= sum(merged):
            merged = runs[: len(merged) + 1]
        return merged if len(merged) > 1 else []

    def _compact(self) -> tuple[float, bool]:
        merged = self._merged()
        if not merged:
            return 0.0, True
        together = sum(merged)
        if len(merged) == len(self._runs):
            together, self._dead = max(together - self._dead, 0.0), 0.0
            self._entries = together
        self._runs = [*sorted(self._runs)[len(merged) :], together]
        return together, False

    def _expire(self, at: datetime) -> int:
        limits = self._policy.expire_snapshots
        before, gone = at - timedelta(seconds=limits.older_than_seconds), 0
        while self._snapshots and self._snapshots[0][0] < before:
            moment, number = self._snapshots[0]
            may_go = min(number, self._snapshot_count - max(limits.retain_last, 1))
            if may_go <= 0:
                break
            self._snapshots.popleft()
            if may_go < number:
                self._snapshots.appendleft((moment, number - may_go))
            self._snapshot_count -= may_go
            gone += may_go
        return gone


def _spread(beginning: Beginning) -> list[tuple[datetime, int]]:
    """Snapshots of before, as if they had come evenly: (time, how many)."""
    oldest, number = beginning.oldest_snapshot_at or beginning.at, max(beginning.snapshots, 1)
    parts = min(number, 100)
    each, more = divmod(number, parts)
    step = (beginning.at - oldest) / parts
    return [(oldest + step * part, each + (part < more)) for part in range(parts)]


def _plus(shape: Shape, added: Shape) -> Shape:
    there, more = shape.as_json(), added.as_json()
    return Shape(**{name: max(there[name] + more[name], 0) for name in there})


def _less(volume: Volume, gone: Volume) -> Volume:
    return Volume(
        max(volume.files - gone.files, 0),
        max(volume.rows - gone.rows, 0),
        max(volume.bytes - gone.bytes, 0),
    )
