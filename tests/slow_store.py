"""A folder as a store that speaks S3, in a process of its own, where every request waits and is counted."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from urllib.request import urlopen
from xml.sax.saxutils import escape

from tests.server_process import free_port, serving

_COUNTED = "/-/counted"
"""Of no bucket: tells what was asked for since it was told last."""


@dataclass(frozen=True)
class Requests:
    """What a store was asked for.

    by_kind: GET, HEAD, PUT, LIST, DELETE, and what begins, fills and ends uploads in parts. waits: how many
    times the wait of one request the store was being waited for, which is how many of them followed each
    other: those of the same time count once.
    """

    by_kind: Mapping[str, int] = field(default_factory=dict)
    sent_bytes: int = 0
    received_bytes: int = 0
    most_at_once: int = 0
    waits: float = 0

    @property
    def count(self) -> int:
        return sum(self.by_kind.values())


@dataclass(frozen=True, slots=True)
class SlowStore:
    """Buckets are the folder's folders. Its server answers as long as the block of `served` lasts.

    processes: that answer at its port, among which the system divides the connections, so that one processor
    does not bound it. Several count nothing.
    """

    folder: Path
    wait_seconds: float
    port: int = field(default_factory=free_port)
    processes: int = 1

    @property
    def properties(self) -> dict[str, str]:
        """PyIceberg's."""
        return {
            "s3.endpoint": f"http://127.0.0.1:{self.port}",
            "s3.access-key-id": "key",
            "s3.secret-access-key": "secret",
            "s3.region": "us-east-1",
        }

    @contextmanager
    def served(self) -> Iterator[SlowStore]:
        # A port that is shared could be another test's.
        shared = ["shared"] if self.processes > 1 else []
        arguments = [str(self.folder), str(self.wait_seconds), str(self.port), *shared]
        with ExitStack() as stack:
            for _ in range(self.processes):
                command = [sys.executable, "-m", "tests.slow_store", *arguments]
                stack.enter_context(serving(command, self.port))
            yield self

    def counted(self, work: Callable[[], object]) -> Requests:
        """What it was asked for meanwhile."""
        self.asked()
        work()
        return self.asked()

    def asked(self) -> Requests:
        """What it was asked for since the last call."""
        assert self.processes == 1
        with urlopen(f"http://127.0.0.1:{self.port}{_COUNTED}") as answer:
            return Requests(**json.load(answer))


class _Counts:
    def __init__(self, wait_seconds: float) -> None:
        self._wait_seconds = wait_seconds
        self.reset()

    def reset(self) -> None:
        self.by_kind: Counter[str] = Counter()
        self.sent_bytes = self.received_bytes = self._open = self._most_at_once = 0
        self._waited_seconds = self._waited_until = 0.0

    async def wait(self, kind: str) -> None:
        self.by_kind[kind] += 1
        self._open += 1
        self._most_at_once = max(self._most_at_once, self._open)
        now = time.monotonic()
        end = now + self._wait_seconds
        self._waited_seconds += end - max(now, self._waited_until)
        self._waited_until = end
        await asyncio.sleep(self._wait_seconds)
        self._open -= 1

    def told(self) -> bytes:
        return json.dumps(
            {
                "by_kind": dict(self.by_kind),
                "sent_bytes": self.sent_bytes,
                "received_bytes": self.received_bytes,
                "most_at_once": self._most_at_once,
                "waits": self._waited_seconds / self._wait_seconds if self._wait_seconds else 0,
            }
        ).encode()


