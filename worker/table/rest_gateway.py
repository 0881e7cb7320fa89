"""REST catalogs, which Java asks through this process only.

Java's client goes where names, redirects and a catalog's configuration lead it, and loads classes that this
names. So it is given a gateway on loopback, which asks the catalog itself: with its credentials, through the
session of PyIceberg, at addresses that are allowed, following no redirect. Of the answers, Java gets what
`trust.rest_answers` lets the catalog decide.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, lru_cache, partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from pydantic import ValidationError
from requests import PreparedRequest, RequestException, Response, Session

from stores.file_io import GOOGLE_SCHEMES
from stores.rest_catalog import ConfinedRestCatalog
from stores.signatures import CannotSignError
from trust.bounds import Budget, LimitExceededError
from trust.egress import Egress, HostNotAllowedError
from trust.rest_answers import SentElsewhereError, UnreadableAnswerError
from worker.process.slots import ALONE, Slot

_ANSWER_SECONDS = 300.0
"""Until the last byte of an answer, or of all that opening takes, however many come before."""
# What this side says to the catalog, and Java need not.
_OURS = ("uri", "token", "credential", "oauth2-server-uri", "scope", "audience", "resource")
_REST_KEYS = ("rest.access-key-id", "rest.secret-access-key", "rest.session-token")
_OURS_PREFIXES = ("header.", "rest.auth.", "rest.sigv4", "rest.signing", "rest.client.proxy.", *_REST_KEYS)
_TIMEOUTS = {"rest.client.connection-timeout-ms": 10_000, "rest.client.socket-timeout-ms": 60_000}
"""As Java names them, with what holds without them: to connect, and for a silence."""
# Of one connection, or for the body as it is sent.
_HOP = frozenset(
    (
        "accept-encoding",
        "authorization",
        "connection",
        "content-encoding",
        "content-length",
        "date",
        "host",
        "server",
        "set-cookie",
        "transfer-encoding",
    )
)
_RENEWAL = "renewed/"
"""Before the path of a table, of whose answer only the credentials are wanted. In between stands for which
locations: how these begin, in hex, or nothing."""
_GOOGLE = tuple(f"{scheme}:" for scheme in GOOGLE_SCHEMES)
_NAMESPACE = "/namespaces/[^/]+"
_TABLE = f"{_NAMESPACE}/tables/[^/]+"
_OPERATIONS = (
    ("GET", "/v1/config", "getConfig"),
    ("POST", "/oauth/tokens", "getToken"),
    ("GET", "/namespaces", "listNamespaces"),
    ("POST", "/namespaces", "createNamespace"),
    ("GET", _NAMESPACE, "loadNamespaceMetadata"),
    ("HEAD", _NAMESPACE, "namespaceExists"),
    ("DELETE", _NAMESPACE, "dropNamespace"),
    ("GET", f"{_NAMESPACE}/tables", "listTables"),
    ("POST", f"{_NAMESPACE}/tables", "createTable"),
    ("GET", _TABLE, "loadTable"),
    ("HEAD", _TABLE, "tableExists"),
    ("POST", _TABLE, "updateTable"),
    ("DELETE", _TABLE, "dropTable"),
    ("POST", f"{_TABLE}/metrics", "reportMetrics"),
    ("GET", f"{_TABLE}/credentials", "loadCredentials"),
)
_EXPIRED = (HTTPStatus.UNAUTHORIZED, 419)
_DELEGATION = "header.x-iceberg-access-delegation"


class RestGateway:
    """One catalog.

    url: what Java takes for its address; it can't be guessed. refusal: why the last request was not carried
    out, or its answer not handed on, if that was for its limits. requests: that the catalog answered, by
    their operation as Iceberg's protocol calls it, those for its configuration and for tokens too.
    """

    def __init__(self, name: str, properties: Mapping[str, str], egress: Egress) -> None:
        """Asks the catalog for its configuration. Raises HostNotAllowedError, SentElsewhereError,
        LimitExceededError, and whatever PyIceberg and requests raise."""
        with Budget(_ANSWER_SECONDS):
            self._catalog = _RestCatalog(name, properties, egress)
        self.refusal: Exception | None = None
        self.requests = self._catalog.requests
        server, gateways = _server()
        token = secrets.token_urlsafe(32)
        gateways[token] = self
        self.url = f"http://127.0.0.1:{server.server_address[1]}/{token}"
        self._catalog.gateway_url = self._catalog.answers.gateway_url = self.url

    def java_properties(self, java: Mapping[str, str]) -> dict[str, str]:
        """Java's properties of the catalog, for Java behind the gateway."""
        kept = {key: value for key, value in java.items() if not _is_ours(key) and key not in _TIMEOUTS}
        return kept | {"uri": self.url, "rest.auth.type": "none"}

    def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> _Answer:
        """The catalog's answer. path: with the query, and without a slash before it.

        Of a change that went wrong here, nobody can tell whether the catalog made it: that is 500, which Java
        takes so. It asks again when a question was answered with 500, and not with 403.
        """
        self.refusal = None
        with Budget(_ANSWER_SECONDS):
            if path.startswith(_RENEWAL):
                return self._renew(path.removeprefix(_RENEWAL), headers)
            return self._ask(method, path, headers, body)

    def _renew(self, asked: str, headers: Mapping[str, str]) -> _Answer:
        """The credentials that the catalog vends for a table by now, as Iceberg's protocol tells them alone.

        asked: what `_renewal_url` has behind `renewed/`. What is vended with a table is had again with it,
        whatever else a catalog offers. Java takes an answer with one place only.
        """
        of, _, table = asked.partition("/")
        status, kept, content = answer = self._ask("GET", f"{table}?snapshots=refs", headers, b"")
        if status != HTTPStatus.OK:
            return answer
        said = json.loads(content)
        if not isinstance(said, dict):
            return _error(403, UnreadableAnswerError())
        wanted = bytes.fromhex(of).decode(errors="surrogatepass") or str(said.get("metadata-location"))
        places = {one["prefix"]: one.get("config", {}) for one in said.get("storage-credentials", [])}
        nearest = max((prefix for prefix in places if wanted.startswith(prefix)), key=len, default=None)
        given = said.get("config", {}) if nearest is None else places[nearest]
        root, names = ("gs", "gcs.") if wanted.startswith(_GOOGLE) else ("s3", "s3.")
        config = {name: value for name, value in given.items() if value and name.startswith(names)}
        told = {"storage-credentials": [{"prefix": root if nearest is None else nearest, "config": config}]}
        return status, kept, json.dumps(told).encode()

    def _ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> _Answer:
        catalog = self._catalog
        if catalog.is_vending:
            # That a table has not changed says nothing of what was vended with it, which Java would keep.
            headers = {name: value for name, value in headers.items() if name.lower() != "if-none-match"}
        base = catalog.given_uri if path.partition("?")[0] == "v1/config" else catalog.uri
        send = partial(
            catalog._session.request, method, f"{base.rstrip('/')}/{path}", headers=headers, data=body
        )
        try:
            answer = send()
            if answer.status_code in _EXPIRED:
                catalog._refresh_token()
                answer = send()
        except (HostNotAllowedError, SentElsewhereError, UnreadableAnswerError, LimitExceededError) as error:
            self.refusal = None if isinstance(error, UnreadableAnswerError) else error
            return _error(403 if method in ("GET", "HEAD") else 500, error)
        except CannotSignError as error:
            return _error(403, error)  # it was not sent
        except (RequestException, OSError) as error:
            return _error(500, error)
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
        return answer.status_code, kept, answer.content


