"""The worker process: claims a job, keeps its lease, runs its pipeline, reports.

Invariant: while the lease can't be renewed nothing is committed, and an attempt that lost its lease stops
without a trace.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from telemetry.logs import LogFormat, add_ids, add_process_ids, configure_logs, every_line, own_lines
from telemetry.traces import mark, span, start_traces, stop_traces, trace_id_of
from worker.agent.log_lines import LogLines, logged
from worker.attempt.job import Account
from worker.attempt.outcome import Outcome
from worker.contract.control_plane import (
    JVM_LOST,
    AnnouncedPlan,
    Assignment,
    AttemptId,
    AttemptReport,
    ControlPlane,
    ControlPlaneError,
    Event,
    RefusedKeyError,
    RefusedReportError,
    StaleAttemptError,
    UnknownToServiceError,
)
from worker.jobs.pipeline import run_job
from worker.process.errors import JobCancelledError, JobError, JobTimedOutError
from worker.process.redaction import Redaction
from worker.process.slots import ALONE, Slot
from worker.process.threads import outliving_shortage
from worker.spark.executors import UnfitExecutorsError, check_executors
from worker.spark.jars import check_jars
from worker.spark.jvm_watch import JvmWatch
from worker.spark.session import create_spark
from worker.spark.tasks import TaskRunner
from worker.table.catalogs import secrets_of

log = logging.getLogger("icestream.worker")

T = TypeVar("T")

CLAIM_WAIT_SECONDS = 20.0
SLOT_CLAIM_WAIT_SECONDS = 5.0
"""Of a worker that shares its process: no signal ends the wait, so its answer is awaited."""
RETRY_SECONDS = 2.0
START_SECONDS = 60.0
"""For the service to answer the first call: both may be started at the same time."""
ALIVE_SECONDS = 60.0
"""The alive file is touched at least so often: a claim waits, and its answer may time out."""
SETTLE_SECONDS = 0.5
"""What the service is about to grant when a claim's connection is closed, it has granted by then."""
STOP_SECONDS = 20.0  # for all that is left to do once the process is asked to stop
HUNG_SECONDS = 60.0  # for a job to end once its attempt has, and a lease on top
HAND_BACK_SECONDS = 10.0  # of them, for a job in a thread of its own to notice


class WorkerSettings(BaseSettings):
    """From the environment: ICESTREAM_URL, ICESTREAM_API_KEY, and so on."""

    model_config = SettingsConfigDict(env_prefix="ICESTREAM_")

    url: str = "http://127.0.0.1:8000"
    api_key: str
    spark_master: str = "local[*]"
    worker_name: str = socket.gethostname()
    worker_slots: int = Field(1, ge=1, le=16)
    """Jobs that run at a time, each as a worker of its own for the service; they share a Spark session."""
    log_format: LogFormat = "text"
    alive_file: Path | None = None
    """Touched once Spark has started, and then every ALIVE_SECONDS at least: for probes."""


