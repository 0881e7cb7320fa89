"""From a request to its principal: bearer key first, then the session cookie.

The page uses `find_principal`, `set_session_cookie`, `clear_session_cookie` and `check_csrf`;
API endpoints use the `Viewer` and `Caller` dependencies.
"""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.responses import Response
from fastapi.security import APIKeyCookie, HTTPBearer

from service.auth.models import Principal, Role
from service.auth.service import (
    check_csrf,
    find_api_key_principal,
    find_session_principal,
    forbidden,
    invalid_key,
)
from service.database import get_database
from service.errors import UnauthenticatedError
from service.settings import Settings

SESSION_COOKIE = "icestream_session"
CSRF_HEADER = "X-CSRF-Token"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

# Only for the OpenAPI document; `find_principal` does the work.
_bearer = HTTPBearer(auto_error=False, description="An API key.")
_cookie = APIKeyCookie(name=SESSION_COOKIE, auto_error=False, description="A browser session.")


def find_principal(request: Request) -> Principal | None:
    """Who is calling; None without credentials. Raises UnauthenticatedError for an invalid key."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        found = find_api_key_principal(get_database(request), key.strip())
        if found is None:
            raise invalid_key()
        return found
    if token := request.cookies.get(SESSION_COOKIE):
        return find_session_principal(get_database(request), token)
    return None


def require_principal(
    request: Request, _key: Annotated[object, Depends(_bearer)], _session: Annotated[object, Depends(_cookie)]
) -> Principal:
    """The caller of an API endpoint; a browser session must send its CSRF token with every write."""
    principal = find_principal(request)
    if principal is None:
        raise UnauthenticatedError(
            "unauthenticated",
            "Who are you?",
            "This call needs an API key.",
            "Send `Authorization: Bearer <key>`; the first admin key is ICESTREAM_BOOTSTRAP_KEY.",
        )
    request.state.principal = principal
    if request.method not in _SAFE_METHODS:
        check_csrf(principal, request.headers.get(CSRF_HEADER))
    return principal


Caller = Annotated[Principal, Depends(require_principal)]
"""Any authenticated caller; the service function that is called checks the role."""


def _require_viewer(principal: Caller, request: Request) -> Principal:
    if not principal.role.allows(Role.VIEWER):
        raise forbidden(principal, Role.VIEWER, f"{request.method} {request.url.path}", request.url.path)
    return principal


def _require_admin(principal: Caller, request: Request) -> Principal:
    if not principal.role.allows(Role.ADMIN):
        raise forbidden(principal, Role.ADMIN, f"{request.method} {request.url.path}", request.url.path)
    return principal


def _require_worker(principal: Caller, request: Request) -> Principal:
    if not principal.role.allows(Role.WORKER):
        raise forbidden(principal, Role.WORKER, f"{request.method} {request.url.path}", request.url.path)
    return principal


Viewer = Annotated[Principal, Depends(_require_viewer)]
Admin = Annotated[Principal, Depends(_require_admin)]
WorkerCaller = Annotated[Principal, Depends(_require_worker)]


def set_session_cookie(response: Response, request: Request, token: str) -> None:
    """Hand a session secret to the browser; scripts cannot read it and other sites cannot send it."""
    settings: Settings = request.app.state.settings
    response.set_cookie(
        SESSION_COOKIE,
        token,
        max_age=int(settings.session_hours * 3600),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path="/",
    )


def clear_session_cookie(response: Response) -> None:
    response.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")
