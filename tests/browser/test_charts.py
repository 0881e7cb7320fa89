"""What charts draw of the values that a page comes with: pixels, cross-hairs, zoom, all by keyboard too."""

import math
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Locator, Page, expect
from sqlmodel import col, delete, select

from service.db.database import Database, utc_now
from service.records.health import HealthSample, TableHealth, add_change, minute_of
from service.records.jobs import Attempt, Job
from tests.browser.conftest import sign_in
from tests.browser.running_service import (
    PlayedWorker,
    RunningService,
    convert_result,
    index_report,
    index_result,
)
from tests.patience import wait_until
from tests.service.health_samples import health_sample
from tests.service.test_replay import history, store

pytestmark = pytest.mark.integration
HOUR = timedelta(hours=1)
_PIXELS = """
    // The page's own canvas is no place to read from again and again.
    const pixels = (draw) => {
        const copy = new OffscreenCanvas(2000, 2000).getContext("2d", { willReadFrequently: true });
        draw(copy);
        return (x, y, width, height) => [...copy.getImageData(x, y, width, height).data];
    };
    const inkOf = (colour) => pixels((copy) => {
        copy.fillStyle = colour;
        copy.fillRect(0, 0, 1, 1);
    })(0, 0, 1, 1).slice(0, 3);
    const drawnOn = (chart) => pixels((copy) => copy.drawImage(chart.ctx.canvas, 0, 0));
"""
_HIGHEST = f"""(element, x) => {{{_PIXELS}
    // The uppermost pixel of the line's colour in a column, as the value that is drawn there.
    const chart = CHARTS.get(element);
    const {{ left, top, width, height }} = chart.bbox;
    const [red, green, blue] = inkOf(ink("accent"));
    const column = drawnOn(chart)(Math.round(left + width * x), top, 1, height);
    for (let y = 0; y < height; y++) {{
        const [r, g, b, a] = column.slice(4 * y, 4 * y + 4);
        const off = Math.abs(r - red) + Math.abs(g - green) + Math.abs(b - blue);
        if (a > 200 && off < 40) return chart.posToVal(y / devicePixelRatio, "y");
    }}
    return null;
}}"""

_COLUMNS = f"""(element, places) => {{{_PIXELS}
    // What is drawn at parts of the width.
    const chart = CHARTS.get(element);
    const {{ left, top, width, height }} = chart.bbox;
    return places.map((x) => drawnOn(chart)(Math.round(left + width * x) - 1, top, 2, height).join());
}}"""
_MARKED = """(element, x) => new Promise((done) => {
    // As if a conversion had ended then.
    const told = JSON.parse(element.dataset.plot);
    told.marks = [(told.ends - told.began) * x];
    element.dataset.plot = JSON.stringify(told);
    CHARTS.get(element).update();
    requestAnimationFrame(() => done(true));
})"""


@pytest.fixture
def table(service: RunningService) -> str:
    """One whose deletes came and went by the hour: 0, 4,000, 1,000, 3,000; before these, nobody looked."""
    if not service.iceberg.catalog.table_exists("shop.visits"):
        service.create_iceberg_table("shop.visits", delete_files=1, deletes_each=3)
    table = service.enroll("shop.visits", policy="manual")
    write_samples(
        service, table, [(4, 0), (3, 4000), (2, 1000, "healthy", 3660), (1.25, 1000, "unknown"), (1, 3000)]
    )
    return table


def write_samples(service: RunningService, table: str, told: Sequence[Any]) -> None:
    """told: hours ago, deletes, and the status and the lag unless that is healthy and this is a minute."""
    now = utc_now()
    database = Database(service.database_url)
    with database.write() as session:
        session.exec(delete(HealthSample).where(col(HealthSample.table_id) == table))
        for hours, deletes, *more in told:
            session.add(sample(table, now - HOUR * hours, deletes, *more))
    database.dispose()


def sample(
    table: str, at: datetime, deletes: int, status: str = "healthy", lag_seconds: float = 60
) -> HealthSample:
    index = {"entries": 10, "bytes": 100, "sorted_runs": 1}
    return health_sample(
        table, at, deletes, resolution="hour", lag_seconds=lag_seconds, status=status, **index
    )


def chart(page: Page, label: str) -> Locator:
    # What takes keys says so: to a picture, screen readers pass none on.
    found = page.get_by_role("application", name=re.compile(label))
    expect(found.locator("canvas")).to_be_visible()
    found.scroll_into_view_if_needed()  # where a mouse can be
    return found


def test_a_line_is_drawn_where_its_values_are(signed_in: Page, service: RunningService, table: str) -> None:
    signed_in.goto(f"{service.url}/tables/{table}")
    drawn = chart(signed_in, "Pending equality deletes over")
    heights = [drawn.evaluate(_HIGHEST, x) for x in (0.375, 0.625, 0.875)]
    assert heights == [pytest.approx(value, rel=0.06) for value in (4000, 1000, 3000)]
    signed_in.locator("#theme").click(click_count=2)
    again = [drawn.evaluate(_HIGHEST, x) for x in (0.375, 0.625, 0.875)]
    assert again == [pytest.approx(value, rel=0.06) for value in (4000, 1000, 3000)]
    assert drawn.evaluate(_HIGHEST, 0.72) is None, "nobody knows what was there"
    # Of ages, the line rises from one to the next.
    lag = chart(signed_in, "Lag over")
    assert [lag.evaluate(_HIGHEST, x) for x in (0.3, 0.45)] == [
        pytest.approx(60 + of * 3600, rel=0.06) for of in (0.2, 0.8)
    ]
    drawn.scroll_into_view_if_needed()
    before = drawn.evaluate(_COLUMNS, [0.29, 0.3, 0.31])
    assert drawn.evaluate(_MARKED, 0.3)
    after = drawn.evaluate(_COLUMNS, [0.29, 0.3, 0.31])
    assert [one != other for one, other in zip(before, after, strict=True)] == [False, True, False]


