"""One delete file or data file that can't be converted: it is named and stays, and the rest is converted."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.exactness import Exactness
from tests.factories import TableBuilder, WrittenFile, equality_delete_files, garble
from tests.thorough import V2_FIRST, V3_FIRST
from worker.lookup import resolution
from worker.process.errors import JobError

pytestmark = pytest.mark.integration
COLUMNS = (
    "id bigint, region string, price double, at timestamp_ntz, tags array<string>, who struct<name: string>"
)
ROOT = Path(__file__).parents[3]
FIRST_DAY = datetime.fromisoformat("2024-01-01")


def rows(region: str, ids: range = range(6)) -> list[dict[str, Any]]:
    return [
        {"id": i, "region": region, "price": i / 2, "at": FIRST_DAY + timedelta(i), "tags": [], "who": {}}
        for i in ids
    ]


def ids_in(table: TableBuilder, region: str) -> list[int]:
    """What Spark shows of one partition: the files of others need not be readable."""
    found = table.spark.sql(f"SELECT id FROM {table.identifier} WHERE region = '{region}'").collect()
    return sorted(row[0] for row in found)


def local(path: str) -> Path:
    return Path(path.removeprefix("file:"))


def described(file: WrittenFile, **otherwise: Any) -> WrittenFile:
    """The file, of which the manifest will say something else."""
    return replace(file, json={**file.json, **{k.replace("_", "-"): v for k, v in otherwise.items()}})


@dataclass(frozen=True)
class Broken:
    """`named` is the file or column that the refusal must name; `mend` makes it readable."""

    named: str
    mend: Callable[[], object] | None = None


Damage = Callable[[Path], object]
Break = Callable[[TableBuilder], Broken]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def damaged(path: str, damage: Damage) -> Broken:
    file = local(path)
    intact = file.read_bytes()
    damage(file)
    return Broken(str(file), lambda: file.write_bytes(intact))


def delete_3(table: TableBuilder, **how: Any) -> WrittenFile:
    """An equality delete of the rows with id 3 in `eu`."""
    how = {"equality_columns": ["id"], "partition_of": {"region": "eu"}, **how}
    (file,) = table.equality_deletes([{"id": 3, "price": 1.5, "at": FIRST_DAY + timedelta(3)}], **how)
    return file


def a_delete_file(damage: Damage) -> Break:
    def broken(table: TableBuilder) -> Broken:
        table.append(rows("eu"))
        file = delete_3(table)
        table.commit(file)
        return damaged(file.path, damage)

    return broken


def a_delete_file_described_as(**otherwise: Any) -> Break:
    def broken(table: TableBuilder) -> Broken:
        table.append(rows("eu"))
        file = described(delete_3(table), **otherwise)
        table.commit(file)
        return Broken(file.path)

    return broken


def a_data_file(damage: Damage) -> Break:
    def broken(table: TableBuilder) -> Broken:
        (path,) = table.append(rows("eu"))
        table.commit(delete_3(table))
        return damaged(path, damage)

    return broken


def a_data_file_described_as(**otherwise: Any) -> Break:
    def broken(table: TableBuilder) -> Broken:
        (file,) = table.data_files(rows("eu"))
        table.commit(described(file, **otherwise))
        table.commit(delete_3(table))
        return Broken(file.path)

    return broken


def the_position_deletes(damage: Damage) -> Break:
    """Position deletes or the deletion vector of the data file that the equality delete applies to."""

    def broken(table: TableBuilder) -> Broken:
        (path,) = table.append(rows("eu"))
        positions = {path: [0]}
        v2 = table.metadata.format_version == 2
        (file,) = table.position_deletes(positions) if v2 else table.deletion_vectors(positions)
        table.commit(file)
        table.commit(delete_3(table))
        return damaged(file.path, damage)

    return broken


def the_position_deletes_described_as(**otherwise: Any) -> Break:
    def broken(table: TableBuilder) -> Broken:
        (path,) = table.append(rows("eu"))
        (file,) = table.position_deletes({path: [0]})
        table.commit(described(file, **otherwise))
        table.commit(delete_3(table))
        return Broken(file.path)

    return broken


def shared_position_deletes_are_gone(table: TableBuilder) -> Broken:
    first, second = table.append(rows("eu"), files=2)
    file = table.shared_position_deletes({first: [0], second: [2]})
    table.commit(file)
    table.commit(delete_3(table))
    return damaged(file.path, Path.unlink)


def garble_vector(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:12] + bytes(8) + content[20:])


def the_equality_column_is_missing(table: TableBuilder) -> Broken:
    table.append(rows("eu"))
    file = delete_3(table, columns=["price"])
    table.commit(file)
    return Broken(file.path)


def the_key_is_text_in_the_file(table: TableBuilder) -> Broken:
    (file,) = table.data_files(rows("eu"))
    path = local(file.path)
    content = pq.read_table(path)
    words = pa.array([f"no. {i}" for i in range(6)])
    content = content.set_column(0, content.schema.field(0).with_type(pa.string()), words)
    pq.write_table(content, path, store_schema=False)
    table.commit(described(file, file_size_in_bytes=path.stat().st_size))
    table.commit(delete_3(table))
    return Broken("column id")


def the_orc_key_is_a_timestamp(table: TableBuilder) -> Broken:
    table.file_format = "orc"
    (path,) = table.append([{**row, "tags": None, "who": None} for row in rows("eu")])
    table.file_format = "parquet"
    table.commit(delete_3(table, equality_columns=["at"]))
    return Broken(path)


def the_key_is(column: str) -> Break:
    """A column that can't be a key."""

    def broken(table: TableBuilder) -> Broken:
        table.append(rows("eu"))
        field_id = table.metadata.schema().find_field(column).field_id
        table.commit(described(delete_3(table), equality_ids=[field_id]))
        return Broken(column.split(".")[0])

    return broken


