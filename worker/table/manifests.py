"""Reads the live files of a snapshot from its manifests (PyIceberg's Avro reader, no Spark job).

Invariant: equality deletes come from the live delete manifests of the pinned snapshot, never from its
history (which expires) and never from scan tasks (which planning prunes by statistics).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any, Literal

import fastavro
import numpy as np
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.resolver import ReadSchemaResolver, SchemaPartnerAccessor
from pyiceberg.conversions import to_json
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, visit_with_partner
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import DayTransform, VoidTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    IcebergType,
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
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from stores.manifest_files import readable_manifest
from stores.table_metadata import ENCRYPTED, ENCRYPTED_REMEDY
from worker.io.cache import Cache
from worker.process.errors import JobError
from worker.process.memory import holding, take_memory
from worker.process.slots import Threads
from worker.table.files import DataFile, DataFiles, DeleteFile, FileContent, PartitionKey, SnapshotFiles

DELETED = 2  # manifest entry status
FILE_PATH_FIELD_ID = 2147483546  # `file_path` of position delete files
_READ_THREADS = 8
_SCHEMAS_KEPT = 64
_HEADER_KEPT = 100_000  # characters; Iceberg's have 8,000
_READ_AHEAD = 64  # manifests whose files are held apart at most
_KEPT_BYTES = 96 * 1024**2
_MANIFEST_BYTES = 3_000  # that one takes besides its files, once it was read
_FACTOR = 10  # by which a metadata file is larger in memory while it is read
DATA_FILE_BYTES, DELETE_FILE_BYTES = 250, 1_500
"""That a live file of a snapshot takes in memory, about."""


class UnsupportedTableError(JobError):
    """The table's metadata holds something that can't be read here. A retry can't help."""

    code = "unsupported_table"
    title = "The table can't be planned"
    remedy = "Convert it with another tool."


class EncryptedTableError(UnsupportedTableError):
    """Manifests and their lists are encrypted, so that nobody without the keys knows the table's files."""

    code = "encrypted_table"
    title = "The table is encrypted"
    remedy = ENCRYPTED_REMEDY


class CorruptMetadataError(UnsupportedTableError):
    """A manifest or manifest list is damaged. Nothing may be concluded from what is left of it."""

    code = "metadata_damaged"
    title = "A metadata file of the table is damaged"
    remedy = "Restore that file, or roll the table back to a snapshot before it; nothing was changed."


class MissingMetadataError(JobError):
    code = "metadata_missing"
    title = "A metadata file of the table is missing"
    remedy = "If the table's snapshots were expired meanwhile, retry; otherwise restore the file."
    retryable = True


KEPT = Cache(_KEPT_BYTES)
"""What manifests name, from one look at a table to the next: they never change."""


def read_snapshot_files(
    metadata: TableMetadata, snapshot: Snapshot, io: FileIO, table: Hashable = None
) -> SnapshotFiles:
    """Every live data and delete file of `snapshot`, in manifest order.

    table: which one it is, and how its files are opened: no manifest of it is read twice then, as far as
    there is room for what it names.
    Raises FileNotFoundError when a manifest is missing, CorruptMetadataError when one is damaged, and
    UnsupportedTableError for partition values that can't be read or have no JSON form.
    """
    specs = {spec.spec_id: spec for spec in metadata.partition_specs}
    # Whoever writes a table's metadata says what the specs of its manifests are.
    told = {spec_id: spec.model_dump_json() for spec_id, spec in specs.items()}
    manifests = read_manifest_list(io, snapshot)
    delete_files: list[DeleteFile] = []
    # Of a table that is too large, what is kept is the same at each look.
    room = 0 if table is None else _KEPT_BYTES

    def find(manifest: Manifest) -> ReadManifest | None:
        found: ReadManifest | None = KEPT.find(name(manifest)) if table is not None else None
        return found

    def name(manifest: Manifest) -> Hashable:
        return table, manifest, told.get(manifest.partition_spec_id)

    with Threads(_READ_THREADS) as threads:

        def data_files() -> Iterator[DataFiles]:
            nonlocal room
            for start in range(0, len(manifests), _READ_AHEAD):
                some = manifests[start : start + _READ_AHEAD]
                known = [find(manifest) for manifest in some]
                new = [one for one, found in zip(some, known, strict=True) if found is None]
                read = threads.map(lambda one: read_manifest(io, one, specs), new)
                for manifest, found in zip(some, known, strict=True):
                    of_manifest, deletes = found or next(read)
                    size = DATA_FILE_BYTES * len(of_manifest) + DELETE_FILE_BYTES * len(deletes)
                    take_memory(size)
                    room -= size + _MANIFEST_BYTES
                    if found is None and room >= 0:
                        KEPT.put(name(manifest), (of_manifest, deletes), size + _MANIFEST_BYTES)
                    delete_files.extend(deletes)
                    yield of_manifest

        joined = DataFiles.joined(data_files())
    return SnapshotFiles(
        joined, tuple(delete_files), frozenset(spec_id for spec_id, spec in specs.items() if is_global(spec))
    )


