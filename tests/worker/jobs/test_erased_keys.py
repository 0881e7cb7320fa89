"""How bounds and partitions in manifests tell the keys of an erasure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType

from worker.erasure.keys import ErasedKeys
from worker.keys.key_set import KeyColumn, KeySet
from worker.table.manifests import EntryValues


def erased(*keys: Sequence[str]) -> ErasedKeys:
    columns = [KeyColumn(at, f"c{at}", (at,), StringType(), pa.string()) for at, _ in enumerate(keys[0], 1)]
    key_set = KeySet(tuple(columns))
    arrays = [
        pa.array([0] * len(keys), pa.int32()),
        *(pa.array(values) for values in zip(*keys, strict=True)),
    ]
    return ErasedKeys(key_set, pa.RecordBatch.from_arrays(arrays, schema=key_set.schema))


def entry(
    bounds: Mapping[int, tuple[str, str]], *, is_removed: bool = False, partition: str = "[]"
) -> EntryValues:
    told = {field_id: (low.encode(), high.encode()) for field_id, (low, high) in bounds.items()}
    return EntryValues("file", is_removed, told, partition)


def test_bounds_of_a_live_file_are_no_key_of_several_columns() -> None:
    """A file with (a, us) and (c, eu) has the bounds of (c, us), which no row has."""
    keys = erased(("c", "us"))
    bounds = {1: ("a", "c"), 2: ("eu", "us")}
    assert not keys.in_entry(entry(bounds), UNPARTITIONED_PARTITION_SPEC)
    assert keys.in_entry(entry(bounds, is_removed=True), UNPARTITIONED_PARTITION_SPEC) == {0}
    fields = [PartitionField(at, 1000 + at, IdentityTransform(), f"p{at}") for at in (1, 2)]
    assert keys.in_entry(entry({}, partition='["c", "us"]'), PartitionSpec(*fields)) == {0}


@pytest.mark.parametrize(
    ("lower", "upper", "told"),
    [
        ("person-0", "z", {0}),
        ("a", "person-1", {0}),
        ("a", "perso\ue000", {1}),
        ("a", "person-000002", set()),
        ("a", "person-000001", {0}),
    ],
)
def test_bounds_of_a_removed_file_may_be_cut_off(lower: str, upper: str, told: set[int]) -> None:
    keys = erased(("person-000001",), ("perso\ud7ff-1",))
    assert keys.in_entry(entry({1: (lower, upper)}, is_removed=True), UNPARTITIONED_PARTITION_SPEC) == told
