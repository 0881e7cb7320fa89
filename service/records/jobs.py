"""Jobs, their attempts, and the append-only events about them."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, Column, Index, desc, text
from sqlmodel import Field, SQLModel

from service.db.database import BigId, Json, UtcDateTime, new_id, utc_now
from service.records.report_columns import ReportedList, ReportedObject
from service.records.reports import StageReport, StoredResult


class JobKind(StrEnum):
    INDEX = "index"
    CONVERT = "convert"
    COMPACT = "compact"
    REBUILD = "rebuild"
    VERIFY = "verify"
    REPORT_DUPLICATES = "report_duplicates"
    UPSERT = "upsert"
    DELETE = "delete"
    PUBLISH = "publish"
    EXPIRE_SNAPSHOTS = "expire_snapshots"
    REWRITE_DATA_FILES = "rewrite_data_files"
    REWRITE_POSITION_DELETE_FILES = "rewrite_position_delete_files"
    REWRITE_MANIFESTS = "rewrite_manifests"
    REMOVE_ORPHAN_FILES = "remove_orphan_files"
    """Never by itself: it deletes what somebody could see in a dry run."""
    ERASE = "erase"
    """Not requested by itself: each belongs to an erasure."""
    DROP_INDEX = "drop_index"
    """Not requested by itself: it follows the removal of its table."""

    @property
    def words(self) -> str:
        """As sentences and headings have it."""
        return self.value.replace("_", " ")

    def writes(self, *, dry_run: bool) -> bool:
        """Whether such a job needs the table and its index for itself.

        A verification does even if it rebuilds nothing: an index that changes meanwhile would look wrong. So
        does a report of duplicates, which writes beside the index and deletes what earlier ones left there.
        """
        return not (dry_run and self.has_dry_run and self is not JobKind.VERIFY)

    @property
    def writes_rows(self) -> bool:
        """Whether such a job goes by rows or keys that came with its request: no two of them are the same."""
        return self in (JobKind.UPSERT, JobKind.DELETE, JobKind.ERASE)

    @property
    def maintains(self) -> bool:
        """Whether such a job is there for the readers of its table, and not for whoever asked for it."""
        return not self.writes_rows and self not in (JobKind.REPORT_DUPLICATES, JobKind.DROP_INDEX)

    @property
    def is_maintenance(self) -> bool:
        """Whether it calls one of Iceberg's own actions, with parameters that the policy has."""
        return self in (
            JobKind.EXPIRE_SNAPSHOTS,
            JobKind.REWRITE_DATA_FILES,
            JobKind.REWRITE_POSITION_DELETE_FILES,
            JobKind.REWRITE_MANIFESTS,
        )

    @property
    def lets_snapshots_expire(self) -> bool:
        """Whether it may take away those by which other jobs find what they have committed."""
        return self in (JobKind.ERASE, JobKind.EXPIRE_SNAPSHOTS)

    @property
    def persists(self) -> bool:
        """Whether a failure is never the end: nobody would look again at what such a job leaves behind."""
        return self is JobKind.DROP_INDEX

    @property
    def has_dry_run(self) -> bool:
        return self.is_maintenance or self in (
            JobKind.CONVERT,
            JobKind.PUBLISH,
            JobKind.REMOVE_ORPHAN_FILES,
            JobKind.VERIFY,
            JobKind.UPSERT,
            JobKind.DELETE,
        )


class JobStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return not TRANSITIONS[self]

    @property
    def is_cancelable(self) -> bool:
        return JobStatus.CANCELLED in TRANSITIONS[self]

    @property
    def is_retryable(self) -> bool:
        """Whether a user may ask for the same job again."""
        return self in (JobStatus.FAILED, JobStatus.CANCELLED)


TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.QUEUED: frozenset({JobStatus.RUNNING, JobStatus.CANCELLED}),
    # Back to queued: another attempt follows, or the attempt was handed back.
    JobStatus.RUNNING: frozenset(
        {JobStatus.QUEUED, JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED}
    ),
    JobStatus.SUCCEEDED: frozenset(),
    JobStatus.FAILED: frozenset(),
    JobStatus.CANCELLED: frozenset(),
}


