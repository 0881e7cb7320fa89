"""A staging branch is published by service and worker: no snapshot of main has an equality delete."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.sql import SparkSession

from staging.history import RENEWED, History, is_renewal, properties
from tests.factories import Catalog, TableBuilder, visible_rows
from tests.integration.icestream import Icestream, Json, running
from tests.integration.upsert_stream import COLUMNS, UpsertStream
from tests.jobs import Jobs, SqlCatalog
from tests.patience import wait_until
from tests.staging import BRANCH, Lake, in_order, row
from tests.thorough import V2_FIRST

pytestmark = pytest.mark.integration


@pytest.fixture
def lake(spark: SparkSession, registered: Catalog, tmp_path: Path) -> Lake:
    identifier = f"{registered.name}.db.t"
    record = SqlCatalog(registered.name, registered.properties)
    return Lake(spark, Jobs(spark, record, identifier, tmp_path / "index"), identifier)


# As an acceptance does with every change.
@pytest.mark.exhaustive
def test_a_requested_job_publishes_what_is_staged(
    icestream: Icestream, registered: Catalog, lake: Lake
) -> None:
    lake.create(*[row(n, n) for n in range(10)])
    table_id = _enrol(icestream, registered, key_sets=[["id"]])
    icestream.run(table_id, "index")
    lake.stage(*lake.table.data_files([row(20, 20)]))
    lake.upsert(row(3, 30))
    lake.delete(4, 20)

    foretold = icestream.run(table_id, "publish", dry_run=True)
    assert lake.rows() == in_order(*[row(n, n) for n in range(10)])
    result = icestream.run(table_id, "publish")

    assert lake.rows() == in_order(*[row(n, n) for n in range(10) if n not in (3, 4)], row(3, 30))
    told = ("staging_branch", "staged_snapshots", "rows_added", "rows_deleted")
    assert [result[name] for name in told] == [foretold[name] for name in told] == [BRANCH, 3, 1, 2]
    assert result["iceberg_snapshot_id_after"] == lake.table.snapshot_id
    assert result["files_cleared"] > foretold["files_cleared"] == 0
    assert icestream.run(table_id, "publish")["staged_snapshots"] == 0


# With every change, the service's half is told by tests/service/test_publications.py, and the worker's by
# tests/worker/jobs/test_publishing.py.
@pytest.mark.exhaustive
def test_what_is_staged_is_published_by_itself_once_it_is_enrolled(
    icestream: Icestream, registered: Catalog, lake: Lake
) -> None:
    """The service sees what is staged, and what was published, by the table's snapshots alone."""
    lake.create(*[row(n, n) for n in range(4)], format_version=2)
    table_id = _enrol(icestream, registered, policy=None)
    lake.upsert(row(1, 10), row(5, 5))
    lake.upsert(row(1, 11))
    expected = in_order(row(0, 0), row(1, 11), row(2, 2), row(3, 3), row(5, 5))
    wait_until(lambda: lake.rows() == expected, "the publication")
    wait_until(lambda: not icestream.health(table_id)["staged_snapshots"], "the service to see that")
    wait_until(lambda: _is_indexed(icestream.health(table_id)), "an index by the key of the staged deletes")
    lake.upsert(row(5, 50), row(6, 6))
    more = in_order(row(0, 0), row(1, 11), row(2, 2), row(3, 3), row(5, 50), row(6, 6))
    wait_until(lambda: lake.rows() == more, "the next publication")
    jobs = [job for job in icestream.jobs(table_id) if job["kind"] == "publish"]
    assert {job["requested_by"] for job in jobs} == {"policy"}
    assert icestream.health(table_id)["pending_equality_delete_files"] == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("format_version", [2, 3])
