"""Merges sorted runs of an index, and drops the entries of files that are no longer live.

Size-tiered: the smallest runs are merged, with every run that is no larger than what they come to. Most
entries are therefore rewritten only when their run has grown several times over, while the number of runs
that a lookup meets stays bounded.

Invariants:
- Dead files leave the dictionary before their entries go: entries without a dictionary row do not exist,
  while a dictionary row without entries would be a wrong answer.
- A run of several files is split by key ranges into files that do not overlap, and has a level above 0 of
  the LSM tree to itself; Paimon does not check that for us.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa

from worker.index.build import RUN_BYTES, RUN_ROWS
from worker.index.dictionary import FileDictionary, IndexedFile, owners
from worker.index.footers import Footer, footer, footers
from worker.index.key_set_index import ROW_ADDRESS, KeySetIndex, entries_schema
from worker.index.run_files import TOP_LEVEL, RunFile, RunWriter, runs_of
from worker.io.row_groups import RowGroups
from worker.io.sorting import Int64Array, sort_rows
from worker.io.storage import Storage
from worker.process.slots import Threads
from worker.table.files import DataFiles

# How long what compaction replaced stays for those who still read it: longer than any lookup takes.
KEEP_SECONDS = 3600.0
TASK_ROWS = RUN_ROWS
TASK_BYTES = RUN_BYTES  # the same bound for wide keys
FILE_ROWS = 4 * TASK_ROWS  # of a run of several files: about 60 MB for an int64 key
FILE_BYTES = 8 * TASK_BYTES

RUNS_AT_ONCE = 16  # that a task reads from a store
RUNS_KEPT = 8  # runs that a compaction leaves at most; a policy starts one at twice as many
DEAD_RATIO = 0.3  # from which on everything is rewritten

# The leading values of a primary key, as many as tell two entries apart: strings as bytes.
Prefix = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    """Files of some runs, to be merged into one run at `level`."""

    files: tuple[RunFile, ...]
    level: int

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def choose_merge(files: Sequence[RunFile], dead_ratio: float) -> Merge | None:
    """The runs that are worth merging now; None when there are few, and few dead entries. Pure."""
    runs = runs_of(files)
    everything = Merge(tuple(files), TOP_LEVEL)
    if dead_ratio >= DEAD_RATIO:
        return everything
    if len(runs) > 1 and has_doubled(files):
        return _without_untouched(everything)
    if len(runs) <= RUNS_KEPT:
        is_cheap = _rows(files) <= TASK_ROWS and (len(runs) > 1 or dead_ratio > 0)
        return everything if is_cheap else None
    count = len(runs) - RUNS_KEPT + 1
    while count < len(runs):
        merged = sum(map(_rows, runs[:count]))
        level = 0 if merged <= TASK_ROWS else _free_level(runs[count:])
        if _rows(runs[count]) > merged and level is not None:
            return Merge(tuple(file for run in runs[:count] for file in run), level)
        count += 1
    return _without_untouched(everything)


def choose_merge_of_new(files: Sequence[RunFile], new: Sequence[RunFile]) -> Merge | None:
    """The same for runs that are about to join an index of `files`; None: they may join as they are. Pure.

    A load that at least doubles the index, as the first one does, leaves one run; any other large one adds
    one.
    """
    if len(new) < 2 or _rows(new) < TASK_ROWS:
        return None
    together = [*files, *new]
    if has_doubled(together):
        return _without_untouched(Merge(tuple(together), TOP_LEVEL))
    level = _free_level(runs_of(files))
    return Merge(tuple(new), level) if level is not None else None


def has_doubled(files: Sequence[RunFile]) -> bool:
    """Whether the runs above the top one, if any, have come to as many entries as it has.

    Merging everything then costs each entry one more write each time the index doubles, and leaves one run.
    """
    top = _rows([file for file in files if file.level == TOP_LEVEL])
    return _rows(files) - top >= max(top, TASK_ROWS)


def _rows(run: Sequence[RunFile]) -> int:
    return sum(file.rows for file in run)


def _free_level(runs: Sequence[Sequence[RunFile]]) -> int | None:
    taken = {run[0].level for run in runs}
    return next((level for level in range(TOP_LEVEL - 1, 0, -1) if level not in taken), None)


def _without_untouched(merge: Merge) -> Merge:
    """Leaves out files of the top run that lie outside the keys of all others: they stay where they are."""
    others = [file for file in merge.files if file.level != TOP_LEVEL]
    if not others:
        return merge
    low, high = min(file.min_key for file in others), max(file.max_key for file in others)
    touched = [f for f in merge.files if f.level != TOP_LEVEL or (f.max_key >= low and f.min_key <= high)]
    return Merge(tuple(touched), merge.level)


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Entries whose primary keys begin with `low` or more, and with less than `high`; None is unbounded."""

    low: Prefix | None
    high: Prefix | None


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """Merges one key range of all runs. Pickles; `shared` is the dictionary of live files."""

    storage: Storage
    table_location: str
    schema: pa.Schema
    files: tuple[RunFile, ...]
    key_range: KeyRange
    level: int
    memory_fraction: float = 1.0
    """Of what is held in memory at once."""

    def run(self, live: LiveRowAddresses) -> list[RunFile]:
        """The file of the merged range: none when nothing in it is live. Nothing is committed.

        One part of the range after the other is held in memory.
        """
        writer = RunWriter(self.storage, self.table_location, self.schema.names, self.level)
        low, high = self.key_range.low, self.key_range.high
        rows, size = int(TASK_ROWS * self.memory_fraction), int(TASK_BYTES * self.memory_fraction)
        cuts = _cuts(self.files, self.storage, self.schema, rows, size)
        within = [c for c in cuts if (low is None or c > low) and (high is None or c < high)]
        # In threads of its own: a read may wait for those of `side_by_side`.
        with Threads(RUNS_AT_ONCE, "runs") as threads:
            each = map if self.storage.is_local(self.table_location) else threads.map
            for bounds in pairwise([low, *within, high]):
                parts = each(self._read, self.files, repeat(KeyRange(*bounds)), repeat(live))
                writer.write(sort_rows(pa.concat_tables(parts)))
        return writer.close()

    def _read(self, file: RunFile, key_range: KeyRange, live: LiveRowAddresses) -> pa.Table:
        known = footer(self.storage, file, _key_types(self.schema))
        groups = _row_groups_inside(known, key_range)
        with self.storage.open_input(file.location, file.size_bytes) as source:
            entries = RowGroups(source, known.metadata).read(groups, self.schema.names)
        entries = rows_inside(entries.cast(self.schema), key_range)
        is_live = live.contain(entries[ROW_ADDRESS].to_numpy())
        return entries if is_live.all() else entries.filter(pa.array(is_live))


