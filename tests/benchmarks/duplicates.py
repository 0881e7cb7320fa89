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

from tests.benchmarks.datasets import Dataset, Kind
from tests.benchmarks.measure import Figure, timed
from tests.benchmarks.page import Part, write_part
from tests.benchmarks.report import machine
from worker.spark.session import create_spark

DUPLICATES = 1_000


@dataclass(frozen=True, slots=True)
class DuplicatesMeasurement:
    """Of a table of `rows` rows and DUPLICATES more. unmerged: of as many sorted runs."""

    rows: int
    duplicates: int
    job: Figure
    unmerged: Figure
    runs: int
    duckdb: Figure


def measure_duplicates(dataset: Dataset, rounds: int) -> DuplicatesMeasurement:
    """Every answer is the same: the keys that were appended once more."""
    dataset.load(lambda _: None)
    count = min(DUPLICATES, dataset.rows)
    numbers = np.random.default_rng(7).choice(dataset.rows, count, replace=False)
    dataset.table.append(dataset.kind.keys(numbers))
    try:
        with patch("worker.jobs.indexing.choose_merge_of_new", return_value=None):
            dataset.jobs.run("rebuild", key_sets=[dataset.kind.key])
        unmerged, runs = _report(dataset, count, rounds)
        dataset.jobs.run("rebuild", key_sets=[dataset.kind.key])
        job, _ = _report(dataset, count, rounds)
        return DuplicatesMeasurement(
            dataset.rows, count, job, unmerged, runs, _duckdb(dataset, count, rounds)
        )
    finally:
        dataset.rewind()


def _report(dataset: Dataset, expected: int, rounds: int) -> tuple[Figure, int]:
    """Whole jobs; the sorted runs that they read."""
    seconds, runs = [], 0
    for _ in range(rounds):
        outcome, took = timed(lambda: dataset.jobs.run("report_duplicates"))
        (found,) = outcome.result["key_sets"]
        assert (found["duplicate_keys"], found["duplicate_rows"]) == (expected, 2 * expected)
        seconds.append(took)
        runs = outcome.health["key_sets"][0]["sorted_runs"]
    return Figure(tuple(seconds)), runs


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
A job of kind `report_duplicates` lists them with their rows from the index: of one sorted run, and of a build
that was kept from merging its runs. DuckDB lists the keys alone, from the data files, by
`GROUP BY id HAVING count(*) > 1`. Whole jobs and queries, on {about}

| rows | job, one run | job, {measured.runs} runs | DuckDB |
|---|---|---|---|
| {measured.rows:,} | {measured.job} | {measured.unmerged} | {measured.duckdb} |
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
    if report is None:
        write_part(Part.DUPLICATES, written)
    else:
        report.write_text(written)


if __name__ == "__main__":
    typer.run(main)
