"""Which data files are small, and which have many deleted rows: as Iceberg's planner counts them."""

from dataclasses import replace
from typing import Any

import pytest

from worker.table.files import (
    DataFile,
    DataFiles,
    DeleteFile,
    DeleteFiles,
    FileContent,
    PartitionKey,
    SnapshotFiles,
)
from worker.table.small_files import (
    FileSizeError,
    Rewritable,
    rewritable_deletes,
    rewritable_files,
    target_file_bytes,
)

EU, US, FORMER, FORMER_TOO = (
    PartitionKey(1, '["eu"]'),
    PartitionKey(1, '["us"]'),
    PartitionKey(0, '["a"]'),
    PartitionKey(0, '["b"]'),
)


def data_file(path: str, partition: PartitionKey, size_bytes: int, rows: int = 10) -> DataFile:
    return DataFile(path, "parquet", partition, rows, size_bytes, 1)


def deleted(path: str | None, rows: int) -> DeleteFile:
    return DeleteFile(FileContent.POSITION_DELETES, "d", "puffin", EU, rows, 1, 2, referenced_data_file=path)


def rewritable(files: SnapshotFiles, target: int = 100, **how: Any) -> Rewritable:
    how = {"min_input_files": 2, "size_ratio": ANY, "delete_ratio_threshold": 0.3, "max_bytes": 10**9, **how}
    return rewritable_files(files, 1, target, **how)


ANY = 10**9
FILES = [
    *(data_file(f"eu-{n}", EU, 74) for n in range(3)),
    data_file("large", EU, 75),
    *(data_file(f"us-{n}", US, 1) for n in range(2)),
    data_file("former", FORMER, 1),
    data_file("former-too", FORMER_TOO, 1),
]


@pytest.mark.parametrize(
    ("min_input_files", "small"),
    [
        (1, 7),
        (2, 7),
        (3, 3),
        (4, 3),
    ],
)
def test_small_files_count_where_a_partition_has_enough_of_them(min_input_files: int, small: int) -> None:
    """Or, together, more than a whole file has. Those of a former spec are one partition, as for Iceberg's
    planner."""
    files = SnapshotFiles(DataFiles.of(FILES), DeleteFiles.of(()), frozenset())
    assert rewritable(files, min_input_files=min_input_files).numbers == (small, 0)


@pytest.mark.parametrize(
    ("target", "min_input_files", "max_bytes", "small"),
    [
        (1_000, 3, 221, 0),
        (1_000, 3, 222, 3),
        (100, 3, 147, 0),
        (100, 3, 148, 2),
        (100, 2, 1, 0),
        (100, 2, 2, 4),
        (100, 2, 148, 6),
    ],
)
def test_small_files_count_where_one_job_may_take_enough_of_them_together(
    target: int, min_input_files: int, max_bytes: int, small: int
) -> None:
    """Of a partition with three or four files of 74 bytes, and two with two of 1. Fewer are enough if they
    have more than a whole file has."""
    files = SnapshotFiles(DataFiles.of(FILES), DeleteFiles.of(()), frozenset())
    assert (
        rewritable(files, target, min_input_files=min_input_files, max_bytes=max_bytes).numbers.small == small
    )


def test_files_with_many_deleted_rows_count_as_far_as_deletes_name_one_file() -> None:
    deletes = (
        deleted("large", 2),
        deleted("large", 1),
        deleted("us-1", 2),
        deleted(None, 9),
        deleted("x", 9),
    )
    files = SnapshotFiles(DataFiles.of(FILES), DeleteFiles.of(deletes), frozenset())
    assert rewritable(files, min_input_files=5).numbers == (3, 1)
    assert rewritable(SnapshotFiles(DataFiles.of(()), DeleteFiles.of(()), frozenset())).numbers == (0, 0)


def test_files_stay_that_are_large_beside_what_would_be_written_anew_with_them() -> None:
    """Unless one that is as large has many deleted rows, and so goes in any case."""
    sizes = {"a": 40, "b": 9, "c": 3, "d": 3, "e": 2, "f": 70}
    of_eu = DataFiles.of([data_file(name, EU, size) for name, size in sizes.items()])
    files = SnapshotFiles(of_eu, DeleteFiles.of(()), frozenset())

    def chosen(**how: Any) -> tuple[str, ...]:
        found = rewritable(how.pop("files", files), **how)
        return tuple("".join(one.path for one in of_eu.where(mask)) for mask in (found.small, found.left))

    assert chosen(size_ratio=1) == ("cde", "abf")
    assert chosen(size_ratio=1.2) == ("bcde", "af")
    assert chosen(size_ratio=2.5) == ("abcdef", "")
    assert chosen(size_ratio=1, min_input_files=4) == ("", "abcdef")
    with_deleted = replace(files, delete_files=DeleteFiles.of([deleted("a", 3)]))
    assert chosen(size_ratio=1, files=with_deleted) == ("bcde", "f")
    assert chosen(size_ratio=1.3, files=with_deleted) == ("bcdef", "")


def test_small_deletes_count_but_for_the_only_ones_of_their_data_files() -> None:
    """Whose data file is gone counts; vectors do not, nor what is alone in its partition."""

    def small(path: str | None, partition: PartitionKey = EU, size_bytes: int = 74) -> DeleteFile:
        return DeleteFile(FileContent.POSITION_DELETES, "d", "parquet", partition, 1, size_bytes, 2, (), path)

    one_each = (small("eu-0"), small("eu-1"), small("eu-2"))
    for others, found in (
        ((), 0),
        ((small("eu-0"),), 2),
        ((small(None), small("gone")), 2),
        ((small(None, US), deleted("eu-1", 3), small(None, size_bytes=75)), 0),
    ):
        files = SnapshotFiles(DataFiles.of(FILES), DeleteFiles.of((*one_each, *others)), frozenset())
        assert rewritable_deletes(files, 100, 3) == found


@pytest.mark.parametrize(
    "size", ["many", "1000", "-1", "0", "9" * 30, "\u0663", "0" * 19 + "9" * 20, "9" * 5_000]
)
def test_a_size_that_can_not_be_meant_is_refused(size: str) -> None:
    with pytest.raises(FileSizeError, match=r"write\.target-file-size-bytes"):
        target_file_bytes({"write.target-file-size-bytes": size})


def test_a_size_of_the_table_holds() -> None:
    assert target_file_bytes({}) == 512 * 2**20
    assert target_file_bytes({"write.target-file-size-bytes": "1048576"}) == 2**20
