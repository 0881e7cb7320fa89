"""Deletion vectors of a task in one Puffin file: what readers see, and who may let snapshots expire."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.deaths import killed_at_its_commit
from tests.exactness import Exactness
from tests.factories import TableBuilder, spark_rows
from tests.jobs import ONE_PER_TASK
from tests.maven import jar
from tests.readers import Rows, duckdb_rows
from tests.thorough import first_always
from worker.contract.control_plane import AttemptId
from worker.deletes.locations import output_locations
from worker.spark.jars import cached_jars, jars_folder

pytestmark = pytest.mark.integration
FILES = 6
_EXPIRE = Path(__file__).with_name("Expire.java")
_SPARK = Path(pyspark.__path__[0])


def new_table(exactly: Exactness, *, files: int = FILES) -> TableBuilder:
    """Four rows in each of the files."""
    table = exactly.table("id bigint, value bigint", format_version=3)
    table.append([{"id": n, "value": 0} for n in range(4 * files)], files=files)
    return table


def delete(table: TableBuilder, *ids: int) -> None:
    table.delete_keys([{"id": n} for n in ids])


def first_of_each(files: int = FILES) -> range:
    return range(0, 4 * files, 4)


def convert(exactly: Exactness, policy: Mapping[str, Any] = ONE_PER_TASK, **how: Any) -> dict[str, Any]:
    result = exactly.jobs.run("convert", policy=policy, **how).result
    assert result["unconvertible"] == []
    return result


def rows_without(*ids: int, files: int = FILES) -> Rows:
    return Rows({(n, 0): 1 for n in range(4 * files) if n not in ids})


def vectors(table: TableBuilder) -> dict[str, set[str]]:
    """By Puffin file, the data files of which the live vectors in there speak."""
    found: dict[str, set[str]] = {}
    query = f"SELECT file_path, referenced_data_file FROM {table.identifier}.delete_files"
    for path, data_file in table.spark.sql(query).collect():
        found.setdefault(path, set()).add(data_file)
    return found


def puffin_files(table: TableBuilder) -> set[str]:
    folder = Path(table.metadata.location.removeprefix("file:"))
    return {path.name for path in folder.rglob("*.puffin")}


def check(table: TableBuilder, expected: Rows) -> None:
    assert spark_rows(table.spark, table.identifier) == duckdb_rows(table) == expected
    referenced = [path for of_file in vectors(table).values() for path in of_file]
    assert len(referenced) == len(set(referenced)), "a data file has one vector"


def replaced_one(exactly: Exactness) -> tuple[TableBuilder, str]:
    """A table and the file of its vectors, of which one was replaced and the others are live."""
    table = new_table(exactly)
    delete(table, *first_of_each())
    convert(exactly)
    (shared,) = vectors(table)
    delete(table, 1)
    convert(exactly)
    table.append([{"id": 100, "value": 0}])
    return table, shared


def is_there(path: str) -> bool:
    return Path(path.removeprefix("file:")).exists()


def by_age(table: TableBuilder) -> None:
    """As Flink's maintenance and Trino do it."""
    now = int(time.time() * 1000) + 60_000
    table.java.expireSnapshots().expireOlderThan(now).retainLast(1).commit()


def earlier_snapshots(table: TableBuilder) -> list[int]:
    head = table.snapshot_id
    return [one.snapshot_id for one in table.metadata.snapshots if one.snapshot_id != head]


def by_ids(table: TableBuilder) -> None:
    update = table.java.expireSnapshots()
    for snapshot_id in earlier_snapshots(table):
        update.expireSnapshotId(snapshot_id)
    update.commit()


def add_branch(table: TableBuilder) -> None:
    table.java.manageSnapshots().createBranch("other", table.snapshot_id).commit()
    table.commit(*table.deletion_vectors({table.append([{"id": 101, "value": 0}])[0]: [0]}), branch="other")


def beside_a_branch(table: TableBuilder) -> None:
    add_branch(table)
    by_age(table)


def by_action(table: TableBuilder) -> None:
    """Which Spark's procedure expire_snapshots calls."""
    actions: Any = table.spark.sparkContext._jvm.org.apache.iceberg.spark.actions.SparkActions  # type: ignore[union-attr]
    now = int(time.time() * 1000) + 60_000
    actions.get().expireSnapshots(table.java).expireOlderThan(now).retainLast(1).execute()


