"""Which runs are merged: few runs, little rewriting, and files of one level that never overlap."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.types import StringType

from tests.patience import PATIENCE_SECONDS
from tests.slow_store import SlowStore
from worker.index import compaction
from worker.index.build import RUN_ROWS
from worker.index.compaction import (
    DEAD_RATIO,
    RUNS_KEPT,
    TASK_ROWS,
    CompactionTask,
    KeyRange,
    LiveRowAddresses,
    Merge,
    choose_merge,
    choose_merge_of_new,
)
from worker.index.key_set_index import entries_schema
from worker.index.run_files import TOP_LEVEL, RunFile, write_run
from worker.io.sorting import sort_rows
from worker.io.storage import Storage
from worker.keys.key_set import KeyColumn, KeySet

_names = count()
TRIGGER = 16  # sorted runs at which the standard policy starts a compaction


def run_file(rows: int, low: float = 0, high: float = 1_000, level: int = 0) -> RunFile:
    name = f"file-{next(_names)}"
    return RunFile(name, name, rows, rows, (low,), (high,), (low,), (high,), level)


def merged(files: list[RunFile], merge: Merge) -> list[RunFile]:
    """What is live after a merge, whose output is spread evenly over the keys of its input."""
    gone = {file.file_name for file in merge.files}
    kept = [file for file in files if file.file_name not in gone]
    if merge.level == 0:
        return [*kept, run_file(merge.rows, 0, 1_000)]
    parts = max(1, -(-merge.rows // RUN_ROWS))
    low = min(file.min_key[0] for file in merge.files)
    step = (max(file.max_key[0] for file in merge.files) - low) / parts
    cuts = [low + step * part for part in range(parts + 1)]
    rows = merge.rows // parts
    return kept + [run_file(rows, start, end - 1e-6, merge.level) for start, end in pairwise(cuts)]


def sorted_runs(files: list[RunFile]) -> int:
    return len({file.level or file.file_name for file in files})


@pytest.mark.parametrize(
    "commit_rows",
    [500, 20_000, *(pytest.param(rows, marks=pytest.mark.exhaustive) for rows in (100_000, 1_000_000))],
)
def test_a_month_of_commits_a_minute_keeps_runs_few_and_rewrites_little(commit_rows: int) -> None:
    files: list[RunFile] = []
    written = 0
    for _ in range(30 * 24 * 60):
        files.append(run_file(commit_rows))
        written += commit_rows
        if sorted_runs(files) < TRIGGER:
            continue
        merge = choose_merge(files, dead_ratio=0)
        assert merge is not None
        files = merged(files, merge)
        written += merge.rows
        assert sorted_runs(files) <= RUNS_KEPT
    assert written / (30 * 24 * 60 * commit_rows) <= 10


def test_a_month_of_rewritten_data_files_leaves_little_garbage_in_the_index() -> None:
    """The table keeps its size: as many rows as a commit adds are rewritten, and die in the oldest run."""
    size, commit_rows = 6_000_000, 20_000
    files = [run_file(size, level=TOP_LEVEL)]
    alive = {files[0].file_name: size}
    indexed = written = 0
    most_runs, most_storage = 0, 0.0
    for _ in range(30 * 24 * 60):
        for rows in (commit_rows, commit_rows):  # what is new, and what is rewritten
            files.append(run_file(rows))
            alive[files[-1].file_name] = rows
            indexed += rows
            written += rows
        dying = 2 * commit_rows
        for file in files:
            died = min(dying, alive[file.file_name])
            alive[file.file_name] -= died
            dying -= died
        live = sum(alive.values())
        most_runs = max(most_runs, sorted_runs(files))
        dead = 1 - live / sum(file.rows for file in files)
        if sorted_runs(files) < TRIGGER and dead < 0.5:
            continue
        merge = choose_merge(files, dead)
        assert merge is not None
        gone = {file.file_name for file in merge.files}
        files = [file for file in files if file.file_name not in gone]
        kept = sum(rows for name, rows in alive.items() if name in gone)
        alive = {name: rows for name, rows in alive.items() if name not in gone}
        if kept:
            files.append(run_file(kept, level=merge.level))
            alive[files[-1].file_name] = kept
            written += kept
        if merge.level == TOP_LEVEL:
            most_storage = max(most_storage, sum(file.rows for file in files) / live)
    assert most_runs <= TRIGGER + 1
    assert most_storage <= 1.5
    assert written / indexed <= 10


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3 * RUN_ROWS), st.integers(0, 900), st.booleans()), max_size=30))
def test_files_of_one_level_never_overlap(commits: list[tuple[int, int, bool]]) -> None:
    files: list[RunFile] = []
    for rows, low, many_are_dead in commits:
        files.append(run_file(rows, low, low + 100))
        merge = choose_merge(files, DEAD_RATIO if many_are_dead else 0.0)
        if merge is None:
            continue
        files = merged(files, merge)
        for level in range(1, TOP_LEVEL + 1):
            ordered = sorted((file for file in files if file.level == level), key=lambda file: file.min_key)
            assert all(before.max_key < after.min_key for before, after in pairwise(ordered))


def test_files_of_the_top_run_that_new_keys_do_not_touch_stay() -> None:
    top = [run_file(RUN_ROWS, start, start + 9, TOP_LEVEL) for start in range(0, 100, 10)]
    new = [run_file(5 * RUN_ROWS, 95, 200) for _ in range(RUNS_KEPT + 1)]
    merge = choose_merge([*top, *new], dead_ratio=0)
    assert merge is not None
    assert (set(merge.files), merge.level) == ({top[-1], *new}, TOP_LEVEL)


def test_little_is_merged_at_once_and_much_only_when_it_is_worth_it() -> None:
    small = [run_file(10), run_file(20)]
    assert choose_merge(small, 0) == Merge(tuple(small), TOP_LEVEL)
    assert choose_merge(small[:1], 0) is None
    assert choose_merge(small[:1], 0.1) == Merge(tuple(small[:1]), TOP_LEVEL)
    large = [run_file(3 * TASK_ROWS, level=TOP_LEVEL), run_file(TASK_ROWS)]
    assert choose_merge(large, 0.2) is None
    assert choose_merge(large, compaction.DEAD_RATIO) == Merge(tuple(large), TOP_LEVEL)
    # As a first load leaves it, and as it is when it has doubled since.
    loaded = [run_file(TASK_ROWS), run_file(TASK_ROWS)]
    assert choose_merge(loaded, 0) == Merge(tuple(loaded), TOP_LEVEL)
    assert choose_merge([*large, run_file(TASK_ROWS)], 0) is None
    assert choose_merge([*large, *loaded], 0) == Merge((*large, *loaded), TOP_LEVEL)
    assert choose_merge([], 0) is None


def test_a_large_load_adds_one_run() -> None:
    new = [run_file(TASK_ROWS), run_file(TASK_ROWS)]
    assert choose_merge_of_new([], new) == Merge(tuple(new), TOP_LEVEL)
    top = [run_file(9 * TASK_ROWS, level=TOP_LEVEL)]
    assert choose_merge_of_new(top, new) == Merge(tuple(new), TOP_LEVEL - 1)
    assert choose_merge_of_new(top, new[:1]) is None
    assert choose_merge_of_new(top, [run_file(10), run_file(10)]) is None


def entries_of(keys: list[str]) -> pa.Table:
    schema = entries_schema(KeySet((KeyColumn(1, "url", (1,), StringType(), pa.string()),)))
    zeros = np.zeros(len(keys), np.int64)
    columns = [zeros, zeros.astype(np.int32), pa.array(keys), np.arange(len(keys))]
    return sort_rows(pa.table(columns, schema=schema))


def test_long_keys_with_long_prefixes_are_merged_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the file they take next to nothing."""
    rows = entries_of([f"https://example.org/{'x' * 500}/{i:08d}" for i in range(100_000)])
    (run,) = write_run(Storage(), str(tmp_path), rows, primary_key=rows.schema.names)
    assert run.size_bytes < rows.nbytes / 50
    parts: list[int] = []
    monkeypatch.setattr(compaction, "TASK_BYTES", rows.nbytes // 4)

    def measured(table: pa.Table) -> pa.Table:
        parts.append(table.nbytes)
        return sort_rows(table)

    monkeypatch.setattr(compaction, "sort_rows", measured)
    task = CompactionTask(Storage(), str(tmp_path), rows.schema, (run,), KeyRange(None, None), 0)
    (merged,) = task.run(LiveRowAddresses(np.array([0]), np.array([90_000])))
    assert len(parts) >= 4
    assert max(parts) <= rows.nbytes // 3
    kept = pq.read_table(merged.location, columns=rows.schema.names)
    assert kept.equals(rows.slice(0, 90_000).combine_chunks())
    assert (merged.min_key, merged.max_key, merged.rows) == (run.min_key, _key(kept, -1), 90_000)


def test_runs_in_a_store_are_read_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    all_of_them, real = threading.Barrier(3), CompactionTask._read

    def read(*asked: Any) -> pa.Table:
        all_of_them.wait(PATIENCE_SECONDS)
        return real(*asked)

    (tmp_path / "lake").mkdir()
    with SlowStore(tmp_path, 0).served() as store:
        storage, place = Storage(store.properties), "s3://lake/index"
        rows = [entries_of([f"{i:03d}-{run}" for i in range(100)]) for run in range(3)]
        names = rows[0].schema.names
        runs = tuple(run for one in rows for run in write_run(storage, place, one, primary_key=names))
        monkeypatch.setattr(CompactionTask, "_read", read)
        task = CompactionTask(storage, place, rows[0].schema, runs, KeyRange(None, None), 0)
        (merged,) = task.run(LiveRowAddresses(np.array([0]), np.array([100])))
        present = set((tmp_path / "lake").rglob("*.parquet"))
        lost = replace(task, files=(*runs, replace(runs[0], location=f"{place}/lost")))
        monkeypatch.setattr(CompactionTask, "_read", real)
        with pytest.raises(FileNotFoundError, match="lost"):
            lost.run(LiveRowAddresses(np.array([0]), np.array([100])))
        assert set((tmp_path / "lake").rglob("*.parquet")) == present
    kept = pq.read_table(tmp_path / merged.location.removeprefix("s3://"), columns=names)
    assert kept.equals(sort_rows(pa.concat_tables(rows)).combine_chunks())


def _key(rows: pa.Table, row: int) -> tuple[object, ...]:
    return tuple(column[row].as_py() for column in rows.columns)
