"""What jobs have of their own that run in one process at the same time, and share its Spark session.

Invariant: a thread that a job starts runs in the job's context, by which log lines are known as the job's.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

R = TypeVar("R")


@dataclass(frozen=True)
class Slot:
    """A place for a job, one after the other: its number, from 1 on, of how many places of the process."""

    number: int = 1
    count: int = 1

    @property
    def is_alone(self) -> bool:
        """Whether the process runs one job at a time."""
        return self.count == 1

    @property
    def pool(self) -> str | None:
        """The pool of Spark's fair scheduler in which its jobs' tasks wait; None for the default one."""
        return None if self.is_alone else f"slot-{self.number}"

    @property
    def memory_fraction(self) -> float:
        """Of what a job alone would hold, a power of 1/2: all of them together hold no more than that."""
        return 0.5 ** (self.count - 1).bit_length()

    def name(self, worker: str) -> str:
        """By which the service knows it: to that it is a worker like any other."""
        return worker if self.is_alone else f"{worker}/{self.number}"

    def share(self, whole: int) -> int:
        """Of what the process has, at least one."""
        return max(1, whole // self.count)


ALONE = Slot()


class Threads(Executor):
    """Threads that run what they are given in the context of whoever gives it.

    They are the process's: one that has nothing to do runs what is given next, to whichever of these. To
    start one takes longer than many a task, and a job begins and ends a dozen stages.
    """

    def __init__(self, most: int, name: str = "threads") -> None:
        """most: that run at a time."""
        self._most = most
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running = 0
        self._is_shut = False

    def submit(self, call: Callable[..., R], /, *arguments: Any, **named: Any) -> Future[R]:
        """Raises RuntimeError where the system lets no thread begin that is needed for it."""
        future: Future[R] = Future()
        run = partial(copy_context().run, call, *arguments, **named)
        with self._changed:
            if self._is_shut:
                raise RuntimeError("no more is taken after a shutdown")
            if self._running == self._most:
                self._waiting.append((future, run))
                return future
            self._running += 1
        try:
            _thread().give(self._name, partial(self._run, future, run))
        except BaseException:
            self._end_one()
            raise
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """wait: until all is done that was given and not cancelled."""
        with self._changed:
            self._is_shut = True
            dropped = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
        for future, _ in dropped:
            future.cancel()
            future.set_running_or_notify_cancel()
        if wait:
            with self._changed:
                self._changed.wait_for(lambda: not self._running)

    def _run(self, future: Future[Any], run: Callable[[], Any]) -> None:
        """This, and what waits, in a thread."""
        try:
            while True:
                if future.set_running_or_notify_cancel():
                    try:
                        future.set_result(run())
                    except BaseException as error:  # handed to whoever waits
                        future.set_exception(error)
                del future, run  # and with these what they hold, such as rows
                with self._changed:
                    if not self._waiting:
                        return
                    future, run = self._waiting.popleft()
        finally:
            self._end_one()

    def _end_one(self) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()


class _Thread(threading.Thread):
    """Runs one thing after the other, and ends once there was nothing for some seconds.

    Python does not wait for it at its end: see `are_busy`.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.is_busy = True
        self._given: SimpleQueue[tuple[str, Callable[[], None]]] = SimpleQueue()

    def give(self, name: str, run: Callable[[], None]) -> None:
        """To one that is not among `_idle`."""
        self._given.put((name, run))

    def run(self) -> None:
        while True:
            try:
                self.name, run = self._given.get(timeout=IDLE_SECONDS)
            except Empty:
                try:
                    _idle.remove(self)
                except ValueError:
                    continue  # it is about to be given something
                return
            self.is_busy = True
            try:
                run()
            finally:
                del run
                self.is_busy = False
                _idle.append(self)


IDLE_SECONDS = 10.0
_idle: list[_Thread] = []
"""Each call of a list's is one step, whatever threads there are."""
os.register_at_fork(after_in_child=_idle.clear)


def _thread() -> _Thread:
    """One that has nothing to do."""
    try:
        return _idle.pop()
    except IndexError:
        thread = _Thread()
        thread.start()
        return thread


def are_busy() -> bool:
    """Whether some threads still run what they were given."""
    return any(isinstance(one, _Thread) and one.is_busy for one in threading.enumerate())
