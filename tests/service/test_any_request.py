"""Whatever is sent, the service answers as its OpenAPI document says: never 5xx, never anything undocumented.

schemathesis draws requests from the document: valid ones, and ones that break its rules in one place. Ids in
their paths are mostly of things that are there, which are made anew once a request has changed them.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from schemathesis.checks import CheckContext, not_a_server_error
from schemathesis.core import NOT_SET
from schemathesis.core.parameters import ParameterLocation
from schemathesis.core.result import Ok
from schemathesis.core.transport import Response
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from service.command.openapi import DOCUMENT
from service.settings import Settings
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import ADMIN_KEY, Running, listening, on_server, running, with_lookup_server
from tests.service.iceberg_tables import IcebergCatalog
from trust.arrow_streams import STREAM_TYPE
from worker.lookup_server.app import create_app as create_lookup_server


def refuses_what_is_wrong(
    context: CheckContext, answer: Response, case: schemathesis.Case[Any]
) -> bool | None:
    """What is too long may be told by its size, before anybody reads it."""
    return None if answer.status_code == 413 else negative_data_rejection(context, answer, case)


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    refuses_what_is_wrong,
    unsupported_method,
]
# What bytes of Arrow may hold, tests/test_arrow_streams.py tries out.
schemathesis.openapi.media_type(STREAM_TYPE, st.binary())
AUTHORIZATION = {"Authorization": f"Bearer {ADMIN_KEY}"}
EXAMPLES = {
    name: message.get("examples", [])
    for name, message in json.loads(DOCUMENT.read_text())["components"]["schemas"].items()
}
# An event stream has no end.
schema = schemathesis.openapi.from_path(DOCUMENT).exclude(path="/api/v1/events")
schema.config.phases.coverage.enabled = False
OPERATIONS = {found.ok().label: found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)}
OPERATION = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda operation: operation.label)


class Known:
    """A service, and ids of things that it has, by the names of paths' parameters."""

    def __init__(self, service: Running, iceberg: IcebergCatalog) -> None:
        self.service = service
        self._iceberg = iceberg
        self._ids: dict[str, Any] = {}
        self._made = 0

    def id(self, name: str) -> Any:
        if name not in self._ids:
            self._made += 1
            getattr(self, f"_make_{name}")(str(self._made))
        return self._ids[name]

    def ids(self, case: schemathesis.Case[Any]) -> dict[str, Any]:
        """For all parameters of a request's path."""
        if retried := case.path.endswith("/jobs/{job_id}/retry"):  # which only a job can be that has ended
            self._ids.pop("job_id", None)  # which a worker may run, and end later than it is asked to
        names = [parameter.name for parameter in case.operation.path_parameters]
        for name in names:
            self.id(name)
        ids = {name: self.id(name) for name in names}  # of which a later one may have made an earlier anew
        if retried:
            self.service.admin.post(f"/jobs/{ids['job_id']}/cancel")
        return ids

    def forget(self, case: schemathesis.Case[Any]) -> None:
        """What a request has changed; with what it has deleted, what belongs to that is gone."""
        if case.method == "DELETE":
            self._ids.clear()
        for parameter in case.operation.path_parameters:
            self._ids.pop(parameter.name, None)
        if case.path == "/api/v1/system/pause":  # which would refuse the jobs of the tests after it
            self.service.admin.post("/system/resume")

    def _post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = self.service.admin.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def _make_catalog_id(self, number: str) -> None:
        body = {"name": f"catalog-{number}", "type": "sql", "properties": self._iceberg.properties}
        self._ids["catalog_id"] = self._post("/catalogs", body)["id"]

    def new_table(self) -> list[str]:
        """The identifier of one that is not enrolled."""
        self._made += 1
        self._iceberg.create(f"db.t{self._made}")
        return ["db", f"t{self._made}"]

    def _make_table_id(self, number: str) -> None:
        self._iceberg.create(f"db.t{number}")
        publish = {"from": "ingest"}  # which jobs that publish need
        self._ids["table_id"] = self.service.enroll(f"db.t{number}", publish=publish)["id"]

    def _make_job_id(self, number: str) -> None:
        self._make_table_id(number)
        body = {"kind": "convert", "priority": 100}
        self._ids["job_id"] = self._post(f"/tables/{self._ids['table_id']}/jobs", body)["id"]
        self._ids.pop("attempt", None)

    def _make_erasure_id(self, number: str) -> None:
        body = {"keys": [{"id": 1}], "tables": [self.id("table_id")]}
        self._ids["erasure_id"] = self._post("/erasures", body)["id"]

    def _make_attempt(self, number: str) -> None:
        """A running one, of a job that no request before has ended."""
        self._make_job_id(number)
        while True:
            assigned = self.service.claim(self.service.start_worker())
            assert assigned is not None
            if assigned["job"]["id"] == self._ids["job_id"]:
                self._ids["attempt"] = assigned["attempt"]
                return

    def _make_worker_id(self, number: str) -> None:
        self._ids["worker_id"] = self.service.start_worker()

    def _make_policy_id(self, number: str) -> None:
        self._ids["policy_id"] = self._post("/policies", {"name": f"policy-{number}", "settings": {}})["id"]

    def _make_pattern_id(self, number: str) -> None:
        body = {"catalog": "local", "pattern": f"nothing-{number}.*"}
        self._ids["pattern_id"] = self._post("/patterns", body)["id"]

    def _make_key_id(self, number: str) -> None:
        self._ids["key_id"] = self._post("/api-keys", {"name": number, "role": "viewer"})["id"]

    def _make_webhook_id(self, number: str) -> None:
        body = {"url": "https://hooks.example/", "kinds": ["job"], "secret": "env:WEBHOOK_ON_CALL"}
        self._ids["webhook_id"] = self._post("/webhooks", body | {"name": f"webhook-{number}"})["id"]
        self._ids.pop("delivery_id", None)

    def _make_delivery_id(self, number: str) -> None:
        self._ids["delivery_id"] = self._post(f"/webhooks/{self._ids['webhook_id']}/test")["id"]

    def _make_sender_id(self, number: str) -> None:
        body = {"catalog": self.id("catalog_id"), "secret": "env:WEBHOOK_ON_CALL"}
        made = self._post("/notification-senders", body | {"name": f"sender-{number}"})
        self._ids["sender_id"] = made["id"]


