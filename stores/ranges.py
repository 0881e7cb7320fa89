"""What Python's file objects want of a file that is read by ranges."""

from __future__ import annotations

import io


class RangeReader(io.RawIOBase):
    """Its place in a file of `size` bytes; a subclass reads."""

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def advance(self, size: int) -> tuple[int, int]:
        """(start, end) of the next `size` bytes, or of all that is left if that is negative."""
        start = self._at
        self._at = end = min(self._size, start + size) if size >= 0 else self._size
        return start, end
