"""From an endpoint's answer to a page: rendering, and errors that a person can read.

Invariant: a page loads nothing from elsewhere and runs no inline script or style; `PAGE_POLICY` makes the
browser hold us to it.
"""

import hashlib
from collections.abc import Callable, Coroutine
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool

from service import __version__
from service.auth.models import Principal, Role
from service.errors import IcestreamError, UnauthenticatedError, validation_error
from service.headers import PAGE_POLICY
from service.ui import formats

EVERYTHING = 10_000
"""More than a page shows of anything that it does not page through."""
STATIC = {file.name: file.read_bytes() for file in (files("service.ui") / "static").iterdir()}
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_DIGEST = hashlib.sha256(b"".join(STATIC[name] for name in sorted(STATIC))).hexdigest()[:12]


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("service.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=formats.count,
        short_count=formats.short_count,
        plural=formats.plural,
        size=formats.size,
        duration=formats.duration,
        percent=formats.percent,
        moment=formats.moment,
        with_times=formats.with_times,
        breakable=formats.breakable,
        rfc3339=formats.rfc3339,
        sentence=formats.sentence,
        pairs=lambda names, words="": [(name, f"{words}{name}") for name in names],
        basename=lambda path: PurePosixPath(path).name,
    )
    environment.globals.update(
        version=__version__,
        seconds_between=formats.seconds_between,
        static=lambda name: f"/static/{_DIGEST}/{name}",
    )
    return environment


_templates = _environment()


def render(
    request: Request,
    template: str,
    principal: Principal | None = None,
    *,
    status_code: int = 200,
    **context: Any,
) -> HTMLResponse:
    """A page for `principal`, or for somebody who is not signed in."""
    can_operate = principal is not None and principal.role.allows(Role.OPERATOR)

    def here(**changes: object) -> str:
        """The address of this list, from its beginning, with other filters or another order."""
        kept = [pair for pair in request.query_params.multi_items() if pair[0] not in {"cursor", *changes}]
        return "?" + urlencode(kept + [(name, value) for name, value in changes.items() if value is not None])

    text = _templates.get_template(template).render(
        path=request.url.path,
        here=here,
        has_cursor="cursor" in request.query_params,
        is_filtered=bool(request.query_params.keys() - {"sort", "limit"}),
        principal=principal,
        csrf_token=(principal.csrf_token or "") if principal else "",
        can_operate=can_operate,
        is_admin=principal is not None and principal.role.allows(Role.ADMIN),
        **context,
    )
    return HTMLResponse(text, status_code)


def address_of(request: Request) -> str:
    """Where this service is, as the browser reaches it."""
    return str(request.base_url).rstrip("/")


class PageRoute(APIRoute):
    """Answers errors as pages, sends whoever is not signed in to the login, and names its policy."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            # A filter that was left empty is none.
            request.scope["query_string"] = urlencode(parse_qsl(request.url.query)).encode()
            try:
                response = await handle(request)
            except IcestreamError as error:
                response = await run_in_threadpool(_answer_error, request, error)
            except RequestValidationError as error:
                response = await run_in_threadpool(_answer_error, request, validation_error(error))
            response.headers["Content-Security-Policy"] = PAGE_POLICY
            return response

        return handle_page


def _answer_error(request: Request, error: IcestreamError) -> Response:
    if isinstance(error, UnauthenticatedError) and request.method == "GET" and request.url.path != "/login":
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse("/login" if target == "/" else f"/login?next={quote(target)}", 303)
    # The application's handler records denied writes; only its JSON is not for people.
    request.app.exception_handlers[IcestreamError](request, error)
    principal: Principal | None = getattr(request.state, "principal", None)
    return render(request, "error.html", principal, status_code=error.status_code, error=error)


def local_path(target: str) -> str:
    """`target` if it leads to a page of ours, else `/`: a login must not send anybody elsewhere."""
    parts = urlsplit(target)
    is_local = target.startswith("/") and not parts.scheme and not parts.netloc and "\\" not in target
    return target if is_local and target.isprintable() else "/"
