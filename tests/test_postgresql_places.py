"""Where servers of tests lie that take memory for their disk."""

import tempfile
from pathlib import Path

import pytest

from tests.service import postgresql

NO_PROCESS = 1 << 22  # Linux gives no higher number, and not this one


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("memory", "disk"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(postgresql, "_MEMORY", tmp_path / "memory")
    monkeypatch.setattr(postgresql, "_ROOM_BYTES", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "disk"))


def test_what_a_killed_run_has_left_in_memory_goes_and_what_another_run_uses_stays(tmp_path: Path) -> None:
    left = tmp_path / "memory" / f"icestream-postgresql-{NO_PROCESS}-x"
    used = tmp_path / "memory" / "icestream-postgresql-1-x"
    others = tmp_path / "memory" / "somebody-else"
    for one in (left / "data", used, others):
        one.mkdir(parents=True)
    new = postgresql.new_directory(in_memory=True)
    assert {*(tmp_path / "memory").iterdir()} == {used, others, new}


def test_a_server_lies_on_the_disk_where_memory_has_no_room_or_none_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    assert postgresql.new_directory(in_memory=False).parent == disk
    monkeypatch.setattr(postgresql, "_ROOM_BYTES", 1 << 60)
    assert postgresql.new_directory(in_memory=True).parent == disk
    monkeypatch.setattr(postgresql, "_MEMORY", tmp_path / "not there")
    assert postgresql.new_directory(in_memory=True).parent == disk
