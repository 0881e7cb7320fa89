"""One plan of a publication, from the pinned head of the target to its commit.

staged -> read -> index | scan -> deletes -> commit. Invariants: staged data files are added as they are, and
no equality delete is; the commit happens on the very head at which rows were looked for, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from staging.history import (
    BRANCH,
    NO_SNAPSHOT,
    SKIPPED,
    SKIPPED_AT_MOST,
    SKIPPED_SEQUENCE_NUMBERS,
    SNAPSHOT_ID,
    Publication,
    StagingError,
    is_idle,
    staged_snapshots,
)
from worker.attempt.job import Job
from worker.attempt.outcome import Unconvertible
from worker.attempt.pinned_table import PinnedTable
from worker.deletes.commit import check_overtaken, commit_deletes, head_of
from worker.deletes.existing import UnreadableDeleteFileError
from worker.deletes.merge import Blocked
from worker.deletes.stage import LOST_TYPE, partitions_without_type
from worker.deletes.write import WrittenDeletes
from worker.lookup.deviations import Deviation
from worker.lookup.index_lookup import ANY_AGE
from worker.lookup.positions import union
from worker.process.errors import JobError, Reason
from worker.publication.ancestry import last_publication
from worker.publication.kept_parts import Found, KeptParts
from worker.publication.other_specs import LaterFiles, later_files
from worker.publication.staged import Staged, live_already
from worker.table.avro_files import UnsupportedTableError
from worker.table.commit import CommittedSnapshot, told_key_sets
from worker.table.commit_errors import CommitConflictError
from worker.table.files import DataFile, DataFiles, DeleteFile, DeleteFiles
from worker.table.plan import applies
from worker.table.row_delta import layout_of_new_rows

# Counts in a job's result, and the snapshot properties that keep them for an attempt that finds the commit.
SUMMARY = {
    name: f"icestream.{name.replace('_', '-')}"
    for name in (
        "staged_snapshots",
        "rows_added",
        "rows_deleted",
        "equality_deletes_resolved",
        "data_files_added",
        "data_files_touched",
        "delete_files_added",
        "bytes_written",
    )
} | {"delete_files_removed": "icestream.delete-files-merged"}


@dataclass(frozen=True, slots=True)
class Part:
    """What a plan came to: the staged snapshots that it publishes, and the deletes that it wrote for them.

    superseded: rows of the staged data files that later staged deletes delete. proven_id: the head of the
    staging branch, where nothing waits, and not the branches' snapshots alone say so, or it is to be renewed.
    """

    staged: Staged
    deletes: WrittenDeletes = field(default_factory=WrittenDeletes)
    superseded: int = 0
    explanations: list[dict[str, Any]] = field(default_factory=list)
    deviations: list[Deviation] = field(default_factory=list)
    proven_id: int | None = None

    def publication(self, target: PinnedTable) -> Publication | None:
        """target: has all that, as soon as the part is committed. None if nothing is published or proven."""
        last_id = self.staged.snapshots[-1].snapshot_id if self.staged.snapshots else self.proven_id
        if last_id is None:
            return None
        head = target.snapshot
        if head is None:
            return Publication(last_id, NO_SNAPSHOT, 0)
        assert head.sequence_number is not None
        return Publication(last_id, head.snapshot_id, head.sequence_number)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit on the target, not even that a snapshot is skipped."""
        added = self.deletes.added or len(self.staged.files.data_files)
        return not added and self.staged.skipped is None

    @property
    def summary(self) -> dict[str, str]:
        """Snapshot properties that tell what the commit did; see `SUMMARY`."""
        files = self.staged.files
        counts = {
            "staged_snapshots": len(self.staged.snapshots) - (self.staged.skipped is not None),
            "rows_added": files.data_files.record_count - self.superseded,
            "rows_deleted": self.deletes.rows_deleted - self.superseded,
            "equality_deletes_resolved": sum(one.record_count for one in files.equality_deletes),
            "data_files_added": len(files.data_files),
            "data_files_touched": len(self.deletes.data_files),
            "delete_files_added": len(self.deletes.added),
            "delete_files_removed": len(self.deletes.removed),
            "bytes_written": self.deletes.bytes_written,
        }
        told = {SUMMARY[name]: str(count) for name, count in counts.items()}
        told |= told_key_sets(files.equality_deletes)
        if self.staged.skipped is not None:
            told[SKIPPED] = str(self.staged.skipped.snapshot_id)
        if left_out := sorted(self.staged.left_out)[-SKIPPED_AT_MOST:]:
            told[SKIPPED_SEQUENCE_NUMBERS] = ",".join(map(str, left_out))
        return told


