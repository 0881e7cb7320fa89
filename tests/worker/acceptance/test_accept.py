"""An acceptance passes on every kind of catalog and store, leaves nothing, and fails where it must."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from service.records.jobs import JobKind
from tests.factories import Catalog, TableBuilder, sqlite_catalog, visible_rows
from tests.worker.acceptance import lakes
from tests.worker.acceptance.working import NAMESPACE, Working
from worker.acceptance.checks import checks_of
from worker.acceptance.earlier_runs import plan_clean_up
from worker.acceptance.report import Outcome, Report, Step
from worker.acceptance.run import Acceptance, clean_up
from worker.attempt.outcome import Outcome as JobOutcome
from worker.contract.control_plane import Assignment
from worker.jobs.pipeline import run_job

pytestmark = pytest.mark.integration

SECRET = "of-the-record-alone"


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Catalog:
    """With a table of somebody else's in the namespace."""
    catalog = sqlite_catalog(spark, f"accepted_{tmp_path.name}", tmp_path / "lake")
    TableBuilder.create(spark, f"{catalog.name}.{NAMESPACE}.mine", "id bigint").append([{"id": 1}])
    return catalog


@pytest.fixture
def working(
    spark: SparkSession, tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Working]:
    monkeypatch.setenv("LAKE_KEY", SECRET)
    further = {"catalog_name": catalog.name, "s3.secret-access-key": "env:LAKE_KEY"}
    properties = {**catalog.properties, **further}
    with Working.on(spark, tmp_path, "sql", properties, tmp_path.as_uri()) as working:
        yield working


@pytest.fixture
def acceptance(working: Working) -> Iterator[Acceptance]:
    """Of one table, which goes through all kinds of jobs."""
    with working.acceptance() as acceptance:
        acceptance.trials = [one for one in acceptance.trials if one.name == "v3"]
        yield acceptance


def named(report: Report, outcome: Outcome) -> list[str]:
    return [f"{step.table}: {step.name}" for step in report.steps if step.outcome is outcome]


def stop_after(acceptance: Acceptance, name: str) -> None:
    """As a signal does, once the step of this name has ended."""

    def stop(step: Step) -> None:
        if step.name == name:
            acceptance.service.stopping.set()

    acceptance.step_done = stop


def files(directory: Path) -> set[Path]:
    """Of tables and indexes, without what the service and the worker keep for themselves."""
    return {*(directory / "lake" / "warehouse").rglob("*"), *(directory / "index").rglob("*/*")}


@pytest.mark.thorough
def test_all_kinds_of_jobs_pass_and_all_is_as_before(working: Working, tmp_path: Path) -> None:
    before = files(tmp_path)
    with working.acceptance() as acceptance:
        acceptance.trials = acceptance.trials[1:]  # each version is tried below
        report = acceptance.go(working.versions())
    assert named(report, Outcome.FAILED) == [], report.to_markdown()
    assert report.exit_code == 0, report.to_markdown()
    kinds = {job.kind for step in report.steps for job in step.jobs}
    assert kinds == {*JobKind} - {JobKind.REWRITE_POSITION_DELETE_FILES}  # which are of version 2
    assert files(tmp_path) == before
    assert working.service.admin.get("/tables").json()["items"] == []


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "lake", [lakes.rest, lakes.hive, lakes.glue, lakes.hadoop, lakes.s3, lakes.google, lakes.azure]
)
def test_every_kind_of_catalog_and_store_is_accepted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lake: lakes.Lake
) -> None:
    with lake(spark, tmp_path, monkeypatch) as working, working.acceptance() as acceptance:
        if lake is not lakes.rest:  # where the versions differ, all catalogs and stores are alike
            acceptance.trials = acceptance.trials[1:]
        report = acceptance.go(working.versions())
    assert named(report, Outcome.FAILED) == [], report.to_markdown()
    assert report.exit_code == 0
    is_local = report.store.startswith("file:")
    by_store = [] if is_local else ["v3: remove_orphan_files: old ones go"]
    assert named(report, Outcome.NOT_POSSIBLE) == by_store


