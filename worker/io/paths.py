"""Paths of very many files in one column: their text lies in a temporary file beyond a bound.

Invariant: paths are compared as they are written; a hash only says where to look.
"""

import mmap
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import overload

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from worker.io.sorting import Int64Array, UInt64Array

MEMORY_BYTES = 128 * 1024**2  # of text that stays in memory: more than a million paths
PIECE = 65_536  # paths that are taken out of a column at a time
FEW = 100
"""Paths that take less time as Python has them than in columns."""


class Paths(Sequence[str]):
    """Paths in the order in which they came, 8 bytes each beside their text.

    The temporary file is mapped, so the system may take the memory of what was read from it back.
    """

    def __init__(self, parts: Iterable[pa.Array] = ()) -> None:
        """Raises OSError when the disk is full."""
        ends, size = [np.zeros(1, np.int64)], 0
        with tempfile.SpooledTemporaryFile(MEMORY_BYTES, prefix="icestream-paths-") as text:
            for part in parts:
                if not len(part):
                    continue
                part = part.cast(pa.large_string())
                _, offsets, content = part.buffers()
                at = np.frombuffer(offsets, np.int64)[part.offset : part.offset + len(part) + 1]
                if content is not None:
                    text.write(memoryview(content)[at[0] : at[-1]])
                ends.append(at[1:] - at[0] + size)
                size = int(ends[-1][-1])
            if size > MEMORY_BYTES:
                text.flush()
                content = pa.py_buffer(mmap.mmap(text.fileno(), size, prot=mmap.PROT_READ))
            else:
                text.seek(0)
                content = pa.py_buffer(text.read())
        joined = np.concatenate(ends)
        self._array = pa.LargeStringArray.from_buffers(len(joined) - 1, pa.py_buffer(joined), content)

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        found: str | list[str]
        found = self._array[place].as_py() if isinstance(place, int) else self._array[place].to_pylist()
        return found

    def __reduce__(self) -> tuple[object, ...]:
        return Paths, ([self._array],)

    @property
    def size_bytes(self) -> int:
        """With their text, wherever it lies."""
        return int(self._array.nbytes)

    def take(self, places: Int64Array) -> pa.Array:
        return self._array.take(pa.array(places))

    def pieces(self, places: Int64Array | None = None) -> Iterator[pa.Array]:
        """All paths, or those at some places, some at a time."""
        for start in range(0, len(self) if places is None else len(places), PIECE):
            if places is None:
                yield self._array.slice(start, PIECE)
            else:
                yield self.take(places[start : start + PIECE])

    def pairs(self, others: Iterable[pa.Array]) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Which of the others, counted through, equals which path here: every pair, some at a time."""
        return PathPlaces(self).pairs(others)


class PathPlaces:
    """Where each path lies in a column, 8 bytes each beside it.

    Few paths are looked for in a dictionary: to hash them in columns takes some hundred microseconds.
    """

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        # A number a path, sorted: as much of its hash as fits above its place.
        self._place_bits = np.uint64((1 << len(paths).bit_length()) - 1)

    def pairs(self, others: Iterable[pa.Array]) -> Iterator[tuple[Int64Array, Int64Array]]:
        """As `Paths.pairs`; of paths that are equal, the first comes first."""
        start = 0
        for piece in others:
            are_few = len(piece) <= FEW and len(self._paths) <= FEW
            for rows, places in self._of_few(piece) if are_few else self._of_many(piece):
                yield start + rows, places
            start += len(piece)

    @cached_property
    def _packed(self) -> UInt64Array:
        packed: UInt64Array
        packed = np.concatenate([np.empty(0, np.uint64), *map(_hashes, self._paths.pieces())])
        packed &= ~self._place_bits
        packed |= np.arange(len(self._paths), dtype=np.uint64)
        packed.sort()
        return packed

    @cached_property
    def _by_path(self) -> Mapping[str, Sequence[int]]:
        found: dict[str, list[int]] = {}
        for place, path in enumerate(self._paths[:]):
            found.setdefault(path, []).append(place)
        return found

    def _of_few(self, piece: pa.Array) -> Iterator[tuple[Int64Array, Int64Array]]:
        known = [self._by_path.get(path, ()) for path in piece.to_pylist()]
        rows = np.repeat(np.arange(len(piece)), [len(places) for places in known])
        yield rows, np.fromiter(chain.from_iterable(known), np.int64, len(rows))

    def _of_many(self, piece: pa.Array) -> Iterator[tuple[Int64Array, Int64Array]]:
        packed, place_bits = self._packed, self._place_bits
        wanted = _hashes(piece) & ~place_bits
        first = np.searchsorted(packed, wanted)
        counts = np.searchsorted(packed, wanted | place_bits, side="right") - first
        ends = np.cumsum(counts)
        for begin in range(0, int(counts.sum()), PIECE):
            pairs = np.arange(begin, min(begin + PIECE, ends[-1]))
            rows = np.searchsorted(ends, pairs, side="right")
            places = (packed[first[rows] + pairs - (ends - counts)[rows]] & place_bits).astype(np.int64)
            same = pc.equal(piece.take(pa.array(rows)), self._paths.take(places)).to_numpy(
                zero_copy_only=False
            )
            yield rows[same], places[same]


def may_repeat(pieces: Iterable[pa.Array]) -> Int64Array:
    """Which paths, counted through, have the hash of another one: those that come twice, and hardly more."""
    hashes = np.concatenate([np.empty(0, np.uint64), *map(_hashes, pieces)])
    _, which, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    return np.flatnonzero(counts[which] > 1)


def _hashes(paths: pa.Array) -> UInt64Array:
    """The same for equal paths in all of this process."""
    hashes: UInt64Array = pl.Series(paths).hash().to_numpy()
    return hashes
