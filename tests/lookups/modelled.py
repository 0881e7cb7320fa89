"""What all steps of a history share: drawing rows, writing files, and committing them to table and model."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import LongType, NestedField

from tests.lookups.drawing import Setup
from tests.lookups.table import Entry, File, PlainTable
from tests.soak.drawing import KEY, OTHER, REGION, SERIAL
from tests.soak.model import DataFile, EqualityDelete, Model, State, applies
from tests.soak.values import VALUES
from worker.io.storage import Storage

Row = Mapping[int, Any]


@dataclass(frozen=True)
class LookupState(State):
    """Of one snapshot, as the soak's; here its equality deletes are the live ones.

    vectors: the data files that have a deletion vector.
    """

    vectors: frozenset[str] = frozenset()

    def deleted_by(self, model: Model, path: str, number: int) -> list[str | None]:
        """What deletes each row of a data file that is live with this data sequence number."""
        file = model.files[path]
        deletes = [one for one in self.deletes if applies(one, file, number)]
        by_position = "deletion_vector" if path in self.vectors else "position_delete"
        return [
            by_position
            if self.positions.get((path, position), -1) >= number
            else "equality_delete"
            if any(model.key(file, row, one.fields) in one.keys for one in deletes)
            else None
            for position, row in enumerate(file.rows)
        ]


class ModelledTable:
    """A table in a folder of its own and its model, changed together."""

    def __init__(self, folder: Path, setup: Setup) -> None:
        self.folder = folder
        self.setup = setup
        self.model = Model()
        self.states: dict[int, LookupState] = {}
        self.written: dict[str, File] = {}  # data files by path
        self.key_sets = list(setup.key_sets)
        self.serial = 0
        schema = Schema(
            *(
                NestedField.model_validate({"id": i, "name": name, "type": kind, "required": False})
                for i, name, kind in (
                    (KEY, "k", setup.key_type),
                    (OTHER, "other", setup.other_type),
                    (REGION, "region", "string"),
                )
            ),
            NestedField(SERIAL, "serial", LongType()),
        )
        self.table = PlainTable(
            folder.as_uri(),
            Storage(),
            setup.format_version,
            [schema],
            [UNPARTITIONED_PARTITION_SPEC],
            last_column_id=SERIAL,
        )
        self.table.change()

    # What the table is now

    def state(self, ref: str) -> LookupState:
        head = self.table.head(ref)
        return LookupState() if head is None else self.states[head.snapshot_id]

    def usable_key_sets(self, schema: Schema) -> list[tuple[int, ...]]:
        return [key_set for key_set in self.key_sets if schema.field_ids.issuperset(key_set)]

    def branch(self, rng: Random) -> str:
        """Where a writer commits."""
        branches = [
            name for name, (kind, _) in self.table.refs.items() if kind == "branch" and name != "main"
        ]
        return rng.choice(branches) if branches and rng.random() < 0.25 else "main"

    def live_once(self, state: State) -> list[str]:
        """Paths in the order in which they were written, without those that are live twice."""
        return [path for path in self.model.files if path in state.files and path not in state.live_twice]

    # Drawing

    def schema_and_spec(self, rng: Random) -> tuple[Schema, PartitionSpec]:
        """The current ones; now and then those of a writer that has not seen the last changes."""
        schema, spec = self.table.schema, self.table.spec
        if rng.random() < 0.15:
            spec = rng.choice(self.table.specs)
        if rng.random() < 0.1:
            schema = rng.choice(self.table.schemas)
            if not schema.field_ids.issuperset(part.source_id for part in spec.fields):
                schema = self.table.schema
        return schema, spec

    def new_row(self, rng: Random, schema: Schema) -> dict[int, Any]:
        return {
            column.field_id: self._new_value(rng, column.field_id, str(column.field_type))
            for column in schema.fields
        }

    def _new_value(self, rng: Random, field_id: int, kind: str) -> Any:
        if field_id == SERIAL:
            self.serial += 1
            return self.serial
        return rng.choice([*self.values_of(field_id, kind), None])

    def values_of(self, field_id: int, kind: str) -> tuple[Any, ...]:
        """That rows have in a column, beside null."""
        if field_id == REGION:
            return "eu", "us"
        wider = (2**40,) if kind == "long" and self.setup.key_type == "int" else ()
        return (*self.setup.values.get(field_id, VALUES[kind][:3]), *wider)

    def some_rows(self, rng: Random, state: State, schema: Schema) -> list[dict[int, Any]]:
        """Rows that a snapshot has, deleted or not, and some that it may not have."""
        ids = [column.field_id for column in schema.fields]
        places = [
            (path, at) for path in self.live_once(state) for at in range(len(self.model.files[path].rows))
        ]
        chosen = rng.sample(places, min(len(places), rng.randint(0, 2)))
        rows = [dict(zip(ids, self.model.row(place, ids), strict=True)) for place in chosen]
        return rows + [self.new_row(rng, schema) for _ in range(rng.randint(0 if rows else 1, 1))]

    # Writing

    def data_files(self, rng: Random, rows: Sequence[Row], schema: Schema, spec: PartitionSpec) -> list[File]:
        return [
            self._data_file(rng, part, schema, spec, partition)
            for partition, part in _by_partition(rows, schema, spec)
        ]

    def _data_file(
        self, rng: Random, rows: Sequence[Row], schema: Schema, spec: PartitionSpec, partition: list[Any]
    ) -> File:
        constants = {
            part.source_id: value
            for part, value in zip(spec.fields, partition, strict=True)
            if isinstance(part.transform, IdentityTransform)
        }
        columns = [column.field_id for column in schema.fields]
        if self.setup.leaves_out and rng.random() < 0.5:
            columns = [i for i in columns if i not in constants]
        groups = rng.choice([None, None, 1, 2])
        file = self.table.write_rows(rows, schema, columns, spec, partition, row_group_rows=groups)
        self.written[file.path] = file
        self.model.files[file.path] = DataFile(
            file.path, "parquet", tuple(rows), frozenset(columns), _scope(spec, partition), constants
        )
        return file

    def equality_deletes(
        self, rng: Random, rows: Sequence[Row], key_set: Sequence[int], schema: Schema, spec: PartitionSpec
    ) -> list[tuple[File, EqualityDelete]]:
        """Deletes of the rows' keys, in the partitions where the rows would lie; their number comes later."""
        ids = [column.field_id for column in schema.fields]
        columns = [i for i in ids if i in key_set or rng.random() < 0.15]
        is_global = all(isinstance(part.transform, VoidTransform) for part in spec.fields)
        written = []
        for partition, part in _by_partition(rows, schema, spec):
            file = self.table.write_rows(part, schema, columns, spec, partition, equality_ids=key_set)
            keys = frozenset(tuple(row[i] for i in key_set) for row in part)
            scope = None if is_global else _scope(spec, partition)
            written.append((file, EqualityDelete(file.path, "parquet", tuple(key_set), keys, scope, 0)))
        return written

    # Committing

    def commit(
        self,
        rng: Random,
        ref: str,
        data: Sequence[File] = (),
        equality: Sequence[tuple[File, EqualityDelete]] = (),
        positions: Mapping[str, Collection[int]] | None = None,
        *,
        without: Collection[EqualityDelete] = (),
    ) -> None:
        """One commit of data files, equality deletes and deleted positions. without: deletes that go."""
        state = self.state(ref)
        added, removed, vectors = self._position_files(rng, ref, positions or {})
        gone = {delete.path for delete in without}
        removed += [entry for entry in self._entries(ref) if entry.file.path in gone]
        files = [*data, *(file for file, _ in equality), *added]
        number = self.table.commit(rng, ref, files, removed).described["sequence-number"]
        places = [(path, at) for path, of_file in (positions or {}).items() for at in of_file]
        for file in data:  # one by one: a file may come twice
            state = state.with_files([file.path], number)
        state = replace(
            state.with_deletes(
                [replace(delete, sequence_number=number) for _, delete in equality]
            ).with_positions(places, number),
            vectors=state.vectors | vectors,
        )
        left = tuple(delete for delete in state.deletes if delete.path not in gone)
        self.note(ref, replace(state, deletes=left))

    def note(self, ref: str, state: LookupState) -> None:
        """The state of a new head."""
        self.states[self.table.refs[ref][1]] = state

    def _entries(self, ref: str) -> list[Entry]:
        head = self.table.head(ref)
        return [] if head is None else head.entries

    def _position_files(
        self, rng: Random, ref: str, positions: Mapping[str, Collection[int]]
    ) -> tuple[list[File], list[Entry], frozenset[str]]:
        """Delete files to add and to remove, and the data files that get a deletion vector.

        In format version 3 every vector holds all that was there.
        """
        if not positions:
            return [], [], frozenset()
        state = self.state(ref)
        if self.table.version >= 3:
            merged = {path: set(of_file) for path, of_file in positions.items()}
            for (path, at), number in state.positions.items():
                if path in merged and number >= min(state.files[path]):
                    merged[path].add(at)
            return (
                self.table.write_vectors(merged, self.written),
                self.vectors_of(ref, merged),
                frozenset(merged),
            )
        told = rng.choice(["reference", "bounds", "nothing"])
        groups: dict[Any, dict[str, Collection[int]]] = defaultdict(dict)
        for path, of_file in positions.items():
            groups[self.model.files[path].scope if told == "nothing" else path][path] = of_file
        files = [
            self.table.write_positions(group, self.written[next(iter(group))], told)
            for group in groups.values()
        ]
        return files, [], frozenset()

    def vectors_of(self, ref: str, paths: Iterable[str]) -> list[Entry]:
        """The live deletion vectors of data files."""
        wanted = set(paths)
        return [e for e in self._entries(ref) if e.file.is_vector and e.file.referenced in wanted]

    def entries_of(self, ref: str, paths: Collection[str]) -> list[Entry]:
        return [entry for entry in self._entries(ref) if entry.file.path in paths]


def _scope(spec: PartitionSpec, partition: Sequence[Any]) -> tuple[int, str]:
    return spec.spec_id, json.dumps(list(partition))


def _by_partition(
    rows: Sequence[Row], schema: Schema, spec: PartitionSpec
) -> list[tuple[list[Any], list[Row]]]:
    parts: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        parts[tuple(_partition(row, schema, spec))].append(row)
    return [(list(partition), part) for partition, part in parts.items()]


def _partition(row: Row, schema: Schema, spec: PartitionSpec) -> list[Any]:
    values = []
    for part in spec.fields:
        kind, value = schema.find_type(part.source_id), row[part.source_id]
        native = UUID(value) if str(kind) == "uuid" and value is not None else value
        values.append(part.transform.transform(kind)(native))
    return values
