"""What holds for every call: who may, errors, repeats, pages, audit; and the jobs a user sees."""

import asyncio
import base64
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio.to_thread
import httpx
import pytest
from sqlmodel import Session, select

from service.auth.principals import SESSION_COOKIE
from service.auth.service import create_login_link, csrf_token_of, log_in_with_key, log_in_with_token
from service.db.database import Database, utc_now
from service.errors import UnauthenticatedError
from service.http.routing import IdempotentAnswer
from service.jobs import stream
from service.jobs.events import latest_event_id, record_job_event, record_table_event
from service.jobs.models import EventView
from service.jobs.stream import (
    RecentEvents,
    RecentMoves,
    _after,
    _latest,
    settled,
    stream_changes,
    stream_events,
)
from service.records.api_keys import ApiKey, Role
from service.records.health import KeptSample, samples_after
from service.records.jobs import Event, Job, JobKind
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import ADMIN_KEY, ON_BOTH, PLAIN_HTTP, Running, alike_on_both, run_apart
from tests.service.health_samples import health_sample
from tests.service.iceberg_tables import IcebergCatalog

# Most of this is about HTTP; where SQL or locks decide, both databases are asked.
database_kind = alike_on_both


@pytest.fixture
def table(service: Running, iceberg: IcebergCatalog) -> dict[str, Any]:
    service.register(iceberg)
    return service.enroll()


def request_job(service: Running, table: dict[str, Any], **fields: Any) -> dict[str, Any]:
    answer = service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "convert"} | fields)
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


def test_the_probes_need_no_key(service: Running) -> None:
    for path in ("/livez", "/readyz", "/metrics", "/docs", "/openapi.json"):
        assert service.admin.get(service.url + path, headers={"Authorization": ""}).status_code == 200


def test_the_documentation_page_loads_nothing_from_elsewhere(service: Running) -> None:
    page = service.admin.get(f"{service.url}/docs").text
    assert "https://" not in page
    assert service.admin.get(f"{service.url}/docs/swagger-ui-bundle.js").status_code == 200
    assert service.admin.get(f"{service.url}/docs/page.css").status_code == 200


def test_without_a_key_nothing_is_told(service: Running) -> None:
    anonymous = service.client_with({})
    for path in ("/jobs", "/tables", "/catalogs", "/audit", "/events", "/me"):
        answer = anonymous.get(path)
        assert (answer.status_code, answer.json()["type"]) == (401, "/problems/unauthenticated")
        assert answer.headers["www-authenticate"] == "Bearer"


@ON_BOTH
def test_a_wrong_revoked_or_expired_key_is_refused(service: Running) -> None:
    wrong = service.client_with({"Authorization": "Bearer nonsense"})
    assert wrong.get("/me").json()["type"] == "/problems/invalid-api-key"
    body = {"name": "short", "role": "viewer", "expires_at": "2020-01-01T00:00:00Z"}
    expired = service.admin.post("/api-keys", json=body).json()
    assert service.client_with({"Authorization": f"Bearer {expired['key']}"}).get("/me").status_code == 401
    created = service.admin.post("/api-keys", json={"name": "v", "role": "viewer"}).json()
    client = service.client_with({"Authorization": f"Bearer {created['key']}"})
    assert client.get("/me").json() == {"name": "v", "role": "viewer", "scopes": None, "kind": "api_key"}
    service.admin.delete(f"/api-keys/{created['id']}")
    assert client.get("/me").status_code == 401


def test_only_a_hash_of_a_key_is_stored(service: Running) -> None:
    answers = [
        service.admin.post(
            "/api-keys", json={"name": "v", "role": "viewer"}, headers={"Idempotency-Key": "only-mine"}
        )
        for _ in range(2)
    ]
    created = answers[0].json()
    assert answers[1].json() == created
    with service.database.read() as session:
        stored = [row.model_dump_json() for row in session.exec(select(ApiKey))]
        (kept,) = session.exec(select(IdempotentAnswer)).all()
    assert not any(created["key"] in row or ADMIN_KEY in row for row in stored)
    assert created["key"].encode() not in base64.b64decode(kept.body)
    assert "only-mine" not in kept.model_dump_json()
    assert created["key"] not in service.admin.get("/api-keys").text


@pytest.mark.parametrize(
    ("role", "status"), [(Role.VIEWER, 403), (Role.OPERATOR, 403), (Role.WORKER, 201), (Role.ADMIN, 201)]
)
def test_only_workers_and_admins_act_as_workers(service: Running, role: Role, status: int) -> None:
    body = {"name": "w", "hostname": "h", "pid": 1, "version": "0"}
    assert service.client(role).post("/workers", json=body).status_code == status


def test_a_worker_key_reads_and_starts_nothing(service: Running, table: dict[str, Any]) -> None:
    worker = service.client(Role.WORKER)
    assert worker.get("/jobs").status_code == 403
    assert worker.post(f"/tables/{table['id']}/jobs", json={"kind": "index"}).status_code == 403


def test_a_login_link_works_once(service: Running) -> None:
    link = create_login_link(service.database, service.url)
    token = link.partition("token=")[2]
    with service.database.write() as session:
        secret = log_in_with_token(session, service.settings, token)
    with pytest.raises(UnauthenticatedError), service.database.write() as session:
        log_in_with_token(session, service.settings, token)
    browser = service.client_with({"Cookie": f"{SESSION_COOKIE}={secret}"})
    me = {"name": "local user", "role": "admin", "scopes": None, "kind": "session"}
    assert browser.get("/me").json() == me


