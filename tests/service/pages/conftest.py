"""One service for the tests of a module, and a person with the role of an admin."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from service.settings import Settings
from service.webhooks.signing import new_secret
from tests.service.conftest import ADMIN_KEY, Running, running
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.pages.person import Person


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Iterator[Running]:
    """One for each module: pages tell totals, and which modules a process has run before is left to chance.

    SQLite does: pages call services, never a database.
    """
    directory = tmp_path_factory.mktemp("pages")
    (directory / "icestream.db").write_bytes(migrated_sqlite.read_bytes())
    settings = Settings(
        data_dir=directory,
        database_url=f"sqlite:///{directory / 'icestream.db'}",
        bootstrap_key=ADMIN_KEY,
        background=False,
        erasure_secret=SecretStr("what hashes the keys of these pages"),
        receipt_secret=SecretStr(new_secret()),
    )
    with running(settings) as service:
        yield service


@pytest.fixture(scope="module")
def iceberg(service: Running) -> Iterator[IcebergCatalog]:
    """What the writers use; the service knows it as the catalog `local`."""
    catalog = IcebergCatalog(service.settings.data_dir)
    catalog.create("db.t")
    service.register(catalog)
    yield catalog
    catalog.close()


@pytest.fixture
def admin(service: Running, iceberg: IcebergCatalog) -> Iterator[Person]:
    with Person(service) as person:
        yield person
