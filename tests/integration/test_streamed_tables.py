"""Tables that Flink wrote: converted over HTTP, read by Spark and DuckDB, and checked by arithmetic."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.sql import SparkSession

from tests.factories import (
    Catalog,
    TableBuilder,
    equality_delete_files,
    live_delete_files,
    visible_rows,
)
from tests.integration.icestream import Icestream, Json
from tests.integration.upsert_stream import COLUMNS, UpsertStream
from tests.patience import wait_until
from tests.thorough import V3_FIRST

pytestmark = pytest.mark.integration

DuckDBRows = Callable[[TableBuilder], Counter[tuple[Any, ...]]]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("format_version", "partitioned", "key"),
    list(product((2, 3), (False, True), (("id",), ("tenant", "id")))),
)
def test_streamed_table_keeps_its_rows_and_loses_its_equality_deletes(
    format_version: Literal[2, 3],
    partitioned: bool,
    key: tuple[str, ...],
    spark: SparkSession,
    duckdb_rows: DuckDBRows,
    icestream: Icestream,
    registered: Catalog,
    flink_class_path: str,
    tmp_path: Path,
) -> None:
    several = len(key) > 1
    stream = UpsertStream(
        records=20_000,
        keys=4_000,
        key=key,
        seed=format_version,
        checkpoints=5,
        mode="changelog" if partitioned != several else "upsert",
    )
    table = _create(spark, registered, format_version, _partitioning(key) if partitioned else ())
    with stream.start(flink_class_path, registered, "db.t", tmp_path / "flink.log") as running:
        running.finish()
    expected = stream.expected_rows()
    pending = equality_delete_files(spark, table.identifier)
    streamed_snapshot_id = table.snapshot_id
    assert len(pending) >= stream.checkpoints
    assert visible_rows(spark, table.identifier) == expected

    table_id = icestream.enroll(registered, "db.t")
    indexed = icestream.run(table_id, "index")
    assert _sum(indexed, "files_indexed") == len(table.data_file_paths)

    converted = icestream.run(table_id, "convert")
    assert converted["equality_delete_files_removed"] == len(pending)
    assert converted["equality_deletes_resolved"] == sum(file["record_count"] for file in pending)
    assert converted["unconvertible"] == []
    assert converted["iceberg_snapshot_id_before"] == streamed_snapshot_id
    assert converted["iceberg_snapshot_id_after"] == table.snapshot_id
    assert [set(key_set["columns"]) for key_set in converted["key_sets"]] == [set(key)]
    left = live_delete_files(spark, table.identifier)
    assert {file["content"] for file in left} == {1}
    assert {file["file_format"] for file in left} == {"PARQUET" if format_version == 2 else "PUFFIN"}
    assert visible_rows(spark, table.identifier) == expected
    assert visible_rows(spark, table.identifier, snapshot_id=streamed_snapshot_id) == expected
    assert duckdb_rows(table) == expected

    again = icestream.run(table_id, "convert")
    assert (again["commits"], again["iceberg_snapshot_id_after"]) == (0, None)
    assert table.snapshot_id == converted["iceberg_snapshot_id_after"]
    assert _sum(icestream.run(table_id, "index"), "files_indexed") == 0
    _check_history(icestream, table_id, ["index", "convert", "convert", "index"])
    _check_health(icestream, table_id, table, entries=_sum(indexed, "rows_indexed"))


@pytest.mark.exhaustive
@V3_FIRST
def test_table_is_converted_by_policy_while_flink_writes_it(
    format_version: Literal[2, 3],
    spark: SparkSession,
    duckdb_rows: DuckDBRows,
    icestream: Icestream,
    registered: Catalog,
    flink_class_path: str,
    tmp_path: Path,
) -> None:
    eager = {
        "index": {"enabled": True, "data_files": 4, "age_seconds": 3},
        "convert": {"enabled": True, "delete_files": 2, "age_seconds": 3},
        "compact": {"enabled": False},
        "verify": {"enabled": False},
    }
    policy = icestream.post("/policies", {"name": f"eager-v{format_version}", "settings": eager})
    stream = UpsertStream(
        records=100_000,
        keys=20_000,
        seed=10,
        checkpoints=20,
        checkpoint_milliseconds=1500,
        key=("tenant", "id"),
        parts=3,
    )
    table = _create(spark, registered, format_version, ("tenant",))
    with stream.start(flink_class_path, registered, "db.t", tmp_path / "flink.log") as running:
        running.wait_for_commits(1)
        table_id = icestream.enroll(registered, "db.t", policy=policy["name"])
        for _ in range(1, stream.parts):
            known = _commits_by_icestream(table).count(True)
            wait_until(lambda: _commits_by_icestream(table).count(True) > known, "a conversion by policy")  # noqa: B023
            running.go_on()
        running.finish()

    expected = stream.expected_rows()
    assert visible_rows(spark, table.identifier) == expected
    ours = [is_ours for is_ours in _commits_by_icestream(table) if is_ours is not None]
    first, last = ours.index(False), len(ours) - 1 - ours[::-1].index(False)
    assert ours[first:last].count(True) >= 2, "no conversion came between Flink's commits"

    wait_until(
        lambda: not equality_delete_files(spark, table.identifier), "the policy to convert what is left"
    )
    wait_until(lambda: not _active(icestream, table_id), "the last job to end")
    assert visible_rows(spark, table.identifier) == expected
    assert duckdb_rows(table) == expected
    jobs = icestream.jobs(table_id)
    # The policy may have started the next one meanwhile.
    assert {job["status"] for job in jobs} <= {"succeeded", "queued", "running"}, [j["error"] for j in jobs]
    assert {job["kind"] for job in jobs} == {"index", "convert"}  # what the policy leaves to run by itself
    assert "request" not in {job["trigger"] for job in jobs}
    _check_health(icestream, table_id, table)


@pytest.mark.exhaustive
@pytest.mark.parametrize("format_version", [2, 3])
def test_conversions_on_request_win_against_a_running_writer(
    format_version: Literal[2, 3],
    spark: SparkSession,
    duckdb_rows: DuckDBRows,
    icestream: Icestream,
    registered: Catalog,
    flink_class_path: str,
    tmp_path: Path,
) -> None:
    """Each of them commits, however fast Flink does; none has an index to help it."""
    stream = UpsertStream(records=120_000, keys=20_000, seed=20, checkpoints=40, mode="changelog", parts=4)
    table = _create(spark, registered, format_version, ())
    conversions = []
    with stream.start(flink_class_path, registered, "db.t", tmp_path / "flink.log") as running:
        running.wait_for_commits(1)
        table_id = icestream.enroll(registered, "db.t")
        for part in range(stream.parts):
            if part:
                running.go_on()
            wait_until(lambda: equality_delete_files(spark, table.identifier), "equality deletes of Flink's")
            conversions.append(icestream.run(table_id, "convert"))
        running.finish()
    assert all(conversion["commits"] >= 1 for conversion in conversions), conversions
    icestream.run(table_id, "convert")
    assert equality_delete_files(spark, table.identifier) == []
    assert visible_rows(spark, table.identifier) == stream.expected_rows()
    assert duckdb_rows(table) == stream.expected_rows()


def _create(
    spark: SparkSession, catalog: Catalog, format_version: Literal[2, 3], partitioned_by: Sequence[str]
) -> TableBuilder:
    return TableBuilder.create(
        spark,
        f"{catalog.name}.db.t",
        COLUMNS,
        format_version=format_version,
        partitioned_by=partitioned_by,
    )


def _partitioning(key: tuple[str, ...]) -> Sequence[str]:
    """A partition must be a function of the key, or the writer could not find a key's older rows."""
    return ("tenant",) if "tenant" in key else ("bucket(4, id)",)


