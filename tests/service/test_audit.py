"""What every write through the API leaves in the audit log; `test_access.py` has who is refused."""

import base64
from itertools import chain, product
from typing import Any

import pytest
from pydantic import SecretStr
from sqlmodel import col, select

from service.records.audit import AuditEntry
from service.records.jobs import Job, JobStatus
from service.records.tables import quoted_name
from service.settings import Settings
from tests.access import DECISIONS
from tests.service.conftest import Running
from tests.service.iceberg_tables import IcebergCatalog

WRITES = {
    route.replace(" /api/v1", " ")
    for who, routes in DECISIONS.items()
    for route in routes
    # What workers tell about jobs is kept as attempts and events of these.
    if "/api/v1/" in route and not route.startswith("GET ") and who != "worker"
}


class Written:
    """Calls routes, and remembers which; `allowed`: actions that the log has of the last call."""

    def __init__(self, service: Running) -> None:
        self.service, self.routes = service, set[str]()
        self.last_id = 0
        self.read()

    def read(self) -> list[tuple[str, str]]:
        with self.service.database.read() as session:
            query = select(AuditEntry).where(col(AuditEntry.id) > self.last_id).order_by(col(AuditEntry.id))
            entries = session.exec(query).all()
        self.last_id = entries[-1].id or 0 if entries else self.last_id
        return [(entry.action, entry.outcome) for entry in entries]

    def __call__(self, route: str, action: str, *further: str, body: Any = None, **ids: str) -> Any:
        """The answer to a call that succeeds, and leaves an entry for `action` and each `further` one."""
        self.routes.add(route)
        method, path = route.split(" ")
        headers = {"If-Match": "*"} if method == "PATCH" else {}
        answer = self.service.admin.request(method, path.format(**ids), json=body, headers=headers)
        assert answer.is_success, answer.text
        assert self.read() == [(each, "allowed") for each in (action, *further)], route
        return answer.json() if answer.content else None


@pytest.fixture
def settings(settings: Settings) -> Settings:
    receipt = "whsec_" + base64.b64encode(bytes(32)).decode()
    known = {"erasure_secret": SecretStr("e" * 32), "receipt_secret": SecretStr(receipt)}
    return settings.model_copy(update=known)


