"""A worker whose executors have another Python than it says so at its start, and runs no job."""

from __future__ import annotations

import logging
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from worker.spark import executors
from worker.spark.executors import UnfitExecutorsError, check_executors
from worker.spark.tasks import TaskRunner

pytestmark = pytest.mark.integration


@pytest.fixture
def python(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Python of Spark's tasks: of this version, and with no packages."""
    venv.create(tmp_path / "venv", symlinks=True)
    path = tmp_path / "venv" / "bin" / "python"
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(path))
    return path


def site_packages(python: Path) -> Path:
    asked = [str(python), "-c", "import site; print(*site.getsitepackages())"]
    return Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())


def test_missing_packages_are_named_with_their_place(spark: SparkSession, python: Path) -> None:
    with pytest.raises(UnfitExecutorsError) as caught:
        check_executors(TaskRunner(spark))
    assert f"{python} on " in str(caught.value)
    assert f"pyarrow is missing ({version('pyarrow')} here)" in str(caught.value)
    assert "docs/deployment.md" in str(caught.value)


@pytest.mark.exhaustive
def test_another_version_is_named_with_both(spark: SparkSession, python: Path) -> None:
    place = site_packages(python)
    (place / "all.pth").write_text(str(Path(np.__file__).parents[1]))
    (place / "icestream-0.0.9.dist-info").mkdir()
    (place / "icestream-0.0.9.dist-info" / "METADATA").write_text("Name: icestream\nVersion: 0.0.9\n")
    with pytest.raises(UnfitExecutorsError, match=r"icestream is 0\.0\.9 \(.* here\)\. Give") as caught:
        check_executors(TaskRunner(spark))
    assert "pyarrow" not in str(caught.value)


def test_a_python_that_is_not_there_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(tmp_path / "python"))
    with pytest.raises(UnfitExecutorsError, match=f'Cannot run program "{tmp_path / "python"}"'):
        check_executors(TaskRunner(spark))


def test_threads_of_the_driver_need_no_look(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_look", lambda _: pytest.fail("it looks"))
    assert spark.sparkContext.pythonExec == sys.executable
    check_executors(TaskRunner(spark))


def test_a_cluster_without_room_is_told_and_does_not_stop_the_worker(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nsleep 3\nexit 1\n")
    slow.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(slow))
    monkeypatch.setattr(executors, "WAIT_SECONDS", 0.0)
    with caplog.at_level(logging.WARNING, "icestream.worker"):
        check_executors(TaskRunner(spark))
    assert "No executor of Spark came within" in caplog.text
