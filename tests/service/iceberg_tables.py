"""Real Iceberg tables through PyIceberg alone, with the equality deletes that PyIceberg itself cannot write.

An equality delete file is a Parquet file of key columns, listed in a delete manifest; both are written here
and committed as a snapshot through the catalog, as a streaming writer would.
"""

import json
import sqlite3
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate
from pyiceberg.typedef import Record, TableVersion
from pyiceberg.types import LongType, NestedField, StringType
from sqlalchemy import text

from service.catalogs.measure import summarized

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "region", StringType()))
ARROW = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("region", pa.string())])

_LONG_IDS = '"element-id":136,"element":"long"'


class _DeleteManifestWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    def _with_partition(self, format_version: TableVersion) -> Schema:
        # Ids of fields are int in the spec. PyIceberg takes them for long, which Java does not read.
        written = super()._with_partition(format_version).model_dump_json(by_alias=True)
        return Schema.model_validate_json(written.replace(_LONG_IDS, _LONG_IDS.replace("long", "int")))


@dataclass
class IcebergCatalog:
    """A SQLite catalog with a local warehouse in `directory`."""

    directory: Path
    name: str = "local"
    catalog: SqlCatalog = field(init=False)

    def __post_init__(self) -> None:
        # PyIceberg's own FileIO takes a location for a URL, and cuts it at a question mark.
        file_io = {"py-io-impl": "stores.file_io.LocationFileIO"}
        self.catalog = SqlCatalog(self.name, **self.properties, **file_io)

    @property
    def properties(self) -> dict[str, str]:
        return {
            "uri": f"sqlite:///{self.directory / 'cat.db'}",
            "warehouse": f"file://{self.directory / 'warehouse'}",
        }

    def create(self, name: str = "db.t", schema: Schema = SCHEMA) -> Table:
        """In a folder of its name, unless no place can be called like this."""
        self.catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        location = f"{self.properties['warehouse']}/{name.encode().hex()}" if "\\" in name else None
        return self.catalog.create_table(name, schema, location, properties={"format-version": "2"})

    def head(self, name: str) -> int:
        """Id of the current snapshot of a table that has one."""
        snapshot = self.catalog.load_table(name).current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def append(self, name: str, ids: list[int]) -> None:
        rows = pa.table({"id": ids, "region": ["eu"] * len(ids)}, schema=ARROW)
        self.catalog.load_table(name).append(rows)

    def delete_keys(
        self, name: str, keys: list[int] | list[str], *, branch: str = "main", column: str = "id"
    ) -> str:
        """Commit one equality delete file with these keys; returns its path."""
        table = self.catalog.load_table(name)
        deletes = _written(table, pa.table({column: keys}, schema=pa.schema([ARROW.field(column)])), column)
        _commit(table, [deletes], branch)
        return str(deletes.file_path)

    def delete_positions(self, name: str, positions: int) -> None:
        """Commit one position delete file that says to have so many rows; it is not there to be read."""
        table = self.catalog.load_table(name)
        deletes = DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=f"{table.location()}/data/{uuid.uuid4()}.parquet",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=positions,
            file_size_in_bytes=500,
        )
        _commit(table, [deletes], "main")

    def upsert(self, name: str, ids: list[int]) -> None:
        """Commit what Flink does with a checkpoint: these rows anew, and deletes of the ones before."""
        table = self.catalog.load_table(name)
        rows = pa.table({"id": ids, "region": ["us"] * len(ids)}, schema=ARROW)
        _commit(table, [_written(table, rows), _written(table, rows.select(["id"]), "id")], "main")

    def upgrade_to_v3(self, name: str) -> None:
        """Rewrite the table's metadata as format version 3, which PyIceberg reads but does not write."""
        self.rewrite(name, {"format-version": 3, "next-row-id": 0})

    def metadata(self, name: str) -> dict[str, Any]:
        """As JSON has it."""
        location = self.catalog.load_table(name).metadata_location.removeprefix("file://")
        found: dict[str, Any] = json.loads(Path(location).read_text())
        return found

    def rewrite(self, name: str, changes: Mapping[str, Any]) -> None:
        """Puts another metadata file in the place of the table's, whatever PyIceberg would say to it."""
        table = self.catalog.load_table(name)
        after = table.metadata_location.removeprefix("file://").replace(".metadata.json", "-n.metadata.json")
        Path(after).write_text(json.dumps({**self.metadata(name), **changes}))
        with self.catalog.engine.begin() as connection:
            connection.execute(
                text("UPDATE iceberg_tables SET metadata_location = :new WHERE metadata_location = :old"),
                {"new": f"file://{after}", "old": table.metadata_location},
            )

    def close(self) -> None:
        self.catalog.close()


