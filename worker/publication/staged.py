"""What the snapshots of a staging branch added, and which of them can be published.

Invariant: a snapshot is published as a whole, and nothing of the branch after one that can't be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from py4j.java_gateway import JavaObject
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from staging.history import History, is_flinks
from worker.keys.key_set import KeyColumnError
from worker.keys.schema_fields import resolve_key_set
from worker.process.errors import Reason
from worker.process.slots import Threads
from worker.spark.jvm import java_object, jvm_of
from worker.table.avro_files import UnsupportedTableError
from worker.table.commit_errors import prepared
from worker.table.files import (
    NO_FILES,
    DataFile,
    DataFiles,
    DeleteFile,
    DeleteFiles,
    FileContent,
    SnapshotFiles,
)
from worker.table.manifests import (
    Manifest,
    MissingMetadataError,
    read_manifest,
    read_manifest_list,
    read_removed,
)
from worker.table.row_delta import java_list

_READ_THREADS = 8
_SOURCE = Path(__file__).with_name("StagedFiles.java")
_OPERATIONS = (Operation.APPEND, Operation.OVERWRITE, Operation.DELETE)


@dataclass(frozen=True, slots=True)
class Stop:
    """A staged snapshot that can't be published, and why."""

    snapshot_id: int
    why: Reason

    @property
    def remedy(self) -> str:
        return (
            f"{self.why.remedy} Or publish once with `skip`, {self.snapshot_id}: then the target gets nothing"
            " that this snapshot adds, and keeps what it deletes."
        )


@dataclass(frozen=True, slots=True)
class Staged:
    """What can be published in one commit: the oldest snapshots that wait, and what they added.

    files: with the sequence numbers that they have on the branch. stop: what keeps later ones back.
    skip: the one that is left out if it can't be published. skipped: that it was, and why. left_out: sequence
    numbers of this one, and of earlier ones that the branch still shows.
    """

    snapshots: Sequence[Snapshot]
    added: Sequence[Added]
    files: SnapshotFiles
    stop: Stop | None = None
    skip: int | None = None
    skipped: Stop | None = None
    left_out: Set[int] = frozenset()

    @classmethod
    def read(
        cls,
        metadata: TableMetadata,
        snapshots: Sequence[Snapshot],
        target: str,
        io: FileIO,
        read_before: ReadBefore,
        skip: int | None = None,
        left_out: Set[int] = frozenset(),
    ) -> Staged:
        """snapshots: that wait, the oldest first. read_before: what is read now joins it. left_out: before.

        Raises as `read_snapshot_files`.
        """
        specs = metadata.specs()
        known: list[Added] = []
        stop = skipped = None
        with Threads(_READ_THREADS) as threads:
            read = threads.map(
                lambda one: read_before.added.get(one.snapshot_id) or Added.read(one, io, specs), snapshots
            )
            for snapshot, added in zip(snapshots, read, strict=True):
                read_before.added[snapshot.snapshot_id] = added
                why = added.why or _unresolvable(metadata, added)
                stopped = Stop(snapshot.snapshot_id, why) if why is not None else None
                if stopped is not None and snapshot.snapshot_id != skip:
                    stop = stopped
                    break
                if stopped is not None:
                    skipped, left_out, added = stopped, left_out | {_number(snapshot)}, _NOTHING
                known.append(added)
        staged = cls(snapshots, known, NO_FILES, stop, skip, skipped, left_out)._first(len(known))
        return staged.without_files_of(metadata, target, io, read_before)

    def without_files_of(
        self, metadata: TableMetadata, target: str, io: FileIO, read_before: ReadBefore
    ) -> Staged:
        """Without the first snapshot with a file that the target had since, and those after it; or without
        the one to be skipped.

        Compaction may have taken the file away again, and its rows are there all the same.
        """
        files = list(self.files.data_files)
        if not files:
            return self
        specs = metadata.specs()
        newer = [
            one for one in History.of(metadata, target).snapshots if _number(one) > _number(self.snapshots[0])
        ]
        paths, named = {file.path for file in files}, read_before.named
        with Threads(_READ_THREADS) as threads:
            unread = [one for one in newer if one.snapshot_id not in named]
            read = threads.map(lambda one: _named(one, io, specs, paths), unread)
            named.update(zip([one.snapshot_id for one in unread], read, strict=True))
        last = {path: one for one in newer[::-1] for path in named[one.snapshot_id]}
        for file in sorted(files, key=lambda one: one.data_sequence_number):
            if file.path in last and _number(last[file.path]) > file.data_sequence_number:
                told = (
                    f"its data file {file.path} came to branch {target} otherwise (snapshot"
                    f" {last[file.path].snapshot_id} names it): its rows would come twice"
                )
                left = self.before(file.data_sequence_number, live_already(told))
                return left.without_files_of(metadata, target, io, read_before)
        return self

    def before(self, sequence_number: int, why: Reason) -> Staged:
        """Without the snapshot of that number, and those after it unless it is the one to be skipped."""
        return self._without(sum(_number(one) < sequence_number for one in self.snapshots), why)

    def up_to(self, sequence_number: int) -> Staged | None:
        """With the snapshot of that number as the last; None if it is. Nothing stops those after it."""
        count = sum(_number(one) <= sequence_number for one in self.snapshots)
        return replace(self, stop=None)._first(count) if count < len(self.snapshots) else None

    def _without(self, at: int, why: Reason) -> Staged:
        snapshot = self.snapshots[at]
        stop = Stop(snapshot.snapshot_id, why)
        if snapshot.snapshot_id != self.skip:
            return replace(self, stop=stop)._first(at)
        added = [*self.added[:at], _NOTHING, *self.added[at + 1 :]]
        left_out = self.left_out | {_number(snapshot)}
        return replace(self, added=added, skipped=stop, left_out=left_out)._first(len(added))

    def _first(self, count: int) -> Staged:
        """So many of the snapshots, and what these come to; fewer, if one has what a skipped one deletes."""
        added = self.added[:count]
        for at, part in enumerate(added):
            if not self.left_out.isdisjoint(part.superseded.values()):
                return self._without(at, _ON_SKIPPED)
        superseded = {one for part in added for one in part.superseded}
        all_deletes = [one for part in added for one in part.delete_files]
        deletes = DeleteFiles.of(one for one in all_deletes if _identity(one) not in superseded)
        data_files = DataFiles.joined(part.data_files for part in added)
        files = replace(self.files, data_files=data_files, delete_files=deletes)
        return replace(self, snapshots=self.snapshots[:count], added=added, files=files)

    def java_data_files(self, java_table: JavaObject) -> JavaObject:
        """Java's list of the data files, with all that their manifests say of them. Raises CommitError."""
        paths = list(self.files.data_files.paths())
        if not paths:
            return ()
        with prepared():
            jvm = jvm_of(java_table)
            since, shown_by = str(_number(self.snapshots[0])), java_list(jvm, self._shown_by())
            unread = str(self.skipped.snapshot_id) if self.skipped is not None else ""
            of = java_table, since, shown_by, unread, java_list(jvm, paths)
            return java_object(java_table, _SOURCE, "StagedFiles", *of).files()

    def _shown_by(self) -> list[str]:
        """Snapshots that show all of the data files: the last, and each after which some left the branch."""
        followers = [one.parent_snapshot_id for one in self.snapshots[1:]]
        ids = [one.snapshot_id for one in self.snapshots]
        return [str(id_) for id_, follows in zip(ids, [*followers, None], strict=True) if follows != id_]


