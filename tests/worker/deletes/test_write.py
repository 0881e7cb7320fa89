"""New delete files have what was planned, and what dies leaves is found."""

import pickle
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from tests.delete_files import write_deletes
from tests.patience import PATIENCE_SECONDS
from tests.worker.deletes.files import (
    data_file,
    delete_file,
    deletes_task,
    paths,
    position_delete_file,
)
from worker.deletes.existing import SMALL_FILES_AT_ONCE, UnreadableDeleteFileError, existing_deletes
from worker.deletes.locations import DeleteFileLocations
from worker.deletes.merge import DeleteGranularity
from worker.deletes.write import (
    WrittenDeletes,
    _position_delete_rows,
    count_names,
    delete_files,
    remove_written,
    write_position_deletes,
    written_files,
)
from worker.io.storage import Storage
from worker.table.files import PartitionKey


def test_what_a_dead_attempt_wrote_is_found_by_its_prefix(tmp_path: Path) -> None:
    new = {data_file(f"f{n}"): BitMap64([n]) for n in range(3)}
    mine, other = (DeleteFileLocations(str(tmp_path), {}, prefix) for prefix in ("mine", "other"))
    kept = write_deletes(Storage(), new, [], 2, DeleteGranularity.FILE, other).added
    write_deletes(Storage(), new, [], 2, DeleteGranularity.FILE, mine)
    write_deletes(Storage(), new, [], 3, DeleteGranularity.FILE, mine)
    assert len(written_files(Storage(), list(mine.names(len(new))))) == 6
    assert Storage().delete(mine.parquet(0))
    assert Storage().delete(mine.puffin(0))
    assert remove_written(Storage(), mine, 2, len(new)) == 2
    assert remove_written(Storage(), mine, 3, len(new)) == 2
    assert sorted(str(file) for file in tmp_path.rglob("*.*")) == sorted(file.path for file in kept)


def test_locations_follow_the_tables_properties_also_after_pickling(tmp_path: Path) -> None:
    locations = DeleteFileLocations("s3://b/t", {"write.data.path": "s3://b/elsewhere"}, "p")
    for one in (locations, pickle.loads(pickle.dumps(locations))):
        # PyIceberg spreads files over the store by default, by a hash of their name.
        assert one.puffin(7).startswith("s3://b/elsewhere/")
        assert one.puffin(7).endswith("/p-00007-deletes.puffin")
        assert one.puffin(7) == locations.puffin(7)


@pytest.mark.parametrize("version", [2, 3])
def test_a_run_of_a_task_that_fails_late_deletes_nothing_of_another_one(version: int, tmp_path: Path) -> None:
    class FullStorage(Storage):
        """A store in which one file of many can't be created."""

        def write(self, location: str, content: pa.Buffer) -> None:
            if "00010" in location:
                raise OSError(28, "No space left on device")
            super().write(location, content)

    new = {data_file(f"f{n:03}"): BitMap64([n % 100]) for n in range(30)}
    locations = DeleteFileLocations(str(tmp_path), {}, "p")
    committed = write_deletes(Storage(), new, [], version, DeleteGranularity.FILE, locations)
    with pytest.raises(OSError, match="No space left"):
        write_deletes(FullStorage(), new, [], version, DeleteGranularity.FILE, locations)
    assert {str(path) for path in tmp_path.rglob("*.*")} == {file.path for file in committed.added}
    # Who knows that nothing was committed removes all of it.
    assert remove_written(Storage(), locations, version, len(new)) == len(new)
    assert not list(tmp_path.rglob("*.*"))


