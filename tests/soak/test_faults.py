"""Histories find faults: each is put into the worker, and one of the first seeds contradicts the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from tests.soak.history import History
from tests.soak.planted import other_rows, take_null_for_its_placeholder
from tests.soak.seeds import REWRITINGS, TABLES, WRITES, Kind, run_seed
from tests.soak.world import World
from worker.deletes.existing import ExistingDeletes
from worker.deletes.merge import plan_deletes
from worker.lookup.index_lookup import GLOBAL, DeleteKeys
from worker.lookup.positions import union
from worker.query.snapshot import TableSnapshot
from worker.table.files import DataFile, DataFiles
from worker.writes.live_rows import KeysInTable
from worker.writes.rows import last_of_each_key

# They test what the histories find; the histories themselves are tried with every change.
pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

DeleteBatch = tuple[int, int, pa.RecordBatch]  # partition id, sequence number and keys
Fault = Callable[[pytest.MonkeyPatch], None]


def _drop_a_position(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("worker.deletes.stage.union", lambda found, file: union(found, file)[1:])


def _ignore_sequence_numbers(patch: pytest.MonkeyPatch) -> None:
    _change_keys(patch, lambda partition_id, number, keys: (partition_id, 2**40, keys))


def _ignore_scopes(patch: pytest.MonkeyPatch) -> None:
    _change_keys(patch, lambda partition_id, number, keys: (GLOBAL, number, keys))


def _change_keys(patch: pytest.MonkeyPatch, change: Callable[..., DeleteBatch]) -> None:
    of = DeleteKeys.of

    def changed(batches: Iterable[DeleteBatch], schema: pa.Schema) -> DeleteKeys:
        return of([change(*batch) for batch in batches], schema)

    patch.setattr(DeleteKeys, "of", changed)


def _forget_existing_deletes(patch: pytest.MonkeyPatch) -> None:
    def forgetful(
        new_positions: Any, existing: Mapping[DataFile, ExistingDeletes], *how: Any, moves: bool
    ) -> Any:
        known = {
            file: replace(one, positions=BitMap64(), file_scoped_positions=BitMap64())
            for file, one in existing.items()
        }
        return plan_deletes(new_positions, known, *how, moves=moves)

    patch.setattr("worker.deletes.stage.plan_deletes", forgetful)


def _overlook_files_of_the_same_path(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DataFiles, "with_paths", lambda files, _: files.select([]))


FAULTS: dict[str, Fault] = {
    "a position of each data file is dropped": _drop_a_position,
    "sequence numbers are ignored": _ignore_sequence_numbers,
    "scopes are ignored": _ignore_scopes,
    "null is its placeholder": take_null_for_its_placeholder,
    "existing deletes are not merged": _forget_existing_deletes,
    "a path is taken for one file": _overlook_files_of_the_same_path,
}


def _overlook_position_deletes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TableSnapshot, "skipped", lambda _, files: [None for _ in files])


def _show_other_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tests.soak.lookups.rows_at", other_rows)


# Whatever else lookups may overlook: tests/lookups/test_faults.py.
LOOKUP_FAULTS: dict[str, Fault] = {
    "position deletes are overlooked": _overlook_position_deletes,
    "rows of other places are shown": _show_other_rows,
}


def _stay_with_the_first_look(patch: pytest.MonkeyPatch) -> None:
    look = KeysInTable.live_rows
    found: dict[KeysInTable, Any] = {}

    def look_once(keys: KeysInTable, table: Any) -> Any:
        return found.setdefault(keys, look(keys, table))

    patch.setattr(KeysInTable, "live_rows", look_once)


def _overlook_what_a_dead_attempt_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("worker.jobs.own_commits.OwnCommit.of_earlier_attempt", lambda *_: None)


def _take_the_first_row_of_each_key(patch: pytest.MonkeyPatch) -> None:
    def first_of_each_key(keys: pa.RecordBatch) -> Any:
        backwards = keys.take(list(range(keys.num_rows))[::-1])
        return np.sort(keys.num_rows - 1 - last_of_each_key(backwards))

    patch.setattr("worker.writes.plan.last_of_each_key", first_of_each_key)


WRITE_FAULTS: dict[str, Fault] = {
    "what others commit meanwhile is not looked at": _stay_with_the_first_look,
    "what a dead attempt committed is overlooked": _overlook_what_a_dead_attempt_committed,
    "of repeated keys the first row counts": _take_the_first_row_of_each_key,
}


def _take_all_for_orphans(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("worker.jobs.orphan_removal._Removal._orphans", lambda _, old: list(old))


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_fault_is_found(world: World, fault: str) -> None:
    """A seed shows rows that contradict the model, and only with the fault."""

    def conversions_alone(patch: pytest.MonkeyPatch) -> None:
        FAULTS[fault](patch)
        patch.setattr(History, "look_up", lambda *_: "")

    find(world, conversions_alone)


@pytest.mark.parametrize("fault", list(LOOKUP_FAULTS))
def test_a_fault_of_lookups_is_found(world: World, fault: str) -> None:
    find(world, LOOKUP_FAULTS[fault])


@pytest.mark.parametrize("fault", list(WRITE_FAULTS))
def test_a_fault_of_writes_is_found(world: World, fault: str) -> None:
    def writes_alone(patch: pytest.MonkeyPatch) -> None:
        WRITE_FAULTS[fault](patch)
        patch.setattr(History, "look_up", lambda *_: "")

    find(world, writes_alone, WRITES)


def test_a_fault_of_maintenance_is_found(world: World) -> None:
    """By the files that are gone, whether or not the head shows it."""
    find(world, _take_all_for_orphans, REWRITINGS)


def find(world: Any, make: Fault, kind: Kind = TABLES) -> None:
    for seed in range(200):
        with pytest.MonkeyPatch.context() as patch:
            make(patch)
            failure = run_seed(world, seed, kind)
        is_contradiction = failure and isinstance(failure.error.cause, AssertionError)
        if is_contradiction and run_seed(world, seed, kind) is None:
            return
    pytest.fail("no seed shows the fault")
