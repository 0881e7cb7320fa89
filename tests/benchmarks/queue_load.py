"""`make bench-queue`: how fast workers get jobs, and whether thousands of tables are polled under reads.

The queue is called as the service calls it, by threads of one process. The polls and reads are those of
`icestream serve`, a process of its own, over HTTP.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated
from urllib.request import Request, urlopen

import typer
from sqlalchemy import create_engine, text
from sqlmodel import Session, col, func, select

from service.catalogs.models import Catalog
from service.database import Database, migrate, utc_now
from service.index_health.models import TableHealth
from service.jobs import queue
from service.jobs.status import JobKind
from service.policies.service import effective_policy, ensure_built_in
from service.settings import Settings
from service.tables.models import EnrolledTable
from service.workers.models import FinishRequest, Worker
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.postgresql import running_server

_REPORT = Path("docs/queue.md")
_CATALOGS = 5
_KEY = "admin-key-of-this-benchmark-0123456789"
_READERS = 4
_PATIENCE_SECONDS = 1800


@dataclass(frozen=True)
class Claims:
    database: str
    workers: int
    jobs: int
    seconds: float
    latencies: list[float]
    """Of the claims that got a job, in seconds."""

    @property
    def row(self) -> Sequence[str]:
        rate = f"{len(self.latencies) / self.seconds:,.0f}"
        return self.database, f"{self.workers}", f"{self.jobs:,}", rate, *_percentiles(self.latencies)


@dataclass(frozen=True)
class Polling:
    tables: int
    changes: int
    """Tables that a writer committed to."""
    interval_seconds: float
    first_seconds: float
    """Until each table was looked at for the first time."""
    seconds: float
    ages: list[float]
    """How long ago each table was looked at last, sampled once a second, for all tables."""
    unseen_seconds: list[float]
    """From each commit until the service knew of it."""
    reads: list[float]
    """How long each read took, in seconds."""
    rss_bytes: int


def main(
    workers: Annotated[int, typer.Option(help="that claim at the same time")] = 50,
    jobs: Annotated[int, typer.Option(help="that wait")] = 2000,
    tables: Annotated[int, typer.Option(help="registered, to be polled")] = 10_000,
    seconds: Annotated[float, typer.Option(help="to watch the polling for, once all were looked at")] = 60,
    interval: Annotated[float, typer.Option(help="ICESTREAM_POLL_INTERVAL_SECONDS")] = 10,
    report: Annotated[Path, typer.Option(help="the Markdown file to write")] = _REPORT,
) -> None:
    """Measure the queue on SQLite and PostgreSQL, and the polling of many tables under reads."""
    directory = Path(tempfile.mkdtemp(prefix="icestream-queue-"))
    try:
        claims = [measure_claims(f"sqlite:///{directory / 'queue.db'}", "SQLite", workers, jobs)]
        with running_server() as server:
            engine = create_engine(f"{server}/postgres", isolation_level="AUTOCOMMIT")
            with engine.connect() as connection:
                connection.execute(text("CREATE DATABASE bench"))
            engine.dispose()
            claims.append(measure_claims(f"{server}/bench", "PostgreSQL", workers, jobs))
        polling = measure_polling(directory, tables, seconds, interval)
    finally:
        shutil.rmtree(directory)
    report.write_text(_report(claims, polling))
    print(f"{report}: {', '.join(f'{each.row[3]} claims/s on {each.database}' for each in claims)}")  # noqa: T201


def measure_claims(url: str, name: str, workers: int, jobs: int) -> Claims:
    """Every worker claims a job, reports its success, and claims again until none is left."""
    migrate(url)
    database, settings = Database(url), Settings()
    with database.write() as session:
        ensure_built_in(session)
        for number in range(_CATALOGS):
            _add_tables(session, f"catalog-{number}", {}, jobs // _CATALOGS, f"file:///{number}")
        rows = [Worker(name="w", hostname="h", pid=1, version="0") for _ in range(workers)]
        session.add_all(rows)
        session.flush()
        for table in session.exec(select(EnrolledTable)):
            policy = effective_policy(session, table)
            queue.enqueue(session, table, JobKind.CONVERT, policy, utc_now(), requested_by="bench")
    barrier = threading.Barrier(workers)

    def work(worker: Worker) -> list[float]:
        latencies: list[float] = []
        barrier.wait()
        while True:
            began = time.monotonic()
            with database.write() as session:
                assignment = queue.claim(session, settings, worker.id, utc_now())
            if assignment is None:
                return latencies
            latencies.append(time.monotonic() - began)
            with database.write() as session:
                done = FinishRequest(status="succeeded")
                queue.finish(session, assignment.job.id, assignment.attempt, done, utc_now())

    began = time.monotonic()
    with ThreadPoolExecutor(workers) as threads:
        latencies = [latency for each in threads.map(work, rows) for latency in each]
    seconds = time.monotonic() - began
    database.dispose()
    if len(latencies) != jobs // _CATALOGS * _CATALOGS:
        raise RuntimeError(f"{len(latencies)} of {jobs} jobs were claimed")
    return Claims(name, workers, jobs, seconds, latencies)


def measure_polling(directory: Path, tables: int, seconds: float, interval: float) -> Polling:
    """Run the service on so many tables of one catalog, read from it all the time, and commit to some."""
    iceberg = IcebergCatalog(directory)
    iceberg.create("db.t0")
    heads = []
    for number in range(2):
        iceberg.append("db.t0", [number])
        heads.append(iceberg.catalog.load_table("db.t0").metadata_location)
    location = iceberg.catalog.load_table("db.t0").location()
    with iceberg.catalog.engine.begin() as connection:
        statement = text(
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location) "
            "VALUES (:catalog, 'db', :name, :head)"
        )
        rows = [{"catalog": "local", "name": f"t{n}", "head": heads[0]} for n in range(1, tables)]
        if rows:
            connection.execute(statement, rows)
        connection.execute(text("UPDATE iceberg_tables SET metadata_location = :head"), {"head": heads[0]})
    settings = Settings(data_dir=directory / "service")
    migrate(settings.database_url)
    database = Database(settings.database_url)
    with database.write() as session:
        ensure_built_in(session)
        ids = _add_tables(session, "local", iceberg.properties, tables, location)
    with _serving(settings, directory, interval) as (url, process):
        began = time.monotonic()
        while _measured(database) < tables:
            if time.monotonic() - began > _PATIENCE_SECONDS or process.poll() is not None:
                raise RuntimeError("the service does not look at all tables")
            time.sleep(0.2)
        first_seconds = time.monotonic() - began
        stop = threading.Event()
        with ThreadPoolExecutor(_READERS) as readers:
            reading = [readers.submit(_read, url, ids, stop) for _ in range(_READERS)]
            ages, unseen = _watch(database, iceberg, heads, ids, seconds)
            stop.set()
            reads = [latency for each in reading for latency in each.result()]
        rss_bytes = _peak_rss_bytes(process.pid)
    database.dispose()
    iceberg.close()
    return Polling(tables, len(unseen), interval, first_seconds, seconds, ages, unseen, reads, rss_bytes)


def _add_tables(
    session: Session, name: str, properties: dict[str, str], count: int, location: str
) -> list[str]:
    catalog = Catalog(name=name, type="sql", properties=properties)
    session.add(catalog)
    session.flush()
    tables = [
        EnrolledTable(
            catalog_id=catalog.id,
            identifier=["db", f"t{number}"],
            namespace="db",
            name=f"db.t{number}",
            table_uuid=f"{name}-{number}",
            format_version=2,
            location=location,
        )
        for number in range(count)
    ]
    session.add_all(tables)
    session.flush()
    return [table.id for table in tables]


@contextmanager
def _serving(
    settings: Settings, directory: Path, interval: float
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    environment = os.environ | {
        "ICESTREAM_DATA_DIR": str(settings.data_dir),
        "ICESTREAM_ALLOWED_LOCATIONS": f"file://{directory}",
        "ICESTREAM_BOOTSTRAP_KEY": _KEY,
        "ICESTREAM_POLL_INTERVAL_SECONDS": str(interval),
        "ICESTREAM_PORT": "0",
    }
    command = [sys.executable, "-c", "from service.cli import main; main()", "serve"]
    log = (directory / "service.log").open("w+")
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, text=True)
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(r"http://127\.0\.0\.1:[1-9]\d*", Path(log.name).read_text())):
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"the service did not start: {Path(log.name).read_text()[-2000:]}")
            time.sleep(0.1)
        yield found.group(), process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        log.close()


def _measured(database: Database) -> int:
    with database.read() as session:
        query = select(func.count()).where(col(TableHealth.measured_at).is_not(None))
        return session.exec(query).one()


def _read(url: str, ids: Sequence[str], stop: threading.Event) -> list[float]:
    """What people and tools read, one call after the other."""
    latencies = []
    chosen = random.Random(threading.get_ident())
    while not stop.is_set():
        table = chosen.choice(ids)
        for path in (f"tables/{table}", f"tables/{table}/health", "tables?limit=50", "jobs?limit=50"):
            request = Request(f"{url}/api/v1/{path}", headers={"Authorization": f"Bearer {_KEY}"})
            began = time.monotonic()
            with urlopen(request, timeout=60) as answer:
                json.load(answer)
            latencies.append(time.monotonic() - began)
    return latencies


def _watch(
    database: Database, iceberg: IcebergCatalog, heads: Sequence[str], ids: Sequence[str], seconds: float
) -> tuple[list[float], list[float]]:
    """The ages of what is known of each table, and how long each commit of a writer was not known."""
    ages: list[float] = []
    unseen: list[float] = []
    written: dict[str, float] = {}
    fresh = list(range(len(ids)))
    random.Random(1).shuffle(fresh)
    began = time.monotonic()
    before = utc_now()
    with database.read() as session:
        known = dict(session.exec(select(TableHealth.table_id, TableHealth.iceberg_snapshot_id)).all())
    while time.monotonic() - began < seconds or written:
        if time.monotonic() - began < seconds and fresh:
            chosen = [fresh.pop() for _ in range(min(len(fresh), max(len(ids) // 1000, 1)))]
            with iceberg.catalog.engine.begin() as connection:
                for number in chosen:
                    connection.execute(
                        text("UPDATE iceberg_tables SET metadata_location = :head WHERE table_name = :name"),
                        {"head": heads[1], "name": f"t{number}"},
                    )
                    written[ids[number]] = time.monotonic()
        with database.read() as session:
            rows = session.exec(
                select(TableHealth.table_id, TableHealth.iceberg_snapshot_id, TableHealth.measured_at)
            ).all()
        now, moment = utc_now(), time.monotonic()
        for table_id, snapshot_id, measured_at in rows:
            ages.append((now - (measured_at or before)) / timedelta(seconds=1))
            if table_id in written and snapshot_id != known[table_id]:
                unseen.append(moment - written.pop(table_id))
        if moment - began > seconds + _PATIENCE_SECONDS:
            raise RuntimeError(f"{len(written)} commits were never noticed")
        time.sleep(1)
    return ages, unseen


def _peak_rss_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found.group(1)) * 1024


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def _percentiles(values: Sequence[float]) -> tuple[str, str, str]:
    return tuple(f"{_percentile(values, share) * 1000:,.0f} ms" for share in (0.5, 0.99, 1))  # type: ignore[return-value]


def _report(claims: Sequence[Claims], polling: Polling) -> str:
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    lines = [
        "# The queue and the poller under load",
        "",
        f"Written by `make bench-queue` on {os.cpu_count()} cores, with load averages of {load} at the end:",
        "what is above the benchmark's own load was taken by other programs. The PostgreSQL server does not",
        "wait for its disk (`fsync=off`), and everything runs on this one machine.",
        "",
        "## Claims",
        "",
        "Threads call the queue as the service does: claim a job, report its success, claim again, until",
        "no job is left. Each claim chooses among all waiting jobs by priority and turn. The wait for one of",
        "a service's connections to the database counts.",
        "",
        "| database | workers | waiting jobs | claims a second | claim, median | p99 | longest |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(f"| {' | '.join(each.row)} |" for each in claims),
        "",
        "## Polling",
        "",
        f"One `icestream serve` on SQLite with {polling.tables:,} tables of one SQL catalog,"
        f" `ICESTREAM_POLL_INTERVAL_SECONDS={polling.interval_seconds:g}`,",
        f"while {_READERS} clients read tables, their health and jobs without a pause, and a writer commits",
        f"to {polling.changes:,} of the tables within {polling.seconds:g} s. A table in which nothing is",
        "pending is compared with the one answer of its catalog that tells all heads; one that moved is",
        "read.",
        "",
        "| what | |",
        "|---|---:|",
        f"| first look at all tables, nothing known before | {polling.first_seconds:,.0f} s |",
        f"| last look at a table, seconds ago: median | {_percentile(polling.ages, 0.5):,.1f} s |",
        f"| p99 | {_percentile(polling.ages, 0.99):,.1f} s |",
        f"| longest | {max(polling.ages):,.1f} s |",
        f"| a commit is known after: median | {_percentile(polling.unseen_seconds, 0.5):,.1f} s |",
        f"| p99 | {_percentile(polling.unseen_seconds, 0.99):,.1f} s |",
        f"| reads a second | {len(polling.reads) / polling.seconds:,.0f} |",
        f"| read, median / p99 / longest | {' / '.join(_percentiles(polling.reads))} |",
        f"| peak memory of the service (RSS) | {polling.rss_bytes / 1e6:,.0f} MB |",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
