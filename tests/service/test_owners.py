"""A worker belongs to the key that registered it, and what a worker says decides about its own table only."""

from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlmodel import col, select, update

from service.auth.models import SYSTEM, ApiKeyRequest, Principal
from service.auth.service import create_api_key
from service.db.database import Database, utc_now
from service.errors import ForbiddenError
from service.jobs import attempts
from service.jobs.contract import PLANS_AT_MOST, AnnouncedPlan, AttemptId, FinishRequest, HeartbeatRequest
from service.records.api_keys import Role
from service.records.jobs import Attempt, Job, JobKind
from service.records.tables import EnrolledTable
from service.records.workers import Worker
from tests.service.conftest import Running
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.queue_calls import SETTINGS, START, add_tables, add_worker, claim, finish, request

WORKER: dict[str, Any] = {"name": "w", "hostname": "h", "pid": 1, "version": "0"}
STRANGER = Principal("oidc", "https://issuer#other", "oidc:other", Role.WORKER)
PLAN = AnnouncedPlan(number=0, tasks=1, location="file:///wh/db/t0")


@pytest.fixture
def database_kind(alike_on_both: str) -> str:
    return alike_on_both


def with_key(service: Running, key: str) -> httpx.Client:
    return service.client_with({"Authorization": f"Bearer {key}"})


def claimed(service: Running, client: httpx.Client, worker_id: str) -> Any:
    answer = client.post(f"/workers/{worker_id}/claim", json={"wait_seconds": 0})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_nobody_acts_as_a_worker_that_another_key_registered(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    table = service.enroll("db.t")
    assert service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "convert"}).status_code == 202
    one, other = service.client(Role.WORKER), service.client(Role.WORKER)
    worker_id = one.post("/workers", json=WORKER).json()["id"]
    # A name is nobody's own: the other one gets a worker beside it.
    assert other.post("/workers", json=WORKER).json()["id"] != worker_id
    for stopping in (False, True):
        for stranger in (other, service.admin):
            body = {"wait_seconds": 0, "is_stopping": stopping}
            answer = stranger.post(f"/workers/{worker_id}/claim", json=body)
            assert (answer.status_code, answer.json()["type"]) == (403, "/problems/worker-not-yours")
    assigned = claimed(service, one, worker_id)
    path = f"/jobs/{assigned['job']['id']}/attempts/{assigned['attempt']}"
    reports: dict[str, dict[str, Any]] = {
        "heartbeat": {},
        "address-ranges": {"rows": 1},
        "finish": {"status": "succeeded"},
    }
    for is_over in (False, True):
        for call, body in reports.items():
            for stranger in (other, service.admin):
                answer = stranger.post(f"{path}/{call}", json=body)
                assert (answer.status_code, answer.json()["type"]) == (403, "/problems/worker-not-yours")
        if not is_over:
            for call, body in reports.items():
                assert one.post(f"{path}/{call}", json=body).is_success
    denied = service.admin.get("/audit", params={"outcome": "denied"}).json()["items"]
    assert ("worker.act", worker_id) in {(entry["action"], entry["target"]) for entry in denied}


def test_a_worker_goes_on_with_the_new_secret_of_its_key(service: Running) -> None:
    with service.database.write() as session:
        made = create_api_key(session, SYSTEM, ApiKeyRequest(name="w", role=Role.WORKER))
    worker_id = with_key(service, made.key).post("/workers", json=WORKER).json()["id"]
    rotated = service.admin.post(f"/api-keys/{made.id}/rotate", json={"grace_seconds": 0}).json()
    path = f"/workers/{worker_id}/claim"
    assert with_key(service, rotated["key"]).post(path, json={"wait_seconds": 0}).status_code == 204


def test_a_worker_of_before_this_was_kept_is_nobodys_and_registers_anew(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    table = service.enroll("db.t")
    assert service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "convert"}).status_code == 202
    one, other = service.client(Role.WORKER), service.client(Role.WORKER)
    worker_id = one.post("/workers", json=WORKER).json()["id"]
    assigned = claimed(service, one, worker_id)
    with service.database.write() as session:
        session.execute(update(Worker).where(col(Worker.id) == worker_id).values(registered_by=None))
    attempt = f"/jobs/{assigned['job']['id']}/attempts/{assigned['attempt']}"
    for caller in (other, one):
        for path, body in (
            (f"/workers/{worker_id}/claim", {"wait_seconds": 0}),
            (f"{attempt}/heartbeat", {}),
            (f"{attempt}/finish", {"status": "succeeded"}),
        ):
            answer = caller.post(path, json=body)
            assert (answer.status_code, answer.json()["type"]) == (404, "/problems/worker-not-found")
    assert one.post("/workers", json=WORKER).status_code == 201


