"""A report of duplicates beside the query that it saves, over a table with few of them.

`python -m tests.benchmarks.duplicates` writes its part of docs/benchmarks.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

import duckdb
import duckdb_extensions
import numpy as np
import typer

from telemetry.plurals import counted
from tests.benchmarks.datasets import Dataset, Kind
from tests.benchmarks.measure import Figure, timed
from tests.benchmarks.page import Part, write_report
from tests.benchmarks.report import machine
from worker.spark.session import create_spark

DUPLICATES = 1_000


@dataclass(frozen=True, slots=True)
class DuplicatesMeasurement:
    """Of a table of `rows` rows and some duplicates more: whole jobs in both places where their tasks run."""

    rows: int
    duplicates: int
    sorted_runs: int
    in_driver: Figure
    on_spark: Figure
    duckdb: Figure


def measure_duplicates(dataset: Dataset, rounds: int) -> DuplicatesMeasurement:
    """Every answer is the same: the keys that were appended once more."""
    dataset.load(lambda _: None)
    count = min(DUPLICATES, dataset.rows)
    numbers = np.random.default_rng(7).choice(dataset.rows, count, replace=False)
    dataset.table.append(dataset.kind.keys(numbers))
    try:
        indexed = dataset.jobs.run("index", key_sets=[dataset.kind.key]).health["key_sets"][0]
        assert indexed["coverage"] == 1
        in_driver = _report(dataset, count, rounds, dataset.jobs.runner.local_rows)
        by_duckdb = _duckdb(dataset, count, rounds)
        on_spark = _report(dataset, count, rounds, 0)
        return DuplicatesMeasurement(
            dataset.rows, count, indexed["sorted_runs"], in_driver, on_spark, by_duckdb
        )
    finally:
        dataset.rewind()


def _report(dataset: Dataset, expected: int, rounds: int, local_rows: int) -> Figure:
    seconds = []
    for _ in range(rounds):
        with patch.object(dataset.jobs.runner, "local_rows", local_rows):
            outcome, took = timed(lambda: dataset.jobs.run("report_duplicates"))
        (found,) = outcome.result["key_sets"]
        assert (found["duplicate_keys"], found["duplicate_rows"]) == (expected, 2 * expected)
        seconds.append(took)
    return Figure(tuple(seconds))


def _duckdb(dataset: Dataset, expected: int, rounds: int) -> Figure:
    connection = duckdb.connect()
    for extension in ("avro", "iceberg"):
        duckdb_extensions.import_extension(extension, con=connection)
    key = ", ".join(dataset.kind.key)
    query = f"SELECT {key}, count(*) FROM iceberg_scan(?) GROUP BY {key} HAVING count(*) > 1"
    seconds = []
    for _ in range(rounds):
        found, took = timed(lambda: connection.execute(query, [dataset.table.metadata_location]).fetchall())
        assert len(found) == expected
        seconds.append(took)
    connection.close()
    return Figure(tuple(seconds))


def section(measured: DuplicatesMeasurement, about: str) -> str:
    """In Markdown."""
    return f"""# Duplicates

A table of {measured.rows:,} rows with int64 keys, of which {measured.duplicates:,} were appended once more.
A job `report_duplicates` lists them and their rows from the index
({counted(measured.sorted_runs, "sorted run")}); its tasks run in the worker, or on Spark if there are
more than 200 million rows. DuckDB lists the keys alone, from the data files, by
`GROUP BY id HAVING count(*) > 1`. Whole jobs and queries, the median
(least-most) of {len(measured.duckdb.seconds)}, on {about}

| rows | job, in the worker | job, on Spark | DuckDB |
|---|---|---|---|
| {measured.rows:,} | {measured.in_driver} | {measured.on_spark} | {measured.duckdb} |
"""


def main(
    rows: Annotated[int, typer.Option(help="of the table")] = 50_000_000,
    rounds: Annotated[int, typer.Option(help="of every measurement")] = 3,
    directory: Annotated[Path, typer.Option(help="where tables are kept")] = Path("build/benchmarks"),
    report: Annotated[Path | None, typer.Option(help="a Markdown file of its own to write instead")] = None,
) -> None:
    """Measure reports of duplicates beside DuckDB."""
    spark = create_spark("local[*]", "benchmarks")
    spark.sparkContext.setLogLevel("ERROR")
    kind = Kind.INT64
    dataset = Dataset(spark, directory.resolve() / f"{kind}-{rows}-v3", kind, rows)
    measured = measure_duplicates(dataset, rounds)
    written = section(measured, machine(spark, "pyspark", "pyarrow", "numpy", "duckdb"))
    spark.stop()
    write_report(Part.DUPLICATES, written, report)


if __name__ == "__main__":
    typer.run(main)
