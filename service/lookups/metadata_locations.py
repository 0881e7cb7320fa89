"""The newest metadata locations of tables, each asked for once however many want to know it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from service.auth.buckets import Recent
from service.errors import IcestreamError


@dataclass(frozen=True, slots=True)
class MetadataLocation:
    """metadata_location: that the catalog named when it was asked, at `asked_at` of the monotonic clock."""

    metadata_location: str
    asked_at: float

    @property
    def age_seconds(self) -> float:
        return time.monotonic() - self.asked_at


@dataclass(slots=True)
class _Known:
    """failure: of the last time that the catalog was asked, at `failed_at`. Only while some wait: whoever
    keeps an error keeps the request that it came to."""

    location: MetadataLocation | None = None
    failure: IcestreamError | None = None
    failed_at: float = 0
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


class MetadataLocations:
    """Of one replica, in its memory, which is bounded. Used from the application's event loop."""

    def __init__(self) -> None:
        self._known: Recent[_Known] = Recent()

    async def of(
        self,
        table: str,
        max_age_seconds: float,
        ask: Callable[[], Awaitable[str]],
        is_given_up: Callable[[], Awaitable[bool]],
    ) -> MetadataLocation:
        """table: with what its catalog's answer depends on. is_given_up: whether nobody waits for `ask` any
        more, which may be why it fails. Raises what `ask` raises, to whichever request.
        """
        known = self._known.get(table) or self._known.put(table, _Known())
        # What another request has asked since this one came is as new as what this one could ask.
        came = time.monotonic()
        since = came - max_age_seconds
        if known.location is not None and known.location.asked_at >= since:
            return known.location
        known.waiting += 1
        try:
            async with known.asking:
                if known.location is not None and known.location.asked_at >= since:
                    return known.location
                # And as good: else all that wait for a catalog that fails would wait one after the other.
                if known.failure is not None and known.failed_at >= came:
                    raise known.failure
                known.location = await _asked(known, ask, is_given_up)
                return known.location
        finally:
            known.waiting -= 1
            if not known.waiting:
                known.failure = None


async def _asked(
    known: _Known, ask: Callable[[], Awaitable[str]], is_given_up: Callable[[], Awaitable[bool]]
) -> MetadataLocation:
    known.failure, asked_at = None, time.monotonic()
    try:
        return MetadataLocation(await ask(), asked_at)
    except IcestreamError as error:
        if not await is_given_up():
            known.failure, known.failed_at = error, asked_at
        raise
