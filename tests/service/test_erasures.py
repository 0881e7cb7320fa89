"""Erasures: a job for each table, keys that are kept no longer than that, and receipts that are signed."""

import base64
import hashlib
import hmac
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import insert, text
from sqlalchemy.exc import IntegrityError
from sqlmodel import select
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from service.app import prepare
from service.db.database import utc_now
from service.errors import StartError
from service.http.routing import IdempotentAnswer
from service.jobs.caveats import caveat_of
from service.records.jobs import JobKind, JobRows
from service.scheduling.retention import forget
from service.settings import Settings
from tests.service.conftest import ON_BOTH, Running, alike_on_both, running
from tests.service.iceberg_tables import IcebergCatalog

database_kind = alike_on_both

SECRET = "ada.lovelace@example.org"
KEYS = [{"email": SECRET, "id": 1}, {"email": SECRET, "id": 2**53 + 1}]
ERASURE_SECRET = "what hashes the keys of these tests"
RECEIPT_SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
LOOKED_AT = "2026-03-01T12:00:00Z"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    known = {"erasure_secret": SecretStr(ERASURE_SECRET), "receipt_secret": SecretStr(RECEIPT_SECRET)}
    return settings.model_copy(update=known)


@pytest.fixture
def tables(service: Running, iceberg: IcebergCatalog) -> list[str]:
    """The ids of `db.t`, `db.u` and `other.t`."""
    for name in ("db.u", "other.t"):
        iceberg.create(name)
    service.register(iceberg)
    return [str(service.enroll(name)["id"]) for name in ("db.t", "db.u", "other.t")]


@pytest.fixture
def erase(service: Running, tables: list[str]) -> Any:
    def send(client: httpx.Client = service.admin, **options: Any) -> httpx.Response:
        chosen = {} if "tables" in options or "pattern" in options else {"pattern": "db.*"}
        keys = {} if "files" in options else {"keys": KEYS}
        headers = options.pop("headers", {})
        return client.post("/erasures", json=keys | chosen | options, headers=headers)

    return send


def report(**fields: Any) -> dict[str, Any]:
    """Of two keys that are gone, but for `fields`."""
    told = {"keys": 2, "looked_at": LOOKED_AT, "counts": {"gone": 2}} | fields
    return {"rows_deleted": 3, "erasure": told}


def holder(*keys: int, **fields: Any) -> dict[str, Any]:
    told = {
        "holder": "tag",
        "name": "audit",
        "snapshot_id": 7,
        "reason": "It is a tag.",
        "remedy": "Drop it.",
    }
    return told | {"keys": list(keys)} | fields


def claim_all(service: Running) -> dict[str, dict[str, Any]]:
    """What workers get, by the names of tables: nobody knows who comes first."""
    claimed = iter(lambda: service.claim(service.start_worker()), None)
    return {".".join(one["table"]["identifier"]): one for one in claimed}


def finish_next(service: Running, worker: str, **result: Any) -> httpx.Response:
    assignment = service.claim(worker)
    assert assignment is not None
    return service.finish(assignment, **result)


def read_receipt(service: Running, erasure: dict[str, Any]) -> tuple[httpx.Response, dict[str, Any]]:
    answer = service.admin.get(f"/erasures/{erasure['id']}/receipt")
    assert answer.status_code == 200, answer.text
    return answer, answer.json()


