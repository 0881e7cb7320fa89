"""Jobs that write small position delete files anew, by Iceberg's own action: plan -> rewrite -> report.

Invariant: the same rows are deleted before and after. Positions in data files that are gone are left out. New
delete files have the highest sequence number of those in whose place they are, so none of these may name a
data file that was added again after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from py4j.java_gateway import JavaObject

from worker.attempt.job import Job
from worker.attempt.outcome import Outcome
from worker.attempt.pinned_table import PinnedTable
from worker.deletes.existing import FILES_AT_ONCE, UnreadableDeleteFileError, named_data_files
from worker.deletes.merge import DeleteGranularity
from worker.index.warehouse import IndexWarehouse
from worker.jobs import spark_actions
from worker.jobs.file_rewriting import Choice, FileRewriting
from worker.process.slots import Threads
from worker.spark.jvm import java_map, jvm_of
from worker.table import row_delta
from worker.table.files import DeleteFile
from worker.table.row_delta import java_list
from worker.table.small_files import target_delete_file_bytes


class PositionDeleteRewritingError(spark_actions.ActionError):
    code = "position_deletes_not_rewritten"
    title = "The position delete files could not be written anew"


def rewrite_position_delete_files(job: Job, table: PinnedTable, warehouse: IndexWarehouse) -> Outcome:
    """Writes position delete files anew, in one commit; does nothing if an earlier attempt has."""
    return _Rewriting(job, warehouse).run(table)


class _Rewriting(FileRewriting):
    kind = "position-delete-files"
    failure = PositionDeleteRewritingError
    files = "delete_files"
    called = "position delete file"
    nothing = "No position delete files are small and many enough to become fewer."
    busy = "Rewrite position deletes when compaction and MERGE on this table are idle."

    def __init__(self, job: Job, warehouse: IndexWarehouse) -> None:
        super().__init__(job, warehouse)
        self._parameters = job.assignment.job.rewrite_position_delete_files

    # choose

    def choose(self, table: PinnedTable) -> Choice:
        if table.metadata.format_version != 2:
            self.job.decide(
                "Only tables of format version 2 have position delete files to be rewritten: a conversion"
                " merges deletion vectors."
            )
            return Choice()
        java_table = self.java_table(table, (), only=False)
        groups = self.planned(table, java_table, "PlannedPositionDeletes", self._options(table))
        paths = [path for group in groups for path in group["paths"]]
        if not paths:
            return Choice()
        chosen = set(paths)
        named = self._named(table, list(table.files.position_deletes.with_paths(chosen)))
        if named is None:
            return Choice(left_out=len(paths))
        expected = sum(group["expected"] for group in groups)
        if DeleteGranularity.of_table(table.metadata.properties) is DeleteGranularity.FILE:
            expected = sum(len(set().union(*(named[path] for path in group["paths"]))) for group in groups)
            if expected >= len(paths):
                return Choice()
        return Choice(paths, sum(group["size_bytes"] for group in groups), expected)

    def _named(self, table: PinnedTable, deletes: Sequence[DeleteFile]) -> dict[str, set[str]] | None:
        """The live data files that each delete file names, by its path; None, which is told, if one of them
        is newer than the delete, which hits nothing of it."""
        storage = table.storage
        for one in deletes:
            storage.io.check(one.path)
        try:
            with Threads(FILES_AT_ONCE) as threads:
                read = threads.map(lambda one: named_data_files(storage, one), deletes)
                named = {one.path: paths for one, paths in zip(deletes, read, strict=True)}
        except UnreadableDeleteFileError as error:
            raise PositionDeleteRewritingError(str(error)) from error
        numbers: dict[str, int] = {}
        for file in table.files.data_files.with_paths(set().union(*named.values())):
            numbers[file.path] = max(file.data_sequence_number, numbers.get(file.path, 0))
        for one in deletes:
            named[one.path] &= numbers.keys()
            if again := [path for path in named[one.path] if numbers[path] > one.data_sequence_number]:
                self.job.decide(
                    f"The position deletes stay as they are: {again[0]} was added again after {one.path},"
                    " whose positions are none in it."
                )
                return None
        return named

    def _options(self, table: PinnedTable) -> dict[str, str]:
        parameters = self._parameters
        target = parameters.target_file_size_bytes or target_delete_file_bytes(table.metadata.properties)
        return {
            "target-file-size-bytes": str(target),
            "min-input-files": str(parameters.min_input_files),
            "rewrite-job-order": "files-desc",
        }

    # rewrite

    def action(self, java_table: JavaObject, table: PinnedTable) -> JavaObject:
        options = java_map(jvm_of(java_table), self._options(table))
        return spark_actions.actions(self.job).rewritePositionDeletes(java_table).options(options)

    def completion(self, table: PinnedTable, choice: Choice) -> Callable[[JavaObject], object]:
        java_table, starting = table.java_table, table.snapshot_id
        assert starting is not None
        none = java_list(jvm_of(java_table), ())
        validator = row_delta.nothing_added_again(java_table, starting, none, choice.paths)
        return lambda operation: operation.validateWith(validator)

    def is_live(self, table: PinnedTable, choice: Choice) -> bool:
        return set(choice.paths) <= {*table.files.position_deletes.paths()}

    # report

    def figures(self, choice: Choice, told: Mapping[str, str] | None) -> dict[str, int]:
        if told is None:
            rewritten, added = len(choice.paths), choice.expected
        else:
            rewritten = int(told.get("removed-position-delete-files", 0))
            added = int(told.get("added-position-delete-files", 0))
        return {"delete_files_rewritten": rewritten, "delete_files_added": added}
