"""One `RowDelta` of a job, with the deletes that it has written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from py4j.java_gateway import JavaObject

from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable
from worker.deletes.write import WrittenDeletes
from worker.table.commit import CommittedSnapshot, commit_row_delta, find_head
from worker.table.commit_errors import CommitConflictError
from worker.table.files import DeleteFile
from worker.table.row_delta import NO_SNAPSHOT, RowDelta


def head_of(table: PinnedTable) -> int:
    """The snapshot that a table is pinned at, as commits name it."""
    return NO_SNAPSHOT if table.snapshot_id is None else table.snapshot_id


def check_overtaken(table: PinnedTable, error: Exception | None = None) -> None:
    """A file that is gone was most likely replaced and expired since the table was pinned, which a look at a
    later head does not need: raises CommitConflictError where there is another head."""
    if find_head(table.java_table, table.branch) != table.snapshot_id:
        raise CommitConflictError("a file that the plan needs is gone") from error


def commit_deletes(
    job: Job,
    table: PinnedTable,
    written: WrittenDeletes,
    summary: Mapping[str, str],
    confirm_lease: Callable[[], None],
    *,
    resolved: Sequence[DeleteFile] = (),
    rows: JavaObject = (),
    layout: str = "",
    staged: tuple[str, int] | None = None,
) -> CommittedSnapshot:
    """On the branch at whose head the table is pinned.

    resolved: equality deletes that go. Others: as of `RowDelta`. Raises as `commit_row_delta`.
    """
    assignment = job.assignment
    delta = RowDelta(
        branch=table.branch,
        starting_snapshot_id=head_of(table),
        job_id=assignment.job.id,
        attempt=assignment.attempt,
        added=written.added,
        removed=(*written.removed, *resolved),
        referenced_data_files=written.data_files,
        summary=summary,
        rows=rows,
        layout=layout,
        staged=staged,
        read=table.read,
    )
    return commit_row_delta(
        table.java_table, delta, confirm_lease=confirm_lease, check_location=table.storage.io.check
    )
