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
    """The table is enrolled under this id."""
    table: str
    """The table's name is written with dots."""
    catalog: str
    """The table is in the catalog of this name."""
    branch: str
    """The rows of this branch are deleted; snapshots of others only hold them."""
    refused_because: str | None
    """The erasure would be refused because of this table for this reason; null if it would not."""


class ErasurePlan(Message):
    """This is what an erasure would be: nothing was queued, and no key is kept."""

    dry_run: Literal[True] = True
    """The answer is one of a dry run, which is always true here."""
    tables: list[PlannedTable]
    """The erasure would have a job for each of these tables."""


class ErasureTableView(Message):
    """One table's part of an erasure says how far it has come."""

    table_id: str
    """The table is enrolled under this id."""
    table_uuid: str
    """Iceberg knows the table by this id."""
    table: str
    """The table's name is written with dots."""
    catalog: str
    """The table is in the catalog of this name."""
    branch: str
    """The rows of this branch are deleted."""
    job_id: str
    """The job of this id erases the keys from the table."""
    status: JobStatus
    """The job has come this far."""
    waiting_for: str | None
    """A queued job does not run yet for this reason, in words; null for other jobs."""
    cancelled_because: str | None
    """The job was cancelled, or is to stop, for this reason; null if it is not."""
    started_at: datetime | None
    """The first attempt was started at this time; null before."""
    ended_at: datetime | None
    """The job ended at this time; null before."""
    error: dict[str, object] | None
    """The job failed with this error: code, title, detail and remedy; null if it did not."""
    counts: KeyCounts | None
    """This counts the keys in each state, as the worker saw them; null as long as it has not reported."""


class ErasureSummary(Message):
    """This is an erasure, and how far it has come."""

    id: str
    """The erasure is named by this id in later calls."""
    requested_by: str
    """The erasure was asked for by the holder of this name."""
    created_at: datetime
    """The erasure was asked for at this time."""
    note: str | None
    """The request gave this note, such as a ticket's number; null if it gave none."""
    pattern: str | None
    """The tables matched this pattern; null if they were named."""
    keys: int | None
    """This many keys came with the request; null if they are in files."""
    files: list[str]
    """These files have the keys, if they did not come with the request."""
    key_columns: list[str] | None
    """These columns make the key; null for what each table says."""
    expire_snapshots: bool
    """The snapshots that still reach the rows are expired if nobody holds them and this is true."""
    status: JobStatus
    """The jobs of the erasure have come this far. Once all have ended: `succeeded` if each has; else `failed`
    if one has, or `cancelled`."""
    jobs: dict[JobStatus, int]
    """The erasure has this many jobs of each status; a status that none has is left out."""


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
    """The key is in this state: `gone`, say, if it was in no file that is left."""
    held_by: list[int]
    """These are the numbers in `held`, from 0, of what holds it or keeps it from being known."""


class ReceiptTable(Message):
    """This is what became of the keys in one table, as its worker reported."""

    table_id: str
    """The table is enrolled under this id."""
    table_uuid: str
    """Iceberg knows the table by this id."""
    table: str
    """The table's name is written with dots."""
    catalog: str
    """The table is in the catalog of this name."""
    branch: str
    """The rows of this branch were deleted."""
    job_id: str
    """The job of this id erased the keys from the table."""
    status: JobStatus
    """The job has ended like this, or has come this far."""
    cancelled_because: str | None
    """The job was cancelled for this reason; null if it was not."""
    error: dict[str, object] | None
    """The job failed with this error: code, title, detail and remedy; null if it did not."""
    started_at: datetime | None
    """The first attempt was started at this time; null before."""
    ended_at: datetime | None
    """The job ended at this time; null before."""
    counts: KeyCounts | None
    """This counts the keys in each state; null if nothing is known, as of a job that has not succeeded."""
    report: ErasureReport | None
    """This is what the worker did and saw, with snapshot ids and times; null if nothing is known."""
    keys: list[ReceiptKey]
    """These are the keys of the request, in its order; none if they were in files."""


class Receipt(Message):
    """This is what an erasure came to, as far as was seen, and no more."""

    erasure_id: str
    """The receipt is about the erasure of this id."""
    complete: bool
    """The receipt stays as it is once this is true: all jobs had ended."""
    issued_at: datetime
    """The receipt was made at this time."""
    icestream_version: str
    """The service that made the receipt has this version."""
    requested_by: str
    """The erasure was asked for by the holder of this name."""
    requested_at: datetime
    """The erasure was asked for at this time."""
    note: str | None
    """The request gave this note, such as a ticket's number; null if it gave none."""
    expire_snapshots: bool
    """The snapshots that still reached the rows were to be expired if nobody held them and this is true."""
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
