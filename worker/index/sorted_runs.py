"""Paimon primary-key tables as sorted runs of Parquet files: write a run, commit it, list what is live.

pypaimon folds rows one by one in Python; here files are written and read by Arrow and only their metadata
goes through pypaimon. Invariant: every table stays a valid Paimon table (thin mode, bucket 0) that any
Paimon reader opens with the same rows; primary keys are unique across all its files, so that the merged
rows are the union of the files' rows.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs as pafs
from pypaimon import CatalogFactory, Schema
from pypaimon.catalog.catalog import Catalog
from pypaimon.catalog.catalog_exception import DatabaseNotExistException
from pypaimon.common.identifier import Identifier
from pypaimon.common.options.options import Options
from pypaimon.filesystem.pyarrow_file_io import PyArrowFileIO
from pypaimon.manifest.manifest_file_manager import ManifestFileManager
from pypaimon.manifest.manifest_list_manager import ManifestListManager
from pypaimon.manifest.schema.data_file_meta import DataFileMeta
from pypaimon.manifest.schema.simple_stats import SimpleStats
from pypaimon.schema.table_schema import TableSchema
from pypaimon.table.file_store_table import FileStoreTable
from pypaimon.table.row.generic_row import GenericRow
from pypaimon.table.row.internal_row import InternalRow
from pypaimon.write.commit_message import CommitMessage

from worker.index import checksums
from worker.index.checksums import CheckedFiles, FooterSink
from worker.index.snapshots import NextSnapshot
from worker.io.sorting import is_bytes
from worker.io.storage import Storage, StoredFile, causes_of
from worker.process.errors import JobError

ROW_GROUP_ROWS = 8_192
DECODED_BYTES = "icestream.decoded-bytes"  # in memory; encoded sizes say little about keys with long prefixes
BUCKET = "bucket-0"
SYSTEM_COLUMNS = ("_SEQUENCE_NUMBER", "_VALUE_KIND")
TABLE_FOLDERS = ("snapshot", "manifest", BUCKET)  # of a Paimon table, beside that of its schemas
REPORTS = (
    "duplicates"  # the folder beside the tables of a database that worker.jobs.report_duplicates writes to
)
_FOLDERS = frozenset((*TABLE_FOLDERS, "schema"))
_HINTS = frozenset(("LATEST", "EARLIEST"))  # of snapshots, which indexes do without
BESIDE = "icestream.beside"  # property of a snapshot, see `LiveFiles`
TABLE_ID = "icestream.table-id"  # option of a table and property of its snapshots: a name may be used again
_SNAPSHOT_FILE = re.compile(r"snapshot-(\d+)")
_ADDED = 0  # the kind of an entry of a manifest
TOP_LEVEL = 9  # of the LSM tree; with Paimon's default of 5, large indexes are rewritten more often
_TABLE_OPTIONS = {
    "bucket": "1",
    "file.format": "parquet",
    "data-file.thin-mode": "true",
    "num-levels": str(TOP_LEVEL + 1),
}


class IndexCommitConflictError(JobError):
    """Another writer changed the same files of the index. Planning again can help."""

    code = "index_conflict"
    title = "Another commit to the index came first"
    remedy = (
        "Nothing to do: it was a late one of an attempt that had lost its job, and the next attempt plans on"
        " what is there now."
    )
    retryable = True


@dataclass(frozen=True, slots=True)
class RunFile:
    """One Parquet file of a sorted run. Keys are the first and last primary key, in column order."""

    location: str
    file_name: str
    size_bytes: int
    rows: int
    min_key: tuple[Any, ...]
    max_key: tuple[Any, ...]
    lower_bounds: tuple[Any, ...]  # the smallest value of each key column by itself; None: unknown
    upper_bounds: tuple[Any, ...]
    level: int = 0


class RunWriter:
    """Writes one file of a run from tables that follow each other in primary-key order.

    Nothing is visible until `commit_files`. Any call may raise OSError (a retry can help).
    """

    def __init__(
        self, storage: Storage, table_location: str, primary_key: Sequence[str], level: int = 0
    ) -> None:
        """primary_key: the leading columns of the tables."""
        self._file_name = f"data-{uuid.uuid4()}-0.parquet"
        self._location = f"{table_location}/{BUCKET}/{self._file_name}"
        self._storage = storage
        self._primary_key = primary_key
        self._level = level
        self._sink: FooterSink | None = None
        self._writer: pq.ParquetWriter | None = None
        self._rows = self._decoded_bytes = 0
        self._min_key: tuple[Any, ...] = ()
        self._max_key: tuple[Any, ...] = ()
        self._bounds: list[tuple[Any, Any]] = []

    def write(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        physical = _with_system_columns(rows)
        if self._writer is None:
            self._sink = FooterSink(self._storage.open_output(self._location))
            self._writer = pq.ParquetWriter(
                pa.PythonFile(self._sink, mode="w"),
                physical.schema,
                compression="zstd",
                use_dictionary=False,
                column_encoding=_encodings(physical.schema),
                write_page_index=False,
                # Neither zstd nor an encoding notices a flipped bit: it would be another row's address.
                write_page_checksum=True,
            )
        self._writer.write_table(physical, row_group_size=ROW_GROUP_ROWS)
        keys = [rows[name] for name in self._primary_key]
        bounds = [pc.min_max(column).as_py() for column in keys]
        known = self._bounds or [(bound["min"], bound["max"]) for bound in bounds]
        self._bounds = [
            (min(low, bound["min"]), max(high, bound["max"]))
            for (low, high), bound in zip(known, bounds, strict=True)
        ]
        self._min_key = self._min_key or tuple(column[0].as_py() for column in keys)
        self._max_key = tuple(column[-1].as_py() for column in keys)
        self._rows += rows.num_rows
        self._decoded_bytes += rows.nbytes

    def close(self) -> list[RunFile]:
        """The file; none if there were no rows."""
        if self._writer is None or self._sink is None:
            return []
        self._writer.add_key_value_metadata(
            {DECODED_BYTES: str(self._decoded_bytes), checksums.NAME: checksums.BLANK}
        )
        self._sink.footer_follows()
        self._writer.close()
        size_bytes = self._sink.close()
        return [
            RunFile(
                self._location,
                self._file_name,
                size_bytes,
                self._rows,
                self._min_key,
                self._max_key,
                tuple(low for low, _ in self._bounds),
                tuple(high for _, high in self._bounds),
                self._level,
            )
        ]


def write_run(
    storage: Storage, table_location: str, rows: pa.Table, *, primary_key: Sequence[str]
) -> list[RunFile]:
    """Writes rows, sorted by `primary_key` (their leading columns), as a run of one file; none if empty."""
    writer = RunWriter(storage, table_location, primary_key)
    writer.write(rows)
    return writer.close()


def _with_system_columns(rows: pa.Table) -> pa.Table:
    """Thin-mode layout: sequence number and kind (INSERT) before the table's own columns."""
    zeros = np.zeros(rows.num_rows, np.int64)
    system = dict(zip(SYSTEM_COLUMNS, (pa.array(zeros), pa.array(zeros.astype(np.int8))), strict=True))
    fields = [pa.field(name, array.type, nullable=False) for name, array in system.items()]
    return pa.Table.from_arrays([*system.values(), *rows.columns], schema=pa.schema([*fields, *rows.schema]))


