"""The report in Markdown, with its plots beside it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.benchmarks.building import IndexJob, IndexMeasurement
from tests.benchmarks.competitors import Name
from tests.benchmarks.datasets import Kind
from tests.benchmarks.measure import mebibytes, slope
from tests.benchmarks.page import Part, write_part
from tests.benchmarks.planning import Planning, section_of
from tests.benchmarks.plots import plot_over_deletes, plot_over_rows
from tests.benchmarks.readers import DUCKDB_SECONDS, Reading
from tests.benchmarks.small_files import SmallFiles
from tests.benchmarks.small_files import section_of as section_of_small_files
from tests.benchmarks.sweep import Point
from worker.spark.jars import own_jars

_METHOD = """\
Keys are dense and in random order over the data files, as upserts leave them, so statistics of data files
exclude nothing. The deleted keys are random ones, in one equality delete file. Times are medians (least-most)
of warm rounds; each round runs every competitor once, in turn:

- `lookup` and `scan` are the stages of a conversion that find the rows, each of them forced;
- `Spark join` joins the same data files and delete keys in Spark SQL for the positions; at most 3 rounds;
- `conversion` is a whole job from planning to commit, with the source that the planner chooses;
- `rewrite_data_files` is Iceberg's own procedure with `delete-file-threshold=1`; one round.

