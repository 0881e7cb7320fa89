"""One history: a table's setup, random operations on it, and the comparison of its readers with the model.

Invariant: a history is a pure function of its steps. Each step draws what it does from its own seed and the
table as it is then, so that steps can be left out.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyiceberg.conversions import from_json as from_iceberg_json
from pyiceberg.conversions import to_json
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import DoubleType, LongType, NestedField, PrimitiveType
from pyspark.sql import SparkSession

from tests.factories import Catalog, WrittenFile, sqlite_catalog
from tests.jobs import Jobs
from tests.soak.model import DataFile, EqualityDelete, Model, State, applies
from tests.soak.table import LiveFile, SoakTable, items, local_path
from tests.soak.values import KEY_TYPES, PARTITION_TYPES, VALUES, WIDER, WITH_DEFAULTS, shown
from worker.job import JobError

KEY, OTHER, REGION, SERIAL, MEASURE = 1, 2, 3, 4, 5  # field ids of the first columns
_numbers = count()


@dataclass(frozen=True)
class Step:
    """One operation; what it does in detail follows from its seed and the table."""

    kind: str
    seed: int


@dataclass(frozen=True)
class Setup:
    """What is fixed for a whole history."""

    format_version: int
    key_type: str
    other_type: str
    key_sets: tuple[tuple[int, ...], ...]
    file_format: str
    other_formats: bool  # some files in other formats
    granularity: str
    leaves_out: bool  # partition columns may be missing from data files, as in imported tables
    small_bounds: bool  # of the worker: a few rows fill a batch, a row group and a run
    shuffles: bool
    uses_spark: bool

    @classmethod
    def draw(cls, rng: Random) -> Setup:
        key_sets = [(KEY,), (KEY, OTHER), (OTHER,), (KEY, REGION), (KEY, OTHER, REGION)]
        chosen = tuple(rng.sample(key_sets, rng.choice([1, 1, 2, 3])))
        return cls(
            format_version=rng.choice([2, 3]),
            key_type=rng.choice(KEY_TYPES),
            other_type=rng.choice(KEY_TYPES),
            key_sets=chosen if rng.random() > 0.04 else (*chosen, (MEASURE,)),
            file_format=rng.choices(["parquet", "orc", "avro"], [16, 1, 1])[0],
            other_formats=rng.random() < 0.1,
            granularity=rng.choice(["file", "partition"]),
            leaves_out=rng.random() < 0.15,
            small_bounds=rng.random() < 0.6,
            shuffles=rng.random() < 0.04,
            uses_spark=rng.random() < 0.05,
        )

    def __str__(self) -> str:
        flags = ("other_formats", "leaves_out", "small_bounds", "shuffles", "uses_spark")
        return (
            f"V{self.format_version} {self.file_format}, key {self.key_type}, other {self.other_type},"
            f" key sets {self.key_sets}, granularity {self.granularity}"
            + "".join(f", {flag}" for flag in flags if getattr(self, flag))
        )


WEIGHTS = {
    "append": 12,
    "upsert": 18,
    "delete": 12,
    "delete_positions": 8,
    "merge": 6,
    "start_rewrite": 6,
    "end_rewrite": 7,
    "drop_file": 2,
    "add_column": 3,
    "drop_column": 2,
    "rename_column": 2,
    "move_column": 1,
    "widen_column": 2,
    "change_spec": 6,
    "roll_back": 3,
    "cherry_pick": 2,
    "expire": 2,
    "upgrade": 2,
    "index": 9,
    "compact": 4,
    "verify": 2,
    "rebuild": 1,
    "convert": 10,
}
SPARK_WEIGHTS = {"spark_merge": 12, "spark_rewrite": 10}


def draw(seed: int) -> tuple[Setup, list[Step]]:
    """The history of a seed."""
    rng = Random(seed)
    setup = Setup.draw(rng)
    weights = {**WEIGHTS, **(SPARK_WEIGHTS if setup.uses_spark else {})}
    first = ["change_spec", "append"] if rng.random() < 0.6 else ["append"]
    kinds = rng.choices(list(weights), list(weights.values()), k=rng.randint(6, 13))
    return setup, [Step(kind, rng.getrandbits(32)) for kind in (*first, *kinds, "finish")]


class HistoryError(AssertionError):
    """A history that contradicts the model; `lines` tell it."""

    def __init__(self, lines: Sequence[str], cause: BaseException) -> None:
        first_lines = "\n".join(str(cause).splitlines()[:3])
        super().__init__("\n".join([*lines, f"{type(cause).__name__}: {first_lines}"]))
        self.lines = list(lines)
        self.cause = cause


@dataclass
class World:
    """What all histories of a process share."""

    spark: SparkSession
    catalog: Catalog
    directory: Path
    java_catalog: Any = field(init=False)

    @classmethod
    def create(cls, spark: SparkSession, directory: Path) -> World:
        """In a session of its own, with a catalog in `directory`."""
        session = spark.newSession()
        return cls(session, sqlite_catalog(session, "soak", directory), directory)

    def __post_init__(self) -> None:
        jvm: Any = self.spark.sparkContext._jvm
        # Every table has a schema of its own: compiling code for it takes longer than reading its rows.
        self.spark.conf.set("spark.sql.codegen.wholeStage", "false")
        self.spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self.catalog.name}.histories")
        self.java_catalog = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(
            self.spark._jsparkSession, self.catalog.name
        )

    def run(self, setup: Setup, steps: Sequence[Step]) -> list[str]:
        """Run a history and return what it did. Raises HistoryError."""
        history = History(self, setup)
        try:
            with history.bounds():
                for step in steps:
                    history.take(step)
        except Exception as error:
            raise HistoryError([str(setup), *history.lines], error) from error
        finally:
            history.remove()
        return history.lines


@dataclass(frozen=True)
class Rewrite:
    """A compaction under way: planned on a snapshot, its files written, not committed yet."""

    snapshot_id: int
    sequence_number: int
    old: tuple[str, ...]
    new: tuple[WrittenFile, ...]


class History:
    """A table and its model, changed together."""

    def __init__(self, world: World, setup: Setup) -> None:
        self.world = world
        self.setup = setup
        self.lines: list[str] = []
        self.model = Model()
        self.key_sets = list(setup.key_sets)
        self.serial = count()
        self.written: dict[str, WrittenFile] = {}  # data files by path
        self.rewrite: Rewrite | None = None
        self.may_conflict = False  # whether something since its start may make the rewrite fail
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

    def remove(self) -> None:
        """Remove the table and its files."""
        identifier = self.table.iceberg.catalog.TableIdentifier.parse(self.table.identifier.partition(".")[2])
        self.world.java_catalog.dropTable(identifier, False)
        shutil.rmtree(local_path(self.table.metadata.location), ignore_errors=True)
        shutil.rmtree(self.index_place, ignore_errors=True)

    def take(self, step: Step) -> None:
        """Do one step; `lines` say what it did."""
        operation: Callable[[Random], str] = getattr(self, step.kind)
        self.lines.append(f"{step.kind} ...")
        said = operation(Random(step.seed))
        self.lines[-1] = f"{step.kind}: {self._with_short_names(said)}"

    def _with_short_names(self, said: str) -> str:
        """Names of data files differ from run to run; their numbers don't."""
        for number, path in enumerate(self.model.files):
            said = said.replace(path, f"file {number}")
        return said

    @contextmanager
    def bounds(self) -> Iterator[None]:
        """Bounds of the worker so small that these tables exceed them."""
        bounds: dict[str, Any] = {}
        if self.setup.small_bounds:
            bounds |= {
                "worker.file_formats.BATCH_ROWS": 3,
                "worker.read.BATCH_ROWS": 3,
                "worker.sorted_runs.ROW_GROUP_ROWS": 2,
                "worker.lookup._READ_ROWS": 5,
                "worker.lookup._TASK_ROWS": 4,
                "worker.index.RUN_ROWS": 8,
                "worker.index.MIN_TASK_ROWS": 8,
                "worker.index.COMMIT_ROWS": 20,
                "worker.index.DICTIONARY_FILES": 2,
                "worker.compaction.TASK_ROWS": 8,
                "worker.compaction.FILE_ROWS": 4,
                "worker.compaction.RUNS_KEPT": 2,
                "worker.conversion.FILES_PER_DELETES_TASK": 2,
                "worker.conversion.MEMORY_POSITIONS": 4,
                "worker.positions.MEMORY_POSITIONS": 4,
                "worker.deletes._ROW_GROUP_ROWS": 2,
            }
        if self.setup.shuffles:
            bounds |= {"worker.resolution.DRIVER_KEYS": 3, "worker.resolution.SAMPLES_PER_RANGE": 4}
        patches = [patch(name, value) for name, value in bounds.items()]
        try:
            for one in patches:
                one.start()
            yield
        finally:
            for one in patches:
                one.stop()

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
                .with_positions([(path, at) for path, of_file in new.items() for at in of_file])
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
                    if self.model.head.files.get(path, 0) <= live.sequence_number:
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

    # Operations: rows

    def append(self, rng: Random) -> str:
        schema, spec = self._schema_and_spec(rng)
        rows = [self._new_row(rng, schema) for _ in range(rng.randint(1, 14))]
        files = self._data_files(rng, rows, schema, spec)
        self._commit(files)
        return f"{len(rows)} rows in {len(files)} files, schema {schema.schema_id}, spec {spec.spec_id}"

    def upsert(self, rng: Random) -> str:
        """Rows and the deletes of their keys in one commit; repeated keys among them as Flink writes them."""
        schema, spec = self._schema_and_spec(rng)
        key_sets = self.usable_key_sets(schema)
        if not key_sets:
            return "no key"
        key_set = rng.choice(key_sets)
        rows = []
        for row in self._some_rows(rng, schema, 5):
            for _ in range(rng.choice([1, 1, 1, 2])):
                fresh = self._new_row(rng, schema)
                rows.append({**row, **{i: value for i, value in fresh.items() if i not in key_set}})
        deletes = self._equality_deletes(rng, rows, key_set, schema, spec)
        files = self._data_files(rng, rows, schema, spec)
        positions: dict[str, list[int]] = {}
        if rng.random() < 0.5:
            for file in files:
                last = {}
                for at, kept in enumerate(self.model.files[file.path].rows):
                    last[tuple(kept.get(i) for i in key_set)] = at
                older = set(range(len(self.model.files[file.path].rows))) - set(last.values())
                if older:
                    positions[file.path] = sorted(older)
        self._commit(files, deletes, positions)
        return f"{len(rows)} rows by {key_set}, schema {schema.schema_id}, spec {spec.spec_id}" + (
            f", positions {list(positions.values())}" if positions else ""
        )

    def delete(self, rng: Random) -> str:
        """Equality deletes of one or two key sets in one commit."""
        schema, spec = self._schema_and_spec(rng)
        key_sets = self.usable_key_sets(schema)
        deletes = []
        for key_set in rng.sample(key_sets, min(len(key_sets), rng.choice([1, 1, 2]))):
            rows = self._some_rows(rng, schema, 6)
            deletes += self._equality_deletes(rng, rows, key_set, schema, spec)
        if not deletes:
            return "no key"
        self._commit(equality=deletes)
        return "; ".join(
            f"{delete.fields} in {sorted(delete.keys, key=repr)} of {delete.scope or 'all'}"
            for _, delete in deletes
        )

    def delete_positions(self, rng: Random) -> str:
        """Positions, also of rows that are deleted already."""
        positions = self._some_positions(rng)
        if not positions:
            return "no data files"
        merges = rng.random() < 0.5
        self._commit(positions=positions, merges=merges)
        return f"{positions} {'merged' if merges else 'by partition'}"

    def _live_files(self) -> list[str]:
        """In the order in which they were written: their names differ from run to run."""
        return [path for path in self.model.files if path in self.model.head.files]

    def _some_positions(self, rng: Random) -> dict[str, list[int]]:
        live = self._live_files()
        chosen = rng.sample(live, min(len(live), rng.randint(1, 3)))
        return {path: self._sample_rows(rng, path) for path in chosen}

    def _sample_rows(self, rng: Random, path: str) -> list[int]:
        rows = len(self.model.files[path].rows)
        return sorted(rng.sample(range(rows), rng.randint(1, min(3, rows))))

    def merge(self, rng: Random) -> str:
        """Visible rows replaced as Spark's MERGE does: their positions and new data files in one commit."""
        visible = list(self.model.visible(self.model.head))
        if not visible:
            return "no rows"
        chosen = rng.sample(visible, min(len(visible), rng.randint(1, 5)))
        schema, spec = self.schema, self.table.metadata.spec()
        ids = [column.field_id for column in schema.fields]
        rows = []
        positions: dict[str, list[int]] = defaultdict(list)
        for position in chosen:
            positions[position[0]].append(position[1])
            row = dict(zip(ids, self.model.row(position, ids), strict=True))
            if rng.random() < 0.8:
                rows.append(row | ({SERIAL: next(self.serial)} if SERIAL in row else {}))
        files = self._data_files(rng, rows, schema, spec)
        self._commit(files, positions=positions)
        return f"{len(chosen)} rows of {len(positions)} files, {len(rows)} again"

    # Operations: files

    def start_rewrite(self, rng: Random) -> str:
        """Compaction reads files of the head and writes others; it commits later, or never."""
        live = self._live_files()
        if not live:
            return "no data files"
        old = tuple(rng.sample(live, rng.randint(1, len(live))))
        schema, spec = self.schema, self.table.metadata.spec()
        ids = [column.field_id for column in schema.fields]
        rows = [
            dict(zip(ids, self.model.row(position, ids), strict=True))
            for position in self.model.visible(self.model.head)
            if position[0] in old
        ]
        rng.shuffle(rows)
        new = tuple(self._data_files(rng, rows, schema, spec))
        snapshot_id = self.table.snapshot_id
        assert snapshot_id is not None
        self.rewrite = Rewrite(snapshot_id, self.table.sequence_number, old, new)
        self.may_conflict = False
        return f"{len(old)} of {len(live)} files into {len(new)}, {len(rows)} rows"

    def end_rewrite(self, rng: Random) -> str:
        said = f"starts: {self.start_rewrite(rng)}; " if self.rewrite is None else ""
        rewrite, self.rewrite = self.rewrite, None
        if rewrite is None:
            return said
        head = self.model.head
        try:
            self.table.rewrite(
                rewrite.snapshot_id,
                rewrite.sequence_number,
                [self.written[path] for path in rewrite.old],
                rewrite.new,
            )
        except Py4JJavaError as error:
            if not self.may_conflict:
                raise
            return f"{said}conflict: {_message(error)}"
        self._note(
            head.without_files(rewrite.old).with_files(
                [file.path for file in rewrite.new], rewrite.sequence_number
            )
        )
        return f"{said}{len(rewrite.old)} files became {len(rewrite.new)}, number {rewrite.sequence_number}"

    def drop_file(self, rng: Random) -> str:
        live = self._live_files()
        if not live:
            return "no data files"
        path = rng.choice(live)
        head = self.model.head
        self.table.drop_file(self.written[path])
        self.may_conflict = True
        self._note(head.without_files([path]))
        return path

    # Operations: schema and specs

    def add_column(self, rng: Random) -> str:
        kind = rng.choice([*WITH_DEFAULTS, *KEY_TYPES])
        name = f"c{self.table.metadata.last_column_id + 1}"
        iceberg = self.table.iceberg
        java_type = iceberg.types.Types.fromPrimitiveString(kind)
        update, default = self.table.java.updateSchema(), None
        if self.version >= 3 and kind in WITH_DEFAULTS and rng.random() < 0.6:
            default = rng.choice(VALUES[kind][1:])
            literal = iceberg.expressions.Expressions.lit(str(default) if kind == "date" else default)
            update.addColumn(name, java_type, None, literal.to(java_type)).commit()
        else:
            update.addColumn(name, java_type).commit()
        self.table.forget()
        field_id = self.schema.find_field(name).field_id
        if default is not None:
            self.model.defaults[field_id] = default
        if rng.random() < 0.5:
            self.key_sets.append(rng.choice([(field_id,), (KEY, field_id), (REGION, field_id)]))
        return f"{name} {kind} default {default!r}, key sets {self.key_sets}"

    def drop_column(self, rng: Random) -> str:
        """A column that no spec needs; equality deletes may."""
        sources = {part.source_id for spec in self.table.metadata.partition_specs for part in spec.fields}
        if any(MEASURE in key_set for key_set in self.key_sets):
            sources.add(MEASURE)  # its deletes stay, and Iceberg Java can't read them without the column
        names = [column.name for column in self.schema.fields if column.field_id not in sources]
        if len(self.schema.fields) < 3 or not names:
            return "none left"
        name = rng.choice(names)
        self.table.java.updateSchema().deleteColumn(name).commit()
        self.table.forget()
        return name

    def rename_column(self, rng: Random) -> str:
        """Now and then to the former name of another column."""
        column = rng.choice(self.schema.fields)
        taken = {one.name for one in self.schema.fields}
        former = {one.name for schema in self.table.metadata.schemas for one in schema.fields} - taken
        name = rng.choice([*sorted(former), f"{column.name}x"])
        if name in taken:
            return "taken"
        self.table.java.updateSchema().renameColumn(column.name, name).commit()
        self.table.forget()
        return f"{column.name} to {name}"

    def move_column(self, rng: Random) -> str:
        name = rng.choice(self.schema.fields).name
        self.table.java.updateSchema().moveFirst(name).commit()
        self.table.forget()
        return name

    def widen_column(self, rng: Random) -> str:
        narrow = [column for column in self.schema.fields if str(column.field_type) in WIDER]
        if not narrow:
            return "nothing to widen"
        column = rng.choice(narrow)
        wide = self.table.iceberg.types.Types.fromPrimitiveString(WIDER[str(column.field_type)])
        self.table.java.updateSchema().updateColumn(column.name, wide).commit()
        self.table.forget()
        return f"{column.name} from {column.field_type}"

    def change_spec(self, rng: Random) -> str:
        """Remove all fields, or some, and add one or two."""
        update = self.table.java.updateSpec()
        spec = self.table.metadata.spec()
        removed = [part for part in spec.fields if rng.random() < 0.8]
        for part in removed:
            update.removeField(part.name)
        left = {part.source_id for part in spec.fields}
        expressions = self.table.iceberg.expressions.Expressions
        added = []
        for column in rng.sample(self.schema.fields, rng.choice([0, 1, 1, 1, 2])):
            kind = str(column.field_type)
            if column.field_id in (SERIAL, MEASURE) or column.field_id in left or kind == "double":
                continue
            name = f"p{len(self.table.metadata.partition_specs)}_{column.field_id}"
            if kind in PARTITION_TYPES and rng.random() < 0.6:
                term, said = expressions.ref(column.name), "identity"
            elif kind == "boolean":
                continue
            else:
                buckets = rng.choice([1, 2, 3])
                term, said = expressions.bucket(column.name, buckets), f"bucket {buckets}"
            update.addField(name, term)
            added.append(f"{said} of {column.name}")
        if not removed and not added:
            return "nothing"
        update.commit()
        self.table.forget()
        return f"now {self.table.metadata.spec()}"

    # Operations: snapshots

    def roll_back(self, rng: Random) -> str:
        """To any kept snapshot, back or forth."""
        kept = [snapshot_id for snapshot_id in self.model.snapshots if snapshot_id != self.table.snapshot_id]
        if not kept:
            return "no other snapshot"
        snapshot_id = rng.choice(kept)
        self.table.java.manageSnapshots().setCurrentSnapshot(snapshot_id).commit()
        self.may_conflict = True
        self.model.head = self.model.snapshots[snapshot_id]
        return f"snapshot {list(self.model.snapshots).index(snapshot_id)} of {len(self.model.snapshots)}"

    def cherry_pick(self, rng: Random) -> str:
        """An append that was rolled back comes again, with a new sequence number."""
        head_id = self.table.snapshot_id
        ancestors = set()
        snapshot = self.table.java.currentSnapshot()
        while snapshot is not None:
            ancestors.add(snapshot.snapshotId())
            parent = snapshot.parentId()
            snapshot = None if parent is None else self.table.java.snapshot(parent)
        picked = [
            snapshot_id
            for snapshot_id in self.model.snapshots
            if snapshot_id not in ancestors
            and self.table.java.snapshot(snapshot_id).operation() == "append"
            and not self._appended(snapshot_id) & self.model.head.files.keys()
        ]
        if not picked:
            return "nothing to pick"
        snapshot_id = rng.choice(picked)
        paths, state = self._appended(snapshot_id), self.model.head
        try:
            self.table.java.manageSnapshots().cherrypick(snapshot_id).commit()
        except Py4JJavaError as error:
            return f"refused: {_message(error)}"
        self.may_conflict = True
        new_id = self.table.snapshot_id
        if new_id == snapshot_id:  # its parent was the head
            self.model.head = self.model.snapshots[snapshot_id]
        elif new_id != head_id:
            self._committed(
                lambda number: state.with_files([path for path in self.model.files if path in paths], number)
            )
        return f"{len(paths)} files"

    def _appended(self, snapshot_id: int) -> set[str]:
        files = self.table.java.snapshot(snapshot_id).addedDataFiles(self.table.java.io())
        return {str(file.location()) for file in items(files)}

    def expire(self, rng: Random) -> str:
        """Drops snapshots, all but the head or some, and the files that only they need.

        By their ids: expiring by age, Iceberg Java 1.12 deletes a Puffin file as soon as one of its vectors
        was replaced (`IncrementalFileCleanup`), though others in it are live.
        """
        head_id = self.table.snapshot_id
        others = [snapshot_id for snapshot_id in self.model.snapshots if snapshot_id != head_id]
        expired = others if rng.random() < 0.5 else others[: rng.randint(0, len(others))]
        if not expired:
            return "nothing to expire"
        update = self.table.java.expireSnapshots()
        for snapshot_id in expired:
            update.expireSnapshotId(snapshot_id)
        update.commit()
        for snapshot_id in expired:
            del self.model.snapshots[snapshot_id]
        self.may_conflict = True
        return f"{len(expired)} of {len(others) + 1} snapshots"

    def upgrade(self, rng: Random) -> str:
        if self.version >= 3:
            return "is V3"
        self.table.java.updateProperties().set("format-version", "3").commit()
        self.table.forget()
        self.may_conflict = True
        return "to V3"

    # Operations: Spark

    def spark_merge(self, rng: Random) -> str:
        """MERGE INTO, which reads the table: its rows must be the model's."""
        if SERIAL not in {column.field_id for column in self.schema.fields}:
            return "no serial"
        name = self.schema.find_column_name(SERIAL)
        visible = list(self.model.visible(self.model.head))
        chosen = rng.sample(visible, min(len(visible), rng.randint(1, 4)))
        old = [self.model.row(position, [SERIAL])[0] for position in chosen]
        pairs = [(serial, next(self.serial)) for serial in old if serial is not None]
        if not pairs:
            return "no rows"
        values = ", ".join(f"({serial}L, {new}L)" for serial, new in pairs)
        self.world.spark.sql(
            f"MERGE INTO {self.table.identifier} t USING (VALUES {values} AS v(old, new)) s"
            f" ON t.{name} = s.old WHEN MATCHED THEN UPDATE SET {name} = s.new"
        )
        fields = [column.field_id for column in self.schema.fields]
        at = fields.index(SERIAL)
        renamed = dict(pairs)
        expected: Counter[tuple[Any, ...]] = Counter()
        for row, times in self.model.rows(self.model.head, fields).items():
            expected[(*row[:at], renamed.get(row[at], row[at]), *row[at + 1 :])] += times
        gone = [position for position in visible if self.model.row(position, [SERIAL])[0] in renamed]
        self._learn(self.model.head.with_positions(gone), expected)
        return f"{pairs}"

    def spark_rewrite(self, rng: Random) -> str:
        """`rewrite_data_files` of all files."""
        if not self.model.head.files:
            return "no data files"
        fields = [column.field_id for column in self.schema.fields]
        expected = self.model.rows(self.model.head, fields)
        self.world.spark.sql(
            f"CALL {self.world.catalog.name}.system.rewrite_data_files(table => '{self.table.identifier}',"
            " options => map('rewrite-all', 'true'))"
        )
        self._learn(self.model.head, expected)
        return f"{sum(expected.values())} rows in {len(self.model.head.files)} files"

    def _learn(self, state: State, expected: Counter[tuple[Any, ...]]) -> None:
        """Take over the data files that Spark wrote, once their rows are what they should be."""
        self.table.refresh()
        self.may_conflict = True
        live = self.table.live(deletes=False)
        state = state.without_files(sorted(state.files.keys() - {file.path for file in live}))
        for file in live:
            if file.path in state.files:
                continue
            spec = self.table.metadata.specs()[file.file.json["spec-id"]]
            partition = file.file.json["partition"]
            if isinstance(partition, dict):
                partition = list(partition.values())
            self.table.knows(file.path, spec.spec_id, partition)
            read = pq.read_table(local_path(file.path), partitioning=None)
            ids = [int(column.metadata[b"PARQUET:field_id"]) for column in read.schema]
            read = read.select([at for at, field_id in enumerate(ids) if field_id in self.kinds])
            ids = [field_id for field_id in ids if field_id in self.kinds]  # not of row lineage
            columns = [
                [shown(self.kinds[field_id], value) for value in column.to_pylist()]
                for field_id, column in zip(ids, read.columns, strict=True)
            ]
            rows = [dict(zip(ids, values, strict=True)) for values in zip(*columns, strict=True)]
            self._know(
                file.file,
                rows,
                frozenset(ids),
                (spec.spec_id, json.dumps(partition)),
                self._constants(self.schema, spec, partition),
            )
            state = state.with_files([file.path], file.sequence_number)
        self._note(state)
        fields = [column.field_id for column in self.schema.fields]
        assert_same(self.model.rows(state, fields), expected, "what Spark wrote")

    # Operations: jobs

    def index(self, rng: Random) -> str:
        """Of the key sets of live equality deletes, and sometimes of those that are declared."""
        return self._index_job("index", rng)

    def rebuild(self, rng: Random) -> str:
        return self._index_job("rebuild", rng)

    def _index_job(self, kind: str, rng: Random) -> str:
        declared: dict[str, Any] = {}
        if rng.random() < 0.5:
            usable = [key_set for key_set in self.usable_key_sets(self.schema) if MEASURE not in key_set]
            declared["key_sets"] = [[self.schema.find_column_name(i) for i in key_set] for key_set in usable]
        try:
            result = self.jobs.run(kind, **declared).result
        except JobError as error:
            # A table without keys, or with float keys alone, has nothing to index.
            if error.code not in ("no_key_set", "float_key"):
                raise
            return error.code
        return "; ".join(f"{one['columns']}: {one['files_indexed']} files" for one in result["key_sets"])

    def compact(self, rng: Random) -> str:
        result = self.jobs.run("compact").result
        return "; ".join(
            f"{one['columns']}: {one['sorted_runs_before']} runs became {one['sorted_runs_after']}"
            for one in result["key_sets"]
        )

    def verify(self, rng: Random) -> str:
        result = self.jobs.run("verify").result
        differences = [one["examples"] for one in result["key_sets"] if one["differences"]]
        assert not differences, f"the verify job found {differences}"
        return f"{len(result['key_sets'])} indexes"

    def convert(self, rng: Random) -> str:
        """A conversion; sometimes with a dry run first, or with another writer just before its commit."""
        said = []
        if rng.random() < 0.15:
            said.append(self._check(rng, before=True))
        foretold = None
        if rng.random() < 0.2:
            foretold = self.jobs.run("convert", dry_run=True).result["rows_deleted"]
        between = None
        if rng.random() < 0.25 and not self._has_orc:
            kinds = ["upsert", "delete", "merge", "delete_positions", "end_rewrite", "drop_file", "roll_back"]
            between = Step(rng.choice(kinds), rng.getrandbits(32))
        said.append(self._convert(foretold, between))
        said.append(self._check(rng))
        if rng.random() < 0.3:
            said.append(self._check_past(rng))
        return ", ".join(said)

    def _convert(self, foretold: int | None = None, between: Step | None = None) -> str:
        pending = self.table.live_equality_deletes()
        foreseen = self._foreseen(pending)
        late: set[str] = set()
        overtaken: list[str] = []

        def before_commit() -> None:
            if between is None or overtaken:
                return
            overtaken.append(between.kind)
            self._note_new_snapshots()
            known = self.table.live_equality_deletes()
            overtaken[0] += " (" + getattr(self, between.kind)(Random(between.seed)) + ")"
            # Those that a rollback brings back count too.
            late.update(self.table.live_equality_deletes() - known)

        self.jobs.reporter.before_commit = before_commit
        try:
            result = self.jobs.run("convert").result
        finally:
            self.jobs.reporter.before_commit = lambda: None
        self._note_new_snapshots()
        self.may_conflict = True
        refused = {one["file_path"]: one["code"] for one in result["unconvertible"]}
        left = self.table.live_equality_deletes()
        if overtaken:
            foreseen |= {path: code for path, code in self._foreseen(late).items() if path in refused}
            foreseen = {path: code for path, code in foreseen.items() if path in refused or path in left}
            assert left <= foreseen.keys() | late, f"left without reason: {left - foreseen.keys() - late}"
        else:
            assert left == foreseen.keys(), f"left: {left}, foreseen: {foreseen}"
            if foretold is not None:
                deleted = result["rows_deleted"]
                assert deleted == foretold, f"{deleted} rows deleted, the dry run foretold {foretold}"
        assert refused == foreseen, f"refused: {refused}, foreseen: {foreseen}"
        sources = [one["source"] for one in result["key_sets"]]
        return f"{len(pending)} delete files, {result['rows_deleted']} rows by {sources}" + (
            f", overtaken by {overtaken[0]}" if overtaken else ""
        )

    def _note_new_snapshots(self) -> None:
        """Commits of a conversion show what the head shows."""
        self.table.refresh()
        for snapshot_id in self.table.snapshot_ids - self.model.snapshots.keys():
            self.model.snapshots[snapshot_id] = self.model.head

    def _live_deletes(self) -> list[EqualityDelete]:
        live = self.table.live_equality_deletes()
        return [delete for delete in self.model.head.deletes if delete.path in live]

    @property
    def _has_orc(self) -> bool:
        return self.setup.file_format == "orc" or self.setup.other_formats

    def _foreseen(self, live: set[str]) -> dict[str, str]:
        """Equality delete files that must stay, with the code of the reason."""
        kinds, head = self.kinds, self.model.head
        refused = {}
        for delete in head.deletes:
            if delete.path not in live:
                continue
            ticks = {i for i in delete.fields if kinds[i] in ("timestamp", "timestamptz")}
            files = [
                file
                for file in map(self.model.files.__getitem__, head.files)
                if applies(delete, file, head.files[file.path])
            ]
            if any(kinds[i] == "double" for i in delete.fields):
                refused[delete.path] = "float_key"
            elif ticks and (
                delete.file_format == "orc"
                or any(file.file_format == "orc" and ticks & file.fields for file in files)
            ):
                refused[delete.path] = "unsupported_orc_timestamp"
        return refused

    # Readers against the model

    def _check(self, rng: Random, *, before: bool = False) -> str:
        """The head's rows, by one reader."""
        if self.table.snapshot_id is None:
            return "no snapshot"
        fields = [column.field_id for column in self.schema.fields]
        kinds = [str(column.field_type) for column in self.schema.fields]
        expected = self.model.rows(self.model.head, fields)
        when = "before the conversion" if before else "after it"
        deletes = self._live_deletes()
        # DuckDB 1.5.5 hides rows with null keys where equality deletes apply.
        if self._suits_duckdb and not deletes and rng.random() < 0.7:
            assert_same(self.table.duckdb_rows(kinds), expected, f"what DuckDB shows {when}")
        elif self._java_reads(deletes, fields):
            assert_same(
                self.table.java_rows(dict(zip(fields, kinds, strict=True))),
                expected,
                f"what Java shows {when}",
            )
        return f"{sum(expected.values())} rows"

    @property
    def _suits_duckdb(self) -> bool:
        """Whether DuckDB reads all that may be in the table."""
        is_parquet = self.setup.file_format == "parquet" and not self.setup.other_formats
        return is_parquet and not self.model.defaults and not self.setup.leaves_out

    def _java_reads(self, deletes: Iterable[EqualityDelete], fields: Sequence[int]) -> bool:
        """Whether Iceberg Java reads a snapshot with these equality deletes and these columns.

        Version 1.12 can't if a key column was dropped, and misses UUIDs in files that don't call them that.
        """
        keys = {field_id for delete in deletes for field_id in delete.fields}
        return keys.issubset(fields) and "uuid" not in {self.kinds[field_id] for field_id in keys}

    def _check_past(self, rng: Random) -> str:
        """A kept snapshot's rows."""
        snapshot_id = rng.choice(list(self.model.snapshots))
        state = self.model.snapshots[snapshot_id]
        fields = [column.field_id for column in self.table.schema_of(snapshot_id).fields]
        if not self._java_reads(state.deletes, fields):
            return "an older snapshot is not for Java"
        expected = self.model.rows(state, fields)
        shown_by_java = self.table.java_rows({i: self.kinds[i] for i in fields}, snapshot_id)
        assert_same(shown_by_java, expected, f"what Java shows of snapshot {snapshot_id}")
        return f"an older snapshot shows {sum(expected.values())} rows"

    def finish(self, rng: Random) -> str:
        """The last conversion, asked about with Spark."""
        said = [self._convert()]
        kinds = [str(column.field_type) for column in self.schema.fields]
        fields = [column.field_id for column in self.schema.fields]
        expected = self.model.rows(self.model.head, fields)
        assert_same(self.table.spark_rows(kinds), expected, "what Spark shows at the end")
        if rng.random() < 0.3:
            self.verify(rng)
        if rng.random() < 0.3:
            said.append(self._check_past(rng))
        return ", ".join([*said, f"{sum(expected.values())} rows"])


def assert_same(shown_rows: Counter[tuple[Any, ...]], expected: Counter[tuple[Any, ...]], what: str) -> None:
    if shown_rows != expected:
        more, fewer = list((shown_rows - expected).elements()), list((expected - shown_rows).elements())
        raise AssertionError(
            f"{what}: {len(more)} rows too many {more[:5]}, {len(fewer)} missing {fewer[:5]}"
        )


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


def _message(error: Py4JJavaError) -> str:
    return str(error.java_exception.getMessage())[:80]
