"""A conversion leaves data files and the identity of every visible row as they are (spec, "Row Lineage")."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.exactness import Exactness
from tests.factories import TableBuilder
from tests.thorough import V2_FIRST, first_always

pytestmark = pytest.mark.integration
COLUMNS = "id bigint, value bigint"
MERGE_ON_READ = {f"write.{what}.mode": "merge-on-read" for what in ("merge", "update", "delete")}


def rows(*ids: int, value: int = 0) -> list[dict[str, int]]:
    return [{"id": i, "value": value} for i in ids]


def lineage(table: TableBuilder) -> Counter[tuple[Any, ...]]:
    """(_row_id, _last_updated_sequence_number, id, value) of each visible row."""
    query = f"SELECT _row_id, _last_updated_sequence_number, * FROM {table.identifier}"
    return Counter(tuple(row) for row in table.spark.sql(query).collect())


def data_files(table: TableBuilder) -> dict[str, tuple[str, int]]:
    """Digest and time of change of each live data file."""
    return {path: _state(Path(path.removeprefix("file:"))) for path in table.data_file_paths}


def _state(file: Path) -> tuple[str, int]:
    return sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns


def manifest_entries(table: TableBuilder) -> list[tuple[Any, ...]]:
    """What manifests say of each live data file: nothing of it may change."""
    query = (
        "SELECT data_file.file_path, sequence_number, file_sequence_number, snapshot_id,"
        " data_file.record_count, data_file.file_size_in_bytes, data_file.first_row_id"
        f" FROM {table.identifier}.entries WHERE status < 2 AND data_file.content = 0 ORDER BY 1"
    )
    return [tuple(row) for row in table.spark.sql(query).collect()]


def test_each_row_keeps_its_id_and_the_commit_that_last_changed_it(exactly: Exactness) -> None:
    table = exactly.table(COLUMNS, format_version=3)
    table.append(rows(0, 1, 2, 3), files=2)  # 1: row ids 0 to 3
    table.upsert(rows(1, 2, value=1), key=["id"])  # 2: row ids 4 and 5
    table.delete_keys([{"id": 3}])  # 3
    table.append(rows(3, value=4))  # 4: row id 6
    # Ids within a commit follow the order of its files, which is free: only what is certain is stated.
    before = lineage(table)
    assert Counter(row[1:] for row in before) == {(1, 0, 0): 1, (2, 1, 1): 1, (2, 2, 1): 1, (4, 3, 4): 1}
    assert {(4, 2, 1, 1), (5, 2, 2, 1), (6, 4, 3, 4)} < before.keys()
    exactly.convert(table)
    assert lineage(table) == before
    table.append(rows(9))
    # The conversion had sequence number 5 and used no row ids.
    assert set(lineage(table)) - set(before) == {(7, 6, 9, 0)}


@pytest.mark.thorough
def test_row_lineage_survives_compaction_and_updates_between_conversions(
    exactly: Exactness, spark: SparkSession
) -> None:
    table = exactly.table(COLUMNS, format_version=3, properties=MERGE_ON_READ)
    table.append(rows(*range(8)), files=2)
    table.upsert(rows(1, 2, value=1), key=["id"])
    before = lineage(table)
    table.compact()
    assert lineage(table) == before
    table.upsert(rows(2, 3, value=2), key=["id"])
    spark.sql(f"UPDATE {table.identifier} SET value = 50 WHERE id IN (3, 5)")
    updated = {row[2]: row[:2] for row in lineage(table) if row[3] == 50}
    assert updated[5][0] == next(row[0] for row in before if row[2] == 5)
    table.delete_keys([{"id": 6}])
    for _ in range(2):
        before = lineage(table)
        exactly.convert(
            table,
            rows={(0, 0): 1, (1, 1): 1, (2, 2): 1, (3, 50): 1, (4, 0): 1, (5, 50): 1, (7, 0): 1},
        )
        assert lineage(table) == before
        table.compact()
        assert lineage(table) == before


def test_rows_of_a_table_upgraded_to_version_3_keep_the_lineage_that_they_have(exactly: Exactness) -> None:
    table = exactly.table(COLUMNS)
    (path, _) = table.append(rows(*range(6)), files=2)
    table.delete_positions({path: [0]})
    table.delete_keys([{"id": 1}])
    table.spark.sql(f"ALTER TABLE {table.identifier} SET TBLPROPERTIES ('format-version' = '3')")
    assert {row[:2] for row in lineage(table)} == {(None, None)}
    table.upsert(rows(2, 7, value=1), key=["id"])
    before = lineage(table)
    assert all(None not in row for row in before), "the commit after the upgrade gives all rows an id"
    exactly.convert(table, rows={(3, 0): 1, (4, 0): 1, (5, 0): 1, (2, 1): 1, (7, 1): 1})
    assert lineage(table) == before


@V2_FIRST
@first_always("partitioned", [True, False])
def test_no_data_file_is_written_rewritten_or_described_anew(
    exactly: Exactness, format_version: int, partitioned: bool
) -> None:
    table = exactly.table(format_version=format_version, partitioned_by=["region"] if partitioned else [])
    regions = ("eu", "us")
    table.append([{"id": i, "region": regions[i % 2], "value": 0} for i in range(20)], files=2)
    for value in (1, 2):
        upserted = [{"id": i, "region": regions[i % 2], "value": value} for i in range(value, 15, 3)]
        table.upsert(upserted, key=["id"])
        if value == 1:
            table.compact()
    files, entries = data_files(table), manifest_entries(table)
    exactly.convert(table)
    assert data_files(table) == files
    assert manifest_entries(table) == entries
    on_storage = Path(table.metadata.location.removeprefix("file:"), "data").rglob("*.parquet")
    written = {path.name for path in on_storage if path.name.startswith("icestream-")}
    assert not written & {path.rpartition("/")[2] for path in files}
