"""`make bench-queue`: how fast workers get jobs, and whether thousands of tables are polled under reads.

The queue is called as the service calls it, by threads of one process; and then over HTTP by processes, as
workers do. That, the polls and the reads are of `icestream serve`, a process of its own.
"""

from __future__ import annotations

import gc
import json
import os
import random
import re
import shutil
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.request import Request, urlopen

import typer
from pyiceberg.catalog.rest import RestCatalog
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import col, func, select

from service.auth.models import SYSTEM
from service.db.database import Database, migrate, utc_now
from service.errors import is_database_trouble
from service.jobs.attempts import End, ends_reported_to
from service.jobs.claims import Ask
from service.jobs.contract import Assignment, FinishRequest
from service.policies.places import table_target
from service.policies.service import ensure_built_in
from service.records.health import TableHealth
from service.records.policies import Level, Policy, PolicyAttachment
from service.records.workers import Worker
from service.settings import Settings
from service.workers.waiting import Claims as ClaimsOfProcess
from tests.benchmarks.measure import cpu_seconds, high_water_mark
from tests.benchmarks.page import PAGE, Part, write_part
from tests.benchmarks.queue_over_http import ClaimsOverHttp, measure_over_http
from tests.benchmarks.queued_jobs import enqueue, new_catalog, new_tables, register
from tests.benchmarks.servers import KEY, SERVE, server
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.postgresql import execute, running_server
from tests.worker.table.catalog_servers import rest_server

T = TypeVar("T")
_READERS = 4
_TOLD, _TOLD_PREFIX = 200, "t"
_PATIENCE_SECONDS = 1800
_BROKEN = {"code": "broken", "title": "Broken", "detail": "It is.", "remedy": "None.", "retryable": False}
_CLEAN, _PENDING, _REST, _HADOOP = "SQL", "SQL, deletes pending", "REST", "Hadoop"
KINDS = (_CLEAN, _PENDING, _REST, _HADOOP)
"""Of tables; as large a share of those in the last two has pending deletes, too."""
_SERVERS = (
    "The PostgreSQL server does not wait for its disk (`fsync=off`), and everything runs on this one",
    "machine.",
)
_QUIET_HOURS = 8
"""Since the tables have changed: longer than any is left without being read anyway."""


@dataclass(frozen=True)
class Claims:
    database: str
    workers: int
    jobs: int
    seconds: float
    latencies: list[float]
    """Of the claims that got a job, in seconds."""
    refusals: list[float]
    """How long calls waited for the database in vain, which the service answers with 503."""

    @property
    def row(self) -> Sequence[str]:
        rate = f"{len(self.latencies) / self.seconds:,.0f}"
        latencies = _percentiles([*self.latencies, *self.refusals])
        refused = f"{len(self.refusals):,}"
        return self.database, f"{self.workers}", f"{self.jobs:,}", rate, *latencies, refused


@dataclass(frozen=True)
class Polling:
    tables: Mapping[str, int]
    """How many there are of each kind."""
    interval_seconds: float
    first_seconds: float
    """Until each table was looked at for the first time."""
    first_cpu_seconds: float
    """Of the service meanwhile."""
    again_seconds: float
    """The same after a start of the service that knows them."""
    again_cpu_seconds: float
    idle_share: float
    """Of one core, while nobody commits or reads."""
    seconds: float
    ages: Mapping[str, list[float]]
    """Of each kind: how long ago each table was looked at last, sampled once a second, for all tables."""
    unseen_seconds: Mapping[str, list[float]]
    """From each commit until the service knew of it."""
    told_seconds: list[float]
    """The same of commits that a notification told, of tables in the SQL catalog."""
    claimed_seconds: list[float]
    """From each of these until a worker that waited had the job that follows."""
    reads: list[float]
    """How long each read took, in seconds."""
    rss_bytes: int


@dataclass(frozen=True)
class _Group(ABC):
    """Tables of one catalog that share the metadata of two heads: before and after a commit."""

    kind: str
    heads: Sequence[str]
    names: Sequence[str]

    @cached_property
    def _metadata(self) -> dict[str, Any]:
        return dict(json.loads(_path(self.heads[0]).read_text()))

    @property
    def table_uuid(self) -> str:
        return str(self._metadata["table-uuid"])

    @property
    def location(self) -> str:
        return str(self._metadata["location"])

    @property
    def is_told(self) -> bool:
        """Whether commits are told, and each makes a job due at once."""
        return self.names[0].startswith(_TOLD_PREFIX)

    @abstractmethod
    def create(self) -> None: ...

    @abstractmethod
    def commit(self, name: str) -> None: ...


