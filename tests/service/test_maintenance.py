"""Jobs that maintain a table: when policies start them, and that others may go on doing it."""

import re
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.transforms import IdentityTransform

from service.catalogs.measure import Since, measure_since
from service.db.database import is_id, new_id, utc_now
from service.index_health.status import OVERDUE
from service.jobs.assignments import expire_elsewhere
from service.records.health import TableHealth
from service.records.jobs import Job, JobKind
from stores.table_metadata import PLACE_PROPERTIES
from tests.service.conftest import ON_BOTH, Running, alike_on_both
from tests.service.iceberg_tables import SCHEMA, IcebergCatalog
from tests.service.pages.person import Person
from tests.service.queue_calls import statements_of

database_kind = alike_on_both

ORPHANS = "remove_orphan_files"
AT_ONCE = {"enabled": True, "older_than_seconds": 0, "age_seconds": 0, "min_interval_seconds": 0}


@pytest.fixture
def table(service: Running, iceberg: IcebergCatalog) -> dict[str, Any]:
    service.register(iceberg)
    for number in range(2):
        iceberg.append("db.t", [number])
    return dict(service.enroll())


def health(service: Running, table: dict[str, Any]) -> dict[str, Any]:
    service.poll(table["id"])
    return dict(service.admin.get(f"/tables/{table['id']}/health").json())


def expire_oldest(iceberg: IcebergCatalog) -> None:
    loaded = iceberg.catalog.load_table("db.t")
    oldest = min(loaded.metadata.snapshots, key=lambda one: one.timestamp_ms)
    loaded.maintenance.expire_snapshots().by_id(oldest.snapshot_id).commit()


@ON_BOTH
def test_snapshots_expire_by_a_job_of_the_policy_with_what_that_says(
    service: Running, iceberg: IcebergCatalog, table: dict[str, Any]
) -> None:
    found = health(service, table)
    assert (found["snapshots"], found["done_elsewhere"]) == (3, {})
    assert found["oldest_snapshot_at"] is not None
    assert found["decisions"]["expire_snapshots"]["code"] == "policy-off", "unless somebody asks for it"
    body = {"name": "tidy", "settings": {"expire_snapshots": AT_ONCE | {"retain_last": 2}}}
    assert service.admin.post("/policies", json=body).status_code == 201
    attached = {"level": "table", "table_id": table["id"], "policy": "tidy"}
    assert service.admin.put("/policy-attachments", json=attached).is_success
    service.poll(table["id"])
    (job,) = service.admin.get("/jobs?kind=expire_snapshots").json()["items"]
    assert job["parameters"] == {"older_than_seconds": 0, "retain_last": 2}
    assert "the oldest snapshot of the past is" in job["trigger"].lower()
    assert "icestream_snapshots 3.0" in service.admin.get(f"{service.url}/metrics").text


def test_that_somebody_else_lets_snapshots_expire_is_told_and_our_own_jobs_are_not(
    service: Running, iceberg: IcebergCatalog, table: dict[str, Any]
) -> None:
    health(service, table)
    answer = service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "expire_snapshots"})
    assert answer.status_code == 202
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    assert not assignment["table"]["snapshots_expire_elsewhere"]
    expire_oldest(iceberg)
    assert health(service, table)["done_elsewhere"] == {}, "a job of this kind runs"
    result = {"expiry": {"snapshots_expired": 1, "snapshots_left": 2}}
    service.finish(assignment, result=result)
    assert health(service, table)["done_elsewhere"] == {}

    iceberg.append("db.t", [9])
    expire_oldest(iceberg)
    found = health(service, table)
    assert found["snapshots"] == 2
    assert list(found["done_elsewhere"]) == ["expire_snapshots"]
    assert "done by another" in found["decisions"]["expire_snapshots"]["sentence"]
    assert told_of_others(service, table) == ["expire_snapshots"]

    assert service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "convert"}).status_code == 202
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    assert assignment["table"]["snapshots_expire_elsewhere"]


