"""What a read of a table costs, from how many files, rows and deletes it has: a model for Spark and DuckDB.

It is fitted to tables that were drawn at random and held against others, drawn anew. Costs are seconds of
processor time of the reader, which do not depend on what else the machine does.

`make bench-readers` writes the coefficients and the section of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extensions
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession

from tests.benchmarks.measure import descendants
from tests.benchmarks.page import Part, write_part
from tests.benchmarks.report import machine, table
from tests.factories import Catalog, TableBuilder, sqlite_catalog
from worker.spark.session import create_spark

COEFFICIENTS = Path(__file__).with_name("reader_cost.json")
FITTED, CHECKED = 18, 8
ROUNDS = 2
DUCKDB_SECONDS = 20.0
"""DuckDB compares every row with every equality delete: a read that takes longer is left out."""
READS = ("Spark, full", "Spark, point", "DuckDB, full", "DuckDB, point")
_TICKS = os.sysconf("SC_CLK_TCK")
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    """What a reader has to do with: of the head of a branch."""

    data_files: int
    rows: int
    equality_delete_files: int = 0
    equality_deletes: int = 0
    vectors: int = 0
    """Deletion vectors, each of a data file."""
    positions: int = 0
    """Rows that these delete."""


WARM_UP = [Shape(40, 100_000 + number, 5, 50, 20, 100) for number in range(5)]
TERMS: Mapping[str, Callable[[Shape], float]] = {
    "read": lambda _: 1.0,
    "data file": lambda s: s.data_files,
    "row": lambda s: s.rows,
    "equality delete file": lambda s: s.equality_delete_files,
    "equality delete": lambda s: s.equality_deletes,
    "row, if there are equality deletes": lambda s: s.rows * (s.equality_delete_files > 0),
    "row and equality delete": lambda s: float(s.rows) * s.equality_deletes,
    "data file and equality delete file": lambda s: s.data_files * s.equality_delete_files,
    "vector": lambda s: s.vectors,
}
"""What each coefficient is multiplied by. Positions in vectors are not among these: readers hold a bitmap."""


def cost(coefficients: Mapping[str, float], shape: Shape) -> float:
    """Seconds of processor time."""
    return sum(seconds * TERMS[name](shape) for name, seconds in coefficients.items())


def fit(shapes: Sequence[Shape], seconds: Sequence[float]) -> dict[str, float]:
    """Coefficients with the least squares of relative errors; a term that would be below 0 is left out."""
    terms = np.array([[term(shape) for term in TERMS.values()] for shape in shapes], dtype=np.float64)
    weighted: Floats = terms / np.array(seconds)[:, None]
    norms = np.sqrt((weighted**2).sum(axis=0))
    names = [name for name, norm in zip(TERMS, norms, strict=True) if norm]
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


def _spark_seconds(spark: SparkSession) -> float:
    """Of processor time that the JVM and what it started have used."""
    gateway: Any = spark.sparkContext._gateway
    ticks = 0
    for pid in (gateway.proc.pid, *descendants(gateway.proc.pid)):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def measure(spark: SparkSession, table: TableBuilder, shape: Shape) -> dict[str, float]:
    """The least seconds of each kind of read, of some warm rounds; without those that take too long."""
    key = shape.rows // 3
    full, point = "SELECT count(*), sum(value), max(note) FROM {}", f"SELECT * FROM {{}} WHERE id = {key}"
    found: dict[str, float] = {}
    for name, query in zip(READS[:2], (full, point), strict=True):
        of_spark = query.format(table.identifier)
        clock, work = partial(_spark_seconds, spark), partial(_collect, spark, of_spark)
        spent = [_spent(clock, work) for _ in range(ROUNDS + 1)]
        found[name] = min(spent[1:])
    with _duckdb() as connection:
        for name, query in zip(READS[2:], (full, point), strict=True):
            of_duckdb = query.format(f"iceberg_scan('{table.metadata_location}')")
            with suppress(duckdb.InterruptException):
                work = partial(_fetch, connection, of_duckdb)
                found[name] = min(_spent(time.process_time, work) for _ in range(ROUNDS))
    return found


def _collect(spark: SparkSession, query: str) -> None:
    spark.sql(query).collect()


def _fetch(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    limit = threading.Timer(DUCKDB_SECONDS, connection.interrupt)
    limit.start()
    try:
        connection.execute(query).fetchall()
    finally:
        limit.cancel()


def _spent(clock: Callable[[], float], work: Callable[[], object]) -> float:
    before = clock()
    work()
    return max(clock() - before, 1 / _TICKS)


@contextmanager
def _duckdb() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        for extension in ("avro", "iceberg"):
            duckdb_extensions.import_extension(extension, con=connection)
        # DuckDB 1.5.5 takes one deletion vector for another of the same Puffin file out of this cache.
        connection.execute("SET enable_external_file_cache = false")
        yield connection


@dataclass(frozen=True)
class Measured:
    shape: Shape
    seconds: Mapping[str, float]


def measure_all(
    spark: SparkSession, catalog: Catalog, shapes: Sequence[Shape], say: Callable[[str], None]
) -> list[Measured]:
    measured = []
    for shape in shapes:
        identifier = f"{catalog.name}.db.t{shape.rows}_{shape.data_files}"
        seconds = measure(spark, make(spark, identifier, shape), shape)
        say(f"{shape}: " + ", ".join(f"{name} {one:.2f} s" for name, one in seconds.items()))
        measured.append(Measured(shape, seconds))
        spark.sql(f"DROP TABLE {identifier} PURGE")
    return measured


def fitted(measured: Sequence[Measured]) -> dict[str, dict[str, float]]:
    """The coefficients of each kind of read."""

    def of(name: str) -> dict[str, float]:
        known = [one for one in measured if name in one.seconds]
        return fit([one.shape for one in known], [one.seconds[name] for one in known])

    return {name: of(name) for name in READS}


def factors(coefficients: Mapping[str, float], name: str, measured: Sequence[Measured]) -> list[float]:
    """By how much the model is off for each table: 1 is right, 2 twice or half of what was measured."""
    ratios = [cost(coefficients, one.shape) / one.seconds[name] for one in measured if name in one.seconds]
    return [max(ratio, 1 / ratio) for ratio in ratios]


def report_of(
    models: Mapping[str, Mapping[str, float]],
    seen: Sequence[Measured],
    others: Sequence[Measured],
    words: str,
) -> str:
    """words: of the machine. In Markdown, its first line the title."""
    accuracy = []
    for name in READS:
        off = factors(models[name], name, others)
        within = f"{sum(one <= 2 for one in off)} of {len(off)}"
        of_fitted = max(factors(models[name], name, seen))
        accuracy.append(
            (name, f"{of_fitted:.2f}", f"{statistics.median(off):.2f}", f"{max(off):.2f}", within)
        )
    terms = [
        (term, *(_milliseconds(models[name].get(term, 0.0)) for name in READS))
        for term in TERMS
        if any(term in models[name] for name in READS)
    ]
    return "\n\n".join(
        [
            "# What a read costs",
            f"`make bench-readers` on {words}",
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
            "The coefficients (`tests/benchmarks/reader_cost.json`), each for one of what stands before it:",
            table(f"each | {' | '.join(READS)}", terms),
        ]
    )


def _milliseconds(seconds: float) -> str:
    if not seconds:
        return ""
    return f"{seconds * 1000:,.0f} ms" if seconds >= 1 else f"{seconds * 1000:.2g} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="where to keep what was measured")
    parser.add_argument("--fitted", type=Path, help="fit to what an earlier run has kept, and measure others")
    arguments = parser.parse_args()
    say = partial(print, flush=True)
    seen = _kept(arguments.fitted) if arguments.fitted else []
    with tempfile.TemporaryDirectory() as name:
        spark = create_spark("local[2]", "reader cost")
        catalog = sqlite_catalog(spark, "reader_cost", Path(name))
        measure_all(spark, catalog, WARM_UP, say)
        seen = seen or measure_all(spark, catalog, drawn(FITTED, 1), say)
        others = measure_all(spark, catalog, drawn(CHECKED, 3), say)
        words = machine(spark, "pyspark", "duckdb")
        spark.stop()
    if arguments.keep:
        told = [asdict(one.shape) | {"seconds": dict(one.seconds)} for one in (*seen, *others)]
        arguments.keep.write_text(json.dumps(told, indent=1))
    models = fitted(seen)
    COEFFICIENTS.write_text(json.dumps(models, indent=1) + "\n")
    write_part(Part.READER_COST, report_of(models, seen, others, words))


def _kept(path: Path) -> list[Measured]:
    told = json.loads(path.read_text())
    return [Measured(seconds=one.pop("seconds"), shape=Shape(**one)) for one in told]


if __name__ == "__main__":
    main()
