"""The Python client, against the service with a lookup server beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.types import StringType

import icestream
from icestream import client as client_module
from icestream import connection
from service.settings import Settings
from tests.http_server import Answer, Request, answering
from tests.service.conftest import ADMIN_KEY, Running, alike_on_both, listening, running, with_lookup_server
from tests.service.iceberg_tables import IcebergCatalog
from worker.lookup_server.app import create_app

database_kind = alike_on_both

TOKEN = "a-token-of-these-tests"
PAGE = (Path(__file__).parents[2] / "docs" / "lookups.md").read_text()
PROGRAMS = [
    one for one in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "icestream.spark" not in one
]


@pytest.fixture
def service(settings: Settings, iceberg: IcebergCatalog) -> Iterator[Running]:
    with listening(create_app(TOKEN)) as url, running(with_lookup_server(settings, url, TOKEN)) as service:
        service.register(iceberg)
        service.enroll()
        yield service


@pytest.fixture
def client(service: Running) -> Iterator[icestream.Client]:
    with icestream.Client(service.url, ADMIN_KEY, wait_seconds=0) as client:
        yield client


IDS = [2, 9, 3]


@pytest.mark.parametrize(
    "keys",
    [
        pa.table({"id": IDS}),
        pa.record_batch({"id": IDS}),
        pa.table({"id": IDS}).to_pandas(),
        pa.table({"id": [0, *IDS]}).to_pandas().query("id > 0"),  # has an index, without a name
        pa.table({"id": IDS}).to_pandas().set_index("id"),
        pa.table({"id": pa.array(IDS).dictionary_encode()}),
        pl.DataFrame({"id": IDS}),
        [{"id": one} for one in IDS],
        lambda: ({"id": one} for one in IDS),  # is used up by whoever reads it
    ],
    ids=["table", "batch", "pandas", "filtered", "index", "dictionary", "polars", "list", "generator"],
)
def test_keys_of_any_kind_are_looked_up(client: icestream.Client, iceberg: IcebergCatalog, keys: Any) -> None:
    iceberg.delete_keys("db.t", [2])
    asked = keys() if callable(keys) else keys
    # In Arrow, all columns are the key's.
    named = None if hasattr(asked, "__arrow_c_stream__") else ["id"]
    found = client.table("db.t").lookup(asked, key_columns=named, select=["region"])
    assert (found.snapshot_id, found.key_columns) == (iceberg.head("db.t"), ["id"])
    assert (found.data_files_from_index, found.data_files_scanned, found.rows_scanned) == (0, 1, 3)
    frame = found.to_pandas()
    shown = frame[["key.id", "key_index", "live", "row.region"]].to_dict("list")
    assert shown == {
        "key.id": IDS,
        "key_index": [0, 1, 2],
        "live": [False, None, True],
        "row.region": ["eu", None, "eu"],
    }
    assert str(frame["position"].dtype) == "Int64"
    assert found.to_arrow()["position"].to_pylist() == [1, None, 2]


@pytest.mark.parametrize("program", PROGRAMS, ids=["http", "client"])
def test_the_programs_of_the_page_find_a_row(
    program: str,
    service: Running,
    iceberg: IcebergCatalog,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a key of lookups alone."""
    made = {"name": "k", "role": "viewer", "scopes": ["lookups:read"], "tables": ["local.sales.*"]}
    monkeypatch.setenv("ICESTREAM_URL", service.url)
    monkeypatch.setenv("ICESTREAM_API_KEY", service.admin.post("/api-keys", json=made).json()["key"])
    iceberg.create("sales.customers")
    iceberg.append("sales.customers", [18])
    service.enroll("sales.customers", key_sets=[["id"]])
    names: dict[str, Any] = {}
    exec(program, names)
    printed = capsys.readouterr().out
    assert "eu" in printed
    assert {"17", "18"} <= set(re.findall(r"\d+", printed))
    if "service" in names:
        names["service"].close()


def test_keys_of_several_calls_are_answered_about_one_snapshot(
    client: icestream.Client, iceberg: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "KEYS_AT_ONCE", 4)
    table, ask = client.table("local.db.t"), client_module.Table._ask

    def ask_and_write(*given: Any) -> Any:
        answered = ask(*given)
        iceberg.append("db.t", [4])
        return answered

    first = iceberg.head("db.t")
    monkeypatch.setattr(client_module.Table, "_ask", ask_and_write)
    with iceberg.catalog.load_table("db.t").update_schema() as change:
        change.add_column("town", StringType())
    for keys in (pa.table({"id": [1, 9, 9, 9, 4, 2]}), [{"id": one} for one in (1, 9, 9, 9, 4, 2)]):
        snapshot_id = first if isinstance(keys, pa.Table) else None
        # A branch has the columns of now, although none of its snapshots was written with them.
        of: dict[str, Any] = {"branch": "main", "select": ["id", "town"]}
        if snapshot_id is not None:
            of = {"snapshot_id": snapshot_id, "select": ["region"]}
        found = table.lookup(keys, key_columns=["id"], **of, max_staleness_seconds=0)
        assert found.to_arrow()["key_index"].to_pylist()[:4] == [0, 1, 2, 3]
        assert found.to_arrow()["key_index"].to_pylist()[-1] == 5
        is_live = found.to_arrow()["live"].to_pylist()
        assert is_live.count(True) == (2 if snapshot_id == first else 4)


