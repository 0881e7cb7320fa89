"""A table in the making: a case decides about each file, commit and sequence number, and gets it as files."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from conformance.files import avro_data_file, avro_file, avro_type, avro_value, orc_file, puffin_file
from conformance.parquet import parquet_file
from conformance.types import Field, Row, bounds, fields_of
from conformance.types import field as column

DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
_EXISTING, _ADDED, _DELETED = 0, 1, 2
_FIRST_MILLIS = 1_767_225_600_000  # of the first snapshot; the next are a minute apart
_PATH, _POSITION = 2147483546, 2147483545  # the reserved columns of position deletes
_POSITION_FIELDS = (
    column(_PATH, "file_path", "string", required=True),
    column(_POSITION, "pos", "long", required=True),
)


@dataclass(frozen=True)
class PartitionField:
    """A field of a spec. kind: the type of its values."""

    source_id: int
    field_id: int
    name: str
    transform: str
    kind: str

    @property
    def json(self) -> dict[str, Any]:
        return {
            "source-id": self.source_id,
            "field-id": self.field_id,
            "name": self.name,
            "transform": self.transform,
        }


@dataclass(frozen=True, eq=False)
class File:
    """A data or delete file. rows: of a data file, as the case wrote them."""

    path: str
    content: int
    file_format: str
    spec_id: int
    partition: Mapping[str, Any]
    record_count: int
    size: int
    rows: tuple[Row, ...] = ()
    equality_ids: tuple[int, ...] = ()
    positions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of a delete file, by path
    blob: tuple[int, int] | None = None  # of a deletion vector: offset and length
    metrics: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)
    names_data_file: bool = True  # of deletes by position in one data file: whether the manifest says which


@dataclass(frozen=True)
class Entry:
    status: int
    snapshot_id: int
    data_sequence: int
    file_sequence: int
    file: File
    first_row_id: int | None = None


@dataclass(frozen=True)
class Manifest:
    path: str
    size: int
    spec_id: int
    content: int
    sequence: int
    snapshot_id: int
    entries: tuple[Entry, ...]
    first_row_id: int | None = None

    @property
    def new_rows(self) -> int:
        return sum(one.file.record_count for one in self.entries if one.first_row_id is None)


@dataclass
class Table:
    """directory: where the files go. location: what metadata calls that place."""

    directory: Path
    location: str
    name: str
    format_version: int
    schemas: list[dict[str, Any]] = field(default_factory=list)
    specs: list[list[PartitionField]] = field(default_factory=lambda: [[]])
    properties: dict[str, str] = field(default_factory=dict)
    spec_id: int = 0
    sequence: int = 0
    next_row_id: int = 0
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    refs: dict[str, dict[str, Any]] = field(default_factory=dict)
    _manifests: dict[int, tuple[Manifest, ...]] = field(default_factory=dict)  # by snapshot
    _log: list[tuple[int, int]] = field(default_factory=list)
    _names: int = 0
    _last_column_id: int = 0

    # What the table is.

    @property
    def schema(self) -> Sequence[Field]:
        fields: Sequence[Field] = self.schemas[-1]["fields"]
        return fields

    def set_schema(self, *fields: Field) -> None:
        """From now on; older ones stay in the metadata."""
        self.schemas.append({"type": "struct", "schema-id": len(self.schemas), "fields": list(fields)})
        self._last_column_id = max(self._last_column_id, *_ids(fields))

    def set_spec(self, *fields: tuple[int, str, str, str]) -> None:
        """fields: source id, name, transform and the type of its values."""
        known = {(one.source_id, one.transform): one.field_id for spec in self.specs for one in spec}
        spec = []
        for source_id, name, transform, kind in fields:
            field_id = known.setdefault((source_id, transform), 1000 + len(known))
            spec.append(PartitionField(source_id, field_id, name, transform, kind))
        if not self.snapshots and self.specs == [[]] and self.spec_id == 0:
            self.specs = [spec]
        else:
            self.specs.append(spec)
            self.spec_id = len(self.specs) - 1

    def upgrade(self, format_version: int) -> None:
        """What is written from now on is of this version; older files stay as they are."""
        self.format_version = format_version

    # Files that wait for their commit.

    def data(
        self,
        *rows: Row,
        file_format: str = "parquet",
        columns: Sequence[str] | None = None,
        spec_id: int | None = None,
        partition: Mapping[str, Any] | None = None,
        with_ids: bool = True,
        with_bounds: bool = True,
        group_rows: int | None = None,
        page_rows: int | None = None,
    ) -> File:
        """A data file of the current schema. columns: leaves out the others.

        partition: by name; else the values of the first row, for identity transforms. group_rows, page_rows:
        at most as many in a row group of Parquet, and in a page; None for all.
        """
        fields = [one for one in self.schema if columns is None or one["name"] in columns]
        spec_id = self.spec_id if spec_id is None else spec_id
        if partition is None:
            partition = self._partition_of(rows[0] if rows else {}, spec_id)
        if file_format == "parquet":
            content = parquet_file(
                fields, rows, with_ids=with_ids, group_rows=group_rows, page_rows=page_rows
            )
            written = self._written(rows, file_format, "data", content)
        else:
            written = self._write(fields, rows, file_format, "data")
        metrics = _metrics(fields, rows) if with_bounds and with_ids else {}
        return replace(written, spec_id=spec_id, partition=partition, rows=rows, metrics=metrics)

    def equality(
        self,
        *rows: Row,
        by: Sequence[str | int],
        columns: Sequence[str] | None = None,
        schema_id: int = -1,
        file_format: str = "parquet",
        spec_id: int | None = None,
        partition: Mapping[str, Any] | None = None,
        with_bounds: bool = True,
    ) -> File:
        """An equality delete file. by: names of its delete columns, or field ids. columns: that it has, else
        those alone. partition: by name, if the spec has any."""
        schema = self.schemas[schema_id]["fields"]
        ids = tuple(one if isinstance(one, int) else _id_of(schema, one) for one in by)
        if columns is None:
            fields = [one for one in schema if any(i in ids for i in _ids([one]))]
        else:
            fields = [next(one for one in schema if one["name"] == name) for name in columns]
        spec_id = self.spec_id if spec_id is None else spec_id
        written = self._write(fields, rows, file_format, "equality-deletes")
        return replace(
            written,
            content=EQUALITY_DELETES,
            equality_ids=ids,
            spec_id=spec_id,
            partition=partition or {},
            metrics=_metrics(fields, rows) if with_bounds else {},
        )

    def position_deletes(
        self,
        positions: Mapping[File, Sequence[int]],
        file_format: str = "parquet",
        *,
        names_data_file: bool = True,
    ) -> File:
        """A position delete file of data files of one partition. names_data_file: whether the manifest says
        of which, if it is one."""
        of_path = {file.path: tuple(sorted(of)) for file, of in positions.items()}
        rows = [{"file_path": path, "pos": pos} for path, of in sorted(of_path.items()) for pos in of]
        first = next(iter(positions))
        written = self._write(_POSITION_FIELDS, rows, file_format, "position-deletes")
        paths = [path.encode() for path in of_path]
        low: bytes | None = min(paths)
        high: bytes | None = max(paths)
        if not names_data_file:  # else bounds of paths are not cut off, so that they tell the same
            low, high = bounds("string", list(of_path))
        metrics = {"lower_bounds": {_PATH: low}, "upper_bounds": {_PATH: high}}
        return replace(
            written,
            content=POSITION_DELETES,
            spec_id=first.spec_id,
            partition=first.partition,
            positions=of_path,
            metrics=metrics,
            names_data_file=names_data_file,
        )

    def vectors(self, positions: Mapping[File, Sequence[int]]) -> list[File]:
        """Deletion vectors, all in one Puffin file."""
        by_path = {file.path: file for file in positions}
        content, places = puffin_file({file.path: of for file, of in positions.items()})
        path = self._put("data", "vectors", "puffin", content)
        return [
            File(
                path=path,
                content=POSITION_DELETES,
                file_format="puffin",
                spec_id=by_path[of].spec_id,
                partition=by_path[of].partition,
                record_count=len(set(positions[by_path[of]])),
                size=len(content),
                positions={of: tuple(sorted(set(positions[by_path[of]])))},
                blob=place,
            )
            for of, place in places.items()
        ]

    def deleted_positions(self, positions: Mapping[File, Sequence[int]]) -> list[File]:
        """As the version has them: a position delete file, or deletion vectors."""
        if self.format_version == 2:
            return [self.position_deletes(positions)]
        return self.vectors(positions)

    # Commits.

    def commit(
        self,
        *files: File,
        removed: Sequence[File] = (),
        branch: str = "main",
        data_sequence: int | None = None,
    ) -> int:
        """A snapshot on the branch, and its id. removed: live files that it takes away.
        data_sequence: of data files that are written again and keep that of the rows' first commit."""
        parent = self.refs.get(branch, {}).get("snapshot-id")
        if parent is None and branch != "main":
            parent = self.refs["main"]["snapshot-id"]
        self.sequence += self.format_version > 1
        number = len(self.snapshots) + 1
        snapshot_id = 1_000_000_000 + number
        first_row_id = self.next_row_id
        manifests = [
            kept
            for manifest in (self._manifests[parent] if parent is not None else ())
            for kept in self._without(manifest, removed, snapshot_id)
        ]
        by_kind: dict[tuple[bool, int], list[File]] = defaultdict(list)
        for file in files:
            by_kind[file.content != DATA, file.spec_id].append(file)
        for (is_deletes, spec_id), of_kind in by_kind.items():
            entries = tuple(
                Entry(
                    _ADDED,
                    snapshot_id,
                    self.sequence if data_sequence is None or is_deletes else data_sequence,
                    self.sequence,
                    file,
                )
                for file in of_kind
            )
            manifests.append(self._write_manifest(spec_id, int(is_deletes), entries, snapshot_id))
        if self.format_version > 2:
            manifests = [self._with_row_ids(manifest) for manifest in manifests]
        keeps_rows = data_sequence is not None
        snapshot = self._snapshot(snapshot_id, parent, manifests, files, removed, keeps_rows=keeps_rows)
        if self.format_version > 2:
            snapshot |= {"first-row-id": first_row_id, "added-rows": self.next_row_id - first_row_id}
        self.snapshots.append(snapshot)
        self._manifests[snapshot_id] = tuple(manifests)
        self._point(branch, snapshot_id, "branch")
        return snapshot_id

    def create_branch(self, name: str) -> None:
        self._point(name, self.refs["main"]["snapshot-id"], "branch")

    def create_tag(self, name: str) -> None:
        self._point(name, self.refs["main"]["snapshot-id"], "tag")

    def roll_back(self, snapshot_id: int) -> None:
        self._point("main", snapshot_id, "branch")

    @property
    def current(self) -> int:
        found: int = self.refs["main"]["snapshot-id"]
        return found

    def live(self, snapshot_id: int) -> list[Entry]:
        return [
            entry
            for manifest in self._manifests[snapshot_id]
            for entry in manifest.entries
            if entry.status != _DELETED
        ]

    def write_metadata(self, name: str) -> str:
        """The metadata file, as the table now is, and its location."""
        content = json.dumps(self._metadata(), indent=1).encode()
        path = self.directory / "metadata" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return f"{self.location}/metadata/{name}"

    # How.

    def _put(self, folder: str, what: str, extension: str, content: bytes) -> str:
        self._names += 1
        name = f"{folder}/{self._names:05d}-{what}.{extension}"
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return f"{self.location}/{name}"

    def _write(
        self,
        fields: Sequence[Field],
        rows: Sequence[Row],
        file_format: str,
        what: str,
    ) -> File:
        if file_format == "parquet":
            content = parquet_file(fields, rows)
        elif file_format == "orc":
            content = orc_file(fields, rows)
        else:
            schema = json.dumps({"type": "struct", "fields": list(fields)})
            content = avro_data_file(fields, rows, schema)
        return self._written(rows, file_format, what, content)

    def _written(self, rows: Sequence[Row], file_format: str, what: str, content: bytes) -> File:
        path = self._put("data", what, file_format, content)
        return File(path, DATA, file_format, self.spec_id, {}, len(rows), len(content))

    def _partition_of(self, row: Row, spec_id: int) -> dict[str, Any]:
        """Of identity transforms."""
        names = {one["id"]: one["name"] for one in self.schema}
        assert all(one.transform == "identity" for one in self.specs[spec_id])
        return {one.name: row.get(names[one.source_id]) for one in self.specs[spec_id]}

    def _without(self, manifest: Manifest, removed: Sequence[File], snapshot_id: int) -> Iterable[Manifest]:
        """The manifest as it stays, or written again. What was deleted before is not in it any more."""
        if not any(entry.file in removed for entry in manifest.entries):
            yield manifest
            return
        entries = tuple(
            replace(entry, status=_DELETED, snapshot_id=snapshot_id)
            if entry.file in removed
            else replace(entry, status=_EXISTING)
            for entry in manifest.entries
            if entry.status != _DELETED
        )
        yield self._write_manifest(manifest.spec_id, manifest.content, entries, snapshot_id)

    def _with_row_ids(self, manifest: Manifest) -> Manifest:
        if manifest.content != 0 or manifest.first_row_id is not None:
            return manifest
        first = at = self.next_row_id
        entries = []
        for entry in manifest.entries:
            if entry.first_row_id is None and entry.status != _DELETED:
                entries.append(replace(entry, first_row_id=at))
                at += entry.file.record_count
            else:
                entries.append(entry)
        self.next_row_id = at
        return replace(manifest, first_row_id=first, entries=tuple(entries))

    def _write_manifest(
        self, spec_id: int, content: int, entries: tuple[Entry, ...], snapshot_id: int
    ) -> Manifest:
        spec = self.specs[spec_id]
        metadata = {
            "schema": json.dumps(self.schemas[-1]),
            "schema-id": str(self.schemas[-1]["schema-id"]),
            "partition-spec": json.dumps([one.json for one in spec]),
            "partition-spec-id": str(spec_id),
            "format-version": str(self.format_version),
            "content": ("data", "deletes")[content],
        }
        schema = _entry_schema(spec, self.format_version)
        written = avro_file(schema, [_entry(one, spec) for one in entries], metadata)
        path = self._put("metadata", "manifest", "avro", written)
        return Manifest(path, len(written), spec_id, content, self.sequence, snapshot_id, entries)

    def _snapshot(
        self,
        snapshot_id: int,
        parent: int | None,
        manifests: Sequence[Manifest],
        added: Sequence[File],
        removed: Sequence[File],
        *,
        keeps_rows: bool,
    ) -> dict[str, Any]:
        metadata = {
            "snapshot-id": str(snapshot_id),
            "parent-snapshot-id": "null" if parent is None else str(parent),
            **({"sequence-number": str(self.sequence)} if self.format_version > 1 else {}),
            "format-version": str(self.format_version),
        }
        records = [_manifest_file(one, self.specs[one.spec_id], self.format_version) for one in manifests]
        path = self._put(
            "metadata", "snapshot", "avro", avro_file(_manifest_list(self.format_version), records, metadata)
        )
        only_data = all(file.content == DATA for file in added) and not removed
        operation = "replace" if keeps_rows else "append" if only_data else "overwrite"
        return {
            "snapshot-id": snapshot_id,
            **({"parent-snapshot-id": parent} if parent is not None else {}),
            **({"sequence-number": self.sequence} if self.format_version > 1 else {}),
            "timestamp-ms": _FIRST_MILLIS + 60_000 * len(self.snapshots),
            "manifest-list": path,
            "summary": {"operation": operation, **_totals(manifests)},
            "schema-id": self.schemas[-1]["schema-id"],
        }

    def _point(self, name: str, snapshot_id: int, kind: str) -> None:
        self.refs[name] = {"snapshot-id": snapshot_id, "type": kind}
        if name == "main":
            self._log.append((_FIRST_MILLIS + 60_000 * max(len(self.snapshots) - 1, 0), snapshot_id))

    def _metadata(self) -> dict[str, Any]:
        millis = _FIRST_MILLIS + 60_000 * len(self.snapshots)
        last_partition = max((one.field_id for spec in self.specs for one in spec), default=999)
        return {
            "format-version": self.format_version,
            "table-uuid": str(uuid5(NAMESPACE_URL, f"icestream-conformance/{self.name}")),
            "location": self.location,
            "last-sequence-number": self.sequence,
            "last-updated-ms": millis,
            "last-column-id": self._last_column_id,
            "current-schema-id": self.schemas[-1]["schema-id"],
            "schemas": self.schemas,
            "default-spec-id": self.spec_id,
            "partition-specs": [
                {"spec-id": spec_id, "fields": [one.json for one in spec]}
                for spec_id, spec in enumerate(self.specs)
            ],
            "last-partition-id": last_partition,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": self.properties,
            "current-snapshot-id": self.current,
            **({"next-row-id": self.next_row_id} if self.format_version > 2 else {}),
            "snapshots": self.snapshots,
            "snapshot-log": [{"timestamp-ms": at, "snapshot-id": one} for at, one in self._log],
            "metadata-log": [],
            "refs": self.refs,
        }


