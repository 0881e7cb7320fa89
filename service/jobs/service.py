"""What users do with jobs: request, look at, cancel, retry; and pausing the whole system."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Select, TextClause, bindparam, case, func, literal, union_all
from sqlalchemy import select as columns
from sqlmodel import Session, col, or_, select
from sqlmodel.sql.expression import SelectOfScalar

from service import __version__
from service.auth.models import Principal
from service.auth.service import authorize
from service.catalogs.service import find_catalog
from service.confirmations import words_before
from service.db.database import utc_now
from service.errors import ConflictError, ForbiddenError, IcestreamError, InvalidError
from service.http.paging import (
    COUNTED,
    Page,
    PageRequest,
    Sorting,
    Total,
    count_rows,
    count_rows_by,
    read_page,
    within,
)
from service.http.problem_documents import problem_of
from service.jobs import orphan_removals, queue
from service.jobs.caveats import caveat_of
from service.jobs.models import (
    BulkItem,
    BulkRequest,
    BulkResult,
    Caveat,
    JobRequest,
    JobView,
    SystemView,
)
from service.jobs.queue import check_index_unused
from service.jobs.views import view, views, why_paused
from service.policies.effective import effective_policy
from service.policies.models import EffectivePolicy
from service.records.api_keys import Role
from service.records.health import TableHealth
from service.records.jobs import (
    COMMON_KINDS,
    FAILED,
    REQUEST,
    REQUESTED,
    UNCOMMON,
    UNSUCCESSFUL,
    Attempt,
    AttemptStatus,
    Job,
    JobKind,
    JobStatus,
)
from service.records.system import SystemState
from service.records.tables import EnrolledTable, audited_name, get_table
from service.records.workers import Worker

SORTING = Sorting(
    {
        "created_at": Job.created_at,
        "started_at": Job.started_at,
        "ended_at": Job.ended_at,
        "priority": Job.priority,
    },
    key=Job.id,
    default="-created_at",
)

_UNSUCCESSFUL = frozenset((JobStatus.FAILED, JobStatus.CANCELLED))
_COUNTED = 1_000
"""Of each status: what a page shows beside the list."""
_FEW = 2_000
"""Jobs of which all are looked at, if no more of them fit one of the filters."""
_EVERY = columns(literal(JobStatus.SUCCEEDED.value), columns(func.count()).select_from(Job).scalar_subquery())
"""Under the name of what nearly all are."""
_LATEST = columns(
    col(Job.table_id),
    col(Job.id),
    col(Job.dry_run),
    func.coalesce(col(Job.ended_at), col(Job.started_at), col(Job.created_at)),
    col(Job.result),
    col(Job.kind),
    col(Job.status),
).where(
    col(Job.id).in_(
        columns(
            select(Job.id)
            .where(Job.table_id == EnrolledTable.id)
            .order_by(col(Job.created_at).desc(), col(Job.id).desc())
            .limit(1)
            .correlate(EnrolledTable)
            .scalar_subquery()
        ).where(col(EnrolledTable.id).in_(bindparam("ids", expanding=True)))
    )
)
"""As `latest_jobs` reads them."""
MAINTENANCE: dict[JobKind, tuple[str, ...]] = {
    JobKind.EXPIRE_SNAPSHOTS: ("older_than_seconds", "retain_last"),
    JobKind.REWRITE_DATA_FILES: (
        "strategy",
        "target_file_size_bytes",
        "min_input_files",
        "size_ratio",
        "delete_ratio_threshold",
        "max_bytes",
    ),
    JobKind.REWRITE_POSITION_DELETE_FILES: ("target_file_size_bytes", "min_input_files"),
    JobKind.REWRITE_MANIFESTS: (),
}
"""The kinds of jobs that maintain tables, with what of their policies is a parameter of theirs."""


def request_job(session: Session, principal: Principal, table_id: str, request: JobRequest) -> JobView:
    """Queue a job, or return the one of its kind that is queued already.

    Raises InvalidError for a dry run of a kind that has none, a publication that lacks its staging branch, or
    a rewriting that is to sort rows by no order, and ConflictError while table, catalog or system are paused.
    """
    kind = JobKind(request.kind)
    # Whoever removes the table waits, and cancels this job then.
    table = get_table(session, table_id, for_update=True)
    authorize(
        session,
        principal,
        Role.OPERATOR,
        f"job.{kind.value}",
        audited_name(session, table),
        dry_run=request.dry_run,
    )
    _check_dry_run(kind, dry_run=request.dry_run)
    policy = effective_policy(session, table)
    parameters = request.parameters
    if kind is JobKind.PUBLISH:
        parameters = _of_publication(table, policy.publish.source, parameters)
    elif kind.is_maintenance:
        parameters = of_policy(kind, policy) | {
            name: value for name, value in parameters.items() if value is not None
        }
        if kind is JobKind.REWRITE_DATA_FILES:
            _check_sort_order(session, table, parameters)
    elif kind is JobKind.REMOVE_ORPHAN_FILES:
        parameters = orphan_removals.parameters_of(
            session, table, parameters, utc_now(), dry_run=request.dry_run
        )
    refuse_paused(session, table)
    if kind is JobKind.PUBLISH:
        queue.cancel_publications_but(session, table.id, policy.publish.source, utc_now())
    job, _ = queue.enqueue(
        session,
        table,
        kind,
        policy,
        utc_now(),
        dry_run=request.dry_run,
        parameters=parameters,
        requested_by=principal.name,
        priority=request.priority,
        run_at=request.run_at,
    )
    return view(session, job)


def list_jobs(
    session: Session,
    page: PageRequest,
    *,
    table_id: str | None = None,
    catalog: str | None = None,
    statuses: Sequence[JobStatus] = (),
    kinds: Sequence[JobKind] = (),
    trigger: Literal["policy", "request"] | None = None,
    worker: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Page[JobView]:
    """Jobs made from `since` until before `until`; `catalog` is a name or id, as is `worker`, which ran an
    attempt at them."""
    chosen = _chosen(session, table_id, catalog, kinds, trigger, worker, since, until, statuses)
    query = select(Job).where(*chosen.of_table, *chosen.of_catalog, *chosen.of_any_status, *chosen.rest)
    leads_by_status = _leave_out_most(statuses) and not chosen.are_few
    if not leads_by_status and (page.sort or SORTING.default).removeprefix("-") == "created_at":
        query = query.where(*chosen.by_creation)
    if statuses and (not leads_by_status or {*statuses} <= _UNSUCCESSFUL):
        # Many have: an index of statuses would lead to all of these jobs, to be sorted for the first page.
        others = [one.value for one in JobStatus if one not in statuses]
        query = query.where(col(Job.status).not_in(others))
        if leads_by_status:
            query = query.where(UNSUCCESSFUL)
    elif statuses:
        query = query.where(col(Job.status).in_([status.value for status in statuses]))

    def count() -> Total:
        counted = _count_by_status(session, chosen, most=COUNTED)
        found = [counted[status] for status in set(statuses or JobStatus)]
        return Total(sum(one.number or 0 for one in found), any(one.is_least for one in found))

    return read_page(session, query, page, SORTING, lambda rows: views(session, rows), count=count)


def count_by_status(
    session: Session,
    *,
    table_id: str | None = None,
    catalog: str | None = None,
    kinds: Sequence[JobKind] = (),
    trigger: Literal["policy", "request"] | None = None,
    worker: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> dict[JobStatus, Total]:
    """How many jobs `list_jobs` would list of each status: as far as that is known soon."""
    chosen = _chosen(session, table_id, catalog, kinds, trigger, worker, since, until)
    return _count_by_status(session, chosen, most=_COUNTED)


@dataclass(frozen=True)
class _Chosen:
    """Jobs by what they have in common, apart from their status."""

    of_table: list[ColumnElement[bool]]
    of_catalog: list[ColumnElement[bool]]
    """An index leads to these of a status, and to the table's of a time; none to the catalog's of a time."""
    of_any_status: list[ColumnElement[bool]]
    """An index leads to these, but not to those of a status: of a time, or the few that fit one filter."""
    by_creation: list[ColumnElement[bool] | TextClause]
    """An index has these in the order in which they were made: of a kind, or requested by somebody."""
    rest: list[ColumnElement[bool]]
    """What `by_creation` says, and all else, in words for which no index is looked at."""
    are_few: bool


def _count_by_status(session: Session, chosen: _Chosen, *, most: int) -> dict[JobStatus, Total]:
    """Looks at `most` jobs of each status; if their index doesn't tell what is asked for, at as many in all:
    the newest ones, with which the list begins."""
    if not chosen.of_any_status and not chosen.rest:
        every = select(Job).where(*chosen.of_table, *chosen.of_catalog)
        return {
            status: count_rows(session, every.where(Job.status == status.value), most=most)
            for status in JobStatus
        }
    # No index has status and time: to look for the hour's succeeded ones would be to look at all that have.
    newest = select(Job).where(*chosen.of_table, *chosen.of_any_status, *chosen.by_creation)
    newest = newest.order_by(col(Job.created_at).desc())
    conditions = (*chosen.of_catalog, *chosen.rest)
    found = count_rows_by(session, newest, col(Job.status), *conditions, most=most * len(JobStatus))
    none = Total(0, any(one.is_least for one in found.values()))
    return {status: found.get(status.value, none) for status in JobStatus}


def _leave_out_most(statuses: Sequence[JobStatus]) -> bool:
    """Whether only jobs of these are asked for, and nearly all others are there: those that succeeded."""
    return bool(statuses) and JobStatus.SUCCEEDED not in statuses


def _chosen(
    session: Session,
    table_id: str | None,
    catalog: str | None,
    kinds: Sequence[JobKind],
    trigger: Literal["policy", "request"] | None,
    worker: str | None,
    since: datetime | None,
    until: datetime | None,
    statuses: Sequence[JobStatus] = (),
) -> _Chosen:
    of_table, of_catalog, of_any_status, rest = [], [], within(col(Job.created_at), since, until), []
    by_creation: list[ColumnElement[bool] | TextClause] = []
    ids: list[SelectOfScalar[str]] = []
    if _leave_out_most(statuses):
        ids.append(select(Job.id).where(col(Job.status).in_([status.value for status in statuses])))
    if catalog is not None:
        found = find_catalog(session, catalog)
        of_catalog.append(col(Job.catalog_id) == (found.id if found else ""))
        ids.append(
            select(Job.id).where(*of_catalog, col(Job.status).in_([status.value for status in JobStatus]))
        )
    if table_id is not None:
        table = session.get(EnrolledTable, table_id)
        of_table.append(col(Job.table_id) == table_id)
        # Between status and table, the index has the catalog.
        of_catalog.append(col(Job.catalog_id) == (table.catalog_id if table else ""))
    if trigger is not None:
        rest.append((col(Job.trigger) == REQUEST) if trigger == REQUEST else (col(Job.trigger) != REQUEST))
    if trigger == REQUEST:
        by_creation.append(REQUESTED)
        ids.append(select(Job.id).where(REQUESTED))
    if kinds:
        # Compared one by one: a walk that passes over most jobs takes twice as long with a list of kinds.
        rest.append(case({kind.value: True for kind in kinds}, value=col(Job.kind), else_=False))
        if not COMMON_KINDS.intersection(kinds):
            of_kinds = (UNCOMMON, col(Job.kind).in_([kind.value for kind in kinds]))
            ids.append(select(Job.id).where(*of_kinds))
            if len({*kinds}) == 1:
                by_creation.extend(of_kinds)
    if worker is not None:
        named = or_(col(Worker.id) == worker, col(Worker.name) == worker)
        ran = select(Attempt.job_id).where(col(Attempt.worker_id).in_(select(Worker.id).where(named)))
        if _leave_out_most(statuses):
            ended = [status.value for status in AttemptStatus if status is not AttemptStatus.SUCCEEDED]
            ran = ran.where(col(Attempt.status).in_(ended))
        rest.append(ran.where(col(Attempt.job_id) == col(Job.id)).correlate(Job).exists())
        ids.append(ran)
    if table_id is not None:
        # It has few enough itself.
        return _Chosen(of_table, of_catalog, of_any_status, [], rest, are_few=False)
    few = next((each for each in ids if not count_rows(session, each, most=_FEW).is_least), None)
    if few is not None:
        of_any_status.append(col(Job.id).in_(few))
        by_creation = []
    elif worker is not None:
        # To sort all of them for the first page takes long: they are among those that it could have run.
        last_seen_at = select(func.max(Worker.last_seen_at)).where(named).scalar_subquery()
        of_any_status.append(col(Job.created_at) <= last_seen_at)
    return _Chosen(of_table, of_catalog, of_any_status, by_creation, rest, are_few=few is not None)


def active_jobs(session: Session, number: int) -> list[JobView]:
    """So many jobs that have not ended: what runs before what waits, and of these the newest first."""
    active = select(Job).where(col(Job.status).in_([JobStatus.RUNNING.value, JobStatus.QUEUED.value]))
    # By these words, as it happens.
    order = (col(Job.status).desc(), col(Job.created_at).desc(), col(Job.id).desc())
    return views(session, session.exec(active.order_by(*order).limit(number)).all())


class LatestJob(NamedTuple):
    """What a list of tables tells of a job."""

    id: str
    kind: JobKind
    dry_run: bool
    status: JobStatus
    at: datetime
    """When it ended, else when it began, else when it was made."""
    caveat: Caveat | None


def latest_jobs(session: Session, table_ids: Sequence[str]) -> dict[str, LatestJob]:
    """The job of each table that was made last, by the table's id."""
    found = {}
    for table_id, job_id, dry_run, at, result, *words in session.execute(_LATEST, {"ids": table_ids}):
        kind, status = JobKind(words[0]), JobStatus(words[1])
        is_done = status is JobStatus.SUCCEEDED
        caveat = caveat_of(kind, result, dry_run=dry_run) if is_done else None
        found[table_id] = LatestJob(job_id, kind, dry_run, status, at, caveat)
    return found


