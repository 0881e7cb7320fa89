"""Manifests are written anew without what they tell of files that were removed, which may be keys.

Iceberg's own operation rewrites those of data files; those of deletes have successors that are made here.
Both are exchanged in a `RewriteManifests`, after data files were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import uuid4

from py4j.java_gateway import JavaObject

from worker.attempt.job import Job
from worker.attempt.pinned_table import PinnedTable, pin_again
from worker.deletes.write import delete_files
from worker.erasure.snapshot_properties import MANIFESTS, Totals, step_properties
from worker.spark.jvm import java_object, jvm_of
from worker.table import row_delta
from worker.table.commit import HEADS_AT_MOST, CommittedSnapshot, commit_snapshot
from worker.table.commit_errors import CommitConflictError, prepared
from worker.table.row_delta import java_list

_SOURCE = Path(__file__).with_name("RewrittenManifests.java")


def java_manifest_rewrite(
    operation: JavaObject,
    delete_manifests: Sequence[tuple[JavaObject, JavaObject | None]],
    properties: Mapping[str, str],
    condemned: JavaObject,
) -> JavaObject:
    """A `RewriteManifests` of those that name files which were removed, not yet committed.

    delete_manifests: with the successor of each, if anything in it is live.
    """
    predicate = java_object(operation, _SOURCE, "NamesRemovedFiles")
    operation.rewriteIf(predicate).clusterBy(java_object(operation, _SOURCE, "ByManifest"))
    for old, new in delete_manifests:
        operation.deleteManifest(old)
        if new is not None:
            operation.addManifest(new)
    return row_delta.described(operation, properties, condemned)


def rewrite_manifests(job: Job, table: PinnedTable, totals: Totals) -> CommittedSnapshot:
    """A manifest that names a removed file has the bounds of what was in it, until it is written anew.

    totals: what the job has done so far, which the snapshot keeps: earlier ones of the job are to expire.
    Raises CommitError.
    """
    for _ in range(HEADS_AT_MOST):
        successors = _delete_manifests(table)
        try:
            return _commit_manifests(job, table, totals, successors)
        except CommitConflictError:  # one of them is gone
            delete_files(table.storage, [str(new.path()) for _, new in successors if new is not None])
            table = pin_again(job)
    raise CommitConflictError(
        f"others committed first {HEADS_AT_MOST:,} times", "Erase again when they are idle."
    )


def _commit_manifests(
    job: Job, table: PinnedTable, totals: Totals, successors: Sequence[tuple[JavaObject, JavaObject | None]]
) -> CommittedSnapshot:
    snapshot_id = table.snapshot_id
    assert snapshot_id is not None
    with job.stage("commit"):
        return commit_snapshot(
            table.java_table,
            table.branch,
            snapshot_id,
            step_properties(job, MANIFESTS, totals.summary),
            lambda properties, condemned, place: java_manifest_rewrite(
                row_delta.guarded(table.java_table, place, "").rewriteManifests(),
                successors,
                properties,
                condemned,
            ),
            confirm_lease=job.reporter.confirm_lease,
            check_location=table.storage.io.check,
        )


def _delete_manifests(table: PinnedTable) -> list[tuple[JavaObject, JavaObject | None]]:
    """The delete manifests of the head that name removed files, with the successor of each."""
    java_table = table.java_table
    names = [
        f"{file.path} {-1 if file.content_offset is None else file.content_offset}"
        for file in table.files.delete_files
    ]
    ids = [str(file.added_snapshot_id) for file in table.files.delete_files]
    found = []
    with prepared():
        jvm = jvm_of(java_table)
        source = java_object(
            java_table,
            _SOURCE,
            "DeleteManifests",
            java_table,
            str(table.snapshot_id),
            java_list(jvm, names),
            java_list(jvm, ids),
        )
        for number, old in enumerate(source.manifests()):
            # As Iceberg calls its own: only the table's removal of orphans can take them (ARCHITECTURE.md).
            place = java_table.operations().metadataFileLocation(f"{uuid4()}-m{number}.avro")
            table.storage.io.check(place)
            found.append((old, source.write(old, place)))
    return found
