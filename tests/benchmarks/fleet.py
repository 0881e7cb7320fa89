"""`make bench-fleet`: how fresh the tables of a fleet stay on this machine, and what it costs.

Checkpoints like Flink's are committed to one table after the other, at a rate that grows as long as it is
held. The service and its workers are processes of their own, and are told of each commit.
"""

from __future__ import annotations

import os
import statistics
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from service.db.database import utc_now
from service.records.jobs import JobKind
from tests.benchmarks.fleet_processes import CHECKPOINT_ROWS, Fleet, running_fleet
from tests.benchmarks.measure import mebibytes
from tests.benchmarks.page import Part, write_report
from tests.benchmarks.report import machine
from tests.benchmarks.report import table as markdown

HELD_SECONDS = 60.0
"""A rate is held if 99 of 100 checkpoints are converted within this time."""
_WRITTEN = 0.95
"""And if so much of it was written,"""
_GROWTH = 0.03
"""and the lag does not grow by more seconds in each second: it would be too long before long."""
_IDLE_LOOKS = 10
"""That find no job: what is told becomes one a moment later."""
_ALL = "all"


@dataclass(frozen=True)
class Checkpoint:
    committed_ms: int
    claimed_ms: int
    """When a worker got the job that converted it: maybe before."""
    converted_ms: int
    """Of those that were not, both of these are the end."""

    @property
    def lag(self) -> float:
        return (self.converted_ms - self.committed_ms) / 1000

    @property
    def seconds_to_claim(self) -> float:
        return max(self.claimed_ms - self.committed_ms, 0) / 1000


Figures: TypeAlias = Mapping[str, Sequence[float]]
"""By catalog."""


@dataclass(frozen=True)
class Run:
    """What became of the checkpoints of one rate."""

    rate: float
    written: float
    """Checkpoints a second that there really were."""
    seconds: float
    """From the first checkpoint until the last one was converted, or given up."""
    checkpoints: Sequence[Checkpoint]
    conversions: int
    """Commits of these."""
    cpu: dict[str, float]
    requests: Counter[str]
    """To the service, by method and route."""
    of_store: Mapping[str, int]
    """Requests to the store of the tables, by kind."""
    attempts: Counter[str]
    """By kinds of jobs."""
    stages: Mapping[str, Figures]
    """Seconds of attempts at conversions, by stage and catalog."""

    @property
    def p99(self) -> float:
        return _percentile([one.lag for one in self.checkpoints], 99)

    @property
    def growth(self) -> float:
        """Seconds that the lag grows by in a second, from the first third of the checkpoints to the last."""
        ordered = sorted(self.checkpoints, key=lambda one: one.committed_ms)
        third = max(len(ordered) // 3, 1)
        before, after = (
            (
                statistics.median(one.committed_ms for one in part) / 1000,
                statistics.median(one.lag for one in part),
            )
            for part in (ordered[:third], ordered[-third:])
        )
        return (after[1] - before[1]) / max(after[0] - before[0], 0.001)

    @property
    def is_held(self) -> bool:
        is_written = self.written >= _WRITTEN * self.rate
        return is_written and self.p99 <= HELD_SECONDS and self.growth <= _GROWTH

    @property
    def row(self) -> Sequence[object]:
        count = len(self.checkpoints)
        return (
            f"{self.rate:g}",
            f"{self.written:.1f}",
            count,
            f"{statistics.median(one.lag for one in self.checkpoints):.1f} s",
            f"{self.p99:.1f} s",
            f"{self.growth:+.2f}",
            f"{_percentile([one.seconds_to_claim for one in self.checkpoints], 95):.2f} s",
            f"{self.conversions / self.seconds:.2f}",
            *(f"{seconds / count:.3f} s" for seconds in self.cpu.values()),
            f"{self.requests.total() / count:.1f}",
            ", ".join(f"{count} {kind}" for kind, count in sorted(self.attempts.items())),
        )


def _percentile(seconds: Sequence[float], percent: int) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1]


def checkpoints_of(
    metadata: dict[str, Any], claims_ms: Sequence[int], since_ms: int, now_ms: int
) -> tuple[list[Checkpoint], int]:
    """Those of a table since a moment, and its conversions, which remove the equality delete files that came
    first. claims_ms: when its conversions were claimed, in order."""
    waiting: list[int] = []
    found, conversions = [], 0
    for snapshot in sorted(metadata.get("snapshots", ()), key=lambda each: each["sequence-number"]):
        at, summary = snapshot["timestamp-ms"], snapshot["summary"]
        if "added-equality-deletes" in summary and at >= since_ms:
            waiting.append(at)
        removed = int(summary.get("removed-equality-delete-files", 0)) if at >= since_ms else 0
        conversions += removed > 0
        before = bisect_right(claims_ms, at)
        claimed = claims_ms[before - 1] if before else at
        found += [Checkpoint(one, claimed, at) for one in waiting[:removed]]
        del waiting[:removed]
    return [*found, *(Checkpoint(one, now_ms, now_ms) for one in waiting)], conversions


