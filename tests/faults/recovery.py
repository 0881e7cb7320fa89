"""How long lost attempts took to be followed, by the times that the service itself recorded.

The rule: an attempt whose worker vanished is given up by the first pass of the scheduler that has watched its
lease for long enough; the next attempt may begin at that very moment, and does so once a worker is free. How
long that takes is a machine's affair: it is told, and not bounded here. The test build of the service notes
what its scheduler has watched.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

WATCHED = "watched"
"""The file in which the test build notes each attempt that a pass of the scheduler saw, and for how long."""

INJECTED, FOLLOWED, LIVE_FILES = "injected", "followed", "live files"
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
    attempt began. watched: for how long its lease had been, in each pass since the last heartbeat.
    """

    given_up: float
    followed: float
    watched: Sequence[float]

    @classmethod
    def of(
        cls,
        watched: Sequence[float],
        *,
        heard_at: datetime,
        given_up_at: datetime,
        free_at: datetime,
        followed_at: datetime,
    ) -> Self:
        """watched: in all passes that saw it. heard_at: of the last heartbeat. free_at: since when the next
        attempt's worker was there."""
        return cls(
            (given_up_at - heard_at).total_seconds(),
            (followed_at - max(free_at, given_up_at)).total_seconds(),
            # Each heartbeat begins anew.
            watched[max((at for at, seconds in enumerate(watched) if not seconds), default=0) :],
        )

    def check(self, lease_seconds: float) -> None:
        assert self.given_up > 0.9 * lease_seconds, self
        assert [seconds >= lease_seconds for seconds in self.watched] == [
            *[False] * (len(self.watched) - 1),
            True,
        ], self
        assert self.followed >= 0, self


def read_watched(directory: Path) -> dict[tuple[str, int], list[float]]:
    """By job and attempt."""
    watched = defaultdict(list)
    for line in (directory / WATCHED).read_text().splitlines():
        job_id, attempt, seconds = line.split()
        watched[job_id, int(attempt)].append(float(seconds))
    return watched


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
