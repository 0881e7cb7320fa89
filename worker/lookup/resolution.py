"""Finds the rows that one key set's equality deletes delete: reads the keys, then asks the index or scans.

read -> index | scan. Invariant: an answer names the delete files that it is complete for. A delete file
that can't be read, or that applies to a data file that can't be read, is refused with its reason and stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import numpy as np
import pyarrow as pa

from telemetry.plurals import counted
from worker.attempt.indexes import open_again, start_anew
from worker.attempt.job import Job
from worker.attempt.outcome import Unconvertible
from worker.attempt.pinned_table import PinnedTable
from worker.contract.control_plane import StaleAttemptError
from worker.index.key_set_index import DamagedIndexError, KeySetIndex, damage_of
from worker.index.run_files import ROW_GROUP_ROWS
from worker.index.warehouse import IndexWarehouse
from worker.io.sorting import Int64Array
from worker.keys.key_set import KeyColumnError, KeySet
from worker.keys.read import KeyReader, key_reader
from worker.keys.schema_fields import column_names_of, resolve_key_set
from worker.lookup.cost import Costs, Source, compare, rates_of, row_cost
from worker.lookup.deviations import Deviation, deviations, may_deviate
from worker.lookup.index_lookup import (
    GLOBAL,
    DeleteKeys,
    LiveRows,
    Matches,
    ScanTask,
    lookup_tasks,
    planned_rows,
    rows_to_read,
)
from worker.lookup.positions import Positions
from worker.lookup.shuffle import (
    SAMPLES_PER_RANGE,
    KeysRead,
    RangeMatches,
    RangeTask,
    ReadTask,
    ShuffleTask,
    cuts_between,
)
from worker.process.errors import JobCancelledError, Reason
from worker.process.slots import Threads
from worker.table.files import NO_FILES, DataFile, DataFiles, DeleteFile, PartitionKey
from worker.table.plan import KeySetDeletes, affected_files, applies, balanced

# Delete keys that the driver holds at most, of one key set: more are sorted into ranges of about as many.
DRIVER_KEYS = 4_000_000
DRIVER_BYTES = 128 * 1024**2  # of equality delete files: the same bound for wide keys
COUNTERS = (
    "keys",
    "key_ranges",
    "matches",
    "row_groups_read",
    "row_groups_total",
    "bytes_read",
    "data_files_from_index",
    "data_files_scanned",
    "predicted_index_seconds",
    "predicted_scan_seconds",
    "index_seconds",
    "scan_seconds",
)


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a key set's rows are looked for, and why, in words.

    costs: that were compared of data files which the index covers; None where there was no choice.
    """

    source: Source
    reason: str
    costs: Costs | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """What one key set's deletes come to.

    delete_files: those that `positions` is complete for. explanation: source, reason and counters.
    deviations: those of them that Iceberg's Java reader applied wrongly.
    """

    delete_files: tuple[DeleteFile, ...]
    refused: tuple[Unconvertible, ...]
    positions: Positions
    explanation: dict[str, Any]
    deviations: tuple[Deviation, ...] = ()


def find_rows(
    job: Job, table: PinnedTable, warehouse: IndexWarehouse, deletes: KeySetDeletes, *, dry_run: bool
) -> Resolved:
    """Finds the rows that one key set's deletes delete; what can't be resolved is refused."""
    return RowsOfKeySet(job, warehouse, dry_run=dry_run).find(table, deletes)


