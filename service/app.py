"""The application: routes, middleware, and what runs beside the requests.

`prepare(settings)` migrates the database and makes the first key; `create_app(settings)` serves it.
"""

import logging
import re
import threading
import time
import uuid
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from service import __version__
from service.auth import audit, audit_endpoints
from service.auth import endpoints as auth_endpoints
from service.auth.access import action_of, check_every_route_declares_access
from service.auth.models import Principal
from service.auth.oidc import TokenVerifier
from service.auth.rate_limits import RateLimits
from service.auth.service import ensure_bootstrap_keys
from service.auth.tries import Tries
from service.catalogs import endpoints as catalogs_endpoints
from service.catalogs.iceberg import IcebergCatalogs
from service.catalogs.threads import CatalogThreads
from service.db.database import Database, ReadSession, get_database, migrate
from service.discovery import endpoints as discovery_endpoints
from service.discovery.candidates import Looks
from service.erasures import endpoints as erasures_endpoints
from service.erasures.receipt import check_secrets
from service.errors import (
    DatabaseError,
    ForbiddenError,
    IcestreamError,
    UnauthenticatedError,
    is_database_trouble,
)
from service.examples import add_examples
from service.http.body_limits import BodyLimit
from service.http.documentation import router as documentation_router
from service.http.guards import SAFE_METHODS, Anyone
from service.http.headers import SecurityHeaders
from service.http.json_values import RefuseNul
from service.http.problem_documents import (
    PROBLEM_RESPONSES,
    declare_problems,
    install_error_handlers,
    problem_response,
)
from service.index_health import endpoints as health_endpoints
from service.jobs import endpoints as jobs_endpoints
from service.jobs.attempts import ends_reported_to
from service.jobs.stream import RecentEvents, RecentMoves
from service.lookups import endpoints as lookups_endpoints
from service.lookups.concurrency import ConcurrencyLimits
from service.lookups.key_limits import KeyLimits
from service.lookups.metadata_locations import MetadataLocations
from service.lookups.metrics import LookupMetrics
from service.lookups.questions import add_schema
from service.lookups.servers import LookupServers
from service.metrics import render_metrics
from service.notifications import endpoints as notifications_endpoints
from service.overview import endpoints as overview_endpoints
from service.policies import endpoints as policies_endpoints
from service.policies.service import ensure_built_in
from service.records.api_keys import Role
from service.rows import endpoints as rows_endpoints
from service.scheduling import endpoints as scheduling_endpoints
from service.scheduling.background import Background
from service.settings import CurrentSettings, Settings
from service.tables import endpoints as tables_endpoints
from service.ui.endpoints import router as ui_router
from service.ui.pages import problem_page
from service.webhooks import endpoints as webhooks_endpoints
from service.workers import endpoints as workers_endpoints
from service.workers.waiting import Claims
from telemetry.logs import add_ids
from telemetry.traces import adopt, current_traceparent, start_traces, stop_traces, trace_id_of

_TAGS = [
    {"name": name, "description": description}
    for name, description in {
        "auth": "Make, list and revoke API keys, and tell who is calling.",
        "audit": "List who changed what, or was not allowed to.",
        "catalogs": "Register Iceberg catalogs, and try whether they can be opened.",
        "discovery": "Find tables that hold equality deletes, and enrol tables by patterns.",
        "tables": "Enrol tables, and change and show what holds for them.",
        "lookups": "Find the rows of given keys, and what they hold.",
        "rows": "Write rows by key: upserts and deletes.",
        "erasures": "Erase keys from tables, and give receipts for it.",
        "notifications": "Tell of tables that have changed: they are looked at at once.",
        "policies": "Say when which jobs run, for everything or for catalogs, namespaces and tables.",
        "jobs": "Request jobs, and follow their progress, results and events.",
        "health": "Show how far a table's index and its conversion are behind, now and over time.",
        "workers": "Show the processes that run jobs; these make the other calls.",
        "webhooks": "Send events of jobs and tables elsewhere, signed, and show what became of each.",
        "probes": "Tell those who watch the service how it is.",
    }.items()
]
_ANONYMOUS = Principal("anonymous", "", "anonymous", Role.VIEWER)
_PROBES = ("/livez", "/readyz", "/metrics")
_log = logging.getLogger("icestream.requests")
_REQUEST_ID = re.compile(r"^[A-Za-z0-9._-]{1,100}$")


