"""What workers are told of their attempts, and report about them."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, JsonValue
from pydantic import Field as ModelField

from service.http.messages import Message, example
from service.jobs.models import AttemptView
from service.policies.models import EffectivePolicy
from service.records.reports import (
    LAYOUTS_AT_MOST,
    NAMED_AT_MOST,
    Amount,
    Files,
    IndexLayout,
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
EXPIRED_AT_MOST = 1_000
"""Of one attempt."""


def _of_locations(given: object) -> object:
    if not isinstance(given, dict):
        return given
    return {key: given[key] for key in LOCATION_PROPERTIES if key in given}


class AttemptId(Message):
    """This is one try at a job, as it is named in calls."""

    job_id: str
    """The job that was tried has this id."""
    attempt: int
    """The attempts at a job are counted from 1."""


class AssignedJob(Message):
    """This is the job that an assignment is about."""

    id: str
    """The job has this id."""
    kind: str
    """The job is of this kind, such as `convert`."""
    dry_run: bool
    """The worker is to change nothing, and to report what it would do, if this is true."""
    parameters: dict[str, Any]
    """The parameters are as they were requested."""


class AssignedTable(Message):
    """This is the table that an assignment is about."""

    id: str
    """The table is enrolled under this id."""
    identifier: list[str]
    """The identifier has the namespace's parts, then the table's name."""
    table_uuid: str
    """This is Iceberg's own id of the table: another one means another table."""
    location: str
    """The table was here when the service looked at it last."""
    branch: str
    """This branch of the table is to be worked on."""
    staging_branch: str | None
    """This staging branch is published on the table's branch; null if there is none."""
    key_sets: list[list[str]]
    """The declared keys are lists of column names."""
    seen_equality_field_ids: list[list[int]]
    """Earlier reports had these key sets: no equality delete may be left that still names them."""
    overlapping_locations: list[str]
    """These locations of other enrolled tables are within the location of this one, or around it, or hold
    their files by their properties. Only a job that lets snapshots expire or removes orphan files is told."""
    snapshots_expire_elsewhere: bool
    """Somebody else was seen to let snapshots of the table expire within the last three months, so a Puffin
    file may not hold several deletion vectors."""


class AssignedCatalog(Message):
    """This is what a worker opens the catalog with."""

    name: str
    """The worker opens the catalog under this name."""
    type: str
    """The type is `sql`, `rest`, `hive`, `glue` or `hadoop`."""
    properties: dict[str, str]
    """These are PyIceberg's properties, with secret references that are not resolved yet."""


class AssignedIndex(Message):
    """This is where the index lies."""

    warehouse: str
    """The Paimon tables lie in this warehouse, a URI."""
    takes_new_files: bool = False
    """A conversion indexes data files that are new, since an index job would do so soon."""


class ProgressReport(Message):
    """This is how far an attempt has come."""

    stage: Name
    """The attempt is at this stage, such as `read`."""
    done: Amount | None = None
    """The stage has done this many of its units; null if that is not known."""
    total: Amount | None = None
    """The stage has this many units in all; null if that is not known."""
    unit: Name | None = None
    """The stage counts these units, such as `files`; null if it counts nothing."""
    message: Words | None = None
    """A message says in words how far the stage is, or more; null if there is none."""


class EventReport(Message):
    """This happened in an attempt, or is a line of the worker's log."""

    kind: Literal["message", "log"] = "message"
    """The event is a `message` about the job or a line of the worker's `log`: they become events
    `job.message` and `job.log`."""
    level: Literal["info", "warning", "error"] = "info"
    """The event is as grave as this says."""
    message: Words
    """The message says in words what happened."""
    fields: dict[Name, JsonValue] = ModelField(default_factory=dict, max_length=100)
    """The fields say for programs what the message says in words."""


