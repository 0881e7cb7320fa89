"""A REST catalog whose network or gateway breaks in a commit: the table stays whole, the job ends it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from tests.factories import Catalog, TableBuilder, visible_rows
from tests.faults.proxy import CUT, HANG, PASS, Mode, Proxy, answer, lose
from tests.faults.tables import (
    assert_every_manifest_is_named,
    assert_next_attempt_converts,
    assert_nothing_is_left,
    commits_by_job,
    table_with_deletes,
)
from tests.jobs import Jobs
from tests.rest_catalog import RestCatalog, commit_by_java, running_rest_catalog
from tests.thorough import EXHAUSTIVE, exhaustive_unless, first_always
from worker.process.errors import JobError

pytestmark = pytest.mark.integration

ROWS = 60
EXPECTED = Counter((i, i) for i in range(ROWS) if i % 3)
OURS = b"icestream.commit-id"
"""What the answer to our commit holds, and no answer before it."""
_numbers = count(1)


@pytest.fixture(scope="module")
def rest(spark: SparkSession, catalog: Catalog) -> Iterator[RestCatalog]:
    """The same tables as Spark's catalog `faults`, which stays well."""
    with (
        SqlCatalog(catalog.name, **catalog.properties) as tables,
        running_rest_catalog(tables, commit_by_java(spark, catalog.name, catalog.properties)) as rest,
    ):
        yield rest


@pytest.fixture
def proxy(rest: RestCatalog) -> Iterator[Proxy]:
    port = urlsplit(rest.url).port
    assert port is not None
    with Proxy(port) as proxy:
        yield proxy


@pytest.fixture(params=[2, 3])
def table(request: pytest.FixtureRequest, spark: SparkSession, catalog: Catalog) -> TableBuilder:
    name = f"{catalog.name}.rest.t{next(_numbers)}"
    return table_with_deletes(spark, name, request.param, ROWS)


@pytest.fixture
def jobs(spark: SparkSession, rest: RestCatalog, proxy: Proxy, table: TableBuilder, tmp_path: Path) -> Jobs:
    impatient = {"rest.client.socket-timeout-ms": "2000", "rest.client.max-retries": "1"}
    catalog = RestCatalog(rest.name, f"http://127.0.0.1:{proxy.port}", rest.requests, [], further=impatient)
    return Jobs(spark, catalog, table.identifier, tmp_path)


@pytest.mark.parametrize(
    ("table", "status"),
    exhaustive_unless(
        {(2, None), (3, 503)}.__contains__,
        [(version, status) for version in (2, 3) for status in (None, 500, 503, 504)],
    ),
    indirect=["table"],
)
def test_a_commit_whose_answer_is_lost_is_found_and_its_files_stay(
    status: int | None, jobs: Jobs, proxy: Proxy, rest: RestCatalog, table: TableBuilder, spark: SparkSession
) -> None:
    """In the network, or by a gateway that answers for the catalog. Iceberg posts the commit again on 503."""
    if status is None:
        jobs.reporter.before_commit = lambda: proxy.set(lose(OURS))
    else:
        rest.statuses_after_commit.append(status)
    done = jobs.run("convert", job_id="lost")
    assert (proxy.mode, rest.statuses_after_commit) == (PASS, [])
    assert done.result["rows_deleted"] == ROWS // 3
    assert commits_by_job(table) == {"lost": 1}
    assert_every_manifest_is_named(table)
    assert visible_rows(spark, table.identifier) == EXPECTED
    assert_nothing_is_left(table)


@pytest.mark.parametrize("table", [3], indirect=True)
def test_a_write_whose_answer_is_lost_is_found(
    jobs: Jobs, proxy: Proxy, table: TableBuilder, spark: SparkSession
) -> None:
    jobs.reporter.before_commit = lambda: proxy.set(lose(OURS))
    rows = [{"id": 1, "v": 7}, {"id": ROWS, "v": 8}]
    done = jobs.run("upsert", rows=rows, parameters={"key_columns": ["id"]}, job_id="lost")
    assert proxy.mode == PASS
    assert (done.result["rows_added"], done.result["rows_deleted"]) == (2, 1)
    assert commits_by_job(table) == {"lost": 1}
    assert_every_manifest_is_named(table)
    left = EXPECTED - Counter([(1, 1)]) + Counter([(1, 7), (ROWS, 8)])
    assert visible_rows(spark, table.identifier) == left


@pytest.mark.thorough
@pytest.mark.parametrize("table", [3], indirect=True)
@first_always("renew", [True, False], EXHAUSTIVE)
def test_a_publication_is_found_whose_answers_are_lost(
    jobs: Jobs, proxy: Proxy, table: TableBuilder, spark: SparkSession, renew: bool
) -> None:
    """Those of both commits, on either branch."""
    jobs.run("convert")
    table.java.manageSnapshots().createBranch("ingest").commit()
    rows = [{"id": 1, "v": 7}, {"id": ROWS, "v": 8}]
    table.commit(*table.data_files(rows), *table.equality_deletes([{"id": 1}, {"id": 2}]), branch="ingest")
    jobs.reporter.before_commit = lambda: proxy.set(lose(OURS))
    publish = {"from": "ingest", "renew": renew}
    done = jobs.run("publish", parameters=publish, job_id="lost").result
    assert proxy.mode == PASS
    assert (done["rows_added"], done["rows_deleted"]) == (2, 2)
    assert done["files_cleared"] > 0
    assert done["renewed"] is renew
    assert commits_by_job(table)["lost"] == 2
    assert jobs.run("publish", parameters=publish).result["staged_snapshots"] == 0
    left = EXPECTED - Counter([(1, 1), (2, 2)]) + Counter([(1, 7), (ROWS, 8)])
    assert visible_rows(spark, table.identifier) == left
    assert_nothing_is_left(table)


# Away when a job begins, before the commit, in the middle of it, and after it with the answer.
OUTAGES = [
    (2, "plan", CUT, "catalog_unreachable"),
    (2, "plan", HANG, "catalog_unreachable"),
    (3, "plan", answer(503), "catalog_unreachable"),
    (3, "commit", CUT, "commit_failed"),
    (2, "commit", HANG, "commit_failed"),
    (3, "commit", answer(503), "commit_failed"),
    (2, "commit", lose(OURS, then=CUT), "commit_state_unknown"),
    (3, "commit", lose(OURS, then=HANG), "commit_state_unknown"),
    (2, "commit", lose(OURS, then=answer(503)), "commit_state_unknown"),
]
# The rest by `make exhaustive`: clients wait and try again.
USUAL = ("commit", lose(OURS, then=answer(503)))


@pytest.mark.parametrize(
    ("table", "moment", "mode", "code"),
    exhaustive_unless(lambda case: case[1:3] == USUAL, OUTAGES),
    indirect=["table"],
)
def test_a_catalog_that_is_away_costs_an_attempt(
    moment: str, mode: Mode, code: str, jobs: Jobs, proxy: Proxy, table: TableBuilder, spark: SparkSession
) -> None:
    if moment == "plan":
        proxy.set(mode)
    else:
        jobs.reporter.before_commit = lambda: proxy.set(mode)
    with pytest.raises(JobError) as failed:
        jobs.run("convert", job_id="broken")
    assert (failed.value.code, failed.value.retryable) == (code, True)
    assert visible_rows(spark, table.identifier) == EXPECTED

    jobs.reporter.before_commit = lambda: None
    proxy.set(PASS)
    assert_next_attempt_converts(jobs, table, "broken", EXPECTED)
