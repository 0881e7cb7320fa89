"""Who may ask about keys, how much, and what is remembered of it."""

import asyncio
from threading import Event
from types import SimpleNamespace

import httpx
import pytest
from fastapi import Request
from sqlalchemy.exc import OperationalError

from service.auth.models import Principal
from service.db.database import Database
from service.errors import IcestreamError
from service.lookups import service as lookups
from service.lookups.admission import admitted
from service.lookups.key_limits import KeyLimits
from service.records.api_keys import Role
from service.settings import Settings
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import (
    Running,
    alike_on_both,
    run_apart,
)
from tests.service.iceberg_tables import IcebergCatalog

database_kind = alike_on_both


def test_the_audit_log_tells_how_many_keys_and_never_which(service: Running, table: str) -> None:
    keys = [{"id": 171_717}, {"id": 3}]
    service.admin.post(table, json={"keys": keys, "key_columns": ["id"]})
    entries = service.admin.get("/audit", params={"action": "table.look_up"})
    entry = entries.json()["items"][0]
    assert (entry["fields"], entry["target"]) == ({"keys": 2}, "local.db.t")
    assert entry["principal"]
    service.admin.post(f"{table}/history", json={"key": keys[0], "key_columns": ["id"], "snapshots": 7})
    newest = service.admin.get("/audit", params={"action": "table.look_up"}).json()["items"][0]
    assert newest["fields"] == {"keys": 1, "snapshots": 7}
    assert "171717" not in service.admin.get("/audit").text


