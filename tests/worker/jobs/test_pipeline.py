"""Whole jobs on real tables: the rows that Spark shows before are the rows that it shows after."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from py4j.java_gateway import JavaObject
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pypaimon import CatalogFactory
from pyspark.sql import SparkSession

from tests.factories import Catalog, TableBuilder, equality_delete_files, spark_rows, visible_rows
from tests.jobs import Jobs
from tests.readers import Rows, duckdb_rows
from tests.rest_catalog import running_rest_catalog
from tests.thorough import V3_FIRST, first_always, thorough_unless
from worker.attempt import pinned_table
from worker.attempt.job import Job
from worker.contract.control_plane import AnnouncedPlan
from worker.deletes import stage
from worker.index import compaction, footers
from worker.index.run_files import TOP_LEVEL
from worker.index.sorted_runs import RunTable
from worker.jobs import conversion
from worker.lookup import positions, resolution
from worker.lookup.cost import COMMIT_SECONDS, WRITTEN_FILE_SECONDS
from worker.process.errors import JobCancelledError, JobError
from worker.spark.tasks import TaskRunner
from worker.table import catalogs, manifests
from worker.table.manifests import Manifest
from worker.table.row_delta import java_row_delta

pytestmark = pytest.mark.integration


def upserted(
    spark: SparkSession, name: str, *, format_version: Any, partitioned: bool, key: list[str]
) -> TableBuilder:
    """Three commits of upserts over a first load, and one of plain deletes."""
    table = TableBuilder.create(
        spark,
        name,
        format_version=format_version,
        partitioned_by=["region"] if partitioned else [],
    )
    regions = ("eu", "us")
    table.append([{"id": i, "region": regions[i % 2], "value": i} for i in range(200)], files=2)
    for commit in range(3):
        rows = [
            {"id": i, "region": regions[i % 2], "value": 1000 * commit + i}
            for i in range(commit * 20, 120, 7)
        ]
        table.upsert(rows, key=key)
    table.delete_keys([{"id": i, "region": regions[i % 2]} for i in (3, 5, 150, 900)], equality_columns=key)
    return table


def rows_of(spark: SparkSession, name: str) -> Rows:
    """The visible rows as DuckDB shows them, in a tenth of the time that Spark takes."""
    return duckdb_rows(TableBuilder(spark, name))


@pytest.mark.parametrize(
    ("format_version", "partitioned", "key", "indexed"),
    thorough_unless(
        lambda case: case == (3, True, ["id", "region"], True),
        list(product([2, 3], [False, True], [["id"], ["id", "region"]], [False, True])),
    ),
)
def test_conversion_keeps_the_visible_rows_and_leaves_no_equality_delete(
    spark: SparkSession,
    jobs: Jobs,
    table_name: str,
    format_version: int,
    partitioned: bool,
    key: list[str],
    indexed: bool,
) -> None:
    upserted(spark, table_name, format_version=format_version, partitioned=partitioned, key=key)
    before = spark_rows(spark, table_name)
    if indexed:
        jobs.run("index")

    predicted = jobs.run("convert", dry_run=True).result
    assert spark_rows(spark, table_name) == before
    assert len(equality_delete_files(spark, table_name)) == predicted["equality_delete_files_removed"] > 0
    result = jobs.run("convert").result

    assert spark_rows(spark, table_name) == before
    assert equality_delete_files(spark, table_name) == []
    assert result["rows_deleted"] == predicted["rows_deleted"] > 0
    assert result["delete_files_added"] == predicted["delete_files_added"]
    live = spark.table(f"{table_name}.delete_files").agg({"file_size_in_bytes": "sum"}).first()
    assert live is not None
    assert result["bytes_written"] == predicted["bytes_written"] == live[0]
    assert result["bytes_read"] == predicted["bytes_read"] > 0
    measured = sum(stage["seconds"] for stage in predicted["stages"])
    assert predicted["estimated_seconds"] == pytest.approx(
        measured + COMMIT_SECONDS + predicted["delete_files_added"] * WRITTEN_FILE_SECONDS, abs=0.001
    )
    assert {one["source"] for one in result["key_sets"]} == {"index" if indexed else "scan"}
    for one in result["key_sets"]:
        # Only where there is an index, there is a choice; what was used took some time, and nothing else did.
        assert (one["predicted_index_seconds"] > 0, one["predicted_scan_seconds"] > 0) == (indexed, indexed)
        assert (one["index_seconds"] > 0, one["scan_seconds"] > 0) == (indexed, not indexed)
    assert result["unconvertible"] == []


def test_a_conversion_indexes_what_is_new_where_an_index_job_would_come_soon(
    spark: SparkSession, jobs: Jobs, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = upserted(spark, table_name, format_version=3, partitioned=False, key=["id"])
    jobs.run("index")
    for indexes_all, value in ((False, 1), (True, 2)):
        table.upsert([{"id": 7, "region": "eu", "value": value}], key=["id"])
        before = rows_of(spark, table_name)
        monkeypatch.setattr(conversion, "INDEXED_ROWS", 10 if indexes_all else 0)
        outcome = jobs.run("convert", takes_new_files=True)
        assert rows_of(spark, table_name) == before
        assert outcome.health["covers_head"] is indexes_all
        assert outcome.health["iceberg_snapshot_id"] == outcome.result["iceberg_snapshot_id_after"]
        told = any("1 new row left to the next index job" in one for one in outcome.result["decisions"])
        assert told is not indexes_all
    assert jobs.run("index").result["key_sets"][0]["files_indexed"] == 0


def test_a_conversion_that_goes_on_at_once_calls_the_service_once(
    spark: SparkSession, jobs: Jobs, table_name: str
) -> None:
    table = upserted(spark, table_name, format_version=3, partitioned=False, key=["id"])
    jobs.run("index")
    table.upsert([{"id": 7, "region": "eu", "value": 1}], key=["id"])
    deletes = {file["file_path"] for file in equality_delete_files(spark, table_name)}
    announced = list[AnnouncedPlan]()
    jobs.run("convert", takes_new_files=True, dry_run=True)
    assert jobs.reporter.expected_rows == [], "it indexes nothing"
    with patch.object(jobs.reporter, "announce", announced.append):
        assert jobs.run("convert", takes_new_files=True).health["covers_head"]
    (plan,) = announced
    assert (plan.tasks, plan.removes in deletes) == (1, True)
    assert jobs.reporter.expected_rows == [1]


def test_the_next_job_of_a_table_reads_what_has_come_since(
    spark: SparkSession, jobs: Jobs, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = upserted(spark, table_name, format_version=3, partitioned=False, key=["id"])
    sessions, given = count(), catalogs.file_io_properties

    def vend(java_table: JavaObject) -> dict[str, str]:
        return given(java_table) | {"s3.session-token": str(next(sessions))}

    monkeypatch.setattr(catalogs, "file_io_properties", vend)
    jobs.run("index")
    jobs.run("convert", takes_new_files=True)
    read, planned, loaded = list[Manifest](), list[RunTable](), list[Job]()

    def read_manifest(io: FileIO, manifest: Manifest, *how: Any) -> Any:
        read.append(manifest)
        return of_manifest(io, manifest, *how)

    def latest(table: RunTable) -> Any:
        planned.append(table)
        return of_index(table)

    def load(job: Job) -> Any:
        loaded.append(job)
        return of_catalog(job)

    of_manifest, of_index, of_catalog = manifests.read_manifest, RunTable._latest, pinned_table._load
    monkeypatch.setattr(RunTable, "_latest", latest)
    monkeypatch.setattr(pinned_table, "_load", load)
    for value in (1, 2):
        table.upsert([{"id": 7, "region": "eu", "value": value}], key=["id"])
        before = rows_of(spark, table_name)
        with patch("worker.table.manifests.read_manifest", read_manifest):
            outcome = jobs.run("convert", takes_new_files=True)
        assert (rows_of(spark, table_name), outcome.health["covers_head"]) == (before, True)
        writers, own = (outcome.result[f"iceberg_snapshot_id_{when}"] for when in ("before", "after"))
        assert {one.added_snapshot_id for one in read} == {writers, own}
        assert len(read) == len({one.path for one in read})
        assert (len(planned), len(loaded)) == (0, 1)
        read.clear()
        loaded.clear()


@first_always("kind", ["convert", "rewrite_data_files"])
def test_the_key_of_deletes_that_are_converted_gets_an_index_whichever_attempt_reports(
    spark: SparkSession, jobs: Jobs, table_name: str, kind: str
) -> None:
    """A writer goes on by another key than the one that is indexed."""
    table = upserted(spark, table_name, format_version=3, partitioned=False, key=["id"])
    jobs.run("index")
    jobs.run("convert")
    table.upsert([{"id": 7, "region": "eu", "value": 1}], key=["id", "region"])
    for attempt in (1, 2):
        told = jobs.run(kind, job_id="lost", attempt=attempt, takes_new_files=True)
        assert told.result["commits"] == 1
        assert told.health["pending_equality_deletes"] == 0
        assert told.health["covers_head"] is False
        found = {tuple(one["columns"]): one["generation"] for one in told.health["key_sets"]}
        assert found == {("id",): 1, ("id", "region"): 0}, attempt


def test_a_second_conversion_and_a_second_indexing_do_nothing(
    spark: SparkSession, jobs: Jobs, table_name: str
) -> None:
    table = upserted(spark, table_name, format_version=3, partitioned=True, key=["id", "region"])
    assert jobs.run("index").result["key_sets"][0]["files_indexed"] > 0
    indexed = jobs.run("index")
    assert (indexed.result["key_sets"][0]["files_indexed"], indexed.health["covers_head"]) == (0, True)
    # What others committed beside the conversion is in no index, and it did not look.
    assert jobs.run("convert").health["covers_head"] is False
    snapshot = table.snapshot_id
    outcome = jobs.run("convert")
    assert outcome.result["commits"] == 0
    assert table.snapshot_id == snapshot
    assert "there is nothing to convert" in outcome.result["decisions"][0]
    health = outcome.health["key_sets"][0]
    assert health["coverage"] == 1.0
    assert health["dead_ratio"] == 0.0
    assert outcome.health["pending_equality_deletes"] == 0


def test_files_that_are_not_indexed_yet_are_scanned(spark: SparkSession, jobs: Jobs, table_name: str) -> None:
    table = upserted(spark, table_name, format_version=3, partitioned=False, key=["id"])
    jobs.run("index")
    table.upsert([{"id": i, "region": "eu", "value": -i} for i in range(50)], key=["id"])
    table.upsert([{"id": i, "region": "eu", "value": -2 * i} for i in range(25)], key=["id"])
    before = rows_of(spark, table_name)
    result = jobs.run("convert").result
    (one,) = result["key_sets"]
    assert one["source"] == "index_and_scan"
    assert (one["index_seconds"] > 0, one["scan_seconds"] > 0) == (True, True)
    assert rows_of(spark, table_name) == before
    assert equality_delete_files(spark, table_name) == []


@V3_FIRST
def test_existing_position_deletes_are_merged(
    spark: SparkSession, jobs: Jobs, table_name: str, format_version: Any
) -> None:
    table = TableBuilder.create(spark, table_name, format_version=format_version)
    paths = table.append([{"id": i, "region": "eu", "value": i} for i in range(100)], files=2)
    table.delete_positions({paths[0]: [0, 7], paths[1]: [3]})
    table.delete_keys([{"id": i} for i in range(0, 100, 9)], equality_columns=["id"])
    before = rows_of(spark, table_name)
    result = jobs.run("convert").result
    assert rows_of(spark, table_name) == before
    assert equality_delete_files(spark, table_name) == []
    assert result["delete_files_removed"] == 2
    assert result["data_files_touched"] == 2


def test_a_plan_that_compaction_overtook_is_made_again(
    spark: SparkSession, jobs: Jobs, table_name: str
) -> None:
    table = upserted(spark, table_name, format_version=3, partitioned=False, key=["id"])
    before = rows_of(spark, table_name)
    overtaken: list[bool] = []

    def compact_once() -> None:
        if not overtaken:
            overtaken.append(True)
            table.compact()

    jobs.reporter.before_commit = compact_once
    result = jobs.run("convert").result
    assert overtaken
    assert rows_of(spark, table_name) == before
    assert equality_delete_files(spark, table_name) == []
    assert any("plans again" in sentence for sentence in result["decisions"])


@pytest.mark.parametrize("moment", ["before it is checked", "after it was checked"])
def test_nothing_is_committed_to_a_place_that_the_table_names_meanwhile(
    spark: SparkSession,
    jobs: Jobs,
    table_name: str,
    catalog: Catalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    upserted(spark, table_name, format_version=3, partitioned=False, key=["id"])
    elsewhere = tmp_path / "elsewhere"
    written: set[Path] = set()  # by whoever leads there

    def lead_elsewhere() -> None:
        place = f"'write.metadata.path' = '{elsewhere.as_uri()}'"
        spark.sql(f"ALTER TABLE {table_name} SET TBLPROPERTIES ({place})")
        written.update(elsewhere.iterdir())

    if moment == "before it is checked":
        jobs.reporter.before_commit = lead_elsewhere
    else:

        def built(*arguments: Any) -> Any:
            operation = java_row_delta(*arguments)
            lead_elsewhere()
            return operation

        monkeypatch.setattr("worker.table.row_delta.java_row_delta", built)
    allowed = [catalog.warehouse, str(catalog.database), jobs.index_location]
    with pytest.raises(JobError) as refused:
        jobs.run("convert", allowed_locations=allowed)
    assert refused.value.code == "location_not_allowed"
    assert set(elsewhere.iterdir()) == written


def test_the_next_attempt_finds_a_commit_that_was_not_reported(
    spark: SparkSession, jobs: Jobs, table_name: str
) -> None:
    table = upserted(spark, table_name, format_version=3, partitioned=False, key=["id"])
    first = jobs.run("convert", job_id="lost").result
    snapshot = table.snapshot_id
    again = jobs.run("convert", job_id="lost", attempt=2).result
    assert table.snapshot_id == snapshot
    for name in (
        "rows_deleted",
        "equality_delete_files_removed",
        "data_files_touched",
        "deletion_vectors_added",
    ):
        assert again[name] == first[name]


def test_only_a_declared_key_gives_a_table_without_deletes_an_index(
    spark: SparkSession, jobs: Jobs, table_name: str
) -> None:
    table = TableBuilder.create(spark, table_name)
    table.append([{"id": i, "region": "eu", "value": i} for i in range(10)])
    with pytest.raises(JobError) as failure:
        jobs.run("index")
    assert failure.value.code == "no_key_set"
    assert jobs.run("index", key_sets=[["id"]]).result["key_sets"][0]["rows_indexed"] == 10


def test_the_key_of_deletes_that_were_converted_before_the_first_indexing_is_remembered(
    spark: SparkSession, jobs: Jobs, table_name: str
) -> None:
    upserted(spark, table_name, format_version=3, partitioned=False, key=["id"])
    (reported,) = jobs.run("convert").health["key_sets"]
    assert (reported["columns"], reported["files_covered"]) == (["id"], 0)
    seen = [reported["equality_field_ids"]]
    indexed = jobs.run("index", seen_equality_field_ids=seen)
    assert [(one["columns"], one["coverage"]) for one in indexed.health["key_sets"]] == [(["id"], 1.0)]


def test_a_remembered_key_whose_column_is_gone_is_only_mentioned(
    spark: SparkSession, jobs: Jobs, table_name: str
) -> None:
    table = TableBuilder.create(spark, table_name)
    table.append([{"id": i, "region": "eu", "value": i} for i in range(10)])
    result = jobs.run("index", seen_equality_field_ids=[[99]]).result
    assert result["key_sets"] == []
    assert any("99" in sentence for sentence in result["decisions"])


def test_an_unreachable_catalog_and_an_unknown_table_fail_with_the_cause(
    spark: SparkSession, jobs: Jobs, tmp_path: Path
) -> None:
    jobs.identifier = ["db", "nowhere"]
    with pytest.raises(JobError, match="nowhere") as unknown:
        jobs.run("convert")
    assert unknown.value.code == "table_not_found"
    jobs.catalog = Catalog("gone", tmp_path / "no" / "such" / "catalog.db", tmp_path.as_uri())
    with pytest.raises(JobError) as unreachable:
        jobs.run("convert")
    assert unreachable.value.code == "catalog_unreachable"


def test_a_table_on_a_store_whose_jars_are_missing_fails_with_the_setting_that_brings_them(
    jobs: Jobs, tmp_path: Path
) -> None:
    jobs.catalog = Catalog("lake", tmp_path / "lake.db", tmp_path.as_uri())
    jobs.identifier = ["db", "t"]
    with SqlCatalog("lake", **jobs.catalog.properties) as tables:
        tables.create_namespace("db")
        tables.create_table("db.t", Schema())
    place = "gs://lake/db/t/metadata/v1.metadata.json"
    with closing(sqlite3.connect(tmp_path / "lake.db")) as database, database:
        database.execute("UPDATE iceberg_tables SET metadata_location = ?", [place])
    with pytest.raises(JobError, match=place) as failure:
        jobs.run("convert")
    assert (failure.value.code, failure.value.retryable) == ("store_not_supported", False)
    assert "gcs in ICESTREAM_STORES" in failure.value.remedy


def rows_in_data_files(spark: SparkSession, name: str) -> int:
    return int(spark.sql(f"SELECT sum(record_count) FROM {name}.files WHERE content = 0").collect()[0][0])


def paimon_rows(index: Path, table: str) -> list[tuple[Any, ...]]:
    """What Paimon's own reader, which merges runs by primary key, makes of an index table."""
    catalog = CatalogFactory.create({"warehouse": index.as_uri()})
    (database,) = catalog.list_databases()
    builder = catalog.get_table(f"{database}.{table}").new_read_builder()
    rows = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    return sorted(tuple(row.values()) for row in rows.to_pylist())


