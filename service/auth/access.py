"""Who may call a route: each declares one `Access`, and the application does not start without that.

Services check the role of whoever writes once more (`authorize`), since commands and jobs call them as well.
"""

import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts
from fastapi.security import APIKeyCookie, HTTPBearer
from starlette.datastructures import FormData

from service.auth.models import Principal, Scope
from service.auth.principals import SESSION_COOKIE, find_principal
from service.auth.service import forbidden
from service.auth.tries import one_try
from service.errors import ForbiddenError, IcestreamError, UnauthenticatedError
from service.http.guards import SAFE_METHODS, Guard, anyone, calls_of
from service.records.api_keys import Role

CSRF_HEADER = "X-CSRF-Token"
CSRF_FIELD = "csrf_token"

# Only for the OpenAPI document; `find_principal` does the work.
_bearer = HTTPBearer(
    auto_error=False, description="The credential is an API key, or a token of the OpenID Connect issuer."
)
_cookie = APIKeyCookie(
    name=SESSION_COOKIE,
    auto_error=False,
    description="The cookie holds a browser session, which a login opens.",
)


async def _csrf_token(request: Request) -> str | None:
    """What proves that a write comes from a page of ours: scripts send a header, forms a field."""
    if request.method in SAFE_METHODS:
        return None
    if token := request.headers.get(CSRF_HEADER):
        return token
    if request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        form = request.state.form = await request.form()
        field = form.get(CSRF_FIELD)
        return field if isinstance(field, str) else None
    return None


def typed_form(request: Request) -> FormData | None:
    """The form that a write came with, if it was read."""
    form: FormData | None = getattr(request.state, "form", None)
    return form


@dataclass(frozen=True)
class Access(Guard):
    """A dependency that lets those through whose role allows `role`; None: whoever is known, whatever role.

    Of an API key with scopes, one of these must name the route's part of the API as well.

    A browser session must prove that its writes come from a page of ours; no other site can make a browser
    send the bearer token of another credential.
    """

    role: Role | None
    reads: bool = False
    """Whether the call only reads, though its method does not say so: what it asks may be too long for a
    URL, or too private."""

    @property
    def word(self) -> str:
        return self.role.value if self.role else "signed in"

    async def __call__(
        self,
        request: Request,
        csrf_token: Annotated[str | None, Depends(_csrf_token)],
        _key: Annotated[object, Depends(_bearer)],
        _session: Annotated[object, Depends(_cookie)],
    ) -> Principal:
        # Who is known already is not looked up again, and needs no thread.
        is_known = hasattr(request.state, "principal")
        principal = self.check(request) if is_known else await run_in_threadpool(self.check, request)
        if principal.csrf_token is not None and request.method not in SAFE_METHODS:
            _check_csrf(principal.csrf_token, csrf_token, request)
        return principal

    def check(self, request: Request) -> Principal:
        """Who calls, once for each request; raises UnauthenticatedError or ForbiddenError."""
        known: Principal | None = getattr(request.state, "principal", None)
        principal = known or find_principal(request)
        if principal is None:
            unknown = UnauthenticatedError(
                "unauthenticated",
                "This call needs an API key or a token, or a browser that is signed in.",
                "Send `Authorization: Bearer <key or token>`, or sign in at /login; the first admin key is "
                "ICESTREAM_BOOTSTRAP_KEY.",
            )
            if request.method in SAFE_METHODS:
                raise unknown
            # Each is an entry of the audit log, which strangers must not fill.
            with one_try(request, None):
                raise unknown
        request.state.principal = principal
        self._check_role(principal, request)
        return principal

    def still_admits(self, request: Request) -> bool:
        """Whether a request that goes on for long would be let in now."""
        try:
            principal = find_principal(request)
            if principal is not None:
                self._check_role(principal, request)
        except IcestreamError:  # also if nobody can say: whoever comes back is told
            return False
        return principal is not None

    def _check_role(self, principal: Principal, request: Request) -> None:
        if self.role is not None and not principal.role.allows(self.role):
            raise forbidden(principal, self.role, action_of(request), request.url.path)
        if self.role is not None and principal.scopes is not None:
            _check_scopes(principal.scopes, principal.name, request, self.reads)


SignedIn = Annotated[Principal, Depends(Access(None))]
VIEWERS = Access(Role.VIEWER)
Viewer = Annotated[Principal, Depends(VIEWERS)]
Operator = Annotated[Principal, Depends(Access(Role.OPERATOR))]
Admin = Annotated[Principal, Depends(Access(Role.ADMIN))]
WorkerCaller = Annotated[Principal, Depends(Access(Role.WORKER))]


def action_of(request: Request) -> str:
    """What a request tries, for the audit log: `POST /tables/{table_id}/jobs`, over HTTP as from a page."""
    path = getattr(request.scope.get("route"), "path_format", request.url.path)
    return f"{request.method} {path}"


def _check_scopes(scopes: frozenset[Scope], name: str, request: Request, only_reads: bool) -> None:
    """A route belongs to the part that its tag names; what has none, such as pages, is in no scope."""
    areas: list[str] = getattr(request.scope.get("route"), "tags", [])
    reads = only_reads or request.method in SAFE_METHODS
    sufficient = [
        f"{area}:{right}" for area in areas for right in (("read", "write") if reads else ("write",))
    ]
    if scopes.intersection(sufficient):
        return
    raise ForbiddenError(
        "out-of-scope",
        f"{name!r} is only for {', '.join(sorted(scopes))}.",
        f"Use a key with the scope {sufficient[0]}, or one without scopes."
        if sufficient and sufficient[0] in list(Scope)
        else "Use a key without scopes.",
        action=action_of(request),
        target=request.url.path,
    )


def _check_csrf(expected: str, token: str | None, request: Request) -> None:
    if token is not None and hmac.compare_digest(expected.encode(), token.encode()):
        return
    raise ForbiddenError(
        "csrf-failed",
        f"Its CSRF token (header {CSRF_HEADER}, form field {CSRF_FIELD}) is missing or of another session.",
        "Open the page anew and try again, for instance after signing in as somebody else.",
        action=action_of(request),
        target=request.url.path,
    )


def check_every_route_declares_access(app: FastAPI) -> None:
    """Raise RuntimeError for a route that nobody decided on, or that says two things."""
    for method, path, declared in declared_access(app):
        if len(declared) != 1:
            raise RuntimeError(
                f"{method} {path} declares {declared or 'nothing'}: every route needs exactly one of "
                "service.auth.access (Viewer, Operator, Admin, WorkerCaller, SignedIn) or Anyone"
            )


def declared_access(app: FastAPI) -> Iterator[tuple[str, str, list[str]]]:
    """(method, path, who may call it) of every route: a role, `signed in`, `senders` or `anyone`."""
    for route in iter_route_contexts(app.routes):
        dependant = getattr(route, "dependant", None)
        calls = calls_of(dependant) if isinstance(dependant, Dependant) else []
        found = {
            call.word if isinstance(call, Guard) else "anyone"
            for call in calls
            if call is anyone or isinstance(call, Guard)
        }
        for method in sorted(route.methods or {"*"}):
            yield method, str(route.path), sorted(found)