def test_the_total_of_all_tables_is_drawn_where_it_was(
    signed_in: Page, service: RunningService, table: str
) -> None:
    database = Database(service.database_url)
    with database.write() as session:
        health = session.get_one(TableHealth, table)
        health.counted_equality_deletes += 6_000
        session.add(health)
        for hours, change in ((20, 1_000), (12, 5_000)):
            add_change(session, minute_of(utc_now() - hours * HOUR), 0, change)
    database.dispose()
    signed_in.goto(f"{service.url}/?days=1")
    total = chart(signed_in, "Pending equality deletes of all tables over")
    before, after = (total.evaluate(_HIGHEST, x) for x in (0.25, 0.75))
    assert [before, after] == [pytest.approx(1_000, abs=200), pytest.approx(6_000, abs=200)]


@pytest.mark.thorough
def test_values_are_read_by_mouse_and_by_keyboard_under_one_cross_hair(
    signed_in: Page, service: RunningService, table: str
) -> None:
    signed_in.goto(f"{service.url}/tables/{table}")
    pending, lag = (chart(signed_in, label) for label in ("Pending equality deletes over", "Lag over"))
    box = pending.locator(".u-over").bounding_box()
    assert box is not None
    signed_in.mouse.move(box["x"] + box["width"] * 0.375, box["y"] + 20)
    expect(pending.locator(".readout")).to_contain_text("4,000")
    expect(lag.locator(".readout")).to_be_visible()
    signed_in.mouse.move(box["x"] + box["width"] * 0.72, box["y"] + 20)
    expect(pending.locator(".readout")).to_contain_text("not looked at, last known: 1,000")
    signed_in.mouse.move(0, 0)
    expect(pending.locator(".readout")).to_be_hidden()

    pending.focus()
    signed_in.keyboard.press("Home")
    expect(pending.locator(".readout")).to_contain_text(re.compile(": 0$"))
    for _ in range(24):
        signed_in.keyboard.press("ArrowRight")
    expect(pending.locator(".readout")).to_contain_text(": 4,000")
    expect(signed_in.locator("#plot [aria-live]").first).to_contain_text(": 4,000")


@pytest.mark.thorough
def test_a_zoom_is_that_of_all_charts_and_ends_by_escape(
    signed_in: Page, service: RunningService, table: str
) -> None:
    signed_in.goto(f"{service.url}/tables/{table}")
    pending, lag = (chart(signed_in, label) for label in ("Pending equality deletes over", "Lag over"))

    def span(of: Locator) -> float:
        return float(of.evaluate("e => CHARTS.get(e).scales.x.max - CHARTS.get(e).scales.x.min"))

    whole = span(pending)
    box = pending.locator(".u-over").bounding_box()
    assert box is not None
    signed_in.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 20)
    signed_in.mouse.down()
    signed_in.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20, steps=4)
    signed_in.mouse.up()
    assert span(pending) == pytest.approx(whole / 4, rel=0.05)
    assert span(lag) == span(pending)
    assert drawn_at(pending, 0.5) == pytest.approx(4000, rel=0.06)
    pending.focus()
    signed_in.keyboard.press("Escape")
    # The page may have followed meanwhile, to the second.
    assert [span(pending), span(lag)] == [pytest.approx(whole, rel=0.01)] * 2
    signed_in.keyboard.press("End")
    signed_in.keyboard.press("+")
    assert span(pending) < whole


@pytest.mark.thorough
def test_a_zoom_into_what_held_all_along_shows_it(
    signed_in: Page, service: RunningService, table: str
) -> None:
    signed_in.goto(f"{service.url}/tables/{table}")
    pending = chart(signed_in, "Pending equality deletes over")
    box = pending.locator(".u-over").bounding_box()
    assert box is not None
    signed_in.mouse.move(box["x"] + box["width"] * 0.39, box["y"] + 20)
    signed_in.mouse.down()
    signed_in.mouse.move(box["x"] + box["width"] * 0.48, box["y"] + 20, steps=4)
    signed_in.mouse.up()
    assert drawn_at(pending, 0.5) == pytest.approx(4000, rel=0.06)


def drawn_at(of: Locator, x: float) -> Any:
    return of.evaluate(_HIGHEST, x)


_OF_INK = f"""(element, [x, name]) => {{{_PIXELS}
    // The uppermost pixel of an ink within some pixels of a place, as the value that is drawn there.
    const chart = CHARTS.get(element);
    const {{ left, top, width, height }} = chart.bbox;
    const [red, green, blue] = inkOf(ink(name));
    // A line at the bottom is drawn below it.
    const part = drawnOn(chart)(Math.round(left + width * x) - 1, top, 3, height + 2);
    for (let at = 0; at < part.length; at += 4) {{
        const [r, g, b, a] = part.slice(at, at + 4);
        const off = Math.abs(r - red) + Math.abs(g - green) + Math.abs(b - blue);
        const y = Math.min(Math.floor(at / 12), height);
        if (a > 200 && off < 40) return chart.posToVal(y / devicePixelRatio, "y");
    }}
    return null;
}}"""


