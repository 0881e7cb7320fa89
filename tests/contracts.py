"""What a new OpenAPI document takes away from clients that were written against an older one.

A request may be given more freedom, an answer more fields; never the other way round. Descriptions and
examples are free. The documents are those that FastAPI writes: no `allOf`, no parameters by reference.

`python -m tests.contracts` writes openapi/released.json: what is compared of the document, a line for each
path and each schema.
"""

import json
from collections.abc import Iterator
from typing import Any

from service.command.openapi import DOCUMENT

Schema = dict[str, Any]
_NARROWING = {
    "minimum": 1,
    "exclusiveMinimum": 1,
    "minLength": 1,
    "minItems": 1,
    "maximum": -1,
    "exclusiveMaximum": -1,
    "maxLength": -1,
    "maxItems": -1,
}
"""Bounds, and the direction in which they allow less."""
_WORDS = {"description", "example", "examples", "security", "summary", "tags", "title"}
_NAMING = {"content", "headers", "properties", "responses"}
"""Below these stand names, some of which are also words of OpenAPI."""
RELEASED = DOCUMENT.with_name("released.json")


def released_form(document: Schema) -> str:
    """What is compared of a document, as JSON with a line for each path and each schema."""
    paths, schemas = (
        ",\n".join(f"{json.dumps(name)}: {json.dumps(_wordless(part[name]))}" for name in sorted(part))
        for part in (document["paths"], document["components"]["schemas"])
    )
    return f'{{"paths": {{\n{paths}\n}}, "components": {{"schemas": {{\n{schemas}\n}}}}}}\n'


def _wordless(value: Any, *, are_names: bool = False) -> Any:
    match value:
        case dict():
            return {
                key: _wordless(item, are_names=key in _NAMING and not are_names)
                for key, item in sorted(value.items())
                if are_names or key not in _WORDS
            }
        case list():
            return [_wordless(item) for item in value]
        case _:
            return value


def breaking_changes(old: Schema, new: Schema) -> list[str]:
    """In words, each with the place; empty if every client of `old` works with `new`."""
    return list(dict.fromkeys(_Comparison(old, new).document()))


