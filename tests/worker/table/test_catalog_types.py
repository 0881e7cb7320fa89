"""From registration to conversion with catalogs that others wrote: Iceberg's REST server, Hive, moto's Glue.

Spark makes the tables, by settings that the test gives it, and says what is visible afterwards.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.catalog.hive import HiveCatalog
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from service.catalogs.clients import GuardedRestCatalog, open_catalog
from service.catalogs.iceberg import IcebergCatalogs, PyIcebergSource
from service.catalogs.metadata_locations import Identifier
from service.records.catalogs import Catalog, CatalogType
from service.settings import Settings
from tests.factories import equality_delete_files, visible_rows
from tests.faults.tables import table_with_deletes
from tests.jobs import CatalogRecord, Jobs, RecordingReporter, SqlCatalog
from tests.s3 import s3_server
from tests.service.conftest import ADMIN_KEY, Running, running
from tests.sigv4 import Signatures, signed_only
from tests.thorough import THOROUGH, first_always
from tests.worker.table.catalog_servers import hive_metastore, rest_server
from worker.contract.control_plane import Assignment
from worker.jobs.pipeline import run_job
from worker.process.errors import JobError
from worker.spark.tasks import TaskRunner
from worker.table.catalogs import CatalogUnreachableError, load_table
from worker.table.record_properties import resolve_secrets

pytestmark = pytest.mark.integration

ROWS = 30
_numbers = count(1)
EXPECTED = Counter((i, i) for i in range(ROWS) if i % 3)
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


def make_known(spark: SparkSession, kind: str, implementation: str, **settings: str) -> str:
    """Make a catalog known to Spark, which keeps each that it opened once; its name."""
    name = f"{kind}{next(_numbers)}"
    given = {"": "org.apache.iceberg.spark.SparkCatalog", ".catalog-impl": implementation}
    given |= {".cache-enabled": "false"} | {f".{key}": value for key, value in settings.items()}
    for key, value in given.items():
        spark.conf.set(f"spark.sql.catalog.{name}{key}", value)
    return name


@pytest.fixture(scope="module")
def rest(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CatalogRecord]:
    directory = tmp_path_factory.mktemp("rest")
    with rest_server(directory, directory.as_uri()) as uri:
        name = make_known(spark, "rest", "org.apache.iceberg.rest.RESTCatalog", uri=uri)
        yield SqlCatalog(name, {"uri": uri}, "rest")


@pytest.fixture(scope="module")
def hive(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CatalogRecord]:
    directory = tmp_path_factory.mktemp("hive")
    with hive_metastore(directory) as uri:
        properties = {"uri": uri, "warehouse": directory.as_uri()}
        no_locks = {"table-default.engine.hive.lock-enabled": "false"}
        name = make_known(spark, "hive", "org.apache.iceberg.hive.HiveCatalog", **properties, **no_locks)
        yield SqlCatalog(name, properties, "hive")


@pytest.fixture(scope="module")
def glue(spark: SparkSession) -> Iterator[CatalogRecord]:
    """Of moto's server, as is the store that its tables lie on. Java has its credentials from its JVM."""
    system: Any = spark.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]
    with s3_server() as server, pytest.MonkeyPatch.context() as environment:
        server.create_bucket("lake")
        for name, value in KEYS.items():
            environment.setenv(name, value)
        system.setProperty("aws.accessKeyId", "key")
        system.setProperty("aws.secretAccessKey", "secret")
        endpoint = f"http://127.0.0.1:{server.port}"
        places = {"warehouse": "s3://lake/warehouse", "glue.endpoint": endpoint, "s3.endpoint": endpoint}
        java = {"client.region": "us-east-1", "s3.path-style-access": "true"}
        name = make_known(spark, "glue", "org.apache.iceberg.aws.glue.GlueCatalog", **places, **java)
        yield SqlCatalog(name, places | {"glue.region": "us-east-1", "s3.region": "us-east-1"}, "glue")
        system.clearProperty("aws.accessKeyId")
        system.clearProperty("aws.secretAccessKey")


@pytest.fixture(scope="module")
def hadoop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> CatalogRecord:
    properties = {"warehouse": tmp_path_factory.mktemp("hadoop").as_uri()}
    name = make_known(spark, "hadoop", "org.apache.iceberg.hadoop.HadoopCatalog", **properties)
    return SqlCatalog(name, properties, "hadoop")


