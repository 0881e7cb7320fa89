"""A job of the service: asked for, followed, waited for and cancelled."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import uuid4

from icestream.connection import Connection, Json, json_of
from icestream.errors import IcestreamError

_ENDS: Final = ("succeeded", "failed", "cancelled")
_SLOWER: Final = 1.2
"""Each pause than the one before: an answer comes a fifth of the job's time late at most."""
_OVERLAP: Final = timedelta(minutes=1)
"""An event may come after one of a later time: replicas' clocks differ, and transactions take their time."""

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
        self._told: dict[int, datetime] = {}

    def view(self) -> Json:
        """The job as the API shows it: its `status`, `progress`, `result`, `error`, and `ended_at`."""
        found: Json = json_of(self._connection.request("GET", f"/api/v1/jobs/{self.id}"))
        return found

    def new_events(self) -> list[Json]:
        """What has happened to it and was not told before, oldest first, such as progress, decisions and
        lines of its log; `message` has it in words, `level` is `info`, `warning` or `error`."""
        since = max(self._told.values()) - _OVERLAP if self._told else None
        query = {} if since is None else {"since": since.isoformat()}
        listed = self._connection.read_list(f"/api/v1/jobs/{self.id}/events", query)["items"]
        found = [event for event in listed if event["id"] not in self._told]
        if since is not None:
            self._told = {known: at for known, at in self._told.items() if at >= since}
        self._told |= {event["id"]: datetime.fromisoformat(event["at"]) for event in found}
        return found

    def cancel(self) -> Json:
        """Asks it to stop: at once if it is queued, else at its worker's next heartbeat. Raises
        ConflictError for one that has ended otherwise."""
        found: Json = json_of(self._connection.request("POST", f"/api/v1/jobs/{self.id}/cancel"))
        return found

    def wait(self, wait_seconds: float = 600, on_event: OnEvent | None = None) -> Json:
        """Waits until it has ended, and returns it as `view` does. on_event: is told `new_events`.

        Raises JobFailedError, and TimeoutError for a job that goes on after `wait_seconds`.
        """

        def look() -> Json:
            view = self.view()
            if on_event is not None:  # after the view: who is told of the end has been told of all before it
                for event in self.new_events():
                    on_event(event)
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
        if is_new or job.view()["status"] not in ("failed", "cancelled"):
            return job
        number += 1  # since what an earlier call asked for has come to nothing


def wait_until_ended(
    look: Callable[[], Json],
    wait_seconds: float,
    named: str,
    *,
    first_pause_seconds: float = 0.05,
    longest_pause_seconds: float,
) -> Json:
    """What `look` shows once its `status` is one of an end. Raises TimeoutError."""
    give_up_at = time.monotonic() + wait_seconds
    pause_seconds = first_pause_seconds
    while (view := look())["status"] not in _ENDS:
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"{named} has not ended in {wait_seconds:g} s; it goes on.")
        time.sleep(pause_seconds)
        pause_seconds = min(_SLOWER * pause_seconds, longest_pause_seconds)
    return view
