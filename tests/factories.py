"""Builders of real Iceberg tables with every kind of delete file, and the reader that says what is visible.

Files are written by pyarrow, described in Iceberg's own JSON and committed by Iceberg Java through Spark's
JVM, so that a test decides about every file, sequence number and partition. Nothing here imports the code
under test.

    spark = spark_session()
    catalog = sqlite_catalog(spark, "local", tmp_path)
    table = TableBuilder.create(spark, "local.db.t", "id bigint, region string", format_version=3)
    table.append([{"id": 1, "region": "eu"}, {"id": 2, "region": "us"}])
    table.delete_keys([{"id": 1}])
    visible_rows(spark, "local.db.t")  # Counter({(2, "us"): 1})
"""

import json
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyarrow import orc
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.conversions import to_json
from pyiceberg.io.pyarrow import (
    PyArrowFileIO,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
)
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from stores.table_metadata import parse_table_metadata
from worker.spark.session import create_spark

POSITION_DELETE_SCHEMA = Schema(
    NestedField(2147483546, "file_path", StringType(), required=True),
    NestedField(2147483545, "pos", LongType(), required=True),
)

Rows: TypeAlias = Sequence[Mapping[str, Any]] | pa.Table

SMALL_TABLES = {
    "spark.sql.shuffle.partitions": "2",
    # To plan again in the middle of a query costs more than it can save.
    "spark.sql.adaptive.enabled": "false",
    # Nearly every table has a schema of its own: compiling code for it takes longer than reading its rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings of Spark under which queries of small tables take the least."""

tables_in_use: "dict[str, TableBuilder]" = {}
"""By identifier: those that the present test has looked at or written to; see tests.faults.live_files."""
_namespaces: set[tuple[str | None, str]] = set()
"""Those that are there, with the addresses of their catalogs."""


def spark_session(*, cores: int = 2) -> SparkSession:
    """Return the process's Spark session, that of a worker: whoever is first starts the JVM for all tests."""
    if pyspark.__version__.startswith("3."):  # which knows CALL only from Iceberg's extensions
        extensions = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        os.environ.setdefault(
            "PYSPARK_SUBMIT_ARGS", f"--conf spark.sql.extensions={extensions} pyspark-shell"
        )
    session = create_spark(f"local[{cores}]", "tests")
    suit_small_tables(session)
    return session


def suit_small_tables(session: SparkSession) -> None:
    """Sets what is of a session alone, and so of each new one."""
    for key, value in SMALL_TABLES.items():
        session.conf.set(key, value)
    session.conf.set("spark.sql.shuffle.partitions", str(session.sparkContext.defaultParallelism))


@dataclass(frozen=True)
class Catalog:
    """An Iceberg catalog in a SQLite file, the same one for Spark, Flink and PyIceberg."""

    name: str
    database: Path
    warehouse: str

    @property
    def type(self) -> str:
        return "sql"

    @property
    def properties(self) -> dict[str, str]:
        """What PyIceberg and the HTTP API want of a catalog of type `sql`."""
        return {"uri": f"sqlite:///{self.database}", "warehouse": self.warehouse}

    @property
    def jdbc_uri(self) -> str:
        # No test needs it after a crash of the machine, and each commit would wait for the disk.
        return f"jdbc:sqlite:{self.database}?synchronous=OFF"


def sqlite_catalog(spark: SparkSession, name: str, directory: Path) -> Catalog:
    """Make a catalog in `directory` known to Spark as `name`, a name not used before in this process."""
    directory.mkdir(parents=True, exist_ok=True)
    catalog = Catalog(name, directory / "catalog.db", (directory / "warehouse").as_uri())
    register_jdbc_catalog(spark, name, catalog.jdbc_uri, catalog.warehouse)
    return catalog


def register_jdbc_catalog(
    spark: SparkSession, name: str, uri: str, warehouse: str, further: Mapping[str, str] | None = None
) -> None:
    """Make a catalog in a database known to Spark. further: settings of it."""
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        ".uri": uri,
        ".warehouse": warehouse,
        ".jdbc.schema-version": "V1",
        # Others write these tables while the oracle looks.
        ".cache-enabled": "false",
        **{f".{key}": value for key, value in (further or {}).items()},
    }
    for key, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.{name}{key}", value)


