"""What is kept is bounded in bytes, is made once, and is no error."""

import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.io import cache
from worker.io.cache import Cache

BOUND = 100_000
NAMES = st.sampled_from("abcdefgh")


@given(st.lists(st.tuples(NAMES, st.integers(0, BOUND + 1), st.sampled_from(["put", "find", "forget"]))))
def test_the_most_recent_values_that_fit_are_kept(calls: list[tuple[str, int, str]]) -> None:
    values, model = Cache(BOUND), OrderedDict[str, int]()
    for name, size, call in calls:
        if call == "find":
            assert values.find(name) == model.get(name)
            if name in model:
                model.move_to_end(name)
            continue
        model.pop(name, None)
        if call == "forget":
            values.forget(name)
            continue
        values.put(name, size, size)
        if size + cache._ENTRY_BYTES <= BOUND:
            model[name] = size
        while sum(model.values()) + len(model) * cache._ENTRY_BYTES > BOUND:
            model.popitem(last=False)
        assert values.size_bytes == sum(model.values()) + len(model) * cache._ENTRY_BYTES <= BOUND
    assert {name: values.find(name) for name in "abcdefgh"} == {name: model.get(name) for name in "abcdefgh"}


def test_what_many_ask_for_at_once_is_made_once() -> None:
    values, made, together = Cache(BOUND), [], threading.Barrier(8)

    def make() -> str:
        made.append(threading.get_ident())
        return "value"

    def ask(_: int) -> str:
        together.wait()
        return values.get("name", make, len)

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(ask, range(8))) == {"value"}
    assert len(made) == 1
    assert not values._making


def test_an_error_is_told_and_not_kept() -> None:
    values = Cache(BOUND)

    def fail() -> str:
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        values.get("name", fail, len)
    assert values.get("name", lambda: "value", len) == "value"
    assert not values._making


def test_a_value_that_does_not_fit_is_told_all_the_same() -> None:
    values = Cache(BOUND)
    assert values.get("name", lambda: "x" * BOUND, len) == "x" * BOUND
    assert (values.find("name"), values.size_bytes) == (None, 0)
