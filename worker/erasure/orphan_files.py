"""Files that no snapshot names, searched by how they begin, since their names may say anything.

Invariant: a file is clean only if all that may tell a key was read as what it is. Whatever is of another
table, or of a form that is not known, leaves the keys unknown.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import ManifestContent
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import StructType

from stores.table_metadata import parse_schema
from trust.bounds import ANSWER_BYTES, PACKED_METADATA
from trust.locations import LocationNotAllowedError
from worker.attempt.pinned_table import PinnedTable
from worker.erasure.columns import TableColumns
from worker.erasure.key_texts import is_escaped
from worker.erasure.keys import ErasedKeys
from worker.erasure.metadata_files import (
    GZIP,
    MALFORMED,
    TOO_LARGE,
    UNKNOWN_FORM,
    WHOSE_IS_IT,
    read_whole,
    scalars,
    search_metadata,
    told_in_metadata,
)
from worker.erasure.positions import POSITION_FIELD_IDS, search_positions, search_puffin
from worker.erasure.search import SearchTask
from worker.erasure.trace import FORMER_COLUMN, NOTHING, Trace, unreadable
from worker.io.file_formats import field_id_of, open_columns
from worker.io.storage import StoredFile, lacks_own_memory
from worker.keys.read import key_reader
from worker.process.errors import JobError, Reason
from worker.table.files import DataFile, DeleteFile, FileContent, PartitionKey
from worker.table.manifest_values import read_entry_bounds, read_header, read_partition_summaries
from worker.table.manifests import FILE_PATH_FIELD_ID, Manifest

_NO_PARTITION = PartitionKey(-1, "[]")
_SMALL_BYTES = 4 * 2**20
_one_large = threading.Lock()
"""Of larger files, one at a time is read whole."""
_FOREIGN = Reason(
    "foreign_columns",
    "its columns are none that this table ever had: it may be another table's, or an earlier one's",
    WHOSE_IS_IT,
)
_PART_OF_KEY = Reason("part_of_key", "it has a part of the key only, as equality deletes may", WHOSE_IS_IT)
_ESCAPED = Reason("escaped_text", "some of its text may stand for other characters", WHOSE_IS_IT)
_ENTRY_IDS = frozenset(range(5))
_CONTENT_IDS = frozenset(range(100, 200))
_LIST_IDS = frozenset(range(500, 600))
"""Ids of fields that the specification gives to entries of manifests, to files in them, and to lists."""
_CHECKSUMS = struct.Struct(">4si")  # as Hadoop writes them: magic, bytes of each
_CHUNK_AT_MOST = 2**20


class OrphanFiles:
    """Searches files in a table's location that nobody names."""

    def __init__(self, table: PinnedTable, keys: ErasedKeys, searched: Mapping[str, Trace]) -> None:
        """searched: the traces of data and delete files that a snapshot has named, by their paths. Such a
        file may have no ids by which it can be told whose it is."""
        self._searched = searched
        self._metadata = table.metadata
        self._storage = table.storage
        self._keys = keys
        self._columns = TableColumns.of(table.metadata)
        self._specs = {spec.spec_id: spec for spec in table.metadata.partition_specs}

    def search(self, file: StoredFile) -> Trace:
        """What a file tells, and its place."""
        inside = self._searched.get(file.location) or self._search_inside(file)
        why = inside.why and inside.why._replace(remedy=WHOSE_IS_IT)  # whatever else would help a named one
        return replace(inside, keys=inside.keys | self._keys.in_path(file.location), why=why)

    def _search_inside(self, file: StoredFile) -> Trace:
        try:
            return self._by_beginning(file)
        except FileNotFoundError:
            return Trace()  # whoever wrote it has removed it
        except (JobError, *MALFORMED, pa.ArrowException, OSError, EOFError, LocationNotAllowedError) as error:
            if lacks_own_memory(error):
                raise
            return Trace(why=unreadable(error))

    def _by_beginning(self, file: StoredFile) -> Trace:
        match self._storage.read(file.location, 0, 4):
            case b"":
                return Trace()
            case b"PAR1":
                return self._search_rows(file, "parquet")
            case beginning if beginning.startswith(b"ORC"):
                return self._search_rows(file, "orc")
            case b"Obj\x01":
                with _whole(file.size_bytes):
                    return self._search_avro(file)
            case b"PFA1":
                return search_puffin(self._storage, self._keys, file.location, file.size_bytes)
            case b"crc\x00":
                with _whole(file.size_bytes):
                    return self._search_checksums(file)
            case beginning if beginning.startswith(GZIP):
                if not file.name.endswith(PACKED_METADATA):
                    return Trace(why=UNKNOWN_FORM)
                with _one_large:
                    return search_metadata(self._storage, self._keys, file.location)
        with _whole(file.size_bytes):
            return self._search_text(file)

    def _search_rows(self, file: StoredFile, kind: str) -> Trace:
        with open_columns(self._storage, file.location, kind, file.size_bytes) as source:
            schema, rows = source.schema, source.rows
            if rows is None:
                rows = sum(batch.num_rows for batch in source.batches([(schema.names[0],)]))
        ids = {field_id_of(field) for field in schema}
        if FILE_PATH_FIELD_ID in ids and ids <= POSITION_FIELD_IDS:
            deletes = DeleteFile(
                FileContent.POSITION_DELETES, file.location, kind, _NO_PARTITION, rows, file.size_bytes, 0
            )
            return search_positions(self._storage, self._keys, deletes)
        if not self._columns.has_written(schema):
            return Trace(why=_FOREIGN)
        described = DataFile(file.location, kind, _NO_PARTITION, rows, file.size_bytes, 0)
        reader = key_reader(self._metadata, self._storage, self._keys.key_set)
        own = frozenset(self._keys.key_set.equality_field_ids)
        if 0 < len(own & reader.field_ids(described)) < len(own):
            return Trace(why=_PART_OF_KEY)
        return SearchTask(reader, [described], self._keys.former).run(self._keys.wanted)[file.location]

    def _search_avro(self, file: StoredFile) -> Trace:
        """A manifest, a list of these, or rows."""
        schema, properties = read_header(self._storage.io, file.location)
        ids = frozenset(field.field_id for field in schema.fields)
        if "partition-spec-id" in properties:
            spec = self._specs.get(int(properties["partition-spec-id"]))
            if spec is None or not self._is_own_manifest(schema, properties, spec):
                return Trace(why=_FOREIGN)
            return self._search_manifest(file, spec)
        if ids and ids <= _LIST_IDS:
            return self._search_list(file)
        return self._search_rows(file, "avro")

    def _is_own_manifest(self, schema: Schema, properties: Mapping[str, str], spec: PartitionSpec) -> bool:
        """Whether ids of columns mean in a manifest what they mean in this table."""
        content = schema.find_field(2).field_type
        if not isinstance(content, StructType):
            return False
        fields = (frozenset(field.field_id for field in of.fields) for of in (schema, content))
        if not all(ids <= known for ids, known in zip(fields, (_ENTRY_IDS, _CONTENT_IDS), strict=True)):
            return False
        written = PartitionSpec.model_validate(
            {"spec-id": spec.spec_id, "fields": json.loads(properties["partition-spec"])}
        )
        return written == spec and self._columns.has_schema(parse_schema(properties["schema"]))

    def _search_manifest(self, file: StoredFile, spec: PartitionSpec) -> Trace:
        manifest = Manifest(file.location, spec.spec_id, ManifestContent.DATA, 0, None, None)
        found, why = NOTHING, None
        for entry in read_entry_bounds(self._storage.io, manifest, spec):
            # As of a removed file: nobody has looked at its rows, and it may be gone.
            found |= self._keys.in_entry(replace(entry, is_removed=True), spec)
            why = FORMER_COLUMN if self._keys.is_former_in(entry, spec) else why
        return Trace(found, why, file.size_bytes)

    def _search_list(self, file: StoredFile) -> Trace:
        """It does not say which table's it is: what is no key by this table's fields may be one by others."""
        found = NOTHING
        for told in read_partition_summaries(self._storage.io, file.location):
            found |= self._keys.in_path(told.manifest_path)
            if told.bounds and told.partition_spec_id not in self._specs:
                return Trace(found, _FOREIGN)
            if told.bounds:
                found |= self._keys.in_list(told, self._specs[told.partition_spec_id], is_named=False)
            if not self._keys.in_any_bound(told) <= found:
                return Trace(found, _FOREIGN)
        return Trace(found, size_bytes=file.size_bytes)

    def _search_checksums(self, file: StoredFile) -> Trace:
        content = read_whole(self._storage, file.location)
        found = self._keys.in_bytes(content) or NOTHING
        if len(content) < _CHECKSUMS.size or not file.name.endswith(".crc"):
            return Trace(found, UNKNOWN_FORM)
        _, chunk_bytes = _CHECKSUMS.unpack_from(content)
        if (len(content) - _CHECKSUMS.size) % 4 or not 0 < chunk_bytes <= _CHUNK_AT_MOST:
            return Trace(found, UNKNOWN_FORM)
        return Trace(found, size_bytes=file.size_bytes)

    def _search_text(self, file: StoredFile) -> Trace:
        """Plain UTF-8: of JSON each value, of anything else what stands in it."""
        content = read_whole(self._storage, file.location)
        text = content.decode()
        if file.name == "version-hint.text" and text.strip().isdecimal():
            return Trace(size_bytes=file.size_bytes)
        if "\0" in text:  # UTF-16, or no text
            return Trace(why=UNKNOWN_FORM)
        documents = _json_of(text)
        if documents is None:
            found = self._keys.in_plain(text)
            is_known = not is_escaped(text)
        else:
            found, is_known = self._in_documents(documents)
        if found is None:
            return Trace(why=UNKNOWN_FORM)
        return Trace(found, None if is_known else _ESCAPED, file.size_bytes)

    def _in_documents(self, documents: Sequence[Any]) -> tuple[frozenset[int] | None, bool]:
        """The keys in them, if that can be told, and whether all in them is plain."""
        found, is_plain = NOTHING, True
        for document in documents:
            if isinstance(document, dict) and "format-version" in document:
                found |= told_in_metadata(document, self._keys)
                continue
            values = [*scalars(document)]
            if (told := self._keys.in_scalars(values)) is None:
                return None, False
            found |= told
            is_plain = is_plain and not any(isinstance(one, str) and is_escaped(one) for one in values)
        return found, is_plain


def _json_of(text: str) -> list[Any] | None:
    """The one value that a text is in JSON, or those of its lines; None if it is anything else."""
    for parts in ([text], filter(str.strip, text.split("\n"))):
        with suppress(ValueError):
            # Fractions stay as they are written: `1e16` may be a key, and `1.50` is not 1.5 as a text.
            return [json.loads(part, object_pairs_hook=_object, parse_float=str) for part in parts]
    return None


def _object(fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Raises ValueError for a name that is there twice: only the last would be seen."""
    told = dict(fields)
    if len(told) < len(fields):
        raise ValueError("a name is there twice")
    return told


def _whole(size_bytes: int) -> AbstractContextManager[object]:
    """While a file of that size is in memory, with what is made of it. Raises ValueError for a larger one."""
    if size_bytes > ANSWER_BYTES:
        raise ValueError(TOO_LARGE)
    return _one_large if size_bytes > _SMALL_BYTES else nullcontext()
