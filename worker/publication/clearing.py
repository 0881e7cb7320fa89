"""What is published leaves the staging branch, whose manifests and live files would grow for ever.

Invariant: the commit names what it takes away, none of it younger than the last published snapshot. It
happens on the head that was looked at alone: what it repeats of the branch's writer is the last word of that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from py4j.java_gateway import JavaObject
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from staging.history import (
    CLEARED,
    FLINK_JOB,
    KEPT,
    RENEWED,
    SKIPPED_AT_MOST,
    SKIPPED_SEQUENCE_NUMBERS,
    TARGET,
    TARGET_SEQUENCE_NUMBER,
    TARGET_SNAPSHOT_ID,
    History,
    Publication,
    is_flinks,
    is_idle,
    is_renewal,
    only_clears,
    properties,
    skipped_numbers,
)
from stores.table_metadata import JOB_ID
from telemetry.plurals import counted
from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable
from worker.spark.jvm import java_object, jvm_of
from worker.table import row_delta
from worker.table.commit import ATTEMPT, CommittedSnapshot, commit_snapshot, find_head
from worker.table.commit_errors import CommitError, prepared

GATHERED = 16
"""After so many published snapshots, each publication tries once to take them off, whatever waits. Of few,
that takes less time than a writer that commits each second leaves between two commits."""
WRITERS = 20
"""What so many writers said last is repeated where a branch begins anew; an older one is gone for good."""
FILES_CLEARED = "icestream.files-cleared"
_SOURCE = Path(__file__).with_name("PublishedFiles.java")
_OF_WRITERS = ("flink.", "kafka.connect.", "spark.sql.streaming.")
"""Beginnings of properties that tell streaming writers what they have committed, when they start anew."""
_WHOSE = (FLINK_JOB, "flink.operator-id", "spark.sql.streaming.queryId")
"""Those of them whose values name the writer."""
_KAFKA = "kafka.connect.offsets."
"""Begins those whose own names do, which go on with the topic and group."""


def postponed(table: PinnedTable, source: str, publication: Publication) -> str | None:
    """Why what is published stays on the branch for now; None if it is to leave.

    A writer that commits all the time would let most attempts to take it off fail, and the next publication
    wait for them. One that pauses leaves time for it.
    """
    waiting = gathered = 0
    is_published = False
    cleared = None
    for snapshot in History.of(table.metadata, source).snapshots:
        is_published |= snapshot.snapshot_id == publication.snapshot_id
        if str(snapshot.snapshot_id) == cleared or is_renewal(snapshot):
            break
        if only_clears(snapshot):
            cleared = cleared or properties(snapshot)[CLEARED]
        elif is_published:
            gathered += 1
        else:
            waiting += 1
    if not waiting or gathered >= GATHERED:
        return None
    return f"{counted(waiting, 'staged snapshot')} came meanwhile, and are published first"


def renewed_at(
    table: PinnedTable, source: str, publication: Publication, *, is_asked: bool
) -> Snapshot | None:
    """The first snapshot of the branch, if it is to begin there anew: all that it has is published.

    is_asked: at once; else when the snapshots that Flink keeps from expiring have become too many.
    """
    branch = History.of(table.metadata, source)
    history, ids = branch.snapshots, branch.ids
    if publication.snapshot_id not in ids or not branch.is_whole:
        return None
    since = history[: ids.index(publication.snapshot_id)]
    if not all(only_clears(one) or is_idle(one) for one in since):
        return None
    if all(map(is_renewal, history[:-1])):
        return None
    is_kept = table.metadata.format_version >= 3 and any(map(is_flinks, history))
    return history[-1] if is_asked or (is_kept and len(history) > KEPT) else None


def clear(
    job: Job, table: PinnedTable, publication: Publication, first: Snapshot | None = None
) -> CommittedSnapshot | None:
    """Takes what is published off the staging branch; None if that was done, or the branch is another now.

    table: as it is after the publication. What the branch had of the target before goes, too: else its files
    could never be deleted. The commit says up to where the branch is published. first: after which the branch
    begins anew. Raises CommitConflictError if the branch has moved, or another CommitError.
    """
    source = job.assignment.job.publish.source
    branch = History.of(table.metadata, source)
    history, ids = branch.snapshots, branch.ids
    if publication.snapshot_id not in ids:
        return None
    at = ids.index(publication.snapshot_id)
    recorded = next((properties(one)[CLEARED] for one in history if only_clears(one)), None)
    if first is None and recorded in [str(one) for one in ids[: at + 1]]:
        return None
    head = history[0]
    # Where the published one has expired, all that is older than the oldest that is known was its.
    published = history[at] if at < len(history) else None
    up_to = (history[-1].sequence_number or 0) - 1 if published is None else published.sequence_number
    newest, *others = _writers(history)
    summary = {
        **newest,
        CLEARED: str(publication.snapshot_id),
        TARGET: table.branch,
        TARGET_SNAPSHOT_ID: str(publication.target_snapshot_id),
        TARGET_SEQUENCE_NUMBER: str(publication.target_sequence_number),
        **_skipped(table.metadata, source, table.branch),
        JOB_ID: job.assignment.job.id,
        ATTEMPT: str(job.assignment.attempt),
    }
    if first is not None:
        summary[RENEWED] = str(head.snapshot_id)
    java_table = table.java_table

    def shown_by(snapshot: Snapshot, number: int | None) -> JavaObject:
        arguments = java_table, str(snapshot.snapshot_id), str(number)
        return java_object(java_table, _SOURCE, "PublishedFiles", *arguments)

    with job.stage("clear"):
        if first is None:
            try:
                with prepared():
                    left = shown_by(head, up_to)
                    count = left.count()
            except CommitError as error:
                if find_head(java_table, source) != head.snapshot_id:
                    raise
                raise CommitError(f"{error}; if each job says so, publish once with `renew`") from None
        else:  # without the head's manifests, which a skipped snapshot may have lost
            with prepared():
                left, count = shown_by(first, first.sequence_number), _total_files(head)
        summary[FILES_CLEARED] = str(count)

        def operation(of_commit: Mapping[str, str], condemned: JavaObject, place: str) -> JavaObject:
            guarded = row_delta.guarded(java_table, place, "")
            if first is None:
                removal = guarded.newRowDelta().toBranch(source)
                removal.validateWith(row_delta.head_unmoved(java_table, head.snapshot_id))
                left.removeBy(removal)
                return row_delta.described(removal, of_commit, condemned)
            ids = str(head.snapshot_id), str(first.snapshot_id), str(len(others))
            renewing = java_object(
                java_table, _SOURCE, "RenewingOperations", guarded.operations(), source, *ids
            )
            renewed = jvm_of(java_table).org.apache.iceberg.BaseTable(renewing, java_table.name())
            without = {name: value for name, value in of_commit.items() if name not in newest}
            for number, of_writer in enumerate([*reversed(others), newest]):
                one = renewed.newRowDelta().toBranch(source)
                if not number:
                    left.removeBy(one)
                one = row_delta.described(one, without | of_writer, condemned)
                if number < len(others):
                    one.commit()
            return one

        return commit_snapshot(
            java_table,
            source,
            head.snapshot_id,
            summary,
            operation,
            confirm_lease=job.reporter.confirm_lease,
            check_location=table.storage.io.check,
        )


def _total_files(snapshot: Snapshot) -> int:
    """Those that it shows, as far as its summary says."""
    told = (properties(snapshot).get(f"total-{files}-files", "") for files in ("data", "delete"))
    return sum(int(count) for count in told if re.fullmatch("[0-9]{1,18}", count))


def _skipped(metadata: TableMetadata, source: str, target: str) -> dict[str, str]:
    numbers = sorted(skipped_numbers(metadata, source, target))[-SKIPPED_AT_MOST:]
    return {SKIPPED_SEQUENCE_NUMBERS: ",".join(map(str, numbers))} if numbers else {}


def _writers(history: Sequence[Snapshot]) -> list[dict[str, str]]:
    """What each of the branch's writers said last, the newest first; one of nothing if there is none.

    When older snapshots have expired, they still find it.
    """
    found: dict[Set[tuple[str, str]], dict[str, str]] = {}
    for snapshot in history:
        told = properties(snapshot)
        if said := {name: told[name] for name in told if name.startswith(_OF_WRITERS)}:
            whose = {(name, said[name]) for name in _WHOSE if name in said}
            whose |= {(name, "") for name in said if name.startswith(_KAFKA)}
            found.setdefault(frozenset(whose), said)
    return list(found.values())[:WRITERS] or [{}]
