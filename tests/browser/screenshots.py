"""`python -m tests.browser.screenshots DIR` writes a PNG of every page, in both themes and two widths.

Those that documents show, and a picture of commands, it puts into docs/images.

For people to look at. The figures are a plausible installation: the tables and their equality deletes are
real, what the worker reports is played, and the past day of measurements is written to the database.
"""

import base64
import math
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, sync_playwright
from sqlalchemy import delete
from sqlalchemy.engine import make_url
from sqlmodel import Session, col, select

from service.db.database import Database, new_id, utc_now
from service.index_health.samples import append_sample
from service.records.health import HealthSample, PendingChange, minute_of
from service.records.jobs import Attempt, Event, Job
from service.records.tables import EnrolledTable
from service.ui.formats import rfc3339
from tests.browser.conftest import CHROMIUM, sign_in
from tests.browser.pictures import DOCUMENTS, take_for_documents
from tests.browser.running_service import (
    PlayedWorker,
    RunningService,
    convert_result,
    erasure_result,
    index_report,
    index_result,
    publish_result,
    running_service,
)
from tests.patience import wait_until
from tests.service.health_samples import health_sample

WIDTHS = {"desktop": 1280, "phone": 390}
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@dataclass(frozen=True)
class Pages:
    """Page name -> path, for pages that need a session and one that does not."""

    signed_in: dict[str, str]
    anonymous: dict[str, str]


def furnish(service: RunningService) -> Pages:
    """Tables in every state, jobs in every state, and what happened within the past day."""
    worker, second = PlayedWorker(service, "worker-1"), PlayedWorker(service, "worker-2")
    for name, delete_files, deletes_each in (
        ("sales.orders", 9, 5_120),
        ("sales.returns", 2, 310),
        ("sales.customers", 0, 0),
        ("logistics.shipments", 3, 800),
        ("logistics.vehicle_positions_by_region_and_hour_of_day", 4, 1_250),
        ("finance.invoices", 1, 12),
        ("logistics.orders_of_today", 0, 0),
    ):
        service.create_iceberg_table(name, delete_files=delete_files, deletes_each=deletes_each)
    for name in ("payments", "refunds", "ledger_entries", "exchange_rates", "vouchers"):
        service.create_iceberg_table(f"finance.{name}")
    orders = service.enroll("sales.orders", policy=None)
    returns, customers = service.enroll("sales.returns"), service.enroll("sales.customers")
    shipments = service.enroll("logistics.shipments")
    # The policy `standard` asked for the first index job by itself.
    worker.claim()
    indexed = worker.job_id
    worker.succeed(
        index_result(), index_report(pending=(9, 46_080), head=service.iceberg.head("sales.orders"))
    )
    positions = service.enroll("logistics.vehicle_positions_by_region_and_hour_of_day")
    invoices = service.enroll("finance.invoices")
    for name, table, report in (
        ("sales.returns", returns, {"unconvertible": service.equality_delete_files("sales.returns")[0]}),
        ("sales.customers", customers, {}),
        ("logistics.vehicle_positions_by_region_and_hour_of_day", positions, {"dead_ratio": 0.86}),
    ):
        service.request_job(table, "index")
        head = service.iceberg.head(name)
        worker.claim().succeed(index_result(), index_report(head=head, **report))
    dry_run = service.request_job(orders, "convert", dry_run=True)
    worker.claim().succeed(convert_result(dry_run=True), read_bytes=108_400_000)
    done = service.request_job(customers, "convert")
    worker.claim()
    worker.report("plan", decisions=["The index of (id) covers all 96 data files"])
    worker.log("Planned 24 equality delete files against 96 data files")
    worker.log(
        "The store answered 503 to s3://lake/sales/customers/data/00017.parquet; asking again", "warning"
    )
    worker.log("Committed snapshot 6051911820938456713")
    worker.succeed(convert_result(), index_report(), read_bytes=113_200_000)
    failed = service.request_job(shipments, "convert")
    worker.claim()
    worker.report("plan")
    worker.report("read", 3, 3, "files")
    worker.log("Connection refused: catalog.internal:5432", "error")
    worker.fail()
    service.request_job(returns, "convert")
    service.post(f"/tables/{returns}/pause")
    service.post(
        f"/tables/{invoices}/jobs",
        kind="convert",
        run_at=rfc3339(utc_now() + timedelta(hours=5)),
        priority=10,
    )
    running = service.request_job(orders, "convert")
    second.claim()
    second.report("plan")
    second.report("read", 9, 9, "files", decisions=["Key set (id) is looked up in its index"])
    second.log("Planned 9 equality delete files against 96 data files")
    second.report("lookup", 120, 298, "tasks")
    staged = stage(service, "logistics.orders_of_today")
    published = service.request_job(staged, "publish")
    worker.claim().succeed(publish_result(), index_report())
    erasure = erase(service, worker)
    past = write_past(service, orders, dry_run, done, indexed)
    pattern = service.post("/patterns", catalog="local", pattern="finance.*", exclude=["finance.tmp_*"])
    wait_until(lambda: len(service.get("/tables?limit=100")["items"]) == 12, "all tables to be there")
    webhook = make_webhook(service)
    policy = service.post("/policies", name="nightly", settings={"convert": {"age_seconds": 3600}})["id"]
    return Pages(
        {
            "overview": "/",
            "timeline": "/timeline",
            "timeline-lag": "/timeline?hours=6&colour=lag&sort=name",
            "tables": "/tables",
            "table": f"/tables/{orders}",
            "table-index": f"/tables/{orders}/index",
            "table-index-none": f"/tables/{invoices}/index",
            "table-form": f"/tables/{orders}/edit",
            "find": f"/tables/{orders}/find",
            "write": f"/tables/{orders}/write",
            "table-staged": f"/tables/{staged}",
            "table-blocked": f"/tables/{returns}",
            "table-new": f"/tables/{invoices}",
            "job-running": f"/jobs/{running}",
            "job-succeeded": f"/jobs/{past[done]}",
            "job-dry-run": f"/jobs/{past[dry_run]}",
            "job-index": f"/jobs/{past[indexed]}",
            "job-publish": f"/jobs/{published}",
            "job-failed": f"/jobs/{failed}",
            "jobs": "/jobs",
            "erasures": "/erasures",
            "erasure": f"/erasures/{erasure}",
            "erasure-new": "/erasures/new",
            "jobs-none": "/jobs?status=cancelled",
            "workers": "/workers",
            "search": "/search?search=o",
            "policies": "/policies",
            "policy": "/policies/standard",
            "policy-own": f"/policies/{policy}",
            "policy-form": f"/policies/{policy}/edit",
            "policy-new": "/policies/new?like=standard",
            "catalogs": "/catalogs",
            "catalog": "/catalogs/local",
            "catalog-form": "/catalogs/local/edit",
            "catalog-new": "/catalogs/new",
            "candidates": "/catalogs/local/candidates?all_tables=true",
            "patterns": "/patterns",
            "pattern": f"/patterns/{pattern['id']}",
            "pattern-new": "/patterns/new",
            "webhooks": "/webhooks",
            "webhook": f"/webhooks/{webhook}",
            "webhook-new": "/webhooks/new",
            "senders": "/senders",
            "sender-new": "/senders/new",
            "keys": "/api-keys",
            "key-new": "/api-keys/new",
            "audit": "/audit",
            "register": "/tables/new",
            "not-found": "/tables/no-such-table",
        },
        {"login": "/login", "problem": "/problems/catalog-unreachable"},
    )


