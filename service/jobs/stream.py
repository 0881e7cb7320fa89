"""Live events for browsers and tools: server-sent events read from the event table.

Streams poll with a short read, so they hold neither a connection nor a thread while nothing happens, and they
work the same whichever replica wrote the event. All streams of a process share these reads (RecentEvents).
"""

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import takewhile
from typing import Any, TypeVar

from sqlalchemy import Connection, Row
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from service.db.database import Database, utc_now
from service.errors import is_database_trouble
from service.jobs import events
from service.jobs.models import EventView
from service.records.health import pending_in_all, samples_after
from service.webhooks.outbox import UNTOLD

E = TypeVar("E", EventView, Row[Any])

POLL_SECONDS = 0.5
_POLLS_OF_PAGES = 2
"""Pages look seldom, so that one second more or less is nothing to them: they ask each second time."""
ACCESS_SECONDS = 5.0
"""Who reads is let go on for so long before he is asked for again: a key may be revoked, a token expire."""
_CHANGES_ACCESS_SECONDS = 60.0
"""Of a page's stream, which tells that something has happened, and how many deletes are pending."""
_WORDS, _WORD_SECONDS = 10.0, 5.0
"""A page is told so many words one after the other, and then one in so many seconds."""
_BATCH = 500
_KEPT = 2 * _BATCH
_LOOKED_BACK = 100
"""So many ids before the newest may be those of transactions that have not ended."""
MOVES_SECONDS = 5.0
"""Between two reads of what polls have found, at least."""
MOVES_SHARE = 0.0005
"""Of a processor, that these reads take at most for all who watch: with many tables, they come less often."""
_MOST_MOVED = 500
"""Samples of a read, the latest: pages see what others tell when they look next."""
_GAP_PATIENCE = timedelta(seconds=15)
"""Longer than a transaction may stand still (service.db.database)."""


class Told:
    """An event as streams send it, put into JSON once for all of them."""

    def __init__(self, event: EventView) -> None:
        self.id, self.table_id, self.job_id = event.id, event.table_id, event.job_id
        self.is_detail = event.kind in UNTOLD
        self.message = {
            "id": str(event.id),
            "event": event.kind.partition(".")[0],
            "data": json.dumps(event.model_dump(mode="json")),
        }


