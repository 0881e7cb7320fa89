"""The benchmarks run, and what they measure gives right answers; how fast is for people to look at."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

# Of a command that people run now and then.
pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

SECTIONS = [
    "Planner",
    "Index",
    "Finding rows by their int64 key",
    "Finding rows by their uuid key",
    "Finding rows by their composite key",
    "Growth",
    "Memory",
    "Readers",
    "Small files",
    "Planning",
]
PLOTS = ["int64-1000", "int64-20000", "int64-lookup", "uuid-20000", "composite-20000"]


def test_a_quick_run_writes_every_section_table_and_plot(tmp_path: Path) -> None:
    report = run_benchmarks(tmp_path)
    assert re.findall(r"^## (.*)$", report, re.MULTILINE) == SECTIONS
    assert re.findall(r"!\[[^]]+\]\((.*)\)", report) == [f"report/{name}.svg" for name in PLOTS]
    assert all("seconds" in (tmp_path / f"report/{name}.svg").read_text() for name in PLOTS)
    for key in ("int64", "uuid", "composite"):
        assert len(rows_of(report, key, "20,000", "build")) == 1
        assert len(rows_of(report, key, "20,000", "compaction")) == 1
        (memory,) = [line for line in rows_of(report, key, "20,000", "100") if "MiB" in line[3]]
        assert all(memory[:-1])
    assert len(rows_of(report, "1,000", "100")) == 1
    (everyone,) = rows_of(report, "20,000", "2,000")
    assert all(everyone), "a competitor has no time"
    assert len(rows_of(report, "int64", "with D at N = 20,000")) == 1
    assert len(rows_of(report, "int64", "with N at D = 100")) == 1
    assert [row[2] for row in rows_of(report, "12")] == ["2"], "of two index jobs"
    assert len(rows_of(report, "DuckDB")) == len(rows_of(report, "Spark")) == 2

    # On a table that is there by now.
    report = run_benchmarks(tmp_path, "--kind=int64", "--rows=1000", "--deletes=10", "--rewrites=0")
    assert len(rows_of(report, "1,000", "10")) == 1


def run_benchmarks(directory: Path, *arguments: str) -> str:
    path = directory / "report.md"
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", "--directory", str(directory / "tables")]
    subprocess.run([*command, "--report", str(path), *arguments], check=True, stdout=subprocess.PIPE)
    return path.read_text()


def rows_of(report: str, *start: str) -> list[list[str]]:
    """The cells of all lines of tables that start with these."""
    lines = [line.strip("| ").split(" | ") for line in report.splitlines() if line.startswith("| ")]
    return [line for line in lines if line[: len(start)] == list(start)]
