"""What a catalog or a store does for nobody is told as that: it fails nothing, and all else is tried."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.worker.acceptance.fakes import FakeLake, acceptance_of
from worker.acceptance import checks
from worker.acceptance.lake import LakeError
from worker.acceptance.report import Outcome
from worker.acceptance.run import Acceptance


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
