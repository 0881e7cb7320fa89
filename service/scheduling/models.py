"""What a table's policy makes of it in the time to come."""

from datetime import datetime

from service.http.messages import Message
from service.records.jobs import JobKind


class PlannedJob(Message):
    """This says when jobs of a kind will start."""

    kind: JobKind
    """Jobs of this kind are planned."""
    starts_at: datetime | None
    """One would start next at this time, by itself or because it is queued already; null if none would."""
    why: str | None
    """This trigger starts it; or it is the queued job and what that waits for, or the job that runs before
    it; null if none would start."""
    then_at: list[datetime]
    """Up to 288 more would start at these times, if each succeeds and leaves nothing to do, and nothing is
    written."""
    now: str
    """The scheduler has decided this at this moment."""
    cron_at: list[datetime]
    """The policy's cron expression comes at these times; a job starts if there is anything to do by then."""


class PolicyPreview(Message):
    """This is what a table's policy makes of it within the next day, if nothing is written to the table
    meanwhile."""

    table_id: str
    """The id of the table that is looked at."""
    from_time: datetime
    """The preview begins at this time, which is now."""
    until_time: datetime
    """The preview ends at this time, which is a day later."""
    time_zone: str
    """The policy has this time zone; times here are UTC."""
    windows_open_at: list[datetime]
    """Windows open at these times; none without windows."""
    jobs: list[PlannedJob]
    """There is one for each kind of job that policies start."""