class CatalogTemplate:
    """A catalog that holds one table, `db.t`, with one data file: to copy it takes little of making it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        made = IcebergCatalog(directory)
        made.create()
        made.append("db.t", [1, 2, 3])
        made.close()
        self._files = {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*.*")}

    def copy(self, directory: Path) -> IcebergCatalog:
        """A copy in another directory, whose files name their own paths."""
        moved = partial(_moved, old=str(self._directory), new=str(directory))
        sizes: dict[str, int] = {}
        # A list of manifests tells their sizes.
        for path in sorted(self._files, key=lambda path: path.name.startswith("snap-")):
            content = self._files[path]
            if path.suffix == ".json":
                content = moved(content.decode()).encode()
            elif path.suffix == ".avro":
                content = _moved_avro(content, moved, sizes)
                sizes[path.name] = len(content)
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(content)
        with closing(sqlite3.connect(directory / "cat.db")) as connection, connection:
            connection.execute(
                "UPDATE iceberg_tables SET metadata_location = replace(metadata_location, ?, ?)",
                (str(self._directory), str(directory)),
            )
        return IcebergCatalog(directory)


def _moved(value: Any, old: str, new: str) -> Any:
    """With other paths in it, however deep."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, dict):
        return {key: _moved(each, old, new) for key, each in value.items()}
    return [_moved(each, old, new) for each in value] if isinstance(value, list) else value


def _moved_avro(content: bytes, moved: Callable[[Any], Any], sizes: Mapping[str, int]) -> bytes:
    read = fastavro.reader(BytesIO(content))
    entries = [moved(entry) for entry in read]
    for entry in entries:
        if path := entry.get("manifest_path"):
            entry["manifest_length"] = sizes[Path(path).name]
    metadata = {key: value for key, value in read.metadata.items() if not key.startswith("avro.")}
    written = BytesIO()
    fastavro.writer(written, read.writer_schema, entries, codec="deflate", metadata=metadata)
    return written.getvalue()


def _written(table: Table, rows: pa.Table, equality_column: str | None = None) -> DataFile:
    """A data file, or a file of equality deletes by a column."""
    path = f"{table.location()}/data/{uuid.uuid4()}.parquet"
    ids = {name: table.schema().find_field(name).field_id for name in rows.column_names}
    fields = [field.with_metadata({"PARQUET:field_id": str(ids[field.name])}) for field in rows.schema]
    local = Path(path.removeprefix("file://"))
    local.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows.cast(pa.schema(fields)), local)
    return DataFile.from_args(
        content=DataFileContent.DATA if equality_column is None else DataFileContent.EQUALITY_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(rows),
        file_size_in_bytes=local.stat().st_size,
        equality_ids=None if equality_column is None else [ids[equality_column]],
    )


def _manifest(table: Table, snapshot_id: int, data_file: DataFile) -> ManifestFile:
    writer_of = ManifestWriterV2 if data_file.content is DataFileContent.DATA else _DeleteManifestWriter
    path = f"{table.location()}/metadata/{uuid.uuid4()}-m0.avro"
    output = table.io.new_output(path)
    spec = UNPARTITIONED_PARTITION_SPEC
    with writer_of(spec, table.schema(), output, snapshot_id, "deflate") as writer:
        status = ManifestEntryStatus.ADDED
        writer.add_entry(ManifestEntry.from_args(status=status, snapshot_id=snapshot_id, data_file=data_file))
    return writer.to_manifest_file()


def _total_bytes(head: Snapshot | None, added: list[DataFile]) -> int:
    """As a snapshot's summary has it, which counts delete files, too."""
    before = summarized(head, "total-files-size") if head is not None else 0
    return before + sum(each.file_size_in_bytes for each in added)


def _commit(table: Table, files: list[DataFile], branch: str) -> None:
    """One snapshot that adds data files and files of equality deletes."""
    head = table.snapshot_by_name(branch)
    snapshot_id = table.metadata.new_snapshot_id()
    sequence_number = table.metadata.next_sequence_number()
    deletes = sum(each.record_count for each in files if each.content is DataFileContent.EQUALITY_DELETES)
    manifests = [
        *(head.manifests(table.io) if head else []),
        *(_manifest(table, snapshot_id, each) for each in files),
    ]
    list_path = f"{table.location()}/metadata/snap-{snapshot_id}.avro"
    parent = head.snapshot_id if head else None
    with write_manifest_list(
        2, table.io.new_output(list_path), snapshot_id, parent, sequence_number, "deflate"
    ) as manifest_list:
        manifest_list.add_manifests(manifests)
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent,
        sequence_number=sequence_number,
        timestamp_ms=max(int(time.time() * 1000), (table.metadata.last_updated_ms or 0) + 1),
        manifest_list=list_path,
        summary=Summary(
            Operation.OVERWRITE,
            **{"added-equality-deletes": str(deletes), "total-files-size": str(_total_bytes(head, files))},
        ),
        schema_id=table.metadata.current_schema_id,
    )
    table.catalog.commit_table(
        table,
        (AssertRefSnapshotId(ref=branch, snapshot_id=parent),),
        (
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(
                ref_name=branch,
                type=SnapshotRefType.BRANCH,
                snapshot_id=snapshot_id,
                max_ref_age_ms=None,
                max_snapshot_age_ms=None,
                min_snapshots_to_keep=None,
            ),
        ),
    )
