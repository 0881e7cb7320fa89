"""A service behind HTTP with a worker and a lookup server in this process, and acceptances of that."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr
from pyspark.sql import SparkSession

from icestream.connection import Connection
from service.settings import Settings
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import ADMIN_KEY, Running, listening, running, with_lookup_server
from worker.acceptance.lake import Lake
from worker.acceptance.run import Acceptance, Wanted, versions_here
from worker.acceptance.service import Service
from worker.agent.worker import Worker
from worker.contract.control_plane import ControlPlane
from worker.lookup_server.app import create_app as create_lookup_server
from worker.spark.tasks import TaskRunner

CATALOG = "lake"
NAMESPACE = "accepting"
_TOKEN = "t" * 32
_RECEIPT_SECRET = "whsec_" + "c2VjcmV0" * 6


@dataclass
class Working:
    spark: SparkSession
    service: Running
    _stopping: threading.Event = field(default_factory=threading.Event)

    @classmethod
    @contextmanager
    def on(
        cls,
        spark: SparkSession,
        directory: Path,
        kind: str,
        properties: Mapping[str, str],
        allowed: str,
        index: str | None = None,
    ) -> Iterator[Working]:
        """With one catalog. allowed: a place. index: where indexes go, if not on the local disk."""
        settings = Settings(
            data_dir=directory,
            database_url=f"sqlite:///{directory}/icestream.db",
            bootstrap_key=ADMIN_KEY,
            background=False,
            requests_per_minute=0,
            allowed_locations=(allowed,),
            index_warehouse=index or "",
            allowed_secrets=("env:LAKE_",),
            erasure_secret=SecretStr("what hashes the keys of these tests"),
            receipt_secret=SecretStr(_RECEIPT_SECRET),
        )
        with (
            listening(create_lookup_server(_TOKEN)) as url,
            running(with_lookup_server(settings, url, _TOKEN)) as service,
        ):
            body = {"name": CATALOG, "type": kind, "properties": dict(properties)}
            answer = service.admin.post("/catalogs", json=body)
            assert answer.status_code == 201, answer.text
            working, control_plane = cls(spark, service), ControlPlane(service.url, ADMIN_KEY)
            control_plane.register("w1")
            thread = threading.Thread(target=working._work, args=[control_plane], name="worker")
            thread.start()
            try:
                yield working
            finally:
                working._stopping.set()
                thread.join()
                control_plane.close()

    def _work(self, control_plane: ControlPlane) -> None:
        worker = Worker(control_plane, TaskRunner(self.spark))
        while not self._stopping.is_set():
            assignment = control_plane.claim(0.2)
            if assignment is not None:
                worker.run_attempt(assignment)

    @contextmanager
    def acceptance(self) -> Iterator[Acceptance]:
        with Connection(self.service.url, ADMIN_KEY, wait_seconds=PATIENCE_SECONDS) as connection:
            service = Service(connection, threading.Event())
            lake = Lake(self.spark.sparkContext._jvm, service.catalog(CATALOG))
            yield Acceptance(service, lake, Wanted(CATALOG, [NAMESPACE]))

    def versions(self) -> dict[str, str]:
        return versions_here(self.spark.sparkContext._jvm, self.spark.version)
