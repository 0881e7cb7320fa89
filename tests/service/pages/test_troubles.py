"""Whatever goes wrong, a person reads a page about it, in words, and what was typed is not lost."""

import ast
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlmodel import delete

from service.http.body_limits import MAX_BODY_BYTES
from service.problems import PROBLEMS
from service.records.api_keys import BrowserSession, Role
from service.settings import Settings
from tests.access import DECISIONS
from tests.problems import all_raised
from tests.service.conftest import ADMIN_KEY, Running, running
from tests.service.pages.person import Page, Person
from tests.service.test_access import ROUTES, is_page, is_write

ROOT = Path(__file__).parents[3]
PAGES = [route for route, _ in ROUTES if is_page(route)]
OF_CALLS = re.compile(
    r"/api/v\d|\b(GET|POST|PUT|PATCH|DELETE) (/|it\b|the\b|those\b|what\b)|\bPATCH\b"
    r"|\bIf-Match\b|\bETag\b|\bRetry-After\b|\bIdempotency-Key\b"
    r"|\b[Ss]ee `\w+`"
)
"""What only who calls the API knows."""
FOR_PROGRAMS = {
    "idempotency-key-reused",
    "invalid-idempotency-key",
    "invalid-last-event-id",
    "precondition-required",
    "unauthenticated",
}
"""Problems that no page shows: their headers are not sent by forms, and strangers are led to the login."""


def send(person: Person, route: str, **options: Any) -> httpx.Response:
    """A form or a page, whose identifiers name nothing."""
    method, path = route.split(" ")
    path = path.replace("{action}", "pause")
    return person.http.request(method, re.sub(r"\{\w+\}", "nope", path), **options)


def check_page(answer: httpx.Response, status: int, words: str) -> None:
    assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert "form-action 'self'" in answer.headers["content-security-policy"]
    page = Page(answer)
    assert words in page.text
    assert 'class="remedy">' in page.html
    assert not OF_CALLS.search(page.text), page.text