@dataclass(frozen=True)
class _InDatabase(_Group):
    database: Engine
    """The catalog's."""

    def create(self) -> None:
        """Copies of the table that the catalog has."""
        with self.database.begin() as connection:
            known = connection.execute(text("SELECT * FROM iceberg_tables LIMIT 1")).mappings().one()
            row = dict(known) | {"metadata_location": self.heads[0]}
            columns, values = ", ".join(row), ", ".join(f":{name}" for name in row)
            statement = text(f"INSERT INTO iceberg_tables ({columns}) VALUES ({values})")
            connection.execute(statement, [row | {"table_name": name} for name in self.names])

    def commit(self, name: str) -> None:
        with self.database.begin() as connection:
            connection.execute(
                text("UPDATE iceberg_tables SET metadata_location = :head WHERE table_name = :name"),
                {"head": self.heads[1], "name": name},
            )


@dataclass(frozen=True)
class _InDirectories(_Group):
    """Of a hadoop catalog."""

    warehouse: Path

    def create(self) -> None:
        for name in self.names:
            (self.warehouse / "db" / name / "metadata").mkdir(parents=True)
            self._write(name, 0)

    def commit(self, name: str) -> None:
        self._write(name, 1)

    def _write(self, name: str, head: int) -> None:
        metadata = self.warehouse / "db" / name / "metadata"
        (metadata / f"v{head + 1}.metadata.json").hardlink_to(_path(self.heads[head]))
        (metadata / "version-hint.text").write_text(f"{head + 1}")


def main(
    workers: Annotated[int, typer.Option(help="that claim at the same time")] = 50,
    jobs: Annotated[int, typer.Option(help="that wait")] = 2000,
    tables: Annotated[int, typer.Option(help="registered, to be polled")] = 10_000,
    seconds: Annotated[float, typer.Option(help="to watch the polling for, once all were looked at")] = 60,
    interval: Annotated[float, typer.Option(help="ICESTREAM_POLL_INTERVAL_SECONDS")] = 10,
    pending: Annotated[float, typer.Option(help="share of the tables with pending deletes")] = 0.5,
    rest: Annotated[float, typer.Option(help="share of the tables in a REST catalog")] = 0.1,
    hadoop: Annotated[float, typer.Option(help="share of the tables in a hadoop catalog")] = 0.1,
    only: Annotated[Part | None, typer.Option(help="measure only this")] = None,
    report: Annotated[Path | None, typer.Option(help="a Markdown file of its own to write")] = None,
) -> None:
    """Measure the queue on both databases, called and over HTTP, and the polling of many tables."""
    directory = Path(tempfile.mkdtemp(prefix="icestream-queue-"))
    written: dict[Part, str] = {}
    try:
        if only in (None, Part.QUEUE):
            claims = [measure_claims(f"sqlite:///{directory / 'queue.db'}", "SQLite", workers, jobs)]
            typer.echo(" | ".join(claims[-1].row))
            with running_server() as server:
                execute(f"{server}/postgres", "CREATE DATABASE bench")
                claims.append(measure_claims(f"{server}/bench", "PostgreSQL", workers, jobs))
                typer.echo(" | ".join(claims[-1].row))
            written[Part.QUEUE] = _report_claims(claims)
        if only in (None, Part.QUEUE_HTTP):
            sqlite = f"sqlite:///{directory / 'http.db'}"
            over_http = measure_over_http(sqlite, "SQLite", workers, jobs, directory)
            with running_server() as server:
                execute(f"{server}/postgres", "CREATE DATABASE http")
                over_http += measure_over_http(f"{server}/http", "PostgreSQL", workers, jobs, directory)
            for each in over_http:
                typer.echo(" | ".join(_row_over_http(each)))
            written[Part.QUEUE_HTTP] = _report_over_http(over_http)
        if only in (None, Part.POLLING):
            shares = {"pending": pending, "rest": rest, "hadoop": hadoop}
            polling = measure_polling(directory, tables, seconds, interval, **shares)
            written[Part.POLLING] = _report_polling(polling)
    finally:
        shutil.rmtree(directory)
    if report is not None:
        report.write_text("\n".join(written.values()))
    else:
        for part, lines in written.items():
            write_part(part, lines)
    typer.echo(f"{report or PAGE}: {', '.join(written)}")


