"""Jobs that fail or find nothing hold up the next one of their kind, and only that, and say so."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlmodel import col, select

from service.records.health import TableHealth
from service.records.jobs import Job, JobKind
from service.records.tables import EnrolledTable
from service.scheduling import worth
from service.scheduling.state import read_known, table_state
from tests.service.conftest import ON_BOTH, Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog

# How long a pause is says no SQL.
database_kind = alike_on_both

FAILED = {"code": "x", "title": "The store is away", "detail": "d", "remedy": "r", "retryable": False}


@pytest.fixture
def table(service: Running, iceberg: IcebergCatalog) -> str:
    service.register(iceberg)
    eager = {"convert": {"delete_files": 1}, "index": {"enabled": False}}
    assert service.admin.post("/policies", json={"name": "eager", "settings": eager}).status_code == 201
    iceberg.delete_keys("db.t", [2])
    return str(service.enroll(policy="eager")["id"])


def run(service: Running, worker: str, **report: Any) -> None:
    assignment = service.claim(worker)
    assert assignment is not None
    assert service.finish(assignment, **report).is_success


def nothing_pending(iceberg: IcebergCatalog) -> dict[str, Any]:
    """As a job's report has the head of the table, which has no keys."""
    return {
        "iceberg_snapshot_id": iceberg.head("db.t"),
        "key_sets": [],
        "pending_equality_delete_files": 0,
        "pending_equality_deletes": 0,
    }


def decision(service: Running, table: str) -> dict[str, Any]:
    service.poll(table)
    return dict(service.admin.get(f"/tables/{table}/health").json()["decisions"]["convert"])


def let_pass(service: Running, seconds: float) -> None:
    """As if every ended job were that much older."""
    with service.database.write() as session:
        for job in session.exec(select(Job).where(col(Job.ended_at).is_not(None))):
            assert job.ended_at is not None
            job.ended_at -= timedelta(seconds=seconds)
            session.add(job)


def fail(service: Running, table: str, worker: str) -> dict[str, Any]:
    """A policy job that fails; what the scheduler then thinks."""
    assert decision(service, table)["action"] == "trigger"
    run(service, worker, status="failed", error=FAILED)
    return decision(service, table)


def test_failed_jobs_pause_their_kind_longer_each_time_and_a_success_ends_it(
    service: Running, table: str
) -> None:
    worker = service.start_worker()
    first = fail(service, table, worker)
    assert (first["action"], first["code"]) == ("backoff", "failed-1")
    assert "because the last convert job failed: The store is away." in first["sentence"]
    health = service.admin.get(f"/tables/{table}/health").json()
    assert health["status"] == "blocked"
    assert first["sentence"] in health["status_reason"]
    preview = service.admin.get(f"/tables/{table}/policy/preview").json()
    (planned,) = [job for job in preview["jobs"] if job["kind"] == "convert"]
    assert planned["now"] == first["sentence"]
    (ended,) = service.admin.get("/jobs").json()["items"]
    paused = datetime.fromisoformat(planned["starts_at"]) - datetime.fromisoformat(ended["ended_at"])
    assert paused == timedelta(seconds=600)

    let_pass(service, 600)
    assert fail(service, table, worker)["code"] == "failed-2"
    let_pass(service, 900)
    assert decision(service, table)["action"] == "backoff"

    # A person waits for nothing, and does not make the pause longer by failing.
    service.admin.post(f"/tables/{table}/jobs", json={"kind": "convert"})
    run(service, worker, status="failed", error=FAILED)
    assert decision(service, table)["code"] == "failed-2"
    service.admin.post(f"/tables/{table}/jobs", json={"kind": "convert"})
    run(service, worker, result={"equality_delete_files_removed": 1})
    assert decision(service, table)["action"] == "trigger"


@ON_BOTH
def test_another_policy_ends_the_pause(service: Running, table: str) -> None:
    assert fail(service, table, service.start_worker())["code"] == "failed-1"
    settings = {"convert": {"delete_files": 1, "max_delete_files_per_commit": 1}, "index": {"enabled": False}}
    change = service.admin.patch("/policies/eager", json={"settings": settings}, headers={"If-Match": "*"})
    assert change.status_code == 200
    assert decision(service, table)["action"] == "trigger"


def test_jobs_that_find_nothing_are_spaced_out_until_the_table_changes(
    service: Running, iceberg: IcebergCatalog, table: str
) -> None:
    worker = service.start_worker()
    assert decision(service, table)["action"] == "trigger"
    report = {
        "iceberg_snapshot_id": iceberg.head("db.t"),
        "key_sets": [],
        "pending_equality_delete_files": 1,
        "pending_equality_deletes": 1,
    }
    nothing = {"result": {"equality_delete_files_removed": 0}, "health": report}
    run(service, worker, **nothing)
    assert decision(service, table)["code"] == "idle-1"
    let_pass(service, 300)
    assert decision(service, table)["action"] == "trigger"
    run(service, worker, **nothing)
    second = decision(service, table)
    assert second["code"] == "idle-2"
    assert "because the last 2 convert jobs found nothing to do." in second["sentence"]
    events = service.admin.get(f"/tables/{table}/events").json()["items"]
    assert [event["fields"]["code"] for event in events if event["kind"] == "decision.backoff"] == [
        "idle-1",
        "idle-2",
    ]
    iceberg.append("db.t", [9])
    assert decision(service, table)["action"] == "trigger"


