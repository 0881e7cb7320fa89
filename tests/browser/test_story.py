"""The whole story, as a person sees it: from the login to a converted table, by a real worker."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from service.records.api_keys import Role
from tests.browser.conftest import Misdeeds, sign_in
from tests.browser.running_service import RunningService
from tests.faults.injection import FAULTS_FILE_VARIABLE, Fault, Faults, release
from tests.patience import PATIENCE_SECONDS
from tests.readers import duckdb_rows
from tests.service.iceberg_tables import IcebergCatalog

pytestmark = pytest.mark.integration

TABLE = "shop.orders"
_AT_COMMIT = Fault("iceberg", "before", "hold")
"""Until Spark has started and a job has run, on a machine that has much else to do."""


@pytest.fixture
def lake(service: RunningService) -> Iterator[IcebergCatalog]:
    """A catalog that Icestream does not know yet, with one table that needs it and one that does not."""
    directory = service.iceberg.directory / "lake"
    directory.mkdir()
    catalog = IcebergCatalog(directory, "lake")
    for name in (TABLE, "shop.customers"):
        catalog.create(name)
        catalog.append(name, list(range(10)))
    catalog.delete_keys(TABLE, [1, 2])
    catalog.delete_keys(TABLE, [7])
    yield catalog
    catalog.close()
    for table in service.get("/tables?catalog=lake")["items"]:
        service.api.delete(f"/tables/{table['id']}").raise_for_status()
    service.api.delete("/catalogs/lake")


@contextmanager
def real_worker(service: RunningService, directory: Path) -> Iterator[Callable[[], None]]:
    """A worker that stops right before its first commit to Iceberg, until what this yields is called."""
    faults = directory / "faults.json"
    Faults((_AT_COMMIT,), directory).write(faults)
    environment = {
        **os.environ,
        "ICESTREAM_URL": service.url,
        "ICESTREAM_API_KEY": service.admin_key,
        "ICESTREAM_WORKER_NAME": "worker-of-story",
        "ICESTREAM_SPARK_MASTER": "local[1]",
        "ICESTREAM_DRIVER_MEMORY": "512m",
        FAULTS_FILE_VARIABLE: str(faults),
    }
    with (directory / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.worker_build"], env=environment, stdout=log, stderr=log
        )
    try:
        yield lambda: release(directory)
    finally:
        release(directory)
        process.terminate()
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.mark.exhaustive
def test_a_person_registers_a_catalog_enrols_a_table_and_sees_its_deletes_converted(
    signed_in: Page, browser: Browser, service: RunningService, lake: IcebergCatalog, tmp_path: Path
) -> None:
    page = signed_in
    rows = duckdb_rows(lake.catalog.load_table(TABLE))
    assert len(rows) == 7

    page.goto(service.url)
    page.get_by_role("link", name="Catalogs").click()
    page.get_by_role("link", name="Register a catalog").click()
    page.get_by_label("Name", exact=True).fill("lake")
    page.get_by_label("Database").fill(lake.properties["uri"])
    page.get_by_label("Warehouse").fill(lake.properties["warehouse"])
    page.get_by_role("button", name="Check it").click()
    expect(page.get_by_role("status")).to_contain_text("ok")
    page.get_by_role("button", name="Register").click()

    # What needs it is found and chosen already.
    page.get_by_role("link", name="Enrol tables").click()
    expect(page.get_by_role("row").filter(has_text="shop.customers")).to_have_count(0)
    found = page.get_by_role("row").filter(has_text=TABLE)
    expect(found.get_by_role("checkbox")).to_be_checked()
    expect(found).to_contain_text("3")
    page.get_by_label("Policy").select_option("manual")
    page.get_by_role("button", name="Enrol the chosen ones").click()
    expect(page.get_by_role("heading", name=TABLE)).to_be_visible()
    table = page.url.rpartition("/")[2]
    pending = page.locator("#figures .figure").filter(has_text="Pending equality deletes")
    expect(pending).to_contain_text("in 2 files")

    # The first answer comes once a worker is there; nobody reloads a page.
    page.get_by_role("button", name="Dry run").click()
    status = page.locator("#status")
    expect(status).to_have_text("queued")
    page.evaluate("window.wasNotReloaded = true")
    with real_worker(service, tmp_path) as go_on:
        expect(status).to_have_text("succeeded")
        resolved = page.locator(".figure").filter(has_text="Equality deletes resolved")
        expect(resolved).to_contain_text("3")
        expect(page.locator("#outcome")).to_contain_text("Nothing was written.")
        assert page.evaluate("window.wasNotReloaded")
        assert lake.head(TABLE) == service.get(f"/tables/{table}/health")["iceberg_snapshot_id"]

        page.get_by_role("button", name="Convert now").click()
        expect(page.get_by_role("heading", name="Convert")).to_be_visible()
        page.evaluate("window.wasNotReloaded = true")
        current = page.locator("#stages .current")
        expect(current).to_contain_text("Commit to the Iceberg table")
        expect(status).to_have_text("running")
        watches(browser, service, page.url)
        go_on()
        expect(status).to_have_text("succeeded")
    assert page.evaluate("window.wasNotReloaded")
    expect(resolved).to_contain_text("3")
    expect(resolved).to_contain_text("in 2 files")
    head = lake.head(TABLE)
    snapshot = page.locator("#about dt", has_text="Snapshot after").locator("+ dd")
    expect(snapshot).to_contain_text(str(head))
    expect(page.get_by_role("row").filter(has_text="worker-of-story")).to_contain_text("succeeded")

    converted = lake.catalog.load_table(TABLE)
    assert duckdb_rows(converted) == rows
    contents = converted.inspect.delete_files()["content"].to_pylist()
    assert contents
    assert set(contents) == {1}, "position deletes only"

    page.get_by_role("navigation", name="Breadcrumb").get_by_role("link", name=TABLE).click()
    expect(pending).to_contain_text("in 0 files")
    expect(status).to_have_text("healthy")
    history = page.get_by_role("group", name=f"Jobs of {TABLE}").get_by_role("row")
    expect(history.filter(has_text="would resolve 3 deletes")).to_contain_text("Dry run")
    expect(history.filter(has_text="3 deletes resolved, 3 rows deleted")).to_have_count(1)
    page.get_by_role("link", name="Overview").click()
    done = page.locator("#figures .figure").filter(has_text="Deletes resolved")
    jobs = [job for job in service.get("/jobs?status=succeeded&kind=convert")["items"] if not job["dry_run"]]
    resolved = sum(job["result"].get("equality_deletes_resolved", 0) for job in jobs)
    assert resolved >= 3
    expect(done).to_contain_text(f"{resolved:,} in the last 24 hours")


def watches(browser: Browser, service: RunningService, url: str) -> None:
    """A viewer follows the same job and is offered no change of it: the filter of the log only asks."""
    context = browser.new_context()
    page = context.new_page()
    misdeeds = Misdeeds()
    misdeeds.watch(page, service.url)
    sign_in(context, service, Role.VIEWER)
    page.goto(url)
    expect(page.locator("#status")).to_have_text("running")
    expect(page.locator("main form:not([method=get])")).to_have_count(0)
    context.close()
    assert misdeeds == []
