"""Branches, tags, older snapshots, rollback and expiry: a conversion changes the head of its branch alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.exactness import Exactness
from tests.factories import TableBuilder, equality_delete_files, visible_rows
from tests.readers import Rows, duckdb_rows
from tests.thorough import V2_FIRST, V3_FIRST, first_always

pytestmark = pytest.mark.integration
COLUMNS = "id bigint, value bigint"


def rows(*ids: int, value: int = 0) -> list[dict[str, int]]:
    return [{"id": i, "value": value} for i in ids]


def upserted(exactly: Exactness, format_version: int) -> TableBuilder:
    """Four snapshots: 0 to 5; 1 and 2 get 1; 2 and 3 get 2; 5 is deleted."""
    table = exactly.table(COLUMNS, format_version=format_version)
    table.append(rows(0, 1, 2, 3, 4, 5), files=2)
    table.upsert(rows(1, 2, value=1), key=["id"])
    table.upsert(rows(2, 3, value=2), key=["id"])
    table.delete_keys([{"id": 5}])
    return table


FIRST = {(i, 0): 1 for i in range(6)}
SECOND = {(0, 0): 1, (1, 1): 1, (2, 1): 1, (3, 0): 1, (4, 0): 1, (5, 0): 1}
THIRD = {(0, 0): 1, (1, 1): 1, (2, 2): 1, (3, 2): 1, (4, 0): 1, (5, 0): 1}
FOURTH = {(0, 0): 1, (1, 1): 1, (2, 2): 1, (3, 2): 1, (4, 0): 1}


def snapshot_ids(table: TableBuilder) -> list[int]:
    """Oldest first."""
    return [one.snapshot_id for one in sorted(table.metadata.snapshots, key=lambda s: s.sequence_number or 0)]


def rows_of_snapshots(table: TableBuilder) -> dict[int, Rows]:
    return {one: duckdb_rows(table, snapshot_id=one) for one in snapshot_ids(table)}


def rows_of(table: TableBuilder, reference: str) -> Rows:
    return visible_rows(table.spark, table.identifier, branch=reference)


def equality_deletes_of(table: TableBuilder, branch: str) -> int:
    query = f"SELECT count(*) FROM {table.identifier}.delete_files VERSION AS OF '{branch}' WHERE content = 2"
    return int(table.spark.sql(query).collect()[0][0])


def head(table: TableBuilder, reference: str) -> int:
    return table.metadata.refs[reference].snapshot_id


def expire(table: TableBuilder) -> None:
    """Forget all snapshots that no branch or tag points at, and delete the files only they have."""
    table.java.expireSnapshots().expireOlderThan(int(time.time() * 1000) + 60_000).retainLast(1).commit()


def roll_back(table: TableBuilder, snapshot_id: int) -> None:
    table.java.manageSnapshots().rollbackTo(snapshot_id).commit()


def convert(exactly: Exactness, **how: Any) -> dict[str, Any]:
    result = exactly.jobs.run("convert", **how).result
    assert result["unconvertible"] == []
    return result


@V3_FIRST
def test_tags_and_every_older_snapshot_show_the_same_rows_after_a_conversion(
    exactly: Exactness, format_version: int
) -> None:
    table = upserted(exactly, format_version)
    ids = snapshot_ids(table)
    table.java.manageSnapshots().createTag("loaded", ids[0]).createTag("merged", ids[2]).commit()
    before = rows_of_snapshots(table)
    assert [before[one] for one in ids] == [FIRST, SECOND, THIRD, FOURTH]
    exactly.convert(table, rows=FOURTH)
    after = rows_of_snapshots(table)
    assert len(after) == 5
    assert {one: after[one] for one in before} == before
    assert (rows_of(table, "loaded"), rows_of(table, "merged")) == (FIRST, THIRD)
    assert equality_deletes_of(table, "merged") == 2


@V2_FIRST
def test_deletes_whose_snapshot_expired_are_converted(exactly: Exactness, format_version: int) -> None:
    table = upserted(exactly, format_version)
    table.append(rows(5, value=9))
    expire(table)
    assert len(snapshot_ids(table)) == 1
    expected = {**FOURTH, (5, 9): 1}
    result = exactly.convert(table, rows=expected)
    assert result["equality_delete_files_removed"] == 3
    # Nothing that the table still needs is deleted with the snapshot before the conversion.
    expire(table)
    assert len(snapshot_ids(table)) == 1
    assert exactly.spark_rows(table) == duckdb_rows(table) == expected


@V3_FIRST
def test_a_conversion_changes_only_the_branch_it_is_for(exactly: Exactness, format_version: int) -> None:
    table = upserted(exactly, format_version)
    main = head(table, "main")
    table.java.manageSnapshots().createBranch("audit", main).createTag("then", main).commit()
    table.commit(*table.data_files(rows(0, value=7)), *table.equality_deletes([{"id": 0}]), branch="audit")
    on_audit = {**FOURTH, (0, 7): 1}
    del on_audit[0, 0]
    assert rows_of(table, "audit") == on_audit

    result = convert(exactly, branch="audit")
    assert (result["equality_delete_files_removed"], result["rows_deleted"]) == (4, 6)
    assert head(table, "audit") == result["iceberg_snapshot_id_after"]
    assert head(table, "main") == head(table, "then") == main
    assert (equality_deletes_of(table, "audit"), equality_deletes_of(table, "main")) == (0, 3)
    assert rows_of(table, "audit") == on_audit
    assert rows_of(table, "main") == rows_of(table, "then") == FOURTH
    # Then main, which shares the data files, and the equality deletes that the other branch has lost.
    exactly.convert(table, rows=FOURTH)
    assert (rows_of(table, "audit"), rows_of(table, "then")) == (on_audit, FOURTH)


@V2_FIRST
def test_each_branch_has_an_index_of_its_own(exactly: Exactness, format_version: int) -> None:
    table = upserted(exactly, format_version)
    table.java.manageSnapshots().createBranch("audit", head(table, "main")).commit()
    table.commit(*table.data_files(rows(8, value=8)), branch="audit")
    for branch, rows_indexed in (("main", 10), ("audit", 11)):
        (key_set,) = exactly.jobs.run("index", branch=branch).result["key_sets"]
        assert key_set["rows_indexed"] == rows_indexed
    assert len(list(exactly.jobs.index.glob("*.db"))) == 2
    table.commit(*table.equality_deletes([{"id": 8}, {"id": 4}]), branch="audit")
    on_audit = {row: 1 for row in FOURTH if row != (4, 0)}
    assert rows_of(table, "audit") == on_audit
    for branch, expected, deleted in (("audit", on_audit, 7), ("main", FOURTH, 5)):
        result = convert(exactly, branch=branch)
        assert [one["source"] for one in result["key_sets"]] == ["index"]
        assert result["rows_deleted"] == deleted
        assert (rows_of(table, branch), equality_deletes_of(table, branch)) == (expected, 0)


@V3_FIRST
def test_a_branch_from_an_old_snapshot_is_converted_by_the_deletes_of_then(
    exactly: Exactness, format_version: int
) -> None:
    table = upserted(exactly, format_version)
    second = snapshot_ids(table)[1]
    exactly.convert(table, rows=FOURTH)
    table.java.manageSnapshots().createBranch("old", second).commit()
    table.commit(*table.data_files(rows(2, value=5)), *table.equality_deletes([{"id": 2}]), branch="old")
    expected = {(0, 0): 1, (1, 1): 1, (2, 5): 1, (3, 0): 1, (4, 0): 1, (5, 0): 1}
    assert rows_of(table, "old") == expected
    assert convert(exactly, branch="old")["rows_deleted"] == 3
    assert (rows_of(table, "old"), equality_deletes_of(table, "old")) == (expected, 0)
    assert exactly.spark_rows(table) == duckdb_rows(table) == FOURTH


@V2_FIRST
@first_always("indexed", [True, False])
def test_a_rollback_brings_back_the_deletes_of_then(
    exactly: Exactness, format_version: int, indexed: bool
) -> None:
    """To before a conversion, which is undone with it, and to before deletes."""
    table = upserted(exactly, format_version)
    second, fourth = snapshot_ids(table)[1], snapshot_ids(table)[3]
    if indexed:
        exactly.jobs.run("index")
    sources = ("index",) if indexed else ("scan",)
    exactly.convert(table, rows=FOURTH, sources=sources)
    roll_back(table, fourth)
    assert len(equality_delete_files(exactly.spark, table.identifier)) == 3
    assert exactly.convert(table, rows=FOURTH, sources=sources)["rows_deleted"] == 5
    roll_back(table, second)
    assert exactly.convert(table, rows=SECOND, sources=sources)["rows_deleted"] == 2
    # Sequence numbers never come back: what follows is newer than all that was rolled back.
    table.upsert(rows(2, 6, value=6), key=["id"])
    expected = {**SECOND, (2, 6): 1, (6, 6): 1}
    del expected[2, 1]
    exactly.convert(table, rows=expected, sources=sources)


@contextmanager
def write_audit_publish(spark: SparkSession, wap_id: str) -> Iterator[None]:
    """What Spark writes is staged: in no branch until it is published."""
    spark.conf.set("spark.wap.id", wap_id)
    try:
        yield
    finally:
        spark.conf.unset("spark.wap.id")


@V3_FIRST
def test_rows_staged_before_a_delete_are_newer_than_it_once_they_are_published(
    exactly: Exactness, format_version: int
) -> None:
    table = exactly.table(COLUMNS, format_version=format_version, properties={"write.wap.enabled": "true"})
    table.append(rows(1, 2, 3))
    main = head(table, "main")
    with write_audit_publish(exactly.spark, "wap-1"):
        exactly.spark.sql(f"INSERT INTO {table.identifier} VALUES (1, 5), (2, 5)")
    (staged,) = set(snapshot_ids(table)) - {main}
    table.delete_keys([{"id": 1}])
    exactly.convert(table, rows={(2, 0): 1, (3, 0): 1})
    table.delete_keys([{"id": 2}])
    catalog = table.identifier.split(".")[0]
    exactly.spark.sql(f"CALL {catalog}.system.cherrypick_snapshot('{table.identifier}', {staged})")
    table.append(rows(2, value=6))
    exactly.convert(
        table,
        rows={(3, 0): 1, (1, 5): 1, (2, 5): 1, (2, 6): 1},
        sources=("index",),
    )
    assert visible_rows(exactly.spark, table.identifier, snapshot_id=staged) == {
        (1, 0): 1,
        (2, 0): 1,
        (3, 0): 1,
        (1, 5): 1,
        (2, 5): 1,
    }


@V2_FIRST
def test_staged_deletes_are_no_concern_until_they_are_published(
    exactly: Exactness, format_version: int
) -> None:
    table = exactly.table(COLUMNS, format_version=format_version)
    table.append(rows(1, 2, 3))
    main = head(table, "main")
    upsert = [*table.data_files(rows(1, 4, value=1)), *table.equality_deletes([{"id": 1}, {"id": 4}])]
    update = table.java.newRowDelta().stageOnly()
    update.addRows(table.parsed(upsert[0])).addDeletes(table.parsed(upsert[1])).commit()
    (staged,) = set(snapshot_ids(table)) - {main}
    assert convert(exactly)["commits"] == 0
    assert head(table, "main") == main
    table.java.manageSnapshots().cherrypick(staged).commit()
    exactly.convert(table, rows={(2, 0): 1, (3, 0): 1, (1, 1): 1, (4, 1): 1})
    published = visible_rows(exactly.spark, table.identifier, snapshot_id=staged)
    assert published == exactly.visible_rows(table)


@V3_FIRST
def test_a_table_without_a_snapshot_is_left_alone(exactly: Exactness, format_version: int) -> None:
    table = exactly.table(COLUMNS, format_version=format_version)
    before = table.metadata_location
    outcome = exactly.jobs.run("convert")
    assert (outcome.result["commits"], outcome.result["iceberg_snapshot_id_before"]) == (0, None)
    assert outcome.health["pending_equality_delete_files"] == 0
    assert (table.metadata_location, exactly.visible_rows(table)) == (before, {})
    table.append(rows(1))
    exactly.spark.sql(f"TRUNCATE TABLE {table.identifier}")
    assert convert(exactly)["commits"] == 0


@V2_FIRST
@first_always("shared", [False, True])
def test_expiry_after_one_of_three_data_files_was_converted_again_loses_nothing(
    exactly: Exactness, format_version: int, shared: bool
) -> None:
    """Iceberg's expiry deletes what a snapshot removed by its path, whatever else that file holds."""
    table = exactly.table(COLUMNS, format_version=format_version)
    paths = table.append(rows(*range(6)), files=3)
    if shared and format_version == 3:  # as Spark and Flink write them
        table.commit(*table.deletion_vectors({path: [0] for path in paths}))
    else:
        table.delete_keys([{"id": i} for i in (0, 2, 4)])
        convert(exactly)
    table.delete_keys([{"id": 1}])
    exactly.convert(table, rows={(3, 0): 1, (5, 0): 1})
    table.append(rows(6))
    expire(table)
    assert visible_rows(table.spark, table.identifier) == {(3, 0): 1, (5, 0): 1, (6, 0): 1}
    assert duckdb_rows(table) == {(3, 0): 1, (5, 0): 1, (6, 0): 1}
