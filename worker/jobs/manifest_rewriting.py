"""Jobs that write small manifests anew as few large ones, by Iceberg's own action: plan -> rewrite -> report.

Invariant: no data or delete file comes, goes or changes, so rows stay as they are, and so does every index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from py4j.protocol import Py4JError
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyspark.errors.exceptions.captured import CapturedException

from stores.table_metadata import JOB_ID
from telemetry.plurals import counted
from worker.attempt.job import Job
from worker.attempt.outcome import Outcome, outcome
from worker.attempt.pinned_table import PinnedTable, pin_again
from worker.index.warehouse import IndexWarehouse
from worker.jobs import spark_actions
from worker.jobs.after_commit import AfterCommit
from worker.jobs.own_commits import OwnCommit, commit_result
from worker.process.errors import JobError
from worker.spark.jvm import jvm_of
from worker.table.catalogs import raise_lack_of_memory
from worker.table.commit import (
    ATTEMPT,
    CLOCK_TOLERANCE_SECONDS,
    CommittedSnapshot,
    check_clock,
    find_commits,
)
from worker.table.commit_errors import (
    ClockAheadError,
    CommitConflictError,
    CommitError,
    CommitStateUnknownError,
    commit_failure,
    prepared,
)
from worker.table.row_delta import ANY_FILE, guarded
from worker.table.small_files import number_of_bytes

PLANNING_ATTEMPTS = 5
_KEEPS_ROW_IDS = (1, 12)
"""Since when new manifests have the first row id of each data file that they name."""
_MAIN = "main"
_REWRITTEN = "icestream.rewritten-manifests"
_TARGET = "commit.manifest.target-size-bytes"
_TARGET_BYTES = 8 * 1024 * 1024
_BUSY = "Rewrite manifests when compaction and others that merge manifests of this table are idle."


class OtherBranchError(JobError):
    code = "main_branch_only"
    title = "Iceberg rewrites manifests of the branch main alone"
    remedy = "Rewrite the manifests of the enrolment of main, or fast-forward main to this branch first."


class RowIdsError(JobError):
    code = "row_ids_not_kept"
    title = "Iceberg would give the table's rows other ids"
    remedy = (
        "Let a worker with Spark 3.5 or 4.1, which come with Iceberg 1.12, rewrite the manifests. Nothing was"
        " changed."
    )


class ManifestSizeError(JobError):
    code = "manifest_size_unreadable"
    title = "The table does not say how large its manifests should be"
    remedy = f"Set the table's property {_TARGET} to a number of bytes above 0, or remove it."


class ManifestRewritingError(CommitError):
    code = "manifests_not_rewritten"
    title = "The manifests could not be written anew"
    remedy = spark_actions.ActionError.remedy
    retryable = True


def rewrite_manifests(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Outcome:
    """Writes the small manifests of main anew, in one commit; does nothing if an earlier attempt has."""
    if table.branch != _MAIN:
        raise OtherBranchError(f"the table is enrolled with branch {table.branch}")
    version = _iceberg_version(table)
    if table.metadata.format_version >= 3 and version < _KEEPS_ROW_IDS:
        told = ".".join(map(str, version))
        raise RowIdsError(f"the action of Iceberg {told} forgets the row ids of format V3 (`_row_id`)")
    rewriting = _Rewriting(job)
    return rewriting.outcome(warehouse, *rewriting.run(table))


def _iceberg_version(table: PinnedTable) -> tuple[int, ...]:
    """The first two numbers of Iceberg's own."""
    told: str = jvm_of(table.java_table).org.apache.iceberg.IcebergBuild.version()
    return tuple(int(part) for part in told.split(".")[:2])


@dataclass(frozen=True, slots=True)
class _Choice:
    """manifests: of the head, how many there are. paths: of those to be written anew. expected: that will be
    in their place, by their sizes."""

    manifests: int = 0
    paths: Sequence[str] = ()
    size_bytes: int = 0
    expected: int = 0

    @classmethod
    def of(cls, metadata: TableMetadata, manifests: Sequence[ManifestFile]) -> _Choice:
        """Those of the present spec, of data and of deletes each, that are at most three quarters of what one
        should be: if there are fewer of them afterwards."""
        target = _target_bytes(metadata.properties)
        paths, size_bytes, expected = list[str](), 0, 0
        for content in (ManifestContent.DATA, ManifestContent.DELETES):
            small = [
                one
                for one in manifests
                if one.content == content
                and one.partition_spec_id == metadata.default_spec_id
                and 4 * one.manifest_length <= 3 * target
            ]
            of_content = sum(one.manifest_length for one in small)
            fewer = ceil(of_content / target)
            if len(small) > fewer:
                paths += [one.manifest_path for one in small]
                size_bytes += of_content
                expected += fewer
        return cls(len(manifests), paths, size_bytes, expected)


