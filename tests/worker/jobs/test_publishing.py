"""A staging branch is published: the target gets its rows and deletes, and never an equality delete."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyiceberg.io import FileIO
from pyspark.sql import SparkSession

from tests.deaths import killed_at_its_commit
from tests.factories import TableBuilder, WrittenFile, garble, live_delete_files
from tests.jobs import Jobs
from tests.staging import BRANCH, Lake, in_order, row
from tests.thorough import V2_FIRST, V3_FIRST
from worker.process.errors import JobError
from worker.table import row_delta
from worker.table.catalogs import load_table
from worker.table.commit import find_commits
from worker.table.manifests import Manifest, read_manifest_list

pytestmark = pytest.mark.integration


@pytest.fixture
def lake(spark: SparkSession, jobs: Jobs, table_name: str) -> Lake:
    return Lake(spark, jobs, table_name)


@V3_FIRST
@pytest.mark.parametrize("is_indexed", [True, False])
def test_rows_and_deletes_of_many_staged_snapshots_come_in_one_commit(
    lake: Lake, format_version: int, is_indexed: bool
) -> None:
    table = lake.create(*[row(n, n) for n in range(10)], format_version=format_version)
    if is_indexed:
        lake.jobs.run("index", key_sets=[["id"]])
    before = table.snapshot_id
    lake.upsert(row(3, 30), row(20, 20))
    lake.delete(4, 20, 77)
    lake.upsert(row(3, 31))
    lake.stage(*table.data_files([row(30, 30)]))
    shown = lake.staged_rows()

    foretold = lake.publish(dry_run=True)
    assert lake.rows() == in_order(*[row(n, n) for n in range(10)])
    result = lake.publish()

    left = [row(n, n) for n in range(10) if n not in (3, 4)]
    assert lake.rows() == shown == in_order(*left, row(3, 31), row(30, 30))
    snapshots = result["iceberg_snapshot_id_before"], result["iceberg_snapshot_id_after"]
    assert snapshots == (before, table.snapshot_id)
    told = ("staged_snapshots", "rows_added", "rows_deleted", "data_files_added", "equality_deletes_resolved")
    assert {name: result[name] for name in told} == {name: foretold[name] for name in told}
    assert [result[name] for name in told] == [4, 2, 2, 3, 6]
    assert (result["commits"], foretold["commits"], result["stopped_at"]) == (1, 0, None)
    source = result["key_sets"][0]["source"]
    assert source == ("index_and_scan" if is_indexed else "scan"), "staged files are in no index yet"

    head = table.snapshot_id
    assert lake.publish()["staged_snapshots"] == 0
    assert table.snapshot_id == head
    lake.upsert(row(3, 32), row(30, 33))
    again = lake.publish()
    assert (again["staged_snapshots"], again["rows_added"], again["rows_deleted"]) == (1, 2, 2)
    assert again["key_sets"][0]["data_files_scanned"] == (0 if is_indexed else 4)
    assert lake.rows() == in_order(*left, row(3, 32), row(30, 33))


def test_keys_of_staged_deletes_are_reported_so_that_an_index_follows(lake: Lake) -> None:
    lake.create(row(1, 1))
    lake.upsert(row(1, 10))
    lake.upsert(row(1, 11), key=("id", "region"))

    told = lake.jobs.run("publish", parameters={"from": BRANCH}).health

    assert [(one["columns"], one["generation"]) for one in told["key_sets"]] == [
        (["id"], 0),
        (["id", "region"], 0),
    ]
    assert told["pending_equality_delete_files"] == 0
    seen = [one["equality_field_ids"] for one in told["key_sets"]]
    indexed = lake.jobs.run("index", seen_equality_field_ids=seen).result
    assert [one["columns"] for one in indexed["key_sets"]] == [["id"], ["id", "region"]]
    lake.upsert(row(1, 12))
    assert lake.publish()["key_sets"][0]["data_files_from_index"] > 0


def test_a_writer_that_made_the_branch_of_an_empty_table_is_published(lake: Lake) -> None:
    table = lake.create()
    lake.upsert(row(1, 1), row(2, 2))
    lake.upsert(row(1, 10))

    lake.publish()

    assert lake.rows() == in_order(row(1, 10), row(2, 2))
    assert table.metadata.refs["main"].snapshot_id != table.metadata.refs[BRANCH].snapshot_id


@V2_FIRST
@pytest.mark.parametrize("scope", ["file", "partition"])
def test_position_deletes_of_the_writer_hit_what_they_name_on_either_branch(
    lake: Lake, format_version: int, scope: str
) -> None:
    """Of the same commit, as Flink writes for a key that changes twice in a checkpoint, and of others."""
    table = lake.create(row(1, 1), row(2, 2), format_version=format_version, partitioned_by=["region"])
    (on_target,) = table.data_file_paths
    (first,) = table.data_files([row(3, 3), row(3, 4)])
    (second,) = table.data_files([row(5, 5), row(5, 6), row(5, 7)])
    if format_version == 3:
        deletes = table.deletion_vectors({first.path: [0], second.path: [1]})
    elif scope == "partition":
        deletes = [table.shared_position_deletes({first.path: [0], second.path: [1]})]
    else:
        deletes = table.position_deletes({first.path: [0], second.path: [1]})
    equality_deletes = table.equality_deletes([row(3, 0)], equality_columns=["id"])
    lake.stage(first, second, *deletes, *equality_deletes)
    named = {on_target: [1]}
    lake.stage(*(table.deletion_vectors if format_version == 3 else table.position_deletes)(named))
    lake.upsert(row(5, 8))
    shown = lake.staged_rows()

    result = lake.publish()

    assert lake.rows() == shown == in_order(row(1, 1), row(3, 4), row(5, 8))
    assert (result["rows_added"], result["rows_deleted"]) == (2, 1)
    if format_version == 3:
        vectors = [one["referenced_data_file"] for one in _deletes(table)]
        assert sorted(vectors) == sorted({on_target, first.path, second.path}), (
            "one vector for each data file"
        )


def _deletes(table: TableBuilder) -> list[dict[str, Any]]:
    return live_delete_files(table.spark, table.identifier)


def test_a_vector_that_took_the_place_of_another_on_the_branch_is_published(lake: Lake) -> None:
    """As a MERGE of Spark's does; it removes the older one."""
    table = lake.create(row(1, 1))
    (staged,) = table.data_files([row(n, n) for n in range(5, 10)])
    lake.stage(staged)
    (old,) = table.deletion_vectors({staged.path: [0]})
    lake.stage(old)
    (new,) = table.deletion_vectors({staged.path: [0, 1]})
    head = table.metadata.refs[BRANCH].snapshot_id
    update = table.java.newRowDelta().toBranch(BRANCH).validateFromSnapshot(head)
    update.removeDeletes(table.parsed(old)).addDeletes(table.parsed(new)).commit()

    shown = lake.staged_rows()

    lake.publish()

    assert lake.rows() == shown == in_order(row(1, 1), *[row(n, n) for n in (7, 8, 9)])


