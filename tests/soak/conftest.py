"""One Spark session and one catalog for all histories."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.factories import spark_session
from tests.soak.history import World


def pytest_configure(config: pytest.Config) -> None:
    # When Python collects a Java object in the middle of a call, py4j opens another connection and drops one.
    config.addinivalue_line("filterwarnings", "ignore:unclosed .socket.socket.*127.0.0.1:ResourceWarning")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = spark_session()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World.create(spark, tmp_path_factory.mktemp("soak"))
