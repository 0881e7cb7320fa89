"""A data file whose path is live more than once: deletes go by path, and each file has its own number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.exactness import Exactness
from tests.factories import TableBuilder, WrittenFile, equality_delete_files, live_delete_files
from tests.thorough import V2_FIRST, V3_FIRST, first_always

pytestmark = pytest.mark.integration
COLUMNS = "id bigint, value string"
Visible = Counter[tuple[Any, ...]]


def visible(*rows: tuple[int, str]) -> Visible:
    return Counter(rows)


def data(table: TableBuilder, *rows: tuple[int, str]) -> list[WrittenFile]:
    return table.data_files([{"id": i, "value": value} for i, value in rows])


def deletes(table: TableBuilder, *ids: int) -> list[WrittenFile]:
    return table.equality_deletes([{"id": i} for i in ids])


def in_partition(files: list[WrittenFile], value: str) -> list[WrittenFile]:
    return [replace(file, json={**file.json, "partition": [value]}) for file in files]


def convert(
    exactly: Exactness, table: TableBuilder, expected: Visible, *, indexed: bool = False
) -> Mapping[str, Any]:
    """The result; rows are the same before and after, and as the dry run foretold."""
    assert exactly.visible_rows(table) == expected, "the reader contradicts the test before the conversion"
    foretold = exactly.jobs.run("convert", dry_run=True).result
    if indexed:
        exactly.jobs.run("index", key_sets=[["id"]])
    result = exactly.jobs.run("convert").result
    assert exactly.visible_rows(table) == expected
    assert result["unconvertible"] == foretold["unconvertible"]
    assert result["rows_deleted"] == foretold["rows_deleted"]
    return result


def refused(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    return sorted((one["file_path"], one["code"]) for one in result["unconvertible"])


def left(table: TableBuilder) -> list[str]:
    return sorted({file["file_path"] for file in equality_delete_files(table.spark, table.identifier)})


@V3_FIRST
@first_always("indexed", [True, False])
def test_an_upsert_that_was_committed_twice_shows_its_rows_once(
    exactly: Exactness, format_version: int, indexed: bool
) -> None:
    """The second one's delete takes the first one's row, and not its own, of the same file."""
    table = exactly.table(COLUMNS, format_version=format_version)
    table.commit(*data(table, (1, "a"), (2, "x")))
    upsert = [*data(table, (1, "b")), *deletes(table, 1)]
    table.commit(*upsert)
    table.commit(*upsert)
    expected = visible((2, "x"), (1, "b"))
    result = convert(exactly, table, expected, indexed=indexed)
    assert refused(result) == [(upsert[1].path, "data_file_live_twice")]
    assert upsert[0].path in result["unconvertible"][0]["reason"]
    # A later delete that takes what is left of both is converted, and then the first one hides nothing more.
    table.commit(*deletes(table, 1))
    assert refused(convert(exactly, table, visible((2, "x")), indexed=indexed)) == []
    assert left(table) == []


@V2_FIRST
@first_always("indexed", [False, True])
def test_a_file_that_was_appended_again_after_its_delete_shows_the_row(
    exactly: Exactness, format_version: int, indexed: bool
) -> None:
    table = exactly.table(COLUMNS, format_version=format_version)
    again, others = data(table, (1, "a"), (2, "x")), data(table, (3, "y"), (4, "z"))
    table.commit(*again, *others)
    between, elsewhere = deletes(table, 1), deletes(table, 3)
    table.commit(*between)
    table.commit(*again)
    table.commit(*elsewhere, *deletes(table, 2))
    # Both lose row 2, one of them row 1.
    result = convert(exactly, table, visible((1, "a"), (4, "z")), indexed=indexed)
    assert refused(result) == [(between[0].path, "data_file_live_twice")]
    assert left(table) == [between[0].path]
    assert result["rows_deleted"] == 3


@V3_FIRST
@first_always("indexed", [True, False])
def test_files_of_one_path_that_are_hit_alike_lose_their_rows(
    exactly: Exactness, format_version: int, indexed: bool
) -> None:
    table = exactly.table(COLUMNS, format_version=format_version)
    again = data(table, (1, "a"), (2, "x"), (3, "y"))
    table.commit(*again)
    table.commit(*deletes(table, 7))
    table.commit(*again)
    table.commit(*again)
    table.commit(*deletes(table, 1))
    result = convert(exactly, table, visible(*[(2, "x"), (3, "y")] * 3), indexed=indexed)
    assert (refused(result), result["rows_deleted"], result["delete_files_added"]) == ([], 3, 1)
    table.commit(*deletes(table, 2))
    result = convert(exactly, table, visible(*[(3, "y")] * 3), indexed=indexed)
    assert (refused(result), result["rows_deleted"], left(table)) == ([], 3, [])
    # The index has the rows of each, since a later one may hold others.
    indexing = exactly.jobs.run("index", key_sets=[["id"]])
    assert indexing.result["key_sets"][0]["files_indexed"] == (0 if indexed else 3)
    (health,) = indexing.health["key_sets"]
    assert (health["files_covered"], health["files_total"], health["coverage"]) == (3, 3, 1.0)
    assert (health["entries"], health["dead_ratio"]) == (9, 0.0)
    assert exactly.jobs.run("verify").result["key_sets"][0]["differences"] == 0


@first_always("granularity", ["file", "partition"])
@first_always("indexed", [False, True])
def test_position_deletes_that_are_older_than_one_of_the_files_stay_as_old(
    exactly: Exactness, granularity: str, indexed: bool
) -> None:
    """Merged into newer ones they would hit the newer file, too, whose rows are not gone."""
    table = exactly.table(COLUMNS, properties={"write.delete.granularity": granularity})
    again, other = data(table, (1, "a"), (2, "b"), (3, "c")), data(table, (4, "d"))
    table.commit(*again, *other)
    table.delete_positions({again[0].path: [0]})
    table.commit(table.shared_position_deletes({again[0].path: [1], other[0].path: [0]}))
    table.commit(*again)
    table.commit(*deletes(table, 3))
    result = convert(exactly, table, visible((1, "a"), (2, "b")), indexed=indexed)
    assert (refused(result), result["rows_deleted"], left(table)) == ([], 2, [])
    table.commit(*deletes(table, 1))
    result = convert(exactly, table, visible((2, "b")), indexed=indexed)
    assert (refused(result), result["rows_deleted"], left(table)) == ([], 1, [])


@V2_FIRST
def test_a_path_in_two_partitions_keeps_the_deletes_of_either(
    exactly: Exactness, format_version: int
) -> None:
    """As add_files makes it. Readers refuse deletes of one partition for a path that another one has, too."""
    table = exactly.table("id bigint, p string", format_version=format_version, partitioned_by=["p"])
    files = table.data_files([{"id": i, "p": "x"} for i in (1, 2, 3)])
    table.commit(*files)
    table.commit(*in_partition(files, "y"))
    others = table.data_files([{"id": i, "p": "x"} for i in (7, 8)])
    table.commit(*others)
    of_x = table.equality_deletes([{"id": 1}], partition_of={"p": "x"})
    none_of_y = table.equality_deletes([{"id": 9}], partition_of={"p": "y"})
    table.commit(*of_x, *none_of_y)
    expected = Counter([(i, "x") for i in (2, 3, 7, 8)] + [(i, "y") for i in (1, 2, 3)])
    result = convert(exactly, table, expected)
    assert refused(result) == [(of_x[0].path, "data_file_live_twice")]
    assert left(table) == [of_x[0].path]
    exactly.jobs.run("index", key_sets=[["id"]])
    health = exactly.jobs.run("index", key_sets=[["id"]]).health
    assert [one["coverage"] for one in health["key_sets"]] == [1.0]
    result = convert(exactly, table, expected)
    assert [one["source"] for one in result["key_sets"]] == ["index"]
    assert exactly.jobs.run("verify").result["key_sets"][0]["differences"] == 0


@V3_FIRST
def test_a_delete_file_that_is_live_twice_goes_in_one_commit(exactly: Exactness, format_version: int) -> None:
    """Iceberg removes by path: with the older one, the newer one would go before it was converted."""
    table = exactly.table(COLUMNS, format_version=format_version)
    table.commit(*data(table, (1, "a"), (2, "b")))
    again = deletes(table, 1)
    table.commit(*again)
    table.commit(*data(table, (1, "c")))
    for i in (7, 8):
        table.commit(*deletes(table, i))
    table.commit(*again)
    expected = visible((2, "b"))
    policy = {"convert": {"max_delete_files_per_commit": 1}}
    assert exactly.visible_rows(table) == expected

    seen: list[Visible] = []
    exactly.jobs.reporter.before_commit = lambda: seen.append(exactly.visible_rows(table))
    result = exactly.jobs.run("convert", policy=policy).result
    assert {tuple(rows.items()) for rows in [*seen, exactly.visible_rows(table)]} == {tuple(expected.items())}
    assert (result["commits"], result["unconvertible"], left(table)) == (3, [], [])
    assert result["equality_delete_files_removed"] == 4


@V2_FIRST
def test_a_vector_that_shares_its_file_moves_only_if_no_newer_file_has_its_path(
    exactly: Exactness, format_version: int
) -> None:
    table = exactly.table(COLUMNS, format_version=format_version)
    one, again = data(table, (1, "a"), (2, "b")), data(table, (3, "c"), (4, "d"))
    table.commit(*one, *again)
    table.commit(*again)
    at = {one[0].path: [0], again[0].path: [0]}
    table.commit(*(table.deletion_vectors(at) if format_version == 3 else table.position_deletes(at)))
    table.commit(*deletes(table, 2))
    result = convert(exactly, table, visible((4, "d"), (4, "d")))
    assert (refused(result), left(table)) == ([], [])
    paths = {file["file_path"] for file in live_delete_files(table.spark, table.identifier)}
    assert len(paths) == 2


@V3_FIRST
@first_always("partitioned", [True, False])
def test_rows_that_are_overwritten_by_themselves_need_no_delete_any_more(
    exactly: Exactness, format_version: int, partitioned: bool
) -> None:
    """The remedy: rewriting some of the files leaves the others of their path, as Iceberg 1.12 does it."""
    how = {"partitioned_by": ["value"]} if partitioned else {}
    table = exactly.table(COLUMNS, format_version=format_version, **how)
    again = data(table, (1, "a"), (2, "a"))
    table.commit(*again)
    table.commit(*(in_partition(again, "b") if partitioned else again))
    table.commit(*table.equality_deletes([{"id": 1}], partition_of={"value": "a"} if partitioned else None))
    if not partitioned:
        table.commit(*again)
    expected = exactly.visible_rows(table)
    assert left(table) != []
    assert refused(convert(exactly, table, expected)) != [] or not partitioned
    table.spark.sql(f"INSERT OVERWRITE {table.identifier} SELECT * FROM {table.identifier}")
    assert refused(convert(exactly, table, expected)) == []
    assert left(table) == []
    assert len(set(table.data_file_paths)) == len(table.data_file_paths)


@V2_FIRST
def test_a_file_that_is_appended_again_while_its_deletes_are_converted_keeps_its_rows(
    exactly: Exactness, format_version: int
) -> None:
    table = exactly.table(COLUMNS, format_version=format_version)
    again, others = data(table, (1, "a"), (2, "x")), data(table, (3, "y"), (4, "z"))
    of_others, of_again = deletes(table, 3), deletes(table, 1)
    for files in (others, of_others, again, of_again):
        table.commit(*files)
    acts = [again, data(table, (5, "new"))]

    def before_commit() -> None:
        if acts:
            table.commit(*acts.pop(0))

    exactly.jobs.reporter.before_commit = before_commit
    result = exactly.jobs.run("convert").result
    assert acts == []
    # Once for the file, and not for rows that nobody plans with.
    assert [told for told in result["decisions"] if "plans again" in told] == [
        f"The table changed while this job ran, so it plans again: Snapshot ancestry validation failed:"
        f" {again[0].path} was added again."
    ]
    assert refused(result) == [(of_again[0].path, "data_file_live_twice")]
    assert (result["commits"], left(table)) == (1, [of_again[0].path])
    assert exactly.visible_rows(table) == visible((2, "x"), (1, "a"), (2, "x"), (4, "z"), (5, "new"))
