"""How fast workers get jobs from a real `icestream serve`, and what that costs it.

Workers are processes, each of which stands for several: a thread that claims and reports for all of them at
once, over connections that stay. They compete with the service for the processors, so they do little beside:
no client's library, and of the answers no more than the job's id is looked at. `python -m
tests.benchmarks.queue_over_http URL WORKERS CALLS` is such a process: it says that it is ready, waits for a
line, and tells what it saw.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import text

from service.db.database import Database, migrate
from tests.benchmarks.measure import cpu_seconds, descendants
from tests.benchmarks.queued_jobs import enqueue, register
from tests.benchmarks.servers import KEY, SERVE, server

_PROCESSES = 4
_NO_CONTENT, _BUSY = 204, 503
_PAUSE_SECONDS = 0.05
"""After a call that the database was too busy for."""
_REPORT: Mapping[str, Any] = {
    "status": "succeeded",
    "stages": [{"name": name, "seconds": 0.1} for name in ("plan", "read", "lookup", "deletes", "commit")],
}
_NEWS: Mapping[str, Any] = {
    "progress": {"stage": "deletes", "done": 1, "total": 1, "unit": "tasks"},
    "plan": {"number": 0, "tasks": 1, "location": "file:///0"},
    "addresses": {"rows": 500},
}


class Calls(StrEnum):
    """What a worker calls the service for with each job."""

    APART = "claim, report"
    """The least that a worker can do."""
    TOGETHER = "heartbeat, report that claims"
    """What one does whose conversions are small and follow each other."""


@dataclass(frozen=True)
class Seen:
    """By one process of workers."""

    claims: list[float]
    """How long each call took that got a job, in seconds."""
    refused: int
    began: float
    ended: float
    cpu_seconds: float


@dataclass(frozen=True)
class ClaimsOverHttp:
    """By all of them."""

    database: str
    calls: Calls
    workers: int
    claims: Sequence[float]
    refused: int
    seconds: float
    cpu: Mapping[str, float]
    """Seconds, of the service, of its database if that is a process, and of the workers."""

    @property
    def rate(self) -> float:
        return len(self.claims) / self.seconds


def measure_over_http(url: str, name: str, workers: int, jobs: int, directory: Path) -> list[ClaimsOverHttp]:
    """Each way of calling, until no job is left. url: of the database."""
    migrate(url)
    database = Database(url)
    register(database, jobs)
    settings = {
        "ICESTREAM_DATA_DIR": str(directory / f"service-{name}"),
        "ICESTREAM_DATABASE_URL": url,
        "ICESTREAM_BOOTSTRAP_KEY": KEY,
        "ICESTREAM_REQUESTS_PER_MINUTE": "0",
        "ICESTREAM_BACKGROUND": "false",
        "ICESTREAM_PORT": "0",
    }
    found = []
    try:
        with server(SERVE, directory / f"{name}.log", **settings) as (place, process):
            of_service = {"service": lambda: cpu_seconds(process.pid), "database": _cpu_of(database)}
            for calls in Calls:
                waiting = enqueue(database)
                found.append(_measured(place, name, calls, workers, of_service))
                if len(found[-1].claims) != waiting:
                    raise RuntimeError(f"{len(found[-1].claims)} of {waiting} jobs were claimed")
    finally:
        database.dispose()
    return found


def _measured(
    place: str, name: str, calls: Calls, workers: int, cpu: Mapping[str, Callable[[], float]]
) -> ClaimsOverHttp:
    count = min(_PROCESSES, workers)
    shares = [workers // count + (number < workers % count) for number in range(count)]
    with _clients(place, calls, shares) as clients:
        before = {of: seconds() for of, seconds in cpu.items()}
        for client in clients:
            client.stdin.write("\n")  # type: ignore[union-attr]
            client.stdin.flush()  # type: ignore[union-attr]
        seen = [Seen(**json.loads(client.stdout.readline())) for client in clients]  # type: ignore[union-attr]
        spent = {of: seconds() - before[of] for of, seconds in cpu.items()}
    return ClaimsOverHttp(
        name,
        calls,
        workers,
        [claim for each in seen for claim in each.claims],
        sum(each.refused for each in seen),
        max(each.ended for each in seen) - min(each.began for each in seen),
        {**spent, "workers": sum(each.cpu_seconds for each in seen)},
    )


@contextmanager
def _clients(place: str, calls: Calls, shares: Sequence[int]) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of so many workers each, which have registered and wait."""
    command = [sys.executable, "-m", __name__, place]
    clients = [
        subprocess.Popen(
            [*command, str(share), calls.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for share in shares
    ]
    try:
        for client in clients:
            assert client.stdout is not None
            if not client.stdout.readline():
                raise RuntimeError("a process of workers has ended")
        yield clients
    finally:
        for client in clients:
            client.kill()
            client.communicate()


def _cpu_of(database: Database) -> Callable[[], float]:
    """Of the server, and 0 where the service itself is that."""
    if database.engine.dialect.name == "sqlite":
        return lambda: 0.0
    with database.read() as session:
        backend: int = session.connection().execute(text("SELECT pg_backend_pid()")).scalar_one()
    server = int(Path(f"/proc/{backend}/stat").read_text().rpartition(")")[2].split()[1])
    return lambda: sum(map(cpu_seconds, (server, *descendants(server))))


class _Worker:
    """One connection, and the id that the service gave it."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self.claims: list[float] = []
        self.refused = 0

    async def register(self) -> None:
        host, port = self._url.hostname, self._url.port
        self._reader, self._writer = await asyncio.open_connection(host, port)
        known = {"name": f"worker-{id(self)}", "hostname": "h", "pid": os.getpid(), "version": "0"}
        self._id = json.loads(await self._answer("workers", known))["id"]

    async def work(self, calls: Calls) -> None:
        """Until no job waits."""
        report = {**_REPORT, "claims_next": calls is Calls.TOGETHER}
        job = await self._claim(f"workers/{self._id}/claim", {"wait_seconds": 0})
        while job:
            if calls is Calls.TOGETHER:
                await self._answer(f"{job}/heartbeat", _NEWS)
                job = await self._claim(f"{job}/finish", report)
            else:
                await self._answer(f"{job}/finish", report)
                job = await self._claim(f"workers/{self._id}/claim", {"wait_seconds": 0})

    async def _claim(self, path: str, body: Mapping[str, Any]) -> str:
        """The path of the attempt that came, or nothing."""
        began = time.monotonic()
        answer = await self._answer(path, body)
        if not answer:
            return ""
        self.claims.append(time.monotonic() - began)
        assignment = json.loads(answer)
        return f"jobs/{assignment['job']['id']}/attempts/{assignment['attempt']}"

    async def _answer(self, path: str, body: Mapping[str, Any]) -> bytes:
        content = json.dumps(body).encode()
        head = (
            f"POST /api/v1/{path} HTTP/1.1\r\nHost: {self._url.netloc}\r\nAuthorization: Bearer {KEY}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        while True:
            self._writer.write(head.encode() + content)
            status, answer = await self._read()
            if status < 300:
                return answer
            if status != _BUSY:
                raise RuntimeError(f"{path}: {status} {answer.decode()}")
            self.refused += 1
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _read(self) -> tuple[int, bytes]:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(head.split(" ", 2)[1])
        length = 0 if status == _NO_CONTENT else int(head.split("content-length: ", 1)[1].split("\r\n", 1)[0])
        return status, await self._reader.readexactly(length)


async def _main(url: str, workers: int, calls: Calls) -> None:
    all_of_them = [_Worker(url) for _ in range(workers)]
    for worker in all_of_them:
        await worker.register()
    print("ready", flush=True)  # noqa: T201
    sys.stdin.readline()
    began, cpu = time.monotonic(), time.process_time()
    await asyncio.gather(*(worker.work(calls) for worker in all_of_them))
    seen = Seen(
        [claim for worker in all_of_them for claim in worker.claims],
        sum(worker.refused for worker in all_of_them),
        began,
        time.monotonic(),
        time.process_time() - cpu,
    )
    print(json.dumps(asdict(seen)), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), Calls[sys.argv[3]]))
