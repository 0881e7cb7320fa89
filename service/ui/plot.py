"""Geometry of a plot over time. Pure; the template draws it.

The drawing is a 1000 x 100 box that is stretched to whatever width there is, so text stays outside of it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

WIDTH, HEIGHT = 1000.0, 100.0
_COLUMNS = 240
_TICKS = 4
_SAME_SECONDS = 1.0
"""Two ages since times that are less apart are ages of the same."""
_DURATIONS = [
    unit * step
    for unit, steps in (
        (1, (1, 2, 4, 10, 20, 30)),
        (60, (1, 2, 4, 10, 20, 30)),
        (3600, (1, 2, 4, 6, 12)),
        (86_400, (1, 2, 4, 8, 16, 30, 60, 120, 240, 400)),
    )
    for step in steps
]


@dataclass(frozen=True)
class Column:
    """A stretch of time with one tooltip."""

    x: float
    width: float
    at: datetime
    """When the value that it tells was measured."""
    words: str


@dataclass(frozen=True)
class Plot:
    title: str
    line: str
    """Points of the step line, `x,y x,y ...`."""
    area: str
    """The same, closed along the bottom."""
    columns: list[Column]
    top: str
    """Value at the upper edge, in words; the lower edge is 0."""
    middle: str
    """Value half way up; empty if it would be no whole number."""
    ticks: list[datetime]
    """Evenly spread, the first at the left edge and the last at the right one."""
    highest: str
    latest: str
    marks: list[float] = field(default_factory=list)
    """x of each moment that is marked, of those in one column the first."""
    shares_marks: bool = False
    """Whether a mark stands for several moments."""


def plot(
    title: str,
    samples: Sequence[tuple[datetime, float]],
    now: datetime,
    write: Callable[[float], str],
    *,
    since: datetime | None = None,
    write_axis: Callable[[float], str] | None = None,
    top: float | None = None,
    round_top: Callable[[int], int] | None = None,
    marks: Sequence[datetime] = (),
    ages: bool = False,
) -> Plot | None:
    """samples: oldest first, none of them later than `now`; each holds until the next one.

    since: the left edge, unless the first sample is later; what held before shows from there on.
    write: a value in words; write_axis: the same, shorter. top: value at the upper edge, if not what the
    samples ask for, which round_top makes readable. ages: values are seconds since something; while that
    stays the same they grow with the time, and the last sample is of `now`. None if there is nothing to draw
    yet (fewer than two samples).
    """
    if len(samples) < 2:
        return None
    write_axis = write_axis or write
    began_at = samples[0][0] if since is None else max(samples[0][0], since)
    span = max((now - began_at).total_seconds(), 1.0)
    highest = max(value for _, value in samples)
    upper = top if top is not None else (round_top or round_up)(math.ceil(highest))

    def x(at: datetime) -> float:
        return round(max((at - began_at).total_seconds() / span, 0.0) * WIDTH, 1)

    def y(value: float) -> float:
        return round(HEIGHT * (1 - value / upper), 2)

    # Of the samples in one column four are enough for all that can be seen, each when it was measured: no
    # peak is lost, and nothing shows when it did not hold.
    buckets: dict[int, list[tuple[datetime, float]]] = {}
    for sample in samples:
        buckets.setdefault(min(int(x(sample[0]) / WIDTH * _COLUMNS), _COLUMNS - 1), []).append(sample)
    drawn: list[tuple[datetime, float]] = []
    columns: list[Column] = []
    ordered = [buckets[number] for number in sorted(buckets)]
    for number, bucket in enumerate(ordered):
        peak = max(bucket, key=_value)
        drawn += sorted({bucket[0], min(bucket, key=_value), peak, bucket[-1]})
        start, last = x(bucket[0][0]), x(bucket[-1][0])
        end = x(ordered[number + 1][0][0]) if number + 1 < len(ordered) else WIDTH
        if last > start and end - last > WIDTH / _COLUMNS:
            columns.append(Column(start, round(last - start, 1), peak[0], write(peak[1])))
            start, peak = last, bucket[-1]
        columns.append(Column(start, round(end - start, 1), peak[0], write(peak[1])))
    points: list[tuple[float, float]] = []
    grew = False
    for (at, value), (until, after) in zip(drawn, [*drawn[1:], (now, 0.0)], strict=True):
        passed = (until - at).total_seconds()
        grows = ages and value > 0 and passed > 0 and abs(passed - (after - value)) < _SAME_SECONDS
        unseen = max((began_at - at).total_seconds(), 0.0) if grows else 0.0
        start = y(value + unseen)
        if not points or points[-1][1] != start:
            points.append((x(at), start))
        elif grows == grew:
            points.pop()
        points.append((x(until), y(after if grows else value)))
        grew = grows
    if points[-1] == points[-2]:  # the last sample is of `now`
        points.pop()
    line = " ".join(f"{left:g},{height:g}" for left, height in points)
    marked = [x(at) for at in marks if began_at <= at <= now]
    first_marked: dict[int, float] = {}
    for left in sorted(marked):
        first_marked.setdefault(min(int(left / WIDTH * _COLUMNS), _COLUMNS - 1), left)
    return Plot(
        title=title,
        line=line,
        area=f"0,{HEIGHT:g} {line} {WIDTH:g},{HEIGHT:g}",
        columns=columns,
        top=write_axis(upper),
        middle=write_axis(upper / 2) if upper != 1 else "",
        ticks=[began_at + (now - began_at) * number / _TICKS for number in range(_TICKS + 1)],
        highest=write(highest),
        latest=write(samples[-1][1]),
        marks=list(first_marked.values()),
        shares_marks=len(first_marked) < len(marked),
    )


def _value(sample: tuple[datetime, float]) -> float:
    return sample[1]


def round_up(value: int) -> int:
    """The next of 1, 2, 4, 6, 8, 10, 20, ... at or above `value`, so that half of it is readable too."""
    if value <= 1:
        return 1
    power = 10 ** (len(str(value)) - 1)
    return int(next(power * step for step in (1, 2, 4, 6, 8, 10) if power * step >= value))


def round_up_duration(seconds: int) -> int:
    """The next length of time at or above `seconds` that reads well, as does half of it: 20 min, 12 h."""
    return next((length for length in _DURATIONS if length >= seconds), round_up(seconds))
