"""What people do on the pages, in a real browser, against a real service."""

import re
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from service.auth.principals import SESSION_COOKIE
from service.records.api_keys import Role
from tests.browser.conftest import Misdeeds, sign_in
from tests.browser.running_service import PlayedWorker, RunningService, convert_result, index_report
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.service.conftest import PLAIN_HTTP

pytestmark = pytest.mark.integration


def test_login_link_signs_in_once(page: Page, service: RunningService) -> None:
    link = service.login_link()
    page.goto(link)
    expect(page).to_have_url(f"{service.url}/")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()

    page.context.clear_cookies()
    page.goto(link)
    expect(page.get_by_role("alert")).to_contain_text("This login link no longer works")


def test_api_key_leads_to_the_page_that_was_asked_for_and_signing_out_ends_the_session(
    page: Page, service: RunningService
) -> None:
    page.goto(f"{service.url}/jobs?status=failed")
    page.get_by_label("API key").fill("not a key")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("This API key is not valid")

    page.get_by_label("API key").fill(service.admin_key)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{service.url}/jobs?status=failed")
    session = {SESSION_COOKIE: page.context.cookies()[0]["value"]}

    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(f"{service.url}/login")
    assert (
        httpx.get(f"{service.url}/jobs", cookies=session, verify=PLAIN_HTTP, timeout=PATIENCE_SECONDS)
        .headers["location"]
        .startswith("/login")
    )


def test_empty_overview_says_what_to_do_next(signed_in: Page, service: RunningService) -> None:
    signed_in.goto(service.url)
    expect(signed_in.get_by_role("heading", name="Nothing is enrolled yet")).to_be_visible()
    expect(signed_in.get_by_label("Example request")).to_contain_text('"catalog": "local"')
    signed_in.locator("main").get_by_role("link", name="See what local holds").click()
    expect(signed_in).to_have_url(re.compile(r"/candidates"))


def test_overview_shows_what_is_pending_and_follows_it(signed_in: Page, service: RunningService) -> None:
    service.create_iceberg_table("shop.baskets", delete_files=3, deletes_each=5)
    table = service.enroll("shop.baskets")
    signed_in.goto(service.url)
    # The list of jobs below names the table too.
    tables = signed_in.get_by_role("row").filter(has=signed_in.get_by_role("link", name="shop.baskets"))
    row = tables.first
    expect(row).to_contain_text("healthy")
    expect(row.get_by_role("cell").nth(2)).to_have_text("15")
    expect(row.get_by_role("cell").nth(3)).to_have_text("3")

    # Nobody touches the browser: the page follows by itself.
    signed_in.evaluate("window.wasNotReloaded = true")
    service.request_job(table, "convert")
    expect(row.get_by_role("cell").last).to_contain_text("queued")
    assert signed_in.evaluate("window.wasNotReloaded")


def test_job_page_follows_the_job_to_its_end_without_a_reload(
    signed_in: Page, service: RunningService
) -> None:
    service.create_iceberg_table("shop.clicks", delete_files=1)
    table = service.enroll("shop.clicks")
    job = service.request_job(table, "convert")
    signed_in.goto(f"{service.url}/jobs/{job}")
    status = signed_in.locator("#status")
    expect(status).to_have_text("queued")
    expect(signed_in.get_by_text("Waits for a free worker.")).to_be_visible()
    signed_in.evaluate("window.wasNotReloaded = true")

    worker = PlayedWorker(service, "worker-of-clicks").claim()
    expect(status).to_have_text("running")
    worker.report("lookup", 12, 80, "tasks", decisions=["Key set (id) is looked up in its index"])
    bar = signed_in.get_by_role("progressbar", name="Look keys up in the index")
    expect(bar).to_have_attribute("value", "12")
    expect(signed_in.get_by_text("12 of 80 tasks")).to_be_visible()
    expect(signed_in.get_by_text("Key set (id) is looked up in its index.")).to_be_visible()
    worker.report("lookup", 60, 80, "tasks")
    expect(bar).to_have_attribute("value", "60")

    worker.succeed(convert_result(), index_report())
    expect(status).to_have_text("succeeded")
    figure = signed_in.locator(".figure").filter(has_text="Equality deletes resolved")
    expect(figure).to_contain_text("48,210")
    expect(signed_in.get_by_role("row").filter(has_text="This key set has no index yet")).to_contain_text(
        "scan"
    )
    expect(signed_in.get_by_role("row").filter(has_text="worker-of-clicks")).to_contain_text("succeeded")
    expect(signed_in.get_by_role("button", name="Cancel")).to_have_count(0)
    assert signed_in.evaluate("window.wasNotReloaded")


