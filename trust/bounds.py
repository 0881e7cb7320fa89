"""How much of what a catalog answers is taken, and for how long its answers are waited for.

A catalog need not end: a page may name a next one for ever, a body may have no last byte, or give one in each
minute. So whoever works with a catalog does it within a `Budget`, and every answer has a largest size.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import socket
import threading
import time
import zlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import accumulate
from typing import Final, Protocol

ANSWER_BYTES: Final = 64 * 1024**2
"""Of one answer or one metadata file, as it is sent and again when it is unpacked."""
ERROR_BYTES: Final = 1024**2
"""Of an answer that is an error."""
JSON_DEPTH: Final = 64
"""Objects and lists within each other."""
JSON_VALUES: Final = 500_000
JSON_CONTAINERS: Final = 200_000
"""Objects and lists. While a parser runs no other thread does: for 0.8 s of a core at most."""
JSON_DIGITS: Final = 500
"""In a row: reading a number, and writing it, takes the square of its length."""
PACKED_METADATA: Final = (".gz.metadata.json", ".metadata.json.gz")
"""What names of metadata files end in that gzip has packed."""
PAGES: Final = 1_000
"""Of one list."""
NAMES: Final = 250_000
"""Namespaces, or tables, of one catalog."""
LEVELS: Final = 32
"""Of a namespace."""
NAME_CHARACTERS: Final = 4_096
"""Of all parts of an identifier together."""

ONE_NAMESPACE: Final = "Look at one namespace, or divide the catalog."
"""What to do about lists that are too long."""

_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""Into a level, and out of it: 1 and -1 as signed bytes."""
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_TO_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_AT_ONCE = 65_536
"""Bytes that are looked through: other threads run in between."""


class LimitExceededError(Exception):
    """A catalog answers with more than is taken of it, or for longer; `remedy` says what to do."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.detail, self.remedy = detail, remedy


class NotUnpackedError(ValueError):
    """What is said to be packed is not."""


class OutOfTimeError(LimitExceededError):
    """A budget has run out, or whoever asked has left."""


class Budget:
    """How long some work with a catalog may take in all, however many calls it makes.

    Used as a context: what the thread does in it, and what it starts in a copy of its context, is held to it.
    When the time is over, or at `end`, each connection that it uses is cut, so that no read goes on.
    deadline: of `time.monotonic`.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.deadline = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._is_ended = False

    def __enter__(self) -> Budget:
        self._outer = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._outer)
        _watch.forget(self)

    def end(self) -> None:
        """The result is wanted no more."""
        with self._lock:
            self._is_ended = True
            self.deadline = min(self.deadline, time.monotonic())
            cut, self._sockets = self._sockets, set()
        for held in cut:
            with suppress(OSError):  # closed by its other side already
                held.shutdown(socket.SHUT_RDWR)
            held.close()

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    @property
    def remaining_seconds(self) -> float:
        return 0.0 if self._is_ended else max(self.deadline - time.monotonic(), 0.0)

    @property
    def overdue_seconds(self) -> float:
        return max(time.monotonic() - self.deadline, 0.0)

    def check(self) -> None:
        """Raises OutOfTimeError if there is no time left."""
        if self.remaining_seconds <= 0:
            raise OutOfTimeError(
                f"All that was asked of the catalog did not come within {self.seconds:g} s.",
                "Look at the catalog's own log for what is slow. The time goes by "
                "ICESTREAM_CATALOG_TIMEOUT_SECONDS.",
            )

    @contextmanager
    def holding(self, connection: socket.socket) -> Iterator[None]:
        """Cut a connection when the time is over. Raises OutOfTimeError if it is by now."""
        self.check()
        # Of its own: TLS takes the file descriptor out of the socket that it is made of, and has no `dup`.
        held = socket.socket(fileno=os.dup(connection.fileno()))
        with self._lock:
            self._sockets.add(held)
        try:
            _watch.keep(self)
            self.check()
            yield
        finally:
            with self._lock:
                self._sockets.discard(held)
            held.close()


