"""Bodies that are too large or too deep are refused with a problem, and nothing else suffers."""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import InvalidError
from service.http.body_limits import MAX_BODY_BYTES, MAX_BODY_DEPTH, MAX_REPORT_BYTES, check_shape
from service.records.api_keys import Role
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import Running, alike_on_both
from trust.bounds import JSON_DIGITS, JSON_VALUES

# Bodies are bounded before the database is asked.
database_kind = alike_on_both


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


@pytest.mark.parametrize("headers", [{}, {"idempotency-key": "k"}])
@pytest.mark.parametrize("role", [None, Role.VIEWER])
@pytest.mark.parametrize("path", ["/jobs/x/attempts/1/finish", "/policies", "/tables/x/pause"])
def test_who_may_not_call_is_refused_before_a_body_is_read(
    service: Running, path: str, role: Role | None, headers: dict[str, str]
) -> None:
    authorization = service.client(role).headers["authorization"] if role else None
    connection = HTTPConnection(service.url.removeprefix("http://"), timeout=PATIENCE_SECONDS)
    connection.putrequest("POST", f"/api/v1{path}")
    for name, value in headers.items():
        connection.putheader(name, value)
    if authorization is not None:
        connection.putheader("authorization", authorization)
    connection.putheader("content-type", "application/x-www-form-urlencoded")
    connection.putheader("content-length", str(MAX_BODY_BYTES))
    connection.endheaders()  # and nothing of the body
    assert connection.getresponse().status == (401 if role is None else 403)
    connection.close()


def is_too_deep(body: bytes) -> bool:
    try:
        check_shape(body)
    except InvalidError:
        return True
    return False


def depth_of(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(depth_of, value.values() if isinstance(value, dict) else value), default=0)


TEXT = st.text(st.sampled_from('"\\[]{}a\n'), max_size=5)
JSON = st.recursive(
    TEXT, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)


@given(value=JSON, more=st.integers(0, MAX_BODY_DEPTH + 2))
def test_the_depth_of_any_json_is_known_without_parsing_it(value: Any, more: int) -> None:
    body = json.dumps([[], *([value] * 3)]).encode()
    body = b"[" * more + body + b"]" * more
    assert is_too_deep(body) is (more + 1 + max(1, depth_of(value)) > MAX_BODY_DEPTH)


def test_what_is_no_json_is_looked_through_once() -> None:
    # A string without an end, and one that ends within an escape.
    assert not is_too_deep(b'["' + b'\\"[' * 150_000)
    assert not is_too_deep(b'"[[[[' + b"\\")
    assert is_too_deep(b"[]" * 100_000 + b"[" * (MAX_BODY_DEPTH + 1))


def test_a_report_of_many_values_is_refused_before_it_is_parsed(service: Running) -> None:
    for result in (b'{"x": [' + b"0," * JSON_VALUES + b"0]}", b'{"x": ' + b"1" * (JSON_DIGITS + 1) + b"}"):
        body = b'{"status": "failed", "result": ' + result + b"}"
        answer = service.admin.post(
            "/jobs/unknown/attempts/1/finish", content=body, headers={"content-type": "application/json"}
        )
        assert (answer.status_code, answer.json()["type"]) == (413, "/problems/body-too-large")


def test_a_body_in_another_encoding_hides_nothing(service: Running) -> None:
    headers = {"content-type": "application/json"}
    body = json.dumps({"name": "p", "description": "a\u0000b", "settings": {}}).encode("utf-16")
    answer = service.admin.post("/policies", content=body, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/unusable-value")


def nested(depth: int) -> bytes:
    """A policy whose settings make the body so deep."""
    return b'{"name": "deep", "settings": {"x": ' + b"[" * (depth - 2) + b"]" * (depth - 2) + b"}}"


@pytest.mark.parametrize("depth", [MAX_BODY_DEPTH + 1, 900, 200_000])
@pytest.mark.parametrize("call", ["/policies", "/api-keys"])
def test_a_body_that_is_nested_too_deep_is_refused(service: Running, depth: int, call: str) -> None:
    headers = {"content-type": "application/json"}
    answer = service.admin.post(call, content=nested(depth), headers=headers)
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/body-too-deep")
    assert answer.json()["limit_depth"] == MAX_BODY_DEPTH
    deepest = service.admin.post(call, content=nested(MAX_BODY_DEPTH), headers=headers)
    assert deepest.json()["type"] == "/problems/validation-error"


def test_a_wide_body_is_not_deep(service: Running) -> None:
    body = {"name": "wide", "settings": {f"x{number}": [] for number in range(1000)}}
    assert service.admin.post("/policies", json=body).json()["type"] == "/problems/validation-error"