def test_key_sets_partitions_and_specs_keep_their_scopes(lake: Lake, spark: SparkSession) -> None:
    """Deletes of a partition hit that one alone; those of an unpartitioned spec hit all, across specs."""
    rows = [row(n, n, region) for n in range(4) for region in ("eu", "us")]
    table = lake.create(*rows, partitioned_by=["region"])
    lake.stage(*table.equality_deletes([row(1, 0)], equality_columns=["id"]))
    lake.stage(*table.equality_deletes([row(0, 2, "us")], equality_columns=["value", "region"]))
    table.java.updateSpec().removeField("region").commit()
    lake.stage(*table.data_files([row(9, 9), row(8, 8, "us")]))
    lake.stage(*table.equality_deletes([{"id": 3}, {"id": 9}]))
    shown = lake.staged_rows()

    result = lake.publish()

    assert lake.rows() == shown
    assert len(result["key_sets"]) == 2
    left = [(n, r) for n in (0, 1, 2) for r in ("eu", "us") if (n, r) not in ((1, "eu"), (2, "us"))]
    assert shown == in_order(*[row(n, n, r) for n, r in left], row(8, 8, "us"))


def test_null_keys_and_columns_that_came_or_went_on_the_way(lake: Lake, spark: SparkSession) -> None:
    table = lake.create(row(1, 1), {"id": None, "region": "eu", "value": 7}, partitioned_by=[])
    lake.delete(None)
    spark.sql(f"ALTER TABLE {table.identifier} ADD COLUMN note string")
    lake.stage(*table.data_files([{**row(2, 2), "note": "x"}, {**row(3, 3), "note": None}]))
    lake.stage(*table.equality_deletes([{"note": None, "id": 3}]))
    table.java.updateSchema().deleteColumn("value").commit()
    lake.stage(*table.data_files([{"id": 4, "region": "eu", "note": "y"}]))

    lake.publish()

    assert lake.rows() == Counter([(1, "eu", None), (2, "eu", "x"), (4, "eu", "y")])


