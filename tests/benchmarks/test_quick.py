"""The benchmarks run, and what they measure gives right answers; how fast is for people to look at."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.measure import Figure, slope

pytestmark = pytest.mark.integration


def test_a_quick_run_writes_a_report(tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", "--directory", str(tmp_path / "tables")]
    for _ in range(2):  # on new tables, then on kept ones
        subprocess.run([*command, "--report", str(report)], check=True, capture_output=True)
        text = report.read_text()
        assert "Index of 50,000 int64 keys: built in" in text
        assert text.count("| 50,000 | 1") == 2


def test_figures_and_growth() -> None:
    assert str(Figure((0.5, 0.2, 0.9))) == "0.5 s (0.2 s-0.9 s)"
    assert str(Figure((0.0042,))) == "4.2 ms"
    assert slope([(1, 3), (10, 30), (100, 300)]) == pytest.approx(1)
