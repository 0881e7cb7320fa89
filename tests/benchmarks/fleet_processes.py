"""The real service and workers over the tables of a fleet, and what they cost."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import cycle, islice
from pathlib import Path

import httpx
from sqlmodel import col, func, select

from service.db.database import Database, migrate
from service.records.jobs import Attempt, Job, JobKind, JobStatus
from tests.benchmarks.fleet_tables import FleetTable, Lake, Upsert, lake
from tests.benchmarks.measure import cpu_seconds, descendants, high_water_mark
from tests.benchmarks.servers import KEY, SERVE, WORK, running, server
from tests.patience import PATIENCE_SECONDS
from tests.slow_store import SlowStore
from worker.spark.session import create_spark

CHECKPOINT_ROWS = 500
POLICY = {"convert": {"delete_files": 1}}
_OPENAPI = Path(__file__).parents[2] / "openapi" / "openapi.json"
_WRITERS = 4
"""Threads."""


@dataclass(frozen=True)
class Fleet:
    """Tables that are enrolled, with the service and the workers that keep them."""

    lake: Lake
    tables: dict[str, FleetTable]
    """By the ids that the service gave them."""
    directory: Path
    url: str
    http: httpx.Client
    """Of the service's API."""
    database: Database
    """Of the service."""
    service: int
    """The id of its process."""
    writers: ThreadPoolExecutor
    turns: Iterator[FleetTable]
    """The tables, over and over."""
    workers: list[int] = field(default_factory=list)
    """The ids of those processes that run."""
    stores: list[SlowStore] = field(default_factory=list)
    """Of these workers."""

    @contextmanager
    def working(self, count: int, slots: int, store_processes: int = 1, **environment: str) -> Iterator[None]:
        """With so many workers, each a process of its own, which asks a store of its own of so many."""
        with ExitStack() as stack:
            for number in range(count):
                store, settings = stack.enter_context(self.lake.own_store(store_processes))
                if store is not None:
                    self.stores.append(store)
                given = {
                    **settings,
                    "ICESTREAM_URL": self.url,
                    "ICESTREAM_API_KEY": KEY,
                    "ICESTREAM_WORKER_NAME": f"worker-{number}",
                    "ICESTREAM_WORKER_SLOTS": str(slots),
                    **environment,
                }
                log = self.directory / f"worker-{number}.log"
                self.workers.append(stack.enter_context(running(WORK, log, **given)).pid)
            try:
                yield
            finally:
                self.workers.clear()
                self.stores.clear()

    def asked_of_stores(self) -> Counter[str]:
        """Requests of each kind since the last call, of all processes but those that write."""
        stores = [store for store in (self.lake.store, *self.stores) if store is not None]
        return sum((Counter(store.asked().by_kind) for store in stores), Counter())

    def prepared(self, count: int) -> list[Upsert]:
        """So many checkpoints of the tables whose turn it is. Their files are there; none is committed."""
        return [
            table.upsert(random.sample(range(table.rows), min(CHECKPOINT_ROWS, table.rows)))
            for table in islice(self.turns, count)
        ]

    def commit(self, upsert: Upsert) -> Future[None]:
        """And tell of it."""
        return self.writers.submit(self._commit, upsert)

    def _commit(self, upsert: Upsert) -> None:
        upsert.commit()
        path = f"/catalogs/{upsert.table.catalog}/notifications"
        while (answer := self.http.post(path, json={"tables": [upsert.table.name]})).status_code == 503:
            time.sleep(0.1)  # as senders do while its database is busy
        answer.raise_for_status()

    @property
    def cpu(self) -> dict[str, float]:
        """Seconds of all processes, of workers those of Java apart."""
        return self._summed(cpu_seconds)

    @property
    def all_cpu(self) -> float:
        """Seconds of these, of stores, catalogs, executors and this process."""
        return sum(map(cpu_seconds, (os.getpid(), *descendants(os.getpid()))))

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that they took at most."""
        return {name: int(size) for name, size in self._summed(high_water_mark).items()}

    def _summed(self, of: Callable[[int], float]) -> dict[str, float]:
        found = dict.fromkeys(("service", "workers' Java", "workers' Python"), 0.0)
        for worker in (self.service, *self.workers):
            for pid in (worker, *descendants(worker)):
                name = "service" if worker == self.service else f"workers' {_language(pid)}"
                found[name] += of(pid)
        return found

    @property
    def requests(self) -> Counter[str]:
        """That the service has answered: its log has a line of each."""
        asked: Counter[str] = Counter()
        for line in (self.directory / "service.log").read_text().splitlines():
            with suppress(ValueError, KeyError):
                told = json.loads(line)
                asked[f"{told['method']} {_route(told['path'])}"] += 1
        return asked

    def attempts(self, since: datetime) -> Sequence[tuple[Job, Attempt]]:
        """That have ended since, in this order."""
        query = select(Job, Attempt).join(Attempt, col(Attempt.job_id) == col(Job.id))
        with self.database.read() as session:
            ended = query.where(col(Attempt.ended_at) >= since).order_by(col(Attempt.ended_at))
            return session.exec(ended).all()

    def is_idle(self) -> bool:
        active = col(Job.status).in_((JobStatus.QUEUED.value, JobStatus.RUNNING.value))
        with self.database.read() as session:
            return session.exec(select(Job.id).where(active)).first() is None

    def wait_for_indexes(self) -> None:
        done = (Job.kind == JobKind.INDEX.value, Job.status == JobStatus.SUCCEEDED.value)
        query = select(func.count(func.distinct(Job.table_id))).where(*done)

        def indexed() -> int:
            with self.database.read() as session:
                return session.exec(query).one()

        self.wait_for_all(indexed, "indexed")

    def wait_for_all(self, done: Callable[[], int], what: str) -> None:
        """Of the tables, as long as there are more of them now and then."""
        known, deadline = -1, 0.0
        while (now := done()) < len(self.tables):
            if now > known:
                known, deadline = now, time.monotonic() + PATIENCE_SECONDS
            assert time.monotonic() < deadline, f"{now} tables are {what}, and no more come"
            time.sleep(0.5)


def _language(pid: int) -> str:
    with suppress(OSError):
        if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
            return "Java"
    return "Python"


@cache
def _route(path: str) -> str:
    """With names in the place of ids, as the description of the API has it."""
    known = sorted(json.loads(_OPENAPI.read_text())["paths"], key=lambda each: each.count("{"))
    matching = (one for one in known if re.fullmatch(re.sub(r"{\w+}", "[^/]+", one), path))
    return str(next(matching, path)).removeprefix("/api/v1")


@contextmanager
def running_fleet(
    tables: int, rows: tuple[int, int], wait_seconds: float, policy: Mapping[str, object] = POLICY
) -> Iterator[Fleet]:
    """Without workers; arguments as of `lake`."""
    spark = create_spark("local[1]", "fleet")
    spark.sparkContext.setLogLevel("ERROR")
    directory = Path(tempfile.mkdtemp(prefix="icestream-fleet-"))
    url = f"sqlite:///{directory}/service/icestream.db"
    try:
        with ExitStack() as stack:
            places = stack.enter_context(lake(spark, directory, tables, rows, wait_seconds))
            settings = {
                **places.settings,
                "ICESTREAM_DATA_DIR": str(directory / "service"),
                "ICESTREAM_BOOTSTRAP_KEY": KEY,
                "ICESTREAM_LOG_FORMAT": "json",
                "ICESTREAM_LOG_REQUESTS": "true",
                "ICESTREAM_REQUESTS_PER_MINUTE": "0",
                "ICESTREAM_PORT": "0",
            }
            migrate(url)
            place, service = stack.enter_context(server(SERVE, directory / "service.log", **settings))
            http = stack.enter_context(
                httpx.Client(
                    base_url=f"{place}/api/v1",
                    headers={"Authorization": f"Bearer {KEY}"},
                    timeout=PATIENCE_SECONDS,
                )
            )
            writers = stack.enter_context(ThreadPoolExecutor(_WRITERS))
            enrolled = _enrol(http, places, policy)
            database = Database(url)
            stack.callback(database.dispose)
            turns = cycle(enrolled.values())
            fleet = Fleet(places, enrolled, directory, place, http, database, service.pid, writers, turns)
            yield fleet
    finally:
        shutil.rmtree(directory)


def _enrol(http: httpx.Client, places: Lake, policy: Mapping[str, object]) -> dict[str, FleetTable]:
    http.post("/policies", json={"name": "fresh", "settings": policy}).raise_for_status()
    for catalog in places.catalogs:
        record = {"name": catalog.name, "type": catalog.type, "properties": catalog.properties}
        http.post("/catalogs", json=record).raise_for_status()
    enrolled = {}
    for table in places.tables:
        identifier = table.name.split(".")
        body = {"catalog": table.catalog, "identifier": identifier, "policy": "fresh", "key_sets": [["id"]]}
        answer = http.post("/tables", json=body).raise_for_status()
        enrolled[str(answer.json()["id"])] = table
    return enrolled