class RecentEvents:
    """The events after some id, read once for all streams that are about as far.

    Whoever is behind them reads for itself until it is as far. Nothing is read while nobody asks.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = asyncio.Lock()
        self._since = self._until = -1
        """Ids: all events that come after the one and up to the other are kept."""
        self._kept: deque[Told] = deque()
        self._read_at = 0.0

    async def latest_id(self) -> int:
        return await run_in_threadpool(_latest, self._database)

    async def after(self, position: int, seconds: float = 0) -> Sequence[Told]:
        """The next events after an id, as of half a second ago at the earliest, or of so many seconds.

        Raises SQLAlchemyError if the database does not answer.
        """
        async with self._lock:
            if position > self._until >= 0:
                # Who begins now is a little further than the last read: the others go along.
                await self._read_on()
            if position > self._until:
                # From there on: who is not as far reads up to it.
                self._since = self._until = position
                self._kept.clear()
                self._read_at = 0.0
            if position >= self._since and time.monotonic() - self._read_at >= max(POLL_SECONDS, seconds):
                await self._read_on()
        if position >= self._since:
            # Mostly few of those that are kept.
            return list(takewhile(lambda event: event.id > position, reversed(self._kept)))[::-1]
        return await self._read(position)

    async def _read(self, position: int) -> Sequence[Told]:
        return [Told(event) for event in await run_in_threadpool(_after, self._database, position)]

    async def _read_on(self) -> None:
        self._read_at = time.monotonic()
        found = await self._read(self._until)
        self._kept += found
        if len(found) == _BATCH:
            self._read_at = 0.0  # there may be more
        if found:
            self._until = found[-1].id
        while len(self._kept) > _KEPT:
            self._since = self._kept.popleft().id


@dataclass(frozen=True)
class Moved:
    """Tables that a poll has found otherwise than before, all of which were read at the same time."""

    number: int = 0
    """Of the read, by which a page knows whether it was told."""
    tables: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """By id: pending equality deletes, their files, and the age of the oldest one in seconds."""
    message: Mapping[str, str] = field(default_factory=dict)
    """What pages of all tables are told, put into JSON once for all of them: these, and the sums over all."""


class RecentMoves:
    """What polls have found lately, by the samples that they keep: read once for all pages that are open.

    A poll that finds a commit writes no event, and a look at the whole page would cost too much for each.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = asyncio.Lock()
        self._until: int | None = None
        """Id of the latest sample that was read; None before the first read."""
        self._seen: set[int] = set()
        """Ids of samples up to `_until` that were read, as far as others may still come between them."""
        self._next_at = 0.0
        self._latest = Moved()

    async def latest(self) -> Moved:
        """The last that moved, as of five seconds ago or a little more.

        Raises SQLAlchemyError if the database does not answer.
        """
        async with self._lock:
            if time.monotonic() >= self._next_at:
                self._next_at = time.monotonic() + MOVES_SECONDS
                took = await run_in_threadpool(self._read_on)
                self._next_at = time.monotonic() + max(MOVES_SECONDS, took / MOVES_SHARE)
        return self._latest

    def _read_on(self) -> float:
        """The processor time that it took, in seconds."""
        began = time.thread_time()
        self._read_samples()
        return time.thread_time() - began

    def _read_samples(self) -> None:
        is_first, until = self._until is None, self._until or 0
        with self._database.read() as session:
            found = samples_after(session, until - _LOOKED_BACK, _MOST_MOVED)
            new = {one.table_id: one for one in reversed(found) if one.id not in self._seen}
            # Of a database that was restored, ids begin anew.
            self._until = found[0].id if found else 0
            self._seen = {one.id for one in found if one.id > self._until - _LOOKED_BACK}
            if not new or is_first:
                return
            in_all = pending_in_all(session, utc_now())
        tables = {table_id: one.told for table_id, one in new.items()}
        data = json.dumps({"tables": tables, "all": in_all}, separators=(",", ":"))
        self._latest = Moved(self._latest.number + 1, tables, {"event": "pending", "data": data})


async def stream_events(
    recent: RecentEvents,
    after: int | None,
    stopping: threading.Event,
    may_read: Callable[[], bool],
    *,
    table_id: str | None = None,
    job_id: str | None = None,
) -> AsyncIterator[dict[str, str]]:
    """Events with an id above `after`, then new ones as they come; None, or an id above all, starts now.

    The first message has an id alone, that of the start: whoever reads no event before the stream breaks
    goes on from there.

    While the database does not answer, the stream is silent; it ends once this process is `stopping`, or who
    reads it may no longer: `may_read` asks the database.
    """
    async for position, found in _follow(recent, after, stopping, may_read, ACCESS_SECONDS, table_id, job_id):
        if not found:
            yield {"id": str(position)}
        for event in found:
            yield event.message


async def stream_changes(
    recent: RecentEvents,
    moves: RecentMoves,
    stopping: threading.Event,
    may_read: Callable[[], bool],
    *,
    table_id: str | None = None,
    job_id: str | None = None,
    tells_pending: bool = True,
) -> AsyncIterator[Mapping[str, str]]:
    """For pages, which only have to know that something has happened: one word for all that has.

    It is `turned` where what happened is more than progress or a line of a log, else `changed`. Where much
    happens it comes seldom, since a page does not look each time, but for turns of one job. What polls find
    comes with its figures, as `pending`, which pages show without another look. tells_pending: whether it
    comes.
    """
    told = -1
    latest: Told | None = None
    has_turned = False
    words, at = _WORDS, time.monotonic()
    async for _, found in _follow(
        recent, None, stopping, may_read, _CHANGES_ACCESS_SECONDS, table_id, job_id, is_page=True
    ):
        if tells_pending and (moved := await _latest_move(moves)) is not None:
            if 0 <= told < moved.number:
                if table_id is None:
                    yield moved.message
                elif table_id in moved.tables:
                    of_table = {"tables": {table_id: moved.tables[table_id]}}
                    yield {"event": "pending", "data": json.dumps(of_table)}
            told = moved.number
        if found:
            latest = found[-1]
            has_turned = has_turned or not all(event.is_detail for event in found)
        now = time.monotonic()
        words, at = min(words + (now - at) / _WORD_SECONDS, _WORDS), now
        if latest is None or (words < 1 and not (has_turned and job_id is not None)):
            continue
        # Browsers pass on no event without data.
        yield {"event": "turned" if has_turned else "changed", "data": str(latest.id)}
        latest, has_turned, words = None, False, max(words - 1, 0)


