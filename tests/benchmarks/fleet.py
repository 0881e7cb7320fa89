"""`make bench-fleet`: how fresh the tables of a fleet stay on this machine, and what it costs.

A writer commits checkpoints like Flink's to one table after the other, at a rate that grows as long as it is
held. The service and a worker are processes of their own, and are told of each commit.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from pyiceberg.exceptions import CommitFailedException
from sqlalchemy import text
from sqlmodel import col, select

from service.db.database import Database, migrate, utc_now
from service.records.jobs import Attempt, Job, JobKind, JobStatus
from tests.benchmarks.measure import cpu_seconds, descendants, high_water_mark, mebibytes
from tests.benchmarks.page import PAGE, Part, write_part
from tests.benchmarks.report import machine
from tests.benchmarks.report import table as markdown
from tests.benchmarks.servers import KEY, SERVE, WORK, running, server
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.service.iceberg_tables import IcebergCatalog

CHECKPOINT_ROWS = 500
HELD_SECONDS = 60.0
"""A rate is held if 99 of 100 checkpoints are converted within this time."""
POLICY = {"convert": {"delete_files": 1}, "compact": {"enabled": False}}


@dataclass(frozen=True)
class Fleet:
    """Tables in a SQL catalog, with the service and a worker that keep them."""

    iceberg: IcebergCatalog
    names: Sequence[str]
    rows: int
    http: httpx.Client
    """Of the service's API."""
    database: Database
    """Of the service."""
    processes: dict[str, int]
    """Their ids."""
    log: Path
    """Of the service."""

    @property
    def cpu(self) -> dict[str, float]:
        """Seconds of each process, with those that it started."""
        return {name: sum(map(cpu_seconds, [pid, *descendants(pid)])) for name, pid in self.processes.items()}

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that each took at most, with those that it started."""
        return {
            name: sum(map(high_water_mark, [pid, *descendants(pid)])) for name, pid in self.processes.items()
        }

    @property
    def requests(self) -> int:
        """That the service has answered; its log has a line of each."""
        return self.log.read_text().count("/api/v1/")

    def is_idle(self) -> bool:
        active = col(Job.status).in_((JobStatus.QUEUED.value, JobStatus.RUNNING.value))
        with self.database.read() as session:
            return session.exec(select(Job.id).where(active)).first() is None

    def write(self, name: str) -> None:
        """Commit a checkpoint, and tell of it."""
        ids = random.sample(range(self.rows), CHECKPOINT_ROWS)
        has_lost = True
        while has_lost:
            with suppress(CommitFailedException):  # a conversion came first
                self.iceberg.upsert(name, ids)
                has_lost = False
        self.http.post("/catalogs/local/notifications", json={"tables": [name]}).raise_for_status()

    def metadata(self) -> Iterator[dict[str, Any]]:
        with self.iceberg.catalog.engine.connect() as connection:
            places = connection.execute(text("SELECT metadata_location FROM iceberg_tables")).scalars().all()
        for place in places:
            yield json.loads(Path(place.removeprefix("file:")).read_text())


@dataclass(frozen=True)
class Run:
    """What became of the checkpoints of one rate."""

    rate: float
    seconds: float
    """From the first checkpoint until the last one was converted, or given up."""
    checkpoints: int
    lags: Sequence[float]
    """Seconds from each commit until that of its conversion; of those not converted, until the end."""
    conversions: int
    """Commits of these."""
    cpu: dict[str, float]
    requests: int
    attempts: Counter[str]
    """By kinds of jobs."""
    stages: dict[str, float]
    """Seconds of all attempts at conversions, by stage."""

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.lags, n=100, method="inclusive")[98]

    @property
    def is_held(self) -> bool:
        return self.p99 <= HELD_SECONDS

    @property
    def row(self) -> Sequence[object]:
        return (
            f"{self.rate:g}",
            self.checkpoints,
            f"{statistics.median(self.lags):.1f} s",
            f"{self.p99:.1f} s",
            f"{self.conversions / self.seconds:.2f}",
            *(f"{seconds / self.checkpoints:.2f} s" for seconds in self.cpu.values()),
            f"{self.requests / self.checkpoints:.1f}",
            ", ".join(f"{count} {kind}" for kind, count in sorted(self.attempts.items())),
        )


def lags_of(metadata: dict[str, Any], since_ms: int, now_ms: int) -> tuple[list[float], int]:
    """Of the checkpoints of a table since a moment: seconds until converted, or until now; and conversions.

    Conversions remove the equality delete files that came first.
    """
    waiting: list[int] = []
    lags, conversions = [], 0
    for snapshot in sorted(metadata.get("snapshots", ()), key=lambda each: each["sequence-number"]):
        at, summary = snapshot["timestamp-ms"], snapshot["summary"]
        if "added-equality-deletes" in summary and at >= since_ms:
            waiting.append(at)
        removed = int(summary.get("removed-equality-delete-files", 0)) if at >= since_ms else 0
        conversions += removed > 0
        lags += [(at - one) / 1000 for one in waiting[:removed]]
        del waiting[:removed]
    return [*lags, *((now_ms - one) / 1000 for one in waiting)], conversions


def measure(fleet: Fleet, rate: float, seconds: float) -> Run:
    """Write at a rate (checkpoints a second) for a while, and wait until all is converted."""
    cpu, requests, since = fleet.cpu, fleet.requests, utc_now()
    began = time.monotonic()
    count = max(int(rate * seconds), 1)
    for number in range(count):
        time.sleep(max(began + number / rate - time.monotonic(), 0))
        fleet.write(fleet.names[number % len(fleet.names)])
    deadline = time.monotonic() + 2 * HELD_SECONDS
    while not fleet.is_idle() and time.monotonic() < deadline:
        time.sleep(0.2)
    took = time.monotonic() - began
    moments = int(since.timestamp() * 1000), int(time.time() * 1000)
    found = [lags_of(metadata, *moments) for metadata in fleet.metadata()]
    attempts, stages = _attempts(fleet.database, since)
    return Run(
        rate,
        took,
        count,
        [lag for lags, _ in found for lag in lags],
        sum(conversions for _, conversions in found),
        {name: after - cpu[name] for name, after in fleet.cpu.items()},
        fleet.requests - requests,
        attempts,
        stages,
    )


def _attempts(database: Database, since: datetime) -> tuple[Counter[str], dict[str, float]]:
    attempts: Counter[str] = Counter()
    stages: dict[str, float] = defaultdict(float)
    query = select(Job.kind, Attempt).join(Attempt, col(Attempt.job_id) == col(Job.id))
    with database.read() as session:
        for kind, attempt in session.exec(query.where(col(Attempt.ended_at) >= since)):
            attempts[kind] += 1
            if kind == JobKind.CONVERT.value:
                stages["all"] += attempt.seconds
                for stage in attempt.stages:
                    stages[stage["name"]] += stage["seconds"]
    return attempts, stages


@contextmanager
def running_fleet(tables: int, rows: int, slots: int) -> Iterator[Fleet]:
    """With tables that are indexed."""
    directory = Path(tempfile.mkdtemp(prefix="icestream-fleet-"))
    iceberg = IcebergCatalog(directory)
    url = f"sqlite:///{directory}/service/icestream.db"
    settings = {
        "ICESTREAM_DATA_DIR": str(directory / "service"),
        "ICESTREAM_ALLOWED_LOCATIONS": directory.as_uri(),
        "ICESTREAM_INDEX_WAREHOUSE": (directory / "index").as_uri(),
        "ICESTREAM_BOOTSTRAP_KEY": KEY,
        "ICESTREAM_LOG_REQUESTS": "true",
        "ICESTREAM_REQUESTS_PER_MINUTE": "0",
        "ICESTREAM_PORT": "0",
    }
    try:
        names = [f"db.t{number}" for number in range(tables)]
        for name in names:
            iceberg.create(name)
            iceberg.append(name, list(range(rows)))
        migrate(url)
        headers = {"Authorization": f"Bearer {KEY}"}
        log = directory / "service.log"
        with server(SERVE, log, **settings) as (place, service):
            worker = {
                "ICESTREAM_URL": place,
                "ICESTREAM_API_KEY": KEY,
                "ICESTREAM_WORKER_SLOTS": str(slots),
            }
            with (
                running(WORK, directory / "worker.log", **worker) as work,
                httpx.Client(base_url=f"{place}/api/v1", headers=headers, timeout=PATIENCE_SECONDS) as http,
            ):
                _enrol(http, iceberg, names)
                processes = {"service": service.pid, "worker": work.pid}
                fleet = Fleet(iceberg, names, rows, http, Database(url), processes, log)
                wait_until(lambda: _indexed(fleet.database) == tables, "all tables to be indexed")
                yield fleet
                fleet.database.dispose()
    finally:
        iceberg.close()
        shutil.rmtree(directory)


def _enrol(http: httpx.Client, iceberg: IcebergCatalog, names: Sequence[str]) -> None:
    http.post("/policies", json={"name": "fresh", "settings": POLICY}).raise_for_status()
    record = {"name": iceberg.name, "type": "sql", "properties": iceberg.properties}
    http.post("/catalogs", json=record).raise_for_status()
    for name in names:
        body = {
            "catalog": iceberg.name,
            "identifier": name.split("."),
            "policy": "fresh",
            "key_sets": [["id"]],
        }
        http.post("/tables", json=body).raise_for_status()


def _indexed(database: Database) -> int:
    done = (Job.kind == JobKind.INDEX.value, Job.status == JobStatus.SUCCEEDED.value)
    with database.read() as session:
        return len(set(session.exec(select(Job.table_id).where(*done))))


def main(
    tables: Annotated[int, typer.Option(help="enrolled")] = 60,
    rows: Annotated[int, typer.Option(help="of each table")] = 100_000,
    slots: Annotated[int, typer.Option(help="jobs that the worker runs at a time")] = 2,
    rate: Annotated[list[float], typer.Option(help="checkpoints a second, growing")] = [0.5, 1, 2, 4, 8],  # noqa: B006 - of a command
    seconds: Annotated[float, typer.Option(help="for which each rate is written")] = 60,
    report: Annotated[Path | None, typer.Option(help="a Markdown file of its own to write")] = None,
) -> None:
    """Find the highest rate of checkpoints that a fleet holds, and what one costs."""
    runs: list[Run] = []
    with running_fleet(tables, rows, slots) as fleet:
        for each in rate:
            runs.append(measure(fleet, each, seconds))
            print(" | ".join(map(str, runs[-1].row)), flush=True)  # noqa: T201
            if not runs[-1].is_held:
                break
        memory = fleet.memory
    written = _report(tables, rows, slots, runs, memory)
    if report is None:
        write_part(Part.FLEET, written)
    else:
        report.write_text(written)
    print(report or PAGE)  # noqa: T201


def _report(tables: int, rows: int, slots: int, runs: Sequence[Run], memory: dict[str, int]) -> str:
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    held = max((run.rate for run in runs if run.is_held), default=0)
    stages = [
        (name, f"{seconds / run.attempts[JobKind.CONVERT.value]:.3f} s")
        for run in runs[-1:]
        for name, seconds in sorted(run.stages.items(), key=lambda each: -each[1])
    ]
    return "\n".join(
        [
            "# A fleet",
            "",
            f"Made by `make bench-fleet` on {machine(None, 'pyarrow', 'pyiceberg')}",
            f"Load averages of {load} at the end: what is above its own was taken by other programs.",
            "",
            f"{tables:,} tables of {rows:,} rows in a SQL catalog, format version 2, each with its index.",
            f"A writer commits {CHECKPOINT_ROWS} rows and as many equality deletes to one after the other,",
            "tells the service of each commit, and takes its part of the same cores. There are one",
            f"`icestream serve` on SQLite, one worker with {slots} slots, and a policy that converts at the",
            "first delete file and indexes as `standard` does. The lag is from the commit of a checkpoint to",
            f"that of its conversion. A rate is held if its p99 is at most {HELD_SECONDS:g} s: {held:g}",
            "checkpoints a second were. CPU and requests to the service are those for a checkpoint.",
            "",
            markdown(
                "checkpoints a second | number | lag, median | p99 | conversions a second"
                " | CPU, service | CPU, worker | requests | attempts",
                [run.row for run in runs],
            ),
            "",
            "Where an attempt at a conversion spends its time at the last of these rates:",
            "",
            markdown("stage | seconds", stages),
            "",
            f"Memory at most: {', '.join(f'{name} {mebibytes(size)}' for name, size in memory.items())}.",
            "",
        ]
    )


if __name__ == "__main__":
    typer.run(main)
