"""One Spark session and one Iceberg catalog in SQLite for all tests of the worker."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog, spark_session, sqlite_catalog

_numbers = count()


def pytest_configure(config: pytest.Config) -> None:
    # When Python collects a Java object in the middle of a call, py4j opens another connection and drops one.
    config.addinivalue_line("filterwarnings", "ignore:unclosed .socket.socket.*127.0.0.1:ResourceWarning")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = spark_session()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def catalog(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """The catalog that Spark knows as `local`."""
    return sqlite_catalog(spark, "local", tmp_path_factory.mktemp("catalog"))


@pytest.fixture
def warehouse(catalog: Catalog) -> Path:
    return Path(catalog.warehouse.removeprefix("file://"))


@pytest.fixture
def table_name(catalog: Catalog) -> str:
    """A name in `local` that no other test uses."""
    return f"{catalog.name}.db.table_{next(_numbers)}"
