"""What is written to and read from S3 takes no request that is not needed."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event
from typing import Any
from urllib.parse import quote

import obstore
import pyarrow as pa
import pytest

from stores import objects
from stores.azure import AzureAccount
from stores.objects import OpenObject, s3_store
from tests.http_server import Answer, Request, answering, serving
from tests.slow_store import SlowStore
from worker.io.storage import ALLOWED_LOCATIONS, Storage
from worker.process.deadline import OutOfTimeError, within

SMALL, LARGE = b"small", bytes(9 * 1024**2)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowStore]:
    folder = tmp_path_factory.mktemp("store")
    (folder / "lake").mkdir()
    with SlowStore(folder, 0).served() as store:
        yield store


@pytest.fixture
def storage(store: SlowStore) -> Storage:
    return Storage(store.properties)


def put(store: SlowStore, content: bytes) -> str:
    (store.folder / "lake" / "file").write_bytes(content)
    return "s3://lake/file"


def _read_into(found: list[bytes], file: OpenObject, ranges: Sequence[tuple[int, int]]) -> None:
    found += file.read_many(ranges)


def test_a_file_is_put_as_a_whole_unless_it_is_large(store: SlowStore, storage: Storage) -> None:
    def streamed(content: bytes) -> None:
        with storage.open_output("s3://lake/new") as sink:
            sink.write(content[:3])
            sink.write(content[3:])
            assert sink.tell() == len(content)
        assert (store.folder / "lake" / "new").read_bytes() == content

    asked = store.counted(lambda: storage.write("s3://lake/vector", pa.py_buffer(SMALL)))
    assert asked.by_kind == {"PUT": 1}
    assert (store.folder / "lake" / "vector").read_bytes() == SMALL
    asked = store.counted(lambda: storage.write("s3://lake/vector", pa.py_buffer(LARGE)))
    assert asked.by_kind["END UPLOAD"] == 1
    assert (store.folder / "lake" / "vector").read_bytes() == LARGE
    assert store.counted(lambda: streamed(SMALL)).by_kind == {"PUT": 1}
    assert store.counted(lambda: streamed(LARGE)).by_kind["END UPLOAD"] == 1


def test_small_pieces_of_a_new_file_wait_for_each_other(
    store: SlowStore, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, real = [], objects.S3Object._asked

    def counted(found: objects.S3Object, request: Any) -> Any:
        asked.append(found)
        return real(found, request)

    monkeypatch.setattr(objects.S3Object, "_asked", counted)
    with storage.open_output("s3://lake/pieces") as sink:
        for _ in range(25_000):
            sink.write(b"x" * 100)
    assert len(asked) == 4  # by the MiB, and once to close
    assert (store.folder / "lake" / "pieces").read_bytes() == b"x" * 2_500_000


def test_what_a_store_refuses_at_the_end_is_told_and_is_not_there(
    store: SlowStore, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: objects.S3Object, request: Any) -> Any:
        request.close()
        raise PermissionError("not yours")

    sink = storage.open_output("s3://lake/refused")
    sink.write(SMALL)
    monkeypatch.setattr(objects.S3Object, "_asked", refuse)
    with pytest.raises(PermissionError, match="not yours"):
        sink.close()
    sink.close()
    assert not (store.folder / "lake" / "refused").exists()


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
def test_what_nobody_has_closed_is_not_there(content: bytes, store: SlowStore, storage: Storage) -> None:
    def write() -> None:
        sink = storage.open_output("s3://lake/unfinished")
        sink.write(content)
        del sink
        with suppress(RuntimeError), storage.open_output("s3://lake/unfinished") as sink:
            sink.write(content)
            raise RuntimeError

    assert "END UPLOAD" not in store.counted(write).by_kind
    assert not (store.folder / "lake" / "unfinished").exists()


def test_no_request_is_for_the_size_alone(store: SlowStore, storage: Storage) -> None:
    place = put(store, b"PAR1" + SMALL)

    def read(size_bytes: int | None = None) -> None:
        with storage.open_input(place, size_bytes) as file:
            assert file.size() == 9
            assert file.read_at(5, 4) == SMALL
            assert file.read_at(4, 0) == b"PAR1"
            assert file.read_at(20, 8) == b"l"

    assert store.counted(read).by_kind == {"GET": 1}
    # From its end on, as Parquet is read.
    assert store.counted(lambda: read(9)).by_kind == {"GET": 2}
    assert store.counted(lambda: storage.open_input(place, 9)).count == 0
    assert store.counted(lambda: storage.read(place, 4, 2)).by_kind == {"GET": 1}
    assert store.counted(lambda: storage.read(place)).by_kind == {"GET": 1}
    assert store.counted(lambda: storage.exists(place)).by_kind == {"HEAD": 1}
    assert (storage.read(place, 4, 2), storage.read(place, 7, 9)) == (b"sm", b"ll")


def test_a_file_may_be_empty_gone_or_shorter_than_it_should_be(store: SlowStore, storage: Storage) -> None:
    with storage.open_input(put(store, b"")) as file:
        assert (file.size(), file.read()) == (0, b"")
    assert [storage.read("s3://lake/file", *place) for place in ((), (0, 4), (7, 4))] == [b""] * 3
    with pytest.raises(OSError, match="s3://lake/file ends before byte 12"):
        storage.open_input(put(store, SMALL), 12).read_at(10, 2)
    with pytest.raises(FileNotFoundError, match="s3://lake/none"):
        storage.open_input("s3://lake/none")
    with pytest.raises(FileNotFoundError, match="s3://lake/none"):
        storage.open_input("s3://lake/none", 12).read_at(2, 2)
    assert not storage.exists("s3://lake/none")


@pytest.mark.parametrize("key", ["/file", "file/", "a//file", ""])
def test_a_name_that_libraries_read_differently_is_not_asked_for(
    key: str, store: SlowStore, storage: Storage
) -> None:
    put(store, SMALL)
    place = f"s3://lake/{key}"

    def ask() -> None:
        for work in (
            lambda: storage.read(place),
            lambda: storage.write(place, pa.py_buffer(SMALL)),
            lambda: storage.create(place, SMALL),
            lambda: storage.open_input(place, 5),
            lambda: storage.open_output(place),
            lambda: storage.io.new_input(place).open(),
            lambda: storage.exists(place),
        ):
            with pytest.raises(pa.ArrowInvalid, match="has an empty name"):
                work()

    assert store.counted(ask).count == 0


@pytest.mark.parametrize(
    ("properties", "is_known"),
    [
        ({}, False),
        ({"s3.region": "eu-central-1"}, True),
        ({"client.region": "eu-central-1"}, True),
        ({"s3.region": "eu-central-1", "s3.resolve-region": "True"}, False),
        ({"s3.endpoint": "http://minio:9000"}, True),
        ({"s3.endpoint": "http://minio:9000", "s3.resolve-region": "true"}, False),
        ({"s3.endpoint": "https://s3.eu-central-1.amazonaws.com"}, False),
        ({"s3.endpoint": "https://S3.cn-north-1.amazonaws.com.cn:443"}, False),
        ({"s3.endpoint": "https://s3.eu-central-1.amazonaws.com", "s3.region": "eu-central-1"}, True),
    ],
)
def test_a_bucket_whose_region_has_to_be_found_is_left_to_arrow(
    properties: dict[str, str], is_known: bool
) -> None:
    assert Storage(properties).is_on_s3("s3://lake/file") == is_known


def test_an_error_tells_what_the_store_answers_or_why_it_does_not() -> None:
    def refused(_: Request) -> Answer:
        return Answer("<Error>\n<Code>ExpiredToken</Code></Error>", 400)

    given = {"s3.region": "us-east-1", "s3.access-key-id": "key", "s3.secret-access-key": "secret"}
    key = "город/" * 60
    with answering({f"/lake/{quote(key)}a": refused}) as server:
        storage = Storage(given | {"s3.endpoint": server.url})
        with pytest.raises(OSError, match="400 Bad Request: <Error> <Code>ExpiredToken"):
            storage.read(f"s3://lake/{key}a", 0, 4)
    with pytest.raises(OSError, match="Connection refused"):
        storage.read("s3://lake/a", 0, 4)


def test_ranges_that_are_asked_for_at_once_are_bounded_by_number_and_bytes(
    store: SlowStore, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = put(store, bytes(range(256)) * 100)
    ranges = [(start, start + 10) for start in range(0, 25_000, 250)]
    for requests, held_bytes, most in ((5, 10_000, 5), (256, 30, 3), (256, 1, 1)):
        monkeypatch.setattr(objects, "REQUESTS", requests)
        monkeypatch.setattr(objects, "_HELD_BYTES", held_bytes)
        file = storage.open_input(place, 25_600)
        found: list[bytes] = []
        asked = store.counted(partial(_read_into, found, file, ranges))
        assert (asked.by_kind, asked.most_at_once <= most) == ({"GET": 100}, True)
        assert [one[0] for one in found] == [start % 256 for start, _ in ranges]


def test_nobody_waits_for_another_store_or_for_longer_than_there_is_time(
    store: SlowStore, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "REQUESTS", 1)
    is_over = Event()

    def hang(_: Request) -> Answer:
        is_over.wait()
        return Answer("", 404)

    place = put(store, SMALL)
    with ThreadPoolExecutor() as threads, answering({"/lake/a": hang, "/lake/b": Answer("", 404)}) as server:
        hung = Storage(store.properties | {"s3.endpoint": server.url, "s3.request-timeout": "5"})
        with pytest.raises(OutOfTimeError), within(0.2):
            hung.read("s3://lake/a", 0, 4)
        with pytest.raises(FileNotFoundError):  # that one has let go of its place
            hung.read("s3://lake/b", 0, 4)

        waiting = threads.submit(hung.read, "s3://lake/a", 0, 4)
        while len(server.requests) < 3:
            time.sleep(0.01)
        assert storage.read(place, 0, 2) == b"sm"
        assert not waiting.done()
        is_over.set()
        with pytest.raises(FileNotFoundError):
            waiting.result()


def test_of_many_ranges_one_that_fails_ends_all(
    store: SlowStore, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "REQUESTS", 5)
    place = put(store, SMALL)

    def ask() -> None:
        with pytest.raises(FileNotFoundError):
            storage.open_input("s3://lake/none", 100).read_many([(start, start + 1) for start in range(100)])
        storage.read(place, 0, 1)  # after all that wait

    assert store.counted(ask).count < 50


def test_an_answer_may_take_long_as_long_as_it_comes() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(206)
            self.send_header("content-length", "8")
            self.send_header("content-range", "bytes 0-7/8")
            for name in ("last-modified", "etag"):
                self.send_header(name, "Thu, 26 Nov 2026 10:00:00 GMT")
            self.end_headers()
            for _ in range(8):
                time.sleep(0.2)
                self.wfile.write(b"x")

        def log_message(self, *_: object) -> None:
            """Into nobody's terminal."""

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        given = {"s3.endpoint": f"http://127.0.0.1:{port}", "s3.anonymous": "true"}
        assert Storage(given | {"s3.request-timeout": "1"}).read("s3://lake/a", 0, 8) == b"x" * 8


