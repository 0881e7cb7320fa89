"""How a reader is asked: a command for each table, or one that answers lines.

A command is run without a shell, in a process group of its own, which ends with it.
"""

from __future__ import annotations

import json
import os
import selectors
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self
from urllib.parse import unquote

from conformance.compare import parse

Outcome = Literal["pass", "deviates", "refused", "crashed", "skipped"]
_OUTPUT_BYTES = 16 * 1024**2
_TOO_MUCH = f"it printed more than {_OUTPUT_BYTES // 1024**2} MiB"
_REASON_CHARACTERS = 200
_LOOKS_SECONDS = 0.1  # how often a reader that runs is looked at for what it has printed
_STARTS = 5  # times as long as an answer takes the first one, for which an engine starts


@dataclass(frozen=True)
class Answer:
    """rows, or why there are none: the reader said so (refused), or it failed to say anything (crashed)."""

    rows: Sequence[Any] = ()
    refused: str = ""
    crashed: str = ""


class Reader(Protocol):
    def ask(self, values: Mapping[str, str]) -> Answer: ...

    def close(self) -> None: ...


def placeholders(command: str) -> set[str]:
    return {name for name in ("metadata", "table", "snapshot") if f"{{{name}}}" in command}


class OneShot:
    """A command for each table, which gets its place for `{metadata}`, and prints a JSON object for each row.

    If it ends with another code than 0, it refused; if it was killed, took too long, or printed something
    else, it crashed.
    """

    def __init__(self, command: Sequence[str], timeout_seconds: float) -> None:
        self._command = command
        self._timeout_seconds = timeout_seconds

    def ask(self, values: Mapping[str, str]) -> Answer:
        command = [_filled(word, values) for word in self._command]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                process = _start(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            except OSError as error:
                return Answer(crashed=f"{command[0]} can't be started: {error.strerror}")
            until = time.monotonic() + self._timeout_seconds
            try:
                while (code := _code(process, min(until, time.monotonic() + _LOOKS_SECONDS))) is None:
                    if _is_full(out) or _is_full(err):
                        return Answer(crashed=_TOO_MUCH)
                    if time.monotonic() >= until:
                        return Answer(crashed=f"no answer within {self._timeout_seconds:g} s")
            finally:
                _end(process)
            said = _tail(err) or _tail(out)
            if code < 0:
                return Answer(crashed=f"ended by {signal.Signals(-code).name}")
            if code > 0:
                return Answer(refused=said or f"ended with code {code}")
            out.seek(0)
            return _rows(out.read(_OUTPUT_BYTES + 1))

    def close(self) -> None:
        """Nothing is kept."""


class Conversation:
    """A command that is started once: each line of its input is a JSON object with the places of a table,
    each line of its output `{"rows": [...]}`, or `{"refused": "why"}`.

    It is started anew after it ended or took too long. The first answer may take five times as long.
    """

    def __init__(self, command: Sequence[str], timeout_seconds: float) -> None:
        self._command = command
        self._timeout_seconds = timeout_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._err = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115

    def ask(self, values: Mapping[str, str]) -> Answer:
        answer = self._ask(values)
        if answer.crashed:
            self._stop()
        else:  # what it said until now is of no use, and would grow with each table
            self._err.seek(0)
            self._err.truncate()
        return answer

    def _ask(self, values: Mapping[str, str]) -> Answer:
        seconds = self._timeout_seconds
        if self._process is None:
            seconds *= _STARTS
            try:
                self._process = _start(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._err, bufsize=0
                )
            except OSError as error:
                return Answer(crashed=f"{self._command[0]} can't be started: {error.strerror}")
        assert self._process.stdin is not None
        until = time.monotonic() + seconds
        try:
            self._process.stdin.write(json.dumps(dict(values)).encode() + b"\n")
            line = self._line(until)
        except TimeoutError:
            return Answer(crashed=f"no answer within {seconds:g} s")
        except OverflowError:
            return Answer(crashed=_TOO_MUCH)
        except (BrokenPipeError, EOFError):
            code = _code(self._process, until)
            if code is None:
                return Answer(crashed=f"it closed its output, and did not end within {seconds:g} s")
            how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            said = _tail(self._err)
            return Answer(crashed=f"{how}: {said}" if said and code >= 0 else how)
        try:
            told = parse(line.decode())
        except ValueError:
            told = None
        match told:
            case {"rows": list(rows)}:
                return Answer(rows)
            case {"refused": str(why)}:
                return Answer(refused=_shortened(why) or "for no reason")
        return Answer(crashed=f"the answer is no object with rows or a refusal: {line[:60]!r}")

    def _line(self, until: float) -> bytes:
        """Raises TimeoutError, OverflowError if it prints too much, or EOFError if no more can come."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if len(line) > _OUTPUT_BYTES or _is_full(self._err):
                    raise OverflowError
                left = until - time.monotonic()
                if not selector.select(max(min(left, _LOOKS_SECONDS), 0)):
                    if left <= 0:
                        raise TimeoutError
                    continue
                part = os.read(self._process.stdout.fileno(), 1 << 16)
                if not part:
                    raise EOFError
                line += part
        return bytes(line)

    def _stop(self) -> None:
        if self._process is not None:
            _end(self._process)
            self._process = None

    def close(self) -> None:
        self._stop()
        self._err.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def reader_of(command: str, timeout_seconds: float) -> Reader:
    """Raises ValueError for a command that can't be split into words."""
    words = shlex.split(command)
    if not words:
        raise ValueError("the reader's command is empty")
    asks = OneShot if placeholders(command) & {"metadata", "table"} else Conversation
    return asks(words, timeout_seconds)


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _start(command: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, start_new_session=True, **how)


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _code(process: subprocess.Popen[bytes], until: float) -> int | None:
    """With which it has ended by then; None if it still runs."""
    try:
        return process.wait(max(until - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        return None


def _is_full(file: Any) -> bool:
    return os.fstat(file.fileno()).st_size > _OUTPUT_BYTES


def _rows(printed: bytes) -> Answer:
    if len(printed) > _OUTPUT_BYTES:
        return Answer(crashed=_TOO_MUCH)
    try:
        text = printed.decode().strip()
        if text.startswith("["):  # a list of rows, as `duckdb -json` prints them
            rows = parse(text)
        else:
            rows = [parse(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        return Answer(crashed=f"what it printed is no JSON: {error}")
    return Answer(rows)


def _tail(file: Any) -> str:
    """The last line that says something."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 8_192, 0))
    lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return _shortened(lines[-1]) if lines else ""


def _shortened(text: str) -> str:
    return " ".join(text.split())[:_REASON_CHARACTERS]


def local_path(location: str) -> str:
    """Of a `file:` URI its path; other locations as they are."""
    return (
        str(Path(unquote(location.removeprefix("file://")))) if location.startswith("file://") else location
    )
