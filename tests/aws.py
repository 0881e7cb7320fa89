"""AWS on loopback, as far as credentials go: who gives them, and a store that tells whose it was shown.

STS, a container's agent and an instance's metadata give them; the store refuses those whose time is over.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from tests.http_server import serving
from tests.patience import PATIENCE_SECONDS

_ROLE = "/latest/meta-data/iam/security-credentials"
_EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>It has expired.</Message></Error>"
_HOP = frozenset(("connection", "expect", "transfer-encoding", "date", "server"))
_STS = "https://sts.amazonaws.com/doc/2011-06-15/"


@dataclass
class Aws:
    """lifetime: of what is given. given: the ids of keys, in order, which begin with how they came to be had
    (`instance`, `container`, `web`, `role`); of the latter two, the role follows. asked_by: by the key of who
    was let into a role. used: ids of the keys that the store was shown. files: by `bucket/name`.
    """

    port: int
    lifetime: timedelta = timedelta(hours=1)
    given: list[str] = field(default_factory=list)
    asked_by: dict[str, str] = field(default_factory=dict)
    ends: dict[str, datetime] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def give(self, how: str) -> dict[str, str]:
        key = f"{how}-{next(self.numbers)}"
        self.given.append(key)
        self.ends[key] = end = datetime.now(UTC) + self.lifetime
        return {
            "AccessKeyId": key,
            "SecretAccessKey": "secret",
            "Token": f"token-of-{key}",
            "Expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    def over(self) -> None:
        """All sessions that were given are over."""
        self.ends |= dict.fromkeys(self.ends, datetime.now(UTC) - timedelta(seconds=1))

    def lets_in(self, key: str, token: str | None) -> bool:
        """Whether a store may answer who shows this: a session that is good, or lasting keys."""
        end = self.ends.get(key)
        is_good = (end is None or end > datetime.now(UTC)) and token == (f"token-of-{key}" if end else None)
        (self.used if is_good else self.refused).append(key)
        return is_good


@contextmanager
def aws() -> Iterator[Aws]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _body(self) -> bytes:
            if self.headers.get("transfer-encoding", "").lower() == "chunked":
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)
            return self.rfile.read(int(self.headers.get("content-length", 0)))

        def _serve(self) -> None:
            body = self._body()
            path = urlsplit(self.path).path
            if self.command == "PUT" and path == "/latest/api/token":
                return self._answer(
                    200, b"token-of-metadata", {"x-aws-ec2-metadata-token-ttl-seconds": "21600"}
                )
            if path.rstrip("/") == _ROLE:
                return self._answer(200, b"role-of-instance")
            if path == f"{_ROLE}/role-of-instance":
                said: dict[str, str] = server.give("instance") | {"Code": "Success", "Type": "AWS-HMAC"}
                return self._answer(200, json.dumps(said | {"LastUpdated": said["Expiration"]}).encode())
            if path.startswith("/latest/"):
                return self._answer(404, b"")
            if path == "/container":
                return self._answer(200, json.dumps(server.give("container")).encode())
            if path == "/" and self.command == "POST":
                return self._sts({name: value[0] for name, value in parse_qs(body.decode()).items()})
            return self._store(unquote(path.removeprefix("/")), body)

        def _key(self) -> str:
            return self.headers.get("authorization", "").partition("Credential=")[2].partition("/")[0]

        def _sts(self, asked: dict[str, str]) -> None:
            action, role = asked["Action"], asked["RoleArn"].rpartition("/")[2]
            if action == "AssumeRoleWithWebIdentity":
                assert asked["WebIdentityToken"] == "token-of-web-identity"
                given = server.give(f"web-{role}")
            else:
                if asked.get("ExternalId", "") != ("external" if role == "guarded" else ""):
                    said = "<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
                    return self._answer(403, f"<ErrorResponse>{said}</ErrorResponse>".encode())
                given = server.give(f"role-{role}")
                server.asked_by[given["AccessKeyId"]] = self._key()
            fields = given | {"SessionToken": given.pop("Token")}
            told = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())
            user = "<Arn>arn:aws:sts::1:assumed-role/r/s</Arn><AssumedRoleId>A:s</AssumedRoleId>"
            result = f"<Credentials>{told}</Credentials><AssumedRoleUser>{user}</AssumedRoleUser>"
            answer = (
                f'<{action}Response xmlns="{_STS}"><{action}Result>{result}</{action}Result>'
                f"<ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></{action}Response>"
            )
            return self._answer(200, answer.encode(), {"content-type": "text/xml"})

        def _store(self, name: str, body: bytes) -> None:
            if not server.lets_in(self._key(), self.headers.get("x-amz-security-token")):
                return self._answer(400, _EXPIRED, {"content-type": "application/xml"})
            if self.command == "PUT":
                server.files[name] = body
                return self._answer(200, b"", {"ETag": '"1"'})
            if name not in server.files:
                return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            content = server.files[name]
            headers = {"ETag": '"1"', "Last-Modified": "Wed, 25 Nov 2026 00:00:00 GMT"}
            if (wanted := self.headers.get("range", "")).startswith("bytes="):
                start, _, last = wanted.removeprefix("bytes=").partition("-")
                if not start:  # the last bytes, so many
                    start, last = str(max(0, len(content) - int(last))), ""
                end_at = min(int(last) if last else len(content), len(content) - 1)
                headers["Content-Range"] = f"bytes {start}-{end_at}/{len(content)}"
                return self._answer(206, content[int(start) : end_at + 1], headers)
            return self._answer(200, content, headers)

        def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Into nobody's terminal."""

    for method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
        setattr(Handler, f"do_{method}", Handler._serve)
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server = Aws(http.server_address[1])
    with serving(http):
        yield server