def _encodings(schema: pa.Schema) -> dict[str, str]:
    """Delta encodings: sorted keys and dense addresses shrink to a few bits a value, and decode fast."""
    encodings = {}
    for field in schema:
        if pa.types.is_integer(field.type):
            encodings[field.name] = "DELTA_BINARY_PACKED"
        elif is_bytes(field.type):
            encodings[field.name] = "DELTA_BYTE_ARRAY"
    return encodings


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """The live files of one Paimon snapshot (None: the table holds nothing yet).

    beside: the snapshot of the other table of the index that these files need, that one or a later one.
    snapshot_file: its content, by which a snapshot is told from any other of its number.
    """

    paimon_snapshot_id: int | None
    files: tuple[RunFile, ...]
    beside: int = 0
    snapshot_file: bytes = dataclasses.field(default=b"", repr=False)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def sorted_runs(self) -> int:
        return len(runs_of(self.files))


def runs_of(files: Sequence[RunFile]) -> list[list[RunFile]]:
    """Each run's files, the smallest run first: level-0 files are a run each, a level above is one run."""
    by_run: dict[Any, list[RunFile]] = defaultdict(list)
    for file in files:
        by_run[file.level or file.file_name].append(file)
    return sorted(by_run.values(), key=lambda run: sum(file.rows for file in run))


