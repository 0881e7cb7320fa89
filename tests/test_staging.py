"""What waits on a staging branch, told from metadata that anybody may have written."""

from collections.abc import Sequence
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from staging.history import (
    BRANCH,
    CLEARED,
    SNAPSHOT_ID,
    TARGET,
    TARGET_SEQUENCE_NUMBER,
    TARGET_SNAPSHOT_ID,
    Publication,
    PublicationExpiredError,
    PublicationUnreadableError,
    StagedSnapshotsExpiredError,
    StagingBranchNotFoundError,
    StagingBranchUnclearError,
    properties,
    staged_snapshots,
)


def snapshot(snapshot_id: int, parent: int | None, **properties: str) -> dict[str, Any]:
    return {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": parent,
        "sequence-number": snapshot_id,
        "timestamp-ms": snapshot_id,
        "manifest-list": f"file:///t/{snapshot_id}.avro",
        "summary": {"operation": "append", **properties},
    }


def metadata(
    *snapshots: dict[str, Any], log: Sequence[tuple[int, int]] = (), **heads: int
) -> TableMetadataV2:
    """log: of main, as (snapshot, time)."""
    return TableMetadataV2.model_validate(
        {
            "format-version": 2,
            "location": "file:///t",
            "last-column-id": 1,
            "last-sequence-number": 9,
            "schemas": [
                {
                    "type": "struct",
                    "schema-id": 0,
                    "fields": [{"id": 1, "name": "id", "type": "long", "required": True}],
                }
            ],
            "current-schema-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "snapshots": list(snapshots),
            "snapshot-log": [{"snapshot-id": one, "timestamp-ms": at} for one, at in log],
            "refs": {name: {"snapshot-id": head, "type": "branch"} for name, head in heads.items()},
        }
    )


def publishes(up_to: int | str) -> dict[str, str]:
    return {BRANCH: "ingest", SNAPSHOT_ID: str(up_to)}


def clears(up_to: int, by: int, **other: str) -> dict[str, str]:
    """As a snapshot of the staging branch says it. by: the snapshot of main that published."""
    told = {CLEARED: str(up_to), TARGET: "main", TARGET_SNAPSHOT_ID: str(by)}
    return {**told, TARGET_SEQUENCE_NUMBER: str(by), **other}


def staged(found: TableMetadataV2, **how: Any) -> list[int]:
    return [one.snapshot_id for one in staged_snapshots(found, "ingest", "main", **how)]


def test_ancestors_that_go_round_in_a_circle_are_each_looked_at_once() -> None:
    found = metadata(snapshot(1, 3), snapshot(2, 1), snapshot(3, 2), main=1, ingest=3)
    assert staged_snapshots(found, "ingest", "main") == []


def test_what_came_before_the_last_publication_is_not_asked_what_it_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = list[int]()

    def counted(one: Snapshot) -> Any:
        asked.append(one.snapshot_id)
        return properties(one)

    monkeypatch.setattr("staging.history.properties", counted)
    before = [snapshot(one, one - 1 or None) for one in range(1, 50)]
    after = [snapshot(50, 49), snapshot(51, 49, **publishes(50)), snapshot(52, 51), snapshot(53, 50)]
    assert staged(metadata(*before, *after, main=52, ingest=53)) == [53]
    assert set(asked) == {51, 52, 53}


@pytest.mark.parametrize("wrong", [{SNAPSHOT_ID: "x"}, {}])
def test_a_property_that_tells_no_snapshot_stops_publication_until_it_is_told_once(
    wrong: dict[str, str],
) -> None:
    told = snapshot(4, 1, **{BRANCH: "ingest"}, **wrong)
    found = metadata(snapshot(1, None), snapshot(2, 1), snapshot(3, 2), told, main=4, ingest=3)
    with pytest.raises(PublicationUnreadableError, match=SNAPSHOT_ID):
        staged_snapshots(found, "ingest", "main")
    with pytest.raises(PublicationUnreadableError):
        Publication.last(found, "ingest", "main")
    assert [one.snapshot_id for one in staged_snapshots(found, "ingest", "main", after=2)] == [3]


