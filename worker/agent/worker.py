"""Claims a job, runs it, reports its end, and claims the next one.

Invariant: an attempt that lost its lease stops without a trace.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from telemetry.logs import every_line, own_lines
from telemetry.traces import mark, span, trace_id_of
from worker.agent.log_lines import LogLines, logged
from worker.agent.reporter import RETRY_SECONDS, AttemptReporter, told_instead
from worker.attempt.job import Usage
from worker.attempt.outcome import Outcome
from worker.contract.control_plane import (
    Assignment,
    AttemptId,
    AttemptReport,
    ControlPlane,
    ControlPlaneError,
    Event,
    RefusedReportError,
    StaleAttemptError,
    UnknownToServiceError,
)
from worker.jobs.pipeline import run_job
from worker.process.errors import (
    JobCancelledError,
    JobError,
    JobTimedOutError,
    ReportRefusedError,
    SparkEndedError,
    TimedOutError,
    UnexpectedError,
)
from worker.process.redaction import Redaction
from worker.process.slots import ALONE, Slot
from worker.spark.tasks import TaskRunner
from worker.table.record_properties import secrets_of

log = logging.getLogger("icestream.worker")

CLAIM_WAIT_SECONDS = 20.0
SLOT_CLAIM_WAIT_SECONDS = 5.0
"""Of a worker that shares its process: no signal ends the wait, so its answer is awaited."""
SETTLE_SECONDS = 0.5
"""What the service is about to grant when a claim's connection is closed, it has granted by then."""
_NOTICED_SECONDS = 0.5
"""A signal that comes just before its thread begins to wait, or to another thread, does not end the wait."""
HAND_BACK_SECONDS = 10.0
"""Of a process that is asked to stop, for a job in a thread of its own to notice."""


class _NoSparkError(Exception):
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
        self._goes_on = False
        """Whether it works on after an attempt: `run_attempt` by itself is for one."""
        self._next: Assignment | None = None
        """What the answer to the last attempt's report has brought."""

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
        self._goes_on = True
        while not self._stopping.is_set() and self._runner.is_usable:
            self._show_life()
            try:
                if not self._is_registered:
                    self._control_plane.register(name)
                    self._is_registered = True
                seconds = CLAIM_WAIT_SECONDS if self._slot.is_alone else SLOT_CLAIM_WAIT_SECONDS
                with self._interruptible():
                    assignment = self._next or self._control_plane.claim(seconds, self._given_up)
                self._given_up, self._next = [], None
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
            end_at_once(self._runner, told)
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
        usage = Usage()
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
                finished = self._run(assignment, reporter, usage)
            except StaleAttemptError as error:
                log.warning("Attempt %d of job %s was taken away: %s", assignment.attempt, job.id, error)
                return False
            except (Exception, KeyboardInterrupt) as error:
                finished = _ended_by(error, assignment)
            if finished["status"] == "failed" and not self._runner.is_usable:
                # Whatever the error says, this is its cause; the job's own doing, if it took all memory.
                log.error("Spark has ended: this process ends too")
                self._stopping.set()
                finished = _failed(SparkEndedError())
            mark(traced, str(finished["status"]))
            return self._finish(report, reporter, finished | asdict(usage), assignment.lease_seconds)

    def _run(self, assignment: Assignment, reporter: AttemptReporter, usage: Usage) -> dict[str, Any]:
        """What is reported of a job that was done; raises what ended it otherwise."""
        with self._interruptible():
            if not self._runner.is_usable:
                raise _NoSparkError
            if self._slot.is_alone:
                outcome = run_job(assignment, self._runner, reporter, usage)
            else:
                outcome = self._run_in_thread(assignment, reporter, usage)
        return {
            "status": "succeeded",
            "result": outcome.result,
            "health": outcome.health or None,
            "cleared": outcome.cleared,
        }

    def _run_in_thread(self, assignment: Assignment, reporter: AttemptReporter, usage: Usage) -> Outcome:
        """Raises KeyboardInterrupt within HAND_BACK_SECONDS after the process was asked to stop.

        Whatever the thread does after that is what a late attempt does; the process ends.
        """
        outcome: Future[Outcome] = Future()

        def run() -> None:
            try:
                # Also for a thread that is left behind.
                with self._redaction.knowing(secrets_of(assignment.catalog.properties)):
                    outcome.set_result(run_job(assignment, self._runner, reporter, usage))
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
        self, report: AttemptReport, reporter: AttemptReporter, finished: dict[str, Any], lease_seconds: float
    ) -> bool:
        """Reports the end for the time of a lease, or returns False: the next attempt finds the truth.

        The worker is free then, and claims its next job with that unless it ends.
        Heartbeats go on while it does, so an answer that never comes must not hold the job for ever.
        """
        status = finished.pop("status")
        deadline = time.monotonic() + lease_seconds
        events: list[Event] = []
        refusals = 0
        while True:
            events += reporter.take_events()
            try:
                is_free = self._goes_on and not self._stopping.is_set() and self._runner.is_usable
                self._next = report.finish(status, **finished, events=events, claims_next=is_free)
                log.info("Reported as %s", status)
                return True
            except StaleAttemptError as error:
                log.warning("The report came too late: %s", error)
                return False
            except RefusedReportError as error:
                refusals += 1  # for what the job told, for the rest, or for all that there is
                if refusals == 3:
                    log.error("Giving up the report: %s", error)
                    return False
                events = told_instead(events, error)
                if refusals == 2:
                    log.error("Reporting as failed instead of %s: %s", status, error)
                    finished = _failed(ReportRefusedError(str(error)))  # no more than is needed
                    status = finished.pop("status")
            except (ControlPlaneError, MemoryError) as error:
                log.warning("Reporting failed: %r; trying again in %.0f s", error, RETRY_SECONDS)
                if self._stopping.is_set() or time.monotonic() > deadline:
                    log.error("Giving up the report: %r", error)
                    return False
                time.sleep(RETRY_SECONDS)


def _failed(error: JobError) -> dict[str, Any]:
    return {"status": "failed", "error": error.problem}


def _ended_by(error: BaseException, assignment: Assignment) -> dict[str, Any]:
    """What is reported of an attempt that an error has ended, while this is handled."""
    match error:
        case JobTimedOutError():
            return _failed(TimedOutError(assignment.timeout_seconds))
        case JobCancelledError():
            return {"status": "cancelled"}
        case KeyboardInterrupt():
            return {"status": "released"}
        case _NoSparkError():
            log.error("Spark ended before the job came: it is handed back, and this process ends")
            return {"status": "released"}
        case JobError():
            log.warning("Job %s failed: %s: %s", assignment.job.id, error.title, error)
            return _failed(error)
    log.error("Job %s failed", assignment.job.id, exc_info=error)
    return _failed(UnexpectedError.of(error))


def run_workers(workers: Sequence[Worker], names: Sequence[str]) -> None:
    """Returns once all have ended. Raises the error of one that failed: the others hand their jobs back."""
    if len(workers) == 1:
        workers[0].run(names[0])
        return
    with ThreadPoolExecutor(len(workers), "slot") as threads:
        running = [threads.submit(worker.run, name) for worker, name in zip(workers, names, strict=True)]
        left = set(running)
        while left:
            ended, left = wait(left, _NOTICED_SECONDS, FIRST_COMPLETED)
            if any(one.exception() is not None for one in ended):
                for worker in workers:
                    worker.end()
    for one in running:
        one.result()


def end_at_once(runner: TaskRunner, why: str) -> None:
    log.error("%s: this process ends without it", why)
    logging.shutdown()
    runner.kill_jvm()
    os._exit(1)
