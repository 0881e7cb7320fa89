"""What an index job tells: how far it is, and what it could not read."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.factories import TableBuilder
from tests.jobs import Jobs
from worker.index.build import MIN_TASK_FILES
from worker.process.errors import JobError

pytestmark = pytest.mark.integration


def appended(spark: SparkSession, name: str, files: int) -> list[Path]:
    """The data files of a table with five rows in each."""
    table = TableBuilder.create(spark, name, format_version=3)
    rows = [{"id": i, "region": "eu", "value": i} for i in range(5 * files)]
    return [Path(path.removeprefix("file:")) for path in table.append(rows, files=files)]


def test_many_small_files_are_counted_as_they_are_read_and_shared_among_tasks(
    spark: SparkSession, jobs: Jobs, table_name: str
) -> None:
    files = MIN_TASK_FILES + 20
    appended(spark, table_name, files)
    result = jobs.run("index", key_sets=[["id"]]).result
    (one,) = result["key_sets"]
    assert (one["files_indexed"], one["rows_indexed"]) == (files, 5 * files)
    told = {done for stage, done, total in jobs.reporter.told if stage == "index" and 0 < done < total}
    assert len(told) > files // 2
    (stage,) = (stage for stage in result["stages"] if stage["name"] == "index")
    assert (stage["tasks_in_driver"], stage["rows"]) == (2, 5 * files)


@pytest.mark.parametrize("damage", ["missing", "cut off"])
def test_a_job_that_can_read_none_of_its_data_files_fails_and_names_one(
    spark: SparkSession, jobs: Jobs, table_name: str, damage: str
) -> None:
    files = appended(spark, table_name, 2)
    for file in files:
        whole = file.read_bytes()
        file.unlink()
        if damage == "cut off":
            file.write_bytes(whole[:50])
    for kind in ("index", "rebuild"):
        with pytest.raises(JobError) as refused:
            jobs.run(kind, key_sets=[["id"]])
        assert refused.value.code == "data_files_unreadable"
        assert any(file.name in refused.value.detail for file in files)
        assert "and 1 more" in refused.value.detail
        assert "Restore" in refused.value.remedy
    assert not any("is covered" in sentence for sentence in jobs.reporter.decisions)


def test_what_could_not_be_read_is_in_the_result_the_decisions_and_the_coverage(
    spark: SparkSession, jobs: Jobs, table_name: str
) -> None:
    gone, _ = appended(spark, table_name, 2)
    gone.unlink()
    outcome = jobs.run("index", key_sets=[["id"]])
    (one,) = outcome.result["key_sets"]
    assert (one["files_indexed"], one["files_unreadable"]) == (1, 1)
    assert [each["file_path"].rpartition("/")[2] for each in one["unreadable"]] == [gone.name]
    assert (outcome.health["key_sets"][0]["files_covered"], outcome.health["key_sets"][0]["coverage"]) == (
        1,
        0.5,
    )
    assert outcome.result["decisions"][-1].endswith("1 could not be read and is not covered.")
    # What is left can't be indexed, and is not called covered.
    with pytest.raises(JobError, match=gone.name):
        jobs.run("index", key_sets=[["id"]])
    assert not any("every live data file is covered" in sentence for sentence in jobs.reporter.decisions)


def test_a_key_that_cannot_be_indexed_is_named_in_the_result_and_no_time_is_foretold_for_it(
    spark: SparkSession, jobs: Jobs, table_name: str
) -> None:
    table = TableBuilder.create(spark, table_name, format_version=3, columns="id bigint, price double")
    table.append([{"id": 1, "price": 0.5}, {"id": 2, "price": 1.5}])
    table.delete_keys([{"price": 0.5}])
    alone = jobs.run("convert", dry_run=True).result
    assert "estimated_seconds" not in alone
    assert [(one["columns"], one["source"]) for one in alone["key_sets"]] == [(["price"], "none")]
    table.delete_keys([{"id": 2}])
    result = jobs.run("index", key_sets=[["lost"]]).result
    assert [one["columns"] for one in result["key_sets"]] == [["id"]]
    assert [(one["columns"], one["code"]) for one in result["key_sets_not_indexed"]] == [
        (["lost"], "unknown_key_column"),
        (["price"], "float_key"),
    ]
    assert any(
        told.startswith("Key set (price) is not indexed: column price") for told in result["decisions"]
    )
    assert "estimated_seconds" in jobs.run("convert", dry_run=True).result


def test_a_data_file_that_a_dry_run_could_not_read_is_not_counted_as_scanned(
    spark: SparkSession, jobs: Jobs, table_name: str
) -> None:
    table = TableBuilder.create(spark, table_name, format_version=3)
    (path,) = table.append([{"id": 1, "region": "eu", "value": 1}])
    table.delete_keys([{"id": 1}])
    Path(path.removeprefix("file:")).unlink()
    result = jobs.run("convert", dry_run=True).result
    assert [one["data_files_scanned"] for one in result["key_sets"]] == [0]
    assert "estimated_seconds" not in result
