"""The jobs that keep the index: index what is new, compact it, rebuild it, and delete it with its table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice, repeat
from typing import Any

from telemetry.plurals import counted
from worker.attempt.indexes import (
    forget_index,
    indexes,
    keep_index,
    open_again,
    planned_key_sets,
    start_anew,
)
from worker.attempt.job import Job
from worker.attempt.outcome import Outcome, outcome
from worker.attempt.pinned_table import PinnedTable, catalog_properties, index_storage, pin_table
from worker.contract.control_plane import StaleAttemptError
from worker.index import compaction
from worker.index.build import build_tasks, commit_batches
from worker.index.commit import commit_index, forget_files
from worker.index.compaction import (
    LiveRowAddresses,
    Merge,
    choose_merge,
    choose_merge_of_new,
    compaction_tasks,
)
from worker.index.dictionary import IndexedFile, assign_row_addresses, row_addresses_needed, uncovered_files
from worker.index.key_set_index import (
    DamagedIndexError,
    KeySetIndex,
    damage_of,
    database_name,
    drop_older_generations,
    key_sets_in,
    open_index,
)
from worker.index.run_files import RunFile
from worker.index.sorted_runs import IndexCommitConflictError, RunTable
from worker.index.warehouse import IndexWarehouse
from worker.io.storage import Storage
from worker.jobs.files_of_dead_attempts import clear_dead_attempts
from worker.keys.key_set import KeyColumnError, KeySet
from worker.keys.read import key_reader
from worker.keys.schema_fields import column_names_of, field_ids_of, resolve_key_set
from worker.process.errors import JobCancelledError, JobError
from worker.process.slots import Threads
from worker.table.files import DataFiles
from worker.table.record_properties import given_file_io_properties

EXAMPLES = 10
"""Data files that a result names, of those that could not be read."""
_FROM_BEFORE = ("index", "earlier_report")
"""Where key sets come from that nothing in the table asks for now."""


class NoKeySetError(JobError):
    code = "no_key_set"
    title = "There is no key to index"
    remedy = 'Declare one when registering the table (key_sets: [["id"]]), or wait for equality deletes.'

    def __init__(self) -> None:
        super().__init__(
            "the table holds no equality deletes, has no identifier fields, and no key set was declared"
        )


class UnreadableDataFilesError(JobError):
    code = "data_files_unreadable"
    title = "No data file could be indexed"
    remedy = "Restore what is missing or damaged, or have it removed from the table."
    retryable = True


class IndexPlaceError(JobError):
    code = "index_unwritable"
    title = "The place of the index can't be used"
    remedy = "Check that the place exists, has room, and that the worker may write there."
    retryable = True


def index_table(job: Job, table: PinnedTable, warehouse: IndexWarehouse, *, rebuild: bool = False) -> Outcome:
    """Indexes the live data files that the index of each key set does not cover yet."""
    key_sets = planned_key_sets(job, table, warehouse)
    not_indexed: list[dict[str, Any]] = []
    for columns in job.assignment.table.key_sets or []:
        try:
            field_ids_of(table.metadata.schema(), columns)
        except KeyColumnError as error:
            if not key_sets:
                raise
            job.decide(f"The declared key ({', '.join(columns)}) is not indexed: {error}. {error.remedy}")
            not_indexed.append({"columns": list(columns), **error.reason._asdict()})
    if not key_sets:
        raise NoKeySetError
    results = []
    for ids, origin in key_sets.items():
        try:
            key_set = resolve_key_set(table.metadata, ids)
        except KeyColumnError as error:
            if len(key_sets) == 1 and origin not in _FROM_BEFORE:
                raise
            columns = column_names_of(table.metadata, ids)
            job.decide(f"Key set ({', '.join(columns)}) is not indexed: {error}.")
            # Whatever is known from before alone may never be needed again.
            if origin not in _FROM_BEFORE:
                not_indexed.append({"columns": list(columns), **error.reason._asdict()})
            continue
        results.append(index_key_set(job, table, warehouse, key_set, rebuild=rebuild))
        job.decide(_index_sentence(key_set, origin, results[-1]))
    _refuse_nothing(results)
    result = {
        "iceberg_snapshot_id": table.snapshot_id,
        "key_sets": results,
        "key_sets_not_indexed": not_indexed,
    }
    return outcome(job, table, warehouse, result, table.files, [], table.snapshot_id)


def _refuse_nothing(results: Sequence[Mapping[str, Any]]) -> None:
    """A job that had data files to index and could read none of them did not succeed."""
    number = max((one["files_unreadable"] for one in results), default=0)
    if not number or any(one["files_indexed"] for one in results):
        return
    first = next(one["unreadable"][0] for one in results if one["unreadable"])
    others = f" and {number - 1:,} more" if number > 1 else ""
    raise UnreadableDataFilesError(f"{first['reason']} ({first['file_path']}{others})")


def rebuild_index(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Outcome:
    """Builds a new generation of every index and drops the old ones; meanwhile, conversions scan."""
    return index_table(job, table, warehouse, rebuild=True)


def compact_index(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Outcome:
    """Merges sorted runs of every index where it pays, and drops what belongs to files that are gone."""
    results: list[dict[str, Any]] = []
    for index in indexes(job, table, warehouse):
        try:
            results.append(_compact(job, table, warehouse, index))
        except (JobCancelledError, StaleAttemptError, IndexCommitConflictError):
            raise
        except Exception:
            damage = damage_of(index)
            if damage is None:
                raise
            job.decide(f"Key set {index.key_set}: the index can't be compacted: {damage}.")
            start_anew(job, table, warehouse, index.key_set)
    if not key_sets_in(warehouse.listed_names(table.index_database)):
        job.decide("The table has no index yet: there is nothing to compact.")
    result = {"iceberg_snapshot_id": table.snapshot_id, "key_sets": results}
    cleared = clear_dead_attempts(job)
    return outcome(job, table, warehouse, result, table.files, [], table.snapshot_id, cleared)


def drop_index(job: Job) -> Outcome:
    """Deletes every index of the branch, if there is one. Reports no health: nothing is left to measure."""
    table = job.assignment.table
    given = given_file_io_properties(catalog_properties(job.assignment))
    job.assignment.egress.check(given)
    storage = index_storage(job.assignment, Storage(given | job.assignment.location_limits))
    warehouse = IndexWarehouse(job.assignment.index.warehouse, storage)
    database = database_name(table.table_uuid, table.branch)
    names = warehouse.table_names(database)
    with job.stage("drop"):
        # A table that was registered again keeps its index.
        job.reporter.confirm_lease(anew=True)
        warehouse.drop(database)
    job.decide(f"The index of {'.'.join(table.identifier)} was deleted: {len(names)} index tables.")
    return Outcome({"index_tables_deleted": len(names), "decisions": job.decisions, "stages": job.stages}, {})


def _compact(job: Job, table: PinnedTable, warehouse: IndexWarehouse, index: KeySetIndex) -> dict[str, Any]:
    """Compacts one index and returns what a job's result tells of it."""
    live_files = table.files.data_files
    dead = index.dead_ratio(live_files)
    before = index.entries
    report: dict[str, Any] = {
        "equality_field_ids": list(index.key_set.equality_field_ids),
        "columns": index.key_set.column_names,
        "generation": index.generation,
        "sorted_runs_before": before.sorted_runs,
        "sorted_runs_after": before.sorted_runs,
        "entries_before": before.rows,
        "entries_after": before.rows,
        "bytes_read": 0,
        "bytes_written": 0,
        "files_deleted": 0,
        "bytes_deleted": 0,
    }
    merge = choose_merge(before.files, dead)
    if merge is None:
        job.decide(
            f"Key set {index.key_set}: {before.sorted_runs} sorted runs with {dead:.0%} dead entries need"
            " no compaction."
        )
        _clean_up(job, index, report)
        return report
    written = _merged(job, index, merge, LiveRowAddresses.of(index.dictionary, live_files))
    forget_index(job, table, warehouse, index.key_set)
    with job.stage("commit_index"):
        job.reporter.confirm_lease()
        # The dictionary forgets dead files first: see worker.index.compaction.
        files = forget_files(index, live_files)
        beside = files.paimon_snapshot_id
        after = index.entries_table.commit_files(index.entries, written, merge.files, beside)
    report["sorted_runs_after"] = after.sorted_runs
    report["entries_after"] = after.rows
    report["bytes_read"] = sum(file.size_bytes for file in merge.files)
    report["bytes_written"] = sum(file.size_bytes for file in written)
    job.usage.bytes += report["bytes_read"] + report["bytes_written"]
    job.decide(
        f"Key set {index.key_set}: {merge.rows:,} of {before.rows:,} entries merged;"
        f" {before.sorted_runs} sorted runs became {after.sorted_runs},"
        f" {before.rows - after.rows:,} dead entries dropped."
    )
    _clean_up(job, replace(index, files=files, entries=after), report)
    return report


