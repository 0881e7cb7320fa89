"""`icestream lookup`: starts a lookup server.

After SIGTERM no new question is taken, and those under way are answered, within a bound.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
import threading
import time

import uvicorn
from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from telemetry.logs import LogFormat, configure_logs, every_line
from worker.lookup_server.app import create_app
from worker.process.redaction import Redaction

STOP_SECONDS = 25.0
"""After so long the process ends, whatever still hangs: a store, say, that does not answer."""
_DRAIN_SECONDS = 20
_IDLE_SECONDS = 75
"""For so long a connection without a question stays open: longer than whoever asks keeps it."""
_log = logging.getLogger(__name__)


class LookupSettings(BaseSettings):
    """From the environment: ICESTREAM_LOOKUP_TOKEN, and so on."""

    model_config = SettingsConfigDict(env_prefix="ICESTREAM_", use_attribute_docstrings=True)

    lookup_token: str = Field(min_length=16)
    """What the service shows with each question, of 16 characters at least."""
    lookup_host: str = "127.0.0.1"
    """Address to listen on."""
    lookup_port: int = Field(8020, ge=0, le=65_535)
    """Port to listen on; 0 takes any."""
    lookup_fd: int | None = Field(None, ge=0)
    """Number of a listening socket that whoever starts the server hands down, instead of host and port."""
    log_format: LogFormat = "text"
    """How each line of the log is written: `text`, or `json` for an object each line."""


def main() -> int:
    try:
        settings = LookupSettings()  # the token comes from the environment
    except ValidationError as error:
        first = error.errors()[0]
        sys.exit(f"ICESTREAM_{str(first['loc'][0]).upper()} is not valid: {first['msg']}.")
    configure_logs(settings.log_format)
    app = create_app(settings.lookup_token)
    host, port = settings.lookup_host, settings.lookup_port
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,  # most requests are probes; the service counts questions
        server_header=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )
    handed_down = None if settings.lookup_fd is None else [socket.socket(fileno=settings.lookup_fd)]
    gc.freeze()  # as the service does
    with every_line(Redaction([settings.lookup_token]).text):
        _Server(config).run(sockets=handed_down)
    return 0


class _Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        threading.Thread(target=_end_in_time, name="ends-in-time", daemon=True).start()
        await super().shutdown(sockets)


def _end_in_time() -> None:
    time.sleep(STOP_SECONDS)
    _log.warning("A question still hangs after %.0f s; ending without an answer", STOP_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    raise SystemExit(main())