@pytest.mark.thorough
def test_a_policy_that_is_tried_is_drawn_over_what_happened(
    signed_in: Page, service: RunningService, table: str
) -> None:
    if not service.iceberg.catalog.table_exists("shop.tried"):
        service.create_iceberg_table("shop.tried")
    tried = service.enroll("shop.tried", policy="manual")
    write_samples(service, tried, [])
    database = Database(service.database_url)
    store(database, tried, history(40, utc_now() - 7 * HOUR))
    database.dispose()

    signed_in.goto(f"{service.url}/policies/new?like=standard")
    offered = signed_in.locator("#table-offered option")
    assert offered.count() > 1
    signed_in.get_by_label("Try it on").press_sequentially("Shop.Tri")
    expect(offered).to_have_count(1)
    expect(offered).to_have_attribute("value", "local.shop.tried")
    signed_in.locator("[id='settings.convert.age_seconds']").fill("1 h")
    signed_in.locator("[id='settings.convert.delete_files']").fill("1000")
    signed_in.get_by_label("Try it on").fill("local.shop.tried")
    signed_in.keyboard.press("Enter")  # tries, and saves nothing

    pending, lag, jobs, _ = (
        chart(signed_in, f"^{title} over the replayed time")
        for title in ("Pending equality deletes", "Lag", "Jobs", "A full read by Spark")
    )

    def is_drawn_as_told(drawn: Locator) -> None:
        # In the middle of intervals; what lies under another line is not looked for.
        for number in (30.5, 52.5, 70.5):
            told = drawn.evaluate(
                """(e, x) => {
                    const told = JSON.parse(e.dataset.plot);
                    return told.lines.map((line) => valueAt(line, told.ages, x * (told.ends - told.began)));
                }""",
                number / 84,
            )
            assert drawn.evaluate(_OF_INK, [number / 84, "warn"]) == pytest.approx(told[2], rel=0.06, abs=0.1)
            if told[0] != told[2]:
                found = [drawn.evaluate(_OF_INK, [number / 84, name]) for name in ("muted", "accent")]
                assert pytest.approx(told[0], rel=0.06, abs=0.1) in found

    for drawn in (pending, lag, jobs):
        is_drawn_as_told(drawn)
    signed_in.locator("#theme").click(click_count=2)
    is_drawn_as_told(pending)
    pending.focus()
    signed_in.keyboard.press("End")
    for name in ("Happened", "Present policy, replayed", "As typed below"):
        expect(pending.locator(".readout")).to_contain_text(f"{name}: ")
        expect(lag.locator(".readout")).to_contain_text(f"{name}: ")
    signed_in.get_by_text("Values as a table").click()
    expect(signed_in.get_by_role("columnheader", name="Jobs: As typed below")).to_be_visible()


_CELL = f"""(element, [x, row]) => {{{_PIXELS}
    const chart = CHARTS.get(element);
    const {{ left, top, width }} = chart.bbox;
    const y = top + (row * ROW + 6) * devicePixelRatio;
    return drawnOn(chart)(Math.round(left + width * x), y, 1, 1).slice(0, 3);
}}"""
_RUN = f"""(element, status) => {{{_PIXELS}
    // How many pixels high the only run is drawn if it has this status.
    const chart = CHARTS.get(element);
    const told = JSON.parse(element.dataset.timeline);
    told.runs[0][3] = told.statuses.indexOf(status);
    told.runs[0][4] -= 1800;  // else it may be cut off at the right edge, where an interval may end now
    element.dataset.timeline = JSON.stringify(told);
    chart.update();
    const [red, green, blue] = inkOf(ink(RUN_INKS[status]));
    const x = Math.round(chart.valToPos(told.began + told.runs[0][4], "x", true)) + 1;
    return new Promise((done) => requestAnimationFrame(() => {{
        const column = drawnOn(chart)(x, chart.bbox.top, 1, ROW * devicePixelRatio);
        done(column.filter((value, place) => place % 4 === 0 && value === red
            && column[place + 1] === green && column[place + 2] === blue).length / devicePixelRatio);
    }}));
}}"""
_IS_HATCHED = f"""(element, [x, row]) => {{{_PIXELS}
    // Lines, and nothing between them.
    const chart = CHARTS.get(element);
    const {{ left, top, width }} = chart.bbox;
    const at = [Math.round(left + width * x), top + (row * ROW + 3) * devicePixelRatio];
    const alphas = drawnOn(chart)(...at, 10, 10).filter((_, place) => place % 4 === 3);
    return alphas.some((alpha) => alpha === 0) && alphas.some((alpha) => alpha > 50);
}}"""
_HEAT = f"""(_, name) => {{{_PIXELS}
    return inkOf(getComputedStyle(document.querySelector(`.${{name}}`)).backgroundColor);
}}"""


