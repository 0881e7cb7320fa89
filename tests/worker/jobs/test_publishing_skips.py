"""A staged snapshot that can't be published is left out on request: all that it does, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from tests.deaths import killed_at_its_commit
from tests.staging import BRANCH, Lake, Meanwhile, in_order, row
from tests.staging import lake as lake
from tests.thorough import first_always
from tests.worker.jobs.test_publishing_clearing import checkpoint
from worker.publication.plan import NothingToSkipError

pytestmark = pytest.mark.integration


def _head(lake: Lake) -> int:
    return lake.table.metadata.refs[BRANCH].snapshot_id


def _skip(lake: Lake, snapshot_id: int, **how: Any) -> dict[str, Any]:
    return lake.publish(parameters={"from": BRANCH, "skip": snapshot_id}, **how)


@first_always("what", ["vector", "pick", "statement", "missing manifest"])
def test_what_follows_a_skipped_snapshot_is_published(lake: Lake, what: str) -> None:
    """With all that it builds on; what the skipped one adds never comes, and what it deletes stays."""
    table = lake.create(row(1, 1), row(2, 2))
    (on_target,) = table.data_file_paths
    lake.upsert(row(1, 10))
    lake.publish()
    (file,) = table.data_files([row(4, 4), row(5, 5)])
    expected = [row(1, 12), row(2, 2), row(6, 6)]
    match what:
        case "vector":
            deletes = table.equality_deletes([{"id": 2}])
            lake.stage(file, *deletes, *table.deletion_vectors({on_target: [1]}))
            table.compact()
        case "pick":
            lake.stage(file)
            table.append([row(7, 7)])
            table.java.manageSnapshots().cherrypick(_head(lake)).commit()
            expected += [row(7, 7), row(4, 4)]
        case "statement":
            table.spark.sql(f"UPDATE {table.identifier}.branch_{BRANCH} SET value = 0 WHERE id = 77")
        case "missing manifest":
            lake.stage(file)
            head = table.java.snapshot(_head(lake))
            Path(head.dataManifests(table.java.io())[0].path().removeprefix("file:")).unlink()
    skipped = _head(lake)
    lake.upsert(row(1, 11), row(6, 6))
    lake.delete(5)
    lake.upsert(row(1, 12))
    stopped = lake.publish()["stopped_at"]
    assert stopped["snapshot_id"] == skipped
    assert f"`skip`, {skipped}" in stopped["remedy"]

    foretold = _skip(lake, skipped, dry_run=True)
    head = table.snapshot_id
    result = _skip(lake, skipped)

    assert foretold["skipped_snapshot_id"] == result["skipped_snapshot_id"] == skipped
    assert (result["staged_snapshots"], result["stopped_at"]) == (3, None)
    assert result["iceberg_snapshot_id_before"] == head
    assert lake.rows() == in_order(*expected)
    told = next(one for one in lake.jobs.reporter.decisions if "is skipped" in one)
    counted = {
        "statement": "0 in 0 data files",
        "pick": "2 in 1",
        "vector": "1 deletes by key, 1 by position",
    }
    assert counted.get(what, "2 in 1 data files") in told
    lake.upsert(row(8, 8))
    assert lake.publish()["staged_snapshots"] == 1
    assert lake.rows() == in_order(*expected, row(8, 8))
    if what == "missing manifest":
        assert result["files_cleared"] == 0
        assert any("publish once with `renew`" in one for one in lake.jobs.reporter.decisions)
        renewed = lake.publish(parameters={"from": BRANCH, "renew": True})
        assert (renewed["renewed"], renewed["files_cleared"]) == (True, 8)
        lake.upsert(row(6, 60))
        assert lake.publish()["files_cleared"] == 2
        assert lake.rows() == in_order(*[one for one in expected if one["id"] != 6], row(6, 60), row(8, 8))


def test_a_skipped_snapshot_alone_is_told_by_the_target_and_never_asked_about_again(lake: Lake) -> None:
    """Until the target is rolled back behind that: then it waits again."""
    table = lake.create(row(1, 1))
    fork = table.snapshot_id
    table.append([row(2, 2)])
    table.spark.sql(f"DELETE FROM {table.identifier}.branch_{BRANCH} WHERE id = 77")
    skipped = _head(lake)
    with killed_at_its_commit("after"):
        _skip(lake, skipped, job_id="killed")

    again = _skip(lake, skipped, job_id="killed", attempt=2)

    assert (again["skipped_snapshot_id"], again["published_snapshot_id"]) == (skipped, skipped)
    result = lake.publish()
    assert (result["stopped_at"], result["commits"]) == (None, 0)
    assert lake.rows() == in_order(row(1, 1), row(2, 2))
    table.java.manageSnapshots().rollbackTo(fork).commit()
    assert lake.publish()["stopped_at"]["snapshot_id"] == skipped


def test_only_the_snapshot_at_which_publication_stops_is_skipped(lake: Lake) -> None:
    table = lake.create(row(1, 1))
    head = table.snapshot_id
    lake.upsert(row(1, 10))
    first = _head(lake)
    table.spark.sql(f"DELETE FROM {table.identifier}.branch_{BRANCH} WHERE id = 77")
    second = _head(lake)

    with pytest.raises(NothingToSkipError, match=f"but {first}"):
        _skip(lake, second)
    with pytest.raises(NothingToSkipError, match="nothing keeps"):
        _skip(lake, first)
    assert table.snapshot_id == head
    assert lake.publish()["staged_snapshots"] == 1
    _skip(lake, second)
    checkpoint(lake, 1)  # of Flink, without changes: nothing that would have to come first
    table.spark.sql(f"DELETE FROM {table.identifier}.branch_{BRANCH} WHERE id = 78")
    third = _head(lake)
    assert _skip(lake, third)["staged_snapshots"] == 1
    with pytest.raises(NothingToSkipError, match="but none"):
        _skip(lake, third)
    assert lake.rows() == in_order(row(1, 10))


def test_deletes_of_a_skipped_snapshot_do_not_come_by_vectors_that_took_their_place(lake: Lake) -> None:
    """A statement writes the vector of a data file anew, with all that was deleted by then."""
    table = lake.create(row(1, 1))
    (on_target,) = table.data_file_paths
    (file,) = table.data_files([row(n, n) for n in (5, 6, 7)])
    lake.stage(file)
    (first, gone), (second,) = (
        table.deletion_vectors(one) for one in ({file.path: [0], on_target: [0]}, {file.path: [0, 1]})
    )
    lake.stage(first, gone)
    skipped = _head(lake)
    delta = table.java.newRowDelta().toBranch(BRANCH).validateFromSnapshot(skipped)
    delta.removeDeletes(table.parsed(first)).addDeletes(table.parsed(second)).commit()
    built_on_it = _head(lake)
    lake.upsert(row(1, 10))
    table.compact()
    assert lake.publish()["stopped_at"]["snapshot_id"] == skipped

    results = [_skip(lake, skipped), lake.publish()]

    for result in results:
        stopped = result["stopped_at"]
        assert (stopped["code"], stopped["snapshot_id"]) == ("staged_on_skipped", built_on_it)
    assert lake.rows() == in_order(row(1, 1), *[row(n, n) for n in (5, 6, 7)])
    assert _skip(lake, built_on_it)["stopped_at"] is None
    assert lake.rows() == in_order(row(1, 10), *[row(n, n) for n in (5, 6, 7)])


def test_a_snapshot_whose_file_comes_otherwise_while_the_job_runs_is_skipped(lake: Lake) -> None:
    """It is refused as long as it can be published, and the next look finds that it can't."""
    table = lake.create(row(1, 1))
    (file,) = table.data_files([row(4, 4)])
    table.append([row(7, 7)])
    lake.stage(file, *table.deletion_vectors({table.data_file_paths[0]: [0]}))
    skipped = _head(lake)
    lake.upsert(row(1, 10))
    table.compact()
    Meanwhile(lake.jobs, lambda _: table.commit(file))

    assert _skip(lake, skipped)["staged_snapshots"] == 1
    assert lake.rows() == in_order(row(1, 10), row(4, 4), row(7, 7))
