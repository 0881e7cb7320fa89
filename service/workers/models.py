"""What workers say of themselves, and what is told about them."""

from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict
from pydantic import Field as ModelField

from service.http.messages import Message, example
from service.jobs.contract import AttemptId
from service.records.reports import Name


class WorkerRequest(Message):
    """This is a worker process that has just started."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {"name": "worker-1", "hostname": "node-7", "pid": 4711, "version": "0.1.0"},
        )
    )

    name: str = ModelField(min_length=1, max_length=200)
    """People know the worker by its name."""
    hostname: str = ModelField(max_length=1000)
    """The worker is on this host."""
    pid: Annotated[int, ModelField(ge=0, le=2**31 - 1)]
    """The worker has this process id on its host."""
    version: Name
    """The worker's software has this version."""
    problem: str | None = ModelField(default=None, max_length=10_000)
    """The worker can't run jobs, and ends, for this reason; null if it can."""


class WorkerView(Message):
    """This is a worker process that has registered."""

    id: str
    """The id is of this process: a restart gets another one."""
    name: str
    """People know the worker by its name."""
    hostname: str
    """The worker is on this host."""
    pid: int
    """The worker has this process id on its host."""
    version: str
    """The worker's software has this version."""
    problem: str | None
    """The worker could not run jobs for this reason, in words; null if it can."""
    registered_at: datetime
    """The worker registered at this time."""
    last_seen_at: datetime
    """The worker last called the service at this time."""
    alive: bool
    """The worker was heard of within two leases, and can run jobs, if this is true."""
    job_id: str | None
    """The worker works on the job of this id now; null if it runs none."""


class ClaimRequest(Message):
    """A worker that is free, or ends."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {"wait_seconds": 20},
        )
    )

    wait_seconds: float = ModelField(default=20, ge=0, le=60)
    """The call waits this many seconds for a job if there is none."""
    given_up: list[AttemptId] = ModelField(default_factory=list, max_length=1000)
    """These are attempts that the worker ran and could not report; others are ignored."""
    is_stopping: bool = False
    """The worker ends: it takes no job, and what it was given and does not run is handed back."""
