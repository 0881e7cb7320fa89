"""When tables are polled: each catalog for itself, and those in which nothing goes on hardly at all."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyiceberg.table import Table
from sqlalchemy import event, text
from sqlmodel import col, select

from service.auth.models import SYSTEM
from service.auth.service import find_api_key_principal
from service.catalogs import manifests
from service.catalogs.file_io import GuardedFileIO, _BoundedFile
from service.catalogs.iceberg import IcebergCatalogs
from service.catalogs.metadata_locations import Identifier
from service.db.database import utc_now
from service.errors import UnreachableError
from service.index_health import samples
from service.index_health.pace import Pace
from service.jobs import attempts
from service.jobs.contract import FinishRequest
from service.policies.models import EffectivePolicy
from service.records.catalogs import Catalog, CatalogType
from service.records.health import HealthSample, TableHealth
from service.records.jobs import JobKind
from service.scheduling import facts
from service.scheduling.decisions import decide_kind
from service.scheduling.looks import Polled, _reads_within, store_look
from service.scheduling.poller import Poller, _Basis, _Lane, _Tracked
from service.settings import Settings
from service.tables.service import delete_table
from stores import avro_readers
from tests.browser.running_service import index_report
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.rest_catalog import running_rest_catalog
from tests.service.conftest import ADMIN_KEY, ON_BOTH, Running, alike_on_both, running
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.queue_calls import RETRYABLE, statements_of
from tests.thorough import first_always

# When a table is read is for the poller to say, and not for SQL.
database_kind = alike_on_both


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
            self.go_on.wait(PATIENCE_SECONDS)
        return super().load(catalog, identifier)


@pytest.fixture
def service(settings: Settings) -> Iterator[Running]:
    with running(settings.model_copy(update={"polls_per_catalog": 2})) as service:
        yield service


@contextmanager
def polling(
    service: Running,
    poll_interval_seconds: float | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    *,
    notes_all: bool = True,
) -> Iterator[tuple[Poller, WatchedCatalogs]]:
    """notes_all: each look that finds nothing new, and not each sixth."""
    settings = service.settings
    if poll_interval_seconds is not None:
        settings = settings.model_copy(update={"poll_interval_seconds": poll_interval_seconds})
    catalogs = WatchedCatalogs(settings)
    poller = Poller(service.database, settings, catalogs, monotonic)
    if notes_all:
        poller._noted_seconds = 0.0
    yield poller, catalogs
    catalogs.go_on.set()
    poller.stop()
    catalogs.close()


def tick_until(poller: Poller, is_met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_met():
        assert time.monotonic() < deadline
        poller.poll_due()
        time.sleep(0.05)


def health(service: Running, table: dict[str, Any]) -> dict[str, Any]:
    return dict(service.admin.get(f"/tables/{table['id']}/health").json())


@ON_BOTH
def test_a_slow_catalog_holds_up_no_other_and_has_few_polls_at_a_time(
    service: Running, iceberg: IcebergCatalog, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = IcebergCatalog(tmp_path / "other", "other")
    for number in range(4):
        other.create(f"db.t{number}")
    service.register(iceberg)
    service.register(other)
    table = service.enroll()
    for number in range(4):
        service.enroll(f"db.t{number}", catalog="other")
    with polling(service) as (poller, catalogs):
        catalogs.slow = "other"
        tick_until(poller, lambda: catalogs.waiting == 2 and catalogs.loads["local.db.t"] == 1)
        let_polls_pass(service, poller, table, 3)
        assert catalogs.waiting == 2
        catalogs.go_on.set()
        tick_until(poller, lambda: all(catalogs.loads[f"other.db.t{number}"] for number in range(4)))
    other.close()


@pytest.mark.parametrize("look", [Poller.poll_due, Poller.poll_news], ids=["of all", "of news"])
@pytest.mark.parametrize("queued", [1, 25], ids=["for which there is no room", "that waits"])
def test_a_table_that_is_told_of_waits_for_none_whose_time_came(
    service: Running,
    iceberg: IcebergCatalog,
    monkeypatch: pytest.MonkeyPatch,
    queued: int,
    look: Callable[[Poller], None],
) -> None:
    monkeypatch.setattr("service.scheduling.poller._QUEUED_POLLS", queued)
    service.register(iceberg)
    tables = {}
    for number in range(7):
        iceberg.create(f"db.t{number}")
        tables[f"local.db.t{number}"] = service.enroll(f"db.t{number}")["id"]
    with polling(service) as (poller, catalogs):
        catalogs.slow = "local"
        tick_until(poller, lambda: catalogs.waiting == 2)
        last = [name for name in tables if name not in catalogs.loads][-1]
        assert service.admin.post(f"/tables/{tables[last]}/notifications").status_code == 202
        look(poller)
        catalogs.go_on.set()
        wait_until(lambda: catalogs.loads[last] > 0, "the table to be read")
        tick_until(poller, lambda: len(catalogs.loads) == len(tables))
        assert last in list(catalogs.loads)[2:4]  # two at a time


def test_what_is_told_of_a_table_while_it_is_polled_lets_it_be_polled_again_at_once(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    table = service.enroll()
    with polling(service) as (poller, catalogs):
        catalogs.slow = "local"
        tick_until(poller, lambda: catalogs.waiting == 1)
        assert service.admin.post(f"/tables/{table['id']}/notifications").status_code == 202
        poller.poll_news()
        catalogs.go_on.set()
        wait_until(lambda: catalogs.loads["local.db.t"] == 2, "the table to be read again")


def let_polls_pass(service: Running, poller: Poller, table: dict[str, Any], count: int) -> None:
    for _ in range(count):
        before = health(service, table)["measured_at"]
        tick_until(poller, lambda last=before: health(service, table)["measured_at"] not in (None, last))  # type: ignore[misc]


def let_ticks_pass(poller: Poller) -> None:
    """With all that they start."""
    for _ in range(3):
        poller.poll_due()
        wait_until(lambda: not any(one.busy or one.sweeps for one in poller._lanes.values()), "polls to end")


def settled(service: Running, iceberg: IcebergCatalog) -> dict[str, Any]:
    """A table in which nothing is left to do."""
    iceberg.create("db.quiet")
    service.register(iceberg)
    return service.enroll("db.quiet")


@pytest.fixture(params=["sql", "rest", "hadoop"])
def lake(request: pytest.FixtureRequest, iceberg: IcebergCatalog) -> Iterator[dict[str, Any]]:
    """The record of a catalog with the tables of `iceberg`."""
    if request.param == "sql":
        yield {"name": "lake", "type": "sql", "properties": {**iceberg.properties, "catalog_name": "local"}}
    elif request.param == "rest":
        with running_rest_catalog(iceberg.catalog) as rest:
            yield {"name": "lake", "type": "rest", "properties": rest.properties, "answers": rest.answers}
    else:
        warehouse = f"file://{iceberg.directory}/hadoop"
        yield {"name": "lake", "type": "hadoop", "properties": {"warehouse": warehouse}}


def publish(lake: dict[str, Any], iceberg: IcebergCatalog) -> None:
    """Let a hadoop catalog have the head of db.t."""
    if lake["type"] != "hadoop":
        return
    head = Path(iceberg.catalog.load_table("db.t").metadata_location.removeprefix("file://"))
    metadata = iceberg.directory / "hadoop/db/t/metadata"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / f"v{len(list(metadata.iterdir())) + 1}.metadata.json").write_bytes(head.read_bytes())


def test_a_table_is_read_again_only_when_its_head_or_a_moment_of_its_policy_asks_for_it(
    service: Running, iceberg: IcebergCatalog, lake: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = 0
    # A quiet table would wait for twelve intervals where it costs a request of its own.
    monkeypatch.setattr("service.scheduling.poller._PATIENCE_IF_QUIET", 1)
    for module in ("scheduling.poller", "scheduling.looks", "index_health.service"):
        later = f"service.{module}.utc_now"
        monkeypatch.setattr(later, lambda: utc_now() + timedelta(hours=hours))
    answers = lake.pop("answers", [])
    publish(lake, iceberg)
    assert service.admin.post("/catalogs", json=lake).status_code == 201
    settings = {"index": {"enabled": False}, "convert": {"age_seconds": 3600, "delete_files": 100}}
    assert service.admin.post("/policies", json={"name": "patient", "settings": settings}).status_code == 201
    table = service.enroll(catalog="lake", policy="patient")
    with polling(service) as (poller, catalogs):

        def decision() -> str:
            return str(health(service, table)["decisions"].get("convert", {}).get("code"))

        tick_until(poller, lambda: decision() == "nothing-pending")
        let_polls_pass(service, poller, table, 2)
        assert catalogs.loads["lake.db.t"] == 1
        iceberg.delete_keys("db.t", [1])
        publish(lake, iceberg)
        tick_until(poller, lambda: decision() == "below-triggers")
        let_polls_pass(service, poller, table, 2)
        # Once more only because the delete has become as old as the policy lets it.
        assert (catalogs.loads["lake.db.t"], decision()) == (2, "below-triggers")
        hours = 1
        tick_until(poller, lambda: decision() == "age")
        let_polls_pass(service, poller, table, 2)
        assert catalogs.loads["lake.db.t"] == 3
        assert health(service, table)["status"] == "healthy"
        hours = 2
        tick_until(poller, lambda: stored_status(service, table) == "lagging")
        assert catalogs.loads["lake.db.t"] == 4
    assert (304 in answers) == (lake["type"] == "rest")


def stored_status(service: Running, table: dict[str, Any]) -> str:
    return str(service.admin.get(f"/tables/{table['id']}").json()["status"])


QUIET = {
    "a day": (24, None, 6),
    "two hours": (2, None, 2),
    "a minute": (1 / 60, None, 1 / 4),
    "so far by a clock that is ahead": (-24, None, 1 / 4),
    "with deletes pending": (8, {"oldest_equality_delete_at": utc_now()}, 2),
    "with rows staged": (8, {"oldest_staged_at": utc_now()}, 2),
    "with maintenance due": (8, {"maintenance_due_at": utc_now()}, 2),
    "and not well": (8, {"status": "degraded"}, 2),
    "and not well for days": (48, {"status": "degraded"}, 6),
    "for half an hour with deletes pending": (1 / 2, {"oldest_equality_delete_at": utc_now()}, 1 / 4),
}


@pytest.mark.parametrize(("hours", "figures", "within"), QUIET.values(), ids=QUIET)
def test_a_table_is_read_anyway_the_later_the_longer_it_was_quiet(
    iceberg: IcebergCatalog, hours: float, figures: dict[str, Any] | None, within: float
) -> None:
    metadata = iceberg.catalog.load_table("db.t").metadata
    health = TableHealth(**{"table_id": "t", "status": "healthy"} | (figures or {}))
    now = datetime.fromtimestamp(metadata.last_updated_ms / 1000, UTC) + timedelta(hours=hours)
    assert _reads_within(metadata, health, now) == pytest.approx(within * 3600)


def test_a_quiet_table_is_read_again_when_its_hours_are_over(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.scheduling.looks.FRESH_SECONDS", 0.0)
    table = settled(service, iceberg)
    for module in ("poller", "looks"):
        monkeypatch.setattr(f"service.scheduling.{module}.utc_now", lambda: utc_now() + timedelta(days=1))
    with polling(service) as (poller, catalogs):
        let_polls_pass(service, poller, table, 3)
        assert catalogs.loads["local.db.quiet"] == 1
    for module in ("poller", "looks"):
        monkeypatch.setattr(f"service.scheduling.{module}.LONGEST_FRESH_SECONDS", 0.0)
    with polling(service) as (poller, catalogs):
        tick_until(poller, lambda: catalogs.loads["local.db.quiet"] > 1)


def test_where_each_table_costs_a_request_a_quiet_one_is_polled_less_often(
    service: Running, iceberg: IcebergCatalog, lake: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.pop("answers", None)
    publish(lake, iceberg)
    assert service.admin.post("/catalogs", json=lake).status_code == 201
    table = service.enroll(catalog="lake", policy="manual")
    with polling(service, poll_interval_seconds=10) as (poller, _):
        tick_until(poller, lambda: health(service, table)["watch"] is not None)
        let_ticks_pass(poller)
        pace = pace_of(poller)
    with polling(service, poll_interval_seconds=10) as (poller, catalogs):
        let_ticks_pass(poller)
        assert (pace_of(poller), catalogs.loads.total()) == (pace, 0)
    assert pace.changed_at is not None
    for minutes, seconds in ((1, 10), (20, 20), (24 * 60, 120)):
        later = pace.changed_at + timedelta(minutes=minutes)
        monkeypatch.setattr("service.index_health.service.utc_now", partial(lambda now: now, later))
        expected = pytest.approx(10 if lake["type"] == "sql" else seconds)
        assert health(service, table)["watch"]["polled_every_seconds"] == expected
        assert pace.every_seconds(later) == expected
    staged = Polled(is_reachable=True, look_within=3, changed_at=utc_now() - timedelta(days=1))
    basis = _Basis("", 0, is_notified=False, state=None, tells=False, again=0)
    assert poller._pace(CatalogType.REST, staged, basis).every_seconds(utc_now()) == 3


def pace_of(poller: Poller) -> Pace:
    """Of the only table."""
    (lane,) = poller._lanes.values()
    (table,) = lane.tables.values()
    return table.pace


def test_history_tells_until_when_a_table_was_quiet(service: Running, iceberg: IcebergCatalog) -> None:
    """What is committed then did not come bit by bit since the sample before."""
    service.register(iceberg)
    table = service.enroll(policy="manual")
    service.poll(table["id"])
    with service.database.write() as session:
        first = session.exec(select(HealthSample)).one()
        first.at -= timedelta(hours=3)
        last_look = session.get_one(TableHealth, table["id"]).measured_at
        before = first.iceberg_snapshot_id
    iceberg.append("db.t", [7])
    service.poll(table["id"])
    with service.database.read() as session:
        _, kept, new = session.exec(select(HealthSample).order_by(col(HealthSample.id))).all()
        assert (kept.at, kept.iceberg_snapshot_id, kept.status) == (last_look, before, "healthy")
        assert new.iceberg_snapshot_id != before


@ON_BOTH
def test_history_shows_how_long_the_lag_became_while_the_table_was_not_read(
    service: Running, iceberg: IcebergCatalog
) -> None:
    clean = iceberg.catalog.load_table("db.t").metadata_location
    iceberg.delete_keys("db.t", [1])
    service.register(iceberg)
    table = service.enroll(policy="manual")
    service.poll(table["id"])
    with service.database.write() as session:
        seen = session.get_one(TableHealth, table["id"])
        first = session.exec(select(HealthSample)).one()
        first.at -= timedelta(hours=1)
        assert seen.measured_at is not None
        grown = (seen.measured_at - first.at).total_seconds()
        expected = [first.lag_seconds, first.lag_seconds + grown, 0]
    with iceberg.catalog.engine.begin() as connection:
        connection.execute(text("UPDATE iceberg_tables SET metadata_location = :head"), {"head": clean})
    service.poll(table["id"])
    with service.database.read() as session:
        samples = session.exec(select(HealthSample).order_by(col(HealthSample.id))).all()
        assert [sample.lag_seconds for sample in samples] == pytest.approx(expected)
        assert [sample.pending_equality_deletes for sample in samples] == [1, 1, 0]


@pytest.mark.parametrize("news", ["policy", "pause", "job", "attempt", "system"])
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
            caller = find_api_key_principal(service.database, ADMIN_KEY)
            assert caller is not None
            report = FinishRequest(status="failed", error=RETRYABLE if news == "attempt" else None)
            with service.database.write() as session:
                # By a replica whose clock is behind.
                an_hour_ago = utc_now() - timedelta(hours=1)
                job_id, attempt = assignment["job"]["id"], assignment["attempt"]
                attempts.finish(session, caller, job_id, attempt, report, an_hour_ago)
            tick_until(poller, lambda: catalogs.loads["local.db.quiet"] == 2)


@first_always("meanwhile", ["nothing", "removal", "commit", "pause", "job", "setting", "failure"])
def test_after_a_start_only_tables_are_read_of_which_there_is_news(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    table = settled(service, iceberg)
    path = f"/tables/{table['id']}"
    with polling(service) as (poller, catalogs):
        let_polls_pass(service, poller, table, 2)
        assert catalogs.loads["local.db.quiet"] == 1
        if meanwhile == "removal":
            # Of a table that was polled last before a job ended that is known by now.
            removed = service.enroll()
            let_polls_pass(service, poller, removed, 1)
            service.admin.delete(f"/tables/{removed['id']}")
            end_job(service, path)
            tick_until(poller, lambda: catalogs.loads["local.db.quiet"] == 2)
            let_polls_pass(service, poller, table, 1)
    if meanwhile == "failure":
        # Of a table that is read again anyway, though there is no news of it.
        monkeypatch.setattr("service.scheduling.poller.LONGEST_FRESH_SECONDS", 0.0)
        monkeypatch.setattr(IcebergCatalogs, "load", unreachable)
        with polling(service) as (poller, _):
            tick_until(poller, lambda: health(service, table)["poll_error"] is not None)
        monkeypatch.undo()
    if meanwhile == "commit":
        iceberg.delete_keys("db.quiet", [1])
    elif meanwhile == "pause":
        service.admin.post(f"{path}/pause")
    elif meanwhile == "job":
        end_job(service, path)
    elif meanwhile == "setting":
        service.settings.lease_seconds += 1
    with polling(service) as (poller, catalogs):
        let_polls_pass(service, poller, table, 3)
        assert catalogs.loads["local.db.quiet"] == (meanwhile not in ("nothing", "removal"))


@pytest.mark.parametrize("singly", [0, 10_000])
def test_after_a_start_a_table_is_not_read_for_what_was_heard_of_it_before(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, singly: int
) -> None:
    """Another one has been quiet for longer, so events are read from there on."""
    monkeypatch.setattr("service.scheduling.poller._READ_SINGLY", singly)
    quiet = settled(service, iceberg)
    for name in ("db.busy", "db.later"):
        iceberg.create(name)
    busy, later = service.enroll("db.busy"), service.enroll("db.later")
    with polling(service) as (poller, catalogs):
        for table in (quiet, later, busy):
            let_polls_pass(service, poller, table, 1)
        end_job(service, f"/tables/{busy['id']}")
        tick_until(poller, lambda: catalogs.loads["local.db.busy"] == 2)
        let_polls_pass(service, poller, busy, 1)
    end_job(service, f"/tables/{later['id']}")
    with polling(service) as (poller, catalogs):
        for table in (quiet, later, busy):
            let_polls_pass(service, poller, table, 2)
        assert catalogs.loads == {"local.db.later": 1}


def end_job(service: Running, path: str, **report: Any) -> None:
    service.admin.post(f"{path}/jobs", json={"kind": "convert"})
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    assert service.finish(assignment, **({"status": "failed"} | report)).is_success


def unreachable(catalogs: IcebergCatalogs, catalog: Catalog, identifier: Identifier) -> Table:
    raise UnreachableError("catalog-unreachable", "It is silent.", "Wait.")


def test_metadata_locations_are_compared_also_while_tables_wait_to_be_read_anyway(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.scheduling.looks.LONGEST_FRESH_SECONDS", 0.0)
    quiet = settled(service, iceberg)
    with polling(service) as (poller, catalogs):
        # Read again and again, until it gets no turn any more, as if many others went before.
        tick_until(poller, lambda: catalogs.loads["local.db.quiet"] > 2)
        monkeypatch.setattr("service.scheduling.poller._QUEUED_POLLS", 0)
        tick_until(poller, lambda: not any(lane.busy for lane in poller._lanes.values()))
        read = catalogs.loads["local.db.quiet"]
        let_polls_pass(service, poller, quiet, 2)
        assert catalogs.loads["local.db.quiet"] == read
        monkeypatch.setattr("service.scheduling.poller._QUEUED_POLLS", 1)
        tick_until(poller, lambda: catalogs.loads["local.db.quiet"] > read)


@pytest.mark.parametrize("is_stopped", [False, True], ids=["while it is polled", "while nothing polls"])
def test_another_table_whose_metadata_file_has_the_same_name_is_seen(
    service: Running, iceberg: IcebergCatalog, is_stopped: bool
) -> None:
    """In a hadoop catalog, names of metadata files are numbers."""
    warehouse = f"file://{iceberg.directory}/hadoop"
    lake = {"name": "lake", "type": "hadoop", "properties": {"warehouse": warehouse}}
    publish(lake, iceberg)
    assert service.admin.post("/catalogs", json=lake).status_code == 201
    table = service.enroll(catalog="lake", policy="manual")
    iceberg.create("db.other")
    other = Path(iceberg.catalog.load_table("db.other").metadata_location.removeprefix("file://"))

    def replace() -> None:
        (iceberg.directory / "hadoop/db/t/metadata/v1.metadata.json").write_bytes(other.read_bytes())

    with polling(service) as (poller, catalogs):
        tick_until(poller, lambda: catalogs.loads["lake.db.t"] == 1)
        let_ticks_pass(poller)
        if not is_stopped:
            replace()
            tick_until(poller, lambda: catalogs.loads["lake.db.t"] == 2)
        poller.stop()
    if is_stopped:
        replace()
        with polling(service) as (poller, catalogs):
            tick_until(poller, lambda: catalogs.loads["lake.db.t"] == 1)
            let_ticks_pass(poller)
    events = service.admin.get(f"/tables/{table['id']}/events").json()["items"]
    assert "table.replaced" in {one["kind"] for one in events}


def test_that_nothing_has_changed_is_noted_now_and_then(service: Running, iceberg: IcebergCatalog) -> None:
    now = 1000.0
    table = settled(service, iceberg)
    with polling(service, 10, lambda: now, notes_all=False) as (poller, catalogs):
        tick_until(poller, lambda: health(service, table)["measured_at"] is not None)
        noted = {health(service, table)["measured_at"]}
        for _ in range(18):
            now += 12
            let_ticks_pass(poller)
            noted.add(health(service, table)["measured_at"])
        assert catalogs.loads["local.db.quiet"] == 1
    assert len(noted) == 1 + 3


def test_what_is_staged_is_seen_as_soon_as_its_policy_wants_it_published(
    service: Running, iceberg: IcebergCatalog
) -> None:
    """Also where tables are polled seldom; the poll that sees the head moved needs no further tick."""
    service.register(iceberg)
    iceberg.append("db.t", [1])
    manage = iceberg.catalog.load_table("db.t").manage_snapshots()
    manage.create_branch(iceberg.head("db.t"), "ingest").commit()
    for name, seconds in (("fresh", 0), ("patient", 3600)):
        settings = {"publish": {"age_seconds": seconds}}
        assert service.admin.post("/policies", json={"name": name, "settings": settings}).status_code == 201
    table = service.enroll(publish={"from": "ingest"}, policy="patient")
    with polling(service, poll_interval_seconds=3600.0) as (poller, _):
        tick_until(poller, lambda: health(service, table)["measured_at"] is not None)
        iceberg.delete_keys("db.t", [1], branch="ingest")
        let_ticks_pass(poller)
        assert health(service, table)["staged_snapshots"] == 0
        path = f"/tables/{table['id']}"
        service.admin.patch(path, json={"policy": "fresh"}, headers={"If-Match": "*"})
        tick_until(poller, lambda: health(service, table)["staged_snapshots"] == 1)
        let_ticks_pass(poller)
        iceberg.delete_keys("db.t", [2], branch="ingest")
        poller.poll_due()
        wait_until(lambda: health(service, table)["staged_snapshots"] == 2, "what is staged to be seen")
    with polling(service, poll_interval_seconds=3600.0) as (poller, catalogs):
        let_ticks_pass(poller)
        assert catalogs.loads["local.db.t"] == 0
        iceberg.delete_keys("db.t", [3], branch="ingest")
        tick_until(poller, lambda: health(service, table)["staged_snapshots"] == 3)


@ON_BOTH
def test_what_is_attached_to_one_table_is_no_news_to_others(
    service: Running, iceberg: IcebergCatalog
) -> None:
    quiet = settled(service, iceberg)
    table = service.enroll()
    with polling(service) as (poller, catalogs):

        def verify() -> str:
            return str(health(service, table)["decisions"].get("verify", {}).get("code"))

        def is_followed(code: str) -> bool:
            return verify() == code

        body = {"name": "checked", "settings": {"verify": {"enabled": True}}}
        assert service.admin.post("/policies", json=body).status_code == 201
        tick_until(poller, lambda: is_followed("policy-off") and catalogs.loads["local.db.quiet"] == 1)
        place = {"level": "table", "table_id": table["id"]}
        for policy, code in (("checked", "no-index"), (None, "policy-off")):
            attached = service.admin.put("/policy-attachments", json=place | {"policy": policy})
            assert attached.is_success
            tick_until(poller, lambda code=code: is_followed(code))  # type: ignore[misc]
            let_polls_pass(service, poller, quiet, 2)
        assert catalogs.loads["local.db.quiet"] == 1


def test_moments_at_which_nothing_can_start_let_no_table_be_read(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = 0
    for module in ("scheduling.poller", "scheduling.looks", "index_health.service"):
        monkeypatch.setattr(f"service.{module}.utc_now", lambda: utc_now() + timedelta(hours=hours))
    # Without keys there is nothing to index, compact or verify, however old the last job is.
    quiet = settled(service, iceberg)
    with polling(service) as (poller, catalogs):
        tick_until(poller, lambda: catalogs.loads["local.db.quiet"] == 1)
        hours = 24 * 365
        let_polls_pass(service, poller, quiet, 2)
        assert catalogs.loads["local.db.quiet"] == 1


@ON_BOTH
def test_a_look_is_few_statements(service: Running, iceberg: IcebergCatalog) -> None:
    iceberg.create("db.quiet")
    service.register(iceberg)
    table = service.enroll("db.quiet", policy="manual")
    iceberg.append("db.quiet", [1, 2])
    with polling(service) as (poller, _):
        first = statements_of_a_look(service, poller, table)
        end_job(service, f"/tables/{table['id']}", status="succeeded", health=index_report())
        iceberg.append("db.quiet", [3])
        iceberg.delete_keys("db.quiet", [1])
        moved = statements_of_a_look(service, poller, table)
        same = statements_of_a_look(service, poller, table)
    for asked, most in (
        (first, 9),  # with events of decisions
        (moved, 10),  # with the totals, and with the last sample before, which is no longer that of its hour
        (same, 7),
    ):
        assert len(asked) <= most, "\n".join(asked)
        assert len(set(asked)) == len(asked)


def test_a_look_that_queues_a_job_writes_each_row_once(service: Running, iceberg: IcebergCatalog) -> None:
    policy = {"name": "eager", "settings": {"convert": {"delete_files": 1}, "index": {"enabled": False}}}
    service.admin.post("/policies", json=policy).raise_for_status()
    iceberg.create("db.quiet")
    service.register(iceberg)
    table = service.enroll("db.quiet", policy="eager")
    iceberg.append("db.quiet", [1, 2])
    with polling(service) as (poller, _):
        poller.poll(table["id"])
        iceberg.delete_keys("db.quiet", [1])
        asked = statements_of_a_look(service, poller, table)
    assert len(asked) <= 12, "\n".join(asked)
    written = [" ".join(one.split()[:3]) for one in asked if not one.startswith("SELECT")]
    assert any(one.startswith("INSERT INTO jobs") for one in written)
    assert len(set(written)) == len(written)
    assert not any(one.startswith("SAVEPOINT") for one in written)


def test_no_file_is_opened_once_a_look_is_stored(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may be slow, and others wait for what is locked."""
    service.register(iceberg)
    iceberg.append("db.t", [1])
    manage = iceberg.catalog.load_table("db.t").manage_snapshots()
    manage.create_branch(iceberg.head("db.t"), "ingest").commit()
    iceberg.delete_keys("db.t", [1], branch="ingest")
    table = service.enroll(publish={"from": "ingest"})

    def store(*found: Any) -> Any:
        with pytest.MonkeyPatch.context() as stored:
            stored.setattr(GuardedFileIO, "new_input", Mock(side_effect=AssertionError("a file is opened")))
            return store_look(*found)

    monkeypatch.setattr("service.scheduling.poller.store_look", store)
    with polling(service) as (poller, _):
        poller.poll(table["id"])
    assert health(service, table)["staged_snapshots"] == 1


