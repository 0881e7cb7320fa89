"""Debian's Chromium, one service for all tests, and a page that is watched for what no page may do."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect

from service.auth.principals import SESSION_COOKIE
from service.records.api_keys import Role
from tests.browser.running_service import RunningService, running_service
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import PLAIN_HTTP

CHROMIUM: dict[str, Any] = {
    # The first opens a page in a sixth of the processor time: the other one keeps a window around it.
    "executable_path": shutil.which("chromium-headless-shell") or shutil.which("chromium"),
    "args": [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ],
}
# What is to be seen comes at once, unless the machine has much else to do.
expect.set_options(timeout=PATIENCE_SECONDS * 1000)


def sign_in(context: BrowserContext, service: RunningService, role: Role = Role.ADMIN) -> None:
    """Give a browser a session, without a page that nobody looks at."""
    answer = httpx.get(service.login_link(role), verify=PLAIN_HTTP, timeout=PATIENCE_SECONDS)
    session = answer.cookies[SESSION_COOKIE]
    context.add_cookies([{"name": SESSION_COOKIE, "value": session, "url": service.url}])


@pytest.fixture(scope="session")
def browser(browser: Browser) -> Iterator[Browser]:
    """One whose pages wait as long as everything else here."""
    make = browser.new_context

    def patient(**options: Any) -> BrowserContext:
        context = make(**options)
        context.set_default_timeout(PATIENCE_SECONDS * 1000)
        return context

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(browser, "new_context", patient)
        yield browser


@pytest.fixture(scope="session")
def browser_type_launch_args() -> dict[str, Any]:
    return CHROMIUM


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("service")) as service:
        yield service


@pytest.fixture(scope="session")
def base_url(running: RunningService) -> str:
    return running.url


@pytest.fixture
def service(running: RunningService) -> Iterator[RunningService]:
    """The service without tables, and so without waiting jobs, of another test."""
    yield running
    for table in running.get("/tables")["items"]:
        running.api.delete(f"/tables/{table['id']}").raise_for_status()


class Misdeeds(list[str]):
    """What a page did that no page of ours may do: errors in the console, requests to other hosts."""

    def watch(self, page: Page, url: str) -> None:
        def on_console(message: ConsoleMessage) -> None:
            # Chromium notes every page that is answered with 4xx, also where a test wants just that.
            is_refusal = message.location.get("url") == page.url and "the server responded" in message.text
            if message.type in ("error", "warning") and not is_refusal:
                self.append(f"{message.type}: {message.text}")

        def on_request(request: Request) -> None:
            if not request.url.startswith(url):
                self.append(f"request: {request.url}")

        page.on("console", on_console)
        page.on("request", on_request)
        page.on("pageerror", lambda error: self.append(f"exception: {error}"))


@pytest.fixture
def page(page: Page, service: RunningService) -> Iterator[Page]:
    misdeeds = Misdeeds()
    misdeeds.watch(page, service.url)
    yield page
    # What a test answers itself would fail the next test, if the page were gone before the answer.
    page.unroute_all(behavior="wait")
    assert misdeeds == []


@pytest.fixture
def visit(browser: Browser, service: RunningService) -> Iterator[Callable[..., Page]]:
    """Opens a page in a browser of its own, with options as `new_context` takes them; watched like `page`."""
    misdeeds = Misdeeds()
    contexts = []

    def open_page(**options: Any) -> Page:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        misdeeds.watch(page, service.url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert misdeeds == []


@pytest.fixture
def signed_in(page: Page, service: RunningService) -> Page:
    """A page with an admin's session, which has not been anywhere."""
    sign_in(page.context, service)
    return page
