"""A real service process with a real Iceberg catalog, and a worker that is played over HTTP.

What the worker reports is made up; that it goes through the worker's own calls is not.
"""

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx

from service.auth.service import create_login_link
from service.db.database import Database, migrate
from service.records.api_keys import Role
from service.webhooks.signing import new_secret
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.service.conftest import PLAIN_HTTP, listening
from tests.service.iceberg_tables import IcebergCatalog
from worker.lookup_server.app import create_app as create_lookup_server

_SERVE = [sys.executable, "-c", "from service.command.main import main; main()", "serve"]


@dataclass
class RunningService:
    url: str
    database_url: str
    iceberg: IcebergCatalog
    """What the writers use; the service knows it as the catalog `local`."""
    api: httpx.Client
    """Signed with the admin's key."""
    admin_key: str

    def login_link(self, role: Role = Role.ADMIN) -> str:
        """As `icestream up` prints it."""
        database = Database(self.database_url)
        try:
            return create_login_link(database, self.url, name=role.value, role=role)
        finally:
            database.dispose()

    def post(self, path: str, **body: Any) -> Any:
        answer = self.api.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def get(self, path: str) -> Any:
        answer = self.api.get(path)
        assert answer.is_success, answer.text
        return answer.json()

    def create_iceberg_table(self, name: str, *, delete_files: int = 0, deletes_each: int = 1) -> None:
        """A table of ten rows, with equality deletes on top; not registered yet."""
        self.iceberg.create(name)
        self.iceberg.append(name, list(range(10)))
        for number in range(delete_files):
            first = number * deletes_each
            self.iceberg.delete_keys(name, list(range(first, first + deletes_each)))

    def equality_delete_files(self, name: str) -> list[str]:
        """Paths of the live ones."""
        files = self.iceberg.catalog.load_table(name).inspect.delete_files()
        return [str(path) for path in files["file_path"].to_pylist()]

    def enroll(self, name: str, *, policy: str | None = "manual", **more: Any) -> str:
        """Register an Iceberg table that was created before; return its id."""
        table = self.post("/tables", catalog="local", identifier=name.split("."), policy=policy, **more)
        wait_until(
            lambda: self.get(f"/tables/{table['id']}/health")["measured_at"], "a first look at the table"
        )
        return str(table["id"])

    def request_job(self, table_id: str, kind: str, *, dry_run: bool = False) -> str:
        return str(self.post(f"/tables/{table_id}/jobs", kind=kind, dry_run=dry_run)["id"])


@dataclass
class PlayedWorker:
    """One worker process, as the service sees it."""

    service: RunningService
    name: str = "worker-1"
    id: str = field(init=False)
    job_id: str = field(init=False, default="")
    attempt: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        registered = self.service.post(
            "/workers", name=self.name, hostname="node-7", pid=4711, version="0.1.0"
        )
        self.id = registered["id"]

    def claim(self) -> Self:
        assignment = self.service.post(f"/workers/{self.id}/claim", wait_seconds=10)
        self.job_id, self.attempt = assignment["job"]["id"], assignment["attempt"]
        return self

    def report(
        self, stage: str, done: int = 0, total: int = 0, unit: str = "", *, decisions: Sequence[str] = ()
    ) -> None:
        self._post(
            "heartbeat",
            progress={"stage": stage, "done": done, "total": total, "unit": unit, "message": None},
            events=[{"level": "info", "message": decision} for decision in decisions],
        )

    def log(self, line: str, level: str = "info") -> None:
        self._post("heartbeat", events=[{"kind": "log", "level": level, "message": line}])

    def succeed(
        self, result: dict[str, Any], health: dict[str, Any] | None = None, *, read_bytes: int = 0
    ) -> None:
        self._post(
            "finish",
            status="succeeded",
            result=result,
            health=health,
            stages=result.get("stages") or [],
            rows=result.get("rows_deleted") or 0,
            bytes=read_bytes,
        )

    def fail(self, detail: str = "Connection refused: catalog.internal:5432") -> None:
        self._post(
            "finish",
            status="failed",
            error={
                "code": "catalog_unreachable",
                "title": "Catalog local can't be used",
                "detail": detail,
                "remedy": "Check the catalog's address and credentials, then retry the job.",
                "retryable": False,
            },
        )

    def _post(self, call: str, **body: Any) -> None:
        self.service.post(f"/jobs/{self.job_id}/attempts/{self.attempt}/{call}", **body)


