"""What maintenance leaves to readers: a table that a stream has filled with deletes and small files, after
the jobs that maintain it, beside one that has just been written with the same rows.

Both are read in turn, so that whatever else the machine does takes from both alike. `make bench-maintenance`
writes its part of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import duckdb
import numpy as np
from pyspark.sql import SparkSession

from service.reader_cost import Read, Reader, Shape, model
from service.scheduling.worth import Readers, Weighing
from tests.benchmarks.maintenance import BEGIN, policy
from tests.benchmarks.measure import Figure
from tests.benchmarks.page import Part, write_part
from tests.benchmarks.reader_tables import (
    READS,
    Kind,
    collect,
    fetch,
    iceberg_duckdb,
    spark_seconds,
)
from tests.benchmarks.report import machine, table
from tests.factories import TableBuilder, sqlite_catalog
from tests.jobs import Jobs
from worker.demo.table import COLUMNS, KEY, Checkpoint, Orders, OrdersWriter
from worker.spark.session import create_spark

CONVERTED_EACH = 20
"""Checkpoints: a conversion follows, as a policy would start it."""


@dataclass(frozen=True)
class Case:
    """A table, and how it is maintained."""

    name: str
    keeps_large_files: bool = True
    """The first data files are as large as the table wants them; else all files of the table are small, and a
    rewriting takes them all."""
    delete_ratio_threshold: float = 0.3
    """Of rewritings; 0.3 is that of the policy `standard`."""
    is_rewritten: bool = False
    """Whether all files are written anew by Spark, which then writes the other table, too."""
    format_version: Literal[2, 3] = 3
    checkpoints: int = 40
    """Each with four data files and as many equality delete files."""
    changed_share: float = 1 / 1_500
    """Of the rows, in each checkpoint."""
    is_worthwhile: bool = False
    """Whether the threshold is lowered as `convert.when: worthwhile` has it, for readers who use Spark."""

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """That maintain it, with their parameters, in turn."""
        rewriting = {
            "min_input_files": 2,
            "size_ratio": 10**9,
            "delete_ratio_threshold": self.delete_ratio_threshold,
        }
        positions = (
            {"rewrite_position_delete_files": {"min_input_files": 2}} if self.format_version == 2 else {}
        )
        return {
            "convert": {},
            "rewrite_data_files": rewriting,
            **positions,
            "rewrite_manifests": {},
            "expire_snapshots": {"older_than_seconds": 0, "retain_last": 1},
        }


CASES = (
    Case("all files are small", keeps_large_files=False, is_rewritten=True),
    Case("large files, `standard`"),
    Case("large files, threshold 0.01", delete_ratio_threshold=0.01, is_rewritten=True),
    Case("large files, just below 0.01", delete_ratio_threshold=0.01, checkpoints=16),
    Case("large files, `worthwhile`", is_worthwhile=True, is_rewritten=True, checkpoints=16),
    Case("large files, format V2, `standard`", format_version=2),
    Case(
        "large files, format V2, threshold 0.01",
        format_version=2,
        delete_ratio_threshold=0.01,
        is_rewritten=True,
    ),
)
_WARM = 2
_COLUMNS = "count(*), sum(customer_id), max(status), sum(amount_cents), max(updated_at)"


@dataclass(frozen=True)
class Reads:
    """Rounds of one kind of read: by the clock, and of processor time."""

    clock: Figure
    processor: Figure


@dataclass(frozen=True)
class Pair:
    """Rounds of one kind of read, each of both tables."""

    fresh: Reads
    maintained: Reads

    @property
    def ratio(self) -> float:
        """Of what the maintained table took to what the fresh one did: the median over rounds."""
        return _ratio(self.maintained.clock, self.fresh.clock)

    @property
    def processor_ratio(self) -> float:
        return _ratio(self.maintained.processor, self.fresh.processor)


def _ratio(one: Figure, other: Figure) -> float:
    return statistics.median(a / b for a, b in zip(one.seconds, other.seconds, strict=True))


@dataclass(frozen=True)
class Files:
    """What a reader has to do with."""

    shape: Shape
    manifests: int

    @property
    def words(self) -> tuple[str, ...]:
        shape = self.shape
        numbers = (shape.data_files, shape.equality_delete_files, shape.vectors, self.manifests)
        deleted = f"{shape.positions / shape.rows:.1%}"
        return (*(f"{number:,}" for number in numbers), deleted, f"{shape.data_bytes / 1e6:,.1f} MB")


@dataclass(frozen=True)
class Maintained:
    """One table: before and after the jobs that maintain it, and the one that was just written."""

    case: Case
    before: Files
    after: Files
    fresh: Files
    pairs: dict[Kind, Pair]

    def modelled(self, kind: Kind) -> float:
        """How many times what the fresh table takes the maintained one does, by the model."""
        return model().seconds(self.after.shape, *kind) / model().seconds(self.fresh.shape, *kind)

    @property
    def off_by(self) -> list[float]:
        """The factor by which the model is off about the seconds of each read, of both tables."""
        told = [
            (model().seconds(files.shape, *kind), reads.processor.median)
            for kind, pair in self.pairs.items()
            for files, reads in ((self.fresh, pair.fresh), (self.after, pair.maintained))
        ]
        return [max(seconds / took, took / seconds) for seconds, took in told]


def measure(
    spark: SparkSession,
    directory: Path,
    case: Case,
    rows: int,
    rounds: int,
    say: Callable[[str], None] = lambda _: None,
) -> Maintained:
    catalog = sqlite_catalog(spark, f"maintained_{directory.name}", directory)
    identifier, fresh_name = f"{catalog.name}.db.maintained", f"{catalog.name}.db.fresh"
    orders = Orders(rows)
    maintained = _create(spark, identifier, case)
    writer = OrdersWriter(maintained.java)
    writer.append(orders.visible)
    properties: dict[str, str] = {}
    large_files = 0
    if case.keeps_large_files:
        shape = files_of(spark, identifier).shape
        large_files = shape.data_files
        properties = {"write.target-file-size-bytes": str(max(shape.data_bytes // large_files, 2**20))}
        told = ", ".join(f"'{name}'='{value}'" for name, value in properties.items())
        spark.sql(f"ALTER TABLE {identifier} SET TBLPROPERTIES ({told})")
    jobs = Jobs(spark, catalog, identifier, directory / "index")
    jobs.run("index")
    for number in range(1, case.checkpoints + 1):
        writer.commit(_changes(orders, case))
        if number % CONVERTED_EACH == 0 and number < case.checkpoints:
            jobs.run("convert")
            jobs.run("index")
            say(f"{number} of {case.checkpoints} checkpoints")
    before = files_of(spark, identifier)
    for job, parameters in case.jobs.items():
        say(job)
        if case.is_worthwhile and job == "rewrite_data_files":
            shape = files_of(spark, identifier).shape
            small = shape.data_files - large_files
            parameters = parameters | {"delete_ratio_threshold": _worthwhile_threshold(shape, small)}
        jobs.run(job, parameters=parameters)
    fresh = _create(spark, fresh_name, case, properties)
    if case.is_rewritten:
        spark.sql(f"INSERT INTO {fresh_name} SELECT * FROM {identifier}")
    else:
        OrdersWriter(fresh.java).append(orders.visible)
    _check_alike(spark, identifier, fresh_name, len(orders.visible))
    after, of_fresh = (files_of(spark, each) for each in (identifier, fresh_name))
    pairs = {
        kind: Pair(*both)
        for kind, both in _read_in_turn(spark, [fresh, maintained], rows // 3, rounds).items()
    }
    measured = Maintained(case, before, after, of_fresh, pairs)
    for words in _rows_of(measured):
        say(" | ".join(map(str, words)))
    return measured


def _worthwhile_threshold(shape: Shape, small_files: int) -> float:
    """Of the rewriting that the policy starts once readers have paid for it; if it never does, that of
    `standard`."""
    large = shape.data_files - small_files
    fresh = Shape(large, shape.rows - shape.positions, data_bytes=shape.data_bytes)
    readers = Readers(shape, fresh, small_files, 0, 0, 0, None, BEGIN, deleted_since=BEGIN)
    weighed = Weighing(readers, policy("worthwhile"))
    is_due = weighed.is_rewriting_all_worth_it(BEGIN + timedelta(days=366))
    ratio = weighed.delete_ratio if is_due else None
    return min(ratio or 1, weighed.policy.rewrite_data_files.delete_ratio_threshold)


def _create(
    spark: SparkSession, identifier: str, case: Case, properties: Mapping[str, str] | None = None
) -> TableBuilder:
    return TableBuilder.create(
        spark,
        identifier,
        COLUMNS,
        format_version=case.format_version,
        partitioned_by=["region"],
        identifier_fields=KEY,
        properties=properties,
    )


def _changes(orders: Orders, case: Case) -> Checkpoint:
    """Of one checkpoint. The writer knows vectors alone, so a row of format version 2 is written once."""
    checkpoint = orders.advance(round(len(orders.visible) * case.changed_share))
    if case.format_version == 3:
        return checkpoint
    rows = checkpoint.rows[~checkpoint.overwritten]
    return replace(checkpoint, rows=rows, overwritten=np.zeros(len(rows), np.bool_))


def _check_alike(spark: SparkSession, one: str, other: str, rows: int) -> None:
    found = {tuple(spark.sql(f"SELECT {_COLUMNS} FROM {each}").collect()[0]) for each in (one, other)}
    ((number, *_),) = found
    assert number == rows


def files_of(spark: SparkSession, identifier: str) -> Files:
    """What the head of a table has."""
    found = spark.sql(
        "SELECT content, count(*), sum(record_count), sum(file_size_in_bytes)"
        f" FROM {identifier}.files GROUP BY content"
    ).collect()
    by_content = {content: told for content, *told in found}
    (files, rows, size), (vectors, positions, _), (equality, deletes, _) = (
        by_content.get(content, (0, 0, 0)) for content in (0, 1, 2)
    )
    ((manifests,),) = spark.sql(f"SELECT count(*) FROM {identifier}.manifests").collect()
    return Files(Shape(files, rows, equality, deletes, vectors, positions, size), manifests)


def _read_in_turn(
    spark: SparkSession, tables: Sequence[TableBuilder], key: int, rounds: int
) -> dict[Kind, list[Reads]]:
    """Of each kind, reads of each table, warm; without those that take DuckDB too long."""
    queries = {
        Read.FULL: f"SELECT {_COLUMNS} FROM {{}}",
        Read.POINT: f"SELECT * FROM {{}} WHERE order_id = {key}",
    }
    for one in tables:
        spark.sql(f"REFRESH TABLE {one.identifier}")
    found: dict[Kind, list[Reads]] = {}
    with iceberg_duckdb() as connection:
        for read, query in queries.items():
            of_spark = [partial(collect, spark, query.format(one.identifier)) for one in tables]
            scans = [f"iceberg_scan('{one.metadata_location}')" for one in tables]
            of_duckdb = [partial(fetch, connection, query.format(scan)) for scan in scans]
            clock = partial(spark_seconds, spark)
            found[Reader.SPARK, read] = _in_turn(of_spark, clock, rounds)
            with suppress(duckdb.InterruptException):
                found[Reader.DUCKDB, read] = _in_turn(of_duckdb, time.process_time, rounds)
    return found


def _in_turn(reads: Sequence[Callable[[], object]], clock: Callable[[], float], rounds: int) -> list[Reads]:
    """Whoever comes first comes last in the next round. The first rounds only warm up."""
    found: list[list[tuple[float, float]]] = [[] for _ in reads]
    for number in range(_WARM + rounds):
        order = range(len(reads))
        for at in order if number % 2 else reversed(order):
            began, used = time.perf_counter(), clock()
            reads[at]()
            found[at].append((time.perf_counter() - began, max(clock() - used, 0.001)))
    return [Reads(*(Figure(each) for each in zip(*one[_WARM:], strict=True))) for one in found]


def _rows_of(measured: Maintained) -> list[Sequence[object]]:
    return [
        (
            measured.case.name,
            READS[kind],
            pair.fresh.processor,
            pair.maintained.processor,
            f"{pair.processor_ratio:.2f}",
            f"{measured.modelled(kind):.2f}",
            f"{pair.ratio:.2f}",
        )
        for kind, pair in measured.pairs.items()
    ]


def report_of(measured: Sequence[Maintained], rows: int, rounds: int, load: float, about: str) -> str:
    """In Markdown, its first line the title. load: of the machine meanwhile."""
    files = [
        (one.case.name, when, *found.words)
        for one in measured
        for when, found in (("before", one.before), ("after", one.after), ("just written", one.fresh))
    ]
    changes = round(rows * CASES[0].changed_share)
    off_by = [factor for one in measured for factor in one.off_by]
    return "\n\n".join(
        [
            "# Reads after maintenance",
            f"`make bench-maintenance` on {about}",
            f"The table of `icestream demo` with {rows:,} rows in four partitions, and"
            f" {CASES[0].checkpoints} checkpoints of some {changes:,} changes, each with four data files and"
            f" four equality delete files; a conversion after each {CONVERTED_EACH} of them. Then the jobs"
            " that maintain it, once each: `convert`, `rewrite_data_files`,"
            " `rewrite_position_delete_files` (of format V2 alone), `rewrite_manifests`,"
            " `expire_snapshots`. Beside it, a table that has just been written with the same rows.",
            "Once all data files are small, since the table wants them of 512 MiB, and all are written"
            " anew. In the other cases the table wants them as large as those that it began with. By the"
            " `delete_ratio_threshold` of `standard` (0.3) these stay, with deletes by position; by one of"
            " 0.01 they are written anew, but not where fewer rows are deleted, as after 16 checkpoints; by"
            " `convert.when: worthwhile` they are, once Spark's readers have paid for that: the threshold is"
            " what the scheduler's weighing then says of the table."
            " Where all files were written anew, Spark has written the other table, else the writer of the"
            " first files.",
            table(
                "table | | data files | equality delete files | vectors or position delete files"
                " | manifests | rows deleted by position | data",
                files,
            ),
            f"Both tables are read in turn, {rounds} rounds of each kind, warm: medians (least-most) of"
            " processor time. The ratio is the median over rounds of what the maintained table took to what"
            " the other one did in the same round; beside it, what [the model](reader-cost.md#the-model)"
            " says, which was not fitted to these tables, and the ratio by the clock. The machine did other"
            f" things meanwhile: its load was {load:.1f} on {os.cpu_count()} cores, so the clock says"
            " little.",
            table(
                "table | read | just written | maintained | ratio | by the model | by the clock",
                [row for one in measured for row in _rows_of(one)],
            ),
            f"Of what these {len(off_by)} reads took, the model tells"
            f" {sum(factor <= 2 for factor in off_by)} within a factor of two, and all within"
            f" {max(off_by):.2f}.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=11)
    asked = parser.parse_args()
    loads: list[float] = []

    def say(words: str) -> None:
        loads.append(os.getloadavg()[0])
        print(words, flush=True)  # noqa: T201

    spark = create_spark("local[2]", "maintained reads")
    measured = []
    with tempfile.TemporaryDirectory() as name:
        for number, case in enumerate(CASES):
            directory = Path(name) / f"case{number}"
            measured.append(measure(spark, directory, case, asked.rows, asked.rounds, say))
            shutil.rmtree(directory)
    about = machine(spark, "pyspark", "duckdb")
    spark.stop()
    report = report_of(measured, asked.rows, asked.rounds, statistics.median(loads), about)
    print(report)  # noqa: T201
    write_part(Part.MAINTAINED_READS, report)


if __name__ == "__main__":
    main()
