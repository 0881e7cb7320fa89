"""Every call of the HTTP API as a command (`icestream tables list`), made from the OpenAPI document.

So the command line knows whatever the API does, with its words: what stands in paths becomes arguments,
queries and the fields of bodies become options. It needs neither FastAPI nor a database, only ICESTREAM_URL
and ICESTREAM_API_KEY.
"""

import inspect
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn
from uuid import UUID

import httpx
import typer
from rich.console import Console

from service.printing import Output, print_answer

Json = dict[str, Any]

_DOCUMENT = Path(__file__).with_name("openapi.json")
"""A link to the one that is checked in, which becomes a file of the installed package."""
_METHODS = ("get", "post", "put", "patch", "delete")
_OF_WORKERS = {"register_worker", "claim_job", "report_heartbeat", "reserve_addresses", "finish_attempt"}
"""Calls that only a worker's program makes."""
_NAMED = {
    "table_id": ("/tables", "name"),
    "key_id": ("/api-keys", "name"),
}
"""Where things are looked for whose name is given and not their id: the list, and its field of names."""
_WAITS_SECONDS = 1.0
_ENDED = ("succeeded", "failed", "cancelled")

_err = Console(stderr=True, highlight=False, soft_wrap=True)


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
    def is_json(self) -> bool:
        """Objects, and lists of something other than words and numbers, are written as JSON."""
        schema = self.schema
        if schema.get("type") == "array":
            schema = schema["items"]
        return schema.get("type") in ("object", "array", None) and "enum" not in schema

    def annotation(self) -> Any:
        """What Typer makes an argument or option of."""
        many = self.schema.get("type") == "array" and not self.is_json
        kind = str if self.is_json else self._kind(self.schema["items"] if many else self.schema)
        kind = list[kind] if many else kind  # type: ignore[valid-type]
        if self.place == "path":
            named = " Its name will do, too." if self.name in _NAMED else ""
            return Annotated[
                kind,
                typer.Argument(metavar=self.name.upper(), help=self.description + named, show_default=False),
            ]
        words = self.description + (" JSON, or @FILE with it." if self.is_json else "")
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
    is_list: bool
    is_stream: bool

    @property
    def name(self) -> str:
        """What it does, without the noun of its group: `list` for list_tables in `tables`."""
        nouns = {self.group, self.group.removesuffix("s"), self.group.removesuffix("ies") + "y"}
        return "-".join(word for word in self.id.split("_") if word not in nouns)


def load_document() -> Json:
    return dict(json.loads(_DOCUMENT.read_text()))


def operations(document: Json) -> Iterator[Operation]:
    """All calls but those of workers."""
    for path, calls in document["paths"].items():
        for method in _METHODS:
            if method in calls and calls[method]["operationId"] not in _OF_WORKERS:
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
        is_list="next_cursor" in shown.get("properties", {}),
        is_stream="text/event-stream" in content,
    )


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


def add_commands(app: typer.Typer) -> None:
    """A group of commands for each tag of the document."""
    groups: dict[str, typer.Typer] = {}
    document = load_document()
    descriptions = {tag["name"]: tag["description"] for tag in document["tags"]}
    for operation in operations(document):
        if operation.group not in groups:
            groups[operation.group] = typer.Typer(no_args_is_help=True)
            words = descriptions[operation.group]
            app.add_typer(groups[operation.group], name=operation.group, help=words, rich_help_panel="API")
        groups[operation.group].command(operation.name, help=operation.description)(_command(operation))
    groups["jobs"].command("wait")(wait)


def _command(operation: Operation) -> Callable[..., None]:
    def call(**given: Any) -> None:
        output, limit = given.pop("output"), given.get("limit")
        with Client() as client:
            path, query, body = client.fill(operation, given)
            if operation.is_stream:
                client.follow(path, query)
            elif operation.is_list:
                print_answer(client.read_list(path, query, limit), output)
            else:
                version = client.version(path) if operation.takes_version else None
                print_answer(client.send(operation.method, path, query, body, version), output)

    parameters = [
        inspect.Parameter(
            field.python_name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.is_required else None,
            annotation=field.annotation(),
        )
        for field in sorted(operation.fields, key=lambda field: not field.is_required)
    ]
    shown = Annotated[Output, typer.Option("--output", "-o", help="How the answer is printed.")]
    parameters.append(
        inspect.Parameter("output", inspect.Parameter.KEYWORD_ONLY, default=Output.TABLE, annotation=shown)
    )
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def wait(
    job_id: Annotated[str, typer.Argument(help="Id of a job.", show_default=False)],
    output: Annotated[Output, typer.Option("--output", "-o", help="How the job is printed.")] = Output.TABLE,
) -> None:
    """Wait until a job has ended, and show it. Ends with 1 unless it succeeded."""
    told = None
    with Client() as client:
        while True:
            job = client.send("GET", f"/api/v1/jobs/{job_id}")
            if job["status"] in _ENDED:
                break
            progress = job.get("progress") or {}
            words = " ".join(
                str(word) for word in (job["status"], job["waiting_for"], progress.get("stage")) if word
            )
            if progress.get("total"):
                words += f" {progress['done']}/{progress['total']} {progress.get('unit') or ''}"
            if words != told:
                _err.print(words)
                told = words
            time.sleep(_WAITS_SECONDS)
    print_answer(job, output)
    if job["status"] != "succeeded":
        raise typer.Exit(1)