class PublicationError(JobError):
    """What is staged can't be told, as the table's snapshots are; nothing was published."""

    def __init__(self, error: StagingError) -> None:
        super().__init__(error.detail, error.remedy)
        self.code, self.title = error.code, error.title


class NothingToSkipError(JobError):
    """What can be published is published, whoever asks to skip it."""

    code = "nothing_to_skip"
    title = "This snapshot is not skipped"
    remedy = "Publish without `skip`; where publication stops, name the snapshot at which it does."


class _UnpublishableError(Exception):
    """The staged snapshot of a sequence number can't be published.

    may_be_later: it, or one after it; none before it.
    """

    def __init__(self, sequence_number: int, why: Reason, *, may_be_later: bool = False) -> None:
        super().__init__(why.reason)
        self.sequence_number = sequence_number
        self.why = why
        self.may_be_later = may_be_later


class Plan:
    """One plan, from the pinned head of the target to its commit."""

    def __init__(self, job: Job, table: PinnedTable, kept: KeptParts) -> None:
        """kept: by this attempt; what this one finds joins it."""
        self.job = job
        self.table = table
        self.dry_run = job.assignment.job.dry_run
        self._source = job.assignment.job.publish.source
        self._kept = kept

    def resolve(self) -> Part:
        """Finds the rows that the staged deletes delete and writes the delete files that they become.

        Raises PublicationError, NothingToSkipError, CommitConflictError when the table has changed since,
        or as `read_files`.
        """
        metadata, job = self.table.metadata, self.job
        if metadata.format_version < 2:
            raise UnsupportedTableError("tables of format version 1 have no row-level deletes")
        with job.stage("plan"):
            asked = job.assignment.job.publish
            after, is_asked = asked.after, asked.renew or asked.after is not None

            def since(publication: Publication, is_last: bool) -> Publication | Literal[False] | None:
                nonlocal is_asked
                is_asked = True
                return last_publication(self.table, self._source, publication, is_last)

            try:
                waiting = staged_snapshots(metadata, self._source, self.table.branch, after, since)
            except StagingError as error:
                raise PublicationError(error) from error
            skip = job.assignment.job.publish.skip
            changes = (one.snapshot_id for one in waiting if one.snapshot_id == skip or not is_idle(one))
            first = next(changes, "none")
            if skip is not None and first != skip:
                raise NothingToSkipError(
                    f"snapshot {skip} is not the first that waits on branch {self._source}, but {first}"
                )
            staged = self._kept.staged(self.table, waiting)
        while staged.snapshots:
            try:
                part = self._resolved(staged)
                if skip is not None and part.staged.skipped is None:
                    raise NothingToSkipError(f"nothing keeps snapshot {skip} from being published")
                return part
            except CommitConflictError:
                self._kept.forget()  # of a file that is gone nothing is known
                raise
            except _UnpublishableError as error:
                self._kept.forget()
                if error.may_be_later and (up_to := staged.up_to(error.sequence_number)) is not None:
                    staged = up_to
                else:
                    staged = staged.before(error.sequence_number, error.why)
        head_id = metadata.refs[self._source].snapshot_id
        return Part(staged, proven_id=head_id if is_asked and not waiting else None)

    def commit(self, part: Part) -> CommittedSnapshot | None:
        """None if there is nothing to commit, or in a dry run."""
        if self.dry_run or part.is_empty:
            return None
        table, last, kept = self.table, part.staged.snapshots[-1], self._kept
        found = kept.found(part.staged, table)
        summary = {
            **part.summary,
            BRANCH: self._source,
            SNAPSHOT_ID: str(last.snapshot_id),
        }

        def announce() -> None:
            if part.deletes.added:
                found.deletes.announce(only_on=head_of(table))
            else:
                # A policy may name another branch meanwhile, which an answer tells.
                self.job.reporter.confirm_lease(anew=True)

        with kept.fate.decided(announce) as confirm_lease, self.job.stage("commit"):
            return commit_deletes(
                self.job,
                table,
                part.deletes,
                summary,
                confirm_lease,
                rows=found.java_data_files(table.java_table),
                layout=layout_of_new_rows(table.metadata),
                staged=(self._source, last.snapshot_id),
            )

    def _resolved(self, staged: Staged) -> Part:
        self._check_data_files(staged)
        merged = _merged(self.table, staged)
        found = self._kept.found(staged, merged.table)
        self._refuse(merged, found.find(merged.table, merged.equality_deletes))
        later = list(later_files(self.table, self._source, merged.equality_deletes, merged.offset))
        for files in later:
            refused, number = found.find_in_later(files, self.table)
            self._refuse(merged, refused)
            if number is not None:
                raise _UnpublishableError(number - merged.offset, _OTHER_SPEC)
        if merged.position_deletes:
            with self.job.stage("read"):
                self._take_named(merged, found)
        with self.job.stage("deletes"):
            written = found.write(merged.table)
        if written.blocked:
            self._refuse_blocked(merged, written.blocked, later, missing=written.missing)
        if not self.dry_run:
            self.job.usage.bytes += written.bytes_written
        new = {file for one in found.positions for file in one.data_files() if merged.is_staged(file)}
        superseded = sum(len(union(found.positions, file)) for file in new)
        return Part(staged, written, superseded, found.explanations, found.deviations)

    def _check_data_files(self, staged: Staged) -> None:
        """Whether each can be added: it is there once, and not on the target yet."""
        files = staged.files.data_files
        paths = list(files.paths())
        on_target = {file.path for file in self.table.files.data_files.with_paths(set(paths))}
        untyped = partitions_without_type(self.table.metadata, files)
        seen: set[str] = set()
        for file in sorted(files, key=lambda one: one.data_sequence_number):
            if file.path in on_target or file.path in seen:
                where = f"branch {self.table.branch}" if file.path in on_target else "the staging branch"
                told = f"its data file {file.path} is live on {where} already: its rows would come twice"
                raise _UnpublishableError(file.data_sequence_number, live_already(told))
            if file.partition in untyped:
                raise _UnpublishableError(file.data_sequence_number, LOST_TYPE)
            seen.add(file.path)

    def _take_named(self, merged: _Merged, found: Found) -> None:
        """What the staged position deletes and deletion vectors name, in data files of either branch."""
        storage = merged.table.storage
        try:
            named = found.named_by(storage, merged.position_deletes)
            files = list(merged.table.files.data_files.with_paths(set(named)))
            for path in named.keys() - {file.path for file in files}:
                told = (
                    f"{named[path].path} deletes rows of {path} by their positions, and branch"
                    f" {self.table.branch} has no such data file (any more)"
                )
                why = Reason("staged_position_delete", told, _BY_KEY)
                raise _UnpublishableError(named[path].data_sequence_number - merged.offset, why)
            found.take_named(storage, files, merged.position_deletes)
        except UnreadableDeleteFileError as error:
            if error.missing:
                check_overtaken(self.table)
            number = error.delete_file.data_sequence_number - merged.offset
            raise _UnpublishableError(number, _unreadable(str(error))) from error

    def _refuse(self, merged: _Merged, refused: Sequence[Unconvertible]) -> None:
        if not refused:
            return
        if any(one.code == "missing_file" for one in refused):
            check_overtaken(self.table)
        by_path = {one.file_path: one for one in refused}
        first = min(
            (one for one in merged.equality_deletes if one.path in by_path),
            key=lambda one: one.data_sequence_number,
        )
        one = by_path[first.path]
        told = f"its equality delete {one.file_path} can't be resolved: {one.reason}"
        why = Reason(one.code, told, one.remedy)
        raise _UnpublishableError(first.data_sequence_number - merged.offset, why)

    def _refuse_blocked(
        self, merged: _Merged, blocked: Sequence[Blocked], later: Sequence[LaterFiles], *, missing: bool
    ) -> None:
        """A data file for which no new deletes can be written stops the first snapshot that deletes there.

        Which of those whose deletes apply to it have a key of its rows is not known.
        """
        if missing:
            check_overtaken(self.table)
        global_spec_ids = self.table.files.global_spec_ids
        numbers = {
            delete.data_sequence_number: one
            for one in blocked
            for delete in merged.equality_deletes
            if applies(delete, one.data_file, global_spec_ids)
        } | {
            delete.data_sequence_number: one
            for one in blocked
            for delete in merged.position_deletes
            if delete.partition == one.data_file.partition
        }
        for files in later:
            for one in (one for one in blocked if one.data_file in files.data_files):
                numbers |= {delete.data_sequence_number: one for delete in files.exact}
        first = min(numbers)
        code, told, remedy = numbers[first].why
        reason = f"it deletes rows of {numbers[first].data_file.path}, and {told}"
        why = Reason(code, reason, remedy)
        raise _UnpublishableError(first - merged.offset, why, may_be_later=True)


