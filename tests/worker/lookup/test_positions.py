"""Positions come in batches of files that are full, and no larger than they have to be."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from worker.lookup.index_lookup import Matches
from worker.lookup.positions import Positions, in_batches
from worker.table.files import DataFile, DataFiles, PartitionKey


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3))), st.integers(1, 3), st.integers(1, 6)
)
def test_batches_are_full_and_bounded_but_for_the_files_of_a_path(
    drawn: list[tuple[str, int]], files_at_most: int, rows_at_most: int
) -> None:
    drawn.sort()
    files = [
        DataFile(path, "parquet", PartitionKey(0, "[]"), 3, 1, number)
        for number, (path, _) in enumerate(drawn)
    ]
    ordinals = np.repeat(np.arange(len(files)), np.array([rows for _, rows in drawn], np.int64))
    found = Positions(DataFiles.of(files))
    found.add(Matches(ordinals, np.arange(len(ordinals))))

    for number, file in enumerate(files):
        assert found.of(file).tolist() == np.flatnonzero(ordinals == number).tolist()

    def fits(batch: list[DataFile]) -> bool:
        return len(batch) <= files_at_most and sum(map(found.rows_of, batch)) <= rows_at_most

    batches = list(in_batches(files, [found], files_at_most, rows_at_most))
    assert [file for batch in batches for file in batch] == files
    for batch in batches:
        paths = [file.path for file in batch]
        first_of_last_path = batch[: paths.index(paths[-1]) + 1]
        assert fits(first_of_last_path) or len(first_of_last_path) == 1
    for batch, following in pairwise(batches):
        assert batch[-1].path != following[0].path
        assert not fits([*batch, following[0]])
