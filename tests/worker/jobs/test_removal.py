"""Deleting the index of a removed table, without Spark: real Paimon tables, and no Iceberg table at all."""

from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from tests.jobs import RecordingReporter
from worker.contract.control_plane import Assignment
from worker.index.key_set_index import database_name
from worker.index.warehouse import IndexWarehouse
from worker.io.storage import Storage
from worker.jobs.pipeline import run_job
from worker.process.errors import JobCancelledError
from worker.spark.tasks import TaskRunner

UUID = "0b1ad9a6-3b0e-4c5c-9d0c-5b1f0a3c9e11"


@pytest.fixture
def warehouse(tmp_path: Path) -> IndexWarehouse:
    """Holds indexes of two branches of one table."""
    warehouse = IndexWarehouse(tmp_path.as_uri(), Storage())
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False)])
    for branch in ("main", "audit"):
        for name in ("entries_1_g1", "files_1_g1"):
            warehouse.create(database_name(UUID, branch), name, schema, ["k"], {})
    return warehouse


def assignment(warehouse: IndexWarehouse) -> Assignment:
    return Assignment.model_validate(
        {
            "job": {"id": "job", "kind": "drop_index"},
            "attempt": 1,
            "lease_seconds": 30,
            "table": {"id": "t", "identifier": ["db", "gone"], "table_uuid": UUID, "branch": "main"},
            "catalog": {"name": "local", "type": "sql", "properties": {}},
            "index": {"warehouse": warehouse.location},
        }
    )


def drop(warehouse: IndexWarehouse, reporter: RecordingReporter) -> dict[str, object]:
    outcome = run_job(assignment(warehouse), cast("TaskRunner", None), reporter)
    assert outcome.health == {}
    return outcome.result


def test_the_index_of_this_branch_is_deleted_and_no_other(warehouse: IndexWarehouse, tmp_path: Path) -> None:
    reporter = RecordingReporter()
    assert drop(warehouse, reporter)["index_tables_deleted"] == 2
    assert reporter.asked_anew == 1, "no commit would stop an attempt that has lost its lease"
    assert [path.name for path in tmp_path.iterdir()] == [f"{database_name(UUID, 'audit')}.db"]
    assert reporter.decisions == ["The index of db.gone was deleted: 2 index tables."]


def test_a_repeated_attempt_finds_nothing_left_to_delete(warehouse: IndexWarehouse) -> None:
    drop(warehouse, RecordingReporter())
    assert drop(warehouse, RecordingReporter())["index_tables_deleted"] == 0


def test_a_cancelled_job_deletes_nothing(warehouse: IndexWarehouse) -> None:
    def cancelled() -> None:
        raise JobCancelledError

    reporter = RecordingReporter()
    reporter.before_commit = cancelled
    with pytest.raises(JobCancelledError):
        drop(warehouse, reporter)
    assert len(warehouse.table_names(database_name(UUID, "main"))) == 2