def the_key_is_in_no_schema(table: TableBuilder) -> Broken:
    table.append(rows("eu"))
    table.commit(described(delete_3(table), equality_ids=[999]))
    return Broken("999")


# What is broken: the code, the format version, and how a table comes to it.
REFUSALS: dict[str, tuple[str, int, Break]] = {
    "garbled delete file": ("corrupt_file", 2, a_delete_file(garble)),
    "truncated delete file": ("corrupt_file", 3, a_delete_file(truncate)),
    "delete file of fewer rows": ("corrupt_file", 3, a_delete_file_described_as(record_count=2)),
    "garbled data file": ("corrupt_file", 3, a_data_file(garble)),
    "truncated data file": ("corrupt_file", 2, a_data_file(truncate)),
    "data file of fewer rows": ("corrupt_file", 2, a_data_file_described_as(record_count=7)),
    "missing delete file": ("missing_file", 2, a_delete_file(Path.unlink)),
    "missing data file": ("missing_file", 3, a_data_file(Path.unlink)),
    "encrypted delete file": ("encrypted_file", 2, a_delete_file_described_as(key_metadata="0102")),
    "encrypted data file": ("encrypted_file", 3, a_data_file_described_as(key_metadata="0102")),
    "delete file of no data format": (
        "unsupported_file_format",
        2,
        a_delete_file_described_as(file_format="metadata"),
    ),
    "data file in Puffin": ("unsupported_file_format", 3, a_data_file_described_as(file_format="puffin")),
    "delete file without its column": ("missing_equality_column", 2, the_equality_column_is_missing),
    "text for a number": ("unreadable_key_type", 3, the_key_is_text_in_the_file),
    "timestamp in ORC": ("unsupported_orc_timestamp", 2, the_orc_key_is_a_timestamp),
    "double key, V2": ("float_key", 2, the_key_is("price")),
    "double key, V3": ("float_key", 3, the_key_is("price")),
    "key in a list": ("unsupported_key_type", 2, the_key_is("tags.element")),
    "struct as key": ("unsupported_key_type", 3, the_key_is("who")),
    "unknown field": ("unresolved_equality_field", 3, the_key_is_in_no_schema),
    "missing position deletes": ("unreadable_position_deletes", 2, the_position_deletes(Path.unlink)),
    "garbled position deletes": ("unreadable_position_deletes", 2, the_position_deletes(garble)),
    "encrypted position deletes": (
        "unreadable_position_deletes",
        2,
        the_position_deletes_described_as(key_metadata="0102"),
    ),
    "missing shared position deletes": ("unreadable_position_deletes", 2, shared_position_deletes_are_gone),
    "missing deletion vector": ("unreadable_position_deletes", 3, the_position_deletes(Path.unlink)),
    "garbled deletion vector": ("unreadable_position_deletes", 3, the_position_deletes(garble_vector)),
}


