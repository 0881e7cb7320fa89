"""Histories find faults: each is put into the worker, and one of the first seeds contradicts the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.metadata import TableMetadata
from pyroaring import BitMap64

from tests.soak.history import World
from tests.soak.seeds import run_seed
from worker.deletes import ExistingDeletes, plan_deletes
from worker.index import FileDictionary
from worker.lookup import GLOBAL, DeleteKeys
from worker.positions import union
from worker.read import NULL_MASK, KeyReader, KeySet, resolve_key_set

pytestmark = pytest.mark.integration
SEEDS = range(200)

DeleteBatch = tuple[int, int, pa.RecordBatch]  # partition id, sequence number and keys
Fault = Callable[[pytest.MonkeyPatch], None]


def _drop_a_position(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("worker.conversion.union", lambda found, file: union(found, file)[1:])


def _ignore_sequence_numbers(patch: pytest.MonkeyPatch) -> None:
    _change_keys(patch, lambda partition_id, number, keys: (partition_id, 2**40, keys))


def _ignore_scopes(patch: pytest.MonkeyPatch) -> None:
    _change_keys(patch, lambda partition_id, number, keys: (GLOBAL, number, keys))


def _change_keys(patch: pytest.MonkeyPatch, change: Callable[..., DeleteBatch]) -> None:
    of = DeleteKeys.of

    def changed(batches: Iterable[DeleteBatch], schema: pa.Schema) -> DeleteKeys:
        return of([change(*batch) for batch in batches], schema)

    patch.setattr(DeleteKeys, "of", changed)


def _take_null_for_its_placeholder(patch: pytest.MonkeyPatch) -> None:
    convert = KeyReader._to_key_batch

    def without_nulls(self: KeyReader, *arguments: Any) -> pa.RecordBatch:
        batch = convert(self, *arguments)
        zeros = pa.repeat(pa.scalar(0, pa.int32()), batch.num_rows)
        return batch.set_column(batch.schema.get_field_index(NULL_MASK), batch.schema.field(NULL_MASK), zeros)

    patch.setattr(KeyReader, "_to_key_batch", without_nulls)


def _forget_existing_deletes(patch: pytest.MonkeyPatch) -> None:
    def forgetful(new_positions: Any, existing: Mapping[str, ExistingDeletes], *how: Any) -> Any:
        known = {
            path: replace(one, positions=BitMap64(), file_scoped_positions=BitMap64())
            for path, one in existing.items()
        }
        return plan_deletes(new_positions, known, *how)

    patch.setattr("worker.conversion.plan_deletes", forgetful)


def _forget_initial_defaults(patch: pytest.MonkeyPatch) -> None:
    def without_defaults(metadata: TableMetadata, ids: Sequence[int]) -> KeySet:
        key_set = resolve_key_set(metadata, ids)
        return KeySet(tuple(replace(column, initial_default=None) for column in key_set.columns))

    patch.setattr("worker.conversion.resolve_key_set", without_defaults)


def _shift_index_addresses(patch: pytest.MonkeyPatch) -> None:
    ordinals = FileDictionary.ordinals
    patch.setattr(FileDictionary, "ordinals", lambda self, addresses: ordinals(self, addresses + 1))


FAULTS: dict[str, Fault] = {
    "a position of each data file is dropped": _drop_a_position,
    "sequence numbers are ignored": _ignore_sequence_numbers,
    "scopes are ignored": _ignore_scopes,
    "null is its placeholder": _take_null_for_its_placeholder,
    "existing deletes are not merged": _forget_existing_deletes,
    "initial defaults are null": _forget_initial_defaults,
    "index addresses are off by one": _shift_index_addresses,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found(world: World, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    failure = next((failure for seed in SEEDS if (failure := run_seed(world, seed))), None)
    assert failure is not None, "no seed shows the fault"
    assert isinstance(failure.error.cause, AssertionError), "the fault broke the job, and no row"
    monkeypatch.undo()
    assert run_seed(world, failure.seed) is None, "the seed fails without the fault too"
