"""A report names each key that more than one live row has, with the rows, and no other key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.factories import TableBuilder, garble
from tests.jobs import Jobs
from tests.thorough import first_always
from worker.index import run_files
from worker.jobs import duplicate_rows
from worker.jobs.report_duplicates import UndecidedRowsError
from worker.process.errors import JobCancelledError, JobError
from worker.spark.tasks import TaskRunner

pytestmark = pytest.mark.integration

COLUMNS = "id bigint, name string, region string, value bigint"
Place = tuple[str, int]
Duplicates = dict[tuple[Any, ...], set[Place]]


def rows(
    *ids: int | None, name: str | None = "n", region: str = "eu", value: int = 0
) -> list[dict[str, Any]]:
    return [{"id": i, "name": name, "region": region, "value": value} for i in ids]


def by_spark(spark: SparkSession, identifier: str, key: Sequence[str]) -> Duplicates:
    """What Spark shows, by key: of all deletes and formats, whatever the index says."""
    found: Duplicates = defaultdict(set)
    for row in spark.sql(f"SELECT {', '.join(key)}, _file, _pos FROM {identifier}").collect():
        found[tuple(row)[:-2]].add((row["_file"], row["_pos"]))
    return {values: places for values, places in found.items() if len(places) > 1}


def reported(result: Mapping[str, Any]) -> Duplicates:
    """What is in the report of a key set."""
    if not result["report"]:
        assert (result["duplicate_keys"], result["duplicate_rows"], result["duplicates"]) == (0, 0, [])
        return {}
    pattern = Path(result["report"].removeprefix("file://"))
    told = [
        row for path in sorted(pattern.parent.glob(pattern.name)) for row in pq.read_table(path).to_pylist()
    ]
    found = {
        tuple(row["key"].values()): {(one["data_file"], one["position"]) for one in row["examples"]}
        for row in told
    }
    assert len(found) == len(told) == result["duplicate_keys"]
    assert sum(row["live_rows"] for row in told) == result["duplicate_rows"] == sum(map(len, found.values()))
    assert {tuple(one["key"].values()) for one in result["duplicates"]} <= found.keys()
    return found


def of_key(result: Mapping[str, Any], *columns: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(one for one in result["key_sets"] if one["columns"] == list(columns))
    return found


@pytest.fixture(autouse=True)
def every_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is in the reports of these tests."""
    monkeypatch.setattr(duplicate_rows, "REPORTED_PLACES", 1_000)


@pytest.fixture
def table(spark: SparkSession, table_name: str) -> TableBuilder:
    """Two partitions, and each way in which a second row of a key is live or not."""
    table = TableBuilder.create(spark, table_name, COLUMNS, partitioned_by=["region"])
    table.append(rows(*range(20), None), files=2)
    return table


def fill(table: TableBuilder) -> None:
    table.append(rows(1, 2, 3, 4, 5, None, value=1))
    again = table.append(rows(6, 7, 8, 9, region="us", value=1))
    table.append(rows(10, 11, name=None, value=1))
    table.append(rows(10, 11, name=None, value=2))
    table.delete_positions({again[0]: [0]})  # 6 is left alone
    table.delete_keys(rows(1, 12), equality_columns=["id"], partition_of={"region": "eu"})
    table.append(rows(12, value=3))
    table.delete_keys(rows(10), equality_columns=["id", "name"])  # of a name that none of the two has
    table.delete_keys([{"value": 1}], equality_columns=["value"], partition_of={"region": "us"})


@first_always("indexed", ["in runs", "in part", "not at all"])
def test_the_report_is_what_a_reader_counts(
    spark: SparkSession, table: TableBuilder, jobs: Jobs, indexed: str
) -> None:
    declared = [["id"], ["id", "name"], ["value"]]
    if indexed != "not at all":
        jobs.run("index", key_sets=declared)
    fill(table)
    if indexed == "in runs":
        jobs.run("index", key_sets=declared)
    table.append(rows(13, 14, value=7))
    if indexed == "in runs":
        jobs.run("index", key_sets=declared)
    before = table.snapshot_id
    result = jobs.run("report_duplicates", key_sets=declared).result
    assert table.snapshot_id == before == result["iceberg_snapshot_id"]
    for key in declared:
        found = of_key(result, *key)
        expected = by_spark(spark, table.identifier, key)
        assert expected
        assert reported(found) == expected
        assert found["rows_checked"] == 38
        assert (found["files_covered"] == found["files_checked"]) == (indexed == "in runs")
    assert (None,) in reported(of_key(result, "id"))
    # Once all is converted, the same rows are live.
    pending = [reported(of_key(result, *key)) for key in declared]
    jobs.run("convert", key_sets=declared)
    after = jobs.run("report_duplicates", key_sets=declared).result
    assert [reported(of_key(after, *key)) for key in declared] == pending


