"""Lists are read in pages, in any order that they offer, on either database: no row twice, none left out."""

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from sqlmodel import delete, select

from service.auth.audit import list_entries
from service.auth.service import SORTING, list_api_keys
from service.command.openapi import DOCUMENT
from service.db.database import Database
from service.errors import InvalidError
from service.http.paging import PageRequest
from service.policies.service import list_policies
from service.records.api_keys import ApiKey, Role
from service.records.audit import AuditEntry
from service.records.catalogs import Catalog
from service.records.erasures import Erasure, ErasureTable
from service.records.jobs import Event, Job
from service.records.notifications import NotificationSender
from service.records.webhooks import Webhook
from service.records.workers import Worker
from tests.service.conftest import Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog

database_kind = alike_on_both

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DOCUMENTED = json.loads(DOCUMENT.read_text())


def is_page(call: dict[str, Any]) -> bool:
    schema = call["responses"]["200"]["content"].get("application/json", {}).get("schema", {})
    name = schema.get("$ref", "/").rpartition("/")[2]
    return "next_cursor" in DOCUMENTED["components"]["schemas"].get(name, {}).get("properties", {})


LISTS = {
    path.removeprefix("/api/v1"): calls["get"]["parameters"]
    for path, calls in DOCUMENTED["paths"].items()
    if "get" in calls and is_page(calls["get"])
}


@pytest.fixture
def table(service: Running, iceberg: IcebergCatalog) -> dict[str, Any]:
    service.register(iceberg)
    return service.enroll()


@pytest.fixture
def webhook_id(service: Running) -> str:
    """A webhook with a delivery that waits."""
    with service.database.write() as session:
        webhook = Webhook(name="w", url="https://example.com", kinds=["job"], secret="env:S", created_by="n")
        session.add(webhook)
        found = webhook.id
    assert service.admin.post(f"/webhooks/{found}/test").is_success
    return found


def record_erasure(service: Running, table: dict[str, Any]) -> None:
    with service.database.write() as session:
        erasure = Erasure(requested_by="n")
        session.add(erasure)
        session.flush()
        part = ErasureTable(
            erasure_id=erasure.id,
            number=0,
            job_id="j",
            table_id=table["id"],
            table_uuid=table["table_uuid"],
            table="db.t",
            catalog="local",
            branch="main",
            status="succeeded",
        )
        session.add(part)


def make_sender(service: Running) -> None:
    with service.database.write() as session:
        catalog = session.exec(select(Catalog.id)).one()
        session.add(NotificationSender(name="s", catalog_id=catalog, secret="env:S", created_by="n"))


def path_of(list_path: str, service: Running, table: dict[str, Any], webhook_id: str) -> str:
    job = service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "convert"}).json()
    return list_path.format(table_id=table["id"], job_id=job["id"], catalog_id="local", webhook_id=webhook_id)


