"""The pictures in documents, beside what they show."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.pictures import DOCUMENTS, take_for_documents, words_of
from tests.browser.running_service import running_service
from tests.browser.screenshots import furnish

pytestmark = pytest.mark.integration


@pytest.mark.thorough
def test_pictures_in_documents_say_what_pages_and_commands_say_now(browser: Browser, tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        take_for_documents(browser, service, furnish(service).signed_in["table"], tmp_path)
    for name in ("table.png", "terminal.svg"):
        assert words_of(DOCUMENTS / name) == words_of(tmp_path / name), "run `make screenshots`"
