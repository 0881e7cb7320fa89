"""An exported index is read by whoever has Iceberg's draft and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.factories import TableBuilder
from tests.jobs import Jobs
from tests.worker.query.draft_reader import DraftIndex, Key
from worker.contract.lookups import AskedKeys
from worker.io.storage import Storage
from worker.query import export
from worker.query.answers import TablePlace
from worker.query.errors import NotCoveredError
from worker.query.export import DRAFT, UnsupportedExportError, export_index, main

pytestmark = pytest.mark.integration

COLUMNS = "id bigint, region string, day date, n decimal(9, 2), raw binary, flag boolean"
KEYS = (["id"], ["region", "day", "n", "raw", "flag"])


def rows(first: int, count: int) -> list[dict[str, Any]]:
    """Keys in no order, repeated, and null here and there."""
    made = []
    for i in range(first, first + count):
        row: dict[str, Any] = {
            "id": i * 7 % 20,
            "region": ("eu", "us", "\U0001f600", "\uffff", "")[i % 5],
            "day": date(1969 + i % 3, 1, 1),
            "n": Decimal(i % 4 - 2) / 100,
            "raw": bytes([255 * (i % 2), i % 3]),
            "flag": i % 2 == 0,
        }
        made.append(
            {name: None if (i + at) % 9 == 0 else value for at, (name, value) in enumerate(row.items())}
        )
    return made


def place(table: TableBuilder, jobs: Jobs) -> TablePlace:
    return TablePlace(table.metadata_location, Storage(), jobs.index_location, Storage())


def exported(table: TableBuilder, jobs: Jobs, columns: Sequence[str], to: Path) -> export.Exported:
    return export_index(place(table, jobs), AskedKeys(key_columns=list(columns)), to.as_uri())


def live(table: TableBuilder, columns: Sequence[str]) -> list[tuple[Key, str, int]]:
    """As Spark says."""
    query = f"SELECT {', '.join(columns)}, _file, _pos FROM {table.identifier}"
    found = [row.values() for row in table.spark.sql(query).toArrow().to_pylist()]
    return [(tuple(key), path, position) for *key, path, position in found]


@pytest.fixture
def table(spark: SparkSession, jobs: Jobs, table_name: str) -> TableBuilder:
    made = TableBuilder.create(spark, table_name, COLUMNS, format_version=3, partitioned_by=["region"])
    made.append(rows(0, 60), files=2)
    made.append(rows(60, 30))
    made.delete_keys([{"id": 7}], partition_of={"region": "us"})
    jobs.run("index", key_sets=KEYS)
    jobs.run("convert")
    return made


def test_an_exported_index_is_read_by_the_draft_alone(
    jobs: Jobs,
    table: TableBuilder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(export, "LEAF_ENTRIES", 11)
    for number, columns in enumerate(KEYS):
        made = exported(table, jobs, columns, tmp_path / str(number))
        index = DraftIndex.open(made.metadata.removeprefix("file://"))
        assert index.metadata["table-uuid"] == str(table.metadata.table_uuid)
        assert made.snapshot_id == table.snapshot_id
        expected = live(table, columns)
        assert 0 < len(expected) < 90
        entries = index.entries(made.snapshot_id)
        assert sorted(entries, key=repr) == sorted(expected, key=repr)
        assert made.entries == len(entries)
        assert made.leaf_files == -(-len(entries) // 11)
        places = defaultdict(list)
        for key, path, position in expected:
            places[key].append((path, position))
        asked = list(places)[::4]
        for key in asked:
            assert sorted(index.lookup(made.snapshot_id, key)) == sorted(places[key])
        assert len(index.leaf_files_read) < len(asked) * made.leaf_files / 2

    # The command says where the same index is.
    words = ["--metadata", table.metadata_location, "--index-warehouse", jobs.index_location]
    words += ["--key-column", "id", "--to"]
    assert main([*words, (tmp_path / "index").as_uri()]) == 0
    told = json.loads(capsys.readouterr().out)
    index = DraftIndex.open(told["metadata"].removeprefix("file://"))
    assert len(index.entries(told["source_table_snapshot_id"])) == told["entries"]
    assert index.metadata["properties"] == {"icestream.draft": f"apache/iceberg#16961 at {DRAFT}"}
    assert main([*words, tmp_path.as_uri(), "--branch", "none"]) == 1
    assert "has no branch or tag 'none'" in capsys.readouterr().err


def test_what_no_export_can_tell_is_refused(
    spark: SparkSession, jobs: Jobs, table: TableBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "refused"
    monkeypatch.setattr(export, "MOST_ENTRIES", 80)
    with pytest.raises(UnsupportedExportError, match="90 rows, and 80 at most"):
        exported(table, jobs, ["id"], to)
    monkeypatch.undo()
    with pytest.raises(NotCoveredError, match="data files of the snapshot are not indexed"):
        exported(table, jobs, ["day"], to)
    table.delete_keys([{"id": 1}], partition_of={"region": "eu"})
    with pytest.raises(NotCoveredError, match="Equality deletes wait to be converted"):
        exported(table, jobs, ["id"], to)
    jobs.run("convert")
    table.append(rows(90, 5))
    with pytest.raises(NotCoveredError, match="data files of the snapshot are not indexed"):
        exported(table, jobs, ["id"], to)
    jvm: Any = spark.sparkContext._jvm
    table.java.updateSchema().addColumn("u", jvm.org.apache.iceberg.types.Types.UUIDType.get()).commit()
    jobs.run("index", key_sets=[["id"], ["u"]])
    with pytest.raises(UnsupportedExportError, match="Column u is a UUID"):
        exported(table, jobs, ["u"], to)
    assert not to.exists()


def test_the_command_of_the_program_says_what_is_missing(tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("icestream"))
    words = ["--index-warehouse", str(tmp_path), "--key-column", "id", "--to", str(tmp_path / "index")]
    command = [program, "export-index", str(tmp_path / "00001-x.metadata.json"), *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("A file that the export needs is gone, or never was: ")
    assert ended.stderr.count("\n") == 1
