"""The health of a table as users see it: figures, a status word, the reason, and what to do."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any

from sqlalchemy import bindparam, func
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from service.db.database import utc_now
from service.index_health.models import HealthView, KeySetView, Watch
from service.index_health.pace import Pace
from service.index_health.reader_cost import view_reader_cost
from service.index_health.status import conversion_late_at, judge, publication_late_at
from service.jobs.fair_share import in_text
from service.jobs.views import why_paused
from service.policies.effective import effective_policy
from service.policies.models import EffectivePolicy
from service.records.health import HealthStatus, TableHealth, age_seconds
from service.records.jobs import Job, JobKind, JobStatus
from service.records.reports import KeySetReport, StoppedAt, UnconvertibleDelete
from service.records.tables import EnrolledTable

_ACTIVE = (JobStatus.QUEUED.value, JobStatus.RUNNING.value)
_TELLING = (JobStatus.SUCCEEDED.value, JobStatus.FAILED.value)
# Putting a statement together takes longer than most take to run, and polls run these.
_ENDED = (
    select(
        Job.id,
        func.row_number().over(partition_by=col(Job.kind), order_by=col(Job.ended_at).desc()).label("age"),
    )
    .where(
        Job.table_id == bindparam("table_id"),
        ~col(Job.dry_run),
        col(Job.status).in_(in_text(_TELLING)),
    )
    .subquery()
)
_LAST = select_columns(_ENDED.c.id).where(_ENDED.c.age <= bindparam("most"))
_LAST_JOBS = select(Job).where(col(Job.id).in_(_LAST)).order_by(col(Job.ended_at).desc())
_RECENT_JOBS = (
    select(Job)
    .where(
        col(Job.id).in_(
            _LAST.union_all(
                select_columns(col(Job.id)).where(
                    # With the catalog, by which an index has them.
                    col(Job.catalog_id) == bindparam("catalog_id"),
                    col(Job.table_id) == bindparam("table_id"),
                    col(Job.status).in_(in_text(_ACTIVE)),
                ),
                select_columns(col(Job.id)).where(
                    col(Job.table_id) == bindparam("table_id"), col(Job.ended_at) > bindparam("later_than")
                ),
            )
        )
    )
    .order_by(col(Job.ended_at).desc())
)
# A row has many more columns, and some are validated as they are read.
_OF_INDEXES = select_columns(
    col(TableHealth.table_id),
    col(TableHealth.key_sets),
    col(TableHealth.pending_key_sets),
    col(TableHealth.data_files),
    col(TableHealth.unindexed_data_files),
    col(TableHealth.measured_at),
).where(col(TableHealth.table_id).in_(bindparam("ids", expanding=True)))


def last_jobs(session: Session, table_id: str) -> Sequence[Job]:
    """The last job of each kind that succeeded or failed, latest first."""
    return session.exec(_LAST_JOBS, params={"table_id": table_id, "most": 1}).all()


LATEST = 3
"""Jobs of each kind, of which what they took tells what the next one takes."""


@dataclass(frozen=True)
class RecentJobs:
    """What decisions on a table go by, read at once."""

    active: Sequence[Job]
    """Queued or running."""
    ended: Mapping[JobKind, Sequence[Job]]
    """Of each kind, the LATEST that succeeded or failed, latest first. None was a dry run."""
    ended_later: Sequence[Job]
    """Whatever ended, if it did after a moment that was asked for."""

    @property
    def every(self) -> Iterator[Job]:
        """That was read."""
        return chain(self.active, *self.ended.values())

    @property
    def last(self) -> Sequence[Job]:
        """As `last_jobs`."""
        return [jobs[0] for jobs in self.ended.values()]


def recent_jobs(session: Session, table: EnrolledTable, later_than: datetime) -> RecentJobs:
    asked = {"table_id": table.id, "catalog_id": table.catalog_id, "most": LATEST, "later_than": later_than}
    active, later = list[Job](), list[Job]()
    ended: dict[JobKind, list[Job]] = {}
    for job in session.exec(_RECENT_JOBS, params=asked):
        if job.status in _ACTIVE:
            active.append(job)
            continue
        if job.ended_at is not None and job.ended_at > later_than:
            later.append(job)
        if job.status in _TELLING and not job.dry_run:
            ended.setdefault(JobKind(job.kind), []).append(job)
    return RecentJobs(active, {kind: jobs[:LATEST] for kind, jobs in ended.items()}, later)


@dataclass(frozen=True)
class Totals:
    """Sums over the key sets; coverage is their minimum, the dead ratio is weighted by entries."""

    coverage: float | None
    entries: int
    bytes: int
    sorted_runs: int
    dead_ratio: float


@dataclass(frozen=True)
class Judged:
    """How a table is."""

    status: HealthStatus
    reason: str
    what_to_do: str | None
    key_sets: Sequence[KeySetView]
    totals: Totals


def total(key_sets: Sequence[KeySetReport]) -> Totals:
    entries = sum(key_set.entries for key_set in key_sets)
    dead = sum(key_set.dead_ratio * key_set.entries for key_set in key_sets)
    return Totals(
        coverage=min((key_set.coverage for key_set in key_sets), default=None),
        entries=entries,
        bytes=sum(key_set.bytes for key_set in key_sets),
        sorted_runs=sum(key_set.sorted_runs for key_set in key_sets),
        dead_ratio=dead / entries if entries else 0.0,
    )


def view_key_sets(health: TableHealth, now: datetime) -> list[KeySetView]:
    """As last reported, but for what polls have seen since: what is pending, and data files that came."""
    uncovered = [one["files_total"] - one["files_covered"] for one in health.key_sets]
    added = max(health.unindexed_data_files - max(uncovered, default=0), 0)
    pending = {tuple(one["equality_field_ids"]): one for one in health.pending_key_sets}
    found = []
    for reported in health.key_sets:
        own = pending.get(tuple(sorted(reported["equality_field_ids"])))
        oldest_at = datetime.fromisoformat(own["oldest_at"]) if own else None
        polled = {
            "pending_equality_delete_files": own["files"] if own else 0,
            "lag_seconds": age_seconds(oldest_at, now),
        }
        if health.measured_at is not None:
            total = health.data_files
            covered = max(total - (reported["files_total"] - reported["files_covered"]) - added, 0)
            polled |= {
                "files_total": total,
                "files_covered": covered,
                "coverage": covered / total if total else 1.0,
            }
        found.append(KeySetView.model_validate(reported | polled))
    return found


def begins_to_lag_at(
    table: EnrolledTable, health: TableHealth, policy: EffectivePolicy, jobs: Sequence[Job], now: datetime
) -> datetime | None:
    """When time alone will make the table lag; None if it does already, or never will.

    jobs: its last ones.
    """
    late = (conversion_late_at, publication_late_at)
    found = [late_at(health, policy, jobs, table.created_at) for late_at in late]
    return min((at for at in found if at is not None and at >= now), default=None)


def judged(
    table: EnrolledTable,
    health: TableHealth,
    policy: EffectivePolicy,
    jobs: Sequence[Job],
    paused: str | None,
    now: datetime,
) -> Judged:
    """jobs: the table's last ones. paused: why none of it starts, if so."""
    key_sets = view_key_sets(health, now)
    found = judge(health, key_sets, policy, jobs, paused, table.created_at, now)
    return Judged(*found, key_sets, total(key_sets))


