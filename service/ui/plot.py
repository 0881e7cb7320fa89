"""What a plot over time shows: few enough of its values, when they held, and what they are in words.

Pure. The template writes it into the page, for the script that draws it and as a table for whoever has none.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from operator import itemgetter
from typing import Any

from service.ui import formats

VALUES_SHOWN = 25
"""Moments that a page tells the values of its plots at, in words."""
_COLUMNS = 240
_SAME_SECONDS = 1.0
"""Two ages since times that are less apart are ages of the same."""


Point = tuple[datetime, float]
"""When a value was measured, and it."""
Span = tuple[datetime, datetime]
_UNSEEN = "not looked at"
_VALUE = itemgetter(1)


class Unit(StrEnum):
    """What values are, which says how they are written; the script knows the same names."""

    COUNT = "count"
    BYTES = "bytes"
    SECONDS = "seconds"
    SHARE = "share"


_WRITE = {
    Unit.COUNT: formats.count,
    Unit.BYTES: formats.size,
    Unit.SECONDS: formats.duration,
    Unit.SHARE: formats.percent,
}


@dataclass(frozen=True)
class Plot:
    """Between two points lies a straight line if these are ages; else the first holds until the second."""

    title: str
    unit: Unit
    ages: bool
    began_at: datetime
    """The left edge."""
    ends_at: datetime
    """The right one, which the last point is of."""
    points: list[Point]
    """Oldest first, none before the left edge."""
    highest: str
    latest: str
    marks: list[datetime] = field(default_factory=list)
    """Of those close to each other the first."""
    shares_marks: bool = False
    """Whether a mark stands for several moments."""
    unseen: list[Span] = field(default_factory=list)
    """When nobody could look, so that nothing is known to have held."""

    @property
    def is_unseen(self) -> bool:
        """Whether nobody could look lately."""
        return bool(self.unseen) and self.unseen[-1][1] == self.ends_at

    @property
    def data(self) -> str:
        """For the script, as JSON: times are seconds, all but two of them since the left edge."""
        return _json(self.axes | self.line)

    @property
    def axes(self) -> dict[str, Any]:
        """All but the line itself."""
        return {
            "unit": self.unit.value,
            "ages": self.ages,
            "began": self.began_at.timestamp(),
            "ends": self.ends_at.timestamp(),
            "marks": [_short(self._second(at)) for at in self.marks],
            "unseen": [[_short(self._second(at)) for at in span] for span in self.unseen],
        }

    @property
    def line(self) -> dict[str, Any]:
        return {
            "times": [_short(self._second(at)) for at, _ in self.points],
            "values": [_short(round(value, 4)) for _, value in self.points],
        }

    def _second(self, at: datetime) -> float:
        return round((at - self.began_at).total_seconds(), 1)

    def at(self, moment: datetime) -> str:
        """The value then, in words; a dash before the first one."""
        if any(since < moment < until for since, until in self.unseen) or (
            self.is_unseen and moment == self.ends_at
        ):
            return _UNSEEN
        following = bisect_right(self.points, moment, key=itemgetter(0))
        if not following:
            return formats.NONE
        began, value = self.points[following - 1]
        if self.ages and following < len(self.points):
            until, after = self.points[following]
            value += (after - value) * ((moment - began) / (until - began))
        return _WRITE[self.unit](value)


@dataclass(frozen=True)
class Comparison:
    """Plots of the same figure over the same time, as lines of one chart."""

    title: str
    lines: Sequence[tuple[str, str, Plot]]
    """Each with its name, and its ink, as the style sheet calls it; the second one is dashed."""

    @property
    def data(self) -> str:
        """As of a plot, with `lines` in place of one."""
        lines = [plot.line | {"name": name, "ink": ink} for name, ink, plot in self.lines]
        return _json(self.lines[0][2].axes | {"lines": lines})


def plot(
    title: str,
    unit: Unit,
    samples: Sequence[Point],
    now: datetime,
    *,
    since: datetime | None = None,
    marks: Sequence[datetime] = (),
    unseen: Sequence[Span] = (),
    ages: bool = False,
    columns: int = _COLUMNS,
) -> Plot | None:
    """samples: oldest first, none of them later than `now`; each holds until the next one.

    since: the left edge, unless the first sample is later; what held before shows from there on.
    ages: values are seconds since something; while that stays the same they grow with the time, and the last
    sample is of `now`. columns: how many stretches of time are told apart at least. unseen: spans until `now`
    at the latest. None if there is nothing to draw yet (fewer than two samples).
    """
    if len(samples) < 2:
        return None
    began_at = samples[0][0] if since is None else max(samples[0][0], since)
    left = began_at.timestamp()
    width = max(now.timestamp() - left, 1.0) / columns
    # Of the samples in one column four are enough for all that can be seen, each when it was measured: no
    # peak is lost, and nothing shows when it did not hold.
    times = [at.timestamp() for at, _ in samples]
    edges = [0, *(bisect_left(times, left + width * number) for number in range(1, columns)), len(times)]
    drawn: list[Point] = []
    for begin, end in pairwise(edges):
        if end - begin == 1:
            drawn.append(samples[begin])
        elif begin < end:
            bucket = samples[begin:end]
            drawn += sorted({bucket[0], min(bucket, key=_VALUE), max(bucket, key=_VALUE), bucket[-1]})
    marked: dict[int, datetime] = {}
    shown = sorted(at for at in marks if began_at <= at <= now)
    for at in shown:
        marked.setdefault(min(int((at.timestamp() - left) / width), columns - 1), at)
    write = _WRITE[unit]
    return Plot(
        title=title,
        unit=unit,
        ages=ages,
        began_at=began_at,
        ends_at=now,
        points=_grow(drawn, began_at, now) if ages else _hold(drawn, began_at, now),
        highest=write(max(samples, key=_VALUE)[1]),
        latest=write(samples[-1][1]),
        marks=list(marked.values()),
        shares_marks=len(marked) < len(shown),
        unseen=[(max(begin, began_at), end) for begin, end in unseen if end > began_at],
    )


def _hold(samples: Sequence[Point], began_at: datetime, now: datetime) -> list[Point]:
    """Only where the value changes, and at both edges."""
    points: list[Point] = []
    for at, value in samples:
        if not points or points[-1][1] != value:
            points.append((max(at, began_at), value))
    return points if points[-1][0] == now else [*points, (now, points[-1][1])]


def _grow(samples: Sequence[Point], began_at: datetime, now: datetime) -> list[Point]:
    """The corners of a line that rises while an age is that of the same, and is level elsewhere."""
    points: list[Point] = []
    grew = False
    for (at, value), (until, after) in pairwise([*samples, (now, 0.0)]):
        passed = (until - at).total_seconds()
        grows = value > 0 and passed > 0 and abs(passed - (after - value)) < _SAME_SECONDS
        start = value + (max((began_at - at).total_seconds(), 0.0) if grows else 0.0)
        if not points or points[-1][1] != start:
            points.append((max(at, began_at), start))
        elif grows == grew:
            points.pop()
        points.append((max(until, began_at), after if grows else value))
        grew = grows
    if points[-1] == points[-2]:  # the last sample is of `now`
        points.pop()
    return points


def moments(plots: Sequence[Plot], number: int) -> list[datetime]:
    """Evenly spread over what plots of the same span cover, the latest first."""
    began_at, ends_at = min(each.began_at for each in plots), max(each.ends_at for each in plots)
    return [ends_at - (ends_at - began_at) * step / (number - 1) for step in range(number)]


def _json(told: dict[str, Any]) -> str:
    return json.dumps(told, separators=(",", ":"))


def _short(number: float) -> float:
    """As JSON writes it shortest."""
    return int(number) if number == int(number) else number