@pytest.mark.parametrize(
    ("version", "granularity", "shares_files"),
    [
        (3, DeleteGranularity.FILE, False),
        (3, DeleteGranularity.FILE, True),
        (2, DeleteGranularity.FILE, False),
        (2, DeleteGranularity.PARTITION, False),
    ],
)
def test_a_stray_run_of_a_task_that_could_read_less_or_more_overwrites_nothing(
    version: int, granularity: DeleteGranularity, shares_files: bool, tmp_path: Path
) -> None:
    """A name is never given to other content, whichever run of a task comes last."""
    partitions = [PartitionKey(1, f'["{region}"]') for region in ("eu", "us")]
    files = [data_file(f"f{n}", partition=partitions[n // 3]) for n in range(6)]
    # What says which rows of two of these are gone already can be read in some runs only.
    existing = [
        replace(
            position_delete_file(tmp_path / f"old{n}.parquet", [(f"f{n}", 1)]),
            partition=partitions[0],
            referenced_data_file=f"f{n}",
        )
        for n in (0, 1)
    ]
    names = count_names(len(files), version, granularity, shares_files=shares_files)
    task = deletes_task(
        tmp_path / "table",
        {file: [n, 50] for n, file in enumerate(files)},
        existing,
        version,
        granularity=granularity,
        shares_files=shares_files,
    )
    seen: dict[str, bytes] = {}
    contents = [Path(old.path).read_bytes() for old in existing]
    for missing in ((), (0,), (1,), (0, 1)):
        for n, (old, content) in enumerate(zip(existing, contents, strict=True)):
            Path(old.path).unlink(missing_ok=True)
            if n not in missing:
                Path(old.path).write_bytes(content)
        outcome = task.run(None)
        assert {one.data_file.path for one in outcome.blocked} == {f"f{n}" for n in missing}
        written = {path: Path(path).read_bytes() for path in paths(outcome)}
        assert written.keys() <= set(task.locations.names(names))
        assert all(seen.setdefault(path, content) == content for path, content in written.items())
        assert {path: Path(path).read_bytes() for path in seen} == seen
    assert remove_written(Storage(), task.locations, version, names) == len(seen)
    assert not list((tmp_path / "table").rglob("*.*"))


def test_deletes_of_a_partition_that_cannot_be_read_block_its_data_files_alone(tmp_path: Path) -> None:
    eu, us = (data_file(region, partition=PartitionKey(1, f'["{region}"]')) for region in ("eu", "us"))
    gone = delete_file(f"{tmp_path}/gone.parquet", partition=PartitionKey(1, '["eu"]'))
    task = deletes_task(tmp_path, {eu: [1], us: [1]}, [gone], 2)
    outcome = task.run(None)
    assert [one.data_file for one in outcome.blocked] == [eu]
    assert outcome.data_files == ("us",)


@pytest.mark.parametrize("version", [2, 3])
def test_a_stray_run_that_ends_in_the_middle_leaves_what_another_wrote(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.deletes.write._ROW_GROUP_ROWS", 50)
    new = {data_file(f"f{n}"): BitMap64(range(0, 100, 3)) for n in range(4)}
    locations = DeleteFileLocations(str(tmp_path), {}, "p")

    def run() -> dict[str, bytes]:
        written = write_deletes(Storage(), new, [], version, DeleteGranularity.PARTITION, locations)
        return {path: Path(path).read_bytes() for path in paths(written)}

    committed = run()
    # While it writes: as a kill would, that leaves the beginning of a file.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path: Path(path).read_bytes() for path in committed} == committed
    # Before that, with the first rows.
    rows = _position_delete_rows([("f0", np.array([1]))])
    monkeypatch.setattr("worker.deletes.write._position_delete_rows", Mock(side_effect=[rows, MemoryError]))
    monkeypatch.setattr("worker.deletes.puffin._footer", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        run()
    assert {path: Path(path).read_bytes() for path in committed} == committed


@pytest.mark.parametrize("version", [2, 3])
def test_files_wait_for_the_store_together_and_what_a_late_writer_adds_is_found(
    version: int, tmp_path: Path
) -> None:
    together = threading.Barrier(SMALL_FILES_AT_ONCE + 1, timeout=PATIENCE_SECONDS)
    all_begun = threading.Barrier(SMALL_FILES_AT_ONCE, timeout=PATIENCE_SECONDS)
    wakes = threading.Event()

    class Slow(Storage):
        """A store in which writers fall asleep in the middle, all at once."""

        def write(self, location: str, content: pa.Buffer) -> None:
            ordinal = int(location.split("-")[-2])
            if ordinal < SMALL_FILES_AT_ONCE:
                all_begun.wait()
            if ordinal >= 2 * SMALL_FILES_AT_ONCE and not wakes.is_set():
                together.wait()
                assert wakes.wait(PATIENCE_SECONDS)
            super().write(location, content)

    new = {data_file(f"f{n:03}"): BitMap64([n % 100]) for n in range(5 * SMALL_FILES_AT_ONCE)}
    locations = DeleteFileLocations(str(tmp_path), {}, "p")
    names = list(locations.names(len(new)))
    with ThreadPoolExecutor(1) as thread:
        granularity = DeleteGranularity.FILE
        writing = thread.submit(write_deletes, Slow(), new, [], version, granularity, locations)
        together.wait()
        found = written_files(Storage(), names)
        assert found == names[(3 - version) * len(new) :][: 2 * SMALL_FILES_AT_ONCE]
        assert delete_files(Storage(), found) == len(found)
        wakes.set()
        done = writing.result()
    assert done.data_files == tuple(sorted(file.path for file in new))
    later = written_files(Storage(), names)
    assert later == paths(done)[2 * SMALL_FILES_AT_ONCE :]
    assert delete_files(Storage(), later) == len(later)
    assert not list(tmp_path.rglob("*.*"))


def test_nothing_to_delete_writes_nothing(tmp_path: Path) -> None:
    locations = DeleteFileLocations(str(tmp_path), {}, "p")
    for version in (2, 3):
        new = {data_file("a"): BitMap64()}
        written = write_deletes(Storage(), new, [], version, DeleteGranularity.FILE, locations)
        assert written == WrittenDeletes()
    assert not list(tmp_path.rglob("*.*"))


def test_rows_are_sorted_by_path_and_position_across_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.deletes.write._ROW_GROUP_ROWS", 4)
    new = {data_file(path): BitMap64([9, 1, 5]) for path in ("c", "a", "b")}
    [written] = write_position_deletes(
        Storage(), lambda file: f"{tmp_path}/{file.path}.parquet", new, DeleteGranularity.PARTITION
    )
    file = pq.ParquetFile(written.path)
    assert file.read().to_pydict() == {
        "file_path": [path for path in "abc" for _ in range(3)],
        "pos": [1, 5, 9] * 3,
    }
    assert len(written.split_offsets) == file.num_row_groups > 1
    assert written.referenced_data_file is None
    assert not written.lower_bounds
    assert written.file_size_bytes == Path(written.path).stat().st_size


def test_a_flipped_bit_in_positions_that_we_wrote_is_noticed(tmp_path: Path) -> None:
    """The next conversion merges them; zstd and the encodings notice by far not all."""
    hidden = data_file("a", rows=100_000)
    rows = BitMap64(np.unique(np.random.default_rng(0).integers(0, hidden.record_count, 9_000)))
    [written] = write_position_deletes(
        Storage(), lambda _: f"{tmp_path}/p.parquet", {hidden: rows}, DeleteGranularity.FILE
    )
    path = Path(written.path)
    intact, chunk = path.read_bytes(), pq.read_metadata(path).row_group(0).column(1)
    for back in range(1, chunk.total_compressed_size - 100, chunk.total_compressed_size // 40):
        damaged = bytearray(intact)
        damaged[chunk.data_page_offset + chunk.total_compressed_size - back] ^= 1
        path.unlink()  # what an earlier read has mapped stays what it was
        path.write_bytes(damaged)
        delete = delete_file(str(path), rows=len(rows))
        with pytest.raises(UnreadableDeleteFileError):
            existing_deletes(Storage(), [hidden], [delete])


def test_groups_add_up_after_pickling(tmp_path: Path) -> None:
    groups = [
        write_deletes(
            Storage(),
            {data_file(f"f{n}"): BitMap64([1, 2])},
            [],
            3,
            DeleteGranularity.FILE,
            DeleteFileLocations(str(tmp_path), {}, f"group-{n}"),
        )
        for n in range(3)
    ]
    union = WrittenDeletes.union(pickle.loads(pickle.dumps(groups)))
    assert (union.rows_deleted, union.data_files) == (6, ("f0", "f1", "f2"))
    assert len(set(paths(union))) == 3
