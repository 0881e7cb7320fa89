"""Indexes may lie where the credentials of their tables are of no use, such as those that a catalog vends."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog, visible_rows
from tests.faults.tables import table_with_deletes
from tests.jobs import Jobs, SqlCatalog
from tests.s3 import s3_server
from trust.egress import HostNotAllowedError
from worker.attempt.pinned_table import identity_of, index_storage
from worker.contract.control_plane import Assignment
from worker.io.storage import ALLOWED_LOCATIONS, Storage
from worker.spark.tasks import TaskRunner

ROWS = 300
NOBODY = "http://127.0.0.1:1"  # refuses connections
OF_TABLES = {
    "s3.endpoint": NOBODY,
    "s3.access-key-id": "tables",
    "s3.secret-access-key": "tables",
    "s3.region": "us-east-1",
}


@pytest.mark.integration
def test_every_kind_of_job_reaches_the_index_with_credentials_of_its_own(
    spark: SparkSession,
    catalog: Catalog,
    table_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = table_with_deletes(spark, table_name, 3, ROWS)
    before = visible_rows(spark, table.identifier)
    monkeypatch.setenv("CATALOG_INDEX_KEY", "secret")
    with s3_server() as server:
        place = f"{server.create_bucket('indexes')}/icestream"
        of_index = {f"index.{key}": value for key, value in server.properties().items()}
        of_index["index.s3.secret-access-key"] = "env:CATALOG_INDEX_KEY"
        jobs = Jobs(
            spark, SqlCatalog(catalog.name, catalog.properties | OF_TABLES | of_index), table_name, tmp_path
        )
        jobs.index_location = place
        assert jobs.run("index").result["key_sets"][0]["files_indexed"] == 2
        jobs.runner = TaskRunner(spark, local_rows=0)  # tasks that travel open it, too
        converted = jobs.run("convert").result
        assert [one["source"] for one in converted["key_sets"]] == ["index"]
        assert converted["rows_deleted"] == ROWS // 3
        assert visible_rows(spark, table.identifier) == before
        jobs.runner = TaskRunner(spark)
        assert [one["differences"] for one in jobs.run("verify").result["key_sets"]] == [0]
        dropped = jobs.run("drop_index", table_uuid=str(table.metadata.table_uuid))
        assert dropped.result["index_tables_deleted"] == 2


def assignment(properties: dict[str, str], allowed_hosts: list[str]) -> Assignment:
    return Assignment.model_validate(
        {
            "job": {"id": "job", "kind": "convert"},
            "attempt": 1,
            "lease_seconds": 30,
            "table": {"id": "t", "identifier": ["db", "t"], "branch": "main"},
            "catalog": {"name": "lake", "type": "rest", "properties": properties},
            "index": {"warehouse": "abfss://indexes@acme.store.example/i"},
            "allowed_locations": ["abfss://indexes@acme.store.example"],
            "allowed_hosts": allowed_hosts,
        }
    )


def test_neither_gets_the_credentials_of_the_other() -> None:
    tables = Storage({"adls.account-key": "of the tables"})
    assert index_storage(assignment(OF_TABLES, ["*"]), tables) is tables
    given = OF_TABLES | {"index.adls.account-key": "of the index"}
    # Azure's go to the host of the index warehouse, and nothing of the tables' is among them.
    assert index_storage(assignment(given, ["*"]), tables).properties == {
        "adls.account-key": "of the index",
        "warehouse": "abfss://indexes@acme.store.example/i",
        ALLOWED_LOCATIONS: "abfss://indexes@acme.store.example",
    }


def test_the_store_of_the_index_must_be_a_host_that_is_allowed() -> None:
    with pytest.raises(HostNotAllowedError, match=r"127\.0\.0\.1"):
        index_storage(assignment({"index.s3.endpoint": NOBODY}, ["192.0.2.1"]), Storage())


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("table", {"id": "u", "identifier": ["db", "t"], "branch": "main"}),
        ("table", {"id": "t", "identifier": ["db", "u"], "branch": "main"}),
        ("catalog", {"name": "lake", "type": "glue", "properties": OF_TABLES}),
        ("catalog", {"name": "pond", "type": "rest", "properties": OF_TABLES}),
        ("catalog", {"name": "lake", "type": "rest", "properties": OF_TABLES | {"token": "of another"}}),
        ("allowed_locations", ["abfss://elsewhere@acme.store.example"]),
        ("own_files", ["/var/lib/icestream"]),
    ],
)
def test_what_is_kept_is_found_with_the_same_rights_alone(part: str, other: object) -> None:
    own = assignment(OF_TABLES, ["*"])
    assert identity_of(own) == identity_of(own.model_copy(deep=True))
    changed = Assignment.model_validate(own.model_dump() | {part: other})
    assert identity_of(changed) != identity_of(own)


def test_a_reference_that_leads_to_another_secret_gives_other_rights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = assignment(OF_TABLES | {"token": "env:CATALOG_TOKEN"}, ["*"])
    monkeypatch.setenv("CATALOG_TOKEN", "former")
    former = identity_of(own)
    assert b"former" not in former
    monkeypatch.setenv("CATALOG_TOKEN", "latter")
    assert identity_of(own) != former
