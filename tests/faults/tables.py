"""What must hold of a table after any fault: nothing left behind, nothing committed twice, no file gone."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import fastavro
from fastavro.schema import SchemaParseException
from pyarrow import fs as pafs
from pyiceberg.table.metadata import TableMetadata
from pyspark.sql import SparkSession

from stores.table_metadata import read_table_metadata
from tests.factories import TableBuilder, visible_rows
from tests.jobs import Jobs
from worker.index.key_set_index import database_name
from worker.io.storage import Storage

LOCAL = ("file:", "/")
"""How locations of local files begin."""


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
    """Names of files that a table's snapshots name, of any branch or tag, read from the files themselves."""

    metadata: TableMetadata
    locations: set[str] = field(default_factory=set)
    """Of all these, in full; and of the metadata file and statistics."""
    manifests: set[str] = field(default_factory=set)
    """And their lists."""
    files: set[str] = field(default_factory=set)
    """Of data and deletes."""
    equality_deletes: set[str] = field(default_factory=set)
    """Of these, the equality deletes of the current snapshot."""

    @classmethod
    def by(cls, table: TableBuilder, properties: Mapping[str, str] | None = None) -> Self:
        return cls.at(table.metadata_location, Storage(properties))

    @classmethod
    def at(cls, location: str, storage: Storage) -> Self:
        """By the metadata file there."""
        metadata = read_table_metadata(storage.io.new_input(location))
        named = cls(metadata)
        of_table = (*metadata.statistics, *metadata.partition_statistics)
        named.locations = {location, *(one.statistics_path for one in of_table)}
        for snapshot in metadata.snapshots:
            manifests = _manifests(storage, snapshot.manifest_list)
            named.manifests |= {_name(snapshot.manifest_list), *map(_name, manifests)}
            named.locations |= {snapshot.manifest_list, *manifests}
            for manifest in manifests:
                live = _live(storage, manifest)
                named.files |= {_name(path) for path, _ in live}
                named.locations |= {path for path, _ in live}
                if snapshot.snapshot_id == metadata.current_snapshot_id:
                    named.equality_deletes |= {_name(path) for path, content in live if content == 2}
        return named


# No path is used twice, so what has been read once is known.


@cache
def _manifests(storage: Storage, location: str) -> Sequence[str]:
    """Locations that a manifest list has."""
    return [one["manifest_path"] for one in _records(storage, location)]


@cache
def _live(storage: Storage, location: str) -> Sequence[tuple[str, int]]:
    """Locations of the data or delete files that a manifest has, and what is in each."""
    files = (one["data_file"] for one in _records(storage, location) if one["status"] < 2)
    return [(file["file_path"], file["content"]) for file in files]


def _records(storage: Storage, location: str) -> Iterator[Any]:
    return fastavro.reader(io.BytesIO(storage.read(location)))


def _name(location: str) -> str:
    return location.rpartition("/")[2]


@dataclass(frozen=True)
class Look:
    """How many files were looked for, and which of them are gone."""

    files: int = 0
    gone: Set[str] = frozenset()

    def __add__(self, other: Look) -> Look:
        return Look(self.files + other.files, self.gone | other.gone)


def look_for(metadata_location: str, storage: Storage, indexes: Iterable[str]) -> Look:
    """For all files that a table needs: its metadata, whatever any snapshot of any branch or tag names, and
    statistics; and for those of its indexes in some places that are local ones or in the table's store."""
    try:
        named = Named.at(metadata_location, storage)
    except FileNotFoundError as error:
        return Look(1, {str(error)})
    store = _store(metadata_location)
    # A test may name what lies in a store that nobody has.
    needed = [one for one in named.locations if _store(one) == store]
    found = Look(len(needed), {one for one in needed if not storage.exists(one)})
    for place in indexes:
        if _store(place) in ("", store):
            found += _look_for_index(str(named.metadata.table_uuid), place, storage)
    return found


def _store(location: str) -> str:
    """Scheme and bucket; nothing of what is local."""
    return "" if location.startswith(LOCAL) else "/".join(location.split("/")[:3])


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
    for name in expected:
        runs = _Runs.of(filesystem, f"{database}/{name}")
        named = {"schema-0"}
        for snapshot in runs.snapshots[-2:]:
            metadata, added, dead = runs.named_by(snapshot)
            named |= {snapshot, *metadata, *added, *dead}
        found |= runs.present - named
    return found


def _look_for_index(table_uuid: str, warehouse: str, storage: Storage) -> Look:
    """For what the latest snapshots of the table's indexes name: of whatever branch, key and generation.

    Read as `strays` are.
    """
    filesystem, path = storage.resolve(warehouse)
    main = database_name(table_uuid, "main")
    found = Look()
    for one in filesystem.get_file_info(pafs.FileSelector(path, recursive=True, allow_not_found=True)):
        if one.base_name != "snapshot" or f"/{main}" not in one.path or one.is_file:
            continue
        runs = _Runs.of(filesystem, one.path.removesuffix("/snapshot"))
        if runs.snapshots:
            try:
                metadata, added, dead = runs.named_by(runs.snapshots[-1])
            except FileNotFoundError as error:
                found += Look(1, {str(error)})
            except (ValueError, LookupError, EOFError, SchemaParseException):
                continue  # it was damaged on purpose, and names nothing any more
            else:
                needed = metadata | (added - dead)
                found += Look(len(needed), needed - runs.present)
    return found


@dataclass
class _Runs:
    """A table of an index in its files. present: their names; snapshots: the oldest first."""

    filesystem: pafs.FileSystem
    place: str
    present: set[str]
    snapshots: Sequence[str]

    @classmethod
    def of(cls, filesystem: pafs.FileSystem, place: str) -> Self:
        found = filesystem.get_file_info(pafs.FileSelector(place, recursive=True))
        files = [info for info in found if info.is_file]
        snapshots = [info.base_name for info in files if "/snapshot/" in info.path]
        snapshots.sort(key=lambda one: int(one.rpartition("-")[2]))
        return cls(filesystem, place, {info.base_name for info in files}, snapshots)

    def named_by(self, snapshot: str) -> tuple[set[str], set[str], set[str]]:
        """Names of its manifests and their lists, and of files that these add and take away."""
        content = json.loads(self._read(f"snapshot/{snapshot}"))
        metadata = {content["baseManifestList"], content["deltaManifestList"]}
        manifests = {one["_FILE_NAME"] for name in metadata for one in self._records(name)}
        entries = [entry for name in manifests for entry in self._records(name)]
        added, dead = (
            {entry["_FILE"]["_FILE_NAME"] for entry in entries if entry["_KIND"] == kind} for kind in (0, 1)
        )
        return metadata | manifests, added, dead

    def _records(self, manifest: str) -> list[Any]:
        return list(fastavro.reader(io.BytesIO(self._read(f"manifest/{manifest}"))))

    def _read(self, name: str) -> bytes:
        content: bytes = self.filesystem.open_input_file(f"{self.place}/{name}").readall()
        return content


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
