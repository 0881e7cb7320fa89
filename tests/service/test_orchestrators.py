"""The examples of docs/orchestrators.md, run by the real Airflow and Dagster against a service."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.patience import PATIENCE_SECONDS, wait_until
from tests.server_process import free_port
from tests.service.conftest import Running
from tests.service.iceberg_tables import IcebergCatalog

pytestmark = [
    pytest.mark.integration,
    pytest.mark.exhaustive,
    pytest.mark.parametrize("database_kind", ["sqlite"]),
]
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
LOST = {"code": "unreadable_file", "title": "Gone.", "detail": "a.parquet.", "remedy": "Restore it."}
CONVERTED = {"equality_delete_files_removed": 3, "rows_deleted": 17}


class Worker:
    """Stands in for a worker: takes each job that comes, and lets a test say how it goes."""

    def __init__(self, service: Running) -> None:
        self._service = service
        self._id = service.start_worker()

    def take(self) -> Attempt:
        found = wait_until(lambda: self._service.claim(self._id, wait_seconds=1), "a job to be asked for")
        return Attempt(self._service, found)


class Attempt:
    def __init__(self, service: Running, assignment: dict[str, Any]) -> None:
        self._service = service
        self._assignment = assignment
        self.job_id = str(assignment["job"]["id"])

    def tell(self, words: str) -> None:
        """As a line of the worker's log."""
        self._beat([{"kind": "log", "level": "warning", "message": words}])

    def _beat(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        path = f"/jobs/{self.job_id}/attempts/{self._assignment['attempt']}/heartbeat"
        answer = self._service.admin.post(path, json={"events": events})
        assert answer.is_success, answer.text
        return dict(answer.json())

    def succeed(self) -> None:
        assert self._service.finish(self._assignment, result=CONVERTED).is_success

    def fail(self) -> None:
        assert self._service.finish(self._assignment, status="failed", error=LOST).is_success

    def wait_for_cancel(self) -> None:
        wait_until(lambda: self._beat([])["cancel_requested"], "the job to be cancelled")
        assert self._service.finish(self._assignment, status="cancelled").is_success


@pytest.fixture
def worker(service: Running, iceberg: IcebergCatalog) -> Worker:
    service.register(iceberg)
    iceberg.create("sales.orders")
    service.enroll("sales.orders")
    return Worker(service)


@pytest.fixture
def key(service: Running) -> str:
    """One that may do what docs/orchestrators.md gives a pipeline, and no more."""
    body = {"name": "pipeline", "role": "operator", "scopes": ["jobs:write", "tables:read"]}
    return str(service.admin.post("/api-keys", json=body).json()["key"])


def jobs(service: Running) -> list[dict[str, Any]]:
    """Oldest first."""
    found: list[dict[str, Any]] = service.admin.get("/jobs").json()["items"]
    return found[::-1]


# Dagster


class Dagster:
    """Runs the assets of the example."""

    def __init__(self, service: Running, key: str, home: Path) -> None:
        home.mkdir()
        (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
        self._environment = {
            "PATH": f"{ROOT}/build/dagster/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "DAGSTER_HOME": str(home),
            "ICESTREAM_URL": service.url,
            "ICESTREAM_API_KEY": key,
        }
        self._log = home / "run.log"

    @contextmanager
    def run(self, **tags: str) -> Iterator[subprocess.Popen[bytes]]:
        example = EXAMPLES / "dagster" / "sales_report.py"
        command = ["dagster", "job", "execute", "-f", str(example), "-j", "__ASSET_JOB"]
        command += ["--tags", json.dumps({f"dagster/{name}": value for name, value in tags.items()})]
        with self._log.open("wb") as log:
            process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    @property
    def said(self) -> str:
        return self._log.read_text()


@pytest.fixture
def dagster(service: Running, key: str, tmp_path: Path) -> Dagster:
    return Dagster(service, key, tmp_path / "dagster")


def test_an_asset_is_made_once_its_table_is_converted(
    service: Running, worker: Worker, dagster: Dagster
) -> None:
    with dagster.run() as run:
        first = worker.take()
        first.fail()
        # The retry asks for another one.
        second = worker.take()
        second.tell("The index covers 80 of 80 data files")
        second.succeed()
        assert run.wait(PATIENCE_SECONDS) == 0, dagster.said
    assert [job["status"] for job in jobs(service)] == ["failed", "succeeded"]
    assert "a.parquet. Restore it." in dagster.said
    assert "The index covers 80 of 80 data files" in dagster.said
    assert "sales_report" in dagster.said.partition("RUN_SUCCESS")[0]


def test_a_run_of_dagsters_that_is_ended_cancels_its_job(worker: Worker, dagster: Dagster) -> None:
    with dagster.run() as run:
        attempt = worker.take()
        attempt.tell("reading")
        wait_until(lambda: "reading" in dagster.said, "the job to be followed")
        run.send_signal(signal.SIGINT)
        attempt.wait_for_cancel()
        assert run.wait(PATIENCE_SECONDS) != 0


def test_a_run_of_dagsters_that_is_tried_again_takes_up_its_job(
    service: Running, worker: Worker, dagster: Dagster
) -> None:
    with dagster.run():
        attempt = worker.take()
        attempt.tell("reading")
        wait_until(lambda: "reading" in dagster.said, "the job to be followed")
    (first_run,) = set(re.findall(r" - __ASSET_JOB - ([0-9a-f-]{36}) - ", dagster.said))
    # As Dagster's daemon does it, for a run whose process died.
    with dagster.run(retry_number="1", root_run_id=first_run) as run:
        wait_until(lambda: attempt.job_id in dagster.said, "the job to be taken up")
        attempt.succeed()
        assert run.wait(PATIENCE_SECONDS) == 0, dagster.said
    assert [job["id"] for job in jobs(service)] == [attempt.job_id]


# Airflow


class Airflow:
    """All of its processes but that for logs, with the example in its folders."""

    def __init__(self, service: Running, key: str, home: Path) -> None:
        home.mkdir()
        for folder in ("dags", "plugins"):
            (home / folder).symlink_to(EXAMPLES / "airflow" / folder)
        port = free_port()
        connection = {"conn_type": "http", "host": service.url, "password": key}
        settings = {
            "api__base_url": f"http://127.0.0.1:{port}",
            "api_auth__jwt_secret": "of these tests, and as long as it has to be: " + "x" * 64,
            "core__execution_api_server_url": f"http://127.0.0.1:{port}/execution/",
            "core__load_examples": "False",
            "core__simple_auth_manager_all_admins": "True",
            # So that no test waits for Airflow's pauses.
            "core__default_task_retry_delay": "1",
            "dag_processor__refresh_interval": "5",
        }
        self._environment = {
            "HOME": str(home),
            "PATH": f"{ROOT}/build/airflow/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "AIRFLOW_HOME": str(home),
            "AIRFLOW_CONN_ICESTREAM": json.dumps(connection),
            **{f"AIRFLOW__{name.upper()}": value for name, value in settings.items()},
        }
        self._home = home
        self._started: list[subprocess.Popen[bytes]] = []
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS)
        self._commands = (
            ["api-server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"],
            ["dag-processor"],
            ["scheduler", "--skip-serve-logs"],
            ["triggerer", "--skip-serve-logs"],
        )

    def __enter__(self) -> Airflow:
        subprocess.run(["airflow", "db", "migrate"], env=self._environment, check=True, capture_output=True)
        for command in self._commands:
            with (self._home / f"{command[0]}.log").open("wb") as log:
                self._started.append(
                    subprocess.Popen(
                        ["airflow", *command],
                        env=self._environment,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        wait_until(self._is_ready, "Airflow to know the DAG")
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        for process in reversed(self._started):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _is_ready(self) -> bool:
        for process, command in zip(self._started, self._commands, strict=True):
            assert process.poll() is None, (self._home / f"{command[0]}.log").read_text()[-4000:]
        try:
            if "Authorization" not in self._http.headers:
                token = self._http.get("/auth/token").raise_for_status().json()["access_token"]
                self._http.headers["Authorization"] = f"Bearer {token}"
            return self._http.patch("/api/v2/dags/sales_report", json={"is_paused": False}).is_success
        except httpx.HTTPError:
            return False

    def run(self) -> str:
        """The id of the run that follows from the schedule."""

        def found() -> str | None:
            runs = self._http.get("/api/v2/dags/sales_report/dagRuns").json()["dag_runs"]
            return str(runs[0]["dag_run_id"]) if runs else None

        return wait_until(found, "a run of the DAG")

    def mark_as_failed(self, run_id: str, task: str) -> None:
        path = f"/api/v2/dags/sales_report/dagRuns/{run_id}/taskInstances/{task}"
        answer = self._http.patch(path, json={"new_state": "failed"})
        assert answer.is_success, answer.text

    def clear(self, run_id: str, task: str) -> None:
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": [task], "only_failed": False}
        answer = self._http.post("/api/v2/dags/sales_report/clearTaskInstances", json=body)
        assert answer.is_success, answer.text

    def wait_for(self, run_id: str, task: str, state: str) -> None:
        path = f"/api/v2/dags/sales_report/dagRuns/{run_id}/taskInstances/{task}"
        wait_until(lambda: self._http.get(path).json().get("state") == state, f"{task} to be {state}")

    def logs(self, run_id: str, task: str) -> str:
        """Of all its tries, also in the triggerer."""
        folder = self._home / "logs" / "dag_id=sales_report" / f"run_id={run_id}" / f"task_id={task}"
        return "\n".join(path.read_text() for path in sorted(folder.iterdir()))


def test_tasks_end_as_their_jobs_do_and_cancel_them(
    service: Running, worker: Worker, key: str, tmp_path: Path
) -> None:
    with Airflow(service, key, tmp_path / "airflow") as airflow:
        run = airflow.run()
        # A try whose job has failed is followed by one with another job.
        worker.take().fail()
        second = worker.take()
        second.tell("The index covers 80 of 80 data files")
        airflow.wait_for(run, "convert", "deferred")
        second.succeed()
        airflow.wait_for(run, "report", "success")
        told = airflow.logs(run, "convert")
        assert "a.parquet. Restore it." in told
        assert "The index covers 80 of 80 data files" in told
        assert "3 equality delete files are gone" in airflow.logs(run, "report")
        assert [job["status"] for job in jobs(service)] == ["failed", "succeeded"]

        # Who clears a task means a new job, and who marks it as failed no job at all.
        airflow.clear(run, "convert")
        third = worker.take()
        third.tell("reading")
        wait_until(lambda: "reading" in airflow.logs(run, "convert"), "the job to be followed")
        airflow.mark_as_failed(run, "convert")
        third.wait_for_cancel()
        assert len(jobs(service)) == 3
