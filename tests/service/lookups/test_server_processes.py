"""Lookup servers of their own processes, behind one address, that stand still and die."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest

from service.lookups import servers
from service.settings import Settings
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.server_process import free_port
from tests.service.conftest import Running, alike_on_both, running, with_lookup_server
from tests.service.iceberg_tables import IcebergCatalog

pytestmark = pytest.mark.integration
database_kind = alike_on_both

TOKEN = "a-token-of-these-tests"


class Balancer:
    """Hands each connection to the next of some ports, and all others to the last of them."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                port = self.ports.pop(0) if len(self.ports) > 1 else self.ports[0]
                try:
                    server = socket.create_connection(("127.0.0.1", port))
                except OSError:
                    client.close()
                    continue
                self._sockets += [client, server]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    for one in (source, sink):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@contextmanager
def lookup_server(port: int) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"ICESTREAM_LOOKUP_TOKEN": TOKEN, "ICESTREAM_LOOKUP_PORT": str(port)}
    with subprocess.Popen([sys.executable, "-m", "worker.lookup_server.main"], env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@pytest.fixture
def balancer() -> Iterator[Balancer]:
    balancer = Balancer()
    yield balancer
    balancer.close()


@pytest.mark.thorough
def test_real_lookup_servers_that_stand_still_and_die(
    settings: Settings, iceberg: IcebergCatalog, balancer: Balancer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_SOON_SECONDS", 0.5)
    monkeypatch.setattr(servers, "_PROBE_SECONDS", PATIENCE_SECONDS)
    # Else the service keeps the connection to a server that dies, and may use it before it hears of that: a
    # question that is cut off there, and then on its way to the same server, is not sent a third time.
    monkeypatch.setattr(servers, "_CONNECTION_QUESTIONS", 1)
    one, other = free_port(), free_port()
    with (
        lookup_server(one) as first,
        lookup_server(other) as second,
        running(with_lookup_server(settings, balancer.url, TOKEN)) as service,
    ):
        for port in (one, other):
            wait_until(lambda port=port: listens(port), "a lookup server")  # type: ignore[misc]
        service.register(iceberg)
        path = f"/tables/{service.enroll()['id']}/lookups"

        def ask(service: Running, *ports: int) -> httpx.Response:
            balancer.ports = [*ports]
            return service.admin.post(path, json={"keys": [{"id": 3}], "key_columns": ["id"]})

        first.send_signal(signal.SIGSTOP)
        # It gets the question; its probe and its repetition come to the other one.
        answer = ask(service, one, other)
        assert [match["live"] for match in answer.json()["results"][0]["matches"]] == [True], answer.text
        second.send_signal(signal.SIGKILL)
        second.wait()
        first.send_signal(signal.SIGCONT)
        # The connection to the dead one is cut off.
        assert ask(service, other, one).status_code == 200

    monkeypatch.setattr(servers, "_PROBE_SECONDS", 0.5)
    with lookup_server(one) as first, running(with_lookup_server(settings, balancer.url, TOKEN)) as service:
        wait_until(lambda: listens(one), "a lookup server")
        first.send_signal(signal.SIGSTOP)
        silent = ask(service, one)
        assert (silent.status_code, silent.json()["type"]) == (503, "/problems/lookups-unavailable")
        assert int(silent.headers["Retry-After"]) > 0
