"""Indexes from within, as workers and polls have told: no index is there that could be opened."""

from datetime import datetime, timedelta
from typing import Any

from service.catalogs.measure import EqualityDelete
from service.db.database import utc_now
from service.scheduling.looks import _by_key_set
from tests.browser.running_service import convert_result, index_report
from tests.service.conftest import ON_BOTH, Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog

_RUNS = [
    {"level": 9, "files": 2, "entries": 900, "bytes": 9_000, "dead_ratio": 0.25},
    {"level": 0, "files": 1, "entries": 100, "bytes": 1_000, "dead_ratio": 0.0},
]
_PARTITIONS = [{"partition": "region=eu", "data_files": 90, "covered_data_files": 60}]
_LAYOUT = {"equality_field_ids": [1], "runs": _RUNS, "partitions": _PARTITIONS}


def _index_of(service: Running, table: str) -> dict[str, Any]:
    answer = service.admin.get(f"/tables/{table}/health/index")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def _finish(service: Running, table: str, kind: str, **report: Any) -> str:
    service.admin.post(f"/tables/{table}/jobs", json={"kind": kind})
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    answer = service.finish(assignment, **report)
    assert answer.is_success, answer.text
    return str(assignment["job"]["id"])


# What a table's indexes look like, Python tells; how it is kept, and found in results, the database does.
database_kind = alike_on_both


def test_what_workers_and_polls_tell_of_an_index_is_shown_by_key(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    table = service.enroll(policy="manual")["id"]
    assert _index_of(service, table)["key_sets"] == []
    iceberg.delete_keys("db.t", [1, 2])
    iceberg.delete_keys("db.t", ["a"], column="region")
    service.poll(table)
    _finish(service, table, "index", health=index_report() | {"layouts": [_LAYOUT]})
    service.poll(table)
    found = _index_of(service, table)
    assert found["partitions"] == 0  # as the poll has seen
    by_id, by_region = found["key_sets"]
    assert (by_id["columns"], by_id["runs"], by_id["partitions"]) == (["id"], _RUNS, _PARTITIONS)
    assert [(one["files"], one["deletes"]) for one in by_id["pending"]] == [(1, 2)]
    assert by_id["pending"][0]["age_seconds"] > 0
    # Nothing is indexed by region: only what waits is known of it.
    assert (by_region["equality_field_ids"], by_region["coverage"], by_region["runs"]) == ([2], None, [])
    assert [one["files"] for one in by_region["pending"]] == [1]


@ON_BOTH
def test_a_report_without_layouts_leaves_none_of_earlier_ones(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    table = service.enroll(policy="manual")["id"]
    _finish(service, table, "index", health=index_report() | {"layouts": [_LAYOUT]})
    assert _index_of(service, table)["key_sets"][0]["runs"] == _RUNS
    earlier = {name: told for name, told in index_report().items() if name != "layouts"}
    _finish(service, table, "compact", health=earlier)
    (one,) = _index_of(service, table)["key_sets"]
    assert (one["runs"], one["partitions"], one["sorted_runs"]) == ([], [], 7)


def test_a_report_of_more_covered_files_than_there_are_is_refused(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    table = service.enroll(policy="manual")["id"]
    service.admin.post(f"/tables/{table}/jobs", json={"kind": "index"})
    assignment = service.claim(service.start_worker())
    assert assignment is not None
    wrong = _LAYOUT | {"partitions": [_PARTITIONS[0] | {"covered_data_files": 91}]}
    assert service.finish(assignment, health=index_report() | {"layouts": [wrong]}).status_code == 422
    many = _LAYOUT | {"runs": _RUNS * 51}
    assert service.finish(assignment, health=index_report() | {"layouts": [many]}).status_code == 422


@ON_BOTH
def test_lookups_are_told_as_predicted_and_as_measured_the_latest_first(
    service: Running, iceberg: IcebergCatalog
) -> None:
    service.register(iceberg)
    table = service.enroll(policy="manual")["id"]
    by_id, by_region = convert_result()["key_sets"]
    first = by_id | {"predicted_index_seconds": 0.5, "predicted_scan_seconds": 2.0, "index_seconds": 0.75}
    jobs = [_finish(service, table, "convert", result={"key_sets": [first, by_region]})]
    _finish(service, table, "index", result={"key_sets": [first]})  # no job that looks for rows
    second = first | {"source": "scan", "index_seconds": 0, "scan_seconds": 1.5}
    jobs.append(_finish(service, table, "convert", result={"key_sets": [second]}))
    told = _index_of(service, table)["lookups"]
    # The key without an index left nothing to choose.
    assert [(one["job_id"], one["source"], one["index_seconds"], one["scan_seconds"]) for one in told] == [
        (jobs[1], "scan", 0.0, 1.5),
        (jobs[0], "index", 0.75, 0.0),
    ]
    assert {(one["predicted_index_seconds"], one["predicted_scan_seconds"]) for one in told} == {(0.5, 2.0)}


def test_pending_deletes_are_grouped_by_age_however_many_there_are() -> None:
    now = utc_now()

    def committed(at: datetime, rows: int = 1) -> EqualityDelete:
        return EqualityDelete(f"{at}-{rows}.parquet", rows, 100, (1,), at)

    ages = [5, 50, 100, 3_600, 86_400 * 400]
    deletes = [committed(now - timedelta(seconds=age), age) for age in ages]
    (told,) = _by_key_set(deletes, now)
    assert told["files"] == 5
    assert told["oldest_at"] == (now - timedelta(days=400)).isoformat()
    assert [(files, rows) for _, files, rows in told["ages"]] == [
        (1, 86_400 * 400),
        (1, 3_600),
        (1, 100),
        (2, 55),
    ]
    near = [committed(now - timedelta(seconds=age)) for age in (590, 599, 600, 610)]
    (told,) = _by_key_set(near, now)
    assert [files for _, files, _ in told["ages"]] == [2, 2], "ten minutes are a limit of the page's bars"
    stream = [committed(now - timedelta(seconds=5 * step)) for step in range(100_000)]
    (told,) = _by_key_set(stream, now)
    assert sum(files for _, files, _ in told["ages"]) == 100_000
    assert len(told["ages"]) <= 32
    times = [datetime.fromisoformat(at) for at, _, _ in told["ages"]]
    assert times == sorted(times)
