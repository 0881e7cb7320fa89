"""What a worker logs while an attempt runs, for the job's history: nobody has to search machines for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from worker.control_plane import Event

MOST_LINES = 500
"""Of an attempt; the worker's own log has all."""
LONGEST_LINE = 4_000


class LogLines(logging.Handler):
    """Keeps lines until they are sent. secrets: what is never sent, whoever logged it."""

    def __init__(self, secrets: Collection[str]) -> None:
        super().__init__(logging.INFO)
        self._secrets = sorted(secrets, key=len, reverse=True)
        self._lines: list[Event] = []
        self._count = 0
        self._access = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Called by `logging`, in whatever thread logs."""
        try:
            text = self.format(record)
        except Exception:
            self.handleError(record)
            return
        text = self.without_secrets(text)
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

    def without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def take(self) -> list[Event]:
        """The lines that came since the last time."""
        with self._access:
            lines, self._lines = self._lines, []
        return lines


@contextmanager
def logged(lines: LogLines) -> Iterator[None]:
    """Everything that this process logs meanwhile goes there, too."""
    root = logging.getLogger()
    root.addHandler(lines)
    try:
        yield
    finally:
        root.removeHandler(lines)


def _level(record: logging.LogRecord) -> str:
    if record.levelno >= logging.ERROR:
        return "error"
    return "warning" if record.levelno >= logging.WARNING else "info"
