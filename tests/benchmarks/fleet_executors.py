"""How the first index of a table grows with Spark's executors, where its store is far away."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.fleet_processes import Fleet, running_fleet
from tests.standalone_spark import EXECUTORS, standalone_cluster

_ROOT = Path(__file__).parents[2]
_STAGE = "index"
_OFF = {"enabled": False}
_MANUAL = {
    "index": _OFF,
    "convert": _OFF,
    "compact": _OFF,
}
FILES, FILE_ROWS = 5_460, 10_240
"""More rows than the driver reads by itself, of files so small that they mostly wait for the store, in
tasks alike."""
_CATALOG = "sql"
_PATIENCE_SECONDS = 1800


@dataclass(frozen=True)
class Build:
    """The first index of a table by one worker and its executors."""

    executors: int
    rows: int
    seconds: float
    stage_seconds: float
    """Of the stage that reads and sorts."""
    tasks: int
    """Of this stage, on executors."""
    cores: float
    """That were busy with it all."""

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    @property
    def stage_rate(self) -> float:
        return self.rows / self.stage_seconds

    def row(self, first: Build) -> Sequence[object]:
        """first: the one that growth is seen from."""
        times = self.executors / first.executors
        return (
            self.executors,
            self.tasks,
            f"{self.seconds:.1f} s",
            f"{self.rate / 1e6:.2f} M",
            f"{self.rate / first.rate / times:.2f}",
            f"{self.stage_seconds:.1f} s",
            f"{self.stage_rate / first.stage_rate / times:.2f}",
            f"{self.cores:.2f}",
        )


def measure_builds(executors: Sequence[int], files: int, rows: int, wait_seconds: float) -> Sequence[Build]:
    """A table for each number of executors, of so many files and rows in each of them."""
    catalogs = 2  # of which tables are made in turn
    with running_fleet(catalogs * len(executors), (rows, rows), wait_seconds, _MANUAL) as fleet:
        tables = [(id_, table) for id_, table in fleet.tables.items() if table.catalog == _CATALOG]
        found = []
        for (table_id, table), count in zip(tables, executors, strict=True):
            table.load(files - 1)  # it has one
            found.append(_build(fleet, table_id, count, files * rows))
            print(" | ".join(map(str, found[-1].row(found[0]))), flush=True)  # noqa: T201
        return found


def _build(fleet: Fleet, table_id: str, executors: int, rows: int) -> Build:
    modules = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    conf = " ".join(f"--conf {key}={value}" for key, value in EXECUTORS.items())
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="icestream-spark-")))
        master = stack.enter_context(standalone_cluster(directory, {"PYTHONPATH": modules}, executors))
        place = {
            "ICESTREAM_SPARK_MASTER": master,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_SUBMIT_ARGS": f"{conf} pyspark-shell",
        }
        stack.enter_context(fleet.working(1, slots=1, store_processes=executors, **place))
        return _measured(fleet, table_id, executors, rows)


def _measured(fleet: Fleet, table_id: str, executors: int, rows: int) -> Build:
    job = fleet.http.post(f"/tables/{table_id}/jobs", json={"kind": "index"}).raise_for_status().json()
    samples: list[tuple[float, float]] = []  # since the worker has it, whose Spark starts before
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while job["status"] in ("queued", "running"):
        assert time.monotonic() < deadline, f"the index is not built: {job}"
        time.sleep(0.2)
        job = fleet.http.get(f"/jobs/{job['id']}").raise_for_status().json()
        if job["status"] == "running":
            samples.append((time.monotonic(), fleet.all_cpu))
    assert job["status"] == "succeeded", job
    (began, before), (ended, after) = samples[0], samples[-1]
    (attempt,) = job["attempts"]
    (stage,) = [one for one in attempt["stages"] if one["name"] == _STAGE]
    return Build(
        executors,
        rows,
        attempt["seconds"],
        stage["seconds"],
        stage["tasks_on_spark"],
        (after - before) / max(ended - began, 0.1),
    )
