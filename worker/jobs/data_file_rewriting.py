"""Jobs that write small data files, and those with many deleted rows, anew, by Iceberg's own action:
plan -> convert -> rewrite -> commit -> index -> report.

Invariants: the visible rows are the same before and after. Equality deletes are converted first: a data file
that one applies to which can't be is left as it is, and those that come later apply to the new files, too.
The action writes; the job commits, on a branch whose head has gone on from what was looked at, as long as no
row of the files was deleted since and nothing that is needed would be dropped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.errors.exceptions.captured import CapturedException

from trust.properties import LOCATION_PROPERTIES, without_code
from worker.attempt.job import Job
from worker.attempt.outcome import Outcome, Unconvertible, outcome
from worker.attempt.pinned_table import PinnedTable, pin_table
from worker.contract.control_plane import AnnouncedPlan
from worker.deletes.locations import data_file_folder, unannounced_plan
from worker.deletes.stage import announce
from worker.deletes.write import delete_files
from worker.index.sorted_runs import IndexWarehouse
from worker.io.paths import may_repeat
from worker.jobs import spark_actions
from worker.jobs.after_commit import AfterCommit, index_new_files
from worker.jobs.conversion import Conversion
from worker.jobs.orphan_files import remove_orphan_files
from worker.jobs.own_commits import OwnCommit
from worker.process.errors import JobError
from worker.process.plurals import counted
from worker.spark.jvm import jvm_of
from worker.table import row_delta
from worker.table.catalogs import java_map, java_message, raise_lack_of_memory
from worker.table.commit import ATTEMPT, JOB_ID, CommittedSnapshot, check_clock, commit_snapshot
from worker.table.commit_errors import (
    CommitConflictError,
    CommitStateUnknownError,
    prepared,
)
from worker.table.files import DataFiles
from worker.table.manifests import read_snapshot_files
from worker.table.plan import affected_files
from worker.table.row_delta import java_list, java_object, layout_of_new_rows
from worker.table.small_files import target_file_bytes

PLANNING_ATTEMPTS = 5
_REWRITTEN, _BYTES = "icestream.rewritten-data-files", "icestream.rewritten-bytes"
_PATHS_TOLD = 1_000
_SOURCE = Path(__file__).with_name("DataFileRewriting.java")
_BUSY = "Rewrite data files when compaction and MERGE on this table are idle, or fewer bytes at a time."


class DataFileRewritingError(JobError):
    code = "data_files_not_rewritten"
    title = "The data files could not be written anew"
    remedy = "The table is as it was. Look at the cause; it is tried again."
    retryable = True


@contextmanager
def _told_as_failed() -> Iterator[None]:
    """Raises DataFileRewritingError for an error of Java's, and MemoryError."""
    try:
        yield
    except (Py4JError, CapturedException) as error:
        raise_lack_of_memory(error)
        raise DataFileRewritingError(java_message(error)) from None


class SortOrderError(JobError):
    code = "sort_order_missing"
    title = "There is no order by which the rows could be sorted"
    remedy = "Give the table a sort order (ALTER TABLE ... WRITE ORDERED BY), name one, or use binpack."


