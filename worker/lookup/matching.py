"""Equi-join of a fixed set of delete keys with batches of rows: vectorised and exact.

Keys are found by a 64-bit hash and then compared value by value, so two keys of one hash do no harm.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from worker.io.sorting import Int64Array, UInt64Array, decimal_words, sort_order

_SLOTS_PER_KEY = 4  # most rows meet an empty slot, and cost one look into the table
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 by the golden ratio

# Polars starts its threads with its first hash, and hangs if there is no memory for one: so before there are
# rows that take it.
pl.Series([0]).hash()


@dataclass(frozen=True, slots=True)
class Probe:
    """Pairs of matching rows: `rows[i]` of the batch equals `keys[i]` of the delete keys; in any order."""

    rows: Int64Array
    keys: Int64Array


class KeyMatcher:
    """Delete keys prepared for probing: about 50 bytes a key beside the keys themselves."""

    def __init__(self, keys: Sequence[pa.Array]) -> None:
        """keys: one array a column, equally long, no nulls, rows distinct."""
        self._keys = keys
        hashes = _hashes(keys)
        self._key_of = sort_order([pa.array(hashes)])
        self._hashes = hashes[self._key_of]
        slot_bits = max(1, (_SLOTS_PER_KEY * len(hashes)).bit_length())
        self._slot_shift = np.uint64(64 - slot_bits)
        # Slot i holds the sorted hashes from starts[i] to starts[i + 1]: those with upper bits i.
        counts = np.bincount(self._slots(self._hashes), minlength=1 << slot_bits)
        self._starts = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=self._starts[1:])

    def probe(self, columns: Sequence[pa.Array]) -> Probe:
        """Rows of a batch (columns as the keys', of the same types, no nulls) that equal a delete key."""
        hashes = _hashes(columns)
        slots = self._slots(hashes)
        at, end = self._starts[slots], self._starts[slots + 1]
        rows = np.flatnonzero(at < end)
        at, end, hashes = at[rows], end[rows], hashes[rows]
        found_rows, found_keys = [rows[:0]], [self._key_of[:0]]
        while len(rows):
            equal = self._hashes[at] == hashes
            found_rows.append(rows[equal])
            found_keys.append(self._key_of[at[equal]])
            at = at + 1
            left = at < end
            rows, at, end, hashes = rows[left], at[left], end[left], hashes[left]
        pairs = Probe(np.concatenate(found_rows), np.concatenate(found_keys))
        same = self._same(columns, pairs)
        return Probe(pairs.rows[same], pairs.keys[same])

    def _slots(self, hashes: UInt64Array) -> Int64Array:
        return (hashes >> self._slot_shift).astype(np.int64)

    def _same(self, columns: Sequence[pa.Array], pairs: Probe) -> npt.NDArray[np.bool_]:
        rows, keys = pa.array(pairs.rows), pa.array(pairs.keys)
        same = np.ones(len(pairs.rows), np.bool_)
        for column, key in zip(columns, self._keys, strict=True):
            same &= pc.equal(column.take(rows), key.take(keys)).to_numpy(zero_copy_only=False)
        return same


def _hashes(columns: Sequence[pa.Array]) -> UInt64Array:
    """One hash a row; the same in every batch of this process."""
    combined: UInt64Array | None = None
    for column in columns:
        hashes = _column_hashes(column)
        combined = hashes if combined is None else (combined ^ (combined >> np.uint64(29))) * _MIX + hashes
    assert combined is not None
    return combined


def _column_hashes(column: pa.Array) -> UInt64Array:
    if pa.types.is_decimal128(column.type):
        upper, lower = decimal_words(column)
        numbers = lower + upper.view(np.uint64) * _MIX
    elif pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        numbers = column.cast(pa.int64()).to_numpy().view(np.uint64)
    else:  # polars hashes strings far faster than numpy or Arrow could be made to
        hashes: UInt64Array = pl.Series(column).hash().to_numpy()
        return hashes
    mixed: UInt64Array = (numbers ^ (numbers >> np.uint64(32))) * _MIX
    return mixed


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