def test_the_timeline_draws_tables_and_what_ran_and_leads_to_the_job(
    signed_in: Page, service: RunningService, table: str
) -> None:
    write_samples(service, table, [(20, 0), (12, 50), (6, 5000), (3, 5000, "unknown"), (1, 500_000)])
    job = service.request_job(table, "index")
    head = service.iceberg.head("shop.visits")
    PlayedWorker(service, "worker-7").claim().succeed(index_result(), index_report(head=head))
    signed_in.goto(f"{service.url}/timeline?search=shop.visits")
    strips = chart(signed_in, "Tables over time")
    # The right edge is the end of the interval of now.
    told = strips.evaluate("e => { const t = timelineData(e); return [t.began, t.ends, t.now]; }")

    def x(hours: float) -> float:
        return float((told[2] - hours * 3600 - told[0]) / (told[1] - told[0]))

    for hours, step in ((16, 0), (9, 1), (4, 2), (0.5, 3)):
        assert strips.evaluate(_CELL, [x(hours), 0]) == strips.evaluate(_HEAT, f"heat-{step}"), hours
    assert [strips.evaluate(_IS_HATCHED, [x(hours), 0]) for hours in (4, 2)] == [False, True]
    box = strips.locator(".u-over").bounding_box()
    assert box is not None
    signed_in.mouse.move(box["x"] + box["width"] * x(4), box["y"] + 10)
    expect(strips.locator(".readout")).to_contain_text("at most 5,000 pending")
    signed_in.mouse.move(box["x"] + box["width"] * x(2), box["y"] + 10)
    expect(strips.locator(".readout")).to_contain_text("not looked at, last known: 5,000 pending")
    lanes = chart(signed_in, "What ran on each worker")
    expect(lanes.locator(".u-cursor-x")).to_be_visible()
    # Down the page is no click, and a click with a key or the middle button opens another tab, as with links.
    signed_in.mouse.down()
    signed_in.mouse.move(box["x"] + box["width"] * x(2), box["y"] + 22)
    signed_in.mouse.up()
    for how in ({"modifiers": ["ControlOrMeta"]}, {"button": "middle"}):
        with signed_in.context.expect_page() as opened:
            strips.locator(".u-over").click(position={"x": box["width"] * x(2), "y": 10}, **how)
        assert opened.value.url == f"{service.url}/tables/{table}"
        opened.value.close()
    strips.focus()
    signed_in.keyboard.press("Home")
    expect(strips.locator(".readout")).to_contain_text("nothing measured")
    # A run that failed is higher than one that did not, and its colour is its own where people force theirs.
    assert [strips.evaluate(_RUN, status) for status in ("failed", "succeeded")] == [9, 5]
    signed_in.emulate_media(forced_colors="active")
    inks = signed_in.evaluate("['good', 'bad', 'accent-strong', 'muted'].map((name) => ink(name))")
    assert len(set(inks)) == 4
    signed_in.emulate_media(forced_colors="none")
    # The run ended just now, in the last interval or the one before it.
    signed_in.keyboard.press("End")
    if "index on worker-7" not in (strips.locator(".readout").text_content() or ""):
        signed_in.keyboard.press("ArrowLeft")
    expect(strips.locator(".readout")).to_contain_text("index on worker-7: succeeded")
    signed_in.keyboard.press("Enter")
    signed_in.wait_for_url(f"{service.url}/jobs/{job}")
    # Coloured by lag: a minute at each sample, and what has passed since, while anything is pending.
    signed_in.goto(f"{service.url}/timeline?search=shop.visits&colour=lag")
    strips = chart(signed_in, "Tables over time, by lag")
    for hours, step in ((16, 0), (9, 4), (0.5, 3)):
        assert strips.evaluate(_CELL, [x(hours), 0]) == strips.evaluate(_HEAT, f"heat-{step}"), hours


@pytest.mark.thorough
def test_what_polls_find_is_drawn_in_the_timeline_without_another_look(
    signed_in: Page, service: RunningService
) -> None:
    service.create_iceberg_table("shop.drawn")
    service.enroll("shop.drawn", policy="manual")
    page = signed_in.context.new_page()
    page.goto(f"{service.url}/timeline?search=shop.drawn")
    expect(page.locator("#connection-words")).to_have_text("Live")
    page.route("**", lambda route: route.abort())
    strips = chart(page, "Tables over time")
    x = strips.evaluate("e => { const t = timelineData(e); return (t.now - t.began) / (t.ends - t.began); }")
    service.iceberg.delete_keys("shop.drawn", list(range(150)))
    page.wait_for_function("() => [...CHARTS.keys()].some((e) => timelineData(e).pending[0].includes(150))")
    assert strips.evaluate(_CELL, [x - 0.001, 0]) == strips.evaluate(_HEAT, "heat-2")
    page.close()


@pytest.mark.thorough
def test_the_grid_of_latest_jobs_is_walked_through_by_keyboard(
    signed_in: Page, service: RunningService, table: str
) -> None:
    if not service.iceberg.catalog.table_exists("shop.views"):
        service.create_iceberg_table("shop.views")
    other = service.enroll("shop.views", policy="manual")
    jobs = []
    for of, kind in ((table, "index"), (table, "verify"), (other, "index")):
        jobs.append(service.request_job(of, kind))
        PlayedWorker(service, "worker-7").claim().succeed(index_result())
    signed_in.goto(f"{service.url}/timeline?search=shop.vi&sort=name")
    views, visits = signed_in.locator(".cells").all()
    views.locator("a").focus()
    signed_in.keyboard.press("ArrowDown")
    expect(visits.locator(f'a[href="/jobs/{jobs[1]}"]')).to_be_focused()
    signed_in.keyboard.press("ArrowLeft")
    first = visits.locator(f'a[href="/jobs/{jobs[0]}"]')
    expect(first).to_be_focused()
    # The page may have come anew in between.
    signed_in.wait_for_function(
        "() => getComputedStyle(document.activeElement, '::after').content.startsWith('\"index succeeded, ')"
    )
    # A shorter row is met at its own end, and Tab leaves a row.
    signed_in.keyboard.press("ArrowUp")
    expect(views.locator("a")).to_be_focused()
    assert visits.locator("a").evaluate_all("cells => cells.map((cell) => cell.tabIndex)") == [-1, 0]
    first.focus()
    signed_in.keyboard.press("Enter")
    signed_in.wait_for_url(f"{service.url}/jobs/{jobs[0]}")


@pytest.mark.thorough
def test_a_finger_reads_first_opens_by_a_second_tap_and_zooms_along_a_chart(
    visit: Callable[..., Page], service: RunningService, table: str
) -> None:
    page = visit(has_touch=True, viewport={"width": 800, "height": 600})
    sign_in(page.context, service)
    page.goto(f"{service.url}/tables/{table}")
    pending = chart(page, "Pending equality deletes over")
    box = pending.locator(".u-over").bounding_box()
    assert box is not None
    page.touchscreen.tap(box["x"] + box["width"] * 0.375, box["y"] + 20)
    expect(pending.locator(".readout")).to_contain_text("4,000")
    whole = pending.evaluate("e => CHARTS.get(e).scales.x.max - CHARTS.get(e).scales.x.min")
    drag_by_finger(page, box, 0.25, 0.5)
    shown = pending.evaluate("e => CHARTS.get(e).scales.x.max - CHARTS.get(e).scales.x.min")
    assert shown == pytest.approx(whole / 4, rel=0.1)

    page.goto(f"{service.url}/timeline?search=shop.visits")
    strips = chart(page, "Tables over time")
    box = strips.locator(".u-over").bounding_box()
    assert box is not None
    with page.expect_navigation():
        drag_by_finger(page, box, 0.8, 0.9)
    assert "since=" in page.url
    strips = chart(page, "Tables over time")
    box = strips.locator(".u-over").bounding_box()
    assert box is not None
    page.touchscreen.tap(box["x"] + box["width"] * 0.5, box["y"] + 10)
    expect(strips.locator(".readout")).to_contain_text("Tap again to open it")
    with page.expect_navigation():
        page.touchscreen.tap(box["x"] + box["width"] * 0.5, box["y"] + 10)
    assert page.url == f"{service.url}/tables/{table}"


