"""A catalog may answer without end: what is taken of it, and for how long, is bounded."""

import asyncio
import gc
import gzip
import os
import shutil
import socket
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from starlette.requests import Request
from thrift.transport.TSocket import TSocket

from service.catalogs import clients, threads
from service.catalogs.file_io import SETTINGS, GuardedFileIO
from service.catalogs.iceberg import PyIcebergSource, limit_of
from service.errors import UnreachableError
from service.records.catalogs import CatalogType
from service.settings import Settings
from tests.http_server import Answer, Answers, answering, rest_catalog
from tests.patience import PATIENCE_SECONDS
from tests.server_process import free_port, serving
from tests.service.conftest import ADMIN_KEY, PLAIN_HTTP, alike_on_both, run_apart
from tests.thorough import first_always
from trust.bounds import (
    ANSWER_BYTES,
    LEVELS,
    PAGES,
    Budget,
    LimitExceededError,
    OutOfTimeError,
    check_json,
    is_deeper,
)

# Who reads a catalog holds no database.
database_kind = alike_on_both

PAUSE_SECONDS = 0.1
"""Less than a catalog has for an answer."""
MIB = 1024**2
BUFFERED_BYTES = 32 * MIB
"""More than the kernel holds of a connection."""


class Stream:
    """Accepts connections, reads what it is sent, and has a function answer each with bytes without end."""

    def __init__(self, answer: Callable[["Stream", socket.socket], None]) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent_bytes = 0
        self.opened = 0
        self.ended = 0
        self._changed = threading.Condition()

    def __enter__(self) -> "Stream":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with self._changed:
            self.opened += 1
            self._changed.notify_all()
        with connection, suppress(OSError):
            self._answer(self, connection)
        with self._changed:
            self.ended += 1
            self._changed.notify_all()

    def send(self, connection: socket.socket, content: bytes) -> None:
        connection.sendall(content)
        self.sent_bytes += len(content)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE_SECONDS)