def test_a_rewriting_that_could_take_none_waits_until_there_are_more_whatever_is_committed(
    service: Running, iceberg: IcebergCatalog
) -> None:
    """Files that can't be written anew are counted, too: nobody looks for them again and again."""
    service.register(iceberg)
    rewrite = {"rewrite_data_files": {"enabled": True, "small_data_files": 5, "min_interval_seconds": 0}}
    settings = rewrite | {"convert": {"enabled": False}, "index": {"enabled": False}}
    assert service.admin.post("/policies", json={"name": "rewrite", "settings": settings}).status_code == 201
    table, worker = str(service.enroll(policy="rewrite")["id"]), service.start_worker()

    def decided() -> str:
        service.poll(table)
        found = service.admin.get(f"/tables/{table}/health").json()["decisions"]["rewrite_data_files"]
        return str(found["code"])

    def ends(small: int, rewritten: int = 0) -> None:
        report = nothing_pending(iceberg) | {"small_data_files": small}
        run(service, worker, result={"data_files": {"data_files_rewritten": rewritten}}, health=report)

    def request(kind: str) -> None:
        asked = service.admin.post(f"/tables/{table}/jobs", json={"kind": kind})
        assert asked.status_code in (200, 201, 202)

    request("rewrite_data_files")
    ends(9)
    assert decided() == "small-data-files", "what somebody asked for may have been something else"
    ends(9)
    assert decided() == "none-rewritable"
    iceberg.append("db.t", [9])
    let_pass(service, 100_000)
    assert decided() == "none-rewritable"
    request("index")
    ends(10)
    assert decided() == "small-data-files"
    ends(10)
    assert decided() == "none-rewritable"
    changed = service.admin.patch(
        "/policies/rewrite",
        json={"settings": settings | {"rewrite_data_files": {"enabled": True, "min_interval_seconds": 0}}},
        headers={"If-Match": "*"},
    )
    assert changed.status_code == 200
    assert decided() != "none-rewritable"


def test_a_rewriting_that_is_asked_for_at_a_later_time_stops_no_conversion(
    service: Running, table: str
) -> None:
    body: dict[str, Any] = {"kind": "rewrite_data_files"}
    asked = service.admin.post(f"/tables/{table}/jobs", json=body)
    assert asked.is_success
    assert decision(service, table)["code"] == "rewriting"
    service.admin.post(f"/jobs/{asked.json()['id']}/cancel").raise_for_status()
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert service.admin.post(
        f"/tables/{table}/jobs", json=body | {"run_at": tomorrow.isoformat()}
    ).is_success
    assert decision(service, table)["code"] == "delete-files"


def test_what_waits_for_one_job_and_then_for_another_has_waited_since_it_began_to(
    service: Running, iceberg: IcebergCatalog
) -> None:
    """Else what waits for conversions and rewritings in turn would wait for longer than it may."""
    service.register(iceberg)
    iceberg.delete_keys("db.t", [2])
    table = str(service.enroll()["id"])

    def decided_beside(kind: str) -> dict[str, Any]:
        asked = service.admin.post(f"/tables/{table}/jobs", json={"kind": kind})
        service.poll(table)
        found = dict(service.admin.get(f"/tables/{table}/health").json()["decisions"]["index"])
        service.admin.post(f"/jobs/{asked.json()['id']}/cancel").raise_for_status()
        return found

    first, then = decided_beside("convert"), decided_beside("rewrite_data_files")
    assert [first["code"], then["code"]] == ["with-conversion", "with-rewriting"]
    assert first["since"] == then["since"]
    last = decided_beside("verify")
    assert last["code"] == "first"
    assert last["since"] > then["since"]


def test_a_rewriting_whose_attempts_fail_stops_no_conversion_between_them(
    service: Running, table: str
) -> None:
    """However soon the next one comes."""
    service.admin.post(f"/tables/{table}/jobs", json={"kind": "rewrite_data_files"}).raise_for_status()
    assert decision(service, table)["code"] == "rewriting"
    run(service, service.start_worker(), status="failed", error=FAILED | {"retryable": True})
    with service.database.write() as session:
        job = session.exec(select(Job)).one()
        job.available_at -= timedelta(hours=1)
        session.add(job)
    assert decision(service, table)["code"] == "delete-files"


