"""Questions about keys, over HTTP, with a lookup server beside the service."""

import json
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from itertools import chain, repeat
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import httpx
import pyarrow as pa
import pytest
from pydantic import SecretStr, ValidationError
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.types import StringType
from typer.testing import CliRunner, Result

from service.auth.models import Principal
from service.command.main import app as commands
from service.errors import IcestreamError
from service.lookups import history, servers
from service.lookups.history import describe
from service.lookups.limits import KeyLimits
from service.lookups.models import EarlierSnapshots, KeyMatches, LookupAnswer, Match
from service.lookups.questions import JSON_TYPE
from service.lookups.servers import Allowance, LookupServers
from service.records.keys import Role
from service.settings import Settings
from tests.http_server import Answer, HttpServer, Request, answering
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import (
    ADMIN_KEY,
    Running,
    alike_on_both,
    listening,
    run_apart,
    running,
    with_lookup_server,
)
from tests.service.iceberg_tables import ARROW, IcebergCatalog
from trust.arrow_streams import STREAM_TYPE
from worker.contract.lookups import SECONDS_LEFT
from worker.io.kept import Kept
from worker.lookup_server.app import create_app
from worker.query.answers import Answers

database_kind = alike_on_both

TOKEN = "a-token-of-these-tests"
T = TypeVar("T")


@pytest.fixture
def service(settings: Settings) -> Iterator[Running]:
    with listening(create_app(TOKEN)) as url, running(with_lookup_server(settings, url, TOKEN)) as service:
        yield service


@pytest.fixture
def table(service: Running, iceberg: IcebergCatalog) -> str:
    """The path of the lookups of `db.t`."""
    service.register(iceberg)
    return f"/tables/{service.enroll()['id']}/lookups"


def _matches(answer: httpx.Response) -> list[list[bool]]:
    """Whether each row is live, for each key."""
    assert answer.status_code == 200, answer.text
    return [[match["live"] for match in found["matches"]] for found in answer.json()["results"]]


def test_places_and_rows_of_keys_are_told(service: Running, table: str, iceberg: IcebergCatalog) -> None:
    first = iceberg.head("db.t")
    iceberg.delete_keys("db.t", [2])
    asked = {"keys": [{"id": 2}, {"id": "3"}, {"id": 9}], "key_columns": ["id"], "select": ["region", "id"]}
    answer = service.admin.post(table, json=asked)
    assert _matches(answer) == [[False], [True], []]
    told = answer.json()
    assert (told["snapshot_id"], told["key_columns"]) == (iceberg.head("db.t"), ["id"])
    assert (told["data_files_from_index"], told["data_files_scanned"], told["rows_scanned"]) == (0, 1, 3)
    assert told["results"][1]["key"] == {"id": "3"}
    live = told["results"][1]["matches"][0]
    assert (live["row"], live["position"], live["partition"]) == ({"id": 3, "region": "eu"}, 2, {})
    assert live["deleted_by"] is None
    assert told["results"][0]["matches"][0]["deleted_by"]
    before = service.admin.post(table, json=asked | {"snapshot_id": first})
    assert _matches(before) == [[True], [True], []]


def arrow_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


AS_ARROW = {"Content-Type": STREAM_TYPE}


@pytest.mark.parametrize("sent", ["json", "arrow"])
def test_an_answer_as_arrow_says_what_one_in_json_says(
    service: Running, table: str, iceberg: IcebergCatalog, sent: str
) -> None:
    iceberg.delete_keys("db.t", [2])
    keys = [2, 3, 9, 3]
    options = {"select": ["region", "id"], "max_staleness_seconds": 0}
    asked: dict[str, Any] = {"json": {"keys": [{"id": key} for key in keys], "key_columns": ["id"]} | options}
    if sent == "arrow":
        stream = arrow_stream(pa.table({"id": pa.array(keys, pa.int16())}))
        asked = {"params": options, "content": stream}
    headers = AS_ARROW if sent == "arrow" else {}
    in_json = service.admin.post(table, **asked, headers=headers)
    as_arrow = service.admin.post(table, **asked, headers=headers | {"Accept": STREAM_TYPE})
    assert (in_json.status_code, as_arrow.status_code) == (200, 200), (in_json.text, as_arrow.text)
    assert (in_json.headers["Content-Type"], as_arrow.headers["Content-Type"]) == (JSON_TYPE, STREAM_TYPE)
    told, found = in_json.json(), pa.ipc.open_stream(as_arrow.content).read_all()
    facts = json.loads(found.schema.metadata[b"icestream"])
    facts["head_age_seconds"] = told["head_age_seconds"]
    assert facts == {name: value for name, value in told.items() if name != "results"}
    results = [{"key": {"id": key}, "matches": list[dict[str, Any]]()} for key in keys]
    for match in found.to_pylist():
        result = results[match.pop("key_index")]
        assert match.pop("key") == result["key"]
        if match["data_file"] is not None:
            result["matches"].append(match | {"partition": json.loads(match["partition"])})
    assert told["results"] == results
    assert [len(one["matches"]) for one in results] == [1, 1, 0, 1]


