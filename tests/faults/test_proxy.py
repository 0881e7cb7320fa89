"""The proxy does to connections what its mode says, and does it to those that are open, too."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from tests.faults.proxy import CUT, HANG, PASS, Proxy, answer, slow, truncate
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(connection: socket.socket) -> None:
            with connection:
                try:
                    while data := connection.recv(65536):
                        connection.sendall(data)
                except OSError:
                    pass

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    with Proxy(echo) as proxy:
        yield proxy


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_SECONDS)


def exchange(connection: socket.socket, sent: bytes) -> bytes:
    connection.sendall(sent)
    received = b""
    while len(received) < len(sent):
        data = connection.recv(65536)
        if not data:
            break
        received += data
    return received


def is_dead(connection: socket.socket) -> bool:
    try:
        return exchange(connection, b"x") == b""
    except ConnectionError:
        return True


def test_several_connections_pass_at_once(proxy: Proxy) -> None:
    with connect(proxy) as first, connect(proxy) as second:
        assert exchange(first, b"a" * 100_000) == b"a" * 100_000
        assert exchange(second, b"b") == b"b"
        assert exchange(first, b"c") == b"c"


def test_an_answer_comes_after_the_sender_is_done(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        connection.sendall(b"question")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b"question"
        assert connection.recv(100) == b""


def test_a_cut_resets_open_and_new_connections_until_it_is_mended(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        assert exchange(connection, b"x") == b"x"
        proxy.set(CUT)
        assert is_dead(connection)
    for _ in range(2):
        # A busy machine may learn of the reset before it learns that it was connected.
        with suppress(ConnectionResetError), connect(proxy) as connection:
            assert is_dead(connection)
    proxy.set(PASS)
    with connect(proxy) as connection:
        assert exchange(connection, b"x") == b"x"


def test_a_hanging_network_delivers_when_it_is_back(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        proxy.set(HANG)
        connection.sendall(b"late")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(10)
        proxy.set(PASS)
        connection.settimeout(PATIENCE_SECONDS)
        assert connection.recv(10) == b"late"


def test_a_slow_network_takes_its_time(proxy: Proxy) -> None:
    proxy.set(slow(latency_seconds=0.1))
    with connect(proxy) as connection:
        begun = time.monotonic()
        assert exchange(connection, b"x") == b"x"
        assert time.monotonic() - begun >= 0.2
        proxy.set(slow(latency_seconds=0, bytes_per_second=10_000))
        begun = time.monotonic()
        assert exchange(connection, b"y" * 2000) == b"y" * 2000
        assert time.monotonic() - begun >= 0.3


def test_an_answer_is_truncated(proxy: Proxy) -> None:
    proxy.set(truncate(3))
    with connect(proxy) as connection:
        assert exchange(connection, b"abcdef") == b"abc"


def test_http_is_refused_without_the_target(proxy: Proxy) -> None:
    proxy.set(answer(503))
    with httpx.Client(base_url=f"http://127.0.0.1:{proxy.port}", timeout=PATIENCE_SECONDS) as client:
        for _ in range(3):
            assert client.post("/x", json={"a": 1}).status_code == 503


def test_the_end_closes_what_is_open(echo: int) -> None:
    with Proxy(echo) as proxy:
        proxy.set(HANG)
        connection = connect(proxy)
        connection.sendall(b"x")
    with connection:
        assert is_dead(connection)
