"""Files of a table that no snapshot names: metadata files, and whatever else lies where its files may be.

Some of these were named by snapshots that an attempt of the job let expire before it was lost: they go.
Others may be what somebody is about to commit: they are told.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata

from stores.table_metadata import PLACE_PROPERTIES
from trust.bounds import ANSWER_BYTES, LimitExceededError, unpacked
from trust.locations import LocationNotAllowedError, normalize_location
from worker.attempt.pinned_table import PinnedTable
from worker.erasure.keys import ErasedKeys, partition_fields
from worker.erasure.trace import FORMER_COLUMN, Trace
from worker.io.file_formats import open_columns
from worker.io.storage import Storage, StoredFile
from worker.process.errors import JobError, Reason

GZIP = b"\x1f\x8b"
MALFORMED = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
    struct.error,
)
_NOT_FREE = frozenset({"schema", "schemas", "partition-spec", "partition-specs", "sort-orders", "refs"})
_METADATA_NAMES = _NOT_FREE | {
    "format-version",
    "table-uuid",
    "location",
    "last-sequence-number",
    "last-updated-ms",
    "last-column-id",
    "current-schema-id",
    "default-spec-id",
    "last-partition-id",
    "default-sort-order-id",
    "properties",
    "current-snapshot-id",
    "snapshots",
    "snapshot-log",
    "metadata-log",
    "statistics",
    "partition-statistics",
    "next-row-id",
    "encryption-keys",
}
UNNAMED_AT_MOST = 100_000
_PARTITION = "partition"  # column of statistics of partitions
TOO_LARGE = f"it has more than {ANSWER_BYTES:,} bytes"
TOO_MANY = Reason(
    "too_many_unnamed_files",
    f"there are more than {UNNAMED_AT_MOST:,} files that no snapshot names, and so many were looked at",
    "See whose they are first: a table may lie inside this one's location. If nobody's, remove the table's"
    " orphan files (remove_orphan_files), and erase again.",
)
WHOSE_IS_IT = (
    "See whose file it is first: a table may lie inside this one's location. If nothing needs it, delete it,"
    " and erase again."
)
UNKNOWN_FORM = Reason(
    "unknown_form",
    "it is of a form that can't be looked through",
    WHOSE_IS_IT,
)


def metadata_files(table: PinnedTable) -> list[str]:
    """The one that is current, and the earlier ones that it names."""
    current = table.java_table.operations().current().metadataFileLocation()
    return [current, *(entry.metadata_file for entry in table.metadata.metadata_log)]


def statistics_files(metadata: TableMetadata) -> list[str]:
    """Of columns, which have sketches of hashes, and of partitions."""
    return [one.statistics_path for one in (*metadata.statistics, *metadata.partition_statistics)]


def search_partition_statistics(
    storage: Storage, keys: ErasedKeys, metadata: TableMetadata, location: str, size_bytes: int
) -> Trace:
    """By the partitions that they are of. Raises OSError (a retry can help)."""
    remedy = "Remove the table's partition statistics, and erase again."
    kinds = {b"PAR1": "parquet", b"Obj\x01": "avro", b"ORC": "orc"}

    def read() -> Trace:
        beginning = storage.read(location, 0, 4)
        kind = next(kind for magic, kind in kinds.items() if beginning.startswith(magic))
        found = frozenset[int]()
        with open_columns(storage, location, kind, size_bytes) as source:
            fields = partition_fields(source.schema.field(_PARTITION).type, metadata.partition_specs)
            for batch in source.batches([(_PARTITION,)]):
                found |= keys.in_partitions(batch.column(_PARTITION), fields)
        is_former = keys.is_former_of(field for _, field in fields)
        return Trace(found, FORMER_COLUMN._replace(remedy=remedy) if is_former else None, size_bytes)

    try:
        return read()
    except FileNotFoundError:
        return Trace()
    except (OSError, pa.ArrowException, JobError, *MALFORMED, EOFError, StopIteration) as error:
        if storage.is_at_fault(error, [location], read):
            raise
        return Trace(why=Reason("partition_statistics", f"they can't be read: {error}", remedy))


def search_metadata(storage: Storage, keys: ErasedKeys, location: str) -> Trace:
    """What the properties of a table and of its snapshots tell, also of a file that gzip has packed."""
    try:
        content = read_whole(storage, location)
        size_bytes = len(content)
        if content.startswith(GZIP):
            content = unpacked(content, location)
        told = json.loads(content)
        if not isinstance(told, dict) or "format-version" not in told:
            return Trace(why=UNKNOWN_FORM)
        return Trace(told_in_metadata(told, keys), None, size_bytes, _places_in(told))
    except FileNotFoundError:
        return Trace()  # an old one that is named and gone
    except (*MALFORMED, LocationNotAllowedError, LimitExceededError) as error:
        return Trace(why=Reason("unreadable_metadata", str(error), "Restore the file."))


def read_whole(storage: Storage, location: str) -> bytes:
    content = storage.read(location, 0, ANSWER_BYTES + 1)
    if len(content) > ANSWER_BYTES:
        raise ValueError(TOO_LARGE)
    return content


def told_in_metadata(metadata: Mapping[str, Any], keys: ErasedKeys) -> frozenset[int]:
    """What people wrote into a table's metadata, and where its files lie. Names of columns are no values.

    Raises ValueError if it has more than metadata has, of which nobody can tell.
    """
    found = keys.in_texts(_texts(metadata))
    for field in _fields([*metadata.get("schemas", ()), metadata.get("schema", {})]):
        found |= keys.in_texts([field["doc"]] if field.get("doc") else ())
        for default in ("initial-default", "write-default"):
            if default in field:
                found |= keys.in_default(field["id"], field[default])
    places = (value for value in scalars(metadata) if isinstance(value, str) and "=" in value)
    found = found.union(*(keys.in_path(place) for place in places))
    if more := {name: value for name, value in metadata.items() if name not in _METADATA_NAMES}:
        if (told := keys.in_scalars(scalars(more))) is None:
            raise ValueError(f"it has {next(iter(more))!r}, which no metadata has")
        found |= told
    return found


def _fields(types: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    """Of schemas, also those of structs in lists and maps."""
    left = list(types)
    while left:
        match left.pop():
            case {"fields": [*fields]}:
                yield from fields
                left += [field["type"] for field in fields]
            case {"element": element}:
                left.append(element)
            case {"key": key, "value": value}:
                left += [key, value]


def _texts(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Whatever is written freely, and all other values but places and what describes columns."""
    yield from metadata.get("refs", {})
    blobs = (blob for one in metadata.get("statistics", ()) for blob in one.get("blob-metadata", ()))
    free = [
        metadata.get("properties", {}),
        *(one.get("summary", {}) for one in metadata.get("snapshots", ())),
        *(blob.get("properties", {}) for blob in blobs),
    ]
    yield from map(str, scalars(free))
    rest = {name: value for name, value in metadata.items() if name not in _NOT_FREE}
    for value in scalars(rest, names=False):
        if isinstance(value, str) and "/" not in value:
            yield value