def test_who_let_snapshots_expire_a_season_ago_is_taken_to_be_gone() -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)

    def seen(days: int) -> bool:
        return expire_elsewhere({"expire_snapshots": (now - timedelta(days=days)).isoformat()}, now)

    assert (seen(1), seen(89), seen(91)) == (True, True, False)
    assert not expire_elsewhere({"rewrite_data_files": now.isoformat()}, now)


def told_of_others(service: Running, table: dict[str, Any]) -> list[str]:
    """The kinds of which an event tells that others do them, the first one first."""
    asked = f"/tables/{table['id']}/events?kind=table.maintained-elsewhere&sort=id"
    events = service.admin.get(asked).raise_for_status().json()["items"]
    return [event["fields"]["job_kind"] for event in events]


def replace(iceberg: IcebergCatalog, counted: dict[str, str]) -> None:
    """A commit that replaces files, as its snapshot says, by whoever has put these properties there."""
    iceberg.append("db.t", [1])
    snapshots = iceberg.metadata("db.t")["snapshots"]
    snapshots[-1]["summary"] |= {"operation": "replace", **counted}
    iceberg.rewrite("db.t", {"snapshots": snapshots})


@pytest.mark.parametrize("named", [None, "ours", "\0", "00000000-0000-4000-8000-000000000000"])
@pytest.mark.parametrize(("seen_id", "is_whole"), [(1, True), (9, False), (None, False)])
def test_a_snapshot_is_ours_if_it_names_a_job_that_is_known(
    named: str | None, seen_id: int | None, *, is_whole: bool
) -> None:
    """What is older than the last look may be by a job that history has no more."""
    ours = new_id()

    def known(claimed: Collection[str]) -> set[str]:
        assert all(map(is_id, claimed)), "no database is asked for anything else"
        return {ours} & {*claimed}

    def since(*job_ids: str | None) -> Since:
        snapshots = [
            SimpleNamespace(
                snapshot_id=number,
                parent_snapshot_id=number - 1 or None,
                summary=Summary(
                    Operation.REPLACE,
                    **{"manifests-replaced": "1"} | ({"icestream.job-id": one} if one is not None else {}),
                ),
            )
            for number, one in enumerate((ours, *job_ids), 1)
        ]
        metadata: Any = SimpleNamespace(snapshots=snapshots)
        return measure_since(metadata, len(snapshots), seen_id, known)

    found = since(ours)
    assert (found.by_jobs, dict(found.by_others), found.is_whole) == (True, {}, is_whole)
    found = since(named)
    assert (found.by_jobs, found.is_whole) == (not is_whole, is_whole)
    told = {JobKind.REWRITE_MANIFESTS} if is_whole or named is None else set()
    assert found.by_others.keys() == told


def test_that_somebody_else_replaces_files_is_told_and_our_own_jobs_are_not(
    service: Running, iceberg: IcebergCatalog, table: dict[str, Any]
) -> None:
    by_compaction = {"deleted-data-files": "3", "removed-delete-files": "1"}
    health(service, table)
    service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "index"})
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    service.finish(assignment)
    for counted in (by_compaction, {"removed-delete-files": "2"}, {"manifests-replaced": "2"}):
        replace(iceberg, {**counted, "icestream.job-id": assignment["job"]["id"]})
    with statements_of(service.database) as asked:
        assert health(service, table)["done_elsewhere"] == {}
    by_ids = "SELECT jobs.id \nFROM jobs \nWHERE jobs.id IN"
    assert not any(one.startswith(by_ids) for one, _ in asked), "that job is among the last ones"
    replace(iceberg, {**by_compaction, "icestream.job-id": new_id()})
    first = health(service, table)
    assert list(first["done_elsewhere"]) == ["rewrite_data_files"]
    told = first["decisions"]["rewrite_data_files"]["sentence"]
    assert "on request only. Compaction is done by another, seen last at" in told
    # What a worker reports is no look.
    replace(iceberg, {"removed-delete-files": "2"})
    service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "index"})
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    report = {"key_sets": [], "pending_equality_delete_files": 0, "pending_equality_deletes": 0}
    service.finish(assignment, health={**report, "iceberg_snapshot_id": iceberg.head("db.t")})
    replace(iceberg, {"manifests-replaced": "2"})
    replace(iceberg, by_compaction)
    found = health(service, table)["done_elsewhere"]
    kinds = ["rewrite_data_files", "rewrite_manifests", "rewrite_position_delete_files"]
    assert sorted(found) == kinds
    assert found["rewrite_data_files"] > first["done_elsewhere"]["rewrite_data_files"]
    assert sorted(told_of_others(service, table)) == kinds, "each once"
    with Person(service) as admin:
        page = admin.open(f"/tables/{table['id']}").text
    shown = page[page.index("Done by another") :]
    assert "rewrite manifests seen last at" in shown, shown[:200]


