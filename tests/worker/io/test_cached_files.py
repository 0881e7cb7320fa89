"""Of a far file, what was read is there for whoever asks next, and nobody else pays for it."""

import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.waiting_files import WaitingFiles
from worker.io.cache import _ENTRY_BYTES, Cache
from worker.io.cached_files import _RANGE_BYTES, CachedFile, CachedFiles
from worker.io.storage import Storage

CONTENT = bytes(range(256)) * 8_192


@pytest.fixture
def location(tmp_path: Path) -> str:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path.as_uri()


def test_a_range_and_the_size_are_asked_for_once(location: str) -> None:
    files = WaitingFiles({}, Cache(2**20), 0)

    def read() -> None:
        with files.open_input(location) as file:
            assert (file.size(), file.read_at(5, 3)) == (len(CONTENT), CONTENT[3:8])

    assert (files.counted(read).count, files.counted(read).count) == (2, 0)


def test_ranges_that_lie_close_together_are_one_request_and_kept_one_by_one(location: str) -> None:
    cache = Cache(2**20)
    files = WaitingFiles({}, cache, 0)
    ranges = [(0, 10), (1_000, 1_010), (1_000_000, 1_000_010)]
    wanted = [CONTENT[start:end] for start, end in ranges]
    file = files.open_input(location)
    assert files.counted(lambda: file.read_ranges(ranges)).count == 2
    assert list(map(bytes, file.read_ranges(ranges))) == wanted
    assert files.counted(lambda: file.read_ranges(ranges[1:2])).count == 0
    # Not what lies between them.
    assert cache.size_bytes < 10_000


def test_a_long_range_takes_no_place(location: str) -> None:
    cache = Cache(2**22)
    files = WaitingFiles({}, cache, 0)
    file = files.open_input(location)
    before = cache.size_bytes
    for _ in range(2):
        assert files.counted(lambda: file.read_at(_RANGE_BYTES + 1, 0)).count == 1
    assert cache.size_bytes == before


def test_a_single_range_is_read_by_whoever_asks() -> None:
    """All threads that ask stores may wait for one each: another that it needed would never come."""
    read_by = []

    class Source:
        def size(self) -> int:
            return len(CONTENT)

        def read_at(self, nbytes: int, offset: int) -> bytes:
            read_by.append(threading.current_thread())
            return CONTENT[offset : offset + nbytes]

    source: Any = Source()
    assert CachedFile(Cache(2**20), ("file",), source, lambda: None).read_at(5, 3) == CONTENT[3:8]
    assert read_by == [threading.current_thread()]


def test_a_file_that_came_in_the_place_of_a_local_one_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files = CachedFiles({}, Cache(2**20))
    for content in (b"one", b"another"):
        path.write_bytes(content)
        with files.open_input(path.as_uri()) as file:
            assert file.size() == len(content)


def test_a_file_that_is_not_there_is_asked_for_again(tmp_path: Path) -> None:
    files, path = WaitingFiles({}, Cache(2**20), 0), tmp_path / "file"
    with pytest.raises(FileNotFoundError):
        files.open_input(path.as_uri())
    path.write_bytes(b"here")
    assert files.open_input(path.as_uri()).read_at(4, 0) == b"here"


def test_an_open_file_that_is_gone_says_so_and_is_opened_anew(tmp_path: Path) -> None:
    files, path = WaitingFiles({}, Cache(2**20), 0), tmp_path / "file"
    path.write_bytes(CONTENT)
    file = files.open_input(path.as_uri())
    path.unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(path.as_uri())):
        file.read_at(5, 0)
    with pytest.raises(FileNotFoundError):
        files.open_input(path.as_uri())


def test_an_open_file_that_a_store_does_not_give_for_once_is_opened_anew(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = WaitingFiles({}, Cache(2**20), 0)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", lambda _: False)
        with pytest.raises(OSError, match="NO_SUCH_KEY") as failed:
            files.open_input(location).read_at(5, 0)
    assert not isinstance(failed.value, FileNotFoundError)

    def again() -> None:
        assert files.open_input(location).read_at(5, 0) == CONTENT[:5]

    assert files.counted(again).count == 2


def test_a_name_has_room_in_what_is_counted_for_it_and_keeps_no_secret() -> None:
    properties = {f"s3.property-{number}": f"secret-{number}" for number in range(50)}
    storage = Storage(properties)
    assert storage.identity == Storage(dict(reversed(properties.items()))).identity
    assert storage.identity is storage.identity
    assert sys.getsizeof(storage.identity) < _ENTRY_BYTES / 2
    assert "secret" not in repr(storage.identity)