def test_a_first_rewriting_is_credited_with_no_more_than_a_job_under_the_policy_has_counted(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worth, "LEAST_SECONDS", 0.0)  # this table is small
    service.register(iceberg)
    settings = {
        "convert": {"when": "worthwhile", "reads_per_day": 0},
        "rewrite_data_files": {"enabled": True},
        "index": {"enabled": False},
    }
    assert service.admin.post("/policies", json={"name": "thrifty", "settings": settings}).status_code == 201
    for number in range(3):
        iceberg.append("db.t", [10 + number])
    table, worker = str(service.enroll(policy="thrifty")["id"]), service.start_worker()
    assert service.admin.post(f"/tables/{table}/jobs", json={"kind": "index"}).is_success
    run(service, worker, result={}, health=nothing_pending(iceberg))
    service.poll(table)
    found = service.admin.get(f"/tables/{table}/health").json()["decisions"]["rewrite_data_files"]
    assert found["code"] == "nothing-small"


def test_a_rewriting_is_tried_again_once_so_many_files_have_come_as_it_takes(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job counts them, of a table that nobody deletes from."""
    monkeypatch.setattr(worth, "LEAST_SECONDS", 0.0)  # this table is small
    service.register(iceberg)
    settings = {
        "convert": {"when": "worthwhile", "reads_per_day": 0},
        "rewrite_data_files": {"enabled": True, "min_interval_seconds": 0, "min_input_files": 5},
        "index": {"enabled": False},
    }
    assert service.admin.post("/policies", json={"name": "thrifty", "settings": settings}).status_code == 201
    table, worker = str(service.enroll(policy="thrifty")["id"]), service.start_worker()

    def decided() -> str:
        service.poll(table)
        found = service.admin.get(f"/tables/{table}/health").json()["decisions"]["rewrite_data_files"]
        return str(found["code"])

    def committed_at() -> datetime | None:
        with service.database.write() as session:
            row, health = session.get_one(EnrolledTable, table), session.get_one(TableHealth, table)
            now = datetime.now(UTC)
            state = table_state(session, row, health, read_known(session, row, now), now)
            return state.last[JobKind.REWRITE_DATA_FILES].committed_at

    def ends(rewritten: int) -> None:
        result = {"commits": int(rewritten > 0), "data_files": {"data_files_rewritten": rewritten}}
        run(service, worker, result=result, health=nothing_pending(iceberg))

    for number in range(4):
        iceberg.append("db.t", [10 + number])
    assert decided() == "below-triggers", "of five with the first one, one may be large"
    iceberg.append("db.t", [14])
    assert decided() == "read-cost"
    run(service, worker, status="failed", error=FAILED)
    let_pass(service, 700)
    assert decided() == "read-cost", "nobody has counted what it would take"
    ends(0)
    assert committed_at() is None, "it has found nothing"
    assert decided() == "nothing-small"
    for number in range(4):
        iceberg.append("db.t", [20 + number])
    assert decided() == "none-rewritable"
    iceberg.append("db.t", [30])
    assert decided() == "read-cost"
    ends(5)
    at = committed_at()
    assert at is not None
    assert decided() == "nothing-small"
    for number in range(5):
        iceberg.append("db.t", [40 + number])
    assert decided() == "read-cost"
    ends(0)
    assert committed_at() == at


def test_a_table_without_keys_is_rewritten_each_time_that_enough_small_files_have_come(
    service: Running, iceberg: IcebergCatalog
) -> None:
    """By limits. One that could take none, as of partitions with few files, waits for as many as it takes."""
    service.register(iceberg)
    rewrite = {"enabled": True, "small_data_files": 3, "min_input_files": 3, "min_interval_seconds": 0}
    made = service.admin.post(
        "/policies", json={"name": "rewrite", "settings": {"rewrite_data_files": rewrite}}
    )
    assert made.status_code == 201
    table, worker = str(service.enroll(policy="rewrite")["id"]), service.start_worker()

    def decided_with_more(files: int) -> str:
        for number in range(files):
            iceberg.append("db.t", [10 + number])
        service.poll(table)
        found = service.admin.get(f"/tables/{table}/health").json()["decisions"]
        assert found["index"]["code"] == "no-key-set"
        return str(found["rewrite_data_files"]["code"])

    def ends(rewritten: int) -> None:
        result = {"data_files": {"data_files_rewritten": rewritten}}
        run(service, worker, result=result, health=nothing_pending(iceberg))

    assert decided_with_more(2) == "small-data-files", "with the one that was there"
    ends(3)
    assert decided_with_more(0) == "nothing-small"
    assert decided_with_more(2) == "below-triggers"
    assert decided_with_more(1) == "small-data-files"
    ends(0)
    assert decided_with_more(0) == "nothing-small"
    assert decided_with_more(2) == "none-rewritable"
    assert decided_with_more(1) == "small-data-files"
