"""Null keys: null equals null and nothing else, column by column, at any depth.

DuckDB 1.5.5 is no witness of these: before the conversion it hides rows whose key holds a null, whatever
other keys are deleted, and it crashes on deletes by a nested key.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests.exactness import Exactness
from tests.factories import TableBuilder, WrittenFile
from tests.thorough import V2_FIRST, V3_FIRST, first_always

pytestmark = pytest.mark.integration

# What an index may hold in the place of a null, by Spark SQL type.
PLACEHOLDERS: dict[str, Any] = {
    "bigint": 0,
    "int": 0,
    "string": "",
    "boolean": False,
    "binary": b"",
    "decimal(20,2)": 0,
}


@V2_FIRST
@pytest.mark.parametrize("deleted", ["null", "placeholder"])
def test_null_is_told_from_the_value_that_stands_for_it(
    exactly: Exactness, format_version: int, deleted: str
) -> None:
    names = [f"c{at}" for at in range(len(PLACEHOLDERS))]
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(names, PLACEHOLDERS, strict=True))
    table = exactly.table(f"id bigint, {columns}", format_version=format_version)
    placeholders: dict[str, Any] = dict(zip(names, PLACEHOLDERS.values(), strict=True))
    nulls: dict[str, Any] = dict.fromkeys(names)
    # In row i column i has the value that goes, the others have the one that stays.
    gone, stays = (nulls, placeholders) if deleted == "null" else (placeholders, nulls)
    rows = [{"id": i, **stays, name: gone[name]} for i, name in enumerate(names)]
    table.append([*rows, {"id": 100, **stays}], files=2)
    table.commit(*(file for name in names for file in table.equality_deletes([{name: gone[name]}])))
    table.append([{"id": 200, **gone}])
    result = exactly.convert(table, rows={(100, *stays.values()): 1, (200, *gone.values()): 1}, duckdb=False)
    assert result["rows_deleted"] == len(names)
    assert len(result["key_sets"]) == len(names)


@V3_FIRST
@first_always("file_format", ["avro", "parquet", "orc"])
def test_columns_of_a_composite_key_are_compared_each_with_its_nulls(
    exactly: Exactness, format_version: int, file_format: str
) -> None:
    table = exactly.table("n bigint, s string, b boolean", format_version=format_version)
    table.file_format = file_format
    keys = list(product([None, 0, 1], [None, "", "x"], [None, False, True]))
    rows = [dict(zip("nsb", key, strict=True)) for key in keys]
    deleted = [key for at, key in enumerate(keys) if at % 2]
    table.append(rows, files=2)
    table.delete_keys([row for at, row in enumerate(rows) if at % 2])
    result = exactly.convert(table, rows={key: 1 for key in keys if key not in deleted}, duckdb=False)
    assert result["rows_deleted"] == len(deleted)


@V2_FIRST
def test_files_in_which_every_key_is_null(exactly: Exactness, format_version: int) -> None:
    table = exactly.table("id bigint, n bigint, s string", format_version=format_version)
    nulls = [{"id": i, "n": None, "s": None} for i in range(3)]
    table.append(nulls)
    table.append([{"id": i, "n": i, "s": str(i)} for i in range(3, 6)])
    table.delete_keys([{"n": None, "s": None}] * 2)
    table.append([{"id": i, "n": None, "s": "x"} for i in range(6, 9)])
    table.delete_keys([{"n": None}])
    table.append(nulls[:1])
    result = exactly.convert(table, rows={(0, None, None): 1, **{(i, i, str(i)): 1 for i in range(3, 6)}})
    assert result["rows_deleted"] == 6


@V3_FIRST
def test_a_key_of_more_columns_than_an_integer_has_bits(exactly: Exactness, format_version: int) -> None:
    """As changelog writers without a primary key make them: the whole row."""
    names = [f"c{at:02}" for at in range(70)]
    table = exactly.table(", ".join(f"{name} int" for name in names), format_version=format_version)
    zeros: dict[str, int | None] = dict.fromkeys(names, 0)
    rows = [{**zeros, name: None} for name in names]
    table.append([*rows, zeros])
    table.delete_keys(rows[::2])
    kept = [tuple(row.values()) for row in [*rows[1::2], zeros]]
    result = exactly.convert(table, rows=dict.fromkeys(kept, 1))
    assert result["rows_deleted"] == 35


def deletes_by(table: TableBuilder, leaves: list[str], rows: list[dict[str, Any]]) -> list[WrittenFile]:
    """Equality deletes by nested columns, in a file that holds the whole structs."""
    schema = table.metadata.schema()
    ids = [schema.find_field(leaf).field_id for leaf in leaves]
    return [WrittenFile({**file.json, "equality-ids": ids}) for file in table.equality_deletes(rows)]


@V2_FIRST
@first_always("file_format", ["orc", "avro", "parquet"])
def test_a_null_leaf_matches_a_null_leaf(exactly: Exactness, format_version: int, file_format: str) -> None:
    table = exactly.table("id bigint, s struct<k: bigint, j: string>", format_version=format_version)
    table.file_format = file_format
    structs = [{"k": k, "j": j} for k, j in product([None, 0, 1], [None, "x"])]
    table.append([{"id": i, "s": struct} for i, struct in enumerate(structs)])
    table.commit(*deletes_by(table, ["s.k"], [{"s": {"k": None, "j": "other"}}]))
    table.commit(*deletes_by(table, ["s.k", "s.j"], [{"s": {"k": 0, "j": None}}, {"s": {"k": 1, "j": "x"}}]))
    kept = {(i, tuple(structs[i].items())): 1 for i in (3, 4)}
    result = exactly.convert(table, rows=kept, duckdb=False)
    assert result["rows_deleted"] == 4


@V3_FIRST
@first_always("file_format", ["parquet", "orc", "avro"])
def test_keys_three_structs_deep_beside_one_at_the_top(
    exactly: Exactness, format_version: int, file_format: str
) -> None:
    table = exactly.table(
        "id bigint, a struct<x: int, b: struct<y: int, c: struct<k: string, z: int>>>",
        format_version=format_version,
    )
    table.file_format = file_format

    def row(i: int, k: str | None) -> dict[str, Any]:
        return {"id": i, "a": {"x": 1, "b": {"y": 2, "c": {"k": k, "z": 3}}}}

    def shown(i: int, k: str | None) -> tuple[Any, ...]:
        c = (("k", k), ("z", 3))
        return (i, (("x", 1), ("b", (("y", 2), ("c", c)))))

    values = [None, "", "x", "xx"]
    keys = [(i, k) for i in range(4) for k in values]
    table.append([row(i, k) for i, k in keys])
    table.commit(*deletes_by(table, ["a.b.c.k"], [row(9, "xx")]))
    table.commit(*deletes_by(table, ["id", "a.b.c.k"], [row(0, None), row(1, ""), row(2, "x")]))
    gone = {(0, None), (1, ""), (2, "x")} | {(i, "xx") for i in range(4)}
    result = exactly.convert(
        table, rows={shown(i, k): 1 for i, k in keys if (i, k) not in gone}, duckdb=False
    )
    assert result["rows_deleted"] == len(gone)
