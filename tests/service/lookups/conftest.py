"""The service with a lookup server beside it."""

from collections.abc import Iterator

import pytest

from service.settings import Settings
from tests.service.conftest import (
    Running,
    listening,
    running,
    with_lookup_server,
)
from tests.service.iceberg_tables import IcebergCatalog
from worker.lookup_server.app import create_app

TOKEN = "a-token-of-these-tests"


@pytest.fixture
def service(settings: Settings) -> Iterator[Running]:
    with listening(create_app(TOKEN)) as url, running(with_lookup_server(settings, url, TOKEN)) as service:
        yield service


@pytest.fixture
def table(service: Running, iceberg: IcebergCatalog) -> str:
    """The path of the lookups of `db.t`."""
    service.register(iceberg)
    return f"/tables/{service.enroll()['id']}/lookups"
