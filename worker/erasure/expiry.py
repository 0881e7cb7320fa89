"""Snapshots that still reach erased rows expire, and with them the files that nothing else needs.

Invariants: just the snapshots that are named go, and no branch or tag. A file is deleted only if all that is
left could be read by then, and does not name it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyiceberg.table.metadata import TableMetadata
from pyspark.errors.exceptions.captured import CapturedException

from trust.locations import LocationNotAllowedError
from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable
from worker.deletes.existing import FILES_AT_ONCE
from worker.erasure.holds import is_never_deleted_from
from worker.erasure.leftovers import metadata_files, place_of, statistics_files
from worker.erasure.look import Look
from worker.process.errors import JobError
from worker.process.plurals import counted
from worker.process.slots import Threads
from worker.table import row_delta
from worker.table.catalogs import java_message, jvm_of, raise_lack_of_memory
from worker.table.commit import check_clock
from worker.table.commit_errors import CommitConflictError, commit_failure, prepared
from worker.table.row_delta import ANY_FILE, java_list, java_object

_SOURCE = Path(__file__).with_name("ExactExpiry.java")


class ExpiryError(JobError):
    code = "expiry_failed"
    title = "Snapshots that hold erased rows could not expire"
    remedy = "The rows are deleted, and in no data file of the branch. Look at the cause; it is tried again."
    retryable = True


def expire(job: Job, table: PinnedTable, snapshot_ids: Collection[int]) -> None:
    """Lets snapshots expire, on the very metadata that the table was pinned with or not at all.

    Raises CommitConflictError when the table has changed, ExpiryError when it did not happen for another
    reason, or nobody can tell whether it did.
    """
    java_table = table.java_table
    check_clock(java_table)
    job.reporter.confirm_lease()
    with prepared():
        place = java_table.operations().metadataFileLocation(ANY_FILE)
        table.storage.io.check(place)
        operation = java_expiry(row_delta.guarded(java_table, place, ""), snapshot_ids)
    try:
        operation.commit()
    except (Py4JError, CapturedException) as error:
        raise_lack_of_memory(error)
        failure = commit_failure(error)
        if isinstance(failure, CommitConflictError):
            raise failure from None
        raise ExpiryError(java_message(error)) from None


def java_expiry(java_table: JavaObject, snapshot_ids: Iterable[int]) -> JavaObject:
    """The expiry of just these, not yet committed."""
    ids = java_list(jvm_of(java_table), [str(snapshot_id) for snapshot_id in snapshot_ids])
    return java_object(java_table, _SOURCE, "ExactExpiry", java_table, ids)


def files_of(metadata: TableMetadata, look: Look, snapshot_ids: Collection[int]) -> set[str]:
    """The paths of all files that some snapshots need, which were looked at."""
    snapshots = [one for one in metadata.snapshots if one.snapshot_id in snapshot_ids]
    statistics = [
        one.statistics_path
        for one in (*metadata.statistics, *metadata.partition_statistics)
        if one.snapshot_id in snapshot_ids
    ]
    return look.named_by(snapshots).union(statistics)


def delete_unneeded(job: Job, table: PinnedTable, look: Look, paths: Iterable[str]) -> None:
    """Deletes those of some files that nothing needs; none if that can't be told of all that is left.

    table: pinned just before. What can't be deleted stays, and is found by the look.
    """
    if is_never_deleted_from(table.metadata):
        job.decide("No file that expired snapshots named was deleted: the table says that none may be.")
        return
    needed = look.needed(table.metadata, table.storage)
    if isinstance(needed, str):
        job.decide(f"No file that expired snapshots named was deleted: what {needed} names can't be read.")
        return
    places = {place_of(path) for path in (*needed, *metadata_files(table), *statistics_files(table.metadata))}

    def delete(path: str) -> bool | Exception:
        try:
            return table.storage.delete(path)
        except (OSError, LocationNotAllowedError) as error:
            return error

    with job.stage("expire"), Threads(FILES_AT_ONCE, "delete") as threads:
        done = list(threads.map(delete, sorted(path for path in paths if place_of(path) not in places)))
    if failures := [one for one in done if isinstance(one, Exception)]:
        told = counted(len(failures), "file")
        job.decide(f"{told} that no snapshot needs could not be deleted, such as: {failures[0]}.")
    job.decide(f"{counted(done.count(True), 'file')} deleted that no snapshot needs.")
