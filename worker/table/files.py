"""The live files of a snapshot as values, which lie in columns, since there may be ten million."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from worker.io.paths import PathPlaces, Paths, may_repeat
from worker.io.sorting import Int64Array

F = TypeVar("F")
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
    """What very many files have in common. content, and what follows: of delete files alone."""

    partition: PartitionKey
    file_format: str
    encrypted: bool
    content: FileContent | None = None
    equality_ids: tuple[int, ...] = ()
    names_data_file: bool = False


_KIND_BYTES = 400
"""That a kind takes in memory, about, beside the values of its partition."""


class Files(Sequence[F]):
    """Files in columns, numbers beside their paths' text; each is made an object when asked for.

    There may be ten million. A selection shares the columns of what it was made from.
    """

    TEXTS: ClassVar[int]
    NUMBERS: ClassVar[int]

    def __init__(
        self,
        texts: Sequence[Paths],
        numbers: Int64Array,
        kinds: Sequence[FileKind],
        kind_of: npt.NDArray[np.int32],
        places: Int64Array | None = None,
    ) -> None:
        """texts: a column of paths, and others. numbers: rows for record counts, sizes in bytes, data
        sequence numbers, and others.

        kind_of: which of `kinds` each file is. places: of the selected files in these columns; None for all.
        """
        self.kinds = kinds
        self._texts = texts
        self._numbers = numbers
        self._kind_of = kind_of
        self._places = places

    @staticmethod
    @abstractmethod
    def _taken_apart(file: F) -> tuple[FileKind, tuple[str, ...], tuple[int, ...]]:
        """Its kind, texts and numbers."""

    @staticmethod
    @abstractmethod
    def _put_together(kind: FileKind, values: Sequence[Any]) -> F:
        """values: texts and numbers."""

    @classmethod
    def of(cls, files: Iterable[F]) -> Self:
        """In the same order."""
        texts: list[list[str]] = [[] for _ in range(cls.TEXTS)]
        numbers = [array("q") for _ in range(cls.NUMBERS)]
        kinds: dict[FileKind, int] = {}
        kind_of = array("i")
        for file in files:
            kind, of_texts, of_numbers = cls._taken_apart(file)
            kind_of.append(kinds.setdefault(kind, len(kinds)))
            for column, text in zip(texts, of_texts, strict=True):
                column.append(text)
            for row, number in zip(numbers, of_numbers, strict=True):
                row.append(number)
        columns = [Paths([pa.array(column, pa.large_string())]) for column in texts]
        return cls(columns, np.array(numbers, np.int64), tuple(kinds), np.array(kind_of, np.int32))

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """One after the other: each part may go as soon as the next one is asked for, but for its texts
        beside paths."""
        numbers = [np.empty((cls.NUMBERS, 0), np.int64)]
        kinds: dict[FileKind, int] = {}
        kind_of = [np.empty(0, np.int32)]
        others: list[list[pa.Array]] = [[] for _ in range(cls.TEXTS - 1)]

        def paths() -> Iterator[pa.Array]:
            for part in parts:
                here = np.array([kinds.setdefault(kind, len(kinds)) for kind in part.kinds], np.int32)
                kind_of.append(here[part.kind_of])
                numbers.append(part._of_all(part._numbers))
                for pieces, column in zip(others, part._texts[1:], strict=True):
                    pieces += column.pieces(part._places)
                yield from part.path_pieces()

        texts = [Paths(paths()), *map(Paths, others)]
        return cls(texts, np.concatenate(numbers, axis=1), tuple(kinds), np.concatenate(kind_of))

    def __len__(self) -> int:
        return len(self._kind_of) if self._places is None else len(self._places)

    @overload
    def __getitem__(self, place: int) -> F: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...
    def __getitem__(self, place: int | slice) -> F | Self:
        chosen = range(len(self))[place]
        return self.select(chosen) if isinstance(chosen, range) else next(iter(self.select([chosen])))

    def __iter__(self) -> Iterator[F]:
        start = 0
        for texts in zip(*(column.pieces(self._places) for column in self._texts), strict=True):
            at = slice(start, start + len(texts[0]))
            start = at.stop
            places = at if self._places is None else self._places[at]
            columns = (*(text.to_pylist() for text in texts), *self._numbers[:, places].tolist())
            for kind, *values in zip(self._kind_of[places].tolist(), *columns, strict=True):
                yield self._put_together(self.kinds[kind], values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and list(self) == list(other)

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        """A selection pickles without the rest."""
        kinds, kind_of = np.unique(self.kind_of, return_inverse=True)
        texts = [Paths(column.pieces(self._places)) for column in self._texts]
        of_kinds = tuple(self.kinds[kind] for kind in kinds)
        return type(self), (texts, self._of_all(self._numbers), of_kinds, kind_of.astype(np.int32))

    def count_partitions(self) -> int:
        """Files of different specs are in different ones."""
        return len({kind.partition for kind in self.present_kinds()})

    def present_kinds(self) -> list[FileKind]:
        """Those of which there are files here."""
        return [self.kinds[kind] for kind in np.unique(self.kind_of)]

    def select(self, places: npt.ArrayLike) -> Self:
        """Those at some places, in that order."""
        chosen = np.asarray(places, np.int64)
        if self._places is not None:
            chosen = self._places[chosen]
        return type(self)(self._texts, self._numbers, self.kinds, self._kind_of, chosen)

    def where(self, chosen: npt.NDArray[np.bool_]) -> Self:
        """Those that are marked."""
        return self if chosen.all() else self.select(np.flatnonzero(chosen))

    def with_paths(self, paths: Collection[str]) -> Self:
        return self.where(self.are_named(paths)) if paths and len(self) else self.select([])

    def are_named(self, paths: Collection[str]) -> npt.NDArray[np.bool_]:
        """Which of them have one of these paths."""
        return self._are_in(self._texts[0], paths)

    def are_of(self, is_meant: Callable[[FileKind], bool]) -> npt.NDArray[np.bool_]:
        """Which of them are of such a kind."""
        return np.array([is_meant(kind) for kind in self.kinds], np.bool_)[self.kind_of]

    def alone(self) -> Self:
        """A selection without the columns of the rest."""
        make, columns = self.__reduce__()
        return make(*columns)

    def path_pieces(self) -> Iterator[pa.Array]:
        """The paths in order, some at a time."""
        return self._texts[0].pieces(self._places)

    def paths(self) -> Iterator[str]:
        """In order."""
        return (path for piece in self.path_pieces() for path in piece.to_pylist())

    @property
    def held_bytes(self) -> int:
        """That its columns take, which a selection holds whole."""
        numbers = self._numbers.nbytes + self._kind_of.nbytes
        texts = sum(text.size_bytes for text in self._texts)
        kinds = sum(_KIND_BYTES + len(kind.partition.values) for kind in self.kinds)
        return numbers + texts + kinds

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

    def _are_in(self, column: Paths, texts: Collection[str]) -> npt.NDArray[np.bool_]:
        if not texts or not len(self):
            return np.zeros(len(self), np.bool_)
        wanted = pa.array(texts, pa.large_string())
        pieces = (pc.is_in(piece, wanted) for piece in column.pieces(self._places))
        return np.concatenate([piece.to_numpy(zero_copy_only=False) for piece in pieces])

    def _of_all(self, column: npt.NDArray[N]) -> npt.NDArray[N]:
        return column if self._places is None else column[..., self._places]


class DataFiles(Files[DataFile]):
    """36 bytes each beside their paths' text."""

    TEXTS, NUMBERS = 1, 3

    @staticmethod
    def _taken_apart(file: DataFile) -> tuple[FileKind, tuple[str, ...], tuple[int, ...]]:
        kind = FileKind(file.partition, file.file_format, file.encrypted)
        return kind, (file.path,), (file.record_count, file.file_size_bytes, file.data_sequence_number)

    @staticmethod
    def _put_together(kind: FileKind, values: Sequence[Any]) -> DataFile:
        path, rows, size, number = values
        return DataFile(path, kind.file_format, kind.partition, rows, size, number, kind.encrypted)

    def without(self, others: DataFiles) -> DataFiles:
        """Those that are none of the others."""
        return self.where(self.are_new(others))

    def are_new(self, others: DataFiles) -> npt.NDArray[np.bool_]:
        """Which of them are none of the others."""
        kinds = {kind: number for number, kind in enumerate(others.kinds)}
        kind_of = np.array([kinds.get(kind, -1) for kind in self.kinds], np.int64)[self.kind_of]
        numbers, of_others = self._of_all(self._numbers), others._of_all(others._numbers)
        is_new = np.ones(len(self), np.bool_)
        paths = others._texts[0] if others._places is None else Paths(others.path_pieces())
        for here, there in paths.pairs(self.path_pieces()):
            same = kind_of[here] == others.kind_of[there]
            same &= (numbers[:, here] == of_others[:, there]).all(axis=0)
            is_new[here[same]] = False
        return is_new

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