@dataclass(frozen=True, slots=True)
class _Asked:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        if "uploads" in self.query:
            return "BEGIN UPLOAD"
        if "uploadId" in self.query:
            return {"PUT": "PUT PART", "POST": "END UPLOAD"}.get(self.method, "DELETE")
        if "delete" in self.query:
            return "DELETE"
        if "x-amz-copy-source" in self.headers:
            return "COPY"
        return "LIST" if self.method == "GET" and not self.path.strip("/").count("/") else self.method


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class _Server:
    def __init__(self, folder: Path, wait_seconds: float) -> None:
        self._folder = folder
        self._counts = _Counts(wait_seconds)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (asked := await _read(reader, writer)) is not None:
                if asked.path == _COUNTED:
                    answer = _Answer(200, self._counts.told())
                    self._counts.reset()
                else:
                    self._counts.received_bytes += len(asked.body)
                    await self._counts.wait(asked.kind)
                    answer = self._answer(asked)
                    self._counts.sent_bytes += len(answer.body) * (asked.method == "GET")
                headers = {"Content-Length": str(len(answer.body)), **answer.headers}
                head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
                body = b"" if asked.method == "HEAD" or answer.status == 204 else answer.body
                writer.write(f"HTTP/1.1 {answer.status} .\r\n{head}\r\n".encode() + body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _answer(self, asked: _Asked) -> _Answer:
        place = self._folder / asked.path.strip("/")
        match asked.kind:
            case "LIST":
                return self._listed(asked)
            case "GET" | "HEAD":
                return _content(place, asked)
            case "PUT":
                if "if-none-match" in asked.headers and place.is_file():
                    return _error(412, "PreconditionFailed")
                if asked.path.endswith("/"):
                    place.mkdir(parents=True, exist_ok=True)
                else:
                    _put(place, asked.body)
                return _Answer(200, headers={"ETag": _etag(asked.body)})
            case "COPY":
                source = unquote(asked.headers["x-amz-copy-source"]).strip("/")
                content = (self._folder / source).read_bytes()
                _put(place, content)
                return _xml("CopyObjectResult", f"<ETag>{_etag(content)}</ETag>")
            case "BEGIN UPLOAD":
                upload = uuid.uuid4().hex
                (self._folder / ".uploads" / upload).mkdir(parents=True)
                return _xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
            case "PUT PART":
                part = (
                    self._folder / ".uploads" / asked.query["uploadId"] / f"{asked.query['partNumber']:0>6}"
                )
                _put(part, asked.body)
                return _Answer(200, headers={"ETag": _etag(asked.body)})
            case "END UPLOAD":
                parts = self._folder / ".uploads" / asked.query["uploadId"]
                content = b"".join(part.read_bytes() for part in sorted(parts.iterdir()))
                shutil.rmtree(parts)
                _put(place, content)
                return _xml("CompleteMultipartUploadResult", f"<ETag>{_etag(content)}</ETag>")
            case "DELETE":
                keys = [asked.path.strip("/")]
                if "delete" in asked.query:
                    found = re.findall(r"<Key>(.*?)</Key>", asked.body.decode())
                    keys = [f"{keys[0]}/{key}" for key in found]
                for key in keys:
                    self._delete(key)
                return _xml("DeleteResult", "") if "delete" in asked.query else _Answer(204)
        return _error(501, "NotImplemented")

    def _delete(self, key: str) -> None:
        """And the folders that have nothing else: they are what names have in common."""
        place = self._folder / key
        if place.is_file():
            place.unlink()
        while not place.exists() or (place.is_dir() and not any(place.iterdir())):
            if place.parent.parent == self._folder.parent:
                return
            if place.is_dir():
                place.rmdir()
            place = place.parent

    def _listed(self, asked: _Asked) -> _Answer:
        bucket = self._folder / asked.path.strip("/")
        prefix = asked.query.get("prefix", "")
        within = bucket / prefix.rpartition("/")[0]
        recursive = "delimiter" not in asked.query
        found = within.rglob("*") if recursive else within.iterdir() if within.is_dir() else ()
        contents = folders = ""
        if prefix.endswith("/") and (bucket / prefix).is_dir():  # what stands for a folder
            contents = _listed_object(prefix, bucket / prefix, 0)
        for path in sorted(found):
            key = str(path.relative_to(bucket))
            if not key.startswith(prefix):
                continue
            if path.is_file():
                contents += _listed_object(key, path, path.stat().st_size)
            elif not recursive:
                folders += f"<CommonPrefixes><Prefix>{escape(key)}/</Prefix></CommonPrefixes>"
        count = contents.count("<Key>") + folders.count("<Prefix>")
        told = f"<KeyCount>{count}</KeyCount><IsTruncated>false</IsTruncated>{contents}{folders}"
        return _xml("ListBucketResult", told)


def _listed_object(key: str, path: Path, size: int) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(path.stat().st_mtime))
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{at}</LastModified>"
        f"<ETag>&quot;x&quot;</ETag><Size>{size}</Size></Contents>"
    )


def _content(place: Path, asked: _Asked) -> _Answer:
    if place.is_dir() and asked.path.strip("/").count("/") == 0:
        return _Answer(200)  # a bucket
    if not place.is_file():
        return _error(404, "NoSuchKey")
    stat = place.stat()
    size = stat.st_size
    headers = {
        "Last-Modified": formatdate(stat.st_mtime, usegmt=True),
        "ETag": f'"{stat.st_mtime_ns:x}-{size:x}"',
        "Accept-Ranges": "bytes",
    }
    if asked.method == "HEAD":
        return _Answer(200, headers=headers | {"Content-Length": str(size)})
    wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", asked.headers.get("range", ""))
    if not wanted:
        return _Answer(200, place.read_bytes(), headers)
    first, last = (int(wanted[1]), int(wanted[2] or size)) if wanted[1] else (size - int(wanted[2]), size)
    first, last = max(0, first), min(last, size - 1)
    if first > last:
        return _error(416, "InvalidRange")
    with place.open("rb") as file:
        file.seek(first)
        content = file.read(last - first + 1)
    return _Answer(206, content, headers | {"Content-Range": f"bytes {first}-{last}/{size}"})


def _put(place: Path, content: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    coming = place.with_name(f"{place.name}.{uuid.uuid4().hex}.coming")
    coming.write_bytes(content)
    coming.rename(place)


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def _xml(root: str, inner: str) -> _Answer:
    text = f'<?xml version="1.0" encoding="UTF-8"?><{root}>{inner}</{root}>'
    return _Answer(200, text.encode(), {"Content-Type": "application/xml"})


def _error(status: int, code: str) -> _Answer:
    text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return _Answer(status, text.encode(), {"Content-Type": "application/xml"})


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Asked | None:
    """None when the connection has ended."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    if headers.get("expect") == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await reader.readexactly(int(headers.get("content-length") or 0))
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int((await reader.readline()).partition(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    if headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
        body = _without_chunks(body)
    url = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
    return _Asked(method, unquote(url.path), query, headers, body)


def _without_chunks(body: bytes) -> bytes:
    """What chunks hold that Amazon's clients sign or sum one by one."""
    content, at = b"", 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end].partition(b";")[0], 16)
        if not size:
            return content
        content += body[end + 2 : end + 2 + size]
        at = end + 2 + size + 2


async def _main(folder: Path, wait_seconds: float, port: int, *, is_shared: bool) -> None:
    serve = _Server(folder, wait_seconds).serve
    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=1024, reuse_port=is_shared or None)
    await server.serve_forever()


if __name__ == "__main__":
    _, place, seconds, number, *shared = sys.argv
    asyncio.run(_main(Path(place), float(seconds), int(number), is_shared=bool(shared)))
