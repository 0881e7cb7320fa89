"""Positions of rows to delete, by data file; beyond a bound they lie in a temporary file."""

import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import cached_property
from typing import IO

import numpy as np

from worker.io.sorting import Int64Array
from worker.lookup.index_lookup import Matches
from worker.table.files import DataFile, DataFiles

MEMORY_POSITIONS = 16_000_000  # 8 bytes each


class Positions:
    """0-based positions by data file: filled with `add`, then read file by file, sorted, each once."""

    def __init__(self, data_files: DataFiles, memory_fraction: float = 1.0) -> None:
        """data_files: those that the ordinals of matches mean. memory_fraction: of the usual bound."""
        self._bound = int(MEMORY_POSITIONS * memory_fraction)
        self.matches = 0
        self._data_files = data_files
        self._in_memory: dict[int, list[Int64Array]] = defaultdict(list)  # by ordinal
        self._rows_in_memory = 0
        self._on_disk: dict[int, list[tuple[int, int]]] = defaultdict(list)  # offset and rows
        self._file: IO[bytes] | None = None

    def add(self, found: Matches) -> None:
        """Raises OSError when the disk is full."""
        order = np.argsort(found.ordinals, kind="stable")
        ordinals, positions = found.ordinals[order], found.positions[order]
        starts = np.flatnonzero(np.concatenate([[len(ordinals) > 0], ordinals[1:] != ordinals[:-1]]))
        for start, part in zip(starts, np.split(positions, starts[1:]), strict=False):
            self._in_memory[int(ordinals[start])].append(part)
        self.matches += len(positions)
        self._rows_in_memory += len(positions)
        if self._rows_in_memory > self._bound:
            self._spill()

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="icestream-positions-")  # noqa: SIM115
        self._file.seek(0, 2)
        for ordinal, parts in self._in_memory.items():
            rows = np.concatenate(parts)
            self._on_disk[ordinal].append((self._file.tell(), len(rows)))
            self._file.write(rows.tobytes())
        self._in_memory.clear()
        self._rows_in_memory = 0

    def data_files(self) -> Set[DataFile]:
        return self._ordinals.keys()

    @cached_property
    def _ordinals(self) -> dict[DataFile, list[int]]:
        """More than one of a data file that the table has twice."""
        ordinals = sorted({*self._in_memory, *self._on_disk})
        found: dict[DataFile, list[int]] = defaultdict(list)
        for file, ordinal in zip(self._data_files.select(ordinals), ordinals, strict=True):
            found[file].append(ordinal)
        return dict(found)

    def of(self, file: DataFile) -> Int64Array:
        """Those of one data file; none if it has none."""
        parts: list[Int64Array] = []
        for ordinal in self._ordinals.get(file, ()):
            parts += self._in_memory.get(ordinal, ())
            for offset, rows in self._on_disk.get(ordinal, ()):
                assert self._file is not None
                self._file.seek(offset)
                parts.append(np.frombuffer(self._file.read(8 * rows), np.int64))
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def rows_of(self, file: DataFile) -> int:
        """How many were added for one data file, repeated ones included."""
        return sum(
            sum(map(len, self._in_memory.get(ordinal, ())))
            + sum(n for _, n in self._on_disk.get(ordinal, ()))
            for ordinal in self._ordinals.get(file, ())
        )


def union(all_positions: Sequence[Positions], file: DataFile) -> Int64Array:
    """The positions that any of several key sets found in one data file: sorted, each once."""
    return np.unique(np.concatenate([positions.of(file) for positions in all_positions]))


def in_batches(
    files: Iterable[DataFile], all_positions: Sequence[Positions], files_at_most: int, rows_at_most: int
) -> Iterator[list[DataFile]]:
    """Files in order, in groups bounded by number and by positions (a larger one is a group of its own).

    Those of one path, next to each other, are in one group.
    """
    group: list[DataFile] = []
    rows = 0
    for file in files:
        more = sum(positions.rows_of(file) for positions in all_positions)
        is_full = len(group) >= files_at_most or rows + more > rows_at_most
        if group and is_full and group[-1].path != file.path:
            yield group
            group, rows = [], 0
        group.append(file)
        rows += more
    if group:
        yield group
