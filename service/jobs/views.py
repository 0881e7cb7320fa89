"""Jobs as users see them: with their attempts, and what holds up those that wait."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select

from service.db.database import utc_now
from service.jobs import fair_share, queue
from service.jobs.caveats import caveat_of
from service.jobs.models import AttemptView, JobView
from service.records.catalogs import Catalog
from service.records.jobs import Attempt, Job, JobKind, JobStatus
from service.records.tables import EnrolledTable
from telemetry.plurals import counted
from telemetry.traces import trace_id_of


def pause_reason(table: EnrolledTable, catalog: Catalog, *, is_system_paused: bool) -> str | None:
    """Why no job of a table starts, or None."""
    if table.paused and table.deleted_at is None:
        return f"table {table.name} is paused"
    if catalog.paused:
        return f"catalog {catalog.name} is paused"
    return "the system is paused" if is_system_paused else None


def why_paused(session: Session, table: EnrolledTable) -> str | None:
    """The same, of what is stored now."""
    catalog = session.get_one(Catalog, table.catalog_id)
    return pause_reason(table, catalog, is_system_paused=queue.is_system_paused(session))


def view(session: Session, job: Job) -> JobView:
    return views(session, [job])[0]


def views(session: Session, jobs: Sequence[Job]) -> list[JobView]:
    """Jobs with their attempts, in the given order."""
    if not jobs:
        return []
    session.flush()
    attempts: dict[str, list[AttemptView]] = {job.id: [] for job in jobs}
    rows = select(Attempt).where(col(Attempt.job_id).in_(list(attempts))).order_by(col(Attempt.attempt))
    for row in session.exec(rows):
        attempts[row.job_id].append(AttemptView.model_validate(row, from_attributes=True))
    places = select(EnrolledTable, Catalog).join(Catalog, col(Catalog.id) == col(EnrolledTable.catalog_id))
    of_jobs = session.exec(places.where(col(EnrolledTable.id).in_({job.table_id for job in jobs})))
    tables = {table.id: (table, catalog) for table, catalog in of_jobs}
    others = read_others(
        session,
        [job for job in jobs if job.status == JobStatus.QUEUED.value],
        [catalog for _, catalog in tables.values()],
    )
    result = []
    for job in jobs:
        table, catalog = tables[job.table_id]
        result.append(
            JobView(
                **job.model_dump(include=JobView.model_fields.keys() & Job.model_fields.keys()),
                table=table.name,
                catalog=catalog.name,
                branch=table.branch,
                waiting_for=waiting_for(job, table, catalog, others),
                cancel_requested=job.cancel_requested_at is not None,
                trace_id=trace_id_of(job.traceparent),
                attempts=attempts[job.id],
                caveat=caveat_of(JobKind(job.kind), job.result, dry_run=job.dry_run)
                if job.status == JobStatus.SUCCEEDED.value
                else None,
            )
        )
    return result


@dataclass(frozen=True)
class Others:
    """What goes on besides some queued jobs."""

    is_system_paused: bool
    writers: Mapping[str, Job]
    """Running jobs that write tables of theirs, by the tables' UUIDs."""
    begun: Mapping[str, Job]
    """Jobs that go first although they do not run, by the ids of those that wait for them."""
    running: Mapping[str, int]
    """Number of jobs that run, by the ids of catalogs, if any of these has a limit."""


def read_others(session: Session, queued: Sequence[Job], catalogs: Iterable[Catalog]) -> Others:
    """For any number of queued jobs, of these catalogs, with the same few queries; none for no jobs."""
    if not queued:
        return Others(is_system_paused=False, writers={}, begun={}, running={})
    writers = session.exec(
        select(Job).where(
            col(Job.table_uuid).in_({job.table_uuid for job in queued}),
            Job.status == JobStatus.RUNNING.value,
            col(Job.writes),
        )
    )
    begun: dict[str, Job] = {}
    if behind := [job.id for job in queued if JobKind(job.kind).lets_snapshots_expire]:
        waiting = aliased(Job)
        found = session.exec(
            select(waiting.id, Job)
            .where(Job.table_uuid == waiting.table_uuid, fair_share.goes_first(Job, waiting))
            .where(col(waiting.id).in_(behind))
            .order_by(col(Job.id).desc())
        )
        begun = dict(found.all())
    is_limited = any(catalog.max_running_jobs is not None for catalog in catalogs)
    return Others(
        is_system_paused=queue.is_system_paused(session),
        writers={job.table_uuid: job for job in writers},
        begun=begun,
        running=fair_share.running_by_catalog(session) if is_limited else {},
    )


def waiting_for(job: Job, table: EnrolledTable, catalog: Catalog, others: Others) -> str | None:
    """What holds a queued job up, in a sentence; None for other jobs."""
    if job.status != JobStatus.QUEUED.value:
        return None
    paused = pause_reason(table, catalog, is_system_paused=others.is_system_paused)
    if paused is not None:
        return f"Waits: {paused}."
    if job.held_because is not None:
        return f"Waits until {job.available_at:%Y-%m-%d %H:%M:%S} UTC: {job.held_because}."
    if job.available_at > utc_now():
        if job.attempt == 0:
            return f"Waits until {job.available_at:%Y-%m-%d %H:%M:%S} UTC, as requested."
        return f"Waits until {job.available_at:%H:%M:%S} UTC before the next attempt."
    if job.writes and job.table_uuid in others.writers:
        running = others.writers[job.table_uuid]
        return f"Waits for job {running.id} ({JobKind(running.kind).words}), which writes the same table."
    if (begun := others.begun.get(job.id)) is not None:
        words = JobKind(begun.kind).words
        return f"Waits for job {begun.id} ({words}), which has begun to write the same table, to end."
    limit = catalog.max_running_jobs
    if limit is not None and others.running.get(catalog.id, 0) >= limit:
        return f"Waits: {counted(limit, 'job')} of catalog {catalog.name} run, as many as it allows."
    return "Waits for a free worker."