class AttemptReporter:
    """Collects what a job tells and sends it with each heartbeat, from a thread of its own."""

    def __init__(
        self,
        report: AttemptReport,
        lease_seconds: float,
        lines: LogLines,
        show_life: Callable[[], None] = lambda: None,
        on_hang: Callable[[], None] = lambda: None,
        *,
        timeout_seconds: float = 0,
    ) -> None:
        """on_hang: called if the job goes on for long although its attempt is over."""
        self._report = report
        self._lines = lines
        self._show_life = show_life
        self._on_hang = on_hang
        self._interval_seconds = min(lease_seconds / 3, 2.0)
        self._lease_seconds = lease_seconds
        self._lock = threading.Lock()
        self._progress: dict[str, Any] | None = None
        self._events: list[Event] = []
        self._stopped = threading.Event()
        self._ended: Exception | None = None
        self._is_interrupted = False
        self._renewed_at = time.monotonic()
        # Heartbeats go on: an attempt that hangs is taken away by the service, which says why.
        self._ends_at = time.monotonic() + timeout_seconds if timeout_seconds else math.inf
        self._thread = threading.Thread(
            target=copy_context().run, args=[outliving_shortage(self._beat)], name="heartbeat", daemon=True
        )

    def __enter__(self) -> AttemptReporter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def seconds_ahead(self) -> float:
        return self._report.seconds_ahead

    def progress(self, stage: str, done: int, total: int, unit: str, message: str | None = None) -> None:
        self._raise_if_ended()
        with self._lock:
            self._progress = {"stage": stage, "done": done, "total": total, "unit": unit, "message": message}

    def decide(self, sentence: str) -> None:
        log.info("%s", sentence)
        with self._lock:
            self._events.append(Event("info", sentence))
        self._raise_if_ended()

    def confirm_lease(self) -> None:
        """Renews the lease right now, since what follows can't be taken back."""
        if self._answered(self._send):
            raise JobCancelledError

    def announce(self, plan: AnnouncedPlan) -> None:
        if self._answered(lambda: self._send(plan)):
            raise JobCancelledError

    def grant_addresses(self, rows: int, at_least: int) -> int:
        return self._answered(lambda: self._report.grant_addresses(rows, at_least))

    def _answered(self, call: Callable[[], T]) -> T:
        """What a call returns, as soon as the service answers; raises once the attempt has ended."""
        while True:
            self._raise_if_ended()
            try:
                answer = call()
            except RefusedReportError:
                raise
            except ControlPlaneError as error:
                log.warning("%s; trying again in %.0f s", error, RETRY_SECONDS)
                self._stopped.wait(RETRY_SECONDS)
            else:
                # What follows may be a commit, and the answer may have taken long.
                self._raise_if_ended()
                return answer

    def interrupt(self) -> None:
        """The job ends at its next step with KeyboardInterrupt; its lease is kept meanwhile."""
        self._is_interrupted = True

    def flush(self) -> None:
        """Sends what the job told last."""
        self._take_lines()
        if self._events:
            self._send()

    def _take_lines(self) -> None:
        lines = self._lines.take()
        with self._lock:
            self._events += lines

    def _raise_if_ended(self) -> None:
        if self._is_interrupted:
            raise KeyboardInterrupt
        if self._ended is not None:
            raise self._ended
        if time.monotonic() >= self._ends_at:
            raise JobTimedOutError

    def _beat(self) -> None:
        while not self._stopped.wait(self._interval_seconds):
            self._show_life()
            try:
                if self._send():
                    self._ended = JobCancelledError()
            except StaleAttemptError as error:
                self._ended = error
            except ControlPlaneError as error:
                log.warning("Heartbeat failed: %s", error)
                if time.monotonic() - self._renewed_at > self._lease_seconds:
                    self._ended = StaleAttemptError(
                        "the lease ran out while the service could not be reached"
                    )
            if self._ended is not None:
                # The report of its end may be tried for a lease.
                if not self._stopped.wait(HUNG_SECONDS + self._lease_seconds):
                    self._on_hang()
                return

    def _send(self, plan: AnnouncedPlan | None = None) -> bool:
        self._take_lines()
        with self._lock:
            progress, events, self._events = self._progress, self._events, []
        try:
            cancel_requested = self._report.heartbeat(progress, events, plan)
        except (ControlPlaneError, MemoryError):
            with self._lock:
                self._events = events + self._events
            raise
        self._renewed_at = time.monotonic()
        return cancel_requested


class _SparkEndedError(Exception):
    """Before a job began, which another worker can run."""


