"""What is told about the whole installation at once."""

from typing import Literal

from service.http.messages import Message
from service.records.health import HealthStatus


class Concern(Message):
    """Something is wrong that needs a person."""

    title: str
    """The title says in short what is the matter."""
    detail: str
    """What happened, in words; empty if the title says it all."""
    remedy: str | None
    """What to do about it; null if nothing else is known than to look."""
    path: str
    """The page about it has this path, at the service's address."""
    severity: Literal["error", "warning"] = "warning"
    """An `error` keeps work from being done; a `warning` may come to that."""


class Overview(Message):
    """Sums over all tables as of their last polls, and what needs attention."""

    version: str
    """The service has this version."""
    paused: bool
    """While true, no job of any table starts."""
    tables: dict[HealthStatus, int]
    """So many enrolled tables have each health."""
    pending_equality_deletes: int
    """The live equality delete files of all tables have so many rows."""
    pending_equality_delete_files: int
    """So many equality delete files are live."""
    lag_seconds: float
    """Age of the oldest live equality delete file; 0 when there is none."""
    staged_rows: int
    """Rows and row-level deletes of staging branches that are not published."""
    running_jobs: int
    """So many jobs run."""
    queued_jobs: int
    """So many jobs wait."""
    alive_workers: int
    """So many workers were heard of lately, and can run jobs."""
    concerns: list[Concern]
    """What needs attention, the gravest first; none if all is well."""