def _merged(job: Job, index: KeySetIndex, merge: Merge, live: LiveRowAddresses) -> list[RunFile]:
    """The files that hold the live entries of a merge. Nothing is committed."""
    with job.stage("compact"):
        tasks = compaction_tasks(index, merge, job.runner.parallelism, job.memory_fraction)
        parts = job.run_tasks("compact", tasks, live, merge.rows)
    return [file for files in parts for file in files]


def _clean_up(job: Job, index: KeySetIndex, report: dict[str, Any]) -> None:
    """Deletes what no snapshot of the index needs any more: replaced files, and those of dead attempts."""
    with job.stage("clean_up"), Threads(2) as threads:
        # What another attempt commits after the lease was confirmed is no part of these.
        tables, known = (index.files_table, index.entries_table), (index.files, index.entries)
        present = list(threads.map(RunTable.live_files, tables, known))
        job.reporter.confirm_lease()
        for cleaned in threads.map(RunTable.clean_up, tables, present, repeat(compaction.KEEP_SECONDS)):
            report["files_deleted"] += cleaned.files
            report["bytes_deleted"] += cleaned.size_bytes
    if report["files_deleted"]:
        job.decide(
            f"Key set {index.key_set}: deleted {counted(report['files_deleted'], 'file')} that no snapshot of"
            f" the index needs any more ({counted(report['bytes_deleted'], 'byte')})."
        )