def open_gateway(
    name: str, properties: tuple[tuple[str, str], ...], egress: Egress, slot: Slot = ALONE
) -> RestGateway:
    """The gateway for a catalog, which stays open. Raises as RestGateway does.

    slot: each has gateways of its own. So a refusal is that of its job, and jobs elsewhere, however many
    catalogs they use, close none that it goes on using.
    """
    return _opener(slot)(name, properties, egress)


@cache
def _opener(_: Slot) -> Callable[[str, tuple[tuple[str, str], ...], Egress], RestGateway]:
    return lru_cache(maxsize=32)(lambda name, properties, egress: RestGateway(name, dict(properties), egress))


def words_of(error: Exception) -> str:
    """What went wrong with a catalog, on one line; nothing of an answer that can't be read."""
    if isinstance(error, ValidationError | ValueError) and not isinstance(error, RequestException):
        return "what it answered is not what a catalog says"
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


class _RestCatalog(ConfinedRestCatalog):
    """Asked for Java, which knows it by the gateway's address."""

    def __init__(self, name: str, properties: Mapping[str, str], egress: Egress) -> None:
        self.gateway_url: str | None = None
        self.requests: Counter[str] = Counter()
        connect, read = (int(properties.get(name, most)) / 1000 for name, most in _TIMEOUTS.items())
        self.timeout = connect, read
        super().__init__(name, properties, egress.addresses_of, egress.check)

    def _config_headers(self, session: Session) -> None:
        super()._config_headers(session)
        if not self.is_vending:
            del session.headers["X-Iceberg-Access-Delegation"]  # it is Java that would use what is vended

    @property
    def is_vending(self) -> bool:
        """Whether it is asked for credentials of a table's store."""
        return any(key.lower() == _DELEGATION for key in self.properties)

    def _take_apart(self, response: Response, *_: Any, **__: Any) -> None:
        sent = response.request
        self.requests[_operation(str(sent.method), urlsplit(str(sent.url)).path)] += 1
        super()._take_apart(response)

    def _renewal_url(self, request: PreparedRequest) -> Callable[[str], str] | None:
        """Where Java has anew what is vended with a table that it asked for, by the place that it is for."""
        base = f"{self.uri.rstrip('/')}/"
        path = str(request.url).partition("?")[0]
        if not self.gateway_url or request.method != "GET" or not path.startswith(base):
            return None
        table = path.removeprefix(base)

        def url(prefix: str) -> str:
            return f"{self.gateway_url}/{_RENEWAL}{prefix.encode(errors='surrogatepass').hex()}/{table}"

        return url


