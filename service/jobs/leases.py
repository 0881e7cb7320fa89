"""Leases by observation: whose value has not changed for a whole lease is lost.

No wall clock decides, so one that jumps loses nothing and keeps nothing (as in the leader election of
Kubernetes' client-go). Whoever starts to observe gives every holder a whole lease first.
"""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value", bound=Hashable)
_LONGEST_STEP = 0.25


class LeaseObserver(Generic[Key, Value]):
    """What one process saw of some leases, and since when by its monotonic clock."""

    def __init__(self, lease_seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._lease_seconds = lease_seconds
        self._monotonic = monotonic
        self._looked_at = monotonic()
        self._watched_seconds = 0.0
        self._since: dict[Key, tuple[Value, float]] = {}

    def look(
        self, leases: Mapping[Key, Value], seconds: Mapping[Key, float] | None = None
    ) -> dict[Key, Value]:
        """Note the values of all leases of now; those that ran out, with the value that did not change.

        seconds: how long each lasts, if not as long as all.
        """
        now = self._monotonic()
        # While this process or the database stood still, nobody could renew either: only watching counts.
        self._watched_seconds += min(now - self._looked_at, self._lease_seconds * _LONGEST_STEP)
        self._looked_at = now
        before, self._since = self._since, {}
        for key, value in leases.items():
            known = before.get(key)
            unchanged = known is not None and known[0] == value
            self._since[key] = known if known is not None and unchanged else (value, self._watched_seconds)
        return {
            key: value
            for key, (value, since) in self._since.items()
            if self._watched_seconds - since >= (seconds or {}).get(key, self._lease_seconds)
        }
