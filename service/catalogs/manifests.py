"""Manifests and their lists: of the many columns that these files have, those that looks at tables need."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple

from pyiceberg.avro.reader import Reader
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StringType, StructType

from stores.avro_readers import (
    SCHEMA,
    kept_by_schema,
    read_blocks,
    read_entries,
    read_header,
    read_schema,
    reader_of,
)


class DamagedManifestError(Exception):
    """It ends elsewhere than it says."""


class Manifest(NamedTuple):
    """A row of a manifest list. files, rows: how many are live; 0 if it does not say (format version 1)."""

    path: str
    size_bytes: int
    partition_spec_id: int
    content: ManifestContent
    added_snapshot_id: int | None
    files: int
    rows: int


class DeleteFile(NamedTuple):
    """A live delete file, of a manifest."""

    content: DataFileContent
    path: str
    record_count: int
    size_bytes: int
    equality_field_ids: tuple[int, ...]
    """In order."""
    snapshot_id: int | None
    """Which added it."""


class _Columns(Enum):
    """Of each kind of file."""

    LIST = Schema(
        NestedField(500, "manifest_path", StringType(), required=True),
        NestedField(501, "manifest_length", LongType(), required=True),
        NestedField(502, "partition_spec_id", IntegerType(), required=True),
        NestedField(517, "content", IntegerType(), required=False),
        NestedField(503, "added_snapshot_id", LongType(), required=False),
        NestedField(504, "added_files_count", IntegerType(), required=False),
        NestedField(505, "existing_files_count", IntegerType(), required=False),
        NestedField(512, "added_rows_count", LongType(), required=False),
        NestedField(513, "existing_rows_count", LongType(), required=False),
    )
    MANIFEST = Schema(
        NestedField(0, "status", IntegerType(), required=True),
        NestedField(1, "snapshot_id", LongType(), required=False),
        NestedField(
            2,
            "data_file",
            StructType(
                NestedField(134, "content", IntegerType(), required=False),
                NestedField(100, "file_path", StringType(), required=True),
                NestedField(103, "record_count", LongType(), required=True),
                NestedField(104, "file_size_in_bytes", LongType(), required=True),
                NestedField(135, "equality_ids", ListType(136, IntegerType(), True), required=False),
            ),
            required=True,
        ),
    )


def _rows(io: FileIO, location: str, columns: _Columns) -> Iterator[Any]:
    """As PyIceberg reads a file, but for its schema: most are alike, and one takes longer than all rows.

    Raises what PyIceberg does, and DamagedManifestError.
    """
    try:
        with io.new_input(location).open() as source:
            header, decoder = read_header(source.read())
        reader = _reader(header.meta[SCHEMA], columns)
        for count, block in read_blocks(header, decoder):
            yield from read_entries(reader, count, block)
    except EOFError as error:
        raise DamagedManifestError(f"{location}: {error}") from error


@kept_by_schema
def _reader(written: str, columns: _Columns) -> Reader:
    return reader_of(read_schema(written), columns.value)


def read_manifest_list(io: FileIO, location: str) -> list[Manifest]:
    """As `_rows` reads it."""
    rows = _rows(io, location, _Columns.LIST)
    return [
        Manifest(
            path,
            size,
            spec_id,
            ManifestContent(content or 0),  # absent in format version 1
            snapshot_id,
            (added or 0) + (existing or 0),
            (added_rows or 0) + (existing_rows or 0),
        )
        for path, size, spec_id, content, snapshot_id, added, existing, added_rows, existing_rows in rows
    ]


def read_delete_files(io: FileIO, manifest: Manifest) -> Iterator[DeleteFile]:
    """Those of a manifest that are live, as `_rows` reads it."""
    for status, snapshot_id, file in _rows(io, manifest.path, _Columns.MANIFEST):
        if ManifestEntryStatus(status) is ManifestEntryStatus.DELETED:
            continue
        content, path, record_count, size, ids = file
        added_by = manifest.added_snapshot_id if snapshot_id is None else snapshot_id
        ids = tuple(sorted(ids or ()))
        yield DeleteFile(DataFileContent(content or 0), path, record_count, size, ids, added_by)