class Worker:
    """Runs one job at a time until it is asked to stop.

    slot: its place in the process. If it has that for itself, it works in the main thread, where a signal
    interrupts it at any point; otherwise its job has a thread of its own, which it leaves behind if need be.
    redaction: shared with the other workers of the process.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        runner: TaskRunner,
        alive_file: Path | None = None,
        *,
        slot: Slot = ALONE,
        redaction: Redaction | None = None,
    ) -> None:
        self._control_plane = control_plane
        self._alive_file = alive_file
        self._runner = runner
        self._slot = slot
        self._redaction = redaction or Redaction()
        self._stopping = threading.Event()
        self._may_interrupt = False
        self._is_registered = False
        self._given_up: list[AttemptId] = []
        """Attempts that ran, and of which the service could not be told."""

    def stop(self, signal_number: int, _: FrameType | None) -> None:
        """Ends a wait for work and hands a running job back; a job that has ended is still reported."""
        log.info("Stopping after signal %s", signal.Signals(signal_number).name)
        self.end()
        if self._may_interrupt:
            self._may_interrupt = False
            raise KeyboardInterrupt

    def end(self) -> None:
        """As a signal does, in whatever thread the worker is."""
        self._stopping.set()

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        self._may_interrupt = self._slot.is_alone
        try:
            if self._stopping.is_set():
                raise KeyboardInterrupt
            yield
        finally:
            self._may_interrupt = False

    def run(self, name: str) -> None:
        """Returns after a signal, or once Spark has ended; nothing stays assigned to this worker then."""
        with suppress(KeyboardInterrupt):
            self._work(name)
        if self._is_registered:
            time.sleep(SETTLE_SECONDS)
            with suppress(ControlPlaneError, StaleAttemptError):  # or else the lease runs out
                self._control_plane.leave(self._given_up)

    def _work(self, name: str) -> None:
        while not self._stopping.is_set() and self._runner.is_usable:
            self._show_life()
            try:
                if not self._is_registered:
                    self._control_plane.register(name)
                    self._is_registered = True
                seconds = CLAIM_WAIT_SECONDS if self._slot.is_alone else SLOT_CLAIM_WAIT_SECONDS
                with self._interruptible():
                    assignment = self._control_plane.claim(seconds, self._given_up)
                self._given_up = []
            except (ControlPlaneError, StaleAttemptError) as error:
                log.warning("%s; trying again in %.0f s", error, RETRY_SECONDS)
                # It keeps its name otherwise: a job that was given to it with a lost answer is known by that.
                self._is_registered = self._is_registered and not isinstance(error, UnknownToServiceError)
                self._stopping.wait(RETRY_SECONDS)
                continue
            if assignment is not None and not self.run_attempt(assignment):
                self._given_up.append(AttemptId(job_id=assignment.job.id, attempt=assignment.attempt))

    def _show_life(self) -> None:
        if self._alive_file is not None:
            # A probe fails if it can't be written; no job has to.
            with suppress(OSError):
                self._alive_file.touch()

    def _end_hung(self) -> None:
        """A thread that waits for ever can't be ended: a worker that is started again takes jobs."""
        told = "The job still hangs although its attempt was over long ago"
        if self._slot.is_alone:
            _end_at_once(self._runner, told)
        else:
            log.error("%s: the others are handed back, and this process ends", told)
            os.kill(os.getpid(), signal.SIGTERM)

    def run_attempt(self, assignment: Assignment) -> bool:
        """Runs one attempt to its end and reports it; never raises for the job's own errors.

        False if it could not be reported.
        """
        with self._redaction.knowing(secrets_of(assignment.catalog.properties)):
            return self._run_attempt(assignment)

    def _run_attempt(self, assignment: Assignment) -> bool:
        redaction = self._redaction
        # A secret of another job that runs here may be a word of this one's report.
        own = Redaction(secrets_of(assignment.catalog.properties))
        report = self._control_plane.attempt(assignment, own)
        job = assignment.job
        finished: dict[str, Any]
        account = Account()
        lines = LogLines(redaction, is_alone=self._slot.is_alone)
        these_lines = every_line if self._slot.is_alone else own_lines
        ids: dict[str, str | int] = {
            "job_id": job.id,
            "attempt": assignment.attempt,
            "table_id": assignment.table.id,
        }
        trace_id = trace_id_of(assignment.traceparent)
        with (
            these_lines(redaction.text, **ids, **({"trace_id": trace_id} if trace_id else {})),
            logged(lines),
            AttemptReporter(
                report,
                assignment.lease_seconds,
                lines,
                self._show_life,
                self._end_hung,
                timeout_seconds=assignment.timeout_seconds,
            ) as reporter,
            # Of which heartbeats are no part.
            span("attempt", assignment.traceparent, kind=job.kind, **ids) as traced,
        ):
            log.info(
                "Job %s (%s of %s), attempt %d",
                job.id,
                job.kind,
                ".".join(assignment.table.identifier),
                assignment.attempt,
            )
            try:
                with self._interruptible():
                    if not self._runner.is_usable:
                        raise _SparkEndedError
                    if self._slot.is_alone:
                        outcome = run_job(assignment, self._runner, reporter, account)
                    else:
                        outcome = self._run_in_thread(assignment, reporter, account)
                finished = {
                    "status": "succeeded",
                    "result": outcome.result,
                    "health": outcome.health or None,
                    "cleared": outcome.cleared,
                }
            except JobTimedOutError:
                finished = {"status": "failed", "error": _error(_timed_out(assignment.timeout_seconds))}
            except JobCancelledError:
                finished = {"status": "cancelled"}
            except KeyboardInterrupt:
                finished = {"status": "released"}
            except _SparkEndedError:
                log.error("Spark ended before the job came: it is handed back, and this process ends")
                finished = {"status": "released"}
            except StaleAttemptError as error:
                log.warning("Attempt %d of job %s was taken away: %s", assignment.attempt, job.id, error)
                return False
            except JobError as error:
                log.warning("Job %s failed: %s", job.id, error)
                finished = {"status": "failed", "error": _error(error)}
            except Exception as error:
                log.exception("Job %s failed", job.id)
                finished = {"status": "failed", "error": _error(_unexpected(error))}
            if finished["status"] == "failed" and not self._runner.is_usable:
                # Whatever the error says, this is its cause; the job's own doing, if it took all memory.
                log.error("Spark has ended: this process ends too")
                self._stopping.set()
                finished = {"status": "failed", "error": _error(_without_spark())}
            mark(traced, str(finished["status"]))
            return self._finish(report, reporter, finished | asdict(account), assignment.lease_seconds)

    def _run_in_thread(self, assignment: Assignment, reporter: AttemptReporter, account: Account) -> Outcome:
        """Raises KeyboardInterrupt within HAND_BACK_SECONDS after the process was asked to stop.

        Whatever the thread does after that is what a late attempt does; the process ends.
        """
        outcome: Future[Outcome] = Future()

        def run() -> None:
            try:
                # Also for a thread that is left behind.
                with self._redaction.knowing(secrets_of(assignment.catalog.properties)):
                    outcome.set_result(run_job(assignment, self._runner, reporter, account))
            except BaseException as error:  # handed to the worker's thread
                outcome.set_exception(error)

        threading.Thread(target=copy_context().run, args=[run], name="job", daemon=True).start()
        while not wait([outcome], timeout=0.5).done:
            if self._stopping.is_set():
                reporter.interrupt()
                if not wait([outcome], timeout=HAND_BACK_SECONDS).done:
                    raise KeyboardInterrupt
        return outcome.result()

    def _finish(
        self,
        report: AttemptReport,
        reporter: AttemptReporter,
        finished: dict[str, Any],
        lease_seconds: float,
    ) -> bool:
        """Reports the end for the time of a lease, or returns False: the next attempt finds the truth.

        Heartbeats go on while it does, so an answer that never comes must not hold the job for ever.
        """
        status = finished.pop("status")
        deadline = time.monotonic() + lease_seconds
        while True:
            try:
                reporter.flush()
                report.finish(status, **finished)
                log.info("Reported as %s", status)
                return True
            except StaleAttemptError as error:
                log.warning("The report came too late: %s", error)
                return False
            except RefusedReportError as error:
                if status == "failed":
                    log.error("Giving up the report: %s", error)
                    return False
                log.error("Reporting as failed instead of %s: %s", status, error)
                status, finished = "failed", {"error": _error(_refused(error))}  # no more than is needed
            except (ControlPlaneError, MemoryError) as error:
                log.warning("Reporting failed: %r; trying again in %.0f s", error, RETRY_SECONDS)
                if self._stopping.is_set() or time.monotonic() > deadline:
                    log.error("Giving up the report: %r", error)
                    return False
                time.sleep(RETRY_SECONDS)


