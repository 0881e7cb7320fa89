"""What can't be published stops publication, with a reason and a remedy, and so does another branch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation

from staging.history import History
from tests.factories import TableBuilder, garble, live_delete_files, visible_rows
from tests.staging import BRANCH, Lake, Meanwhile, in_order, row
from tests.staging import lake as lake
from tests.thorough import first_always
from worker.process.errors import JobError

pytestmark = pytest.mark.integration


def _reason(result: Mapping[str, Any]) -> tuple[str, int]:
    """Why nothing more was published, and how many snapshots were."""
    stopped = result["stopped_at"]
    assert stopped["reason"]
    assert stopped["remedy"]
    return stopped["code"], result["staged_snapshots"]


@pytest.mark.parametrize(
    ("what", "code"),
    [
        pytest.param("compaction", "staged_removal", marks=pytest.mark.exhaustive),
        ("removal", "staged_removal"),
        pytest.param("conversion", "staged_removal", marks=pytest.mark.exhaustive),
        ("overwrite", "staged_overwrite"),
        ("rewritten vector", "staged_operation"),
        ("statement", "staged_statement"),
        ("damage", "corrupt_file"),
        ("damaged vector", "unreadable_position_deletes"),
        ("damaged manifest", "metadata_damaged"),
        ("missing manifest", "metadata_missing"),
        ("compacted target", "staged_position_delete"),
        ("cherry-pick", "data_file_live_already"),
        pytest.param("added twice", "data_file_live_already", marks=pytest.mark.exhaustive),
    ],
)
def test_nothing_is_published_from_a_snapshot_on_that_cannot_be(lake: Lake, what: str, code: str) -> None:
    table = lake.create(row(1, 1), row(2, 2), partitioned_by=["region"] if what == "overwrite" else [])
    (on_target,) = table.data_file_paths
    lake.upsert(row(1, 10))
    (staged,) = table.data_files([row(3, 3)])
    lake.stage(staged)
    (file,) = table.data_files([row(4, 4)])
    expected = [row(1, 10), row(2, 2), row(3, 3)]
    match what:
        case "compaction":
            rewrite = table.java.newRewrite().toBranch(BRANCH)
            rewrite.deleteFile(table.parsed(staged)).addFile(table.parsed(file)).commit()
        case "removal":
            table.java.newDelete().toBranch(BRANCH).deleteFile(table.parsed(staged)).commit()
        case "conversion":
            lake.jobs.run("convert", branch=BRANCH)
        case "overwrite":
            (file,) = table.data_files([row(4, 4, "us")])
            table.java.newReplacePartitions().toBranch(BRANCH).addFile(table.parsed(file)).commit()
        case "rewritten vector":
            (old,), (new,) = (table.deletion_vectors({staged.path: [0]}) for _ in range(2))
            table.commit(old, branch=BRANCH)
            expected.remove(row(3, 3))
            rewrite = table.java.newRewrite().toBranch(BRANCH)
            rewrite.deleteFile(table.parsed(old)).addFile(table.parsed(new)).commit()
        case "statement":
            table.spark.sql(f"UPDATE {table.identifier}.branch_{BRANCH} SET value = 0 WHERE id = 77")
        case "damaged vector":
            (vector,) = table.deletion_vectors({staged.path: [0]})
            lake.stage(vector)
            garble(Path(vector.path.removeprefix("file://")))
        case "damaged manifest" | "missing manifest":
            lake.stage(file)
            head = table.java.snapshot(table.metadata.refs[BRANCH].snapshot_id)
            path = Path(head.dataManifests(table.java.io())[0].path().removeprefix("file:"))
            whole = path.read_bytes()
            path.unlink() if what == "missing manifest" else path.write_bytes(whole[:-20])
        case "damage":
            (deletes,) = table.equality_deletes([{"id": 2}])
            lake.stage(deletes)
            garble(Path(deletes.path.removeprefix("file://")))
        case "compacted target":
            lake.stage(*table.deletion_vectors({on_target: [1]}))
            table.compact()
        case "cherry-pick":
            table.append([row(7, 7)])
            table.java.manageSnapshots().cherrypick(table.metadata.refs[BRANCH].snapshot_id).commit()
            expected = [row(1, 10), row(2, 2), row(3, 3), row(7, 7)]
        case "added twice":
            lake.stage(staged)
    lake.stage(*table.data_files([row(9, 9)]))

    result = lake.publish()

    assert _reason(result) == (code, {"cherry-pick": 1, "rewritten vector": 3}.get(what, 2))
    assert lake.rows() == in_order(*expected)
    again = lake.publish()
    assert _reason(again) == (code, 0)
    assert (again["commits"], again["published_snapshot_id"]) == (0, None)
    assert any("Nothing is published from staged snapshot" in one for one in lake.jobs.reporter.decisions)


def test_a_data_file_that_takes_no_deletes_stops_the_snapshot_that_deletes_its_rows(lake: Lake) -> None:
    """And not one before it, whose deletes would hit the file if it had their keys."""
    table = lake.create(row(1, 1), row(2, 2), row(3, 3))
    lake.delete(77)
    lake.delete(2)
    at_fault = table.metadata.refs[BRANCH].snapshot_id
    lake.upsert(row(4, 4))
    table.delete_positions({table.data_file_paths[0]: [0]})
    (vector,) = live_delete_files(table.spark, table.identifier)
    path = Path(vector["file_path"].removeprefix("file:"))
    whole = path.read_bytes()
    garble(path)

    first = lake.publish()

    assert (first["staged_snapshots"], first["stopped_at"]) == (1, None)
    for _ in range(2):
        stopped = lake.publish()
        assert (stopped["stopped_at"]["snapshot_id"], stopped["staged_snapshots"]) == (at_fault, 0)
    path.write_bytes(whole)
    assert lake.publish()["staged_snapshots"] == 2
    assert lake.rows() == in_order(row(3, 3), row(4, 4))


@first_always("how", ["picked", "appended"])
def test_a_file_that_came_to_the_target_otherwise_stays_out_when_compaction_has_taken_it(
    lake: Lake, how: str
) -> None:
    """Its rows are there, in another file, also when the snapshot that brought them has expired."""
    table = lake.create(row(1, 1))
    fork = table.snapshot_id
    (file,) = table.data_files([row(3, 3)])
    lake.stage(file)
    table.append([row(7, 7)])
    if how == "picked":
        table.java.manageSnapshots().cherrypick(table.metadata.refs[BRANCH].snapshot_id).commit()
    else:
        table.commit(file)
    brought = table.snapshot_id
    table.compact()
    table.java.expireSnapshots().expireSnapshotId(brought).commit()
    table.append([row(8, 8)])

    result = lake.publish(parameters={"from": BRANCH, "after": fork})

    assert _reason(result) == ("data_file_live_already", 0)
    assert lake.rows() == in_order(row(1, 1), row(3, 3), row(7, 7), row(8, 8))


def test_a_file_that_comes_to_the_target_and_goes_while_the_job_runs_stays_out(lake: Lake) -> None:
    """Between two looks, so that no look finds it live."""
    table = lake.create(row(1, 1))
    (file,) = table.data_files([row(3, 3)])
    lake.stage(file)
    table.append([row(7, 7)])

    def meanwhile(_: int) -> None:
        table.java.manageSnapshots().cherrypick(table.metadata.refs[BRANCH].snapshot_id).commit()
        table.compact()

    Meanwhile(lake.jobs, meanwhile, times=1)

    assert _reason(lake.publish()) == ("data_file_live_already", 0)
    assert lake.rows() == in_order(row(1, 1), row(3, 3), row(7, 7))


@first_always("mode", ["merge-on-read", "copy-on-write"])
def test_a_delete_that_looks_for_its_rows_on_a_branch_without_them_stops_publication(
    lake: Lake, mode: str
) -> None:
    """Spark commits that it found nothing; the rows are on the target, and the branch was cleared."""
    table = lake.create(row(1, 1), row(5, 5))
    table.java.updateProperties().set("write.delete.mode", mode).commit()
    lake.upsert(row(1, 10))
    lake.publish()
    table.spark.sql(f"DELETE FROM {table.identifier}.branch_{BRANCH} WHERE id = 5")
    lake.upsert(row(1, 11))

    assert _reason(lake.publish()) == ("staged_statement", 0)
    assert lake.rows() == in_order(row(1, 10), row(5, 5))


def test_a_checkpoint_of_flink_without_changes_stops_nothing(lake: Lake) -> None:
    """Flink commits it as it commits upserts: to tell how far it is, or at a savepoint."""
    lake.create(row(1, 1))
    delta = lake.table.java.newRowDelta().toBranch(BRANCH)
    delta.set("flink.job-id", "j").set("flink.max-committed-checkpoint-id", "5").commit()
    (empty,) = lake.table.metadata.snapshots[-1:]
    assert empty.summary is not None
    assert empty.summary.operation is Operation.OVERWRITE
    lake.upsert(row(1, 10))

    assert lake.publish()["stopped_at"] is None
    assert lake.rows() == in_order(row(1, 10))


def test_what_was_staged_in_format_version_1_is_not_told_from_what_was_there(lake: Lake) -> None:
    """Its files have sequence number 0, as those of main do from which the branch was made."""
    table = lake.create(row(1, 1), format_version=1)
    table.java.updateProperties().set("commit.manifest.min-count-to-merge", "1").commit()
    lake.stage(*table.data_files([row(2, 2)]))
    staged = table.metadata.refs[BRANCH].snapshot_id
    table.java.updateProperties().set("format-version", "2").commit()
    lake.upsert(row(1, 10))

    result = lake.publish()

    assert _reason(result) == ("staged_in_format_1", 0)
    assert lake.publish(parameters={"from": BRANCH, "skip": staged})["staged_snapshots"] == 1
    # DuckDB reads no manifest of format version 1.
    assert visible_rows(table.spark, table.identifier) == in_order(row(1, 10))


def test_a_file_that_the_target_lost_before_it_was_staged_is_published(lake: Lake) -> None:
    """As somebody does who takes a removal back."""
    table = lake.create(row(1, 1))
    (file,) = table.data_files([row(3, 3)])
    table.commit(file)
    table.java.newDelete().deleteFile(table.parsed(file)).commit()
    lake.stage(file)
    table.append([row(8, 8)])

    assert lake.publish()["stopped_at"] is None
    assert lake.rows() == in_order(row(1, 1), row(3, 3), row(8, 8))


def test_float_keys_stop_publication_where_they_come(lake: Lake) -> None:
    table = lake.create(columns="id bigint, region string, value double")
    lake.stage(*table.data_files([row(1, 1)]))
    lake.stage(*table.equality_deletes([{"value": 1.0}]))
    lake.stage(*table.data_files([row(2, 2)]))

    assert _reason(lake.publish()) == ("float_key", 1)
    assert lake.rows() == in_order(row(1, 1))
    assert table.metadata.refs[BRANCH].snapshot_id != table.snapshot_id


def _remedied(lake: Lake, code: str, **how: Any) -> str:
    with pytest.raises(JobError) as refused:
        lake.publish(**how)
    assert refused.value.code == code
    assert refused.value.remedy
    return str(refused.value)


@pytest.mark.parametrize("target", ["dev", "main"])
def test_main_is_published_nowhere_whoever_asks_for_it(lake: Lake, target: str) -> None:
    """What is published leaves its branch: readers of main would find nothing."""
    table = lake.create(row(1, 1))
    table.java.manageSnapshots().createBranch("dev").commit()
    table.append([row(2, 2)])
    head = table.snapshot_id

    told = _remedied(lake, "not_a_staging_branch", branch=target, parameters={"from": "main"})

    assert "branch main is" in told
    assert table.snapshot_id == head
    assert lake.rows() == in_order(row(1, 1), row(2, 2))


@first_always("how", ["rolled back", "replaced"])
def test_a_staging_branch_that_lost_what_was_published_stops_publication(lake: Lake, how: str) -> None:
    table = lake.create(row(1, 1))
    fork = table.snapshot_id
    lake.upsert(row(1, 10))
    lake.upsert(row(2, 2))
    published = table.metadata.refs[BRANCH].snapshot_id
    lake.publish()
    manage = table.java.manageSnapshots()
    if how == "rolled back":
        manage.replaceBranch(BRANCH, fork).commit()
    else:
        manage.removeBranch(BRANCH).createBranch(BRANCH, fork).commit()
    lake.upsert(row(2, 20))

    assert f"snapshot {published} was published" in _remedied(lake, "staging_branch_replaced")
    assert lake.rows() == in_order(row(1, 10), row(2, 2))

    lake.publish(parameters={"from": BRANCH, "after": fork})
    assert lake.rows() == in_order(row(1, 10), row(2, 20))
    lake.publish(parameters={"from": BRANCH, "after": fork})
    assert lake.rows() == in_order(row(1, 10), row(2, 20)), "the target tells by then"


def test_a_staging_branch_that_starts_anew_at_the_targets_head_goes_on(lake: Lake) -> None:
    table = lake.create(row(1, 1))
    lake.upsert(row(1, 10))
    lake.publish()
    table.java.manageSnapshots().replaceBranch(BRANCH, table.snapshot_id).commit()
    lake.upsert(row(1, 11))

    assert lake.publish()["staged_snapshots"] == 1
    assert lake.rows() == in_order(row(1, 11))


def test_what_a_rollback_of_the_target_took_away_is_published_again(lake: Lake) -> None:
    table = lake.create(row(1, 1))
    fork = table.snapshot_id
    lake.upsert(row(1, 10))
    lake.publish()
    table.java.manageSnapshots().rollbackTo(fork).commit()
    lake.upsert(row(2, 2))

    assert lake.publish()["staged_snapshots"] == 2
    assert lake.rows() == in_order(row(1, 10), row(2, 2))


def test_snapshots_that_expired_before_they_were_published_stop_publication(lake: Lake) -> None:
    table = lake.create(row(1, 1))
    lake.upsert(row(1, 10))
    published = table.metadata.refs[BRANCH].snapshot_id
    lake.publish()
    lake.upsert(row(2, 2))
    # The last one that is published is not needed any more.
    table.java.expireSnapshots().expireSnapshotId(published).commit()
    lake.publish()
    assert lake.rows() == in_order(row(1, 10), row(2, 2))
    lake.upsert(row(3, 3))
    waiting = table.metadata.refs[BRANCH].snapshot_id
    lake.upsert(row(4, 4))
    table.java.expireSnapshots().expireSnapshotId(waiting).commit()

    assert "end before" in _remedied(lake, "staged_snapshots_expired")
    assert lake.rows() == in_order(row(1, 10), row(2, 2))


def test_where_the_snapshot_expired_that_both_branches_had_what_came_after_is_not_guessed(lake: Lake) -> None:
    """A commit on main that was rolled back looks as the writer's own do."""
    table = lake.create(row(1, 1))
    fork = table.snapshot_id
    lake.upsert(row(1, 10))
    table.append([row(5, 5)])
    table.java.expireSnapshots().expireSnapshotId(fork).commit()

    assert "committed there and rolled back" in _remedied(lake, "staging_branch_unclear")
    lake.publish(parameters={"from": BRANCH, "after": fork})

    assert lake.rows() == in_order(row(1, 10), row(5, 5))


