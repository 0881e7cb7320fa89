"""What cases write is what they say that they write."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest

from conformance.cases import ALL
from conformance.parquet import parquet_file
from conformance.runner import chosen, write_all
from conformance.types import field


def manifests(folder: Path, name: str) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Of the table as it was written: each manifest as its list has it, and its entries."""
    written = write_all(chosen(ALL, [name]), folder, versions=[2])[0]
    metadata = json.loads(path(written.metadata).read_bytes())
    return [(one, read(one["manifest_path"])) for one in read(metadata["snapshots"][-1]["manifest-list"])]


def read(location: str) -> list[dict[str, Any]]:
    with path(location).open("rb") as file:
        return [dict(one) for one in fastavro.reader(file) if isinstance(one, dict)]


def path(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def test_the_decision_tells_as_many_tables_as_there_are() -> None:
    root = Path(__file__).parents[2]
    counts = json.loads((root / "conformance" / "seen" / "pyiceberg.json").read_text())["counts"]
    decision = (root / "docs" / "decisions" / "54-a-suite-from-the-specifications.md").read_text()
    assert f"\n{sum(counts.values())} tables of {len(ALL)} cases, " in decision


@pytest.mark.parametrize(
    ("count", "group_rows", "page_rows", "groups"), [(40, 12, 5, [12, 12, 12, 4]), (5, None, 2, [5])]
)
def test_a_file_has_the_row_groups_that_were_asked_for(
    count: int, group_rows: int | None, page_rows: int, groups: list[int]
) -> None:
    rows = [{"id": i, "k": i if i % 3 else None} for i in range(count)]
    fields = [field(1, "id", "long", required=True), field(2, "k", "int")]
    content = parquet_file(fields, rows, group_rows=group_rows, page_rows=page_rows)
    file = pq.ParquetFile(io.BytesIO(content))
    assert [file.metadata.row_group(at).num_rows for at in range(file.metadata.num_row_groups)] == groups
    assert file.read().to_pylist() == rows
    # The header of each page takes some bytes.
    assert len(content) > len(parquet_file(fields, rows, group_rows=group_rows))


@pytest.mark.parametrize(
    ("name", "content"), [("kept-data-keeps-its-age", 0), ("kept-deletes-keep-their-age", 1)]
)
def test_a_kept_entry_is_older_than_its_manifest(tmp_path: Path, name: str, content: int) -> None:
    ((manifest, entries),) = [
        one for one in manifests(tmp_path, name) if one[0]["content"] == content and len(one[1]) == 2
    ]
    assert [entry["status"] for entry in entries] == [2, 0]
    assert entries[1]["sequence_number"] < manifest["sequence_number"]
    assert manifest["min_sequence_number"] == entries[1]["sequence_number"]


def deletes_by_position(folder: Path, name: str) -> dict[str, Any]:
    (file,) = [
        entry["data_file"]
        for _, entries in manifests(folder, name)
        for entry in entries
        if entry["data_file"]["content"] == 1
    ]
    return dict(file)


def test_only_the_file_says_of_which_data_file_it_is(tmp_path: Path) -> None:
    named = deletes_by_position(tmp_path, "deletes-by-position-after-those-by-key")
    assert named["referenced_data_file"] == named["lower_bounds"][0]["value"].decode()
    unnamed = deletes_by_position(tmp_path, "position-deletes-of-an-unnamed-file")
    assert unnamed["referenced_data_file"] is None
    low, high = (unnamed[name][0]["value"].decode() for name in ("lower_bounds", "upper_bounds"))
    (path_there,) = set(pq.read_table(path(unnamed["file_path"]))["file_path"].to_pylist())
    assert low < path_there < high


def test_uuids_have_no_bounds_where_values_are_compared(tmp_path: Path) -> None:
    def bounded(name: str) -> set[bool]:
        return {
            bool(entry["data_file"]["lower_bounds"])
            for _, entries in manifests(tmp_path, name)
            for entry in entries
            if entry["data_file"]["content"] != 1
        }

    assert bounded("key-of-type-uuid") == {False}
    assert bounded("key-of-type-fixed-4") == {True}


def test_only_what_keeps_the_rows_is_a_replacement(tmp_path: Path) -> None:
    def last(name: str) -> str:
        written = write_all(chosen(ALL, [name]), tmp_path, versions=[2])[0]
        summary = json.loads(path(written.metadata).read_bytes())["snapshots"][-1]["summary"]
        return str(summary["operation"])

    assert last("rewritten-data-keeps-its-age") == "replace"
    assert last("rewritten-data-without-its-age-is-new") == "overwrite"
    assert last("kept-data-keeps-its-age") == "overwrite"


def test_a_manifest_of_version_1_has_no_sequence_numbers(tmp_path: Path) -> None:
    of_table = manifests(tmp_path, "a-table-of-version-1-was-upgraded")
    ((manifest, (entry,)),) = [one for one in of_table if one[0]["sequence_number"] == 0]
    with path(manifest["manifest_path"]).open("rb") as file:
        assert fastavro.reader(file).metadata["format-version"] == "1"
    assert set(entry) == {"status", "snapshot_id", "data_file"}
    assert not {"content", "equality_ids", "referenced_data_file"} & set(entry["data_file"])
    assert "block_size_in_bytes" in entry["data_file"]
    assert [one["sequence_number"] for one, _ in of_table] == [0, 1, 2]
