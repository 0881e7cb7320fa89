"""What readers skip already is read from delete files of every kind."""

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyroaring import BitMap64

from tests import decimals
from tests.slow_store import SlowStore
from tests.worker.deletes.files import data_file, delete_file, position_delete_file, positions
from tests.worker.keys.test_read import FlakyStorage
from worker.deletes.existing import UnreadableDeleteFileError, existing_deletes
from worker.deletes.write import write_deletion_vectors
from worker.io.storage import Storage
from worker.table.files import PartitionKey


def test_a_file_of_a_whole_partition_is_split_by_data_file(tmp_path: Path) -> None:
    delete = position_delete_file(
        tmp_path / "p.parquet", [("a", 1), ("a", 5), ("b", 2), ("c", 3)], row_group_size=2
    )
    found = existing_deletes(Storage(), [data_file("a"), data_file("b"), data_file("d")], [delete])
    assert positions(found) == {"a": [1, 5], "b": [2]}
    assert all(not deletes.file_scoped for deletes in found.values())


def test_a_file_of_another_format_is_split_likewise(tmp_path: Path) -> None:
    orc.write_table(pa.table({"file_path": ["a", "b", "a"], "pos": [1, 2, 5]}), tmp_path / "p.orc")
    delete = delete_file(f"{tmp_path}/p.orc", file_format="orc", rows=3)
    found = existing_deletes(Storage(), [data_file("a"), data_file("d")], [delete])
    assert positions(found) == {"a": [1, 5]}


def test_columns_are_found_by_field_id(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("p", pa.int64(), metadata={"PARQUET:field_id": "2147483545"}),
            pa.field("f", pa.string(), metadata={"PARQUET:field_id": "2147483546"}),
        ]
    )
    pq.write_table(pa.table([[7], ["a"]], schema=schema), tmp_path / "renamed.parquet")
    found = existing_deletes(Storage(), [data_file("a")], [delete_file(str(tmp_path / "renamed.parquet"))])
    assert positions(found) == {"a": [7]}


def test_decimals_of_no_scale_are_damage(tmp_path: Path) -> None:
    delete = delete_file(str(decimals.parquet_file(tmp_path / "p.parquet", "file_path")))
    with pytest.raises(UnreadableDeleteFileError, match="scale is not from 0 to 76"):
        existing_deletes(Storage(), [data_file("a")], [delete])


def test_deletes_apply_at_the_same_sequence_number_and_not_to_newer_files(tmp_path: Path) -> None:
    delete = position_delete_file(tmp_path / "p.parquet", [("same", 1), ("newer", 1)])
    files = [data_file("same", seq=2), data_file("newer", seq=3)]
    assert positions(existing_deletes(Storage(), files, [delete])) == {"same": [1]}


def test_a_store_that_is_well_again_at_the_second_look_has_no_damaged_file(tmp_path: Path) -> None:
    delete = position_delete_file(tmp_path / "p.parquet", [("a", 1)])
    with pytest.raises(OSError, match="NETWORK_CONNECTION"):
        existing_deletes(FlakyStorage(), [data_file("a")], [delete])


def test_deletes_of_another_partition_do_not_apply(tmp_path: Path) -> None:
    delete = position_delete_file(tmp_path / "p.parquet", [("a", 1)])
    other = data_file("a", partition=PartitionKey(1, '["eu"]'))
    assert existing_deletes(Storage(), [other], [delete]) == {}


def test_a_deletion_vector_hides_older_position_deletes(tmp_path: Path) -> None:
    file = data_file("a")
    [written] = write_deletion_vectors(
        Storage(), lambda file: f"{tmp_path}/{file.path}.puffin", {file: BitMap64([4])}
    )
    vector = delete_file(
        written.path,
        file_format="puffin",
        referenced_data_file="a",
        content_offset=written.content_offset,
        content_size_bytes=written.content_size_bytes,
    )
    legacy = position_delete_file(tmp_path / "p.parquet", [("a", 9)])
    [found] = existing_deletes(Storage(), [file], [legacy, vector]).values()
    assert (list(found.positions), found.deletion_vector, found.file_scoped) == ([4], vector, ())


