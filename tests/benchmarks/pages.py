"""`make bench-pages`: how long people wait for pages of a control plane that has run for long.

The pages are those of `icestream serve`, a process of its own, asked over HTTP one after the other. What it
shows is written into its database at once: tables, jobs that have ended, their events, and health samples.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import httpx
import typer
from sqlalchemy import insert
from sqlmodel import Session, SQLModel

from service.auth.models import SYSTEM
from service.db.database import Database, migrate, new_id, utc_now
from service.jobs.queue import rfc3339
from service.policies.service import ensure_built_in
from service.records.api_keys import Role
from service.records.audit import AuditEntry
from service.records.catalogs import Catalog
from service.records.health import (
    _PARTS,
    KEPT_CHANGES,
    MERGED_CHANGES,
    HealthSample,
    HealthStatus,
    PendingChange,
    Resolution,
    TableHealth,
    minute_of,
    store_layouts,
)
from service.records.jobs import Attempt, AttemptStatus, Event, Job, JobKind, JobStatus
from service.records.reports import (
    PARTITIONS_AT_MOST,
    RUNS_AT_MOST,
    IndexLayout,
    KeySetReport,
    PartitionReport,
    SortedRunReport,
)
from service.records.tables import EnrolledTable
from service.records.workers import Worker
from tests.benchmarks.measure import cpu_seconds, high_water_mark
from tests.benchmarks.page import Part, write_report
from tests.benchmarks.servers import KEY, SERVE, server
from tests.benchmarks.viewers import SECONDS, VIEWERS, Happens, Watched, cpu_of, watch
from tests.service.postgresql import execute, running_server

_AT_ONCE = 10_000
"""Rows of one statement."""
_SAMPLES = 24
"""Of a table's health: one an hour."""
_LONG_AGO = 30 * 24
"""Likewise, of tables that are shown over a long time."""
_AUDITED = 100_000
"""Entries of the audit log."""
_SPAN = timedelta(days=30)
"""What jobs are spread over."""
_KINDS = (JobKind.INDEX, JobKind.CONVERT, JobKind.CONVERT, JobKind.COMPACT)
_LOOKUP = {
    "equality_field_ids": [1],
    "columns": ["id"],
    "source": "index",
    "reason": "the index covers all 100 data files",
    "keys": 500,
    "predicted_index_seconds": 0.2,
    "predicted_scan_seconds": 1.5,
    "index_seconds": 0.25,
}
_RESULT = {
    "equality_delete_files_removed": 4,
    "equality_deletes_resolved": 500,
    "rows_deleted": 480,
    "key_sets": [_LOOKUP],
}
_PROGRESS = {"stage": "lookup", "done": 17, "total": 100, "unit": "row groups"}
_FAILED = 50
"""One job of so many has failed."""
_TOOK = timedelta(seconds=90)
_WAITING = 100
"""Jobs that wait for a worker."""
_WORKERS = 20
_WANTED_SECONDS = 0.1
"""What a page should take in the median."""
_LINES = 500
"""Of the log of each attempt, for one job."""
_DECISIONS = 100
"""Likewise."""


@dataclass(frozen=True)
class Answers:
    """How long a page took, asked again and again."""

    database: str
    page: str
    seconds: Sequence[float]
    cpu: float
    """Seconds of processor time that the service took for each."""
    length: int
    """Of the answer in bytes, before compression."""

    @property
    def is_slow(self) -> bool:
        return statistics.median(self.seconds) > _WANTED_SECONDS

    @property
    def row(self) -> str:
        ordered = sorted(self.seconds)
        figures = (statistics.median(ordered), ordered[round(0.99 * (len(ordered) - 1))])
        median, longest = (f"{1000 * each:,.0f} ms" for each in figures)
        cpu = f"{1000 * self.cpu:,.0f} ms"
        return (
            f"| {self.page} | {self.database} | {median} | {longest} | {cpu} | {self.length / 1000:,.0f} kB |"
        )


