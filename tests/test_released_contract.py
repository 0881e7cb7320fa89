"""The contract of the last release holds: `make release-contract` changes it, on purpose, with a release."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from service.command.openapi import DOCUMENT
from tests.contracts import RELEASED, breaking_changes, released_form

SMALL: dict[str, Any] = {
    "paths": {
        "/things": {
            "post": {
                "operationId": "make_thing",
                "parameters": [
                    {"in": "query", "name": "sort", "schema": {"type": "string", "enum": ["a", "b"]}},
                    {
                        "in": "query",
                        "name": "limit",
                        "schema": {"type": "integer", "maximum": 9, "default": 5},
                    },
                ],
                "requestBody": {
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Sent"}}}
                },
                "responses": {
                    "200": {
                        "headers": {"ETag": {}},
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Read"}}},
                    },
                    "4XX": {"content": {"application/problem+json": {"schema": {}}}},
                },
            },
        },
    },
    "components": {
        "schemas": {
            "Sent": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string", "maxLength": 20},
                    "size": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                    "tags": {"type": "array", "items": {"type": "string"}},
                },
            },
            "Read": {
                "type": "object",
                "required": ["id", "state"],
                "properties": {
                    "id": {"type": "string"},
                    "state": {"type": "string", "enum": ["old", "new"]},
                    "parent": {"$ref": "#/components/schemas/Read"},
                },
            },
        },
    },
}
Change = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], object]


def call(document: dict[str, Any]) -> dict[str, Any]:
    return dict(document["paths"]["/things"])["post"]  # type: ignore[no-any-return]


def changed(change: Change) -> list[str]:
    """What breaks when `change` is done to the call, what is sent, and what is read after a release."""
    new = copy.deepcopy(SMALL)
    schemas = new["components"]["schemas"]
    change(call(new), schemas["Sent"], schemas["Read"])
    return breaking_changes(json.loads(released_form(SMALL)), new)


BREAKING: dict[str, Change] = {
    "is called create_thing": lambda call, sent, read: call.update(operationId="create_thing"),
    "query parameter sort is gone": lambda call, sent, read: call["parameters"].pop(0),
    "query parameter sort is required now": lambda call, sent, read: call["parameters"][0].update(
        required=True
    ),
    "query parameter sort no longer takes 'b'": lambda call, sent, read: call["parameters"][0][
        "schema"
    ].update(enum=["a"]),
    "query parameter limit allows less: maximum": lambda call, sent, read: call["parameters"][1][
        "schema"
    ].update(maximum=8),
    "query parameter limit has another default": lambda call, sent, read: call["parameters"][1][
        "schema"
    ].update(default=6),
    "query parameter key is new and required": lambda call, sent, read: call["parameters"].append(
        {"in": "query", "name": "key", "required": True, "schema": {}}
    ),
    "a body is required now": lambda call, sent, read: call["requestBody"].update(required=True),
    "a body of application/json is no longer taken": lambda call, sent, read: call["requestBody"].update(
        content={}
    ),
    "200 is no longer answered": lambda call, sent, read: call["responses"].pop("200"),
    "201 is a new answer to success": lambda call, sent, read: call["responses"].update({"201": {}}),
    "200 has no header ETag any more": lambda call, sent, read: call["responses"]["200"].pop("headers"),
    "4XX is no longer application/problem+json": lambda call, sent, read: call["responses"]["4XX"].update(
        content={"application/json": {}}
    ),
    "body.tags is gone": lambda call, sent, read: sent["properties"].pop("tags"),
    "body.size is required now": lambda call, sent, read: sent["required"].append("size"),
    "body.size no longer takes null": lambda call, sent, read: sent["properties"].update(
        size={"type": "integer"}
    ),
    "body.name no longer takes string": lambda call, sent, read: sent["properties"].update(
        name={"type": "integer"}
    ),
    "body.name allows less: maxLength": lambda call, sent, read: sent["properties"]["name"].update(
        maxLength=19
    ),
    "body.name allows less: minLength": lambda call, sent, read: sent["properties"]["name"].update(
        minLength=1
    ),
    "body.name has another format": lambda call, sent, read: sent["properties"]["name"].update(pattern="x"),
    "body.tags[] no longer takes string": lambda call, sent, read: sent["properties"]["tags"].update(
        items={"type": "integer"}
    ),
    "body no longer takes other fields": lambda call, sent, read: sent.update(additionalProperties=False),
    "200.id is gone": lambda call, sent, read: read["properties"].pop("id"),
    "200.id is not always there any more": lambda call, sent, read: read["required"].remove("id"),
    "200.id may be null now": lambda call, sent, read: read["properties"].update(
        id={"anyOf": [{"type": "string"}, {"type": "null"}]}
    ),
    "200.state may be 'lost'": lambda call, sent, read: read["properties"]["state"]["enum"].append("lost"),
    "200.state may be 'anything'": lambda call, sent, read: read["properties"]["state"].pop("enum"),
}
HARMLESS: dict[str, Change] = {
    "a new parameter": lambda call, sent, read: call["parameters"].append(
        {"in": "query", "name": "key", "schema": {}}
    ),
    "a new choice to send": lambda call, sent, read: call["parameters"][0]["schema"]["enum"].append("c"),
    "a new field to send": lambda call, sent, read: sent["properties"].update(new={"type": "string"}),
    "a field need not be sent": lambda call, sent, read: sent["required"].remove("name"),
    "more may be sent": lambda call, sent, read: sent["properties"]["name"].pop("maxLength"),
    "a number may be broken": lambda call, sent, read: sent["properties"].update(
        size={"anyOf": [{"type": "number"}, {"type": "null"}]}
    ),
    "null may be sent": lambda call, sent, read: sent["properties"].update(
        name={"anyOf": [{"type": "string"}, {"type": "null"}]}
    ),
    "a new field to read": lambda call, sent, read: read["properties"].update(new={"type": "string"}),
    "a field is always there": lambda call, sent, read: read["required"].append("parent"),
    "less may be read": lambda call, sent, read: read["properties"]["state"]["enum"].remove("old"),
    "words": lambda call, sent, read: call.update(description="Other words."),
}


@pytest.mark.parametrize("what", BREAKING)
def test_a_breaking_change_is_found(what: str) -> None:
    assert [found for found in changed(BREAKING[what]) if what in found], changed(BREAKING[what])


@pytest.mark.parametrize("what", HARMLESS)
def test_a_harmless_change_is_none(what: str) -> None:
    assert changed(HARMLESS[what]) == []


def test_a_call_that_is_gone_is_found() -> None:
    assert breaking_changes(SMALL, {"paths": {}, "components": {"schemas": {}}}) == ["POST /things is gone"]


def test_a_released_contract_keeps_no_words_and_every_name() -> None:
    named: dict[str, Any] = {"title": {"type": "string", "title": "Title", "description": "Words."}}
    document = {"paths": {}, "components": {"schemas": {"Thing": {"properties": named, "title": "Thing"}}}}
    kept = json.loads(released_form(document))["components"]["schemas"]
    assert kept == {"Thing": {"properties": {"title": {"type": "string"}}}}


def test_the_contract_of_the_last_release_is_kept() -> None:
    released, current = json.loads(RELEASED.read_text()), json.loads(DOCUMENT.read_text())
    assert breaking_changes(released, current) == [], "keep the old way, or decide on a new major version"
