"""Commits to the index: of several at once one wins, and a late one of a lost attempt changes nothing."""

import errno
import json
import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import LongType

from tests.faults.proxy import CUT, PASS, Proxy, truncate
from tests.faults.racers import SCHEMA, Place, race
from tests.object_stores import ObjectStore, azure_store, google_store
from tests.patience import PATIENCE_SECONDS
from tests.s3 import S3, s3_server
from worker.index.build import build_tasks
from worker.index.commit import commit_index, forget_files
from worker.index.compaction import LiveRowAddresses, choose_merge, choose_merge_of_new, compaction_tasks
from worker.index.dictionary import assign_row_addresses, dictionary_rows
from worker.index.key_set_index import DamagedIndexError, KeySetIndex, damage_of, open_index
from worker.index.run_files import RunFile, write_run
from worker.index.sorted_runs import IndexCommitConflictError, LiveFiles
from worker.io.storage import Storage
from worker.keys.key_set import KeyColumn, KeySet
from worker.keys.read import KeyReader
from worker.table.files import DataFile, DataFiles, PartitionKey

DATABASE = "t_1"
KEY_SET = KeySet((KeyColumn(1, "id", (1,), LongType(), pa.int64()),))
RACERS = 4
ROUNDS = 6


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        server.create_bucket("lake")
        yield server


@pytest.fixture(scope="module")
def google() -> Iterator[ObjectStore]:
    with google_store() as store:
        yield store


@pytest.fixture(scope="module")
def azure() -> Iterator[ObjectStore]:
    with azure_store() as store:
        yield store


STORES = ("local", "s3", "google", "azure")


