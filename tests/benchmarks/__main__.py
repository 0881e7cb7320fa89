"""`make bench`: measures on tables that are made once and kept, and writes a Markdown report."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tests.benchmarks.datasets import Dataset, Kind
from tests.benchmarks.measure import PeakMemory, peak_memory, slope, timed
from tests.benchmarks.sweep import Point, sweep
from worker.session import create_spark

QUICK_ROWS = 50_000


def main(
    rows: Annotated[list[int] | None, typer.Option(help="rows of a table; may be repeated")] = None,
    deletes: Annotated[list[int] | None, typer.Option(help="keys to delete; may be repeated")] = None,
    kind: Annotated[list[Kind] | None, typer.Option(help="what the key is; may be repeated")] = None,
    rounds: Annotated[int, typer.Option(help="of every measurement")] = 5,
    quick: Annotated[bool, typer.Option(help="small tables: does the harness work?")] = False,
    directory: Annotated[Path, typer.Option(help="where tables are kept")] = Path("build/benchmarks"),
    report: Annotated[Path | None, typer.Option(help="a Markdown file to write")] = None,
) -> None:
    """Measure building the index, looking keys up, and converting, beside a scan and Spark's own join."""
    sizes = [QUICK_ROWS] if quick else rows or [10_000_000]
    counts = [1, 100] if quick else deletes or [1, 100, 1_000, 10_000, 100_000, 1_000_000]
    console = Console(stderr=True)
    spark = create_spark("local[*]", "benchmarks")
    spark.sparkContext.setLogLevel("ERROR")
    parts = [_header()]
    with console.status("starting") as status:
        for one in kind or [Kind.INT64]:
            points: list[Point] = []
            for size in sizes:
                name = f"{one}-{size}-v3"
                dataset = Dataset(spark, directory.resolve() / name, one, size, 3)
                dataset.load(lambda what, name=name: status.update(f"{name}: {what}"))  # type: ignore[misc]
                status.update(f"{name}: building the index")
                parts.append(_build_line(dataset))
                points += sweep(dataset, counts, 2 if quick else rounds, status.update)
            parts.append(_table(one, points))
    spark.stop()
    text = "\n\n".join(parts) + "\n"
    print(text)  # noqa: T201
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(text)


def _header() -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("pyspark", "pyarrow", "numpy", "pypaimon"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}, {versions}."


def _build_line(dataset: Dataset) -> str:
    """Builds the index anew, whatever an earlier run left."""
    seconds = 0.0

    def build() -> None:
        nonlocal seconds
        seconds = timed(lambda: dataset.jobs.run("rebuild", key_sets=[dataset.kind.key]))

    memory = peak_memory(dataset.spark, build)
    (key_set,) = dataset.jobs.run("index", key_sets=[dataset.kind.key]).health["key_sets"]
    return (
        f"Index of {dataset.rows:,} {dataset.kind} keys: built in {seconds:.1f} s"
        f" ({dataset.rows / seconds / 1e6 / (os.cpu_count() or 1):.2f} M rows/s/core),"
        f" {key_set['bytes'] / key_set['entries']:.2f} bytes an entry, {key_set['sorted_runs']} sorted runs,"
        f" peak memory {_memory(memory)}."
    )


def _table(kind: Kind, points: list[Point]) -> str:
    lines = [
        f"Key {kind}; median (least-most) seconds, warm:",
        "",
        "| rows | deletes | lookup | scan | Spark join | whole conversion | row groups read | peak memory |",
        "|---:|---:|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {p.rows:,} | {p.deletes:,} | {p.lookup} | {p.scan} | {p.spark_join} | {p.conversion} |"
        f" {p.row_groups_read:,} of {p.row_groups_total:,} | {_memory(p.memory)} |"
        for p in points
    ]
    for count in sorted({p.deletes for p in points}):
        growth = [(p.rows, p.lookup.median) for p in points if p.deletes == count and p.lookup.median > 0]
        if len(growth) > 1:
            lines.append(f"\nLookup of {count:,} keys grows as rows^{slope(growth):.2f}.")
    return "\n".join(lines)


def _memory(memory: PeakMemory) -> str:
    return f"{memory.python / 2**20:,.0f} MiB and {memory.jvm / 2**20:,.0f} MiB of the JVM"


if __name__ == "__main__":
    typer.run(main)