class _Comparison:
    def __init__(self, old: Schema, new: Schema) -> None:
        self.old, self.new = old, new
        self._seen: set[tuple[str, str, bool]] = set()

    def document(self) -> Iterator[str]:
        for path, calls in self.old["paths"].items():
            for method, old in calls.items():
                new = self.new["paths"].get(path, {}).get(method)
                place = f"{method.upper()} {path}"
                if new is None:
                    yield f"{place} is gone"
                    continue
                if old["operationId"] != new["operationId"]:
                    yield f"{place} is called {new['operationId']}, was {old['operationId']}"
                yield from self._parameters(place, old, new)
                yield from self._body(place, old, new)
                yield from self._answers(place, old, new)

    def _parameters(self, place: str, old: Schema, new: Schema) -> Iterator[str]:
        before = {(one["in"], one["name"]): one for one in old.get("parameters", ())}
        after = {(one["in"], one["name"]): one for one in new.get("parameters", ())}
        for (where, name), parameter in before.items():
            spot = f"{place}: {where} parameter {name}"
            if (where, name) not in after:
                yield f"{spot} is gone"
                continue
            found = after[where, name]
            if found.get("required") and not parameter.get("required"):
                yield f"{spot} is required now"
            yield from self._schema(spot, parameter["schema"], found["schema"], sent=True)
            if parameter["schema"].get("default") != found["schema"].get("default"):
                yield f"{spot} has another default"
        for where, name in after.keys() - before.keys():
            if after[where, name].get("required"):
                yield f"{place}: {where} parameter {name} is new and required"

    def _body(self, place: str, old: Schema, new: Schema) -> Iterator[str]:
        before, after = old.get("requestBody", {}), new.get("requestBody", {})
        if after.get("required") and not before.get("required"):
            yield f"{place}: a body is required now"
        for kind, content in before.get("content", {}).items():
            if kind not in after.get("content", {}):
                yield f"{place}: a body of {kind} is no longer taken"
            else:
                schema = after["content"][kind]["schema"]
                yield from self._schema(f"{place}: body", content["schema"], schema, sent=True)

    def _answers(self, place: str, old: Schema, new: Schema) -> Iterator[str]:
        for status, answer in old["responses"].items():
            found = new["responses"].get(status)
            if found is None:
                yield f"{place}: {status} is no longer answered"
                continue
            for header in answer.get("headers", {}).keys() - found.get("headers", {}).keys():
                yield f"{place}: {status} has no header {header} any more"
            for kind, content in answer.get("content", {}).items():
                if kind not in found.get("content", {}):
                    yield f"{place}: {status} is no longer {kind}"
                else:
                    schema = found["content"][kind].get("schema", {})
                    yield from self._schema(
                        f"{place}: {status}", content.get("schema", {}), schema, sent=False
                    )
        for status in new["responses"].keys() - old["responses"].keys():
            if status.startswith("2"):
                yield f"{place}: {status} is a new answer to success"

    def _schema(self, place: str, old: Schema, new: Schema, *, sent: bool) -> Iterator[str]:
        """What `new` takes away from clients that send (`sent`) or read what `old` describes."""
        names = (str(old.get("$ref", id(old))), str(new.get("$ref", id(new))), sent)
        if names in self._seen:
            return
        self._seen.add(names)
        old, new = _resolved(self.old, old), _resolved(self.new, new)
        before, after = _kinds(self.old, old), _kinds(self.new, new)
        # What may be sent must be accepted still, what may be read must have been possible before.
        if sent and not after.keys() >= before.keys() and "any" not in after:
            yield f"{place} no longer takes {_words(before.keys() - after.keys())}"
        if not sent and not before.keys() >= after.keys() and "any" not in before:
            yield f"{place} may be {_words(after.keys() - before.keys())} now"
        for kind in before.keys() & after.keys():
            yield from self._same_kind(place, before[kind], after[kind], sent=sent)

    def _same_kind(self, place: str, old: Schema, new: Schema, *, sent: bool) -> Iterator[str]:
        wide, narrow = (old, new) if sent else (new, old)
        if "enum" in narrow and (more := set(wide.get("enum", ["anything"])) - set(narrow["enum"])):
            yield f"{place} {'no longer takes' if sent else 'may be'} {_words(map(repr, more))}"
        if narrow.get("format") not in (None, wide.get("format")) or (
            narrow.get("pattern") not in (None, wide.get("pattern"))
        ):
            yield f"{place} has another format"
        for bound, direction in _NARROWING.items():
            limit, had = narrow.get(bound), wide.get(bound)
            if limit is not None and (had is None or (limit - had) * direction > 0):
                yield f"{place} {'allows less' if sent else 'may be more'}: {bound}"
        fields, found = old.get("properties", {}), new.get("properties", {})
        for name, schema in fields.items():
            if name in found:
                yield from self._schema(f"{place}.{name}", schema, found[name], sent=sent)
            else:
                yield f"{place}.{name} is gone"
        required, needed = set(old.get("required", ())), set(new.get("required", ()))
        for name in sorted((needed - required) if sent else (required - needed) & found.keys()):
            yield f"{place}.{name} is {'required now' if sent else 'not always there any more'}"
        if sent and new.get("additionalProperties") is False and old.get("additionalProperties") is not False:
            yield f"{place} no longer takes other fields"
        for part in ("items", "additionalProperties"):
            if isinstance(old.get(part), dict) and isinstance(new.get(part), dict):
                yield from self._schema(f"{place}[]", old[part], new[part], sent=sent)


def _resolved(document: Schema, schema: Schema) -> Schema:
    name = schema.get("$ref", "").rpartition("/")[2]
    return dict(document["components"]["schemas"][name]) if name else schema


def _kinds(document: Schema, schema: Schema) -> dict[str, Schema]:
    """The alternatives of a schema by their type: one of each, as far as our documents go."""
    alternatives = schema.get("anyOf") or schema.get("oneOf") or [schema]
    found = {}
    for alternative in alternatives:
        resolved = _resolved(document, alternative)
        if "const" in resolved:
            resolved = {**resolved, "enum": [resolved["const"]]}
        found[str(resolved.get("type", "any"))] = resolved
    if "number" in found:
        found.setdefault("integer", found["number"])
    return found


def _words(names: Any) -> str:
    return ", ".join(sorted(names))


if __name__ == "__main__":
    RELEASED.write_text(released_form(json.loads(DOCUMENT.read_text())))
