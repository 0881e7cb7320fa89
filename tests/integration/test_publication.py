"""A staging branch is published by service and worker: no snapshot of main has an equality delete."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog
from tests.integration.icestream import Icestream
from tests.jobs import Jobs, SqlCatalog
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
