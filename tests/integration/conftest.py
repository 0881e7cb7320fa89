"""Real processes for the tests of the whole: Spark and DuckDB as readers, Flink as writer, `icestream up`."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests import maven, readers
from tests.factories import Catalog, TableBuilder, sqlite_catalog
from tests.faults.live_files import pytest_runtest_call as pytest_runtest_call
from tests.faults.live_files import pytest_runtest_setup as pytest_runtest_setup
from tests.integration import upsert_stream
from tests.integration.icestream import Icestream, running
from tests.spark import spark as spark

_numbers = count(1)


@pytest.fixture
def duckdb_rows() -> Callable[[TableBuilder], Counter[tuple[Any, ...]]]:
    """Reads a table's current rows with DuckDB, which shares no code with Iceberg's own readers."""
    return readers.duckdb_rows


@pytest.fixture(scope="session")
def flink_class_path() -> str:
    return maven.build(upsert_stream.PROJECT)


@pytest.fixture(scope="session")
def icestream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Icestream]:
    with running(Icestream(tmp_path_factory.mktemp("icestream"), tmp_path_factory.getbasetemp())) as service:
        yield service


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Catalog:
    """A catalog of the test's own, which Icestream does not know yet."""
    return sqlite_catalog(spark, f"lake{next(_numbers)}", tmp_path)


@pytest.fixture
def registered(icestream: Icestream, catalog: Catalog) -> Catalog:
    """The test's catalog, registered with Icestream."""
    icestream.register(catalog)
    return catalog
