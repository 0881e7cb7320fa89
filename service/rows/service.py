"""Rows are written by jobs, which no policy starts and no other request joins."""

from sqlmodel import Session, col, func, select

from service.auth.models import Principal
from service.auth.service import authorize
from service.catalogs.allowlists import check_location
from service.db.database import utc_now
from service.errors import ConflictError
from service.jobs import queue
from service.jobs.models import JobView
from service.jobs.service import refuse_paused
from service.jobs.views import view
from service.policies.effective import effective_policy
from service.records.api_keys import Role
from service.records.jobs import Job, JobKind, JobStatus
from service.records.tables import EnrolledTable, audited_name, get_table
from service.rows.models import DeleteRequest, UpsertRequest, WriteRequest
from service.settings import Settings

WAITING_AT_MOST = 100
"""Of one table: each keeps its rows in the database until it has ended."""


def upsert_rows(
    session: Session, settings: Settings, caller: Principal, table_id: str, request: UpsertRequest
) -> JobView:
    """Queue a job that adds rows and deletes those of the same keys; raises as `_write`."""
    return _write(session, settings, caller, table_id, JobKind.UPSERT, request)


def delete_rows(
    session: Session, settings: Settings, caller: Principal, table_id: str, request: DeleteRequest
) -> JobView:
    """Queue a job that deletes the rows of keys; raises as `_write`."""
    return _write(session, settings, caller, table_id, JobKind.DELETE, request)


def _write(
    session: Session,
    settings: Settings,
    caller: Principal,
    table_id: str,
    kind: JobKind,
    request: WriteRequest,
) -> JobView:
    """Raises NotFoundError, InvalidError for a file at a place that is not allowed, and ConflictError while
    table, catalog or system are paused, or too many wait.

    Neither the audit log nor the job tells what the rows hold.
    """
    # Whoever removes the table waits, and cancels this job then; whoever writes to it as well is counted.
    table = get_table(session, table_id, for_update=True)
    sent = request.sent
    source = {"files": request.files} if sent is None else {"rows": len(sent)}
    told = {**source, "dry_run": request.dry_run}
    authorize(session, caller, Role.OPERATOR, f"rows.{kind.value}", audited_name(session, table), **told)
    for location in request.files or ():
        check_location(settings, location)
    refuse_paused(session, table)
    refuse_too_many(session, table)
    options = request.model_dump(
        exclude={"rows", "keys", "files", "dry_run", "priority"}, exclude_defaults=True
    )
    job, _ = queue.enqueue(
        session,
        table,
        kind,
        effective_policy(session, table),
        utc_now(),
        dry_run=request.dry_run,
        parameters={**source, **options},
        requested_by=caller.name,
        priority=request.priority,
        rows=sent,
    )
    return view(session, job)


def refuse_too_many(session: Session, table: EnrolledTable) -> None:
    """Raises ConflictError while too many jobs with rows wait for a table."""
    kinds = [kind.value for kind in JobKind if kind.writes_rows]
    of_table = select(func.count()).where(Job.table_id == table.id, col(Job.kind).in_(kinds))
    number = session.exec(of_table.where(Job.status == JobStatus.QUEUED.value)).one()
    if number >= WAITING_AT_MOST:
        raise ConflictError(
            "too-many-writes",
            f"{number:,} jobs that write rows wait for {table.name}.",
        )