def delete_files_of_all_snapshots(metadata: TableMetadata, io: FileIO) -> set[str]:
    """The path of every delete file that some snapshot of the table shows. Reads every delete manifest."""
    manifests = manifests_of_all_snapshots(metadata, io, ManifestContent.DELETES)
    return {file.path for _, deletes in _entries(metadata, io, manifests) for file in deletes}


def data_files_of_all_snapshots(metadata: TableMetadata, io: FileIO) -> set[str]:
    """The path of every data file that some snapshot of the table shows. Reads every data manifest."""
    manifests = manifests_of_all_snapshots(metadata, io, ManifestContent.DATA)
    return {path for files, _ in _entries(metadata, io, manifests) for path in _paths(files)}


def paths_of_all_snapshots(
    metadata: TableMetadata, io: FileIO, read_before: set[str] | None = None, *, may_be_gone: bool = False
) -> set[str]:
    """Every path that some snapshot needs: of manifest lists, manifests, data and delete files.

    read_before: manifests that are not read again; those that are read join them. may_be_gone: what is
    missing of the metadata is left out.
    """
    manifests = manifests_of_all_snapshots(metadata, io, may_be_gone=may_be_gone)
    needed = {snapshot.manifest_list for snapshot in metadata.snapshots} | manifests.keys()
    read_before = set() if read_before is None else read_before
    new = {path: one for path, one in manifests.items() if path not in read_before}
    for files, deletes in _entries(metadata, io, new, may_be_gone=may_be_gone):
        needed.update(_paths(files), (file.path for file in deletes))
    read_before |= new.keys()
    return needed


def manifests_of_all_snapshots(
    metadata: TableMetadata, io: FileIO, content: ManifestContent | None = None, *, may_be_gone: bool = False
) -> dict[str, Manifest]:
    """Of whatever snapshot, by path. content: of this alone. Reads every manifest list."""
    snapshots = {snapshot.manifest_list: snapshot for snapshot in metadata.snapshots}

    def read(snapshot: Snapshot) -> list[Manifest]:
        with suppress(*(FileNotFoundError,) * may_be_gone):
            return read_manifest_list(io, snapshot)
        return []

    with Threads(_READ_THREADS) as threads:
        lists = threads.map(read, snapshots.values())
        return {one.path: one for of_list in lists for one in of_list if content in (None, one.content)}


def _entries(
    metadata: TableMetadata, io: FileIO, manifests: Mapping[str, Manifest], *, may_be_gone: bool = False
) -> Iterator[tuple[DataFiles, list[DeleteFile]]]:
    """What manifests name. A path that some snapshot shows is live in a manifest of its."""
    specs, all_of_them = {spec.spec_id: spec for spec in metadata.partition_specs}, [*manifests.values()]

    def read(manifest: Manifest) -> tuple[DataFiles, list[DeleteFile]] | None:
        with suppress(*(FileNotFoundError,) * may_be_gone):
            return read_manifest(io, manifest, specs)
        return None

    with Threads(_READ_THREADS) as threads:
        for start in range(0, len(all_of_them), _READ_AHEAD):
            yield from filter(None, threads.map(read, all_of_them[start : start + _READ_AHEAD]))


def _paths(files: DataFiles) -> Iterator[str]:
    return (path for piece in files.path_pieces() for path in piece.to_pylist())


def _counts_files(snapshot: Snapshot) -> bool:
    counted = snapshot.summary.additional_properties if snapshot.summary else {}
    return any(int(counted.get(name, 0)) for name in ("total-data-files", "total-delete-files"))


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """What a manifest says of a column of a file: single values as Iceberg serialises them."""

    lower: bytes
    upper: bytes
    null_count: int | None


