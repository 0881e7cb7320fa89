"""Jobs of an acceptance are waited for: through a service that is away, until they end or somebody stops."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest

from icestream.errors import UnreachableError
from worker.acceptance.service import JobEndedError, Service, StoppedError

AWAY = UnreachableError("It is away.", "Wait.")


def service(monkeypatch: pytest.MonkeyPatch, *seen: str | Exception) -> tuple[Service, list[str]]:
    """That shows a job with these statuses, and then the last one again; and what was told of it."""
    told: list[str] = []
    answers: Iterator[str | Exception] = iter(seen)

    def get(_: str) -> dict[str, Any]:
        found = next(answers, seen[-1])
        if isinstance(found, Exception):
            raise found
        failed = {"error": {"title": "No memory", "detail": "It was killed."}}
        return {
            "kind": "convert",
            "status": found,
            "progress": None,
            "waiting_for": "It waits.",
            "attempts": [failed],
        }

    made = Service(MagicMock(), threading.Event(), told.append)
    monkeypatch.setattr(made, "get", get)
    return made, told


def test_a_service_that_is_away_amid_a_job_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    of, told = service(monkeypatch, "queued", AWAY, AWAY, "running", "succeeded")
    assert of.await_status("j1", ("running",))["status"] == "running"
    assert told == ["convert is queued: It waits."]
    assert of.await_status("j1")["status"] == "succeeded"


def test_a_job_that_goes_on_is_told_with_why_and_one_that_has_ended_is_not_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.acceptance.service.JOB_SECONDS", 0)
    with pytest.raises(JobEndedError) as error:
        service(monkeypatch, "queued")[0].await_status("j1")
    assert error.value.problem.code == "not_ended"
    assert error.value.problem.detail == "It waits. An attempt has failed: No memory: It was killed."

    going, ended = service(monkeypatch, "running")[0], service(monkeypatch, "failed")[0]
    for one in (going, ended):
        one.stopping.set()
    with pytest.raises(StoppedError):
        going.await_status("j1")
    assert ended.await_status("j1")["status"] == "failed"