def _places_in(metadata: Mapping[str, Any]) -> frozenset[str]:
    properties = metadata.get("properties") or {}
    told = (metadata.get("location"), *map(properties.get, PLACE_PROPERTIES))
    return frozenset(place for place in told if place and isinstance(place, str))


def places_of(table: PinnedTable, earlier: Iterable[Trace]) -> list[str]:
    """Where files of a table may lie: its location, and whatever its settings name or named before.

    earlier: of its metadata files. None of the places lies in another one.
    """
    named = [*metadata_files(table), *(one.manifest_list for one in table.metadata.snapshots)]
    folders = (path.rpartition("/")[0] for path in named)
    told = {table.metadata.location, *folders, *(place for one in earlier for place in one.places)}
    places = {normalize_location(place).rstrip("/"): place.rstrip("/") for place in sorted(told)}
    return [place for at, place in places.items() if not any(at.startswith(f"{one}/") for one in places)]


def scalars(told: Any, *, names: bool = True) -> Iterator[Any]:
    """The values of JSON, and its names or not."""
    left = [told]
    while left:
        match left.pop():
            case dict() as fields:
                left += [*(fields if names else ()), *fields.values()]
            case list() as values:
                left += values
            case scalar:
                yield scalar


def unnamed_files(storage: Storage, place: str, named: Collection[str]) -> list[StoredFile]:
    """What lies in a place and is not named. Raises OSError where that can't be listed."""
    known = {normalize_location(path) for path in named}
    return [file for file in storage.walk(place) if normalize_location(file.location) not in known]
