"""A reference to a file is read as a secret only from a disk, only where that is allowed, and at once."""

import os
from pathlib import Path

import pytest

from trust.secrets import MAX_SECRET_BYTES, SecretUnreadableError, read_secret


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Laid out as Kubernetes does it."""
    kept = tmp_path / "secrets" / "..2026_01_01"
    kept.mkdir(parents=True)
    (kept / "token").write_text("the secret\n")
    (tmp_path / "secrets" / "..data").symlink_to(kept.name)
    (tmp_path / "secrets" / "token").symlink_to("..data/token")
    return tmp_path / "secrets"


def test_links_within_an_allowed_directory_are_followed(folder: Path) -> None:
    for spelling in (f"file:{folder}/token", f"file://{folder}/token", f"file://localhost{folder}/token"):
        assert read_secret(spelling, [f"file:{folder}"]) == "the secret"
    linked = folder.parent / "linked"
    linked.symlink_to(folder)
    assert read_secret(f"file:{linked}/token", [f"file:{linked}"]) == "the secret"


def test_no_link_leads_out_of_the_allowed_directory(folder: Path) -> None:
    outside = folder.parent / "outside"
    outside.write_text("of others")
    (folder / "out").symlink_to(outside)
    with pytest.raises(SecretUnreadableError, match="leads outside"):
        read_secret(f"file:{folder}/out", [f"file:{folder}"])
    for rules in ([], ["env:"], [f"file:{folder}2"]):
        with pytest.raises(SecretUnreadableError, match="leads outside"):
            read_secret(f"file:{folder}/token", rules)
    assert read_secret(f"file:{folder}/out") == "of others"


@pytest.mark.parametrize("allowed", [None, ["file:/"]])
@pytest.mark.parametrize("place", ["/proc/self/environ", "/dev/null", "/sys/kernel/uevent_seqnum"])
def test_what_the_system_tells_is_no_secret(tmp_path: Path, place: str, allowed: list[str] | None) -> None:
    (tmp_path / "link").symlink_to(place)
    for path in (place, tmp_path / "link", f"/proc/self/root{place}"):
        with pytest.raises(SecretUnreadableError, match="not on a disk"):
            read_secret(f"file:{path}", allowed)


def test_a_file_of_the_service_is_no_secret(tmp_path: Path) -> None:
    own = tmp_path / "icestream.db"
    own.write_text("keys")
    (tmp_path / "hard").hardlink_to(own)
    (tmp_path / "soft").symlink_to(own)
    for path in (own, tmp_path / "hard", tmp_path / "soft"):
        with pytest.raises(SecretUnreadableError, match="of the service itself"):
            read_secret(f"file:{path}", None, [str(own)])


def test_a_pipe_a_folder_and_a_long_file_are_no_secrets(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").write_bytes(b"x" * (MAX_SECRET_BYTES + 1))
    (tmp_path / "longest").write_bytes(b"x" * MAX_SECRET_BYTES)
    (tmp_path / "binary").write_bytes(b"\xff")
    for name, words in (
        ("pipe", "no regular file"),
        ("", "no regular file|directory"),
        ("long", "65,536 bytes"),
        ("binary", "not text"),
        ("none", "No such file"),
    ):
        with pytest.raises(SecretUnreadableError, match=words):
            read_secret(f"file:{tmp_path}/{name}")
    assert len(read_secret(f"file:{tmp_path}/longest")) == MAX_SECRET_BYTES
    for spelling in (f"file:{tmp_path}/../x", f"file:{tmp_path}/%2e%2e/x", "file://host/x"):
        with pytest.raises(SecretUnreadableError, match="no path"):
            read_secret(spelling)