def publish_result() -> dict[str, Any]:
    """Of a publication that a staged snapshot has stopped."""
    return {
        "staging_branch": "ingest",
        "staged_snapshots": 41,
        "published_snapshot_id": 5781947118336215154,
        "iceberg_snapshot_id_before": 5781947118336215154,
        "iceberg_snapshot_id_after": 6051911820938456713,
        "rows_added": 48_210,
        "rows_deleted": 47_985,
        "equality_deletes_resolved": 48_210,
        "data_files_added": 82,
        "data_files_touched": 61,
        "delete_files_added": 61,
        "commits": 1,
        "files_cleared": 164,
        "stopped_at": {
            "snapshot_id": 6051911820938456714,
            "code": "staged_overwrite",
            "reason": "it overwrites partitions of the branch, which says nothing of the target's rows",
            "remedy": "Roll the branch back to the snapshot before it, and write its rows again as appends.",
        },
    }


def convert_result(*, dry_run: bool = False) -> dict[str, Any]:
    """Of a conversion of 48,210 equality deletes with two keys, one looked up and one scanned."""
    return {
        "dry_run": dry_run,
        "iceberg_snapshot_id_before": 5781947118336215154,
        "iceberg_snapshot_id_after": None if dry_run else 6051911820938456713,
        "equality_delete_files_removed": 24,
        "equality_deletes_resolved": 48_210,
        "rows_deleted": 47_985,
        "data_files_touched": 61,
        "delete_files_added": 61,
        "delete_files_removed": 36,
        "deletion_vectors_added": 61,
        "position_delete_files_added": 0,
        "commits": 1,
        "bytes_read": 112_000_000,
        "key_sets": [
            {
                "equality_field_ids": [1],
                "columns": ["id"],
                "source": "index",
                "reason": "48,000 keys against 19,480,000 entries: looking them up reads 12 MB, a scan 310",
                "keys": 48_000,
                "matches": 47_781,
                "row_groups_read": 180,
                "row_groups_total": 298,
                "bytes_read": 12_400_000,
                "data_files_from_index": 96,
                "data_files_scanned": 0,
                "predicted_index_seconds": 0.9,
                "predicted_scan_seconds": 3.6,
                "index_seconds": 1.2,
                "scan_seconds": 0,
            },
            {
                "equality_field_ids": [1, 2],
                "columns": ["id", "region"],
                "source": "scan",
                "reason": "This key set has no index yet",
                "keys": 210,
                "matches": 204,
                "row_groups_read": 0,
                "row_groups_total": 0,
                "bytes_read": 96_000_000,
                "data_files_from_index": 0,
                "data_files_scanned": 96,
            },
        ],
        "unconvertible": [],
        "decisions": ["The index of (id) covers all 96 data files."],
        "stages": [
            {"name": "plan", "seconds": 0.412},
            {"name": "read", "seconds": 0.298},
            {"name": "lookup", "seconds": 1.174},
            {"name": "scan", "seconds": 2.618},
            {"name": "deletes", "seconds": 0.86},
            {"name": "commit", "seconds": 0.391},
        ],
    }


