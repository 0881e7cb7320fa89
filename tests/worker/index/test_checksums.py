"""No flipped bit in what leads to the entries of an index changes an answer without being noticed."""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.slow_store import SlowStore
from tests.worker.lookup.test_lookup import key_set_of, write_data_file
from worker.index import checksums, footers, run_files
from worker.index.build import build_tasks
from worker.index.checksums import CheckedFiles, read_footer
from worker.index.commit import commit_index
from worker.index.dictionary import assign_row_addresses
from worker.index.key_set_index import DamagedIndexError, decode, open_index
from worker.index.run_files import write_run
from worker.index.warehouse import IndexWarehouse
from worker.io.storage import Storage
from worker.keys.read import KeyReader
from worker.lookup.index_lookup import GLOBAL, DeleteKeys, LiveRows, Matches, lookup_tasks
from worker.table.files import DataFile, DataFiles

TYPES = ("string", "long")
KEY_SET = key_set_of(*TYPES)
DATABASE = "t_1"
ROWS = 60  # of each data file
EACH = 11  # of the bits of a file is flipped: all places in a byte take turns
FLIPS = 40  # of each kind of file: those that matter are found by chance, a few of each hundred

# What leads to the entries, by where it lies. Pages have Parquet's checksums.
KINDS = {
    "snapshots": "*/snapshot/snapshot-3",
    "manifest lists": "*/manifest/manifest-list-*",
    "manifests": "*/manifest/manifest-[!l]*",
    "footers": "*/bucket-0/*.parquet",
}


@dataclass
class Subject:
    """An index of three commits, and deletes of some of its keys."""

    folder: Path
    files: list[DataFile]
    deletes: DeleteKeys

    @cached_property
    def right(self) -> tuple[set[tuple[int, int]], list[bool]]:
        return self.answer()

    @property
    def tables(self) -> Path:
        return self.folder / "index" / f"{DATABASE}.db"

    def answer(self) -> tuple[set[tuple[int, int]], list[bool]]:
        """(file, position) of the rows to delete, and which files the index covers."""
        footers.KEPT.clear()
        index = open_index(warehouse(self.folder), DATABASE, KEY_SET)
        assert index is not None
        files = DataFiles.of(self.files)
        live = LiveRows(index.dictionary, files, np.arange(len(files)))
        tasks = lookup_tasks(Storage(), index.entries.files, self.deletes, 2)
        found = Matches.combined([live.of(task.run(self.deletes)) for task in tasks])
        rows = set(zip(found.ordinals.tolist(), found.positions.tolist(), strict=True))
        return rows, index.dictionary.covers(files).tolist()

    def outcome(self, path: Path, content: bytes) -> str:
        """What a lookup makes of a file with another content, which is then as it was."""
        intact, right = path.read_bytes(), self.right
        put(path, content)
        try:
            return "right" if self.answer() == right else "wrong"
        except (DamagedIndexError, pa.ArrowException, OSError):
            return "noticed"
        finally:
            put(path, intact)


def warehouse(folder: Path) -> IndexWarehouse:
    return IndexWarehouse((folder / "index").as_uri(), Storage())


def put(path: Path, content: bytes) -> None:
    path.unlink()  # what an earlier read has mapped stays what it was
    path.write_bytes(content)


def flipped(content: bytes, bit: int) -> bytes:
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp("checked")
    reader = KeyReader(Storage(), KEY_SET, None, {})
    rows = [(f"key-{i // 4:04d}", i * 7) for i in range(3 * ROWS)]
    files = [
        write_data_file(folder, f"{n}.parquet", TYPES, rows[n * ROWS :][:ROWS], "p", 1) for n in range(3)
    ]
    index = open_index(warehouse(folder), DATABASE, KEY_SET, create=True)
    assert index is not None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run_files, "ROW_GROUP_ROWS", 16)
        for file in files:
            indexed = assign_row_addresses([file], index.end_address, index.dictionary.partitions())
            (task,) = build_tasks(reader, Storage(), index.entries_table.location, indexed, 1)
            index = commit_index(index, task.run(None).runs, indexed)
    keys = write_data_file(folder, "deletes.parquet", TYPES, rows[::9], "p", 2)
    batches = [(GLOBAL, 2, batch) for batch in reader.read_data_file(keys)]
    return Subject(folder, files, DeleteKeys.of(batches, KEY_SET.schema))