def test_what_the_audit_log_cannot_tell_is_not_answered(
    service: Running, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OperationalError("INSERT", {}, Exception("database is locked"))

    monkeypatch.setattr("service.auth.audit.record", fail)
    for path, asked in ((table, {"keys": [{"id": 3}]}), (f"{table}/history", {"key": {"id": 3}})):
        answer = service.admin.post(path, json={**asked, "key_columns": ["id"]})
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/database-unavailable")


def test_a_question_that_is_refused_is_in_the_audit_log(service: Running, table: str) -> None:
    for status, key in ((422, "x"), (404, 3)):
        asked = {"keys": [{"id": key}], "key_columns": ["id"], "branch": "gone" if status == 404 else None}
        assert service.admin.post(table, json=asked).status_code == status
    entries = service.admin.get("/audit", params={"action": "table.look_up"}).json()["items"]
    assert [entry["fields"] for entry in entries] == [{"keys": 1}] * 2


async def _ask_until_given_up(request: Request, caller: Principal) -> None:
    async with admitted(request, caller, 1, keys=1):
        await asyncio.sleep(PATIENCE_SECONDS)


def test_a_question_that_is_given_up_ends_as_such_whatever_the_audit_log_says(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Event()

    def fail(*_: object, **__: object) -> None:
        recorded.set()
        raise OperationalError("INSERT", {}, Exception("database is locked"))

    monkeypatch.setattr("service.auth.audit.record", fail)
    state = SimpleNamespace(key_limits=KeyLimits(settings), database=database)
    request = Request({"type": "http", "app": SimpleNamespace(state=state), "state": {}})
    request.state.asked_about = (SimpleNamespace(identifier=["t"]), SimpleNamespace(name="c"))

    async def give_up() -> asyncio.Task[None]:
        caller = Principal("api_key", "one", "one", Role.VIEWER)
        asking = asyncio.create_task(_ask_until_given_up(request, caller))
        await asyncio.to_thread(recorded.wait, PATIENCE_SECONDS)
        asking.cancel()
        await asyncio.wait([asking])
        return asking

    assert run_apart(give_up()).cancelled()


def test_a_key_for_reading_lookups_asks_and_one_for_other_reads_does_not(
    service: Running, table: str
) -> None:
    asked = {"keys": [{"id": 3}], "key_columns": ["id"]}
    for scope, status in (("lookups:read", 200), ("tables:read", 403)):
        made = service.admin.post(
            "/api-keys", json={"name": scope.replace(":", "-"), "role": "viewer", "scopes": [scope]}
        ).json()
        client = service.client_with({"Authorization": f"Bearer {made['key']}"})
        assert client.post(table, json=asked).status_code == status
        assert client.patch(table.removesuffix("/lookups"), json={}).status_code == 403


def test_a_key_for_some_tables_asks_about_these_alone(service: Running, table: str) -> None:
    def key(*tables: str, scopes: tuple[str, ...] = ("lookups:read",)) -> httpx.Response:
        body = {"name": "k", "role": "viewer", "scopes": scopes, "tables": tables}
        return service.admin.post("/api-keys", json=body)

    asked = {"keys": [{"id": 3}], "key_columns": ["id"]}
    of_one = {"key": {"id": 3}, "key_columns": ["id"]}
    cases = [
        (["local.db.*"], True),
        (["other.*", "local.db.t"], True),
        (["local.db.[t]", "local.db.?"], False),
        (["local.db"], False),
    ]
    for tables, is_let in cases:
        made = key(*tables).json()
        assert made["tables"] == tables
        client = service.client_with({"Authorization": f"Bearer {made['key']}"})
        answers = [client.post(table, json=asked), client.post(f"{table}/history", json=of_one)]
        assert [answer.status_code for answer in answers] == [200 if is_let else 403] * 2
    assert answers[0].json()["type"] == "/problems/out-of-scope"
    assert 'lookups_total{status="refused"} 4.0' in service.admin.get(f"{service.url}/metrics").text
    denied = service.admin.get("/audit", params={"action": "table.look_up", "outcome": "denied"}).json()
    assert {entry["target"] for entry in denied["items"]} == {"local.db.t"}
    for refused in (key(), key("x", scopes=("lookups:read", "tables:read")), key("x", scopes=())):
        assert refused.status_code == 422


@pytest.mark.parametrize(
    ("pattern", "table", "is_meant"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.bc", False),
        ("a.*", "a.", True),
        ("*", "a.b", True),
        ("a*a", "a", False),  # the two have no letter in common
        ("*ab*b", "aabab", True),
        ("a*b*c", "abbc", True),
        ("a*b*c", "acb", False),
        ("**a\nb", "x.a\nb", True),
        ("*a" * 300 + "*b", "a" * 1_000, False),  # trying all ways to divide it would not end
    ],
)
def test_a_star_stands_for_any_text(pattern: str, table: str, is_meant: bool) -> None:
    assert lookups._means(pattern, table) is is_meant


def test_a_key_for_lookups_alone_names_a_table(service: Running, table: str, iceberg: IcebergCatalog) -> None:
    iceberg.create("db.other")
    other = service.enroll("db.other")["id"]
    asked = {"keys": [{"id": 3}], "key_columns": ["id"]}

    def client(*tables: str) -> httpx.Client:
        body = {"name": "k", "role": "viewer", "scopes": ["lookups:read"], "tables": tables or None}
        key = service.admin.post("/api-keys", json=body).json()["key"]
        return service.client_with({"Authorization": f"Bearer {key}"})

    def problem(client: httpx.Client, name: str) -> tuple[int, str]:
        answer = client.post(f"/tables/{name}/lookups", json=asked)
        return answer.status_code, answer.json().get("type", "").rpartition("/")[2]

    of_all, of_one = client(), client("local.db.t")
    for name in ("db.t", "local.db.t"):
        for one in (of_all, of_one):
            assert one.post(f"/tables/{name}/lookups", json=asked).status_code == 200
    assert problem(of_all, "db.no") == (404, "table-not-enrolled")
    # What is there, and what is not, look alike to whoever may not ask about it.
    assert problem(of_one, "db.other") == problem(of_one, "db.no") == (403, "out-of-scope")
    assert problem(of_one, other) == (403, "out-of-scope")
    denied = service.admin.get("/audit", params={"action": "table.look_up", "outcome": "denied"}).json()
    assert {"db.other", "db.no"} <= {entry["target"] for entry in denied["items"]}
    iceberg.catalog.load_table("db.t").manage_snapshots().create_branch(iceberg.head("db.t"), "dev").commit()
    service.enroll("db.t", branch="dev")
    assert problem(of_one, "db.t") == (422, "table-ambiguous")


def test_questions_are_counted_by_what_became_of_them(service: Running, table: str) -> None:
    for key in (1, 2, "x"):
        service.admin.post(table, json={"keys": [{"id": key}, {"id": 7}], "key_columns": ["id"]})
    figures = service.admin.get(f"{service.url}/metrics").text.splitlines()
    for figure in (
        'lookups_total{status="answered"} 2.0',
        'lookups_total{status="refused"} 1.0',
        'lookups_total{status="unavailable"} 0.0',
        "lookup_keys_total 4.0",
        "lookup_seconds_count 2.0",
    ):
        assert f"icestream_{figure}" in figures


def test_keys_are_counted_and_not_calls() -> None:
    now = 0.0
    limits = KeyLimits(Settings(lookup_keys_per_minute=60), lambda: now)
    one, other = (Principal("api_key", name, name, Role.VIEWER) for name in ("one", "other"))
    limits.take(one, 50)
    with pytest.raises(IcestreamError) as refused:
        limits.take(one, 20)
    assert (refused.value.status_code, refused.value.extra["retry_after_seconds"]) == (429, 10)
    limits.take(other, 1_000)  # more than a minute's worth takes a whole minute's
    now = 10.0
    limits.take(one, 20)
