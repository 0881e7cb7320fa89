"""The Spark session, and the one way to run the tasks of a stage: local threads or a Spark job.

A Spark job costs half a second before it does anything; a lookup of a few keys costs milliseconds. So a
stage whose planned rows are few runs its tasks in threads of the driver, with the same functions.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import astuple, dataclass
from functools import partial
from operator import add
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryFile
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JJavaError
from pyspark import RDD, StorageLevel
from pyspark.sql import SparkSession

from telemetry.traces import span
from worker.process.slots import ALONE, Slot, Threads
from worker.process.threads import outliving_shortage

log = logging.getLogger("icestream.worker")

ICEBERG_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
AWS_BUNDLE = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"  # S3FileIO and the Glue catalog
JDBC_DRIVERS = ("org.xerial:sqlite-jdbc:3.50.3.0", "org.postgresql:postgresql:42.7.8")
_JARS = (ICEBERG_RUNTIME, AWS_BUNDLE, *JDBC_DRIVERS)
STORE_JARS = {
    # Iceberg's runtime has GCSFileIO and ADLSFileIO, and not what these are made on.
    "gcs": ("org.apache.iceberg:iceberg-gcp-bundle:1.11.0",),
    "azure": (
        "com.azure:azure-storage-file-datalake:12.25.0",
        "com.azure:azure-identity:1.18.1",
        "com.azure:azure-core-http-jdk-httpclient:1.1.0",
    ),
}
"""What `ICESTREAM_STORES` names, beyond S3."""
# What the above bring along: Spark has it, the JDK's client replaces Azure's, or nothing needs it.
_EXCLUDED = (
    "com.azure:azure-core-http-netty",
    "com.fasterxml.jackson.*:*",
    "net.java.dev.jna:*",
    "org.checkerframework:*",
    "org.slf4j:*",
)
_RESOLVED = "resolved-{}.json"
LOCAL_ROWS = 50_000_000  # planned rows up to which threads of the driver are faster than a Spark job

DRAIN_SECONDS = 5.0  # for tasks that run when the process is asked to stop
JVM_SILENCE_SECONDS = 60.0  # a collection of garbage takes seconds at most

COUNTING_MILLISECONDS = 2_000  # that a stage which has ended waits for Spark's figures of it at most

_RESULTS_AT_ONCE = 4  # that the driver holds of a stage that runs on Spark

S = TypeVar("S", contravariant=True)
R = TypeVar("R", covariant=True)
V = TypeVar("V")
A = TypeVar("A")


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


class JobCancelledError(Exception):
    """The job was cancelled, or its attempt is no longer the job's; stop and leave nothing behind."""


class JobTimedOutError(JobCancelledError):
    """The attempt has run for as long as its policy lets it."""


def create_spark(master: str, app_name: str = "icestream", *, structured_logs: bool = False) -> SparkSession:
    """The worker's Spark session, with Iceberg's runtime and JDBC drivers resolved by Maven coordinate.

    structured_logs: Spark logs in JSON, too, in its own words (`ts`, `msg`).
    Raises the JVM's error when Java or a JAR can't be had.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.Builder().master(master).appName(app_name)
    for key, value in spark_settings(os.environ, structured_logs=structured_logs).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    _keep_packages(spark.sparkContext._jvm)
    wanted = wanted_jars(os.environ)
    if not cached_jars(jars_folder(os.environ), wanted):
        remember_jars(jars_folder(os.environ), wanted, (spark.conf.get("spark.jars") or "").split(","))
    return spark


def _keep_packages(jvm: Any) -> None:
    """Spare Java a search through all JARs for each part of a class's name whenever Python names the class.

    Most of it for `TypeUtil`: PySpark asks it a dozen times of what class an exception is, also of the one
    that ends each iteration. A dry run on a small table took 206 ms so, and takes 116 ms (medians of ten).
    """
    for name in ("java.util", "org.apache.iceberg", "org.apache.spark", "py4j.reflection.TypeUtil"):
        inner = jvm
        for part in name.split("."):
            setattr(inner, part, getattr(inner, part))
            inner = getattr(inner, part)


def is_local(master: str) -> bool:
    """Whether tasks run on this machine and nobody else has to reach the driver."""
    return master == "local" or master.startswith("local[")


def spark_settings(environment: Mapping[str, str], *, structured_logs: bool = False) -> dict[str, str]:
    """What the worker sets itself, on any master, before what spark-defaults.conf says."""
    jars = jars_folder(environment)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": environment.get("ICESTREAM_DRIVER_MEMORY", "2g"),
        "spark.jars.ivy": str(jars),
        "spark.scheduler.mode": "FAIR",
        "spark.log.structuredLogging.enabled": str(structured_logs).lower(),
        "spark.speculation": "false",  # two runs of a task would write the same files at once
        "spark.sql.session.timeZone": "UTC",
        "spark.submit.deployMode": "client",
    }
    wanted = wanted_jars(environment)
    cached = cached_jars(jars, wanted)
    if cached:
        settings["spark.jars"] = ",".join(str(jar) for jar in cached)
    else:
        settings["spark.jars.packages"] = ",".join(wanted)
        settings["spark.jars.excludes"] = ",".join(_EXCLUDED)
    return settings


def wanted_jars(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Their coordinates. Raises ValueError for a store that is none."""
    stores = [name.strip() for name in environment.get("ICESTREAM_STORES", "").split(",") if name.strip()]
    for name in stores:
        if name not in STORE_JARS:
            known = ", ".join(STORE_JARS)
            raise ValueError(f"ICESTREAM_STORES names {name!r}; beyond S3 there are: {known}.")
    return (*_JARS, *(jar for name in stores for jar in STORE_JARS[name]))


