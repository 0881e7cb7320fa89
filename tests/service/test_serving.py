"""How the servers end, when they end connections, and what holds requests up."""

import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import uvicorn
from fastapi import FastAPI

from service.command import serving
from service.settings import Settings
from tests.patience import PATIENCE_SECONDS
from worker.lookup_server import main as lookup_server

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


def _serve() -> None:
    serving.run(FastAPI(), threading.Event(), Settings(port=0, background=False))


@pytest.mark.parametrize(
    ("module", "run"), [(serving, _serve), (lookup_server, lookup_server.main)], ids=["service", "lookups"]
)
def test_a_connection_outlives_the_patience_of_who_has_it(
    module: object, run: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """httpx keeps an idle connection for 5 s, aiohttp for 15 s, a load balancer for 60 s. They must be the
    ones to end it: a request on a connection that the server ends at the same moment is lost.

    And no request waits while Python looks for garbage among what a server consists of.
    """
    served: list[uvicorn.Config] = []
    frozen = []

    def run_server(server: uvicorn.Server, sockets: object = None) -> None:
        served.append(server.config)
        server.started = True
        frozen.append(gc.get_freeze_count())

    monkeypatch.setattr(uvicorn.Server, "run", run_server)
    monkeypatch.setattr(module, "configure_logs", lambda _: None)
    monkeypatch.setattr(threading.Thread, "start", lambda _: None)
    monkeypatch.setenv("ICESTREAM_LOOKUP_TOKEN", "a token of the lookups")
    gc.unfreeze()
    run()
    gc.unfreeze()
    assert frozen[0] > 100_000
    assert [config.timeout_keep_alive > 60 for config in served] == [True]