def test_where_nothing_says_what_was_published_nothing_is(lake: Lake) -> None:
    table = lake.create(row(1, 1))
    fork = table.snapshot_id
    lake.upsert(row(1, 10))
    table.append([row(5, 5)])
    second = table.snapshot_id
    table.append([row(6, 6)])
    table.java.expireSnapshots().expireSnapshotId(fork).expireSnapshotId(second).commit()

    assert "says what was published" in _remedied(lake, "staged_snapshots_expired")
    lake.publish(parameters={"from": BRANCH, "after": fork})
    assert lake.rows() == in_order(row(1, 10), row(5, 5), row(6, 6))


def test_what_left_the_branch_and_was_rolled_back_is_missed_when_all_of_it_has_expired(lake: Lake) -> None:
    """No snapshot tells of the rollback any more; the table's earlier metadata does."""
    table = lake.create(row(1, 1))
    fork = table.snapshot_id
    lake.upsert(row(1, 10))
    lake.publish()
    table.java.manageSnapshots().rollbackTo(fork).commit()
    table.append([row(5, 5)])
    table.append([row(6, 6)])
    _expire(table)

    assert "end before" in _remedied(lake, "staged_snapshots_expired")
    assert lake.rows() == in_order(row(1, 1), row(5, 5), row(6, 6))


