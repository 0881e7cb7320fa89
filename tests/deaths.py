"""A worker that dies at some point, in the process of a test."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from worker.table import row_delta


class _Killed(BaseException):
    """The worker is gone: nothing tidies up, as it does after an Exception."""


@dataclass
class Death:
    """Whether there was a commit to die at."""

    happened: bool = False


@contextmanager
def killed_at_its_commit(when: str) -> Iterator[Death]:
    """The next commit does not return; `after`: it has happened."""
    with killed_at_commit_of(row_delta, "java_row_delta", when) as death:
        yield death


@contextmanager
def killed_at_commit_of(module: Any, maker: str, when: str) -> Iterator[Death]:
    """The same of an operation that a function of a module makes."""

    class Commit:
        def __init__(self, operation: Any) -> None:
            self._operation = operation

        def commit(self) -> None:
            if when == "after":
                self._operation.commit()
            raise _Killed

    real = getattr(module, maker)
    with patch.object(module, maker, lambda *arguments: Commit(real(*arguments))), _death() as death:
        yield death


@contextmanager
def killed_at_call_of(module: Any, function: str, when: str) -> Iterator[Death]:
    """The next call of a function does not return; `after`: it was done."""
    real = getattr(module, function)

    def call(*arguments: Any, **named: Any) -> None:
        if when == "after":
            real(*arguments, **named)
        raise _Killed

    with patch.object(module, function, call), _death() as death:
        yield death


@contextmanager
def _death() -> Iterator[Death]:
    death = Death()
    try:
        yield death
    except _Killed:
        death.happened = True
