"""The one Spark session of all tests of a folder: a fixture that its conftest imports."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.factories import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = spark_session()
    yield session
    session.stop()
