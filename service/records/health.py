"""Measured health of each table: the latest state, and samples of it over time."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from zlib import crc32

from sqlalchemy import BigInteger, Column, Float, Index, cast, func, select, text
from sqlmodel import Field, Session, SQLModel, col

from service.db.database import BigId, Json, UtcDateTime, upsert
from service.reader_cost import TARGET_FILE_BYTES, Shape
from service.records.jobs import JobKind
from service.records.report_columns import ReportedList, ReportedObject
from service.records.reports import IndexLayout, KeySetReport, StoppedAt, UnconvertibleDelete


class HealthStatus(StrEnum):
    """This is the health of a table. `blocked`: deletes can't be converted, or what is staged not published,
    or the job that should do it failed. `unknown`: the table can't be looked at. `lagging`: deletes, or what
    is staged, are older than the policy lets them become, with the time that a job takes. `degraded`: lookups
    cost more than they should, the last job of another kind failed, or maintenance that the policy wants has
    been due for two days. `healthy`: none of these."""

    HEALTHY = "healthy"
    LAGGING = "lagging"
    DEGRADED = "degraded"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"


GRAVITY = (
    HealthStatus.HEALTHY,
    HealthStatus.DEGRADED,
    HealthStatus.LAGGING,
    HealthStatus.UNKNOWN,
    HealthStatus.BLOCKED,
)
"""In this order, lists that are sorted by status."""


class Resolution(StrEnum):
    """This is how long a sample stays: the last of a day for years, the last of an hour for weeks."""

    ALL = "all"
    HOUR = "hour"
    DAY = "day"


_FAILED = text("poll_error IS NOT NULL")


DONE_ELSEWHERE_FOR = timedelta(days=90)
"""Since somebody else was last seen to maintain a table: as long he is taken to do it still, by whatever
schedule."""


class TableHealth(SQLModel, table=True):
    """The latest: pending figures from polling, the index from the last worker's report.

    Each table has one from its enrolment on."""

    __tablename__ = "table_health"
    __table_args__ = (
        Index("ix_table_health_status", "status", "is_removed", "table_id"),
        Index("ix_table_health_pending_equality_deletes", "pending_equality_deletes", "table_id"),
        Index("ix_table_health_read_overhead_seconds", "read_overhead_seconds", "table_id"),
        Index("ix_table_health_oldest_equality_delete_at", "oldest_equality_delete_at"),
        Index("ix_table_health_oldest_staged_at", "oldest_staged_at"),
        Index("ix_table_health_failed", "table_id", sqlite_where=_FAILED, postgresql_where=_FAILED),
    )

    table_id: str = Field(foreign_key="tables.id", primary_key=True)
    status: str = HealthStatus.UNKNOWN.value
    """As of the last poll, with its reason."""
    status_reason: str = ""
    what_to_do: str | None = None
    is_removed: bool = False
    """Whether its table is enrolled no more: said here too, for sums over all that are."""
    measured_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    iceberg_snapshot_id: int | None = Field(default=None, sa_type=BigInteger)
    pending_equality_delete_files: int = 0
    pending_equality_deletes: int = Field(default=0, sa_type=BigInteger)
    oldest_equality_delete_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    maintenance_due_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    """Since when maintenance is due that the policy wants, by `decisions`; None if none is."""
    pending_key_sets: list[dict[str, Any]] = Field(default_factory=list, sa_type=Json)
    """Of each key set with pending deletes: `equality_field_ids` in order, `files`, `oldest_at`, and `ages`.

    These are groups of files that were committed at about the same time, the oldest first: when the oldest of
    them was, how many files and how many deletes.
    """
    convertible_delete_files: int = 0
    """Pending files without those that the worker reported as unconvertible."""
    convertible_deletes: int = Field(default=0, sa_type=BigInteger)
    convertible_bytes: int = Field(default=0, sa_type=BigInteger)
    oldest_convertible_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    staged_snapshots: int = 0
    """Snapshots of the staging branch that are not published, as of the last poll."""
    staged_rows: int = Field(default=0, sa_type=BigInteger)
    """Rows, and row-level deletes, that these added."""
    oldest_staged_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    first_staged_id: int | None = Field(default=None, sa_type=BigInteger)
    stopped_at: dict[str, Any] | None = Field(default=None, sa_column=Column(ReportedObject(StoppedAt)))
    """What stops publication: a staged snapshot, as reported, or the branch as a whole, as polled."""
    staging_is_cut: bool = False
    """Whether Flink can't commit deletion vectors to the staging branch, whose history is not whole."""
    staging_is_unproven: bool = False
    """Whether only a job can tell that the table's branch still has all that was published."""
    kept_snapshots: int = 0
    """Of the staging branch, if none may expire, since Flink needs all."""
    watched_branch: str | None = None
    """The staging branch that is published without asking: the enrolment names it, or it had nothing that
    waits when a policy did, or somebody has published it."""
    small_manifests: int = 0
    """Of the head: what a rewriting would take."""
    small_data_files: int = 0
    """Of the last report, as the policy wants them rewritten."""
    deleted_data_files: int = 0
    """With many deleted rows, likewise."""
    small_delete_files: int = 0
    """Of positions, likewise."""
    snapshots: int = 0
    """Of the table, whatever branch has them."""
    oldest_snapshot_id: int | None = Field(default=None, sa_type=BigInteger)
    """Of those that no branch and no tag names."""
    oldest_snapshot_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    seen_snapshot_id: int | None = Field(default=None, sa_type=BigInteger)
    """The head at the last look, whatever was reported since."""
    done_elsewhere: dict[str, str] = Field(default_factory=dict, sa_type=Json)
    """Kinds of maintenance that somebody else than our jobs does, and when each was seen last."""
    reader_shapes: dict[str, dict[str, int]] = Field(default_factory=dict, sa_type=Json)
    """What a reader has to do with (service.reader_cost.Shape): `now`, when the table was first looked at
    (`enrolled`), just before there were last fewer files of a kind (`before`), and just after the last report
    (`reported`; empty until a look)."""
    rows_deleted_since: datetime | None = Field(default=None, sa_type=UtcDateTime)
    """Since when there have been rows that are deleted by position; anew once most of them went."""
    most_rows_deleted: int = Field(default=0, sa_type=BigInteger)
    """The most of them since then."""
    partitions: int | None = None
    """With data files: 0 of a table without partitions, else as last reported; None before a report."""
    target_file_bytes: int = Field(default=TARGET_FILE_BYTES, sa_type=BigInteger)
    """How large data files should be."""
    has_sort_order: bool | None = None
    """None before a look."""
    read_seconds: float = 0
    """What a read costs now, of the kind and reader by which tables are compared."""
    read_overhead_seconds: float = 0
    """So much of that is for deletes and small files."""
    read_before_seconds: float = 0
    """It cost this before files last went; as much as now if none ever did."""
    point_read_seconds: float = 0
    """The same reader's point read."""
    point_read_overhead_seconds: float = 0
    delete_files: int = 0
    """Equality delete files, deletion vectors and position delete files, which a full read joins."""
    delete_bytes: int = Field(default=0, sa_type=BigInteger)
    read_avoided_seconds: float = 0
    """So much more it would cost had no job taken away what deletes and small files cost."""
    read_saved_seconds: float = 0
    """The sum of that over time, for as many reads as the policy says; it only grows."""
    saved_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    """Up to when."""
    maintenance_seconds: float = 0
    """Of all attempts at jobs that maintain the table or its index, since it was enrolled."""
    data_files: int = 0
    unindexed_data_files: int = 0
    """Data files that the index does not cover: as last reported, and added since."""
    new_data_files: int = 0
    """Data files added since `indexed_snapshot_id`, which is what triggers the next index job."""
    new_rows: int = Field(default=0, sa_type=BigInteger)
    new_bytes: int = Field(default=0, sa_type=BigInteger)
    unverified_data_files: int = 0
    """The same since the last verification."""
    unverified_rows: int = Field(default=0, sa_type=BigInteger)
    unverified_bytes: int = Field(default=0, sa_type=BigInteger)
    has_keys: bool = False
    """Whether there is a key: declared, identifier fields, equality deletes, or indexed before."""
    last_poll: dict[str, Any] | None = Field(default=None, sa_type=Json)
    """What the next poller goes on from, as service.scheduling.poller writes it; None after a failure."""
    poll_error: dict[str, Any] | None = Field(default=None, sa_type=Json)
    report_snapshot_id: int | None = Field(default=None, sa_type=BigInteger)
    """Snapshot of the last report."""
    indexed_snapshot_id: int | None = Field(default=None, sa_type=BigInteger)
    """Snapshot all of which was indexed, by an index job or by another one."""
    indexed_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    """When that was reported."""
    verified_snapshot_id: int | None = Field(default=None, sa_type=BigInteger)
    """Snapshot that the last successful verification saw."""
    reported_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    key_sets: list[dict[str, Any]] = Field(
        default_factory=list, sa_column=Column(ReportedList(KeySetReport), nullable=False)
    )
    unconvertible: list[dict[str, Any]] = Field(
        default_factory=list, sa_column=Column(ReportedList(UnconvertibleDelete), nullable=False)
    )
    decisions: dict[str, Any] = Field(default_factory=dict, sa_type=Json)
    """The scheduler's latest decision per job kind: what, why, since when; and of maintenance, since when it
    is due."""
    counted_equality_deletes: int = Field(default=0, sa_type=BigInteger)
    """So many of its equality deletes the totals have, by `add_pending`: those of its last sample."""

    @property
    def others_seen_at(self) -> dict[JobKind, datetime]:
        """`done_elsewhere`, as it is meant."""
        return {JobKind(kind): datetime.fromisoformat(at) for kind, at in self.done_elsewhere.items()}

    def count_pending(self) -> int:
        """How many more the totals are to have of it, by `add_pending`; it has none once it is removed."""
        before, pending = self.counted_equality_deletes, min(self.pending_equality_deletes, _MOST_COUNTED)
        self.counted_equality_deletes = 0 if self.is_removed else pending
        return self.counted_equality_deletes - before

    def lag_seconds(self, now: datetime) -> float:
        """This is the age of the oldest live equality delete file; 0 when there is none."""
        return age_seconds(self.oldest_equality_delete_at, now)

    def staged_age_seconds(self, now: datetime) -> float:
        """Age of the oldest snapshot that is staged and not published; 0 when there is none."""
        return age_seconds(self.oldest_staged_at, now)


