"""What rows a key had in each of the newest snapshots."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.types import StringType

from service.lookups import history
from service.lookups.history import describe
from service.lookups.models import EarlierSnapshots, KeyMatches, LookupAnswer, Match
from service.lookups.servers import Allowance, LookupServers
from service.settings import Settings
from tests.service.conftest import (
    Running,
    alike_on_both,
    listening,
    running,
    with_lookup_server,
)
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.lookups.conftest import TOKEN
from worker.lookup_server.app import create_app

database_kind = alike_on_both


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


def test_a_snapshot_whose_manifests_are_gone_takes_no_other_with_it(
    service: Running, table: str, iceberg: IcebergCatalog
) -> None:
    first = iceberg.catalog.load_table("db.t").current_snapshot()
    iceberg.append("db.t", [4])
    assert first is not None
    Path(first.manifest_list.removeprefix("file://")).unlink()
    asked = {"key": {"id": 4}, "key_columns": ["id"]}
    newest, older = service.admin.post(f"{table}/history", json=asked).json()["snapshots"]
    assert [match["live"] for match in newest["matches"]] == [True]
    assert (older["matches"], older["not_told"]["code"]) == (None, "lookup-failed")
    assert first.manifest_list.removeprefix("file://") in older["not_told"]["detail"]


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
        ([1], [1, 2], "append", "added"),
        ([1, 2], [2], "delete", "removed"),
        ([1, 2], [2, 3], "overwrite", "replaced"),
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
