"""Tables are maintained by service and worker, with what their policies say."""

import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog, TableBuilder, visible_rows
from tests.integration.icestream import Icestream

# By service and worker, an acceptance does all of it with every change (tests/worker/acceptance).
pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


def test_a_requested_job_lets_snapshots_expire(
    icestream: Icestream, registered: Catalog, spark: SparkSession
) -> None:
    table = TableBuilder.create(spark, f"{registered.name}.db.t", format_version=3)
    for number in range(3):
        table.append([{"id": number, "region": "eu", "value": number}])
    table_id = icestream.enroll(registered, "db.t")
    shown = visible_rows(spark, table.identifier)

    young = icestream.run(table_id, "expire_snapshots")["expiry"]
    assert (young["snapshots_expired"], young["snapshots_left"]) == (0, 3), "the policy keeps five days"
    parameters = {"older_than_seconds": 0, "retain_last": 2}
    foretold = icestream.run(table_id, "expire_snapshots", dry_run=True, parameters=parameters)["expiry"]
    assert len(table.metadata.snapshots) == 3
    told = icestream.run(table_id, "expire_snapshots", parameters=parameters)["expiry"]

    assert told == foretold
    assert (told["snapshots_expired"], told["snapshots_left"], told["manifest_lists_deleted"]) == (1, 2, 1)
    assert visible_rows(spark, table.identifier) == shown


def test_a_requested_job_writes_data_files_anew(
    icestream: Icestream, registered: Catalog, spark: SparkSession
) -> None:
    table = TableBuilder.create(spark, f"{registered.name}.db.files", format_version=3)
    for number in range(3):
        table.append([{"id": number, "region": "eu", "value": number}])
    table_id = icestream.enroll(registered, "db.files")
    shown = visible_rows(spark, table.identifier)

    parameters = {"min_input_files": 2}
    foretold = icestream.run(table_id, "rewrite_data_files", dry_run=True, parameters=parameters)[
        "data_files"
    ]
    told = icestream.run(table_id, "rewrite_data_files", parameters=parameters)["data_files"]

    assert sorted(foretold["files"]) != told["files"] == []
    assert (told["data_files_rewritten"], told["data_files_added"]) == (3, 1)
    assert len(table.data_file_paths) == 1
    assert visible_rows(spark, table.identifier) == shown
