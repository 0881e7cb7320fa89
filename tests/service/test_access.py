"""Every route as every caller: who is let through, how the others are answered, and what the log keeps."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Request
from sqlmodel import select

from service.auth.access import Access, Viewer, check_every_route_declares_access
from service.auth.models import Scope
from service.auth.principals import SESSION_COOKIE, Credential, credential_of
from service.auth.service import create_login_link, csrf_token_of, log_in_with_token
from service.command.openapi import DOCUMENT
from service.http.guards import Anyone
from service.records.api_keys import Role
from service.records.audit import AuditEntry
from tests.access import CALLERS, DECISIONS
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import ADMIN_KEY, Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog

# Who may call is decided by the route.
database_kind = alike_on_both

ROUTES = sorted((route, who) for who, routes in DECISIONS.items() for route in routes)
_FILLED = {"attempt": "1", "action": "pause"}
_BODIES: dict[str, dict[str, Any]] = {
    "POST /login": {"data": {"api_key": ADMIN_KEY}},
    "POST /api/v1/workers/{worker_id}/claim": {"json": {"wait_seconds": 0}},
}


def is_page(route: str) -> bool:
    path = route.partition(" ")[2]
    unlike = ("/api/", "/livez", "/readyz", "/metrics", "/openapi.json", "/docs")
    return not path.startswith(unlike)


def is_write(route: str) -> bool:
    return not route.startswith("GET ")


def sign_in(service: Running, role: Role) -> str:
    """The secret of a new browser session."""
    token = create_login_link(service.database, service.url, role=role, name=role.value).partition("token=")[
        2
    ]
    with service.database.write() as session:
        return log_in_with_token(session, service.settings, token)


@contextmanager
def call(client: httpx.Client, url: str, route: str, **options: Any) -> Iterator[httpx.Response]:
    """The answer to `route`, whose identifiers name nothing; event streams are not read."""
    method, path = route.split(" ")
    for part in path.split("/"):
        if part.startswith("{"):
            path = path.replace(part, _FILLED.get(part.strip("{}"), "nope"))
    body = _BODIES.get(route) or ({"data": {}} if is_page(route) else {"json": {}})
    arguments = {**(body if is_write(route) else {}), **options}
    client.cookies.clear()  # of a login before
    with client.stream(method, url + path, **arguments) as answer:
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            answer.read()
        yield answer


@pytest.mark.parametrize("caller", CALLERS)
def test_every_route_lets_through_whom_it_was_decided_to(service: Running, caller: str) -> None:
    role = None if caller == "anonymous" else Role(caller)
    bearer = service.client(role) if role else service.client_with({})
    browser = service.client_with({})
    wrong, secret = [], ""
    recorded: Counter[str] = Counter()
    for route, who in ROUTES:
        client, options = bearer, {}
        if role and is_page(route):
            secret = secret or sign_in(service, role)
            cookie = {"Cookie": f"{SESSION_COOKIE}={secret}"}
            client, options = browser, {"headers": cookie | {"X-CSRF-Token": csrf_token_of(secret)}}
        with call(client, service.url, route, **options) as answer:
            is_let_through = who in CALLERS[caller]
            is_right = was_let_through if is_let_through else was_refused
            if who == "senders":
                is_right = lacked_a_signature
            if not is_right(answer, route, caller):
                wrong.append(f"{route} answered {answer.status_code}")
        if route in ("POST /login", "POST /logout"):  # which end a session
            secret = ""
        if not is_let_through and (role or is_write(route)):
            recorded[route.replace("/api/v1", "")] += 1
    assert wrong == []
    with service.database.read() as session:
        denied = session.exec(select(AuditEntry.action).where(AuditEntry.outcome == "denied"))
        assert Counter(denied) == recorded, "each refusal once, but reads of strangers"


def was_let_through(answer: httpx.Response, route: str, caller: str) -> bool:
    to_login = answer.headers.get("location", "").startswith("/login") and route != "POST /logout"
    return answer.status_code not in (401, 403, 405) and answer.status_code < 500 and not to_login


def lacked_a_signature(answer: httpx.Response, route: str, caller: str) -> bool:
    return answer.status_code == 401 and answer.json()["type"] == "/problems/signature-invalid"


def was_refused(answer: httpx.Response, route: str, caller: str) -> bool:
    """Pages answer with a page or lead to the login, calls with a problem document."""
    status = 401 if caller == "anonymous" else 403
    if not is_page(route):
        kind = "unauthenticated" if caller == "anonymous" else "forbidden"
        is_problem = answer.headers["content-type"] == "application/problem+json"
        return answer.status_code == status and is_problem and answer.json()["type"] == f"/problems/{kind}"
    if caller == "anonymous" and not is_write(route):
        return answer.status_code == 303 and answer.headers["location"].startswith("/login")
    return answer.status_code == status and answer.headers["content-type"].startswith("text/html")


def test_every_write_of_a_browser_session_must_come_from_our_page(service: Running) -> None:
    """By the cookie alone nothing is changed, whatever the route."""
    browser = service.client_with({"Cookie": f"{SESSION_COOKIE}={sign_in(service, Role.ADMIN)}"})
    writes = [route for route, who in ROUTES if is_write(route) and who not in ("anyone", "senders")]
    taken = []
    for route in writes:
        for options in ({}, {"headers": {"X-CSRF-Token": "guessed"}}, {"data": {"csrf_token": "guessed"}}):
            with call(browser, service.url, route, **options) as answer:
                if answer.status_code != 403 or "did not come from our page" not in answer.text:
                    taken.append(f"{route} answered {answer.status_code}")
    assert len(writes) > 30
    assert taken == []


def test_an_application_with_a_route_that_nobody_decided_on_does_not_start() -> None:
    def call(_caller: Viewer) -> None: ...

    decided, undecided, twice = FastAPI(openapi_url=None), FastAPI(openapi_url=None), APIRouter()
    decided.get("/a")(call)
    decided.get("/b", dependencies=[Anyone])(lambda: None)
    check_every_route_declares_access(decided)
    undecided.get("/c")(lambda: None)
    with pytest.raises(RuntimeError, match="GET /c declares nothing"):
        check_every_route_declares_access(undecided)
    twice.get("/d", dependencies=[Anyone])(call)
    decided.include_router(twice, prefix="/in")
    with pytest.raises(RuntimeError, match=r"GET /in/d declares .*anyone.*viewer"):
        check_every_route_declares_access(decided)


def test_a_page_of_the_framework_itself_is_a_route_that_nobody_decided_on() -> None:
    with pytest.raises(RuntimeError, match=r"GET /openapi\.json declares nothing"):
        check_every_route_declares_access(FastAPI())


def test_the_access_of_a_dependency_counts_for_its_route() -> None:
    def wrapped(caller: Annotated[object, Depends(Access(Role.ADMIN))]) -> object:
        return caller

    app = FastAPI(openapi_url=None)
    app.get("/a", dependencies=[Depends(wrapped)])(lambda: None)
    check_every_route_declares_access(app)


def test_a_key_with_scopes_does_what_one_of_them_names_and_nothing_else(service: Running) -> None:
    """Each route with a key for its part of the API alone, and with one for all other parts."""
    operations = json.loads(DOCUMENT.read_text())["paths"]

    @cache
    def key(scopes: frozenset[str]) -> httpx.Client:
        body = {"name": "k", "role": "admin", "scopes": sorted(scopes)}
        made = service.admin.post("/api-keys", json=body)
        assert made.status_code == 201, made.text
        return service.client_with({"Authorization": f"Bearer {made.json()['key']}"})

    known = {scope.value for scope in Scope}
    wrong, asked = [], set()
    for route, who in ROUTES:
        if who in ("anyone", "signed in", "senders"):
            continue
        method, path = route.split(" ")
        tags = operations[path][method.lower()]["tags"] if path in operations else []
        reads = method == "GET" or "/lookups" in path or path.endswith("/policy/replay")
        rights = ("read", "write") if reads else ("write",)
        named = known.intersection(f"{tag}:{right}" for tag in tags for right in rights)
        asked |= named
        for scope in named:
            with call(key(frozenset([scope])), service.url, route) as answer:
                if not was_let_through(answer, route, "admin"):
                    wrong.append(f"{route} answered {answer.status_code} to {scope}")
        with call(key(frozenset(known - named)), service.url, route) as answer:
            is_refused = answer.status_code == 403 and (
                is_page(route) or answer.json()["type"] == "/problems/out-of-scope"
            )
            if not is_refused:
                wrong.append(f"{route} answered {answer.status_code} to all other scopes")
    assert wrong == []
    assert asked == known, "each scope is for something"


def test_a_key_with_scopes_keeps_them_and_opens_no_browser_session(service: Running) -> None:
    body = {"name": "k", "role": "operator", "scopes": ["jobs:write", "audit:read", "jobs:write"]}
    made = service.admin.post("/api-keys", json=body).json()
    assert made["scopes"] == ["audit:read", "jobs:write"]
    rotated = service.admin.post(f"/api-keys/{made['id']}/rotate", json={"grace_seconds": 0}).json()
    scoped = service.client_with({"Authorization": f"Bearer {rotated['key']}"})
    assert scoped.get("/me").json()["scopes"] == rotated["scopes"] == made["scopes"]
    assert scoped.get("/audit").json()["type"] == "/problems/forbidden", "a scope adds nothing to the role"
    refused = scoped.get("/tables").json()
    assert (refused["type"], refused["detail"]) == (
        "/problems/out-of-scope",
        "'k' is only for audit:read, jobs:write.",
    )
    assert "tables:read" in refused["remedy"]
    # Nothing of that heading is written, and there is no scope for it.
    assert "health:read" in scoped.get("/tables/nope/health").json()["remedy"]
    login = httpx.post(f"{service.url}/login", data={"api_key": rotated["key"]}, timeout=PATIENCE_SECONDS)
    assert login.status_code == 401
    assert "a key that has no scopes" in login.text
    (entry,) = service.admin.get("/audit", params={"action": "api_key.create", "target": "k"}).json()["items"]
    assert entry["fields"] == {"role": "operator", "scopes": made["scopes"]}
    for scopes in ([], ["auth:write"], ["catalog:local"]):
        assert service.admin.post("/api-keys", json=body | {"scopes": scopes}).status_code == 422


def test_only_an_admin_attaches_a_policy_to_the_whole_system(service: Running) -> None:
    body = {"level": "system", "policy": "standard"}
    refused = service.client(Role.OPERATOR).put("/policy-attachments", json=body)
    assert (refused.status_code, refused.json()["type"]) == (403, "/problems/forbidden")
    assert service.admin.put("/policy-attachments", json=body).status_code == 200


def test_every_denial_is_recorded_but_anonymous_reads(service: Running) -> None:
    worker, anonymous = service.client(Role.WORKER), service.client_with({})
    for client in (worker, anonymous):
        client.get("/jobs")
        client.post("/jobs/nope/cancel")
    denied = service.admin.get("/audit", params={"outcome": "denied"}).json()["items"]
    assert [(entry["principal"], entry["action"], entry["target"]) for entry in denied] == [
        ("anonymous", "POST /jobs/{job_id}/cancel", "/api/v1/jobs/nope/cancel"),
        ("worker", "POST /jobs/{job_id}/cancel", "/api/v1/jobs/nope/cancel"),
        ("worker", "GET /jobs", "/api/v1/jobs"),
    ]


def test_the_audit_log_is_found_by_who_what_where_when_and_how_it_ended(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    table = service.enroll()
    service.client(Role.VIEWER).post(f"/tables/{table['id']}/pause")
    service.client(Role.OPERATOR).post(f"/tables/{table['id']}/pause")
    everything = service.admin.get("/audit").json()["items"]
    assert [entry["action"] for entry in everything[:2]] != everything[1:3]

    def found(**query: Any) -> list[tuple[str, str]]:
        answer = service.admin.get("/audit", params=query)
        assert answer.status_code == 200, answer.text
        return [(entry["principal"], entry["action"]) for entry in answer.json()["items"]]

    paused, denied = ("operator", "table.pause"), ("viewer", "POST /tables/{table_id}/pause")
    assert found(principal="operator") == [paused]
    assert found(action="table.pause") == [paused]
    assert found(target="local.db.t", action="table.pause") == [paused]
    assert found(outcome="denied") == [denied]
    assert found(outcome="denied", principal="operator") == []
    at = next(entry["at"] for entry in everything if entry["action"] == "table.pause")
    assert paused in found(since=at)
    assert denied not in found(since=at)
    assert paused not in found(until=at)
    assert denied in found(until=at)
    refused = service.admin.get("/audit", params={"since": "2026-01-01T00:00:00"})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "query.since")


def test_a_login_opens_a_session_of_its_own(service: Running) -> None:
    """Whatever cookie somebody slipped into the browser before is worth nothing afterwards."""
    planted = "planted-by-somebody-who-waits-for-the-login"
    before = sign_in(service, Role.VIEWER)
    for brought_along in (planted, before):
        login = httpx.post(
            f"{service.url}/login",
            data={"api_key": ADMIN_KEY},
            headers={"Cookie": f"{SESSION_COOKIE}={brought_along}"},
            timeout=PATIENCE_SECONDS,
        )
        assert login.status_code == 303
        assert login.cookies[SESSION_COOKIE] not in (planted, before)
        assert f"max-age={3600 * service.settings.session_hours:.0f};" in login.headers["set-cookie"].lower()
    browser = service.client_with({"Cookie": f"{SESSION_COOKIE}={planted}"})
    assert browser.get("/me").status_code == 401
    browser = service.client_with({"Cookie": f"{SESSION_COOKIE}={before}"})
    assert browser.get("/me").status_code == 401, "one browser has one session"


def test_who_is_no_longer_known_or_never_had_the_role_is_not_admitted_any_more(service: Running) -> None:
    secret = sign_in(service, Role.VIEWER)
    state = SimpleNamespace(database=service.database, token_verifier=None)
    cookie = f"{SESSION_COOKIE}={secret}"
    request = Request(
        {
            "type": "http",
            "method": "GET",
            "path": "/",
            "headers": [(b"host", b"here"), (b"cookie", cookie.encode())],
            "app": SimpleNamespace(state=state),
        }
    )
    assert Access(Role.VIEWER).still_admits(request)
    assert not Access(Role.OPERATOR).still_admits(request)
    form = {"csrf_token": csrf_token_of(secret)}
    httpx.post(f"{service.url}/logout", data=form, headers={"Cookie": cookie}, timeout=PATIENCE_SECONDS)
    assert not Access(Role.VIEWER).still_admits(request)


@pytest.mark.parametrize(
    ("authorization", "found"),
    [
        ("Bearer k", Credential("k", is_session=False)),
        ("bearer  k ", Credential("k", is_session=False)),
        ("Bearer ", Credential("c", is_session=True)),
        ("Basic k", Credential("c", is_session=True)),
        ("k", Credential("c", is_session=True)),
    ],
)
def test_what_follows_bearer_counts_and_else_the_session(authorization: str, found: Credential) -> None:
    headers = [(b"authorization", authorization.encode()), (b"cookie", f"{SESSION_COOKIE}=c".encode())]
    assert credential_of(Request({"type": "http", "headers": headers})) == found


def test_a_logout_ends_the_session_wherever_its_cookie_is(service: Running) -> None:
    secret = sign_in(service, Role.OPERATOR)
    cookie = {"Cookie": f"{SESSION_COOKIE}={secret}"}
    form = {"csrf_token": csrf_token_of(secret)}
    answer = httpx.post(f"{service.url}/logout", data=form, headers=cookie, timeout=PATIENCE_SECONDS)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert "max-age=0" in answer.headers["set-cookie"].lower()
    copied = service.client_with(cookie)
    assert copied.get("/me").status_code == 401
    assert copied.get(f"{service.url}/").headers["location"].startswith("/login")
