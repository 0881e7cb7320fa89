"""`make bench-workers`: how the work of a fleet grows with its workers and their executors, where a far store
costs most.

Each worker is a process of one slot, with a store of its own before the same folder. Each of the store's
requests waits, so that it is waiting and not the cores of this machine which bounds a worker.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from service.db.database import utc_now
from service.records.jobs import Attempt, AttemptStatus, Job, JobKind
from tests.benchmarks.fleet_executors import FILE_ROWS, FILES, measure_builds
from tests.benchmarks.fleet_processes import CHECKPOINT_ROWS, Fleet, running_fleet
from tests.benchmarks.page import Part, write_report
from tests.benchmarks.report import machine
from tests.benchmarks.report import table as markdown

_WARM_UP = 2
"""Conversions of each worker that are not counted."""
_INDEXING = (2, 4)
"""Workers that make the indexes first, and their slots."""


@dataclass(frozen=True)
class Growth:
    """What workers did while all of them had work."""

    workers: int
    seconds: float
    conversions: int
    each: float
    """Seconds of one, in the median."""
    cores: dict[str, float]
    """That were busy for each group of processes, and for all of the benchmark."""

    @property
    def rate(self) -> float:
        return self.conversions / self.seconds

    def row(self, first: Growth) -> Sequence[object]:
        """first: the one that growth is seen from."""
        linear = first.rate * self.workers / first.workers
        return (
            self.workers,
            self.conversions,
            f"{self.seconds:.0f} s",
            f"{self.rate:.2f}",
            f"{self.rate / linear:.2f}",
            f"{self.each:.2f} s",
            *(f"{cores:.2f}" for cores in self.cores.values()),
        )


def measure(fleet: Fleet, workers: int) -> Growth:
    """Write a checkpoint to each table, and count the conversions from when all workers are warm and all is
    written until the first of them has nothing left."""
    since = utc_now()
    samples: list[tuple[datetime, dict[str, float]]] = []

    def converted() -> int:
        samples.append((utc_now(), {**fleet.cpu, "all": fleet.all_cpu}))
        return len({job.table_id for job, _ in _conversions(fleet, since)})

    with fleet.working(workers, slots=1):
        writing = [fleet.commit(each) for each in fleet.prepared(len(fleet.tables))]
        for one in writing:
            one.result()
        written = utc_now()
        fleet.wait_for_all(converted, "converted")
    ended = defaultdict(list)
    for _, attempt in _conversions(fleet, since):
        ended[attempt.worker_id].append(attempt)
    if len(ended) == workers and min(map(len, ended.values())) > _WARM_UP:
        start = max(written, *(_end(each[_WARM_UP - 1]) for each in ended.values()))
        end = min(_end(each[-1]) for each in ended.values())
        seconds = [one.seconds for each in ended.values() for one in each if start < _end(one) <= end]
        within = [(at, cpu) for at, cpu in samples if start <= at <= end]
        if seconds and len(within) > 1:
            (first, before), (last, after) = within[0], within[-1]
            busy = {name: (after[name] - before[name]) / (last - first).total_seconds() for name in after}
            lasted = (end - start).total_seconds()
            return Growth(workers, lasted, len(seconds), statistics.median(seconds), busy)
    raise typer.BadParameter(f"{len(fleet.tables)} tables are too few for {workers} workers")


def _conversions(fleet: Fleet, since: datetime) -> Sequence[tuple[Job, Attempt]]:
    done = AttemptStatus.SUCCEEDED.value
    return [
        (job, attempt)
        for job, attempt in fleet.attempts(since)
        if job.kind == JobKind.CONVERT.value and attempt.status == done
    ]


def _end(attempt: Attempt) -> datetime:
    assert attempt.ended_at is not None
    return attempt.ended_at


def main(
    tables: Annotated[int, typer.Option(help="enrolled")] = 28,
    rows: Annotated[int, typer.Option(help="of the smallest tables")] = 100_000,
    most_rows: Annotated[int, typer.Option(help="of the largest tables")] = 1_000_000,
    workers: Annotated[list[int], typer.Option(help="at a time, after one another")] = [1, 2, 4],  # noqa: B006 - of a command
    delay: Annotated[float, typer.Option(help="milliseconds of each request to the store")] = 100,
    executors: Annotated[list[int], typer.Option(help="of one worker, likewise")] = [1, 2, 4],  # noqa: B006
    files: Annotated[int, typer.Option(help="of the table that executors index")] = FILES,
    file_rows: Annotated[int, typer.Option(help="of each of these")] = FILE_ROWS,
    report: Annotated[Path | None, typer.Option(help="a Markdown file of its own to write")] = None,
) -> None:
    """Find how conversions a second grow with workers of one slot, and the rows of an index with executors,
    whose store is far away."""
    found: list[Growth] = []
    with running_fleet(tables, (rows, most_rows), delay / 1000) as fleet:
        with fleet.working(*_INDEXING):
            fleet.wait_for_indexes()
        for each in workers:
            found.append(measure(fleet, each))
            print(" | ".join(map(str, found[-1].row(found[0]))), flush=True)  # noqa: T201
    builds = measure_builds(executors, files, file_rows, delay / 1000)
    written = _TEXT.format(
        machine=machine(None, "pyarrow", "pyiceberg"),
        load=", ".join(f"{average:.1f}" for average in os.getloadavg()),
        tables=tables,
        rows=f"{rows:,} to {most_rows:,}",
        delay=delay,
        written=CHECKPOINT_ROWS,
        warm_up=_WARM_UP,
        growth=markdown(
            "workers | conversions | in | a second | of linear | one takes, median | cores busy: service"
            " | workers' Java | workers' Python | all",
            [each.row(found[0]) for each in found],
        ),
        indexed=files * file_rows,
        files=files,
        builds=markdown(
            "executors | tasks on them | the job | rows a second | of linear | its stage `index` | of linear"
            " | cores busy",
            [each.row(builds[0]) for each in builds],
        ),
    )
    print(write_report(Part.FLEET_WORKERS, written, report))  # noqa: T201


_TEXT = """\
# More workers

Made by `make bench-workers` on {machine}
Load averages of {load} at the end: what is above its own was taken by other programs.

{tables:,} tables of {rows} rows in SQL and REST catalogs, of format versions 2 and 3, in a
store where each request waits {delay:g} ms: waiting, and not the cores, is what a conversion costs. Each
worker is a process of one slot that has seen none of the tables, and asks a process of its own for what is
in the store, as the service and the REST catalog do. Each table gets a checkpoint of {written} rows and as
many equality deletes, and is converted. Counted is from when each worker has converted {warm_up} tables
until one has no more to do. `of linear` is the rate as a share of so many times the rate of a worker in the
first line; `all` are these processes, stores, catalogs and the writer.

{growth}

## Executors

One worker on a standalone master of Spark, with executors of one core each, all of them processes of this
machine. The store is as many processes as there are executors. Each line is the first index of a table of
{indexed:,} rows in {files:,} data files.

{builds}
"""


if __name__ == "__main__":
    typer.run(main)
