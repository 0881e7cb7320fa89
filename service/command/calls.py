"""Calls of the HTTP API from the command line: sent, waited for and printed.

Whatever goes wrong ends the program with words and with 1.
"""

import json
import os
import re
import sys
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote
from uuid import UUID

import httpx
import typer
from rich.console import Console

from service.command.operations import NAMED, Json, Operation, Output
from service.command.printing import print_answer, reason_of
from service.quantities import counted

_WAITS_SECONDS = 1.0
_WHERE = "ICESTREAM_URL says where it is, and ICESTREAM_API_KEY who calls."
_NOUNS = {"/tables": "table", "/api-keys": "API key", "/webhooks": "webhook"}
_ENDED = ("succeeded", "failed", "cancelled")

# What the service says may have brackets, which are no markup.
_err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)


def call(operation: Operation, given: Mapping[str, Any], output: Output) -> None:
    """Makes a call and prints the answer. given: values of its fields, by their Python names."""
    with Client() as client:
        path, query, body = client.fill(operation, given)
        if operation.is_stream:
            client.follow(path, query)
        elif operation.page_items is not None:
            answer = client.read_list(path, query, given.get("limit"), operation.page_items)
            print_answer(answer, output)
        else:
            version = client.version(path) if operation.takes_version else None
            print_answer(client.send(operation.method, path, query, body, version), output)


def wait(job_id: str, output: Output) -> None:
    """Tells the progress of a job until it has ended, and prints it."""
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
    if reason := reason_of(job):
        _err.print(reason)
    if job["status"] != "succeeded":
        raise typer.Exit(1)


class Client:
    """Talks to the service."""

    def __init__(self) -> None:
        url = os.environ.get("ICESTREAM_URL", "http://127.0.0.1:8000")
        key = os.environ.get("ICESTREAM_API_KEY")
        if not key:
            _end(
                "ICESTREAM_API_KEY is not set.",
                "Set it to a key that was made on the page, or to what the service was started with as "
                "ICESTREAM_BOOTSTRAP_KEY. With that one, `icestream auth create-api-key` makes others.",
            )
        try:
            self._http = httpx.Client(
                base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60, follow_redirects=False
            )
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            _end(f"No call can be made with this address and key: {error}.", _WHERE)

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
            if field.is_json:
                value = _parsed(field.name, value)
            elif field.name in NAMED:
                value = self._find(field.name, value)
            elif field.is_dotted:
                value = _parts(field.name, value)
            else:
                value = _unwrapped(value)
            if field.place == "path":
                value = quote(str(value), safe="")
            places[field.place][field.name] = value
        has_body = any(field.place == "body" for field in operation.fields)
        return operation.path.format(**places["path"]), places["query"], places["body"] if has_body else None

    def table_id(self, named: str) -> str:
        """The id of a table that is named by it or by its name."""
        return self._find("table_id", named)

    def _find(self, parameter: str, given: Any) -> str:
        if parameter not in NAMED or _is_id(given):
            return str(given)
        path, field = NAMED[parameter]
        # A table may be named with its catalog, as catalog.namespace.table or catalog/namespace.table.
        search = given.rpartition("/")[2].rpartition(".")[2] if parameter == "table_id" else given
        found = self.read_list(f"/api/v1{path}", {"search": search}, None)["items"]
        exact = [one for one in found if given in _names(one, field)]
        if not exact:
            _end(f"No {_NOUNS[path]} is named {given}.", "Look at the list, or give the id.")
        if len(exact) > 1:
            ids = "; ".join(f"{one['id']} is {_described(one, field)}" for one in exact)
            _end(f"{counted(len(exact), _NOUNS[path])} are named {given}.", f"Give the id of one: {ids}.")
        return str(exact[0]["id"])

    def read_list(self, path: str, query: Json, limit: int | None, page_items: int = 500) -> Json:
        """Items of as many pages as it takes to have `limit` of them; all, without one."""
        items: list[Any] = []
        while True:
            rest = page_items if limit is None else min(page_items, limit - len(items))
            page = self.send("GET", path, {**query, "limit": rest})
            if not isinstance(page, dict) or "items" not in page:
                _end(f"What answers at {self._http.base_url} is not Icestream.", _WHERE)
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
        _end(f"The service at {self._http.base_url} can't be reached: {error}.", _WHERE)


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def _names(one: Json, field: str) -> tuple[str, ...]:
    """All that a thing can be called by on the command line."""
    name, catalog = one[field], one.get("catalog")
    return (name,) if catalog is None else (name, f"{catalog}.{name}", f"{catalog}/{name}")


def _described(one: Json, field: str) -> str:
    branch = f" on branch {one['branch']}" if "branch" in one else ""
    return f"{one[field]} of catalog {one['catalog']}{branch}" if "catalog" in one else str(one[field])


def _parts(name: str, given: list[str]) -> list[str]:
    """Of a dotted name; of JSON, or where several were given, each as it is."""
    if len(given) != 1:
        return given
    (word,) = given
    if not word.startswith("["):
        return word.split(".")
    parts = _parsed(name, word)
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        _end(f"--{name} is no list of words: {word}.", "Write shop.orders, or a list of its parts in JSON.")
    return parts


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
    detail, remedy = (str(problem.get(key) or "") for key in ("detail", "remedy"))
    mistakes = _mistakes(problem)
    if not mistakes or any(message not in detail for message in mistakes.values()):
        _err.print(detail)
    for field, message in mistakes.items():
        if message not in remedy:
            _err.print(f"  {field}: {message}")
    _err.print(remedy)
    raise typer.Exit(1)


def _mistakes(problem: Json) -> dict[str, str]:
    """What is wrong with each field that a problem names."""
    return {
        re.sub(r"^(body|query|path)\.", "", str(each["field"])): str(each["message"])
        for each in problem.get("errors") or ()
        if isinstance(each, dict) and each.keys() >= {"field", "message"}
    }


def _end(what: str, remedy: str) -> NoReturn:
    _err.print(what, style="bold red")
    _err.print(remedy)
    raise typer.Exit(1)
