"""Manifests as they are written, without tables of Spark's around them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestContent,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, Transform
from pyiceberg.types import (
    DateType,
    IntegerType,
    NestedField,
    PrimitiveType,
    StructType,
    TimestampNanoType,
    TimestamptzNanoType,
)

from stores import avro_readers
from tests.benchmarks import planning
from worker.table import all_snapshots, avro_files, manifest_values, manifests
from worker.table.files import DeleteFile, PartitionKey


@pytest.mark.parametrize("kept", [100_000, 0])
def test_what_all_manifests_of_a_table_say_is_understood_once_unless_it_is_long(
    kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "FILES_PER_MANIFEST", 1)
    monkeypatch.setattr(avro_readers, "_HEADER_KEPT", kept)
    metadata, snapshot = planning.make_snapshot(tmp_path, data_files=7, delete_files=3)
    avro_files._written_schema.__wrapped__.cache_clear()  # type: ignore[attr-defined]
    understand = avro_readers._Conversion.avro_to_iceberg
    made = Mock(wraps=avro_readers.reader_of)
    monkeypatch.setattr(avro_files, "reader_of", made)
    with patch.object(
        avro_readers._Conversion, "avro_to_iceberg", autospec=True, side_effect=understand
    ) as seen:
        files = manifests.read_snapshot_files(metadata, snapshot, PyArrowFileIO())
    assert (len(files.data_files), len(files.equality_deletes)) == (7, 3)
    # The list says something of its own. Threads may begin with manifests at once.
    lists, each = 1, 7 + 3
    for one in (seen, made):  # what the header says, and what reads its entries
        assert one.call_count == lists + each if not kept else one.call_count < each


@pytest.mark.parametrize("content", ManifestContent)
def test_columns_of_manifests_are_asked_for_by_the_ids_of_the_specification(content: ManifestContent) -> None:
    versions = [
        manifest_entry_schema_with_data_file(version, DATA_FILE_TYPE[version]) for version in (1, 2, 3)
    ]
    columns = _columns(manifests._entry_schema(StructType(), content))
    assert _ids(columns) == _ids([versions[-1].find_field(column.field_id) for column in columns])
    assert _ids(manifests._MANIFEST_LIST.fields) <= _ids(MANIFEST_LIST_FILE_SCHEMAS[3].fields)
    # A manifest without what one version may leave out is not damaged.
    required = [{column.field_id for column in _columns(entry) if column.required} for entry in versions]
    assert {column.field_id for column in columns if column.required} == set.intersection(*required)


def test_bounds_are_found_of_the_files_and_columns_that_are_asked_for(tmp_path: Path) -> None:
    metadata, snapshot = planning.make_snapshot(tmp_path, data_files=3, delete_files=1)
    files = manifests.read_snapshot_files(metadata, snapshot, PyArrowFileIO()).data_files
    asked = files[1].path
    found = manifest_values.read_bounds(snapshot, PyArrowFileIO(), {asked}, [1, 2, planning.COLUMNS + 1])
    bound = b"%016d" % 1
    assert found == {(asked, column): manifest_values.ColumnBounds(bound, bound, 1) for column in (1, 2)}


def test_the_values_of_entries_are_those_of_their_files(tmp_path: Path) -> None:
    metadata, snapshot = planning.make_snapshot(tmp_path, data_files=3, delete_files=1)
    io, specs = PyArrowFileIO(), metadata.specs()
    manifest = manifests.read_manifest_list(io, snapshot)[0]
    files, _ = manifests.read_manifest(io, manifest, specs)
    entries = list(manifest_values.read_entry_bounds(io, manifest, specs[manifest.partition_spec_id]))
    assert [(one.paths, one.partition, one.is_removed) for one in entries] == [
        ((file.path,), file.partition.values, False) for file in files
    ]
    assert [one.bounds[1] for one in entries] == [(b"%016d" % number,) * 2 for number in range(len(files))]


def test_what_any_snapshot_shows_is_told_by_its_content(tmp_path: Path) -> None:
    metadata, snapshot = planning.make_snapshot(tmp_path, data_files=3, delete_files=2)
    files = manifests.read_snapshot_files(metadata, snapshot, PyArrowFileIO())
    for found, known in (
        (all_snapshots.data_files_of_all_snapshots, files.data_files),
        (all_snapshots.delete_files_of_all_snapshots, files.delete_files),
    ):
        assert found(metadata, PyArrowFileIO()) == {file.path for file in known}


@pytest.mark.parametrize(("own", "seen"), [(None, 1), (7, 7)])
def test_a_new_file_is_of_the_snapshot_and_the_sequence_number_of_its_manifest(
    own: int | None, seen: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = planning._entry
    written = {"snapshot_id": own, "sequence_number": None}
    monkeypatch.setattr(planning, "_entry", lambda *of: entry(*of) | written)
    metadata, snapshot = planning.make_snapshot(tmp_path, data_files=1, delete_files=1)
    files = manifests.read_snapshot_files(metadata, snapshot, PyArrowFileIO())
    assert [file.data_sequence_number for file in files.data_files] == [1]
    assert [(one.data_sequence_number, one.added_snapshot_id) for one in files.equality_deletes] == [
        (2, seen)
    ]


def test_a_manifest_with_fewer_live_files_than_its_list_says_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = planning._entry
    monkeypatch.setattr(planning, "_entry", lambda *of: entry(*of) | {"status": manifests.DELETED})
    metadata, snapshot = planning.make_snapshot(tmp_path, data_files=1, delete_files=1)
    with pytest.raises(
        avro_files.CorruptMetadataError, match="names 0 live files, but its manifest list says 1"
    ):
        manifests.read_snapshot_files(metadata, snapshot, PyArrowFileIO())


_A, _B = ({manifests.FILE_PATH_FIELD_ID: path} for path in (b"a", b"b"))


@pytest.mark.parametrize(
    ("content", "named", "lower", "upper", "referenced"),
    [
        (1, None, _A, _A, "a"),
        (1, None, _A, _B, None),
        (1, None, None, None, None),
        (1, "named", None, None, "named"),
        (2, None, _A, _A, None),
    ],
)
def test_position_deletes_of_one_path_are_of_that_file(
    content: int,
    named: str | None,
    lower: dict[int, bytes] | None,
    upper: dict[int, bytes] | None,
    referenced: str | None,
) -> None:
    entry = (content, "d", "PARQUET", None, 1, 1, None, None, named, None, None, lower, upper)
    file = manifests._content_file(entry, PartitionKey(0, "[]"), 1, 1)
    assert isinstance(file, DeleteFile)
    assert file.referenced_data_file == referenced


@pytest.mark.parametrize(
    ("days", "day"),
    [
        (2_932_896, "9999-12-31"),
        (2_932_897, "+10000-01-01"),
        (-719_528, "0000-01-01"),
        (-719_529, "-0001-12-31"),
    ],
)
def test_a_day_of_any_year_is_a_partition_that_iceberg_reads(days: int, day: str) -> None:
    assert manifests._single_value(DateType(), days, IdentityTransform()) == day


@pytest.mark.parametrize(
    ("kind", "transform", "value", "in_json"),
    [
        (IntegerType(), DayTransform(), 1, "1970-01-02"),  # as some writers have it
        (DateType(), DayTransform(), 1, "1970-01-02"),
        (IntegerType(), BucketTransform(8), 1, 1),
        (TimestampNanoType(), IdentityTransform(), 1, "1970-01-01T00:00:00.000000001"),
        (TimestamptzNanoType(), IdentityTransform(), 1, "1970-01-01T00:00:00.000000001+00:00"),
    ],
)
def test_a_partition_value_is_of_the_type_of_its_transform(
    kind: PrimitiveType, transform: Transform[Any, Any], value: int, in_json: Any
) -> None:
    assert manifests._single_value(kind, value, transform) == in_json


def test_a_lack_of_memory_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata, snapshot = planning.make_snapshot(tmp_path, data_files=1, delete_files=1)
    monkeypatch.setattr(avro_readers, "new_decoder", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        manifests.read_snapshot_files(metadata, snapshot, PyArrowFileIO())


def _columns(entry: Schema) -> list[NestedField]:
    """Those of its data file, too."""
    data_file = entry.find_type("data_file")
    assert isinstance(data_file, StructType)
    return [*data_file.fields, *entry.fields]


def _ids(columns: Iterable[NestedField]) -> set[tuple[int, str]]:
    """Id and name, also of what lists and maps hold."""
    indexes = (index_by_id(Schema(column)) for column in columns if column.name != "data_file")
    return {(field_id, field.name) for index in indexes for field_id, field in index.items()}


def test_an_encrypted_list_of_manifests_is_told_as_such(tmp_path: Path) -> None:
    metadata, snapshot = planning.make_snapshot(tmp_path, data_files=1, delete_files=1)
    Path(snapshot.manifest_list.removeprefix("file:")).write_bytes(b"AGS1" + bytes(100))
    with pytest.raises(avro_files.EncryptedTableError, match="is encrypted") as refusal:
        manifests.read_snapshot_files(metadata, snapshot, PyArrowFileIO())
    assert not refusal.value.retryable


def test_what_was_read_before_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata, snapshot = planning.make_snapshot(tmp_path, data_files=3, delete_files=1)
    io, read = PyArrowFileIO(), list[str]()

    def counted(io: FileIO, manifest: manifests.Manifest, *how: Any) -> Any:
        read.append(manifest.path)
        return read_manifest(io, manifest, *how)

    read_manifest = manifests.read_manifest
    monkeypatch.setattr(manifests, "read_manifest", counted)
    for table, count in ((None, 2), (None, 2), ("a", 2), ("a", 0), ("b", 2), ("a", 0)):
        read.clear()
        files = manifests.read_snapshot_files(metadata, snapshot, io, table)
        assert (len(files.data_files), len(files.delete_files)) == (3, 1)
        assert len(read) == count
    spec = metadata.spec()
    renamed = [field.model_copy(update={"name": f"{field.name}_too"}) for field in spec.fields]
    other = metadata.model_copy(update={"partition_specs": [PartitionSpec(*renamed, spec_id=spec.spec_id)]})
    manifests.read_snapshot_files(other, snapshot, io, "a")
    assert len(read) == 2, "what files mean follows from the spec"


def test_paths_of_all_snapshots_come_from_the_manifests_that_were_not_read_before(tmp_path: Path) -> None:
    metadata, snapshot = planning.make_snapshot(tmp_path, data_files=3, delete_files=1)
    io, read = PyArrowFileIO(), set[str]()
    every = all_snapshots.paths_of_all_snapshots(metadata, io)
    assert all_snapshots.paths_of_all_snapshots(metadata, io, read) == every
    assert len(read) == 2
    lists = {snapshot.manifest_list, *read}
    assert lists < every
    assert all_snapshots.paths_of_all_snapshots(metadata, io, read) == lists


def test_of_what_a_plan_has_read_a_commit_gets_what_there_is_room_for() -> None:
    kept = manifests.ReadFiles(5)
    for path, content in (("a", b"123"), ("b", b"456"), ("a", b"123"), ("c", b"78")):
        kept.keep(path, content)
    assert kept.contents == {"a": b"123", "c": b"78"}


def test_of_a_table_that_is_too_large_the_same_is_kept_at_each_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is used least recently goes: in turn, each look would throw away what the next one needs."""
    metadata, snapshot = planning.make_snapshot(tmp_path, data_files=3, delete_files=1)
    monkeypatch.setattr(manifests, "_KEPT_BYTES", manifests._MANIFEST_BYTES + 2_000)
    before = manifests.KEPT.size_bytes
    manifests.read_snapshot_files(metadata, snapshot, PyArrowFileIO(), "large")
    kept = manifests.KEPT.size_bytes
    assert 0 < kept - before < 2 * manifests._MANIFEST_BYTES
    manifests.read_snapshot_files(metadata, snapshot, PyArrowFileIO(), "large")
    assert manifests.KEPT.size_bytes == kept
