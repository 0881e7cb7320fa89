"""Structs of Thrift's compact protocol: what is written is read, and what is none is told, within bounds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.io import thrift
from worker.io.thrift import Struct, TooManyValuesError, decode, decode_counted, encode

_NUMBERS = st.integers(-(2**63), 2**63 - 1)
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    thrift.TRUE: st.just(True),
    thrift.FALSE: st.just(False),
    thrift.I16: st.integers(-(2**15), 2**15 - 1),
    thrift.I32: st.integers(-(2**31), 2**31 - 1),
    thrift.I64: _NUMBERS,
    thrift.DOUBLE: st.binary(min_size=8, max_size=8),
    thrift.BINARY: st.binary(max_size=200),
}
_BYTES = st.integers(0, 255)  # as which booleans and bytes are held in lists


def _typed(values: dict[int, st.SearchStrategy[Any]]) -> st.SearchStrategy[tuple[int, Any]]:
    return st.one_of([st.tuples(st.just(kind), value) for kind, value in values.items()])


def _lists(values: dict[int, st.SearchStrategy[Any]]) -> st.SearchStrategy[tuple[int, list[Any]]]:
    return st.one_of(
        [st.tuples(st.just(kind), st.lists(value, max_size=20)) for kind, value in values.items()]
    )


def _around(structs: st.SearchStrategy[Struct]) -> st.SearchStrategy[Struct]:
    listed = _lists(
        _SCALARS | {thrift.TRUE: _BYTES, thrift.FALSE: _BYTES, thrift.BYTE: _BYTES, thrift.STRUCT: structs}
    )
    kinds = _SCALARS | {thrift.BYTE: _BYTES, thrift.LIST: listed, thrift.SET: listed, thrift.STRUCT: structs}
    return st.dictionaries(st.integers(-(2**15), 2**15 - 1), _typed(kinds), max_size=6)


STRUCTS = st.recursive(st.just(Struct()), _around, max_leaves=4)


@given(STRUCTS, st.binary(max_size=4), st.binary(max_size=4))
@settings(max_examples=100, deadline=None)
def test_what_is_written_is_read(struct: Struct, before: bytes, behind: bytes) -> None:
    written = encode(struct)
    found, end = decode(before + written + behind, len(before))
    assert (found, end) == (struct, len(before) + len(written))


@given(STRUCTS)
@settings(max_examples=30, deadline=None)
def test_what_ends_too_early_is_told_at_each_byte(struct: Struct) -> None:
    written = encode(struct)
    for length in range(len(written)):
        with pytest.raises(ValueError, match="ends before its end"):
            decode(written[:length])


@given(st.binary(max_size=100))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_struct_or_told_to_be_none(content: bytes) -> None:
    try:
        _, end = decode(content)
    except ValueError:
        return
    assert 0 < end <= len(content)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\x1c" * 18 + b"\0" * 19, "too deep"),
        (b"\x19\x19" + b"\x19" * 17 + b"\x05" + b"\0", "too deep"),
        (b"\x15" + b"\xff" * 10 + b"\0", "too long"),
        (b"\x1b\0\0", "type 11"),
        (b"\x19\x1e\0\0", "type 14"),
        (b"\x18\xff\xff\xff\xff\x0f\0", "ends before its end"),
    ],
    ids=["structs", "lists", "number", "map", "elements", "bytes"],
)
def test_what_is_beyond_a_bound_is_told(content: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        decode(content)


@pytest.mark.parametrize(
    "struct",
    [
        dict.fromkeys(range(4), (thrift.TRUE, True)),
        {1: (thrift.LIST, (thrift.STRUCT, [{}, {}, {}]))},
        {1: (thrift.LIST, (thrift.STRUCT, [{1: (thrift.I32, 1)}])), 2: (thrift.I64, 2)},
    ],
    ids=["fields", "elements", "fields of elements"],
)
def test_all_values_count(monkeypatch: pytest.MonkeyPatch, struct: Struct) -> None:
    content = encode(struct)
    monkeypatch.setattr(thrift, "VALUES", 4)
    assert decode_counted(content) == (struct, len(content), 4)
    monkeypatch.setattr(thrift, "VALUES", 3)
    with pytest.raises(TooManyValuesError):
        decode(content)


def test_a_list_that_claims_too_much_is_not_begun() -> None:
    with pytest.raises(TooManyValuesError):
        decode(b"\x19\xf5\xff\xff\xff\xff\x0f")
