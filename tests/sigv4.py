"""The server's side of AWS's Signature Version 4, from its description alone: nothing here is botocore's.

A proxy before a catalog on loopback hands on what is rightly signed and refuses the rest in AWS's words.
"""

import hmac
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote, urlsplit

from tests.http_server import serving
from tests.patience import PATIENCE_SECONDS

_TOLERANCE = timedelta(minutes=5)
_HOP = frozenset(("content-length", "transfer-encoding", "connection", "date", "server"))
Headers = Mapping[str, str]


class RefusedError(Exception):
    """kind: AWS's name of it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


@dataclass
class Signatures:
    """What the server knows, and what it was asked.

    secrets: by the ids of keys; tokens: of those that have a session. expired: ids of keys whose session is
    over. ahead: how far this server's clock is ahead.
    """

    service: str = "glue"
    region: str = "eu-central-1"
    secrets: dict[str, str] = field(default_factory=lambda: {"AKIDRECORD": "secret/of+record"})
    tokens: dict[str, str] = field(default_factory=dict)
    expired: set[str] = field(default_factory=set)
    ahead: timedelta = timedelta()
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path with the query as it was sent, and whose key it was; of what was let through."""
    refused: list[str] = field(default_factory=list)

    def check(self, method: str, target: str, headers: Headers, body: bytes) -> str:
        """The id of the key that signed it. headers: with their names in lower case. Raises RefusedError."""
        scheme, _, rest = headers.get("authorization", "").partition(" ")
        if scheme != "AWS4-HMAC-SHA256":
            raise RefusedError("MissingAuthenticationTokenException", "Missing Authentication Token")
        parts = dict(part.strip().split("=", 1) for part in rest.split(","))
        key_id, date, region, service, end = parts["Credential"].split("/")
        if key_id not in self.secrets:
            raise RefusedError(
                "UnrecognizedClientException", "The security token included in the request is invalid."
            )
        if headers.get("x-amz-security-token") != self.tokens.get(key_id):
            raise RefusedError(
                "UnrecognizedClientException", "The security token included in the request is invalid"
            )
        if key_id in self.expired:
            raise RefusedError(
                "ExpiredTokenException", "The security token included in the request is expired"
            )
        if (region, end) != (self.region, "aws4_request"):
            raise RefusedError(
                "InvalidSignatureException",
                f"Credential should be scoped to a valid region, not '{region}'.",
            )
        if service != self.service:
            raise RefusedError(
                "InvalidSignatureException",
                f"Credential should be scoped to correct service: '{self.service}'.",
            )
        self._check_time(headers["x-amz-date"], date)
        signed = parts["SignedHeaders"].split(";")
        must = {"host", *(name for name in headers if name.startswith("x-amz-"))}
        if not must <= set(signed) or signed != sorted(signed):
            raise RefusedError("InvalidSignatureException", f"{must - set(signed)} must be signed")
        request = "\n".join(
            (
                method,
                _canonical_path(urlsplit(target).path),
                _canonical_query(urlsplit(target).query),
                *(f"{name}:{' '.join(headers.get(name, '').split())}" for name in signed),
                "",
                parts["SignedHeaders"],
                sha256(body).hexdigest(),
            )
        )
        if headers.get("x-amz-content-sha256", sha256(body).hexdigest()) != sha256(body).hexdigest():
            raise RefusedError("XAmzContentSHA256Mismatch", "The provided header does not match the body.")
        scope = f"{date}/{region}/{service}/aws4_request"
        said = f"AWS4-HMAC-SHA256\n{headers['x-amz-date']}\n{scope}\n{sha256(request.encode()).hexdigest()}"
        key = f"AWS4{self.secrets[key_id]}".encode()
        for part in (date, region, service, "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        if not hmac.compare_digest(hmac.digest(key, said.encode(), "sha256").hex(), parts["Signature"]):
            raise RefusedError(
                "InvalidSignatureException",
                "The request signature we calculated does not match the signature you provided. Check your "
                "AWS Secret Access Key and signing method. Consult the service documentation for details.\n\n"
                f"The Canonical String for this request should have been\n'{request}'",
            )
        return key_id

    def _check_time(self, stamp: str, date: str) -> None:
        at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        now = datetime.now(UTC) + self.ahead
        if not stamp.startswith(date):
            raise RefusedError("InvalidSignatureException", "Date in Credential scope does not match")
        if at < now - _TOLERANCE:
            words = f"Signature expired: {stamp} is now earlier than {now - _TOLERANCE:%Y%m%dT%H%M%SZ}"
            raise RefusedError("InvalidSignatureException", words)
        if at > now + _TOLERANCE:
            words = f"Signature not yet current: {stamp} is still later than {now:%Y%m%dT%H%M%SZ}"
            raise RefusedError("InvalidSignatureException", words)


def _canonical_path(path: str) -> str:
    """Each part as it was sent, encoded once more; of `//`, `.` and `..` none is sent."""
    return "/".join(quote(part, safe="-_.~") for part in path.split("/")) or "/"


def _canonical_query(query: str) -> str:
    """A plus is a plus: AWS wants spaces as %20."""
    pairs = [part.partition("=")[::2] for part in query.split("&") if part]
    encoded = sorted(tuple(quote(unquote(part), safe="-_.~") for part in pair) for pair in pairs)
    return "&".join("=".join(pair) for pair in encoded)


@contextmanager
def signed_only(url: str, signatures: Signatures) -> Iterator[str]:
    """The address of a proxy before a server on loopback."""
    behind = urlsplit(url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                key_id = signatures.check(self.command, self.path, headers, body)
            except RefusedError as error:
                signatures.refused.append(str(error))
                given = {"content-type": "application/json", "x-amzn-errortype": error.kind}
                self._answer(403, given, json.dumps({"message": error.message}).encode())
                return
            signatures.seen.append((self.command, self.path, key_id))
            connection = HTTPConnection(behind.hostname or "", behind.port, timeout=PATIENCE_SECONDS)
            try:
                kept = {name: value for name, value in headers.items() if name != "connection"}
                connection.request(self.command, self.path, body, kept)
                answer = connection.getresponse()
                self._answer(answer.status, dict(answer.getheaders()), answer.read())
            finally:
                connection.close()

        def _answer(self, status: int, headers: Headers, content: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            if status != 304:
                self.send_header("content-length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Into nobody's terminal."""

    for method in ("GET", "HEAD", "POST", "DELETE"):
        setattr(Handler, f"do_{method}", Handler._pass_on)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with serving(server) as port:
        yield f"http://127.0.0.1:{port}"
