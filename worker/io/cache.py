"""What is kept in memory because it may be wanted again: values by name, within a bound of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
_ENTRY_BYTES = 500  # of a name and its place


@dataclass(slots=True)
class _Making:
    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: int = 0


class Cache:
    """As many as fit: the least recently used go first. Thread-safe. An error is nobody's value."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._making: dict[Hashable, _Making] = {}

    @property
    def size_bytes(self) -> int:
        """Of all values and their names, never above the bound."""
        return self._bytes

    def get(self, name: Hashable, make: Callable[[], T], size_of: Callable[[T], int]) -> T:
        """Made once, however many ask at the same time, unless it is too large to be kept.

        Raises what `make` raises; then the next one who asks makes it.
        """
        found: T | None = self.find(name)
        if found is not None:
            return found
        with self._lock:
            making = self._making.setdefault(name, _Making())
            making.waiting += 1
        try:
            with making.lock:
                found = self.find(name)
                if found is not None:
                    return found
                made = make()
                self.put(name, made, size_of(made))
                return made
        finally:
            with self._lock:
                making.waiting -= 1
                if not making.waiting:
                    del self._making[name]

    def find(self, name: Hashable) -> Any:
        """None if it is not there."""
        with self._lock:
            if (known := self._values.get(name)) is None:
                return None
            self._values.move_to_end(name)
            return known[0]

    def put(self, name: Hashable, value: object, size_bytes: int) -> None:
        size_bytes += _ENTRY_BYTES
        with self._lock:
            self._drop(name)
            if size_bytes > self._most_bytes:
                return
            self._values[name] = value, size_bytes
            self._bytes += size_bytes
            while self._bytes > self._most_bytes:
                self._drop(next(iter(self._values)))

    def forget(self, name: Hashable) -> None:
        with self._lock:
            self._drop(name)

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self._bytes = 0

    def _drop(self, name: Hashable) -> None:
        self._bytes -= self._values.pop(name, (None, 0))[1]