@pytest.mark.thorough
def test_two_people_see_what_the_other_does(
    signed_in: Page, visit: Callable[..., Page], service: RunningService
) -> None:
    service.create_iceberg_table("shop.shared")
    table = service.enroll("shop.shared")
    other = visit()
    sign_in(other.context, service, Role.VIEWER)
    other.goto(f"{service.url}/tables/{table}")
    expect(other.locator("#connection-words")).to_have_text("Live")
    signed_in.goto(f"{service.url}/tables/{table}")
    signed_in.get_by_text("More jobs").click()
    signed_in.get_by_role("button", name="Index", exact=True).click()
    jobs = other.get_by_role("group", name="Jobs of shop.shared")
    expect(jobs.get_by_role("link", name="Index")).to_be_visible()
    expect(other.get_by_role("button", name="Cancel")).to_have_count(0)


@pytest.mark.exhaustive
def test_two_admins_see_each_others_changes_and_overwrite_none_unseen(
    signed_in: Page, visit: Callable[..., Page], service: RunningService
) -> None:
    service.create_iceberg_table("shop.rivals")
    table = service.enroll("shop.rivals")
    other = visit()
    sign_in(other.context, service)
    other.goto(f"{service.url}/tables/{table}")
    expect(other.locator("#connection-words")).to_have_text("Live")
    other.evaluate("window.wasNotReloaded = true")
    signed_in.goto(f"{service.url}/tables/{table}")
    signed_in.get_by_role("button", name="Pause").click()
    expect(other.locator("#status")).to_contain_text("paused")
    expect(other.locator("#events")).to_contain_text("Paused by admin.")
    expect(other.get_by_role("button", name="Convert")).to_be_disabled()
    other.get_by_text("More jobs").click()
    expect(other.get_by_text("The table is paused: resume it first.")).to_be_visible()
    assert other.evaluate("window.wasNotReloaded")
    assert service.get(f"/tables/{table}")["paused"]
    other.keyboard.press("Escape")
    other.get_by_role("button", name="Resume").click()
    expect(other.get_by_role("button", name="Convert")).to_be_enabled()
    assert not service.get(f"/tables/{table}")["paused"]

    for page, keys in ((signed_in, "id"), (other, "id, region")):
        page.goto(f"{service.url}/tables/{table}/edit")
        page.get_by_label("Declared keys").fill(keys)
    signed_in.get_by_role("button", name="Save").click()
    expect(signed_in.get_by_role("heading", name="shop.rivals")).to_be_visible()
    other.get_by_role("button", name="Save").click()
    expect(other.get_by_role("alert")).to_contain_text("It has been changed in the meantime")
    keys_field = other.get_by_label("Declared keys")
    expect(keys_field).to_have_value("id, region")
    expect(keys_field).to_have_accessible_description(re.compile("There now: id"))
    assert service.get(f"/tables/{table}")["key_sets"] == [["id"]]
    other.get_by_role("button", name="Save").click()
    expect(other.get_by_role("heading", name="shop.rivals")).to_be_visible()
    assert service.get(f"/tables/{table}")["key_sets"] == [["id", "region"]]


def test_a_lost_connection_comes_back_with_what_happened_meanwhile(
    browser: Browser, service: RunningService
) -> None:
    service.create_iceberg_table("shop.offline")
    table = service.enroll("shop.offline")
    context = browser.new_context()
    page = context.new_page()
    misdeeds = Misdeeds()
    misdeeds.watch(page, service.url)
    sign_in(page.context, service)
    # In the end, what the page does every minute would find all of it.
    page.add_init_script("window.setInterval = () => 0")
    # Whatever is tried again later is tried soon.
    page.add_init_script(
        "const wait = window.setTimeout; window.setTimeout = (call, ms) => wait(call, Math.min(ms ?? 0, 400))"
    )
    # What a proxy answers while the service restarts: browsers do not try again by themselves.
    page.route("**/changes**", lambda route: route.fulfill(status=503))
    page.goto(f"{service.url}/tables/{table}")
    words = page.locator("#connection-words")
    expect(words).to_have_text("Reconnecting")
    job = service.request_job(table, "index")
    page.unroute("**/changes**")
    expect(words).to_have_text("Live")
    expect(page.locator("#jobs").get_by_role("link", name=job[:8])).to_be_visible()

    context.set_offline(True)
    expect(words).to_have_text("Reconnecting")
    service.post(f"/tables/{table}/pause")
    context.set_offline(False)
    expect(words).to_have_text("Live")
    expect(page.locator("#status")).to_contain_text("paused")

    # Events come, and the page does not: what is shown is not live.
    page.route(f"**/tables/{table}", lambda route: route.fulfill(status=503))
    service.post(f"/tables/{table}/resume")
    expect(words).to_have_text("Out of date (error 503)")
    page.unroute(f"**/tables/{table}")
    expect(words).to_have_text("Live")
    expect(page.locator("#status")).not_to_contain_text("paused")
    context.close()
    # The browser itself notes what it could not load.
    assert [misdeed for misdeed in misdeeds if "Failed to load resource" not in misdeed] == []


