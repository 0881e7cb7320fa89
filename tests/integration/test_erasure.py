"""Keys go from many tables by one request, and a receipt says so: through service, worker and store."""

from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.erased import files_with
from tests.factories import Catalog, TableBuilder, visible_rows
from tests.integration.icestream import FINAL, Icestream, Json
from tests.patience import wait_until

pytestmark = pytest.mark.integration

KEYS = [f"person-{number:06d}-of-these" for number in range(0, 1_000, 10)]


def _table(spark: SparkSession, catalog: Catalog, number: int, *, has_tag: bool) -> TableBuilder:
    """Of either format version, some with partitions, some with deletes that wait, or with a tag."""
    version: Literal[2, 3] = 2 if number % 2 else 3
    table = TableBuilder.create(
        spark,
        f"{catalog.name}.db.t{number}",
        "id string, region string, value bigint",
        format_version=version,
        partitioned_by=("region",) if number % 3 == 0 else (),
    )
    ids = [f"person-{n:06d}-of-these" for n in range(1_000)]
    regions = ["eu" if n % 4 else "us" for n in range(1_000)]
    rows = pa.table({"id": ids, "region": regions, "value": list(range(1_000))})
    table.append(rows, files=2)
    table.append([{"id": f"person-{n:06d}-of-others", "region": "eu", "value": n} for n in range(10)])
    if number % 5 == 1:
        table.delete_keys([{"id": ids[10], "region": "eu"}, {"id": ids[11], "region": "eu"}])
    if has_tag:
        table.java.manageSnapshots().createTag("audit", table.snapshot_id).commit()
    return table


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [5, 20])
def test_a_hundred_keys_are_in_no_file_of_many_tables(
    spark: SparkSession, icestream: Icestream, registered: Catalog, tmp_path: Path, count: int
) -> None:
    tables = [_table(spark, registered, number, has_tag=number == count - 1) for number in range(count)]
    ids = [
        icestream.enroll(registered, f"db.t{number}", key_sets=[["id"]] if number % 2 else None)
        for number in range(count)
    ]
    for table_id in ids[1::2]:
        icestream.run(table_id, "index")
    expected = [
        {row: count for row, count in visible_rows(spark, table.identifier).items() if row[0] not in KEYS}
        for table in tables
    ]

    of_tables = tmp_path / "warehouse" / "db"
    touched = [
        sum(Path(file).stat().st_size for file in files_with(KEYS, of_tables / f"t{number}" / "data"))
        for number in range(count)
    ]

    body = {"keys": [{"id": key} for key in KEYS], "key_columns": ["id"], "pattern": "db.t*"}
    erasure = icestream.post("/erasures", body | {"catalog": registered.name})
    wait_until(lambda: _ended(icestream, erasure["id"]), "the erasure")

    receipt = icestream.get(f"/erasures/{erasure['id']}/receipt")
    assert receipt["complete"]
    told = {one["table"]: one for one in receipt["tables"]}
    assert len(told) == count
    *others, tagged = (told[f"db.t{number}"] for number in range(count))
    for one, size_bytes in zip(others, touched, strict=False):
        assert one["counts"] == {"gone": 100, "held": 0, "invisible": 0, "unknown": 0}, one
        assert {key["state"] for key in one["keys"]} == {"gone"}
        assert 0 < one["report"]["bytes_rewritten"] <= 1.1 * size_bytes
    assert (tagged["counts"]["held"], tagged["counts"]["gone"]) == (100, 0)
    assert {held["holder"] for held in tagged["report"]["held"]} == {"tag"}
    for table, rows in zip(tables, expected, strict=True):
        assert visible_rows(spark, table.identifier) == rows
    clean = [of_tables / f"t{number}" for number in range(count - 1)]
    assert files_with(KEYS, *clean) == []
    assert files_with(KEYS, of_tables / f"t{count - 1}") != []
    # Nor in indexes and logs. Free pages of the database may have them (docs/erasure.md).
    kept = files_with(KEYS, icestream.data_dir)
    assert {Path(file).name for file in kept} <= {"icestream.db", "icestream.db-wal"}


def _ended(icestream: Icestream, erasure_id: str) -> Json | None:
    erasure = icestream.get(f"/erasures/{erasure_id}")
    return erasure if erasure["status"] in FINAL else None
