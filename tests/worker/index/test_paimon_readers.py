"""Any Paimon reader opens the index after any job, and finds in it exactly the rows of the data files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from itertools import count, pairwise, product
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog, TableBuilder
from tests.jobs import Jobs
from tests.worker.index.paimon_readers import JavaReader, PaimonTable, Row, read_with_pypaimon
from worker.index import build, compaction, run_files
from worker.index.run_files import TOP_LEVEL

pytestmark = pytest.mark.integration

COLUMNS = "region string, name string, id bigint, raw binary, total decimal(38, 10), day date, flag boolean"
# The columns of each key in the order of their field ids, and the types in which the index keeps them.
KEYS = {
    "id": ["BIGINT"],
    "name id": ["STRING", "BIGINT"],
    "raw uuid": ["BYTES", "BYTES"],
    "total": ["DECIMAL(38, 10)"],
    "day": ["INT"],
    "flag": ["BOOLEAN"],
}
# What the jobs have made of the index: the levels of Paimon's LSM tree at which entries then lie.
STATES = {
    "built": {0},
    "compacted": {TOP_LEVEL},
    "overlaid": {0, TOP_LEVEL},
    "tiered": {0, TOP_LEVEL - 1, TOP_LEVEL},
    "doubled": {TOP_LEVEL},
    "dropped": {TOP_LEVEL},
}
REGIONS = ("eu", "us", "ap")
# UTF-16 orders the last two the other way round; Paimon's rows keep up to 7 bytes in place, more elsewhere.
NAMES = ("", "ÿ", "a", "a\0", "ab", "six by", "seven b", "längere Ümläute", "水", "\uffff", "\U0001f600")


@dataclass(frozen=True)
class State:
    """A copy of the index, and what Iceberg says of the live data files at that time."""

    warehouse: Path
    data_files: dict[str, Row]  # path -> (record count, spec id, region, data sequence number)


def row(i: int) -> dict[str, Any]:
    """Keys in no order, some of them repeated; all but the first two can be null, alone or together."""
    values: dict[str, Any] = {
        "name": NAMES[i % 11] + str(i % 2),
        "raw": bytes([i * 53 % 256]) * (i % 11),
        "total": Decimal((-1) ** i * (10**28 - i)) if i % 3 else Decimal(i - 150).scaleb(-10),
        "day": date(1970, 1, 1) + timedelta(days=i * 31 % 200 - 100),
        "flag": i % 2 == 0,
        "uuid": UUID(int=i % 150 * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128).bytes,
    }
    for at, name in enumerate(values):
        if (i + at) % 10 == 9 or i % 31 == 30:
            values[name] = None
    return {"region": REGIONS[i % 3], "id": i * 7919 % 251 - 125, **values}


@pytest.fixture(scope="session")
def table(spark: SparkSession, catalog: Catalog) -> TableBuilder:
    name = f"{catalog.name}.db.read_by_paimon"
    table = TableBuilder.create(spark, name, COLUMNS, format_version=3, partitioned_by=["region"])
    # Spark's SQL has no such type.
    jvm: Any = spark.sparkContext._jvm
    table.java.updateSchema().addColumn("uuid", jvm.org.apache.iceberg.types.Types.UUIDType.get()).commit()
    return table


@pytest.fixture(scope="session")
def states(
    spark: SparkSession, catalog: Catalog, table: TableBuilder, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, State]:
    folder = tmp_path_factory.mktemp("indexes")
    jobs = Jobs(spark, catalog, table.identifier, folder / "index")
    states = {}
    numbers = count()

    def add(rows: int, *, files: int = 1) -> None:
        table.append([row(next(numbers)) for _ in range(rows)], files=files)
        jobs.run("index", key_sets=[key.split() for key in KEYS])

    def keep(name: str) -> None:
        live = spark.sql(
            "SELECT data_file.file_path, data_file.record_count, data_file.spec_id,"
            " data_file.partition.region, sequence_number"
            f" FROM {table.identifier}.entries WHERE status < 2 AND data_file.content = 0"
        ).collect()
        states[name] = State(
            shutil.copytree(jobs.index, folder / name), {path: tuple(file) for path, *file in live}
        )

    with pytest.MonkeyPatch.context() as limits:
        limits.setattr(run_files, "ROW_GROUP_ROWS", 8)
        limits.setattr(build, "RUN_ROWS", 30)
        add(120, files=2)  # a run of each file, and the two of a region overlap
        first_load = table.snapshot_id
        add(24)
        keep("built")
        limits.setattr(compaction, "TASK_ROWS", 40)
        limits.setattr(compaction, "RUNS_KEPT", 1)
        jobs.run("compact")
        keep("compacted")
        add(24)
        add(24)
        keep("overlaid")
        limits.setattr(compaction, "RUNS_KEPT", 2)
        jobs.run("compact")
        add(12)
        keep("tiered")
        add(100, files=2)
        keep("doubled")
        table.java.manageSnapshots().rollbackTo(first_load).commit()
        limits.setattr(compaction, "KEEP_SECONDS", 0.0)
        jobs.run("compact")
        keep("dropped")
    return states


@pytest.fixture(scope="module", params=["pypaimon", pytest.param("java", marks=pytest.mark.exhaustive)])
def read(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Path, str], PaimonTable]]:
    if request.param == "pypaimon":
        yield read_with_pypaimon
    else:
        with JavaReader(tmp_path_factory.mktemp("java") / "log") as reader:
            yield reader.read


@pytest.mark.parametrize(
    ("name", "key"),
    [
        pytest.param(name, key, marks=() if i == j else pytest.mark.exhaustive)
        for (i, name), (j, key) in product(enumerate(STATES), enumerate(KEYS))
    ],
)
def test_a_reader_of_paimon_finds_the_rows_of_the_data_files(
    table: TableBuilder,
    states: Mapping[str, State],
    read: Callable[[Path, str], PaimonTable],
    name: str,
    key: str,
) -> None:
    state = states[name]
    ids = [table.metadata.schema().find_field(column).field_id for column in key.split()]
    suffix = "_".join(map(str, ids)) + "_g1"
    files, entries = (read(state.warehouse, f"{part}_{suffix}") for part in ("files", "entries"))
    assert set(entries.levels) == STATES[name]
    assert entries.levels.count(TOP_LEVEL) != 1, "a compacted run of several files"

    columns = ["partition_id", "null_mask", *(f"key_{field_id}" for field_id in ids), "address"]
    types = ["BIGINT", "INT", *KEYS[key], "BIGINT"]
    assert entries.columns == dict(zip(columns, (f"{kind} NOT NULL" for kind in types), strict=True))
    assert (entries.primary_key, files.primary_key) == (columns, ["base_address"])
    assert (entries.not_found, files.not_found) == ([], [])

    dictionary = [dict(zip(files.columns, file, strict=True)) for file in files.rows]
    assert {file["path"]: in_iceberg(file) for file in dictionary} == state.data_files
    for file, following in pairwise(dictionary):
        assert file["base_address"] + file["record_count"] <= following["base_address"]
    partitions = {(file["partition_values"], file["partition_id"]) for file in dictionary}
    assert [len(set(column)) for column in zip(*partitions, strict=True)] == [len(partitions)] * 2

    found = [
        (partition_id, *(None if mask >> i & 1 else value for i, value in enumerate(values)), address)
        for partition_id, mask, *values, address in entries.rows
    ]
    assert sorted(found, key=lambda entry: entry[-1]) == [
        (file["partition_id"], *map(in_index, values), file["base_address"] + position)
        for file in dictionary
        for position, values in enumerate(keys_in(file["path"], key))
    ]


def in_iceberg(file: Mapping[str, Any]) -> Row:
    """What a row of the dictionary says, as `State.data_files` has it."""
    (region,) = json.loads(file["partition_values"])
    return file["record_count"], file["spec_id"], region, file["data_sequence_number"]


def keys_in(path: str, key: str) -> list[Row]:
    rows = pq.read_table(path.removeprefix("file://"), columns=key.split())
    return [tuple(values.values()) for values in rows.to_pylist()]


def in_index(value: Any) -> Any:
    """A value of a data file as the index keeps it (binary ones in hex, as readers here give them)."""
    match value:
        case UUID():
            return value.hex
        case bytes():
            return value.hex()
        case date():
            return (value - date(1970, 1, 1)).days
        case _:
            return value