def visible_rows(
    spark: SparkSession,
    identifier: str,
    *,
    snapshot_id: int | None = None,
    branch: str | None = None,
) -> Counter[tuple[Any, ...]]:
    """Return the multiset of rows that Iceberg's Java readers show, columns in the table's order.

    The generic reader, in a third of the time that a query of Spark takes; Spark's where values have another
    type in JSON, and for what is not the table's present state.
    """
    if snapshot_id is None and branch is None:
        java = _java_table(spark, identifier)
        schema = Schema.model_validate_json(_iceberg(spark).SchemaParser.toJson(java.schema()))
        if all(isinstance(field.field_type, _ALIKE_IN_JSON) for field in schema.fields):
            return _generic_rows(spark, java, [str(field.field_id) for field in schema.fields])
    return spark_rows(spark, identifier, snapshot_id=snapshot_id, branch=branch)


def spark_rows(
    spark: SparkSession,
    identifier: str,
    *,
    snapshot_id: int | None = None,
    branch: str | None = None,
) -> Counter[tuple[Any, ...]]:
    """As `visible_rows`, by Iceberg's reader in Spark: for tests of what readers show."""
    version = f" VERSION AS OF {snapshot_id}" if snapshot_id is not None else ""
    if branch is not None:
        version = f" VERSION AS OF '{branch}'"
    rows = collected(spark.sql(f"SELECT * FROM {identifier}{version}"))
    return Counter(zip(*(map(_hashable, column.to_pylist()) for column in rows.columns), strict=True))


_ALIKE_IN_JSON = (BooleanType, IntegerType, LongType, StringType)


def _generic_rows(spark: SparkSession, java: Any, field_ids: Sequence[str]) -> Counter[tuple[Any, ...]]:
    iceberg = _iceberg(spark)
    reading = iceberg.data.IcebergGenerics.read(java).build()
    try:
        # At once: a call for each value would take longer than to read them.
        records = iceberg.relocated.com.google.common.collect.Lists.newArrayList(reading)
    finally:
        reading.close()
    columns = iceberg.relocated.com.google.common.collect.Lists.newArrayList(java.schema().columns())
    columns.add(iceberg.MetadataColumns.ROW_POSITION)  # which the rows of a file with position deletes have
    kind = iceberg.types.Types.ListType.ofRequired(1, iceberg.types.Types.StructType.of(columns))
    rows = json.loads(iceberg.SingleValueParser.toJson(kind, records))
    return Counter(tuple(row.get(field_id) for field_id in field_ids) for row in rows)


def _iceberg(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm.org.apache.iceberg  # type: ignore[union-attr]


def collected(frame: Any) -> pa.Table:
    """Of a DataFrame: `toArrow`, which that of Spark 3.5 has not."""
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    batches: list[pa.RecordBatch] = frame._collect_as_arrow()
    return pa.Table.from_batches(batches, to_arrow_schema(frame.schema))


def _hashable(value: Any) -> Any:
    return (
        tuple((name, _hashable(part)) for name, part in value.items()) if isinstance(value, dict) else value
    )


def live_delete_files(spark: SparkSession, identifier: str) -> list[dict[str, Any]]:
    """Return the delete files of the current snapshot, from its manifests."""
    return _live_files(spark, _java_table(spark, identifier), "deleteManifests", "readDeleteManifest")


def equality_delete_files(spark: SparkSession, identifier: str) -> list[dict[str, Any]]:
    """Return the live equality delete files of the current snapshot."""
    return [file for file in live_delete_files(spark, identifier) if file["content"] == 2]


def _java_table(spark: SparkSession, identifier: str) -> Any:
    """Iceberg's `Table`, freshly loaded."""
    jvm: Any = spark.sparkContext._jvm
    return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, identifier)


def _live_files(spark: SparkSession, java: Any, manifests: str, read: str) -> list[dict[str, Any]]:
    """Some columns of Spark's metadata tables, a query of which takes ten times as long."""
    iceberg = _iceberg(spark)
    snapshot, io, specs = java.currentSnapshot(), java.io(), java.specs()
    found: list[dict[str, Any]] = []
    for manifest in getattr(snapshot, manifests)(io).toArray() if snapshot is not None else ():
        reader = getattr(iceberg.ManifestFiles, read)(manifest, io, specs)
        try:
            files = reader.iterator()
            while files.hasNext():
                file = files.next()
                found.append(
                    {
                        "content": file.content().id(),
                        "file_path": file.location(),
                        "file_format": file.format().name(),
                        "record_count": file.recordCount(),
                        "sequence_number": file.dataSequenceNumber(),
                        "referenced_data_file": file.referencedDataFile() if file.content().id() else None,
                    }
                )
        finally:
            reader.close()
    return found


