"""Every command that a document shows, as it stands there, against the service itself."""

import base64
import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from typer.testing import CliRunner, Result

from service.command.main import app
from service.db.database import utc_now
from service.records.jobs import Job
from service.settings import Settings
from service.webhooks.signing import new_secret
from tests.service.conftest import ADMIN_KEY, Running, listening, running, with_lookup_server
from tests.service.iceberg_tables import IcebergCatalog
from tests.test_documents import commands
from worker.lookup_server.app import create_app as create_lookup_server

pytestmark = pytest.mark.parametrize("database_kind", ["sqlite"])
Run = Callable[..., Result]
PROGRAMS = (
    "up",
    "demo",
    "accept",
    "serve",
    "migrate",
    "worker",
    "lookup",
    "login",
    "openapi",
    "conformance",
    "export-index",
    "--install-completion",
)
"""What is no call of the API; tests/service/test_cli.py and tests of their own start them."""
TOKEN = "token-of-these-lookup-servers-0123"
ENDLESS = ("jobs follow-events", "jobs wait lake.")
"""No worker runs here; tests/integration/test_tutorial.py has one."""
REGISTERS = "catalogs create"


KEYED = {
    "shop.orders": ("order_id", "status"),
    "shop.payments": ("id", "amount"),
    "sales.customers": ("id", "region"),
}
"""Tables whose rows are looked up by a key, and its column and another one."""


@pytest.fixture
def service(settings: Settings) -> Iterator[Running]:
    known: dict[str, Any] = {"allowed_locations": ("s3://lake/staging",)}
    known |= {"erasure_secret": SecretStr("e" * 32), "receipt_secret": SecretStr(new_secret())}
    settings = settings.model_copy(update=known)
    with (
        listening(create_lookup_server(TOKEN)) as url,
        running(with_lookup_server(settings, url, TOKEN)) as service,
    ):
        yield service


@pytest.fixture
def lake(service: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the documents' placeholders stand for, in a service that knows a table and more."""
    monkeypatch.setenv("ICESTREAM_URL", service.url)
    monkeypatch.setenv("ICESTREAM_API_KEY", ADMIN_KEY)
    monkeypatch.setenv("WEBHOOK_ON_CALL", "whsec_" + base64.b64encode(bytes(32)).decode())
    monkeypatch.setenv("WEBHOOK_FLINK", new_secret())
    catalog = IcebergCatalog(tmp_path, "lake")
    (create,) = [one for one in commands() if one.startswith(REGISTERS)]
    values = {"$CATALOG": json.dumps(catalog.properties)}
    assert run(*[values.get(word, word) for word in shlex.split(create)]).exit_code == 0
    catalog.create("shop.items")
    for name, (key, other) in KEYED.items():
        fields = NestedField(1, key, LongType(), required=True), NestedField(2, other, StringType())
        catalog.create(name, Schema(*fields, identifier_field_ids=[1]))
    service.enroll("sales.customers", catalog="lake")
    table = service.enroll("shop.items", catalog="lake", publish={"from": "ingest"})
    service.poll(table["id"])
    (tmp_path / "keys.csv").write_text("id\n17\n")
    (tmp_path / "keys.json").write_text('[{"id": 17}]')
    monkeypatch.chdir(tmp_path)
    job = service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "index"}).json()
    service.admin.post(f"/jobs/{job['id']}/cancel").raise_for_status()
    asked = {"kind": "remove_orphan_files", "dry_run": True}
    dry_run = service.admin.post(f"/tables/{table['id']}/jobs", json=asked).json()["id"]
    with service.database.write() as session:
        session.get_one(Job, dry_run).sqlmodel_update({"status": "succeeded", "ended_at": utc_now()})
    asked = {"keys": [{"id": 17}], "tables": ["shop.items"]}
    erasure = service.admin.post("/erasures", json=asked).json()["id"]
    # A webhook's name does for its id.
    return {
        "CATALOG": "lake",
        "TABLE": table["id"],
        "JOB": job["id"],
        "WEBHOOK_ID": "on-call",
        "ERASURE_ID": erasure,
        '{"dry_run_job_id": "DRY_RUN"}': json.dumps({"dry_run_job_id": dry_run}),
    }


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_each_call_that_a_document_shows_does_what_it_says(lake: dict[str, str]) -> None:
    shown = [one for one in commands() if not one.startswith((*PROGRAMS, *ENDLESS, REGISTERS))]
    assert len(shown) > 10
    # What others need is made first, and a table is deleted after everything else.
    for command in sorted(shown, key=lambda one: ("delete " in one) - ("enroll" in one or "create" in one)):
        words = [lake.get(word, word) for word in shlex.split(command, comments=True)]
        result = run(*words)
        if "say so with --yes" in " ".join(result.output.split()):
            result = run(*words, "--yes")
        # The job that was waited for was cancelled, and no worker is alive.
        expected = 1 if command.startswith(("jobs wait", "status")) else 0
        assert result.exit_code == expected, f"{command}: {result.output}"
