"""`icestream up` as a process of its own, and a thin client of its HTTP API."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.factories import Catalog
from tests.jobs import indexes_in_use
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.server_process import free_port

Json = dict[str, Any]
FINAL = {"succeeded", "failed", "cancelled"}


class Icestream:
    """`icestream up` on one data directory and port; may be stopped and started again."""

    def __init__(self, data_dir: Path, allowed_location: Path, *, lease_seconds: float = 60) -> None:
        """lease_seconds: so long a heartbeat may be held up, and a worker that is gone is not missed."""
        self.data_dir = data_dir
        self._port = free_port()
        self._key = secrets.token_urlsafe(32)
        self._environment = {
            **os.environ,
            "ICESTREAM_BOOTSTRAP_KEY": self._key,
            "ICESTREAM_ALLOWED_LOCATIONS": allowed_location.as_uri(),
            "ICESTREAM_LEASE_SECONDS": str(lease_seconds),
            # Short, so that a new snapshot is noticed while a test waits.
            "ICESTREAM_POLL_INTERVAL_SECONDS": "1",
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self._port}/api/v1",
            headers={"Authorization": f"Bearer {self._key}"},
            timeout=PATIENCE_SECONDS,
        )

    def start(self) -> None:
        command = [
            *(str(Path(sys.executable).with_name("icestream")), "up", "--no-browser"),
            *("--host", "127.0.0.1", "--port", str(self._port), "--data-dir", str(self.data_dir)),
        ]
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        wait_until(self._is_ready, "the service to be ready")

    def stop(self) -> None:
        """Ask it to stop, and fail if it does not end well."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(PATIENCE_SECONDS) == 0, self._log.read_text()[-4000:]
        self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.http.close()

    @property
    def _log(self) -> Path:
        return self.data_dir / "up.log"

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-4000:]
        try:
            return self.http.get(f"http://127.0.0.1:{self._port}/readyz").is_success
        except httpx.TransportError:
            return False

    @contextmanager
    def another_worker(self) -> Iterator[None]:
        """A second worker beside that of `up`, as on another machine."""
        environment = {
            **self._environment,
            "ICESTREAM_URL": f"http://127.0.0.1:{self._port}",
            "ICESTREAM_API_KEY": self._key,
            "ICESTREAM_WORKER_NAME": "another",
        }
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "worker.agent.main"], env=environment, stdout=log, stderr=log
            )
        try:
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)

    def command(self, *arguments: str) -> subprocess.Popen[str]:
        """A command of `icestream` about this service; what it tells a person is its standard error."""
        environment = {
            **os.environ,
            "ICESTREAM_URL": f"http://127.0.0.1:{self._port}",
            "ICESTREAM_API_KEY": self._key,
        }
        program = str(Path(sys.executable).with_name("icestream"))
        return subprocess.Popen(
            [program, *arguments],
            env=environment,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    # HTTP

    def get(self, path: str, **parameters: Any) -> Json:
        return _content(self.http.get(path, params=parameters))

    def post(self, path: str, body: Json) -> Json:
        return _content(self.http.post(path, json=body))

    def register(self, catalog: Catalog) -> Json:
        return self.post("/catalogs", {"name": catalog.name, "type": "sql", "properties": catalog.properties})

    def enroll(
        self,
        catalog: Catalog,
        table: str,
        *,
        policy: str = "manual",
        key_sets: Sequence[Sequence[str]] | None = None,
    ) -> str:
        """Enrol `namespace.table` and return its id; nothing runs by itself unless the policy says so."""
        body: Json = {"catalog": catalog.name, "identifier": table.split("."), "policy": policy}
        if key_sets is not None:
            body["key_sets"] = [list(key) for key in key_sets]
        table_id: str = self.post("/tables", body)["id"]
        return table_id

    def submit(self, table_id: str, kind: str, **more: Any) -> str:
        indexes_in_use.add((self.data_dir / "index").as_uri())
        job_id: str = self.post(f"/tables/{table_id}/jobs", {"kind": kind, **more})["id"]
        return job_id

    def wait_for_job(self, job_id: str) -> Json:
        """Return the job once it has ended, however it did."""

        def ended() -> Json | None:
            job = self.get(f"/jobs/{job_id}")
            return job if job["status"] in FINAL else None

        return wait_until(ended, f"job {job_id}")

    def run(self, table_id: str, kind: str, **more: Any) -> Json:
        """Run a job to its end and return its result; it must succeed. more: of the request."""
        job = self.wait_for_job(self.submit(table_id, kind, **more))
        assert job["status"] == "succeeded", job["error"]
        result: Json = job["result"]
        return result

    def jobs(self, table_id: str) -> list[Json]:
        """Return the table's jobs, newest first."""
        items: list[Json] = self.get("/jobs", table_id=table_id, limit=100)["items"]
        return items

    def health(self, table_id: str) -> Json:
        return self.get(f"/tables/{table_id}/health")

    def live_worker(self) -> Json:
        """Return the one worker that is alive, waiting for it to start."""

        def alive() -> Json | None:
            workers = [worker for worker in self.get("/workers")["items"] if worker["alive"]]
            return workers[0] if len(workers) == 1 else None

        return wait_until(alive, "one living worker")


@contextmanager
def running(service: Icestream) -> Iterator[Icestream]:
    try:
        service.start()
        yield service
        service.stop()
    finally:
        service.kill()


def _content(response: httpx.Response) -> Json:
    assert response.is_success, f"{response.request.method} {response.request.url}: {response.text}"
    content: Json = response.json()
    return content
