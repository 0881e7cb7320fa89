"""Fingerprints of index entries: are these the entries of those rows? Neither is sorted or kept to tell.

The fingerprint of a block, which is up to BLOCK_ROWS rows of a data file that follow each other, is how many
entries it has and two sums, modulo 2^64, of hashes of all that an entry says: in any order, a part at a time.
Entries that are missing, come twice or differ in anything give another one, but for one case in 2^64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from worker.io.sorting import Int64Array, UInt64Array, decimal_words

BLOCK_ROWS = 65_536
PIECE_ROWS = 32_768  # hashed at once: what numpy makes on the way stays in the processor's cache
_CELLS_PER_BLOCK = 4  # most addresses then need no search
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # of SplitMix64, as are the shifts


def entry_hashes(columns: Sequence[pa.Array]) -> UInt64Array:
    """One hash an entry; columns without nulls, equally long. The same in all processes of a cluster."""
    hashes: UInt64Array = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        hashes += _numbers(column)
        hashes = _mixed(hashes)
    return hashes


def _numbers(column: pa.Array) -> UInt64Array:
    """Another number for each value, of strings and binary values a hash."""
    if pa.types.is_decimal128(column.type):
        upper, lower = decimal_words(column)
        return _mixed(upper.view(np.uint64)) + lower
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        numbers: UInt64Array = column.cast(pa.int64()).to_numpy().view(np.uint64)
        return numbers
    hashes: UInt64Array = pl.Series(column).hash().to_numpy()
    return hashes


def _mixed(numbers: UInt64Array) -> UInt64Array:
    """SplitMix64's finalizer: one to one, and each bit depends on all."""
    mixed = numbers ^ (numbers >> np.uint64(30))
    mixed *= _MIX[0]
    mixed ^= mixed >> np.uint64(27)
    mixed *= _MIX[1]
    mixed ^= mixed >> np.uint64(31)
    return mixed


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """Those of some blocks; grows with `add`."""

    rows: Int64Array
    sums: UInt64Array
    other_sums: UInt64Array

    @classmethod
    def none(cls, blocks: int) -> Fingerprints:
        return cls(np.zeros(blocks, np.int64), np.zeros(blocks, np.uint64), np.zeros(blocks, np.uint64))

    def add(self, blocks: Int64Array, hashes: UInt64Array) -> None:
        """Entries, each with its block."""
        np.add.at(self.rows, blocks, 1)
        np.add.at(self.sums, blocks, hashes)
        np.add.at(self.other_sums, blocks, (hashes ^ (hashes >> np.uint64(32))) * _MIX[0])

    def merge(self, others: Fingerprints, start: int = 0) -> None:
        """The same blocks with further entries; `others` are those from `start` on."""
        part = slice(start, start + len(others.rows))
        self.rows[part] += others.rows
        self.sums[part] += others.sums
        self.other_sums[part] += others.other_sums

    def differ(self, others: Fingerprints) -> np.typing.NDArray[np.bool_]:
        """Which blocks differ."""
        different: np.typing.NDArray[np.bool_] = (
            (self.rows != others.rows) | (self.sums != others.sums) | (self.other_sums != others.other_sums)
        )
        return different


class Blocks:
    """The rows of the covered files in blocks, by address. Pickles.

    Block 0 is of no file: it holds the entries whose address no covered file owns.
    """

    def __init__(self, base_addresses: Int64Array, record_counts: Int64Array) -> None:
        """Of the files: base addresses ascending, ranges disjoint."""
        of_each = -(-record_counts // BLOCK_ROWS)
        files = np.repeat(np.arange(len(of_each)), of_each)
        within = np.arange(len(files)) - np.repeat(np.cumsum(of_each) - of_each, of_each)
        self.first_blocks: Int64Array = (
            1 + np.cumsum(of_each) - of_each
        )  # of each file; an empty one has none
        self.files: Int64Array = np.concatenate([[-1], files])
        self.starts: Int64Array = np.concatenate([[0], within * BLOCK_ROWS])  # positions in the file
        self.rows: Int64Array = np.concatenate(
            [[0], np.minimum(BLOCK_ROWS, record_counts[files] - within * BLOCK_ROWS)]
        )
        self._bases: Int64Array = np.concatenate(
            [[np.iinfo(np.int64).min], base_addresses[files] + within * BLOCK_ROWS]
        )
        self._ends: Int64Array = self._bases + self.rows
        self._next_bases: Int64Array = np.append(self._bases[1:], np.iinfo(np.int64).max)
        # Where to begin: cells of addresses, each with the block that its first address lies in or after.
        low, high = (int(self._bases[1]), int(self._ends[-1])) if len(files) else (0, 1)
        self._low = low
        self._shift = max(0, ((high - low) // (_CELLS_PER_BLOCK * max(1, len(files)))).bit_length())
        cells = np.arange(((high - low) >> self._shift) + 1, dtype=np.int64)
        self._cells = np.searchsorted(self._bases, low + (cells << self._shift), side="right") - 1

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, row_addresses: Int64Array) -> Int64Array:
        """The block of each address: many times faster than a binary search for each."""
        below_last_base = np.iinfo(np.int64).max - 1
        row_addresses = np.minimum(row_addresses, below_last_base)
        cells = np.clip((row_addresses - self._low) >> self._shift, 0, len(self._cells) - 1)
        found: Int64Array = self._cells[cells]
        found += self._next_bases[found] <= row_addresses
        rest = np.flatnonzero(self._next_bases[found] <= row_addresses)
        if len(rest):
            found[rest] = np.searchsorted(self._bases, row_addresses[rest], side="right") - 1
        found[(row_addresses >= self._ends[found]) | (row_addresses < self._bases[found])] = 0
        return found
