"""A run of the tests tells slow from stuck."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.progress import STUCK_SECONDS, Progress

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
HANGS_AT_ITS_END = """
import threading
import time
from pathlib import Path

def pytest_runtest_logreport(report):
    if report.when == "teardown" and hasattr(report, "node"):  # where it has come from its process
        while not Path("hangs").exists():
            time.sleep(0.01)
        tests.progress.STUCK_SECONDS = 0.1

def pytest_sessionfinish(session):
    if hasattr(session.config, "workerinput"):
        wait_at_the_end()

def wait_at_the_end():
    Path("hangs").touch()
    threading.Event().wait()
"""
# The process has done other tests before, and has more to do.
DIES = """
import os
import pytest

@pytest.mark.parametrize("number", range(20))
def test_it(number):
    if number == 5:
        os._exit(1)
"""


def run(folder: Path, tests: str, *options: str, plugin: str = PLUGIN) -> str:
    (folder / "conftest.py").write_text(plugin)
    (folder / "test_it.py").write_text(tests)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {PROJECT}\n")
    with (folder / "told").open("w") as told:
        # Other plugins take seconds to load, in each process.
        command = [sys.executable, "-m", "pytest", "--disable-plugin-autoload", "-p", "xdist", *options]
        subprocess.run(command, cwd=folder, stdout=told, stderr=told)
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
    assert 0 < pytestconfig.getini("faulthandler_timeout") < STUCK_SECONDS
    assert pytestconfig.getini("faulthandler_exit_on_timeout") is True
    options = ["-o", "faulthandler_timeout=1", "-o", "faulthandler_exit_on_timeout=true"]
    told = run(tmp_path, STUCK, "--numprocesses", "1", *options)
    assert "in test_stuck" in told
    assert "crashed while running 'test_it.py::test_stuck'" in told
    assert "1 failed in" in told


@pytest.mark.integration
def test_a_process_that_hangs_between_tests_ends_the_run_with_its_stacks(tmp_path: Path) -> None:
    told = run(tmp_path, "def test_it(): pass", "--numprocesses", "1", plugin=PLUGIN + HANGS_AT_ITS_END)
    assert "No test has begun or ended for too long: the run is interrupted" in told
    assert "in wait_at_the_end" in told
    assert "KeyboardInterrupt" in told


@pytest.mark.exhaustive
@pytest.mark.integration
def test_what_a_process_that_dies_has_left_is_run_by_others(
    pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    """With its other schedulers, xdist sends empty lists of tests for ever, or runs the fatal one again.

    With this one it may ask the process for tests in the moment in which it dies: that ends the run as well.
    """
    for name in "abcdef":
        (tmp_path / f"test_{name}.py").write_text("def test_one(): pass\ndef test_two(): pass\n")
    (option,) = [one for one in pytestconfig.getini("addopts") if one.startswith("--dist=")]
    told = run(tmp_path, DIES, option, "--numprocesses", "2")
    if "INTERNALERROR" not in told:
        assert "crashed while running 'test_it.py::test_it[5]'" in told
        assert "1 failed, 31 passed in" in told