def test_the_index_is_a_paimon_table_of_every_row_before_and_after_compaction(
    spark: SparkSession, jobs: Jobs, table_name: str
) -> None:
    table = TableBuilder.create(spark, table_name, format_version=3, partitioned_by=["region"])
    for start in (0, 50, 100):
        rows = [{"id": i, "region": "eu" if i % 3 else "us", "value": i} for i in range(start, start + 60)]
        table.upsert(rows, key=["id"])
        jobs.run("index")
    before = paimon_rows(jobs.index, "entries_1_g1")
    assert [row[2] for row in before] == [row[2] for row in sorted(before)]
    assert len(before) == 180
    files = paimon_rows(jobs.index, "files_1_g1")
    assert sorted(row[2] for row in files) == sorted(table.data_file_paths)

    compacted = jobs.run("compact").result["key_sets"][0]
    assert (compacted["sorted_runs_before"], compacted["sorted_runs_after"]) == (3, 1)
    assert paimon_rows(jobs.index, "entries_1_g1") == before
    assert paimon_rows(jobs.index, "files_1_g1") == files

    visible = rows_of(spark, table_name)
    assert jobs.run("convert").result["key_sets"][0]["source"] == "index"
    assert rows_of(spark, table_name) == visible


# In levels they are read by test_a_reader_of_paimon_finds_the_rows_of_the_data_files, too.
@pytest.mark.exhaustive
def test_runs_are_merged_by_size_into_levels_that_paimon_reads(
    spark: SparkSession, jobs: Jobs, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "TASK_ROWS", 40)
    monkeypatch.setattr(compaction, "RUNS_KEPT", 3)
    monkeypatch.setattr("worker.index.run_files.ROW_GROUP_ROWS", 8)
    monkeypatch.setattr(
        "worker.lookup.cost.INDEX_FILE_SECONDS", 0
    )  # so many tiny files are not worth a lookup
    table = TableBuilder.create(spark, table_name, format_version=3, partitioned_by=["region"])
    levels = set()
    for commit, rows in enumerate((300, 90, 30, 30, 10, 10, 10, 500, 5)):
        region = "eu" if commit % 2 else "us"
        table.upsert([{"id": i * 7 % 501, "region": region, "value": i} for i in range(rows)], key=["id"])
        jobs.run("index")
        compacted = jobs.run("compact").result["key_sets"][0]
        assert compacted["sorted_runs_after"] <= 3
        assert compacted["entries_after"] == rows_in_data_files(spark, table_name)
        levels |= levels_of(jobs.index, "entries_1_g1")
    assert levels == {0, TOP_LEVEL - 1, TOP_LEVEL}
    entries = paimon_rows(jobs.index, "entries_1_g1")
    assert len(entries) == len(set(entries)) == rows_in_data_files(spark, table_name)
    # By Spark: DuckDB applies what is deleted by the id alone in the other region as well.
    visible = visible_rows(spark, table_name)
    assert jobs.run("verify").result["key_sets"][0]["differences"] == 0
    assert jobs.run("convert").result["key_sets"][0]["source"] == "index"
    assert visible_rows(spark, table_name) == visible


