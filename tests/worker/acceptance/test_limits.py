"""What a catalog or a store does for nobody is told as that: it fails nothing, and all else is tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.worker.acceptance.fakes import FakeLake, acceptance_of
from worker.acceptance import checks
from worker.acceptance.lake import Lake, LakeError
from worker.acceptance.report import Outcome
from worker.acceptance.run import Acceptance, Wanted
from worker.acceptance.trial import NotPossibleError, Trial


def refuse_version_3(format_version: int) -> int:
    if format_version >= 3:
        raise LakeError("create table: Unsupported format version: v3")
    return format_version


def tried(monkeypatch: pytest.MonkeyPatch, makes: Callable[[int], int]) -> tuple[Acceptance, FakeLake]:
    """Tables of both versions that are made, and nothing else."""
    lake = FakeLake(makes=makes)
    acceptance = acceptance_of(lake)
    lake.tables, lake.stored = {}, set()
    acceptance.trials = [acceptance._trial("v2", 2, ("order_id",)), acceptance._trial("v3", 3, ("order_id",))]
    enroll = checks.Check("enrol it", lambda _: "", compares=False)
    monkeypatch.setattr(checks, "checks_of", lambda _: (checks.JOBS[0], enroll))
    for trial in acceptance.trials:
        acceptance._go_through(trial)
    return acceptance, lake


@pytest.mark.parametrize(
    ("makes", "says"),
    [
        (refuse_version_3, "3: create table: Unsupported format version: v3. It made the same table with"),
        (lambda _: 2, "refuses format version 3. It made the same table with version 2."),
    ],
)
def test_a_catalog_that_refuses_version_3_is_accepted_with_version_2(
    monkeypatch: pytest.MonkeyPatch, makes: Callable[[int], int], says: str
) -> None:
    acceptance, lake = tried(monkeypatch, makes)
    monkeypatch.undo()
    of_v3 = [step for step in acceptance.report.steps if step.table == "v3"]
    assert {step.outcome for step in of_v3} == {Outcome.NOT_POSSIBLE}
    assert says in of_v3[0].said
    assert of_v3[1].said == "It rests on `create the table`, which is not possible here."
    assert acceptance.report.exit_code == 0
    acceptance._remove_all()
    assert acceptance.report.exit_code == 0, acceptance.report.to_markdown()
    assert (lake.tables, lake.stored) == ({}, set())


def test_a_catalog_that_fails_once_or_for_any_version_does_not_refuse_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = iter([LakeError("create table: 503")])

    def fail_once(format_version: int) -> int:
        if format_version >= 3 and (failure := next(failures, None)):
            raise failure
        return format_version

    acceptance, _ = tried(monkeypatch, fail_once)
    assert acceptance.report.verdict == "4 passed, 0 failed, 0 not tried"
    is_over = False

    def fail_from_then_on(format_version: int) -> int:
        nonlocal is_over
        is_over = is_over or format_version >= 3
        return refuse_version_3(3 if is_over else 2)

    acceptance, _ = tried(monkeypatch, fail_from_then_on)
    assert [step.outcome for step in acceptance.report.steps[-2:]] == [Outcome.FAILED, Outcome.NOT_TRIED]
    assert acceptance.report.exit_code == 1


@pytest.mark.parametrize("is_essential", [False, True])
def test_what_a_catalog_says_that_it_never_does_is_not_possible_unless_all_else_rests_on_it(
    monkeypatch: pytest.MonkeyPatch, is_essential: bool
) -> None:
    def refuse(_: object) -> str:
        raise LakeError("roll the table back: It is not supported.", is_unsupported=True)

    check = checks.Check("roll it back", refuse, essential=is_essential, compares=False)
    monkeypatch.setattr(checks, "checks_of", lambda _: (check,))
    acceptance = acceptance_of(FakeLake())
    acceptance._go_through(acceptance.trials[0])
    (step,) = acceptance.report.steps
    if is_essential:
        assert step.problem is not None
        assert (step.outcome, step.problem.code) == (Outcome.FAILED, "not_supported")
    else:
        assert (step.outcome, step.said) == (
            Outcome.NOT_POSSIBLE,
            "roll the table back: It is not supported.",
        )


def test_a_place_that_may_be_why_a_table_was_refused_is_told() -> None:
    acceptance = acceptance_of(FakeLake(makes=lambda _: refuse_version_3(3)))
    (trial,) = acceptance.trials
    trial.wanted_location = "s3://mine/t"
    with pytest.raises(LakeError) as error:
        checks.create(trial)
    assert error.value.problem.remedy.endswith("leave --location out.")


TABLE_BUCKET = "s3://63a8e430-6e0b-46f5-k833abtwr6s8tmtsycedn8s4yc3xhuse1b--table-s3"


def trial_on_store_that_refuses(location: str) -> Any:
    """To list and to delete files."""
    made = MagicMock(location=location, refused={})
    made.storage.return_value.walk.side_effect = PermissionError("405 MethodNotAllowed")
    made.storage.return_value.delete.side_effect = PermissionError("405 MethodNotAllowed")
    made.needs = lambda task: Trial.needs(made, task)
    return made


def test_what_s3_tables_refuses_to_everybody_is_told_and_steps_that_need_it_are_not_possible() -> None:
    of = trial_on_store_that_refuses(TABLE_BUCKET)
    said = checks.use_store(of)
    assert said == (
        "A file was written, read. S3 Tables lets nobody list files. S3 Tables lets nobody delete files."
    )
    for check in (
        checks.keep_young_orphans,
        checks.remove_old_orphans,
        checks.expire_snapshots,
        checks.erase,
        checks.miss_a_data_file,
    ):
        with pytest.raises(NotPossibleError, match="MethodNotAllowed"):
            check(of)


def test_any_other_store_that_refuses_it_refuses_it_to_this_identity() -> None:
    with pytest.raises(LakeError, match="list files: 405"):
        checks.use_store(trial_on_store_that_refuses("s3://lake/t"))


def test_a_table_of_s3_tables_is_made_and_removed_without_a_look_at_its_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def deny(*_: object) -> Any:
        raise LakeError("list: 405 MethodNotAllowed")

    lake = FakeLake(location_of=lambda _: TABLE_BUCKET)
    acceptance = acceptance_of(lake)
    lake.tables, lake.stored = {}, set()
    acceptance.trials = [acceptance._trial("v3", 3, ("order_id",))]
    monkeypatch.setattr(lake, "files", deny)
    monkeypatch.setattr(lake, "clear", deny)
    monkeypatch.setattr(checks, "checks_of", lambda _: checks.JOBS[:1])
    acceptance._go_through(acceptance.trials[0])
    acceptance._remove_all()
    assert acceptance.report.exit_code == 0, acceptance.report.to_markdown()
    assert acceptance.report.store == TABLE_BUCKET
    assert lake.tables == {}


@pytest.mark.parametrize(
    "record",
    [
        {"rest.signing-name": "s3tables"},
        {"rest.signing-name": "glue", "warehouse": "123456789012:s3tablescatalog/lake"},
    ],
)
def test_a_place_is_refused_before_anything_is_made_where_s3_tables_chooses_it(
    monkeypatch: pytest.MonkeyPatch, record: dict[str, str]
) -> None:
    monkeypatch.setattr("worker.acceptance.lake.open_catalog", lambda *_: (MagicMock(), None))
    lake = Lake(MagicMock(), {"name": "lake", "type": "rest", "properties": record})
    with pytest.raises(LakeError) as error:
        Acceptance(MagicMock(), lake, Wanted("lake", ["a"], "s3://mine/here"))
    assert error.value.problem.code == "location_not_taken"
    assert "--location" in error.value.problem.remedy
    assert not Lake(MagicMock(), {"name": "lake", "type": "rest", "properties": {}}).is_s3_tables
