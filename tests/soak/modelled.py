"""What all steps of a history share: drawing rows, writing files, and committing them to table and model."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any
from uuid import UUID

from pyiceberg.conversions import from_json as from_iceberg_json
from pyiceberg.conversions import to_json
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import DoubleType, LongType, NestedField, PrimitiveType

from tests.factories import WrittenFile
from tests.jobs import Jobs
from tests.soak.drawing import KEY, MEASURE, OTHER, REGION, SERIAL, Setup, Step
from tests.soak.model import DataFile, EqualityDelete, Model, State
from tests.soak.table import LiveFile, SoakTable, local_path
from tests.soak.values import VALUES, shown
from tests.soak.world import World

_numbers = count()


class ModelledTable:
    """A table and its model, changed together."""

    def __init__(self, world: World, setup: Setup) -> None:
        self.world = world
        self.setup = setup
        self.model = Model()
        self.key_sets = list(setup.key_sets)
        self.serial = count()
        self.written: dict[str, WrittenFile] = {}  # data files by path
        self.may_conflict = False  # whether something since its start may make a rewrite fail
        self.passing: set[int] = set()  # snapshots between two states that the model knows
        schema = Schema(
            NestedField(KEY, "k", _type(setup.key_type)),
            NestedField(OTHER, "other", _type(setup.other_type)),
            NestedField(REGION, "region", _type("string")),
            NestedField(SERIAL, "serial", LongType()),
            NestedField(MEASURE, "measure", DoubleType()),
        )
        name = f"{world.catalog.name}.histories.t{next(_numbers)}"
        self.table = SoakTable.make(
            world.spark,
            world.java_catalog,
            name,
            schema,
            {
                "format-version": str(setup.format_version),
                "write.delete.granularity": setup.granularity,
                "write.delete.mode": "merge-on-read",
                "write.merge.mode": "merge-on-read",
                "write.update.mode": "merge-on-read",
            },
        )
        self.index_place = world.directory / f"index-{next(_numbers)}"
        self.jobs = Jobs(world.spark, world.catalog, name, self.index_place)

    def do(self, step: Step) -> str:
        """Take a step, and say what it did."""
        operation: Callable[[Random], str] = getattr(self, step.kind)
        return operation(Random(step.seed))

    def remove(self) -> None:
        """Remove the table and its files."""
        identifier = self.table.iceberg.catalog.TableIdentifier.parse(self.table.identifier.partition(".")[2])
        self.world.java_catalog.dropTable(identifier, False)
        shutil.rmtree(local_path(self.table.metadata.location), ignore_errors=True)
        shutil.rmtree(self.index_place, ignore_errors=True)

    # What the table is now

    @property
    def schema(self) -> Schema:
        return self.table.metadata.schema()

    @property
    def version(self) -> int:
        return int(self.table.metadata.format_version)

    @property
    def kinds(self) -> dict[int, str]:
        """Types by field id; dropped columns keep their last one."""
        kinds: dict[int, str] = {}
        for schema in [*self.table.metadata.schemas, self.schema]:
            kinds |= {field.field_id: str(field.field_type) for field in schema.fields}
        return kinds

    def usable_key_sets(self, schema: Schema) -> list[tuple[int, ...]]:
        ids = {field.field_id for field in schema.fields}
        return [key_set for key_set in self.key_sets if ids.issuperset(key_set)]

    def _live_files(self) -> list[str]:
        """In the order in which they were written: their names differ from run to run.

        Without those that are live twice, since what others commit by path, Iceberg does to one or to all.
        """
        head = self.model.head
        return [path for path in self.model.files if path in head.files and path not in head.live_twice]

    # Drawing

    def _schema_and_spec(self, rng: Random) -> tuple[Schema, PartitionSpec]:
        """The current ones; now and then those of a writer that has not seen the last changes."""
        metadata = self.table.metadata
        schema, spec = self.schema, metadata.spec()
        if rng.random() < 0.12:
            spec = rng.choice(metadata.partition_specs)
        if rng.random() < 0.12:
            schema = rng.choice(metadata.schemas)
            ids = {field.field_id for field in schema.fields}
            if not ids.issuperset(field.source_id for field in spec.fields):
                schema = self.schema
        return schema, spec

    def _new_row(self, rng: Random, schema: Schema) -> dict[int, Any]:
        row: dict[int, Any] = {}
        for column in schema.fields:
            row[column.field_id] = self._new_value(rng, column.field_id, str(column.field_type))
        return row

    def _new_value(self, rng: Random, field_id: int, kind: str) -> Any:
        if field_id == SERIAL:
            return next(self.serial)
        if field_id == REGION:
            return rng.choice(["eu", "us", None])
        if kind == "double":
            return rng.choice([0.0, 1.5, -2.25, None])
        return rng.choice([*VALUES[kind], None])

    def _some_rows(self, rng: Random, schema: Schema, at_most: int) -> list[dict[int, Any]]:
        """Rows that are visible now, and some that may not be."""
        ids = [column.field_id for column in schema.fields]
        visible = list(self.model.visible(self.model.head))
        chosen = rng.sample(visible, min(len(visible), rng.randint(0, at_most)))
        rows = [dict(zip(ids, self.model.row(position, ids), strict=True)) for position in chosen]
        return rows + [self._new_row(rng, schema) for _ in range(rng.randint(0 if rows else 1, 2))]

    # Writing

    def _data_files(
        self, rng: Random, rows: Sequence[Mapping[int, Any]], schema: Schema, spec: PartitionSpec
    ) -> list[WrittenFile]:
        written = []
        for partition, part in self._by_partition(rows, schema, spec):
            half = len(part) // 2 if len(part) > 3 and rng.random() < 0.3 else 0
            for some in (part[:half], part[half:]) if half else (part,):
                written.append(self._data_file(rng, some, schema, spec, partition))
        return written

    def _data_file(
        self,
        rng: Random,
        rows: Sequence[Mapping[int, Any]],
        schema: Schema,
        spec: PartitionSpec,
        partition: list[Any],
    ) -> WrittenFile:
        constants = self._constants(schema, spec, partition)
        columns = list(schema.fields)
        if self.setup.leaves_out and rng.random() < 0.5:
            columns = [column for column in columns if column.field_id not in constants]
        file = self._write(rng, rows, schema, columns, spec, partition, {"content": "data"})
        fields = frozenset(column.field_id for column in columns)
        self._know(file, rows, fields, (spec.spec_id, json.dumps(partition)), constants)
        return file

    def _know(
        self,
        file: WrittenFile,
        rows: Iterable[Mapping[int, Any]],
        fields: frozenset[int],
        scope: tuple[int, str],
        constants: Mapping[int, Any],
    ) -> None:
        self.written[file.path] = file
        self.model.files[file.path] = DataFile(
            file.path, file.json["file-format"].lower(), tuple(rows), fields, scope, constants
        )

    def _equality_deletes(
        self,
        rng: Random,
        rows: Sequence[Mapping[int, Any]],
        key_set: Sequence[int],
        schema: Schema,
        spec: PartitionSpec,
    ) -> list[tuple[WrittenFile, EqualityDelete]]:
        """Deletes of the rows' keys, in the partitions where the rows would lie; their number comes later."""
        columns = [column for column in schema.fields if column.field_id in key_set or rng.random() < 0.15]
        is_global = _is_global(spec)
        written = []
        for partition, part in self._by_partition(rows, schema, spec):
            description = {"content": "equality-deletes", "equality-ids": list(key_set)}
            file = self._write(rng, part, schema, columns, spec, partition, description)
            scope = None if is_global else (spec.spec_id, json.dumps(partition))
            keys = frozenset(tuple(row[field_id] for field_id in key_set) for row in part)
            file_format = file.json["file-format"].lower()
            delete = EqualityDelete(file.path, file_format, tuple(key_set), keys, scope, 0)
            written.append((file, delete))
        return written

    def _write(
        self,
        rng: Random,
        rows: Sequence[Mapping[int, Any]],
        schema: Schema,
        columns: Sequence[NestedField],
        spec: PartitionSpec,
        partition: list[Any],
        description: Mapping[str, Any],
    ) -> WrittenFile:
        names = {column.field_id: column.name for column in columns}
        kinds = {column.name: str(column.field_type) for column in columns}
        named = [{name: row[field_id] for field_id, name in names.items()} for row in rows]
        self.table.file_format = self.setup.file_format
        if self.setup.other_formats and rng.random() < 0.5:
            self.table.file_format = rng.choice(["parquet", "orc", "avro"])
        if self.table.file_format == "orc" and "uuid" in kinds.values():
            self.table.file_format = "parquet"  # pyarrow writes no UUIDs to ORC
        try:
            selected = schema.select(*kinds)
            return self.table.write(named, kinds, selected, spec, partition, description)
        finally:
            self.table.file_format = "parquet"  # of position deletes

    def _by_partition(
        self, rows: Sequence[Mapping[int, Any]], schema: Schema, spec: PartitionSpec
    ) -> list[tuple[list[Any], list[Mapping[int, Any]]]]:
        parts: dict[str, list[Mapping[int, Any]]] = defaultdict(list)
        for row in rows:
            parts[json.dumps(_partition(row, schema, spec))].append(row)
        return [(json.loads(partition), part) for partition, part in parts.items()]

    def _constants(self, schema: Schema, spec: PartitionSpec, partition: list[Any]) -> dict[int, Any]:
        constants = {}
        for part, value in zip(spec.fields, partition, strict=True):
            if isinstance(part.transform, IdentityTransform):
                kind = schema.find_type(part.source_id)
                assert isinstance(kind, PrimitiveType)
                native = None if value is None else from_iceberg_json(kind, value)
                constants[part.source_id] = shown(str(kind), native)
        return constants

    # Committing

    def _committed(self, state: Callable[[int], State]) -> None:
        """Note the state of a new head, given its sequence number."""
        self._note(state(self.table.sequence_number))

    def _note(self, state: State) -> None:
        self.model.head = state
        snapshot_id = self.table.snapshot_id
        if snapshot_id is not None:
            self.model.snapshots[snapshot_id] = state

    def _commit(
        self,
        data: Sequence[WrittenFile] = (),
        equality: Sequence[tuple[WrittenFile, EqualityDelete]] = (),
        positions: Mapping[str, Iterable[int]] | None = None,
        *,
        merges: bool = True,
    ) -> None:
        """One commit of data files, equality deletes and deleted positions."""
        head = self.model.head
        new = {path: set(of_file) for path, of_file in (positions or {}).items()}
        if new:
            self.may_conflict = True
        added, removed = self._position_files(new, merges=merges)
        files = [*data, *(file for file, _ in equality), *added]
        if files == [*data]:
            self.table.commit(*files)
        else:
            self.table.replace_deletes(files, removed)
        self._committed(
            lambda number: (
                head.with_files([file.path for file in data], number)
                .with_deletes([_numbered(delete, number) for _, delete in equality])
                .with_positions([(path, at) for path, of_file in new.items() for at in of_file], number)
            )
        )

    def _position_files(
        self, positions: Mapping[str, set[int]], *, merges: bool
    ) -> tuple[list[WrittenFile], list[LiveFile]]:
        """Delete files to add and to remove: as Spark does, merged with what speaks of one data file only.

        In format version 3 every vector holds all that was there.
        """
        if not positions:
            return [], []
        merged = {path: set(of_file) for path, of_file in positions.items()}
        removed = []
        vectors = self.version >= 3
        if vectors or merges:
            for live in self.table.live(deletes=True):
                if live.content != "position-deletes":
                    continue
                touched = {path: of_file for path, of_file in live.positions().items() if path in merged}
                for path, found in touched.items():
                    if min(self.model.head.files.get(path, (0,))) <= live.sequence_number:
                        merged[path] |= found
                if touched and live.referenced is not None:
                    removed.append(live)
        if vectors:
            return self.table.deletion_vectors({path: sorted(at) for path, at in merged.items()}), removed
        if merges:
            return self.table.position_deletes({path: sorted(at) for path, at in merged.items()}), removed
        by_scope: dict[tuple[int, str], dict[str, set[int]]] = defaultdict(dict)
        for path, of_file in positions.items():
            by_scope[self.model.files[path].scope][path] = of_file
        return [self.table.positions_of_partition(part) for part in by_scope.values()], []

    def live_deletes(self) -> list[EqualityDelete]:
        live = self.table.live_equality_deletes()
        return [delete for delete in self.model.head.deletes if delete.path in live]

    def java_reads(self, deletes: Iterable[EqualityDelete], fields: Sequence[int]) -> bool:
        """Whether Iceberg Java reads a snapshot with these equality deletes and these columns.

        Version 1.12 can't if a key column was dropped, and misses UUIDs in files that don't call them that.
        """
        keys = {field_id for delete in deletes for field_id in delete.fields}
        return keys.issubset(fields) and "uuid" not in {self.kinds[field_id] for field_id in keys}


def _numbered(delete: EqualityDelete, sequence_number: int) -> EqualityDelete:
    return replace(delete, sequence_number=sequence_number)


def _type(kind: str) -> PrimitiveType:
    return NestedField.model_validate({"id": 0, "name": "", "type": kind, "required": False}).field_type  # type: ignore[return-value]


def _is_global(spec: PartitionSpec) -> bool:
    return all(isinstance(part.transform, VoidTransform) for part in spec.fields)


def _partition(row: Mapping[int, Any], schema: Schema, spec: PartitionSpec) -> list[Any]:
    values = []
    for part in spec.fields:
        kind = schema.find_type(part.source_id)
        value = row.get(part.source_id)
        native = UUID(value) if str(kind) == "uuid" and value is not None else value
        result = part.transform.transform(kind)(native)
        result_type = part.transform.result_type(kind)
        assert isinstance(result_type, PrimitiveType)
        values.append(None if result is None else to_json(result_type, result))
    return values
