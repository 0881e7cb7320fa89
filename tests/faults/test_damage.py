"""Files that are missing, cut off, overwritten or exchanged: no row changes, and the rest is converted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from tests.exactness import Exactness
from tests.factories import TableBuilder, WrittenFile
from tests.faults.tables import assert_nothing_is_left, commits_by_job, local, orphans
from tests.thorough import V3_FIRST, exhaustive_unless
from worker.process.errors import JobError
from worker.table.avro_files import CorruptMetadataError
from worker.table.manifests import read_snapshot_files

pytestmark = pytest.mark.integration

Damage = Callable[[bytes], bytes | None]  # None: the file is missing

DAMAGES: dict[str, Damage] = {
    "missing": lambda content: None,
    "empty": lambda content: b"",
    "cut in half": lambda content: content[: len(content) // 2],
    "cut by a byte": lambda content: content[:-1],
    "zeros": lambda content: bytes(len(content)),
    "zeros in the middle": lambda content: zeros(content, len(content) // 4, len(content) // 2),
    "zeros at the end": lambda content: zeros(content, len(content) - 40, len(content)),
    "too long": lambda content: content + bytes(1),
}


def zeros(content: bytes, start: int, end: int) -> bytes:
    return content[:start] + bytes(end - start) + content[end:]


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]


def put(path: Path, content: bytes | None) -> None:
    # Replaced, and not written: what an earlier job has mapped into memory stays what it was.
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)


class Damaged:
    """A table in two partitions. Of `eu`, some files will be damaged; `us` is whole."""

    def __init__(self, exactly: Exactness, format_version: int, file_format: str = "parquet") -> None:
        self.exactly = exactly
        self.table = exactly.table(
            "id bigint, region string", format_version=format_version, partitioned_by=["region"]
        )
        self.table.parquet = {"write_page_checksum": True}
        self.table.file_format = file_format
        (self.data,) = self.append("eu")
        self.positions = self.delete_positions([0, 1, 50])
        (self.equality,) = self.delete([3, 7, 500], "eu")
        self.append("us")
        (self.other,) = self.delete([4], "us")

    def append(self, region: str) -> list[str]:
        return self.table.append([{"id": i, "region": region} for i in range(200)])

    def delete(self, ids: list[int], region: str) -> list[str]:
        return self.table.delete_keys(
            [{"id": i, "region": region} for i in ids], equality_columns=["id"], columns=["id", "region"]
        )

    def delete_positions(self, positions: list[int]) -> str:
        deleted = {self.data: positions}
        of_version = {2: self.table.position_deletes, 3: self.table.deletion_vectors}
        (file,) = of_version[self.table.metadata.format_version](deleted)
        self.table.commit(file)
        return file.path

    def location(self, what: str) -> Path:
        return local(getattr(self, what))

    def ids(self, region: str) -> list[int]:
        rows = self.table.spark.sql(f"SELECT id FROM {self.table.identifier} WHERE region = '{region}'")
        return sorted(row[0] for row in rows.collect())


CODES = {"data": "corrupt_file", "equality": "corrupt_file", "positions": "unreadable_position_deletes"}


@pytest.mark.parametrize(
    ("what", "format_version", "file_format"),
    exhaustive_unless(
        {
            ("data", 2, "parquet"),
            ("positions", 3, "parquet"),
        }.__contains__,
        [
            ("data", 2, "parquet"),
            ("equality", 3, "parquet"),
            ("positions", 2, "parquet"),
            ("positions", 3, "parquet"),
            ("data", 3, "orc"),
            ("equality", 2, "orc"),
            ("positions", 2, "orc"),
            ("data", 2, "avro"),
            ("equality", 3, "avro"),
            ("positions", 2, "avro"),
        ],
    ),
)
def test_a_damaged_file_is_named_whatever_happened_to_it_and_converted_once_it_is_restored(
    exactly: Exactness, what: str, format_version: int, file_format: str
) -> None:
    damaged = Damaged(exactly, format_version, file_format)
    before = exactly.visible_rows(damaged.table)
    path = damaged.location(what)
    intact = path.read_bytes()
    # A deletion vector is a range of its file, with a checksum of its own: the rest of it does not matter.
    is_vector = what == "positions" and format_version == 3
    damages = ["missing", "empty", "zeros"] if is_vector else list(DAMAGES)
    if file_format == "orc":
        damages.remove("zeros in the middle")  # nothing in the format tells them from values
    for how in damages:
        put(path, DAMAGES[how](intact))
        outcome = exactly.jobs.run("convert")
        (refused,) = outcome.result["unconvertible"]
        code = "missing_file" if how == "missing" and what != "positions" else CODES[what]
        assert (refused["file_path"], refused["code"]) == (damaged.equality, code), how
        assert path.name in refused["reason"], how
        assert refused["remedy"]
        if how == damages[0]:
            assert outcome.result["equality_delete_files_removed"] == 1, "what is whole is converted"
            assert damaged.ids("us") == [i for i in range(200) if i != 4]
            snapshot = damaged.table.snapshot_id
        assert damaged.table.snapshot_id == snapshot
    put(path, intact)
    assert exactly.visible_rows(damaged.table) == before
    mended = exactly.jobs.run("convert")
    assert mended.result["unconvertible"] == mended.health["unconvertible"] == []
    assert mended.result["rows_deleted"] == 2
    assert exactly.visible_rows(damaged.table) == before
    assert_nothing_is_left(damaged.table)


@pytest.mark.parametrize("flips", [5, pytest.param(25, marks=pytest.mark.exhaustive)])
def test_a_flipped_bit_in_a_page_with_a_checksum_or_in_a_vector_is_noticed(
    flips: int, exactly: Exactness
) -> None:
    """Parquet-java writes these checksums. Where there are none, a value may change and nobody can tell."""
    damaged = Damaged(exactly, 3)
    before = exactly.visible_rows(damaged.table)
    foretold = exactly.jobs.run("convert", dry_run=True).result["rows_deleted"]
    assert foretold == 3
    outcomes: Counter[str] = Counter()
    for what in ("data", "equality", "positions"):
        path = damaged.location(what)
        intact = path.read_bytes()
        end = -8 - int.from_bytes(intact[-8:-4], "little") if what != "positions" else -1
        for at in range(4, len(intact[:end]), max(1, len(intact[:end]) // flips)):
            put(path, flipped(intact, at))
            result = exactly.jobs.run("convert", dry_run=True).result
            codes = {one["code"] for one in result["unconvertible"]} or {"converted"}
            assert codes <= {CODES[what], "converted"}
            # What is not noticed changes nothing: statistics in a page's header, the footer of a Puffin file.
            assert codes != {"converted"} or result["rows_deleted"] == foretold, (what, at)
            outcomes[what, *codes] += 1  # type: ignore[index]
        put(path, intact)
        assert outcomes[what, CODES[what]], f"no flipped bit of {what} was noticed"  # type: ignore[index]
    assert exactly.jobs.run("convert").result["rows_deleted"] == foretold
    assert exactly.visible_rows(damaged.table) == before


def described(file: WrittenFile, **otherwise: Any) -> WrittenFile:
    return replace(file, json={**file.json, **{k.replace("_", "-"): v for k, v in otherwise.items()}})


@pytest.mark.parametrize(
    ("what", "property_name"),
    exhaustive_unless(
        lambda case: (case[0] == "data") == (case[1] == "record_count"),
        [(what, name) for what in CODES for name in ("record_count", "file_size_in_bytes")],
    ),
)
def test_a_file_that_is_not_the_one_of_the_manifest_is_refused(
    exactly: Exactness, what: str, property_name: str
) -> None:
    """Its rows might lie elsewhere than those of the right file. V3 merges V2's position deletes."""
    otherwise = {"record_count": 3} if property_name == "record_count" else {"file_size_in_bytes": 5_000}
    table = exactly.table("id bigint", format_version=2)
    (data,) = table.data_files([{"id": i} for i in range(10)])
    table.commit(described(data, **otherwise) if what == "data" else data)
    (positions,) = table.position_deletes({data.path: [1, 5]})
    table.commit(described(positions, **otherwise) if what == "positions" else positions)
    (equality,) = table.equality_deletes([{"id": 2}])
    table.commit(described(equality, **otherwise) if what == "equality" else equality)
    exactly.spark.sql(f"ALTER TABLE {table.identifier} SET TBLPROPERTIES ('format-version' = '3')")
    snapshot = table.snapshot_id
    (refused,) = exactly.jobs.run("convert").result["unconvertible"]
    assert (refused["file_path"], refused["code"]) == (equality.path, CODES[what])
    assert "its manifest says" in refused["reason"]
    assert table.snapshot_id == snapshot
    assert orphans(table) == set()


