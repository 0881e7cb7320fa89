"""Runs a server in a process of its own."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from socket import create_connection, create_server

from tests.patience import PATIENCE_SECONDS


def free_port() -> int:
    with create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@contextmanager
def serving(command: Sequence[str], port: int) -> Iterator[None]:
    """Until the end of the block, once the port answers."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, f"{command[0]} has ended"
                assert time.monotonic() < deadline, f"{command[0]} does not listen"
                time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()