def get_health(session: Session, table: EnrolledTable) -> HealthView:
    """The health of a table now."""
    health = session.get_one(TableHealth, table.id)
    policy, jobs = effective_policy(session, table), last_jobs(session, table.id)
    now = utc_now()
    found = judged(table, health, policy, jobs, why_paused(session, table), now)
    totals = found.totals
    return HealthView(
        table_id=table.id,
        status=found.status,
        status_reason=found.reason,
        what_to_do=found.what_to_do,
        coverage=totals.coverage,
        lag_seconds=health.lag_seconds(now),
        pending_equality_deletes=health.pending_equality_deletes,
        pending_equality_delete_files=health.pending_equality_delete_files,
        entries=totals.entries,
        bytes=totals.bytes,
        sorted_runs=totals.sorted_runs,
        dead_ratio=totals.dead_ratio,
        small_manifests=health.small_manifests,
        small_data_files=health.small_data_files,
        deleted_data_files=health.deleted_data_files,
        small_delete_files=health.small_delete_files,
        snapshots=health.snapshots,
        oldest_snapshot_at=health.oldest_snapshot_at,
        done_elsewhere=health.others_seen_at,
        staged_snapshots=health.staged_snapshots,
        staged_rows=health.staged_rows,
        staged_age_seconds=health.staged_age_seconds(now),
        kept_snapshots=health.kept_snapshots,
        stopped_at=StoppedAt.model_validate(health.stopped_at) if health.stopped_at else None,
        reader_cost=view_reader_cost(health),
        unconvertible=[UnconvertibleDelete.model_validate(item) for item in health.unconvertible],
        key_sets=list(found.key_sets),
        data_files=health.data_files,
        unindexed_data_files=health.unindexed_data_files,
        iceberg_snapshot_id=health.iceberg_snapshot_id,
        measured_at=health.measured_at,
        watch=_view_watch(health, now),
        reported_at=health.reported_at,
        poll_error=health.poll_error,
        decisions=health.decisions,
    )


def _view_watch(health: TableHealth, now: datetime) -> Watch | None:
    if (last := health.last_poll) is None:
        return None
    told = last.get("awaited_until")
    until = datetime.fromisoformat(told) if told is not None else None
    return Watch(
        is_told=last["is_told"],
        polled_every_seconds=Pace.of(last).every_seconds(now),
        awaited_until=until if until is not None and until > now else None,
    )


def coverages(session: Session, table_ids: Sequence[str]) -> dict[str, float | None]:
    """How much of the data files of each table its index covers; None without one."""
    now = utc_now()
    found: Sequence[Any] = session.execute(_OF_INDEXES, {"ids": table_ids}).all()
    return {row.table_id: total(view_key_sets(row, now)).coverage for row in found}


def store_status(health: TableHealth, found: Judged) -> None:
    """Keep the status of now for lists, which can't judge every table anew."""
    health.status, health.status_reason = found.status.value, found.reason
    health.what_to_do = found.what_to_do
