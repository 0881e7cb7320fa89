"""Keys with more than one live row, in sorted runs of any shape, against a plain count."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg import types
from pyiceberg.types import LongType, PrimitiveType, StringType
from pyroaring import BitMap64

from worker.index.key_set_index import entries_schema
from worker.index.run_files import RunFile, write_run
from worker.io.sorting import sort_rows
from worker.io.storage import Storage
from worker.jobs.duplicate_rows import (
    REPORTED_PLACES,
    SHOWN_KEYS,
    SHOWN_PLACES,
    Found,
    RangeTask,
    SnapshotRows,
    SortTask,
    plan_ranges,
)
from worker.keys.key_set import KeyColumn, KeySet
from worker.keys.key_types import from_key_type, to_key_value, to_words
from worker.keys.read import key_batch
from worker.table.files import DataFile, DataFiles, PartitionKey

Key = tuple[int | None, str | None]
KEY_SET = KeySet(
    (
        KeyColumn(1, "id", (1,), LongType(), pa.int64()),
        KeyColumn(2, "name", (2,), StringType(), pa.string()),
    )
)
ROWS_OF_A_FILE = 7


@dataclass(frozen=True)
class Case:
    """rows: run, partition and key of each row, whose address is its place. deleted: such places."""

    rows: list[tuple[int, int, Key]]
    deleted: set[int]
    rows_at_most: int
    row_group_rows: int

    def runs(self, place: str) -> list[RunFile]:
        schema, written = entries_schema(KEY_SET), []
        for run in sorted({run for run, _, _ in self.rows}):
            chosen = [at for at, row in enumerate(self.rows) if row[0] == run]
            columns = zip(*(self.rows[at][2] for at in chosen), strict=True)
            arrays = [pa.array(c, k.key_type) for c, k in zip(columns, KEY_SET.columns, strict=True)]
            keys = key_batch(KEY_SET, arrays)
            partitions = pa.array([self.rows[at][1] for at in chosen], pa.int64())
            table = pa.Table.from_arrays([partitions, *keys.columns, pa.array(chosen)], schema=schema)
            written += write_run(Storage(), place, sort_rows(table), primary_key=schema.names)
        return written

    @property
    def snapshot_rows(self) -> SnapshotRows:
        """No index covers any of the data files."""
        counts = [ROWS_OF_A_FILE] * -(-len(self.rows) // ROWS_OF_A_FILE)
        files = [
            DataFile(f"file {at}", "parquet", PartitionKey(0, "[]"), count, 1, 1)
            for at, count in enumerate(counts)
        ]
        bases = np.arange(len(files), dtype=np.int64) * ROWS_OF_A_FILE
        data_files = DataFiles.of(files)
        return SnapshotRows(data_files, None, 0, np.arange(len(files)), bases, BitMap64(self.deleted))

    @property
    def expected(self) -> dict[Key, list[tuple[str, int]]]:
        found = defaultdict(list)
        for at, (_, _, key) in enumerate(self.rows):
            if at not in self.deleted:
                found[key].append((f"file {at // ROWS_OF_A_FILE}", at % ROWS_OF_A_FILE))
        return {key: places for key, places in found.items() if len(places) > 1}


keys = st.tuples(
    st.one_of(st.none(), st.integers(-3, 3)), st.one_of(st.none(), st.sampled_from(["", "a", "aé", "b"]))
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), keys), min_size=1, max_size=80))
    if draw(st.booleans()):  # so many of one key that no range is small enough
        rows += [(0, 0, rows[0][2])] * 60
    deleted = draw(st.sets(st.integers(0, len(rows) - 1)))
    return Case(rows, deleted, draw(st.integers(1, 30)), draw(st.integers(1, 9)))


@settings(deadline=None, max_examples=40)
@given(cases(), st.booleans())
def test_exactly_the_keys_with_more_than_one_live_row_are_found(case: Case, sorts_anew: bool) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        patch("worker.index.run_files.ROW_GROUP_ROWS", case.row_group_rows),
    ):
        place = Path(folder).as_uri()
        files = case.runs(place)
        if sorts_anew:
            tasks = [
                SortTask(Storage(), file, entries_schema(KEY_SET), place, case.rows_at_most, 10**9)
                for file in files
            ]
            files = [run for task in tasks for run in task.run(None)]
        plan = plan_ranges(Storage(), files, KEY_SET, case.rows_at_most, 10**9, 1)
        found = [
            RangeTask(
                Storage(),
                KEY_SET,
                at,
                key_range,
                sources,
                case.rows_at_most,
                10**9,
                f"{place}/report-{at}.parquet",
            ).run(case.snapshot_rows)
            for at, (key_range, sources) in enumerate(plan.ranges)
        ]
        check(
            case,
            found,
            [
                row
                for path in sorted(Path(folder).glob("report-*.parquet"))
                for row in pq.read_table(path).to_pylist()
            ],
        )


def test_many_partitions_with_the_same_keys_are_cut_into_ranges_once_they_are_sorted_anew(
    tmp_path: Path,
) -> None:
    rows: list[tuple[int, int, Key]] = [(0, at // 20, (at % 20, "a")) for at in range(400)]
    with patch("worker.index.run_files.ROW_GROUP_ROWS", 20):
        files = Case(rows, set(), 40, 20).runs(tmp_path.as_uri())
        plan = plan_ranges(Storage(), files, KEY_SET, 40, 10**9, 2)
        assert (len(plan.ranges), plan.scattered) == (1, tuple(files))
        schema = entries_schema(KEY_SET)
        again = SortTask(Storage(), files[0], schema, tmp_path.as_uri(), 400, 10**9).run(None)
        plan = plan_ranges(Storage(), again, KEY_SET, 40, 10**9, 2)
        assert len(plan.ranges) > 5
        assert max(sum(source.rows for source in sources) for _, sources in plan.ranges) <= 80


def check(case: Case, found: list[Found], reported: list[dict[str, Any]]) -> None:
    expected = case.expected
    assert sum(one.keys for one in found) == len(expected) == len(reported)
    assert sum(one.rows for one in found) == sum(map(len, expected.values()))
    for one in reported:
        places = expected[one["key"]["id"], one["key"]["name"]]
        assert one["live_rows"] == len(places)
        shown = [(example["data_file"], example["position"]) for example in one["examples"]]
        assert len(shown) == len(set(shown)) == min(len(places), REPORTED_PLACES)
        assert set(shown) <= set(places)
    for task in found:
        assert len(task.shown) == min(task.keys, SHOWN_KEYS)
        for key in task.shown:
            places = expected[key["key"]["id"], key["key"]["name"]]
            told = [(place["data_file"], place["position"]) for place in key["places"]]
            assert key["live_rows"] == len(places)
            assert len(told) == min(len(places), SHOWN_PLACES)
            assert set(told) <= set(places)


@pytest.mark.parametrize(
    ("kind", "value", "arrow", "words"),
    [
        (types.IntegerType(), 7, pa.int32(), 7),
        (types.LongType(), -(2**62), pa.int64(), -(2**62)),
        (types.BooleanType(), True, pa.bool_(), True),
        (types.StringType(), "é", pa.string(), "é"),
        (types.BinaryType(), b"\x00\xff", pa.binary(), "00ff"),
        (types.UUIDType(), UUID(int=5), pa.binary(), str(UUID(int=5))),
        (types.DecimalType(9, 2), Decimal("-1.50"), pa.decimal128(9, 2), "-1.50"),
        (types.DateType(), date(2024, 2, 29), pa.date32(), "2024-02-29"),
        (types.TimeType(), time(1, 2, 3, 4), pa.time64("us"), "01:02:03.000004"),
        (types.TimestampType(), datetime(1, 1, 1), pa.timestamp("us"), "0001-01-01T00:00:00.000000"),  # noqa: DTZ001
        (
            types.TimestamptzType(),
            datetime(9999, 12, 31, 23, tzinfo=UTC),
            pa.timestamp("us", "UTC"),
            "9999-12-31T23:00:00.000000+00:00",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, PrimitiveType) else "",
)
def test_a_reported_key_has_the_type_of_its_column(
    kind: PrimitiveType, value: Any, arrow: pa.DataType, words: Any
) -> None:
    types_of_keys: dict[type[PrimitiveType], pa.DataType] = {
        types.BooleanType: pa.bool_(),
        types.StringType: pa.string(),
        types.BinaryType: pa.binary(),
        types.UUIDType: pa.binary(),
        types.DecimalType: pa.decimal128(38, 2),
        types.DateType: pa.int32(),
    }
    column = KeyColumn(1, "k", (1,), kind, types_of_keys.get(type(kind), pa.int64()))
    kept = to_key_value(value, column)
    told = from_key_type(pa.array([kept], column.key_type), column)
    assert told.type == arrow
    assert told[0].as_py() == (value.bytes if isinstance(value, UUID) else value)
    assert to_words(kept, column) == words


def test_a_moment_of_any_year_has_words() -> None:
    column = KeyColumn(1, "k", (1,), types.TimestampType(), pa.int64())
    assert to_words(2**62, column) == "148108-07-06T14:00:27.387904"
