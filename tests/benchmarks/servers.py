"""Real processes that benchmarks ask over HTTP on loopback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from service.db.database import migrate
from tests.benchmarks.datasets import Dataset
from tests.benchmarks.measure import descendants, high_water_mark
from tests.patience import PATIENCE_SECONDS

KEY = "admin-key-of-this-benchmark-0123456789"
SERVE = [sys.executable, "-c", "from service.command.main import main; main()", "serve"]
LOOK_UP = [sys.executable, "-m", "worker.lookup_server.main"]
WORK = [sys.executable, "-m", "worker.agent.main"]
_PATIENCE_SECONDS = 120


@contextmanager
def running(command: Sequence[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block."""
    with log.open("w") as output:
        process = subprocess.Popen(command, env=os.environ | environment, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@contextmanager
def server(
    command: Sequence[str], log: Path, **environment: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Its URL, which its log tells, and its process."""
    with running(command, log, **environment) as process:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not (found := re.search(r"http://127\.0\.0\.1:[1-9]\d*", log.read_text())):
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"it did not start: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield found.group(), process


@dataclass(frozen=True)
class Service:
    """The service and one worker, as processes, with one table that has an index."""

    url: str
    http: httpx.Client
    """Of its API."""
    directory: Path
    worker: int
    """The id of its process."""
    table_id: str

    def run(self, kind: str) -> dict[str, Any]:
        """A job to its end, which it must reach."""
        job = self.http.post(f"/tables/{self.table_id}/jobs", json={"kind": kind}).raise_for_status().json()
        while job["status"] not in ("succeeded", "failed"):
            time.sleep(0.5)
            job = self.http.get(f"/jobs/{job['id']}").raise_for_status().json()
        assert job["status"] == "succeeded", job
        return dict(job)

    @property
    def worker_memory(self) -> int:
        """Bytes that the worker and its JVM took at most."""
        return sum(map(high_water_mark, [self.worker, *descendants(self.worker)]))


@contextmanager
def served(dataset: Dataset, **enrolled: Any) -> Iterator[Service]:
    """With the table of the dataset, by the policy `manual`; enrolled: what else its enrolment says."""
    with tempfile.TemporaryDirectory(prefix="icestream-served-") as name:
        directory, catalog = Path(name), dataset.catalog
        settings = {
            "ICESTREAM_DATA_DIR": str(directory / "service"),
            "ICESTREAM_ALLOWED_LOCATIONS": f"{dataset.directory.parent.as_uri()},{directory.as_uri()}",
            "ICESTREAM_BOOTSTRAP_KEY": KEY,
            "ICESTREAM_REQUESTS_PER_MINUTE": "0",
            "ICESTREAM_INDEX_WAREHOUSE": (directory / "index").as_uri(),
            "ICESTREAM_PORT": "0",
        }
        migrate(f"sqlite:///{directory}/service/icestream.db")
        headers = {"Authorization": f"Bearer {KEY}"}
        with server(SERVE, directory / "service.log", **settings) as (url, _):
            worker = {"ICESTREAM_URL": url, "ICESTREAM_API_KEY": KEY, "ICESTREAM_WORKER_NAME": "benchmark"}
            with (
                running(WORK, directory / "worker.log", **worker) as process,
                httpx.Client(base_url=f"{url}/api/v1", headers=headers, timeout=PATIENCE_SECONDS) as http,
            ):
                record = {"name": catalog.name, "type": "sql", "properties": catalog.properties}
                http.post("/catalogs", json=record).raise_for_status()
                body = {"catalog": catalog.name, "identifier": ["db", "t"], "policy": "manual"}
                answer = http.post("/tables", json=body | {"key_sets": [dataset.kind.key]} | enrolled)
                assert answer.is_success, answer.text
                service = Service(url, http, directory, process.pid, answer.json()["id"])
                service.run("index")
                yield service