@pytest.mark.parametrize(
    ("headers", "content", "status", "slug"),
    [
        ({"Content-Type": "text/csv"}, b"id\n1\n", 415, "unsupported-media-type"),
        ({}, b"{}", 415, "unsupported-media-type"),
        ({"Content-Type": JSON_TYPE, "Accept": "text/csv"}, b"{}", 406, "not-acceptable"),
        ({"Content-Type": JSON_TYPE, "Accept": "*/*;q=0"}, b"{}", 406, "not-acceptable"),
        ({"Content-Type": JSON_TYPE}, b"{", 422, "validation-error"),
        (AS_ARROW, b"{}", 422, "invalid-arrow"),
        (AS_ARROW, arrow_stream(pa.table({"id": pa.array([], pa.int64())})), 422, "invalid-arrow"),
        (AS_ARROW, arrow_stream(pa.table({"id": [1] * 10_001})), 422, "invalid-arrow"),
        (AS_ARROW, arrow_stream(pa.table({"id": ["1"]})), 422, "invalid-key"),
        (AS_ARROW, arrow_stream(pa.table({"id": [1.0]})), 422, "invalid-key"),
        (AS_ARROW, arrow_stream(pa.table({"id": pa.array([2**64 - 1], pa.uint64())})), 422, "invalid-key"),
        (AS_ARROW, arrow_stream(pa.table({"no": [1]})), 422, "unknown-key-columns"),
        (AS_ARROW, arrow_stream(pa.table([[1], [1]], names=["id", "id"])), 422, "unknown-key-columns"),
        (
            AS_ARROW,
            arrow_stream(pa.table({"region": ["eu"]})).replace(b"eu", b"\xff\xff"),
            422,
            "invalid-arrow",
        ),
    ],
)
def test_what_is_neither_of_the_two_is_refused(
    service: Running, table: str, headers: dict[str, str], content: bytes, status: int, slug: str
) -> None:
    answer = service.admin.post(table, content=content, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (status, f"/problems/{slug}"), answer.text


def test_options_of_keys_in_json_do_not_stand_in_the_query(service: Running, table: str) -> None:
    asked = {"keys": [{"id": 1}], "key_columns": ["id"]}
    answer = service.admin.post(table, json=asked, params={"branch": "main"})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/validation-error")
    assert "branch" in answer.json()["detail"]
    assert service.admin.post(table, json=asked, params={"max_staleness_seconds": 1.0}).status_code == 200


def test_options_of_keys_in_arrow_name_one_snapshot(service: Running, table: str) -> None:
    both: dict[str, str | int] = {"branch": "main", "snapshot_id": 7}
    stream = arrow_stream(pa.table({"id": [1]}))
    answer = service.admin.post(table, params=both, content=stream, headers=AS_ARROW)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/validation-error")
    assert "either a branch or tag, or a snapshot" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("accept", "answer_type"),
    [
        ("", JSON_TYPE),
        ("*/*", JSON_TYPE),
        (f"{STREAM_TYPE}, */*", STREAM_TYPE),
        (f"{STREAM_TYPE};q=0.5, application/json", JSON_TYPE),
        (f"application/*;q=0.1, {STREAM_TYPE}", STREAM_TYPE),
    ],
)
def test_the_type_that_is_wanted_most_is_answered(
    service: Running, table: str, accept: str, answer_type: str
) -> None:
    asked = {"keys": [{"id": 1}], "key_columns": ["id"]}
    answer = service.admin.post(table, json=asked, headers={"Accept": accept})
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, answer_type)


def test_a_head_is_as_new_as_the_question_wants(
    service: Running, table: str, iceberg: IcebergCatalog
) -> None:
    asked = {"keys": [{"id": 4}], "key_columns": ["id"]}
    assert _matches(service.admin.post(table, json=asked)) == [[]]
    iceberg.append("db.t", [4])
    stale = service.admin.post(table, json=asked | {"max_staleness_seconds": 3_600})
    assert _matches(stale) == [[]]
    assert stale.json()["head_age_seconds"] > 0
    assert _matches(service.admin.post(table, json=asked | {"max_staleness_seconds": 0})) == [[True]]


