"""What is asked and told about erasures, and what a receipt says."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, model_validator
from pydantic import Field as ModelField

from service.http.messages import Message, example
from service.records.jobs import JobStatus
from service.records.reports import Amount, ErasureReport, KeyCounts
from service.rows.models import DeleteRequest

TABLES_AT_MOST = 100
"""Of one request: each of them has the keys until its job has ended."""
TableName = Annotated[str, ModelField(min_length=1, max_length=1_000)]
KeyState = Literal["gone", "invisible", "held", "unknown"]


class ErasureRequest(DeleteRequest):
    """Keys to be erased from tables."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra=example(
            {"keys": [{"customer_id": 17}], "key_columns": ["customer_id"], "tables": ["sales.orders"]},
            {"keys": [{"customer_id": 17}], "pattern": "sales.*", "catalog": "local", "dry_run": True},
        ),
    )

    tables: list[TableName] | None = ModelField(default=None, min_length=1, max_length=TABLES_AT_MOST)
    """The keys are erased from these enrolled tables, by id or by name: `sales.orders`, or with its catalog
    `local.sales.orders`."""
    pattern: TableName | None = None
    """The keys are erased from every enrolled table whose dotted name matches this, such as `sales.*`."""
    catalog: TableName | None = None
    """Only tables of this catalog are meant, which is given by name or id."""
    expire_snapshots: bool = True
    """Expire the snapshots that still reach the rows and that nobody holds. If false, the receipt only says
    which they are."""
    note: str | None = ModelField(default=None, max_length=1_000)
    """The receipt repeats it, such as a ticket's number. It is kept: write no personal data."""
    dry_run: bool = False
    """Do nothing, and keep no keys: say which tables are meant."""

    @model_validator(mode="after")
    def _check_tables(self) -> Self:
        if (self.tables is None) == (self.pattern is None):
            raise ValueError("tables are named one by one, or by a pattern")
        return self


class PlannedTable(Message):
    """This is a table that an erasure would be of."""

    table_id: str
    """The id names the enrolment."""
    table: str
    """The table's name is written with dots."""
    catalog: str
    """The catalog has this name."""
    branch: str
    """The rows of this branch are deleted; snapshots of others only hold them."""
    refused_because: str | None
    """This is why the erasure would be refused because of this table; null if it would not."""


class ErasurePlan(Message):
    """This is what an erasure would be: nothing was queued, and no key is kept."""

    dry_run: Literal[True] = True
    """It is a dry run's answer."""
    tables: list[PlannedTable]
    """Each of these would have a job."""


class ErasureTableView(Message):
    """One table's part of an erasure says how far it has come."""

    table_id: str
    """The id names the enrolment."""
    table_uuid: str
    """Iceberg knows the table by this id."""
    table: str
    """The table's name is written with dots."""
    catalog: str
    """The catalog has this name."""
    branch: str
    """The rows of this branch are deleted."""
    job_id: str
    """This job does it."""
    status: JobStatus
    """This is how far the job has come."""
    waiting_for: str | None
    """This is why a queued job does not run yet, in words."""
    cancelled_because: str | None
    """This is why the job was cancelled, or is to stop; null if it is not."""
    started_at: datetime | None
    """The first attempt was started at this time; null before."""
    ended_at: datetime | None
    """It ended at this time; null before."""
    error: dict[str, object] | None
    """This is why it failed: code, title, detail and remedy; null if it did not."""
    counts: KeyCounts | None
    """This counts the keys in each state, as the worker saw them; null as long as it has not reported."""


class ErasureSummary(Message):
    """This is an erasure, and how far it has come."""

    id: str
    """The id names the erasure."""
    requested_by: str
    """It was asked for by the holder of this name."""
    created_at: datetime
    """It was asked for at this time."""
    note: str | None
    """The note is as it was given."""
    pattern: str | None
    """The tables matched this pattern; null if they were named."""
    keys: int | None
    """This many keys came with the request; null if they are in files."""
    files: list[str]
    """These files have the keys, if they did not come with the request."""
    key_columns: list[str] | None
    """These columns make the key; null for what each table says."""
    expire_snapshots: bool
    """This says whether snapshots are expired that nobody holds."""
    status: JobStatus
    """This is how far its jobs have come. Once all have ended: `succeeded` if each has; else `failed` if one
    has, or `cancelled`."""
    jobs: dict[JobStatus, int]
    """This counts its jobs by status; a status that none has is left out."""


class ErasureView(ErasureSummary):
    """An erasure is told with its tables."""

    tables: list[ErasureTableView]
    """Each table has a job of its own."""


class ReceiptKey(Message):
    """One key has this state in one table."""

    hash: str
    """This is the HMAC-SHA256 of the key as it was sent, with ICESTREAM_ERASURE_SECRET, in hexadecimal
    digits."""
    state: KeyState
    """This is what is known of it."""
    held_by: list[int]
    """These are the numbers in `held`, from 0, of what holds it or keeps it from being known."""


class ReceiptTable(Message):
    """This is what became of the keys in one table, as its worker reported."""

    table_id: str
    """The id names the enrolment."""
    table_uuid: str
    """Iceberg knows the table by this id."""
    table: str
    """The table's name is written with dots."""
    catalog: str
    """The catalog has this name."""
    branch: str
    """The rows of this branch were deleted."""
    job_id: str
    """This job did it."""
    status: JobStatus
    """This is how the job has ended, or how far it is."""
    cancelled_because: str | None
    """This is why the job was cancelled; null if it was not."""
    error: dict[str, object] | None
    """This is why it failed; null if it did not."""
    started_at: datetime | None
    """The first attempt was started at this time; null before."""
    ended_at: datetime | None
    """It ended at this time; null before."""
    counts: KeyCounts | None
    """This counts the keys in each state; null if nothing is known, as of a job that has not succeeded."""
    report: ErasureReport | None
    """This is what the worker did and saw, with snapshot ids and times; null if nothing is known."""
    keys: list[ReceiptKey]
    """These are the keys of the request, in its order; none if they were in files."""


class Receipt(Message):
    """This is what an erasure came to, as far as was seen, and no more."""

    erasure_id: str
    """It is about the erasure of this id."""
    complete: bool
    """This says whether all jobs had ended; only then it stays as it is."""
    issued_at: datetime
    """The time at which it was made."""
    icestream_version: str
    """The service that made it has this version."""
    requested_by: str
    """The erasure was asked for by the holder of this name."""
    requested_at: datetime
    """The erasure was asked for at this time."""
    note: str | None
    """The note is as it was given."""
    expire_snapshots: bool
    """This says whether snapshots were to be expired that nobody held."""
    key_columns: list[str] | None
    """These columns make the key; null for what each table says."""
    keys: Amount | None
    """This many keys came with the request; null if they were in files."""
    erasure_secret_id: str | None
    """This is the first 16 hexadecimal digits of HMAC-SHA256 of `erasure_secret_id`, with the
    ICESTREAM_ERASURE_SECRET that hashed the keys; null if they were in files."""
    files: list[str]
    """These files had the keys: the service does not read them, so keys are given by number alone."""
    tables: list[ReceiptTable]
    """Each table says what has become of the keys in it."""
