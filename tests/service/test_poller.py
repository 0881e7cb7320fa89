"""When tables are polled: each catalog for itself, and those in which nothing goes on hardly at all."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from service.catalogs.iceberg import IcebergCatalogs, Identifier
from service.catalogs.models import Catalog
from service.database import utc_now
from service.index_health.poller import Poller
from service.jobs import queue
from service.settings import Settings
from service.workers.models import FinishRequest
from tests.service.conftest import Running, running
from tests.service.iceberg_tables import IcebergCatalog


class WatchedCatalogs(IcebergCatalogs):
    """Counts loads, and lets those of one catalog wait."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.loads: Counter[str] = Counter()
        self.slow: str | None = None
        self.go_on = threading.Event()
        self.waiting = 0

    def load(self, catalog: Catalog, identifier: Identifier) -> Table:
        self.loads[f"{catalog.name}.{'.'.join(identifier)}"] += 1
        if catalog.name == self.slow:
            self.waiting += 1
            self.go_on.wait(30)
        return super().load(catalog, identifier)


@pytest.fixture
def service(settings: Settings) -> Iterator[Running]:
    with running(settings.model_copy(update={"polls_per_catalog": 2})) as service:
        yield service


@contextmanager
def polling(service: Running) -> Iterator[tuple[Poller, WatchedCatalogs]]:
    catalogs = WatchedCatalogs(service.settings)
    poller = Poller(service.database, service.settings, catalogs)
    yield poller, catalogs
    catalogs.go_on.set()
    poller.stop()
    catalogs.close()


def tick_until(poller: Poller, is_met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_met():
        assert time.monotonic() < deadline
        poller.poll_due()
        time.sleep(0.02)


def health(service: Running, table: dict[str, Any]) -> dict[str, Any]:
    return dict(service.admin.get(f"/tables/{table['id']}/health").json())


def test_a_slow_catalog_holds_up_no_other_and_has_few_polls_at_a_time(
    service: Running, iceberg: IcebergCatalog, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = IcebergCatalog(tmp_path / "other", "other")
    for number in range(4):
        other.create(f"db.t{number}")
    # A delete grows older, so this table is looked at each time.
    iceberg.delete_keys("db.t", [1])
    service.register(iceberg)
    service.register(other)
    table = service.enroll()
    for number in range(4):
        service.enroll(f"db.t{number}", catalog="other")
    with polling(service) as (poller, catalogs):
        catalogs.slow = "other"
        tick_until(poller, lambda: catalogs.waiting == 2 and catalogs.loads["local.db.t"] >= 3)
        assert catalogs.waiting == 2
        assert health(service, table)["measured_at"] is not None
        catalogs.go_on.set()
        tick_until(poller, lambda: all(catalogs.loads[f"other.db.t{number}"] for number in range(4)))
    other.close()


def settled(service: Running, iceberg: IcebergCatalog) -> dict[str, Any]:
    """A table in which nothing is left to do."""
    iceberg.create("db.quiet")
    service.register(iceberg)
    return service.enroll("db.quiet")


def test_a_table_in_which_nothing_goes_on_is_only_compared_with_the_catalog(
    service: Running, iceberg: IcebergCatalog
) -> None:
    table = settled(service, iceberg)
    with polling(service) as (poller, catalogs):
        tick_until(poller, lambda: catalogs.loads["local.db.quiet"] == 1)
        tick_until(poller, lambda: health(service, table)["measured_at"] is not None)
        for _ in range(2):
            before = health(service, table)["measured_at"]
            tick_until(poller, lambda last=before: health(service, table)["measured_at"] > last)  # type: ignore[misc]
        assert catalogs.loads["local.db.quiet"] == 1
        iceberg.delete_keys("db.quiet", [1])
        tick_until(poller, lambda: health(service, table)["pending_equality_delete_files"] == 1)
        # A delete grows older, so the table is looked at each time now.
        count = catalogs.loads["local.db.quiet"]
        tick_until(poller, lambda: catalogs.loads["local.db.quiet"] > count)


@pytest.mark.parametrize("news", ["policy", "pause", "job", "system"])
def test_news_let_a_settled_table_be_decided_on_at_once(
    service: Running, iceberg: IcebergCatalog, news: str
) -> None:
    table = settled(service, iceberg)
    path = f"/tables/{table['id']}"
    with polling(service) as (poller, catalogs):
        tick_until(poller, lambda: "verify" in health(service, table)["decisions"])
        assert health(service, table)["decisions"]["verify"]["code"] == "policy-off"
        if news == "policy":
            body = {"name": "checked", "settings": {"verify": {"enabled": True}}}
            assert service.admin.post("/policies", json=body).status_code == 201
            place = {"level": "catalog", "catalog": "local", "policy": "checked"}
            assert service.admin.put("/policy-attachments", json=place).status_code == 200
            tick_until(poller, lambda: health(service, table)["decisions"]["verify"]["code"] == "no-index")
        elif news == "pause":
            service.admin.post(f"{path}/pause")
            tick_until(poller, lambda: health(service, table)["decisions"]["convert"]["code"] == "paused")
        elif news == "system":
            service.admin.post("/system/pause")
            tick_until(poller, lambda: health(service, table)["decisions"]["convert"]["code"] == "paused")
        else:
            tick_until(poller, lambda: catalogs.loads["local.db.quiet"] == 1)
            service.admin.post(f"{path}/jobs", json={"kind": "convert"})
            assignment = service.claim(service.start_worker())
            assert assignment is not None
            report = FinishRequest(status="failed")
            with service.database.write() as session:
                # By a replica whose clock is behind.
                an_hour_ago = utc_now() - timedelta(hours=1)
                queue.finish(session, assignment["job"]["id"], assignment["attempt"], report, an_hour_ago)
            tick_until(poller, lambda: catalogs.loads["local.db.quiet"] == 2)


def test_a_table_that_is_removed_is_forgotten(service: Running, iceberg: IcebergCatalog) -> None:
    table = settled(service, iceberg)
    with polling(service) as (poller, catalogs):
        tick_until(poller, lambda: catalogs.loads["local.db.quiet"] == 1)
        assert service.admin.delete(f"/tables/{table['id']}").status_code in (200, 202, 204)
        tick_until(poller, lambda: not poller._lanes)
