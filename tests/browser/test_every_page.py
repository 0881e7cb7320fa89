"""What holds for every page: the screenshots' furnished service, page by page."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, Page, Response, expect
from starlette.routing import compile_path

from tests.access import DECISIONS
from tests.browser.conftest import Misdeeds, sign_in
from tests.browser.running_service import RunningService, running_service
from tests.browser.screenshots import ACTS, THEMES, WIDTHS, Pages, find_key, furnish, guide, open_looks
from tests.service.test_access import is_page
from tests.thorough import EXHAUSTIVE, THOROUGH, first_always

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningService, Pages]]:
    with running_service(tmp_path_factory.mktemp("furnished")) as service:
        yield service, furnish(service)


LOOKS = list(product(THEMES, WIDTHS))
PARTS = 4 * len(LOOKS)
"""In which pages of all routes are looked at, each in one look."""
ROUTES = [
    route.partition(" ")[2]
    for decided in DECISIONS.values()
    for route in decided
    if route.startswith("GET ")
    and is_page(route)
    and not route.startswith("GET /static/")
    and not route.endswith(("/log", "/changes"))  # a file, and a stream
]
# As in the service, a route without parameters goes before one with them.
ROUTES.sort(key=lambda route: route.count("{"))


def route_of(path: str) -> str:
    return next(route for route in ROUTES if compile_path(route)[0].match(path.partition("?")[0]))


def one_of_each_route(paths: dict[str, str]) -> dict[str, str]:
    first = {route_of(path): name for name, path in reversed(paths.items())}
    return {name: path for name, path in paths.items() if name in first.values()}


@pytest.mark.parametrize(
    ("look", "of"),
    [
        # Pages of some routes, and of each one in one theme and width; all pages in all of them by the rest.
        (0, PARTS),
        *(pytest.param(part, PARTS, marks=THOROUGH) for part in range(1, PARTS)),
        *(pytest.param(look, 1, marks=pytest.mark.exhaustive) for look in range(len(LOOKS))),
    ],
)
def test_page_is_accessible_fits_its_width_and_stays_within_its_security_policy(
    browser: Browser, furnished: tuple[RunningService, Pages], look: int, of: int
) -> None:
    service, pages = furnished
    theme, width = LOOKS[look % len(LOOKS)]

    def mine(paths: dict[str, str]) -> dict[str, str]:
        chosen = paths if of == 1 else one_of_each_route(paths)
        return dict(list(chosen.items())[look % of :: of])

    context = browser.new_context(
        viewport={"width": WIDTHS[width], "height": 900},
        color_scheme="dark" if theme == "dark" else "light",
    )
    page = context.new_page()
    misdeeds = Misdeeds()
    misdeeds.watch(page, service.url)
    found = {name: _look(page, service.url + path) for name, path in mine(pages.anonymous).items()}
    sign_in(context, service)
    found |= {name: _look(page, service.url + path) for name, path in mine(pages.signed_in).items()}
    for name, act in list(ACTS.items())[look % of :: of]:
        page.goto(service.url + pages.signed_in[act.page])
        act.do(page)
        found[name] = _examine(page)
    context.close()
    assert {name: problems for name, problems in found.items() if problems} == {}
    assert misdeeds == []


_CUT_OFF = """() => {
    const cut = [...document.querySelectorAll(".scroll")].filter((one) => one.scrollWidth > one.clientWidth);
    const [name, out] = [".brand", ".who button"].map((one) => document.querySelector(one))
        .map((one) => one.getBoundingClientRect());
    const isBroken = name.top <= 0 || out.top >= name.bottom;
    return [...cut.map(() => "columns"), ...(isBroken ? ["bar"] : [])];
}"""


def test_lists_show_all_their_columns_also_in_less_than_a_desks_width(
    browser: Browser, furnished: tuple[RunningService, Pages]
) -> None:
    service, pages = furnished
    context = browser.new_context()
    sign_in(context, service)
    page = context.new_page()
    found = {}
    for name in ("audit", "erasure", "jobs", "tables"):
        page.goto(service.url + pages.signed_in[name])
        if name != "audit":
            expect(page.locator("#connection-words")).to_have_text("Live")  # it takes room
        for width in (1280, 1279, 1201, 1200, 901):
            page.set_viewport_size({"width": width, "height": 900})
            found[name, width] = page.evaluate(_CUT_OFF)
    context.close()
    assert {place: what for place, what in found.items() if what} == {}


@pytest.mark.usefixtures("browser")  # else pytest runs it apart, and furnishes a service for it alone
def test_every_page_is_looked_at(furnished: tuple[RunningService, Pages]) -> None:
    _, pages = furnished
    for paths in (pages.anonymous | pages.signed_in, one_of_each_route(pages.anonymous | pages.signed_in)):
        assert set(ROUTES) - {route_of(path) for path in paths.values()} == set()


_WITHOUT_EVENTS = "window.EventSource = class { addEventListener() {} close() {} };"
"""What follows by itself would put other elements in the place of those that keys come to."""

_FROM_THE_TOP = """() => {
    window.stops = [];
    document.addEventListener("focusin", ({ target }) => stops.push(target));
    document.body.tabIndex = -1;
    document.body.focus();
    document.body.removeAttribute("tabindex");
    const controls = "a, button, summary, input, select, textarea, .log, [tabindex]";
    const seen = [...document.querySelectorAll(controls)].filter((control) => control.checkVisibility());
    // A time has a stop for each of its parts.
    return seen.length + 8 * seen.filter((control) => control.matches("[type^=date]")).length;
}"""

_WALKED = """() => {
    const named = (element) => element.outerHTML.slice(0, 150);
    const walked = [...new Set(stops)].filter((stop) => stop !== document.body);
    const problems = [];
    const controls = "a, button, summary, input, select, textarea, .log, [role=application]";
    // Arrows lead through a row of cells.
    const others = ":disabled, [type=hidden], .cells a:not(:last-child)";
    for (const control of document.querySelectorAll(controls)) {
        if (control.matches(others) || !control.checkVisibility() || walked.includes(control)) continue;
        problems.push(`not come to: ${named(control)}`);
    }
    const placeOf = (element) => {
        const { left, right, top, bottom } = element.getBoundingClientRect();
        return { left: left + scrollX, right: right + scrollX, top: top + scrollY, bottom: bottom + scrollY };
    };
    const hangs = (stop) => getComputedStyle(stop.parentElement).position === "sticky";
    walked.slice(1).forEach((stop, number) => {
        if (hangs(stop) || hangs(walked[number])) return;  // over whatever has been scrolled to
        const [before, after] = [placeOf(walked[number]), placeOf(stop)];
        // And in no column further to the right.
        const isAbove = after.bottom <= before.top && after.left < before.right;
        const isInLine = after.top < before.bottom && before.top < after.bottom;
        if (isAbove || (isInLine && after.right <= before.left))
            problems.push(`out of order: ${named(walked[number])}, ${named(stop)}`);
    });
    for (const stop of walked) {
        stop.focus();
        const { outlineStyle, outlineWidth } = getComputedStyle(stop);
        if (!stop.matches(":focus-visible") || outlineStyle === "none" || parseFloat(outlineWidth) < 2)
            problems.push(`not seen to be come to: ${named(stop)}`);
        const [box] = stop.getClientRects();
        const x = (Math.max(box.left, 0) + Math.min(box.right, innerWidth)) / 2;
        const y = (Math.max(box.top, 0) + Math.min(box.bottom, innerHeight)) / 2;
        if (!stop.contains(document.elementFromPoint(x, y))) problems.push(`hidden: ${named(stop)}`);
    }
    return problems;
}"""


@pytest.mark.thorough
@first_always("width", list(WIDTHS))
def test_tab_comes_to_all_that_a_page_has_in_the_order_of_reading_and_is_seen_there(
    browser: Browser, furnished: tuple[RunningService, Pages], width: str
) -> None:
    service, pages = furnished
    context = browser.new_context(viewport={"width": WIDTHS[width], "height": 900})
    context.add_init_script(_WITHOUT_EVENTS)
    page = context.new_page()

    def walk(name: str, path: str) -> list[str]:
        page.goto(service.url + path)
        if name == "jobs":
            # What can be done with the chosen ones hangs over the list then.
            page.get_by_role("checkbox", name="Choose all").check()
        number = page.evaluate(_FROM_THE_TOP)
        for _ in range(number):
            page.keyboard.press("Tab")
        return list(page.evaluate(_WALKED))

    found = {name: walk(name, path) for name, path in pages.anonymous.items()}
    sign_in(context, service)
    found |= {name: walk(name, path) for name, path in one_of_each_route(pages.signed_in).items()}
    context.close()
    assert {name: problems for name, problems in found.items() if problems} == {}


TYPED = {
    "register": ("identifier", "sales.order"),
    "table-form": ("key_sets", "id,,region"),
    "find": ("value_0", "seven"),
    "write": ("rows", "[{"),
    "erasure-new": ("keys", "7"),
    "policy-new": ("settings.convert.age_seconds", "soon"),
    "policy-form": ("settings.schedule.windows", "at night"),
    "catalog-new": ("properties", "nowhere"),
    "catalog-form": ("properties", "nowhere"),
    "pattern": ("exclude", "x" * 5000),
    "webhook": ("url", "ftp://hooks.example"),
    "webhook-new": ("secret", "in clear"),
    "sender-new": ("secret", "in clear"),
    "key-new": ("name", "x" * 5000),
}


# What each form says is tested in `tests/service/pages`; all are made of the same parts.
@first_always("names", [("register", "policy-form"), tuple(TYPED)])
def test_page_that_refuses_a_form_keeps_what_was_typed_and_is_accessible(
    browser: Browser, furnished: tuple[RunningService, Pages], names: tuple[str, ...]
) -> None:
    service, pages = furnished
    context = browser.new_context(viewport={"width": WIDTHS["phone"], "height": 900})
    page = context.new_page()
    misdeeds = Misdeeds()
    misdeeds.watch(page, service.url)
    sign_in(context, service)
    found = {}
    for name in names:
        field, text = TYPED[name]
        page.goto(service.url + pages.signed_in[name])
        box = page.locator(f"main form[method=post] [name='{field}']")
        box.fill(text)
        # What a browser would refuse by itself is left to the service.
        with page.expect_navigation():
            box.evaluate("box => { box.form.noValidate = true; box.form.requestSubmit() }")
        expect(page.get_by_role("alert").first).to_be_visible()
        expect(box).to_have_value(text)
        found[name] = _examine(page)
    context.close()
    assert {name: problems for name, problems in found.items() if problems} == {}
    assert misdeeds == []


ALIKE = ("guide-connect-hive", "guide-connect-glue", "guide-connect-hadoop")
"""To the form of another type."""


@pytest.mark.thorough
@first_always("of", [len(LOOKS), 1], EXHAUSTIVE)
def test_each_step_of_the_first_hour_is_accessible_and_fits_its_width(
    browser: Browser, tmp_path: Path, of: int
) -> None:
    found = {}
    misdeeds = Misdeeds()
    with running_service(tmp_path) as service:
        looks = open_looks(browser, service)
        for page in looks.values():
            misdeeds.watch(page, service.url)
        for number, (name, path, act) in enumerate(guide(service)):
            if of > 1 and name in ALIKE:
                continue
            for look, page in list(looks.items())[number % of :: of]:
                page.goto(service.url + path)
                act(page)
                found[name + look] = _examine(page)
        for page in looks.values():
            page.context.close()
    assert {name: problems for name, problems in found.items() if problems} == {}
    assert misdeeds == []


def test_what_is_found_of_a_key_leaves_no_value_in_the_address(
    browser: Browser, furnished: tuple[RunningService, Pages]
) -> None:
    service, pages = furnished
    context = browser.new_context()
    page = context.new_page()
    sign_in(context, service)
    page.goto(service.url + pages.signed_in["find"])
    find_key(page)
    expect(page.locator("#answer")).to_contain_text("by an equality delete")
    assert page.url == service.url + pages.signed_in["find"]
    context.close()


def _look(page: Page, url: str) -> list[str]:
    answer = page.goto(url)
    assert answer is not None
    return _weaknesses(answer) + _examine(page)


_OUT_OF_REACH = """() => {
    const isOutOfReach = (control) => {
        if (!control.checkVisibility()) return false;  // folded in
        control.scrollIntoView({ block: "center", inline: "nearest" });
        const [box] = control.getClientRects();
        const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
        // A menu that hangs over the page goes with a click or Escape.
        return !control.contains(top) && !top?.closest(".title details[open]");
    };
    // What lies below an open dialog is not to be reached.
    const reachable = document.querySelector("dialog:modal") ?? document;
    const controls = reachable.querySelectorAll("a:not(.skip), button, summary, input, select, textarea");
    return [...controls].filter(isOutOfReach).map((control) => control.outerHTML);
}"""
"""Whatever can be used and cannot be clicked, however the page is scrolled."""

_LEFT_OVER = """() => {
    const words = [];
    for (const figures of document.querySelectorAll(".figures")) {
        const boxes = [...figures.children].map((figure) => figure.getBoundingClientRect());
        const last = boxes.filter((box) => box.top === boxes.at(-1)?.top);
        if (last.length === 1 && boxes.length > 1 && last[0].width < figures.clientWidth / 2) {
            words.push(figures.lastElementChild.textContent);
        }
    }
    return words;
}"""
"""Figures of which one is left over for a row of its own."""

_AT_THE_BORDER = """() => [...document.querySelectorAll(".card")]
    .filter((card) => card.checkVisibility() && parseFloat(getComputedStyle(card).paddingLeft) < 8)
    .map((card) => card.outerHTML.slice(0, 150))"""
"""What begins where the line around it is."""


def _examine(page: Page) -> list[str]:
    problems = [f"out of reach: {control}" for control in page.evaluate(_OUT_OF_REACH)]
    page.evaluate("for (const folded of document.querySelectorAll('details')) folded.open = true")
    problems += [f"alone in its row: {figure}" for figure in page.evaluate(_LEFT_OVER)]
    problems += [f"at the border: {card}" for card in page.evaluate(_AT_THE_BORDER)]
    if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
        problems.append("wider than the window")
    # What a script writes to the style of an element is none that the page brings along.
    if page.locator("[style]:not(.uplot, .uplot *), script:not([src]), style").count():
        problems.append("inline script or style")
    page.evaluate(AXE_SCRIPT)
    # What passes is left in the browser, which would take long to describe it.
    violations = page.evaluate("axe.run({resultTypes: ['violations']}).then(found => found.violations)")
    return problems + [f"{found['id']}: {found['nodes'][0]['html']}" for found in violations]


def _weaknesses(answer: Response) -> list[str]:
    """What is too lax in the security headers of a page."""
    policy = answer.headers.get("content-security-policy", "")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    weak = [f"{name} {value}" for name, value in rules.items() if value not in ("'none'", "'self'")]
    missing = {"default-src", "form-action", "base-uri", "frame-ancestors"} - rules.keys()
    if rules.get("default-src") != "'none'":
        missing.add("default-src 'none'")
    if answer.headers.get("x-content-type-options") != "nosniff":
        missing.add("nosniff")
    return [*weak, *sorted(missing)]
