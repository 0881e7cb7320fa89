"""`python -m tests.benchmarks.maintenance`: two weeks of a hundred tables, as policies make jobs of them.

Simulated by the scheduler's own decisions (service.scheduling.simulation), so it takes minutes and no table.
A job that a better order would have spared found nothing to do, or converted what a rewriting that began
within a minute after it would have converted itself: one that had nothing of its own to convert.
"""

import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from service.policies.built_in import BUILT_IN, STANDARD
from service.policies.effective import merged
from service.policies.models import EffectivePolicy
from service.reader_cost import Shape
from service.records.jobs import JobKind
from service.scheduling.simulation import Arrival, Beginning, Outcome, Ran, simulate

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
WEEK = timedelta(days=7)
_MAINTAINED: dict[str, dict[str, Any]] = {
    "rewrite_data_files": {"enabled": True, "min_interval_seconds": 600},
    "rewrite_manifests": {"enabled": True},
    "expire_snapshots": {"enabled": True},
}
POLICIES: Mapping[str, dict[str, dict[str, Any]]] = {
    "reached": _MAINTAINED,
    "worthwhile": {**_MAINTAINED, "convert": {"when": "worthwhile"}},
}
_AFTER = timedelta(minutes=1)
REWRITE = JobKind.REWRITE_DATA_FILES


def policy(name: str) -> EffectivePolicy:
    """`standard` with maintenance, by limits or by what readers pay."""
    return merged(POLICIES[name], BUILT_IN[STANDARD][1].model_dump(exclude_none=True))


def table(seed: int, span: timedelta) -> tuple[Beginning, list[Arrival]]:
    """One of a fleet: 10 MB to 10 GB, with a commit every ten minutes to an hour, fewer at night."""
    chance = random.Random(seed)
    rows = int(10 ** chance.uniform(5, 8))
    files, partitions = chance.randint(1, 8), chance.choice([1, 1, 4])
    upserts, every = chance.randint(50, 5_000), chance.uniform(600, 3600)
    added = Shape(files, upserts, files, upserts, data_bytes=100 * upserts, delete_bytes=10 * upserts)
    found, at = [], BEGIN
    while at < BEGIN + span:
        # At night, a fifth as much comes.
        at += timedelta(seconds=chance.expovariate(1 / every) * (1 if 7 <= at.hour < 22 else 5))
        found.append(Arrival(at, added))
    shape = Shape(max(partitions, rows // 5_000_000), rows, data_bytes=100 * rows)
    return Beginning(BEGIN, shape, BEGIN - WEEK, partitions=partitions, entries=rows, sorted_runs=1), found


def fleet(name: str, tables: int = 100, span: timedelta = 2 * WEEK) -> list[Outcome]:
    """What a policy makes of each table."""
    found = []
    for seed in range(tables):
        beginning, arrivals = table(seed, span)
        found.append(simulate(beginning, arrivals, policy(name), BEGIN + span, most_steps=10**6))
    return found


def spared(outcome: Outcome) -> list[Ran]:
    """Jobs that a better order would have spared."""
    rewritings = [one for one in outcome.ran if one.kind is REWRITE and not one.pending_files]
    undone = [
        one
        for one in outcome.ran
        if one.kind is JobKind.CONVERT
        and any(timedelta(0) <= later.began_at - one.ended_at < _AFTER for later in rewritings)
    ]
    return [one for one in outcome.ran if one.is_idle] + undone


def minutely(name: str, span: timedelta = WEEK) -> Outcome:
    """A table that a writer hits each minute."""
    shape = Shape(4, 3_000_000, data_bytes=300_000_000)
    added = Shape(4, 1_200, 4, 1_200, data_bytes=120_000, delete_bytes=12_000)
    beginning = Beginning(BEGIN, shape, BEGIN - WEEK, partitions=4, entries=shape.rows, sorted_runs=1)
    arrivals = [Arrival(BEGIN + timedelta(minutes=n), added) for n in range(int(span.total_seconds() // 60))]
    return simulate(beginning, arrivals, policy(name), BEGIN + span, most_steps=10**6)


def _row(name: str, outcomes: Sequence[Outcome]) -> str:
    jobs = Counter[str]()
    for one in outcomes:
        jobs.update({kind.value: totals.jobs for kind, totals in one.jobs.items()})
    wasted = Counter(each.kind.value for one in outcomes for each in spared(one))
    arrived = sum(one.bytes_arrived for one in outcomes)
    written = sum(one.bytes_written for one in outcomes)
    ratio = sum(one.read_ratio or 0 for one in outcomes) / len(outcomes)
    lag = max(one.lag_seconds_max for one in outcomes)
    return (
        f"{name}: {dict(jobs)}, spared by a better order: {dict(wasted)}, write amplification"
        f" {1 + written / arrived:.1f}, reads {ratio:.2f} times a fresh table's, longest lag {lag:.0f} s"
    )


if __name__ == "__main__":
    number = int(sys.argv[1]) if sys.argv[1:] else 100
    for each in POLICIES:
        print(_row(f"{number} tables for two weeks, {each}", fleet(each, number)))  # noqa: T201
        print(_row(f"a commit each minute for a week, {each}", [minutely(each)]))  # noqa: T201
