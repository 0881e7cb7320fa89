"""The OpenAPI document is checked in, current, and holds every call that clients are written against."""

import json

import pytest

from service.openapi import DOCUMENT, render

CALLS = [
    ("get", "/livez"),
    ("get", "/readyz"),
    ("get", "/api/v1/audit"),
    ("post", "/api/v1/catalogs"),
    ("get", "/api/v1/catalogs"),
    ("get", "/api/v1/catalogs/{catalog_id}"),
    ("patch", "/api/v1/catalogs/{catalog_id}"),
    ("delete", "/api/v1/catalogs/{catalog_id}"),
    ("post", "/api/v1/catalogs/{catalog_id}/check"),
    ("get", "/api/v1/events"),
    ("get", "/api/v1/jobs"),
    ("get", "/api/v1/jobs/{job_id}"),
    ("get", "/api/v1/jobs/{job_id}/events"),
    ("post", "/api/v1/jobs/{job_id}/cancel"),
    ("post", "/api/v1/jobs/{job_id}/retry"),
    ("post", "/api/v1/jobs/{job_id}/attempts/{attempt}/heartbeat"),
    ("post", "/api/v1/jobs/{job_id}/attempts/{attempt}/address-ranges"),
    ("post", "/api/v1/jobs/{job_id}/attempts/{attempt}/finish"),
    ("post", "/api/v1/policies"),
    ("get", "/api/v1/policies"),
    ("get", "/api/v1/policies/{policy_id}"),
    ("patch", "/api/v1/policies/{policy_id}"),
    ("delete", "/api/v1/policies/{policy_id}"),
    ("put", "/api/v1/policy-attachments"),
    ("post", "/api/v1/tables"),
    ("get", "/api/v1/tables"),
    ("get", "/api/v1/tables/{table_id}"),
    ("patch", "/api/v1/tables/{table_id}"),
    ("delete", "/api/v1/tables/{table_id}"),
    ("post", "/api/v1/tables/enroll-by-pattern"),
    ("post", "/api/v1/tables/{table_id}/pause"),
    ("post", "/api/v1/tables/{table_id}/resume"),
    ("post", "/api/v1/tables/{table_id}/jobs"),
    ("get", "/api/v1/tables/{table_id}/policy"),
    ("get", "/api/v1/tables/{table_id}/events"),
    ("get", "/api/v1/tables/{table_id}/health"),
    ("get", "/api/v1/tables/{table_id}/health/history"),
    ("get", "/api/v1/workers"),
    ("post", "/api/v1/workers"),
    ("post", "/api/v1/workers/{worker_id}/claim"),
]


def test_the_checked_in_document_is_current() -> None:
    assert DOCUMENT.read_text() == render(), "run `python -m service.openapi` and look at what changed"


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_every_promised_call_is_in_the_document(method: str, path: str) -> None:
    assert method in json.loads(DOCUMENT.read_text())["paths"][path]


def test_no_page_is_part_of_the_contract() -> None:
    paths = json.loads(DOCUMENT.read_text())["paths"]
    assert [path for path in paths if not path.startswith(("/api/v1/", "/livez", "/readyz"))] == []