def _cpu(fleet: Fleet) -> dict[str, float]:
    """Seconds of the service and its workers, and of all else here: the writer, catalogs and stores."""
    known = fleet.cpu
    return {**known, "all else": fleet.all_cpu - sum(known.values())}


def measure(fleet: Fleet, rate: float, seconds: float) -> Run:
    """Write at a rate (checkpoints a second) for a while, and wait until all is converted."""
    prepared = fleet.prepared(max(int(rate * seconds), 2))
    fleet.asked_of_stores()
    cpu, requests, since = _cpu(fleet), fleet.requests, utc_now()
    began = time.monotonic()
    writing = []
    for number, upsert in enumerate(prepared):
        time.sleep(max(began + number / rate - time.monotonic(), 0))
        writing.append(fleet.commit(upsert))
    for one in writing:
        one.result()
    written = len(writing) / max(time.monotonic() - began, len(writing) / rate)
    deadline, looks = time.monotonic() + 2 * HELD_SECONDS, 0
    while looks < _IDLE_LOOKS and time.monotonic() < deadline:
        looks = looks + 1 if fleet.is_idle() else 0
        time.sleep(0.2)
    now_ms = int(time.time() * 1000)
    cost = {name: after - cpu[name] for name, after in _cpu(fleet).items()}
    asked, of_store = fleet.requests - requests, fleet.asked_of_stores()
    attempts: Counter[str] = Counter()
    stages: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    claims: dict[str, list[int]] = defaultdict(list)
    last = since
    for job, attempt in fleet.attempts(since):
        last = attempt.ended_at or last
        attempts[job.kind] += 1
        if job.kind == JobKind.CONVERT.value:
            claims[job.table_id].append(int(attempt.started_at.timestamp() * 1000))
            catalog = fleet.tables[job.table_id].catalog
            stages[_ALL][catalog].append(attempt.seconds)
            for stage in attempt.stages:
                stages[stage["name"]][catalog].append(stage["seconds"])
    found = [
        checkpoints_of(table.metadata, sorted(claims[id_]), int(since.timestamp() * 1000), now_ms)
        for id_, table in fleet.tables.items()
    ]
    return Run(
        rate,
        written,
        max((last - since).total_seconds(), seconds),
        [one for checkpoints, _ in found for one in checkpoints],
        sum(conversions for _, conversions in found),
        cost,
        asked,
        of_store,
        attempts,
        stages,
    )


def main(
    tables: Annotated[list[int], typer.Option(help="enrolled; one fleet after the other")] = [60, 1000],  # noqa: B006 - of a command
    rows: Annotated[int, typer.Option(help="of the smallest tables")] = 100_000,
    most_rows: Annotated[int, typer.Option(help="of the largest tables")] = 10_000_000,
    workers: Annotated[int, typer.Option(help="each a process")] = 1,
    slots: Annotated[int, typer.Option(help="jobs that a worker runs at a time")] = 4,
    delay: Annotated[float, typer.Option(help="milliseconds of each request to a store; 0: local disk")] = 0,
    rate: Annotated[list[float], typer.Option(help="checkpoints a second, growing")] = [2, 4, 8, 10, 12],  # noqa: B006
    seconds: Annotated[float, typer.Option(help="for which each rate is written")] = 180,
    report: Annotated[Path | None, typer.Option(help="a Markdown file of its own to write")] = None,
) -> None:
    """Find the highest rate of checkpoints that fleets hold, and what one costs."""
    places = "SQL, REST and Hadoop catalogs on the local disk"
    if delay:
        places = f"SQL and REST catalogs, in a store where each request waits {delay:g} ms"
    parts = []
    for count in tables:
        runs: list[Run] = []
        with running_fleet(count, (rows, most_rows), delay / 1000) as fleet, fleet.working(workers, slots):
            began = time.monotonic()
            fleet.wait_for_indexes()
            indexed_seconds = time.monotonic() - began
            for each in rate:
                runs.append(measure(fleet, each, seconds))
                print(" | ".join(map(str, runs[-1].row)), flush=True)  # noqa: T201
                if not runs[-1].is_held:
                    break
            all_rows = sum(table.rows for table in fleet.tables.values())
            parts.append(_part(count, all_rows, indexed_seconds, runs, fleet.memory))
        written = _TEXT.format(
            machine=machine(None, "pyarrow", "pyiceberg"),
            load=", ".join(f"{average:.1f}" for average in os.getloadavg()),
            rows=f"{rows:,} to {most_rows:,}",
            places=places,
            written=CHECKPOINT_ROWS,
            workers=f"{workers} worker{'s' * (workers > 1)} of {slots} slot{'s' * (slots > 1)}",
            held=HELD_SECONDS,
            growth=_GROWTH,
            parts="\n\n".join(parts),
        )
        place = write_report(Part.FLEET_IN_STORE if delay else Part.FLEET, written, report)
    print(place)  # noqa: T201


