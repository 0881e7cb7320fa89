"""What follows from some delete files is read once, whatever the snapshot."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.service.iceberg_tables import IcebergCatalog
from tests.worker.table.test_data_files import ANY_DELETES, FILES
from worker.contract.lookups import AskedKeys
from worker.io.cache import Cache
from worker.io.storage import Storage
from worker.keys.read import KeyReader
from worker.query import places, snapshot
from worker.query.answers import Answers, TablePlace
from worker.query.errors import NotCoveredError
from worker.query.snapshot import TableSnapshot
from worker.table.files import DataFile, DataFiles, DeleteFile, DeleteFiles, FileContent, SnapshotFiles


@pytest.fixture
def iceberg(tmp_path: Path) -> Iterator[IcebergCatalog]:
    catalog = IcebergCatalog(tmp_path)
    catalog.create("db.t")
    catalog.append("db.t", [1, 2])
    yield catalog
    catalog.close()


def test_pending_deletes_are_shared_between_snapshots(
    iceberg: IcebergCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    read_delete_file = KeyReader.read_delete_file

    def recorded(reader: KeyReader, delete: DeleteFile) -> Iterator[pa.RecordBatch]:
        read.append(delete.path)
        return read_delete_file(reader, delete)

    monkeypatch.setattr(KeyReader, "read_delete_file", recorded)
    answers, storage = Answers(), Storage()
    asked = AskedKeys(keys=[{"id": 1}, {"id": 2}], key_columns=["id"])

    def deleted_by() -> list[str | None]:
        location = iceberg.catalog.load_table("db.t").metadata_location
        place = TablePlace(location, storage, (tmp_path / "index").as_uri(), storage)
        return answers.find(place, asked)[1].deleted_by

    first = iceberg.delete_keys("db.t", [2])
    assert deleted_by() == [None, "equality_delete"]
    iceberg.append("db.t", [3])
    assert deleted_by() == [None, "equality_delete"]
    second = iceberg.delete_keys("db.t", [1])
    assert deleted_by() == ["equality_delete", "equality_delete"]
    assert read == [first, first, second]


def test_what_is_read_for_deletes_of_another_key_is_bounded_and_told(
    iceberg: IcebergCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    iceberg.delete_keys("db.t", ["none"], column="region")
    storage = Storage()
    location = iceberg.catalog.load_table("db.t").metadata_location
    place = TablePlace(location, storage, (tmp_path / "index").as_uri(), storage)
    asked = AskedKeys(keys=[{"id": 1}], key_columns=["id"])
    # Two rows that no index covers, and the same ones once more.
    assert Answers().find(place, asked)[1].rows_scanned == 4
    for bound, most in (("SCANNED_ROWS", 3), ("SCANNED_FILES", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(places, bound, most)
            with pytest.raises(NotCoveredError, match="equality deletes of region wait") as refused:
                Answers().find(place, asked)
            assert "convert" in str(refused.value.remedy)


def test_pending_deletes_whose_keys_are_large_are_refused(
    iceberg: IcebergCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "PENDING_BYTES", 10_000)
    answers, storage = Answers(), Storage()
    asked = AskedKeys(keys=[{"id": 1}], key_columns=["id"])

    def ask(name: str = "db.t") -> None:
        location = iceberg.catalog.load_table(name).metadata_location
        answers.find(TablePlace(location, storage, (tmp_path / "index").as_uri(), storage), asked)

    iceberg.delete_keys("db.t", ["x" * 5_000], column="region")
    ask()
    # Each of them fits.
    iceberg.delete_keys("db.t", ["y" * 5_000], column="region")
    with pytest.raises(NotCoveredError, match="More equality deletes"):
        ask()
    # One alone, too, however few keys its manifest tells of.
    iceberg.create("db.large")
    iceberg.append("db.large", [1])
    iceberg.delete_keys("db.large", ["z" * 10_000], column="region")
    with pytest.raises(NotCoveredError, match="More equality deletes"):
        ask("db.large")


@given(st.lists(FILES, max_size=6), st.lists(ANY_DELETES, max_size=8))
def test_position_deletes_are_those_of_a_file_and_of_its_partition(
    files: list[DataFile], deletes: list[DeleteFile]
) -> None:
    of_table = SnapshotFiles(DataFiles.of(files), DeleteFiles.of(deletes), frozenset())
    table = TableSnapshot(Storage(), MagicMock(), None, Cache(0), files=of_table)
    positions = [one for one in deletes if one.content is FileContent.POSITION_DELETES]
    assert table.deletes_of(files) == [
        (
            *(one for one in positions if one.referenced_data_file == file.path),
            *(
                one
                for one in positions
                if one.referenced_data_file is None and one.partition == file.partition
            ),
        )
        for file in files
    ]
    assert table.size_bytes > sum(len(file.path) for file in files) + sum(len(one.path) for one in deletes)
