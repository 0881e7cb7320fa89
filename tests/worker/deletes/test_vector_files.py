"""Deletion vectors that share Puffin files: which do, what is read together, and what moves."""

from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from tests.jobs import RecordingReporter
from tests.worker.deletes.files import data_file, deletes_task, positions
from worker.attempt.job import Job
from worker.contract.control_plane import Assignment
from worker.deletes import vector_files
from worker.deletes.existing import UnreadableDeleteFileError, existing_deletes
from worker.deletes.puffin import PuffinWriter, VectorRange, has_others, size_of_file
from worker.deletes.vector_files import shares_files, to_be_moved
from worker.deletes.write import write_deletion_vectors
from worker.io.storage import Storage
from worker.table.files import DataFile, DataFiles, DeleteFile, DeleteFiles, FileContent

numbers = st.integers(0, 2**40)


def written(
    folder: Path, found: Mapping[DataFile, BitMap64], by: str = "icestream", **how: Any
) -> list[DeleteFile]:
    """As the table has them once they are committed."""
    new = write_deletion_vectors(Storage(), lambda file: f"{folder}/{by}-{file.path}", found, **how)
    return [
        DeleteFile(
            FileContent.POSITION_DELETES,
            one.path,
            "puffin",
            one.partition,
            one.record_count,
            one.file_size_bytes,
            2,
            referenced_data_file=one.referenced_data_file,
            content_offset=one.content_offset,
            content_size_bytes=one.content_size_bytes,
        )
        for one in new
    ]


