"""Asks lookup servers, which answer from the index: any of them, since none has a state.

A server that dies, stands still or has enough to do costs a question some seconds and no answer: it is asked
again, over another connection, and no third time, since it may be what they die of. Where nobody answers any
more, that is known by their probes, long before the longest question would have to be over.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any, Self
from weakref import WeakSet

import aiohttp
from fastapi.concurrency import run_in_threadpool
from pydantic import ValidationError

from service.errors import ConflictError, IcestreamError, InvalidError, NotFoundError
from service.lookups.models import LookupAnswer, ServerRefusal
from service.lookups.questions import JSON_TYPE
from service.settings import Settings

_CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 60.0
_SECONDS_LEFT = "Icestream-Seconds-Left"
"""The header that tells a server for how long it is waited for."""
_SOON_SECONDS = 5.0
"""Nearly all answers have come by then; else it is asked whether there is anybody to wait for."""
_PROBE_SECONDS = 2.0
_PROBES = 3
"""Each over a connection of its own: a server that stands still may be one of many."""
_KNOWN_SECONDS = 10.0
"""So long it is known whether the servers answer."""
_START_SECONDS = 60.0
"""Servers that were started together with the service are not missed before."""
_ANSWER_BYTES = 64 * 1024**2
_READ_BYTES = 4 * 1024**2
"""Of an answer that is not passed on as it is: what it says takes many times its memory."""
_SMALL_BYTES = 256 * 1024
"""Are read at once, in less time than others notice."""
_UNDER_WAY_BYTES = 256 * 1024**2
"""Of all answers that have begun to come and are not passed on yet."""
_AT_ONCE = 64
_CONNECTION_QUESTIONS = 50
"""So many questions on a connection, about: the next one meets any server, also one that came since."""
_UNANSWERED = 2
"""So often a question is sent without an answer to it. One server may die of anything, and another one
answers; where two do, it may be by the question."""
_WORDS = 2_000
_REFUSALS: Mapping[str, Callable[[str, str | None], IcestreamError]] = {
    "invalid_key": lambda words, remedy: InvalidError("invalid-key", words, remedy),
    "invalid_arrow": lambda words, remedy: InvalidError("invalid-arrow", words, remedy),
    "unknown_key_columns": lambda words, remedy: InvalidError("unknown-key-columns", words, remedy),
    "unknown_columns": lambda words, remedy: InvalidError("unknown-columns", words, remedy),
    "answer_too_large": lambda words, remedy: InvalidError("answer-too-large", words, remedy),
    "unknown_snapshot": lambda words, remedy: NotFoundError("unknown-snapshot", words, remedy),
    "not_covered": lambda words, remedy: ConflictError("not-covered", words, remedy),
    "busy": lambda words, remedy: IcestreamError("lookups-busy", words, remedy),
    "out_of_time": lambda words, remedy: IcestreamError("out-of-time", words, remedy),
    "store_unavailable": lambda words, remedy: IcestreamError("store-unavailable", words, remedy),
    "outdated": lambda words, remedy: OutdatedError("table-changed", words, remedy),
}


@dataclass(slots=True, eq=False, weakref_slot=True)
class Answered:
    """Is under way as long as somebody holds it."""

    status: int = 0
    answer_type: str = ""
    content: bytes | bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class Allowance:
    """What several questions may take together. until: by the monotonic clock, at most a minute from now.
    answer_bytes: of all answers."""

    until: float
    answer_bytes: int


@dataclass(slots=True)
class _Question:
    """content: a line of JSON, and keys if they are Arrow. answer_bytes: at most. until: when it is given up,
    by the monotonic clock. unanswered: how often it was sent and got no answer, yet or at all."""

    content: bytes
    answer_type: str
    answer_bytes: int
    until: float
    unanswered: int = 0

    @classmethod
    def of(
        cls,
        question: dict[str, Any],
        stream: bytes,
        answer_type: str,
        answer_bytes: int,
        until: float | None = None,
    ) -> Self:
        line = json.dumps(question, separators=(",", ":"), allow_nan=False).encode()
        content = line + b"\n" + stream if stream else line
        given_up_at = time.monotonic() + ANSWER_SECONDS if until is None else until
        return cls(content, answer_type, answer_bytes, given_up_at)

    @property
    def seconds_left(self) -> float:
        return self.until - time.monotonic()


class OutdatedError(IcestreamError):
    """What was asked about is gone: the table's metadata, or its index, twice."""