# The metadata.


def metadata_files(table: TableBuilder) -> dict[str, list[Path]]:
    snapshot = table.metadata.current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(PyArrowFileIO())
    return {
        "manifest list": [local(snapshot.manifest_list)],
        "manifest": [local(one.manifest_path) for one in manifests],
    }


@pytest.mark.thorough
@V3_FIRST
def test_a_manifest_that_was_cut_off_anywhere_is_not_a_shorter_one(
    exactly: Exactness, format_version: int
) -> None:
    """A data file that is not seen would get no deletes, and its deleted rows would come back."""
    table = Damaged(exactly, format_version).table
    metadata, io = table.metadata, PyArrowFileIO()
    snapshot = metadata.current_snapshot()
    assert snapshot is not None
    whole = read_snapshot_files(metadata, snapshot, io)
    for path in [path for paths in metadata_files(table).values() for path in paths]:
        content = path.read_bytes()
        for end in {*range(0, len(content), 397), *range(len(content) - 30, len(content))}:
            put(path, content[:end])
            with pytest.raises(CorruptMetadataError, match=path.name):
                read_snapshot_files(metadata, snapshot, io)
        # And where a block ends: the last 16 bytes are what stands behind each, and behind the header.
        header = content.index(content[-16:]) + 16
        put(path, content[:header])
        with pytest.raises(CorruptMetadataError, match=path.name):
            read_snapshot_files(metadata, snapshot, io)
        put(path, content)
    assert read_snapshot_files(metadata, snapshot, io) == whole