def _totals(manifests: Iterable[Manifest]) -> dict[str, str]:
    """The optional totals of a summary, without which Spark's `register_table` fails."""
    live = [one.file for of in manifests for one in of.entries if one.status != _DELETED]
    records = [sum(one.record_count for one in live if one.content == content) for content in range(3)]
    totals = {
        "total-records": records[DATA],
        "total-files-size": sum(one.size for one in live),
        "total-data-files": sum(one.content == DATA for one in live),
        "total-delete-files": sum(one.content != DATA for one in live),
        "total-position-deletes": records[POSITION_DELETES],
        "total-equality-deletes": records[EQUALITY_DELETES],
    }
    return {name: str(total) for name, total in totals.items()}


def _ids(fields: Iterable[Field]) -> list[int]:
    found = []
    for one in fields:
        found += [one["id"], *_ids(fields_of(one["type"]) or ())]
    return found


def _id_of(fields: Iterable[Field], name: str) -> int:
    first, _, rest = name.partition(".")
    found = next(one for one in fields if one["name"] == first)
    return _id_of(fields_of(found["type"]) or (), rest) if rest else int(found["id"])


def _metrics(fields: Sequence[Field], rows: Sequence[Row]) -> dict[str, dict[int, Any]]:
    found: dict[str, dict[int, Any]] = defaultdict(dict)
    for one in fields:
        below = fields_of(one["type"])
        values = [row.get(one["name"]) for row in rows]
        if below is not None:
            for name, of in _metrics(below, [value or {} for value in values]).items():
                found[name] |= of
            continue
        known = [value for value in values if value is not None]
        found["value_counts"][one["id"]] = len(values)
        found["null_value_counts"][one["id"]] = len(values) - len(known)
        if one["type"] in ("float", "double"):
            found["nan_value_counts"][one["id"]] = sum(value != value for value in known)
        low, high = bounds(one["type"], known)
        if low is not None:
            found["lower_bounds"][one["id"]] = low
        if high is not None:
            found["upper_bounds"][one["id"]] = high
    return dict(found)


