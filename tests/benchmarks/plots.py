"""Plots in SVG, the same bytes for the same figures; on white, so that they can be read on any page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import EngFormatter, FixedLocator, LogLocator, NullLocator
from matplotlib.typing import RcKeyType

from tests.benchmarks.competitors import Name
from tests.benchmarks.measure import Figure
from tests.benchmarks.sweep import Point

# (x, seconds) of one line
Line = Sequence[tuple[int, Figure]]

_STYLE: dict[RcKeyType, Any] = {
    "svg.hashsalt": "icestream",
    "svg.fonttype": "none",  # text as text: a tenth of the bytes
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 9,
    # Told apart without colours as well; the colours are Okabe and Ito's.
    "axes.prop_cycle": cycler(
        color=["#0072B2", "#E69F00", "#CC79A7", "#009E73", "#56B4E9", "#D55E00", "#000000"],
        marker=["o", "s", "^", "D", "v", "P", "X"],
    ),
}


def plot_over_deletes(points: Sequence[Point], path: Path) -> None:
    """A line for each competitor at one N."""
    lines: dict[str, Line] = {
        name: [(p.deletes, p.measured[name].time) for p in points if name in p.measured] for name in Name
    }
    first = points[0]
    _plot(f"{first.rows:,} rows, {first.kind} key", "deleted keys D", lines, path)


def plot_over_rows(points: Sequence[Point], path: Path) -> None:
    """The lookup, a line for each D."""
    lines: dict[str, Line] = {
        f"D = {count:,}": [(p.rows, p.measured[Name.LOOKUP].time) for p in points if p.deletes == count]
        for count in sorted({p.deletes for p in points})
    }
    _plot(f"lookup of D keys, {points[0].kind}", "rows of the table N", lines, path)


def _plot(title: str, x_label: str, lines: Mapping[str, Line], path: Path) -> None:
    with mpl.rc_context(_STYLE):
        canvas = Canvas(figsize=(7.2, 4.2), facecolor="white", layout="constrained")
        axes: Axes = canvas.subplots()
        for label, line in lines.items():
            if line:
                _draw(axes, label, line)
        axes.set(title=title, xlabel=f"{x_label} (log scale)", ylabel="seconds (log scale), median and range")
        axes.set(xscale="log", yscale="log")
        axes.xaxis.set(
            major_locator=FixedLocator(sorted({x for line in lines.values() for x, _ in line})),
            minor_locator=NullLocator(),
            major_formatter=EngFormatter(),
        )
        axes.yaxis.set(
            major_locator=LogLocator(subs=(1, 2, 5)),
            minor_locator=NullLocator(),
            major_formatter=EngFormatter(unit="s"),
        )
        axes.grid(color="#dddddd", linewidth=0.6)
        canvas.legend(loc="outside right upper", frameon=False)
        canvas.savefig(path, format="svg", metadata={"Date": None})


def _draw(axes: Axes, label: str, line: Line) -> None:
    x = [at for at, _ in line]
    (drawn,) = axes.plot(x, [figure.median for _, figure in line], label=label, markersize=4.5, linewidth=1.4)
    low, high = zip(*(figure.spread for _, figure in line), strict=True)
    axes.fill_between(x, low, high, color=drawn.get_color(), alpha=0.15, linewidth=0)
