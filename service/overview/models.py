"""What is told about the whole installation at once."""

from datetime import datetime
from typing import Literal

from service.http.messages import Message
from service.records.catalogs import CatalogStatus
from service.records.health import HealthStatus
from service.records.jobs import AttemptStatus, JobKind


class Concern(Message):
    """Something is wrong that needs a person."""

    title: str
    """The title says in short what is the matter."""
    detail: str
    """The detail says in words what happened; empty if the title says it all."""
    remedy: str | None
    """The remedy says what to do about it; null if nothing else is known than to look."""
    path: str
    """The page about it has this path, at the service's address."""
    severity: Literal["error", "warning"] = "warning"
    """An `error` keeps work from being done; a `warning` may come to that."""


class Overview(Message):
    """These are sums over all tables as of their last polls, and what needs attention."""

    version: str
    """The service has this version of Icestream."""
    paused: bool
    """While true, no job of any table starts."""
    tables: dict[HealthStatus, int]
    """The service has this many enrolled tables of each health."""
    catalogs: dict[CatalogStatus, int]
    """The service has this many registered catalogs of each status."""
    pending_equality_deletes: int
    """The live equality delete files of all tables have this many rows."""
    pending_equality_delete_files: int
    """All tables together have this many live equality delete files."""
    lag_seconds: float
    """The oldest live equality delete file of all tables is this many seconds old; 0 when there is none."""
    read_seconds: float
    """A full read of each table takes this many seconds altogether, of Spark's processor time, as a model
    estimates it; the health of a table has more."""
    read_overhead_seconds: float
    """This part of `read_seconds` goes for deletes and small files."""
    read_before_seconds: float
    """The full reads took this many seconds before there were last fewer data files, equality delete files or
    deletion vectors, of each table where that was so."""
    point_read_seconds: float
    """Looking for one key in each table takes this many seconds altogether, of Spark's processor time, as a
    model estimates it."""
    point_read_overhead_seconds: float
    """This part of `point_read_seconds` goes for deletes and small files."""
    delete_files: int
    """A full read of each table joins this many equality delete files, deletion vectors and position delete
    files with the data files."""
    delete_bytes: int
    """The delete files have this many bytes."""
    small_data_files: int
    """This many data files are small, where policies have them rewritten, as the last jobs saw them."""
    small_delete_files: int
    """This many position delete files are small, where policies have them rewritten, as the last jobs saw
    them."""
    small_manifests: int
    """This many manifests are smaller than they should be."""
    snapshots: int
    """All tables together have this many snapshots."""
    read_avoided_seconds: float
    """The full reads would take this many seconds more had no job taken away what deletes and small files
    cost since each table was enrolled."""
    read_saved_seconds: float
    """Full reads were spared this many seconds altogether since each table was enrolled, as many of them as
    policies say."""
    maintenance_seconds: float
    """Jobs that maintain tables have taken this many seconds since these were enrolled."""
    staged_rows: int
    """This many rows and row-level deletes of staging branches are not published."""
    running_jobs: int
    """Workers run this many jobs now."""
    queued_jobs: int
    """The queue has this many jobs that wait for a worker or for their time."""
    alive_workers: int
    """This many workers were heard of lately, and can run jobs."""
    concerns: list[Concern]
    """These things need attention, the gravest first; none if all is well."""


class Run(Message):
    """This is an attempt at a job of the table."""

    job_id: str
    """The attempt is one at the job of this id."""
    kind: JobKind
    """The job is of this kind."""
    dry_run: bool
    """The job changes nothing if this is true."""
    attempt: int
    """The attempt has this number."""
    status: AttemptStatus
    """The attempt runs, or ended like this."""
    worker_name: str
    """The worker that ran it has this name."""
    started_at: datetime
    """The attempt was started at this time."""
    ended_at: datetime | None
    """The attempt ended at this time; null while it runs."""


class Waiting(Message):
    """This is a job of the table that no worker has now."""

    job_id: str
    """The job has this id."""
    kind: JobKind
    """The job is of this kind."""
    dry_run: bool
    """The job changes nothing if this is true."""
    since: datetime
    """The job has waited since this time, at which it was made or its last attempt ended."""
    available_at: datetime
    """No worker takes the job before this time."""


class TableTimeline(Message):
    """This is how one table did, with a value for each interval."""

    table_id: str
    """The table is enrolled under this id."""
    table: str
    """The table's name has dots between its parts."""
    catalog: str
    """The table is one of this catalog."""
    status: HealthStatus
    """One word says how the table was doing at its last poll."""
    pending_equality_deletes: list[int | None]
    """The live equality delete files had this many rows at most; null where nothing was measured:
    before the first look, or while nobody could look at the table for ten minutes, or twenty polls
    if these take longer."""
    lag_seconds: list[float | None]
    """The oldest live equality delete file was this many seconds old at most; null where the deletes are
    null."""
    runs: list[Run]
    """These attempts ran at some time of the span, the oldest first: of all jobs that have not ended, and of
    40 others at most, half of which ended last, while the rest took longest among the last 200."""
    has_more_runs: bool
    """The list of runs leaves out other jobs that ran in the span if this is true."""
    waiting: list[Waiting]
    """These jobs wait now and did in the span, those that have waited longest first; 5 at most."""
    waiting_jobs: int
    """The table has this many jobs that wait now and did in the span."""


class Timeline(Message):
    """These are tables over time, with what ran for them, on the same axis."""

    since: datetime
    """The first interval begins at this time, at the time that was asked for or a little before."""
    until: datetime
    """The last interval ends at this time."""
    interval_seconds: int
    """Each interval has this length; there are 100 of them at most."""
    items: list[TableTimeline]
    """The tables are in the order of `sort`."""
    next_cursor: str | None
    """The next tables are asked for with this as `cursor`; null after the last one."""
