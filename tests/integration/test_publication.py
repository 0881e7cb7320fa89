"""A staging branch is published by service and worker: no snapshot of main has an equality delete."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog
from tests.integration.icestream import Icestream, Json
from tests.jobs import Jobs, SqlCatalog
from tests.patience import wait_until
from tests.staging import BRANCH, Lake, in_order, row

pytestmark = pytest.mark.integration


@pytest.fixture
def lake(spark: SparkSession, registered: Catalog, tmp_path: Path) -> Lake:
    identifier = f"{registered.name}.db.t"
    record = SqlCatalog(registered.name, registered.properties)
    return Lake(spark, Jobs(spark, record, identifier, tmp_path / "index"), identifier)


def test_a_requested_job_publishes_what_is_staged(
    icestream: Icestream, registered: Catalog, lake: Lake
) -> None:
    lake.create(*[row(n, n) for n in range(10)])
    table_id = icestream.enroll(registered, "db.t", key_sets=[["id"]])
    icestream.run(table_id, "index")
    lake.stage(*lake.table.data_files([row(20, 20)]))
    lake.upsert(row(3, 30))
    lake.delete(4, 20)

    parameters = {"from": BRANCH}
    foretold = icestream.run(table_id, "publish", dry_run=True, parameters=parameters)
    assert lake.rows() == in_order(*[row(n, n) for n in range(10)])
    result = icestream.run(table_id, "publish", parameters=parameters)

    assert lake.rows() == in_order(*[row(n, n) for n in range(10) if n not in (3, 4)], row(3, 30))
    told = ("staging_branch", "staged_snapshots", "rows_added", "rows_deleted")
    assert [result[name] for name in told] == [foretold[name] for name in told] == [BRANCH, 3, 1, 2]
    assert result["iceberg_snapshot_id_after"] == lake.table.snapshot_id
    assert result["files_cleared"] > foretold["files_cleared"] == 0
    assert icestream.run(table_id, "publish", parameters=parameters)["staged_snapshots"] == 0


def test_what_is_staged_is_published_by_itself_once_it_is_enrolled(
    icestream: Icestream, registered: Catalog, lake: Lake
) -> None:
    """The service sees what is staged, and what was published, by the table's snapshots alone."""
    lake.create(*[row(n, n) for n in range(4)], format_version=2)
    body = {"catalog": registered.name, "identifier": ["db", "t"], "publish": {"from": BRANCH}}
    table_id = icestream.post("/tables", body)["id"]
    lake.upsert(row(1, 10), row(5, 5))
    lake.upsert(row(1, 11))
    expected = in_order(row(0, 0), row(1, 11), row(2, 2), row(3, 3), row(5, 5))
    wait_until(lambda: lake.rows() == expected, "the publication")
    wait_until(lambda: not icestream.health(table_id)["staged_snapshots"], "the service to see that")
    wait_until(lambda: _is_indexed(icestream.health(table_id)), "an index by the key of the staged deletes")
    lake.upsert(row(5, 50), row(6, 6))
    more = in_order(row(0, 0), row(1, 11), row(2, 2), row(3, 3), row(5, 50), row(6, 6))
    wait_until(lambda: lake.rows() == more, "the next publication")
    jobs = [job for job in icestream.jobs(table_id) if job["kind"] == "publish"]
    assert {job["requested_by"] for job in jobs} == {"policy"}
    assert icestream.health(table_id)["pending_equality_delete_files"] == 0


def _is_indexed(health: Json) -> bool:
    return [(one["columns"], one["coverage"]) for one in health["key_sets"] if one["generation"]] == [
        (["id"], 1)
    ]