NO_NUMBER = np.iinfo(np.int64).min


class DeleteFiles(Files[DeleteFile]):
    """68 bytes each beside the text of their own paths and of those that they name."""

    TEXTS, NUMBERS = 2, 6

    @staticmethod
    def _taken_apart(file: DeleteFile) -> tuple[FileKind, tuple[str, ...], tuple[int, ...]]:
        named, told = file.referenced_data_file, (file.content_offset, file.content_size_bytes)
        kind = FileKind(
            file.partition,
            file.file_format,
            file.encrypted,
            file.content,
            file.equality_ids,
            names_data_file=named is not None,
        )
        numbers = file.record_count, file.file_size_bytes, file.data_sequence_number
        may_lack = (NO_NUMBER if one is None else one for one in (*told, file.added_snapshot_id))
        return kind, (file.path, named or ""), (*numbers, *may_lack)

    @staticmethod
    def _put_together(kind: FileKind, values: Sequence[Any]) -> DeleteFile:
        path, named, rows, size, number, *may_lack = values
        offset, content_size, snapshot_id = (None if one == NO_NUMBER else one for one in may_lack)
        assert kind.content is not None
        return DeleteFile(
            kind.content,
            path,
            kind.file_format,
            kind.partition,
            rows,
            size,
            number,
            kind.equality_ids,
            named if kind.names_data_file else None,
            offset,
            content_size,
            snapshot_id,
            kind.encrypted,
        )

    def of_content(self, content: FileContent) -> DeleteFiles:
        return self.where(self.are_of(lambda kind: kind.content is content))

    def that_name(self, paths: Collection[str]) -> npt.NDArray[np.bool_]:
        """Which of them are for one of some data files alone."""
        return self.are_file_scoped & self._are_in(self._texts[1], paths)

    def that_may_apply(self, files: Collection[DataFile]) -> DeleteFiles:
        """Those that name one of some data files, or none and lie in the partition of one."""
        partitions = {file.partition for file in files}
        in_them = self.are_of(lambda kind: not kind.names_data_file and kind.partition in partitions)
        return self.where(in_them | self.that_name({file.path for file in files}))

    def places_of_named(self) -> PathPlaces:
        """Where the deletes lie that name a data file."""
        return PathPlaces(self._texts[1] if self._places is None else Paths(self.named_pieces()))

    def named(self) -> Iterator[str]:
        """The data files that they name, in order; empty where they name none."""
        return (path for piece in self.named_pieces() for path in piece.to_pylist())

    def named_pieces(self) -> Iterator[pa.Array]:
        return self._texts[1].pieces(self._places)

    @property
    def named_lengths(self) -> Int64Array:
        """In characters."""
        lengths = (pc.utf8_length(piece).to_numpy() for piece in self.named_pieces())
        return np.concatenate([np.empty(0, np.int64), *lengths])

    @property
    def are_file_scoped(self) -> npt.NDArray[np.bool_]:
        """Which of them name a data file."""
        return self.are_of(lambda kind: kind.names_data_file)

    @property
    def are_vectors(self) -> npt.NDArray[np.bool_]:
        return self.are_of(lambda kind: kind.file_format == "puffin")

    @property
    def content_sizes_bytes(self) -> Int64Array:
        """NO_NUMBER where there is none."""
        return self._of_all(self._numbers[4])


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """Every live file of one snapshot, read from its manifests.

    `global_spec_ids` are the specs under which an equality delete is global: unpartitioned ones, and
    those whose fields are all void.
    """

    data_files: DataFiles
    delete_files: DeleteFiles
    global_spec_ids: frozenset[int]

    @property
    def equality_deletes(self) -> DeleteFiles:
        return self.delete_files.of_content(FileContent.EQUALITY_DELETES)

    @property
    def position_deletes(self) -> DeleteFiles:
        """Position delete files and deletion vectors."""
        return self.delete_files.of_content(FileContent.POSITION_DELETES)


NO_FILES = SnapshotFiles(DataFiles.of(()), DeleteFiles.of(()), frozenset())


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
