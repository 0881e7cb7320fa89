"""Whether Spark's executors can run the worker's tasks: looked at once, when a worker starts.

A task is a pickled object of this package. An executor whose Python lacks a package, or has another version
of one, would fail in the middle of a job, or understand the task in another way.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from worker.spark.session import runs_tasks_in_this_python
from worker.spark.tasks import TaskRunner

log = logging.getLogger("icestream.worker")

PACKAGES = (
    "icestream",
    "fastavro",
    "numpy",
    "obstore",
    "polars",
    "pyarrow",
    "pyiceberg",
    "pypaimon",
    "pyroaring",
    "pyspark",
)
"""What tasks use, or what their parts are pickled by: of the same version everywhere."""
WAIT_SECONDS = 60.0
"""For a first executor. One that comes later is not looked at."""

REMEDY = (
    "Give the executors the worker's image, or ship its Python to them (spark.archives), as"
    " docs/deployment.md says; then start the worker again."
)


class UnfitExecutorsError(Exception):
    """No job can run before somebody gives Spark's executors the right Python."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The Python of an executor. versions: of `PACKAGES`. failure: of importing what tasks are made of."""

    host: str
    python: str
    versions: tuple[str | None, ...]
    failure: str | None

    def faults(self) -> list[str]:
        here = tuple(version(name) for name in PACKAGES)
        found = [
            f"{name} is {has or 'missing'} ({wanted} here)"
            for name, wanted, has in zip(PACKAGES, here, self.versions, strict=True)
            if has != wanted
        ]
        # What follows from a missing package says less than that does.
        return found or ([self.failure] if self.failure is not None else [])


def check_executors(runner: TaskRunner) -> None:
    """Raises UnfitExecutorsError, with what differs and where, if tasks can't run on Spark's executors.

    Says so in the log and goes on if none comes within WAIT_SECONDS: pods of a busy cluster take longer.
    """
    context = runner.spark.sparkContext
    if runs_tasks_in_this_python(context):
        return
    places: set[_Place] = set()
    try:
        # The first look waits for an executor, the second one finds those that came with it.
        for _ in range(2):
            places |= _look(runner)
    except TimeoutError:
        log.warning(
            "No executor of Spark came within %.0f s, so whether they can run tasks is not known: is there"
            " room for them, and can they reach this driver?",
            WAIT_SECONDS,
        )
        return
    except Exception as error:
        raise UnfitExecutorsError(
            f"Spark's executors can't run this worker's tasks: {_cause(error)}. {REMEDY}"
        ) from error
    unfit = sorted(
        f"{place.python} on {place.host}: {', '.join(place.faults())}" for place in places if place.faults()
    )
    if unfit:
        raise UnfitExecutorsError(
            f"Spark's executors can't run this worker's tasks: {'; '.join(unfit)}. {REMEDY}"
        )
    log.info("Spark's executors run tasks with the same packages; places looked at: %d", len(places))


def _look(runner: TaskRunner) -> set[_Place]:
    """Raises TimeoutError if no executor comes, and Spark's error if one can't even look."""
    context = runner.spark.sparkContext
    deadline = time.monotonic() + WAIT_SECONDS

    def wait(done: int, _total: int) -> None:
        if not done and time.monotonic() > deadline:
            raise TimeoutError

    slots = max(2, context.defaultParallelism)
    looks = context.parallelize(range(slots), slots).map(_probe(PACKAGES))
    return {_Place(*found) for found in runner.watched(looks.collect, on_progress=wait, about="start")}


def _probe(packages: Sequence[str]) -> Callable[[int], tuple[str, str, tuple[str | None, ...], str | None]]:
    """What a task looks at. It is pickled as code, since this module may be missing there."""

    def probe(_: int) -> tuple[str, str, tuple[str | None, ...], str | None]:
        import importlib.metadata
        import socket
        import sys

        versions: list[str | None] = []
        for name in packages:
            try:
                versions.append(importlib.metadata.version(name))
            except importlib.metadata.PackageNotFoundError:
                versions.append(None)
        failure = None
        try:
            importlib.import_module("worker.jobs.pipeline")
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        return socket.gethostname(), sys.executable, tuple(versions), failure

    return probe


def _cause(error: Exception) -> str:
    """The line of Spark's words that says what is wrong with an executor's Python."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    signs = ("PYTHON_VERSION_MISMATCH", "Cannot run program", "Error: ")
    found = (line for sign in signs for line in lines if sign in line)
    return next(found, lines[0] if lines else type(error).__name__)