@ON_BOTH
def test_looks_wait_for_each_other_only_once_all_else_is_written(
    service: Running, iceberg: IcebergCatalog
) -> None:
    """The rows of the totals are those of many tables."""
    iceberg.create("db.new")
    service.register(iceberg)
    table = service.enroll("db.new", policy="manual")
    iceberg.append("db.new", [1, 2])
    iceberg.delete_keys("db.new", [1])
    with polling(service) as (poller, _):
        look = statements_of_a_look(service, poller, table)
    with statements_of(service.database) as asked, service.database.write() as session:
        delete_table(session, SYSTEM, table["id"], drop_index=True)
    for written in (look, [statement for statement, _ in asked]):
        assert any(one.startswith("INSERT INTO events") for one in written)
        assert written[-1].startswith("INSERT INTO pending_changes")


def statements_of_a_look(service: Running, poller: Poller, table: dict[str, Any]) -> list[str]:
    """What the database is asked, but for the beginnings of transactions."""
    with statements_of(service.database) as asked:
        poller.poll(table["id"])
    return [statement for statement, _ in asked if not statement.startswith("BEGIN")]


def test_a_look_opens_each_file_once_and_understands_no_two_that_are_alike(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.register(iceberg)
    tables = []
    for name in ("db.one", "db.other"):
        iceberg.create(name)
        iceberg.append(name, [1, 2])
        iceberg.delete_keys(name, [1])
        tables.append(service.enroll(name))
    opened: Counter[str] = Counter()
    understood: Counter[str] = Counter()
    file_ios = []
    open_file, make = _BoundedFile.open, GuardedFileIO.__init__

    def note_file(file: _BoundedFile, seekable: bool = True) -> Any:
        opened[file.location] += 1
        return open_file(file, seekable)

    def note_schema(written: str) -> Any:
        understood[written] += 1
        return avro_readers.read_schema(written)

    def note_file_io(file_io: GuardedFileIO, properties: Any) -> None:
        file_ios.append(file_io)
        make(file_io, properties)

    monkeypatch.setattr(_BoundedFile, "open", note_file)
    monkeypatch.setattr("service.catalogs.manifests.read_schema", note_schema)
    monkeypatch.setattr(GuardedFileIO, "__init__", note_file_io)
    manifests._reader.__wrapped__.cache_clear()  # type: ignore[attr-defined]
    with polling(service) as (poller, _):
        for table in tables:
            poller.poll(table["id"])
            assert len(understood) == 2, "lists, and manifests"
        assert health(service, tables[1])["pending_equality_deletes"] == 1
        files = len(opened)
        poller.poll(tables[0]["id"])
    assert len(file_ios) == 3
    # Metadata and lists are read again, what is told apart by its name is not.
    assert (len(opened), sorted(opened.values())) == (files, [1] * (files - 2) + [2, 2])
    assert set(understood.values()) == {1}


def test_a_look_weighs_once_what_readers_pay(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "convert": {"when": "worthwhile", "reads_per_day": 1},
        "rewrite_data_files": {"enabled": True},
    }
    service.admin.post("/policies", json={"name": "worthwhile", "settings": settings})
    iceberg.delete_keys("db.t", [1])
    service.register(iceberg)
    table = service.enroll(policy="worthwhile")
    weighed = []
    weigh = facts.weigh

    def note(state: facts.TableState, policy: EffectivePolicy) -> Any:
        weighed.append(state)
        return weigh(state, policy)

    monkeypatch.setattr(facts, "weigh", note)
    with polling(service) as (poller, _):
        poller.poll(table["id"])
        before = len(weighed)
        poller.poll(table["id"])
    assert len(weighed) - before == 1


def test_a_look_decides_until_the_first_kind_on_which_time_decides_otherwise(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = {"convert": {"age_seconds": 86_400}, "index": {"enabled": False}}
    service.admin.post("/policies", json={"name": "patient", "settings": policy}).raise_for_status()
    iceberg.delete_keys("db.t", [1])
    service.register(iceberg)
    table = service.enroll(policy="patient")
    decided: dict[tuple[JobKind, datetime], bool] = {}
    codes: dict[JobKind, str] = {}

    def note(kind: JobKind, state: Any, policy: Any, now: datetime, *rest: Any, **named: Any) -> Any:
        found = decide_kind(kind, state, policy, now, *rest, **named)
        assert (kind, now) not in decided
        decided[kind, now] = found.code != codes.setdefault(kind, found.code)
        return found

    for module in ("decisions", "scheduler"):
        monkeypatch.setattr(f"service.scheduling.{module}.decide_kind", note)
    with polling(service) as (poller, _):
        poller.poll(table["id"])
    assert [number for number, is_other in enumerate(decided.values()) if is_other] == [len(decided) - 1]


def test_a_look_that_finds_the_same_works_out_no_costs_anew_and_makes_a_row_of_a_sample(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    iceberg.delete_keys("db.t", [1])
    service.register(iceberg)
    table = service.enroll(policy="manual")
    service.poll(table["id"])
    monkeypatch.setattr("service.reader_cost.seconds_of", Mock(side_effect=AssertionError("it is known")))
    monkeypatch.setattr(samples, "HealthSample", Mock(side_effect=AssertionError("objects are slow")))
    monkeypatch.setattr(samples, "_SAMPLE_SECONDS", 0)
    service.poll(table["id"])
    with service.database.read() as session:
        first, second = session.exec(select(HealthSample).order_by(col(HealthSample.id))).all()
    of_time = {"lag_seconds", "hour_longest_lag_seconds", "day_longest_lag_seconds"}
    given = first.model_dump(exclude={"id", "at", "resolution", *of_time})
    assert second.model_dump(include=set(given)) == given
    assert (first.resolution, second.resolution) != ("day", "day")
    assert second.lag_seconds == second.hour_longest_lag_seconds > first.lag_seconds


def test_what_is_heard_of_is_read_at_once_and_without_what_it_tells(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    table = service.enroll(policy="manual")
    with polling(service) as (poller, _):
        let_ticks_pass(poller)
        end_job(service, f"/tables/{table['id']}")
        with statements_of(service.database) as asked:
            poller.poll_news()
        wait_until(lambda: not any(one.busy for one in poller._lanes.values()), "polls to end")
    (heard,) = [one for one, _ in asked if "FROM events" in one]
    assert "events.message" not in heard


def test_what_tells_of_all_tables_is_asked_once_for_all_of_them(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for those that have turns of their own, such as one of which it is told that it has changed."""
    service.register(iceberg)
    for number in range(3):
        iceberg.create(f"db.t{number}")
        service.enroll(f"db.t{number}")
    compared = []
    sweep = Poller._sweep

    def note(poller: Poller, catalog_id: str, lane: _Lane, tables: dict[str, _Tracked]) -> None:
        compared.append({table.identifier[-1] for table in tables.values()})
        sweep(poller, catalog_id, lane, tables)

    now = 1000.0
    with polling(service, 10, lambda: now) as (poller, catalogs):
        tick_until(poller, lambda: catalogs.loads.total() == 3)
        now += 12
        let_ticks_pass(poller)
        monkeypatch.setattr(Poller, "_sweep", note)
        (lane,) = poller._lanes.values()
        tables = {table.identifier[-1]: table for table in lane.tables.values()}
        tables["t1"].again = 1
        tables["t1"].next_at = tables["t1"].wake_at = now
        tables["t2"].pace = replace(tables["t2"].pace, seconds=100)
        let_ticks_pass(poller)
        assert compared == [{"t1"}]
        now += 8
        let_ticks_pass(poller)
        assert compared == [{"t1"}]
        now += 4
        let_ticks_pass(poller)
        assert compared == [{"t1"}, set(tables)]
        for table in tables.values():
            table.pace = replace(table.pace, seconds=60)
        now += 12
        let_ticks_pass(poller)
        del compared[:]
        now += 52
        let_ticks_pass(poller)
        assert not compared, "all are told of"
        now += 15
        let_ticks_pass(poller)
        assert compared == [set(tables)]
        assert catalogs.loads.total() == 3


@ON_BOTH
def test_tables_are_listed_again_only_if_something_may_have_changed(
    service: Running, iceberg: IcebergCatalog
) -> None:
    settled(service, iceberg)
    lists: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        if statement.startswith("SELECT tables.id, tables.catalog_id, tables.identifier, catalogs.type"):
            lists.append(statement)

    catalogs = IcebergCatalogs(service.settings)
    settings = service.settings.model_copy(update={"poll_interval_seconds": 3600.0})
    poller = Poller(service.database, settings, catalogs)
    event.listen(service.database.engine, "before_cursor_execute", note)
    try:
        for expected, change in ((1, None), (2, "/system/pause"), (3, "/catalogs/local/pause")):
            if change is not None:
                assert service.admin.post(change).is_success
            for _ in range(3):
                poller.poll_due()
            assert len(lists) == expected
        for change in ("/system/resume", "/catalogs/local/resume"):
            service.admin.post(change)
        table = service.enroll()
        poller.poll_due()
        assert len(lists) == 4
        end_job(service, f"/tables/{table['id']}", status="succeeded", health=index_report())
        poller.poll_due()
        assert len(lists) == 4, "of a report, the job that has ended tells"
    finally:
        event.remove(service.database.engine, "before_cursor_execute", note)
        poller.stop()
        catalogs.close()


def test_a_table_that_is_removed_is_forgotten(service: Running, iceberg: IcebergCatalog) -> None:
    table = settled(service, iceberg)
    with polling(service) as (poller, catalogs):
        tick_until(poller, lambda: catalogs.loads["local.db.quiet"] == 1)
        assert service.admin.delete(f"/tables/{table['id']}").status_code in (200, 202, 204)
        tick_until(poller, lambda: not poller._lanes)
