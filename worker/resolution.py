"""Finds the rows that one key set's equality deletes delete: reads the keys, then asks the index or scans.

read -> index | scan. Invariant: an answer names the delete files that it is complete for. A delete file
that can't be read, or that applies to a data file that can't be read, is refused with its reason and stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from worker.index import Int64Array, KeySetIndex
from worker.job import Job, PinnedTable, Unconvertible
from worker.lookup import GLOBAL, DeleteKeys, Matches, ScanTask, lookup_tasks
from worker.plan import (
    DataFile,
    DeleteFile,
    KeySetDeletes,
    PartitionKey,
    Source,
    affected_files,
    applies,
    index_is_cheaper,
)
from worker.read import KeyColumnError, KeyReader, KeySet
from worker.sorted_runs import ROW_GROUP_ROWS


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a key set's rows are looked for, and why, in words."""

    source: Source
    reason: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """What one key set's deletes come to.

    delete_files: those that `positions` is complete for. explanation: source, reason and counters.
    """

    delete_files: tuple[DeleteFile, ...]
    refused: tuple[Unconvertible, ...]
    positions: Mapping[DataFile, Int64Array]
    explanation: dict[str, Any]


@dataclass(slots=True)
class PendingDeletes:
    """The equality deletes of one key set, read, and the data files that they apply to."""

    job: Job
    table: PinnedTable
    reader: KeyReader
    index: KeySetIndex | None
    keys: DeleteKeys
    delete_files: list[DeleteFile]
    refused: list[Unconvertible]
    data_files: tuple[DataFile, ...]
    partitions: dict[PartitionKey, tuple[int, ...]]

    @classmethod
    def read(
        cls, job: Job, table: PinnedTable, plan: KeySetDeletes, reader: KeyReader, index: KeySetIndex | None
    ) -> PendingDeletes:
        """Reads the keys of every delete file that can be read. Raises OSError (a retry can help)."""
        partitions = dict(index.dictionary.partitions()) if index else {}
        batches, readable, refused = [], [], []
        for done, file in enumerate(plan.delete_files):
            job.reporter.progress("read", done, len(plan.delete_files), "files")
            everywhere = file.partition.spec_id in table.files.global_spec_ids
            partition_ids = (GLOBAL,) if everywhere else _partition_ids(partitions, file.partition)
            try:
                keys = list(reader.read_delete_file(file))
            except KeyColumnError as error:
                refused.append(Unconvertible(file.path, error.code, str(error), error.remedy))
            except FileNotFoundError as error:
                refused.append(Unconvertible(file.path, "missing_file", str(error), "Restore the file."))
            else:
                readable.append(file)
                batches += [
                    (partition_id, file.data_sequence_number, batch)
                    for partition_id in partition_ids
                    for batch in keys
                ]
        return cls(
            job,
            table,
            reader,
            index,
            DeleteKeys.of(batches, reader.key_set.schema),
            readable,
            refused,
            affected_files(table.files, readable),
            partitions,
        )

    @property
    def key_set(self) -> KeySet:
        return self.reader.key_set

    def resolve(self) -> Resolved:
        """Finds the rows to delete, from the cheaper source for what the index covers."""
        covered: list[DataFile] = []
        uncovered: list[DataFile] = []
        for file in self.data_files:
            known = self.index is not None and self.index.dictionary.covers(file)
            (covered if known else uncovered).append(file)
        choice = self._choose(covered, uncovered)
        if choice.source is Source.SCAN:
            covered, uncovered = [], list(self.data_files)
        self.job.decide(f"Key set {self.key_set}: {choice.reason}.")
        ordinals = {file.path: ordinal for ordinal, file in enumerate(self.data_files)}
        parts = []
        if covered and len(self.keys) and self.index is not None:
            with self.job.stage("lookup"):
                parts.append(self.look_up(self.index, covered, ordinals))
        if uncovered and len(self.keys):
            with self.job.stage("scan"):
                parts.append(self.scan(uncovered, ordinals))
        found = Matches.combined(parts)
        for failure in found.failures:
            reason = f"it applies to a data file that can't be read: {failure.reason}"
            self._refuse_for(self.data_files[failure.ordinal], failure.code, reason, failure.remedy)
        explanation = explain(self.key_set.equality_field_ids, self.key_set.column_names, choice) | {
            "keys": len(self.keys),
            "matches": len(found.positions),
            "row_groups_read": found.row_groups_read,
            "row_groups_total": found.row_groups_total,
            "bytes_read": found.bytes_read,
            "data_files_from_index": len(covered),
            "data_files_scanned": len(uncovered),
        }
        return Resolved(
            tuple(self.delete_files), tuple(self.refused), _by_file(found, self.data_files), explanation
        )

    def look_up(self, index: KeySetIndex, files: Sequence[DataFile], ordinals: Mapping[str, int]) -> Matches:
        """Asks the index about `files`, all of which it must cover. ordinals: by path."""
        tasks = lookup_tasks(self.table.storage, index.entries.files, self.keys)
        planned = sum(min(task.file.rows, len(self.keys) * ROW_GROUP_ROWS) // task.parts for task in tasks)
        found = self.job.run_tasks("lookup", tasks, self.keys, planned)
        return Matches.combined([part.resolve(index.dictionary, files, ordinals) for part in found])

    def scan(self, files: Sequence[DataFile], ordinals: Mapping[str, int]) -> Matches:
        """Reads the key columns of `files`; same result as `look_up`, and failures for unreadable files."""
        tasks = [
            ScanTask(
                self.reader,
                tuple((ordinals[f.path], _partition_ids(self.partitions, f.partition)[0], f) for f in group),
            )
            for group in _balanced(files, self.job.runner.parallelism * 4)
        ]
        rows = sum(file.record_count for file in files)
        return Matches.combined(self.job.run_tasks("scan", tasks, self.keys, rows))

    def _choose(self, covered: Sequence[DataFile], uncovered: Sequence[DataFile]) -> Choice:
        if not self.data_files:
            return Choice(Source.NONE, "no live data file is older than the deletes in their scope")
        if self.index is None:
            return Choice(Source.SCAN, "there is no index of this key set yet")
        if not covered:
            return Choice(Source.SCAN, "the index covers none of the data files that the deletes apply to")
        cheaper, why = index_is_cheaper(
            len(self.keys),
            self.index.entries.rows,
            len(self.index.entries.files),
            ROW_GROUP_ROWS,
            sum(file.record_count for file in covered),
        )
        if not cheaper:
            return Choice(Source.SCAN, f"scanning is cheaper than the index for {why}")
        if uncovered:
            return Choice(
                Source.INDEX_AND_SCAN,
                f"{len(uncovered):,} data files are not indexed yet and are scanned; for the others, {why}",
            )
        return Choice(Source.INDEX, f"the index covers all {len(covered):,} data files; {why}")

    def _refuse_for(self, unread: DataFile, code: str, reason: str, remedy: str) -> None:
        """Refuses the delete files that apply to a data file that could not be read."""
        blocked = [d for d in self.delete_files if applies(d, unread, self.table.files.global_spec_ids)]
        self.refused += [Unconvertible(delete.path, code, reason, remedy) for delete in blocked]
        self.delete_files = [delete for delete in self.delete_files if delete not in blocked]


def explain(ids: Sequence[int], columns: Sequence[str], choice: Choice) -> dict[str, Any]:
    """How a key set was resolved, for the job's result; counters zero until something is read."""
    counters = ("keys", "matches", "row_groups_read", "row_groups_total", "bytes_read")
    return {
        "equality_field_ids": list(ids),
        "columns": list(columns),
        "source": choice.source.value,
        "reason": choice.reason,
        **dict.fromkeys((*counters, "data_files_from_index", "data_files_scanned"), 0),
    }


def _partition_ids(
    partitions: dict[PartitionKey, tuple[int, ...]], partition: PartitionKey
) -> tuple[int, ...]:
    """The index's ids of a partition; one that the index has never seen gets a negative one, below GLOBAL."""
    return partitions.setdefault(partition, (GLOBAL - 1 - len(partitions),))


def _balanced(files: Sequence[DataFile], groups: int) -> list[list[DataFile]]:
    """Files in about `groups` groups of similar row counts."""
    target = max(1, sum(file.record_count for file in files) // groups)
    result: list[list[DataFile]] = []
    rows = target
    for file in files:
        if rows >= target:
            result.append([])
            rows = 0
        result[-1].append(file)
        rows += file.record_count
    return result


def _by_file(matches: Matches, data_files: Sequence[DataFile]) -> dict[DataFile, Int64Array]:
    if not len(matches.ordinals):
        return {}
    order = np.argsort(matches.ordinals, kind="stable")
    ordinals, positions = matches.ordinals[order], matches.positions[order]
    starts = np.flatnonzero(np.concatenate([[True], ordinals[1:] != ordinals[:-1]]))
    return {
        data_files[int(ordinals[start])]: part
        for start, part in zip(starts, np.split(positions, starts[1:]), strict=True)
    }