def test_a_browser_session_must_prove_that_a_write_comes_from_our_page(service: Running) -> None:
    with service.database.write() as session:
        secret = log_in_with_key(session, service.settings, ADMIN_KEY)
    browser = service.client_with({"Cookie": f"{SESSION_COOKIE}={secret}"})
    refused = browser.post("/system/pause")
    assert (refused.status_code, refused.json()["type"]) == (403, "/problems/csrf-failed")
    allowed = browser.post("/system/pause", headers={"X-CSRF-Token": csrf_token_of(secret)})
    assert allowed.json()["paused"] is True


def test_revoking_a_key_ends_the_sessions_that_it_opened(service: Running) -> None:
    created = service.admin.post("/api-keys", json={"name": "v", "role": "viewer"}).json()
    with service.database.write() as session:
        secret = log_in_with_key(session, service.settings, created["key"])
    browser = service.client_with({"Cookie": f"{SESSION_COOKIE}={secret}"})
    assert browser.get("/me").status_code == 200
    service.admin.delete(f"/api-keys/{created['id']}")
    assert browser.get("/me").status_code == 401


def test_every_error_is_a_problem_document_with_what_to_do(service: Running) -> None:
    answers = [
        service.admin.get("/jobs/nope"),
        service.admin.get("/nope"),
        service.admin.put("/jobs"),
        service.admin.get("/jobs?limit=0"),
        service.admin.get("/jobs?cursor=garbage"),
        service.admin.post("/catalogs", content=b"{", headers={"Content-Type": "application/json"}),
    ]
    assert [answer.status_code for answer in answers] == [404, 404, 405, 422, 400, 422]
    for answer in answers:
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert {"type", "title", "status", "detail", "remedy", "instance", "request_id"} <= set(problem)
        assert problem["status"] == answer.status_code
        assert problem["request_id"] == answer.headers["x-request-id"]


def test_a_validation_error_names_each_field(service: Running) -> None:
    problem = service.admin.post("/catalogs", json={"name": "x", "type": "nope"}).json()
    assert [finding["field"] for finding in problem["errors"]] == ["body.type"]


def test_a_callers_request_id_is_kept_if_it_is_sane(service: Running) -> None:
    kept = service.admin.get("/me", headers={"X-Request-ID": "abc-123"})
    assert kept.headers["x-request-id"] == "abc-123"
    replaced = service.admin.get("/me", headers={"X-Request-ID": "a b"})
    assert replaced.headers["x-request-id"] != "a b"


