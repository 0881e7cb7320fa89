"""Real processes that benchmarks ask over HTTP on loopback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

KEY = "admin-key-of-this-benchmark-0123456789"
SERVE = [sys.executable, "-c", "from service.command.main import main; main()", "serve"]
LOOK_UP = [sys.executable, "-m", "worker.lookup_server.main"]
WORK = [sys.executable, "-m", "worker.agent.main"]
_PATIENCE_SECONDS = 120


@contextmanager
def running(command: Sequence[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block."""
    with log.open("w") as output:
        process = subprocess.Popen(command, env=os.environ | environment, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@contextmanager
def server(
    command: Sequence[str], log: Path, **environment: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Its URL, which its log tells, and its process."""
    with running(command, log, **environment) as process:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not (found := re.search(r"http://127\.0\.0\.1:[1-9]\d*", log.read_text())):
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"it did not start: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield found.group(), process
