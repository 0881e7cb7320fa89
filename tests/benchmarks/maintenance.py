"""`make bench-maintenance`: two weeks of a hundred tables, as policies make jobs of them.

Simulated by the scheduler's own decisions (service.scheduling.simulation), so it takes minutes and no table.
`python -m tests.benchmarks.maintenance [TABLES [SEED]]`
"""

import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from service.catalogs.measure import Volume
from service.policies.built_in import BUILT_IN, STANDARD
from service.policies.effective import merged
from service.policies.models import EffectivePolicy
from service.reader_cost import Shape
from service.records.jobs import JobKind
from service.scheduling.decisions import deadlines, decide_kind
from service.scheduling.facts import Action, TableState, weighing
from service.scheduling.rewriting_or_conversion import may_be_left_to_rewriting, rewriting_seconds
from service.scheduling.simulation import (
    USUAL,
    Arrival,
    Beginning,
    Cost,
    Costs,
    Outcome,
    Queued,
    Ran,
    simulate,
)
from tests.benchmarks.page import Part, write_part
from tests.benchmarks.report import table as markdown

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
DAY, WEEK = timedelta(days=1), timedelta(days=7)
SEED = 1
_MAINTAINED: dict[str, dict[str, Any]] = {
    "rewrite_data_files": {"enabled": True, "min_interval_seconds": 600},
    "rewrite_position_delete_files": {"enabled": True},
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
COUNTED = "a job in between counted the files by which it became due"
CAME = "a commit in between made it due"
LATE = "nothing: the policy lets new data files, or deletes, wait no longer"
FAILED = "whether it would fail again, as it just had"


def policy(name: str) -> EffectivePolicy:
    """`standard` with maintenance, by limits or by what readers pay."""
    return merged(POLICIES[name], BUILT_IN[STANDARD][1].model_dump(exclude_none=True))


# Tables


def table(number: int, span: timedelta, seed: int = SEED) -> tuple[Beginning, list[Arrival], Costs]:
    """One of a fleet in which none is like another."""
    chance = random.Random(f"{seed} {number}")
    rows, row_bytes = int(10 ** chance.uniform(5, 8.5)), chance.choice([30, 100, 400])
    partitions, version = chance.choice([1, 1, 4, 16]), chance.choice([2, 3, 3, 3])
    target = chance.choice([128, 512, 512]) * 1024 * 1024
    full = Shape(max(partitions, rows * row_bytes // target), rows, data_bytes=rows * row_bytes)
    begin = Beginning(
        BEGIN, full, BEGIN - WEEK, partitions=partitions, target_file_bytes=target, format_version=version
    )
    match chance.choice(["new", "kept", "kept", "neglected"]):
        case "new":
            few = replace(full, rows=1_000, data_files=1, data_bytes=1_000 * row_bytes)
            begin = replace(begin, shape=few, enrolled_at=BEGIN, new=Volume(1, 1_000, few.data_bytes))
        case "kept":
            begin = replace(begin, entries=rows, sorted_runs=1, indexed_at=BEGIN)
        case _:
            begin = _neglected(begin, chance)
    machine, hits = 10 ** chance.uniform(-0.5, 0.5), chance.uniform(0.5, 4)
    jobs = {
        kind: replace(cost, seconds=Cost(cost.seconds.fixed * machine, cost.seconds.each * machine))
        for kind, cost in USUAL.items()
    }
    fails_each, wait_seconds = chance.choice([0, 0, 0, 20]), 10 ** chance.uniform(-1, 1.5)
    costs = Costs(jobs, hits=hits, wait_seconds=wait_seconds, fails_each=fails_each)
    added = _commit(chance, row_bytes, version)
    if number % 2 and not added.equality_delete_files and not begin.pending_since:
        begin = replace(begin, has_keys=False, entries=0, sorted_runs=0, indexed_at=None)
    arrivals = list(_commits(chance, span, added))
    return begin, arrivals, costs


def _neglected(begin: Beginning, chance: random.Random) -> Beginning:
    """Of which nobody has taken care for months."""
    partitions, number = begin.partitions or 1, chance.randint(50, 300)
    files = begin.shape.data_files + number * partitions
    shape = replace(
        begin.shape,
        data_files=files,
        vectors=files // 2,
        positions=begin.shape.rows // 20,
        equality_delete_files=number,
        equality_deletes=100 * number,
    )
    return replace(
        begin,
        shape=shape,
        enrolled_at=BEGIN,
        pending_since=BEGIN - 3 * DAY,
        equality_bytes=1_000 * number,
        snapshots=10 * number,
        oldest_snapshot_at=BEGIN - 90 * DAY,
        small_manifests=number,
        new=Volume(files, shape.rows, shape.data_bytes),
    )


def _commit(chance: random.Random, row_bytes: int, version: int) -> Shape:
    """What the writer of a table adds each time: most delete what they write anew, by key."""
    files, rows = chance.randint(1, 8), int(10 ** chance.uniform(1.5, 4))
    added = Shape(files, rows, data_bytes=rows * row_bytes)
    match chance.choice(["upserts", "upserts", "upserts", "appends", "deletes", "merges"]):
        case "appends":
            return added
        case "deletes":
            return Shape(0, 0, files, rows, delete_bytes=10 * rows)
        case "merges" if version == 2:
            return replace(added, vectors=files, positions=rows)
        case _:
            return replace(added, equality_delete_files=files, equality_deletes=rows, delete_bytes=10 * rows)


def _commits(chance: random.Random, span: timedelta, added: Shape) -> Iterator[Arrival]:
    """At random: every five minutes to twelve hours on average; of some, several at a time."""
    every, at_once = 10 ** chance.uniform(2.48, 4.63), chance.choice([1, 1, 1, 10])
    at_night, works_on_weekends = chance.choice([1, 5, 5]), chance.random() < 0.7
    pause = BEGIN + span * chance.random(), span * chance.choice([0, 0, 0.25])
    at = BEGIN
    while True:
        slower = 1 if 7 <= at.hour < 22 else at_night
        at += timedelta(seconds=chance.expovariate(1 / (every * at_once)) * slower)
        for number in range(at_once):
            then = at + timedelta(seconds=20 * number)
            if then >= BEGIN + span:
                return
            is_off = pause[0] <= then < pause[0] + pause[1] or (then.weekday() > 4 and not works_on_weekends)
            if not is_off:
                yield Arrival(then, added)
        at = then


def minutely(name: str, span: timedelta = WEEK) -> Outcome:
    """A table that a writer hits each minute."""
    shape = Shape(4, 3_000_000, data_bytes=300_000_000)
    added = Shape(4, 1_200, 4, 1_200, data_bytes=120_000, delete_bytes=12_000)
    beginning = Beginning(BEGIN, shape, BEGIN - WEEK, partitions=4, entries=shape.rows, sorted_runs=1)
    arrivals = [Arrival(BEGIN + timedelta(minutes=n), added) for n in range(int(span.total_seconds() // 60))]
    return simulate(beginning, arrivals, policy(name), BEGIN + span, most_steps=10**6)


def of_fleet(name: str, span: timedelta, seed: int, number: int) -> Outcome:
    beginning, arrivals, costs = table(number, span, seed)
    return simulate(beginning, arrivals, policy(name), BEGIN + span, costs, most_steps=10**6)


# What a better order would have spared


class Spared(NamedTuple):
    """A job that was not needed, seen from the end."""

    job: Ran
    by: Ran | None
    """What came within a minute after its end, and undid it or does the same; None if it found nothing to do.
    """
    unknown: str | None
    """Why nobody could know when it was chosen; None if time alone would have shown it."""


def spared(outcome: Outcome, hold: EffectivePolicy) -> list[Spared]:
    """Jobs that a better order would have spared, which keeps to the limits of the policy."""
    found = []
    for number, job in enumerate(outcome.ran):
        if job.is_idle:
            found.append(Spared(job, None, None))
            continue
        for later in outcome.ran[number + 1 :]:
            if later.began_at - job.ended_at >= _AFTER:
                break
            if _makes_needless(later, job, hold):
                found.append(Spared(job, later, _unknown(job, later, hold)))
                break
    return found


def _makes_needless(later: Ran, job: Ran, hold: EffectivePolicy) -> bool:
    """Whether it undoes what the job did, or would have done the same as well."""
    match job.kind, later.kind:
        case JobKind.INDEX, JobKind.CONVERT:
            last = _queued(job).state.last.get(JobKind.INDEX)
            # After an index job that failed, conversions only convert.
            return not later.is_idle and not (last is not None and last.failed)
        case JobKind.INDEX, JobKind.REWRITE_DATA_FILES:
            return later.share > 0
        case JobKind.CONVERT, JobKind.REWRITE_DATA_FILES:
            # One that came when a conversion was due took the place of that one.
            at, state = _queued(later).decided_at, _queued(later).state
            found = decide_kind(JobKind.CONVERT, state, hold, at, tells_cost=False)
            is_due = found.action is Action.TRIGGER or found.code == "rewriting"
            return not (is_due and later.pending_files)
        case JobKind.VERIFY | JobKind.EXPIRE_SNAPSHOTS | JobKind.REWRITE_DATA_FILES, _:
            return False
        case _, JobKind.REWRITE_DATA_FILES:
            return later.share >= _MOST
    return False


def _queued(job: Ran) -> Queued:
    assert job.queued is not None
    return job.queued


def _may_index_as_late(job: Ran, at: datetime, hold: EffectivePolicy) -> bool:
    """Whether new data files may wait for so long where another job takes them, and are no large backlog."""
    queued, limits = _queued(job), hold.index
    state, kind = queued.state, job.kind
    if kind not in state.last or not state.has_index:
        return False
    waits = at - state.waits_since.get(kind, queued.decided_at)
    is_large = (
        state.new.files >= limits.data_files
        or state.new.rows >= limits.rows
        or state.new.bytes >= limits.bytes
    )
    return waits.total_seconds() < limits.age_seconds and not is_large


def _unknown(job: Ran, later: Ran, hold: EffectivePolicy) -> str | None:
    """Why the decision for a job could not know of a later one; None if time alone would have told."""
    queued, then = _queued(job), _queued(later)
    if job.kind is JobKind.INDEX and not _may_index_as_late(job, later.began_at, hold):
        return LATE
    oldest_at = queued.state.oldest_convertible_at
    longest = timedelta(seconds=hold.convert.age_seconds)
    if job.kind is JobKind.CONVERT and oldest_at is not None and later.ended_at - oldest_at >= longest:
        return LATE
    state, at = queued.state, queued.decided_at
    if job.kind is JobKind.CONVERT:
        weighed = weighing(state, hold)
        takes = rewriting_seconds(state, hold, weighed)
        due = decide_kind(JobKind.CONVERT, state, hold, at, tells_cost=False)
        if not may_be_left_to_rewriting(due, state, hold, at, takes):
            return LATE
        # Whether it would have been due after this one all the same, whose place it might have taken.
        shape = weighed.readers.converted if weighed is not None else state.shape
        nothing = replace(state, convertible=Volume(), pending_delete_files=0, oldest_convertible_at=None)
        state = replace(nothing, shape=shape)
    last = state.last.get(later.kind)
    if last is not None and last.failed:
        return FAILED
    moments = [one for one in deadlines(state, hold) if queued.decided_at < one < then.decided_at]
    if then.decided_at <= queued.decided_at or any(
        _is_due(later.kind, state, hold, at) for at in (queued.decided_at, *moments, then.decided_at)
    ):
        return None
    counted = replace(
        state,
        small_data_files=then.state.small_data_files,
        deleted_data_files=then.state.deleted_data_files,
    )
    return COUNTED if _is_due(later.kind, counted, hold, then.decided_at) else CAME


def _is_due(kind: JobKind, state: TableState, hold: EffectivePolicy, at: datetime) -> bool:
    return decide_kind(kind, state, hold, at, tells_cost=False).action is Action.TRIGGER


# The report


@dataclass(frozen=True)
class Figures:
    """What came of one table."""

    jobs: Mapping[JobKind, int]
    bytes_written: Mapping[JobKind, float]
    bytes_arrived: float
    spared: Mapping[tuple[JobKind, JobKind | None, str | None], int]
    """By kind, what came after it, and why that was not known."""
    read_ratio: float
    looks: Sequence[float]
    lag_seconds_max: float


def figures(outcome: Outcome, hold: EffectivePolicy) -> Figures:
    return Figures(
        {kind: totals.jobs for kind, totals in outcome.jobs.items()},
        {kind: totals.bytes_written for kind, totals in outcome.jobs.items()},
        outcome.bytes_arrived,
        Counter(
            (one.job.kind, one.by.kind if one.by else None, one.unknown) for one in spared(outcome, hold)
        ),
        outcome.read_ratio or 0.0,
        [one.ratio for one in outcome.reads],
        outcome.lag_seconds_max,
    )


def fleet(name: str, tables: int = 100, span: timedelta = 2 * WEEK, seed: int = SEED) -> list[Figures]:
    """What a policy makes of each table."""
    with ProcessPoolExecutor() as processes:
        return list(processes.map(partial(_figures_of, name, span, seed), range(tables)))


def _figures_of(name: str, span: timedelta, seed: int, number: int) -> Figures:
    return figures(of_fleet(name, span, seed, number), policy(name))


def _row(what: str, name: str, found: Sequence[Figures]) -> tuple[object, ...]:
    jobs = _sum(one.jobs for one in found)
    ratios = [one.read_ratio for one in found]
    looks = [look for one in found for look in one.looks]
    return (
        what,
        f"`{name}`",
        int(sum(jobs.values())),
        int(sum(_spared(found, None).values())),
        int(sum(sum(_spared(found, why).values()) for why in (CAME, COUNTED, LATE, FAILED))),
        f"{1 + _written_for_each(found, JobKind):.1f}",
        f"{median(1 + _written_for_each([one], JobKind) for one in found if one.bytes_arrived):.1f}",
        f"{sum(ratios) / len(ratios):.2f}",
        f"{max(ratios):.2f}",
        f"{sum(ratio > _DEAR for ratio in looks) / len(looks):.1%}",
        f"{max(looks):.2f}",
        f"{max(one.lag_seconds_max for one in found):.0f} s",
    )


def _sum(counts: Iterable[Mapping[Any, float]]) -> dict[Any, float]:
    found: dict[Any, float] = defaultdict(float)
    for one in counts:
        for key, number in one.items():
            found[key] += number
    return found


def _written_for_each(found: Sequence[Figures], kinds: Iterable[JobKind]) -> float:
    """Bytes that jobs of these kinds wrote for each of a writer's."""
    written = _sum(one.bytes_written for one in found)
    return sum(written[kind] for kind in kinds) / sum(one.bytes_arrived for one in found)


def _spared(found: Sequence[Figures], unknown: str | None) -> dict[tuple[JobKind, JobKind | None], float]:
    """By kind and what came after it, of one reason."""
    of_reason = [
        {(kind, by): number for (kind, by, why), number in one.spared.items() if why == unknown}
        for one in found
    ]
    return _sum(of_reason)


def _rows_of_kinds(runs: Mapping[tuple[str, str], Sequence[Figures]]) -> Iterator[tuple[object, ...]]:
    jobs = {run: _sum(one.jobs for one in found) for run, found in runs.items()}
    for kind in (kind for kind in JobKind if any(one[kind] for one in jobs.values())):
        cells: list[object] = [f"`{kind.value}`"]
        for run, found in runs.items():
            cells += [int(jobs[run][kind]), f"{_written_for_each(found, [kind]):.2f}"]
        yield tuple(cells)


def _rows_of_spared(runs: Mapping[tuple[str, str], Sequence[Figures]]) -> Iterator[tuple[object, ...]]:
    for why in (None, CAME, COUNTED, LATE, FAILED):
        of_run = [_spared(found, why) for found in runs.values()]
        for kind, by in sorted({key for one in of_run for key in one}, key=str):
            after = f"`{by.value}`" if by is not None else "nothing to do"
            yield f"`{kind.value}`", after, why or "**known**", *(int(one[kind, by]) for one in of_run)


def report_of(runs: Mapping[tuple[str, str], Sequence[Figures]]) -> str:
    """In Markdown, its first line the title. runs: by tables and policy."""
    titles = " | ".join(f"{what}, `{name}`" for what, name in runs)
    written = " | ".join(f"{what}, `{name}` | written for each byte" for what, name in runs)
    return "\n\n".join(
        [
            "# Policies over weeks",
            "`make bench-maintenance` simulates what policies make of tables: the decisions are the"
            " scheduler's own, what jobs do and cost is"
            " [a model](decisions/62-a-policy-is-tried-on-what-was-seen.md). So these are no measurements,"
            " and alike on any machine. Of the hundred tables none is like another: 3 MB to 126 GB in one to"
            " sixteen partitions, of format version 3 or 2; new, kept well, or neglected for months; a"
            " commit every five minutes to twelve hours on average, some with pauses of days, fewer at night,"
            " or ten at once; writers that upsert, append, delete, or merge by position, and tables without"
            " keys; slow and quick jobs, of some tables each twentieth"
            " fails. Beside them, one of 300 MB has a commit each minute. The policy is `standard` with data"
            " files rewritten (at most every ten minutes), position deletes and manifests too, and snapshots"
            " expired; by limits (`reached`), or by what readers pay (`worthwhile`).",
            markdown(
                "tables | policy | jobs | spared by a better order | by one who knows or may more |"
                " write amplification | of the middle table | reads, on average | dearest table |"
                " above 1.5 | dearest moment | longest lag",
                [_row(*run, found) for run, found in runs.items()],
            ),
            "A better order would have spared a job that found nothing to do, and one that ended within a"
            " minute before another job began which undid what it did or would have done the same: an index"
            " job before a conversion or a rewriting of data files, which index as well; a conversion before"
            " a rewriting in no other conversion's place; a rewriting of position deletes or manifests or a"
            " compaction of the index before half of the table's bytes were written anew. It"
            " counts as such only if it could be known: if the same decisions, asked of the table as it was"
            " when the job was chosen and of each moment until the other one was, say that the other one is"
            " due, and of a table whose deletes are converted if the job does so. What only who knows the"
            " future could have spared, such as whether what has just failed"
            " will fail again, or who may let new files or deletes wait for longer than the policy does, is"
            " counted beside it, and below by reason.",
            markdown(f"job | before | what was not known | {titles}", _rows_of_spared(runs)),
            "Write amplification is what writers and jobs wrote, the index's jobs too, for each byte of a"
            " writer's: in all, in which large tables that were neglected and get little are most of it, and"
            " of the table in the middle. Reads are how many times as much a full read by Spark costs as had"
            " the table just been rewritten, by [the model](reader-cost.md#the-model) at 500 moments of each"
            " table: on average over time and tables, and over time for the dearest table; in which share of"
            " these moments it was above 1.5 times, and how much at the dearest of them. The dearest"
            " moments and the longest lag of a fleet are those of neglected tables before their first jobs."
            " By kind, jobs and what they wrote:",
            markdown(f"job | {written}", _rows_of_kinds(runs)),
        ]
    )


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    number, seed = [*given, *[100, SEED][len(given) :]]
    found: dict[tuple[str, str], Sequence[Figures]] = {}
    for each in POLICIES:
        found[f"{number}, for two weeks", each] = fleet(each, number, seed=seed)
        found["a commit each minute, for a week", each] = [figures(minutely(each), policy(each))]
    print(report := report_of(found))  # noqa: T201
    write_part(Part.MAINTENANCE, report)