def _part(
    tables: int, rows: int, indexed_seconds: float, runs: Sequence[Run], memory: Mapping[str, int]
) -> str:
    return _PART.format(
        tables=tables,
        rows=rows,
        indexed=indexed_seconds,
        held=max((run.rate for run in runs if run.is_held), default=0),
        runs=markdown(
            "checkpoints a second | written | number | lag, median | p99 | grows by | to claim, p95"
            " | conversions a second | CPU, service | CPU, workers' Java | CPU, workers' Python"
            " | CPU, all else | requests | attempts",
            [run.row for run in runs],
        ),
        requests=_by_kind(runs),
        stages=_by_catalog(runs[-1].stages),
        memory=", ".join(f"{name} {mebibytes(size)}" for name, size in memory.items()),
    )


def _by_catalog(stages: Mapping[str, Figures]) -> str:
    """Of an attempt: seconds of each stage, its share, and the seconds with each catalog."""
    attempts = {catalog: len(seconds) for catalog, seconds in sorted(stages[_ALL].items())}
    seconds = {
        stage: {catalog: sum(figures.get(catalog, ())) for catalog in attempts}
        for stage, figures in stages.items()
    }
    totals = {stage: sum(figures.values()) for stage, figures in seconds.items()}
    return markdown(
        " | ".join(("stage", "seconds", "share", *attempts)),
        [
            (
                stage,
                f"{total / sum(attempts.values()):.3f} s",
                f"{total / totals[_ALL]:.0%}",
                *(f"{seconds[stage][catalog] / count:.3f} s" for catalog, count in attempts.items()),
            )
            for stage, total in sorted(totals.items(), key=lambda each: -each[1])
        ],
    )


def _by_kind(runs: Sequence[Run]) -> str:
    """To the service, and then to the store."""
    asked = [
        run.requests + Counter({f"store: {kind}": count for kind, count in run.of_store.items()})
        for run in runs
    ]
    kinds: Counter[str] = sum(asked, Counter())
    return markdown(
        " | ".join(("request", *(f"{run.rate:g}" for run in runs))),
        [
            (
                f"`{kind}`",
                *(f"{one[kind] / len(run.checkpoints):.2f}" for one, run in zip(asked, runs, strict=True)),
            )
            for kind, _ in kinds.most_common()
        ],
    )


_TEXT = """\
# A fleet

Made by `make bench-fleet` on {machine}
Load averages of {load} at the end: what is above its own was taken by other programs.

Tables of {rows} rows, few of them large, in {places},
of format versions 2 and 3, each with its index. A writer commits {written} rows and as many equality
deletes, whose files were written before, to one after the other, tells the service of each commit, and
takes its part of the same cores, as the REST catalog does. There are one `icestream serve` on SQLite,
{workers}, and a policy that converts at the first delete file and does all else as `standard`: it
compacts an index of 16 sorted runs. The lag is from the commit of a checkpoint to that of its conversion;
`to claim` is until a worker had the job that converted it, `grows by` what the lag grows by in a second.
A rate is held if it was written, the p99 of the lag is at most {held:g} s, and the lag grows by at most
{growth:g}. CPU and requests to the service are those for a checkpoint; `all else` is the writer, catalogs
and stores.

{parts}
"""
_PART = """\
## {tables:,} tables

All had their first index, of {rows:,} rows together, {indexed:.0f} s after the workers were started. Highest
rate that was held: {held:g} a second.

{runs}

Requests for a checkpoint at each of these rates, by kind:

{requests}

Where an attempt at a conversion spends its time at the last of these rates, and with each type of catalog:

{stages}

Memory at most: {memory}."""


if __name__ == "__main__":
    typer.run(main)