class RowsOfKeySet:
    """The rows that one key set's deletes delete, at one head of a branch after the other.

    Keys are read once, and each data file is asked about once: it never changes.
    """

    def __init__(self, job: Job, warehouse: IndexWarehouse, *, dry_run: bool) -> None:
        self._job = job
        self._warehouse = warehouse
        self._dry_run = dry_run
        self._pending: PendingDeletes | None = None
        self._asked = NO_FILES.data_files
        """The data files that the deletes apply to at the head before."""

    def find(self, table: PinnedTable, deletes: KeySetDeletes) -> Resolved:
        """Rows of the data files that the head before did not have; of all, at the first one.

        deletes: the same at each head. What can't be resolved is refused.
        """
        if self._pending is not None:
            new, self._asked = deletes.data_files.without(self._asked), deletes.data_files
            self._pending = replace(self._pending, table=table, data_files=new.alone())
            return self._resolved(table, self._pending, tells=False)
        try:
            key_set = resolve_key_set(table.metadata, deletes.equality_field_ids)
        except KeyColumnError as error:
            refused = [Unconvertible(f.path, *error.reason) for f in deletes.delete_files]
            columns = column_names_of(table.metadata, deletes.equality_field_ids)
            explanation = explain(deletes.equality_field_ids, columns, Choice(Source.NONE, str(error)))
            return Resolved((), tuple(refused), Positions(DataFiles.of(())), explanation)
        reader = key_reader(table.metadata, table.storage, key_set)
        with self._job.stage("read"), Threads(1) as threads:
            opening = threads.submit(open_again, self._job, table, self._warehouse, key_set)

            def opened() -> KeySetIndex | None:
                try:
                    return opening.result()
                except DamagedIndexError as error:
                    self._give_up_index(table, key_set, str(error))
                    return None

            self._pending = PendingDeletes.read(self._job, table, deletes, reader, opened)
        self._asked = self._pending.data_files
        return self._resolved(table, self._pending)

    def _resolved(self, table: PinnedTable, pending: PendingDeletes, *, tells: bool = True) -> Resolved:
        index = pending.index
        try:
            return pending.resolve(tells=tells)
        except (JobCancelledError, StaleAttemptError):
            raise
        except Exception:
            damage = damage_of(index) if index is not None else None
            if damage is None:
                raise
            self._give_up_index(table, pending.key_set, damage)
            self._pending = replace(pending, index=None)
            return self._pending.resolve()

    def _give_up_index(self, table: PinnedTable, key_set: KeySet, damage: str) -> None:
        self._job.decide(f"Key set {key_set}: the index can't be used, so data files are scanned: {damage}.")
        if not self._dry_run:
            start_anew(self._job, table, self._warehouse, key_set)


