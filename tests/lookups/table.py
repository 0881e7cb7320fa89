"""Small Iceberg tables, written file by file: with neither a catalog nor a JVM, so that a commit takes a
millisecond.

Invariant: what is committed is whole once its metadata file is written, and nobody sees it before.
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from io import BytesIO
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)
from pyiceberg.utils.schema_conversion import AvroSchemaConversion
from pyroaring import BitMap64

from tests.soak.values import stored
from worker.deletes.puffin import PuffinWriter
from worker.io.storage import Storage

EXISTING, ADDED, DELETED = 0, 1, 2  # status of a manifest's entry
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2  # content of a file
FILE_PATH, POS = 2147483546, 2147483545
_POSITION_DELETES = Schema(
    NestedField(FILE_PATH, "file_path", StringType(), required=True),
    NestedField(POS, "pos", LongType(), required=True),
)
Row = Mapping[int, Any]


@dataclass(frozen=True, eq=False)
class File:
    """A data or delete file; `described` are the fields of its manifest entry, but for the partition."""

    path: str
    content: int
    spec: PartitionSpec
    partition: tuple[Any, ...]
    described: Mapping[str, Any]

    @property
    def rows(self) -> int:
        count: int = self.described["record_count"]
        return count

    @property
    def referenced(self) -> str | None:
        """The only data file that a position delete file or a deletion vector says it speaks of."""
        path: str | None = self.described.get("referenced_data_file")
        return path

    @property
    def is_vector(self) -> bool:
        return bool(self.described["file_format"] == "PUFFIN")


@dataclass(frozen=True, eq=False)
class Entry:
    """A live file of a snapshot."""

    file: File
    snapshot_id: int
    sequence_number: int
    file_sequence_number: int


@dataclass(frozen=True, eq=False)
class Manifest:
    """entries: the live ones. row: of the manifest list."""

    of_deletes: bool
    spec: PartitionSpec
    entries: tuple[Entry, ...]
    row: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """described: in the table's metadata."""

    manifests: tuple[Manifest, ...]
    described: Mapping[str, Any]

    @property
    def snapshot_id(self) -> int:
        found: int = self.described["snapshot-id"]
        return found

    @property
    def parent_id(self) -> int | None:
        found: int | None = self.described.get("parent-snapshot-id")
        return found

    @property
    def entries(self) -> list[Entry]:
        return [entry for manifest in self.manifests for entry in manifest.entries]

    def paths(self) -> set[str]:
        """All files that a reader of the snapshot opens."""
        found = {self.described["manifest-list"], *(one.row["manifest_path"] for one in self.manifests)}
        return found | {entry.file.path for entry in self.entries}


