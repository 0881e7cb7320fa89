"""Threads where memory is scarce: one that can't begin, or runs out of it, must not make a job hang.

Python's own `Thread.start` waits for ever for a thread that dies before it has told that it runs
(https://github.com/python/cpython/issues/140746), as it does where memory has a limit; the job would keep
its lease. What is bounded here is so in every process that imports the worker, the driver and Python
processes of Spark's, and for whatever library starts threads there.
"""

import threading
import time
from collections.abc import Callable

START_SECONDS = 10.0
"""A thread that has memory begins at once, however busy the machine is."""
CANT_START = "can't start new thread"
"""Python's words for a thread that the system refuses."""
_WAITS = 10
_PAUSE_SECONDS = 1.0


class _NotBegunError(Exception):
    pass


class _Begun(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None:
            return super().wait(timeout)
        for _ in range(_WAITS):  # while this whole process stands still, no more than one of them passes
            if super().wait(START_SECONDS / _WAITS):
                return True
        raise _NotBegunError


def bound_thread_starts() -> None:
    """From now on, a thread of this process that has not begun after START_SECONDS is a RuntimeError."""
    start: Callable[[threading.Thread], None] = threading.Thread.start
    state = vars(threading)

    def bounded_start(thread: threading.Thread) -> None:
        if not thread._started.is_set():  # type: ignore[attr-defined]
            thread._started = _Begun()  # type: ignore[attr-defined]
        try:
            start(thread)
        except _NotBegunError:
            with state["_active_limbo_lock"]:
                # Whoever lost its place there does not run what it is for, should it begin after all.
                has_begun = state["_limbo"].pop(thread, None) is None
            if not has_begun:
                raise RuntimeError(CANT_START) from None

    threading.Thread.start = bounded_start  # type: ignore[method-assign, assignment]


def outliving_shortage(loop: Callable[[], None]) -> Callable[[], None]:
    """A thread's loop that begins again after a MemoryError: others rely on it, and it needs little."""

    def run() -> None:
        while True:
            try:
                return loop()
            except MemoryError:
                time.sleep(_PAUSE_SECONDS)

    return run
