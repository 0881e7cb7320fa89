"""Live events for browsers and tools: server-sent events read from the event table.

Each stream polls with a short read, so it holds neither a connection nor a thread while nothing happens,
and it works the same whichever replica wrote the event.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool

from service.db.database import Database, utc_now
from service.errors import is_database_trouble
from service.jobs import events
from service.jobs.models import EventView

POLL_SECONDS = 0.5
ACCESS_SECONDS = 5.0
"""Who reads is let go on for so long before he is asked for again: a key may be revoked, a token expire."""
_BATCH = 500
_GAP_PATIENCE = timedelta(seconds=15)
"""Longer than a transaction may stand still (service.db.database)."""


async def stream_events(
    database: Database,
    after: int | None,
    stopping: threading.Event,
    may_read: Callable[[], bool],
    *,
    table_id: str | None = None,
    job_id: str | None = None,
) -> AsyncIterator[dict[str, str]]:
    """Events with an id above `after`, then new ones as they come; None starts now.

    While the database does not answer, the stream is silent; it ends once this process is `stopping`, or who
    reads it may no longer: `may_read` asks the database.
    """
    position = after
    checked_at = time.monotonic()
    while not stopping.is_set():
        batch: list[EventView] = []
        try:
            if time.monotonic() - checked_at >= ACCESS_SECONDS:
                if not await run_in_threadpool(may_read):
                    return
                checked_at = time.monotonic()
            if position is None:
                position = await run_in_threadpool(_latest, database)
            batch = await run_in_threadpool(_after, database, position)
        except SQLAlchemyError as error:
            if not is_database_trouble(error):
                raise
        for event in batch:
            position = event.id
            if (table_id is None or event.table_id == table_id) and (
                job_id is None or event.job_id == job_id
            ):
                yield {
                    "id": str(event.id),
                    "event": event.kind.partition(".")[0],
                    "data": json.dumps(event.model_dump(mode="json")),
                }
        if len(batch) < _BATCH:
            await asyncio.sleep(POLL_SECONDS)


def _latest(database: Database) -> int:
    with database.read() as session:
        return events.latest_event_id(session)


def _after(database: Database, position: int) -> list[EventView]:
    with database.read() as session:
        return settled_after(session, position)


def settled_after(session: Session, position: int) -> list[EventView]:
    """The next events; none that comes later will have a lower id, whatever the clocks of replicas say."""
    found = events.events_after(session, position, _BATCH)
    return found if session.get_bind().dialect.name == "sqlite" else settled(found, position)


def settled(found: list[EventView], position: int) -> list[EventView]:
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
