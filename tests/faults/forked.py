"""Processes of Python that begin at once: forked from one without threads that has imported what they run.

Real processes in all else: each is killed, stopped and waited for by its own id. To import the service takes
seconds of a core, and these tests start it many times.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["__main__", "tests.faults.preloaded"])


class Process:
    """A child that may be killed, stopped, and started again."""

    def __init__(self, module: str, environment: Mapping[str, str], log: Path) -> None:
        """module: one with a `main`. environment: in addition to this process's. log: of its output."""
        self._module, self._environment, self.log = module, dict(environment), log
        self._process: ForkServerProcess | None = None
        self.starts = 0

    def start(self) -> None:
        environment = {**os.environ, **self._environment}
        # As a daemon, it ends with whoever started it.
        process = _context.Process(target=_run, args=(self._module, environment, self.log), daemon=True)
        process.start()
        self._process = process
        self.starts += 1

    @property
    def pid(self) -> int:
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def wait(self, seconds: float) -> int:
        """Its exit code; minus a signal's number, if that ended it."""
        assert self._process is not None
        self._process.join(seconds)
        assert self._process.exitcode is not None, (
            f"{self._module} does not end: {self.log.read_text()[-4000:]}"
        )
        return self._process.exitcode

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def assert_no_crash(self) -> None:
        """It runs, or was asked to end, or killed."""
        code = self._process.exitcode if self._process is not None else None
        assert code is None or code <= 0, self.log.read_text()


def _run(module: str, environment: dict[str, str], log: Path) -> None:
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    importlib.import_module("tests.faults.preloaded")
    importlib.import_module(module).main()
