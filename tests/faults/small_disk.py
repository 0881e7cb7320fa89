"""Jobs on a disk that is really full; `test_full_disk.py` runs this file where it may mount one."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import worker.io.paths
import worker.lookup.positions
import worker.lookup.resolution
from tests.factories import Catalog, TableBuilder, visible_rows
from tests.faults.tables import (
    assert_next_attempt_converts,
    assert_nothing_is_left,
    commits_by_job,
    local,
    strays,
    unnamed,
)
from tests.jobs import Jobs
from worker.process.errors import JobError

_numbers = count()
ROWS = 20_000
EXPECTED = Counter((i, i) for i in range(ROWS) if i % 2)


class Disk:
    """A file system in memory, as small as a test says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._mount("-t", "tmpfs", "-o", "size=1g", "tmpfs", str(path))

    def resize(self, size: str) -> None:
        self._mount("-o", f"remount,size={size}", str(self.path))

    def fill(self) -> None:
        with (self.path / "ballast").open("ab", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError:
                return

    def clear(self) -> None:
        (self.path / "ballast").unlink()

    def _mount(self, *arguments: str) -> None:
        subprocess.run(["mount", *arguments], check=True)


@pytest.fixture(scope="session")
def spark_disk() -> Disk:
    """Where Spark keeps what it shuffles."""
    return Disk(Path(os.environ["SPARK_LOCAL_DIRS"]))


@pytest.fixture(scope="session")
def spark(spark_disk: Disk, spark: SparkSession) -> SparkSession:
    """The session of the other tests, started once that disk is there."""
    return spark


@pytest.fixture(scope="module", params=[2, 3])
def disk(request: pytest.FixtureRequest, catalog: Catalog) -> Disk:
    """Where the tables of one namespace lie."""
    return Disk(local(catalog.warehouse) / f"disk{request.param}")


@pytest.fixture
def table(spark: SparkSession, catalog: Catalog, disk: Disk) -> TableBuilder:
    """Three data files, and deletes of every second row."""
    name = f"{catalog.name}.{disk.path.name}.t{next(_numbers)}"
    version: Any = 3 if disk.path.name.endswith("3") else 2
    table = TableBuilder.create(spark, name, "id bigint, v bigint", format_version=version)
    table.append(pa.table({"id": range(ROWS), "v": range(ROWS)}), files=3)
    table.delete_keys(pa.table({"id": range(0, ROWS, 2)}))
    return table


@pytest.mark.parametrize("size", ["4k", "8k", "16k", "32k"])  # for schemas, runs, manifests, the dictionary
def test_a_full_disk_of_the_index(
    spark: SparkSession,
    catalog: Catalog,
    table: TableBuilder,
    tmp_path: Path,
    size: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Disk(tmp_path / "small")
    jobs = Jobs(spark, catalog, table.identifier, place.path / "index")
    place.resize(size)
    with pytest.raises(JobError) as failed:
        jobs.run("index", job_id="full")
    assert failed.value.retryable
    assert "No space left on device" in failed.value.detail
    place.resize("1g")
    assert jobs.run("index", job_id="full", attempt=2).result["key_sets"][0]["rows_indexed"] == ROWS
    assert jobs.run("verify").result["key_sets"][0]["differences"] == 0
    monkeypatch.setattr("worker.index.compaction.KEEP_SECONDS", 0)
    for _ in range(2):
        jobs.run("compact")
    assert strays(table, jobs.index_location) == set()


@pytest.fixture(params=["positions", "paths", "spark"])
def temporary_files(
    request: pytest.FixtureRequest, spark_disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Disk:
    """Where what a job does not hold in memory lies."""
    if request.param == "spark":
        monkeypatch.setattr(worker.lookup.resolution, "DRIVER_KEYS", ROWS // 10)
        return spark_disk
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    if request.param == "paths":
        monkeypatch.setattr(worker.io.paths, "MEMORY_BYTES", 1)
    else:
        monkeypatch.setattr(worker.lookup.positions, "MEMORY_POSITIONS", ROWS // 10)
    return Disk(tmp_path / "temporary")


def test_a_full_disk_of_temporary_files(
    spark: SparkSession, catalog: Catalog, table: TableBuilder, tmp_path: Path, temporary_files: Disk
) -> None:
    jobs = Jobs(spark, catalog, table.identifier, tmp_path / "index")
    temporary_files.fill()
    with pytest.raises(JobError) as failed:
        jobs.run("convert", job_id="full")
    assert (failed.value.code, failed.value.retryable) == ("storage_full", True)
    assert "No space left on device" in failed.value.detail
    assert "\n" not in failed.value.detail
    temporary_files.clear()
    done = jobs.run("convert", job_id="full", attempt=2)
    assert done.result["rows_deleted"] == ROWS // 2
    assert commits_by_job(table) == {"full": 1}
    assert visible_rows(spark, table.identifier) == EXPECTED
    assert_nothing_is_left(table)


@pytest.mark.parametrize("when", ["before the delete files", "before the commit"])
def test_a_full_disk_of_the_table(
    spark: SparkSession, catalog: Catalog, table: TableBuilder, disk: Disk, tmp_path: Path, when: str
) -> None:
    jobs = Jobs(spark, catalog, table.identifier, tmp_path / "index")
    if when == "before the commit":
        jobs.reporter.before_commit = disk.fill
    else:
        disk.fill()
    with pytest.raises(JobError) as failed:
        jobs.run("convert", job_id="full")
    assert failed.value.retryable
    assert "No space left on device" in failed.value.detail
    assert visible_rows(spark, table.identifier) == EXPECTED
    jobs.reporter.before_commit = lambda: None
    disk.clear()
    assert_next_attempt_converts(jobs, table, "full", EXPECTED)
    # Manifests of a commit of which it was not known whether it happened: they go with the table's orphans.
    expected = {".avro"} if when == "before the commit" else set()
    assert {Path(name).suffix for name in unnamed(table)} <= expected
