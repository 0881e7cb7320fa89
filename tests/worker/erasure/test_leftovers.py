"""Where files lie that no snapshot names."""

from __future__ import annotations

from pathlib import Path

from worker.erasure.leftovers import unnamed_files
from worker.io.storage import Storage


def test_a_file_is_named_however_its_place_is_spelled_and_by_no_other_store(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    spellings = [f"{start}{tmp_path}/f" for start in ("", "file:", "file://")]
    assert all(not unnamed_files(Storage(), tmp_path.as_uri(), [one]) for one in spellings)
    assert unnamed_files(Storage(), tmp_path.as_uri(), [f"s3:/{tmp_path}/f"])