class AttemptStatus(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RELEASED = "released"
    """Handed back by a worker that shuts down."""
    LOST = "lost"
    """Its lease ran out, or its worker asked for other work."""


NEVER = datetime(1970, 1, 1, tzinfo=UTC)
_QUEUED = text("status = 'queued'")
FAILED = text("status = 'failed'")
"""Written out: with a parameter, no database takes the index of those that failed."""
UNSUCCESSFUL = text("status NOT IN ('queued', 'running', 'succeeded')")
"""Likewise; by what they are not, since SQLite would look for what is named in the index of all statuses."""
COMMON_KINDS = frozenset((JobKind.CONVERT, JobKind.INDEX))
UNCOMMON = text("kind NOT IN ('convert', 'index')")
"""Likewise, of kinds that not every table has jobs of. Who looks for any kind does not come upon them."""
REQUESTED = text("\"trigger\" = 'request'")
"""Likewise: most jobs are those of policies."""
_RUNNING_WRITER = text("status = 'running' AND writes")
_NEVER_STARTED = text("status = 'queued' AND attempt = 0 AND kind NOT IN ('upsert', 'delete', 'erase')")
_MAY_HAVE_LEFT_FILES = text("plans IS NOT NULL")


class LastClaim(SQLModel, table=True):
    """When a table was last given a worker: of equal jobs, the one whose last claim is oldest goes first."""

    __tablename__ = "last_claims"
    __table_args__ = (Index("ix_last_claims_catalog_id_at", "catalog_id", "at"),)

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
            # As SQLAlchemy writes it there: SQLite compares the texts.
            sqlite_where=text("status = 'running' AND writes = 1"),
            postgresql_where=_RUNNING_WRITER,
        ),
        # At most one of a kind waits for its first attempt, unless it writes rows of its own; one that is
        # tried again may wait beside it.
        Index(
            "uq_jobs_queued_kind",
            "table_id",
            "kind",
            "dry_run",
            unique=True,
            sqlite_where=_NEVER_STARTED,
            postgresql_where=_NEVER_STARTED,
        ),
        # Of each catalog, whose turn it is: the order in which claims go.
        Index(
            "ix_jobs_turn",
            "catalog_id",
            desc("priority"),
            "table_claimed_at",
            "available_at",
            "id",
            sqlite_where=_QUEUED,
            postgresql_where=_QUEUED,
        ),
        Index("ix_jobs_status_catalog_id_table_id", "status", "catalog_id", "table_id"),
        Index("ix_jobs_table_id_created_at", "table_id", "created_at"),
        # With what is asked of those that ended, so that it is read from here alone.
        Index("ix_jobs_table_id_ended_at", "table_id", "ended_at", "started_at", "id"),
        # With the kind, so that jobs of some kinds are found in this order without a look at the others.
        Index("ix_jobs_created_at_id_kind", "created_at", "id", "kind"),
        Index("ix_jobs_ended_at_kind", "ended_at", "kind"),
        Index("ix_jobs_uncommon", "kind", "created_at", sqlite_where=UNCOMMON, postgresql_where=UNCOMMON),
        Index("ix_jobs_requested", "created_at", "id", sqlite_where=REQUESTED, postgresql_where=REQUESTED),
        Index("ix_jobs_failed", "status", "ended_at", sqlite_where=FAILED, postgresql_where=FAILED),
        Index(
            "ix_jobs_unsuccessful",
            "created_at",
            "id",
            sqlite_where=UNSUCCESSFUL,
            postgresql_where=UNSUCCESSFUL,
        ),
    )

    id: str = Field(default_factory=new_id, primary_key=True)
    table_id: str = Field(foreign_key="tables.id")
    table_uuid: str
    catalog_id: str = Field(foreign_key="catalogs.id")
    """The table's."""
    kind: str
    dry_run: bool = False
    writes: bool
    """Whether it changes the table or its index: only such jobs exclude each other."""
    parameters: dict[str, Any] = Field(default_factory=dict, sa_type=Json)
    trigger: str
    """This is `request`, or the sentence of the policy trigger that made it."""
    requested_by: str
    status: str = JobStatus.QUEUED.value
    created_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    available_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    """Not claimed before: later than created_at while it backs off or is held."""
    held_because: str | None = None
    """Why a job that nobody requested waits for available_at."""
    run_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    """What the request asked for: available_at until the first attempt, whatever the clock does."""
    table_claimed_at: datetime = Field(default=NEVER, sa_type=UtcDateTime)
    """The table's last claim, while the job is queued."""
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
    timeout_seconds: float = 0
    """Of one attempt; 0 for any time."""
    lease_expires_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    """For people; that it is over is decided by `renewals` (service.jobs.leases)."""
    renewals: int = 0
    """Heartbeats of all attempts: what an observer sees change, whatever the clock does."""
    cancel_requested_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    retry_of: str | None = None
    traceparent: str | None = None
    """What its attempts are parts of, as W3C's Trace Context writes it."""
    policy_digest: str = ""
    """Of the effective policy when it was queued: failures under another policy hold nothing up."""
    seen_snapshot_id: int | None = Field(default=None, sa_type=BigInteger)
    """Head of the branch as the job left it: what it found holds as long as that stays."""
    seen_rewritable: list[int] | None = Field(default=None, sa_type=Json)
    """The files that jobs of its kind would write anew, as it counted them at its end."""
    progress: dict[str, Any] | None = Field(default=None, sa_type=Json)
    result: dict[str, Any] | None = Field(default=None, sa_column=Column(ReportedObject(StoredResult)))
    error: dict[str, Any] | None = Field(default=None, sa_type=Json)


class JobRows(SQLModel, table=True):
    """What a job writes, apart from the job: only its worker is told, and they go once the job has ended."""

    __tablename__ = "job_rows"

    job_id: str = Field(foreign_key="jobs.id", primary_key=True)
    rows: list[dict[str, Any]] = Field(sa_type=Json)


class Attempt(SQLModel, table=True):
    __tablename__ = "attempts"
    __table_args__ = (
        # With the job, which is looked for by its worker.
        Index("ix_attempts_worker_id_status_job_id", "worker_id", "status", "job_id"),
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
    worker_id: str = Field(foreign_key="workers.id")
    worker_name: str
    status: str = AttemptStatus.RUNNING.value
    started_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    ended_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    lease_expires_at: datetime = Field(sa_type=UtcDateTime)
    error: dict[str, Any] | None = Field(default=None, sa_type=Json)
    seconds: float = 0
    """How long it ran, once it has ended."""
    stages: list[dict[str, Any]] = Field(
        default_factory=list, sa_column=Column(ReportedList(StageReport), nullable=False)
    )
    """What its worker measured (StageReport)."""
    rows: int = Field(default=0, sa_type=BigInteger)
    bytes: int = Field(default=0, sa_type=BigInteger)
    plans: list[dict[str, Any]] | None = Field(default=None, sa_type=Json)
    """What it announced (AnnouncedPlan), until it succeeded or a later job has removed what it left."""


POLICY = "policy"
"""Who requested a job that started by itself: its trigger says why."""
REQUEST = "request"
"""The trigger of jobs that somebody asked for."""


class Event(SQLModel, table=True):
    """Something that happened to a job or a table. The database refuses any change; retention removes it."""

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
