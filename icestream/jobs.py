"""A job of the service: asked for, followed, waited for and cancelled."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final
from uuid import uuid4

from icestream.connection import Connection, Json, json_of
from icestream.errors import IcestreamError, NotFoundError, UnreachableError

ENDS: Final = ("succeeded", "failed", "cancelled")
"""What the status of a job is for good."""
_SLOWER: Final = 1.2
"""Each pause than the one before: an answer comes a fifth of the job's time late at most."""
_PAGE_EVENTS: Final = 100
"""Looked at each time: an event may appear after others of higher ids, since transactions take their time."""

OnEvent = Callable[[Json], None]


class JobFailedError(IcestreamError):
    """The job has failed or was cancelled. code, title: what happened, for programs and in words. job_id: the
    job, which tells more."""

    def __init__(self, job_id: str, status: str, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("detail") or f"The job was {status}."), str(error.get("remedy", "")))
        self.job_id = job_id
        self.code = str(error.get("code") or status)
        self.title = str(error.get("title") or f"The job was {status}")


class Job:
    """A job that was asked for; all that it is asked for raises IcestreamError."""

    def __init__(self, connection: Connection, job_id: str) -> None:
        self.id = job_id
        self._connection = connection
        self._told: set[int] = set()

    def view(self) -> Json:
        """The job as the API shows it: its `status`, `progress`, `result`, `error`, and `ended_at`."""
        found: Json = json_of(self._connection.request("GET", f"/api/v1/jobs/{self.id}"))
        return found

    def new_events(self) -> list[Json]:
        """What has happened to it and was not told before, oldest first, such as progress, decisions and
        lines of its log; `message` has it in words, `level` is `info`, `warning` or `error`."""
        found = self._untold()
        self._told |= {event["id"] for event in found}
        return found

    def _untold(self) -> list[Json]:
        """By their ids: the service's clock may be set back."""
        found: list[Json] = []
        query = {"sort": "-id", "limit": _PAGE_EVENTS}
        while True:
            page = json_of(self._connection.request("GET", f"/api/v1/jobs/{self.id}/events", params=query))
            untold = [event for event in page["items"] if event["id"] not in self._told]
            found += untold
            if len(untold) < len(page["items"]) or page["next_cursor"] is None:
                return found[::-1]
            query = {**query, "cursor": page["next_cursor"]}

    def cancel(self) -> Json:
        """Asks it to stop: at once if it is queued, else at its worker's next heartbeat. Raises
        ConflictError for one that has ended otherwise."""
        found: Json = json_of(self._connection.request("POST", f"/api/v1/jobs/{self.id}/cancel"))
        return found

    def wait(self, wait_seconds: float = 600, on_event: OnEvent | None = None) -> Json:
        """Waits until it has ended, and returns it as `view` does. on_event: is told `new_events`.

        A service that is away meanwhile is waited for. Raises JobFailedError, and TimeoutError for a job that
        goes on after `wait_seconds`.
        """

        def look() -> Json:
            view = self.view()
            if on_event is not None:  # after the view: who is told of the end has been told of all before it
                for event in self._untold():
                    on_event(event)
                    self._told.add(event["id"])
            return view

        view = wait_until_ended(look, wait_seconds, f"Job {self.id}", longest_pause_seconds=1.0)
        if view["status"] != "succeeded":
            raise JobFailedError(self.id, view["status"], view["error"] or {})
        return view


def request_job(connection: Connection, path: str, body: Json, key: str | None) -> Job:
    """Asks for a job, once however often it has to be sent; with a key, once for each request with that."""
    of_request = json.dumps([str(uuid4()) if key is None else key, path, body])
    named = hashlib.sha256(of_request.encode()).hexdigest()
    number = 1
    while True:
        headers = {"Idempotency-Key": f"{named}-{number}"}
        answer = connection.request("POST", path, json=body, headers=headers)
        job = Job(connection, str(json_of(answer)["id"]))
        is_new = "Idempotency-Replayed" not in answer.headers
        if is_new or not _is_nothing(job):
            return job
        number += 1


def _is_nothing(job: Job) -> bool:
    """Whether what an earlier call asked for has come to nothing, or is not known any more."""
    try:
        return job.view()["status"] in ("failed", "cancelled")
    except NotFoundError:
        return True


def wait_until_ended(
    look: Callable[[], Json],
    wait_seconds: float,
    named: str,
    *,
    before: Collection[str] = (),
    first_pause_seconds: float = 0.05,
    longest_pause_seconds: float,
) -> Json:
    """What `look` shows once its `status` is one of an end, or of `before`. Raises TimeoutError.

    UnreachableError is raised where nothing was seen before, or at the end.
    """
    give_up_at = time.monotonic() + wait_seconds
    pause_seconds = first_pause_seconds
    view: Json | None = None
    while True:
        try:
            view = look()
        except UnreachableError:
            if view is None or time.monotonic() > give_up_at:
                raise
        else:
            if view["status"] in (*before, *ENDS):
                return view
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"{named} has not ended in {wait_seconds:g} s; it goes on.")
        time.sleep(pause_seconds)
        pause_seconds = min(_SLOWER * pause_seconds, longest_pause_seconds)
