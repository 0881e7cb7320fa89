"""The service behind HTTP, and a worker of it in this process: jobs run when a test says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
from pyspark.sql import SparkSession

from service.settings import Settings
from tests.service.conftest import ADMIN_KEY, Running, running
from tests.soak.world import World
from worker.agent.worker import Worker
from worker.contract.control_plane import Assignment, AttemptId, ControlPlane
from worker.spark.tasks import TaskRunner

POLICY = "at-once"
"""Has no pauses: what is to be tried again is tried at once."""


class Served:
    """A world whose jobs go through the service. disturbances: how often somebody came in between a job."""

    def __init__(self, world: World, service: Running) -> None:
        self.world = world
        self.spark: SparkSession = world.spark
        self.http = service.admin
        self.disturbances = 0
        self._control_plane = ControlPlane(service.url, ADMIN_KEY)
        self._control_plane.register("w1")
        self._worker = Worker(self._control_plane, TaskRunner(world.spark))
        catalog = world.catalog
        self.post("/catalogs", {"name": catalog.name, "type": "sql", "properties": catalog.properties})
        retries = {"max_attempts": 100, "backoff_seconds": 0, "max_backoff_seconds": 0}
        self.post("/policies", {"name": POLICY, "settings": {"retries": retries}})

    @classmethod
    @contextmanager
    def serving(cls, world: World) -> Iterator[Served]:
        settings = Settings(
            data_dir=world.directory,
            database_url=f"sqlite:///{world.directory}/icestream.db",
            bootstrap_key=ADMIN_KEY,
            background=False,
            requests_per_minute=0,
        )
        with running(settings) as service:
            served = cls(world, service)
            try:
                yield served
            finally:
                served._control_plane.close()

    def post(self, path: str, body: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
        answer = self.http.post(
            path, json=body, headers={name.replace("_", "-"): headers[name] for name in headers}
        )
        assert answer.is_success, answer.text
        return dict(answer.json())

    def get(self, path: str) -> dict[str, Any]:
        answer = self.http.get(path)
        assert answer.is_success, answer.text
        return dict(answer.json())

    def enroll(self, identifier: str, key: Sequence[str]) -> str:
        """identifier: with its catalog. Returns the id."""
        catalog, *names = identifier.split(".")
        body = {"catalog": catalog, "identifier": names, "key_sets": [list(key)], "policy": POLICY}
        return str(self.post("/tables", body)["id"])

    def forget(self, table_id: str) -> None:
        answer = self.http.delete(f"/tables/{table_id}")
        assert answer.status_code == httpx.codes.NO_CONTENT, answer.text

    def claim(self, given_up: Sequence[AttemptId] = ()) -> Assignment | None:
        """given_up: attempts that this worker ran and did not report: they are lost now."""
        return self._control_plane.claim(0, given_up)

    def run(self, assignment: Assignment) -> bool:
        """Whether the end of the attempt was reported."""
        return self._worker.run_attempt(assignment)
