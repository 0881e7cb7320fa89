"""Tables of random sizes, and what reads of them cost Spark and DuckDB beside tables just written with the
rows that are left: what the model of service/reader_cost.py is fitted to, and what it is held against.

Costs are seconds of processor time of the reader, since the machine may do other things meanwhile. These make
that longer, too, but of both tables, which are read in turn.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import duckdb
import duckdb_extensions
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession

from service.reader_cost import TARGET_FILE_BYTES, Read, Reader, Shape, shape_of
from tests.benchmarks.report import machine
from tests.factories import Catalog, TableBuilder, sqlite_catalog
from worker.demo.streamed_files import Description, StreamedFiles
from worker.spark.session import create_spark

MEASUREMENTS = Path(__file__).with_name("reader_cost_measurements.json")
MOST_FILES, MOST_DELETE_FILES = 200, 60
"""Of a table."""
ROUNDS, ROUND_SECONDS = 4, 10.0
"""Of each read; no further round once they have taken so long. A short read of Spark may come at a moment at
which its JVM compiles or collects, hence many."""
DUCKDB_SECONDS = 20.0
"""DuckDB compares every row with every equality delete: a read that takes longer is left out."""
REGIONS = ("africa", "americas", "asia", "europe")
"""A partition each, if there are any."""
Kind = tuple[Reader, Read]
READS: dict[Kind, str] = {
    (Reader.SPARK, Read.FULL): "Spark, full",
    (Reader.SPARK, Read.POINT): "Spark, point",
    (Reader.DUCKDB, Read.FULL): "DuckDB, full",
    (Reader.DUCKDB, Read.POINT): "DuckDB, point",
}
"""In words."""
_CPUCLOCK_SCHED = 2  # of Linux, in <linux/posix-timers.h>
_LEAST_SECONDS = 1e-4
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Column:
    type: str
    aggregate: str
    values: Callable[[Ints, np.random.Generator], Any]
    """Of rows with these ids."""


_NOTES, _REGIONS = pa.array([f"note {at:04d} of a row" for at in range(1000)]), pa.array(REGIONS)
COLUMNS = {
    "id": Column("bigint", "sum", lambda ids, _: ids),
    "region": Column("string", "max", lambda ids, _: _REGIONS.take(pa.array(ids % len(REGIONS)))),
    "value": Column("bigint", "sum", lambda ids, _: np.arange(len(ids))),
    "note": Column("string", "max", lambda ids, _: _NOTES.take(pa.array(ids % len(_NOTES)))),
    "amount": Column("bigint", "sum", lambda ids, random: random.integers(100, 100_000, len(ids))),
    "code": Column(
        "string", "max", lambda ids, random: pa.array(random.integers(0, 2**40, len(ids))).cast("string")
    ),
    "price": Column("double", "sum", lambda ids, random: random.random(len(ids))),
}
"""A table has the first ones of them, as many as it wants."""


@dataclass(frozen=True)
class Drawing:
    """Tables that are drawn together."""

    number: int
    seed: int
    least_rows: int
    most_rows: int
    most_files: int = MOST_FILES
    most_deletes: int = 100
    """By key, of each file of them."""


DRAWINGS = (
    Drawing(14, 1, 50_000, 1_000_000),
    Drawing(8, 20261126, 50_000, 1_000_000),
    Drawing(8, 20261127, 1_000_000, 5_000_000),
    Drawing(8, 163, 100_000, 2_000_000, most_deletes=3_000),
    Drawing(8, 479, 1_000_000, 5_000_000, most_files=16),
)


@dataclass(frozen=True)
class Drawn:
    """A table to measure, without its bytes."""

    shape: Shape
    partitions: int = 1
    """1, or as many as there are regions. Each has as many files as any other."""
    columns: int = 3
    format_version: Literal[2, 3] = 3

    @property
    def key(self) -> list[str]:
        """By which rows are deleted."""
        return ["id", "region"] if self.partitions > 1 else ["id"]

    @property
    def fresh(self) -> Drawn:
        """As if it had just been rewritten: a file in each partition."""
        shape = self.shape
        return replace(self, shape=Shape(self.partitions, shape.rows - shape.positions))


WARM_UP = [Drawn(Shape(40, 100_000 + number, 5, 50, 20, 100)) for number in range(4)]


def drawn(drawing: Drawing) -> list[Drawn]:
    """Tables, their sizes spread over magnitudes; a third each has no deletes of a kind. Every other one has
    partitions, and every third is of format version 2."""
    random = np.random.default_rng(drawing.seed)

    def between(least: float, most: float) -> float:
        return float(np.exp(random.uniform(np.log(least), np.log(most))))

    def number_of(most: int, partitions: int) -> int:
        return max(round(between(1, most)) // partitions, 1) * partitions

    tables = []
    for at in range(drawing.number):
        partitions = len(REGIONS) if at % 2 else 1
        files = number_of(drawing.most_files, partitions)
        rows = round(between(drawing.least_rows, drawing.most_rows))
        equality = number_of(MOST_DELETE_FILES, partitions) if random.random() > 1 / 3 else 0
        vectors = min(round(between(1, MOST_FILES)), files) if random.random() > 1 / 3 else 0
        shape = Shape(
            files,
            rows,
            equality,
            equality * round(between(1, drawing.most_deletes)),
            vectors,
            vectors * max(round(rows // files * between(1e-4, 0.2)), 1),
        )
        columns = int(random.integers(3, len(COLUMNS), endpoint=True))
        wanted = Drawn(shape, partitions, columns, 2 if at % 3 == 2 else 3)
        key_columns = len(wanted.key) if equality else 0
        tables.append(replace(wanted, shape=replace(shape, key_columns=key_columns)))
    return tables


def make(spark: SparkSession, identifier: str, wanted: Drawn) -> tuple[TableBuilder, Shape]:
    """Such a table, and its shape with bytes. Keys lie in random order, so statistics of files and row groups
    exclude none."""
    shape, partitions, key = wanted.shape, wanted.partitions, wanted.key
    random = np.random.default_rng(shape.rows)
    columns, spec = list(COLUMNS)[: wanted.columns], ["region"] if partitions > 1 else []
    schema = ", ".join(f"{name} {COLUMNS[name].type}" for name in columns)
    table = TableBuilder.create(
        spark, identifier, schema, format_version=wanted.format_version, partitioned_by=spec
    )
    java = table.java
    files = StreamedFiles(java, key)

    def rows_of(ids: Ints, names: Sequence[str]) -> pa.Table:
        return pa.table({name: COLUMNS[name].values(ids, random) for name in names})

    def commit(operation: Any, add: Any, written: Iterable[Description]) -> int:
        """Bytes."""
        size_bytes = {}
        for one in written:
            add(files.content_file(one))
            size_bytes[one["file-path"]] = one["file-size-in-bytes"]
        operation.commit()
        return sum(size_bytes.values())

    ids = random.permutation(shape.rows)
    parts: list[tuple[Sequence[str], Ints]] = [((), ids)]
    if spec:
        parts = [([region], ids[ids % len(REGIONS) == at]) for at, region in enumerate(REGIONS)]
    data = [
        (files.data_file(rows_of(of_file, columns), values), len(of_file))
        for values, of_partition in parts
        for of_file in np.array_split(of_partition, shape.data_files // partitions)
    ]
    append = java.newAppend()
    data_bytes, delete_bytes = commit(append, append.appendFile, [one for one, _ in data]), 0
    if shape.vectors:
        each = shape.positions // shape.vectors
        hit = [data[at] for at in random.choice(len(data), shape.vectors, replace=False)]
        positions = [(one, np.sort(random.choice(rows, each, replace=False))) for one, rows in hit]
        write = files.vectors if wanted.format_version == 3 else files.position_deletes
        operation = java.newRowDelta()
        delete_bytes += commit(operation, operation.addDeletes, write(positions))
    if shape.equality_delete_files:
        deletes = [
            files.equality_deletes(rows_of(keys, key), values)
            for values, of_partition in parts
            for keys in np.array_split(
                random.choice(of_partition, shape.equality_deletes // partitions, replace=False),
                shape.equality_delete_files // partitions,
            )
        ]
        operation = java.newRowDelta()
        delete_bytes += commit(operation, operation.addDeletes, deletes)
    return table, replace(shape, data_bytes=data_bytes, delete_bytes=delete_bytes)


def spark_seconds(spark: SparkSession) -> float:
    """Of processor time that the JVM has used."""
    gateway: Any = spark.sparkContext._gateway
    return time.clock_gettime(~gateway.proc.pid << 3 | _CPUCLOCK_SCHED)


def measure(spark: SparkSession, tables: Sequence[TableBuilder], wanted: Drawn) -> list[dict[Kind, float]]:
    """Of each table the least seconds of each kind of read, of some warm rounds in which they take turns;
    without those that take too long."""
    names = list(COLUMNS)[: wanted.columns]
    aggregates = ", ".join(f"{COLUMNS[name].aggregate}({name})" for name in names)
    queries = {
        Read.FULL: f"SELECT count(*), {aggregates} FROM {{}}",
        Read.POINT: f"SELECT * FROM {{}} WHERE id = {wanted.shape.rows // 3}",
    }
    found: list[dict[Kind, float]] = [{} for _ in tables]

    def keep(kind: Kind, clock: Callable[[], float], work: Sequence[Callable[[], object]]) -> None:
        for seconds, least in zip(found, _least(clock, work), strict=True):
            seconds[kind] = least

    for read, query in queries.items():
        of_spark = [query.format(one.identifier) for one in tables]
        clock = partial(spark_seconds, spark)
        keep((Reader.SPARK, read), clock, [partial(collect, spark, one) for one in of_spark])
    with iceberg_duckdb() as connection:
        for read, query in queries.items():
            of_duckdb = [query.format(f"iceberg_scan('{one.metadata_location}')") for one in tables]
            with suppress(duckdb.InterruptException):
                work = [partial(fetch, connection, one) for one in of_duckdb]
                keep((Reader.DUCKDB, read), time.process_time, work)
    return found


def collect(spark: SparkSession, query: str) -> None:
    spark.sql(query).collect()


def fetch(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    limit = threading.Timer(DUCKDB_SECONDS, connection.interrupt)
    limit.start()
    try:
        connection.execute(query).fetchall()
    finally:
        limit.cancel()


@contextmanager
def iceberg_duckdb() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        for extension in ("avro", "iceberg"):
            duckdb_extensions.import_extension(extension, con=connection)
        # DuckDB 1.5.5 takes one deletion vector for another of the same Puffin file out of this cache.
        connection.execute("SET enable_external_file_cache = false")
        yield connection


def _least(clock: Callable[[], float], work: Sequence[Callable[[], object]]) -> list[float]:
    """Of each; the first round warms up."""
    spent: list[list[float]] = [[] for _ in work]
    for number in range(1 + ROUNDS):
        for of_one, one in zip(spent, work, strict=True):
            of_one.append(_spent(clock, one))
        if number and sum(map(sum, spent)) > ROUND_SECONDS:
            break
    return [min(of_one[1:]) for of_one in spent]


def _spent(clock: Callable[[], float], work: Callable[[], object]) -> float:
    before = clock()
    work()
    return max(clock() - before, _LEAST_SECONDS)


@dataclass(frozen=True)
class Measured:
    drawn: Drawn
    shape: Shape
    """With bytes."""
    seconds: Mapping[Kind, float]
    """Without those of reads that took too long."""
    fresh_seconds: Mapping[Kind, float]
    """Of a table that was just written with the rows that are left."""

    @property
    def fresh(self) -> Shape:
        """As the service takes it to be."""
        return self.shape.fresh(self.drawn.partitions, TARGET_FILE_BYTES)


@dataclass(frozen=True)
class Measurements:
    """What a run has measured: all that the model and its accuracy come from."""

    measured_on: str
    machine: str
    load: float
    """Of the machine: how many processes wanted a core at a time, those of the benchmark among them."""
    tables: list[Measured]

    def as_json(self) -> str:
        return json.dumps({**vars(self), "tables": [_told(one) for one in self.tables]}, indent=1) + "\n"


def kept(path: Path = MEASUREMENTS) -> Measurements:
    """What the last run of the benchmark has measured."""
    told = json.loads(path.read_text())
    return Measurements(**{**told, "tables": [_read(one) for one in told["tables"]]})


def _told(measured: Measured) -> dict[str, Any]:
    wanted = measured.drawn
    return {
        "format_version": wanted.format_version,
        "partitions": wanted.partitions,
        "columns": wanted.columns,
        "shape": {name: number for name, number in measured.shape.as_json().items() if number},
        "seconds": {READS[kind]: round(one, 6) for kind, one in measured.seconds.items()},
        "fresh_seconds": {READS[kind]: round(one, 6) for kind, one in measured.fresh_seconds.items()},
    }


def _read(told: Mapping[str, Any]) -> Measured:
    kinds = {words: kind for kind, words in READS.items()}
    seconds, fresh = (
        {kinds[words]: one for words, one in told[name].items()} for name in ("seconds", "fresh_seconds")
    )
    shape = shape_of(told["shape"])
    of_table = {name: told[name] for name in ("partitions", "columns", "format_version")}
    wanted = Drawn(replace(shape, data_bytes=0, delete_bytes=0), **of_table)
    return Measured(wanted, shape, seconds, fresh)


def measure_all(
    spark: SparkSession, catalog: Catalog, tables: Sequence[Drawn], say: Callable[[str], None]
) -> list[Measured]:
    measured = []
    for wanted in tables:
        name = f"{catalog.name}.db.t{wanted.shape.rows}_{wanted.shape.data_files}"
        (worn, shape), (fresh, _) = make(spark, name, wanted), make(spark, f"{name}_fresh", wanted.fresh)
        measured.append(Measured(wanted, shape, *measure(spark, [worn, fresh], wanted)))
        say(json.dumps(_told(measured[-1])))
        for one in (worn, fresh):
            spark.sql(f"DROP TABLE {one.identifier} PURGE")
    return measured


def measured_now() -> Measurements:
    loads: list[float] = []

    def say(words: str) -> None:
        loads.append(os.getloadavg()[0])
        print(words, flush=True)  # noqa: T201

    with tempfile.TemporaryDirectory() as name:
        spark = create_spark("local[2]", "reader cost")
        catalog = sqlite_catalog(spark, "reader_cost", Path(name))
        measure_all(spark, catalog, WARM_UP, say)
        tables = [one for each in DRAWINGS for one in measure_all(spark, catalog, drawn(each), say)]
        words = machine(spark, "pyspark", "duckdb")
        spark.stop()
    load = round(statistics.median(loads), 1)
    return Measurements(f"{datetime.now(UTC):%Y-%m-%d}", words, load, tables)