def count_active(session: Session) -> Counter[JobStatus]:
    """Jobs that have not ended."""
    return _count_of(session, (JobStatus.RUNNING, JobStatus.QUEUED))


def count_jobs(session: Session) -> Counter[JobStatus]:
    """All jobs. Nearly all have succeeded, so these are what is left of all of them: SQLite counts the rows
    of a table page by page, and those of a status one by one."""
    counts = _count_of(session, [status for status in JobStatus if status is not JobStatus.SUCCEEDED], _EVERY)
    counts[JobStatus.SUCCEEDED] -= counts.total() - counts[JobStatus.SUCCEEDED]
    return counts


def _count_of(session: Session, statuses: Sequence[JobStatus], *more: Select[Any]) -> Counter[JobStatus]:
    """In one statement, so that all of it is of one moment."""
    query = columns(col(Job.status), func.count()).where(col(Job.status).in_([one.value for one in statuses]))
    found = session.execute(union_all(query.group_by(col(Job.status)), *more))
    return Counter({JobStatus(status): count for status, count in found})


def count_queued(session: Session) -> Counter[JobKind]:
    """Jobs that wait for a worker."""
    queued = select(Job.kind, func.count()).where(Job.status == JobStatus.QUEUED.value).group_by(Job.kind)
    return Counter({JobKind(kind): count for kind, count in session.exec(queued)})


