"""Files of which is kept what was read: for a process that answers one question after the other.

Invariant: these files never change under their names, as those of tables and indexes do not.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from stores.ranges import RangeReader
from worker.io.cache import Cache
from worker.io.row_groups import Content, read_ranges
from worker.io.storage import Storage

_RANGE_BYTES = 256 * 1024
"""Of a longer range, only what is decoded of it is worth keeping."""
_HANDLE_BYTES = 4_000


class CachedFiles(Storage):
    """Local files are mapped, which the system keeps; of remote ones, sizes and short ranges are kept."""

    def __init__(self, properties: Mapping[str, str], cache: Cache) -> None:
        super().__init__(properties)
        self._cache = cache

    def open_input(self, location: str, size_bytes: int | None = None) -> Any:
        """As that of `Storage`; a kept file that is gone says so when it is read."""
        open_file = partial(super().open_input, location, size_bytes)
        return open_file() if self.is_local(location) else self.kept_file(location, open_file)

    def kept_file(self, location: str, open_file: Callable[[], Any]) -> CachedFile:
        name = ("file", self, location)
        # Opening it may be a request, for its size; open, it is a name, perhaps with the end of the file.
        source = self._cache.get(name, open_file, lambda file: _HANDLE_BYTES + getattr(file, "kept_bytes", 0))
        return CachedFile(self._cache, name, source, partial(self._check_there, location))

    def _check_there(self, location: str) -> None:
        """Of an open file that is gone, stores say no more than that it can't be read."""
        if not self.exists(location):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), location)


class CachedFile(RangeReader):
    """An open remote file, as Arrow has them; it can be read by any number of threads.

    check_there: raises FileNotFoundError if it is gone.
    """

    def __init__(
        self, cache: Cache, name: tuple[object, ...], source: pa.NativeFile, check_there: Callable[[], None]
    ) -> None:
        super().__init__(source.size())
        self._cache = cache
        self._name = name
        self._source = source
        self._check_there = check_there

    def size(self) -> int:
        return self._size

    def read_at(self, nbytes: int, offset: int) -> bytes:
        end = min(offset + nbytes, self._size)
        return bytes(self.read_ranges([(offset, end)])[0])

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[Content]:
        """(start, end) of each in bytes, ascending: what is not kept is asked for at once.

        Raises FileNotFoundError (the file is gone) or OSError (a retry can help).
        """
        found = [self._cache.find((*self._name, one)) for one in ranges]
        missing = [one for one, content in zip(ranges, found, strict=True) if content is None]
        if not missing:
            return found
        try:
            read = dict(zip(missing, read_ranges(self._source, missing), strict=True))
        except OSError:
            self._cache.forget(self._name)
            self._check_there()
            raise
        for one, content in read.items():
            if len(content) <= _RANGE_BYTES:
                # A copy: beside it, an answer may hold what nobody wants.
                self._cache.put((*self._name, one), bytes(content), len(content))
        return [read[one] if known is None else known for one, known in zip(ranges, found, strict=True)]

    def read(self, size: int = -1) -> bytes:
        start, end = self.advance(size)
        return self.read_at(end - start, start)
