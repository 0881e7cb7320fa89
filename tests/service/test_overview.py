"""The whole installation in one answer: figures of all tables, and what needs a person."""

from pathlib import Path
from typing import Any

from service import __version__
from service.records.api_keys import Role
from tests.service.conftest import Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog

# Sums and sentences are made in Python; both databases keep what they are made of alike.
database_kind = alike_on_both


def overview(service: Running) -> Any:
    return service.admin.get("/overview").raise_for_status().json()


def test_an_installation_where_all_is_well_has_its_figures_and_no_concern(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    table = service.enroll()
    iceberg.delete_keys("db.t", [1, 2])
    service.poll(table["id"])
    service.start_worker()
    told = overview(service)
    assert told["concerns"] == []
    assert (told["version"], told["paused"], told["alive_workers"]) == (__version__, False, 1)
    assert told["tables"] == {"healthy": 1, "lagging": 0, "degraded": 0, "blocked": 0, "unknown": 0}
    assert (told["pending_equality_delete_files"], told["pending_equality_deletes"]) == (1, 2)
    assert told["lag_seconds"] > 0
    assert told["queued_jobs"] == len(service.admin.get("/jobs?status=queued").json()["items"])


def test_what_needs_a_person_comes_with_a_remedy_and_the_gravest_first(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    table = service.enroll()
    service.admin.post("/system/pause").raise_for_status()
    Path(iceberg.catalog.load_table("db.t").metadata_location.removeprefix("file://")).unlink()
    service.poll(table["id"])
    told = overview(service)
    assert [one["title"] for one in told["concerns"]] == [
        "local.db.t is unknown",
        "The system is paused",
        "No worker is alive",
    ]
    assert [one["severity"] for one in told["concerns"]] == ["error", "warning", "warning"]
    assert all(one["remedy"] and one["path"].startswith("/") for one in told["concerns"])
    service.admin.post("/system/resume").raise_for_status()
    service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "index"}).raise_for_status()
    idle = next(one for one in overview(service)["concerns"] if one["title"] == "No worker is alive")
    assert (idle["detail"], idle["severity"]) == ("1 job can't run.", "error")


def test_only_admins_are_told_of_webhooks(service: Running) -> None:
    service.start_worker()
    with service.client(Role.VIEWER) as viewer:
        assert viewer.get("/overview").json()["concerns"] == []


def test_tables_are_listed_with_what_is_pending_and_sorted_by_it(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    for name in ("db.a", "db.b"):
        iceberg.create(name)
    numbers = {"db.a": 0, "db.b": 3, "db.t": 1}
    for name, number in numbers.items():
        table = service.enroll(name)
        if number:
            iceberg.delete_keys(name, list(range(number)))
        service.poll(table["id"])
    listed = service.admin.get("/tables?sort=-pending_equality_deletes").json()["items"]
    assert [(one["name"], one["pending_equality_deletes"]) for one in listed] == [
        ("db.b", 3),
        ("db.t", 1),
        ("db.a", 0),
    ]
    assert [one["lag_seconds"] > 0 for one in listed] == [True, True, False]
    assert all(one["measured_at"] for one in listed)
    pages = service.admin.get("/tables?sort=-pending_equality_deletes&limit=1").json()
    following = service.admin.get(
        f"/tables?sort=-pending_equality_deletes&limit=1&cursor={pages['next_cursor']}"
    ).json()
    assert [one["name"] for one in following["items"]] == ["db.t"]