def _error(error: JobError) -> dict[str, Any]:
    return {
        "code": error.code,
        "title": error.title,
        "detail": error.detail,
        "remedy": error.remedy,
        "retryable": error.retryable,
    }


def _unexpected(error: Exception) -> JobError:
    """An error that nobody foresaw: retried, since most are the environment's, and told with its place."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return JobError(
        "internal_error",
        "The job met an unexpected error",
        f"{type(error).__name__}: {error} (in {place.name}, line {place.lineno})",
        "It is retried. If it stays, look at the worker's log and report it with this text.",
        retryable=True,
    )


def _without_spark() -> JobError:
    return JobError(
        JVM_LOST,
        "Spark has ended",
        "The system may have killed its JVM for the memory that it took, or the cluster gave it up.",
        "The next attempt holds half as much at once. If none succeeds, give the worker more memory.",
        retryable=True,
    )


def _timed_out(seconds: float) -> JobError:
    return JobError(
        "timed_out",
        "The attempt took longer than its policy allows",
        f"It was ended after {seconds:g} s (`retries.timeout_seconds`); what it had committed stays.",
        "If such jobs need more time, raise it. With `max_delete_files_per_commit`, the next attempt of a"
        " conversion goes on where this one ended.",
        retryable=True,
    )


def _refused(error: RefusedReportError) -> JobError:
    return JobError(
        "report_refused",
        "The job was done, but the service refused its report",
        str(error),
        "Update service and worker to the same version, then run the job again: it finds what was done.",
    )


def run_workers(workers: Sequence[Worker], names: Sequence[str]) -> None:
    """Returns once all have ended. Raises the error of one that failed: the others hand their jobs back."""
    if len(workers) == 1:
        workers[0].run(names[0])
        return
    with ThreadPoolExecutor(len(workers), "slot") as threads:
        running = [threads.submit(worker.run, name) for worker, name in zip(workers, names, strict=True)]
        for ended in as_completed(running):
            if ended.exception() is not None:
                for worker in workers:
                    worker.end()
    for ended in running:
        ended.result()


def _end_in_time(runner: TaskRunner) -> None:
    """Whoever asked this process to stop does not wait for ever, even if the service or Spark's JVM hangs."""

    told = f"Something still hangs {STOP_SECONDS:.0f} s after the signal"
    timer = threading.Timer(STOP_SECONDS, _end_at_once, [runner, told])
    timer.daemon = True
    timer.start()