@ON_BOTH
def test_a_repeated_request_with_the_same_key_gets_the_first_answer(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    body = {"catalog": "local", "identifier": ["db", "t"]}
    key = {"Idempotency-Key": "enrol-once"}
    first = service.admin.post("/tables", json=body, headers=key)
    again = service.admin.post("/tables", json=body, headers=key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"
    # All but what tells this answer from any other.
    one_of_each = {"date", "x-request-id", "idempotency-replayed"}
    told, told_again = (
        {name: value for name, value in answer.headers.items() if name not in one_of_each}
        for answer in (first, again)
    )
    assert (told_again, told["etag"]) == (told, '"1"')
    other = service.admin.post("/tables", json=body | {"branch": "x"}, headers=key)
    assert (other.status_code, other.json()["type"]) == (422, "/problems/idempotency-key-reused")


def test_a_refused_request_may_be_repeated_with_its_key(service: Running, iceberg: IcebergCatalog) -> None:
    body = {"catalog": "local", "identifier": ["db", "t"]}
    key = {"Idempotency-Key": "k"}
    assert service.admin.post("/tables", json=body, headers=key).status_code == 422
    service.register(iceberg)
    assert service.admin.post("/tables", json=body, headers=key).status_code == 201


def test_a_key_of_somebody_else_means_nothing(service: Running, table: dict[str, Any]) -> None:
    key, path = {"Idempotency-Key": "k"}, f"/tables/{table['id']}/jobs"
    mine = service.admin.post(path, json={"kind": "verify"}, headers=key)
    theirs = service.client(Role.OPERATOR).post(path, json={"kind": "verify"}, headers=key)
    assert mine.status_code == theirs.status_code == 202
    assert "idempotency-replayed" not in theirs.headers
    assert service.client(Role.VIEWER).post(path, json={"kind": "verify"}, headers=key).status_code == 403


@ON_BOTH
def test_the_same_request_at_the_same_time_happens_once(service: Running, table: dict[str, Any]) -> None:
    body = {"name": "w", "hostname": "h", "pid": 1, "version": "0"}
    key = {"Idempotency-Key": "k"}
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: service.admin.post("/workers", json=body, headers=key), range(6)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(service.admin.get("/workers").json()["items"]) == 1


@ON_BOTH
def test_writes_are_audited_whether_allowed_or_denied(service: Running, table: dict[str, Any]) -> None:
    viewer = service.client(Role.VIEWER)
    denied = viewer.post(f"/tables/{table['id']}/jobs", json={"kind": "convert"})
    service.client_with({}).delete(f"/tables/{table['id']}")
    request_job(service, table)
    entries = service.admin.get("/audit").json()["items"]
    shown = [(entry["principal"], entry["action"], entry["target"], entry["outcome"]) for entry in entries]
    assert shown[:3] == [
        ("bootstrap", "job.convert", "local.db.t", "allowed"),
        ("anonymous", "DELETE /tables/{table_id}", f"/api/v1/tables/{table['id']}", "denied"),
        ("viewer", "POST /tables/{table_id}/jobs", f"/api/v1/tables/{table['id']}/jobs", "denied"),
    ]
    assert entries[2]["request_id"] == denied.headers["x-request-id"]
    only_denied = service.admin.get("/audit", params={"outcome": "denied"}).json()["items"]
    assert {entry["outcome"] for entry in only_denied} == {"denied"}
    assert viewer.get("/audit").status_code == 403


def test_a_requested_job_is_answered_at_once(service: Running, table: dict[str, Any]) -> None:
    job = request_job(service, table, dry_run=True)
    expected = {
        "kind": "convert",
        "dry_run": True,
        "table_id": table["id"],
        "status": "queued",
        "started_at": None,
        "ended_at": None,
        "attempts": [],
        "progress": None,
        "result": None,
        "error": None,
        "trigger": "request",
        "waiting_for": "Waits for a free worker.",
    }
    assert {name: job[name] for name in expected} == expected
    assert job["created_at"].endswith("Z")


@pytest.mark.parametrize("kind", ["index", "compact", "rebuild", "report_duplicates"])
def test_a_dry_run_of_a_kind_that_would_write_is_refused(
    service: Running, table: dict[str, Any], kind: str
) -> None:
    answer = service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": kind, "dry_run": True})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/no-dry-run")
    assert answer.json()["errors"][0]["field"] == "body.dry_run"
    assert service.admin.get("/jobs").json()["items"] == []


def test_a_dry_run_of_a_verification_is_taken_and_has_the_index_for_itself(
    service: Running, table: dict[str, Any]
) -> None:
    assert request_job(service, table, kind="verify", dry_run=True)["dry_run"] is True
    # An index that another job changes meanwhile would look wrong.
    assert JobKind.VERIFY.writes(dry_run=True)
    assert not JobKind.CONVERT.writes(dry_run=True)


@pytest.mark.parametrize("kind", ["index", "convert", "compact", "rebuild", "verify", "report_duplicates"])
def test_every_kind_of_job_is_accepted_and_queued_once(
    service: Running, table: dict[str, Any], kind: str
) -> None:
    assert request_job(service, table, kind=kind)["id"] == request_job(service, table, kind=kind)["id"]


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"from": "ingest"}, "from"),
        ({"after": "x"}, "after"),
        ({"skip": 1.5}, "skip"),
        ({"source": "ingest"}, "source"),
    ],
)
def test_a_publication_that_asks_for_what_there_is_not_is_refused(
    service: Running, table: dict[str, Any], parameters: dict[str, Any], field: str
) -> None:
    body = {"kind": "publish", "parameters": parameters}
    answer = service.admin.post(f"/tables/{table['id']}/jobs", json=body)
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [f"body.parameters.{field}"]
    assert service.admin.get("/jobs").json()["items"] == []


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"older_than_seconds": -1}, "older_than_seconds"),
        ({"older_than_seconds": "NaN"}, "older_than_seconds"),
        ({"retain_last": 0}, "retain_last"),
        ({"retain_last": 1.5}, "retain_last"),
        ({"snapshot_ids": [1]}, "snapshot_ids"),
    ],
)
def test_an_expiry_that_asks_for_what_there_is_not_is_refused(
    service: Running, table: dict[str, Any], parameters: dict[str, Any], field: str
) -> None:
    body = {"kind": "expire_snapshots", "parameters": parameters}
    answer = service.admin.post(f"/tables/{table['id']}/jobs", json=body)
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [f"body.parameters.{field}"]
    assert service.admin.get("/jobs").json()["items"] == []


def test_options_of_a_rewriting_of_data_files_that_can_not_be_meant_are_refused(
    service: Running, table: dict[str, Any]
) -> None:
    parameters = {
        "strategy": "zorder",
        "sort_order": [{"column": "id", "direction": "up"}],
        "target_file_size_bytes": 1_000,
        "min_input_files": 1,
        "size_ratio": 0,
        "delete_ratio_threshold": 0,
        "max_bytes": 0,
        "output_spec_id": 0,
    }
    body = {"kind": "rewrite_data_files", "parameters": parameters}
    answer = service.admin.post(f"/tables/{table['id']}/jobs", json=body)
    assert answer.status_code == 422
    fields = [error["field"].removeprefix("body.parameters.") for error in answer.json()["errors"]]
    assert fields == [name if name != "sort_order" else f"{name}.0.direction" for name in parameters]


def test_a_rewriting_of_manifests_has_no_options(service: Running, table: dict[str, Any]) -> None:
    body = {"kind": "rewrite_manifests", "parameters": {"staging_location": "s3://other/place"}}
    answer = service.admin.post(f"/tables/{table['id']}/jobs", json=body)
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == ["body.parameters.staging_location"]


def test_what_a_request_for_an_expiry_leaves_out_the_policy_says(
    service: Running, table: dict[str, Any]
) -> None:
    request_job(service, table, kind="expire_snapshots", parameters={"retain_last": 7}, dry_run=True)
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    assert assignment["job"]["parameters"] == {"older_than_seconds": 432_000, "retain_last": 7}


