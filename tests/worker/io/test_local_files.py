"""Files of the local disk that must not exist yet: of several writers, one writes one, as a whole."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from worker.io.storage import Storage


def test_of_several_writers_of_a_local_file_one_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("worker.io.storage._within")  # nobody waits for a store
    place, others = tmp_path / "new" / "snapshot-1", 8
    met, storage = Barrier(others), Storage()

    def write(number: int) -> bool:
        met.wait()
        return storage.create(place.as_uri(), b"%d" % number * 100_000)

    with ThreadPoolExecutor(others) as threads:
        wrote = list(threads.map(write, range(others)))
    assert sum(wrote) == 1
    assert place.read_bytes() == b"%d" % wrote.index(True) * 100_000
    assert list(place.parent.iterdir()) == [place]
    # Whoever repeats it learns that it is there, others that they came too late.
    assert storage.create(place.as_uri(), place.read_bytes())
    assert not storage.create(place.as_uri(), b"")


def test_a_local_file_that_can_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").touch()
    with pytest.raises(OSError, match="folder"):
        Storage().create((tmp_path / "folder" / "x").as_uri(), b"x")
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]
