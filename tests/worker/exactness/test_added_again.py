"""A data file that was removed and added again under its path: what is older deletes nothing of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tests.exactness import Exactness
from tests.factories import (
    TableBuilder,
    WrittenFile,
    equality_delete_files,
    in_the_place_of,
    live_delete_files,
)
from tests.thorough import V2_FIRST, V3_FIRST, first_always

pytestmark = pytest.mark.integration
COLUMNS = "id bigint, value string"
Visible = Counter[tuple[Any, ...]]


def visible(*rows: tuple[int, str]) -> Visible:
    return Counter(rows)


def data(table: TableBuilder, *rows: tuple[int, str]) -> WrittenFile:
    (file,) = table.data_files([{"id": i, "value": value} for i, value in rows])
    return file


def remove(table: TableBuilder, file: WrittenFile) -> None:
    table.java.newDelete().deleteFile(table.parsed(file)).commit()


def sources(result: Mapping[str, Any]) -> set[str]:
    return {one["source"] for one in result["key_sets"]}


@V2_FIRST
@first_always("indexed", ["before", "never", "after"])
def test_deletes_of_its_first_life_stay_in_the_past(
    exactly: Exactness, format_version: int, indexed: str
) -> None:
    """Equality deletes, position deletes for it alone and for several files, and vectors."""
    table = exactly.table(COLUMNS, format_version=format_version)
    file, other = data(table, *((i, "a") for i in range(6))), data(table, (6, "b"), (7, "b"))
    table.commit(file, other)
    if indexed == "before":
        exactly.jobs.run("index", key_sets=[["id"]])
    if format_version == 2:
        table.commit(table.shared_position_deletes({file.path: [1], other.path: [0]}))
    table.delete_positions({file.path: [2]})
    table.delete_keys([{"id": 3}, {"id": 7}])
    remove(table, file)
    table.commit(file)
    if indexed == "after":
        exactly.jobs.run("index", key_sets=[["id"]])
    table.delete_keys([{"id": 4}])
    expected = visible(*((i, "a") for i in (0, 1, 2, 3, 5)), *([(6, "b")] if format_version == 3 else []))
    assert exactly.visible_rows(table) == expected
    foretold = exactly.jobs.run("convert", dry_run=True).result
    result = exactly.jobs.run("convert").result
    assert exactly.visible_rows(table) == expected
    assert (result["unconvertible"], equality_delete_files(table.spark, table.identifier)) == ([], [])
    assert result["rows_deleted"] == foretold["rows_deleted"] == 2
    assert sources(result) == {{"before": "index_and_scan", "never": "scan", "after": "index"}[indexed]}
    # What is left of its first life is of no live file any more.
    exactly.jobs.run("index", key_sets=[["id"]])
    checked = exactly.jobs.run("verify").result["key_sets"][0]
    assert (checked["differences"], checked["files_covered"]) == (0, 2)
    assert checked["files_no_longer_live"] == (1 if indexed == "before" else 0)


@V3_FIRST
@first_always("after", ["index", "scan"])
def test_other_rows_under_the_same_path_are_found_where_they_are(
    exactly: Exactness, format_version: int, after: str
) -> None:
    """Of as many bytes: neither they nor the number of rows tell. The index knows the path from before."""
    table = exactly.table(COLUMNS, format_version=format_version)
    table.parquet = {"compression": "none", "use_dictionary": False}
    file = data(table, (1, "a"), (2, "b"), (3, "c"))
    table.commit(file)
    exactly.jobs.run("index", key_sets=[["id"]])
    remove(table, file)
    again = in_the_place_of(file, data(table, (3, "x"), (1, "y"), (2, "z")))
    assert again.json["file-size-in-bytes"] == file.json["file-size-in-bytes"]
    table.commit(again)
    if after == "index":
        exactly.jobs.run("index", key_sets=[["id"]])
    table.delete_keys([{"id": 1}])
    expected = visible((3, "x"), (2, "z"))
    assert exactly.visible_rows(table) == expected
    result = exactly.jobs.run("convert").result
    assert sources(result) == {after}
    assert exactly.visible_rows(table) == expected
    # By a write, which asks the index, and looks again where others commit before it.
    newest = data(table, (2, "k"), (3, "l"), (1, "m"))

    def comes_back() -> None:
        exactly.jobs.reporter.before_commit = lambda: None
        remove(table, again)
        table.commit(in_the_place_of(file, newest))

    exactly.jobs.reporter.before_commit = comes_back
    exactly.jobs.run("upsert", rows=[{"id": 3, "value": "new"}], parameters={"key_columns": ["id"]})
    assert exactly.visible_rows(table) == visible((2, "k"), (1, "m"), (3, "new"))
    exactly.jobs.run("index", key_sets=[["id"]])
    assert exactly.jobs.run("verify").result["key_sets"][0]["differences"] == 0
    compacted = exactly.jobs.run("compact").result["key_sets"][0]
    assert compacted["entries_before"] > compacted["entries_after"] == 4


def test_a_vector_that_is_older_than_its_data_file_gives_way_to_the_new_one(exactly: Exactness) -> None:
    """Iceberg's Java reader refuses such a table; afterwards each file has one vector, and it reads it."""
    table = exactly.table(COLUMNS, format_version=3)
    file, other = data(table, (1, "a"), (2, "b"), (3, "c")), data(table, (4, "d"), (5, "e"))
    table.commit(other)
    table.commit(*table.deletion_vectors({file.path: [0], other.path: [0]}))
    table.commit(file)
    table.delete_keys([{"id": 2}])
    with pytest.raises((Py4JJavaError, PySparkException), match="sequence number"):
        exactly.spark_rows(table)
    result = exactly.jobs.run("convert").result
    assert (result["unconvertible"], result["rows_deleted"]) == ([], 1)
    assert exactly.visible_rows(table) == visible((1, "a"), (3, "c"), (5, "e"))
    # The neighbour in the file of the outdated one has moved.
    named = [one["referenced_data_file"] for one in live_delete_files(table.spark, table.identifier)]
    assert sorted(named) == sorted([file.path, other.path])
    assert len({one["file_path"] for one in live_delete_files(table.spark, table.identifier)}) == 2
