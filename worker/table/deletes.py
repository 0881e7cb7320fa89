"""Turns the rows to delete into deletion vectors (V3) or position delete files (V2), merged with existing
ones.

Place in the flow: lookup -> deletes -> commit. Every function works on any group of data files by itself,
with picklable arguments and results, so groups run as local threads or as Spark tasks alike.

Invariant: the positions that a data file's new delete files make readers skip are exactly those that readers
skip already plus the new ones (Iceberg spec, "Scan Planning" and "Deletion Vectors").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain, compress, repeat
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.table.locations import load_location_provider
from pyroaring import BitMap64

from trust.properties import LOCATION_PROPERTIES
from worker.io.file_formats import FORMATS, check_size, field_id_of, open_columns
from worker.io.storage import Storage
from worker.process.slots import Threads
from worker.table.files import DataFile, DataFiles, DeleteFile, FileContent, PartitionKey
from worker.table.puffin import (
    CorruptDeletionVectorError,
    Positions,
    PuffinWriter,
    bitmap_of,
    positions_of,
    read_deletion_vector,
)

T = TypeVar("T")
FILE_PATH_FIELD_ID = 2147483546
POS_FIELD_ID = 2147483545
_PARQUET_SCHEMA = pa.schema(
    [
        # Dictionary-encoded in memory only: Parquet knows it as a required string.
        pa.field(
            "file_path",
            pa.dictionary(pa.int32(), pa.string()),
            nullable=False,
            metadata={"PARQUET:field_id": str(FILE_PATH_FIELD_ID)},
        ),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(POS_FIELD_ID)}),
    ],
    metadata={"delete-type": "position"},
)
_ROW_GROUP_ROWS = 1_000_000
FILES_AT_ONCE = 8
"""That are read, written or deleted: such small ones mostly wait for the store."""


class UnreadableDeleteFileError(Exception):
    """An existing position delete file or deletion vector can't be read; a retry can't help.

    Data files that it applies to can't get new deletes, because these would have to include its positions.
    """

    def __init__(self, delete_file: DeleteFile, reason: str, missing: bool = False) -> None:
        super().__init__(f"{delete_file.path}: {reason}")
        self.delete_file = delete_file
        self.reason = reason
        self.missing = missing

    def __reduce__(self) -> tuple[type[UnreadableDeleteFileError], tuple[DeleteFile, str, bool]]:
        return UnreadableDeleteFileError, (self.delete_file, self.reason, self.missing)


class DeleteGranularity(StrEnum):
    """How many data files one V2 position delete file may speak of (`write.delete.granularity`)."""

    FILE = "file"
    PARTITION = "partition"

    @classmethod
    def of_table(cls, properties: Mapping[str, str]) -> DeleteGranularity:
        """The granularity of a table; `file` unless set, as Spark decides (`SparkWriteConf`), since readers
        then open only the deletes of their own data files."""
        return cls(properties.get("write.delete.granularity", "file").lower())


@dataclass(frozen=True, slots=True)
class ExistingDeletes:
    """What readers skip in one data file already, without equality deletes."""

    positions: BitMap64
    deletion_vector: DeleteFile | None = None
    # Position delete files that speak of this data file only, and their positions.
    file_scoped: tuple[DeleteFile, ...] = ()
    file_scoped_positions: BitMap64 = field(default_factory=BitMap64)


@dataclass(frozen=True, slots=True)
class NewDeleteFile:
    """A deletion vector or position delete file that was written and is not yet committed."""

    path: str
    file_format: str  # puffin or parquet
    partition: PartitionKey
    record_count: int
    file_size_bytes: int
    referenced_data_file: str | None
    content_offset: int | None = None
    content_size_bytes: int | None = None
    # Metrics as Iceberg's PositionDeleteWriter keeps them: bounds only where one data file is referenced.
    column_sizes: Mapping[int, int] = field(default_factory=dict)
    lower_bounds: Mapping[int, bytes] = field(default_factory=dict)
    upper_bounds: Mapping[int, bytes] = field(default_factory=dict)
    split_offsets: tuple[int, ...] = ()

    @property
    def is_deletion_vector(self) -> bool:
        return self.file_format == "puffin"


@dataclass(frozen=True, slots=True)
class Unlike:
    """A data file with rows to delete that other files of its path keep.

    spares: deletes that apply to this newest file of the path, too, apply to all, and were planned; None if
    nothing can be planned for the path.
    """

    data_file: DataFile
    spares: DataFile | None


@dataclass(frozen=True, slots=True)
class DeletesPlan:
    """What to write for which data file and what that replaces; nothing has been written.

    positions: all positions that the new delete files of a data file must hold; never empty ones.
    removed: the deletion vectors and file-scoped position delete files whose positions are included there.
    rows_deleted: positions that no existing delete held.
    unlike: data files that keep rows to delete, since their path is live more than once.
    """

    positions: Mapping[DataFile, BitMap64]
    removed: tuple[DeleteFile, ...]
    rows_deleted: int
    format_version: int
    granularity: DeleteGranularity
    unlike: tuple[Unlike, ...] = ()

    @property
    def data_files_touched(self) -> int:
        return len(self.positions)

    @property
    def delete_files_added(self) -> int:
        if self.format_version >= 3 or self.granularity is DeleteGranularity.FILE:
            return len(self.positions)
        return len({data_file.partition for data_file in self.positions})


@dataclass(frozen=True, slots=True)
class WrittenDeletes:
    """What one or several groups of data files got; ready to be committed.

    data_files: paths of the data files with new deletes, as their manifests spell them.
    """

    added: tuple[NewDeleteFile, ...] = ()
    removed: tuple[DeleteFile, ...] = ()
    data_files: tuple[str, ...] = ()
    rows_deleted: int = 0

    @property
    def data_files_touched(self) -> int:
        return len(self.data_files)

    @property
    def delete_files_added(self) -> int:
        return len(self.added)

    @property
    def delete_files_removed(self) -> int:
        return len(self.removed)

    @property
    def locations(self) -> tuple[str, ...]:
        """The files written."""
        return tuple(file.path for file in self.added)

    @classmethod
    def union(cls, groups: Iterable[WrittenDeletes]) -> WrittenDeletes:
        """The deletes of several disjoint groups of data files."""
        groups = tuple(groups)
        return cls(
            added=tuple(file for group in groups for file in group.added),
            removed=tuple(file for group in groups for file in group.removed),
            data_files=tuple(path for group in groups for path in group.data_files),
            rows_deleted=sum(group.rows_deleted for group in groups),
        )


class DeleteFileLocations:
    """Where a table's new delete files go, by name: under its data, as its location properties say.

    A class that a table names for that (`LOCATION_PROVIDERS`) is not loaded.
    Names start with a prefix of the caller's that no other attempt or commit uses, and have a number: so an
    attempt's files can be found again by name after it died (`remove_written`).
    """

    def __init__(self, table_location: str, table_properties: Mapping[str, str], prefix: str) -> None:
        self.table_location = table_location
        self.table_properties = {
            key: value for key, value in table_properties.items() if key in LOCATION_PROPERTIES
        }
        self._provider = load_location_provider(table_location, self.table_properties)
        self.prefix = prefix

    def __reduce__(self) -> tuple[type[DeleteFileLocations], tuple[str, dict[str, str], str]]:
        return DeleteFileLocations, (self.table_location, self.table_properties, self.prefix)

    def puffin(self, ordinal: int) -> str:
        return self._provider.new_data_location(f"{self.prefix}-{ordinal:05d}-deletes.puffin")

    def parquet(self, ordinal: int) -> str:
        return self._provider.new_data_location(f"{self.prefix}-{ordinal:05d}-deletes.parquet")

    def names(self, count: int) -> Iterator[str]:
        """The first `count` of each format."""
        return chain.from_iterable(map(location, range(count)) for location in (self.puffin, self.parquet))

    @property
    def folder(self) -> str:
        """All of them are below it."""
        return self._provider.data_path


def write_deletes(
    storage: Storage,
    new_positions: Mapping[DataFile, BitMap64 | Positions],
    position_deletes: Sequence[DeleteFile],
    format_version: int,
    granularity: DeleteGranularity,
    locations: DeleteFileLocations,
) -> WrittenDeletes:
    """The whole stage for one group of data files: reads what exists, plans, writes. Nothing is committed.

    position_deletes: live position delete files and deletion vectors of the pinned snapshot; those that apply
    to no file of the group are ignored.
    Raises as `existing_deletes`, `plan_deletes` and `write_planned`.
    """
    existing = existing_deletes(storage, new_positions, position_deletes)
    plan = plan_deletes(new_positions, existing, format_version, granularity)
    return write_planned(storage, plan, locations, list(new_positions))


def existing_deletes(
    storage: Storage, data_files: Iterable[DataFile], position_deletes: Iterable[DeleteFile]
) -> dict[DataFile, ExistingDeletes]:
    """What readers skip in each data file already; files without deletes are left out.

    Each position delete file is read once, whatever the number of data files it speaks of.
    Raises UnreadableDeleteFileError, or OSError (a retry can help).
    """
    vectors, files = _applicable(data_files, position_deletes)
    existing: dict[DataFile, ExistingDeletes] = {}
    positions: dict[DataFile, BitMap64] = defaultdict(BitMap64)
    file_scoped: dict[DataFile, list[DeleteFile]] = defaultdict(list)
    file_scoped_positions: dict[DataFile, BitMap64] = defaultdict(BitMap64)
    with Threads(FILES_AT_ONCE) as threads:
        distinct = dict.fromkeys(vectors.values())
        read_vectors = threads.map(lambda vector: _read_vector(storage, vector), distinct)
        read_files = threads.map(
            lambda one: _read_position_deletes(storage, (one[0], {file.path for file in one[1]})),
            files.items(),
        )
        of_vectors = dict(zip(distinct, read_vectors, strict=True))
        for data_file, vector in vectors.items():
            existing[data_file] = ExistingDeletes(of_vectors[vector], vector)
        for (file, applied_to), deleted in zip(files.items(), read_files, strict=True):
            by_path: dict[str, BitMap64] = defaultdict(BitMap64)
            for path, part in deleted:
                by_path[path] |= bitmap_of(part)
            for data_file in applied_to:
                bitmap = by_path.get(data_file.path, BitMap64())
                if file.referenced_data_file is not None:
                    file_scoped[data_file].append(file)
                    file_scoped_positions[data_file] |= bitmap
                if bitmap:
                    positions[data_file] |= bitmap
    for data_file in positions.keys() | file_scoped.keys():
        existing[data_file] = ExistingDeletes(
            positions[data_file],
            file_scoped=tuple(file_scoped[data_file]),
            file_scoped_positions=file_scoped_positions[data_file],
        )
    return existing


def _applicable(
    data_files: Iterable[DataFile], position_deletes: Iterable[DeleteFile]
) -> tuple[dict[DataFile, DeleteFile], dict[DeleteFile, Set[DataFile]]]:
    """The deletion vector of each data file, and each position delete file with those it applies to."""
    by_path: dict[str, list[DataFile]] = defaultdict(list)
    by_partition: dict[PartitionKey, list[DataFile]] = defaultdict(list)
    for data_file in data_files:
        by_path[data_file.path].append(data_file)
        by_partition[data_file.partition].append(data_file)
    vectors: dict[DataFile, DeleteFile] = {}
    files: dict[DeleteFile, Set[DataFile]] = {}
    for delete in position_deletes:
        if delete.content is not FileContent.POSITION_DELETES:
            continue
        if delete.referenced_data_file is None:
            candidates = by_partition.get(delete.partition, [])
        else:
            # Compared as written, because readers do: a position delete whose path is spelled otherwise
            # (file:/x, file:///x) hides no row today, and merging it would delete rows that are visible.
            of_path = by_path.get(delete.referenced_data_file, ())
            candidates = [file for file in of_path if file.partition == delete.partition]
        hit = {file for file in candidates if file.data_sequence_number <= delete.data_sequence_number}
        if not delete.is_deletion_vector:
            files[delete] = hit
        else:
            for file in hit:
                if vectors.setdefault(file, delete) is not delete:
                    raise UnreadableDeleteFileError(delete, f"{file.path} has a second deletion vector")
    # A vector is the truth for its data file: it had to include the older position deletes when it was
    # written, and readers skip nothing else. Should it lack one of them, that row is visible and stays so.
    undecided = {delete: hit - vectors.keys() for delete, hit in files.items()}
    return vectors, {delete: hit for delete, hit in undecided.items() if hit}


def plan_deletes(
    new_positions: Mapping[DataFile, BitMap64 | Positions],
    existing: Mapping[DataFile, ExistingDeletes],
    format_version: int,
    granularity: DeleteGranularity = DeleteGranularity.FILE,
    *,
    moves: bool = False,
) -> DeletesPlan:
    """Decides what to write for each data file. Pure.

    Of a path that is live more than once, all files must be given, also those without a new position: what
    all of them lose is planned, for the oldest (see `_of_copies`).

    V3: one vector that holds all, in place of the old vector and the file-scoped position deletes.
    V2: only what is new; with granularity `file` merged with the file-scoped position deletes, which it
    replaces (`SortingPositionOnlyDeleteWriter`). Data files without a new position are left alone, unless
    `moves` is set and they have a vector: see `sharing_a_file`.
    Raises ValueError for a position outside its data file, and for format version 1, which has no deletes.
    """
    if format_version < 2:
        raise ValueError(f"format version {format_version} has no row-level deletes")
    to_write: dict[DataFile, BitMap64] = {}
    removed: list[DeleteFile] = []
    unlike: list[Unlike] = []
    rows_deleted = 0
    by_path: dict[str, dict[DataFile, BitMap64]] = defaultdict(dict)
    for data_file, found in new_positions.items():
        new = found if isinstance(found, BitMap64) else bitmap_of(found)
        if new and new.max() >= data_file.record_count:
            raise ValueError(
                f"position {new.max()} lies outside {data_file.path}, which has {data_file.record_count} rows"
            )
        known = existing.get(data_file)
        by_path[data_file.path][data_file] = new if known is None else new - known.positions
    for copies in by_path.values():
        data_file, new = next(iter(copies.items()))
        known = existing.get(data_file)
        if len(copies) > 1:
            data_file, new, known, apart = _of_copies(copies, existing, format_version)
            unlike += apart
        if not new and not (moves and known is not None and known.deletion_vector is not None):
            continue
        # What is new to one of several files of a path may be deleted in others.
        rows_deleted += sum(len(new & of_copy) for of_copy in copies.values())
        if known is None:
            to_write[data_file] = new
        elif format_version >= 3:
            to_write[data_file] = new | known.positions
            removed += known.file_scoped
            if known.deletion_vector is not None:
                removed.append(known.deletion_vector)
        elif granularity is DeleteGranularity.FILE:
            to_write[data_file] = new | known.file_scoped_positions
            removed += known.file_scoped
        else:
            to_write[data_file] = new
    return DeletesPlan(to_write, tuple(removed), rows_deleted, format_version, granularity, tuple(unlike))


def _of_copies(
    copies: Mapping[DataFile, BitMap64], existing: Mapping[DataFile, ExistingDeletes], format_version: int
) -> tuple[DataFile, BitMap64, ExistingDeletes | None, list[Unlike]]:
    """What to plan for the live files of one path, as if they were one: the oldest.

    copies: with their new positions. Whatever is committed now hits all of them, by their path. So it may
    hold what each of them loses or has lost, and nothing else. Readers refuse it (`DeleteFileIndex` in Java)
    where the files lie in different partitions, and a vector has to hold what exists.
    """
    ordered = sorted(copies, key=lambda file: file.data_sequence_number)
    oldest, newest = ordered[0], ordered[-1]
    known = {file: existing.get(file, ExistingDeletes(BitMap64())) for file in copies}
    lost_by_all = BitMap64.intersection(*(known[file].positions | copies[file] for file in copies))
    merges = all(known[file].positions <= lost_by_all for file in copies)
    if len({file.partition for file in copies}) > 1 or (format_version >= 3 and not merges):
        return oldest, BitMap64(), None, [Unlike(file, None) for file, new in copies.items() if new]
    skipped_in_all = BitMap64.intersection(*(one.positions for one in known.values()))
    # What hits the newest hits all, unless the path got other content meanwhile: then nothing is known of it.
    is_one_content = all(
        copies[file] <= lost_by_all
        for file in copies
        if file.data_sequence_number == newest.data_sequence_number
    )
    spares = newest if is_one_content else None
    apart = [Unlike(file, spares) for file, new in copies.items() if not new <= lost_by_all]
    # The deletes that exist may be older than some of the files, and are left as they are then.
    merged = replace(known[oldest], positions=skipped_in_all) if merges else ExistingDeletes(skipped_in_all)
    return oldest, lost_by_all - skipped_in_all, merged, apart


def sharing_a_file(
    removed: Iterable[DeleteFile], position_deletes: Iterable[DeleteFile], data_files: DataFiles
) -> DataFiles:
    """The data files whose vector stays in a Puffin file of which another one is removed.

    Iceberg's expiry deletes such a file by its path, once the snapshot that removed the one has expired
    (`IncrementalFileCleanup`): the others have to be moved in the same commit.
    """
    gone = {(one.path, one.referenced_data_file) for one in removed if one.is_deletion_vector}
    paths = {path for path, _ in gone}
    left = {
        one.referenced_data_file
        for one in position_deletes
        if one.is_deletion_vector
        and one.referenced_data_file is not None
        and one.path in paths
        and (one.path, one.referenced_data_file) not in gone
    }
    return data_files.with_paths(left)


def write_planned(
    storage: Storage,
    plan: DeletesPlan,
    locations: DeleteFileLocations,
    data_files: Sequence[DataFile],
    blocked: Iterable[DataFile] = (),
) -> WrittenDeletes:
    """Writes what a plan says for a task.

    data_files: all of the task's. blocked: those of them whose existing deletes could not be read.

    Spark may run a task twice, and one run may overwrite what the other wrote and the driver committed. So a
    name stands for the same bytes in each run, whatever could be read: it counts data files of the task, not
    files written, and a partition of which some data files are blocked gets other names, one a data file.
    Each is made in memory first: a run that ends in the middle shortens none (`Storage.write`).
    OSError (a retry can help) leaves files behind, for the driver to remove (`remove_written`): a run that
    fails late could delete what was committed.
    """
    ordinals = {file: n for n, file in enumerate(sorted(data_files, key=lambda file: file.path))}
    if plan.format_version >= 3:
        added = write_deletion_vectors(storage, lambda file: locations.puffin(ordinals[file]), plan.positions)
    else:
        by_partition = plan.granularity is DeleteGranularity.PARTITION
        broken = {file.partition for file in blocked} if by_partition else set()
        whole = {file: found for file, found in plan.positions.items() if file.partition not in broken}
        rest = {file: found for file, found in plan.positions.items() if file.partition in broken}
        added = write_position_deletes(
            storage, lambda file: locations.parquet(ordinals[file]), whole, plan.granularity
        ) + write_position_deletes(
            storage,
            lambda file: locations.parquet(len(ordinals) + ordinals[file]),
            rest,
            DeleteGranularity.FILE,
        )
    return WrittenDeletes(
        tuple(added), plan.removed, tuple(file.path for file in plan.positions), plan.rows_deleted
    )


def count_names(data_files: int, format_version: int, granularity: DeleteGranularity) -> int:
    """How many names in each format a task of so many data files may use; see `write_planned`."""
    may_break = format_version < 3 and granularity is DeleteGranularity.PARTITION
    return data_files * (2 if may_break else 1)


def written_files(storage: Storage, names: Sequence[str]) -> list[str]:
    """Those of the files that are there. Each is looked for: a gap is no end, since a writer that slept while
    others removed the first ones may have gone on after that."""
    with Threads(FILES_AT_ONCE) as threads:
        return list(compress(names, threads.map(storage.exists, names)))


def delete_files(storage: Storage, names: Sequence[str]) -> int:
    """Deletes those of the files that are there; returns how many there were."""
    with Threads(FILES_AT_ONCE) as threads:
        return sum(threads.map(storage.delete, names))


def remove_written(storage: Storage, locations: DeleteFileLocations, format_version: int, names: int) -> int:
    """Deletes the files that were written under so many names of a prefix; returns how many there were.

    Only for files that are known not to be committed.
    """
    location = locations.puffin if format_version >= 3 else locations.parquet
    return delete_files(storage, [location(ordinal) for ordinal in range(names)])


def write_deletion_vectors(
    storage: Storage, location: Callable[[DataFile], str], positions: Mapping[DataFile, BitMap64]
) -> list[NewDeleteFile]:
    """Writes a Puffin file per data file, ordered by path, with its vector; none where there is no position.

    location: where the file of a data file goes. Each vector carries its data file's spec and partition.

    Not many vectors in one file, as Iceberg's own writers do: its expiry deletes a file as soon as one of its
    vectors was replaced (see `sharing_a_file`), and DuckDB 1.5.5 takes one of a file for another.
    """
    ordered = _ordered(positions)
    return _write_each(storage, [location(file) for file, _ in ordered], ordered, _write_deletion_vector)


def _write_deletion_vector(storage: Storage, location: str, one: tuple[DataFile, BitMap64]) -> NewDeleteFile:
    file, bitmap = one
    content = pa.BufferOutputStream()
    puffin = PuffinWriter(content)
    vector = puffin.write(file.path, bitmap)
    size_bytes = puffin.finish()
    storage.write(location, content.getvalue())
    return NewDeleteFile(
        path=location,
        file_format="puffin",
        partition=file.partition,
        record_count=vector.cardinality,
        file_size_bytes=size_bytes,
        referenced_data_file=file.path,
        content_offset=vector.content_offset,
        content_size_bytes=vector.content_size_bytes,
    )


def write_position_deletes(
    storage: Storage,
    location: Callable[[DataFile], str],
    positions: Mapping[DataFile, BitMap64],
    granularity: DeleteGranularity,
) -> list[NewDeleteFile]:
    """Writes Parquet position delete files for V2, one per data file or per partition.

    location: where the file goes whose first rows are of a data file.
    Rows are sorted by path and position (spec, "Position Delete Files").
    """
    groups: dict[object, list[tuple[DataFile, BitMap64]]] = defaultdict(list)
    for file, bitmap in _ordered(positions):
        groups[file if granularity is DeleteGranularity.FILE else file.partition].append((file, bitmap))
    names = [location(group[0][0]) for group in groups.values()]
    return _write_each(storage, names, list(groups.values()), _write_position_delete_file)


def _write_each(
    storage: Storage,
    names: Sequence[str],
    groups: Sequence[T],
    write: Callable[[Storage, str, T], NewDeleteFile],
) -> list[NewDeleteFile]:
    """Writes the file of each group."""
    with Threads(FILES_AT_ONCE) as threads:
        return list(threads.map(write, repeat(storage), names, groups))


def _write_position_delete_file(
    storage: Storage, location: str, group: Sequence[tuple[DataFile, BitMap64]]
) -> NewDeleteFile:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        _PARQUET_SCHEMA,
        compression="zstd",
        use_dictionary=["file_path"],
        store_schema=False,
        write_page_checksum=True,  # as parquet-java does; the next conversion merges what it finds here
    ) as writer:
        for rows in _row_groups(group):
            writer.write_table(rows, row_group_size=_ROW_GROUP_ROWS)
    content = sink.getvalue()
    storage.write(location, content)
    metadata = writer.writer.metadata
    only = group[0] if len(group) == 1 else None
    return NewDeleteFile(
        path=location,
        file_format="parquet",
        partition=group[0][0].partition,
        record_count=metadata.num_rows,
        file_size_bytes=content.size,
        referenced_data_file=only[0].path if only else None,
        column_sizes=_column_sizes(metadata),
        lower_bounds=_bounds(only[0].path, only[1].min()) if only else {},
        upper_bounds=_bounds(only[0].path, only[1].max()) if only else {},
        split_offsets=tuple(_first_page_offset(metadata, i) for i in range(metadata.num_row_groups)),
    )


def _row_groups(group: Sequence[tuple[DataFile, BitMap64]]) -> Iterator[pa.Table]:
    """The rows of a position delete file in order, gathered to full row groups across data files."""
    pending: list[tuple[str, Positions]] = []
    rows = 0
    for file, bitmap in group:
        pending.append((file.path, positions_of(bitmap)))
        rows += len(bitmap)
        if rows >= _ROW_GROUP_ROWS:
            yield _position_delete_rows(pending)
            pending, rows = [], 0
    if pending:
        yield _position_delete_rows(pending)


def _position_delete_rows(pending: Sequence[tuple[str, Positions]]) -> pa.Table:
    codes = np.repeat(np.arange(len(pending), dtype=np.int32), [len(positions) for _, positions in pending])
    paths = pa.DictionaryArray.from_arrays(codes, pa.array([path for path, _ in pending], pa.string()))
    return pa.Table.from_arrays(
        [paths, pa.array(np.concatenate([positions for _, positions in pending]))], schema=_PARQUET_SCHEMA
    )


def _bounds(path: str, position: int) -> dict[int, bytes]:
    # Never truncated: equal bounds of the path are how readers without `referenced_data_file` see the scope.
    return {FILE_PATH_FIELD_ID: path.encode(), POS_FIELD_ID: position.to_bytes(8, "little")}


def _column_sizes(metadata: pq.FileMetaData) -> dict[int, int]:
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    return {
        field_id: sum(group.column(column).total_compressed_size for group in groups)
        for column, field_id in enumerate((FILE_PATH_FIELD_ID, POS_FIELD_ID))
    }


def _first_page_offset(metadata: pq.FileMetaData, row_group: int) -> int:
    column = metadata.row_group(row_group).column(0)
    return int(column.dictionary_page_offset or column.data_page_offset)


def _ordered(positions: Mapping[DataFile, BitMap64]) -> list[tuple[DataFile, BitMap64]]:
    """By path, so that a repeated task writes the same bytes; without files that have no position."""
    return sorted(
        ((file, bitmap) for file, bitmap in positions.items() if bitmap), key=lambda one: one[0].path
    )


def _read_vector(storage: Storage, vector: DeleteFile) -> BitMap64:
    def read() -> BitMap64:
        if vector.content_offset is None or vector.content_size_bytes is None:
            raise CorruptDeletionVectorError("the manifest does not say where the deletion vector lies")
        return read_deletion_vector(
            storage, vector.path, vector.content_offset, vector.content_size_bytes, vector.record_count
        )

    return _readable(storage, vector, read)


def _read_position_deletes(
    storage: Storage, applied: tuple[DeleteFile, Set[str]]
) -> list[tuple[str, Positions]]:
    """The deleted positions per data file that a file applies to; a path may come several times."""
    delete, paths = applied

    def read() -> list[tuple[str, Positions]]:
        if delete.file_format not in FORMATS:
            raise pa.ArrowInvalid(f"position deletes can't be {delete.file_format} files")
        wanted = pa.array(list(paths), pa.string())
        deleted: list[tuple[str, Positions]] = []
        rows = 0
        for batch in _position_batches(storage, delete):
            deleted += _group_by_path(batch.column(0), batch.column(1), wanted)
            rows += batch.num_rows
        if rows != delete.record_count:
            raise ValueError(f"it holds {rows} rows, but its manifest says {delete.record_count}")
        return deleted

    return _readable(storage, delete, read)


def _readable(storage: Storage, delete: DeleteFile, read: Callable[[], T]) -> T:
    if delete.encrypted:
        raise UnreadableDeleteFileError(delete, "it is encrypted")
    try:
        return read()
    except FileNotFoundError as error:
        raise UnreadableDeleteFileError(delete, "it is missing", missing=True) from error
    except (OSError, pa.ArrowException, CorruptDeletionVectorError, ValueError, KeyError) as error:
        if storage.is_at_fault(error, [delete.path], read):
            raise
        raise UnreadableDeleteFileError(delete, str(error)) from error


def _group_by_path(paths: pa.Array, positions: pa.Array, wanted: pa.Array) -> Iterator[tuple[str, Positions]]:
    """Splits positions by path without a Python object per row."""
    encoded = paths if pa.types.is_dictionary(paths.type) else paths.dictionary_encode()
    values = encoded.dictionary.cast(pa.string())
    is_wanted = pc.is_in(values, wanted).to_numpy(zero_copy_only=False)
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    found = positions.to_numpy(zero_copy_only=False)
    keep = is_wanted[codes]
    codes, found = codes[keep], found[keep]
    if not len(codes):
        return
    order = np.argsort(codes, kind="stable")
    codes, found = codes[order], found[order]
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    for code, part in zip(codes[starts], np.split(found, starts[1:]), strict=True):
        yield values[int(code)].as_py(), part


def _parquet_batches(storage: Storage, delete: DeleteFile) -> Iterator[pa.RecordBatch]:
    with storage.open_input(delete.path) as source:
        check_size(source, delete.file_size_bytes)
        footer = pq.ParquetFile(source)
        names = _column_names(footer.schema_arrow)
        # Paths stay dictionary-encoded, so that grouping compares integers.
        file = pq.ParquetFile(
            source, metadata=footer.metadata, read_dictionary=names[:1], page_checksum_verification=True
        )
        for index in range(file.num_row_groups):
            yield from file.read_row_group(index, names).select(names).to_batches()


def _position_batches(storage: Storage, delete: DeleteFile) -> Iterator[pa.RecordBatch]:
    """Batches of two columns: path and position."""
    if delete.file_format == "parquet":
        yield from _parquet_batches(storage, delete)
        return
    with open_columns(storage, delete.path, delete.file_format, delete.file_size_bytes) as file:
        names = _column_names(file.schema)
        for batch in file.batches([(name,) for name in names]):
            yield batch.select(names)


def _column_names(schema: pa.Schema) -> list[str]:
    """The names of path and position, found by field id; by the spec's names in files without ids."""
    by_id = {field_id_of(field): field.name for field in schema}
    return [
        by_id.get(field_id, name)
        for field_id, name in ((FILE_PATH_FIELD_ID, "file_path"), (POS_FIELD_ID, "pos"))
    ]
