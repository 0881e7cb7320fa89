"""Building the index, compacting it into one sorted run, and what that changes for lookups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.benchmarks.competitors import look_up, scan
from tests.benchmarks.datasets import Dataset, Kind
from tests.benchmarks.measure import Figure, PeakMemory, timed, with_peak_memory
from worker.attempt.outcome import Outcome
from worker.index.compaction import choose_merge


@dataclass(frozen=True)
class IndexJob:
    """What a job on the index took, and the index after it."""

    seconds: float
    memory: PeakMemory
    bytes_read: int
    bytes_written: int
    entries: int
    size_bytes: int
    sorted_runs: int


@dataclass(frozen=True)
class LookupInRuns:
    """Looking D keys up before the compaction and after it."""

    deletes: int
    before: Figure
    after: Figure


@dataclass(frozen=True)
class IndexMeasurement:
    """The index of one table from nothing to one sorted run.

    build: as it is. unmerged: kept from merging the sorted runs of a large load. compaction: of these.
    """

    kind: Kind
    rows: int
    build: IndexJob
    unmerged: IndexJob
    compaction: IndexJob
    lookups: tuple[LookupInRuns, ...]


def measure_index(
    dataset: Dataset, deletes: Sequence[int], rounds: int, say: Callable[[str], None]
) -> IndexMeasurement:
    """Builds anew, whatever an earlier run left; afterwards both tables have an index of one run."""
    say("building the index")
    build = _measured(dataset, _rebuild)
    say("building the index without merging")
    with patch("worker.jobs.indexing.choose_merge_of_new", return_value=None):
        unmerged = _measured(dataset, _rebuild)
    before = _lookups(dataset, deletes, rounds, say)
    say("compacting the index")
    compaction = _measured(dataset, _compact)
    after = _lookups(dataset, deletes, rounds, say)
    say("building the index of the V2 table")
    if _index_of(_rebuild(dataset.twin))["sorted_runs"] > 1:
        _compact(dataset.twin)
    lookups = map(LookupInRuns, deletes, before, after)
    return IndexMeasurement(dataset.kind, dataset.rows, build, unmerged, compaction, tuple(lookups))


def _measured(dataset: Dataset, job: Callable[[Dataset], Outcome]) -> IndexJob:
    (outcome, seconds), memory = with_peak_memory(dataset.spark, lambda: timed(lambda: job(dataset)))
    (result,) = outcome.result["key_sets"]
    index = _index_of(outcome)
    assert index["entries"] == dataset.rows
    return IndexJob(
        seconds,
        memory,
        result.get("bytes_read", 0),
        result["bytes_written"],
        index["entries"],
        index["bytes"],
        index["sorted_runs"],
    )


def _rebuild(dataset: Dataset) -> Outcome:
    return dataset.jobs.run("rebuild", key_sets=[dataset.kind.key])


def _compact(dataset: Dataset) -> Outcome:
    """Merges all runs, few as they may be, as a compaction does when many entries are dead."""

    def everything(files: Any, _: float) -> Any:
        return choose_merge(files, dead_ratio=1)

    with patch("worker.jobs.indexing.choose_merge", everything):
        outcome = dataset.jobs.run("compact")
    assert _index_of(outcome)["sorted_runs"] == 1
    return outcome


def _index_of(outcome: Outcome) -> dict[str, Any]:
    (index,) = outcome.health["key_sets"]
    return dict(index)


def _lookups(
    dataset: Dataset, deletes: Sequence[int], rounds: int, say: Callable[[str], None]
) -> list[Figure]:
    figures = []
    for count in deletes:
        say(f"looking {count:,} keys up in the index as it is")
        with dataset.deletes(count) as pending:
            expected = scan(pending).found
            answers = [look_up(pending) for _ in range(rounds + 1)]
        assert all(answer.found == expected for answer in answers)
        figures.append(Figure(tuple(answer.seconds for answer in answers[1:])))  # the first warms up
    return figures
