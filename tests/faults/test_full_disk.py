"""A disk that is really full: a small file system in memory, mounted where nobody else sees it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.integration


@pytest.mark.exhaustive
def test_a_full_disk_costs_an_attempt_and_no_row(tmp_path: Path) -> None:
    # As root of a namespace of its own, which takes no rights and keeps the mounts to itself.
    apart = ["unshare", "--map-root-user", "--mount"]
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/disks"]
    done = subprocess.run(
        [*apart, *tests, str(Path(__file__).with_name("small_disk.py"))],
        env={**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path / "spark")},
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * PATIENCE_SECONDS,  # it is many tests
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
