"""A lookup server, asked over HTTP about a table that PyIceberg wrote and that has no index yet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.serializers import FromInputFile
from pyiceberg.types import StringType
from starlette.applications import Starlette

from tests.arrow_memory import measured
from tests.benchmarks.waiting_files import WaitingFiles
from tests.http_server import Answer, answering
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.server_process import free_port, serving
from tests.service.conftest import run_apart
from tests.service.iceberg_tables import ARROW, IcebergCatalog
from trust.arrow_streams import STREAM_TYPE
from worker.contract.lookups import SECONDS_LEFT
from worker.index import key_set_index, run_files
from worker.index.build import build_tasks
from worker.index.commit import commit_index
from worker.index.dictionary import IndexedFile, assign_row_addresses
from worker.index.key_set_index import database_name, open_index
from worker.index.run_files import RunFile
from worker.index.warehouse import IndexWarehouse
from worker.io import cached_files, file_formats, parquet_pages, parquet_rows
from worker.io.cache import Cache
from worker.io.storage import Storage
from worker.keys.read import KeyReader, key_reader
from worker.keys.schema_fields import resolve_key_set
from worker.lookup import index_lookup
from worker.lookup_server import app
from worker.lookup_server.admission import Admission
from worker.lookup_server.app import create_app
from worker.lookup_server.main import main
from worker.process import deadline
from worker.process.memory import MemoryBudget
from worker.process.slots import Threads
from worker.query import answers, places, rows, snapshot
from worker.query.answers import Answers
from worker.query.report import report
from worker.query.snapshot import PendingKeys, TableSnapshot, snapshot_of
from worker.table import manifests
from worker.table.files import DeleteFile, FileContent, PartitionKey

TOKEN = "a-token-of-these-tests"
ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, None], pa.int64()),
        "name": ["one", "two", "three", "none"],
        "tags": [["a", "b"], [], None, ["c"]],
        "at": pa.array([0, 1, None, 3], pa.timestamp("us", "UTC")),
    }
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the service says of it."""
    directory = tmp_path_factory.mktemp("lake")
    catalog = SqlCatalog("lake", uri=f"sqlite:///{directory}/catalog.db", warehouse=directory.as_uri())
    catalog.create_namespace("db")
    made = catalog.create_table("db.t", ROWS.schema)
    made.append(ROWS)
    made.append(ROWS.slice(1, 1))
    catalog.close()
    return {
        "metadata_location": made.metadata_location,
        "properties": {"uri": "sqlite:////nowhere.db", "warehouse": directory.as_uri()},
        "index": {"warehouse": f"{directory.as_uri()}/index"},
        "allowed_locations": [directory.as_uri()],
        "allowed_hosts": [],
        "allowed_secrets": [],
    }


def described(metadata_location: str, directory: Path) -> dict[str, Any]:
    """A table in a directory, as the service says it."""
    return {
        "metadata_location": metadata_location,
        "properties": {"warehouse": directory.as_uri()},
        "index": {"warehouse": f"{directory.as_uri()}/index"},
        "allowed_locations": [directory.as_uri()],
        "allowed_hosts": [],
        "allowed_secrets": [],
    }


class Server:
    """An app, asked as over HTTP."""

    def __init__(self, app: Starlette, token: str) -> None:
        self._app = app
        self._headers = {"Authorization": f"Bearer {token}"}

    def request(self, method: str, path: str, **what: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://lookup", headers=self._headers
            ) as client:
                return await client.request(method, path, **what)

        return run_apart(send())

    def post(self, path: str, json: Any) -> httpx.Response:
        return self.request("POST", path, json=json)


@pytest.fixture(scope="module")
def server() -> Server:
    return Server(create_app(TOKEN), TOKEN)


def ask(server: Server, table: dict[str, Any], *keys: dict[str, Any], **further: Any) -> httpx.Response:
    question = {"keys": keys, "key_columns": ["id"], **further}
    return server.post("/lookups", json={"table": table, "question": question})


