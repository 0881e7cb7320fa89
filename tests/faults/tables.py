"""What must hold of a table after any fault: nothing left behind, nothing committed twice."""

import io
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import fastavro
from pyarrow import fs as pafs
from pyspark.sql import SparkSession

from tests.factories import TableBuilder, visible_rows
from tests.jobs import Jobs
from worker.index.key_set_index import database_name
from worker.io.storage import Storage


def local(location: str) -> Path:
    return Path("/" + location.removeprefix("file:").lstrip("/"))


def table_with_deletes(
    spark: SparkSession,
    name: str,
    format_version: Any,
    rows: int,
    writer: Literal["arrow", "iceberg"] = "arrow",
) -> TableBuilder:
    """Two data files of rows (i, i), and deletes of every third one. writer: of these; Arrow's is local."""
    table = TableBuilder.create(spark, name, "id bigint, v bigint", format_version=format_version)
    table.writer = writer
    table.append([{"id": i, "v": i} for i in range(rows)], files=2)
    table.delete_keys([{"id": i} for i in range(0, rows, 3)])
    return table


@dataclass
class Named:
    """Names of files that a table's snapshots name, read from the files themselves."""

    manifests: set[str] = field(default_factory=set)
    """And their lists."""
    files: set[str] = field(default_factory=set)
    """Of data and deletes."""
    equality_deletes: set[str] = field(default_factory=set)
    """Of these, the equality deletes of the current snapshot."""

    @classmethod
    def by(cls, table: TableBuilder, properties: Mapping[str, str] | None = None) -> Self:
        storage, metadata, named = Storage(properties), table.metadata, cls()

        @cache
        def records(location: str) -> list[Any]:
            return list(fastavro.reader(io.BytesIO(storage.read(location))))

        for snapshot in metadata.snapshots:
            named.manifests.add(_name(snapshot.manifest_list))
            for manifest in records(snapshot.manifest_list):
                named.manifests.add(_name(manifest["manifest_path"]))
                live = [one["data_file"] for one in records(manifest["manifest_path"]) if one["status"] < 2]
                named.files |= {_name(file["file_path"]) for file in live}
                if snapshot.snapshot_id == metadata.current_snapshot_id:
                    equality = [file for file in live if file["content"] == 2]
                    named.equality_deletes |= {_name(file["file_path"]) for file in equality}
        return named


def _name(location: str) -> str:
    return location.rpartition("/")[2]


def assert_every_manifest_is_named(table: TableBuilder) -> None:
    """Each manifest is there that some snapshot names, and no other."""
    written = local(table.metadata_location).parent.glob("*.avro")
    assert {path.name for path in written} == Named.by(table).manifests


def assert_nothing_is_left(table: TableBuilder, properties: Mapping[str, str] | None = None) -> None:
    """No equality delete is live, and each of our files in the table's location is named by a snapshot.

    properties: of the store, if it is not a local one.
    """
    named = Named.by(table, properties)
    assert named.equality_deletes == set()
    assert _ours(table, properties) - named.files == set()


def assert_next_attempt_converts(
    jobs: Jobs, table: TableBuilder, job_id: str, rows: Mapping[tuple[Any, ...], int]
) -> None:
    """After a failed first attempt: the second one ends the job in one commit, with these visible rows."""
    left = jobs.reporter.left_by(job_id)
    done = jobs.run("convert", job_id=job_id, attempt=2, ended_attempts=[left])
    assert done.cleared
    assert commits_by_job(table) == {job_id: 1}
    assert visible_rows(table.spark, table.identifier) == rows
    assert_nothing_is_left(table)
    assert_no_content_is_unnamed(table)


def orphans(table: TableBuilder, properties: Mapping[str, str] | None = None) -> set[str]:
    """Names of files that conversions wrote into the table's location and no snapshot names.

    properties: of the store, if it is not a local one.
    """
    return _ours(table, properties) - Named.by(table, properties).files


def _ours(table: TableBuilder, properties: Mapping[str, str] | None) -> set[str]:
    return {name for name in _present(table, properties) if name.startswith("icestream-")}


def _present(table: TableBuilder, properties: Mapping[str, str] | None) -> set[str]:
    filesystem, path = Storage(properties).resolve(table.metadata.location)
    found = filesystem.get_file_info(pafs.FileSelector(path, recursive=True))
    return {info.base_name for info in found if info.is_file}


def strays(table: TableBuilder, warehouse: str, properties: Mapping[str, str] | None = None) -> set[str]:
    """What lies in the place of a table's index of field 1 and none of its latest snapshots names.

    Read from the files themselves, without the code that cleans up; there may be one generation. warehouse:
    of the index. properties: of the store, if it is not a local one.
    """
    filesystem, path = Storage(properties).resolve(warehouse)
    database = f"{path}/{database_name(str(table.metadata.table_uuid), 'main')}.db"
    present = {info.base_name for info in filesystem.get_file_info(pafs.FileSelector(database))}
    generation = max(int(name.rpartition("_g")[2]) for name in present)
    expected = {f"{part}_1_g{generation}" for part in ("entries", "files")}
    found = present ^ expected

    def records(file: str) -> list[Any]:
        return list(fastavro.reader(io.BytesIO(filesystem.open_input_file(file).readall())))

    for name in expected:
        place = f"{database}/{name}"
        files = filesystem.get_file_info(pafs.FileSelector(place, recursive=True))
        files = [info for info in files if info.is_file]
        snapshots = [info.path for info in files if "/snapshot/" in info.path]
        named = {"schema-0"}
        for snapshot in sorted(snapshots, key=lambda one: int(one.rpartition("-")[2]))[-2:]:
            named.add(snapshot.rpartition("/")[2])
            content = json.loads(filesystem.open_input_file(snapshot).readall())
            for manifest_list in (content["baseManifestList"], content["deltaManifestList"]):
                named.add(manifest_list)
                for manifest in records(f"{place}/manifest/{manifest_list}"):
                    named.add(manifest["_FILE_NAME"])
                    entries = records(f"{place}/manifest/{manifest['_FILE_NAME']}")
                    named |= {entry["_FILE"]["_FILE_NAME"] for entry in entries}
        found |= {info.base_name for info in files} - named
    return found


def unnamed(table: TableBuilder, properties: Mapping[str, str] | None = None) -> set[str]:
    """Names of files in the table's location that neither its metadata nor any snapshot names."""
    named = Named.by(table, properties)
    logged = {_name(entry.metadata_file) for entry in table.metadata.metadata_log}
    present = {name for name in _present(table, properties) if not name.endswith(".crc")}
    of_metadata = {_name(table.metadata_location), "version-hint.text"} | logged
    return present - named.manifests - named.files - of_metadata


def assert_no_content_is_unnamed(table: TableBuilder) -> None:
    """Nothing lies about but Iceberg's own files of commits that did not happen, which none knew in time."""
    assert {Path(name).suffix for name in unnamed(table)} <= {".avro", ".json"}


def commits_by_job(table: TableBuilder) -> Counter[str]:
    """How often each job committed, by the snapshots that the metadata still has, rolled back or not."""
    summaries = [snapshot.summary for snapshot in table.metadata.snapshots]
    return Counter(
        job
        for summary in summaries
        if summary and (job := summary.additional_properties.get("icestream.job-id"))
    )
