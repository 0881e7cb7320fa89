"""The live files of a snapshot as values; data files lie in columns, since there may be ten million."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from worker.io.paths import Paths, may_repeat
from worker.io.sorting import Int64Array

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

    def __reduce__(self) -> tuple[type[DataFiles], tuple[Any, ...]]:
        """A selection pickles without the rest."""
        kinds, kind_of = np.unique(self.kind_of, return_inverse=True)
        columns = Paths(self.path_pieces()), self._of_all(self._numbers)
        return DataFiles, (*columns, tuple(self.kinds[kind] for kind in kinds), kind_of.astype(np.int32))

    def count_partitions(self) -> int:
        """Files of different specs are in different ones."""
        return len({self.kinds[kind].partition for kind in np.unique(self.kind_of)})

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
        return self.where(self.are_named(paths)) if paths and len(self) else self.select([])

    def are_named(self, paths: Collection[str]) -> npt.NDArray[np.bool_]:
        """Which of them have one of these paths."""
        if not paths or not len(self):
            return np.zeros(len(self), np.bool_)
        wanted = pa.array(paths, pa.large_string())
        pieces = (pc.is_in(piece, wanted) for piece in self.path_pieces())
        return np.concatenate([piece.to_numpy(zero_copy_only=False) for piece in pieces])

    def without(self, others: DataFiles) -> DataFiles:
        """Those that are none of the others."""
        return self.where(self.are_new(others))

    def are_new(self, others: DataFiles) -> npt.NDArray[np.bool_]:
        """Which of them are none of the others."""
        kinds = {kind: number for number, kind in enumerate(others.kinds)}
        kind_of = np.array([kinds.get(kind, -1) for kind in self.kinds], np.int64)[self.kind_of]
        numbers, of_others = self._of_all(self._numbers), others._of_all(others._numbers)
        is_new = np.ones(len(self), np.bool_)
        paths = others._paths if others._places is None else Paths(others.path_pieces())
        for here, there in paths.pairs(self.path_pieces()):
            same = kind_of[here] == others.kind_of[there]
            same &= (numbers[:, here] == of_others[:, there]).all(axis=0)
            is_new[here[same]] = False
        return is_new

    def alone(self) -> DataFiles:
        """A selection without the columns of the rest."""
        make, columns = self.__reduce__()
        return make(*columns)

    def without_copies(self) -> DataFiles:
        """The first of those that share path, partition and data sequence number."""
        first = np.ones(len(self), np.bool_)
        seen = set()
        candidates = may_repeat(self.path_pieces())
        for place, file in zip(candidates.tolist(), self.select(candidates), strict=True):
            one = file.path, file.partition, file.data_sequence_number
            first[place] = one not in seen
            seen.add(one)
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
    def file_sizes_bytes(self) -> Int64Array:
        return self._of_all(self._numbers[1])

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


NO_FILES = SnapshotFiles(DataFiles.of(()), (), frozenset())


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