def test_a_publication_is_given_to_a_worker_with_its_branch(service: Running, table: dict[str, Any]) -> None:
    path = f"/tables/{table['id']}"
    refused = service.admin.post(f"{path}/jobs", json={"kind": "publish"})
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/no-staging-branch")
    assert "with its enrolment" in refused.json()["errors"][0]["message"]
    staging = {"publish": {"from": "ingest"}}
    service.admin.patch(path, json=staging, headers={"If-Match": "*"})
    for _ in range(2):
        request_job(service, table, kind="publish", parameters={"after": 2**62})
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    given = {"from": "ingest", "after": 2**62}
    assert (assignment["job"]["kind"], assignment["job"]["parameters"]) == ("publish", given)
    assert service.claim(service.start_worker()) is None


def test_a_queued_job_with_other_parameters_is_a_conflict(service: Running, table: dict[str, Any]) -> None:
    request_job(service, table, parameters={"a": 1})
    answer = service.admin.post(
        f"/tables/{table['id']}/jobs", json={"kind": "convert", "parameters": {"a": 2}}
    )
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/job-already-queued")


@ON_BOTH
def test_a_job_runs_from_claim_to_result(
    service: Running, iceberg: IcebergCatalog, table: dict[str, Any]
) -> None:
    job = request_job(service, table)
    worker = service.start_worker()
    assignment = service.claim(worker)
    assert assignment is not None
    assert assignment["table"] == {
        "id": table["id"],
        "identifier": ["db", "t"],
        "table_uuid": table["table_uuid"],
        "location": iceberg.catalog.load_table("db.t").location(),
        "branch": "main",
        "staging_branch": None,
        "key_sets": [],
        "seen_equality_field_ids": [],
        "overlapping_locations": [],
        "snapshots_expire_elsewhere": False,
    }
    assert assignment["catalog"]["type"] == "sql"
    assert assignment["index"]["warehouse"] == service.settings.index_warehouse
    assert assignment["lease_seconds"] == service.settings.lease_seconds
    assert assignment["allowed_locations"] == list(service.settings.location_roots)
    assert assignment["allowed_hosts"] == ["*", "127.0.0.0/8", "::1"]
    assert assignment["allowed_secrets"] == ["env:", "file:/"]
    path = f"/jobs/{job['id']}/attempts/1"
    progress = {"stage": "read", "done": 12, "total": 80, "unit": "files", "message": None}
    beat = service.admin.post(
        f"{path}/heartbeat",
        json={"progress": progress, "events": [{"level": "warning", "message": "Slow.", "fields": {"a": 1}}]},
    ).json()
    assert beat["cancel_requested"] is False
    running = service.admin.get(f"/jobs/{job['id']}").json()
    assert running["status"] == "running"
    assert progress.items() <= running["progress"].items()
    assert running["attempts"][0]["worker_name"] == "w1"
    granted = service.admin.post(f"{path}/address-ranges", json={"rows": 123, "at_least": 0})
    assert (granted.status_code, granted.json()) == (201, {"base_address": 0})
    told = [{"message": "Nothing is left.", "fields": {"b": 2}}, {"kind": "log", "message": "A line."}]
    for _ in range(2):  # as if the first answer had got lost
        done = service.finished(assignment, result={"commits": 1}, events=told)
    assert (done["status"], done["result"], done["attempts"][0]["status"]) == (
        "succeeded",
        {"commits": 1},
        "succeeded",
    )
    messages = [event["message"] for event in service.admin.get(f"/jobs/{job['id']}/events").json()["items"]]
    assert messages == [
        "Queued: requested by bootstrap.",
        "Attempt 1 started on w1.",
        "read: 12 of 80 files",
        "Slow.",
        "Nothing is left.",
        "A line.",
        "Succeeded in attempt 1.",
    ]
    late = service.admin.post(f"{path}/heartbeat", json={})
    assert (late.status_code, late.json()["type"]) == (409, "/problems/stale-attempt")


def test_a_report_brings_the_next_job_once(
    service: Running, table: dict[str, Any], iceberg: IcebergCatalog
) -> None:
    iceberg.create("db.u")
    for each in (table, service.enroll("db.u")):
        request_job(service, each)
    worker = service.start_worker()
    first = service.claim(worker)
    assert first is not None
    answer = service.finish(first, claims_next=True)
    assert answer.status_code == 200
    second = answer.json()
    assert (second["job"]["id"] != first["job"]["id"], second["attempt"]) == (True, 1)
    # As if the answer had got lost.
    again = service.finish(first, claims_next=True).json()
    assert (again["job"]["id"], again["attempt"]) == (second["job"]["id"], 2)
    unheard, running = service.admin.get(f"/jobs/{again['job']['id']}").json()["attempts"]
    assert (unheard["status"], unheard["error"]["code"]) == ("lost", "claim_answer_lost")
    assert running["status"] == "running"
    assert service.finish(second, claims_next=True).status_code == 409
    assert service.finish(again, claims_next=True).status_code == 204, "nothing waits"