@contextmanager
def statements_failing(service: Running, fails: Callable[[str], bool]) -> Iterator[None]:
    """The database refuses some statements, as one does that is locked."""

    def refuse(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if fails(statement):
            raise OperationalError(statement, None, sqlite3.OperationalError("database is locked"))

    event.listen(service.database.engine, "before_cursor_execute", refuse)
    try:
        yield
    finally:
        event.remove(service.database.engine, "before_cursor_execute", refuse)


def test_every_page_and_form_tells_in_words_that_the_database_is_in_trouble(
    admin: Person, service: Running
) -> None:
    with statements_failing(service, lambda statement: True):
        for route in PAGES:
            if route not in DECISIONS["anyone"]:
                answer = send(admin, route, **({"data": {"x": "y"}} if is_write(route) else {}))
                check_page(answer, 503, "The control database did not answer")
                assert int(answer.headers["retry-after"]) > 0


def test_every_page_and_form_tells_in_words_why_a_request_is_refused(admin: Person, service: Running) -> None:
    admin.open("/")
    token = dict(admin.page.forms[0].fields)["csrf_token"]
    too_large = {"csrf_token": token, "x": "x" * MAX_BODY_BYTES}
    with Person(service, Role.WORKER) as worker:
        for route in PAGES:
            if is_write(route):
                check_page(send(admin, route, data=too_large), 413, "The request body is too large")
            elif "{" in route:
                check_page(send(admin, route.replace("{", "%00{")), 422, "A value cannot be stored")
            if route not in DECISIONS["anyone"] | DECISIONS["signed in"]:
                check_page(send(worker, route), 403, "Your role does not allow this")
                if is_write(route):
                    check_page(send(admin, route), 403, "The request did not come from our page")
            if "_id}" in route:
                data = {"data": {"csrf_token": token, "kind": "index"}} if is_write(route) else {}
                answer = send(admin, route, **data)
                words = {
                    404: "No such",
                    422: "The request is not valid",
                }  # some ids are numbers
                assert answer.status_code in words, route
                check_page(answer, answer.status_code, words[answer.status_code])
    check_page(admin.http.get("/nowhere"), 404, "Not found")
    check_page(admin.http.get("/policies/nope/delete"), 405, "is not allowed for this path")
    check_page(admin.http.get("/tables?cursor=nope"), 400, "The cursor is not one of ours")


def test_every_page_tells_in_words_that_somebody_called_too_often(
    migrated_sqlite: Path, tmp_path: Path
) -> None:
    (tmp_path / "icestream.db").write_bytes(migrated_sqlite.read_bytes())
    settings = Settings(
        data_dir=tmp_path,
        database_url=f"sqlite:///{tmp_path / 'icestream.db'}",
        background=False,
        requests_per_minute=1,
    )
    with running(settings) as service, Person(service) as person:
        person.http.follow_redirects = False
        answers = [send(person, route) for route in ["GET /login", *PAGES]]
        for answer in answers[1:]:
            check_page(answer, 429, "Too many requests")
            assert "reload this page" in answer.text
            assert int(answer.headers["retry-after"]) > 0


def test_a_form_that_could_not_be_stored_is_kept_and_sent_again(admin: Person, service: Running) -> None:
    admin.open("/policies/new")
    with statements_failing(service, lambda statement: statement.startswith("INSERT")):
        failed = admin.send("/policies/new", name="unlucky", description="long\nthought about <b>")
    assert failed.status == 503
    assert "long thought about <b>" in failed.text
    assert admin.send("/policies/new").path.startswith("/policies/")
    assert service.admin.get("/policies/unlucky").json()["description"] == "long\nthought about <b>"


def test_a_form_that_was_filled_in_while_the_session_ended_is_sent_after_signing_in(service: Running) -> None:
    with Person(service) as person:
        person.open("/policies/new")
        with service.database.write() as session:
            session.exec(delete(BrowserSession))
        ended = person.send("/policies/new", name="patient", description="long thought about")
        assert ended.status == 401
        assert "You are not signed in any more" in ended.text
        assert "long thought about" in ended.text
        mistyped = person.send("/login", api_key="wrong")
        assert mistyped.status == 401
        assert "long thought about" in mistyped.text
        again = person.send("/login", api_key=ADMIN_KEY)
        assert (again.status, again.path) == (200, "/login")
        assert service.admin.get("/policies/patient").status_code == 404
        person.send("/policies/new")
        assert service.admin.get("/policies/patient").json()["description"] == "long thought about"


def test_a_form_of_a_former_session_is_sent_again_by_the_present_one(admin: Person, service: Running) -> None:
    admin.open("/policies/new")
    with Person(service) as other:
        admin.http.cookies = other.http.cookies
        refused = admin.send("/policies/new", name="former")
        assert refused.status == 403
        admin.send("/policies/new")
    assert service.admin.get("/policies/former").status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", None])
def test_what_another_site_typed_is_neither_kept_nor_sent_again(
    admin: Person, service: Running, origin: str | None
) -> None:
    with Person(service) as stranger:
        stranger.http.cookies.clear()
        for person, status in ((admin, 403), (stranger, 401)):
            del person.http.headers["origin"]
            if origin is not None:
                person.http.headers["origin"] = origin
            page = Page(person.http.post("/policies/new", data={"name": "theirs"}))
            assert page.status == status
            assert "theirs" not in page.html
            assert not page.offers("/policies/new")


def sentences(path: Path) -> Iterator[str]:
    """The texts of a module, but for its docstrings and for problems that no page shows."""
    tree = ast.parse(path.read_text())
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        texts = [each.value for each in ast.iter_child_nodes(node) if isinstance(each, ast.Expr)]
        skipped.update(texts)
        if isinstance(node, ast.Call):
            slugs = {each.value for each in node.args if isinstance(each, ast.Constant)}
            if slugs & FOR_PROGRAMS:
                skipped.update(ast.walk(node))
            skipped.update(
                part
                for keyword in node.keywords
                if keyword.arg in ("description", "summary", "responses")
                for part in ast.walk(keyword)
            )
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            yield node.value


def test_no_error_or_advice_that_a_page_may_show_speaks_of_calls() -> None:
    """`remedy`, `detail`, `what_to_do` and the like are written in many places: so every sentence counts."""
    of_the_api = {"problems.py", "examples.py", "documentation.py", "client.py", "routing.py", "demo.py"}
    found, seen = [], 0
    for path in [*(ROOT / "service").rglob("*.py"), *(ROOT / "worker").rglob("*.py")]:
        if path.name in of_the_api or "migrations" in path.parts:
            continue
        for text in sentences(path):
            seen += " " in text
            if " " in text and OF_CALLS.search(text):
                found.append(f"{path.name}: {text}")
    assert seen > 1000
    for raised in all_raised():
        remedy = PROBLEMS[raised.slug].remedy
        if not raised.has_remedy and raised.slug not in FOR_PROGRAMS and OF_CALLS.search(remedy):
            found.append(f"{raised.slug}: {remedy}")
    assert found == []
