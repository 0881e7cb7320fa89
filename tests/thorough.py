"""Which of many cases alike every change is tested with; the rest are left to `make thorough`.

Every rule, refusal, fault and route is tried with every change, by the cheapest test that tries it.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

C = TypeVar("C", bound=tuple[Any, ...])


def thorough_unless(always: Callable[[C], bool], cases: Sequence[C]) -> list[Any]:
    return [pytest.param(*case, marks=() if always(case) else (pytest.mark.thorough,)) for case in cases]


def by_turns(cases: Sequence[Any]) -> list[Any]:
    """Pairs of a format version and a case: every case with one of both versions, in turns."""
    return [
        pytest.param(version, case, marks=() if version == 2 + at % 2 else (pytest.mark.thorough,))
        for at, case in enumerate(cases)
        for version in (2, 3)
    ]


def first_always(name: str, values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parameters of which every change is tested with the first."""
    rest = [pytest.param(value, marks=pytest.mark.thorough) for value in values[1:]]
    return pytest.mark.parametrize(name, [values[0], *rest])


def quarter_thorough(name: str, values: Sequence[Any]) -> pytest.MarkDecorator:
    """Of random cases, the first is tried always, a quarter by `make thorough`, the rest on request."""
    quarter = max(3, len(values) // 4)
    marks = [(), *([pytest.mark.thorough] for _ in values[1:quarter])]
    marks += [[pytest.mark.thorough, pytest.mark.many] for _ in values[quarter:]]
    return pytest.mark.parametrize(
        name, [pytest.param(value, marks=of) for value, of in zip(values, marks, strict=True)]
    )


# For what is alike in both versions of the format but for how deletes are written. Which of the two is
# tested always alternates from test to test.
V2_FIRST = first_always("format_version", [2, 3])
V3_FIRST = first_always("format_version", [3, 2])
