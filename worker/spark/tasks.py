"""The one way to run the tasks of a stage: local threads or a Spark job.

A Spark job costs half a second before it does anything; a lookup of a few keys costs milliseconds. So a
stage whose planned rows are few runs its tasks in threads of the driver, with the same functions.

What tasks on Spark take along to open files by may be good for some minutes only, and executors can't renew
it. So a task whose session is over, or is not good for long when its turn comes, is sent again, with another.
"""

from __future__ import annotations

import math
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import astuple, dataclass
from functools import cached_property, partial
from operator import add
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import RDD, Accumulator, Broadcast, SparkContext, StorageLevel
from pyspark.sql import SparkSession

from telemetry.traces import span
from worker.io.storage import is_of_ended_session, sessions_sent
from worker.process.errors import StorageError
from worker.process.slots import ALONE, Slot, Threads

S = TypeVar("S", contravariant=True)
R = TypeVar("R", covariant=True)
V = TypeVar("V")
A = TypeVar("A")
LOCAL_ROWS = 50_000_000  # planned rows up to which threads of the driver are faster than a Spark job

DRAIN_SECONDS = 5.0  # for tasks that run when the process is asked to stop

COUNTING_MILLISECONDS = 2_000  # that a stage which has ended waits for Spark's figures of it at most

RESULTS_AT_ONCE = 4  # that the driver holds of a stage that runs on Spark


class Task(Protocol[S, R]):
    """A picklable part of a stage; `shared` is the same for all of them and is broadcast once."""

    def run(self, shared: S, /) -> R: ...


_told: ContextVar[Callable[[float], None] | None] = ContextVar("_told", default=None)


def tell_share(share: float) -> None:
    """From within a task: how much of itself it has done, 0 to 1. On Spark, only whole tasks count."""
    if (tell := _told.get()) is not None:
        tell(share)


@dataclass(frozen=True, slots=True)
class Work:
    """What tasks came to, so far: in threads of the driver, or on Spark's executors, by Spark's own count.

    failed_tasks: each of which Spark runs again, or gives up. task_seconds: of all tasks together.
    gc_seconds: of executors' JVMs meanwhile. spilled_bytes, shuffled_bytes: written to their disks.
    """

    tasks_in_driver: int = 0
    tasks_on_spark: int = 0
    failed_tasks: int = 0
    task_seconds: float = 0.0
    gc_seconds: float = 0.0
    spilled_bytes: int = 0
    shuffled_bytes: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(*map(add, astuple(self), astuple(other)))


OnWork = Callable[[Work], None]


class _Total:
    """Tells what several jobs of Spark came to together, one after the other."""

    def __init__(self, on_work: OnWork) -> None:
        self._on_work, self._work = on_work, Work()

    def of_next(self) -> OnWork:
        before = self._work

        def count(work: Work) -> None:
            self._work = before + work
            self._on_work(self._work)

        return count


class SessionTooShortError(StorageError):
    title = "The catalog's credentials end sooner than a task does"
    remedy = (
        "Let the catalog vend credentials that are good for longer, or let the executors ask the store with"
        " an identity of their own."
    )


@dataclass(frozen=True, slots=True)
class _Late:
    """What a task came to that has to be sent again. error: with which its session ended it, if it began."""

    number: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Sent:
    """How tasks run on Spark: as long as the sessions are good that were sent along. Pickles.

    start_by, end: in seconds since the epoch. late: how many tasks were; None where no session ends.
    """

    start_by: float
    end: float
    late: Accumulator[int] | None

    def run(self, number: int, work: Callable[[], R]) -> R | _Late:
        if time.time() >= self.start_by:
            return self._late(number)
        try:
            return work()
        except Exception as error:
            return self._late(number, self._ended_by(error))

    def each(self, number: int, work: Callable[[], Iterator[R]]) -> Iterator[R | _Late]:
        """What a task yields. If it is late, that comes last, and what came before it does not count."""
        if time.time() >= self.start_by:
            yield self._late(number)
            return
        try:
            yield from work()
        except Exception as error:
            yield self._late(number, self._ended_by(error))

    def _ended_by(self, error: Exception) -> str:
        if self.late is None or not is_of_ended_session(error, self.end):
            raise error
        return " ".join(f"{type(error).__name__}: {error}".split())[:500]

    def in_time(self, done: int) -> int:
        """Of tasks that Spark has done."""
        return done if self.late is None else max(0, done - self.late.value)

    def _late(self, number: int, error: str | None = None) -> _Late:
        if self.late is not None:
            self.late.add(1)
        return _Late(number, error)