@pytest.mark.parametrize(
    ("asked", "status", "slug"),
    [
        ({"keys": [{"id": "x"}]}, 422, "invalid-key"),
        ({"keys": [{"no": 1}]}, 422, "invalid-key"),
        ({"keys": [{"id": 1}], "key_columns": ["no"]}, 422, "unknown-key-columns"),
        ({"keys": [{"id": 1}], "key_columns": None}, 422, "unknown-key-columns"),
        ({"keys": [{"id": 1}], "key_columns": ["id", "id"]}, 422, "unknown-key-columns"),
        ({"keys": [{"id": 1}], "select": ["no"]}, 422, "unknown-columns"),
        ({"keys": [{"id": 1}], "select": ["id"], "schema_id": 7}, 422, "unknown-columns"),
        ({"keys": [{"id": 1}], "snapshot_id": 7}, 404, "unknown-snapshot"),
        ({"keys": [{"id": 1}], "branch": "no"}, 404, "unknown-snapshot"),
        ({"keys": []}, 422, "validation-error"),
        ({"keys": [{"id": 1}], "branch": "main", "snapshot_id": 7}, 422, "validation-error"),
        ({"keys": [{"id": 1}] * 10_001}, 422, "validation-error"),
        ({"keys": [{"id": 1}], "limit": 3}, 422, "validation-error"),
        ({"keys": [{"id": 1}], "snapshot_id": 2**63}, 422, "unusable-value"),
    ],
)
def test_what_cannot_be_answered_is_told(
    service: Running, table: str, asked: dict[str, Any], status: int, slug: str
) -> None:
    answer = service.admin.post(table, json={"key_columns": ["id"]} | asked)
    assert (answer.status_code, answer.json()["type"]) == (status, f"/problems/{slug}")
    assert answer.json()["remedy"]


def test_a_table_whose_files_are_gone_is_told_as_such(
    service: Running, table: str, iceberg: IcebergCatalog
) -> None:
    for file in Path(str(iceberg.properties["warehouse"]).removeprefix("file://")).rglob("*.parquet"):
        file.unlink()
    answer = service.admin.post(table, json={"keys": [{"id": 1}], "key_columns": ["id"]})
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/lookup-failed")


def test_the_audit_log_tells_how_many_keys_and_never_which(service: Running, table: str) -> None:
    keys = [{"id": 171_717}, {"id": 3}]
    service.admin.post(table, json={"keys": keys, "key_columns": ["id"]})
    entries = service.admin.get("/audit", params={"action": "table.look_up"})
    entry = entries.json()["items"][0]
    assert (entry["fields"], entry["target"]) == ({"keys": 2}, "db.t")
    assert entry["principal"]
    service.admin.post(f"{table}/history", json={"key": keys[0], "key_columns": ["id"], "snapshots": 7})
    newest = service.admin.get("/audit", params={"action": "table.look_up"}).json()["items"][0]
    assert newest["fields"] == {"keys": 1, "snapshots": 7}
    assert "171717" not in service.admin.get("/audit").text


def test_a_key_for_reading_lookups_asks_and_one_for_other_reads_does_not(
    service: Running, table: str
) -> None:
    asked = {"keys": [{"id": 3}], "key_columns": ["id"]}
    for scope, status in (("lookups:read", 200), ("tables:read", 403)):
        made = service.admin.post(
            "/api-keys", json={"name": scope.replace(":", "-"), "role": "viewer", "scopes": [scope]}
        ).json()
        client = service.client_with({"Authorization": f"Bearer {made['key']}"})
        assert client.post(table, json=asked).status_code == status
        assert client.patch(table.removesuffix("/lookups"), json={}).status_code == 403


def test_a_key_for_some_tables_asks_about_these_alone(service: Running, table: str) -> None:
    def key(*tables: str, scopes: tuple[str, ...] = ("lookups:read",)) -> httpx.Response:
        body = {"name": "k", "role": "viewer", "scopes": scopes, "tables": tables}
        return service.admin.post("/api-keys", json=body)

    asked = {"keys": [{"id": 3}], "key_columns": ["id"]}
    of_one = {"key": {"id": 3}, "key_columns": ["id"]}
    cases = [(["local.db.*"], True), (["other.*", "local.db.t"], True), (["local.db"], False)]
    for tables, is_let in cases:
        made = key(*tables).json()
        assert made["tables"] == tables
        client = service.client_with({"Authorization": f"Bearer {made['key']}"})
        answers = [client.post(table, json=asked), client.post(f"{table}/history", json=of_one)]
        assert [answer.status_code for answer in answers] == [200 if is_let else 403] * 2
    assert answers[0].json()["type"] == "/problems/out-of-scope"
    denied = service.admin.get("/audit", params={"action": "table.look_up", "outcome": "denied"}).json()
    assert {entry["target"] for entry in denied["items"]} == {"local.db.t"}
    for refused in (key(), key("x", scopes=("lookups:read", "tables:read")), key("x", scopes=())):
        assert refused.status_code == 422


