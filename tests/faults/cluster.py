"""A service and real workers with Spark, whose faults a test sets while they run."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from tests.factories import SMALL_TABLES
from tests.faults.control_plane import LEASE_SECONDS, SCHEDULER_SECONDS
from tests.faults.forked import Process
from tests.faults.injection import DIRECTORY_VARIABLE, FAULTS_FILE_VARIABLE, Fault, Faults, fired
from tests.faults.proxy import Proxy
from tests.faults.recovery import Recovery, read_watched
from tests.faults.service_build import HURRY, OVERDUE, PASSED
from tests.integration.icestream import FINAL, Json
from tests.jobs import CatalogRecord, indexes_in_use
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.server_process import free_port

ROOT = Path(__file__).parents[2]
PYTHON_DAEMON = "tests.faults.python_daemon"
_OFF = {"enabled": False}
IMPATIENT: Json = {  # a policy under which nothing runs by itself, and no attempt waits long for the next
    "retries": {"max_attempts": 6, "backoff_seconds": 0.2, "max_backoff_seconds": 1, "pause_seconds": 1},
    "index": _OFF,
    "convert": _OFF,
    "compact": _OFF,
    "publish": _OFF,
}


def submit_arguments(conf: Mapping[str, str]) -> str:
    """Of a worker's Spark, for PYSPARK_SUBMIT_ARGS."""
    settings = {**SMALL_TABLES, "spark.python.daemon.module": PYTHON_DAEMON, **conf}
    return " ".join([*(f"--conf {key}={value}" for key, value in settings.items()), "pyspark-shell"])


class Cluster:
    """One service, and workers that are started again whenever they die."""

    def __init__(
        self,
        directory: Path,
        allowed: Sequence[str],
        workers: int = 2,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """directory: of everything, empty. allowed: locations that catalogs and tables may name.

        environment: of the workers, on top of what all have.
        """
        self.directory = directory
        self._faults_file = directory / "faults.json"
        self._cases = 0
        self.service_place = directory / "service"
        """Where the service is told what time it is, and notes what it watched."""
        self.service_place.mkdir()
        self._port = free_port()
        self.network = Proxy(self._port)
        """Between the workers and the service."""
        key = secrets.token_urlsafe(32)
        self._environment = {
            **os.environ,
            "ICESTREAM_DATA_DIR": str(directory / "data"),
            "ICESTREAM_BOOTSTRAP_KEY": key,
            "ICESTREAM_ALLOWED_LOCATIONS": ",".join(allowed),
            "ICESTREAM_LEASE_SECONDS": str(LEASE_SECONDS),
            "ICESTREAM_ERASURE_SECRET": "what hashes the keys of these tests",
            "ICESTREAM_RECEIPT_SECRET": f"whsec_{b64encode(bytes(32)).decode()}",
            "ICESTREAM_POLL_INTERVAL_SECONDS": "1",
            "ICESTREAM_SCHEDULER_INTERVAL_SECONDS": str(SCHEDULER_SECONDS),
            "ICESTREAM_PORT": str(self._port),
            DIRECTORY_VARIABLE: str(self.service_place),
            "ICESTREAM_URL": f"http://127.0.0.1:{self.network.port}",
            "ICESTREAM_API_KEY": key,
            "ICESTREAM_SPARK_MASTER": "local[2]",
            "ICESTREAM_DRIVER_MEMORY": "512m",
            FAULTS_FILE_VARIABLE: str(self._faults_file),
            "PYSPARK_SUBMIT_ARGS": submit_arguments({}),
            # With what the tests themselves run by, such as another version of Spark.
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            **(environment or {}),
        }
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self._port}/api/v1",
            headers={"Authorization": f"Bearer {key}"},
            timeout=PATIENCE_SECONDS,
        )
        self._service = Process("tests.faults.service_build", self._environment, directory / "service.log")
        self.network.__enter__()
        self._start_service()
        self.post("/policies", {"name": "impatient", "settings": IMPATIENT})
        self.workers = [WorkerProcess(self, number) for number in range(workers)]

    def _start_service(self) -> None:
        self._service.start()
        wait_until(self._is_ready, "the service to be ready")

    def kill_service(self) -> None:
        """And start it again."""
        self._service.kill()
        self._start_service()

    @property
    def index_place(self) -> Path:
        return self.directory / "data" / "index"

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self._service.kill()
        self.network.__exit__()
        self.http.close()

    def start(
        self, arguments: Sequence[str], name: str, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        folder = self.directory / name
        folder.mkdir(parents=True, exist_ok=True)
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *arguments],
                env={**self._environment, **environment},
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _is_ready(self) -> bool:
        assert self._service.is_alive, self._service.log.read_text()[-4000:]
        try:
            return self.http.get(f"http://127.0.0.1:{self._port}/readyz").is_success
        except httpx.TransportError:
            return False

    # faults

    def inject(self, *faults: Fault) -> Path:
        """From now on, these and no others; the directory in which they are counted."""
        self._cases += 1
        directory = self.directory / f"fired-{self._cases}"
        directory.mkdir()
        Faults(faults, directory).write(self._faults_file)
        return directory

    def wait_until_fired(self, directory: Path, fault: Fault) -> None:
        wait_until(lambda: fired(directory, fault) == fault.times, f"{fault} to fire")

    def lose_attempts(self, attempts: int = 1) -> None:
        """Let the service's time pass until it gives up so many: all that run, whose workers are silent."""
        self._let_pass(HURRY, str(attempts))

    def end_overdue_attempt(self) -> None:
        """Let the time pass that a policy gives the attempt that runs, and a lease more."""
        self._let_pass(OVERDUE, "")

    def _let_pass(self, name: str, content: str) -> None:
        file = self.service_place / name
        file.write_text(content)
        wait_until(lambda: not file.exists(), "the service to end what is late")

    def at(self, seconds: float) -> AbstractContextManager[None]:
        """Meanwhile, the service's clock is off by so much, and no longer by what was let pass."""
        passed = self.service_place / PASSED
        passed_seconds = float(passed.read_text()) if passed.exists() else 0.0
        return _written(self.service_place / "clock", str(seconds - passed_seconds))

    def limits(self, **seconds: float) -> AbstractContextManager[None]:
        """For jobs that are claimed meanwhile: jvm_silence_seconds, and hung_seconds on top of a lease."""
        return _written(self.directory / "limits", json.dumps(seconds))

    def room(self, size_bytes: int) -> AbstractContextManager[None]:
        """For each sort of a worker's meanwhile, on top of what it has taken."""
        return _written(self.directory / "room", str(size_bytes))

    def on_spark(self) -> AbstractContextManager[None]:
        """Stages run in Spark's Python processes meanwhile, as large ones do."""
        return _written(self.directory / "on-spark", "")

    # HTTP

    def get(self, path: str, **parameters: Any) -> Json:
        return _content(self.http.get(path, params=parameters))

    def post(self, path: str, body: Json) -> Json:
        return _content(self.http.post(path, json=body))

    def register(self, catalog: CatalogRecord) -> None:
        self.post("/catalogs", {"name": catalog.name, "type": catalog.type, "properties": catalog.properties})

    def enroll(
        self, identifier: str, *, key_sets: Sequence[Sequence[str]] | None = None, policy: str = "impatient"
    ) -> str:
        """identifier: catalog.namespace.table."""
        catalog, *table = identifier.split(".")
        body: Json = {"catalog": catalog, "identifier": table, "policy": policy}
        if key_sets is not None:
            body["key_sets"] = [list(key) for key in key_sets]
        table_id: str = self.post("/tables", body)["id"]
        return table_id

    def submit(self, table_id: str, kind: str, **how: Any) -> str:
        """how: whether it is a dry run, and its parameters."""
        indexes_in_use.add(self._environment.get("ICESTREAM_INDEX_WAREHOUSE") or self.index_place.as_uri())
        job_id: str = self.post(f"/tables/{table_id}/jobs", {"kind": kind, **how})["id"]
        return job_id

    def wait_for_job(self, job_id: str) -> Json:
        def ended() -> Json | None:
            job = self.get(f"/jobs/{job_id}")
            return job if job["status"] in FINAL else None

        return wait_until(ended, f"job {job_id}")

    def run(self, table_id: str, kind: str, **how: Any) -> Json:
        """The result of a job, which must succeed."""
        job = self.wait_for_job(self.submit(table_id, kind, **how))
        assert job["status"] == "succeeded", job["error"]
        result: Json = job["result"]
        return result

    def recovery(self, job_id: str, lost: Json, following: Json) -> Recovery:
        """Of an attempt that was lost and the one after it."""
        (worker,) = [
            one for one in self.get("/workers", limit=200)["items"] if one["id"] == following["worker_id"]
        ]
        return Recovery.of(
            read_watched(self.service_place)[job_id, lost["attempt"]],
            heard_at=datetime.fromisoformat(lost["lease_expires_at"]) - timedelta(seconds=LEASE_SECONDS),
            given_up_at=datetime.fromisoformat(lost["ended_at"]),
            free_at=datetime.fromisoformat(worker["registered_at"]),
            followed_at=datetime.fromisoformat(following["started_at"]),
        )

    def worker_of(self, attempt: Json) -> WorkerProcess:
        return next(worker for worker in self.workers if worker.name == attempt["worker_name"])


