"""Objects of S3, by obstore: no request for a size alone, many ranges at a time without a thread for each.

Arrow asks for a file's size before it reads it, writes the smallest one as an upload in parts, and lets a
thread wait for each range.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from errno import EACCES, ENOENT
from functools import cache
from typing import TYPE_CHECKING, Any

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store
from pyiceberg.utils.properties import property_as_bool

from stores.ranges import RangeReader

if TYPE_CHECKING:  # names that obstore has for type checkers only
    from obstore.store import ClientConfig, RetryConfig

ResultOf = Callable[[Future[Any]], Any]
REQUESTS = 256
"""That wait for a store at a time, of all tasks of a process: each costs its latency and hardly any CPU."""
_HELD_BYTES = 128 * 1024**2
"""That these bring at most: what all wait for has to come within the time that one has."""
_SECONDS = 60.0
_CONNECT_SECONDS = 10.0
_RETRIES: RetryConfig = {"max_retries": 3, "retry_timeout": timedelta(seconds=60)}
_NO_CLIENT: ClientConfig = {}
_ALL_SECONDS = 180.0
"""More than a request takes with its repetitions; obstore waits for ever if the system gives it no thread."""
TAIL_BYTES = 64 * 1024
"""What is read of a file with its size: a Parquet file is read from its end."""
_KEPT_BYTES = 1024**2
PART_BYTES = 8 * 1024**2
"""That one request brings at most, or puts a new object with as a whole."""
_PARTS_AT_ONCE = 4
_HELD_TO_WRITE = 1024**2
"""Bytes of a new object that are handed over together."""
_REASON_LENGTH = 500
_CAUSE = r'(?:error|message): ("[^"]*"|\w+(?:\( \w+)?)'
_STATUS = "Server returned non-2xx status code: "
"""What obstore tells a status after, and the store's own words with it; before stands the URL."""


def s3_store(
    bucket: str,
    properties: Mapping[str, Any],
    keys: tuple[str, str, str | None] | None,
    client: ClientConfig = _NO_CLIENT,
    retries: RetryConfig = _RETRIES,
) -> S3Store:
    """properties: PyIceberg's. keys: by which it is asked; None for without any.

    What obstore is not told it takes from AWS_* of the environment, and of endpoints one for S3 first.
    """
    given = first_of(properties, region=("s3.region", "client.region"))
    is_virtual = property_as_bool(dict(properties), "s3.force-virtual-addressing", False)
    endpoint = properties.get("s3.endpoint")
    if endpoint:
        scheme, _, host = endpoint.partition("://")
        # obstore takes it as it is
        given["aws_endpoint_url_s3"] = f"{scheme}://{bucket}.{host}" if is_virtual else endpoint
    if keys is not None:
        named = ("access_key_id", "secret_access_key", "token")
        found: Any = {**dict(zip(named, keys, strict=True)), "expires_at": None}
        given["credential_provider"] = lambda: found
    usual: ClientConfig = {
        "allow_http": str(endpoint).startswith("http:"),
        "connect_timeout": timedelta(seconds=float(properties.get("s3.connect-timeout", _CONNECT_SECONDS))),
        # Of silence, as Arrow takes it; a PUT has to be over by then.
        "read_timeout": timedelta(seconds=float(properties.get("s3.request-timeout", _SECONDS))),
        "timeout": timedelta(seconds=_ALL_SECONDS),
    }
    if proxy := properties.get("s3.proxy-uri"):
        usual["proxy_url"] = proxy
    return S3Store(
        bucket,
        client_options=usual | client,
        retry_config=retries,
        virtual_hosted_style_request=is_virtual,
        skip_signature=keys is None,
        **given,
    )