def last_failure_at(session: Session) -> datetime | None:
    """When a job failed last, for good; None if none that is still known."""
    return session.exec(select(func.max(Job.ended_at)).where(FAILED)).one()


def get_job(session: Session, job_id: str) -> JobView:
    return view(session, queue.get_job(session, job_id))


def cancel_job(session: Session, principal: Principal, job_id: str) -> JobView:
    """Cancel a queued job at once; a running one stops at its worker's next heartbeat."""
    job = queue.get_job(session, job_id)
    authorize(session, principal, Role.OPERATOR, "job.cancel", job_id)
    session.refresh(job, with_for_update=True)
    if job.status == JobStatus.CANCELLED.value:
        return view(session, job)
    if not JobStatus(job.status).is_cancelable:
        raise ConflictError(
            "job-not-cancelable",
            f"The status of job {job_id} is {job.status}.",
            "Nothing to do: it will not run again.",
        )
    queue.cancel(session, job, f"requested by {principal.name}", utc_now())
    return view(session, job)


def retry_job(session: Session, principal: Principal, job_id: str) -> JobView:
    """Queue the same again as a new job, with all its attempts before it."""
    job = queue.get_job(session, job_id)
    drops_index = job.kind == JobKind.DROP_INDEX.value
    # Only the drop of an index belongs to a table that is gone.
    table = (
        session.get_one(EnrolledTable, job.table_id)
        if drops_index
        else get_table(session, job.table_id, for_update=True)
    )
    authorize(session, principal, Role.OPERATOR, "job.retry", job_id)
    if not JobStatus(job.status).is_retryable:
        raise ConflictError(
            "job-not-retryable",
            f"The status of job {job_id} is {job.status}.",
            "Request a new job of its table.",
        )
    if job.kind == JobKind.ERASE.value:
        raise ConflictError(
            "job-not-retryable",
            f"Job {job_id} belongs to erasure {job.parameters.get('erasure_id')}, which stays as it was.",
            "Make a new erasure of its table, with the same keys.",
        )
    if JobKind(job.kind).writes_rows and "files" not in job.parameters:
        raise ConflictError(
            "rows-not-kept",
            f"Job {job_id} has ended, and its rows are gone.",
            "Send them again as a new job.",
        )
    if drops_index:
        check_index_unused(session, table)
    policy = effective_policy(session, table)
    if queue.is_of_another_branch(job, policy.publish.source):
        raise ConflictError(
            "job-not-retryable",
            f"Job {job_id} was to publish branch {job.parameters.get('from')}, which the table has no more.",
            "Request a new job of its table.",
        )
    if job.kind == JobKind.REMOVE_ORPHAN_FILES.value and not job.dry_run:
        named = {"dry_run_job_id": job.parameters.get("dry_run_job_id")}
        orphan_removals.parameters_of(session, table, named, utc_now(), dry_run=False)
    _check_dry_run(JobKind(job.kind), dry_run=job.dry_run)
    refuse_paused(session, table)
    again, _ = queue.enqueue(
        session,
        table,
        JobKind(job.kind),
        policy,
        utc_now(),
        dry_run=job.dry_run,
        parameters=job.parameters,
        requested_by=principal.name,
        retry_of=job.id,
        priority=job.priority,
    )
    return view(session, again)