class _Rounds:
    """Which tasks, or partitions, of a stage wait to be sent to Spark, again for those that were late.

    on_again: told how many of those had begun.
    """

    def __init__(self, size: int, on_again: Callable[[int], None]) -> None:
        self.waiting = list(range(size))
        self._on_again = on_again
        self._idle = 0  # rounds in which nothing was done, one after another

    def sent(self, context: SparkContext, ends: Sequence[float]) -> _Sent:
        """ends: of the sessions that were sent along, in seconds since the epoch."""
        if not ends:
            return _Sent(math.inf, math.inf, None)
        now, end = time.time(), min(ends)
        # Executors that only came meanwhile, or whose clocks are ahead, must not be late for ever.
        start_by = math.inf if self._idle or end <= now else (now + end) / 2
        return _Sent(start_by, end, context.accumulator(0))

    def ended(self, late: Sequence[_Late]) -> None:
        """Raises SessionTooShortError where another round would come to nothing either."""
        self._idle = self._idle + 1 if len(late) == len(self.waiting) else 0
        self.waiting = [one.number for one in late]
        if errors := [one.error for one in late if one.error]:
            if self._idle > 1:
                raise SessionTooShortError(errors[0])
            self._on_again(len(errors))


@dataclass(frozen=True, slots=True)
class _InFull:
    """What the partitions of a round yielded, without those that were late. Pickles."""

    late: frozenset[int]

    def __call__(self, partition: int, yielded: Iterable[V | _Late]) -> Iterator[V]:
        if partition in self.late:
            return
        for one in yielded:
            if isinstance(one, _Late):  # it was in time at first, and is computed again for another executor
                raise OSError(f"an executor is gone, and a session of the catalog has ended: {one.error}")
            yield one


def _processors(spark: SparkSession) -> int:
    """CPUs that this process may use; Java knows the limit of a container, Python before 3.13 does not."""
    jvm: Any = spark.sparkContext._jvm
    return int(jvm.java.lang.Runtime.getRuntime().availableProcessors())


