"""An attempt at a job: its assignment, how it runs tasks, where it tells what it does, and what it took."""

import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from telemetry.traces import span
from worker.contract.control_plane import AnnouncedPlan, Assignment
from worker.index.key_set_index import IndexState
from worker.spark.tasks import TaskRunner, Work

A = TypeVar("A")
SMALLEST_FRACTION = 1 / 64
_NAMES = tuple(one.name for one in fields(Work))


class Reporter(Protocol):
    """Where a job tells what it does. Each call may raise JobCancelledError or StaleAttemptError."""

    @property
    def seconds_ahead(self) -> float:
        """Of this machine's clock, at least, before the control plane's when it answered last."""

    def progress(self, stage: str, done: int, total: int, unit: str, message: str | None = None) -> None: ...

    def decide(self, sentence: str) -> None:
        """Records a decision for the job's history."""

    def confirm_lease(self, *, anew: bool = False) -> None:
        """Asks the control plane whether this attempt still holds the job; raises if not.

        anew: even if it has just said so, as before deletions that no commit would stop.
        """

    def announce(self, plan: AnnouncedPlan) -> None:
        """Confirms the lease, and tells which delete files are about to be written or committed."""

    def expect_row_addresses(self, rows: int) -> None:
        """Has so many granted along with the next call that renews the lease: one call less."""

    def grant_row_addresses(self, rows: int, at_least: int) -> int:
        """The first of `rows` addresses, at `at_least` or above, that no other attempt ever gets."""


@dataclass(slots=True)
class Usage:
    """What an attempt took so far, however it ends.

    stages: each with its name, seconds, planned rows, and what its tasks came to (`Work`).
    rows: planned rows that its tasks went through. bytes: read of the index, of keys in data files and of
    equality deletes that are converted, and written as index and delete files.
    """

    stages: list[dict[str, Any]] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def stage(self, name: str) -> dict[str, Any]:
        for known in self.stages:
            if known["name"] == name:
                return known
        self.stages.append({"name": name, "seconds": 0.0, "rows": 0, **asdict(Work())})
        return self.stages[-1]


