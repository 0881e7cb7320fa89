"""How the server ends."""

import signal
import subprocess
import sys

from tests.patience import PATIENCE_SECONDS

HANGS_AT_THE_END = """
import sys, threading
from contextlib import asynccontextmanager
from fastapi import FastAPI
from service.command import serving
from service.settings import Settings

@asynccontextmanager
async def run(_):
    print("ready", flush=True)
    yield
    threading.Event().wait()  # as a poll of a catalog that never answers

serving.STOP_SECONDS = 0.2
serving.run(FastAPI(lifespan=run), threading.Event(), Settings(port=0, background=False))
"""


def test_what_hangs_after_sigterm_does_not_keep_the_process() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS_AT_THE_END], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "Something still hangs" in said
