"""Another policy is tried on what a table has seen, beside what really happened."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
from sqlmodel import select

from service.db.database import Database, utc_now
from service.reader_cost import Shape, shape_of
from service.records.health import HealthSample, TableHealth
from service.records.jobs import Job, JobKind
from service.records.tables import EnrolledTable
from service.scheduling import replay
from service.scheduling.history import (
    History,
    PastJob,
    Sample,
    arrivals_of,
    beginning_of,
    costs_of,
    happened,
    read_history,
)
from service.scheduling.simulation import Arrival, Cost, Outcome, Pending, Ran
from tests.service.conftest import Running, alike_on_both
from tests.service.iceberg_tables import IcebergCatalog
from tests.service.test_scheduler import NOW

# Sums and limits of a few columns.
database_kind = alike_on_both
UPSERT = Shape(2, 200, 2, 100, data_bytes=20_000, delete_bytes=2_000)
FIRST = Shape(4, 100_000, data_bytes=10_000_000)
COMMIT = timedelta(minutes=10)
TOOK = timedelta(seconds=4)


def sample(at: datetime, shape: Shape, snapshot: int, lag: float = 0.0) -> Sample:
    return Sample(at, snapshot, shape, lag, 1.0, 100_000, 1_200_000, 1, 0.0, 0, 1, 0)


def history(commits: int, since: datetime = NOW, job_lags: float = 0.0) -> History:
    """An upsert every ten minutes, indexed and, once it is 300 s old, converted, as `standard` has it.

    job_lags: seconds after which a job has ended whose commit was seen.
    """
    samples, jobs = [sample(since, FIRST, 0)], []
    shape, snapshot = FIRST, 0
    for number in range(1, commits + 1):
        came = since + COMMIT * number
        shape = add(shape, UPSERT.as_json())
        snapshot += 1
        samples.append(sample(came, shape, snapshot))
        indexed = {"key_sets": [{"rows_indexed": 200, "bytes_written": 4_000}]}
        index_began = came + timedelta(seconds=1)
        jobs.append(PastJob(JobKind.INDEX, came, index_began, index_began + TOOK, indexed))
        began = came + timedelta(seconds=301)
        ended = began + TOOK
        before, files = shape, shape.data_files
        samples.append(sample(ended - timedelta(seconds=0.5), shape, snapshot, 304.5))
        touched = files // 2
        removed = min(before.vectors, touched)
        left = {
            "equality_delete_files": -2,
            "equality_deletes": -100,
            "vectors": touched - removed,
            "positions": 90,
            "delete_bytes": 1_000 - 2_000,
        }
        shape = add(shape, left)
        snapshot += 1
        result = {
            "commits": 1,
            "equality_delete_files_removed": 2,
            "equality_deletes_resolved": 100,
            "data_files_touched": touched,
            "delete_files_added": touched,
            "delete_files_removed": removed,
            "rows_deleted": 90,
            "bytes_written": 1_000 * touched,
        }
        reported = ended + timedelta(seconds=job_lags)
        jobs.append(PastJob(JobKind.CONVERT, began - timedelta(seconds=1), began, reported, result))
        samples.append(sample(ended + timedelta(seconds=1), shape, snapshot))
    return History(samples, jobs)


def add(shape: Shape, more: Mapping[str, int]) -> Shape:
    return replace(shape, **{name: getattr(shape, name) + number for name, number in more.items()})


@pytest.mark.parametrize("job_lags", [0.0, 3.0])
def test_what_others_did_is_told_from_what_jobs_did(job_lags: float) -> None:
    found = arrivals_of(history(20, job_lags=job_lags))
    assert [one.at for one in found] == [NOW + COMMIT * number for number in range(1, 21)]
    assert {one.added for one in found} == {UPSERT}


def test_files_that_no_job_has_taken_were_taken_by_somebody_else() -> None:
    known = history(3)
    after = known.samples[-1]
    gone = replace(after.shape, data_files=1)
    later = [
        replace(after, at=after.at + timedelta(minutes=n), shape=gone, snapshot_id=99 + n) for n in (5, 20)
    ]
    (last,) = arrivals_of(replace(known, samples=[*known.samples, *later]))[3:]
    assert last.added.data_files == 1 - after.shape.data_files


@pytest.mark.parametrize(("dead", "job_lags"), [(100, 0.0), (100, 90.0), (0, 0.0)])
def test_rows_that_a_rewriting_drops_are_not_taken_from_later_commits(dead: int, job_lags: float) -> None:
    """dead: how many positions the samples tell of; those of earlier versions tell of none."""
    minute = timedelta(minutes=1)
    shapes = [
        Shape(10, 1000, vectors=5, positions=dead, data_bytes=1000),
        Shape(1, 900, data_bytes=900),
        Shape(2, 950, data_bytes=950),
        Shape(3, 1000, data_bytes=1000),
        Shape(4, 1050, data_bytes=1050),
    ]
    samples = [sample(NOW + minute * n, shape, n) for n, shape in enumerate(shapes)]
    report = {
        "data_files_rewritten": 10,
        "data_files_added": 1,
        "bytes_rewritten": 1000,
        "bytes_added": 900,
    }
    ended = NOW + minute + timedelta(seconds=job_lags)
    job = PastJob(JobKind.REWRITE_DATA_FILES, NOW, NOW, ended, {"data_files": report})
    found = arrivals_of(History(samples, [job]))
    assert sum(one.added.rows for one in found) == 150
    assert sum(one.added.data_files for one in found) == 3


def test_rows_that_a_rewriting_drops_are_told_from_those_that_come_meanwhile() -> None:
    samples = [
        sample(NOW, Shape(10, 1000, vectors=5, positions=100), 0),
        sample(NOW + TOOK, Shape(2, 950), 1),
    ]
    report = {"data_files_rewritten": 10, "data_files_added": 1}
    job = PastJob(JobKind.REWRITE_DATA_FILES, NOW, NOW, NOW + TOOK, {"data_files": report})
    (only,) = arrivals_of(History(samples, [job]))
    assert (only.added.data_files, only.added.rows) == (1, 50)


@pytest.mark.parametrize("is_told", [True, False])
def test_deletes_that_a_rewriting_converts_are_not_taken_from_later_commits(is_told: bool) -> None:
    """is_told: not so by workers of earlier versions; then only what came meanwhile is not known."""
    minute, samples, jobs = timedelta(minutes=1), [sample(NOW, FIRST, 0)], []
    came = {"equality_delete_files": 1, "equality_deletes": 50, "delete_bytes": 1_000}
    shape, pending = FIRST, 0
    for number in range(1, 61):
        shape, pending = add(shape, came), pending + 1
        at = NOW + minute * number
        samples.append(sample(at, shape, 2 * number))
        if number % 10 == 0:
            shape = FIRST
            done = {"equality_delete_files_removed": pending, "equality_deletes_resolved": 50 * pending}
            result = {"data_files": {"data_files_rewritten": 1, "data_files_added": 1}}
            told = result | (done if is_told else {})
            jobs.append(PastJob(JobKind.REWRITE_DATA_FILES, at, at, at + TOOK, told))
            samples.append(sample(at + 2 * TOOK, shape, 2 * number + 1))
            pending = 0
    found = arrivals_of(History(samples, jobs))
    assert [one.at for one in found] == [NOW + minute * number for number in range(1, 61)]
    assert {(one.added.equality_delete_files, one.added.equality_deletes) for one in found} == {(1, 50)}


def test_commits_of_an_hour_of_which_one_sample_is_kept_come_evenly() -> None:
    known = history(12)
    hourly = [one for one in known.samples if one.at <= NOW or one.at == NOW + timedelta(hours=2)]
    found = arrivals_of(replace(known, samples=hourly))
    assert len(found) > 5
    assert max(one.at for one in found) == NOW + timedelta(hours=2)
    for name in ("data_files", "rows", "equality_delete_files", "equality_deletes"):
        assert sum(getattr(one.added, name) for one in found) == 12 * getattr(UPSERT, name)


def test_what_jobs_cost_is_the_tables_own_history() -> None:
    costs = costs_of(history(40))
    assert costs.jobs[JobKind.INDEX].seconds == Cost(4.0)
    assert costs.jobs[JobKind.INDEX].bytes_written == Cost(0.0, 20.0)
    assert costs.jobs[JobKind.CONVERT].bytes_written == Cost(0.0, 1000.0)
    assert costs.rows_deleted == 0.9
    assert 0.1 < costs.hits < 1.0, "a hundred deletes hit half of the files"
    assert costs.wait_seconds == 1.0


def test_a_replay_begins_after_the_last_indexing_of_whatever_job() -> None:
    known = history(3)
    table: Any = SimpleNamespace(created_at=NOW, format_version=3)
    health = TableHealth(table_id="t")
    last = known.jobs[-1]
    both = replace(last, result={**last.result, "key_sets": [{"rows_indexed": 200}]})
    since = last.ended_at + timedelta(seconds=1)
    for jobs, at in (
        (known.jobs, known.jobs[-2].ended_at),
        ([*known.jobs[:-1], both], last.ended_at),
        ([], NOW - COMMIT),
    ):
        earlier = {JobKind.INDEX: NOW - COMMIT}
        begun = beginning_of(History(known.samples, jobs, earlier), since, table, health)
        assert begun.indexed_at == at


def test_seconds_of_jobs_grow_with_what_they_handle() -> None:
    known = history(40)
    jobs = [
        replace(job, ended_at=job.started_at + timedelta(seconds=2 + 0.1 * job.number("delete_files_added")))
        for job in known.jobs
        if job.kind is JobKind.CONVERT
    ]
    fixed, each = costs_of(replace(known, jobs=jobs)).jobs[JobKind.CONVERT].seconds
    assert (fixed, each) == pytest.approx((2, 0.1))


def test_what_happened_is_added_up() -> None:
    known = history(20)
    until = known.samples[-1].at
    found = happened(known, NOW, until, arrivals_of(known))
    assert {kind: totals.jobs for kind, totals in found.jobs.items()} == {
        JobKind.INDEX: 20,
        JobKind.CONVERT: 20,
    }
    assert found.lag_seconds_max == 304.5
    assert found.bytes_arrived == 20 * 22_000
    assert 0 <= found.lag_seconds_median < 10, "something is pending for half of the time"


def test_intervals_lose_no_peak_and_no_job() -> None:
    def minutes(number: float) -> datetime:
        return NOW + timedelta(minutes=number)

    outcome = Outcome(NOW, minutes(84))
    outcome.pending = [
        Pending(NOW, 0, None),
        Pending(minutes(0.5), 500, minutes(0.5)),
        Pending(minutes(0.75), 7, minutes(0.5)),
        Pending(minutes(2), 0, None),
        Pending(minutes(83.5), 9, minutes(83.5)),
    ]
    outcome.ran = [Ran(JobKind.CONVERT, NOW, minutes(at), is_idle=False) for at in (2, 2.5, 84)]
    found = replay.intervals(outcome)
    assert [one.begins_at for one in found] == [minutes(number) for number in range(84)]
    told = [(one.pending_equality_deletes, one.lag_seconds, one.jobs) for one in found]
    assert told[:3] == [(500, 30, 0), (7, 90, 0), (0, 0, 2)]
    assert set(told[3:-1]) == {(0, 0, 0)}
    assert told[-1] == (9, 30, 1)


def store(database: Database, table_id: str, known: History) -> None:
    with database.write() as session:
        table = session.get_one(EnrolledTable, table_id)
        health = session.get_one(TableHealth, table_id)
        health.partitions, health.has_keys = 0, True
        table.created_at = known.samples[0].at - timedelta(days=1)
        table.format_version = 3  # of which a vector takes another's place
        session.add_all([health, table])
        for one in known.samples:
            shape: dict[str, Any] = one.shape.as_json()
            session.add(
                HealthSample(
                    table_id=table_id,
                    at=one.at,
                    resolution="all",
                    status="healthy",
                    iceberg_snapshot_id=one.snapshot_id,
                    pending_equality_delete_files=shape.pop("equality_delete_files"),
                    pending_equality_deletes=shape.pop("equality_deletes"),
                    lag_seconds=one.lag_seconds,
                    coverage=one.coverage,
                    entries=one.entries,
                    bytes=one.index_bytes,
                    sorted_runs=one.sorted_runs,
                    dead_ratio=one.dead_ratio,
                    unconvertible=0,
                    snapshots=one.snapshots,
                    **shape,
                )
            )
        for job in known.jobs:
            session.add(
                Job(
                    table_id=table_id,
                    table_uuid=table.table_uuid,
                    catalog_id=table.catalog_id,
                    kind=job.kind.value,
                    writes=True,
                    trigger="by age",
                    requested_by="policy",
                    status="succeeded",
                    created_at=job.available_at,
                    available_at=job.available_at,
                    started_at=job.started_at,
                    ended_at=job.ended_at,
                    max_attempts=1,
                    backoff_seconds=1,
                    max_backoff_seconds=1,
                    result=dict(job.result),
                )
            )


@pytest.fixture
def table(service: Running, iceberg: IcebergCatalog) -> dict[str, Any]:
    service.register(iceberg)
    return service.enroll()


def test_a_look_at_a_table_keeps_what_a_reader_has_to_do_with(
    service: Running, iceberg: IcebergCatalog, table: dict[str, Any]
) -> None:
    iceberg.append("db.t", [1, 2, 3])
    iceberg.delete_keys("db.t", [2])
    service.poll(table["id"])
    with service.database.read() as session:
        shape = session.exec(select(HealthSample)).one().shape
        now = shape_of(session.get_one(TableHealth, table["id"]).reader_shapes["now"])
    assert now.key_columns == 1
    assert shape == replace(now, key_columns=0), "a replay goes by what reads cost Spark"
    assert (shape.data_files, shape.rows, shape.equality_deletes) == (2, 6, 1)
    assert shape.data_bytes > 0


def test_of_what_jobs_reported_only_figures_are_read(service: Running, table: dict[str, Any]) -> None:
    since = utc_now() - timedelta(hours=2)
    known = history(3, since)
    long = {"decisions": ["x" * 1000] * 100, "stages": [], "readers": []}
    rewriting = {"data_files": {"data_files_rewritten": 3, "bytes_rewritten": 7, "files": ["f" * 1000] * 100}}
    ended = known.jobs[-1].ended_at + timedelta(seconds=1)
    more = [
        PastJob(JobKind.REWRITE_DATA_FILES, ended, ended, ended, rewriting),
        PastJob(JobKind.REPORT_DUPLICATES, ended, ended, ended, {}),
    ]
    jobs = [replace(job, result={**job.result, **long}) for job in (*known.jobs, *more)]
    store(service.database, table["id"], replace(known, jobs=jobs))
    with service.database.read() as session:
        found = read_history(session, table["id"], since).jobs
    told = [(job.kind, job.work, job.bytes_written, job.changed) for job in (*known.jobs, more[0])]
    assert [(job.kind, job.work, job.bytes_written, job.changed) for job in found] == told
    assert max(len(str(job.result)) for job in found) < 2_000


def test_settings_are_tried_on_the_last_week_beside_what_happened(
    service: Running, table: dict[str, Any]
) -> None:
    path = f"/tables/{table['id']}/policy/replay"
    hourly = {"settings": {"convert": {"age_seconds": 3600, "delete_files": 1000}}}
    refused = service.admin.post(path, json=hourly)
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/nothing-to-replay")
    store(service.database, table["id"], history(144, utc_now() - timedelta(hours=25)))
    before = service.admin.get(f"/tables/{table['id']}/policy").json()
    found = service.admin.post(path, json=hourly).json()
    jobs = {
        name: {one["kind"]: one["jobs"] for one in found[name]["jobs"]}
        for name in ("happened", "present", "edited")
    }
    assert jobs["happened"] == {"index": 144, "convert": 144}
    assert jobs["present"]["convert"] == pytest.approx(144, abs=2)
    assert 20 <= jobs["edited"]["convert"] <= 26
    for name in ("jobs", "lag_seconds_max", "bytes_written", "delete_files_written", "read_seconds"):
        assert found["off"][name] == pytest.approx(1, rel=0.35), name
    assert found["edited"]["lag_seconds_max"] > 3600 > found["present"]["lag_seconds_max"]
    assert found["edited"]["delete_files_written"] < found["present"]["delete_files_written"]
    assert found["edited"]["read_seconds"] > found["present"]["read_seconds"]
    for name, ran in jobs.items():
        over_time = found[name]["intervals"]
        assert len(over_time) == 84
        assert sum(one["jobs"] for one in over_time) == sum(ran.values()), name
        assert max(one["lag_seconds"] for one in over_time) == pytest.approx(
            found[name]["lag_seconds_max"], rel=0.01
        )
        assert max(one["pending_equality_deletes"] for one in over_time) >= 100, name
    assert "144 commits" in found["estimated_from"][0]
    assert any("144 index, 144 convert" in told for told in found["estimated_from"])
    assert any("Not replayed" in told for told in found["estimated_from"])
    assert service.admin.get(f"/tables/{table['id']}/policy").json() == before


def test_the_settings_take_the_place_of_the_policy_that_is_named(
    service: Running, table: dict[str, Any]
) -> None:
    store(service.database, table["id"], history(6, utc_now() - timedelta(hours=2)))
    path = f"/tables/{table['id']}/policy/replay"
    for name in ("of-system", "unused"):
        assert service.admin.post("/policies", json={"name": name, "settings": {}}).status_code == 201
    service.admin.put("/policy-attachments", json={"level": "system", "policy": "of-system"})
    assert service.admin.put(
        "/policy-attachments",
        json={"level": "table", "table_id": table["id"], "policy": "manual"},
    ).is_success
    nothing = {"settings": {"convert": {"delete_files": 1}}}
    under_manual = service.admin.post(path, json=nothing | {"policy": "of-system"}).json()
    assert under_manual["edited"]["jobs"] == [], "what is nearer still holds"
    own = service.admin.post(path, json=nothing).json()
    assert {one["kind"] for one in own["edited"]["jobs"]} == {"index", "convert"}
    windows = [{"start": "01:00", "end": "02:00"}] * 51
    for body, slug in (
        (nothing | {"policy": "unused"}, "policy-elsewhere"),
        (nothing | {"policy": "none-such"}, "policy-not-found"),
        ({"settings": {"retries": {"pause_seconds": 9999}}}, "policy-contradiction"),
        ({"settings": {"schedule": {"windows": windows}}}, "too-many-windows"),
    ):
        refused = service.admin.post(path, json=body)
        assert (refused.status_code, refused.json()["type"]) == (422, f"/problems/{slug}")


def test_one_policy_is_tried_at_a_time_and_none_waits(
    service: Running, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = Mock(wraps=threading.Lock())
    monkeypatch.setattr(replay, "_turn", turn)
    with replay._one_at_a_time():
        refused = service.admin.post(f"/tables/{table['id']}/policy/replay", json={"settings": {}})
    assert (refused.status_code, refused.json()["type"]) == (503, "/problems/replay-busy")
    assert turn.acquire.call_args_list == [call(blocking=False)] * 2


def test_of_a_long_history_the_latest_part_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("history", "replay"):
        monkeypatch.setattr(f"service.scheduling.{module}.MOST_ARRIVALS", 7)
    found = arrivals_of(history(20))
    assert [one.at for one in found] == [NOW + COMMIT * number for number in range(14, 21)]
    assert Arrival(NOW + COMMIT * 20, UPSERT) == found[-1]


def test_a_part_of_a_history_is_told_of_as_that_part(monkeypatch: pytest.MonkeyPatch) -> None:
    attached: Any = SimpleNamespace(updated_at=NOW)
    monkeypatch.setattr(replay, "chain", lambda *_: [(attached, attached)])
    known = history(18)
    hour = timedelta(hours=1)
    fine = [one for one in known.samples if one.at <= NOW or one.at >= NOW + 2 * hour]
    known = replace(known, samples=fine)
    session: Any = None

    def told(since: datetime, until: datetime) -> list[str]:
        found = arrivals_of(known)
        return list(replay._estimated_from(session, attached, known, found, since, until, is_cut=True))

    whole = told(NOW, known.samples[-1].at)
    assert "22 of them, tell of what 30 commits" in whole[0]
    assert whole[2].startswith("For 2 hours of")
    part = told(NOW + hour, NOW + 2 * hour + COMMIT)
    assert "4 of them, tell of what 13 commits" in part[0]
    assert part[2].startswith("For 1 hour of")
    assert not any("sample each hour" in one for one in told(NOW + 2 * hour, NOW + 3 * hour))
