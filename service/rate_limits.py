"""How often somebody may call: everybody by himself, and strangers who fail to prove who they are much less.

The limits are of this replica and lie in its memory, which is bounded; no request waits for them.
"""

import hashlib
import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.auth.access import SAFE_METHODS
from service.auth.models import Principal, Role
from service.auth.principals import SESSION_COOKIE
from service.errors import IcestreamError, problem_response
from service.settings import Settings

REMEMBERED = 10_000
"""Of callers, and of credentials that were good: the ones not seen for longest are forgotten."""
# Whoever restarts a service that does not answer must not be refused as well.
_PROBES = frozenset({"/livez", "/readyz"})
Value = TypeVar("Value")


class Bucket:
    """Holds a minute's worth of calls, filled again as time passes."""

    def __init__(self, per_minute: int, now: float) -> None:
        self._per_minute, self._left, self._at = per_minute, float(per_minute), now

    def wait_seconds(self, now: float) -> float:
        """How long until the next call, 0 for at once."""
        self._left = min(self._per_minute, self._left + (now - self._at) * self._per_minute / 60)
        self._at = now
        return max(0.0, (1 - self._left) * 60 / self._per_minute)

    def take(self) -> None:
        self._left -= 1


class Recent(Generic[Value]):
    """The values used last, by key."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> Value | None:
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key]

    def put(self, key: str, value: Value) -> Value:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > REMEMBERED:
            self._values.popitem(last=False)
        return value

    def forget(self, key: str) -> None:
        self._values.pop(key, None)


@dataclass(frozen=True)
class _Caller:
    address: str
    credential: str | None
    """A digest of it."""
    principal: Principal | None
    """Whose credential it is, if it was good before."""
    tries_to_get_in: bool
    """Whether a 401 to this is an attempt that failed; who only reads a page is led to the login."""


class RateLimits:
    """Answers 429 with Retry-After to whoever calls too often.

    Whose credential was good before is counted alone; all others are counted by their address, and so are
    attempts that failed. A worker's calls are not counted: it calls as often as its jobs need.
    """

    def __init__(
        self, app: ASGIApp, settings: Settings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.app = app
        self._calls_per_minute = settings.requests_per_minute
        self._failures_per_minute = settings.failed_logins_per_minute
        self._monotonic = monotonic
        self.calls: Recent[Bucket] = Recent()
        self.failures: Recent[Bucket] = Recent()
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
        authorization = request.headers.get("Authorization", "")
        given = authorization or request.cookies.get(SESSION_COOKIE, "")
        digest = hashlib.sha256(given.encode()).hexdigest() if given else None
        return _Caller(
            _network(request.client.host if request.client else ""),
            digest,
            self.known.get(digest) if digest else None,
            bool(authorization) or request.method not in SAFE_METHODS or "token" in request.query_params,
        )

    def _refusal(self, caller: _Caller) -> IcestreamError | None:
        now = self._monotonic()
        if self._failures_per_minute and caller.tries_to_get_in and caller.principal is None:
            failures = self.failures.get(caller.address)
            if failures is not None and (wait := failures.wait_seconds(now)):
                return _too_many("failed to sign in", self._failures_per_minute, wait)
        if self._calls_per_minute and not (caller.principal and caller.principal.role is Role.WORKER):
            key = caller.principal.key if caller.principal else caller.address
            calls = self.calls.get(key) or self.calls.put(key, Bucket(self._calls_per_minute, now))
            if wait := calls.wait_seconds(now):
                return _too_many("called", self._calls_per_minute, wait)
            calls.take()
        return None

    def _learn(self, scope: Scope, caller: _Caller, status: int) -> None:
        principal: Principal | None = scope["state"].get("principal")
        if principal is not None and caller.credential is not None:
            self.known.put(caller.credential, principal)
        elif status == 401 and caller.tries_to_get_in and self._failures_per_minute:
            now = self._monotonic()
            failures = self.failures.get(caller.address)
            if failures is None:
                failures = self.failures.put(caller.address, Bucket(self._failures_per_minute, now))
            failures.wait_seconds(now)
            failures.take()
            if caller.credential is not None:
                self.known.forget(caller.credential)


def _network(host: str) -> str:
    """Who counts as one stranger: an IPv4 address; of IPv6 a /64, where a host has any address it likes."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return str(ipaddress.ip_network((address, 64), strict=False)) if address.version == 6 else host


def _too_many(what: str, per_minute: int, wait_seconds: float) -> IcestreamError:
    seconds = math.ceil(wait_seconds)
    return IcestreamError(
        "too-many-requests",
        "Too many requests",
        f"You {what} more than {per_minute} times a minute; the next one is answered in {seconds} s.",
        "Wait so long, then try again. Scripts that wait for a job can follow the stream of events instead.",
        status=429,
        retry_after_seconds=seconds,
    )
