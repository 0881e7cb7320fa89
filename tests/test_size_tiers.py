"""Which small files of a partition are written anew together."""

import math
from typing import Any

from stores.size_tiers import files_taken


def taken(*sizes: float, **how: Any) -> int:
    how = {"size_ratio": 1, "min_files": 2, "target_bytes": 1000, "max_bytes": 10**6, **how}
    return files_taken(((size, 1) for size in sizes), **how)


def test_the_largest_is_no_larger_than_all_others_together_by_a_factor() -> None:
    assert taken() == taken(5) == taken(1, 2, 4, 8) == 0
    assert taken(1, 1) == taken(1, 1, 3) == 2
    assert taken(1, 3, 3, 7, 15) == 4
    assert taken(1, 2, 4, 8, size_ratio=2) == 4


def test_they_are_enough_or_have_more_than_a_whole_file() -> None:
    assert taken(5, 5, 5, min_files=3) == 3
    assert taken(5, 5, min_files=3) == 0
    assert taken(600, 600, min_files=3) == 2


def test_what_goes_in_any_case_takes_the_smaller_ones_along() -> None:
    assert taken(1, 40, 90, 240, others=(100, 1), min_files=9) == 3
    assert taken(140, others=(100, 1)) == 0


def test_no_more_bytes_than_one_job_may_take() -> None:
    assert taken(5, 5, 5, 5, max_bytes=16) == 3
    assert taken(5, 5, max_bytes=9) == 0


def test_many_that_are_alike_are_taken_as_if_one_by_one_and_in_each_partition() -> None:
    def number(sizes: list[tuple[float, int]], size_ratio: float = 1) -> int:
        return files_taken(
            sizes, size_ratio=size_ratio, min_files=2, target_bytes=10**9, max_bytes=10**12, partitions=4
        )

    sizes: list[tuple[float, int]] = [(1, 400), (50, 4), (500, 4)]
    assert number(sizes) == 404
    assert number(sizes, size_ratio=4) == 408
    assert number([(1, 4)]) == 0


def test_a_byte_is_written_as_often_as_the_logarithm_of_a_partitions_size() -> None:
    files, written, arrived = list[float](), 0.0, 4_000
    for _ in range(arrived):
        files = sorted([*files, 1.0])
        if number := taken(*files, min_files=5, target_bytes=10**9):
            together = sum(files[:number])
            files, written = [*files[number:], together], written + together
    assert len(files) < 2 * math.log2(arrived)
    assert written / arrived < math.log2(arrived)