def test_a_row_that_comes_behind_a_job_s_back_fails_the_step_and_ends_the_table(
    working: Working,
    acceptance: Acceptance,
    catalog: Catalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = files(tmp_path)

    def run_wrongly(assignment: Assignment, *others: Any) -> JobOutcome:
        done = run_job(assignment, *others)
        if assignment.job.kind == "convert" and not assignment.job.dry_run:
            table = TableBuilder(working.spark, ".".join((catalog.name, *assignment.table.identifier)))
            table.append([{"order_id": 1, "region": "asia"}])
        return done

    monkeypatch.setattr("worker.agent.worker.run_job", run_wrongly)
    report = acceptance.go(working.versions())
    assert named(report, Outcome.FAILED) == ["v3: convert"], report.to_markdown()
    assert report.exit_code == 1
    step = next(step for step in report.steps if step.name == "convert")
    assert step.problem is not None
    assert step.problem.code == "wrong_rows"
    assert "shows 1 row that must not be there, such as 1, asia" in step.problem.detail
    after = report.steps[report.steps.index(step) + 1]
    assert (after.name, after.outcome) == ("verify", Outcome.NOT_TRIED)
    assert after.said == "It rests on `convert`, which failed."
    assert files(tmp_path) == before


@pytest.mark.exhaustive
def test_a_catalog_that_refuses_version_3_is_accepted_with_version_2(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lakes.without_version_3(spark, tmp_path, monkeypatch) as working, working.acceptance() as acceptance:
        report = acceptance.go(working.versions())
    assert report.exit_code == 0, report.to_markdown()
    not_possible = [step for step in report.steps if step.outcome is Outcome.NOT_POSSIBLE]
    assert {step.table for step in not_possible} == {"v3"}
    assert len(not_possible) == len(checks_of(3))
    assert "Malformed request: Unsupported format version: v3" in not_possible[0].said
    assert report.requests["catalog"]["createTable"] >= 5  # of version 3 twice, then of version 2


@pytest.mark.exhaustive
def test_s3_tables_are_accepted_for_what_they_let_anybody_do(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lakes.s3_tables(spark, tmp_path, monkeypatch) as working, working.acceptance() as acceptance:
        acceptance.trials = acceptance.trials[1:]  # versions are alike there
        report = acceptance.go(working.versions())
    assert report.exit_code == 0, report.to_markdown()
    assert named(report, Outcome.NOT_POSSIBLE) == [
        "v3: expire_snapshots",
        "v3: remove_orphan_files: young ones stay",
        "v3: remove_orphan_files: old ones go",
        "v3: erase keys",
        "faults: fault: a data file is missing",
    ]


@pytest.mark.exhaustive
def test_sessions_that_a_catalog_vends_need_not_outlive_a_step(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        lakes.vending(spark, tmp_path, monkeypatch) as (working, sessions),
        working.acceptance() as acceptance,
    ):
        acceptance.trials = acceptance.trials[1:2]

        def end(step: Step) -> None:
            sessions.over()
            if step.name == "convert":
                acceptance.service.stopping.set()

        acceptance.step_done = end
        report = acceptance.go(working.versions())
    assert named(report, Outcome.FAILED) == [], report.to_markdown()
    passed = named(report, Outcome.PASSED)
    assert [one for one in passed if "convert" in one or "remove" in one] == [
        "v3: convert (dry run)",
        "v3: convert",
        "all: remove v3",
    ]
    assert sessions.used


@pytest.mark.exhaustive
def test_a_store_that_denies_deletions_is_told_as_that(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        lakes.s3(spark, tmp_path, monkeypatch, denies_deletes=True) as working,
        working.acceptance() as acceptance,
    ):
        acceptance.trials = acceptance.trials[1:2]
        stop_after(acceptance, "enrol it")  # jobs that may delete nothing are tried again for minutes
        report = acceptance.go(working.versions())
    failed = named(report, Outcome.FAILED)
    assert {"v3: use the store", "all: remove v3"} <= set(failed), report.to_markdown()
    (step,) = (step for step in report.steps if step.name == "use the store")
    assert step.problem is not None
    assert step.problem.detail.startswith("delete a file: ")
    assert "ACCESS_DENIED" in step.problem.detail.upper().replace(" ", "_")


@pytest.mark.exhaustive
def test_a_run_that_is_stopped_removes_what_it_made_and_passes_nothing_else(
    working: Working, acceptance: Acceptance, tmp_path: Path
) -> None:
    before = files(tmp_path)

    stop_after(acceptance, "enrol it")
    report = acceptance.go(working.versions())
    assert named(report, Outcome.FAILED) == [], report.to_markdown()
    passed = [step for step in named(report, Outcome.PASSED) if step.startswith("v3")]
    assert passed[-1] == "v3: enrol it"
    assert "v3: erase keys" in named(report, Outcome.NOT_TRIED)
    assert files(tmp_path) == before
    assert working.service.admin.get("/tables").json()["items"] == []


def test_what_a_run_has_left_is_told_by_the_next_one_and_removed_on_request(
    working: Working, acceptance: Acceptance, catalog: Catalog, tmp_path: Path
) -> None:
    before = files(tmp_path)
    acceptance.wanted = replace(acceptance.wanted, keep=True)

    stop_after(acceptance, "enrol it")
    acceptance.go(working.versions())
    nameless = next((tmp_path / "lake").rglob("*_v3/data")) / "nameless.parquet"
    nameless.write_text("no snapshot names it")
    (left,) = (trial.identifier[-1] for trial in acceptance.trials)
    with working.acceptance() as following:
        assert following.of_earlier_runs == []  # it is young, so its run may be under way
        later = datetime.now(UTC) + timedelta(hours=3)
        tables = plan_clean_up(following.service, following.lake, [NAMESPACE], now=later).to_remove
        assert [(one.name, one.has_table, len(one.enrolments)) for one in tables] == [(left, True, 1)]
        said: list[str] = []
        assert clean_up(following.service, following.lake, [NAMESPACE], tables, said.append)
        assert said == [f"{left} is gone."]
        assert following.lake.table_names([NAMESPACE]) == {"mine"}
    assert {path for path in files(tmp_path) - before if path.is_file()} == set()
    assert visible_rows(working.spark, f"{catalog.name}.{NAMESPACE}.mine") == {(1,): 1}


@pytest.mark.exhaustive
def test_a_place_that_has_files_is_left_alone_and_a_secret_in_its_name_is_not_told(
    working: Working, acceptance: Acceptance, tmp_path: Path
) -> None:
    (trial,) = acceptance.trials
    theirs = tmp_path / "lake" / SECRET / "data" / "precious.parquet"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("precious")
    trial.wanted_location = theirs.parents[1].as_uri()
    report = acceptance.go(working.versions())
    assert named(report, Outcome.FAILED) == ["v3: create the table"], report.to_markdown()
    (step,) = (step for step in report.steps if step.outcome is Outcome.FAILED)
    assert step.problem is not None
    assert step.problem.code == "not_ours"
    assert "lake/***/data/precious.parquet" in step.problem.detail
    assert theirs.read_text() == "precious"
