"""How much memory the questions of a process hold together: each takes its share before it holds something.

Who finds none left waits for others to be over, and is refused in the end: another process may have some.
Where there is no budget, as in a job, all there is may be held.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from trust import refusals
from worker.process.errors import JobError


class ServerBusyError(JobError):
    code = "busy"
    title, remedy = refusals.BUSY
    retryable = True


class MemoryBudget:
    """Thread-safe."""

    def __init__(self, most_bytes: int, wait_seconds: float) -> None:
        self._most_bytes = most_bytes
        self._wait_seconds = wait_seconds
        self.taken_bytes = 0
        self._changed = threading.Condition()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """What is taken meanwhile is given back at the end."""
        share = _Share()
        outer = _current.set((self, share))
        try:
            yield
        finally:
            _current.reset(outer)
            share.is_over = True
            self.give(share, share.taken_bytes)

    def take(self, share: _Share, size_bytes: int, *, waits: bool) -> None:
        """Whoever is alone gets what it wants: what one question holds has bounds of its own."""
        with self._changed:

            def has_room() -> bool:
                is_alone = self.taken_bytes == share.taken_bytes
                return is_alone or self.taken_bytes + size_bytes <= self._most_bytes

            if not self._changed.wait_for(has_room, self._wait_seconds if waits else 0):
                raise ServerBusyError(
                    f"Its questions hold {self.taken_bytes:,} of {self._most_bytes:,} bytes."
                )
            if share.is_over:
                raise ServerBusyError("The question is over.")
            self.taken_bytes += size_bytes
            share.taken_bytes += size_bytes

    def give(self, share: _Share, size_bytes: int) -> None:
        with self._changed:
            size_bytes = min(size_bytes, share.taken_bytes)  # none any more when the question is over
            self.taken_bytes -= size_bytes
            share.taken_bytes -= size_bytes
            self._changed.notify_all()


class _Share:
    """What is taken by one question, whose threads share it, and may be there for longer."""

    def __init__(self) -> None:
        self.taken_bytes = 0
        self.is_over = False


_current: ContextVar[tuple[MemoryBudget, _Share] | None] = ContextVar("memory", default=None)


def take_memory(size_bytes: int, *, waits: bool = True) -> None:
    """For what is held until the question is over. Raises ServerBusyError."""
    if (current := _current.get()) is not None:
        budget, share = current
        budget.take(share, size_bytes, waits=waits)


@contextmanager
def holding(size_bytes: int) -> Iterator[None]:
    """For what is held meanwhile. Raises ServerBusyError."""
    current = _current.get()
    if current is None:
        yield
        return
    budget, share = current
    budget.take(share, size_bytes, waits=True)
    try:
        yield
    finally:
        budget.give(share, size_bytes)
