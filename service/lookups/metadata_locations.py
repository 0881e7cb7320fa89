"""The newest metadata locations of tables, each asked for once however many want to know it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from service.auth.buckets import Recent


@dataclass(frozen=True, slots=True)
class Head:
    """metadata_location: that the catalog named when it was asked, at `asked_at` of the monotonic clock."""

    metadata_location: str
    asked_at: float

    @property
    def age_seconds(self) -> float:
        return time.monotonic() - self.asked_at


@dataclass(slots=True)
class _Known:
    head: Head | None = None
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class Heads:
    """Of one replica, in its memory, which is bounded. Used from the application's event loop."""

    def __init__(self) -> None:
        self._known: Recent[_Known] = Recent()

    async def of(self, table: str, max_age_seconds: float, ask: Callable[[], Awaitable[str]]) -> Head:
        """table: with what its catalog's answer depends on. Raises what `ask` raises."""
        known = self._known.get(table) or self._known.put(table, _Known())
        # What another request has asked since this one came is as new as what this one could ask.
        since = time.monotonic() - max_age_seconds
        if known.head is not None and known.head.asked_at >= since:
            return known.head
        async with known.asking:
            if known.head is None or known.head.asked_at < since:
                asked_at = time.monotonic()
                known.head = Head(await ask(), asked_at)
            return known.head
