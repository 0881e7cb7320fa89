"""What must hold of a table after any fault: nothing left behind, nothing committed twice."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyarrow import fs as pafs
from pyspark.sql import SparkSession

from tests.factories import TableBuilder, equality_delete_files, visible_rows
from tests.jobs import Jobs
from worker.storage import Storage


def local(location: str) -> Path:
    return Path("/" + location.removeprefix("file:").lstrip("/"))


def table_with_deletes(spark: SparkSession, name: str, format_version: Any, rows: int) -> TableBuilder:
    """Two data files of rows (i, i), and deletes of every third one."""
    table = TableBuilder.create(spark, name, "id bigint, v bigint", format_version=format_version)
    table.append([{"id": i, "v": i} for i in range(rows)], files=2)
    table.delete_keys([{"id": i} for i in range(0, rows, 3)])
    return table


def assert_every_manifest_is_named(table: TableBuilder) -> None:
    """Each manifest is there that some snapshot names, and no other."""
    named = table.spark.sql(f"SELECT path FROM {table.identifier}.all_manifests").collect()
    named += table.spark.sql(f"SELECT manifest_list FROM {table.identifier}.snapshots").collect()
    written = local(table.metadata_location).parent.glob("*.avro")
    assert {path.name for path in written} == {row[0].rpartition("/")[2] for row in named}


def assert_nothing_is_left(table: TableBuilder) -> None:
    """No equality delete is live, and each of our files in the table's location is named by a snapshot."""
    assert equality_delete_files(table.spark, table.identifier) == []
    assert orphans(table) == set()


def assert_next_attempt_converts(
    jobs: Jobs, table: TableBuilder, job_id: str, rows: Mapping[tuple[Any, ...], int]
) -> None:
    """After a failed first attempt: the second one ends the job in one commit, with these visible rows."""
    left = jobs.reporter.left_by(job_id)
    done = jobs.run("convert", job_id=job_id, attempt=2, leftovers=[left])
    assert done.cleared
    assert commits_by_job(table) == {job_id: 1}
    assert visible_rows(table.spark, table.identifier) == rows
    assert_nothing_is_left(table)


def orphans(table: TableBuilder, properties: Mapping[str, str] | None = None) -> set[str]:
    """Names of files that conversions wrote into the table's location and no snapshot names.

    properties: of the store, if it is not a local one.
    """
    named = table.spark.sql(f"SELECT DISTINCT file_path FROM {table.identifier}.all_delete_files").collect()
    filesystem, path = Storage(properties).resolve(table.metadata.location)
    found = filesystem.get_file_info(pafs.FileSelector(path, recursive=True))
    written = {info.base_name for info in found if info.base_name.startswith("icestream-")}
    return written - {row[0].rpartition("/")[2] for row in named}


def commits_by_job(table: TableBuilder) -> Counter[str]:
    """How often each job committed, by the snapshots that the metadata still has, rolled back or not."""
    summaries = [snapshot.summary for snapshot in table.metadata.snapshots]
    return Counter(
        job
        for summary in summaries
        if summary and (job := summary.additional_properties.get("icestream.job-id"))
    )
