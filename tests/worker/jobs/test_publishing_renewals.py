"""A staging branch begins anew, so that what it had may expire: its writer finds what it has committed."""

from typing import Any

import pytest

from staging.history import History, properties
from tests.deaths import killed_at_commit_of
from tests.factories import TableBuilder
from tests.staging import BRANCH, Lake, Meanwhile, in_order, row
from tests.staging import lake as lake
from tests.thorough import V3_FIRST
from tests.worker.jobs.test_publishing_clearing import checkpoint, max_committed
from worker.publication.plan import PublicationError
from worker.table import row_delta

pytestmark = pytest.mark.integration


def _renew(lake: Lake, **how: Any) -> dict[str, Any]:
    return lake.publish(parameters={"from": BRANCH, "renew": True}, **how)


def _history(table: TableBuilder) -> list[int]:
    return [one.snapshot_id for one in History.of(table.metadata, BRANCH).snapshots]


def _expire(table: TableBuilder) -> None:
    """All that no branch has."""
    history, head = _history(table), table.snapshot_id
    expire = table.java.expireSnapshots()
    for one in table.metadata.snapshots:
        if one.snapshot_id not in (*history, head):
            expire.expireSnapshotId(one.snapshot_id)
    expire.commit()


@V3_FIRST
def test_a_renewed_branch_has_its_first_snapshot_and_what_its_writers_said_last(
    lake: Lake, format_version: int
) -> None:
    table = lake.create(row(1, 1), row(2, 2), format_version=format_version)
    first = table.snapshot_id
    checkpoint(lake, 3, *table.data_files([row(3, 3)]), job="other")
    for number in (1, 2, 3):
        checkpoint(lake, number, *table.equality_deletes([{"id": number}]))
    table.append([row(4, 4)])

    result = _renew(lake)

    assert (result["staged_snapshots"], result["renewed"]) == (4, True)
    others, own, begin = _history(table)[::-1][1], _history(table)[0], _history(table)[-1]
    assert (len({others, own, begin}), begin) == (3, first)
    assert (max_committed(table), max_committed(table, "other")) == (3, 3)
    assert not lake.staged_rows()
    _expire(table)
    assert len(table.metadata.snapshots) == 4
    for number in (4, 5):
        rows = table.data_files([row(5, number), row(5, 10 * number)])
        vector = table.deletion_vectors if format_version == 3 else table.position_deletes
        deletes = table.equality_deletes([{"id": 5}])
        checkpoint(lake, number, *rows, *deletes, *vector({rows[0].path: [0]}))
        result = lake.publish()
        assert (result["staged_snapshots"], result["renewed"]) == (1, False)
        assert lake.rows() == in_order(row(4, 4), row(5, 10 * number))
    assert (_renew(lake)["renewed"], max_committed(table), len(_history(table))) == (True, 5, 3)
    assert (_renew(lake)["renewed"], lake.publish()["staged_snapshots"]) == (False, 0)


def test_a_branch_of_empty_checkpoints_is_renewed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on request, where no snapshot of the target tells of a publication."""
    monkeypatch.setattr("worker.publication.clearing.KEPT", 2)
    table = lake.create(row(1, 1))
    for number in (1, 2):
        checkpoint(lake, number)
    assert lake.publish()["renewed"] is True
    monkeypatch.setattr("worker.publication.clearing.KEPT", 3)
    checkpoint(lake, 3)
    assert lake.publish()["renewed"] is False

    assert _renew(lake)["renewed"] is True

    assert (len(_history(table)), max_committed(table)) == (2, 3)


def test_a_renewed_branch_has_the_offsets_of_each_connector_of_kafka(lake: Lake) -> None:
    """Kafka Connect has no other name than the property's own."""
    table = lake.create(row(1, 1))
    for group in ("a", "b", "a"):
        append = table.java.newAppend().toBranch(BRANCH)
        append.appendFile(table.parsed(*table.data_files([row(2, 2)])))
        append.set(f"kafka.connect.offsets.orders.{group}", f'{{"0":{len(_history(table))}}}')
        append.set("kafka.connect.commit-id", group).commit()

    assert _renew(lake)["renewed"] is True

    said = [dict(properties(one)) for one in History.of(table.metadata, BRANCH).snapshots]
    offsets = {name: one[name] for one in said for name in one if name.startswith("kafka.connect.offsets.")}
    assert offsets == {
        "kafka.connect.offsets.orders.a": '{"0":3}',
        "kafka.connect.offsets.orders.b": '{"0":2}',
    }


