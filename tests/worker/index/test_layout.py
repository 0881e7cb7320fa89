"""What is told of an index: its runs with the dead share of each, and the coverage of partitions."""

import numpy as np
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import DayTransform, IdentityTransform

from worker.index.compaction import LiveRowAddresses
from worker.index.layout import PARTITIONS_TOLD, RUNS_TOLD, partition_reports, run_reports
from worker.index.run_files import TOP_LEVEL, RunFile
from worker.table.files import DataFile, DataFiles, PartitionKey


def run_file(name: str, rows: int, low: int, high: int, level: int = 0) -> RunFile:
    """Addresses are the last column of the keys."""
    return RunFile(name, name, 10 * rows, rows, ("a",), ("z",), (None, low), (None, high), level)


def live(*ranges: tuple[int, int]) -> LiveRowAddresses:
    """Base addresses and record counts."""
    return LiveRowAddresses(*np.array(ranges, np.int64).reshape(-1, 2).T)


def told(files: list[RunFile], *ranges: tuple[int, int]) -> list[tuple[int, int, object]]:
    """Level, entries and dead share of each run."""
    return [
        (one["level"], one["entries"], pytest.approx(one["dead_ratio"]))
        for one in run_reports(files, live(*ranges))
    ]


def test_each_run_has_the_dead_share_of_its_own_addresses() -> None:
    top = [run_file("a", 60, 0, 99, TOP_LEVEL), run_file("b", 40, 3, 97, TOP_LEVEL)]
    files = [run_file("c", 50, 100, 149), *top, run_file("d", 10, 150, 159)]
    # Of the top run, a file of 25 rows and half of another are left, which goes on in the next run.
    assert told(files, (0, 25), (75, 50), (140, 20)) == [
        (TOP_LEVEL, 100, 0.5),
        (0, 50, 1 - 35 / 50),
        (0, 10, 0.0),
    ]
    (run, *_) = run_reports(files, live())
    assert run == {"level": TOP_LEVEL, "files": 2, "entries": 100, "bytes": 1_000, "dead_ratio": 1.0}


def test_runs_whose_addresses_interleave_share_what_is_dead() -> None:
    files = [run_file("a", 30, 0, 90), run_file("b", 10, 20, 39), run_file("c", 20, 100, 119)]
    assert told(files, (0, 20), (100, 20)) == [(0, 30, 0.5), (0, 20, 0.0), (0, 10, 0.5)]


def test_the_largest_of_too_many_runs_are_told_and_none_of_an_empty_index() -> None:
    files = [run_file(f"{n}", n + 1, 1000 * n, 1000 * n + n) for n in range(RUNS_TOLD + 5)]
    assert [entries for _, entries, _ in told(files)] == list(range(RUNS_TOLD + 5, 5, -1))
    assert told([]) == []


SPECS = {
    0: PartitionSpec(spec_id=0),
    1: PartitionSpec(
        PartitionField(1, 1000, IdentityTransform(), "region"),
        PartitionField(2, 1001, DayTransform(), "day"),
        spec_id=1,
    ),
}


def data_files(*partitions: PartitionKey) -> DataFiles:
    return DataFiles.of(
        DataFile(f"{number}", "parquet", partition, 1, 1, 1) for number, partition in enumerate(partitions)
    )


def test_partitions_are_told_by_their_values_those_that_lack_most_first() -> None:
    eu, us = PartitionKey(1, '["eu","2026-03-01"]'), PartitionKey(1, '["us",null]')
    files = data_files(eu, eu, us, eu, PartitionKey(0, "[]"), us)
    covered = np.array([True, True, False, True, True, False])
    assert partition_reports(files, covered, SPECS) == [
        {"partition": "region=us/day=null", "data_files": 2, "covered_data_files": 0},
        {"partition": "region=eu/day=2026-03-01", "data_files": 3, "covered_data_files": 3},
        {"partition": "", "data_files": 1, "covered_data_files": 1},
    ]
    # What is left of some of them is told alone.
    assert [one["data_files"] for one in partition_reports(files.select([0, 4]), covered[:2], SPECS)] == [
        1,
        1,
    ]


def test_so_many_partitions_are_told_and_names_are_cut() -> None:
    keys = [PartitionKey(1, f'["{"x" * 300}{number}",null]') for number in range(PARTITIONS_TOLD + 10)]
    files = data_files(*keys, keys[-1])
    reports = partition_reports(files, np.zeros(len(files), np.bool_), SPECS)
    assert (len(reports), reports[0]["data_files"]) == (PARTITIONS_TOLD, 2)
    assert {len(one["partition"]) for one in reports} == {200}
    # A spec that the metadata does not have any more says no names.
    assert partition_reports(files.select([0]), np.zeros(1, np.bool_), {})[0]["partition"].startswith('["xxx')
