"""How long lost attempts took to be followed, by the times that the service itself recorded.

The rule: an attempt whose worker vanished is given up one lease after its last heartbeat, within two passes
of the scheduler (one sees that heartbeat, the other that no further one came); the next attempt may begin at
that very moment, and does so once a worker is free. What a loaded machine adds is measured, not guessed: the
test build of the service notes when it passes, and a pass that comes late excuses what it delays.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

PASSES = "passes"
"""The file in which the test build notes each pass of the scheduler."""
_CALL_SECONDS = 2.0
"""What a call of a worker may take from its begin, whose time is recorded, to its commit, on a busy disk."""


INJECTED, FOLLOWED = "injected", "followed"
"""Properties of a test, for tests.faults.figures."""


@dataclass
class Tally:
    """What the test that runs has injected, and how long attempts took to be followed."""

    injected: int = 0
    followed: list[tuple[float, float]] = field(default_factory=list)
    """Seconds from the last that the service heard of an attempt to the next one's begin, and the lease."""

    def add(self, attempts: Sequence[Mapping[str, Any]], lease_seconds: float) -> None:
        """Those of one job, in order, as the API tells of them: each but the last met a fault."""
        self.injected += max(len(attempts) - 1, 1)
        for before, after in pairwise(attempts):
            heard_at = datetime.fromisoformat(before["ended_at"])
            if before["status"] == "lost":
                heard_at = datetime.fromisoformat(before["lease_expires_at"]) - timedelta(
                    seconds=lease_seconds
                )
            self.add_followed(heard_at, datetime.fromisoformat(after["started_at"]), lease_seconds)

    def add_followed(self, heard_at: datetime, followed_at: datetime, lease_seconds: float) -> None:
        self.followed.append(((followed_at - heard_at).total_seconds(), lease_seconds))

    def take(self) -> Iterator[tuple[str, object]]:
        """As properties of the test, and begin anew."""
        yield INJECTED, self.injected or 1
        yield FOLLOWED, self.followed
        self.injected, self.followed = 0, []


TALLY = Tally()


@dataclass(frozen=True, slots=True)
class Recovery:
    """One lost attempt and the next one; all in seconds.

    given_up: from the last heartbeat. followed: from then, or from when its worker was free, until the next
    attempt began. given_up_late, followed_late: how much of each is the scheduler's delay.
    """

    given_up: float
    followed: float
    given_up_late: float
    followed_late: float

    @classmethod
    def of(
        cls,
        passes: Sequence[datetime],
        interval_seconds: float,
        *,
        heard_at: datetime,
        given_up_at: datetime,
        free_at: datetime,
        followed_at: datetime,
    ) -> Self:
        """heard_at: of the last heartbeat. free_at: since when the next attempt's worker was there."""
        free_at = max(free_at, given_up_at)
        return cls(
            (given_up_at - heard_at).total_seconds(),
            (followed_at - free_at).total_seconds(),
            _late_seconds(passes, interval_seconds, heard_at, given_up_at),
            _late_seconds(passes, interval_seconds, free_at, followed_at),
        )

    def check(self, lease_seconds: float, interval_seconds: float, takeover_seconds: float = 0) -> None:
        """takeover_seconds: after which another replica schedules, if the one that did is gone as well."""
        in_time = lease_seconds + takeover_seconds + 2 * interval_seconds + _CALL_SECONDS
        assert 0.9 * lease_seconds < self.given_up < in_time + self.given_up_late, self
        assert 0 <= self.followed < _CALL_SECONDS + lease_seconds / 2 + self.followed_late, self


def read_passes(directory: Path) -> list[datetime]:
    return [datetime.fromisoformat(line) for line in (directory / PASSES).read_text().splitlines()]


def summary(recoveries: Iterable[Recovery]) -> str:
    """A sentence for a report."""
    known = list(recoveries)
    given_up, followed = [one.given_up for one in known], [one.followed for one in known]
    total = [one.given_up + one.followed for one in known]
    return (
        f"{len(known)} attempts lost; given up {_figures(given_up)} after their last heartbeat, followed"
        f" {_figures(followed)} after that by a free worker; together {_figures(total)}"
    )


def _figures(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f} s (at most {max(seconds):.2f} s)"


def _late_seconds(
    passes: Sequence[datetime], interval_seconds: float, begin: datetime, end: datetime
) -> float:
    """By how much all passes in a time came later than they should, together."""
    moments = [begin, *(moment for moment in sorted(passes) if begin < moment < end), end]
    gaps = ((after - before).total_seconds() for before, after in pairwise(moments))
    return sum(max(gap - interval_seconds, 0.0) for gap in gaps)
