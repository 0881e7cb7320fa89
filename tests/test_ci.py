""".ci/run: few tests that fail are run again alone; what fails twice, and all else that fails, fails it."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / ".ci" / "run"
# Instead of `make`: each call prints and ends as the test says.
MAKE = """#!/bin/sh
echo "$@" >>calls.txt
number=$(wc -l <calls.txt)
cat "$number.txt"
exit "$(cat "$number.code")"
"""
PASSED = "== 5 passed in 1.00s ==\n"
AGAIN = "ARGS=--last-failed --last-failed-no-failures none --numprocesses 0"


def failed(name: str = "test_b") -> str:
    return f"FAILED tests/test_a.py::{name} - assert False\n"


def ended(*names: str) -> str:
    return "".join(map(failed, names)) + f"== {len(names)} failed, 5 passed in 1.00s (0:13:24) ==\n"


def run(place: Path, *calls: str | tuple[str, int]) -> tuple[int, str, Sequence[str]]:
    """Its exit code, what it prints, and the calls of make; `calls` are what these say, and how they end."""
    (place / ".ci").mkdir()
    shutil.copy(RUN, place / ".ci")
    for number, call in enumerate(calls, 1):
        said, code = (call, 0) if isinstance(call, str) else call
        (place / f"{number}.txt").write_text(said)
        (place / f"{number}.code").write_text(str(code))
    (place / "make").write_text(MAKE)
    (place / "make").chmod(0o755)
    environment = {"PATH": f"{place}:{os.environ['PATH']}"}
    done = subprocess.run(
        [place / ".ci" / "run"], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, (place / "calls.txt").read_text().splitlines()


def test_what_is_like_the_tests_of_every_change_is_run_after_them(tmp_path: Path) -> None:
    assert run(tmp_path, PASSED, "== 7 passed in 1.00s ==\n") == (
        0,
        f"{PASSED}== 7 passed in 1.00s ==\n",
        ["test", "thorough"],
    )


def test_few_tests_that_failed_are_run_again_alone_and_told(tmp_path: Path) -> None:
    code, said, calls = run(tmp_path, (ended("test_b"), 2), PASSED, (ended("test_c", "test_d"), 2), PASSED)
    assert code == 0
    assert said.partition("UNSTEADY")[2].partition("\n")[2] == "".join(
        map(failed, ("test_b", "test_c", "test_d"))
    )
    assert calls == ["test", f"test {AGAIN}", "thorough", f"thorough {AGAIN}"]


def test_a_test_that_could_not_be_cleared_away_is_run_again(tmp_path: Path) -> None:
    error = "ERROR tests/test_a.py::test_b - closed\n"
    broken = f"{failed()}{error}== 1 failed, 5 passed, 1 error in 1.00s ==\n"
    code, said, calls = run(
        tmp_path, (broken, 2), PASSED, (f"{error}== 5 passed, 1 error in 1.00s ==\n", 2), PASSED
    )
    assert (code, calls) == (0, ["test", f"test {AGAIN}", "thorough", f"thorough {AGAIN}"])
    assert said.partition("UNSTEADY")[2].partition("\n")[2] == failed() + error + error


@pytest.mark.parametrize("before", [(), (PASSED,)], ids=["test", "thorough"])
def test_what_fails_twice_fails(tmp_path: Path, before: tuple[str, ...]) -> None:
    code, said, calls = run(tmp_path, *before, (ended("test_b"), 2), (ended("test_b"), 2))
    assert (code != 0, "UNSTEADY" in said, len(calls)) == (True, False, len(before) + 2)


@pytest.mark.parametrize(
    "said",
    [
        "Found 1 error.\n",
        PASSED,
        ended(*"abcd"),
        "".join(f"ERROR tests/test_a.py::test_{x}\n" for x in "abcd") + "== 5 passed, 4 errors in 1.00s ==\n",
        "!! Interrupted: stopping after 1 failures !!\n== 1 failed in 1.00s ==\n",
    ],
)
@pytest.mark.parametrize("before", [(), (PASSED,)], ids=["test", "thorough"])
def test_all_else_fails_at_once(tmp_path: Path, before: tuple[str, ...], said: str) -> None:
    code, _, calls = run(tmp_path, *before, (said, 2))
    assert (code, calls) == (1, ["test", "thorough"][: len(before) + 1])
