"""What a write comes to follows from the rows that were sent and the live rows of their keys."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from worker.writes.changes import Changes, deletion, insertion, upsert, upsert_if_newer


def listed(changes: Changes) -> tuple[list[int], list[int], list[int]]:
    """Rows that are added, that are left out, and live rows that go."""
    return changes.added.tolist(), changes.left_out.tolist(), changes.deleted.tolist()


LIVE = np.array([2, 0, 2])  # the keys of three live rows


def test_a_deletion_takes_every_live_row_of_its_keys() -> None:
    assert listed(deletion(LIVE)) == ([], [], [0, 1, 2])


def test_an_upsert_adds_all_rows_and_takes_every_live_row_of_their_keys() -> None:
    assert listed(upsert(4, LIVE)) == ([0, 1, 2, 3], [], [0, 1, 2])


def test_an_insertion_leaves_out_keys_that_exist() -> None:
    assert listed(insertion(4, LIVE)) == ([1, 3], [0, 2], [])


@pytest.mark.parametrize(
    ("new", "old", "is_written"),
    [
        (5, [4], True),
        (5, [5], False),
        (5, [6], False),
        (5, [4, 5], False),  # a duplicate in the table
        (5, [None], True),
        (None, [4], False),
        (None, [None], False),
        (None, [], True),
        (5, [], True),
    ],
)
def test_a_row_is_written_if_it_is_newer_than_each_live_row_of_its_key(
    new: Any, old: list[Any], is_written: bool
) -> None:
    changes = upsert_if_newer(
        pa.array([new], pa.int64()), np.zeros(len(old), np.int64), pa.array(old, pa.int64())
    )
    everything = list(range(len(old)))
    assert listed(changes) == (([0], [], everything) if is_written else ([], [0], []))
