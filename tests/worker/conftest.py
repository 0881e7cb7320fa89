"""One Spark session and one Iceberg catalog in SQLite for all tests of the worker."""

from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.exactness import Exactness
from tests.factories import Catalog, sqlite_catalog
from tests.faults.live_files import pytest_runtest_call as pytest_runtest_call
from tests.faults.live_files import pytest_runtest_setup as pytest_runtest_setup
from tests.jobs import Jobs
from tests.spark import spark as spark
from worker.table import manifests

_numbers = count()


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


@pytest.fixture
def jobs(spark: SparkSession, catalog: Catalog, table_name: str, tmp_path: Path) -> Jobs:
    """Jobs on the table of that name, with an index of the test's own."""
    return Jobs(spark, catalog, table_name, tmp_path / "index")


@pytest.fixture
def exactly(
    spark: SparkSession,
    jobs: Jobs,
    table_name: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Exactness:
    """Which reads manifests as if they had many files; and what is visible by Spark, in what is thorough."""
    monkeypatch.setattr(manifests, "MANY_FILES", 0)
    return Exactness(spark, jobs, table_name, request.node.get_closest_marker("thorough") is not None)
