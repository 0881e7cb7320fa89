"""A table that histories commit to directly: what `TableBuilder` asks of Spark is asked of one Java object.

Its files are known to the model as soon as they are written; live delete files are read by Iceberg Java.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.puffin import PuffinFile
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from tests.factories import POSITION_DELETE_SCHEMA, TableBuilder, WrittenFile
from tests.factories import _to_arrow as to_arrow
from tests.readers import Rows, duckdb_rows
from tests.soak.values import from_json, shown, stored


@dataclass(frozen=True)
class LiveFile:
    """A live data or delete file as Iceberg's manifests have it."""

    file: WrittenFile
    sequence_number: int

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def content(self) -> str:
        content: str = self.file.json["content"]
        return content

    @property
    def referenced(self) -> str | None:
        """The only data file that a position delete file or a vector speaks of."""
        path: str | None = self.file.json.get("referenced-data-file")
        return path

    def positions(self) -> dict[str, set[int]]:
        """What a position delete file or a vector deletes, by data file."""
        local = local_path(self.path)
        if self.file.json["file-format"].lower() == "puffin":
            vectors = deletion_vectors_from_puffin_file(PuffinFile(local.read_bytes()))
            (mine,) = (one for one in vectors if one.referenced_data_file == self.referenced)
            return {mine.referenced_data_file: set(mine.to_vector().to_pylist())}
        found: dict[str, set[int]] = {}
        rows = pq.read_table(local)
        for path, position in zip(*(rows[name].to_pylist() for name in ("file_path", "pos")), strict=True):
            found.setdefault(path, set()).add(position)
        return found


