"""Keys are cut into ranges that lie beside each other and are of similar size."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.io.storage import Storage
from worker.keys.key_set import KeySet
from worker.keys.read import KeyReader
from worker.lookup.shuffle import KeyBatch, ReadTask, cuts_between, ranges_of
from worker.table.files import DeleteFile, FileContent, PartitionKey

_SCHEMA = pa.schema(
    [
        pa.field("null_mask", pa.int32(), nullable=False),
        pa.field("key_1", pa.string(), nullable=False),
        pa.field("key_2", pa.int64(), nullable=False),
    ]
)
_KEYS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["", "a", "é"]), st.integers(-3, 3)), max_size=30
)


def batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * 3
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


@given(st.lists(st.tuples(st.integers(-1, 2), _KEYS), max_size=4), st.integers(2, 6))
def test_a_key_lies_between_its_cuts(files: list[tuple[int, list[tuple[Any, ...]]]], ranges: int) -> None:
    batches: list[KeyBatch] = [(partition_id, 1, batch(rows)) for partition_id, rows in files]
    cuts = [tuple(row.values()) for row in cuts_between(batches, ranges, _SCHEMA).to_pylist()]
    assert cuts == sorted(cuts, key=_as_sorted)
    assert len(cuts) < ranges
    for partition_id, _, keys in batches:
        found = ranges_of(partition_id, keys, cuts_between(batches, ranges, _SCHEMA))
        for row, place in zip(keys.to_pylist(), found.tolist(), strict=True):
            key = _as_sorted((partition_id, *row.values()))
            assert all(_as_sorted(cut) <= key for cut in cuts[:place])
            assert all(key < _as_sorted(cut) for cut in cuts[place:])


def _as_sorted(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.encode() if isinstance(value, str) else value for value in key)


def test_ranges_are_of_similar_size() -> None:
    numbers = np.random.default_rng(3).permutation(10_000)
    keys = batch([(0, "a", int(number)) for number in numbers])
    cuts = cuts_between([(-1, 1, keys.slice(0, 1_000))], 4, _SCHEMA)
    sizes = np.bincount(ranges_of(-1, keys, cuts), minlength=4)
    assert len(sizes) == 4
    assert sizes.min() > 2_000


def test_small_sorted_files_are_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [
        DeleteFile(FileContent.EQUALITY_DELETES, f"f{i}", "parquet", PartitionKey(0, "[]"), 100, 1, 1)
        for i in range(2_000)
    ]

    def keys_of(_: KeyReader, file: DeleteFile) -> list[pa.RecordBatch]:
        first = int(file.path[1:])
        return [batch([(0, "a", first + 2_000 * i) for i in range(100)])]

    monkeypatch.setattr(KeyReader, "read_delete_file", keys_of)
    reader = KeyReader(Storage(), KeySet(()), None, {})
    tasks = [ReadTask(reader, file, every=195) for file in files]
    cuts = cuts_between([one for task in tasks for one in task.run(None).in_partitions((-1,))], 4, _SCHEMA)
    everything = batch([(0, "a", number) for number in range(200_000)])
    sizes = np.bincount(ranges_of(-1, everything, cuts), minlength=4)
    assert sizes.min() > 40_000
