"""The worker with faults at named points: `python -m tests.faults.worker_build`. Only tests start it.

It is the real worker, in which the points are wrapped. What happens where says a file, named by
ICESTREAM_FAULTS_FILE, that a test may write anew at any time; the real worker knows nothing of it. Points:
`stage.NAME`, the calls to the service (`claim`, `heartbeat`, `addresses`, `finish`), and what is written:
`run` (a file of the index), `snapshot` (any of the index), `entries` and `dictionary` (theirs),
`delete-file` (one), `delete-files` (all of a task), `iceberg` (the commit), `clearing` (the commit that
takes published files off their branch), `drop`, `abandoned-files` (of dead attempts: found, to be removed),
`removal` (of one file). What an action of Iceberg's commits by itself, it commits in the stage of that name.
A file `limits` beside it gives limits of the worker's to whoever claims a job then.
"""

import errno
import functools
import json
import os
import re
import resource
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JNetworkError

import worker.agent.main
import worker.deletes.stage
import worker.deletes.write
import worker.index.build
import worker.index.compaction
import worker.jobs.files_of_dead_attempts
import worker.lookup.index_lookup
import worker.spark.tasks
import worker.table.row_delta
from staging.history import CLEARED
from tests.faults.injection import FAULTS_FILE_VARIABLE, Faults, InjectedError
from worker.attempt.job import Job
from worker.contract.control_plane import AttemptReport, ControlPlane, ControlPlaneError
from worker.index.run_files import RunWriter
from worker.index.sorted_runs import RunTable
from worker.index.warehouse import IndexWarehouse
from worker.io.storage import Storage
from worker.jobs.file_rewriting import BYTES
from worker.spark.tasks import TaskRunner

JVM_SILENCE_SECONDS = 12.0  # and not a minute
HUNG_SECONDS = worker.agent.reporter.HUNG_SECONDS

Failure = Callable[[], Exception]
Sort = Callable[[pa.Table], pa.Table]


def disk_full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_answer() -> Exception:
    return OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))


def no_service() -> ControlPlaneError:
    return ControlPlaneError("injected: the service does not answer")


def no_jvm() -> Py4JNetworkError:
    return Py4JNetworkError("injected: no answer from Java")


def passes(point: str, when: Any, failure: Failure) -> None:
    try:
        Faults.from_file(Path(os.environ[FAULTS_FILE_VARIABLE])).pass_through(point, when)
    except InjectedError as error:
        raise failure() from error


def wrap(owner: Any, name: str, point: str | Callable[[Any], str], failure: Failure) -> None:
    real = getattr(owner, name)

    @functools.wraps(real)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        where = point if isinstance(point, str) else point(arguments[0])
        passes(where, "before", failure)
        result = real(*arguments, **named)
        passes(where, "after", failure)
        return result

    setattr(owner, name, wrapped)


_one_sort = threading.Lock()


