"""A private PostgreSQL server on loopback, from the binaries that the system package installs."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.patience import PATIENCE_SECONDS
from tests.server_process import free_port

_NAME = "icestream-postgresql-"
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 1 << 30
"""Of which a server takes a tenth, and each process of a run may have one."""


def _binary(name: str) -> str:
    # Debian keeps them out of PATH, one directory a version.
    candidates = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    found = str(candidates[0]) if candidates else shutil.which(name)
    if found is None:
        raise RuntimeError(f"These tests need PostgreSQL: {name} is missing. apt-get install -y postgresql")
    return found


@contextmanager
def running_server(*, in_memory: bool = False) -> Iterator[str]:
    """The SQLAlchemy URL of an empty server, without the database's name; stopped and deleted at the end.

    in_memory: all of it, if there is room. To write a database takes a disk's file system several times as
    much of a processor as the server itself needs to copy one.
    """
    with restartable_server(in_memory=in_memory) as server:
        yield server.url


def new_directory(*, in_memory: bool) -> Path:
    """In memory, if that is asked for and there; what killed runs have left there goes."""
    if not in_memory or not _MEMORY.is_dir():
        return Path(tempfile.mkdtemp(prefix=_NAME))
    for left in _MEMORY.glob(f"{_NAME}*"):
        if not Path("/proc", left.name.split("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    has_room = shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES
    return Path(tempfile.mkdtemp(prefix=f"{_NAME}{os.getpid()}-", dir=_MEMORY if has_room else None))


@dataclass(frozen=True)
class Server:
    url: str
    _control: Callable[..., None]

    def start(self) -> None:
        self._control("start")

    def stop(self) -> None:
        """As a crash would: every connection breaks."""
        self._control("-m", "immediate", "stop")

    def restart(self) -> None:
        """What was committed is recovered from the log."""
        self._control("-m", "immediate", "restart")


@contextmanager
def restartable_server(*, in_memory: bool = False) -> Iterator[Server]:
    directory = new_directory(in_memory=in_memory)
    port = free_port()
    as_owner: list[str] = []
    if os.geteuid() == 0:
        # The server refuses to run as root.
        shutil.chown(directory, "postgres", "postgres")
        as_owner = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    data, log = str(directory / "data"), str(directory / "log")

    def run(*command: str) -> None:
        done = subprocess.run(
            [*as_owner, *command],
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        if done.returncode:
            tail = Path(log).read_text()[-2000:] if Path(log).exists() else ""
            raise RuntimeError(f"{command[0]} failed: {done.stderr}{tail}")

    try:
        run(_binary("initdb"), "-D", data, "-U", "icestream", "--auth=trust", "--no-sync", "-E", "UTF8")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        # The server must not hold the pipes that `run` reads to their end, hence -l.
        run(_binary("pg_ctl"), "-D", data, "-l", log, "-o", options, "-w", "start")
        control = (_binary("pg_ctl"), "-D", data, "-l", log, "-o", options, "-w")
        url = f"postgresql+psycopg://icestream@127.0.0.1:{port}"
        yield Server(url, lambda *action: run(*control, *action))
    finally:
        if (directory / "data" / "postmaster.pid").exists():
            run(_binary("pg_ctl"), "-D", data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(directory)


def execute(url: str, statement: str) -> None:
    """One that no transaction may have around it; an engine for it would ask five questions of its own."""
    with psycopg.connect(url.replace("+psycopg", "", 1), autocommit=True) as connection:
        connection.execute(statement.encode())
