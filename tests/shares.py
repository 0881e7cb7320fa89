"""Which process runs which tests, as far as that is settled beforehand.

With `--dist=worksteal` each process gets an equal share of the tests, in their order, and takes from the end
of another's when it has done its own. So a share begins with what needs something that takes long to start, a
JVM or a browser, and ends with what needs neither: no process starts anew what another one has.
"""

from collections.abc import Sequence
from itertools import chain, islice

import pytest


def in_shares(tests: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """All of them, one share after the other."""
    groups: dict[str, list[pytest.Item]] = {name: [] for name in ("whole", "worker", "browser", "rest")}
    for test in tests:
        groups[_group_of(test)].append(test)
    beginnings = [groups["whole"], *_halves(groups["worker"]), groups["browser"]]
    rest, left, ordered = iter(groups["rest"]), len(tests), list[pytest.Item]()
    for number in range(processes):
        share = list(chain(*beginnings[number::processes]))
        size = left // (processes - number)  # as xdist divides them
        share += islice(rest, max(size - len(share), 0))
        left -= len(share)
        ordered += share
    return [*ordered, *rest]


def _group_of(test: pytest.Item) -> str:
    needed = getattr(test, "fixturenames", ())
    if "spark" in needed:
        return "worker" if "/worker/" in test.nodeid else "whole"
    return "browser" if "browser" in needed else "rest"


def _halves(tests: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """A module is on one side: its tests may share what takes long to make."""
    middle = len(tests) // 2
    while 0 < middle < len(tests) and tests[middle].path == tests[middle - 1].path:
        middle += 1
    return tests[:middle], tests[middle:]
