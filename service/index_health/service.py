"""The health of a table as users see it: figures, a status word, the reason, and what to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, func
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from service.db.database import utc_now
from service.index_health.models import HealthView, KeySetView, ReaderCostView, Watch
from service.index_health.reader_cost import view_reader_cost
from service.index_health.status import conversion_late_at, judge, publication_late_at
from service.jobs.queue import is_system_paused
from service.jobs.views import pause_reason
from service.policies.effective import effective_policy
from service.policies.models import EffectivePolicy
from service.records.catalogs import Catalog
from service.records.health import TableHealth, age_seconds
from service.records.jobs import Job, JobStatus
from service.records.reports import KeySetReport, StoppedAt, UnconvertibleDelete
from service.records.tables import EnrolledTable

# Putting a statement together takes longer than most take to run, and polls run these.
_ENDED = (
    select(
        Job.id,
        func.row_number().over(partition_by=col(Job.kind), order_by=col(Job.ended_at).desc()).label("age"),
    )
    .where(
        Job.table_id == bindparam("table_id"),
        ~col(Job.dry_run),
        col(Job.status).in_((JobStatus.SUCCEEDED.value, JobStatus.FAILED.value)),
    )
    .subquery()
)
_LAST_JOBS = (
    select(Job)
    .join(_ENDED, _ENDED.c.id == col(Job.id))
    .where(_ENDED.c.age == 1)
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
    return session.exec(_LAST_JOBS, params={"table_id": table_id}).all()


@dataclass(frozen=True)
class Totals:
    """Sums over the key sets; coverage is their minimum, the dead ratio is weighted by entries."""

    coverage: float | None
    entries: int
    bytes: int
    sorted_runs: int
    dead_ratio: float


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


def get_health(session: Session, table: EnrolledTable) -> HealthView:
    """The health of a table now."""
    health = session.get_one(TableHealth, table.id)
    policy, jobs = effective_policy(session, table), last_jobs(session, table.id)
    return _view(session, table, health, policy, jobs, view_reader_cost(health))


def _view(
    session: Session,
    table: EnrolledTable,
    health: TableHealth,
    policy: EffectivePolicy,
    jobs: Sequence[Job],
    reader_cost: ReaderCostView | None,
) -> HealthView:
    now = utc_now()
    key_sets = view_key_sets(health, now)
    totals = total(key_sets)
    catalog = session.get_one(Catalog, table.catalog_id)
    paused = pause_reason(table, catalog, is_system_paused=is_system_paused(session))
    status, reason, remedy = judge(health, key_sets, policy, jobs, paused, table.created_at, now)
    return HealthView(
        table_id=table.id,
        status=status,
        status_reason=reason,
        what_to_do=remedy,
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
        reader_cost=reader_cost,
        unconvertible=[UnconvertibleDelete.model_validate(item) for item in health.unconvertible],
        key_sets=key_sets,
        data_files=health.data_files,
        unindexed_data_files=health.unindexed_data_files,
        iceberg_snapshot_id=health.iceberg_snapshot_id,
        measured_at=health.measured_at,
        watch=_view_watch(health),
        reported_at=health.reported_at,
        poll_error=health.poll_error,
        decisions=health.decisions,
    )


def _view_watch(health: TableHealth) -> Watch | None:
    if (last := health.last_poll) is None:
        return None
    return Watch(is_told=last["is_told"], polled_every_seconds=last["every_seconds"])


def coverages(session: Session, table_ids: Sequence[str]) -> dict[str, float | None]:
    """How much of the data files of each table its index covers; None without one."""
    now = utc_now()
    found: Sequence[Any] = session.execute(_OF_INDEXES, {"ids": table_ids}).all()
    return {row.table_id: total(view_key_sets(row, now)).coverage for row in found}


def store_status(
    session: Session, table: EnrolledTable, health: TableHealth, policy: EffectivePolicy, jobs: Sequence[Job]
) -> HealthView:
    """Keep the status of now for lists, which can't judge every table anew.

    jobs: the table's last ones.

    What it returns has no `reader_cost`: that is for people, takes a while, and each poll comes here.
    """
    view = _view(session, table, health, policy, jobs, None)
    health.status, health.status_reason = view.status.value, view.status_reason
    health.what_to_do = view.what_to_do
    session.add(health)
    return view