class IndexLayouts(SQLModel, table=True):
    """What the indexes of a table look like from within, as last reported; apart, since few ask for it."""

    __tablename__ = "index_layouts"

    table_id: str = Field(foreign_key="tables.id", primary_key=True)
    layouts: list[dict[str, Any]] = Field(
        default_factory=list, sa_column=Column(ReportedList(IndexLayout), nullable=False)
    )


_replace_layouts = upsert(IndexLayouts, lambda new: {"layouts": new.layouts})


def store_layouts(session: Session, table_id: str, layouts: Sequence[IndexLayout]) -> None:
    """Two jobs of a table may end at the same time, so the first row of one is no error of the other."""
    told = [one.model_dump() for one in layouts]
    _replace_layouts(session, {"table_id": table_id, "layouts": told})


_LASTING = text("resolution <> 'all'")
_MOST = ("hour_most_deletes", "hour_longest_lag_seconds", "day_most_deletes", "day_longest_lag_seconds")


class HealthSample(SQLModel, table=True):
    __tablename__ = "health_samples"
    __table_args__ = (
        # With all that a strip is made of: samples of a table lie far from each other.
        Index("ix_health_samples_table_id_id", "table_id", "id", "at", "resolution", *_MOST),
        Index(
            "ix_health_samples_most",
            *("resolution", "at", "table_id", "hour_most_deletes", "day_most_deletes"),
            sqlite_where=_LASTING,
            postgresql_where=_LASTING,
        ),
        {"sqlite_autoincrement": True},
    )

    id: int | None = Field(default=None, primary_key=True, sa_type=BigId)
    table_id: str = Field(foreign_key="tables.id")
    at: datetime = Field(sa_type=UtcDateTime, index=True)
    resolution: str
    """What it is the last of, by UTC: `day`, `hour`, or neither (`all`)."""
    status: str
    iceberg_snapshot_id: int | None = Field(default=None, sa_type=BigInteger)
    pending_equality_delete_files: int
    pending_equality_deletes: int = Field(sa_type=BigInteger)
    lag_seconds: float
    hour_most_deletes: int = Field(default=0, sa_type=BigInteger)
    """This and what follows is the most of its hour or day up to it, also of samples that are gone sooner."""
    hour_longest_lag_seconds: float = 0
    day_most_deletes: int = Field(default=0, sa_type=BigInteger)
    day_longest_lag_seconds: float = 0
    coverage: float | None
    entries: int = Field(sa_type=BigInteger)
    bytes: int = Field(sa_type=BigInteger)
    sorted_runs: int
    dead_ratio: float
    unconvertible: int
    staged_rows: int = Field(default=0, sa_type=BigInteger)
    staged_age_seconds: float = 0
    key_sets: list[dict[str, Any]] = Field(default_factory=list, sa_type=Json)
    data_files: int = 0
    """This and what follows, with pending deletes, is what a reader has to do with."""
    rows: int = Field(default=0, sa_type=BigInteger)
    vectors: int = Field(default=0, sa_type=BigInteger)
    positions: int = Field(default=0, sa_type=BigInteger)
    data_bytes: int = Field(default=0, sa_type=BigInteger)
    delete_bytes: int = Field(default=0, sa_type=BigInteger)
    snapshots: int = 0
    small_manifests: int = 0

    @property
    def shape(self) -> Shape:
        return Shape(
            self.data_files,
            self.rows,
            self.pending_equality_delete_files,
            self.pending_equality_deletes,
            self.vectors,
            self.positions,
            self.data_bytes,
            self.delete_bytes,
        )