def prepare(settings: Settings) -> None:
    """Migrate the database, bring the built-in policies up to date, make the first admin key.

    Raises StartError, whose text says what to change, if the service must not start with these settings.
    """
    settings.check_bootstrap_keys()
    check_secrets(settings)
    migrate(settings.database_url)
    database = Database(settings.database_url)
    try:
        database.check_start()
        _complete(database, settings)
    finally:
        database.dispose()


def create_app(settings: Settings) -> FastAPI:
    """The service for one process; its database is migrated already (see `prepare`)."""

    @asynccontextmanager
    async def run(app: FastAPI) -> AsyncIterator[None]:
        database.check_start()
        _complete(database, settings)
        background = app.state.background = Background(database, settings, app.state.catalogs)
        if settings.background:
            background.start()
        yield
        app.state.catalog_threads.stop()
        background.stop()
        app.state.catalogs.close()
        await app.state.lookup_servers.close()
        database.dispose()
        stop_traces()

    database = Database(settings.database_url)
    provider = start_traces("icestream-service")
    app = _Service(
        openapi_url=None,
        routes=_routes.routes,
        title="Icestream",
        version=__version__,
        summary="Replaces equality deletes of Apache Iceberg tables by deletion vectors.",
        openapi_tags=_TAGS,
        lifespan=run,
        telemetry={
            "tracer_provider": provider,
            "tracing": provider is not None,
            # The log has the errors, and /metrics the figures.
            "logs": False,
            "metrics": False,
            "operation_spans": False,
            "auto_configure": False,
            "exclude": _is_untraced,
        },
    )
    app.state.settings, app.state.database, app.state.catalogs = settings, database, IcebergCatalogs(settings)
    app.state.looks = Looks()
    app.state.catalog_threads = CatalogThreads(settings)
    app.state.lookup_servers, app.state.metadata_locations = LookupServers(settings), MetadataLocations()
    app.state.key_limits, app.state.lookup_metrics = KeyLimits(settings), LookupMetrics()
    app.state.lookup_concurrency = ConcurrencyLimits()
    app.state.fingerprint_secret = _fingerprint_secret(settings)
    app.state.recent_events = RecentEvents(database)
    app.state.recent_moves = RecentMoves(database)
    app.state.stopping = threading.Event()
    app.state.claims = Claims(database, settings, app.state.stopping)
    app.state.ends = ends_reported_to(database)
    app.state.problem_page = problem_page
    app.state.token_verifier = TokenVerifier(settings) if settings.oidc_issuer else None
    app.state.tries = Tries(settings)
    app.add_middleware(RefuseNul)
    app.add_middleware(BodyLimit)
    app.add_middleware(RateLimits, settings=settings)
    install_error_handlers(app)
    declare_problems(app)
    app.add_exception_handler(IcestreamError, _answer_error)
    check_every_route_declares_access(app)
    return app


class _Service(FastAPI):
    """With examples in its document, and what wraps every answer, also the framework's own to errors."""

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        add_schema(document)
        add_examples(document)
        for call in (call for calls in document["paths"].values() for call in calls.values()):
            for answer in call["responses"].values():
                if answer["description"] == "Successful Response":  # FastAPI's words, and no sentence
                    answer["description"] = "The call has succeeded."
        return document

    def build_middleware_stack(self) -> ASGIApp:
        settings: Settings = self.state.settings
        stack: ASGIApp = SecurityHeaders(Requests(super().build_middleware_stack(), settings))
        if settings.trusted_proxies:
            # Says who calls and whether over TLS, if a proxy that is trusted passes it on.
            stack = ProxyHeadersMiddleware(stack, trusted_hosts=list(settings.trusted_proxies))  # type: ignore[arg-type,assignment]
        return stack