@pytest.fixture(
    scope="module", params=["rest", *(pytest.param(kind, marks=THOROUGH) for kind in ("hive", "glue"))]
)
def record(request: pytest.FixtureRequest) -> CatalogRecord:
    found: CatalogRecord = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def tables(spark: SparkSession, record: CatalogRecord) -> Iterator[dict[str, str]]:
    """A table of V2 and one of V3 with equality deletes, and one without: name -> location."""
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {record.name}.db")
    spark.sql(f"CREATE TABLE {record.name}.db.clean (id bigint) USING iceberg")
    made = [
        table_with_deletes(spark, f"{record.name}.db.v{version}", version, ROWS, writer="iceberg")
        for version in (2, 3)
    ]
    yield {table.identifier.rpartition(".")[2]: table.metadata.location for table in made}
    for name in ("clean", "v2", "v3"):  # tests of another catalog may come in between, and make these anew
        spark.sql(f"DROP TABLE {record.name}.db.{name}")


@pytest.fixture
def service(tmp_path: Path, tables: dict[str, str]) -> Iterator[Running]:
    settings = Settings(
        data_dir=tmp_path,
        bootstrap_key=ADMIN_KEY,
        background=False,
        allowed_locations=tuple(location.rpartition("/db")[0] for location in tables.values()),
    )
    with running(settings) as service:
        yield service


