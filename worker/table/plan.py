"""What a pinned snapshot holds and what its equality deletes apply to: pure, no I/O, no Spark.

Invariant: an equality delete applies to a data file iff the file's data sequence number is strictly
smaller and the delete's scope contains the file (Iceberg spec, "Scan Planning").
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from worker.io.paths import Paths, may_repeat
from worker.io.sorting import Int64Array, is_bytes
from worker.process.wording import counted

N = TypeVar("N", bound=np.generic)


class FileContent(StrEnum):
    """Content of a delete file, in the words of Iceberg's JSON serialisation."""

    POSITION_DELETES = "position-deletes"
    EQUALITY_DELETES = "equality-deletes"


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """A partition tuple under its spec: files share a partition iff these are equal.

    `values` is the canonical JSON array of the tuple's single values in spec field order (Iceberg spec,
    Appendix D), `"[]"` when unpartitioned: hashable, storable, and what Iceberg's own parser reads back.
    """

    spec_id: int
    values: str


@dataclass(frozen=True, slots=True)
class DataFile:
    """A live data file of the pinned snapshot; `path` is kept as the manifest wrote it."""

    path: str
    file_format: str  # lower case: parquet, orc, avro
    partition: PartitionKey
    record_count: int
    file_size_bytes: int
    data_sequence_number: int
    encrypted: bool = False


class FileKind(NamedTuple):
    """What very many data files have in common."""

    partition: PartitionKey
    file_format: str
    encrypted: bool


