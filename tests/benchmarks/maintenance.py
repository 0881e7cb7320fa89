"""`make bench-maintenance`: two weeks of a hundred tables, as policies make jobs of them.

Simulated by the scheduler's own decisions (service.scheduling.simulation), so it takes minutes and no table.
A job that a better order would have spared found nothing to do, or did within a minute before a rewriting
of data files what that does itself or undoes.
"""

import random
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

from service.policies.built_in import BUILT_IN, STANDARD
from service.policies.effective import merged
from service.policies.models import EffectivePolicy
from service.reader_cost import Shape
from service.records.jobs import JobKind
from service.scheduling.simulation import Arrival, Beginning, Outcome, Ran, simulate
from tests.benchmarks.page import Part, write_part
from tests.benchmarks.report import table as markdown

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
_MOST = 0.5
"""Of a table's bytes: a rewriting of so many undoes a compaction of the index, and one of manifests."""
_DEAR = 1.5
"""Times what a read would cost had the table just been rewritten."""
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
    with ProcessPoolExecutor() as processes:
        return list(processes.map(partial(_of_fleet, name, span), range(tables)))


def _of_fleet(name: str, span: timedelta, seed: int) -> Outcome:
    beginning, arrivals = table(seed, span)
    return simulate(beginning, arrivals, policy(name), BEGIN + span, most_steps=10**6)


def spared(outcome: Outcome) -> list[Ran]:
    """Jobs that a better order would have spared."""
    undone = [
        *(one for one, later in before_rewriting(outcome, JobKind.CONVERT) if not later.pending_files),
        *(
            one
            for kind in (JobKind.REWRITE_MANIFESTS, JobKind.COMPACT)
            for one, later in before_rewriting(outcome, kind)
            if later.share >= _MOST
        ),
    ]
    return [one for one in outcome.ran if one.is_idle] + [one for one in undone if not one.is_idle]


def before_rewriting(outcome: Outcome, kind: JobKind) -> list[tuple[Ran, Ran]]:
    """Jobs of a kind with rewritings of data files that began within a minute after their ends."""
    ran = [one for one in outcome.ran if one.kind in (kind, REWRITE)]
    return [
        (one, later)
        for one, later in pairwise(ran)
        if (one.kind, later.kind) == (kind, REWRITE) and later.began_at - one.ended_at < _AFTER
    ]


def minutely(name: str, span: timedelta = WEEK) -> Outcome:
    """A table that a writer hits each minute."""
    shape = Shape(4, 3_000_000, data_bytes=300_000_000)
    added = Shape(4, 1_200, 4, 1_200, data_bytes=120_000, delete_bytes=12_000)
    beginning = Beginning(BEGIN, shape, BEGIN - WEEK, partitions=4, entries=shape.rows, sorted_runs=1)
    arrivals = [Arrival(BEGIN + timedelta(minutes=n), added) for n in range(int(span.total_seconds() // 60))]
    return simulate(beginning, arrivals, policy(name), BEGIN + span, most_steps=10**6)


def _row(what: str, name: str, outcomes: Sequence[Outcome]) -> tuple[object, ...]:
    jobs = Counter[JobKind]()
    for one in outcomes:
        jobs.update({kind: totals.jobs for kind, totals in one.jobs.items()})
    arrived, written = (
        sum(getattr(one, each) for one in outcomes) for each in ("bytes_arrived", "bytes_written")
    )
    ratios = [one.read_ratio or 0.0 for one in outcomes]
    looks = [look.ratio for one in outcomes for look in one.reads]
    return (
        what,
        f"`{name}`",
        jobs[JobKind.CONVERT],
        jobs[REWRITE],
        jobs.total() - jobs[JobKind.CONVERT] - jobs[REWRITE],
        sum(len(spared(one)) for one in outcomes),
        sum(len(before_rewriting(one, JobKind.CONVERT)) for one in outcomes),
        sum(len(before_rewriting(one, JobKind.INDEX)) for one in outcomes),
        f"{1 + written / arrived:.1f}",
        f"{sum(ratios) / len(ratios):.2f}",
        f"{max(ratios):.2f}",
        f"{sum(ratio > _DEAR for ratio in looks) / len(looks):.1%}",
        f"{max(looks):.2f}",
        f"{max(one.lag_seconds_max for one in outcomes):.0f} s",
    )


def report_of(rows: Iterable[Sequence[object]]) -> str:
    """In Markdown, its first line the title."""
    return "\n\n".join(
        [
            "# Policies over weeks",
            "`make bench-maintenance` simulates what policies make of tables: the decisions are the"
            " scheduler's own, what jobs do and cost is"
            " [a model](decisions/62-a-policy-is-tried-on-what-was-seen.md). So these are no measurements,"
            " and alike on any machine. Tables have 10 MB to 10 GB and a commit every ten minutes to an hour,"
            " fewer at night; or one of 300 MB has a commit each minute. The policy is `standard` with data"
            " files rewritten (at most every ten minutes), manifests too, and snapshots expired; by limits"
            " (`reached`), or by what readers pay (`worthwhile`).",
            markdown(
                "tables | policy | conversions | rewritings | other jobs | spared by a better order |"
                " conversions a minute before | index jobs a minute before | write amplification |"
                " reads, on average | dearest table | above 1.5 | dearest moment | longest lag",
                rows,
            ),
            "A better order would have spared a job that found nothing to do, and one that ended within a"
            " minute before a rewriting of data files began which made it needless: a conversion before a"
            " rewriting that had nothing else to convert, a rewriting of manifests or a compaction of the"
            " index before half of the table's bytes were written anew. The next two columns are not among"
            " these. They count all conversions within such a minute: deletes came in between, and the"
            " rewriting took the place of the next conversion. And all index jobs: such a job counts the"
            " small files by which a rewriting becomes due, which nobody knew before. Write amplification"
            " is what writers and jobs wrote, the index's jobs too, for each byte of a writer's. Reads are"
            " how many times as much a full read by Spark costs as had the table just been rewritten, by"
            " [the model](reader-cost.md#the-model) at 500 moments of each table: on average over time and"
            " tables, and over time for the dearest table; in which share of these moments it was above"
            " 1.5 times, and how much at the dearest of them.",
        ]
    )


if __name__ == "__main__":
    number = int(sys.argv[1]) if sys.argv[1:] else 100
    found = []
    for each in POLICIES:
        found.append(_row(f"{number}, for two weeks", each, fleet(each, number)))
        found.append(_row("a commit each minute, for a week", each, [minutely(each)]))
        print(*found[-2:], sep="\n", flush=True)  # noqa: T201
    write_part(Part.MAINTENANCE, report_of(found))
