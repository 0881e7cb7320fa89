"""Ends a JVM of Spark's that hangs, or in which Spark has ended."""

import logging
import threading
from typing import Self

from worker.process.threads import outliving_shortage
from worker.spark.tasks import TaskRunner

log = logging.getLogger("icestream.worker")
JVM_SILENCE_SECONDS = 60.0  # a collection of garbage takes seconds at most


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

    def __enter__(self) -> Self:
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
