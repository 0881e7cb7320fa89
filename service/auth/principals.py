"""From a request to its principal, bearer credential first, then the session cookie; and that cookie."""

from fastapi import Request
from fastapi.responses import Response

from service.auth.models import Principal
from service.auth.oidc import TokenVerifier, looks_like_token
from service.auth.service import find_api_key_principal, find_session_principal, invalid_key
from service.database import get_database
from service.settings import Settings

SESSION_COOKIE = "icestream_session"


def find_principal(request: Request) -> Principal | None:
    """Who is calling; None without credentials.

    Raises UnauthenticatedError for a key or token that is not valid, ForbiddenError for a token that stands
    for no role, IssuerUnreachableError if it can't be known whose token it is.
    """
    scheme, _, credential = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and (credential := credential.strip()):
        verifier: TokenVerifier | None = request.app.state.token_verifier
        if verifier is not None and looks_like_token(credential):
            return verifier.verify(credential)
        found = find_api_key_principal(get_database(request), credential)
        if found is None:
            raise invalid_key()
        return found
    if token := request.cookies.get(SESSION_COOKIE):
        return find_session_principal(get_database(request), token)
    return None


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