def test_the_history_of_a_key_tells_what_each_snapshot_did(
    service: Running, table: str, iceberg: IcebergCatalog
) -> None:
    iceberg.delete_keys("db.t", [2])
    iceberg.append("db.t", [2])
    iceberg.append("db.t", [7])
    asked = {"key": {"id": 2}, "key_columns": ["id"], "select": ["region"]}
    told = service.admin.post(f"{table}/history", json=asked)
    assert told.status_code == 200, told.text
    history = told.json()
    snapshots = history["snapshots"]
    assert [one["change"] for one in snapshots] == ["unchanged", "appeared", "deleted", "appeared"]
    live = [[match["row"] for match in one["matches"] if match["live"]] for one in snapshots]
    assert live == [[{"region": "eu"}], [{"region": "eu"}], [], [{"region": "eu"}]]
    deleted = [[match["deleted_by"] for match in one["matches"] if not match["live"]] for one in snapshots]
    assert deleted == [["equality_delete"], ["equality_delete"], ["equality_delete"], []]
    known = iceberg.catalog.load_table("db.t").snapshots()[::-1]
    assert [one["snapshot_id"] for one in snapshots] == [one.snapshot_id for one in known]
    assert [one["operation"] for one in snapshots] == ["append", "append", "overwrite", "append"]
    assert snapshots[0]["committed_at"] > snapshots[-1]["committed_at"]
    assert (history["earlier_snapshots"], history["key_columns"]) == ("none", ["id"])


def test_a_history_is_of_the_newest_snapshots_up_to_the_one_that_is_asked_about(
    service: Running, table: str, iceberg: IcebergCatalog
) -> None:
    first = iceberg.head("db.t")
    for number in (4, 5, 6):
        iceberg.append("db.t", [number])
    newest = [one.snapshot_id for one in iceberg.catalog.load_table("db.t").snapshots()[::-1]]

    def told(**asked: Any) -> tuple[list[int], str, list[str | None]]:
        body = {"key": {"id": 5}, "key_columns": ["id"]} | asked
        history = service.admin.post(f"{table}/history", json=body).json()
        ids = [one["snapshot_id"] for one in history["snapshots"]]
        return ids, history["earlier_snapshots"], [one["change"] for one in history["snapshots"]]

    assert told(snapshots=2) == (newest[:2], "left_out", ["unchanged", None])
    assert told(snapshots=2, snapshot_id=newest[2]) == (newest[2:], "none", ["unchanged", "unchanged"])
    with iceberg.catalog.load_table("db.t").maintenance.expire_snapshots() as expiry:
        expiry.by_id(first)
    assert told() == (newest[:3], "expired", ["unchanged", "appeared", None])


def test_a_snapshot_of_which_nothing_can_be_told_says_why(
    service: Running, table: str, iceberg: IcebergCatalog
) -> None:
    with iceberg.catalog.load_table("db.t").update_schema() as change:
        change.add_column("town", StringType())
    loaded = iceberg.catalog.load_table("db.t")
    loaded.append(pa.table({"id": [4], "region": ["eu"], "town": ["Brno"]}, loaded.schema().as_arrow()))
    asked = {"key": {"id": 4}, "key_columns": ["id"], "select": ["town"]}
    newest, older = service.admin.post(f"{table}/history", json=asked).json()["snapshots"]
    assert newest["matches"][0]["row"] == {"town": "Brno"}
    assert (older["matches"], older["not_told"]["code"], older["change"]) == (None, "unknown-columns", None)
    # What it changed is not known either: nobody knows what was there before.
    assert newest["change"] is None
    refused = service.admin.post(f"{table}/history", json=asked | {"select": ["no"]})
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/unknown-columns")


@pytest.mark.parametrize(
    ("asked", "status", "slug"),
    [
        ({"key": {"id": "x"}}, 422, "invalid-key"),
        ({"key": {}}, 422, "validation-error"),
        ({"snapshots": 101}, 422, "validation-error"),
        ({"snapshot_id": 7}, 404, "unknown-snapshot"),
        ({"branch": "no"}, 404, "unknown-snapshot"),
        ({"branch": "main", "snapshot_id": 7}, 422, "validation-error"),
        ({"max_staleness_seconds": 5}, 422, "validation-error"),
    ],
)
def test_a_history_that_cannot_be_told_is_refused(
    service: Running, table: str, asked: dict[str, Any], status: int, slug: str
) -> None:
    body = {"key": {"id": 1}, "key_columns": ["id"]} | asked
    answer = service.admin.post(f"{table}/history", json=body)
    assert (answer.status_code, answer.json()["type"]) == (status, f"/problems/{slug}")


def test_a_table_without_snapshots_has_an_empty_history(service: Running, iceberg: IcebergCatalog) -> None:
    iceberg.create("db.empty")
    service.register(iceberg)
    path = f"/tables/{service.enroll('db.empty')['id']}/lookups/history"
    told = service.admin.post(path, json={"key": {"id": "1"}, "key_columns": ["id"]}).json()
    assert (told["snapshots"], told["earlier_snapshots"]) == ([], "none")


