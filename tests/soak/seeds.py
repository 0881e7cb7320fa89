"""Runs the histories of seeds, and shrinks those that fail."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.soak.drawing import WEIGHTS, WRITE_WEIGHTS, Setup, Step, draw
from tests.soak.history import HistoryError, run
from tests.soak.world import World


@dataclass(frozen=True)
class Failure:
    """A seed whose history contradicts the model, told in lines."""

    seed: int
    weights: Mapping[str, int]
    error: HistoryError

    def __str__(self) -> str:
        arguments = f"--seed {self.seed}" + (" --writes" if self.weights is WRITE_WEIGHTS else "")
        return (
            f'Seed {self.seed} fails; replay it with `make soak ARGS="{arguments}"`:\n{_indented(self.error)}'
        )


def run_seed(world: World, seed: int, weights: Mapping[str, int] = WEIGHTS) -> Failure | None:
    setup, steps = draw(seed, weights)
    try:
        run(world, setup, steps)
    except HistoryError as error:
        return Failure(seed, weights, error)
    return None


def shrink(world: World, failure: Failure, *, seconds: float = 60) -> str:
    """The shortest history found that still fails, as lines: steps are left out one by one, last first."""
    setup, steps = draw(failure.seed, failure.weights)
    until = time.monotonic() + seconds
    shortest: HistoryError | None = None
    at = len(steps)
    while at > 0 and time.monotonic() < until:
        at -= 1
        fewer = [*steps[:at], *steps[at + 1 :]]
        error = _error(world, setup, fewer)
        if error is not None:
            steps, shortest = fewer, error
    return "No step can be left out." if shortest is None else "Shortest:\n" + _indented(shortest)


def _error(world: World, setup: Setup, steps: Sequence[Step]) -> HistoryError | None:
    try:
        run(world, setup, steps)
    except HistoryError as error:
        return error
    return None


def _indented(error: HistoryError) -> str:
    return "\n".join(f"    {line}" for line in str(error).splitlines())
