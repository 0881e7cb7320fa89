"""Questions about keys, over HTTP: what is asked, how, and what is answered or refused."""

import json
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyiceberg.types import StringType

from service.lookups.questions import JSON_TYPE
from service.settings import Settings
from tests.service.conftest import (
    Running,
    alike_on_both,
    listening,
    running,
    with_lookup_server,
)
from tests.service.iceberg_tables import ARROW, IcebergCatalog
from tests.service.lookups.conftest import TOKEN
from trust.arrow_streams import STREAM_TYPE
from worker.io.cache import Cache
from worker.lookup_server.app import create_app
from worker.query.answers import Answers

database_kind = alike_on_both


def _matches(answer: httpx.Response) -> list[list[bool]]:
    """Whether each row is live, for each key."""
    assert answer.status_code == 200, answer.text
    return [[match["live"] for match in found["matches"]] for found in answer.json()["results"]]


def arrow_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


AS_ARROW = {"Content-Type": STREAM_TYPE}


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


@pytest.mark.parametrize(
    ("path", "asked"),
    [("", '{"keys": [%s], %s}'), ("/history", '{"key": %s, %s}')],
    ids=["lookup", "history"],
)
def test_a_name_that_stands_twice_is_refused(service: Running, table: str, path: str, asked: str) -> None:
    content = asked % ('{"id": 1, "id": 2}', '"key_columns": ["id"]')
    answer = service.admin.post(table + path, content=content, headers={"Content-Type": JSON_TYPE})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/validation-error")
    assert "'id' stands twice" in answer.json()["detail"]


def test_options_of_keys_in_arrow_name_one_snapshot(service: Running, table: str) -> None:
    both: dict[str, str | int] = {"branch": "main", "snapshot_id": 7}
    stream = arrow_stream(pa.table({"id": [1]}))
    answer = service.admin.post(table, params=both, content=stream, headers=AS_ARROW)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/validation-error")
    assert "either a branch or tag, or a snapshot" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("query", "told"), [("snapshotid=7", "snapshotid"), ("branch=dev&branch=main", "more than once")]
)
def test_a_word_of_the_query_that_says_nothing_is_refused(
    service: Running, table: str, query: str, told: str
) -> None:
    stream = arrow_stream(pa.table({"id": [1]}))
    answer = service.admin.post(f"{table}?{query}", content=stream, headers=AS_ARROW)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/validation-error")
    assert told in answer.text


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


@pytest.mark.parametrize("gone", ["metadata", "manifest list", "manifest", "data", "nothing"])
def test_what_has_expired_or_come_since_the_head_was_asked_for_costs_no_answer(
    settings: Settings, iceberg: IcebergCatalog, gone: str
) -> None:
    asked = {"keys": [{"id": 3}], "key_columns": ["id"], "select": ["region"], "max_staleness_seconds": 3_600}
    table = iceberg.catalog.load_table("db.t")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    expired = {
        "metadata": table.metadata_location,
        "manifest list": snapshot.manifest_list,
        "manifest": snapshot.manifests(table.io)[0].manifest_path,
        "data": next(iter(table.scan().plan_files())).file.file_path,
    }
    with (
        listening(create_app(TOKEN, Answers(Cache(0)))) as url,
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
            Path(expired[gone].removeprefix("file://")).unlink()
            assert _matches(service.admin.post(path, json=asked)) == [[True, True]]
