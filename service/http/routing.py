"""The route classes of the API: `Idempotency-Key` on POST, replayed from the same transaction as the work.

The answer is stored by the session that did the work, so either both are committed or neither is.
Only successful answers are stored: a refused request changed nothing and may simply be sent again.
They are sealed with the Idempotency-Key, of which only a hash is stored: an answer may hold a new API key,
and whoever reads the database must not learn it. Nor may he find out by trying what a request has said, such
as whose rows were erased, so its fingerprint is keyed: with the Idempotency-Key, and with a secret of the
service if it has one, since a key may be easy to guess.
"""

import base64
import hashlib
import hmac
import inspect
import secrets
from collections.abc import Callable, Coroutine
from datetime import datetime
from functools import wraps
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from fastapi import Request, Response
from fastapi.routing import APIRoute
from sqlalchemy.exc import IntegrityError
from sqlmodel import Field, Session, SQLModel
from starlette.concurrency import run_in_threadpool

from service.db.database import Database, Json, UtcDateTime, get_database, utc_now, write_session
from service.errors import InvalidError
from service.http.body_limits import check_shape
from service.http.guards import IDEMPOTENCY_HEADER, SAFE_METHODS, guard_of
from service.http.json_values import check_body

_MAX_KEY_CHARACTERS = 255
_IDEMPOTENCY_PARAMETER = {
    "name": IDEMPOTENCY_HEADER,
    "in": "header",
    "required": False,
    "description": (
        "A request that is sent again with the same key happens once, and gets the first answer."
    ),
    "schema": {"type": "string", "minLength": 1, "maxLength": _MAX_KEY_CHARACTERS},
}
_NOT_REPLAYED = ("content-type", "content-length", "set-cookie")
"""The last would be a secret in the database."""
_SMALL_BYTES = 8 * 1024
"""To look through no more takes about as long as to hand it to a thread."""
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class IdempotentAnswer(SQLModel, table=True):
    __tablename__ = "idempotent_answers"

    principal: str = Field(primary_key=True)
    key: str = Field(primary_key=True)
    """Hash of the Idempotency-Key."""
    fingerprint: str
    """Keyed hash of method, path, query and body: the same key with another request is a mistake."""
    status_code: int
    content_type: str
    headers: dict[str, str] = Field(default_factory=dict, sa_type=Json)
    """Others, such as ETag and Location."""
    body: str
    """Encrypted with the Idempotency-Key, in base64."""
    created_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime, index=True)


class ApiRoute(APIRoute):
    """Reads a body only from who may call, and none that is too deep or that no database keeps; does a POST
    with a key once."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, _in_one_thread(endpoint), **options)
        # Without the session of its work, an answer can't be stored: the claim of a job has none.
        writes = any(dependency.call is write_session for dependency in self.dependant.dependencies)
        guard = guard_of(self.dependant)
        by_key = guard is not None and guard.once_header == IDEMPOTENCY_HEADER
        if "POST" in (self.methods or ()) and writes and by_key:
            self.openapi_extra = {**(self.openapi_extra or {}), "parameters": [_IDEMPOTENCY_PARAMETER]}

    def get_route_handler(self) -> Handler:
        read = super().get_route_handler()
        guard = guard_of(self.dependant)
        if guard is None or SAFE_METHODS.issuperset(self.methods or ()):
            return read
        has_body = self.body_field is not None

        async def handle(request: Request) -> Response:
            if guard.signs_body:
                request.state.signed_body = await request.body()
            await run_in_threadpool(guard.check, request)
            if has_body:
                body = await request.body()
                if len(body) <= _SMALL_BYTES:
                    _check_content(body)
                else:
                    await run_in_threadpool(_check_content, body)
            return await read(request)

        if "POST" not in (self.methods or ()):
            return handle

        async def handle_once(request: Request) -> Response:
            key = request.headers.get(guard.once_header)
            if key is None:
                return await handle(request)
            if guard.signs_body:
                request.state.signed_body = await request.body()
            _check_key(key)
            caller = await run_in_threadpool(guard.check, request)
            owner = caller.key
            fingerprint = _fingerprint(request, await request.body(), key)
            database = get_database(request)
            stored = await run_in_threadpool(_find, database, owner, key, fingerprint)
            if stored is not None:
                return stored
            answer = await handle(request)
            session: Session | None = getattr(request.state, "session", None)
            if session is None:
                return answer
            row = IdempotentAnswer(
                principal=owner,
                key=_digest("row", key).hex(),
                fingerprint=fingerprint,
                status_code=answer.status_code,
                content_type=answer.headers.get("content-type", ""),
                headers={name: value for name, value in answer.headers.items() if name not in _NOT_REPLAYED},
                body=_seal(key, bytes(answer.body)),
            )
            try:
                await run_in_threadpool(_store, session, row)
            except IntegrityError:
                # The same request ran at the same time and won: undo this one, answer with the other's.
                await run_in_threadpool(session.rollback)
                stored = await run_in_threadpool(_find, database, owner, key, fingerprint)
                if stored is None:
                    raise
                return stored
            return answer

        return handle_once


def _in_one_thread(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """An endpoint that is called in a thread, as FastAPI does; but for the answer, which is one of our models
    already, that takes another one."""
    if inspect.iscoroutinefunction(endpoint):
        return endpoint

    @wraps(endpoint)
    async def call(*args: Any, **given: Any) -> Any:
        return await run_in_threadpool(endpoint, *args, **given)

    return call


def _check_content(body: bytes) -> None:
    check_shape(body)
    check_body(body)


def _check_key(key: str) -> None:
    if not 0 < len(key) <= _MAX_KEY_CHARACTERS:
        raise InvalidError(
            "invalid-idempotency-key",
            f"It has {len(key)} characters; 1 to {_MAX_KEY_CHARACTERS} are allowed.",
        )


def _fingerprint(request: Request, body: bytes, key: str) -> str:
    of_service: bytes = request.app.state.fingerprint_secret
    parts = (request.method.encode(), request.url.path.encode(), request.url.query.encode(), body)
    return hmac.new(_digest("fingerprint", key) + of_service, b"\0".join(parts), hashlib.sha256).hexdigest()


def _find(database: Database, owner: str, key: str, fingerprint: str) -> Response | None:
    with database.read() as session:
        row = session.get(IdempotentAnswer, (owner, _digest("row", key).hex()))
    if row is None:
        return None
    if row.fingerprint != fingerprint:
        raise InvalidError("idempotency-key-reused", f"{key!r} was used before with another path or body.")
    return Response(
        _open(key, row.body),
        row.status_code,
        headers={**row.headers, "Idempotency-Replayed": "true"},
        media_type=row.content_type or None,
    )


def _digest(purpose: str, key: str) -> bytes:
    return hashlib.sha256(f"icestream idempotent {purpose}\0{key}".encode()).digest()


def _seal(key: str, body: bytes) -> str:
    nonce = secrets.token_bytes(12)
    return base64.b64encode(nonce + AESGCM(_digest("answer", key)).encrypt(nonce, body, None)).decode()


def _open(key: str, sealed: str) -> bytes:
    content = base64.b64decode(sealed)
    return AESGCM(_digest("answer", key)).decrypt(content[:12], content[12:], None)


def _store(session: Session, row: IdempotentAnswer) -> None:
    session.add(row)
    session.flush()
