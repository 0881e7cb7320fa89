"""How many keys somebody may ask about in a minute: the work is in the keys, not in the calls."""

import time
from collections.abc import Callable

from service.auth.buckets import Bucket, Recent, too_many
from service.auth.models import Principal
from service.settings import Settings


class KeyLimits:
    """Of one replica, in its memory, which is bounded. Used from the application's event loop."""

    def __init__(self, settings: Settings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = settings.lookup_keys_per_minute
        self._monotonic = monotonic
        self._keys: Recent[Bucket] = Recent()

    def take(self, caller: Principal, count: int) -> None:
        """Raises a 429 for whoever has to wait."""
        if not self._per_minute:
            return
        count = min(count, self._per_minute)
        now = self._monotonic()
        bucket = self._keys.get(caller.key) or self._keys.put(caller.key, Bucket(self._per_minute, now))
        if wait_seconds := bucket.wait_seconds(now, count):
            raise too_many("You asked for keys", self._per_minute, wait_seconds)
        bucket.take(count)