def walk(service: Running, path: str, **query: Any) -> list[dict[str, Any]]:
    """Every item of a list, page by page, of which the first one tells how many there are."""
    found, cursor, told = [], None, []
    while True:
        answer = service.admin.get(path, params=query | ({"cursor": cursor} if cursor else {}))
        assert answer.status_code == 200, answer.text
        found += answer.json()["items"]
        # Candidates are looked for in all tables, which are counted.
        if "looked_at" not in answer.json():
            told += [answer.json()["total"], answer.json()["total_is_least"]]
        assert len(found) < 1000, "pages without end"
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            assert told in ([], [len(found), False, *[None, False] * (len(told) // 2 - 1)])
            return found


def times() -> st.SearchStrategy[datetime]:
    return st.integers(0, 3).map(lambda hours: NOON + timedelta(hours=hours, microseconds=hours))


def keys() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "id": st.uuids().map(str),
            "name": st.sampled_from(["a", "b", "c"]),
            "created_at": times(),
            "expires_at": st.none() | times(),
            "last_used_at": st.none() | times(),
        }
    )


def add_keys(database: Database, rows: list[dict[str, Any]]) -> None:
    with database.write() as session:
        for row in rows:
            session.add(ApiKey(**row, role="viewer", key_hash=row["id"], prefix="x", created_by="y"))


@examples(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=60,
)
@given(
    rows=st.lists(keys(), max_size=12, unique_by=lambda row: row["id"]),
    late=st.lists(keys(), max_size=3, unique_by=lambda row: row["id"]),
    column=st.sampled_from(sorted(SORTING.columns)),
    descending=st.booleans(),
    limit=st.integers(1, 5),
)
def test_pages_in_any_order_have_every_row_once_whatever_is_added_meanwhile(
    database: Database,
    rows: list[dict[str, Any]],
    late: list[dict[str, Any]],
    column: str,
    descending: bool,
    limit: int,
) -> None:
    with database.write() as session:
        session.exec(delete(ApiKey))
    add_keys(database, rows)
    late = [row for row in late if row["id"] not in {row["id"] for row in rows}]
    seen, cursor = [], None
    for step in range(len(rows) + len(late) + 1):
        with database.read() as session:
            sort = f"-{column}" if descending else column
            page = list_api_keys(session, PageRequest(limit=limit, cursor=cursor, sort=sort))
        seen += [item.id for item in page.items]
        cursor = page.next_cursor
        if step == 0:
            add_keys(database, late)
        if cursor is None:
            break
    given_rows = sorted(
        [row for row in rows if row[column] is not None],
        key=lambda row: (row[column], row["id"]),
        reverse=descending,
    ) + sorted(
        [row for row in rows if row[column] is None], key=lambda row: str(row["id"]), reverse=descending
    )
    assert len(seen) == len(set(seen))
    added = {row["id"] for row in late}
    assert [one for one in seen if one not in added] == [row["id"] for row in given_rows]


def test_the_document_knows_every_list() -> None:
    assert {
        "/api-keys",
        "/audit",
        "/catalogs",
        "/catalogs/{catalog_id}/candidates",
        "/jobs",
        "/jobs/{job_id}/events",
        "/policies",
        "/policy-attachments",
        "/tables",
        "/tables/{table_id}/events",
        "/tables/{table_id}/health/history",
        "/workers",
    } <= LISTS.keys()


@pytest.mark.parametrize("path", sorted(LISTS))
def test_every_list_has_pages_sorts_and_filters(path: str) -> None:
    parameters = {parameter["name"]: parameter for parameter in LISTS[path]}
    asked = {name for name, parameter in parameters.items() if parameter["in"] == "query"}
    assert {"limit", "cursor", "sort"} < asked
    choices = parameters["sort"]["schema"]["enum"]
    assert parameters["sort"]["schema"]["default"] in choices
    assert {choice.removeprefix("-") for choice in choices if choice.startswith("-")} == {
        choice for choice in choices if not choice.startswith("-")
    }


def test_no_call_answers_with_a_list_that_has_no_pages() -> None:
    for path, calls in DOCUMENTED["paths"].items():
        if "get" in calls:
            content = calls["get"]["responses"]["200"]["content"]
            assert content.get("application/json", {}).get("schema", {}).get("type") != "array", path


def is_sorted(items: list[dict[str, Any]], sort: str) -> bool:
    found = [item[sort.removeprefix("-")] for item in items]
    values = [value for value in found if value is not None]
    nulls = [None] * (len(found) - len(values))
    return bool(items) and found == sorted(values, reverse=sort.startswith("-")) + nulls


def named(items: list[dict[str, Any]], sort: str) -> list[tuple[Any, ...]]:
    """Which items these are; what else they say may tell an age, in words."""
    return [(item.get("id"), item.get("name"), item[sort.removeprefix("-")]) for item in items]


def test_every_list_can_be_read_in_every_order_that_it_offers(
    service: Running, iceberg: IcebergCatalog, table: dict[str, Any], webhook_id: str
) -> None:
    iceberg.delete_keys("db.t", [1])
    worker = service.start_worker()
    for kind in ("index", "verify"):
        service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": kind})
        started = service.claim(worker)
        assert started is not None
        service.finish(started)
    service.poll(table["id"])
    standing = {"catalog": "local", "pattern": "db.*"}
    assert service.admin.post("/patterns", json=standing).status_code == 201
    record_erasure(service, table)
    make_sender(service)
    orders = {
        path: next(parameter["schema"] for parameter in parameters if parameter["name"] == "sort")
        for path, parameters in LISTS.items()
    }
    # It shows the same tables, in the same orders and one of its own, and nothing that they are sorted by.
    most = "most_pending_equality_deletes"
    assert {*orders.pop("/overview/timeline")["enum"]} == {*orders["/tables"]["enum"], most, f"-{most}"}
    for list_path, sort in orders.items():
        path = path_of(list_path, service, table, webhook_id)
        for choice in sort["enum"]:
            assert is_sorted(walk(service, path, limit=1, sort=choice), choice), (path, choice)
        default = sort["default"]
        assert named(walk(service, path), default) == named(walk(service, path, sort=default), default)
        refused = service.admin.get(path, params={"sort": "nonsense"})
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "query.sort")
        assert sort["enum"][0] in refused.json()["detail"]