@contextmanager
def sessions_only(port: int, sessions: Aws) -> Iterator[int]:
    """The port of a proxy before a store on loopback, which lets in who shows a session that is good."""

    def refusal(_method: str, _path: str, headers: Mapping[str, str]) -> bytes | None:
        key = headers.get("authorization", "").partition("Credential=")[2].partition("/")[0]
        is_good = key in sessions.ends and sessions.lets_in(key, headers.get("x-amz-security-token"))
        return None if is_good else _EXPIRED

    with _refusing(port, refusal) as own_port:
        yield own_port


@contextmanager
def table_bucket(port: int, bucket: str, tables: str, refused: list[str]) -> Iterator[int]:
    """The port of a proxy before a store on loopback, one of whose buckets takes files of tables alone.

    tables: how their names begin. refused: what nothing was written to.
    """

    def refusal(method: str, path: str, _headers: Mapping[str, str]) -> bytes | None:
        name = unquote(urlsplit(path).path)
        if method not in ("PUT", "POST") or not name.startswith(f"/{bucket}/"):
            return None
        if name.startswith(f"/{bucket}/{tables}"):
            return None
        refused.append(name)
        return b"<Error><Code>AccessDenied</Code><Message>Not a file of a table.</Message></Error>"

    with _refusing(port, refusal) as own_port:
        yield own_port


@contextmanager
def _refusing(port: int, refusal: Callable[[str, str, Mapping[str, str]], bytes | None]) -> Iterator[int]:
    """The port of a proxy before a store. refusal: of a request, by its method, path and headers; if any."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            if (said := refusal(self.command, self.path, headers)) is not None:
                status = 400 if said == _EXPIRED else 403
                return self._answer(status, {"content-type": "application/xml"}, said)
            connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
            try:
                kept = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
                connection.request(self.command, self.path, body, kept)
                answer = connection.getresponse()
                self._answer(answer.status, dict(answer.getheaders()), answer.read())
            finally:
                connection.close()

        def _answer(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
            self.send_response(status)
            told = {name.lower(): value for name, value in headers.items() if name.lower() not in _HOP}
            if self.command != "HEAD" or "content-length" not in told:
                told["content-length"] = str(len(content))
            for name, value in told.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Into nobody's terminal."""

    for method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
        setattr(Handler, f"do_{method}", Handler._pass_on)
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    with serving(http) as served:
        yield served


ROLE = "arn:aws:iam::123456789012:role"
KINDS = ("environment", "web identity", "profile", "profile with a role", "container", "instance")


def vended(server: Aws, told: timedelta | None = None) -> dict[str, str]:
    """What a catalog gives with a table. told: for how long, if not as it is."""
    given = server.give("vended")
    end = datetime.now(UTC) + told if told else server.ends[given["AccessKeyId"]]
    return {
        "s3.access-key-id": given["AccessKeyId"],
        "s3.secret-access-key": given["SecretAccessKey"],
        "s3.session-token": given["Token"],
        "s3.session-token-expires-at-ms": str(round(end.timestamp() * 1000)),
    }


def environment(kind: str, server: Aws, directory: Path) -> dict[str, str]:
    """The variables that give a machine an identity; of no kind, those that leave it without any.

    directory: for their files.
    """
    if kind == "environment":
        return {"AWS_ACCESS_KEY_ID": "environment", "AWS_SECRET_ACCESS_KEY": "secret"}
    if kind == "web identity":
        (directory / "web").write_text("token-of-web-identity")
        return {"AWS_WEB_IDENTITY_TOKEN_FILE": str(directory / "web"), "AWS_ROLE_ARN": f"{ROLE}/irsa"}
    if kind.startswith("profile"):
        profile = "[lake]\naws_access_key_id = profile\naws_secret_access_key = secret\n"
        (directory / "credentials").write_text(profile)
        role = f"[profile other]\nrole_arn = {ROLE}/lake\nsource_profile = lake\n"
        (directory / "config").write_text(role)
        return {"AWS_PROFILE": "lake" if kind == "profile" else "other"}
    if kind == "container":
        return {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{server.url}/container"}
    if kind == "instance":
        return {"AWS_EC2_METADATA_DISABLED": "false", "AWS_EC2_METADATA_SERVICE_ENDPOINT": server.url}
    return {
        "AWS_REGION": "eu-central-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(directory / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(directory / "credentials"),
        "AWS_ENDPOINT_URL_STS": server.url,
    }


SHOWN = {
    "environment": "environment",
    "web identity": "web-irsa-",
    "profile": "profile",
    "profile with a role": "role-lake-",
    "container": "container-",
    "instance": "instance-",
}
"""How the id of the key begins that a store is shown."""