class KeptSample(NamedTuple):
    """What a sample says of what is pending."""

    id: int
    table_id: str
    equality_deletes: int
    equality_delete_files: int
    lag_seconds: float

    @property
    def told(self) -> Sequence[float]:
        return self.equality_deletes, self.equality_delete_files, round(self.lag_seconds, 1)


def samples_after(session: Session, sample_id: int, most: int) -> list[KeptSample]:
    """The latest samples of all tables that have higher ids, the latest first."""
    columns = (
        HealthSample.id,
        HealthSample.table_id,
        HealthSample.pending_equality_deletes,
        HealthSample.pending_equality_delete_files,
        HealthSample.lag_seconds,
    )
    newest_first = select(*map(col, columns)).where(col(HealthSample.id) > sample_id)
    rows = session.execute(newest_first.order_by(col(HealthSample.id).desc()).limit(most))
    return [KeptSample(*row) for row in rows]


def pending_in_all(session: Session, now: datetime) -> tuple[int, int, float]:
    """Equality deletes that are pending in all enrolled tables, their files, and the age of the oldest one in
    seconds (0 for none)."""
    # As floats: SQLite's sum of integers fails beyond 64 bits.
    sums = (
        func.coalesce(func.sum(cast(column, Float)), 0)
        for column in (TableHealth.pending_equality_deletes, TableHealth.pending_equality_delete_files)
    )
    oldest = func.min(TableHealth.oldest_equality_delete_at)
    deletes, files, at = session.execute(select(*sums, oldest).where(~col(TableHealth.is_removed))).one()
    return int(deletes), int(files), age_seconds(at, now)