def stage(service: RunningService, name: str) -> str:
    """A table with deletes on a staging branch; its id."""
    table = service.iceberg.catalog.load_table(name)
    table.manage_snapshots().create_branch(service.iceberg.head(name), "ingest").commit()
    for number in range(3):
        service.iceberg.delete_keys(name, list(range(number * 400, number * 400 + 400)), branch="ingest")
    return service.enroll(name, publish={"from": "ingest"})


def erase(service: RunningService, worker: PlayedWorker) -> str:
    """An erasure of three tables: keys are gone, held, and not yet looked for."""
    erasure = service.post(
        "/erasures",
        keys=[{"id": 7}, {"id": 8}],
        tables=["sales.customers", "logistics.shipments", "finance.invoices"],
        note="ticket 4711",
        priority=100,
    )
    worker.claim().succeed(erasure_result())
    tag = {
        "holder": "tag",
        "name": "audit-2025",
        "snapshot_id": 5781947118336215154,
        "reason": "The tag reaches 2 data files that hold rows of the key.",
        "remedy": "Drop the tag if nobody needs it, then erase again.",
        "keys": [0],
    }
    worker.claim().succeed(erasure_result(held=[tag]))
    return str(erasure["id"])


def make_webhook(service: RunningService) -> str:
    """Nobody listens at its address; with a sender, which signs with the same key."""
    database = make_url(service.database_url).database
    assert database is not None
    key = Path(database).with_name("webhook-key")
    key.write_text("whsec_" + base64.b64encode(bytes(32)).decode())
    webhook = service.post(
        "/webhooks",
        name="on-call",
        url="http://127.0.0.1:9/icestream",
        kinds=["job.failed", "table"],
        secret=f"file:{key}",
    )
    sender = service.post("/notification-senders", name="flink", catalog="local", secret=f"file:{key}")["id"]
    service.api.post(f"/notification-senders/{sender}/commit-events", json={})  # which is not signed
    path = f"/webhooks/{webhook['id']}"
    service.post(f"{path}/test")
    wait_until(lambda: service.get(f"{path}/deliveries")["items"][0]["error"], "the delivery to fail")
    return str(webhook["id"])


