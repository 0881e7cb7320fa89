"""The benchmark of the queue runs, on both databases; how fast is for people to look at."""

import re
from pathlib import Path

import pytest

from tests.benchmarks.queue_load import main

pytestmark = pytest.mark.integration


def test_a_short_run_fills_every_figure(tmp_path: Path) -> None:
    path = tmp_path / "queue.md"
    main(workers=4, jobs=20, tables=30, seconds=3, interval=0.5, report=path)
    report = path.read_text()
    for database in ("SQLite", "PostgreSQL"):
        row = rf"\| {database} \| 4 \| 20 \| [\d,]+ \| [\d,]+ ms \| [\d,]+ ms \| [\d,]+ ms \|"
        assert re.search(row, report)
    figures = re.findall(r"^\| (?!what|---)([^|]+) \| ([\d.,]+)[^|]*\|$", report, re.MULTILINE)
    assert [name.partition(":")[0].partition(",")[0] for name, _ in figures] == [
        "first look at all tables",
        "last look at a table",
        "p99",
        "longest",
        "a commit is known after",
        "p99",
        "reads a second",
        "read",
        "peak memory of the service (RSS)",
    ]
    assert re.search(r"^to [1-9]\d* of the tables within 3 s", report, re.MULTILINE)