class Meanwhile:
    """What somebody else does between the look at the table and the commit, so many times."""

    def __init__(self, jobs: Jobs, does: Callable[[int], object], times: int = 1) -> None:
        self.times, self.does, self.done = times, does, 0
        jobs.reporter.before_commit = self

    def __call__(self) -> None:
        if self.done < self.times:
            self.done += 1
            self.does(self.done)


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

    def counted(io: FileIO, path: str) -> Sequence[Manifest]:
        read.append(path)
        return read_manifest_list(io, path)

    def loaded(*arguments: Any) -> Any:
        looks.append(arguments)
        return load_table(*arguments)

    looks: list[Any] = []
    monkeypatch.setattr("worker.publication.staged.read_manifest_list", counted)
    monkeypatch.setattr("worker.attempt.pinned_table.catalogs.load_table", loaded)
    Meanwhile(lake.jobs, lambda number: table.append([row(10 + number, number)]), times=3)

    assert lake.publish()["staged_snapshots"] == 3
    assert len(read) == len(set(read)) == 3
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

    (cleared,) = lake.jobs.run("compact", leftovers=[left]).cleared

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


def _reason(result: Mapping[str, Any]) -> tuple[str, int]:
    """Why nothing more was published, and how many snapshots were."""
    stopped = result["stopped_at"]
    assert stopped["reason"]
    assert stopped["remedy"]
    return stopped["code"], result["staged_snapshots"]


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("compaction", "staged_removal"),
        ("removal", "staged_removal"),
        ("conversion", "staged_removal"),
        ("overwrite", "staged_overwrite"),
        ("damage", "corrupt_file"),
        ("compacted target", "staged_position_delete"),
        ("cherry-pick", "data_file_live_already"),
        ("added twice", "data_file_live_already"),
    ],
)
def test_nothing_is_published_from_a_snapshot_on_that_cannot_be(lake: Lake, what: str, code: str) -> None:
    table = lake.create(row(1, 1), row(2, 2), partitioned_by=["region"] if what == "overwrite" else [])
    (on_target,) = table.data_file_paths
    lake.upsert(row(1, 10))
    (staged,) = table.data_files([row(3, 3)])
    lake.stage(staged)
    (file,) = table.data_files([row(4, 4)])
    expected = [row(1, 10), row(2, 2), row(3, 3)]
    match what:
        case "compaction":
            rewrite = table.java.newRewrite().toBranch(BRANCH)
            rewrite.deleteFile(table.parsed(staged)).addFile(table.parsed(file)).commit()
        case "removal":
            table.java.newDelete().toBranch(BRANCH).deleteFile(table.parsed(staged)).commit()
        case "conversion":
            lake.jobs.run("convert", branch=BRANCH)
        case "overwrite":
            (file,) = table.data_files([row(4, 4, "us")])
            table.java.newReplacePartitions().toBranch(BRANCH).addFile(table.parsed(file)).commit()
        case "damage":
            (deletes,) = table.equality_deletes([{"id": 2}])
            lake.stage(deletes)
            garble(Path(deletes.path.removeprefix("file://")))
        case "compacted target":
            lake.stage(*table.deletion_vectors({on_target: [1]}))
            table.compact()
        case "cherry-pick":
            table.append([row(7, 7)])
            table.java.manageSnapshots().cherrypick(table.metadata.refs[BRANCH].snapshot_id).commit()
            expected = [row(1, 10), row(2, 2), row(3, 3), row(7, 7)]
        case "added twice":
            lake.stage(staged)
    lake.stage(*table.data_files([row(9, 9)]))

    result = lake.publish()

    assert _reason(result) == (code, 1 if what == "cherry-pick" else 2)
    assert lake.rows() == in_order(*expected)
    again = lake.publish()
    assert _reason(again) == (code, 0)
    assert (again["commits"], again["published_snapshot_id"]) == (0, None)
    assert any("Nothing is published from staged snapshot" in one for one in lake.jobs.reporter.decisions)