def test_keys_that_are_too_long_for_one_call_are_asked_in_several(
    client: icestream.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_BODY_BYTES", 2_000)
    keys = pa.table({"region": [f"{at:x>800}" for at in range(5)] + ["eu"]})
    for asked in (keys, keys.to_pylist()):
        found = client.table("db.t").lookup(asked, key_columns=["region"])
        assert found.to_arrow()["key_index"].to_pylist() == [0, 1, 2, 3, 4, 5, 5, 5]
        assert found.rows_scanned > 3


def test_values_of_python_are_sent_as_iceberg_writes_them() -> None:
    values = {
        "decimal": Decimal("1E+2"),
        "uuid": UUID(int=1),
        "date": date(2026, 1, 2),
        "moment": datetime(2026, 1, 2, tzinfo=UTC),
        "bytes": b"\0a",
        "null": None,
    }
    sent = client_module._asked([values], None).request({})["content"]
    assert all(
        text in sent
        for text in (
            '"100"',
            f'"{UUID(int=1)}"',
            '"2026-01-02"',
            '"2026-01-02T00:00:00+00:00"',
            '"0061"',
            "null",
        )
    ), sent
    with pytest.raises(TypeError, match="no value of a column"):
        client_module._asked([{"id": 1.5}], None)


@pytest.mark.parametrize("keys", [{"id": 1}, "abc", 17])
def test_one_key_alone_is_no_list_of_keys(keys: Any) -> None:
    with pytest.raises(TypeError, match="a list with a mapping for each"):
        client_module._asked(keys, None)


def test_what_the_service_refuses_is_an_error_of_its_kind(service: Running, client: icestream.Client) -> None:
    table = client.table("db.t")
    with pytest.raises(icestream.InvalidError) as refused:
        table.lookup(pa.table({"id": ["x"]}))
    assert (refused.value.type, refused.value.status) == ("/problems/invalid-key", 422)
    assert refused.value.title
    assert refused.value.detail in str(refused.value)
    assert refused.value.remedy in str(refused.value)
    with pytest.raises(icestream.NotFoundError):
        table.lookup([{"id": 1}], key_columns=["id"], snapshot_id=7)
    with pytest.raises(icestream.UnknownNameError, match=r"No table is named db\.no"):
        client.table("db.no").delete([{"id": 1}])
    for name in ("db.no", "no.db.t"):
        with pytest.raises(icestream.NotFoundError, match="no enrolled table"):
            client.table(name).lookup([{"id": 1}])
    assert client.table("local/db.t").lookup([{"id": 1}], key_columns=["id"]).key_columns == ["id"]
    with (
        icestream.Client(service.url, "another-key-that-nobody-has-made") as stranger,
        pytest.raises(icestream.UnauthenticatedError),
    ):
        stranger.table("db.t").lookup([{"id": 1}])
    with pytest.raises(ValueError, match="no keys"):
        table.lookup([])


def test_a_client_that_cannot_call_anybody_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ICESTREAM_API_KEY", raising=False)
    with pytest.raises(icestream.SetupError, match="ICESTREAM_API_KEY is not set"):
        icestream.Client()
    with pytest.raises(icestream.SetupError, match="certificates"):
        icestream.Client("https://127.0.0.1:9", "key", ca_file="/nowhere")
    monkeypatch.setenv("ICESTREAM_API_KEY", "from-the-environment")
    monkeypatch.setenv("ICESTREAM_URL", "http://127.0.0.1:9")
    with icestream.Client() as client, pytest.raises(icestream.UnreachableError, match=r"127\.0\.0\.1:9"):
        client.table("db.t").lookup([{"id": 1}])


def test_a_service_that_is_busy_is_asked_again_when_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(connection, "sleep", waits.append)
    busy = {"title": "Too many keys", "detail": "You asked.", "remedy": "Wait."}
    answers = iter([Answer(busy, 429, {"Retry-After": "7"}), Answer(busy, 503), Answer({"items": []})])
    page = {"items": [{"name": "db.t", "catalog": "lake", "id": "1"}], "next_cursor": None}

    def answer(_: Request) -> Answer:
        found = next(answers)
        return found if found.status != 200 else Answer(page)

    with answering({"/api/v1/tables": answer}) as server:
        with icestream.Client(server.url, "key", wait_seconds=60) as client:
            assert client.table("lake.db.t").id == "1"
        assert waits == [7, 1]
        server.answers["/api/v1/tables"] = Answer(busy, 429, {"Retry-After": "61"})
        with (
            icestream.Client(server.url, "key", wait_seconds=60) as client,
            pytest.raises(icestream.BusyError, match="Too many keys"),
        ):
            assert client.table("db.t").id
        assert waits == [7, 1], "that is longer than it may wait"


def test_an_answer_of_something_else_is_told_as_such() -> None:
    table = "0c9f6f0e-2f6b-4c39-8a1e-5b0e4d1c7a11"
    path = f"/api/v1/tables/{table}/lookups"
    with (
        answering({path: Answer("<html>"), "/api/v1/tables": Answer("<html>")}) as server,
        icestream.Client(server.url, "key") as client,
    ):
        with pytest.raises(icestream.UnreachableError, match="not Icestream"):
            client.table(table).lookup([{"id": 1}])
        with pytest.raises(icestream.UnreachableError, match="not Icestream"):
            assert client.table("db.t").id