def test_a_cursor_holds_only_for_its_list_its_sort_and_its_filters(
    service: Running, table: dict[str, Any]
) -> None:
    for name in ("p1", "p2"):
        assert service.admin.post("/policies", json={"name": name, "settings": {}}).status_code == 201
    first = service.admin.get("/policies", params={"limit": 1, "search": "P"}).json()
    following = {"limit": 1, "search": "P", "cursor": first["next_cursor"]}
    assert [item["name"] for item in first["items"]] == ["p1"]
    assert [item["name"] for item in service.admin.get("/policies", params=following).json()["items"]] == [
        "p2"
    ]
    # A page may be of another size.
    assert service.admin.get("/policies", params=following | {"limit": 5}).status_code == 200
    others: list[tuple[str, dict[str, Any]]] = [
        ("/policies", following | {"sort": "-name"}),
        ("/policies", following | {"search": "q"}),
        ("/policies", {"cursor": first["next_cursor"]}),
        ("/catalogs", following),
        ("/jobs", following),
    ]
    for path, query in others:
        answer = service.admin.get(path, params=query)
        assert (answer.status_code, answer.json()["type"]) == (400, "/problems/cursor-mismatch"), (
            path,
            query,
        )
        assert "leave it out" in answer.json()["remedy"]


def test_a_cursor_that_is_none_is_refused(database: Database) -> None:
    for content in ("garbage", "", '"x"', '["", "name"]', "[" * 2900, "\ud800", "\0"):
        encoded = base64.urlsafe_b64encode(content.encode(errors="surrogatepass")).decode()
        for cursor in (content, encoded):
            assert _refusal_of(database, list_policies, cursor) == ("invalid-cursor", 400), cursor


def test_a_cursor_with_a_value_that_no_row_has_is_refused(database: Database) -> None:
    cases: list[tuple[Callable[..., Any], str, Any]] = [
        *((list_entries, "-id", last) for last in (2**63, -(2**70), True, "1", 1.5, None)),
        *((list_policies, "name", last) for last in ("\0", "\ud800", 1, None)),
        *((list_policies, "-created_at", last) for last in ("noon", "0001-01-01T00:00:00+10:00", None)),
    ]
    for read, sort, last in cases:
        cursor = base64.urlsafe_b64encode(json.dumps(["", sort, last, last]).encode()).decode()
        assert _refusal_of(database, read, cursor, sort) == ("invalid-cursor", 400), (sort, last)


def _refusal_of(
    database: Database, read: Callable[..., Any], cursor: str, sort: str | None = None
) -> tuple[str, int]:
    with database.read() as session, pytest.raises(InvalidError) as caught:
        read(session, PageRequest(cursor=cursor, sort=sort))
    return caught.value.slug, caught.value.status_code


