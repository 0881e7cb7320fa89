"""Workers: one row per started process. An identity is never reused, so a restart cannot hide a stall."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, JsonValue, model_validator
from pydantic import Field as ModelField
from sqlmodel import Field, SQLModel

from service.db.database import UtcDateTime, new_id, utc_now
from service.http.messages import Message, example
from trust.properties import LOCATION_PROPERTIES

MAX_ADDRESS = 2**62
PLANS_AT_MOST = 10_000
"""Of one attempt."""
Place = Annotated[str, ModelField(max_length=10_000)]
_NAMED_AT_MOST = 200_000
"""Files, decisions or events in a report: more than fit into one (`MAX_REPORT_BYTES`), with their reasons."""
_WORDS_AT_MOST = 20_000
Words = Annotated[str, AfterValidator(lambda said: said[:_WORDS_AT_MOST])]
"""What people read. A longer text is cut: what a program wrote to an error may be of any length."""
Name = Annotated[str, ModelField(max_length=200)]
"""What programs go by."""
Amount = Annotated[int, ModelField(ge=0, le=2**63 - 1)]
SummedAmount = Annotated[int, ModelField(ge=0, le=2**53 - 1)]
"""The sum of a thousand fits into 64 bits."""
Files = Annotated[int, ModelField(ge=0, le=2**31 - 1)]
SortedRuns = Annotated[int, ModelField(ge=0, le=1_000_000)]
Seconds = Annotated[float, ModelField(ge=0, le=1e10)]
Ratio = Annotated[float, ModelField(ge=0, le=1)]
SnapshotId = Annotated[int, ModelField(ge=-(2**63), le=2**63 - 1)]
FieldIds = Annotated[list[Annotated[int, ModelField(ge=1, le=2**31 - 1)]], ModelField(max_length=1000)]
Columns = Annotated[list[Place], ModelField(max_length=1000)]


def _of_locations(given: object) -> object:
    if not isinstance(given, dict):
        return given
    return {key: given[key] for key in LOCATION_PROPERTIES if key in given}


class Worker(SQLModel, table=True):
    __tablename__ = "workers"

    id: str = Field(default_factory=new_id, primary_key=True)
    name: str
    hostname: str
    pid: int
    version: str
    problem: str | None = None
    registered_by: str | None = None
    """The principal that it belongs to (`Principal.key`)."""
    registered_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    last_seen_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)


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
    events: list[EventReport] = ModelField(default_factory=list, max_length=_NAMED_AT_MOST)
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


class KeySetReport(Message):
    """The index of one key set."""

    equality_field_ids: FieldIds
    """Ids of the key fields."""
    columns: Columns
    """Names of the key columns."""
    generation: Amount = 0
    """Counts indexes of the key set: another key type starts a new one."""
    source: Name | None = None
    """How the key set was found: declared, identifier fields or equality deletes."""
    files_covered: Files
    """Data files that it covers."""
    files_total: Files
    """Data files of the table."""
    coverage: Ratio
    """The former by the latter, 0 to 1."""
    entries: SummedAmount
    """Entries, dead ones too."""
    bytes: SummedAmount
    """Bytes of its files."""
    sorted_runs: SortedRuns
    """Sorted runs; a lookup reads all of them."""
    dead_ratio: Ratio
    """Share of entries that point to files which are gone, 0 to 1."""

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        if self.files_covered > self.files_total:
            raise ValueError("files_covered should not be more than files_total")
        return self


class KeySetLeftOut(Message):
    """A key that can't be indexed."""

    columns: list[Name] = ModelField(max_length=1000)
    """Of the key."""
    code: Name | None = None
    """For programs."""
    reason: Words
    """Why not."""
    remedy: Words | None = None
    """What to do about it."""


class DeviatingDelete(Message):
    """An equality delete file that Iceberg's Java reader applied otherwise than the spec says."""

    file_path: Place
    """Its path."""
    code: Name | None = None
    """For programs."""
    reason: Words
    """How it did."""


class UnconvertibleDelete(Message):
    """An equality delete file that stays in the table."""

    file_path: Place
    """Its path."""
    code: Name | None = None
    """For programs."""
    reason: Words
    """Why it stays."""
    remedy: Words | None = None
    """What to do about it."""


class UnreadableFile(Message):
    """A data file that could not be read."""

    file_path: Place
    """Its path."""
    reason: Words
    """Why not."""


class IndexReport(Message):
    """What the worker found to be true of the index and the table after a job."""

    iceberg_snapshot_id: SnapshotId | None
    """Head of the table's branch that was looked at; null for an empty table."""
    key_sets: list[KeySetReport] = ModelField(max_length=1000)
    """The index of each key set."""
    unconvertible: list[UnconvertibleDelete] = ModelField(default_factory=list, max_length=_NAMED_AT_MOST)
    """Equality delete files that stay, each with its reason."""
    pending_equality_delete_files: Files
    """Live equality delete files."""
    pending_equality_deletes: Amount
    """Their rows."""


