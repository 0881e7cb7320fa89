"""Calls of the HTTP API from the command line: sent, waited for and printed.

Whatever goes wrong ends the program with words and with 1.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from getpass import getpass
from pathlib import Path
from typing import Any, NoReturn, Self
from urllib.parse import quote

import httpx
import typer
from rich.console import Console

from icestream.connection import Connection, is_id, json_of
from icestream.errors import (
    ForbiddenError,
    IcestreamError,
    ProblemError,
    SetupError,
    UnknownNameError,
    UnreachableError,
    refusal,
)
from icestream.jobs import ENDS
from service.command import saved_login
from service.command.columns import progress, reason_of
from service.command.operations import METHODS, NAMED, Json, Operation, Output, load_document, operations
from service.command.printing import harmless, print_answer
from service.confirmations import words_before
from telemetry.plurals import counted

_WAITS_SECONDS = 1.0
_STREAM_ENDED = "The service has ended the stream."
_PASSING = (429, 502, 503, 504)
"""Of a service, or what stands before it, while it is started anew or has too much to do."""
_PATIENCE_SECONDS = 600.0
_CANDIDATES = 100
_ATTACHMENTS = 500
"""On a page of their list."""
_NAMED = 20
"""Of more tables, a question tells the number."""

# What the service says may have brackets, which are no markup.
_err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)


def say(words: str, style: str = "") -> None:
    """On standard error, with nothing that steers the terminal."""
    _err.print(harmless(words), style=style)


def call(operation: Operation, given: Json, output: Output, *, is_sure: bool) -> None:
    """Makes a call and prints the answer. given: values of its fields, by their Python names.

    is_sure: that nobody is to be asked whether that is what they want.
    """
    with Client() as client:
        if operation.id == "enroll_table":
            given = client.split_name(given)
        path, query, body = client.fill(operation, given)
        if not is_sure and (words := client.words_before(operation, path, query | (body or {}))):
            _make_call_sure(client, operation, given, body or {}, words)
        if operation.is_stream:
            client.follow(path, query)
        elif operation.page_items is not None:
            if operation.id == "find_candidates":
                answer = client.read_candidates(path, query, given.get("limit"))
            else:
                answer = client.read_list(path, query, given.get("limit"), operation.page_items)
            if operation.id == "find_candidates" and output in (Output.TABLE, Output.WIDE):
                # By the name that enrols them.
                answer["items"] = [{**one, "catalog": given["catalog_id"]} for one in answer["items"]]
            print_answer(answer, output, operation.id)
        else:
            version = client.version(path) if operation.takes_version else None
            print_answer(client.send(operation.method, path, query, body, version), output, operation.id)


def _make_call_sure(
    client: "Client", operation: Operation, given: Mapping[str, Any], body: Json, words: str
) -> None:
    named = [str(given[field.python_name]) for field in operation.fields if field.place == "path"]
    kind = ["--kind", body["kind"]] if operation.id == "request_job" else []
    command = " ".join([operation.group, operation.name, *named, *kind])
    make_sure(command, words, lambda: client.told_before(operation, body))


def make_sure(command: str, words: str, told: Callable[[], list[str]] = list) -> None:
    """Ends the program unless somebody is there and says yes. words: why that is asked; told: more of it."""
    if not sys.stdin.isatty():
        say(f"Nobody can be asked whether {command} is meant: say so with --yes. Nothing was done.")
        raise typer.Exit(2)
    say(words)
    for line in told():
        say(line)
    if not typer.confirm(harmless(f"{command}: is that what you want?", lines=False), err=True):
        say("Nothing was done.")
        raise typer.Exit(1)


def wait(job_id: str, output: Output) -> None:
    """Tells the progress of a job until it has ended, and prints it."""
    told = None
    with Client() as client:
        path = f"/api/v1/jobs/{client.find('job_id', job_id)}"
        job = client.send("GET", path)
        while True:
            if job["status"] in ENDS:
                break
            words = " ".join(filter(None, (job["status"], job["waiting_for"], progress(job))))
            if words != told:
                say(words)
                told = words
            time.sleep(_WAITS_SECONDS)
            job = client.send_again(path)
    print_answer(job, output)
    if reason := reason_of(job):
        say(reason)
    if job["status"] != "succeeded":
        raise typer.Exit(1)


def log_in(url: str | None) -> None:
    """Keeps an address and a key, once the service there knows the key. url: None for the usual one."""
    try:
        if url is None:
            url = saved_login.service_url()
        url = url.rstrip("/")
        if sys.stdin.isatty():
            key = getpass(f"API key for {harmless(url, lines=False)}: ").strip()
        else:
            key = sys.stdin.readline().strip()
        if not key:
            raise SetupError("No key was given.", "Type it, or write it to standard input.")
        with Connection(url, key) as connection:
            me = json_of(connection.request("GET", "/api/v1/me"))
        path = saved_login.save(saved_login.Login(url, key))
    except IcestreamError as error:
        end(error)
    say(f"Logged in to {url} as {me['name']} ({me['role']}). {path} keeps that, for you alone.")
    for variable in ("ICESTREAM_URL", "ICESTREAM_API_KEY"):
        if os.environ.get(variable):
            say(f"{variable} is set, and goes before it.")


def log_out() -> None:
    try:
        forgotten = saved_login.forget()
    except IcestreamError as error:
        end(error)
    say(
        "Logged out. `icestream auth revoke-api-key` ends the key itself."
        if forgotten
        else "Nobody is logged in."
    )


class _Patience:
    """With a service that has answered, and is started anew meanwhile, or has too much to do."""

    def __init__(self) -> None:
        self._away_since: float | None = None

    def wait(self, error: IcestreamError) -> None:
        """Before it is asked again. Ends the program if that is of no use, or was done for long enough."""
        is_away = isinstance(error, UnreachableError)
        if not is_away and not (isinstance(error, ProblemError) and error.status in _PASSING):
            end(error)
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            say(f"{error.detail} It is asked again for up to {_PATIENCE_SECONDS / 60:.0f} minutes.")
        elif now - self._away_since > _PATIENCE_SECONDS:
            end(error)
        time.sleep(_WAITS_SECONDS)


class Client:
    """Talks to the service."""

    def __init__(self, wait_seconds: float = 0) -> None:
        """wait_seconds: as of `Connection`."""
        try:
            login = saved_login.find()
            self._connection = Connection(login.url, login.api_key, wait_seconds=wait_seconds)
        except IcestreamError as error:
            end(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def fill(self, operation: Operation, given: Mapping[str, Any]) -> tuple[str, Json, Json | None]:
        """The path, query and body of a call."""
        places: dict[str, Json] = {"path": {}, "query": {}, "body": {}}
        for field in operation.fields:
            value = given.get(field.python_name)
            if value is None:
                continue
            if field.is_nullable and value in ("", [""]):
                value = None
            elif field.is_json:
                value = _parsed(field.name, value)
            elif field.name in NAMED or field.name == "job_id":
                value = self.find(field.name, value)
            elif field.is_dotted:
                value = _parts(field.name, value)
            else:
                value = _unwrapped(value)
            if field.place == "path":
                value = quote(str(value), safe="")
            places[field.place][field.name] = value
        has_body = any(field.place == "body" for field in operation.fields)
        return operation.path.format(**places["path"]), places["query"], places["body"] if has_body else None

    def words_before(self, operation: Operation, path: str, body: Json) -> str | None:
        """Why somebody is to be asked before a call; None if it is made at once."""
        if operation.id == "retry_job":
            body = self.send("GET", path.removesuffix("/retry"))
        words = words_before(operation.id, body)
        if operation.id != "attach_policy":
            return words
        there = self._attached(body)
        return None if there in (None, body["policy"]) else f"{there} is attached there. {words}"

    def _attached(self, body: Json) -> str | None:
        """The policy that is where a call would attach one."""
        if body.get("table_id"):
            found: str | None = self.send("GET", f"/api/v1/tables/{body['table_id']}")["policy"]
            return found
        query = {name: body[name] for name in ("level", "catalog") if body.get(name)}
        listed = self.read_list("/api/v1/policy-attachments", query, None, _ATTACHMENTS)["items"]
        places = {tuple(one["namespace"] or ()): str(one["policy"]) for one in listed}
        return places.get(tuple(body.get("namespace") or ()))

    def told_before(self, operation: Operation, body: Json) -> list[str]:
        """What a call would be of, beyond what its command names."""
        if operation.id not in ("create_erasure", "delete_rows"):
            return []
        tables = []
        if operation.id == "create_erasure":
            tables = self.send(operation.method, operation.path, body={**body, "dry_run": True})["tables"]
        keys, files = body.get("keys"), body.get("files") or ()
        what = (
            counted(len(keys), "key") if isinstance(keys, list) else f"keys of {counted(len(files), 'file')}"
        )
        if not tables:
            return [f"{what}."]
        names = [f"{one['catalog']}.{one['table']}" for one in tables]
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        return [f"{what}, from {counted(len(names), 'table')}: {', '.join(names[:_NAMED])}{more}."]

    def lookups_path(self, table: str) -> str:
        """table: named by its id or by its name."""
        try:
            return self._connection.lookups_path(table)
        except IcestreamError as error:
            end(error)

    def find(self, parameter: str, given: Any) -> str:
        """The id of what is named; of a table whose job is meant, that of its newest one."""
        if is_id(given):
            return str(given)
        try:
            if parameter != "job_id":
                return str(self._connection.find(*NAMED[parameter], given)["id"])
            query = {"table_id": self._connection.table_id(given)}
            newest = self._connection.read_list("/api/v1/jobs", query, 1)["items"]
        except IcestreamError as error:
            end(error)
        if not newest:
            end(UnknownNameError(f"{given} has no job.", "`icestream jobs request` queues one."))
        return str(newest[0]["id"])

    def split_name(self, given: Json) -> Json:
        """The catalog and the identifier of a table that is to be enrolled, from its name."""
        named = given.get("table")
        if named and given.get("identifier"):
            raise typer.BadParameter("Name the table once: with TABLE or with --identifier.")
        if named and given.get("catalog"):
            return {**given, "identifier": [named]}
        if named is None:
            if not given.get("catalog") or not given.get("identifier"):
                raise typer.BadParameter("Name the table, as lake.shop.orders, with its catalog first.")
            return given
        try:
            catalogs = self._connection.read_list("/api/v1/catalogs", {})["items"]
        except ForbiddenError:  # to a key that may enrol, and list no catalogs
            catalogs = [{"name": named.partition(".")[0]}] if "." in named else []
        except IcestreamError as error:
            end(error)
        names = [one["name"] for one in catalogs]
        # A catalog's name may have dots itself.
        before = [name for name in names if named.startswith(f"{name}.")]
        if not before and len(names) == 1:
            return {**given, "catalog": names[0], "identifier": [named]}
        if not before:
            known = ", ".join(names) or "none yet"
            what_to_do = f"Write it first, as {names[0]}.{named}." if names else "Register one first."
            end(UnknownNameError(f"No catalog's name begins {named}; there are: {known}.", what_to_do))
        catalog = max(before, key=len)
        return {**given, "catalog": catalog, "identifier": [named.removeprefix(f"{catalog}.")]}

    def read_list(self, path: str, query: Json, limit: int | None, page_items: int) -> Json:
        """Items of as many pages as it takes to have `limit` of them; all, without one."""
        try:
            return self._connection.read_list(path, query, limit, page_items)
        except IcestreamError as error:
            end(error)

    def read_candidates(self, path: str, query: Json, limit: int | None) -> Json:
        """Those of all tables: the service ranks as many at a time as it can look at, which takes a while."""
        sort = str(query.get("sort") or "-read_overhead_seconds")
        if not sort.endswith("read_overhead_seconds"):
            return self.read_list(path, query, limit, _CANDIDATES)
        items: list[Json] = []
        page = self.send("GET", path, {**query, "limit": min(limit or _CANDIDATES, _CANDIDATES)})
        if page["looked_at"] >= page["tables"]:
            left = None if limit is None else limit - len(page["items"])
            if page["next_cursor"] is None or left == 0:
                return dict(page)
            rest = self.read_list(path, {**query, "cursor": page["next_cursor"]}, left, _CANDIDATES)
            return {**rest, "items": page["items"] + rest["items"]}
        looked_at = 0
        while True:
            items += page["items"]
            if page["looked_at"] > looked_at:
                looked_at = page["looked_at"]
                say(f"Looked into {looked_at:,} of {counted(page['tables'], 'table')} ...")
            if page["next_cursor"] is None:
                break
            query = {**query, "cursor": page["next_cursor"]}
            page = self.send("GET", path, {**query, "limit": _CANDIDATES})
        items.sort(key=lambda one: float(one["read_overhead_seconds"]), reverse=sort.startswith("-"))
        if limit is not None and len(items) > limit:
            say(f"{limit:,} of {len(items):,} are shown: --limit tells how many.")
        return {**page, "items": items[:limit]}

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
        return json_of(self._request(method, path, params=query, json=body, headers=headers))

    def send_again(self, path: str) -> Any:
        """What is at `path` now, where something was: a service that is started anew is waited for."""
        patience = _Patience()
        while True:
            try:
                return json_of(self._connection.request("GET", path))
            except IcestreamError as error:
                patience.wait(error)

    def follow(self, path: str, query: Json) -> None:
        """Prints events, one line of JSON each, until Ctrl-C is pressed. A stream that ends goes on after its
        last event, once it has begun."""
        patience, last = None, ""
        try:
            while True:
                headers = {"Last-Event-ID": last} if last else {}
                try:
                    for line in self._lines(path, query, headers):
                        patience = _Patience()
                        if line.startswith("id:"):
                            last = line.removeprefix("id:").strip()
                        elif line.startswith("data:"):
                            # As JSON that has no character but those of ASCII.
                            sys.stdout.write(json.dumps(json.loads(line.removeprefix("data:"))) + "\n")
                            sys.stdout.flush()
                    error: IcestreamError = UnreachableError(_STREAM_ENDED, "")
                except IcestreamError as problem:
                    error = problem
                if patience is None:
                    end(error)
                patience.wait(error)
        except KeyboardInterrupt:
            return

    def _lines(self, path: str, query: Json, headers: Mapping[str, str]) -> Iterator[str]:
        """Of a stream, until it ends. Raises IcestreamError."""
        try:
            with self._connection.http.stream(
                "GET", path, params=query, headers=headers, timeout=None
            ) as answer:
                if answer.is_error:
                    answer.read()
                    raise refusal(answer)
                yield ""  # it has begun
                yield from answer.iter_lines()
        except httpx.TransportError as error:
            raise self._connection.unreachable(error) from error

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._connection.request(method, path, **options)
        except IcestreamError as error:
            end(error)


def _parts(name: str, given: list[str]) -> list[str]:
    """Of a dotted name; of JSON, or where several were given, each as it is."""
    if len(given) != 1:
        return given
    (word,) = given
    if not word.startswith("["):
        return word.split(".")
    parts = _parsed(name, word)
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        end(
            SetupError(
                f"--{name} is no list of words: {word}.", "Write shop.orders, or a list of its parts in JSON."
            )
        )
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
        end(SetupError(f"--{name.replace('_', '-')} is not JSON: {error}.", "Write JSON, or @FILE with it."))


def end(error: IcestreamError) -> NoReturn:
    if isinstance(error, ProblemError) and error.title:
        say(error.title, style="bold red")
        mistakes = _mistakes(error.fields)
        if not mistakes or any(message not in error.detail for message in mistakes.values()):
            say(error.detail)
        for field, message in mistakes.items():
            if message not in error.remedy:
                say(f"  {field}: {message}")
    else:
        say(error.detail, style="bold red")
    say(_in_commands(error.remedy))
    raise typer.Exit(1)


def _in_commands(words: str) -> str:
    """With the command in place of each call of the API."""
    if "/" not in words:
        return words
    known = {
        (one.method, re.sub(r"{\w+}", "{}", one.path)): f"`icestream {one.group} {one.name}`"
        for one in operations(load_document())
    }

    def command(call: re.Match[str]) -> str:
        path = "/api/v1" + re.sub(r"{\w+}", "{}", call[2]).removeprefix("/api/v1")
        return known.get((call[1], path), call[0])

    words = words.replace("/docs describes every call of the API", "--help tells what there is")
    return re.sub(rf"`?\b({'|'.join(METHODS).upper()}) (/[\w/{{}}-]+)`?", command, words)


def _mistakes(problem: Json) -> dict[str, str]:
    """What is wrong with each field that a problem names."""
    return {
        re.sub(r"^(body|query|path)\.", "", str(each["field"])): str(each["message"])
        for each in problem.get("errors") or ()
        if isinstance(each, dict) and each.keys() >= {"field", "message"}
    }