@pytest.mark.parametrize("is_told", [True, False])
def test_a_target_whose_publication_expired_goes_on_if_anything_tells_that_it_has_it(
    lake: Lake, is_told: bool
) -> None:
    table = lake.create(row(1, 1))
    if not is_told:
        table.java.updateProperties().set("write.metadata.previous-versions-max", "1").commit()
    lake.upsert(row(1, 10))
    published = table.metadata.refs[BRANCH].snapshot_id
    lake.publish()
    table.append([row(5, 5)])
    table.compact()
    _expire(table)
    lake.upsert(row(1, 11))
    lake.stage()
    parameters: dict[str, Any] = {"from": BRANCH}

    if not is_told:
        assert f"published up to snapshot {published}" in _remedied(lake, "publication_expired")
        parameters["after"] = published
    else:
        damaged = Path(table.metadata.metadata_log[-1].metadata_file.removeprefix("file:"))
        damaged.write_text("{}")
        damaged.with_name(Path(table.metadata.metadata_log[-2].metadata_file).name).unlink()
    assert lake.publish(parameters=parameters)["staged_snapshots"] == 2

    assert lake.rows() == in_order(row(1, 11), row(5, 5))


@first_always("is_proven", [True, False])
def test_what_a_job_or_a_person_found_once_is_known_when_nothing_tells_it_any_more(
    lake: Lake, is_proven: bool
) -> None:
    """With nothing staged; the staging branch names the head of the target that has all that it had."""
    table = lake.create(row(1, 1))
    lake.upsert(row(1, 10))
    lake.publish()
    table.append([row(5, 5)])
    table.compact()
    _expire(table)

    def forget() -> None:
        for one in table.metadata.metadata_log:
            Path(one.metadata_file.removeprefix("file:")).unlink(missing_ok=True)

    parameters: dict[str, Any] = {"from": BRANCH}
    if not is_proven:
        forget()
        _remedied(lake, "publication_expired")
        parameters["after"] = table.metadata.refs[BRANCH].snapshot_id
    assert lake.publish(parameters=parameters)["staged_snapshots"] == 0
    forget()
    snapshots = len(table.metadata.snapshots)
    table.append([row(6, 6)])

    assert lake.publish()["staged_snapshots"] == 0
    assert len(table.metadata.snapshots) == snapshots + 1, "nothing is written that is known"
    lake.upsert(row(1, 11))
    assert lake.publish()["staged_snapshots"] == 1
    assert lake.rows() == in_order(row(1, 11), row(5, 5), row(6, 6))