class DataFiles(Sequence[DataFile]):
    """Data files in columns, 36 bytes each beside their paths' text; each is made an object when asked for.

    There may be ten million. A selection shares the columns of what it was made from.
    """

    def __init__(
        self,
        paths: Paths,
        numbers: Int64Array,
        kinds: Sequence[FileKind],
        kind_of: npt.NDArray[np.int32],
        places: Int64Array | None = None,
    ) -> None:
        """numbers: rows for record counts, sizes in bytes and data sequence numbers.

        kind_of: which of `kinds` each file is. places: of the selected files in these columns; None for all.
        """
        self.kinds = kinds
        self._paths = paths
        self._numbers = numbers
        self._kind_of = kind_of
        self._places = places

    @classmethod
    def of(cls, files: Iterable[DataFile]) -> DataFiles:
        """In the same order."""
        paths: list[str] = []
        counts, sizes, sequence_numbers = array("q"), array("q"), array("q")
        kinds: dict[FileKind, int] = {}
        kind_of = array("i")
        for file in files:
            paths.append(file.path)
            counts.append(file.record_count)
            sizes.append(file.file_size_bytes)
            sequence_numbers.append(file.data_sequence_number)
            kind = FileKind(file.partition, file.file_format, file.encrypted)
            kind_of.append(kinds.setdefault(kind, len(kinds)))
        numbers = np.array([counts, sizes, sequence_numbers], np.int64)
        return cls(
            Paths([pa.array(paths, pa.large_string())]), numbers, tuple(kinds), np.array(kind_of, np.int32)
        )

    @classmethod
    def joined(cls, parts: Iterable[DataFiles]) -> DataFiles:
        """One after the other: each part may go as soon as the next one is asked for."""
        numbers = [np.empty((3, 0), np.int64)]
        kinds: dict[FileKind, int] = {}
        kind_of = [np.empty(0, np.int32)]

        def paths() -> Iterator[pa.Array]:
            for part in parts:
                here = np.array([kinds.setdefault(kind, len(kinds)) for kind in part.kinds], np.int32)
                kind_of.append(here[part.kind_of])
                numbers.append(part._of_all(part._numbers))
                yield from part.path_pieces()

        column = Paths(paths())
        return cls(column, np.concatenate(numbers, axis=1), tuple(kinds), np.concatenate(kind_of))

    def __len__(self) -> int:
        return len(self._kind_of) if self._places is None else len(self._places)

    @overload
    def __getitem__(self, place: int) -> DataFile: ...
    @overload
    def __getitem__(self, place: slice) -> DataFiles: ...
    def __getitem__(self, place: int | slice) -> DataFile | DataFiles:
        chosen = range(len(self))[place]
        return self.select(chosen) if isinstance(chosen, range) else next(iter(self.select([chosen])))

    def __iter__(self) -> Iterator[DataFile]:
        start = 0
        for paths in self.path_pieces():
            at = slice(start, start + len(paths))
            start = at.stop
            places = at if self._places is None else self._places[at]
            kinds = self._kind_of[places].tolist()
            for path, rows, size, number, kind in zip(
                paths.to_pylist(), *self._numbers[:, places].tolist(), kinds, strict=True
            ):
                partition, file_format, encrypted = self.kinds[kind]
                yield DataFile(path, file_format, partition, rows, size, number, encrypted)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DataFiles) and list(self) == list(other)

    def __reduce__(self) -> tuple[object, ...]:
        """A selection pickles without the rest."""
        kinds, kind_of = np.unique(self.kind_of, return_inverse=True)
        columns = Paths(self.path_pieces()), self._of_all(self._numbers)
        return DataFiles, (*columns, tuple(self.kinds[kind] for kind in kinds), kind_of.astype(np.int32))

    def select(self, places: npt.ArrayLike) -> DataFiles:
        """Those at some places, in that order."""
        chosen = np.asarray(places, np.int64)
        if self._places is not None:
            chosen = self._places[chosen]
        return DataFiles(self._paths, self._numbers, self.kinds, self._kind_of, chosen)

    def where(self, chosen: npt.NDArray[np.bool_]) -> DataFiles:
        """Those that are marked."""
        return self if chosen.all() else self.select(np.flatnonzero(chosen))

    def with_paths(self, paths: Collection[str]) -> DataFiles:
        if not paths or not len(self):
            return self.select([])
        wanted = pa.array(paths, pa.large_string())
        pieces = (pc.is_in(piece, wanted) for piece in self.path_pieces())
        return self.where(np.concatenate([piece.to_numpy(zero_copy_only=False) for piece in pieces]))

    def without_copies(self) -> DataFiles:
        """The first of those that share path and partition."""
        first = np.ones(len(self), np.bool_)
        seen = set()
        candidates = may_repeat(self.path_pieces())
        for place, file in zip(candidates.tolist(), self.select(candidates), strict=True):
            first[place] = (file.path, file.partition) not in seen
            seen.add((file.path, file.partition))
        return self.where(first)

    def path_pieces(self) -> Iterator[pa.Array]:
        """The paths in order, some at a time."""
        return self._paths.pieces(self._places)

    @property
    def kind_of(self) -> npt.NDArray[np.int32]:
        """Which of `kinds` each file is."""
        return self._of_all(self._kind_of)

    @property
    def record_counts(self) -> Int64Array:
        return self._of_all(self._numbers[0])

    @property
    def data_sequence_numbers(self) -> Int64Array:
        return self._of_all(self._numbers[2])

    @property
    def record_count(self) -> int:
        return int(self.record_counts.sum())

    def _of_all(self, column: npt.NDArray[N]) -> npt.NDArray[N]:
        return column if self._places is None else column[..., self._places]


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A live delete file of the pinned snapshot: equality deletes, position deletes or a deletion vector."""

    content: FileContent
    path: str
    file_format: str  # lower case: parquet, orc, avro, puffin
    partition: PartitionKey
    record_count: int
    file_size_bytes: int
    data_sequence_number: int
    equality_ids: tuple[int, ...] = ()  # sorted; empty for position deletes
    referenced_data_file: str | None = None  # also derived from equal file_path bounds
    content_offset: int | None = None
    content_size_bytes: int | None = None
    added_snapshot_id: int | None = None
    encrypted: bool = False

    @property
    def is_deletion_vector(self) -> bool:
        return self.file_format == "puffin"


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """Every live file of one snapshot, read from its manifests.

    `global_spec_ids` are the specs under which an equality delete is global: unpartitioned ones, and
    those whose fields are all void.
    """

    data_files: DataFiles
    delete_files: tuple[DeleteFile, ...]
    global_spec_ids: frozenset[int]

    @property
    def equality_deletes(self) -> tuple[DeleteFile, ...]:
        return tuple(f for f in self.delete_files if f.content is FileContent.EQUALITY_DELETES)

    @property
    def position_deletes(self) -> tuple[DeleteFile, ...]:
        """Position delete files and deletion vectors."""
        return tuple(f for f in self.delete_files if f.content is FileContent.POSITION_DELETES)


@dataclass(frozen=True, slots=True)
class KeySetDeletes:
    """The equality deletes of one key set, and the data files that at least one of them applies to."""

    equality_field_ids: tuple[int, ...]
    delete_files: tuple[DeleteFile, ...]
    data_files: DataFiles

    @property
    def keys_planned(self) -> int:
        return sum(file.record_count for file in self.delete_files)

    @property
    def rows_planned(self) -> int:
        return self.data_files.record_count


def in_commits(deletes: Sequence[DeleteFile], limit: int) -> list[Sequence[DeleteFile]]:
    """Equality deletes in groups of at most `limit`, 0 for one group of all.

    Those of a partition lie next to each other, the oldest first, so that few data files are touched twice.
    A path that is live more than once is in one group, which it may make larger: Iceberg removes delete files
    by their paths.
    """
    if not limit:
        return [deletes] if deletes else []
    ordered = sorted(
        deletes, key=lambda f: (f.partition.spec_id, f.partition.values, f.data_sequence_number, f.path)
    )
    by_path: dict[str, list[DeleteFile]] = defaultdict(list)
    for delete in ordered:
        by_path[delete.path].append(delete)
    groups: list[list[DeleteFile]] = [[]]
    for copies in by_path.values():
        if groups[-1] and len(groups[-1]) + len(copies) > limit:
            groups.append([])
        groups[-1] += copies
    return [group for group in groups if group]


def plan_conversion(files: SnapshotFiles, deletes: Iterable[DeleteFile] | None = None) -> list[KeySetDeletes]:
    """Equality deletes by key set, in ascending field ids, with the live files that they apply to.

    deletes: all live ones unless given.
    """
    by_key_set: dict[tuple[int, ...], list[DeleteFile]] = defaultdict(list)
    for delete in files.equality_deletes if deletes is None else deletes:
        by_key_set[delete.equality_ids].append(delete)
    return [
        KeySetDeletes(ids, tuple(of_key_set), affected_files(files, of_key_set))
        for ids, of_key_set in sorted(by_key_set.items())
    ]


def affected_files(files: SnapshotFiles, deletes: Iterable[DeleteFile]) -> DataFiles:
    """The data files that at least one of the equality deletes applies to."""
    scoped: dict[PartitionKey, int] = defaultdict(int)
    everywhere = 0
    for delete in deletes:
        if delete.partition.spec_id in files.global_spec_ids:
            everywhere = max(everywhere, delete.data_sequence_number)
        else:
            scoped[delete.partition] = max(scoped[delete.partition], delete.data_sequence_number)
    data_files = files.data_files
    newest = np.array([max(everywhere, scoped.get(kind.partition, 0)) for kind in data_files.kinds], np.int64)
    return data_files.where(data_files.data_sequence_numbers < newest[data_files.kind_of])


def balanced(record_counts: Int64Array, groups: int) -> list[slice]:
    """Cuts files, by their row counts, into about `groups` groups of similar sums, in order."""
    ends = np.cumsum(record_counts)
    target = max(1, int(ends[-1]) // groups) if len(ends) else 1
    result = []
    start = rows = 0
    while start < len(ends):
        end = min(len(ends), int(np.searchsorted(ends, rows + target)) + 1)
        result.append(slice(start, end))
        start, rows = end, int(ends[end - 1])
    return result


def applies(delete: DeleteFile, file: DataFile, global_spec_ids: frozenset[int]) -> bool:
    """Whether an equality delete applies to a data file (spec, "Scan Planning")."""
    return file.data_sequence_number < delete.data_sequence_number and (
        delete.partition.spec_id in global_spec_ids or delete.partition == file.partition
    )


class Source(StrEnum):
    """Where the rows of a key set's deletes are looked for."""

    INDEX = "index"
    SCAN = "scan"
    INDEX_AND_SCAN = "index_and_scan"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Rates:
    """Rows decoded and matched a second by one thread; measured on two cores, see docs/benchmarks.md."""

    index: float
    scan: float