def check_jars(environment: Mapping[str, str]) -> None:
    """Raises ValueError if JARs are neither there nor can be put there, as in an image."""
    wanted, folder = wanted_jars(environment), jars_folder(environment)
    if cached_jars(folder, wanted):
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"Of the JARs {', '.join(wanted)} some are not in {folder} (ICESTREAM_JARS_DIR) and can't be put"
            f" there: {error.strerror}. An image gets what ICESTREAM_STORES names by --build-arg STORES=..."
        ) from error


def jars_folder(environment: Mapping[str, str]) -> Path:
    """Ivy's."""
    return Path(environment.get("ICESTREAM_JARS_DIR", "~/.cache/icestream/ivy")).expanduser()


def cached_jars(folder: Path, wanted: Sequence[str] = _JARS) -> list[Path]:
    """The JARs that an earlier start left in Ivy's folder, if all are there: a start then asks nobody."""
    if tuple(wanted) == _JARS:  # which need no further ones
        names = [coordinate.replace(":", "_", 1).replace(":", "-") + ".jar" for coordinate in wanted]
        return _present(folder, names)
    for path in sorted(folder.glob(_RESOLVED.format("*"))):
        resolved = json.loads(path.read_text())
        is_meant = set(wanted) <= set(resolved["wanted"]) and tuple(resolved["excluded"]) == _EXCLUDED
        if is_meant and (jars := _present(folder, resolved["jars"])):
            return jars
    return []


def remember_jars(folder: Path, wanted: Sequence[str], resolved: Iterable[str]) -> None:
    """Writes down what Ivy found to be needed. Its folder does not tell: it keeps what older versions needed.

    resolved: paths or URIs, of which those in the folder count.
    """
    paths = [Path(unquote(urlsplit(jar).path)) for jar in resolved]
    names = sorted(path.name for path in paths if path.parent.resolve() == (folder / "jars").resolve())
    text = json.dumps({"wanted": sorted(wanted), "excluded": _EXCLUDED, "jars": names}, indent=1)
    path = folder / _RESOLVED.format(hashlib.sha256(text.encode()).hexdigest()[:16])
    written = path.with_suffix(f".{os.getpid()}")
    written.write_text(text)
    written.replace(path)  # at once, since others may start meanwhile