@dataclass(frozen=True, slots=True)
class Added:
    """What one snapshot added, from its own manifests: later ones may show less.

    Iceberg takes delete files away that are older than all data files of the branch: they delete nothing
    there, but perhaps on the target.

    superseded: delete files whose positions others of the snapshot hold, with their sequence numbers.
    why: it can't be published.
    """

    data_files: DataFiles
    delete_files: Sequence[DeleteFile]
    superseded: Mapping[tuple[str, int | None], int]
    why: Reason | None

    @classmethod
    def read(cls, snapshot: Snapshot, io: FileIO, specs: Mapping[int, PartitionSpec]) -> Added:
        """Raises OSError where a retry can help."""
        if not _number(snapshot):
            return replace(_NOTHING, why=_WITHOUT_NUMBER)
        try:
            return cls._of(snapshot, io, specs)
        except FileNotFoundError as error:
            code, told = MissingMetadataError.code, str(error)
        except UnsupportedTableError as error:
            code, told = error.code, str(error)
        return replace(_NOTHING, why=Reason(code, f"it can't be read: {told}", _UNREADABLE))

    @classmethod
    def _of(cls, snapshot: Snapshot, io: FileIO, specs: Mapping[int, PartitionSpec]) -> Added:
        """Raises as `read_snapshot_files`."""
        manifests = read_manifest_list(io, snapshot)
        own = [one for one in manifests if one.added_snapshot_id == snapshot.snapshot_id]
        read = [read_manifest(io, one, specs) for one in own if one.added != 0]
        removed = [file for one in own if one.removed != 0 for file in read_removed(io, one, specs)]
        data_files = DataFiles.joined(files for files, _ in read)
        data_files = data_files.where(data_files.data_sequence_numbers == _number(snapshot))
        deletes = [one for _, files in read for one in files if one.added_snapshot_id == snapshot.snapshot_id]
        of_data = [one.min_sequence_number for one in manifests if _is_of_data(one) and one.entries != 0]
        oldest = min(of_data, default=_number(snapshot))
        superseded = {
            _identity(one): one.data_sequence_number for one in removed if _is_superseded(one, deletes)
        }
        left = [
            one
            for one in removed
            if _identity(one) not in superseded
            and not (isinstance(one, DeleteFile) and one.data_sequence_number < oldest)
        ]
        why = _obstacle(snapshot, left, adds_rows=bool(len(data_files)), adds_deletes=bool(deletes))
        return cls(data_files, deletes, superseded, why)