@pytest.mark.thorough
def test_what_polls_find_is_shown_on_live_pages_without_another_look(
    signed_in: Page, service: RunningService
) -> None:
    service.create_iceberg_table("shop.stream")
    table = service.enroll("shop.stream")
    context = signed_in.context
    pages = [context.new_page() for _ in range(3)]
    before = int(service.get("/overview")["pending_equality_deletes"])
    for page, path in zip(pages, ("/", f"/tables/{table}", "/tables?search=shop.stream"), strict=True):
        page.goto(f"{service.url}{path}")
        expect(page.locator("#connection-words")).to_have_text("Live")
        page.route("**", lambda route: route.abort())
    service.iceberg.delete_keys("shop.stream", list(range(1_234)))
    overview, of_table, listed = pages
    figure = overview.locator("#figures .figure").filter(has_text="Pending equality deletes")
    expect(figure.locator(".value")).to_have_text(f"{before + 1_234:,}")
    figure = of_table.locator("#figures .figure").filter(has_text="Pending equality deletes")
    expect(figure.locator(".value")).to_have_text("1,234")
    expect(figure.locator(".detail")).to_have_text("in 1\u00a0file")
    for page, label in ((of_table, "Lag"), (overview, "Oldest pending delete")):
        figure = page.locator("#figures .figure").filter(has=page.get_by_text(label, exact=True))
        expect(figure.locator(".value")).to_have_text(re.compile(r"\d\ss$"))
        expect(figure.locator(".detail")).to_have_text(
            re.compile("^(age of the oldest one|since its commit)$")
        )
    row = listed.locator("tr").filter(has_text="shop.stream")
    for label, told in (("Pending deletes", "1,234"), ("Delete files", "1")):
        expect(row.locator(f"[data-label='{label}']")).to_have_text(told)
    expect(row.locator("[data-label=Lag]")).to_have_text(re.compile(r"\d\ss$"))
    for page in pages:
        page.close()


def test_a_page_of_another_release_is_loaded_anew_and_not_again_at_once(
    signed_in: Page, service: RunningService
) -> None:
    """As while a new release is rolled out, and replicas of both answer."""
    service.create_iceberg_table("shop.released")
    table = service.enroll("shop.released")
    path, loaded = f"{service.url}/tables/{table}", []

    def as_another(route: Route) -> None:
        if route.request.resource_type == "document":
            loaded.append(path)
            return route.continue_()
        answer = route.fetch()
        text = re.sub(r"/static/[0-9a-f]{12}/", f"/static/{'0' * 12}/", answer.text())
        return route.fulfill(response=answer, body=text)

    signed_in.route(path, as_another)
    signed_in.goto(path)
    expect(signed_in.locator("#connection-words")).to_have_text("Live")
    while len(loaded) == 1:
        signed_in.wait_for_timeout(100)
    with signed_in.expect_response(path):
        service.post(f"/tables/{table}/pause")
    expect(signed_in.locator("#status")).to_contain_text("paused")
    assert len(loaded) == 2


