"""Enrolling tables over HTTP, and what happens to them afterwards."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from service.catalogs.metadata_locations import metadata_locations_reader
from service.db.database import utc_now
from service.records.api_keys import Role
from service.records.catalogs import CatalogType
from service.records.jobs import Attempt, Job
from service.settings import Settings
from service.tables import enrolment
from tests.service.conftest import ON_BOTH, Running, alike_on_both, running
from tests.service.iceberg_tables import SCHEMA, IcebergCatalog

# Most of this is about what a table is; where SQL or locks decide, both databases are asked.
database_kind = alike_on_both


@pytest.fixture
def local(service: Running, iceberg: IcebergCatalog) -> Running:
    service.register(iceberg)
    return service


def refusal(service: Running, **fields: Any) -> tuple[int, dict[str, Any]]:
    body = {"catalog": "local", "identifier": ["db", "t"], "branch": "main", "policy": None} | fields
    answer = service.admin.post("/tables", json=body)
    return answer.status_code, answer.json()


def test_an_enrolled_table_is_returned_with_what_was_read_of_it(
    local: Running, iceberg: IcebergCatalog
) -> None:
    created = local.enroll()
    table = iceberg.catalog.load_table("db.t")
    assert created["table_uuid"] == str(table.metadata.table_uuid)
    assert (created["format_version"], created["location"]) == (2, table.location())
    assert (created["catalog"], created["identifier"], created["policy"]) == ("local", ["db", "t"], None)
    answer = local.admin.get(f"/tables/{created['id']}")
    assert answer.json() == created
    assert answer.headers["etag"] == '"1"'


def test_a_location_is_no_url_with_a_query(local: Running, iceberg: IcebergCatalog) -> None:
    iceberg.create("db.a?b#c")
    iceberg.delete_keys("db.a?b#c", [1])
    status, answer = refusal(local, identifier=["db", "a?b#c"])
    assert (status, answer["location"].rpartition("/")[2]) == (201, "a?b#c")


def test_the_catalog_may_be_given_by_id(local: Running) -> None:
    catalog = local.admin.get("/catalogs/local").json()
    assert local.enroll(catalog=catalog["id"])["catalog"] == "local"


@ON_BOTH
def test_a_table_is_enrolled_once_per_branch(local: Running) -> None:
    created = local.enroll()
    status, problem = refusal(local)
    assert (status, problem["type"], problem["table_id"]) == (409, "/problems/table-exists", created["id"])


def test_a_wrong_name_is_answered_with_the_nearest(local: Running) -> None:
    status, problem = refusal(local, identifier=["db", "tt"])
    assert (status, problem["type"], problem["nearest"]) == (422, "/problems/table-not-found", ["db.t"])


def test_a_wrong_namespace_is_answered_with_where_such_a_table_is(local: Running) -> None:
    status, problem = refusal(local, identifier=["dbb", "t"])
    assert (status, problem["type"], problem["nearest"]) == (422, "/problems/table-not-found", ["db", "db.t"])


def test_a_table_of_another_catalog_name_in_the_same_database_is_pointed_out(
    service: Running, iceberg: IcebergCatalog
) -> None:
    body = {"name": "mine", "type": "sql", "properties": iceberg.properties}
    service.admin.post("/catalogs", json=body)
    status, problem = refusal(service, catalog="mine")
    assert (status, problem["catalog_names"]) == (422, ["local"])
    assert "catalog_name" in problem["remedy"]
    service.admin.patch(
        "/catalogs/mine", json={"properties": {"catalog_name": "local"}}, headers={"If-Match": "*"}
    )
    assert service.enroll(catalog="mine")["catalog"] == "mine"


@pytest.mark.parametrize(
    ("fields", "slug"),
    [
        ({"catalog": "nope"}, "catalog-not-found"),
        ({"policy": "nope"}, "policy-not-found"),
        ({"branch": "nope"}, "branch-not-found"),
        ({"identifier": ["t"]}, "validation-error"),
        ({"identifier": ["db", ""]}, "validation-error"),
        ({"identifier": "db.t"}, "validation-error"),
        ({"key_sets": [["nope"]]}, "invalid-key-set"),
        ({"key_sets": [["id", "id"]]}, "invalid-key-set"),
        ({"unknown": 1}, "validation-error"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(local: Running, fields: dict[str, Any], slug: str) -> None:
    status, problem = refusal(local, **fields)
    assert (status, problem["type"]) == (422, f"/problems/{slug}")
    assert problem["remedy"]


@ON_BOTH
def test_a_catalog_that_is_removed_while_a_table_is_read_gets_no_table(
    local: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = enrolment.load_for_enrolment

    def load_slowly(*arguments: Any) -> Any:
        loaded = load(*arguments)
        assert local.admin.delete("/catalogs/local").is_success
        return loaded

    monkeypatch.setattr(enrolment, "load_for_enrolment", load_slowly)
    status, problem = refusal(local)
    assert (status, problem["type"]) == (422, "/problems/catalog-not-found")
    assert local.admin.get("/tables").json()["items"] == []


def test_an_unreachable_catalog_is_a_bad_gateway(local: Running, iceberg: IcebergCatalog) -> None:
    iceberg.close()
    (iceberg.directory / "cat.db").rename(iceberg.directory / "hidden.db")
    status, problem = refusal(local)
    assert (status, problem["type"]) == (502, "/problems/catalog-unreachable")


def test_a_key_that_is_declared_later_names_columns_of_the_table(
    local: Running, iceberg: IcebergCatalog
) -> None:
    path = f"/tables/{local.enroll()['id']}"

    def declare(*key_sets: list[str]) -> httpx.Response:
        return local.admin.patch(path, json={"key_sets": key_sets}, headers={"If-Match": "*"})

    assert declare(["id"]).json()["key_sets"] == [["id"]]
    for wrong in (["id", "regoin"], ["id", "id"]):
        refused = declare(["id"], wrong)
        assert (refused.status_code, refused.json()["type"]) == (422, "/problems/invalid-key-set")
        assert "The table has: id, region." in refused.json()["detail"]
    with iceberg.catalog.load_table("db.t").update_schema() as change:
        change.rename_column("region", "area")
        change.rename_column("id", "number")
    # What was declared before stays, and hinders nothing else.
    assert declare(["id"], ["number", "area"]).json()["key_sets"] == [["id"], ["number", "area"]]
    iceberg.close()
    (iceberg.directory / "cat.db").rename(iceberg.directory / "hidden.db")
    assert declare(["id", "id"]).status_code == 422
    assert declare(["unseen"]).json()["key_sets"] == [["unseen"]]
    (event,) = local.admin.get(f"{path}/events", params={"sort": "-id", "limit": 1}).json()["items"]
    assert event["message"].endswith("so whether the table has these columns is not known.")


def test_metadata_that_cannot_be_read_is_not_taken_for_an_unreachable_catalog(
    local: Running, iceberg: IcebergCatalog
) -> None:
    metadata = Path(iceberg.catalog.load_table("db.t").metadata_location.removeprefix("file://"))
    metadata.write_text(metadata.read_text().replace('"format-version":2', '"format-version":9'))
    status, problem = refusal(local)
    assert (status, problem["type"]) == (422, "/problems/table-unreadable")
    metadata.write_bytes(b"{")
    status, problem = refusal(local)
    assert (status, problem["type"]) == (422, "/problems/table-unreadable")
    assert "a metadata file of it is damaged" in problem["detail"]
    metadata.unlink()
    status, problem = refusal(local)
    assert (status, problem["type"]) == (422, "/problems/table-unreadable")
    assert "a metadata file of it is missing" in problem["detail"]


def test_a_table_outside_the_allowed_places_is_refused(settings: Settings, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    settings.data_dir = tmp_path / "inside"
    catalog = IcebergCatalog(outside)
    catalog.create()
    settings.allowed_locations = (str(outside / "cat.db"), str(outside / "warehouse" / "other"))
    with running(settings) as service:
        body = {
            "name": "local",
            "type": "sql",
            "properties": catalog.properties | {"warehouse": f"file://{outside}/warehouse/other"},
        }
        assert service.admin.post("/catalogs", json=body).status_code == 201
        status, problem = refusal(service)
        assert (status, problem["type"]) == (422, "/problems/location-not-allowed")
        assert problem["location"].startswith(f"file://{outside}/warehouse/db/t/metadata/")
    catalog.close()


def test_an_index_inside_the_table_is_refused(settings: Settings, iceberg: IcebergCatalog) -> None:
    settings.index_warehouse = f"{iceberg.catalog.load_table('db.t').location()}/index"
    with running(settings) as service:
        service.register(iceberg)
        status, problem = refusal(service)
    assert (status, problem["type"]) == (422, "/problems/index-inside-table")


@ON_BOTH
def test_a_pattern_enrols_what_it_matches_and_reports_the_rest(
    local: Running, iceberg: IcebergCatalog
) -> None:
    for name in ("db.a", "db.b", "db.tmp_c", "other.d"):
        iceberg.create(name)
    Path(iceberg.catalog.load_table("db.b").metadata_location.removeprefix("file://")).unlink()
    already = local.enroll("db.a")
    request = {"catalog": "local", "pattern": "db.*", "exclude": ["db.tmp_*"], "policy": "manual"}
    preview = local.admin.post("/tables/enroll-by-pattern", json=request | {"dry_run": True}).json()
    assert (preview["matched"], preview["enrolled"]) == (["db.a", "db.b", "db.t"], [])
    done = local.admin.post("/tables/enroll-by-pattern", json=request).json()
    assert [table["id"] for table in done["already_enrolled"]] == [already["id"]]
    assert [(table["name"], table["policy"]) for table in done["enrolled"]] == [("db.t", "manual")]
    assert [miss["identifier"] for miss in done["failed"]] == [["db", "b"]]


def test_a_pattern_that_matches_too_many_tables_for_one_request_enrols_none(
    local: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.tables.enrolment._MATCHES_AT_ONCE", 1)
    iceberg.create("db.a")
    path, request = "/tables/enroll-by-pattern", {"catalog": "local", "pattern": "db.*"}
    refused = local.admin.post(path, json=request)
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/too-many-matches")
    assert refused.json()["matched"] == 2
    assert "standing pattern" in refused.json()["remedy"]
    assert local.admin.get("/tables").json()["items"] == []
    preview = local.admin.post(path, json=request | {"dry_run": True})
    assert preview.json()["matched"] == ["db.a", "db.t"]
    fewer = local.admin.post(path, json=request | {"exclude": ["db.t"]})
    assert [table["name"] for table in fewer.json()["enrolled"]] == ["db.a"]


def test_a_paused_table_takes_no_jobs_until_it_is_resumed(local: Running) -> None:
    table = local.enroll()
    assert local.admin.post(f"/tables/{table['id']}/pause").json()["paused"] is True
    refused = local.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "index"})
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/paused")
    local.admin.post(f"/tables/{table['id']}/resume")
    assert local.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "index"}).status_code == 202


@ON_BOTH
def test_a_removed_table_is_gone_but_its_jobs_can_be_read(local: Running) -> None:
    table = local.enroll()
    queued = local.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "index"}).json()
    assert local.admin.delete(f"/tables/{table['id']}").status_code == 204
    assert local.admin.get(f"/tables/{table['id']}").status_code == 404
    job = local.admin.get(f"/jobs/{queued['id']}").json()
    assert (job["status"], job["table"]) == ("cancelled", "db.t")
    assert local.enroll()["id"] != table["id"]


def test_removing_a_table_asks_its_running_job_to_stop(local: Running) -> None:
    table = local.enroll()
    local.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "index"})
    assignment = local.claim(local.start_worker())
    assert assignment is not None
    local.admin.delete(f"/tables/{table['id']}")
    path = f"/jobs/{assignment['job']['id']}/attempts/1/heartbeat"
    assert local.admin.post(path, json={}).json()["cancel_requested"] is True
    assert local.finished(assignment, status="cancelled")["status"] == "cancelled"


def test_the_index_of_a_removed_table_is_dropped_by_a_job(local: Running) -> None:
    table = local.enroll()
    local.admin.post(f"/tables/{table['id']}/pause")
    answer = local.admin.delete(f"/tables/{table['id']}?drop_index=true")
    job = answer.json()
    assert (answer.status_code, job["kind"], job["status"]) == (202, "drop_index", "queued")
    assert job["waiting_for"] == "Waits for a free worker."
    assert local.admin.get(f"/tables/{table['id']}").status_code == 404
    assignment = local.claim(local.start_worker())
    assert assignment is not None
    assert assignment["job"]["id"] == job["id"]
    assert assignment["table"]["table_uuid"] == table["table_uuid"]
    assert local.finished(assignment, result={"index_tables_deleted": 2})["status"] == "succeeded"


@ON_BOTH
def test_the_index_is_dropped_only_after_the_running_writer_has_stopped(local: Running) -> None:
    table, worker = local.enroll(), local.start_worker()
    local.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "index"})
    writer = local.claim(worker)
    assert writer is not None
    local.admin.delete(f"/tables/{table['id']}?drop_index=true")
    assert local.claim(local.start_worker()) is None
    local.finish(writer, status="cancelled")
    drop = local.claim(worker)
    assert drop is not None
    assert drop["job"]["kind"] == "drop_index"


def test_an_index_that_another_enrolment_uses_is_not_dropped(local: Running, iceberg: IcebergCatalog) -> None:
    table = local.enroll()
    iceberg.catalog.rename_table("db.t", "db.renamed")
    other = local.enroll("db.renamed")
    answer = local.admin.delete(f"/tables/{table['id']}?drop_index=true")
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/index-in-use")
    assert answer.json()["table_id"] == other["id"]
    assert local.admin.delete(f"/tables/{table['id']}").status_code == 204
    assert local.admin.delete(f"/tables/{other['id']}?drop_index=true").status_code == 202


@ON_BOTH
def test_a_table_that_is_enrolled_again_keeps_its_index(local: Running) -> None:
    job = local.admin.delete(f"/tables/{local.enroll()['id']}?drop_index=true").json()
    again = local.enroll()
    assert local.admin.get(f"/jobs/{job['id']}").json()["status"] == "cancelled"
    refused = local.admin.post(f"/jobs/{job['id']}/retry")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/index-in-use")
    local.admin.delete(f"/tables/{again['id']}")
    retried = local.admin.post(f"/jobs/{job['id']}/retry").json()
    assert (retried["kind"], retried["status"]) == ("drop_index", "queued")


def drop_index(local: Running) -> dict[str, Any]:
    """Removes a table with its index."""
    table = local.enroll()
    return dict(local.admin.delete(f"/tables/{table['id']}?drop_index=true").json())


def end_pause(local: Running, job_id: str) -> None:
    with local.database.write() as session:
        job = session.get_one(Job, job_id)
        job.available_at = utc_now()
        session.add(job)


@pytest.mark.parametrize("retryable", [True, False])
def test_the_drop_of_an_index_is_tried_until_it_succeeds(local: Running, retryable: bool) -> None:
    job, worker = drop_index(local), local.start_worker()
    error = {"code": "x", "title": "The store is away", "detail": "d", "remedy": "r", "retryable": retryable}
    pauses = []
    for number in range(1, 13):
        assignment = local.claim(worker)
        assert assignment is not None
        found = local.finished(assignment, status="failed", error=error)
        assert (found["status"], found["error"]["title"]) == ("queued", "The store is away")
        assert "before the next attempt" in found["waiting_for"]
        with local.database.read() as session:
            row = session.get_one(Job, job["id"])
            ended = session.get_one(Attempt, (job["id"], number)).ended_at
            assert ended is not None
            pauses.append((row.available_at - ended).total_seconds())
        end_pause(local, job["id"])
    assert pauses == [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600, 3600]
    assignment = local.claim(worker)
    assert assignment is not None
    assert local.finished(assignment)["status"] == "succeeded"


def test_the_drop_of_an_index_outlives_its_paused_and_removed_catalog(local: Running) -> None:
    job = drop_index(local)
    catalog = local.admin.get("/catalogs/local").json()
    assert local.admin.post(f"/catalogs/{catalog['id']}/pause").is_success
    assert local.claim(local.start_worker()) is None
    assert local.admin.delete(f"/catalogs/{catalog['id']}").is_success
    assignment = local.claim(local.start_worker())
    assert assignment is not None
    assert assignment["job"]["id"] == job["id"]


@ON_BOTH
def test_an_index_that_is_used_again_is_not_dropped_however_that_came(local: Running) -> None:
    job = drop_index(local)
    again = local.enroll()
    with local.database.write() as session:
        # As if both had happened at the same time, neither seeing the other.
        row = session.get_one(Job, job["id"])
        row.status, row.ended_at = "queued", None
        session.add(row)
    assert local.claim(local.start_worker()) is None
    assert local.admin.get(f"/jobs/{job['id']}").json()["status"] == "cancelled"
    assert local.admin.get(f"/tables/{again['id']}").is_success


def test_a_running_drop_that_fails_after_the_table_is_back_is_not_tried_again(local: Running) -> None:
    drop_index(local)
    assignment = local.claim(local.start_worker())
    assert assignment is not None
    local.enroll()
    error = {"code": "x", "title": "t", "detail": "d", "remedy": "r", "retryable": True}
    assert local.finished(assignment, status="failed", error=error)["status"] == "cancelled"


def test_a_dropped_index_is_never_requested_by_itself(local: Running) -> None:
    table = local.enroll()
    answer = local.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "drop_index"})
    (error,) = answer.json()["errors"]
    assert (answer.status_code, error["field"]) == (422, "body.kind")
    assert error["message"] == (
        "This is one of 'index', 'convert', 'publish', 'expire_snapshots', 'rewrite_data_files',"
        " 'rewrite_position_delete_files', 'rewrite_manifests', 'remove_orphan_files', 'compact', 'rebuild',"
        " 'verify' or 'report_duplicates'."
    )


@ON_BOTH
def test_tables_are_listed_page_by_page_and_by_filter(local: Running, iceberg: IcebergCatalog) -> None:
    for name in ("db.a", "db.b", "other.c"):
        iceberg.create(name)
        local.enroll(name)
    names, cursor = [], None
    while True:
        query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = local.admin.get("/tables", params=query).json()
        names += [table["name"] for table in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert names == ["db.a", "db.b", "other.c"]
    found = local.admin.get("/tables", params={"search": "db."}).json()["items"]
    assert [table["name"] for table in found] == ["db.a", "db.b"]
    assert local.admin.get("/tables", params={"catalog": "nope"}).json()["items"] == []


@ON_BOTH
def test_tables_are_told_apart_by_the_parts_of_their_names(local: Running, iceberg: IcebergCatalog) -> None:
    names = [("a", "b.c"), ("a.b", "c")]
    tables = []
    for identifier in names:
        iceberg.catalog.create_namespace_if_not_exists(identifier[0])
        iceberg.catalog.create_table(identifier, SCHEMA, properties={"format-version": "2"})
        tables.append(local.enroll(identifier=list(identifier)))
    assert [table["name"] for table in tables] == ["a.b.c", "a.b.c"]
    assert refusal(local, identifier=["a.b", "c"])[0] == 409
    again = local.admin.post("/tables/enroll-by-pattern", json={"catalog": "local", "pattern": "a.*"}).json()
    assert {table["id"] for table in again["already_enrolled"]} == {table["id"] for table in tables}
    found = {
        namespace: [
            table["identifier"]
            for table in local.admin.get("/tables", params={"namespace": namespace}).json()["items"]
        ]
        for namespace in ("a", "a.b", "a.b.c")
    }
    assert sorted(found["a"]) == [["a", "b.c"], ["a.b", "c"]]
    assert (found["a.b"], found["a.b.c"]) == ([["a.b", "c"]], [])
    for namespace, policy in ((["a"], "standard"), (["a.b"], "manual"), (["a", "b"], "standard")):
        place = {"level": "namespace", "catalog": "local", "namespace": namespace, "policy": policy}
        assert local.admin.put("/policy-attachments", json=place).status_code == 200
    nearest = [local.admin.get(f"/tables/{table['id']}/policy").json()["policy"] for table in tables]
    assert nearest == ["standard", "manual"]
    locations = metadata_locations_reader(CatalogType.SQL, iceberg.catalog)([*names, ("a", "b", "d")])
    assert locations == {name: iceberg.catalog.load_table(name).metadata_location for name in names}


def test_a_view_in_a_sql_catalog_is_no_table_whose_metadata_is_looked_for(iceberg: IcebergCatalog) -> None:
    read = metadata_locations_reader(CatalogType.SQL, iceberg.catalog)
    assert read([("db", "t")])
    with iceberg.catalog.engine.begin() as connection:
        connection.execute(text("UPDATE iceberg_tables SET iceberg_type = 'VIEW'"))
    assert read([("db", "t")]) == {}


def test_viewers_read_and_change_nothing(local: Running) -> None:
    table = local.enroll()
    viewer = local.client(Role.VIEWER)
    assert viewer.get(f"/tables/{table['id']}").status_code == 200
    for call in ("pause", "resume"):
        assert viewer.post(f"/tables/{table['id']}/{call}").status_code == 403
    assert viewer.delete(f"/tables/{table['id']}").status_code == 403
    assert viewer.post(f"/tables/{table['id']}/jobs", json={"kind": "convert"}).status_code == 403
