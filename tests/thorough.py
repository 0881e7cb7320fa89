"""Which of many cases alike `make test` tries, which `make thorough`, and which `make exhaustive`.

Every rule, refusal, fault and route is tried by `make test`, with the cheapest test that tries it. What is
like it is `thorough`, and CI tries it next: other formats, the other database, combinations. What needs more
than `make test` has installed, or repeats faults of real processes, is `exhaustive`.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

C = TypeVar("C", bound=tuple[Any, ...])
THOROUGH, EXHAUSTIVE = pytest.mark.thorough, pytest.mark.exhaustive


def thorough_unless(
    always: Callable[[C], bool], cases: Sequence[C], rest: pytest.MarkDecorator = THOROUGH
) -> list[Any]:
    assert any(map(always, cases)), "one at least is tried always"
    return [pytest.param(*case, marks=() if always(case) else rest) for case in cases]


def exhaustive_unless(always: Callable[[C], bool], cases: Sequence[C]) -> list[Any]:
    return thorough_unless(always, cases, EXHAUSTIVE)


def by_turns(cases: Sequence[Any]) -> list[Any]:
    """Pairs of a format version and a case: every case with one of both versions, in turns."""
    return [
        pytest.param(version, case, marks=() if version == 2 + at % 2 else THOROUGH)
        for at, case in enumerate(cases)
        for version in (2, 3)
    ]


def first_always(
    names: str | tuple[str, ...], values: Sequence[Any], rest: pytest.MarkDecorator = THOROUGH, **how: Any
) -> pytest.MarkDecorator:
    """Parameters of which `make test` tries the first."""
    others = ((value,) if isinstance(names, str) else value for value in values[1:])
    left = (pytest.param(*each, marks=rest) for each in others)
    return pytest.mark.parametrize(names, [values[0], *left], **how)


def of_many(name: str, values: Sequence[Any]) -> pytest.MarkDecorator:
    """Random cases, which combine what others try one by one: `make thorough` tries the first."""
    rest = (pytest.param(value, marks=EXHAUSTIVE) for value in values[1:])
    return pytest.mark.parametrize(name, [pytest.param(values[0], marks=THOROUGH), *rest])


# For what is alike in both versions of the format but for how deletes are written. Which of the two
# `make test` tries alternates from test to test.
V2_FIRST = first_always("format_version", [2, 3])
V3_FIRST = first_always("format_version", [3, 2])
