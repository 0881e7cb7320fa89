"""The real worker with a job that only pretends: tests.faults.forked runs it. No Spark.

What it does to its "table" is a line in a journal, one file a table. It reads that first, as a conversion
looks for its job id in the history. STUB_JOURNAL names the directory, STUB_SECONDS how long a job takes.
While there is a file `hold` in that directory, no job ends.
"""

import fcntl
import importlib
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from worker.agent.reporter import AttemptReporter
    from worker.attempt.outcome import Outcome
    from worker.contract.control_plane import Assignment
    from worker.spark.tasks import TaskRunner


@dataclass
class Usage:
    """As the worker's own; nothing counts here."""


def run_job(
    assignment: "Assignment", _runner: "TaskRunner", reporter: "AttemptReporter", _usage: Usage
) -> "Outcome":
    """Reserve addresses, work, confirm the lease, and commit unless an attempt before has committed."""
    job_id, attempt = assignment.job.id, assignment.attempt
    base = reporter.grant_row_addresses(10, 0)
    note("addresses", f"{assignment.table.table_uuid} {base} {job_id} {attempt}")
    hold, seconds = _journal() / "hold", float(os.environ["STUB_SECONDS"])
    while hold.exists():
        time.sleep(0.02)
    for step in range(4):
        reporter.progress("work", step, 4, "steps")
        time.sleep(seconds / 4)
    is_repeated = any(line.split()[0] == job_id for line in journal(assignment.table.id))
    if not is_repeated:
        reporter.confirm_lease()
        commit(assignment.table.id, job_id, attempt)
    return cast("Outcome", SimpleNamespace(result={"repeated": is_repeated}, health=None, cleared=()))


def commit(table_id: str, job_id: str, attempt: int) -> None:
    """As atomic as a commit to Iceberg, which refuses what would remove the same deletes again."""
    with (_journal() / table_id).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if any(line.split()[0] == job_id for line in file):
            note("refused", f"{job_id} {attempt}")
        else:
            file.write(f"{job_id} {attempt}\n")


def _journal() -> Path:
    return Path(os.environ["STUB_JOURNAL"])


def journal(table_id: str) -> list[str]:
    path = _journal() / table_id
    return path.read_text().splitlines() if path.exists() else []


def note(name: str, line: str) -> None:
    with (_journal() / name).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{line}\n")


def load() -> None:
    """Import the worker, without what takes seconds: Spark above all."""
    _stand_in("worker.jobs.pipeline", run_job=run_job)
    _stand_in("worker.attempt.job", Usage=Usage)
    _stand_in("worker.attempt.outcome", Outcome=SimpleNamespace)
    unfit, none = (type(name, (Exception,), {}) for name in ("UnfitExecutorsError", "ClusterError"))
    _stand_in("worker.spark.executors", UnfitExecutorsError=unfit, check_executors=None)
    _stand_in("worker.spark.tasks", TaskRunner=object)
    _stand_in("worker.spark.jvm_watch", JvmWatch=object)
    _stand_in("worker.spark.session", ClusterError=none, create_spark=None)
    # Jobs take a moment here, so what lies between two tries is short, too.
    for name in ("worker.agent.reporter", "worker.agent.worker"):
        vars(importlib.import_module(name))["RETRY_SECONDS"] = 0.2
    importlib.import_module("worker.agent.main")


def main() -> None:
    from worker.agent.main import WorkerSettings
    from worker.agent.worker import Worker
    from worker.contract.control_plane import ControlPlane

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    settings = WorkerSettings()
    control_plane = ControlPlane(settings.url, settings.api_key)
    stub = Worker(control_plane, cast("TaskRunner", SimpleNamespace(is_usable=True)))
    signal.signal(signal.SIGTERM, stub.stop)
    try:
        stub.run(settings.worker_name)
    finally:
        control_plane.close()


def _stand_in(name: str, **content: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(content)
    sys.modules[name] = module
