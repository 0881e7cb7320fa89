"""One catalog record opens the same table in PyIceberg and in Java; what fails is named in words."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from tests.factories import Catalog, TableBuilder
from tests.rest_catalog import running_rest_catalog
from tests.service.postgresql import running_server
from worker.io.storage import PLACES
from worker.table.catalogs import (
    CatalogUnreachableError,
    StoreNotSupportedError,
    TableNotFoundError,
    file_io_properties,
    java_message,
    java_properties,
    load_table,
)
from worker.table.record_properties import SecretUnresolvedError, resolve_secrets


class TestSecrets:
    def test_references_are_replaced_by_what_they_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("S3_KEY", "from the environment")
        (tmp_path / "secret").write_text("from a file\n")
        properties = {
            "uri": "file:/is/a/place",
            "warehouse": "file:///is/a/place",
            "s3.access-key-id": "env:S3_KEY",
            "s3.secret-access-key": f"file:{tmp_path}/secret",
            "token": f"file://{tmp_path}/secret",
        }
        assert resolve_secrets(properties) == properties | {
            "s3.access-key-id": "from the environment",
            "s3.secret-access-key": "from a file",
            "token": "from a file",
        }

    @pytest.mark.parametrize(
        ("value", "cause"),
        [
            ("env:NOT_SET_ANYWHERE", "property token refers to the environment variable NOT_SET_ANYWHERE"),
            ("env:ICESTREAM_API_KEY", "property token refers to a setting of Icestream itself"),
            ("file:/no/such/file", "property token refers to file:/no/such/file.*No such file"),
        ],
    )
    def test_a_reference_to_nothing_names_property_and_place(self, value: str, cause: str) -> None:
        with pytest.raises(SecretUnresolvedError, match=cause):
            resolve_secrets({"token": value})

    def test_only_what_the_service_has_given_to_catalogs_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LAKE_TOKEN", "token")
        monkeypatch.setenv("PRIVATE", "own")
        (tmp_path / "secret").write_text("from a file")
        allowed = ["env:LAKE_", f"file:{tmp_path}"]
        given = {
            "uri": "file:/place",
            "token": "env:LAKE_TOKEN",
            "credential": f"file:{tmp_path}/secret",
        }
        assert resolve_secrets(given, allowed) == given | {"token": "token", "credential": "from a file"}
        for value in (
            "env:PRIVATE",
            "env:LAKE",
            "file:/etc/passwd",
            f"file:{tmp_path}/../x",
            f"file:{tmp_path}x",
        ):
            with pytest.raises(SecretUnresolvedError, match="ICESTREAM_ALLOWED_SECRETS"):
                resolve_secrets({"token": value}, allowed)
        with pytest.raises(SecretUnresolvedError, match="ICESTREAM_ALLOWED_SECRETS"):
            resolve_secrets({"token": "env:PRIVATE"}, [])


class TestJavaProperties:
    @pytest.mark.parametrize(
        ("uri", "expected"),
        [
            ("sqlite:////abs/cat.db", {"uri": "jdbc:sqlite:file:/abs/cat.db?mode=rw"}),
            ("sqlite:///cat.db", {"uri": "jdbc:sqlite:file:cat.db?mode=rw"}),
            (
                "postgresql+psycopg2://user:p%40ss@host:5433/db?sslmode=require",
                {
                    "uri": "jdbc:postgresql://host:5433/db?sslmode=require",
                    "jdbc.user": "user",
                    "jdbc.password": "p@ss",
                },
            ),
            ("postgresql://host/db", {"uri": "jdbc:postgresql://host:5432/db"}),
            ("postgresql://[::1]/db", {"uri": "jdbc:postgresql://[::1]:5432/db"}),
        ],
    )
    def test_an_sql_address_becomes_a_jdbc_one(self, uri: str, expected: dict[str, str]) -> None:
        java = java_properties("sql", {"uri": uri, "warehouse": "s3://b/w", "catalog_name": "c"})
        assert java.items() >= expected.items()
        assert "jdbc.user" in expected or "jdbc.user" not in java
        assert java["catalog-impl"] == "org.apache.iceberg.jdbc.JdbcCatalog"
        assert java["jdbc.schema-version"] == "V1"
        assert "catalog_name" not in java

    def test_no_server_is_waited_for_without_end(self) -> None:
        uri = "postgresql://host/db?socketTimeout=5"
        java = java_properties("sql", {"uri": uri, "jdbc.connectTimeout": "3"})
        assert java["uri"].endswith("?socketTimeout=5")
        assert "jdbc.socketTimeout" not in java
        assert (java["jdbc.connectTimeout"], java["jdbc.tcpKeepAlive"]) == ("3", "true")

    @pytest.mark.parametrize(
        ("python", "java"),
        [
            ({"s3.region": "eu-1"}, {"client.region": "eu-1"}),
            (
                {"s3.endpoint": "http://minio"},
                {"s3.endpoint": "http://minio", "s3.path-style-access": "true"},
            ),
            (
                {"s3.endpoint": "http://minio", "s3.force-virtual-addressing": "True"},
                {
                    "s3.endpoint": "http://minio",
                    "s3.force-virtual-addressing": "True",
                    "s3.path-style-access": "false",
                },
            ),
            (
                {"adls.account-name": "acc", "adls.account-key": "k"},
                {"adls.auth.shared-key.account.name": "acc", "adls.auth.shared-key.account.key": "k"},
            ),
            (
                {"adls.account-name": "acc", "adls.sas-token": "t"},
                {
                    "adls.account-name": "acc",  # in Java's words, it would want a key
                    "adls.sas-token.acc": "t",
                    "adls.sas-token.acc.dfs.core.windows.net": "t",
                },
            ),
            (
                {"adls.sas-token": "t", "warehouse": "abfss://c@acc.dfs.core.chinacloudapi.cn/w"},
                {
                    "adls.sas-token.acc": "t",
                    "adls.sas-token.acc.dfs.core.chinacloudapi.cn": "t",
                    "warehouse": "abfss://c@acc.dfs.core.chinacloudapi.cn/w",
                },
            ),
            (
                {"adls.account-key": "k", "warehouse": "abfss://c@acc.dfs.core.windows.net/w"},
                {
                    "adls.auth.shared-key.account.name": "acc",
                    "adls.auth.shared-key.account.key": "k",
                    "warehouse": "abfss://c@acc.dfs.core.windows.net/w",
                },
            ),
            ({"uri": "http://rest", "credential": "a:b"}, {"uri": "http://rest", "credential": "a:b"}),
        ],
    )
    def test_properties_get_javas_names(self, python: dict[str, str], java: dict[str, str]) -> None:
        expected = java | {"catalog-impl": "org.apache.iceberg.rest.RESTCatalog"}
        assert java_properties("rest", python) == expected

    @pytest.mark.parametrize("alone", ["s3.role-arn", "glue.role-arn"])
    def test_a_role_for_s3_or_glue_alone_is_refused(self, alone: str) -> None:
        """The service asks each in its own."""
        with pytest.raises(CatalogUnreachableError) as caught:
            java_properties("glue", {alone: "arn:aws:iam::123456789012:role/r", "client.region": "eu"})
        assert "client.role-arn, for both" in caught.value.remedy

    def test_what_is_no_endpoint_on_azure_is_refused_without_being_quoted(self) -> None:
        value = "DefaultEndpointsProtocol=https;AccountName=acc;AccountKey=MARK"
        for key in ("adls.connection-string", "adls.connection-string.acc.dfs.core.windows.net"):
            with pytest.raises(CatalogUnreachableError, match=r"adls\.account-key") as caught:
                java_properties("rest", {key: value})
            assert "MARK" not in str(caught.value)

    @pytest.mark.parametrize(
        ("catalog_type", "uri", "cause"),
        [
            ("nessie", "http://x", "type nessie is not supported, only glue, hadoop, hive, rest, sql"),
            ("sql", "mysql://u:secret@h/d", "must read sqlite:////path or postgresql"),
        ],
    )
    def test_what_can_not_be_opened_is_said_without_secrets(
        self, catalog_type: str, uri: str, cause: str
    ) -> None:
        with pytest.raises(CatalogUnreachableError, match=cause) as caught:
            java_properties(catalog_type, {"uri": uri})
        assert "secret" not in str(caught.value)


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    with running_server() as address:
        yield address


def open_table(
    spark: SparkSession, catalog_type: str, properties: dict[str, str], *identifier: str
) -> JavaObject:
    return load_table(spark.sparkContext._jvm, catalog_type, "local", properties, identifier or ("db", "t"))


@pytest.mark.integration
class TestCatalogs:
    @pytest.mark.parametrize("database", ["sqlite", "postgresql"])
    def test_pyiceberg_and_java_see_one_table(
        self, spark: SparkSession, tmp_path: Path, database: str, request: pytest.FixtureRequest
    ) -> None:
        uri = f"sqlite:///{tmp_path}/cat.db"
        if database == "postgresql":
            uri = request.getfixturevalue("postgresql") + "/postgres"
        properties = {"uri": uri, "warehouse": tmp_path.as_uri(), "catalog_name": "other"}
        catalog = load_catalog(
            "other", type="sql", **{k: v for k, v in properties.items() if k != "catalog_name"}
        )
        catalog.create_namespace("db.inner")
        created = catalog.create_table("db.inner.dotted", pa.schema([("id", pa.int64())]))
        catalog.close()

        table = open_table(spark, "sql", properties, "db", "inner", "dotted")
        assert table.uuid().toString() == str(created.metadata.table_uuid)
        with pytest.raises(TableNotFoundError, match=r"Catalog local has no table db\.inner\.dotted"):
            open_table(spark, "sql", properties | {"catalog_name": "third"}, "db", "inner", "dotted")

    def test_a_table_of_a_hadoop_catalog_is_opened(self, spark: SparkSession, tmp_path: Path) -> None:
        properties = {"warehouse": tmp_path.as_uri()}
        with pytest.raises(TableNotFoundError):
            open_table(spark, "hadoop", properties)
        for key, value in {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "hadoop",
            ".warehouse": properties["warehouse"],
        }.items():
            spark.conf.set(f"spark.sql.catalog.of_hadoop{key}", value)
        spark.sql("CREATE TABLE of_hadoop.db.t (id bigint) USING iceberg")
        assert open_table(spark, "hadoop", properties).location().endswith("/db/t")

    def test_a_database_that_is_away_is_not_made_anew(self, spark: SparkSession, tmp_path: Path) -> None:
        database, away = tmp_path / "cat 1.db", tmp_path / "away.db"
        properties = {"uri": f"sqlite:///{database}", "warehouse": f"file://{tmp_path}/warehouse"}
        catalog = SqlCatalog("local", **properties)
        catalog.create_namespace("db")
        catalog.create_table("db.t", Schema(NestedField(1, "id", LongType())))
        catalog.close()
        assert open_table(spark, "sql", properties).location().endswith("/db/t")
        database.rename(away)
        with pytest.raises(CatalogUnreachableError, match="is not there"):
            open_table(spark, "sql", properties)
        assert not database.exists()
        database.touch()
        with pytest.raises(CatalogUnreachableError, match="iceberg_tables"):
            open_table(spark, "sql", properties | {"catalog_name": "other"})
        assert database.stat().st_size == 0
        away.rename(database)
        assert open_table(spark, "sql", properties).location().endswith("/db/t")

    @pytest.mark.parametrize(
        ("catalog_type", "properties", "cause"),
        [
            ("rest", {"uri": "http://127.0.0.1:1"}, "[Cc]onnect"),
            ("sql", {"uri": "sqlite:////no/such/folder/cat.db", "warehouse": "/w"}, "is not there"),
            ("sql", {"uri": "postgresql://u:hidden@127.0.0.1:1/d", "warehouse": "/w"}, "refused"),
            ("hive", {"uri": "thrift://127.0.0.1:1", "warehouse": "/w"}, "refused"),
        ],
    )
    def test_an_unreachable_catalog_is_named_with_its_cause(
        self, spark: SparkSession, catalog_type: str, properties: dict[str, str], cause: str
    ) -> None:
        with pytest.raises(
            CatalogUnreachableError, match=rf"Catalog local could not open table db\.t:.*{cause}"
        ) as caught:
            open_table(spark, catalog_type, properties)
        assert "hidden" not in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1

    @pytest.mark.parametrize(
        ("place", "store"),
        [("gs://lake/db/t", "gcs"), ("abfss://lake@acme.dfs.core.windows.net/db/t", "azure")],
    )
    def test_a_store_whose_jars_are_missing_is_named_before_anything_is_asked_of_it(
        self, spark: SparkSession, tmp_path: Path, place: str, store: str
    ) -> None:
        uri = f"sqlite:///{tmp_path}/cat.db"
        properties = {"uri": uri, "warehouse": tmp_path.as_uri()}
        with SqlCatalog("local", **properties) as catalog:
            catalog.create_namespace("db")
            table = catalog.create_table("db.t", Schema())
            metadata = Path(table.metadata_location.removeprefix("file://"))
            metadata.write_text(metadata.read_text().replace(f'"{table.location()}"', f'"{place}"'))
            with running_rest_catalog(catalog) as rest:
                # Its metadata comes with the answer, its files are told apart by where the table lies.
                with pytest.raises(StoreNotSupportedError, match=f"The table lies at {place}") as caught:
                    open_table(spark, "rest", dict(rest.properties))
                assert caught.value.store == store
        with closing(sqlite3.connect(tmp_path / "cat.db")) as database, database:
            database.execute("UPDATE iceberg_tables SET metadata_location = ?", [f"{place}/metadata/v1.json"])
        with pytest.raises(StoreNotSupportedError, match=f"The table lies at {place}/metadata/v1") as caught:
            open_table(spark, "sql", properties)
        assert caught.value.store == store

    @pytest.mark.parametrize(
        "content", ["SECRET-LINE of a file", '"SECRET-TEXT"', '{"format-version": "SECRET"}']
    )
    def test_no_error_repeats_what_a_file_says(
        self, spark: SparkSession, tmp_path: Path, content: str
    ) -> None:
        file = tmp_path / "v1.metadata.json"
        file.write_text(content)
        jvm: Any = spark.sparkContext._jvm
        io = jvm.org.apache.iceberg.hadoop.HadoopFileIO(spark.sparkContext._jsc.hadoopConfiguration())
        with pytest.raises((Py4JJavaError, CapturedException)) as caught:
            jvm.org.apache.iceberg.TableMetadataParser.read(io, str(file))
        assert "SECRET" in str(caught.value)
        assert java_message(caught.value).endswith("is not what Iceberg can read.")


@pytest.mark.integration
class TestFileIoProperties:
    def test_they_are_the_catalogs_without_its_password(
        self, spark: SparkSession, catalog: Catalog, table_name: str
    ) -> None:
        TableBuilder.create(spark, table_name)
        storage = {
            "s3.endpoint": "http://minio:9000",
            "s3.access-key-id": "key",
            "s3.region": "eu-1",
            "gcs.project-id": "p",
            "adls.account-name": "acc",
            "adls.sas-token.acc": "t",
        }
        properties = catalog.properties | storage | {"password": "hidden", "jdbc.password": "hidden"}
        found = file_io_properties(open_table(spark, "sql", properties, *table_name.split(".")[1:]))
        assert found == storage | {"s3.force-virtual-addressing": "false", "client.region": "eu-1"}

    def test_credentials_vended_for_the_table_win(
        self, spark: SparkSession, catalog: Catalog, table_name: str
    ) -> None:
        TableBuilder.create(spark, table_name)
        properties = catalog.properties | {"s3.access-key-id": "the catalog's"}
        table = open_table(spark, "sql", properties, *table_name.split(".")[1:])
        jvm: Any = spark.sparkContext._jvm
        vended = {table.location(): "the table's", "file:/": "the bucket's", "s3://other": "another's"}
        credentials = [
            jvm.org.apache.iceberg.io.StorageCredential.create(
                prefix,
                jvm.org.apache.iceberg.util.JsonUtil.mapper().readValue(
                    json.dumps({"s3.access-key-id": key}), jvm.java.util.HashMap().getClass()
                ),
            )
            for prefix, key in vended.items()
        ]
        table.io().setCredentials(jvm.java.util.List.of(*credentials))
        found = file_io_properties(table)
        assert json.loads(found.pop(PLACES)) == {
            prefix: {"s3.access-key-id": key} for prefix, key in vended.items()
        }
        assert found == {"s3.access-key-id": "the table's"}
