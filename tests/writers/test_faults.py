"""Histories of several writers find faults: each is put into the worker, and one of the first seeds tells."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.soak.test_faults import find
from tests.writers.history import WRITERS
from tests.writers.served import Served
from worker.table.row_delta import validator_of

pytestmark = pytest.mark.integration


def _commit_on_any_head(patch: pytest.MonkeyPatch) -> None:
    def changed(java_table: Any, delta: Any, referenced: Any) -> Any:
        return validator_of(java_table, replace(delta, layout=""), referenced)

    patch.setattr("worker.table.commit.validator_of", changed)


def _forget_earlier_attempts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("worker.jobs.own_commits.OwnCommit.of_earlier_attempt", lambda *_: None)


def _go_on_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    for call in ("announce", "confirm_lease", "_beat"):
        patch.setattr(f"worker.agent.reporter.AttemptReporter.{call}", lambda *_, **__: None)


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "commits on any head": _commit_on_any_head,
    "forgets earlier attempts": _forget_earlier_attempts,
    "goes on without a lease": _go_on_without_a_lease,
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_writers_is_found(served: Served, fault: str) -> None:
    find(served, FAULTS[fault], WRITERS)
