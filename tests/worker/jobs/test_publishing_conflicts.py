"""Others commit while a staging branch is published, or a job dies: nothing comes twice, nothing is lost."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlparse

import pytest
from py4j.protocol import Py4JNetworkError
from pyiceberg.io import FileIO
from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import SparkSession

import worker.deletes.write
from tests.deaths import killed_at_its_commit
from tests.factories import WrittenFile, live_delete_files
from tests.staging import BRANCH, Lake, Meanwhile, in_order, row
from tests.staging import lake as lake
from tests.thorough import THOROUGH, V3_FIRST, first_always
from worker.io.storage import Storage
from worker.jobs.publishing import spared
from worker.keys.read import KeyReader
from worker.publication.plan import PublicationError
from worker.table import row_delta
from worker.table.catalogs import load_table
from worker.table.commit import find_commits, find_head
from worker.table.files import (
    DataFile,
    DataFiles,
    DeleteFile,
    DeleteFiles,
    FileContent,
    NewDeleteFile,
    PartitionKey,
    SnapshotFiles,
)
from worker.table.manifests import Manifest, read_manifest_list

pytestmark = pytest.mark.integration
LOST_PLANS = 2  # after which a job publishes less


@V3_FIRST
@pytest.mark.parametrize(
    "meanwhile",
    [
        *("append", "compact", "rollback"),
        *(
            pytest.param(event, marks=THOROUGH)
            for event in ("upsert", "delete", "schema", "spec", "expiry", "publish")
        ),
    ],
)
def test_what_happens_on_the_target_meanwhile_is_as_if_it_had_come_before(
    lake: Lake, spark: SparkSession, format_version: int, meanwhile: str
) -> None:
    table = lake.create(
        *[row(n, n) for n in range(4)], format_version=format_version, partitioned_by=["region"]
    )
    lake.jobs.run("index", key_sets=[["id"]])
    fork = table.snapshot_id
    table.append([row(5, 5), row(9, 9)])
    (path, *_) = table.data_file_paths
    table.java.manageSnapshots().replaceBranch(BRANCH, table.snapshot_id).commit()
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

    expected = {0: 0, 1: 10, 3: 3, 8: 8, 9: 9}
    if meanwhile == "append":
        expected[6] = 6
    elif meanwhile == "delete":
        del expected[3]
    elif meanwhile == "rollback":
        del expected[9]
    assert lake.rows() == in_order(*[row(n, value) for n, value in expected.items()])
    if meanwhile == "publish":
        assert result["commits"] == 0, "the other one has done it"


@V3_FIRST
@first_always("when", ["meanwhile", "before"])
def test_a_staged_delete_of_a_partition_hits_rows_that_came_under_another_spec_since(
    lake: Lake, format_version: int, when: str
) -> None:
    """Written or compacted; if its key has the columns of its own spec. Those that were there, it spares."""
    table = lake.create(
        *[row(n, n) for n in range(3)], format_version=format_version, partitioned_by=["region"]
    )
    lake.jobs.run("index", key_sets=[["id", "region"]])
    key = ("id", "region")
    lake.upsert(row(1, 10), row(7, 7), key=key)
    lake.upsert(row(1, 11), row(2, 20), row(9, 9), key=key)

    def evolve(_: int) -> None:
        table.java.updateSpec().addField("id").commit()
        table.append([row(7, 70), row(8, 8)])
        table.compact()
        lake.stage(*table.data_files([row(3, 3)], spec_id=0), *_deletes_under_the_old_spec(lake, [8, 9]))

    if when == "before":
        evolve(0)
    else:
        Meanwhile(lake.jobs, evolve)

    assert lake.publish()["stopped_at"] is None
    lake.publish()
    assert any("of a former spec" in told for told in lake.jobs.reporter.decisions)
    left = [row(0, 0), row(1, 11), row(2, 20), row(3, 3), row(7, 7), row(8, 8)]
    assert lake.rows() == in_order(*left)


def test_staged_deletes_of_two_specs_hit_rows_that_came_under_either_since(lake: Lake) -> None:
    """The writer started anew under the new spec, and the table has files of both, too."""
    table = lake.create(row(1, 1), row(2, 2), partitioned_by=["region"])
    key = ("id", "region")
    lake.upsert(row(1, 10), key=key)
    table.java.updateSpec().addField("id").commit()
    table.compact()
    table.commit(*table.data_files([row(3, 3)], spec_id=0))
    lake.upsert(row(2, 20), key=key)

    assert lake.publish()["stopped_at"] is None
    assert lake.rows() == in_order(row(1, 10), row(2, 20), row(3, 3))


@pytest.mark.parametrize(
    ("deletes", "told"),
    [
        ([(1, 5), (2, 5)], "2 staged equality delete files"),  # each spares the other's
        ([(3, 5)], "1 staged equality delete file"),
        ([(3, 1)], None),  # both came later, and are hit by key
        ([(1, 3)], None),
        ([(0, 5)], None),
        ([], None),
    ],
)
def test_each_staged_delete_is_told_that_spares_rows_of_another_spec(
    deletes: list[tuple[int, int]], told: str | None
) -> None:
    """Specs and sequence numbers; that of spec 0 is global."""
    files = [DataFile(f"{spec}", "parquet", PartitionKey(spec, "[1]"), 1, 1, spec * 2 - 1) for spec in (1, 2)]
    staged = [
        DeleteFile(
            FileContent.EQUALITY_DELETES, "d", "parquet", PartitionKey(spec, "[1]"), 1, 1, number, (1,)
        )
        for spec, number in deletes
    ]

    of_target = SnapshotFiles(DataFiles.of(files), DeleteFiles.of(()), frozenset({0}))
    found = spared(staged, of_target, current_spec_id=3)

    assert (found or "").startswith(told or "")
    assert ("start the writer anew" in (found or "")) == any(spec < 3 for spec, _ in deletes if told)
    assert (found is None) == (told is None)


def _deletes_under_the_old_spec(lake: Lake, ids: Sequence[int]) -> list[WrittenFile]:
    rows = [row(one, 0) for one in ids]
    return lake.table.equality_deletes(rows, equality_columns=["id", "region"], spec_id=0)


def test_a_staged_delete_that_no_partition_tells_of_rows_under_another_spec_stops_publication(
    lake: Lake,
) -> None:
    """Its key lacks the column of its spec. Where no row has its key, nothing has to be told."""
    table = lake.create(row(1, 1), row(1, 2, "us"), row(2, 2), partitioned_by=["region"])
    fork = table.snapshot_id
    lake.delete(5)
    lake.upsert(row(1, 10))
    table.java.updateSpec().addField("value").commit()
    table.compact()

    stopped = lake.publish()

    assert (stopped["stopped_at"]["code"], stopped["staged_snapshots"]) == ("staged_under_other_spec", 1)
    assert lake.rows() == in_order(row(1, 1), row(1, 2, "us"), row(2, 2))
    table.java.manageSnapshots().rollbackTo(fork).commit()
    assert lake.publish()["stopped_at"] is None
    assert lake.rows() == in_order(row(1, 10), row(1, 2, "us"), row(2, 2))


def test_each_staged_snapshot_is_read_once_however_often_others_come_first(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the table is looked at once for each commit that was tried."""
    table = lake.create(row(1, 1))
    for value in range(3):
        lake.upsert(row(2, value))
    read: list[str] = []

    def counted(io: FileIO, snapshot: Snapshot) -> Sequence[Manifest]:
        read.append(snapshot.manifest_list)
        return read_manifest_list(io, snapshot)

    def loaded(*arguments: Any) -> Any:
        plans.append(arguments)
        return load_table(*arguments)

    plans: list[Any] = []
    monkeypatch.setattr("worker.publication.staged.read_manifest_list", counted)
    monkeypatch.setattr("worker.attempt.pinned_table.catalogs.load_table", loaded)
    Meanwhile(lake.jobs, lambda number: table.append([row(10 + number, number)]), times=3)

    assert lake.publish()["staged_snapshots"] == 3
    assert len(read) == len(set(read)) == 6, "those that came to the target meanwhile, too"
    assert len(plans) == 4
    assert lake.rows() == in_order(row(1, 1), row(2, 2), *[row(10 + n, n) for n in (1, 2, 3)])


