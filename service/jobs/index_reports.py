"""Take in what a worker found: the truth about the index, and about pending deletes as of its snapshot."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlmodel import Session

from service.jobs.contract import IndexReport
from service.policies.effective import effective_policy
from service.records.health import TableHealth, store_layouts
from service.records.jobs import Job, JobKind
from service.records.reports import JobResult
from service.records.tables import EnrolledTable


def rewritable(kind: str, counted: IndexReport | TableHealth) -> list[int] | None:
    """The files that jobs of a kind would write anew, as a report counts them; None for other kinds."""
    match JobKind(kind):
        case JobKind.REWRITE_DATA_FILES:
            return [counted.small_data_files, counted.deleted_data_files]
        case JobKind.REWRITE_POSITION_DELETE_FILES:
            return [counted.small_delete_files]
        case _:
            return None


def seen_equality_field_ids(key_sets: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """key_sets: of a table's last report, if there was one."""
    return [key_set["equality_field_ids"] for key_set in key_sets]


def apply_report(
    session: Session,
    job: Job,
    report: IndexReport,
    now: datetime,
    *,
    has_indexed: bool = False,
    has_verified: bool = False,
) -> None:
    """Store a worker's report; the poller measures the pending figures again at once."""
    row = session.get_one(TableHealth, job.table_id)
    blocked = {delete.file_path for delete in report.unconvertible}
    row.report_snapshot_id = report.iceberg_snapshot_id
    if has_indexed:
        row.indexed_snapshot_id, row.indexed_at = report.iceberg_snapshot_id, now
        row.new_data_files = row.new_rows = row.new_bytes = 0
    if has_verified:
        row.verified_snapshot_id = report.iceberg_snapshot_id
        row.unverified_data_files = row.unverified_rows = row.unverified_bytes = 0
    row.reported_at = now
    row.key_sets = [key_set.model_dump() for key_set in report.key_sets]
    store_layouts(session, job.table_id, report.layouts)
    row.unconvertible = [delete.model_dump() for delete in report.unconvertible]
    row.pending_equality_delete_files = report.pending_equality_delete_files
    row.pending_equality_deletes = report.pending_equality_deletes
    row.convertible_delete_files = max(report.pending_equality_delete_files - len(blocked), 0)
    if report.pending_equality_delete_files == 0:
        row.oldest_equality_delete_at = None
    if row.convertible_delete_files == 0:
        row.oldest_convertible_at = None
        row.convertible_deletes = row.convertible_bytes = 0
    row.small_data_files, row.deleted_data_files = report.small_data_files, report.deleted_data_files
    row.small_delete_files = report.small_delete_files
    row.reader_shapes = {**row.reader_shapes, "reported": {}}
    row.partitions = report.partitions if report.partitions is not None else row.partitions
    row.unindexed_data_files = uncovered_files(report)
    if report.iceberg_snapshot_id is not None:
        row.iceberg_snapshot_id = report.iceberg_snapshot_id
    session.add(row)


def apply_publication(session: Session, job: Job, result: JobResult | None) -> None:
    """Store what stopped a publication of the table's staging branch, for as long as it waits there."""
    if result is None:
        return
    policy = effective_policy(session, session.get_one(EnrolledTable, job.table_id))
    if result.staging_branch != policy.publish.source:
        return
    row = session.get_one(TableHealth, job.table_id)
    row.stopped_at = result.stopped_at.model_dump() if result.stopped_at is not None else None
    session.add(row)


def covers_head(report: IndexReport) -> bool:
    """Whether every index has all that the head has: then an index job would find nothing to do."""
    return report.covers_head and bool(report.key_sets) and not uncovered_files(report)


def uncovered_files(report: IndexReport) -> int:
    """Data files that at least one key set does not cover."""
    return max((key_set.files_total - key_set.files_covered for key_set in report.key_sets), default=0)
