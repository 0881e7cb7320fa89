"""Index and scan find exactly the rows that a brute-force join finds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.types import BooleanType, LongType, PrimitiveType, StringType

from worker.index import run_files
from worker.index.build import build_tasks
from worker.index.commit import commit_index
from worker.index.dictionary import assign_row_addresses, row_addresses_needed, uncovered_files
from worker.index.footers import footer
from worker.index.key_set_index import KeySetIndex, open_index
from worker.index.run_files import ROW_GROUP_ROWS, RunFile
from worker.index.warehouse import IndexWarehouse
from worker.io.storage import Storage
from worker.keys.key_set import KeyColumn, KeySet
from worker.keys.read import KeyReader
from worker.lookup import index_lookup
from worker.lookup.index_lookup import (
    GLOBAL,
    DeleteKeys,
    LiveRows,
    Matches,
    ScanTask,
    lookup_tasks,
    planned_rows,
)
from worker.table.files import DataFile, DataFiles, PartitionKey

TYPES: dict[str, tuple[PrimitiveType, pa.DataType]] = {
    "long": (LongType(), pa.int64()),
    "string": (StringType(), pa.string()),
    "boolean": (BooleanType(), pa.bool_()),
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "long": st.integers(0, 12) | st.sampled_from([-(2**63), 2**63 - 1]),
    "string": st.sampled_from(["", "a", "ab", "é", "\x00", "z" * 40]),
    "boolean": st.booleans(),
}


def key_set_of(*types: str) -> KeySet:
    return KeySet(
        tuple(KeyColumn(i, f"c{i}", (i,), TYPES[t][0], TYPES[t][1]) for i, t in enumerate(types, start=1))
    )


def write_data_file(
    folder: Path,
    name: str,
    types: tuple[str, ...],
    rows: list[tuple[Any, ...]],
    partition: str,
    sequence: int,
) -> DataFile:
    fields = [
        pa.field(f"c{i}", TYPES[t][1], metadata={"PARQUET:field_id": str(i)})
        for i, t in enumerate(types, start=1)
    ]
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]
    path = folder / name
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), path)
    return DataFile(
        str(path),
        "parquet",
        PartitionKey(0, json.dumps([partition])),
        len(rows),
        path.stat().st_size,
        sequence,
    )


def test_an_empty_file_is_covered_and_shares_no_address(tmp_path: Path) -> None:
    files = [write_data_file(tmp_path, f"{i}.parquet", ("long",), [], "p", i) for i in range(3)]
    indexed = assign_row_addresses(files, 7, {})
    assert [f.base_address for f in indexed] == [7, 8, 9]
    assert row_addresses_needed(files) == 3


@st.composite
def tables(draw: st.DrawFn) -> tuple[tuple[str, ...], list[Any], list[Any]]:
    types = draw(st.sampled_from([("long",), ("string",), ("long", "string"), ("boolean", "long", "string")]))
    key = st.tuples(*[st.none() | VALUES[t] for t in types])
    partitions = st.sampled_from(["p", "q"])
    files = draw(
        st.lists(st.tuples(st.lists(key, max_size=20), partitions, st.integers(1, 5)), min_size=1, max_size=5)
    )
    deletes = draw(
        st.lists(st.tuples(st.lists(key, max_size=8), st.none() | partitions, st.integers(1, 6)), max_size=5)
    )
    return types, files, deletes


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(tables(), st.integers(0, 5), st.booleans(), st.sampled_from([2, 5, 8192]))
def test_index_and_scan_find_the_rows_of_a_brute_force_join(
    tmp_path_factory: pytest.TempPathFactory,
    table: tuple[Any, Any, Any],
    split: int,
    partitions_are_named_twice: bool,
    row_group_rows: int,
) -> None:
    with patch.object(run_files, "ROW_GROUP_ROWS", row_group_rows):
        _compare_with_a_brute_force_join(tmp_path_factory, table, split, partitions_are_named_twice)


def _compare_with_a_brute_force_join(
    tmp_path_factory: pytest.TempPathFactory,
    table: tuple[Any, Any, Any],
    split: int,
    partitions_are_named_twice: bool,
) -> None:
    types, file_rows, delete_rows = table
    folder = tmp_path_factory.mktemp("table")
    storage = Storage()
    key_set = key_set_of(*types)
    reader = KeyReader(storage, key_set, None, {})
    files = [
        write_data_file(folder, f"f{i}.parquet", types, rows, partition, sequence)
        for i, (rows, partition, sequence) in enumerate(file_rows)
    ]
    expected = {
        (ordinal, position)
        for ordinal, (rows, partition, sequence) in enumerate(file_rows)
        for position, row in enumerate(rows)
        for keys, scope, delete_sequence in delete_rows
        if row in keys and delete_sequence > sequence and scope in (None, partition)
    }

    warehouse = IndexWarehouse(f"file://{folder}/index", storage)
    index = open_index(warehouse, "t_table", key_set, create=True)
    assert index is not None
    for part in (files[:split], files[split:]):
        if part:
            # An attempt that had lost its job does not know of partitions that another has named meanwhile.
            known = {} if partitions_are_named_twice else index.dictionary.partitions()
            indexed = assign_row_addresses(part, index.end_address + 3, known)
            tasks = build_tasks(reader, reader.storage, index.entries_table.location, indexed, 2)
            runs = [run for task in tasks for run in task.run(None).runs]
            index = commit_index(index, runs, indexed)
    live_files, ordinals = DataFiles.of(files), np.arange(len(files))
    assert not uncovered_files(live_files, index.dictionary)

    partitions = {json.dumps([p]): i for p, i in _partition_ids(index).items()}
    partition_ids = np.array([partitions[f.partition.values][0] for f in files])
    scopes: dict[str | None, tuple[int, ...]] = {
        p: partitions.get(json.dumps([p]), (-2,)) for p in ("p", "q")
    }
    scopes[None] = (GLOBAL,)
    batches = [
        (scope_id, number, _key_batch(folder, reader, types, keys))
        for keys, scope, number in delete_rows
        if keys
        for scope_id in scopes[scope]
    ]
    deletes = DeleteKeys.of(batches, key_set.schema)
    scan = ScanTask(reader, live_files, ordinals, partition_ids).run(deletes)
    assert set(zip(scan.ordinals.tolist(), scan.positions.tolist(), strict=True)) == expected

    lookups = lookup_tasks(storage, index.entries.files, deletes, 2)
    live = LiveRows(index.dictionary, live_files, ordinals)
    matches = Matches.combined([live.of(lookup.run(deletes)) for lookup in lookups])
    assert set(zip(matches.ordinals.tolist(), matches.positions.tolist(), strict=True)) == expected


def _partition_ids(index: KeySetIndex) -> dict[str, tuple[int, ...]]:
    return {json.loads(key.values)[0]: ids for key, ids in index.dictionary.partitions().items()}


def _key_batch(folder: Path, reader: KeyReader, types: tuple[str, ...], keys: list[Any]) -> pa.RecordBatch:
    file = write_data_file(folder, "deletes.parquet", types, keys, "p", 1)
    return next(iter(reader.read_data_file(file)))


def _numbers(key_set: KeySet, numbers: Sequence[int]) -> pa.RecordBatch:
    columns = [pa.array([0] * len(numbers), pa.int32()), pa.array(numbers)]
    return pa.RecordBatch.from_arrays(columns, schema=key_set.schema)


def test_a_footer_is_read_once_for_all_jobs(tmp_path: Path) -> None:
    key_set = key_set_of("long")
    reader = KeyReader(Storage(), key_set, None, {})
    file = write_data_file(tmp_path, "a.parquet", ("long",), [(1,), (2,)], "p", 1)
    indexed = assign_row_addresses([file], 0, {})
    (task,) = build_tasks(reader, reader.storage, f"file://{tmp_path}", indexed, 1)
    (run,) = task.run(None).runs
    first, second = (footer(Storage({"a": "b"}), run, (pa.int64(),)) for _ in range(2))
    assert second is first
    assert footer(Storage({"a": "c"}), run, (pa.int64(),)) is not first


def test_later_key_columns_choose_the_row_groups_where_the_first_is_constant(tmp_path: Path) -> None:
    key_set = key_set_of("string", "long")
    reader = KeyReader(Storage(), key_set, None, {})
    rows = [(tenant, number) for tenant in ("a", "b", "c") for number in range(60_000)]
    file = write_data_file(tmp_path, "a.parquet", ("string", "long"), rows, "p", 1)
    (task,) = build_tasks(
        reader, reader.storage, f"file://{tmp_path}", assign_row_addresses([file], 0, {}), 1
    )
    (run,) = task.run(None).runs
    wanted = pa.RecordBatch.from_arrays(
        [pa.array([0], pa.int32()), pa.array(["b"]), pa.array([30_000])], schema=key_set.schema
    )
    deletes = DeleteKeys.of([(GLOBAL, 2, wanted)], key_set.schema)
    (lookup,) = lookup_tasks(Storage(), [run], deletes, 1)
    found = lookup.run(deletes)
    assert found.row_addresses.tolist() == [90_000]
    # That of the key, and the two where b begins and ends.
    assert (found.row_groups_read, found.row_groups_total) == (3, 22)


def test_a_lookup_plans_for_the_keys_that_each_file_of_the_index_may_hold(tmp_path: Path) -> None:
    """A sorted run in many files has each key in one of them: so few rows need no Spark."""
    key_set = key_set_of("long")
    runs: list[RunFile] = []
    for number in range(3):
        rows = [(key,) for key in range(number * 30_000, (number + 1) * 30_000)]
        file = write_data_file(tmp_path, f"{number}.parquet", ("long",), rows, "p", 1)
        reader = KeyReader(Storage(), key_set, None, {})
        indexed = assign_row_addresses([file], number * 30_000, {})
        (task,) = build_tasks(reader, reader.storage, f"file://{tmp_path}", indexed, 1)
        runs += task.run(None).runs
    deletes = DeleteKeys.of([(GLOBAL, 2, _numbers(key_set, [5, 6, 70_000]))], key_set.schema)

    lookups = lookup_tasks(Storage(), runs, deletes, 2)

    assert [lookup.planned_rows for lookup in lookups] == [2 * ROW_GROUP_ROWS, ROW_GROUP_ROWS]
    found = [lookup.run(deletes).row_addresses.tolist() for lookup in lookups]
    assert found == [[5, 6], [70_000]]


def test_keys_that_lie_close_together_are_planned_by_the_row_groups_that_they_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_set = key_set_of("long")
    runs: list[RunFile] = []
    for number in range(3):  # each over all keys
        rows = [(key,) for key in range(number, 120_000, 3)]
        file = write_data_file(tmp_path, f"{number}.parquet", ("long",), rows, "p", 1)
        reader = KeyReader(Storage(), key_set, None, {})
        indexed = assign_row_addresses([file], number * 40_000, {})
        (task,) = build_tasks(reader, reader.storage, f"file://{tmp_path}", indexed, 1)
        runs += task.run(None).runs
    deletes = DeleteKeys.of([(GLOBAL, 2, _numbers(key_set, range(60_000, 63_000)))], key_set.schema)
    lookups = lookup_tasks(Storage(), runs, deletes, 2)

    assert planned_rows(Storage(), lookups, deletes) == 120_000, "a few more rows are not worth a look"
    monkeypatch.setattr(index_lookup, "_MANY_ROWS", 120_000)
    assert planned_rows(Storage(), lookups, deletes) == 3 * ROW_GROUP_ROWS
    found = [lookup.run(deletes) for lookup in lookups]
    assert [one.rows_read for one in found] == [ROW_GROUP_ROWS] * 3
    assert sum(len(one.row_addresses) for one in found) == 3_000


def test_footers_that_are_not_kept_are_not_read_for_a_plan() -> None:
    key_set = key_set_of("long")
    deletes = DeleteKeys.of([(GLOBAL, 2, _numbers(key_set, range(1_000_000)))], key_set.schema)
    file = RunFile("file:/run", "run", 1, 2_000_000_000, (), (), (0, 0, 0), (0, 0, 999_999))

    lookups = lookup_tasks(Storage(), [file], deletes, 2)

    assert planned_rows(Storage(), lookups, deletes) == file.rows


def test_a_large_file_of_the_index_is_shared_evenly_by_all_threads() -> None:
    key_set = key_set_of("long")
    deletes = DeleteKeys.of([(GLOBAL, 2, _numbers(key_set, range(10_000)))], key_set.schema)

    def planned(rows: int, parallelism: int) -> list[int]:
        file = RunFile("file:/run", "run", 1, rows, (), (), (0, 0, 0), (0, 0, 9_999))
        return [task.planned_rows for task in lookup_tasks(Storage(), [file], deletes, parallelism)]

    for parallelism in (1, 2, 4):
        assert planned(40_000_000, parallelism) == 4 * parallelism * [10_000_000 // parallelism]
        assert planned(400_000, parallelism) == [400_000], "a task more costs more than it takes over"


def test_entries_of_a_dead_attempt_never_get_an_owner(tmp_path: Path) -> None:
    """Even if the control plane has forgotten which addresses it granted."""
    storage, key_set = Storage(), key_set_of("long")
    warehouse = IndexWarehouse(f"file://{tmp_path}/index", storage)
    index = open_index(warehouse, "t_table", key_set, create=True)
    assert index is not None
    file = write_data_file(tmp_path, "a.parquet", ("long",), [(1,), (2,)], "p", 1)
    reader = KeyReader(storage, key_set, None, {})
    (task,) = build_tasks(
        reader, reader.storage, index.entries_table.location, assign_row_addresses([file], 40, {}), 1
    )
    index.entries_table.commit_files(index.entries, task.run(None).runs)

    index = open_index(warehouse, "t_table", key_set)
    assert index is not None
    assert (len(index.dictionary), index.dictionary.end_address, index.end_address) == (0, 0, 42)
