"""The Python client's writes: one job each, waited for, whatever the rows come as."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyiceberg.schema import assign_fresh_schema_ids

import icestream
from icestream.writes import json_rows
from tests.http_server import Answer, answering
from tests.patience import PATIENCE_SECONDS
from tests.service.conftest import ADMIN_KEY, Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog
from worker.writes.rows import rows_of_json

database_kind = alike_on_both
PAGE = (Path(__file__).parents[2] / "docs" / "writes.md").read_text()


@pytest.fixture
def client(service: Running) -> Iterator[icestream.Client]:
    with icestream.Client(service.url, ADMIN_KEY, wait_seconds=0) as client:
        yield client


@pytest.fixture
def table(service: Running, iceberg: IcebergCatalog, client: icestream.Client) -> icestream.Table:
    service.register(iceberg)
    service.enroll()
    return client.table("db.t")


class Worker:
    """Takes one job and reports its end."""

    def __init__(self, service: Running, **report: Any) -> None:
        self.assignment: dict[str, Any] = {}
        self.staged: list[pa.Table] = []

        def work() -> None:
            found = service.claim(service.start_worker(), wait_seconds=20)
            assert found is not None
            self.assignment = found
            self.staged = [pq.read_table(file) for file in found["job"]["parameters"].get("files", ())]
            service.finish(found, **report)

        self._thread = threading.Thread(target=work)

    def __enter__(self) -> Worker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(PATIENCE_SECONDS)


NOON = datetime(2024, 2, 29, 12, 0, 0, 4, tzinfo=UTC).replace(tzinfo=None)
ROWS = [{"id": 1, "name": "a"}, {"id": 2, "name": None}]


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        pa.Table.from_pylist(ROWS),
        pa.RecordBatch.from_pylist(ROWS),
        pl.DataFrame(ROWS),
        # What is left of a frame of pandas has an index, without a name.
        pa.Table.from_pylist([{"id": 0, "name": "b"}, *ROWS]).to_pandas().query("id > 0"),
    ],
    ids=["list", "table", "batch", "polars", "pandas"],
)
def test_rows_are_written_whatever_they_come_as(service: Running, table: icestream.Table, rows: Any) -> None:
    counts: dict[str, Any] = {"rows_added": 1, "rows_deleted": 3, "rows_left_out": 1, "left_out": [1]}
    with Worker(service, result={**counts, "iceberg_snapshot_id_after": 7}) as worker:
        written = table.upsert(rows, key_columns=["id"], insert_only=True)
    assert worker.assignment["rows"] == ROWS
    assert worker.assignment["job"]["parameters"] == {"rows": 2, "key_columns": ["id"], "insert_only": True}
    job_id = worker.assignment["job"]["id"]
    assert written == icestream.Written(job_id, 7, **counts, dry_run=False)


def test_the_program_of_the_page_writes_and_deletes_rows(
    service: Running,
    iceberg: IcebergCatalog,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ICESTREAM_URL", service.url)
    monkeypatch.setenv("ICESTREAM_API_KEY", ADMIN_KEY)
    service.register(iceberg)
    iceberg.create("sales.customers")
    service.enroll("sales.customers", key_sets=[["id"]])
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    counts: dict[str, Any] = {"rows_added": 1, "rows_deleted": 3, "iceberg_snapshot_id_after": 7}
    with Worker(service, result=counts) as first, Worker(service, result=counts) as second:
        exec(program, {})
    written = sorted((one.assignment["job"]["kind"], one.assignment["rows"]) for one in (first, second))
    assert written == [("delete", [{"id": 18}]), ("upsert", [{"id": 17, "region": "eu"}])]
    assert capsys.readouterr().out == "7 1 3\n"


MANY = pa.table({"id": range(1_001), "name": [f"n{n}" for n in range(1_001)]})


@pytest.fixture
def staging(service: Running) -> Path:
    return service.settings.data_dir / "staging"


@pytest.mark.parametrize(
    "made",
    [lambda: MANY, lambda: MANY.to_reader(100), lambda: pl.from_arrow(MANY), MANY.to_pandas],
    ids=["table", "reader", "polars", "pandas"],
)
def test_rows_that_no_request_holds_are_staged_until_the_job_has_ended(
    service: Running, table: icestream.Table, staging: Path, made: Any
) -> None:
    with Worker(service, result={"rows_added": 1_001}) as worker:
        written = table.upsert(made(), key_columns=["id"], staging=str(staging))
    assert (worker.assignment["rows"], written.rows_added) == (None, 1_001)
    (staged,) = worker.staged
    assert staged.to_pylist() == MANY.to_pylist()
    assert list(staging.iterdir()) == []


def test_keys_are_staged_on_a_file_system_of_the_callers(
    service: Running, table: icestream.Table, staging: Path
) -> None:
    with Worker(service, result={"rows_deleted": 1}) as worker:
        table.delete(MANY.select(["id"]), staging=staging.as_uri(), filesystem=LocalFileSystem())
    (file,) = worker.assignment["job"]["parameters"]["files"]
    assert file.startswith(f"{staging.as_uri()}/icestream-")
    assert (worker.staged[0].num_rows, list(staging.iterdir())) == (1_001, [])


def test_staged_rows_go_with_a_write_that_failed_and_stay_for_a_job_that_goes_on(
    service: Running, table: icestream.Table, staging: Path
) -> None:
    told = {"code": "invalid_rows", "title": "No.", "detail": "Row 0.", "remedy": "Mend it."}
    with Worker(service, status="failed", error=told), pytest.raises(icestream.JobFailedError):
        table.upsert(MANY, staging=str(staging))
    assert list(staging.iterdir()) == []
    with pytest.raises(icestream.InvalidError, match="outside the places"):
        table.upsert(MANY, staging=str(staging.parent.parent / "elsewhere"))
    assert list((staging.parent.parent / "elsewhere").iterdir()) == []
    with pytest.raises(TimeoutError) as caught:
        table.upsert(MANY, staging=str(staging), wait_seconds=0)
    (left,) = staging.iterdir()
    assert str(left) in caught.value.__notes__[0]


TABLE = "0c9f6f0e-2f6b-4c39-8a1e-5b0e4d1c7a11"
QUEUED = Answer({"id": "j1", "status": "queued"}, 202, {"Content-Type": "application/json"})


@pytest.mark.parametrize(
    ("sent", "asked", "stay"),
    [
        ([QUEUED], Answer("", 403), True),
        ([QUEUED], Answer("", 429), True),
        ([Answer("", 403)], None, False),
        ([Answer("", 503, {"Retry-After": "9"})], None, True),
        ([Answer("", 503, {"Retry-After": "0"}), Answer("", 403)], None, True),
    ],
    ids=["forbidden later", "too often later", "refused", "unknown", "unknown, then refused"],
)
def test_staged_rows_stay_unless_no_job_can_read_them(
    tmp_path: Path, sent: list[Answer], asked: Answer | None, stay: bool
) -> None:
    answers = iter(sent)
    path = f"/api/v1/tables/{TABLE}/rows/upsert"
    with (
        answering({path: lambda _: next(answers)} | ({"/api/v1/jobs/j1": asked} if asked else {})) as server,
        icestream.Client(server.url, "key", wait_seconds=1) as client,
        pytest.raises(icestream.IcestreamError) as caught,
    ):
        client.table(TABLE).upsert(MANY, staging=str(tmp_path))
    left = list(tmp_path.iterdir())
    assert bool(left) == stay
    assert [str(left[0]) in note for note in caught.value.__notes__] == [True] if stay else not left


def test_a_table_of_an_unknown_name_costs_no_staging(client: icestream.Client) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        pytest.fail("the rows were read")
        yield

    reader = pa.RecordBatchReader.from_batches(MANY.schema, rows())
    with pytest.raises(icestream.UnknownNameError):
        client.table("db.unknown").upsert(reader, staging="/nowhere")


def test_rows_that_no_request_holds_need_a_place(table: icestream.Table) -> None:
    with pytest.raises(ValueError, match="staging"):
        table.upsert(MANY)
    with pytest.raises(ValueError, match="no absolute place"):
        table.upsert(MANY, staging="here")


def test_a_delete_sends_keys(service: Running, table: icestream.Table) -> None:
    with Worker(service, result={"rows_deleted": 2}) as worker:
        written = table.delete(pa.table({"id": [1, 2]}), dry_run=True)
    assert (worker.assignment["job"]["kind"], worker.assignment["rows"]) == ("delete", [{"id": 1}, {"id": 2}])
    assert (written.rows_deleted, written.snapshot_id, written.dry_run) == (2, None, True)


def test_a_write_that_failed_says_why(service: Running, table: icestream.Table) -> None:
    told = {"code": "duplicate_keys", "title": "Twice.", "detail": "2 rows.", "remedy": "Send one."}
    with Worker(service, status="failed", error=told), pytest.raises(icestream.JobFailedError) as caught:
        table.upsert(ROWS)
    assert (caught.value.code, caught.value.title, str(caught.value)) == (
        "duplicate_keys",
        "Twice.",
        "2 rows. Send one.",
    )


def test_a_write_is_waited_for_no_longer_than_was_asked(service: Running, table: icestream.Table) -> None:
    with pytest.raises(TimeoutError, match="it goes on"):
        table.upsert(ROWS, wait_seconds=0)
    (job,) = service.admin.get("/jobs").json()["items"]
    assert job["status"] == "queued"


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([], ValueError),
        (ROWS * 501, ValueError),
        (pa.table({"id": []}), ValueError),
        ({"id": 1}, TypeError),
        ("id", TypeError),
        (5, TypeError),
        ([{"id": object()}], TypeError),
    ],
    ids=["none", "too many", "none in arrow", "one alone", "text", "a number", "no value"],
)
def test_what_is_no_write_is_not_sent(
    service: Running, table: icestream.Table, rows: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        table.upsert(rows)
    assert service.admin.get("/jobs").json()["items"] == []


def test_a_worker_reads_what_the_client_writes() -> None:
    values: dict[str, tuple[pa.DataType, list[Any]]] = {
        "long": (pa.int64(), [2**62, -1, None]),
        "double": (pa.float64(), [1.5, float("inf"), None]),
        "decimal": (pa.decimal128(9, 2), [Decimal("1.50"), Decimal("-9999999.99"), None]),
        "text": (pa.large_string(), ["ä\n", "", None]),
        "bytes": (pa.large_binary(), [b"\0\xff", b"", None]),
        "truth": (pa.bool_(), [True, False, None]),
        "day": (pa.date32(), [date(2024, 2, 29), date(1, 1, 1), None]),
        "time": (pa.time64("us"), [time(23, 59, 59, 999_999), time(0), None]),
        "local": (pa.timestamp("us"), [NOON, NOON.replace(year=1904), None]),
        "moment": (pa.timestamp("us", "UTC"), [datetime(2024, 2, 29, tzinfo=UTC)] * 2 + [None]),
        "struct": (
            pa.struct([("a", pa.int32()), ("b", pa.large_string())]),
            [{"a": 1, "b": None}] * 2 + [None],
        ),
        "list": (pa.large_list(pa.date32()), [[date(2024, 1, 1), None], [], None]),
        "map": (pa.map_(pa.large_string(), pa.float64()), [[("k", 1.5), ("l", None)], [], None]),
    }
    sent = pa.table({name: pa.array(column, kind) for name, (kind, column) in values.items()})
    schema = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(sent.schema))
    assert rows_of_json(schema, json_rows(sent)).to_pylist() == sent.to_pylist()
