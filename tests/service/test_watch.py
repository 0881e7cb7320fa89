"""`icestream status` and `top`, against the service itself."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from io import StringIO
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner, Result

from icestream.errors import UnreachableError
from service.command.main import app
from service.command.watch import follow
from service.db.database import utc_now
from service.scheduling.catalog_health import store_observations
from tests.service.conftest import ADMIN_KEY, Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog

# The database has no part in it.
database_kind = alike_on_both
Call = Callable[..., Result]


@pytest.fixture
def call(service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs a command against a service that knows tables `local.db.a`, with two deletes, and `local.db.t`."""
    monkeypatch.setenv("ICESTREAM_URL", service.url)
    monkeypatch.setenv("ICESTREAM_API_KEY", ADMIN_KEY)
    service.register(iceberg)
    iceberg.create("db.a")
    iceberg.delete_keys("db.a", [1, 2])
    for name in ("db.t", "db.a"):
        service.poll(service.enroll(name)["id"])
    store_observations(service.database, service.background._observations, utc_now())

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, arguments)

    return run


def test_status_ends_well_where_all_is_well(call: Call, service: Running) -> None:
    service.start_worker()
    told = call("status")
    assert told.exit_code == 0, told.output
    head, blank, *figures = told.stdout.splitlines()
    assert re.fullmatch(rf"Icestream \S+ at {service.url}: all is well\.", head)
    assert [blank, figures[0], figures[1], figures[6]] == [
        "",
        "tables   2 healthy",
        "catalogs 1 reachable",
        "workers  1 alive",
    ]
    assert re.fullmatch(r"pending  2 equality deletes in 1 file, the oldest \S+ old", figures[2])
    cost = r"a full read of all takes about \S+, \S+ of it for deletes and small files, \S+ less than"
    saved = r"without jobs, which have saved \S+ so far"
    point = r"a point read takes \S+, \S+ of it for these"
    assert re.fullmatch(rf"reads    {cost} {saved}; {point}", figures[3])
    small = r"small are 0 data files, 0 delete files and \d manifests?"
    joined = r"a full read joins 1 delete file \(\S+ k?B\)"
    assert re.fullmatch(rf"files    {joined}; {small}; \d snapshots?", figures[4])
    assert len(figures) == 7


def test_status_tells_what_is_wrong_and_what_to_do_and_ends_with_1(
    call: Call, service: Running, iceberg: IcebergCatalog
) -> None:
    Path(iceberg.catalog.load_table("db.a").metadata_location.removeprefix("file://")).unlink()
    service.poll(service.admin.get("/tables?search=db.a").json()["items"][0]["id"])
    told = call("status")
    assert told.exit_code == 1
    assert told.stdout.splitlines()[0].endswith("2 things to look at.")
    title, detail, remedy = told.stdout[told.stdout.index("local.db.a is unknown") :].splitlines()[:3]
    assert title == "local.db.a is unknown"
    assert "metadata.json" in detail
    assert remedy.startswith("  ")
    assert "Start one with `icestream worker`." in told.stdout
    as_json = call("status", "-o", "json")
    assert as_json.exit_code == 1
    assert [one["title"] for one in json.loads(as_json.stdout)["concerns"]] == [
        "local.db.a is unknown",
        "No worker is alive",
    ]


def test_status_of_a_service_that_is_away_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICESTREAM_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("ICESTREAM_API_KEY", "some-key")
    for command in ("status", "top"):
        told = CliRunner().invoke(app, [command])
        assert told.exit_code == 1
        assert "can't be reached: Connection refused." in " ".join(told.stderr.split())