def drag_by_finger(page: Page, box: Any, begin: float, end: float) -> None:
    session = page.context.new_cdp_session(page)

    def touch(kind: str, *places: float) -> None:
        points = [{"x": box["x"] + box["width"] * place, "y": box["y"] + 10} for place in places]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", begin)
    for step in range(1, 9):
        touch("touchMove", begin + (end - begin) * step / 8)
    touch("touchEnd")
    session.detach()


@pytest.mark.thorough
def test_what_is_dragged_over_in_the_timeline_is_asked_for_in_finer_intervals(
    signed_in: Page, service: RunningService, table: str
) -> None:
    signed_in.goto(f"{service.url}/timeline?search=shop.visits")
    strips = chart(signed_in, "Tables over time")
    assert strips.evaluate("e => timelineData(e).interval") == 900
    box = strips.locator(".u-over").bounding_box()
    assert box is not None
    with signed_in.expect_navigation():
        signed_in.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 10)
        signed_in.mouse.down()
        signed_in.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 10, steps=4)
        signed_in.mouse.up()
    strips = chart(signed_in, "Tables over time")
    assert strips.evaluate("e => timelineData(e).interval") == 120
    assert "search=shop.visits" in signed_in.url
    strips.focus()
    with signed_in.expect_navigation():
        signed_in.keyboard.press("-")
    told = chart(signed_in, "Tables over time").evaluate("e => timelineData(e).ends - timelineData(e).began")
    assert math.isclose(told, 2 * 2.4 * 3600, rel_tol=0.2)


@pytest.mark.thorough
def test_a_timeline_grows_by_keyboard_as_far_as_there_are_timelines(
    signed_in: Page, service: RunningService, table: str
) -> None:
    until = utc_now()
    since = until - timedelta(days=70)
    signed_in.goto(
        f"{service.url}/timeline?since={since:%Y-%m-%dT%H:%M:%SZ}&until={until:%Y-%m-%dT%H:%M:%SZ}"
    )
    chart(signed_in, "Tables over time").focus()
    with signed_in.expect_navigation():
        signed_in.keyboard.press("-")
    began, ends, now = chart(signed_in, "Tables over time").evaluate(
        "e => { const t = timelineData(e); return [t.began, t.ends, t.now]; }"
    )
    assert 98 * 86_400 < ends - began < 101 * 86_400
    assert ends - now <= 86_400, "nothing is asked for of what is to come"
    # Whoever has no mouse is where they were.
    for key in ("+", "+"):
        expect(chart(signed_in, "Tables over time").locator(".readout")).to_contain_text("shop.visits")
        with signed_in.expect_navigation():
            signed_in.keyboard.press(key)
    signed_in.get_by_role("link", name="Earlier").focus()
    with signed_in.expect_navigation():
        signed_in.keyboard.press("Enter")
    expect(signed_in.get_by_role("link", name="Earlier")).to_be_focused()
    with signed_in.expect_navigation():
        chart(signed_in, "Tables over time").press("Escape")
    assert signed_in.url == f"{service.url}/timeline"
    assert signed_in.get_by_role("link", name="24 hours").get_attribute("aria-current") == "true"


_ROW = f"""(element, [x, row, down = 0.5]) => {{{_PIXELS}
    // What is drawn in a row at a value of the axis, so far down in it: its ink by name, or null.
    const chart = CHARTS.get(element);
    const {{ top, height }} = chart.bbox;
    const told = element.dataset.bars ?? element.dataset.story;
    const rows = told ? JSON.parse(told).rows.length : Math.round(height / devicePixelRatio / ROW);
    const y = Math.round(top + height * (row + down) / rows);
    const [r, g, b, a] = drawnOn(chart)(Math.round(chart.valToPos(x, "x", true)), y, 1, 1);
    const isNear = (name) => {{
        const [red, green, blue] = inkOf(ink(name));
        return a > 200 && Math.abs(r - red) + Math.abs(g - green) + Math.abs(b - blue) < 12;
    }};
    return ["accent", "accent-strong", "bad", "warn", "good", "muted"].find(isNear) ?? null;
}}"""


_BAR = f"""(element, [x, bar]) => {{{_PIXELS}
    // The same of one of the bars of the only row; a faint one is drawn with part of its ink.
    const chart = CHARTS.get(element);
    const {{ top, height }} = chart.bbox;
    const y = Math.round(top + 4 * devicePixelRatio + (height - 8 * devicePixelRatio) * (bar + 0.5) / 4);
    const [r, g, b, a] = drawnOn(chart)(Math.round(chart.valToPos(x, "x", true)), y, 1, 1);
    const name = ["accent", "warn"].find((one) => {{
        const [red, green, blue] = inkOf(ink(one));
        return a > 80 && Math.abs(r - red) + Math.abs(g - green) + Math.abs(b - blue) < 24;
    }});
    return name ? `${{name}}${{a < 200 ? "-faint" : ""}}` : null;
}}"""