@first_always("is_told", [True, False])
def test_what_was_published_since_the_branch_was_cleared_last_is_not_published_again(
    lake: Lake, is_told: bool
) -> None:
    """The publication has expired, and only the one before is told by the branch."""
    table = lake.create(row(1, 1), row(5, 5))
    if not is_told:
        table.java.updateProperties().set("write.metadata.previous-versions-max", "1").commit()
    lake.upsert(row(1, 10))
    lake.publish()
    lake.delete(5)
    deleted = table.metadata.refs[BRANCH].snapshot_id
    Meanwhile(lake.jobs, lambda _: lake.upsert(row(1, 11)))
    assert lake.publish()["files_cleared"] == 0
    table.append([row(5, 50)])
    table.append([row(6, 6)])
    expire = table.java.expireSnapshots()
    staged = {one.snapshot_id for one in History.of(table.metadata, BRANCH).snapshots}
    for one in History.of(table.metadata, "main").snapshots[1:]:
        if one.snapshot_id not in staged:
            expire.expireSnapshotId(one.snapshot_id)
    expire.commit()
    table.append([row(7, 7)])
    table.append([row(8, 8)])
    parameters: dict[str, Any] = {"from": BRANCH}

    if not is_told:
        _remedied(lake, "publication_expired")
        parameters["after"] = deleted
    assert lake.publish(parameters=parameters)["staged_snapshots"] == 1

    assert lake.rows() == in_order(row(1, 11), row(5, 50), *[row(n, n) for n in (6, 7, 8)])


def _expire(table: TableBuilder) -> None:
    """All that no branch's head needs."""
    table.java.expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