def test_metadata_locations_are_told_without_reading_the_tables(
    record: CatalogRecord,
    tables: dict[str, str],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings(
        data_dir=tmp_path,
        allowed_locations=tuple(location.rpartition("/db")[0] for location in tables.values()),
    )
    catalog = Catalog(name=record.name, type=record.type, properties=record.properties)
    told: list[Identifier] = []
    with IcebergCatalogs(settings).open(catalog) as source:
        names = [("db", name) for name in (*tables, "clean")]
        locations = {name: source.load(name).metadata_location for name in names}
        if record.type == "rest":
            assert isinstance(source, PyIcebergSource)
            unchanged = GuardedRestCatalog.unchanged

            def note(catalog: GuardedRestCatalog, tags: Any) -> Any:
                found = unchanged(catalog, tags)
                told.extend(found)
                return found

            monkeypatch.setattr(GuardedRestCatalog, "unchanged", note)
        for missing in (1, 20):  # few and many are asked for in different ways
            asked = [*names, *(("db", f"missing{number}") for number in range(missing))]
            assert source.metadata_locations(asked) == locations
        assert source.metadata_locations([("nowhere", "t"), *names]) == locations
        spark.sql(f"ALTER TABLE {record.name}.db.clean SET TBLPROPERTIES ('a' = 'b')")
        moved = source.metadata_locations(names)
        assert {name for name in names if moved[name] != locations[name]} == {("db", "clean")}
        assert moved == {name: source.load(name).metadata_location for name in names}
        source.close()
    assert len(told) == (8 if record.type == "rest" else 0)


def test_tables_are_found_enrolled_and_converted(
    service: Running, record: CatalogRecord, tables: dict[str, str], spark: SparkSession, tmp_path: Path
) -> None:
    body = {"name": record.name, "type": record.type, "properties": record.properties}
    assert service.admin.post("/catalogs", json=body).status_code == 201
    checked = service.admin.post(f"/catalogs/{record.name}/check").json()
    assert checked["ok"], checked
    assert sorted(checked["tables"]) == ["db.clean", "db.v2", "db.v3"]
    found = service.admin.get(f"/catalogs/{record.name}/candidates").json()["items"]
    assert [(one["name"], one["equality_deletes"]) for one in found] == [("db.v2", 10), ("db.v3", 10)]

    worker = service.start_worker()
    for name in tables:
        table = service.enroll(f"db.{name}", catalog=record.name)
        requested = service.admin.post(f"/tables/{table['id']}/jobs", json={"kind": "convert"})
        assert requested.status_code == 202, requested.text
        assignment = service.claim(worker)
        assert assignment is not None
        done = run_job(Assignment.model_validate(assignment), TaskRunner(spark), RecordingReporter())
        assert service.finish(assignment, result=done.result).status_code == 204
        assert done.result["rows_deleted"] == ROWS // 3
        identifier = f"{record.name}.db.{name}"
        assert (visible_rows(spark, identifier), equality_delete_files(spark, identifier)) == (EXPECTED, [])
        service.poll(table["id"])
        health = service.admin.get(f"/tables/{table['id']}/health").json()
        assert (health["poll_error"], health["pending_equality_deletes"]) == (None, 0)
    assert assignment is not None
    if record.type != "rest":  # whose metadata comes from the catalog itself
        assert_java_reads_no_metadata_elsewhere(record, assignment, spark, tmp_path)


@first_always("kind", ["catalog", "hadoop", "rest", "hive", "glue"])
def test_no_class_that_a_table_names_is_loaded(
    spark: SparkSession,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    record: CatalogRecord = request.getfixturevalue(kind)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {record.name}.db")
    identifier = f"{record.name}.db.trapped"
    request.addfinalizer(lambda: drop(spark, identifier))
    table = table_with_deletes(spark, identifier, 3, ROWS, writer="iceberg")
    (tmp_path / "trap.py").write_text("class Provider: ...")
    monkeypatch.syspath_prepend(str(tmp_path))
    # Whoever makes a timer starts a thread.
    traps = {
        "write.location-provider.impl": "java.util.Timer",
        "write.py-location-provider.impl": "trap.Provider",
        "encryption.kms-impl": "java.util.Timer",
        "io-impl": "java.util.Timer",
        "metrics-reporter-impl": "java.util.Timer",
        "lock-impl": "java.util.Timer",
        "client.factory": "java.util.Timer",
        "s3.client-factory-impl": "java.util.Timer",
        "s3.retry-strategy-impl": "trap.Provider",
        "py-io-impl": "trap.Provider",
    }
    for key, value in traps.items():
        spark.sql(f"ALTER TABLE {identifier} SET TBLPROPERTIES ('{key}' = '{value}')")
    before = timers(spark)
    done = Jobs(spark, record, identifier, tmp_path / "index").run("convert")
    assert done.result["rows_deleted"] == ROWS // 3
    assert timers(spark) == before
    assert "trap" not in sys.modules
    (told,) = [one for one in done.result["decisions"] if "write.location-provider.impl" in one]
    assert f"go below {table.metadata.location}/data." in told
    assert visible_rows(spark, identifier) == EXPECTED
    # Whoever loads one gets a timer for it.
    jvm = spark.sparkContext._jvm
    loaded = load_table(jvm, record.type, record.name, record.properties, ["db", "trapped"])
    with pytest.raises(IllegalArgumentException, match="should implement interface"):
        loaded.locationProvider()


def drop(spark: SparkSession, identifier: str) -> None:
    """Others list what the catalog has."""
    spark.sql(f"DROP TABLE {identifier}")


def timers(spark: SparkSession) -> int:
    """How many timers the JVM has had, but for those that were given a name."""
    jvm: Any = spark.sparkContext._jvm
    # Counting those that run would miss one whose thread has not begun.
    counter = jvm.java.lang.Class.forName("java.util.Timer").getDeclaredField("nextSerialNumber")
    counter.setAccessible(True)
    had: int = counter.get(None)
    return had


def test_a_table_is_converted_in_a_catalog_that_wants_requests_signed(
    spark: SparkSession, rest: CatalogRecord, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    identifier = f"{rest.name}.signed.below.t"
    for namespace in ("signed", "signed.below"):
        spark.sql(f"CREATE NAMESPACE {rest.name}.{namespace}")
    request.addfinalizer(lambda: drop(spark, identifier))
    table_with_deletes(spark, identifier, 3, ROWS, writer="iceberg")
    signatures = Signatures()
    with signed_only(rest.properties["uri"], signatures) as uri:
        signing = {"rest.sigv4-enabled": "true", "rest.signing-name": "glue"}
        keys = {"client.access-key-id": "AKIDRECORD", "client.secret-access-key": "secret/of+record"}
        given = {"uri": uri, "rest.signing-region": "eu-central-1", **signing, **keys}
        done = Jobs(spark, SqlCatalog("signed", given, "rest"), identifier, tmp_path / "index").run("convert")
    assert done.result["rows_deleted"] == ROWS // 3
    assert signatures.refused == []
    assert ("POST", "/v1/namespaces/signed.below/tables/t", "AKIDRECORD") in signatures.seen
    assert (visible_rows(spark, identifier), equality_delete_files(spark, identifier)) == (EXPECTED, [])


@pytest.mark.parametrize("names", [("client",), ("glue", "s3")])
def test_java_asks_glue_with_the_credentials_of_the_record(
    glue: CatalogRecord,
    spark: SparkSession,
    names: tuple[str, ...],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    system: Any = jvm.java.lang.System
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {glue.name}.signed")
    spark.sql(f"CREATE TABLE {glue.name}.signed.t (id bigint) USING iceberg")
    request.addfinalizer(lambda: drop(spark, f"{glue.name}.signed.t"))
    monkeypatch.setenv("LAKE_KEY_ID", "of-the-record")
    monkeypatch.setenv("LAKE_SECRET", "secret")
    references = {"access-key-id": "env:LAKE_KEY_ID", "secret-access-key": "env:LAKE_SECRET"}
    given = {f"{name}.{key}": value for name in names for key, value in references.items()}
    # Nothing else in this JVM can sign.
    in_the_jvm = {"aws.accessKeyId": "key", "aws.secretAccessKey": "secret"}
    for name in in_the_jvm:
        system.clearProperty(name)
    system.setProperty("aws.disableEc2Metadata", "true")
    try:
        properties = resolve_secrets({**glue.properties, **given})
        table = load_table(jvm, "glue", glue.name, properties, ["signed", "t"])
        assert table.location().startswith("s3://lake/")
        table.updateProperties().set("a", "b").commit()
        with pytest.raises(CatalogUnreachableError, match="credentials"):
            load_table(jvm, "glue", glue.name, glue.properties, ["signed", "t"])
    finally:
        system.clearProperty("aws.disableEc2Metadata")
        for name, value in in_the_jvm.items():
            system.setProperty(name, value)


def move_head(record: CatalogRecord, location: str) -> str:
    """What the owner of the catalog can say of the table without deletes. Returns where its metadata was."""
    if record.type == "hive":
        with HiveCatalog("hive", **record.properties)._client as client:
            table = client.get_table("db", "clean")
            before = table.parameters["metadata_location"]
            table.parameters["metadata_location"] = location
            client.alter_table("db", "clean", table)
    else:
        client = GlueCatalog("glue", **record.properties).glue
        parameters = client.get_table(DatabaseName="db", Name="clean")["Table"]["Parameters"]
        before = parameters["metadata_location"]
        given = {"Name": "clean", "Parameters": parameters | {"metadata_location": location}}
        client.update_table(DatabaseName="db", TableInput=given)
    return str(before)


def name_key(hive: CatalogRecord, name: str) -> None:
    """As Iceberg has it of an encrypted table: both the metastore and the metadata name its key."""
    with HiveCatalog("hive", **hive.properties)._client as client:
        table = client.get_table("db", name)
        metadata = Path(table.parameters["metadata_location"].removeprefix("file:"))
        known = json.loads(metadata.read_text())
        known["properties"]["encryption.key-id"] = table.parameters["encryption.key-id"] = "of-the-owner"
        metadata.write_text(json.dumps(known))
        metadata.with_name(f".{metadata.name}.crc").unlink()  # which Hadoop wrote beside it
        client.alter_table("db", name, table)


def assert_java_reads_no_metadata_elsewhere(
    record: CatalogRecord, assignment: dict[str, Any], spark: SparkSession, directory: Path
) -> None:
    secret = directory / "v1.metadata.json"
    secret.write_text("TOPSECRETLINE")
    assignment["table"]["identifier"] = ["db", "clean"]
    assignment["allowed_locations"] = [record.properties["warehouse"]]
    before = move_head(record, secret.as_uri())
    try:
        with pytest.raises(JobError, match=f"{secret.as_uri()} lies outside") as caught:
            run_job(Assignment.model_validate(assignment), TaskRunner(spark), RecordingReporter())
    finally:
        move_head(record, before)
    assert (caught.value.code, caught.value.retryable) == ("location_not_allowed", False)


def test_many_threads_ask_hive_at_a_time(hive: CatalogRecord, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    catalog = open_catalog(settings, CatalogType.HIVE, "hive", hive.properties)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: catalog.list_namespaces(), range(64)))
    assert all(("default",) in answer for answer in answers)


def test_a_table_that_iceberg_encrypts_in_hive_is_refused_as_such(
    spark: SparkSession, hive: CatalogRecord, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Whose key only a client of the owner's key management opens, which Iceberg asks for at once."""
    identifier = f"{hive.name}.db.encrypted"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {hive.name}.db")
    table_with_deletes(spark, identifier, 3, ROWS, writer="iceberg")
    request.addfinalizer(lambda: drop(spark, identifier))
    name_key(hive, "encrypted")
    with pytest.raises(JobError, match=r"encryption\.key-id") as refusal:
        Jobs(spark, hive, identifier, tmp_path / "index").run("convert")
    assert (refusal.value.code, refusal.value.retryable) == ("encrypted_table", False)