class AnnouncedPlan(Message):
    """Delete files, and new data files, that a job is about to write, or then to commit.

    Whoever follows only compares the places with what the table itself says.
    """

    number: int = ModelField(ge=0, lt=PLANS_AT_MOST)
    """The attempt's plans are counted by this number."""
    tasks: int = ModelField(ge=0, le=99_999)
    """This many tasks write delete files, so far."""
    files_per_task: int = ModelField(default=500, ge=0, le=500)
    """Each of the tasks writes this many delete files at most; no worker writes more than the default."""
    removes: Place | None = None
    """This is a delete file, or a data file, that the commit removes; none as long as no commit is about to
    be made."""
    only_on: SnapshotId | None = None
    """The commit needs the branch to have this head, -1 for that of an empty table, if it removes no equality
    delete file; none as long as no commit is about to be made."""
    data_files: int = ModelField(default=0, ge=0, le=100_000)
    """This many new data files have names, so far."""
    has_folder: bool = False
    """The new data files lie in a folder of the plan's own, whatever they are named."""
    expires: list[SnapshotId] = ModelField(default_factory=list, max_length=EXPIRED_AT_MOST)
    """These snapshots are about to expire: the attempt that goes on deletes the files that they alone
    named."""
    location: Place
    """The table had this location when it was planned."""
    properties: Annotated[dict[str, Place], BeforeValidator(_of_locations)] = ModelField(default_factory=dict)
    """The table had these properties when it was planned, as far as the files' places depend on them; others
    are ignored."""


class EndedAttempt(AttemptId):
    """This is what an attempt that ended had announced, and may have left in the table's location."""

    plans: list[AnnouncedPlan]
    """The attempt had announced these plans."""


class AddressRangeRequest(Message):
    """Row addresses to be reserved."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {"rows": 1_000_000, "at_least": 0},
        )
    )

    rows: int = ModelField(ge=1, le=2**40)
    """The attempt needs this many row addresses."""
    at_least: int = ModelField(default=0, ge=0, le=MAX_ADDRESS)
    """The range begins with this row address or a larger one: above all that the index already has.

    No further than 2^44 above all that were reserved before.
    """


class AddressRange(Message):
    """These row addresses now belong to the attempt alone."""

    base_address: int
    """The range begins with this row address."""


class HeartbeatRequest(Message):
    """This is a sign of life that a worker gives, with news."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {
                "progress": {"stage": "read", "done": 12, "total": 80, "unit": "files"},
                "events": [{"level": "info", "message": "The index covers 80 of 80 data files."}],
            },
        )
    )

    progress: ProgressReport | None = None
    """The attempt has come this far; null for no change."""
    events: list[EventReport] = ModelField(default_factory=list, max_length=NAMED_AT_MOST)
    """These events happened since the last heartbeat."""
    plan: AnnouncedPlan | None = None
    """A plan is announced so that the files of an attempt that dies can be found, and removed once no commit
    needs them."""
    addresses: AddressRangeRequest | None = None
    """The attempt needs this range of row addresses, as by a call of its own; null if it needs none."""


class HeartbeatAnswer(Message):
    """This is what a worker goes by."""

    now: datetime
    """The service's clock says this, for the worker to compare its own with."""
    lease_expires_at: datetime
    """The attempt is given up at this time without a further heartbeat."""
    cancel_requested: bool
    """The worker is to stop and to report the attempt as `cancelled` if this is true."""
    addresses: AddressRange | None = None
    """This range of row addresses was reserved; null if the heartbeat asked for none."""


class ErrorReport(Message):
    """This is why an attempt failed."""

    code: Name
    """Programs know the error by its code, such as `worker_lost`."""
    title: Words
    """The title says in short what the error is."""
    detail: Words
    """The detail says in words what happened."""
    remedy: Words
    """The remedy says what to do about the error."""
    retryable: bool = False
    """The job may be tried again, and may succeed then, if this is true."""


