"""How often the catalog is asked whether a table has changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

_QUIET_SHARE = 1 / 60


@dataclass(frozen=True)
class Pace:
    """Of one table."""

    seconds: float = 0.0
    """Between two polls while it changes."""
    most_seconds: float = 0.0
    """The same however long it has been quiet."""
    changed_at: datetime | None = None
    """When it changed last; None if nobody knows."""

    @classmethod
    def of(cls, last_poll: Mapping[str, Any]) -> Self:
        """As TableHealth.last_poll has it."""
        changed_at = last_poll["changed_at"]
        at = datetime.fromisoformat(changed_at) if changed_at is not None else None
        return cls(last_poll["every_seconds"], last_poll["most_seconds"], at)

    def stored(self) -> dict[str, Any]:
        changed_at = self.changed_at.isoformat() if self.changed_at is not None else None
        return {
            "every_seconds": self.seconds,
            "most_seconds": self.most_seconds,
            "changed_at": changed_at,
        }

    def every_seconds(self, now: datetime) -> float:
        """Between polls now: what is noticed late by a small share of the time for which nothing happened is
        noticed soon enough."""
        quiet = (now - self.changed_at).total_seconds() if self.changed_at is not None else 0.0
        return min(max(self.seconds, quiet * _QUIET_SHARE), self.most_seconds)
