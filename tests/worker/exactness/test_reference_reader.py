"""Where Iceberg's Java reader is wrong: the conversion leaves the rows that the spec makes visible.

Each test shows that the reader is wrong before the conversion, so that it fails once Iceberg is mended, and
right after it. Seen in Iceberg 1.12.0, in Spark and, unless said otherwise, in the generic reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest
from pyiceberg.schema import Schema

from tests.exactness import Exactness
from tests.factories import TableBuilder, WrittenFile, equality_delete_files
from tests.readers import duckdb_rows, java_rows
from tests.thorough import V2_FIRST, V3_FIRST, first_always

pytestmark = pytest.mark.integration


def ids_in_spark(table: TableBuilder, columns: str = "*") -> list[int]:
    """The column `id` of a query of the columns."""
    rows = table.spark.sql(f"SELECT {columns} FROM {table.identifier}").collect()
    return sorted(row["id"] for row in rows)


def ids_in_java(table: TableBuilder, *columns: str) -> list[int]:
    return sorted(int(row[0] or -1) for row in java_rows(table, "id", *columns).elements())


def ids_in_duckdb(table: TableBuilder) -> list[int]:
    return sorted(row[0] for row in duckdb_rows(table).elements())


def convert(exactly: Exactness, table: TableBuilder, *codes: str) -> None:
    """Convert the table; the job's result must explain what Spark sees differently by these codes."""
    deletes = {file["file_path"] for file in equality_delete_files(exactly.spark, table.identifier)}
    exactly.jobs.run("index")
    result = exactly.jobs.run("convert").result
    assert result["unconvertible"] == []
    assert equality_delete_files(exactly.spark, table.identifier) == []
    assert sorted({one["code"] for one in result["deviations"]}) == sorted(codes)
    assert {one["file_path"] for one in result["deviations"]} <= deletes
    told = any("Spark and Flink may show other rows" in sentence for sentence in result["decisions"])
    assert told == bool(codes)


def add_column(table: TableBuilder, name: str, kind: str) -> None:
    jvm: Any = table.spark.sparkContext._jvm
    types = jvm.org.apache.iceberg.types.Types
    table.java.updateSchema().addColumn(name, types.fromPrimitiveString(kind)).commit()


def without_bounds(files: Iterable[WrittenFile]) -> list[WrittenFile]:
    return [
        WrittenFile({name: value for name, value in file.json.items() if not name.endswith("-bounds")})
        for file in files
    ]


# UUIDs: planning compares the bounds of a data file and a delete file as Java does, each half signed.

LOW, LOWER = UUID("70000000-0000-4000-8000-000000000000"), UUID("10000000-0000-4000-8000-000000000000")
HIGH, HIGHER = UUID("90000000-0000-4000-8000-000000000000"), UUID("f0000000-0000-4000-8000-000000000000")
SAME_HALF = UUID("10000000-0000-4000-0000-000000000000")

ACROSS_THE_SIGN: dict[str, tuple[Sequence[UUID], Sequence[UUID]]] = {
    "data file": ([LOW, HIGH], [LOW]),
    "data file, delete of the high one": ([LOW, HIGH], [HIGH]),
    "delete file": ([LOWER, LOW], [LOW, HIGH]),
    "both": ([LOW, HIGH], [LOW, HIGH]),
    "lower half": ([SAME_HALF, LOWER], [LOWER]),
}
SAME_SIGN: dict[str, tuple[Sequence[UUID], Sequence[UUID]]] = {
    "low": ([LOWER, LOW], [LOW]),
    "high": ([HIGH, HIGHER], [HIGH]),
}


def uuid_table(exactly: Exactness, format_version: int) -> TableBuilder:
    table = exactly.table("id bigint", format_version=format_version)
    add_column(table, "k", "uuid")
    table.writer = "iceberg"
    return table


def uuid_rows(keys: Sequence[UUID | None]) -> list[dict[str, Any]]:
    return [{"id": i, "k": key.bytes if key else None} for i, key in enumerate(keys)]


@V3_FIRST
@pytest.mark.parametrize(
    ("keys", "deleted"),
    [
        pytest.param(*case, id=name, marks=() if name.endswith("file") else pytest.mark.exhaustive)
        for name, case in ACROSS_THE_SIGN.items()
    ],
)
def test_uuid_bounds_on_both_sides_of_the_sign_hide_deletes_from_the_java_reader(
    exactly: Exactness, format_version: int, keys: Sequence[UUID], deleted: Sequence[UUID]
) -> None:
    table = uuid_table(exactly, format_version)
    table.append(uuid_rows(keys))
    table.delete_keys([{"k": key.bytes} for key in deleted])
    right = [i for i, key in enumerate(keys) if key not in deleted]
    assert ids_in_duckdb(table) == right
    assert ids_in_spark(table) == ids_in_java(table) == [0, 1]
    convert(exactly, table, "uuid_bounds")
    assert ids_in_spark(table) == ids_in_java(table) == ids_in_duckdb(table) == right