def _target_bytes(properties: Mapping[str, str]) -> int:
    """Raises ManifestSizeError."""
    text = properties.get(_TARGET, str(_TARGET_BYTES))
    size = number_of_bytes(text)
    if size is None:
        raise ManifestSizeError(f"its property {_TARGET} is {text[:100]!r}")
    return size


class _Rewriting:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._own = OwnCommit(job, lambda summary: _REWRITTEN in summary, "there is nothing left to rewrite")

    def run(self, table: PinnedTable) -> tuple[PinnedTable, _Choice, CommittedSnapshot | None]:
        job = self._job
        for number in range(PLANNING_ATTEMPTS):
            if number:
                table = pin_again(job)
            if committed := self._own.of_earlier_attempt(table):
                return table, _Choice(), committed
            choice = self._choice(table)
            if not choice.paths or job.assignment.job.dry_run:
                return table, choice, None
            try:
                return table, choice, self._own.made_by(table, lambda: self._commit(table, choice))  # noqa: B023
            except CommitConflictError as error:
                job.decide(f"The table changed while this job ran, so it looks again: {error}.")
                conflict = error
        raise CommitConflictError(conflict.detail, _BUSY)

    def _choice(self, table: PinnedTable) -> _Choice:
        if table.snapshot is None:
            return _Choice()
        with self._job.stage("plan"):
            manifests = table.snapshot.manifests(table.storage.io)
            for one in manifests:  # Java opens them
                table.storage.io.check(one.manifest_path)
            return _Choice.of(table.metadata, manifests)

    def _commit(self, table: PinnedTable, choice: _Choice) -> CommittedSnapshot | None:
        job, java_table = self._job, table.java_table
        check_clock(java_table)
        job.reporter.confirm_lease()
        if job.reporter.seconds_ahead > CLOCK_TOLERANCE_SECONDS:
            raise ClockAheadError("this worker's clock is ahead of the service's by more than a minute")
        with prepared():
            place = java_table.operations().metadataFileLocation(ANY_FILE)
            table.storage.io.check(place)
            action = spark_actions.actions(job).rewriteManifests(
                spark_actions.certain(guarded(java_table, place, ""))
            )
            action.rewriteIf(spark_actions.chosen(java_table, choice.paths)).option("use-caching", "false")
            told = {
                JOB_ID: job.assignment.job.id,
                ATTEMPT: str(job.assignment.attempt),
                _REWRITTEN: str(len(choice.paths)),
            }
            for name, value in told.items():
                action.snapshotProperty(name, value)
        try:
            job.run_action("rewrite", action.execute)
        except (Py4JError, CapturedException) as error:
            raise_lack_of_memory(error)
            failure = commit_failure(error)
            if type(failure) is CommitError:
                failure = ManifestRewritingError(failure.detail)
            raise failure from None
        found = find_commits(java_table, table.branch, job.assignment.job.id)
        if not found:
            raise CommitStateUnknownError("the commit was accepted, but the table does not show it")
        return found[0]

    def outcome(
        self,
        warehouse: IndexWarehouse,
        table: PinnedTable,
        choice: _Choice,
        committed: CommittedSnapshot | None,
    ) -> Outcome:
        job, dry_run = self._job, self._job.assignment.job.dry_run
        of_commit = commit_result(job, table, committed)
        rewritten, added, left = len(choice.paths), choice.expected if dry_run else 0, choice.manifests
        if dry_run:
            left -= rewritten - added
        if committed is not None:
            job.reporter = AfterCommit(job.reporter)
            job.usage.bytes += 2 * choice.size_bytes  # read and, about as many, written
            rewritten = int(committed.summary.get("manifests-replaced", 0))
            added = int(committed.summary.get("manifests-created", 0))
            table = pin_again(job)
            left = len(table.snapshot.manifests(table.storage.io)) if table.snapshot else 0
        would = "would be written" if dry_run else "were written"
        job.decide(
            f"{counted(rewritten, 'manifest')} {would} anew as {added:,}."
            if rewritten
            else "No manifests are small enough, and many enough, to be worth writing anew."
        )
        result: dict[str, Any] = {
            **of_commit,
            "manifests": {
                "manifests_rewritten": rewritten,
                "manifests_added": added,
                "manifests_left": left,
                "bytes_rewritten": choice.size_bytes,
            },
        }
        return outcome(job, table, warehouse, result, table.files, [], table.snapshot_id)