# Manifests and lists of them, as the spec's tables of fields have them.


def _optional(name: str, kind: Any, field_id: int) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None, "field-id": field_id}


def _required(name: str, kind: Any, field_id: int) -> dict[str, Any]:
    return {"name": name, "type": kind, "field-id": field_id}


def _map(key: int, value: int, kind: str) -> Any:
    record = {
        "type": "record",
        "name": f"k{key}_v{value}",
        "fields": [_required("key", "int", key), _required("value", kind, value)],
    }
    return {"type": "array", "items": record, "logicalType": "map"}


_METRICS = (
    ("value_counts", 109, _map(119, 120, "long")),
    ("null_value_counts", 110, _map(121, 122, "long")),
    ("nan_value_counts", 137, _map(138, 139, "long")),
    ("lower_bounds", 125, _map(126, 127, "bytes")),
    ("upper_bounds", 128, _map(129, 130, "bytes")),
)


def _entry_schema(spec: Sequence[PartitionField], format_version: int) -> dict[str, Any]:
    partition = {
        "type": "record",
        "name": "r102",
        "fields": [_optional(one.name, avro_type(one.kind, one.field_id), one.field_id) for one in spec],
    }
    equality_ids = {"type": "array", "items": "int", "element-id": 136}
    sequences = [_optional("sequence_number", "long", 3), _optional("file_sequence_number", "long", 4)]
    of_vectors = [_optional("content_offset", "long", 144), _optional("content_size_in_bytes", "long", 145)]
    fields = [
        *([_required("content", "int", 134)] if format_version > 1 else []),
        _required("file_path", "string", 100),
        _required("file_format", "string", 101),
        _required("partition", partition, 102),
        _required("record_count", "long", 103),
        _required("file_size_in_bytes", "long", 104),
        *([_required("block_size_in_bytes", "long", 105)] if format_version == 1 else []),
        *(_optional(name, kind, field_id) for name, field_id, kind in _METRICS),
        *([_optional("equality_ids", equality_ids, 135)] if format_version > 1 else []),
        _optional("sort_order_id", "int", 140),
        *([_optional("first_row_id", "long", 142)] if format_version > 2 else []),
        *([_optional("referenced_data_file", "string", 143)] if format_version > 1 else []),
        *(of_vectors if format_version > 2 else []),
    ]
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _required("status", "int", 0),
            (_optional if format_version > 1 else _required)("snapshot_id", "long", 1),
            *(sequences if format_version > 1 else []),
            _required("data_file", {"type": "record", "name": "r2", "fields": fields}, 2),
        ],
    }


