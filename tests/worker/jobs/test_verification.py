"""A wrong index is found, whatever is wrong with it, and never used again; a right one is never blamed."""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.factories import Catalog, TableBuilder, equality_delete_files, visible_rows
from tests.jobs import Jobs
from tests.thorough import thorough_unless
from tests.worker.index.test_paimon_readers import COLUMNS, KEYS, row
from worker.index import build, checksums, compaction, footers, run_files
from worker.index.dictionary import owners
from worker.index.fingerprints import Blocks
from worker.index.run_files import TOP_LEVEL, RunFile
from worker.index.sorted_runs import RunTable
from worker.index.warehouse import IndexWarehouse
from worker.io.storage import Storage
from worker.jobs import verification
from worker.lookup import resolution
from worker.lookup.index_lookup import LiveRows, Matches
from worker.process.errors import JobCancelledError
from worker.spark.tasks import TaskRunner

pytestmark = pytest.mark.integration

FIRST_ID = 10**12  # its bytes are not to be found by chance
ENTRIES, FILES = "entries_1_2_g1", "files_1_2_g1"


class Tampered:
    """A copy of an index, and how to make it wrong."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def files(self, name: str) -> list[Path]:
        return sorted(self.root.glob(f"*.db/{name}/bucket-0/*.parquet"))

    def change(self, path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
        changed = change(pq.read_table(path))
        described = changed.schema.metadata or {}
        described.pop(checksums.NAME.encode(), None)
        pq.write_table(changed.replace_schema_metadata(described), path)
        footers.KEPT.clear()

    def entries(self, change: Callable[[dict[str, list[Any]]], None], *, ordered: bool = True) -> None:
        """Changes the columns of a run."""

        def changed(table: pa.Table) -> pa.Table:
            columns = table.to_pydict()
            change(columns)
            after = pa.table(columns, schema=table.schema)
            if ordered:
                after = after.sort_by([(name, "ascending") for name in table.schema.names[2:]])
            assert after != table
            return after

        self.change(self.files(ENTRIES)[0], changed)

    def partition_ids(self) -> set[int]:
        (dictionary,) = map(pq.read_table, self.files(FILES))
        return set(dictionary["partition_id"].to_pylist())

    def dictionary(self, **changes: Callable[[Any], Any]) -> None:
        """Changes columns of the row that names the first data file."""

        def changed(table: pa.Table) -> pa.Table:
            first, *others = table.to_pylist()
            first |= {name: change(first[name]) for name, change in changes.items()}
            return pa.Table.from_pylist([first, *others], schema=table.schema)

        self.change(self.files(FILES)[0], changed)

    def run_table(self, name: str = ENTRIES) -> RunTable:
        (database,) = (folder.name.removesuffix(".db") for folder in self.root.glob("*.db"))
        table = IndexWarehouse(self.root.as_uri(), Storage()).open(database, name)
        assert table is not None
        return table

    def describe(self, change: Callable[[RunFile], RunFile], *, name: str = ENTRIES) -> None:
        """Commits what the manifest says of the runs anew; the files themselves stay as they are."""
        table = self.run_table(name)
        live = table.live_files()
        described = []
        for file in live.files:
            new_name = f"again-{file.file_name}"
            location = file.location.replace(file.file_name, new_name)
            shutil.copy(file.location.removeprefix("file://"), location.removeprefix("file://"))
            described.append(change(replace(file, file_name=new_name, location=location)))
        table.commit_files(live, described, live.files)


@pytest.fixture(scope="session")
def table(spark: SparkSession, catalog: Catalog) -> TableBuilder:
    """Two partitions, six data files, keys of two columns with nulls, and pending deletes."""
    table = TableBuilder.create(
        spark,
        f"{catalog.name}.db.verified",
        "id bigint, name string, region string",
        format_version=3,
        partitioned_by=["region"],
    )
    for start in (0, 60, 120):
        table.append([row_of(i) for i in range(start, start + 60)])
    table.delete_keys([row_of(i) for i in range(0, 180, 11)], equality_columns=["id", "name"])
    return table


def row_of(i: int) -> dict[str, Any]:
    name = None if i % 10 == 9 else f"name {i % 7}"
    return {"id": FIRST_ID + i * 7919 % 181, "name": name, "region": "eu" if i % 3 else "us"}


DELETED_ROWS = len(range(0, 180, 11))


@pytest.fixture(scope="session")
def indexed(
    spark: SparkSession, catalog: Catalog, table: TableBuilder, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An index of four runs, each of several row groups and of one partition."""
    folder = tmp_path_factory.mktemp("indexes") / "index"
    jobs = Jobs(spark, catalog, table.identifier, folder)
    with pytest.MonkeyPatch.context() as limits:
        limits.setattr(run_files, "ROW_GROUP_ROWS", 8)
        limits.setattr(build, "RUN_ROWS", 60)
        assert jobs.run("index").result["key_sets"][0]["sorted_runs_written"] == 4
    return folder


