"""Erasures: a job for each table, and a receipt that is kept when the jobs' history has ended."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from sqlalchemy import or_
from sqlalchemy.orm import defer
from sqlmodel import Session, col, select

from service.auth.models import Principal
from service.auth.service import authorize, require_role
from service.catalogs.allowlists import check_location
from service.catalogs.service import find_catalog
from service.db.database import FOR_UPDATE, Database, utc_now
from service.erasures.models import (
    TABLES_AT_MOST,
    ErasurePlan,
    ErasureRequest,
    ErasureSummary,
    ErasureTableView,
    ErasureView,
    PlannedTable,
    Receipt,
)
from service.erasures.receipt import key_hash, make_receipt, report_of, secret_id, secrets_of, sign
from service.errors import ConflictError, InvalidError, NotFoundError
from service.http.paging import Page, PageRequest, Sorting, read_page, within
from service.jobs import queue
from service.jobs.models import JobView
from service.jobs.service import refuse_paused
from service.jobs.views import views
from service.policies.effective import effective_policy
from service.records.api_keys import Role
from service.records.catalogs import Catalog
from service.records.erasures import Erasure, ErasureTable
from service.records.jobs import Job, JobKind, JobStatus
from service.records.reports import ErasureReport
from service.records.tables import EnrolledTable, audited_name, full_name, get_table, not_enrolled
from service.rows.service import refuse_too_many
from service.settings import Settings
from service.tables.names import Pair, are_named, enrolled_tables, only_one

SORTING = Sorting({"created_at": Erasure.created_at}, key=Erasure.id, default="-created_at")
_RECEIPT: Any = Erasure.receipt
"""Of many megabytes: no list reads it."""


def create_erasure(
    session: Session, settings: Settings, caller: Principal, request: ErasureRequest
) -> ErasureView | ErasurePlan:
    """Queue a job for each table, or none at all; a dry run says which tables are meant.

    Raises InvalidError for tables that are not there or too many, and for files at places that are not
    allowed; ConflictError without the secrets, while a table, its catalog or the system are paused, or if too
    many writes wait for a table.

    Neither the audit log nor the jobs tell the keys.
    """
    require_role(caller, Role.OPERATOR, "erasure.create", request.pattern or ", ".join(request.tables or ()))
    secret, _ = secrets_of(settings)
    for location in request.files or ():
        check_location(settings, location)
    found = _tables_of(session, request)
    told = {"keys": len(request.keys)} if request.keys is not None else {"files": request.files}
    for table, _ in found:
        name = audited_name(session, table)
        authorize(session, caller, Role.OPERATOR, "erasure.create", name, **told, dry_run=request.dry_run)
    if request.dry_run:
        return ErasurePlan(tables=[_planned(session, table, catalog) for table, catalog in found])
    now = utc_now()
    erasure = Erasure(
        requested_by=caller.name,
        created_at=now,
        key_hashes=[key_hash(secret, key) for key in request.keys or ()],
        erasure_secret_id=None if request.keys is None else secret_id(secret),
        files=request.files or [],
        **request.model_dump(include={"note", "pattern", "key_columns", "expire_snapshots"}),
    )
    session.add(erasure)
    session.flush()
    parameters = {
        "erasure_id": erasure.id,
        "key_columns": request.key_columns,
        "files": erasure.files,
        "expire_snapshots": erasure.expire_snapshots,
    }
    # In one order, so that no two requests wait for each other; whoever removes a table waits for this one.
    for table_id in sorted(table.id for table, _ in found):
        get_table(session, table_id, for_update=True)
    for number, (table, catalog) in enumerate(found):
        _refuse(session, table)
        job, _ = queue.enqueue(
            session,
            table,
            JobKind.ERASE,
            effective_policy(session, table),
            now,
            parameters=parameters,
            requested_by=caller.name,
            priority=request.priority,
            rows=request.keys,
        )
        part = ErasureTable(
            erasure_id=erasure.id,
            number=number,
            job_id=job.id,
            table_id=table.id,
            table_uuid=table.table_uuid,
            table=table.name,
            catalog=catalog.name,
            branch=table.branch,
        )
        session.add(part)
    session.flush()
    return view(session, erasure)


def list_erasures(
    session: Session, page: PageRequest, *, since: datetime | None = None, until: datetime | None = None
) -> Page[ErasureSummary]:
    """Those that were asked for from `since` until before `until`."""
    query = select(Erasure).where(*within(col(Erasure.created_at), since, until))
    query = query.options(defer(_RECEIPT, raiseload=True))
    return read_page(session, query, page, SORTING, lambda rows: _summaries(session, rows))


def get_erasure(session: Session, erasure_id: str, *, for_update: bool = False) -> Erasure:
    """Raises NotFoundError."""
    row = session.get(Erasure, erasure_id, with_for_update=FOR_UPDATE if for_update else None)
    if row is None:
        raise NotFoundError(
            "erasure-not-found", f"There is no erasure {erasure_id!r}.", "Look in the list of erasures."
        )
    return row


def view(session: Session, erasure: Erasure) -> ErasureView:
    (summary,) = _summaries(session, [erasure])
    parts = _parts(session, erasure)
    jobs = _jobs(session, parts)
    tables = [_table_view(part, jobs.get(part.job_id)) for part in parts]
    return ErasureView(**summary.model_dump(), tables=tables)


def read_receipt(database: Database, settings: Settings, erasure_id: str) -> tuple[bytes, dict[str, str]]:
    """The receipt as it was issued, or as it is as long as jobs go on; and the headers that sign it.

    Raises NotFoundError, and ConflictError without the secrets.
    """
    with database.read() as session:
        erasure = get_erasure(session, erasure_id)
        _, signers = secrets_of(settings)
        kept = erasure.receipt
        receipt = None if kept is not None else _receipt_now(session, erasure)
    if receipt is not None:
        kept = receipt.model_dump_json()
        if receipt.complete:
            kept = _keep(database, erasure_id, kept)
    body = (kept or "").encode()
    return body, sign(signers, erasure_id, utc_now(), body)


def read_reports(session: Session, erasure: Erasure) -> dict[str, ErasureReport]:
    """What workers have reported, by the ids of jobs."""
    told = ((part.job_id, report_of(part)) for part in _parts(session, erasure))
    return {job_id: report for job_id, report in told if report is not None}


def _receipt_now(session: Session, erasure: Erasure) -> Receipt:
    """What a receipt would say now."""
    parts = _parts(session, erasure)
    statuses = _statuses(session, parts)
    return make_receipt(erasure, [(part, statuses[part.job_id]) for part in parts], utc_now())


def _keep(database: Database, erasure_id: str, receipt: str) -> str:
    """Issue a receipt, or get the one that somebody else was faster to issue."""
    with database.write() as session:
        erasure = get_erasure(session, erasure_id, for_update=True)
        if erasure.receipt is None:
            erasure.receipt = receipt
            session.add(erasure)
        return erasure.receipt


def _tables_of(session: Session, request: ErasureRequest) -> list[tuple[EnrolledTable, Catalog]]:
    """What a request names, each once, by catalogs and names. Raises InvalidError."""
    query = enrolled_tables()
    if request.catalog is not None:
        catalog = find_catalog(session, request.catalog)
        if catalog is None:
            raise InvalidError(
                "catalog-not-found", f"There is no catalog {request.catalog!r}.", "Name one of the list."
            )
        query = query.where(EnrolledTable.catalog_id == catalog.id)
    if request.pattern is not None:
        matched = [pair for pair in session.exec(query) if fnmatchcase(pair[0].name, request.pattern)]
        _check_number(matched, request.pattern)
        return matched
    names = request.tables or []
    found = session.exec(query.where(or_(col(EnrolledTable.id).in_(names), are_named(names)))).all()
    chosen = {_named(found, name) for name in names}
    return [pair for pair in found if pair[0].id in chosen]


def _check_number(matched: Sequence[object], pattern: str) -> None:
    if not matched:
        raise InvalidError(
            "table-not-enrolled", f"No enrolled table matches {pattern!r}.", "Look in the list of tables."
        )
    if len(matched) > TABLES_AT_MOST:
        raise InvalidError(
            "too-many-matches",
            f"It matches {len(matched):,} tables; one request erases from {TABLES_AT_MOST} at most.",
            "Narrow it, and make several erasures.",
            matched=len(matched),
        )


def _named(tables: Sequence[Pair], name: str) -> str:
    """The id of the one table that has an id or a name."""
    found = [pair for pair in tables if name in (pair[0].id, pair[0].name, full_name(*pair))]
    if not found:
        missing = not_enrolled(name)
        raise InvalidError("table-not-enrolled", missing.detail, missing.remedy)
    return only_one(name, found)[0].id


def _refuse(session: Session, table: EnrolledTable) -> None:
    """Raises ConflictError if no job can be queued for a table."""
    refuse_paused(session, table)
    refuse_too_many(session, table)


def _planned(session: Session, table: EnrolledTable, catalog: Catalog) -> PlannedTable:
    refused_because = None
    try:
        _refuse(session, table)
    except ConflictError as error:
        refused_because = error.detail
    return PlannedTable(
        table_id=table.id,
        table=table.name,
        catalog=catalog.name,
        branch=table.branch,
        refused_because=refused_because,
    )


def _parts(session: Session, erasure: Erasure) -> Sequence[ErasureTable]:
    of_erasure = select(ErasureTable).where(ErasureTable.erasure_id == erasure.id)
    return session.exec(of_erasure.order_by(col(ErasureTable.number))).all()


def _jobs(session: Session, parts: Sequence[ErasureTable]) -> Mapping[str, JobView]:
    """The jobs that have not ended, by their ids."""
    ids = [part.job_id for part in parts if part.status is None]
    return {
        job.id: job for job in views(session, session.exec(select(Job).where(col(Job.id).in_(ids))).all())
    }


def _statuses(session: Session, parts: Sequence[ErasureTable]) -> Mapping[str, JobStatus]:
    ids = [part.job_id for part in parts if part.status is None]
    going = session.exec(select(Job.id, Job.status).where(col(Job.id).in_(ids))).all()
    ended = {part.job_id: JobStatus(part.status) for part in parts if part.status is not None}
    return ended | {job_id: JobStatus(status) for job_id, status in going}


def _table_view(part: ErasureTable, job: JobView | None) -> ErasureTableView:
    report = report_of(part)
    known = part.model_dump(exclude={"status", "started_at", "report", "erasure_id", "number"})
    return ErasureTableView(
        **known,
        status=JobStatus(part.status or "") if job is None else job.status,
        started_at=part.started_at if job is None else job.started_at,
        waiting_for=None if job is None else job.waiting_for,
        counts=None if report is None else report.counts,
    )


def _summaries(session: Session, erasures: Sequence[Erasure]) -> list[ErasureSummary]:
    ids = [erasure.id for erasure in erasures]
    query = (
        select(ErasureTable.erasure_id, ErasureTable.status, Job.status)
        .join(Job, col(Job.id) == col(ErasureTable.job_id), isouter=True)
        .where(col(ErasureTable.erasure_id).in_(ids))
    )
    jobs: dict[str, Counter[JobStatus]] = {erasure_id: Counter() for erasure_id in ids}
    for erasure_id, ended, going in session.exec(query):
        jobs[erasure_id][JobStatus(ended or going)] += 1
    return [
        ErasureSummary(
            **erasure.model_dump(include=ErasureSummary.model_fields.keys() & Erasure.model_fields.keys()),
            keys=len(erasure.key_hashes) or None,
            status=_status_of(jobs[erasure.id]),
            jobs=dict(jobs[erasure.id]),
        )
        for erasure in erasures
    ]


def _status_of(jobs: Mapping[JobStatus, int]) -> JobStatus:
    """Of an erasure, by how many of its jobs have which."""
    statuses = set(jobs)
    if statuses == {JobStatus.QUEUED}:
        return JobStatus.QUEUED
    if any(not status.is_final for status in statuses):
        return JobStatus.RUNNING
    gravest = (JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.SUCCEEDED)
    return next(status for status in gravest if status in statuses)
