"""Asks lookup servers, which answer from the index: any of them, since none has a state."""

from collections.abc import Callable, Mapping
from typing import Any

import httpx
from pydantic import ValidationError

from service.errors import ConflictError, IcestreamError, InvalidError, NotFoundError
from service.lookups.models import LookupAnswer, ServerRefusal
from service.settings import Settings

_CONNECT_SECONDS = 3.0
_ANSWER_SECONDS = 60.0
_ANSWER_BYTES = 256 * 1024**2
_AT_ONCE = 64
_WORDS = 2_000
_REFUSALS: Mapping[str, Callable[[str, str | None], IcestreamError]] = {
    "invalid_key": lambda words, remedy: InvalidError("invalid-key", words, remedy),
    "unknown_key_columns": lambda words, remedy: InvalidError("unknown-key-columns", words, remedy),
    "unknown_columns": lambda words, remedy: InvalidError("unknown-columns", words, remedy),
    "unknown_snapshot": lambda words, remedy: NotFoundError("unknown-snapshot", words, remedy),
    "not_covered": lambda words, remedy: ConflictError("not-covered", words, remedy),
}


class LookupServers:
    """Behind one URL. Used from the application's event loop."""

    def __init__(self, settings: Settings) -> None:
        self._url = settings.lookup_url
        token = settings.lookup_token.get_secret_value() if settings.lookup_token else ""
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=_AT_ONCE),
            trust_env=False,
        )

    @property
    def are_set_up(self) -> bool:
        return bool(self._url)

    async def ask(self, question: dict[str, Any]) -> LookupAnswer:
        """Raises IcestreamError: what a server refuses, or 503 when none answers."""
        status, content = await self._send(question)
        try:
            if status == 200:
                return LookupAnswer.model_validate_json(content)
            refusal = ServerRefusal.model_validate_json(content)
        except ValidationError as error:
            raise _away(f"A lookup server said what nobody understands (status {status}).") from error
        raise _refused(status, refusal)

    async def close(self) -> None:
        await self._client.aclose()

    async def _send(self, question: dict[str, Any]) -> tuple[int, bytes]:
        for is_last in (False, True):
            try:
                return await self._send_once(question)
            except httpx.TimeoutException as error:
                raise _away(f"No lookup server answered in time ({type(error).__name__}).") from error
            except httpx.HTTPError as error:
                # One that has just died: another one answers, or the next one.
                if is_last:
                    raise _away(f"No lookup server answers ({type(error).__name__}).") from error
        raise AssertionError

    async def _send_once(self, question: dict[str, Any]) -> tuple[int, bytes]:
        content = bytearray()
        async with self._client.stream("POST", f"{self._url}/lookups", json=question) as answer:
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > _ANSWER_BYTES:
                    raise InvalidError("answer-too-large", f"It has more than {_ANSWER_BYTES:,} bytes.")
        return answer.status_code, bytes(content)


def _away(detail: str) -> IcestreamError:
    return IcestreamError("lookups-unavailable", detail)


def _refused(status: int, refusal: ServerRefusal) -> IcestreamError:
    words, remedy = refusal.detail[:_WORDS] or refusal.title, refusal.remedy[:_WORDS] or None
    if make := _REFUSALS.get(refusal.code):
        return make(words, remedy)
    if status == 409:
        return ConflictError("lookup-failed", f"{refusal.title}: {words}", remedy)
    return IcestreamError("lookups-unavailable", f"{refusal.title}: {words}", remedy)