def test_float_keys_stop_publication_where_they_come(lake: Lake) -> None:
    table = lake.create(columns="id bigint, region string, value double")
    lake.stage(*table.data_files([row(1, 1)]))
    lake.stage(*table.equality_deletes([{"value": 1.0}]))
    lake.stage(*table.data_files([row(2, 2)]))

    assert _reason(lake.publish()) == ("float_key", 1)
    assert lake.rows() == in_order(row(1, 1))
    assert table.metadata.refs[BRANCH].snapshot_id != table.snapshot_id


def _remedied(lake: Lake, code: str) -> str:
    with pytest.raises(JobError) as refused:
        lake.publish()
    assert refused.value.code == code
    assert refused.value.remedy
    return str(refused.value)


@pytest.mark.parametrize("how", ["rolled back", "replaced"])
def test_a_staging_branch_that_lost_what_was_published_stops_publication(lake: Lake, how: str) -> None:
    table = lake.create(row(1, 1))
    fork = table.snapshot_id
    lake.upsert(row(1, 10))
    lake.upsert(row(2, 2))
    published = table.metadata.refs[BRANCH].snapshot_id
    lake.publish()
    manage = table.java.manageSnapshots()
    if how == "rolled back":
        manage.replaceBranch(BRANCH, fork).commit()
    else:
        manage.removeBranch(BRANCH).createBranch(BRANCH, fork).commit()
    lake.upsert(row(2, 20))

    assert f"snapshot {published} was published" in _remedied(lake, "staging_branch_replaced")
    assert lake.rows() == in_order(row(1, 10), row(2, 2))

    lake.publish(parameters={"from": BRANCH, "after": fork})
    assert lake.rows() == in_order(row(1, 10), row(2, 20))
    lake.publish(parameters={"from": BRANCH, "after": fork})
    assert lake.rows() == in_order(row(1, 10), row(2, 20)), "the target tells by then"


def test_a_staging_branch_that_starts_anew_at_the_targets_head_goes_on(lake: Lake) -> None:
    table = lake.create(row(1, 1))
    lake.upsert(row(1, 10))
    lake.publish()
    table.java.manageSnapshots().replaceBranch(BRANCH, table.snapshot_id).commit()
    lake.upsert(row(1, 11))

    assert lake.publish()["staged_snapshots"] == 1
    assert lake.rows() == in_order(row(1, 11))


