"""What is known of an index is what everybody reads of it, and is used only while that is so."""

import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from tests.patience import PATIENCE_SECONDS
from tests.worker.index.test_checksums import DATABASE, KEY_SET, TYPES, warehouse
from tests.worker.lookup.test_lookup import write_data_file
from worker.attempt.job import Job
from worker.index import compaction, key_set_index
from worker.index.build import build_tasks
from worker.index.commit import commit_index, forget_files
from worker.index.dictionary import assign_row_addresses, read_parts
from worker.index.key_set_index import DamagedIndexError, IndexState, KeySetIndex, damage_of, open_index
from worker.index.run_files import RunFile, write_run
from worker.index.sorted_runs import CleanedUp, LiveFiles, RunTable
from worker.io.storage import Storage
from worker.jobs.indexing import _clean_up
from worker.keys.read import KeyReader
from worker.table.files import DataFile, DataFiles

KEYS: dict[str, list[Any]] = {
    "int": [1, 2, 3],
    "bytes": [b"\x00", b"\x7f", b"\xff"],
    "text": ["", "a", "é"],
    "decimal": [Decimal("-1.50"), Decimal("0.00"), Decimal("9.99")],
    "date": [date(1969, 12, 31), date(1970, 1, 1), date(2026, 1, 1)],
    "time": [datetime(year, 1, 1, 1, 2, 3, 7, UTC) for year in (1969, 1970, 2026)],
    "boolean": [False, True, True],
}


@pytest.mark.parametrize("kind", KEYS)
def test_a_commit_tells_the_files_that_everybody_reads(tmp_path: Path, kind: str) -> None:
    rows = pa.table({"key": KEYS[kind], "address": [1, 2, 3]})
    rows = rows.cast(pa.schema([field.with_nullable(False) for field in rows.schema]))
    names = rows.column_names
    table = warehouse(tmp_path).create(DATABASE, "t", rows.schema, names, {})
    storage, known = Storage(), table.live_files()
    for replaced in ((), (), slice(0, 1)):
        removed = known.files[replaced] if isinstance(replaced, slice) else ()
        added = write_run(storage, table.location, rows, primary_key=names)
        known = table.commit_files(known, added, removed, beside=7)
        read = table.live_files()
        assert set(known.files) == set(read.files)
        assert len(known.files) == len(read.files)
        assert (known.paimon_snapshot_id, known.beside) == (read.paimon_snapshot_id, read.beside)
        assert known.snapshot_file == read.snapshot_file
    assert [len(known.files), known.rows] == [2, 6]


def grow(folder: Path, index: KeySetIndex, number: int) -> tuple[KeySetIndex, DataFile]:
    """With one data file more, of a partition that it shares with each third."""
    file = write_data_file(folder, f"{number}.parquet", TYPES, [("k", number)], str(number % 3), number + 1)
    indexed = assign_row_addresses([file], index.end_address, index.dictionary.partitions())
    reader = KeyReader(Storage(), KEY_SET, None, {})
    (task,) = build_tasks(reader, Storage(), index.entries_table.location, indexed, 1)
    return commit_index(index, task.run(None).runs, indexed), file


def opened(folder: Path, known: IndexState | None = None, *, create: bool = False) -> KeySetIndex:
    index = open_index(warehouse(folder), DATABASE, KEY_SET, create=create, known=known)
    assert index is not None
    return index


def described(index: KeySetIndex, files: DataFiles) -> list[Any]:
    dictionary = index.dictionary
    columns = (dictionary.base_addresses, dictionary.record_counts, dictionary.partition_ids)
    return [
        *(column.tolist() for column in columns),
        [dictionary.path_of(row) for row in range(len(dictionary))],
        dictionary.partitions(),
        dictionary.rows_of(files).tolist(),
        set(index.files.files),
        set(index.entries.files),
    ]