def act_on_jobs(session: Session, principal: Principal, request: BulkRequest) -> BulkResult:
    """Cancel or retry many jobs. What can't be done with one is told, and changes nothing of the others."""
    act = cancel_job if request.action == "cancel" else _retry_among_others
    items = []
    for job_id in dict.fromkeys(request.job_ids):
        try:
            with session.begin_nested():
                items.append(BulkItem(job_id=job_id, job=act(session, principal, job_id), problem=None))
        except ForbiddenError:
            raise  # so is every other one, and the refusal is audited once
        except IcestreamError as error:
            problem = problem_of(error, f"/api/v1/jobs/{job_id}/{request.action}")
            items.append(BulkItem(job_id=job_id, job=None, problem=problem))
    refused = sum(item.problem is not None for item in items)
    return BulkResult(done=len(items) - refused, refused=refused, items=items)


def _retry_among_others(session: Session, principal: Principal, job_id: str) -> JobView:
    """But for what is asked about first: nobody can be, about each of many."""
    job = queue.get_job(session, job_id)
    asked = {"kind": job.kind, "parameters": job.parameters, "dry_run": job.dry_run}
    if JobStatus(job.status).is_retryable and (words := words_before("retry_job", asked)):
        raise ConflictError(
            "job-not-retryable",
            f"Job {job_id} is not retried among others. {words}",
            "Retry it by itself, if that is meant.",
        )
    return retry_job(session, principal, job_id)