def _present(folder: Path, names: Iterable[str]) -> list[Path]:
    jars = [folder / "jars" / name for name in names]
    return jars if all(jar.is_file() for jar in jars) else []


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

    def smaller(self, halvings: int) -> TaskRunner:
        """With fewer tasks at a time, which share the memory of a machine."""
        return self._with(max(1, self.parallelism >> halvings), max(1, self._threads >> halvings))

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
    ) -> Iterator[R]:
        """planned_rows: the rows that all tasks together may read, which decides where they run.

        `on_progress` is told the number of tasks done, with the shares that running ones have told of
        themselves (`tell_share`), about once a second at least, and may raise
        JobCancelledError: no further task starts then. `on_work` is told before that what tasks came to.
        about: how Spark's jobs are described in its UI and event log.
        A task's own error is raised as it is locally, and as Spark wraps it otherwise.
        """
        if planned_rows <= self.local_rows or not tasks:
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
                results, self.slot.share(_RESULTS_AT_ONCE), lambda done, _: on_progress(done), on_work, about
            )
        finally:
            broadcast.unpersist()

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
                used.unpersist()

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
        UI, its event log and its listeners know the jobs.
        """
        group = f"icestream-{threading.get_ident()}-{time.monotonic_ns()}"
        with span("spark", application=self.spark.sparkContext.applicationId, job_group=group):
            return self._watched(action, group, on_progress, on_work, about)

    def _watched(
        self,
        action: Callable[[], A],
        group: str,
        on_progress: Callable[[int, int], None],
        on_work: OnWork | None,
        about: str,
    ) -> A:
        context = self.spark.sparkContext
        outcome: list[A] = []
        failure: list[BaseException] = []

        def act() -> None:
            context.setJobGroup(group, f"icestream {about}".rstrip(), interruptOnCancel=True)
            if self.slot.pool is not None:
                context.setLocalProperty("spark.scheduler.pool", self.slot.pool)
            try:
                outcome.append(action())
            except BaseException as error:  # handed to the caller's thread
                failure.append(error)

        thread = threading.Thread(target=copy_context().run, args=[act], name="spark-stage", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(timeout=0.5)
                # Nobody waits for the last figures of what is not counted, such as each fetch of results.
                work, total = self._work_of(
                    group, waits_for_last=on_work is not None and not thread.is_alive()
                )
                if on_work is not None:
                    on_work(work)
                on_progress(work.tasks_on_spark, total)
        except BaseException:
            context.cancelJobGroup(group)
            # What its tasks still write would come after their files were removed.
            thread.join(DRAIN_SECONDS)
            raise
        if failure:
            raise failure[0]
        return outcome[0]

    def _work_of(self, group: str, *, waits_for_last: bool) -> tuple[Work, int]:
        """What the Spark jobs of a group came to, all attempts at their stages, and of how many tasks."""
        context: Any = self.spark.sparkContext
        core, tracker, jvm = context._jsc.sc(), context.statusTracker(), context._jvm
        if waits_for_last:
            # Spark counts in a thread of its own. What it has not counted by then is not told.
            with suppress(Py4JJavaError):
                core.listenerBus().waitUntilEmpty(COUNTING_MILLISECONDS)
        work, total = Work(), 0
        stages = [
            stage
            for job_id in tracker.getJobIdsForGroup(group)
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


class JvmWatch:
    """Ends a JVM that does not answer any more: the job that waits for it ends then, and can be tried again.

    Such a job would go on for ever otherwise: its lease is renewed by a thread that needs no JVM. And a
    worker whose Spark has ended would fail job after job.
    """

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner
        self._stopped = threading.Event()
        # Both threads begin before there is a job that could leave no memory for one.
        self._asked = threading.Event()
        self._answered = threading.Event()

    def __enter__(self) -> JvmWatch:
        for name, run in (("jvm-watch", self._watch), ("jvm-ping", self._ping)):
            threading.Thread(target=outliving_shortage(run), name=name, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._asked.set()

    def _watch(self) -> None:
        while not self._stopped.wait(JVM_SILENCE_SECONDS / 4):
            self._answered.clear()
            self._asked.set()
            # In parts: while this whole process stands still, no more than one of them passes.
            if (
                any(self._answered.wait(JVM_SILENCE_SECONDS / 10) for _ in range(10))
                or self._stopped.is_set()
            ):
                continue
            if self._runner.is_alive:
                log.error("Spark's JVM has not answered for %.0f s: it is ended", JVM_SILENCE_SECONDS)
                self._runner.kill_jvm()
            return

    def _ping(self) -> None:
        while self._asked.wait() and not self._stopped.is_set():
            self._asked.clear()
            try:
                works = self._runner.ping()
            except Exception:
                # Whoever calls a JVM that has ended is told. To ask takes memory, which may be there later.
                if self._runner.is_alive and not self._stopped.wait(JVM_SILENCE_SECONDS / 10):
                    self._asked.set()
                continue
            self._answered.set()
            if not works and not self._stopped.is_set():
                log.error("Spark has ended in its JVM, and no other can follow: the JVM is ended, too")
                self._runner.kill_jvm()


if __name__ == "__main__":  # fetches the JARs, once
    create_spark("local[1]").stop()
