"""A worker that dies at its commit, in the process of a test."""

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
    death = Death()

    class Commit:
        def __init__(self, operation: Any) -> None:
            self._operation = operation

        def commit(self) -> None:
            if when == "after":
                self._operation.commit()
            raise _Killed

    real = row_delta.java_row_delta
    with patch.object(row_delta, "java_row_delta", lambda *arguments: Commit(real(*arguments))):
        try:
            yield death
        except _Killed:
            death.happened = True