def ran(
    service: RunningService, table: str, kind: str, worker: str, hours: tuple[float, float], *, failed: bool
) -> str:
    """A job that ran from so many hours ago until so many; 0 for one that runs, which holds up no other."""
    job = service.request_job(table, kind, dry_run=not hours[1])
    played = PlayedWorker(service, worker).claim()
    began, ended = (utc_now() - HOUR * ago for ago in hours)
    if failed:
        played.fail()
    elif hours[1]:
        played.succeed(index_result())
    database = Database(service.database_url)
    with database.write() as session:
        made = session.get_one(Job, job)
        attempt = session.get_one(Attempt, (job, 1))
        made.created_at = made.started_at = attempt.started_at = began
        made.ended_at = attempt.ended_at = ended if hours[1] else None
    database.dispose()
    return job


@pytest.mark.thorough
def test_workers_are_drawn_with_what_they_ran_when_and_lead_to_it(
    signed_in: Page, service: RunningService, table: str
) -> None:
    write_samples(service, table, [(20, 5000)])
    verified = ran(service, table, "verify", "worker-8", (12, 8), failed=False)
    failed = ran(service, table, "index", "worker-8", (10, 6), failed=True)
    ran(service, table, "convert", "worker-9", (3, 0), failed=False)
    signed_in.goto(f"{service.url}/timeline?search=shop.visits")
    strips = chart(signed_in, "Tables over time")
    lanes = chart(signed_in, "What ran on each worker")
    began, ends, now = lanes.evaluate(
        "() => { const { began, ends, now } = timelineData(document.getElementById('strips'));"
        " return [began, ends, now]; }"
    )

    def drawn() -> list[list[Any]]:
        """Of each row, what is drawn so many hours ago: in lanes, and on the strip of the table."""
        times = [now - hours * 3600 for hours in (12.5, 11, 9, 7, 5, 3.5, 1)]
        return [
            *([lanes.evaluate(_ROW, [time, row]) for time in times] for row in range(3)),
            [strips.evaluate(_ROW, [time, 0, 0.8]) for time in times],
        ]

    expected = [
        [None, "good", "good", None, None, None, None],
        # What ran on the same worker meanwhile has a lane of its own.
        [None, None, "bad", "bad", None, None, None],
        [None, None, None, None, None, None, "accent-strong"],
        [None, "good", "bad", "bad", None, None, "accent-strong"],
    ]
    wait_until(lambda: drawn() == expected, "runs to be drawn")
    signed_in.locator("#theme").click(click_count=2)
    wait_until(lambda: drawn() == expected, "runs to be drawn in the other theme")

    def point(hours: float, row: int) -> tuple[float, float]:
        box = lanes.locator(".u-over").bounding_box()
        assert box is not None
        across = (now - hours * 3600 - began) / (ends - began)
        return box["x"] + box["width"] * across, box["y"] + 24 * (row + 0.5)

    signed_in.mouse.move(*point(7, 1))
    expect(lanes.locator(".readout")).to_contain_text("index of shop.visits: failed, 4\N{NO-BREAK SPACE}h")
    hairs = [one.locator(".u-cursor-x") for one in (lanes, strips)]
    places = [hair.evaluate("hair => hair.getBoundingClientRect().x") for hair in hairs]
    assert places == [pytest.approx(point(7, 1)[0], abs=2)] * 2
    expect(strips.locator(".readout")).to_be_hidden()
    signed_in.mouse.click(*point(7, 1))
    signed_in.wait_for_url(f"{service.url}/jobs/{failed}")

    signed_in.goto(f"{service.url}/timeline?search=shop.visits")
    chart(signed_in, "What ran on each worker")
    signed_in.mouse.click(*point(5, 0))
    signed_in.wait_for_url(f"{service.url}/jobs?worker=worker-8&until=*")
    expect(signed_in.locator("#jobs tbody tr")).to_have_count(2)

    signed_in.goto(f"{service.url}/timeline?search=shop.visits")
    chart(signed_in, "What ran on each worker")
    with signed_in.expect_navigation():
        signed_in.mouse.move(*point(12.5, 0))
        signed_in.mouse.down()
        signed_in.mouse.move(*point(7, 0), steps=4)
        signed_in.mouse.up()
    lanes = chart(signed_in, "What ran on each worker")
    zoomed = lanes.evaluate("e => CHARTS.get(e).scales.x.max - CHARTS.get(e).scales.x.min")
    assert zoomed == pytest.approx(5.5 * 3600, rel=0.1)
    # What ends at the edge may be a pixel beyond it.
    assert [row[:3] for row in drawn()[:2]] == [row[:3] for row in expected[:2]]
    lanes.focus()
    signed_in.keyboard.press("Home")
    for _ in range(30):
        signed_in.keyboard.press("ArrowRight")
    signed_in.keyboard.press("Enter")
    signed_in.wait_for_url(f"{service.url}/jobs/{verified}")


