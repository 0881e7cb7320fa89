"""Catalogs and stores of every kind on loopback, as the service knows them."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.aws import Aws, sessions_only, vended
from tests.factories import register_jdbc_catalog
from tests.object_stores import ObjectStore, azure_store, google_store
from tests.s3 import s3_server
from tests.sigv4 import Signatures, signed_only
from tests.worker.acceptance import limited_catalog
from tests.worker.acceptance.working import Working
from tests.worker.table.catalog_servers import hive_metastore, rest_server
from worker.io.storage import Storage
from worker.spark.jars import cached_jars, jars_folder, own_jars

_numbers = count(1)
_SECRETS = (
    "rest.access-key-id",
    "rest.secret-access-key",
    "index.s3.access-key-id",
    "index.s3.secret-access-key",
    "s3.access-key-id",
    "s3.secret-access-key",
    "gcs.oauth2.token",
    "adls.account-key",
    "adls.connection",
)
_RESOLVING = {"io-impl": "org.apache.iceberg.io.ResolvingFileIO", "jdbc.busy_timeout": "60000"}
_IN_JVM = {"aws.accessKeyId": "key", "aws.secretAccessKey": "secret"}
_IN_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}
Lake = Callable[[SparkSession, Path, pytest.MonkeyPatch], AbstractContextManager[Working]]


@contextmanager
def rest(spark: SparkSession, directory: Path, _: pytest.MonkeyPatch) -> Iterator[Working]:
    with (
        rest_server(directory, directory.as_uri()) as uri,
        Working.on(spark, directory, "rest", {"uri": uri}, directory.as_uri()) as working,
    ):
        yield working


@contextmanager
def without_version_3(spark: SparkSession, directory: Path, _: pytest.MonkeyPatch) -> Iterator[Working]:
    with (
        rest_server(directory, directory.as_uri()) as uri,
        limited_catalog.limited(uri, limited_catalog.without_version_3) as limited_uri,
        Working.on(spark, directory, "rest", {"uri": limited_uri}, directory.as_uri()) as working,
    ):
        yield working


@contextmanager
def s3_tables(spark: SparkSession, directory: Path, patch: pytest.MonkeyPatch) -> Iterator[Working]:
    with s3_server(has_table_buckets=True) as store:
        index = f"{store.create_bucket('lake-index')}/index"
        of_store = {**store.properties(), "client.region": "us-east-1"}
        of_server = {**of_store, "io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
        of_server |= {"s3.path-style-access": "true"}
        jars = cached_jars(jars_folder(os.environ), own_jars())  # which have S3FileIO
        signatures = Signatures("s3tables", "us-east-1")
        ((key_id, secret),) = signatures.secrets.items()
        signing = {"rest.access-key-id": key_id, "rest.secret-access-key": secret}
        signing |= {"rest.sigv4-enabled": "true", "rest.signing-name": "s3tables"}
        properties = {"rest.signing-region": "us-east-1", **_hidden(of_store | signing, patch)}
        properties["warehouse"] = "arn:aws:s3tables:us-east-1:123456789012:bucket/lake"
        with (
            rest_server(directory, "s3://nowhere", of_server, jars) as uri,
            limited_catalog.limited(uri, limited_catalog.s3_tables(store)) as limited_uri,
            signed_only(limited_uri, signatures) as properties["uri"],
            Working.on(spark, directory, "rest", properties, "s3://", index=index) as working,
        ):
            yield working
        assert signatures.seen
        assert signatures.refused == []


@contextmanager
def vending(spark: SparkSession, directory: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[Working, Aws]]:
    """Of a REST catalog that vends all that opens the files of its tables, and these sessions."""
    with s3_server() as store:
        bucket, index = store.create_bucket("lake"), f"{store.create_bucket('lake-index')}/index"
        of_server = {**store.properties(), "client.region": "us-east-1", "s3.path-style-access": "true"}
        of_server |= {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
        jars = cached_jars(jars_folder(os.environ), own_jars())  # which have S3FileIO
        of_index = {f"index.{key}": value for key, value in store.properties().items()}
        properties = {"header.X-Iceberg-Access-Delegation": "vended-credentials", **_hidden(of_index, patch)}
        properties |= {"client.region": "us-east-1", "s3.path-style-access": "true"}
        sessions = Aws(store.port)
        vend = limited_catalog.vending(lambda: vended(sessions), bucket)
        with (
            rest_server(directory, f"{bucket}/warehouse", of_server, jars) as uri,
            limited_catalog.limited(uri, lambda _, __, body: body, vend) as properties["uri"],
            sessions_only(store.port, sessions) as port,
        ):
            properties["s3.endpoint"] = f"http://127.0.0.1:{port}"
            with Working.on(spark, directory, "rest", properties, "s3://", index=index) as working:
                yield working, sessions


@contextmanager
def hive(spark: SparkSession, directory: Path, _: pytest.MonkeyPatch) -> Iterator[Working]:
    with hive_metastore(directory) as uri:
        properties = {"uri": uri, "warehouse": directory.as_uri()}
        properties |= {"table-default.engine.hive.lock-enabled": "false"}  # it has no tables for locks
        with Working.on(spark, directory, "hive", properties, directory.as_uri()) as working:
            yield working


@contextmanager
def glue(spark: SparkSession, directory: Path, patch: pytest.MonkeyPatch) -> Iterator[Working]:
    """Of moto's server, as is the store. Java has its credentials from its JVM."""
    system: Any = spark.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]
    with s3_server() as server:
        bucket, endpoint = server.create_bucket("lake"), f"http://127.0.0.1:{server.port}"
        for name, value in _IN_ENVIRONMENT.items():
            patch.setenv(name, value)
        for name, value in _IN_JVM.items():
            system.setProperty(name, value)
        properties = {"warehouse": f"{bucket}/warehouse", "glue.endpoint": endpoint, "s3.endpoint": endpoint}
        properties |= {"glue.region": "us-east-1", "s3.region": "us-east-1"}
        _begin(properties["warehouse"], server.properties())
        try:
            with Working.on(spark, directory, "glue", properties, bucket, index=f"{bucket}/index") as working:
                yield working
        finally:
            for name in _IN_JVM:
                system.clearProperty(name)