def write_past(service: RunningService, table_id: str, *job_ids: str) -> dict[str, str]:
    """A day of measurements: deletes pile up and are converted, more of them by day. Returns for each of the
    jobs one that did the same, hours ago and in the time that its stages say."""
    now = utc_now()
    database = Database(service.database_url)
    with database.write() as session:
        # History is in the order of its ids.
        session.exec(delete(HealthSample).where(col(HealthSample.table_id) == table_id))
        table = session.get_one(EnrolledTable, table_id)
        pending = files = 0
        conversions: list[datetime] = []
        last: HealthSample | None = None
        for minute in range(24 * 60, 2, -2):
            at = now - timedelta(minutes=minute)
            before = pending
            pending += int(180 * (1.2 + math.sin(minute / 230)) * (1 + minute % 5 / 4))
            files += 1
            if pending > 52_000:
                pending = files = 0
                conversions.append(at)
            session.add(PendingChange(part=0, minute=minute_of(at), equality_deletes=pending - before))
            sample = health_sample(
                table.id,
                at,
                pending,
                pending_equality_delete_files=files,
                lag_seconds=files * 120,
                coverage=1 if minute % 90 > 6 else 0.97,
                entries=19_480_000 - minute * 900,
                bytes=59_800_000 - minute * 2_700,
                sorted_runs=3 + (1440 - minute) // 45 % 13,
                dead_ratio=0.034 + minute % 700 / 4000,
            )
            append_sample(session, last, sample)
            last = sample
        # What it has now was counted as it was measured.
        session.add(PendingChange(part=0, minute=minute_of(now) - 3, equality_deletes=-pending))
        for at in conversions:
            _repeat(session, job_ids[1], at, table)
        past = {job_id: _repeat(session, job_id, now - timedelta(hours=2)) for job_id in job_ids}
        # Events are in the order of their ids, too.
        happened = session.exec(select(Event).order_by(col(Event.at), col(Event.id))).all()
        in_order = [event.model_dump() | {"id": None} for event in happened]
        session.exec(delete(Event))
        session.add_all(Event.model_validate(event) for event in in_order)
    database.dispose()
    return past


def _repeat(session: Session, job_id: str, ended_at: datetime, table: EnrolledTable | None = None) -> str:
    """Add the same job, on this table if given, as if it had ended then; return its id."""
    job = session.get_one(Job, job_id)
    seconds = sum(stage["seconds"] for stage in (job.result or {})["stages"])
    started_at = ended_at - timedelta(seconds=seconds)
    times = {"created_at": started_at - timedelta(seconds=2), "started_at": started_at, "ended_at": ended_at}
    place = {"table_id": table.id, "table_uuid": table.table_uuid} if table else {}
    again = Job.model_validate(job.model_dump() | {"id": new_id()} | place | times)
    session.add(again)
    attempts = session.exec(select(Attempt).where(Attempt.job_id == job_id)).all()
    for attempt in attempts:
        copied = {"job_id": again.id, "started_at": started_at, "ended_at": ended_at, "seconds": seconds}
        session.add(Attempt.model_validate(attempt.model_dump() | copied))
    events = session.exec(select(Event).where(Event.job_id == job_id).order_by(col(Event.id))).all()
    for number, event in enumerate(events):
        at = started_at + timedelta(seconds=seconds) * number / max(len(events) - 1, 1)
        copied = {"id": None, "job_id": again.id, "table_id": again.table_id, "at": at}
        session.add(Event.model_validate(event.model_dump() | copied))
    return again.id


def refuse_name(page: Page) -> None:
    page.get_by_label("Table", exact=True).fill("sales.order")
    page.get_by_role("button", name="Enrol", exact=True).click()
    page.get_by_role("alert").wait_for()


def open_menu(page: Page) -> None:
    page.get_by_text("More jobs").click()


def find_key(page: Page) -> None:
    """Asks for the history of a key."""
    page.get_by_text("Branch, snapshot and columns").click()
    page.get_by_label("Columns to show").fill("id, region")
    page.get_by_label("History").select_option("20")
    page.locator("[name=value_0]").fill("7")
    page.locator("[name=value_0]").press("Enter")
    page.get_by_role("heading", name="History").wait_for()


