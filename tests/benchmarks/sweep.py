"""How long it takes to find the rows of D delete keys among N, and to be rid of the deletes: side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.benchmarks.competitors import (
    Competitor,
    Conversion,
    Name,
    Rewrite,
    SparkJoin,
    Stage,
    spark_join,
)
from tests.benchmarks.datasets import Dataset, Kind
from tests.benchmarks.measure import Figure, PeakMemory, with_peak_memory

# These take seconds to minutes, and vary less in proportion.
JOIN_ROUNDS = 3
REWRITE_ROUNDS = 1


@dataclass(frozen=True)
class Measured:
    """One competitor at one point: its time in several rounds, and its memory in the first."""

    time: Figure
    memory: PeakMemory


@dataclass(frozen=True)
class Point:
    """One N and D, and the source that the planner chose there."""

    kind: Kind
    rows: int
    deletes: int
    at_rest: PeakMemory
    measured: Mapping[Name, Measured]
    source: str
    row_groups_read: int
    row_groups_total: int

    @property
    def detour(self) -> float:
        """How many times as long the chosen source took as the better one: 1 is the right choice."""
        seconds = {
            "index": self.measured[Name.LOOKUP].time.median,
            "scan": self.measured[Name.SCAN].time.median,
        }
        return seconds[self.source] / min(seconds.values())


def sweep(
    dataset: Dataset,
    deletes: Sequence[int],
    rounds: int,
    rewrites: Sequence[int],
    say: Callable[[str], None],
) -> list[Point]:
    """rewrites: the numbers of deletes at which the table is rewritten, too."""
    return [
        _point(dataset, count, rounds, REWRITE_ROUNDS if count in rewrites else 0, say) for count in deletes
    ]


def _point(
    dataset: Dataset, count: int, rounds: int, rewrite_rounds: int, say: Callable[[str], None]
) -> Point:
    with dataset.deletes(count) as pending, dataset.twin.deletes(count) as twin:
        expected = spark_join(pending)
        assert sum(rows for rows, _ in expected.values()) == count
        lookup = Stage(Name.LOOKUP, pending, expected, rounds)
        conversion = Conversion(Name.CONVERT_V3, pending, expected, rounds)
        competitors = [
            lookup,
            Stage(Name.SCAN, pending, expected, rounds),
            SparkJoin(Name.SPARK_JOIN, pending, expected, min(rounds, JOIN_ROUNDS), warms_up=False),
            conversion,
            Conversion(Name.CONVERT_V2, twin, expected, rounds),
            Rewrite(Name.REWRITE, pending, expected, min(rounds, rewrite_rounds), warms_up=False),
        ]
        _, at_rest = with_peak_memory(dataset.spark, lambda: None)
        measured = _race(competitors, rounds, say)
    return Point(
        dataset.kind,
        dataset.rows,
        count,
        at_rest,
        measured,
        conversion.explanation["source"],
        lookup.explanation["row_groups_read"],
        lookup.explanation["row_groups_total"],
    )


def _race(competitors: Sequence[Competitor], rounds: int, say: Callable[[str], None]) -> dict[Name, Measured]:
    """Every round runs each competitor once, in turn."""
    seconds: dict[Name, list[float]] = defaultdict(list)
    memory: dict[Name, PeakMemory] = {}
    for number in range(rounds + 1):
        for one in competitors:
            if not one.takes_part(number):
                continue
            pending = one.pending
            say(f"{pending.count:,} deletes, round {number} of {rounds}: {one.name}")
            if one.name in memory:
                took = one.run()
            else:
                took, memory[one.name] = with_peak_memory(pending.dataset.spark, one.run)
                one.verify()
            one.reset()
            if number:
                seconds[one.name].append(took)
    return {name: Measured(Figure(tuple(times)), memory[name]) for name, times in seconds.items()}