def test_a_branch_with_what_waits_is_not_renewed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever commits between the look and the commit comes first, and loses nothing."""
    table = lake.create(row(1, 1))
    checkpoint(lake, 1, *table.equality_deletes([{"id": 1}]))
    head = table.metadata.refs[BRANCH].snapshot_id
    monkeypatch.setattr("worker.publication.clearing.KEPT", 0)

    def commit_again(time: int) -> None:
        if time > 1:  # the first call is before the commit on the target
            checkpoint(lake, time, *table.data_files([row(time, time)]))

    Meanwhile(lake.jobs, commit_again, times=2)

    assert lake.publish()["renewed"] is False
    assert _history(table)[1] == head
    assert lake.publish()["renewed"] is True
    assert max_committed(table) == 2
    assert lake.rows() == in_order(row(2, 2))


def test_a_checkpoint_without_changes_that_comes_first_is_what_a_renewal_repeats(lake: Lake) -> None:
    table = lake.create(row(1, 1))
    checkpoint(lake, 1, *table.data_files([row(2, 2)]))
    Meanwhile(lake.jobs, lambda time: checkpoint(lake, 9) if time == 2 else None, times=2)

    assert _renew(lake)["renewed"] is True

    assert (max_committed(table), len(_history(table))) == (9, 2)
    assert lake.publish()["staged_snapshots"] == 0


@pytest.mark.thorough
def test_a_killed_renewal_is_done_or_not_and_nothing_comes_twice(lake: Lake) -> None:
    table = lake.create(row(1, 1))
    checkpoint(lake, 1, *table.data_files([row(2, 2)]))
    lake.publish()
    with killed_at_commit_of(row_delta, "described", "after") as death:
        _renew(lake)
    assert death.happened
    assert len(_history(table)) == 2
    assert lake.publish()["staged_snapshots"] == 0
    checkpoint(lake, 2, *table.data_files([row(3, 3)]))
    assert lake.publish()["staged_snapshots"] == 1
    assert lake.rows() == in_order(row(1, 1), row(2, 2), row(3, 3))


def test_a_target_that_was_rolled_back_behind_a_renewal_stops_publication(lake: Lake) -> None:
    """What was published has left the branch for good; nobody is told that all is well."""
    table = lake.create(row(1, 1))
    fork = table.snapshot_id
    checkpoint(lake, 1, *table.data_files([row(2, 2)]))
    _renew(lake)
    renewed = table.metadata.refs[BRANCH].snapshot_id
    table.java.manageSnapshots().rollbackTo(fork).commit()
    checkpoint(lake, 2, *table.data_files([row(3, 3)]))

    with pytest.raises(PublicationError, match=f"anew with snapshot {renewed}") as refused:
        lake.publish()

    assert refused.value.code == "staging_branch_replaced"
    assert lake.publish(parameters={"from": BRANCH, "after": renewed})["staged_snapshots"] == 1
    assert lake.rows() == in_order(row(1, 1), row(3, 3))


@pytest.mark.thorough
def test_jobs_let_expire_what_a_renewed_branch_had_and_nothing_that_it_needs(lake: Lake) -> None:
    table = lake.create(row(1, 1))
    for number in (1, 2):
        checkpoint(lake, number, *table.equality_deletes([{"id": 1}]), *table.data_files([row(1, number)]))
        lake.publish()
    table.append([row(5, 5)])
    _renew(lake)

    lake.jobs.run("expire_snapshots", staging_branch=BRANCH, parameters={"older_than_seconds": 0})

    assert History.of(table.metadata, BRANCH).is_whole
    assert len(_history(table)) == 2
    assert len(table.metadata.snapshots) <= 4
    assert lake.rows() == in_order(row(1, 2), row(5, 5))
