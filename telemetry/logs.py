"""Log lines: text for people, or a JSON object each for what collects them.

Invariant: what is secret is taken out of a line before it leaves the process, in either format.
"""

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, ClassVar, Literal

LogFormat = Literal["text", "json"]
Redact = Callable[[str], str]
_LINE = "%(asctime)s %(levelname)s %(message)s"
_TALKATIVE = ("httpx", "py4j", "pyiceberg.io", "pypaimon")
"""They tell every call, or each step of a commit."""
_ids: ContextVar[Mapping[str, object]] = ContextVar("ids_of_lines", default=MappingProxyType({}))


class _Process:
    """What holds for the lines of every thread."""

    ids: Mapping[str, object] = MappingProxyType({})
    redactions: ClassVar[dict[object, Redact]] = {}


def configure_logs(log_format: LogFormat) -> None:
    """Let everything that this process logs from INFO on go to standard error, in this format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(log_format))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)


def formatter(log_format: LogFormat) -> logging.Formatter:
    return JsonFormatter() if log_format == "json" else TextFormatter(_LINE)


def add_ids(**ids: object) -> None:
    """Let the lines of this request, or whatever else runs in a context of its own, name these."""
    _ids.set({**_ids.get(), **ids})


def add_process_ids(**ids: object) -> None:
    """Let all lines from now on name these."""
    _Process.ids = {**_Process.ids, **ids}


@contextmanager
def every_line(redact: Redact, **ids: object) -> Iterator[None]:
    """Let the lines of all threads meanwhile name these, and go through `redact`."""
    before = _Process.ids
    _Process.ids = {**before, **ids}
    try:
        with _redacting(redact):
            yield
    finally:
        _Process.ids = before


@contextmanager
def own_lines(redact: Redact, **ids: object) -> Iterator[None]:
    """Let the lines of this context and its copies meanwhile name these, and those of all threads go through
    `redact`: several of these may run at a time."""
    before = _ids.set({**_ids.get(), **ids})
    try:
        with _redacting(redact):
            yield
    finally:
        _ids.reset(before)


@contextmanager
def _redacting(redact: Redact) -> Iterator[None]:
    key = object()
    _Process.redactions[key] = redact
    try:
        yield
    finally:
        del _Process.redactions[key]


def _redacted(text: str) -> str:
    for redact in tuple(_Process.redactions.values()):
        text = redact(text)
    return text


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _redacted(super().format(record))


class JsonFormatter(logging.Formatter):
    """time, level, logger, message; the ids that are known; `fields` of the call; an exception, if any."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_Process.ids,
            **_ids.get(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # Before it is written as JSON, which escapes what a secret may hold.
        redacted = {key: _redacted(value) if isinstance(value, str) else value for key, value in line.items()}
        return json.dumps(redacted, default=str)
