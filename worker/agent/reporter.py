"""Keeps the lease of an attempt and sends what its job tells, from a thread of its own.

Invariant: while the lease can't be renewed nothing is committed.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any, Self, TypeVar

from worker.agent.log_lines import LogLines
from worker.contract.control_plane import (
    AnnouncedPlan,
    AttemptReport,
    ControlPlaneError,
    Event,
    RefusedReportError,
    StaleAttemptError,
)
from worker.process.errors import JobCancelledError, JobTimedOutError
from worker.process.threads import outliving_shortage

log = logging.getLogger("icestream.worker")

T = TypeVar("T")
RETRY_SECONDS = 2.0
_FRESH_FRACTION = 1 / 30
"""Of a lease: a renewal that was asked for so recently is as good as one now, after which a process may sleep
as well."""
HUNG_SECONDS = 60.0  # for a job to end once its attempt has, and a lease on top
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _now() -> float:
    """In seconds, by a clock that nobody sets. Linux has one that goes on while the machine is suspended."""
    return time.clock_gettime(_CLOCK)


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
        self._renewed_at = _now()
        self._confirmed_at = -math.inf
        """When the last renewal was asked for that no cancellation came with."""
        # Heartbeats go on: an attempt that hangs is taken away by the service, which says why.
        self._ends_at = _now() + timeout_seconds if timeout_seconds else math.inf
        self._row_addresses_expected = 0
        self._row_addresses = range(0)
        """That were granted with a heartbeat, and are not used yet."""
        self._thread = threading.Thread(
            target=copy_context().run, args=[outliving_shortage(self._beat)], name="heartbeat", daemon=True
        )

    def __enter__(self) -> Self:
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

    def confirm_lease(self, *, anew: bool = False) -> None:
        """Renews the lease, unless that was just done, since what follows can't be taken back.

        anew: in any case. A virtual machine that stands still may have no clock that tells.
        """
        self._raise_if_ended()
        if not anew and _now() - self._confirmed_at < _FRESH_FRACTION * self._lease_seconds:
            return
        if self._answered(self._send):
            raise JobCancelledError

    def announce(self, plan: AnnouncedPlan) -> None:
        if self._answered(lambda: self._send(plan)):
            raise JobCancelledError

    def expect_row_addresses(self, rows: int) -> None:
        with self._lock:
            self._row_addresses_expected = rows if rows > len(self._row_addresses) else 0

    def grant_row_addresses(self, rows: int, at_least: int) -> int:
        self._raise_if_ended()
        with self._lock:
            self._row_addresses_expected = 0
            base = max(self._row_addresses.start, at_least)
            if base + rows <= self._row_addresses.stop:
                self._row_addresses = range(base + rows, self._row_addresses.stop)
                return base
        return self._answered(lambda: self._report.grant_row_addresses(rows, at_least))

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

    def take_events(self) -> list[Event]:
        """What the job told last, which is not sent any more."""
        self._take_lines()
        with self._lock:
            events, self._events = self._events, []
        return events

    def _take_lines(self) -> None:
        lines = self._lines.take()
        with self._lock:
            self._events += lines

    def _raise_if_ended(self) -> None:
        if self._is_interrupted:
            raise KeyboardInterrupt
        if self._ended is not None:
            raise self._ended
        if _now() >= self._ends_at:
            raise JobTimedOutError

    def _beat(self) -> None:
        wait_seconds = self._interval_seconds
        while not self._stopped.wait(wait_seconds):
            self._show_life()
            # Whatever call of the job renews the lease tells all, and hears all, that this one would.
            wait_seconds = self._renewed_at + self._interval_seconds - _now()
            if wait_seconds > 0:
                continue
            wait_seconds = self._interval_seconds
            try:
                if self._send():
                    self._ended = JobCancelledError()
            except StaleAttemptError as error:
                self._ended = error
            except ControlPlaneError as error:
                log.warning("Heartbeat failed: %s", error)
                if _now() - self._renewed_at > self._lease_seconds:
                    self._ended = StaleAttemptError(
                        "the lease ran out while the service could not be reached"
                    )
            if self._ended is not None:
                # The report of its end may be tried for a lease.
                if not self._stopped.wait(HUNG_SECONDS + self._lease_seconds):
                    self._on_hang()
                return

    def _send(self, plan: AnnouncedPlan | None = None) -> bool:
        progress, events = self._progress, self.take_events()
        with self._lock:
            expected, self._row_addresses_expected = self._row_addresses_expected, 0
        asked_at = _now()
        try:
            try:
                renewed = self._report.heartbeat(progress, events, plan, expected)
            except RefusedReportError as error:
                events = told_instead(events, error)
                renewed = self._report.heartbeat(progress, events, plan)
        except (ControlPlaneError, MemoryError):
            with self._lock:
                self._events = events + self._events
                self._row_addresses_expected = expected
            raise
        if renewed.base_address is not None:
            with self._lock:
                self._row_addresses = range(renewed.base_address, renewed.base_address + expected)
        self._renewed_at = _now()
        self._confirmed_at = -math.inf if renewed.cancel_requested else asked_at
        return renewed.cancel_requested


def told_instead(events: Sequence[Event], error: RefusedReportError) -> list[Event]:
    """What is told in place of events with which a call was refused, perhaps for one of them."""
    if not events:
        return []
    sentence = f"{len(events)} lines and decisions are in the worker's own log alone: {error}"
    log.error("%s", sentence)
    return [Event("error", sentence)]
