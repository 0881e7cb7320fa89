"""Equi-join of a fixed set of delete keys with batches of rows: vectorised, no hashing of whole rows.

Each key column is reduced to codes (its position among the delete keys' distinct values); rows that miss
in one column are dropped before the next is looked at, so most rows cost one binary search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Int64Array = npt.NDArray[np.int64]
_NONE = np.empty(0, np.int64)


class _ColumnCodes:
    """Maps values of one column to their position among the sorted distinct values; -1 where absent."""

    def __init__(self, values: pa.Array) -> None:
        distinct = pc.unique(values)
        self._integer = pa.types.is_integer(values.type)
        if self._integer:
            self._sorted: npt.NDArray[Any] = np.sort(distinct.to_numpy())
        self._distinct = pa.array(self._sorted, values.type) if self._integer else distinct
        self.size = len(distinct)
        self.codes = self.of(values)

    def of(self, values: pa.Array) -> Int64Array:
        if not self._integer:
            found = pc.index_in(values, self._distinct)
            codes: Int64Array = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            return codes
        numbers = values.to_numpy()
        if self.size == 1:
            return np.where(numbers == self._sorted[0], 0, -1)
        if not len(numbers):
            return _NONE
        # Most batches lie outside the deletes' range: two comparisons are cheaper than a search.
        candidates = np.flatnonzero((numbers >= self._sorted[0]) & (numbers <= self._sorted[-1]))
        codes = np.full(len(numbers), -1, np.int64)
        positions = np.searchsorted(self._sorted, numbers[candidates])
        codes[candidates] = np.where(self._sorted[positions] == numbers[candidates], positions, -1)
        return codes


@dataclass(frozen=True, slots=True)
class Probe:
    """Pairs of matching rows: `rows[i]` of the batch equals `keys[i]` of the delete keys; rows ascend."""

    rows: Int64Array
    keys: Int64Array


class KeyMatcher:
    """Delete keys prepared for probing."""

    def __init__(self, keys: Sequence[pa.Array]) -> None:
        """keys: one array a column, equally long, no nulls, rows distinct."""
        self._columns = [_ColumnCodes(column) for column in keys]
        # Codes of the first k columns are combined pairwise and made dense again, so they never overflow.
        self._combined: list[Int64Array] = []
        codes = self._columns[0].codes
        for column in self._columns[1:]:
            combined, codes = np.unique(codes * column.size + column.codes, return_inverse=True)
            self._combined.append(combined)
        self._key_of_code: Int64Array = np.empty(len(codes), np.int64)
        self._key_of_code[codes] = np.arange(len(codes))

    def probe(self, columns: Sequence[pa.Array]) -> Probe:
        """Rows of a batch (columns as the keys', of the same types, no nulls) that equal a delete key."""
        codes = self._columns[0].of(columns[0])
        rows = np.flatnonzero(codes >= 0)
        codes = codes[rows]
        for column, combined, values in zip(self._columns[1:], self._combined, columns[1:], strict=True):
            if not len(rows):
                break
            column_codes = column.of(values.take(pa.array(rows)))
            pairs = codes * column.size + column_codes
            positions = np.minimum(np.searchsorted(combined, pairs), len(combined) - 1)
            hit = (column_codes >= 0) & (combined[positions] == pairs)
            rows, codes = rows[hit], positions[hit]
        return Probe(rows, self._key_of_code[codes] if len(rows) else _NONE)


def match_sorted(entries: npt.NDArray[Any], keys: npt.NDArray[Any]) -> tuple[Int64Array, Int64Array]:
    """Pairs (entry, key) of equal numbers. Both ascend; keys are distinct, entries may repeat.

    The shorter side is searched for in the longer one: a few keys cost a few binary searches.
    """
    if len(entries) < len(keys):
        positions = np.minimum(np.searchsorted(keys, entries), len(keys) - 1)
        rows = np.flatnonzero(keys[positions] == entries)
        return rows, positions[rows]
    low = np.searchsorted(entries, keys, side="left")
    hits = np.flatnonzero(entries[np.minimum(low, len(entries) - 1)] == keys)
    low = low[hits]
    last = len(entries) - 1
    repeated = np.flatnonzero((low < last) & (entries[np.minimum(low + 1, last)] == keys[hits]))
    if not len(repeated):
        return low, hits
    counts = np.ones(len(low), np.int64)
    counts[repeated] = np.searchsorted(entries, keys[hits[repeated]], side="right") - low[repeated]
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(low, counts) + offsets, np.repeat(hits, counts)
