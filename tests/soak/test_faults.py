"""Histories find faults: each is put into the worker, and one of the first seeds contradicts the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from tests.soak.history import History
from tests.soak.planted import other_rows, take_null_for_its_placeholder
from tests.soak.seeds import run_seed
from tests.soak.world import World
from tests.thorough import first_always
from worker.deletes.existing import ExistingDeletes
from worker.deletes.merge import plan_deletes
from worker.lookup.index_lookup import GLOBAL, DeleteKeys
from worker.lookup.positions import union
from worker.query.snapshot import TableSnapshot
from worker.table.files import DataFile, DataFiles

pytestmark = pytest.mark.integration

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


@first_always("fault", list(FAULTS))
def test_a_fault_is_found(world: World, fault: str) -> None:
    """A seed shows rows that contradict the model, and only with the fault."""

    def conversions_alone(patch: pytest.MonkeyPatch) -> None:
        FAULTS[fault](patch)
        patch.setattr(History, "look_up", lambda *_: "")

    _find(world, conversions_alone)


@first_always("fault", list(LOOKUP_FAULTS))
def test_a_fault_of_lookups_is_found(world: World, fault: str) -> None:
    _find(world, LOOKUP_FAULTS[fault])


def _find(world: World, make: Fault) -> None:
    for seed in range(200):
        with pytest.MonkeyPatch.context() as patch:
            make(patch)
            failure = run_seed(world, seed)
        if failure and isinstance(failure.error.cause, AssertionError) and run_seed(world, seed) is None:
            return
    pytest.fail("no seed shows the fault")
