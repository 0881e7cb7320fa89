"""A login leads to a page of ours, whatever a link says: checked as browsers resolve addresses."""

from collections.abc import Iterator
from urllib.parse import parse_qs, quote, unquote, urljoin, urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.auth.service import create_login_link
from service.ui.pages import SentForm, local_path
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import ADMIN_KEY, PLAIN_HTTP, Running, alike_on_both

# No SQL is behind it.
database_kind = alike_on_both
HERE = "http://icestream.example"
ELSEWHERE = [
    "//host",
    "///host",
    "////host/path",
    "//host/%2e%2e",
    "//user@host",
    "//[::1]/",
    "/\\host",
    "/\\/host",
    "\\\\host",
    "\\/host",
    "/\thost",
    "/\t/host",
    "\t//host",
    "/\n/host",
    "\r\n//host",
    "/\x00/host",
    "\x01//host",
    " //host",
    "/\u2028/host",
    "/%2fhost",
    "/%2F%2Fhost",
    "%2f%2fhost",
    "/%5chost",
    "/%5C/host",
    "/%09/host",
    "/%0a/host",
    "http://host/",
    "HTTP:host",
    "https:///host",
    "javascript:alert(1)",
    "data:text/html,x",
    "host",
    "host/path",
    "?next=//host",
    "#//host",
    "@host",
    ":host",
    "",
    "/..//host",
    "/.//host",
    "/tables/..//..//host",
]
OURS = [
    "/",
    "/tables",
    "/jobs?status=failed&sort=-created_at",
    "/tables?search=a%2F%2Fb",
    "/tables?search=a//b",
    "/keys/ä",
]


def in_a_browser(target: str) -> Iterator[str]:
    """The origins that a Location or an action may lead to, as it is and decoded once more on its way.

    WHATWG: tabs and line breaks are dropped, control characters and spaces at both ends too, `\\` is `/`, and
    any number of slashes begins a host.
    """
    for text in (target, unquote(target.partition("?")[0])):
        seen = text.translate(dict.fromkeys(map(ord, "\t\r\n"))).strip("".join(map(chr, range(33))))
        path, mark, query = seen.partition("?")
        path = path.replace("\\", "/")
        if path.startswith("//"):
            path = "//" + path.lstrip("/")
        parts = urlsplit(urljoin(HERE + "/login", path + mark + query))
        yield f"{parts.scheme}://{parts.netloc}"


@pytest.mark.parametrize("target", ELSEWHERE)
def test_no_target_leads_elsewhere(target: str) -> None:
    assert set(in_a_browser(local_path(target))) == {HERE}
    assert set(in_a_browser(SentForm.unpacked(target, "", "").path)) == {HERE}


@given(st.text(alphabet="/\\.:@?#%25fFcC09aA\t\r\n\x00\x7f \u3000\uff0fhost", max_size=12))
def test_no_text_whatever_leads_elsewhere(target: str) -> None:
    assert set(in_a_browser(local_path(target))) == {HERE}


@pytest.mark.parametrize("target", OURS)
def test_a_page_of_ours_is_where_a_login_leads(target: str) -> None:
    assert local_path(target) == target


def test_every_way_to_sign_in_leads_to_a_page_of_ours(service: Running) -> None:
    with httpx.Client(base_url=service.url, verify=PLAIN_HTTP, timeout=PATIENCE_SECONDS) as browser:
        for target in (one for one in ELSEWHERE if "\x00" not in one):  # which is refused everywhere
            quoted = quote(target, safe="")
            browser.cookies.clear()
            assert f'name="next" value="{local_path(target)}"' in browser.get(f"/login?next={quoted}").text
            answers = [
                browser.post("/login", data={"api_key": ADMIN_KEY, "next": target}),
                browser.get(f"/login?next={quoted}"),
                browser.get(f"{create_login_link(service.database, service.url)}&next={quoted}"),
            ]
            for answer in answers:
                assert answer.status_code == 303
                assert set(in_a_browser(answer.headers["location"])) == {HERE}, target


def test_who_is_led_to_the_login_comes_back_to_a_page_of_ours(service: Running) -> None:
    with httpx.Client(base_url=service.url, verify=PLAIN_HTTP, timeout=PATIENCE_SECONDS) as browser:
        for path in ("//host/tables", "///host", "/%2f/host", "/tables//host", "//host", "//host/tables/"):
            answer = browser.get(service.url + path)
            if answer.is_redirect:
                (target,) = parse_qs(urlsplit(answer.headers["location"]).query).get("next", ["/"])
                assert set(in_a_browser(local_path(target))) == {HERE}
            else:
                assert answer.status_code == 404