class PendingChange(SQLModel, table=True):
    """How the equality deletes pending in a sixteenth of all tables together changed within a minute.

    Old ones are merged (MERGED_CHANGES): of all tables together, within ten minutes or an hour.

    Invariant: these changes after a minute are what the sum of `TableHealth.counted_equality_deletes` differs
    by from the total at its end, so no page sums up samples.
    """

    __tablename__ = "pending_changes"

    minute: int = Field(primary_key=True, sa_type=BigId, sa_column_kwargs={"autoincrement": False})
    """Whole minutes since 1970, UTC: the first one, of several."""
    part: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    """Which sixteenth: polls that end at the same time would wait for each other if all had one row."""
    equality_deletes: int = Field(sa_type=BigInteger)


_PARTS = 16
KEPT_CHANGES = timedelta(days=90)
"""The longest span that the totals are drawn for."""
MERGED_CHANGES = ((timedelta(days=8), 60), (timedelta(days=2), 10), (timedelta(hours=2), 1))
"""From which age on there is one row for so many minutes: as finely as totals over spans that reach so far
back are told, so that a page reads few rows."""
_MOST_COUNTED = 10**14
"""Of one table: what a catalog makes up must not make the totals of the others overflow."""


_change = upsert(
    PendingChange,
    lambda new: {"equality_deletes": col(PendingChange.equality_deletes) + new.equality_deletes},
)


def add_pending(session: Session, table_id: str, more: int, now: datetime) -> None:
    """Let the totals have so many more deletes of a table: nothing else is written after this.

    Its row of `tables` is locked, so nobody else counts it meanwhile. Tables share the rows of a minute, for
    which others wait until the transaction ends.
    """
    if more:
        add_change(session, minute_of(now), crc32(table_id.encode()) % _PARTS, more)


def add_change(session: Session, minute: int, part: int, change: int) -> None:
    session.flush()
    _change(session, {"minute": minute, "part": part, "equality_deletes": change})


def minute_of(moment: datetime) -> int:
    """As PendingChange numbers them."""
    return int(moment.timestamp() // 60)


def age_seconds(oldest: datetime | None, now: datetime) -> float:
    return max((now - oldest).total_seconds(), 0.0) if oldest is not None else 0.0
