"""The OpenAPI document is checked in, current, and holds every call that clients are written against."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from service import examples, problems
from service.app import create_app
from service.auth.access import declared_access
from service.command.openapi import DOCUMENT, render
from service.http.guards import IDEMPOTENCY_HEADER
from service.http.problem_documents import PROBLEM_JSON
from service.problems import PROBLEMS
from service.settings import Settings
from tests.access import DECISIONS
from tests.problems import Raised, all_raised, raised_in, texts_in
from trust.arrow_streams import STREAM_TYPE

WORKER = Path(problems.__file__).parents[1] / "worker"
CALLS = [
    ("get", "/livez"),
    ("get", "/readyz"),
    ("get", "/metrics"),
    ("get", "/api/v1/audit"),
    ("post", "/api/v1/api-keys/{key_id}/rotate"),
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
    ("get", "/api/v1/catalogs/{catalog_id}/candidates"),
    ("post", "/api/v1/patterns"),
    ("get", "/api/v1/patterns"),
    ("get", "/api/v1/patterns/{pattern_id}"),
    ("patch", "/api/v1/patterns/{pattern_id}"),
    ("delete", "/api/v1/patterns/{pattern_id}"),
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
    assert DOCUMENT.read_text() == render(), (
        "run `python -m service.command.openapi` and look at what changed"
    )


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_every_promised_call_is_in_the_document(method: str, path: str) -> None:
    assert method in json.loads(DOCUMENT.read_text())["paths"][path]


def test_who_may_call_a_route_was_decided_for_each() -> None:
    app = create_app(Settings(database_url="sqlite://"))
    declared: dict[str, set[str]] = {}
    for method, path, (who,) in declared_access(app):
        declared.setdefault(who, set()).add(f"{method} {path}")
    assert declared == DECISIONS, "decide in tests/access.py"


def test_what_can_be_changed_has_a_version_that_a_change_names_and_a_deletion_may_name() -> None:
    """docs/security.md, "Two at once"."""
    calls = {
        (method, path): {each["name"].lower() for each in call.get("parameters", ())}
        for path, methods in json.loads(DOCUMENT.read_text())["paths"].items()
        for method, call in methods.items()
    }
    changed = {path for method, path in calls if method in ("patch", "put")}
    assert len(changed) >= 5
    for (method, path), parameters in calls.items():
        names_one = path in changed and method in ("patch", "put", "delete")
        assert ("if-match" in parameters) is names_one, (method, path)


def test_no_page_is_part_of_the_contract() -> None:
    paths = json.loads(DOCUMENT.read_text())["paths"]
    assert [
        path for path in paths if not path.startswith(("/api/v1/", "/livez", "/readyz", "/metrics"))
    ] == []


def test_every_error_is_declared_as_the_problem_document_that_is_sent() -> None:
    for calls in json.loads(DOCUMENT.read_text())["paths"].values():
        for call in calls.values():
            errors = {status: answer for status, answer in call["responses"].items() if status[0] in "45"}
            assert {"4XX", "500", "503"} <= set(errors)
            problem = {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}
            assert all(answer["content"] == problem for answer in errors.values())


def test_the_calls_that_honour_an_idempotency_key_say_so() -> None:
    paths = json.loads(DOCUMENT.read_text())["paths"]
    declared = {
        (method, path)
        for path, calls in paths.items()
        for method, call in calls.items()
        if any(parameter["name"] == IDEMPOTENCY_HEADER for parameter in call.get("parameters", ()))
    }
    assert {method for method, _ in declared} == {"post"}
    assert ("post", "/api/v1/tables/{table_id}/jobs") in declared
    # They store no answer: a catalog, an index or a history is only asked, a poll takes what comes.
    silent = {path for path, calls in paths.items() if "post" in calls} - {path for _, path in declared}
    # Each signed notification has an id of its own, and a report of an attempt's end may come again.
    assert silent == {
        "/api/v1/notification-senders/{sender_id}/commit-events",
        "/api/v1/catalogs/{catalog_id}/check",
        "/api/v1/tables/{table_id}/lookups",
        "/api/v1/tables/{table_id}/lookups/history",
        "/api/v1/tables/{table_id}/policy/replay",
        "/api/v1/workers/{worker_id}/claim",
        "/api/v1/jobs/{job_id}/attempts/{attempt}/finish",
    }


def test_every_successful_answer_shows_an_example_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads(DOCUMENT.read_text())
    shown = 0
    for path, calls in document["paths"].items():
        for method, call in calls.items():
            for status, answer in call["responses"].items():
                content = answer.get("content", {}).get("application/json")
                if status.startswith("2") and content is not None:
                    schema = {"components": document["components"], **content["schema"]}
                    found = list(jsonschema_rs.validator_for(schema).iter_errors(content["example"]))
                    assert not found, f"{method} {path}: {found[0].instance_path}: {found[0]}"
                    # A call that answers with a list shows an item of it.
                    assert content["example"].get("items", True), (method, path)
                    if path.startswith("/api/"):
                        del content["example"]
                    shown += 1
    assert shown > 50

    used = set()

    class Noted(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            used.add(name)
            return super().__getitem__(name)

    monkeypatch.setattr(examples, "FIELDS", Noted(examples.FIELDS))
    examples.add_examples(document)
    assert examples.FIELDS.keys() - used == set()
    document["components"]["schemas"]["SystemView"]["properties"]["motto"] = {"type": "string"}
    answer = document["paths"]["/api/v1/system"]["get"]["responses"]["200"]
    del answer["content"]["application/json"]["example"]
    with pytest.raises(LookupError, match=r"SystemView\.motto has no example"):
        examples.add_examples(document)


def test_a_raised_problem_is_found_wherever_it_is_raised() -> None:
    source = 'def f():\n raise NotFoundError("no-x", f"{1}", near=[1])\n'
    assert raised_in(source, "m.py") == [Raised("no-x", 404, frozenset({"near"}), False, "m.py:2")]
    with pytest.raises(AssertionError, match="hides which problem"):
        raised_in('NotFoundError(slug_of(1), "", "")', "m.py")


def test_every_problem_that_is_raised_is_documented_as_it_is() -> None:
    wrong = []
    for raised in all_raised():
        known = PROBLEMS.get(raised.slug)
        if known is None:
            wrong.append(f"{raised.place}: {raised.slug} is not in service/problems.py")
        elif raised.status not in known.status:
            wrong.append(f"{raised.place}: {raised.slug} is said to have {known.status}, not {raised.status}")
        elif not raised.fields <= known.fields.keys():
            wrong.append(f"{raised.place}: {raised.slug} has more fields: {set(raised.fields)}")
    assert wrong == []


def test_nothing_is_documented_that_is_never_raised() -> None:
    status: dict[str, set[int]] = defaultdict(set)
    fields: dict[str, set[str]] = defaultdict(set)
    for raised in all_raised():
        status[raised.slug].add(raised.status)
        fields[raised.slug] |= raised.fields
    # It stands for whatever else the framework may refuse.
    documented = {slug: problem for slug, problem in PROBLEMS.items() if slug != "http-error"}
    assert documented.keys() == status.keys()
    assert {slug: set(problem.status) for slug, problem in documented.items()} == status
    assert {slug: problem.fields.keys() for slug, problem in documented.items()} == fields


def test_what_service_and_worker_both_refuse_is_worded_once() -> None:
    of_worker = {text for path in sorted(WORKER.rglob("*.py")) for text in texts_in(path)}
    assert texts_in(Path(problems.__file__)) & of_worker == set()


def test_the_checked_in_list_of_problems_is_current() -> None:
    assert problems.DOCUMENT.read_text() == problems.render(), "run `python -m service.problems`"


def described(document: Any) -> Iterator[tuple[str, bool]]:
    """Every call, parameter and field, with whether it is described."""
    for path, calls in document["paths"].items():
        for method, call in calls.items():
            yield f"{method} {path}", bool(call.get("summary") and call.get("description"))
            for parameter in call.get("parameters", ()):
                yield f"{method} {path}: {parameter['name']}", bool(parameter.get("description"))
    for name, schema in document["components"]["schemas"].items():
        for field, value in schema.get("properties", {}).items():
            yield f"{name}.{field}", bool(value.get("description"))


def test_every_call_parameter_and_field_is_described() -> None:
    document = json.loads(DOCUMENT.read_text())
    assert [name for name, is_described in described(document) if not is_described] == []


def test_every_body_has_examples_that_its_schema_allows() -> None:
    document = json.loads(DOCUMENT.read_text())
    bodies = 0
    for path, calls in document["paths"].items():
        for method, call in calls.items():
            for media_type, content in call.get("requestBody", {}).get("content", {}).items():
                if media_type == STREAM_TYPE:
                    continue  # of bytes
                schema = content["schema"] | {"components": document["components"]}
                examples = resolve(document, content["schema"]).get("examples")
                assert examples, f"{method} {path} has no example"
                for example in examples:
                    jsonschema_rs.validate(schema, example)
                bodies += 1
    assert bodies > 10


def resolve(document: Any, schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return dict(document["components"]["schemas"][name]) if name else schema


def test_up_gives_its_worker_the_time_that_it_takes_to_stop() -> None:
    from service.command.processes import STOP_SECONDS
    from worker.agent import main

    assert STOP_SECONDS > main.STOP_SECONDS
