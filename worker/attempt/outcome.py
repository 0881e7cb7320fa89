"""What a job hands back: its result, and the health of its table's indexes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from worker.attempt.indexes import index_state, planned_key_sets
from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable
from worker.contract.control_plane import AttemptId
from worker.index.compaction import LiveRowAddresses
from worker.index.key_set_index import dead_share
from worker.index.layout import partition_reports, run_reports
from worker.index.warehouse import IndexWarehouse
from worker.keys.key_set import KeyColumnError
from worker.keys.schema_fields import resolve_key_set
from worker.table.files import SnapshotFiles
from worker.table.small_files import (
    FileSizeError,
    RewritableFiles,
    rewritable_deletes,
    rewritable_files,
    target_delete_file_bytes,
    target_file_bytes,
)

_LAYOUTS_TOLD = 100


@dataclass(frozen=True, slots=True)
class Unconvertible:
    """An equality delete file that stays in the table, and why."""

    file_path: str
    code: str
    reason: str
    remedy: str


@dataclass(slots=True)
class Outcome:
    """What a job hands back: its result, and the health of the table's indexes after it.

    cleared: attempts of which nothing is left behind any more; see worker.jobs.files_of_dead_attempts.
    """

    result: dict[str, Any]
    health: dict[str, Any]
    cleared: Sequence[AttemptId] = ()


def outcome(
    job: Job,
    table: PinnedTable,
    warehouse: IndexWarehouse,
    result: dict[str, Any],
    files: SnapshotFiles,
    unconvertible: Sequence[Unconvertible],
    iceberg_snapshot_id: int | None,
    cleared: Sequence[AttemptId] = (),
) -> Outcome:
    """Adds what every result tells, and measures the indexes as the job has found or left them.

    files: live after the job. The index report is about them.
    """
    with job.stage("report"):
        health = index_report(job, table, warehouse, files, unconvertible, iceberg_snapshot_id)
    refused = [asdict(one) for one in unconvertible]
    full = {**result, "unconvertible": refused, "decisions": job.decisions, "stages": job.stages}
    return Outcome(full, health, cleared)


def index_report(
    job: Job,
    table: PinnedTable,
    warehouse: IndexWarehouse,
    files: SnapshotFiles,
    unconvertible: Sequence[Unconvertible],
    iceberg_snapshot_id: int | None,
) -> dict[str, Any]:
    """Coverage and size of every key set's index, and what is still pending."""
    live_files = files.data_files
    key_sets = []
    layouts: list[dict[str, Any]] = []
    for ids, origin in planned_key_sets(job, table, warehouse).items():
        try:
            key_set = resolve_key_set(table.metadata, ids)
        except KeyColumnError:
            continue
        index = index_state(job, table, warehouse, key_set)
        covered, dead = 0, 0.0
        if index is not None:
            is_covered = index.dictionary.covers(live_files)
            live = LiveRowAddresses.of(index.dictionary, live_files)
            covered, dead = int(is_covered.sum()), dead_share(index.entries.rows, live.rows)
            layouts.append(
                {
                    "equality_field_ids": list(ids),
                    "runs": run_reports(index.entries.files, live),
                    "partitions": partition_reports(live_files, is_covered, table.metadata.specs()),
                }
            )
        key_sets.append(
            {
                "equality_field_ids": list(ids),
                "columns": key_set.column_names,
                "generation": index.generation if index else 0,
                "source": origin,
                "files_covered": covered,
                "files_total": len(live_files),
                "coverage": covered / len(live_files) if live_files else 1.0,
                "entries": index.entries.rows if index else 0,
                "bytes": index.entries.size_bytes if index else 0,
                "sorted_runs": index.entries.sorted_runs if index else 0,
                "dead_ratio": dead,
            }
        )
    rewritable = _rewritable(job, table, files)
    # What others commit between a look and a job's own commit is not among the files.
    is_of_head = iceberg_snapshot_id == table.snapshot_id
    return {
        "covers_head": is_of_head and all(one["files_covered"] == len(live_files) for one in key_sets),
        "iceberg_snapshot_id": iceberg_snapshot_id,
        "small_data_files": rewritable.small,
        "deleted_data_files": rewritable.deleted,
        "small_delete_files": _rewritable_deletes(job, table, files),
        "partitions": live_files.count_partitions(),
        "key_sets": key_sets,
        "layouts": layouts[:_LAYOUTS_TOLD],
        "unconvertible": [asdict(one) for one in unconvertible],
        "pending_equality_delete_files": len(files.equality_deletes),
        "pending_equality_deletes": files.equality_deletes.record_count,
    }


def _rewritable(job: Job, table: PinnedTable, files: SnapshotFiles) -> RewritableFiles:
    """None unless the policy has such files written anew."""
    policy, metadata = job.assignment.policy.rewrite_data_files, table.metadata
    if not policy.enabled:
        return RewritableFiles()
    try:
        target = policy.target_file_size_bytes or target_file_bytes(metadata.properties)
    except FileSizeError:
        return RewritableFiles()
    return rewritable_files(
        files,
        metadata.default_spec_id,
        target,
        min_input_files=policy.min_input_files,
        size_ratio=policy.size_ratio,
        delete_ratio_threshold=policy.delete_ratio_threshold,
        max_bytes=policy.max_bytes,
    ).numbers


def _rewritable_deletes(job: Job, table: PinnedTable, files: SnapshotFiles) -> int:
    policy = job.assignment.policy.rewrite_position_delete_files
    if not policy.enabled or table.metadata.format_version != 2:
        return 0
    try:
        target = policy.target_file_size_bytes or target_delete_file_bytes(table.metadata.properties)
    except FileSizeError:
        return 0
    return rewritable_deletes(files, target, policy.min_input_files)