@dataclass(frozen=True, slots=True)
class CleanedUp:
    """How many files were deleted, and their size."""

    files: int
    size_bytes: int


class IndexWarehouse:
    """A Paimon filesystem catalog that holds the index tables of many Iceberg tables."""

    def __init__(self, location: str, storage: Storage) -> None:
        self.location = location.rstrip("/")
        self.storage = storage
        if storage.is_local(self.location):
            self._catalog: Catalog = CatalogFactory.create({"warehouse": self.location})
        else:
            self._catalog = CatalogFactory.create({"warehouse": "file:/"})
            self._catalog.warehouse = self.location
            self._catalog.file_io = _StoreFileIO(self.location, storage)
        CheckedFiles(self._catalog.file_io)

    def open(self, database: str, name: str) -> RunTable | None:
        """The table, or None if it does not exist. Raises OSError, or anything if its schema is damaged.

        A table of an index keeps its first schema, so no request finds out which one is the latest.
        """
        file_io, place = self._catalog.file_io, self.place_of(database, name)
        try:
            with file_io.new_input_stream(f"{place}/schema/schema-0") as source:
                schema = TableSchema.from_json(source.read().decode())
        except FileNotFoundError:
            return None
        identifier = Identifier.from_string(f"{database}.{name}")
        return RunTable(FileStoreTable(file_io, identifier, place, schema), self.storage)

    def create(
        self,
        database: str,
        name: str,
        schema: pa.Schema,
        primary_key: Sequence[str],
        options: Mapping[str, str],
    ) -> RunTable:
        """The table, created if needed. Raises OSError when the warehouse can't be written."""
        paimon_schema = Schema.from_pyarrow_schema(
            schema,
            primary_keys=list(primary_key),
            options={**_TABLE_OPTIONS, TABLE_ID: uuid.uuid4().hex, **options},
        )
        with _unwrapped():
            self._catalog.create_database(database, True)
            self._catalog.create_table(f"{database}.{name}", paimon_schema, True)
        table = self.open(database, name)
        assert table is not None
        return table

    def databases(self) -> list[str]:
        with _unwrapped():
            return list(self._catalog.list_databases())

    def table_names(self, database: str) -> list[str]:
        try:
            return [name for name in self._catalog.list_tables(database) if name != REPORTS]
        except DatabaseNotExistException:
            return []

    def place_of(self, database: str, name: str) -> str:
        """Where something of a database lies."""
        return str(self._catalog.get_table_path(Identifier.from_string(f"{database}.{name}")))

    def drop_table(self, database: str, name: str) -> None:
        """Deletes all that lies in the table's directory, if anything does.

        Also without a schema, by which Paimon knows a table: a worker that slept while another dropped it may
        write on when it wakes.
        """
        self._catalog.file_io.delete(self.place_of(database, name), True)

    def drop(self, database: str) -> None:
        """Deletes every index table of a database, if it exists, and what lies beside them."""
        self._catalog.drop_database(database, ignore_if_not_exists=True, cascade=True)


