"""The calls of the HTTP API, as the OpenAPI document tells of them, with fields that a command can take.

What stands in paths becomes arguments, queries and the fields of bodies become options.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Json = dict[str, Any]

_DOCUMENT = Path(__file__).with_name("openapi.json")
"""A link to the one that is checked in, which becomes a file of the installed package."""
_METHODS = ("get", "post", "put", "patch", "delete")
_LARGE_PAGE = 500
_OF_PROGRAMS = {
    *("register_worker", "claim_job", "report_heartbeat", "reserve_addresses", "finish_attempt"),
    "notify_by_event",
}
"""Calls that only programs make: workers, and object stores."""
NAMED = {
    "table_id": ("/tables", "name"),
    "key_id": ("/api-keys", "name"),
    "webhook_id": ("/webhooks", "name"),
}
"""Where things are looked for whose name is given and not their id: the list, and its field of names.

Catalogs and policies are not: the service takes their names for ids."""
DOTTED = frozenset({"identifier", "namespace"})
"""Lists of parts that people write as one word, with dots."""


_DOTTED_WORDS = " Here with dots, as in shop.orders; if a part has dots itself, once for each part."


class Output(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True)
class Field:
    """A parameter of a call, or a field of its body."""

    name: str
    place: Literal["path", "query", "body"]
    schema: Json
    description: str
    is_required: bool

    @property
    def python_name(self) -> str:
        return re.sub(r"\W", "_", self.name)

    @property
    def is_dotted(self) -> bool:
        return self.name in DOTTED and self.schema.get("type") == "array"

    @property
    def is_json(self) -> bool:
        """Objects, and lists of something other than words and numbers, are written as JSON."""
        schema = self.schema
        if schema.get("type") == "array":
            schema = schema["items"]
        return schema.get("type") in ("object", "array", None) and "enum" not in schema

    def annotation(self) -> Any:
        """What Typer makes an argument or option of."""
        words = self.description
        if self.name in NAMED:
            words += " Its name will do, too" + (
                ": shop.orders, or lake.shop.orders with its catalog." if self.name == "table_id" else "."
            )
        many = self.schema.get("type") == "array" and not self.is_json
        kind = str if self.is_json else self._kind(self.schema["items"] if many else self.schema)
        kind = list[kind] if many else kind  # type: ignore[valid-type]
        if self.place == "path":
            return Annotated[kind, typer.Argument(metavar=self.name.upper(), help=words, show_default=False)]
        words += " JSON, or @FILE with it." if self.is_json else ""
        words += _DOTTED_WORDS if self.is_dotted else ""
        option = typer.Option(help=words, show_default=False)
        return Annotated[kind if self.is_required else kind | None, option]

    def _kind(self, schema: Json) -> Any:
        if "enum" in schema:
            return Enum(self.python_name, {one: one for one in schema["enum"]}, type=str)
        return {"integer": int, "number": float, "boolean": bool}.get(schema["type"], str)


@dataclass(frozen=True)
class Operation:
    """A call of the API."""

    id: str
    group: str
    method: str
    path: str
    description: str
    fields: tuple[Field, ...]
    takes_version: bool
    """It changes a version that was read before (If-Match)."""
    page_items: int | None
    """How many a page of its list is asked for; None for what is no list."""
    is_stream: bool

    @property
    def name(self) -> str:
        """What it does, without the noun of its group: `list` for list_tables in `tables`."""
        nouns = {self.group, self.group.removesuffix("s"), self.group.removesuffix("ies") + "y"}
        return "-".join(word for word in self.id.split("_") if word not in nouns)


def load_document() -> Json:
    return dict(json.loads(_DOCUMENT.read_text()))


def operations(document: Json) -> Iterator[Operation]:
    """All calls that people make."""
    for path, calls in document["paths"].items():
        for method in _METHODS:
            if method in calls and calls[method]["operationId"] not in _OF_PROGRAMS:
                yield _operation(document, path, method, calls[method])


def _operation(document: Json, path: str, method: str, call: Json) -> Operation:
    parameters = call.get("parameters", [])
    fields = [
        Field(
            parameter["name"],
            parameter["in"],
            _plain(document, parameter["schema"]),
            parameter.get("description", ""),
            parameter.get("required", False),
        )
        for parameter in parameters
        if parameter["in"] != "header"
    ]
    if body := call.get("requestBody"):
        schema = _plain(document, body["content"]["application/json"]["schema"])
        fields += [
            Field(
                name,
                "body",
                _plain(document, field),
                field.get("description", ""),
                name in schema.get("required", ()),
            )
            for name, field in schema["properties"].items()
        ]
        # What stands in the query of a body of another type stands in a body of JSON itself.
        in_body = {field.name for field in fields if field.place == "body"}
        fields = [field for field in fields if field.place != "query" or field.name not in in_body]
    answer: Json = next((said for status, said in call["responses"].items() if status.startswith("2")), {})
    content = answer.get("content", {})
    shown = _plain(document, content.get("application/json", {}).get("schema", {}))
    return Operation(
        id=call["operationId"],
        group=call["tags"][0],
        method=method.upper(),
        path=path,
        description=str(call.get("description", "")),
        fields=tuple(fields),
        takes_version=any(parameter["name"].lower() == "if-match" for parameter in parameters),
        page_items=_page_items(fields) if "next_cursor" in shown.get("properties", {}) else None,
        is_stream="text/event-stream" in content,
    )


def _page_items(fields: Iterable[Field]) -> int:
    """As many as a page may have; of a list whose pages are small since each item takes long, the usual."""
    limit = next(field.schema for field in fields if field.name == "limit")
    most: int = limit["maximum"]
    return most if most >= _LARGE_PAGE else int(limit["default"])


def _plain(document: Json, schema: Json) -> Json:
    """Without references, and without null: what is not given is left out."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _plain(document, document["components"]["schemas"][name])
    if "anyOf" in schema:
        given = [one for one in schema["anyOf"] if one.get("type") != "null"]
        return _plain(document, given[0]) if len(given) == 1 else {}
    if "const" in schema:
        return {"type": "string", "enum": [schema["const"]]}
    if schema.get("type") == "array":
        return {**schema, "items": _plain(document, schema.get("items", {}))}
    return schema