def measure_claims(url: str, name: str, workers: int, jobs: int) -> Claims:
    """Every worker claims a job, reports its success, and claims again until none is left."""
    migrate(url)
    database, settings = Database(url), Settings()
    register(database, jobs)
    waiting = enqueue(database)
    with database.write() as session:
        rows = [
            Worker(name="w", hostname="h", pid=1, version="0", registered_by=SYSTEM.key)
            for _ in range(workers)
        ]
        session.add_all(rows)
    claims = ClaimsOfProcess(database, settings, threading.Event())
    ends = ends_reported_to(database)
    barrier = threading.Barrier(workers)
    gc.freeze()  # as the service does

    refusals: list[float] = []

    def call(function: Callable[[], T]) -> T:
        while True:
            began = time.monotonic()
            try:
                return function()
            except SQLAlchemyError as error:
                if not is_database_trouble(error):
                    raise
                refusals.append(time.monotonic() - began)

    def finish(assignment: Assignment) -> None:
        job_id = assignment.job.id
        ends.call(End(SYSTEM, job_id, assignment.attempt, FinishRequest(status="succeeded")), job_id)

    def work(worker: Worker) -> list[float]:
        latencies: list[float] = []
        barrier.wait()
        while True:
            began = time.monotonic()
            assignment = call(lambda: claims.claim(Ask(SYSTEM, worker.id)))
            if assignment is None:
                return latencies
            latencies.append(time.monotonic() - began)
            call(partial(finish, assignment))

    began = time.monotonic()
    with ThreadPoolExecutor(workers) as threads:
        of_workers = list(threads.map(work, rows))
    seconds = time.monotonic() - began
    database.dispose()
    latencies = [latency for each in of_workers for latency in each]
    starved = sum(not each for each in of_workers)
    if starved and jobs >= 10 * workers:
        raise RuntimeError(f"{starved} of {workers} workers got no job on {name}")
    if len(latencies) != waiting:
        raise RuntimeError(f"{len(latencies)} of {waiting} jobs were claimed")
    return Claims(name, workers, jobs, seconds, latencies, refusals)


