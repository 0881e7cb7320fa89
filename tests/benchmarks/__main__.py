"""`make bench`: measures on tables that are made once and kept, and writes a Markdown report with plots."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.status import Status

from tests.benchmarks.building import measure_index
from tests.benchmarks.datasets import Dataset, Kind
from tests.benchmarks.page import PAGE, Part
from tests.benchmarks.planning import measure_planning
from tests.benchmarks.plans import Plan, plan_of
from tests.benchmarks.readers import read_before_and_after
from tests.benchmarks.report import Results, machine, write_report
from tests.benchmarks.small_files import measure_small_files
from tests.benchmarks.sweep import sweep
from worker.spark.session import create_spark


def main(
    rows: Annotated[list[int] | None, typer.Option(help="rows of a table; may be repeated")] = None,
    deletes: Annotated[list[int] | None, typer.Option(help="keys to delete; may be repeated")] = None,
    rewrites: Annotated[list[int] | None, typer.Option(help="deletes to rewrite tables at; 0: none")] = None,
    kind: Annotated[list[Kind] | None, typer.Option(help="what the key is; may be repeated")] = None,
    rounds: Annotated[int | None, typer.Option(help="of every measurement; of slow ones fewer")] = None,
    quick: Annotated[bool, typer.Option(help="small tables: does the harness work?")] = False,
    directory: Annotated[Path, typer.Option(help="where tables are kept")] = Path("build/benchmarks"),
    part: Annotated[Part, typer.Option(help="which part of docs/benchmarks.md to write")] = Part.INT64,
    report: Annotated[Path | None, typer.Option(help="a Markdown file of its own to write instead")] = None,
) -> None:
    """Measure index, lookup, conversion and readers, beside a scan, Spark's join and rewriting the table."""
    started = time.monotonic()
    options: dict[str, Any] = {"rows": rows, "deletes": deletes, "rewrites": rewrites, "rounds": rounds}
    asked = {name: value for name, value in options.items() if value}
    results = Results()
    with Console(stderr=True).status("starting") as status:
        spark = create_spark("local[*]", "benchmarks")
        spark.sparkContext.setLogLevel("ERROR")
        for one in kind or Kind:
            plan = replace(plan_of(one, quick=quick), **asked)
            if one is not Kind.INT64:  # what they add to the picture shows on the smallest table
                plan = replace(plan, rows=plan.rows[:1])
            for size in plan.rows:
                name = f"{one}-{size}-v3"
                dataset = Dataset(spark, directory.resolve() / name, one, size)
                _measure(dataset, plan.at(size), results, _speaker(status, name))
        status.update("small files")
        with tempfile.TemporaryDirectory() as name:
            sizes: dict[str, Any] = {"rows": 20_000, "checkpoints": (0, 3), "rounds": 1} if quick else {}
            results.small_files = measure_small_files(spark, Path(name), **sizes)
        status.update("planning")
        results.planning = measure_planning(2_000, 200) if quick else measure_planning()
        about = machine(spark, "pyspark", "pyarrow", "numpy", "pypaimon", "pyiceberg", "duckdb")
        spark.stop()
    command = _command(asked | {"kind": kind or []}, quick=quick)
    took = f"{command} took {(time.monotonic() - started) / 60:.1f} minutes on {about}"
    alone = report or (directory / "quick.md" if quick else None)
    print(write_report(results, took, alone or PAGE, None if alone else part))  # noqa: T201


def _measure(dataset: Dataset, plan: Plan, results: Results, say: Callable[[str], None]) -> None:
    dataset.load(say)
    results.indexes.append(measure_index(dataset, plan.runs, plan.rounds, say))
    results.points += sweep(dataset, plan.deletes, plan.rounds, plan.rewrites, say)
    for count in plan.readers:
        results.readings += read_before_and_after(dataset, count, plan.rounds, say)


def _speaker(status: Status, name: str) -> Callable[[str], None]:
    return lambda what: status.update(f"{name}: {what}")


def _command(asked: Mapping[str, Any], *, quick: bool) -> str:
    """What to type for the same figures; where they are kept is left out."""
    words = ["--quick"] * quick
    for name, values in asked.items():
        words += [f"--{name} {value}" for value in (values if isinstance(values, list) else [values])]
    return f'`make bench ARGS="{" ".join(words)}"`' if words else "`make bench`"


if __name__ == "__main__":
    typer.run(main)
