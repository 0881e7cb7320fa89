"""What a query of the table costs its readers while equality deletes are pending, and once they are not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.competitors import visible_rows
from tests.benchmarks.datasets import Dataset, Kind, Pending
from tests.benchmarks.measure import Figure, high_water_mark, timed, with_peak_memory

QUERY_ROUNDS = 2
# For all rounds. DuckDB compares every row with every equality delete: 100,000 of them would take it hours.
DUCKDB_SECONDS = 30

Rows = tuple[int, int]


@dataclass(frozen=True)
class Query:
    """Time when warm, None if past the limit; and bytes of resident memory at most, of the process."""

    time: Figure | None
    memory: int


@dataclass(frozen=True)
class Reading:
    """One reader of one table, before the conversion and after it."""

    reader: str
    kind: Kind
    rows: int
    deletes: int
    format_version: int
    before: Query
    after: Query


def read_before_and_after(
    dataset: Dataset, count: int, rounds: int, say: Callable[[str], None]
) -> list[Reading]:
    """Both formats, both readers."""
    readings = []
    for table in (dataset, dataset.twin):
        with table.deletes(count) as pending:
            before, rows = _read(pending, rounds, "with equality deletes", say)
            assert table.jobs.run("convert").result["rows_deleted"] == count
            after, rows_after = _read(pending, rounds, "after the conversion", say)
        assert rows_after == rows
        readings += [
            Reading(name, table.kind, table.rows, count, table.format_version, before[name], after[name])
            for name in before
        ]
    return readings


def _read(
    pending: Pending, rounds: int, when: str, say: Callable[[str], None]
) -> tuple[dict[str, Query], Rows]:
    """Every reader's query, and the rows that they all saw."""
    dataset = pending.dataset
    queries: dict[str, Query] = {}
    seen: set[Rows] = set()
    for name, read in (("Spark", _read_with_spark), ("DuckDB", _read_with_duckdb)):
        say(f"{name} reads the V{dataset.format_version} table {when} of {pending.count:,} keys")
        queries[name], rows = read(dataset, min(rounds, QUERY_ROUNDS))
        seen |= rows
    (rows_seen,) = seen
    assert rows_seen[0] == dataset.rows - pending.count
    return queries, rows_seen


def _read_with_spark(dataset: Dataset, rounds: int) -> tuple[Query, set[Rows]]:
    results, memory = with_peak_memory(
        dataset.spark, lambda: [timed(lambda: visible_rows(dataset)) for _ in range(rounds + 1)]
    )
    return Query(_warm([seconds for _, seconds in results]), memory.jvm), {rows for rows, _ in results}


def _read_with_duckdb(dataset: Dataset, rounds: int) -> tuple[Query, set[Rows]]:
    script = Path(__file__).with_name("duckdb_reader.py")
    arguments = (script, dataset.table.metadata_location, rounds + 1, DUCKDB_SECONDS)
    command = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        answer = json.loads(process.stdout.readline())
        memory = high_water_mark(process.pid)
    return Query(_warm(answer["seconds"]), memory), {(rows[0], rows[1]) for rows in answer["rows"]}


def _warm(seconds: list[float]) -> Figure | None:
    """Without the first round, unless it is all there is."""
    return Figure(tuple(seconds[1:] or seconds)) if seconds else None