def first_of(properties: Mapping[str, Any], **names: tuple[str, ...]) -> dict[str, Any]:
    """The properties that are set, under other names: the first of each."""
    found = {
        name: next((properties[k] for k in keys if k in properties), None) for name, keys in names.items()
    }
    return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class S3Object:
    """A name in a bucket, where there may be an object.

    location: as errors tell it. store_name: of those whose requests wait for each other. result_of: waits for
    an answer, and may give up by an error of its own.

    Its methods raise FileNotFoundError, PermissionError, or another OSError, which a retry can help.
    """

    store: S3Store
    key: str
    location: str
    store_name: str = ""
    result_of: ResultOf = Future.result

    def open(self, tail_bytes: int = TAIL_BYTES) -> OpenObject:
        """With its size and its last bytes, which one request brings."""
        try:
            found: OpenObject = self._asked(self._open(tail_bytes))
        except _NoTailError:  # as of an empty file
            found = OpenObject(self, self._asked(_within(obstore.head_async, self.store, self.key))["size"])
        return found

    def exists(self) -> bool:
        try:
            self._asked(_within(obstore.head_async, self.store, self.key))
        except FileNotFoundError:
            return False
        return True

    def put(self, content: bytes) -> None:
        """As a whole, in one request."""
        self._asked(_within(obstore.put_async, self.store, self.key, content, use_multipart=False))

    def content(self) -> bytes:
        """All of it."""

        async def whole() -> obstore.Bytes:
            found = await _within(obstore.get_async, self.store, self.key)
            content: obstore.Bytes = await _within(found.bytes_async)
            return content

        return bytes(self._asked(whole()))

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """(start, end) of each in bytes, none of them empty: all are asked for at once.

        Of a range that reaches beyond the end, less comes back, and nothing of one that begins there.
        """

        async def all_of_them() -> list[bytes]:
            try:
                async with asyncio.TaskGroup() as group:  # ends them all if one fails
                    asked = [
                        [
                            group.create_task(self._range(at, min(at + PART_BYTES, end)))
                            for at in range(start, end, PART_BYTES)
                        ]
                        for start, end in ranges
                    ]
            except ExceptionGroup as failed:
                raise failed.exceptions[0] from None
            return [b"".join(part.result() for part in parts) for parts in asked]

        found: list[bytes] = self._asked(all_of_them())
        return found

    async def _range(self, start: int, end: int) -> bytes:
        async with _gate(asyncio.get_running_loop()).entered(self.store_name, end - start):
            try:
                return bytes(
                    await _within(obstore.get_range_async, self.store, self.key, start=start, end=end)
                )
            except BaseError as error:
                if _is_beyond_end(error):
                    return b""
                raise

    async def _open(self, tail_bytes: int) -> OpenObject:
        options: Any = {"range": {"suffix": tail_bytes}}
        try:
            found = await _within(obstore.get_async, self.store, self.key, options=options)
            content = await _within(found.bytes_async)
        except BaseError as error:
            if _is_beyond_end(error) or "Range" in str(error):
                raise _NoTailError from None
            raise
        return OpenObject(self, found.meta["size"], bytes(content))

    def _asked(self, request: Coroutine[Any, Any, Any]) -> Any:
        with told(self.location):
            return self.result_of(asyncio.run_coroutine_threadsafe(request, _loop(os.getpid())))


def read_each(ranges: Sequence[tuple[S3Object, int, int]]) -> list[bytes | None]:
    """(object, start, end) of each in bytes, all at once, none of them longer than a part; None for one that
    can't be read now.

    Of a store that fails, no more is asked: each would wait for it as long as the first.
    """

    async def one(at: S3Object, start: int, end: int) -> bytes | None:
        try:
            return await at._range(start, end)
        except (NotFoundError, FileNotFoundError):
            return None

    async def all_of_them() -> list[bytes | None]:
        reads = [asyncio.ensure_future(one(*each)) for each in ranges]
        await asyncio.wait(reads, return_when=asyncio.FIRST_EXCEPTION)
        for read in reads:
            read.cancel()
        await asyncio.wait(reads)
        return [None if read.cancelled() or read.exception() else read.result() for read in reads]

    if not ranges:
        return []
    found: list[bytes | None] = ranges[0][0]._asked(all_of_them())
    return found


class _NoTailError(Exception):
    pass


class _NoAnswerError(Exception):
    pass


class OpenObject(RangeReader):
    """An object that never changes, of which any number of threads read ranges.

    tail: its last bytes, which are kept.
    """

    def __init__(self, at: S3Object, size: int, tail: bytes = b"") -> None:
        super().__init__(size)
        self._object, self._tail = at, tail

    @property
    def kept_bytes(self) -> int:
        return len(self._tail)

    def size(self) -> int:
        return self._size

    def read_at(self, nbytes: int, offset: int) -> bytes:
        """Less than `nbytes` at the end of the file."""
        end = min(offset + nbytes, self._size)
        (content,) = self.read_many([(offset, end)])
        if end == self._size and len(self._tail) < len(content) <= _KEPT_BYTES:
            self._tail = bytes(content)  # what Parquet files are read with first, and small ones wholly
        return content

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """(start, end) of each in bytes, within the file: all at once."""
        tail, tail_at = self._tail, self._size - len(self._tail)
        asked = [(start, end) for start, end in ranges if start < end and start < tail_at]
        found = iter(self._object.read([(start, min(end, tail_at)) for start, end in asked]) if asked else [])
        contents = []
        for start, end in ranges:
            content = b""
            if start < end and start < tail_at:
                content = next(found)
                if len(content) != min(end, tail_at) - start:
                    raise OSError(f"{self._object.location} ends before byte {end:,}")
            if end > tail_at:
                content += tail[max(0, start - tail_at) : end - tail_at]
            contents.append(content)
        return contents

    def read(self, size: int = -1) -> bytes:
        start, end = self.advance(size)
        return self.read_at(end - start, start) if start < end else b""


