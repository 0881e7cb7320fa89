"""Jobs that write small data files, and those with many deleted rows, anew, by Iceberg's own action:
plan -> convert -> rewrite -> commit -> index -> report.

Invariants: the visible rows are the same before and after. Equality deletes are converted first: a data file
that one applies to which can't be is left as it is, and those that come later apply to the new files, too.
The commit passes on a branch whose head has gone on from what was looked at, as long as no row of the files
was deleted since by position and no delete that is needed would be dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError

from telemetry.plurals import counted
from worker.attempt.job import Job
from worker.attempt.outcome import Outcome
from worker.attempt.pinned_table import PinnedTable, pin_again, read_files
from worker.index.warehouse import IndexWarehouse
from worker.io.paths import may_repeat
from worker.jobs import spark_actions
from worker.jobs.after_commit import index_new_files
from worker.jobs.conversion import Conversion
from worker.jobs.conversion_plan import counts
from worker.jobs.file_rewriting import SOURCE, Choice, FileRewriting
from worker.process.errors import JobError
from worker.spark.jvm import java_map, java_object, jvm_of
from worker.table import row_delta
from worker.table.catalogs import java_message
from worker.table.files import DataFiles, DeleteFile
from worker.table.plan import affected_files
from worker.table.row_delta import java_list
from worker.table.small_files import rewritable_files, target_file_bytes

_CONVERTED = ("equality_delete_files_removed", "equality_deletes_resolved", "rows_deleted")
"""Figures of a conversion; its others are about files, of which the rewriting has its own."""


class DataFileRewritingError(spark_actions.ActionError):
    code = "data_files_not_rewritten"
    title = "The data files could not be written anew"


class SortOrderError(JobError):
    code = "sort_order_missing"
    title = "There is no order by which the rows could be sorted"
    remedy = "Give the table a sort order (ALTER TABLE ... WRITE ORDERED BY), name one, or use binpack."


def rewrite_data_files(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Outcome:
    """Writes data files anew, in one commit; does nothing if an earlier attempt has."""
    return _Rewriting(job, warehouse).run(table)


class _Rewriting(FileRewriting):
    kind = "data-files"
    failure = DataFileRewritingError
    files = "data_files"
    called = "data file"
    nothing = "No data files are small and many enough, or have enough deleted rows, to be rewritten."
    why_left_out = "equality deletes apply to them that can't be converted, or the table names them twice"
    busy = "Rewrite data files when compaction and MERGE on this table are idle, or fewer bytes at a time."

    def __init__(self, job: Job, warehouse: IndexWarehouse) -> None:
        super().__init__(job, warehouse)
        self._parameters = job.assignment.job.rewrite_data_files
        self._sequence_number = 0

    def ready(self, table: PinnedTable) -> PinnedTable:
        """The table at the snapshot where all equality deletes are converted that it has now, but for those
        that can't be. What others commit meanwhile is not waited for."""
        self._sequence_number = super().sequence_number(table)
        pending = table.files.equality_deletes
        if not pending:
            return table
        if self.job.assignment.job.dry_run:
            self.job.decide(
                f"{counted(len(pending), 'equality delete file')} would be converted first, if possible."
                " Which data files are written anew may change by that."
            )
            return table
        conversion = Conversion(self.job, self.warehouse, self.plans)
        conversion.convert_all(table, conversion.batches(pending), commits_left=1)  # the rewriting is to come
        self.own.seen |= conversion.commits
        self.plans = conversion.plans + 1
        self.refused |= {one.file_path: one for one in conversion.refused}
        self.job.decide(f"{counted(len(conversion.converted), 'equality delete file')} converted first.")
        table = pin_again(self.job)
        snapshot = table.metadata.snapshot_by_id(conversion.head) if conversion.head is not None else None
        if snapshot is None or snapshot == table.snapshot:
            return table
        with self.job.stage("plan"):
            files = read_files(table.metadata, snapshot, table.storage)
        return replace(table, snapshot=snapshot, files=files)

    def sequence_number(self, _: PinnedTable) -> int:
        """That of the snapshot whose deletes were converted: what came later may be pending."""
        return self._sequence_number

    def choose(self, table: PinnedTable) -> Choice:
        left_out, data_files = self._left_out(table), table.files.data_files
        newer = data_files.where(data_files.data_sequence_numbers > self._sequence_number)
        stay = {*left_out, *(file.path for file in newer)}
        later = self._left_to_later_jobs(table, stay)
        paths, size_bytes, expected = list[str](), 0, 0
        java_table = self.java_table(table, {*stay, *(file.path for file in later)}, only=False)
        for group in self.planned(table, java_table, "PlannedDataFiles", self._options(table)):
            if paths and size_bytes + group["size_bytes"] > self._parameters.max_bytes:
                continue
            paths += group["paths"]
            size_bytes += group["size_bytes"]
            expected += group["expected"]
        if later:
            self.job.decide(
                f"{counted(len(later), 'small data file')} left to later jobs: the smaller ones of their"
                " partitions are too few, or together too small beside them (size_ratio:"
                f" {self._parameters.size_ratio:g})."
            )
        return Choice(paths, size_bytes, expected, len(left_out))

    def _left_to_later_jobs(self, table: PinnedTable, stay: Collection[str]) -> DataFiles:
        """Small ones that are too large beside the others of their partition. stay: what is kept out."""
        files, parameters = table.files, self._parameters
        seen = replace(files, data_files=files.data_files.where(~files.data_files.are_named(stay)))
        found = rewritable_files(
            seen,
            table.metadata.default_spec_id,
            self._target(table),
            min_input_files=parameters.min_input_files,
            size_ratio=parameters.size_ratio,
            delete_ratio_threshold=parameters.delete_ratio_threshold,
            max_bytes=parameters.max_bytes,
        )
        return seen.data_files.where(found.left)

    def _pending(self, table: PinnedTable, *, is_newer: bool) -> list[DeleteFile]:
        """Equality deletes that apply to the new data files, or those that could not be converted."""
        pending = table.files.equality_deletes
        return [one for one in pending if (one.data_sequence_number > self._sequence_number) == is_newer]

    def _left_out(self, table: PinnedTable) -> list[str]:
        """Data files to which an equality delete applies that stays, and those that are live twice."""
        files = table.files
        stays = () if self.job.assignment.job.dry_run else self._pending(table, is_newer=False)
        found = [file.path for file in affected_files(files, stays)]
        repeated = files.data_files.select(may_repeat(files.data_files.path_pieces()))
        twice = [path for path, number in Counter(file.path for file in repeated).items() if number > 1]
        return [*found, *twice]

    def _options(self, table: PinnedTable) -> dict[str, str]:
        parameters = self._parameters
        return {
            "target-file-size-bytes": str(self._target(table)),
            "min-input-files": str(parameters.min_input_files),
            "delete-ratio-threshold": str(parameters.delete_ratio_threshold),
            "max-file-group-size-bytes": str(parameters.max_bytes),
            "rewrite-job-order": "files-desc",
        }

    def _target(self, table: PinnedTable) -> int:
        """Raises FileSizeError."""
        return self._parameters.target_file_size_bytes or target_file_bytes(table.metadata.properties)

    def action(self, java_table: JavaObject, table: PinnedTable) -> JavaObject:
        action = spark_actions.actions(self.job).rewriteDataFiles(java_table)
        if self._parameters.strategy == "sort":
            action = action.sort(self._sort_order(java_table))
        else:
            action = action.binPack()
        options = self._options(table) | {"rewrite-all": "true"}
        return action.toBranch(table.branch).options(java_map(jvm_of(java_table), options))

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

    def completion(self, table: PinnedTable, choice: Choice) -> Callable[[JavaObject], object]:
        java_table, snapshot, chosen = table.java_table, table.snapshot, set(choice.paths)
        assert snapshot is not None
        live = table.files.position_deletes
        of_chosen = live.where(live.that_name(chosen))
        # Iceberg's action removes vectors of its own accord.
        useless = [one for one in of_chosen if not one.is_deletion_vector]
        old = java_list(jvm_of(java_table), choice.paths)
        starting, removed = snapshot.snapshot_id, [one.path for one in of_chosen]
        again = row_delta.nothing_added_again(java_table, starting, old, removed)
        newer = [one.data_sequence_number for one in self._pending(table, is_newer=True)]
        oldest = str(min(newer, default=(1 << 63) - 1))
        validator = java_object(
            java_table, SOURCE, "NewDeletesStay", java_table, str(starting), oldest, old, again
        )
        deletes = row_delta.java_delete_files(java_table, useless)

        def complete(operation: JavaObject) -> None:
            operation.validateWith(validator).dataSequenceNumber(self._sequence_number)
            for file in deletes:
                operation.deleteFile(file)

        return complete

    def is_live(self, table: PinnedTable, choice: Choice) -> bool:
        return len(table.files.data_files.with_paths(set(choice.paths))) >= len(choice.paths)

    # report

    def figures(self, choice: Choice, told: Mapping[str, str] | None) -> dict[str, int]:
        if told is None:
            rewritten, added, removed = len(choice.paths), choice.expected, 0
        else:
            rewritten, added = int(told[self.rewritten]), int(told.get("added-data-files", 0))
            removed = int(told.get("removed-delete-files", 0))
        return {
            "data_files_rewritten": rewritten,
            "data_files_added": added,
            "delete_files_removed": removed,
            "data_files_left_out": choice.left_out,
        }

    def converted(self) -> dict[str, int]:
        """By whichever attempt; nothing of a dry run, which has not looked for the rows."""
        if self.job.assignment.job.dry_run:
            return {}
        totals = counts([one.summary for one in self.own.seen.values()])
        return {name: totals[name] for name in _CONVERTED}

    def after_commit(self, table: PinnedTable) -> PinnedTable:
        return index_new_files(self.job, table, self.warehouse, self._of_this_job)

    def _of_this_job(self, files: DataFiles) -> DataFiles:
        name = f"/icestream-{self.job.assignment.job.id}-"
        marks = [
            pc.match_substring(piece, name).to_numpy(zero_copy_only=False) for piece in files.path_pieces()
        ]
        return files.where(np.concatenate(marks)) if marks else files