def erasure_result(*, held: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Of two keys, the first of which is held, if anything holds it."""
    return {
        "rows_deleted": 31,
        "erasure": {
            "keys": 2,
            "rows_deleted": 31,
            "snapshot_id_deleted": 6051911820938456713,
            "snapshot_id_rewritten": 6051911820938456714,
            "data_files_rewritten": 4,
            "bytes_rewritten": 512_000_000,
            "bytes_written": 511_000_000,
            "snapshots_expired": [5781947118336215154],
            "snapshots_expired_count": 1,
            "files_looked_through": 312,
            "bytes_looked_through": 9_800_000_000,
            "looked_at": "2026-03-01T12:00:00Z",
            "counts": {"gone": 1, "held": 1} if held else {"gone": 2},
            "held": list(held),
        },
    }


def index_result() -> dict[str, Any]:
    return {
        "iceberg_snapshot_id": 5781947118336215154,
        "key_sets": [
            {
                "equality_field_ids": [1],
                "columns": ["id"],
                "files_indexed": 96,
                "rows_indexed": 19_480_000,
                "bytes_written": 59_800_000,
                "sorted_runs_written": 7,
                "generation": 1,
            }
        ],
        "unconvertible": [],
        "decisions": ["Key set (id) comes from the table's equality deletes"],
        "stages": [
            {"name": "plan", "seconds": 0.21},
            {"name": "index", "seconds": 6.84},
            {"name": "commit_index", "seconds": 0.05},
            {"name": "report", "seconds": 0.32},
        ],
    }


def index_report(
    *,
    pending: tuple[int, int] = (0, 0),
    coverage: float = 1.0,
    unconvertible: str | None = None,
    dead_ratio: float = 0.034,
    head: int = 6051911820938456713,
) -> dict[str, Any]:
    """pending: equality delete files, and rows in them. unconvertible: a live equality delete file. head: the
    snapshot that the worker saw."""
    refused = {
        "file_path": unconvertible,
        "code": "float_key",
        "reason": "its key column amount is a float, and engines disagree on NaN and -0.0",
        "remedy": "Let the writer use a key without floats, then rewrite the data files once.",
    }
    return {
        "iceberg_snapshot_id": head,
        "key_sets": [
            {
                "equality_field_ids": [1],
                "columns": ["id"],
                "generation": 1,
                "source": "equality_deletes",
                "files_covered": int(96 * coverage),
                "files_total": 96,
                "coverage": int(96 * coverage) / 96,
                "entries": 19_480_000,
                "bytes": 59_800_000,
                "sorted_runs": 7,
                "dead_ratio": dead_ratio,
            }
        ],
        "layouts": [
            {
                "equality_field_ids": [1],
                "runs": [
                    {"level": level, "files": files, "entries": entries, "bytes": size, "dead_ratio": dead}
                    for level, files, entries, size, dead in (
                        (9, 4, 17_480_000, 53_800_000, dead_ratio),
                        (0, 1, 2_000_000, 6_000_000, 0.0),
                    )
                ],
                "partitions": [
                    {
                        "partition": "",
                        "data_files": 96,
                        "covered_data_files": int(96 * coverage),
                    }
                ],
            }
        ],
        "unconvertible": [refused] if unconvertible else [],
        "pending_equality_delete_files": pending[0],
        "pending_equality_deletes": pending[1],
    }


@contextmanager
def running_service(directory: Path) -> Iterator[RunningService]:
    """The service on a free port with SQLite and a lookup server, the catalog `local` registered, nothing
    enrolled."""
    token = secrets.token_urlsafe(32)
    with listening(create_lookup_server(token)) as lookup_url:
        lookups = {"ICESTREAM_LOOKUP_URL": lookup_url, "ICESTREAM_LOOKUP_TOKEN": token}
        with _running_service(directory, lookups) as service:
            yield service


@contextmanager
def _running_service(directory: Path, lookups: dict[str, str]) -> Iterator[RunningService]:
    key = secrets.token_urlsafe(32)
    database_url = f"sqlite:///{directory / 'icestream.db'}"
    environment = {
        **os.environ,
        # Any: one that was free a moment ago may be another test's by now.
        "ICESTREAM_PORT": "0",
        "ICESTREAM_DATA_DIR": str(directory),
        "ICESTREAM_DATABASE_URL": database_url,
        "ICESTREAM_BOOTSTRAP_KEY": key,
        # Most tests wait for the first look at a table.
        "ICESTREAM_POLL_INTERVAL_SECONDS": "0.3",
        "ICESTREAM_LEASE_SECONDS": "300",
        "ICESTREAM_ERASURE_SECRET": secrets.token_urlsafe(32),
        "ICESTREAM_RECEIPT_SECRET": new_secret(),
        **lookups,
    }
    log = directory / "service.log"
    migrate(database_url)
    with log.open("wb") as output:
        process = subprocess.Popen(_SERVE, env=environment, stdout=output, stderr=output)
    try:
        url = wait_until(lambda: _url(process, log), "the service to listen")
        with httpx.Client(
            base_url=f"{url}/api/v1",
            headers={"Authorization": f"Bearer {key}"},
            timeout=PATIENCE_SECONDS,
            verify=PLAIN_HTTP,
        ) as api:
            wait_until(lambda: _is_ready(url), "the service to be ready")
            iceberg = IcebergCatalog(directory)
            service = RunningService(url, database_url, iceberg, api, key)
            service.post("/catalogs", name="local", type="sql", properties=iceberg.properties)
            yield service
            iceberg.close()
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _url(process: subprocess.Popen[bytes], log: Path) -> str | None:
    """Where the service listens, once it does."""
    assert process.poll() is None, log.read_text()
    found = re.search(r"http://127\.0\.0\.1:[1-9]\d*", log.read_text())
    return found and found[0]


def _is_ready(url: str) -> bool:
    return httpx.get(f"{url}/readyz", verify=PLAIN_HTTP, timeout=PATIENCE_SECONDS).is_success