def main(
    tables: Annotated[int, typer.Option(help="enrolled")] = 10_000,
    jobs: Annotated[int, typer.Option(help="that have ended, with two events each")] = 1_000_000,
    times: Annotated[int, typer.Option(help="that each page is asked for")] = 50,
    seconds: Annotated[float, typer.Option(help="that viewers are watched, each time")] = SECONDS,
    report: Annotated[Path | None, typer.Option(help="a Markdown file of its own to write")] = None,
) -> None:
    """Measure the pages on SQLite and PostgreSQL."""
    directory = Path(tempfile.mkdtemp(prefix="icestream-pages-"))
    try:
        answers, watched, memory = measure(
            directory, f"sqlite:///{directory}/icestream.db", "SQLite", tables, jobs, times, seconds
        )
        with running_server() as url:
            execute(f"{url}/postgres", "CREATE DATABASE bench")
            found = measure(directory, f"{url}/bench", "PostgreSQL", tables, jobs, times, seconds)
        answers, watched = answers + found[0], watched + found[1]
    finally:
        shutil.rmtree(directory)
    written = _report(answers, watched, memory, tables, jobs, times)
    place = write_report(Part.PAGES, written, report)
    print(f"{place}: {len(answers)} pages")  # noqa: T201


def measure(
    directory: Path, url: str, name: str, tables: int, jobs: int, times: int, seconds: float
) -> tuple[list[Answers], list[Watched], int]:
    """The answers, what it costs to watch, and the bytes that the service took at most."""
    migrate(url)
    database = Database(url)
    with database.write() as session:
        paths = _fill(session, tables, jobs)
    if name == "PostgreSQL":  # as autovacuum does in time
        execute(url, "VACUUM ANALYZE")
    database.dispose()
    environment = {
        "ICESTREAM_DATABASE_URL": url,
        "ICESTREAM_DATA_DIR": str(directory),
        "ICESTREAM_BOOTSTRAP_KEY": KEY,
        "ICESTREAM_REQUESTS_PER_MINUTE": "0",
        # Nothing is there that could be polled.
        "ICESTREAM_BACKGROUND": "false",
        "ICESTREAM_PORT": "0",
    }
    answers = []
    with (
        server(SERVE, directory / "service.log", **environment) as (address, process),
        httpx.Client(base_url=address, headers={"Authorization": f"Bearer {KEY}"}, timeout=600) as http,
    ):
        for page, path in paths.items():
            took = []
            _open(http, path)
            used = cpu_seconds(process.pid)
            for _ in range(times):
                began = time.monotonic()
                answer = _open(http, path)
                took.append(time.monotonic() - began)
            used = (cpu_seconds(process.pid) - used) / times
            answers.append(Answers(name, page, took, used, len(answer.content)))
        table, job = (paths[page].rpartition("/")[2] for page in ("table", "job that runs"))
        ends, proceeds = (
            Happens("job.succeeded", table),
            Happens("job.progress", table, job, {"progress": _PROGRESS}),
        )
        alone = cpu_of(process.pid, seconds)
        watched = [
            watch(address, process.pid, alone, url, name, page, paths[page], happens, seconds)
            for page, happens in (("overview", ends), ("table", ends), ("job that runs", proceeds))
        ]
        memory = high_water_mark(process.pid)
    return answers, watched, memory


def _open(http: httpx.Client, path: str) -> httpx.Response:
    answer = http.get(path, headers={"Accept": "text/html"})
    assert answer.status_code == 200, (path, answer.status_code, answer.text[:2000])
    return answer


