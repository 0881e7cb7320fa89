"""Reads the SQLite database of a sql catalog, and never writes beside it.

Invariant: no file appears where the database lies or lay. SQLite itself makes a database that is not there as
it opens it, and the files of its write-ahead log as it reads.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trust.bounds import ANSWER_BYTES, ERROR_BYTES, NAMES, LimitExceededError, check_size, current_budget

_STEPS_AT_ONCE = 50_000
"""Of SQLite's machine, some milliseconds: then it asks whether to go on."""
_ROWS = 2 * NAMES
"""Of one answer: the properties of a namespace are rows, too."""
_ROW_BYTES = 100
"""About as much does an empty one take."""
_WRITE_AHEAD = b"\x02\x02"
_VERSIONS = slice(18, 20)
"""Of the file format, in its header: what is needed to write, and to read."""


class DatabaseMissingError(FileNotFoundError):
    """The file is not there: its disk may be, or it may have been moved."""


def connect(path: str, lock_seconds: float) -> sqlite3.Connection:
    """A connection that can only read. Raises DatabaseMissingError."""
    if not Path(path).is_file():
        raise DatabaseMissingError(f"the catalog's database {path} is not there")
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode=ro{_unless_written(path)}",
        uri=True,
        timeout=lock_seconds,
        check_same_thread=False,
        factory=_BoundedConnection,
    )
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, ERROR_BYTES)
    if (budget := current_budget()) is not None:
        connection.set_progress_handler(lambda: int(budget.remaining_seconds <= 0), _STEPS_AT_ONCE)
    return connection


def _unless_written(path: str) -> str:
    """Where nobody has a write-ahead log open, reading must not begin one: it would stay."""
    with Path(path).open("rb") as file:
        is_ahead = file.read(_VERSIONS.stop)[_VERSIONS] == _WRITE_AHEAD
    return "&immutable=1" if is_ahead and not Path(f"{path}-wal").exists() else ""


class _BoundedCursor(sqlite3.Cursor):
    def fetchall(self) -> list[Any]:
        rows: list[Any] = []
        size = 0
        for row in self:
            rows.append(row)
            size += _ROW_BYTES + _text_bytes(row)
            check_size(size, ANSWER_BYTES, "An answer of the catalog's database")
            if len(rows) > _ROWS:
                raise LimitExceededError(
                    f"An answer of the catalog's database has more than {_ROWS:,} rows.",
                    "Look at one namespace, or divide the catalog.",
                )
        return rows


def _text_bytes(row: Sequence[Any]) -> int:
    return sum(len(value) for value in row if isinstance(value, str | bytes))


class _BoundedConnection(sqlite3.Connection):
    def cursor(self, factory: Any = _BoundedCursor) -> Any:
        return super().cursor(factory)
