"""Measures what deletes and small files cost a read beyond one of the same rows in a table that was just
written, and holds the model of service/reader_cost.py against it, which was fitted to none of these tables.

Unlike those that it was fitted to, they have partitions, more columns and both format versions. Costs are
seconds of processor time of the reader, since the machine may do other things meanwhile. That makes them
longer, too, but of both tables, so it is the ratio that is compared.

`make bench-readers` measures, keeps what it measured beside this file, and writes its part of
docs/benchmarks.md; with `ARGS=--fit`, from what was kept before.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession

from service.reader_cost import TARGET_FILE_BYTES, CostModel, Read, Reader, Shape, model, shape_of
from tests.benchmarks.page import Part, write_part
from tests.benchmarks.reader_cost import (
    DUCKDB_SECONDS,
    READS,
    Kind,
    collect,
    fetch,
    iceberg_duckdb,
    spark_seconds,
)
from tests.benchmarks.report import machine, table
from tests.factories import Catalog, TableBuilder, sqlite_catalog
from worker.demo.streamed_files import Description, StreamedFiles
from worker.spark.session import create_spark

MEASUREMENTS = Path(__file__).with_name("reader_overhead_measurements.json")
DRAWINGS = ((14, 1), (8, 20261126))
"""How many tables, and the seed that they are drawn by."""
MOST_FILES, MOST_ROWS = 200, 1_000_000
"""Of a table."""
NOTICED = 1.1
"""Times what a read of the fresh table takes: less is within what rounds of a read differ by."""
ROUNDS, ROUND_SECONDS = 4, 10.0
"""Of each read; no further round once they have taken so long."""
REGIONS = ("africa", "americas", "asia", "europe")
"""A partition each, if there are any."""
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
class Drawn:
    """A table to measure, without its bytes."""

    shape: Shape
    partitions: int = 1
    """1, or as many as there are regions. Each has as many files as any other."""
    columns: int = 3
    format_version: Literal[2, 3] = 3

    @property
    def fresh(self) -> Drawn:
        """As if it had just been rewritten: a file in each partition."""
        shape = self.shape
        return replace(self, shape=Shape(self.partitions, shape.rows - shape.positions))


WARM_UP = [Drawn(Shape(40, 100_000 + number, 5, 50, 20, 100)) for number in range(3)]


def drawn(number: int, seed: int) -> list[Drawn]:
    """Tables, their sizes spread over magnitudes; a third each has no deletes of a kind. Every other one has
    partitions, and every third is of format version 2."""
    random = np.random.default_rng(seed)

    def between(least: float, most: float) -> float:
        return float(np.exp(random.uniform(np.log(least), np.log(most))))

    def number_of(most: int, partitions: int) -> int:
        return max(round(between(1, most)) // partitions, 1) * partitions

    tables = []
    for at in range(number):
        partitions = len(REGIONS) if at % 2 else 1
        files, rows = number_of(MOST_FILES, partitions), round(between(MOST_ROWS / 20, MOST_ROWS))
        equality = number_of(60, partitions) if random.random() > 1 / 3 else 0
        vectors = min(round(between(1, MOST_FILES)), files) if random.random() > 1 / 3 else 0
        shape = Shape(
            files,
            rows,
            equality,
            equality * round(between(1, 100)),
            vectors,
            vectors * max(round(rows // files * between(1e-4, 0.2)), 1),
        )
        columns = int(random.integers(3, len(COLUMNS), endpoint=True))
        tables.append(Drawn(shape, partitions, columns, 2 if at % 3 == 2 else 3))
    return tables


def make(spark: SparkSession, identifier: str, wanted: Drawn) -> tuple[TableBuilder, Shape]:
    """Such a table, and its shape with bytes. Keys lie in random order, so statistics of files and row groups
    exclude none."""
    shape, partitions = wanted.shape, wanted.partitions
    random = np.random.default_rng(shape.rows)
    columns, spec = list(COLUMNS)[: wanted.columns], ["region"] if partitions > 1 else []
    schema = ", ".join(f"{name} {COLUMNS[name].type}" for name in columns)
    table = TableBuilder.create(
        spark, identifier, schema, format_version=wanted.format_version, partitioned_by=spec
    )
    java, key = table.java, ["id", *spec]
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
    """What a run has measured."""

    measured_on: str
    machine: str
    load: float
    """Of the machine: how many processes wanted a core at a time, those of the benchmark among them."""
    tables: list[Measured]

    def as_json(self) -> str:
        told = {**vars(self), "tables": [_told(one) for one in self.tables]}
        return json.dumps(told, indent=1) + "\n"


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
    return Measured(Drawn(replace(shape, data_bytes=0, delete_bytes=0), **of_table), shape, seconds, fresh)


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


@dataclass(frozen=True)
class Compared:
    """A read of a table: how many times what one of the fresh table takes."""

    measured: float
    told: float
    """By the model."""

    @property
    def off_by(self) -> float:
        """By which factor the model is off about what is beyond 1: the overhead."""
        ratio = (self.told - 1) / (self.measured - 1)
        return max(ratio, 1 / ratio) if ratio > 0 else math.inf


def compared(
    cost: CostModel, kind: Kind, measured: Sequence[Measured], least: float = NOTICED
) -> list[Compared]:
    """least: tables whose reads take fewer times what those of fresh ones do are left out."""
    known = [one for one in measured if kind in one.seconds]
    found = [
        Compared(
            one.seconds[kind] / one.fresh_seconds[kind],
            cost.seconds(one.shape, *kind) / cost.seconds(one.fresh, *kind),
        )
        for one in known
    ]
    return [one for one in found if one.measured > least]


def report_of(cost: CostModel, measurements: Measurements) -> str:
    """In Markdown, its first line the title."""
    tables, rows = measurements.tables, list[Sequence[object]]()
    for kind, name in READS.items():
        for least in (NOTICED, 1.5):
            found = compared(cost, kind, tables, least)
            off = [one.off_by for one in found]
            within = (f"{sum(one <= most for one in off)} of {len(off)}" for most in (2, 3))
            worst = max(off)
            rows.append(
                (
                    name,
                    f"{least:g}",
                    *within,
                    f"{statistics.median(off):.2f}",
                    f"{worst:.2f}" if worst < 100 else "none told",
                )
            )
    each = [
        (
            _words(one),
            *(
                f"{one.seconds[kind] / one.fresh_seconds[kind]:.2f} / "
                f"{cost.seconds(one.shape, *kind) / cost.seconds(one.fresh, *kind):.2f}"
                if kind in one.seconds
                else ""
                for kind in READS
            ),
        )
        for one in tables
    ]
    return "\n\n".join(
        [
            "# What deletes and small files cost a read",
            f"`make bench-readers` on {measurements.machine}",
            "The model above says what a read costs; what is shown, saved, ranked and weighed is the"
            f" overhead, how much more that is than of the same rows in a table just written. {len(tables)}"
            " tables of random sizes, to none of which the model was fitted, lie beside such a fresh one"
            f" each, and both are read in turn: 1 to {MOST_FILES} data files, {MOST_ROWS // 20:,} to"
            f" {MOST_ROWS:,} rows, 3 to {len(COLUMNS)} columns, up to 60 equality delete files, and deletes"
            f" by position in up to {MOST_FILES} data files. A half has {len(REGIONS)} partitions, and then"
            " keys of two columns; a third is of format version 2, with a position delete file for each"
            " data file with deletes, the others have deletion vectors. A full read aggregates all columns,"
            f" a point read looks for one key; the least of {ROUNDS} rounds of processor time counts.",
            f"The machine did other things meanwhile: its load was {measurements.load:.1f} on"
            f" {os.cpu_count()} cores, the median over tables. Hence processor time and not the clock. With"
            " neighbours on the cores that was longer, too, of both tables, so ratios are compared, and"
            " not seconds. By how much the model is off about the overhead: 1.00 is right, 2.00 twice or"
            f" half of what was measured. Reads that took DuckDB {DUCKDB_SECONDS:.0f} s are left out.",
            table(
                "read | times a fresh one, more than | within a factor of 2 | of 3 | median | worst",
                rows,
            ),
            "Each table, and how many times what a read of the fresh one takes: measured / by the model.",
            table(f"data files, rows, deletes, partitions, columns | {' | '.join(READS.values())}", each),
        ]
    )


def _words(measured: Measured) -> str:
    shape, wanted = measured.shape, measured.drawn
    kind = "vectors" if wanted.format_version == 3 else "position delete files"
    deletes = (
        [f"{shape.equality_deletes:,} in {shape.equality_delete_files}"] if shape.equality_deletes else []
    )
    if shape.vectors:
        deletes.append(f"{shape.positions:,} in {shape.vectors} {kind}")
    told = (f"{shape.data_files}", f"{shape.rows:,}", " and ".join(deletes) or "none")
    return "; ".join([*told, f"{wanted.partitions}", f"{wanted.columns}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="measure nothing: report what was kept")
    if not parser.parse_args().fit:
        MEASUREMENTS.write_text(_measured().as_json())
    write_part(Part.READER_OVERHEAD, report_of(model(), kept()))


def _measured() -> Measurements:
    loads: list[float] = []

    def say(words: str) -> None:
        loads.append(os.getloadavg()[0])
        print(words, flush=True)  # noqa: T201

    with tempfile.TemporaryDirectory() as name:
        spark = create_spark("local[2]", "reader overhead")
        catalog = sqlite_catalog(spark, "reader_overhead", Path(name))
        measure_all(spark, catalog, WARM_UP, say)
        tables = [one for each in DRAWINGS for one in measure_all(spark, catalog, drawn(*each), say)]
        words = machine(spark, "pyspark", "duckdb")
        spark.stop()
    load = round(statistics.median(loads), 1)
    return Measurements(f"{datetime.now(UTC):%Y-%m-%d}", words, load, tables)


if __name__ == "__main__":
    main()