def read_bounds(
    snapshot: Snapshot, io: FileIO, paths: Set[str], field_ids: Iterable[int]
) -> dict[tuple[str, int], ColumnBounds]:
    """(path, field id) -> bounds, of those files whose manifests have both."""
    fields = [
        NestedField(100, "file_path", StringType(), required=True),
        NestedField(110, "null_value_counts", MapType(121, IntegerType(), 122, LongType()), required=False),
        NestedField(125, "lower_bounds", MapType(126, IntegerType(), 127, BinaryType()), required=False),
        NestedField(128, "upper_bounds", MapType(129, IntegerType(), 130, BinaryType()), required=False),
    ]
    schema = Schema(
        NestedField(0, "status", IntegerType(), required=True),
        NestedField(2, "data_file", StructType(*fields), required=True),
    )
    found = {}
    for manifest in read_manifest_list(io, snapshot):
        for status, (path, nulls, lower, upper) in _AvroFile(io, manifest.path).rows(schema):
            if status == DELETED or path not in paths:
                continue
            for field_id in field_ids:
                low, high = (lower or {}).get(field_id), (upper or {}).get(field_id)
                if low is not None and high is not None:
                    found[path, field_id] = ColumnBounds(low, high, (nulls or {}).get(field_id))
    return found


def read_file_sequence_numbers(io: FileIO, manifest: Manifest) -> Iterator[tuple[str, int, int | None]]:
    """The path of each live file, with which sequence number it was committed, and by which snapshot.

    That of the manifest where an entry does not say it: it was no later. Raises as `read_snapshot_files`.
    """
    schema = Schema(
        NestedField(0, "status", IntegerType(), required=True),
        NestedField(1, "snapshot_id", LongType(), required=False),
        NestedField(4, "file_sequence_number", LongType(), required=False),
        NestedField(
            2,
            "data_file",
            StructType(NestedField(100, "file_path", StringType(), required=True)),
            required=True,
        ),
    )
    for status, snapshot_id, number, (path,) in _AvroFile(io, manifest.path).rows(schema):
        if status != DELETED:
            yield path, number or manifest.sequence_number, snapshot_id or manifest.added_snapshot_id


@dataclass(frozen=True, slots=True)
class EntryValues:
    """What an entry of a manifest says of the values in its file, also where the file was removed.

    paths: of the file, and of the data file that it names, if it does. bounds: field id -> lower and upper,
    single values as Iceberg serialises them. partition: as `PartitionKey.values`.
    """

    paths: tuple[str, ...]
    is_removed: bool
    bounds: Mapping[int, tuple[bytes | None, bytes | None]]
    partition: str


def read_entry_values(io: FileIO, manifest: Manifest, spec: PartitionSpec) -> Iterator[EntryValues]:
    """Of each entry of a manifest. Raises as `read_snapshot_files`."""
    file = _AvroFile(io, manifest.path)
    with file.told_as_corrupt():
        partition_type = _partition_type(file.schema)
    fields = [
        NestedField(100, "file_path", StringType(), required=True),
        NestedField(102, "partition", partition_type, required=True),
        NestedField(125, "lower_bounds", MapType(126, IntegerType(), 127, BinaryType()), required=False),
        NestedField(128, "upper_bounds", MapType(129, IntegerType(), 130, BinaryType()), required=False),
        NestedField(143, "referenced_data_file", StringType(), required=False),
    ]
    schema = Schema(
        NestedField(0, "status", IntegerType(), required=True),
        NestedField(2, "data_file", StructType(*fields), required=True),
    )
    with file.told_as_corrupt():
        for status, (path, values, lower, upper, referenced) in file.rows(schema):
            low, high = lower or {}, upper or {}
            bounds = {
                field_id: (low.get(field_id), high.get(field_id)) for field_id in low.keys() | high.keys()
            }
            paths = (path,) if referenced is None else (path, referenced)
            yield EntryValues(
                paths, status == DELETED, bounds, _partition_values(values, partition_type, spec)
            )


@dataclass(frozen=True, slots=True)
class ListValues:
    """What a manifest list says of the values of partitions in a manifest.

    bounds: of each field of its spec, lower and upper, single values as Iceberg serialises them.
    """

    manifest_path: str
    partition_spec_id: int
    bounds: tuple[tuple[bytes | None, bytes | None], ...]


def read_list_values(io: FileIO, location: str) -> list[ListValues]:
    """Of each manifest of a list. Raises as `read_snapshot_files`."""
    file = _AvroFile(io, location)
    with holding(file.held_bytes), file.told_as_corrupt():
        return [
            ListValues(path, spec_id, tuple((lower, upper) for lower, upper in summaries or ()))
            for path, spec_id, summaries in file.rows(_LIST_VALUES)
        ]


