"""How many questions of one caller are under way at once: none keeps the others waiting."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from service.auth.models import Principal
from service.errors import IcestreamError

QUESTIONS = 16
"""Of one caller: half of what a lookup server answers at once."""
_WAIT_SECONDS = 5.0
"""For one of them to end."""


@dataclass(slots=True)
class _Share:
    semaphore: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(QUESTIONS))
    users: int = 0


class ConcurrencyLimits:
    """Of one replica. Used from the application's event loop."""

    def __init__(self) -> None:
        self._shares: dict[str, _Share] = {}

    @asynccontextmanager
    async def of(self, caller: Principal) -> AsyncIterator[None]:
        """One of the caller's questions. Raises a 429 if too many are under way, and none ends soon."""
        share = self._shares.setdefault(caller.key, _Share())
        share.users += 1
        try:
            await _take(share.semaphore)
            try:
                yield
            finally:
                share.semaphore.release()
        finally:
            share.users -= 1
            if not share.users:
                del self._shares[caller.key]


async def _take(semaphore: asyncio.Semaphore) -> None:
    try:
        async with asyncio.timeout(_WAIT_SECONDS):
            await semaphore.acquire()
    except TimeoutError:
        raise IcestreamError(
            "too-many-requests",
            f"{QUESTIONS} of your questions about keys are under way, and none ended in {_WAIT_SECONDS:g} s.",
            "Ask fewer at once, or again when some have ended; up to 10,000 keys go in one question.",
            retry_after_seconds=math.ceil(_WAIT_SECONDS),
        ) from None