def test_the_vectors_of_a_task_are_one_file_which_stays_when_one_is_replaced(exactly: Exactness) -> None:
    table = new_table(exactly)
    delete(table, *first_of_each())
    foretold = convert(exactly, dry_run=True)
    result = convert(exactly)
    assert (result["deletion_vectors_added"], result["rows_deleted"]) == (FILES, foretold["rows_deleted"])
    ((first, of_first),) = vectors(table).items()
    assert len(of_first) == FILES
    assert result["bytes_written"] == Path(first.removeprefix("file:")).stat().st_size
    check(table, rows_without(*first_of_each()))

    delete(table, 1, 5)
    result = convert(exactly)
    assert (result["deletion_vectors_added"], result["delete_files_removed"]) == (2, 2)
    second = vectors(table)
    assert {path: len(of_file) for path, of_file in second.items() if path != first} == {
        path: 2 for path in second if path != first
    }
    assert (len(second), len(second[first])) == (2, FILES - 2)
    check(table, rows_without(*first_of_each(), 1, 5))

    # Spark's own deletes come on top of both.
    table.spark.sql(f"DELETE FROM {table.identifier} WHERE id IN (2, 9)")
    delete(table, 3, 10, 13)
    convert(exactly)
    check(table, rows_without(*first_of_each(), 1, 5, 2, 9, 3, 10, 13))


def test_what_is_live_moves_once_little_else_of_its_file_is(exactly: Exactness) -> None:
    table = new_table(exactly)
    delete(table, *first_of_each())
    convert(exactly)
    (first,) = vectors(table)
    for n in range(1, FILES):
        delete(table, 4 * n + 1)
        result = convert(exactly)
        moved = result["deletion_vectors_added"] - 1
        assert moved == (1 if n == FILES - 1 else 0)
    assert first not in vectors(table)
    assert any("1 deletion vectors move, since" in one for one in result["decisions"])
    check(table, rows_without(*first_of_each(), *(4 * n + 1 for n in range(1, FILES))))


@pytest.mark.parametrize(
    ("expire", "deletes"),
    [(by_age, True), (by_ids, False), (beside_a_branch, False), (by_action, False)],
)
def test_which_expiry_deletes_a_file_of_which_one_vector_was_replaced(
    exactly: Exactness, expire: Any, deletes: bool
) -> None:
    """Of Iceberg's: by age, where all snapshots are main's, it takes what was removed for not needed."""
    table, shared = replaced_one(exactly)
    assert len(vectors(table)[shared]) == FILES - 1
    expire(table)
    assert shared in vectors(table)
    assert is_there(shared) is not deletes