def test_what_is_read_ahead_is_asked_for_at_once_and_once(store: SlowStore, storage: Storage) -> None:
    location = put(store, b"0123456789")
    ranges = [(location, 1, 3), (location, 8, 9), ("s3://lake/gone", 0, 1), ("s3://lake//odd/../name", 0, 1)]
    ahead: list[Storage] = []
    store.counted(lambda: ahead.append(storage.read_ahead(ranges)))
    (known,) = ahead
    assert store.counted(lambda: known.read(location, 1, 3)).by_kind == {}
    assert [known.read(*one) for one in ranges[:2]] == [storage.read(*one) for one in ranges[:2]]
    assert known.read(location, 2, 3) == b"234"
    with pytest.raises(FileNotFoundError):
        known.read("s3://lake/gone", 0, 1)
    assert storage.read_ahead(ranges[2:3]) is storage
    # Nothing is read of what lies elsewhere.
    limited = Storage(store.properties | {ALLOWED_LOCATIONS: "s3://other"})
    assert limited.read_ahead(ranges) is limited


def test_of_a_store_that_fails_no_more_is_read_ahead() -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(403)

        def log_message(self, *_: object) -> None:
            """Into nobody's terminal."""

    ranges = [(f"s3://lake/{number}", 0, 8) for number in range(2_000)]
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        given = {"s3.endpoint": f"http://127.0.0.1:{port}", "s3.anonymous": "true"}
        storage = Storage(given)
        assert storage.read_ahead(ranges) is storage
    assert 0 < len(asked) < 1_000


