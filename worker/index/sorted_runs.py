"""Paimon primary-key tables as sorted runs of Parquet files: commit a run, list what is live.

pypaimon folds rows one by one in Python; here files are written and read by Arrow and only their metadata
goes through pypaimon. Invariant: every table stays a valid Paimon table (thin mode, bucket 0) that any
Paimon reader opens with the same rows; primary keys are unique across all its files, so that the merged
rows are the union of the files' rows.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any

from pypaimon.common.json_util import JSON
from pypaimon.manifest.manifest_file_manager import ManifestFileManager
from pypaimon.manifest.manifest_list_manager import ManifestListManager
from pypaimon.manifest.schema.data_file_meta import DataFileMeta
from pypaimon.manifest.schema.simple_stats import SimpleStats
from pypaimon.snapshot.snapshot import Snapshot
from pypaimon.table.file_store_table import FileStoreTable
from pypaimon.table.row.generic_row import GenericRow
from pypaimon.table.row.internal_row import InternalRow
from pypaimon.write.commit_message import CommitMessage

from worker.index.run_files import BUCKET, RunFile, runs_of
from worker.index.snapshots import NextSnapshot
from worker.io.row_groups import side_by_side
from worker.io.storage import Storage, StoredFile, causes_of
from worker.process.errors import JobError

TABLE_FOLDERS = ("snapshot", "manifest", BUCKET)  # of a Paimon table, beside that of its schemas
BESIDE = "icestream.beside"  # property of a snapshot, see `LiveFiles`
TABLE_ID = "icestream.table-id"  # option of a table and property of its snapshots: a name may be used again
_SNAPSHOT_FILE = re.compile(r"snapshot-(\d+)")
_ADDED = 0  # the kind of an entry of a manifest


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


@dataclass(frozen=True, slots=True)
class CleanedUp:
    """How many files were deleted, and their size."""

    files: int
    size_bytes: int


@contextmanager
def unwrapped() -> Iterator[None]:
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
        return max(_snapshot_ids(storage, location), default=0) == known.paimon_snapshot_id

    def is_the_same() -> bool:
        return storage.read(_snapshot_path(location, known.paimon_snapshot_id)) == known.snapshot_file

    return is_last, is_the_same


@dataclass(frozen=True, slots=True)
class _LatestSnapshot:
    """In the place of pypaimon's own search, which asks several times about each snapshot's file."""

    table: FileStoreTable
    storage: Storage

    def load(self) -> Snapshot | None:
        location = str(self.table.table_path)
        number = max(_snapshot_ids(self.storage, location), default=None)
        if number is None:
            return None
        return JSON.from_json(self.table.file_io.read_file_utf8(_snapshot_path(location, number)), Snapshot)


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
        if known is not None and self.is_latest(known):
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

    def is_latest(self, known: LiveFiles) -> bool:
        """Whether no commit came after it, and no other table in the place of this one."""
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
        commit.file_store_commit.snapshot_manager.snapshot_loader = _LatestSnapshot(table, self.storage)
        commit.file_store_commit.commit_max_retries = 0
        try:
            message = CommitMessage((), 0, [self._meta(file) for file in added], deleted_files=dead)
            with unwrapped():  # while it writes manifests
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
        unneeded = self._unneeded(keep_seconds, fence)
        snapshots = [file for file in unneeded if _SNAPSHOT_FILE.fullmatch(file.name)]
        others = [file for file in unneeded if not _SNAPSHOT_FILE.fullmatch(file.name)]
        deleted = [*self._deleted(snapshots), *self._deleted(others)]
        return CleanedUp(len(deleted), sum(file.size_bytes for file in deleted))

    def _deleted(self, files: Sequence[StoredFile]) -> Iterator[StoredFile]:
        """Deletes files, and tells those that were there."""
        locations = [file.location for file in files]
        were_there = side_by_side(self.storage.delete, locations, waits=self._waits)
        return compress(files, were_there)

    @property
    def _waits(self) -> bool:
        """Whether what is asked of the store takes a while to come."""
        return not self.storage.is_local(self.location)

    def read_history(self) -> None:
        """Reads all snapshots and their manifests, as `clean_up` may have to.

        Not those that one takes away meanwhile: their files go after them.
        """

        def read(snapshot_id: int) -> None:
            try:
                self._needed_by(snapshot_id)
            except FileNotFoundError:
                if self.storage.exists(_snapshot_path(self.location, snapshot_id)):
                    raise

        for _ in side_by_side(read, _snapshot_ids(self.storage, self.location), waits=self._waits):
            pass

    def _unneeded(self, keep_seconds: float, written_now: str | None = None) -> list[StoredFile]:
        """Files older than `keep_seconds` that no snapshot to be kept needs.

        written_now: the file that tells the time by the store's clock; without, it is as late as may be.
        """
        folders = [f"{self.location}/{folder}" for folder in TABLE_FOLDERS]
        files = list(chain.from_iterable(side_by_side(self.storage.list, folders, waits=self._waits)))
        modified_at = {file.name: file.modified_at for file in files}
        now = modified_at[written_now] if written_now else max([time.time(), *modified_at.values()])
        horizon = now - keep_seconds
        numbers = [int(match[1]) for match in map(_SNAPSHOT_FILE.fullmatch, modified_at) if match]
        older = [number for number in numbers if modified_at[f"snapshot-{number}"] <= horizon]
        kept = [number for number in numbers if number >= max(older, default=0)]
        needed = set(chain.from_iterable(side_by_side(self._needed_by, kept, waits=self._waits)))
        return [file for file in files if file.name not in needed and file.modified_at <= horizon]

    def _needed_by(self, snapshot_id: int) -> set[str]:
        """The names of a snapshot's file, and of those that it needs."""
        content = self._table.file_io.read_file_utf8(_snapshot_path(self.location, snapshot_id))
        snapshot = JSON.from_json(content, Snapshot)
        parts = ManifestListManager(self._table).read_all(snapshot)
        entries = ManifestFileManager(self._table).read_entries_parallel(parts)
        return {
            f"snapshot-{snapshot_id}",
            snapshot.base_manifest_list,
            snapshot.delta_manifest_list,
            *(part.file_name for part in parts),
            *(entry.file.file_name for entry in entries),
        }

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


def _snapshot_ids(storage: Storage, location: str) -> list[int]:
    names = (file.name for file in storage.list(f"{location}/snapshot"))
    return [int(match[1]) for match in map(_SNAPSHOT_FILE.fullmatch, names) if match]


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
