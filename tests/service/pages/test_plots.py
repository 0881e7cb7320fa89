"""What plots show and when: what was measured, at the times at which it was."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select

from service.db.database import utc_now
from service.index_health.samples import append_sample
from service.jobs import conversions
from service.records.health import HealthSample, TableHealth, add_pending
from service.records.jobs import Job
from service.settings import Settings
from service.ui import __file__ as pages
from service.ui import tables as table_pages
from tests.service.conftest import ADMIN_KEY, Running, running
from tests.service.health_samples import health_sample
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.pages.person import Page, Person

_TABLE = re.compile(r"<table[^>]*>\s*(<caption)?")
Ended = tuple[float, int | None, dict[str, Any]]


@pytest.fixture
def fleet(tmp_path: Path, migrated_sqlite: Path) -> Iterator[Running]:
    """A service with the tables `a` and `b`, of which nothing was measured yet."""
    (tmp_path / "icestream.db").write_bytes(migrated_sqlite.read_bytes())
    url = f"sqlite:///{tmp_path / 'icestream.db'}"
    settings = Settings(data_dir=tmp_path, database_url=url, bootstrap_key=ADMIN_KEY, background=False)
    iceberg = IcebergCatalog(tmp_path)
    with running(settings) as service:
        service.register(iceberg)
        for name in ("db.a", "db.b"):
            iceberg.create(name)
            service.enroll(name, policy="manual")
        yield service
    iceberg.close()


def measured(service: Running, now: datetime, samples: list[tuple[str, float, int]]) -> None:
    """samples: table, minutes ago, and equality deletes then, oldest first; a table has its last ones now."""
    ids = {table["name"]: table["id"] for table in service.admin.get("/tables").json()["items"]}
    last: dict[str, HealthSample] = {}
    with service.database.write() as session:
        for name, minutes, deletes in samples:
            at = now - timedelta(minutes=minutes)
            sample = health_sample(ids[f"db.{name}"], at, deletes)
            append_sample(session, last.get(name), sample)
            session.flush()
            last[name] = sample
            health = session.get_one(TableHealth, ids[f"db.{name}"])
            health.pending_equality_deletes = deletes
            add_pending(session, health.table_id, health.count_pending(), at)


def drawn(page: Page, now: datetime) -> list[tuple[float, int]]:
    """Minutes ago and equality deletes, as the first plot of a page tells them."""
    told = next(iter(page.plots.values()))
    return [
        (round((now.timestamp() - told["began"] - second) / 60, 1), value)
        for second, value in zip(told["times"], told["values"], strict=True)
    ]


@pytest.mark.parametrize("days", [1, 7, 30, 90])
def test_a_newcomer_sees_deletes_from_their_measurement_until_the_one_that_finds_them_converted(
    fleet: Running, days: int
) -> None:
    now = utc_now()
    measured(fleet, now, [("a", 20, 3000), ("b", 15, 500), ("a", 8, 0), ("a", 1, 40)])
    with Person(fleet) as admin:
        told = drawn(admin.open(f"/?days={days}"), now)
        table = fleet.admin.get("/tables?search=db.a").json()["items"][0]["id"]
        of_table = drawn(admin.open(f"/tables/{table}?days={days}"), now)
    # The line goes on until the page was made, with what was measured last.
    assert [deletes for _, deletes in told[:4]] == [3000, 3500, 500, 540]
    assert all(0 <= at - told <= 1 for at, (told, _) in zip((20, 15, 8, 1), told, strict=False))
    assert {deletes for _, deletes in told[3:]} == {540}
    assert of_table[:3] == [(20, 3000), (8, 0), (1, 40)]
    assert of_table[3][0] <= 0


def test_samples_too_many_to_be_drawn_one_by_one_are_thinned_from_the_oldest_on_and_keep_their_times(
    fleet: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_pages, "_DRAWN_SAMPLES", 3)
    # Seconds to the hour: 59:59, 10:00, 50:00, ...
    noon = utc_now().replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=1)
    minutes = [-40, 10, 50, 70, 130, 140, 150]
    with fleet.database.read() as session:
        now = noon + timedelta(minutes=160)
    measured(fleet, now, [("a", 160 - minute, minute + 100) for minute in minutes])
    with fleet.database.read() as session:
        table_id = session.exec(select(HealthSample.table_id)).first()
        assert table_id is not None
        samples = table_pages._samples(session, table_id, now - timedelta(hours=20), now, 1)
    # 12:10 was not the last of its hour; the last three are all there.
    expected = [-40, 50, 70, 130, 140, 150]
    assert [(sample.at.astimezone(UTC) - noon).total_seconds() / 60 for sample in samples] == expected


def ended(service: Running, now: datetime, ends: list[Ended]) -> str:
    """Jobs of table `a`, whose id it returns: minutes ago, delete files that were removed, and what differs
    from a conversion that succeeded."""
    table = service.admin.get("/tables?search=db.a").json()["items"][0]
    with service.database.write() as session:
        for minutes, removed, other in ends:
            at = now - timedelta(minutes=minutes)
            fields = {
                "kind": "convert",
                "status": "succeeded",
                "result": {} if removed is None else {"equality_delete_files_removed": removed},
                "writes": True,
                "trigger": "request",
                "requested_by": "admin",
                "max_attempts": 3,
                "backoff_seconds": 1,
                "max_backoff_seconds": 1,
                "created_at": at,
                "started_at": at,
                "ended_at": at,
            }
            owner = {name: table[name] for name in ("table_uuid", "catalog_id")} | {"table_id": table["id"]}
            session.add(Job.model_validate(owner | fields | other))
    return str(table["id"])


def marks(page: Page, now: datetime) -> list[float]:
    """Minutes ago."""
    told = next(iter(page.plots.values()))
    return [round((now.timestamp() - told["began"] - second) / 60, 1) for second in told["marks"]]


def test_all_that_converted_in_the_span_counts_however_many_jobs_came_after_it(fleet: Running) -> None:
    now = utc_now()
    measured(fleet, now, [("a", 100, 160_000), ("a", 50, 0)])
    later: list[Ended] = [(minutes / 10, None, {"kind": "index"}) for minutes in range(60)]
    rewriting = {"equality_delete_files_removed": 2, "equality_deletes_resolved": 40, "data_files": {}}
    others: list[Ended] = [
        (40, None, {"kind": "rewrite_data_files", "result": rewriting}),
        (35, None, {"kind": "erase", "result": rewriting | {"equality_deletes_resolved": 2}}),
        (30, 0, {"kind": "rewrite_data_files"}),
    ]
    table = ended(fleet, now, [(50, 3, {}), *others, (25, 1, {}), *later])
    with Person(fleet) as admin:
        page = admin.open(f"/tables/{table}")
        overview = admin.open("/").text.replace("\N{NO-BREAK SPACE}", " ")
    assert marks(page, now) == [50, 40, 35, 25]
    assert "Deletes resolved 42 in the last 24 hours, by 4 jobs" in overview
    assert "Pending equality deletes conversion 24 hours" in page.text


def test_what_converted_nothing_is_neither_marked_nor_counted_as_a_conversion(fleet: Running) -> None:
    now = utc_now()
    measured(fleet, now, [("a", 100, 7), ("a", 50, 7)])
    refused = {"file_path": "f", "reason": "r", "remedy": "m"}
    blocked = {"result": {"equality_delete_files_removed": 0, "unconvertible": [refused]}}
    idle: list[Ended] = [
        (40, 3, {"dry_run": True, "writes": False}),
        (30, 0, blocked),
        (20, None, {}),
        (10, 3, {"status": "failed"}),
    ]
    table = ended(fleet, now, idle)
    with Person(fleet) as admin:
        page = admin.open(f"/tables/{table}")
        overview = admin.open("/").text
    assert marks(page, now) == []
    assert "Pending equality deletes 24 hours" in page.text
    assert "by 0 jobs" in overview.replace("\N{NO-BREAK SPACE}", " ")


def test_conversions_too_many_to_be_marked_one_by_one_share_marks_and_the_page_says_so(
    fleet: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversions, "LISTED_CONVERSIONS", 300)
    now = utc_now()
    measured(fleet, now, [("a", 100, 7), ("a", 50, 0)])
    table = ended(fleet, now, [(minutes / 10, 1, {}) for minutes in range(1000)])
    with fleet.database.read() as session:
        listed = conversions.list_conversion_times(session, table, now - timedelta(days=1))
    assert len(listed) == 250
    assert listed == sorted(listed)
    assert listed[-1] == now
    with Person(fleet) as admin:
        page = admin.open(f"/tables/{table}")
        of_a_year = admin.open(f"/tables/{table}?days=365").text
    assert 200 < len(marks(page, now)) <= 240
    assert "conversions; one mark stands for those that are close" in page.text
    assert "(of the last 90 days: older jobs are not kept)" in of_a_year


def test_each_table_says_what_it_is_of() -> None:
    """A screen reader that goes from table to table reads captions, and no names of what is around them."""
    templates = list(Path(pages).parent.rglob("*.html"))
    tables = [(file.name, found[1]) for file in templates for found in _TABLE.finditer(file.read_text())]
    assert len(tables) > 20
    assert [name for name, caption in tables if not caption] == []
