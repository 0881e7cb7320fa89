"""Which of many cases alike `make test` tries, which `make thorough`, and which `make exhaustive`.

Every rule, refusal, fault and route is tried by `make test`, with the cheapest test that tries it. What is like it
is `thorough`, and CI tries it after that: other formats and versions, the other database, combinations. What needs
more than `make test` has installed, or waits for real processes as another test does, is `exhaustive`.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

C = TypeVar("C", bound=tuple[Any, ...])
THOROUGH, EXHAUSTIVE = pytest.mark.thorough, pytest.mark.exhaustive


def thorough_unless(
    always: Callable[[C], bool], cases: Sequence[C], rest: pytest.MarkDecorator = THOROUGH
) -> list[Any]:
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
    name: str, values: Sequence[Any], rest: pytest.MarkDecorator = THOROUGH
) -> pytest.MarkDecorator:
    """Parameters of which `make test` tries the first."""
    return pytest.mark.parametrize(
        name, [values[0], *(pytest.param(value, marks=rest) for value in values[1:])]
    )


def of_many(name: str, values: Sequence[Any]) -> pytest.MarkDecorator:
    """Of random cases, `make test` tries the first, `make thorough` the second, `make exhaustive` the rest."""
    rest = (pytest.param(value, marks=EXHAUSTIVE) for value in values[2:])
    return pytest.mark.parametrize(name, [values[0], pytest.param(values[1], marks=THOROUGH), *rest])


# For what is alike in both versions of the format but for how deletes are written. Which of the two
# `make test` tries alternates from test to test.
V2_FIRST = first_always("format_version", [2, 3])
V3_FIRST = first_always("format_version", [3, 2])