class WorkerProcess:
    """A worker that is started again whenever it ends."""

    def __init__(self, cluster: Cluster, number: int, environment: Mapping[str, str] | None = None) -> None:
        self.name = f"worker-{number}"
        self._cluster = cluster
        self._environment = {"ICESTREAM_WORKER_NAME": self.name, **(environment or {})}
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._process = self._start()
        self._keeper = threading.Thread(target=self._keep, name=self.name, daemon=True)
        self._keeper.start()

    def _start(self) -> subprocess.Popen[bytes]:
        return self._cluster.start(["-m", "tests.faults.worker_build"], self.name, self._environment)

    def _keep(self) -> None:
        while not self._closing.wait(0.1):
            if self._process.poll() is not None:
                self._kill_group()
                with self._lock:
                    if not self._closing.is_set():
                        self._process = self._start()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def send_to_jvm(self, number: signal.Signals) -> None:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        (java,) = [pid for pid in children if Path(f"/proc/{pid}/comm").read_text() == "java\n"]
        os.kill(int(java), number)

    @property
    def log(self) -> str:
        return (self._cluster.directory / f"{self.name}.log").read_text()

    def gave_up(self, told: int) -> bool:
        """Whether its log has it, beyond the characters that it had told before."""
        return any(words in self.log[told:] for words in ("was taken away", "came too late"))

    @property
    def pid(self) -> int:
        return self._process.pid

    def _kill_group(self) -> None:
        """Spark's JVM belongs to it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            self._process.kill()
            self._kill_group()
        self._process.wait()
        self._keeper.join()


@contextmanager
def _written(file: Path, content: str) -> Iterator[None]:
    file.write_text(content)
    try:
        yield
    finally:
        file.unlink()


def _content(response: httpx.Response) -> Json:
    assert response.is_success, f"{response.request.method} {response.request.url}: {response.text}"
    content: Json = response.json()
    return content
