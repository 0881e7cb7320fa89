"""Measures what reads of tables cost Spark and DuckDB, and fits the model of service/reader_cost.py to it.

It is fitted to tables that were drawn at random and held against others, drawn anew. Costs are seconds of
processor time of the reader, which do not depend on what else the machine does.

`make bench-readers` measures, keeps what it measured beside this file, and writes the model and the section
of docs/benchmarks.md from that; with `ARGS=--fit`, from what was kept before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extensions
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession

from service.reader_cost import MODEL, TERMS, Coefficients, CostModel, Read, Reader, Shape, shape_of
from tests.benchmarks.page import Part, write_part
from tests.benchmarks.report import machine, table
from tests.factories import Catalog, TableBuilder, sqlite_catalog
from worker.spark.session import create_spark

MEASUREMENTS = Path(__file__).with_name("reader_cost_measurements.json")
FITTED, CHECKED = ((20, 1),), ((8, 3),)
"""How many tables the model is fitted to, and is held against, each with the seed that they are drawn by."""
ONLY_IN = {"row in a dictionary": (Reader.SPARK, Read.POINT)}
"""Terms of a single kind of read: in others, they would stand for something else."""
ROUNDS, ROUND_SECONDS = 6, 10.0
"""Of each read; no further round once they have taken so long. A short read of Spark may come at a moment at
which its JVM compiles or collects, hence many."""
DUCKDB_SECONDS = 20.0
"""DuckDB compares every row with every equality delete: a read that takes longer is left out."""
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
Floats = npt.NDArray[np.float64]
WARM_UP = [Shape(40, 100_000 + number, 5, 50, 20, 100) for number in range(5)]


def fit(shapes: Sequence[Shape], seconds: Sequence[float], names: Sequence[str]) -> Coefficients:
    """Coefficients with the least squares of relative errors; a term that would be below 0 is left out."""
    terms = np.array([[TERMS[name](shape) for name in names] for shape in shapes], dtype=np.float64)
    weighted: Floats = terms / np.array(seconds)[:, None]
    norms = np.sqrt((weighted**2).sum(axis=0))
    names = [name for name, norm in zip(names, norms, strict=True) if norm]
    weighted, norms = weighted[:, norms > 0] / norms[norms > 0], norms[norms > 0]
    while True:
        found = np.linalg.lstsq(weighted, np.ones(len(shapes)))[0]
        at = int(found.argmin())
        if found[at] >= 0:
            return {name: float(one) for name, one in zip(names, found / norms, strict=True) if one > 0}
        weighted, norms = np.delete(weighted, at, axis=1), np.delete(norms, at)
        del names[at]


def drawn(number: int, seed: int) -> list[Shape]:
    """Shapes of tables, their sizes spread over magnitudes; a third each has no deletes of a kind."""
    random = np.random.default_rng(seed)

    def between(least: float, most: float) -> int:
        return round(float(np.exp(random.uniform(np.log(least), np.log(most)))))

    shapes = []
    for _ in range(number):
        files, rows = between(1, 300), between(100_000, 3_000_000)
        equality = between(1, 60) if random.random() > 1 / 3 else 0
        vectors = min(between(1, 300), files) if random.random() > 1 / 3 else 0
        shapes.append(
            Shape(
                files,
                rows,
                equality,
                equality * between(1, 100) if equality else 0,
                vectors,
                vectors * min(between(1, 2_000), rows // files // 2) if vectors else 0,
            )
        )
    return shapes


def make(spark: SparkSession, identifier: str, shape: Shape) -> TableBuilder:
    """A table of that shape. Keys lie in random order, so statistics of files and row groups exclude none."""
    random = np.random.default_rng(shape.rows)
    table = TableBuilder.create(spark, identifier, "id bigint, value bigint, note string", format_version=3)
    ids = random.permutation(shape.rows)
    notes = pa.array([f"note {at:04d} of a row" for at in range(1000)]).take(pa.array(ids % 1000))
    rows = pa.table({"id": ids, "value": np.arange(shape.rows), "note": notes})
    paths = table.append(rows, files=shape.data_files)
    if shape.vectors:
        each = shape.positions // shape.vectors
        positions = random.choice(shape.rows // shape.data_files // 2, each, replace=False)
        table.commit(*table.deletion_vectors({path: positions.tolist() for path in paths[: shape.vectors]}))
    if shape.equality_delete_files:
        keys = random.choice(shape.rows, shape.equality_deletes, replace=False)
        parts = np.array_split(keys, shape.equality_delete_files)
        deletes = [one for part in parts for one in table.equality_deletes(pa.table({"id": part}))]
        table.commit(*deletes)
    return table


def spark_seconds(spark: SparkSession) -> float:
    """Of processor time that the JVM has used."""
    gateway: Any = spark.sparkContext._gateway
    return time.clock_gettime(~gateway.proc.pid << 3 | _CPUCLOCK_SCHED)


def measure(spark: SparkSession, table: TableBuilder, shape: Shape) -> dict[Kind, float]:
    """The least seconds of each kind of read, of some warm rounds; without those that take too long."""
    key = shape.rows // 3
    full, point = "SELECT count(*), sum(value), max(note) FROM {}", f"SELECT * FROM {{}} WHERE id = {key}"
    queries = {Read.FULL: full, Read.POINT: point}
    found: dict[Kind, float] = {}
    for read, query in queries.items():
        of_spark = query.format(table.identifier)
        clock, work = partial(spark_seconds, spark), partial(collect, spark, of_spark)
        work()
        found[Reader.SPARK, read] = _least(clock, work)
    with iceberg_duckdb() as connection:
        for read, query in queries.items():
            of_duckdb = query.format(f"iceberg_scan('{table.metadata_location}')")
            with suppress(duckdb.InterruptException):
                work = partial(fetch, connection, of_duckdb)
                found[Reader.DUCKDB, read] = _least(time.process_time, work)
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


def _least(clock: Callable[[], float], work: Callable[[], object]) -> float:
    spent: list[float] = []
    while len(spent) < ROUNDS and sum(spent) < ROUND_SECONDS:
        spent.append(_spent(clock, work))
    return min(spent)


def _spent(clock: Callable[[], float], work: Callable[[], object]) -> float:
    before = clock()
    work()
    return max(clock() - before, _LEAST_SECONDS)


@contextmanager
def iceberg_duckdb() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        for extension in ("avro", "iceberg"):
            duckdb_extensions.import_extension(extension, con=connection)
        # DuckDB 1.5.5 takes one deletion vector for another of the same Puffin file out of this cache.
        connection.execute("SET enable_external_file_cache = false")
        yield connection


@dataclass(frozen=True)
class Measured:
    shape: Shape
    seconds: Mapping[Kind, float]
    """Without those of reads that took too long."""


@dataclass(frozen=True)
class Measurements:
    """What a run has measured: all that the model and its accuracy come from."""

    measured_on: str
    machine: str
    fitted: list[Measured]
    others: list[Measured]

    def as_json(self) -> str:
        lists = {"fitted": self.fitted, "others": self.others}
        told = {
            "measured_on": self.measured_on,
            "machine": self.machine,
            **{name: [_told(one) for one in measured] for name, measured in lists.items()},
        }
        return json.dumps(told, indent=1) + "\n"


def kept(path: Path = MEASUREMENTS) -> Measurements:
    """What the last run of the benchmark has measured."""
    told = json.loads(path.read_text())
    lists = {name: [_read(one) for one in told[name]] for name in ("fitted", "others")}
    return Measurements(told["measured_on"], told["machine"], **lists)


def _told(measured: Measured) -> dict[str, Any]:
    shape = {name: number for name, number in measured.shape.as_json().items() if number}
    seconds = {READS[kind]: round(one, 6) for kind, one in measured.seconds.items()}
    return {"shape": shape, "seconds": seconds}


def _read(told: Mapping[str, Any]) -> Measured:
    kinds = {words: kind for kind, words in READS.items()}
    return Measured(shape_of(told["shape"]), {kinds[words]: one for words, one in told["seconds"].items()})


def measure_all(
    spark: SparkSession, catalog: Catalog, shapes: Sequence[Shape], say: Callable[[str], None]
) -> list[Measured]:
    measured = []
    for shape in shapes:
        identifier = f"{catalog.name}.db.t{shape.rows}_{shape.data_files}"
        seconds = measure(spark, make(spark, identifier, shape), shape)
        say(f"{shape}: " + ", ".join(f"{READS[kind]} {one:.4f} s" for kind, one in seconds.items()))
        measured.append(Measured(shape, seconds))
        spark.sql(f"DROP TABLE {identifier} PURGE")
    return measured


def model_of(measurements: Measurements) -> CostModel:
    """The model with the coefficients of each kind of read."""

    def of(kind: Kind) -> Coefficients:
        known = [one for one in measurements.fitted if kind in one.seconds]
        names = [name for name in TERMS if ONLY_IN.get(name, kind) == kind]
        return fit([one.shape for one in known], [one.seconds[kind] for one in known], names)

    return CostModel.model_validate(
        {
            "measured_on": measurements.measured_on,
            "machine": measurements.machine,
            "coefficients": {reader: {read: of((reader, read)) for read in Read} for reader in Reader},
        }
    )


def factors(model: CostModel, kind: Kind, measured: Sequence[Measured]) -> list[float]:
    """By how much the model is off for each table: 1 is right, 2 twice or half of what was measured."""
    ratios = [model.seconds(one.shape, *kind) / one.seconds[kind] for one in measured if kind in one.seconds]
    return [max(ratio, 1 / ratio) for ratio in ratios]


def report_of(model: CostModel, measurements: Measurements) -> str:
    """In Markdown, its first line the title."""
    seen, others = measurements.fitted, measurements.others
    accuracy = []
    for kind, name in READS.items():
        off = factors(model, kind, others)
        within = f"{sum(one <= 2 for one in off)} of {len(off)}"
        of_fitted = max(factors(model, kind, seen))
        accuracy.append(
            (name, f"{of_fitted:.2f}", f"{statistics.median(off):.2f}", f"{max(off):.2f}", within)
        )
    coefficients = {kind: model.coefficients[kind[0]][kind[1]] for kind in READS}
    terms = [
        (term, *(_milliseconds(each.get(term, 0.0)) for each in coefficients.values()))
        for term in TERMS
        if any(term in each for each in coefficients.values())
    ]
    return "\n\n".join(
        [
            "# What a read costs",
            f"`make bench-readers` on {measurements.machine}",
            "A model of the processor time that a read takes, which does not depend on what else the machine"
            f" does: fitted to {len(seen)} tables of format version 3 with random sizes (1 to 300 data files,"
            " 100,000 to 3 million rows, up to 60 equality delete files and 300 deletion vectors), and held"
            f" against {len(others)} others. A full read aggregates all columns, a point read looks for"
            " one key; keys lie in random order, files on the local disk, the reader is warm. By how much the"
            " model is off: 1.00 is right, 2.00 twice or half of what was measured.",
            "Spark's time counts what its JVM compiles and collects meanwhile, which short reads feel most."
            " DuckDB compares every row with every equality delete:"
            f" reads that took {DUCKDB_SECONDS:.0f} s are left out.",
            table("read | fitted, worst | others, median | others, worst | within a factor of 2", accuracy),
            "The coefficients (`service/reader_cost.json`), each for one of what stands before it; what was"
            " measured is kept in `tests/benchmarks/reader_cost_measurements.json`, and"
            " `make bench-readers ARGS=--fit` makes the coefficients from that anew:",
            table(f"each | {' | '.join(READS.values())}", terms),
        ]
    )


def _milliseconds(seconds: float) -> str:
    if not seconds:
        return ""
    return f"{seconds * 1000:,.0f} ms" if seconds >= 1 else f"{seconds * 1000:.2g} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="measure nothing: fit to what was kept")
    if not parser.parse_args().fit:
        MEASUREMENTS.write_text(_measured().as_json())
    measurements = kept()
    model = model_of(measurements)
    MODEL.write_text(json.dumps(model.model_dump(mode="json"), indent=1) + "\n")
    write_part(Part.READER_COST, report_of(model, measurements))


def _measured() -> Measurements:
    say = partial(print, flush=True)
    with tempfile.TemporaryDirectory() as name:
        spark = create_spark("local[2]", "reader cost")
        catalog = sqlite_catalog(spark, "reader_cost", Path(name))
        measure_all(spark, catalog, WARM_UP, say)
        fitted, others = (
            [one for drawing in drawings for one in measure_all(spark, catalog, drawn(*drawing), say)]
            for drawings in (FITTED, CHECKED)
        )
        words = machine(spark, "pyspark", "duckdb")
        spark.stop()
    return Measurements(f"{datetime.now(UTC):%Y-%m-%d}", words, fitted, others)


if __name__ == "__main__":
    main()
