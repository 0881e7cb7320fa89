"""Lookup and scan side by side, while a stream of checkpoints leaves more and more small data files.

The table of `icestream demo`. `python -m tests.benchmarks.small_files` prints the section of the report.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql import SparkSession

from tests.benchmarks.competitors import choosing
from tests.benchmarks.measure import Figure, timed
from tests.factories import sqlite_catalog
from tests.jobs import Jobs
from worker.demo.table import KEY, Orders, OrdersWriter
from worker.lookup.cost import Source
from worker.lookup.resolution import PendingDeletes
from worker.spark.session import create_spark

ROWS = 3_000_000
CHECKPOINTS = (0, 25, 100, 250, 500)
CHANGES = 2_000
INDEXED_CHECKPOINTS = 12
"""Of each index job, as under `standard` with a checkpoint every five seconds."""


@dataclass(frozen=True, slots=True)
class SmallFiles:
    """What finding the rows of one checkpoint's deletes took, and what the planner chose."""

    data_files: int
    rows: int
    sorted_runs: int
    lookup: Figure
    scan: Figure
    source: str
    reason: str


def measure_small_files(
    spark: SparkSession,
    directory: Path,
    rows: int = ROWS,
    checkpoints: Sequence[int] = CHECKPOINTS,
    rounds: int = 3,
) -> list[SmallFiles]:
    """checkpoints: after how many it is measured; ascending."""
    catalog = sqlite_catalog(spark, "small_files", directory)
    identifier = f"{catalog.name}.demo.orders"
    orders = Orders(rows)
    writer = OrdersWriter.create(spark, identifier)
    writer.append(orders.visible)
    jobs = Jobs(spark, catalog, identifier, directory / "index")
    jobs.run("index")
    done, measured = 0, []
    for count in checkpoints:
        while done < count:
            for _ in range(min(INDEXED_CHECKPOINTS, count - done)):
                writer.commit(orders.advance(CHANGES))
                done += 1
            jobs.run("convert")
            jobs.run("index")
        writer.commit(orders.advance(CHANGES))
        jobs.run("index")
        done += 1
        measured.append(_measure(jobs, rounds))
    return measured


def _measure(jobs: Jobs, rounds: int) -> SmallFiles:
    chosen = jobs.run("convert", dry_run=True)
    (index,) = chosen.health["key_sets"]
    seconds = {source: _seconds(jobs, source, rounds) for source in (Source.INDEX, Source.SCAN)}
    (key_set,) = chosen.result["key_sets"]
    return SmallFiles(
        index["files_total"],
        index["entries"],
        index["sorted_runs"],
        Figure(seconds[Source.INDEX]),
        Figure(seconds[Source.SCAN]),
        key_set["source"],
        key_set["reason"],
    )


def _seconds(jobs: Jobs, source: Source, rounds: int) -> tuple[float, ...]:
    """Of the stage that finds the rows, with this source whatever the planner would choose."""
    find = PendingDeletes.find
    times: list[float] = []

    def clocked_find(*arguments: Any) -> Any:
        found, seconds = timed(lambda: find(*arguments))
        times.append(seconds)
        return found

    with choosing(source), patch.object(PendingDeletes, "find", clocked_find):
        for _ in range(rounds + 1):
            (key_set,) = jobs.run("convert", dry_run=True).result["key_sets"]
            assert key_set["source"] == source
    return tuple(times[1:])  # the first warms up


def section_of(
    measured: Iterable[SmallFiles], table: Callable[[str, Iterable[Sequence[object]]], str]
) -> str:
    """The report's words about it."""
    return "\n\n".join(
        [
            "## Small files",
            f"The table of `icestream demo`, with the key ({', '.join(KEY)}): a stream of checkpoints, each"
            f" with four data files and about {CHANGES:,} deletes of random keys. The index is not compacted;"
            f" a sorted run is of {INDEXED_CHECKPOINTS} checkpoints or fewer. Medians (least-most).",
            table(
                "data files | rows in them | sorted runs | lookup | scan | planner's choice",
                (
                    (one.data_files, one.rows, one.sorted_runs, one.lookup, one.scan, one.source)
                    for one in measured
                ),
            ),
        ]
    )


if __name__ == "__main__":
    from tests.benchmarks.report import table

    with tempfile.TemporaryDirectory() as name:
        session = create_spark("local[*]", "small files")
        print(section_of(measure_small_files(session, Path(name)), table))  # noqa: T201
        session.stop()
