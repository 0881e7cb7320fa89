"""Where a conversion looks for rows, what a dry run promises, and what happens to tables without deletes."""

from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.factories import Catalog, TableBuilder, equality_delete_files, visible_rows
from tests.integration.icestream import Icestream, Json
from tests.thorough import V2_FIRST, V3_FIRST

# By the worker alone, with every change: tests/worker/jobs/test_pipeline.py and test_indexing.py.
pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

ROWS = 100_000


def _table(
    spark: SparkSession, catalog: Catalog, format_version: Literal[2, 3]
) -> tuple[TableBuilder, list[str]]:
    """Two data files with the even ids, then two with the odd ones, in this order in the paths."""
    table = TableBuilder.create(
        spark, f"{catalog.name}.db.t", format_version=format_version, partitioned_by=("region",)
    )
    return table, table.append(_rows(range(ROWS)), files=2)


def _rows(ids: range, *, value: int = 0) -> pa.Table:
    return pa.table(
        {
            "id": list(ids),
            "region": ["eu" if number % 2 else "us" for number in ids],
            "value": [value] * len(ids),
        }
    )


def _keys(*ids: int) -> list[dict[str, object]]:
    return [{"id": number, "region": "eu" if number % 2 else "us"} for number in ids]


def _source(result: Json) -> tuple[str, int, int]:
    (key_set,) = result["key_sets"]
    return key_set["source"], key_set["data_files_from_index"], key_set["data_files_scanned"]


def _check_upserted_key(icestream: Icestream, table_id: str) -> None:
    """The row before the upsert is told as deleted, by an equality delete or what it was converted to."""
    asked = {"keys": _keys(10, 20), "select": ["value"]}
    told = icestream.post(f"/tables/{table_id}/lookups", asked)
    assert (told["data_files_from_index"], told["data_files_scanned"]) == (6, 0)
    upserted, other = (found["matches"] for found in told["results"])
    assert sorted(match["live"] for match in upserted) == [False, True]
    assert [match["row"] for match in upserted if match["live"]] == [{"value": 1}]
    assert [match["live"] for match in other] == [True]


@V2_FIRST
def test_rows_are_found_by_scan_by_index_and_by_both(
    format_version: Literal[2, 3], spark: SparkSession, icestream: Icestream, registered: Catalog
) -> None:
    table, _ = _table(spark, registered, format_version)
    table_id = icestream.enroll(registered, "db.t")

    table.delete_keys(_keys(0, 1, 50_000, 99_999))
    expected = visible_rows(spark, table.identifier)
    scanned = icestream.run(table_id, "convert")
    assert _source(scanned) == ("scan", 0, 4)
    assert scanned["rows_deleted"] == 4
    assert visible_rows(spark, table.identifier) == expected

    table.upsert(_rows(range(10, 20), value=1), key=("id", "region"))
    expected = visible_rows(spark, table.identifier)
    icestream.run(table_id, "index")
    _check_upserted_key(icestream, table_id)
    indexed = icestream.run(table_id, "convert")
    assert _source(indexed) == ("index", 4, 0)
    _check_upserted_key(icestream, table_id)
    assert indexed["rows_deleted"] == 10
    assert visible_rows(spark, table.identifier) == expected

    # A data file that the index does not know, and a delete of a row in it and of one indexed before.
    table.append(_rows(range(ROWS + 1, ROWS + 101, 2)))
    table.delete_keys(_keys(33, ROWS + 1))
    expected = visible_rows(spark, table.identifier)
    mixed = icestream.run(table_id, "convert")
    assert _source(mixed) == ("index_and_scan", 3, 1)
    assert mixed["rows_deleted"] == 2
    assert visible_rows(spark, table.identifier) == expected
    assert equality_delete_files(spark, table.identifier) == []


@V3_FIRST
def test_dry_run_changes_nothing_and_foretells_every_count(
    format_version: Literal[2, 3],
    spark: SparkSession,
    icestream: Icestream,
    registered: Catalog,
    tmp_path: Path,
) -> None:
    table, paths = _table(spark, registered, format_version)
    table.delete_positions({paths[0]: [0, 7], paths[2]: [3]})  # ids 0, 14 and 7
    table.delete_keys(_keys(*range(0, 1000, 3)))
    table.upsert(_rows(range(500, 600), value=1), key=("id", "region"))
    table_id = icestream.enroll(registered, "db.t")
    snapshot_id, files = table.snapshot_id, _files_under(tmp_path)

    foretold = icestream.run(table_id, "convert", dry_run=True)
    assert table.snapshot_id == snapshot_id
    assert _files_under(tmp_path) == files
    assert foretold["iceberg_snapshot_id_after"] is None
    assert foretold["dry_run"] is True

    expected = visible_rows(spark, table.identifier)
    done = icestream.run(table_id, "convert")
    counts = (
        "equality_delete_files_removed",
        "equality_deletes_resolved",
        "rows_deleted",
        "data_files_touched",
        "delete_files_added",
        "delete_files_removed",
        "deletion_vectors_added",
        "position_delete_files_added",
        "commits",
        "bytes_read",
        "bytes_written",
        "unconvertible",
    )
    assert {name: foretold[name] for name in counts} == {name: done[name] for name in counts}
    chosen, taken = (
        [{name: said for name, said in one.items() if "seconds" not in name} for one in result["key_sets"]]
        for result in (foretold, done)
    )
    assert chosen == taken
    assert done["equality_delete_files_removed"] == 4
    assert done["rows_deleted"] == len({*range(0, 1000, 3), *range(500, 600)} - {0, 14, 7})
    assert visible_rows(spark, table.identifier) == expected


def test_table_without_equality_deletes_is_converted_by_doing_nothing(
    spark: SparkSession, icestream: Icestream, registered: Catalog
) -> None:
    table, _ = _table(spark, registered, 3)
    snapshot_id = table.snapshot_id
    result = icestream.run(icestream.enroll(registered, "db.t"), "convert")
    assert (result["commits"], result["equality_delete_files_removed"], result["key_sets"]) == (0, 0, [])
    assert any("no equality deletes" in decision for decision in result["decisions"])
    assert table.snapshot_id == snapshot_id


def test_table_without_a_key_is_not_indexed_until_one_is_declared(
    spark: SparkSession, icestream: Icestream, registered: Catalog
) -> None:
    _, paths = _table(spark, registered, 2)
    table_id = icestream.enroll(registered, "db.t")
    job = icestream.wait_for_job(icestream.submit(table_id, "index"))
    assert (job["status"], job["error"]["code"], job["result"]) == ("failed", "no_key_set", None)
    assert job["error"]["remedy"]
    assert len(job["attempts"]) == 1, "another attempt can't help"

    path = f"/tables/{table_id}"
    etag = icestream.http.get(path).headers["ETag"]
    declared = icestream.http.patch(path, json={"key_sets": [["id"]]}, headers={"If-Match": etag})
    assert declared.is_success, declared.text
    (key_set,) = icestream.run(table_id, "index")["key_sets"]
    assert (key_set["columns"], key_set["rows_indexed"]) == (["id"], ROWS)
    assert key_set["files_indexed"] == len(paths)


def _files_under(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.is_file()}