# Files that can be read no better than others of their kind, for a cause that others have.
ALIKE = {
    "truncated delete file",
    "truncated data file",
    "encrypted data file",
    "data file in Puffin",
    "double key, V3",
    "struct as key",
    "garbled position deletes",
    "encrypted position deletes",
    "missing shared position deletes",
    "missing deletion vector",
}


@pytest.mark.parametrize(
    ("code", "format_version", "break_"),
    [
        pytest.param(*case, id=name, marks=pytest.mark.exhaustive if name in ALIKE else ())
        for name, case in REFUSALS.items()
    ],
)
def test_what_cannot_be_converted_stays_with_its_reason_and_the_rest_is_converted(
    exactly: Exactness, code: str, format_version: int, break_: Break
) -> None:
    table = exactly.table(COLUMNS, format_version=format_version, partitioned_by=["region"])
    broken = break_(table)
    (left,) = [file["file_path"] for file in equality_delete_files(exactly.spark, table.identifier)]
    table.append(rows("us"))
    table.delete_keys([{"id": 4, "region": "us"}], equality_columns=["id"])
    assert ids_in(table, "us") == [0, 1, 2, 3, 5]

    outcome = exactly.jobs.run("convert")
    (refused,) = outcome.result["unconvertible"]
    assert (refused["file_path"], refused["code"]) == (left, code)
    assert broken.named in refused["reason"]
    assert refused["remedy"]
    assert any(left in one and refused["reason"] in one for one in outcome.result["decisions"])
    assert outcome.health["unconvertible"] == [refused]
    assert outcome.health["pending_equality_delete_files"] == 1
    assert (outcome.result["equality_delete_files_removed"], outcome.result["rows_deleted"]) == (1, 1)
    (still,) = equality_delete_files(exactly.spark, table.identifier)
    assert still["file_path"] == left
    assert ids_in(table, "us") == [0, 1, 2, 3, 5]

    again = exactly.jobs.run("convert")
    assert (again.result["unconvertible"], again.result["commits"]) == ([refused], 0)
    assert again.health["unconvertible"] == [refused]
    if broken.mend is not None:
        broken.mend()
        before = ids_in(table, "eu")
        assert 3 not in before
        assert len(before) >= 3
        mended = exactly.jobs.run("convert")
        assert mended.result["unconvertible"] == mended.health["unconvertible"] == []
        assert equality_delete_files(exactly.spark, table.identifier) == []
        assert (ids_in(table, "eu"), ids_in(table, "us")) == (before, [0, 1, 2, 3, 5])


@V3_FIRST
def test_a_later_delete_of_the_same_rows_does_not_wait_for_one_that_is_missing(
    exactly: Exactness, format_version: int
) -> None:
    table = exactly.table("id bigint, value bigint", format_version=format_version)
    table.append([{"id": i, "value": 0} for i in range(5)])
    (first,) = table.delete_keys([{"id": 1}, {"id": 2}])
    table.append([{"id": i, "value": 1} for i in (1, 2)])
    table.delete_keys([{"id": 2}, {"id": 3}])
    expected = {(0, 0): 1, (4, 0): 1, (1, 1): 1}
    assert exactly.visible_rows(table) == expected
    broken = damaged(first, Path.unlink)
    result = exactly.jobs.run("convert").result
    assert [one["file_path"] for one in result["unconvertible"]] == [first]
    assert result["rows_deleted"] == 3
    assert broken.mend is not None
    broken.mend()
    assert exactly.convert(table, rows=expected)["rows_deleted"] == 1


@V2_FIRST
def test_an_unreadable_data_file_keeps_only_the_deletes_that_apply_to_it(
    exactly: Exactness, format_version: int
) -> None:
    table = exactly.table("id bigint, value bigint", format_version=format_version)
    table.append([{"id": i, "value": 0} for i in range(5)])
    table.delete_keys([{"id": 1}])
    (path,) = table.append([{"id": i, "value": 1} for i in (1, 2)])
    waiting = table.delete_keys([{"id": 2}])
    waiting += table.delete_keys([{"id": 3}])
    expected = {(0, 0): 1, (4, 0): 1, (1, 1): 1}
    assert exactly.visible_rows(table) == expected
    broken = damaged(path, truncate)
    result = exactly.jobs.run("convert").result
    assert sorted(one["file_path"] for one in result["unconvertible"]) == sorted(waiting)
    assert result["equality_delete_files_removed"] == 1
    assert broken.mend is not None
    broken.mend()
    assert exactly.convert(table, rows=expected)["equality_delete_files_removed"] == 2


