"""A process begins with its share of what takes long to start, and others take from its end what is not."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_collection_modifyitems

WHOLE = [("faults/test_a.py", "spark")] * 3
WORKER = [(f"worker/test_{name}.py", "spark") for name in "aaaabbb"]
BROWSER = [("browser/test_a.py", "browser")] * 2
REST = [(f"service/test_{name}.py", "database") for name in "abcdefghijkl"]


def _test(number: int, path: str, needed: str) -> Any:
    nodeid = f"tests/{path}::{number}"
    return SimpleNamespace(nodeid=nodeid, path=Path(path), fixturenames=["tmp_path", needed])


def _kinds(tests: list[pytest.Item]) -> list[str]:
    return [test.nodeid.split("/")[1] for test in tests]


@pytest.mark.parametrize(
    ("processes", "beginnings"),
    [
        (1, [[*["faults"] * 3, *["worker"] * 7, *["browser"] * 2]]),
        (2, [[*["faults"] * 3, *["worker"] * 3], [*["worker"] * 4, *["browser"] * 2]]),
        (4, [["faults"] * 3, ["worker"] * 4, ["worker"] * 3, ["browser"] * 2]),
        (5, [["faults"] * 3, ["worker"] * 4, ["worker"] * 3, ["browser"] * 2, []]),
    ],
)
def test_what_takes_long_to_start_begins_as_few_shares_as_can_be(
    processes: int, beginnings: list[list[str]]
) -> None:
    tests = [_test(number, *one) for number, one in enumerate([*BROWSER, *WHOLE, *REST, *WORKER])]
    ordered, left = [*tests], len(tests)
    process: Any = SimpleNamespace(workerinput={"workercount": processes})
    pytest_collection_modifyitems(process, ordered)
    assert sorted(test.nodeid for test in ordered) == sorted(test.nodeid for test in tests)
    for number, beginning in enumerate(beginnings):
        size = left // (processes - number)
        share, ordered = _kinds(ordered[:size]), ordered[size:]
        assert share == [*beginning, *["service"] * (size - len(beginning))]
        left -= size