def open_search(page: Page) -> None:
    page.keyboard.press("Control+k")
    page.get_by_role("searchbox", name="Name or id").fill("orders")
    page.get_by_role("dialog").get_by_role("link", name="sales.orders").wait_for()


def try_policy(page: Page) -> None:
    page.get_by_label("Try it on").fill("sales.orders")
    page.get_by_role("button", name="Try on the last seven days").click()
    page.get_by_role("heading", name="What this would have made").wait_for()


def refuse_window(page: Page) -> None:
    page.locator("[name='settings.schedule.windows']").fill("at night")
    page.get_by_role("button", name="Save").click()
    page.get_by_role("alert").first.wait_for()


def attach_over_another(page: Page) -> None:
    page.get_by_role("button", name="Attach", exact=True).click()
    page.get_by_role("button", name="Attach instead").wait_for()


def ask_to_remove(page: Page) -> None:
    page.locator("summary", has_text="Remove").click()


def ask_to_rotate(page: Page) -> None:
    page.locator("summary", has_text="Rotate").first.click()


def make_key(page: Page) -> None:
    """It is shown once."""
    page.locator("[name=name]").fill("grafana")
    page.get_by_role("button", name="Create key").click()
    page.get_by_text("This is the only time that the key is shown").wait_for()


def plan_erasure(page: Page) -> None:
    page.locator("[name=keys]").fill('[{"id": 7}]')
    page.locator("[name=pattern]").fill("sales.*")
    page.get_by_role("button", name="Start").click()
    page.get_by_role("heading", name="A dry run").wait_for()


def look_for_matches(page: Page) -> None:
    page.locator("[name=pattern]").fill("*")
    page.get_by_role("button", name="Show what matches").click()
    page.get_by_role("heading", name="tables match").wait_for()


def enrol_again(page: Page) -> None:
    page.locator("[name=pattern]").fill("sales.*")
    page.get_by_role("button", name="Enrol these now").click()
    page.get_by_text("was enrolled before").first.wait_for()


def cancel_too_late(page: Page) -> None:
    ended = page.get_by_role("row").filter(has_text="succeeded")
    ended.first.get_by_role("checkbox").check()
    page.get_by_role("button", name="Cancel the chosen ones").click()
    page.get_by_text("refused", exact=True).wait_for()


def be_signed_out(page: Page) -> None:
    """While a form is filled in."""
    page.get_by_label("Table", exact=True).fill("sales.order")
    page.context.clear_cookies()
    page.get_by_role("button", name="Enrol", exact=True).click()
    page.get_by_text("You are not signed in any more").wait_for()


def check_catalog(page: Page) -> None:
    page.get_by_role("button", name="Check", exact=True).click()
    page.get_by_role("heading", name="What the check found").wait_for()


@dataclass(frozen=True)
class Act:
    """What a person does on a page before a picture of it is taken."""

    page: str
    do: Callable[[Page], None]
    is_whole: bool = True
    """Whether the picture is of all of the page, not of the window."""


ACTS = {
    "register-refused": Act("register", refuse_name),
    "table-menu": Act("table", open_menu, is_whole=False),
    "found": Act("find", find_key),
    "search-open": Act("overview", open_search, is_whole=False),
    "policy-tried": Act("policy-form", try_policy),
    "policy-refused": Act("policy-form", refuse_window),
    "policy-attach-asked": Act("policy-own", attach_over_another),
    "catalog-checked": Act("catalog", check_catalog),
    "table-remove-asked": Act("table", ask_to_remove, is_whole=False),
    "key-rotate-asked": Act("keys", ask_to_rotate),
    "key-made": Act("key-new", make_key),
    "erasure-planned": Act("erasure-new", plan_erasure),
    "pattern-matches": Act("pattern-new", look_for_matches),
    "pattern-enrolled": Act("pattern-new", enrol_again),
    "jobs-refused": Act("jobs", cancel_too_late),
    "signed-out": Act("register", be_signed_out),  # the last one, as it says
}


