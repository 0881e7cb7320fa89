"""What pages say while there is nothing yet: what to do next, and where."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete

from service.records.api_keys import Role
from service.records.audit import AuditEntry
from service.settings import Settings
from tests.service.conftest import Running, running
from tests.service.pages.person import Person

NEXT = {
    "/": ("Nothing is enrolled yet", "Register a catalog", "/catalogs/new"),
    "/tables": ("No table is enrolled yet", "Enrol a table", "/tables/new"),
    "/tables/new": ("There is no catalog yet", "Register a catalog", "/catalogs/new"),
    "/patterns": ("There is no pattern yet", "New pattern", "/patterns/new"),
    "/patterns/new": ("There is no catalog yet", "Register a catalog", "/catalogs/new"),
    "/jobs": ("No job has run yet", "a table\N{RIGHT SINGLE QUOTATION MARK}s page", "/tables"),
    "/catalogs": ("No catalog is registered yet", "Register a catalog", "/catalogs/new"),
    "/workers": ("No worker has been heard of", "create one", "/api-keys/new"),
    "/webhooks": ("There is no webhook yet", "Create the first", "/webhooks/new"),
    "/api-keys": ("There is no API key yet", "Create the first key", "/api-keys/new"),
    "/audit": ("Nothing has been changed yet", "the overview", "/"),
}
"""Of each page: what it says, and the words and address of the link to what to do."""


@pytest.fixture
def empty(tmp_path: Path, migrated_sqlite: Path) -> Iterator[Running]:
    (tmp_path / "icestream.db").write_bytes(migrated_sqlite.read_bytes())
    settings = Settings(
        data_dir=tmp_path,
        database_url=f"sqlite:///{tmp_path / 'icestream.db'}",
        background=False,
    )
    with running(settings) as service:
        yield service


def test_an_empty_page_says_what_to_do_next(empty: Running) -> None:
    with Person(empty) as admin:
        with empty.database.write() as session:
            session.execute(delete(AuditEntry))  # that somebody signed in
        for path, (words, link, address) in NEXT.items():
            page = admin.open(path)
            assert words in page.text, path
            assert page.links[link].partition("?")[0].endswith(address), path
        assert "No worker is alive" in admin.open("/").text
    with Person(empty, Role.VIEWER) as viewer:
        # Who may not do it is told who can, and is led nowhere in vain.
        for path in ("/", "/catalogs"):
            page = viewer.open(path)
            assert "admin" in page.text, path
            assert "/catalogs/new" not in page.html, path
