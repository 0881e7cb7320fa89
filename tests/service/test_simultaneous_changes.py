"""Requests that change the same thing at the same moment: one wins, the others are told."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from sqlalchemy import text
from sqlmodel import Session

from service.auth.models import SYSTEM
from service.db.database import utc_now
from service.jobs import attempts, claims
from service.jobs.claims import Ask
from service.jobs.contract import AnnouncedPlan, HeartbeatRequest
from service.jobs.models import JobRequest
from service.jobs.service import request_job, retry_job
from service.records.health import TableHealth
from service.records.jobs import Attempt, JobStatus
from service.records.tables import get_table
from service.scheduling.looks import store_look
from service.tables.models import Staging, TablePatch
from service.tables.service import update_table
from tests.browser.running_service import index_report
from tests.service.conftest import Running
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.queue_calls import (
    SETTINGS,
    START,
    add_tables,
    add_worker,
    claim,
    finish,
    request,
    status_of,
)

AT_ONCE = 8
ROUNDS = 5
Answer = TypeVar("Answer")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield pool


def test_of_simultaneous_changes_of_one_version_one_is_made(
    service: Running, iceberg: IcebergCatalog, pool: ThreadPoolExecutor
) -> None:
    service.register(iceberg)
    table = service.enroll()
    service.admin.post("/policies", json={"name": "mine", "settings": {}})
    pattern = service.admin.post("/patterns", json={"catalog": "local", "pattern": "db.*"}).json()
    changes: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "/catalogs/local": ({"max_running_jobs": 1}, {"max_running_jobs": 2}),
        f"/tables/{table['id']}": ({"policy": "manual"}, {"policy": "mine"}),
        "/policies/mine": ({"description": "Some words."}, {"description": "Other words."}),
        f"/patterns/{pattern['id']}": ({"exclude": ["a"]}, {"exclude": ["b"]}),
    }
    for path, bodies in changes.items():
        for number in range(ROUNDS):
            seen = {"If-Match": service.admin.get(path).headers["etag"]}

            def change(
                _: int, path: str = path, body: dict[str, Any] = bodies[number % 2], seen: Any = seen
            ) -> int:
                return service.admin.patch(path, json=body, headers=seen).status_code

            statuses = Counter(pool.map(change, range(AT_ONCE)))
            assert statuses == {200: 1, 412: AT_ONCE - 1}, path


def test_of_simultaneous_requests_for_one_name_or_place_one_wins(
    service: Running, iceberg: IcebergCatalog, pool: ThreadPoolExecutor
) -> None:
    catalog = service.register(iceberg)
    for number in range(ROUNDS):
        for path, body in (
            ("/policies", {"name": f"p{number}", "settings": {}}),
            (
                "/catalogs",
                {"name": f"c{number}", "type": catalog["type"], "properties": iceberg.properties},
            ),
        ):
            answers = list(
                pool.map(lambda _, at=path, what=body: service.admin.post(at, json=what), range(AT_ONCE))
            )
            assert Counter(answer.status_code for answer in answers) == {201: 1, 409: AT_ONCE - 1}, path
            kinds = {answer.json()["type"] for answer in answers if answer.status_code == 409}
            name = path.removeprefix("/").replace("ies", "y").removesuffix("s")
            assert kinds <= {f"/problems/{name}-exists", "/problems/changed-at-the-same-time"}
        place = {"level": "catalog", "catalog": f"c{number}", "policy": f"p{number}"}
        attached = Counter(
            pool.map(
                lambda _, body=place: service.admin.put("/policy-attachments", json=body).status_code,
                range(AT_ONCE),
            )
        )
        assert attached[200] >= 1
        assert attached.keys() <= {200, 409}


def begin_and_wait(service: Running, pool: ThreadPoolExecutor, call: Callable[[], Answer]) -> Future[Answer]:
    """Call while a transaction is open; it has been answered, or waits for a lock, when this returns.

    On PostgreSQL, that is: on SQLite nobody writes while another one does.
    """
    calling = pool.submit(call)
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    while not calling.done():
        with service.database.engine.connect() as connection:
            if connection.execute(waiting).scalar_one():
                break
        time.sleep(0.01)
    return calling


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_a_table_that_is_removed_meanwhile_keeps_no_queued_job(
    service: Running, iceberg: IcebergCatalog, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.register(iceberg)

    def check(table_id: str, begin: Callable[[Session], object]) -> None:
        with service.database.write() as session:
            begin(session)
            session.flush()
            deleting = begin_and_wait(service, pool, lambda: service.admin.delete(f"/tables/{table_id}"))
        assert deleting.result().status_code == 204
        jobs = service.admin.get("/jobs", params={"table_id": table_id}).json()["items"]
        assert {job["status"] for job in jobs} == {"cancelled"}

    table_id = service.enroll()["id"]
    check(table_id, lambda session: request_job(session, SYSTEM, table_id, JobRequest(kind="index")))

    retried = service.enroll()["id"]
    job_id = service.admin.post(f"/tables/{retried}/jobs", json={"kind": "convert"}).json()["id"]
    service.admin.post(f"/jobs/{job_id}/cancel")
    check(retried, lambda session: retry_job(session, SYSTEM, job_id))

    polled = service.enroll(key_sets=[["id"]])["id"]
    deleting = []

    def store_beside_a_removal(session: Session, *found: Any) -> Any:
        stored = store_look(session, *found)
        session.flush()
        deleting.append(begin_and_wait(service, pool, lambda: service.admin.delete(f"/tables/{polled}")))
        return stored

    iceberg.delete_keys("db.t", [1])
    service.admin.post("/policies", json={"name": "eager", "settings": {"convert": {"delete_files": 1}}})
    service.admin.put("/policy-attachments", json={"level": "table", "table_id": polled, "policy": "eager"})
    monkeypatch.setattr("service.scheduling.poller.store_look", store_beside_a_removal)
    service.poll(polled)
    assert deleting[0].result().status_code == 204
    jobs = service.admin.get("/jobs", params={"table_id": polled}).json()["items"]
    assert {job["status"] for job in jobs} == {"cancelled"}


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_an_attachment_beside_another_change_of_its_table_counts_as_a_change_of_its_own(
    service: Running, iceberg: IcebergCatalog, pool: ThreadPoolExecutor
) -> None:
    service.register(iceberg)
    table = service.enroll()
    place = {"level": "table", "table_id": table["id"], "policy": "manual"}
    with service.database.write() as session:
        patch = TablePatch(key_sets=[["id"]])
        changed = update_table(
            session, service.settings, SYSTEM, table["id"], patch, f'"{table["version"]}"', frozenset({"id"})
        )
        attaching = begin_and_wait(
            service, pool, lambda: service.admin.put("/policy-attachments", json=place)
        )
    assert attaching.result().status_code == 200
    assert changed.version == table["version"] + 1
    assert service.admin.get(f"/tables/{table['id']}").json()["version"] == changed.version + 1


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_rows_that_are_seen_while_a_policy_changes_are_not_left_behind(
    service: Running, iceberg: IcebergCatalog, pool: ThreadPoolExecutor
) -> None:
    service.register(iceberg)
    table_id = service.enroll()["id"]
    body = {"name": "staged", "settings": {"publish": {"from": "ingest"}}}
    service.admin.post("/policies", json=body)
    place = {"level": "catalog", "catalog": "local"}
    service.admin.put("/policy-attachments", json=place | {"policy": "staged"})
    service.poll(table_id)

    with service.database.write() as session:  # as the poller does
        get_table(session, table_id, for_update=True)
        health = session.get_one(TableHealth, table_id)
        health.staged_snapshots, health.oldest_staged_at = 1, utc_now()
        session.flush()
        detaching = begin_and_wait(
            service, pool, lambda: service.admin.put("/policy-attachments", json=place | {"policy": None})
        )

    assert detaching.result().status_code == 409


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_two_records_of_a_catalog_do_not_take_one_branch_at_once_for_different_things(
    service: Running, iceberg: IcebergCatalog, pool: ThreadPoolExecutor
) -> None:
    catalog = service.register(iceberg)
    other = {"name": "again", "type": catalog["type"], "properties": iceberg.properties}
    assert service.admin.post("/catalogs", json=other).status_code == 201
    iceberg.append("db.t", [1])
    made = iceberg.catalog.load_table("db.t").manage_snapshots()
    made.create_branch(iceberg.head("db.t"), "ingest").commit()
    again = IcebergCatalog(iceberg.directory, "again").catalog
    again.create_namespace("db")
    again.register_table("db.t", iceberg.catalog.load_table("db.t").metadata_location)
    table = service.enroll()
    staged = TablePatch(publish=Staging(source="ingest"))
    branch = {"catalog": "again", "identifier": ["db", "t"], "branch": "ingest"}

    with service.database.write() as session:
        update_table(session, service.settings, SYSTEM, table["id"], staged, "*", None)
        session.flush()
        enrolling = begin_and_wait(service, pool, lambda: service.admin.post("/tables", json=branch))

    assert enrolling.result().json()["type"] == "/problems/staging-branch-in-use"


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_two_claims_of_a_worker_at_once_give_it_one_job(service: Running, pool: ThreadPoolExecutor) -> None:
    database = service.database
    for table in add_tables(database, ["a", "b"]):
        request(database, table)
    worker = add_worker(database)
    with database.write() as session:
        given = claims.claim(session, SETTINGS, Ask(SYSTEM, worker), START)
        session.flush()
        asking = begin_and_wait(service, pool, lambda: claim(database, worker))
    assert given is not None
    assert asking.result() is None


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_a_plan_that_is_stored_while_its_attempt_succeeds_is_not_kept(
    service: Running, pool: ThreadPoolExecutor
) -> None:
    database = service.database
    (table,) = add_tables(database, ["a"])
    job_id = request(database, table)
    claim(database, add_worker(database))
    report = HeartbeatRequest(plan=AnnouncedPlan(number=0, tasks=1, location="file:///wh/db/t0"))
    with database.write() as session:
        attempts.heartbeat(session, SETTINGS, SYSTEM, job_id, 1, report, START)
        session.flush()
        finishing = begin_and_wait(service, pool, lambda: finish(database, job_id, 1, "succeeded"))
    finishing.result()
    assert status_of(database, job_id) is JobStatus.SUCCEEDED
    with database.read() as session:
        assert session.get_one(Attempt, (job_id, 1)).plans is None


@pytest.mark.integration
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_a_job_may_end_while_its_table_is_polled_for_the_first_time(
    service: Running, pool: ThreadPoolExecutor
) -> None:
    database = service.database
    (table,) = add_tables(database, ["a"])
    job_id = request(database, table)
    claim(database, add_worker(database))
    report = index_report()
    with database.write() as session:
        session.get_one(TableHealth, table).data_files = 7  # as the poller does
        session.flush()
        finishing = begin_and_wait(
            service, pool, lambda: finish(database, job_id, 1, "succeeded", health=report)
        )
    finishing.result()
    assert status_of(database, job_id) is JobStatus.SUCCEEDED
    with database.read() as session:
        health = session.get_one(TableHealth, table)
        assert (health.data_files, health.report_snapshot_id) == (7, report["iceberg_snapshot_id"])