class CountingStorage(Storage):
    """Tells what is read of each file."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[tuple[int, int | None]] = []

    def read(self, location: str, offset: int = 0, length: int | None = None) -> bytes:
        self.ranges.append((offset, length))
        return super().read(location, offset, length)


def test_neighbours_are_read_by_one_request_and_distant_ones_by_two(tmp_path: Path) -> None:
    files = [data_file(f"f{n}", rows=2**20) for n in range(5)]
    # The vector in the middle takes more than a gap may.
    found = {file: BitMap64(range(0, 2**20, 3)) if n == 2 else BitMap64([n]) for n, file in enumerate(files)}
    vectors = written(tmp_path, found, shares_files=True)
    assert len({one.path for one in vectors}) == 1
    storage = CountingStorage()
    assert len(existing_deletes(storage, files, vectors)) == 5
    assert len(storage.ranges) == 1
    storage = CountingStorage()
    near = [file for n, file in enumerate(files) if n != 2]
    assert positions(existing_deletes(storage, near, vectors)) == {f"f{n}": [n] for n in (0, 1, 3, 4)}
    assert len(storage.ranges) == 2


def test_of_vectors_that_are_read_together_the_broken_one_is_named(tmp_path: Path) -> None:
    files = [data_file(f"f{n}") for n in range(3)]
    vectors = written(tmp_path, {file: BitMap64([1]) for file in files}, shares_files=True)
    broken = [vectors[0], replace(vectors[1], record_count=7), vectors[2]]
    with pytest.raises(Exception, match="holds 1 positions, the manifest says 7") as raised:
        existing_deletes(Storage(), files, broken)
    assert raised.value.delete_file == broken[1]  # type: ignore[attr-defined]


def test_a_shared_file_has_a_bound_of_its_positions(tmp_path: Path) -> None:
    large = BitMap64(range(0, 1_500_000, 3))
    found = {data_file(f"f{n}", rows=2_000_000): large.copy() for n in range(5)}
    vectors = written(tmp_path, found, shares_files=True)
    assert [one.path.rpartition("-")[2] for one in vectors] == ["f0", "f0", "f2", "f2", "f4"]


@given(st.lists(st.tuples(st.text(max_size=20), st.sets(numbers, min_size=1, max_size=5)), min_size=1))
def test_the_size_of_a_file_is_told_by_what_is_in_it(
    tmp_path_factory: pytest.TempPathFactory, contents: list[tuple[str, set[int]]]
) -> None:
    found = {data_file(path or "x"): BitMap64(some) for path, some in contents}
    folder = tmp_path_factory.mktemp("sizes")
    new = write_deletion_vectors(Storage(), lambda _: f"{folder}/one", found, shares_files=True)
    ranges = [
        VectorRange(
            one.referenced_data_file or "",
            one.content_offset or 0,
            one.content_size_bytes or 0,
            one.record_count,
        )
        for one in new
    ]
    assert size_of_file(ranges) == (folder / "one").stat().st_size == new[0].file_size_bytes


def test_all_vectors_of_a_file_move_with_one_of_them_or_once_little_of_it_is_live(tmp_path: Path) -> None:
    names = [f"f{n}" for n in range(8)]
    files = DataFiles.of([data_file(name) for name in names])
    vectors = written(tmp_path, {file: BitMap64([1]) for file in files}, shares_files=True)
    (alone,) = written(tmp_path, {data_file("g"): BitMap64([1])})

    def moved(gone: int, replaced: int = 1, **how: bool) -> list[str]:
        """Where so many are not live any more once some of them are replaced."""
        removed, live = vectors[gone - replaced : gone], DeleteFiles.of([*vectors[gone - replaced :], alone])
        return [file.path for file in to_be_moved(removed, live, files, **how)[0]]

    assert moved(1) == names[1:]
    assert moved(8) == []
    assert moved(1, may_stay=True) == moved(6, may_stay=True) == []
    assert moved(7, may_stay=True) == names[7:]
    # Of nothing that is replaced now, what earlier commits have written together, dead vectors or not.
    assert moved(1, replaced=0) == moved(1, replaced=0, may_stay=True) == []
    assert moved(1, replaced=0, parts=True) == names[1:]
    assert moved(0, replaced=0, parts=True) == names, "somebody else replaces one of them later"


def test_vectors_of_files_that_others_wrote_never_stay_beside_replaced_ones(tmp_path: Path) -> None:
    """What is left in there could not be told from what others have left, once no vector may stay."""
    files = DataFiles.of([data_file(f"f{n}") for n in range(8)])
    vectors = written(tmp_path, {file: BitMap64([1]) for file in files}, by="spark", shares_files=True)
    assert len(to_be_moved(vectors[:1], DeleteFiles.of(vectors), files, may_stay=True)[0]) == 7
    assert len(to_be_moved([], DeleteFiles.of(vectors[1:]), files, parts=True)[0]) == 0


def test_what_one_plan_moves_is_bounded_but_for_what_it_touches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_files, "MOVES_AT_MOST", 6)
    groups = [[data_file(f"{group}{n}") for n in range(4)] for group in "abc"]
    vectors = [
        vector
        for files in groups
        for vector in written(tmp_path, dict.fromkeys(files, BitMap64([1])), shares_files=True)
    ]
    files = DataFiles.of([file for of_group in groups for file in of_group])

    def moved(removed: list[DeleteFile]) -> tuple[list[str], int]:
        chosen, later = to_be_moved(removed, DeleteFiles.of(vectors), files, parts=True)
        return [file.path[0] for file in chosen], later

    assert moved([]) == (["a"] * 4, 8)
    assert moved(vectors[-1:]) == (["a"] * 4 + ["c"] * 3, 4)


@given(st.text(max_size=200), st.sets(numbers, min_size=1, max_size=5), st.booleans())
def test_sizes_tell_whether_a_vector_is_alone_in_its_file(
    path: str, some: set[int], has_neighbour: bool
) -> None:
    puffin = PuffinWriter(BytesIO())
    vectors = [puffin.write(path + "x" * n, BitMap64(some)) for n in range(1 + has_neighbour)]
    size_bytes = puffin.finish()
    for one in vectors:
        told = has_others(size_bytes, one.content_size_bytes, one.referenced_data_file)
        assert told is has_neighbour


@pytest.mark.parametrize(("offset", "size"), [(-1, 40), (4, 0), (4, -1), (4, 10**12), (4, None), (None, 40)])
def test_a_range_that_can_not_be_blocks_its_own_data_file_and_nothing_is_read(
    tmp_path: Path, offset: int | None, size: int | None
) -> None:
    """Whatever a manifest says; it is asked for by other requests than those of its neighbours."""
    files = [data_file(f"f{n}") for n in range(3)]
    vectors = written(tmp_path, {file: BitMap64([1]) for file in files}, shares_files=True)
    vectors[1] = replace(vectors[1], content_offset=offset, content_size_bytes=size)
    storage = CountingStorage()
    with pytest.raises(UnreadableDeleteFileError, match="manifest says that the deletion vector") as caught:
        existing_deletes(storage, files[1:2], vectors)
    assert (caught.value.delete_file, storage.ranges) == (vectors[1], [])
    with pytest.raises(UnreadableDeleteFileError, match="manifest says that the deletion vector") as caught:
        existing_deletes(storage, files, vectors)
    assert caught.value.delete_file == vectors[1]
    assert len(existing_deletes(storage, [files[0], files[2]], vectors)) == 2


def test_a_file_that_is_missing_blocks_all_its_data_files_at_once(tmp_path: Path) -> None:
    files = [data_file(f"f{n}") for n in range(5)]
    vectors = written(tmp_path, {file: BitMap64([1]) for file in files[:4]}, shares_files=True)
    Path(vectors[0].path).unlink()
    storage = CountingStorage()
    task = deletes_task(tmp_path, {file: [2] for file in files}, vectors, 3, storage=storage)
    outcome = task.run(None)
    assert {one.data_file.path for one in outcome.blocked} == {"f0", "f1", "f2", "f3"}
    assert [one.referenced_data_file for one in outcome.added] == ["f4"]
    assert len(storage.ranges) == 2, "together, and the first one by itself"


def job(*, convert: Mapping[str, Any], expires: bool = True, elsewhere: bool = False) -> Job:
    assignment = Assignment.model_validate(
        {
            "job": {"id": "j", "kind": "convert", "dry_run": False, "parameters": {}},
            "attempt": 1,
            "lease_seconds": 30,
            "table": {
                "id": "t",
                "identifier": ["db", "t"],
                "branch": "main",
                "snapshots_expire_elsewhere": elsewhere,
            },
            "catalog": {"name": "c", "type": "sql", "properties": {}},
            "index": {"warehouse": "file:/nowhere"},
            "policy": {"convert": convert, "expire_snapshots": {"enabled": expires}},
        }
    )
    return Job(assignment, cast("Any", None), RecordingReporter())


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"expires": False}, "no job lets snapshots expire"),
        ({"elsewhere": True}, "somebody else lets snapshots of this table expire"),
        ({"convert": {"readers": ["trino-475", "duckdb-1.5.5"]}}, "duckdb-1.5.5 reads the table"),
    ],
)
def test_vectors_share_no_file_where_it_is_not_known_to_be_safe_and_the_job_says_why(
    how: dict[str, Any], why: str
) -> None:
    wanted = {"deletion_vector_files": "one_per_task"}
    of = job(**{**how, "convert": {**how.get("convert", {}), **wanted}})
    assert not shares_files(of)
    assert not shares_files(of)
    (told,) = of.decisions
    assert why in told


def test_vectors_share_a_file_where_the_policy_says_so_alone() -> None:
    assert shares_files(job(convert={"deletion_vector_files": "one_per_task"}))
    by_default = job(convert={"deletion_vector_files": "one_per_data_file"}, elsewhere=True)
    assert (shares_files(by_default), by_default.decisions) == (False, [])
