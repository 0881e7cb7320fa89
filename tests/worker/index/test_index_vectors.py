"""The test vectors of docs/index-format.md say what its page says, and jobs still build such an index.

Nothing here but the last test knows Icestream: the files are decoded by the page's program and by its words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog
from tests.worker.index.vectors import FIRST_ID, FOLDER, KEY_SETS, TYPES, build, expected

PAGE = (Path(__file__).parents[3] / "docs" / "index-format.md").read_text()
IDS = {"id": 1, **{name: FIRST_ID + at for at, name in enumerate(TYPES)}}
FILE = ("spec_id", "partition_values", "data_sequence_number")
Decoded = dict[tuple[Any, ...], list[Any]]


@pytest.fixture
def decode() -> Callable[[Path, list[str]], Decoded]:
    """By the page's program: of each row, by region, position and what tells its file, its key."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)

    def decode(warehouse: Path, columns: list[str]) -> Decoded:
        (database,) = warehouse.glob("t_*.db")
        uuid = database.name.removeprefix("t_").removesuffix(".db")
        parts = names["read_index"](str(warehouse), uuid, "main", [IDS[name] for name in columns])
        found: Decoded = {}
        for file, position, key in names["rows_of"](*parts):
            (region,) = json.loads(file["partition_values"])
            place = (region, position, *(file[name] for name in FILE))
            assert place not in found
            found[place] = [plain(value) for value in key]
        return found

    return decode


def plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value) if isinstance(value, Decimal) else value


def as_decoded(told: list[dict[str, Any]]) -> Decoded:
    return {(one["region"], one["position"], *(one[name] for name in FILE)): one["key"] for one in told}


@pytest.mark.parametrize("columns", KEY_SETS, ids=len)
def test_the_vectors_say_what_the_page_says(
    decode: Callable[[Path, list[str]], Decoded], columns: list[str]
) -> None:
    lines = (FOLDER / f"{'_'.join(columns)}.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    assert told == list(expected(columns))
    assert sum(one["live"] for one in told) == 3 + len(TYPES)
    assert decode(FOLDER / "warehouse", columns) == as_decoded(told)


def test_each_file_of_the_vectors_has_the_checksum_that_the_page_tells() -> None:
    seen = set()
    for path in sorted((FOLDER / "warehouse").rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        if content.startswith(b"Obj\x01"):
            marker = content[-16:]
            assert marker[:8] == b"icecrc32"
            assert int(marker[8:], 16) == crc32(content.replace(marker, b""))
            seen.add("avro")
        elif content.endswith(b"PAR1"):
            footer = content[-8 - int.from_bytes(content[-8:-4], "little") :]
            assert check(footer, pq.read_metadata(path).metadata[b"icestream.crc32"])
            seen.add("parquet")
        elif path.parent.name == "snapshot":
            assert check(content, json.loads(content)["properties"]["icestream.crc32"].encode())
            seen.add("snapshot")
    assert seen == {"avro", "parquet", "snapshot"}


def check(content: bytes, digits: bytes) -> bool:
    """Of the content without the digits."""
    before, found, after = content.partition(digits)
    return bool(found) and int(digits, 16) == crc32(before + after)


def test_rows_of_the_vectors_are_sorted_by_their_primary_key() -> None:
    paths = list((FOLDER / "warehouse").rglob("entries_*/bucket-0/*.parquet"))
    assert len(paths) >= len(KEY_SETS)
    for path in paths:
        table = pq.read_table(path)
        names = [name for name in table.column_names if not name.startswith("_")]
        key = [tuple(row[name] for name in names) for row in table.to_pylist()]
        assert key == sorted(key)


@pytest.mark.integration
def test_a_job_builds_an_index_of_the_same_rows(
    spark: SparkSession,
    catalog: Catalog,
    tmp_path: Path,
    decode: Callable[[Path, list[str]], Decoded],
) -> None:
    warehouse = build(spark, catalog, tmp_path)
    for columns in KEY_SETS:
        assert decode(warehouse, columns) == decode(FOLDER / "warehouse", columns)
