"""How large and how deep a request's body may be: nobody makes the service hold more than it was meant to."""

import re

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import IcestreamError, InvalidError
from service.http.problem_documents import problem_response
from trust.bounds import LimitExceededError, check_values, is_deeper

MAX_BODY_BYTES = 1024**2
MAX_BODY_DEPTH = 64
"""Objects and lists within each other, in JSON."""
MAX_REPORT_BYTES = 64 * 1024**2
"""Of a worker's report, which may name many files."""
MAX_LOOKUP_BYTES = 8 * 1024**2
"""Of a question about keys."""
MAX_SIGNED_BYTES = 256 * 1024
"""Of a signed notification, which is read before it is known whose it is."""
_REPORT = re.compile(r"^/api/v1/jobs/[^/]+/attempts/[^/]+/[a-z-]+$")
_SIGNED = re.compile(r"^/api/v1/notification-senders/[^/]+/commit-events$")
_LOOKUP = re.compile(r"^/api/v1/tables/[^/]+/lookups$")


def check_shape(body: bytes) -> None:
    """Raise IcestreamError for JSON that is nested too deep, or has more values than a parser should make.

    It is not parsed for that: it must be cheap whatever the body is. What is no JSON is for others to refuse.
    """
    if is_deeper(body, MAX_BODY_DEPTH):
        raise InvalidError(
            "body-too-deep",
            f"Its objects and lists lie within each other more than {MAX_BODY_DEPTH} times.",
            limit_depth=MAX_BODY_DEPTH,
        )
    try:
        check_values(body, "It")
    except LimitExceededError as error:
        raise IcestreamError("body-too-large", str(error), limit_bytes=MAX_REPORT_BYTES) from None


def _limit_bytes(path: str) -> int:
    if _REPORT.match(path):
        return MAX_REPORT_BYTES
    if _SIGNED.match(path):
        return MAX_SIGNED_BYTES
    return MAX_LOOKUP_BYTES if _LOOKUP.match(path) else MAX_BODY_BYTES


class BodyLimit:
    """Answers 413 to a body that is too large: at once if its length is told, else when too much has come."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = _limit_bytes(scope["path"])
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if told.isdigit() and int(told) > limit:
            await _refuse(scope, receive, send, limit)
            return
        received = 0
        has_begun = is_refused = False

        async def counted() -> Message:
            nonlocal received, is_refused
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                is_refused = True
                return {"type": "http.disconnect"}
            return message

        async def unless_refused(message: Message) -> None:
            nonlocal has_begun
            if not is_refused or has_begun:
                has_begun = True
                await send(message)

        try:
            await self.app(scope, counted, unless_refused)
        except Exception:
            if not is_refused:
                raise
        if is_refused and not has_begun:
            await _refuse(scope, receive, send, limit)


async def _refuse(scope: Scope, receive: Receive, send: Send, limit: int) -> None:
    error = IcestreamError("body-too-large", f"It has more than {limit:,} bytes.", limit_bytes=limit)
    response = problem_response(Request(scope), error)
    response.headers["connection"] = "close"  # what is still to come of the body is not read
    await response(scope, receive, send)
