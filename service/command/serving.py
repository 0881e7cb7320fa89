"""The HTTP server of `icestream serve`, and how it ends.

After SIGTERM no new request is taken; those that wait for something to come (the claims of idle workers, open
event streams) end at once, all others are answered. All of this within a bound.
"""

import gc
import logging
import os
import socket
import threading
import time
from contextlib import suppress

import uvicorn
from starlette.types import ASGIApp

from service.settings import Settings
from telemetry.logs import configure_logs

STOP_SECONDS = 10.0
"""After so long the process ends, whatever still hangs: a catalog, say, that does not answer a poll."""
_DRAIN_SECONDS = 7
IDLE_SECONDS = 75
"""For so long a connection without a request stays open: longer than clients and load balancers keep theirs
(60 s), since who sends a request at the moment at which we end the connection gets no answer."""
_log = logging.getLogger("icestream.serving")


class Server(uvicorn.Server):
    """Sets `stopping` once it is asked to end, before it waits for the requests in flight."""

    def __init__(self, config: uvicorn.Config, stopping: threading.Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping.set()
        await super().shutdown(sockets)


def address_of(host: str, port: int) -> str:
    """Where a browser on this machine finds a service that listens there."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def run(app: ASGIApp, stopping: threading.Event, settings: Settings) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    configure_logs(settings.log_format)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,  # it would tell queries, which may hold secrets; see ICESTREAM_LOG_REQUESTS
        proxy_headers=False,  # the application believes only ICESTREAM_TRUSTED_PROXIES
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )
    threading.Thread(target=_end_in_time, args=[stopping], name="ends-in-time", daemon=True).start()
    server = Server(config, stopping)
    # What was made up to now stays: to look through all of it for garbage would hold all requests up now and
    # then, for a quarter of a second.
    gc.freeze()
    with suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        raise SystemExit(3)


def _end_in_time(stopping: threading.Event) -> None:
    stopping.wait()
    time.sleep(STOP_SECONDS)
    _log.warning("Something still hangs after %.0f s; ending without it", STOP_SECONDS)
    os._exit(1)
