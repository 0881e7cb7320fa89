"""Small position delete files become few, and the same rows are deleted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.deaths import killed_at_call_of
from tests.factories import TableBuilder, live_delete_files, spark_rows, visible_rows
from tests.jobs import Jobs
from tests.readers import duckdb_rows, pyiceberg_rows
from tests.thorough import first_always
from worker.jobs import file_rewriting
from worker.jobs.position_delete_rewriting import _Rewriting
from worker.process.errors import JobError

pytestmark = pytest.mark.integration
BY_PARTITION = {"write.delete.granularity": "partition"}


@pytest.fixture
def table(spark: SparkSession, table_name: str) -> TableBuilder:
    """With three data files of ten rows, and a position delete in two of them in each of five commits."""
    table = TableBuilder.create(spark, table_name, partitioned_by=["region"], properties=BY_PARTITION)
    for start in (0, 10, 20):
        table.append([row(number) for number in range(start, start + 10)])
    table.append([row(99, "us")])
    first, second, _, _ = table.data_file_paths
    for position in range(2):
        table.delete_positions({first: [position], second: [position]})
    for position in range(2, 5):
        table.commit(table.shared_position_deletes({first: [position], second: [position]}))
    return table


def row(number: int, region: str = "eu") -> dict[str, Any]:
    return {"id": number, "region": region, "value": 0}


def rewrite(jobs: Jobs, **how: Any) -> dict[str, Any]:
    return jobs.run("rewrite_position_delete_files", **how).result


def deletes(table: TableBuilder) -> list[dict[str, Any]]:
    return live_delete_files(table.spark, table.identifier)


def files_in_folders(table: TableBuilder) -> list[Path]:
    place = Path("/" + table.metadata.location.removeprefix("file:").lstrip("/"))
    return [path for path in place.glob("data/icestream-*/**/*.parquet") if path.is_file()]


@first_always("granularity", ["partition", "file"])
def test_small_position_delete_files_become_few_and_every_reader_shows_the_same(
    table: TableBuilder, jobs: Jobs, spark: SparkSession, granularity: str
) -> None:
    table.java.updateProperties().set("write.delete.granularity", granularity).commit()
    shown, head, before = duckdb_rows(table), table.snapshot_id, deletes(table)
    policy = {"rewrite_position_delete_files": {"enabled": True}}
    health = jobs.run("index", policy=policy, key_sets=[["id"]]).health
    assert health["small_delete_files"] == len(before)

    foretold = rewrite(jobs, dry_run=True)["delete_files"]
    assert table.snapshot_id == head
    outcome = jobs.run("rewrite_position_delete_files", policy=policy)
    told = outcome.result["delete_files"]

    after = 1 if granularity == "partition" else 2
    for name in ("delete_files_rewritten", "delete_files_added", "bytes_rewritten"):
        assert told[name] == foretold[name]
    assert (told["delete_files_rewritten"], told["delete_files_added"]) == (len(before), after)
    assert sorted(foretold["files"]) == sorted(one["file_path"] for one in before)
    assert len(deletes(table)) == len(files_in_folders(table)) == after
    assert spark_rows(spark, table.identifier) == duckdb_rows(table) == pyiceberg_rows(table) == shown
    assert outcome.health["small_delete_files"] == 0
    assert rewrite(jobs)["commits"] == 0, "they are few now"
    table.upsert([row(7)], key=["id"])
    jobs.run("convert")
    assert duckdb_rows(table) == shown


@first_always("other", ["a rewriting", "an upsert"])
def test_whoever_replaces_the_same_deletes_meanwhile_comes_first_and_a_writer_is_not_in_the_way(
    table: TableBuilder, jobs: Jobs, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    shown, real = duckdb_rows(table), _Rewriting._written
    meanwhile: list[Callable[[], object]] = [
        lambda: rewrite(jobs) if other == "a rewriting" else table.upsert([row(7)], key=["id"])
    ]

    def written(rewriting: Any, *arguments: Any) -> Any:
        made = real(rewriting, *arguments)
        if meanwhile:
            meanwhile.pop()()
        return made

    monkeypatch.setattr(_Rewriting, "_written", written)
    assert rewrite(jobs)["commits"] == (other != "a rewriting")
    assert ("so it looks again" in " ".join(jobs.reporter.decisions)) == (other == "a rewriting")
    assert duckdb_rows(table) == shown
    assert len(files_in_folders(table)) == 1


def test_deletes_that_are_added_again_meanwhile_come_first(
    table: TableBuilder, jobs: Jobs, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg removes by paths: it would take those, too, which delete rows of a data file that is newer."""
    (file,) = table.data_files([row(number) for number in range(50, 60)])
    table.commit(file)
    (delete,) = table.position_deletes({file.path: [3]})
    table.commit(delete)
    real = _Rewriting._written

    def written(rewriting: Any, *arguments: Any) -> Any:
        made = real(rewriting, *arguments)
        monkeypatch.setattr(_Rewriting, "_written", real)
        table.java.newDelete().deleteFile(table.parsed(file)).commit()
        table.commit(file)
        table.commit(delete)
        return made

    shown = duckdb_rows(table)
    monkeypatch.setattr(_Rewriting, "_written", written)
    rewrite(jobs)
    assert f"{delete.path} was added again" in " ".join(jobs.reporter.decisions)
    assert duckdb_rows(table) == shown