def test_what_is_not_told_in_time_is_left_out_and_says_so(
    service: Running, table: str, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    iceberg.append("db.t", [4])
    asked, ask, asks = {"key": {"id": 4}, "key_columns": ["id"]}, LookupServers.ask, []

    async def ask_once(servers: LookupServers, question: dict[str, Any], left: Allowance) -> LookupAnswer:
        asks.append(question)
        if len(asks) == 2:
            # As if the bound passed now, while the second one is asked.
            raise TimeoutError
        assert left.until <= time.monotonic() + 30
        return await ask(servers, question, left)

    monkeypatch.setattr(LookupServers, "ask", ask_once)
    newest, older = service.admin.post(f"{table}/history", json=asked).json()["snapshots"]
    assert (newest["not_told"], older["not_told"]["code"], older["matches"]) == (None, "out-of-time", None)


def test_a_history_is_told_up_to_a_bound_of_all_its_snapshots(
    service: Running, table: str, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (4, 5):
        iceberg.append("db.t", [number])
    asked = {"key": {"id": 1}, "key_columns": ["id"]}
    sizes, ask = [], LookupServers.ask

    async def measured(servers: LookupServers, question: dict[str, Any], left: Allowance) -> LookupAnswer:
        before = left.answer_bytes
        answer = await ask(servers, question, left)
        sizes.append(before - left.answer_bytes)
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(LookupServers, "ask", measured)
        assert service.admin.post(f"{table}/history", json=asked).status_code == 200
    # The second one's is a few digits longer or shorter.
    monkeypatch.setattr(history, "_ANSWER_BYTES", sum(sizes[:2]) + 50)
    told = service.admin.post(f"{table}/history", json=asked).json()["snapshots"]
    assert [one["not_told"] and one["not_told"]["code"] for one in told] == [None, None, "answer-too-large"]


def test_each_snapshot_of_a_history_counts_as_a_key(settings: Settings, iceberg: IcebergCatalog) -> None:
    limited = settings.model_copy(update={"lookup_keys_per_minute": 30})
    with (
        listening(create_app(TOKEN)) as url,
        running(with_lookup_server(limited, url, TOKEN)) as service,
    ):
        service.register(iceberg)
        path = f"/tables/{service.enroll()['id']}/lookups/history"
        asked = {"key": {"id": 1}, "key_columns": ["id"], "snapshots": 30}
        assert [service.admin.post(path, json=asked).status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize(
    ("then", "now", "operation", "change"),
    [
        ([1], [1], "replace", "unchanged"),
        ([1], [2], "replace", "moved"),
        ([1], [2], "overwrite", "replaced"),
        ([1], [1, 2], "append", "replaced"),
        ([], [2], "append", "appeared"),
        ([1], [], None, "deleted"),
        ([], [], None, "unchanged"),
    ],
)
def test_a_change_is_told_by_places_of_live_rows(
    then: list[int], now: list[int], operation: str | None, change: str
) -> None:
    def answer(positions: list[int]) -> LookupAnswer:
        matches = [
            Match(
                data_file="f",
                position=position,
                partition={},
                data_sequence_number=1,
                live=is_live,
                deleted_by=None if is_live else "equality_delete",
            )
            for is_live, places in ((True, positions), (False, [7]))
            for position in places
        ]
        return LookupAnswer(
            snapshot_id=1,
            schema_id=0,
            head_age_seconds=0,
            key_columns=["id"],
            data_files_from_index=1,
            data_files_scanned=0,
            rows_scanned=0,
            results=[KeyMatches(key={"id": 1}, matches=matches)],
        )

    summary = Summary(Operation(operation)) if operation else None
    snapshots = [
        Snapshot(snapshot_id=number, timestamp_ms=time, manifest_list="m", summary=summary)
        for number, time in ((2, 2**62), (1, 0))
    ]
    told = describe(snapshots, [answer(now), answer(then)], EarlierSnapshots.EXPIRED)
    assert [one.change for one in told] == [change, None]
    # No calendar has the first one's time.
    assert [one.committed_at for one in told] == [None, datetime.fromtimestamp(0, UTC)]


@pytest.mark.parametrize("gone", ["metadata", "data", "nothing"])
def test_what_has_expired_or_come_since_the_head_was_asked_for_costs_no_answer(
    settings: Settings, iceberg: IcebergCatalog, gone: str
) -> None:
    asked = {"keys": [{"id": 3}], "key_columns": ["id"], "select": ["region"], "max_staleness_seconds": 3_600}
    table = iceberg.catalog.load_table("db.t")
    files = [table.metadata_location, *(task.file.file_path for task in table.scan().plan_files())]
    with (
        listening(create_app(TOKEN, Answers(Kept(0)))) as url,
        running(with_lookup_server(settings, url, TOKEN)) as service,
    ):
        service.register(iceberg)
        path = f"/tables/{service.enroll()['id']}/lookups"
        assert _matches(service.admin.post(path, json=asked)) == [[True]]
        table.overwrite(ARROW.empty_table())
        iceberg.append("db.t", [3, 3])
        if gone == "nothing":
            newest = {"snapshot_id": iceberg.head("db.t")}
            assert _matches(service.admin.post(path, json=asked | newest)) == [[True, True]]
            for name, about, count in (
                ("town", {"select": ["town"]}, 3),
                ("street", {"keys": [{"street": None}], "key_columns": ["street"]}, 4),
            ):
                with iceberg.catalog.load_table("db.t").update_schema() as change:
                    change.add_column(name, StringType())
                iceberg.append("db.t", [3])
                assert _matches(service.admin.post(path, json=asked | about)) == [[True] * count]
        else:
            Path(files[gone == "data"].removeprefix("file://")).unlink()
            assert _matches(service.admin.post(path, json=asked)) == [[True, True]]


@pytest.mark.parametrize(
    ("answer", "slug"),
    [
        (Answer("", 500), "lookups-unavailable"),
        (Answer("no json"), "lookups-unavailable"),
        (Answer({"code": "unauthorized", "title": "The token is another one"}, 401), "lookups-unavailable"),
        (Answer("{}", headers={"content-type": "text/html"}), "lookups-unavailable"),
        (Answer({"code": "outdated", "title": "The table changed meanwhile"}, 503), "table-changed"),
        (Answer({"code": "store_unavailable", "title": "A store does not answer"}, 503), "store-unavailable"),
        (Answer({"code": "out_of_time", "title": "The answer takes too long"}, 503), "out-of-time"),
        (Answer({"code": "busy", "title": "The lookup server has all it can do"}, 503), "lookups-busy"),
    ],
)
def test_a_server_that_cannot_answer_is_told_as_such(
    settings: Settings, iceberg: IcebergCatalog, answer: Answer, slug: str
) -> None:
    with (
        answering({"/lookups": answer}) as server,
        running(with_lookup_server(settings, server.url, TOKEN)) as service,
    ):
        service.register(iceberg)
        table = service.enroll()["id"]
        told = service.admin.post(f"/tables/{table}/lookups", json={"keys": [{"id": 3}]})
        assert (told.status_code, told.json()["type"]) == (503, f"/problems/{slug}")
        assert told.json()["remedy"]
        assert int(told.headers["Retry-After"]) > 0


class Troubled:
    """Lookup servers behind one address: the first question meets another one than all others."""

    def __init__(self, first: Callable[["Troubled"], Answer], probe: Callable[["Troubled"], Answer]) -> None:
        self.over = Event()
        """Whatever waits for this goes on."""
        self._probe = probe
        self._next: Iterator[Callable[[Troubled], Answer]] = chain([first], repeat(Troubled.answers_at_once))

    def answers(self) -> dict[str, Answer | Callable[[Request], Answer]]:
        return {"/lookups": lambda _: next(self._next)(self), "/livez": lambda _: self._probe(self)}

    def stands_still(self) -> Answer:
        self.over.wait(PATIENCE_SECONDS)
        return ANSWER

    def dies(self) -> Answer:
        self.over.set()
        raise ConnectionError

    def has_enough_to_do(self) -> Answer:
        return Answer({"code": "busy", "title": "t"}, 503)

    def answers_at_once(self) -> Answer:
        return ANSWER


ANSWER = Answer(
    {
        "snapshot_id": 1,
        "schema_id": 0,
        "head_age_seconds": 0,
        "key_columns": ["id"],
        "data_files_from_index": 0,
        "data_files_scanned": 0,
        "rows_scanned": 0,
        "results": [],
    }
)


def _asking(server: HttpServer, ask: Callable[[LookupServers], Coroutine[Any, Any, T]]) -> T:
    async def asked() -> T:
        servers = LookupServers(Settings(lookup_url=server.url, lookup_token=SecretStr(TOKEN)))
        try:
            return await ask(servers)
        finally:
            await servers.close()

    return run_apart(asked())


def _ask(troubled: Troubled) -> LookupAnswer:
    with answering(troubled.answers()) as server:
        try:
            return _asking(server, lambda servers: servers.ask({}))
        finally:
            troubled.over.set()


@pytest.mark.parametrize(("code", "count"), [("busy", 2), ("store_unavailable", 1), ("outdated", 1)])
def test_only_a_server_that_has_enough_to_do_is_asked_again_at_once(code: str, count: int) -> None:
    with answering({"/lookups": Answer({"code": code, "title": "t"}, 503)}) as server:
        with pytest.raises(IcestreamError):
            _asking(server, lambda servers: servers.ask({}))
        assert len(server.requests) == count


def test_a_server_is_told_how_long_it_is_waited_for() -> None:
    with answering({"/lookups": ANSWER}) as server:
        _asking(server, lambda servers: servers.ask({}))
        _asking(server, lambda servers: servers.ask({}, Allowance(time.monotonic() + 7, 10_000)))
        waits = [float(headers[SECONDS_LEFT.lower()]) for _, headers in server.requests]
    assert 7 < waits[0] <= 60
    assert 0 < waits[1] <= 7


def test_an_answer_is_passed_on_unread_and_not_taken_for_one_about_a_key() -> None:
    with answering({"/lookups": Answer({"results": []})}) as server:
        passed_on = _asking(server, lambda servers: servers.ask_for(JSON_TYPE, {}))
        assert json.loads(passed_on.content) == {"results": []}
        with pytest.raises(IcestreamError, match="nobody understands"):
            _asking(server, lambda servers: servers.ask({}))


def test_answers_are_bounded_each_and_together(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(json.dumps(ANSWER.body))
    monkeypatch.setattr(servers, "_SMALL_BYTES", 0)
    monkeypatch.setattr(servers, "_UNDER_WAY_BYTES", 2 * size)

    async def ask(asked: LookupServers) -> None:
        held = [await asked.ask_for(JSON_TYPE, {}) for _ in range(2)]
        for _ in range(2):
            with pytest.raises(IcestreamError, match="together") as refused:
                await asked.ask_for(JSON_TYPE, {})
            assert refused.value.slug == "lookups-busy"
        held.pop()
        assert (await asked.ask({})).snapshot_id == 1
        monkeypatch.setattr(servers, "_READ_BYTES", size - 1)
        with pytest.raises(IcestreamError) as refused:
            await asked.ask({})
        assert refused.value.slug == "answer-too-large"

    with answering({"/lookups": ANSWER}) as server:
        _asking(server, ask)


@pytest.mark.parametrize(
    "troubled",
    [
        Troubled(Troubled.dies, Troubled.answers_at_once),
        Troubled(Troubled.has_enough_to_do, Troubled.answers_at_once),
        Troubled(Troubled.stands_still, Troubled.answers_at_once),
        # It ends: no new question is taken, and the one that it has is answered.
        Troubled(Troubled.stands_still, Troubled.dies),
    ],
    ids=["dead", "busy", "standing still", "ending"],
)
def test_a_server_in_trouble_costs_no_answer(troubled: Troubled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_SOON_SECONDS", 0.05)
    monkeypatch.setattr(servers, "_PROBE_SECONDS", PATIENCE_SECONDS)
    assert _ask(troubled).snapshot_id == 1


def test_servers_that_all_stand_still_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_SOON_SECONDS", 0.05)
    monkeypatch.setattr(servers, "_PROBE_SECONDS", 0.05)
    monkeypatch.setattr(servers, "_ANSWER_SECONDS", PATIENCE_SECONDS)
    with pytest.raises(IcestreamError, match="nor their probes") as told:
        _ask(Troubled(Troubled.stands_still, Troubled.stands_still))
    assert told.value.status_code == 503


def test_an_answer_that_does_not_come_in_time_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_SOON_SECONDS", 0.05)
    monkeypatch.setattr(servers, "_ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(servers, "_PROBE_SECONDS", PATIENCE_SECONDS)
    over = Event()

    def stand_still(_: Request) -> Answer:
        over.wait(PATIENCE_SECONDS)
        return ANSWER

    with answering({"/lookups": stand_still, "/livez": Answer({})}) as server:
        try:
            with pytest.raises(IcestreamError) as told:
                _asking(server, lambda servers: servers.ask({}))
        finally:
            over.set()
    assert told.value.slug == "out-of-time"


def test_the_overview_tells_that_no_lookup_server_answers(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_START_SECONDS", 0)
    monkeypatch.setattr(servers, "_KNOWN_SECONDS", 0)
    monkeypatch.setattr(servers, "_PROBE_SECONDS", PATIENCE_SECONDS)
    with (
        answering({}) as server,
        running(with_lookup_server(settings, server.url, TOKEN)) as service,
    ):
        for status, told in ((200, None), (503, "all they can do"), (401, "another ICESTREAM_LOOKUP_TOKEN")):
            server.answers["/readyz"] = Answer({}, status)
            page = service.admin.get(f"{service.url}/").text
            assert told is None or told in page
            assert ("Nobody can be told where the rows of keys are" in page) == (told is not None)
        assert server.requests[0][1]["authorization"] == f"Bearer {TOKEN}"


def test_questions_are_counted_by_what_became_of_them(service: Running, table: str) -> None:
    for key in (1, 2, "x"):
        service.admin.post(table, json={"keys": [{"id": key}, {"id": 7}], "key_columns": ["id"]})
    figures = service.admin.get(f"{service.url}/metrics").text.splitlines()
    for figure in (
        'lookups_total{status="answered"} 2.0',
        'lookups_total{status="refused"} 1.0',
        'lookups_total{status="unavailable"} 0.0',
        "lookup_keys_total 4.0",
        "lookup_seconds_count 2.0",
    ):
        assert f"icestream_{figure}" in figures


def test_no_server_is_no_answer(settings: Settings, iceberg: IcebergCatalog) -> None:
    for url, status, slug in (
        ("http://127.0.0.1:9", 503, "lookups-unavailable"),
        ("", 409, "lookups-not-set-up"),
    ):
        with running(with_lookup_server(settings, url, TOKEN)) as service:
            if not url:
                table = service.admin.get("/tables").json()["items"][0]["id"]
            else:
                service.register(iceberg)
                table = service.enroll()["id"]
            told = service.admin.post(f"/tables/{table}/lookups", json={"keys": [{"id": 3}]})
            assert (told.status_code, told.json()["type"]) == (status, f"/problems/{slug}")
            counted = 'icestream_lookups_total{status="unavailable"} 1.0'
            assert (counted in service.admin.get(f"{service.url}/metrics").text) == (status == 503)


def test_keys_are_counted_and_not_calls() -> None:
    now = 0.0
    limits = KeyLimits(Settings(lookup_keys_per_minute=60), lambda: now)
    one, other = (Principal("api_key", name, name, Role.VIEWER) for name in ("one", "other"))
    limits.take(one, 50)
    with pytest.raises(IcestreamError) as refused:
        limits.take(one, 20)
    assert (refused.value.status_code, refused.value.extra["retry_after_seconds"]) == (429, 10)
    limits.take(other, 1_000)  # more than a minute's worth takes a whole minute's
    now = 10.0
    limits.take(one, 20)


def test_keys_of_the_command_line_and_of_files_are_looked_up(
    service: Running, table: str, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ICESTREAM_URL", service.url)
    monkeypatch.setenv("ICESTREAM_API_KEY", ADMIN_KEY)
    monkeypatch.setenv("COLUMNS", "400")
    iceberg.delete_keys("db.t", [2])

    def look_up(*arguments: str, column: str = "id", given: bytes = b"") -> Result:
        command = ["tables", "lookup", "db.t", "--key-column", column, *arguments]
        return CliRunner().invoke(commands, command, input=given)

    shown = look_up("--key", "id=2", "--key", '{"id": 3}', "--key", "id=9", "--select", "region")
    assert shown.exit_code == 0, shown.output
    heading, deleted, live, absent = shown.stdout.splitlines()[:4]
    assert "region" in heading
    assert (deleted.split()[:2], live.split()[:2]) == (["2", "no"], ["3", "yes"])
    assert absent.split()[0] == "9"
    assert "eu" in live
    keys = tmp_path / "keys.csv"
    keys.write_text("id\n3\n" + "7\n" * 10_000)
    lines = tmp_path / "keys.jsonl"
    lines.write_text('{"id": 3}\n\n{"id": "7"}\n')
    for file, count in ((keys, 10_001), (lines, 2)):
        found = json.loads(look_up("--file", str(file), "--branch", "main", "-o", "json").stdout)
        assert [len(one["matches"]) for one in found["results"]] == [1] + [0] * (count - 1)
    texts = ["a\nb", "a\r\nb", "a\u2028b", "ä"]
    for text in (
        "region\r\n" + "\r\n".join(f'"{text}"' for text in texts),
        "\n".join(json.dumps({"region": text}, ensure_ascii=False) for text in texts),
    ):
        keys.write_bytes(text.encode())
        for source in (str(keys), "-"):
            told = look_up("--file", source, "-o", "json", column="region", given=text.encode())
            results = json.loads(told.stdout)["results"]
            assert [one["key"]["region"] for one in results] == texts
    keys.write_bytes(b"region\n\xe4\n")
    for mistake in (("--key", "id"), ("--key", "{"), (), ("--file", str(keys))):
        refused = look_up(*mistake)
        assert (refused.exit_code, bool(refused.stderr)) == (2, True), mistake


@pytest.mark.parametrize(
    ("url", "token", "why"),
    [
        ("lookup:8020", TOKEN, "no URL of http"),
        ("http://lookup:8020", None, "ICESTREAM_LOOKUP_TOKEN as well"),
        ("http://lookup:8020", "short", "at least 16"),
    ],
)
def test_half_a_setup_of_lookup_servers_is_refused(url: str, token: str | None, why: str) -> None:
    given = {"ICESTREAM_LOOKUP_URL": url} | ({"ICESTREAM_LOOKUP_TOKEN": token} if token else {})
    with pytest.MonkeyPatch.context() as environment:
        for name, value in given.items():
            environment.setenv(name, value)
        with pytest.raises(ValidationError, match=why):
            Settings()
