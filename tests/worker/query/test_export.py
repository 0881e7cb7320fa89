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

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.factories import TableBuilder
from tests.jobs import Jobs
from tests.worker.query.draft_reader import DraftIndex, Key, as_numbers
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
    found = [row.values() for row in as_numbers(table.spark.sql(query).toArrow()).to_pylist()]
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


def test_keys_of_further_types_are_read_back_and_so_is_what_python_does_not_hold(
    spark: SparkSession, jobs: Jobs, table_name: str, tmp_path: Path
) -> None:
    """Among them are the day and the moments in years far from 1 to 9999, and nanoseconds."""
    types: Any = spark.sparkContext._jvm.org.apache.iceberg.types.Types  # type: ignore[union-attr]
    ends = [-(2**62), 2**62, 0, None]
    numbers = [Decimal(-1), Decimal("99.99"), Decimal(0), None]
    columns = {
        "i": (types.IntegerType.get(), pa.array([-(2**31), 2**31 - 1, 0, None], pa.int32())),
        "d": (types.DateType.get(), pa.array([-(2**31), 2**31 - 1, 0, None], pa.int32()).view(pa.date32())),
        "t": (types.TimeType.get(), pa.array([0, 86_399_999_999, 1, None]).view(pa.time64("us"))),
        "f": (types.FixedType.ofLength(2), pa.array([b"\xff\x00", b"\x00\x80", b"\0\0", None], pa.binary(2))),
        "ts": (types.TimestampType.withoutZone(), pa.array(ends).view(pa.timestamp("us"))),
        "tz": (types.TimestampType.withZone(), pa.array(ends).view(pa.timestamp("us", "UTC"))),
        "ns": (types.TimestampNanoType.withoutZone(), pa.array(ends).view(pa.timestamp("ns"))),
        "nz": (types.TimestampNanoType.withZone(), pa.array(ends).view(pa.timestamp("ns", "UTC"))),
        "n18": (types.DecimalType.of(18, 2), pa.array(numbers, pa.decimal128(18, 2))),
        "n38": (types.DecimalType.of(38, 2), pa.array(numbers, pa.decimal128(38, 2))),
    }
    table = TableBuilder.create(spark, table_name, "id bigint", format_version=3)
    update = table.java.updateSchema()
    for name, (kind, _) in columns.items():
        update.addColumn(name, kind)
    update.commit()
    stored = pa.table({name: values for name, (_, values) in columns.items()})
    table.parquet = {"write_statistics": False}  # PyIceberg, by which a test has them, can't read these
    table.append(stored)
    jobs.run("index", key_sets=[list(columns)])
    made = exported(table, jobs, list(columns), tmp_path / "index")
    entries = DraftIndex.open(made.metadata.removeprefix("file://")).entries(made.snapshot_id)
    found = {position: key for key, _, position in entries}
    assert found == dict(enumerate(tuple(row.values()) for row in as_numbers(stored).to_pylist()))


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
