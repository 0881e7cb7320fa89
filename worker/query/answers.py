"""Answers questions about tables, and keeps what several of them need: metadata, snapshots and indexes.

Invariant: what is kept follows from its name, but for the index. Of that, an older state covers fewer files
and says nothing wrong; it is looked at again when it leaves files to be scanned, or when its files are gone.
A metadata file that is named by a number alone is read for each question: a table that is dropped and created
again has other ones of the same names.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata

from stores.table_metadata import parse_table_metadata
from trust.bounds import (
    PACKED_METADATA,
    LimitExceededError,
    check_json,
    read_bounded,
    unpacked,
)
from worker.contract.lookups import AskedKeys
from worker.index.key_set_index import (
    INDEXED_FILE_BYTES,
    DamagedIndexError,
    KeySetIndex,
    database_name,
    indexed_key_sets,
    open_index,
)
from worker.index.sorted_runs import TABLE_ID
from worker.index.warehouse import IndexWarehouse
from worker.io.cache import Cache
from worker.io.cached_files import CachedFiles
from worker.io.storage import Storage
from worker.keys.key_set import KeyColumnError, KeySet
from worker.keys.schema_fields import column_names_of, field_ids_of, resolve_key_set
from worker.process.memory import holding
from worker.query.errors import OutdatedError, UnknownKeyColumnsError, UnreadableError
from worker.query.json_keys import keys_of_json
from worker.query.places import Coverage, Places
from worker.query.snapshot import TableSnapshot, is_head_of, snapshot_of
from worker.table.avro_files import CorruptMetadataError

KEPT_BYTES = 320 * 1024**2
_FILES_BYTES = 100_000
_METADATA_FACTOR = 10
_NUMBERED = re.compile(r"v\d+(\.gz\.metadata\.json|\.metadata\.json(\.gz)?)")
"""Names of metadata files in Hadoop's catalogs, which are used again."""
_LOOK_AGAIN_SECONDS = 1.0
"""At an index that leaves files to be scanned: a job may have indexed them meanwhile."""


@dataclass(frozen=True, slots=True)
class TablePlace:
    """Where a table's metadata and its index lie, and how they are opened.

    branch: whose index it is. declared: key sets by column names, that the table was enrolled with.
    """

    metadata_location: str
    tables: Storage
    index_warehouse: str
    indexes: Storage
    branch: str = "main"
    declared: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class _Metadata:
    """digest: of what it says, and so of what it names."""

    table: TableMetadata
    digest: bytes
    size_bytes: int

    @classmethod
    def read(cls, storage: Storage, location: str) -> _Metadata:
        """Within the bounds that the service has for it.

        Raises UnreadableError, CorruptMetadataError, or OSError (a retry can help).
        """
        what = f"The file {location}"
        try:
            with storage.io.new_input(location).open() as source:
                content = read_bounded(source, what)
            with _told_as_damaged(location):
                if location.endswith(PACKED_METADATA):
                    content = unpacked(content, what)
                check_json(content, what)
        except LimitExceededError as error:
            raise UnreadableError(str(error), error.remedy) from error
        with holding(_METADATA_FACTOR * len(content)), _told_as_damaged(location):
            table = parse_table_metadata(content)
        return cls(table, hashlib.sha256(content).digest(), len(content))


@contextmanager
def _told_as_damaged(location: str) -> Iterator[None]:
    """What is read, unpacked or parsed here lies in memory already: no error of it is the store's."""
    try:
        yield
    except (LimitExceededError, MemoryError):
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        raise CorruptMetadataError(f"{location} is damaged, or too new: {said}") from error


@dataclass(slots=True)
class _OpenIndex:
    index: KeySetIndex | None
    looked_at: float = field(default_factory=time.monotonic)

    @property
    def is_old(self) -> bool:
        return time.monotonic() - self.looked_at > _LOOK_AGAIN_SECONDS


