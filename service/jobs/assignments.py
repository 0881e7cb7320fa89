"""What a worker is told of a job that it is to run."""

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import NamedTuple

from sqlalchemy import bindparam, func
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from service.catalogs.service import index_warehouse
from service.jobs import orphan_removals
from service.jobs.budgets import spent_budget
from service.jobs.contract import (
    AssignedCatalog,
    AssignedIndex,
    AssignedJob,
    AssignedTable,
    Assignment,
    EndedAttempt,
)
from service.jobs.fair_share import NextJob
from service.jobs.index_reports import seen_equality_field_ids
from service.jobs.models import AttemptView
from service.jobs.queue import rows_of
from service.policies.effective import bounded
from service.policies.models import EffectivePolicy
from service.policies.schedules import is_open
from service.records.health import DONE_ELSEWHERE_FOR
from service.records.jobs import Attempt, AttemptStatus, Job, JobKind, JobStatus
from service.records.tables import EnrolledTable
from service.settings import Settings
from trust.locations import is_under

_CLEARING = tuple(
    kind.value
    for kind in JobKind
    if kind.writes_rows
    or kind
    in (
        JobKind.CONVERT,
        JobKind.PUBLISH,
        JobKind.EXPIRE_SNAPSHOTS,
        JobKind.REWRITE_DATA_FILES,
        JobKind.REWRITE_POSITION_DELETE_FILES,
        JobKind.COMPACT,
    )
)
_ENDED_ATTEMPTS_AT_ONCE = 100


class Given(NamedTuple):
    """A job that a worker is to run, and what else is known of it."""

    worker_id: str
    worker_name: str
    found: NextJob
    policy: EffectivePolicy
    previous: Sequence[AttemptView]


def assignment_of(
    session: Session,
    settings: Settings,
    given: Given,
    now: datetime,
) -> Assignment:
    found, policy, previous = given.found, given.policy, given.previous
    job, table, catalog = found.job, found.table, found.catalog
    listed = orphan_removals.listed_for(session, job, now)
    return Assignment(
        job=AssignedJob(id=job.id, kind=job.kind, dry_run=job.dry_run, parameters=job.parameters),
        traceparent=job.traceparent,
        attempt=job.attempt,
        previous_attempts=previous,
        ended_attempts=_with_orphan_files(session, job, table) if found.has_plans else [],
        lease_seconds=settings.lease_seconds,
        lease_expires_at=job.lease_expires_at,
        timeout_seconds=job.timeout_seconds,
        table=AssignedTable(
            id=table.id,
            identifier=table.identifier,
            table_uuid=job.table_uuid,
            location=table.location,
            branch=table.branch,
            staging_branch=policy.publish.source or None,
            key_sets=table.key_sets,
            seen_equality_field_ids=seen_equality_field_ids(found.key_sets),
            overlapping_locations=_overlapping_locations(session, job, table),
            snapshots_expire_elsewhere=expire_elsewhere(found.done_elsewhere, now),
        ),
        catalog=AssignedCatalog(name=catalog.name, type=catalog.type, properties=catalog.properties),
        index=AssignedIndex(
            warehouse=index_warehouse(settings, catalog),
            takes_new_files=_takes_new_files(session, job, table, found.indexed_at, policy, previous, now),
        ),
        policy=bounded(policy, settings),
        allowed_locations=list(settings.location_roots),
        allowed_hosts=list(settings.host_rules),
        allowed_secrets=list(settings.secret_rules),
        own_files=list(settings.own_files),
        rows=rows_of(session, job),
        orphan_files=listed.files,
        orphans_older_than=listed.older_than,
    )