def test_a_page_that_costs_the_service_much_is_looked_at_less_often(
    signed_in: Page, service: RunningService
) -> None:
    looks: list[str] = []
    signed_in.on("response", lambda answer: looks.append(answer.headers.get("server-timing", "")))
    signed_in.goto(f"{service.url}/tables")
    expect(signed_in.locator("#connection-words")).to_have_text("Live")
    assert [re.fullmatch(r"cpu;dur=\d+\.\d", told) is not None for told in looks[:1]] == [True]
    waits = """(costs) => {
      const pace = paced();
      return costs.map((cost) => {
        pace.pay({ headers: new Headers({ "Server-Timing": `cpu;dur=${cost}` }) });
        return pace.wait();
      });
    }"""
    # 200 ms in advance, then a second for each 0.25; a look costs 12 more than its page.
    first, second, third, *others, dear = signed_in.evaluate(waits, [88, 88, 18, *[40] * 20, 82])
    assert first == 0
    assert second == 0
    assert 110_000 < third <= 120_000
    # Also after looks that came before their time, such as at every return to the tab.
    assert max(others) <= 208_000
    assert 366_000 < dear <= 376_000


def test_a_page_says_when_it_looks_next_at_what_has_changed(signed_in: Page, service: RunningService) -> None:
    service.create_iceberg_table("shop.dear")
    table = service.enroll("shop.dear")

    def at_a_high_price(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, headers=answer.headers | {"server-timing": "cpu;dur=60000.0"})

    signed_in.route(f"{service.url}/tables", at_a_high_price)
    signed_in.goto(f"{service.url}/tables")
    with signed_in.expect_response(f"{service.url}/tables"):
        expect(signed_in.locator("#connection-words")).to_have_text("Live")
    service.post(f"/tables/{table}/pause")
    expect(signed_in.locator("#connection-words")).to_have_text(re.compile(r"Live, next look in \d+ min"))


def test_failed_job_shows_cause_and_remedy_as_plain_text_and_can_be_retried(
    signed_in: Page, service: RunningService
) -> None:
    service.create_iceberg_table("shop.vouchers", delete_files=1)
    table = service.enroll("shop.vouchers")
    job = service.request_job(table, "convert")
    PlayedWorker(service).claim().fail(detail="<img src=x onerror=alert(1)> was refused")
    signed_in.goto(f"{service.url}/jobs/{job}")
    notice = signed_in.locator(".notice.bad")
    expect(notice).to_contain_text("Catalog local can't be used")
    expect(notice).to_contain_text("<img src=x onerror=alert(1)> was refused.")
    expect(notice).to_contain_text("then retry the job.")

    signed_in.get_by_role("button", name="Retry").click()
    signed_in.wait_for_url(lambda url: "/jobs/" in url and job not in url)
    again = service.get(f"/jobs/{signed_in.url.rpartition('/')[2]}")
    assert (again["status"], again["retry_of"]) == ("queued", job)
    signed_in.get_by_role("button", name="Cancel").click()
    expect(signed_in.locator("#status")).to_have_text("cancelled")


def test_table_page_plots_measurements_and_names_the_source_of_each_policy_value(
    signed_in: Page, service: RunningService
) -> None:
    service.create_iceberg_table("shop.prices", delete_files=1, deletes_each=4)
    table = service.enroll("shop.prices")
    service.iceberg.delete_keys("shop.prices", [7])
    wait_until(
        lambda: service.get(f"/tables/{table}/health")["pending_equality_deletes"] == 5,
        "the deletes to be seen",
    )
    signed_in.goto(f"{service.url}/tables/{table}")
    expect(signed_in.locator("#plot")).to_contain_text("5 now, 5 at the highest")
    converting = signed_in.get_by_role("table", name="Convert equality deletes standard, system")
    row = converting.get_by_role("row").filter(has_text="Starts by itself")
    expect(row).to_contain_text("manual, table shop.prices")
    expect(converting.get_by_role("row").filter(has_text="At this many deletes")).not_to_contain_text(
        "standard"
    )


def test_register_form_keeps_what_was_typed_and_says_what_is_wrong(
    signed_in: Page, service: RunningService
) -> None:
    service.create_iceberg_table("shop.parcels")
    signed_in.goto(f"{service.url}/tables/new")
    signed_in.get_by_label("Table", exact=True).fill("shop.parcel")
    signed_in.get_by_label("Policy").select_option("manual")
    signed_in.get_by_label("Key columns").fill("id, region")
    signed_in.get_by_role("button", name="Enrol", exact=True).click()
    expect(signed_in.get_by_role("alert")).to_contain_text("shop.parcels")
    expect(signed_in.get_by_label("Policy")).to_have_value("manual")
    expect(signed_in.get_by_label("Key columns")).to_have_value("id, region")

    signed_in.get_by_label("Table", exact=True).fill("shop.parcels")
    signed_in.get_by_role("button", name="Enrol", exact=True).click()
    expect(signed_in.get_by_role("heading", name="shop.parcels")).to_be_visible()
    table = service.get(f"/tables/{signed_in.url.rpartition('/')[2]}")
    assert table["name"] == "shop.parcels"
    assert (table["key_sets"], table["policy"]) == ([["id", "region"]], "manual")