def _entry(entry: Entry, spec: Sequence[PartitionField]) -> dict[str, Any]:
    """Sequence numbers of files that the commit adds are inherited, unless they are older."""
    file = entry.file
    inherits = entry.status == _ADDED and entry.data_sequence == entry.file_sequence
    is_of_one = file.content == POSITION_DELETES and len(file.positions) == 1 and file.names_data_file
    of_vectors = dict(
        zip(("content_offset", "content_size_in_bytes"), file.blob or (None, None), strict=True)
    )
    data_file = {
        "content": file.content,
        "file_path": file.path,
        "file_format": file.file_format.upper(),
        "partition": {one.name: avro_value(one.kind, file.partition.get(one.name)) for one in spec},
        "record_count": file.record_count,
        "file_size_in_bytes": file.size,
        "block_size_in_bytes": 64 * 1024**2,  # of version 1, where it has no meaning any more
        **{
            name: [{"key": key, "value": value} for key, value in file.metrics[name].items()]
            if file.metrics.get(name)
            else None
            for name, _, _ in _METRICS
        },
        "equality_ids": list(file.equality_ids) or None,
        "sort_order_id": None if file.content == POSITION_DELETES else 0,
        "first_row_id": entry.first_row_id if entry.status != _ADDED else None,
        "referenced_data_file": next(iter(file.positions)) if is_of_one else None,
        **of_vectors,
    }
    return {  # of which a schema takes what its version has
        "status": entry.status,
        "snapshot_id": entry.snapshot_id,
        "sequence_number": None if inherits else entry.data_sequence,
        "file_sequence_number": None if entry.status == _ADDED else entry.file_sequence,
        "data_file": data_file,
    }


