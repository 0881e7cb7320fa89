"""What `make test` leaves to `make thorough` and `make exhaustive` is like what it tries itself."""

import ast
import re
from itertools import chain
from pathlib import Path

import pytest

from service.problems import PROBLEMS
from tests.faults.figures import DOCUMENT, places

ROOT = Path(__file__).parents[1]
LEFT = {"pytest.mark.thorough", "pytest.mark.exhaustive"}


def test_each_fault_and_each_danger_is_tried() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| ") and "`test_" in line]
    assert len(rows) > 70
    # Of one that is named with a parameter, another case may be the one that is tried.
    shown_by = {row: re.findall(r"`(test_\w+)`", row) for row in rows}
    files = {file for found in places(chain(*shown_by.values())).values() for file in found}
    tried = set().union(*(re.findall(r"def (test_\w+)", tried_in(file.read_text())) for file in files))
    assert [row for row, tests in shown_by.items() if not tried.intersection(tests)] == []


def test_each_code_and_each_problem_that_a_test_names_is_tried() -> None:
    sources = [path.read_text() for path in (ROOT / "worker").rglob("*.py")]
    codes = {code for source in sources for code in re.findall(r'(?:code = |Reason\(\s*)"(\w+)"', source)}
    assert len(codes) > 70
    known = {*codes, *PROBLEMS}
    tests = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    named, tried = (
        known.intersection(*[{one for text in texts for one in re.findall(r'"([\w-]+)"', text)}])
        for texts in (tests, map(tried_in, tests))
    )
    assert len(named) > 100
    assert named - tried == set()


def test_tests_are_told_apart_by_their_marks() -> None:
    tried = ["A = 1", "class TestB:", "    @first_always('x', [1, 2])", "    def test_b(self): 1"]
    left = ["@pytest.mark.thorough", "@first_always('x', [1, 2])", "def test_a(): 1"]
    of_class = ["@pytest.mark.exhaustive", "class TestA:", "    def test_a(self): 1"]
    source = "\n".join([*left, *tried, *of_class])
    assert [line for line in tried_in(source).split("\n") if line] == tried
    assert tried_in(f"pytestmark = [\n    pytest.mark.integration, pytest.mark.exhaustive\n]\n{source}") == ""


def test_what_is_exhaustive_is_not_of_make_test(request: pytest.FixtureRequest) -> None:
    request.node.add_marker("exhaustive")
    request.node.ihook.pytest_itemcollected(item=request.node)
    assert request.node.get_closest_marker("thorough")


def tried_in(source: str) -> str:
    """The source of tests without those that are left out with all of their cases."""
    if not any(mark in source for mark in LEFT):
        return source
    tree, lines = ast.parse(source), source.split("\n")
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            if LEFT.intersection(map(ast.unparse, ast.walk(node.value))):
                return ""
        elif LEFT.intersection(map(ast.unparse, getattr(node, "decorator_list", ()))):
            assert isinstance(node, ast.ClassDef | ast.FunctionDef)
            begin, end = node.decorator_list[0].lineno - 1, node.end_lineno or 0
            lines[begin:end] = [""] * (end - begin)
    return "\n".join(lines)