@dataclass(slots=True)
class Job:
    """One attempt at a job, with all that its stages need.

    redacted: makes of a sentence what may be kept.
    key_sets: equality field ids of deletes that the job, or an earlier attempt, has met: once they are
    converted, nothing in the table names their keys any more.
    indexes: by their names, as the attempt has opened them or left them since. It holds none: who keeps
    indexes for the next job has a bound for them.
    """

    assignment: Assignment
    runner: TaskRunner
    reporter: Reporter
    decisions: list[str] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    redacted: Callable[[str], str] = str
    key_sets: set[tuple[int, ...]] = field(default_factory=set)
    indexes: WeakValueDictionary[Hashable, IndexState] = field(default_factory=WeakValueDictionary)

    @property
    def stages(self) -> list[dict[str, Any]]:
        return self.usage.stages

    @property
    def memory_fraction(self) -> float:
        """Of what a job usually holds in memory at once, what this attempt does: a power of 1/2.

        As the policy says, half of it for each earlier attempt that may have died of too much, and shared by
        the jobs of the process.
        """
        return self.own_memory_fraction * self.runner.slot.memory_fraction

    @property
    def own_memory_fraction(self) -> float:
        """The same, were the job alone in its process."""
        suspects = sum(one.may_lack_memory for one in self.assignment.previous_attempts)
        return max(self.memory_fraction_of_policy * 0.5**suspects, SMALLEST_FRACTION)

    @property
    def memory_fraction_of_policy(self) -> float:
        return math.pow(2, math.floor(math.log2(self.assignment.policy.resources.memory_fraction)))

    @property
    def commit_fraction(self) -> float:
        """Of what is usually committed at once: a commit lies in the JVM's heap, and a full one says so."""
        full = sum(one.told_lack_of_memory for one in self.assignment.previous_attempts)
        return max(0.5**full, SMALLEST_FRACTION)

    def decide(self, sentence: str) -> None:
        sentence = self.redacted(sentence)
        self.decisions.append(sentence)
        self.reporter.decide(sentence)

    def tell_of_change(self, error: Exception) -> None:
        """Others have committed since a look; the same is told once."""
        told = f"The table changed while this job ran, so it looks at what is new: {error}."
        if told not in self.decisions:
            self.decide(told)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.reporter.progress(name, 0, 0, "")
        started = time.monotonic()
        try:
            with span(name):
                yield
        finally:
            known = self.usage.stage(name)
            known["seconds"] = round(known["seconds"] + time.monotonic() - started, 3)

    def run_tasks(
        self, stage: str, tasks: Sequence[Any], shared: Any, planned_rows: int, row_cost: float = 1.0
    ) -> list[Any]:
        return list(self.each_task(stage, tasks, shared, planned_rows, row_cost))

    def each_task(
        self, stage: str, tasks: Sequence[Any], shared: Any, planned_rows: int, row_cost: float = 1.0
    ) -> Iterator[Any]:
        """Results as they come. planned_rows: what all tasks together may read. row_cost: see
        `TaskRunner.run`.

        Progress is told in rows, as each task comes to its share of them.
        """

        counted = 0
        counter = _WorkCounter(self.usage, stage)

        def on_progress(done: float) -> None:
            nonlocal counted
            rows = int(planned_rows * min(done / len(tasks), 1.0))
            self.usage.rows += rows - counted
            self.usage.stage(stage)["rows"] += rows - counted
            counted = rows
            self.reporter.progress(stage, rows, planned_rows, "rows", counter.words)

        yield from self.runner.run(
            tasks,
            shared,
            planned_rows=planned_rows,
            row_cost=row_cost,
            on_progress=on_progress,
            on_work=counter.count,
            on_again=partial(self._tell_again, stage),
            about=self._about(stage),
        )

    def shuffle(
        self, stage: str, tasks: Sequence[Any], shared: Any, reducer: Any, partitions: int
    ) -> Iterator[Any]:
        """See `TaskRunner.shuffle`."""

        counter = _WorkCounter(self.usage, stage)

        def on_progress(done: int, total: int) -> None:
            self.reporter.progress(stage, done, total, "tasks", counter.words)

        yield from self.runner.shuffle(
            tasks,
            shared,
            reducer,
            partitions,
            on_progress=on_progress,
            on_work=counter.count,
            on_again=partial(self._tell_again, stage),
            about=self._about(stage),
        )

    def run_action(self, stage: str, action: Callable[[], A]) -> A:
        """Runs an action of Iceberg's on Spark, which is cancelled with the job."""
        counter = _WorkCounter(self.usage, stage)

        def on_progress(done: int, total: int) -> None:
            self.reporter.progress(stage, done, total, "tasks", counter.words)

        with self.stage(stage):
            return self.runner.watched(
                action, on_progress=on_progress, on_work=counter.count, about=self._about(stage)
            )

    def _tell_again(self, stage: str, tasks: int) -> None:
        self.decide(
            f"{tasks} tasks of {stage} run again: the credentials that the catalog had vended ended while"
            " they ran, and executors can't renew them."
        )

    def _about(self, stage: str) -> str:
        return f"{stage} of job {self.assignment.job.id}, attempt {self.assignment.attempt}"


class _WorkCounter:
    """Adds what one call's tasks come to, told again and again, to a stage of the usage."""

    def __init__(self, usage: Usage, stage: str) -> None:
        self._usage = usage
        self._stage = stage
        self._work = Work()

    def count(self, work: Work) -> None:
        stage, before = self._usage.stage(self._stage), self._work
        for name in _NAMES:  # very often: `asdict` takes longer than many a task
            value = getattr(work, name)
            grown = stage[name] + value - getattr(before, name)
            stage[name] = round(grown, 3) if isinstance(value, float) else grown
        self._work = work

    @property
    def words(self) -> str | None:
        """What Spark does, for people; None while nothing runs there."""
        work = self._work
        if not work.tasks_on_spark and not work.failed_tasks:
            return None
        return (
            f"On Spark: {work.tasks_on_spark:,} tasks done, {work.failed_tasks:,} failed,"
            f" {work.spilled_bytes:,} bytes spilled"
        )
