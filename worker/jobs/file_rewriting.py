"""What the rewritings by Iceberg's own actions have in common: the action writes, and the job commits.

plan -> rewrite -> commit. Invariants: nothing is committed without the lease, and whoever follows knows what
may be left, and whether it may still be committed. What an action reads and writes by is a table of ours, at
the snapshot that was looked at: no class and no place that the table names reaches Spark's tasks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.errors.exceptions.captured import CapturedException

from stores.table_metadata import JOB_ID
from telemetry.plurals import counted
from trust.properties import LOCATION_PROPERTIES, without_code
from worker.attempt.job import Job
from worker.attempt.outcome import Outcome, Unconvertible, outcome
from worker.attempt.pinned_table import PinnedTable, pin_again
from worker.contract.control_plane import AnnouncedPlan
from worker.deletes.locations import data_file_folder, unannounced_plan
from worker.deletes.stage import announce
from worker.deletes.write import delete_files
from worker.index.warehouse import IndexWarehouse
from worker.jobs import spark_actions
from worker.jobs.after_commit import AfterCommit
from worker.jobs.files_of_dead_attempts import clear_dead_attempts
from worker.jobs.own_commits import OwnCommit, commit_result
from worker.process.errors import JobError
from worker.spark.jvm import java_map, java_object, jvm_of, told_by_java
from worker.table import row_delta
from worker.table.catalogs import java_message, raise_lack_of_memory
from worker.table.commit import ATTEMPT, CommitFate, CommittedSnapshot, check_clock, commit_snapshot
from worker.table.commit_errors import CommitConflictError, prepared
from worker.table.row_delta import java_list, layout_of_new_rows

PLANNING_ATTEMPTS = 5
PATHS_TOLD = 1_000
BYTES = "icestream.rewritten-bytes"
SOURCE = Path(__file__).with_name("FileRewriting.java")


@dataclass(frozen=True, slots=True)
class Choice:
    """paths: of files to be written anew. expected: how many there will be in their place. left_out: files
    that stay as they are, though they are small."""

    paths: Sequence[str] = ()
    size_bytes: int = 0
    expected: int = 0
    left_out: int = 0


class FileRewriting(ABC):
    """One job that writes files anew, in one commit, unless an earlier attempt has.

    kind: what the files are called in the properties of the snapshot; files: in the result; called: one of
    them, in words. nothing: that there are none. why_left_out: of those that stay, unless it is told else.
    busy: what to do about those who always come first.
    """

    kind: ClassVar[str]
    failure: ClassVar[type[JobError]]
    files: ClassVar[str]
    called: ClassVar[str]
    nothing: ClassVar[str]
    why_left_out: ClassVar[str] = ""
    busy: ClassVar[str]

    def __init__(self, job: Job, warehouse: IndexWarehouse) -> None:
        self.job = job
        self.warehouse = warehouse
        self.rewritten = f"icestream.rewritten-{self.kind}"
        self.own = OwnCommit(
            job, lambda summary: self.rewritten in summary, "there is nothing left to rewrite"
        )
        self.plans = 0
        self.refused: dict[str, Unconvertible] = {}

    def run(self, table: PinnedTable) -> Outcome:
        job = self.job
        for number in range(PLANNING_ATTEMPTS):
            if number:
                table = pin_again(self.job)
            if committed := self.own.of_earlier_attempt(table):
                job.reporter = AfterCommit(job.reporter)
                return self.outcome(table, Choice(), committed)
            table = self.ready(table)
            choice = self._choice(table)
            if not choice.paths or job.assignment.job.dry_run:
                return self.outcome(table, choice, None)
            try:
                committed = self._rewrite(table, choice)
            except CommitConflictError as error:
                job.decide(f"The table changed while this job ran, so it looks again: {error}.")
                conflict = error
            else:
                return self.outcome(table, choice, committed)
        raise CommitConflictError(conflict.detail, self.busy)

    def after_commit(self, _: PinnedTable) -> PinnedTable:
        """The table as it is then, from what it was."""
        return pin_again(self.job)

    # of each kind

    def ready(self, table: PinnedTable) -> PinnedTable:
        """The table as it can be looked at."""
        return table

    def sequence_number(self, table: PinnedTable) -> int:
        """Of new data files: equality deletes with a higher one apply to them, as to the old ones."""
        return (table.snapshot.sequence_number if table.snapshot is not None else None) or 0

    @abstractmethod
    def choose(self, table: PinnedTable) -> Choice:
        """What is to be written anew of a snapshot."""

    @abstractmethod
    def action(self, java_table: JavaObject, table: PinnedTable) -> JavaObject:
        """Iceberg's, on a table of ours."""

    @abstractmethod
    def completion(self, table: PinnedTable, choice: Choice) -> Callable[[JavaObject], object]:
        """What its `RewriteFiles` needs besides the files that the action would remove and add."""

    @abstractmethod
    def is_live(self, table: PinnedTable, choice: Choice) -> bool:
        """Whether all files are still there that were chosen."""

    @abstractmethod
    def figures(self, choice: Choice, told: Mapping[str, str] | None) -> dict[str, int]:
        """What was written anew as what, as the commit's summary has it, or what would be."""

    def converted(self) -> dict[str, int]:
        """What the job has done before, in a conversion's own figures."""
        return {}

    # choose

    def _choice(self, table: PinnedTable) -> Choice:
        if table.snapshot is None:
            return Choice()
        io = table.storage.io
        with self.job.stage("plan"):
            for manifest in table.snapshot.manifests(io):  # Java opens them
                io.check(manifest.manifest_path)
            choice = self.choose(table)
            for path in (*choice.paths, *table.files.delete_files.paths()):  # Spark's tasks do
                io.check(path)
        return choice

    def planned(
        self, table: PinnedTable, java_table: JavaObject, planner: str, options: Mapping[str, str]
    ) -> list[dict[str, Any]]:
        """Groups of files, as Iceberg's planner makes them: their `paths`, `size_bytes`, and how many there
        will be (`expected`)."""
        with self.told_as_failed():
            jvm, head = jvm_of(java_table), str(table.snapshot_id)
            made = java_object(java_table, SOURCE, planner, java_table, head, java_map(jvm, options))
            groups: list[dict[str, Any]] = told_by_java(made.groups())
        return groups

    def java_table(
        self, table: PinnedTable, paths: Collection[str], *, only: bool, folder: str | None = None
    ) -> JavaObject:
        """The table at its snapshot for Iceberg's action: with just these data files, or without them.

        folder: of new files.
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
                SOURCE,
                "RewritableTable",
                safe,
                java_map(jvm, harmless),
                locations,
                str(table.snapshot_id),
                java_list(jvm, sorted(paths)),
                only,
                str(self.sequence_number(table)),
            )

    # rewrite

    def _rewrite(self, table: PinnedTable, choice: Choice) -> CommittedSnapshot | None:
        job, plan = self.job, unannounced_plan(table, self.plans)
        plan = plan.model_copy(update={"has_folder": True})
        self.plans += 1
        folder = data_file_folder(job.assignment.job.id, job.assignment.attempt, plan)
        table.storage.io.check(folder)
        check_clock(table.java_table)  # before the work, which would be for nothing
        announce(job, plan)
        fate = CommitFate()
        try:
            rewrite = self._written(table, choice, folder)
            committed = self.own.made_by(table, lambda: self._commit(table, choice, plan, rewrite, fate))
        except Exception:
            if not fate.may_be_committed:
                _remove(table, folder)
            raise
        job.reporter = AfterCommit(job.reporter)
        # What tasks have left that Spark ran once more.
        _remove(table, folder, {str(file.location()).rpartition("/")[2] for file in rewrite.added()})
        return committed

    def _written(self, table: PinnedTable, choice: Choice, folder: str) -> JavaObject:
        """What the action has written, and would commit."""
        java_table = self.java_table(table, choice.paths, only=True, folder=folder)
        with self.told_as_failed():
            action = self.action(java_table, table)
        try:
            with self.told_as_failed():
                spark_actions.execute(self.job, "rewrite", action)
                rewrite = java_table.rewrite()
                removed = len(rewrite.removed())
        except self.failure as error:
            self._raise_if_overtaken(choice, error)
            raise
        if not removed:
            raise self.failure("Iceberg's action has written nothing")
        return rewrite

    def _raise_if_overtaken(self, choice: Choice, error: JobError) -> None:
        """A file that can't be read may be gone since others have replaced it, too."""
        try:
            is_live = self.is_live(pin_again(self.job), choice)
        except (JobError, OSError):
            return
        if not is_live:
            raise CommitConflictError(f"a file is gone that was to be written anew ({error})")

    def _commit(
        self, table: PinnedTable, choice: Choice, plan: AnnouncedPlan, rewrite: JavaObject, fate: CommitFate
    ) -> CommittedSnapshot:
        job, java_table = self.job, table.java_table
        assert table.snapshot is not None
        starting, layout = table.snapshot.snapshot_id, layout_of_new_rows(table.metadata)
        with prepared():
            complete = self.completion(table, choice)

        def operation(summary: Any, condemned: JavaObject, place: str) -> JavaObject:
            made = row_delta.guarded(java_table, place, layout).newRewrite()
            made = rewrite.addTo(made.toBranch(table.branch).validateFromSnapshot(starting))
            complete(made)
            return row_delta.described(made, summary, condemned)

        # It can't be committed any more once the first of the files is gone.
        announced = plan.model_copy(update={"removes": choice.paths[0]})
        with job.stage("commit"), fate.decided(partial(announce, job, announced)) as confirm_lease:
            return commit_snapshot(
                java_table,
                table.branch,
                starting,
                {
                    JOB_ID: job.assignment.job.id,
                    ATTEMPT: str(job.assignment.attempt),
                    self.rewritten: str(len(choice.paths)),
                    BYTES: str(choice.size_bytes),
                },
                operation,
                confirm_lease=confirm_lease,
                check_location=table.storage.io.check,
            )

    # report

    def outcome(self, table: PinnedTable, choice: Choice, committed: CommittedSnapshot | None) -> Outcome:
        """committed: what this attempt has committed, or an earlier one."""
        job, dry_run = self.job, self.job.assignment.job.dry_run
        of_commit, size_bytes, added_bytes = commit_result(job, table, committed), choice.size_bytes, 0
        if committed is not None:
            summary = committed.summary
            size_bytes, added_bytes = int(summary[BYTES]), int(summary.get("added-files-size", 0))
            job.usage.bytes += size_bytes + added_bytes
            table = self.after_commit(table)
        figures = self.figures(choice, committed.summary if committed is not None else None)
        rewritten, added = figures[f"{self.files}_rewritten"], figures[f"{self.files}_added"]
        would = "would be written" if dry_run else "were written"
        job.decide(
            f"{counted(rewritten, self.called)} {would} anew as {added:,}." if rewritten else self.nothing
        )
        if choice.left_out and self.why_left_out:
            job.decide(f"{counted(choice.left_out, self.called)} stay as they are: {self.why_left_out}.")
        result: dict[str, Any] = {
            **of_commit,
            **self.converted(),
            self.files: {
                **figures,
                "bytes_rewritten": size_bytes,
                "bytes_added": added_bytes,
                "files": list(choice.paths[:PATHS_TOLD]) if dry_run else [],
            },
        }
        cleared = [] if dry_run else clear_dead_attempts(job)
        live = set(table.files.equality_deletes.paths())
        refused, head = [one for path, one in self.refused.items() if path in live], table.snapshot_id
        return outcome(job, table, self.warehouse, result, table.files, refused, head, cleared)

    @contextmanager
    def told_as_failed(self) -> Iterator[None]:
        """Raises the job's failure for an error of Java's, and MemoryError."""
        try:
            yield
        except (Py4JError, CapturedException) as error:
            raise_lack_of_memory(error)
            raise self.failure(java_message(error)) from None


def _remove(table: PinnedTable, folder: str, kept: Collection[str] = ()) -> None:
    """Deletes what was written into a folder, but for names to be kept. What stays is left to whoever
    follows."""
    with suppress(OSError):
        found = table.storage.walk(folder)
        delete_files(table.storage, [one.location for one in found if one.name not in kept])
