"""Files of odd shapes: tiny pages and row groups, other encodings, no rows, a thousand of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.exactness import Exactness
from tests.factories import POSITION_DELETE_SCHEMA, TableBuilder, WrittenFile
from tests.thorough import V2_FIRST, V3_FIRST, first_always, thorough_unless

pytestmark = pytest.mark.integration

# Options of pyarrow.parquet.write_table
SHAPES: dict[str, Mapping[str, Any]] = {
    "rows in groups of their own": {"row_group_size": 1},
    "uneven row groups, uncompressed": {"row_group_size": 7, "compression": "none"},
    "tiny pages, plain": {"data_page_size": 1, "write_batch_size": 1, "use_dictionary": False},
    "tiny pages of version 2": {"data_page_size": 1, "write_batch_size": 2, "data_page_version": "2.0"},
    "version 2, gzip": {"data_page_version": "2.0", "compression": "gzip", "use_dictionary": False},
    "dictionary that overflows into plain": {"dictionary_pagesize_limit": 16, "write_batch_size": 2},
    "snappy without statistics": {"compression": "snappy", "write_statistics": False},
    "page index and checksums": {"write_page_index": True, "write_page_checksum": True},
    "lz4, version 1.0": {"compression": "lz4", "version": "1.0"},
    "delta encodings": {
        "use_dictionary": False,
        "column_encoding": {"id": "DELTA_BINARY_PACKED", "k": "DELTA_BYTE_ARRAY"},
    },
    "delta lengths, byte stream split": {
        "use_dictionary": False,
        "column_encoding": {"id": "BYTE_STREAM_SPLIT", "k": "DELTA_LENGTH_BYTE_ARRAY"},
    },
}
# How a page is encoded and compressed is for Arrow to know; where rows lie is for us.
ALWAYS = {
    "rows in groups of their own",
    "tiny pages of version 2",
    "snappy without statistics",
    "delta encodings",
}


@pytest.mark.parametrize(
    ("shape", "format_version"),
    thorough_unless(lambda case: case[0] in ALWAYS, [(shape, 2 + at % 2) for at, shape in enumerate(SHAPES)]),
)
def test_parquet_files_of_every_shape(exactly: Exactness, shape: str, format_version: int) -> None:
    table = exactly.table("id bigint, k string", format_version=format_version)
    table.parquet = dict(SHAPES[shape])
    rows = [{"id": i, "k": None if i % 10 == 9 else f"key-{i % 20}"} for i in range(100)]
    table.append(rows, files=2)
    table.delete_keys(
        [{"id": i, "k": f"key-{k}"} for i, k in enumerate((3, 5, 5, 7))] + [{"id": 4, "k": None}],
        equality_columns=["k"],
        columns=["id", "k"],
    )
    table.delete_keys([{"id": i, "k": "other"} for i in range(40, 60)], equality_columns=["id"])
    # DuckDB 1.5.5 knows that encoding only of floating-point numbers.
    duckdb = "byte stream split" not in shape
    kept = [row for row in rows if row["k"] not in ("key-3", "key-5", "key-7", None)]
    exactly.convert(
        table,
        rows=Counter((row["id"], row["k"]) for row in kept if row["id"] not in range(40, 60)),
        duckdb=duckdb,
    )


@V2_FIRST
@first_always("file_format", ["parquet", "orc", "avro"])
def test_files_without_rows(exactly: Exactness, format_version: int, file_format: str) -> None:
    table = exactly.table("id bigint, k string", format_version=format_version)
    table.file_format = file_format
    none = pa.table({"id": pa.array([], pa.int64()), "k": pa.array([], pa.string())})
    table.commit(*empty_data_file(table), *table.data_files([{"id": 0, "k": "a"}, {"id": 1, "k": "b"}]))
    table.commit(*table.equality_deletes(none.select(["k"])), *table.equality_deletes([{"k": "a"}]))
    table.commit(*table.equality_deletes(none.select(["id"])))
    table.commit(*empty_data_file(table))
    result = exactly.convert(table, rows={(1, "b"): 1}, duckdb=file_format == "parquet")
    assert [result["equality_delete_files_removed"], result["rows_deleted"]] == [3, 1]


@V3_FIRST
def test_a_table_of_nothing_but_files_without_rows(exactly: Exactness, format_version: int) -> None:
    table = exactly.table("id bigint, k string", format_version=format_version)
    table.commit(*empty_data_file(table))
    table.delete_keys(pa.table({"k": pa.array([], pa.string())}))
    result = exactly.convert(table, rows={})
    assert [result["equality_delete_files_removed"], result["rows_deleted"]] == [1, 0]


def empty_data_file(table: TableBuilder) -> list[WrittenFile]:
    metadata = table.metadata
    none = pa.table({"id": pa.array([], pa.int64()), "k": pa.array([], pa.string())})
    return [table._write(none, metadata.schema(), metadata.spec(), [], {"content": "data"})]


@V2_FIRST
@first_always("file_format", ["orc", "avro", "parquet"])
def test_many_files_of_one_row(exactly: Exactness, format_version: int, file_format: str) -> None:
    table = exactly.table("id bigint, k string", format_version=format_version)
    table.file_format = file_format
    table.append([{"id": i, "k": str(i % 4)} for i in range(12)], files=12)
    table.commit(*(file for k in ("1", "2", None) for file in table.equality_deletes([{"k": k}])))
    table.append([{"id": 12, "k": "1"}])
    exactly.convert(
        table,
        rows={(i, str(i % 4)): 1 for i in (0, 3, 4, 7, 8, 11)} | {(12, "1"): 1},
        duckdb=file_format == "parquet",
    )


@V3_FIRST
def test_a_key_many_times_in_one_delete_file(exactly: Exactness, format_version: int) -> None:
    table = exactly.table("id bigint, k string", format_version=format_version)
    table.append([{"id": i, "k": str(i % 3)} for i in range(12)])
    table.delete_keys([{"k": "1"}] * 500 + [{"k": "2"}] + [{"k": "1"}] * 500)
    table.delete_keys([{"k": "1"}] * 100)
    result = exactly.convert(table, rows={(i, "0"): 1 for i in range(0, 12, 3)})
    assert result["rows_deleted"] == 8


@V2_FIRST
@first_always("file_format", ["avro", "parquet", "orc"])
def test_deletes_of_full_rows_with_columns_in_another_order(
    exactly: Exactness, format_version: int, file_format: str
) -> None:
    table = exactly.table("id bigint, a bigint, b bigint, c string", format_version=format_version)
    rows = [{"id": i, "a": i % 3, "b": i % 2, "c": "x"} for i in range(12)]
    table.append(rows)
    table.file_format = file_format
    # Were columns taken by place, a would be compared with b.
    (file,) = table.equality_deletes(
        [{"id": 99, "a": 2, "b": 0, "c": "y"}, {"id": 98, "a": 1, "b": 1, "c": "z"}],
        equality_columns=["a", "b"],
        columns=["id", "a", "b", "c"],
    )
    reordered = table._write(
        pa.table({"c": ["y", "z"], "b": [0, 1], "id": [99, 98], "a": [2, 1]}),
        reordered_schema(table),
        table.metadata.spec(),
        [],
        {"content": "equality-deletes", "equality-ids": file.json["equality-ids"][::-1]},
    )
    table.commit(reordered)
    kept = [row for row in rows if (row["a"], row["b"]) not in ((2, 0), (1, 1))]
    exactly.convert(
        table,
        rows=Counter(tuple(row.values()) for row in kept),
        duckdb=file_format == "parquet",
    )


def reordered_schema(table: TableBuilder) -> Any:
    schema = table.metadata.schema()
    return type(schema)(*(schema.find_field(name) for name in ("c", "b", "id", "a")))


@pytest.mark.thorough
@V3_FIRST
def test_a_thousand_delete_files_in_one_commit(exactly: Exactness, format_version: int) -> None:
    table = exactly.table("id bigint, k string", format_version=format_version)
    table.append([{"id": i, "k": str(i)} for i in range(1200)], files=2)
    # One file as a pattern: to describe a thousand takes longer than to write them.
    (pattern,) = table.equality_deletes([{"id": 0}])
    schema = pq.read_schema(pattern.path.removeprefix("file://"))
    deletes = []
    for i in range(1000):
        path = pattern.path.replace(".parquet", f"-{i}.parquet")
        local = Path(path.removeprefix("file://"))
        pq.write_table(pa.table([pa.array([i])], schema=schema), local, store_schema=False)
        bounds = {"keys": pattern.json["equality-ids"], "values": [i.to_bytes(8, "little").hex().upper()]}
        sized = {"file-path": path, "file-size-in-bytes": local.stat().st_size}
        deletes.append(WrittenFile({**pattern.json, **sized, "lower-bounds": bounds, "upper-bounds": bounds}))
    table.commit(*deletes)
    result = exactly.convert(table, rows={(i, str(i)): 1 for i in range(1000, 1200)})
    assert [result["equality_delete_files_removed"], result["rows_deleted"]] == [1000, 1000]


@V2_FIRST
@first_always("file_format", ["parquet", "orc", "avro"])
def test_position_deletes_of_many_files_in_one(
    exactly: Exactness, format_version: int, file_format: str
) -> None:
    """In V3 they are left from before the table was upgraded, and go into the deletion vectors."""
    table = exactly.table("id bigint, k string")
    first, second, third = (
        table.append([{"id": i, "k": str(i % 4)} for i in range(start, start + 10)])[0]
        for start in (0, 10, 20)
    )
    table.file_format = file_format
    positions = [(first, 0), (first, 5), (second, 9), (third, 3)]
    deletes = pa.table({"file_path": [path for path, _ in positions], "pos": [pos for _, pos in positions]})
    deletes = deletes.sort_by([("file_path", "ascending"), ("pos", "ascending")])
    description = {"content": "position-deletes"}
    table.commit(table._write(deletes, POSITION_DELETE_SCHEMA, table.metadata.spec(), [], description))
    if format_version == 3:
        table.spark.sql(f"ALTER TABLE {table.identifier} SET TBLPROPERTIES ('format-version'='3')")
    table.delete_keys([{"k": "1"}, {"k": "3"}])
    gone = {0, 5, 19, 23} | {i for i in range(30) if i % 4 in (1, 3)}
    exactly.convert(
        table,
        rows={(i, str(i % 4)): 1 for i in range(30) if i not in gone},
        duckdb=file_format == "parquet",
    )