@dataclass
class PlainTable:
    """A table in a folder."""

    location: str
    storage: Storage
    version: int
    schemas: list[Schema]
    specs: list[PartitionSpec]
    last_column_id: int
    refs: dict[str, tuple[str, int]] = field(default_factory=dict)  # name -> branch or tag, snapshot
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    last_sequence_number: int = 0
    metadata_location: str = ""
    table_uuid: str = field(default_factory=lambda: str(uuid.uuid4()))
    names: int = 0

    @property
    def schema(self) -> Schema:
        return self.schemas[-1]

    @property
    def spec(self) -> PartitionSpec:
        return self.specs[-1]

    def head(self, ref: str) -> Snapshot | None:
        return self.snapshots[self.refs[ref][1]] if ref in self.refs else None

    def _name(self, kind: str) -> str:
        """Of the next file: a name is used once, also by a writer that dies."""
        self.names += 1
        return f"{self.location}/{self.names:04}-{kind}"

    # Files

    def write_rows(
        self,
        rows: Sequence[Row],
        schema: Schema,
        columns: Sequence[int],
        spec: PartitionSpec,
        partition: Sequence[Any],
        *,
        equality_ids: Sequence[int] = (),
        row_group_rows: int | None = None,
    ) -> File:
        """A data file, or with equality_ids an equality delete file. columns: the fields that it has."""
        names = {schema.find_field(i).name: str(schema.find_type(i)) for i in columns}
        arrays = [
            [stored(kind, row[i]) for row in rows] for i, kind in zip(columns, names.values(), strict=True)
        ]
        content = _parquet(arrays, _arrow_schema(schema, tuple(columns)), row_group_rows)
        described: dict[str, Any] = {"file_format": "PARQUET", "record_count": len(rows)}
        if equality_ids:
            described["equality_ids"] = list(equality_ids)
        kind = EQUALITY_DELETES if equality_ids else DATA
        path = self._name("deletes.parquet" if equality_ids else "data.parquet")
        return self._written(path, content, kind, spec, partition, described)

    def write_positions(self, positions: Mapping[str, Iterable[int]], of: File, told: str) -> File:
        """A position delete file in the partition of a data file.

        told: whether its manifest names the only data file that it speaks of, by `reference` or by `bounds`.
        """
        pairs = [(path, at) for path in sorted(positions) for at in sorted(positions[path])]
        columns = [list(column) for column in zip(*pairs, strict=True)]
        content = _parquet(columns, _arrow_schema(_POSITION_DELETES, (FILE_PATH, POS)), None)
        described: dict[str, Any] = {"file_format": "PARQUET", "record_count": len(pairs)}
        only = next(iter(positions))
        if told == "reference":
            described["referenced_data_file"] = only
        elif told == "bounds":
            bounds = [{"key": FILE_PATH, "value": only.encode()}]
            described |= {"lower_bounds": bounds, "upper_bounds": bounds}
        path = self._name("positions.parquet")
        return self._written(path, content, POSITION_DELETES, of.spec, of.partition, described)

    def write_vectors(
        self, positions: Mapping[str, Iterable[int]], data_files: Mapping[str, File]
    ) -> list[File]:
        """A deletion vector for each data file, in one Puffin file."""
        sink = BytesIO()
        puffin = PuffinWriter(sink)
        ranges = [puffin.write(path, BitMap64(sorted(of_file))) for path, of_file in positions.items()]
        puffin.finish()
        path = self._name("vectors.puffin")
        return [
            self._written(
                path,
                sink.getvalue(),
                POSITION_DELETES,
                data_files[one.referenced_data_file].spec,
                data_files[one.referenced_data_file].partition,
                {
                    "file_format": "PUFFIN",
                    "record_count": one.cardinality,
                    "referenced_data_file": one.referenced_data_file,
                    "content_offset": one.content_offset,
                    "content_size_in_bytes": one.content_size_bytes,
                },
            )
            for one in ranges
        ]

    def _written(
        self,
        path: str,
        content: bytes,
        kind: int,
        spec: PartitionSpec,
        partition: Sequence[Any],
        described: Mapping[str, Any],
    ) -> File:
        self._write(path, content)
        size = {"content": kind, "file_path": path, "file_size_in_bytes": len(content)}
        return File(path, kind, spec, tuple(partition), {**described, **size})

    def _write(self, path: str, content: bytes) -> None:
        self.storage.write(path, pa.py_buffer(content))

    # Commits

    def commit(
        self,
        rng: Random,
        ref: str,
        added: Sequence[File],
        removed: Collection[Entry] = (),
        *,
        data_sequence_number: int | None = None,
    ) -> Snapshot:
        """A snapshot on a branch. data_sequence_number: of added data files, as a compaction gives them."""
        parent = self.head(ref)
        snapshot_id, number = rng.getrandbits(62), self.last_sequence_number + 1
        of_data = number if data_sequence_number is None else data_sequence_number
        gone = set(removed)
        new: dict[tuple[bool, int], list[Entry]] = defaultdict(list)
        old: dict[tuple[bool, int], list[Manifest]] = defaultdict(list)
        for file in added:
            entry = Entry(file, snapshot_id, of_data if file.content == DATA else number, number)
            new[file.content != DATA, file.spec.spec_id].append(entry)
        for manifest in parent.manifests if parent is not None else ():
            old[manifest.of_deletes, manifest.spec.spec_id].append(manifest)
        merges = rng.random() < 0.7
        manifests: list[Manifest] = []
        for group in dict.fromkeys([*old, *new]):
            touched = [manifest for manifest in old[group] if not gone.isdisjoint(manifest.entries)]
            rewritten = old[group] if merges and (touched or new[group]) else touched
            manifests += [one for one in old[group] if one not in rewritten and one.entries]
            entries = [
                (DELETED if entry in gone else EXISTING, entry) for one in rewritten for entry in one.entries
            ] + [(ADDED, entry) for entry in new[group]]
            if entries:
                manifests.append(self._manifest(group[0], entries, snapshot_id, number))
        described = {
            "snapshot-id": snapshot_id,
            "sequence-number": number,
            "timestamp-ms": 1_700_000_000_000 + number,
            "manifest-list": self._manifest_list(manifests),
            "schema-id": self.schema.schema_id,
            "summary": {
                "operation": "overwrite" if gone else "append",
                "total-data-files": str(sum(len(one.entries) for one in manifests if not one.of_deletes)),
                "total-delete-files": str(sum(len(one.entries) for one in manifests if one.of_deletes)),
            },
        }
        if parent is not None:
            described["parent-snapshot-id"] = parent.snapshot_id
        if self.version >= 3:
            described |= {"first-row-id": 0, "added-rows": 0}  # nobody here asks for row ids
        snapshot = Snapshot(tuple(manifests), described)
        self.change(
            refs={**self.refs, ref: ("branch", snapshot_id)},
            snapshots={**self.snapshots, snapshot_id: snapshot},
            last_sequence_number=number,
        )
        return snapshot

    def change(self, **fields: Any) -> None:
        """Write the metadata with other values of some attributes: they are the table's then, not before."""
        changed = replace(self, **fields)
        location = self._name("v.metadata.json")
        changed._write(location, json.dumps(changed._described()).encode())
        vars(self).update(vars(changed) | {"names": self.names, "metadata_location": location})

    def _described(self) -> dict[str, Any]:
        refs = {name: {"type": kind, "snapshot-id": at} for name, (kind, at) in self.refs.items()}
        described = {
            "format-version": self.version,
            "table-uuid": self.table_uuid,
            "location": self.location,
            "last-sequence-number": self.last_sequence_number,
            "last-updated-ms": 1_700_000_000_000 + self.names,
            "last-column-id": self.last_column_id,
            "current-schema-id": self.schema.schema_id,
            "schemas": [json.loads(schema.model_dump_json()) for schema in self.schemas],
            "default-spec-id": self.spec.spec_id,
            "partition-specs": [json.loads(spec.model_dump_json()) for spec in self.specs],
            "last-partition-id": max([999, *(part.field_id for spec in self.specs for part in spec.fields)]),
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": {},
            "snapshots": [snapshot.described for snapshot in self.snapshots.values()],
            "refs": refs,
        }
        if "main" in self.refs:
            described["current-snapshot-id"] = self.refs["main"][1]
        return described | ({"next-row-id": 0} if self.version >= 3 else {})

    def _manifest(
        self, of_deletes: bool, entries: Sequence[tuple[int, Entry]], snapshot_id: int, number: int
    ) -> Manifest:
        spec = entries[0][1].file.spec
        names = [part.name for part in spec.fields]
        records = []
        for status, entry in entries:
            # What a snapshot adds has its number, which a new manifest list gives it.
            inherits = status == ADDED and entry.sequence_number == number
            records.append(
                {
                    "status": status,
                    "snapshot_id": snapshot_id if status == DELETED else entry.snapshot_id,
                    "sequence_number": None if inherits else entry.sequence_number,
                    "file_sequence_number": None if status == ADDED else entry.file_sequence_number,
                    "data_file": {
                        **entry.file.described,
                        "partition": dict(zip(names, entry.file.partition, strict=True)),
                    },
                }
            )
        path = self._name("manifest.avro")
        size = self._write_avro(path, _entry_schema(self._partition_type(spec)), records)
        live = [entry for status, entry in entries if status != DELETED]
        row = {
            "manifest_path": path,
            "manifest_length": size,
            "partition_spec_id": spec.spec_id,
            "content": int(of_deletes),
            "sequence_number": number,
            "min_sequence_number": min([number, *(entry.sequence_number for entry in live)]),
            "added_snapshot_id": snapshot_id,
        }
        for status, name in ((ADDED, "added"), (EXISTING, "existing"), (DELETED, "deleted")):
            counted = [entry.file.rows for found, entry in entries if found == status]
            row |= {f"{name}_files_count": len(counted), f"{name}_rows_count": sum(counted)}
        return Manifest(of_deletes, spec, tuple(live), row)

    def _manifest_list(self, manifests: Sequence[Manifest]) -> str:
        path = self._name("snap.avro")
        self._write_avro(path, _manifest_list_schema(), [manifest.row for manifest in manifests])
        return path

    def _write_avro(self, path: str, schema: Any, records: Sequence[Mapping[str, Any]]) -> int:
        sink = BytesIO()
        metadata = {"format-version": str(self.version)}
        fastavro.writer(sink, schema, records, codec="deflate", metadata=metadata)
        self._write(path, sink.getvalue())
        return len(sink.getvalue())

    def _partition_type(self, spec: PartitionSpec) -> StructType:
        return spec.partition_type(self.schema)

    def expire(self, snapshot_ids: Collection[int]) -> None:
        """Forget snapshots, and delete the files that no other one needs."""
        kept = {i: snapshot for i, snapshot in self.snapshots.items() if i not in snapshot_ids}
        expired = [self.snapshots[i] for i in snapshot_ids]
        self.change(snapshots=kept)
        needed = {path for snapshot in kept.values() for path in snapshot.paths()}
        for path in sorted({path for snapshot in expired for path in snapshot.paths()} - needed):
            self.storage.delete(path)