class TaskRunner:
    """Runs the tasks of a stage and yields each result as it comes, in any order."""

    def __init__(
        self,
        spark: SparkSession,
        local_rows: int = LOCAL_ROWS,
        parallelism: int | None = None,
        *,
        is_limited: bool = False,
        slot: Slot = ALONE,
        threads: int | None = None,
    ) -> None:
        """is_limited: no more tasks than `parallelism` run at a time on Spark either.

        threads: in which tasks run here; the slot's share by default.
        """
        self.spark = spark
        self.slot = slot
        self.local_rows = local_rows
        self.parallelism = parallelism or max(2, _processors(spark), spark.sparkContext.defaultParallelism)
        self._is_limited = is_limited
        self._threads = threads or slot.share(self.parallelism)

    def smaller(self, fraction: float) -> TaskRunner:
        """With fewer tasks at a time, which share the memory of a machine."""
        return self._with(max(1, int(self.parallelism * fraction)), max(1, int(self._threads * fraction)))

    def limited(self, tasks: int) -> TaskRunner:
        """With at most so many tasks at a time, here and on Spark."""
        return self._with(min(self.parallelism, tasks), min(self._threads, tasks))

    def _with(self, parallelism: int, threads: int) -> TaskRunner:
        return TaskRunner(
            self.spark, self.local_rows, parallelism, is_limited=True, slot=self.slot, threads=threads
        )

    @property
    def is_alive(self) -> bool:
        """Whether Spark's JVM still runs; nothing can be done without it, and no other can follow here."""
        return self._jvm_process.poll() is None

    @property
    def is_usable(self) -> bool:
        """Whether Spark works; waits for its JVM to answer, for as long as a JvmWatch lets that be silent."""
        # Whoever calls a JVM that ends meanwhile is told.
        with suppress(Exception):
            return self.is_alive and self.ping()
        return False

    def ping(self) -> bool:
        """Whether Spark works, once its JVM has answered; raises when that has ended.

        Spark ends in a JVM that goes on when the cluster's master gives the application up, or one of its
        own threads runs out of memory.
        """
        return not self._core.isStopped()

    @cached_property
    def _core(self) -> Any:
        """Spark's own context, of which nothing but the JVM has another."""
        context: Any = self.spark.sparkContext._jsc
        return context.sc()

    def kill_jvm(self) -> None:
        """Ends Spark's JVM at once: calls that wait for it raise."""
        self._jvm_process.kill()
        self._jvm_process.wait()

    @property
    def _jvm_process(self) -> subprocess.Popen[bytes]:
        gateway: Any = self.spark.sparkContext._gateway
        process: subprocess.Popen[bytes] = gateway.proc
        return process

    def run(
        self,
        tasks: Sequence[Task[S, R]],
        shared: S,
        *,
        planned_rows: int,
        on_progress: Callable[[float], None],
        on_work: OnWork = lambda _: None,
        on_again: Callable[[int], None] = lambda _: None,
        about: str = "",
        row_cost: float = 1.0,
    ) -> Iterator[R]:
        """planned_rows: the rows that all tasks together may read, which decides where they run.

        row_cost: how long a row takes, in comparison with one whose keys are read and hashed.

        `on_progress` is told the number of tasks done, with the shares that running ones have told of
        themselves (`tell_share`), about once a second at least, and may raise
        JobCancelledError: no further task starts then. `on_work` is told before that what tasks came to, and
        `on_again` how many are sent again since their session ended while they ran.
        about: how Spark's jobs are described in its UI and event log.
        A task's own error is raised as it is locally, and as Spark wraps it otherwise.
        """
        if planned_rows * row_cost <= self.local_rows or not tasks:
            yield from self._run_locally(tasks, shared, on_progress, on_work)
        else:
            rounds, total = _Rounds(len(tasks), on_again), _Total(on_work)
            while rounds.waiting:
                yield from self._round(rounds, tasks, shared, on_progress, total, about)

    def _run_locally(
        self, tasks: Sequence[Task[S, R]], shared: S, on_progress: Callable[[float], None], on_work: OnWork
    ) -> Iterator[R]:
        seconds: list[float] = []
        # A task that has ended, or the share that one has done of itself.
        news: SimpleQueue[Future[R] | tuple[int, float]] = SimpleQueue()

        def timed(number: int, task: Task[S, R]) -> R:
            telling = _told.set(lambda share: news.put((number, share)))
            started = time.monotonic()
            try:
                return task.run(shared)
            finally:
                seconds.append(time.monotonic() - started)
                _told.reset(telling)

        threads = Threads(self._threads, "stage")
        pending: set[Future[R]] = set()
        shares: dict[int, float] = {}
        try:
            numbers = {threads.submit(timed, number, task): number for number, task in enumerate(tasks)}
            pending = set(numbers)
            for future in numbers:
                future.add_done_callback(news.put)
            while pending:
                ended: Future[R] | None = None
                with suppress(Empty):
                    match news.get(timeout=1):
                        case (number, share):
                            shares[number] = share
                        case Future() as ended:
                            pending.remove(ended)
                            shares[numbers[ended]] = 1.0
                failed = ended is not None and ended.exception() is not None
                done = len(tasks) - len(pending) - failed
                on_work(Work(done, failed_tasks=int(failed), task_seconds=sum(seconds)))
                on_progress(sum(shares.values()))
                if ended is not None:
                    yield ended.result()
        except (KeyboardInterrupt, GeneratorExit):
            # Whoever asked this process to stop will not wait for ever, wherever that found it; what tasks
            # still write is nobody's.
            threads.shutdown(wait=False, cancel_futures=True)
            wait(pending, timeout=DRAIN_SECONDS)
            raise
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
        threads.shutdown()

    def _round(
        self,
        rounds: _Rounds,
        tasks: Sequence[Task[S, R]],
        shared: S,
        on_progress: Callable[[float], None],
        total: _Total,
        about: str,
    ) -> Iterator[R]:
        """Runs on Spark what waits; what is late waits again."""
        context = self.spark.sparkContext
        before = len(tasks) - len(rounds.waiting)
        with sessions_sent() as ends:
            broadcast, numbered = context.broadcast(shared), self._numbered(tasks, rounds.waiting)
        sent = rounds.sent(context, ends)
        results = numbered.map(lambda one: sent.run(one[0], lambda: one[1].run(broadcast.value)))
        try:
            yield from self._in_time(
                rounds,
                self._results(
                    results,
                    range(len(rounds.waiting)),
                    self.slot.share(RESULTS_AT_ONCE),
                    lambda done, _: on_progress(before + sent.in_time(done)),
                    total,
                    about,
                ),
            )
        finally:
            broadcast.destroy()  # with the file that Python keeps of it, which may have keys

    def _in_time(self, rounds: _Rounds, results: Iterator[R | _Late]) -> Iterator[R]:
        """Those that count; what is late waits again."""
        late: list[_Late] = []
        for result in results:
            if isinstance(result, _Late):
                late.append(result)
            else:
                yield result
        rounds.ended(late)

    def _numbered(self, tasks: Sequence[A], numbers: Sequence[int]) -> RDD[tuple[int, A]]:
        """A partition for each."""
        return self.spark.sparkContext.parallelize([(n, tasks[n]) for n in numbers], len(numbers))

    def shuffle(
        self,
        tasks: Sequence[Task[S, Iterator[tuple[int, V]]]],
        shared: S,
        reducer: Task[Iterable[V], R],
        partitions: int,
        *,
        on_progress: Callable[[int, int], None],
        on_work: OnWork = lambda _: None,
        on_again: Callable[[int], None] = lambda _: None,
        about: str = "",
    ) -> Iterator[R]:
        """Each task yields (partition, value); `reducer` sees all values of a partition, in any order.

        Values and results lie on the disks of Spark's executors; the driver gets one result at a time.
        `on_progress` is told of Spark tasks: how many are done, and of how many. on_again: see `run`.
        """
        context = self.spark.sparkContext
        broadcasts: list[Broadcast[Any]] = []
        kept: list[RDD[Any]] = []
        yielded: list[RDD[tuple[int, V]]] = []
        rounds, total = _Rounds(len(tasks), on_again), _Total(on_work)
        try:
            while rounds.waiting:
                with sessions_sent() as ends:
                    broadcasts.append(context.broadcast(shared))
                    numbered = self._numbered(tasks, rounds.waiting)
                sent = rounds.sent(context, ends)
                of_round: RDD[Any] = numbered.flatMap(partial(_run_each, sent, broadcasts[-1]))
                if not ends:
                    # Each partition runs its tasks one after another.
                    yielded.append(of_round.coalesce(self.parallelism) if self._is_limited else of_round)
                    break
                # Before the keys of what comes next are sent: these tasks may take as long as a session.
                kept.append(of_round.persist(StorageLevel.DISK_ONLY))
                late = self._computed(
                    of_round, range(len(rounds.waiting)), _late_ones, on_progress, total, about
                )
                numbers = {one.number for one in late}
                missing = frozenset(i for i, number in enumerate(rounds.waiting) if number in numbers)
                yielded.append(of_round.mapPartitionsWithIndex(_InFull(missing)))
                rounds.ended(late)
            grouped = context.union(yielded).groupByKey(partitions, lambda partition: partition)
            rounds = _Rounds(partitions, on_again)
            while rounds.waiting:
                with sessions_sent() as ends:
                    broadcasts.append(reduce := context.broadcast(reducer))
                results = grouped.map(partial(_run_one, rounds.sent(context, ends), reduce))
                yield from self._in_time(
                    rounds, self._results(results, rounds.waiting, 1, on_progress, total, about)
                )
        finally:
            for rdd in kept:
                rdd.unpersist()
            for broadcast in broadcasts:
                broadcast.destroy()

    def _results(
        self,
        results: RDD[R],
        partitions: Sequence[int],
        at_once: int,
        on_progress: Callable[[int, int], None],
        total: _Total,
        about: str,
    ) -> Iterator[R]:
        """Computes all, which then lie on the executors' disks, and hands over a few partitions at a time."""
        context = self.spark.sparkContext
        results.persist(StorageLevel.DISK_ONLY)
        told = 0, 0

        def tell(done: int, of: int) -> None:
            nonlocal told
            told = done, of
            on_progress(done, of)

        try:
            self._computed(results, partitions, _count, tell, total, about)
            for chosen in _parts(partitions, at_once):
                # Spark computes again what lay on an executor that is gone: that may take as long, and be
                # cancelled.
                fetch = partial(context.runJob, results, list, chosen)
                yield from self.watched(
                    fetch, on_progress=lambda *_: on_progress(*told), about=f"results of {about}"
                )
        finally:
            results.unpersist()

    def _computed(
        self,
        computed: RDD[V],
        partitions: Sequence[int],
        look: Callable[[Iterable[V]], list[A]],
        on_progress: Callable[[int, int], None],
        total: _Total,
        about: str,
    ) -> list[A]:
        """What `look` finds in each partition, as many at a time as may be."""
        found: list[A] = []
        before = 0
        for wave in _parts(partitions, self.parallelism if self._is_limited else len(partitions)):
            found += self.watched(
                partial(self.spark.sparkContext.runJob, computed, look, wave),
                on_progress=partial(_report, on_progress, before),
                on_work=total.of_next(),
                about=about,
            )
            before += len(wave)
        return found

    def watched(
        self,
        action: Callable[[], A],
        *,
        on_progress: Callable[[int, int], None],
        on_work: OnWork | None = None,
        about: str = "",
    ) -> A:
        """Runs an action of Spark; cancels it when `on_progress` (Spark tasks done, and of all) raises.

        about: see `run`. The span of the trace names the application and the job group, by which Spark's
        UI, its event log and its listeners know the jobs. An action of Iceberg's has groups of its own, so
        jobs are found by a tag.
        """
        context = self.spark.sparkContext
        group = f"icestream-{threading.get_ident()}-{time.monotonic_ns()}"
        outcome: list[A] = []
        failure: list[BaseException] = []

        def act() -> None:
            context.setJobGroup(group, f"icestream {about}".rstrip(), interruptOnCancel=True)
            context.addJobTag(group)
            if self.slot.pool is not None:
                context.setLocalProperty("spark.scheduler.pool", self.slot.pool)
            try:
                outcome.append(action())
            except BaseException as error:  # handed to the caller's thread
                failure.append(error)

        with span("spark", application=context.applicationId, job_group=group):
            thread = threading.Thread(target=copy_context().run, args=[act], name="spark-stage", daemon=True)
            thread.start()
            try:
                while thread.is_alive():
                    thread.join(timeout=0.5)
                    # Nobody waits for the last figures of what is not counted, such as each fetch of results.
                    waits_for_last = on_work is not None and not thread.is_alive()
                    work, total = self._work_of(group, waits_for_last=waits_for_last)
                    if on_work is not None:
                        on_work(work)
                    on_progress(work.tasks_on_spark, total)
            except BaseException:
                context.cancelJobsWithTag(group)
                # What its tasks still write would come after their files were removed.
                thread.join(DRAIN_SECONDS)
                raise
            if failure:
                raise failure[0]
        return outcome[0]

    def _work_of(self, tag: str, *, waits_for_last: bool) -> tuple[Work, int]:
        """What the Spark jobs with a tag came to, all attempts at their stages, and of how many tasks."""
        context: Any = self.spark.sparkContext
        core, tracker, jvm = context._jsc.sc(), context.statusTracker(), context._jvm
        if waits_for_last:
            # Spark counts in a thread of its own. What it has not counted by then is not told.
            with suppress(Py4JJavaError):
                core.listenerBus().waitUntilEmpty(COUNTING_MILLISECONDS)
        work, total = Work(), 0
        stages = [
            stage
            for job_id in core.statusTracker().getJobIdsForTag(tag)
            if (job := tracker.getJobInfo(job_id)) is not None
            for stage in job.stageIds
        ]
        store, nothing = core.statusStore(), context._gateway.new_array(jvm.double, 0)
        for stage in sorted(set(stages)):
            attempts = store.stageData(stage, False, jvm.java.util.ArrayList(), False, nothing)
            for number in range(attempts.size()):
                data = attempts.apply(number)
                work += Work(
                    tasks_on_spark=data.numCompleteTasks(),
                    failed_tasks=data.numFailedTasks(),
                    task_seconds=data.executorRunTime() / 1000,
                    gc_seconds=data.jvmGcTime() / 1000,
                    spilled_bytes=data.diskBytesSpilled(),
                    shuffled_bytes=data.shuffleWriteBytes(),
                )
                total += data.numTasks()
        return work, total


def _parts(partitions: Sequence[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(partitions), size):
        yield list(partitions[start : start + size])


def _count(results: Iterable[object]) -> list[int]:
    return [sum(1 for _ in results)]


def _late_ones(yielded: Iterable[object]) -> list[_Late]:
    return [one for one in yielded if isinstance(one, _Late)]


def _run_one(sent: _Sent, shared: Broadcast[Task[V, R]], group: tuple[int, V]) -> R | _Late:
    """What a reducer makes of a partition's values."""
    number, values = group
    return sent.run(number, lambda: shared.value.run(values))


def _run_each(
    sent: _Sent, shared: Broadcast[S], numbered: tuple[int, Task[S, Iterator[R]]]
) -> Iterator[R | _Late]:
    number, task = numbered
    return sent.each(number, lambda: task.run(shared.value))


def _report(on_progress: Callable[[int, int], None], before: int, done: int, total: int) -> None:
    on_progress(before + done, before + total)