@dataclass(slots=True)
class PendingDeletes:
    """The equality deletes of one key set, read, and the data files that they apply to.

    keys: all of them; or none when `cuts` says into which ranges Spark is to sort them.
    """

    job: Job
    table: PinnedTable
    reader: KeyReader
    index: KeySetIndex | None
    keys: DeleteKeys
    cuts: pa.Table | None
    keys_planned: int
    delete_files: list[DeleteFile]
    refused: list[Unconvertible]
    data_files: DataFiles
    partitions: dict[PartitionKey, tuple[int, ...]]
    null_columns: dict[str, int]  # path of a delete file -> mask of the key columns in which it has a null

    @classmethod
    def read(
        cls,
        job: Job,
        table: PinnedTable,
        plan: KeySetDeletes,
        reader: KeyReader,
        opened: Callable[[], KeySetIndex | None],
    ) -> Self:
        """Reads the keys of every delete file that can be read. Raises OSError (a retry can help).

        opened: the index, which is asked for when these are there: it may be opened meanwhile.
        """
        size = sum(file.file_size_bytes for file in plan.delete_files)
        keys, key_bytes = (int(most * job.memory_fraction) for most in (DRIVER_KEYS, DRIVER_BYTES))
        ranges = max(-(-plan.keys_planned // max(1, keys)), -(-size // key_bytes))
        every = max(1, plan.keys_planned // (ranges * SAMPLES_PER_RANGE)) if ranges > 1 else 1
        tasks = [ReadTask(reader, file, every) for file in plan.delete_files]
        read: list[KeysRead] = job.run_tasks("read", tasks, None, plan.keys_planned)
        readable = [one.file for one in read if one.refused is None]
        index = opened()
        partitions = dict(index.dictionary.partitions()) if index else {}
        batches = [
            batch for one in read for batch in one.in_partitions(_scope_of(table, one.file, partitions))
        ]
        schema = reader.key_set.schema
        return cls(
            job,
            table,
            reader,
            index,
            DeleteKeys.of(batches if ranges <= 1 else [], schema),
            cuts_between(batches, ranges, schema) if ranges > 1 else None,
            sum(file.record_count for file in readable),
            readable,
            [one.refused for one in read if one.refused is not None],
            affected_files(table.files, readable),
            partitions,
            {one.file.path: one.null_columns for one in read},
        )

    @property
    def key_set(self) -> KeySet:
        return self.reader.key_set

    def resolve(self, *, tells: bool = True) -> Resolved:
        """Finds the rows to delete, from the cheaper source for what the index covers.

        tells: whether the choice becomes a decision of the job.
        """
        known = np.zeros(len(self.data_files), np.bool_)
        if self.index is not None:
            known = self.index.dictionary.covers(self.data_files)
        covered, uncovered = np.flatnonzero(known), np.flatnonzero(~known)
        choice = self._choose(covered, uncovered)
        if choice.source is Source.SCAN:
            covered, uncovered = covered[:0], np.arange(len(self.data_files))
        if tells:
            self.job.decide(f"Key set {self.key_set}: {choice.reason}.")
        taken = self._task_seconds()
        positions, keys, found = self.find(covered, uncovered)
        lookup, scan, shuffle = (
            after - before for before, after in zip(taken, self._task_seconds(), strict=True)
        )
        for failure in found.failures:
            self._refuse_for(self.data_files[failure.ordinal], failure.why)
        self.job.usage.bytes += found.bytes_read
        explanation = explain(self.key_set.equality_field_ids, self.key_set.column_names, choice) | {
            "keys": keys,
            "key_ranges": self._ranges,
            "matches": positions.matches,
            "row_groups_read": found.row_groups_read,
            "row_groups_total": found.row_groups_total,
            "bytes_read": found.bytes_read,
            "data_files_from_index": len(covered),
            "data_files_scanned": len(uncovered) - len({failure.ordinal for failure in found.failures}),
            "predicted_index_seconds": round(choice.costs.index_seconds, 3) if choice.costs else 0.0,
            "predicted_scan_seconds": round(choice.costs.scan_seconds, 3) if choice.costs else 0.0,
            "index_seconds": round(lookup + (shuffle if len(covered) else 0.0), 3),
            "scan_seconds": round(scan + (0.0 if len(covered) else shuffle), 3),
        }
        return Resolved(
            tuple(self.delete_files), tuple(self.refused), positions, explanation, self._deviations(positions)
        )

    def _task_seconds(self) -> tuple[float, ...]:
        """What tasks that look for rows came to in the job so far."""
        known = {stage["name"]: float(stage["task_seconds"]) for stage in self.job.stages}
        return tuple(known.get(name, 0.0) for name in ("lookup", "scan", "shuffle"))

    def _deviations(self, positions: Positions) -> tuple[Deviation, ...]:
        if not may_deviate(self.key_set):
            return ()
        with self.job.stage("explain"):
            try:
                found = deviations(
                    self.table, self.key_set, self.delete_files, self.null_columns, positions.data_files()
                )
            except (OSError, ValueError) as error:
                # An explanation is no reason to leave the deletes.
                self.job.decide(f"Whether Iceberg's Java reader applied them all can't be told: {error}.")
                return ()
        return tuple(found)

    def find(self, covered: Int64Array, scanned: Int64Array) -> tuple[Positions, int, Matches]:
        """Positions of the rows to delete, the number of distinct keys, and counters and failures.

        covered: ordinals of the data files that the index is asked about; scanned: of those whose key
        columns are read.
        """
        positions = Positions(self.data_files, self.job.memory_fraction)
        keys, counters = len(self.keys), []
        if self.delete_files and (len(covered) or len(scanned)):
            if self.cuts is not None:
                with self.job.stage("shuffle"):
                    for part in self._by_ranges(covered, scanned):
                        keys += part.keys
                        positions.add(part.matches)
                        counters.append(part.matches.without_rows())
            elif keys:
                for matches in chain(self._look_up(covered), self._scan(scanned)):
                    positions.add(matches)
                    counters.append(matches.without_rows())
        return positions, keys, Matches.combined(counters)

    def _look_up(self, asked: Int64Array) -> Iterator[Matches]:
        """Asks the index about some data files, all of which it must cover."""
        if not len(asked):
            return
        assert self.index is not None
        parallelism = self.job.runner.parallelism
        tasks = lookup_tasks(self.index.storage, self.index.entries.files, self.keys, parallelism)
        with self.job.stage("lookup"):
            planned = planned_rows(self.index.storage, tasks, self.keys)
            live = LiveRows(self.index.dictionary, self.data_files, asked)
            cost = row_cost(self.keys.key_types)
            for found in self.job.each_task("lookup", tasks, self.keys, planned, cost):
                yield live.of(found)

    def _scan(self, scanned: Int64Array) -> Iterator[Matches]:
        """Reads the key columns of some data files; same results, and failures for unreadable files."""
        if not len(scanned):
            return
        record_counts = self.data_files.select(scanned).record_counts
        groups = balanced(record_counts, self.job.runner.parallelism * 4)
        tasks = [self._scan_task(scanned[group]) for group in groups]
        with self.job.stage("scan"):
            yield from self.job.each_task("scan", tasks, self.keys, int(record_counts.sum()))

    def _scan_task(self, ordinals: Int64Array) -> ScanTask:
        files = self.data_files.select(ordinals)
        kinds, kind_of = np.unique(files.kind_of, return_inverse=True)
        ids = [_partition_ids(self.partitions, files.kinds[kind].partition)[0] for kind in kinds]
        return ScanTask(self.reader, files, ordinals, np.array(ids, np.int64)[kind_of])

    def _by_ranges(self, covered: Int64Array, scanned: Int64Array) -> Iterator[RangeMatches]:
        """One range of keys after the other, resolved in Spark's tasks."""
        index = self.index if len(covered) else None
        task = RangeTask(
            index.storage if index else self.table.storage,
            self.reader,
            index.entries.files if index else (),
            LiveRows(index.dictionary, self.data_files, covered) if index else None,
            self._scan_task(scanned),
        )
        tasks = [
            ShuffleTask(self.reader, file, _scope_of(self.table, file, self.partitions))
            for file in self.delete_files
        ]
        yield from self.job.shuffle("shuffle", tasks, self.cuts, task, self._ranges)

    @property
    def _ranges(self) -> int:
        """Into how many ranges the keys are sorted; each takes a lookup or scan of its own."""
        return self.cuts.num_rows + 1 if self.cuts is not None else 1

    def _choose(self, covered: Int64Array, uncovered: Int64Array) -> Choice:
        if not self.delete_files:
            return Choice(Source.NONE, "none of its delete files can be read")
        if not self.data_files:
            return Choice(Source.NONE, "no live data file is older than the deletes in their scope")
        if self.index is None:
            return Choice(Source.SCAN, "there is no index of this key set yet")
        if not len(covered):
            return Choice(Source.SCAN, "the index covers none of the data files that the deletes apply to")
        entries = self.index.entries
        keys, files = len(self.keys) or self.keys_planned, len(entries.files)
        rates = rates_of(self.keys.key_types)
        scanned = self.data_files.select(covered).record_count * self._ranges, len(covered) * self._ranges
        # Each key may touch one row group in each file of the index, and never more than all of its rows.
        lookup_rows = min(entries.rows, keys * files * ROW_GROUP_ROWS)
        costs = compare(keys, lookup_rows, files, *scanned, rates)
        if not costs.index_is_cheaper and self.cuts is None:
            lookup_rows = rows_to_read(self.index.storage, entries.files, self.keys)
            costs = compare(keys, lookup_rows, files, *scanned, rates)
        if not costs.index_is_cheaper:
            return Choice(Source.SCAN, f"scanning is cheaper than the index for {costs.words}", costs)
        if len(uncovered):
            told = f"{counted(len(uncovered), 'data file')} not indexed yet: scanned; for the others, "
            return Choice(Source.INDEX_AND_SCAN, told + costs.words, costs)
        whole = "the only data file" if len(covered) == 1 else f"all {len(covered):,} data files"
        return Choice(Source.INDEX, f"the index covers {whole}; {costs.words}", costs)

    def _refuse_for(self, unread: DataFile, why: Reason) -> None:
        """Refuses the delete files that apply to a data file that could not be read."""
        reason = f"it applies to a data file that can't be read: {why.reason}"
        blocked = [d for d in self.delete_files if applies(d, unread, self.table.files.global_spec_ids)]
        self.refused += [Unconvertible(delete.path, why.code, reason, why.remedy) for delete in blocked]
        self.delete_files = [delete for delete in self.delete_files if delete not in blocked]


def explain(ids: Sequence[int], columns: Sequence[str], choice: Choice) -> dict[str, Any]:
    """How a key set was resolved, for the job's result; counters zero until something is read."""
    return {
        "equality_field_ids": list(ids),
        "columns": list(columns),
        "source": choice.source.value,
        "reason": choice.reason,
        **dict.fromkeys(COUNTERS, 0),
    }


def merge_explanations(parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One explanation for each key set of a conversion in several commits: the last one's, counters added."""
    by_key_set: dict[tuple[int, ...], dict[str, Any]] = {}
    for part in parts:
        known = by_key_set.setdefault(tuple(part["equality_field_ids"]), dict.fromkeys(COUNTERS, 0))
        by_key_set[tuple(part["equality_field_ids"])] = part | {
            name: round(known[name] + part[name], 3) for name in COUNTERS
        }
    return list(by_key_set.values())


def _partition_ids(
    partitions: dict[PartitionKey, tuple[int, ...]], partition: PartitionKey
) -> tuple[int, ...]:
    """The index's ids of a partition; one that the index has never seen gets a negative one, below GLOBAL."""
    return partitions.setdefault(partition, (GLOBAL - 1 - len(partitions),))


def _scope_of(
    table: PinnedTable, file: DeleteFile, partitions: dict[PartitionKey, tuple[int, ...]]
) -> tuple[int, ...]:
    """The index's ids of the partitions that the deletes of a file apply in, or GLOBAL alone."""
    if file.partition.spec_id in table.files.global_spec_ids:
        return (GLOBAL,)
    return _partition_ids(partitions, file.partition)
