"""What is published leaves the staging branch, and neither its writer nor expiry miss any of it."""

from typing import Any

import pytest

from staging.history import History, only_clears
from tests.deaths import killed_at_its_commit
from tests.factories import TableBuilder, WrittenFile
from tests.staging import BRANCH, Lake, Meanwhile, in_order, row
from tests.staging import lake as lake
from tests.thorough import V2_FIRST, first_always

pytestmark = pytest.mark.integration


def _live_on_branch(table: TableBuilder) -> set[str]:
    shown = table.spark.sql(
        f"SELECT file_path FROM {table.identifier}.files VERSION AS OF '{BRANCH}'"
    ).collect()
    return {one[0] for one in shown}


def checkpoint(lake: Lake, number: int, *files: WrittenFile, job: str = "j") -> None:
    """Commits as Flink's sink does, which looks for this when it starts from a checkpoint or savepoint."""
    update = lake.table.java.newRowDelta().toBranch(BRANCH)
    for file in files:
        content_file = lake.table.parsed(file)
        update.addDeletes(content_file) if file.is_delete else update.addRows(content_file)
    names = {"job-id": job, "operator-id": "o", "max-committed-checkpoint-id": str(number)}
    for name, value in names.items():
        update.set(f"flink.{name}", value)
    update.commit()


def max_committed(table: TableBuilder, job: str = "j") -> int:
    """As Flink's sink finds it: the newest ancestor that names the job and the operator says it."""
    metadata = table.metadata
    at: int | None = metadata.refs[BRANCH].snapshot_id
    while at is not None:
        snapshot = metadata.snapshot_by_id(at)
        assert snapshot is not None
        assert snapshot.summary is not None
        told = snapshot.summary.additional_properties
        if (told.get("flink.job-id"), told.get("flink.operator-id")) == (job, "o"):
            return int(told["flink.max-committed-checkpoint-id"])
        at = snapshot.parent_snapshot_id
    raise AssertionError("nothing committed")


