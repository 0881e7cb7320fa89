"""What rows of a table are visible, in the plainest words of the Iceberg spec ("Scan Planning").

Invariant: nothing is forgotten. A conversion changes nothing here, so whatever it may drop or add shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

Row = Mapping[int, Any]  # field id -> value
Position = tuple[str, int]  # data file and 0-based row


@dataclass(frozen=True, eq=False)
class DataFile:
    """Rows in file order; a row holds the fields that the file has."""

    path: str
    file_format: str
    rows: tuple[Row, ...]
    fields: frozenset[int]
    scope: tuple[int, str]  # spec id and partition tuple
    constants: Row  # identity partition values by source field, for fields that the file lacks


@dataclass(frozen=True, eq=False)
class EqualityDelete:
    """One equality delete file; `scope` is None where it applies to every partition and spec."""

    path: str
    file_format: str
    fields: tuple[int, ...]
    keys: frozenset[tuple[Any, ...]]
    scope: tuple[int, str] | None
    sequence_number: int


@dataclass(frozen=True)
class State:
    """The live files of one snapshot, and all that was ever deleted there, with sequence numbers.

    files: more than one number, if a path is live more than once. positions: the last number of each.
    """

    files: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    positions: Mapping[Position, int] = field(default_factory=dict)
    deletes: tuple[EqualityDelete, ...] = ()

    @property
    def live_twice(self) -> set[str]:
        return {path for path, numbers in self.files.items() if len(numbers) > 1}

    def with_files(self, paths: Sequence[str], sequence_number: int) -> Self:
        added = {path: (*self.files.get(path, ()), sequence_number) for path in paths}
        return replace(self, files={**self.files, **added})

    def without_files(self, paths: Sequence[str]) -> Self:
        return replace(self, files={path: n for path, n in self.files.items() if path not in paths})

    def with_positions(self, positions: Sequence[Position], sequence_number: int) -> Self:
        added = dict.fromkeys(positions, sequence_number)
        return replace(self, positions={**self.positions, **added})

    def with_deletes(self, deletes: Sequence[EqualityDelete]) -> Self:
        return replace(self, deletes=(*self.deletes, *deletes))


class Model:
    """Every data file ever written, every kept snapshot, and the head."""

    def __init__(self) -> None:
        self.files: dict[str, DataFile] = {}
        self.snapshots: dict[int, State] = {}
        self.head = State()
        self.defaults: dict[int, Any] = {}  # initial defaults by field id

    def value(self, file: DataFile, row: Row, field_id: int) -> Any:
        """The projected value (spec, "Column Projection")."""
        if field_id in file.fields:
            return row[field_id]
        return file.constants.get(field_id, self.defaults.get(field_id))

    def key(self, file: DataFile, row: Row, fields: Sequence[int]) -> tuple[Any, ...]:
        return tuple(self.value(file, row, field_id) for field_id in fields)

    def visible(self, state: State) -> Iterator[Position]:
        """The rows that no position and no equality delete deletes."""
        for path, sequence_numbers in state.files.items():
            for sequence_number in sequence_numbers:
                yield from self.visible_of(state, path, sequence_number)

    def visible_of(self, state: State, path: str, sequence_number: int) -> Iterator[Position]:
        file = self.files[path]
        deletes = [one for one in state.deletes if applies(one, file, sequence_number)]
        for position, row in enumerate(file.rows):
            if state.positions.get((path, position), -1) >= sequence_number:
                continue
            if any(self.key(file, row, one.fields) in one.keys for one in deletes):
                continue
            yield path, position

    def row(self, position: Position, fields: Sequence[int]) -> tuple[Any, ...]:
        file = self.files[position[0]]
        return self.key(file, file.rows[position[1]], fields)

    def rows(self, state: State, fields: Sequence[int]) -> Counter[tuple[Any, ...]]:
        """The multiset of visible rows of a snapshot."""
        return Counter(self.row(position, fields) for position in self.visible(state))


def applies(delete: EqualityDelete, file: DataFile, sequence_number: int) -> bool:
    return sequence_number < delete.sequence_number and delete.scope in (None, file.scope)