@pytest.mark.thorough
def test_all_jobs_of_a_page_are_chosen_at_once_and_stay_so_while_it_follows(
    signed_in: Page, service: RunningService
) -> None:
    service.create_iceberg_table("shop.queues")
    table = service.enroll("shop.queues")
    first = service.request_job(table, "index")
    signed_in.goto(f"{service.url}/jobs?table_id={table}")
    expect(signed_in.locator("#connection-words")).to_have_text("Live")
    # However long the list, what can be done with the chosen ones is in sight.
    actions = signed_in.locator("form[action='/jobs/bulk'] > .actions")
    expect(actions).to_have_css("position", "static")
    signed_in.get_by_role("checkbox", name="Choose all").check()
    expect(actions).to_have_css("position", "sticky")
    link = signed_in.get_by_role("link", name=first[:8])
    link.focus()
    service.request_job(table, "verify")
    expect(signed_in.locator("tbody tr")).to_have_count(2)
    expect(link).to_be_focused()
    expect(signed_in.get_by_role("checkbox", name="Choose Index")).to_be_checked()
    signed_in.get_by_role("checkbox", name="Choose all").uncheck()
    expect(signed_in.get_by_role("checkbox", name="Choose Index")).not_to_be_checked()


def test_a_log_that_grows_stays_where_it_is_read(signed_in: Page, service: RunningService) -> None:
    service.create_iceberg_table("shop.logs")
    job = service.request_job(service.enroll("shop.logs"), "convert")
    worker = PlayedWorker(service).claim()
    worker.log("\n".join(map(str, range(100))))
    signed_in.goto(f"{service.url}/jobs/{job}")
    expect(signed_in.locator("#connection-words")).to_have_text("Live")
    log = signed_in.locator(".log")
    log.evaluate("box => box.scrollTo(0, 300)")
    worker.log("the second line")
    expect(log).to_contain_text("the second line")
    assert log.evaluate("box => box.scrollTop") == 300
    log.evaluate("box => box.scrollTo(0, box.scrollHeight)")
    worker.log("the third line")
    expect(log).to_contain_text("the third line")
    assert log.evaluate("box => box.scrollTop + box.clientHeight > box.scrollHeight - 8")


def test_viewer_sees_everything_and_may_do_nothing(page: Page, service: RunningService) -> None:
    service.create_iceberg_table("shop.secrets")
    table = service.enroll("shop.secrets")
    sign_in(page.context, service, Role.VIEWER)
    page.goto(f"{service.url}/tables/{table}")
    expect(page.get_by_role("heading", name="shop.secrets")).to_be_visible()
    assert page.get_by_role("button").all_text_contents()[0] == "Sign out"
    for name in ("Convert", "Dry run", "Index", "Pause"):
        expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)

    # A form that the page does not show is refused all the same, and noted.
    token = page.locator("input[name=csrf_token]").first.input_value()
    answer = httpx.post(
        f"{service.url}/tables/{table}/jobs",
        data={"kind": "convert", "csrf_token": token},
        cookies={SESSION_COOKIE: page.context.cookies()[0]["value"]},
        verify=PLAIN_HTTP,
        timeout=PATIENCE_SECONDS,
    )
    assert answer.status_code == 403
    assert "Your role does not allow this" in answer.text
    assert service.get(f"/jobs?table_id={table}")["items"] == []
    noted = service.get("/audit")["items"][0]
    assert (noted["action"], noted["outcome"]) == ("POST /tables/{table_id}/jobs", "denied")


@pytest.mark.thorough
def test_documentation_shows_every_call_within_its_security_policy(
    page: Page, service: RunningService
) -> None:
    page.goto(f"{service.url}/docs")
    call = page.locator("#operations-jobs-request_job")
    call.locator(".opblock-summary-control").click()
    expect(call.get_by_text("Queue a job.")).to_be_visible()
    expect(call.get_by_role("button", name="Try it out")).to_be_visible()
    page.get_by_role("link", name="Icestream").click()
    expect(page).to_have_url(f"{service.url}/login")