class _StoreFileIO(PyArrowFileIO):  # type: ignore[misc]
    """pypaimon's, of any store, with our credentials.

    Its own knows fewer, and waits ten minutes for one that does not answer.
    """

    def __init__(self, location: str, storage: Storage) -> None:
        self._location, self._storage = location, storage
        super().__init__("s3://none", Options({}))

    @property
    def filesystem(self) -> pafs.FileSystem:
        """With the keys that are good now."""
        return self._storage.resolve(self._location)[0]

    @filesystem.setter
    def filesystem(self, _: pafs.FileSystem) -> None:
        """pypaimon's own is for nothing here."""

    def to_filesystem_path(self, path: str) -> str:
        # pypaimon also asks for what it has been told already.
        return self._storage.resolve(path)[1].rstrip("/") if "://" in path else path

    # On S3 a folder is what names have in common, so nobody makes one, or asks whether it is there.

    def exists(self, path: str) -> bool:
        if not self._storage.is_on_s3(path):
            return bool(super().exists(path))
        name = path.rstrip("/").rpartition("/")[2]
        if name in _HINTS:
            return False
        return name.endswith(Catalog.DB_SUFFIX) or name in _FOLDERS or self._storage.exists(path.rstrip("/"))

    def mkdirs(self, path: str) -> bool:
        return self._storage.is_on_s3(path) or bool(super().mkdirs(path))

    def new_input_stream(self, path: str) -> Any:
        if self._storage.is_on_s3(path):
            return BytesIO(self._storage.read(path))
        return super().new_input_stream(path)

    def new_output_stream(self, path: str) -> Any:
        if self._storage.is_on_s3(path):
            return self._storage.open_output(path)
        return super().new_output_stream(path)

    def list_status(self, path: str) -> list[pafs.FileInfo]:
        if not isinstance(self.filesystem, pafs.GcsFileSystem):
            return list(super().list_status(path))
        # Of Google's store, Arrow lists no folder that was not created as one: they follow from the files.
        place = self.to_filesystem_path(path)
        found: dict[str, pafs.FileInfo] = {}
        for info in self.filesystem.get_file_info(pafs.FileSelector(place, recursive=True)):
            name, slash, _ = info.path.removeprefix(f"{place}/").partition("/")
            folder = pafs.FileInfo(f"{place}/{name}", pafs.FileType.Directory)
            found.setdefault(name, folder if slash else info)
        return list(found.values())


@contextmanager
def _unwrapped() -> Iterator[None]:
    """What the store said, which pypaimon wraps in errors of its own."""
    try:
        yield
    except RuntimeError as error:
        for cause in causes_of(error):
            if isinstance(cause, OSError | MemoryError):
                raise cause from None
        raise


def told_as_latest(storage: Storage, location: str, known: LiveFiles) -> Sequence[Callable[[], bool]]:
    """What is asked of a table's place to know whether it is still at a snapshot; the second question raises
    FileNotFoundError where that is gone.

    The content counts, too: the snapshots of a table that is made anew get the same numbers.
    """

    def is_last() -> bool:
        names = (file.name for file in storage.list(f"{location}/snapshot"))
        numbers = (int(match[1]) for match in map(_SNAPSHOT_FILE.fullmatch, names) if match)
        return max(numbers, default=0) == known.paimon_snapshot_id

    def is_the_same() -> bool:
        return storage.read(_snapshot_path(location, known.paimon_snapshot_id)) == known.snapshot_file

    return is_last, is_the_same