Each is held to the right rows: the last by number and sum over the table, the others by number and sum of
positions in each data file. Memory is resident memory at most: of this process + its JVM + Spark's Python
workers, if it started any."""

_NAMES = " | ".join(Name)


@dataclass
class Results:
    """Everything that a run measured."""

    indexes: list[IndexMeasurement] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    small_files: list[SmallFiles] = field(default_factory=list)
    planning: Planning | None = None

    @property
    def kinds(self) -> list[Kind]:
        return list(dict.fromkeys(point.kind for point in self.points))

    def of(self, kind: Kind) -> list[Point]:
        return [point for point in self.points if point.kind == kind]


def write_report(results: Results, machine: str, path: Path, part: Part | None = None) -> str:
    """Writes `path`, or a part of it, and the plots into a folder named like it; the text.

    The page tells once, before its parts, how they were measured.
    """
    folder = path.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    parts = [
        "# Benchmarks",
        machine,
        *([] if part else [_METHOD]),
        *_planner_section(results.points),
        *_index_section(results.indexes),
        *(part for kind in results.kinds for part in _kind_section(kind, results.of(kind), folder)),
        *_growth_section(results),
        *_memory_section(results),
        *_readers_section(results.readings),
        *([section_of_small_files(results.small_files, table)] if results.small_files else []),
        *(section_of(results.planning) if results.planning is not None else []),
    ]
    text = "\n\n".join(parts) + "\n"
    if part:
        write_part(part, text, path)
    else:
        path.write_text(text)
    return text


def machine(spark: SparkSession | None, *packages: str) -> str:
    """What the figures were measured on: Java and Iceberg if Spark took part, and some Python packages."""
    versions = [f"Python {platform.python_version()}"]
    if spark is not None:
        jvm: Any = spark.sparkContext._jvm
        versions += [
            f"Java {jvm.java.lang.System.getProperty('java.version')}",
            f"Iceberg {own_jars()[0].rpartition(':')[2]}",
        ]
    versions += [f"{name} {version(name)}" for name in packages]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, local disk. {', '.join(versions)}."


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _planner_section(points: Sequence[Point]) -> list[str]:
    if not points:
        return []
    worst = max(points, key=lambda point: point.detour)
    missed = sum(point.detour > 1 for point in points)
    return [
        "## Planner",
        f"In {len(points) - missed} of {len(points)} points the planner chose the faster source. At worst the"
        f" chosen one took {worst.detour:.2f} times as long as the better one: {worst.source} for"
        f" {worst.deletes:,} deletes in {worst.rows:,} rows with {worst.kind} keys (lookup"
        f" {worst.measured[Name.LOOKUP].time}, scan {worst.measured[Name.SCAN].time}).",
    ]


def _index_section(indexes: Sequence[IndexMeasurement]) -> list[str]:
    jobs = [
        (index, name, job)
        for index in indexes
        for name, job in (
            ("build", index.build),
            ("build, unmerged", index.unmerged),
            ("compaction", index.compaction),
        )
    ]
    lookups = [(index, one) for index in indexes for one in index.lookups]
    return [
        "## Index",
        "Whole jobs: a build, which merges the sorted runs of a large load by itself; one that is kept from"
        " doing so; and the compaction of what that left into one run.",
        table(
            "key | rows | job | seconds | M rows/s/core | bytes/entry | runs | read | written | memory",
            ((index.kind, index.rows, name, *_index_figures(job)) for index, name, job in jobs),
        ),
        "### Sorted runs and lookups",
        "The same lookups in the runs of the unmerged build, and in the one that the compaction made.",
        table(
            "key | rows | deletes | sorted runs | lookup | in one run",
            (
                (index.kind, index.rows, one.deletes, index.unmerged.sorted_runs, one.before, one.after)
                for index, one in lookups
            ),
        ),
    ]


def _index_figures(job: IndexJob) -> tuple[object, ...]:
    return (
        f"{job.seconds:.1f}",
        f"{job.entries / job.seconds / 1e6 / (os.cpu_count() or 1):.2f}",
        f"{job.size_bytes / job.entries:.2f}",
        job.sorted_runs,
        mebibytes(job.bytes_read) if job.bytes_read else "",
        mebibytes(job.bytes_written),
        job.memory,
    )


def _kind_section(kind: Kind, points: Sequence[Point], folder: Path) -> list[str]:
    sizes = sorted({point.rows for point in points})
    pictures = []
    for rows in sizes:
        picture = folder / f"{kind}-{rows}.svg"
        plot_over_deletes([point for point in points if point.rows == rows], picture)
        pictures.append(_picture(f"Seconds over deleted keys, {rows:,} rows, {kind} key", picture))
    if len(sizes) > 1:
        picture = folder / f"{kind}-lookup.svg"
        plot_over_rows(points, picture)
        pictures.append(_picture(f"Seconds of the lookup over rows, {kind} key", picture))
    return [
        f"## Finding rows by their {kind} key",
        table(
            f"rows | deletes | {_NAMES} | planner's choice | row groups read",
            (
                (
                    point.rows,
                    point.deletes,
                    *(point.measured[name].time if name in point.measured else "" for name in Name),
                    f"{point.source}, {point.detour:.2f} x the better",
                    f"{point.row_groups_read:,} of {point.row_groups_total:,}",
                )
                for point in points
            ),
        ),
        *pictures,
    ]


def _picture(description: str, path: Path) -> str:
    return f"![{description}]({path.parent.name}/{path.name})"


def _growth_section(results: Results) -> list[str]:
    rows = [
        (kind, what, *exponents)
        for kind in results.kinds
        for what, points, size in _series(results.of(kind))
        if any(exponents := [_exponent(points, size, name) for name in Name])
    ]
    if not rows:
        return []
    return [
        "## Growth",
        "Slopes in log-log, of seconds over the rows N and over the deletes D: 0 is constant, 1 is linear.",
        table(f"key | growth | {_NAMES}", rows),
    ]


def _series(points: Sequence[Point]) -> Iterable[tuple[str, list[Point], str]]:
    """Points that differ in one size only, and which."""
    for rows in sorted({point.rows for point in points}):
        yield f"with D at N = {rows:,}", [p for p in points if p.rows == rows], "deletes"
    for deletes in sorted({point.deletes for point in points}):
        yield f"with N at D = {deletes:,}", [p for p in points if p.deletes == deletes], "rows"


def _exponent(points: Sequence[Point], size: str, name: Name) -> str:
    series = [(getattr(p, size), p.measured[name].time.median) for p in points if name in p.measured]
    return f"{slope(series):.2f}" if len(series) > 1 else ""


def _memory_section(results: Results) -> list[str]:
    return [
        "## Memory",
        table(
            f"key | rows | deletes | at rest | {_NAMES}",
            (
                (
                    point.kind,
                    point.rows,
                    point.deletes,
                    point.at_rest,
                    *(point.measured[name].memory if name in point.measured else "" for name in Name),
                )
                for point in results.points
            ),
        ),
    ]


def _readers_section(readings: Sequence[Reading]) -> list[str]:
    if not readings:
        return []
    return [
        "## Readers",
        "`SELECT count(*), sum(value)` while the equality deletes are pending, and once they are deletion"
        " vectors (V3) or position deletes (V2). Memory is that of Spark's JVM, and of DuckDB's process.",
        table(
            "reader | key | rows | deletes | format | pending | converted | memory pending | converted",
            (
                (
                    one.reader,
                    one.kind,
                    one.rows,
                    one.deletes,
                    f"V{one.format_version}",
                    one.before.time or f"over {DUCKDB_SECONDS} s",
                    one.after.time or f"over {DUCKDB_SECONDS} s",
                    mebibytes(one.before.memory),
                    mebibytes(one.after.memory),
                )
                for one in readings
            ),
        ),
    ]


def table(header: str, rows: Iterable[Sequence[object]]) -> str:
    lines = [header, " | ".join(["---", *["---:"] * header.count(" | ")])]
    lines += [" | ".join(map(_cell, row)) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