def bits_of(path: Path) -> range:
    """Those of a file that have a checksum of ours."""
    content = path.read_bytes()
    if path.suffix != ".parquet":
        return range(8 * len(content))
    footer_bytes = int.from_bytes(content[-8:-4], "little") + 8
    return range(8 * (len(content) - footer_bytes), 8 * len(content))


def outcomes(subject: Subject, pattern: str, flips: int) -> Counter[str]:
    chance = random.Random(pattern)
    paths = sorted(subject.tables.glob(pattern))
    chosen = [(path, chance.choice(bits_of(path))) for path in chance.choices(paths, k=flips)]
    return Counter(subject.outcome(path, flipped(path.read_bytes(), bit)) for path, bit in chosen)


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_on_the_way_to_the_entries_changes_no_answer_unnoticed(
    subject: Subject, kind: str
) -> None:
    rows, covered = subject.right
    assert (len(rows), covered) == (3 * ROWS // 9, [True] * 3)
    found = outcomes(subject, KINDS[kind], FLIPS)
    assert not found["wrong"]
    assert found["noticed"]


def test_a_bound_that_became_narrower_would_hide_a_row(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In each run, since not every bound that a flip makes narrower has a row of these deletes at its edge.
    narrower: list[tuple[Path, bytes]] = []
    for path in subject.tables.glob("entries*/bucket-0/*.parquet"):
        content = path.read_bytes()
        keys = [m for m in re.finditer(rb"key-\d{4}", content) if m.start() > bits_of(path)[0] // 8]
        narrower += [(path, flipped(content, 8 * (key.end() - 1) + 1)) for key in keys]
    assert {subject.outcome(path, damaged) for path, damaged in narrower} == {"noticed"}
    monkeypatch.setattr(checksums, "_check", lambda *_: None)
    assert "wrong" in {subject.outcome(path, damaged) for path, damaged in narrower}


def test_a_page_that_is_decoded_by_another_encoding_is_noticed(subject: Subject, tmp_path: Path) -> None:
    """Headers of pages have no checksum. Keys may be empty, too: then their bounds tell."""
    words = pa.table({"key": ["", *(f"key-{i:03d}" for i in range(40))]})
    (empty,) = write_run(Storage(), str(tmp_path), words, primary_key=["key"])
    decode(Storage(), empty.location)
    varint = rb"\x15[\x80-\xff]*[\x00-\x7f]"
    delta = re.compile(rb"\x15\x00" + varint * 3 + rb"\x1c" + varint + rb"\x15(?=\x0e)")
    (run, *_) = subject.tables.glob("entries*/bucket-0/*.parquet")
    (dictionary, *_) = subject.tables.glob("files*/bucket-0/*.parquet")
    for path, pages in ((Path(empty.location), 1), (run, ROWS // 16 + 1), (dictionary, 3)):
        content = path.read_bytes()
        found = [header.end() for header in delta.finditer(content)]
        assert len(found) == pages
        for at in found:
            damaged = flipped(content, 8 * at + 1)
            if path.is_relative_to(subject.folder):
                assert subject.outcome(path, damaged) == "noticed"
            put(path, damaged)
            with pytest.raises((pa.ArrowException, OSError), match=r"outside|end of stream"):
                decode(Storage(), str(path))
            put(path, content)


def test_each_bit_of_a_footer_counts(subject: Subject) -> None:
    """But those of the name of the checksum, without which there is none, and all else is intact."""
    path = next(subject.tables.glob("entries*/bucket-0/*.parquet"))
    content = path.read_bytes()
    start = bits_of(path)[0] // 8
    mark = content.rindex(checksums._IN_FOOTER)
    named = range(mark, mark + len(checksums._IN_FOOTER))
    for bit in bits_of(path)[::EACH]:
        damaged = pa.BufferReader(flipped(content, bit)[start:])
        if bit // 8 in named:
            assert read_footer(damaged).num_row_groups == ROWS // 16 + 1
        else:
            with pytest.raises((pa.ArrowException, OSError)):
                read_footer(damaged)


@pytest.mark.parametrize("kind", ["snapshots", "manifest lists", "manifests"])
def test_each_bit_of_a_snapshot_and_of_a_manifest_counts(subject: Subject, kind: str) -> None:
    path = next(subject.tables.glob(KINDS[kind]))
    content = path.read_bytes()
    # Without the checksum's own mark, or that of Avro, there is none: for Avro's reader that is damage, too.
    marks = {checksums._IN_JSON, checksums._AVRO, content[-16:-8]}
    excused = {
        at for mark in marks for found in [content.rfind(mark)] for at in range(found, found + len(mark))
    }
    for bit in range(0, 8 * len(content), EACH):
        if bit // 8 not in excused:
            with pytest.raises(pa.ArrowInvalid, match="its checksum"):
                CheckedFiles(Stored(flipped(content, bit))).open_input("x")
    assert CheckedFiles(Stored(content)).open_input("x").read() == content


class Stored:
    """A FileIO of one file."""

    def __init__(self, content: bytes) -> None:
        self.new_input_stream = lambda _: BytesIO(content)
        self.new_output_stream = None


def test_what_has_no_checksum_is_read_as_it_is(subject: Subject, tmp_path: Path) -> None:
    """Such as what another writer of Paimon has written."""
    old = replace(subject, folder=tmp_path)
    shutil.copytree(subject.folder, tmp_path, dirs_exist_ok=True)
    for path in old.tables.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            if content.startswith(checksums._AVRO):
                content = content.replace(content[-16:], random.Random(path.name).randbytes(16))
            put(path, content.replace(checksums.NAME.encode(), b"icestream.other"))
    rows, covered = old.answer()
    assert (len(rows), covered) == (len(subject.right[0]), subject.right[1])
    # And its next snapshot, manifest and footer have one.
    index = open_index(warehouse(tmp_path), DATABASE, KEY_SET)
    assert index is not None
    indexed = assign_row_addresses(subject.files[:1], index.end_address, {})
    commit_index(index, [], [replace(indexed[0], file=replace(indexed[0].file, path="new"))])
    new = [
        path
        for path in old.tables.rglob("*")
        if path.is_file() and checksums.NAME.encode() in path.read_bytes()
    ]
    assert {path.parent.name for path in new} == {"bucket-0", "snapshot"}


def test_an_index_whose_schema_is_damaged_can_be_made_anew(subject: Subject, tmp_path: Path) -> None:
    for table in ("entries", "files"):
        shutil.copytree(subject.folder, tmp_path, dirs_exist_ok=True)
        (schema,) = tmp_path.glob(f"index/*/{table}_*_g1/schema/schema-0")
        put(schema, schema.read_bytes().replace(b"BIGINT", b"BIGONT"))
        with pytest.raises(DamagedIndexError, match=f"the schema of {table}"):
            open_index(warehouse(tmp_path), DATABASE, KEY_SET, create=True)
        index = open_index(warehouse(tmp_path), DATABASE, KEY_SET, rebuild=True)
        assert index is not None
        assert index.generation == 2
        shutil.rmtree(tmp_path / "index")


@pytest.mark.parametrize("row_groups", [1, 400])
def test_a_footer_takes_a_request_less_than_arrow_makes(tmp_path: Path, row_groups: int) -> None:
    """None for the file's size, one for its end; a large one is read with another."""
    (tmp_path / "bucket").mkdir()
    rows = pa.table({f"c{i}": range(400) for i in range(4)})
    pq.write_table(rows, tmp_path / "bucket" / "x.parquet", row_group_size=400 // row_groups)
    with SlowStore(tmp_path, 0).served() as store:
        storage = Storage(store.properties)

        def by_arrow() -> None:
            filesystem, path = storage.resolve("s3://bucket/x.parquet")
            assert pq.read_metadata(filesystem.open_input_file(path)).num_row_groups == row_groups

        def once(size_bytes: int | None = None) -> None:
            with storage.open_input("s3://bucket/x.parquet", size_bytes) as source:
                assert read_footer(source).num_row_groups == row_groups

        size = (tmp_path / "bucket" / "x.parquet").stat().st_size
        arrow = store.counted(by_arrow)
        for ours in (store.counted(once), store.counted(partial(once, size))):
            assert ours.by_kind == {"GET": arrow.count - 1}
