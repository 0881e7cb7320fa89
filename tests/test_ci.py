""".ci/run: few tests that fail are run again alone; what fails twice, and all else that fails, fails it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / ".ci" / "run"
# Instead of `make`: the first call prints what the test says and fails, the second ends as the test says.
MAKE = """#!/bin/sh
echo "$@" >>calls.txt
if [ -e was_called ]; then exit "$SECOND"; fi
touch was_called
cat said.txt
exit "$FIRST"
"""
FAILED = "FAILED tests/test_a.py::test_b - assert False\n"


def run(place: Path, said: str, first: int = 2, second: int = 0) -> tuple[int, str, list[str]]:
    """Its exit code, what it prints, and the calls of make."""
    (place / ".ci").mkdir()
    shutil.copy(RUN, place / ".ci")
    (place / "said.txt").write_text(said)
    (place / "make").write_text(MAKE)
    (place / "make").chmod(0o755)
    environment = {"PATH": f"{place}:{os.environ['PATH']}", "FIRST": str(first), "SECOND": str(second)}
    done = subprocess.run(
        [place / ".ci" / "run"], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, (place / "calls.txt").read_text().splitlines()


def test_a_run_that_passes_is_the_only_one(tmp_path: Path) -> None:
    assert run(tmp_path, "== 5 passed in 1.00s ==\n", first=0) == (0, "== 5 passed in 1.00s ==\n", ["test"])


def test_few_tests_that_failed_are_run_again_alone_and_told(tmp_path: Path) -> None:
    code, said, calls = run(tmp_path, f"{FAILED}== 1 failed, 5 passed in 1.00s (0:13:24) ==\n")
    assert code == 0
    assert said.endswith(FAILED)
    assert "UNSTEADY" in said
    assert calls == ["test", "test ARGS=--last-failed --last-failed-no-failures none --numprocesses 0"]


def test_what_fails_twice_fails(tmp_path: Path) -> None:
    code, said, calls = run(tmp_path, f"{FAILED}== 1 failed, 5 passed in 1.00s ==\n", second=2)
    assert (code != 0, "UNSTEADY" in said, len(calls)) == (True, False, 2)


@pytest.mark.parametrize(
    "said",
    [
        "Found 1 error.\n",
        "== 4 failed, 5 passed in 1.00s ==\n",
        "== 1 failed, 5 passed, 1 error in 1.00s ==\n",
        "!! Interrupted: stopping after 1 failures !!\n== 1 failed in 1.00s ==\n",
    ],
)
def test_all_else_fails_at_once(tmp_path: Path, said: str) -> None:
    code, _, calls = run(tmp_path, said)
    assert (code, calls) == (1, ["test"])