def test_form_of_another_site_is_refused(signed_in: Page, service: RunningService) -> None:
    service.create_iceberg_table("shop.targets")
    table = service.enroll("shop.targets")
    session = {SESSION_COOKIE: signed_in.context.cookies()[0]["value"]}
    for data in ({"kind": "convert"}, {"kind": "convert", "csrf_token": "guessed"}):
        answer = httpx.post(
            f"{service.url}/tables/{table}/jobs",
            data=data,
            cookies=session,
            verify=PLAIN_HTTP,
            timeout=PATIENCE_SECONDS,
        )
        assert answer.status_code == 403
    login = {"api_key": service.admin_key}
    answer = httpx.post(
        f"{service.url}/login",
        data=login,
        headers={"Sec-Fetch-Site": "cross-site"},
        verify=PLAIN_HTTP,
        timeout=PATIENCE_SECONDS,
    )
    assert answer.status_code == 403
    assert service.get(f"/jobs?table_id={table}")["items"] == []


def test_everything_works_without_javascript(visit: Callable[..., Page], service: RunningService) -> None:
    service.create_iceberg_table("shop.plain", delete_files=2)
    table = service.enroll("shop.plain")
    page = visit(java_script_enabled=False)
    page.goto(f"{service.url}/tables/{table}")
    page.get_by_label("API key").fill(service.admin_key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="shop.plain")).to_be_visible()
    expect(page.locator("#measured time")).to_contain_text("UTC")
    page.get_by_role("button", name="Convert").click()
    expect(page.locator("#status")).to_have_text("queued")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#status")).to_have_text("cancelled")


def test_times_are_in_the_viewers_zone_with_utc_on_hover(
    visit: Callable[..., Page], service: RunningService
) -> None:
    PlayedWorker(service, "worker-in-utc")
    page = visit(timezone_id="Pacific/Kiritimati", locale="en-GB")
    sign_in(page.context, service)
    page.goto(f"{service.url}/workers")
    time = page.get_by_role("row").filter(has_text="worker-in-utc").locator("time").first
    in_utc = time.get_attribute("title") or ""
    hour = int(in_utc[11:13])
    expect(time).to_have_text(re.compile(rf"\b{(hour + 14) % 24:02}:{in_utc[14:16]}:"))


def test_a_time_is_typed_in_the_viewers_zone_and_what_hangs_over_a_page_is_closed_by_escape(
    visit: Callable[..., Page], service: RunningService
) -> None:
    service.create_iceberg_table("shop.nights")
    table = service.enroll("shop.nights")
    page = visit(timezone_id="Pacific/Kiritimati")
    sign_in(page.context, service)
    page.goto(f"{service.url}/tables/{table}")
    page.get_by_text("More jobs").click()
    expect(page.get_by_label("Not before (Pacific/Kiritimati; empty for at once)")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_label("Not before")).to_be_hidden()
    expect(page.locator("summary", has_text="More jobs")).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_label("Not before").fill("2099-01-01T02:30")
    # What is typed stays while the page follows what others do.
    for action, state in (("pause", "paused"), ("resume", "healthy")):
        service.post(f"/tables/{table}/{action}")
        expect(page.locator("#status")).to_have_text(re.compile(rf"{state}\s*$"))
    page.get_by_role("button", name="Queue the job").click()
    expect(page.locator("#outcome time")).to_have_attribute("title", "2098-12-31 12:30:00 UTC")


def test_ids_can_be_copied(visit: Callable[..., Page], service: RunningService) -> None:
    page = visit(permissions=["clipboard-read", "clipboard-write"])
    sign_in(page.context, service)
    page.goto(f"{service.url}/catalogs/local")
    # The button says it for a moment only.
    page.evaluate(
        """() => {
            const isSaid = () => document.querySelector("[aria-label=Copied]");
            const watch = (done) => new MutationObserver(() => isSaid() && done())
                .observe(document, { attributes: true, subtree: true });
            window.said = new Promise(watch);
        }"""
    )
    page.get_by_role("button", name="Copy the catalog's id").click()
    page.evaluate("window.said")
    assert page.evaluate("navigator.clipboard.readText()") == service.get("/catalogs/local")["id"]