def _end_at_once(runner: TaskRunner, why: str) -> None:
    log.error("%s: this process ends without it", why)
    logging.shutdown()
    runner.kill_jvm()
    os._exit(1)


def _read_settings() -> WorkerSettings:
    """From the environment. Ends the process for what is missing or not valid there."""
    try:
        return WorkerSettings()  # the key comes from the environment
    except ValidationError as error:
        first = error.errors()[0]
        setting = f"ICESTREAM_{str(first['loc'][0]).upper()}"
        if first["type"] == "missing":
            _refuse(f"{setting} is not set: a worker needs a key of the role worker, which an admin makes.")
        _refuse(f"{setting} is not valid: {first['msg']}.")


def _await_service(control_plane: ControlPlane, url: str) -> None:
    """Until it takes the key. Ends the process if it does not, or does not answer for a minute."""
    told, deadline = False, time.monotonic() + START_SECONDS
    while True:
        try:
            return control_plane.check_key()
        except RefusedKeyError as error:
            _refuse(f"ICESTREAM_API_KEY is no key of a worker at {url}: {error}")
        except ControlPlaneError as error:
            if time.monotonic() >= deadline:
                _refuse(f"ICESTREAM_URL is {url}, where no service is: {error}")
            if not told:
                log.warning("%s: %s; trying again for %.0f s", url, error, START_SECONDS)
                told = True
        time.sleep(RETRY_SECONDS)


def _refuse(sentence: str) -> NoReturn:
    sys.stderr.write(f"{' '.join(sentence.split()).rstrip('.')}.\n")
    raise SystemExit(2)


def main() -> int:
    settings = _read_settings()
    configure_logs(settings.log_format)
    start_traces("icestream-worker")
    slots = [Slot(number, settings.worker_slots) for number in range(1, settings.worker_slots + 1)]
    name_lines = add_process_ids if len(slots) == 1 else add_ids
    try:
        control_planes = [ControlPlane(settings.url, settings.api_key, name_lines) for _ in slots]
    except ControlPlaneError as error:
        _refuse(f"ICESTREAM_URL is {settings.url}: {error}")
    if settings.alive_file is not None:
        # What an earlier process left says nothing about this one.
        settings.alive_file.unlink(missing_ok=True)
    try:
        check_jars(os.environ)
    except ValueError as error:
        log.error("%s", error)
        return 1
    # Spark takes seconds and memory to start.
    _await_service(control_planes[0], settings.url)
    spark = create_spark(settings.spark_master, structured_logs=settings.log_format == "json")
    runner = TaskRunner(spark)
    try:
        check_executors(runner)
    except UnfitExecutorsError as error:
        log.error("%s", error)
        with suppress(ControlPlaneError):  # the log has it
            control_planes[0].register(settings.worker_name, str(error))
        spark.stop()
        return 1
    redaction = Redaction()
    workers = [
        Worker(
            control_plane,
            TaskRunner(spark, slot=slot),
            settings.alive_file,
            slot=slot,
            redaction=redaction,
        )
        for slot, control_plane in zip(slots, control_planes, strict=True)
    ]

    def stop(number: int, frame: FrameType | None) -> None:
        _end_in_time(runner)
        for worker in workers:
            worker.stop(number, frame)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    log.info("Ready: Spark %s on %s", spark.version, settings.spark_master)
    try:
        with JvmWatch(runner):
            run_workers(workers, [slot.name(settings.worker_name) for slot in slots])
    finally:
        for control_plane in control_planes:
            control_plane.close()
        stop_traces()
        code = 0 if runner.is_usable else 1
        if code == 0:
            spark.stop()
    if any(thread.is_alive() and not thread.daemon for thread in threading.enumerate()[1:]):
        # A task that nobody waits for any more, such as a read that hangs, must not keep the process.
        logging.shutdown()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