@first_always("when", ["before", "after"])
def test_a_killed_rewriting_of_deletes_is_followed_by_one_that_removes_what_it_left(
    table: TableBuilder, jobs: Jobs, spark: SparkSession, when: str
) -> None:
    shown = duckdb_rows(table)
    with killed_at_call_of(file_rewriting, "commit_snapshot", when) as death:
        rewrite(jobs, job_id="killed")
    assert death.happened
    left = jobs.reporter.left_by("killed")
    outcome = jobs.run("rewrite_position_delete_files", job_id="killed", attempt=2, ended_attempts=[left])
    assert outcome.result["delete_files"]["delete_files_added"] == 1
    assert [one.job_id for one in outcome.cleared] == ["killed"]
    assert len(files_in_folders(table)) == len(deletes(table)) == 1
    assert duckdb_rows(table) == shown


def test_deletes_of_a_data_file_that_was_added_again_stay_as_they_are(
    spark: SparkSession, table_name: str, jobs: Jobs
) -> None:
    """They hit nothing of it, and would if they had a higher sequence number."""
    table = TableBuilder.create(spark, table_name, properties=BY_PARTITION)
    table.append([row(99)])
    (file,) = table.data_files([row(number) for number in range(10)])
    table.commit(file)
    for position in range(5):
        table.delete_positions({file.path: [position], table.data_file_paths[0]: [0]})
    table.java.newDelete().deleteFile(table.parsed(file)).commit()
    table.commit(file)
    table.delete_positions({file.path: [9]})
    # DuckDB takes a position delete for one of a file that came after it.
    shown = visible_rows(spark, table.identifier)
    assert len(shown) == 9
    told = rewrite(jobs)
    assert told["commits"] == 0
    assert "was added again after" in " ".join(jobs.reporter.decisions)
    assert visible_rows(spark, table.identifier) == shown


def test_no_class_and_no_place_that_the_table_names_is_used_for_new_deletes(
    table: TableBuilder, jobs: Jobs, warehouse: Path, tmp_path: Path
) -> None:
    shown, elsewhere, old = duckdb_rows(table), tmp_path / "elsewhere", tmp_path / "old"
    table.java.updateProperties().set("write.data.path", elsewhere.as_uri()).commit()
    with pytest.raises(JobError, match="elsewhere"):
        rewrite(jobs, allowed_locations=[str(warehouse.parent), str(jobs.index)])
    change = table.java.updateProperties().remove("write.data.path")
    change = change.set("write.location-provider.impl", "no.Such").set("write.object-storage.enabled", "true")
    change.set("write.folder-storage.path", old.as_uri()).commit()
    assert rewrite(jobs)["delete_files"]["delete_files_added"] == 1
    assert len(files_in_folders(table)) == 1
    assert duckdb_rows(table) == shown
    assert not elsewhere.exists()
    assert not old.exists()


def test_vectors_are_left_to_conversions(spark: SparkSession, table_name: str, jobs: Jobs) -> None:
    table = TableBuilder.create(spark, table_name, format_version=3)
    table.append([row(number) for number in range(10)])
    table.delete_positions({table.data_file_paths[0]: [1]})
    assert rewrite(jobs, parameters={"min_input_files": 2})["commits"] == 0
    assert "a conversion merges" in " ".join(jobs.reporter.decisions)