class IndexReport(Message):
    """This is what the worker found to be true of the index and the table after a job."""

    iceberg_snapshot_id: SnapshotId | None
    """Head of the table's branch that was looked at; null for an empty table."""
    key_sets: list[KeySetReport] = ModelField(max_length=1000)
    """The index of each key set is listed as it is."""
    layouts: list[IndexLayout] = ModelField(default_factory=list, max_length=LAYOUTS_AT_MOST)
    """The sorted runs and partitions of each of these indexes are listed."""
    unconvertible: list[UnconvertibleDelete] = ModelField(default_factory=list, max_length=NAMED_AT_MOST)
    """These equality delete files stay in the table, each with its reason."""
    pending_equality_delete_files: Files
    """The table has this many live equality delete files."""
    pending_equality_deletes: Amount
    """The pending equality delete files have this many rows."""
    small_data_files: Files = 0
    """This many data files are small, and would be rewritten; 0 unless the policy has them rewritten."""
    deleted_data_files: Files = 0
    """This many data files have enough deleted rows to be rewritten; 0 unless the policy has them
    rewritten."""
    small_delete_files: Files = 0
    """This many position delete files are small enough to be rewritten; 0 unless the policy has them
    rewritten."""
    partitions: Files | None = None
    """This many partitions have data files; null if the worker does not count them."""
    covers_head: bool = False
    """Each index is known to have all data files of that head."""


class FinishRequest(Message):
    """This is how an attempt ended."""

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
    """The attempt has ended like this; `released` hands the job back."""
    result: JobResult | None = None
    """The job did this, or a dry run would do it; null if the attempt did not succeed."""
    error: ErrorReport | None = None
    """The attempt failed with this error; null if it did not."""
    health: IndexReport | None = None
    """The worker found this to be true of the table and its indexes; null if it did not look."""
    stages: list[StageReport] = ModelField(default_factory=list, max_length=1000)
    """The time of the attempt went into these stages, however it ended."""
    rows: Amount = 0
    """The tasks went through this many of the planned rows."""
    bytes: Amount = 0
    """This many bytes were read for lookups, scans and compactions, and written into the index."""
    cleared: list[AttemptId] = ModelField(default_factory=list, max_length=1000)
    """These are attempts of which nothing is left in the table's location any more; others are ignored."""
    events: list[EventReport] = ModelField(default_factory=list, max_length=NAMED_AT_MOST)
    """These events happened since the last heartbeat."""
    claims_next: bool = False
    """The worker is free then and claims a job, as by a call of its own that waits for none: the answer has
    it."""


class Assignment(Message):
    """All that a worker has to know for one attempt."""

    job: AssignedJob
    """The attempt is one at this job."""
    traceparent: str | None
    """The call that asked for the job has this trace, as W3C's Trace Context writes it; null if that was no
    trace."""
    attempt: int
    """The attempt has this number: every report names it, and a late one is refused."""
    previous_attempts: list[AttemptView]
    """These are the earlier attempts at the job, with how they ended."""
    ended_attempts: list[EndedAttempt]
    """These earlier attempts at jobs of the table may have left files; only jobs that may remove them are
    told."""
    lease_seconds: float
    """The attempt is given up if it sends no heartbeat for this many seconds."""
    lease_expires_at: datetime
    """The attempt would be given up at this time if it sent no heartbeat."""
    timeout_seconds: float
    """The worker ends the attempt after this many seconds, or the service takes it away; 0 for any time."""
    table: AssignedTable
    """The job works on this table."""
    catalog: AssignedCatalog
    """The table belongs to this catalog."""
    index: AssignedIndex
    """The indexes of the table lie there, and are kept as this says."""
    policy: EffectivePolicy
    """The table's policy has these values."""
    allowed_locations: list[str]
    """The worker opens no file beyond these places, whatever is named by catalog and table."""
    allowed_hosts: list[str]
    """These are hosts that the catalog may lead the worker to, as in ICESTREAM_ALLOWED_HOSTS."""
    allowed_secrets: list[str]
    """The worker resolves references that begin like these, as in ICESTREAM_ALLOWED_SECRETS."""
    own_files: list[str]
    """The files and folders of the service itself are never opened by the worker, whatever names them."""
    rows: list[dict[str, JsonValue]] | None
    """The job writes these by key: rows, or keys of rows to be deleted; null for other kinds of jobs."""
    orphan_files: list[str]
    """A dry run has listed these files, of which a removal of orphan files deletes those that are orphans
    still; empty for other kinds of jobs."""
    orphans_older_than: datetime | None
    """The listed files were written before this time; null for other kinds of jobs, or if the dry run is gone
    or ended more than seven days ago: the removal fails then."""
