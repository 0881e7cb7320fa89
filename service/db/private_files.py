"""Files and directories that nobody but this user may read, whatever the umask is and was.

The control database holds hashes of secrets and all that is known of tables; logs and indexes may hold values
of rows; `secrets/` has those that the service made. Tables themselves, in `warehouse/`, keep the modes that
their writers give them.
"""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

_log = logging.getLogger("icestream.private_files")

_DATABASES = ("icestream.db", "catalog.db")
_FILES = ("lock", *(name + suffix for name in _DATABASES for suffix in ("", "-wal", "-shm", "-journal")))
_DIRECTORIES = ("cache", "index", "logs", "secrets")
_OURS = frozenset({*_FILES, *_DIRECTORIES, "warehouse"})


def make_file(path: Path) -> None:
    """An empty one, for whoever would make it with the mode of the umask; one that is there is tightened."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    tighten(path)


def open_file(path: Path, mode: str) -> IO[Any]:
    make_file(path)
    return path.open(mode)


def kept_text(path: Path, make: Callable[[], str]) -> str:
    """What a file holds; the first time, it is made. Only one process at a time may ask."""
    with open_file(path, "a+") as file:
        file.seek(0)
        text: str = file.read().strip()
        if not text:
            text = make()
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
    return text


def tighten(path: Path) -> None:
    """Take from other users what they may do with a file or directory, if it is there, and say so."""
    try:
        mode = path.stat().st_mode & 0o777
        if not mode & 0o077:
            return
        path.chmod(mode & 0o700)
    except FileNotFoundError:
        return
    except PermissionError:
        _log.warning(
            "Other users can read %s (mode %03o), and only its owner can change that",
            path,
            mode,
        )
        return
    _log.warning("Other users could read %s (mode %03o); now only its owner can", path, mode)


def tighten_data_directory(data_dir: Path) -> None:
    """Everything that lies in it, from before too; and itself, unless other things lie there as well."""
    try:
        names = {entry.name for entry in data_dir.iterdir()}
    except OSError:
        return  # there is none, or whoever needs it says what is wrong with it
    if names <= _OURS:
        tighten(data_dir)
    for path in _private_parts(data_dir):
        tighten(path)


def _private_parts(data_dir: Path) -> Iterator[Path]:
    for name in (*_DIRECTORIES, *_FILES):
        yield data_dir / name
    yield from data_dir.glob("logs/*")
    yield from data_dir.glob("secrets/*")