def test_a_job_is_waited_for_while_the_service_is_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICESTREAM_API_KEY", "some-key")
    job = {"status": "running", "waiting_for": None, "progress": {"stage": "scan"}}
    ended = {**job, "status": "succeeded", "caveat": None, "error": None}
    answers: list[httpx.Response | httpx.ConnectError] = [
        httpx.Response(200, json=job),
        httpx.ConnectError("refused"),
        httpx.Response(503, headers={"Retry-After": "1"}),
        httpx.Response(200, json=job),
        httpx.Response(502, text="<html>"),
        httpx.Response(200, json=ended),
    ]

    def answer(_request: httpx.Request) -> httpx.Response:
        given = answers.pop(0)
        if isinstance(given, Exception):
            raise given
        return given

    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(answer)))
    ticks = count()
    clock = SimpleNamespace(monotonic=lambda: next(ticks), sleep=lambda _seconds: None)
    monkeypatch.setattr("service.command.calls.time", clock)
    name = "4c3d07c7-c4d3-4c55-a8ce-6ab0a2dbb3d6"
    waited = CliRunner().invoke(app, ["jobs", "wait", name])
    assert waited.exit_code == 0, waited.output
    assert waited.stderr.count("It is asked again for up to 10 minutes.") == 2
    assert waited.stderr.count("running scan") == 1

    answers += [httpx.Response(200, json=job), httpx.Response(503), httpx.Response(503)]
    clock.monotonic = lambda: 601 * next(ticks)
    assert CliRunner().invoke(app, ["jobs", "wait", name]).exit_code == 1
    answers[:] = [httpx.ConnectError("refused")]
    assert CliRunner().invoke(app, ["jobs", "wait", name]).exit_code == 1, "it may not be there at all"


def test_events_go_on_after_the_last_one_when_the_service_is_started_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ICESTREAM_API_KEY", "some-key")
    events = [f'id: {number}\nevent: job\ndata: {{"id": {number}}}\n\n' for number in (7, 8)]
    answers = [
        httpx.Response(200, text="id: 6\n\n"),
        httpx.Response(200, text=events[0]),
        httpx.Response(503),
    ]
    answers += [httpx.Response(200, text=events[1]), httpx.Response(401)]
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers.get("Last-Event-ID"))
        return answers.pop(0)

    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(answer)))
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _seconds: None)
    monkeypatch.setattr("service.command.calls.time", clock)
    followed = CliRunner().invoke(app, ["jobs", "follow-events"])
    assert followed.exit_code == 1, "the key is good no more"
    assert followed.stdout == '{"id": 7}\n{"id": 8}\n'
    assert asked == [None, "6", "7", "7", "8"]
    assert "The service has ended the stream. It is asked again" in followed.stderr


def test_top_shows_the_fullest_table_first_with_jobs_and_workers(call: Call, service: Running) -> None:
    table = service.admin.get("/tables?search=db.t").json()["items"][0]["id"]
    service.admin.post(f"/tables/{table}/jobs", json={"kind": "index"}).raise_for_status()
    assert service.claim(service.start_worker()) is not None
    told = call("top")
    assert told.exit_code == 0, told.output
    lines = [line.rstrip() for line in told.stdout.splitlines()]
    at = {word: lines.index(word) for word in ("tables", "jobs", "workers")}
    assert [lines[at["tables"] + number].split()[0] for number in (1, 2, 3)] == [
        "table",
        "local.db.a",
        "local.db.t",
    ]
    assert lines[at["jobs"] + 2].split()[:3] == ["local.db.t", "index", "running"]
    assert lines[at["workers"] + 2].split()[1] == "yes"
    assert lines[1].startswith("jobs     1 running, 0 waiting   workers  1 alive")


def test_top_is_drawn_anew_and_survives_a_service_that_is_away_for_a_while() -> None:
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=60, height=10)

    def frames() -> Iterator[Text]:
        yield Text("the first look")
        raise UnreachableError("The service can't be reached: \x1b[2Jgone.", "Wait.")

    first = frames()
    looks = [lambda: next(first), lambda: next(first), lambda: Text("the last look")]

    def read() -> Text:
        if not looks:
            raise KeyboardInterrupt
        return looks.pop(0)()

    follow(console, read, 0)
    drawn = screen.getvalue()
    shown = [drawn.index(words) for words in ("the first look", "can't be reached", "the last look")]
    assert shown == sorted(shown)
    assert "\x1b[2Jgone" not in drawn
    assert drawn.rstrip().endswith("\x1b[?25h") or "\x1b[?1049l" in drawn


@pytest.mark.parametrize(("width", "height"), [(40, 15), (80, 24), (200, 50)])
def test_a_frame_fits_the_screen(
    width: int, height: int, call: Call, service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    from icestream.connection import Connection
    from service.command.watch import _frame

    service.start_worker()
    with Connection(service.url, ADMIN_KEY) as connection:
        screen = StringIO()
        Console(file=screen, width=width).print(_frame(connection, width, height))
    lines = screen.getvalue().splitlines()
    assert "0 waiting" in lines[1]
    assert width < 80 or "1 alive" in lines[1]
    assert len(lines) <= height
    assert max(map(cell_len, lines)) <= width