def levels_of(index: Path, table: str) -> set[int]:
    catalog = CatalogFactory.create({"warehouse": index.as_uri()})
    (database,) = catalog.list_databases()
    splits = catalog.get_table(f"{database}.{table}").new_read_builder().new_scan().plan().splits()
    return {file.level for split in splits for file in split.files}


def test_compaction_deletes_what_no_snapshot_of_the_index_needs(
    spark: SparkSession, jobs: Jobs, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TableBuilder.create(spark, table_name, format_version=3)
    for start in (0, 50, 100):
        table.upsert([{"id": i, "region": "eu", "value": i} for i in range(start, start + 60)], key=["id"])
        jobs.run("index")
    orphan = next(jobs.index.glob("*.db/entries_1_g1/bucket-0")) / "data-of-a-dead-attempt.parquet"
    orphan.write_bytes(b"not yet committed")
    assert jobs.run("compact").result["key_sets"][0]["files_deleted"] == 0
    assert orphan.exists(), "it may still be committed"
    before = paimon_rows(jobs.index, "entries_1_g1"), paimon_rows(jobs.index, "files_1_g1")

    monkeypatch.setattr(compaction, "KEEP_SECONDS", 0.0)
    cleaned = jobs.run("compact").result["key_sets"][0]
    assert cleaned["files_deleted"] > 6
    assert cleaned["bytes_deleted"] > 0
    assert (paimon_rows(jobs.index, "entries_1_g1"), paimon_rows(jobs.index, "files_1_g1")) == before
    for index_table, live_files in (("entries_1_g1", 1), ("files_1_g1", 3)):
        (folder,) = jobs.index.glob(f"*.db/{index_table}")
        assert len(list((folder / "bucket-0").glob("*"))) == live_files
        assert len(list((folder / "snapshot").glob("snapshot-*"))) == 1
    assert jobs.run("compact").result["key_sets"][0]["files_deleted"] == 0
    visible = rows_of(spark, table_name)
    assert jobs.run("convert").result["key_sets"][0]["source"] == "index"
    assert rows_of(spark, table_name) == visible
    table.append([{"id": 1, "region": "us", "value": 1}])
    assert jobs.run("index").result["key_sets"][0]["files_indexed"] == 1


@pytest.mark.thorough
def test_the_dictionary_is_merged_as_it_grows(
    spark: SparkSession, jobs: Jobs, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.index.commit.DICTIONARY_FILES", 3)
    table = TableBuilder.create(spark, table_name, format_version=3)
    sizes = []
    for commit in range(6):
        table.upsert([{"id": commit, "region": "eu", "value": 1}], key=["id"])
        jobs.run("index")
        jobs.run("compact")
        sizes.append(sorted(rows_by_file(jobs.index, "files_1_g1")))
    # One row a commit; what is merged has at least twice the rows of each of its parts.
    assert sizes[:3] == [[1], [1, 1], [1, 1, 1]]
    assert sizes[3] == [4]
    assert sum(sizes[-1]) == 6
    assert jobs.run("convert").health["key_sets"][0]["coverage"] == 1.0


def rows_by_file(index: Path, table: str) -> list[int]:
    catalog = CatalogFactory.create({"warehouse": index.as_uri()})
    (database,) = catalog.list_databases()
    splits = catalog.get_table(f"{database}.{table}").new_read_builder().new_scan().plan().splits()
    return [file.row_count for split in splits for file in split.files]


def test_compaction_drops_the_entries_of_files_that_are_gone(
    spark: SparkSession, jobs: Jobs, table_name: str
) -> None:
    table = upserted(spark, table_name, format_version=3, partitioned=True, key=["id"])
    jobs.run("index")
    table.compact()
    report = jobs.run("index").health
    health, layout = report["key_sets"][0], report["layouts"][0]
    assert 0 < health["dead_ratio"] < 1
    # All that the first run has is gone, and nothing of the second: rewritten rows have new addresses.
    assert sorted(run["dead_ratio"] for run in layout["runs"]) == [0.0, 1.0]
    assert sum(run["entries"] for run in layout["runs"]) == health["entries"]
    assert {one["partition"].partition("=")[0] for one in layout["partitions"]} == {"region"}
    assert all(one["data_files"] == one["covered_data_files"] > 0 for one in layout["partitions"])
    outcome = jobs.run("compact")
    health = outcome.health["key_sets"][0]
    assert (health["dead_ratio"], health["sorted_runs"], health["coverage"]) == (0.0, 1, 1.0)
    assert [run["dead_ratio"] for run in outcome.health["layouts"][0]["runs"]] == [0.0]
    assert outcome.result["key_sets"][0]["entries_after"] == rows_in_data_files(spark, table_name)


def test_a_rebuilt_index_is_a_new_generation_and_the_old_one_is_gone(
    spark: SparkSession, jobs: Jobs, table_name: str
) -> None:
    upserted(spark, table_name, format_version=2, partitioned=False, key=["id"])
    jobs.run("index")
    assert jobs.run("rebuild").result["key_sets"][0]["generation"] == 2
    assert [path.name for path in jobs.index.glob("*.db/entries_*")] == ["entries_1_g2"]
    assert jobs.run("convert").result["key_sets"][0]["source"] == "index"

    # A worker that slept over it wrote on where the old generation was.
    (database,) = jobs.index.glob("*.db")
    (database / "files_1_g1" / "manifest").mkdir(parents=True)
    (database / "files_1_g1" / "manifest" / "manifest-late-0").touch()
    jobs.run("index")
    assert sorted(path.name for path in database.iterdir()) == ["entries_1_g2", "files_1_g2"]


def stage_of(result: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(stage for stage in result["stages"] if stage["name"] == name)
    return found


@pytest.mark.thorough
def test_stages_give_the_same_answer_as_spark_tasks(spark: SparkSession, jobs: Jobs, table_name: str) -> None:
    upserted(spark, table_name, format_version=3, partitioned=True, key=["id", "region"])
    before = visible_rows(spark, table_name)
    jobs.runner = TaskRunner(spark, local_rows=-1)
    messages = jobs.reporter.messages
    indexed = jobs.run("index").result
    assert indexed["key_sets"][0]["rows_indexed"] > 0
    assert any(message.startswith("On Spark: ") for message in messages)
    on_spark = stage_of(indexed, "index")
    assert on_spark["tasks_on_spark"] > 0
    assert on_spark["task_seconds"] > 0
    assert on_spark["rows"] == indexed["key_sets"][0]["rows_indexed"]
    assert (on_spark["tasks_in_driver"], on_spark["failed_tasks"]) == (0, 0)
    messages.clear()
    jobs.runner = TaskRunner(spark)
    in_driver = stage_of(jobs.run("rebuild").result, "index")
    assert (in_driver["tasks_in_driver"], in_driver["tasks_on_spark"]) == (on_spark["tasks_on_spark"], 0)
    assert in_driver["rows"] == on_spark["rows"]
    assert messages == []
    jobs.runner = TaskRunner(spark, local_rows=-1)
    assert jobs.run("convert").result["rows_deleted"] > 0
    assert visible_rows(spark, table_name) == before
    assert equality_delete_files(spark, table_name) == []


@pytest.mark.parametrize(("key", "is_here"), [("id", True), ("name", False)])
def test_spark_gets_a_lookup_of_fewer_rows_where_a_row_takes_longer(
    spark: SparkSession, jobs: Jobs, table_name: str, key: str, is_here: bool
) -> None:
    """Keys that are numbers are decoded and found so fast that Spark pays for four times as many."""
    table = TableBuilder.create(spark, table_name, "id bigint, name string", format_version=3)
    rows = pa.table({"id": range(100), "name": [f"name {number}" for number in range(100)]})
    table.append(rows)
    jobs.run("index", key_sets=[[key]])
    table.delete_keys(rows.select([key]).slice(10, 1))
    jobs.runner = TaskRunner(spark, local_rows=25)

    result = jobs.run("convert").result

    assert (result["key_sets"][0]["source"], result["rows_deleted"]) == ("index", 1)
    lookup = stage_of(result, "lookup")
    assert (lookup["rows"], lookup["tasks_in_driver"], lookup["tasks_on_spark"]) == (
        100,
        is_here,
        not is_here,
    )


@pytest.mark.parametrize(
    ("indexed", "partitioned", "key"),
    thorough_unless(
        lambda case: case[0] == "some",
        [
            ("all", True, ["id"]),
            ("all", False, ["id", "region"]),
            ("some", True, ["id", "region"]),
            ("none", True, ["id"]),
        ],
    ),
)
def test_more_keys_than_the_driver_holds_are_resolved_by_ranges(
    spark: SparkSession,
    jobs: Jobs,
    table_name: str,
    monkeypatch: pytest.MonkeyPatch,
    partitioned: bool,
    key: list[str],
    indexed: str,
) -> None:
    monkeypatch.setattr(resolution, "DRIVER_KEYS", 25)
    for module in (positions, stage):
        monkeypatch.setattr(module, "MEMORY_POSITIONS", 20)
    table = upserted(spark, table_name, format_version=3, partitioned=partitioned, key=key)
    if indexed != "none":
        jobs.run("index")
    table.append([{"id": i, "region": None if i % 2 else "eu", "value": 5} for i in range(30)])
    if indexed == "all":
        jobs.run("index")
    table.delete_keys([{"id": i, "region": None} for i in range(0, 30, 3)], equality_columns=key)
    if indexed == "some":
        rows = [{"id": i, "region": "eu", "value": 7} for i in range(90)]
        table.upsert(rows, key=key)
        table.upsert(rows[::2], key=key)
    before = visible_rows(spark, table_name)

    result = jobs.run("convert").result
    (key_set,) = result["key_sets"]
    assert key_set["key_ranges"] > 2
    assert key_set["source"] == {"all": "index", "some": "index_and_scan", "none": "scan"}[indexed]
    assert (visible_rows(spark, table_name), equality_delete_files(spark, table_name)) == (before, [])
    assert stage_of(result, "shuffle")["shuffled_bytes"] > 0


def test_an_index_file_that_cannot_be_merged_does_not_keep_new_files_from_being_indexed(
    spark: SparkSession, jobs: Jobs, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "TASK_ROWS", 40)
    monkeypatch.setattr("worker.index.build.MIN_TASK_ROWS", 40)
    table = TableBuilder.create(spark, table_name, format_version=3)
    table.append([{"id": i, "region": "eu", "value": i} for i in range(50)])
    jobs.run("index", key_sets=[["id"]])
    (run,) = jobs.index.glob("*.db/entries_1_g1/bucket-0/*.parquet")
    run.unlink()
    footers.KEPT.clear()
    table.append([{"id": i, "region": "eu", "value": i} for i in range(200)], files=4)
    indexed = jobs.run("index", key_sets=[["id"]])
    assert indexed.health["key_sets"][0]["coverage"] == 1.0
    assert any("new sorted runs are not merged" in one for one in indexed.result["decisions"])


def test_files_are_not_covered_when_the_lease_was_lost_after_their_entries(
    spark: SparkSession, jobs: Jobs, table_name: str
) -> None:
    upserted(spark, table_name, format_version=3, partitioned=False, key=["id"])
    calls = iter([None, JobCancelledError()])

    def confirm() -> None:
        if error := next(calls):
            raise error

    jobs.reporter.before_commit = confirm
    with pytest.raises(JobCancelledError):
        jobs.run("index")
    jobs.reporter.before_commit = lambda: None
    before = rows_of(spark, table_name)
    assert jobs.run("convert").result["key_sets"][0]["source"] == "scan"
    assert rows_of(spark, table_name) == before


def test_a_late_commit_of_an_earlier_attempt_is_found_and_its_files_stay(
    spark: SparkSession, jobs: Jobs, table_name: str
) -> None:
    table = upserted(spark, table_name, format_version=3, partitioned=False, key=["id"])

    def earlier_attempt_commits() -> None:
        jobs.reporter.before_commit = lambda: None
        jobs.run("convert", job_id="late", attempt=1)
        table.upsert([{"id": 7, "region": "us", "value": 7}], key=["id"])

    jobs.reporter.before_commit = earlier_attempt_commits
    result = jobs.run("convert", job_id="late", attempt=2).result
    assert any("Attempt 1 committed" in sentence for sentence in result["decisions"])
    (pending,) = equality_delete_files(spark, table_name)
    before = rows_of(spark, table_name)
    assert pending["record_count"] == 1
    assert jobs.run("convert").result["equality_delete_files_removed"] == 1
    assert rows_of(spark, table_name) == before


def test_a_cancelled_conversion_leaves_no_file(spark: SparkSession, jobs: Jobs, table_name: str) -> None:
    table = upserted(spark, table_name, format_version=2, partitioned=False, key=["id"])

    def cancel() -> None:
        raise JobCancelledError

    jobs.reporter.before_commit = cancel
    with pytest.raises(JobCancelledError):
        jobs.run("convert")
    location = Path(table.metadata.location.removeprefix("file:"))
    assert not [path for path in location.rglob("*") if path.name.startswith("icestream-")]
    jobs.reporter.before_commit = lambda: None
    assert jobs.run("convert").result["commits"] == 1


def test_a_data_file_that_came_back_is_as_new_as_its_second_commit(
    spark: SparkSession, jobs: Jobs, table_name: str
) -> None:
    """Rolled back, and picked again after a delete of its keys: that delete is older than the file now, which
    the index takes for another one."""
    table = TableBuilder.create(spark, table_name, format_version=3)
    table.append([{"id": i, "region": "eu", "value": i} for i in range(5)])
    first = table.snapshot_id
    table.append([{"id": i, "region": "us", "value": i} for i in range(5)])
    second = table.snapshot_id
    jobs.run("index", key_sets=[["id"]])
    system = f"CALL {table_name.split('.')[0]}.system"
    spark.sql(f"{system}.rollback_to_snapshot('{table_name}', {first})")
    table.delete_keys([{"id": 2}], equality_columns=["id"])
    spark.sql(f"{system}.cherrypick_snapshot('{table_name}', {second})")
    table.delete_keys([{"id": 4}], equality_columns=["id"])
    before = rows_of(spark, table_name)
    assert sum(before.values()) == 7
    assert jobs.run("convert").result["key_sets"][0]["source"] == "index_and_scan"
    assert (rows_of(spark, table_name), equality_delete_files(spark, table_name)) == (before, [])


@dataclass(frozen=True)
class HadoopCatalog:
    name: str
    warehouse: str
    type: str = "hadoop"

    @property
    def properties(self) -> dict[str, str]:
        return {"warehouse": self.warehouse}


def test_a_table_of_a_hadoop_catalog_is_indexed_and_converted(spark: SparkSession, tmp_path: Path) -> None:
    catalog = HadoopCatalog("hadoop_lake", (tmp_path / "warehouse").as_uri())
    key = f"spark.sql.catalog.{catalog.name}"
    spark.conf.set(key, "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set(f"{key}.type", "hadoop")
    spark.conf.set(f"{key}.warehouse", catalog.warehouse)
    spark.conf.set(f"{key}.cache-enabled", "false")
    name = f"{catalog.name}.db.t"
    upserted(spark, name, format_version=3, partitioned=True, key=["id"])
    before = rows_of(spark, name)
    jobs = Jobs(spark, catalog, name, tmp_path / "index")
    jobs.run("index")
    assert jobs.run("convert").result["key_sets"][0]["source"] == "index"
    assert (rows_of(spark, name), equality_delete_files(spark, name)) == (before, [])


def test_a_table_of_a_rest_catalog_is_indexed_and_converted(
    spark: SparkSession, catalog: Catalog, table_name: str, tmp_path: Path
) -> None:
    upserted(spark, table_name, format_version=2, partitioned=True, key=["id"])
    before = rows_of(spark, table_name)
    # The same tables, seen through HTTP.
    with (
        SqlCatalog(catalog.name, **catalog.properties) as tables,
        running_rest_catalog(tables) as rest,
    ):
        jobs = Jobs(spark, rest, table_name, tmp_path / "index")
        jobs.run("index")
        rest.requests.clear()
        assert jobs.run("convert").result["key_sets"][0]["source"] == "index"
        path = f"/v1/namespaces/db/tables/{table_name.rpartition('.')[2]}"
        assert rest.requests.count(f"POST {path}") == 1
        # To plan, before the commit, and within it, where Iceberg looks before and afterwards.
        assert rest.requests.count(f"GET {path}") == 1 + 1 + 2
        with pytest.raises(JobError) as unknown:
            Jobs(spark, rest, f"{catalog.name}.db.nowhere", tmp_path / "index").run("convert")
        assert unknown.value.code == "table_not_found"
    assert (rows_of(spark, table_name), equality_delete_files(spark, table_name)) == (before, [])
