"""What maintenance leaves to readers: a table that a stream has filled with deletes and small files, after
the jobs that maintain it, beside one that has just been written with the same rows.

Both are read in turn, so that whatever else the machine does takes from both alike. `make bench-maintenance`
writes its part of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
from pyspark.sql import SparkSession

from service.reader_cost import Read, Reader
from tests.benchmarks.measure import Figure
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
from tests.factories import TableBuilder, sqlite_catalog
from tests.jobs import Jobs
from worker.demo.table import COLUMNS, Orders, OrdersWriter
from worker.spark.session import create_spark

CHANGES = 2_000
"""Of each checkpoint: with four data files and as many equality delete files."""
CONVERTED_EACH = 20
"""Checkpoints: a conversion follows, as a policy would start it."""
MAINTENANCE: dict[str, dict[str, Any]] = {
    "convert": {},
    "rewrite_data_files": {"min_input_files": 2, "size_ratio": 10**9},
    "rewrite_manifests": {},
    "expire_snapshots": {"older_than_seconds": 0, "retain_last": 1},
}
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

    data_files: int
    data_bytes: int
    equality_delete_files: int
    vectors: int
    manifests: int

    @property
    def words(self) -> tuple[str, ...]:
        numbers = (self.data_files, self.equality_delete_files, self.vectors, self.manifests)
        return (*(f"{number:,}" for number in numbers), f"{self.data_bytes / 1e6:,.1f} MB")


@dataclass(frozen=True)
class Maintained:
    """One table: before and after the jobs that maintain it, and the one that was just written."""

    name: str
    before: Files
    after: Files
    fresh: Files
    read_before: dict[Kind, Reads]
    pairs: dict[Kind, Pair]


def measure(
    spark: SparkSession,
    directory: Path,
    rows: int,
    checkpoints: int,
    rounds: int,
    *,
    keeps_large_files: bool,
    say: Callable[[str], None] = lambda _: None,
) -> Maintained:
    """keeps_large_files: the first data files are as large as the table wants them, so that a rewriting
    leaves them, with their vectors; else all files of the table are small, and are written anew."""
    name = "large" if keeps_large_files else "small"
    catalog = sqlite_catalog(spark, f"maintained_{name}", directory)
    identifier, fresh_name = f"{catalog.name}.db.maintained", f"{catalog.name}.db.fresh"
    orders = Orders(rows)
    writer = OrdersWriter.create(spark, identifier)
    writer.append(orders.visible)
    maintained = TableBuilder(spark, identifier)
    if keeps_large_files:
        size = files_of(spark, identifier)
        properties = f"'write.target-file-size-bytes'='{max(size.data_bytes // size.data_files, 2**20)}'"
        spark.sql(f"ALTER TABLE {identifier} SET TBLPROPERTIES ({properties})")
    jobs = Jobs(spark, catalog, identifier, directory / "index")
    jobs.run("index")
    for number in range(1, checkpoints + 1):
        writer.commit(orders.advance(CHANGES))
        if number % CONVERTED_EACH == 0 and number < checkpoints:
            jobs.run("convert")
            jobs.run("index")
            say(f"{number} of {checkpoints} checkpoints")
    before, key = files_of(spark, identifier), rows // 3
    read_before = {kind: one for kind, (one,) in _read_in_turn(spark, [maintained], key, 1, warm=1).items()}
    for job, parameters in MAINTENANCE.items():
        say(job)
        jobs.run(job, parameters=parameters)
    if keeps_large_files:
        OrdersWriter.create(spark, fresh_name).append(orders.visible)
    else:
        spark.sql(
            f"CREATE TABLE {fresh_name} ({COLUMNS}) USING iceberg PARTITIONED BY (region)"
            " TBLPROPERTIES ('format-version'='3')"
        )
        spark.sql(f"INSERT INTO {fresh_name} SELECT * FROM {identifier}")
    fresh = TableBuilder(spark, fresh_name)
    _check_alike(spark, identifier, fresh_name, len(orders.visible))
    pairs = {}
    for kind, (of_fresh, of_maintained) in _read_in_turn(spark, [fresh, maintained], key, rounds).items():
        pairs[kind] = Pair(of_fresh, of_maintained)
        say(f"{READS[kind]}: {pairs[kind].ratio:.2f}, processor time {pairs[kind].processor_ratio:.2f}")
    words = "large files stay" if keeps_large_files else "all files are small"
    after, of_fresh_files = (files_of(spark, each) for each in (identifier, fresh_name))
    return Maintained(words, before, after, of_fresh_files, read_before, pairs)


def _check_alike(spark: SparkSession, one: str, other: str, rows: int) -> None:
    found = {tuple(spark.sql(f"SELECT {_COLUMNS} FROM {each}").collect()[0]) for each in (one, other)}
    ((number, *_),) = found
    assert number == rows


def files_of(spark: SparkSession, identifier: str) -> Files:
    """What the head of a table has."""
    rows = spark.sql(
        f"SELECT content, count(*), sum(file_size_in_bytes) FROM {identifier}.files GROUP BY content"
    ).collect()
    found = {content: (number, size) for content, number, size in rows}
    ((manifests,),) = spark.sql(f"SELECT count(*) FROM {identifier}.manifests").collect()
    data, vectors, equality = (found.get(content, (0, 0)) for content in (0, 1, 2))
    return Files(data[0], data[1], equality[0], vectors[0], manifests)


def _read_in_turn(
    spark: SparkSession, tables: Sequence[TableBuilder], key: int, rounds: int, warm: int = 2
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
            found[Reader.SPARK, read] = _in_turn(of_spark, clock, rounds, warm)
            with suppress(duckdb.InterruptException):
                found[Reader.DUCKDB, read] = _in_turn(of_duckdb, time.process_time, rounds, warm)
    return found


def _in_turn(
    reads: Sequence[Callable[[], object]], clock: Callable[[], float], rounds: int, warm: int
) -> list[Reads]:
    """Whoever comes first comes last in the next round. warm: rounds before those that count."""
    found: list[list[tuple[float, float]]] = [[] for _ in reads]
    for number in range(warm + rounds):
        order = range(len(reads))
        for at in order if number % 2 else reversed(order):
            began, used = time.perf_counter(), clock()
            reads[at]()
            found[at].append((time.perf_counter() - began, max(clock() - used, 0.001)))
    return [Reads(*(Figure(each) for each in zip(*one[warm:], strict=True))) for one in found]


def report_of(measured: Sequence[Maintained], rows: int, checkpoints: int, rounds: int, about: str) -> str:
    """In Markdown, its first line the title."""
    files = [
        (one.name, when, *found.words)
        for one in measured
        for when, found in (("before", one.before), ("after", one.after), ("just written", one.fresh))
    ]
    reads = [
        (
            one.name,
            READS[kind],
            one.read_before[kind].clock if kind in one.read_before else f"over {DUCKDB_SECONDS:.0f} s",
            pair.fresh.clock,
            pair.maintained.clock,
            f"{pair.ratio:.2f}",
            f"{pair.processor_ratio:.2f}",
        )
        for one in measured
        for kind, pair in one.pairs.items()
    ]
    return "\n\n".join(
        [
            "# Reads after maintenance",
            f"`make bench-maintenance` on {about}",
            f"The table of `icestream demo` with {rows:,} rows in four partitions, format version 3, and"
            f" {checkpoints} checkpoints of {CHANGES:,} changes, each with four data files and four equality"
            f" delete files; a conversion after each {CONVERTED_EACH} of them. Then the jobs that maintain"
            f" it, once each: {', '.join(f'`{kind}`' for kind in MAINTENANCE)}. Beside it, a table that has"
            " just been written with the same rows. Once all data files are small, since the table wants them"
            " of 512 MiB, and Spark writes the other one, too. And once the table wants them as large as"
            " those that it began with, so that these stay, with their vectors; then the writer of these"
            " writes the other one.",
            table("table | | data files | equality delete files | vectors | manifests | data", files),
            f"Both tables are read in turn, {rounds} rounds of each kind, warm: medians (least-most) by the"
            " clock. The ratio is the median over rounds of what the maintained table took to what the other"
            " one did in the same round, by the clock and of processor time.",
            table("table | read | before | just written | maintained | ratio | of processor time", reads),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--checkpoints", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=11)
    asked = parser.parse_args()
    say = partial(print, flush=True)
    spark = create_spark("local[2]", "maintained reads")
    measured = []
    for keeps_large_files in (False, True):
        with tempfile.TemporaryDirectory() as name:
            sizes = (asked.rows, asked.checkpoints, asked.rounds)
            measured.append(measure(spark, Path(name), *sizes, keeps_large_files=keeps_large_files, say=say))
    about = machine(spark, "pyspark", "duckdb")
    spark.stop()
    report = report_of(measured, asked.rows, asked.checkpoints, asked.rounds, about)
    print(report)  # noqa: T201
    write_part(Part.MAINTAINED_READS, report)


if __name__ == "__main__":
    main()
