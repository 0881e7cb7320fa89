"""Reads the live files of a snapshot from its manifests (by polars or PyIceberg, without a Spark job).

Invariant: equality deletes come from the live delete manifests of the pinned snapshot, never from its
history (which expires) and never from scan tasks (which planning prunes by statistics).
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from pyiceberg.conversions import to_json
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import DayTransform, VoidTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
)

from stores.avro_readers import SCHEMAS_KEPT
from worker.io.cache import Cache
from worker.io.paths import Paths
from worker.io.sorting import Int64Array
from worker.process.errors import JobError
from worker.process.memory import holding, take_memory
from worker.process.slots import Threads
from worker.table.avro_columns import NotInColumnsError, value_of
from worker.table.avro_files import AvroFile, CorruptMetadataError, UnsupportedTableError
from worker.table.files import (
    NO_FILES,
    NO_NUMBER,
    DataFile,
    DataFiles,
    DeleteFile,
    DeleteFiles,
    FileContent,
    FileKind,
    PartitionKey,
    SnapshotFiles,
)

DELETED = 2  # manifest entry status
_STATUS, _SNAPSHOT_ID, _SEQUENCE_NUMBER = "0", "1", "3"
_CONTENT, _PATH, _FORMAT, _ROWS, _SIZE = "2.134", "2.100", "2.101", "2.103", "2.104"
_KEY_METADATA, _EQUALITY_IDS, _LOWER, _UPPER = "2.131", "2.135", "2.125", "2.128"
_REFERENCED, _OFFSET, _CONTENT_SIZE = "2.143", "2.144", "2.145"
FILE_PATH_FIELD_ID = 2147483546  # `file_path` of position delete files
READ_THREADS = 8
MANY_FILES = 50
"""Of a manifest, for which columns take less time than rows."""
COLUMN_BYTES = 4 * 1024**2  # that live files of a manifest may take in columns, however small it is
READ_AHEAD = 64  # manifests whose files are held apart at most
READ_FILES_BYTES = 4 * 1024**2  # of metadata that a job keeps for its commit
_KEPT_BYTES = 96 * 1024**2
_MANIFEST_BYTES = 3_000  # that one takes besides its files, once it was read


class MissingMetadataError(JobError):
    code = "metadata_missing"
    title = "A metadata file of the table is missing"
    remedy = "If the table's snapshots were expired meanwhile, retry; otherwise restore the file."
    retryable = True


KEPT = Cache(_KEPT_BYTES)
"""What manifests name, from one look at a table to the next: they never change."""
_decoders = threading.BoundedSemaphore(2)
"""Of the threads that read: more of them wait for the interpreter, which takes a quarter more time of it."""


class ReadFiles:
    """Manifest lists, and manifests of delete files, as they were read: what a commit would read again.

    Some first ones, of so many bytes together. Thread-safe.
    """

    def __init__(self, most_bytes: int = READ_FILES_BYTES) -> None:
        self.contents: dict[str, bytes] = {}
        self._room = most_bytes
        self._lock = threading.Lock()

    def keep(self, path: str, content: bytes) -> None:
        with self._lock:
            if len(content) <= self._room and path not in self.contents:
                self._room -= len(content)
                self.contents[path] = content


def read_snapshot_files(
    metadata: TableMetadata,
    snapshot: Snapshot,
    io: FileIO,
    table: Hashable = None,
    kept: ReadFiles | None = None,
) -> SnapshotFiles:
    """Every live data and delete file of `snapshot`, in manifest order.

    kept: gets what is read. table: which one it is, and how its files are opened: no manifest of it is read
    twice then, as far as there is room for what it names.
    Raises FileNotFoundError when a manifest is missing, CorruptMetadataError when one is damaged, and
    UnsupportedTableError for partition values that can't be read or have no JSON form.
    """
    specs = {spec.spec_id: spec for spec in metadata.partition_specs}
    # Whoever writes a table's metadata says what the specs of its manifests are.
    told = {spec_id: spec.model_dump_json() for spec_id, spec in specs.items()}
    manifests = read_manifest_list(io, snapshot, kept)
    delete_files: list[DeleteFiles] = []
    # Of a table that is too large, what is kept is the same at each look.
    room = 0 if table is None else _KEPT_BYTES

    def find(manifest: Manifest) -> ReadManifest | None:
        found: ReadManifest | None = KEPT.find(name(manifest)) if table is not None else None
        return found

    def name(manifest: Manifest) -> Hashable:
        return table, manifest, told.get(manifest.partition_spec_id)

    with Threads(READ_THREADS) as threads:

        def data_files() -> Iterator[DataFiles]:
            nonlocal room
            for start in range(0, len(manifests), READ_AHEAD):
                some = manifests[start : start + READ_AHEAD]
                known = [find(manifest) for manifest in some]
                new = [one for one, found in zip(some, known, strict=True) if found is None]
                read = threads.map(lambda one: read_manifest(io, one, specs, kept), new)
                for manifest, found in zip(some, known, strict=True):
                    of_manifest, deletes = found or next(read)
                    size = of_manifest.held_bytes + deletes.held_bytes
                    take_memory(2 * size)  # apart, and joined
                    room -= size + _MANIFEST_BYTES
                    if found is None and room >= 0:
                        KEPT.put(name(manifest), (of_manifest, deletes), size + _MANIFEST_BYTES)
                    delete_files.append(deletes)
                    yield of_manifest

        joined = DataFiles.joined(data_files())
    global_spec_ids = frozenset(spec_id for spec_id, spec in specs.items() if is_global(spec))
    return SnapshotFiles(joined, DeleteFiles.joined(delete_files), global_spec_ids)


def _counts_files(snapshot: Snapshot) -> bool:
    counted = snapshot.summary.additional_properties if snapshot.summary else {}
    return any(int(counted.get(name, 0)) for name in ("total-data-files", "total-delete-files"))


def is_global(spec: PartitionSpec) -> bool:
    """Whether equality deletes under this spec apply across all partitions and specs."""
    return all(isinstance(field.transform, VoidTransform) for field in spec.fields)


@lru_cache(SCHEMAS_KEPT)
def _entry_schema(partition_type: StructType, content: ManifestContent) -> Schema:
    """The columns that planning needs: statistics are skipped but for the bounds of delete files."""
    fields = [
        NestedField(134, "content", IntegerType(), required=False),
        NestedField(100, "file_path", StringType(), required=True),
        NestedField(101, "file_format", StringType(), required=True),
        NestedField(102, "partition", partition_type, required=True),
        NestedField(103, "record_count", LongType(), required=True),
        NestedField(104, "file_size_in_bytes", LongType(), required=True),
        NestedField(131, "key_metadata", BinaryType(), required=False),
    ]
    if content is ManifestContent.DELETES:
        fields += [
            NestedField(135, "equality_ids", ListType(136, IntegerType(), True), required=False),
            NestedField(143, "referenced_data_file", StringType(), required=False),
            NestedField(144, "content_offset", LongType(), required=False),
            NestedField(145, "content_size_in_bytes", LongType(), required=False),
            NestedField(125, "lower_bounds", MapType(126, IntegerType(), 127, BinaryType()), required=False),
            NestedField(128, "upper_bounds", MapType(129, IntegerType(), 130, BinaryType()), required=False),
        ]
    return Schema(
        NestedField(0, "status", IntegerType(), required=True),
        NestedField(1, "snapshot_id", LongType(), required=False),
        NestedField(3, "sequence_number", LongType(), required=False),
        NestedField(2, "data_file", StructType(*fields), required=True),
    )


@dataclass(frozen=True, slots=True)
class Manifest:
    """A row of a manifest list. entries: how many are live, where the list says so (not in all of V1).

    added, removed: how many its snapshot added and removed, likewise. min_sequence_number: of live files.
    size_bytes: as the list says it.
    """

    path: str
    partition_spec_id: int
    content: ManifestContent
    sequence_number: int
    added_snapshot_id: int | None
    entries: int | None
    added: int | None = None
    removed: int | None = None
    min_sequence_number: int = 0
    size_bytes: int = 0


ReadManifest = tuple[DataFiles, DeleteFiles]
"""What a manifest names."""


_MANIFEST_LIST = Schema(
    NestedField(500, "manifest_path", StringType(), required=True),
    NestedField(502, "partition_spec_id", IntegerType(), required=True),
    NestedField(517, "content", IntegerType(), required=False),
    NestedField(515, "sequence_number", LongType(), required=False),
    NestedField(516, "min_sequence_number", LongType(), required=False),
    NestedField(503, "added_snapshot_id", LongType(), required=False),
    NestedField(504, "added_files_count", IntegerType(), required=False),
    NestedField(505, "existing_files_count", IntegerType(), required=False),
    NestedField(506, "deleted_files_count", IntegerType(), required=False),
    NestedField(501, "manifest_length", LongType(), required=False),
)


def read_manifest_list(io: FileIO, snapshot: Snapshot, kept: ReadFiles | None = None) -> list[Manifest]:
    """kept: gets it. Raises as `read_snapshot_files`."""
    file = AvroFile(io, snapshot.manifest_list)
    if kept is not None:
        kept.keep(snapshot.manifest_list, file.written)
    with holding(file.held_bytes), file.told_as_corrupt():
        found = [
            Manifest(
                path,
                spec_id,
                ManifestContent(content or 0),  # absent in format version 1, as the sequence numbers are
                number or 0,
                snapshot_id,
                None if added is None or existing is None else added + existing,
                added,
                removed,
                lowest or 0,
                size or 0,
            )
            for path, spec_id, content, number, lowest, snapshot_id, added, existing, removed, size in (
                file.rows(_MANIFEST_LIST, "manifests")
            )
        ]
        if not found and _counts_files(snapshot):
            # Cut off right before its first block, a list is a whole file without a row.
            raise CorruptMetadataError(f"{snapshot.manifest_list} is empty, but its snapshot counts files")
        return found


def read_manifest(
    io: FileIO, manifest: Manifest, specs: Mapping[int, PartitionSpec], kept: ReadFiles | None = None
) -> ReadManifest:
    """kept: gets it, if it is of delete files. Raises as `read_snapshot_files`."""
    file = AvroFile(io, manifest.path)
    if kept is not None and manifest.content is ManifestContent.DELETES:
        kept.keep(manifest.path, file.written)
    with holding(file.held_bytes), _decoders, file.told_as_corrupt():
        spec = specs[manifest.partition_spec_id]
        has_many = manifest.entries is None or manifest.entries >= MANY_FILES
        read = (_in_columns(file, manifest, spec) if has_many else None) or _in_rows(file, manifest, spec)
    found = sum(len(files) for files in read)
    if manifest.entries is not None and manifest.entries != found:
        raise CorruptMetadataError(
            f"{manifest.path} names {found} live files, but its manifest list says {manifest.entries}"
        )
    return read


def _in_columns(file: AvroFile, manifest: Manifest, spec: PartitionSpec) -> ReadManifest | None:
    """None for what has to be read row by row."""
    try:
        return _of_columns(file, manifest, spec)
    except (NotInColumnsError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None


def _live_entries(file: AvroFile, manifest: Manifest, partition_type: StructType) -> pl.DataFrame:
    """No more of them than there is room for: few bytes may unpack to many."""
    frames = []
    files = held_bytes = 0
    for found in file.columns(manifest.content.name, _entry_schema(partition_type, manifest.content)):
        live = found.filter(pl.col(_STATUS) != DELETED)
        if manifest.content is ManifestContent.DELETES:
            names_no_file = (pl.col(_CONTENT) == 1) & pl.col(_REFERENCED).is_null()
            bounds = (pl.when(names_no_file).then(name).alias(name) for name in (_LOWER, _UPPER))
            live = live.with_columns(bounds)
        frames.append(live)
        files += len(live)
        held_bytes += int(live.estimated_size())
        are_more_than_listed = manifest.entries is not None and files > manifest.entries
        if are_more_than_listed or held_bytes > max(file.held_bytes, COLUMN_BYTES):
            raise NotInColumnsError
    if not frames:
        raise NotInColumnsError
    return pl.concat(frames)


def _of_columns(file: AvroFile, manifest: Manifest, spec: PartitionSpec) -> ReadManifest:
    partition_type = partition_type_of(file.schema)
    if not all(isinstance(field.field_type, PrimitiveType) for field in partition_type.fields):
        raise NotInColumnsError
    live = _live_entries(file, manifest, partition_type).with_columns(
        # Inherited as in `_files`.
        pl.coalesce(_SEQUENCE_NUMBER, pl.lit(manifest.sequence_number, pl.Int64)),
        pl.coalesce(_SNAPSHOT_ID, pl.lit(manifest.added_snapshot_id, pl.Int64)),
        is_data=pl.coalesce(_CONTENT, pl.lit(0, pl.Int64)) == 0,
        is_encrypted=pl.col(_KEY_METADATA).is_not_null(),
    )
    holds_data = manifest.content is ManifestContent.DATA
    if (live["is_data"] != holds_data).any():
        raise NotInColumnsError
    if not holds_data:
        named = [
            _referenced(content, named, _mapping(lower), _mapping(upper))
            for content, named, lower, upper in live.select(_CONTENT, _REFERENCED, _LOWER, _UPPER).iter_rows()
        ]
        may_lack = pl.col(_OFFSET, _CONTENT_SIZE, _SNAPSHOT_ID).fill_null(NO_NUMBER)
        live = live.with_columns(pl.Series(_REFERENCED, named, pl.String), may_lack)
    kinds, kind_of = _kinds(live, partition_type, spec)
    names = (_ROWS, _SIZE, _SEQUENCE_NUMBER)
    if holds_data:
        return DataFiles([_paths(live[_PATH])], _numbers(live, names), kinds, kind_of), NO_FILES.delete_files
    numbers = _numbers(live, (*names, _OFFSET, _CONTENT_SIZE, _SNAPSHOT_ID))
    texts = [_paths(live[_PATH]), _paths(live[_REFERENCED].fill_null(""))]
    return NO_FILES.data_files, DeleteFiles(texts, numbers, kinds, kind_of)


def _paths(column: pl.Series) -> Paths:
    return Paths([column.to_arrow()])


def _numbers(live: pl.DataFrame, names: Sequence[str]) -> Int64Array:
    return np.array([live[name].to_numpy() for name in names], np.int64)


def _kinds(
    live: pl.DataFrame, partition_type: StructType, spec: PartitionSpec
) -> tuple[tuple[FileKind, ...], npt.NDArray[np.int32]]:
    """And which of them each file is."""
    columns = [*(f"2.102.{field.field_id}" for field in partition_type.fields), _FORMAT, "is_encrypted"]
    if _REFERENCED in live:
        ids_in_text = pl.col(_EQUALITY_IDS).list.sort().cast(pl.List(pl.String)).list.join(" ")
        live = live.with_columns(ids_in_text, pl.col(_REFERENCED).is_not_null())
        columns += [_CONTENT, _EQUALITY_IDS, _REFERENCED]
    first = live.with_row_index("place").select(pl.col("place").first().over(columns)).to_series()
    firsts, group_of = np.unique(first.to_numpy(), return_inverse=True)
    kinds: dict[FileKind, int] = {}
    numbers = []
    at = len(partition_type.fields)
    for row in live.select(columns)[firsts].iter_rows():
        written = [
            value_of(field.field_type, value)
            for field, value in zip(partition_type.fields, row[:at], strict=True)
        ]
        partition = PartitionKey(spec.spec_id, partition_values(written, partition_type, spec))
        file_format, is_encrypted, *of_deletes = row[at:]
        kind = FileKind(partition, sys.intern(file_format.lower()), is_encrypted)
        if of_deletes:
            content, ids, names_data_file = of_deletes
            equality_ids = tuple(map(int, (ids or "").split()))
            kind = kind._replace(
                content=_content_of(content), equality_ids=equality_ids, names_data_file=names_data_file
            )
        numbers.append(kinds.setdefault(kind, len(kinds)))
    return tuple(kinds), np.array(numbers, np.int32)[group_of]


def _mapping(written: list[dict[str, Any]] | None) -> dict[int, bytes] | None:
    return None if written is None else {one["key"]: one["value"] for one in written}


def _in_rows(file: AvroFile, manifest: Manifest, spec: PartitionSpec) -> ReadManifest:
    deletes: list[DeleteFile] = []

    def data_files() -> Iterator[DataFile]:
        for one in _files(file, manifest, spec):
            if isinstance(one, DataFile):
                yield one
            else:
                deletes.append(one)

    return DataFiles.of(data_files()), DeleteFiles.of(deletes) if deletes else NO_FILES.delete_files


def read_removed(
    io: FileIO, manifest: Manifest, specs: Mapping[int, PartitionSpec]
) -> list[DataFile | DeleteFile]:
    """What the snapshot that added a manifest removed, as far as the manifest says it."""
    file = AvroFile(io, manifest.path)
    with file.told_as_corrupt():
        return list(_files(file, manifest, specs[manifest.partition_spec_id], are_removed=True))


def _files(
    file: AvroFile, manifest: Manifest, spec: PartitionSpec, *, are_removed: bool = False
) -> Iterator[DataFile | DeleteFile]:
    # The partition tuple is typed by the manifest itself, so specs whose columns were dropped read too.
    partition_type = partition_type_of(file.schema)
    schema = _entry_schema(partition_type, manifest.content)
    # Files of a partition share its key: there are millions of them. By `repr`, which tells -0.0 from 0.0.
    partitions: dict[str, PartitionKey] = {}
    for status, snapshot_id, sequence_number, data_file in file.rows(schema, manifest.content.name):
        if (status == DELETED) != are_removed:
            continue
        # Sequence numbers and snapshot ids are inherited while an entry is new (spec, "Inheritance").
        if sequence_number is None:
            sequence_number = manifest.sequence_number
        if snapshot_id is None:
            snapshot_id = manifest.added_snapshot_id
        written = repr(data_file[3])
        partition = partitions.get(written)
        if partition is None:
            values = partition_values(data_file[3], partition_type, spec)
            partition = partitions[written] = PartitionKey(spec.spec_id, values)
        yield _content_file(data_file, partition, sequence_number, snapshot_id)


def partition_type_of(schema: Schema) -> StructType:
    data_file = schema.find_field(2).field_type
    assert isinstance(data_file, StructType)
    partition = data_file.field(102)
    assert partition is not None
    assert isinstance(partition.field_type, StructType)
    return partition.field_type


def partition_values(values: Any, partition_type: StructType, spec: PartitionSpec) -> str:
    by_field_id = {
        field.field_id: (field.field_type, value)
        for field, value in zip(partition_type.fields, values, strict=True)
    }
    return json.dumps(
        [_single_value(*by_field_id[field.field_id], field.transform) for field in spec.fields],
        separators=(",", ":"),
    )


def _single_value(field_type: Any, value: Any, transform: Any) -> Any:
    if value is None:
        return None
    if isinstance(transform, DayTransform):
        field_type = DateType()  # some writers leave the logical type away
    match field_type:
        case DateType():
            return _iso(value, "D")
        case TimestampType():
            return _iso(value, "us")
        case TimestamptzType():
            return _iso(value, "us") + "+00:00"
        case TimestampNanoType():
            return _iso(value, "ns")
        case TimestamptzNanoType():
            return _iso(value, "ns") + "+00:00"
    try:
        assert isinstance(field_type, PrimitiveType)
        return to_json(field_type, value)
    except (TypeError, NotImplementedError) as error:
        raise UnsupportedTableError(
            f"a partition value of type {field_type} has no JSON form: {error}"
        ) from error


def _iso(value: int, unit: Literal["D", "us", "ns"]) -> str:
    """ISO 8601 of a time since the epoch; years outside 0 to 9999, which Python lacks, carry a sign."""
    text = str(np.datetime64(value, unit)).removesuffix(".000000")
    year, month, rest = text.rsplit("-", 2)
    number = int(year)
    return f"{number:{'04d' if 0 <= number <= 9999 else '+05d'}}-{month}-{rest}"


def _content_file(
    entry: Any, partition: PartitionKey, sequence_number: int, snapshot_id: int | None
) -> DataFile | DeleteFile:
    content, path, file_format, _, record_count, size_bytes, key_metadata, *delete_columns = entry
    file_format = sys.intern(file_format.lower())
    encrypted = key_metadata is not None
    if not content:  # 0, or absent in format version 1
        return DataFile(path, file_format, partition, record_count, size_bytes, sequence_number, encrypted)
    equality_ids, referenced, offset, content_size, lower, upper = delete_columns
    return DeleteFile(
        content=_content_of(content),
        path=path,
        file_format=file_format,
        partition=partition,
        record_count=record_count,
        file_size_bytes=size_bytes,
        data_sequence_number=sequence_number,
        equality_ids=tuple(sorted(equality_ids or ())),
        referenced_data_file=_referenced(content, referenced, lower, upper),
        content_offset=offset,
        content_size_bytes=content_size,
        added_snapshot_id=snapshot_id,
        encrypted=encrypted,
    )


def _content_of(number: int) -> FileContent:
    return FileContent.POSITION_DELETES if number == 1 else FileContent.EQUALITY_DELETES


def _referenced(
    content: int, named: str | None, lower: dict[int, bytes] | None, upper: dict[int, bytes] | None
) -> str | None:
    """The one data file that a delete file names, also by path bounds that are equal.

    Bounds of `file_path` are never truncated (spec, "Position Delete Files").
    """
    if content != 1 or named is not None:
        return named
    low = (lower or {}).get(FILE_PATH_FIELD_ID)
    high = (upper or {}).get(FILE_PATH_FIELD_ID)
    return low.decode() if low is not None and low == high else None