class LookupServers:
    """Behind one URL. Used from the application's event loop."""

    def __init__(self, settings: Settings) -> None:
        self._url = settings.lookup_url
        self._token = settings.lookup_token.get_secret_value() if settings.lookup_token else ""
        self._trouble: str | None = None
        self._look_at = time.monotonic() + _START_SECONDS
        self._under_way: WeakSet[Answered] = WeakSet()
        self._sent = count(1)

    @property
    def are_set_up(self) -> bool:
        return bool(self._url)

    async def ask(self, question: dict[str, Any], allowance: Allowance | None = None) -> LookupAnswer:
        """What is answered about few keys. allowance: what is left of it after this question.

        Raises IcestreamError: what a server refuses, or 503 when none answers.
        """
        left = allowance or Allowance(time.monotonic() + ANSWER_SECONDS, _READ_BYTES)
        most_bytes = min(_READ_BYTES, left.answer_bytes)
        asked = _Question.of(question, b"", JSON_TYPE, most_bytes, left.until)
        content = (await self._answer(asked)).content
        left.answer_bytes -= len(content)
        read = LookupAnswer.model_validate_json
        try:
            return read(content) if len(content) <= _SMALL_BYTES else await run_in_threadpool(read, content)
        except ValidationError as error:
            raise _not_understood(200) from error

    async def ask_for(
        self, answer_type: str, question: dict[str, Any], stream: bytes = b"", until: float | None = None
    ) -> Answered:
        """An answer to pass on, which nobody reads here. stream: the keys, if they are Arrow. until: as
        `Allowance` has it.

        Raises as `ask`.
        """
        return await self._answer(_Question.of(question, stream, answer_type, _ANSWER_BYTES, until))

    async def _answer(self, question: _Question) -> Answered:
        answered = await self._first_answer(question)
        if answered.status == 200 and answered.answer_type == question.answer_type:
            return answered
        try:
            refusal = ServerRefusal.model_validate_json(answered.content)
        except ValidationError as error:
            raise _not_understood(answered.status) from error
        raise _refused(answered.status, refusal)

    async def trouble(self) -> str | None:
        """Why nobody is answered now; None if a server would take a question, or none is set up."""
        if self.are_set_up and time.monotonic() > self._look_at:
            self._trouble, self._look_at = await self._look(), time.monotonic() + _KNOWN_SECONDS
        return self._trouble

    async def close(self) -> None:
        for name in ("_asking", "_probing"):
            if name in vars(self):
                await vars(self)[name].close()

    # A session belongs to the event loop that it is made in.

    @cached_property
    def _asking(self) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS, connect=_CONNECT_SECONDS)
        return self._session(aiohttp.TCPConnector(limit=_AT_ONCE), timeout)

    @cached_property
    def _probing(self) -> aiohttp.ClientSession:
        """Apart from the questions, which may take all connections."""
        timeout = aiohttp.ClientTimeout(total=_PROBE_SECONDS)
        return self._session(aiohttp.TCPConnector(force_close=True), timeout)

    def _session(
        self, connector: aiohttp.TCPConnector, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            headers={"Authorization": f"Bearer {self._token}"},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    async def _probe(self, path: str) -> int:
        """The status of the answer. Raises TimeoutError or aiohttp.ClientError."""
        async with self._probing.get(f"{self._url}{path}", allow_redirects=False) as answer:
            return answer.status

    async def _look(self) -> str | None:
        try:
            status = await self._probe("/readyz")
        except (aiohttp.ClientError, TimeoutError) as error:
            return f"No lookup server answers ({type(error).__name__})."
        if status == 401:
            return "A lookup server has another ICESTREAM_LOOKUP_TOKEN than the service."
        return None if status == 200 else "The lookup servers are busy."

    async def _first_answer(self, question: _Question) -> Answered:
        """Of the question, or of its repetition once it is late: whichever comes first."""
        seconds = question.seconds_left
        first = asyncio.create_task(self._send(question))
        asked = [first]
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wait(asked, timeout=_SOON_SECONDS)
                if first.done():
                    return first.result()
                again = asyncio.create_task(self._send_again(question, first))
                asked.append(again)
                await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                # One that has failed may still be answered by its repetition.
                return await (again if again.done() or first.exception() else first)
        except TimeoutError:
            raise _late(f"No lookup server has answered within {seconds:.0f} s.") from None
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _send_again(self, question: _Question, first: asyncio.Task[Answered]) -> Answered:
        if await self._takes_questions() and question.unanswered < _UNANSWERED:
            with suppress(IcestreamError):
                answered = await self._send(question)
                if answered.status != 503:
                    return answered
        return await first

    async def _takes_questions(self) -> bool:
        """Whether some server would be asked now. Raises IcestreamError if all seem to stand still."""
        for _ in range(_PROBES):
            try:
                await self._probe("/livez")
            except TimeoutError:
                continue
            except aiohttp.ClientError:
                # None listens. One that ends answers what it has begun, and a dead one's connection breaks.
                return False
            return True
        raise _away("The lookup servers answer neither this question nor their probes.")

    async def _send(self, question: _Question) -> Answered:
        """Raises IcestreamError."""
        for is_last in (False, True):
            try:
                answered = await self._send_once(question)
            except (aiohttp.ClientError, TimeoutError) as error:
                is_late = isinstance(error, TimeoutError)
                # One that has just died: another one answers, or the next one.
                is_asked = is_late and not isinstance(error, aiohttp.ConnectionTimeoutError)
                if is_last or is_asked or question.unanswered >= _UNANSWERED:
                    why = f"No lookup server answers ({type(error).__name__})."
                    raise (_late(why) if is_asked else _away(why)) from error
                continue
            # One that has enough to do: another one may not. What a store or a table is like, all find alike.
            if is_last or not _is_busy(answered):
                return answered
        raise AssertionError

    async def _send_once(self, question: _Question) -> Answered:
        url = f"{self._url}/lookups"
        headers = {"Accept": question.answer_type, _SECONDS_LEFT: f"{question.seconds_left:.3f}"}
        if next(self._sent) % _CONNECTION_QUESTIONS == 0:
            headers["Connection"] = "close"
        answered, content = Answered(), bytearray()
        answered.content = content
        self._under_way.add(answered)
        question.unanswered += 1
        try:
            async with self._asking.post(
                url, data=question.content, headers=headers, allow_redirects=False
            ) as answer:
                async for piece in answer.content.iter_any():
                    content += piece
                    self._check_size(len(content), question.answer_bytes)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            question.unanswered -= 1  # nobody was there to get it
            raise
        except BaseException:
            # Whoever keeps the error keeps what has come.
            content.clear()
            raise
        question.unanswered -= 1
        answered.status, answered.answer_type = answer.status, answer.headers.get("Content-Type", "")
        answered.content = bytes(content)
        return answered

    def _check_size(self, size: int, at_most: int) -> None:
        if size > at_most:
            raise InvalidError(
                "answer-too-large", f"It has more than the {at_most:,} bytes that it may have."
            )
        if sum(len(one.content) for one in self._under_way) > _UNDER_WAY_BYTES:
            raise IcestreamError(
                "lookups-busy",
                f"The answers that are under way have more than {_UNDER_WAY_BYTES:,} bytes together.",
            )


def _is_busy(answered: Answered) -> bool:
    try:
        return answered.status == 503 and ServerRefusal.model_validate_json(answered.content).code == "busy"
    except ValidationError:
        return False


def _not_understood(status: int) -> IcestreamError:
    return _away(f"A lookup server said what nobody understands (status {status}).")


def _away(detail: str) -> IcestreamError:
    return IcestreamError("lookups-unavailable", detail)


def _late(detail: str) -> IcestreamError:
    return IcestreamError("out-of-time", detail)


def _refused(status: int, refusal: ServerRefusal) -> IcestreamError:
    words, remedy = refusal.detail[:_WORDS] or refusal.title, refusal.remedy[:_WORDS] or None
    if make := _REFUSALS.get(refusal.code):
        return make(words, remedy)
    if status == 409:
        return ConflictError("lookup-failed", f"{refusal.title}: {words}", remedy)
    return IcestreamError("lookups-unavailable", f"{refusal.title}: {words}", remedy)
