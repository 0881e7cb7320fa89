"""What the snapshots of a staging branch added, and which of them can be published.

Invariant: a snapshot is published as a whole, and nothing of the branch after one that can't be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from py4j.java_gateway import JavaObject
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from worker.keys.key_set import KeyColumnError
from worker.keys.schema_fields import resolve_key_set
from worker.process.errors import Reason
from worker.process.slots import Threads
from worker.table.catalogs import jvm_of
from worker.table.commit_errors import prepared
from worker.table.files import NO_FILES, DataFile, DeleteFile, FileContent, SnapshotFiles
from worker.table.manifests import (
    Manifest,
    read_manifest,
    read_manifest_list,
    read_removed,
    read_snapshot_files,
)
from worker.table.row_delta import java_list, java_object

_READ_THREADS = 8
_SOURCE = Path(__file__).with_name("StagedFiles.java")
_OPERATIONS = (Operation.APPEND, Operation.OVERWRITE, Operation.DELETE)


@dataclass(frozen=True, slots=True)
class Stop:
    """The first staged snapshot that can't be published, and why."""

    snapshot_id: int
    why: Reason


@dataclass(frozen=True, slots=True)
class Staged:
    """What can be published in one commit: the oldest snapshots that wait, and what they added.

    files: with the sequence numbers that they have on the branch. stop: what keeps later ones back.
    """

    snapshots: Sequence[Snapshot]
    files: SnapshotFiles
    stop: Stop | None = None

    @classmethod
    def read(cls, metadata: TableMetadata, snapshots: Sequence[Snapshot], io: FileIO) -> Staged:
        """snapshots: that wait, the oldest first. Raises as `read_snapshot_files`."""
        specs = {spec.spec_id: spec for spec in metadata.partition_specs}
        with Threads(_READ_THREADS) as threads:
            reasons = threads.map(lambda snapshot: _obstacle(snapshot, io, specs), snapshots)
            for at, (snapshot, reason) in enumerate(zip(snapshots, reasons, strict=True)):
                if reason is not None:
                    return cls._of(metadata, snapshots[:at], io, Stop(snapshot.snapshot_id, reason))
        return cls._of(metadata, snapshots, io, None)

    @classmethod
    def _of(
        cls, metadata: TableMetadata, snapshots: Sequence[Snapshot], io: FileIO, stop: Stop | None
    ) -> Staged:
        if not snapshots:
            return cls((), NO_FILES, stop)
        since = _number(snapshots[0])
        files = read_snapshot_files(metadata, snapshots[-1], io, since=since)
        staged = cls(snapshots, files, stop)._only([_number(one) for one in snapshots])
        for deletes in staged.files.equality_deletes:
            try:
                resolve_key_set(metadata, deletes.equality_ids)
            except KeyColumnError as error:
                staged = staged.before(deletes.data_sequence_number, error.reason)
        return staged

    def before(self, sequence_number: int, why: Reason) -> Staged:
        """Without the snapshot of that number and those after it."""
        kept = [one for one in self.snapshots if _number(one) < sequence_number]
        if len(kept) == len(self.snapshots):
            return self
        stopped = Stop(self.snapshots[len(kept)].snapshot_id, why)
        return replace(self, snapshots=kept, stop=stopped)._only([_number(one) for one in kept])

    def _only(self, numbers: Sequence[int]) -> Staged:
        """With the files of some snapshots alone, which their numbers tell: no other branch has them."""
        of_data = self.files.data_files.data_sequence_numbers
        chosen = self.files.data_files.where(np.isin(of_data, np.array(numbers, np.int64)))
        known = set(numbers)
        deletes = tuple(one for one in self.files.delete_files if one.data_sequence_number in known)
        return replace(self, files=replace(self.files, data_files=chosen, delete_files=deletes))

    def java_data_files(self, java_table: JavaObject) -> tuple[JavaObject, ...]:
        """The data files with all that their manifests say of them. Raises CommitError."""
        if not len(self.files.data_files):
            return ()
        paths = [path for piece in self.files.data_files.path_pieces() for path in piece.to_pylist()]
        last, since = str(self.snapshots[-1].snapshot_id), str(_number(self.snapshots[0]))
        with prepared():
            named = java_list(jvm_of(java_table), paths)
            found = java_object(java_table, _SOURCE, "StagedFiles", java_table, last, since, named)
            return tuple(found.files())


def _number(snapshot: Snapshot) -> int:
    assert snapshot.sequence_number is not None  # format version 1 has none, and is refused before
    return snapshot.sequence_number


def _obstacle(snapshot: Snapshot, io: FileIO, specs: dict[int, PartitionSpec]) -> Reason | None:
    """Why a snapshot can't be published, as far as its manifests say: it may add files, and nothing else."""
    operation = snapshot.summary.operation if snapshot.summary is not None else None
    own = [
        one
        for one in read_manifest_list(io, snapshot.manifest_list)
        if one.added_snapshot_id == snapshot.snapshot_id
    ]
    removed = [file for one in own if one.removed != 0 for file in read_removed(io, one, specs)]
    added = [file for one in own for file in _added(io, one, specs, snapshot)] if removed else []
    left = [file for file in removed if not _is_superseded(file, added)]
    if left:
        return Reason(
            "staged_removal",
            f"it removes {left[0].path}: it rewrites, overwrites or deletes files of the branch (operation"
            f" {operation.value if operation else 'unknown'})",
            _REMEDY,
        )
    if operation not in _OPERATIONS:
        name = operation.value if operation else "unknown"
        return Reason("staged_operation", f"its operation is {name}", _REMEDY)
    adds_deletes = any(one.content is ManifestContent.DELETES and one.added != 0 for one in own)
    if operation is Operation.OVERWRITE and not adds_deletes:
        return Reason(
            "staged_overwrite",
            "it overwrites partitions of the branch, which says nothing of the target's rows",
            _REMEDY,
        )
    return None


_REMEDY = (
    "Roll the branch back to the snapshot before it, and write its rows again as appends and row-level"
    " deletes. Keep compaction and conversion off the branch."
)


def _added(
    io: FileIO, manifest: Manifest, specs: dict[int, PartitionSpec], snapshot: Snapshot
) -> Iterator[DataFile | DeleteFile]:
    data_files, delete_files = read_manifest(io, manifest, specs)
    yield from (one for one in data_files if one.data_sequence_number == snapshot.sequence_number)
    yield from (one for one in delete_files if one.added_snapshot_id == snapshot.snapshot_id)


def _is_superseded(file: DataFile | DeleteFile, added: Sequence[DataFile | DeleteFile]) -> bool:
    """Whether position deletes of a data file gave way to ones that include them."""
    return (
        isinstance(file, DeleteFile)
        and file.content is FileContent.POSITION_DELETES
        and file.referenced_data_file is not None
        and any(
            isinstance(one, DeleteFile)
            and one.content is FileContent.POSITION_DELETES
            and one.referenced_data_file == file.referenced_data_file
            for one in added
        )
    )
