"""Bodies that are too large or too deep are refused with a problem, and nothing else suffers."""

from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from service.limits import MAX_BODY_BYTES, MAX_REPORT_BYTES
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


def test_a_body_that_is_nested_too_deep_is_refused(service: Running) -> None:
    depth = 200_000
    body = b'{"name": "deep", "settings": ' + b"[" * depth + b"]" * depth + b"}"
    answer = service.admin.post("/policies", content=body, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500
    assert answer.headers["content-type"] == "application/problem+json"
