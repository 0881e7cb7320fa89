"""A REST catalog before another one, which does less than that, or vends credentials beside."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import httpx

from tests.http_server import serving
from tests.patience import PATIENCE_SECONDS
from tests.s3 import S3

Body = dict[str, Any]
Judge = Callable[[str, str, Body], Body]
"""Of a request's method, its path with the query, and its body: the body as it goes on."""


Amend = Callable[[str, str, Body], Body]
"""Of a request's method, its path, and what was answered with 200: the answer as it goes on."""


class RefusedError(Exception):
    """By a judge, in the words of a catalog."""


@contextmanager
def limited(uri: str, judge: Judge, amend: Amend = lambda _, __, answer: answer) -> Iterator[str]:
    """The address of a catalog that asks the one at `uri` for what is not refused, with 400."""

    class Handler(BaseHTTPRequestHandler):
        def _pass_on(self) -> None:
            sent = self.rfile.read(int(self.headers.get("content-length", 0)))
            try:
                body = judge(self.command, self.path, json.loads(sent or b"{}"))
            except RefusedError as error:
                said = {"message": str(error), "type": "BadRequestException", "code": 400}
                self._answer(400, json.dumps({"error": said}).encode())
                return
            content = json.dumps(body).encode() if sent else b""
            headers = {"content-type": "application/json"}
            answer = client.request(self.command, self.path, content=content, headers=headers)
            if answer.status_code != 200 or not answer.content:
                self._answer(answer.status_code, answer.content)
                return
            self._answer(200, json.dumps(amend(self.command, self.path, answer.json())).encode())

        def _answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Into nobody's terminal."""

    for method in ("GET", "HEAD", "POST", "DELETE"):
        setattr(Handler, f"do_{method}", Handler._pass_on)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with httpx.Client(base_url=uri, timeout=PATIENCE_SECONDS) as client, serving(server) as port:
        yield f"http://127.0.0.1:{port}"


def without_version_3(method: str, path: str, body: Body) -> Body:
    if _creates_table(method, path) and body["properties"]["format-version"] == "3":
        raise RefusedError("Unsupported format version: v3")
    return body


def s3_tables(store: S3) -> Judge:
    """As they do: a bucket for each table and no other place, no properties of namespaces, no drop without a
    purge."""

    def judge(method: str, path: str, body: Body) -> Body:
        if _creates_table(method, path):
            if body.get("location"):
                raise RefusedError("A location can't be given.")
            return body | {"location": store.create_bucket(f"{uuid4()}--table-s3")}
        if method == "POST" and path.endswith("/namespaces") and body.get("properties"):
            raise RefusedError("A namespace has no properties.")
        if method == "DELETE" and "/tables/" in path and "purgeRequested=true" not in path:
            raise RefusedError("A table can only be dropped with its files.")
        return body

    return judge


def vending(credentials: Callable[[], dict[str, str]], prefix: str) -> Amend:
    """With each table that is made or opened. prefix: of the locations that they are for."""

    def amend(_: str, __: str, answer: Body) -> Body:
        if "metadata-location" not in answer:
            return answer
        return answer | {"storage-credentials": [{"prefix": prefix, "config": credentials()}]}

    return amend


def _creates_table(method: str, path: str) -> bool:
    return method == "POST" and path.endswith("/tables")
