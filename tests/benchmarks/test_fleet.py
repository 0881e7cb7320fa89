"""The benchmark of a fleet runs, and counts what became of each checkpoint; people look at how fast."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.fleet import lags_of, main


def snapshot(number: int, at_ms: int, **summary: str) -> dict[str, Any]:
    named = {key.replace("_", "-"): value for key, value in summary.items()}
    return {"sequence-number": number, "timestamp-ms": at_ms, "summary": named}


def test_a_checkpoint_waits_for_the_conversion_that_removes_its_deletes() -> None:
    before = [snapshot(1, 0), snapshot(2, 10, added_equality_deletes="5")]
    before += [snapshot(3, 20, removed_equality_delete_files="1")]
    written = [snapshot(each, each * 1000, added_equality_deletes="5") for each in (4, 5, 6, 8)]
    converted = [snapshot(7, 7_000, removed_equality_delete_files="2")]
    lags, conversions = lags_of({"snapshots": [*before, *written, *converted]}, 1_000, 9_000)
    assert lags == [3.0, 2.0, 3.0, 1.0]  # the last two until now
    assert conversions == 1


@pytest.mark.integration
@pytest.mark.exhaustive
def test_a_short_run_converts_each_checkpoint_and_fills_every_figure(tmp_path: Path) -> None:
    path = tmp_path / "fleet.md"
    main(tables=2, rows=1_000, slots=2, rate=[2], seconds=2, report=path)
    report = path.read_text()
    figures = r"\| 2 \| 4 \| [\d.]+ s \| [\d.]+ s \| [\d.]+ \| [\d.]+ s \| [\d.]+ s \| ([\d.]+) \| (.+) \|"
    found = re.search(figures, report)
    assert found is not None, report
    assert float(found[1]) > 1, "each commit is told, and a conversion is claimed and reported"
    assert re.search(r"\d convert", found[2])
    commit = re.search(r"^\| commit \| ([\d.]+) s \|$", report, re.MULTILINE)
    assert commit is not None, report
    assert float(commit[1]) > 0
    assert re.search(r"service \d+ MiB, worker \d+ MiB", report)