@dataclass(frozen=True, slots=True)
class LiveRowAddresses:
    """The address ranges of live covered files, ascending and disjoint."""

    base_addresses: Int64Array
    record_counts: Int64Array

    @property
    def rows(self) -> int:
        return int(self.record_counts.sum())

    @classmethod
    def of(cls, dictionary: FileDictionary, live_files: DataFiles) -> LiveRowAddresses:
        live = dictionary.are_live(live_files)
        return cls(dictionary.base_addresses[live], dictionary.record_counts[live])

    @classmethod
    def of_files(cls, dictionary: FileDictionary, files: Sequence[IndexedFile]) -> LiveRowAddresses:
        """Those of all files of the dictionary, and of some that are about to join it."""
        bases = np.concatenate([dictionary.base_addresses, [file.base_address for file in files]])
        counts = np.concatenate([dictionary.record_counts, [file.file.record_count for file in files]])
        order = np.argsort(bases)
        return cls(bases[order], counts[order])

    def count(self, low: int, high: int) -> int:
        """How many there are from one to another, both included."""
        first, end = (np.searchsorted(self.base_addresses, at, side="right") for at in (low, high))
        near = slice(max(int(first) - 1, 0), int(end))
        begins = np.maximum(self.base_addresses[near], low)
        ends = np.minimum(self.base_addresses[near] + self.record_counts[near], high + 1)
        return int(np.maximum(ends - begins, 0).sum())

    def contain(self, row_addresses: Int64Array) -> np.typing.NDArray[np.bool_]:
        inside: np.typing.NDArray[np.bool_] = (
            owners(self.base_addresses, self.record_counts, row_addresses) >= 0
        )
        return inside


