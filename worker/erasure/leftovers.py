"""Files of a table that no snapshot names: metadata files, and whatever else lies under its location.

Some of these were named by snapshots that have expired, and whoever let them expire was lost before it
deleted them: they go. Others may be what somebody is about to commit: they are told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from pyiceberg.exceptions import ValidationError
from pyiceberg.manifest import ManifestContent
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from trust.locations import LocationNotAllowedError
from worker.attempt.pinned_table import PinnedTable
from worker.erasure.keys import ErasedKeys
from worker.erasure.look import LookTask, Trace, unreadable
from worker.io.file_formats import open_columns
from worker.io.storage import Storage, StoredFile
from worker.keys.read import key_reader
from worker.process.errors import JobError, Reason
from worker.table.files import DataFile, PartitionKey
from worker.table.manifests import (
    Manifest,
    read_entry_values,
    read_manifest,
    read_manifest_list,
    spec_id_of,
)

_NO_PARTITION = PartitionKey(-1, "[]")
_LOG_AT_MOST = 100  # as many as Iceberg keeps
_TEXT_BYTES = 256 * 1024**2
"""Of a file of unknown form that is searched."""
PARTITION_STATISTICS = Reason(
    "partition_statistics",
    "statistics of partitions are not looked through, and the key is part of a partition",
    "Remove the table's partition statistics, and erase again.",
)
_UNKNOWN_FORM = Reason(
    "unknown_form",
    "it is of a form that can't be looked through",
    "Look at the file; if nothing needs it, delete it, and erase again.",
)


def metadata_files(table: PinnedTable) -> list[str]:
    """The one that is current, and the earlier ones that it names."""
    current = table.java_table.operations().current().metadataFileLocation()
    return [current, *(entry.metadata_file for entry in table.metadata.metadata_log)]


def statistics_files(metadata: TableMetadata) -> list[str]:
    """Of columns, which have sketches of hashes, and of partitions."""
    return [one.statistics_path for one in metadata.statistics] + partition_statistics(metadata)


def partition_statistics(metadata: TableMetadata) -> list[str]:
    return [one.statistics_path for one in metadata.partition_statistics]


def is_partition(metadata: TableMetadata, keys: ErasedKeys) -> bool:
    """Whether a value of a key may be that of a partition."""
    ids = set(keys.key_set.equality_field_ids)
    return any(field.source_id in ids for spec in metadata.partition_specs for field in spec.fields)


def look_at_metadata(storage: Storage, keys: ErasedKeys, location: str) -> Trace:
    """What the properties of a table and of its snapshots tell."""
    try:
        content = storage.read(location)
        return Trace(keys.in_texts(_texts(json.loads(content))), size_bytes=len(content))
    except FileNotFoundError:
        return Trace()  # an old one that is named and gone
    except (ValueError, LocationNotAllowedError) as error:
        return Trace(why=Reason("unreadable_metadata", str(error), "Restore the file."))


def _texts(metadata: Mapping[str, Any]) -> Iterator[str]:
    summaries = [one.get("summary", {}) for one in metadata.get("snapshots", ())]
    for told in (metadata.get("properties", {}), *summaries):
        for name, value in told.items():
            yield name
            yield str(value)
    yield from metadata.get("refs", {})


def unnamed_files(table: PinnedTable, named: Collection[str]) -> list[StoredFile]:
    """What lies under the table's location and is not named. Raises OSError where that can't be listed."""
    known = {_place(path) for path in named}
    return [
        file
        for file in table.storage.walk(table.metadata.location)
        if _place(file.location) not in known and not file.name.endswith((".crc", "version-hint.text"))
    ]


def look_at_unnamed(table: PinnedTable, keys: ErasedKeys, file: StoredFile) -> Trace:
    """What a file tells that nobody names, by what its name says that it is. Raises OSError (a retry can
    help)."""
    storage, kind = table.storage, file.name.rpartition(".")[2].lower()
    try:
        match kind:
            case "parquet" | "orc":
                return _look_at_rows(table, keys, file, kind)
            case "avro":
                return _look_at_manifest(table, keys, file)
            case "json":
                return look_at_metadata(storage, keys, file.location)
            case "puffin" | "stats":
                return Trace(size_bytes=file.size_bytes)  # positions, and sketches of hashes
        found = keys.in_bytes(storage.read(file.location)) if file.size_bytes <= _TEXT_BYTES else None
        return Trace(why=_UNKNOWN_FORM) if found is None else Trace(found, size_bytes=file.size_bytes)
    except FileNotFoundError:
        return Trace()  # whoever wrote it has removed it
    except (JobError, ValueError, EOFError, LocationNotAllowedError) as error:
        return Trace(why=unreadable(error))


def _look_at_rows(table: PinnedTable, keys: ErasedKeys, file: StoredFile, kind: str) -> Trace:
    with open_columns(table.storage, file.location, kind, file.size_bytes) as source:
        rows = source.rows or 0
    described = DataFile(file.location, kind, _NO_PARTITION, rows, file.size_bytes, 0)
    reader = key_reader(table.metadata, table.storage, keys.key_set)
    return LookTask(reader, [described]).run(keys.wanted)[file.location]


def _look_at_manifest(table: PinnedTable, keys: ErasedKeys, file: StoredFile) -> Trace:
    """A manifest, or a list of these, which has no more than the values of partitions."""
    io = table.storage.io
    spec_id = spec_id_of(io, file.location)
    if spec_id is None:
        is_list = file.name.startswith("snap-")
        return Trace(why=None if is_list else _UNKNOWN_FORM, size_bytes=file.size_bytes)
    specs = {spec.spec_id: spec for spec in table.metadata.partition_specs}
    manifest = Manifest(file.location, spec_id, ManifestContent.DATA, 0, None, None)
    spec: PartitionSpec = specs[spec_id]
    entries = read_entry_values(io, manifest, spec)
    found = frozenset(number for entry in entries for number in keys.in_entry(entry, spec))
    return Trace(found, size_bytes=file.size_bytes)


def named_by_expired(table: PinnedTable) -> set[str]:
    """The places of files that snapshots named which have expired, as far as it can be found out."""
    metadata, io = table.metadata, table.storage.io
    kept = {snapshot.snapshot_id for snapshot in metadata.snapshots}
    expired: dict[int, Snapshot] = {}
    for entry in metadata.metadata_log[: -_LOG_AT_MOST - 1 : -1]:
        try:
            earlier = FromInputFile.table_metadata(io.new_input(entry.metadata_file))
        except (OSError, ValueError, ValidationError, LocationNotAllowedError):
            continue
        expired |= {one.snapshot_id: one for one in earlier.snapshots if one.snapshot_id not in kept}
    specs = {spec.spec_id: spec for spec in metadata.partition_specs}
    return {_place(path) for one in expired.values() for path in _named_by(one, specs, table)}


def _named_by(snapshot: Snapshot, specs: Mapping[int, PartitionSpec], table: PinnedTable) -> Iterable[str]:
    """As far as its manifests are still there."""
    io = table.storage.io
    yield snapshot.manifest_list
    try:
        manifests = read_manifest_list(io, snapshot.manifest_list)
    except (JobError, FileNotFoundError):
        return
    for manifest in manifests:
        yield manifest.path
        try:
            data_files, deletes = read_manifest(io, manifest, specs)
        except (JobError, FileNotFoundError, LocationNotAllowedError):
            continue
        yield from (file.path for file in (*data_files, *deletes))


def is_in(file: StoredFile, places: Collection[str]) -> bool:
    return _place(file.location) in places


def _place(path: str) -> str:
    """The same for each way to spell a location: with one slash or three, with s3 or s3a."""
    return re.sub("/+", "/", re.sub("^[A-Za-z0-9]+:", "/", path))