def test_a_call_takes_a_thread_to_ask_who_calls_one_to_do_it_and_one_to_commit(
    service: Running, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    run_sync = anyio.to_thread.run_sync

    async def note(call: Any, *args: Any, **options: Any) -> Any:
        taken.append(getattr(call, "__name__", str(call)))
        return await run_sync(call, *args, **options)

    monkeypatch.setattr("anyio.to_thread.run_sync", note)
    service.admin.post(f"/tables/{table['id']}/notifications").raise_for_status()
    assert len(taken) == 3, taken
    taken.clear()
    service.admin.get(f"/tables/{table['id']}").raise_for_status()
    assert len(taken) == 3, taken


def test_an_idle_claim_waits_and_comes_back_empty(service: Running) -> None:
    worker = service.start_worker()
    started = time.monotonic()
    assert service.claim(worker, wait_seconds=0.5) is None
    assert time.monotonic() - started > 0.4


@ON_BOTH
def test_a_waiting_claim_gets_a_job_soon_after_it_is_requested(
    service: Running, table: dict[str, Any]
) -> None:
    worker = service.start_worker()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(service.claim, worker, 60)
        time.sleep(0.3)
        job = request_job(service, table)
        assignment = waiting.result()
    assert assignment is not None
    assert assignment["job"]["id"] == job["id"]


def test_a_worker_that_hung_up_while_it_waited_is_given_no_job(
    service: Running, table: dict[str, Any]
) -> None:
    dead, alive = service.start_worker(), service.start_worker()
    hangs_up = httpx.Timeout(PATIENCE_SECONDS, read=0.3)
    with pytest.raises(httpx.ReadTimeout):
        service.admin.post(f"/workers/{dead}/claim", json={"wait_seconds": 20}, timeout=hangs_up)
    job = request_job(service, table)
    # Longer than the pause between two looks of a waiting claim.
    time.sleep(1)
    assert service.admin.get(f"/jobs/{job['id']}").json()["status"] == "queued"
    assignment = service.claim(alive)
    assert assignment is not None
    assert assignment["job"]["id"] == job["id"]


def test_many_waiting_claims_leave_the_service_responsive(service: Running) -> None:
    path = f"/workers/{service.start_worker()}/claim"

    async def ask() -> None:
        admin = service.admin
        async with httpx.AsyncClient(
            base_url=admin.base_url, headers=admin.headers, timeout=admin.timeout, verify=PLAIN_HTTP
        ) as client:
            waiting = [asyncio.create_task(client.post(path, json={"wait_seconds": 60})) for _ in range(60)]
            await asyncio.sleep(0.5)
            assert (await client.get("/jobs")).status_code == 200
            assert not any(each.done() for each in waiting), "answered only after those that wait"
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    run_apart(ask())


def test_an_unknown_worker_is_told_to_register(service: Running) -> None:
    answer = service.admin.post("/workers/nope/claim", json={"wait_seconds": 0})
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/worker-not-found")


@ON_BOTH
def test_workers_show_what_they_run(service: Running, table: dict[str, Any]) -> None:
    worker, job = service.start_worker(), request_job(service, table)
    service.claim(worker)
    (shown,) = service.admin.get("/workers").json()["items"]
    assert (shown["id"], shown["alive"], shown["job_id"]) == (worker, True, job["id"])


def test_a_job_that_waits_says_for_what(service: Running, table: dict[str, Any]) -> None:
    running = request_job(service, table)
    service.claim(service.start_worker())
    waiting = request_job(service, table, kind="index")
    expected = f"Waits for job {running['id']} (convert), which writes the same table."
    assert waiting["waiting_for"] == expected
    service.admin.post("/system/pause")
    assert service.admin.get(f"/jobs/{waiting['id']}").json()["waiting_for"] == "Waits: the system is paused."
    service.admin.post("/system/resume")


@ON_BOTH
def test_cancelling_and_retrying(service: Running, table: dict[str, Any]) -> None:
    job = request_job(service, table)
    cancelled = service.admin.post(f"/jobs/{job['id']}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (202, "cancelled")
    assert service.admin.post(f"/jobs/{job['id']}/cancel").json()["status"] == "cancelled"
    again = service.admin.post(f"/jobs/{job['id']}/retry").json()
    assert (again["status"], again["retry_of"]) == ("queued", job["id"])
    refused = service.admin.post(f"/jobs/{again['id']}/retry")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/job-not-retryable")
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    assert service.admin.post(f"/jobs/{again['id']}/cancel").json()["cancel_requested"] is True
    service.finish(assignment, status="cancelled")
    assert service.admin.get(f"/jobs/{again['id']}").json()["status"] == "cancelled"


def test_an_ended_job_cannot_be_cancelled(service: Running, table: dict[str, Any]) -> None:
    job = request_job(service, table)
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    service.finish(assignment)
    answer = service.admin.post(f"/jobs/{job['id']}/cancel")
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/job-not-cancelable")


@ON_BOTH
def test_jobs_are_listed_newest_first_by_page_and_by_filter(service: Running, table: dict[str, Any]) -> None:
    made = [request_job(service, table, kind=kind)["id"] for kind in ("index", "convert", "verify")]
    first = service.admin.get("/jobs", params={"limit": 2}).json()
    second = service.admin.get("/jobs", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [job["id"] for job in first["items"] + second["items"]] == made[::-1]
    assert second["next_cursor"] is None
    service.admin.post(f"/jobs/{made[0]}/cancel")

    def ids(**query: Any) -> list[str]:
        return [job["id"] for job in service.admin.get("/jobs", params=query).json()["items"]]

    assert ids(status="cancelled") == [made[0]]
    assert ids(kind=["convert", "verify"], status="queued") == [made[2], made[1]]
    assert ids(table_id=table["id"]) == made[::-1]
    assert ids(table_id="nope") == []


def read_events(
    client: httpx.Client, count: int, headers: dict[str, str] | None = None, **query: str
) -> list[dict[str, str]]:
    """The next `count` server-sent events."""
    events: list[dict[str, str]] = []
    current: dict[str, str] = {}
    with client.stream("GET", "/events", headers=headers, params=query) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                current[name] = value
            elif "data" not in current:
                current = {}  # the id of the start
            else:
                events.append(current)
                current = {}
                if len(events) == count:
                    break
    return events


@ON_BOTH
def test_job_changes_are_streamed_live_and_resumed_after_a_break(
    service: Running, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    live: list[dict[str, str]] = []
    has_begun = threading.Event()

    def noted_after(database: Database, position: int) -> list[EventView]:
        has_begun.set()
        return _after(database, position)

    monkeypatch.setattr(stream, "_after", noted_after)
    reader = threading.Thread(target=lambda: live.extend(read_events(service.admin, 2)))
    reader.start()
    assert has_begun.wait(PATIENCE_SECONDS)
    job = request_job(service, table)
    service.admin.post(f"/jobs/{job['id']}/cancel")
    reader.join()
    assert [event["event"] for event in live] == ["job", "job"]
    assert '"status": "cancelled"' in live[1]["data"]
    resumed = read_events(service.admin, 1, {"Last-Event-ID": live[0]["id"]})
    assert resumed == live[1:]
    assert read_events(service.admin, 1, {"Last-Event-ID": "0"}, job_id=job["id"]) == live[:1]


def test_a_stream_ends_with_the_key_that_opened_it(
    service: Running, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "ACCESS_SECONDS", 0)
    made = service.admin.post("/api-keys", json={"name": "reader", "role": "viewer"}).json()
    client = service.client_with({"Authorization": f"Bearer {made['key']}"})
    seen: list[str] = []

    def read() -> None:
        with client.stream("GET", "/events", headers={"Last-Event-ID": "0"}) as answer:
            for line in answer.iter_lines():
                seen.append(line)

    reader = threading.Thread(target=read)
    reader.start()
    # It is asked for before each poll, and goes on.
    job = request_job(service, table)
    while '"status": "queued"' not in "".join(seen):
        time.sleep(0.01)
    service.admin.post(f"/jobs/{job['id']}/cancel")
    while '"status": "cancelled"' not in "".join(seen):
        time.sleep(0.01)
    assert reader.is_alive()
    assert service.admin.delete(f"/api-keys/{made['id']}").is_success
    reader.join()


def add_table_event(service: Running, table: dict[str, Any], kind: str = "table.changed") -> int:
    with service.database.write() as session:
        record_table_event(session, table["id"], kind, "It was so.", utc_now())
        return latest_event_id(session)


def test_streams_that_are_as_far_share_their_reads(
    service: Running, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_from: list[int] = []

    def noted_after(database: Database, position: int) -> list[EventView]:
        read_from.append(position)
        return _after(database, position)

    monkeypatch.setattr(stream, "_after", noted_after)
    begun = add_table_event(service, table)

    async def follow() -> None:
        recent = RecentEvents(service.database)
        for _ in range(3):
            assert await recent.after(begun) == []
        assert read_from == [begun]
        first, second = add_table_event(service, table), add_table_event(service, table)
        monkeypatch.setattr(stream, "POLL_SECONDS", 0)
        assert [event.id for event in await recent.after(begun)] == [first, second]
        monkeypatch.setattr(stream, "POLL_SECONDS", 3600)
        assert [event.id for event in await recent.after(first)] == [second]
        assert await recent.after(second) == []
        assert read_from == [begun, begun]
        # Whoever is behind reads for itself, and whoever begins later takes the others along.
        assert [event.id for event in await recent.after(begun - 1)] == [begun, first, second]
        third = add_table_event(service, table)
        assert await recent.after(third) == []
        assert [event.id for event in await recent.after(second)] == [third]
        assert read_from == [begun, begun, begun - 1, second]

    run_apart(follow())


def test_a_stream_from_an_id_above_all_goes_on_with_the_next_event(
    service: Running, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the database was restored; it keeps nobody from the shared reads."""
    monkeypatch.setattr(stream, "POLL_SECONDS", 0.01)
    begun = add_table_event(service, table)

    async def follow() -> None:
        events = stream_events(RecentEvents(service.database), 2**62, threading.Event(), lambda: True)
        start = await asyncio.wait_for(anext(events), PATIENCE_SECONDS)
        assert start == {"id": str(begun)}, "who breaks off now goes on from there"
        following = add_table_event(service, table)
        told = await asyncio.wait_for(anext(events), PATIENCE_SECONDS)
        assert told["id"] == str(following)

    run_apart(follow())


def test_events_that_are_no_longer_kept_are_read_again(
    service: Running, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = add_table_event(service, table)
    added = [add_table_event(service, table) for _ in range(4)]
    monkeypatch.setattr(stream, "_KEPT", 2)

    async def follow() -> None:
        recent = RecentEvents(service.database)
        for position in (begun, begun, added[0], added[2]):
            following = [event for event in added if event > position]
            assert [event.id for event in await recent.after(position)] == following

    run_apart(follow())


def test_a_page_is_told_once_of_all_that_has_happened(
    service: Running, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "POLL_SECONDS", 0.01)
    job = request_job(service, table)

    def happen(*kinds: str) -> None:
        with service.database.write() as session:
            for kind in kinds:
                record_job_event(session, session.get_one(Job, job["id"]), kind, "It was so.", utc_now())

    async def follow() -> list[str]:
        recent, told = RecentEvents(service.database), []
        latest = await recent.latest_id()
        monkeypatch.setattr(recent, "latest_id", lambda: asyncio.sleep(0, latest))
        changes = stream_changes(
            recent, RecentMoves(service.database), threading.Event(), lambda: True, job_id=job["id"]
        )
        for kinds in (("job.progress", "job.log"), ("job.log", "job.succeeded", "job.log")):
            happen(*kinds)
            add_table_event(service, table)
            told.append((await anext(changes))["event"])
        return told

    assert run_apart(follow()) == ["changed", "turned"]


def test_a_page_is_told_seldom_where_much_happens_but_at_once_of_what_becomes_of_its_job(
    service: Running, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(stream, "_WORDS", 1)
    job = request_job(service, table)

    def happen(kind: str) -> int:
        with service.database.write() as session:
            record_job_event(session, session.get_one(Job, job["id"]), kind, "It was so.", utc_now())
            return latest_event_id(session)

    async def follow(job_id: str | None) -> None:
        monkeypatch.setattr(stream, "_WORD_SECONDS", 3600)
        recent = RecentEvents(service.database)
        latest = await recent.latest_id()
        monkeypatch.setattr(recent, "latest_id", lambda: asyncio.sleep(0, latest))
        moves = RecentMoves(service.database)
        changes = stream_changes(
            recent, moves, threading.Event(), lambda: True, job_id=job_id, tells_pending=False
        )
        first = happen("job.log")
        assert await anext(changes) == {"event": "changed", "data": str(first)}
        following = asyncio.ensure_future(anext(changes))
        for kind in ("job.log", "job.succeeded"):
            last = happen(kind)
            while recent._until < last:
                await asyncio.sleep(0.01)
            assert following.done() == (kind == "job.succeeded" and job_id is not None)
        monkeypatch.setattr(stream, "_WORD_SECONDS", 1e-9)
        assert await following == {"event": "turned", "data": str(last)}, "and what was held is told as one"

    run_apart(follow(job["id"]))
    run_apart(follow(None))


def test_pages_are_told_what_polls_find_by_one_read_for_all_of_them(
    service: Running, iceberg: IcebergCatalog, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    iceberg.create("db.other")
    other = service.enroll("db.other", policy="manual")
    monkeypatch.setattr(stream, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(stream, "MOVES_SECONDS", 0)
    monkeypatch.setattr(stream, "MOVES_SHARE", float("inf"))
    reads = []

    def noted_samples(session: Session, sample_id: int, most: int) -> list[KeptSample]:
        reads.append(sample_id)
        return samples_after(session, sample_id, most)

    monkeypatch.setattr(stream, "samples_after", noted_samples)

    def found(of: str, keys: list[int]) -> None:
        iceberg.delete_keys(of, keys)
        for one in (table, other):
            service.poll(one["id"])

    async def pending(changes: AsyncIterator[Mapping[str, str]]) -> Any:
        while (message := await anext(changes))["event"] != "pending":
            pass
        return json.loads(message["data"])

    async def follow() -> list[Any]:
        recent, moves = RecentEvents(service.database), RecentMoves(service.database)
        latest = await recent.latest_id()
        monkeypatch.setattr(recent, "latest_id", lambda: asyncio.sleep(0, latest))
        begin = (recent, moves, threading.Event(), lambda: True)
        every, of_one = stream_changes(*begin), stream_changes(*begin, table_id=other["id"])
        for one in (table, other):
            add_table_event(service, one)
        begun = [(await anext(changes))["event"] for changes in (every, of_one)]
        assert begun == ["turned", "turned"]
        found("db.t", [1, 2])
        told = [await pending(every)]
        found("db.other", [3])
        told += [await pending(of_one), await pending(every)]
        monkeypatch.setattr(stream, "MOVES_SHARE", 1e-9)
        reads.clear()
        await asyncio.gather(*(moves.latest() for _ in range(20)))
        assert len(reads) <= 1, "streams share what was read, and it is not read again before it is paid for"
        return told

    for one in (table, other):
        service.poll(one["id"])
    first, second, third = run_apart(follow())
    assert first["tables"].keys() == {table["id"]}
    assert first["tables"][table["id"]][:2] == first["all"][:2] == [2, 1]
    assert second["tables"].keys() == third["tables"].keys() == {other["id"]}
    assert second["tables"][other["id"]][:2] == [1, 1]
    assert third["all"][:2] == [3, 2]


def test_a_sample_that_comes_after_one_with_a_higher_id_is_told_too(
    service: Running, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MOVES_SECONDS", 0)
    monkeypatch.setattr(stream, "MOVES_SHARE", float("inf"))

    def keep(sample_id: int, deletes: int) -> None:
        with service.database.write() as session:
            session.add(health_sample(table["id"], utc_now(), deletes, id=sample_id))

    async def follow() -> list[float]:
        moves, told = RecentMoves(service.database), []
        keep(1_000, 1)
        await moves.latest()
        for sample_id, deletes in ((1_002, 2), (1_001, 3)):
            keep(sample_id, deletes)
            told.append((await moves.latest()).tables[table["id"]][0])
        assert (await moves.latest()).number == len(told)
        return told

    assert run_apart(follow()) == [2, 3]


@pytest.mark.parametrize("wrong", ["x", "-1", "", str(2**63), "9" * 30, "9" * 5000])
def test_a_last_event_id_that_is_none_of_ours_is_refused(service: Running, wrong: str) -> None:
    answer = service.admin.get("/events", headers={"Last-Event-ID": wrong})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-last-event-id")


@ON_BOTH
def test_the_stream_waits_for_a_gap_that_may_still_be_filled(service: Running, table: dict[str, Any]) -> None:
    for kind in ("index", "convert", "verify"):
        request_job(service, table, kind=kind)
    items = service.admin.get(f"/tables/{table['id']}/events").json()["items"]
    events = [EventView.model_validate(item) for item in items]
    first = events[0].id
    assert [event.id for event in settled(events, first - 1)] == [first, first + 1, first + 2]
    assert settled(events[1:], first - 1) == []
    assert [event.id for event in settled([events[0], events[2]], first - 1)] == [first]
    old = [event.model_copy(update={"at": event.at.replace(year=2020)}) for event in events]
    assert [event.id for event in settled([old[0], old[2]], first - 1)] == [first, first + 2]


@pytest.mark.integration
def test_events_whose_transactions_end_in_another_order_are_not_skipped(
    new_database_url: Callable[[str], str],
) -> None:
    """Only PostgreSQL has several writers at a time."""
    database = Database(new_database_url("postgresql"))

    def add(session: Session, kind: str) -> int:
        event = Event(kind=kind, message=kind)
        session.add(event)
        session.flush()
        assert event.id is not None
        return event.id

    with database.write() as session:
        first = add(session, "job.first")
    with database.write() as slow:
        second = add(slow, "job.slow")
        with database.write() as fast:
            assert add(fast, "job.fast") == second + 1
        assert [event.kind for event in _after(database, first - 1)] == ["job.first"]
        assert _after(database, first) == []
        assert _latest(database) == first, "who begins now is told of it"
    assert _latest(database) == second + 1
    assert [event.kind for event in _after(database, first)] == ["job.slow", "job.fast"]
    database.dispose()


@ON_BOTH
def test_the_stream_takes_any_filter_and_sends_only_what_it_lets_through(
    service: Running, iceberg: IcebergCatalog, table: dict[str, Any]
) -> None:
    """Other tests of any request leave it out, since it has no end."""
    iceberg.create("db.other")
    other = service.enroll("db.other")
    jobs = [
        request_job(service, table),
        request_job(service, other),
        request_job(service, table, kind="index"),
    ]
    begin = {"Last-Event-ID": "0"}
    (found,) = read_events(service.admin, 1, begin, table_id=other["id"])
    assert json.loads(found["data"])["job_id"] == jobs[1]["id"]
    (found,) = read_events(service.admin, 1, begin, table_id=table["id"], job_id=jobs[2]["id"])
    assert (found["event"], json.loads(found["data"])["job_id"]) == ("job", jobs[2]["id"])
    for strange in ("nope", "", "'; --", "\N{SNOWMAN}" * 1000, "null"):
        with service.admin.stream(
            "GET", "/events", params={"table_id": strange, "job_id": strange}
        ) as stream:
            assert stream.status_code == 200
            assert stream.headers["content-type"].startswith("text/event-stream")
    for name in ("table_id", "job_id"):
        refused = service.admin.get("/events", params={name: "\0"})
        assert (refused.status_code, refused.json()["type"]) == (422, "/problems/unusable-value")
    for method in ("POST", "PUT", "DELETE"):
        assert service.admin.request(method, "/events").status_code == 405


@ON_BOTH
def test_many_jobs_are_cancelled_or_retried_at_once_each_for_itself(
    service: Running, table: dict[str, Any]
) -> None:
    ids = [request_job(service, table, kind=kind)["id"] for kind in ("index", "convert")]
    asked = {"action": "cancel", "job_ids": [ids[0], "no-such-job", ids[1], ids[0]]}
    answer = service.admin.post("/jobs/bulk", json=asked).json()
    assert (answer["done"], answer["refused"]) == (2, 1)
    assert [item["job_id"] for item in answer["items"]] == [ids[0], "no-such-job", ids[1]]
    assert [item["job"] and item["job"]["status"] for item in answer["items"]] == [
        "cancelled",
        None,
        "cancelled",
    ]
    problem = answer["items"][1]["problem"]
    assert (problem["type"], problem["status"]) == ("/problems/job-not-found", 404)
    again = service.admin.post("/jobs/bulk", json={"action": "retry", "job_ids": ids}).json()
    assert [item["job"]["retry_of"] for item in again["items"]] == ids
    expiry = request_job(service, table, kind="expire_snapshots")["id"]
    service.admin.post(f"/jobs/{expiry}/cancel").raise_for_status()
    (item,) = service.admin.post("/jobs/bulk", json={"action": "retry", "job_ids": [expiry]}).json()["items"]
    assert item["problem"]["type"] == "/problems/job-not-retryable"
    assert "That can't be undone." in item["problem"]["detail"]
    assert service.admin.post(f"/jobs/{expiry}/retry").json()["retry_of"] == expiry
    viewer = service.client(Role.VIEWER).post("/jobs/bulk", json=asked)
    assert viewer.status_code == 403
    too_many = {"action": "cancel", "job_ids": ["x"] * 101}
    assert service.admin.post("/jobs/bulk", json=too_many).status_code == 422