def read_header(io: FileIO, location: str) -> tuple[Schema, Mapping[str, str]]:
    """The columns of a file of Avro, and what it says of itself. Raises as `read_snapshot_files`."""
    file = _AvroFile(io, location)
    return file.schema, file.properties


def is_global(spec: PartitionSpec) -> bool:
    """Whether equality deletes under this spec apply across all partitions and specs."""
    return all(isinstance(field.transform, VoidTransform) for field in spec.fields)


@lru_cache(_SCHEMAS_KEPT)
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


class _SkippingAccessor(SchemaPartnerAccessor):
    """Lets the read schema leave out structs, lists and maps, such as statistics: they are skipped."""

    def field_partner(
        self, partner_struct: IcebergType | None, field_id: int, field_name: str
    ) -> IcebergType | None:
        return None if partner_struct is None else super().field_partner(partner_struct, field_id, field_name)

    def list_element_partner(self, partner_list: IcebergType | None) -> IcebergType | None:
        return None if partner_list is None else super().list_element_partner(partner_list)

    def map_key_partner(self, partner_map: IcebergType | None) -> IcebergType | None:
        return None if partner_map is None else super().map_key_partner(partner_map)

    def map_value_partner(self, partner_map: IcebergType | None) -> IcebergType | None:
        return None if partner_map is None else super().map_value_partner(partner_map)


class _Conversion(AvroSchemaConversion):
    """Knows timestamps in nanoseconds too, by which a table may be partitioned."""

    def _convert_logical_type(self, avro_logical_type: dict[str, Any]) -> IcebergType:
        if avro_logical_type["logicalType"] == "timestamp-nanos":
            return TimestamptzNanoType() if avro_logical_type.get("adjust-to-utc") else TimestampNanoType()
        return super()._convert_logical_type(avro_logical_type)


@lru_cache(_SCHEMAS_KEPT)
def _written_schema(header: str) -> Schema:
    """Most manifests of a table say the same, which takes longer to understand than their entries to read."""
    return _Conversion().avro_to_iceberg(json.loads(header))


class _AvroFile:
    """A metadata file, of which only some columns are decoded.

    The blocks are told apart by fastavro: PyIceberg takes one that was cut off for the end of the file.
    Raises CorruptMetadataError, FileNotFoundError, or OSError (a retry can help).
    """

    def __init__(self, io: FileIO, location: str) -> None:
        self._location = location
        with self.told_as_corrupt():
            with io.new_input(location).open() as source:
                content = source.read()
            if content.startswith(ENCRYPTED):
                raise EncryptedTableError(f"{location} is encrypted")
            content = readable_manifest(content)
            self.held_bytes = _FACTOR * len(content)
            self._blocks = fastavro.block_reader(BytesIO(content))
            self.properties: Mapping[str, str] = self._blocks.metadata
            header = self.properties["avro.schema"]
            understand = _written_schema if len(header) <= _HEADER_KEPT else _written_schema.__wrapped__
            self.schema = understand(header)

    def rows(self, wanted: Schema) -> Iterator[Any]:
        """Tuples of the columns of `wanted`."""
        with self.told_as_corrupt():
            # Made as PyIceberg makes its own.
            reader: Any = visit_with_partner(self.schema, wanted, ReadSchemaResolver(), _SkippingAccessor())  # type: ignore[misc]
            block: Any
            for block in self._blocks:
                content = block.bytes_.read()
                decoder = new_decoder(content)
                for _ in range(block.num_records):
                    yield reader.read(decoder)
                    if decoder.tell() > len(content):  # which the decoder does not look at
                        raise ValueError("an entry reaches beyond its block")
                if decoder.tell() < len(content):
                    raise ValueError("a block goes on behind its last entry")

    @contextmanager
    def told_as_corrupt(self) -> Iterator[None]:
        """Damaged bytes make decoders, and who works with the values, raise errors of many kinds; OSError is
        the store's."""
        try:
            yield
        except (UnsupportedTableError, OSError, MemoryError):
            raise
        except ValidationError as error:
            raise UnsupportedTableError(f"{self._location}: {error}.") from error
        except Exception as error:
            raise CorruptMetadataError(
                f"{self._location} is damaged: {type(error).__name__}: {error}"
            ) from error


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


ReadManifest = tuple[DataFiles, list[DeleteFile]]
"""What a manifest names."""