def _parquet(columns: Sequence[Sequence[Any]], schema: pa.Schema, row_group_rows: int | None) -> bytes:
    arrays = [pa.array(values, part.type) for values, part in zip(columns, schema, strict=True)]
    sink = BytesIO()
    table = pa.Table.from_arrays(arrays, schema=schema)
    pq.write_table(table, sink, store_schema=False, row_group_size=row_group_rows)
    return sink.getvalue()


_arrow_schemas: dict[tuple[str, tuple[int, ...]], pa.Schema] = {}


def _arrow_schema(schema: Schema, columns: tuple[int, ...]) -> pa.Schema:
    """With field ids."""
    name = (str(schema.fields), columns)
    if name not in _arrow_schemas:
        _arrow_schemas[name] = schema_to_pyarrow(Schema(*(schema.find_field(i) for i in columns)))
    return _arrow_schemas[name]


@lru_cache
def _entry_schema(partition: StructType) -> Any:
    def optional(field_id: int, name: str, kind: IcebergType) -> NestedField:
        return NestedField(field_id, name, kind, required=False)

    file = StructType(
        NestedField(134, "content", IntegerType(), required=True),
        NestedField(100, "file_path", StringType(), required=True),
        NestedField(101, "file_format", StringType(), required=True),
        NestedField(102, "partition", partition, required=True),
        NestedField(103, "record_count", LongType(), required=True),
        NestedField(104, "file_size_in_bytes", LongType(), required=True),
        optional(125, "lower_bounds", MapType(126, IntegerType(), 127, BinaryType())),
        optional(128, "upper_bounds", MapType(129, IntegerType(), 130, BinaryType())),
        optional(135, "equality_ids", ListType(136, IntegerType(), True)),
        optional(143, "referenced_data_file", StringType()),
        optional(144, "content_offset", LongType()),
        optional(145, "content_size_in_bytes", LongType()),
    )
    return _avro_schema(
        "manifest_entry",
        NestedField(0, "status", IntegerType(), required=True),
        optional(1, "snapshot_id", LongType()),
        optional(3, "sequence_number", LongType()),
        optional(4, "file_sequence_number", LongType()),
        NestedField(2, "data_file", file, required=True),
    )


@lru_cache
def _manifest_list_schema() -> Any:
    def count(field_id: int, name: str) -> NestedField:
        kind = LongType() if "rows" in name or "number" in name else IntegerType()
        return NestedField(field_id, name, kind, required=True)

    return _avro_schema(
        "manifest_file",
        NestedField(500, "manifest_path", StringType(), required=True),
        NestedField(501, "manifest_length", LongType(), required=True),
        count(502, "partition_spec_id"),
        count(517, "content"),
        count(515, "sequence_number"),
        count(516, "min_sequence_number"),
        NestedField(503, "added_snapshot_id", LongType(), required=True),
        count(504, "added_files_count"),
        count(505, "existing_files_count"),
        count(506, "deleted_files_count"),
        count(512, "added_rows_count"),
        count(513, "existing_rows_count"),
        count(514, "deleted_rows_count"),
    )


def _avro_schema(name: str, *fields: NestedField) -> Any:
    return fastavro.parse_schema(AvroSchemaConversion().iceberg_to_avro(Schema(*fields), name))
