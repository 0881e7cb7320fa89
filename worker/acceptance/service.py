"""The service, as any client sees it: tables are enrolled, jobs requested and waited for, over HTTP alone."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx

from icestream.connection import Connection, Json, json_of
from icestream.jobs import ENDS, wait_until_ended
from worker.acceptance.report import JobFigures, Problem

JOB_SECONDS = 600.0
"""In which a job must have ended: it may have to wait for a worker, and for another attempt."""
_ID = re.compile(r"(?<=/catalogs)/[^/]+|/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LONGEST_PAUSE_SECONDS = 1.0
"""Also before a stop is noticed."""


class StoppedError(Exception):
    """Somebody has asked the run to stop: what it made is removed, and nothing else is tried."""


class JobEndedError(Exception):
    """A job has failed, was cancelled, or goes on for too long."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


class Service:
    """jobs: those that ended since somebody last emptied the list, for the report. requests: by their methods
    and paths, with {id} for what differs in these."""

    def __init__(
        self, connection: Connection, stopping: threading.Event, watch: Callable[[str], None] = lambda _: None
    ) -> None:
        """stopping: ends what waits. watch: is told how far a job has come."""
        self._connection, self.stopping, self._watch = connection, stopping, watch
        self.jobs: list[JobFigures] = []
        self.requests: Counter[str] = Counter()
        connection.http.event_hooks["request"].append(self._count)

    def _count(self, request: httpx.Request) -> None:
        path = _ID.sub("/{id}", request.url.path.removeprefix("/api/v1"))
        self.requests[f"{request.method} {path}"] += 1

    @property
    def url(self) -> str:
        return str(self._connection.http.base_url).rstrip("/")

    # calls

    def get(self, path: str, **query: Any) -> Json:
        found: Json = json_of(self._connection.request("GET", f"/api/v1{path}", params=query))
        return found

    def items(self, path: str, **query: Any) -> list[Json]:
        found: list[Json] = self._connection.read_list(f"/api/v1{path}", query)["items"]
        return found

    def post(self, path: str, body: Json | None = None) -> Json:
        """Once, however often it has to be sent."""
        headers = {"Idempotency-Key": str(uuid4())}
        answer = self._connection.request("POST", f"/api/v1{path}", json=body, headers=headers)
        found: Json = json_of(answer) or {}
        return found

    def delete(self, path: str, **query: Any) -> Json | None:
        found: Json | None = json_of(self._connection.request("DELETE", f"/api/v1{path}", params=query))
        return found

    def patch(self, path: str, body: Json) -> Json:
        version = self._connection.request("GET", f"/api/v1{path}").headers["ETag"]
        answer = self._connection.request(
            "PATCH", f"/api/v1{path}", json=body, headers={"If-Match": version}, params={"leave_staged": True}
        )
        found: Json = json_of(answer)
        return found

    def catalog(self, name: str) -> Json:
        return self.get(f"/catalogs/{quote(name, safe='')}")

    def now(self) -> datetime:
        """By the clock of the service, which starts jobs; by this one's if its answers bear no date."""
        told = self._connection.request("GET", "/api/v1/me").headers.get("Date")
        return datetime.now(UTC) if told is None else parsedate_to_datetime(told)

    # jobs

    def request(self, table_id: str, kind: str, *, dry_run: bool = False, **parameters: Any) -> Json:
        body = {"kind": kind, "dry_run": dry_run, "parameters": parameters}
        return self.post(f"/tables/{table_id}/jobs", body)

    def run(self, table_id: str, kind: str, *, dry_run: bool = False, **parameters: Any) -> Json:
        """The result of a job. Raises JobEndedError, StoppedError, and IcestreamError."""
        return self.result_of(self.request(table_id, kind, dry_run=dry_run, **parameters))

    def result_of(self, job: Json) -> Json:
        """Of a job that was requested, once it has ended. Raises as `run`."""
        job = self.ended(job["id"])
        if job["status"] != "succeeded":
            raise JobEndedError(problem_of(job))
        return dict(job["result"] or {})

    def ended(self, job_id: str) -> Json:
        """A job, once it has ended, however it did. Raises JobEndedError if it goes on, and StoppedError."""
        job = self.await_status(job_id)
        self.jobs.append(_figures(job))
        return job

    def is_running(self, job: Json) -> bool:
        """By now."""
        return bool(self.get(f"/jobs/{job['id']}")["status"] == "running")

    def await_status(self, job_id: str, statuses: tuple[str, ...] = ()) -> Json:
        """A job as soon as it has one of these, or has ended.

        Raises JobEndedError if it goes on, StoppedError, and IcestreamError.
        """
        job: Json = {}

        def look() -> Json:
            nonlocal job
            job = self.get(f"/jobs/{job_id}")
            if job["status"] not in (*statuses, *ENDS):
                self._watch(_words(job))
                if self.stopping.is_set():
                    raise StoppedError
            return job

        try:
            return wait_until_ended(
                look, JOB_SECONDS, "The job", before=statuses, longest_pause_seconds=_LONGEST_PAUSE_SECONDS
            )
        except TimeoutError:
            raise JobEndedError(_not_ended(job)) from None


def problem_of(job: Json) -> Problem:
    error = job["error"] or {}
    return Problem(
        str(error.get("code", job["status"])),
        str(error.get("title", f"The job was {job['status']}")),
        str(error.get("detail", f"Job {job['id']} ({job['kind']}).")),
        str(error.get("remedy", "")),
    )


def _not_ended(job: Json) -> Problem:
    """Also why an attempt has failed, if one has: the job may wait for the next one."""
    failed = [one["error"] for one in job["attempts"] if one["error"]]
    said = [str(job["waiting_for"] or f"It is {job['status']}.")]
    said += [f"An attempt has failed: {failed[-1]['title']}: {failed[-1]['detail']}"] if failed else []
    return Problem(
        "not_ended",
        f"The job has not ended in {JOB_SECONDS:.0f} s",
        " ".join(said),
        "Look at the job and at the workers: `icestream status`.",
    )


def _words(job: Json) -> str:
    stage = (job["progress"] or {}).get("stage")
    said = job["waiting_for"] if job["status"] == "queued" else stage
    return f"{job['kind']} is {job['status']}" + (f": {said}" if said else "")


def _figures(job: Json) -> JobFigures:
    attempts = job["attempts"]
    created, started, ended = (_seconds(job[name]) for name in ("created_at", "started_at", "ended_at"))
    return JobFigures(
        id=job["id"],
        kind=job["kind"],
        dry_run=job["dry_run"],
        status=job["status"],
        attempts=len(attempts),
        waited_seconds=round(max((started or ended or created) - created, 0), 3),
        ran_seconds=round(sum(one["seconds"] for one in attempts), 3),
        rows=sum(one["rows"] for one in attempts),
        bytes=sum(one["bytes"] for one in attempts),
        stages=attempts[-1]["stages"] if attempts else [],
    )


def _seconds(moment: str | None) -> float:
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0