def garble(path: Path) -> None:
    """Overwrites the pages of a Parquet file and leaves its footer as it is."""
    content = bytearray(path.read_bytes())
    footer_bytes = int.from_bytes(content[-8:-4], "little") + 8
    content[4:-footer_bytes] = b"\xff" * (len(content) - footer_bytes - 4)
    path.write_bytes(content)


@dataclass(frozen=True)
class WrittenFile:
    """A file on storage that no snapshot knows yet, as Iceberg's ContentFileParser describes it."""

    json: dict[str, Any]

    @property
    def path(self) -> str:
        path: str = self.json["file-path"]
        return path

    @property
    def is_delete(self) -> bool:
        return bool(self.json["content"] != "data")


def in_the_place_of(old: WrittenFile, new: WrittenFile) -> WrittenFile:
    """The new file's rows under the path of the old one, as a writer whose names repeat leaves them."""
    shutil.move(_local(new.path), _local(old.path))
    return replace(new, json={**new.json, "file-path": old.path})


class TableBuilder:
    """An Iceberg table to which a test adds exactly the files it wants, each commit one sequence number."""

    def __init__(self, spark: SparkSession, identifier: str) -> None:
        self.spark = spark
        self.identifier = identifier
        self.file_format = "parquet"  # of the next files: parquet, orc or avro
        self.local = _local  # where a file of Arrow's is written
        self.parquet: dict[str, Any] = {}  # options of pyarrow.parquet.write_table for the next files
        # Who writes the next files. Arrow's Parquet files don't say that a column is a UUID, and Iceberg then
        # takes it for a `fixed`; Iceberg's own writer takes numbers, text, UUIDs and structs of these.
        self.writer: Literal["arrow", "iceberg"] = "arrow"
        # Iceberg's `Table` as it was loaded last, and its metadata file then: for when the catalog has ended.
        self.last_seen: tuple[Any, str] | None = None
        # Of every file written here, committed or not.
        self._written: dict[str, tuple[PartitionSpec, list[Any]]] = {}

    @classmethod
    def create(
        cls,
        spark: SparkSession,
        identifier: str,
        columns: str = "id bigint, region string, value bigint",
        *,
        format_version: Literal[2, 3] = 2,
        partitioned_by: Sequence[str] = (),
        identifier_fields: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> "TableBuilder":
        """Create `catalog.namespace.table`; columns and partitions in Spark SQL, as `bucket(4, id)`."""
        catalog, namespace = identifier.partition(".")[0], identifier.rpartition(".")[0]
        place = spark.conf.get(f"spark.sql.catalog.{catalog}.uri", ""), namespace
        if place not in _namespaces:  # to ask costs a third of the table
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
            _namespaces.add(place)
        properties = {"format-version": str(format_version), **(properties or {})}
        assignments = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
        spark.sql(
            f"CREATE TABLE {identifier} ({columns}) USING iceberg"
            + (f" PARTITIONED BY ({', '.join(partitioned_by)})" if partitioned_by else "")
            + f" TBLPROPERTIES ({assignments})"
        )
        table = cls(spark, identifier)
        if identifier_fields:
            table.java.updateSchema().setIdentifierFields(list(identifier_fields)).commit()
        return table

    # What the table is now.

    @cached_property
    def _jvm(self) -> Any:
        return self.spark.sparkContext._jvm

    @cached_property
    def _iceberg(self) -> Any:
        return self._jvm.org.apache.iceberg

    @cached_property
    def _gateway(self) -> Any:
        return self.spark.sparkContext._gateway

    @property
    def java(self) -> Any:
        """Return Iceberg's `Table`, freshly loaded."""
        tables_in_use[self.identifier] = self
        java = _java_table(self.spark, self.identifier)
        self.last_seen = java, java.operations().current().metadataFileLocation()
        return java

    @property
    def metadata_location(self) -> str:
        location: str = self.java.operations().current().metadataFileLocation()
        return location

    @property
    def metadata(self) -> TableMetadata:
        current = self.java.operations().current()
        said: str = self._iceberg.TableMetadataParser.toJson(current)
        return parse_table_metadata(said.encode())

    @property
    def snapshot_id(self) -> int | None:
        return self.metadata.current_snapshot_id

    @property
    def data_file_paths(self) -> list[str]:
        """Return the paths of the live data files, oldest data sequence number first."""
        files = _live_files(self.spark, self.java, "dataManifests", "read")
        return [path for _, path in sorted((file["sequence_number"], file["file_path"]) for file in files)]

    # One call, one commit.

    def append(self, rows: Rows, *, files: int = 1, **how: Any) -> list[str]:
        """Commit rows as data files, `files` for each partition, and return the paths."""
        written = self.data_files(rows, files=files, **how)
        self.commit(*written)
        return [file.path for file in written]

    def delete_keys(self, keys: Rows, **how: Any) -> list[str]:
        """Commit equality deletes and return the paths; see `equality_deletes`."""
        written = self.equality_deletes(keys, **how)
        self.commit(*written)
        return [file.path for file in written]

    def upsert(self, rows: Rows, *, key: Sequence[str]) -> None:
        """Commit rows and the equality deletes of their keys together, as streaming writers do."""
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist([dict(row) for row in rows])
        self.commit(*self.data_files(table), *self.equality_deletes(table, equality_columns=key))

    def delete_positions(self, positions: Mapping[str, Sequence[int]]) -> None:
        """Commit position deletes in V2 and deletion vectors in V3, keyed by data file path."""
        if self.metadata.format_version == 2:
            self.commit(*self.position_deletes(positions))
        else:
            self.commit(*self.deletion_vectors(positions))

    def compact(self) -> None:
        """Rewrite all data files, by Iceberg's own procedure in Spark."""
        catalog = self.identifier.partition(".")[0]
        self.spark.sql(
            f"CALL {catalog}.system.rewrite_data_files("
            f"table => '{self.identifier}', options => map('rewrite-all', 'true'))"
        )

    def commit(self, *files: WrittenFile, branch: str = "main") -> None:
        """Commit the files as one RowDelta, or as one append when there are only data files."""
        table = self.java
        deletes = any(file.is_delete for file in files)
        update = (table.newRowDelta() if deletes else table.newAppend()).toBranch(branch)
        specs = table.specs()
        for file in files:
            content_file = self.parsed(file, specs)
            if file.is_delete:
                update.addDeletes(content_file)
            elif deletes:
                update.addRows(content_file)
            else:
                update.appendFile(content_file)
        update.commit()

    # Files that wait for their commit.

    def parsed(self, file: WrittenFile, specs: Any = None) -> Any:
        """Return the file as Iceberg's `ContentFile`; `specs` are the table's, if they are at hand."""
        iceberg = self._iceberg
        content_file = iceberg.util.JsonUtil.mapper().readTree(json.dumps(file.json))
        return iceberg.ContentFileParser.fromJson(content_file, specs or self.java.specs())

    def data_files(
        self,
        rows: Rows,
        *,
        files: int = 1,
        columns: Sequence[str] | None = None,
        schema_id: int | None = None,
        spec_id: int | None = None,
        row_group_rows: int | None = None,
    ) -> list[WrittenFile]:
        """Write data files, `files` for each partition of `rows`.

        `columns` leaves the others out of the file, as a file from before they were added does; `schema_id`
        and `spec_id` choose an older schema or spec than the current one.
        """
        metadata = self.metadata
        schema, spec = _schema(metadata, schema_id), _spec(metadata, spec_id)
        written = []
        for partition, part in _by_partition(_to_arrow(rows, schema), schema, spec):
            size = -(-part.num_rows // files)
            for start in range(0, part.num_rows, size):
                written.append(
                    self._write(
                        part.slice(start, size),
                        schema.select(*columns) if columns else schema,
                        spec,
                        partition,
                        {"content": "data"},
                        row_group_rows,
                    )
                )
        return written

    def equality_deletes(
        self,
        keys: Rows,
        *,
        equality_columns: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        partition_of: Mapping[str, Any] | None = None,
        schema_id: int | None = None,
        spec_id: int | None = None,
    ) -> list[WrittenFile]:
        """Write equality delete files, one for each partition of `keys`.

        `equality_columns` are the columns compared (default: those of `keys`); `columns` are those in the
        file (default: the same; more of them make the full-row deletes of changelog writers). Keys must hold
        the partition's source columns, or `partition_of` gives a row of the partition that they are all for.
        """
        metadata = self.metadata
        schema, spec = _schema(metadata, schema_id), _spec(metadata, spec_id)
        given = _columns_of(keys)
        equality_columns = equality_columns or given
        file_schema = schema.select(*(columns or equality_columns))
        if partition_of is None:
            parts = _by_partition(_to_arrow(keys, schema), schema, spec)
        else:
            parts = [(_partition_of(partition_of, schema, spec), _to_arrow(keys, schema))]
        ids = [schema.find_field(name).field_id for name in equality_columns]
        description = {"content": "equality-deletes", "equality-ids": ids}
        return [self._write(part, file_schema, spec, partition, description) for partition, part in parts]

    def position_deletes(self, positions: Mapping[str, Sequence[int]]) -> list[WrittenFile]:
        """Write one position delete file for each data file, with that file's spec and partition."""
        return [
            self._position_delete_file({path: of_file}, {"referenced-data-file": path})
            for path, of_file in positions.items()
        ]

    def shared_position_deletes(self, positions: Mapping[str, Sequence[int]]) -> WrittenFile:
        """Write one position delete file for several data files of one partition; it names none of them."""
        return self._position_delete_file(positions, {})

    def _position_delete_file(
        self, positions: Mapping[str, Sequence[int]], description: dict[str, Any]
    ) -> WrittenFile:
        deletes = [
            {"file_path": path, "pos": at} for path in sorted(positions) for at in sorted(positions[path])
        ]
        rows = _to_arrow(deletes, POSITION_DELETE_SCHEMA)
        spec, partition = self._spec_and_partition_of(next(iter(positions)))
        description = {"content": "position-deletes", **description}
        return self._write(rows, POSITION_DELETE_SCHEMA, spec, partition, description)

    def deletion_vectors(self, positions: Mapping[str, Sequence[int]]) -> list[WrittenFile]:
        """Write one Puffin file with a deletion vector for each data file; none of these may have one yet."""
        jvm, path = self._jvm, self._new_path("puffin")
        writer = jvm.org.apache.iceberg.puffin.Puffin.write(self.java.io().newOutputFile(path)).build()
        written = []
        for data_file, of_file in positions.items():
            array = self._gateway.new_array(jvm.long, len(of_file))
            for at, position in enumerate(of_file):
                array[at] = position
            deleted = jvm.org.apache.iceberg.deletes.Deletes.toPositionIndex(
                jvm.org.apache.iceberg.io.CloseableIterable.of(
                    jvm.java.util.stream.LongStream.of(array).boxed().toList()
                )
            )
            # -1 stands for the snapshot and the sequence number that the commit will give.
            blob = writer.write(
                jvm.org.apache.iceberg.puffin.Blob(
                    "deletion-vector-v1",
                    jvm.java.util.List.of(2147483645),
                    -1,
                    -1,
                    deleted.serialize(),
                    None,
                    {"referenced-data-file": data_file, "cardinality": str(len(set(of_file)))},
                )
            )
            spec, partition = self._spec_and_partition_of(data_file)
            written.append(
                {
                    "content": "position-deletes",
                    "spec-id": spec.spec_id,
                    "partition": partition,
                    "file-path": path,
                    "file-format": "puffin",
                    "record-count": len(set(of_file)),
                    "referenced-data-file": data_file,
                    "content-offset": blob.offset(),
                    "content-size-in-bytes": blob.length(),
                }
            )
        writer.close()
        size = writer.fileSize()
        return [WrittenFile({**dv, "file-size-in-bytes": size}) for dv in written]

    def _new_path(self, extension: str) -> str:
        java, _ = self.last_seen or (self.java, "")
        return f"{java.location()}/data/{uuid.uuid4()}.{extension}"

    def _write(
        self,
        rows: pa.Table,
        schema: Schema,
        spec: PartitionSpec,
        partition: list[Any],
        description: dict[str, Any],
        row_group_rows: int | None = None,
    ) -> WrittenFile:
        """Write one file with field ids; a Parquet file is described with the statistics that writers add."""
        path = self._new_path(self.file_format)
        self._written[path] = (spec, partition)
        if self.writer == "iceberg":
            described = self._write_by_iceberg(rows, schema, path)
            return WrittenFile({**described, **description, "spec-id": spec.spec_id, "partition": partition})
        local = self.local(path)
        local.parent.mkdir(parents=True, exist_ok=True)
        arrow_schema = schema_to_pyarrow(schema)
        columns = [rows.column(field.name).cast(field.type) for field in arrow_schema]
        typed = pa.Table.from_arrays(columns, schema=arrow_schema)
        statistics: dict[str, Any] = {}
        if self.file_format == "orc":
            orc.write_table(typed.cast(pa.schema([_orc_field(field) for field in arrow_schema])), local)
        elif self.file_format == "avro":
            _write_avro(typed, schema, path)
        else:
            options = {"compression": "zstd", "row_group_size": row_group_rows, **self.parquet}
            pq.write_table(typed, local, store_schema=False, **options)
            statistics = parquet_statistics(schema, local)
        return WrittenFile(
            {
                **description,
                "spec-id": spec.spec_id,
                "partition": partition,
                "file-path": path,
                "file-format": self.file_format,
                "file-size-in-bytes": local.stat().st_size,
                "record-count": rows.num_rows,
                **statistics,
            }
        )

    def _write_by_iceberg(self, rows: pa.Table, schema: Schema, path: str) -> dict[str, Any]:
        """Write one file by Iceberg's generic writer, and return its description of an unpartitioned file."""
        iceberg, table = self._iceberg, self.java
        java_schema = iceberg.SchemaParser.fromJson(schema.model_dump_json())
        unpartitioned = iceberg.PartitionSpec.unpartitioned()
        writers = (
            iceberg.data.GenericFileWriterFactory.Builder(table)
            .dataSchema(java_schema)
            .dataFileFormat(iceberg.FileFormat.fromString(self.file_format))
            .build()
        )
        output = iceberg.encryption.EncryptedFiles.plainAsEncryptedOutput(table.io().newOutputFile(path))
        writer = writers.newDataWriter(output, unpartitioned, None)
        parse, read = iceberg.SingleValueParser.fromJson, iceberg.util.JsonUtil.mapper().readTree
        for row in rows.select([field.name for field in schema.fields]).to_pylist():
            writer.write(
                parse(java_schema.asStruct(), read(json.dumps(_struct_json(schema.as_struct(), row))))
            )
        writer.close()
        json_of_file = iceberg.ContentFileParser.toJson(writer.toDataFile(), unpartitioned)
        described: dict[str, Any] = json.loads(json_of_file)
        return {**described, "file-path": path}

    def _spec_and_partition_of(self, path: str) -> tuple[PartitionSpec, list[Any]]:
        if path in self._written:
            return self._written[path]
        entry = self.spark.sql(
            f"SELECT data_file.* FROM {self.identifier}.entries "
            f"WHERE status < 2 AND data_file.file_path = '{path}'"
        ).first()
        assert entry is not None, f"{path} is not a live data file"
        metadata = self.metadata
        spec = _spec(metadata, entry["spec_id"])
        values = [entry["partition"][field.name] for field in spec.fields]
        return spec, _partition_json(values, metadata.schema(), spec)


def parquet_statistics(schema: Schema, path: Path) -> dict[str, Any]:
    """Those that writers add to the description of a Parquet file, in Iceberg's JSON."""
    plan, ids = compute_statistics_plan(schema, {}), parquet_path_to_id_mapping(schema)
    found = data_file_statistics_from_parquet_metadata(pq.read_metadata(path), plan, ids).to_serialized_dict()
    return {
        name.replace("_", "-"): _json_map(found[name])
        for name in ("value_counts", "null_value_counts", "lower_bounds", "upper_bounds")
        if name in found
    }


def _orc_field(field: pa.Field) -> pa.Field:
    """The field with its id under the name that ORC files use."""
    field_type = field.type
    if pa.types.is_struct(field_type):
        field_type = pa.struct([_orc_field(child) for child in field_type])
    ids = {
        "iceberg.id": field.metadata[b"PARQUET:field_id"],
        "iceberg.required": str(not field.nullable).lower(),
    }
    return pa.field(field.name, field_type, field.nullable, metadata=ids)


def _write_avro(rows: pa.Table, schema: Schema, path: str) -> None:
    columns = [_avro_values(column) for column in rows.columns]
    # PyIceberg writes the defaults for new rows into the file, too, and fails if JSON has no type for one.
    schema = Schema(*(field.model_copy(update={"write_default": None}) for field in schema.fields))
    with AvroOutputFile[Record](PyArrowFileIO().new_output(path), schema, "table") as file:
        file.write_block([Record(*values) for values in zip(*columns, strict=True)])


def _avro_values(column: pa.ChunkedArray) -> list[Any]:
    """Days and ticks as numbers, as Avro has them."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type) or pa.types.is_time64(column.type):
        column = column.cast(pa.int64())
    return [_record(value) for value in column.to_pylist()]


def _record(value: Any) -> Any:
    return Record(*map(_record, value.values())) if isinstance(value, dict) else value


def _json_map(values: Mapping[int, Any]) -> dict[str, list[Any]]:
    return {
        "keys": list(values),
        "values": [value.hex().upper() if isinstance(value, bytes) else value for value in values.values()],
    }


def _local(location: str) -> Path:
    return Path(location.removeprefix("file://").removeprefix("file:"))


def _schema(metadata: TableMetadata, schema_id: int | None) -> Schema:
    wanted = metadata.current_schema_id if schema_id is None else schema_id
    return next(schema for schema in metadata.schemas if schema.schema_id == wanted)


def _spec(metadata: TableMetadata, spec_id: int | None) -> PartitionSpec:
    wanted = metadata.default_spec_id if spec_id is None else spec_id
    return next(spec for spec in metadata.partition_specs if spec.spec_id == wanted)


def _columns_of(rows: Rows) -> list[str]:
    return list(rows.column_names) if isinstance(rows, pa.Table) else list(rows[0])


def _to_arrow(rows: Rows, schema: Schema) -> pa.Table:
    """Give the rows the table's types; a column that they lack is null."""
    if isinstance(rows, pa.Table):
        arrow = schema_to_pyarrow(schema, include_field_ids=False)
        return pa.Table.from_arrays(
            [
                rows.column(field.name).cast(field.type)
                if field.name in rows.column_names
                else pa.nulls(rows.num_rows, field.type)
                for field in arrow
            ],
            names=arrow.names,
        )
    arrow = schema_to_pyarrow(schema, include_field_ids=False)
    nullable = pa.schema([field.with_nullable(True) for field in arrow])
    return pa.Table.from_pylist([dict(row) for row in rows], schema=nullable)


def _partition_json(values: Sequence[Any], schema: Schema, spec: PartitionSpec) -> list[Any]:
    types = [field.transform.result_type(schema.find_type(field.source_id)) for field in spec.fields]
    return [_value_json(kind, value) for kind, value in zip(types, values, strict=True)]


def _value_json(kind: IcebergType, value: Any) -> Any:
    assert isinstance(kind, PrimitiveType)
    return None if value is None else to_json(kind, value)


def _struct_json(struct: StructType, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as Iceberg's JSON has it: by field id, without nulls."""
    return {
        str(field.field_id): _struct_json(field.field_type, row[field.name])
        if isinstance(field.field_type, StructType)
        else _value_json(field.field_type, row[field.name])
        for field in struct.fields
        if row[field.name] is not None
    }


def _partition_of(row: Mapping[str, Any], schema: Schema, spec: PartitionSpec) -> list[Any]:
    values = []
    for field in spec.fields:
        source = schema.find_field(field.source_id)
        values.append(field.transform.transform(source.field_type)(row.get(source.name)))
    return _partition_json(values, schema, spec)


def _by_partition(rows: pa.Table, schema: Schema, spec: PartitionSpec) -> list[tuple[list[Any], pa.Table]]:
    """Split rows by partition, in order of first appearance."""
    if not spec.fields:
        return [([], rows)]
    sources = list(dict.fromkeys(schema.find_field(field.source_id).name for field in spec.fields))
    positions: dict[tuple[Any, ...], list[int]] = {}
    values = zip(*(rows.column(source).to_pylist() for source in sources), strict=True)
    for at, value in enumerate(values):
        positions.setdefault(value, []).append(at)
    by_partition: dict[str, list[int]] = {}
    for value, of_value in positions.items():
        partition = _partition_of(dict(zip(sources, value, strict=True)), schema, spec)
        by_partition.setdefault(json.dumps(partition), []).extend(of_value)
    return [
        (json.loads(partition), rows.take(sorted(of_partition)))
        for partition, of_partition in by_partition.items()
    ]
