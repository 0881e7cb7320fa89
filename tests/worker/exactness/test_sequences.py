"""Upserts, deletes and reinsertions in every order that writers leave behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.exactness import Exactness
from tests.factories import TableBuilder, WrittenFile, live_delete_files
from tests.readers import duckdb_rows
from tests.thorough import V2_FIRST, V3_FIRST, first_always, thorough_unless

pytestmark = pytest.mark.integration
COLUMNS = "id bigint, value bigint"


def rows(*ids: int, value: int = 0) -> list[dict[str, int]]:
    return [{"id": i, "value": value} for i in ids]


def keys(*ids: int) -> list[dict[str, int]]:
    return [{"id": i} for i in ids]


def visible(*rows: Iterable[Mapping[str, int]]) -> Counter[tuple[int, int]]:
    return Counter((row["id"], row["value"]) for part in rows for row in part)


def upsert_files(table: TableBuilder, upserted: list[dict[str, int]]) -> list[WrittenFile]:
    return [*table.data_files(upserted), *table.equality_deletes(upserted, equality_columns=["id"])]


def upgrade(table: TableBuilder) -> None:
    table.spark.sql(f"ALTER TABLE {table.identifier} SET TBLPROPERTIES ('format-version' = '3')")


def contents(table: TableBuilder) -> Counter[tuple[str, int]]:
    """The number of live delete files by format and content: 1 for positions, 2 for equality."""
    files = live_delete_files(table.spark, table.identifier)
    return Counter((file["file_format"].lower(), file["content"]) for file in files)


@V2_FIRST
def test_an_upsert_keeps_the_rows_of_its_own_commit(exactly: Exactness, format_version: int) -> None:
    table = exactly.table(format_version=format_version)
    table.append([{"id": i, "region": "eu", "value": 0} for i in range(4)])
    table.upsert([{"id": i, "region": "eu", "value": 1} for i in (1, 2, 9)], key=["id"])
    table.upsert([{"id": i, "region": "eu", "value": 2} for i in (2, 9)], key=["id"])
    result = exactly.convert(
        table, rows={(0, "eu", 0): 1, (3, "eu", 0): 1, (1, "eu", 1): 1, (2, "eu", 2): 1, (9, "eu", 2): 1}
    )
    assert result["rows_deleted"] == 4


@V3_FIRST
def test_a_delete_takes_every_older_row_of_its_key_in_every_file(
    exactly: Exactness, format_version: int
) -> None:
    table = exactly.table(COLUMNS, format_version=format_version)
    table.append(rows(1, 1, 2, 1, 3, value=1), files=2)
    table.append(rows(1, 2, 2, value=2))
    table.delete_keys(keys(1, 1, 2))
    table.append(rows(1, 1, 4, value=3))
    result = exactly.convert(table, rows=visible(rows(3, value=1), rows(1, 1, 4, value=3)))
    assert result["rows_deleted"] == 7


@V2_FIRST
def test_deleted_reinserted_and_deleted_again(exactly: Exactness, format_version: int) -> None:
    table = exactly.table(COLUMNS, format_version=format_version)
    table.append(rows(1, 2, 3, value=1))
    table.delete_keys(keys(1, 2))
    table.append(rows(1, 2, value=2))
    table.delete_keys(keys(1))
    table.append(rows(2, value=3))
    table.delete_keys(keys(1))
    result = exactly.convert(table, rows=visible(rows(3, value=1), rows(2, value=2), rows(2, value=3)))
    assert result["rows_deleted"] == 3


@V3_FIRST
def test_deletes_that_match_nothing_go_without_a_trace(exactly: Exactness, format_version: int) -> None:
    table = exactly.table(COLUMNS, format_version=format_version)
    table.append(rows(1, 2))
    table.delete_keys(keys(7, 8))
    table.append(rows(7))
    result = exactly.convert(table, rows=visible(rows(1, 2, 7)))
    assert (result["rows_deleted"], result["delete_files_added"]) == (0, 0)
    assert contents(table) == {}


@V2_FIRST
def test_deletes_of_rows_that_are_gone_already_go_without_a_trace(
    exactly: Exactness, format_version: int
) -> None:
    table = exactly.table(COLUMNS, format_version=format_version)
    (path,) = table.append(rows(1, 2, 3))
    table.delete_positions({path: [0]})
    before = contents(table)
    table.delete_keys(keys(1))
    result = exactly.convert(table, rows=visible(rows(2, 3)))
    assert (result["rows_deleted"], result["delete_files_added"]) == (0, 0)
    assert contents(table) == before


@V3_FIRST
@first_always("with_rows", [True, False])
def test_deletes_of_the_very_first_commit_apply_to_nothing(
    exactly: Exactness, format_version: int, with_rows: bool
) -> None:
    table = exactly.table(COLUMNS, format_version=format_version)
    first = rows(1, 1, 2) if with_rows else []
    table.commit(*(table.data_files(first) if with_rows else []), *table.equality_deletes(keys(1, 2, 3)))
    table.append(rows(3))
    result = exactly.convert(table, rows=visible(first, rows(3)))
    assert (result["rows_deleted"], result["commits"]) == (0, 1)


@V2_FIRST
def test_two_upserts_of_one_commit_do_not_see_each_other(exactly: Exactness, format_version: int) -> None:
    table = exactly.table(COLUMNS, format_version=format_version)
    table.append(rows(1, 2, 3))
    # Two tasks of a checkpoint.
    table.commit(*upsert_files(table, rows(1, 2, value=1)), *upsert_files(table, rows(2, 4, value=2)))
    result = exactly.convert(table, rows=visible(rows(3), rows(1, 2, value=1), rows(2, 4, value=2)))
    assert result["rows_deleted"] == 2


@V3_FIRST
def test_positions_of_a_commit_apply_to_its_own_rows_and_its_equality_deletes_do_not(
    exactly: Exactness, format_version: int
) -> None:
    """As Flink writes a key twice in one checkpoint: the first row goes by position, older ones by key."""
    table = exactly.table(COLUMNS, format_version=format_version)
    table.append(rows(1, 2, 3, 4))
    for value in (1, 2):
        written = upsert_files(table, [*rows(1, 2, value=-value), *rows(1, 9, value=value)])
        positions = {written[0].path: [0]}
        in_checkpoint = (
            table.position_deletes(positions) if format_version == 2 else table.deletion_vectors(positions)
        )
        table.commit(*written, *in_checkpoint)
    result = exactly.convert(
        table, rows=visible(rows(3, 4), rows(2, value=-2), rows(1, 9, value=2)), sources=("scan", "index")
    )
    # Of the two of the first load, and of the first upsert (9, 2 and the second 1); its first 1 was gone.
    assert result["rows_deleted"] == 5


@first_always("granularity", ["file", "partition"])
def test_position_deletes_that_several_data_files_share_stay_and_are_not_repeated(
    exactly: Exactness, granularity: str
) -> None:
    table = exactly.table(COLUMNS, properties={"write.delete.granularity": granularity})
    first, second, third = table.append(rows(*range(12)), files=3)
    table.commit(table.shared_position_deletes({first: [0, 1], second: [3]}))
    table.commit(*table.position_deletes({first: [2]}))
    table.delete_keys(keys(1, 3, 6, 11))
    table.append(rows(1))
    result = exactly.convert(table, rows=visible(rows(4, 5, 8, 9, 10, 1)))
    # 1 was gone; 3 is in the first file, 6 in the second, 11 in the third.
    assert result["rows_deleted"] == 3
    merged = granularity == "file"
    assert result["delete_files_removed"] == (1 if merged else 0)
    assert contents(table) == {("parquet", 1): 4 if merged else 3}
    assert third in table.data_file_paths


def test_legacy_position_deletes_of_an_upgraded_table_are_merged_into_vectors(exactly: Exactness) -> None:
    """Equality deletes from before and after the upgrade, beside position deletes of every scope."""
    table = exactly.table(COLUMNS)
    first, second, third = table.append(rows(*range(12)), files=3)
    table.commit(table.shared_position_deletes({first: [0, 1], second: [3], third: [0]}))
    table.commit(*table.position_deletes({first: [2]}), *table.position_deletes({third: [1]}))
    table.delete_keys(keys(1, 3))
    upgrade(table)
    table.upsert(rows(6, 8, value=1), key=["id"])
    result = exactly.convert(table, rows=visible(rows(4, 5, 10, 11), rows(6, 8, value=1)))
    assert result["rows_deleted"] == 2
    assert result["deletion_vectors_added"] == 2
    # The third file got nothing new, so it keeps its position deletes; the first one's own are merged.
    assert contents(table) == {("puffin", 1): 2, ("parquet", 1): 2}
    table.delete_keys(keys(10))
    exactly.convert(table, rows=visible(rows(4, 5, 11), rows(6, 8, value=1)), sources=("index",))
    assert contents(table) == {("puffin", 1): 3, ("parquet", 1): 1}


@first_always("ending", ["puffin", "parquet"])
def test_vectors_that_share_a_puffin_file_of_any_name_are_merged(exactly: Exactness, ending: str) -> None:
    """Flink names a Puffin file `*.parquet`."""
    table = exactly.table(COLUMNS, format_version=3)
    paths = table.append(rows(*range(16)), files=4)
    vectors = table.deletion_vectors({paths[0]: [0], paths[1]: [1, 2], paths[2]: [0, 1, 2, 3]})
    table.commit(*renamed(vectors, ending))
    table.delete_keys(keys(0, 3, 4, 8, 15))
    result = exactly.convert(table, rows=visible(rows(1, 2, 7, 12, 13, 14)))
    assert (result["rows_deleted"], result["delete_files_removed"]) == (3, 3)
    # The third data file had lost all rows before: its vector moves, since the file that they shared may go.
    assert contents(table) == {("puffin", 1): 4}
    told = " ".join(exactly.jobs.reporter.decisions)
    assert "1 deletion vectors move to files of their own" in told
    assert "deletion vectors stay" not in told


def renamed(files: list[WrittenFile], ending: str) -> list[WrittenFile]:
    """The same files under another file extension; all of them are in one file on storage."""
    (path,) = {file.path for file in files}
    other = f"{path.rpartition('.')[0]}.{ending}"
    Path(path.removeprefix("file:")).rename(other.removeprefix("file:"))
    return [replace(file, json={**file.json, "file-path": other}) for file in files]


@V2_FIRST
@first_always("indexed", ["before", "after"])
def test_compaction_before_between_and_after_upserts(
    exactly: Exactness, format_version: int, indexed: str
) -> None:
    """What compaction rewrites is as old as what it began with, so pending deletes still apply to it."""
    table = exactly.table(COLUMNS, format_version=format_version)
    table.append(rows(*range(8)), files=2)
    if indexed == "before":
        exactly.jobs.run("index", key_sets=[["id"]])
    table.compact()
    table.upsert(rows(1, 2, value=1), key=["id"])
    table.append(rows(1, 3, value=2))
    table.compact()
    table.upsert(rows(2, 3, value=3), key=["id"])
    table.delete_keys(keys(5))
    if indexed == "after":
        exactly.jobs.run("index", key_sets=[["id"]])
    expected = visible(rows(0, 4, 6, 7), rows(1, value=1), rows(1, value=2), rows(2, 3, value=3))
    exactly.convert(table, rows=expected, sources=("index" if indexed == "after" else "scan", "index"))
    table.compact()
    table.upsert(rows(6, value=4), key=["id"])
    expected += visible(rows(6, value=4))
    expected -= visible(rows(6))
    exactly.convert(table, rows=expected, sources=("scan", "index"))


@V3_FIRST
@first_always("indexed", [True, False])
def test_a_file_that_keeps_an_old_sequence_number_is_older_than_later_deletes(
    exactly: Exactness, format_version: int, indexed: bool
) -> None:
    """Compaction that began before an upsert and was committed after it."""
    table = exactly.table(COLUMNS, format_version=format_version)
    table.append(rows(1, 2, value=1))  # 1
    table.upsert(rows(2, 3, value=2), key=["id"])  # 2
    began = table.data_file_paths
    (compacted,) = table.data_files([*rows(1, value=1), *rows(2, 3, value=2)])
    table.upsert(rows(3, value=3), key=["id"])  # 3
    rewrite(table, began, compacted, sequence_number=2)
    table.append(rows(3, value=5))  # 5
    if indexed:
        exactly.jobs.run("index")
    result = exactly.convert(
        table,
        rows=visible(rows(1, value=1), rows(2, value=2), rows(3, value=3), rows(3, value=5)),
        sources=("index",) if indexed else ("scan", "index"),
    )
    # The delete of 2 in commit 2 does not apply to the file that is as old as itself.
    assert result["rows_deleted"] == 1


def rewrite(table: TableBuilder, old: list[str], new: WrittenFile, *, sequence_number: int) -> None:
    """Replace data files by one that counts as committed at `sequence_number`."""
    replaced = table.java.newRewrite().dataSequenceNumber(sequence_number)
    tasks = table.java.newScan().planFiles().iterator()
    while tasks.hasNext():
        file = tasks.next().file()
        if file.location() in old:
            replaced.deleteFile(file)
    replaced.addFile(table.parsed(new)).commit()


@pytest.mark.thorough
@V2_FIRST
def test_merge_update_and_delete_by_spark_between_upserts(
    exactly: Exactness, spark: SparkSession, format_version: int
) -> None:
    modes = {f"write.{what}.mode": "merge-on-read" for what in ("merge", "update", "delete")}
    table = exactly.table(COLUMNS, format_version=format_version, properties=modes)
    table.append(rows(*range(10)), files=2)
    table.upsert(rows(1, 2, value=1), key=["id"])
    spark.sql(
        f"MERGE INTO {table.identifier} t USING (SELECT explode(array(2, 3, 20)) AS id) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET value = t.value + 10 "
        "WHEN NOT MATCHED THEN INSERT (id, value) VALUES (s.id, 10)"
    )
    table.upsert(rows(3, 4, value=2), key=["id"])
    spark.sql(f"UPDATE {table.identifier} SET value = value + 100 WHERE id IN (4, 5)")
    table.delete_keys(keys(5, 6))
    spark.sql(f"DELETE FROM {table.identifier} WHERE id = 7")
    expected = visible(
        rows(0, 8, 9),
        rows(1, value=1),
        rows(2, value=11),
        rows(3, value=2),
        rows(4, value=102),
        rows(20, value=10),
    )
    exactly.convert(table, rows=expected)
    spark.sql(f"UPDATE {table.identifier} SET value = -1 WHERE id = 8")
    table.upsert(rows(8, 9, value=3), key=["id"])
    expected = expected - visible(rows(8, 9)) + visible(rows(8, 9, value=3))
    exactly.convert(table, rows=expected, sources=("index_and_scan", "index"))


class History:
    """Rows by the rules: a delete takes all rows of its keys that were there before."""

    def __init__(self) -> None:
        self.rows: list[dict[str, int]] = []

    def delete(self, *ids: int) -> None:
        self.rows = [row for row in self.rows if row["id"] not in ids]

    def append(self, *added: dict[str, int]) -> None:
        self.rows += added


STEPS: list[tuple[str, tuple[int, ...]]] = [
    ("append", (0, 1, 2, 3, 3)),
    ("upsert", (1, 5)),
    ("delete", (1, 3, 99)),
    ("append", (1, 3)),
    ("upsert", (0, 1, 5)),
    ("compact", ()),
    ("upsert", (3, 6)),
    ("delete", (6,)),
    ("append", (6, 6)),
]


@pytest.mark.parametrize(
    ("format_version", "index"),
    thorough_unless(
        lambda case: case == (3, "before"), [(2, "never"), (2, "after"), (3, "before"), (3, "after")]
    ),
)
def test_conversions_between_every_two_steps(exactly: Exactness, format_version: int, index: str) -> None:
    """`index`: whether index jobs run before the conversion of each step, after it, or not at all."""
    table, history = exactly.table(COLUMNS, format_version=format_version), History()
    for value, (what, ids) in enumerate(STEPS):
        added = rows(*ids, value=value)
        match what:
            case "append":
                table.append(added)
            case "upsert":
                table.upsert(added, key=["id"])
            case "delete":
                table.delete_keys(keys(*ids))
            case "compact":
                table.compact()
        if what in ("upsert", "delete"):
            history.delete(*ids)
        if what in ("upsert", "append"):
            history.append(*added)
        expected = visible(history.rows)
        assert duckdb_rows(table) == expected
        if index == "before":
            exactly.jobs.run("index", key_sets=[["id"]])
        result = exactly.jobs.run("convert").result
        assert result["unconvertible"] == []
        if index == "after":
            exactly.jobs.run("index", key_sets=[["id"]])
        assert duckdb_rows(table) == expected
        assert [kind for _, kind in contents(table)] in ([], [1])
        used = {one["source"] for one in result["key_sets"]}
        assert used <= ({"scan", "none"} if index == "never" else {"index", "none"})
    exactly.convert(table, rows=visible(history.rows), sources=("none",))
