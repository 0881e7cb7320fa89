"""Reads the SQLite database of a sql catalog, and never writes beside it.

Invariant: no file appears where the database lies or lay. SQLite itself makes a database that is not there as
it opens it, and the files of its write-ahead log as it reads. Only where a writer left such a log may its
shared memory appear: nothing else can read that.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from urllib.parse import quote

from trust.bounds import (
    ANSWER_BYTES,
    ERROR_BYTES,
    NAMES,
    ONE_NAMESPACE,
    LimitExceededError,
    check_size,
    current_budget,
)

_STEPS_AT_ONCE = 50_000
"""Of SQLite's machine, some milliseconds: then it asks whether to go on."""
_ROWS = 2 * NAMES
"""Of one answer: the properties of a namespace are rows, too."""
_ROW_BYTES = 100
"""About as much does an empty one take."""
_WRITE_AHEAD = b"\x02\x02"
_VERSIONS = slice(18, 20)
"""Of the file format, in its header: what is needed to write, and to read."""


P = ParamSpec("P")
T = TypeVar("T")


class DatabaseMissingError(FileNotFoundError):
    """The file is not there: its disk may be, or it may have been moved."""


class ChangedMeanwhileError(Exception):
    """A writer changed the database while it was read as one that nobody writes; a retry helps."""


def connect(path: str, lock_seconds: float) -> sqlite3.Connection:
    """A connection that can only read. Raises DatabaseMissingError.

    What is read with it raises ChangedMeanwhileError, too.
    """
    # SQLite's own files lie beside what a link leads to.
    real = os.path.realpath(path)
    if not Path(real).is_file():
        raise DatabaseMissingError(f"the catalog's database {path} is not there")
    before = _state(real)
    is_unwritten = _is_unwritten(real)
    connection = sqlite3.connect(
        f"file:{quote(real)}?mode=ro{'&immutable=1' if is_unwritten else ''}",
        uri=True,
        timeout=lock_seconds,
        check_same_thread=False,
        factory=_BoundedConnection,
    )
    if is_unwritten:
        connection.is_as_it_was = lambda: _state(real) == before
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, ERROR_BYTES)
    if (budget := current_budget()) is not None:
        connection.set_progress_handler(lambda: int(budget.remaining_seconds <= 0), _STEPS_AT_ONCE)
    return connection


def read_again_if_changed(read: Callable[P, T]) -> Callable[P, T]:
    """Once more, with a new connection, if a writer came in between."""

    @wraps(read)
    def again(*args: P.args, **given: P.kwargs) -> T:
        try:
            return read(*args, **given)
        except ChangedMeanwhileError:
            return read(*args, **given)

    return again


def _is_unwritten(path: str) -> bool:
    """Where nobody has a write-ahead log open, reading must not begin one: it would stay."""
    with Path(path).open("rb") as file:
        is_ahead = file.read(_VERSIONS.stop)[_VERSIONS] == _WRITE_AHEAD
    return is_ahead and not Path(f"{path}-wal").exists()


def _state(path: str) -> tuple[int, int, int]:
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        raise DatabaseMissingError(f"the catalog's database {path} is not there") from None
    return found.st_ino, found.st_size, found.st_mtime_ns


class _BoundedCursor(sqlite3.Cursor):
    connection: "_BoundedConnection"

    def execute(self, *args: Any) -> "_BoundedCursor":
        with self._as_it_was():
            super().execute(*args)
        return self

    def fetchone(self) -> Any:
        with self._as_it_was():
            return super().fetchone()

    def fetchmany(self, *args: Any) -> list[Any]:
        with self._as_it_was():
            return super().fetchmany(*args)

    def fetchall(self) -> list[Any]:
        with self._as_it_was():
            return self._fetch_bounded()

    @contextmanager
    def _as_it_was(self) -> Iterator[None]:
        """A reader without locks gets pages of before and after, which need not even be malformed."""
        try:
            yield
        except sqlite3.DatabaseError:
            self._check_as_it_was()
            raise
        self._check_as_it_was()

    def _check_as_it_was(self) -> None:
        if not self.connection.is_as_it_was():
            raise ChangedMeanwhileError("the catalog's database was written to while it was read")

    def _fetch_bounded(self) -> list[Any]:
        rows: list[Any] = []
        size = 0
        for row in self:
            rows.append(row)
            size += _ROW_BYTES + _text_bytes(row)
            check_size(size, ANSWER_BYTES, "An answer of the catalog's database")
            if len(rows) > _ROWS:
                raise LimitExceededError(
                    f"An answer of the catalog's database has more than {_ROWS:,} rows.",
                    ONE_NAMESPACE,
                )
        return rows


def _text_bytes(row: Sequence[Any]) -> int:
    return sum(len(value) for value in row if isinstance(value, str | bytes))


class _BoundedConnection(sqlite3.Connection):
    is_as_it_was: Callable[[], bool] = staticmethod(lambda: True)

    def cursor(self, factory: Any = _BoundedCursor) -> Any:
        return super().cursor(factory)
