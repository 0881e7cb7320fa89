"""Rows that are erased: gone from the branch, its files, its index and its past, or told what holds them."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.factories import TableBuilder, visible_rows
from tests.jobs import Jobs
from tests.thorough import V2_FIRST

pytestmark = pytest.mark.integration
NewTable = Callable[..., TableBuilder]
ALL_GONE = {"gone": 1, "invisible": 0, "held": 0, "unknown": 0}
PLAIN = {"write.parquet.compression-codec": "uncompressed", "write.avro.compression-codec": "uncompressed"}


def key(number: int) -> str:
    return f"person-{number:06d}"


def row(number: int, region: str = "eu") -> dict[str, Any]:
    return {"id": key(number), "region": region, "value": number}


@pytest.fixture
def new_table(spark: SparkSession, table_name: str) -> NewTable:
    def create(**how: Any) -> TableBuilder:
        columns = {"columns": "id string, region string, value bigint", "format_version": 3}
        table = TableBuilder.create(spark, table_name, **{**columns, "properties": PLAIN, **how})
        table.parquet = {"compression": "none"}  # so that a search of bytes means something
        return table

    return create


class Erase:
    """Runs a job that erases rows of a key, and returns its report."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs

    def __call__(self, *numbers: int, expire_snapshots: bool = True, **how: Any) -> dict[str, Any]:
        parameters = {"key_columns": ["id"], "erasure_id": "e", "expire_snapshots": expire_snapshots}
        rows = [{"id": key(number)} for number in numbers]
        report: dict[str, Any] = self.jobs.run("erase", rows=rows, parameters=parameters, **how).result[
            "erasure"
        ]
        assert sum(report["counts"].values()) == report["keys"] == len(numbers)
        return report


@pytest.fixture
def erase(jobs: Jobs) -> Erase:
    return Erase(jobs)


def numbers_of(table: TableBuilder, **how: Any) -> list[int]:
    """The visible rows, by their numbers."""
    rows = visible_rows(table.spark, table.identifier, **how).elements()
    return sorted(int(one[0].removeprefix("person-")) for one in rows)


def files_with(keys: Collection[int], *places: Path) -> list[str]:
    """An independent look: every file below the places that has a key, in its bytes or decoded."""
    words = [key(number).encode() for number in keys]
    found = []
    for place in places:
        for file in filter(Path.is_file, place.rglob("*")):
            texts = [file.read_bytes(), *_decoded(file)]
            if any(word in text for word in words for text in texts):
                found.append(str(file))
    return found


def _decoded(file: Path) -> Iterator[bytes]:
    content = file.read_bytes()
    if content[:4] == b"PAR1":
        yield repr(pq.read_table(file).to_pylist()).encode()
    elif content[:3] == b"Obj":
        yield repr(list(fastavro.reader(io.BytesIO(content)))).encode()


def place_of(table: TableBuilder) -> Path:
    return Path(table.metadata.location.removeprefix("file:").replace("//", "/"))


def holders(report: Mapping[str, Any]) -> list[tuple[str, str | None, list[int]]]:
    return sorted((one["holder"], one["name"], one["keys"]) for one in report["held"])


@V2_FIRST
@pytest.mark.parametrize("partitioned_by", [(), ("region",)])
def test_no_file_of_the_table_or_its_index_has_an_erased_key(
    new_table: NewTable, jobs: Jobs, erase: Erase, format_version: int, partitioned_by: Sequence[str]
) -> None:
    table = new_table(format_version=format_version, partitioned_by=partitioned_by)
    rows = [row(n, region) for region in ("eu", "us") for n in range(100)]
    table.append(rows, files=2)
    table.append([row(200), row(201)])
    untouched = table.append([row(300), row(301)])
    jobs.run("index", key_sets=[["id"]])
    # The first and the last of a file are bounds in manifests; 99 has no row any more.
    jobs.run("delete", rows=[{"id": key(99)}], parameters={"key_columns": ["id"]})
    erased = [0, 7, 99, 200, 201, 900]
    assert len(files_with(erased, place_of(table), jobs.index)) > 5

    report = erase(*erased)

    assert files_with(erased, place_of(table), jobs.index) == []
    assert report["counts"] == {"gone": 6, "invisible": 0, "held": 0, "unknown": 0}
    assert (report["rows_deleted"], report["held"]) == (6, [])
    left = [n for n in range(100) if n not in erased]
    assert numbers_of(table) == sorted(left * 2 + [300, 301])
    assert set(untouched) <= set(table.data_file_paths)
    assert report["data_files_rewritten"] == len(files_with(left, *_data(table))) + 1, "one has no successor"
    assert report["snapshots_expired_count"] == len(report["snapshots_expired"]) > 3
    (explained,) = jobs.run("delete", rows=[{"id": key(5)}], parameters={"key_columns": ["id"]}).result[
        "key_sets"
    ]
    assert (explained["source"], explained["data_files_scanned"]) == ("index", 0)


def _data(table: TableBuilder) -> list[Path]:
    return [place_of(table) / "data"]