def test_an_expiry_that_never_gets_its_window_is_overdue_until_a_job_succeeds(
    service: Running, iceberg: IcebergCatalog, table: dict[str, Any]
) -> None:
    def overdue_seconds() -> float:
        told = service.admin.get(f"{service.url}/metrics").text
        named = r"^icestream_oldest_due_maintenance_age_seconds (.*)$"
        return float(re.findall(named, told, re.MULTILINE)[0])

    opens = utc_now() + timedelta(hours=6)
    window = {"start": f"{opens:%H:%M}", "end": f"{opens + timedelta(minutes=1):%H:%M}"}
    settings = {"index": {"enabled": False}, "expire_snapshots": AT_ONCE | {"windows": [window]}}
    assert service.admin.post("/policies", json={"name": "narrow", "settings": settings}).status_code == 201
    attached = {"level": "table", "table_id": table["id"], "policy": "narrow"}
    assert service.admin.put("/policy-attachments", json=attached).is_success
    found = health(service, table)
    decided = found["decisions"]["expire_snapshots"]
    assert (found["status"], decided["code"]) == ("healthy", "outside-window")
    assert datetime.fromisoformat(decided["due_since"]) == opens.replace(second=0, microsecond=0)
    assert overdue_seconds() == 0, "it may not start before"

    def be_due_since(moment: datetime) -> None:
        with service.database.write() as session:
            row = session.get_one(TableHealth, table["id"])
            since = row.decisions["expire_snapshots"] | {"due_since": moment.isoformat()}
            row.decisions = row.decisions | {"expire_snapshots": since}

    soon = utc_now() + timedelta(hours=1)
    be_due_since(soon - OVERDUE)
    looked = service.background.poller.poll(table["id"])
    assert looked.decide_at is not None
    assert timedelta() < looked.decide_at - soon < timedelta(seconds=1), "it is looked at then"
    was_due = utc_now() - timedelta(days=3)
    be_due_since(was_due)
    found = health(service, table)
    assert found["status"] == "degraded"
    assert found["status_reason"].startswith("Maintenance is overdue (expire snapshots). The oldest snapshot")
    assert found["status_reason"].endswith(f"It has been due since {was_due:%Y-%m-%d %H:%M} UTC.")
    assert "widen the policy's windows" in found["what_to_do"]
    assert overdue_seconds() > timedelta(days=2.9).total_seconds()
    with service.database.write() as session:
        session.get_one(TableHealth, table["id"]).status = "unknown"
    assert overdue_seconds() == 0, "nobody can look at it"
    service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "expire_snapshots"})
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    service.finish(assignment, result={"expiry": {"snapshots_expired": 1, "snapshots_left": 2}})
    assert health(service, table)["status"] == "healthy"
    assert overdue_seconds() == 0


