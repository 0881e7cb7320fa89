"""Whoever has docs/index-format.md, and nothing else of Icestream, reads an index with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.exactness import Exactness

PAGE = (Path(__file__).parents[3] / "docs" / "index-format.md").read_text()
pytestmark = pytest.mark.integration

Rows = dict[tuple[str, int, str], tuple[Any, ...]]


@pytest.fixture
def read() -> Callable[[Path, str], Rows]:
    """By the program of the page: of each row, by path, position and partition, its key."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert not re.search(r"\b(worker|service|trust|stores|staging)\b", program)
    names: dict[str, Any] = {}
    exec(program, names)

    def read(warehouse: Path, table_uuid: str) -> Rows:
        parts = names["read_index"](warehouse.as_uri(), table_uuid, "main", [3, 1])
        found = list(names["rows_of"](*parts))
        rows = {(path, position, values): key for path, position, values, key in found}
        assert len(rows) == len(found)
        return rows

    return read


def stored(exactly: Exactness) -> Rows:
    """The same by the data files themselves."""
    rows: Rows = {}
    for path, region in exactly.spark.sql(
        f"SELECT file_path, partition.region FROM {exactly.table_name}.data_files"
    ).collect():
        columns = pq.read_table(path.removeprefix("file:"), columns=["id", "name"]).to_pylist()
        for position, row in enumerate(columns):
            rows[path, position, f'["{region}"]'] = (row["id"], row["name"])
    return rows


def test_an_index_is_read_by_the_page_alone_through_builds_compactions_and_dead_files(
    exactly: Exactness, read: Callable[[Path, str], Rows]
) -> None:
    table = exactly.table("id bigint, region string, name string", partitioned_by=["region"])
    key_sets = [["id", "name"]]

    def add(start: int, region: str) -> None:
        names = ("", "\N{LATIN SMALL LETTER A WITH DIAERESIS}", None)
        table.append(
            [
                {"id": None if i % 7 == 0 else i * 31 % 50, "region": region, "name": names[i % 3]}
                for i in range(start, start + 40)
            ]
        )
        exactly.jobs.run("index", key_sets=key_sets)

    add(0, "eu")
    add(40, "us")
    add(80, "eu")
    before = read(exactly.jobs.index, str(table.metadata.table_uuid))
    assert before == stored(exactly)
    assert len(before) == 120
    exactly.jobs.run("compact")
    assert read(exactly.jobs.index, str(table.metadata.table_uuid)) == before
    exactly.spark.sql(f"DELETE FROM {exactly.table_name} WHERE region = 'us'")
    add(120, "us")
    exactly.jobs.run("compact")
    after = read(exactly.jobs.index, str(table.metadata.table_uuid))
    assert after == stored(exactly)
    assert len(after) == 120