def test_a_second_vector_of_a_data_file_is_refused() -> None:
    vectors = [delete_file(f"{n}.puffin", file_format="puffin", referenced_data_file="a") for n in range(2)]
    with pytest.raises(UnreadableDeleteFileError, match="a has a second deletion vector"):
        existing_deletes(Storage(), [data_file("a")], vectors)


@pytest.mark.parametrize(
    ("content", "more", "reason"),
    [
        (b"no parquet", {}, "magic bytes"),
        (b"", {"encrypted": True}, "encrypted"),
        (b"", {"file_format": "csv"}, "can't be csv files"),
        (b"PFA1 too short", {"file_format": "puffin", "referenced_data_file": "a"}, "manifest says"),
        (
            b"PFA1 no vector here",
            {
                "file_format": "puffin",
                "referenced_data_file": "a",
                "content_offset": 4,
                "content_size_bytes": 15,
            },
            "states",
        ),
    ],
)
def test_an_unreadable_file_is_named_with_its_reason(
    tmp_path: Path, content: bytes, more: dict[str, Any], reason: str
) -> None:
    (tmp_path / "broken").write_bytes(content)
    broken = delete_file(f"{tmp_path}/broken", **more)
    with pytest.raises(UnreadableDeleteFileError, match=f"broken.*{reason}") as caught:
        existing_deletes(Storage(), [data_file("a")], [broken])
    assert pickle.loads(pickle.dumps(caught.value)).delete_file == broken
    assert not caught.value.missing


def test_a_missing_file_is_told_from_an_unreadable_one(tmp_path: Path) -> None:
    with pytest.raises(UnreadableDeleteFileError, match="it is missing") as caught:
        existing_deletes(Storage(), [data_file("a")], [delete_file(f"{tmp_path}/gone.parquet")])
    assert caught.value.missing
    assert pickle.loads(pickle.dumps(caught.value)).missing


def test_many_data_files_share_one_read_of_each_file(tmp_path: Path) -> None:
    rows = [(f"file-{n:05d}", n) for n in range(2_000)]
    delete = position_delete_file(tmp_path / "p.parquet", rows)
    opened: list[str] = []

    class CountingStorage(Storage):
        def open_input(self, location: str, size_bytes: int | None = None) -> Any:
            opened.append(location)
            return super().open_input(location, size_bytes)

    files = [data_file(path, rows=10_000) for path, _ in rows]
    found = existing_deletes(CountingStorage(), files, [delete])
    assert positions(found) == {path: [position] for path, position in rows}
    assert opened == [delete.path]


def test_vectors_of_many_files_are_asked_for_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lake").mkdir()
    files = [data_file(f"f{n}") for n in range(5)]
    read: list[str] = []
    alone = Storage.read

    def counted(storage: Storage, location: str, *how: Any) -> bytes:
        read.append(location)
        return alone(storage, location, *how)

    with SlowStore(tmp_path, 0).served() as store:
        storage = Storage(store.properties)
        written = write_deletion_vectors(
            storage, lambda file: f"s3://lake/{file.path}.puffin", {file: BitMap64([1, 7]) for file in files}
        )
        vectors = [
            delete_file(
                one.path,
                file_format="puffin",
                rows=one.record_count,
                referenced_data_file=one.referenced_data_file,
                content_offset=one.content_offset,
                content_size_bytes=one.content_size_bytes,
            )
            for one in written
        ]
        monkeypatch.setattr(Storage, "read", counted)
        assert positions(existing_deletes(storage, files, vectors)) == {f"f{n}": [1, 7] for n in range(5)}
        assert not read
        # One that can't be read is read once more by itself, which tells why.
        (tmp_path / "lake" / "f3.puffin").unlink()
        with pytest.raises(UnreadableDeleteFileError, match=r"f3\.puffin: it is missing"):
            existing_deletes(storage, files, vectors)
        assert {*read} == {"s3://lake/f3.puffin"}
