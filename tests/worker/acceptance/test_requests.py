"""What a command asks of a catalog and of a store is counted by kind."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from tests.http_server import Answer, answering, rest_catalog
from tests.worker.acceptance.fakes import FakeLake, acceptance_of
from trust.egress import Egress
from worker.acceptance.lake import Lake
from worker.table.rest_gateway import RestGateway


def test_requests_to_a_rest_catalog_are_counted_by_operation() -> None:
    answers = rest_catalog() | {
        "/v1/oauth/tokens": Answer({"access_token": "t", "token_type": "bearer"}),
        "/v1/namespaces/db/tables/t/metrics": Answer("", 204),
    }
    with answering(answers) as server:
        record = {"uri": server.url, "credential": "id:secret"}
        record["oauth2-server-uri"] = f"{server.url}/v1/oauth/tokens"
        gateway = RestGateway("lake", record, Egress())
        for method, path in (
            ("GET", "v1/namespaces?pageToken="),
            ("GET", "v1/namespaces/db/tables"),
            ("GET", "v1/namespaces/db/tables/t?snapshots=refs"),
            ("GET", "v1/namespaces/db/tables/t"),
            ("GET", "v1/namespaces/db/tables/gone"),
            ("POST", "v1/namespaces/db/tables/t"),
            ("POST", "v1/namespaces/db/tables/t/metrics"),
            ("GET", "v1/views"),
        ):
            gateway.ask(method, path, {}, b"")
    assert gateway.requests == {
        "getToken": 2,  # for its configuration, and for all else
        "getConfig": 1,
        "listNamespaces": 1,
        "listTables": 1,
        "loadTable": 3,
        "updateTable": 1,
        "reportMetrics": 1,
        "GET /v1/views": 1,
    }
    assert gateway.requests.total() == len(server.requests)


def test_of_other_catalogs_and_of_the_store_is_counted_what_was_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("worker.acceptance.lake.open_catalog", lambda *_: (MagicMock(), None))
    monkeypatch.setattr("worker.acceptance.lake.load_table", lambda *_: MagicMock())
    monkeypatch.setattr("worker.acceptance.lake.file_io_properties", lambda _: {})
    lake = Lake(MagicMock(), {"name": "lake", "type": "sql", "properties": {}})
    table = lake.load(["a", "t"])
    lake.load(["a", "t"])
    lake.has_namespace(["a"])
    assert lake.requests == {"open table": 2, "look for namespace": 1}

    storage, place = lake.storage_of(table), (tmp_path / "data").as_uri()
    storage.write(f"{place}/1", pa.py_buffer(b"1"))
    with storage.open_output(f"{place}/2") as sink:
        sink.write(b"2")
    assert storage.read(f"{place}/1") == b"1"
    assert len(storage.walk(place)) == 2
    storage.delete(f"{place}/1")
    assert not storage.exists(f"{place}/1")
    assert lake.of_store == {
        "write a file": 2,
        "open a file": 1,
        "list files": 1,
        "delete a file": 1,
        "look for a file": 1,
    }


def test_each_step_has_its_own_requests_and_the_report_says_what_was_not_counted() -> None:
    lake = FakeLake()
    acceptance = acceptance_of(lake)

    def ask(number: int) -> str:
        lake.requests["open table"] += number
        acceptance.service.requests["GET /me"] += 1
        return ""

    for number in (1, 2):
        acceptance._try("v2", f"step {number}", lambda number=number: ask(number))  # type: ignore[misc]
    acceptance._try("v2", "nothing", str)
    assert [step.requests for step in acceptance.report.steps] == [
        {"service": {"GET /me": 1}, "catalog": {"open table": 1}},
        {"service": {"GET /me": 1}, "catalog": {"open table": 2}},
        {},
    ]
    acceptance.service.stopping.set()
    report = acceptance.go({})
    assert report.requests == {"service": {"GET /me": 2}, "catalog": {"open table": 3}}
    assert [one.split()[0] for one in report.not_counted] == ["What", "What", "How", "Requests"]