CUT = (snapshot(2, 1), snapshot(4, 2, **clears(2, 3)), snapshot(6, 4))
"""Of a staging branch: published by a snapshot of main that is not known any more, cleared, written again."""


@pytest.mark.parametrize(
    ("on_main", "expected"),
    [
        ([snapshot(1, None), snapshot(5, 1)], [2, 6]),  # the fork is known: main was rolled back
        ([snapshot(5, 3)], [6]),  # names it as its parent
        ([snapshot(3, 1), snapshot(5, 3)], [6]),
        ([snapshot(7, 5)], None),  # either
        ([snapshot(3, 1), snapshot(7, 5)], None),  # the one that published is held by something else
    ],
)
def test_a_publication_of_which_the_staging_branch_alone_tells_counts_if_the_target_has_it(
    on_main: list[dict[str, Any]], expected: list[int] | None
) -> None:
    """Never as a guess: what was rolled back would never come, and what was not would come twice."""
    head = max(one["snapshot-id"] for one in on_main)
    found = metadata(*on_main, *CUT, main=head, ingest=6)
    asked: list[tuple[Publication, bool]] = []
    for answer, then in ((True, [6]), (False, None), (None, None)):

        def since(publication: Publication, is_last: bool, answer: bool | None = answer) -> Any:
            asked.append((publication, is_last))
            return publication if answer else answer

        if expected is not None:
            assert staged(found, since=since) == expected
        elif then is not None:
            assert staged(found, since=since) == then
        else:
            error = PublicationExpiredError if answer is None else StagedSnapshotsExpiredError
            with pytest.raises(error):
                staged(found, since=since)
            assert staged(found, since=since, after=2) == [6]
    assert set(asked) == (set() if expected is not None else {(Publication(2, 3, 3), True)})
    if expected is None:
        assert staged(found, since=lambda *_: Publication(6, 7, 7)) == []


def test_a_publication_that_can_not_have_published_what_waits_is_not_asked_for() -> None:
    """What waits is younger than the oldest snapshot of the target that is known."""
    found = metadata(snapshot(5, 4), *CUT, main=5, ingest=6)
    assert staged(found, since=lambda one, is_last: one if not is_last else None) == [6]


def test_what_was_committed_on_main_is_not_staged_after_a_rollback_of_main() -> None:
    """The branch was made from there: 1, 2 and 3 were main's, 2 and 3 are not any more; 4 is the writer's."""
    snapshots = [snapshot(1, None), snapshot(2, 1), snapshot(3, 2), snapshot(4, 3)]
    log = [(1, 1), (2, 2), (3, 3), (1, 5)]
    assert staged(metadata(*snapshots, log=log, main=1, ingest=4)) == [4]
    marked = [snapshot(1, None, **publishes(9)), *snapshots[1:]]
    assert staged(metadata(*marked, log=log, main=1, ingest=4)) == [4], "also after a publication"


@pytest.mark.parametrize("log", [[(1, 1), (3, 5), (1, 6)], [(1, 1), (2, 2), (3, 5), (1, 6)]])
def test_what_main_was_set_to_and_rolled_back_is_not_guessed(log: list[tuple[int, int]]) -> None:
    """3 may be the writer's, or of a branch that main was fast-forwarded to before this one was made."""
    snapshots = [snapshot(1, None), snapshot(2, 1), snapshot(3, 2), snapshot(4, 3)]
    found = metadata(*snapshots, log=log, main=1, ingest=4)
    with pytest.raises(StagingBranchUnclearError, match="set to snapshot 3 and rolled back"):
        staged(found)
    assert staged(found, after=3) == [4]


def test_where_the_log_of_main_has_expired_what_was_committed_there_is_not_guessed() -> None:
    """2 may be the writer's, or main's before it was rolled back to 1, which has expired."""
    snapshots = [snapshot(2, 1), snapshot(3, 2), snapshot(5, 1)]
    found = metadata(*snapshots, log=[(5, 5)], main=5, ingest=3)
    with pytest.raises(StagingBranchUnclearError, match="snapshot 2 is older"):
        staged(found)
    assert [staged(found, after=one) for one in (1, 2)] == [[2, 3], [3]]