@pytest.mark.thorough
def test_a_job_that_waits_is_a_hollow_bar_below_what_ran_and_leads_to_it(
    signed_in: Page, service: RunningService, table: str
) -> None:
    ran(service, table, "verify", "worker-7", (4, 2), failed=False)
    job = service.request_job(table, "index")
    database = Database(service.database_url)
    with database.write() as session:
        session.get_one(Job, job).created_at = utc_now() - 6 * HOUR
    database.dispose()
    signed_in.goto(f"{service.url}/timeline?search=shop.visits")
    strips = chart(signed_in, "Tables over time")
    now, high = strips.evaluate("e => [timelineData(e).now, CHARTS.get(e).bbox.height]")

    def drawn() -> list[list[Any]]:
        """So many hours ago: the upper edge of a bar, what is in it, and the lower edge."""
        return [
            [strips.evaluate(_ROW, [now - hours * 3600, 0, 1 - up / high]) for up in (7, 5, 3)]
            for hours in (7, 5, 3, 1)
        ]

    hollow = ["muted", None, "muted"]
    assert drawn() == [[None] * 3, hollow, ["good"] * 3, hollow]
    signed_in.locator("#theme").click(click_count=2)
    wait_until(lambda: drawn() == [[None] * 3, hollow, ["good"] * 3, hollow], "the other theme")
    lanes = chart(signed_in, "What ran on each worker")
    assert [lanes.evaluate(_ROW, [now - hours * 3600, 0]) for hours in (5, 3, 1)] == [None, "good", None]
    box = strips.locator(".u-over").bounding_box()
    assert box is not None
    x = strips.evaluate("(e, time) => CHARTS.get(e).valToPos(time, 'x')", now - 5 * 3600)
    signed_in.mouse.move(box["x"] + x, box["y"] + 19)
    expect(strips.locator(".readout")).to_contain_text("index: waits for a worker, 6\N{NO-BREAK SPACE}h")
    signed_in.mouse.click(box["x"] + x, box["y"] + 19)
    signed_in.wait_for_url(f"{service.url}/jobs/{job}")

    def edges() -> set[str | None]:
        """What the upper edge of the bar is drawn with, along it."""
        shown = chart(signed_in, "Tables over time")
        times = [now - (5 + minute / 60) * 3600 for minute in range(0, 50, 5)]
        return {shown.evaluate(_ROW, [time, 0, 1 - 7 / high]) for time in times}

    signed_in.goto(f"{service.url}/timeline?search=shop.visits")
    assert edges() == {"muted"}
    database = Database(service.database_url)
    with database.write() as session:
        session.get_one(Job, job).available_at = utc_now() + 24 * HOUR
    database.dispose()
    signed_in.goto(f"{service.url}/timeline?search=shop.visits")
    assert edges() == {"muted", None}, "no worker could have it: it waits for a time"
    box = strips.locator(".u-over").bounding_box()
    assert box is not None
    signed_in.mouse.move(box["x"] + x, box["y"] + 19)
    expect(strips.locator(".readout")).to_contain_text("index: waits until ")


_CUT = """async (element) => {
    // What is written beyond the right edge, at widths of windows that people have.
    const chart = CHARTS.get(element);
    const write = chart.ctx.fillText;
    const cut = new Set();
    let number = 0;
    chart.ctx.fillText = function (text, x, y) {
        number += 1;
        const length = this.measureText(text).width;
        if (x + (this.textAlign === "center" ? length / 2 : 0) > this.canvas.width) cut.add(text);
        return write.call(this, text, x, y);
    };
    for (let width = 800; width <= 1500; width += 20) {
        chart.setSize({ width, height: chart.height });
        await new Promise((drawn) => setTimeout(drawn));
    }
    return [number > 350, [...cut]];
}"""


def test_no_label_of_an_axis_is_cut_by_the_edge(signed_in: Page, service: RunningService, table: str) -> None:
    # A day ends soon after midnight, at which a tick has the longest words.
    until = utc_now().replace(hour=0, minute=15, second=0, microsecond=0)
    span = {
        "since": f"{until - timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}",
        "until": f"{until:%Y-%m-%dT%H:%M:%SZ}",
    }
    signed_in.goto(f"{service.url}/timeline?{urlencode(span)}")
    assert chart(signed_in, "Tables over time").evaluate(_CUT) == [True, []]


@pytest.mark.thorough
def test_the_x_ray_draws_runs_as_large_and_as_dead_as_they_are(
    signed_in: Page, service: RunningService, table: str
) -> None:
    service.request_job(table, "index")
    head = service.iceberg.head("shop.visits")
    report = index_report(head=head, dead_ratio=0.25, coverage=0.75)
    PlayedWorker(service, "worker-7").claim().succeed(index_result(), report)
    service.request_job(table, "convert")
    PlayedWorker(service, "worker-7").claim().succeed(convert_result())
    database = Database(service.database_url)
    with database.write() as session:
        for job in session.exec(select(Job).where(Job.table_id == table, Job.kind == "convert")):
            job.ended_at = utc_now() - 48 * HOUR
    database.dispose()
    signed_in.goto(f"{service.url}/tables/{table}/index")
    runs = chart(signed_in, "Sorted runs of id")

    def drawn() -> list[Any]:
        places = [(20e6, 0), (39e6, 0), (42e6, 0), (53e6, 0), (55e6, 0), (3e6, 1), (7e6, 1)]
        return [runs.evaluate(_ROW, list(place)) for place in places]

    # 53.8 MB of which a quarter is dead, and 6 MB.
    expected = ["accent", "accent", "bad", "bad", None, "accent", None]
    assert drawn() == expected
    signed_in.locator("#theme").click(click_count=2)
    assert drawn() == expected
    partitions = chart(signed_in, "Coverage of partitions by id")
    assert [partitions.evaluate(_ROW, [files, 0]) for files in (70, 74, 94)] == ["accent", "warn", "warn"]
    runs.focus()
    signed_in.keyboard.press("ArrowDown")
    signed_in.keyboard.press("ArrowDown")
    expect(runs.locator(".readout")).to_contain_text("Level 0")
    expect(runs.locator(".readout")).to_contain_text("6.0 MB in 1 file")
    expect(signed_in.locator("#xray [aria-live]").first).to_contain_text("2,000,000 entries, 0% of them dead")
    # Three deletes, however old they are by now.
    ages = chart(signed_in, "Pending deletes by id and age")
    rows = ages.evaluate("e => JSON.parse(e.dataset.bars).rows.map((row) => row[3][0][0])")
    assert [ages.evaluate(_ROW, [1.5, row]) for row in range(len(rows))] == [
        "accent" if value else None for value in rows
    ]
    assert sum(rows) == 3
    # Index and scan as predicted, which are fainter, and as measured: 0.9 and 1.2 s, 3.6 s and none.
    costs = chart(signed_in, "What lookups and scans took")
    assert [costs.evaluate(_BAR, [x, 0]) for x in (0.8, 1.0)] == ["accent-faint", None]
    assert [costs.evaluate(_BAR, [x, 1]) for x in (1.1, 1.3)] == ["accent", None]
    assert [costs.evaluate(_BAR, [x, 2]) for x in (3.3, 3.7)] == ["warn-faint", None]
    assert costs.evaluate(_BAR, [0.1, 3]) is None
    costs.focus()
    signed_in.keyboard.press("ArrowDown")
    # Of another day than today, the day is said.
    expect(costs.locator(".readout")).to_have_text(re.compile(r"^[A-Z][a-z]{2} \d+ \d\d:\d\d"))


