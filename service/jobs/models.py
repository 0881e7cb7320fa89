"""What is asked and told about jobs, their attempts and events."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, ValidationInfo, field_validator
from pydantic import Field as ModelField

from service.http.messages import ClosedMessage, Message, UtcTime, example
from service.http.problem_documents import Problem
from service.policies.settings import RewriteStrategy, SizeRatio, TargetFileSize
from service.records.jobs import AttemptStatus, JobKind, JobStatus
from service.records.reports import SnapshotId, StageReport


class SystemView(Message):
    """This is the whole installation, as far as it can be paused."""

    paused: bool
    """While true, no job of any table starts."""
    version: str
    """The service has this version of Icestream."""


RequestableKind = Literal[
    "index",
    "convert",
    "publish",
    "expire_snapshots",
    "rewrite_data_files",
    "rewrite_position_delete_files",
    "rewrite_manifests",
    "remove_orphan_files",
    "compact",
    "rebuild",
    "verify",
    "report_duplicates",
]


class PublishParameters(ClosedMessage):
    """Options of a job that publishes the staging branch of the enrolment on the table's branch."""

    after: SnapshotId | None = None
    """A snapshot of the staging branch that counts as published where the table itself does not say."""
    skip: SnapshotId | None = None
    """The snapshot at which publication stops is left out: the target gets nothing that it adds, and keeps
    what it deletes. One that can be published is not skipped."""
    renew: bool = False
    """The staging branch begins anew after its first snapshot, so that what it had since may expire; if all
    of it is published."""


SnapshotAge = Annotated[float, ModelField(ge=0, le=31_536_000_000, allow_inf_nan=False)]
"""Seconds."""
SnapshotsRetained = Annotated[int, ModelField(ge=1, le=1_000_000)]


class ExpireParameters(ClosedMessage):
    """Options of a job that lets snapshots expire."""

    older_than_seconds: SnapshotAge | None = None
    """Snapshots that are older expire, unless something holds them; the policy's age if left out."""
    retain_last: SnapshotsRetained | None = None
    """This many snapshots of each branch stay, however old they are; as the policy says if left out."""


class SortField(ClosedMessage):
    """One of the columns by which rows are sorted."""

    column: Annotated[str, ModelField(min_length=1, max_length=1000)]
    """The column has this name, with dots if it is nested."""
    direction: Literal["asc", "desc"] = "asc"
    """The rows are in this order."""
    null_order: Literal["nulls-first", "nulls-last"] = "nulls-first"
    """Rows without a value are at this end."""


class RewriteDataFilesParameters(ClosedMessage):
    """Options of a job that writes data files anew, as Iceberg's action names them; what is left out, the
    policy says."""

    strategy: RewriteStrategy | None = None
    """Put rows together as they come, or sort them."""
    sort_order: Annotated[list[SortField], ModelField(max_length=100)] | None = None
    """Sort by these columns; by the table's own sort order if left out."""
    target_file_size_bytes: TargetFileSize | None = None
    """New data files have about this many bytes; 0 is what the table says."""
    min_input_files: Annotated[int, ModelField(ge=2, le=10**9)] | None = None
    """Small data files are rewritten where a partition has this many of them."""
    size_ratio: SizeRatio | None = None
    """A small data file is rewritten only if it is at most this many times as large as the others together
    that are rewritten of its partition; a large number takes all small ones."""
    delete_ratio_threshold: Annotated[float, ModelField(gt=0, le=1)] | None = None
    """Data files of which this share of the rows is deleted are rewritten, whatever their size."""
    max_bytes: Annotated[int, ModelField(ge=1, le=10**18)] | None = None
    """The job rewrites data files of this many bytes at most."""


class RewritePositionDeleteFilesParameters(ClosedMessage):
    """Options of a job that writes position delete files anew, as Iceberg's action names them; what is left
    out, the policy says."""

    target_file_size_bytes: TargetFileSize | None = None
    """New delete files have about this many bytes; 0 is what the table says."""
    min_input_files: Annotated[int, ModelField(ge=2, le=10**9)] | None = None
    """Small delete files are rewritten where a partition has this many of them."""


class RewriteManifestsParameters(ClosedMessage):
    """Options of a job that writes manifests anew: there are none."""


class RemoveOrphanFilesParameters(ClosedMessage):
    """Options of a job that deletes orphan files, or of its dry run, which comes first."""

    older_than_seconds: (
        Annotated[float, ModelField(ge=86_400, le=31_536_000_000, allow_inf_nan=False)] | None
    ) = None
    """Of a dry run: files that are younger are left alone, since a writer may be about to commit them; a week
    if left out."""
    dry_run_job_id: Annotated[str, ModelField(max_length=100)] | None = None
    """Of a removal: the dry run that has listed what is deleted."""