@pytest.fixture
def jobs(spark: SparkSession, catalog: Catalog, table: TableBuilder, indexed: Path, tmp_path: Path) -> Jobs:
    footers.KEPT.clear()
    return Jobs(spark, catalog, table.identifier, shutil.copytree(indexed, tmp_path / "index"))


@pytest.fixture
def tampered(jobs: Jobs) -> Tampered:
    return Tampered(jobs.index)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few rows take several blocks, pieces, and reads."""
    monkeypatch.setattr(verification, "BLOCK_ROWS", 16)
    monkeypatch.setattr(verification, "PIECE_ROWS", 10)
    monkeypatch.setattr("worker.index.sorted_file._READ_ROWS", 20)
    monkeypatch.setattr("worker.index.fingerprints.BLOCK_ROWS", 16)


def test_the_index_that_the_tests_make_wrong_is_right(jobs: Jobs) -> None:
    outcome = jobs.run("verify")
    (key_set,) = outcome.result["key_sets"]
    assert key_set == {
        "equality_field_ids": [1, 2],
        "columns": ["id", "name"],
        "generation": 1,
        "files_covered": 6,
        "files_checked": 6,
        "files_unreadable": 0,
        "files_no_longer_live": 0,
        "rows_checked": 180,
        "entries_checked": 180,
        "entries_without_file": 0,
        "differences": 0,
        "examples": [],
        "rebuilt": False,
    }
    stages = [stage["name"] for stage in outcome.result["stages"]]
    assert stages[:4] == ["plan", "check_dictionary", "check_index", "check_data_files"]
    assert stages[-2:] == ["verify", "report"]
    assert "compared with the 180 rows of 6 of 6 covered data files" in outcome.result["decisions"][-1]


def within(column: str, change: Callable[[list[Any]], None]) -> Callable[[Tampered], None]:
    return lambda tampered: tampered.entries(lambda columns: change(columns[column]))


def swapped(values: list[Any]) -> None:
    """Of two entries of one partition without nulls, in the middle of a row group."""
    values[9], values[10] = values[10], values[9]


def assigned(at: int, value: Any) -> Callable[[list[Any]], None]:
    return lambda values: values.__setitem__(at, value)


def copied(source: int, target: int) -> Callable[[list[Any]], None]:
    return lambda values: values.__setitem__(target, values[source])


def twice_and_missing(tampered: Tampered) -> None:
    def change(columns: dict[str, list[Any]]) -> None:
        for values in columns.values():
            values[10] = values[9]

    tampered.entries(change)


def in_another_order(tampered: Tampered) -> None:
    def change(columns: dict[str, list[Any]]) -> None:
        for values in columns.values():
            swapped(values)

    tampered.entries(change, ordered=False)


def another_partition(tampered: Tampered) -> None:
    def change(columns: dict[str, list[Any]]) -> None:
        ids = columns["partition_id"]
        ids[9] = next(other for other in tampered.partition_ids() if other != ids[9])

    tampered.entries(change)


def told(**changes: Callable[[Any], Any]) -> Callable[[Tampered], None]:
    return lambda tampered: tampered.describe(
        lambda file: replace(file, **{name: change(getattr(file, name)) for name, change in changes.items()})
    )


def higher(bounds: tuple[Any, ...]) -> tuple[Any, ...]:
    return (bounds[0], bounds[1], bounds[2] + 1, *bounds[3:])


def statistics(tampered: Tampered) -> None:
    """The greatest id of a row group, as its footer tells it."""
    path = tampered.files(ENTRIES)[0]
    told = pq.read_metadata(path).row_group(1).column(4).statistics.max
    assert told > FIRST_ID
    content = path.read_bytes()
    at = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    unchecked = content[at:].replace(checksums.NAME.encode(), b"icestream.other")
    footer = unchecked.replace(struct.pack("<q", told), struct.pack("<q", told - 1))
    assert footer != unchecked
    path.write_bytes(content[:at] + footer)


def replaced(name: str, content: bytes | None) -> Callable[[Tampered], None]:
    def tamper(tampered: Tampered) -> None:
        path = tampered.files(name)[0]
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)

    return tamper


def garbled(tampered: Tampered) -> None:
    path = tampered.files(ENTRIES)[0]
    content = bytearray(path.read_bytes())
    footer_bytes = int.from_bytes(content[-8:-4], "little") + 8
    content[4:-footer_bytes] = b"\xff" * (len(content) - footer_bytes - 4)
    path.write_bytes(content)


def other_columns(tampered: Tampered) -> None:
    tampered.change(tampered.files(ENTRIES)[0], lambda entries: entries.drop_columns(["key_1"]))


def covered_twice(tampered: Tampered) -> None:
    def change(dictionary: pa.Table) -> pa.Table:
        rows = dictionary.to_pylist()
        return pa.Table.from_pylist([*rows, rows[0] | {"base_address": 10**6}], schema=dictionary.schema)

    tampered.change(tampered.files(FILES)[0], change)


def shared_partition_id(tampered: Tampered) -> None:
    tampered.dictionary(
        partition_id=lambda own: next(other for other in tampered.partition_ids() if other != own)
    )


def deleted_for_paimon(tampered: Tampered) -> None:
    def changed(table: pa.Table) -> pa.Table:
        kinds = pa.array([3, *[0] * (table.num_rows - 1)], pa.int8())
        return table.set_column(1, table.schema.field(1), kinds)

    tampered.change(tampered.files(ENTRIES)[0], changed)


TAMPERINGS: dict[str, tuple[Callable[[Tampered], None], str]] = {
    "deleted_for_paimon": (deleted_for_paimon, "_VALUE_KIND is not 0"),
    "swapped_keys": (within("address", swapped), r"row \d+: the entry has another id(, another name)?$"),
    "another_first_key": (within("key_1", copied(9, 10)), "the entry has another id"),
    "another_second_key": (
        within("key_2", assigned(9, "x" * 90)),
        "the entry has another name$",
    ),
    "null_instead_of_a_value": (
        within("null_mask", assigned(9, 2)),
        "the entry has name null$",
    ),
    "missing_and_twice": (twice_and_missing, r"row 10 is row 9"),
    "address_of_another_row": (within("address", copied(9, 10)), "no entry|2 entries"),
    "address_of_no_row": (within("address", assigned(9, 10**9)), "no entry"),
    "negative_address": (within("address", assigned(9, -5)), "no entry"),
    "another_partition": (another_partition, r"the entry has partition id \d+ instead of \d+"),
    "unsorted": (in_another_order, "row 10 must not follow row 9$"),
    "rows_in_manifest": (told(rows=lambda rows: rows + 1), r"\d+ rows, \d+ in the manifest"),
    "lower_bounds_in_manifest": (told(lower_bounds=higher), "key_1 with other bounds than the manifest"),
    "upper_bounds_in_manifest": (told(upper_bounds=higher), "key_1 with other bounds than the manifest"),
    "first_key_in_manifest": (told(min_key=higher), "keys with other bounds than the manifest"),
    "last_key_in_manifest": (told(max_key=higher), "keys with other bounds than the manifest"),
    "statistics_of_a_row_group": (statistics, "key_1 with other bounds than the statistics of row group 1"),
    "overlapping_files": (told(level=lambda _: TOP_LEVEL), f"overlap at level {TOP_LEVEL}"),
    "not_parquet": (replaced(ENTRIES, b"no Parquet file"), "can't be decoded"),
    "empty_file": (replaced(ENTRIES, b""), "can't be decoded"),
    "missing_file": (replaced(ENTRIES, None), "is missing"),
    "garbled_pages": (garbled, "can't be decoded"),
    "missing_column": (other_columns, "can't be decoded"),
    "fewer_rows_in_dictionary": (
        lambda tampered: tampered.dictionary(record_count=lambda rows: rows - 1),
        r"\d+ rows, \d+ in the dictionary",
    ),
    "another_partition_in_dictionary": (
        lambda tampered: tampered.dictionary(partition_values=lambda _: '["ap"]'),
        "in another partition than the table",
    ),
    "another_spec_in_dictionary": (
        lambda tampered: tampered.dictionary(spec_id=lambda _: 7),
        "in another partition than the table",
    ),
    "another_partition_id_in_dictionary": (
        lambda tampered: tampered.dictionary(partition_id=lambda _: 999),
        r"partition id \d+ instead of 999",
    ),
    "shared_partition_id": (shared_partition_id, "share the id"),
    "shared_addresses": (
        lambda tampered: tampered.dictionary(base_address=lambda base: base + 1),
        "share row addresses",
    ),
    "covered_twice": (covered_twice, "is covered twice"),
    "dictionary_not_parquet": (replaced(FILES, b"no Parquet file"), "the index can't be opened"),
    "dictionary_file_missing": (replaced(FILES, None), "the index can't be opened"),
    "rows_in_manifest_of_dictionary": (
        lambda tampered: tampered.describe(lambda file: replace(file, rows=file.rows + 1), name=FILES),
        "in the manifest",
    ),
}


@pytest.mark.parametrize("kind", TAMPERINGS)
def test_what_is_wrong_is_found_and_the_wrong_index_is_not_used_again(
    jobs: Jobs, tampered: Tampered, kind: str
) -> None:
    tamper, words = TAMPERINGS[kind]
    tamper(tampered)
    outcome = jobs.run("verify")
    (found,) = outcome.result["key_sets"]
    assert (found["generation"], found["rebuilt"]) == (1, True)
    assert 0 < len(found["examples"]) <= 10
    matching = [example for example in found["examples"] if re.search(words, example)]
    assert matching, found["examples"]
    assert any("it is rebuilt" in decision for decision in outcome.result["decisions"])
    assert [path.name for path in jobs.index.glob("*.db/entries_*")] == ["entries_1_2_g2"]
    foretold = jobs.run("convert", dry_run=True).result
    assert (foretold["key_sets"][0]["source"], foretold["rows_deleted"]) == ("index", DELETED_ROWS)
    (anew,) = jobs.run("verify").result["key_sets"]
    assert (anew["generation"], anew["differences"], anew["rows_checked"]) == (2, 0, 180)


def test_only_what_is_wrong_is_said(jobs: Jobs, tampered: Tampered, table: TableBuilder) -> None:
    """Of two entries with each other's addresses: both rows, in which columns, and nothing of their keys."""
    tampered.entries(lambda columns: swapped(columns["address"]))
    entries = pq.read_table(tampered.files(ENTRIES)[0]).slice(9, 2).to_pylist()
    files = {
        row["base_address"]: row for path in tampered.files(FILES) for row in pq.read_table(path).to_pylist()
    }
    (found,) = jobs.run("verify", dry_run=True).result["key_sets"]
    expected = []
    for wrong, right in (entries, entries[::-1]):
        base = max(base for base in files if base <= wrong["address"])
        name = "" if wrong["key_2"] == right["key_2"] else ", another name"
        place = f"{files[base]['path']} row {wrong['address'] - base}"
        expected.append(f"{place}: the entry has another id{name}")
    assert sorted(found["examples"]) == sorted(expected)


