"""How long a dry run says that its job would take, by what the table's earlier jobs took."""

from datetime import timedelta
from typing import Any

import pytest

from service.db.database import Database
from service.jobs.estimates import _WORK, seconds_of
from service.records.jobs import JobKind
from tests.service import queue_calls as queue
from tests.service.conftest import alike_on_both
from tests.service.queue_calls import FATAL, START, add_tables, add_worker, claim, job

database_kind = alike_on_both


@pytest.mark.parametrize(
    ("known", "work", "seconds"),
    [
        ([(100, 4.0)], 900, 4.0),
        ([(100, 4.0), (200, 6.0), (300, 8.0)], 500, 12.0),
        # What takes time is not what was counted, or something that it does not show.
        ([(100, 8.0), (200, 6.0), (300, 4.0)], 500, 6.0),
        # A line through these would let small jobs take less than no time.
        ([(100, 1.0), (200, 6.0)], 60, 1.4),
    ],
)
def test_more_work_takes_longer_as_far_as_earlier_jobs_show_it(
    known: list[tuple[float, float]], work: float, seconds: float
) -> None:
    assert seconds_of(work, known) == pytest.approx(seconds)


def test_a_dry_run_is_estimated_by_the_jobs_of_its_table_and_kind_that_worked_at_once(
    database: Database,
) -> None:
    table, other = add_tables(database, ["u1", "u2"])
    worker = add_worker(database)
    kind = JobKind.REWRITE_DATA_FILES
    now = START

    def run(table_id: str, size: int, seconds: float, *, dry_run: bool = False, kind: JobKind = kind) -> Any:
        nonlocal now
        now += timedelta(hours=1)
        job_id = queue.request(database, table_id, kind, now, dry_run=dry_run)
        assert claim(database, worker, now)
        result = {
            "dry_run": dry_run,
            "data_files": {"data_files_rewritten": 1, "bytes_rewritten": size},
            "equality_delete_files_removed": 0,  # it had none to convert first
            "estimate": {"seconds": 1},
        }
        queue.finish(database, job_id, 1, "succeeded", now + timedelta(seconds=seconds), result=result)
        return (job(database, job_id).result or {}).get("estimate")

    run(other, 100, 500)
    run(table, 0, 500)
    run(table, 100, 500, kind=JobKind.CONVERT)
    assert run(table, 100, 1, dry_run=True) is None, "and none of a worker's is believed"
    run(table, 100, 10)
    assert run(table, 300, 1, dry_run=True) == {"seconds": 10.0, "jobs": 1, "off_by": None}
    run(table, 200, 15)
    run(table, 400, 30)
    assert run(table, 300, 1, dry_run=True) == {"seconds": 22.857, "jobs": 3, "off_by": 1.35}
    assert run(table, 0, 1, dry_run=True) is None

    failing = queue.request(database, table, kind, now)
    assert claim(database, worker, now + timedelta(hours=1))
    queue.finish(database, failing, 1, "failed", now + timedelta(hours=2), FATAL)
    assert run(table, 300, 1, dry_run=True)["jobs"] == 3


def test_a_removal_of_orphan_files_is_estimated_by_how_many_earlier_ones_deleted(database: Database) -> None:
    (table,) = add_tables(database, ["u1"])
    worker = add_worker(database)
    kind = JobKind.REMOVE_ORPHAN_FILES
    now = START

    def run(orphans: dict[str, Any], seconds: float, dry_run_job_id: str | None = None) -> str:
        nonlocal now
        now += timedelta(hours=1)
        dry_run = dry_run_job_id is None
        parameters = {"older_than_seconds": 604_800, "dry_run_job_id": dry_run_job_id}
        job_id = queue.request(database, table, kind, now, dry_run=dry_run, parameters=parameters)
        assert claim(database, worker, now)
        told = {"files_in_location": 5_000, "orphan_files": 3_000, **orphans}
        result = {"dry_run": dry_run, "orphans": told}
        queue.finish(database, job_id, 1, "succeeded", now + timedelta(seconds=seconds), result=result)
        return job_id

    def estimated(files: int) -> Any:
        return (job(database, looked(files)).result or {}).get("estimate")

    def looked(files: int) -> str:
        return run({"files": [f"s3://b/t/data/{number}.parquet" for number in range(files)]}, 1)

    assert estimated(10) is None
    run({"files_deleted": 10, "files_kept": 90}, 4, looked(100))
    assert estimated(40) == {"seconds": 4.0, "jobs": 1, "off_by": None}
    run({"files_deleted": 20}, 6, looked(20))
    assert estimated(40) == {"seconds": 10.0, "jobs": 2, "off_by": 1.5}
    assert estimated(0) is None


@pytest.mark.parametrize(
    ("kind", "foretold", "done"),
    [
        (JobKind.CONVERT, {"bytes_read": 30, "bytes_written": 10}, {"equality_delete_files_removed": 1}),
        (
            JobKind.EXPIRE_SNAPSHOTS,
            {"expiry": {"data_files_deleted": 20, "delete_files_deleted": 10, "manifests_deleted": 10}},
            {},
        ),
        (JobKind.REWRITE_POSITION_DELETE_FILES, {"delete_files": {"bytes_rewritten": 40}}, {}),
        (JobKind.REWRITE_MANIFESTS, {"manifests": {"bytes_rewritten": 40}}, {}),
    ],
)
def test_each_kind_is_estimated_by_what_it_has_to_do(
    database: Database, kind: JobKind, foretold: dict[str, Any], done: dict[str, Any]
) -> None:
    """As much as its dry run foretells; of twice as much, twice as long."""
    (table,) = add_tables(database, ["u1"])
    worker = add_worker(database)
    now = START

    def run(times: int, seconds: float, *, dry_run: bool = False) -> Any:
        nonlocal now
        now += timedelta(hours=1)
        job_id = queue.request(database, table, kind, now, dry_run=dry_run)
        assert claim(database, worker, now)
        result = {"dry_run": dry_run, **done, **_times(foretold, times)}
        queue.finish(database, job_id, 1, "succeeded", now + timedelta(seconds=seconds), result=result)
        return (job(database, job_id).result or {}).get("estimate")

    assert run(1, 1, dry_run=True) is None
    run(1, 10)
    run(2, 20)
    assert run(4, 1, dry_run=True) == {"seconds": 40.0, "jobs": 2, "off_by": 2.0}


def _times(told: dict[str, Any], times: int) -> dict[str, Any]:
    return {
        name: _times(value, times) if isinstance(value, dict) else value * times
        for name, value in told.items()
    }


def test_each_kind_of_maintenance_is_estimated() -> None:
    assert {kind for kind in JobKind if kind.is_maintenance} < {*_WORK}
    assert JobKind.REMOVE_ORPHAN_FILES in _WORK
