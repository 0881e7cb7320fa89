"""A TCP proxy on loopback whose network goes wrong when a test says so (the ideas are toxiproxy's).

Modes hold for connections that are open and for those to come, and may change at any time.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

_CHUNK_BYTES = 16 * 1024
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Mode:
    cut: bool = False
    """Connections are reset, open ones too."""
    hang: bool = False
    """Connections are accepted, and no byte moves in either direction."""
    latency_seconds: float = 0.0
    """Before each chunk."""
    bytes_per_second: float | None = None
    answer_bytes: int | None = None
    """The connection is closed after so many bytes of an answer."""
    lost_answer: bytes | None = None
    """The connection is closed instead of giving an answer that holds this."""
    then: Mode | None = None
    """What the network does after one such answer; None: the same again."""
    status: int | None = None
    """Every HTTP request is answered with this, and never gets to the target."""


PASS = Mode()
CUT = Mode(cut=True)
HANG = Mode(hang=True)


def slow(latency_seconds: float, bytes_per_second: float | None = None) -> Mode:
    return Mode(latency_seconds=latency_seconds, bytes_per_second=bytes_per_second)


def truncate(answer_bytes: int, *, once: bool = False) -> Mode:
    return Mode(answer_bytes=answer_bytes, then=PASS if once else None)


def lose(answer: bytes, then: Mode = PASS) -> Mode:
    return Mode(lost_answer=answer, then=then)


def answer(status: int) -> Mode:
    return Mode(status=status)


class Proxy:
    """Forwards loopback connections to a port of loopback."""

    def __init__(self, target_port: int, mode: Mode = PASS) -> None:
        self.target_port = target_port
        self._mode = mode
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False

    @property
    def mode(self) -> Mode:
        return self._mode

    def set(self, mode: Mode) -> None:
        self._mode = mode
        if mode.cut:
            self._reset_all()

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        # Wakes the thread that accepts; closing alone does not.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._reset_all()
        for thread in self._threads:
            thread.join()

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="proxy", daemon=True)  # type: ignore[arg-type]
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._mode.cut or self._closed:
                _reset(client)
                continue
            with self._lock:
                self._open.add(client)
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        if self._mode.status is not None:
            self._answer(client)
            return
        try:
            target = socket.create_connection(("127.0.0.1", self.target_port))
        except OSError:
            self._drop(client)
            return
        with self._lock:
            self._open.add(target)
        if self._mode.cut or self._closed:
            self._drop(client, target)
            return
        back = threading.Thread(target=self._pump, args=(target, client, True), daemon=True)
        back.start()
        self._pump(client, target, False)
        back.join()
        self._drop(client, target)

    def _pump(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        passed = 0
        try:
            while data := source.recv(_CHUNK_BYTES):
                while self._mode.hang and not self._closed:
                    time.sleep(_LOOK_SECONDS)
                mode = self._mode
                if mode.status is not None:
                    # A connection that was open before: its next request finds it closed.
                    break
                pause = mode.latency_seconds + (len(data) / (mode.bytes_per_second or float("inf")))
                if pause:
                    time.sleep(pause)
                if is_answer and mode.lost_answer is not None and mode.lost_answer in data:
                    self._go_on_after(mode)
                    break
                if is_answer and mode.answer_bytes is not None:
                    data = data[: max(mode.answer_bytes - passed, 0)]
                sink.sendall(data)
                passed += len(data)
                if is_answer and mode.answer_bytes is not None and passed >= mode.answer_bytes:
                    self._go_on_after(mode)
                    break
            else:
                # The sender is done; the other direction may go on.
                sink.shutdown(socket.SHUT_WR)
                return
        except OSError:
            pass
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _go_on_after(self, mode: Mode) -> None:
        if mode.then is not None:
            self.set(mode.then)

    def _answer(self, client: socket.socket) -> None:
        """Read requests as far as their headers and length say, and refuse each."""
        buffer = b""
        try:
            while not self._closed and self._mode.status is not None:
                while b"\r\n\r\n" not in buffer:
                    if not (data := client.recv(_CHUNK_BYTES)):
                        return
                    buffer += data
                head, _, buffer = buffer.partition(b"\r\n\r\n")
                missing = _content_length(head) - len(buffer)
                while missing > 0 and (data := client.recv(_CHUNK_BYTES)):
                    missing -= len(data)
                buffer = b"" if missing >= 0 else buffer[missing:]
                client.sendall(f"HTTP/1.1 {self._mode.status} Injected\r\ncontent-length: 0\r\n\r\n".encode())
        except OSError:
            pass
        finally:
            self._drop(client)

    def _reset_all(self) -> None:
        with self._lock:
            opened, self._open = self._open, set()
        for each in opened:
            _reset(each)

    def _drop(self, *sockets: socket.socket) -> None:
        for each in sockets:
            with self._lock:
                self._open.discard(each)
            each.close()


def _reset(connection: socket.socket) -> None:
    """End a connection with RST, as a firewall or a dead host's kernel does."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Wakes the thread that reads from it.
        connection.shutdown(socket.SHUT_RD)
    connection.close()


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0
