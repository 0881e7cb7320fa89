"""From a request to its principal, bearer credential first, then the session cookie; and that cookie."""

from dataclasses import dataclass

from fastapi.responses import Response
from starlette.requests import Request

from service.auth.models import Principal
from service.auth.oidc import TokenVerifier, looks_like_token
from service.auth.service import find_api_key_principal, find_session_principal, invalid_key
from service.auth.tries import one_try
from service.db.database import get_database
from service.settings import Settings

SESSION_COOKIE = "icestream_session"


@dataclass(frozen=True)
class Credential:
    """What a request proves its caller with; without `is_session`, what follows `Bearer`."""

    secret: str
    is_session: bool


def credential_of(request: Request) -> Credential | None:
    """The one credential of a request that counts, whatever else it brings along."""
    scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and (bearer := bearer.strip()):
        return Credential(bearer, is_session=False)
    cookie = request.cookies.get(SESSION_COOKIE)
    return Credential(cookie, is_session=True) if cookie else None


def find_principal(request: Request) -> Principal | None:
    """Who is calling; None without credentials, and for a session that is over.

    Raises UnauthenticatedError for a key or token that is not valid, ForbiddenError for a token that stands
    for no role, IssuerUnreachableError if it can't be known whose token it is, and a 429 for credentials from
    an address that tried too many wrong ones.
    """
    credential = credential_of(request)
    if credential is None:
        return None
    database = get_database(request)
    if credential.is_session:
        # The service made its secret, so no guess ever hits; and a page whose session ended goes on asking.
        return find_session_principal(database, credential.secret)
    verifier: TokenVerifier | None = request.app.state.token_verifier
    if verifier is not None and looks_like_token(credential.secret):
        with one_try(request, credential.secret, can_be_guessed=False):
            return verifier.verify(credential.secret)
    with one_try(request, credential.secret):
        found = find_api_key_principal(database, credential.secret)
        if found is None:
            raise invalid_key()
    return found


def set_session_cookie(response: Response, request: Request, token: str) -> None:
    """Hand a session secret to the browser; scripts cannot read it.

    Other sites send it by a link alone, which opens its page for whoever is signed in: each write asks for a
    token beside it.
    """
    settings: Settings = request.app.state.settings
    response.set_cookie(
        SESSION_COOKIE,
        token,
        max_age=int(settings.session_hours * 3600),
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
        path="/",
    )


def clear_session_cookie(response: Response) -> None:
    response.delete_cookie(SESSION_COOKIE)
