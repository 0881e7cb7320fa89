"""Workers: one row per started process. An identity is never reused, so a restart cannot hide a stall."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, JsonValue
from pydantic import Field as ModelField

from service.http.messages import Message, example
from service.records.reports import (
    NAMED_AT_MOST,
    Amount,
    Files,
    JobResult,
    KeySetReport,
    Name,
    Place,
    SnapshotId,
    StageReport,
    UnconvertibleDelete,
    Words,
)
from trust.properties import LOCATION_PROPERTIES

MAX_ADDRESS = 2**62
PLANS_AT_MOST = 10_000
"""Of one attempt."""


def _of_locations(given: object) -> object:
    if not isinstance(given, dict):
        return given
    return {key: given[key] for key in LOCATION_PROPERTIES if key in given}


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


class AttemptId(Message):
    """One try at a job."""

    job_id: str
    """The job."""
    attempt: int = ModelField(strict=True)
    """Counts from 1."""


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


class AssignedJob(Message):
    """The job of an assignment."""

    id: str
    """Identifies the job."""
    kind: str
    """What it does."""
    dry_run: bool
    """Whether it only says what it would do."""
    parameters: dict[str, Any]
    """As requested."""


class AssignedTable(Message):
    """The table of an assignment."""

    id: str
    """Identifies the enrolment."""
    identifier: list[str]
    """Namespace parts, then the table name."""
    table_uuid: str
    """Iceberg's own id of the table: another one means another table."""
    branch: str
    """The branch to work on."""
    key_sets: list[list[str]]
    """Declared keys, as column names."""
    seen_equality_field_ids: list[list[int]]
    """Of key sets in earlier reports: no equality delete may be left that still names them."""


class AssignedCatalog(Message):
    """What it takes to open the catalog."""

    name: str
    """Its name."""
    type: str
    """`sql`, `rest`, `hive`, `glue` or `hadoop`."""
    properties: dict[str, str]
    """Secret references are not resolved here."""


class AssignedIndex(Message):
    """Where the index lies."""

    warehouse: str
    """Of its Paimon tables, as a URI."""


class ProgressReport(Message):
    """Where an attempt stands."""

    stage: Name
    """What it does now."""
    done: Amount | None = None
    """How much of it is done."""
    total: Amount | None = None
    """How much there is."""
    unit: Name | None = None
    """Of what, such as `files`."""
    message: Words | None = None
    """The same in words, or more."""


class EventReport(Message):
    """Something that happened in an attempt, or a line of the worker's log."""

    kind: Literal["message", "log"] = "message"
    """Which of both: they become events `job.message` and `job.log`."""
    level: Literal["info", "warning", "error"] = "info"
    """How grave it is."""
    message: Words
    """What happened, in words."""
    fields: dict[Name, JsonValue] = ModelField(default_factory=dict, max_length=100)
    """The same for programs."""


class AnnouncedPlan(Message):
    """Delete files that a conversion is about to write, or then to commit.

    Whoever follows only compares the places with what the table itself says.
    """

    number: int = ModelField(ge=0, lt=PLANS_AT_MOST)
    """Of the attempt's plans."""
    tasks: int = ModelField(ge=0, le=99_999)
    """Tasks that write, so far."""
    files_per_task: int = ModelField(default=500, ge=0, le=500)
    """Delete files that each of them writes at most; no worker writes more than the default."""
    removes: Place | None = None
    """An equality delete file that the commit removes; none as long as no commit is about to be made."""
    location: Place
    """Of the table then."""
    properties: Annotated[dict[str, Place], BeforeValidator(_of_locations)] = ModelField(default_factory=dict)
    """Of the table then, as far as the files' places depend on them; others are ignored."""


class Leftovers(AttemptId):
    """What an attempt that ended had announced, and may have left in the table's location."""

    plans: list[AnnouncedPlan]
    """What it had announced."""


class HeartbeatRequest(Message):
    """A sign of life, with news."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {
                "progress": {"stage": "read", "done": 12, "total": 80, "unit": "files"},
                "events": [{"level": "info", "message": "The index covers 80 of 80 data files."}],
            },
        )
    )

    progress: ProgressReport | None = None
    """Where the attempt stands; null for no change."""
    events: list[EventReport] = ModelField(default_factory=list, max_length=NAMED_AT_MOST)
    """What happened since the last heartbeat."""
    plan: AnnouncedPlan | None = None
    """So that the files of an attempt that dies can be found, and removed once no commit needs them."""


class HeartbeatAnswer(Message):
    """What a worker goes by."""

    now: datetime
    """By the service's clock, for the worker to compare its own with."""
    lease_expires_at: datetime
    """When the attempt is given up without a further heartbeat."""
    cancel_requested: bool
    """Whether to stop."""


class AddressRangeRequest(Message):
    """Row addresses to be reserved."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {"rows": 1_000_000, "at_least": 0},
        )
    )

    rows: int = ModelField(ge=1, le=2**40)
    """How many."""
    at_least: int = ModelField(default=0, ge=0, le=MAX_ADDRESS)
    """The range begins here or later: above every address that the index already has.

    No further than 2^44 above all that were reserved before.
    """


class AddressRange(Message):
    """Row addresses that are now the attempt's alone."""

    base_address: int
    """The first one."""


class ErrorReport(Message):
    """Why an attempt failed."""

    code: Name
    """For programs, such as `worker_lost`."""
    title: Words
    """The same in words."""
    detail: Words
    """What happened."""
    remedy: Words
    """What to do about it."""
    retryable: bool = False
    """Whether another attempt may succeed."""


class IndexReport(Message):
    """What the worker found to be true of the index and the table after a job."""

    iceberg_snapshot_id: SnapshotId | None
    """Head of the table's branch that was looked at; null for an empty table."""
    key_sets: list[KeySetReport] = ModelField(max_length=1000)
    """The index of each key set."""
    unconvertible: list[UnconvertibleDelete] = ModelField(default_factory=list, max_length=NAMED_AT_MOST)
    """Equality delete files that stay, each with its reason."""
    pending_equality_delete_files: Files
    """Live equality delete files."""
    pending_equality_deletes: Amount
    """Their rows."""


class FinishRequest(Message):
    """How an attempt ended."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {"status": "succeeded", "result": {"commits": 1}},
            {
                "status": "failed",
                "error": {
                    "code": "catalog_unreachable",
                    "title": "The catalog did not answer",
                    "detail": "Connection refused.",
                    "remedy": "Start the catalog.",
                    "retryable": True,
                },
            },
        )
    )
    status: Literal["succeeded", "failed", "cancelled", "released"]
    """`released` hands the job back."""
    result: JobResult | None = None
    """What was done."""
    error: ErrorReport | None = None
    """Why it failed."""
    health: IndexReport | None = None
    """What is true of table and index now."""
    stages: list[StageReport] = ModelField(default_factory=list, max_length=1000)
    """Where the attempt's time went, however it ended."""
    rows: Amount = 0
    """Planned rows that its tasks went through."""
    bytes: Amount = 0
    """Read for lookups, scans and compactions, and written into the index."""
    cleared: list[AttemptId] = ModelField(default_factory=list, max_length=1000)
    """Attempts of which nothing is left in the table's location any more; others are ignored."""