def _takes_new_files(
    session: Session,
    job: Job,
    table: EnrolledTable,
    indexed_at: datetime | None,
    policy: EffectivePolicy,
    previous: Sequence[AttemptView],
    now: datetime,
) -> bool:
    """Whether half the time is over for which new data files may wait for an index, and an index job could
    start by itself.

    One attempt then does what would take two. There is an index if there was an indexing. What an earlier
    attempt may have died of is not tried again: the conversion itself is to succeed.
    """
    if job.kind != JobKind.CONVERT.value or job.dry_run or not policy.index.enabled:
        return False
    if indexed_at is None or (now - indexed_at).total_seconds() < policy.index.age_seconds / 2:
        return False
    if any(one.status in (AttemptStatus.FAILED, AttemptStatus.LOST) for one in previous):
        return False
    if not is_open(policy.schedule.windows, policy.schedule.time_zone, now):
        return False
    return spent_budget(session, table, policy, now) is None and not _has_index_job_failed(session, table)


def _has_index_job_failed(session: Session, table: EnrolledTable) -> bool:
    """Whether the last one did: one that succeeds comes first then."""
    query = select(Job.status).where(
        Job.table_id == table.id,
        Job.kind == JobKind.INDEX.value,
        ~col(Job.dry_run),
        col(Job.status).in_((JobStatus.SUCCEEDED.value, JobStatus.FAILED.value)),
    )
    last = session.exec(query.order_by(col(Job.ended_at).desc()).limit(1)).first()
    return last == JobStatus.FAILED.value


def expire_elsewhere(done_elsewhere: dict[str, str], now: datetime) -> bool:
    """Whether somebody else was seen to let snapshots expire, and may do it again."""
    seen_at = done_elsewhere.get(JobKind.EXPIRE_SNAPSHOTS.value)
    return seen_at is not None and now - datetime.fromisoformat(seen_at) < DONE_ELSEWHERE_FOR


def _overlapping_locations(session: Session, job: Job, table: EnrolledTable) -> list[str]:
    """Places of other tables than this one, which may be enrolled once more for another branch."""
    if job.kind not in (JobKind.EXPIRE_SNAPSHOTS.value, JobKind.REMOVE_ORPHAN_FILES.value):
        return []
    query = select(EnrolledTable.location, EnrolledTable.other_locations).where(
        col(EnrolledTable.deleted_at).is_(None),
        (EnrolledTable.catalog_id != table.catalog_id) | (EnrolledTable.name != table.name),
    )
    others = {place for location, more in session.exec(query) for place in (location, *more)}
    return sorted(
        other for other in others if is_under(other, table.location) or is_under(table.location, other)
    )


def _with_orphan_files(session: Session, job: Job, table: EnrolledTable) -> list[EndedAttempt]:
    """Attempts at jobs of the table that may have left orphan files, for a job that may remove these.

    Of the table in its catalog: another one may give a table of its own the same UUID.
    """
    if job.kind not in _CLEARING or job.dry_run:
        return []
    whose = {
        "job_id": job.id,
        "table_uuid": job.table_uuid,
        "catalog_id": table.catalog_id,
        "branch": table.branch,
    }
    rows = session.connection().execute(_with_plans(), {**whose, "most": _ENDED_ATTEMPTS_AT_ONCE})
    found = [EndedAttempt.model_validate(row, from_attributes=True) for row in rows]
    return sorted(found, key=lambda one: (one.job_id, one.attempt))


@cache
def _with_plans() -> SelectOfScalar[Attempt]:
    """Of the jobs of an Iceberg table and branch in a catalog."""
    return (
        select(Attempt)
        .join(Job, col(Job.id) == col(Attempt.job_id))
        # The table may have been removed and registered again.
        .join(EnrolledTable, col(EnrolledTable.id) == col(Job.table_id))
        .where(
            Job.table_uuid == bindparam("table_uuid"),
            EnrolledTable.branch == bindparam("branch"),
            EnrolledTable.catalog_id == bindparam("catalog_id"),
            col(Attempt.plans).is_not(None),
            Attempt.status != AttemptStatus.RUNNING.value,
        )
        # Its own, which it goes on with. Of others, if there are more, each gets its turn, also behind ones
        # that can't be removed yet.
        .order_by(col(Attempt.job_id) != bindparam("job_id"), func.random())
        .limit(bindparam("most"))
    )
