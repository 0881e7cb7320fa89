"""Rows are written by jobs of their own: they reach the worker alone, and go once the job has ended."""

from typing import Any

import httpx
import pytest
from sqlmodel import func, select

from service.records.jobs import JobRows
from service.rows.service import WAITING_AT_MOST
from tests.service.conftest import ON_BOTH, Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog

database_kind = alike_on_both

SECRET = "Ada Lovelace"
ROW = {"id": 1, "region": SECRET, "value": 2**60}


@pytest.fixture
def table(service: Running, iceberg: IcebergCatalog) -> dict[str, Any]:
    service.register(iceberg)
    return service.enroll()


@pytest.fixture
def upsert(service: Running, table: dict[str, Any]) -> Any:
    def send(*rows: dict[str, Any], client: httpx.Client = service.admin, **options: Any) -> httpx.Response:
        body = {"rows": rows or [ROW], "key_columns": ["id"], **options}
        return client.post(f"/tables/{table['id']}/rows/upsert", json=body)

    return send


def kept_rows(service: Running) -> int:
    with service.database.read() as session:
        return session.exec(select(func.count()).select_from(JobRows)).one()


@ON_BOTH
def test_a_worker_gets_the_rows_and_nobody_else_sees_them(service: Running, upsert: Any) -> None:
    job = upsert(insert_only=True).json()
    assert (job["kind"], job["parameters"]) == (
        "upsert",
        {"rows": 1, "key_columns": ["id"], "insert_only": True},
    )
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    assert assignment["rows"] == [ROW]
    shown = [
        service.admin.get(path).text
        for path in ("/jobs", f"/jobs/{job['id']}", f"/jobs/{job['id']}/events", "/audit", "/workers")
    ]
    assert SECRET not in "".join(shown)

    result = {"rows_added": 0, "rows_left_out": 1, "left_out": [0]}
    done = service.finished(assignment, result=result)

    assert (done["status"], done["result"], kept_rows(service)) == ("succeeded", result, 0)


def test_no_two_writes_are_the_same_job(service: Running, upsert: Any) -> None:
    assert upsert().json()["id"] != upsert().json()["id"]


def test_a_write_that_is_cancelled_or_has_failed_keeps_no_rows_and_is_not_retried(
    service: Running, upsert: Any
) -> None:
    waiting = upsert().json()
    assert kept_rows(service) == 1
    service.admin.post(f"/jobs/{waiting['id']}/cancel")
    assert kept_rows(service) == 0

    failed = upsert().json()
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    told = {"code": "invalid_rows", "title": "No.", "detail": "Row 0.", "remedy": "Mend it."}
    service.finish(assignment, status="failed", error=told)
    assert kept_rows(service) == 0
    for job in (waiting, failed):
        answer = service.admin.post(f"/jobs/{job['id']}/retry")
        assert (answer.status_code, answer.json()["type"]) == (409, "/problems/rows-not-kept")


def test_a_write_that_is_tried_again_has_its_rows(service: Running, upsert: Any) -> None:
    upsert()
    worker = service.start_worker()
    assignment = service.claim(worker)
    assert assignment is not None
    service.finish(assignment, status="released")
    again = service.claim(worker)
    assert again is not None
    assert (again["attempt"], again["rows"]) == (2, [ROW])


def test_rows_that_were_refused_make_no_table_degraded(
    service: Running, table: dict[str, Any], upsert: Any
) -> None:
    before = service.admin.get(f"/tables/{table['id']}/health").json()["status"]
    upsert()
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    told = {"code": "invalid_rows", "title": "No.", "detail": "Row 0.", "remedy": "Mend it."}
    service.finish(assignment, status="failed", error=told)
    assert service.admin.get(f"/tables/{table['id']}/health").json()["status"] == before


def test_only_so_many_writes_of_a_table_wait(service: Running, upsert: Any) -> None:
    for _ in range(WAITING_AT_MOST):
        assert upsert().status_code == 202
    answer = upsert()
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/too-many-writes")