def test_what_is_known_is_not_read_again_and_what_came_since_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, files, states = opened(tmp_path, create=True), [], []
    for number in range(6):
        states.append(index.state)
        index, file = grow(tmp_path, index, number)
        files.append(file)
    live = DataFiles.of(files)
    anew = described(opened(tmp_path), live)
    assert described(index, live) == anew, "as it was committed"
    read: list[int] = []

    def counted(storage: Storage, files: Sequence[RunFile], schema: pa.Schema) -> Iterator[pa.Table]:
        read.append(len(files))
        return read_parts(storage, files, schema)

    monkeypatch.setattr(key_set_index, "read_parts", counted)
    for state in states:  # as others have left it, who went on since
        assert described(opened(tmp_path, state), live) == anew
    assert read == [6, 5, 4, 3, 2, 1]
    known = opened(tmp_path).state
    monkeypatch.setattr(RunTable, "_latest", None)
    assert described(opened(tmp_path, known), live) == anew, "no manifest was read"
    assert opened(tmp_path, known).dictionary is known.dictionary


def test_an_index_that_was_made_anew_is_none_that_is_known(tmp_path: Path) -> None:
    known, _ = grow(tmp_path, opened(tmp_path, create=True), 0)
    place = warehouse(tmp_path)
    place.drop(DATABASE)
    other, file = grow(tmp_path, opened(tmp_path, create=True), 1)
    assert other.files.paimon_snapshot_id == known.files.paimon_snapshot_id
    live = DataFiles.of([file])
    assert described(opened(tmp_path, known.state), live) == described(opened(tmp_path), live)


def test_a_late_commit_of_our_own_to_an_index_that_was_made_anew_is_none_that_is_known(
    tmp_path: Path,
) -> None:
    planned, _ = grow(tmp_path, opened(tmp_path, create=True), 0)
    warehouse(tmp_path).drop(DATABASE)
    grow(tmp_path, opened(tmp_path, create=True), 1)
    late, _ = grow(tmp_path, planned, 2)
    for known in (None, late.state):
        with pytest.raises(DamagedIndexError, match="was written for an earlier table"):
            opened(tmp_path, known)


def test_what_was_forgotten_since_is_known_no_more(tmp_path: Path) -> None:
    index, files = opened(tmp_path, create=True), []
    for number in range(3):
        index, file = grow(tmp_path, index, number)
        files.append(file)
    forget_files(index, DataFiles.of(files[1:]))
    found, live = opened(tmp_path, index.state), DataFiles.of(files)
    assert described(found, live) == described(opened(tmp_path), live)
    assert len(found.dictionary) == 2


def expire(index: KeySetIndex) -> None:
    for table in (index.files_table, index.entries_table):
        assert table.clean_up(table.live_files(), keep_seconds=0).files


@pytest.mark.parametrize("name", ["_latest", "_needed_by"])
def test_snapshots_that_expire_while_an_index_is_read_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    index, files = opened(tmp_path, create=True), []
    for number in range(3):
        index, file = grow(tmp_path, index, number)
        files.append(file)
    real = getattr(RunTable, name)

    def expired_meanwhile(table: RunTable, *asked: int) -> Any:
        monkeypatch.setattr(RunTable, name, real)
        found = real(table, *asked) if name == "_latest" else None
        expire(index)
        return found or real(table, *asked)

    monkeypatch.setattr(RunTable, name, expired_meanwhile)
    if name == "_latest":
        assert opened(tmp_path).dictionary.covers(DataFiles.of(files)).all()
    else:
        assert damage_of(index) is None
    assert getattr(RunTable, name) is real, "they did expire"


def test_both_tables_of_an_index_are_cleaned_up_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = opened(tmp_path, create=True)
    for number in range(2):
        index, _ = grow(tmp_path, index, number)
    both, real = threading.Barrier(2, timeout=PATIENCE_SECONDS), RunTable.clean_up

    def clean_up(table: RunTable, planned_on: LiveFiles, keep_seconds: float) -> CleanedUp:
        both.wait()
        return real(table, planned_on, keep_seconds)

    monkeypatch.setattr(RunTable, "clean_up", clean_up)
    monkeypatch.setattr(compaction, "KEEP_SECONDS", 0.0)
    report = {"files_deleted": 0, "bytes_deleted": 0}
    job = Job(Mock(), Mock(), Mock())
    _clean_up(job, index, report)
    assert report["files_deleted"] > 0
    assert len(job.decisions) == 1