def system_view(session: Session) -> SystemView:
    return SystemView(paused=queue.is_system_paused(session), version=__version__)


def pause_system(session: Session, principal: Principal, *, paused: bool) -> SystemView:
    """While paused, no job of any table starts; running ones end as usual."""
    authorize(session, principal, Role.ADMIN, "system.pause" if paused else "system.resume", "system")
    state = session.get(SystemState, 1) or SystemState()
    state.paused = paused
    session.add(state)
    session.flush()
    return system_view(session)


def _check_dry_run(kind: JobKind, *, dry_run: bool) -> None:
    if dry_run and not kind.has_dry_run:
        message = (
            "Only `convert`, `publish`, `verify` and kinds that maintain the table have one: leave dry_run"
            " out, or request one of these."
        )
        raise InvalidError(
            "no-dry-run",
            f"A job of kind `{kind.value}` would change the index although dry_run says otherwise.",
            message,
            errors=[{"field": "body.dry_run", "message": message}],
        )


def _check_sort_order(session: Session, table: EnrolledTable, parameters: Mapping[str, Any]) -> None:
    """Raises InvalidError if rows are to be sorted by nothing, as far as the last look tells."""
    if parameters["strategy"] != "sort" or parameters.get("sort_order"):
        return
    if session.get_one(TableHealth, table.id).has_sort_order is not False:
        return
    message = "Name a sort_order, give the table one (ALTER TABLE ... WRITE ORDERED BY), or choose binpack."
    raise InvalidError(
        "sort-order-missing",
        f"At the last look, {table.name} had no sort order by which its rows could be sorted.",
        message,
        errors=[{"field": "body.parameters.strategy", "message": message}],
    )


def of_policy(kind: JobKind, policy: EffectivePolicy) -> dict[str, Any]:
    """The parameters that a policy gives to a job of maintenance."""
    section = getattr(policy, kind.value)
    return {name: getattr(section, name) for name in MAINTENANCE[kind]}


def _of_publication(table: EnrolledTable, source: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with the staging branch, which no request names. Raises InvalidError if it is empty."""
    if source:
        return {"from": source, **given}
    message = f"Name the staging branch of {table.name} with its enrolment, or in its policy (publish.from)."
    raise InvalidError(
        "no-staging-branch",
        "Nothing can be published without a staging branch.",
        message,
        errors=[{"field": "body.kind", "message": message}],
    )


def refuse_paused(session: Session, table: EnrolledTable) -> None:
    if (reason := why_paused(session, table)) is not None:
        raise ConflictError("paused", f"No job was queued: {reason}.")
