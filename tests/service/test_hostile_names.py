"""Names like SQL, HTML and paths are just names: in every list, filter and page, and in the log."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from sqlmodel import SQLModel, func, select

from service.auth.principals import SESSION_COOKIE
from service.command.openapi import DOCUMENT
from service.db.database import Database
from service.records.api_keys import Role
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import LEFT_TO_THOROUGH, PLAIN_HTTP, Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.test_access import sign_in

# What a name is put into is asked of both databases once; what is shown of one is alike.
database_kind = alike_on_both

NAMES = [
    "x'; DROP TABLE tables; --",
    "' OR '1'='1",
    '"; DELETE FROM jobs WHERE "1"="1',
    "%_\\%",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}${7*7}",
    "Ω≈ç√ 表 \N{ZERO WIDTH SPACE}",
]

SQL = (*NAMES[:4], NAMES[-1])
"""What filters may take for more than a value; the others are for pages."""

FILTERS = {
    path.removeprefix("/api/v1"): [one["name"] for one in calls["get"]["parameters"] if one["in"] == "query"]
    for path, calls in json.loads(DOCUMENT.read_text())["paths"].items()
    if "{" not in path and "cursor" in [one["name"] for one in calls.get("get", {}).get("parameters", [])]
}
"""What each list of the API may be asked for."""
assert len(FILTERS) >= 10


def rows(database: Database) -> dict[str, int]:
    """How many there are in each table, but for what looking at pages leaves."""
    left = {"audit_entries", "browser_sessions", "login_tokens"}
    tables = [table for table in SQLModel.metadata.sorted_tables if table.name not in left]
    with database.read() as session:
        return {table.name: session.scalar(select(func.count()).select_from(table)) or 0 for table in tables}


def check_page(service: Running, path: str) -> None:
    """What is asked for is shown as text; a path to nowhere is answered with JSON, which is never run."""
    secret = sign_in(service, Role.ADMIN)
    cookie = {"Cookie": f"{SESSION_COOKIE}={secret}"}
    answer = httpx.get(service.url + path, headers=cookie, verify=PLAIN_HTTP, timeout=PATIENCE_SECONDS)
    assert answer.status_code in (200, 404, 422), (path, answer.status_code)
    if answer.headers["content-type"] == "application/problem+json":
        assert answer.headers["x-content-type-options"] == "nosniff"
        return
    assert answer.headers["content-type"].startswith("text/html")
    for run in ("<script>alert", "<img src=x", "49$49", "49${"):
        assert run not in answer.text, path


def test_a_table_of_any_name_is_listed_found_shown_and_removed(service: Running, tmp_path: Path) -> None:
    iceberg = IcebergCatalog(tmp_path)
    iceberg.create("db.other")
    service.register(iceberg)
    other = service.enroll("db.other")
    for name in NAMES:
        iceberg.create(f"db.{name}")
        check_table(service, name, other["id"])
    iceberg.close()


def check_table(service: Running, name: str, other: str) -> None:
    made = service.admin.post("/tables", json={"catalog": "local", "identifier": ["db", name]})
    assert made.status_code == 201, made.text
    table = made.json()
    job = service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "verify"}).json()
    assert table["identifier"] == ["db", name]

    def found(**query: Any) -> list[str]:
        return [item["id"] for item in service.admin.get("/tables", params=query).json()["items"]]

    assert set(found()) == {table["id"], other}
    assert found(search=name) == [table["id"]], "what it is searched by is text, and no pattern"
    assert found(catalog=name) == []
    dotted = f"db.{name}"
    assert service.admin.get("/audit", params={"target": f"local.{dotted}"}).json()["items"]
    found_by_name, of_table = f"/tables?search={quote(name)}", f"/tables/{table['id']}"
    candidates = "/catalogs/local/candidates?all_tables=true"
    for path in ("/", found_by_name, of_table, f"{of_table}/edit", f"/jobs/{job['id']}", "/jobs", candidates):
        check_page(service, path)
    assert service.admin.delete(f"/tables/{table['id']}").status_code == 204
    assert found() == [other]


@pytest.mark.parametrize(
    ("database_kind", "names"),
    [
        ("sqlite", NAMES),
        # One that would end a statement, and one that is not ASCII: the rest are values in the same places.
        pytest.param("postgresql", SQL[:: len(SQL) - 1], marks=pytest.mark.integration),
        pytest.param("postgresql", NAMES, marks=LEFT_TO_THOROUGH),
    ],
    ids=["sqlite", "postgresql", "postgresql-all"],
)
def test_no_filter_or_identifier_is_more_than_a_value(
    service: Running, iceberg: IcebergCatalog, names: Sequence[str]
) -> None:
    service.register(iceberg)
    table = service.enroll()
    before = rows(service.database)
    for name in names:
        check_filters(service, name)
    assert rows(service.database) == before
    assert service.admin.get(f"/tables/{table['id']}").status_code == 200


def check_filters(service: Running, name: str) -> None:
    for path, parameters in FILTERS.items() if name in SQL else ():
        for parameter in parameters:
            answer = service.admin.get(path, params={parameter: name})
            assert answer.status_code in (200, 400, 404, 422), (path, parameter, answer.text)
            filtered = parameter in ("principal", "action", "target", "request_id") and path == "/audit"
            if filtered or (parameter == "search" and path == "/tables"):
                assert answer.json()["items"] == [], (path, parameter)
    for path in ("/tables/", "/jobs/", "/catalogs/", "/policies/"):
        assert service.admin.get(path + quote(name, safe="")).status_code == 404
    assert service.admin.delete(f"/api-keys/{quote(name, safe='')}").status_code == 404
    for path in (
        f"/tables?search={quote(name)}",
        f"/jobs?table_id={quote(name)}",
        f"/jobs/{quote(name, safe='')}",
    ):
        check_page(service, path)
    for target in (name, f"//elsewhere.example/{name}", f"https://elsewhere.example/{name}"):
        form = httpx.get(
            f"{service.url}/login", params={"next": target}, verify=PLAIN_HTTP, timeout=PATIENCE_SECONDS
        ).text
        assert 'name="next" value="/"' in form, target


@pytest.mark.thorough
def test_policies_keys_workers_and_catalogs_of_any_name(service: Running, iceberg: IcebergCatalog) -> None:
    """Each is either refused with a problem, or kept exactly as it was given."""
    service.register(iceberg)
    table = service.enroll()
    for name in NAMES:
        check_names(service, iceberg, table["id"], name)


def check_names(service: Running, iceberg: IcebergCatalog, table_id: str, name: str) -> None:
    worker = {"name": name, "hostname": name, "pid": 1, "version": name}
    catalog = {"name": name, "type": "sql", "properties": iceberg.properties}
    for path, body in (
        ("/policies", {"name": name, "settings": {}}),
        ("/api-keys", {"name": name, "role": "viewer"}),
        ("/workers", worker),
        ("/catalogs", catalog),
    ):
        answer = service.admin.post(path, json=body)
        assert answer.status_code in (201, 422), (path, answer.text)
        if answer.status_code == 201:
            assert answer.json()["name"] == name
            assert name in [item["name"] for item in service.admin.get(path).json()["items"]]
    attached = service.admin.put(
        "/policy-attachments", json={"level": "table", "table_id": table_id, "policy": name}
    )
    assert attached.status_code in (200, 422), attached.text
    lists = ("/", "/workers", "/policies", "/catalogs", "/api-keys", "/audit")
    for path in (*lists, "/tables/new", f"/tables/{table_id}"):
        check_page(service, path)