class RunTable:
    """One Paimon primary-key table, seen as its live files."""

    def __init__(self, table: FileStoreTable, storage: Storage) -> None:
        self._table = table
        self.storage = storage

    @property
    def location(self) -> str:
        return str(self._table.table_path)

    @property
    def options(self) -> dict[str, str]:
        return dict(self._table.table_schema.options)

    def live_files(self, known: LiveFiles | None = None) -> LiveFiles:
        """Those of the latest snapshot.

        known: of this table, or of an earlier one of its name; no manifest is read while they are the latest.

        Raises IndexCommitConflictError if an attempt wrote that for an earlier table of the same name, which
        was dropped while it slept. Nobody commits after one that is not its own, so the latest tells of all.
        """
        if known is not None and self._is_latest(known):
            # It may be one that this process has committed late.
            self._properties_of(known.paimon_snapshot_id, known.snapshot_file)
            return known
        snapshot_id, metas = self._latest()
        if snapshot_id is None:
            return LiveFiles(None, ())
        content = self._table.file_io.new_input_stream(_snapshot_path(self.location, snapshot_id)).read()
        beside = int(self._properties_of(snapshot_id, content).get(BESIDE, 0))
        return LiveFiles(snapshot_id, tuple(self._run_file(meta) for meta in metas), beside, content)

    def has_made(self, known: LiveFiles) -> bool:
        """Whether a snapshot was written for this table, and not for an earlier one of its name."""
        return _properties_in(known.snapshot_file).get(TABLE_ID) == self.options.get(TABLE_ID)

    def _properties_of(self, snapshot_id: int | None, content: bytes) -> dict[str, str]:
        """What a snapshot's file has of ours. Raises IndexCommitConflictError if it is none of this table."""
        properties = _properties_in(content)
        if properties.get(TABLE_ID) != self.options.get(TABLE_ID):
            raise IndexCommitConflictError(
                f"snapshot {snapshot_id} in {self.location} was written for an earlier table of that name"
            )
        return properties

    def _is_latest(self, known: LiveFiles) -> bool:
        return known.paimon_snapshot_id is not None and all(
            is_so() for is_so in told_as_latest(self.storage, self.location, known)
        )

    def commit_files(
        self,
        planned_on: LiveFiles,
        added: Sequence[RunFile],
        removed: Sequence[RunFile] = (),
        beside: int | None = None,
    ) -> LiveFiles:
        """Makes `added` visible and `removed` dead in the Paimon snapshot that follows the planned one, and
        returns its files.

        beside: see `LiveFiles`; None: as before. Raises IndexCommitConflictError when such a one has come
        first, and OSError when the store did not say whether the snapshot was written: then it may still be.
        """
        removed_names = {file.file_name for file in removed}
        dead = [meta for meta in self._latest()[1] if meta.file_name in removed_names] if removed else []
        if len(dead) != len(removed_names):
            raise IndexCommitConflictError("files to be replaced in the index are no longer live")
        table = self._table.copy({"snapshot.ignore-empty-commit": "false"})
        needed = planned_on.beside if beside is None else beside
        properties = {BESIDE: str(needed)}
        if TABLE_ID in self.options:
            properties[TABLE_ID] = self.options[TABLE_ID]
        next_snapshot = NextSnapshot(
            table.snapshot_manager(), self.storage, planned_on.paimon_snapshot_id, properties
        )
        commit = table.new_batch_write_builder().new_commit()
        commit.file_store_commit.snapshot_commit = next_snapshot
        commit.file_store_commit.commit_max_retries = 0
        try:
            message = CommitMessage((), 0, [self._meta(file) for file in added], deleted_files=dead)
            with _unwrapped():  # while it writes manifests
                commit.commit([message])
        except RuntimeError as error:
            if next_snapshot.error is not None:
                raise next_snapshot.error from None
            if next_snapshot.is_overtaken or not next_snapshot.was_reached:
                raise IndexCommitConflictError("another commit to the index came first") from error
            raise
        finally:
            commit.close()
        assert next_snapshot.written is not None
        snapshot, content = next_snapshot.written
        # As every reader has them, and not as they were told.
        manifests = ManifestFileManager(table)
        parts = ManifestListManager(table).read_delta(snapshot)
        entries = [entry for part in parts for entry in manifests.read(part.file_name)]
        kept = (file for file in planned_on.files if file.file_name not in removed_names)
        new = (self._run_file(entry.file) for entry in entries if entry.kind == _ADDED)
        return LiveFiles(snapshot.id, (*kept, *new), needed, content)

    def take_place(self, planned_on: LiveFiles) -> LiveFiles:
        """The same files one snapshot later: no other commit that was planned on this one can succeed.

        Raises as `commit_files` does.
        """
        return self.commit_files(planned_on, [])

    def clean_up(self, planned_on: LiveFiles, keep_seconds: float) -> CleanedUp:
        """Expires snapshots that nobody reads any more, and deletes every file that no kept one needs.

        Kept are the snapshots of the last `keep_seconds`, and the one that was the latest before these. Files
        younger than that stay as well. Snapshots go first, so what an interruption leaves is found the next
        time. planned_on: the table's present files. Raises IndexCommitConflictError when another commit comes
        first.
        """
        if not self._unneeded(keep_seconds):
            return CleanedUp(0, 0)
        # A commit that was planned before, and might name a file that is deleted here, can't succeed after
        # this one. It also tells the time by the clock of the store, not of this machine.
        fence = f"snapshot-{self.take_place(planned_on).paimon_snapshot_id}"
        count = size_bytes = 0
        for file in self._unneeded(keep_seconds, fence):
            if self.storage.delete(file.location):
                count += 1
                size_bytes += file.size_bytes
        return CleanedUp(count, size_bytes)

    def read_history(self) -> None:
        """Reads all snapshots and their manifests, as `clean_up` may have to."""
        self._unneeded(math.inf)

    def _unneeded(self, keep_seconds: float, written_now: str | None = None) -> list[StoredFile]:
        """Files older than `keep_seconds` that no snapshot to be kept needs.

        written_now: the file that tells the time by the store's clock; without, it is as late as may be.
        """
        files = [file for folder in TABLE_FOLDERS for file in self.storage.list(f"{self.location}/{folder}")]
        modified_at = {file.name: file.modified_at for file in files}
        now = modified_at[written_now] if written_now else max([time.time(), *modified_at.values()])
        horizon = now - keep_seconds
        snapshots = self._table.snapshot_manager().list_snapshots()
        # One that came after the listing is young.
        older = [s.id for s in snapshots if modified_at.get(f"snapshot-{s.id}", math.inf) <= horizon]
        kept = [snapshot for snapshot in snapshots if snapshot.id >= max(older, default=0)]
        needed = {f"snapshot-{snapshot.id}" for snapshot in kept}
        lists, manifests = ManifestListManager(self._table), ManifestFileManager(self._table)
        for snapshot in kept:
            parts = lists.read_all(snapshot)
            needed |= {snapshot.base_manifest_list, snapshot.delta_manifest_list}
            needed |= {part.file_name for part in parts}
            needed |= {entry.file.file_name for entry in manifests.read_entries_parallel(parts)}
        return [file for file in files if file.name not in needed and file.modified_at <= horizon]

    def _latest(self) -> tuple[int | None, list[DataFileMeta]]:
        """The latest snapshot and its files."""
        plan = self._table.new_read_builder().new_scan().plan()
        return plan.snapshot_id, [meta for split in plan.splits() for meta in split.files]

    def _run_file(self, meta: DataFileMeta) -> RunFile:
        min_key, max_key = tuple(meta.min_key.values), tuple(meta.max_key.values)
        constant = next(
            (i for i, (a, b) in enumerate(zip(min_key, max_key, strict=True)) if a != b), len(min_key)
        )
        return RunFile(
            f"{self.location}/{BUCKET}/{meta.file_name}",
            meta.file_name,
            meta.file_size,
            meta.row_count,
            min_key,
            max_key,
            _filled(_values(meta.key_stats.min_values), min_key, constant),
            _filled(_values(meta.key_stats.max_values), max_key, constant),
            meta.level,
        )

    def _meta(self, file: RunFile) -> DataFileMeta:
        fields = self._table.trimmed_primary_keys_fields
        return DataFileMeta.create(
            file_name=file.file_name,
            file_size=file.size_bytes,
            row_count=file.rows,
            min_key=GenericRow(list(file.min_key), fields),
            max_key=GenericRow(list(file.max_key), fields),
            key_stats=SimpleStats(
                GenericRow(_told(file.lower_bounds), fields),
                GenericRow(_told(file.upper_bounds), fields),
                [0] * len(fields),
            ),
            value_stats=SimpleStats.empty_stats(),
            min_sequence_number=0,
            max_sequence_number=0,
            schema_id=self._table.table_schema.id,
            level=file.level,
            extra_files=[],
            delete_row_count=0,
            file_source=0,
            value_stats_cols=[],
        )


def _snapshot_path(location: str, snapshot_id: int | None) -> str:
    return f"{location}/snapshot/snapshot-{snapshot_id}"


def _properties_in(snapshot_file: bytes) -> dict[str, str]:
    return json.loads(snapshot_file).get("properties") or {}


def _values(row: InternalRow) -> tuple[Any, ...]:
    return tuple(row.get_field(i) for i in range(len(row)))


def _told(bounds: Sequence[Any]) -> list[Any]:
    """Statistics without those of binary columns: Paimon's Java reader compares these as signed bytes.

    It would skip files that hold what is asked for (mended after 1.4, apache/paimon#8237).
    """
    return [None if isinstance(bound, bytes) else bound for bound in bounds]


def _filled(bounds: Sequence[Any], key: Sequence[Any], constant: int) -> tuple[Any, ...]:
    """Bounds with what the first or last key tells: as many leading columns are constant in the file."""
    return tuple(key[i] if bound is None and i <= constant else bound for i, bound in enumerate(bounds))
