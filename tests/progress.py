"""What a run of the tests tells while it goes on, so that one can tell slow from stuck; and how it ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

SECONDS = 30.0
"""Between two lines."""
STUCK_SECONDS = 1860.0
"""Without a test that begins or ends: more than pytest leaves a test."""


class Progress:
    """Says of each failure at once what a summary says at the end, which a run that is cut off never sees;
    and every half minute how many tests are done, and which ones run, for how long. Interrupts a run
    that is stuck between two tests, or at its end, where pytest has no bound of its own."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager
        self._total = self._done = self._failed = 0
        self._running: dict[str, float] = {}
        self._processes: dict[object, int] = {}
        self._begun = time.monotonic()
        self._last_event: float | None = None
        self._is_collected = False
        self._ended = threading.Event()
        self._teller = threading.Thread(target=self._tell_now_and_then, name="progress", daemon=True)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total, self._is_collected = len(session.items), True

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: Sequence[str]) -> None:
        self._total, self._is_collected = len(ids), True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        if self._plugins.has_plugin("terminalreporter"):  # what xdist starts has none
            # While a test runs, what is written to file 1 counts as the test's.
            self._output = os.fdopen(os.dup(1), "w")
            # Of its own: a program in the background ignores SIGINT.
            signal.signal(signal.SIGUSR1, signal.default_int_handler)
            self._teller.start()

    def pytest_sessionfinish(self) -> None:
        self._ended.set()
        if self._teller.ident is not None:
            self._teller.join()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self, node: Any) -> None:
        self._processes[node] = node.gateway._rinfo().pid

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._processes.pop(node, None)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = self._last_event = time.monotonic()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._last_event = time.monotonic()
        if report.when not in ("setup", "call"):  # the last one of a test, also if its process is gone
            self._done += self._running.pop(report.nodeid, None) is not None
        if report.failed:
            self._failed += 1
            crash = getattr(report.longrepr, "reprcrash", None)
            cause = str(crash.message if crash else report.longreprtext).partition("\n")[0]
            terminal = self._plugins.get_plugin("terminalreporter")
            if terminal is not None:
                terminal.write_line(f"\n{report.when} of {report.nodeid} failed: {cause[:500]}")

    def _tell_now_and_then(self) -> None:
        with self._output as output:
            while not self._ended.wait(SECONDS):
                now = time.monotonic()
                output.write(f"\n{self.line(now)}\n")
                output.flush()
                if self._last_event is not None and now - self._last_event > STUCK_SECONDS:
                    output.write("\nNo test has begun or ended for too long: the run is interrupted\n")
                    output.flush()
                    for process in self._processes.copy().values():
                        with suppress(ProcessLookupError):
                            os.kill(process, signal.SIGABRT)  # which shows its stacks first
                    os.kill(os.getpid(), signal.SIGUSR1)
                    return

    def line(self, now: float) -> str:
        minutes, seconds = divmod(int(now - self._begun), 60)
        if not self._is_collected:
            return f"After {minutes}:{seconds:02} min the tests are being collected"
        running = [f"{nodeid} for {now - since:.0f} s" for nodeid, since in self._running.copy().items()]
        return (
            f"After {minutes}:{seconds:02} min {self._done:,} of {self._total:,} tests are done,"
            f" {self._failed} failed; running: {', '.join(running) or 'none'}"
        )
