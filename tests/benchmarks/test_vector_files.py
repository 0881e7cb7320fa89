"""The benchmark of vectors that share files runs, and counts these; how fast is for people to look at."""

import re
from pathlib import Path

import pytest

from tests.benchmarks.vector_files import main


# Of a command that people run now and then.
@pytest.mark.integration
@pytest.mark.exhaustive
def test_a_short_run_counts_a_file_for_each_vector_or_one_for_all(tmp_path: Path) -> None:
    path = tmp_path / "vectors.md"
    main(files=[20], report=path)
    found = re.findall(
        r"^\| 20 \| ([^|]+) \| 20 \| (\d+) \|(?: [\d.,]+ (?:MiB|s) \|){4}", path.read_text(), re.M
    )
    assert found == [
        ("one per data file", "20"),
        ("one per task", "1"),
        ("one per task, all replaced", "1"),
    ]
