"""A search of all files that snapshots of a table name, for some keys: data, deletes and manifests.

Invariant: of a file without a trace, all that may tell a key was read: key columns of rows to their end, the
paths in deletes by position, and all entries of manifests. What could not be read has a reason, and stands
for every key. Files never change, so each is searched once in a job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from trust.locations import LocationNotAllowedError
from worker.attempt.job import Job
from worker.erasure.columns import FormerColumns
from worker.erasure.keys import IN_EVERY_PARTITION, ErasedKeys
from worker.erasure.positions import search_positions
from worker.erasure.trace import FORMER_COLUMN, NOTHING, Trace, unreadable
from worker.io.storage import Storage
from worker.keys.key_set import KeyColumnError, KeySet
from worker.keys.read import KeyReader, key_reader, missing_file
from worker.lookup.index_lookup import ANY_AGE, DeleteKeys
from worker.process.errors import JobError
from worker.process.slots import Threads
from worker.table.files import DataFile, DeleteFile, FileContent
from worker.table.manifest_values import read_entry_bounds, read_partition_summaries
from worker.table.manifests import Manifest, read_manifest, read_manifest_list
from worker.table.plan import balanced

_READ_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class SearchTask:
    """Reads the key columns of some data and equality delete files. Pickles; `shared` are the keys."""

    reader: KeyReader
    files: Sequence[DataFile | DeleteFile]
    former: FormerColumns
    """No key is compared with the values of these."""

    def run(self, wanted: DeleteKeys) -> dict[str, Trace]:
        """By the paths of the files."""
        return {file.path: self._search(file, wanted) for file in self.files}

    def _search(self, file: DataFile | DeleteFile, wanted: DeleteKeys) -> Trace:
        found: set[int] = set()
        why = None
        try:
            for keys in (
                self.reader.read_data_file(file)
                if isinstance(file, DataFile)
                else self.reader.read_delete_file(file)
            ):
                _, numbers = wanted.find(keys, IN_EVERY_PARTITION)
                found.update((np.unique(numbers) - ANY_AGE).tolist())
            if self.former and self.former.has_any_of(self.reader.field_ids(file)):
                why = FORMER_COLUMN
        except KeyColumnError as error:
            if error.code == "missing_equality_column" and isinstance(file, DeleteFile):
                return self._search_part(file, wanted)
            why = error.reason
        except FileNotFoundError as error:
            why = missing_file(error)
        return Trace(frozenset(found), why, file.file_size_bytes)

    def _search_part(self, file: DeleteFile, wanted: DeleteKeys) -> Trace:
        """Of a delete that compares some columns of the key: it tells the keys with the same values there."""
        key_set = self.reader.key_set
        places = [at for at, one in enumerate(key_set.columns) if one.field_id in file.equality_ids]
        if self.former.has_any_of(file.equality_ids):
            return Trace(why=FORMER_COLUMN, size_bytes=file.file_size_bytes)
        if not places:
            return Trace(size_bytes=file.file_size_bytes)
        part = KeySet(tuple(key_set.columns[at] for at in places))
        keys_by_part: dict[tuple[Any, ...], set[int]] = defaultdict(set)
        rows = _values(key_set, wanted.rows.select(key_set.schema.names))
        for row, number in zip(rows, (wanted.sequence_numbers - ANY_AGE).tolist(), strict=True):
            keys_by_part[tuple(row[at] for at in places)].add(number)
        found: set[int] = set()
        try:
            for batch in replace(self.reader, key_set=part).read_delete_file(file):
                for row in set(_values(part, batch)):
                    found |= keys_by_part.get(row, set())
        except KeyColumnError as error:
            return Trace(frozenset(found), error.reason)
        except FileNotFoundError as error:
            return Trace(frozenset(found), missing_file(error))
        return Trace(frozenset(found), size_bytes=file.file_size_bytes)


def _values(key_set: KeySet, rows: pa.RecordBatch | pa.Table) -> Iterator[tuple[Any, ...]]:
    """Rows of `key_set.schema`, with null in the place of what is null."""
    for row in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        yield tuple(None if key_set.is_null(at, row) else row[1 + at] for at in range(len(key_set.columns)))


@dataclass(frozen=True, slots=True)
class Named:
    """What a manifest names: its live files, by path."""

    files: Mapping[str, DataFile | DeleteFile]


@dataclass(slots=True)
class Traces:
    """Of one snapshot: what its files tell of keys, by their paths; those that tell nothing are left away."""

    data_files: dict[str, Trace] = field(default_factory=dict)
    equality_deletes: dict[str, Trace] = field(default_factory=dict)
    position_deletes: dict[str, Trace] = field(default_factory=dict)
    metadata: dict[str, Trace] = field(default_factory=dict)
    """Manifests, and manifest lists that can't be read."""

    def __iter__(self) -> Iterator[tuple[str, Trace]]:
        for of_kind in (self.data_files, self.equality_deletes, self.position_deletes, self.metadata):
            yield from of_kind.items()

    @property
    def keys(self) -> frozenset[int]:
        return NOTHING.union(*(trace.keys for _, trace in self))

    @property
    def is_whole(self) -> bool:
        """Whether all files are known that the snapshot names."""
        return all(trace.is_read for trace in self.metadata.values())