def test_a_dry_run_reports_and_rebuilds_nothing(jobs: Jobs, tampered: Tampered) -> None:
    tampered.entries(lambda columns: swapped(columns["address"]))
    before = tampered.files(ENTRIES)
    result = jobs.run("verify", dry_run=True).result
    assert (result["key_sets"][0]["differences"] > 0, result["key_sets"][0]["rebuilt"]) == (True, False)
    assert not any("rebuilt" in decision for decision in result["decisions"])
    assert tampered.files(ENTRIES) == before
    tampered.files(FILES)[0].write_bytes(b"no Parquet file")
    result = jobs.run("verify", dry_run=True).result
    assert "can't be opened" in result["key_sets"][0]["examples"][0]
    assert tampered.files(ENTRIES) == before


@pytest.mark.parametrize(
    "stage", ["check_dictionary", "check_index", "check_data_files", "verify", "rebuild"]
)
def test_a_cancelled_verification_stops_and_changes_nothing(
    jobs: Jobs, tampered: Tampered, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    def cancel(*told: Any) -> None:
        if stage == "rebuild" or told[0] == stage:
            raise JobCancelledError

    if stage == "rebuild":
        tampered.entries(lambda columns: swapped(columns["address"]))
        jobs.reporter.before_commit = cancel
    else:
        monkeypatch.setattr(jobs.reporter, "progress", cancel)
    before = tampered.files(ENTRIES)
    with pytest.raises(JobCancelledError):
        jobs.run("verify")
    assert tampered.files(ENTRIES) == before
    assert [path.name for path in jobs.index.glob("*.db/entries_*")] == [ENTRIES]


def test_progress_is_told_in_rows(jobs: Jobs, tampered: Tampered, monkeypatch: pytest.MonkeyPatch) -> None:
    tampered.entries(lambda columns: swapped(columns["address"]))
    told: dict[str, tuple[int, int, str]] = {}

    def progress(stage: str, done: int, total: int, unit: str, message: str | None = None) -> None:
        told[stage] = (done, total, unit)

    monkeypatch.setattr(jobs.reporter, "progress", progress)
    jobs.run("verify")
    for stage in ("check_index", "check_data_files", "find_differences"):
        assert told[stage] == (180, 180, "rows")


# Beside test_stages_give_the_same_answer_as_spark_tasks.
@pytest.mark.exhaustive
def test_spark_tasks_find_the_same(
    spark: SparkSession, jobs: Jobs, tampered: Tampered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # Spark's workers know of no patches
    tampered.entries(lambda columns: swapped(columns["address"]))
    here = jobs.run("verify", dry_run=True).result["key_sets"]
    jobs.runner = TaskRunner(spark, local_rows=-1)
    assert jobs.run("verify", dry_run=True).result["key_sets"] == here
    assert here[0]["differences"] > 0


def test_of_very_many_rows_a_sample_is_compared(
    jobs: Jobs, tampered: Tampered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "SAMPLE_ROWS", 100)
    result = jobs.run("verify").result
    (sampled,) = result["key_sets"]
    assert 2 <= sampled["files_checked"] < sampled["files_covered"] == 6
    assert 60 <= sampled["rows_checked"] <= 100
    assert (sampled["differences"], sampled["entries_checked"]) == (0, 180)
    assert f"of {sampled['files_checked']} of 6 covered data files" in result["decisions"][-1]
    monkeypatch.setattr(verification, "SAMPLE_ROWS", 1)
    assert jobs.run("verify").result["key_sets"][0]["files_checked"] == 1

    # Entries are counted for every file, in the sample or not. The address is out of bounds as well.
    tampered.entries(lambda columns: columns["address"].__setitem__(9, 10**9))
    (found,) = jobs.run("verify").result["key_sets"]
    assert (found["differences"], found["entries_without_file"], found["rebuilt"]) == (2, 1, True)


def test_a_lookup_that_misses_rows_is_found_although_the_index_is_right(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = LiveRows.of

    def without_one(self: LiveRows, found: Any) -> Matches:
        matches = of(self, found)
        return replace(matches, ordinals=matches.ordinals[1:], positions=matches.positions[1:])

    monkeypatch.setattr(LiveRows, "of", without_one)
    (found,) = jobs.run("verify", dry_run=True).result["key_sets"]
    assert 0 < found["differences"] <= 4
    assert all("the scan finds it, the index does not" in example for example in found["examples"])


@pytest.mark.parametrize("damage", ["missing", "garbled"])
def test_a_data_file_that_cannot_be_read_does_not_make_its_index_wrong(
    spark: SparkSession, catalog: Catalog, table_name: str, tmp_path: Path, damage: str
) -> None:
    table = TableBuilder.create(spark, table_name, "id bigint, name string, region string")
    for start in (0, 50):
        table.append([row_of(i) for i in range(start, start + 50)])
    table.delete_keys([row_of(3)], equality_columns=["id", "name"])
    jobs = Jobs(spark, catalog, table_name, tmp_path / "index")
    jobs.run("index")
    path = Path(table.data_file_paths[0].removeprefix("file:"))
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-20])
    verified = jobs.run("verify").result
    (key_set,) = verified["key_sets"]
    assert (key_set["differences"], key_set["rebuilt"]) == (0, False)
    assert (key_set["files_covered"], key_set["files_checked"], key_set["files_unreadable"]) == (2, 1, 1)
    assert sum("can't be compared with the index" in one for one in verified["decisions"]) == 1

    # But its entries are counted.
    tampered = Tampered(jobs.index)
    (dictionary,) = map(pq.read_table, tampered.files(FILES))
    (base,) = (file["base_address"] for file in dictionary.to_pylist() if file["path"].endswith(path.name))

    def change(entries: pa.Table) -> pa.Table:
        columns = entries.to_pydict()
        columns["address"][columns["address"].index(base + 7)] = 10**9
        return pa.table(columns, schema=entries.schema)

    tampered.change(tampered.files(ENTRIES)[0], change)
    (found,) = jobs.run("verify", dry_run=True).result["key_sets"]
    assert found["examples"][-1] == f"{table.data_file_paths[0]}: 50 rows, 49 entries"


def test_a_right_index_is_never_blamed(
    spark: SparkSession,
    catalog: Catalog,
    table_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of any key type, with nulls; in any state that jobs leave it in; also with dead files and garbage."""
    table = TableBuilder.create(spark, table_name, COLUMNS, format_version=3, partitioned_by=["region"])
    jvm: Any = spark.sparkContext._jvm
    table.java.updateSchema().addColumn("uuid", jvm.org.apache.iceberg.types.Types.UUIDType.get()).commit()
    jobs = Jobs(spark, catalog, table_name, tmp_path / "index")
    numbers = count()
    states = []

    def append(rows: int, **how: Any) -> None:
        table.append([row(next(numbers)) for _ in range(rows)], **how)

    def verify(live_rows: int, dead_files: int = 0, garbage: int = 0) -> None:
        key_sets = jobs.run("verify").result["key_sets"]
        assert [one["examples"] for one in key_sets] == [[]] * len(KEYS)
        for one in key_sets:
            assert (one["differences"], one["generation"], one["rebuilt"]) == (0, 1, False)
            assert one["rows_checked"] == live_rows
            assert (one["files_no_longer_live"], one["entries_without_file"]) == (dead_files, garbage)
            assert one["files_checked"] == one["files_covered"] == len(table.data_file_paths)
        states.append(
            {file.level for file in Tampered(jobs.index).run_table(entries_name).live_files().files}
        )

    def index_all() -> None:
        jobs.run("index", key_sets=[key.split() for key in KEYS])

    entries_name = "entries_2_3_g1"
    monkeypatch.setattr(run_files, "ROW_GROUP_ROWS", 8)
    monkeypatch.setattr(build, "RUN_ROWS", 30)
    append(120, files=2)
    index_all()
    first_load = table.snapshot_id
    append(24)
    index_all()
    verify(144)
    monkeypatch.setattr(compaction, "TASK_ROWS", 40)
    monkeypatch.setattr(compaction, "RUNS_KEPT", 1)
    jobs.run("compact")
    verify(144)
    append(24)
    index_all()
    verify(168)
    append(5)
    jobs.reporter.before_commit = cancelled_after(1)
    with pytest.raises(JobCancelledError):
        index_all()
    jobs.reporter.before_commit = lambda: None
    index_all()
    table.java.manageSnapshots().rollbackTo(first_load).commit()
    key_sets = jobs.run("verify").result["key_sets"]
    assert [one["differences"] for one in key_sets] == [0] * len(KEYS)
    # The lost attempt met the first of the declared keys only.
    assert {one["entries_without_file"] for one in key_sets if one["columns"] == ["id"]} == {5}
    assert {one["entries_without_file"] for one in key_sets if one["columns"] != ["id"]} == {0}
    assert {one["files_no_longer_live"] for one in key_sets} == {9}
    monkeypatch.setattr(compaction, "KEEP_SECONDS", 0.0)
    jobs.run("compact")
    verify(120)
    assert states == [{0}, {TOP_LEVEL}, {0, TOP_LEVEL}, {TOP_LEVEL}]


def cancelled_after(calls: int) -> Callable[[], None]:
    left = iter([None] * calls)

    def confirm() -> None:
        next_one = next(left, JobCancelledError())
        if next_one is not None:
            raise next_one

    return confirm


@pytest.mark.parametrize(
    ("damage", "driver_keys"),
    thorough_unless(
        lambda case: case == ("moved", 4_000_000),
        [("dropped", 4_000_000), ("moved", 4_000_000), ("moved", 30)],
    ),
)
def test_after_a_rebuild_the_conversion_is_right_and_uses_the_new_index(
    spark: SparkSession,
    catalog: Catalog,
    table_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
    driver_keys: int,
) -> None:
    table = TableBuilder.create(spark, table_name, format_version=3)
    rows = [{"id": i, "region": "eu", "value": i} for i in range(200)]
    table.append(rows, files=2)
    for commit in range(3):
        table.upsert(rows[commit * 20 : 120 : 7], key=["id"])
    jobs = Jobs(spark, catalog, table_name, tmp_path / "index")
    jobs.run("index")
    assert jobs.run("verify").result["key_sets"][0]["differences"] == 0
    # Only now: Spark's workers keep footers, and files don't change in place but here.
    monkeypatch.setattr(resolution, "DRIVER_KEYS", driver_keys)

    def change(entries: pa.Table) -> pa.Table:
        if damage == "dropped":
            return entries.slice(1)
        return entries.set_column(4, entries.schema.field(4), [entries["key_1"].to_numpy() + 1])

    tampered = Tampered(jobs.index)
    tampered.change(tampered.files("entries_1_g1")[0], change)
    verified = jobs.run("verify").result["key_sets"][0]
    assert verified["differences"] > 0
    assert verified["examples"]
    before = visible_rows(spark, table_name)
    converted = jobs.run("convert").result
    assert (converted["key_sets"][0]["source"], visible_rows(spark, table_name)) == ("index", before)
    assert equality_delete_files(spark, table_name) == []
    assert jobs.run("verify").result["key_sets"][0]["differences"] == 0


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 70)), max_size=12),
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 12_000), min_size=1),
)
def test_blocks_find_the_file_and_position_that_own_an_address(
    files: list[tuple[int, int]], addresses: list[int]
) -> None:
    counts = np.array([rows for _, rows in files], np.int64)
    gaps = np.array([gap for gap, _ in files], np.int64)
    bases = np.cumsum(gaps + np.maximum(1, counts)) - np.maximum(1, counts)
    wanted = np.array([*addresses, *bases, *(bases + counts), *(bases + counts - 1)], np.int64)
    blocks = Blocks(bases, counts)
    found = blocks.of(wanted)
    assert blocks.files[found].tolist() == owners(bases, counts, wanted).tolist()
    owned = found > 0
    positions = wanted[owned] - bases[blocks.files[found[owned]]]
    within = positions - blocks.starts[found[owned]]
    assert ((within >= 0) & (within < blocks.rows[found[owned]])).all()
    for block, following in pairwise(range(1, len(blocks))):
        assert blocks.first_blocks[blocks.files[following]] <= following
        assert blocks.rows[block] > 0
    assert blocks.rows.sum() == counts.sum()
