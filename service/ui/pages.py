"""From an endpoint's answer to a page: rendering, and errors that a person can read.

Invariant: a page loads nothing from elsewhere and runs no inline script or style; `PAGE_POLICY` makes the
browser hold us to it.
"""

import hashlib
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from importlib.resources import files
from inspect import iscoroutinefunction
from pathlib import PurePosixPath
from typing import Annotated, Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pydantic import AfterValidator

from service import __version__
from service.auth.access import CSRF_FIELD, typed_form
from service.auth.models import Principal
from service.confirmations import words_before
from service.errors import IcestreamError, UnauthenticatedError
from service.http.headers import PAGE_POLICY
from service.http.messages import to_utc
from service.records.api_keys import Role
from service.ui import formats

_PASSING = frozenset({500, 502, 503})
"""What may go well another time with the same form, besides a lost race."""
STATIC = {file.name: file.read_bytes() for file in (files("service.ui") / "static").iterdir()}
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}
DIGEST = hashlib.sha256(b"".join(STATIC[name] for name in sorted(STATIC))).hexdigest()[:12]
PLACES = (
    ("/", "Overview"),
    ("/timeline", "Timeline"),
    ("/tables", "Tables"),
    ("/jobs", "Jobs"),
    ("/erasures", "Erasures"),
    ("/policies", "Policies"),
    ("/catalogs", "Catalogs"),
    ("/workers", "Workers"),
)
PLACES_OF_ADMINS = (
    ("/webhooks", "Webhooks"),
    ("/senders", "Senders"),
    ("/api-keys", "API keys"),
    ("/audit", "Audit"),
)
_JSON_ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "&<>'"}
TypedTime = Annotated[datetime, AfterValidator(lambda time: to_utc(time.replace(tzinfo=time.tzinfo or UTC)))]
"""What a form sends for a time: in UTC if it names no zone, as the form says where no script runs."""


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("service.ui"),
        autoescape=True,
        auto_reload=False,  # each import of a template would look at its file
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=formats.count,
        at_least=formats.at_least,
        together=formats.together,
        short_count=formats.short_count,
        plural=formats.plural,
        size=formats.size,
        duration=formats.duration,
        percent=formats.percent,
        times=formats.times,
        moment=formats.moment,
        breakable=formats.breakable,
        columns=formats.columns,
        rfc3339=formats.rfc3339,
        in_attribute=_in_attribute,
        sentence=formats.sentence,
        states=lambda statuses, counts: [(one.value, one.value, counts[one]) for one in statuses],
        pairs=lambda names, words="": [(name, f"{words}{name}") for name in names],
        basename=lambda path: PurePosixPath(path).name,
    )
    environment.globals.update(
        version=__version__,
        bar=PLACES,
        bar_of_admins=PLACES_OF_ADMINS,
        seconds_between=formats.seconds_between,
        static=lambda name: f"/static/{DIGEST}/{name}",
        words_before=words_before,
    )
    return environment


def _in_attribute(text: str) -> Markup:
    """JSON as it can stand between single quotes: entities for its many double quotes would make it long."""
    return Markup(text.translate(_JSON_ESCAPES))  # noqa: S704


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
        theme=theme if (theme := request.cookies.get("theme")) in ("light", "dark") else "",
        here=here,
        has_cursor="cursor" in request.query_params,
        is_filtered=bool(request.query_params.keys() - {"sort", "limit", "cursor"}),
        principal=principal,
        csrf_token=(principal.csrf_token or "") if principal else "",
        can_operate=can_operate,
        is_admin=principal is not None and principal.role.allows(Role.ADMIN),
        **context,
    )
    return HTMLResponse(text, status_code, {"Content-Security-Policy": PAGE_POLICY})


def address_of(request: Request) -> str:
    """Where this service is, as the browser reaches it."""
    return str(request.base_url).rstrip("/")


class PageRoute(APIRoute):
    """Takes a filter that was left empty for none, and tells what a page cost."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, _telling_its_cost(endpoint), **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            request.scope["query_string"] = urlencode(parse_qsl(request.url.query)).encode()
            return await handle(request)

        return handle_page


def _telling_its_cost(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """The answer says what it took in processor time: the script paces itself by that."""
    if iscoroutinefunction(endpoint):
        return endpoint

    @wraps(endpoint)
    def timed(**arguments: Any) -> Any:
        began = time.thread_time()
        answer = endpoint(**arguments)
        answer.headers["Server-Timing"] = f"cpu;dur={1000 * (time.thread_time() - began):.1f}"
        return answer

    return timed


def problem_page(request: Request, error: IcestreamError) -> Response:
    """What went wrong and what to do, with the form that was sent; or the login for whoever must sign in."""
    principal: Principal | None = getattr(request.state, "principal", None)
    sent = _sent(request, error, principal)
    if not isinstance(error, UnauthenticatedError) or request.url.path == "/login":
        return render(
            request,
            "error.html",
            principal,
            status_code=error.status_code,
            error=error,
            sent=sent,
            request_id=request.state.request_id,
        )
    if request.method == "GET":
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse("/login" if target == "/" else f"/login?next={quote(target)}", 303)
    return render(
        request,
        "login.html",
        status_code=error.status_code,
        target="/",
        error=None,
        is_over=True,
        sent=sent,
    )


@dataclass(frozen=True)
class SentForm:
    """A form that was not taken, as it can be sent again."""

    path: str
    fields: Sequence[tuple[str, str]]
    can_succeed: bool = True
    """Whether the same may be taken another time."""

    @property
    def typed(self) -> list[tuple[str, str]]:
        """What a person knows of it, with names in words."""
        return [
            (name.replace(".", " ").replace("_", " "), value)
            for name, value in self.fields
            if value and name not in (CSRF_FIELD, "version")
        ]

    @property
    def packed(self) -> str:
        """The fields in one, but for the token of the session that is over."""
        return urlencode([pair for pair in self.fields if pair[0] != CSRF_FIELD])

    @classmethod
    def unpacked(cls, path: str, packed: str, csrf_token: str) -> Self:
        return cls(local_path(path), [*parse_qsl(packed, keep_blank_values=True), (CSRF_FIELD, csrf_token)])


def _sent(request: Request, error: IcestreamError, principal: Principal | None) -> SentForm | None:
    """The form that an error answers, unless another site may have made it up."""
    form = typed_form(request)
    if form is None or request.url.path in ("/login", "/logout"):
        return None
    fields = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
    has_lost_session = isinstance(error, UnauthenticatedError) or error.slug == "csrf-failed"
    if has_lost_session:
        if urlsplit(request.headers.get("origin", "")).netloc != request.headers.get("host"):
            return None
        fields = [pair for pair in fields if pair[0] != CSRF_FIELD]
        if principal is not None and principal.csrf_token is not None:
            fields.append((CSRF_FIELD, principal.csrf_token))
    is_passing = error.status_code in _PASSING or error.slug == "changed-at-the-same-time"
    return SentForm(request.url.path, fields, has_lost_session or is_passing)


def local_path(target: str) -> str:
    """`target` if a browser takes it for a page of ours, else `/`: a login must not send anybody elsewhere.

    Browsers drop tabs and line breaks, take `\\` for `/`, and what follows two slashes for a host; something
    in front of us may decode the path once more.
    """
    path = target.partition("?")[0]
    is_plain = target.isprintable() and "\\" not in target
    decoded = unquote(path)
    is_local = path.startswith("/") and not decoded.startswith(("//", "/\\")) and decoded.isprintable()
    return target if is_plain and is_local else "/"
