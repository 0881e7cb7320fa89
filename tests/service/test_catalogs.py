"""Catalogs over HTTP: what is accepted, what a check says, what is never shown."""

import gzip
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.catalogs.iceberg import HadoopSource, IcebergCatalogs, unreachable
from service.records.api_keys import Role
from service.records.catalogs import Catalog
from service.settings import Settings
from tests.rest_catalog import running_rest_catalog
from tests.service.conftest import ON_BOTH, Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog

# Most of this is about what records say; where rows are locked, both databases are asked.
database_kind = alike_on_both


def sql_catalog(directory: Path, **fields: Any) -> dict[str, Any]:
    properties = {
        "uri": f"sqlite:///{directory / 'cat.db'}",
        "warehouse": f"file://{directory / 'warehouse'}",
    }
    return {"name": "local", "type": "sql", "properties": properties} | fields


def test_a_registered_catalog_is_found_by_id_and_by_name(service: Running, tmp_path: Path) -> None:
    created = service.admin.post("/catalogs", json=sql_catalog(tmp_path))
    assert (created.status_code, created.headers["etag"]) == (201, '"1"')
    for key in (created.json()["id"], "local"):
        assert service.admin.get(f"/catalogs/{key}").json() == created.json()


@pytest.mark.parametrize("kind", ["rest", "hive", "glue", "hadoop"])
def test_every_type_is_accepted(service: Running, tmp_path: Path, kind: str) -> None:
    uri = {"rest": "http://127.0.0.1:1", "hive": "thrift://127.0.0.1:1,thrift://127.0.0.1:2"}
    properties = {"warehouse": f"file://{tmp_path}/warehouse"}
    properties |= {"uri": uri[kind]} if kind in uri else {}
    body = {"name": kind, "type": kind, "properties": properties}
    assert service.admin.post("/catalogs", json=body).status_code == 201


@pytest.mark.parametrize(
    ("properties", "slug"),
    [
        ({"uri": "sqlite:////data/cat.db"}, "missing-property"),
        ({"warehouse": "relative/path"}, "location-not-absolute"),
        ({"warehouse": "file:///somewhere/else"}, "location-not-allowed"),
        ({"warehouse": "s3://bucket/wh"}, "location-not-allowed"),
        ({"uri": "sqlite:////somewhere/else.db"}, "location-not-allowed"),
        ({"s3.secret-access-key": "in clear"}, "secret-in-clear"),
        ({"token": "in clear"}, "secret-in-clear"),
        ({"uri": "postgresql://user:password@db/catalog"}, "secret-in-clear"),
        ({"index.s3.secret-access-key": "in clear"}, "secret-in-clear"),
        ({"index.s3.client-factory.class": "own.Factory"}, "property-not-allowed"),
        ({"index.warehouse": "file:///data/index"}, "property-not-allowed"),
        ({"py-catalog-impl": "os.system"}, "property-not-allowed"),
        ({"token": "env:ICESTREAM_BOOTSTRAP_KEY"}, "property-not-allowed"),
    ],
)
def test_bad_properties_are_refused_with_what_to_do(
    service: Running, tmp_path: Path, properties: dict[str, str], slug: str
) -> None:
    body = sql_catalog(tmp_path)
    body["properties"] = properties if slug == "missing-property" else body["properties"] | properties
    answer = service.admin.post("/catalogs", json=body)
    assert (answer.status_code, answer.json()["type"]) == (422, f"/problems/{slug}")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["remedy"]


def test_a_location_that_is_not_allowed_names_the_setting(service: Running, tmp_path: Path) -> None:
    answer = service.admin.post("/catalogs", json=sql_catalog(tmp_path.parent / "other")).json()
    assert "ICESTREAM_ALLOWED_LOCATIONS" in answer["remedy"]


