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

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from worker.index import (
    ADDRESS,
    PARTITION_ID,
    RUN_ROWS,
    TOP_LEVEL,
    FileDictionary,
    Int64Array,
    KeySetIndex,
    entries_schema,
    sort_entries,
)
from worker.read import NULL_MASK
from worker.sorted_runs import RunFile, write_run
from worker.storage import Storage

# How long what compaction replaced stays for those who still read it: longer than any lookup takes.
KEEP_SECONDS = 3600.0
TASK_ROWS = RUN_ROWS // 2  # a task holds its range twice while it sorts

RUNS_KEPT = 8  # runs that a compaction leaves at most; a policy starts one at twice as many
DEAD_RATIO = 0.3  # from which on everything is rewritten

# The prefix of the primary key that ranges are cut by: partition_id, null_mask and the first key column.
Bound = tuple[int, int, Any]


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
    by_run: dict[Any, list[RunFile]] = defaultdict(list)
    for file in files:
        by_run[file.level or file.file_name].append(file)
    runs = sorted(by_run.values(), key=_rows)
    total = _rows(files)
    everything = Merge(tuple(files), TOP_LEVEL)
    if dead_ratio >= DEAD_RATIO:
        return everything
    if len(runs) <= RUNS_KEPT:
        is_cheap = total <= TASK_ROWS and (len(runs) > 1 or dead_ratio > 0)
        return everything if is_cheap else None
    count = len(runs) - RUNS_KEPT + 1
    while count < len(runs):
        merged = sum(map(_rows, runs[:count]))
        level = 0 if merged <= TASK_ROWS else _free_level(runs[count:])
        if _rows(runs[count]) > merged and level is not None:
            return Merge(tuple(file for run in runs[:count] for file in run), level)
        count += 1
    return _without_untouched(everything)


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
    """Entries with low <= (partition_id, null_mask, first key) < high; None is unbounded."""

    low: Bound | None
    high: Bound | None


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """Merges one key range of all runs. Pickles; `shared` is the dictionary of live files."""

    storage: Storage
    table_location: str
    schema: pa.Schema
    files: tuple[RunFile, ...]
    key_range: KeyRange
    level: int

    def run(self, live: LiveAddresses) -> list[RunFile]:
        """The files of the merged range: empty when nothing in it is live. Nothing is committed."""
        parts = [self._read(file, live) for file in self.files]
        entries = sort_entries(pa.concat_tables(parts))
        return write_run(
            self.storage,
            self.table_location,
            entries,
            primary_key=self.schema.names,
            max_file_rows=RUN_ROWS,
            level=self.level,
        )

    def _read(self, file: RunFile, live: LiveAddresses) -> pa.Table:
        with self.storage.open_input(file.location) as source:
            parquet = pq.ParquetFile(source)
            groups = [
                i
                for i in range(parquet.num_row_groups)
                if _overlaps(_row_group_bounds(parquet.metadata.row_group(i), self.schema), self.key_range)
            ]
            entries = parquet.read_row_groups(groups, columns=self.schema.names, use_threads=False)
        entries = entries.filter(_inside(entries, self.key_range))
        return entries.filter(pa.array(live.contain(entries[ADDRESS].to_numpy()))).cast(self.schema)


@dataclass(frozen=True, slots=True)
class LiveAddresses:
    """The address ranges of live covered files, ascending and disjoint."""

    base_addresses: Int64Array
    record_counts: Int64Array

    @classmethod
    def of(cls, dictionary: FileDictionary, live_paths: frozenset[str]) -> LiveAddresses:
        live = np.array([path in live_paths for path in dictionary.paths], np.bool_)
        return cls(dictionary.base_addresses[live], dictionary.record_counts[live])

    def contain(self, addresses: Int64Array) -> np.typing.NDArray[np.bool_]:
        if not len(self.base_addresses):
            return np.zeros(len(addresses), np.bool_)
        found = np.searchsorted(self.base_addresses, addresses, side="right") - 1
        inside: np.typing.NDArray[np.bool_] = (found >= 0) & (
            addresses < self.base_addresses[found] + self.record_counts[found]
        )
        return inside


def compaction_tasks(index: KeySetIndex, merge: Merge, storage: Storage) -> list[CompactionTask]:
    """Cuts a merge into key ranges of about TASK_ROWS entries, by the statistics of its row groups."""
    schema = entries_schema(index.key_set)
    location = index.entries_table.location
    # What is at level 0 is one file, since there each file counts as a run.
    cuts = _cuts(merge.files, storage, schema) if merge.level else []
    bounds: list[Bound | None] = [None, *cuts, None]
    return [
        CompactionTask(storage, location, schema, merge.files, KeyRange(low, high), merge.level)
        for low, high in pairwise(bounds)
    ]


def _cuts(files: Sequence[RunFile], storage: Storage, schema: pa.Schema) -> list[Bound]:
    """First keys of row groups, about every TASK_ROWS entries over all files; ascending and distinct."""
    starts: list[tuple[Bound, int]] = []
    for file in files:
        with storage.open_input(file.location) as source:
            metadata = pq.read_metadata(source)
        for i in range(metadata.num_row_groups):
            group = metadata.row_group(i)
            low, high = _row_group_bounds(group, schema)
            # Only where partition and mask are constant is the smallest key the first one.
            if low is not None and high is not None and low[:2] == high[:2]:
                starts.append((low, group.num_rows))
    cuts: list[Bound] = []
    rows = 0
    for bound, group_rows in sorted(starts, key=lambda start: start[0]):
        if rows >= TASK_ROWS and (not cuts or bound > cuts[-1]):
            cuts.append(bound)
            rows = 0
        rows += group_rows
    return cuts


def _row_group_bounds(group: Any, schema: pa.Schema) -> tuple[Bound | None, Bound | None]:
    """Per column the smallest and largest value; None where statistics are missing."""
    columns = {group.column(i).path_in_schema: group.column(i).statistics for i in range(group.num_columns)}
    statistics = [columns[name] for name in schema.names[:3]]
    if any(s is None or not s.has_min_max for s in statistics):
        return None, None
    low, high = (tuple(getattr(s, side) for s in statistics) for side in ("min", "max"))
    return low, high


def _overlaps(bounds: tuple[Bound | None, Bound | None], key_range: KeyRange) -> bool:
    low, high = bounds
    below = key_range.high is not None and low is not None and low >= key_range.high
    above = key_range.low is not None and high is not None and high < key_range.low
    return not (below or above)


def _inside(entries: pa.Table, key_range: KeyRange) -> pa.ChunkedArray:
    inside = pa.chunked_array([pa.repeat(pa.scalar(True), entries.num_rows)])
    if key_range.low is not None:
        inside = pc.and_(inside, pc.invert(_below(entries, key_range.low)))
    if key_range.high is not None:
        inside = pc.and_(inside, _below(entries, key_range.high))
    return inside


def _below(entries: pa.Table, bound: Bound) -> pa.ChunkedArray:
    """Rows whose (partition_id, null_mask, first key) is smaller than the bound."""
    names = [PARTITION_ID, NULL_MASK, entries.schema.names[2]]
    below = pc.less(entries[names[2]], pa.scalar(bound[2], entries.schema.field(names[2]).type))
    for name, value in ((names[1], bound[1]), (names[0], bound[0])):
        scalar = pa.scalar(value, entries.schema.field(name).type)
        below = pc.or_(pc.less(entries[name], scalar), pc.and_(pc.equal(entries[name], scalar), below))
    return below
