"""A run of the tests tells slow from stuck."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.progress import Progress

PROJECT = Path(__file__).parents[1]
PLUGIN = """
import tests.progress

tests.progress.SECONDS = 0.1

def pytest_configure(config):
    config.pluginmanager.register(tests.progress.Progress(config))
"""
# It ends once the run has told of it.
SLOW = """
import time
from pathlib import Path

def test_slow():
    told = "0 of 2 tests are done, 0 failed; running: test_it.py::test_slow for"
    while told not in Path("told").read_text():
        time.sleep(0.01)

def test_short():
    pass
"""
STUCK = """
import threading

def test_stuck():
    threading.Event().wait()
"""


def run(folder: Path, tests: str, *options: str) -> str:
    (folder / "conftest.py").write_text(PLUGIN)
    (folder / "test_it.py").write_text(tests)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {PROJECT}\n")
    with (folder / "told").open("w") as told:
        subprocess.run([sys.executable, "-m", "pytest", *options], cwd=folder, stdout=told, stderr=told)
    return (folder / "told").read_text()


def test_before_anything_is_collected_no_test_is_counted(pytestconfig: pytest.Config) -> None:
    progress = Progress(pytestconfig)
    assert progress.line(time.monotonic()) == "After 0:00 min the tests are being collected"


@pytest.mark.integration
@pytest.mark.parametrize("workers", [0, 1])
def test_a_test_that_runs_is_named_before_it_ends(workers: int, tmp_path: Path) -> None:
    assert "2 passed" in run(tmp_path, SLOW, "--numprocesses", str(workers))


@pytest.mark.integration
def test_a_stuck_test_fails_with_its_stacks(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    assert pytestconfig.getini("faulthandler_timeout") > 0
    assert pytestconfig.getini("faulthandler_exit_on_timeout") is True
    options = ["-o", "faulthandler_timeout=1", "-o", "faulthandler_exit_on_timeout=true"]
    told = run(tmp_path, STUCK, "--numprocesses", "1", *options)
    assert "in test_stuck" in told
    assert "crashed while running 'test_it.py::test_stuck'" in told
    assert "1 failed in" in told