def measure_polling(
    directory: Path,
    tables: int,
    seconds: float,
    interval: float,
    *,
    pending: float,
    rest: float,
    hadoop: float,
) -> Polling:
    """Run the service on so many tables, read from it all the time, and commit to some; then let it be."""
    settings = Settings(data_dir=directory / "service")
    migrate(settings.database_url)
    database = Database(settings.database_url)
    iceberg = IcebergCatalog(directory)
    with rest_server(directory, iceberg.properties["warehouse"]) as uri:
        in_rest, in_hadoop = int(tables * rest), int(tables * hadoop)
        of_catalogs = (tables - in_rest - in_hadoop, in_rest, in_hadoop)
        groups = _groups(directory, iceberg, uri, of_catalogs, pending)
        enrolled: dict[str, tuple[_Group, str]] = {}
        with database.write() as session:
            ensure_built_in(session)
            # Deletes that are all of one moment would come of age at one moment.
            patient = Policy(
                name="patient", settings={"convert": {"age_seconds": 86_400}, "index": {"enabled": False}}
            )
            eager = Policy(name="eager", settings={"convert": {"delete_files": 1}})
            session.add_all((patient, eager))
            session.flush()
            session.get_one(PolicyAttachment, "system").policy_id = patient.id
            sql = new_catalog(session, "local", "sql", iceberg.properties)
            served = new_catalog(session, "served", "rest", {"uri": uri})
            warehouse = {"warehouse": _warehouse(directory).as_uri()}
            directories = new_catalog(session, "directories", "hadoop", warehouse)
            for group in groups:
                catalog = {_REST: served, _HADOOP: directories}.get(group.kind, sql)
                ids = new_tables(session, catalog, group.names, group.location, group.table_uuid)
                enrolled |= dict(zip(ids, ((group, name) for name in group.names), strict=True))
                if group.is_told:
                    session.add_all(
                        PolicyAttachment(
                            target=table_target(each),
                            level=Level.TABLE.value,
                            policy_id=eager.id,
                            table_id=each,
                        )
                        for each in ids
                    )
        environment = {
            "ICESTREAM_DATA_DIR": str(settings.data_dir),
            "ICESTREAM_ALLOWED_LOCATIONS": directory.as_uri(),
            "ICESTREAM_BOOTSTRAP_KEY": KEY,
            "ICESTREAM_POLL_INTERVAL_SECONDS": str(interval),
            "ICESTREAM_PORT": "0",
        }
        with server(SERVE, directory / "service.log", **environment) as (url, process):
            first_seconds, first_cpu_seconds = _look(database, process, len(enrolled))
            typer.echo(f"all {len(enrolled)} tables were looked at after {first_seconds:.0f} s")
            stop = threading.Event()
            with ThreadPoolExecutor(_READERS) as readers:
                reading = [readers.submit(_read, url, list(enrolled), stop) for _ in range(_READERS)]
                watched_at = time.monotonic()
                try:
                    ages, unseen = _watch(database, enrolled, seconds)
                    typer.echo(f"they were watched for {time.monotonic() - watched_at:.0f} s")
                    told, claimed = _tell(url, database, enrolled)
                    _pause_told(url, enrolled)
                finally:
                    stop.set()
                watched_seconds = time.monotonic() - watched_at
                reads = [latency for each in reading for latency in each.result()]
            rss_bytes = high_water_mark(process.pid)
        with server(SERVE, directory / "service-again.log", **environment) as (_, process):
            again_seconds, again_cpu_seconds = _look(database, process, len(enrolled))
            time.sleep(2 * interval)
            before, idle_at = cpu_seconds(process.pid), time.monotonic()
            time.sleep(seconds)
            idle_share = (cpu_seconds(process.pid) - before) / (time.monotonic() - idle_at)
    database.dispose()
    iceberg.close()
    counts = Counter(group.kind for group, _ in enrolled.values())
    return Polling(
        counts,
        interval,
        first_seconds,
        first_cpu_seconds,
        again_seconds,
        again_cpu_seconds,
        idle_share,
        watched_seconds,
        ages,
        unseen,
        told,
        claimed,
        reads,
        rss_bytes,
    )


