"""Whoever has docs/index-format.md, and nothing else of Icestream, reads an index with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.exactness import Exactness
from tests.factories import WrittenFile, in_the_place_of

PAGE = (Path(__file__).parents[3] / "docs" / "index-format.md").read_text()
pytestmark = pytest.mark.integration

FILE = ("path", "spec_id", "partition_values", "data_sequence_number")
Rows = dict[tuple[Any, ...], tuple[Any, ...]]


@pytest.fixture
def read() -> Callable[[Path, str], Rows]:
    """By the program of the page: of each row, by what tells its file and its position, its key."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert not re.search(r"\b(worker|service|trust|stores|staging)\b", program)
    names: dict[str, Any] = {}
    exec(program, names)

    def read(warehouse: Path, table_uuid: str) -> Rows:
        parts = names["read_index"](warehouse.as_uri(), table_uuid, "main", [3, 1])
        found = list(names["rows_of"](*parts))
        rows = {(*(file[name] for name in FILE), position): key for file, position, key in found}
        assert len(rows) == len(found)
        return rows

    return read


def stored(exactly: Exactness) -> Rows:
    """The same by the data files themselves."""
    rows: Rows = {}
    for path, spec_id, region, number in exactly.spark.sql(
        "SELECT data_file.file_path, data_file.spec_id, data_file.partition.region, sequence_number"
        f" FROM {exactly.table_name}.entries WHERE status < 2"
    ).collect():
        columns = pq.read_table(path.removeprefix("file:"), columns=["id", "name"]).to_pylist()
        for position, row in enumerate(columns):
            rows[path, spec_id, f'["{region}"]', number, position] = (row["id"], row["name"])
    return rows


def test_an_index_is_read_by_the_page_alone_through_builds_compactions_and_files_that_return(
    exactly: Exactness, read: Callable[[Path, str], Rows]
) -> None:
    table = exactly.table("id bigint, region string, name string", partitioned_by=["region"])
    key_sets = [["id", "name"]]

    def written(start: int, region: str) -> WrittenFile:
        names = ("", "\N{LATIN SMALL LETTER A WITH DIAERESIS}", None)
        (file,) = table.data_files(
            [
                {"id": None if i % 7 == 0 else i * 31 % 50, "region": region, "name": names[i % 3]}
                for i in range(start, start + 40)
            ]
        )
        return file

    def add(file: WrittenFile) -> None:
        table.commit(file)
        exactly.jobs.run("index", key_sets=key_sets)

    add(written(0, "eu"))
    add(first := written(40, "us"))
    add(written(80, "eu"))
    before = read(exactly.jobs.index, str(table.metadata.table_uuid))
    assert before == stored(exactly)
    assert len(before) == 120
    exactly.jobs.run("compact")
    assert read(exactly.jobs.index, str(table.metadata.table_uuid)) == before
    exactly.spark.sql(f"DELETE FROM {exactly.table_name} WHERE region = 'us'")
    add(in_the_place_of(first, written(120, "us")))
    # Both lives of the path, of which the snapshot has the second.
    after = read(exactly.jobs.index, str(table.metadata.table_uuid))
    assert after == before | stored(exactly)
    assert len(after) == 160
    exactly.jobs.run("compact")
    after = read(exactly.jobs.index, str(table.metadata.table_uuid))
    assert after == stored(exactly)
    assert len(after) == 120
