"""One snapshot of a table, and what answers need of it: read once, and shared by all questions.

Invariant: all of it follows from the location of the table's metadata, so that any number of processes
answer alike.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyroaring import BitMap64

from worker.deletes.existing import ExistingDeletes, UnreadableDeleteFileError, existing_deletes
from worker.io.cache import Cache
from worker.io.sorting import Int64Array
from worker.io.storage import Storage
from worker.keys.key_set import KeySet
from worker.keys.read import KeyReader, key_reader
from worker.keys.schema_fields import resolve_key_set
from worker.lookup.index_lookup import GLOBAL, DeleteKeys
from worker.process.memory import holding
from worker.query.errors import NotCoveredError, UnknownSnapshotError, UnreadableError, told_as_unreadable
from worker.table.files import (
    NO_FILES,
    DataFile,
    DeleteFile,
    DeleteFiles,
    FileContent,
    PartitionKey,
    SnapshotFiles,
)
from worker.table.manifests import read_snapshot_files

_MATCHER_BYTES = 80  # of each key, once it was looked for
_NO_DELETES = -2  # the number of a partition that no delete is of
_KEY_BYTES = 25 + _MATCHER_BYTES  # of each key, beside its columns
_PARTITION_BYTES = 200
_PLACES_BYTES = 16  # of a delete file: among those of its kind, and among those that name a data file
_SNAPSHOT_BYTES = 10_000  # beside its files
_POSITION_BYTES = 20  # of a position delete, with the number of its path
PENDING_BYTES = 300 * 1024**2
"""Of the equality deletes of one key set: more would not be kept, but read for each question."""


class TableSnapshot:
    """A snapshot (None: of an empty table) with its live files, and the deletes that hit them."""

    def __init__(
        self,
        storage: Storage,
        metadata: TableMetadata,
        snapshot: Snapshot | None,
        cache: Cache,
        *,
        is_head: bool = False,
        files: SnapshotFiles | None = None,
    ) -> None:
        """Reads the manifests, unless `files` has what they say. cache: what follows from delete files.
        is_head: it is asked for as a branch.

        Raises as `read_snapshot_files`.
        """
        self.storage = storage
        self.metadata = metadata
        self.snapshot = snapshot
        self.is_head = is_head
        self.cache = cache
        if files is None:
            files = NO_FILES if snapshot is None else read_snapshot_files(metadata, snapshot, storage.io)
        self.files = files
        self._named = self.files.delete_files.places_of_named()
        positions, pending = self.files.position_deletes, self.files.equality_deletes
        self._in_partitions = _ByPartition(positions.where(~positions.are_file_scoped))
        self._pending = [
            (field_ids, deletes, _digest(metadata, field_ids, deletes))
            for field_ids, deletes in _by_key_set(pending)
        ]

    @property
    def size_bytes(self) -> int:
        """In memory, about."""
        files = self.files
        places = _PLACES_BYTES * len(files.delete_files)
        return files.data_files.held_bytes + files.delete_files.held_bytes + places + _SNAPSHOT_BYTES

    @property
    def schema(self) -> Schema:
        """The table's for a branch; for time travel, by id or tag, the one that the snapshot was written
        with."""
        if self.is_head:
            return self.metadata.schema()
        known = {schema.schema_id: schema for schema in self.metadata.schemas}
        written = None if self.snapshot is None else self.snapshot.schema_id
        return known.get(
            self.metadata.current_schema_id if written is None else written, self.metadata.schema()
        )

    @property
    def pending(self) -> list[PendingKeys]:
        """The equality deletes of each key set, as far as any are live. Raises UnreadableError."""
        return [
            self.cache.get(
                ("pending", self.storage, digest),
                partial(PendingKeys.read, self, field_ids, deletes),
                lambda pending: pending.size_bytes,
            )
            for field_ids, deletes, digest in self._pending
        ]

    def skipped(self, files: Iterable[DataFile]) -> list[tuple[BitMap64, bool] | None]:
        """Of each data file the positions that readers skip by position deletes, and whether it is a deletion
        vector that says so. Raises UnreadableError, or OSError (a retry can help)."""
        in_order = list(files)  # a file that one commit added twice is equal to itself
        asked = dict(zip(in_order, self.deletes_of(in_order), strict=True))
        # By the deletes themselves: the next snapshot mostly has the same.
        names = {file: ("skipped", self.storage, file, deletes) for file, deletes in asked.items() if deletes}
        known = {file: self.cache.find(name) for file, name in names.items()}
        unknown = [file for file, one in known.items() if one is None]
        if unknown:
            deletes = dict.fromkeys(delete for file in unknown for delete in asked[file])
            try:
                with holding(sum(map(_skipped_bytes, deletes))):
                    found = existing_deletes(self.storage, unknown, deletes)
            except UnreadableDeleteFileError as error:
                raise UnreadableError(str(error), "Restore the file.") from error
            for file in unknown:
                known[file] = _Skipped.of(found.get(file))
                self.cache.put(names[file], known[file], known[file].size_bytes)
        return [known[file].rows if file in known else None for file in in_order]

    def deletes_of(self, files: Sequence[DataFile]) -> list[tuple[DeleteFile, ...]]:
        """The position deletes and deletion vectors that may apply to each."""
        found: list[list[DeleteFile]] = [[] for _ in files]
        paths = pa.array([file.path for file in files], pa.large_string())
        for here, there in self._named.pairs([paths]):
            for at, delete in zip(here.tolist(), self.files.delete_files.select(there), strict=True):
                is_of_positions = delete.content is FileContent.POSITION_DELETES
                if is_of_positions and delete.referenced_data_file is not None:
                    found[at].append(delete)
        partitions = {file.partition for file in files}
        others = {partition: tuple(self._in_partitions[partition]) for partition in partitions}
        return [(*of_file, *others[file.partition]) for file, of_file in zip(files, found, strict=True)]


class _ByPartition:
    """Delete files of partitions, found by these."""

    def __init__(self, deletes: DeleteFiles) -> None:
        self._numbers: dict[PartitionKey, int] = {}
        of_kind = [self._numbers.setdefault(kind.partition, len(self._numbers)) for kind in deletes.kinds]
        numbers = np.array(of_kind, np.int64)[deletes.kind_of]
        order = np.argsort(numbers, kind="stable")
        self._deletes = deletes.select(order)
        self._starts = np.searchsorted(numbers[order], np.arange(len(self._numbers) + 1))

    def __getitem__(self, partition: PartitionKey) -> Sequence[DeleteFile]:
        """In the order in which they came."""
        if (number := self._numbers.get(partition)) is None:
            return ()
        return self._deletes[self._starts[number] : self._starts[number + 1]]


def _by_key_set(deletes: DeleteFiles) -> Iterator[tuple[tuple[int, ...], DeleteFiles]]:
    """Equality deletes by their ascending field ids, and these in order."""
    for field_ids in sorted({kind.equality_ids for kind in deletes.present_kinds()}):
        are_by = np.array([kind.equality_ids == field_ids for kind in deletes.kinds])
        yield field_ids, deletes.where(are_by[deletes.kind_of])


@dataclass(frozen=True, slots=True)
class _Skipped:
    """rows: None if no delete applies."""

    rows: tuple[BitMap64, bool] | None
    size_bytes: int

    @classmethod
    def of(cls, found: ExistingDeletes | None) -> _Skipped:
        if found is None:
            return cls(None, 0)
        size_bytes = len(found.positions.serialize())
        return cls((found.positions, found.deletion_vector is not None), size_bytes)


def _skipped_bytes(delete: DeleteFile) -> int:
    """That its positions take, while they are read."""
    if delete.is_deletion_vector:
        return 2 * (delete.content_size_bytes or 0)
    return _POSITION_BYTES * delete.record_count


@dataclass(frozen=True, slots=True)
class PendingKeys:
    """The equality deletes of one key set, and the data files that they may hit.

    numbers: a number for each partition that a delete is of. newest: the highest data sequence number of a
    delete of each; under None, of those that apply in every partition.
    """

    reader: KeyReader
    keys: DeleteKeys
    numbers: Mapping[PartitionKey, int]
    newest: Mapping[PartitionKey | None, int]

    @classmethod
    def read(
        cls, table: TableSnapshot, field_ids: Sequence[int], deletes: Sequence[DeleteFile]
    ) -> PendingKeys:
        """Raises UnreadableError, NotCoveredError for too many keys, or OSError (a retry can help)."""
        left = PENDING_BYTES - _PARTITION_BYTES * len(deletes)
        expected = _KEY_BYTES * sum(delete.record_count for delete in deletes)
        if expected > left:
            raise _too_many()
        with holding(expected):
            return cls._read(table, field_ids, deletes, left)

    @classmethod
    def _read(
        cls, table: TableSnapshot, field_ids: Sequence[int], deletes: Sequence[DeleteFile], left: int
    ) -> PendingKeys:
        numbers: dict[PartitionKey, int] = {}
        newest: dict[PartitionKey | None, int] = defaultdict(int)
        batches = []
        with told_as_unreadable("An equality delete can't be understood: "):
            key_set = resolve_key_set(table.metadata, field_ids)
            reader = key_reader(table.metadata, table.storage, key_set)
            for delete in deletes:
                is_global = delete.partition.spec_id in table.files.global_spec_ids
                number = GLOBAL if is_global else numbers.setdefault(delete.partition, len(numbers))
                scope = None if is_global else delete.partition
                newest[scope] = max(newest[scope], delete.data_sequence_number)
                # Kept is what all of them make together, and by a store what was read of small files.
                read = _keys_of(reader, delete, left)
                left -= sum(map(_held_bytes, read))
                if left < 0:
                    raise _too_many()
                batches += [(number, delete.data_sequence_number, batch) for batch in read]
        return cls(reader, DeleteKeys.of(batches, key_set.schema), numbers, newest)

    @property
    def key_set(self) -> KeySet:
        return self.reader.key_set

    def may_hit(self, file: DataFile) -> bool:
        """Whether a delete of these may apply to a row of a data file."""
        return file.data_sequence_number < max(self.newest.get(file.partition, 0), self.newest.get(None, 0))

    @property
    def size_bytes(self) -> int:
        """Of the keys, and of what is made of them to find them."""
        return (
            int(self.keys.rows.nbytes)
            + _MATCHER_BYTES * len(self.keys)
            + _PARTITION_BYTES * len(self.numbers)
        )

    def newest_delete(self, keys: pa.RecordBatch, partition: PartitionKey) -> Int64Array:
        """Of each row, the highest data sequence number that deletes its key in its partition, or else 0.

        keys: of rows of one partition, as `KeySet.schema`.
        """
        found = np.zeros(keys.num_rows, np.int64)
        rows, numbers = self.keys.find(keys, self.numbers.get(partition, _NO_DELETES))
        np.maximum.at(found, rows, numbers)
        return found


def _keys_of(reader: KeyReader, delete: DeleteFile, most_bytes: int) -> list[pa.RecordBatch]:
    """Raises NotCoveredError for more, whatever the manifest says of the file."""
    batches = []
    for batch in reader.read_delete_file(delete):
        most_bytes -= _held_bytes(batch)
        if most_bytes < 0:
            raise _too_many()
        batches.append(batch)
    return batches


def _held_bytes(keys: pa.RecordBatch) -> int:
    return int(keys.nbytes + _KEY_BYTES * keys.num_rows)


def _too_many() -> NotCoveredError:
    return NotCoveredError(
        "More equality deletes of one key wait to be converted than are held at most, which is "
        f"{PENDING_BYTES // 1024**2} MiB.",
        "Run a job of kind `convert`, and ask again.",
    )


def _digest(metadata: TableMetadata, field_ids: Sequence[int], deletes: Iterable[DeleteFile]) -> bytes:
    """Names what is known of some equality deletes, in whatever snapshot they are live."""
    of_table = (
        metadata.table_uuid,
        metadata.current_schema_id,
        len(metadata.schemas),
        len(metadata.partition_specs),
        metadata.name_mapping(),
    )
    told = repr((of_table, tuple(field_ids), sorted(map(repr, deletes))))
    return hashlib.sha256(told.encode()).digest()


def snapshot_of(
    metadata: TableMetadata, *, branch: str = "main", snapshot_id: int | None = None
) -> Snapshot | None:
    """The snapshot that is asked for; None for an empty table. Raises UnknownSnapshotError."""
    if snapshot_id is not None:
        found = metadata.snapshot_by_id(snapshot_id)
        if found is None:
            raise UnknownSnapshotError(f"The table has no snapshot {snapshot_id}.")
        return found
    reference = metadata.refs.get(branch)
    if reference is None:
        if branch == "main":
            return None
        known = ", ".join(sorted(metadata.refs)) or "none yet"
        raise UnknownSnapshotError(f"The table has no branch or tag {branch!r}; it has {known}.")
    return metadata.snapshot_by_id(reference.snapshot_id)


def is_head_of(metadata: TableMetadata, *, branch: str = "main", snapshot_id: int | None = None) -> bool:
    """Whether what `snapshot_of` finds is the head of a branch, rather than one of the past."""
    if snapshot_id is not None:
        return False
    reference = metadata.refs.get(branch)
    return reference is None or reference.snapshot_ref_type == SnapshotRefType.BRANCH