def rewrite_data_files(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Outcome:
    """Writes data files anew, in one commit; does nothing if an earlier attempt has."""
    return _Rewriting(job, warehouse).run(table)


@dataclass(frozen=True, slots=True)
class _Choice:
    """paths: of data files to be written anew. expected: how many there will be in their place, by their
    sizes. left_out: data files to which equality deletes apply that can't be converted."""

    paths: Sequence[str] = ()
    size_bytes: int = 0
    expected: int = 0
    left_out: int = 0


class _Rewriting:
    def __init__(self, job: Job, warehouse: IndexWarehouse) -> None:
        self._job = job
        self._warehouse = warehouse
        self._parameters = job.assignment.job.rewrite_data_files
        self._own = OwnCommit(job, lambda summary: _REWRITTEN in summary, "there is nothing left to rewrite")
        self._plans = 0
        self._refused: dict[str, Unconvertible] = {}

    def run(self, table: PinnedTable) -> Outcome:
        job = self._job
        for number in range(PLANNING_ATTEMPTS):
            if number:
                table = self._pinned()
            if committed := self._own.of_earlier_attempt(table):
                return self._outcome(table, _Choice(), committed)
            table = self._converted(table)
            choice = self._choice(table)
            if not choice.paths or job.assignment.job.dry_run:
                return self._outcome(table, choice, None)
            try:
                return self._outcome(table, choice, self._rewrite(table, choice))
            except CommitConflictError as error:
                job.decide(f"The table changed while this job ran, so it looks again: {error}.")
                conflict = error
        raise CommitConflictError(conflict.detail, _BUSY)

    def _pinned(self) -> PinnedTable:
        with self._job.stage("plan"):
            return pin_table(self._job)

    # convert

    def _converted(self, table: PinnedTable) -> PinnedTable:
        """The table at the snapshot that has no equality deletes but those that can't be converted. What
        others commit after it is not waited for."""
        pending = table.files.equality_deletes
        if not pending:
            return table
        if self._job.assignment.job.dry_run:
            self._job.decide(
                f"{counted(len(pending), 'equality delete file')} would be converted first, if possible."
                " Which data files are written anew may change by that."
            )
            return table
        conversion = Conversion(self._job, self._warehouse, self._plans)
        conversion.convert(table, pending, commits_left=1)  # the rewriting is to come
        self._plans = conversion.plans + 1
        self._refused |= {one.file_path: one for one in conversion.refused}
        table = self._pinned()
        snapshot = table.metadata.snapshot_by_id(conversion.head) if conversion.head is not None else None
        if snapshot is None or snapshot == table.snapshot:
            return table
        with self._job.stage("plan"):
            files = read_snapshot_files(table.metadata, snapshot, table.storage.io, self._job.manifests)
        return replace(table, snapshot=snapshot, files=files)

    # choose

    def _choice(self, table: PinnedTable) -> _Choice:
        if table.snapshot is None:
            return _Choice()
        with self._job.stage("plan"):
            files, storage = table.files, table.storage
            for manifest in table.snapshot.manifests(storage.io):  # Java opens them
                storage.io.check(manifest.manifest_path)
            left_out = self._left_out(table)
            java_table = self._java_table(table, left_out, only=False)
            with _told_as_failed():
                options = java_map(jvm_of(java_table), self._options(table))
                planned = java_object(
                    java_table, _SOURCE, "PlannedRewrite", java_table, str(table.snapshot_id), options
                )
                mapper = jvm_of(java_table).org.apache.iceberg.util.JsonUtil.mapper()
                groups = json.loads(mapper.writeValueAsString(planned.groups()))
            paths, size_bytes, expected = list[str](), 0, 0
            for group in groups:
                if paths and size_bytes + group["size_bytes"] > self._parameters.max_bytes:
                    continue
                paths += group["paths"]
                size_bytes += group["size_bytes"]
                expected += group["expected"]
            for path in (*paths, *(one.path for one in files.delete_files)):  # Spark's tasks open them
                storage.io.check(path)
        return _Choice(paths, size_bytes, expected, len(left_out))

    def _left_out(self, table: PinnedTable) -> list[str]:
        """Data files to which an equality delete applies that stays, and those that are live twice."""
        files = table.files
        stays = () if self._job.assignment.job.dry_run else files.equality_deletes
        found = [file.path for file in affected_files(files, stays)]
        repeated = files.data_files.select(may_repeat(files.data_files.path_pieces()))
        twice = [path for path, number in Counter(file.path for file in repeated).items() if number > 1]
        return [*found, *twice]

    def _options(self, table: PinnedTable) -> dict[str, str]:
        parameters = self._parameters
        target = parameters.target_file_size_bytes or target_file_bytes(table.metadata.properties)
        return {
            "target-file-size-bytes": str(target),
            "min-input-files": str(parameters.min_input_files),
            "delete-ratio-threshold": str(parameters.delete_ratio_threshold),
            "max-file-group-size-bytes": str(parameters.max_bytes),
            "rewrite-job-order": "files-desc",
        }

    def _java_table(
        self, table: PinnedTable, paths: Collection[str], *, only: bool, folder: str | None = None
    ) -> JavaObject:
        """The table at its snapshot for Iceberg's action: with just these data files, or without them.

        folder: of new data files.
        """
        properties, java_table = table.metadata.properties, table.java_table
        places = {key: properties[key] for key in LOCATION_PROPERTIES if key in properties}
        with prepared():
            jvm = jvm_of(java_table)
            safe = row_delta.loads_no_class(java_table, layout_of_new_rows(table.metadata))
            locations = safe.locationProvider()
            if folder is not None:
                located = java_map(jvm, places | {"write.data.path": folder})
                locations = jvm.org.apache.iceberg.LocationProviders.locationsFor(folder, located)
            harmless = {key: value for key, value in without_code(properties).items() if key not in places}
            return java_object(
                java_table,
                _SOURCE,
                "RewritableTable",
                safe,
                java_map(jvm, harmless),
                locations,
                str(table.snapshot_id),
                java_list(jvm, sorted(paths)),
                only,
            )

    # rewrite

    def _rewrite(self, table: PinnedTable, choice: _Choice) -> CommittedSnapshot | None:
        job, plan = self._job, unannounced_plan(table, self._plans)
        plan = plan.model_copy(update={"has_folder": True})
        self._plans += 1
        folder = data_file_folder(job.assignment.job.id, job.assignment.attempt, plan)
        table.storage.io.check(folder)
        check_clock(table.java_table)  # before the work, which would be for nothing
        announce(job, plan)
        try:
            rewrite = self._written(table, choice, folder)
            committed = self._own.made_by(table, lambda: self._commit(table, choice, plan, rewrite))
        except CommitStateUnknownError:
            raise
        except Exception:
            self._remove(table, folder)
            raise
        job.reporter = AfterCommit(job.reporter)
        # What tasks have left that Spark ran once more.
        self._remove(table, folder, {str(file.location()).rpartition("/")[2] for file in rewrite.added()})
        return committed

    def _written(self, table: PinnedTable, choice: _Choice, folder: str) -> JavaObject:
        """What the action has written, and would commit."""
        job, parameters = self._job, self._parameters
        java_table = self._java_table(table, choice.paths, only=True, folder=folder)
        with _told_as_failed():
            action = spark_actions.actions(job).rewriteDataFiles(java_table)
            if parameters.strategy == "sort":
                action = action.sort(self._sort_order(java_table))
            else:
                action = action.binPack()
            options = self._options(table) | {"rewrite-all": "true"}
            action = action.toBranch(table.branch).options(java_map(jvm_of(java_table), options))
        try:
            with _told_as_failed():
                spark_actions.execute(job, "rewrite", action)
                rewrite = java_table.rewrite()
                removed = len(rewrite.removed())
        except DataFileRewritingError as error:
            self._raise_if_overtaken(choice, error)
            raise
        if not removed:
            raise DataFileRewritingError("Iceberg's action has written nothing")
        return rewrite

    def _sort_order(self, java_table: JavaObject) -> JavaObject:
        """Raises SortOrderError."""
        wanted = self._parameters.sort_order
        if not wanted:
            if not java_table.sortOrder().isSorted():
                raise SortOrderError("the table has no sort order, and the job names none")
            return java_table.sortOrder()
        iceberg = jvm_of(java_table).org.apache.iceberg
        builder = iceberg.SortOrder.builderFor(java_table.schema())
        try:
            for field in wanted:
                direction = getattr(iceberg.SortDirection, field.direction.upper())
                nulls = getattr(iceberg.NullOrder, field.null_order.upper().replace("-", "_"))
                builder = builder.sortBy(field.column, direction, nulls)
            return builder.build()
        except Py4JError as error:
            raise SortOrderError(java_message(error)) from None

    def _raise_if_overtaken(self, choice: _Choice, error: JobError) -> None:
        """A file that can't be read may be gone since others have replaced it, too."""
        try:
            live = self._pinned().files.data_files.with_paths(set(choice.paths))
        except (JobError, OSError):
            return
        if len(live) < len(choice.paths):
            raise CommitConflictError(f"a data file is gone that was to be written anew ({error})")

    def _commit(
        self, table: PinnedTable, choice: _Choice, plan: AnnouncedPlan, rewrite: JavaObject
    ) -> CommittedSnapshot:
        job, java_table = self._job, table.java_table
        assert table.snapshot is not None
        starting, number = table.snapshot.snapshot_id, table.snapshot.sequence_number or 0
        chosen = set(choice.paths)
        # Iceberg's action removes vectors of its own accord.
        useless = [
            one
            for one in table.files.position_deletes
            if one.referenced_data_file in chosen and not one.is_deletion_vector
        ]
        with prepared():
            old = java_list(jvm_of(java_table), choice.paths)
            validator = java_object(java_table, _SOURCE, "NewDeletesStay", java_table, str(starting), old)
            deletes = row_delta.java_delete_files(java_table, useless)
            layout = layout_of_new_rows(table.metadata)

        def operation(summary: Any, condemned: JavaObject, place: str) -> JavaObject:
            made = rewrite.addTo(
                row_delta.guarded(java_table, place, layout)
                .newRewrite()
                .toBranch(table.branch)
                .validateFromSnapshot(starting)
                .validateWith(validator)
                .dataSequenceNumber(number)
            )
            for file in deletes:
                made.deleteFile(file)
            return row_delta.described(made, summary, condemned)

        with job.stage("commit"):
            return commit_snapshot(
                java_table,
                table.branch,
                starting,
                {
                    JOB_ID: job.assignment.job.id,
                    ATTEMPT: str(job.assignment.attempt),
                    _REWRITTEN: str(len(choice.paths)),
                    _BYTES: str(choice.size_bytes),
                },
                operation,
                # It can't be committed any more once the first of the files is gone.
                confirm_lease=lambda: announce(job, plan.model_copy(update={"removes": choice.paths[0]})),
                check_location=table.storage.io.check,
            )

    def _remove(self, table: PinnedTable, folder: str, kept: Collection[str] = ()) -> None:
        """Deletes what was written into a folder, but for names to be kept. What stays is left to whoever
        follows."""
        with suppress(OSError):
            delete_files(
                table.storage, [one.location for one in table.storage.walk(folder) if one.name not in kept]
            )

    # report

    def _outcome(self, table: PinnedTable, choice: _Choice, committed: CommittedSnapshot | None) -> Outcome:
        job, dry_run = self._job, self._job.assignment.job.dry_run
        before = table.snapshot_id
        figures: dict[str, Any] = {
            "data_files_rewritten": len(choice.paths),
            "data_files_added": choice.expected,
            "bytes_rewritten": choice.size_bytes,
            "bytes_added": 0,
            "delete_files_removed": 0,
            "data_files_left_out": choice.left_out,
            "files": list(choice.paths[:_PATHS_TOLD]) if dry_run else [],
        }
        if committed is not None:
            job.reporter = AfterCommit(job.reporter)
            before, told = committed.parent_snapshot_id, committed.summary
            figures |= {
                "data_files_rewritten": int(told[_REWRITTEN]),
                "data_files_added": int(told.get("added-data-files", 0)),
                "bytes_rewritten": int(told[_BYTES]),
                "bytes_added": int(told.get("added-files-size", 0)),
                "delete_files_removed": int(told.get("removed-delete-files", 0)),
            }
            job.usage.bytes += figures["bytes_rewritten"] + figures["bytes_added"]
            table = index_new_files(job, table, self._warehouse, self._of_this_job)
        would = "would be written" if dry_run else "were written"
        job.decide(
            f"{counted(figures['data_files_rewritten'], 'data file')} {would} anew as"
            f" {figures['data_files_added']:,}."
            if figures["data_files_rewritten"]
            else "No data files are small and many enough, or have enough deleted rows, to be rewritten."
        )
        if choice.left_out:
            job.decide(
                f"{counted(choice.left_out, 'data file')} stay as they are: equality deletes apply to them"
                " that can't be converted, or the table names them twice."
            )
        result: dict[str, Any] = {
            "dry_run": dry_run,
            "iceberg_snapshot_id_before": before,
            "iceberg_snapshot_id_after": committed.snapshot_id if committed else None,
            "commits": 1 if committed else 0,
            "data_files": figures,
        }
        cleared = [] if dry_run else remove_orphan_files(job)
        live = {file.path for file in table.files.equality_deletes}
        refused = [one for path, one in self._refused.items() if path in live]
        head = table.snapshot_id
        return outcome(job, table, self._warehouse, result, table.files, refused, head, cleared)

    def _of_this_job(self, files: DataFiles) -> DataFiles:
        name = f"/icestream-{self._job.assignment.job.id}-"
        marks = [
            pc.match_substring(piece, name).to_numpy(zero_copy_only=False) for piece in files.path_pieces()
        ]
        return files.where(np.concatenate(marks)) if marks else files
