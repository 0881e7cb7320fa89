"""Jobs, their attempts, and the append-only events about them."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict
from pydantic import Field as ModelField
from sqlalchemy import BigInteger, Index, text
from sqlmodel import Field, SQLModel

from service.database import BigId, Json, UtcDateTime, new_id, utc_now
from service.errors import Problem
from service.jobs.status import AttemptStatus, JobKind, JobStatus
from service.policies.models import EffectivePolicy
from service.workers.models import (
    AssignedCatalog,
    AssignedIndex,
    AssignedJob,
    AssignedTable,
    Leftovers,
    StageReport,
)

_RUNNING_WRITER = text("status = 'running' AND writes")
_NEVER_STARTED = text("status = 'queued' AND attempt = 0")
_MAY_HAVE_LEFT_FILES = text("plans IS NOT NULL")


class Turn(SQLModel, table=True):
    """When a table was last given a worker: of equal jobs, the one whose turn is longest ago goes first."""

    __tablename__ = "turns"

    table_id: str = Field(foreign_key="tables.id", primary_key=True)
    catalog_id: str = Field(foreign_key="catalogs.id")
    at: datetime = Field(sa_type=UtcDateTime)


class Job(SQLModel, table=True):
    """The two partial unique indexes are the lock service."""

    __tablename__ = "jobs"
    __table_args__ = (
        # At most one running job writes a given Iceberg table's index or snapshots.
        Index(
            "uq_jobs_running_writer",
            "table_uuid",
            unique=True,
            sqlite_where=_RUNNING_WRITER,
            postgresql_where=_RUNNING_WRITER,
        ),
        # At most one of a kind waits for its first attempt; one that is tried again may wait beside it.
        Index(
            "uq_jobs_queued_kind",
            "table_id",
            "kind",
            "dry_run",
            unique=True,
            sqlite_where=_NEVER_STARTED,
            postgresql_where=_NEVER_STARTED,
        ),
        Index("ix_jobs_status_available_at", "status", "available_at"),
        Index("ix_jobs_table_id_created_at", "table_id", "created_at"),
        Index("ix_jobs_created_at_id", "created_at", "id"),
        Index("ix_jobs_ended_at", "ended_at"),
    )

    id: str = Field(default_factory=new_id, primary_key=True)
    table_id: str = Field(foreign_key="tables.id")
    table_uuid: str
    kind: str
    dry_run: bool = False
    writes: bool
    """Whether it changes the table or its index: only such jobs exclude each other."""
    parameters: dict[str, Any] = Field(default_factory=dict, sa_type=Json)
    trigger: str
    """`request`, or the sentence of the policy trigger that made it."""
    requested_by: str
    status: str = JobStatus.QUEUED.value
    created_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    available_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    """Not claimed before: later than created_at while it backs off or is held."""
    held_because: str | None = None
    """Why a job that nobody requested waits for available_at."""
    run_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    """What the request asked for: available_at until the first attempt, whatever the clock does."""
    priority: int = 0
    """Of waiting jobs, those of the highest run first."""
    started_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    ended_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    attempt: int = 0
    """Number of the latest attempt, the fencing token; 0 before the first."""
    failures: int = 0
    """Attempts that were used up; handing back does not count."""
    max_attempts: int
    backoff_seconds: float
    max_backoff_seconds: float
    lease_expires_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    """For people; that it is over is decided by `renewals` (service.jobs.leases)."""
    renewals: int = 0
    """Heartbeats of all attempts: what an observer sees change, whatever the clock does."""
    cancel_requested_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    retry_of: str | None = None
    policy_digest: str = ""
    """Of the effective policy when it was queued: failures under another policy hold nothing up."""
    seen_snapshot_id: int | None = Field(default=None, sa_type=BigInteger)
    """Head of the branch as the job left it: what it found holds as long as that stays."""
    progress: dict[str, Any] | None = Field(default=None, sa_type=Json)
    result: dict[str, Any] | None = Field(default=None, sa_type=Json)
    error: dict[str, Any] | None = Field(default=None, sa_type=Json)


class Attempt(SQLModel, table=True):
    __tablename__ = "attempts"
    __table_args__ = (
        Index(
            "ix_attempts_plans",
            "job_id",
            sqlite_where=_MAY_HAVE_LEFT_FILES,
            postgresql_where=_MAY_HAVE_LEFT_FILES,
        ),
        Index("ix_attempts_ended_at", "ended_at"),
    )

    job_id: str = Field(foreign_key="jobs.id", primary_key=True)
    attempt: int = Field(primary_key=True)
    worker_id: str = Field(foreign_key="workers.id", index=True)
    worker_name: str
    status: str = AttemptStatus.RUNNING.value
    started_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    ended_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    lease_expires_at: datetime = Field(sa_type=UtcDateTime)
    error: dict[str, Any] | None = Field(default=None, sa_type=Json)
    seconds: float = 0
    """How long it ran, once it has ended."""
    stages: list[dict[str, Any]] = Field(default_factory=list, sa_type=Json)
    """What its worker measured (StageReport)."""
    rows: int = Field(default=0, sa_type=BigInteger)
    bytes: int = Field(default=0, sa_type=BigInteger)
    plans: list[dict[str, Any]] | None = Field(default=None, sa_type=Json)
    """What it announced (AnnouncedPlan), until it succeeded or a later job has removed what it left."""


SCHEDULER = "scheduler"
"""Who requests the jobs that policies start."""
REQUEST = "request"
"""The trigger of jobs that somebody asked for."""


class Event(SQLModel, table=True):
    """Something that happened to a job or a table; never changed, and deleted with its job only."""

    __tablename__ = "events"
    __table_args__ = (
        Index("ix_events_job_id_id", "job_id", "id"),
        Index("ix_events_table_id_id", "table_id", "id"),
        {"sqlite_autoincrement": True},
    )

    id: int | None = Field(default=None, primary_key=True, sa_type=BigId)
    at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    kind: str
    """Such as `job.queued`, `job.progress`, `decision.skip`."""
    level: str = "info"
    message: str
    table_id: str | None = Field(default=None, foreign_key="tables.id")
    job_id: str | None = Field(default=None, foreign_key="jobs.id")
    attempt: int | None = None
    fields: dict[str, Any] = Field(default_factory=dict, sa_type=Json)


class Lease(SQLModel, table=True):
    """Held by the one replica that polls and schedules."""

    __tablename__ = "leases"

    name: str = Field(primary_key=True)
    holder: str
    expires_at: datetime = Field(sa_type=UtcDateTime)
    """For people, as is that of a job."""
    renewals: int = 0


class SystemState(SQLModel, table=True):
    """One row."""

    __tablename__ = "system_state"

    id: int = Field(default=1, primary_key=True)
    paused: bool = False


class SystemView(BaseModel):
    paused: bool
    """While true, no job of any table starts."""
    version: str


RequestableKind = Literal["index", "convert", "compact", "rebuild", "verify"]


class JobRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: RequestableKind
    dry_run: bool = False
    """Say what a conversion would do; change nothing. Other kinds have no dry run."""
    parameters: dict[str, Any] = ModelField(default_factory=dict)
    priority: Annotated[int, ModelField(ge=-100, le=100)] | None = None
    """Before or behind other waiting jobs; the policy's if left out."""
    run_at: AwareDatetime | None = None
    """Not before this time; at once if left out."""