def test_ranges_of_keys_and_files_sorted_anew_make_no_difference(
    spark: SparkSession, table: TableBuilder, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for region in ("us", "asia", "africa"):
        table.append(rows(*range(40), region=region))
    table.append(rows(*[5] * 30, value=9))
    jobs.run("index", key_sets=[["id"]])
    monkeypatch.setattr(run_files, "ROW_GROUP_ROWS", 40)
    monkeypatch.setattr("worker.jobs.report_duplicates.RUN_ROWS", 15)
    jobs.run("rebuild", key_sets=[["id"]])
    monkeypatch.setattr(run_files, "ROW_GROUP_ROWS", 4)
    table.append(rows(3, 4, 100))
    with patch.object(
        duplicate_rows.SortTask, "run", autospec=True, side_effect=duplicate_rows.SortTask.run
    ) as sort:
        (found,) = jobs.run("report_duplicates", key_sets=[["id"]]).result["key_sets"]
    assert sort.called
    assert reported(found) == by_spark(spark, table.identifier, ["id"])
    assert len(list(jobs.index.glob("*.db/duplicates/*.parquet"))) > 2
    assert [*jobs.index.glob("*.db/duplicates/bucket-0/*")] == []


def test_keys_are_compared_in_the_worker_up_to_more_rows_than_are_looked_up_there(
    table: TableBuilder, jobs: Jobs, spark: SparkSession
) -> None:
    jobs.run("index", key_sets=[["id"]])
    for local_rows, is_on_spark in ((20, False), (1, True)):  # of 21 rows
        jobs.runner = TaskRunner(spark, local_rows=local_rows)
        stages = {stage["name"]: stage for stage in jobs.run("report_duplicates").result["stages"]}
        of_ranges = stages["find_duplicates"]
        assert (of_ranges["tasks_on_spark"] > 0, of_ranges["tasks_in_driver"] > 0) == (
            is_on_spark,
            not is_on_spark,
        )


def test_a_data_file_that_is_live_twice_has_each_row_twice(
    spark: SparkSession, table_name: str, jobs: Jobs
) -> None:
    table = TableBuilder.create(spark, table_name, "id bigint, value string")
    files = table.data_files([{"id": 1, "value": "a"}, {"id": 2, "value": "b"}])
    table.commit(*files)
    table.commit(*table.equality_deletes([{"id": 2}]))
    table.commit(*files)
    for _ in ("scanned", "indexed"):
        (found,) = jobs.run("report_duplicates", key_sets=[["id"]]).result["key_sets"]
        (one,) = found["duplicates"]
        assert (one["key"], one["live_rows"]) == ({"id": 1}, 2)
        assert one["places"] == [{"data_file": files[0].path, "position": 0}] * 2
        jobs.run("index", key_sets=[["id"]])


def test_a_position_behind_the_last_row_hides_no_row_of_the_next_file(
    spark: SparkSession, table_name: str, jobs: Jobs
) -> None:
    table = TableBuilder.create(spark, table_name, "id bigint")
    for path in [*table.append([{"id": 1}]), *table.append([{"id": 1}])]:
        table.delete_positions({path: [1, 2]})
    (found,) = jobs.run("report_duplicates", key_sets=[["id"]]).result["key_sets"]
    assert found["duplicate_rows"] == 2


def test_a_branch_has_a_report_of_its_own(spark: SparkSession, table_name: str, jobs: Jobs) -> None:
    table = TableBuilder.create(spark, table_name, "id bigint")
    table.append([{"id": 1}])
    table.java.manageSnapshots().createBranch("dev").commit()
    table.commit(*table.data_files([{"id": 1}]), branch="dev")
    for branch, rows_found in (("dev", 2), ("main", 0)):
        (found,) = jobs.run("report_duplicates", key_sets=[["id"]], branch=branch).result["key_sets"]
        assert found["duplicate_rows"] == rows_found
    assert len({path.parent.parent for path in jobs.index.glob("*.db/duplicates/*.parquet")}) == 1


def test_rows_that_cannot_be_read_are_never_left_out_in_silence(
    spark: SparkSession, table_name: str, jobs: Jobs
) -> None:
    table = TableBuilder.create(spark, table_name, "id bigint")
    table.append([{"id": 1}])
    jobs.run("index", key_sets=[["id"]])
    (path,) = table.delete_keys([{"id": 2}])
    _lose(path)
    with pytest.raises(UndecidedRowsError, match=Path(path).name):
        jobs.run("report_duplicates")
    other = TableBuilder.create(spark, f"{table_name}_2", "id bigint")
    (path,) = other.append([{"id": 1}])
    _lose(path)
    jobs.identifier = f"{table_name}_2".split(".")[1:]
    with pytest.raises(UndecidedRowsError, match=Path(path).name):
        jobs.run("report_duplicates", key_sets=[["id"]])
    assert [*jobs.index.glob("*.db/duplicates/**/*.parquet")] == []


def _lose(path: str) -> None:
    Path(path.removeprefix("file:")).unlink()


def test_a_damaged_index_is_not_asked(spark: SparkSession, table_name: str, jobs: Jobs) -> None:
    table = TableBuilder.create(spark, table_name, "id bigint")
    table.append([{"id": i % 150} for i in range(200)])
    jobs.run("index", key_sets=[["id"]])
    for path in jobs.index.glob("*.db/entries_*/bucket-0/*.parquet"):
        garble(path)
    (found,) = jobs.run("report_duplicates").result["key_sets"]
    assert reported(found) == by_spark(spark, table.identifier, ["id"])
    assert any("the index can't be used, so data files are read" in said for said in jobs.reporter.decisions)


def test_the_newest_report_is_kept_and_goes_with_the_index(
    spark: SparkSession, table_name: str, jobs: Jobs
) -> None:
    table = TableBuilder.create(spark, table_name, "id bigint")
    table.append([{"id": 1}, {"id": 1}])
    first = jobs.run("report_duplicates", key_sets=[["id"]]).result["key_sets"][0]["report"]
    (folder,) = jobs.index.glob("*.db/duplicates")
    (folder / "bucket-0").mkdir(exist_ok=True)
    left = folder / "bucket-0" / "data-of-an-attempt-that-died.parquet"
    left.touch()
    second = jobs.run("report_duplicates", key_sets=[["id"]]).result["key_sets"][0]["report"]
    assert first != second
    assert not left.exists()
    assert [path.name for path in folder.glob("*.parquet")] == [Path(second).name.replace("*", "00000")]
    jobs.run("index", key_sets=[["id"]])
    uuid = str(table.metadata.table_uuid)
    assert jobs.run("drop_index", table_uuid=uuid).result["index_tables_deleted"] == 2
    assert not folder.exists()
    assert jobs.reporter.asked_anew == 3


@pytest.mark.parametrize("stage", ["sort_rows", "find_duplicates"])
def test_a_cancelled_report_leaves_nothing_that_the_next_one_keeps(
    spark: SparkSession, table_name: str, jobs: Jobs, stage: str
) -> None:
    table = TableBuilder.create(spark, table_name, "id bigint")
    table.append([{"id": 1}, {"id": 1}])

    def cancel(told: str, done: int, *_: object) -> None:
        if told == stage and done:
            raise JobCancelledError

    with patch.object(jobs.reporter, "progress", cancel), pytest.raises(JobCancelledError):
        jobs.run("report_duplicates", key_sets=[["id"]])
    report = jobs.run("report_duplicates", key_sets=[["id"]]).result["key_sets"][0]["report"]
    (kept,) = jobs.index.glob("*.db/duplicates/**/*.parquet")
    assert kept.name == Path(report).name.replace("*", "00000")


def test_a_table_without_a_key_has_no_report(spark: SparkSession, table_name: str, jobs: Jobs) -> None:
    TableBuilder.create(spark, table_name, "id bigint, measure double").append([{"id": 1, "measure": 1.0}])
    for declared, code in ((None, "no_key_set"), ([["measure"]], "float_key")):
        with pytest.raises(JobError) as refused:
            jobs.run("report_duplicates", key_sets=declared)
        assert refused.value.code == code
    found = jobs.run("report_duplicates", key_sets=[["measure"], ["id"]]).result["key_sets"]
    assert [one["columns"] for one in found] == [["id"]]
    assert any("(measure) is left out" in said for said in jobs.reporter.decisions)