_NOTHING = Added(NO_FILES.data_files, (), {}, None)


@dataclass(frozen=True, slots=True)
class ReadBefore:
    """What earlier plans of a job have read of snapshots, by their ids: they never change.

    named: of the target's, the paths of files that were staged by then. What is staged later is younger than
    these snapshots, so they say nothing of it.
    """

    added: dict[int, Added] = field(default_factory=dict)
    named: dict[int, Set[str]] = field(default_factory=dict)


def _named(snapshot: Snapshot, io: FileIO, specs: Mapping[int, PartitionSpec], paths: Set[str]) -> Set[str]:
    """Which of some data files a snapshot added or removed. Raises as `read_snapshot_files`."""
    found: set[str] = set()
    try:
        for manifest in read_manifest_list(io, snapshot):
            if manifest.added_snapshot_id != snapshot.snapshot_id or not _is_of_data(manifest):
                continue
            if manifest.added != 0:
                found.update(one.path for one in read_manifest(io, manifest, specs)[0].with_paths(paths))
            if manifest.removed != 0:
                found.update(paths & {one.path for one in read_removed(io, manifest, specs)})
    except FileNotFoundError as error:
        raise MissingMetadataError(str(error)) from error
    return found


def live_already(told: str) -> Reason:
    return Reason("data_file_live_already", told, _LIVE_ALREADY)


def _obstacle(
    snapshot: Snapshot, removed: Sequence[DataFile | DeleteFile], *, adds_rows: bool, adds_deletes: bool
) -> Reason | None:
    """Why a snapshot can't be published: it may add files, and do nothing else."""
    operation = snapshot.summary.operation if snapshot.summary is not None else None
    name = operation.value if operation else "unknown"
    if removed:
        told = f"it removes {removed[0].path} from the branch (operation {name})"
        return Reason("staged_removal", told, _REMEDY)
    if operation not in _OPERATIONS:
        return Reason("staged_operation", f"its operation is {name}", _REMEDY)
    adds_nothing = not adds_rows and not adds_deletes
    if adds_nothing and is_flinks(snapshot):  # a checkpoint at which there was nothing to commit
        return None
    if operation is not Operation.APPEND and adds_nothing:
        told = (
            f"it should delete or change rows (operation {name}) and found none: the branch shows what waits"
            " there, and not what the target has"
        )
        return Reason("staged_statement", told, _ON_TARGET)
    if operation is Operation.OVERWRITE and not adds_deletes:
        told = "it overwrites partitions of the branch, which says nothing of the target's rows"
        return Reason("staged_overwrite", told, _REMEDY)
    return None


def _unresolvable(metadata: TableMetadata, added: Added) -> Reason | None:
    for deletes in added.delete_files:
        if deletes.content is FileContent.EQUALITY_DELETES:
            try:
                resolve_key_set(metadata, deletes.equality_ids)
            except KeyColumnError as error:
                return error.reason
    return None


def _number(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0  # those of format version 1 have none


def _is_of_data(manifest: Manifest) -> bool:
    return manifest.content is ManifestContent.DATA


def _identity(file: DataFile | DeleteFile) -> tuple[str, int | None]:
    """Several vectors may share a path."""
    return file.path, file.content_offset if isinstance(file, DeleteFile) else None


_REMEDY = (
    "Roll the branch back to the snapshot before it, and write its rows again as appends and row-level"
    " deletes. Keep compaction and conversion off the branch."
)


_ON_TARGET = (
    "Roll the branch back to the snapshot before it, and run the statement (DELETE, UPDATE, MERGE) on the"
    " target; or write equality deletes of the rows' keys to the branch."
)
_UNREADABLE = "Restore that file, or roll the branch back to the snapshot before it."
_WITHOUT_NUMBER = Reason(
    "staged_in_format_1",
    "it was committed in format version 1, where no sequence number tells its files from older ones",
    "Roll the branch back to the snapshot before it, and write its rows again.",
)
_ON_SKIPPED = Reason(
    "staged_on_skipped",
    "its deletes by position have taken the place of some of a snapshot that was skipped, and include them",
    "Roll the branch back to the snapshot before it, and delete its rows by their key.",
)
_LIVE_ALREADY = (
    "Roll the target back to before that file was added there by other means; or replace the staging branch"
    " by one that starts at the target's head."
)


def _is_superseded(file: DataFile | DeleteFile, added: Sequence[DeleteFile]) -> bool:
    """Whether position deletes of a data file gave way to ones that include them."""
    of_file = {one.referenced_data_file for one in added if one.content is FileContent.POSITION_DELETES}
    return (
        isinstance(file, DeleteFile)
        and file.content is FileContent.POSITION_DELETES
        and file.referenced_data_file in of_file - {None}
    )