def test_a_page_is_found_by_keyboard_from_any_other(signed_in: Page, service: RunningService) -> None:
    service.create_iceberg_table("shop.returns", delete_files=0, deletes_each=0)
    table = service.enroll("shop.returns")
    signed_in.goto(f"{service.url}/jobs")
    signed_in.keyboard.press("Control+k")
    words = signed_in.get_by_label("Name or id")
    expect(words).to_be_focused()
    signed_in.keyboard.type("returns")
    expect(signed_in.get_by_role("dialog").get_by_role("link", name="shop.returns")).to_be_visible()
    signed_in.keyboard.press("ArrowDown")
    signed_in.keyboard.press("Enter")
    expect(signed_in).to_have_url(f"{service.url}/tables/{table}")

    # Enter opens what is found first, also before it is shown.
    for typed, path in (("returns", f"/tables/{table}"), ("connect a catalog", "/catalogs/new")):
        signed_in.goto(f"{service.url}/jobs")
        signed_in.keyboard.press("Control+k")
        signed_in.keyboard.type(typed)
        signed_in.keyboard.press("Enter")
        expect(signed_in).to_have_url(f"{service.url}{path}")

    signed_in.get_by_role("link", name="Search").click()
    signed_in.keyboard.press("Escape")
    expect(words).to_be_hidden()


def test_the_first_stop_of_a_page_leads_past_its_bar(signed_in: Page, service: RunningService) -> None:
    signed_in.goto(f"{service.url}/jobs")
    signed_in.keyboard.press("Tab")
    expect(signed_in.get_by_role("link", name="Skip to content")).to_be_focused()
    signed_in.keyboard.press("Enter")
    signed_in.keyboard.press("Tab")
    expect(signed_in.locator("main :focus")).to_be_visible()


def test_what_asks_before_it_is_done_is_answered_by_keys_alone(
    signed_in: Page, service: RunningService
) -> None:
    service.post("/api-keys", name="spare", role="viewer")
    signed_in.goto(f"{service.url}/api-keys")
    row = signed_in.get_by_role("row").filter(has_text="spare")
    question = row.locator("summary", has_text="Revoke")
    answer = row.get_by_role("button", name="Revoke key")
    while not question.evaluate("question => question === document.activeElement"):
        signed_in.keyboard.press("Tab")
    for last, is_revoked in (("Escape", False), ("Enter", True)):
        expect(answer).to_be_hidden()
        signed_in.keyboard.press("Enter")
        expect(answer).to_be_visible()
        signed_in.keyboard.press("Tab")
        expect(answer).to_be_focused()
        signed_in.keyboard.press(last)
        if not is_revoked:
            expect(question).to_be_focused()
    expect(row).to_contain_text("revoked")


def test_a_search_that_fails_is_told_and_leaves_the_page_as_it_is(
    signed_in: Page, service: RunningService
) -> None:
    signed_in.goto(f"{service.url}/jobs")
    signed_in.evaluate(
        """() => {
            const known = window.fetch;
            window.fetch = async (asked) => {
                if (asked.endsWith("=cut")) throw new TypeError("Failed to fetch");
                return asked.endsWith("=busy") ? new Response("", { status: 503 }) : known(asked);
            };
        }"""
    )
    signed_in.keyboard.press("Control+k")
    failed = "The search could not be answered: try again."
    for typed, said in {"cut": failed, "no such": "Nothing has", "busy": failed}.items():
        signed_in.get_by_label("Name or id").fill(typed)
        expect(signed_in.get_by_role("dialog").get_by_text(said)).to_be_visible()
    expect(signed_in).to_have_url(f"{service.url}/jobs")


def test_the_theme_that_is_chosen_is_that_of_the_next_page(
    visit: Callable[..., Page], service: RunningService
) -> None:
    page = visit(color_scheme="light")
    page.goto(service.url)
    dark, light = "rgb(14, 19, 23)", "rgb(246, 248, 250)"
    expect(page.locator("body")).to_have_css("background-color", light)
    page.get_by_role("button", name="Theme: system").click()
    page.get_by_role("button", name="Theme: light").click()
    expect(page.locator("body")).to_have_css("background-color", dark)
    page.goto(f"{service.url}/tables")
    expect(page.locator("body")).to_have_css("background-color", dark)
    page.get_by_role("button", name="Theme: dark").click()
    page.goto(f"{service.url}/jobs")
    expect(page.locator("body")).to_have_css("background-color", light)
