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

from service.command import help_texts
from service.command.completion import Complete, names_of

Json = dict[str, Any]

_DOCUMENT = Path(__file__).with_name("openapi.json")
"""A link to the one that is checked in, which becomes a file of the installed package."""
METHODS = ("get", "post", "put", "patch", "delete")
_LARGE_PAGE = 500
_OF_PROGRAMS = {
    *("register_worker", "claim_job", "report_heartbeat", "reserve_addresses", "finish_attempt"),
    *("notify_by_event", "notify_signed"),
}
"""Calls that only programs make: workers, and what passes on events of object stores and catalogs."""
NAMED = {
    "table_id": ("/tables", "name"),
    "key_id": ("/api-keys", "name"),
    "webhook_id": ("/webhooks", "name"),
    "sender_id": ("/notification-senders", "name"),
    "pattern_id": ("/patterns", "pattern"),
}
"""Where things are looked for whose name is given and not their id: the list, and its field of names.

Catalogs and policies are not: the service takes their names for ids."""
_COMPLETED = {
    **dict.fromkeys(("catalog", "catalog_id"), "/catalogs"),
    **dict.fromkeys(("policy", "policy_id"), "/policies"),
    **dict.fromkeys(("table_id", "job_id", "tables"), "/tables"),
    "worker": "/workers",
    **{name: path for name, (path, field) in NAMED.items() if field == "name"},
}
"""Where names are listed that a shell can complete: it would take a pattern for its own."""
_HIDDEN = frozenset({"cursor"})
"""Lists are read to the end, or to --limit."""
DOTTED = frozenset({"identifier", "namespace"})
"""Lists of parts that people write as one word, with dots."""


_OR_ITS_NAME = {
    "job_id": " The name of a table will do, too: its newest job.",
    "key_id": " Its name will do, too.",
    "webhook_id": " Its name will do, too.",
    "sender_id": " Its name will do, too.",
    "pattern_id": " What it matches will do, too, with its catalog before it or without: lake.sales.*",
}
_DOTTED_WORDS = " Here with dots, as in shop.orders; if a part has dots itself, once for each part."
_TIME_WORDS = " Written as 2030-01-31T22:00:00Z."


def text(given: str) -> str:
    """Help calls an argument what this function is called, in place of a type of Python."""
    return given


def argument(
    metavar: str,
    words: str,
    complete: Complete | None = None,
    *,
    show_default: bool | str = False,
) -> Any:
    """A word without a name before it, as help shows all of them."""
    return typer.Argument(
        metavar=metavar, parser=text, help=words, show_default=show_default, autocompletion=complete
    )


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
    is_nullable: bool = False

    @property
    def python_name(self) -> str:
        return re.sub(r"\W", "_", self.name)

    @property
    def shown_name(self) -> str:
        """As people write it: what is named by itself is no id of it."""
        is_of_names = self.place == "path" or self.name in NAMED or self.name == "job_id"
        return self.python_name.removesuffix("_id") if is_of_names else self.python_name

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
        words = self.description + _OR_ITS_NAME.get(self.name, "")
        many = self.schema.get("type") == "array" and not self.is_json
        kind = str if self.is_json else self._kind(self.schema["items"] if many else self.schema)
        kind = list[kind] if many else kind  # type: ignore[valid-type]
        complete = names_of(_COMPLETED[self.name]) if self.name in _COMPLETED else None
        if self.place == "path":
            return Annotated[str, argument(self.shown_name.upper(), words, complete)]
        if self.is_json:
            words += " JSON, or @FILE with it."
        elif self.is_nullable:
            words = re.sub(r"\b[Nn]ull\b", '""', words)
        words += _DOTTED_WORDS if self.is_dotted else ""
        words += _TIME_WORDS if self.schema.get("format") == "date-time" else ""
        option_name = f"--{self.shown_name.replace('_', '-')}"
        if kind is bool:
            option_name += f"/--no-{option_name.removeprefix('--')}"
        option = typer.Option(
            option_name, metavar=self._metavar(), help=words, show_default=False, autocompletion=complete
        )
        return Annotated[kind if self.is_required else kind | None, option]

    def _metavar(self) -> str | None:
        """What stands for the value of an option; None where its values are told, or it has none."""
        if self.is_json:
            return "JSON"
        if self.name in _COMPLETED:
            return self.shown_name.upper().removesuffix("S")
        schema = self.schema["items"] if self.schema.get("type") == "array" else self.schema
        if "enum" in schema or schema["type"] == "boolean":
            return None
        if schema["type"] in ("integer", "number"):
            return "SECONDS" if self.name.endswith("_seconds") else "NUMBER"
        return "TIME" if schema.get("format") == "date-time" else "TEXT"

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
        for method in METHODS:
            if method in calls and calls[method]["operationId"] not in _OF_PROGRAMS:
                yield _operation(document, path, method, calls[method])


def _operation(document: Json, path: str, method: str, call: Json) -> Operation:
    parameters = call.get("parameters", [])
    fields = [
        _field(document, call, parameter["in"], parameter["name"], parameter, parameter["schema"])
        for parameter in parameters
        if parameter["in"] != "header" and parameter["name"] not in _HIDDEN
    ]
    if body := call.get("requestBody"):
        schema = _plain(document, body["content"]["application/json"]["schema"])
        fields += [
            _field(
                document, call, "body", name, {**field, "required": name in schema.get("required", ())}, field
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
        description=help_texts.OPERATIONS.get(call["operationId"]) or str(call.get("description", "")),
        fields=tuple(fields),
        takes_version=any(parameter["name"].lower() == "if-match" for parameter in parameters),
        page_items=_page_items(fields) if "next_cursor" in shown.get("properties", {}) else None,
        is_stream="text/event-stream" in content,
    )


def _field(document: Json, call: Json, place: Any, name: str, told: Json, schema: Json) -> Field:
    """told: its description, and whether it is required."""
    described = str(told.get("description", ""))
    return Field(
        name,
        place,
        _plain(document, schema),
        help_texts.FIELDS.get(f"{call['operationId']}.{name}", help_texts.FIELDS.get(name, described)),
        told.get("required", False),
        any(one.get("type") == "null" for one in schema.get("anyOf", ())),
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
