"""One history: random steps on a table and its model, told in lines.

Invariant: a history is a pure function of its steps. Each step draws what it does from its own seed and the
table as it is then, so that steps can be left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

from tests.soak.bounds import SMALL_BOUNDS
from tests.soak.drawing import Setup, Step
from tests.soak.steps.erasures import EraseSteps
from tests.soak.steps.schemas import SchemaSteps
from tests.soak.steps.upkeep import UpkeepSteps
from tests.soak.steps.writers import WriterSteps
from tests.soak.world import World


class HistoryError(AssertionError):
    """A history that contradicts the model; `lines` tell it."""

    def __init__(self, lines: Sequence[str], cause: BaseException) -> None:
        first_lines = "\n".join(str(cause).splitlines()[:3])
        super().__init__("\n".join([*lines, f"{type(cause).__name__}: {first_lines}"]))
        self.lines = list(lines)
        self.cause = cause


class History(WriterSteps, SchemaSteps, EraseSteps, UpkeepSteps):
    """A table, its model, and all that may happen to them."""

    def __init__(self, world: World, setup: Setup) -> None:
        super().__init__(world, setup)
        self.lines: list[str] = []

    def take(self, step: Step) -> None:
        """Do one step; `lines` say what it did."""
        self.lines.append(f"{step.kind} ...")
        said = self.do(step)
        self.lines[-1] = f"{step.kind}: {self._with_short_names(said)}, then a lookup ..."
        looked_up = self.look_up(Random(step.seed + 1))
        self.lines[-1] = f"{step.kind}: {self._with_short_names(said)}; {looked_up}"

    def _with_short_names(self, said: str) -> str:
        """Names of data files differ from run to run; their numbers don't."""
        for number, path in enumerate(self.model.files):
            said = said.replace(path, f"file {number}")
        return said

    @contextmanager
    def bounds(self) -> Iterator[None]:
        """Bounds of the worker so small that these tables exceed them."""
        bounds: dict[str, Any] = {}
        if self.setup.small_bounds:
            bounds |= SMALL_BOUNDS
        if self.setup.shuffles:
            bounds |= {
                "worker.lookup.resolution.DRIVER_KEYS": 3,
                "worker.lookup.resolution.SAMPLES_PER_RANGE": 4,
            }
        patches = [patch(name, value) for name, value in bounds.items()]
        try:
            for one in patches:
                one.start()
            yield
        finally:
            for one in patches:
                one.stop()


def run(world: World, setup: Setup, steps: Sequence[Step]) -> list[str]:
    """Run a history and return what it did. Raises HistoryError."""
    history = History(world, setup)
    return play(history, setup, steps, history.bounds())


def play(
    history: Any, setup: Any, steps: Sequence[Step], bounds: AbstractContextManager[object]
) -> list[str]:
    """Take steps within bounds, and return what they did. history: it takes steps, has lines and is removed.
    Raises HistoryError."""
    try:
        with bounds:
            for step in steps:
                history.take(step)
    except Exception as error:
        raise HistoryError([str(setup), *history.lines], error) from error
    finally:
        history.remove()
    lines: list[str] = history.lines
    return lines
