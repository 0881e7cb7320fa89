"""The jobs, composed of the stages: plan -> read -> index | lookup -> deletes -> commit.

Each job starts from a freshly loaded table and pins the head of its branch. All of them are safe to
repeat: what is done already is found to be done.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

import numpy as np
from py4j.java_gateway import JavaObject
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from worker import catalogs
from worker.commit import (
    CommitConflictError,
    CommitStateUnknownError,
    CommittedSnapshot,
    RowDelta,
    commit_row_delta,
    find_commits,
)
from worker.control_plane import Assignment
from worker.deletes import (
    DeleteFileLocations,
    DeleteGranularity,
    WrittenDeletes,
    existing_deletes,
    plan_deletes,
    remove_written,
    write_planned,
)
from worker.index import (
    Int64Array,
    KeySetIndex,
    addresses_needed,
    assign_addresses,
    build_tasks,
    commit_batches,
    commit_index,
    indexed_key_sets,
    open_index,
    uncovered_files,
)
from worker.lookup import GLOBAL, DeleteKeys, LookupTask, Matches, ScanTask
from worker.manifests import UnsupportedTableError, read_snapshot_files
from worker.plan import (
    DataFile,
    DeleteFile,
    KeySetDeletes,
    PartitionKey,
    SnapshotFiles,
    Source,
    affected_files,
    applies,
    index_is_cheaper,
    plan_conversion,
)
from worker.read import KeyColumnError, KeyReader, KeySet, field_ids_of, key_reader, resolve_key_set
from worker.session import TaskRunner
from worker.sorted_runs import ROW_GROUP_ROWS, IndexWarehouse
from worker.storage import Storage

PLANNING_ATTEMPTS = 5
FILES_PER_DELETES_TASK = 500


class JobError(Exception):
    """Why a job failed, in the words its user reads: what happened, the cause, and what to do."""

    def __init__(self, code: str, title: str, detail: str, remedy: str, *, retryable: bool = False) -> None:
        super().__init__(f"{title}: {detail}")
        self.code = code
        self.title = title
        self.detail = detail
        self.remedy = remedy
        self.retryable = retryable


class Reporter(Protocol):
    """Where a job tells what it does. Each call may raise JobCancelledError or StaleAttemptError."""

    def progress(self, stage: str, done: int, total: int, unit: str) -> None: ...

    def decide(self, sentence: str) -> None:
        """Records a decision for the job's history."""

    def confirm_lease(self) -> None:
        """Asks the control plane whether this attempt still holds the job; raises if not."""

    def grant_addresses(self, rows: int, at_least: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Unconvertible:
    """An equality delete file that stays in the table, and why."""

    file_path: str
    code: str
    reason: str
    remedy: str


@dataclass(slots=True)
class Outcome:
    """What a job hands back: its result, and the health of the table's indexes after it."""

    result: dict[str, Any]
    health: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PinnedTable:
    """A table at the head of its branch; everything else is derived from `metadata` and `snapshot`."""

    java_table: JavaObject
    metadata: TableMetadata
    snapshot: Snapshot | None
    files: SnapshotFiles
    storage: Storage

    @property
    def snapshot_id(self) -> int | None:
        return self.snapshot.snapshot_id if self.snapshot is not None else None


@dataclass(slots=True)
class Job:
    """One attempt at a job, with all that its stages need."""

    assignment: Assignment
    runner: TaskRunner
    reporter: Reporter
    decisions: list[str] = field(default_factory=list)
    stages: list[dict[str, Any]] = field(default_factory=list)

    def decide(self, sentence: str) -> None:
        self.decisions.append(sentence)
        self.reporter.decide(sentence)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.reporter.progress(name, 0, 0, "")
        started = time.monotonic()
        try:
            yield
        finally:
            seconds = round(time.monotonic() - started, 3)
            known = next((stage for stage in self.stages if stage["name"] == name), None)
            if known is None:
                self.stages.append({"name": name, "seconds": seconds})
            else:
                known["seconds"] = round(known["seconds"] + seconds, 3)

    def run_tasks(self, stage: str, tasks: Sequence[Any], shared: Any, planned_rows: int) -> list[Any]:
        def on_progress(done: int) -> None:
            self.reporter.progress(stage, done, len(tasks), "tasks")

        return list(self.runner.run(tasks, shared, planned_rows=planned_rows, on_progress=on_progress))


def run_job(assignment: Assignment, runner: TaskRunner, reporter: Reporter) -> Outcome:
    """Runs one attempt of a job. Raises JobError with the cause in words."""
    job = Job(assignment, runner, reporter)
    kinds = {"index": index_table, "convert": convert_table, "rebuild": rebuild_index}
    kind = kinds.get(assignment.job.kind)
    if kind is None:
        raise JobError(
            "unsupported_job_kind",
            f"This worker runs no {assignment.job.kind} jobs",
            f"it knows {', '.join(sorted(kinds))}",
            "Update the worker to the service's version.",
        )
    with job.stage("plan"):
        table = pin_table(job)
        warehouse = IndexWarehouse(assignment.index.warehouse, table.storage)
    return kind(job, table, warehouse)


# plan


def pin_table(job: Job) -> PinnedTable:
    """Loads the table and reads every live file of the head of the branch."""
    assignment = job.assignment
    jvm = job.runner.spark.sparkContext._jvm
    identifier = ".".join(assignment.table.identifier)
    try:
        java_table = catalogs.load_table(
            jvm,
            assignment.catalog.type,
            assignment.catalog.name,
            catalogs.resolve_secrets(assignment.catalog.properties),
            assignment.table.identifier,
        )
    except catalogs.TableNotFoundError as error:
        raise JobError(
            "table_not_found",
            f"The catalog has no table {identifier}",
            str(error),
            "Register the table under its present name, or remove it here if it was dropped.",
        ) from error
    except catalogs.CatalogError as error:
        raise JobError(
            "catalog_unreachable",
            f"Catalog {assignment.catalog.name} can't be used",
            str(error),
            "Check the catalog's address and credentials (POST /api/v1/catalogs/{id}/check), then retry.",
            retryable=isinstance(error, catalogs.CatalogUnreachableError),
        ) from error
    storage = Storage(catalogs.file_io_properties(java_table))
    try:
        return _pin(java_table, storage, assignment.table.branch)
    except FileNotFoundError as error:
        raise JobError(
            "metadata_missing",
            "A metadata file of the table is missing",
            str(error),
            "If the table's snapshots were expired meanwhile, retry; otherwise restore the file.",
            retryable=True,
        ) from error
    except UnsupportedTableError as error:
        raise JobError(
            "unsupported_table", f"{identifier} can't be planned", str(error), "Convert it with another tool."
        ) from error


def _pin(java_table: JavaObject, storage: Storage, branch: str) -> PinnedTable:
    io = PyArrowFileIO(storage.properties)
    metadata = FromInputFile.table_metadata(
        io.new_input(java_table.operations().current().metadataFileLocation())
    )
    reference = metadata.refs.get(branch)
    if reference is None and branch == "main":
        return PinnedTable(java_table, metadata, None, SnapshotFiles((), (), frozenset()), storage)
    if reference is None:
        raise JobError(
            "branch_not_found",
            f"The table has no branch {branch}",
            f"it has {', '.join(sorted(metadata.refs)) or 'none yet'}",
            "Register the table with one of its branches.",
        )
    snapshot = metadata.snapshot_by_id(reference.snapshot_id)
    assert snapshot is not None
    return PinnedTable(java_table, metadata, snapshot, read_snapshot_files(metadata, snapshot, io), storage)


def planned_key_sets(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> dict[tuple[int, ...], str]:
    """Field ids -> where the key set comes from: equality deletes, declared, an index, identifier fields."""
    found = {delete.equality_ids: "equality_deletes" for delete in table.files.equality_deletes}
    schema = table.metadata.schema()
    for columns in job.assignment.table.key_sets or []:
        found.setdefault(field_ids_of(schema, columns), "declared")
    for ids in indexed_key_sets(warehouse, str(table.metadata.table_uuid)):
        found.setdefault(ids, "index")
    if not found and schema.identifier_field_ids:
        found[tuple(sorted(schema.identifier_field_ids))] = "identifier_fields"
    return found


# index


def index_table(job: Job, table: PinnedTable, warehouse: IndexWarehouse, *, rebuild: bool = False) -> Outcome:
    """Indexes the live data files that the index of each key set does not cover yet."""
    key_sets = planned_key_sets(job, table, warehouse)
    if not key_sets:
        raise JobError(
            "no_key_set",
            "There is no key to index",
            "the table holds no equality deletes, has no identifier fields, and no key set was declared",
            'Declare one when registering the table (key_sets: [["id"]]), or wait for equality deletes.',
        )
    results = []
    for ids, origin in key_sets.items():
        try:
            key_set = resolve_key_set(table.metadata, ids)
        except KeyColumnError as error:
            if len(key_sets) == 1:
                raise JobError(error.code, "The key can't be indexed", str(error), error.remedy) from error
            job.decide(f"Key set {ids} is not indexed: {error}.")
            continue
        results.append(_index_key_set(job, table, warehouse, key_set, rebuild=rebuild))
        job.decide(_index_sentence(key_set, origin, results[-1]))
    result = {"iceberg_snapshot_id": table.snapshot_id, "key_sets": results}
    return _outcome(job, table, warehouse, result, table.files, [], table.snapshot_id)


def rebuild_index(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Outcome:
    """Builds a new generation of every index; the old one serves until its dictionary is complete."""
    return index_table(job, table, warehouse, rebuild=True)


def _index_key_set(
    job: Job, table: PinnedTable, warehouse: IndexWarehouse, key_set: KeySet, *, rebuild: bool
) -> dict[str, Any]:
    try:
        index = open_index(warehouse, str(table.metadata.table_uuid), key_set, create=True, rebuild=rebuild)
    except OSError as error:
        raise JobError(
            "index_unwritable",
            f"The index place {warehouse.location} can't be used",
            str(error),
            "Check that the place exists, has room, and that the worker may write there.",
            retryable=True,
        ) from error
    assert index is not None
    reader = key_reader(table.metadata, table.storage, key_set)
    missing = uncovered_files(table.files.data_files, index.dictionary)
    total = sum(file.record_count for file in missing)
    files_indexed = rows_indexed = bytes_written = runs_written = 0
    for batch in commit_batches(missing):
        with job.stage("index"):
            rows = sum(file.record_count for file in batch)
            base = job.reporter.grant_addresses(addresses_needed(batch), index.dictionary.end_address)
            indexed = assign_addresses(batch, base, index.dictionary.partitions())
            tasks = build_tasks(reader, index.entries_table.location, indexed, job.runner.parallelism)
            built = job.run_tasks("index", tasks, None, rows)
        failures = {path: reason for part in built for path, reason in part.failures}
        for path, reason in failures.items():
            job.decide(f"{path} is not indexed: {reason}.")
        runs = [run for part in built for run in part.runs]
        readable = [entry for entry in indexed if entry.file.path not in failures]
        if not readable:
            continue
        with job.stage("commit_index"):
            job.reporter.confirm_lease()
            index = commit_index(index, runs, readable, table.storage)
        files_indexed += len(readable)
        rows_indexed += sum(entry.file.record_count for entry in readable)
        bytes_written += sum(run.size_bytes for run in runs)
        runs_written += len(runs)
        job.reporter.progress("index", rows_indexed, total, "rows")
    return {
        "equality_field_ids": list(key_set.equality_field_ids),
        "columns": key_set.column_names,
        "files_indexed": files_indexed,
        "rows_indexed": rows_indexed,
        "bytes_written": bytes_written,
        "sorted_runs_written": runs_written,
        "generation": index.generation,
    }


def _index_sentence(key_set: KeySet, origin: str, result: Mapping[str, Any]) -> str:
    found = {
        "equality_deletes": "found in live equality deletes",
        "declared": "declared for the table",
        "index": "indexed before",
        "identifier_fields": "the table's identifier fields",
    }[origin]
    if not result["files_indexed"]:
        return f"Key set {key_set} ({found}): nothing to do, every live data file is covered."
    return (
        f"Key set {key_set} ({found}): {result['files_indexed']:,} data files with {result['rows_indexed']:,}"
        f" rows indexed in {result['bytes_written']:,} bytes."
    )


# convert


def convert_table(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Outcome:
    """Replaces the live equality deletes by deletion vectors (V3) or position deletes (V2), in one commit."""
    assignment = job.assignment
    if assignment.attempt > 1 and not assignment.job.dry_run:
        done = find_commits(table.java_table, assignment.table.branch, assignment.job.id)
        if done:
            return _recovered(job, table, warehouse, done)
    for attempt in range(PLANNING_ATTEMPTS):
        conversion = Conversion(job, table, warehouse, attempt)
        try:
            return conversion.run()
        except CommitConflictError as error:
            job.decide(f"The table changed while this job ran, so it plans again: {error}.")
            conversion.remove_outputs()
        except CommitStateUnknownError as error:
            done = find_commits(table.java_table, assignment.table.branch, assignment.job.id)
            if done:
                return _recovered(job, table, warehouse, done)
            raise JobError(
                "commit_state_unknown",
                "The catalog did not say whether the commit happened",
                str(error),
                "Nothing was removed. The next attempt looks for the commit in the table's history.",
                retryable=True,
            ) from error
        with job.stage("plan"):
            table = pin_table(job)
    raise JobError(
        "commit_conflict",
        "Other commits came first every time",
        f"the plan was overtaken {PLANNING_ATTEMPTS} times",
        "Run the conversion when compaction or MERGE on this table is idle.",
        retryable=True,
    )


@dataclass(slots=True)
class Resolved:
    """What one key set's deletes come to: rows to delete, the delete files this answers, and how."""

    key_set: KeySet | None
    delete_files: list[DeleteFile]
    positions: dict[DataFile, Int64Array]
    explanation: dict[str, Any]


class Conversion:
    """One plan of a conversion, from the pinned snapshot to its commit."""

    def __init__(
        self, job: Job, table: PinnedTable, warehouse: IndexWarehouse, planning_attempt: int
    ) -> None:
        self.job = job
        self.table = table
        self.warehouse = warehouse
        self.dry_run = job.assignment.job.dry_run
        self.unconvertible: list[Unconvertible] = []
        self._prefix = _output_prefix(job.assignment, job.assignment.attempt, planning_attempt)
        self._locations: list[DeleteFileLocations] = []

    def run(self) -> Outcome:
        job, files = self.job, self.table.files
        plans = plan_conversion(files)
        if not plans:
            job.decide("The table holds no equality deletes: there is nothing to convert.")
        resolved = [self._resolve(plan) for plan in plans]
        positions = _merged(resolved)
        delete_files = [file for one in resolved for file in one.delete_files]
        with job.stage("deletes"):
            deletes = self._write_deletes(positions)
        committed: CommittedSnapshot | None = None
        if delete_files and not self.dry_run:
            with job.stage("commit"):
                committed = self._commit(deletes, delete_files)
            self._remove_leftovers()
        result = self._result(resolved, delete_files, deletes, committed)
        left = set(files.delete_files) - (set() if self.dry_run else set(delete_files))
        after = replace(files, delete_files=tuple(f for f in files.delete_files if f in left))
        head = committed.snapshot_id if committed else self.table.snapshot_id
        return _outcome(job, self.table, self.warehouse, result, after, self.unconvertible, head)

    # read

    def _resolve(self, plan: KeySetDeletes) -> Resolved:
        """Finds the rows that one key set's deletes delete, in the index and by scanning."""
        job, table = self.job, self.table
        try:
            key_set = resolve_key_set(table.metadata, plan.equality_field_ids)
        except KeyColumnError as error:
            self._refuse(plan.delete_files, error.code, str(error), error.remedy)
            explanation = _explain(plan.equality_field_ids, [], Source.NONE, str(error))
            return Resolved(None, [], {}, explanation)
        reader = key_reader(table.metadata, table.storage, key_set)
        with job.stage("plan"):
            index = open_index(self.warehouse, str(table.metadata.table_uuid), key_set)
        partitions = dict(index.dictionary.partitions()) if index else {}
        with job.stage("read"):
            deletes, readable = self._read_deletes(plan, reader, partitions)
        data_files = affected_files(table.files, readable)
        covered = [f for f in data_files if index and f.path in index.dictionary.covered_paths]
        uncovered = [f for f in data_files if not (index and f.path in index.dictionary.covered_paths)]
        choice = self._choose(deletes, index, covered, uncovered)
        if choice.scan_covered:
            covered, uncovered = [], list(data_files)
        ordinals = {file.path: ordinal for ordinal, file in enumerate(data_files)}
        matches = []
        if index and covered and len(deletes):
            with job.stage("lookup"):
                matches.append(self._look_up(index, deletes, {f.path: ordinals[f.path] for f in covered}))
        if uncovered and len(deletes):
            with job.stage("scan"):
                matches.append(self._scan(reader, deletes, uncovered, ordinals, partitions))
        found = Matches.combined(matches)
        for failure in found.failures:
            unread = data_files[failure.ordinal]
            blocked = [d for d in readable if applies(d, unread, table.files.global_spec_ids)]
            reason = f"it applies to a data file that can't be read: {failure.reason}"
            self._refuse(blocked, failure.code, reason, failure.remedy)
            readable = [d for d in readable if d not in blocked]
        explanation = _explain(plan.equality_field_ids, key_set.column_names, choice.source, choice.sentence)
        explanation |= {
            "keys": len(deletes),
            "matches": len(found.positions),
            "row_groups_read": found.row_groups_read,
            "row_groups_total": found.row_groups_total,
            "bytes_read": found.bytes_read,
            "data_files_from_index": len(covered),
            "data_files_scanned": len(uncovered),
        }
        job.decide(f"Key set {key_set}: {choice.sentence}.")
        return Resolved(key_set, readable, _by_file(found, data_files), explanation)

    def _read_deletes(
        self, plan: KeySetDeletes, reader: KeyReader, partitions: dict[PartitionKey, int]
    ) -> tuple[DeleteKeys, list[DeleteFile]]:
        """The keys of every readable delete file; unreadable files are refused, each with its reason."""
        batches, readable = [], []
        for done, file in enumerate(plan.delete_files):
            self.job.reporter.progress("read", done, len(plan.delete_files), "files")
            if file.partition.spec_id in self.table.files.global_spec_ids:
                partition_id = GLOBAL
            else:
                partition_id = _partition_id(partitions, file.partition)
            try:
                keys = list(reader.read_delete_file(file))
            except KeyColumnError as error:
                self._refuse([file], error.code, str(error), error.remedy)
                continue
            except FileNotFoundError as error:
                self._refuse([file], "missing_file", str(error), "Restore the file.")
                continue
            readable.append(file)
            batches += [(partition_id, file.data_sequence_number, batch) for batch in keys]
        return DeleteKeys.of(batches, reader.key_set.schema), readable

    # index | lookup

    def _choose(
        self,
        deletes: DeleteKeys,
        index: KeySetIndex | None,
        covered: Sequence[DataFile],
        uncovered: Sequence[DataFile],
    ) -> Choice:
        if not covered and not uncovered:
            return Choice(Source.NONE, "no live data file is older than the deletes in their scope", False)
        if index is None:
            return Choice(Source.SCAN, "there is no index of this key set yet", False)
        if not covered:
            return Choice(
                Source.SCAN, "the index covers none of the data files that the deletes apply to", False
            )
        cheaper, why = index_is_cheaper(
            len(deletes),
            index.entries.rows,
            len(index.entries.files),
            ROW_GROUP_ROWS,
            sum(file.record_count for file in covered),
        )
        if not cheaper:
            return Choice(Source.SCAN, f"scanning is cheaper than the index for {why}", True)
        if uncovered:
            sentence = (
                f"{len(uncovered):,} data files are not indexed yet and are scanned; for the others, {why}"
            )
            return Choice(Source.INDEX_AND_SCAN, sentence, False)
        return Choice(Source.INDEX, f"the index covers all {len(covered):,} data files; {why}", False)

    def _look_up(self, index: KeySetIndex, deletes: DeleteKeys, ordinals: Mapping[str, int]) -> Matches:
        tasks = [LookupTask(self.table.storage, (file,)) for file in index.entries.files]
        planned = min(index.entries.rows, len(deletes) * len(tasks) * ROW_GROUP_ROWS)
        found = self.job.run_tasks("lookup", tasks, deletes, planned)
        return Matches.combined([part.resolve(index.dictionary, ordinals) for part in found])

    def _scan(
        self,
        reader: KeyReader,
        deletes: DeleteKeys,
        files: Sequence[DataFile],
        ordinals: Mapping[str, int],
        partitions: dict[PartitionKey, int],
    ) -> Matches:
        tasks = [
            ScanTask(
                reader, tuple((ordinals[f.path], _partition_id(partitions, f.partition), f) for f in group)
            )
            for group in _balanced(files, self.job.runner.parallelism * 4)
        ]
        rows = sum(file.record_count for file in files)
        return Matches.combined(self.job.run_tasks("scan", tasks, deletes, rows))

    # deletes

    def _write_deletes(self, positions: Mapping[DataFile, Int64Array]) -> DeletesOutcome:
        metadata, storage = self.table.metadata, self.table.storage
        granularity = DeleteGranularity.of_table(metadata.properties)
        tasks = []
        ordered = sorted(positions, key=lambda f: (f.partition.spec_id, f.partition.values, f.path))
        for number, group in enumerate(_grouped(ordered, FILES_PER_DELETES_TASK)):
            locations = DeleteFileLocations(
                metadata.location, metadata.properties, f"{self._prefix}-{number:05d}"
            )
            self._locations.append(locations)
            chosen = {file: positions[file] for file in group}
            existing = _deletes_of(group, self.table.files.position_deletes)
            tasks.append(
                DeletesTask(
                    storage, chosen, existing, metadata.format_version, granularity, locations, self.dry_run
                )
            )
        rows = sum(len(found) for found in positions.values())
        return DeletesOutcome.union(self.job.run_tasks("deletes", tasks, None, rows))

    # commit

    def _commit(self, deletes: DeletesOutcome, delete_files: Sequence[DeleteFile]) -> CommittedSnapshot:
        assignment, snapshot_id = self.job.assignment, self.table.snapshot_id
        assert snapshot_id is not None
        self.job.reporter.confirm_lease()
        return commit_row_delta(
            self.table.java_table,
            RowDelta(
                branch=assignment.table.branch,
                starting_snapshot_id=snapshot_id,
                job_id=assignment.job.id,
                attempt=assignment.attempt,
                added=deletes.written.added,
                removed=(*deletes.written.removed, *delete_files),
                referenced_data_files=deletes.written.data_files,
                summary={
                    "icestream.equality-delete-files-removed": str(len(delete_files)),
                    "icestream.equality-deletes-resolved": str(sum(f.record_count for f in delete_files)),
                    "icestream.rows-deleted": str(deletes.rows_deleted),
                    "icestream.data-files-touched": str(deletes.data_files_touched),
                    "icestream.delete-files-merged": str(deletes.delete_files_removed),
                },
            ),
        )

    def remove_outputs(self) -> None:
        """Deletes what this plan wrote; only after an error that says that it was not committed."""
        for locations in self._locations:
            remove_written(self.table.storage, locations)

    def _remove_leftovers(self) -> None:
        """Deletes what dead attempts of this job wrote.

        Only after this attempt's commit: it removed equality delete files that theirs would remove too, so
        a late commit of theirs fails, and can never refer to a file that was deleted here.
        """
        metadata = self.table.metadata
        for attempt in range(1, self.job.assignment.attempt):
            for planning_attempt in range(PLANNING_ATTEMPTS):
                prefix = _output_prefix(self.job.assignment, attempt, planning_attempt)
                for number in range(1_000_000):
                    locations = DeleteFileLocations(
                        metadata.location, metadata.properties, f"{prefix}-{number:05d}"
                    )
                    if not remove_written(self.table.storage, locations):
                        break
                    self.job.decide(f"Removed files that attempt {attempt} left behind.")

    # report

    def _refuse(self, files: Iterable[DeleteFile], code: str, reason: str, remedy: str) -> None:
        for file in files:
            self.unconvertible.append(Unconvertible(file.path, code, reason, remedy))
            self.job.decide(f"{file.path} stays in the table: {reason}.")

    def _result(
        self,
        resolved: Sequence[Resolved],
        delete_files: Sequence[DeleteFile],
        deletes: DeletesOutcome,
        committed: CommittedSnapshot | None,
    ) -> dict[str, Any]:
        vectors = self.table.metadata.format_version >= 3
        return {
            "dry_run": self.dry_run,
            "iceberg_snapshot_id_before": self.table.snapshot_id,
            "iceberg_snapshot_id_after": committed.snapshot_id if committed else None,
            "equality_delete_files_removed": len(delete_files),
            "equality_deletes_resolved": sum(file.record_count for file in delete_files),
            "rows_deleted": deletes.rows_deleted,
            "data_files_touched": deletes.data_files_touched,
            "delete_files_added": deletes.delete_files_added,
            "delete_files_removed": deletes.delete_files_removed,
            "deletion_vectors_added": deletes.delete_files_added if vectors else 0,
            "position_delete_files_added": 0 if vectors else deletes.delete_files_added,
            "commits": 1 if committed else 0,
            "key_sets": [one.explanation for one in resolved],
        }


@dataclass(frozen=True, slots=True)
class Choice:
    source: Source
    sentence: str
    scan_covered: bool  # the covered files are scanned as well


@dataclass(frozen=True, slots=True)
class DeletesOutcome:
    """What was written, and the counts of the plan, which a dry run has too."""

    written: WrittenDeletes
    rows_deleted: int
    data_files_touched: int
    delete_files_added: int
    delete_files_removed: int

    @classmethod
    def union(cls, parts: Sequence[DeletesOutcome]) -> DeletesOutcome:
        return cls(
            WrittenDeletes.union(part.written for part in parts),
            sum(part.rows_deleted for part in parts),
            sum(part.data_files_touched for part in parts),
            sum(part.delete_files_added for part in parts),
            sum(part.delete_files_removed for part in parts),
        )


@dataclass(frozen=True, slots=True)
class DeletesTask:
    """Merges new positions with the existing deletes of some data files and writes the result. Pickles."""

    storage: Storage
    positions: Mapping[DataFile, Int64Array]
    existing: Sequence[DeleteFile]
    format_version: int
    granularity: DeleteGranularity
    locations: DeleteFileLocations
    dry_run: bool

    def run(self, _: object) -> DeletesOutcome:
        known = existing_deletes(self.storage, self.positions, self.existing)
        plan = plan_deletes(self.positions, known, self.format_version, self.granularity)
        written = WrittenDeletes() if self.dry_run else write_planned(self.storage, plan, self.locations)
        return DeletesOutcome(
            written,
            plan.rows_deleted,
            plan.data_files_touched,
            plan.delete_files_added,
            plan.delete_files_removed,
        )


def _output_prefix(assignment: Assignment, attempt: int, planning_attempt: int) -> str:
    """Names that no other attempt writes, and that the next attempt can find without listing anything."""
    return f"icestream-{assignment.job.id}-{attempt}-{planning_attempt}"


def _partition_id(partitions: dict[PartitionKey, int], partition: PartitionKey) -> int:
    """The index's id of a partition; one that the index has never seen gets a negative one, below GLOBAL."""
    return partitions.setdefault(partition, GLOBAL - 1 - len(partitions))


def _balanced(files: Sequence[DataFile], groups: int) -> list[list[DataFile]]:
    """Files in at most `groups` groups of similar row counts."""
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


def _grouped(files: Sequence[DataFile], size: int) -> Iterator[list[DataFile]]:
    iterator = iter(files)
    while group := list(islice(iterator, size)):
        yield group


def _deletes_of(group: Sequence[DataFile], position_deletes: Iterable[DeleteFile]) -> tuple[DeleteFile, ...]:
    """The position deletes that may apply to the data files of a group."""
    paths = {file.path for file in group}
    partitions = {file.partition for file in group}
    return tuple(
        delete
        for delete in position_deletes
        if (
            delete.referenced_data_file in paths
            if delete.referenced_data_file
            else delete.partition in partitions
        )
    )


def _by_file(matches: Matches, data_files: Sequence[DataFile]) -> dict[DataFile, Int64Array]:
    order = np.argsort(matches.ordinals, kind="stable")
    ordinals, positions = matches.ordinals[order], matches.positions[order]
    starts = np.flatnonzero(np.concatenate([[True], ordinals[1:] != ordinals[:-1]]))
    if not len(ordinals):
        return {}
    return {
        data_files[int(ordinals[start])]: part
        for start, part in zip(starts, np.split(positions, starts[1:]), strict=True)
    }


def _merged(resolved: Iterable[Resolved]) -> dict[DataFile, Int64Array]:
    """Positions per data file over all key sets: sorted, each once."""
    parts: dict[DataFile, list[Int64Array]] = defaultdict(list)
    for one in resolved:
        for file, positions in one.positions.items():
            parts[file].append(positions)
    return {file: np.unique(np.concatenate(positions)) for file, positions in parts.items()}


def _explain(ids: Sequence[int], columns: Sequence[str], source: Source, reason: str) -> dict[str, Any]:
    counters = ("keys", "matches", "row_groups_read", "row_groups_total", "bytes_read")
    return {
        "equality_field_ids": list(ids),
        "columns": list(columns),
        "source": source.value,
        "reason": reason,
        **dict.fromkeys((*counters, "data_files_from_index", "data_files_scanned"), 0),
    }


def _recovered(
    job: Job, table: PinnedTable, warehouse: IndexWarehouse, commits: Sequence[CommittedSnapshot]
) -> Outcome:
    """The result of a commit that an earlier attempt made and could not report."""
    job.decide(
        f"Attempt {commits[0].attempt} committed snapshot {commits[0].snapshot_id} before it was lost:"
        " there is nothing left to do."
    )

    def total(name: str) -> int:
        return sum(int(commit.summary.get(name, 0)) for commit in commits)

    result: dict[str, Any] = {
        "dry_run": False,
        "iceberg_snapshot_id_before": commits[-1].parent_snapshot_id,
        "iceberg_snapshot_id_after": commits[0].snapshot_id,
        "equality_delete_files_removed": total("icestream.equality-delete-files-removed"),
        "equality_deletes_resolved": total("icestream.equality-deletes-resolved"),
        "rows_deleted": total("icestream.rows-deleted"),
        "data_files_touched": total("icestream.data-files-touched"),
        "delete_files_added": total("added-delete-files"),
        "delete_files_removed": total("icestream.delete-files-merged"),
        "deletion_vectors_added": total("added-dvs"),
        "position_delete_files_added": total("added-position-delete-files") - total("added-dvs"),
        "commits": len(commits),
        "key_sets": [],
    }
    return _outcome(job, table, warehouse, result, table.files, [], table.snapshot_id)


# report


def _outcome(
    job: Job,
    table: PinnedTable,
    warehouse: IndexWarehouse,
    result: dict[str, Any],
    files: SnapshotFiles,
    unconvertible: Sequence[Unconvertible],
    iceberg_snapshot_id: int | None,
) -> Outcome:
    """Adds what every result tells, and measures the indexes as they are now.

    files: live after the job. The index report is about them.
    """
    with job.stage("report"):
        health = index_report(job, table, warehouse, files, unconvertible, iceberg_snapshot_id)
    refused = [asdict(one) for one in unconvertible]
    full = {**result, "unconvertible": refused, "decisions": job.decisions, "stages": job.stages}
    return Outcome(full, health)


def index_report(
    job: Job,
    table: PinnedTable,
    warehouse: IndexWarehouse,
    files: SnapshotFiles,
    unconvertible: Sequence[Unconvertible],
    iceberg_snapshot_id: int | None,
) -> dict[str, Any]:
    """Coverage and size of every key set's index, and what is still pending."""
    live_paths = frozenset(file.path for file in files.data_files)
    key_sets = []
    for ids, origin in planned_key_sets(job, table, warehouse).items():
        try:
            key_set = resolve_key_set(table.metadata, ids)
        except KeyColumnError:
            continue
        index = open_index(warehouse, str(table.metadata.table_uuid), key_set)
        covered = len(live_paths & index.dictionary.covered_paths) if index else 0
        key_sets.append(
            {
                "equality_field_ids": list(ids),
                "columns": key_set.column_names,
                "generation": index.generation if index else 0,
                "source": origin,
                "files_covered": covered,
                "files_total": len(live_paths),
                "coverage": covered / len(live_paths) if live_paths else 1.0,
                "entries": index.entries.rows if index else 0,
                "bytes": index.entries.size_bytes if index else 0,
                "sorted_runs": index.entries.sorted_runs if index else 0,
                "dead_ratio": index.dead_ratio(live_paths) if index else 0.0,
            }
        )
    return {
        "iceberg_snapshot_id": iceberg_snapshot_id,
        "key_sets": key_sets,
        "unconvertible": [asdict(one) for one in unconvertible],
        "pending_equality_delete_files": len(files.equality_deletes),
        "pending_equality_deletes": sum(file.record_count for file in files.equality_deletes),
    }