class AttemptView(BaseModel):
    attempt: int
    worker_id: str
    worker_name: str
    status: AttemptStatus
    started_at: datetime
    ended_at: datetime | None
    lease_expires_at: datetime
    error: dict[str, Any] | None
    seconds: float
    """How long it ran; 0 while it runs."""
    stages: list[StageReport]
    """Where the time went, as its worker measured it; none of an attempt that was lost."""
    rows: int
    """Planned rows that its tasks went through."""
    bytes: int
    """Read for lookups, scans and compactions, and written into the index."""


class JobView(BaseModel):
    id: str
    kind: JobKind
    dry_run: bool
    table_id: str
    table: str
    """Dotted name."""
    catalog: str
    branch: str
    status: JobStatus
    parameters: dict[str, Any]
    trigger: str
    """`request`, or the sentence of the policy trigger that made it."""
    requested_by: str
    created_at: datetime
    available_at: datetime
    run_at: datetime | None
    priority: int
    """Of waiting jobs, those of the highest run first; the policy's unless the request names one."""
    started_at: datetime | None
    ended_at: datetime | None
    waiting_for: str | None
    """Why a queued job does not run yet, in words."""
    cancel_requested: bool
    retry_of: str | None
    max_attempts: int
    attempts: list[AttemptView]
    progress: dict[str, Any] | None
    result: dict[str, Any] | None
    error: dict[str, Any] | None


class BulkRequest(BaseModel):
    """One action on many jobs; each is done or refused for itself."""

    model_config = ConfigDict(extra="forbid")

    action: Literal["cancel", "retry"]
    job_ids: Annotated[list[str], ModelField(min_length=1, max_length=100)]


class BulkItem(BaseModel):
    job_id: str
    job: JobView | None
    """As it is after the action, or the new job of a retry; null if it was refused."""
    problem: Problem | None
    """Why it was refused."""


class BulkResult(BaseModel):
    done: int
    refused: int
    items: list[BulkItem]
    """In the order of the request."""


EventLevel = Literal["info", "warning", "error"]


class EventView(BaseModel):
    id: int
    at: datetime
    kind: str
    level: EventLevel
    message: str
    table_id: str | None
    job_id: str | None
    attempt: int | None
    fields: dict[str, Any]


class PlannedJob(BaseModel):
    kind: JobKind
    starts_at: datetime | None
    """When one would start by itself first; null if none would."""
    why: str | None
    now: str
    """What the scheduler decides at this moment."""
    cron_at: list[datetime]
    """When the policy's cron expression comes; a job starts if there is anything to do by then."""


class PolicyPreview(BaseModel):
    """What a table's policy makes of it within the next day, if nothing is written to the table meanwhile."""

    table_id: str
    from_time: datetime
    until_time: datetime
    time_zone: str
    """Of the policy; times here are UTC."""
    windows_open_at: list[datetime]
    """When windows open; none without windows."""
    jobs: list[PlannedJob]


class Assignment(BaseModel):
    """All that a worker needs for one attempt."""

    job: AssignedJob
    attempt: int
    previous_attempts: list[AttemptView]
    leftovers: list[Leftovers]
    """Of earlier attempts at jobs of the table; only for jobs that may remove them."""
    lease_seconds: float
    lease_expires_at: datetime
    table: AssignedTable
    catalog: AssignedCatalog
    index: AssignedIndex
    policy: EffectivePolicy
    allowed_locations: list[str]
    """Places beyond which the worker opens no file, whatever catalog and table name."""