@dataclass(frozen=True, slots=True)
class _Merged:
    """The target as if the staged snapshots were committed to it in their order, after all that it has.

    offset: by which the sequence numbers of staged files are higher than on their branch, the same at every
    head. Numbers count through all branches of a table: that of a staged delete may be lower than those of
    rows that it deletes.
    """

    table: PinnedTable
    equality_deletes: tuple[DeleteFile, ...]
    position_deletes: tuple[DeleteFile, ...]
    offset: int

    def is_staged(self, file: DataFile) -> bool:
        return file.data_sequence_number > self.offset


def _merged(table: PinnedTable, staged: Staged) -> _Merged:
    offset = ANY_AGE

    def later(files: Iterable[DeleteFile]) -> tuple[DeleteFile, ...]:
        return tuple(replace(file, data_sequence_number=file.data_sequence_number + offset) for file in files)

    added = DataFiles.of(
        replace(file, data_sequence_number=file.data_sequence_number + offset)
        for file in staged.files.data_files
    )
    equality_deletes = later(staged.files.equality_deletes)
    files = replace(
        table.files,
        data_files=DataFiles.joined([table.files.data_files, added]),
        delete_files=DeleteFiles.joined([table.files.position_deletes, DeleteFiles.of(equality_deletes)]),
    )
    position_deletes = later(staged.files.position_deletes)
    return _Merged(replace(table, files=files), equality_deletes, position_deletes, offset)


_OTHER_SPEC = Reason(
    "staged_under_other_spec",
    "its equality deletes are confined to a partition, and have keys of rows that came to the target under"
    " another partition spec since; these keys lack a column of their own spec, so nothing tells whether the"
    " rows are of that partition",
    "Roll the target back to before these rows came, or were rewritten, under the other spec; publish, and do"
    " that again. Or roll the staging branch back, and write under the new spec. Let keys have all columns by"
    " which the table is partitioned.",
)
_BY_KEY = (
    "Roll the staging branch back to the snapshot before it, and delete these rows by their key, or on the"
    " target itself."
)


def _unreadable(told: str) -> Reason:
    return Reason(
        "unreadable_position_deletes",
        f"its position deletes can't be read: {told}",
        "Restore the delete file, or roll the staging branch back to the snapshot before it.",
    )