def sorting_in_room(sort: Sort) -> Sort:
    """A sort that may take as many bytes as a file `room` beside the faults says, if there is one.

    The limit is the kernel's. It counts from what the process has taken when the sort begins, which differs
    between machines; what the same rows take on top does not.
    """

    def sort_rows(table: pa.Table) -> pa.Table:
        try:
            room = int(Path(os.environ[FAULTS_FILE_VARIABLE]).with_name("room").read_text())
        except FileNotFoundError:
            return sort(table)
        with _one_sort:
            status = Path("/proc/self/status").read_text()
            taken = int(re.search(r"VmData:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]
            resource.setrlimit(resource.RLIMIT_DATA, (taken + room, resource.RLIM_INFINITY))
            try:
                return sort(table)
            finally:
                resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    return sort_rows


def choose_place(runner: TaskRunner) -> None:
    """Stages run on Spark, however small, while there is a file `on-spark` beside the faults."""
    if Path(os.environ[FAULTS_FILE_VARIABLE]).with_name("on-spark").exists():
        runner.local_rows = -1
    else:
        runner.local_rows = worker.spark.tasks.LOCAL_ROWS


def take_limits() -> None:
    """What the worker waits for a minute for, it may wait for shorter: see `Cluster.limits`."""
    try:
        limits = json.loads(Path(os.environ[FAULTS_FILE_VARIABLE]).with_name("limits").read_text())
    except FileNotFoundError:
        limits = {}
    worker.spark.jvm_watch.JVM_SILENCE_SECONDS = limits.get("jvm_silence_seconds", JVM_SILENCE_SECONDS)
    worker.agent.reporter.HUNG_SECONDS = limits.get("hung_seconds", HUNG_SECONDS)


def part_of_index(table: RunTable) -> str:
    return "entries" if "/entries_" in table.location else "dictionary"


class Commit:
    """An operation of Iceberg whose `commit` may fail, or succeed and say nothing."""

    def __init__(self, operation: Any, point: str = "iceberg") -> None:
        self._operation = operation
        self._point = point

    def commit(self) -> None:
        passes(self._point, "before", no_jvm)
        self._operation.commit()
        passes(self._point, "after", no_jvm)


def inject() -> None:
    claim = ControlPlane.claim

    @functools.wraps(claim)
    def claim_within_limits(*arguments: Any, **named: Any) -> Any:
        assignment = claim(*arguments, **named)
        take_limits()
        return assignment

    setattr(ControlPlane, "claim", claim_within_limits)  # noqa: B010 - its `self` has another name
    wrap(ControlPlane, "claim", "claim", no_service)
    run = TaskRunner.run

    def placed(runner: TaskRunner, *arguments: Any, **named: Any) -> Any:
        choose_place(runner)
        return run(runner, *arguments, **named)

    setattr(TaskRunner, "run", placed)  # noqa: B010 - its `self` has another name

    for sorts in (worker.index.build, worker.index.compaction, worker.lookup.index_lookup):
        setattr(sorts, "sort_rows", sorting_in_room(sorts.sort_rows))  # noqa: B010 - all import it by name
    wrap(AttemptReport, "heartbeat", "heartbeat", no_service)
    wrap(AttemptReport, "grant_row_addresses", "addresses", no_service)
    wrap(AttemptReport, "finish", "finish", no_service)
    wrap(RunWriter, "close", "run", disk_full)
    wrap(RunTable, "commit_files", part_of_index, no_answer)
    wrap(Storage, "create", "snapshot", no_answer)
    wrap(Storage, "delete", "removal", no_answer)
    wrap(worker.deletes.stage, "write_planned", "delete-files", disk_full)
    for write in ("_write_position_delete_file", "_write_puffin_file"):
        wrap(worker.deletes.write, write, "delete-file", disk_full)
    wrap(worker.jobs.files_of_dead_attempts, "written_files", "abandoned-files", no_answer)
    wrap(IndexWarehouse, "drop", "drop", no_answer)
    row_delta, stage = worker.table.row_delta.java_row_delta, Job.stage
    worker.table.row_delta.java_row_delta = lambda *arguments: Commit(row_delta(*arguments))
    described = worker.table.row_delta.described

    def described_commit(operation: Any, summary: Mapping[str, str], condemned: Any) -> Any:
        """Of those that are no row deltas."""
        found = described(operation, summary, condemned)
        if BYTES in summary:
            return Commit(found)
        return Commit(found, "clearing") if CLEARED in summary else found

    worker.table.row_delta.described = described_commit

    @contextmanager
    def faulty_stage(job: Job, name: str) -> Iterator[None]:
        passes(f"stage.{name}", "before", no_answer)
        with stage(job, name):
            yield
        passes(f"stage.{name}", "after", no_answer)

    setattr(Job, "stage", faulty_stage)  # noqa: B010 - its `self` has another name


if __name__ == "__main__":
    # Stacks, of which a job has dozens, leave what a test lets a worker take to the job's data.
    threading.stack_size(1024**2)
    inject()
    # What no commit names is cleaned up at once, and not after an hour: nobody else works on a job's table.
    worker.index.compaction.KEEP_SECONDS = 0.0
    for module in (worker.agent.reporter, worker.agent.worker):
        vars(module)["RETRY_SECONDS"] = 0.2
    take_limits()
    sys.exit(worker.agent.main.main())
