"""What every answer tells the browser, over plain HTTP and behind a proxy with TLS; the login's cookie."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from service.app import create_app, prepare
from service.auth.principals import SESSION_COOKIE
from service.http.guards import Anyone
from service.settings import Settings
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import ADMIN_KEY, Running, alike_on_both, run_apart, running

# Headers come from the application alone.
database_kind = alike_on_both

ANSWERS = {
    "a page": ("GET", "/login", 200),
    "a redirect": ("GET", "/jobs", 303),
    "a page of an error": ("POST", "/tables/new", 401),
    "documentation": ("GET", "/docs", 200),
    "a script": ("GET", "/docs/swagger-ui-bundle.js", 200),
    "a call": ("GET", "/api/v1/me", 401),
    "no call": ("GET", "/api/v1/nope", 404),
    "a method": ("PUT", "/api/v1/jobs", 405),
    "a probe": ("GET", "/livez", 200),
}


def policy(answer: httpx.Response) -> dict[str, str]:
    rules = (rule.strip().partition(" ") for rule in answer.headers["content-security-policy"].split(";"))
    return {name: value for name, _, value in rules}


def check_headers(answer: httpx.Response) -> None:
    headers, rules = answer.headers, policy(answer)
    assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert not any("unsafe" in value or "http" in value or "*" in value for value in rules.values())
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert "camera=()" in headers["permissions-policy"]
    assert headers["cache-control"] in ("no-store", "no-cache")
    assert headers["x-request-id"]


def test_every_kind_of_answer_has_the_headers(service: Running) -> None:
    with httpx.Client(base_url=service.url, timeout=PATIENCE_SECONDS) as browser:
        for method, path, status in ANSWERS.values():
            answer = browser.request(method, path)
            assert answer.status_code == status
            check_headers(answer)
            assert "strict-transport-security" not in answer.headers
        too_large = browser.post("/api/v1/policies", content=b"x" * (2 * 1024**2))
        assert too_large.status_code == 413
        check_headers(too_large)


def test_a_failure_of_the_service_has_them_too(settings: Settings) -> None:
    prepare(settings)
    app = create_app(settings)

    @app.get("/api/broken", dependencies=[Anyone])
    @app.get("/broken", dependencies=[Anyone])
    def fail() -> None:
        raise RuntimeError("a bug")

    async def call(path: str) -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get(path)

    answer, page = run_apart(call("/api/broken")), run_apart(call("/broken"))
    app.state.database.dispose()
    assert (answer.status_code, answer.json()["type"]) == (500, "/problems/internal-error")
    assert "a bug" not in answer.text
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    check_headers(answer)
    assert (page.status_code, page.headers["content-type"]) == (500, "text/html; charset=utf-8")
    assert "a bug" not in page.text
    assert page.headers["x-request-id"] in page.text
    check_headers(page)


def login(url: str, **headers: str) -> httpx.Response:
    return httpx.post(f"{url}/login", data={"api_key": ADMIN_KEY}, headers=headers, timeout=PATIENCE_SECONDS)


def cookie_words(answer: httpx.Response) -> set[str]:
    return {word.strip().partition("=")[0].lower() for word in answer.headers["set-cookie"].split(";")}


def test_a_script_is_kept_for_good_under_its_own_address_alone(service: Running) -> None:
    shown = httpx.get(f"{service.url}/login", timeout=PATIENCE_SECONDS).text
    (script,) = re.findall(r'src="(/static/[0-9a-f]+/icestream\.js)"', shown)
    another = re.sub(r"/[0-9a-f]{12}/", f"/{'0' * 12}/", script)
    kept, passing = (httpx.get(service.url + path, timeout=PATIENCE_SECONDS) for path in (script, another))
    assert "immutable" in kept.headers["Cache-Control"]
    assert passing.headers["Cache-Control"] == "no-store"
    assert passing.content == kept.content


def test_the_cookie_of_a_session_is_closed_to_scripts_and_comes_with_a_link_alone(service: Running) -> None:
    answer = login(service.url)
    assert answer.headers["set-cookie"].startswith(f"{SESSION_COOKIE}=")
    assert "samesite=lax" in answer.headers["set-cookie"].lower()
    assert "httponly" in cookie_words(answer)
    # Over plain HTTP a browser would not keep a cookie that says Secure.
    assert "secure" not in cookie_words(answer)


@pytest.mark.parametrize("trusted", ["127.0.0.1", "10.1.2.3, 127.0.0.0/8"])
def test_behind_a_trusted_proxy_with_tls_all_is_tls(settings: Settings, trusted: str) -> None:
    values = settings.model_dump() | {"trusted_proxies": trusted}
    with running(Settings(**values)) as service:
        answer = login(service.url, **{"X-Forwarded-Proto": "https"})
        assert "secure" in cookie_words(answer)
        assert int(answer.headers["strict-transport-security"].partition("=")[2]) >= 31_536_000
        plain = login(service.url, **{"X-Forwarded-Proto": "http"})
        assert "secure" not in cookie_words(plain)
        assert "strict-transport-security" not in plain.headers


@pytest.mark.parametrize("trusted", ["", "10.1.2.3"])
def test_nobody_else_is_believed_to_be_behind_tls(settings: Settings, trusted: str) -> None:
    with running(Settings(**(settings.model_dump() | {"trusted_proxies": trusted}))) as service:
        answer = login(service.url, **{"X-Forwarded-Proto": "https"})
        assert "strict-transport-security" not in answer.headers
        assert "secure" not in cookie_words(answer)


@pytest.mark.parametrize("value", ["*", "proxy.internal", "10.0.0.1/8", "10.0.0.300"])
def test_a_proxy_is_named_by_address_or_network(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICESTREAM_TRUSTED_PROXIES", value)
    with pytest.raises(ValidationError, match="neither an address nor a network"):
        Settings()


def test_no_template_or_script_needs_what_the_policy_forbids() -> None:
    """Inline styles and handlers would be dropped by the browser, silently."""
    ui = Path(__file__).parents[2] / "service" / "ui"
    texts: dict[str, Any] = {
        path.name: path.read_text() for suffix in ("html", "svg", "js") for path in ui.rglob(f"*.{suffix}")
    }
    assert len(texts) > 10
    for name, text in texts.items():
        lowered = text.lower().replace('style=""', "")  # the parameter of a macro
        for forbidden in (" style=", "<style", "javascript:", " onclick=", " onload=", " onsubmit=", "eval("):
            assert forbidden not in lowered, f"{name}: {forbidden}"
        scripts = lowered.split("<script")[1:]
        assert all(" src=" in script.partition(">")[0] for script in scripts), name
