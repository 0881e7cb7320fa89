"""What attempts leave in the table's location is removed by name, as soon as no commit can need it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.factories import TableBuilder, equality_delete_files, visible_rows
from tests.faults.tables import local, orphans
from tests.jobs import Jobs
from tests.thorough import first_always
from worker.contract.control_plane import AnnouncedPlan, AttemptId, EndedAttempt
from worker.deletes.locations import output_locations
from worker.io.storage import Storage

pytestmark = pytest.mark.integration
LOST = AttemptId(job_id="lost", attempt=1)


@pytest.fixture(params=[3, pytest.param(2, marks=pytest.mark.exhaustive)])
def table(request: pytest.FixtureRequest, spark: SparkSession, table_name: str) -> TableBuilder:
    """Rows in two partitions, and deletes of some in each."""
    table = TableBuilder.create(spark, table_name, format_version=request.param, partitioned_by=["region"])
    table.append([{"id": i, "region": ("eu", "us")[i % 2], "value": i} for i in range(40)])
    for region, ids in (("eu", (0, 2)), ("us", (1, 3))):
        table.delete_keys([{"id": i, "region": region} for i in ids], equality_columns=["id", "region"])
    return table


@pytest.fixture
def dies(jobs: Jobs) -> Callable[[bool], EndedAttempt]:
    """A conversion that ends as a killed process does; about to commit, or before that."""

    def die_in(about_to_commit: bool) -> EndedAttempt:
        def die() -> None:
            raise SystemExit

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("worker.deletes.stage.remove_written", lambda *_: 0)
            if about_to_commit:
                jobs.reporter.before_commit = die
            else:
                patched.setattr("worker.deletes.stage.MEMORY_POSITIONS", 8)  # a task for each data file
                patched.setattr("worker.jobs.conversion_plan.Plan._blocked", lambda *_: die())
            with pytest.raises(SystemExit):
                jobs.run("convert", job_id=LOST.job_id)
        jobs.reporter.before_commit = lambda: None
        return jobs.reporter.left_by(LOST.job_id)

    return die_in


def test_files_of_an_attempt_that_was_not_about_to_commit_go_at_once(
    spark: SparkSession, jobs: Jobs, table: TableBuilder, dies: Callable[[bool], EndedAttempt]
) -> None:
    left = dies(False)
    assert [(plan.removes, plan.tasks, plan.files_per_task) for plan in left.plans] == [(None, 2, 1)]
    assert orphans(table)
    done = jobs.run("compact", ended_attempts=[left])
    assert list(done.cleared) == [LOST]
    assert any("attempt 1 of job lost left behind" in one for one in done.result["decisions"])
    assert orphans(table) == set()
    assert len(equality_delete_files(spark, table.identifier)) == 2


def test_files_that_a_late_commit_may_still_name_stay_until_it_cannot_come(
    spark: SparkSession, jobs: Jobs, table: TableBuilder, dies: Callable[[bool], EndedAttempt]
) -> None:
    left = dies(True)
    kept = orphans(table)
    waiting = jobs.run("compact", ended_attempts=[left])
    assert list(waiting.cleared) == []
    assert any("may still come" in one for one in waiting.result["decisions"])
    assert orphans(table) == kept != set()
    before = visible_rows(spark, table.identifier)
    assert list(jobs.run("convert", ended_attempts=[left]).cleared) == [LOST]
    assert orphans(table) == set()
    assert visible_rows(spark, table.identifier) == before


def test_they_go_also_when_others_did_the_work_or_some_deletes_are_refused(
    spark: SparkSession, jobs: Jobs, table: TableBuilder, dies: Callable[[bool], EndedAttempt]
) -> None:
    left = dies(True)
    others = {file["file_path"] for file in equality_delete_files(spark, table.identifier)}
    table.compact()
    table.delete_keys([{"id": 7, "region": "us"}], equality_columns=["id", "region"])
    (damaged,) = {file["file_path"] for file in equality_delete_files(spark, table.identifier)} - others
    local(damaged).write_bytes(b"garbage")
    done = jobs.run("convert", ended_attempts=[left])
    assert done.result["unconvertible"]
    assert list(done.cleared) == [LOST]
    assert orphans(table) == set()


HASHED = {"write.object-storage.enabled": "true", "write.object-storage.partitioned-paths": "false"}


@first_always("properties", [{}, HASHED])
def test_what_was_committed_and_not_reported_stays_and_what_else_was_written_goes(
    spark: SparkSession, jobs: Jobs, table: TableBuilder, properties: Mapping[str, str]
) -> None:
    set_properties(table, properties)
    before = visible_rows(spark, table.identifier)
    jobs.run("convert", job_id=LOST.job_id)
    left = jobs.reporter.left_by(LOST.job_id)
    assert left.plans[0].removes is not None
    table.append([{"id": 99, "region": "eu", "value": 9}])
    written = set(local(table.metadata.location).rglob("*icestream-*"))
    # As a run of a task does that Spark gave up, if the one that counts found its data file blocked.
    names = output_locations(LOST.job_id, LOST.attempt, left.plans[0], 0).names(left.plans[0].files_per_task)
    more = next(path for name in names if not (path := local(name)).exists())
    more.parent.mkdir(parents=True, exist_ok=True)
    more.write_bytes(b"written and not committed")
    done = jobs.run("convert", ended_attempts=[left])
    assert list(done.cleared) == [LOST]
    assert set(local(table.metadata.location).rglob("*icestream-*")) == written != set()
    assert sum(visible_rows(spark, table.identifier).values()) == sum(before.values()) + 1


def test_a_store_that_fails_costs_no_job(
    jobs: Jobs,
    table: TableBuilder,
    dies: Callable[[bool], EndedAttempt],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = dies(False)

    def fails(_: Storage, location: str) -> bool:
        raise OSError(f"{location}: no answer")

    monkeypatch.setattr(Storage, "delete", fails)
    done = jobs.run("convert", ended_attempts=[left])
    assert (done.result["commits"], list(done.cleared)) == (1, [])
    assert any("can't be removed yet" in one and "no answer" in one for one in done.result["decisions"])
    monkeypatch.undo()
    assert list(jobs.run("convert", ended_attempts=[left]).cleared) == [LOST]
    assert orphans(table) == set()


def set_properties(table: TableBuilder, properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        table.spark.sql(f"ALTER TABLE {table.identifier} SET TBLPROPERTIES ('{name}' = '{value}')")


def test_they_are_found_where_they_were_written(
    jobs: Jobs, table: TableBuilder, tmp_path: Path, dies: Callable[[bool], EndedAttempt]
) -> None:
    set_properties(table, HASHED)
    left = dies(False)
    moved = {"write.object-storage.enabled": "false", "write.data.path": (tmp_path / "data").as_uri()}
    set_properties(table, moved)
    found = list(local(table.metadata.location).rglob("*icestream-*"))
    assert found
    assert list(jobs.run("compact", ended_attempts=[left]).cleared) == [LOST]
    assert not any(file.exists() for file in found)


@pytest.mark.parametrize("trap", ["location", "write.data.path", "write.py-location-provider.impl", "tasks"])
def test_what_another_worker_announced_is_neither_opened_nor_called(
    jobs: Jobs, table: TableBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    elsewhere = tmp_path / "other_table"
    (elsewhere / "data").mkdir(parents=True)
    (elsewhere / "provider_trap.py").write_text("class Provider: ...")
    monkeypatch.syspath_prepend(str(elsewhere))
    location, properties, tasks = table.metadata.location, dict[str, str](), 3
    if trap == "location":
        location = elsewhere.as_uri()
    elif trap == "tasks":
        tasks = 10**9
    else:
        is_path = trap == "write.data.path"
        properties[trap] = (elsewhere / "data").as_uri() if is_path else "provider_trap.Provider"
    plan = AnnouncedPlan(number=0, tasks=tasks, files_per_task=500, location=location, properties=properties)
    victim = elsewhere / "data" / "icestream-lost-1-0-00000-00000-deletes.puffin"
    victim.write_bytes(b"of another table")
    left = EndedAttempt(job_id=LOST.job_id, attempt=LOST.attempt, plans=[plan])
    done = jobs.run("compact", ended_attempts=[left])
    assert victim.exists()
    assert "provider_trap" not in sys.modules
    (told,) = [one for one in done.result["decisions"] if "are not looked for" in one]
    assert "begin with icestream-lost-1-" in told
    assert list(done.cleared) == [LOST]


def test_a_job_looks_for_so_many_names_whatever_was_announced_and_leaves_others_to_the_next_one(
    jobs: Jobs, table: TableBuilder, dies: Callable[[bool], EndedAttempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = dies(False)
    plans = [
        AnnouncedPlan(number=number, tasks=1, files_per_task=60, location=table.metadata.location)
        for number in range(3)
    ]
    hostile = EndedAttempt(job_id="hostile", attempt=1, plans=plans)
    looked_for: list[str] = []
    exists = Storage.exists

    def counted(storage: Storage, location: str) -> bool:
        if "icestream-" in location:
            looked_for.append(location)
        return exists(storage, location)

    monkeypatch.setattr(Storage, "exists", counted)
    monkeypatch.setattr("worker.jobs.files_of_dead_attempts._NAMES_AT_MOST", 100)
    first = jobs.run("compact", ended_attempts=[hostile, left])
    assert list(first.cleared) == [AttemptId(job_id="hostile", attempt=1)]
    assert 0 < len(looked_for) <= 2 * 100, "a name in each format"
    assert len([one for one in first.result["decisions"] if "there may be more than 100" in one]) == 1
    assert len([one for one in first.result["decisions"] if "by the next jobs" in one]) == 1
    assert orphans(table)
    assert list(jobs.run("compact", ended_attempts=[left]).cleared) == [LOST]
    assert orphans(table) == set()


@first_always("deletions", [2, 1, 3])
def test_a_removal_that_was_interrupted_is_ended_by_the_next_one(
    jobs: Jobs,
    table: TableBuilder,
    deletions: int,
    dies: Callable[[bool], EndedAttempt],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_properties(table, {"write.delete.granularity": "file"})
    table.append([{"id": i, "region": "eu", "value": 0} for i in range(50, 60)], files=3)
    table.delete_keys([{"id": i, "region": "eu"} for i in range(50, 60)], equality_columns=["id", "region"])
    left = dies(False)
    if table.metadata.format_version == 2:
        assert len(orphans(table)) > 3
    delete, done = Storage.delete, count(1)

    def fails(storage: Storage, location: str) -> bool:
        if "icestream-" in location and next(done) == deletions:
            raise OSError(f"{location}: no answer")
        return delete(storage, location)

    monkeypatch.setattr(Storage, "delete", fails)
    assert list(jobs.run("compact", ended_attempts=[left]).cleared) == ([LOST] if not orphans(table) else [])
    monkeypatch.undo()
    assert list(jobs.run("compact", ended_attempts=[left]).cleared) == [LOST]
    assert orphans(table) == set()


def test_a_dry_run_and_its_plans_leave_everything(
    jobs: Jobs, table: TableBuilder, dies: Callable[[bool], EndedAttempt]
) -> None:
    left = dies(False)
    kept = orphans(table)
    assert list(jobs.run("convert", dry_run=True, ended_attempts=[left]).cleared) == []
    assert jobs.reporter.announced == {}
    assert orphans(table) == kept


def test_nothing_is_removed_that_was_not_announced(jobs: Jobs, table: TableBuilder) -> None:
    folder = next(iter(local(table.metadata.location).rglob("*.parquet"))).parent
    other: Path = folder / "icestream-other-1-0-00000-deletes.puffin"
    other.write_bytes(b"of a job that runs")
    plan = AnnouncedPlan(number=0, tasks=3, files_per_task=9, location=table.metadata.location)
    left = EndedAttempt(job_id="lost", attempt=1, plans=[plan])
    assert list(jobs.run("compact", ended_attempts=[left]).cleared) == [LOST]
    assert other.exists()
