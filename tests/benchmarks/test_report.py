"""What the report says of figures, and that its plots are the same for the same figures."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.benchmarks.competitors import Name
from tests.benchmarks.datasets import Kind
from tests.benchmarks.measure import Figure, PeakMemory, slope
from tests.benchmarks.page import PAGE, Part, read_part
from tests.benchmarks.planning import Planning
from tests.benchmarks.plots import plot_over_deletes
from tests.benchmarks.report import Results, write_report
from tests.benchmarks.sweep import Measured, Point


def point(rows: int, deletes: int, source: str, seconds: Mapping[Name, float]) -> Point:
    memory = PeakMemory(2**20, 2**21)
    measured = {name: Measured(Figure((value,)), memory) for name, value in seconds.items()}
    return Point(Kind.INT64, rows, deletes, memory, measured, source, 1, 2)


POINTS = [
    point(1_000, 1, "index", {Name.LOOKUP: 0.01, Name.SCAN: 1.0, Name.REWRITE: 9.0}),
    point(1_000, 100, "index", {Name.LOOKUP: 0.1, Name.SCAN: 1.0}),
    point(4_000, 100, "scan", {Name.LOOKUP: 0.2, Name.SCAN: 0.3}),
]


def test_figures_and_growth() -> None:
    assert str(Figure((0.5, 0.2, 0.9))) == "0.5 s (0.2 s-0.9 s)"
    assert str(Figure((0.0042,))) == "4.2 ms"
    assert str(PeakMemory(2**20, 2**31, 0)) == "1 MiB + 2,048 MiB"
    assert slope([(1, 3), (10, 30), (100, 300)]) == pytest.approx(1)


def test_report_states_the_planner_s_worst_choice_and_the_growth(tmp_path: Path) -> None:
    text = write_report(Results(points=POINTS), "A machine.", tmp_path / "report.md")
    assert text == (tmp_path / "report.md").read_text()
    assert "In 2 of 3 points the planner chose the faster source." in text
    assert "took 1.50 times as long as the better one: scan for 100 deletes in 4,000 rows" in text
    assert "| int64 | with D at N = 1,000 | 0.50 | 0.00 |" in text
    assert "| int64 | with N at D = 100 | 0.50 | -0.87 |" in text
    assert "N = 4,000" not in text  # a single point has no slope
    plots = sorted(path.name for path in (tmp_path / "report").iterdir())
    assert plots == ["int64-1000.svg", "int64-4000.svg", "int64-lookup.svg"]


def test_planning_is_told_by_file(tmp_path: Path) -> None:
    planning = Planning(1_000, 100, 2, 2**20, 1.5, 0.25, 0.5, 0.125, 550_000, 250_000, 2**21)
    text = write_report(Results(planning=planning), "A machine.", tmp_path / "report.md")
    assert "1,000 data files and 100 equality delete files in 2 manifests (1 MiB)" in text
    assert "| read the live files from the manifests | 1.5 | 1 MiB | 500 B |" in text
    assert "| open the index's list of files | 0.50 | 0 MiB | 250 B |" in text


def test_plots_are_small_and_the_same_every_time_on_white(tmp_path: Path) -> None:
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    for path in (first, second):
        plot_over_deletes(POINTS[:2], path)
    assert first.read_bytes() == second.read_bytes()
    assert len(first.read_bytes()) < 40_000
    assert "fill: #ffffff" in first.read_text()
    assert "deleted keys D (log scale)" in first.read_text()


def test_a_benchmark_writes_its_part_of_the_page_and_leaves_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    shutil.copyfile(PAGE, page)
    text = write_report(Results(points=POINTS), "A machine.", page, Part.OTHER_KEYS)
    lines = read_part(Part.OTHER_KEYS, page).split("\n\n")
    assert lines[:3] == ["\n## UUID and composite keys", "A machine.", "### Planner"]
    assert "Keys are dense" not in text
    before, _, after = PAGE.read_text().partition(read_part(Part.OTHER_KEYS))
    assert page.read_text() == before + read_part(Part.OTHER_KEYS, page) + after
