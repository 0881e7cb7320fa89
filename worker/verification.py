"""The job that distrusts the index: compares it with the data files it covers, and rebuilds a wrong one.

Two checks, each complete: every covered file has exactly one entry for each of its rows; and the pending
equality deletes find the same rows in the index as by scanning the covered files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from worker.index import ADDRESS, FileDictionary, KeySetIndex, damage_of
from worker.indexing import rebuild_key_set
from worker.job import Job, Outcome, PinnedTable, indexes, outcome
from worker.plan import plan_conversion
from worker.read import key_reader
from worker.resolution import PendingDeletes
from worker.session import JobCancelledError
from worker.sorted_runs import IndexWarehouse, RunFile
from worker.sorting import Int64Array
from worker.storage import Storage

EXAMPLES = 10


def verify_index(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Outcome:
    """Checks every index of the table. A wrong one is reported with examples and rebuilt at once."""
    results: list[dict[str, Any]] = []
    for index in indexes(table, warehouse):
        with job.stage("verify"):
            differences = _differences(job, table, index)
        results.append(
            {
                "equality_field_ids": list(index.key_set.equality_field_ids),
                "columns": index.key_set.column_names,
                "generation": index.generation,
                "files_checked": len(index.dictionary),
                "entries_checked": index.entries.rows,
                "differences": len(differences),
                "examples": differences[:EXAMPLES],
                "rebuilt": bool(differences),
            }
        )
        if differences:
            job.decide(
                f"Key set {index.key_set}: the index differs from the data files ({differences[0]});"
                " it is rebuilt and the wrong one is not used again."
            )
            rebuild_key_set(job, table, warehouse, index.key_set)
        else:
            job.decide(
                f"Key set {index.key_set}: {index.entries.rows:,} entries of {len(index.dictionary):,} files"
                " are as they should be."
            )
    if not results:
        job.decide("The table has no index yet: there is nothing to verify.")
    result = {"iceberg_snapshot_id": table.snapshot_id, "key_sets": results}
    return outcome(job, table, warehouse, result, table.files, [], table.snapshot_id)


def _differences(job: Job, table: PinnedTable, index: KeySetIndex) -> list[str]:
    try:
        return [*_miscounted_files(job, table, index), *_different_answers(job, table, index)]
    except JobCancelledError:
        raise
    except Exception:
        damage = damage_of(index, table.storage)
        if damage is None:
            raise
        return [damage]


@dataclass(frozen=True, slots=True)
class CountTask:
    """Counts the addresses that one file of the index holds for each covered file. Pickles."""

    storage: Storage
    file: RunFile

    def run(self, dictionary: FileDictionary) -> Int64Array:
        counts = np.zeros(len(dictionary), np.int64)
        with self.storage.open_input(self.file.location) as source:
            parquet = pq.ParquetFile(source)
            for batch in parquet.iter_batches(1_048_576, columns=[ADDRESS], use_threads=False):
                ordinals = dictionary.ordinals(batch.column(0).to_numpy())
                counts += np.bincount(ordinals[ordinals >= 0], minlength=len(dictionary))
        return counts


def _miscounted_files(job: Job, table: PinnedTable, index: KeySetIndex) -> list[str]:
    tasks = [CountTask(table.storage, file) for file in index.entries.files]
    parts = job.run_tasks("verify", tasks, index.dictionary, index.entries.rows)
    counts = np.sum(parts, axis=0) if parts else np.zeros(len(index.dictionary), np.int64)
    wrong = np.flatnonzero(counts != index.dictionary.record_counts)
    return [
        f"{index.dictionary.paths[i]}: {index.dictionary.record_counts[i]:,} rows, {counts[i]:,} entries"
        for i in wrong.tolist()
    ]


def _different_answers(job: Job, table: PinnedTable, index: KeySetIndex) -> list[str]:
    ids = index.key_set.equality_field_ids
    plan = next((plan for plan in plan_conversion(table.files) if plan.equality_field_ids == ids), None)
    if plan is None:
        return []
    reader = key_reader(table.metadata, table.storage, index.key_set)
    pending = PendingDeletes.read(job, table, plan, reader, index)
    covered = [file for file in pending.data_files if index.dictionary.covers(file)]
    looked_up, _, _ = pending.find(covered, [])
    scanned, _, read = pending.find([], covered)
    unread = {pending.data_files[failure.ordinal]: failure.reason for failure in read.failures}
    for reason in unread.values():
        job.decide(f"Key set {index.key_set}: a data file can't be compared with the index: {reason}.")
    differences = []
    for file in covered:
        if file in unread:
            continue
        by_index, by_scan = looked_up.of(file), scanned.of(file)
        for rows, what in (
            (np.setdiff1d(by_scan, by_index), "the scan finds it, the index does not"),
            (np.setdiff1d(by_index, by_scan), "the index finds it, the scan does not"),
        ):
            differences += [f"{file.path} row {row}: {what}" for row in rows.tolist()]
    return differences