def hashed(key: dict[str, Any]) -> str:
    """As docs/erasure.md says."""
    written = json.dumps(key, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hmac.new(ERASURE_SECRET.encode(), written.encode(), hashlib.sha256).hexdigest()


@ON_BOTH
def test_each_table_has_a_job_that_gets_the_keys(service: Running, tables: list[str], erase: Any) -> None:
    answer = erase(note="ticket 4711", key_columns=["email", "id"], expire_snapshots=False)
    assert answer.status_code == 202, answer.text
    erasure = answer.json()
    assert {key: erasure[key] for key in ("status", "jobs", "keys", "files", "note", "pattern")} == {
        "status": "queued",
        "jobs": {"queued": 2},
        "keys": 2,
        "files": [],
        "note": "ticket 4711",
        "pattern": "db.*",
    }
    assert [(one["table_id"], one["table"], one["status"]) for one in erasure["tables"]] == [
        (tables[0], "db.t", "queued"),
        (tables[1], "db.u", "queued"),
    ]
    assigned = claim_all(service)
    for each in erasure["tables"]:
        assignment = assigned[each["table"]]
        assert assignment["job"] == {
            "id": each["job_id"],
            "kind": "erase",
            "dry_run": False,
            "parameters": {
                "erasure_id": erasure["id"],
                "key_columns": ["email", "id"],
                "files": [],
                "expire_snapshots": False,
            },
        }
        assert assignment["rows"] == KEYS
        now = service.admin.get(f"/erasures/{erasure['id']}").json()
        assert now["status"] == "running"
        assert service.finish(assignment, result=report()).is_success
    done = service.admin.get(f"/erasures/{erasure['id']}").json()
    assert (done["status"], done["jobs"]) == ("succeeded", {"succeeded": 2})
    assert [one["counts"]["gone"] for one in done["tables"]] == [2, 2]
    (listed,) = service.admin.get("/erasures").json()["items"]
    assert listed == {key: value for key, value in done.items() if key != "tables"}


@ON_BOTH
def test_a_complete_receipt_is_signed_and_the_same_each_time(service: Running, erase: Any) -> None:
    erasure = erase(note="ticket 4711").json()
    assigned = claim_all(service)
    service.finish(assigned["db.t"], result=report(snapshots_expired=[5], snapshots_expired_count=1))
    _, first = read_receipt(service, erasure)
    assert [one["status"] for one in first["tables"]] == ["succeeded", "running"]
    assert first["complete"] is False
    assert [key["state"] for key in first["tables"][1]["keys"]] == ["unknown", "unknown"]
    held = {"gone": 1, "held": 1}
    service.finish(assigned["db.u"], result=report(counts=held, held=[holder(1)]))

    answer, receipt = read_receipt(service, erasure)

    assert Verifier(RECEIPT_SECRET).verify(answer.content.decode(), dict(answer.headers)) == receipt
    forged = answer.content.replace(b'"held"', b'"gone"').decode()
    with pytest.raises(WebhookVerificationError):
        Verifier(RECEIPT_SECRET).verify(forged, dict(answer.headers))
    assert (receipt["complete"], receipt["keys"], receipt["note"]) == (True, 2, "ticket 4711")
    assert receipt["tables"][0]["report"]["snapshots_expired"] == [5]
    assert receipt["tables"][1]["keys"] == [
        {"hash": hashed(KEYS[0]), "state": "gone", "held_by": []},
        {"hash": hashed(KEYS[1]), "state": "held", "held_by": [0]},
    ]
    (told,) = receipt["tables"][1]["report"]["held"]
    assert told == holder(1) | {"until": None}
    again, _ = read_receipt(service, erasure)
    assert again.content == answer.content


@pytest.mark.parametrize(
    ("told", "states"),
    [
        ({"counts": {"invisible": 2}, "invisible": [0, 1]}, ["invisible", "invisible"]),
        ({"counts": {"gone": 1, "invisible": 1}, "invisible": [0]}, ["invisible", "gone"]),
        (
            {"counts": {"gone": 1, "invisible": 1}, "invisible": [0], "held": [holder(0, holder="writer")]},
            ["invisible", "gone"],
        ),
        # Which of them it is was not told.
        ({"counts": {"gone": 1, "invisible": 1}}, ["unknown", "unknown"]),
        ({"counts": {"gone": 1, "held": 1}, "held": []}, ["unknown", "unknown"]),
        ({"counts": {"unknown": 2}, "unknown": [0, 1]}, ["unknown", "unknown"]),
        (
            {"counts": {"gone": 1, "unknown": 1}, "held": [holder(1, holder="unreadable_file")]},
            ["gone", "unknown"],
        ),
        (
            {
                "counts": {"held": 2},
                "held": [holder(0, 1, holder="unreadable_file"), holder(0), holder(1, holder="retention")],
            },
            ["held", "held"],
        ),
    ],
)
def test_a_receipt_says_no_more_of_a_key_than_the_worker_did(
    service: Running, tables: list[str], erase: Any, told: dict[str, Any], states: list[str]
) -> None:
    erasure = erase(tables=tables[:1]).json()
    assert finish_next(service, service.start_worker(), result=report(**told)).status_code == 204
    _, receipt = read_receipt(service, erasure)
    assert [key["state"] for key in receipt["tables"][0]["keys"]] == states


def test_a_success_without_a_report_leaves_everything_unknown(
    service: Running, tables: list[str], erase: Any
) -> None:
    erasure = erase(tables=tables[:1]).json()
    finish_next(service, service.start_worker(), result={"rows_deleted": 3})
    _, receipt = read_receipt(service, erasure)
    (table,) = receipt["tables"]
    assert (table["report"], {key["state"] for key in table["keys"]}) == (None, {"unknown"})


@pytest.mark.parametrize(
    "told",
    [
        {"counts": {"gone": 3}},
        {"counts": {"gone": -1, "held": 3}},
        {"keys": 3, "counts": {"gone": 3}},
        {"keys": 1, "counts": {"gone": 1}},
        {"held": [holder(2)]},
        {"held": [holder(-1)]},
        {"held": [holder(0)] * 1_001},
        {"held": [holder(*[0] * 10_001)]},
        {"held": [holder(0, holder="h" * 201)]},
        {"invisible": [2]},
        {"unknown": [2]},
        {"snapshots_expired": list(range(1_001))},
        {"snapshot_id_deleted": 2**63},
        {"looked_at": "2026-03-01T12:00:00"},
        {"looked_at": None},
    ],
)
def test_a_report_with_more_than_the_contract_allows_is_refused(
    service: Running, tables: list[str], erase: Any, told: dict[str, Any]
) -> None:
    erase(tables=tables[:1])
    answer = finish_next(service, service.start_worker(), result=report(**told))
    assert answer.status_code == 422, answer.text


def test_a_report_of_an_erasure_belongs_to_one(service: Running, tables: list[str]) -> None:
    service.admin.post(f"/tables/{tables[0]}/rows/delete", json={"keys": KEYS})
    answer = finish_next(service, service.start_worker(), result=report())
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/report-of-other-keys")


def stored(service: Running) -> str:
    """All that the database has, in text."""
    with service.database.read() as session:
        if session.get_bind().dialect.name == "sqlite":
            names = session.execute(text("SELECT name FROM sqlite_master WHERE type = 'table'")).scalars()
        else:
            names = session.execute(
                text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            ).scalars()
        rows = [session.execute(text(f'SELECT * FROM "{name}"')).all() for name in list(names)]
    return repr(rows)


@ON_BOTH
def test_keys_are_nowhere_once_the_jobs_have_ended(
    service: Running, tables: list[str], erase: Any, caplog: pytest.LogCaptureFixture
) -> None:
    once = {"Idempotency-Key": "once"}
    for chosen in ({"pattern": "db.*"}, {"tables": [tables[2]]}):
        erase(**chosen, headers=once)
        once = {}
    assert SECRET in stored(service)
    erase(keys=[{"email": [SECRET]}, 7])  # refused
    erase(tables=[tables[0], "nope"])
    worker = service.start_worker()
    finish_next(service, worker, result=report())
    told = {"code": "invalid_rows", "title": "No.", "detail": "Key 0.", "remedy": "Mend it."}
    finish_next(service, worker, status="failed", error=told)
    (waiting,) = service.admin.get("/jobs?status=queued").json()["items"]
    service.admin.post(f"/jobs/{waiting['id']}/cancel")
    for erasure in service.admin.get("/erasures").json()["items"]:
        read_receipt(service, erasure)

    assert SECRET not in stored(service)
    assert SECRET not in caplog.text


def test_the_same_request_with_an_idempotency_key_makes_one_erasure(service: Running, erase: Any) -> None:
    first, again = (erase(headers={"Idempotency-Key": "erase-17"}) for _ in range(2))
    assert (first.json(), again.headers["Idempotency-Replayed"]) == (again.json(), "true")
    assert len(service.admin.get("/jobs").json()["items"]) == 2
    other = erase(keys=KEYS[:1], headers={"Idempotency-Key": "erase-17"})
    assert (other.status_code, other.json()["type"]) == (422, "/problems/idempotency-key-reused")


@pytest.mark.parametrize("path", ["/tables/{}/rows/delete", "/tables/{}/rows/upsert", "/erasures"])
def test_what_a_request_said_can_not_be_found_by_trying(
    service: Running, tables: list[str], path: str
) -> None:
    """Of a body with few possible values, by whoever reads the database and guesses the Idempotency-Key."""
    body: dict[str, Any] = {"rows" if path.endswith("upsert") else "keys": [{"id": 17}]}
    body |= {"tables": tables[:1]} if path == "/erasures" else {}
    content = json.dumps(body).encode()
    headers = {"Idempotency-Key": "guessed", "Content-Type": "application/json"}
    whole = path.format(tables[0])
    assert service.admin.post(whole, content=content, headers=headers).status_code == 202
    with service.database.read() as session:
        (kept,) = session.exec(select(IdempotentAnswer)).all()
    said = b"\0".join((b"POST", f"/api/v1{whole}".encode(), b"", content))
    guessed = hashlib.sha256(b"icestream idempotent fingerprint\0guessed").digest()
    tried = {hashlib.sha256(said).hexdigest(), hmac.new(guessed, said, hashlib.sha256).hexdigest()}
    assert kept.fingerprint not in tried
    secret = guessed + ERASURE_SECRET.encode()
    assert kept.fingerprint == hmac.new(secret, said, hashlib.sha256).hexdigest()


def test_a_dry_run_says_which_tables_are_meant_and_keeps_no_key(
    service: Running, tables: list[str], erase: Any
) -> None:
    service.admin.post(f"/tables/{tables[1]}/pause")
    plan = erase(dry_run=True).json()
    assert [(one["table"], one["refused_because"]) for one in plan["tables"]] == [
        ("db.t", None),
        ("db.u", "No job was queued: table db.u is paused."),
    ]
    assert service.admin.get("/jobs").json()["items"] == []
    assert service.admin.get("/erasures").json()["items"] == []
    assert SECRET not in stored(service)


@ON_BOTH
def test_all_tables_are_taken_or_none(service: Running, tables: list[str], erase: Any) -> None:
    service.admin.post(f"/tables/{tables[1]}/pause")
    for chosen, status, problem in (
        ({"pattern": "db.*"}, 409, "paused"),
        ({"tables": [tables[0], "db.nope"]}, 422, "table-not-enrolled"),
        ({"pattern": "nope.*"}, 422, "table-not-enrolled"),
        ({"tables": ["db.t"], "catalog": "nope"}, 422, "catalog-not-found"),
    ):
        answer = erase(**chosen)
        assert (answer.status_code, answer.json()["type"]) == (status, f"/problems/{problem}")
    assert service.admin.get("/jobs").json()["items"] == []
    assert service.admin.get("/erasures").json()["items"] == []
    assert SECRET not in stored(service)


def test_tables_are_named_by_id_by_name_and_with_their_catalog(
    service: Running, tables: list[str], erase: Any
) -> None:
    named = ["local.other.t", tables[0], "db.t"]
    erasure = erase(tables=named, catalog="local").json()
    assert [one["table_id"] for one in erasure["tables"]] == [tables[0], tables[2]], "each once"


def test_a_name_that_several_tables_have_is_refused_with_their_ids(
    service: Running, iceberg: IcebergCatalog, tables: list[str], erase: Any
) -> None:
    table = iceberg.catalog.load_table("db.t")
    table.manage_snapshots().create_branch(iceberg.head("db.t"), "audit").commit()
    branch = service.enroll(branch="audit")["id"]
    answer = erase(tables=["db.t"])
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/table-ambiguous")
    assert tables[0] in answer.json()["remedy"]
    assert branch in answer.json()["remedy"]
    assert len(erase(pattern="db.t").json()["tables"]) == 2, "a pattern takes both branches"


def test_keys_of_the_scope_erase_and_of_no_other(service: Running, erase: Any) -> None:
    def key(**fields: Any) -> httpx.Client:
        made = service.admin.post("/api-keys", json={"name": "k", **fields}).json()
        return service.client_with({"Authorization": f"Bearer {made['key']}"})

    made = erase(client=key(role="operator", scopes=["erasures:write"]))
    assert made.status_code == 202
    for refused in (key(role="operator", scopes=["rows:write", "jobs:write"]), key(role="viewer")):
        assert erase(client=refused).status_code == 403
    receipt = f"/erasures/{made.json()['id']}/receipt"
    assert key(role="viewer", scopes=["erasures:read"]).get(receipt).status_code == 200
    assert key(role="viewer", scopes=["jobs:read"]).get(receipt).status_code == 403


def test_the_audit_log_says_how_many_keys_of_which_tables(service: Running, erase: Any) -> None:
    asked = erase(note="about Ada").json()
    entries = service.admin.get("/audit?action=erasure.create").json()["items"]
    named = {f"{table['catalog']}.{table['table']}" for table in asked["tables"]}
    assert {entry["target"] for entry in entries} == named
    assert all(entry["fields"] == {"keys": 2, "dry_run": False} for entry in entries)


def test_a_table_that_is_removed_or_paused_and_a_job_that_is_cancelled_are_told(
    service: Running, tables: list[str], erase: Any
) -> None:
    erasure = erase(tables=tables).json()
    service.admin.delete(f"/tables/{tables[0]}")
    service.admin.post(f"/tables/{tables[1]}/pause")
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    service.admin.post(f"/jobs/{assignment['job']['id']}/cancel")
    told = service.admin.get(f"/erasures/{erasure['id']}").json()
    assert told["status"] == "running"
    removed, paused, stopping = told["tables"]
    assert (removed["status"], removed["cancelled_because"]) == (
        "cancelled",
        "the table was removed by bootstrap",
    )
    assert (paused["status"], paused["waiting_for"]) == ("queued", "Waits: table db.u is paused.")
    assert (stopping["status"], stopping["cancelled_because"]) == ("running", "requested by bootstrap")

    service.finish(assignment, status="cancelled", result=report())

    _, receipt = read_receipt(service, erasure)
    assert [(one["status"], one["report"]) for one in receipt["tables"]][2] == ("cancelled", None)
    assert {key["state"] for key in receipt["tables"][2]["keys"]} == {"unknown"}


def test_a_failed_table_is_erased_anew_and_the_old_erasure_stays(
    service: Running, tables: list[str], erase: Any
) -> None:
    erasure = erase(tables=tables[:1]).json()
    told = {"code": "catalog_unreachable", "title": "No.", "detail": "Nobody.", "remedy": "Start it."}
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    failed = service.finished(assignment, status="failed", error=told)
    answer = service.admin.post(f"/jobs/{failed['id']}/retry")
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/job-not-retryable")
    before, receipt = read_receipt(service, erasure)
    assert (receipt["complete"], receipt["tables"][0]["status"]) == (True, "failed")
    assert receipt["tables"][0]["error"] == told | {"retryable": False}

    again = erase(tables=tables[:1]).json()
    finish_next(service, service.start_worker(), result=report())

    _, receipt = read_receipt(service, again)
    assert [key["state"] for key in receipt["tables"][0]["keys"]] == ["gone", "gone"]
    assert read_receipt(service, erasure)[0].content == before.content
    assert service.admin.get(f"/erasures/{erasure['id']}").json()["status"] == "failed"


def test_of_files_of_keys_the_receipt_has_numbers(service: Running, tables: list[str], erase: Any) -> None:
    file = str(service.settings.data_dir / "keys.parquet")
    refused = erase(files=["/etc/passwd"])
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/location-not-allowed")
    erasure = erase(files=[file], tables=tables[:1]).json()
    assert (erasure["keys"], erasure["files"]) == (None, [file])
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    assert (assignment["rows"], assignment["job"]["parameters"]["files"]) == (None, [file])
    counts = {"gone": 2_000_000, "held": 1}
    told = report(keys=2_000_001, counts=counts, held=[holder(1_999_999)])
    service.finish(assignment, result=told)
    _, receipt = read_receipt(service, erasure)
    (table,) = receipt["tables"]
    assert (receipt["keys"], receipt["files"], table["keys"]) == (None, [file], [])
    assert table["counts"] == {"gone": 2_000_000, "invisible": 0, "held": 1, "unknown": 0}
    assert table["report"]["held"][0]["keys"] == [1_999_999]


@ON_BOTH
def test_the_end_of_job_history_loses_no_receipt(service: Running, tables: list[str], erase: Any) -> None:
    first, second = (erase(tables=tables[:1]).json() for _ in range(2))
    worker = service.start_worker()
    for _ in range(2):
        finish_next(service, worker, result=report())
    later = utc_now() + timedelta(days=service.settings.job_history_days + 1)
    forget(service.database, service.settings, later)
    assert len(service.admin.get("/jobs").json()["items"]) == 1, "the last one tells policies the time"
    for erasure in (first, second):
        _, receipt = read_receipt(service, erasure)
        assert [key["state"] for key in receipt["tables"][0]["keys"]] == ["gone", "gone"]
        assert service.admin.get(f"/erasures/{erasure['id']}").json()["status"] == "succeeded"


@pytest.mark.parametrize(
    "body",
    [
        {"keys": []},
        {"keys": [{"id": 1}] * 1_001},
        {"keys": [1]},
        {"tables": []},
        {"tables": ["db.t"], "pattern": "db.*"},
        {"tables": ["t"] * 101},
        {"keys": [{"id": 1}], "files": ["/a"]},
        {"keys": None},
        {"note": "n" * 1_001},
        {"rows": [{"id": 1}]},
    ],
)
def test_a_malformed_erasure_is_refused_field_by_field(service: Running, body: dict[str, Any]) -> None:
    chosen = {} if "tables" in body else {"tables": ["db.t"]}
    answer = service.admin.post("/erasures", json={"keys": [{"id": 1}]} | chosen | body)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/validation-error")


def test_nothing_is_erased_without_the_secrets(settings: Settings) -> None:
    for missing in ("erasure_secret", "receipt_secret"):
        with running(settings.model_copy(update={missing: None})) as service:
            answer = service.admin.post("/erasures", json={"keys": KEYS, "pattern": "*"})
            assert (answer.status_code, answer.json()["type"]) == (409, "/problems/erasures-not-set-up")
            assert f"ICESTREAM_{missing.upper()}" in answer.json()["detail"]
    unusable = settings.model_copy(update={"receipt_secret": SecretStr("whsec_short")})
    with pytest.raises(StartError, match="ICESTREAM_RECEIPT_SECRET"):
        prepare(unusable)


def test_an_error_of_the_database_shows_no_key(service: Running, tables: list[str], erase: Any) -> None:
    erase(tables=tables[:1])
    with service.database.write() as session:
        (row,) = session.exec(select(JobRows)).all()
        with pytest.raises(IntegrityError) as caught:
            session.connection().execute(insert(JobRows), row.model_dump())
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("told", "title"),
    [
        (report()["erasure"], None),
        (
            report(counts={"gone": 1, "held": 1}, held=[holder(1)])["erasure"],
            "1 of 2 keys is not known",
        ),
        (report(counts={"unknown": 2})["erasure"], "2 of 2 keys are not known to be gone"),
        (None, "What has become of the keys is not known"),
    ],
)
def test_a_job_whose_keys_are_not_all_gone_is_no_plain_success(told: Any, title: str | None) -> None:
    caveat = caveat_of(JobKind.ERASE, {"erasure": told}, dry_run=False)
    assert (caveat is None) == (title is None)
    if caveat is not None and title is not None:
        assert caveat.title.startswith(title)


@ON_BOTH
def test_all_who_ask_first_at_the_same_time_get_the_same_receipt(
    service: Running, tables: list[str], erase: Any
) -> None:
    erasure = erase(tables=tables[:1]).json()
    finish_next(service, service.start_worker(), result=report())
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: read_receipt(service, erasure)[0].content, range(8)))
    assert len(set(answers)) == 1


def test_the_list_of_erasures_has_pages(service: Running, tables: list[str], erase: Any) -> None:
    made = [erase(tables=tables[:1]).json()["id"] for _ in range(3)]
    finish_next(service, service.start_worker(), result=report())
    first = service.admin.get("/erasures?limit=2").json()
    rest = service.admin.get("/erasures", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [one["id"] for one in first["items"] + rest["items"]] == made[::-1]
    assert rest["next_cursor"] is None
    unknown = service.admin.get("/erasures/nope/receipt")
    assert (unknown.status_code, unknown.json()["type"]) == (404, "/problems/erasure-not-found")