def guide(service: RunningService) -> Iterator[tuple[str, str, Callable[[Page], None]]]:
    """The first hour on a service that has nothing, by the steps of its guide. A step has been prepared once
    it is yielded: the picture's name, its page, and what a person does there."""

    def look(_: Page) -> None:
        pass

    for name, delete_files, deletes_each in (
        ("sales.orders", 9, 5_120),
        ("sales.returns", 2, 310),
        ("logistics.shipments", 3, 800),
        ("sales.customers", 0, 0),
    ):
        service.create_iceberg_table(name, delete_files=delete_files, deletes_each=deletes_each)
    service.api.delete("/catalogs/local").raise_for_status()
    yield "workers-empty", "/workers", look
    yield "guide-connect", "/", look
    for kind, typed in catalogs_to_try(service).items():
        yield f"guide-connect-{kind}", f"/catalogs/new?type={kind}", partial(try_catalog, typed=typed)
    service.post("/catalogs", name="local", type="sql", properties=service.iceberg.properties)
    yield "guide-choose", "/", look
    yield "guide-candidates", "/catalogs/local/candidates", look
    orders = service.enroll("sales.orders")
    yield "guide-enrolled", "/", look
    worker = PlayedWorker(service, "worker-1")
    service.request_job(orders, "convert", dry_run=True)
    worker.claim().fail()
    yield "guide-failed", "/", look
    service.request_job(orders, "convert", dry_run=True)
    worker.claim().succeed(convert_result(dry_run=True))
    yield "guide-tried", "/", look
    service.request_job(orders, "convert")
    worker.claim()
    worker.report("lookup", 120, 298, "tasks")
    yield "guide-running", "/", look
    table = service.iceberg.catalog.load_table("sales.orders")
    converted = table.snapshots()[0].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(converted).commit()
    worker.succeed(convert_result(), index_report(head=converted))
    health = f"/tables/{orders}/health"
    wait_until(lambda: service.get(health)["iceberg_snapshot_id"] == converted, "a look at what was done")
    yield "guide-converted", "/", look


def catalogs_to_try(service: RunningService) -> dict[str, dict[str, str]]:
    """What is typed for a catalog of each type, by labels; nobody answers for some."""
    nowhere = "127.0.0.1:9"
    warehouse = service.iceberg.properties["warehouse"]
    return {
        "sql": {"Database": service.iceberg.properties["uri"], "Warehouse": warehouse},
        "rest": {"Address": f"http://{nowhere}/catalog"},
        "hive": {"Metastore": f"thrift://{nowhere}"},
        "glue": {
            "Region": "eu-central-1",
            "Further properties": "glue.access-key-id = lake\nglue.secret-access-key = env:NO_SUCH_KEY\n"
            f"glue.endpoint = http://{nowhere}\nglue.max-retries = 1",
        },
        "hadoop": {"Warehouse": warehouse},
    }


def try_catalog(page: Page, typed: dict[str, str]) -> None:
    page.get_by_label("Name", exact=True).fill("lake")
    for label, value in typed.items():
        page.get_by_label(re.compile(f"^{label}")).fill(value)
    page.get_by_role("button", name="Check it").click()
    page.get_by_role("heading", name="What the check found").wait_for()


def open_looks(browser: Browser, service: RunningService) -> dict[str, Page]:
    """A page for each look, by what the names of its pictures end with."""
    pages = {}
    for theme, (width_name, width) in product(THEMES, WIDTHS.items()):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        sign_in(context, service)
        pages[f"-{width_name}-{theme}.png"] = context.new_page()
    return pages


def take(browser: Browser, service: RunningService, pages: Pages, directory: Path) -> None:
    for look, page in open_looks(browser, service).items():
        for name, path in pages.signed_in.items():
            page.goto(service.url + path)
            page.screenshot(path=directory / (name + look), full_page=True)
        for name, act in ACTS.items():
            page.goto(service.url + pages.signed_in[act.page])
            act.do(page)
            page.screenshot(path=directory / (name + look), full_page=act.is_whole)
        page.context.clear_cookies()
        for name, path in pages.anonymous.items():
            page.goto(service.url + path)
            page.screenshot(path=directory / (name + look), full_page=True)
        page.context.close()


def take_guide(browser: Browser, service: RunningService, directory: Path) -> None:
    pages = open_looks(browser, service)
    for name, path, act in guide(service):
        for look, page in pages.items():
            page.goto(service.url + path)
            act(page)
            page.screenshot(path=directory / (name + look), full_page=True)
    for page in pages.values():
        page.context.close()


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data, sync_playwright() as playwright:
        browser = playwright.chromium.launch(**CHROMIUM)
        for name in ("guide", "furnished"):
            Path(data, name).mkdir()
        with running_service(Path(data, "guide")) as service:
            take_guide(browser, service, directory)
        with running_service(Path(data, "furnished")) as service:
            pages = furnish(service)
            take_for_documents(browser, service, pages.signed_in["table"], DOCUMENTS)
            take(browser, service, pages, directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
