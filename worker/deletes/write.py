"""Writes deletion vectors (V3) and position delete files (V2), and removes what is not to be committed."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress, repeat
from typing import Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from worker.deletes.existing import FILE_PATH_FIELD_ID, FILES_AT_ONCE, POS_FIELD_ID, SMALL_FILES_AT_ONCE
from worker.deletes.locations import DeleteFileLocations
from worker.deletes.merge import Blocked, DeleteGranularity, DeletesPlan
from worker.deletes.puffin import Positions, PuffinWriter, positions_of
from worker.io.storage import Storage
from worker.process.slots import Threads
from worker.table.files import DataFile, DeleteFile, NewDeleteFile

T = TypeVar("T")
W = TypeVar("W")
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
_POSITIONS_OF_SHARED_FILE = 1_000_000
"""Of a Puffin file: some megabytes at most, so a single request, and no more than one large vector takes."""


@dataclass(frozen=True, slots=True)
class WrittenDeletes:
    """What one or several groups of data files got; ready to be committed.

    data_files: paths of the data files with new deletes, as their manifests spell them. missing: whether some
    are blocked because a file is gone.
    """

    added: tuple[NewDeleteFile, ...] = ()
    removed: tuple[DeleteFile, ...] = ()
    data_files: tuple[str, ...] = ()
    rows_deleted: int = 0
    blocked: tuple[Blocked, ...] = ()
    missing: bool = False

    @property
    def bytes_written(self) -> int:
        return sum({file.path: file.file_size_bytes for file in self.added}.values())

    @classmethod
    def union(cls, groups: Sequence[Self]) -> Self:
        """The deletes of several disjoint groups of data files."""
        return cls(
            added=tuple(file for group in groups for file in group.added),
            removed=tuple(file for group in groups for file in group.removed),
            data_files=tuple(path for group in groups for path in group.data_files),
            rows_deleted=sum(group.rows_deleted for group in groups),
            blocked=tuple(one for group in groups for one in group.blocked),
            missing=any(group.missing for group in groups),
        )


def write_planned(
    storage: Storage,
    plan: DeletesPlan,
    locations: DeleteFileLocations,
    of_task: Sequence[DataFile],
    unreadable: Collection[DataFile] = (),
    *,
    shares_files: bool = False,
) -> WrittenDeletes:
    """Writes what a plan says for a task.

    of_task: all of its data files. unreadable: those of them whose existing deletes could not be read.
    shares_files: of deletion vectors.

    Spark may run a task twice, and one run may overwrite what the other wrote and the driver committed. So a
    name stands for the same bytes in each run, whatever could be read: it counts data files of the task, not
    files written, and what is to share a file gets other names, one a data file, where some of it is
    unreadable: of a partition, or of a task with deletion vectors.
    Each is made in memory first: a run that ends in the middle shortens none (`Storage.write`).
    OSError (a retry can help) leaves files behind, for the driver to remove (`remove_written`): a run that
    fails late could delete what was committed.
    """
    ordinals = {file: n for n, file in enumerate(sorted(of_task, key=lambda file: file.path))}
    if plan.format_version >= 3:
        first = len(ordinals) if shares_files and unreadable else 0
        added = write_deletion_vectors(
            storage,
            lambda file: locations.puffin(first + ordinals[file]),
            plan.positions,
            shares_files=shares_files and not unreadable,
        )
    else:
        by_partition = plan.granularity is DeleteGranularity.PARTITION
        broken = {file.partition for file in unreadable} if by_partition else set()
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
    data_files = tuple(file.path for file in plan.positions)
    return WrittenDeletes(tuple(added), plan.removed, data_files, plan.rows_deleted, plan.blocked)


def count_names(
    data_files: int, format_version: int, granularity: DeleteGranularity, *, shares_files: bool = False
) -> int:
    """How many names in each format a task of so many data files may use; see `write_planned`."""
    may_break = shares_files if format_version >= 3 else granularity is DeleteGranularity.PARTITION
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
    storage: Storage,
    location: Callable[[DataFile], str],
    positions: Mapping[DataFile, BitMap64],
    *,
    shares_files: bool = False,
) -> list[NewDeleteFile]:
    """Writes the vector of each data file, ordered by path, into Puffin files; none without a position.

    location: where the file goes whose first vector is of a data file. Each vector carries its data file's
    spec and partition. shares_files: vectors share files, of so many positions; else each has its own (see
    `worker.deletes.vector_files`).
    """
    groups: list[list[tuple[DataFile, BitMap64]]] = []
    room = 0
    for file, bitmap in _ordered(positions):
        if not shares_files or len(bitmap) > room:
            groups.append([])
            room = _POSITIONS_OF_SHARED_FILE
        groups[-1].append((file, bitmap))
        room -= len(bitmap)
    names = [location(group[0][0]) for group in groups]
    return list(chain.from_iterable(_write_each(storage, names, groups, _write_puffin_file)))


def _write_puffin_file(
    storage: Storage, location: str, group: Sequence[tuple[DataFile, BitMap64]]
) -> list[NewDeleteFile]:
    content = pa.BufferOutputStream()
    puffin = PuffinWriter(content)
    vectors = [puffin.write(file.path, bitmap) for file, bitmap in group]
    size_bytes = puffin.finish()
    storage.write(location, content.getvalue())
    return [
        NewDeleteFile(
            path=location,
            file_format="puffin",
            partition=file.partition,
            record_count=vector.cardinality,
            file_size_bytes=size_bytes,
            referenced_data_file=file.path,
            content_offset=vector.content_offset,
            content_size_bytes=vector.content_size_bytes,
        )
        for (file, _), vector in zip(group, vectors, strict=True)
    ]


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
    write: Callable[[Storage, str, T], W],
) -> list[W]:
    """Writes the file of each group."""
    with Threads(SMALL_FILES_AT_ONCE) as threads:
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
