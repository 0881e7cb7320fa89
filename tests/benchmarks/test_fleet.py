"""The benchmarks of a fleet run, and count what became of each checkpoint; people look at how fast."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import fleet_workers
from tests.benchmarks.fleet import Checkpoint, Run, checkpoints_of, main


def snapshot(number: int, at_ms: int, **summary: str) -> dict[str, Any]:
    named = {key.replace("_", "-"): value for key, value in summary.items()}
    return {"sequence-number": number, "timestamp-ms": at_ms, "summary": named}


def test_a_checkpoint_waits_for_the_conversion_that_removes_its_deletes() -> None:
    before = [snapshot(1, 0), snapshot(2, 10, added_equality_deletes="5")]
    before += [snapshot(3, 20, removed_equality_delete_files="1")]
    written = [snapshot(each, each * 1000, added_equality_deletes="5") for each in (4, 5, 6, 8)]
    converted = [snapshot(7, 7_000, removed_equality_delete_files="2")]
    metadata = {"snapshots": [*before, *written, *converted]}
    checkpoints, conversions = checkpoints_of(metadata, [15, 4_500, 8_500], 1_000, 9_000)
    assert checkpoints == [
        Checkpoint(4_000, 4_500, 7_000),
        Checkpoint(5_000, 4_500, 7_000),
        Checkpoint(6_000, 9_000, 9_000),
        Checkpoint(8_000, 9_000, 9_000),
    ]
    assert [one.lag for one in checkpoints] == [3.0, 2.0, 3.0, 1.0]  # the last two until now
    assert [one.seconds_to_claim for one in checkpoints] == [0.5, 0.0, 3.0, 1.0]
    assert conversions == 1


def run_of(lags: Sequence[float], rate: float = 2) -> Run:
    """A checkpoint each half second."""
    checkpoints = [Checkpoint(at * 500, at * 500, at * 500 + int(lag * 1000)) for at, lag in enumerate(lags)]
    none: Counter[str] = Counter()
    return Run(rate, 2, 60, checkpoints, len(lags), {}, none, {}, none, {})


def test_a_rate_is_held_if_the_lag_is_short_and_stays_so() -> None:
    assert run_of([1, 2, 3, 2, 1, 3] * 20).is_held
    assert not run_of([1, 2, 3, 2, 1, 3] * 20, rate=3).is_held  # it was not written
    assert not run_of([61] * 120).is_held
    growing = run_of([at / 20 for at in range(120)])  # by half a second in each five
    assert growing.p99 < 6
    assert growing.growth == pytest.approx(0.1)
    assert not growing.is_held


def cells(report: str, *start: str) -> list[str]:
    """Of the line of a table that starts with these."""
    (found,) = [line for line in report.splitlines() if line.startswith("| " + " | ".join(start) + " |")]
    return [cell.strip(" `") for cell in found.strip("| ").split(" | ")]


@pytest.mark.integration
@pytest.mark.exhaustive
@pytest.mark.parametrize(("delay", "tables"), [(0, 6), (1, 4)])
def test_a_short_run_converts_each_checkpoint_and_fills_every_figure(
    delay: float, tables: int, tmp_path: Path
) -> None:
    """Of a table of each version in each catalog."""
    path = tmp_path / "fleet.md"
    args = {"rows": 1_000, "most_rows": 10_000, "workers": 1, "slots": 2}
    main([tables], **args, delay=delay, rate=[2], seconds=tables, report=path)
    report = path.read_text()
    run = cells(report, "2")
    assert run[2] == str(2 * tables)
    assert all(float(figure.removesuffix(" s")) > 0 for figure in (*run[3:5], *run[7:13])), run
    assert re.fullmatch(r"(.*, )?\d+ convert(, .*)?", run[13])
    assert float(cells(report, "`POST /catalogs/{catalog_id}/notifications`")[1]) == 1
    assert float(cells(report, "`POST /workers/{worker_id}/claim`")[1]) > 0
    assert ("`store: GET`" in report) == (delay > 0)
    assert cells(report, "all")[2] == "100%"
    assert cells(report, "commit")[1] != "0.000 s"
    assert re.search(r"service \d+ MiB, workers' Java \d+ MiB, workers' Python \d+ MiB", report)


@pytest.mark.integration
@pytest.mark.exhaustive
def test_a_short_run_with_a_worker_and_two_executors_fills_every_figure_of_growth(tmp_path: Path) -> None:
    path = tmp_path / "workers.md"
    tables, indexed = {"tables": 6, "rows": 1_000, "most_rows": 10_000}, {"files": 3, "file_rows": 1_000}
    fleet_workers.main(**tables, **indexed, workers=[1], executors=[2], delay=20, report=path)
    of_workers, _, of_executors = path.read_text().partition("## Executors")
    figures = cells(of_workers, "1")
    assert figures[4] == "1.00"
    assert all(float(figure.removesuffix(" s")) > 0 for figure in (*figures[1:6], *figures[7:]))
    assert "3,000 rows in 3 data files" in of_executors
    # So few rows that the driver reads them itself.
    _, tasks, *figures = cells(of_executors, "2")
    assert tasks == "0"
    assert figures[2] == figures[4] == "1.00"
    assert all(float(figure.removesuffix(" s")) > 0 for figure in (figures[0], figures[3], figures[5]))
