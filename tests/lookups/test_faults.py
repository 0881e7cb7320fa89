"""Histories find faults: each is put into the worker, and one of the usual seeds contradicts the model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from tests.lookups.seeds import run_seed
from tests.soak.planted import other_rows, take_null_for_its_placeholder
from tests.thorough import EXHAUSTIVE, first_always
from worker.index.key_set_index import KeySetIndex
from worker.io.sorting import Int64Array
from worker.keys.key_set import KeySet
from worker.lookup.index_lookup import GLOBAL, DeleteKeys, LiveRows
from worker.query.answers import Answers
from worker.query.errors import QuestionError
from worker.query.places import Coverage
from worker.query.snapshot import PendingKeys, TableSnapshot
from worker.table.files import DataFile

pytestmark = pytest.mark.integration

SEEDS = 200

Fault = Callable[[pytest.MonkeyPatch], None]
DeleteBatch = tuple[int, int, pa.RecordBatch]  # partition id, sequence number and keys


def _overlook_equality_deletes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingKeys, "newest_delete", lambda _, keys, __: np.zeros(keys.num_rows, np.int64))


def _overlook_position_deletes(patch: pytest.MonkeyPatch) -> None:
    _overlook_skipped(patch, lambda by_vector: not by_vector)


def _overlook_deletion_vectors(patch: pytest.MonkeyPatch) -> None:
    _overlook_skipped(patch, lambda by_vector: by_vector)


def _overlook_skipped(patch: pytest.MonkeyPatch, overlooks: Callable[[bool], bool]) -> None:
    skipped = TableSnapshot.skipped

    def less(self: TableSnapshot, files: Iterable[DataFile]) -> list[tuple[BitMap64, bool] | None]:
        return [None if one is None or overlooks(one[1]) else one for one in skipped(self, files)]

    patch.setattr(TableSnapshot, "skipped", less)


def _delete_what_is_as_old(patch: pytest.MonkeyPatch) -> None:
    newest_delete = PendingKeys.newest_delete

    def newer(self: PendingKeys, *arguments: Any) -> Int64Array:
        found = newest_delete(self, *arguments)
        return found + (found > 0)

    patch.setattr(PendingKeys, "newest_delete", newer)


def _overlook_global_deletes(patch: pytest.MonkeyPatch) -> None:
    of = DeleteKeys.of

    def scoped(batches: Iterable[DeleteBatch], schema: pa.Schema) -> DeleteKeys:
        return of([batch for batch in batches if batch[0] != GLOBAL], schema)

    patch.setattr(DeleteKeys, "of", scoped)


def _overlook_what_is_not_indexed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Coverage, "_scan", lambda *_: iter(()))


def _overlook_the_index(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Coverage, "_look_up", lambda *_: iter(()))


def _count_entries_without_a_file(patch: pytest.MonkeyPatch) -> None:
    """They are taken for rows of the file before them."""

    def owners(base_addresses: Int64Array, _: Int64Array, row_addresses: Int64Array) -> Int64Array:
        return np.searchsorted(base_addresses, row_addresses, side="right") - 1

    patch.setattr("worker.lookup.index_lookup.owners", owners)


def _overlook_files_of_the_same_path(patch: pytest.MonkeyPatch) -> None:
    def make(self: LiveRows, *arguments: Any) -> None:
        init(self, *arguments)
        self._copies = np.ones_like(self._copies)

    init = LiveRows.__init__
    patch.setattr(LiveRows, "__init__", make)


def _keep_an_older_snapshot(patch: pytest.MonkeyPatch) -> None:
    covered = Answers._covered

    def of_any_snapshot(
        self: Answers,
        _: tuple[Hashable, ...],
        table: TableSnapshot,
        key_set: KeySet,
        index: KeySetIndex | None,
    ) -> Coverage:
        return covered(self, (), table, key_set, index)

    patch.setattr(Answers, "_covered", of_any_snapshot)


def _keep_an_index_that_is_gone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Answers, "_forget_index", lambda *_: None)


def _show_other_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tests.lookups.asking.rows_at", other_rows)


FAULTS: dict[str, Fault] = {
    "equality deletes are overlooked": _overlook_equality_deletes,
    "position deletes are overlooked": _overlook_position_deletes,
    "deletion vectors are overlooked": _overlook_deletion_vectors,
    "a delete hits what is as old as itself": _delete_what_is_as_old,
    "global deletes are overlooked": _overlook_global_deletes,
    "what is not indexed is overlooked": _overlook_what_is_not_indexed,
    "the index is overlooked": _overlook_the_index,
    "entries without a file count": _count_entries_without_a_file,
    "a path is taken for one file": _overlook_files_of_the_same_path,
    "an older snapshot is kept": _keep_an_older_snapshot,
    "an index that is gone is kept": _keep_an_index_that_is_gone,
    "null is its placeholder": take_null_for_its_placeholder,
    "rows of other places are shown": _show_other_rows,
}


@first_always("fault", list(FAULTS), EXHAUSTIVE)
def test_a_fault_is_found(fault: str) -> None:
    """One of the first seeds fails, and only with the fault."""
    for seed in range(SEEDS):
        with pytest.MonkeyPatch.context() as patch:
            FAULTS[fault](patch)
            failure = run_seed(seed)
        is_found = failure is not None and isinstance(failure.error.cause, AssertionError | QuestionError)
        if is_found and run_seed(seed) is None:
            return
    pytest.fail("no seed shows the fault")
