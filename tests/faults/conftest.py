"""Spark, a catalog and a cluster of workers for the faults of tables, with the worker's other fixtures."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog, sqlite_catalog
from tests.faults.cluster import Cluster
from tests.faults.live_files import pytest_runtest_call as pytest_runtest_call
from tests.faults.live_files import pytest_runtest_setup as pytest_runtest_setup
from tests.faults.recovery import TALLY
from tests.faults.subjects import Subject, Subjects
from tests.spark import spark as spark
from tests.worker.conftest import exactly as exactly
from tests.worker.conftest import jobs as jobs
from tests.worker.conftest import table_name as table_name


@pytest.fixture(autouse=True)
def tally(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test injected and saw, for tests.faults.figures."""
    yield
    request.node.user_properties.extend(TALLY.take())


@pytest.fixture(scope="session")
def catalog(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """The catalog that Spark knows as `faults`."""
    # Its database is locked for a moment at a time: writers wait for each other, as those of a server do.
    spark.conf.set("spark.sql.catalog.faults.jdbc.busy_timeout", "60000")
    return sqlite_catalog(spark, "faults", tmp_path_factory.mktemp("faults"))


# Whatever is large is taken from the system when it is needed, and given back when it isn't.
EXACT_MEMORY = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_MMAP_THRESHOLD_": str(64 * 1024)}


@pytest.fixture(scope="package")
def cluster(catalog: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all files whose tests do the same to its workers: these take long to start, and never rest."""
    allowed = [tmp_path_factory.getbasetemp().as_uri()]
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), allowed, environment=EXACT_MEMORY)
    try:
        cluster.register(catalog)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="package")
def subjects(cluster: Cluster, spark: SparkSession, catalog: Catalog) -> Subjects:
    """One table of each format version and use; every case adds to it.

    One whose rows come by a staging branch is of a use of its own: it has snapshots that erasures leave.

    A process that ran tests of other packages in between begins anew, with a cluster and tables of its own.
    """
    known: dict[str, Subject] = {}

    def subject(format_version: int, use: str = "v") -> Subject:
        name = f"{catalog.name}.{cluster.directory.name}.{use}{format_version}"
        if name not in known:
            known[name] = Subject(cluster, spark, name, format_version)
        return known[name]

    return subject
