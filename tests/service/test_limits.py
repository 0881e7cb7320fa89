"""Bodies that are too large or too deep are refused with a problem, and nothing else suffers."""

from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from service.limits import MAX_BODY_BYTES, MAX_BODY_DEPTH, MAX_REPORT_BYTES
from tests.service.conftest import Running


def chunks(size: int) -> Iterator[bytes]:
    """A body whose length is not told."""
    yield b'{"name": "'
    for _ in range(size // 65_536):
        yield b"x" * 65_536
    yield b'"}'


@pytest.mark.parametrize("is_told", [True, False])
def test_a_body_that_is_too_large_is_refused(service: Running, is_told: bool) -> None:
    content = b"".join(chunks(2 * MAX_BODY_BYTES)) if is_told else chunks(2 * MAX_BODY_BYTES)
    answer = service.admin.post("/policies", content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")
    problem = answer.json()
    assert (problem["type"], problem["limit_bytes"]) == ("/problems/body-too-large", MAX_BODY_BYTES)
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert service.admin.get("/policies").status_code == 200


def test_a_worker_may_report_more(service: Running) -> None:
    report = "/jobs/unknown/attempts/1/finish"
    headers = {"content-type": "application/json"}
    body = b'{"status": "failed", "result": {"x": "' + b"x" * (2 * MAX_BODY_BYTES) + b'"}}'
    assert service.admin.post(report, content=body, headers=headers).status_code == 404
    # By the length that is told, before anything of it has come.
    connection = HTTPConnection(service.url.removeprefix("http://"))
    connection.putrequest("POST", f"/api/v1{report}")
    connection.putheader("content-length", str(MAX_REPORT_BYTES + 1))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def nested(depth: int) -> bytes:
    """A policy whose settings make the body so deep."""
    return b'{"name": "deep", "settings": {"x": ' + b"[" * (depth - 2) + b"]" * (depth - 2) + b"}}"


@pytest.mark.parametrize("depth", [MAX_BODY_DEPTH + 1, 900, 200_000])
@pytest.mark.parametrize("call", ["/policies", "/api-keys"])
def test_a_body_that_is_nested_too_deep_is_refused(service: Running, depth: int, call: str) -> None:
    headers = {"content-type": "application/json"}
    answer = service.admin.post(call, content=nested(depth), headers=headers)
    assert answer.headers["content-type"] == "application/problem+json"
    if depth < 1000:
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/body-too-deep")
        assert answer.json()["limit_depth"] == MAX_BODY_DEPTH
    else:  # no JSON parser goes so deep
        assert answer.status_code in (400, 422)
    deepest = service.admin.post(call, content=nested(MAX_BODY_DEPTH), headers=headers)
    assert deepest.json()["type"] == "/problems/validation-error"


def test_a_wide_body_is_not_deep(service: Running) -> None:
    body = {"name": "wide", "settings": {f"x{number}": [] for number in range(1000)}}
    assert service.admin.post("/policies", json=body).json()["type"] == "/problems/validation-error"