class Requests:
    """Gives every request an id, or keeps a sane one that the caller sent as X-Request-ID, and logs it."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self._is_logged = settings.log_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = given if _REQUEST_ID.match(given) else str(uuid.uuid4())
        scope.setdefault("state", {})["request_id"] = request_id
        audit.current_request_id.set(request_id)
        adopt(dict(scope["headers"]).get(b"traceparent", b"").decode("latin-1"))
        trace_id = trace_id_of(current_traceparent())
        add_ids(request_id=request_id, **({"trace_id": trace_id} if trace_id else {}))
        started, status = time.monotonic(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        finally:
            if self._is_logged and scope["path"] not in _PROBES:
                _log_request(scope, status, time.monotonic() - started)


def _is_untraced(scope: MutableMapping[str, Any]) -> bool:
    """What is asked again and again, or lasts, and the login, whose link holds a secret."""
    path: str = scope.get("path", "")
    return path in (*_PROBES, "/login", "/api/v1/events", "/changes") or path.endswith(
        ("/claim", "/heartbeat")
    )


def _log_request(scope: Scope, status: int, seconds: float) -> None:
    """Without the query, which may hold a secret. status: 0 if nothing was answered."""
    principal: Principal = scope["state"].get("principal", _ANONYMOUS)
    method, path = scope["method"], scope["raw_path"].decode("latin-1")
    fields = {
        "method": method,
        "path": path,
        "status": status,
        "seconds": round(seconds, 4),
        "client": scope["client"][0] if scope["client"] else None,
        "principal": principal.name,
    }
    line = "%s %s %d in %.3f s for %s"
    _log.info(line, method, path, status, seconds, principal.name, extra={"fields": fields})


_probes = APIRouter(tags=["probes"], dependencies=[Anyone])


_OK = {"status": "ok"}
_SHOWS_OK: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {"example": _OK}}}}


@_probes.get("/livez", responses=_SHOWS_OK)
async def live() -> dict[str, str]:
    """Tell whether the process runs, which it does if it answers."""
    return _OK


@_probes.get("/readyz", responses=_SHOWS_OK)
def ready(request: Request) -> Response:
    """The database can be read and written and is migrated. Workers and Spark do not matter here."""
    try:
        problem = get_database(request).check_usable()
    except SQLAlchemyError as error:
        problem = f"The database cannot be used: {getattr(error, 'orig', None) or type(error).__name__}"
    if problem is None:
        return JSONResponse(_OK)
    return problem_response(
        request,
        IcestreamError("not-ready", problem, "See the service log; it retries by itself."),
    )


@_probes.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(request: Request, session: ReadSession, settings: CurrentSettings) -> Response:
    """Show figures about all tables, jobs and workers for Prometheus. They tell no names, so they need no
    key."""
    figures = render_metrics(session, settings, request.app.state.lookup_metrics)
    return Response(figures, media_type=CONTENT_TYPE_LATEST)


def _answer_error(request: Request, error: Exception) -> Response:
    """Answer; a denial is recorded in a transaction of its own.

    Not recorded is who reads without being known: nothing was asked for in anybody's name, and scanners
    would fill the log.
    """
    if not isinstance(error, IcestreamError):
        raise error
    changes = request.method not in SAFE_METHODS
    if isinstance(error, ForbiddenError) or (changes and isinstance(error, UnauthenticatedError)):
        principal: Principal = getattr(request.state, "principal", _ANONYMOUS)
        if name := error.extra.get("principal"):
            principal = replace(_ANONYMOUS, name=name)  # known, but with no role here
        action = error.extra.get("action") or action_of(request)
        target = error.extra.get("target") or request.url.path
        try:
            with get_database(request).write() as session:
                audit.record(session, principal, action, target, "denied", reason=error.slug)
        except SQLAlchemyError as trouble:
            if not is_database_trouble(trouble):
                raise
            # A denial that cannot be recorded is not given: the caller asks again.
            error = DatabaseError(trouble)
    return problem_response(request, error)


def _fingerprint_secret(settings: Settings) -> bytes:
    """What keys the fingerprints of requests beside their Idempotency-Key; empty if there is none."""
    secret = settings.erasure_secret
    return secret.get_secret_value().encode() if secret is not None else b""


def _complete(database: Database, settings: Settings) -> None:
    with database.write() as session:
        ensure_built_in(session)
        ensure_bootstrap_keys(session, settings)


def _every_route() -> APIRouter:
    """Made once: what FastAPI works out of them takes longer than all else of an application."""
    api = APIRouter(prefix="/api/v1")
    for endpoints in (
        # Those first that are called most: each call is compared with all routes before its own.
        lookups_endpoints,
        workers_endpoints,
        notifications_endpoints,
        auth_endpoints,
        catalogs_endpoints,
        tables_endpoints,
        scheduling_endpoints,
        discovery_endpoints,
        policies_endpoints,
        jobs_endpoints,
        rows_endpoints,
        erasures_endpoints,
        health_endpoints,
        overview_endpoints,
        webhooks_endpoints,
        audit_endpoints,
    ):
        api.include_router(endpoints.router)
    every = APIRouter(generate_unique_id_function=lambda route: route.name, responses=PROBLEM_RESPONSES)
    every.include_router(api)
    every.include_router(_probes)
    every.include_router(documentation_router)
    every.include_router(ui_router, include_in_schema=False)
    return every


_routes = _every_route()