def test_a_large_range_comes_in_parts(store: SlowStore, storage: Storage) -> None:
    content = bytes(range(256)) * (40 * 1024)
    place, end = put(store, content), len(content)
    found: list[bytes] = []
    ranges = [(0, 3), (1, end), (end - 2, end)]
    file = storage.open_input(place, end)
    assert store.counted(lambda: _read_into(found, file, ranges)).by_kind == {"GET": 4}
    assert found == [content[start:end] for start, end in ranges]


def test_a_metadata_file_comes_with_its_size(store: SlowStore, storage: Storage) -> None:
    def read(content: bytes) -> None:
        with storage.io.new_input(put(store, content)).open() as file:
            assert file.read() == content

    assert store.counted(lambda: read(SMALL)).by_kind == {"GET": 1}
    assert store.counted(lambda: read(LARGE)).by_kind == {"GET": 2}


def test_what_a_record_says_of_a_store_goes_before_the_environment(
    store: SlowStore, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "another",
        "AWS_SESSION_TOKEN": "token-of-this-machine",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
        "AWS_REGION": "eu-central-1",
    }.items():
        monkeypatch.setenv(name, value)
    assert storage.read(put(store, SMALL)) == SMALL
    url = obstore.sign(
        s3_store("lake", store.properties, ("key", "secret", None)), "GET", "a", timedelta(minutes=1)
    )
    assert url.startswith(f"http://127.0.0.1:{store.port}/lake/a?")
    assert "X-Amz-Credential=key%2F" in url
    assert "%2Fus-east-1%2F" in url
    assert "Security-Token" not in url


