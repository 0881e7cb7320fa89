"""Iceberg's Java finds who this machine is on AWS where Python does, and assumes the role of a record."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.aws import KINDS, ROLE, SHOWN, Aws, aws, environment, vended
from tests.factories import TableBuilder
from tests.http_server import Answer, Request, answering, rest_catalog
from tests.thorough import first_always
from trust.egress import Egress
from worker.spark.jvm import java_map
from worker.table.catalogs import (
    file_io_properties,
    java_properties,
    load_table,
)

pytestmark = pytest.mark.integration

# A JVM that runs can't be given variables; the SDK takes these for the same.
_IN_A_JVM = {
    "AWS_ACCESS_KEY_ID": "aws.accessKeyId",
    "AWS_SECRET_ACCESS_KEY": "aws.secretAccessKey",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "aws.webIdentityTokenFile",
    "AWS_ROLE_ARN": "aws.roleArn",
    "AWS_PROFILE": "aws.profile",
    "AWS_CONFIG_FILE": "aws.configFile",
    "AWS_SHARED_CREDENTIALS_FILE": "aws.sharedCredentialsFile",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "aws.containerCredentialsFullUri",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT": "aws.ec2MetadataServiceEndpoint",
    "AWS_EC2_METADATA_DISABLED": "aws.disableEc2Metadata",
    "AWS_ENDPOINT_URL_STS": "aws.endpointUrlSts",
    "AWS_REGION": "aws.region",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    with aws() as server:
        server.files["lake/a"] = b"content"
        yield server


@contextmanager
def being(spark: SparkSession, given: dict[str, str]) -> Iterator[None]:
    system: Any = spark.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]
    for name, value in given.items():
        system.setProperty(_IN_A_JVM[name], value)
    try:
        yield
    finally:
        for name in given:
            system.clearProperty(_IN_A_JVM[name])


def opened(spark: SparkSession, server: Aws, kind: str = "sql", **record: str) -> Any:
    """Iceberg's FileIO, as Java makes it for a catalog."""
    given = {"uri": "sqlite:////c.db", "s3.endpoint": server.url, "s3.region": "eu-central-1", **record}
    jvm: Any = spark.sparkContext._jvm
    io = jvm.org.apache.iceberg.aws.s3.S3FileIO()
    io.initialize(java_map(jvm, java_properties(kind, given)))
    return io


@pytest.mark.parametrize("kind", KINDS)
def test_java_finds_each_identity_of_a_machine(
    spark: SparkSession, server: Aws, tmp_path: Path, kind: str
) -> None:
    with being(spark, environment("none", server, tmp_path) | environment(kind, server, tmp_path)):
        io = opened(spark, server)
        assert io.newInputFile("s3://lake/a").getLength() == len(b"content")
        io.close()
    assert server.used[-1].startswith(SHOWN[kind])


@pytest.mark.parametrize("first", [kind for kind in KINDS if kind != "profile with a role"])
def test_java_tries_them_in_the_same_order(
    spark: SparkSession, server: Aws, tmp_path: Path, first: str
) -> None:
    for profile in ("profile", "profile with a role"):
        order = [kind for kind in KINDS if not kind.startswith("profile") or kind == profile]
        if first in order:
            given = environment("none", server, tmp_path)
            for kind in order[order.index(first) :]:
                given |= environment(kind, server, tmp_path)
            with being(spark, given):
                io = opened(spark, server)
                assert io.newInputFile("s3://lake/a").getLength() == len(b"content")
                io.close()
            assert server.used[-1].startswith(SHOWN[first])


def test_java_assumes_the_role_of_a_record(spark: SparkSession, server: Aws, tmp_path: Path) -> None:
    with being(spark, environment("none", server, tmp_path) | environment("web identity", server, tmp_path)):
        for given in (
            {"client.role-arn": f"{ROLE}/of-record"},
            {"client.assume-role.arn": f"{ROLE}/guarded", "client.assume-role.external-id": "external"},
        ):
            io = opened(spark, server, **given)
            assert io.newInputFile("s3://lake/a").getLength() == len(b"content")
            io.close()
            assert server.used[-1].startswith("role-")
            assert server.asked_by[server.used[-1]].startswith("web-irsa-")
    vending = {"client.role-arn": ROLE, "header.X-Iceberg-Access-Delegation": "vended-credentials"}
    assert "client.factory" not in java_properties("rest", {"uri": server.url, **vending})


def test_java_renews_what_ends(spark: SparkSession, server: Aws, tmp_path: Path) -> None:
    with being(spark, environment("none", server, tmp_path) | environment("web identity", server, tmp_path)):
        io = opened(spark, server)
        server.lifetime /= 3600
        try:
            for _ in range(2):
                assert io.newInputFile("s3://lake/a").getLength() == len(b"content")
                server.over()
        finally:
            server.lifetime *= 3600
        io.close()
    assert server.used[-1] != server.used[-2]


@first_always("where", ["config", "storage-credentials"])
def test_java_has_anew_what_a_catalog_vends(
    spark: SparkSession, server: Aws, table_name: str, where: str
) -> None:
    """A catalog that says when it ends, and nowhere else to ask for it."""
    server.used.clear()
    server.refused.clear()
    metadata = TableBuilder.create(spark, table_name).metadata.model_dump(mode="json", by_alias=True)

    def load(_: Request) -> Answer:
        keys = vended(server, timedelta(seconds=1))
        others = [{"prefix": "s3://other/", "config": keys}, {"prefix": "s3://lake/", "config": keys}]
        given = {"config": keys} if where == "config" else {"config": {}, where: others}
        return Answer({"metadata-location": "s3://lake/metadata.json", "metadata": metadata, **given})

    with answering(rest_catalog() | {"/v1/namespaces/db/tables/t": load}) as catalog:
        given = {"uri": catalog.url, "s3.endpoint": server.url, "s3.region": "eu-central-1"}
        given["header.X-Iceberg-Access-Delegation"] = "vended-credentials"
        table = load_table(
            spark.sparkContext._jvm, "rest", "c", given, ["db", "t"], egress=Egress(("127.0.0.0/8",))
        )
        for _ in range(2):
            assert table.io().newInputFile("s3://lake/a").getLength() == len(b"content")
            server.over()
            time.sleep(1.1)  # what was told is over then
        travels = file_io_properties(table)
    assert server.refused == []
    assert len(set(server.used)) >= 2
    assert not [name for name in travels if "refresh" in name]
