"""How often somebody may call: everybody by himself, and strangers by their address.

The limits are of this replica and lie in its memory, which is bounded; no request waits for them. How often
somebody may fail to prove who he is stands in service.auth.tries.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.auth.buckets import Bucket, Recent, digest_of, network_of, too_many
from service.auth.models import Principal
from service.auth.principals import credential_of
from service.errors import IcestreamError
from service.http.problem_documents import problem_response
from service.records.api_keys import Role
from service.settings import Settings

# Whoever restarts a service that does not answer must not be refused as well.
_PROBES = frozenset({"/livez", "/readyz"})


@dataclass(frozen=True)
class _Caller:
    address: str
    credential: str | None
    """A digest of it."""
    principal: Principal | None
    """Whose credential it is, if it was good before."""


class RateLimits:
    """Answers 429 with Retry-After to whoever calls too often.

    Whose credential was good before is counted alone; all others are counted by their address. A worker's
    calls are not counted: it calls as often as its jobs need.
    """

    def __init__(
        self, app: ASGIApp, settings: Settings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.app = app
        self._per_minute = settings.requests_per_minute
        self._monotonic = monotonic
        self.calls: Recent[Bucket] = Recent()
        self.known: Recent[Principal] = Recent()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _PROBES:
            await self.app(scope, receive, send)
            return
        scope.setdefault("state", {})
        caller = self._caller(Request(scope))
        error = self._refusal(caller)
        if error is not None:
            await problem_response(Request(scope), error)(scope, receive, send)
            return

        async def send_and_learn(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._learn(scope, caller, message["status"])
            await send(message)

        await self.app(scope, receive, send_and_learn)

    def _caller(self, request: Request) -> _Caller:
        credential = credential_of(request)
        digest = digest_of(credential.secret) if credential else None
        return _Caller(
            network_of(request.client.host if request.client else ""),
            digest,
            self.known.get(digest) if digest else None,
        )

    def _refusal(self, caller: _Caller) -> IcestreamError | None:
        if not self._per_minute or (caller.principal and caller.principal.role is Role.WORKER):
            return None
        now = self._monotonic()
        key = caller.principal.key if caller.principal else caller.address
        calls = self.calls.get(key) or self.calls.put(key, Bucket(self._per_minute, now))
        if wait := calls.wait_seconds(now):
            return too_many("You called", self._per_minute, wait)
        calls.take()
        return None

    def _learn(self, scope: Scope, caller: _Caller, status: int) -> None:
        principal: Principal | None = scope["state"].get("principal")
        if caller.credential is None:
            return
        if principal is not None:
            self.known.put(caller.credential, principal)
        elif status == 401:
            self.known.forget(caller.credential)
