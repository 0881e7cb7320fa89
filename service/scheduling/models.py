"""What a table's policy makes of it in the time to come."""

from datetime import datetime

from service.http.messages import Message
from service.records.jobs import JobKind


class PlannedJob(Message):
    """When jobs of a kind will start."""

    kind: JobKind
    """The kind of job that is planned."""
    starts_at: datetime | None
    """When one would start next, by itself or because it is queued already; null if none would."""
    why: str | None
    """The trigger that starts it, the queued job and what it waits for, or the job that runs before it; null
    if none would start."""
    then_at: list[datetime]
    """When up to 288 more would start, if each succeeds and leaves nothing to do, and nothing is written."""
    now: str
    """What the scheduler has decided at this moment."""
    cron_at: list[datetime]
    """When the policy's cron expression comes; a job starts if there is anything to do by then."""


class PolicyPreview(Message):
    """What a table's policy makes of it within the next day, if nothing is written to the table meanwhile."""

    table_id: str
    """The id of the table that is looked at."""
    from_time: datetime
    """The time at which the preview begins, which is now."""
    until_time: datetime
    """The time at which the preview ends, which is a day later."""
    time_zone: str
    """The policy has this time zone; times here are UTC."""
    windows_open_at: list[datetime]
    """The times at which windows open are listed; none without windows."""
    jobs: list[PlannedJob]
    """There is one for each kind of job that policies start."""
