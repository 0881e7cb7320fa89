"""Real processes for the tests of the whole: Spark and DuckDB as readers, Flink as writer, `icestream up`."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extensions
import pytest
from pyspark.sql import SparkSession

from tests import maven
from tests.factories import Catalog, TableBuilder, spark_session, sqlite_catalog
from tests.integration import upsert_stream
from tests.integration.icestream import Icestream

_numbers = count(1)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = spark_session()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def duckdb_rows() -> Callable[[TableBuilder], Counter[tuple[Any, ...]]]:
    """Read a table's current rows with DuckDB, which shares no code with Iceberg's own readers."""
    connection = duckdb.connect()
    # With it, DuckDB 1.5.5 may give a data file the vector of another one in the same Puffin file.
    connection.execute("SET enable_external_file_cache = false")
    for extension in ("avro", "iceberg"):
        duckdb_extensions.import_extension(extension, con=connection)

    def read(table: TableBuilder) -> Counter[tuple[Any, ...]]:
        query = "SELECT * FROM iceberg_scan(?)"
        return Counter(connection.execute(query, [table.metadata_location]).fetchall())

    return read


@pytest.fixture(scope="session")
def flink_class_path() -> str:
    return maven.build(upsert_stream.PROJECT)


@pytest.fixture(scope="session")
def icestream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Icestream]:
    service = Icestream(tmp_path_factory.mktemp("icestream"), tmp_path_factory.getbasetemp())
    try:
        service.start()
        yield service
        service.stop()
    finally:
        service.kill()


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Catalog:
    """A catalog of the test's own, which Icestream does not know yet."""
    return sqlite_catalog(spark, f"lake{next(_numbers)}", tmp_path)


@pytest.fixture
def registered(icestream: Icestream, catalog: Catalog) -> Catalog:
    """The test's catalog, registered with Icestream."""
    icestream.register(catalog)
    return catalog