class Client:
    """Talks to the service; whatever goes wrong ends the program with words and with 1."""

    def __init__(self) -> None:
        url = os.environ.get("ICESTREAM_URL", "http://127.0.0.1:8000")
        key = os.environ.get("ICESTREAM_API_KEY")
        if not key:
            _end(
                "ICESTREAM_API_KEY is not set.",
                "Make a key on the page or with `icestream auth create-api-key`.",
            )
        self._http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60, follow_redirects=False
        )

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def fill(self, operation: Operation, given: Mapping[str, Any]) -> tuple[str, Json, Json | None]:
        """The path, query and body of a call."""
        places: dict[str, Json] = {"path": {}, "query": {}, "body": {}}
        for field in operation.fields:
            value = given.get(field.python_name)
            if value is None:
                continue
            if field.place == "path":
                value = self._find(field.name, value)
            elif field.is_json:
                value = _parsed(field.name, value)
            else:
                value = _unwrapped(value)
            places[field.place][field.name] = value
        has_body = any(field.place == "body" for field in operation.fields)
        return operation.path.format(**places["path"]), places["query"], places["body"] if has_body else None

    def _find(self, parameter: str, given: Any) -> str:
        if parameter not in _NAMED or _is_id(given):
            return str(given)
        path, field = _NAMED[parameter]
        found = self.read_list(f"/api/v1{path}", {"search": given.rpartition("/")[2]}, None)["items"]
        exact = [one for one in found if given in (one[field], f"{one.get('catalog')}/{one[field]}")]
        if not exact:
            _end(f"None of {path.strip('/')} is named {given}.", "Look at the list, or give the id.")
        if len(exact) > 1:
            ids = ", ".join(
                f"{one['id']} ({one.get('catalog', '')} {one.get('branch', '')})" for one in exact
            )
            _end(f"{len(exact)} of {path.strip('/')} are named {given}.", f"Give the id of one: {ids}.")
        return str(exact[0]["id"])

    def read_list(self, path: str, query: Json, limit: int | None) -> Json:
        """Items of as many pages as it takes to have `limit` of them; all, without one."""
        items: list[Any] = []
        while True:
            rest = 500 if limit is None else min(500, limit - len(items))
            page = self.send("GET", path, {**query, "limit": rest})
            items += page["items"]
            cursor = page["next_cursor"]
            if cursor is None or (limit is not None and len(items) >= limit):
                return {**page, "items": items}
            query = {**query, "cursor": cursor}

    def version(self, path: str) -> str | None:
        """The version of what is at `path` now, or None where nothing is read."""
        version: str | None = self._request("GET", path).headers.get("ETag")
        return version

    def send(
        self,
        method: str,
        path: str,
        query: Json | None = None,
        body: Json | None = None,
        version: str | None = None,
    ) -> Any:
        headers = {"If-Match": version} if version else {}
        answer = self._request(method, path, params=query, json=body, headers=headers)
        if not answer.content:
            return None
        is_json = answer.headers.get("Content-Type", "").startswith("application/json")
        return answer.json() if is_json else answer.text

    def follow(self, path: str, query: Json) -> None:
        """Prints events, one line of JSON each, until the service ends the stream or Ctrl-C is pressed."""
        try:
            with self._http.stream("GET", path, params=query, timeout=None) as answer:
                if answer.is_error:
                    answer.read()
                    _refuse(answer)
                for line in answer.iter_lines():
                    if line.startswith("data:"):
                        sys.stdout.write(line.removeprefix("data:").strip() + "\n")
                        sys.stdout.flush()
        except KeyboardInterrupt:
            return
        except httpx.TransportError as error:
            self._unreachable(error)

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **options)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            self._unreachable(error)
        if answer.is_error:
            _refuse(answer)
        return answer

    def _unreachable(self, error: Exception) -> NoReturn:
        _end(
            f"The service at {self._http.base_url} can't be reached: {error}.",
            "ICESTREAM_URL says where it is.",
        )


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def _unwrapped(value: Any) -> Any:
    """Without the enumerations that Typer reads words into."""
    if isinstance(value, list):
        return [_unwrapped(one) for one in value]
    return value.value if isinstance(value, Enum) else value


def _parsed(name: str, text: str | list[str]) -> Any:
    assert isinstance(text, str)
    try:
        return json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    except (OSError, ValueError) as error:
        _end(f"--{name.replace('_', '-')} is not JSON: {error}.", "Write JSON, or @FILE with it.")


def _refuse(answer: httpx.Response) -> NoReturn:
    try:
        problem = answer.json()
        problem["title"]
    except (ValueError, KeyError, TypeError):
        _end(f"The service answered {answer.status_code}.", answer.text[:500])
    _err.print(f"{problem['title']} ({answer.status_code})", style="bold red")
    for key in ("detail", "remedy"):
        if problem.get(key):
            _err.print(problem[key])
    for mistake in problem.get("errors", ()):
        _err.print(f"  {mistake}")
    raise typer.Exit(1)


def _end(what: str, remedy: str) -> NoReturn:
    _err.print(what, style="bold red")
    _err.print(remedy)
    raise typer.Exit(1)