@contextmanager
def hadoop(spark: SparkSession, directory: Path, _: pytest.MonkeyPatch) -> Iterator[Working]:
    properties = {"warehouse": (directory / "lake").as_uri()}
    _begin(properties["warehouse"], {})
    with Working.on(spark, directory, "hadoop", properties, directory.as_uri()) as working:
        yield working


@contextmanager
def s3(
    spark: SparkSession, directory: Path, patch: pytest.MonkeyPatch, *, denies_deletes: bool = False
) -> Iterator[Working]:
    with s3_server(denies_deletes=denies_deletes) as server:
        bucket = server.create_bucket("lake")
        java = {
            "s3.endpoint": f"http://127.0.0.1:{server.port}",
            "s3.path-style-access": "true",
            "s3.access-key-id": "key",
            "s3.secret-access-key": "secret",
            "client.region": "us-east-1",
        }
        with _in_database(spark, directory, patch, ObjectStore(bucket, server.properties(), java)) as working:
            yield working


@contextmanager
def google(spark: SparkSession, directory: Path, patch: pytest.MonkeyPatch) -> Iterator[Working]:
    with google_store() as store, _in_database(spark, directory, patch, store) as working:
        yield working


@contextmanager
def azure(spark: SparkSession, directory: Path, patch: pytest.MonkeyPatch) -> Iterator[Working]:
    with azure_store() as store, _in_database(spark, directory, patch, store) as working:
        yield working


@contextmanager
def _in_database(
    spark: SparkSession, directory: Path, patch: pytest.MonkeyPatch, store: ObjectStore
) -> Iterator[Working]:
    """A catalog in a database, whose tables and indexes lie on a store."""
    name, warehouse = f"accepted{next(_numbers)}", f"{store.location}/warehouse"
    _begin(warehouse, store.properties)
    database = f"{directory}/catalog.db"
    java = _RESOLVING | store.java_properties
    register_jdbc_catalog(spark, name, f"jdbc:sqlite:{database}", warehouse, java)
    spark.sql(f"SHOW NAMESPACES IN {name}").collect()  # makes the catalog's tables
    properties = {"uri": f"sqlite:///{database}", "warehouse": warehouse, **_hidden(store.properties, patch)}
    properties["catalog_name"] = name
    index = f"{store.location}/index"
    with Working.on(spark, directory, "sql", properties, store.location, index=index) as working:
        yield working


def _begin(warehouse: str, properties: Mapping[str, str]) -> None:
    """Something lies there, as in any warehouse that is in use: a store has no empty folders."""
    Storage(properties).write(f"{warehouse}/there", pa.py_buffer(b"of somebody else"))


def _hidden(properties: Mapping[str, str], patch: pytest.MonkeyPatch) -> dict[str, str]:
    """With references in the place of secrets."""
    told = {}
    for number, (key, value) in enumerate(properties.items()):
        patch.setenv(f"LAKE_{number}", value)
        told[key] = f"env:LAKE_{number}" if key.startswith(_SECRETS) else value
    return told
