"""Jobs of an acceptance are waited for: through a service that is away, until they end or somebody stops."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest

from icestream.connection import Connection
from icestream.errors import UnreachableError
from tests.http_server import Answer, Answers, answering
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


def test_requests_are_counted_by_kind_and_not_by_id() -> None:
    table = "3f1f9d5e-6f0c-4bb1-9d55-6e2b9a8a1111"
    answers: Answers = {
        "/api/v1/me": Answer({}),
        "/api/v1/catalogs/lake": Answer({}),
        f"/api/v1/tables/{table}/jobs": Answer({"id": "j1"}, 201),
    }
    with answering(answers) as server, Connection(server.url, "key") as connection:
        of = Service(connection, threading.Event())
        of.get("/me")
        of.catalog("lake")
        for _ in range(2):
            of.request(table, "convert")
    assert of.requests == {"GET /me": 1, "GET /catalogs/{id}": 1, "POST /tables/{id}/jobs": 2}