@pytest.mark.parametrize(
    "body",
    [
        {"rows": []},
        {"rows": [ROW] * 1_001},
        {"rows": [1]},
        {"rows": [ROW], "insert_only": True, "only_if_newer_than": "value"},
        {"rows": [ROW], "duplicates": "first"},
        {"keys": [{"id": 1}]},
        {"rows": [ROW], "key_columns": []},
        {},
        {"rows": [ROW], "files": ["/a"]},
        {"files": []},
        {"files": ["/a", "/a"]},
        {"files": [f"/{n}" for n in range(1_001)]},
        {"files": [7]},
    ],
)
def test_a_malformed_write_is_refused_field_by_field(
    service: Running, table: dict[str, Any], body: dict[str, Any]
) -> None:
    answer = service.admin.post(f"/tables/{table['id']}/rows/upsert", json=body)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/validation-error")


@pytest.fixture
def upsert_files(service: Running, table: dict[str, Any]) -> Any:
    def send(*files: str) -> httpx.Response:
        body = {"files": [f"{service.settings.data_dir}/{file}" for file in files]}
        return service.admin.post(f"/tables/{table['id']}/rows/upsert", json=body)

    return send


def test_of_files_the_service_keeps_and_audits_the_names(service: Running, upsert_files: Any) -> None:
    answer = upsert_files("staging/a.parquet", "staging/b.parquet")
    names = [str(service.settings.data_dir / "staging" / name) for name in ("a.parquet", "b.parquet")]
    assert answer.json()["parameters"] == {"files": names}
    assert kept_rows(service) == 0
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    assert (assignment["rows"], assignment["job"]["parameters"]) == (None, {"files": names})
    (entry, *_) = service.admin.get("/audit?action=rows.upsert").json()["items"]
    assert entry["fields"] == {"files": names, "dry_run": False}

    told = {"code": "unreadable_file", "title": "No.", "detail": "It is gone.", "remedy": "Put it back."}
    failed = service.finished(assignment, status="failed", error=told)
    again = service.admin.post(f"/jobs/{failed['id']}/retry")
    assert again.json()["parameters"] == {"files": names}, "they may be there again"


@ON_BOTH
def test_files_lie_at_allowed_places(service: Running, table: dict[str, Any]) -> None:
    inside = service.settings.data_dir
    for place in (
        "/etc/passwd",
        f"{inside}/../a",
        f"{inside}/%2e%2e/a",
        f"{inside}/cache/a",
        "s3://other/a",
        "https://example.org/a",
        "a",
    ):
        answer = service.admin.post(f"/tables/{table['id']}/rows/delete", json={"files": [place]})
        assert answer.json()["type"] in ("/problems/location-not-allowed", "/problems/location-not-absolute")
    assert service.admin.get("/jobs").json()["items"] == []


def test_only_so_many_writes_of_files_wait_too(service: Running, upsert: Any, upsert_files: Any) -> None:
    for _ in range(WAITING_AT_MOST - 1):
        upsert()
    assert [upsert_files("a").status_code, upsert_files("a").status_code] == [202, 409]


def test_rows_are_written_by_operators_and_keys_of_that_scope(service: Running, upsert: Any) -> None:
    def key(**fields: Any) -> httpx.Client:
        made = service.admin.post("/api-keys", json={"name": "k", **fields}).json()
        return service.client_with({"Authorization": f"Bearer {made['key']}"})

    assert upsert(client=key(role="operator", scopes=["rows:write"])).status_code == 202
    for refused in (key(role="operator", scopes=["jobs:write", "tables:write"]), key(role="viewer")):
        assert upsert(client=refused).status_code == 403


def test_keys_are_deleted_by_a_job_with_a_dry_run(service: Running, table: dict[str, Any]) -> None:
    body = {"keys": [{"id": 1}, {"id": 2}], "dry_run": True}
    job = service.admin.post(f"/tables/{table['id']}/rows/delete", json=body).json()
    assert (job["kind"], job["dry_run"], job["parameters"]) == ("delete", True, {"rows": 2})