def test_jobs_are_filtered(service: Running, table: dict[str, Any]) -> None:
    made = {}
    for kind in ("index", "convert"):
        made[kind] = service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": kind}).json()["id"]
    with service.database.write() as session:
        scheduled = session.get_one(Job, made["index"])
        scheduled.trigger, scheduled.created_at = "There are 50 new data files.", NOON
    both = set(made.values())
    for query, expected in (
        ({"trigger": "policy"}, {made["index"]}),
        ({"trigger": "request"}, {made["convert"]}),
        ({"until": "2026-01-01T13:00:00+01:00"}, set()),
        ({"until": "2026-01-01T13:00:01+01:00"}, {made["index"]}),
        ({"since": "2026-01-01T12:00:00Z"}, both),
        ({"since": "2026-01-01T12:00:01Z"}, {made["convert"]}),
        ({"catalog": "local"}, both),
        ({"catalog": table["catalog_id"]}, both),
        ({"catalog": "none"}, set()),
        ({"table_id": table["id"]}, both),
        ({"table_id": "none"}, set()),
        ({"worker": "none"}, set()),
        ({"kind": "index", "status": "queued"}, {made["index"]}),
        ({"status": "failed"}, set()),
    ):
        assert {job["id"] for job in walk(service, "/jobs", limit=1, **query)} == expected, query
    for wrong in ({"since": "2026-01-01T12:00:00"}, {"since": "0001-01-01T00:00:00+10:00"}, {"trigger": "x"}):
        assert service.admin.get("/jobs", params=wrong).status_code == 422


def test_tables_are_filtered(service: Running, table: dict[str, Any], iceberg: IcebergCatalog) -> None:
    for name in ("db.inner.T_2", "DB.t"):
        iceberg.create(name)
        service.enroll(name)
    service.admin.post(f"/tables/{table['id']}/pause")
    for query, expected in (
        ({"namespace": "db"}, {"db.t", "db.inner.T_2"}),
        ({"namespace": "db.inner"}, {"db.inner.T_2"}),
        ({"namespace": "d"}, set()),
        ({"search": "t_"}, {"db.inner.T_2"}),
        ({"search": "%"}, set()),
        ({"paused": True}, {"db.t"}),
        ({"paused": False}, {"db.inner.T_2", "DB.t"}),
        ({"catalog": "local"}, {"db.t", "db.inner.T_2", "DB.t"}),
        ({"catalog": "none"}, set()),
    ):
        assert {one["name"] for one in walk(service, "/tables", limit=1, **query)} == expected, query


def test_catalogs_policies_and_attachments_are_filtered(service: Running, table: dict[str, Any]) -> None:
    for query, expected in (
        ({"type": "sql"}, ["local"]),
        ({"type": "rest"}, []),
        ({"search": "OCA"}, ["local"]),
        ({"paused": True}, []),
        ({"paused": False}, ["local"]),
    ):
        assert [one["name"] for one in walk(service, "/catalogs", **query)] == expected, query
    for query, expected in (
        ({"built_in": True}, ["manual", "standard"]),
        ({"built_in": False}, []),
        ({"search": "MAN"}, ["manual"]),
    ):
        assert [one["name"] for one in walk(service, "/policies", **query)] == expected, query
    for body in (
        {"level": "catalog", "catalog": "local", "policy": "manual"},
        {"level": "table", "table_id": table["id"], "policy": "standard"},
    ):
        assert service.admin.put("/policy-attachments", json=body).status_code == 200
    for query, expected in (
        ({"level": "table"}, ["table"]),
        ({"catalog": "local"}, ["catalog"]),
        ({"catalog": "none"}, []),
        ({"policy": "standard"}, ["system", "table"]),
        ({"policy": "none"}, []),
    ):
        assert [one["level"] for one in walk(service, "/policy-attachments", limit=1, **query)] == expected