_LOOKS = """(element, more) => new Promise((told) => {
    // How often styles are asked for while the story is drawn with more items in each row.
    const story = JSON.parse(element.dataset.story);
    for (const row of story.rows) row.push(...Array(more).fill(row.at(-1)));
    element.dataset.story = JSON.stringify(story);
    const ask = window.getComputedStyle;
    let looks = 0;
    window.getComputedStyle = (...about) => { looks += 1; return ask(...about); };
    CHARTS.get(element).update();
    requestAnimationFrame(() => {
        window.getComputedStyle = ask;
        told(looks);
    });
})"""


@pytest.mark.thorough
def test_a_job_draws_its_attempts_stages_and_moments_and_says_them_by_keyboard(
    signed_in: Page, service: RunningService, table: str
) -> None:
    job = service.request_job(table, "index")
    worker = PlayedWorker(service, "worker-7").claim()
    worker.report("plan", decisions=["The whole table is indexed"])
    worker.log("The store hesitates", "warning")
    worker.succeed(index_result(), index_report(head=service.iceberg.head("shop.visits")))
    # As if it had taken as long as its stages say.
    database = Database(service.database_url)
    with database.write() as session:
        made = session.get_one(Job, job)
        (attempt,) = session.exec(select(Attempt).where(Attempt.job_id == job)).all()
        made.created_at -= timedelta(seconds=9)  # a later end would be corrected
        attempt.started_at = made.created_at + timedelta(seconds=1)
        made.ended_at = attempt.ended_at = made.created_at + timedelta(seconds=9)
    database.dispose()
    signed_in.goto(f"{service.url}/jobs/{job}")
    story = chart(signed_in, "Attempts, stages and events of the job")
    rows = story.evaluate("e => JSON.parse(e.dataset.story).rows.map(([name]) => name)")
    assert rows[:4] == ["Waiting", "Attempts", "Plan", "Index"]

    def at(seconds: float, row: str) -> Any:
        return story.evaluate(_ROW, [seconds, rows.index(row)])

    # 0.21 s of plan, then 6.84 s of indexing, from the first second on.
    expected = {
        "Waiting": {0.5: "muted", 2: None},
        "Attempts": {0.5: None, 2: "good", 8.5: "good"},
        "Plan": {1.1: "accent", 2: None},
        "Index": {1.1: None, 2: "accent", 8: "accent", 8.5: None},
    }

    def is_drawn(since: float = 0, until: float = 9) -> bool:
        drawn = {row: {each: at(each, row) for each in told} for row, told in expected.items()}
        return all(
            drawn[row][each] == ink
            for row, told in expected.items()
            for each, ink in told.items()
            if since <= each <= until
        )

    assert is_drawn()
    signed_in.locator("#theme").click(click_count=2)
    wait_until(is_drawn, "the story to be drawn in the other theme")
    story.scroll_into_view_if_needed()  # from the button of themes
    box = story.locator(".u-over").bounding_box()
    assert box is not None
    left, top = box["x"], box["y"]

    def x_of(seconds: float) -> float:
        return left + float(story.evaluate("(e, x) => CHARTS.get(e).valToPos(x, 'x')", seconds))

    # A zoom by the mouse draws the same things where they are then.
    before, span = x_of(1.2) - x_of(1), story.evaluate("e => CHARTS.get(e).scales.x.max")
    signed_in.mouse.move(x_of(0.7), top + 12)
    signed_in.mouse.down()
    signed_in.mouse.move(x_of(3), top + 12, steps=4)
    signed_in.mouse.up()
    shown = story.evaluate("e => [CHARTS.get(e).scales.x.min, CHARTS.get(e).scales.x.max]")
    assert shown == [pytest.approx(0.7, abs=0.05), pytest.approx(3, abs=0.05)]
    assert x_of(1.2) - x_of(1) == pytest.approx(before * span / 2.3, rel=0.1)
    wait_until(lambda: is_drawn(0.8, 2.9), "the part to be drawn")
    signed_in.mouse.dblclick(left + 5, top + 12)
    wait_until(is_drawn, "all of it to be drawn again")
    signed_in.mouse.move(0, 0)
    readout = story.locator(".readout")
    story.focus()
    for _ in range(rows.index("Warnings") + 1):
        signed_in.keyboard.press("ArrowDown")
    signed_in.keyboard.press("End")
    expect(readout).to_contain_text("The store hesitates")
    expect(signed_in.locator("#timeline [aria-live]")).to_contain_text("The store hesitates")
    signed_in.keyboard.press("ArrowUp")
    whole = story.evaluate("e => CHARTS.get(e).scales.x.max - CHARTS.get(e).scales.x.min")
    signed_in.keyboard.press("+")
    assert story.evaluate("e => CHARTS.get(e).scales.x.max - CHARTS.get(e).scales.x.min") < whole
    signed_in.keyboard.press("Escape")
    assert story.evaluate("e => CHARTS.get(e).scales.x.max - CHARTS.get(e).scales.x.min") == whole
    signed_in.mouse.move(left + box["width"] * 0.5, top + 24 * (rows.index("Attempts") + 0.5))
    expect(readout).to_contain_text("Attempt 1 on worker-7: succeeded")
    looks = story.evaluate(_LOOKS, 0)
    assert story.evaluate(_LOOKS, 100) == looks > 0, "each ink is looked up once"
