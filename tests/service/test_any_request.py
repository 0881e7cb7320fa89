"""Whatever is sent, the service answers as its OpenAPI document says: never 5xx, never anything undocumented.

schemathesis draws requests from the document: valid ones, and ones that break its rules in one place.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from service.openapi import DOCUMENT
from service.settings import Settings
from tests.service.conftest import ADMIN_KEY, DATABASES, Running, on_server, running
from tests.service.iceberg_tables import IcebergCatalog

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    ignored_auth,
    unsupported_method,
]
# An event stream has no end.
schema = schemathesis.openapi.from_path(DOCUMENT).exclude(path="/api/v1/events")


@pytest.fixture(scope="module", params=DATABASES)
def known(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Running, dict[str, Any]]]:
    """The service on either database, and ids that it knows, by the name of the path's parameter."""
    directory = tmp_path_factory.mktemp("any_request")
    url = ""
    if request.param == "postgresql":
        server = request.getfixturevalue("postgresql")
        on_server(server, "CREATE DATABASE any_request")
        url = f"{server}/any_request"
    settings = Settings(
        data_dir=directory,
        database_url=url,
        bootstrap_key=ADMIN_KEY,
        background=False,
        requests_per_minute=0,
        failed_logins_per_minute=0,
    )
    iceberg = IcebergCatalog(directory)
    iceberg.create()
    with running(settings) as service:
        catalog = service.register(iceberg)
        table = service.enroll()
        job = service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "convert"}).json()
        yield (
            service,
            {
                "catalog_id": catalog["id"],
                "table_id": table["id"],
                "job_id": job["id"],
                "policy_id": "standard",
                "worker_id": service.start_worker(),
            },
        )
    iceberg.close()


@pytest.mark.integration
@schema.parametrize()
@settings(
    derandomize=True, database=None, max_examples=10, deadline=None, suppress_health_check=list(HealthCheck)
)
def test_any_request_is_answered_as_documented(
    case: schemathesis.Case[Any], known: tuple[Running, dict[str, Any]]
) -> None:
    service, ids = known
    if case.method != "DELETE":
        for name in case.path_parameters:
            # Half of the names are known: of these, more is asked than whether they are there.
            if name in ids and len(str(case.path_parameters[name])) % 2:
                case.path_parameters[name] = ids[name]
    if "/claim" in case.path and isinstance(case.body, dict):
        wait = case.body.get("wait_seconds", 20)
        # What may be asked for is not waited for.
        if type(wait) in (int, float) and 0 <= wait <= 60:  # type: ignore[operator]
            case.body["wait_seconds"] = 0
    checks = list(CHECKS)
    if any(isinstance(value, dict) for value in (case.query or {}).values()):
        checks.remove(negative_data_rejection)  # in an address it is text, as it should be
    case.call_and_validate(
        base_url=service.url, headers={"Authorization": f"Bearer {ADMIN_KEY}"}, checks=checks, timeout=20
    )


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (r'"\u0000"', "body.parameters.a.0 has a NUL character"),
        (r'"\ud800"', "body.parameters.a.0 has half of a surrogate pair"),
        (r'{"\u0000": 1}', "a name in body.parameters.a.0 has a NUL character"),
        ("NaN", "body.parameters.a.0 is no finite number"),
        ("-Infinity", "body.parameters.a.0 is no finite number"),
        ("1e999", "body.parameters.a.0 is no finite number"),
        ("9223372036854775808", "body.parameters.a.0 does not fit into 64 bits"),
    ],
)
def test_a_value_that_no_database_keeps_is_refused(
    known: tuple[Running, dict[str, Any]], value: str, cause: str
) -> None:
    service, ids = known
    path = f"/tables/{ids['table_id']}/jobs"
    body = '{"kind": "verify", "parameters": {"a": [%s]}}'
    json = {"Content-Type": "application/json"}
    answer = service.admin.post(path, content=body % value, headers=json)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/unusable-value")
    assert cause in answer.json()["detail"]
    harmless = r'"\\u0000 \ud83d\ude00 1e999 NaN", 9223372036854775807, 1e9'
    accepted = service.admin.post(path, content=body % harmless, headers=json)
    assert accepted.status_code == 202, accepted.text
    assert accepted.json()["parameters"]["a"][0] == "\\u0000 \U0001f600 1e999 NaN"


@pytest.mark.parametrize("path", ["/tables/%00", "/tables?search=%00", "/jobs/%00/events"])
def test_an_address_with_a_nul_character_is_refused(known: tuple[Running, dict[str, Any]], path: str) -> None:
    service, _ = known
    answer = service.admin.get(path)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/unusable-value")


def test_times_are_written_as_times(known: tuple[Running, dict[str, Any]]) -> None:
    service, _ = known
    for time in ("0", "1.5", "-1", "2030-01-01T00:00:00", "0001-01-01T00:00:00+10:00"):
        assert service.admin.get("/jobs", params={"since": time}).status_code == 422, time
    assert service.admin.get("/jobs", params={"since": "2030-01-01T00:00:00Z"}).status_code == 200
    body = {"name": "x", "role": "viewer", "expires_at": 1893456000}
    assert service.admin.post("/api-keys", json=body).status_code == 422