def test_small_manifests_are_written_anew_by_a_job_of_the_policy_and_before_snapshots_expire(
    service: Running, table: dict[str, Any]
) -> None:
    assert health(service, table)["small_manifests"] == 3
    off = {"enabled": False}
    settings = {
        "index": off,
        "expire_snapshots": AT_ONCE,
        "rewrite_manifests": {"enabled": True, "manifests": 3, "min_interval_seconds": 0},
    }
    assert service.admin.post("/policies", json={"name": "tidy", "settings": settings}).status_code == 201
    attached = {"level": "table", "table_id": table["id"], "policy": "tidy"}
    assert service.admin.put("/policy-attachments", json=attached).is_success
    service.poll(table["id"])
    for kind in ("rewrite_manifests", "expire_snapshots"):
        assignment = service.claim(service.start_worker())
        assert assignment is not None
        assert assignment["job"]["kind"] == kind
        service.finish(assignment, result={"dry_run": False})


def test_data_files_are_written_anew_by_a_job_of_the_policy_once_a_worker_tells_of_them(
    service: Running, iceberg: IcebergCatalog, table: dict[str, Any]
) -> None:
    settings = {
        "index": {"enabled": False},
        "rewrite_data_files": {"enabled": True, "small_data_files": 30, "min_input_files": 3},
    }
    assert service.admin.post("/policies", json={"name": "tidy", "settings": settings}).status_code == 201
    attached = {"level": "table", "table_id": table["id"], "policy": "tidy"}
    assert service.admin.put("/policy-attachments", json=attached).is_success
    assert health(service, table)["decisions"]["rewrite_data_files"]["code"] == "below-triggers"
    service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "index"})
    worker = service.start_worker()
    assignment = service.claim(worker)
    assert assignment is not None
    assert assignment["policy"]["rewrite_data_files"]["min_input_files"] == 3
    told = {
        "iceberg_snapshot_id": iceberg.head("db.t"),
        "key_sets": [],
        "pending_equality_delete_files": 0,
        "pending_equality_deletes": 0,
        "small_data_files": 40,
        "deleted_data_files": 1,
        "small_delete_files": 7,
    }
    service.finish(assignment, health=told)
    found = health(service, table)
    assert (found["small_data_files"], found["deleted_data_files"]) == (40, 1)
    assert found["small_delete_files"] == 7
    assignment = service.claim(worker)
    assert assignment is not None
    assert assignment["job"]["kind"] == "rewrite_data_files"
    assert assignment["job"]["parameters"] == {
        "strategy": "binpack",
        "target_file_size_bytes": 0,
        "min_input_files": 3,
        "size_ratio": 1,
        "delete_ratio_threshold": 0.3,
        "max_bytes": 100_000_000_000,
    }


def test_rows_are_sorted_by_an_order_that_request_or_table_has(
    service: Running, iceberg: IcebergCatalog, table: dict[str, Any]
) -> None:
    """Of which the service knows what it saw at its last look."""
    settings = {
        "index": {"enabled": False},
        "rewrite_data_files": {"enabled": True, "strategy": "sort", "small_data_files": 1},
    }
    assert service.admin.post("/policies", json={"name": "sorted", "settings": settings}).status_code == 201
    attached = {"level": "table", "table_id": table["id"], "policy": "sorted"}
    assert service.admin.put("/policy-attachments", json=attached).is_success
    health(service, table)
    with service.database.write() as session:
        session.get_one(TableHealth, table["id"]).small_data_files = 1
    found = health(service, table)["decisions"]["rewrite_data_files"]
    assert (found["action"], found["code"]) == ("skip", "sort-order-missing")
    assert "Give it one (ALTER TABLE ... WRITE ORDERED BY), or choose binpack." in found["sentence"]
    path, asked = f"/tables/{table['id']}/jobs", {"kind": "rewrite_data_files"}
    refused = service.admin.post(path, json=asked)
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/sort-order-missing")
    for given in ({"strategy": "binpack"}, {"sort_order": [{"column": "id"}]}):
        job = service.admin.post(path, json=asked | {"parameters": given}).json()
        assert service.admin.post(f"/jobs/{job['id']}/cancel").is_success
    loaded = iceberg.catalog.load_table("db.t")
    with loaded.update_sort_order() as order:
        order.asc("id", IdentityTransform())
    assert health(service, table)["decisions"]["rewrite_data_files"]["code"] == "small-data-files"
    assert service.admin.post(path, json=asked).is_success


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"older_than_seconds": 100, "age_seconds": 50}, "expire_snapshots.older_than_seconds"),
        ({"retain_last": 0}, "expire_snapshots.retain_last"),
        ({"windows": [{"start": "00:00", "end": "01:00"}] * 51}, "expire_snapshots.windows"),
    ],
)
def test_a_policy_of_maintenance_that_can_not_be_meant_is_refused(
    service: Running, given: dict[str, Any], field: str
) -> None:
    body = {"name": "x", "settings": {"expire_snapshots": given}}
    answer = service.admin.post("/policies", json=body)
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [f"body.settings.{field}"]