def _sum(result: Json, figure: str) -> int:
    return sum(key_set[figure] for key_set in result["key_sets"])


def _active(icestream: Icestream, table_id: str) -> list[Json]:
    return [job for job in icestream.jobs(table_id) if job["status"] in ("queued", "running")]


def _commits_by_icestream(table: TableBuilder) -> list[bool | None]:
    """Per snapshot, oldest first: whether Icestream made it; None if neither it nor Flink did."""
    summaries = [snapshot.summary for snapshot in table.metadata.snapshots]
    return [
        True
        if summary is not None and "icestream.job-id" in summary.additional_properties
        else False
        if summary is not None and "flink.job-id" in summary.additional_properties
        else None
        for summary in summaries
    ]


def _check_history(icestream: Icestream, table_id: str, kinds: list[str]) -> None:
    """Each job ran once, on a worker that is named, and says what happened."""
    jobs = icestream.jobs(table_id)
    assert [job["kind"] for job in reversed(jobs)] == kinds
    for job in jobs:
        assert job["status"] == "succeeded"
        assert job["created_at"] <= job["started_at"] <= job["ended_at"]
        (attempt,) = job["attempts"]
        assert (attempt["attempt"], attempt["status"], attempt["error"]) == (1, "succeeded", None)
        assert attempt["worker_name"]
        assert job["result"]["decisions"]
        assert all(stage["seconds"] >= 0 for stage in job["result"]["stages"])
        messages = [event["message"] for event in icestream.get(f"/jobs/{job['id']}/events")["items"]]
        assert set(job["result"]["decisions"]) <= set(messages)


def _check_health(
    icestream: Icestream, table_id: str, table: TableBuilder, *, entries: int | None = None
) -> None:
    """The table is wholly converted, and health says so once it has seen the current snapshot."""

    def measured() -> Json | None:
        health = icestream.health(table_id)
        return health if health["iceberg_snapshot_id"] == table.snapshot_id else None

    health = wait_until(measured, "health of the current snapshot")
    assert health["status"] == "healthy", health["status_reason"]
    assert (health["pending_equality_delete_files"], health["pending_equality_deletes"]) == (0, 0)
    assert health["lag_seconds"] == 0
    assert health["unconvertible"] == []
    assert health["entries"] > 0
    assert health["bytes"] > 0
    assert health["sorted_runs"] > 0
    if entries is not None:
        assert (health["coverage"], health["dead_ratio"], health["entries"]) == (1, 0, entries)
