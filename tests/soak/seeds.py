"""Runs the histories of seeds, and shrinks those that fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.soak.drawing import ERASE_WEIGHTS, REWRITE_WEIGHTS, WRITE_WEIGHTS, Step, draw
from tests.soak.history import HistoryError, run


@dataclass(frozen=True)
class Kind:
    """A kind of histories. argument: that asks `make soak` for it. draw: a setup and the steps, of a seed.
    run: takes the world, the setup and the steps; raises HistoryError."""

    argument: str
    draw: Callable[[int], tuple[Any, list[Step]]]
    run: Callable[[Any, Any, Sequence[Step]], list[str]]


TABLES = Kind("", draw, run)
WRITES = Kind("--writes", partial(draw, weights=WRITE_WEIGHTS), run)
REWRITINGS = Kind("--rewritings", partial(draw, weights=REWRITE_WEIGHTS), run)
ERASURES = Kind("--erasures", partial(draw, weights=ERASE_WEIGHTS), run)


@dataclass(frozen=True)
class Failure:
    """A seed whose history contradicts the model, told in lines."""

    seed: int
    kind: Kind
    error: HistoryError

    def __str__(self) -> str:
        arguments = f"--seed {self.seed} {self.kind.argument}".rstrip()
        return (
            f'Seed {self.seed} fails; replay it with `make soak ARGS="{arguments}"`:\n{_indented(self.error)}'
        )


def run_seed(world: Any, seed: int, kind: Kind = TABLES) -> Failure | None:
    try:
        kind.run(world, *kind.draw(seed))
    except HistoryError as error:
        return Failure(seed, kind, error)
    return None


def shrink(world: Any, failure: Failure, *, seconds: float = 60) -> str:
    """The shortest history found that still fails, as lines: steps are left out one by one, last first."""
    kind = failure.kind
    setup, steps = kind.draw(failure.seed)
    until = time.monotonic() + seconds
    shortest: HistoryError | None = None
    at = len(steps)
    while at > 0 and time.monotonic() < until:
        at -= 1
        fewer = [*steps[:at], *steps[at + 1 :]]
        try:
            kind.run(world, setup, fewer)
        except HistoryError as error:
            steps, shortest = fewer, error
    return "No step can be left out." if shortest is None else "Shortest:\n" + _indented(shortest)


def _indented(error: HistoryError) -> str:
    return "\n".join(f"    {line}" for line in str(error).splitlines())