class StageReport(Message):
    """What a part of an attempt took."""

    name: Name
    """Of the part, such as `plan` or `lookup`."""
    seconds: Seconds
    """How long it took."""
    rows: Amount = 0
    """Planned rows that its tasks went through."""
    tasks_in_driver: Amount = 0
    """Tasks that ran in threads of the worker, without Spark."""
    tasks_on_spark: Amount = 0
    """Tasks that Spark ran to their end; the figures below are its own count."""
    failed_tasks: Amount = 0
    """Tasks that failed; Spark runs each of them again, up to four times."""
    task_seconds: Seconds = 0
    """How long its tasks ran, all together."""
    gc_seconds: Seconds = 0
    """What the executors' JVMs spent on garbage collection meanwhile."""
    spilled_bytes: Amount = 0
    """Written to the executors' disks for lack of memory."""
    shuffled_bytes: Amount = 0
    """Written to the executors' disks to be sorted."""


class KeySetResult(Message):
    """What a job did with one key set; each kind of job tells some of this."""

    equality_field_ids: FieldIds = ModelField(default_factory=list)
    """Ids of the key fields."""
    columns: Columns = ModelField(default_factory=list)
    """Names of the key columns."""
    generation: Amount = 0
    """Counts indexes of the key set."""
    source: Name = ""
    """Of a conversion: `index` or `scan`."""
    reason: Words = ""
    """Why that, in words."""
    keys: Amount = 0
    """Keys that were looked for."""
    key_ranges: Amount = 0
    """Ranges that they were sorted into."""
    matches: Amount = 0
    """Rows that were found."""
    row_groups_read: Amount = 0
    """Of index and data files."""
    row_groups_total: Amount = 0
    """Of the same files."""
    bytes_read: Amount = 0
    """Of index and data files."""
    data_files_from_index: Amount = 0
    """Data files whose rows the index told."""
    data_files_scanned: Amount = 0
    """Data files that were read."""
    files_indexed: Amount = 0
    """Data files that the index covers now, and did not before."""
    files_unreadable: Amount = 0
    """Data files that could not be read."""
    unreadable: list[UnreadableFile] = ModelField(default_factory=list, max_length=1000)
    """The first of them."""
    files_gone: Amount = 0
    """Data files that left the table before they were read."""
    rows_indexed: Amount = 0
    """Their rows."""
    bytes_written: Amount = 0
    """Into the index."""
    sorted_runs_written: Amount = 0
    """Into the index."""
    sorted_runs_before: Amount = 0
    """Of the index, before a compaction."""
    sorted_runs_after: Amount = 0
    """The same after it."""
    entries_before: Amount = 0
    """Of the index, before a compaction."""
    entries_after: Amount = 0
    """The same after it."""
    files_deleted: Amount = 0
    """Files of the index that no snapshot of it needs."""
    bytes_deleted: Amount = 0
    """Their bytes."""
    files_covered: Amount = 0
    """Data files that the index covers."""
    files_checked: Amount = 0
    """Those of them whose rows were compared."""
    files_no_longer_live: Amount = 0
    """Data files of the index that the table has no more."""
    rows_checked: Amount = 0
    """Rows that were compared."""
    entries_checked: Amount = 0
    """Entries that were compared."""
    entries_without_file: Amount = 0
    """Entries of no data file."""
    differences: Amount = 0
    """Between the index and the data files."""
    examples: list[Words] = ModelField(default_factory=list, max_length=1000)
    """The first of them in words."""
    rebuilt: bool = False
    """Whether the index was rebuilt."""


class JobResult(Message):
    """What a job did, or a dry run would do: each kind tells some of this, and other fields are ignored."""

    dry_run: bool = False
    """Whether it only says what it would do."""
    iceberg_snapshot_id: SnapshotId | None = None
    """Head of the branch that a job on the index saw."""
    iceberg_snapshot_id_before: SnapshotId | None = None
    """Head of the branch before a conversion."""
    iceberg_snapshot_id_after: SnapshotId | None = None
    """The snapshot that it committed last."""
    equality_delete_files_removed: Amount = 0
    """From the table."""
    equality_deletes_resolved: Amount = 0
    """Their rows."""
    rows_deleted: Amount = 0
    """By position now."""
    data_files_touched: Amount = 0
    """Data files that got new deletes."""
    delete_files_added: Amount = 0
    """Deletion vectors and position delete files."""
    delete_files_removed: Amount = 0
    """Those that the new ones include."""
    deletion_vectors_added: Amount = 0
    """Format version 3."""
    position_delete_files_added: Amount = 0
    """Format version 2."""
    bytes_read: Amount = 0
    """Of index, data files and equality deletes."""
    bytes_written: Amount = 0
    """Of new delete files."""
    commits: Amount = 0
    """Snapshots that a conversion made."""
    estimated_seconds: Seconds | None = None
    """Of a dry run: how long the conversion would take."""
    index_tables_deleted: Amount = 0
    """With an index that was dropped."""
    key_sets: list[KeySetResult] = ModelField(default_factory=list, max_length=1000)
    """What was done with each key set."""
    key_sets_not_indexed: list[KeySetLeftOut] = ModelField(default_factory=list, max_length=1000)
    """Keys that an index job left out."""
    unconvertible: list[UnconvertibleDelete] = ModelField(default_factory=list, max_length=_NAMED_AT_MOST)
    """Equality delete files that stay."""
    deviations: list[DeviatingDelete] = ModelField(default_factory=list, max_length=_NAMED_AT_MOST)
    """Equality delete files that other readers applied wrongly."""
    decisions: list[Words] = ModelField(default_factory=list, max_length=_NAMED_AT_MOST)
    """What the job decided, in words."""
    stages: list[StageReport] = ModelField(default_factory=list, max_length=1000)
    """Where its time went."""


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