_LIST_VALUES = Schema(
    NestedField(500, "manifest_path", StringType(), required=True),
    NestedField(502, "partition_spec_id", IntegerType(), required=True),
    NestedField(
        507,
        "partitions",
        ListType(
            508,
            StructType(
                NestedField(510, "lower_bound", BinaryType(), required=False),
                NestedField(511, "upper_bound", BinaryType(), required=False),
            ),
            element_required=True,
        ),
        required=False,
    ),
)
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


def read_manifest_list(io: FileIO, snapshot: Snapshot) -> list[Manifest]:
    """Raises as `read_snapshot_files`."""
    file = _AvroFile(io, snapshot.manifest_list)
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
                file.rows(_MANIFEST_LIST)
            )
        ]
        if not found and _counts_files(snapshot):
            # Cut off right before its first block, a list is a whole file without a row.
            raise CorruptMetadataError(f"{snapshot.manifest_list} is empty, but its snapshot counts files")
        return found


def read_manifest(
    io: FileIO, manifest: Manifest, specs: Mapping[int, PartitionSpec]
) -> tuple[DataFiles, list[DeleteFile]]:
    file = _AvroFile(io, manifest.path)
    deletes: list[DeleteFile] = []

    def data_files() -> Iterator[DataFile]:
        for one in _files(file, manifest, specs[manifest.partition_spec_id]):
            if isinstance(one, DataFile):
                yield one
            else:
                deletes.append(one)

    with holding(file.held_bytes), file.told_as_corrupt():
        files = DataFiles.of(data_files())
    found = len(files) + len(deletes)
    if manifest.entries is not None and manifest.entries != found:
        raise CorruptMetadataError(
            f"{manifest.path} names {found} live files, but its manifest list says {manifest.entries}"
        )
    return files, deletes


def read_removed(
    io: FileIO, manifest: Manifest, specs: Mapping[int, PartitionSpec]
) -> list[DataFile | DeleteFile]:
    """What the snapshot that added a manifest removed, as far as the manifest says it."""
    file = _AvroFile(io, manifest.path)
    with file.told_as_corrupt():
        return list(_files(file, manifest, specs[manifest.partition_spec_id], are_removed=True))


def _files(
    file: _AvroFile, manifest: Manifest, spec: PartitionSpec, *, are_removed: bool = False
) -> Iterator[DataFile | DeleteFile]:
    # The partition tuple is typed by the manifest itself, so specs whose columns were dropped read too.
    partition_type = _partition_type(file.schema)
    schema = _entry_schema(partition_type, manifest.content)
    # Files of a partition share its key: there are millions of them. By `repr`, which tells -0.0 from 0.0.
    partitions: dict[str, PartitionKey] = {}
    for status, snapshot_id, sequence_number, data_file in file.rows(schema):
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
            values = _partition_values(data_file[3], partition_type, spec)
            partition = partitions[written] = PartitionKey(spec.spec_id, values)
        yield _content_file(data_file, partition, sequence_number, snapshot_id)


def _partition_type(schema: Schema) -> StructType:
    data_file = schema.find_field(2).field_type
    assert isinstance(data_file, StructType)
    partition = data_file.field(102)
    assert partition is not None
    assert isinstance(partition.field_type, StructType)
    return partition.field_type


def _partition_values(values: Any, partition_type: StructType, spec: PartitionSpec) -> str:
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
    if content == 1 and referenced is None:
        referenced = _only_referenced_file(lower, upper)
    return DeleteFile(
        content=FileContent.POSITION_DELETES if content == 1 else FileContent.EQUALITY_DELETES,
        path=path,
        file_format=file_format,
        partition=partition,
        record_count=record_count,
        file_size_bytes=size_bytes,
        data_sequence_number=sequence_number,
        equality_ids=tuple(sorted(equality_ids or ())),
        referenced_data_file=referenced,
        content_offset=offset,
        content_size_bytes=content_size,
        added_snapshot_id=snapshot_id,
        encrypted=encrypted,
    )


def _only_referenced_file(lower: dict[int, bytes] | None, upper: dict[int, bytes] | None) -> str | None:
    """The one data file that a position delete file names, where its path bounds are equal.

    Bounds of `file_path` are never truncated (spec, "Position Delete Files").
    """
    low = (lower or {}).get(FILE_PATH_FIELD_ID)
    high = (upper or {}).get(FILE_PATH_FIELD_ID)
    return low.decode() if low is not None and low == high else None
