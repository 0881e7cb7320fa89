"""Erasures: a job for each table, keys that are kept no longer than that, and receipts that are signed."""

import base64
import hashlib
import hmac
import json
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import text
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from service.settings import Settings
from tests.service.conftest import ON_BOTH, Running, alike_on_both
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
        assert service.finish(assignment, result=report()).status_code == 200
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
    assert finish_next(service, service.start_worker(), result=report(**told)).status_code == 200
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
