"""What outlives the processes: history, indexes, and a job whose worker is gone."""

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog, TableBuilder, equality_delete_files, visible_rows
from tests.integration.icestream import Icestream, running
from tests.patience import wait_until

# That services and workers end and begin again is much of tests/faults; here it is `icestream up`.
pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

ROWS = 300_000


@pytest.fixture(scope="module")
def icestream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Icestream]:
    """One whose workers are soon seen as lost."""
    base = tmp_path_factory.getbasetemp()
    with running(Icestream(tmp_path_factory.mktemp("restarts"), base, lease_seconds=4)) as service:
        yield service


@pytest.fixture
def table(spark: SparkSession, registered: Catalog) -> TableBuilder:
    """Many data files, so that a job of it takes a moment."""
    return _create(spark, registered, ROWS, files=200)


@pytest.fixture
def small_table(spark: SparkSession, registered: Catalog) -> TableBuilder:
    return _create(spark, registered, ROWS // 100, files=2)


def _create(spark: SparkSession, catalog: Catalog, rows: int, files: int) -> TableBuilder:
    table = TableBuilder.create(spark, f"{catalog.name}.db.t", "id bigint", format_version=3)
    table.append(pa.table({"id": range(rows)}), files=files)
    table.delete_keys(pa.table({"id": range(0, rows, 3)}))
    return table


def test_history_and_indexes_outlive_a_restart(
    spark: SparkSession, icestream: Icestream, registered: Catalog, small_table: TableBuilder
) -> None:
    table_id = icestream.enroll(registered, "db.t")
    icestream.run(table_id, "index")
    before = icestream.jobs(table_id)
    worker_before = icestream.live_worker()["id"]

    icestream.stop()
    icestream.start()
    assert icestream.jobs(table_id) == before
    assert icestream.get(f"/tables/{table_id}")["catalog"] == registered.name
    assert [item["name"] for item in icestream.get("/catalogs", limit=100)["items"]].count("embedded") == 1

    expected = visible_rows(spark, small_table.identifier)
    converted = icestream.run(table_id, "convert")
    assert [key_set["source"] for key_set in converted["key_sets"]] == ["index"]
    assert equality_delete_files(spark, small_table.identifier) == []
    assert visible_rows(spark, small_table.identifier) == expected
    assert icestream.live_worker()["id"] != worker_before


@pytest.mark.parametrize("kind", ["index", "convert"])
def test_job_of_a_killed_worker_is_done_by_the_next_attempt(
    kind: str, spark: SparkSession, icestream: Icestream, registered: Catalog, table: TableBuilder
) -> None:
    table_id = icestream.enroll(registered, "db.t", key_sets=[["id"]])
    expected = visible_rows(spark, table.identifier)
    worker = icestream.live_worker()
    job_id = icestream.submit(table_id, kind)
    wait_until(lambda: icestream.get(f"/jobs/{job_id}")["status"] == "running", "the job to start")
    os.kill(worker["pid"], signal.SIGKILL)

    job = icestream.wait_for_job(job_id)
    assert job["status"] == "succeeded", job["error"]
    # On a machine with too much to do, a lease of these few seconds may run out once more.
    lost, *_, done = job["attempts"]
    assert (lost["status"], lost["worker_id"]) == ("lost", worker["id"])
    assert lost["error"]["code"] == "worker_lost"
    assert done["status"] == "succeeded"
    assert done["worker_id"] != worker["id"]

    _check_nothing_is_left_to_do(spark, icestream, table_id, table)
    assert visible_rows(spark, table.identifier) == expected


def test_worker_whose_spark_has_died_ends_its_attempt_and_is_replaced(
    spark: SparkSession, icestream: Icestream, registered: Catalog, table: TableBuilder
) -> None:
    table_id = icestream.enroll(registered, "db.t", key_sets=[["id"]])
    expected = visible_rows(spark, table.identifier)
    worker = icestream.live_worker()
    java = next(p for p in _descendants(worker["pid"]) if Path(f"/proc/{p}/comm").read_text() == "java\n")
    os.kill(java, signal.SIGKILL)

    job = icestream.wait_for_job(icestream.submit(table_id, "convert"))
    assert job["status"] == "succeeded", job["error"]
    # Whether the job comes before the worker knows it, or as it does, or goes to its successor at once.
    *ended, done = job["attempts"]
    assert [attempt["status"] for attempt in ended] in ([], ["released"], ["failed"])
    assert all(attempt["worker_id"] == worker["id"] for attempt in ended)
    assert all(attempt["error"]["code"] == "jvm_lost" for attempt in ended if attempt["status"] == "failed")
    assert done["worker_id"] != worker["id"]
    _check_nothing_is_left_to_do(spark, icestream, table_id, table)
    assert visible_rows(spark, table.identifier) == expected


def test_a_control_database_from_a_backup_or_made_anew_serves_tables_with_their_old_index(
    spark: SparkSession, icestream: Icestream, registered: Catalog, small_table: TableBuilder
) -> None:
    database = icestream.data_dir / "icestream.db"
    backup = icestream.data_dir / "backup.db"
    table_id = icestream.enroll(registered, "db.t", key_sets=[["id"]])
    icestream.run(table_id, "index")
    generation = icestream.run(table_id, "verify")["key_sets"][0]["generation"]
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)  # while everything runs

    def work() -> None:
        """More rows and deletes, which the old index and its next part find."""
        start = small_table.java.currentSnapshot().sequenceNumber() * ROWS
        small_table.append(pa.table({"id": range(start, start + 1000)}), files=2)
        small_table.delete_keys(pa.table({"id": [1, start + 1]}))
        expected = visible_rows(spark, small_table.identifier)
        icestream.run(table_id, "index")
        converted = icestream.run(table_id, "convert")
        assert {key_set["source"] for key_set in converted["key_sets"]} == {"index"}
        assert visible_rows(spark, small_table.identifier) == expected
        verified = icestream.run(table_id, "verify")
        (key_set,) = verified["key_sets"]
        assert (key_set["differences"], key_set["generation"]) == (0, generation), verified

    work()  # the backup knows nothing of it, nor of the addresses that it used
    icestream.stop()
    _replace(database, backup)
    icestream.start()
    work()
    icestream.stop()
    _replace(database, None)
    icestream.start()
    icestream.register(registered)
    table_id = icestream.enroll(registered, "db.t")
    work()


