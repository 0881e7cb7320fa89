"""Signing in and out: with an API key, or with a link that is good for one login.

A form that was sent after its session had ended waits in the login form, and can be sent again afterwards.
"""

from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import RedirectResponse

from service.auth import service as auth
from service.auth.access import SignedIn
from service.auth.principals import SESSION_COOKIE, clear_session_cookie, find_principal, set_session_cookie
from service.auth.tries import one_try
from service.db.database import CurrentDatabase
from service.errors import ForbiddenError, UnauthenticatedError
from service.http.guards import Anyone
from service.settings import CurrentSettings
from service.ui.pages import PageRoute, SentForm, local_path, render

router = APIRouter(route_class=PageRoute)


@router.get("/login", dependencies=[Anyone])
def show_login(
    request: Request,
    database: CurrentDatabase,
    settings: CurrentSettings,
    token: str | None = None,
    next: str = "/",  # noqa: A002
) -> Response:
    """The form for an API key; with a one-time token, sign in at once."""
    if token is not None:
        try:
            with one_try(request, token, can_be_guessed=False), database.write() as session:
                secret = auth.log_in_with_token(session, settings, token)
                auth.log_out(session, request.cookies.get(SESSION_COOKIE, ""))
        except UnauthenticatedError as error:
            return _login_form(request, next, error)
        return _signed_in(request, secret, next)
    if request.cookies.get(SESSION_COOKIE) and find_principal(request) is not None:
        return RedirectResponse(local_path(next), 303)
    return _login_form(request, next)


@router.post("/login", dependencies=[Anyone])
def log_in(
    request: Request,
    database: CurrentDatabase,
    settings: CurrentSettings,
    api_key: Annotated[str, Form()] = "",
    next: Annotated[str, Form()] = "/",  # noqa: A002
    sent_to: Annotated[str, Form()] = "",
    sent: Annotated[str, Form()] = "",
) -> Response:
    """sent: the fields of a form that was sent to `sent_to` without a session."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        raise ForbiddenError(
            "csrf-failed", "Another site sent this login form.", "Open this page yourself and sign in."
        )
    key = api_key.strip()
    try:
        with one_try(request, key), database.write() as session:
            secret = auth.log_in_with_key(session, settings, key)
            auth.log_out(session, request.cookies.get(SESSION_COOKIE, ""))
    except UnauthenticatedError as error:
        return _login_form(request, next, error, SentForm.unpacked(sent_to, sent, "") if sent_to else None)
    if not sent_to:
        return _signed_in(request, secret, next)
    principal = auth.find_session_principal(database, secret)
    form = SentForm.unpacked(sent_to, sent, auth.csrf_token_of(secret))
    response = render(request, "send_again.html", principal, sent=form)
    set_session_cookie(response, request, secret)
    return response


@router.post("/logout")
def log_out(request: Request, database: CurrentDatabase, _sender: SignedIn) -> Response:
    if token := request.cookies.get(SESSION_COOKIE):
        with database.write() as session:
            auth.log_out(session, token)
    response = RedirectResponse("/login", 303)
    clear_session_cookie(response)
    return response


def _login_form(
    request: Request,
    target: str,
    error: UnauthenticatedError | None = None,
    sent: SentForm | None = None,
) -> Response:
    return render(
        request,
        "login.html",
        status_code=error.status_code if error else 200,
        target=local_path(target),
        error=error,
        is_over=False,
        sent=sent,
    )


def _signed_in(request: Request, secret: str, target: str) -> Response:
    response = RedirectResponse(local_path(target), 303)
    set_session_cookie(response, request, secret)
    return response