def test_a_subject_of_an_issuer_owns_its_worker_whatever_token_it_brings(database: Database) -> None:
    (table,) = add_tables(database, ["a"])
    worker_id = add_worker(database)
    job_id = request(database, table)
    with database.write() as session:
        session.execute(update(Worker).values(registered_by=STRANGER.key))
    with pytest.raises(ForbiddenError):
        claim(database, worker_id)
    again = Principal("oidc", STRANGER.id, "oidc:renamed", Role.ADMIN)
    assert claim(database, worker_id, caller=again) is not None
    with database.write() as session, pytest.raises(ForbiddenError):
        attempts.heartbeat(session, SETTINGS, SYSTEM, job_id, 1, HeartbeatRequest(), START)


def test_giving_up_what_was_never_ones_own_drops_no_index(database: Database) -> None:
    """As a worker does that slept in a job of a table which was removed meanwhile."""
    (table,) = add_tables(database, ["a"])
    worker_id = add_worker(database)
    late = request(database, table)
    assert claim(database, worker_id) is not None
    finish(database, late, 1, "succeeded")
    with database.write() as session:
        row = session.get_one(EnrolledTable, table)
        row.deleted_at = START
        session.add(row)
    request(database, table, JobKind.DROP_INDEX)
    dropping = claim(database, worker_id)
    assert dropping is not None
    finish(database, dropping.job.id, 1, "succeeded")
    given_up = [AttemptId(job_id=late, attempt=1)]
    with database.write() as session:
        session.add(Worker(id="stranger", registered_by=STRANGER.key, **WORKER))
    assert claim(database, "stranger", caller=STRANGER, given_up=given_up) is None
    assert claim(database, worker_id, given_up=given_up) is not None  # one drops it again


def test_what_is_left_in_a_table_is_told_and_forgotten_in_its_own_catalog_only(database: Database) -> None:
    (one,) = add_tables(database, ["same"], "one")
    (other,) = add_tables(database, ["same"], "other")
    worker_id = add_worker(database)
    lost = request(database, one)
    assert claim(database, worker_id) is not None
    with database.write() as session:
        attempts.heartbeat(session, SETTINGS, SYSTEM, lost, 1, HeartbeatRequest(plan=PLAN), START)
    finish(database, lost, 1, "failed")
    much_later = utc_now() + timedelta(days=1)
    for table, is_own in ((other, False), (one, True)):
        job_id = request(database, table, JobKind.COMPACT)
        assigned = claim(database, worker_id)
        assert assigned is not None
        assert bool(assigned.ended_attempts) == is_own
        report = FinishRequest(status="succeeded", cleared=[AttemptId(job_id=lost, attempt=1)])
        with database.write() as session:
            attempts.finish(session, SYSTEM, job_id, 1, report, much_later)
        with database.read() as session:
            assert (session.get_one(Attempt, (lost, 1)).plans is None) == is_own
            assert session.exec(select(Job.id).where(Job.id == lost)).one()


@pytest.mark.parametrize(
    "change",
    [
        {"number": PLANS_AT_MOST},
        {"tasks": 10**18},
        {"files_per_task": 10**18},
        {"location": "x" * 10_001},
        {"removes": "x" * 10_001},
        {"properties": {"write.data.path": "x" * 10_001}},
        {"properties": {"write.data.path": 1}},
        {"properties": "x"},
    ],
)
def test_a_plan_that_no_worker_makes_is_refused(service: Running, change: dict[str, Any]) -> None:
    body = {"plan": PLAN.model_dump() | change}
    assert service.admin.post("/jobs/x/attempts/1/heartbeat", json=body).status_code == 422


def test_of_a_plan_nothing_is_kept_but_what_says_where_files_go() -> None:
    given = {"write.data.path": "file:///d", "write.py-location-provider.impl": "builtins.exec", "x": "y"}
    plan = AnnouncedPlan.model_validate(PLAN.model_dump() | {"properties": given})
    assert plan.properties == {"write.data.path": "file:///d"}
