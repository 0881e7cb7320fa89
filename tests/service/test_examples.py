"""What /docs shows as an example of a request is accepted by the service."""

import json
from typing import Any

import pytest

from service.command.openapi import DOCUMENT
from tests.service.conftest import Running
from tests.service.iceberg_tables import IcebergCatalog

SCHEMAS = json.loads(DOCUMENT.read_text())["components"]["schemas"]


def examples(name: str) -> list[dict[str, Any]]:
    return list(SCHEMAS[name]["examples"])


@pytest.fixture
def table(service: Running, iceberg: IcebergCatalog) -> dict[str, Any]:
    """A table with the name of the examples, in a catalog with theirs."""
    iceberg.create("sales.orders")
    service.register(iceberg)
    (body,) = examples("TableRequest")
    answer = service.admin.post("/tables", json=body | {"publish": {"from": "ingest"}})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def test_examples_about_tables_policies_and_keys_are_accepted(
    service: Running, table: dict[str, Any]
) -> None:
    assert service.admin.post("/policies", json=examples("PolicyRequest")[0]).status_code == 201
    anything = {"If-Match": "*"}
    key = service.admin.post("/api-keys", json=examples("ApiKeyRequest")[0]).json()
    for method, path, name in (
        ("PATCH", "/policies/nightly", "PolicyPatch"),
        ("PUT", "/policy-attachments", "AttachmentRequest"),
        ("PATCH", f"/tables/{table['id']}", "TablePatch"),
        ("POST", "/tables/enroll-by-pattern", "PatternRequest"),
        ("POST", f"/tables/{table['id']}/jobs", "JobRequest"),
        ("POST", "/jobs/bulk", "BulkRequest"),
        ("POST", f"/api-keys/{key['id']}/rotate", "RotationRequest"),
    ):
        for body in examples(name):
            # What is put where nothing was has no version that it could name.
            headers = {} if method == "PUT" else anything
            answer = service.admin.request(method, path, json=body, headers=headers)
            assert answer.status_code in (200, 202), (name, answer.text)


def test_examples_about_catalogs_are_accepted_where_their_places_are_allowed(service: Running) -> None:
    for body in examples("CatalogRequest"):
        answer = service.admin.post("/catalogs", json=body)
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/location-not-allowed")
        assert service.admin.post("/catalogs", json=body | {"index_warehouse": None}).status_code == (
            422 if body["type"] == "sql" else 201
        )
    answer = service.admin.patch(
        "/catalogs/lake", json=examples("CatalogPatch")[0], headers={"If-Match": "*"}
    )
    assert (answer.status_code, answer.json()["properties"]["token"]) == (200, "env:CATALOG_TOKEN")


def test_examples_of_a_worker_are_accepted(service: Running, table: dict[str, Any]) -> None:
    worker = service.admin.post("/workers", json=examples("WorkerRequest")[0]).json()
    for finish in examples("FinishRequest"):
        job = service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "convert"}).json()
        claimed = service.admin.post(f"/workers/{worker['id']}/claim", json=examples("ClaimRequest")[0])
        assert claimed.status_code == 200, claimed.text
        attempt = f"/jobs/{job['id']}/attempts/1"
        for path, body in (
            ("heartbeat", examples("HeartbeatRequest")[0]),
            ("address-ranges", examples("AddressRangeRequest")[0]),
            ("finish", finish),
        ):
            answer = service.admin.post(f"{attempt}/{path}", json=body)
            assert answer.status_code in (200, 201, 204), (path, answer.text)