async def _latest_move(moves: RecentMoves) -> Moved | None:
    """None while the database does not answer."""
    try:
        return await moves.latest()
    except SQLAlchemyError as error:
        if not is_database_trouble(error):
            raise
        return None


async def _follow(
    recent: RecentEvents,
    after: int | None,
    stopping: threading.Event,
    may_read: Callable[[], bool],
    access_seconds: float,
    table_id: str | None,
    job_id: str | None,
    *,
    is_page: bool = False,
) -> AsyncIterator[tuple[int, Sequence[Told]]]:
    """What came of those events that were asked for, and the id up to which was looked.

    None came at the start, which is told once; later, there is something each time, but that a page is told
    of each turn.
    """
    seconds = POLL_SECONDS * (_POLLS_OF_PAGES if is_page else 1)
    position, has_begun = 0, False
    checked_at = time.monotonic()
    while not stopping.is_set():
        found: Sequence[Told] = ()
        try:
            if time.monotonic() - checked_at >= access_seconds:
                if not await run_in_threadpool(may_read):
                    return
                checked_at = time.monotonic()
            if not has_begun:
                latest = await recent.latest_id()
                # An id of another database, as of one that was restored, would wait for ids to come to it.
                position = latest if after is None else min(after, latest)
                has_begun = True
                yield position, ()
            found = await recent.after(position, seconds)
        except SQLAlchemyError as error:
            if not is_database_trouble(error):
                raise
        if found:
            position = found[-1].id
        asked_for = [
            event
            for event in found
            if (table_id is None or event.table_id == table_id) and (job_id is None or event.job_id == job_id)
        ]
        if asked_for or (is_page and has_begun):
            yield position, asked_for
        if len(found) < _BATCH:
            await asyncio.sleep(seconds)


def _latest(database: Database) -> int:
    with database.read() as session:
        latest = events.latest_event_id(session)
        if session.get_bind().dialect.name == "sqlite":
            return latest
        # Not beyond a gap: whoever begins now would never be told of what fills it.
        begin = max(latest - _LOOKED_BACK, 0)
        found = settled(events.events_after(session.connection(), begin, _BATCH), begin)
        return found[-1].id if found else begin


def _after(database: Database, position: int) -> list[EventView]:
    """The next events; none that comes later will have a lower id, whatever the clocks of replicas say."""
    # A session would take twice as long to find that nothing is new, as mostly.
    with database.engine.connect() as connection:
        return _settled_in(connection, events.events_after(connection, position, _BATCH), position)


def settled_heads(connection: Connection, position: int) -> Iterator[Sequence[Row[Any]]]:
    """The id, time, kind and table of all events that have come after one, some at a time; none that comes
    later will have a lower id."""
    while found := events.heads_after(connection, position, _BATCH):
        heads = _settled_in(connection, found, position)
        if heads:
            position = heads[-1].id
            yield heads
        if len(heads) < _BATCH:
            return


def _settled_in(connection: Connection, found: list[E], position: int) -> list[E]:
    return found if connection.dialect.name == "sqlite" else settled(found, position)


def settled(found: list[E], position: int) -> list[E]:
    """The events up to the first gap in their ids that may still be filled.

    PostgreSQL numbers events before their transactions commit, so a lower number can appear later. A gap
    that is still there after a while belongs to a transaction that was rolled back.
    """
    patient_until = utc_now() - _GAP_PATIENCE
    for count, event in enumerate(found):
        if event.id != position + 1 and event.at > patient_until:
            return found[:count]
        position = event.id
    return found