class SoakTable(TableBuilder):
    """Loaded once; `refresh` after others committed, `forget` after changes of schema, specs or version."""

    def __init__(self, spark: SparkSession, identifier: str, java: Any) -> None:
        super().__init__(spark, identifier)
        self._java = java
        self._metadata: TableMetadata | None = None
        self._partitions: dict[str, tuple[int, list[Any]]] = {}

    @classmethod
    def make(
        cls,
        spark: SparkSession,
        catalog: Any,
        identifier: str,
        schema: Schema,
        properties: Mapping[str, str],
    ) -> SoakTable:
        """Create an unpartitioned table in a Java catalog, without Spark."""
        iceberg: Any = spark.sparkContext._jvm.org.apache.iceberg  # type: ignore[union-attr]
        table = catalog.createTable(
            iceberg.catalog.TableIdentifier.parse(identifier.partition(".")[2]),
            iceberg.SchemaParser.fromJson(schema.model_dump_json()),
            iceberg.PartitionSpec.unpartitioned(),
            dict(properties),
        )
        return cls(spark, identifier, table)

    @property
    def java(self) -> Any:
        return self._java

    def refresh(self) -> None:
        self._java.refresh()

    def forget(self) -> None:
        self._metadata = None

    @cached_property
    def iceberg(self) -> Any:
        return self._jvm.org.apache.iceberg

    # Looked up once: finding a class by its name is a call for each part of it.

    @cached_property
    def _read_json(self) -> Any:
        return self.iceberg.util.JsonUtil.mapper().readTree

    @cached_property
    def _content_files(self) -> Any:
        return self.iceberg.ContentFileParser

    @cached_property
    def _manifests(self) -> Any:
        return self.iceberg.ManifestFiles

    @cached_property
    def _values(self) -> Any:
        return self.iceberg.SingleValueParser

    @cached_property
    def _to_text(self) -> Any:
        return self.iceberg.relocated.com.google.common.collect.Iterables.toString

    @property
    def metadata_location(self) -> str:
        location: str = self._java.operations().current().metadataFileLocation()
        return location

    @property
    def metadata(self) -> TableMetadata:
        """Schemas, specs and version; snapshots may be old."""
        if self._metadata is None:
            self._metadata = FromInputFile.table_metadata(PyArrowFileIO().new_input(self.metadata_location))
        return self._metadata

    @property
    def snapshot_id(self) -> int | None:
        snapshot = self._java.currentSnapshot()
        return None if snapshot is None else int(snapshot.snapshotId())

    @property
    def sequence_number(self) -> int:
        """Of the head."""
        return int(self._java.currentSnapshot().sequenceNumber())

    @property
    def snapshot_ids(self) -> set[int]:
        return {snapshot.snapshotId() for snapshot in items(self._java.snapshots())}

    def schema_of(self, snapshot_id: int) -> Schema:
        schema_id = self._java.snapshot(snapshot_id).schemaId()
        return next(schema for schema in self.metadata.schemas if schema.schema_id == schema_id)

    # Files

    def write(
        self,
        rows: Sequence[Mapping[str, Any]],
        kinds: Mapping[str, str],
        schema: Schema,
        spec: PartitionSpec,
        partition: list[Any],
        description: Mapping[str, Any],
    ) -> WrittenFile:
        """Write one data or delete file with the columns of `schema`; `kinds` are their types by name."""
        plain = [{name: stored(kinds[name], value) for name, value in row.items()} for row in rows]
        written = self._write(to_arrow(plain, schema), schema, spec, partition, dict(description))
        _leave_out_bounds(written, {c.field_id for c in schema.fields if str(c.field_type) == "uuid"})
        self._partitions[written.path] = spec.spec_id, partition
        return written

    def knows(self, path: str, spec_id: int, partition: list[Any]) -> None:
        """Remember the partition of a file that others wrote."""
        self._partitions[path] = spec_id, partition

    def _spec_and_partition_of(self, path: str) -> tuple[PartitionSpec, list[Any]]:
        spec_id, partition = self._partitions[path]
        return self.metadata.specs()[spec_id], partition

    def positions_of_partition(self, positions: Mapping[str, Iterable[int]]) -> WrittenFile:
        """One position delete file that speaks of several data files of one spec and partition."""
        rows = [
            {"file_path": path, "pos": at} for path in sorted(positions) for at in sorted(positions[path])
        ]
        spec, partition = self._spec_and_partition_of(next(iter(positions)))
        file_format, self.file_format = self.file_format, "parquet"
        try:
            return self._write(
                to_arrow(rows, POSITION_DELETE_SCHEMA),
                POSITION_DELETE_SCHEMA,
                spec,
                partition,
                {"content": "position-deletes"},
            )
        finally:
            self.file_format = file_format

    # Commits

    def replace_deletes(self, added: Sequence[WrittenFile], removed: Sequence[LiveFile]) -> None:
        """One RowDelta that adds data and delete files and removes delete files."""
        update = self._java.newRowDelta()
        head = self._java.currentSnapshot()
        if head is not None:
            update.validateFromSnapshot(head.snapshotId())
        for file in added:
            (update.addDeletes if file.is_delete else update.addRows)(self._parsed(file))
        for live in removed:
            update.removeDeletes(self._parsed(live.file))
        update.commit()

    def drop_file(self, file: WrittenFile) -> None:
        self._java.newDelete().deleteFile(self._parsed(file)).commit()

    def rewrite(
        self, snapshot_id: int, sequence_number: int, old: Sequence[WrittenFile], new: Sequence[WrittenFile]
    ) -> None:
        """Replace data files as compaction does; the new ones keep the sequence number of its snapshot."""
        update = self._java.newRewrite().validateFromSnapshot(snapshot_id)
        for file in old:
            update.deleteFile(self._parsed(file))
        for file in new:
            update.addFile(self._parsed(file))
        update.dataSequenceNumber(sequence_number).commit()

    def _parsed(self, file: WrittenFile) -> Any:
        return self._content_files.fromJson(self._read_json(json.dumps(file.json)), self._java.specs())

    # What is there

    def live(self, *, deletes: bool) -> list[LiveFile]:
        """The live delete files of the head, or its data files."""
        snapshot = self._java.currentSnapshot()
        if snapshot is None:
            return []
        io, specs = self._java.io(), self._java.specs()
        found = []
        for manifest in items(snapshot.deleteManifests(io) if deletes else snapshot.dataManifests(io)):
            reader = (
                self._manifests.readDeleteManifest(manifest, io, specs)
                if deletes
                else self._manifests.read(manifest, io, specs)
            )
            spec = specs[manifest.partitionSpecId()]
            try:
                files = reader.iterator()
                while files.hasNext():
                    file = files.next()
                    described = json.loads(self._content_files.toJson(file, spec))
                    described["content"] = described["content"].lower().replace("_", "-")
                    found.append(LiveFile(WrittenFile(described), file.dataSequenceNumber()))
            finally:
                reader.close()
        return found

    def live_equality_deletes(self) -> set[str]:
        """The paths of the head's equality delete files; one call for each manifest."""
        snapshot = self._java.currentSnapshot()
        if snapshot is None:
            return set()
        io, specs = self._java.io(), self._java.specs()
        found: set[str] = set()
        for manifest in items(snapshot.deleteManifests(io)):
            reader = self._manifests.readDeleteManifest(manifest, io, specs)
            try:
                text = self._to_text(reader)
            finally:
                reader.close()
            assert text.count("content=") == text.count("file_path=")
            found.update(re.findall(r"content=equality_deletes, file_path=([^,]+),", text, re.IGNORECASE))
        return found

    # Readers: visible rows, with the columns in the order of the schema of what is read.

    def java_rows(self, kinds: Mapping[int, str], snapshot_id: int | None = None) -> Rows:
        """What Iceberg's generic reader in Java shows; kinds: types by field id, in the order of columns."""
        reading = self.iceberg.data.IcebergGenerics.read(self._java)
        if snapshot_id is not None:
            reading = reading.useSnapshot(snapshot_id)
        records = reading.build()
        rows: Rows = Counter()
        try:
            iterator = records.iterator()
            forms: list[tuple[Any, Any]] = []
            while iterator.hasNext():
                record = iterator.next()
                # Readers of files without deletes lack the columns that deletes need.
                if not forms or record.size() != forms[0][0].fields().size():
                    forms = self._json_forms(record.struct())
                values = self._json(record, forms)
                rows[tuple(from_json(kind, values.get(str(i))) for i, kind in kinds.items())] += 1
        finally:
            records.close()
        return rows

    def _json(self, record: Any, forms: list[tuple[Any, Any]]) -> dict[str, Any]:
        for struct, wrapper in list(forms):
            try:
                text = self._values.toJson(struct, wrapper.wrap(record))
            except (IllegalArgumentException, Py4JJavaError):  # each form refuses the other's in its own way
                forms.reverse()  # the next record is likely of the same file
                continue
            values: dict[str, Any] = json.loads(text)
            return values
        raise AssertionError(f"no JSON form of {record}")

    def _json_forms(self, struct: Any) -> list[tuple[Any, Any]]:
        """Types that make JSON of a record: UUIDs are Java's, or bytes if the file says no better."""
        types = self.iceberg.types.Types

        def having(uuid: Any) -> Any:
            columns = self._jvm.java.util.ArrayList()
            for column in items(struct.fields()):
                kind = uuid if str(column.type()) == "uuid" else column.type()
                columns.add(types.NestedField.optional(column.fieldId(), column.name(), kind))
            return types.StructType.of(columns)

        wrapper, fixed = self.iceberg.data.InternalRecordWrapper, having(types.FixedType.ofLength(16))
        # A wrapper leaves strings as they are, and so UUIDs that it takes for strings.
        return [(struct, wrapper(having(types.StringType.get()))), (fixed, wrapper(fixed))]

    def duckdb_rows(self, kinds: Sequence[str]) -> Rows:
        """What DuckDB shows of the head."""
        return _in_model_form(duckdb_rows(self), kinds)

    def spark_rows(self, kinds: Sequence[str], snapshot_id: int | None = None) -> Rows:
        """What Spark shows."""
        version = f" VERSION AS OF {snapshot_id}" if snapshot_id is not None else ""
        read = self.spark.sql(f"SELECT * FROM {self.identifier}{version}").toArrow()
        return _in_model_form(
            Counter(zip(*(column.to_pylist() for column in read.columns), strict=True)), kinds
        )


def items(java_list: Any) -> list[Any]:
    """The items of a Java list: py4j's iterators end with an exception, which takes as long as a commit."""
    return [java_list[at] for at in range(len(java_list))]


def _leave_out_bounds(file: WrittenFile, field_ids: set[int]) -> None:
    """Iceberg Java 1.12 compares the bounds of UUIDs as signed numbers, and prunes deletes that apply."""
    for name in file.json.keys() & {"lower-bounds", "upper-bounds"}:
        bounds = file.json[name]
        kept = [at for at, field_id in enumerate(bounds["keys"]) if field_id not in field_ids]
        file.json[name] = {part: [values[at] for at in kept] for part, values in bounds.items()}


def _in_model_form(rows: Rows, kinds: Sequence[str]) -> Rows:
    counted: Rows = Counter()
    for row, count in rows.items():
        counted[tuple(shown(kind, value) for kind, value in zip(kinds, row, strict=True))] += count
    return counted


def local_path(location: str) -> Path:
    return Path(location.removeprefix("file://").removeprefix("file:"))
