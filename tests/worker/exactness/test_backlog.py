"""A backlog of equality deletes that is converted in several commits, each correct alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.exactness import Exactness
from tests.factories import TableBuilder, equality_delete_files, live_delete_files
from tests.readers import duckdb_rows
from tests.thorough import V2_FIRST, V3_FIRST
from worker.attempt.outcome import Outcome
from worker.contract.control_plane import AttemptId, EndedAttempt

pytestmark = pytest.mark.integration
REGIONS = ("eu", "us", "ap")
FILES = 3 * len(REGIONS)


def backlog(exactly: Exactness, format_version: int) -> TableBuilder:
    """Three upserts in each of three partitions: nine equality delete files over the same keys."""
    table = exactly.table(format_version=format_version, partitioned_by=["region"])
    table.append([{"id": i, "region": REGIONS[i % 3], "value": 0} for i in range(60)])
    for commit in (1, 2, 3):
        keys = range(commit, 60, 4)
        table.upsert(
            [{"id": i, "region": REGIONS[i % 3], "value": commit} for i in keys], key=["id", "region"]
        )
    return table


def convert(exactly: Exactness, limit: int, **job: Any) -> Outcome:
    policy = {"convert": {"max_delete_files_per_commit": limit}}
    return exactly.jobs.run("convert", policy=policy, **job)


def own_files(table: TableBuilder) -> set[str]:
    location = Path(table.metadata.location.removeprefix("file:"))
    return {path.name for path in location.rglob("icestream-*")}


def live_own_files(exactly: Exactness, table: TableBuilder) -> set[str]:
    return {Path(file["file_path"]).name for file in live_delete_files(exactly.spark, table.identifier)}


@V3_FIRST
def test_every_commit_of_a_backlog_leaves_the_rows_as_they_are(
    exactly: Exactness, format_version: int
) -> None:
    table = backlog(exactly, format_version)
    before = duckdb_rows(table)
    first = len(table.metadata.snapshots)
    foretold = convert(exactly, 2, dry_run=True).result
    result = convert(exactly, 2).result
    assert result["commits"] == foretold["commits"] == 5
    assert result["rows_deleted"] == foretold["rows_deleted"] == 60 + 45 - before.total()
    assert result["equality_delete_files_removed"] == foretold["equality_delete_files_removed"] == FILES
    made = table.metadata.snapshots[first:]
    assert [one.summary and one.summary["icestream.equality-delete-files-removed"] for one in made] == [
        "2",
        "2",
        "2",
        "2",
        "1",
    ]
    for snapshot in made:
        assert duckdb_rows(table, snapshot_id=snapshot.snapshot_id) == before
    assert exactly.visible_rows(table) == before
    assert equality_delete_files(exactly.spark, table.identifier) == []
    assert result["key_sets"][0]["keys"] == 45
    assert any("take 5 commits" in sentence for sentence in result["decisions"])
    assert own_files(table) >= live_own_files(exactly, table) != set()


@V2_FIRST
def test_the_next_attempt_does_what_the_first_one_left(exactly: Exactness, format_version: int) -> None:
    table = backlog(exactly, format_version)
    before = duckdb_rows(table)
    ended_attempts = [dies_in_its_third_commit(exactly)]
    left = own_files(table)
    assert len(equality_delete_files(exactly.spark, table.identifier)) == FILES - 4

    done = convert(exactly, 2, job_id="backlog", attempt=2, ended_attempts=ended_attempts)
    result = done.result
    assert (result["commits"], result["equality_delete_files_removed"]) == (5, FILES)
    assert list(done.cleared) == [AttemptId(job_id="backlog", attempt=1)]
    assert result["rows_deleted"] == 60 + 45 - before.total()
    assert exactly.visible_rows(table) == before
    assert equality_delete_files(exactly.spark, table.identifier) == []
    assert any("attempt 1 of job backlog left behind" in sentence for sentence in result["decisions"])
    removed = left - own_files(table)
    assert removed
    assert not removed & live_own_files(exactly, table)


def dies_in_its_third_commit(exactly: Exactness) -> EndedAttempt:
    """Attempt 1 of the job `backlog`, as a killed process leaves it: two commits, and files without one."""
    exactly.jobs.reporter.announced = {}
    commits = 0

    def die() -> None:
        nonlocal commits
        commits += 1
        if commits == 3:
            raise SystemExit

    exactly.jobs.reporter.before_commit = die
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("worker.deletes.stage.remove_written", lambda *_: 0)
        with pytest.raises(SystemExit):
            convert(exactly, 2, job_id="backlog")
    exactly.jobs.reporter.before_commit = lambda: None
    return exactly.jobs.reporter.left_by("backlog")


@V3_FIRST
def test_files_that_an_attempt_committed_stay_when_its_snapshots_have_expired(
    exactly: Exactness, format_version: int
) -> None:
    table = backlog(exactly, format_version)
    before = duckdb_rows(table)
    ended_attempts = [dies_in_its_third_commit(exactly)]
    table.append([{"id": 99, "region": "eu", "value": 9}])
    committed = live_own_files(exactly, table)
    table.java.expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
    result = convert(exactly, 2, job_id="backlog", attempt=2, ended_attempts=ended_attempts).result
    assert (result["commits"], result["equality_delete_files_removed"]) == (3, FILES - 4)
    assert any("attempt 1 of job backlog left behind" in sentence for sentence in result["decisions"])
    assert exactly.visible_rows(table) == before + Counter({(99, "eu", 9): 1})
    if format_version == 2:  # in V3 the last batches may have written them anew
        assert committed & own_files(table)


def test_a_policy_that_changes_between_attempts_leaves_nothing_undone(exactly: Exactness) -> None:
    table = backlog(exactly, 3)
    before = duckdb_rows(table)
    dies_in_its_third_commit(exactly)
    result = convert(exactly, 0, job_id="backlog", attempt=2).result
    assert (result["commits"], result["equality_delete_files_removed"]) == (3, FILES)
    assert exactly.visible_rows(table) == before
    assert equality_delete_files(exactly.spark, table.identifier) == []


def test_what_an_attempt_refused_is_told_by_the_one_that_finds_its_commit(exactly: Exactness) -> None:
    table = backlog(exactly, 3)
    damaged = equality_delete_files(exactly.spark, table.identifier)[0]["file_path"]
    Path(damaged.removeprefix("file:")).write_bytes(b"garbage")
    first = convert(exactly, 0, job_id="lost")
    again = convert(exactly, 0, job_id="lost", attempt=2)
    assert again.result["commits"] == first.result["commits"] == 1
    assert again.result["unconvertible"] == first.result["unconvertible"] != []
    assert again.health["unconvertible"] == first.health["unconvertible"]


def test_deletes_that_come_while_the_job_runs_are_left_to_the_next_one(exactly: Exactness) -> None:
    table = backlog(exactly, 3)
    commits: Counter[str] = Counter()

    def write_before_each_commit() -> None:
        commits["ours"] += 1
        table.upsert([{"id": 1, "region": "us", "value": 100 + commits["ours"]}], key=["id", "region"])

    exactly.jobs.reporter.before_commit = write_before_each_commit
    result = convert(exactly, 4).result
    assert (result["commits"], result["equality_delete_files_removed"]) == (3, FILES)
    assert len(equality_delete_files(exactly.spark, table.identifier)) == 3
    exactly.jobs.reporter.before_commit = lambda: None
    before = duckdb_rows(table)
    assert before[(1, "us", 103)] == 1
    assert convert(exactly, 4).result["commits"] == 1
    assert exactly.visible_rows(table) == before


def test_a_batch_that_compaction_overtook_is_planned_again(exactly: Exactness) -> None:
    table = backlog(exactly, 3)
    before = duckdb_rows(table)
    commits = 0

    def compact_in_the_second() -> None:
        nonlocal commits
        commits += 1
        if commits == 2:
            table.compact()

    exactly.jobs.reporter.before_commit = compact_in_the_second
    result = convert(exactly, 4).result
    assert any("plans again" in sentence for sentence in result["decisions"])
    assert result["commits"] >= 2  # the compaction has dropped some of the deletes itself
    assert exactly.visible_rows(table) == before
    assert equality_delete_files(exactly.spark, table.identifier) == []


def test_a_batch_with_deletes_that_cannot_be_converted_does_not_keep_the_others(exactly: Exactness) -> None:
    table = backlog(exactly, 2)
    before = duckdb_rows(table)
    damaged = equality_delete_files(exactly.spark, table.identifier)[0]["file_path"]
    local = Path(damaged.removeprefix("file:"))
    intact = local.read_bytes()
    local.write_bytes(b"garbage")
    result = convert(exactly, 2).result
    assert [one["file_path"] for one in result["unconvertible"]] == [damaged]
    assert (result["commits"], result["equality_delete_files_removed"]) == (5, FILES - 1)
    local.write_bytes(intact)
    assert exactly.visible_rows(table) == before
