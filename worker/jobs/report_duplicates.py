"""The job that lists keys with more than one live row, which upserts should never leave.

deletes -> uncovered data files as sorted runs -> ranges of keys (`worker.jobs.duplicate_rows`) -> report.

Invariant: a report is about every row of the pinned snapshot, or there is none. Keys are equal as equality
deletes compare them, so null equals null; and a row is live if readers see it: neither position deletes nor
pending equality deletes hide it. The table and its index stay as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from pyroaring import BitMap64

from telemetry.plurals import counted
from worker.attempt.indexes import planned_key_sets, usable_index
from worker.attempt.job import Job
from worker.attempt.outcome import Outcome, outcome
from worker.attempt.pinned_table import PinnedTable
from worker.contract.control_plane import StaleAttemptError
from worker.deletes.puffin import bitmap_of
from worker.index.build import RUN_BYTES, RUN_ROWS, build_tasks
from worker.index.dictionary import IndexedFile
from worker.index.key_set_index import KeySetIndex, damage_of, entries_schema
from worker.index.run_files import BUCKET, RunFile
from worker.index.warehouse import REPORTS, IndexWarehouse
from worker.io.sorting import Int64Array
from worker.jobs.duplicate_rows import (
    SHOWN_KEYS,
    DeletedTask,
    Found,
    Plan,
    RangeTask,
    SnapshotRows,
    SortTask,
    first_numbers,
    plan_ranges,
)
from worker.jobs.indexing import NoKeySetError
from worker.keys.key_set import KeyColumnError, KeySet
from worker.keys.read import key_reader
from worker.keys.schema_fields import column_names_of, resolve_key_set
from worker.lookup.index_lookup import LiveRows
from worker.lookup.resolution import find_rows
from worker.process.errors import JobCancelledError, JobError
from worker.table.files import DataFile, DataFiles, DeleteFile, PartitionKey
from worker.table.plan import plan_conversion

READS_AT_MOST = 2.0  # of a row of the index: a file that would be read more often is sorted anew
_FILES_PER_TASK = 200  # whose position deletes a task reads
# Measured: 50 million rows take a worker's threads 3 s, and Spark on the same cores 10 to 20 s.
_ROW_COST = 0.25


class UndecidedRowsError(JobError):
    code = "rows_undecided"
    title = "It can't be told which rows are live"
    remedy = "Restore what is missing or damaged."
    retryable = True  # what was compacted away and expired meanwhile is not asked for again


def report_duplicates(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Outcome:
    """Reports on every key set of the table. The newest report is kept, earlier ones are deleted."""
    place = ReportPlace(job, table, warehouse)
    key_sets = list(_key_sets(job, table, warehouse))
    place.remove_abandoned_runs()
    deleted = _deleted_rows(job, table, warehouse)
    results = []
    for key_set in key_sets:
        results.append(_reported(job, table, warehouse, place, key_set, deleted))
        job.decide(f"Key set {key_set}: {_in_words(results[-1])}.")
    with job.stage("clean_up"):
        place.remove_earlier_reports()
    result = {"iceberg_snapshot_id": table.snapshot_id, "key_sets": results}
    return outcome(job, table, warehouse, result, table.files, [], table.snapshot_id)


def _key_sets(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Iterator[KeySet]:
    planned = planned_key_sets(job, table, warehouse)
    if not planned:
        raise NoKeySetError
    for ids in planned:
        try:
            yield resolve_key_set(table.metadata, ids)
        except KeyColumnError as error:
            if len(planned) == 1:
                raise
            columns = ", ".join(column_names_of(table.metadata, ids))
            job.decide(f"Key set ({columns}) is left out: {error}.")


def _in_words(result: Mapping[str, Any]) -> str:
    """No key is told here: what a job decides is read by more people than its result."""
    keys, rows = result["duplicate_keys"], result["duplicate_rows"]
    checked = f"{counted(result['rows_checked'], 'row')} in {counted(result['files_checked'], 'data file')}"
    if not keys:
        return f"no two live rows have the same key, of {checked}"
    have = "has" if keys == 1 else "have"
    return f"{counted(keys, 'key')} {have} {rows:,} live rows, of {checked}; the report is {result['report']}"


class ReportPlace:
    """The folder of a table's reports beside its indexes, with which it is dropped.

    Reports have the name of their attempt. Sorted runs for the time of a job lie in a folder below.
    """

    def __init__(self, job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> None:
        self._job = job
        self._prefix = f"{job.assignment.job.id}-{job.assignment.attempt}-"
        self.storage = warehouse.storage
        self.location = warehouse.place_of(table.index_database, REPORTS)

    def report(self, key_set: KeySet, part: str) -> str:
        ids = "_".join(map(str, key_set.equality_field_ids))
        return f"{self.location}/{self._prefix}{ids}-{part}.parquet"

    def remove_abandoned_runs(self) -> None:
        """Sorted runs of attempts that died."""
        self._remove(f"{self.location}/{BUCKET}")

    def remove_earlier_reports(self) -> None:
        """Those of attempts that did not come to their end, too."""
        self._remove(self.location)

    def _remove(self, folder: str) -> None:
        # What another attempt writes after the lease was confirmed is no part of these.
        files = [file for file in self.storage.list(folder) if not file.name.startswith(self._prefix)]
        if files:
            self._job.reporter.confirm_lease(anew=True)
        for file in files:
            self.storage.delete(file.location)


def _reported(
    job: Job,
    table: PinnedTable,
    warehouse: IndexWarehouse,
    place: ReportPlace,
    key_set: KeySet,
    deleted: BitMap64,
) -> dict[str, Any]:
    """Of one key set: by its index, or if that turns out to be damaged, by the data files alone."""
    index = usable_index(job, table, warehouse, key_set)
    try:
        return KeySetReport(job, table, place, key_set, index, deleted).run()
    except (JobError, JobCancelledError, StaleAttemptError):
        raise
    except Exception:
        damage = damage_of(index) if index is not None else None
        if damage is None:
            raise
        job.decide(f"Key set {key_set}: the index can't be used, so data files are read: {damage}.")
    return KeySetReport(job, table, place, key_set, None, deleted).run()


class KeySetReport:
    """The duplicates of one key set. index: what it covers is not read from data files."""

    def __init__(
        self,
        job: Job,
        table: PinnedTable,
        place: ReportPlace,
        key_set: KeySet,
        index: KeySetIndex | None,
        deleted: BitMap64,
    ) -> None:
        self._job = job
        self._table = table
        self._place = place
        self._key_set = key_set
        self._index = index
        self._deleted = deleted
        self._runs: list[RunFile] = []  # for the time of the job
        self._rows_at_most = max(1, int(RUN_ROWS * job.memory_fraction))
        self._bytes_at_most = max(1, int(RUN_BYTES * job.memory_fraction))

    def run(self) -> dict[str, Any]:
        """Raises UndecidedRowsError, or OSError (a retry can help)."""
        try:
            return self._run()
        finally:
            for run in self._runs:
                with suppress(OSError):  # the next job removes it
                    self._place.storage.delete(run.location)

    def _run(self) -> dict[str, Any]:
        index, data_files = self._index, self._table.files.data_files
        covered = np.zeros(len(data_files), np.bool_)
        indexed, end = None, 0
        if index is not None:
            covered, end = index.dictionary.covers(data_files), index.end_address
            indexed = LiveRows(index.dictionary, data_files, np.flatnonzero(covered))
        uncovered = np.flatnonzero(~covered)
        bases = end + first_numbers(data_files.select(uncovered))
        self._sort_uncovered(data_files.select(uncovered), bases)
        rows = SnapshotRows(data_files, indexed, end, uncovered, bases, self._deleted)
        found = self._find(self._planned(), rows)
        keys = sum(one.keys for one in found)
        shown = [key for one in sorted(found, key=lambda one: one.number) for key in one.shown]
        return {
            "equality_field_ids": list(self._key_set.equality_field_ids),
            "columns": self._key_set.column_names,
            "generation": index.generation if index is not None else 0,
            "files_checked": len(data_files),
            "files_covered": int(covered.sum()),
            "rows_checked": data_files.record_count,
            "duplicate_keys": keys,
            "duplicate_rows": sum(one.rows for one in found),
            "report": self._place.report(self._key_set, "*") if keys else "",
            "duplicates": shown[:SHOWN_KEYS],
        }

    def _sort_uncovered(self, files: DataFiles, bases: Int64Array) -> None:
        """Writes the keys of data files as sorted runs of one partition. Raises UndecidedRowsError."""
        if not len(files):
            return
        job, place = self._job, self._place
        reader = key_reader(self._table.metadata, self._table.storage, self._key_set)
        indexed = [IndexedFile(file, base, 0) for file, base in zip(files, bases.tolist(), strict=True)]
        parallelism = job.runner.parallelism
        tasks = build_tasks(reader, place.storage, place.location, indexed, parallelism, job.memory_fraction)
        failures = []
        with job.stage("sort_rows"):
            for built in job.each_task("sort_rows", tasks, None, files.record_count):
                self._runs += built.runs
                failures += built.failures
                job.usage.bytes += built.bytes_read + sum(run.size_bytes for run in built.runs)
        for path, reason in failures:
            raise UndecidedRowsError(f"{path}: {reason}")

    def _planned(self) -> Plan:
        """Reads each file of the index about once: what has many small partitions is sorted anew before."""
        job, place, index = self._job, self._place, self._index
        entries = index.entries.files if index is not None else ()
        with job.stage("plan"):
            plan = self._plan(entries)
        # What was written for the job is of one partition, and never scattered more than that.
        scattered = set(plan.scattered).intersection(entries)
        if not scattered:
            return plan
        schema, most = entries_schema(self._key_set), (self._rows_at_most, self._bytes_at_most)
        tasks = [SortTask(place.storage, file, schema, place.location, *most) for file in scattered]
        with job.stage("sort_rows"):
            for runs in job.each_task("sort_rows", tasks, None, sum(file.rows for file in scattered)):
                self._runs += runs
                job.usage.bytes += sum(run.size_bytes for run in runs)
        job.usage.bytes += sum(file.size_bytes for file in scattered)
        with job.stage("plan"):
            return self._plan([file for file in entries if file not in scattered])

    def _plan(self, entries: Iterable[RunFile]) -> Plan:
        return plan_ranges(
            self._place.storage,
            [*entries, *self._runs],
            self._key_set,
            self._rows_at_most,
            self._bytes_at_most,
            READS_AT_MOST,
        )

    def _find(self, plan: Plan, rows: SnapshotRows) -> list[Found]:
        job, place = self._job, self._place
        tasks = [
            RangeTask(
                place.storage,
                self._key_set,
                number,
                key_range,
                sources,
                self._rows_at_most,
                self._bytes_at_most,
                place.report(self._key_set, f"{number:05}"),
            )
            for number, (key_range, sources) in enumerate(plan.ranges)
        ]
        with job.stage("find_duplicates"):
            found: list[Found] = job.run_tasks(
                "find_duplicates", tasks, rows, sum(task.rows for task in tasks), _ROW_COST
            )
        job.usage.bytes += sum(one.bytes_read + one.bytes_written for one in found)
        return found


def _deleted_rows(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> BitMap64:
    """The numbers of the snapshot's rows that readers skip, by position deletes and pending equality deletes.

    At most two bytes a row in memory. Raises UndecidedRowsError.
    """
    deleted = BitMap64()
    tasks = _position_tasks(table)
    with job.stage("read_deletes"):
        planned = table.files.position_deletes.record_count
        for found in job.each_task("read_deletes", tasks, None, planned):
            if isinstance(found, str):
                raise UndecidedRowsError(found)
            deleted |= found
    data_files = table.files.data_files
    first = first_numbers(data_files)
    for plan in plan_conversion(table.files):
        resolved = find_rows(job, table, warehouse, plan, dry_run=True)
        for refused in resolved.refused:
            raise UndecidedRowsError(f"{refused.file_path}: {refused.reason}", refused.remedy)
        for ordinal, file in _with_ordinals(data_files, resolved.positions.data_files()):
            deleted |= bitmap_of(first[ordinal] + resolved.positions.of(file))
    return deleted


def _with_ordinals(data_files: DataFiles, wanted: Collection[DataFile]) -> Iterator[tuple[int, DataFile]]:
    """Some of the data files, more than once where they are live more than once."""
    ordinals = np.flatnonzero(data_files.are_named({file.path for file in wanted}))
    for ordinal, file in zip(ordinals.tolist(), data_files.select(ordinals), strict=True):
        if file in wanted:
            yield ordinal, file


def _position_tasks(table: PinnedTable) -> list[DeletedTask]:
    """Together for all data files that a position delete may apply to.

    Those of a partition with position delete files that name many data files are one task, so that each of
    these is read once.
    """
    data_files = table.files.data_files
    by_path: dict[str, list[DeleteFile]] = defaultdict(list)
    by_partition: dict[PartitionKey, list[DeleteFile]] = defaultdict(list)
    for delete in table.files.position_deletes:
        if delete.referenced_data_file is not None:
            by_path[delete.referenced_data_file].append(delete)
        else:
            by_partition[delete.partition].append(delete)
    hit = data_files.are_named(by_path.keys()) | data_files.are_of(
        lambda kind: kind.partition in by_partition
    )
    first = first_numbers(data_files)
    ordinals = np.flatnonzero(hit)
    groups: dict[PartitionKey | int, list[tuple[DataFile, int]]] = defaultdict(list)
    for number, (ordinal, file) in enumerate(
        zip(ordinals.tolist(), data_files.select(ordinals), strict=True)
    ):
        key = file.partition if file.partition in by_partition else number // _FILES_PER_TASK
        groups[key].append((file, int(first[ordinal])))
    return [
        DeletedTask(
            table.storage,
            tuple(file for file, _ in group),
            tuple(number for _, number in group),
            tuple(
                dict.fromkeys(
                    [
                        *(delete for file, _ in group for delete in by_path.get(file.path, ())),
                        *(
                            by_partition.get(group[0][0].partition, ())
                            if isinstance(key, PartitionKey)
                            else ()
                        ),
                    ]
                )
            ),
        )
        for key, group in groups.items()
    ]