# That each store writes exclusively is tested with every change, below.
@pytest.fixture(
    params=[STORES[0], *(pytest.param(name, marks=pytest.mark.exhaustive) for name in STORES[1:])]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        return Place(tmp_path.as_uri(), {})
    if request.param in ("google", "azure"):
        store: ObjectStore = request.getfixturevalue(request.param)
        return Place(f"{store.location}/{tmp_path.name}", store.properties)
    server: S3 = request.getfixturevalue("s3")
    return Place(f"s3://lake/{tmp_path.name}", server.properties())


@pytest.fixture
def local(tmp_path: Path) -> Place:
    return Place(tmp_path.as_uri(), {})


def data_file(folder: Path, name: str, rows: range) -> DataFile:
    path = folder / name
    field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    pq.write_table(pa.table({"id": rows}, schema=pa.schema([field])), path)
    size = path.stat().st_size
    return DataFile(path.as_uri(), "parquet", PartitionKey(0, json.dumps([])), len(rows), size, 1)


def paths_of(index: KeySetIndex) -> list[str]:
    return [index.dictionary.path_of(row) for row in range(len(index.dictionary))]


class Writer:
    """A job that indexes, one step at a time; pausing between steps needs no process."""

    def __init__(self, place: Place) -> None:
        self.place = place
        index = open_index(place.warehouse, DATABASE, KEY_SET, create=True)
        assert index is not None
        self.index: KeySetIndex = index

    def add(self, files: list[DataFile], base: int) -> None:
        self.commit(*self.build(files, base))

    def build(self, files: list[DataFile], base: int) -> tuple[list[RunFile], list[Any]]:
        indexed = assign_row_addresses(files, base, self.index.dictionary.partitions())
        reader = KeyReader(self.place.storage, KEY_SET, None, {})
        tasks = build_tasks(reader, self.place.storage, self.index.entries_table.location, indexed, 1)
        runs = []
        for task in tasks:
            (run,) = task.run(None).runs
            runs.append(run)
        return runs, indexed

    def commit(self, runs: list[RunFile], files: list[Any]) -> None:
        self.index = commit_index(self.index, runs, files)

    def compact(self, live: DataFiles) -> None:
        merge = choose_merge(self.index.entries.files, self.index.dead_ratio(live))
        assert merge is not None
        addresses = LiveRowAddresses.of(self.index.dictionary, live)
        written = [file for task in compaction_tasks(self.index, merge, 1) for file in task.run(addresses)]
        forget_files(self.index, live)
        self.index.entries_table.commit_files(self.index.entries, written, merge.files)


def fresh(place: Place) -> KeySetIndex:
    index = open_index(place.warehouse, DATABASE, KEY_SET)
    assert index is not None
    return index


def test_of_racing_processes_one_commits_each_snapshot(place: Place) -> None:
    table = place.warehouse.create("race", "runs", SCHEMA, ["id"], {})
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    host = context.Process(target=race, args=(place, RACERS, ROUNDS, answers))
    host.start()
    host.join(PATIENCE_SECONDS)
    assert host.exitcode == 0
    won = answers.get()
    assert [turn for turn, _ in won] == list(range(ROUNDS))
    live = table.live_files()
    assert live.paimon_snapshot_id == ROUNDS
    # What a winner committed is what readers see, and nothing of the losers.
    assert sorted(file.min_key[0] for file in live.files) == [turn * 100 + number for turn, number in won]


def test_files_whose_entries_compaction_has_dropped_are_not_covered_by_a_late_commit(
    place: Place, tmp_path: Path
) -> None:
    kept, late = data_file(tmp_path, "kept", range(10)), data_file(tmp_path, "late", range(10, 20))
    Writer(place).add([kept], 0)
    sleeper = Writer(place)
    runs, indexed = sleeper.build([late], 100)
    # It falls asleep between its two commits, for longer than its lease.
    sleeper.index.entries_table.commit_files(sleeper.index.entries, runs)
    Writer(place).compact(DataFiles.of([kept]))

    rows = write_run(
        place.storage,
        sleeper.index.files_table.location,
        dictionary_rows(indexed),
        primary_key=["base_address"],
    )
    with pytest.raises(IndexCommitConflictError):
        sleeper.index.files_table.commit_files(sleeper.index.files, rows)
    after = fresh(place)
    assert paths_of(after) == [kept.path]
    assert after.entries.rows == 10


def test_nor_are_files_whose_entries_the_merge_of_a_large_load_has_dropped(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.index.compaction.TASK_ROWS", 10)
    kept, late = data_file(tmp_path, "kept", range(10)), data_file(tmp_path, "late", range(10, 20))
    Writer(place).add([kept], 0)
    sleeper = Writer(place)
    runs, indexed = sleeper.build([late], 100)
    sleeper.index.entries_table.commit_files(sleeper.index.entries, runs)

    # Its successor merges all that is there with what it adds, and dies before its second commit.
    successor = Writer(place)
    added = [data_file(tmp_path, f"new{i}", range(i * 20, i * 20 + 20)) for i in (2, 3)]
    built = [successor.build([file], 1000 * at) for at, file in enumerate(added, 1)]
    new_runs = [run for part, _ in built for run in part]
    new_files = [file for _, part in built for file in part]
    merge = choose_merge_of_new(successor.index.entries.files, new_runs)
    assert merge is not None
    assert {run.file_name for run in runs} <= {file.file_name for file in merge.files}
    live = LiveRowAddresses.of_files(successor.index.dictionary, new_files)
    merged = [file for task in compaction_tasks(successor.index, merge, 1) for file in task.run(live)]
    replaced = [file for file in merge.files if file not in new_runs]
    confirmed = []

    def dies() -> None:
        confirmed.append(1)
        if len(confirmed) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        commit_index(successor.index, merged, new_files, replaced, confirm_lease=dies)

    rows = write_run(
        place.storage,
        sleeper.index.files_table.location,
        dictionary_rows(indexed),
        primary_key=["base_address"],
    )
    with pytest.raises(IndexCommitConflictError):
        sleeper.index.files_table.commit_files(sleeper.index.files, rows)
    assert paths_of(fresh(place)) == [kept.path]


def test_a_late_commit_of_entries_whose_files_were_cleaned_up_is_refused(
    local: Place, tmp_path: Path
) -> None:
    kept, late = data_file(tmp_path, "kept", range(10)), data_file(tmp_path, "late", range(10, 20))
    Writer(local).add([kept], 0)
    sleeper = Writer(local)
    runs, _ = sleeper.build([late], 100)
    for table in (fresh(local).files_table, fresh(local).entries_table):
        table.clean_up(table.live_files(), keep_seconds=0)
    with pytest.raises(FileNotFoundError):
        local.storage.read(runs[0].location)

    with pytest.raises(IndexCommitConflictError):
        sleeper.index.entries_table.commit_files(sleeper.index.entries, runs)
    assert fresh(local).entries.rows == 10


def test_files_that_went_since_an_index_was_opened_are_no_damage_of_the_one_that_is_there(
    local: Place, tmp_path: Path
) -> None:
    files = [data_file(tmp_path, f"f{i}", range(i * 10, i * 10 + 10)) for i in range(2)]
    for number, file in enumerate(files):
        Writer(local).add([file], 100 * number)
    opened = fresh(local)
    Writer(local).compact(DataFiles.of(files))
    assert damage_of(opened) is None
    table = fresh(local).entries_table
    assert table.clean_up(table.live_files(), keep_seconds=0).files
    with pytest.raises(IndexCommitConflictError, match="were compacted or dropped meanwhile"):
        damage_of(opened)

    (merged,) = fresh(local).entries.files
    assert damage_of(fresh(local)) is None
    local.storage.delete(merged.location)
    assert damage_of(fresh(local)) == f"{merged.location} is missing"


def test_a_snapshot_whose_number_was_used_and_has_expired_is_never_read(local: Place, tmp_path: Path) -> None:
    files = [data_file(tmp_path, f"f{i}", range(i * 10, i * 10 + 10)) for i in range(4)]
    Writer(local).add(files[:1], 0)
    sleeper = Writer(local)
    runs, _ = sleeper.build(files[3:], 1000)
    for base, file in ((100, files[1]), (200, files[2])):
        Writer(local).add([file], base)
    table = fresh(local).entries_table
    table.clean_up(table.live_files(), keep_seconds=0)
    before = fresh(local).entries

    # Its look at the latest snapshot lies before all of that, and its write after it.
    planned = sleeper.index.entries
    newest, late = (
        f"{table.location}/snapshot/snapshot-{number}"
        for number in (before.paimon_snapshot_id, (planned.paimon_snapshot_id or 0) + 1)
    )
    assert local.storage.create(late, local.storage.read(newest))
    assert fresh(local).entries == before
    with pytest.raises(IndexCommitConflictError):
        table.commit_files(planned, runs)


@pytest.mark.parametrize("late", ["entries", "files"])
def test_a_late_commit_to_an_index_that_was_dropped_is_none_to_the_one_in_its_place(
    late: str, local: Place, tmp_path: Path
) -> None:
    """Its snapshot's number is free again. The addresses go on, so its files would cover no entry."""
    file = data_file(tmp_path, "f", range(10))
    sleeper = Writer(local)
    confirmed: list[str] = []

    def sleeps() -> None:
        confirmed.append("files" if confirmed else "entries")
        if confirmed[-1] != late:
            return
        local.warehouse.drop(DATABASE)
        successor = Writer(local)  # the table is enrolled again
        runs, _ = successor.build([file], 100)
        if late == "files":  # it has not come so far yet
            successor.index.entries_table.commit_files(successor.index.entries, runs)

    with suppress(IndexCommitConflictError):  # if it finds what the other one committed
        commit_index(sleeper.index, *sleeper.build([file], 0), confirm_lease=sleeps)
    with pytest.raises(DamagedIndexError, match=r"snapshot 1 in .* was written for an earlier table"):
        fresh(local)
    anew = open_index(local.warehouse, DATABASE, KEY_SET, rebuild=True)
    assert anew is not None
    assert (anew.generation, len(anew.dictionary), anew.entries.rows) == (2, 0, 0)


def test_an_index_whose_paths_find_no_room_on_the_workers_disk_is_not_damaged(
    local: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Writer(local).add([data_file(tmp_path, "f", range(10))], 0)
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("worker.io.paths.tempfile.SpooledTemporaryFile", full)
    with pytest.raises(OSError, match="No space left on device"):
        fresh(local)


def test_a_clean_up_trusts_the_clock_of_the_store(
    local: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose clock is a day ahead deletes nothing that is in use or about to be."""
    Writer(local).add([data_file(tmp_path, "f", range(10))], 0)
    runs, _ = Writer(local).build([data_file(tmp_path, "g", range(10))], 100)
    monkeypatch.setattr("time.time", lambda: 4e9)
    for table in (fresh(local).files_table, fresh(local).entries_table):
        assert table.clean_up(table.live_files(), keep_seconds=3600).files == 0
    assert local.storage.read(runs[0].location)


class TestALostAnswer:
    """The store did what it was asked, or did not, and the answer never came."""

    @pytest.fixture
    def proxy(self, s3: S3) -> Iterator[Proxy]:
        with Proxy(s3.port) as proxy:
            yield proxy

    @pytest.fixture
    def behind(self, proxy: Proxy, tmp_path: Path) -> Place:
        return Place(f"s3://lake/{tmp_path.name}", S3(proxy.port).properties())

    def test_what_was_written_is_known_as_our_own(
        self, behind: Place, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = behind.warehouse.create("race", "runs", SCHEMA, ["id"], {})
        rows = pa.table({"id": [1]}, schema=SCHEMA)
        runs = write_run(behind.storage, table.location, rows, primary_key=["id"])
        create = Storage.create

        def with_a_lost_answer(storage: Storage, location: str, content: bytes) -> bool:
            # The client repeats the request, and is told that the object exists.
            proxy.set(truncate(0, once=True))
            return create(storage, location, content)

        monkeypatch.setattr(Storage, "create", with_a_lost_answer)
        table.commit_files(LiveFiles(None, ()), runs)
        assert proxy.mode == PASS, "no answer was lost"
        live = table.live_files()
        assert (live.paimon_snapshot_id, live.rows) == (1, 1)

    def test_a_store_that_is_gone_is_an_error_that_a_retry_can_help(
        self, behind: Place, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = behind.warehouse.create("race", "runs", SCHEMA, ["id"], {})
        planned = table.live_files()
        runs = write_run(
            behind.storage, table.location, pa.table({"id": [1]}, schema=SCHEMA), primary_key=["id"]
        )
        create = Storage.create

        def cut_off(storage: Storage, location: str, content: bytes) -> bool:
            proxy.set(CUT)
            return create(storage, location, content)

        monkeypatch.setattr(Storage, "create", cut_off)
        with pytest.raises(OSError, match="could not be written"):
            table.commit_files(planned, runs)
        monkeypatch.undo()
        proxy.set(PASS)
        table.commit_files(planned, runs)
        assert table.live_files().rows == 1


def test_a_store_without_exclusive_writes_is_refused() -> None:
    with pytest.raises(OSError, match="can't lie at a hdfs location"):
        Storage().create("hdfs://host/x", b"")


@pytest.mark.parametrize(
    "place", [*STORES[:3], pytest.param(STORES[3], marks=pytest.mark.exhaustive)], indirect=True
)
def test_a_file_is_created_once(place: Place) -> None:
    location = f"{place.location}/deep/in/snapshot-1"
    assert place.storage.create(location, b"first")
    assert not place.storage.create(location, b"second")
    assert place.storage.read(location) == b"first"


def test_an_exclusive_write_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may refuse obstore the thread that it waits for."""
    is_over = threading.Event()
    monkeypatch.setattr("worker.io.storage._CREATE_SECONDS", 0.05)
    monkeypatch.setattr("obstore.put", lambda *_, **__: is_over.wait())
    keys = {"s3.access-key-id": "k", "s3.secret-access-key": "s", "s3.region": "eu-1"}
    storage = Storage({"s3.endpoint": "http://127.0.0.1:1", **keys})
    with pytest.raises(OSError, match="could not be written: there was no answer"):
        storage.create("s3://lake/snapshot-1", b"")
    is_over.set()