def test_patterns_and_deliveries_are_filtered(
    service: Running, table: dict[str, Any], webhook_id: str
) -> None:
    pattern = service.admin.post("/patterns", json={"catalog": "local", "pattern": "x.*"}).json()["id"]
    for query, expected in (({"catalog": "local"}, [pattern]), ({"catalog": "none"}, [])):
        assert [one["id"] for one in walk(service, "/patterns", **query)] == expected, query
    service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "convert"})
    for query, expected in (
        ({}, ["job.queued", "webhook.test"]),
        ({"table_id": table["id"]}, ["job.queued"]),
        ({"table_id": "none"}, []),
    ):
        found = walk(service, f"/webhooks/{webhook_id}/deliveries", limit=1, **query)
        assert sorted(one["kind"] for one in found) == expected, query


def test_keys_are_filtered(service: Running) -> None:
    made = {}
    for name, role, expires_at in (
        ("Active", "viewer", None),
        ("expired", "operator", "2020-01-01T00:00:00Z"),
        ("revoked", "viewer", "2020-01-01T00:00:00Z"),
    ):
        body = {"name": name, "role": role, "expires_at": expires_at}
        made[name] = service.admin.post("/api-keys", json=body).json()["id"]
    service.admin.delete(f"/api-keys/{made['revoked']}")
    for query, expected in (
        ({"state": "active"}, {"bootstrap", "Active"}),
        ({"state": "expired"}, {"expired"}),
        ({"state": "revoked"}, {"revoked"}),
        ({"role": "operator"}, {"expired"}),
        ({"search": "act"}, {"Active"}),
    ):
        assert {one["name"] for one in walk(service, "/api-keys", limit=1, **query)} == expected, query


def test_workers_are_filtered(service: Running) -> None:
    service.start_worker()
    silent = service.start_worker()
    with service.database.write() as session:
        row = session.get_one(Worker, silent)
        row.name, row.last_seen_at = "Silent", row.last_seen_at - timedelta(hours=1)
    for query, expected in (
        ({"alive": True}, ["w1"]),
        ({"alive": False}, ["Silent"]),
        ({"search": "sil"}, ["Silent"]),
        ({"sort": "name"}, ["Silent", "w1"]),
    ):
        assert [one["name"] for one in walk(service, "/workers", **query)] == expected, query


def test_events_and_audit_entries_are_filtered(service: Running, table: dict[str, Any]) -> None:
    answer = service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "convert"})
    job = answer.json()["id"]
    with service.database.write() as session:
        for kind, level in (("job.slow", "warning"), ("jobs", "error")):
            session.add(Event(at=NOON, kind=kind, level=level, message="x", table_id=table["id"], job_id=job))
    for path in (f"/jobs/{job}/events", f"/tables/{table['id']}/events"):
        for query, expected in (
            ({"level": "warning"}, ["job.slow"]),
            ({"level": ["warning", "error"]}, ["job.slow", "jobs"]),
            ({"kind": "job"}, ["job.queued", "job.slow"]),
            ({"kind": "job.queued"}, ["job.queued"]),
            ({"until": "2026-01-02T00:00:00Z"}, ["job.slow", "jobs"]),
            ({"since": "2026-01-02T00:00:00Z"}, ["job.queued"]),
        ):
            assert [one["kind"] for one in walk(service, path, limit=1, **query)] == expected, (path, query)
    request_id = answer.headers["x-request-id"]
    assert [one["action"] for one in walk(service, "/audit", request_id=request_id)] == ["job.convert"]
    with service.database.read() as session:
        enrolled = session.exec(select(AuditEntry).where(AuditEntry.action == "table.enroll")).one()
    at = enrolled.at.isoformat()
    assert walk(service, "/audit", since=at, action="table.enroll")
    assert not walk(service, "/audit", until=at, action="table.enroll")
    assert service.client(Role.ADMIN).get(f"/audit?{urlencode({'target': 'none'})}").json()["items"] == []