NUMBERS = Rates(index=60e6, scan=20e6)
STRINGS = Rates(index=8e6, scan=8e6)  # as soon as one key column is string or binary
INTEGER_FIRST = Rates(index=20e6, scan=12e6)  # but a lookup hashes only what an integer before it leaves
INDEX_FILE_SECONDS = 0.002  # to open one file of the index with its footer at hand
DATA_FILE_SECONDS = 0.001  # to open one data file, whatever it holds: one core's, which threads don't share
COMMIT_SECONDS = 0.5  # of one RowDelta and its manifests
WRITTEN_FILE_SECONDS = 0.001  # to make one delete file, and to list it in the commit


def rates_of(key_types: Sequence[pa.DataType]) -> Rates:
    """key_types: of the key columns, in the index's order."""
    if not any(map(is_bytes, key_types)):
        return NUMBERS
    return INTEGER_FIRST if pa.types.is_integer(key_types[0]) else STRINGS


def conversion_seconds(measured: Mapping[str, float], commits: int, delete_files: int) -> float:
    """How long a conversion is expected to take, after a dry run of it that did all but write and commit.

    measured: seconds of each stage of the dry run. Each commit after the first plans anew.
    """
    if not commits:
        return sum(measured.values())
    return (
        sum(measured.values())
        + (commits - 1) * measured.get("plan", 0.0)
        + commits * COMMIT_SECONDS
        + delete_files * WRITTEN_FILE_SECONDS
    )


def index_is_cheaper(
    keys: int, lookup_rows: int, index_files: int, scan_rows: int, data_files: int, rates: Rates
) -> tuple[bool, str]:
    """Whether to ask the index for files that it covers, rather than scan them; and why, in words.

    lookup_rows: entries of the index that a lookup reads at most. scan_rows, data_files: that a scan reads.
    """
    lookup_seconds = lookup_rows / rates.index + index_files * INDEX_FILE_SECONDS
    scan_seconds = scan_rows / rates.scan + data_files * DATA_FILE_SECONDS
    # Estimates this small are within each other's error: the index touches fewer bytes of the table.
    cheaper = lookup_seconds <= max(scan_seconds, 0.05)
    return cheaper, (
        f"{keys:,} keys: at most {lookup_rows:,} index rows (about {lookup_seconds:.2f} s)"
        f" against {scan_rows:,} rows in {counted(data_files, 'data file')} (about {scan_seconds:.2f} s)"
    )
