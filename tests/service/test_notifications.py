"""Whoever hears of a commit first says so, and the table is looked at then, however seldom it is polled."""

import json
import runpy
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from sqlalchemy.exc import TimeoutError as NoConnectionError
from sqlmodel import func, select
from standardwebhooks import Webhook as Signer

from service.db.database import Database, utc_now
from service.notifications import senders
from service.records.notifications import Notification, NotificationSender
from service.records.tables import EnrolledTable
from service.scheduling.looks import Polled
from service.scheduling.poller import Poller, _Basis, _Lane, _Tracked
from service.settings import Settings
from service.webhooks.signing import new_secret
from service.workers.waiting import Claims
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import ON_BOTH, ManualTime, Running, alike_on_both, running
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.pages.person import Person
from tests.service.test_poller import health, let_ticks_pass, polling, tick_until

database_kind = alike_on_both
SECRET = new_secret()
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "notifications" / "signed.py"
SELDOM = 3600.0
"""Seconds between polls: whatever is seen before was told."""


@pytest.fixture
def service(settings: Settings) -> Iterator[Running]:
    with running(settings.model_copy(update={"poll_interval_seconds": SELDOM})) as service:
        yield service


def enrolled(service: Running, iceberg: IcebergCatalog) -> dict[str, Any]:
    service.register(iceberg)
    return service.enroll(policy="manual")


def pending(service: Running, table: dict[str, Any]) -> int:
    return int(health(service, table)["pending_equality_delete_files"])


def notify(service: Running, path: str, body: Any = None) -> dict[str, int]:
    answer = service.admin.post(path, json=body)
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


@ON_BOTH
def test_a_commit_that_is_told_is_seen_at_once(service: Running, iceberg: IcebergCatalog) -> None:
    table = enrolled(service, iceberg)
    path = f"/tables/{table['id']}/notifications"
    with polling(service) as (poller, catalogs):
        tick_until(poller, lambda: health(service, table)["measured_at"] is not None)
        iceberg.delete_keys("db.t", [1])
        for _ in range(3):
            poller.poll_due()
        assert (catalogs.loads["local.db.t"], pending(service, table)) == (1, 0)
        for _ in range(5):  # which are one reason to look
            assert notify(service, path) == {"notified": 1, "unknown": 0}
        tick_until(poller, lambda: pending(service, table) == 1)
        for _ in range(3):
            poller.poll_due()
        assert catalogs.loads["local.db.t"] == 2
    with service.database.read() as session:
        assert session.exec(select(func.count()).select_from(Notification)).one() == 0


def test_what_is_told_is_looked_at_before_any_table_that_is_only_due(
    service: Running, iceberg: IcebergCatalog
) -> None:
    table = enrolled(service, iceberg)
    iceberg.create("db.other")
    other = service.enroll("db.other", policy="manual")
    with polling(service) as (poller, catalogs):
        for each in (table, other):
            tick_until(poller, lambda each=each: health(service, each)["measured_at"] is not None)  # type: ignore[misc]
        (lane,) = poller._lanes.values()
        due = lane.tables[other["id"]]
        due.fresh_until = due.next_at = due.wake_at = 0.0
        iceberg.delete_keys("db.t", [1])
        notify(service, f"/tables/{table['id']}/notifications")
        poller.poll_news()
        wait_until(lambda: pending(service, table) == 1)
        poller.poll_news()  # of which there are none
        assert catalogs.loads == {"local.db.t": 2, "local.db.other": 1}
        tick_until(poller, lambda: catalogs.loads["local.db.other"] == 2)


def test_a_commit_that_is_told_during_a_poll_is_looked_at_by_another(
    service: Running, iceberg: IcebergCatalog
) -> None:
    table = enrolled(service, iceberg)
    with polling(service) as (poller, catalogs):
        catalogs.slow = "local"
        tick_until(poller, lambda: catalogs.waiting == 1)
        notify(service, f"/tables/{table['id']}/notifications")
        poller.poll_due()
        catalogs.go_on.set()
        tick_until(poller, lambda: catalogs.loads["local.db.t"] == 2)


