"""Others commit while a staging branch is published, or a job dies: nothing comes twice, nothing is lost."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyiceberg.io import FileIO
from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import SparkSession

from tests.deaths import killed_at_its_commit
from tests.staging import Lake, Meanwhile, in_order, row
from tests.staging import lake as lake
from tests.thorough import V3_FIRST
from worker.table import row_delta
from worker.table.catalogs import load_table
from worker.table.commit import find_commits
from worker.table.manifests import Manifest, read_manifest_list

pytestmark = pytest.mark.integration


@V3_FIRST
@pytest.mark.parametrize(
    "meanwhile",
    ["append", "upsert", "compact", "delete", "schema", "spec", "rollback", "expiry", "publish"],
)
def test_what_happens_on_the_target_meanwhile_is_as_if_it_had_come_before(
    lake: Lake, spark: SparkSession, format_version: int, meanwhile: str
) -> None:
    table = lake.create(
        *[row(n, n) for n in range(4)], format_version=format_version, partitioned_by=["region"]
    )
    lake.jobs.run("index", key_sets=[["id"]])
    fork = table.snapshot_id
    table.append([row(5, 5)])
    (path, *_) = table.data_file_paths
    lake.upsert(row(1, 10), row(8, 8))
    lake.delete(5, 2)
    others = {
        "append": lambda _: table.append([row(1, 7), row(6, 6)]),
        "upsert": lambda _: lake.jobs.run("upsert", rows=[row(1, 7)], parameters={"key_columns": ["id"]}),
        "compact": lambda _: table.compact(),
        "delete": lambda _: table.delete_positions({path: [1, 3]}),
        "schema": lambda _: spark.sql(f"ALTER TABLE {table.identifier} RENAME COLUMN value TO amount"),
        "spec": lambda _: table.java.updateSpec().removeField("region").commit(),
        "rollback": lambda _: table.java.manageSnapshots().rollbackTo(fork).commit(),
        "expiry": lambda _: table.java.expireSnapshots().expireSnapshotId(fork).commit(),
        "publish": lambda _: lake.publish(),
    }
    Meanwhile(lake.jobs, others[meanwhile])

    result = lake.publish()

    expected = {0: 0, 1: 10, 3: 3, 8: 8}
    if meanwhile == "append":
        expected[6] = 6
    elif meanwhile == "delete":
        del expected[3]
    assert lake.rows() == in_order(*[row(n, value) for n, value in expected.items()])
    if meanwhile == "publish":
        assert result["commits"] == 0, "the other one has done it"


def test_each_staged_snapshot_is_read_once_however_often_others_come_first(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the table is looked at once for each commit that was tried, and once after the last."""
    table = lake.create(row(1, 1))
    for value in range(3):
        lake.upsert(row(2, value))
    read: list[str] = []

    def counted(io: FileIO, snapshot: Snapshot) -> Sequence[Manifest]:
        read.append(snapshot.manifest_list)
        return read_manifest_list(io, snapshot)

    def loaded(*arguments: Any) -> Any:
        looks.append(arguments)
        return load_table(*arguments)

    looks: list[Any] = []
    monkeypatch.setattr("worker.publication.staged.read_manifest_list", counted)
    monkeypatch.setattr("worker.attempt.pinned_table.catalogs.load_table", loaded)
    Meanwhile(lake.jobs, lambda number: table.append([row(10 + number, number)]), times=3)

    assert lake.publish()["staged_snapshots"] == 3
    assert len(read) == len(set(read)) == 6, "those that came to the target meanwhile, too"
    assert len(looks) == 5
    assert lake.rows() == in_order(row(1, 1), row(2, 2), *[row(10 + n, n) for n in (1, 2, 3)])


def test_what_is_staged_while_the_job_runs_comes_with_the_next(lake: Lake) -> None:
    lake.create(row(1, 1))
    lake.upsert(row(1, 10))
    Meanwhile(lake.jobs, lambda _: lake.upsert(row(1, 11)))

    assert lake.publish()["staged_snapshots"] == 1
    assert lake.rows() == in_order(row(1, 10))
    assert lake.publish()["staged_snapshots"] == 1
    assert lake.rows() == in_order(row(1, 11))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_killed_attempt_is_followed_by_one_that_publishes_what_is_missing(lake: Lake, when: str) -> None:
    table = lake.create(row(1, 1), row(2, 2))
    lake.upsert(row(1, 10), row(3, 3))
    with killed_at_its_commit(when) as death:
        lake.publish(job_id="killed")
    assert death.happened
    lake.delete(2)

    result = lake.publish(job_id="killed", attempt=2)

    assert lake.rows() == in_order(row(1, 10), row(3, 3), *([] if when == "before" else [row(2, 2)]))
    assert (result["rows_added"], result["commits"]) == (2, 1)
    assert len(find_commits(table.java, "main", "killed")) == 1
    assert lake.publish()["staged_snapshots"] == (0 if when == "before" else 1)
    assert lake.rows() == in_order(row(1, 10), row(3, 3))


def test_another_job_after_a_commit_that_nobody_heard_of_publishes_nothing_twice(lake: Lake) -> None:
    """The job is lost with the service's database; the target says what was published."""
    table = lake.create(row(1, 1))
    lake.upsert(row(1, 10), row(3, 3))
    with killed_at_its_commit("after"):
        lake.publish(job_id="lost")
    head = table.snapshot_id

    result = lake.publish()

    assert (result["staged_snapshots"], result["commits"], table.snapshot_id) == (0, 0, head)
    assert lake.rows() == in_order(row(1, 10), row(3, 3))


def test_what_a_killed_attempt_wrote_goes_and_staged_files_stay(lake: Lake) -> None:
    table = lake.create(row(1, 1))
    lake.upsert(row(1, 10))
    with killed_at_its_commit("before"):
        lake.publish(job_id="killed")
    left = lake.jobs.reporter.left_by("killed")
    table.append([row(2, 2)])

    (cleared,) = lake.jobs.run("compact", ended_attempts=[left]).cleared

    assert cleared.job_id == "killed"
    lake.publish()
    assert lake.rows() == in_order(row(1, 10), row(2, 2))


def test_a_commit_whose_answer_was_lost_is_found(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    class Commit:
        def __init__(self, operation: Any) -> None:
            self._operation = operation

        def commit(self) -> None:
            self._operation.commit()
            raise Py4JNetworkError("no answer from Java")

    table = lake.create(row(1, 1))
    lake.upsert(row(1, 10))
    real = row_delta.java_row_delta
    monkeypatch.setattr(row_delta, "java_row_delta", lambda *arguments: Commit(real(*arguments)))

    assert lake.publish()["iceberg_snapshot_id_after"] == table.snapshot_id
    assert lake.rows() == in_order(row(1, 10))


@pytest.mark.thorough
def test_others_who_commit_on_both_branches_each_second_hold_no_publication_up(lake: Lake) -> None:
    table = lake.create(row(0, 0))
    lake.jobs.run("index", key_sets=[["id"]])
    has_ended = Event()

    def commit_each_second() -> int:
        number = 0
        while not has_ended.wait(1):
            number += 1
            table.append([row(-number, number)])
            lake.upsert(row(1, number), row(0, number))
        return number

    with ThreadPoolExecutor(1) as others:
        commits = others.submit(commit_each_second)
        try:
            published = 0
            while published < 5:
                published += lake.publish()["commits"]
        finally:
            has_ended.set()
        written = commits.result()
    lake.publish()

    assert written > 1
    expected = [row(0, written), row(1, written), *[row(-n, n) for n in range(1, written + 1)]]
    assert lake.rows() == in_order(*expected)
