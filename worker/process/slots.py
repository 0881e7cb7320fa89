"""What jobs have of their own that run in one process at the same time, and share its Spark session.

Invariant: a thread that a job starts runs in the job's context, by which log lines are known as the job's.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
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


class Threads(ThreadPoolExecutor):
    """Threads that run what they are given in the context of whoever gives it."""

    def submit(self, call: Callable[..., R], /, *arguments: Any, **named: Any) -> Future[R]:
        return super().submit(copy_context().run, call, *arguments, **named)