def test_what_a_rollback_of_the_target_took_away_is_published_again(lake: Lake) -> None:
    table = lake.create(row(1, 1))
    fork = table.snapshot_id
    lake.upsert(row(1, 10))
    lake.publish()
    table.java.manageSnapshots().rollbackTo(fork).commit()
    lake.upsert(row(2, 2))

    assert lake.publish()["staged_snapshots"] == 2
    assert lake.rows() == in_order(row(1, 10), row(2, 2))


def test_snapshots_that_expired_before_they_were_published_stop_publication(lake: Lake) -> None:
    table = lake.create(row(1, 1))
    lake.upsert(row(1, 10))
    published = table.metadata.refs[BRANCH].snapshot_id
    lake.publish()
    lake.upsert(row(2, 2))
    # The last one that is published is not needed any more.
    table.java.expireSnapshots().expireSnapshotId(published).commit()
    lake.publish()
    assert lake.rows() == in_order(row(1, 10), row(2, 2))
    lake.upsert(row(3, 3))
    waiting = table.metadata.refs[BRANCH].snapshot_id
    lake.upsert(row(4, 4))
    table.java.expireSnapshots().expireSnapshotId(waiting).commit()

    assert "end before" in _remedied(lake, "staged_snapshots_expired")
    assert lake.rows() == in_order(row(1, 10), row(2, 2))


def test_where_the_snapshot_expired_that_both_branches_had_its_id_tells(lake: Lake) -> None:
    table = lake.create(row(1, 1))
    fork = table.snapshot_id
    lake.upsert(row(1, 10))
    table.append([row(5, 5)])
    table.java.expireSnapshots().expireSnapshotId(fork).commit()

    lake.publish()

    assert lake.rows() == in_order(row(1, 10), row(5, 5))


def test_where_nothing_says_what_was_published_nothing_is(lake: Lake) -> None:
    table = lake.create(row(1, 1))
    fork = table.snapshot_id
    lake.upsert(row(1, 10))
    table.append([row(5, 5)])
    second = table.snapshot_id
    table.append([row(6, 6)])
    table.java.expireSnapshots().expireSnapshotId(fork).expireSnapshotId(second).commit()

    assert "says what was published" in _remedied(lake, "staged_snapshots_expired")
    lake.publish(parameters={"from": BRANCH, "after": fork})
    assert lake.rows() == in_order(row(1, 10), row(5, 5), row(6, 6))


def test_a_delete_that_left_the_branch_for_its_age_still_deletes_on_the_target(lake: Lake) -> None:
    """Iceberg drops deletes older than all data files of a branch, such as one that started empty."""
    table = lake.create()
    lake.delete(1)
    table.append([row(1, 1), row(2, 2), row(3, 3)])
    table.append([row(4, 4)])
    lake.delete(4)
    lake.upsert(row(2, 20))

    result = lake.publish()

    assert lake.rows() == in_order(row(3, 3), row(2, 20))
    assert (result["equality_deletes_resolved"], result["rows_deleted"]) == (3, 3)


def _live_on_branch(table: TableBuilder) -> set[str]:
    shown = table.spark.sql(
        f"SELECT file_path FROM {table.identifier}.files VERSION AS OF '{BRANCH}'"
    ).collect()
    return {one[0] for one in shown}


def checkpoint(lake: Lake, number: int, *files: WrittenFile) -> None:
    """Commits as Flink's sink does, which looks for this when it starts from a checkpoint or savepoint."""
    update = lake.table.java.newRowDelta().toBranch(BRANCH)
    for file in files:
        content_file = lake.table.parsed(file)
        update.addDeletes(content_file) if file.is_delete else update.addRows(content_file)
    names = {"job-id": "j", "operator-id": "o", "max-committed-checkpoint-id": str(number)}
    for name, value in names.items():
        update.set(f"flink.{name}", value)
    update.commit()


