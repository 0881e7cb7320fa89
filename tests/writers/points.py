"""What a worker does that runs in this process, as points at which a test may come in between, or end it.

Points: the stages of a job (`plan`, `read`, `lookup`, `deletes`, `rows`, `commit`, ...), what it tells the
service (`announce`, `addresses`, `finish`), and its commits (`entries` and `dictionary` of the index,
`iceberg`); each with `before` or `after`. The worker knows nothing of it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from worker.agent.reporter import AttemptReporter
from worker.attempt.job import Job
from worker.contract.control_plane import AttemptReport
from worker.index.sorted_runs import RunTable
from worker.table import row_delta

Passes = Callable[[str], None]
"""Is told of each point, such as `iceberg.after`, in the thread of the job."""


class Commit:
    """An operation of Iceberg, which is made at its commit."""

    def __init__(self, operation: Any, passes: Passes) -> None:
        self._operation, self._passes = operation, passes

    def commit(self) -> None:
        self._passes("iceberg.before")
        self._operation.commit()
        self._passes("iceberg.after")


@contextmanager
def watched(passes: Passes) -> Iterator[None]:
    """While it lasts, jobs that run in this thread pass their points."""
    thread = threading.get_ident()

    def told(point: str) -> None:
        if threading.get_ident() == thread:
            passes(point)

    def wrapped(real: Callable[..., Any], name: Callable[[Any], str]) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(owner: Any, *arguments: Any, **named: Any) -> Any:
            told(f"{name(owner)}.before")
            result = real(owner, *arguments, **named)
            told(f"{name(owner)}.after")
            return result

        return call

    real_stage, real_delta = Job.stage, row_delta.java_row_delta

    @contextmanager
    def stage(job: Job, name: str) -> Iterator[None]:
        told(f"{name}.before")
        with real_stage(job, name):
            yield
        told(f"{name}.after")

    def java_row_delta(*arguments: Any) -> Commit:
        return Commit(real_delta(*arguments), told)

    calls: list[tuple[Any, str, Callable[[Any], str]]] = [
        (AttemptReporter, "announce", lambda _: "announce"),
        (AttemptReport, "grant_row_addresses", lambda _: "addresses"),
        (AttemptReport, "finish", lambda _: "finish"),
        (RunTable, "commit_files", _part_of_index),
    ]
    with ExitStack() as patches:
        for owner, name, point in calls:
            patches.enter_context(patch.object(owner, name, wrapped(getattr(owner, name), point)))
        patches.enter_context(patch.object(Job, "stage", stage))
        patches.enter_context(patch.object(row_delta, "java_row_delta", java_row_delta))
        yield


def _part_of_index(table: RunTable) -> str:
    return "entries" if "/entries_" in table.location else "dictionary"
