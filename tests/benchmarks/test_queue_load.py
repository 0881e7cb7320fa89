"""The benchmark of the queue runs, on both databases; how fast is for people to look at."""

import re
from pathlib import Path

import pytest

from tests.benchmarks.page import Part, read_part
from tests.benchmarks.queue_load import main
from tests.benchmarks.queue_over_http import Calls

LEAST_CLAIMS, LONGEST_MS = 300, 250
"""A second, with their reports, by 50 workers; and the slowest of them but one in a hundred."""


def test_a_fleet_of_workers_gets_its_jobs_at_once() -> None:
    row = r"^\| (\w+) \| 50 \| 2,000 \| ([\d,]+) \| [\d,]+ ms \| ([\d,]+) ms \| [\d,]+ ms \| 0 \|$"
    rows = re.findall(row, read_part(Part.QUEUE), re.M)
    assert [database for database, *_ in rows] == ["SQLite", "PostgreSQL"]
    for database, claims, longest in rows:
        assert int(claims.replace(",", "")) >= LEAST_CLAIMS, database
        assert int(longest.replace(",", "")) <= LONGEST_MS, database


# Of a command that people run now and then.
@pytest.mark.integration
@pytest.mark.exhaustive
def test_a_short_run_fills_every_figure(tmp_path: Path) -> None:
    path = tmp_path / "queue.md"
    main(workers=4, jobs=20, tables=50, seconds=4, interval=0.5, rest=0.2, hadoop=0.2, report=path)
    report = path.read_text()
    for database in ("SQLite", "PostgreSQL"):
        row = rf"\| {database} \| 4 \| 20 \| [\d,]+ \| [\d,]+ ms \| [\d,]+ ms \| [\d,]+ ms \| \d+ \|"
        assert re.search(row, report)
        for calls in Calls:
            of_calls = rf"\| {database} \| {calls} \| 4 \| 20 \| [\d,]+ \|( [\d,]+ ms \|){{3}} \d+ \|"
            assert re.search(rf"{of_calls}( [\d.]+ ms \|){{3}} [\d.]+ \|", report)
    polling = report.partition("# Polling of many tables")[2]
    # Under load there are few commits, and none of some kind: then nothing was known "-" after them.
    figures = re.findall(r"^\| (?!what|---|tables)([^|]+) \|((?: [\d-][^|]*\|)+)$", polling, re.MULTILINE)
    assert [(name.partition(":")[0].partition(",")[0], cells.count("|")) for name, cells in figures] == [
        ("number", 4),
        ("last look", 4),
        ("p99", 4),
        ("longest", 4),
        ("commits", 4),
        ("known after", 4),
        ("p99", 4),
        ("first look at all tables", 1),
        ("CPU of the service until then", 1),
        ("first look at all tables after a start that knows them", 1),
        ("CPU of the service until then", 1),
        ("CPU of the service while it is left alone", 1),
        ("known after a commit that is told", 1),
        ("claimed after it by a worker that waits", 1),
        ("reads a second", 1),
        ("read", 1),
        ("peak memory of the service (RSS)", 1),
    ]
    # Each second, of 50 tables, one.
    assert not re.search(r"^\| commits \| 0 \| 0 \| 0 \| 0 \|", report, re.MULTILINE)