def test_what_flink_stages_is_published_while_it_writes(
    format_version: Literal[2, 3],
    icestream: Icestream,
    registered: Catalog,
    lake: Lake,
    flink_class_path: str,
    tmp_path: Path,
) -> None:
    """Flink makes the branch, and goes on after what is published was taken off it."""
    stream = UpsertStream(
        records=30_000, keys=6_000, checkpoints=9, mode="changelog", branch=BRANCH, parts=3, seed=30
    )
    table = lake.create(columns=COLUMNS, format_version=format_version)
    policy = f"staged-v{format_version}"
    table_id = _enrol_at_once(icestream, registered, policy, index={"data_files": 4, "age_seconds": 3})
    with stream.start(flink_class_path, registered, "db.t", tmp_path / "flink.log") as running:
        for part in range(stream.parts):
            before = _publications(table)
            if part:
                running.go_on()
            wait_until(lambda known=before: _publications(table) > known, "a publication")  # type: ignore[misc]
        running.finish()
    _wait_for_rows_of(stream, lake)
    assert {job["status"] for job in icestream.jobs(table_id)} <= {"succeeded", "queued", "running"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("end", ["killed", "stopped"])
@V2_FIRST
def test_a_flink_job_that_ended_goes_on_on_a_branch_that_was_published(
    format_version: Literal[2, 3],
    end: Literal["killed", "stopped"],
    icestream: Icestream,
    registered: Catalog,
    lake: Lake,
    flink_class_path: str,
    tmp_path: Path,
) -> None:
    """From its last checkpoint, or from the savepoint that it was stopped with. What it has committed, it
    finds on the branch, though nothing is left of its own snapshots there."""
    stream = UpsertStream(
        records=20_000, keys=4_000, checkpoints=8, mode="changelog", branch=BRANCH, parts=2, seed=31
    )
    table = lake.create(columns=COLUMNS, format_version=format_version)
    table_id = _enrol(icestream, registered)
    checkpoints = tmp_path / "checkpoints"
    with stream.start(flink_class_path, registered, "db.t", tmp_path / "1.log", checkpoints) as running:
        running.wait_for_commits(3)
        if end == "stopped":
            running.stop()
            assert list(checkpoints.glob("savepoint-*/_metadata"))
    assert icestream.run(table_id, "publish")["files_cleared"] > 0
    cleared = table.metadata.refs[BRANCH].snapshot_id
    if format_version == 2:  # with version 3, Iceberg refuses Flink's vectors where history has expired
        table.java.expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
        assert [one.snapshot_id for one in History.of(table.metadata, BRANCH).snapshots] == [cleared]
    with stream.start(flink_class_path, registered, "db.t", tmp_path / "2.log", checkpoints) as running:
        running.go_on()
        running.finish()
    icestream.run(table_id, "publish")
    assert lake.rows() == stream.expected_rows()


@pytest.mark.exhaustive
def test_flink_is_killed_again_and_again_while_what_it_stages_is_published(
    icestream: Icestream,
    registered: Catalog,
    lake: Lake,
    flink_class_path: str,
    tmp_path: Path,
) -> None:
    """Publications and clearings come between its checkpoints and its starts."""
    stream = UpsertStream(
        records=30_000, keys=5_000, checkpoints=30, mode="changelog", branch=BRANCH, seed=32
    )
    table = lake.create(columns=COLUMNS, format_version=3)
    _enrol_at_once(icestream, registered, "staged-and-killed")
    checkpoints = tmp_path / "checkpoints"
    for start in range(3):
        log = tmp_path / f"{start}.log"
        with stream.start(flink_class_path, registered, "db.t", log, checkpoints) as running:
            if start < 2:
                running.wait_for_commits(4)
            else:
                running.finish()
    _wait_for_rows_of(stream, lake)
    assert _publications(table) > 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_flink_goes_on_where_its_branch_is_renewed_and_the_past_expires(
    end: Literal["killed", "stopped"],
    icestream: Icestream,
    registered: Catalog,
    lake: Lake,
    flink_class_path: str,
    tmp_path: Path,
) -> None:
    """Format version 3, where Iceberg refuses vectors of Flink's on a branch whose history is cut: its branch
    begins at the table's first snapshot, and is renewed there, also beside a job that goes on."""
    stream = UpsertStream(
        records=20_000, keys=2_000, checkpoints=8, mode="changelog", branch=BRANCH, parts=4, seed=31
    )
    table = lake.create(columns=COLUMNS, format_version=3)
    old = [{"id": 10_000 + n, "tenant": "t0", "amount": n} for n in range(3)]
    for one in old:
        table.append([one])
    first = table.metadata.snapshots[0].snapshot_id
    table.java.manageSnapshots().createBranch(BRANCH, first).commit()
    table_id = _enrol(icestream, registered)
    renewing = {"parameters": {"renew": True}}
    checkpoints = tmp_path / "checkpoints"

    def has_published(records: int) -> bool:
        icestream.run(table_id, "publish")
        expected = replace(stream, records=records).expected_rows()
        return lake.rows() == expected + Counter(tuple(one.values()) for one in old)

    def is_renewed() -> bool:
        renewed: bool = icestream.run(table_id, "publish", **renewing)["renewed"]
        return renewed

    def let_the_past_expire() -> None:
        icestream.run(table_id, "expire_snapshots", parameters={"older_than_seconds": 0})
        history = History.of(table.metadata, BRANCH)
        assert (history.is_whole, history.snapshots[-1].snapshot_id) == (True, first)
        (before,) = {properties(one)[RENEWED] for one in history.snapshots if is_renewal(one)}
        assert table.metadata.snapshot_by_id(int(before)) is None

    with stream.start(flink_class_path, registered, "db.t", tmp_path / "1.log", checkpoints) as running:
        wait_until(lambda: has_published(5_000), "the first part")
        wait_until(is_renewed, "the branch to be renewed beside the job")
        let_the_past_expire()
        running.go_on()
        wait_until(lambda: has_published(10_000), "the second part")
        running.go_on()
        if end == "stopped":
            running.stop()
        else:
            running.wait_for_commits(len(running.committed_snapshot_ids) + 1)
    wait_until(is_renewed, "the branch to be renewed")
    let_the_past_expire()
    with stream.start(flink_class_path, registered, "db.t", tmp_path / "2.log", checkpoints) as running:
        running.go_on()
        running.go_on()
        running.go_on()
        running.finish()
    assert has_published(20_000)


@pytest.mark.exhaustive
def test_a_service_that_has_lost_its_database_publishes_nothing_twice(
    icestream: Icestream, registered: Catalog, lake: Lake, tmp_path: Path
) -> None:
    """Another one with an empty database is told of the catalog and the table anew."""
    lake.create(row(1, 1))
    lost = _enrol(icestream, registered)
    lake.upsert(row(1, 10), row(2, 2))
    assert icestream.run(lost, "publish")["staged_snapshots"] == 1
    lake.upsert(row(2, 20))
    with running(Icestream(tmp_path / "anew", tmp_path)) as anew:
        anew.register(registered)
        table_id = _enrol(anew, registered)
        wait_until(lambda: anew.health(table_id)["staged_snapshots"] == 1, "the service to see what waits")
        assert anew.run(table_id, "publish")["staged_snapshots"] == 1
        assert anew.run(table_id, "publish")["staged_snapshots"] == 0
    assert lake.rows() == in_order(row(1, 10), row(2, 20))


def _enrol(icestream: Icestream, catalog: Catalog, **how: Any) -> str:
    """With its staging branch. Its jobs come by themselves only if a policy is given; None is the default."""
    body = {"catalog": catalog.name, "identifier": ["db", "t"], "publish": {"from": BRANCH}}
    table_id: str = icestream.post("/tables", body | {"policy": "manual"} | how)["id"]
    return table_id


def _enrol_at_once(icestream: Icestream, catalog: Catalog, policy: str, **more: Any) -> str:
    """As `_enrol`, by a new policy that publishes whatever is staged."""
    settings = {"publish": {"age_seconds": 0}, **more}
    icestream.post("/policies", {"name": policy, "settings": settings})
    return _enrol(icestream, catalog, policy=policy)


def _wait_for_rows_of(stream: UpsertStream, lake: Lake) -> None:
    expected = stream.expected_rows()
    wait_until(
        lambda: visible_rows(lake.table.spark, lake.table.identifier) == expected, "all to be published"
    )
    assert lake.rows() == expected


def _publications(table: TableBuilder) -> int:
    told = [one.summary.additional_properties for one in table.metadata.snapshots if one.summary is not None]
    return sum(one.get("icestream.published-branch") == BRANCH for one in told)


def _is_indexed(health: Json) -> bool:
    return [(one["columns"], one["coverage"]) for one in health["key_sets"] if one["generation"]] == [
        (["id"], 1)
    ]