def expire_by(version: str, table: TableBuilder, *snapshot_ids: int) -> None:
    """By another version of Iceberg, of which no Spark of ours has a runtime."""
    catalog, _, name = table.identifier.partition(".")
    place = [str(table.spark.conf.get(f"spark.sql.catalog.{catalog}.{key}")) for key in ("uri", "warehouse")]
    runtime = jar(f"org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:{version}")
    (driver,) = (path for path in cached_jars(jars_folder(os.environ)) if "sqlite" in path.name)
    libraries = [runtime, driver, _SPARK / "jars" / "*"]
    command = ["java", "-cp", os.pathsep.join(map(str, libraries)), str(_EXPIRE)]
    told = subprocess.run(
        [*command, catalog, *place, name, *map(str, snapshot_ids)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert told.stdout.split()[-1] == version


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", ["1.8.1", "1.9.2", "1.10.1", "1.11.0"])
@pytest.mark.parametrize("way", ["age", "ids", "beside a branch"])
def test_which_expiry_of_an_older_version_deletes_such_a_file(
    exactly: Exactness, way: str, version: str
) -> None:
    """The same ones as of the newest, which can't read what metadata 1.8 writes of a table of V3."""
    table, shared = replaced_one(exactly)
    if way == "beside a branch":
        add_branch(table)
    assert len(vectors(table)[shared]) == FILES - 1
    expire_by(version, table, *(earlier_snapshots(table) if way == "ids" else ()))
    assert is_there(shared) is (way != "age")


def test_our_own_expiry_spares_a_shared_file_until_nothing_of_it_is_live(exactly: Exactness) -> None:
    table, shared = replaced_one(exactly)
    expected = rows_without(*first_of_each(), 1) + Rows({(100, 0): 1})

    def expire() -> dict[str, Any]:
        parameters = {"older_than_seconds": 0, "retain_last": 1}
        result: dict[str, Any] = exactly.jobs.run("expire_snapshots", parameters=parameters).result["expiry"]
        return result

    assert expire()["delete_files_deleted"] == 2, "the equality deletes of before"
    assert is_there(shared)
    check(table, expected)
    delete(table, *(n + 2 for n in first_of_each()))
    convert(exactly)
    assert shared not in vectors(table)
    told = expire()
    assert not is_there(shared)
    assert told["delete_files_deleted"] == len({shared}) + 2
    check(table, expected - Rows({(n + 2, 0): 1 for n in first_of_each()}))


@first_always("is_pending", [True, False])
def test_once_somebody_else_expires_all_move_and_his_expiry_loses_nothing(
    exactly: Exactness, is_pending: bool
) -> None:
    """Those that earlier conversions have left beside vectors that they replaced, and those of a file that is
    wholly live: others replace one of them later. Also where nothing is pending."""
    table, shared = replaced_one(exactly)
    delete(table, 2, 5)
    convert(exactly)
    (whole,) = (path for path, of_file in vectors(table).items() if len(of_file) == 2)
    if is_pending:
        delete(table, 100)
    head = table.snapshot_id
    convert(exactly, snapshots_expire_elsewhere=True, dry_run=True)
    assert table.snapshot_id == head
    result = convert(exactly, snapshots_expire_elsewhere=True)
    assert any("somebody else lets snapshots" in one for one in result["decisions"])
    assert result["deletion_vectors_added"] == FILES + is_pending
    assert not {shared, whole} & set(vectors(table))
    head = table.snapshot_id
    again = convert(exactly, snapshots_expire_elsewhere=True)
    assert (again["commits"], table.snapshot_id) == (0, head)
    # By Spark, which takes vectors.
    table.spark.sql(f"DELETE FROM {table.identifier} WHERE id IN (3, 7)")
    table.append([{"id": 102, "value": 0}])
    by_age(table)
    left = rows_without(*first_of_each(), 1, 2, 5, 3, 7) + Rows({(102, 0): 1})
    check(table, left if is_pending else left + Rows({(100, 0): 1}))


@pytest.mark.parametrize(
    "changed",
    [
        {"convert": {"deletion_vector_files": "one_per_data_file"}},
        {"expire_snapshots": {"enabled": False}},
        {"convert": {"deletion_vector_files": "one_per_task", "readers": ["duckdb-1.5.5"]}},
    ],
)
def test_once_the_policy_lets_files_be_shared_no_more_a_conversion_moves_all_and_no_other_job_does(
    exactly: Exactness, changed: Mapping[str, Any]
) -> None:
    table = new_table(exactly, files=3)
    delete(table, 0, 4)
    convert(exactly)
    (shared,) = vectors(table)
    policy = {**ONE_PER_TASK, **changed}
    exactly.jobs.run("delete", rows=[{"id": 8}], policy=policy, parameters={"key_columns": ["id"]})
    assert len(vectors(table)[shared]) == 2
    convert(exactly, policy)
    assert shared not in vectors(table)
    assert len(vectors(table)) == 3
    check(table, rows_without(0, 4, 8, files=3))


def test_where_files_are_shared_and_nothing_is_pending_nothing_is_committed(exactly: Exactness) -> None:
    table, shared = replaced_one(exactly)
    head, files = table.snapshot_id, puffin_files(table)
    result = convert(exactly)
    assert (result["commits"], result["deletion_vectors_added"], table.snapshot_id) == (0, 0, head)
    assert puffin_files(table) == files
    assert len(vectors(table)[shared]) == FILES - 1


def test_a_worker_that_dies_while_vectors_move_alone_loses_none(exactly: Exactness) -> None:
    table, shared = replaced_one(exactly)
    with killed_at_its_commit("after") as death:
        convert(exactly, job_id="killed", snapshots_expire_elsewhere=True)
    assert death.happened
    left = exactly.jobs.reporter.left_by("killed")
    assert left.plans[-1].removes == shared
    convert(exactly, snapshots_expire_elsewhere=True, job_id="killed", attempt=2, ended_attempts=[left])
    assert len(vectors(table)) == FILES
    check(table, rows_without(*first_of_each(), 1) + Rows({(100, 0): 1}))


def test_an_erasure_moves_what_shares_a_file_with_vectors_that_it_removes(exactly: Exactness) -> None:
    table, shared = replaced_one(exactly)
    parameters = {"key_columns": ["id"], "erasure_id": "e", "expire_snapshots": True}
    told = exactly.jobs.run("erase", rows=[{"id": 6}], parameters=parameters, policy=ONE_PER_TASK).result
    assert told["erasure"]["counts"]["gone"] == 1
    assert shared not in vectors(table)
    assert not is_there(shared)
    check(table, rows_without(*first_of_each(), 1, 6) + Rows({(100, 0): 1}))


def test_publications_share_files_and_leave_what_is_live_beside_replaced_ones(exactly: Exactness) -> None:
    table, shared = replaced_one(exactly)
    table.java.manageSnapshots().createBranch("ingest").commit()
    table.commit(*table.equality_deletes([{"id": n} for n in (2, 6, 10)]), branch="ingest")
    exactly.jobs.run("publish", parameters={"from": "ingest"}, policy=ONE_PER_TASK)
    assert sorted(len(of_file) for of_file in vectors(table).values()) == [3, 3]
    assert len(vectors(table)[shared]) == FILES - 3
    check(table, rows_without(*first_of_each(), 1, 2, 6, 10) + Rows({(100, 0): 1}))


@first_always("when", ["before", "after"])
def test_a_worker_that_dies_at_its_commit_loses_no_vector_and_leaves_no_file(
    exactly: Exactness, when: str
) -> None:
    table, shared = replaced_one(exactly)
    delete(table, 2, 6, 10)
    expected = rows_without(*first_of_each(), 1, 2, 6, 10) + Rows({(100, 0): 1})
    with killed_at_its_commit(when) as death:
        convert(exactly, job_id="killed")
    assert death.happened
    left = exactly.jobs.reporter.left_by("killed")
    # As a run of a task writes that can't read what one of its data files has: under names of its own.
    (plan,) = left.plans
    names = output_locations("killed", 1, plan, 0)
    assert plan.files_per_task == 2 * 3
    Path(names.puffin(plan.files_per_task - 1).removeprefix("file:")).write_bytes(
        b"one that nobody committed"
    )
    done = exactly.jobs.run("convert", policy=ONE_PER_TASK, job_id="killed", attempt=2, ended_attempts=[left])
    assert done.result["unconvertible"] == []
    assert list(done.cleared) == [AttemptId(job_id="killed", attempt=1)]
    assert is_there(shared)
    check(table, expected)
    live = {path.rpartition("/")[2] for path in vectors(table)}
    assert puffin_files(table) - live <= {path for path in puffin_files(table) if "-killed-" not in path}


def test_a_commit_that_others_overtake_leaves_the_shared_file_as_it_is(
    exactly: Exactness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others replace vectors of the same file meanwhile; the plan is made again."""
    table, shared = replaced_one(exactly)
    delete(table, 2, 6)
    overtaken: list[str] = []

    def before_commit() -> None:
        if not overtaken:
            overtaken.append("once")
            table.spark.sql(f"DELETE FROM {table.identifier} WHERE id IN (3, 7, 9)")

    exactly.jobs.reporter.before_commit = before_commit
    result = convert(exactly)
    assert any("plans again" in one for one in result["decisions"])
    assert is_there(shared)
    check(table, rows_without(*first_of_each(), 1, 2, 6, 3, 7, 9) + Rows({(100, 0): 1}))
    live = {path.rpartition("/")[2] for path in vectors(table)}
    written = {name for name in puffin_files(table) if name.startswith("icestream-")}
    assert len(written - live) <= 1, "of the plan that came to nothing, nothing is left"


def test_writes_by_key_share_files_too(exactly: Exactness) -> None:
    table = new_table(exactly)
    keys = [{"id": n} for n in first_of_each()]
    exactly.jobs.run("delete", rows=keys, policy=ONE_PER_TASK, parameters={"key_columns": ["id"]})
    (shared,) = vectors(table)
    check(table, rows_without(*first_of_each()))
    exactly.jobs.run("delete", rows=[{"id": 1}], policy=ONE_PER_TASK, parameters={"key_columns": ["id"]})
    assert len(vectors(table)[shared]) == FILES - 1
    check(table, rows_without(*first_of_each(), 1))
