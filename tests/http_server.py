"""An HTTP server on loopback that answers as a test says, and remembers what it was asked."""

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl


@dataclass
class Answer:
    """body: text as it is, anything else as JSON."""

    body: Any = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_seconds: float = 0
    encoding: str = "utf-8"
    """Of the body."""


@dataclass
class Request:
    """headers: with their names in lower case."""

    headers: Mapping[str, str]
    body: str
    """What is no UTF-8 as surrogates."""
    query: Mapping[str, str] = field(default_factory=dict)


Answers = dict[str, Answer | Callable[[Request], Answer]]


@dataclass
class HttpServer:
    """answers: by path, without the query; whatever is not there is 404."""

    port: int
    scheme: str
    answers: Answers
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Method and path, with the headers in lower case."""

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"


@contextmanager
def serving(http: ThreadingHTTPServer) -> Iterator[int]:
    """The port of a server that answers in threads of its own meanwhile."""
    thread = threading.Thread(target=http.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield http.server_address[1]
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


@contextmanager
def answering(answers: Answers, tls: ssl.SSLContext | None = None) -> Iterator[HttpServer]:
    """Serves `answers`, which may be changed meanwhile."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("")

        def do_HEAD(self) -> None:
            self._answer("")

        def do_POST(self) -> None:
            self._answer(
                self.rfile.read(int(self.headers.get("content-length", 0))).decode("utf-8", "surrogateescape")
            )

        def do_PUT(self) -> None:
            self.do_POST()

        def _answer(self, sent: str) -> None:
            path, _, query = self.path.partition("?")
            headers = {name.lower(): value for name, value in self.headers.items()}
            server.requests.append((f"{self.command} {path}", headers))
            found = answers.get(path, Answer("not found", 404))
            answer = (
                found if isinstance(found, Answer) else found(Request(headers, sent, dict(parse_qsl(query))))
            )
            time.sleep(answer.delay_seconds)
            is_text = isinstance(answer.body, str)
            body = (answer.body if is_text else json.dumps(answer.body)).encode(answer.encoding)
            self.send_response(answer.status)
            given = {"content-type": "text/html" if is_text else "application/json"} | dict(answer.headers)
            for name, value in given.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Into nobody's terminal."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    http.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that refuse a certificate hang up
    if tls is not None:
        http.socket = tls.wrap_socket(http.socket, server_side=True)
    server = HttpServer(http.server_address[1], "https" if tls else "http", answers)
    with serving(http):
        yield server


def rest_catalog(metadata: Mapping[str, Any] | None = None, **table: Any) -> Answers:
    """An Iceberg REST catalog with one table, `db.t`. table: of the answer beside its metadata."""
    loaded = {
        "metadata-location": "s3://nowhere/metadata.json",
        "metadata": metadata or {},
        "config": {},
    } | table
    return {
        "/v1/config": Answer({"defaults": {}, "overrides": {}}),
        "/v1/namespaces": Answer({"namespaces": [["db"]]}),
        "/v1/namespaces/db/tables": Answer({"identifiers": [{"namespace": ["db"], "name": "t"}]}),
        "/v1/namespaces/db/tables/t": Answer(loaded),
    }