def compaction_tasks(
    index: KeySetIndex, merge: Merge, parallelism: int, memory_fraction: float = 1.0
) -> list[CompactionTask]:
    """Cuts a merge into key ranges of one file each, by the statistics of its row groups."""
    schema = entries_schema(index.key_set)
    storage, location = index.storage, index.entries_table.location
    cuts: list[Prefix] = []
    if merge.level:  # what is at level 0 is one file, since there each file counts as a run
        rows = min(FILE_ROWS, max(TASK_ROWS, -(-merge.rows // (2 * parallelism))))
        cuts = _cuts(merge.files, storage, schema, rows, FILE_BYTES)
    bounds: list[Prefix | None] = [None, *cuts, None]
    return [
        CompactionTask(
            storage, location, schema, merge.files, KeyRange(low, high), merge.level, memory_fraction
        )
        for low, high in pairwise(bounds)
    ]


def _cuts(
    files: Sequence[RunFile], storage: Storage, schema: pa.Schema, rows_at_most: int, bytes_at_most: int
) -> list[Prefix]:
    """Where row groups begin, with about so many rows and decoded bytes between two cuts; ascending."""
    starts: list[tuple[Prefix, float]] = []
    for known in footers(storage, files, _key_types(schema)):
        filled = known.filled(rows_at_most, bytes_at_most)
        starts += [(known.ranges.prefixes(i)[0], share) for i, share in enumerate(filled.tolist())]
    return cuts_between(starts)


def cuts_between(starts: Iterable[tuple[Prefix, float]]) -> list[Prefix]:
    """Cuts that leave about one part's worth between two of them; ascending.

    starts: what each row group begins with, and which share of a part it fills.
    """
    cuts: list[Prefix] = []
    part = 0.0  # how much of a part is filled
    for prefix, share in sorted(starts, key=lambda start: start[0]):
        if part + share > 1 and part > 0 and (not cuts or prefix > cuts[-1]):
            cuts.append(prefix)
            part = 0.0
        part += share
    return cuts


def _key_types(schema: pa.Schema) -> tuple[pa.DataType, ...]:
    """Of footers with bounds of the address too: entries of one key are told apart by it."""
    return tuple(field.type for field in schema)[2:]


def _row_groups_inside(known: Footer, key_range: KeyRange) -> list[int]:
    """The row groups that may hold entries of the range; they are next to each other."""
    count = len(known.rows)
    start, end = 0, count
    if key_range.low is not None:
        low = key_range.low
        start = bisect_left(range(count), True, key=lambda i: _shortened(known.ranges.prefixes(i)[1], low))
    if key_range.high is not None:
        high = key_range.high
        end = bisect_left(range(count), True, key=lambda i: known.ranges.prefixes(i)[0] >= high)
    return list(range(start, end))


def _shortened(last: Prefix, low: Prefix) -> bool:
    """Whether entries up to `last` may begin with `low` or more."""
    return last >= low[: len(last)]


def rows_inside(entries: pa.Table, key_range: KeyRange) -> pa.Table:
    """Those of sorted entries: two binary searches. Bounds are of the leading columns."""

    def position(bound: Prefix) -> int:
        columns = entries.columns[: len(bound)]
        prefix = lambda row: tuple(_as_bound(column[row].as_py()) for column in columns)  # noqa: E731
        return bisect_left(range(entries.num_rows), bound, key=prefix)

    start = position(key_range.low) if key_range.low is not None else 0
    end = position(key_range.high) if key_range.high is not None else entries.num_rows
    return entries.slice(start, end - start)


def _as_bound(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value
