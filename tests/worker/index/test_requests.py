"""An index on S3 is opened with few requests: none for folders, which are not there, or for sizes."""

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pypaimon.filesystem.local_file_io import LocalFileIO

from tests.patience import PATIENCE_SECONDS
from tests.slow_store import SlowStore
from tests.worker.lookup.test_lookup import key_set_of, write_data_file
from worker.index.build import build_tasks
from worker.index.commit import commit_index
from worker.index.dictionary import assign_row_addresses
from worker.index.key_set_index import open_index
from worker.index.warehouse import IndexWarehouse
from worker.io.storage import Storage
from worker.keys.read import KeyReader

KEY_SET = key_set_of("long")
DATABASE = "t_1"


def test_an_index_is_opened_and_committed_to_with_few_requests(tmp_path: Path) -> None:
    file = write_data_file(tmp_path, "a.parquet", ("long",), [(1,), (2,)], "p", 1)
    (tmp_path / "lake").mkdir()
    with SlowStore(tmp_path, 0).served() as store:
        storage = Storage(store.properties)
        warehouse = IndexWarehouse("s3://lake/index", storage)
        index = open_index(warehouse, DATABASE, KEY_SET, create=True)
        assert index is not None
        assert warehouse.databases() == [DATABASE]
        location = index.entries_table.location
        indexed = assign_row_addresses([file], 0, {})
        (task,) = build_tasks(KeyReader(Storage(), KEY_SET, None, {}), storage, location, indexed, 1)
        built = []
        assert store.counted(lambda: built.append(task.run(None))).by_kind == {"PUT": 1}

        commit = store.counted(lambda: commit_index(index, built[0].runs, indexed))
        # Of each table: two lists of manifests, a manifest, the snapshot; and the dictionary's run.
        assert commit.by_kind["PUT"] == 2 * 4 + 1
        assert "BEGIN UPLOAD" not in commit.by_kind

        opened = []
        asked = store.counted(lambda: opened.append(open_index(warehouse, DATABASE, KEY_SET)))
        assert [one.entries.rows for one in opened if one is not None] == [2]
        # The tables; of each of these its snapshots.
        assert asked.by_kind["LIST"] == 1 + 2
        assert "HEAD" not in asked.by_kind
        # Of each a schema, the snapshot twice, two lists of manifests, a manifest; and the dictionary.
        assert asked.by_kind["GET"] == 2 * 6 + 1

        (known,) = opened
        assert known is not None
        again = store.counted(
            lambda: opened.append(open_index(warehouse, DATABASE, KEY_SET, known=known.state))
        )
        assert opened[1] is not None
        assert opened[1].dictionary is known.dictionary
        # Of each table the schema and the snapshot.
        assert again.by_kind == {"LIST": 1 + 2, "GET": 2 * 2}

        entries = known.entries_table
        assert store.counted(lambda: entries.live_files(known.entries)).by_kind == {"LIST": 1, "GET": 1}
        # Nothing is old enough to go. The table's folders; the snapshot, its two lists and its manifest.
        looked = store.counted(lambda: entries.clean_up(known.entries, 3600))
        assert looked.by_kind == {"LIST": 3, "GET": 4}

        assert store.counted(lambda: warehouse.listed_names(DATABASE)).by_kind == {}
        assert warehouse.table_names("t_2") == []
        # Of very many databases, the names in one are kept.
        assert store.counted(lambda: warehouse.listed_names(DATABASE)).by_kind == {"LIST": 1}
        warehouse.drop(DATABASE)
        assert warehouse.listed_names(DATABASE) == []
        assert open_index(warehouse, DATABASE, KEY_SET) is None
        assert warehouse.databases() == []


def test_a_commit_does_not_look_at_each_snapshot_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = open_index(IndexWarehouse(tmp_path.as_uri(), Storage()), DATABASE, KEY_SET, create=True)
    assert index is not None
    monkeypatch.setattr(LocalFileIO, "list_status", lambda *_: pytest.fail("pypaimon lists them"))
    known = index.files
    for number in (1, 2):
        known = index.files_table.take_place(known)
        assert known.paimon_snapshot_id == number


def test_a_clean_up_deletes_snapshots_first_and_files_of_a_kind_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, both = Storage.delete, threading.Barrier(2, timeout=PATIENCE_SECONDS)
    folders: list[str] = []

    def delete(storage: Storage, location: str) -> bool:
        folders.append(location.split("/")[-2])
        if folders[-1] == "manifest" and folders.count("manifest") <= both.parties:
            both.wait()
        return real(storage, location)

    (tmp_path / "lake").mkdir()
    with SlowStore(tmp_path, 0).served() as store:
        warehouse = IndexWarehouse("s3://lake/index", Storage(store.properties))
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
        table = warehouse.create(DATABASE, "t", schema, ["id"], {})
        known = table.live_files()
        for _ in range(3):
            known = table.take_place(known)
        monkeypatch.setattr(Storage, "delete", delete)
        cleaned = table.clean_up(known, 0)
    assert folders == sorted(folders, reverse=True)
    assert cleaned.files == len(folders) > folders.count("snapshot") == 3