def test_each_write_leaves_one_entry(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBHOOK_TEST", "whsec_" + base64.b64encode(bytes(32)).decode())
    iceberg.create("db.u")
    write = Written(service)

    record = {"name": "local", "type": "sql", "properties": iceberg.properties}
    catalog = {"catalog_id": write("POST /catalogs", "catalog.create", body=record)["id"]}
    write("PATCH /catalogs/{catalog_id}", "catalog.update", body={"max_running_jobs": 5}, **catalog)
    write("POST /catalogs/{catalog_id}/check", "catalog.check", **catalog)
    write("POST /catalogs/{catalog_id}/pause", "catalog.pause", **catalog)
    write("POST /catalogs/{catalog_id}/resume", "catalog.resume", **catalog)

    policy = {"policy_id": write("POST /policies", "policy.create", body={"name": "p", "settings": {}})["id"]}
    write("PATCH /policies/{policy_id}", "policy.update", body={"description": "d"}, **policy)
    attached = {"level": "catalog", "catalog": "local", "policy": "p"}
    write("PUT /policy-attachments", "policy.attach", body=attached)
    write("PUT /policy-attachments", "policy.attach", body=attached | {"policy": None})
    write("DELETE /policies/{policy_id}", "policy.delete", **policy)

    named = {"catalog": "local", "identifier": ["db", "t"]}
    table = {"table_id": write("POST /tables", "table.enroll", body=named)["id"]}
    by_pattern = {"catalog": "local", "pattern": "db.*"}
    listed = service.admin.post("/tables/enroll-by-pattern", json=by_pattern | {"dry_run": True}).json()
    assert (listed["matched"], write.read()) == (["db.t", "db.u"], []), "which is no write"
    write("POST /tables/enroll-by-pattern", "table.enroll_pattern", "table.enroll", body=by_pattern)
    write("PATCH /tables/{table_id}", "table.update", body={"policy": "manual"}, **table)
    write("POST /tables/{table_id}/pause", "table.pause", **table)
    write("POST /tables/{table_id}/resume", "table.resume", **table)

    pattern = {"pattern_id": write("POST /patterns", "pattern.create", body=by_pattern)["id"]}
    write("PATCH /patterns/{pattern_id}", "pattern.update", body={"paused": True}, **pattern)
    write("DELETE /patterns/{pattern_id}", "pattern.delete", **pattern)

    asked = write("POST /tables/{table_id}/jobs", "job.convert", body={"kind": "convert"}, **table)
    job = {"job_id": asked["id"]}
    write("POST /jobs/{job_id}/cancel", "job.cancel", **job)
    job = {"job_id": write("POST /jobs/{job_id}/retry", "job.retry", **job)["id"]}
    unknown = {"action": "cancel", "job_ids": [job["job_id"], "nope"]}
    assert write("POST /jobs/bulk", "job.cancel", body=unknown)["refused"] == 1
    write("POST /tables/{table_id}/rows/upsert", "rows.upsert", body={"rows": [{"id": 1}]}, **table)
    write("POST /tables/{table_id}/rows/delete", "rows.delete", body={"keys": [{"id": 1}]}, **table)
    write("POST /erasures", "erasure.create", body={"keys": [{"id": 1}], "tables": ["db.t"]})
    write("POST /system/pause", "system.pause")
    write("POST /system/resume", "system.resume")

    hook = {"name": "w", "url": f"{service.url}/nope", "secret": "env:WEBHOOK_TEST", "kinds": ["job.failed"]}
    webhook = {"webhook_id": write("POST /webhooks", "webhook.create", body=hook)["id"]}
    write("PATCH /webhooks/{webhook_id}", "webhook.update", body={"enabled": True}, **webhook)
    webhook["delivery_id"] = str(write("POST /webhooks/{webhook_id}/test", "webhook.test", **webhook)["id"])
    write("POST /webhooks/{webhook_id}/resend", "webhook.resend", **webhook)
    write("POST /webhooks/{webhook_id}/deliveries/{delivery_id}/resend", "webhook.resend", **webhook)
    write("DELETE /webhooks/{webhook_id}", "webhook.delete", **webhook)

    sender = {"name": "s", "catalog": "local", "secret": "env:WEBHOOK_TEST"}
    made = write("POST /notification-senders", "notification_sender.create", body=sender)
    write("DELETE /notification-senders/{sender_id}", "notification_sender.delete", sender_id=made["id"])

    made = {"name": "k", "role": "viewer"}
    key = {"key_id": write("POST /api-keys", "api_key.create", body=made)["id"]}
    write("POST /api-keys/{key_id}/rotate", "api_key.rotate", body={"grace_seconds": 0}, **key)
    write("DELETE /api-keys/{key_id}", "api_key.revoke", **key)

    write("DELETE /tables/{table_id}", "table.delete", **table)
    (other,) = service.admin.get("/tables").json()["items"]
    write("DELETE /tables/{table_id}", "table.delete", table_id=other["id"])
    write("DELETE /catalogs/{catalog_id}", "catalog.delete", **catalog)
    # These read, and have entries all the same: tests/service/lookups/test_access.py.
    lookups = {"POST /tables/{table_id}/lookups", "POST /tables/{table_id}/lookups/history"}
    # And these only make the service look sooner.
    notifications = {route for route in WRITES if route.endswith(("/notifications", "/commit-events"))}
    reads = {"POST /tables/{table_id}/policy/replay"}
    assert write.routes == WRITES - lookups - notifications - reads


def test_what_was_allowed_and_came_to_nothing_leaves_no_entry(
    service: Running, iceberg: IcebergCatalog
) -> None:
    """Also where one call does many things, and of a call that is repeated with its Idempotency-Key."""
    iceberg.create("db.u")
    service.register(iceberg)
    table = service.enroll()
    written = Written(service)
    path, once = f"/tables/{table['id']}/jobs", {"Idempotency-Key": "k"}
    answers = [service.admin.post(path, json={"kind": "convert"}, headers=once) for _ in range(2)]
    assert answers[0].json() == answers[1].json()
    assert written.read() == [("job.convert", "allowed")]
    with service.database.write() as session:
        session.get_one(Job, answers[0].json()["id"]).status = JobStatus.SUCCEEDED.value
    assert service.admin.post(f"/jobs/{answers[0].json()['id']}/cancel").status_code == 409
    stale = service.admin.patch(f"/tables/{table['id']}", json={}, headers={"If-Match": '"7"'})
    assert stale.status_code == 412
    bulk = {"action": "cancel", "job_ids": [answers[0].json()["id"]]}
    assert service.admin.post("/jobs/bulk", json=bulk).json()["refused"] == 1
    assert written.read() == []
    # The index may not lie in the table that is to be enrolled.
    inside = {"index_warehouse": iceberg.catalog.load_table("db.u").location()}
    changed = service.admin.patch("/catalogs/local", json=inside, headers={"If-Match": "*"})
    assert changed.is_success, changed.text
    by_pattern = {"catalog": "local", "pattern": "db.u"}
    result = service.admin.post("/tables/enroll-by-pattern", json=by_pattern).json()
    assert (result["enrolled"], [one["identifier"] for one in result["failed"]]) == ([], [["db", "u"]])
    assert written.read() == [("catalog.update", "allowed"), ("table.enroll_pattern", "allowed")]


def test_what_is_done_to_a_table_is_found_by_one_name(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    table = service.enroll()
    attached = {"level": "table", "table_id": table["id"], "policy": "manual"}
    assert service.admin.put("/policy-attachments", json=attached).status_code == 200
    # By its id, as any other name: the log has its own.
    erased = {"keys": [{"id": 1}], "tables": [table["id"]]}
    assert service.admin.post("/erasures", json=erased).status_code == 202
    service.admin.post(f"/tables/{table['id']}/pause")
    entries = service.admin.get("/audit", params={"target": "local.db.t"}).json()["items"]
    actions = {"table.enroll", "policy.attach", "erasure.create", "table.pause"}
    assert {entry["action"] for entry in entries} == actions
    # From here on it is another name, which the log tells.
    renamed = service.admin.patch("/catalogs/local", json={"name": "lake"}, headers={"If-Match": "*"})
    assert renamed.status_code == 200, renamed.text
    (entry,) = service.admin.get("/audit", params={"action": "catalog.update"}).json()["items"]
    assert (entry["target"], entry["fields"]["name"]) == ("local", "lake")


def test_no_two_tables_have_one_name_in_the_log() -> None:
    assert quoted_name("lake", ["shop", "orders"]) == "lake.shop.orders"
    assert quoted_name("lake", ["a.b", "or`ders"]) == "lake.`a.b`.`or``ders`"
    parts = ["".join(signs) for length in (1, 2, 3) for signs in product("a.`", repeat=length)]
    names = chain(product(parts, parts), product(parts[:12], repeat=3))
    named = [quoted_name(first, rest) for first, *rest in names]
    assert len(set(named)) == len(named)
