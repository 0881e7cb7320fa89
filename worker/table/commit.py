"""Commits to a branch of the table, through Spark's JVM; most are one Iceberg `RowDelta`.

Place in the flow: deletes -> commit -> report. No Spark job runs here.

Invariants: a `RowDelta` is committed only on a branch where the pinned snapshot is an ancestor of the head,
every referenced data file still lives and every delete file to remove is still there. None of them was added
once more meanwhile: it goes by paths, and would hit and remove that one, too. Deletes are never added by a
`RewriteFiles`: a compaction in flight looks for those it missed among DELETE and OVERWRITE snapshots only.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.errors.exceptions.captured import CapturedException

from stores.table_metadata import JOB_ID
from trust.locations import LocationNotAllowedError
from worker.spark.jvm import jvm_of, told_by_java
from worker.table import row_delta
from worker.table.catalogs import java_message, java_types, metadata_json, raise_lack_of_memory, tables
from worker.table.commit_errors import (
    COMMIT_FAILED,
    ClockBehindError,
    CommitConflictError,
    CommitError,
    CommitStateUnknownError,
    commit_failure,
    prepared,
)
from worker.table.files import DeleteFile
from worker.table.row_delta import NO_SNAPSHOT, RowDelta, java_list, validator_of

ATTEMPT = "icestream.attempt"
COMMIT_ID = "icestream.commit-id"
_KEY_SETS = "icestream.equality-field-ids"
_FIELD_IDS = re.compile(r"[0-9]{1,10}(,[0-9]{1,10})*")

# The library revalidates and retries a lost race by itself, four times unless the table says otherwise;
# another round costs far less than a new plan when a streaming writer commits several times a second.
_COMMIT_ROUNDS = 5
# Iceberg takes no commit that is older than the last one by more than this, and says so while it builds the
# new metadata, before the catalog hears of it.
CLOCK_TOLERANCE_SECONDS = 60
HEADS_AT_MOST = 200
"""That one attempt plans for, where it commits on the head that it has planned for or not at all: each plan
takes about as long as a commit, so a writer that commits all the time comes first now and then, and never so
often."""


@dataclass(frozen=True, slots=True)
class CommittedSnapshot:
    """A snapshot that a job added to a branch."""

    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int
    job_id: str
    attempt: int
    summary: Mapping[str, str]

    @property
    def key_sets(self) -> set[tuple[int, ...]]:
        """Equality field ids of the deletes that it resolved; see `told_key_sets`."""
        told = self.summary.get(_KEY_SETS, "").split(";")
        return {tuple(map(int, ids.split(","))) for ids in told if _FIELD_IDS.fullmatch(ids)}


class CommitFate:
    """What becomes of files that were written for a commit.

    may_be_committed: for all that is known; then none of them may be removed.
    """

    def __init__(self) -> None:
        self.may_be_committed = False

    @contextmanager
    def decided(self, announce: Callable[[], None]) -> Iterator[Callable[[], None]]:
        """Around a commit, which calls what is yielded as its `confirm_lease`."""

        def confirm_lease() -> None:
            self.may_be_committed = False
            announce()
            self.may_be_committed = True

        try:
            yield confirm_lease
        except (CommitError, LocationNotAllowedError) as error:
            self.may_be_committed = isinstance(error, CommitStateUnknownError)
            raise


def told_key_sets(deletes: Iterable[DeleteFile]) -> dict[str, str]:
    """The property of a snapshot that keeps the keys of the equality deletes that it resolves.

    Nothing else in the table names them then, and the attempt that commits may never report.
    """
    key_sets = sorted({one.equality_ids for one in deletes})
    return {_KEY_SETS: ";".join(",".join(map(str, ids)) for ids in key_sets)} if key_sets else {}


def commit_row_delta(
    java_table: JavaObject,
    delta: RowDelta,
    *,
    confirm_lease: Callable[[], None] = lambda: None,
    check_location: Callable[[str], None] = lambda _: None,
) -> CommittedSnapshot:
    """Commits `delta` in one snapshot and returns it.

    java_table: an `org.apache.iceberg.Table`; it is refreshed.
    confirm_lease: called before each round, when nothing is committed; what it raises ends the commit.
    check_location: raises for a place where the table's metadata may not be written; the same holds for it.
    Raises the errors of `commit_errors`, ValueError for a delta that changes nothing, and MemoryError when
    the JVM's heap is too small for it: then nothing is known either.
    """
    if delta.is_empty:
        raise ValueError("a commit needs files to add or to remove")
    with prepared():
        referenced = java_list(jvm_of(java_table), delta.referenced_data_files)
        validator = validator_of(java_table, delta, referenced)
    return commit_snapshot(
        java_table,
        delta.branch,
        delta.starting_snapshot_id,
        {**delta.summary, JOB_ID: delta.job_id, ATTEMPT: str(delta.attempt)},
        lambda summary, condemned, place: row_delta.java_row_delta(
            java_table, delta, summary, referenced, validator, condemned, place
        ),
        confirm_lease=confirm_lease,
        check_location=check_location,
    )


def commit_snapshot(
    java_table: JavaObject,
    branch: str,
    starting_snapshot_id: int,
    summary: Mapping[str, str],
    operation_of: Callable[[Mapping[str, str], JavaObject, str], JavaObject],
    *,
    confirm_lease: Callable[[], None] = lambda: None,
    check_location: Callable[[str], None] = lambda _: None,
) -> CommittedSnapshot:
    """Commits an operation of Iceberg's in one snapshot and returns it.

    operation_of: makes it, not yet committed, of the snapshot's properties, of what gets the manifests that
    Iceberg would delete, and of the place of a metadata file, as it was checked. Otherwise as
    `commit_row_delta`.
    """
    commit_id = str(uuid4())
    summary = {**summary, COMMIT_ID: commit_id}
    for remaining in reversed(range(_COMMIT_ROUNDS)):
        confirm_lease()
        with prepared():
            state = row_delta.state_of(java_table, branch, is_refreshed=True)
            # Iceberg creates a branch that does not exist from the current snapshot, without any check.
            is_empty = starting_snapshot_id == NO_SNAPSHOT and state["is_empty"]
            if not is_empty and not state["has_branch"]:
                raise CommitConflictError(f"branch {branch} no longer exists")
            _check_clock(state)
            place = state["place"]
            check_location(place)
            base = state["last_sequence_number"]
            condemned = jvm_of(java_table).java.util.concurrent.ConcurrentLinkedQueue()
            operation = operation_of(summary, condemned, place)
        failure: CommitError | None = None
        cause: Exception | None = None
        may_repeat = False
        try:
            operation.commit()
        except (Py4JError, CapturedException) as error:
            failure, cause = commit_failure(error), error
            lost_race = isinstance(failure, CommitConflictError) and COMMIT_FAILED in java_types(error)
            may_repeat = lost_race and remaining > 0
        # Also after a conflict: the library, or a connection pool below it, may have repeated a commit whose
        # answer was lost, and met that one. A table that is gone may come back, so this is unknown, too.
        said = failure or CommitStateUnknownError("the commit was accepted, but the table does not show it")
        try:
            committed = _find_commit(java_table, branch, commit_id, was_accepted=failure is None)
        except CommitError as unreadable:
            raise CommitStateUnknownError(f"{said}; then: {unreadable}") from None
        if committed is None and isinstance(said, CommitStateUnknownError):
            if cause is not None:
                raise_lack_of_memory(cause)
            raise said
        # Iceberg may believe that a commit failed which has happened, and would delete its manifests.
        paths = set(told_by_java(condemned))
        needed = _manifests_since(java_table, base) if failure and paths else set()
        if committed is None and paths & needed:
            raise CommitStateUnknownError(f"{said}; but later snapshots are built on it")
        _delete(java_table, paths - needed)
        if committed is not None:
            return committed
        if not may_repeat:
            raise said
    raise AssertionError("the last round returns or raises")


def check_clock(java_table: JavaObject) -> None:
    """Whether Iceberg takes a commit at this machine's time: raises ClockBehindError, with both times.

    The table is taken as it was refreshed last.
    """
    with prepared():
        state = row_delta.state_of(java_table)
    _check_clock(state)


def _check_clock(state: Mapping[str, Any]) -> None:
    last, now = state["last_updated_ms"], state["now_ms"]
    if now < last - 1000 * CLOCK_TOLERANCE_SECONDS:
        raise ClockBehindError(
            f"the table was last committed to at {_time(last)} by the clock of its writer, and it is"
            f" {_time(now)} here; Iceberg takes no commit that is more than a minute older than the last one"
        )


def find_commits(java_table: JavaObject, branch: str, job_id: str) -> list[CommittedSnapshot]:
    """The commits of a job among the ancestors of a branch's head, newest first; [] when there is no branch.

    Expired snapshots and ones that were rolled back are not found. The table is refreshed.
    Raises CommitError when the table can't be read.
    """
    with prepared():
        java_table.refresh()
        ancestors = _ancestors(_metadata(java_table), branch)
    return [_committed(ancestor) for ancestor in ancestors if _summary(ancestor).get(JOB_ID) == job_id]


def find_head(java_table: JavaObject, branch: str) -> int | None:
    """The snapshot that a branch is at now; None when there is no branch. The table is refreshed.

    Raises CommitError when the table can't be read.
    """
    with prepared():
        head = _head(java_table, branch, is_refreshed=True)
    return None if head is None else int(head["snapshot-id"])


def _find_commit(
    java_table: JavaObject, branch: str, commit_id: str, *, was_accepted: bool
) -> CommittedSnapshot | None:
    """The snapshot of one commit, or None when the table has none.

    was_accepted: then Iceberg has refreshed the table, and found it there.
    Raises CommitError when the table can't be read, or has it where the branch does not lead.
    """
    with prepared():
        for is_refreshed in (False, True) if was_accepted else (True,):
            head = _head(java_table, branch, is_refreshed=is_refreshed)
            # Nearly always the head itself, which spares serialising the whole history.
            if head is not None and _summary(head).get(COMMIT_ID) == commit_id:
                return _committed(head)
        metadata = _metadata(java_table)
    ours = (one for one in metadata.get("snapshots", ()) if _summary(one).get(COMMIT_ID) == commit_id)
    found = next(ours, None)
    if found is None:
        return None
    if found not in _ancestors(metadata, branch):
        raise CommitError(f"the commit happened, and branch {branch} was moved away from it")
    return _committed(found)


def _manifests_since(java_table: JavaObject, base: int) -> set[str]:
    """The manifests and manifest lists of the snapshots with a sequence number above `base`.

    Raises CommitStateUnknownError when one can't be read.
    """
    needed = set()
    try:
        io = java_table.io()
        for snapshot in java_table.snapshots():
            if snapshot.sequenceNumber() > base:
                needed.add(snapshot.manifestListLocation())
                needed |= {manifest.path() for manifest in snapshot.allManifests(io)}
    except (Py4JError, CapturedException) as error:
        raise CommitStateUnknownError(java_message(error)) from None
    return needed


def _delete(java_table: JavaObject, paths: Collection[str]) -> None:
    """Deletes manifests that no snapshot has; what stays by an error is removed with the table's orphans."""
    for path in paths:
        with suppress(Py4JError, CapturedException):
            java_table.io().deleteFile(path)


