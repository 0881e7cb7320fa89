"""What a worker logs while an attempt runs, for the job's history: nobody has to search machines for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

from worker.contract.control_plane import Event
from worker.process.redaction import Redaction

MOST_LINES = 500
"""Of an attempt; the worker's own log has all."""
LONGEST_LINE = 4_000


_of_job: ContextVar[LogLines | None] = ContextVar("lines_of_job", default=None)


class LogLines(logging.Handler):
    """Keeps lines until they are sent. redaction: of what is never sent, whoever logged it.

    is_alone: no other job runs in this process, so every line is this one's. Otherwise those are that come
    from the context in which it is `logged`, or a copy of it.
    """

    def __init__(self, redaction: Redaction, *, is_alone: bool = True) -> None:
        super().__init__(logging.INFO)
        self._redaction = redaction
        self._is_alone = is_alone
        self._lines: list[Event] = []
        self._count = 0
        self._access = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Called by `logging`, in whatever thread logs."""
        if not self._is_alone and _of_job.get() is not self:
            return
        try:
            text = self.format(record)
        except Exception:
            self.handleError(record)
            return
        text = self._redaction.text(text)  # before it is cut
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        with self._access:
            self._count += 1
            if self._count > MOST_LINES:
                return
            if self._count == MOST_LINES:
                text = "There are more lines in the worker's own log."
            self._lines.append(
                Event(_level(record), text[:LONGEST_LINE], "log", {"at": at, "logger": record.name})
            )

    def take(self) -> list[Event]:
        """The lines that came since the last time."""
        with self._access:
            lines, self._lines = self._lines, []
        return lines


@contextmanager
def logged(lines: LogLines) -> Iterator[None]:
    """What is logged meanwhile goes there, too."""
    root = logging.getLogger()
    before = _of_job.set(lines)
    root.addHandler(lines)
    try:
        yield
    finally:
        root.removeHandler(lines)
        _of_job.reset(before)


def _level(record: logging.LogRecord) -> str:
    if record.levelno >= logging.ERROR:
        return "error"
    return "warning" if record.levelno >= logging.WARNING else "info"
