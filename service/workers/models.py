"""What workers say of themselves, and what is told about them."""

from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict
from pydantic import Field as ModelField

from service.http.messages import Message, example
from service.jobs.contract import AttemptId
from service.records.reports import Name


class WorkerRequest(Message):
    """A worker process that just started."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {"name": "worker-1", "hostname": "node-7", "pid": 4711, "version": "0.1.0"},
        )
    )

    name: str = ModelField(min_length=1, max_length=200)
    """For people."""
    hostname: str = ModelField(max_length=1000)
    """Where it runs."""
    pid: Annotated[int, ModelField(ge=0, le=2**31 - 1)]
    """Its process there."""
    version: Name
    """Of its software."""
    problem: str | None = ModelField(default=None, max_length=10_000)
    """Why it can't run jobs, and ends; null if it can."""


class WorkerView(Message):
    """A worker process."""

    id: str
    """Of this process: a restart gets another one."""
    name: str
    """For people."""
    hostname: str
    """Where it runs."""
    pid: int
    """Its process there."""
    version: str
    """Of its software."""
    problem: str | None
    """Why it could not run jobs, in words; null if it can."""
    registered_at: datetime
    """When it started."""
    last_seen_at: datetime
    """When it was heard of last."""
    alive: bool
    """Whether it was heard of within two leases, and can run jobs."""
    job_id: str | None
    """What it runs now."""


class ClaimRequest(Message):
    """A worker that is free, or ends."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {"wait_seconds": 20},
        )
    )

    wait_seconds: float = ModelField(default=20, ge=0, le=60, strict=True)
    """How long to wait for a job if there is none."""
    given_up: list[AttemptId] = ModelField(default_factory=list, max_length=1000)
    """Attempts that the worker ran and could not report; others are ignored."""
    is_stopping: bool = ModelField(default=False, strict=True)
    """The worker ends: it takes no job, and what it was given and does not run is handed back."""