def test_a_data_file_that_is_indexed_need_not_be_readable(exactly: Exactness) -> None:
    """Its keys are in the index, and a conversion does not touch data files."""
    table = exactly.table("id bigint, value bigint", format_version=3)
    (path,) = table.append([{"id": i, "value": 0} for i in range(5)])
    exactly.jobs.run("index", key_sets=[["id"]])
    table.delete_keys([{"id": 1}])
    broken = damaged(path, Path.unlink)
    assert exactly.jobs.run("convert").result["unconvertible"] == []
    assert broken.mend is not None
    broken.mend()
    assert exactly.visible_rows(table) == {(i, 0): 1 for i in (0, 2, 3, 4)}


def test_many_keys_of_files_that_cannot_be_read_stay(
    exactly: Exactness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolution, "DRIVER_KEYS", 2)
    table = exactly.table(format_version=3)
    table.append([{"id": i, "region": "eu", "value": i} for i in range(20)])
    (path,) = table.delete_keys([{"id": i} for i in range(9)])
    garble(local(path))
    result = exactly.jobs.run("convert").result
    assert [one["code"] for one in result["unconvertible"]] == ["corrupt_file"]
    assert result["key_sets"][0]["reason"] == "none of its delete files can be read"


# Beside test_more_keys_than_the_driver_holds_are_resolved_by_ranges.
@pytest.mark.exhaustive
def test_a_data_file_that_is_gone_blocks_its_deletes_in_every_range(
    exactly: Exactness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolution, "DRIVER_KEYS", 5)
    table = exactly.table(format_version=3)
    paths = table.append([{"id": i, "region": "eu", "value": i} for i in range(40)], files=2)
    pending = [table.delete_keys([{"id": i} for i in range(start, start + 10)])[0] for start in (0, 10, 25)]
    local(paths[0]).unlink()
    result = exactly.jobs.run("convert").result
    assert result["equality_delete_files_removed"] == 0
    assert {one["code"] for one in result["unconvertible"]} == {"missing_file"}
    assert sorted(one["file_path"] for one in result["unconvertible"]) == sorted(pending)


@V3_FIRST
def test_a_declared_key_that_was_renamed_does_not_keep_deletes_from_being_converted(
    exactly: Exactness, format_version: int
) -> None:
    table = exactly.table("id bigint, value bigint", format_version=format_version)
    table.append([{"id": i, "value": 0} for i in range(3)])
    table.delete_keys([{"id": 1}])
    exactly.spark.sql(f"ALTER TABLE {table.identifier} RENAME COLUMN id TO ident")
    outcome = exactly.jobs.run("convert", key_sets=[["id"]])
    assert outcome.result["rows_deleted"] == 1
    assert exactly.visible_rows(table) == {(0, 0): 1, (2, 0): 1}


def test_a_declared_key_that_the_table_does_not_have_fails_the_index_job_with_its_code(
    exactly: Exactness,
) -> None:
    table = exactly.table("id bigint, value bigint")
    table.append([{"id": 1, "value": 0}])
    with pytest.raises(JobError, match="'ident'") as failure:
        exactly.jobs.run("index", key_sets=[["ident"]])
    assert failure.value.code == "unknown_key_column"


def codes_in(source: str) -> set[str]:
    """The codes that a module gives as they are to what a refusal is made of."""
    names = ("KeyColumnError", "Reason")
    if not any(f"{name}(" in source for name in names):  # to parse all of them takes seconds
        return set()
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    given = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id in names]
    return {str(code.value) for code in given if isinstance(code, ast.Constant)}


def test_every_code_is_documented_and_tested() -> None:
    # What erasures and publications tell is about no equality delete that stays.
    others = ("erasure", "publication", "erasure.py", "erased_indexes.py")
    modules = [path for path in (ROOT / "worker").rglob("*.py") if not {*path.parts}.intersection(others)]
    reported = set().union(*(codes_in(path.read_text()) for path in modules))
    documented = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/unconvertible.md").read_text(), re.MULTILINE)
    assert Counter(documented) == Counter(reported)
    # The one is about no file of the table, the others need tables of their own (test_partitions.py,
    # test_live_twice.py).
    elsewhere = {"unknown_key_column", "lost_partition_type", "data_file_live_twice"}
    assert {code for code, _, _ in REFUSALS.values()} == reported - elsewhere
