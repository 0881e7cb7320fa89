"""Workers: one row per started process. An identity is never reused, so a restart cannot hide a stall."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from pydantic import Field as ModelField
from sqlmodel import Field, SQLModel

from service.database import UtcDateTime, new_id, utc_now


class Worker(SQLModel, table=True):
    __tablename__ = "workers"

    id: str = Field(default_factory=new_id, primary_key=True)
    name: str
    hostname: str
    pid: int
    version: str
    registered_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    last_seen_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)


class WorkerRequest(BaseModel):
    name: str = ModelField(min_length=1, max_length=200)
    hostname: str
    pid: int
    version: str


class WorkerView(BaseModel):
    id: str
    name: str
    hostname: str
    pid: int
    version: str
    registered_at: datetime
    last_seen_at: datetime
    alive: bool
    """Whether it was heard of within two leases."""
    job_id: str | None
    """What it runs now."""


class AttemptId(BaseModel):
    job_id: str
    attempt: int


class ClaimRequest(BaseModel):
    wait_seconds: float = ModelField(default=20, ge=0, le=60)
    given_up: list[AttemptId] = ModelField(default_factory=list)
    """Attempts that the worker ran and could not report."""


class AssignedJob(BaseModel):
    id: str
    kind: str
    dry_run: bool
    parameters: dict[str, Any]


class AssignedTable(BaseModel):
    id: str
    identifier: list[str]
    table_uuid: str
    branch: str
    key_sets: list[list[str]]
    seen_equality_field_ids: list[list[int]]
    """Of key sets in earlier reports: no equality delete may be left that still names them."""


class AssignedCatalog(BaseModel):
    name: str
    type: str
    properties: dict[str, str]
    """Secret references are not resolved here."""


class AssignedIndex(BaseModel):
    warehouse: str


class ProgressReport(BaseModel):
    stage: str
    done: int | None = None
    total: int | None = None
    unit: str | None = None
    message: str | None = None


class EventReport(BaseModel):
    level: Literal["info", "warning", "error"] = "info"
    message: str
    fields: dict[str, Any] = ModelField(default_factory=dict)


class AnnouncedPlan(BaseModel):
    """Delete files that a conversion is about to write, or then to commit."""

    number: int = ModelField(ge=0)
    """Of the attempt's plans."""
    tasks: int = ModelField(ge=0)
    """Tasks that write, so far."""
    removes: str | None = None
    """An equality delete file that the commit removes; none as long as no commit is about to be made."""
    location: str
    """Of the table then."""
    properties: dict[str, str] = ModelField(default_factory=dict)
    """Of the table then, as far as the files' places depend on them."""


class Leftovers(AttemptId):
    """What an attempt that ended had announced, and may have left in the table's location."""

    plans: list[AnnouncedPlan]


class HeartbeatRequest(BaseModel):
    progress: ProgressReport | None = None
    events: list[EventReport] = ModelField(default_factory=list)
    plan: AnnouncedPlan | None = None
    """So that the files of an attempt that dies can be found, and removed once no commit needs them."""


class HeartbeatAnswer(BaseModel):
    lease_expires_at: datetime
    cancel_requested: bool


class AddressRangeRequest(BaseModel):
    rows: int = ModelField(ge=1)
    at_least: int = ModelField(default=0, ge=0)


class AddressRange(BaseModel):
    base_address: int


class ErrorReport(BaseModel):
    model_config = ConfigDict(extra="allow")

    code: str
    title: str
    detail: str
    remedy: str
    retryable: bool = False


class KeySetReport(BaseModel):
    model_config = ConfigDict(extra="allow")

    equality_field_ids: list[int]
    columns: list[str]
    generation: int = 0
    source: str | None = None
    files_covered: int
    files_total: int
    coverage: float
    entries: int
    bytes: int
    sorted_runs: int
    dead_ratio: float


class UnconvertibleDelete(BaseModel):
    model_config = ConfigDict(extra="allow")

    file_path: str
    code: str | None = None
    reason: str
    remedy: str | None = None


class IndexReport(BaseModel):
    """What the worker found to be true of the index and the table after a job."""

    iceberg_snapshot_id: int | None
    key_sets: list[KeySetReport]
    unconvertible: list[UnconvertibleDelete] = ModelField(default_factory=list)
    pending_equality_delete_files: int
    pending_equality_deletes: int


class StageReport(BaseModel):
    name: str
    seconds: float


class FinishRequest(BaseModel):
    status: Literal["succeeded", "failed", "cancelled", "released"]
    result: dict[str, Any] | None = None
    error: ErrorReport | None = None
    health: IndexReport | None = None
    stages: list[StageReport] = ModelField(default_factory=list)
    """Where the attempt's time went, however it ended."""
    rows: int = ModelField(default=0, ge=0)
    """Planned rows that its tasks went through."""
    bytes: int = ModelField(default=0, ge=0)
    """Read for lookups, scans and compactions, and written into the index."""
    cleared: list[AttemptId] = ModelField(default_factory=list)
    """Attempts of which nothing is left in the table's location any more."""