def test_a_service_that_waits_is_woken(settings: Settings, iceberg: IcebergCatalog) -> None:
    idle = {"background": True, "scheduler_interval_seconds": SELDOM, "poll_interval_seconds": SELDOM}
    with running(settings.model_copy(update=idle)) as service:
        table = enrolled(service, iceberg)
        path = f"/tables/{table['id']}/notifications"
        # The first tick was before the table was there, so this one lists it.
        notify(service, path)
        wait_until(lambda: health(service, table)["measured_at"] is not None)
        iceberg.delete_keys("db.t", [1])
        notify(service, path)
        wait_until(lambda: pending(service, table) == 1)
        iceberg.delete_keys("db.t", [2])
        service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "verify"})
        assignment = service.claim(service.start_worker())
        assert assignment is not None
        service.finish(assignment)  # what follows a job does not wait either
        wait_until(lambda: pending(service, table) == 2)


def test_what_follows_a_commit_that_is_told_is_claimed_without_any_interval(
    settings: Settings, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.workers.waiting._LOOK_SECONDS", SELDOM)
    idle = {"background": True, "scheduler_interval_seconds": SELDOM, "poll_interval_seconds": SELDOM}
    with (
        running(settings.model_copy(update=idle)) as service,
        ThreadPoolExecutor(1) as thread,
        monkeypatch.context() as held,
    ):
        eager = {"convert": {"delete_files": 1}, "index": {"enabled": False}}
        service.admin.post("/policies", json={"name": "eager", "settings": eager}).raise_for_status()
        service.register(iceberg)
        table = service.enroll(policy="eager")
        path = f"/tables/{table['id']}/notifications"
        notify(service, path)
        wait_until(lambda: health(service, table)["measured_at"] is not None)
        waits = threading.Event()
        wait = Claims._look

        async def look(claims: Claims) -> None:
            waits.set()
            await wait(claims)

        held.setattr(Claims, "_look", look)
        claimed = thread.submit(service.claim, service.start_worker(), 60)
        assert waits.wait(PATIENCE_SECONDS)
        iceberg.delete_keys("db.t", [1])
        notify(service, path)
        assignment = claimed.result()
        assert assignment is not None
        assert (assignment["table"]["id"], assignment["job"]["kind"]) == (table["id"], "convert")


def wait_until(is_met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_met():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_where_commits_are_told_tables_are_polled_less_often(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.scheduling.poller.random.uniform", lambda low, high: (low + high) / 2)
    table = enrolled(service, iceberg)
    with polling(service) as (poller, catalogs):

        def look(count: int) -> float:
            """When the table is polled next, after so many polls, in intervals."""
            tick_until(poller, lambda: catalogs.loads["local.db.t"] == count and not busy(poller))
            (lane,) = poller._lanes.values()
            tracked = lane.tables[table["id"]]
            return round((tracked.next_at - time.monotonic()) / SELDOM)

        def busy(poller: Any) -> int:
            return sum(lane.busy + lane.sweeps for lane in poller._lanes.values())

        assert look(1) == 1
        iceberg.delete_keys("db.t", [1])
        notify(service, f"/tables/{table['id']}/notifications")
        assert look(2) == 6
        with monkeypatch.context() as patched:
            patched.setattr("service.scheduling.poller._AGAIN_SECONDS", ())
            notify(service, f"/tables/{table['id']}/notifications")  # of a commit that does not come soon
            assert look(3) == 1
        watch = health(service, table)["watch"]
        assert (watch["is_told"], watch["polled_every_seconds"]) == (False, SELDOM)
        iceberg.delete_keys("db.t", [2])
        notify(service, f"/tables/{table['id']}/notifications")
        assert look(4) == 6
        told = {"is_told": True, "polled_every_seconds": 6 * SELDOM, "awaited_until": None}
        assert health(service, table)["watch"] == told
        with Person(service) as person:
            shown = person.open(f"/tables/{table['id']}").text
        assert "notified; polled every 6 h" in shown
        iceberg.delete_keys("db.t", [3])  # of which nobody tells
        (lane,) = poller._lanes.values()
        lane.together_at = 0.0
        assert look(5) == 1
        iceberg.delete_keys("db.t", [4])
        notify(service, f"/tables/{table['id']}/notifications")
        assert look(6) == 6
    with polling(service) as (poller, _):  # as after a start
        poller.poll_due()
        (lane,) = poller._lanes.values()
        assert lane.tables[table["id"]].tells


def compared(monkeypatch: pytest.MonkeyPatch, now: ManualTime) -> list[tuple[float, set[str]]]:
    """Of which tables the metadata locations were asked for, and when."""
    found = []
    sweep = Poller._sweep

    def note(poller: Poller, catalog_id: str, lane: _Lane, tables: dict[str, _Tracked]) -> None:
        found.append((now.monotonic, {table.identifier[-1] for table in tables.values()}))
        sweep(poller, catalog_id, lane, tables)

    monkeypatch.setattr(Poller, "_sweep", note)
    return found


def pass_by(now: ManualTime, poller: Poller, seconds: float) -> None:
    now.pass_by(seconds)
    let_ticks_pass(poller)


def test_a_commit_that_is_told_before_it_is_there_is_looked_for_soon(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a store, which tells of the metadata file that the catalog is then told of."""
    moment = utc_now()
    for module in ("scheduling.poller", "index_health.service"):
        monkeypatch.setattr(f"service.{module}.utc_now", lambda: moment)
    table = enrolled(service, iceberg)
    now = ManualTime()
    looks = compared(monkeypatch, now)
    with polling(service, monotonic=lambda: now.monotonic) as (poller, catalogs):
        let_ticks_pass(poller)
        notify(service, f"/tables/{table['id']}/notifications")
        let_ticks_pass(poller)
        assert (catalogs.loads["local.db.t"], looks) == (2, [])
        until = health(service, table)["watch"]["awaited_until"]
        assert datetime.fromisoformat(until) == moment + timedelta(seconds=7)
        with Person(service) as person:
            assert (
                "waits for a commit that was told; polled every" in person.open(f"/tables/{table['id']}").text
            )
        for seconds, count in ((0.9, 0), (0.2, 1), (1.8, 1), (0.3, 2), (3.8, 2), (0.3, 3), (60, 3)):
            pass_by(now, poller, seconds)
            assert len(looks) == count
        moment += timedelta(seconds=7)
        assert health(service, table)["watch"]["awaited_until"] is None
        notify(service, f"/tables/{table['id']}/notifications")
        let_ticks_pass(poller)
        pass_by(now, poller, 1.1)
        iceberg.delete_keys("db.t", [1])
        pass_by(now, poller, 2.1)
        assert (pending(service, table), catalogs.loads["local.db.t"], len(looks)) == (1, 4, 5)
        told = {"is_told": True, "polled_every_seconds": 6 * SELDOM, "awaited_until": None}
        assert health(service, table)["watch"] == told
        pass_by(now, poller, 60)
        assert len(looks) == 5


@pytest.mark.parametrize(
    ("is_notified", "again", "before", "found", "left"),
    [
        (True, 0, "seen", "seen", 3),
        (True, 2, "seen", "seen", 3),
        (False, 2, "seen", "seen", 1),  # as by a poll after a job's end
        (False, 0, "seen", "seen", 0),
        (True, 2, "seen", "new", 0),
        (True, 2, None, None, 0),  # the catalog does not answer: it has pauses of its own
    ],
)
def test_each_read_of_a_table_is_one_of_the_looks_that_are_left(
    is_notified: bool, again: int, before: str | None, found: str | None, left: int
) -> None:
    basis = _Basis("", 0, is_notified=is_notified, state=before, tells=False, again=again)
    assert basis.looks_again(Polled(is_reachable=True, metadata_state=found)) == left


def test_after_a_start_nothing_is_looked_for_but_once(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = enrolled(service, iceberg)
    now = ManualTime()
    looks = compared(monkeypatch, now)
    for told in (1, 0):
        with polling(service, monotonic=lambda: now.monotonic) as (poller, catalogs):
            let_ticks_pass(poller)
            if told:
                notify(service, f"/tables/{table['id']}/notifications")
            let_ticks_pass(poller)
            assert (catalogs.loads["local.db.t"], len(looks)) == (2 * told, 1 - told)
            if not told:
                pass_by(now, poller, 60)
                assert len(looks) == 1


def test_what_is_looked_for_soon_is_asked_for_together_and_without_the_rest(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.register(iceberg)
    tables = []
    for name in ("db.t", "db.other", "db.quiet"):
        if name != "db.t":
            iceberg.create(name)
        tables.append(service.enroll(name, policy="manual"))
    now = ManualTime()
    looks = compared(monkeypatch, now)
    with polling(service, monotonic=lambda: now.monotonic) as (poller, _):
        let_ticks_pass(poller)
        (lane,) = poller._lanes.values()
        lane.together_at = now.monotonic + SELDOM / 2
        for table in tables[:2]:
            notify(service, f"/tables/{table['id']}/notifications")
        let_ticks_pass(poller)
        pass_by(now, poller, 1)
        assert [names for _, names in looks] == [{"t", "other"}]


def test_however_often_a_table_is_told_of_few_looks_follow(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = enrolled(service, iceberg)
    now = ManualTime()
    looks = compared(monkeypatch, now)
    with polling(service, monotonic=lambda: now.monotonic) as (poller, catalogs):

        def tell(times: int) -> None:
            with service.database.write() as session:
                session.add_all([Notification(table_id=table["id"]) for _ in range(times)])
            let_ticks_pass(poller)

        let_ticks_pass(poller)
        tell(3_000)
        for _ in range(20):
            pass_by(now, poller, 1)
        assert (catalogs.loads["local.db.t"], len(looks)) == (2, 3)
        for seconds in [0.25] * 12 + [1.2] * 5 + [3.5] * 3:
            tell(1)
            pass_by(now, poller, seconds)
        for _ in range(20):
            pass_by(now, poller, 1)
    times = [at for at, _ in looks]
    assert min(later - earlier for earlier, later in pairwise(times)) >= 1
    assert catalogs.loads["local.db.t"] == 22, "one for each that was told"
    assert len(looks) == 3 + 5 + 3 + 2, "none before a second is over"


def test_a_service_that_is_told_too_early_knows_of_the_commit_once_it_is_there(
    settings: Settings, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a machine that stands still for some seconds, too.
    monkeypatch.setattr("service.scheduling.poller._AGAIN_SECONDS", (1.0, 2.0, 4.0, *[8.0] * 50))
    every = {"background": True, "scheduler_interval_seconds": 0.2, "poll_interval_seconds": SELDOM}
    with running(settings.model_copy(update=every)) as service:
        table = enrolled(service, iceberg)
        wait_until(lambda: health(service, table)["measured_at"] is not None)
        folder = iceberg.catalog.load_table("db.t").location()
        event = {"locations": [f"{folder}/metadata/00009-aa.metadata.json"]}
        assert notify(service, "/catalogs/local/commit-events", event) == {"notified": 1, "unknown": 0}
        wait_until(lambda: health(service, table)["watch"]["awaited_until"] is not None)
        time.sleep(0.5)
        iceberg.delete_keys("db.t", [1])
        wait_until(lambda: pending(service, table) == 1)
        assert health(service, table)["watch"]["is_told"]


def test_a_file_that_was_seen_already_is_no_reason_to_look(service: Running, iceberg: IcebergCatalog) -> None:
    """Events come late, too, and of what the service's own jobs have committed."""
    table = enrolled(service, iceberg)
    seen = iceberg.catalog.load_table("db.t").metadata_location
    other = seen.replace("/metadata/", "/metadata/x")
    path = "/catalogs/local/notifications"
    assert notify(service, path, {"locations": [seen]}) == {"notified": 1, "unknown": 0}
    with polling(service) as (poller, _):
        tick_until(poller, lambda: health(service, table)["measured_at"] is not None)
    told = [{"locations": [seen]}, {"locations": [seen.removeprefix("file://"), seen]}]
    for body in told:
        assert notify(service, path, body) == {"notified": 0, "unknown": 0}
    for body in ({"locations": [seen, other]}, {"locations": [seen], "tables": ["db.t"]}):
        assert notify(service, path, body) == {"notified": 1, "unknown": 0}


@ON_BOTH
def test_tables_are_told_by_names_and_by_metadata_files(
    service: Running, iceberg: IcebergCatalog, tmp_path: Path
) -> None:
    table = enrolled(service, iceberg)
    loaded = iceberg.catalog.load_table("db.t")
    head = loaded.current_snapshot()
    assert head is not None
    loaded.manage_snapshots().create_branch(head.snapshot_id, "audit").commit()
    branch = service.enroll(branch="audit", policy="manual")
    (tmp_path / "other").mkdir()
    other = IcebergCatalog(tmp_path / "other", "other")
    other.create("db.t")
    service.register(other)
    foreign = service.enroll(catalog="other", policy="manual")
    with service.database.read() as session:
        location = session.get_one(EnrolledTable, table["id"]).location.rstrip("/")
    path = "/catalogs/local/notifications"

    def taken() -> list[str]:
        with service.database.write() as session:
            found = session.exec(select(Notification)).all()
            for one in found:
                session.delete(one)
        return sorted(one.table_id for one in found)

    both = sorted([table["id"], branch["id"]])
    names = ["db.t", "db.none", "local.db.t", "local/db.t", "other.db.t"]
    assert notify(service, path, {"tables": names}) == {"notified": 2, "unknown": 2}
    assert taken() == both
    assert notify(service, path, {"tables": ["local.db.t"]}) == {"notified": 2, "unknown": 0}
    assert taken() == both
    place = location.removeprefix("file://")
    files = [f"{place}/metadata/1.metadata.json", f"file://{place}/metadata/2.gz.metadata.json"]
    assert notify(service, path, {"locations": files}) == {"notified": 2, "unknown": 0}
    assert taken() == both
    strange = [f"{place}/data/1.parquet", f"{place}2/metadata/1.metadata.json", "../x.metadata.json", "x"]
    assert notify(service, path, {"locations": strange}) == {"notified": 0, "unknown": 4}
    assert taken() == []
    assert notify(service, "/catalogs/other/notifications", {"tables": ["db.t"]})["notified"] == 1
    assert taken() == [foreign["id"]]
    refused = service.admin.post(path, json={})
    assert (refused.status_code, "name something" in refused.text) == (422, True)
    assert service.admin.post("/catalogs/none/notifications", json={"tables": ["t"]}).status_code == 404
    other.close()


EVENTS = {
    "s3": {
        "Records": [
            {"s3": {"bucket": {"name": "lake"}, "object": {"key": "db/t+%C3%A4/metadata/1.metadata.json"}}}
        ]
    },
    "eventbridge": {
        "source": "aws.s3",
        "detail-type": "Object Created",
        "detail": {"bucket": {"name": "lake"}, "object": {"key": "db/t ä/metadata/1.metadata.json"}},
    },
    "pubsub": {
        "message": {
            "attributes": {"bucketId": "lake", "objectId": "db/t ä/metadata/1.metadata.json"},
            "data": "e30=",
        }
    },
    "cloudevents": {
        "specversion": "1.0",
        "type": "Microsoft.Storage.BlobCreated",
        "data": {"url": "https://acc.blob.core.windows.net/lake/db/t ä/metadata/1.metadata.json"},
    },
    "event-grid": {
        "eventType": "Microsoft.Storage.BlobCreated",
        "data": {"url": "https://acc.blob.core.windows.net/lake/db/t ä/metadata/1.metadata.json"},
    },
}
PLACES = {
    "s3": "s3a://lake/db/t ä",
    "eventbridge": "s3://lake/db/t ä/",
    "pubsub": "gs://lake/db/t ä",
    "cloudevents": "abfss://lake@acc.dfs.core.windows.net/db/t ä",
    "event-grid": "abfs://lake@acc.dfs.core.windows.net/db/t ä",
}


@pytest.mark.parametrize("kind", EVENTS)
def test_events_of_object_stores_mean_the_table_whose_metadata_was_written(
    service: Running, iceberg: IcebergCatalog, kind: str
) -> None:
    table = enrolled(service, iceberg)
    with service.database.write() as session:
        session.get_one(EnrolledTable, table["id"]).location = PLACES[kind]
    path = "/catalogs/local/commit-events"
    assert notify(service, path, EVENTS[kind]) == {"notified": 1, "unknown": 0}
    other = json.loads(json.dumps(EVENTS[kind]).replace("lake", "pond"))
    assert notify(service, path, other) == {"notified": 0, "unknown": 1}


LAKEKEEPER = {
    "specversion": "1.0",
    "id": "0198d0f2-7c1e-7a30-b5c4-3f1f0a5f2e11",
    "type": "updateTable",
    "source": "uri:iceberg-catalog-service:lakekeeper-0",
    "datacontenttype": "application/json",
    "data": {"requirements": [], "updates": []},
    "tabular-type": "Table",
    "tabular-id": "0198d0f2-7c1e-7a30-b5c4-3f1f0a5f2e12",
    "warehouse-id": "0198d0f2-7c1e-7a30-b5c4-3f1f0a5f2e13",
    "name": "t",
    "namespace": "db",
    "prefix": "",
    "num-events": 1,
    "sequence-number": 0,
    "trace-id": "0198d0f2-7c1e-7a30-b5c4-3f1f0a5f2e15",
    "actor": '{"type":"principal","principal":"oidc~flink"}',
}
"""As Lakekeeper 0.13 makes it, and sends it by NATS."""
POLARIS = {
    "event_type": "AFTER_UPDATE_TABLE",
    "event_id": "0198d0f2-7c1e-7a30-b5c4-3f1f0a5f2e14",
    "timestamp": "2030-01-01T00:00:00Z",
    "table_name": "t",
    "namespace": ["db"],
    "catalog_name": "lake",
    "realm_id": "POLARIS",
    "principal": "flink",
    "activated_roles": ["writers"],
    "request_id": "0198d0f2-7c1e-7a30-b5c4-3f1f0a5f2e16",
}
"""As the Kafka listener of Polaris 1.7 makes it; the one for CloudWatch does not say which table it is."""


def test_events_of_catalogs_mean_the_table_that_was_changed(
    service: Running, iceberg: IcebergCatalog
) -> None:
    enrolled(service, iceberg)
    cases: list[tuple[Any, tuple[int, int]]] = [
        (LAKEKEEPER, (1, 0)),
        (LAKEKEEPER | {"namespace": "eu\x1fdb"}, (0, 1)),
        (LAKEKEEPER | {"type": "updateView", "tabular-type": "View"}, (0, 0)),
        (LAKEKEEPER | {"type": "dropTable", "data": None}, (0, 0)),
        ([LAKEKEEPER, LAKEKEEPER, LAKEKEEPER | {"name": "other"}], (1, 1)),
        (POLARIS, (1, 0)),
        # The service's own looks have such an event.
        (POLARIS | {"event_type": "AFTER_LOAD_TABLE"}, (0, 0)),
        ([], (0, 0)),
        ([{"tables": ["db.t"]}, POLARIS], (1, 0)),
    ]
    for events, counts in cases:
        found = notify(service, "/catalogs/local/commit-events", events)
        assert (found["notified"], found["unknown"]) == counts, events


def test_a_cloud_event_may_have_its_attributes_in_headers(service: Running, iceberg: IcebergCatalog) -> None:
    enrolled(service, iceberg)
    attributes = LAKEKEEPER | {"name": "%74"}
    data = attributes.pop("data")
    headers = {f"ce-{name}": str(value) for name, value in attributes.items()}
    answer = service.admin.post("/catalogs/local/commit-events", json=data, headers=headers)
    assert (answer.status_code, answer.json()) == (202, {"notified": 1, "unknown": 0})
    cloud = {"content-type": "application/cloudevents-batch+json"}
    batch = json.dumps([LAKEKEEPER]).encode()
    answer = service.admin.post("/catalogs/local/commit-events", content=batch, headers=cloud)
    assert (answer.status_code, answer.json()) == (202, {"notified": 1, "unknown": 0})


def test_what_is_no_event_of_a_commit_is_refused(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    events: list[Any] = [
        {},
        {"Records": [{}]},
        {"Records": ["s3"]},
        {"Records": [{"s3": {"bucket": {"name": "lake"}, "object": {"key": "k"}}}] * 101},
        {"Records": [{"s3": {"bucket": "lake", "object": {"key": 1}}}]},
        {"source": "aws.s3", "detail": {"bucket": {"name": "lake"}}},
        {"message": {"attributes": {"bucketId": "lake"}}},
        {"type": "Microsoft.Storage.BlobCreated", "data": {"url": "https://[x"}},
        {"event_type": "AFTER_UPDATE_TABLE", "realm_id": "r"},
        {"event_type": "AFTER_UPDATE_TABLE", "realm_id": "r", "namespace": [1], "table_name": "t"},
        {"type": "updateTable", "tabular-type": "Table", "namespace": 1, "name": "t"},
        [{"tables": ["db.t"]}] * 1_001,
        {"tables": [1]},
        {"locations": []},
    ]
    for event in events:
        answer = service.admin.post("/catalogs/local/commit-events", json=event)
        told = (answer.status_code, answer.json()["type"].rpartition("/")[2])
        assert told == (422, "event-not-understood"), event


def test_a_key_may_be_for_notifications_alone(service: Running, iceberg: IcebergCatalog) -> None:
    table = enrolled(service, iceberg)
    made = service.admin.post(
        "/api-keys", json={"name": "flink", "role": "operator", "scopes": ["notifications:write"]}
    ).json()
    headers = {"Authorization": f"Bearer {made['key']}"}
    path = f"/tables/{table['id']}"
    assert service.admin.post(f"{path}/notifications", headers=headers).status_code == 202
    assert service.admin.post(f"{path}/pause", headers=headers).json()["type"].endswith("/out-of-scope")
    assert service.admin.get(path, headers=headers).status_code == 403


class Sender:
    """Who signs notifications, with one key of those that are good."""

    def __init__(self, service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url, self.key, secret = service.url, Signer(SECRET), f"{new_secret()} {SECRET}"
        monkeypatch.setenv("WEBHOOK_FLINK", secret)
        body = {"name": "flink", "catalog": "local", "secret": "env:WEBHOOK_FLINK"}
        made = service.admin.post("/notification-senders", json=body)
        assert made.status_code == 201, made.text
        self.id = made.json()["id"]

    def send(self, body: bytes, message_id: str = "m", age: int = 0, **changed: str) -> httpx.Response:
        """changed: headers that are others than those that belong to it."""
        at = utc_now() - timedelta(seconds=age)
        headers = {
            "content-type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": self.key.sign(message_id, at, body.decode(errors="replace")),
        }
        headers |= {name.replace("_", "-"): value for name, value in changed.items()}
        path = f"{self.url}/api/v1/notification-senders/{self.id}/commit-events"
        return httpx.post(path, content=body, headers=headers, timeout=PATIENCE_SECONDS)


@pytest.fixture
def sender(service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> Sender:
    service.register(iceberg)
    return Sender(service, monkeypatch)


def told(service: Running) -> list[str]:
    with service.database.read() as session:
        return [one.table_id for one in session.exec(select(Notification))]


@ON_BOTH
def test_a_signed_notification_needs_no_key_and_is_taken_once(service: Running, sender: Sender) -> None:
    table = service.enroll(policy="manual")
    body = b'{"tables": ["db.t", "db.none"]}'
    for _ in range(3):  # as senders do that got no answer, and whoever overheard it
        answer = sender.send(body)
        assert (answer.status_code, answer.json()) == (202, {"received": 2})
    assert told(service) == [table["id"]]
    assert sender.send(b'{"tables": ["db.u"]}').json()["type"].endswith("/idempotency-key-reused")
    # Another of its own, though the same was asked for; a header that nobody signed makes no difference.
    for name in ("other", "other"):
        assert sender.send(body, name, idempotency_key=new_secret()).status_code == 202
    assert told(service) == [table["id"]] * 2
    assert sender.send(json.dumps(POLARIS).encode(), "third").json() == {"received": 1}
    tell = runpy.run_path(str(EXAMPLE))["tell"]
    tell(service.url, sender.id, SECRET, {"tables": ["db.t"]})
    assert told(service) == [table["id"]] * 4


def test_what_a_signature_does_not_cover_tells_nothing(service: Running, sender: Sender) -> None:
    """Whoever overheard a request may send it again with other headers."""
    service.enroll(policy="manual")
    answer = sender.send(
        b'{"tables": ["db.none"]}',
        ce_specversion="1.0",
        ce_type="updateTable",
        ce_tabular_type="Table",
        ce_namespace="db",
        ce_name="t",
    )
    assert answer.json() == {"received": 1}
    assert told(service) == []


def test_whoever_did_not_sign_is_refused_and_learns_nothing(
    service: Running, sender: Sender, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service.enroll(policy="manual")
    body = b'{"tables": ["db.t"]}'
    real = sender.id
    refused = [
        sender.send(body, age=301),
        sender.send(body, age=-3600),
        sender.send(body, webhook_id="another"),
        sender.send(body, webhook_timestamp="nan"),
        sender.send(body, webhook_timestamp=str(int(time.time()) + 7)),
        *(sender.send(body, webhook_signature=wrong) for wrong in ("", "v1,x", "v1", "v2,eA==", "v1,eA==")),
        sender.send(b"\xff" + body),
        sender.send(b"[" * 100_000, "deep"),
    ]
    assert refused.pop().json()["type"].endswith("/body-too-deep")  # which it had signed
    sender.id = "nobody"
    refused.append(sender.send(body))
    sender.id = real
    monkeypatch.delenv("WEBHOOK_FLINK")
    monkeypatch.setattr(senders, "monotonic", lambda: 60.0)
    senders._tell_once.cache_clear()
    refused += [sender.send(body) for _ in range(3)]
    assert [one.name for one in caplog.records].count("icestream.notifications") == 1
    refused += [sender.send(body, name) for name in ("", "m" * 256)]
    assert [refused.pop().status_code for _ in range(2)] == [422, 422]
    assert {answer.status_code for answer in refused} == {401}
    assert len({answer.json()["detail"] for answer in refused}) == 1
    assert sender.send(b" " * 300_000).status_code == 413
    assert told(service) == []


def test_what_cannot_be_noted_of_a_sender_fails_nothing_and_is_tried_once_a_minute() -> None:
    tries = []

    def write() -> None:
        tries.append(1)
        raise NoConnectionError("none of the connections was free")

    row = NotificationSender(name="s", catalog_id="c", secret=SECRET, created_by="a")
    for refusal in (None, None, "It is not signed", "It is not signed"):
        senders._note(cast("Database", SimpleNamespace(write=write)), row, refusal)
    assert len(tries) == 2


def test_who_fails_to_sign_too_often_has_to_wait(settings: Settings, iceberg: IcebergCatalog) -> None:
    with running(settings.model_copy(update={"failed_logins_per_minute": 3})) as service:
        path = f"{service.url}/api/v1/notification-senders/nobody/commit-events"
        statuses = [httpx.post(path, json={}, timeout=PATIENCE_SECONDS).status_code for _ in range(5)]
    assert statuses == [401, 401, 401, 429, 429]


def test_a_sender_tells_of_its_own_catalog_until_it_is_removed(
    service: Running, sender: Sender, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = IcebergCatalog(tmp_path / "other", "other")
    other.create("db.foreign")
    service.register(other)
    service.enroll("db.foreign", catalog="other", policy="manual")
    # Nor does the answer say that there is such a table.
    assert sender.send(b'{"tables": ["db.foreign"]}').json() == {"received": 1}
    assert told(service) == []
    (listed,) = service.admin.get("/notification-senders").json()["items"]
    assert (listed["name"], listed["catalog"], listed["secret"]) == ("flink", "local", "env:WEBHOOK_FLINK")
    assert service.admin.get("/notification-senders?catalog=local").json()["items"] == [listed]
    assert service.admin.get("/notification-senders?catalog=other").json()["items"] == []
    again = {"name": "flink", "catalog": "other", "secret": "env:WEBHOOK_FLINK"}
    assert service.admin.post("/notification-senders", json=again).status_code == 409
    for secret in ("env:PATH", SECRET):
        wrong = again | {"name": "s", "secret": secret}
        assert service.admin.post("/notification-senders", json=wrong).status_code == 422
    assert service.admin.delete(f"/notification-senders/{sender.id}").status_code == 204
    assert service.admin.delete(f"/notification-senders/{sender.id}").status_code == 404
    assert sender.send(b'{"tables": ["db.t"]}', "later").status_code == 401
    other.close()