_PARAMETERS: dict[str, type[Message]] = {
    JobKind.PUBLISH.value: PublishParameters,
    JobKind.EXPIRE_SNAPSHOTS.value: ExpireParameters,
    JobKind.REWRITE_DATA_FILES.value: RewriteDataFilesParameters,
    JobKind.REWRITE_POSITION_DELETE_FILES.value: RewritePositionDeleteFilesParameters,
    JobKind.REWRITE_MANIFESTS.value: RewriteManifestsParameters,
    JobKind.REMOVE_ORPHAN_FILES.value: RemoveOrphanFilesParameters,
}


class JobRequest(ClosedMessage):
    """A job to be queued."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {"kind": "convert", "dry_run": True},
            {"kind": "compact", "priority": 10, "run_at": "2030-01-01T02:00:00Z"},
            {"kind": "publish", "dry_run": True},
            {"kind": "expire_snapshots", "dry_run": True, "parameters": {"older_than_seconds": 604_800}},
        ),
    )

    kind: RequestableKind
    """The job is to be of this kind."""
    dry_run: bool = False
    """Change nothing. Of a conversion: say what it would do, what it would read and write, and how long it
    would take. Of a publication: say what it would publish. Of maintenance: say what would go, or be written
    anew. Of a verification: compare, and rebuild nothing. Other kinds have no dry run."""
    parameters: dict[str, Any] = ModelField(default_factory=dict)
    """The worker has options for some kinds of jobs; usually none are given. A publication takes
    `after`: a snapshot of the staging branch that counts as published where the table itself does not say;
    `skip`: the snapshot at which it stops (`stopped_at`), of which nothing is published then; and `renew`:
    the staging branch begins anew after its first snapshot, once all that it has is published. An expiry
    takes `older_than_seconds` and `retain_last`. A rewriting of data files takes `strategy`,
    `sort_order`, `target_file_size_bytes`, `min_input_files`, `size_ratio`, `delete_ratio_threshold` and
    `max_bytes`, one of position deletes the third and the fourth of these. What is left out, the policy says.
    A dry run of a removal of orphan files takes `older_than_seconds`, the removal itself `dry_run_job_id`."""
    priority: Annotated[int, ModelField(ge=-100, le=100)] | None = None
    """The job goes before or behind other waiting jobs; the policy's priority holds if left out."""
    run_at: UtcTime | None = None
    """The job starts at this time or later; at once if left out."""

    @field_validator("parameters")
    @classmethod
    def _check_parameters(cls, given: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if given and (model := _PARAMETERS.get(info.data.get("kind", ""))) is not None:
            model.model_validate(given)
        return given


class AttemptView(Message):
    """This is one try at a job, as it ended or runs."""

    attempt: int
    """The attempts at a job are counted from 1."""
    worker_id: str
    """The worker of this id ran the attempt."""
    worker_name: str
    """The worker that ran the attempt has this name."""
    status: AttemptStatus
    """The attempt runs, or ended like this."""
    started_at: datetime
    """A worker took the job at this time."""
    ended_at: datetime | None
    """The attempt ended at this time; null while it runs."""
    lease_expires_at: datetime
    """The attempt is, or would have been, given up at this time without a further heartbeat."""
    error: dict[str, Any] | None
    """The attempt failed with this error: code, title, detail and remedy; null if it did not."""
    seconds: float
    """The attempt ran for this many seconds; 0 while it runs."""
    stages: list[StageReport]
    """The time of the attempt went into these stages, as its worker measured it; none if it was lost."""
    rows: int
    """The tasks went through this many of the planned rows."""
    bytes: int
    """This many bytes were read of index, keys in data files and equality deletes, and written as index or
    delete files."""


class Caveat(Message):
    """A job that succeeded did not do this, or somebody should look at it."""

    title: str
    """The title says in short what is the matter."""
    detail: str
    """The detail names the first item that was not done, or is to be looked at, with the reason."""
    remedy: str
    """The remedy says what to do about it."""
    did_nothing: bool
    """The job did nothing at all because of that, or would do nothing, if this is true."""


class JobView(Message):
    """A job, and the attempts that were made at it."""

    id: str
    """The job is named by this id in later calls."""
    kind: JobKind
    """The job is of this kind, such as `convert`."""
    dry_run: bool
    """The job changes nothing, and tells what it would do, if this is true."""
    table_id: str
    """The job works on the table of this id."""
    table: str
    """The table's name is written with dots."""
    catalog: str
    """The table is in the catalog of this name."""
    branch: str
    """The job works on this branch of the table."""
    status: JobStatus
    """The job has come this far."""
    parameters: dict[str, Any]
    """The parameters are as they were requested."""
    trigger: str
    """The job was made by this: `request`, or the sentence of the policy trigger."""
    requested_by: str
    """The job was requested by this name; `policy` if it started by itself."""
    created_at: datetime
    """The job was queued at this time."""
    available_at: datetime
    """No worker takes the job before this time: later than `created_at` after a failed attempt."""
    run_at: datetime | None
    """The request asked for a start at this time at the earliest; null for at once."""
    priority: int
    """The waiting jobs of the highest priority run first; it is the policy's unless the request names one."""
    started_at: datetime | None
    """The first attempt was started at this time; null before."""
    ended_at: datetime | None
    """The job ended at this time; null before."""
    waiting_for: str | None
    """A queued job does not run yet for this reason, in words; null for other jobs."""
    cancel_requested: bool
    """The job is to stop at its next heartbeat if this is true."""
    retry_of: str | None
    """The job repeats the job of this id; null if it repeats none."""
    trace_id: str | None
    """The OpenTelemetry trace of its request, its wait and its attempts; null if it has none."""
    max_attempts: int
    """The job has failed after this many failed attempts."""
    timeout_seconds: float
    """An attempt that takes longer is ended, and counts as failed; 0 for any time."""
    attempts: list[AttemptView]
    """The attempts are listed oldest first."""
    progress: dict[str, Any] | None
    """The running attempt last reported this of how far it is; null if nothing."""
    caveat: Caveat | None
    """This is what a job that succeeded asks of somebody all the same; null if there is nothing."""
    result: dict[str, Any] | None
    """The job did this, or a dry run would do it; null before it succeeded. Of a job that writes rows by key:
    `rows_added`, `rows_deleted`, `rows_left_out`, the numbers of these rows in the request (`left_out`, from
    0), and the snapshots before and after. Of a publication: `staged_snapshots`, the last of which is
    `published_snapshot_id`, `rows_added`, `rows_deleted`, the table's snapshots before and after, and the
    staged snapshot at which it stopped, with the reason and what to do (`stopped_at`), or that it was to skip
    (`skipped_snapshot_id`). Of an expiry:
    `expiry`, with how many snapshots and files went, and what holds the others. Of a rewriting of data files:
    `data_files`, with how many were written anew as how many, and of what it converted first
    `equality_delete_files_removed`, `equality_deletes_resolved` and `rows_deleted`, as a conversion has them.
    Of one of position deletes or manifests: `delete_files` or `manifests`, with the same of these. Of a
    removal of orphan files: `orphans`, with what was deleted, or of its dry run with what may be (`files`).
    Of a job of an erasure: `erasure`, with keys by their numbers in the request, and the first two of these
    figures of what it converted; receipts have the keys' hashes.
    Of a conversion: counts, `bytes_read` (of index,
    data files and equality deletes) and `bytes_written` (of new delete files), both in bytes, and of its dry
    run also `estimated_seconds`: how long the conversion would take, as the dry run measured it, and for its
    commits as measured elsewhere; none if it would convert nothing. Of a dry run of any of these but a
    publication: `estimate`, how many `seconds` the job would take by what the latest of its kind took on this
    table (`jobs` of them), and the factor by which estimates of these from those before each were `off_by`,
    in the middle; null if there were none.
    """
    error: dict[str, Any] | None
    """The job failed with this error: code, title, detail and remedy; null if it did not."""


class BulkRequest(ClosedMessage):
    """This is one action on many jobs; each is done or refused by itself."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {"action": "retry", "job_ids": ["6c8a2a0e-6f0e-4a7e-9a43-0d7d5a1e1c52"]},
        ),
    )

    action: Literal["cancel", "retry"]
    """The action is done with each of the jobs."""
    job_ids: Annotated[list[str], ModelField(min_length=1, max_length=100)]
    """The jobs have these ids; one that is named twice counts once."""


class BulkItem(Message):
    """This is what has become of one of the jobs."""

    job_id: str
    """The job has this id, as the request has it."""
    job: JobView | None
    """The job is shown as it is after the action, or the new job of a retry; null if the action was
    refused."""
    problem: Problem | None
    """The action was refused with this problem; null if it was done."""


class BulkResult(Message):
    """This is what has become of each of the jobs."""

    done: int
    """The action was done with this many jobs."""
    refused: int
    """The action was refused for this many jobs."""
    items: list[BulkItem]
    """The items are in the order of the request."""


EventLevel = Literal["info", "warning", "error"]


class EventView(Message):
    """This happened to a job or a table."""

    id: int
    """The id of the event is larger than those of earlier events."""
    at: datetime
    """The event happened at this time."""
    kind: str
    """The kind of the event is a name such as `job.queued`, `job.progress` or `decision.skip`."""
    level: EventLevel
    """The event is as grave as this says."""
    message: str
    """The message says in words what happened."""
    table_id: str | None
    """The event is about the table that is enrolled under this id; null if about none."""
    job_id: str | None
    """The event is about the job of this id; null if about none."""
    attempt: int | None
    """The event is about the attempt of this number; null if about none."""
    fields: dict[str, Any]
    """The fields say the same for programs; what there is depends on `kind`."""