def _groups(
    directory: Path, iceberg: IcebergCatalog, uri: str, counts: Sequence[int], pending: float
) -> list[_Group]:
    """Tables without and with pending deletes in a SQL catalog, some whose commits are told, and then tables
    in a REST catalog and in a hadoop catalog. counts: of the three catalogs."""
    heads: list[list[str]] = []
    for name, writes in (
        ("clean", ("append", "append")),
        ("pending", ("delete_keys", "append")),
        ("told", ("append", "delete_keys")),
    ):
        iceberg.create(f"db.{name}")
        iceberg.append(f"db.{name}", [1, 2, 3])
        heads.append([])
        for write in writes:
            getattr(iceberg, write)(f"db.{name}", [1])
            heads[-1].append(iceberg.catalog.load_table(f"db.{name}").metadata_location)
    for before, _ in heads:
        _make_older(_path(before))
    rest = RestCatalog("served", uri=uri)
    rest.create_namespace("db")
    rest.register_table("db.known", heads[0][0])
    rest.close()
    groups: list[_Group] = []
    databases = iceberg.catalog.engine, create_engine(f"sqlite:///{directory / 'rest.db'}"), None
    for database, kinds, count in zip(
        databases, ((_CLEAN, _PENDING), (_REST, _REST), (_HADOOP, _HADOOP)), counts, strict=True
    ):
        with_deletes = int(count * pending)
        told = min(_TOLD, (count - with_deletes) // 2) if kinds[0] == _CLEAN else 0
        for prefix, kind, number, of_kind in (
            ("c", kinds[0], count - with_deletes - told, heads[0]),
            ("p", kinds[1], with_deletes, heads[1]),
            (_TOLD_PREFIX, kinds[0], told, heads[2]),
        ):
            if names := [f"{prefix}{each}" for each in range(number)]:
                group = (
                    _InDirectories(kind, of_kind, names, _warehouse(directory))
                    if database is None
                    else _InDatabase(kind, of_kind, names, database)
                )
                group.create()
                groups.append(group)
    return groups


def _warehouse(directory: Path) -> Path:
    return directory / "hadoop"


def _path(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def _make_older(metadata: Path) -> None:
    """As if all had been written hours ago."""
    hours = _QUIET_HOURS * 3_600_000
    found = re.sub(r'(-ms": ?)(\d{13})\b', lambda at: f"{at[1]}{int(at[2]) - hours}", metadata.read_text())
    metadata.write_text(found)


def _look(database: Database, process: subprocess.Popen[bytes], tables: int) -> tuple[float, float]:
    """Seconds until each table was looked at by a service that has just begun to answer, and its CPU seconds
    meanwhile."""
    began, since, before = time.monotonic(), utc_now(), cpu_seconds(process.pid)
    query = select(func.count()).where(col(TableHealth.measured_at) >= since)
    while True:
        with database.read() as session:
            if session.exec(query).one() == tables:
                return time.monotonic() - began, cpu_seconds(process.pid) - before
        if time.monotonic() - began > _PATIENCE_SECONDS or process.poll() is not None:
            raise RuntimeError("the service does not look at all tables")
        time.sleep(0.2)


def _read(url: str, ids: Sequence[str], stop: threading.Event) -> list[float]:
    """What people and tools read, one call after the other."""
    latencies = []
    chosen = random.Random(threading.get_ident())
    while not stop.is_set():
        table = chosen.choice(ids)
        for path in (f"tables/{table}", f"tables/{table}/health", "tables?limit=50", "jobs?limit=50"):
            request = Request(f"{url}/api/v1/{path}", headers={"Authorization": f"Bearer {KEY}"})
            began = time.monotonic()
            with urlopen(request, timeout=60) as answer:
                json.load(answer)
            latencies.append(time.monotonic() - began)
    return latencies


def _watch(
    database: Database, enrolled: Mapping[str, tuple[_Group, str]], seconds: float
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """The ages of what is known of each table, and how long each commit of a writer was not known."""
    ages: dict[str, list[float]] = {kind: [] for kind in KINDS}
    unseen: dict[str, list[float]] = {kind: [] for kind in KINDS}
    written: dict[str, float] = {}
    fresh = [each for each, (group, _) in enrolled.items() if not group.is_told]
    random.Random(1).shuffle(fresh)
    at_once = max(len(fresh) // 1000, 1)
    began = time.monotonic()
    before = utc_now()
    with database.read() as session:
        known = dict(session.exec(select(TableHealth.table_id, TableHealth.iceberg_snapshot_id)).all())
    while time.monotonic() - began < seconds or written:
        is_over = time.monotonic() - began >= seconds
        for _ in range(0 if is_over else min(len(fresh), at_once)):
            table_id = fresh.pop()
            group, name = enrolled[table_id]
            group.commit(name)
            written[table_id] = time.monotonic()
        with database.read() as session:
            rows = session.exec(
                select(TableHealth.table_id, TableHealth.iceberg_snapshot_id, TableHealth.measured_at)
            ).all()
        now, moment = utc_now(), time.monotonic()
        for table_id, snapshot_id, measured_at in rows:
            kind = enrolled[table_id][0].kind
            ages[kind].append((now - (measured_at or before)) / timedelta(seconds=1))
            if table_id in written and snapshot_id != known[table_id]:
                unseen[kind].append(moment - written.pop(table_id))
        if moment - began > seconds + _PATIENCE_SECONDS:
            raise RuntimeError(f"{len(written)} commits were never noticed")
        time.sleep(1)
    return ages, unseen


def _tell(
    url: str, database: Database, enrolled: Mapping[str, tuple[_Group, str]]
) -> tuple[list[float], list[float]]:
    """How long each of some commits is not known that is told at once, and how long it takes until a worker
    that waits has the job that follows."""
    unseen, unclaimed = [], []
    started = {"name": "w", "hostname": "h", "pid": 1, "version": "0"}
    worker = _post(url, "workers", started)["id"]
    told = [(table_id, *of) for table_id, of in enrolled.items() if of[0].is_told]

    def claim(table_id: str) -> float:
        """When the job of this table came; none that comes is done."""
        while True:
            assignment = _post(url, f"workers/{worker}/claim", {"wait_seconds": 60})
            claimed_at = time.monotonic()
            attempt = f"jobs/{assignment['job']['id']}/attempts/{assignment['attempt']}"
            _post(url, f"{attempt}/finish", {"status": "failed", "error": _BROKEN})
            # One that failed long ago has its turn again on a slow machine.
            if assignment["table"]["id"] == table_id:
                return claimed_at

    with ThreadPoolExecutor(1) as thread:
        for table_id, group, name in told:
            known = _snapshot_of(database, table_id)
            claiming = thread.submit(claim, table_id)
            time.sleep(random.uniform(0.2, 0.4))  # so that it waits
            began = time.monotonic()
            group.commit(name)
            _post(url, f"tables/{table_id}/notifications")
            while _snapshot_of(database, table_id) == known:
                if time.monotonic() - began > _PATIENCE_SECONDS:
                    raise RuntimeError("a commit that was told was never noticed")
                time.sleep(0.01)
            unseen.append(time.monotonic() - began)
            unclaimed.append(claiming.result() - began)
    return unseen, unclaimed


def _pause_told(url: str, enrolled: Mapping[str, tuple[_Group, str]]) -> None:
    """Their jobs failed, and would be tried again."""
    for table_id, (group, _) in enrolled.items():
        if group.is_told:
            _post(url, f"tables/{table_id}/pause")


def _post(url: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    request = Request(f"{url}/api/v1/{path}", json.dumps(body).encode() if body else None, method="POST")
    request.add_header("Authorization", f"Bearer {KEY}")
    request.add_header("Content-Type", "application/json")
    with urlopen(request, timeout=90) as answer:
        return dict(json.loads(answer.read() or "{}"))


def _snapshot_of(database: Database, table_id: str) -> int | None:
    with database.read() as session:
        return session.get_one(TableHealth, table_id).iceberg_snapshot_id


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def _percentiles(values: Sequence[float]) -> tuple[str, str, str]:
    return tuple(f"{_percentile(values, share) * 1000:,.0f} ms" for share in (0.5, 0.99, 1))  # type: ignore[return-value]


def _seconds(values: Sequence[float], share: float) -> str:
    return f"{_percentile(values, share):,.3g} s" if values else "-"


def _row(name: str, kinds: Sequence[str], figure: Callable[[str], str]) -> str:
    return f"| {name} | {' | '.join(map(figure, kinds))} |"


def _origin() -> Sequence[str]:
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    return (
        f"Written by `make bench-queue` on {os.cpu_count()} cores, with load averages of {load} at the end:",
        "what is above the benchmark's own load was taken by other programs.",
    )


def _report_claims(claims: Sequence[Claims]) -> str:
    lines = [
        "# The queue under load",
        "",
        *_origin(),
        *_SERVERS,
        "",
        "Threads call the queue as the service does: claim a job, report its success, claim again, until",
        "no job is left. Each claim chooses among all waiting jobs by priority and turn. The wait for one of",
        "a service's connections to the database counts. Refused are calls that waited for the database in",
        "vain: the service answers them with 503, and a worker calls again, as it does here. Their waits",
        "count as well, and a worker that got no job at all fails the run.",
        "",
        "| database | workers | waiting jobs | claims a second | claim, median | p99 | longest | refused |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *(f"| {' | '.join(each.row)} |" for each in claims),
        "",
    ]
    return "\n".join(lines)


def _row_over_http(claims: ClaimsOverHttp) -> Sequence[str]:
    count = len(claims.claims)
    return (
        claims.database,
        str(claims.calls),
        f"{claims.workers}",
        f"{count:,}",
        f"{claims.rate:,.0f}",
        *_percentiles(claims.claims),
        f"{claims.refused:,}",
        *(f"{seconds / count * 1000:.1f} ms" for seconds in claims.cpu.values()),
        f"{sum(claims.cpu.values()) / claims.seconds:.2f}",
    )


def _report_over_http(claims: Sequence[ClaimsOverHttp]) -> str:
    lines = [
        "# The queue over HTTP",
        "",
        *_origin(),
        *_SERVERS,
        "",
        "Workers ask one `icestream serve`, which polls no tables meanwhile, over HTTP. They are processes,",
        "each of which stands for several workers and does little else; a worker waits for the answer to one",
        "call before the next. They get all jobs that wait: first with a claim and a report for each, then",
        "as workers do whose conversions are small, with a heartbeat that announces delete files and asks",
        "for row addresses, and a report that claims the next job. The wait of a claim is that of the call",
        "that brings the job. CPU is for each job; that of the workers takes from the service what it could",
        "use of the cores.",
        "",
        "| database | calls for a job | workers | jobs | jobs a second | claim, median | p99 | longest"
        " | refused | CPU, service | CPU, database | CPU, workers | cores busy |",
        f"|---|---|{'---:|' * 11}",
        *(f"| {' | '.join(_row_over_http(each))} |" for each in claims),
        "",
    ]
    return "\n".join(lines)


def _report_polling(polling: Polling) -> str:
    kinds = [kind for kind in KINDS if polling.tables.get(kind)]
    lines = [
        "# Polling of many tables",
        "",
        *_origin(),
        f"One `icestream serve` on SQLite with {sum(polling.tables.values()):,} tables, in a SQL catalog,",
        "Iceberg's own REST server and a hadoop catalog on a local disk, and an",
        f"`ICESTREAM_POLL_INTERVAL_SECONDS` of {polling.interval_seconds:g}, while {_READERS} clients read",
        "tables, their health and jobs without a pause, and a writer commits to some tables each second.",
        "Of the tables of the latter two, as large a share has pending equality deletes as of the others.",
        f"None of the tables has changed for {_QUIET_HOURS} hours at first.",
        "A table is read when its metadata location has changed, or when a moment of its policy has",
        "come; otherwise it is asked where that is: all at once in the SQL catalog, one by one in the",
        "others, the less often the longer it has been quiet. Of a look that finds nothing new, each sixth",
        "is noted, as the ages below have it.",
        f"Then commits to {len(polling.told_seconds)} of the SQL tables are told, one after the other. Each",
        "adds an equality delete that is to be converted at once, by a job that fails; no other policy",
        "starts a job. At last these tables are paused, and the service is started again, and left alone.",
        "",
        f"| tables | {' | '.join(kinds)} |",
        f"|---|{'---:|' * len(kinds)}",
        _row("number", kinds, lambda kind: f"{polling.tables[kind]:,}"),
        _row("last look, seconds ago: median", kinds, lambda kind: _seconds(polling.ages[kind], 0.5)),
        _row("p99", kinds, lambda kind: _seconds(polling.ages[kind], 0.99)),
        _row("longest", kinds, lambda kind: _seconds(polling.ages[kind], 1)),
        _row("commits", kinds, lambda kind: f"{len(polling.unseen_seconds[kind]):,}"),
        _row("known after: median", kinds, lambda kind: _seconds(polling.unseen_seconds[kind], 0.5)),
        _row("p99", kinds, lambda kind: _seconds(polling.unseen_seconds[kind], 0.99)),
        "",
        "| what | |",
        "|---|---:|",
        f"| first look at all tables, nothing known before | {polling.first_seconds:,.0f} s |",
        f"| CPU of the service until then | {polling.first_cpu_seconds:,.0f} s |",
        f"| first look at all tables after a start that knows them | {polling.again_seconds:,.1f} s |",
        f"| CPU of the service until then | {polling.again_cpu_seconds:,.1f} s |",
        f"| CPU of the service while it is left alone, of one core | {polling.idle_share:.1%} |",
        "| known after a commit that is told, SQL: median / p95 / longest |"
        f" {' / '.join(_seconds(polling.told_seconds, share) for share in (0.5, 0.95, 1))} |",
        "| claimed after it by a worker that waits: median / p95 / longest |"
        f" {' / '.join(_seconds(polling.claimed_seconds, share) for share in (0.5, 0.95, 1))} |",
        f"| reads a second | {len(polling.reads) / polling.seconds:,.0f} |",
        f"| read, median / p99 / longest | {' / '.join(_percentiles(polling.reads))} |",
        f"| peak memory of the service (RSS) | {polling.rss_bytes / 1e6:,.0f} MB |",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