class Upload(io.RawIOBase):
    """A new object, which is there once it is closed: a small one by one request, a larger one in parts.

    Arrow writes an index in pieces of some hundred bytes, and each that goes to the thread of requests takes
    longer than to write it: some are held until they are worth that.
    """

    def __init__(self, at: S3Object) -> None:
        self._object, self._size = at, 0
        self._held = bytearray()
        self._writer = obstore.open_writer_async(
            at.store, at.key, buffer_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE
        )

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, content: Any) -> int:
        if self.closed:
            raise ValueError("nothing is written to what was closed or given up")
        count = len(content)
        if not self._held and count >= _HELD_TO_WRITE:
            self._hand_over(bytes(content))
        else:
            self._held += content
            if len(self._held) >= _HELD_TO_WRITE:
                self._hand_over(self._taken())
        self._size += count
        return count

    def close(self) -> None:
        if not self.closed:
            if self._held:
                self._hand_over(self._taken())
            super().close()
            self._object._asked(_within(self._writer.close))

    def _taken(self) -> bytes:
        held, self._held = bytes(self._held), bytearray()
        return held

    def _hand_over(self, content: bytes) -> None:
        try:
            self._object._asked(_within(self._writer.write, content))
        except BaseException:
            self.give_up()
            raise

    def give_up(self) -> None:
        """Nothing will be there."""
        self._held.clear()
        super().close()

    def __del__(self) -> None:
        """Nothing: Python's own would close, and a file that nobody finished would be there."""


class Sink(pa.PythonFile):  # type: ignore[misc]  # Arrow has no types
    """An upload as a file of Arrow's, of which nothing is there after a block that ends with an error."""

    def __init__(self, upload: Upload, mode: str) -> None:  # noqa: ARG002  # Arrow's constructor has taken it
        self._upload = upload

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            self._upload.give_up()
        super().__exit__(kind, error, trace)


@contextmanager
def told(location: str) -> Iterator[None]:
    """Raises obstore's errors as those of files."""
    try:
        yield
    except (BaseError, FileNotFoundError) as error:
        reason = _reason(str(error))
        if isinstance(error, NotFoundError | FileNotFoundError):
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), location) from None
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            raise PermissionError(EACCES, f"the store refuses it: {reason}", location) from None
        raise OSError(f"{location}: {reason}") from None
    except _NoAnswerError:
        raise OSError(f"{location}: there was no answer within {_ALL_SECONDS:.0f} s") from None


def _reason(said: str) -> str:
    """What a store answers, by which the end of a session is told, or else why there is no answer."""
    text, _, innards = said.partition("\n\nDebug source")
    asked, status, answer = " ".join(text.split()).partition(_STATUS)
    causes = re.findall(_CAUSE, " ".join(innards.split()))
    if not status and causes:
        answer = ": " + causes[-1].strip('"').replace("( ", ": ")
    return asked[:_REASON_LENGTH] + status + answer[:_REASON_LENGTH]


def _is_beyond_end(error: BaseError) -> bool:
    """Whether a store has no such range: as of an empty object, of which it has none."""
    return str(error).partition(_STATUS)[2].startswith("416")


async def _within(request: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    try:
        async with asyncio.timeout(_ALL_SECONDS):
            return await request(*arguments, **named)
    except TimeoutError:
        raise _NoAnswerError from None


class _Gate:
    """Lets each store's requests through in their order, so many at a time, for so many bytes of all stores.

    One of a store that has no other may have more: none waits for another store's answers alone.
    """

    def __init__(self) -> None:
        self._bytes = 0
        self._requests: Counter[str] = Counter()
        self._waiting: dict[str, deque[tuple[asyncio.Future[None], int]]] = {}

    @asynccontextmanager
    async def entered(self, store: str, size: int) -> AsyncIterator[None]:
        coming: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(store, deque()).append((coming, size))
        self._let_in()
        try:
            await coming
            yield
        finally:
            if coming.done() and not coming.cancelled():
                self._bytes -= size
                self._requests[store] -= 1
                if not self._requests[store]:
                    del self._requests[store]
            self._let_in()

    def _let_in(self) -> None:
        for store, waiting in list(self._waiting.items()):
            while waiting and self._takes(store, *waiting[0]):
                waiting.popleft()
            if not waiting:
                del self._waiting[store]

    def _takes(self, store: str, coming: asyncio.Future[None], size: int) -> bool:
        """Whether one need not wait: it goes on, unless it has been given up."""
        if coming.cancelled():
            return True
        running = self._requests[store]
        if running and (running >= REQUESTS or self._bytes + size > _HELD_BYTES):
            return False
        self._requests[store] += 1
        self._bytes += size
        coming.set_result(None)
        return True


@cache
def _gate(_: asyncio.AbstractEventLoop) -> _Gate:
    return _Gate()


_starting = threading.Lock()


def _loop(process: int) -> asyncio.AbstractEventLoop:
    """On which all requests of a process wait."""
    with _starting:
        return _started(process)


@cache
def _started(_: int) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="stores", daemon=True).start()
    return loop
