"""From registration to conversion with tables and indexes on Google's and Azure's stores."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from service.settings import Settings
from tests.factories import equality_delete_files, register_jdbc_catalog, visible_rows
from tests.faults.tables import table_with_deletes
from tests.jobs import RecordingReporter
from tests.object_stores import ObjectStore, azure_store, google_store
from tests.service.conftest import ADMIN_KEY, Running, running
from worker.contract.control_plane import Assignment
from worker.jobs.pipeline import run_job
from worker.spark.tasks import TaskRunner

# They need the JARs of ICESTREAM_STORES, and Azurite: `make exhaustive` has both.
pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

ROWS = 300
EXPECTED = Counter((i, i) for i in range(ROWS) if i % 3)
SECRETS = ("gcs.oauth2.token", "adls.account-key", "adls.connection-string")


@pytest.fixture(scope="module", params=[google_store, azure_store], ids=["google", "azure"])
def store(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    with request.param() as store:
        yield store


@pytest.fixture
def service(tmp_path: Path, store: ObjectStore) -> Iterator[Running]:
    settings = Settings(
        data_dir=tmp_path,
        bootstrap_key=ADMIN_KEY,
        background=False,
        allowed_locations=(store.location,),
        allowed_secrets=("env:LAKE_",),
        index_warehouse=f"{store.location}/index",
    )
    with running(settings) as service:
        yield service


def test_tables_are_found_indexed_and_converted(
    service: Running,
    store: ObjectStore,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, warehouse = f"on_{store.location.partition(':')[0]}", f"{store.location}/warehouse"
    further = {"io-impl": "org.apache.iceberg.io.ResolvingFileIO", "jdbc.busy_timeout": "60000"}
    uri = f"sqlite:///{tmp_path}/catalog.db"
    register_jdbc_catalog(
        spark, name, f"jdbc:sqlite:{tmp_path}/catalog.db", warehouse, further | store.java_properties
    )
    tables = {
        version: table_with_deletes(spark, f"{name}.db.v{version}", version, ROWS, writer="iceberg")
        for version in (2, 3)
    }

    properties = {"uri": uri, "warehouse": warehouse}
    for number, (key, value) in enumerate(store.properties.items()):
        is_secret = key.startswith(SECRETS)
        properties[key] = f"env:LAKE_{number}" if is_secret else value
        monkeypatch.setenv(f"LAKE_{number}", value)
    record = {"name": name, "type": "sql", "properties": properties}
    answer = service.admin.post("/catalogs", json=record)
    assert answer.status_code == 201, answer.text
    checked = service.admin.post(f"/catalogs/{name}/check").json()
    assert checked["ok"], checked
    assert f"{store.location}/index is empty; whether workers may write there" in str(checked["steps"])

    worker = service.start_worker()
    for version, table in tables.items():
        enrolled = service.enroll(f"db.v{version}", catalog=name)
        done = {}
        for kind in ("index", "convert", "compact", "verify"):
            body = {"kind": kind}
            assert service.admin.post(f"/tables/{enrolled['id']}/jobs", json=body).status_code == 202
            assignment = service.claim(worker)
            assert assignment is not None
            outcome = run_job(Assignment.model_validate(assignment), TaskRunner(spark), RecordingReporter())
            assert service.finish(assignment, result=outcome.result).status_code == 204
            done[kind] = outcome.result
        assert done["convert"]["rows_deleted"] == ROWS // 3
        assert [one["differences"] for one in done["verify"]["key_sets"]] == [0]
        assert visible_rows(spark, table.identifier) == EXPECTED
        assert equality_delete_files(spark, table.identifier) == []
        service.poll(enrolled["id"])
        health = service.admin.get(f"/tables/{enrolled['id']}/health").json()
        assert (health["poll_error"], health["pending_equality_deletes"]) == (None, 0)