def index_key_set(
    job: Job,
    table: PinnedTable,
    warehouse: IndexWarehouse,
    key_set: KeySet,
    *,
    rebuild: bool = False,
    only: DataFiles | None = None,
    index: KeySetIndex | None = None,
) -> dict[str, Any]:
    """only: the data files to be indexed, if they are not yet; None for all live ones. index: of the key set,
    if it was opened just now."""
    if rebuild:
        job.reporter.confirm_lease()
    try:
        try:
            index = index or open_again(job, table, warehouse, key_set, create=True, rebuild=rebuild)
        except DamagedIndexError as error:
            job.decide(f"Key set {key_set}: its index starts anew, since the old one is damaged: {error}.")
            job.reporter.confirm_lease()
            index = open_index(warehouse, table.index_database, key_set, rebuild=True)
    except OSError as error:
        raise IndexPlaceError(f"{warehouse.location}: {error}") from error
    assert index is not None
    reader = key_reader(table.metadata, table.storage, key_set)
    missing = uncovered_files(table.files.data_files if only is None else only, index.dictionary)
    total = missing.record_count
    files_indexed = rows_indexed = bytes_written = runs_written = 0
    unreadable: dict[str, str] = {}
    for batch in commit_batches(missing):
        with job.stage("index"):
            rows = sum(file.record_count for file in batch)
            base = job.reporter.grant_row_addresses(row_addresses_needed(batch), index.end_address)
            indexed = assign_row_addresses(batch, base, index.dictionary.partitions())
            location, parallelism = index.entries_table.location, job.runner.parallelism
            tasks = build_tasks(reader, index.storage, location, indexed, parallelism, job.memory_fraction)
            built = job.run_tasks("index", tasks, None, rows)
        job.usage.bytes += sum(part.bytes_read for part in built)
        failures = {path: reason for part in built for path, reason in part.failures}
        for path, reason in failures.items():
            job.decide(f"{path} is not indexed: {reason}.")
        unreadable |= failures
        runs = [run for part in built for run in part.runs]
        readable = [entry for entry in indexed if entry.file.path not in failures]
        if not readable:
            continue
        bytes_written += sum(run.size_bytes for run in runs)
        job.usage.bytes += sum(run.size_bytes for run in runs)
        replaced: list[RunFile] = []
        merge = choose_merge_of_new(index.entries.files, runs)
        if merge is not None:
            runs, replaced = _merge_new_runs(job, index, merge, runs, readable)
            bytes_written += sum(run.size_bytes for run in runs)
        with job.stage("commit_index"):
            confirm = job.reporter.confirm_lease
            forget_index(job, table, warehouse, key_set)
            index = commit_index(index, runs, readable, replaced, confirm_lease=confirm)
        keep_index(job, table, warehouse, index)
        files_indexed += len(readable)
        rows_indexed += sum(entry.file.record_count for entry in readable)
        runs_written += len(runs)
        job.reporter.progress("index", rows_indexed, total, "rows")
    left, gone = _still_live(job, unreadable)
    drop_older_generations(warehouse, table.index_database, index)
    return {
        "equality_field_ids": list(key_set.equality_field_ids),
        "columns": key_set.column_names,
        "files_indexed": files_indexed,
        "files_unreadable": len(left),
        "unreadable": [
            {"file_path": path, "reason": reason} for path, reason in islice(left.items(), EXAMPLES)
        ],
        "files_gone": gone,
        "rows_indexed": rows_indexed,
        "bytes_written": bytes_written,
        "sorted_runs_written": runs_written,
        "generation": index.generation,
    }


