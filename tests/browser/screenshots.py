"""`python -m tests.browser.screenshots DIR` writes a PNG of every page, in both themes and two widths.

For people to look at. The figures are a plausible installation: the tables and their equality deletes are
real, what the worker reports is played, and the past day of measurements is written to the database.
"""

import math
import sys
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, sync_playwright
from sqlalchemy import delete
from sqlmodel import col

from service.database import Database, utc_now
from service.index_health.models import HealthSample
from service.tables.models import EnrolledTable
from tests.browser.conftest import CHROMIUM
from tests.browser.running_service import (
    PlayedWorker,
    RunningService,
    convert_result,
    index_report,
    index_result,
    running_service,
)

WIDTHS = {"desktop": 1280, "phone": 390}
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@dataclass(frozen=True)
class Pages:
    """Page name -> path, for pages that need a session and one that does not."""

    signed_in: dict[str, str]
    anonymous: dict[str, str]


def furnish(service: RunningService) -> Pages:
    """Tables in every state, jobs in every state."""
    worker, second = PlayedWorker(service, "worker-1"), PlayedWorker(service, "worker-2")
    service.create_iceberg_table("sales.orders", delete_files=9, deletes_each=5_120)
    service.create_iceberg_table("sales.returns", delete_files=2, deletes_each=310)
    service.create_iceberg_table("sales.customers")
    service.create_iceberg_table("logistics.shipments", delete_files=3, deletes_each=800)
    orders = service.enroll("sales.orders", policy=None)
    returns, customers = service.enroll("sales.returns"), service.enroll("sales.customers")
    shipments = service.enroll("logistics.shipments")
    # The policy `standard` asked for the first index job by itself.
    indexed = worker.claim()
    indexed.succeed(index_result(), index_report(pending=(9, 46_080)))
    for table, unconvertible in (
        (returns, service.equality_delete_files("sales.returns")[0]),
        (customers, None),
    ):
        service.request_job(table, "index")
        worker.claim().succeed(index_result(), index_report(unconvertible=unconvertible))
    dry_run = service.request_job(orders, "convert", dry_run=True)
    worker.claim().succeed(convert_result(dry_run=True))
    done = service.request_job(customers, "convert")
    worker.claim()
    worker.report("plan", decisions=["The index of (id) covers all 96 data files"])
    worker.succeed(convert_result(), index_report())
    failed = service.request_job(shipments, "convert")
    worker.claim().fail()
    service.request_job(returns, "convert")
    service.post(f"/tables/{returns}/pause")
    running = service.request_job(orders, "convert")
    second.claim()
    second.report("plan")
    second.report("read", 9, 9, "tasks", decisions=["Key set (id) is looked up in its index"])
    second.report("lookup", 120, 298, "tasks")
    write_past(service, orders)
    pattern = service.post("/patterns", catalog="local", pattern="sales.*", exclude=["sales.tmp_*"])
    return Pages(
        {
            "overview": "/",
            "tables": "/tables",
            "table": f"/tables/{orders}",
            "table-form": f"/tables/{orders}/edit",
            "table-blocked": f"/tables/{returns}",
            "job-running": f"/jobs/{running}",
            "job-succeeded": f"/jobs/{done}",
            "job-dry-run": f"/jobs/{dry_run}",
            "job-index": f"/jobs/{indexed.job_id}",
            "job-failed": f"/jobs/{failed}",
            "jobs": "/jobs",
            "workers": "/workers",
            "policies": "/policies",
            "policy": "/policies/standard",
            "policy-new": "/policies/new?like=standard",
            "catalogs": "/catalogs",
            "catalog": "/catalogs/local",
            "catalog-new": "/catalogs/new",
            "candidates": "/catalogs/local/candidates?all_tables=true",
            "patterns": "/patterns",
            "pattern": f"/patterns/{pattern['id']}",
            "pattern-new": "/patterns/new",
            "keys": "/api-keys",
            "key-new": "/api-keys/new",
            "audit": "/audit",
            "register": "/tables/new",
            "not-found": "/tables/no-such-table",
        },
        {"login": "/login"},
    )


def write_past(service: RunningService, table_id: str) -> None:
    """A day of measurements: deletes pile up and are converted, more of them by day."""
    now = utc_now()
    database = Database(service.database_url)
    with database.write() as session:
        # History is in the order of its ids.
        session.exec(delete(HealthSample).where(col(HealthSample.table_id) == table_id))
        table = session.get_one(EnrolledTable, table_id)
        pending = files = 0
        for minute in range(24 * 60, 2, -2):
            at = now - timedelta(minutes=minute)
            pending += int(900 * (1.2 + math.sin(minute / 230)) * (1 + minute % 5 / 4))
            files += 1
            if pending > 52_000:
                pending = files = 0
            session.add(
                HealthSample(
                    table_id=table.id,
                    at=at,
                    resolution="hour" if minute % 60 == 0 else "all",
                    status="healthy",
                    pending_equality_delete_files=files,
                    pending_equality_deletes=pending,
                    lag_seconds=files * 120,
                    coverage=1,
                    entries=19_480_000,
                    bytes=59_800_000,
                    sorted_runs=7,
                    dead_ratio=0.03,
                    unconvertible=0,
                )
            )
    database.dispose()


def take(browser: Browser, service: RunningService, pages: Pages, directory: Path, suffix: str = "") -> None:
    for theme, (width_name, width) in product(THEMES, WIDTHS.items()):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        page = context.new_page()
        kind = f"{suffix}-{width_name}-{theme}.png"
        for name, path in pages.anonymous.items():
            page.goto(service.url + path)
            page.screenshot(path=directory / (name + kind), full_page=True)
        page.goto(service.login_link())
        for name, path in pages.signed_in.items():
            page.goto(service.url + path)
            page.screenshot(path=directory / (name + kind), full_page=True)
        if "register" in pages.signed_in:
            page.goto(service.url + "/tables/new")
            page.get_by_label("Table", exact=True).fill("sales.order")
            page.get_by_role("button", name="Enrol", exact=True).click()
            page.get_by_role("alert").wait_for()
            page.screenshot(path=directory / ("register-refused" + kind), full_page=True)
        context.close()


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as data,
        running_service(Path(data)) as service,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(**CHROMIUM)
        take(browser, service, Pages({"overview": "/", "workers": "/workers"}, {}), directory, "-empty")
        take(browser, service, furnish(service), directory)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
