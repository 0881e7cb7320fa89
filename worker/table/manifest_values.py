"""What manifests and their lists say beside the files that are live: bounds, partitions, sequence numbers."""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from worker.process.memory import holding
from worker.table.avro_files import AvroFile
from worker.table.manifests import DELETED, Manifest, partition_type_of, partition_values, read_manifest_list

_PARTITION_SUMMARIES = Schema(
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
        for status, (path, nulls, lower, upper) in AvroFile(io, manifest.path).rows(schema):
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
    for status, snapshot_id, number, (path,) in AvroFile(io, manifest.path).rows(schema):
        if status != DELETED:
            yield path, number or manifest.sequence_number, snapshot_id or manifest.added_snapshot_id


@dataclass(frozen=True, slots=True)
class ManifestEntryBounds:
    """What an entry of a manifest tells of the values in its file, also where the file was removed.

    paths: of the file, and of the data file that it names, if it does. bounds: field id -> lower and upper,
    single values as Iceberg serialises them. partition: as `PartitionKey.values`.
    """

    paths: tuple[str, ...]
    is_removed: bool
    bounds: Mapping[int, tuple[bytes | None, bytes | None]]
    partition: str


def read_entry_bounds(io: FileIO, manifest: Manifest, spec: PartitionSpec) -> Iterator[ManifestEntryBounds]:
    """Of each entry of a manifest. Raises as `read_snapshot_files`."""
    file = AvroFile(io, manifest.path)
    with file.told_as_corrupt():
        partition_type = partition_type_of(file.schema)
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
            yield ManifestEntryBounds(
                paths, status == DELETED, bounds, partition_values(values, partition_type, spec)
            )


@dataclass(frozen=True, slots=True)
class PartitionSummaries:
    """The field summaries of a manifest, as its list has them: what the values of partitions in it are.

    bounds: of each field of its spec, lower and upper, single values as Iceberg serialises them.
    """

    manifest_path: str
    partition_spec_id: int
    bounds: tuple[tuple[bytes | None, bytes | None], ...]


def read_partition_summaries(io: FileIO, location: str) -> list[PartitionSummaries]:
    """Of each manifest of a list. Raises as `read_snapshot_files`."""
    file = AvroFile(io, location)
    with holding(file.held_bytes), file.told_as_corrupt():
        return [
            PartitionSummaries(path, spec_id, tuple((lower, upper) for lower, upper in summaries or ()))
            for path, spec_id, summaries in file.rows(_PARTITION_SUMMARIES)
        ]


def read_header(io: FileIO, location: str) -> tuple[Schema, Mapping[str, str]]:
    """The columns of a file of Avro, and what it says of itself. Raises as `read_snapshot_files`."""
    file = AvroFile(io, location)
    return file.schema, file.properties