@V2_FIRST
def test_uuid_bounds_of_a_partitioned_table_are_found(exactly: Exactness, format_version: int) -> None:
    table = exactly.table("id bigint", format_version=format_version)
    table.java.updateSpec().addField("id").commit()
    add_column(table, "k", "uuid")
    table.writer = "iceberg"
    keys, deleted = ACROSS_THE_SIGN["data file"]
    table.append([{"id": 1, "k": key.bytes} for key in keys])
    table.delete_keys([{"k": key.bytes} for key in deleted], partition_of={"id": 1})
    convert(exactly, table, "uuid_bounds")


@V3_FIRST
def test_uuid_keys_are_right_in_the_java_reader_where_bounds_are_on_one_side_or_absent(
    exactly: Exactness, format_version: int
) -> None:
    """The limits of the former: which deletes need no mention."""
    table = uuid_table(exactly, format_version)
    for keys, deleted in SAME_SIGN.values():
        table.append(uuid_rows(keys))
        table.delete_keys([{"k": key.bytes} for key in deleted])
    assert ids_in_spark(table) == [0, 1]  # one of each file
    table.spark.sql(f"DELETE FROM {table.identifier}")
    keys, deleted = ACROSS_THE_SIGN["data file"]
    table.commit(*without_bounds(table.data_files(uuid_rows(keys))))
    table.delete_keys([{"k": key.bytes} for key in deleted])
    assert ids_in_spark(table) == [1]
    table.spark.sql(f"DELETE FROM {table.identifier}")
    table.append(uuid_rows(keys))
    table.commit(*without_bounds(table.equality_deletes([{"k": key.bytes} for key in deleted])))
    assert ids_in_spark(table) == [1]
    table.spark.sql(f"DELETE FROM {table.identifier}")
    # Bounds say nothing of nulls.
    table.append(uuid_rows([*keys, None]))
    table.delete_keys([*({"k": key.bytes} for key in deleted), {"k": None}])
    assert ids_in_spark(table) == ids_in_java(table) == ids_in_duckdb(table) == [1]
    convert(exactly, table)
    assert ids_in_spark(table) == ids_in_java(table) == ids_in_duckdb(table) == [1]


@V2_FIRST
def test_uuids_that_a_delete_file_does_not_mark_as_such_never_match_in_the_java_reader(
    exactly: Exactness, format_version: int
) -> None:
    """As Arrow before 21 writes them. DuckDB 1.5.5 fails on such a file and can't be used any more."""
    table = uuid_table(exactly, format_version)
    table.append(uuid_rows([LOWER, LOW]))
    table.writer = "arrow"
    table.delete_keys([{"k": LOW.bytes}])
    assert ids_in_spark(table) == ids_in_java(table) == [0, 1]
    convert(exactly, table)
    assert ids_in_spark(table) == ids_in_java(table) == ids_in_duckdb(table) == [0]


# Fixed: the reader reuses the buffer of the last value, and keeps no copy.


def fixed(n: int) -> bytes:
    return bytes([n, 0, n, 255])


@V3_FIRST
@first_always("file_format", ["avro", "parquet", "orc"])
def test_only_the_last_fixed_key_of_a_file_counts_in_the_java_reader(
    exactly: Exactness, format_version: int, file_format: str
) -> None:
    table = exactly.table("id bigint", format_version=format_version)
    add_column(table, "k", "fixed[4]")
    table.append([{"id": i, "k": fixed(i)} for i in range(5)])
    table.file_format = file_format
    table.delete_keys([{"k": fixed(i)} for i in (2, 0, 1)])
    wrong = [3, 4] if file_format == "orc" else [0, 2, 3, 4]  # ORC's values are copies
    assert ids_in_spark(table) == ids_in_java(table) == wrong
    if file_format == "parquet":  # DuckDB reads no others
        assert ids_in_duckdb(table) == [3, 4]
    convert(exactly, table, *([] if file_format == "orc" else ["fixed_keys"]))
    assert ids_in_spark(table) == ids_in_java(table) == ids_in_duckdb(table) == [3, 4]


@V2_FIRST
def test_a_fixed_column_of_a_composite_key_makes_the_java_reader_delete_rows_that_no_delete_names(
    exactly: Exactness, format_version: int
) -> None:
    """So that the conversion brings a row back."""
    table = exactly.table("id bigint, n bigint", format_version=format_version)
    add_column(table, "k", "fixed[4]")
    rows = [(0, fixed(0)), (1, fixed(1)), (0, fixed(1)), (1, fixed(0))]
    table.append([{"id": i, "n": n, "k": k} for i, (n, k) in enumerate(rows)])
    table.delete_keys([{"n": n, "k": k} for n, k in rows[:2]])
    assert ids_in_duckdb(table) == [2, 3]
    assert ids_in_spark(table) == ids_in_java(table) == [0, 3]
    convert(exactly, table, "fixed_keys")
    assert ids_in_spark(table) == ids_in_java(table) == ids_in_duckdb(table) == [2, 3]


