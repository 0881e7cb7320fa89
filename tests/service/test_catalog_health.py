"""Whether catalogs answer: seen when they are asked anyway, told on pages and by events, and not too soon."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
from pyiceberg.exceptions import NoSuchTableError
from sqlmodel import select

from service.catalogs.iceberg import IcebergCatalogs
from service.catalogs.observations import Observations
from service.db.database import utc_now
from service.errors import IcestreamError, InvalidError, UnreachableError
from service.jobs.events import events_after
from service.lookups.metrics import LookupMetrics
from service.metrics import render_metrics
from service.records.catalogs import Catalog
from service.records.webhooks import WebhookDelivery
from service.scheduling.catalog_health import store_observations
from service.settings import Settings
from tests.patience import PATIENCE_SECONDS
from tests.rest_catalog import running_rest_catalog
from tests.service.conftest import ON_BOTH, Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog
from trust.bounds import Budget

# Where rows are inserted by two at once, both databases are asked.
database_kind = alike_on_both
SILENT = UnreachableError("catalog-unreachable", "It is silent.", "Wait.")


def health(service: Running) -> dict[str, Any]:
    return dict(service.admin.get("/catalogs/local").json()["health"])


def note(service: Running) -> None:
    """What each tick of the service does."""
    store_observations(service.database, service.background._observations, utc_now())


def kinds(service: Running) -> list[str]:
    with service.database.read() as session:
        events = events_after(session.connection(), 0, 100)
    return [one.kind for one in events if one.kind.startswith("catalog.")]


@ON_BOTH
def test_a_catalog_that_stops_to_answer_and_begins_again_is_told_with_two_events(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    assert health(service) | {"tables": {}} == {
        "status": "unknown",
        "since": None,
        "answered_at": None,
        "latency_seconds": None,
        "error": None,
        "requests": 0,
        "tables": {},
    }
    table = service.enroll()
    service.poll(table["id"])
    note(service)
    first = health(service)
    assert (first["status"], first["error"]) == ("reachable", None)
    assert 0 < first["latency_seconds"] < PATIENCE_SECONDS
    assert first["since"] <= first["answered_at"]
    assert {status: number for status, number in first["tables"].items() if number} == {"healthy": 1}
    assert first["requests"] > 0
    service.poll(table["id"])
    note(service)
    before, first = first, health(service)
    assert (first["requests"] > before["requests"], first["since"]) == (True, before["since"])
    assert kinds(service) == []

    hidden = iceberg.directory / "hidden.db"
    (iceberg.directory / "cat.db").rename(hidden)
    service.poll(table["id"])
    note(service)
    once = health(service)
    assert (once["status"], once["error"]["code"]) == ("reachable", "catalog-unreachable")
    service.poll(table["id"])
    note(service)
    gone = health(service)
    assert (gone["status"], gone["answered_at"]) == ("unreachable", first["answered_at"])
    assert "cat.db is not there" in gone["error"]["detail"]
    assert gone["error"]["remedy"]
    assert first["answered_at"] <= gone["since"]
    assert kinds(service) == ["catalog.unreachable"]
    service.poll(table["id"])
    note(service)
    assert [health(service)["since"], kinds(service)] == [gone["since"], ["catalog.unreachable"]]
    listed = service.admin.get("/catalogs", params={"status": "unreachable"}).json()["items"]
    assert [one["name"] for one in listed] == ["local"]
    assert service.admin.get("/catalogs", params={"status": "reachable"}).json()["items"] == []

    overview = service.admin.get("/overview").json()
    assert overview["catalogs"] == {"reachable": 0, "unreachable": 1, "unknown": 0}
    concern = next(one for one in overview["concerns"] if one["path"] == f"/catalogs/{listed[0]['id']}")
    assert (concern["title"], concern["severity"]) == ("Catalog local fails, and 1 table with it", "error")
    assert concern["detail"].startswith(gone["error"]["detail"])

    hidden.rename(iceberg.directory / "cat.db")
    check = service.admin.post("/catalogs/local/check")
    assert check.json()["status"] == "ok"
    service.background.tick()
    back = health(service)
    assert (back["status"], back["error"], back["since"]) == ("reachable", None, back["answered_at"])
    assert kinds(service) == ["catalog.unreachable", "catalog.recovered"]


def test_a_webhook_is_told_which_catalog_it_is_about(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = service.register(iceberg)
    monkeypatch.setenv("WEBHOOK_TEST", "whsec_" + "A" * 32)
    body = {"name": "pager", "url": "http://127.0.0.1:1/", "kinds": ["catalog"], "secret": "env:WEBHOOK_TEST"}
    webhook = service.admin.post("/webhooks", json=body).json()
    for _ in range(2):
        with pytest.raises(UnreachableError), service.background._observations.of(catalog["id"]):
            raise SILENT
    note(service)
    with service.database.read() as session:
        (sent,) = session.exec(select(WebhookDelivery)).all()
    assert (sent.webhook_id, sent.event["type"]) == (webhook["id"], "icestream.catalog.unreachable")
    assert sent.event["subject"] == f"catalogs/{catalog['id']}"
    assert (sent.event["data"]["catalog"], sent.event["data"]["table_id"]) == ("local", None)
    assert sent.event["data"]["fields"]["remedy"] == "Wait."


def test_figures_count_catalogs_and_what_asking_them_costs(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    service.poll(service.enroll()["id"])
    note(service)
    with service.database.read() as session:
        lines = render_metrics(session, service.settings, LookupMetrics()).decode().splitlines()
    assert 'icestream_catalogs{status="reachable"} 1.0' in lines
    assert f"icestream_catalog_requests {health(service)['requests']}.0" in lines
    latency = next(line for line in lines if line.startswith("icestream_catalog_latency_seconds "))
    assert float(latency.split()[1]) == pytest.approx(health(service)["latency_seconds"])


def test_what_one_table_or_its_store_or_a_caller_that_left_is_to_blame_for_is_no_failure_of_its_catalog() -> (
    None
):
    def seen(error: IcestreamError | NoSuchTableError, *, is_open: bool = True, asked: bool = True) -> int:
        observations = Observations()
        with suppress(type(error)), observations.of("c") as asking:
            if is_open:
                asking.opened()
            asking.requests += asked
            raise error
        found = observations.take().get("c")
        return found.failures if found is not None else -1

    assert seen(SILENT) == 1
    assert seen(InvalidError("secret-not-allowed", "It is not there."), is_open=False, asked=False) == 1
    assert seen(NoSuchTableError("t")) == 0
    assert seen(InvalidError("table-not-found", "No.")) == 0
    assert seen(UnreachableError("catalog-limit-exceeded", "Too large.", "Make it smaller.")) == 0
    assert seen(SILENT, asked=False) == -1, "what is read after an answer is the store's"
    with Budget(60) as budget:
        budget.end()
        assert seen(SILENT) == -1


def test_what_fails_within_is_counted_once() -> None:
    observations = Observations()
    with suppress(UnreachableError), observations.of("c") as outer:
        outer.opened()
        outer.requests += 1
        with observations.of("c") as inner:
            inner.requests += 1
            raise SILENT
    found = observations.take()["c"]
    assert (found.failures, found.requests) == (1, 2)


@dataclass
class Cut:
    """A server that reads a request and hangs up."""

    address: str
    connections: int = 0


@contextmanager
def cutting() -> Iterator[Cut]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Cut(f"127.0.0.1:{listener.getsockname()[1]}")

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        server.connections += 1
                        connection.recv(65_536)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("kind", ["rest", "hive", "glue"])
def test_every_request_is_counted_of_each_type(settings: Settings, kind: str) -> None:
    catalogs = IcebergCatalogs(settings)
    with cutting() as server:
        properties = {
            "rest": {"uri": f"http://{server.address}"},
            "hive": {"uri": f"thrift://{server.address}"},
            "glue": {
                "glue.endpoint": f"http://{server.address}",
                "glue.region": "r",
                "glue.access-key-id": "a",
                "glue.secret-access-key": "b",
                "glue.max-retries": "1",
            },
        }
        record = Catalog(name="c", type=kind, properties=properties[kind])
        with pytest.raises(UnreachableError):
            catalogs.load(record, ("db", "t"))
        found = catalogs.observations.take()[record.id]
    catalogs.close()
    assert found.failures == 1
    assert found.requests == server.connections > 0


def test_requests_of_polls_and_of_sweeps_are_those_that_the_server_has_seen(
    settings: Settings, iceberg: IcebergCatalog
) -> None:
    with running_rest_catalog(iceberg.catalog) as rest:
        record = Catalog(name="c", type="rest", properties=rest.properties)
        catalogs = IcebergCatalogs(settings)
        catalogs.load(record, ("db", "t"))
        with catalogs.open(record) as source:
            source.metadata_locations([("db", "t"), ("db", "none")])
        found = catalogs.observations.take()[record.id]
        catalogs.close()
        assert (found.requests, found.answered, found.failures) == (len(rest.requests), len(rest.requests), 0)
        assert len(rest.requests) == 4
