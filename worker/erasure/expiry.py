"""Snapshots that still reach erased rows expire, and with them the files that nothing else needs.

Invariants: just the snapshots that are named go, and no branch or tag. A file is deleted only if all that is
left could be read by then, and does not name it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import compress, groupby
from operator import itemgetter
from pathlib import Path

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyiceberg.exceptions import ValidationError
from pyiceberg.table.metadata import TableMetadata
from pyspark.errors.exceptions.captured import CapturedException

from stores.table_metadata import read_table_metadata
from telemetry.plurals import counted
from trust.locations import LocationNotAllowedError, normalize_location
from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable
from worker.deletes.existing import FILES_AT_ONCE
from worker.erasure.holds import is_never_deleted_from
from worker.erasure.metadata_files import metadata_files, statistics_files
from worker.erasure.search import Search
from worker.io.storage import Storage
from worker.process.errors import JobError
from worker.process.slots import Threads
from worker.spark.jvm import java_object, jvm_of
from worker.table import row_delta
from worker.table.catalogs import java_message, raise_lack_of_memory
from worker.table.commit import check_clock
from worker.table.commit_errors import CommitConflictError, commit_failure, prepared
from worker.table.row_delta import ANY_FILE, java_list

_LOG_AT_MOST = 100  # as many as Iceberg keeps
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


def exact_operations(java_table: JavaObject, snapshot_ids: Iterable[int], *, dry_run: bool) -> JavaObject:
    """Operations with which Iceberg's own expiry lets just these go; a dry run of them changes nothing."""
    ids = java_list(jvm_of(java_table), [str(snapshot_id) for snapshot_id in snapshot_ids])
    return java_object(java_table, _SOURCE, "ExactExpiryOperations", java_table.operations(), ids, dry_run)


def files_of(
    storage: Storage,
    search: Search,
    metadata: TableMetadata,
    snapshot_ids: Collection[int],
    *,
    have_expired: bool = False,
) -> tuple[set[str], str | None]:
    """The paths of all files that some snapshots need; otherwise as `Search.named_by`."""
    snapshots = [one for one in metadata.snapshots if one.snapshot_id in snapshot_ids]
    statistics = [
        one.statistics_path
        for one in (*metadata.statistics, *metadata.partition_statistics)
        if one.snapshot_id in snapshot_ids
    ]
    named, unreadable = search.named_by(metadata, snapshots, storage, have_expired=have_expired)
    return named.union(statistics), unreadable


def announced_by_earlier_attempts(job: Job) -> set[int]:
    """The snapshots that attempts of the table's jobs were about to let expire, or have."""
    return {number for one in job.assignment.ended_attempts for plan in one.plans for number in plan.expires}


def files_of_expired(
    table: PinnedTable,
    snapshot_ids: Collection[int],
    named: Callable[[TableMetadata, Collection[int]], tuple[set[str], str | None]],
) -> tuple[set[str], str | None]:
    """What is `named` by those that have expired, as earlier metadata files tell it; and why there may be
    more, such as that no metadata file tells it any more.

    named: by snapshots of some metadata; and the path of what can't be read, so that there may be more.
    """
    sought = {*snapshot_ids}.difference(snapshot.snapshot_id for snapshot in table.metadata.snapshots)
    found: set[str] = set()
    why = None
    for entry in table.metadata.metadata_log[: -_LOG_AT_MOST - 1 : -1]:
        if not sought:
            break
        try:
            earlier = read_table_metadata(table.storage.io.new_input(entry.metadata_file))
        except (OSError, ValueError, ValidationError, LocationNotAllowedError):
            continue
        there = sought.intersection(snapshot.snapshot_id for snapshot in earlier.snapshots)
        paths, unreadable = named(earlier, there)
        found |= paths
        why = why or (unreadable and f"{unreadable} can't be read")
        sought -= there
    if sought:
        why = f"no metadata file in the table's log tells of {counted(len(sought), 'snapshot')} any more"
    return found, why


def delete_unneeded(job: Job, table: PinnedTable, search: Search, paths: Collection[str]) -> set[str]:
    """Deletes those of some files that nothing needs; none if that can't be told of all that is left.
    Returns those that it did not delete and that were not gone.

    table: pinned just before.
    """
    if is_never_deleted_from(table.metadata):
        job.decide("No file that expired snapshots named was deleted: the table says that none may be.")
        return {*paths}
    needed, unreadable = search.named_by(table.metadata, table.metadata.snapshots, table.storage)
    if unreadable is not None:
        told = f"what {unreadable} names can't be read"
        job.decide(f"No file that expired snapshots named was deleted: {told}.")
        return {*paths}
    needed |= {*metadata_files(table), *statistics_files(table.metadata)}
    places = {normalize_location(path) for path in needed}
    left = {path for path in paths if normalize_location(path) in places}

    deleted, undeleted = 0, set[str]()
    # What names files goes after these, and stays with them: by it, whoever goes on after a death finds them.
    unneeded = sorted((search.rank(path), path) for path in paths if path not in left)
    for _, of_rank in groupby(unneeded, key=itemgetter(0)):
        of_these = [path for _, path in of_rank]
        naming = {path for path in of_these if not undeleted.isdisjoint(search.named_in(path))}
        gone, failed = delete_paths(job, table, [path for path in of_these if path not in naming], "expire")
        deleted += len(gone)
        undeleted |= naming | failed
    job.decide(f"{counted(deleted, 'file')} deleted that no snapshot needs.")
    return left | undeleted


def delete_paths(job: Job, table: PinnedTable, paths: Sequence[str], stage: str) -> tuple[set[str], set[str]]:
    """Deletes files that no snapshot needs: those that were there, and those that it could not delete, which
    is told."""
    failures: dict[str, Exception] = {}

    def delete(path: str) -> bool:
        try:
            return table.storage.delete(path)
        except (OSError, ValueError, LocationNotAllowedError) as error:
            failures[path] = error
            return False

    with job.stage(stage), Threads(FILES_AT_ONCE, "delete") as threads:
        deleted = {*compress(paths, threads.map(delete, paths))}
    if failures:
        told = counted(len(failures), "file")
        cause = next(iter(failures.values()))
        job.decide(f"{told} that no snapshot needs could not be deleted, such as: {cause}.")
    return deleted, {*failures}
