"""How long it takes to find the rows of D delete keys among N: by index, by scan, and by Spark's own join."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.benchmarks.datasets import Dataset
from tests.benchmarks.measure import Figure, PeakMemory, peak_memory, timed
from tests.jobs import Jobs
from worker.job import Outcome


@dataclass(frozen=True)
class Point:
    """One N and D. `lookup` and `scan` are stages of a job that is otherwise warm, the rest whole runs."""

    rows: int
    deletes: int
    lookup: Figure
    scan: Figure
    spark_join: Figure
    conversion: Figure
    memory: PeakMemory
    row_groups_read: int
    row_groups_total: int


def sweep(dataset: Dataset, deletes: Sequence[int], rounds: int, say: Callable[[str], None]) -> list[Point]:
    """Measures side by side: every round runs each of the competitors once, in turn."""
    return [_point(dataset, count, rounds, say) for count in deletes if count <= dataset.rows]


def _point(dataset: Dataset, count: int, rounds: int, say: Callable[[str], None]) -> Point:
    say(f"{dataset.rows:,} rows, {count:,} deletes")
    lookups, scans, joins = [], [], []
    with dataset.deletes(count):
        expected = _matches(_dry_run(dataset.jobs), count)
        _matches(_dry_run(dataset.jobs_without_index), count)
        _spark_join(dataset, count)
        for _ in range(rounds):
            lookups.append(_stage(_dry_run(dataset.jobs), "lookup"))
            scans.append(_stage(_dry_run(dataset.jobs_without_index), "scan"))
            joins.append(timed(lambda: _spark_join(dataset, count)))
    conversions = []
    for seed in range(rounds):
        with dataset.deletes(count, seed=seed):
            conversions.append(timed(lambda: dataset.jobs.run("convert")))
    with dataset.deletes(count):
        memory = peak_memory(dataset.spark, lambda: _dry_run(dataset.jobs))
    (key_set,) = expected.result["key_sets"]
    return Point(
        dataset.rows,
        count,
        Figure(tuple(lookups)),
        Figure(tuple(scans)),
        Figure(tuple(joins)),
        Figure(tuple(conversions)),
        memory,
        key_set["row_groups_read"],
        key_set["row_groups_total"],
    )


def _dry_run(jobs: Jobs) -> Outcome:
    return jobs.run("convert", dry_run=True)


def _matches(outcome: Outcome, count: int) -> Outcome:
    """A benchmark of wrong answers is worth nothing: every key occurs once."""
    (key_set,) = outcome.result["key_sets"]
    assert (key_set["keys"], key_set["matches"]) == (count, count), key_set
    return outcome


def _stage(outcome: Outcome, name: str) -> float:
    """The stage's seconds; a planner that chose the other source is measured all the same."""
    seconds = {stage["name"]: float(stage["seconds"]) for stage in outcome.result["stages"]}
    return seconds.get(name, seconds.get("scan", 0.0))


def _spark_join(dataset: Dataset, count: int) -> None:
    """What one would write without an index: join the data files with the keys, and take the positions."""
    spark, table = dataset.spark, dataset.table
    keys = ", ".join(dataset.kind.key)
    (file,) = [
        row[0] for row in spark.sql(f"SELECT file_path FROM {table.identifier}.delete_files").collect()
    ]
    spark.read.parquet(file).createOrReplaceTempView("delete_keys")
    # As loaded: the reader would otherwise apply the equality deletes itself, and find nothing.
    rows = f"SELECT *, _file, _pos FROM {table.identifier} VERSION AS OF {dataset.loaded_snapshot_id}"
    found = spark.sql(
        f"SELECT count(*), sum(_pos), max(_file) FROM ({rows}) JOIN delete_keys USING ({keys})"
    ).collect()
    assert found[0][0] == count