def _operation(method: str, path: str) -> str:
    """Of a request, as Iceberg's protocol calls it; its method and path for one that it does not know."""
    for of_method, ending, operation in _OPERATIONS:
        if of_method == method and re.search(f"{ending}$", path):
            return operation
    return f"{method} {path}"


_Answer = tuple[int, Mapping[str, str], bytes]


def _error(status: int, error: Exception) -> _Answer:
    said = {"message": words_of(error), "type": type(error).__name__, "code": status}
    return status, {"Content-Type": "application/json"}, json.dumps({"error": said}).encode()


def _is_ours(key: str) -> bool:
    return key in _OURS or key.startswith(_OURS_PREFIXES)


@cache
def _server() -> tuple[ThreadingHTTPServer, WeakValueDictionary[str, RestGateway]]:
    """This process's one server on loopback, and the gateways behind it by the first part of their paths."""
    gateways: WeakValueDictionary[str, RestGateway] = WeakValueDictionary()

    class Handler(BaseHTTPRequestHandler):
        # Java goes on with a connection. To make one for each request took a thread each.
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # a body would wait until its headers are there

        def handle(self) -> None:
            with suppress(ConnectionError):  # Java has left, and nobody reads it
                super().handle()

        def _pass_on(self) -> None:
            _, token, path = (*self.path.split("/", 2), "", "")[:3]
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
            gateway = gateways.get(token)
            answer = gateway.ask(self.command, path, headers, body) if gateway else (404, {}, b"")
            status, answered, content = answer
            self.send_response(status)
            for name, value in answered.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Into nobody's log: the path holds the token."""

    for method in ("GET", "HEAD", "POST", "DELETE"):
        setattr(Handler, f"do_{method}", Handler._pass_on)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="rest-gateway", daemon=True).start()
    return server, gateways
