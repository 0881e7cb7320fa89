"""Runs the histories of seeds, and shrinks those that fail."""

from __future__ import annotations

from dataclasses import dataclass

from tests.lookups.drawing import draw
from tests.lookups.history import HistoryError, run


@dataclass(frozen=True)
class Failure:
    """A seed whose history contradicts the model, and the shortest history found that still does."""

    seed: int
    error: HistoryError

    def __str__(self) -> str:
        lines = "\n".join(f"    {line}" for line in str(self.shortest()).splitlines())
        return f"Seed {self.seed} fails, at the shortest so:\n{lines}"

    def shortest(self) -> HistoryError:
        """Steps are left out one by one, last first."""
        setup, steps = draw(self.seed)
        shortest = self.error
        for at in reversed(range(len(steps))):
            fewer = [*steps[:at], *steps[at + 1 :]]
            try:
                run(setup, fewer)
            except HistoryError as error:
                steps, shortest = fewer, error
        return shortest


def run_seed(seed: int) -> Failure | None:
    try:
        run(*draw(seed))
    except HistoryError as error:
        return Failure(seed, error)
    return None
