"""What a table's policy makes of it in the time to come, and what another would have made of it."""

from datetime import datetime

from pydantic import ConfigDict

from service.http.messages import ClosedMessage, Message, example
from service.policies.settings import PolicySettings
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


class ReplayRequest(ClosedMessage):
    """This asks what other settings would have made of a table in the last seven days."""

    model_config = ConfigDict(
        json_schema_extra=example({"settings": {"convert": {"age_seconds": 3600}}, "policy": None}),
    )

    settings: PolicySettings
    """These are tried: all settings of the policy, as a change of it would have them."""
    policy: str | None = None
    """The settings are those of this policy, by name or id, which holds for the table or something above it;
    null: of one that is attached to the table itself."""


class ReplayedJobs(Message):
    """These are the jobs of one kind."""

    kind: JobKind
    """The jobs are of this kind."""
    jobs: int
    """This many succeeded."""
    seconds: float
    """They ran for this long, all together."""
    bytes_written: int
    """This many bytes were written by them, into the table or its index."""


class ReadSeconds(Message):
    """This is what a full read costs at a moment."""

    at: datetime
    """The read begins at this time."""
    seconds: float
    """It takes this many seconds of Spark's processor time."""
    fresh_seconds: float
    """It would take this many, had the table just been rewritten."""


class ReplayedInterval(Message):
    """This is how the table did in a part of the time; all parts are of the same length."""

    begins_at: datetime
    """The interval begins at this time, and ends where the next one begins."""
    pending_equality_deletes: int
    """This many equality deletes were pending in it at most."""
    lag_seconds: float
    """The oldest one was this old at most."""
    jobs: int
    """This many jobs ended in it, of all kinds."""


class ReplayedOutcome(Message):
    """This is what came of a table in a span of time, or would have."""

    jobs: list[ReplayedJobs]
    """These jobs ran, by kind."""
    lag_seconds_median: float
    """Half of the time, the oldest equality delete was younger than this."""
    lag_seconds_max: float
    """At most, it was this old."""
    bytes_written: int
    """This many bytes were written by jobs, all together."""
    write_amplification: float | None
    """This is how many bytes were written for each that is a writer's, these included; null without any."""
    delete_files_written: int
    """This many deletion vectors and position delete files were written by conversions."""
    delete_files_rewritten: int
    """This many of these took the place of one that their data file had."""
    read_seconds: float | None
    """A full read takes this many seconds of Spark's processor time, on average over time."""
    read_ratio: float | None
    """This is how many times as long it takes as it would, had the table just been rewritten."""
    reads: list[ReadSeconds]
    """This is what a full read costs over time, at a hundred moments at most."""
    intervals: list[ReplayedInterval]
    """This is how the table did over time, in 84 intervals at most: of seven days, each is two hours long."""


class PolicyReplay(Message):
    """This is what a table saw in the last seven days, under other settings, beside what really happened."""

    table_id: str
    """The id of the table that is looked at."""
    from_time: datetime
    """The replay begins at this time, which is seven days ago unless less is known or more has happened."""
    until_time: datetime
    """The replay ends at this time."""
    happened: ReplayedOutcome
    """This is what really happened."""
    present: ReplayedOutcome
    """This is what the replay says of the present policy: how far it is off shows how much it can tell."""
    edited: ReplayedOutcome
    """This is what the replay says of the settings that are tried."""
    off: dict[str, float]
    """This is how many times as much the replay says of the present policy, for each figure, as it really
    was; what was 0 is left out."""
    estimated_from: list[str]
    """The sentences say what all of this is estimated from."""