def test_each_key_is_answered_with_all_its_rows(server: Server, table: dict[str, Any]) -> None:
    keys: list[dict[str, Any]] = [{"id": 2}, {"id": None}, {"id": "2"}, {"id": 99}]
    answer = ask(server, table, *keys, select=["name", "tags", "at"])
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert (told["data_files_from_index"], told["data_files_scanned"], told["rows_scanned"]) == (0, 2, 5)
    assert [one["key"] for one in told["results"]] == keys
    rows = [[match["row"] for match in one["matches"]] for one in told["results"]]
    two = {"name": "two", "tags": [], "at": "1970-01-01T00:00:00.000001+00:00"}
    assert rows == [
        [two, two],
        [{"name": "none", "tags": ["c"], "at": "1970-01-01T00:00:00.000003+00:00"}],
        [two, two],
        [],
    ]
    assert {(match["position"], match["live"]) for match in told["results"][0]["matches"]} == {
        (1, True),
        (0, True),
    }


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        ({"keys": [{"id": 1.5}]}, "invalid_key", "Key 0: column id is of type long"),
        ({"keys": [{"id": 2**63}]}, "invalid_key", "out of range"),
        ({"keys": [{"id": True}]}, "invalid_key", "no whole number"),
        ({"keys": [{"id": 1}, {"name": "x"}]}, "invalid_key", "Key 1 has the columns name, not id"),
        ({"key_columns": ["nothing"]}, "unknown_key_columns", "no column 'nothing'"),
        ({"key_columns": None}, "unknown_key_columns", "no key set yet"),
        ({"key_columns": ["tags"]}, "unknown_key_columns", "can't be a key"),
        ({"select": ["nothing"]}, "unknown_columns", "nothing"),
        ({"snapshot_id": 17}, "unknown_snapshot", "no snapshot 17"),
        ({"branch": "dev"}, "unknown_snapshot", "no branch or tag 'dev'; it has main"),
        ({"keys": []}, "malformed", "keys"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_its_reason(
    asked: dict[str, Any], code: str, said: str, server: Server, table: dict[str, Any]
) -> None:
    question = {"keys": [{"id": 1}], "key_columns": ["id"], **asked}
    answer = server.post("/lookups", json={"table": table, "question": question})
    assert 400 <= answer.status_code < 500
    assert (answer.json()["code"], said in answer.json()["detail"]) == (code, True), answer.text
    assert answer.json()["remedy"]


def test_more_than_may_be_scanned_is_refused(
    server: Server, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "SCANNED_ROWS", 4)
    answer = ask(server, table, {"id": 1})
    assert (answer.status_code, answer.json()["code"]) == (409, "not_covered")
    assert "5 rows in 2 data files would have to be read, since there is no index" in answer.json()["detail"]
    # A job indexes no key that is not declared.
    assert """`icestream tables update TABLE --key-sets '[["id"]]'`""" in answer.json()["remedy"]


@pytest.mark.parametrize("count", [2, 1])
def test_more_rows_than_an_answer_may_have_are_refused(
    count: int, server: Server, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal keys count each."""
    monkeypatch.setattr(app, "MATCHES", 2 * count - 1)
    answer = ask(server, table, *count * [{"id": 2}])
    assert (answer.status_code, answer.json()["code"]) == (422, "answer_too_large")
    monkeypatch.setattr(app, "MATCHES", 2 * count)
    assert ask(server, table, *count * [{"id": 2}]).status_code == 200


def test_rows_of_more_bytes_than_an_answer_may_have_are_refused(
    server: Server, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = ROWS.slice(2, 1).select(["name"]).nbytes
    monkeypatch.setattr(app, "ROW_BYTES", 50 * one)
    assert ask(server, table, *30 * [{"id": 3}], select=["name"]).status_code == 200
    answer = ask(server, table, *100 * [{"id": 3}], {"id": 1}, select=["name"])
    assert (answer.status_code, answer.json()["code"]) == (422, "answer_too_large")


LONG = "x" * 10_000
OF_EACH = [{"id": key} for key in range(3_000)]


@pytest.mark.parametrize(
    ("asked", "accept", "status"),
    [
        ({"keys": OF_EACH, "select": ["region"]}, None, 422),
        ({"keys": OF_EACH[:1], "select": ["region"]}, None, 200),
        ({"keys": OF_EACH}, None, 200),
        ({"keys": [{"region": "y"}], "key_columns": ["region"]}, None, 200),
        ({"keys": [{"region": LONG}], "key_columns": ["region"]}, None, 200),
        ({"keys": [{"region": LONG}], "key_columns": ["region"]}, STREAM_TYPE, 422),
    ],
)
def test_a_small_file_of_large_rows_takes_no_more_than_a_large_one(
    asked: dict[str, Any], accept: str | None, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a dictionary, a text of thousands of rows stands once. Pending deletes are looked up by each row."""
    monkeypatch.setattr(parquet_pages, "BATCH_BYTES", 500_000)
    monkeypatch.setattr(app, "ROW_BYTES", 1_000_000)
    iceberg = IcebergCatalog(tmp_path)
    large = pa.table({"id": range(3_000), "region": [LONG] * 3_000}, ARROW)
    iceberg.create("db.t").append(large)
    iceberg.delete_keys("db.t", ["z"], column="region")
    table = described(iceberg.catalog.load_table("db.t").metadata_location, tmp_path)
    iceberg.close()
    body = {"table": table, "question": {"key_columns": ["id"], **asked}}
    headers = {} if accept is None else {"Accept": accept}
    with measured() as pool:
        answer = Server(create_app(TOKEN), TOKEN).request("POST", "/lookups", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert pool.max_memory() < 6_000_000 < large.nbytes


def test_a_page_that_is_too_large_is_not_unpacked(
    table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_rows, "_PAGE_BYTES_UNPACKED", 10)
    answer = ask(Server(create_app(TOKEN), TOKEN), table, {"id": 1}, select=["name"])
    assert (answer.status_code, answer.json()["code"]) == (409, "unreadable")
    assert "write.parquet.page-size-bytes" in answer.json()["remedy"]


@pytest.mark.parametrize(
    "changed",
    [
        {"metadata_location": "file:///etc/passwd"},
        {"allowed_locations": ["file:///elsewhere"]},
        {"properties": {"warehouse": "s3://lake", "s3.endpoint": "http://169.254.169.254"}},
        {"properties": {"warehouse": "s3://lake", "s3.secret-access-key": "env:HOME"}},
    ],
)
def test_nothing_is_opened_that_the_service_does_not_allow(
    changed: dict[str, Any], server: Server, table: dict[str, Any]
) -> None:
    answer = ask(server, table | changed, {"id": 1})
    assert answer.status_code == 409, answer.text
    assert answer.json()["code"] in ("not_allowed", "catalog_unreachable")


def test_only_the_service_is_answered(table: dict[str, Any]) -> None:
    stranger = Server(create_app(TOKEN), "another")
    assert ask(stranger, table, {"id": 1}).status_code == 401
    assert stranger.request("GET", "/livez").status_code == 200


class Indexed:
    """The table with an index of the key `id`, which is made without Spark."""

    def __init__(self, table: dict[str, Any]) -> None:
        storage = Storage()
        metadata = FromInputFile.table_metadata(storage.io.new_input(table["metadata_location"]))
        self._reader = key_reader(metadata, storage, resolve_key_set(metadata, (1,)))
        snapshot = TableSnapshot(storage, metadata, snapshot_of(metadata), Cache(2**20))
        self._files = [*snapshot.files.data_files]
        self._warehouse = IndexWarehouse(table["index"]["warehouse"], storage)
        self._database = database_name(str(metadata.table_uuid), "main")
        self.make()

    def make(self, *, backwards: bool = False) -> None:
        index = open_index(self._warehouse, self._database, self._reader.key_set, create=True)
        assert index is not None
        files = assign_row_addresses(
            self._files[::-1] if backwards else self._files, 0, index.dictionary.partitions()
        )
        self._runs = partial(build_tasks, self._reader, self._warehouse.storage, index.entries_table.location)
        self._index = commit_index(index, self._written(files), files)

    def compact(self) -> None:
        """To other files with the same entries; the ones before are removed."""
        entries = self._index.entries
        files = assign_row_addresses(self._files, 0, self._index.dictionary.partitions())
        self._index.entries_table.commit_files(entries, self._written(files), entries.files)
        for file in entries.files:
            Path(file.location.removeprefix("file://")).unlink()

    def drop(self) -> None:
        self._warehouse.drop(self._database)

    def replace(self) -> None:
        self.drop()
        self.make(backwards=True)

    def _written(self, files: Sequence[IndexedFile]) -> list[RunFile]:
        return [run for task in self._runs(files, 1) for run in task.run(None).runs]


class _FarAnswers(Answers):
    """Of files that lie in a store."""

    def files(self, properties: Mapping[str, str]) -> Storage:
        return self._cache.get(
            ("files", frozenset(properties.items())),
            lambda: WaitingFiles(properties, self._cache, 0),
            lambda _: 1_000,
        )


@pytest.mark.parametrize(
    ("happens", "data_files_from_index"),
    [(Indexed.compact, 2), (Indexed.drop, 0), (Indexed.replace, 2)],
)
@pytest.mark.parametrize("is_far", [False, True])
def test_what_happens_to_an_index_that_is_open_changes_no_answer(
    happens: Callable[[Indexed], None],
    data_files_from_index: int,
    table: dict[str, Any],
    tmp_path: Path,
    is_far: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cached_files, "_RANGE_BYTES", 0)  # or else files as small as these are kept whole
    table = table | {"index": {"warehouse": (tmp_path / "index").as_uri()}}
    table["allowed_locations"] = [*table["allowed_locations"], tmp_path.as_uri()]
    index = Indexed(table)
    server = Server(create_app(TOKEN, _FarAnswers() if is_far else None), TOKEN)
    before = ask(server, table, {"id": 2}, {"id": 3}, select=["name"]).json()
    assert before["data_files_from_index"] == 2
    happens(index)
    after = ask(server, table, {"id": 2}, {"id": 3}, select=["name"])
    assert after.status_code == 200, after.text
    assert after.json()["data_files_from_index"] == data_files_from_index

    def places(told: dict[str, Any]) -> list[list[tuple[str, int]]]:
        return [
            sorted((match["data_file"], match["position"]) for match in one["matches"])
            for one in told["results"]
        ]

    assert places(after.json()) == places(before)


def test_an_index_that_covers_all_by_now_is_looked_for_again_after_a_while(
    table: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table | {"index": {"warehouse": (tmp_path / "index").as_uri()}}
    table["allowed_locations"] = [*table["allowed_locations"], tmp_path.as_uri()]
    server = Server(create_app(TOKEN), TOKEN)

    def files_from_index(seconds: float) -> Any:
        monkeypatch.setattr(answers, "_LOOK_AGAIN_SECONDS", seconds)
        return ask(server, table, {"id": 1}).json()["data_files_from_index"]

    assert files_from_index(1e9) == 0
    Indexed(table)
    assert [files_from_index(1e9), files_from_index(-1.0)] == [0, 2]


def test_a_question_too_many_is_refused_at_once(table: dict[str, Any]) -> None:
    one, none = (Server(create_app(TOKEN, admission=Admission(count)), TOKEN) for count in (1, 0))
    for _ in range(2):  # the first gives its turn back
        assert ask(one, table, {"id": 1}).status_code == 200
    busy = ask(none, table, {"id": 1})
    assert (busy.status_code, busy.json()["code"]) == (503, "busy")
    assert int(busy.headers["Retry-After"]) > 0
    # The next question of this client may then reach another server.
    assert busy.headers["Connection"] == "close"


POSITION_DELETE = DeleteFile(
    FileContent.POSITION_DELETES, "file:///deletes.parquet", "parquet", PartitionKey(0, "[]"), 5, 1_000, 9
)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (Answers, "coverage"),  # what was sent
        (answers, "parse_table_metadata"),
        (manifests, "_files"),
        (snapshot, "_by_key_set"),  # what manifests tell
        (snapshot, "existing_deletes"),
        (key_set_index, "FileDictionary"),
        (KeyReader, "_to_key_batch"),
        (index_lookup, "_read"),
        (PendingKeys, "_read"),
        (app, "selected"),  # matches
        (app, "report"),  # rows
    ],
)
def test_what_questions_hold_is_bounded_together(
    place: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a question reads or shows something, there is less room for others than before it."""
    iceberg = IcebergCatalog(tmp_path)
    iceberg.create("db.t")
    iceberg.append("db.t", [1, 2])
    table = described(iceberg.catalog.load_table("db.t").metadata_location, tmp_path)
    if place in (index_lookup, key_set_index):
        Indexed(table)
    if name == "existing_deletes":
        of_each = (POSITION_DELETE,)
        monkeypatch.setattr(TableSnapshot, "deletes_of", lambda _, files: [of_each for _ in files])
        monkeypatch.setattr(snapshot, name, lambda *_: {})
    iceberg.append("db.t", [3])
    iceberg.delete_keys("db.t", [1])
    table["metadata_location"] = iceberg.catalog.load_table("db.t").metadata_location
    iceberg.close()
    budget = MemoryBudget(2**40, 0)
    server = Server(create_app(TOKEN, admission=Admission(memory=budget)), TOKEN)
    done, taken, free = getattr(place, name), [0], []
    take = MemoryBudget.take

    def remembered(self: MemoryBudget, share: Any, size_bytes: int, *, waits: bool) -> None:
        if size_bytes:
            taken.append(budget.taken_bytes)
        take(self, share, size_bytes, waits=waits)

    def done_once(*arguments: Any, **named: Any) -> Any:
        free.append(budget.taken_bytes > taken[-1])
        return done(*arguments, **named)

    monkeypatch.setattr(MemoryBudget, "take", remembered)
    monkeypatch.setattr(place, name, done_once)
    answer = ask(server, table, {"id": 1}, {"id": 2}, {"id": 3}, select=["region"])
    assert answer.status_code == 200, answer.text
    assert free[0]
    assert budget.taken_bytes == 0


def test_a_question_without_room_is_refused_and_may_be_asked_elsewhere(
    table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(create_app(TOKEN, admission=Admission(memory=MemoryBudget(1, 0))), TOKEN)
    show, refused = report, []

    def ask_meanwhile(*arguments: Any) -> Any:
        with ThreadPoolExecutor(1) as beside:
            refused.append(beside.submit(ask, server, table, {"id": 1}).result())
        return show(*arguments)

    monkeypatch.setattr(app, "report", ask_meanwhile)
    assert ask(server, table, {"id": 1}).status_code == 200
    assert (refused[0].status_code, refused[0].json()["code"]) == (503, "busy")
    assert int(refused[0].headers["Retry-After"]) > 0


def test_a_server_is_ready_while_it_takes_questions_from_whoever_has_its_token() -> None:
    def probed(probe: str, count: int, *token: str) -> int:
        return (
            Server(create_app(TOKEN, admission=Admission(count)), *token or [TOKEN])
            .request("GET", probe)
            .status_code
        )

    assert [probed("/readyz", count) for count in (1, 0)] == [200, 503]
    assert probed("/readyz", 1, "another") == 401
    assert probed("/livez", 0) == 200


def test_metadata_that_is_gone_is_asked_for_again(server: Server, table: dict[str, Any]) -> None:
    gone = table["metadata_location"].replace(".metadata.json", "-gone.metadata.json")
    answer = ask(server, table | {"metadata_location": gone}, {"id": 1})
    assert (answer.status_code, answer.json()["code"]) == (503, "outdated")
    assert int(answer.headers["Retry-After"]) > 0
    assert Path(gone.removeprefix("file://")).exists() is False


@pytest.mark.parametrize("token", ["", "short"])
def test_without_a_token_no_server_starts(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICESTREAM_LOOKUP_TOKEN", token)
    with pytest.raises(SystemExit, match=r"ICESTREAM_LOOKUP_TOKEN is not valid: .*16 characters"):
        main()


def test_the_command_starts_a_server(table: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("ICESTREAM_LOOKUP_TOKEN", TOKEN)
    monkeypatch.setenv("ICESTREAM_LOOKUP_PORT", str(port))
    question = {"keys": [{"id": 3}], "key_columns": ["id"], "select": ["name"]}
    with serving([f"{sys.prefix}/bin/icestream", "lookup"], port):
        answer = httpx.post(
            f"http://127.0.0.1:{port}/lookups",
            json={"table": table, "question": question},
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=PATIENCE_SECONDS,
        )
    assert [match["row"] for match in answer.json()["results"][0]["matches"]] == [{"name": "three"}]


@dataclass
class Stopped:
    """A server's process that was asked to stop while it waits for a store; `release` ends that."""

    process: subprocess.Popen[bytes]
    answer: Future[httpx.Response]
    release: Event


@contextmanager
def stopped(table: dict[str, Any], start: str) -> Iterator[Stopped]:
    """start: the program, which knows the server's module as `main`."""
    begun, release = Event(), Event()

    def holds(_: object) -> Answer:
        begun.set()
        release.wait(PATIENCE_SECONDS)
        return Answer("", 404)

    def refuses() -> bool:
        try:
            httpx.get(f"http://127.0.0.1:{port}/livez", timeout=PATIENCE_SECONDS)
        except httpx.TransportError:
            return True
        return False

    port = free_port()
    environment = os.environ | {"ICESTREAM_LOOKUP_TOKEN": TOKEN, "ICESTREAM_LOOKUP_PORT": str(port)}
    command = [sys.executable, "-c", f"from worker.lookup_server import main; {start}"]
    with (
        answering({"/lake/gone.metadata.json": holds}) as store,
        ThreadPoolExecutor(1) as beside,
        subprocess.Popen(command, env=environment) as process,
    ):
        keys = {"s3.access-key-id": "k", "s3.secret-access-key": "s", "s3.region": "r"}
        asked = table | {
            "metadata_location": "s3://lake/gone.metadata.json",
            "properties": {"warehouse": "s3://lake", "s3.endpoint": store.url} | keys,
            "allowed_locations": ["s3://lake", *table["allowed_locations"]],
            "allowed_hosts": ["127.0.0.1"],
        }
        try:
            wait_until(lambda: not refuses(), "the server")
            answer = beside.submit(
                httpx.post,
                f"http://127.0.0.1:{port}/lookups",
                json={"table": asked, "question": {"keys": [{"id": 1}]}},
                headers={"Authorization": f"Bearer {TOKEN}"},
                timeout=PATIENCE_SECONDS,
            )
            assert begun.wait(PATIENCE_SECONDS)
            process.send_signal(signal.SIGTERM)
            wait_until(refuses, "the end of new questions")
            yield Stopped(process, answer, release)
        finally:
            release.set()
            process.kill()


@pytest.mark.integration
def test_a_server_that_is_asked_to_stop_answers_what_it_has_begun(table: dict[str, Any]) -> None:
    with stopped(table, "main.main()") as server:
        assert not server.answer.done()
        server.release.set()
        assert server.answer.result().json()["code"] == "outdated"
        assert server.process.wait(PATIENCE_SECONDS) in (0, -signal.SIGTERM)


@pytest.mark.integration
def test_a_server_ends_in_time_whatever_it_waits_for(table: dict[str, Any]) -> None:
    with stopped(table, "main.STOP_SECONDS = 0.5; main.main()") as server:
        assert server.process.wait(PATIENCE_SECONDS) == 1
        assert isinstance(server.answer.exception(), httpx.TransportError)


def test_a_server_holds_neither_spark_nor_a_database() -> None:
    code = "import sys, worker.lookup_server.main; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"pyspark", "py4j", "fastapi", "sqlmodel"} & set(loaded.split())


def test_columns_that_no_file_has_are_told_for_each_row(
    server: Server, table: dict[str, Any], tmp_path: Path
) -> None:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("db")
    made = catalog.create_table("db.t", ROWS.schema)
    made.append(ROWS)
    with made.update_schema() as update:
        update.add_column("later", StringType())
    made.append(ROWS.slice(1, 1).append_column("later", pa.array(["now"])))
    catalog.close()
    place = {
        "metadata_location": made.metadata_location,
        "allowed_locations": [tmp_path.as_uri()],
        "index": {"warehouse": f"{tmp_path.as_uri()}/index"},
    }
    answer = ask(server, table | place, {"id": 2}, {"id": 3}, select=["later"])
    assert answer.status_code == 200, answer.text
    rows = [[match["row"] for match in one["matches"]] for one in answer.json()["results"]]
    assert sorted(rows[0], key=str) == [{"later": "now"}, {"later": None}]
    assert rows[1] == [{"later": None}]


def test_what_goes_wrong_unexpectedly_is_told_and_logged_without_secrets_and_keys(
    server: Server,
    table: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(*_: object) -> None:
        try:
            raise LookupError(f"of key {171_717}")
        except LookupError as error:
            raise RuntimeError("it broke with a-secret-key") from error

    monkeypatch.setattr(app, "rows_at", fails)
    monkeypatch.setenv("LAKE_SECRET_KEY", "a-secret-key")
    properties = table["properties"] | {"s3.secret-access-key": "env:LAKE_SECRET_KEY"}
    of_record = {"properties": properties, "allowed_secrets": ["env:LAKE_"]}
    answer = ask(server, table | of_record, {"id": 1}, select=["name"])
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error"), answer.text
    assert answer.json()["detail"] == "RuntimeError: it broke with ***"
    assert all(told in caplog.text for told in ("RuntimeError", "from LookupError", "in fails"))
    assert "a-secret-key" not in caplog.text
    assert "171717" not in caplog.text


def test_a_branch_is_read_with_the_columns_of_now_and_the_past_with_its_own(
    server: Server, table: dict[str, Any], tmp_path: Path
) -> None:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("db")
    made = catalog.create_table("db.t", ROWS.schema)
    made.append(ROWS)
    snapshot = made.current_snapshot()
    assert snapshot is not None
    made.manage_snapshots().create_tag(snapshot.snapshot_id, "then").commit()
    with made.update_schema() as update:
        update.rename_column("name", "called")
        update.add_column("later", StringType())
    catalog.close()
    place = table | {
        "metadata_location": made.metadata_location,
        "allowed_locations": [tmp_path.as_uri()],
        "index": {"warehouse": f"{tmp_path.as_uri()}/index"},
    }

    def row(select: list[str], **at: Any) -> Any:
        answer = ask(server, place, {"id": 2}, select=select, **at).json()
        return answer["results"][0]["matches"][0]["row"] if "results" in answer else answer["code"]

    for head in ({}, {"branch": "main"}):
        assert row(["called", "later"], **head) == {"called": "two", "later": None}
        assert row(["name"], **head) == "unknown_columns"
    for past in ({"snapshot_id": snapshot.snapshot_id}, {"branch": "then"}):
        assert row(["name"], **past) == {"name": "two"}
        assert row(["later"], **past) == "unknown_columns"


@pytest.mark.parametrize("given", ["soon", "nan", ""])
def test_a_time_that_is_none_is_not_understood(given: str, server: Server, table: dict[str, Any]) -> None:
    body = {"table": table, "question": {"keys": [{"id": 1}]}}
    answer = server.request("POST", "/lookups", json=body, headers={SECONDS_LEFT: given})
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed")


@pytest.mark.parametrize("waits", ["-1", "inf"])
def test_an_answer_that_nobody_waits_for_is_not_made(
    waits: str, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one that takes longer than any may."""
    if waits == "inf":
        monkeypatch.setattr(app, "ANSWER_SECONDS", -1)
    body = {"table": table, "question": {"keys": [{"id": 1}], "key_columns": ["id"]}}
    late = Server(create_app(TOKEN), TOKEN).request(
        "POST", "/lookups", json=body, headers={SECONDS_LEFT: waits}
    )
    assert (late.status_code, late.json()["code"]) == (503, "out_of_time")
    assert int(late.headers["Retry-After"]) > 0


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (places, "_key_batches"),  # data files
        (KeyReader, "_to_key_batch"),  # parts of one
        (index_lookup, "_read"),  # row groups of the index
        (rows, "_read_parquet"),  # data files, for rows
        (parquet_rows, "_rows_of_group"),  # row groups of one
        (Answers, "coverage"),  # manifests
    ],
)
def test_reading_stops_when_the_time_is_over(
    place: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passes while the first of several things is read."""
    monkeypatch.setattr(file_formats, "BATCH_ROWS", 1)
    monkeypatch.setattr(run_files, "ROW_GROUP_ROWS", 2)
    monkeypatch.setattr(index_lookup, "_READ_ROWS", 1)
    # One after the other: several files may be begun at once.
    monkeypatch.setattr(rows, "_decoders", Threads(1, "rows"))
    monkeypatch.setattr(places, "_threads", Threads(1, "lookup"))
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("db")
    small = {"write.parquet.row-group-limit": "1"}
    made = catalog.create_table("db.t", ROWS.schema, properties=small)
    for _ in range(2):
        made.append(ROWS)
    catalog.close()
    table = described(made.metadata_location, tmp_path)
    if place is index_lookup:
        Indexed(table)
    now, calls, read = [0.0], [], getattr(place, name)

    def slowly(*arguments: Any, **named: Any) -> Any:
        found = read(*arguments, **named)
        calls.append(name)
        now[0] += 3_600
        return found

    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: now[0]))
    keys = [{"id": 1}, {"id": 2}, {"id": 3}]
    assert ask(Server(create_app(TOKEN), TOKEN), table, *keys, select=["name"]).status_code == 200
    monkeypatch.setattr(place, name, slowly)
    late = ask(Server(create_app(TOKEN), TOKEN), table, *keys, select=["name"])
    assert (late.status_code, late.json()["code"], calls) == (503, "out_of_time", [name]), late.text