def _fill(session: Session, tables: int, jobs: int) -> Mapping[str, str]:
    """Paths of pages, by what they show."""
    ensure_built_in(session)
    now = utc_now()
    began = now - _SPAN
    catalog = Catalog(
        name="lake",
        type="sql",
        properties={"uri": "sqlite://"},
        paused=True,
        created_at=began,
        updated_at=began,
    )
    session.add(catalog)
    session.flush()
    ids = [new_id() for _ in range(tables)]
    statuses = list(HealthStatus)
    _insert(
        session,
        EnrolledTable(catalog_id=catalog.id, format_version=2),  # type: ignore[call-arg]
        (
            {
                "id": table_id,
                "identifier": [f"team_{number % 100}", f"orders_{number}"],
                "namespace": f"team_{number % 100}",
                "name": f"team_{number % 100}.orders_{number}",
                "table_uuid": table_id,
                "location": f"s3://lake/{number}",
            }
            for number, table_id in enumerate(ids)
        ),
    )
    _insert(
        session,
        TableHealth(measured_at=now, data_files=100, has_keys=True),  # type: ignore[call-arg]
        (
            {
                "table_id": table_id,
                "status": statuses[number % len(statuses)].value,
                "pending_equality_deletes": number * 7 % 1000,
            }
            for number, table_id in enumerate(ids)
        ),
    )
    # The table of the pages, and those that a timeline shows first.
    by_pending = sorted(range(tables), key=lambda number: (number * 7 % 1000, ids[number]))
    with_history = {ids[tables // 2], *(ids[number] for number in by_pending[-25:])}
    sample = HealthSample(  # type: ignore[call-arg]
        resolution=Resolution.HOUR,
        status=HealthStatus.HEALTHY,
        pending_equality_delete_files=1,
        lag_seconds=60,
        hour_longest_lag_seconds=60,
        day_longest_lag_seconds=60,
        day_most_deletes=_SAMPLES - 1,
        coverage=1,
        entries=1_000_000,
        bytes=20_000_000,
        sorted_runs=4,
        dead_ratio=0.1,
        unconvertible=0,
    )
    _insert(
        session,
        sample,
        (
            {
                "table_id": table_id,
                "at": now - timedelta(hours=hour),
                "pending_equality_deletes": hour,
                "hour_most_deletes": hour,
            }
            for hour in reversed(range(_LONG_AGO))
            for table_id in (ids if hour < _SAMPLES else with_history)
        ),
    )
    _insert(
        session,
        PendingChange(),  # type: ignore[call-arg]
        (
            {"minute": minute, "part": part, "equality_deletes": (minute * 7919 % 1001) - 500}
            for minute in range(minute_of(now - KEPT_CHANGES), minute_of(now))
            for step in [_step(minute_of(now) - minute)]
            if minute % (step or 1) == 0
            for part in range(1 if step else _PARTS)
        ),
    )
    _insert(
        session,
        AuditEntry(principal="api-key:ops", role=Role.ADMIN, action="table.update", outcome="allowed"),  # type: ignore[call-arg]
        ({"target": ids[number % tables]} for number in range(_AUDITED)),
    )
    made = [new_id() for _ in range(jobs)]
    ended = Job(  # type: ignore[call-arg]
        catalog_id=catalog.id,
        writes=True,
        trigger="The oldest delete was 5 min old.",
        requested_by=SYSTEM.key,
        attempt=1,
        max_attempts=3,
        backoff_seconds=10,
        max_backoff_seconds=600,
    )
    _insert(session, ended, (_job(number, job_id, ids, jobs) for number, job_id in enumerate(made)))
    workers = [
        Worker(name=f"worker-{number}", hostname="node", pid=number, version="0.1.0")
        for number in range(_WORKERS)
    ]
    session.add_all(workers)
    session.flush()
    attempt = Attempt(attempt=1, lease_expires_at=now, seconds=_TOOK.total_seconds())  # type: ignore[call-arg]
    _insert(
        session,
        attempt,
        (_attempt(number, job_id, workers, jobs) for number, job_id in enumerate(made)),
    )
    waiting = ended.model_copy(update={"status": JobStatus.QUEUED.value, "attempt": 0, "kind": "verify"})
    _insert(
        session,
        waiting,
        ({"id": new_id(), "table_id": table_id, "table_uuid": table_id} for table_id in ids[:_WAITING]),
    )
    _insert(
        session,
        Event(),  # type: ignore[call-arg]
        (
            {"kind": kind, "message": "It was so.", "job_id": job_id, "table_id": ids[number % tables]}
            for number, job_id in enumerate(made)
            for kind in ("job.queued", "job.succeeded")
        ),
    )
    table = ids[tables // 2]
    _fill_index(session, table)
    told_much = _add_job_that_told_much(session, ended, table, workers[0])
    running = _add_job_that_runs(session, waiting, table, workers[0])
    return {
        "overview": "/",
        "overview, 90 days": "/?days=90",
        "timeline": "/timeline",
        "timeline, 30 days": "/timeline?hours=720",
        "timeline, six hours of a night": _timeline(now - timedelta(hours=14), timedelta(hours=6)),
        "timeline, a day of the past": _timeline(now - timedelta(hours=25), timedelta(hours=24)),
        "tables": "/tables",
        "tables by pending deletes": "/tables?sort=-pending_equality_deletes",
        "tables by status": "/tables?sort=-status",
        "tables by a part of the name": "/tables?search=ders_12",
        "tables of a namespace": "/tables?namespace=team_1",
        "tables of a catalog": f"/tables?catalog={catalog.name}",
        "table": f"/tables/{table}",
        "table, 30 days": f"/tables/{table}?days=30",
        "X-ray of an index": f"/tables/{table}/index",
        "jobs": "/jobs",
        "jobs that failed": "/jobs?status=failed",
        "jobs of a kind": "/jobs?kind=compact",
        "jobs of a kind that few are of": "/jobs?kind=rebuild",
        "jobs that people asked for": "/jobs?trigger=request",
        "jobs of a worker that failed": f"/jobs?worker={workers[1].name}&status=failed",
        "jobs of a worker, before a time": _jobs_before(workers[1].name, now - _SPAN / 2),
        "job": f"/jobs/{told_much}",
        "job that runs": f"/jobs/{running}",
        "search": "/search?search=orders_12",
        "catalogs": "/catalogs",
        "catalog": f"/catalogs/{catalog.id}",
        "policies": "/policies",
        "erasures": "/erasures",
        "workers": "/workers",
        "audit": "/audit",
        "metrics": "/metrics",
    }


def _timeline(since: datetime, span: timedelta) -> str:
    """As dragging over a stretch of time leads to it."""
    words = {"since": rfc3339(since), "until": rfc3339(since + span)}
    return f"/timeline?{urlencode(words)}"


def _jobs_before(worker: str, until: datetime) -> str:
    """As a worker's row of a timeline leads to them."""
    return f"/jobs?{urlencode({'worker': worker, 'until': rfc3339(until)})}"


def _fill_index(session: Session, table_id: str) -> None:
    """As much as is ever told of two indexes of a table."""
    run = SortedRunReport(level=0, files=1, entries=1_000_000, bytes=3_000_000, dead_ratio=0.1)
    partitions = [
        PartitionReport(partition=f"region=eu/day={day}", data_files=100, covered_data_files=day % 100)
        for day in range(PARTITIONS_AT_MOST)
    ]
    layouts = [
        IndexLayout(equality_field_ids=ids, runs=[run] * RUNS_AT_MOST, partitions=partitions)
        for ids in ([1], [1, 2])
    ]
    store_layouts(session, table_id, layouts)
    health = session.get_one(TableHealth, table_id)
    health.key_sets = [
        KeySetReport(
            equality_field_ids=layout.equality_field_ids,
            columns=["id", "region"][: len(layout.equality_field_ids)],
            files_covered=90,
            files_total=100,
            coverage=0.9,
            entries=100_000_000,
            bytes=300_000_000,
            sorted_runs=RUNS_AT_MOST,
            dead_ratio=0.1,
        ).model_dump()
        for layout in layouts
    ]
    at = utc_now().isoformat()
    health.pending_key_sets = [
        {"equality_field_ids": [1], "files": 50, "oldest_at": at, "ages": [[at, 1, 500]] * 50}
    ]
    session.add(health)


def _add_job_that_told_much(session: Session, like: Job, table_id: str, worker: Worker) -> str:
    """Its id. It has two attempts, each with decisions, progress and a long log."""
    job = Job.model_validate(
        like.model_dump()
        | _job(0, new_id(), [table_id], 1)
        | {"attempt": 2, "failures": 1, "status": JobStatus.SUCCEEDED.value, "result": _RESULT}
    )
    session.add(job)
    session.flush()
    began = job.created_at
    for attempt, status in ((1, AttemptStatus.FAILED), (2, AttemptStatus.SUCCEEDED)):
        session.add(
            Attempt(
                job_id=job.id,
                attempt=attempt,
                worker_id=worker.id,
                worker_name=worker.name,
                status=status.value,
                started_at=began,
                ended_at=began + _TOOK,
                lease_expires_at=began,
                seconds=_TOOK.total_seconds(),
                stages=[{"name": name, "seconds": 30.0} for name in ("plan", "lookup", "commit")],
            )
        )
        about = {"job_id": job.id, "table_id": table_id, "attempt": attempt}
        line = "Task 17 of stage lookup has read 12 row groups of s3://lake/orders/data/00017-3-5f0c.parquet"
        said = [("job.log", line)] * _LINES + [
            ("job.message", "The index answers for 12 files.")
        ] * _DECISIONS
        _insert(
            session,
            Event(),  # type: ignore[call-arg]
            (
                about | {"kind": kind, "message": message, "at": began + _TOOK * number / len(said)}
                for number, (kind, message) in enumerate(said)
            ),
        )
        began += _TOOK
    return job.id


def _add_job_that_runs(session: Session, like: Job, table_id: str, worker: Worker) -> str:
    """Its id."""
    now = utc_now()
    about = {"table_id": table_id, "table_uuid": table_id, "attempt": 1, "status": JobStatus.RUNNING.value}
    since = {"started_at": now, "progress": _PROGRESS | {"updated_at": now.isoformat()}}
    job = Job.model_validate(like.model_dump(exclude={"id"}) | about | since)
    session.add(job)
    session.flush()
    session.add(
        Attempt(job_id=job.id, attempt=1, worker_id=worker.id, worker_name=worker.name, lease_expires_at=now)
    )
    return job.id


def _attempt(number: int, job_id: str, workers: Sequence[Worker], jobs: int) -> dict[str, Any]:
    """The one of `_job`."""
    worker = workers[number % len(workers)]
    ended = _ended(number, jobs)
    failed = number % _FAILED == 0
    return {
        "job_id": job_id,
        "worker_id": worker.id,
        "worker_name": worker.name,
        "status": (AttemptStatus.FAILED if failed else AttemptStatus.SUCCEEDED).value,
        "started_at": ended - _TOOK,
        "ended_at": ended,
    }


def _step(age: int) -> int | None:
    """How many minutes a row of changes is for, at this age in minutes; None while each minute has more."""
    return next((minutes for least, minutes in MERGED_CHANGES if age > least / timedelta(minutes=1)), None)


def _ended(number: int, jobs: int) -> datetime:
    return utc_now() - _SPAN * (1 - number / jobs)


def _job(number: int, job_id: str, tables: Sequence[str], jobs: int) -> dict[str, Any]:
    ended = _ended(number, jobs)
    status = JobStatus.SUCCEEDED if number % _FAILED else JobStatus.FAILED
    kind = _KINDS[number // len(tables) % len(_KINDS)]
    return {
        "id": job_id,
        "table_id": tables[number % len(tables)],
        "table_uuid": tables[number % len(tables)],
        "kind": kind.value,
        "status": status.value,
        "result": _RESULT if kind is JobKind.CONVERT else None,
        "created_at": ended - _TOOK,
        "available_at": ended - _TOOK,
        "started_at": ended - _TOOK,
        "ended_at": ended,
    }


def _insert(session: Session, like: SQLModel, rows: Iterator[dict[str, Any]]) -> None:
    """like: what the rows don't say is as there."""
    others = {name: value for name, value in like.model_dump().items() if name != "id"}
    while part := [others | row for row in islice(rows, _AT_ONCE)]:
        session.execute(insert(type(like)), part)


def _report(
    answers: Sequence[Answers], watched: Sequence[Watched], memory: int, tables: int, jobs: int, times: int
) -> str:
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    rows = "\n".join(answer.row for answer in answers)
    people = [answer for answer in answers if answer.page != "metrics"]
    slow = "; ".join(f"{answer.page} ({answer.database})" for answer in people if answer.is_slow)
    return f"""# Pages

Written by `make bench-pages` on {os.cpu_count()} cores, with load averages of {load} at the end. One
`icestream serve` with {tables:,} tables, {jobs:,} jobs that ended within {_SPAN.days} days,
{2 * jobs:,} events, {_AUDITED:,} entries of the audit log and {_SAMPLES * tables:,} samples of health;
the tables that are shown over a long time have one for each hour of {_LONG_AGO // 24} days. Each job has an
attempt; one has two with
{_LINES} log lines and {_DECISIONS} decisions each. Nothing is polled meanwhile. Each page is asked for
{times} times after a first time, one after the other. The PostgreSQL server does not wait for its disk.

| page | database | median | p99 | CPU of the service | length |
|---|---|---:|---:|---:|---:|
{rows}

In the median, {slow or "none"} of the pages took longer than {_WANTED_SECONDS * 1000:.0f} ms.
`metrics` is for Prometheus, which asks for it each 15 or 30 s.
The overview sums up 90 days in each minute of which tables changed.
The service on SQLite took {memory / 2**20:,.0f} MiB at most (RSS).

### Pages that are watched

{VIEWERS} viewers leave a page open, and ask for it again as its script does: what that costs the service
besides what it does without them, in processor time for each second and viewer, once they have used up what a
page that is opened may cost in advance (200 ms). What happens is that a job ends, on the page of a job
that it tells how far it is.

| page | database | nothing happens | something each second | asked for again after |
|---|---|---:|---:|---:|
{chr(10).join(each.row for each in watched)}
"""


if __name__ == "__main__":
    typer.run(main)