def test_a_snapshot_whose_parent_pyicebergs_expiry_took_away_is_not_taken_for_the_first() -> None:
    lost = snapshot(3, None, **{"total-data-files": "2", "added-data-files": "1"})
    found = metadata(lost, snapshot(4, 3), snapshot(5, None), main=5, ingest=4)
    with pytest.raises(StagedSnapshotsExpiredError):
        staged(found)
    first = snapshot(3, None, **{"total-data-files": "1", "added-data-files": "1"})
    assert staged(metadata(first, snapshot(4, 3), snapshot(5, None), main=5, ingest=4)) == [3, 4]


HOSTILE = ("", "x", "-9223372036854775809", "9" * 30, "9" * 5_000, "1.0", " 1", "1_0", "\u0661", "0x1")


@pytest.mark.parametrize("value", [*HOSTILE, None])
@pytest.mark.parametrize("name", [SNAPSHOT_ID, CLEARED, TARGET_SNAPSHOT_ID, TARGET_SEQUENCE_NUMBER])
def test_a_marker_that_is_no_number_stops_publication(name: str, value: str | None) -> None:
    on_main, on_branch = publishes(2), clears(2, 3)
    changed = on_main if name == SNAPSHOT_ID else on_branch
    if value is None:
        del changed[name]
    else:
        changed[name] = value
    clearing = snapshot(4, 2, **on_branch)
    found = metadata(snapshot(1, None), snapshot(2, 1), snapshot(3, 1, **on_main), clearing, main=3, ingest=4)
    if name == CLEARED and value is None:  # then it clears nothing, and is a snapshot like others
        assert staged(found) == [4]
        return
    with pytest.raises(PublicationUnreadableError, match=name) as refused:
        staged(found)
    assert len(str(refused.value)) < 200
    assert staged(found, after=2) == []


@pytest.mark.parametrize("number", ["-1", "0", str(2**63 - 1)])
@pytest.mark.parametrize("name", [SNAPSHOT_ID, CLEARED, TARGET_SNAPSHOT_ID, TARGET_SEQUENCE_NUMBER])
def test_a_marker_that_names_what_there_is_not_lets_nothing_come_twice(name: str, number: str) -> None:
    """The other one still tells, or nothing is published."""
    on_main, on_branch = publishes(2), clears(2, 3)
    (on_main if name == SNAPSHOT_ID else on_branch)[name] = number
    snapshots = [snapshot(1, None), snapshot(2, 1), snapshot(3, 1, **on_main), snapshot(4, 2, **on_branch)]
    found = metadata(*snapshots, snapshot(5, 4), main=3, ingest=5)
    assert staged(found) == [5]


def test_a_tag_is_no_staging_branch() -> None:
    found = metadata(snapshot(1, None), main=1, ingest=1)
    found.refs["v1"] = found.refs["ingest"].model_copy(update={"snapshot_ref_type": SnapshotRefType.TAG})
    with pytest.raises(StagingBranchNotFoundError, match=r"no branch v1; it has ingest, main$"):
        staged_snapshots(found, "v1", "main")


def test_a_marker_that_names_a_younger_snapshot_is_not_taken_for_a_rollback() -> None:
    """What it says was published would come once more."""
    said = snapshot(4, 2, **clears(2, 3, **{TARGET_SEQUENCE_NUMBER: "4"}))
    found = metadata(snapshot(2, 1), said, snapshot(5, 1), snapshot(1, None), main=5, ingest=4)
    with pytest.raises(PublicationUnreadableError, match="younger snapshot 3"):
        staged(found)


def test_a_snapshot_that_adds_files_is_staged_whatever_it_says_of_itself() -> None:
    writes = snapshot(3, 2, **clears(2, 1), **{"added-data-files": "1"})
    found = metadata(snapshot(1, None), snapshot(2, 1), writes, main=1, ingest=3)
    assert staged(found) == [2, 3]
