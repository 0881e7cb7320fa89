"""A staging branch is published: the target gets its rows and deletes, and never an equality delete."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.factories import TableBuilder, live_delete_files, visible_rows
from tests.staging import BRANCH, Lake, in_order, row
from tests.staging import lake as lake
from tests.thorough import V2_FIRST, V3_FIRST, first_always
from worker.attempt import indexes
from worker.index.dictionary import read_parts
from worker.index.run_files import RunFile
from worker.io.storage import Storage
from worker.publication.plan import PublicationError

pytestmark = pytest.mark.integration


@V3_FIRST
@first_always("is_indexed", [True, False])
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
    assert visible_rows(table.spark, table.identifier) == shown
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


def test_whether_the_branch_is_still_to_be_published_is_asked_right_before_the_commit(lake: Lake) -> None:
    table = lake.create(row(1, 1))
    lake.stage(*table.data_files([row(2, 2)]))
    reporter = lake.jobs.reporter
    heads: list[tuple[int, int | None]] = []
    reporter.before_commit = lambda: heads.append((reporter.asked_anew, table.snapshot_id))
    before = table.snapshot_id
    lake.publish()
    assert (1, before) in heads
    assert table.snapshot_id != before


def test_the_dictionary_of_an_index_is_read_again_only_where_it_has_changed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.create(row(1, 1))
    lake.jobs.run("index", key_sets=[["id"], ["id", "region"]])
    lake.upsert(row(1, 10))
    lake.upsert(row(1, 11), key=("id", "region"))
    read: list[int] = []

    def counted(storage: Storage, files: Sequence[RunFile], schema: pa.Schema) -> Iterator[pa.Table]:
        read.append(len(files))
        return read_parts(storage, files, schema)

    monkeypatch.setattr("worker.index.key_set_index.read_parts", counted)
    indexes.KEPT.clear()  # as of a worker that has just started
    lake.publish()
    assert read == [1, 1], "of each key set, and its own new rows it knows"
    lake.upsert(row(1, 12))
    lake.publish()
    assert read == [1, 1], "in the next job, too"
    assert lake.rows() == in_order(row(1, 12))


def test_keys_of_staged_deletes_are_reported_so_that_an_index_follows(lake: Lake) -> None:
    lake.create(row(1, 1))
    lake.upsert(row(1, 10))
    lake.upsert(row(1, 11), key=("id", "region"))

    for attempt in (1, 2):  # the first may be lost before it reports
        told = lake.jobs.run("publish", job_id="lost", attempt=attempt, parameters={"from": BRANCH}).health
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
@first_always("scope", ["file", "partition"])
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


@first_always("at_once", [True, False])
def test_what_is_staged_before_and_after_an_upgrade_to_version_3_is_published(
    lake: Lake, at_once: bool
) -> None:
    """With position deletes of the former, and vectors of the latter in their place."""
    table = lake.create(row(1, 1), row(2, 2), row(3, 3), format_version=2)
    (on_target,) = table.data_file_paths
    table.delete_positions({on_target: [2]})
    (first,) = table.data_files([row(5, 5), row(5, 6)])
    deletes = table.position_deletes({first.path: [0], on_target: [1]})
    lake.stage(first, *deletes, *table.equality_deletes([{"id": 5}]))
    lake.upsert(row(1, 10))
    if not at_once:
        lake.publish()
    table.java.updateProperties().set("format-version", "3").commit()
    (second,) = table.data_files([row(7, 7), row(7, 8)])
    lake.stage(second, *table.deletion_vectors({second.path: [0]}), *table.equality_deletes([{"id": 1}]))
    lake.upsert(row(6, 6))

    assert lake.publish()["stopped_at"] is None

    assert lake.rows() == in_order(row(5, 6), row(6, 6), row(7, 8))
    lake.upsert(row(5, 50))
    lake.publish()
    assert lake.rows() == in_order(row(5, 50), row(6, 6), row(7, 8))


def test_a_target_other_than_main_is_published_on_and_main_stays_as_it_is(lake: Lake) -> None:
    table = lake.create(row(1, 1), row(2, 2))
    table.java.manageSnapshots().createBranch("dev").commit()
    head = table.snapshot_id

    def shown() -> Counter[tuple[Any, ...]]:
        return visible_rows(table.spark, table.identifier, branch="dev")

    for number in (1, 2):
        lake.upsert(row(1, 10 * number))
        table.commit(*table.data_files([row(5, number)]), branch="dev")
        result = lake.publish(branch="dev", parameters={"from": BRANCH, "renew": number == 2})
        assert (result["staged_snapshots"], result["renewed"]) == (1, number == 2)
        assert result["files_cleared"] > 0
        assert shown() == in_order(row(1, 10 * number), row(2, 2), *[row(5, n) for n in range(1, number + 1)])
    lake.delete(2)
    lake.publish(branch="dev")
    assert shown() == in_order(row(1, 20), row(5, 1), row(5, 2))
    assert (table.snapshot_id, lake.rows()) == (head, in_order(row(1, 1), row(2, 2)))
    with pytest.raises(PublicationError, match="published on another branch"):
        lake.publish()


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


def test_rows_that_a_statement_changed_on_the_branch_keep_the_row_ids_that_it_wrote(lake: Lake) -> None:
    """Those of the target's own rows are right; those that the branch gave away are no other row's."""
    table = lake.create(row(1, 1), row(2, 2))
    table.java.updateProperties().set("write.update.mode", "merge-on-read").commit()
    before = _lineage(table)
    lake.stage(*table.data_files([row(3, 3), row(4, 4)]))
    branch = f"{table.identifier}.branch_{BRANCH}"
    table.spark.sql(f"UPDATE {branch} SET value = value * 10 WHERE id IN (1, 3)")
    staged = _lineage(table, branch)

    lake.publish()

    after = _lineage(table)
    assert lake.rows() == in_order(row(1, 10), row(2, 2), row(3, 30), row(4, 4))
    assert [after[n][0] for n in (1, 2)] == [before[n][0] for n in (1, 2)]
    assert (after[3][0] == staged[3][0], after[4][0] == staged[4][0]) == (True, False)
    assert len({one for one, _ in after.values()}) == 4


def _lineage(table: TableBuilder, of: str = "") -> dict[int, tuple[int, int]]:
    query = f"SELECT id, _row_id, _last_updated_sequence_number FROM {of or table.identifier}"
    return {one[0]: (one[1], one[2]) for one in table.spark.sql(query).collect()}