def test_an_expiry_is_told_of_tables_whose_locations_overlap(
    service: Running, iceberg: IcebergCatalog, table: dict[str, Any]
) -> None:
    """Of another branch of the same table it is not."""
    iceberg.create("db.apart")
    service.enroll("db.apart")
    loaded = iceberg.catalog.load_table("db.t")
    loaded.manage_snapshots().create_branch(iceberg.head("db.t"), "work").commit()
    service.enroll(branch="work")
    inside = f"{loaded.location()}/data/inside"
    iceberg.catalog.create_table("db.inside", SCHEMA, inside)
    service.enroll("db.inside")
    worker = service.start_worker()
    for kind, told in (("expire_snapshots", [inside]), ("rewrite_manifests", []), (ORPHANS, [inside])):
        service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": kind, "dry_run": kind == ORPHANS})
        assignment = service.claim(worker)
        assert assignment is not None
        assert assignment["table"]["overlapping_locations"] == told
        service.finish(assignment, status="failed")


def test_a_removal_is_told_of_tables_whose_files_go_into_the_tables_location(
    service: Running, iceberg: IcebergCatalog, table: dict[str, Any]
) -> None:
    """As the other table says when it is enrolled, and when it is looked at again."""
    inside = f"{iceberg.catalog.load_table('db.t').location()}/data"
    places = {name: f"{inside}/{name}" for name in PLACE_PROPERTIES}
    iceberg.catalog.create_table("db.other", SCHEMA, properties=places)
    other = service.enroll("db.other")

    def told() -> list[str]:
        body = {"kind": ORPHANS, "dry_run": True}
        assert service.admin.post(f"/tables/{table['id']}/jobs", json=body).status_code == 202
        assignment = service.claim(service.start_worker())
        assert assignment is not None
        service.finish(assignment, status="failed")
        return list(assignment["table"]["overlapping_locations"])

    assert told() == sorted(places.values())
    loaded = iceberg.catalog.load_table("db.other")
    loaded.transaction().set_properties({PLACE_PROPERTIES[0]: f"{inside}/moved"}).commit_transaction()
    service.poll(other["id"])
    assert f"{inside}/moved" in told()


def dry_run(service: Running, table: dict[str, Any], files: list[str], status: str = "succeeded") -> str:
    """Of a removal of orphan files, which has listed some; its id."""
    answer = service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": ORPHANS, "dry_run": True})
    assert answer.status_code == 202
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    assert assignment["job"]["parameters"] == {"older_than_seconds": 604_800}
    assert assignment["orphan_files"] == []
    result = {
        "dry_run": True,
        "orphans": {"orphan_files": 9, "files": files, "older_than": "2100-01-01T00:00:00Z"},
    }
    service.finish(assignment, status=status, **({"result": result} if status == "succeeded" else {}))
    return str(answer.json()["id"])