@V3_FIRST
def test_a_later_plan_reads_and_writes_what_is_new_alone(
    lake: Lake, format_version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.create(row(1, 1), row(2, 2), format_version=format_version)
    for n in (3, 4, 5):
        table.append([row(n, n)])
    lake.jobs.run("index", key_sets=[["id"]])
    paths = table.data_file_paths
    table.append([row(6, 6)])
    for n in (3, 4, 6, 7):
        lake.upsert(row(n, 10 * n))
    lake.delete(1, 8)
    read = Counter[str]()
    written: list[tuple[str, int]] = []
    plans: list[int] = []
    read_file, write = KeyReader._read, getattr(worker.deletes.write, _WRITERS[format_version])

    def counted_read(reader: KeyReader, file: DataFile | DeleteFile, *how: Any, **named: Any) -> Any:
        read[file.path] += 1
        return read_file(reader, file, *how, **named)

    def counted_write(storage: Storage, location: str, group: Any) -> NewDeleteFile | list[NewDeleteFile]:
        new: NewDeleteFile | list[NewDeleteFile] = write(storage, location, group)
        for each in new if isinstance(new, list) else [new]:
            written.append((str(each.referenced_data_file), each.record_count))
        return new

    def others(number: int) -> None:
        plans.append(len(written))
        if number == 1:
            table.append([row(4, 40), row(8, 80)])
        elif number == 2:
            table.delete_positions({paths[0]: [1]})
        elif number == 3:
            table.append([row(9, 9)])
        elif number == 4:
            table.compact()
        else:
            assert set(read.values()) == {1}, "keys of each file are read once, at whatever look"

    monkeypatch.setattr(KeyReader, "_read", counted_read)
    monkeypatch.setattr(worker.deletes.write, _WRITERS[format_version], counted_write)
    monkeypatch.setattr("worker.publication.kept_parts._FILES_PER_TASK", 1)
    Meanwhile(lake.jobs, others, times=5)

    result = lake.publish()

    assert result["iceberg_snapshot_id_after"] == table.snapshot_id
    assert lake.rows() == in_order(*[row(n, 10 * n) for n in (3, 4, 6, 7)], row(5, 5), row(9, 9))
    first, appended, deleted, unrelated, compacted = pairwise([0, *plans])
    assert len(written[slice(*first)]) == 4
    assert len(written[slice(*appended)]) == 1, "the file that came"
    assert written[slice(*deleted)] == [(paths[0], 2)], "the file that lost another row"
    assert not written[slice(*unrelated)]
    assert len(written[slice(*compacted)]) == 1, "all rows lie in one file by then"
    assert (result["rows_deleted"], result["key_sets"][0]["keys"]) == (6, 6)
    folder = Path(urlparse(table.metadata.location).path, "data")
    left = {one.name for one in folder.rglob("icestream-*")}
    added = {one["file_path"].rpartition("/")[2] for one in live_delete_files(table.spark, table.identifier)}
    assert left == added, "what was written for heads that are gone is removed"


_WRITERS = {2: "_write_position_delete_file", 3: "_write_puffin_file"}


@pytest.mark.parametrize("how", ["rolled_back", "dropped", "begun_anew"])
def test_what_left_the_staging_branch_between_look_and_commit_is_not_published(lake: Lake, how: str) -> None:
    """Its files may be deleted by then, as an expiry does with what no branch has."""
    table = lake.create(row(1, 1))
    fork = table.snapshot_id
    lake.upsert(row(1, 10))
    lake.publish()
    lake.upsert(row(2, 2))

    def move(_: int) -> None:
        manage = table.java.manageSnapshots()
        if how == "rolled_back":
            manage.replaceBranch(BRANCH, fork).commit()
        elif how == "dropped":
            manage.removeBranch(BRANCH).commit()
        else:
            manage.replaceBranch(BRANCH, table.snapshot_id).commit()
        table.java.expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()

    Meanwhile(lake.jobs, move)

    if how == "begun_anew":
        assert lake.publish()["staged_snapshots"] == 0
    else:
        told = "staging_branch_replaced" if how == "rolled_back" else "staging_branch_not_found"
        with pytest.raises(PublicationError) as refused:
            lake.publish()
        assert refused.value.code == told
    assert lake.rows() == in_order(row(1, 10))


def test_a_job_that_keeps_losing_publishes_less_at_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.publication.kept_parts.LOST_PLANS", LOST_PLANS)
    table = lake.create(row(1, 1))
    for n in (1, 2, 3):
        lake.upsert(row(n, 10 * n))
    Meanwhile(lake.jobs, lambda number: table.append([row(10 + number, number)]), times=LOST_PLANS)
    appended = [row(10 + n, n) for n in range(1, LOST_PLANS + 1)]

    assert lake.publish()["staged_snapshots"] == 1
    assert any("publishes 1 of 3 staged snapshots" in told for told in lake.jobs.reporter.decisions)
    assert lake.rows() == in_order(row(1, 10), *appended)
    assert lake.publish()["staged_snapshots"] == 2
    assert lake.rows() == in_order(*[row(n, 10 * n) for n in (1, 2, 3)], *appended)


def test_a_file_that_is_gone_is_not_taken_for_one_that_was_asked_about(
    lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not resolved at the look that met no file, and is at the one that does."""
    table = lake.create(row(1, 1))
    lake.upsert(row(1, 10))
    lake.upsert(row(3, 30))

    def others(number: int) -> None:
        if number == 1:
            (path,) = table.append([row(3, 3)])
            hidden = Path(urlparse(path).path)
            hidden.rename(hidden.with_suffix(".away"))
            away.append(hidden)

    def found_head(java_table: Any, branch: str) -> int | None:
        if away:
            hidden = away.pop()
            table.append([row(4, 4)])
            hidden.with_suffix(".away").rename(hidden)
        return find_head(java_table, branch)

    away: list[Path] = []
    monkeypatch.setattr("worker.deletes.commit.find_head", found_head)
    Meanwhile(lake.jobs, others, times=1)

    lake.publish()

    assert lake.rows() == in_order(row(1, 10), row(3, 30), row(4, 4))


def test_what_is_staged_while_the_job_runs_comes_with_the_next(lake: Lake) -> None:
    lake.create(row(1, 1))
    lake.upsert(row(1, 10))
    Meanwhile(lake.jobs, lambda _: lake.upsert(row(1, 11)))

    assert lake.publish()["staged_snapshots"] == 1
    assert lake.rows() == in_order(row(1, 10))
    assert lake.publish()["staged_snapshots"] == 1
    assert lake.rows() == in_order(row(1, 11))


@first_always("when", ["before", "after"])
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


@pytest.mark.exhaustive
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