def test_a_secret_is_resolved_at_use_and_never_shown(
    service: Running, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATALOG_URI", iceberg.properties["uri"])
    body = sql_catalog(iceberg.directory)
    body["properties"]["uri"] = "env:CATALOG_URI"
    created = service.admin.post("/catalogs", json=body)
    assert service.admin.post("/catalogs/local/check").json()["ok"] is True
    assert iceberg.properties["uri"] not in created.text + service.admin.get("/catalogs").text
    monkeypatch.delenv("CATALOG_URI")
    checked = service.admin.post("/catalogs/local/check").json()
    assert checked["ok"] is False
    assert "CATALOG_URI is not set" in checked["explanation"]


def test_an_error_message_does_not_give_a_secret_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALOG_URI", "postgresql://user:topsecret@db/catalog")
    catalog = Catalog(name="c", type="sql", properties={"uri": "env:CATALOG_URI", "warehouse": "s3://b/w"})
    for message in ("cannot connect to postgresql://user:topsecret@db/catalog", "topsecret was refused"):
        shown = unreachable(catalog, ConnectionError(message)).detail
        assert "<uri>" in shown
        assert "topsecret" not in shown


def test_a_check_says_what_can_be_seen(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    checked = service.admin.post("/catalogs/local/check").json()
    assert (checked["status"], checked["tables"]) == ("ok", ["db.t"])
    assert checked["explanation"] == "The catalog answers. It shows 1 table in 1 namespace."


def test_a_check_is_for_operators_and_recorded(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    operator, viewer = service.client(Role.OPERATOR), service.client(Role.VIEWER)
    assert operator.post("/catalogs/local/check").json()["ok"] is True
    assert viewer.post("/catalogs/local/check").status_code == 403
    found = service.admin.get("/audit").json()["items"]
    tried = [(each["principal"], each["outcome"]) for each in found if "check" in each["action"]]
    assert sorted(tried) == [("operator", "allowed"), ("viewer", "denied")]


def test_a_check_of_a_missing_database_says_so_and_creates_nothing(service: Running, tmp_path: Path) -> None:
    service.admin.post("/catalogs", json=sql_catalog(tmp_path))
    checked = service.admin.post("/catalogs/local/check").json()
    assert checked["status"] == "unreachable"
    assert f"{tmp_path / 'cat.db'} is not there" in checked["explanation"]
    assert not (tmp_path / "cat.db").exists()


def test_a_check_under_the_wrong_catalog_name_tells_the_right_one(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.admin.post("/catalogs", json=sql_catalog(iceberg.directory, name="mine"))
    checked = service.admin.post("/catalogs/mine/check").json()
    assert checked["status"] == "warning"
    assert checked["remedy"] == "Set the property catalog_name to 'local' if that is the one."


def test_a_rest_catalog_that_does_not_answer_is_told_in_words(service: Running) -> None:
    body = {"name": "rest", "type": "rest", "properties": {"uri": "http://127.0.0.1:1"}}
    service.admin.post("/catalogs", json=body)
    checked = service.admin.post("/catalogs/rest/check").json()
    assert checked["ok"] is False
    assert "that the server is running" in checked["remedy"]


def test_tables_of_a_rest_catalog_are_found_and_enrolled(service: Running, iceberg: IcebergCatalog) -> None:
    with running_rest_catalog(iceberg.catalog) as rest:
        body = {"name": rest.name, "type": rest.type, "properties": rest.properties}
        assert service.admin.post("/catalogs", json=body).status_code == 201
        checked = service.admin.post(f"/catalogs/{rest.name}/check").json()
        assert (checked["status"], checked["tables"]) == ("ok", ["db.t"])
        enrolled = service.admin.post("/tables", json={"catalog": rest.name, "identifier": ["db", "t"]})
        assert enrolled.status_code == 201, enrolled.text
        unknown = service.admin.post("/tables", json={"catalog": rest.name, "identifier": ["db", "nowhere"]})
        assert (unknown.status_code, unknown.json()["type"]) == (422, "/problems/table-not-found")


@ON_BOTH
def test_an_update_needs_the_version_that_it_was_made_from(service: Running, tmp_path: Path) -> None:
    service.admin.post("/catalogs", json=sql_catalog(tmp_path))
    patch = {"properties": {"s3.region": "eu"}}
    unconditional = service.admin.patch("/catalogs/local", json=patch)
    assert (unconditional.status_code, unconditional.json()["type"]) == (
        428,
        "/problems/precondition-required",
    )
    first = service.admin.patch("/catalogs/local", json=patch, headers={"If-Match": '"1"'})
    assert (first.status_code, first.headers["etag"]) == (200, '"2"')
    assert first.json()["properties"]["s3.region"] == "eu"
    late = service.admin.patch("/catalogs/local", json=patch, headers={"If-Match": '"1"'})
    assert (late.status_code, late.json()["type"]) == (412, "/problems/version-conflict")
    removed = service.admin.patch(
        "/catalogs/local", json={"properties": {"s3.region": None}}, headers={"If-Match": '"2"'}
    )
    assert "s3.region" not in removed.json()["properties"]


def test_a_renamed_sql_catalog_still_finds_its_tables(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    service.admin.patch("/catalogs/local", json={"name": "renamed"}, headers={"If-Match": "*"})
    assert service.admin.post("/catalogs/renamed/check").json()["tables"] == ["db.t"]


def test_pausing_what_is_paused_ends_no_version(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    for call, version in (("resume", 1), ("pause", 2), ("pause", 2), ("resume", 3)):
        assert service.admin.post(f"/catalogs/local/{call}").json()["version"] == version


@ON_BOTH
def test_a_catalog_in_use_is_not_deleted(service: Running, iceberg: IcebergCatalog) -> None:
    service.register(iceberg)
    table = service.enroll()
    refused = service.admin.delete("/catalogs/local")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/catalog-in-use")
    service.admin.delete(f"/tables/{table['id']}")
    assert service.admin.delete("/catalogs/local").status_code == 204
    assert service.admin.get("/catalogs/local").status_code == 404
    service.register(iceberg)


@ON_BOTH
def test_two_catalogs_never_share_a_name(service: Running, tmp_path: Path) -> None:
    service.admin.post("/catalogs", json=sql_catalog(tmp_path))
    answer = service.admin.post("/catalogs", json=sql_catalog(tmp_path))
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/catalog-exists")


def test_only_an_admin_registers_catalogs(service: Running, tmp_path: Path) -> None:
    answer = service.client(Role.OPERATOR).post("/catalogs", json=sql_catalog(tmp_path))
    assert (answer.status_code, answer.json()["type"]) == (403, "/problems/forbidden")


def test_an_index_warehouse_inside_an_enrolled_table_is_refused(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    table = service.enroll()
    patch = {"index_warehouse": f"{table['location']}/index"}
    answer = service.admin.patch("/catalogs/local", json=patch, headers={"If-Match": "*"})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/index-inside-table")


def test_an_index_warehouse_is_kept_while_tables_have_indexes_there(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    table = service.enroll(key_sets=[["id"]], policy="manual")
    key_set = {"equality_field_ids": [1], "columns": ["id"], "generation": 1, "source": "declared"}
    key_set |= {"files_covered": 1, "files_total": 1, "coverage": 1.0, "entries": 3, "bytes": 300}
    health = {"iceberg_snapshot_id": iceberg.head("db.t"), "key_sets": [key_set | {"sorted_runs": 1}]}
    health |= {"unconvertible": [], "pending_equality_delete_files": 0, "pending_equality_deletes": 0}

    def change(folder: str) -> httpx.Response:
        patch = {"index_warehouse": f"{service.settings.index_warehouse}/{folder}"}
        return service.admin.patch("/catalogs/local", json=patch, headers={"If-Match": "*"})

    assert change("one").status_code == 200
    service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "index"})
    worker = service.start_worker()
    assignment = service.claim(worker)
    assert assignment is not None
    refused = change("two")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/index-left-behind")
    service.finish(assignment, health=health)
    refused = change("two")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/index-left-behind")
    assert "db.t" in refused.json()["detail"]
    assert change("one/").status_code == 200
    service.admin.delete(f"/tables/{table['id']}", params={"drop_index": True})
    assert change("two").status_code == 409, "the job has yet to look there"
    assignment = service.claim(worker)
    assert assignment is not None
    service.finish(assignment)
    assert change("two").status_code == 200


def test_an_index_warehouse_on_a_store_without_exclusive_writes_is_refused(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    service.settings.allowed_locations = ("hdfs://namenode/index",)
    patch = {"index_warehouse": "hdfs://namenode/index"}
    answer = service.admin.patch("/catalogs/local", json=patch, headers={"If-Match": "*"})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/index-place-not-supported")
    with pytest.raises(ValueError, match="an index can lie on a file system, S3"):
        Settings(index_warehouse="hdfs://namenode/index")
    service.settings.allowed_locations = ("s3://",)
    in_table_bucket = {"index_warehouse": "s3://63a8e430-6e0b-46f5-k833--table-s3/index"}
    answer = service.admin.patch("/catalogs/local", json=in_table_bucket, headers={"If-Match": "*"})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/index-place-not-supported")
    assert "bucket of S3 Tables" in answer.json()["detail"]
    for place in ("gs://lake/index", "abfss://lake@account.dfs.core.windows.net/index"):
        assert Settings(index_warehouse=place).index_warehouse == place


def hadoop_table(iceberg: IcebergCatalog, versions: int, hint: str | None) -> None:
    """A directory as HadoopCatalog leaves it: v1..vN.metadata.json and a hint that may lag behind."""
    table = iceberg.catalog.load_table("db.t")
    source = Path(table.metadata_location.removeprefix("file://"))
    metadata = iceberg.directory / "hadoop" / "db" / "t" / "metadata"
    metadata.mkdir(parents=True)
    for version in range(1, versions + 1):
        (metadata / f"v{version}.metadata.json").write_bytes(source.read_bytes())
    if hint is not None:
        (metadata / "version-hint.text").write_text(hint)


@pytest.mark.parametrize("hint", ["2", "1", None])
def test_a_hadoop_warehouse_is_read_with_and_without_a_current_hint(
    service: Running, iceberg: IcebergCatalog, hint: str | None
) -> None:
    hadoop_table(iceberg, 2, hint)
    body = {
        "name": "dirs",
        "type": "hadoop",
        "properties": {"warehouse": f"file://{iceberg.directory}/hadoop"},
    }
    service.admin.post("/catalogs", json=body)
    assert service.admin.post("/catalogs/dirs/check").json()["tables"] == ["db.t"]
    table = service.enroll(catalog="dirs")
    service.poll(table["id"])
    assert service.admin.get(f"/tables/{table['id']}/health").json()["data_files"] == 1


def test_a_local_directory_is_listed_again_once_another_version_is_its_newest(
    settings: Settings, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    hadoop_table(iceberg, 2, "2")
    metadata = iceberg.directory / "hadoop" / "db" / "t" / "metadata"
    properties = {"warehouse": f"file://{iceberg.directory}/hadoop"}
    listed = []
    list_directory = HadoopSource._list

    def note(source: HadoopSource, location: str) -> Any:
        listed.append(location)
        return list_directory(source, location)

    monkeypatch.setattr(HadoopSource, "_list", note)
    catalogs = IcebergCatalogs(settings)
    with catalogs.open(Catalog(name="dirs", type="hadoop", properties=properties)) as source:

        def newest() -> str:
            found = [source.metadata_locations([("db", "t"), ("db", "none")]) for _ in range(2)]
            assert found[0] == found[1]
            told = listed.count(metadata.as_uri())
            listed.clear()
            assert told == 1
            return found[0].get(("db", "t"), "none").rpartition("/")[2]

        assert newest() == "v2.metadata.json"
        for name in ("v3.gz.metadata.json", "v4.metadata.json.gz", "v5.metadata.json"):
            (metadata / name).write_bytes(b"")
            assert newest() == name
        (metadata / "v5.metadata.json").unlink()
        assert newest() == "v4.metadata.json.gz"
        metadata.rename(metadata.with_name("gone"))
        assert source.metadata_locations([("db", "t")]) == {}
    catalogs.close()


@pytest.mark.parametrize("name", ["v3.metadata.json.gz", "v3.gz.metadata.json"])
def test_metadata_that_gzip_has_packed_is_read_under_either_name(
    service: Running, iceberg: IcebergCatalog, name: str
) -> None:
    hadoop_table(iceberg, 1, None)
    packed = iceberg.directory / "hadoop" / "db" / "t" / "metadata" / name
    content = gzip.compress(packed.with_name("v1.metadata.json").read_bytes())
    packed.write_bytes(content[:-9])
    body = {
        "name": "dirs",
        "type": "hadoop",
        "properties": {"warehouse": f"file://{iceberg.directory}/hadoop"},
    }
    service.admin.post("/catalogs", json=body)
    asked = {"catalog": "dirs", "identifier": ["db", "t"], "branch": "main", "policy": None}
    damaged = service.admin.post("/tables", json=asked)
    assert (damaged.status_code, damaged.json()["type"]) == (422, "/problems/table-unreadable")
    assert "a metadata file of it is damaged" in damaged.json()["detail"]
    packed.write_bytes(content)
    assert service.admin.post("/tables", json=asked).status_code == 201


def test_a_hadoop_identifier_cannot_leave_the_warehouse(service: Running, iceberg: IcebergCatalog) -> None:
    hadoop_table(iceberg, 1, "1")
    body = {
        "name": "dirs",
        "type": "hadoop",
        "properties": {"warehouse": f"file://{iceberg.directory}/hadoop/db"},
    }
    service.admin.post("/catalogs", json=body)
    request = {"catalog": "dirs", "identifier": ["..", "db", "t"]}
    answer = service.admin.post("/tables", json=request)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/table-not-found")


@ON_BOTH
def test_nothing_is_deleted_that_was_changed_since_it_was_seen(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    table = service.enroll()
    assert service.admin.post("/policies", json={"name": "mine", "settings": {}}).status_code == 201
    pattern = service.admin.post("/patterns", json={"catalog": "local", "pattern": "none.*"}).json()
    for path, change in (
        (f"/tables/{table['id']}", {"policy": "manual"}),
        (f"/patterns/{pattern['id']}", {"paused": True}),
        ("/catalogs/local", {"index_warehouse": None}),
        ("/policies/mine", {"description": "Other words."}),
    ):
        seen = {"If-Match": service.admin.get(path).headers["etag"]}
        changed = service.admin.patch(path, json=change, headers=seen)
        late = service.admin.delete(path, headers=seen)
        assert (late.status_code, late.json()["type"]) == (412, "/problems/version-conflict"), path
        current = {"If-Match": changed.headers["etag"]}
        assert service.admin.delete(path, headers=current).status_code == 204, path