def _max_committed(table: TableBuilder) -> int:
    """As Flink's sink finds it: the newest ancestor that names the job and the operator says it."""
    metadata = table.metadata
    at: int | None = metadata.refs[BRANCH].snapshot_id
    while at is not None:
        snapshot = metadata.snapshot_by_id(at)
        assert snapshot is not None
        assert snapshot.summary is not None
        told = snapshot.summary.additional_properties
        if (told.get("flink.job-id"), told.get("flink.operator-id")) == ("j", "o"):
            return int(told["flink.max-committed-checkpoint-id"])
        at = snapshot.parent_snapshot_id
    raise AssertionError("nothing committed")


@V2_FIRST
def test_what_is_published_leaves_the_branch_and_what_waits_stays(
    lake: Lake, format_version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.create(row(1, 1), row(2, 2), format_version=format_version, partitioned_by=["region"])
    checkpoint(lake, 7, *table.equality_deletes([row(1, 0)], equality_columns=["id"]))
    lake.upsert(row(3, 3))
    (waiting,) = table.data_files([row(9, 9)])
    Meanwhile(lake.jobs, lambda _: lake.stage(waiting))

    assert lake.publish()["files_cleared"] == 0, "what came meanwhile is published first"
    assert any("1 staged snapshot came meanwhile" in one for one in lake.jobs.reporter.decisions)
    monkeypatch.setattr("worker.publication.clearing.GATHERED", 2)
    Meanwhile(lake.jobs, lambda _: lake.delete(77))

    result = lake.publish()

    assert result["files_cleared"] == 5, "the file of the target, two of deletes, two of rows"
    assert len(_live_on_branch(table)) == 1
    assert lake.publish()["files_cleared"] == 1
    assert _live_on_branch(table) == set()
    assert _max_committed(table) == 7, "a writer that starts anew finds what it has committed"
    lake.delete(2, 9)
    lake.upsert(row(3, 30))
    lake.publish()
    assert _live_on_branch(table) == set()
    assert lake.rows() == in_order(row(3, 30))
    head = table.metadata.refs[BRANCH].snapshot_id
    assert lake.publish()["files_cleared"] == 0
    assert table.metadata.refs[BRANCH].snapshot_id == head


def test_expiry_deletes_no_file_that_either_branch_needs(lake: Lake) -> None:
    """Iceberg's own: files were added on one branch, and live on the other."""
    table = lake.create(row(1, 1), row(2, 2))
    for round_ in range(3):
        lake.upsert(row(1, 10 + round_), row(3 + round_, 3))
        lake.publish()
        if round_ == 1:
            table.compact()
        _expire(table)
        lake.delete(2)
        assert lake.rows()[(1, "eu", 10 + round_)] == 1
    lake.publish()
    _expire(table)

    assert lake.rows() == in_order(row(1, 12), row(3, 3), row(4, 3), row(5, 3))
    lake.upsert(row(4, 40))
    lake.publish()
    assert lake.rows() == in_order(row(1, 12), row(3, 3), row(4, 40), row(5, 3))
    table.java.manageSnapshots().removeBranch(BRANCH).commit()
    _expire(table)
    assert len(table.metadata.snapshots) == 1
    assert lake.rows() == in_order(row(1, 12), row(3, 3), row(4, 40), row(5, 3))


def _expire(table: TableBuilder) -> None:
    """All that no branch's head needs."""
    table.java.expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()


def test_a_staged_snapshot_is_not_lost_when_those_around_it_expire(lake: Lake) -> None:
    """The target's history is gone by then; the branch itself says what was published."""
    table = lake.create(row(1, 1))
    lake.upsert(row(1, 10))
    lake.publish()
    for n in range(3):
        table.append([row(5 + n, 5)])
    _expire(table)
    lake.upsert(row(1, 11))

    assert lake.publish()["staged_snapshots"] == 1
    assert lake.rows() == in_order(row(1, 11), *[row(5 + n, 5) for n in range(3)])


@pytest.mark.parametrize("is_expired", [True, False])
def test_a_target_that_was_rolled_back_behind_what_left_the_branch(lake: Lake, is_expired: bool) -> None:
    table = lake.create(row(1, 1))
    fork = table.snapshot_id
    lake.upsert(row(1, 10))
    lake.upsert(row(2, 2))
    lake.publish()
    published = table.snapshot_id
    table.java.manageSnapshots().rollbackTo(fork).commit()
    lake.upsert(row(2, 20))
    if is_expired:
        table.java.expireSnapshots().expireSnapshotId(published).commit()

    assert lake.publish()["staged_snapshots"] == 3
    assert lake.rows() == in_order(row(1, 10), row(2, 20))


def test_a_killed_clearing_is_made_up_for_by_the_next_job(lake: Lake) -> None:
    table = lake.create(row(1, 1))
    lake.upsert(row(1, 10))
    with killed_at_its_commit("after"):
        lake.publish()
    assert len(_live_on_branch(table)) == 3

    assert lake.publish()["files_cleared"] == 3
    assert _live_on_branch(table) == set()


def test_deletes_that_find_no_row_are_done_without_a_commit_on_the_target(lake: Lake) -> None:
    """The branch says so, up to a rollback of the target; of snapshots without any file, too."""
    table = lake.create(row(1, 1))
    fork = table.snapshot_id
    table.append([row(2, 2)])
    lake.jobs.run("delete", rows=[{"id": 2}], parameters={"key_columns": ["id"]})
    head = table.snapshot_id
    lake.delete(2)
    lake.stage()

    result = lake.publish()

    assert (result["staged_snapshots"], result["commits"], result["files_cleared"]) == (2, 0, 2)
    assert (table.snapshot_id, lake.publish()["staged_snapshots"]) == (head, 0)
    lake.stage()
    assert [lake.publish()["staged_snapshots"] for _ in range(2)] == [1, 0]
    table.java.manageSnapshots().rollbackTo(fork).commit()
    table.append([row(2, 2)])
    assert lake.publish()["rows_deleted"] == 1
    assert lake.rows() == in_order(row(1, 1))


def test_a_writer_that_commits_while_the_branch_is_cleared_is_not_told_of_an_older_checkpoint(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would commit the files of the last one once more."""
    monkeypatch.setattr("worker.publication.clearing.GATHERED", 1)
    table = lake.create(row(1, 1))
    checkpoint(lake, 1, *table.data_files([row(2, 2)]))

    def commit_again(time: int) -> None:
        if time > 1:  # the first call is before the commit on the target
            checkpoint(lake, time, *table.data_files([row(2 + time, 0)]))

    Meanwhile(lake.jobs, commit_again, times=3)

    assert lake.publish()["files_cleared"] == 2
    assert _max_committed(table) == 3
    lake.publish()
    assert (_max_committed(table), _live_on_branch(table)) == (3, set())
    _expire(table)
    assert _max_committed(table) == 3, "also when the writer's own snapshots have expired"
    assert lake.rows() == in_order(row(1, 1), row(2, 2), row(4, 0), row(5, 0))


def test_published_rows_get_row_ids_of_their_own_and_the_commits_number(lake: Lake) -> None:
    """Iceberg takes the ids that a file had on another branch away when it is added (spec, "Row Lineage")."""
    table = lake.create(row(1, 1), row(2, 2))
    before = _lineage(table)
    lake.upsert(row(2, 20), row(3, 3))
    lake.publish()

    after = _lineage(table)

    assert after[1] == before[1]
    assert len({one for one, _ in after.values()}) == 3
    published = table.metadata.snapshot_by_id(table.snapshot_id or 0)
    assert published is not None
    assert {after[2][1], after[3][1]} == {published.sequence_number}
    assert max(one for one, _ in after.values()) < (table.java.operations().current().nextRowId())


def _lineage(table: TableBuilder) -> dict[int, tuple[int, int]]:
    query = f"SELECT id, _row_id, _last_updated_sequence_number FROM {table.identifier}"
    return {one[0]: (one[1], one[2]) for one in table.spark.sql(query).collect()}


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