def _manifest_list(format_version: int) -> dict[str, Any]:
    summary = {
        "type": "record",
        "name": "r508",
        "fields": [
            _required("contains_null", "boolean", 509),
            _optional("contains_nan", "boolean", 518),
            _optional("lower_bound", "bytes", 510),
            _optional("upper_bound", "bytes", 511),
        ],
    }
    counts = [
        _required(f"{status}_{what}_count", kind, first + at)
        for what, kind, first in (("files", "int", 504), ("rows", "long", 512))
        for at, status in enumerate(("added", "existing", "deleted"))
    ]
    of_deletes = [
        _required("content", "int", 517),
        _required("sequence_number", "long", 515),
        _required("min_sequence_number", "long", 516),
    ]
    return {
        "type": "record",
        "name": "manifest_file",
        "fields": [
            _required("manifest_path", "string", 500),
            _required("manifest_length", "long", 501),
            _required("partition_spec_id", "int", 502),
            *(of_deletes if format_version > 1 else []),
            _required("added_snapshot_id", "long", 503),
            *counts,
            _optional("partitions", {"type": "array", "items": summary, "element-id": 508}, 507),
            *([_optional("first_row_id", "long", 520)] if format_version > 2 else []),
        ],
    }


def _manifest_file(manifest: Manifest, spec: Sequence[PartitionField], format_version: int) -> dict[str, Any]:
    live = [one for one in manifest.entries if one.status != _DELETED]
    record: dict[str, Any] = {
        "manifest_path": manifest.path,
        "manifest_length": manifest.size,
        "partition_spec_id": manifest.spec_id,
        "content": manifest.content,
        "sequence_number": manifest.sequence,
        "min_sequence_number": min((one.data_sequence for one in live), default=manifest.sequence),
        "added_snapshot_id": manifest.snapshot_id,
        "partitions": [_summary(manifest, one) for one in spec] or None,
    }
    for status, name in ((_ADDED, "added"), (_EXISTING, "existing"), (_DELETED, "deleted")):
        of_status = [one.file.record_count for one in manifest.entries if one.status == status]
        record |= {f"{name}_files_count": len(of_status), f"{name}_rows_count": sum(of_status)}
    return record | ({"first_row_id": manifest.first_row_id} if format_version > 2 else {})


def _summary(manifest: Manifest, one: PartitionField) -> dict[str, Any]:
    values = [entry.file.partition.get(one.name) for entry in manifest.entries]
    low, high = bounds(one.kind, [value for value in values if value is not None])
    return {
        "contains_null": None in values,
        "contains_nan": False,
        "lower_bound": low,
        "upper_bound": high,
    }