class _Watch:
    """Ends budgets whose time is over, in one thread: a timer for each would start one for a call or two."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """With nothing, as in a child of this process, which has no other thread."""
        self._changed = threading.Condition()
        self._budgets: set[Budget] = set()
        self._looks_at = math.inf
        self._thread: threading.Thread | None = None

    def keep(self, budget: Budget) -> None:
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="budgets", daemon=True)
                thread.start()
                self._thread = thread
            self._budgets.add(budget)
            if budget.deadline < self._looks_at:
                self._changed.notify()

    def forget(self, budget: Budget) -> None:
        with self._changed:
            self._budgets.discard(budget)

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                over = {budget for budget in self._budgets if budget.deadline <= now}
                self._budgets -= over
                self._looks_at = min((budget.deadline for budget in self._budgets), default=math.inf)
                if not over:
                    self._changed.wait(self._looks_at - now if self._budgets else None)
            for budget in over:
                budget.end()


_watch = _Watch()
os.register_at_fork(after_in_child=_watch.begin)
_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


def current_budget() -> Budget | None:
    return _current.get()


@contextmanager
def working(seconds: float) -> Iterator[Budget]:
    """Within the budget that there is, or one of so many seconds."""
    if (budget := _current.get()) is not None:
        yield budget
        return
    with Budget(seconds) as budget:
        yield budget


def check_time() -> None:
    """Raise OutOfTimeError if the time of the work that is done here is over."""
    if (budget := _current.get()) is not None:
        budget.check()


def is_ended() -> bool:
    """Whether nobody waits any more for the work that is done here."""
    return (budget := _current.get()) is not None and budget.is_ended


@contextmanager
def holding(connection: socket.socket) -> Iterator[None]:
    """Cut a connection when the time of the work that is done here is over; see Budget."""
    budget = _current.get()
    if budget is None:
        yield
        return
    with budget.holding(connection):
        yield
        budget.check()


def too_large(what: str, most_bytes: int) -> LimitExceededError:
    return LimitExceededError(
        f"{what} has more than {most_bytes // 1024**2} MiB.",
        "If it is the metadata of a table, expire its snapshots (expire_snapshots), and let the writer "
        "delete old metadata (write.metadata.previous-versions-max). Otherwise ask who runs the catalog.",
    )


def check_size(size: int, most_bytes: int, what: str) -> None:
    """Raise LimitExceededError for what is too large."""
    if size > most_bytes:
        raise too_large(what, most_bytes)


def check_json(content: bytes, what: str) -> None:
    """Raise LimitExceededError for JSON that a parser would make too much of; others may be anything."""
    if check_values(content, what) > JSON_DEPTH and is_deeper(content, JSON_DEPTH):
        raise LimitExceededError(
            f"{what} has objects and lists that lie within each other more than {JSON_DEPTH} times.",
            "Nothing that Iceberg knows is nested so deep: ask who runs the catalog.",
        )


def check_values(content: bytes, what: str) -> int:
    """How many objects and lists JSON has. Raises LimitExceededError as `check_json`, whatever their depth.

    Only brackets, commas and digits are counted, without parsing: it must be cheap whatever the content is.
    """
    containers = commas = 0
    zeros = b""
    for piece in _pieces(content):
        zeros = zeros[-JSON_DIGITS:] + piece.translate(_TO_ZEROS)
        if b"0" * (JSON_DIGITS + 1) in zeros:
            raise LimitExceededError(
                f"{what} has more than {JSON_DIGITS:,} digits in a row.",
                "No number that Iceberg knows is so long: ask who runs the catalog.",
            )
        containers += piece.count(b"[") + piece.count(b"{")
        commas += piece.count(b",")
        if containers > JSON_CONTAINERS or containers + commas > JSON_VALUES:
            raise LimitExceededError(
                f"{what} has more than {JSON_CONTAINERS:,} objects and lists, or {JSON_VALUES:,} values.",
                "If it is the metadata of a table, expire its snapshots; if it is a list, have the catalog "
                "put less on a page (rest-page-size). Otherwise ask who runs the catalog.",
            )
    return containers


def is_deeper(content: bytes, most: int) -> bool:
    """Whether JSON nests its objects and lists more than so many times."""
    depth, is_inside, escape = 0, False, b""
    for piece in _pieces(content):
        # Without escapes, each quote begins or ends a string. A backslash outside of one is no JSON.
        unescaped = (escape + piece).replace(b"\\\\", b"")
        escape = b"\\" if unescaped.endswith(b"\\") else b""
        parts = unescaped.replace(b'\\"', b"").split(b'"')
        steps = b"".join(parts[is_inside::2]).translate(_STEPS, _NO_BRACKETS)
        depths = list(accumulate(array("b", steps), initial=depth))
        if max(depths) > most:
            return True
        depth = depths[-1]
        is_inside ^= len(parts) % 2 == 0
    return False


def _pieces(content: bytes) -> Iterator[bytes]:
    """All of it. Raises OutOfTimeError."""
    for begin in range(0, len(content), _AT_ONCE):
        check_time()
        yield content[begin : begin + _AT_ONCE]


class _Readable(Protocol):
    def read(self, most_bytes: int, /) -> bytes: ...


def read_bounded(source: _Readable, what: str) -> bytes:
    """All that an answer or a file has. Raises LimitExceededError."""
    parts: list[bytes] = []
    size = 0
    while part := source.read(1024**2):
        check_time()
        size += len(part)
        check_size(size, ANSWER_BYTES, what)
        parts.append(part)
    return b"".join(parts)


def unpacked(content: bytes, what: str) -> bytes:
    """What gzip has packed. Raises LimitExceededError, and NotUnpackedError."""
    try:
        with gzip.open(io.BytesIO(content)) as source:
            return read_bounded(source, f"{what}, unpacked,")
    except (zlib.error, OSError, EOFError) as error:
        raise NotUnpackedError(f"{what} is not what gzip packs: {error}") from error


def checked_names(names: Iterable[tuple[str, ...]], what: str) -> Iterator[tuple[str, ...]]:
    """Names of a catalog, one after the other. Raises LimitExceededError, OutOfTimeError."""
    for number, name in enumerate(names, start=1):
        if number > NAMES:
            raise LimitExceededError(
                f"The catalog names more than {NAMES:,} {what}.",
                ONE_NAMESPACE,
            )
        if len(name) > LEVELS + 1 or sum(map(len, name)) > NAME_CHARACTERS:
            raise LimitExceededError(
                f"The catalog names something of {len(name):,} parts and {sum(map(len, name)):,} characters; "
                f"at most {LEVELS} levels of namespaces and {NAME_CHARACTERS:,} characters are taken.",
                "No table can be enrolled by such a name: ask who runs the catalog.",
            )
        if number % 1_000 == 1:
            check_time()
        yield name


class Pages:
    """Follows the tokens of a list's pages, and knows when it must not."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def follow(self, token: str | None) -> bool:
        """Whether there is another page. Raises LimitExceededError, OutOfTimeError."""
        check_time()
        if not token:
            return False
        if token in self._seen:
            raise LimitExceededError(
                "A page of the catalog's list names a page as its next one that was read already.",
                "The list would never end. It is a fault of the catalog: ask who runs it.",
            )
        self._seen.add(token)
        if len(self._seen) >= PAGES:
            raise LimitExceededError(
                f"A list of the catalog has more than {PAGES:,} pages.",
                "Have the catalog put more on a page (rest-page-size), or look at one namespace.",
            )
        return True
