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


# For what is alike in both versions of the format but for how deletes are written. Which of the two is
# tested always alternates from test to test.
V2_FIRST = first_always("format_version", [2, 3])
V3_FIRST = first_always("format_version", [3, 2])