def without_end(stream: Stream, connection: socket.socket) -> None:
    connection.recv(65_536)
    stream.send(connection, b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
    while True:
        stream.send(connection, b" " * MIB)


def error_without_end(stream: Stream, connection: socket.socket) -> None:
    connection.recv(65_536)
    stream.send(connection, b"HTTP/1.1 400 Bad Request\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        stream.send(connection, b"100000\r\n" + b"x" * MIB + b"\r\n")


def now_and_then(stream: Stream, connection: socket.socket) -> None:
    connection.recv(65_536)
    stream.send(connection, b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        stream.send(connection, b" ")
        time.sleep(PAUSE_SECONDS)


def headers_now_and_then(stream: Stream, connection: socket.socket) -> None:
    connection.recv(65_536)
    stream.send(connection, b"HTTP/1.1 200 OK\r\nx: ")
    while True:
        stream.send(connection, b"x")
        time.sleep(PAUSE_SECONDS)


def string_without_end(stream: Stream, connection: socket.socket) -> None:
    """Of Thrift: a database whose name is as long as an answer may be."""
    _begin_string(stream, connection)
    while True:
        stream.send(connection, b"x" * MIB)


def string_now_and_then(stream: Stream, connection: socket.socket) -> None:
    _begin_string(stream, connection)
    while True:
        stream.send(connection, b"x")
        time.sleep(PAUSE_SECONDS)


def _begin_string(stream: Stream, connection: socket.socket) -> None:
    connection.recv(65_536)
    name = b"get_all_databases"
    stream.send(connection, struct.pack(">Ii", 0x80010002, len(name)) + name + struct.pack(">i", 0))
    stream.send(connection, struct.pack(">bhbi", 15, 0, 11, 1) + struct.pack(">i", ANSWER_BYTES))


def rows_without_end(stream: Stream, connection: socket.socket) -> None:
    """Of PostgreSQL."""
    connection.recv(8)
    connection.sendall(b"N")  # no TLS
    connection.recv(65_536)
    ready = b"Z" + struct.pack(">ic", 5, b"I")
    version = b"server_version\0" + b"17.0\0"
    stream.send(connection, b"R" + struct.pack(">ii", 8, 0))
    stream.send(connection, b"S" + struct.pack(">i", 4 + len(version)) + version + ready)
    row = b"D" + struct.pack(">ihi", 10 + 1000, 1, 1000) + b"x" * 1000
    while True:
        asked = connection.recv(65_536)
        if not asked:
            return
        if b"select" not in asked.lower():
            stream.send(connection, b"C" + struct.pack(">i", 10) + b"BEGIN\0" + ready)
            continue
        column = b"a\0" + struct.pack(">ihihih", 0, 0, 25, -1, -1, 0)
        stream.send(connection, b"1\0\0\0\x042\0\0\0\x04")
        stream.send(connection, b"T" + struct.pack(">ih", 6 + len(column), 1) + column)
        while True:
            stream.send(connection, row * 1000)


_GLUE = {
    "glue.region": "r",
    "glue.access-key-id": "a",
    "glue.secret-access-key": "b",
    "glue.max-retries": "1",
}


_OAUTH = {"credential": "id:secret", "oauth2-server-uri": "http://{address}/token"}


def list_namespaces(settings: Settings, kind: CatalogType, properties: dict[str, str]) -> BaseException:
    """What listing ends with."""
    try:
        given = properties | {"init_catalog_tables": "false"}
        PyIcebergSource(clients.open_catalog(settings, kind, "c", given), lambda _: {}).namespaces()
    except Exception as error:
        return error
    raise AssertionError("it was listed")


@pytest.mark.parametrize(
    ("kind", "properties", "answer"),
    [
        (CatalogType.REST, {"uri": "http://{address}"}, without_end),
        (CatalogType.REST, {"uri": "http://{address}"}, error_without_end),
        (
            CatalogType.REST,
            {"uri": "http://{address}", "credential": "id:secret", "oauth2-server-uri": "http://{address}/t"},
            without_end,
        ),
        (CatalogType.GLUE, {"glue.endpoint": "http://{address}", **_GLUE}, without_end),
        (CatalogType.HIVE, {"uri": "thrift://{address}"}, string_without_end),
        (CatalogType.SQL, {"uri": "postgresql+psycopg://u@{address}/db"}, rows_without_end),
    ],
    ids=["rest", "error", "oauth", "glue", "hive", "postgresql"],
)
def test_no_more_is_taken_of_an_answer_than_the_bound(
    kind: CatalogType, properties: dict[str, str], answer: Callable[..., None], tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path)
    with Stream(answer) as stream:
        given = {key: value.format(address=stream.address) for key, value in properties.items()}
        error = list_namespaces(settings, kind, given)
        limit = limit_of(error)
        assert isinstance(limit, LimitExceededError), error
        assert "MiB" in str(limit)
        stream.wait_until(lambda: stream.ended == stream.opened)
        # AWS's client tries again.
        assert stream.sent_bytes < stream.opened * (ANSWER_BYTES + BUFFERED_BYTES)


@pytest.mark.parametrize(
    ("kind", "properties", "answer"),
    [
        (CatalogType.REST, {"uri": "http://{address}"}, now_and_then),
        (CatalogType.REST, {"uri": "http://{address}"}, headers_now_and_then),
        (CatalogType.GLUE, {"glue.endpoint": "http://{address}", **_GLUE}, now_and_then),
        (CatalogType.HIVE, {"uri": "thrift://{address}"}, string_now_and_then),
    ],
    ids=["body", "headers", "glue", "hive"],
)
def test_a_byte_now_and_then_does_not_lengthen_the_time_in_all(
    kind: CatalogType, properties: dict[str, str], answer: Callable[..., None], tmp_path: Path
) -> None:
    with Stream(answer) as stream:
        given = {key: value.format(address=stream.address) for key, value in properties.items()}
        with Budget(0.3):
            limit = limit_of(list_namespaces(Settings(data_dir=tmp_path), kind, given))
        assert isinstance(limit, OutOfTimeError)
        # What an error leads to may hold the connection until garbage is collected.
        stream.wait_until(lambda: stream.ended == stream.opened or gc.collect() < 0)


@pytest.mark.parametrize("given", [{}, {"ugi": "user:group"}], ids=["asked", "being opened"])
def test_a_connection_to_a_metastore_that_was_cut_is_closed_at_once(
    given: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[socket.socket] = []
    make = TSocket._do_open

    def kept(self: TSocket, *kind: Any) -> socket.socket:
        made.append(make(self, *kind))  # so that no garbage collection closes it
        return made[-1]

    def cut(_: Stream, connection: socket.socket) -> None:
        connection.recv(65_536)
        budget.end()

    monkeypatch.setattr(TSocket, "_do_open", kept)
    with Stream(cut) as stream, Budget(PATIENCE_SECONDS) as budget:
        properties = {"uri": f"thrift://{stream.address}", **given}
        error = list_namespaces(Settings(data_dir=tmp_path), CatalogType.HIVE, properties)
    assert isinstance(limit_of(error), OutOfTimeError)
    assert [connection.fileno() for connection in made] == [-1]


class TestRest:
    """Answers that are complete, and too much."""

    @pytest.fixture
    def answers(self) -> Answers:
        return rest_catalog()

    def limit(self, settings: Settings, answers: Answers) -> str:
        with answering(answers) as server:
            error = list_namespaces(settings, CatalogType.REST, {"uri": server.url})
            limit = limit_of(error)
            assert limit is not None, error
            return str(limit)

    def test_what_gzip_unpacks_counts(self, answers: Answers, settings: Settings) -> None:
        content = gzip.compress(bytes(2 * ANSWER_BYTES)).decode("latin-1")
        answers["/v1/namespaces"] = Answer(content, headers={"content-encoding": "gzip"}, encoding="latin-1")
        assert "64 MiB" in self.limit(settings, answers)

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ("[" * 100_000, "within each other"),
            (f'{{"namespaces": [], "x": [{"[]," * 210_000}0]}}', "objects and lists"),
            (f'{{"namespaces": [], "x": [{"0," * 510_000}0]}}', "values"),
            (f'{{"namespaces": [], "x": {"1" * 501}}}', "digits"),
        ],
        ids=["deep", "lists", "values", "digits"],
    )
    def test_what_a_parser_would_make_too_much_of_is_not_parsed(
        self, answers: Answers, settings: Settings, body: str, said: str
    ) -> None:
        answers["/v1/namespaces"] = Answer(body)
        assert said in self.limit(settings, answers)

    def test_a_page_that_was_read_is_not_read_again(self, answers: Answers, settings: Settings) -> None:
        answers["/v1/namespaces"] = Answer({"namespaces": [], "next-page-token": "again"})
        with answering(answers) as server:
            error = list_namespaces(settings, CatalogType.REST, {"uri": server.url})
            assert "was read already" in str(limit_of(error))
            assert len(server.requests) == 3

    def test_a_list_has_only_so_many_pages(self, answers: Answers, settings: Settings) -> None:
        pages = iter(range(10 * PAGES))
        answers["/v1/namespaces"] = lambda _: Answer({"namespaces": [], "next-page-token": str(next(pages))})
        assert "pages" in self.limit(settings, answers)
        assert next(pages) == PAGES

    def test_namespaces_in_each_other_end(self, answers: Answers, settings: Settings) -> None:
        depth = iter(range(1, 10_000))
        answers["/v1/namespaces"] = lambda _: Answer({"namespaces": [["n"] * next(depth)]})
        assert "levels" in self.limit(settings, answers)
        assert next(depth) < LEVELS + 10


@first_always("text", ['"a"', "'a'", '"\\\\"', "[]"], ids=["strings", "words", "escapes", "lists"])
def test_other_threads_run_while_a_large_answer_is_looked_through(text: str) -> None:
    content = (text * (ANSWER_BYTES // len(text)) + "[" * 70).encode()
    turns, is_over = [0], threading.Event()

    def count() -> None:
        while not is_over.wait(0.001):
            turns[0] += 1

    other = threading.Thread(target=count)
    other.start()
    is_deeper(content, 64)
    is_over.set()
    other.join()
    assert turns[0] >= 10


@pytest.mark.parametrize("size", [*range(65_530, 65_540), 131_070])
def test_strings_and_escapes_may_lie_on_any_byte(size: int) -> None:
    for end in ('"', '\\""', '\\\\"', '\\\\\\""'):
        content = ('["' + "[" * size + end).encode()
        assert not is_deeper(content + b"]", 1)
        assert is_deeper(content + b",[]]", 1)


def test_looking_through_an_answer_ends_with_the_time() -> None:
    with Budget(0), pytest.raises(OutOfTimeError):
        check_json(b"[]", "An answer")


def open_metadata(settings: Settings, location: Path) -> None:
    GuardedFileIO({SETTINGS: settings}).new_input(str(location)).open()


def test_a_metadata_file_that_is_too_large_packed_or_unpacked_is_not_read(
    settings: Settings, tmp_path: Path
) -> None:
    plain, packed = tmp_path / "v1.metadata.json", tmp_path / "v1.gz.metadata.json"
    plain.touch()
    os.truncate(plain, ANSWER_BYTES + 1)
    packed.write_bytes(gzip.compress(bytes(2 * ANSWER_BYTES)))
    for location in (plain, packed):
        with pytest.raises(LimitExceededError, match=rf"{location.name}.* more than 64 MiB"):
            open_metadata(settings, location)


def test_a_pipe_is_no_metadata_file(settings: Settings, tmp_path: Path) -> None:
    pipe = tmp_path / "v1.metadata.json"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as threads:
        opened = threads.submit(open_metadata, settings, pipe)
        try:
            with pytest.raises(FileNotFoundError, match="no regular file"):
                opened.result(PATIENCE_SECONDS / 6)
        finally:
            with suppress(OSError):  # nobody reads it
                os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


def test_a_manifest_that_unpacks_to_too_much_or_tells_of_too_many_entries_is_not_read(
    settings: Settings, tmp_path: Path
) -> None:
    def number(value: int) -> bytes:
        value, found = value << 1, b""
        while value >= 0x80:
            found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
        return found + bytes([value])

    def text(value: bytes) -> bytes:
        return number(len(value)) + value

    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    bomb = packer.compress(bytes(2 * ANSWER_BYTES)) + packer.flush()
    header = b"Obj\x01" + number(1) + text(b"avro.codec") + text(b"deflate") + number(0) + bytes(16)
    nothing = text(zlib.compress(b"", wbits=-zlib.MAX_WBITS))
    manifest = tmp_path / "m.avro"
    for block, said in (
        (number(1) + text(bomb), "64 MiB"),
        (number(0) + nothing + bytes(16) + number(1) + text(bomb), "64 MiB"),
        (number(600_000) + nothing, "entries"),
    ):
        manifest.write_bytes(header + block + bytes(16))
        with pytest.raises(LimitExceededError, match=said):
            open_metadata(settings, manifest)


def test_a_list_of_sqlite_that_never_ends_is_left(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "endless.db"
    catalog = SqlCatalog("c", uri=f"sqlite:///{path}", warehouse=str(tmp_path))
    with catalog.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE iceberg_namespace_properties")
        connection.exec_driver_sql(
            "CREATE VIEW iceberg_namespace_properties AS WITH RECURSIVE n(i) AS "
            "(SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 'c' AS catalog_name, 'n' || i AS namespace, "
            "'k' AS property_key, 'v' AS property_value FROM n"
        )
    catalog.close()
    with Budget(0.5):
        error = list_namespaces(settings, CatalogType.SQL, {"uri": f"sqlite:///{path}", "warehouse": "/w"})
        assert limit_of(error) is not None


def test_a_caller_is_answered_in_time_though_the_thread_that_works_for_it_hangs(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "budget_seconds", lambda _: 0.1)
    is_over = threading.Event()

    async def receive() -> Any:
        await asyncio.sleep(PATIENCE_SECONDS)

    async def ask() -> None:
        its = threads.CatalogThreads(settings)
        asked = its.run(Request({"type": "http"}, receive), "c", lambda: is_over.wait(PATIENCE_SECONDS))
        try:
            with pytest.raises(UnreachableError, match="did not end within"):
                await asked
            assert its._taken == {"c": 1}  # by the thread, which hangs on
        finally:
            is_over.set()
            its.stop()

    run_apart(ask())


def test_a_thread_may_end_when_the_loop_does(settings: Settings) -> None:
    # In a thread of its own: a test of the browser may have left a loop running in this one.
    with ThreadPoolExecutor(1) as apart:
        apart.submit(_a_thread_ends_with_the_loop, settings).result()


def _a_thread_ends_with_the_loop(settings: Settings) -> None:
    async def receive() -> Any:
        await asyncio.sleep(PATIENCE_SECONDS)

    is_over = threading.Event()
    loop = asyncio.new_event_loop()
    its = threads.CatalogThreads(settings)
    asked = loop.create_task(its.run(Request({"type": "http"}, receive), "c", is_over.wait))
    loop.call_later(PAUSE_SECONDS, asked.cancel)
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(asked)
    assert its._taken == {"c": 1}
    is_over.set()
    its._threads.shutdown()
    # The last that this loop does is to learn of the thread's end.
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert not its._taken
    assert not asyncio.all_tasks(loop)
    loop.close()


@contextmanager
def service_process(data_dir: Path, database: Path) -> Iterator[str]:
    port = free_port()
    settings = {
        "ICESTREAM_DATA_DIR": str(data_dir),
        "ICESTREAM_DATABASE_URL": f"sqlite:///{database}",
        "ICESTREAM_BOOTSTRAP_KEY": ADMIN_KEY,
        "ICESTREAM_ALLOWED_HOSTS": "*,127.0.0.0/8",
        "ICESTREAM_PORT": str(port),
    }
    command = [
        "env",
        *(f"{key}={value}" for key, value in settings.items()),
        shutil.which("icestream") or "",
        "serve",
    ]
    command[-2] = str(Path(sys.executable).parent / "icestream")
    with serving(command, port):
        yield f"http://127.0.0.1:{port}"


def test_checks_that_hang_leave_the_service_to_others_and_end_with_their_callers(
    tmp_path: Path, migrated_sqlite: Path
) -> None:
    database = tmp_path / "icestream.db"
    shutil.copy(migrated_sqlite, database)

    async def ask(stream: Stream, url: str) -> list[httpx.Response | BaseException]:
        async with httpx.AsyncClient(
            base_url=f"{url}/api/v1",
            headers={"Authorization": f"Bearer {ADMIN_KEY}"},
            verify=PLAIN_HTTP,
            timeout=PATIENCE_SECONDS,
            limits=httpx.Limits(),
        ) as client:
            for number in range(8):
                properties = {"uri": f"http://{stream.address}"}
                body = {"name": f"c{number}", "type": "rest", "properties": properties}
                assert (await client.post("/catalogs", json=body)).status_code == 201
            asked = [asyncio.create_task(client.post(f"/catalogs/c{at % 8}/check")) for at in range(60)]
            await asyncio.to_thread(stream.wait_until, lambda: stream.opened - stream.ended >= 8)
            for path in ["/livez", "/readyz", "/api/v1/catalogs"] * 3:
                assert (await client.get(url + path)).status_code == 200
            async with asyncio.timeout(PATIENCE_SECONDS):
                while sum(each.done() for each in asked) < len(asked) - 32:  # for which there was no thread
                    await asyncio.sleep(0.05)
            for path in ["/livez", "/api/v1/catalogs"]:
                assert (await client.get(url + path)).status_code == 200
            for each in asked:
                each.cancel()
            return await asyncio.gather(*asked, return_exceptions=True)

    with Stream(now_and_then) as stream, service_process(tmp_path, database) as url:
        answers = [each for each in run_apart(ask(stream, url)) if isinstance(each, httpx.Response)]
        stream.wait_until(lambda: stream.ended == stream.opened)
    assert {each.status_code for each in answers} == {503}
    assert all("retry-after" in each.headers for each in answers)
