"""Catalogs that accept connections and never answer hold up no other one, and are polled again later."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.engine import make_url

from service.catalogs import clients
from service.records.catalogs import CatalogType
from service.settings import Settings
from tests.faults.proxy import HANG, PASS, Proxy
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.rest_catalog import running_rest_catalog
from tests.service.conftest import LEFT_TO_THOROUGH, Running, alike_on_both, running
from tests.service.iceberg_tables import SCHEMA, IcebergCatalog

# Who waits for a catalog holds no database.
database_kind = alike_on_both


@pytest.fixture
def polling(settings: Settings) -> Settings:
    """Polls often, two tables of a catalog at a time."""
    settings.background = True
    settings.poll_interval_seconds, settings.scheduler_interval_seconds = 0.1, 0.05
    settings.polls_per_catalog = 2
    return settings


@dataclass
class Lake:
    """A catalog behind a network that a test breaks, and its enrolled tables."""

    service: Running
    proxy: Proxy
    tables: list[str]

    def health(self) -> list[dict[str, Any]]:
        return [self.service.admin.get(f"/tables/{table}/health").json() for table in self.tables]

    def polled_after(self, moments: list[str]) -> bool:
        return all(each["measured_at"] > moment for each, moment in zip(self.health(), moments, strict=True))

    def measured(self) -> list[str]:
        """When each table was last polled with success."""
        return [each["measured_at"] for each in self.health()]

    def failures(self) -> list[str | None]:
        return [(each["poll_error"] or {}).get("code") for each in self.health()]


@pytest.fixture
def new_lake(iceberg: IcebergCatalog, request: pytest.FixtureRequest) -> Iterator[Callable[..., Lake]]:
    """Makes catalogs of three tables each."""
    with ExitStack() as stack:

        def make(service: Running, kind: str, name: str) -> Lake:
            if kind == "rest":
                rest = stack.enter_context(running_rest_catalog(iceberg.catalog))
                proxy = stack.enter_context(Proxy(int(rest.url.rpartition(":")[2])))
                properties = {"uri": f"http://127.0.0.1:{proxy.port}"}
                catalog = iceberg.catalog
            else:
                url = make_url(request.getfixturevalue("new_database_url")("postgresql"))
                assert url.port is not None
                proxy = stack.enter_context(Proxy(url.port))
                properties = {
                    "uri": url.set(port=proxy.port).render_as_string(),
                    "warehouse": iceberg.properties["warehouse"],
                }
                catalog = SqlCatalog(name, **{**properties, "uri": url.render_as_string()})
                stack.callback(catalog.close)
            body = {"name": name, "type": "rest" if kind == "rest" else "sql", "properties": properties}
            answer = service.admin.post("/catalogs", json=body)
            assert answer.status_code == 201, answer.text
            catalog.create_namespace_if_not_exists(name)
            tables = []
            for number in range(3):
                catalog.create_table(f"{name}.t{number}", SCHEMA)
                tables.append(service.enroll(f"{name}.t{number}", catalog=name, policy="manual")["id"])
            return Lake(service, proxy, tables)

        yield make


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["rest", pytest.param("postgresql", marks=LEFT_TO_THOROUGH)])
def test_a_catalog_that_never_answers_is_unreachable_and_polled_again_later(
    kind: str, polling: Settings, new_lake: Callable[..., Lake]
) -> None:
    polling.catalog_timeout_seconds = 2.0
    with running(polling) as service:
        lake = new_lake(service, kind, "silent")
        wait_until(lambda: all(lake.measured()), "a first look at all tables")
        lake.proxy.set(HANG)
        wait_until(lambda: "catalog-unreachable" in lake.failures(), "the catalog to be found silent")
        before = lake.measured()
        lake.proxy.set(PASS)
        wait_until(lambda: lake.polled_after(before), "another look at all tables")
        wait_until(lambda: lake.failures() == [None] * 3, "looks that succeed")


@pytest.mark.integration
def test_catalogs_that_hang_hold_up_no_other(polling: Settings, new_lake: Callable[..., Lake]) -> None:
    with running(polling) as service:
        silent = [new_lake(service, "rest", name) for name in ("one", "two", "three")]
        other = new_lake(service, "rest", "other")
        for lake in (*silent, other):
            wait_until(lambda lake=lake: all(lake.measured()), "a first look at all tables")  # type: ignore[misc]
        for lake in silent:
            lake.proxy.set(HANG)
        last = [lake.measured() for lake in silent]
        for _ in range(3):
            before = other.measured()
            wait_until(lambda before=before: other.polled_after(before), "another look")  # type: ignore[misc]
        for lake in silent:
            lake.proxy.set(PASS)
        for lake, moments in zip(silent, last, strict=True):
            wait_until(lambda lake=lake, moments=moments: lake.polled_after(moments), "looks to go on")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("kind", "properties"),
    [
        (CatalogType.REST, {"uri": "http://{address}"}),
        (CatalogType.REST, {"uri": "http://{address}", "credential": "id:secret"}),
        (CatalogType.HIVE, {"uri": "thrift://{address}"}),
        (
            CatalogType.GLUE,
            {"glue.endpoint": "http://{address}", "glue.region": "r", "glue.max-retries": 1}
            | {"glue.access-key-id": "a", "glue.secret-access-key": "b"},
        ),
        (CatalogType.SQL, {"uri": "postgresql://{address}/db"}),
    ],
    ids=["rest", "oauth", "hive", "glue", "sql"],
)
def test_no_type_of_catalog_is_waited_for_without_end(
    kind: CatalogType, properties: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "_CONNECT_SECONDS", 2)  # the least that libpq takes
    settings = Settings(data_dir=tmp_path, catalog_timeout_seconds=0.2)
    ended = threading.Event()
    # The kernel accepts for it, and nobody reads.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        given = {
            key: value.format(address=address) if isinstance(value, str) else value
            for key, value in properties.items()
        }

        def look() -> None:
            try:
                clients.open_catalog(
                    settings, kind, "silent", given | {"init_catalog_tables": "false"}
                ).list_namespaces()
            except Exception:
                ended.set()

        threading.Thread(target=look, daemon=True).start()
        assert ended.wait(PATIENCE_SECONDS)
