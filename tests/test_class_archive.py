"""Tests begin Spark from an archive that is whole, or from none."""

import os
from pathlib import Path

import pytest

from tests import class_archive


def test_an_archive_of_too_few_classes_takes_no_place_and_a_whole_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, made = tmp_path / "classes.jsa", tmp_path / "classes.new"
    monkeypatch.setattr(class_archive, "PATH", kept)
    kept.write_bytes(b"of before")
    made.write_bytes(b"of a JVM that has not run Spark")
    with pytest.raises(SystemExit, match=r"has not kept its classes"):
        class_archive.keep(made)
    assert kept.read_bytes() == b"of before"
    os.truncate(made, class_archive.LEAST_BYTES)
    class_archive.keep(made)
    assert kept.stat().st_size == class_archive.LEAST_BYTES
    with pytest.raises(SystemExit, match=r"has not kept its classes"):
        class_archive.keep(made)