def _head(java_table: JavaObject, branch: str, *, is_refreshed: bool) -> dict[str, Any] | None:
    """The snapshot that a branch is at, as the table was refreshed last, or is for this.

    Raises Java's errors.
    """
    told = tables(java_table).head(java_table, branch, is_refreshed)
    return None if told is None else json.loads(told)


def _metadata(java_table: JavaObject) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads(metadata_json(java_table))
    return metadata


def _ancestors(metadata: Mapping[str, Any], branch: str) -> list[dict[str, Any]]:
    """From a branch's head back to its first known snapshot; each once, whatever the metadata says."""
    by_id = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots", ())}
    snapshot_id = metadata.get("refs", {}).get(branch, {}).get("snapshot-id")
    ancestors = []
    while (snapshot := by_id.pop(snapshot_id, None)) is not None:
        ancestors.append(snapshot)
        snapshot_id = snapshot.get("parent-snapshot-id")
    return ancestors


def _summary(snapshot: Mapping[str, Any]) -> Mapping[str, str]:
    summary: Mapping[str, str] = snapshot.get("summary", {})
    return summary


def _committed(snapshot: Mapping[str, Any]) -> CommittedSnapshot:
    summary = _summary(snapshot)
    return CommittedSnapshot(
        snapshot_id=snapshot["snapshot-id"],
        parent_snapshot_id=snapshot.get("parent-snapshot-id"),
        sequence_number=snapshot["sequence-number"],
        job_id=summary[JOB_ID],
        attempt=int(summary[ATTEMPT]),
        summary=summary,
    )


def _time(millis: int) -> datetime:
    return datetime.fromtimestamp(millis / 1000, UTC)
