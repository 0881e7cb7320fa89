"""People who leave a page open: what they cost the service, as the pages' script asks for what changed."""

from __future__ import annotations

import asyncio
import random
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any

import httpx

from service import ui
from service.db.database import Database, utc_now
from service.webhooks.outbox import write_event
from tests.benchmarks.measure import cpu_seconds
from tests.benchmarks.servers import KEY

VIEWERS = 20
_SCRIPT = Path(ui.__file__).with_name("static") / "icestream.js"
_EARNED_MS, _REQUEST_MS, _UNTOLD_MS = (
    float(re.search(rf"^const {name} = ([\d._]+);$", _SCRIPT.read_text(), re.MULTILINE)[1])  # type: ignore[index]
    for name in ("EARNED_MS", "REQUEST_MS", "UNTOLD_MS")
)
_UNTOLD_SECONDS = _UNTOLD_MS / 1000
_MOST_OWED = _EARNED_MS * _UNTOLD_SECONDS
SECONDS = 90.0


@dataclass(frozen=True)
class Watched:
    """Milliseconds of the service's processor time, for each second and viewer."""

    database: str
    page: str
    quiet: float
    """While nothing happens."""
    busy: float
    """While something happens each second."""
    looks: int
    """How often all viewers together asked for the page while it was busy."""
    seconds: float
    """That it was busy for."""

    @property
    def row(self) -> str:
        every = f"{VIEWERS * self.seconds / self.looks:.0f} s" if self.looks else "never"
        return f"| {self.page} | {self.database} | {self.quiet:.2f} ms | {self.busy:.2f} ms | {every} |"


def watch(
    url: str,
    process: int,
    alone: float,
    database_url: str,
    database: str,
    page: str,
    path: str,
    happens: Happens,
    seconds: float = SECONDS,
) -> Watched:
    """alone: what the service takes without viewers (`cpu_of`). happens: each second, while it is busy."""
    viewers = [_Viewer(url, path) for _ in range(VIEWERS)]
    with _watching(viewers):
        quiet = (cpu_of(process, seconds) - alone) / VIEWERS
        looks = sum(viewer.looks for viewer in viewers)
        with _happening(database_url, happens):
            busy = (cpu_of(process, seconds) - alone) / VIEWERS
        looks = sum(viewer.looks for viewer in viewers) - looks
    return Watched(database, page, quiet, busy, looks, seconds)


def cpu_of(process: int, seconds: float = SECONDS) -> float:
    """Milliseconds of processor time that it takes a second, over so many of them."""
    used, began = cpu_seconds(process), time.monotonic()
    time.sleep(seconds)
    return 1000 * (cpu_seconds(process) - used) / (time.monotonic() - began)


@dataclass(frozen=True)
class Happens:
    """An event of a table or of a job of its."""

    kind: str
    table_id: str
    job_id: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class _Viewer:
    """Has used up what it saved: anywhere between two looks."""

    url: str
    path: str
    looks: int = 0
    _left: float = 0.0
    _at: float = 0.0
    _looked_at: float = 0.0
    _changes: str = ""
    """What the page follows."""
    _happened: asyncio.Event = field(default_factory=asyncio.Event)

    async def watch(self) -> None:
        headers = {"Authorization": f"Bearer {KEY}", "Accept": "text/html"}
        async with httpx.AsyncClient(base_url=self.url, headers=headers, timeout=None) as http:
            cost = await self._look(http)
            self._left = -cost * random.random()
            self._looked_at -= random.uniform(0, _UNTOLD_SECONDS)
            self._happened.clear()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen(http))
                group.create_task(self._follow(http))

    async def _listen(self, http: httpx.AsyncClient) -> None:
        async with http.stream("GET", self._changes, headers={"Accept": "text/event-stream"}) as stream:
            async for line in stream.aiter_lines():
                if line in ("event: changed", "event: turned"):
                    self._happened.set()

    async def _follow(self, http: httpx.AsyncClient) -> None:
        while True:
            with suppress(TimeoutError):
                due = self._looked_at + _UNTOLD_SECONDS - time.monotonic()
                await asyncio.wait_for(self._happened.wait(), max(due, 0.0))
            self._settle()
            await asyncio.sleep(max(-self._left / _EARNED_MS, 0.0))
            self._happened.clear()
            await self._look(http)
            await asyncio.sleep(0.4)

    async def _look(self, http: httpx.AsyncClient) -> float:
        answer = (await http.get(self.path)).raise_for_status()
        self.looks += 1
        self._looked_at = time.monotonic()
        follows = re.search(r'data-events="([^"]+)"', answer.text)
        assert follows is not None
        self._changes = unescape(follows[1])
        told = re.search(r"cpu;dur=([\d.]+)", answer.headers["Server-Timing"])
        assert told is not None
        cost = _REQUEST_MS + float(told[1])
        self._settle()
        self._left = max(self._left - cost, -max(cost, _MOST_OWED))
        return cost

    def _settle(self) -> None:
        now = time.monotonic()
        self._left, self._at = min(self._left + _EARNED_MS * (now - self._at), 0.0), now


@contextmanager
def _watching(viewers: Sequence[_Viewer]) -> Iterator[None]:
    async def watch() -> None:
        tasks = [asyncio.create_task(viewer.watch()) for viewer in viewers]
        is_watched.set()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)

    loop, is_watched = asyncio.new_event_loop(), threading.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(watch()))
    thread.start()
    is_watched.wait()
    time.sleep(10)  # all have opened their page
    try:
        yield
    finally:
        assert thread.is_alive(), "a viewer was not answered"
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
        thread.join()
        loop.close()


@contextmanager
def _happening(database_url: str, what: Happens) -> Iterator[None]:
    is_over = threading.Event()

    def happen() -> None:
        database = Database(database_url)
        while not is_over.wait(1):
            with database.write() as session:
                write_event(
                    session,
                    at=utc_now(),
                    kind=what.kind,
                    level="info",
                    message="It was so.",
                    table_id=what.table_id,
                    job_id=what.job_id,
                    attempt=1,
                    fields=dict(what.fields),
                )
        database.dispose()

    thread = threading.Thread(target=happen)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