def test_what_a_record_says_of_googles_store_goes_before_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("BASE_URL", "BEARER_TOKEN", "SKIP_SIGNATURE"):
        monkeypatch.setenv(f"GOOGLE_{name}", {"BASE_URL": "http://127.0.0.1:1"}.get(name, "true"))
    shown = []

    def written(request: Request) -> Answer:
        shown.append(request.headers.get("authorization"))
        headers = {"last-modified": "Thu, 26 Nov 2026 10:00:00 GMT", "etag": "1", "x-goog-generation": "1"}
        return Answer("", 201, headers)

    with answering({"/lake/new": written}) as server:
        given = {"gcs.service.host": server.url, "gcs.oauth2.token": "given"}
        assert Storage(given).create("gs://lake/new", SMALL)
    assert shown == ["Bearer given"]


@pytest.mark.parametrize("given", ["key", "sas_token"])
def test_what_a_record_says_of_azures_store_goes_before_the_environment(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "STORAGE_TOKEN": "token-of-this-machine",
        "STORAGE_ACCOUNT_KEY": "YW5vdGhlcg==",
        "STORAGE_ENDPOINT": "http://127.0.0.1:1",
        "STORAGE_USE_EMULATOR": "true",
        "SKIP_SIGNATURE": "true",
        # Of a workload's identity, as Kubernetes gives it.
        "CLIENT_ID": "workload",
        "TENANT_ID": "tenant",
        "FEDERATED_TOKEN_FILE": "/no/such/file",
        "AUTHORITY_HOST": "http://127.0.0.1:1",
    }.items():
        monkeypatch.setenv(f"AZURE_{name}", value)
    shown = []

    def looked_at(request: Request) -> Answer:
        shown.append((request.headers.get("authorization", "").partition(":")[0], request.query.get("sig")))
        headers = {"last-modified": "Thu, 26 Nov 2026 10:00:00 GMT", "etag": "1"}
        return Answer("", 200, headers)

    with answering({"/acc/lake/file": looked_at}) as server:
        secret = {"key": "Z2l2ZW4=", "sas_token": "sv=1&sig=given"}[given]
        account = AzureAccount("acc", f"{server.url}/acc", **{given: secret})
        obstore.head(account.container("lake"), "file")
    assert shown == [{"key": ("SharedKey acc", None), "sas_token": ("", "given")}[given]]
