"""What a table's policy makes of it in the time to come, and what another would have made of it."""

from datetime import datetime

from pydantic import ConfigDict

from service.http.messages import ClosedMessage, Message, example
from service.policies.settings import PolicySettings
from service.records.jobs import JobKind


class PlannedJob(Message):
    """This says when jobs of a kind will start."""

    kind: JobKind
    """The plan is for jobs of this kind."""
    starts_at: datetime | None
    """A job would start next at this time, by itself or because it is queued already; null if none would."""
    why: str | None
    """The job starts by this trigger; or this is the queued job and what that waits for, or the job that runs
    before it; null if none would start."""
    then_at: list[datetime]
    """Up to 288 more jobs would start at these times, if each succeeds and leaves nothing to do, and nothing
    is written."""
    now: str
    """The scheduler has decided this at this moment, in words."""
    cron_at: list[datetime]
    """The policy's cron expression comes at these times; a job starts if there is anything to do by then."""


class PolicyPreview(Message):
    """This is what a table's policy makes of it within the next day, if nothing is written to the table
    meanwhile."""

    table_id: str
    """The table is enrolled under this id."""
    from_time: datetime
    """The preview begins at this time, which is now."""
    until_time: datetime
    """The preview ends at this time, which is a day later."""
    time_zone: str
    """The policy has this time zone; times here are UTC."""
    windows_open_at: list[datetime]
    """Windows open at these times; none without windows."""
    jobs: list[PlannedJob]
    """The preview has one plan for each kind of job that policies start."""


class ReplayRequest(ClosedMessage):
    """This asks what other settings would have made of a table in the last seven days."""

    model_config = ConfigDict(
        json_schema_extra=example({"settings": {"convert": {"age_seconds": 3600}}, "policy": None}),
    )

    settings: PolicySettings
    """The replay tries these settings: all those of the policy, as a change of it would have them."""
    policy: str | None = None
    """The settings are those of this policy, by name or id, which holds for the table or something above it;
    null: of one that is attached to the table itself."""


class ReplayedJobs(Message):
    """These are the jobs of one kind."""

    kind: JobKind
    """The jobs are of this kind."""
    jobs: int
    """This many jobs of the kind succeeded."""
    seconds: float
    """The jobs ran for this many seconds, all together."""
    bytes_written: int
    """The jobs wrote this many bytes into the table or its index."""


class ReadSeconds(Message):
    """This is what a full read costs at a moment."""

    at: datetime
    """The read begins at this time."""
    seconds: float
    """The read takes this many seconds of Spark's processor time."""
    fresh_seconds: float
    """The read would take this many seconds of Spark's processor time, had the table just been rewritten."""


class ReplayedInterval(Message):
    """This is how the table did in a part of the time; all parts are of the same length."""

    begins_at: datetime
    """The interval begins at this time, and ends where the next one begins."""
    pending_equality_deletes: int
    """The table had this many pending equality deletes in the interval at most."""
    lag_seconds: float
    """The oldest pending equality delete was this many seconds old in the interval at most."""
    jobs: int
    """This many jobs of all kinds ended in the interval."""


class ReplayedOutcome(Message):
    """This is what came of a table in a span of time, or would have."""

    jobs: list[ReplayedJobs]
    """The span had these jobs, by kind."""
    lag_seconds_median: float
    """The oldest pending equality delete was younger than this many seconds half of the time."""
    lag_seconds_max: float
    """The oldest pending equality delete was this many seconds old at most."""
    bytes_written: int
    """This many bytes were written by jobs, all together."""
    write_amplification: float | None
    """The writer and the jobs wrote this many bytes for each byte of the writer's; null if it wrote none."""
    delete_files_written: int
    """This many deletion vectors and position delete files were written by conversions."""
    delete_files_rewritten: int
    """This many of these delete files took the place of one that their data file had."""
    read_seconds: float | None
    """A full read takes this many seconds of Spark's processor time, on average over time."""
    read_ratio: float | None
    """A full read takes this many times as long as it would, had the table just been rewritten."""
    reads: list[ReadSeconds]
    """This is what a full read costs over time, at a hundred moments at most."""
    intervals: list[ReplayedInterval]
    """This is how the table did over time, in 84 intervals at most: of seven days, each is two hours long."""


class PolicyReplay(Message):
    """This is what a table saw in the last seven days, under other settings, beside what really happened."""

    table_id: str
    """The table is enrolled under this id."""
    from_time: datetime
    """The replay begins at this time, which is seven days ago unless less is known or more has happened."""
    until_time: datetime
    """The replay ends at this time."""
    happened: ReplayedOutcome
    """The span really came to this."""
    present: ReplayedOutcome
    """The replay says this of the present policy: how far it is off shows how much it can tell."""
    edited: ReplayedOutcome
    """The replay says this of the settings that are tried."""
    off: dict[str, float]
    """The replay says this many times as much of the present policy, for each figure, as it really was; what
    was 0 is left out."""
    estimated_from: list[str]
    """The sentences say what all of this is estimated from."""