@pytest.mark.parametrize("what", ["manifest list", "manifest"])
def test_without_its_manifests_a_job_fails_and_names_the_file_and_the_next_one_converts(
    exactly: Exactness, what: str
) -> None:
    damaged = Damaged(exactly, 3)
    before = exactly.visible_rows(damaged.table)
    snapshot = damaged.table.snapshot_id
    path = metadata_files(damaged.table)[what][0]
    intact = path.read_bytes()
    changes: dict[str, Damage] = {
        **{how: DAMAGES[how] for how in ("missing", "empty", "cut in half", "zeros in the middle")},
        "garbage": lambda content: b"garbage",
    }
    for how, change in changes.items():
        put(path, change(intact))
        for kind in ("convert", "index"):
            with pytest.raises(JobError) as failure:
                exactly.jobs.run(kind)
            expected = "metadata_missing" if how == "missing" else "metadata_damaged"
            assert (failure.value.code, failure.value.retryable) == (expected, how == "missing")
            assert path.name in failure.value.detail, how
            assert failure.value.remedy
    put(path, intact)
    assert damaged.table.snapshot_id == snapshot
    assert exactly.jobs.run("convert").result["unconvertible"] == []
    assert exactly.visible_rows(damaged.table) == before
    assert_nothing_is_left(damaged.table)


def test_without_its_metadata_a_job_fails_and_names_the_file_and_the_next_one_converts(
    exactly: Exactness,
) -> None:
    """One that can't be parsed ends so, too, after Iceberg has tried to read it for a minute and a half."""
    damaged = Damaged(exactly, 2)
    before = exactly.visible_rows(damaged.table)
    path = local(damaged.table.metadata_location)
    intact = path.read_bytes()
    path.unlink()
    with pytest.raises(JobError) as failure:
        exactly.jobs.run("convert")
    assert (failure.value.code, failure.value.retryable) == ("catalog_unreachable", True)
    assert path.name in failure.value.detail
    put(path, intact)
    assert exactly.jobs.run("convert").result["unconvertible"] == []
    assert exactly.visible_rows(damaged.table) == before
    assert max(commits_by_job(damaged.table).values()) == 1
    assert_nothing_is_left(damaged.table)
