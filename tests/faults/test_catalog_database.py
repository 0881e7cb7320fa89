"""A sql catalog in PostgreSQL whose network breaks in a commit: the table stays whole, the job ends it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

from tests.factories import TableBuilder, register_jdbc_catalog, visible_rows
from tests.faults.proxy import CUT, HANG, PASS, Mode, Proxy, lose
from tests.faults.tables import (
    assert_every_manifest_is_named,
    assert_next_attempt_converts,
    assert_nothing_is_left,
    commits_by_job,
    table_with_deletes,
)
from tests.jobs import Jobs, SqlCatalog
from tests.service.postgresql import running_server
from tests.thorough import exhaustive_unless
from worker.process.errors import JobError

pytestmark = pytest.mark.integration

ROWS = 60
EXPECTED = Counter((i, i) for i in range(ROWS) if i % 3)
UPDATED = b"UPDATE 1"
"""What PostgreSQL answers to the statement that makes a commit of Iceberg's."""
_numbers = count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with running_server() as url:
        yield url


@pytest.fixture
def proxy(server: str) -> Iterator[Proxy]:
    port = urlsplit(server).port
    assert port is not None
    with Proxy(port) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def warehouse(spark: SparkSession, server: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Spark knows the catalog as `database`, by a network of its own that stays well."""
    location = tmp_path_factory.mktemp("database").as_uri()
    uri = f"jdbc:postgresql://127.0.0.1:{urlsplit(server).port}/postgres"
    register_jdbc_catalog(spark, "database", uri, location, {"jdbc.user": "icestream"})
    return location


@pytest.fixture(params=[2, pytest.param(3, marks=pytest.mark.exhaustive)])
def table(request: pytest.FixtureRequest, spark: SparkSession, warehouse: str) -> TableBuilder:
    name = f"database.db.t{next(_numbers)}"
    return table_with_deletes(spark, name, request.param, ROWS)


@pytest.fixture
def jobs(spark: SparkSession, warehouse: str, proxy: Proxy, table: TableBuilder, tmp_path: Path) -> Jobs:
    uri = f"postgresql://icestream@127.0.0.1:{proxy.port}/postgres?socketTimeout=2"
    catalog = SqlCatalog("database", {"uri": uri, "warehouse": warehouse})
    return Jobs(spark, catalog, table.identifier, tmp_path)


@pytest.mark.exhaustive
def test_a_commit_whose_answer_is_lost_is_found_and_its_files_stay(
    jobs: Jobs, proxy: Proxy, table: TableBuilder, spark: SparkSession
) -> None:
    """Iceberg's connection pool repeats the statement, takes its own commit for another's and cleans up."""
    jobs.reporter.before_commit = lambda: proxy.set(lose(UPDATED))
    done = jobs.run("convert", job_id="lost")
    assert proxy.mode == PASS
    assert done.result["rows_deleted"] == ROWS // 3
    assert commits_by_job(table) == {"lost": 1}
    assert_every_manifest_is_named(table)
    assert visible_rows(spark, table.identifier) == EXPECTED
    assert_nothing_is_left(table)


# Away before the commit, in the middle of it, and after it with the answer.
OUTAGES = [
    (CUT, "commit_failed"),
    (HANG, "commit_failed"),
    (lose(UPDATED, then=CUT), "commit_state_unknown"),
    (lose(UPDATED, then=HANG), "commit_state_unknown"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("table", "outage"),
    exhaustive_unless(
        lambda case: case == (3, OUTAGES[3]), [(version, outage) for outage in OUTAGES for version in (2, 3)]
    ),
    indirect=["table"],
)
def test_a_database_that_is_away_in_a_commit_costs_an_attempt(
    outage: tuple[Mode, str], jobs: Jobs, proxy: Proxy, table: TableBuilder, spark: SparkSession
) -> None:
    mode, code = outage
    jobs.reporter.before_commit = lambda: proxy.set(mode)
    with pytest.raises(JobError) as failed:
        jobs.run("convert", job_id="broken")
    assert (failed.value.code, failed.value.retryable) == (code, True)
    assert visible_rows(spark, table.identifier) == EXPECTED

    jobs.reporter.before_commit = lambda: None
    proxy.set(PASS)
    assert_next_attempt_converts(jobs, table, "broken", EXPECTED)
