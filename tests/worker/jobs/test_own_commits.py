"""A job's own commits are looked up, by a later attempt alone, and where an answer was lost."""

from types import SimpleNamespace
from typing import Any

import pytest

from worker.jobs.own_commits import OwnCommit
from worker.process.errors import StorageError
from worker.table.catalogs import CatalogUnreachableError
from worker.table.commit import CommittedSnapshot
from worker.table.commit_errors import CommitConflictError, CommitError, CommitStateUnknownError

TABLE: Any = SimpleNamespace(java_table=None, branch="main")


def committed(attempt: int, **summary: str) -> CommittedSnapshot:
    return CommittedSnapshot(7, 6, 3, "j", attempt, summary)


class Asked:
    """Of a job's attempt: what it decided, and how often the table was asked."""

    def __init__(self, patch: pytest.MonkeyPatch, attempt: int, *, dry_run: bool = False) -> None:
        self.found: list[CommittedSnapshot] = []
        self.times = 0
        self.error: CommitError | None = None
        self.decisions: list[str] = []
        self.told_of: list[Exception] = []
        job: Any = SimpleNamespace(
            assignment=SimpleNamespace(attempt=attempt, job=SimpleNamespace(id="j", dry_run=dry_run)),
            decide=self.decisions.append,
            tell_of_change=self.told_of.append,
            key_sets=set(),
        )
        self.own = OwnCommit(job, lambda summary: "mine" in summary, "there is nothing left")
        patch.setattr("worker.jobs.own_commits.find_commits", self._find)

    def _find(self, *_: object) -> list[CommittedSnapshot]:
        self.times += 1
        if self.error is not None:
            raise self.error
        return self.found


@pytest.mark.parametrize(("attempt", "dry_run"), [(1, False), (2, True)])
def test_no_attempt_before_it_can_have_committed(
    monkeypatch: pytest.MonkeyPatch, attempt: int, dry_run: bool
) -> None:
    asked = Asked(monkeypatch, attempt, dry_run=dry_run)
    asked.found = [committed(1, mine="yes")]
    assert asked.own.of_earlier_attempt(TABLE) is None
    assert asked.times == 0


def test_a_later_attempt_finds_what_an_earlier_one_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, 2)
    asked.found = [committed(1), committed(1, mine="yes")]
    assert asked.own.of_earlier_attempt(TABLE) is asked.found[1]
    assert asked.decisions == ["Attempt 1 committed snapshot 7 before it was lost: there is nothing left."]
    asked.found = [committed(1)]
    assert asked.own.of_earlier_attempt(TABLE) is None


def test_a_table_that_can_not_be_asked_is_one_to_come_back_to(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, 2)
    asked.error = CommitError("the catalog is away")
    with pytest.raises(CatalogUnreachableError, match="asked for what earlier attempts committed"):
        asked.own.of_earlier_attempt(TABLE)


def test_a_commit_whose_answer_was_lost_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, 2)

    def lose() -> CommittedSnapshot:
        raise CommitStateUnknownError("no answer")

    asked.found = [committed(2, mine="yes")]
    assert asked.own.made_by(TABLE, lose) is asked.found[0]
    asked.found = [committed(1, mine="yes")]
    with pytest.raises(CommitStateUnknownError):
        asked.own.made_by(TABLE, lose)
    asked.error = CommitError("the catalog is away")
    with pytest.raises(CommitStateUnknownError):
        asked.own.made_by(TABLE, lose)


@pytest.mark.parametrize(
    ("told", "known"),
    [
        ({}, set()),
        ({"equality-field-ids": "1;1,3"}, {(1,), (1, 3)}),
        ({"equality-field-ids": "x;1,;-1;12345678901;2"}, {(2,)}),
    ],
)
def test_the_keys_that_a_commit_names_are_read_with_care(
    told: dict[str, str], known: set[tuple[int, ...]]
) -> None:
    """Whoever writes to the table may write anything there."""
    assert committed(1, **{f"icestream.{name}": value for name, value in told.items()}).key_sets == known


def test_what_was_written_is_removed_when_the_table_cannot_be_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, removed, changed = Asked(monkeypatch, 1), list[str](), CommitConflictError("others came first")

    def resolve(_: Any) -> Any:
        return SimpleNamespace(summary={}), commit

    def commit() -> None:
        raise changed

    def fail(_: Any) -> Any:
        raise StorageError("the catalog's file can't be read")

    monkeypatch.setattr("worker.jobs.own_commits.check_clock", lambda _: None)
    monkeypatch.setattr("worker.jobs.own_commits.pin_again", fail)
    with pytest.raises(StorageError):
        asked.own.make(TABLE, resolve, lambda: removed.append("all"), "Wait.")
    assert (removed, asked.told_of) == (["all"], [changed])
