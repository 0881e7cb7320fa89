"""The one way to run the tasks of a stage: local threads or a Spark job.

A Spark job costs half a second before it does anything; a lookup of a few keys costs milliseconds. So a
stage whose planned rows are few runs its tasks in threads of the driver, with the same functions.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import astuple, dataclass
from functools import partial
from operator import add
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import RDD, StorageLevel
from pyspark.sql import SparkSession

from telemetry.traces import span
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
        context: Any = self.spark.sparkContext._jsc
        return not context.sc().isStopped()

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
        about: str = "",
        row_cost: float = 1.0,
    ) -> Iterator[R]:
        """planned_rows: the rows that all tasks together may read, which decides where they run.

        row_cost: how long a row takes, in comparison with one of a lookup.

        `on_progress` is told the number of tasks done, with the shares that running ones have told of
        themselves (`tell_share`), about once a second at least, and may raise
        JobCancelledError: no further task starts then. `on_work` is told before that what tasks came to.
        about: how Spark's jobs are described in its UI and event log.
        A task's own error is raised as it is locally, and as Spark wraps it otherwise.
        """
        if planned_rows * row_cost <= self.local_rows or not tasks:
            yield from self._run_locally(tasks, shared, on_progress, on_work)
        else:
            yield from self._run_on_spark(tasks, shared, on_progress, on_work, about)

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

    def _run_on_spark(
        self,
        tasks: Sequence[Task[S, R]],
        shared: S,
        on_progress: Callable[[float], None],
        on_work: OnWork,
        about: str,
    ) -> Iterator[R]:
        context = self.spark.sparkContext
        broadcast = context.broadcast(shared)
        results = context.parallelize(tasks, len(tasks)).map(lambda task: task.run(broadcast.value))
        try:
            yield from self._results(
                results, self.slot.share(RESULTS_AT_ONCE), lambda done, _: on_progress(done), on_work, about
            )
        finally:
            broadcast.destroy()  # with the file that Python keeps of it, which may have keys

    def shuffle(
        self,
        tasks: Sequence[Task[S, Iterator[tuple[int, V]]]],
        shared: S,
        reducer: Task[Iterable[V], R],
        partitions: int,
        *,
        on_progress: Callable[[int, int], None],
        on_work: OnWork = lambda _: None,
        about: str = "",
    ) -> Iterator[R]:
        """Each task yields (partition, value); `reducer` sees all values of a partition, in any order.

        Values and results lie on the disks of Spark's executors; the driver gets one result at a time.
        `on_progress` is told of Spark tasks: how many are done, and of how many.
        """
        context = self.spark.sparkContext
        broadcast, reduce = context.broadcast(shared), context.broadcast(reducer)
        results = (
            # Each partition runs its tasks one after another.
            context.parallelize(tasks, self.parallelism if self._is_limited else len(tasks))
            .flatMap(lambda task: task.run(broadcast.value))
            .groupByKey(partitions, lambda partition: partition)
            .map(lambda group: reduce.value.run(group[1]))
        )
        try:
            yield from self._results(results, 1, on_progress, on_work, about)
        finally:
            for used in (broadcast, reduce):
                used.destroy()

    def _results(
        self,
        results: RDD[R],
        at_once: int,
        on_progress: Callable[[int, int], None],
        on_work: OnWork,
        about: str,
    ) -> Iterator[R]:
        """Computes all, which then lie on the executors' disks, and hands over a few partitions at a time."""
        context = self.spark.sparkContext
        partitions = results.getNumPartitions()
        results.persist(StorageLevel.DISK_ONLY)
        earlier = latest = Work()
        told = 0, 0

        def tell(done: int, total: int) -> None:
            nonlocal told
            told = done, total
            on_progress(done, total)

        def on_work_of_wave(work: Work) -> None:
            nonlocal latest
            latest = earlier + work
            on_work(latest)

        try:
            for wave in _parts(partitions, self.parallelism if self._is_limited else partitions):
                self.watched(
                    partial(context.runJob, results, _count, wave),
                    on_progress=partial(_report, tell, wave[0]),
                    on_work=on_work_of_wave,
                    about=about,
                )
                earlier = latest
            for chosen in _parts(partitions, at_once):
                # Spark computes again what lay on an executor that is gone: that may take as long, and be
                # cancelled.
                fetch = partial(context.runJob, results, list, chosen)
                yield from self.watched(
                    fetch, on_progress=lambda *_: on_progress(*told), about=f"results of {about}"
                )
        finally:
            results.unpersist()

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


def _parts(partitions: int, size: int) -> Iterator[list[int]]:
    for start in range(0, partitions, size):
        yield list(range(start, min(start + size, partitions)))


def _count(results: Iterable[object]) -> list[int]:
    return [sum(1 for _ in results)]


def _report(on_progress: Callable[[int, int], None], before: int, done: int, total: int) -> None:
    on_progress(before + done, before + total)
