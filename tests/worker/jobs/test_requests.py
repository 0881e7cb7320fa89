"""What a conversion asks a store for, each file of metadata once and no size; and how little of Java."""

import threading
from pathlib import Path
from typing import Any, Literal
from unittest.mock import Mock

import pyarrow as pa
import pytest
from py4j.clientserver import JavaClient
from py4j.protocol import MEMORY_COMMAND_NAME
from pyiceberg.table.metadata import TableMetadata
from pyspark.sql import SparkSession

from tests.benchmarks.store_jobs import StoreJobs, table_in_store
from tests.factories import TableBuilder
from tests.jobs import Jobs
from tests.patience import PATIENCE_SECONDS
from tests.thorough import V3_FIRST
from worker.attempt.indexes import open_again
from worker.index.key_set_index import KeySetIndex, open_index
from worker.lookup.shuffle import KeysRead, ReadTask
from worker.table import catalogs

pytestmark = pytest.mark.integration


@V3_FIRST
def test_a_conversion_reads_each_file_of_metadata_once(
    spark: SparkSession, tmp_path: Path, format_version: Literal[2, 3]
) -> None:
    with table_in_store(spark, tmp_path, format_version, 1_000, 4) as (table, catalog, store), store.served():
        jobs = StoreJobs(spark, table.identifier, catalog, store)
        table.delete_keys(pa.table({"id": [1]}))
        jobs.measured("build", "index")
        table.delete_keys(pa.table({"id": [2]}))
        measured, outcome = jobs.measured("convert", "convert")

    assert outcome.result["rows_deleted"] == 2
    asked = {stage: dict(requests.by_kind) for stage, requests in measured.stages.items()}
    # Metadata, by Java alone; the list of manifests; the one that came since the build.
    assert asked["plan"] == {"GET": 1 + 1 + 1}
    # Two delete files. Of both tables of the index the schema and the last snapshot; and what there are.
    assert asked["read"] == {"GET": 2 + 2 * 2, "LIST": 1 + 2}
    # The manifest that an earlier job has read; and the new metadata, once the catalog has it.
    # A manifest of each commit without its equality deletes, one of new deletes, a list, the metadata.
    assert asked["commit"] == {"GET": 1 + 1, "PUT": 2 + 1 + 1 + 1}
    assert not asked["report"]
    assert "HEAD" not in measured.requests.by_kind


def test_an_index_is_opened_while_the_keys_of_deletes_are_read(
    spark: SparkSession, jobs: Jobs, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TableBuilder.create(spark, table_name, "id bigint", format_version=3)
    table.append(pa.table({"id": [1, 2]}))
    are_read = threading.Event()

    def opened(*how: Any) -> KeySetIndex | None:
        assert are_read.wait(PATIENCE_SECONDS)
        return open_again(*how)

    def read(task: ReadTask, shared: object) -> KeysRead:
        found = real(task, shared)
        are_read.set()
        return found

    real = ReadTask.run
    jobs.run("index", key_sets=[["id"]])
    table.delete_keys(pa.table({"id": [1]}))
    monkeypatch.setattr("worker.lookup.resolution.open_again", opened)
    monkeypatch.setattr(ReadTask, "run", read)
    assert jobs.run("convert").result["key_sets"][0]["source"] == "index"


def test_what_the_snapshots_of_a_table_say_is_understood_once(
    spark: SparkSession, jobs: Jobs, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[TableMetadata] = []

    def seen_by(*how: Any) -> TableMetadata:
        seen.append(real(*how))
        return seen[-1]

    real = catalogs.table_metadata
    monkeypatch.setattr(catalogs, "table_metadata", seen_by)
    table = TableBuilder.create(spark, table_name, "id bigint", format_version=2)
    table.append(pa.table({"id": [1, 2, 3]}))
    jobs.run("index", key_sets=[["id"]])
    table.delete_keys(pa.table({"id": [1]}))
    jobs.run("convert", takes_new_files=True)
    assert [len(one.snapshots) for one in seen] == [1, 2, 3]
    assert all(one.snapshots[0] is seen[0].snapshots[0] for one in seen)


def test_a_conversion_that_indexes_calls_java_a_few_times_and_opens_the_index_twice(
    spark: SparkSession, jobs: Jobs, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def send(client: JavaClient, command: str, *how: Any, **more: Any) -> Any:
        if not command.startswith(MEMORY_COMMAND_NAME):  # a thread of py4j's lets objects go
            calls.append(command)
        return real(client, command, *how, **more)

    real = JavaClient.send_command
    opened = Mock(wraps=open_index)
    table = TableBuilder.create(spark, table_name, "id bigint", format_version=2)
    table.append(pa.table({"id": [1, 2, 3]}))
    jobs.run("index", key_sets=[["id"]])
    for key in (1, 2):  # the first one makes Java's names known
        table.append(pa.table({"id": [10 + key]}))
        table.delete_keys(pa.table({"id": [key]}))
        calls.clear()
        with monkeypatch.context() as counted:
            counted.setattr(JavaClient, "send_command", send)
            counted.setattr("worker.attempt.indexes.open_index", opened)
            outcome = jobs.run("convert", takes_new_files=True)
        assert outcome.health["covers_head"]
    assert len(calls) < 24
    # To look up, and to add what is new.
    assert opened.call_count == 2 * 2