def _still_live(job: Job, unreadable: Mapping[str, str]) -> tuple[Mapping[str, str], int]:
    """Those of the paths that the table still has, and how many it has not: these need no index.

    What is compacted away may expire before it is read.
    """
    if not unreadable:
        return unreadable, 0
    with job.stage("plan"):
        live = {file.path for file in pin_table(job).files.data_files.with_paths(unreadable.keys())}
    return {path: reason for path, reason in unreadable.items() if path in live}, len(
        unreadable.keys() - live
    )


def _merge_new_runs(
    job: Job, index: KeySetIndex, merge: Merge, runs: Sequence[RunFile], files: Sequence[IndexedFile]
) -> tuple[list[RunFile], list[RunFile]]:
    """What to commit instead of `runs`, and which files of the index it replaces.

    What was merged here and not committed is known to nobody else, and deleted. A merge that fails, on a
    damaged file of the index for instance, costs nothing but that lookups read more runs.
    """
    live = LiveRowAddresses.of_files(index.dictionary, files)
    try:
        written = _merged(job, index, merge, live)
    except (JobCancelledError, StaleAttemptError):
        raise
    except Exception as error:
        job.decide(f"Key set {index.key_set}: {len(runs)} new sorted runs are not merged: {error}.")
        return list(runs), []
    for run in runs:
        index.storage.delete(run.location)
    new = set(runs)
    return written, [file for file in merge.files if file not in new]


def _index_sentence(key_set: KeySet, origin: str, result: Mapping[str, Any]) -> str:
    found = {
        "equality_deletes": "found in live equality deletes",
        "declared": "declared for the table",
        "index": "indexed before",
        "earlier_report": "the key of earlier equality deletes",
        "identifier_fields": "the table's identifier fields",
    }[origin]
    unreadable, gone = result["files_unreadable"], result["files_gone"]
    if not result["files_indexed"] and not unreadable:
        why = (
            "the table changed meanwhile and has none of them" if gone else "every live data file is covered"
        )
        return f"Key set {key_set} ({found}): nothing to do, {why}."
    return (
        f"Key set {key_set} ({found}): {counted(result['files_indexed'], 'data file')} with "
        f"{counted(result['rows_indexed'], 'row')} indexed in {counted(result['bytes_written'], 'byte')}"
        + (
            f"; {unreadable:,} could not be read and {'is' if unreadable == 1 else 'are'} not covered."
            if unreadable
            else "."
        )
    )