class Search:
    """What was searched so far."""

    def __init__(self, job: Job, keys: ErasedKeys) -> None:
        self._job = job
        self._keys = keys
        self.traces: dict[str, Trace] = {}
        """Of each file that was searched, by its path as whoever names it spells it."""
        self._named: dict[str, Named] = {}
        self._lists: dict[str, list[Manifest]] = {}

    def named_by(
        self,
        metadata: TableMetadata,
        snapshots: Sequence[Snapshot],
        storage: Storage,
        *,
        have_expired: bool = False,
    ) -> tuple[set[str], str | None]:
        """The paths of all files that some snapshots need, without metadata files; and that of a manifest or
        manifest list that can't be read, so that there may be more.

        have_expired: what is missing was deleted, after all that it named.
        """
        with self._job.stage("search"):
            self._read_manifests(metadata, snapshots, storage)
        lists = {one.manifest_list for one in snapshots}
        manifests = {one.path for path in lists for one in self._lists[path]}
        traces = {path: self.traces[path] for path in sorted(lists | manifests)}
        unreadable = (
            path
            for path, trace in traces.items()
            if not trace.is_read and not (have_expired and trace.is_missing)
        )
        named = lists.union(manifests, *(self._named[path].files for path in manifests))
        return named, next(unreadable, None)

    def rank(self, path: str) -> int:
        """2 for a list of manifests that was read, 1 for a manifest, 0 for what names no files."""
        return 2 if path in self._lists else int(path in self._named)

    def named_in(self, path: str) -> Collection[str]:
        """The manifests of a list that was read, or the files of a manifest; otherwise nothing."""
        if path in self._lists:
            return [manifest.path for manifest in self._lists[path]]
        return self._named[path].files.keys() if path in self._named else ()

    @property
    def of_rows(self) -> Mapping[str, Trace]:
        """The traces of data and delete files, by their paths."""
        return {path: trace for path, trace in self.traces.items() if not self.rank(path)}

    def at_deletes(
        self, metadata: TableMetadata, deletes: Sequence[DeleteFile], storage: Storage
    ) -> list[DeleteFile]:
        """Those of some equality deletes that name a key, or can't be read."""
        with self._job.stage("search"):
            self._read_files(metadata, storage, [one for one in deletes if one.path not in self.traces])
        return [one for one in deletes if not self.traces[one.path].is_clean]

    def at_snapshots(
        self, metadata: TableMetadata, snapshots: Iterable[Snapshot], storage: Storage
    ) -> dict[int, Traces]:
        """What the files of some snapshots tell, by the snapshots' ids. Raises OSError (a retry can help)."""
        wanted = list(snapshots)
        with self._job.stage("search"):
            self._read_manifests(metadata, wanted, storage)
            files = {
                path: file
                for snapshot in wanted
                for manifest in self._lists.get(snapshot.manifest_list, [])
                for path, file in self._named[manifest.path].files.items()
                if path not in self.traces
            }
            self._read_files(metadata, storage, list(files.values()))
        return {snapshot.snapshot_id: self._of_snapshot(snapshot) for snapshot in wanted}

    def _of_snapshot(self, snapshot: Snapshot) -> Traces:
        found = Traces()
        told = self.traces[snapshot.manifest_list]
        if not told.is_clean:
            found.metadata[snapshot.manifest_list] = told
        for manifest in self._lists.get(snapshot.manifest_list, []):
            if not (told := self.traces[manifest.path]).is_clean:
                found.metadata[manifest.path] = told
            for path, file in self._named[manifest.path].files.items():
                if (told := self.traces[path]).is_clean:
                    continue
                if isinstance(file, DataFile):
                    found.data_files[path] = told
                elif _is_positions(file):
                    found.position_deletes[path] = told
                else:
                    found.equality_deletes[path] = told
        return found

    def _read_manifests(
        self, metadata: TableMetadata, snapshots: Sequence[Snapshot], storage: Storage
    ) -> None:
        specs = {spec.spec_id: spec for spec in metadata.partition_specs}

        def read_list(snapshot: Snapshot) -> tuple[list[Manifest], Trace]:
            location, why = snapshot.manifest_list, None
            try:
                found = self._keys.in_path(location)
                for told in read_partition_summaries(storage.io, location):
                    if (spec := specs.get(told.partition_spec_id)) is not None:
                        found |= self._keys.in_list(told, spec, is_named=True)
                        why = FORMER_COLUMN if self._keys.is_former_of(spec.fields) else why
                return read_manifest_list(storage.io, snapshot), Trace(found, why)
            except (JobError, FileNotFoundError) as error:
                return [], Trace(why=unreadable(error))

        def read(manifest: Manifest) -> tuple[Named, Trace]:
            found, why = NOTHING, None
            try:
                data_files, deletes = read_manifest(storage.io, manifest, specs)
                spec = specs[manifest.partition_spec_id]
                for entry in read_entry_bounds(storage.io, manifest, spec):
                    found |= self._keys.in_entry(entry, spec)
                    why = FORMER_COLUMN if self._keys.is_former_in(entry, spec) else why
            except (JobError, FileNotFoundError, LocationNotAllowedError) as error:
                return Named({}), Trace(found, unreadable(error))
            return Named({file.path: file for file in (*data_files, *deletes)}), Trace(found, why)

        with Threads(_READ_AT_ONCE, "search") as threads:
            unread = [one for one in snapshots if one.manifest_list not in self._lists]
            for one, (manifests, trace) in zip(unread, threads.map(read_list, unread), strict=True):
                self._lists[one.manifest_list], self.traces[one.manifest_list] = manifests, trace
            new = {
                manifest.path: manifest
                for one in snapshots
                for manifest in self._lists[one.manifest_list]
                if manifest.path not in self._named
            }
            for path, (named, trace) in zip(new, threads.map(read, new.values()), strict=True):
                self._named[path], self.traces[path] = named, trace

    def _read_files(
        self, metadata: TableMetadata, storage: Storage, files: Sequence[DataFile | DeleteFile]
    ) -> None:
        positions = [file for file in files if isinstance(file, DeleteFile) and _is_positions(file)]
        with Threads(_READ_AT_ONCE, "search") as threads:
            found = threads.map(lambda file: search_positions(storage, self._keys, file), positions)
            for file, trace in zip(positions, found, strict=True):
                self.traces[file.path] = trace
        keyed = [file for file in files if not _is_positions(file)]
        if not keyed:
            return
        reader = key_reader(metadata, storage, self._keys.key_set)
        rows = np.array([file.record_count for file in keyed], np.int64)
        groups = [keyed[group] for group in balanced(rows, self._job.runner.parallelism * 4)]
        tasks = [SearchTask(reader, group, self._keys.former) for group in groups]
        for traces in self._job.each_task("search", tasks, self._keys.wanted, int(rows.sum())):
            self.traces |= traces


def _is_positions(file: DataFile | DeleteFile) -> bool:
    return isinstance(file, DeleteFile) and file.content is FileContent.POSITION_DELETES