@V3_FIRST
def test_fixed_keys_are_right_in_the_java_reader_one_a_file_and_where_they_are_not_compared(
    exactly: Exactness, format_version: int
) -> None:
    """The limits of the former: which deletes need no mention."""
    table = exactly.table("id bigint", format_version=format_version)
    add_column(table, "k", "fixed[4]")
    rows = [{"id": i, "k": fixed(i)} for i in range(6)]
    table.append(rows)
    one_a_file = [file for i in (0, 1) for file in table.equality_deletes([{"k": fixed(i)}])]
    table.commit(*one_a_file)
    table.delete_keys(rows[2:4], equality_columns=["id"], columns=["id", "k"])
    result = exactly.convert(table, rows={(i, fixed(i)): 1 for i in (4, 5)})
    assert result["deviations"] == []


# Nested keys: the spec says nothing of the struct around a leaf, only whether the leaf is null.

NestedRow = Mapping[str, Any] | None
STRUCTS: Sequence[NestedRow] = [{"k": 1, "j": 1}, {"k": None, "j": 1}, None, {"k": 2, "j": 2}]
NULL_LEAF: NestedRow = {"k": None, "j": None}


def nested_table(exactly: Exactness, format_version: int, file_format: str = "parquet") -> TableBuilder:
    table = exactly.table("id bigint, s struct<k: bigint, j: bigint>", format_version=format_version)
    table.file_format = file_format
    table.append([{"id": i, "s": struct} for i, struct in enumerate(STRUCTS)])
    return table


def nested_deletes(table: TableBuilder, structs: Sequence[NestedRow]) -> list[WrittenFile]:
    """Equality deletes of `s.k`, in a file that holds the whole struct."""
    schema: Schema = table.metadata.schema()
    files = table.equality_deletes([{"s": struct} for struct in structs])
    key = schema.find_field("s.k").field_id
    return [WrittenFile({**file.json, "equality-ids": [key]}) for file in files]


@V2_FIRST
@first_always("file_format", ["parquet", "orc", "avro"])
@pytest.mark.parametrize(
    ("delete", "kept_by_mistake"), [(NULL_LEAF, 2), (None, 1)], ids=["null leaf", "null parent"]
)
def test_a_null_struct_and_a_null_leaf_are_the_same_key_but_not_in_the_java_reader(
    exactly: Exactness, format_version: int, file_format: str, delete: NestedRow, kept_by_mistake: int
) -> None:
    """DuckDB 1.5.5 crashes when it reads deletes by a nested key."""
    table = nested_table(exactly, format_version, file_format)
    table.commit(*nested_deletes(table, [delete, {"k": 1, "j": None}]))
    wrong = sorted([3, kept_by_mistake])
    assert ids_in_spark(table) == ids_in_java(table, "s") == wrong
    convert(exactly, table, "nested_key", "null_parent_struct")
    assert ids_in_spark(table) == ids_in_java(table, "s") == [3]


@V3_FIRST
def test_deletes_by_a_nested_key_count_only_where_the_query_selects_it_in_the_java_reader(
    exactly: Exactness, format_version: int
) -> None:
    """Spark forgets the deletes, the generic reader shows nothing at all; beside another leaf of the struct,
    Spark was seen to do either."""
    table = nested_table(exactly, format_version)
    table.commit(*nested_deletes(table, [{"k": 1, "j": 1}]))
    right = [1, 2, 3]
    assert ids_in_spark(table, "*") == ids_in_spark(table, "id, s.k") == ids_in_java(table, "s") == right
    forgotten: list[int] = [0, 1, 2, 3]
    assert ids_in_spark(table, "id") == forgotten
    assert ids_in_spark(table, "id, s.j") in (forgotten, [])
    assert ids_in_java(table) == []
    convert(exactly, table, "nested_key")
    for columns in ("*", "id", "id, s.k", "id, s.j"):
        assert ids_in_spark(table, columns) == right
    assert ids_in_java(table) == ids_in_java(table, "s") == right
    assert ids_in_duckdb(table) == right


@V2_FIRST
def test_deletes_that_find_nothing_need_no_mention(exactly: Exactness, format_version: int) -> None:
    table = exactly.table(
        "id bigint, region string", format_version=format_version, partitioned_by=["region"]
    )
    add_column(table, "k", "fixed[4]")
    table.append([{"id": i, "region": "eu", "k": fixed(i)} for i in range(4)])
    keys = [{"k": fixed(i)} for i in (0, 1)]
    (mattering,) = table.delete_keys(keys, partition_of={"region": "eu"})
    table.delete_keys(keys, partition_of={"region": "us"})
    result = exactly.jobs.run("convert").result
    assert [one["file_path"] for one in result["deviations"]] == [mattering]
    assert result["rows_deleted"] == 2