def _replace(database: Path, backup: Path | None) -> None:
    """As somebody does who restores it."""
    for file in database.parent.glob(f"{database.name}*"):
        file.unlink()
    if backup is not None:
        backup.rename(database)


def _descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [found for child in map(int, children) for found in (child, *_descendants(child))]


def test_paused_worker_that_wakes_up_late_changes_nothing(
    spark: SparkSession, icestream: Icestream, registered: Catalog, table: TableBuilder
) -> None:
    table_id = icestream.enroll(registered, "db.t", key_sets=[["id"]])
    expected = visible_rows(spark, table.identifier)
    sleeper = icestream.live_worker()
    job_id = icestream.submit(table_id, "convert")
    wait_until(lambda: icestream.get(f"/jobs/{job_id}")["status"] == "running", "the job to start")
    os.kill(sleeper["pid"], signal.SIGSTOP)
    try:
        with icestream.another_worker():
            job = icestream.wait_for_job(job_id)
    finally:
        os.kill(sleeper["pid"], signal.SIGCONT)
    assert job["status"] == "succeeded", job["error"]
    # The other one, too, may lose it on a machine with too much to do.
    assert {attempt["status"] for attempt in job["attempts"][:-1]} == {"lost"}
    snapshot_id = table.snapshot_id

    # The sleeper takes the next job only after it has given up the one that it lost.
    _check_nothing_is_left_to_do(spark, icestream, table_id, table)
    again = icestream.jobs(table_id)[0]["attempts"][-1]
    assert again["worker_id"] == sleeper["id"]
    assert table.snapshot_id == snapshot_id
    assert icestream.get(f"/jobs/{job_id}") == job
    assert visible_rows(spark, table.identifier) == expected


def _check_nothing_is_left_to_do(
    spark: SparkSession, icestream: Icestream, table_id: str, table: TableBuilder
) -> None:
    """Index and convert, which may find it done, and find it done then: no entry twice, no delete left."""
    icestream.run(table_id, "index")
    (key_set,) = icestream.run(table_id, "index")["key_sets"]
    assert key_set["files_indexed"] == 0
    icestream.run(table_id, "convert")
    assert equality_delete_files(spark, table.identifier) == []
    assert icestream.health(table_id)["entries"] == ROWS
