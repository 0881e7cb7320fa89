"""Runs a server in a process of its own."""

import itertools
import os
import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from socket import create_connection, create_server

from tests.patience import PATIENCE_SECONDS

_PORTS = range(20_000, 32_000)
"""Below those that the system gives whoever asks for any, so that nobody gets one between its choice and its
use: a test would talk to another one's server."""
_number = itertools.count(random.randrange(len(_PORTS)))


def free_port() -> int:
    """One that no other process of this run of tests chooses, and that nobody listens at."""
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = _PORTS[process :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    while True:
        port = own[next(_number) % len(own)]
        with suppress(OSError), create_server(("127.0.0.1", port)):
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