@V2_FIRST
def test_what_is_published_leaves_the_branch_and_what_waits_stays(
    lake: Lake, format_version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.create(row(1, 1), row(2, 2), format_version=format_version, partitioned_by=["region"])
    checkpoint(lake, 7, *table.equality_deletes([row(1, 0)], equality_columns=["id"]))
    lake.upsert(row(3, 3))
    (waiting,) = table.data_files([row(9, 9)])
    Meanwhile(lake.jobs, lambda _: lake.stage(waiting))

    assert lake.publish()["files_cleared"] == 0, "what came meanwhile is published first"
    assert any("1 staged snapshot came meanwhile" in one for one in lake.jobs.reporter.decisions)
    monkeypatch.setattr("worker.publication.clearing.GATHERED", 2)
    Meanwhile(lake.jobs, lambda _: lake.delete(77))

    result = lake.publish()

    assert result["files_cleared"] == 5, "the file of the target, two of deletes, two of rows"
    assert len(_live_on_branch(table)) == 1
    assert lake.publish()["files_cleared"] == 1
    assert _live_on_branch(table) == set()
    assert max_committed(table) == 7, "a writer that starts anew finds what it has committed"
    lake.delete(2, 9)
    lake.upsert(row(3, 30))
    lake.publish()
    assert _live_on_branch(table) == set()
    assert lake.rows() == in_order(row(3, 30))
    head = table.metadata.refs[BRANCH].snapshot_id
    assert lake.publish()["files_cleared"] == 0
    assert table.metadata.refs[BRANCH].snapshot_id == head


def test_expiry_deletes_no_file_that_either_branch_needs(lake: Lake) -> None:
    """Iceberg's own: files were added on one branch, and live on the other."""
    table = lake.create(row(1, 1), row(2, 2))
    for round_ in range(3):
        lake.upsert(row(1, 10 + round_), row(3 + round_, 3))
        lake.publish()
        if round_ == 1:
            table.compact()
        _expire(table)
        lake.delete(2)
        assert lake.rows()[(1, "eu", 10 + round_)] == 1
    lake.publish()
    _expire(table)

    assert lake.rows() == in_order(row(1, 12), row(3, 3), row(4, 3), row(5, 3))
    lake.upsert(row(4, 40))
    lake.publish()
    assert lake.rows() == in_order(row(1, 12), row(3, 3), row(4, 40), row(5, 3))
    table.java.manageSnapshots().removeBranch(BRANCH).commit()
    _expire(table)
    assert len(table.metadata.snapshots) == 1
    assert lake.rows() == in_order(row(1, 12), row(3, 3), row(4, 40), row(5, 3))


def _expire(table: TableBuilder) -> None:
    """All that no branch's head needs."""
    table.java.expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()


@pytest.mark.thorough
@V2_FIRST
def test_jobs_that_maintain_the_table_leave_what_is_staged(lake: Lake, format_version: int) -> None:
    table = lake.create(row(1, 1), row(2, 2), format_version=format_version)
    checkpoint(lake, 1, *table.equality_deletes([row(1, 0)], equality_columns=["id"]))
    lake.publish()
    for n in (3, 5):
        table.append([row(n, n)])
    checkpoint(lake, 2, *table.data_files([row(4, 4)]))
    lake.upsert(row(2, 20), row(3, 30))

    lake.jobs.run("expire_snapshots", staging_branch=BRANCH, parameters={"older_than_seconds": 0})
    manifests = lake.jobs.run("rewrite_manifests").result["manifests"]

    assert manifests["manifests_rewritten"] > manifests["manifests_added"] > 0
    assert lake.publish()["staged_snapshots"] == 2
    assert lake.rows() == in_order(row(2, 20), row(3, 30), row(4, 4), row(5, 5))
    assert max_committed(table) == 2


@pytest.mark.thorough
@V2_FIRST
def test_manifests_of_the_branch_do_not_grow(lake: Lake, format_version: int) -> None:
    table = lake.create(row(0, 0), format_version=format_version)
    manifests = []
    for round_ in range(5):
        lake.upsert(row(0, round_), row(round_, round_))
        lake.publish()
        java = table.java
        manifests.append(len(java.snapshot(BRANCH).allManifests(java.io())))

    assert manifests == [3, *[2] * 4]
    assert lake.rows() == in_order(row(0, 4), *[row(n, n) for n in range(1, 5)])


def test_a_staged_snapshot_is_not_lost_when_those_around_it_expire(lake: Lake) -> None:
    """The target's history is gone by then; the branch itself says what was published."""
    table = lake.create(row(1, 1))
    lake.upsert(row(1, 10))
    lake.publish()
    for n in range(3):
        table.append([row(5 + n, 5)])
    _expire(table)
    lake.upsert(row(1, 11))

    assert lake.publish()["staged_snapshots"] == 1
    assert lake.rows() == in_order(row(1, 11), *[row(5 + n, 5) for n in range(3)])


@first_always("is_expired", [True, False])
def test_a_target_that_was_rolled_back_behind_what_left_the_branch(lake: Lake, is_expired: bool) -> None:
    table = lake.create(row(1, 1))
    fork = table.snapshot_id
    lake.upsert(row(1, 10))
    lake.upsert(row(2, 2))
    lake.publish()
    published = table.snapshot_id
    table.java.manageSnapshots().rollbackTo(fork).commit()
    lake.upsert(row(2, 20))
    if is_expired:
        table.java.expireSnapshots().expireSnapshotId(published).commit()

    assert lake.publish()["staged_snapshots"] == 3
    assert lake.rows() == in_order(row(1, 10), row(2, 20))


def test_two_services_that_clear_at_once_clear_once(lake: Lake) -> None:
    """Each knows nothing of the other's job."""
    table = lake.create(row(1, 1))
    checkpoint(lake, 1, *table.equality_deletes([{"id": 1}]), *table.data_files([row(1, 10)]))
    others: list[dict[str, Any]] = []

    def publish_too(time: int) -> None:
        if time == 2:  # the first call is before the commit on the target
            others.append(lake.publish())

    Meanwhile(lake.jobs, publish_too, times=2)

    result = lake.publish()

    cleared = [one for one in History.of(table.metadata, BRANCH).snapshots if only_clears(one)]
    assert (len(cleared), result["files_cleared"], others[0]["files_cleared"]) == (1, 0, 3)
    assert (result["commits"], others[0]["commits"]) == (1, 0)
    assert max_committed(table) == 1
    checkpoint(lake, 2, *table.data_files([row(2, 2)]))
    assert lake.publish()["staged_snapshots"] == 1
    assert lake.rows() == in_order(row(1, 10), row(2, 2))


def test_a_killed_clearing_is_made_up_for_by_the_next_job(lake: Lake) -> None:
    table = lake.create(row(1, 1))
    lake.upsert(row(1, 10))
    with killed_at_its_commit("after"):
        lake.publish()
    assert len(_live_on_branch(table)) == 3

    assert lake.publish()["files_cleared"] == 3
    assert _live_on_branch(table) == set()


def test_deletes_that_find_no_row_are_done_without_a_commit_on_the_target(lake: Lake) -> None:
    """The branch says so, up to a rollback of the target; of snapshots without any file, too."""
    table = lake.create(row(1, 1))
    fork = table.snapshot_id
    table.append([row(2, 2)])
    lake.jobs.run("delete", rows=[{"id": 2}], parameters={"key_columns": ["id"]})
    head = table.snapshot_id
    lake.delete(2)
    lake.stage()

    result = lake.publish()

    assert (result["staged_snapshots"], result["commits"], result["files_cleared"]) == (2, 0, 2)
    assert (table.snapshot_id, lake.publish()["staged_snapshots"]) == (head, 0)
    lake.stage()
    assert [lake.publish()["staged_snapshots"] for _ in range(2)] == [1, 0]
    table.java.manageSnapshots().rollbackTo(fork).commit()
    table.append([row(2, 2)])
    assert lake.publish()["rows_deleted"] == 1
    assert lake.rows() == in_order(row(1, 1))


def test_a_job_with_nothing_to_do_commits_nothing(lake: Lake) -> None:
    """Also after one that had nothing to commit on the target: the branch says more than that does."""
    table = lake.create(row(1, 1))
    lake.upsert(row(1, 10))
    lake.publish()
    lake.delete(77)
    assert (lake.publish()["commits"], len(table.metadata.snapshots)) == (0, 6)

    lake.publish()

    assert len(table.metadata.snapshots) == 6


def test_deletes_that_are_staged_first_are_done_on_a_table_without_a_snapshot(lake: Lake) -> None:
    table = lake.create()
    lake.delete(1)
    lake.stage()

    published = [lake.publish()["staged_snapshots"] for _ in range(2)]

    assert (published, lake.rows()) == ([2, 0], in_order())
    table.append([row(1, 1)])
    lake.stage()
    assert [lake.publish()["staged_snapshots"] for _ in range(2)] == [1, 0]
    assert lake.rows() == in_order(row(1, 1))


def test_whatever_name_a_branch_has_and_whatever_its_writer_says_it_is_published(lake: Lake) -> None:
    """What the writer says is repeated as it is, and nobody reads it as anything."""
    name = 'it\'s "a/b" `%s` {0} \u00fc \U0001f9ca ${x}; --'
    table = lake.create(row(1, 1))
    said = {"flink.max-committed-checkpoint-id": "-" + "9" * 10_000, "flink.job-id": "", "flink.": name}
    table.java.manageSnapshots().createBranch(name).commit()
    update = table.java.newRowDelta().toBranch(name)
    (rows,), (deletes,) = table.data_files([row(1, 10)]), table.equality_deletes([{"id": 1}])
    update.addRows(table.parsed(rows)).addDeletes(table.parsed(deletes))
    for property_, value in said.items():
        update.set(property_, value)
    update.commit()

    published = [lake.publish(parameters={"from": name}) for _ in range(2)]

    assert [(one["staged_snapshots"], one["files_cleared"]) for one in published] == [(1, 3), (0, 0)]
    assert lake.rows() == in_order(row(1, 10))
    cleared = table.metadata.snapshot_by_id(table.metadata.refs[name].snapshot_id)
    assert cleared is not None
    assert cleared.summary is not None
    assert said.items() <= cleared.summary.additional_properties.items()


def test_a_writer_that_commits_while_the_branch_is_cleared_is_not_told_of_an_older_checkpoint(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would commit the files of the last one once more."""
    monkeypatch.setattr("worker.publication.clearing.GATHERED", 1)
    table = lake.create(row(1, 1))
    checkpoint(lake, 1, *table.data_files([row(2, 2)]))

    def commit_again(time: int) -> None:
        if time > 1:  # the first call is before the commit on the target
            checkpoint(lake, time, *table.data_files([row(2 + time, 0)]))

    Meanwhile(lake.jobs, commit_again, times=3)

    assert lake.publish()["files_cleared"] == 0, "what it committed meanwhile is published first"
    assert max_committed(table) == 2
    assert lake.publish()["files_cleared"] == 3
    assert max_committed(table) == 3
    lake.publish()
    assert (max_committed(table), _live_on_branch(table)) == (3, set())
    _expire(table)
    assert max_committed(table) == 3, "also when the writer's own snapshots have expired"
    assert lake.rows() == in_order(row(1, 1), row(2, 2), row(4, 0), row(5, 0))