def removal(service: Running, table: dict[str, Any], **parameters: Any) -> Any:
    body = {"kind": ORPHANS, "parameters": parameters}
    return service.admin.post(f"/tables/{table['id']}/jobs", json=body)


@ON_BOTH
def test_orphan_files_are_removed_that_a_dry_run_of_the_table_has_listed(
    service: Running, table: dict[str, Any]
) -> None:
    files = ["s3://lake/t/data/a.parquet", "s3://lake/t/data/b.parquet"]
    seen = dry_run(service, table, files)
    answer = removal(service, table, dry_run_job_id=seen)
    assert answer.status_code == 202
    assert answer.json()["parameters"] == {"dry_run_job_id": seen, "older_than_seconds": 604_800}
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    assert (assignment["job"]["dry_run"], assignment["orphan_files"]) == (False, files)
    older_than = datetime.fromisoformat(assignment["orphans_older_than"])
    assert older_than < utc_now() - timedelta(days=7), "what the worker said could not be"
    assert assignment["table"]["location"].endswith("/db/t")
    service.finish(assignment, result={"orphans": {"files_deleted": 1, "files_failed": 1}})
    caveat = service.admin.get(f"/jobs/{answer.json()['id']}").json()["caveat"]
    assert (caveat["title"], caveat["did_nothing"]) == ("1 orphan file could not be deleted", False)

    answer = removal(service, table, dry_run_job_id=seen)
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    service.finish(assignment, status="failed", retryable=False)
    again = service.admin.post(f"/jobs/{answer.json()['id']}/retry")
    assert again.status_code == 202
    assert "remove_orphan_files" not in service.admin.get(f"/tables/{table['id']}/health").json()["decisions"]


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_removal_is_told_of_no_files_once_its_dry_run_is_too_old_or_gone(
    service: Running, table: dict[str, Any], is_gone: bool
) -> None:
    """Its worker fails then."""
    seen = dry_run(service, table, ["s3://lake/t/data/a.parquet"])
    removed = removal(service, table, dry_run_job_id=seen).json()["id"]
    with service.database.write() as session:
        if is_gone:
            session.get_one(Job, removed).parameters = {"older_than_seconds": 604_800, "dry_run_job_id": "?"}
        else:
            session.get_one(Job, seen).ended_at = utc_now() - timedelta(days=8)
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    assert (assignment["orphan_files"], assignment["orphans_older_than"]) == ([], None)


def test_a_removal_of_orphan_files_that_no_dry_run_went_before_is_refused(
    service: Running, iceberg: IcebergCatalog, table: dict[str, Any]
) -> None:
    iceberg.create("db.other")
    of_other_table = dry_run(service, service.enroll("db.other"), [])
    failed = dry_run(service, table, [], "failed")
    too_old = dry_run(service, table, [])
    with service.database.write() as session:
        session.get_one(Job, too_old).ended_at = utc_now() - timedelta(days=8)
    for named in ({}, *({"dry_run_job_id": one} for one in ("?", of_other_table, failed, too_old))):
        refused = removal(service, table, **named)
        assert (refused.status_code, refused.json()["type"]) == (422, "/problems/orphans-not-listed"), named
    seen = dry_run(service, table, [])
    for parameters in ({"dry_run_job_id": seen, "older_than_seconds": 90_000}, {"older_than_seconds": 3_600}):
        assert removal(service, table, **parameters).status_code == 422
    body = {"kind": ORPHANS, "dry_run": True, "parameters": {"dry_run_job_id": seen}}
    assert service.admin.post(f"/tables/{table['id']}/jobs", json=body).status_code == 422

    removed = removal(service, table, dry_run_job_id=seen).json()["id"]
    assert service.admin.post(f"/jobs/{removed}/cancel").is_success
    with service.database.write() as session:
        session.get_one(Job, seen).ended_at = utc_now() - timedelta(days=8)
    assert service.admin.post(f"/jobs/{removed}/retry").json()["type"] == "/problems/orphans-not-listed"
