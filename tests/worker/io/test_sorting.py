"""The sort by codes gives what Arrow's comparison sort gives."""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.io.sorting import sort_order, take

_LETTERS = st.sampled_from(["", "a", "b", "aé", "\x00", "a\x00", "Z" * 70, "Z" * 69 + "a"])
_COLUMNS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
    pa.int32(): st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3),
    pa.string(): st.text(max_size=12) | _LETTERS,
    pa.binary(): st.binary(max_size=12) | _LETTERS.map(str.encode),
    pa.bool_(): st.booleans(),
    pa.decimal128(38, 2): st.decimals(-(10**35), 10**35, places=2) | st.integers(-3, 3).map(Decimal),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    types = draw(st.lists(st.sampled_from(list(_COLUMNS)), min_size=1, max_size=3))
    rows = draw(st.integers(0, 40))
    columns = [pa.array(draw(st.lists(_COLUMNS[t], min_size=rows, max_size=rows)), t) for t in types]
    table = pa.table(columns, names=[f"c{i}" for i in range(len(types))])
    skipped = draw(st.integers(0, 3))  # arrays with an offset of their own
    return table.slice(skipped)


def _by_arrow(table: pa.Table) -> list[int]:
    order: list[int] = pc.sort_indices(
        table, [(name, "ascending") for name in table.column_names]
    ).to_pylist()
    return order


@given(tables())
def test_sorts_like_arrow_and_stably(table: pa.Table) -> None:
    order = sort_order([column.combine_chunks() for column in table.columns])
    assert order.tolist() == _by_arrow(table)
    assert take(table, order).equals(table.take(pa.array(order)).combine_chunks())


@pytest.mark.parametrize("low", [-(2**62), 0, 2**61])
def test_numbers_too_wide_for_the_code(low: int) -> None:
    """More bits than fit beside the row number: neighbours share codes, and are compared in full."""
    generator = np.random.default_rng(low % 97)
    numbers = pa.array(low + generator.integers(0, 2**61, 50_000) // 3 * generator.integers(1, 3, 50_000))
    numbers = pa.concat_arrays([numbers, pc.add(numbers, 1), numbers])
    table = pa.table([numbers, pa.array(np.arange(len(numbers)) % 7)], names=["c0", "c1"])
    assert sort_order([column.combine_chunks() for column in table.columns]).tolist() == _by_arrow(table)


def test_takes_strings_of_one_length_from_a_slice() -> None:
    table = pa.table({"a": ["xx", "bb", "aa", "cc"]}).slice(1)
    assert take(table, np.array([1, 0, 2])).to_pydict() == {"a": ["aa", "bb", "cc"]}