LONGEST_QUERY = 60_000
"""The parser of HTTP refuses longer addresses (65,535), before there is a call to be documented."""


# What a request breaks is mostly found before the database is asked, which `tests/service` does on both.
@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.exhaustive)])
def known(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    directory = tmp_path_factory.mktemp("any_request")
    url = ""
    if request.param == "postgresql":
        server = request.getfixturevalue("postgresql")
        on_server(server, f"CREATE DATABASE {directory.name}")
        url = f"{server}/{directory.name}"
    settings = Settings(
        data_dir=directory,
        database_url=url,
        bootstrap_key=ADMIN_KEY,
        background=False,
        requests_per_minute=0,
        failed_logins_per_minute=0,
        erasure_secret=SecretStr("e" * 32),
        receipt_secret=SecretStr(f"whsec_{'a' * 32}"),
        allowed_hosts=("hooks.example", "catalog.example.com"),
        # Those of the document's examples, and of the catalog here.
        allowed_locations=("s3://lake/", "file:///data/", f"file://{directory}/"),
    )
    iceberg = IcebergCatalog(directory)
    iceberg.create("sales.orders")
    with (
        pytest.MonkeyPatch.context() as environment,
        listening(create_lookup_server("a-token-of-these-tests")) as url,
        running(with_lookup_server(settings, url, "a-token-of-these-tests")) as service,
    ):
        for name in ("WEBHOOK_ON_CALL", "WEBHOOK_FLINK"):
            environment.setenv(name, f"whsec_{'a' * 32}")
        environment.setenv("CATALOG_TOKEN", "a-token-of-these-tests")
        for name in ("local", "lake"):  # as in the document's examples
            body = {"name": name, "type": "sql", "properties": iceberg.properties}
            assert service.admin.post("/catalogs", json=body).status_code == 201
        yield Known(service, iceberg)
    iceberg.close()


def ask(case: schemathesis.Case[Any], known: Known, checks: list[Any]) -> Response:
    """The answer, which is as documented."""
    if "/claim" in case.path and isinstance(case.body, dict):
        wait = case.body.get("wait_seconds", 20)
        # What may be asked for is not waited for.
        if type(wait) in (int, float) and 0 <= wait <= 60:  # type: ignore[operator]
            case.body["wait_seconds"] = 0
    answer = case.call_and_validate(
        base_url=known.service.url, headers=AUTHORIZATION, checks=checks, timeout=PATIENCE_SECONDS
    )
    if case.method != "GET" and answer.status_code < 300:
        known.forget(case)
    return answer


NAMED = (
    "POST /api/v1/catalogs",
    "POST /api/v1/notification-senders",
    "POST /api/v1/policies",
    "POST /api/v1/webhooks",
)
REFUSED = {
    # A key is no signature; what one opens is shown where notifications are.
    "POST /api/v1/notification-senders/{sender_id}/commit-events": 401,
    # Of a table that nothing has happened to yet.
    "POST /api/v1/tables/{table_id}/policy/replay": 422,
}


def examples_of(body: Any) -> list[Any]:
    """Of a message by its name, or of what has none, such as one or a list of them."""
    named: str | None = body.resource_name
    found: list[Any] = EXAMPLES[named] if named else body.definition["schema"]["examples"]
    return found


@OPERATION
def test_what_is_there_is_answered_with_success_as_documented(
    operation: APIOperation[Any, Any, Any, Any], known: Known
) -> None:
    in_json = (of_type for of_type in operation.body if of_type.media_type != STREAM_TYPE)
    bodies = [body for of_type in in_json for body in examples_of(of_type)]
    for body in bodies or [NOT_SET]:
        if operation.label in NAMED:
            body = body | {"name": f"new-{body['name']}"}  # theirs may be there, of the other examples
        if operation.label == "POST /api/v1/tables":  # likewise
            body = body | {"identifier": known.new_table()}
        if operation.label == "POST /api/v1/erasures":
            body = {name: said for name, said in body.items() if name not in ("pattern", "catalog")}
            body |= {"tables": [known.id("table_id")]}  # which there is
        # PUT may have nothing before it that a version could name.
        case = operation.Case(
            headers={"If-Match": "*"} if operation.method == "patch" else {},
            body=body,
            media_type=None if body is NOT_SET else "application/json",
        )
        case.path_parameters = known.ids(case)
        answer = ask(case, known, [*CHECKS, ignored_auth])
        expected = [REFUSED[operation.label]] if operation.label in REFUSED else [200, 201, 202, 204]
        assert answer.status_code in expected, (answer.text, case.path_parameters, body)


def not_a_fault_of_its_own(_: CheckContext, answer: Response, __: schemathesis.Case[Any]) -> None:
    """Of calls that ask catalogs, of which a request before may have registered one that is nowhere."""
    assert answer.status_code < 500 or answer.status_code == 502


def ask_anything(case: schemathesis.Case[Any], known: Known) -> None:
    if len(urlencode(case.query or {}, doseq=True)) > LONGEST_QUERY:
        return
    assert case.meta is not None
    path = case.meta.components.get(ParameterLocation.PATH)
    if path is not None and not path.mode.is_negative:
        ids = known.ids(case)
        for name in case.path_parameters:
            # Half of the names are known: of these, more is asked than whether they are there.
            if len(str(case.path_parameters[name])) % 2:
                case.path_parameters[name] = ids[name]
    if case.method == "PATCH" and case.headers and len(str(case.headers.get("If-Match"))) % 2:
        case.headers["If-Match"] = "*"
    checks = list(CHECKS)
    if any(isinstance(value, dict) for value in (case.query or {}).values()):
        checks.remove(refuses_what_is_wrong)  # in an address it is text, as it should be
    if "502" in case.operation.definition.raw["responses"]:
        checks[checks.index(not_a_server_error)] = not_a_fault_of_its_own
    ask(case, known, checks)


@settings(
    derandomize=True, database=None, max_examples=2, deadline=None, suppress_health_check=list(HealthCheck)
)
def ask_little(case: schemathesis.Case[Any], known: Known) -> None:
    ask_anything(case, known)


@OPERATION
def test_any_request_is_answered_as_documented(
    operation: APIOperation[Any, Any, Any, Any], known: Known
) -> None:
    ask_drawn(operation, ask_little, known)


def ask_drawn(operation: APIOperation[Any, Any, Any, Any], ask: Callable[..., None], known: Known) -> None:
    """With requests that schemathesis draws: its `parametrize` makes them whenever tests are collected."""
    test = build_operation_test(
        config=operation.schema.config,
        operation=operation,
        test_func=ask,
        given_kwargs={},
        feedback=FeedbackSources(),
    )
    test(known=known)


@settings(
    derandomize=True, database=None, max_examples=25, deadline=None, suppress_health_check=list(HealthCheck)
)
def ask_much(case: schemathesis.Case[Any], known: Known) -> None:
    ask_anything(case, known)


@pytest.mark.exhaustive
@pytest.mark.integration
@pytest.mark.parametrize("label", OPERATIONS)
def test_any_of_many_requests_is_answered_as_documented(label: str, known: Known) -> None:
    """With one request for each rule of the document that can be broken in one place."""
    whole_schema = schemathesis.openapi.from_path(DOCUMENT).include(name=label)
    (found,) = whole_schema.get_all_operations()
    assert isinstance(found, Ok)
    ask_drawn(found.ok(), ask_much, known)


VALUES_THAT_NO_DATABASE_KEEPS = [
    (r'"\u0000"', "body.parameters.a.0 has a NUL character"),
    (r'"\ud800"', "body.parameters.a.0 has half of a surrogate pair"),
    (r'{"\u0000": 1}', "a name in body.parameters.a.0 has a NUL character"),
    ("NaN", "body.parameters.a.0 is no finite number"),
    ("-Infinity", "body.parameters.a.0 is no finite number"),
    ("1e999", "body.parameters.a.0 is no finite number"),
    ("9223372036854775808", "body.parameters.a.0 does not fit into 64 bits"),
]


def test_a_value_that_no_database_keeps_is_refused(known: Known) -> None:
    admin, path = known.service.admin, f"/tables/{known.id('table_id')}/jobs"
    body = '{"kind": "verify", "parameters": {"a": [%s]}}'
    headers = {"Content-Type": "application/json"}
    for value, cause in VALUES_THAT_NO_DATABASE_KEEPS:
        answer = admin.post(path, content=body % value, headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/unusable-value"), value
        assert cause in answer.json()["detail"]
    harmless = r'"\\u0000 \ud83d\ude00 1e999 NaN", 9223372036854775807, 1e9'
    accepted = admin.post(path, content=body % harmless, headers=headers)
    assert accepted.status_code == 202, accepted.text
    assert accepted.json()["parameters"]["a"][0] == "\\u0000 \U0001f600 1e999 NaN"


def test_an_address_with_a_nul_character_is_refused(known: Known) -> None:
    for path in ("/tables/%00", "/tables?search=%00", "/jobs/%00/events"):
        answer = known.service.admin.get(path)
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/unusable-value"), path


def test_times_are_written_as_times(known: Known) -> None:
    admin = known.service.admin
    for time in ("0", "1.5", "-1", "2030-01-01T00:00:00", "0001-01-01T00:00:00+10:00"):
        assert admin.get("/jobs", params={"since": time}).status_code == 422, time
    assert admin.get("/jobs", params={"since": "2030-01-01T00:00:00Z"}).status_code == 200
    body = {"name": "x", "role": "viewer", "expires_at": 1893456000}
    assert admin.post("/api-keys", json=body).status_code == 422
