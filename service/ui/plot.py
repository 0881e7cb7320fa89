"""Geometry of the plot of pending equality deletes over time. Pure; the template draws it.

The drawing is a 1000 x 100 box that is stretched to whatever width there is, so text stays outside of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from service.index_health.models import HealthSampleView

WIDTH, HEIGHT = 1000.0, 100.0
_COLUMNS = 240


@dataclass(frozen=True)
class Column:
    """A stretch of time with one tooltip."""

    x: float
    width: float
    began_at: datetime
    highest: int
    files: int


@dataclass(frozen=True)
class Plot:
    line: str
    """Points of the step line, `x,y x,y ...`."""
    area: str
    """The same, closed along the bottom."""
    columns: list[Column]
    top: int
    """Value at the upper edge; the lower edge is 0."""
    began_at: datetime
    ended_at: datetime
    highest: int
    latest: int
    marks: list[float]
    """x of each conversion."""


def plot_pending(
    samples: Sequence[HealthSampleView], conversions: Sequence[datetime], now: datetime
) -> Plot | None:
    """samples: oldest first. None if there is nothing to draw yet (fewer than two samples)."""
    if len(samples) < 2:
        return None
    began_at = samples[0].at
    span = max((now - began_at).total_seconds(), 1.0)
    top = round_up(max(sample.pending_equality_deletes for sample in samples))

    def x(at: datetime) -> float:
        return round((at - began_at).total_seconds() / span * WIDTH, 1)

    def y(value: int) -> float:
        return round(HEIGHT * (1 - value / top), 2)

    # Every sample holds until the next one. Of those in one column the highest counts, so no peak gets lost.
    buckets: dict[int, list[HealthSampleView]] = {}
    for sample in samples:
        buckets.setdefault(min(int(x(sample.at) / WIDTH * _COLUMNS), _COLUMNS - 1), []).append(sample)
    points: list[tuple[float, float]] = []
    columns: list[Column] = []
    ordered = [buckets[number] for number in sorted(buckets)]
    for number, bucket in enumerate(ordered):
        start = x(bucket[0].at)
        end = x(ordered[number + 1][0].at) if number + 1 < len(ordered) else WIDTH
        peak = max(bucket, key=lambda sample: sample.pending_equality_deletes)
        level = y(peak.pending_equality_deletes)
        points += [(start, level), (end, level)]
        columns.append(
            Column(
                start,
                round(end - start, 1),
                bucket[0].at,
                peak.pending_equality_deletes,
                peak.pending_equality_delete_files,
            )
        )
    line = " ".join(f"{left:g},{height:g}" for left, height in points)
    return Plot(
        line=line,
        area=f"0,{HEIGHT:g} {line} {WIDTH:g},{HEIGHT:g}",
        columns=columns,
        top=top,
        began_at=began_at,
        ended_at=now,
        highest=max(sample.pending_equality_deletes for sample in samples),
        latest=samples[-1].pending_equality_deletes,
        marks=[x(at) for at in conversions if began_at <= at <= now],
    )


def round_up(value: int) -> int:
    """The next of 1, 2, 5, 10, 20, 50, ... at or above `value`, so that half of it is readable too."""
    if value <= 1:
        return 1
    power = 10 ** (len(str(value)) - 1)
    return int(next(power * step for step in (1, 2, 4, 6, 8, 10) if math.ceil(power * step) >= value))
