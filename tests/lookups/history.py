"""One history: random steps on a table, its index and its model, with questions between all of them.

Invariant: a history is a pure function of its steps. Each step draws what it does from its own seed and the
table as it is then, so that steps can be left out.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from unittest.mock import patch

from tests.lookups.asking import Asking
from tests.lookups.deaths import DiedError, dying_after
from tests.lookups.drawing import Setup
from tests.soak.bounds import SMALL_BOUNDS
from tests.soak.drawing import Step

R = TypeVar("R")
_MEMORY = Path("/dev/shm")
_POOLS = ("worker.table.manifests.Threads", "worker.deletes.existing.Threads", "worker.index.build.Threads")


class _NoThreads(Executor):
    """Whoever waits does so for a store; none waits here, and a thread would take longer than its work."""

    def __init__(self, *_: object) -> None:
        pass

    def submit(self, call: Callable[..., R], /, *arguments: Any, **named: Any) -> Future[R]:
        done: Future[R] = Future()
        try:
            done.set_result(call(*arguments, **named))
        except Exception as error:
            done.set_exception(error)
        return done


class HistoryError(AssertionError):
    """A history that contradicts the model; `lines` tell it."""

    def __init__(self, lines: Sequence[str], cause: BaseException) -> None:
        first_lines = "\n".join(str(cause).splitlines()[:3])
        super().__init__("\n".join([*lines, f"{type(cause).__name__}: {first_lines}"]))
        self.cause = cause


class History(Asking):
    """A table, its index, its model, and all that may happen to them."""

    def __init__(self, folder: Path, setup: Setup, apart: Executor) -> None:
        super().__init__(folder, setup, apart)
        self.lines: list[str] = []

    def take(self, step: Step) -> None:
        """Do one step, unless its process dies in it, and ask if it did anything; `lines` tell of it."""
        rng = Random(step.seed)
        of_index = "index" in step.kind
        # A commit changes some five things, and an index job three times as many.
        most, share = (11, 0.35) if of_index else (5, 0.1)
        dies_after = rng.randint(0, most) if rng.random() < share else None
        operation: Callable[[Random], str] = getattr(self, step.kind)
        self.lines.append(f"{step.kind} ...")
        names = self.table.names
        try:
            with dying_after(dies_after):
                said = operation(rng)
        except DiedError:
            said = f"died after {dies_after} changes"
            self.may_be_damaged |= step.kind == "drop_index"
            if rng.random() < 0.5:
                said += f", then {operation(rng)}"
        self._say(f"{step.kind}: {said}")
        if self.table.names > names or of_index:
            self._say(f"{self.lines[-1]}; {self.look_up(rng)}")

    def _say(self, said: str) -> None:
        self.lines[-1] = said.replace(f"{self.folder.as_uri()}/", "")


def run(setup: Setup, steps: Sequence[Step]) -> list[str]:
    """Run a history and return what it did. Raises HistoryError."""
    place = tempfile.mkdtemp(prefix="icestream-history-", dir=_MEMORY if _MEMORY.is_dir() else None)
    history: History | None = None
    # A thread apart: in this one, a test of the browser may have left an event loop running.
    with ThreadPoolExecutor(1) as apart, _bounds(setup):
        try:
            history = History(Path(place), setup, apart)
            for step in steps:
                history.take(step)
        except Exception as error:
            raise HistoryError([str(setup), *(history.lines if history else [])], error) from error
        finally:
            shutil.rmtree(place, ignore_errors=True)
    return history.lines


@contextmanager
def _bounds(setup: Setup) -> Iterator[None]:
    bounds: dict[str, Any] = dict(SMALL_BOUNDS if setup.small_bounds else {})
    bounds |= dict.fromkeys(_POOLS, _NoThreads)
    bounds["worker.query.answers._LOOK_AGAIN_SECONDS"] = -1.0 if setup.looks_again else 1e9
    with ExitStack() as patches:
        for name, value in bounds.items():
            patches.enter_context(patch(name, value))
        yield