class Answers:
    """Answers about any number of tables."""

    def __init__(self, cache: Cache | None = None) -> None:
        self._cache = cache or Cache(KEPT_BYTES)

    def files(self, properties: Mapping[str, str]) -> Storage:
        """How files are opened with these properties, resolved: kept with its connections."""
        name = ("files", frozenset(properties.items()))
        return self._cache.get(name, lambda: CachedFiles(properties, self._cache), lambda _: _FILES_BYTES)

    def coverage(self, place: TablePlace, question: AskedKeys) -> Coverage:
        """What there is to answer a question with. Raises QuestionError, JobError, or OSError (a retry can
        help)."""
        read = self._metadata(place)
        metadata = read.table
        branch = place.branch if question.branch is None else question.branch
        snapshot = snapshot_of(metadata, branch=branch, snapshot_id=question.snapshot_id)
        is_head = is_head_of(metadata, branch=branch, snapshot_id=question.snapshot_id)
        snapshot_id = None if snapshot is None else snapshot.snapshot_id
        name = (place.tables, place.metadata_location, read.digest, snapshot_id, is_head)
        try:
            table = self._cache.get(
                ("snapshot", *name),
                lambda: TableSnapshot(place.tables, metadata, snapshot, self._cache, is_head=is_head),
                lambda table: table.size_bytes,
            )
        except FileNotFoundError as error:  # of a manifest: another snapshot may have all of its own
            remedy = "Ask about a snapshot that has not expired, or restore the file."
            raise UnreadableError(str(error), remedy) from error
        key_set = self._key_set(place, metadata, question.key_columns)
        opened = self._index(place, metadata, key_set)
        coverage = self._covered(name, table, key_set, opened.index)
        if coverage.files_left and opened.is_old:
            self._forget_index(place, metadata, key_set)
            again = self._index(place, metadata, key_set)
            coverage = self._covered(name, table, key_set, again.index)
        return coverage

    def find(self, place: TablePlace, question: AskedKeys) -> tuple[Coverage, Places]:
        """Raises QuestionError, JobError, or OSError (a retry can help)."""
        coverage, _, places = self.find_keys(place, question, lambda of: keys_of_json(of, question.keys))
        return coverage, places

    def find_keys(
        self,
        place: TablePlace,
        question: AskedKeys,
        keys: Callable[[KeySet], pa.RecordBatch],
        most: int | None = None,
    ) -> tuple[Coverage, pa.RecordBatch, Places]:
        """keys: what is asked for, as `KeySet.schema`. most: as of `Coverage.find`.

        Raises as `find`, and what `keys` raises.
        """
        for is_last in (False, True):
            coverage = self.coverage(place, question)
            asked = keys(coverage.key_set)
            try:
                return coverage, asked, coverage.find(asked, most)
            except FileNotFoundError as error:
                if is_last:
                    raise OutdatedError(str(error)) from error
                # Compacted away under it: the index of now has the same entries in other files.
                self._forget_index(place, coverage.table.metadata, coverage.key_set)
        raise AssertionError

    def _metadata(self, place: TablePlace) -> _Metadata:
        read = partial(_Metadata.read, place.tables, place.metadata_location)
        try:
            if _NUMBERED.fullmatch(place.metadata_location.rpartition("/")[2]):
                return read()
            return self._cache.get(
                ("metadata", place.tables, place.metadata_location),
                read,
                lambda one: _METADATA_FACTOR * one.size_bytes,
            )
        except FileNotFoundError as error:
            raise OutdatedError(str(error)) from error

    def _covered(
        self, name: tuple[Hashable, ...], table: TableSnapshot, key_set: KeySet, index: KeySetIndex | None
    ) -> Coverage:
        state = (
            None
            if index is None
            else (
                index.files_table.location,
                index.files_table.options.get(TABLE_ID),  # another one in its place counts anew
                index.files.paimon_snapshot_id,
                index.entries.paimon_snapshot_id,
            )
        )
        return self._cache.get(
            ("coverage", *name, key_set.equality_field_ids, state),
            lambda: Coverage(table, key_set, index),
            lambda _: 60 * len(table.files.data_files) + 1_000,
        )

    def _key_set(self, place: TablePlace, metadata: TableMetadata, columns: Sequence[str] | None) -> KeySet:
        """The one that is asked by, or else the table's only one. Raises UnknownKeyColumnsError."""
        schema = metadata.schema()
        try:
            if columns is not None and len({*columns}) < len(columns):
                raise UnknownKeyColumnsError("A key column is named twice.")
            if columns is not None:
                return resolve_key_set(metadata, field_ids_of(schema, columns))
            declared = {field_ids_of(schema, one) for one in place.declared}
        except KeyColumnError as error:
            raise UnknownKeyColumnsError(str(error), error.remedy) from error
        known = declared or {*indexed_key_sets(self._warehouse(place), _database(place, metadata))}
        if not known and schema.identifier_field_ids:
            known = {tuple(sorted(schema.identifier_field_ids))}
        if len(known) != 1:
            names = "; ".join(", ".join(column_names_of(metadata, one)) for one in sorted(known))
            raise UnknownKeyColumnsError(
                f"The table has several key sets: {names}." if known else "The table has no key set yet.",
                "Name the key by its columns: as `key_columns`, or in a shell each by `--key-column`.",
            )
        return resolve_key_set(metadata, *known)

    def _index(self, place: TablePlace, metadata: TableMetadata, key_set: KeySet) -> _OpenIndex:
        def look() -> _OpenIndex:
            try:
                return _OpenIndex(open_index(self._warehouse(place), _database(place, metadata), key_set))
            except DamagedIndexError as error:
                raise UnreadableError(
                    f"The index can't be read: {error}.", "The next job of kind `index` makes it anew."
                ) from error

        return self._cache.get(_index_name(place, metadata, key_set), look, _index_bytes)

    def _forget_index(self, place: TablePlace, metadata: TableMetadata, key_set: KeySet) -> None:
        self._cache.forget(_index_name(place, metadata, key_set))

    def _warehouse(self, place: TablePlace) -> IndexWarehouse:
        return self._cache.get(
            ("warehouse", place.indexes, place.index_warehouse),
            lambda: IndexWarehouse(place.index_warehouse, place.indexes),
            lambda _: 10_000,
        )


def _database(place: TablePlace, metadata: TableMetadata) -> str:
    return database_name(str(metadata.table_uuid), place.branch)


def _index_name(place: TablePlace, metadata: TableMetadata, key_set: KeySet) -> Hashable:
    return ("index", place.indexes, place.index_warehouse, _database(place, metadata), key_set)


def _index_bytes(opened: _OpenIndex) -> int:
    return 10_000 if opened.index is None else INDEXED_FILE_BYTES * len(opened.index.dictionary) + 100_000
