"""Local files as a far store has them: every request waits, and is counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs as pafs

from stores.file_io import LocationFileIO
from stores.ranges import RangeReader
from worker.io.cache import Cache
from worker.io.cached_files import CachedFiles


@dataclass
class Waits:
    """count: of requests. waves: how often one began while no other was under way."""

    count: int = 0
    waves: int = 0
    open: int = 0


class WaitingFiles(CachedFiles):
    """Its locations are those of local files."""

    def __init__(self, properties: Mapping[str, str], cache: Cache, wait_seconds: float) -> None:
        super().__init__(properties, cache)
        self._wait_seconds = wait_seconds
        self._lock = threading.Lock()
        self._waits = Waits()
        store, opener = pafs.PyFileSystem(_Store(self)), LocationFileIO()
        opener.fs_by_scheme = lambda *_: store
        self.io.at = lambda _: opener  # type: ignore[method-assign, assignment]

    def open_input(self, location: str, size_bytes: int | None = None) -> Any:
        path = super().resolve(location)[1]
        return self.kept_file(location, lambda: self.opened(path))

    def is_local(self, _: str) -> bool:
        return False

    def opened(self, path: str) -> Any:
        with self.request():
            return _File(self, pafs.LocalFileSystem().open_input_file(path), Path(path))

    def counted(self, work: Callable[[], object]) -> Waits:
        """What was asked for meanwhile."""
        with self._lock:
            self._waits = Waits()
        work()
        with self._lock:
            return replace(self._waits)

    @contextmanager
    def request(self) -> Iterator[None]:
        with self._lock:
            asked = self._waits
            asked.waves += not asked.open
            asked.count += 1
            asked.open += 1
        time.sleep(self._wait_seconds)
        with self._lock:
            asked.open -= 1
        yield


class _Store(pafs.FSSpecHandler):  # type: ignore[misc]
    """Only what is read."""

    def __init__(self, files: WaitingFiles) -> None:
        self._files = files
        self._local = pafs.LocalFileSystem()

    def get_type_name(self) -> str:
        return "waiting"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        with self._files.request():
            return [*self._local.get_file_info(paths)]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        with self._files.request():
            return [*self._local.get_file_info(selector)]

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(self._files.opened(path), mode="r")

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)


class _File(RangeReader):
    def __init__(self, files: WaitingFiles, source: pa.NativeFile, path: Path) -> None:
        super().__init__(source.size())
        self._files = files
        self._path = path
        self._source = source

    def size(self) -> int:
        return self._size

    def read_at(self, nbytes: int, offset: int) -> bytes:
        with self._files.request():
            if not self._path.exists():  # as Arrow tells it of S3
                raise OSError("AWS Error NO_SUCH_KEY during GetObject operation")
            return bytes(self._source.read_at(nbytes, offset))

    def read(self, size: int = -1) -> bytes:
        start, end = self.advance(size)
        return self.read_at(end - start, start)
