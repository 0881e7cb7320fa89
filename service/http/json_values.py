"""What JSON allows and no database keeps: refused wherever in a request it stands."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import InvalidError
from service.http.problem_documents import problem_response

# What may be such a value: only then is a body looked through.
_SUSPECT_TEXT = re.compile(rb"\\u(0000|[dD][89a-fA-F])")
_SUSPECT_NUMBER = re.compile(rb"[NI0-9](?:aN|nfinity|[eE]|(?<=9)[2-9][0-9]{17}|[0-9]{19})")
_SMALL_BYTES = 64 * 1024
_LARGEST = 2**63 - 1


class RefuseNul:
    """Answers 422 to a path or query with a NUL character, which PostgreSQL cannot compare with anything."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and ("\0" in scope["path"] or b"%00" in scope["query_string"]):
            where = "The path" if "\0" in scope["path"] else "The query"
            await problem_response(Request(scope), _unusable(f"{where} has a NUL character."))(
                scope, receive, send
            )
            return
        await self.app(scope, receive, send)


def check_body(body: bytes) -> None:
    """Raise InvalidError for a JSON body with a value that cannot be stored."""
    if b"\0" in body:
        # JSON is UTF-8 (RFC 8259), but parsers read UTF-16 as well, in which nothing would be found here.
        raise _unusable("The body has NUL bytes, which JSON in UTF-8 never has.")
    if not _is_suspect(body):
        return
    try:
        parsed = json.loads(body)
        found = next(unusable_values(parsed, "body"), None)
    except (ValueError, RecursionError):
        return  # no JSON: refused by whoever reads it
    if found is not None:
        raise _unusable(found)


def _is_suspect(body: bytes) -> bool:
    if b"\\u" in body and _SUSPECT_TEXT.search(body) is not None:
        return True
    numbers = body
    if len(body) <= _SMALL_BYTES:  # of more, the pieces would take much memory
        # What is outside of strings: in ids and paths, much looks like a number.
        numbers = b" ".join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    return _SUSPECT_NUMBER.search(numbers) is not None


def unusable_values(value: Any, place: str) -> Iterator[str]:
    """What of a parsed value, which stands at `place`, cannot be stored: a sentence each."""
    match value:
        case dict():
            for key, item in value.items():
                yield from unusable_values(key, f"a name in {place}")
                yield from unusable_values(item, f"{place}.{key}")
        case list():
            for number, item in enumerate(value):
                yield from unusable_values(item, f"{place}.{number}")
        case str() if "\0" in value:
            yield f"{place} has a NUL character."
        case str() if any("\ud800" <= character <= "\udfff" for character in value):
            yield f"{place} has half of a surrogate pair, which is no character."
        case float() if not math.isfinite(value):
            yield f"{place} is no finite number."
        case int() if abs(value) > _LARGEST:
            yield f"{place} does not fit into 64 bits."


def _unusable(detail: str) -> InvalidError:
    return InvalidError(
        "unusable-value",
        detail,
        "Send text without NUL characters and lone surrogates, and finite numbers of 64 bits at most.",
    )
