"""The health of a table as users see it: figures, a status word, the reason, and what to do."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Float, Select, String, bindparam, cast, func
from sqlalchemy import select as select_columns
from sqlalchemy.orm import Mapped
from sqlmodel import Session, col, select

from service.db.database import utc_now
from service.http.paging import Page, PageRequest, Sorting, read_page, within
from service.index_health.models import HealthSampleView, HealthView, KeySetSample, KeySetView, Watch
from service.index_health.reader_cost import view_reader_cost
from service.jobs.caveats import caveat_of
from service.jobs.queue import is_system_paused
from service.jobs.service import pause_reason
from service.policies.effective import effective_policy
from service.policies.models import EffectivePolicy
from service.quantities import aged, counted
from service.records.catalogs import Catalog
from service.records.health import (
    HealthSample,
    HealthStatus,
    PendingChange,
    Resolution,
    TableHealth,
    age_seconds,
    count_pending,
    minute_of,
)
from service.records.jobs import Job, JobKind, JobStatus
from service.records.reports import KeySetReport, StoppedAt, UnconvertibleDelete
from service.records.tables import EnrolledTable
from service.settings import Settings
from staging.history import StagingBranchNotFoundError

_UNSEEN_SECONDS = 600.0
_MISSED_POLLS = 20
"""So many in a row: the patience of a poller that is told of changes is less."""
SAMPLE_SECONDS = 60
"""Samples are at most this dense while nothing but the lag changes."""
_STEPS = ((24 * 60, 1), (7 * 24 * 60, 10), (30 * 24 * 60, 60), (math.inf, 120))
"""Spans in minutes, and the intervals that totals over them are told for: 1,440 of them at most."""
# Numbered in the order of their times, and found by these numbers.
SORTING = Sorting({"at": HealthSample.id}, key=HealthSample.id, default="-at")
_RESUME = "Resume what is paused: the table, its catalog, or the whole system."
_WIDEN = "Request the job ({}), which runs at once, or widen the policy's windows or budget."
_CUT = (
    "The staging branch's history does not reach its beginning: on this table of format version 3, Flink is"
    " refused there as soon as a key comes twice in a checkpoint."
)
_BEGIN_ANEW = (
    "If Flink writes, begin the branch at the table's first snapshot, let no key come twice in a checkpoint,"
    " or use a table of format version 2."
)
KEPT = 10_000
"""Snapshots of a staging branch. The table's metadata names all, so more of them make each commit slow."""
OVERDUE = timedelta(days=2)
"""For which maintenance may be due before the table is degraded: longer than a budget of a day is spent."""
PATIENCE_SECONDS = 60.0
"""Lagging begins so long, at least, after the age at which the policy converts."""
_OF_CATALOGS = {"catalog-unreachable", "catalog-redirects", "host-unknown"}
"""Problems of a catalog, and not of a single table of it."""
_CODE = cast(col(TableHealth.poll_error)["code"].as_string(), String)
_COMPACTION_PATIENCE = 2
"""Degraded begins where a lookup costs so many times what it does when the policy compacts."""


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


def judge(
    health: TableHealth,
    key_sets: Sequence[KeySetReport],
    policy: EffectivePolicy,
    last_jobs: Sequence[Job],
    paused: str | None,
    enrolled_at: datetime,
    now: datetime,
) -> tuple[HealthStatus, str, str | None]:
    """Status, reason, what to do. Pure; the gravest finding wins.

    last_jobs: the last of each kind that succeeded or failed, latest first.
    paused: why no job of the table starts, if so.
    """
    if health.poll_error is not None:
        return HealthStatus.UNKNOWN, str(health.poll_error["detail"]), str(health.poll_error["remedy"])
    if health.measured_at is None and health.reported_at is None:
        return HealthStatus.UNKNOWN, "The table was not looked at yet.", "Wait for the next poll."
    if health.unconvertible:
        first, number = health.unconvertible[0], len(health.unconvertible)
        # The cause first, and the path last: lists cut long texts off.
        return (
            HealthStatus.BLOCKED,
            f"{counted(number, 'equality delete file')} cannot be converted: {first['reason']} "
            f"({'the first is ' if number > 1 else ''}{first['file_path']})",
            first.get("remedy") or "Go by the reason that is given for each of the files.",
        )
    stopped = health.stopped_at or {}
    if stopped and stopped.get("code") != StagingBranchNotFoundError.code:
        reason = str(stopped.get("reason"))
        if stopped.get("snapshot_id") is not None:
            reason = f"Nothing is published from staged snapshot {stopped['snapshot_id']} on: {reason}"
        return HealthStatus.BLOCKED, reason, stopped.get("remedy") or "Go by the reason."
    if (hindrance := _hindrance(health, last_jobs)) is not None:
        return HealthStatus.BLOCKED, *_failure(health, hindrance)
    lag = health.lag_seconds(now)
    lags_at = _lags_at(health, policy, last_jobs, enrolled_at)
    if lags_at is not None and now > lags_at:
        late = (
            f"The oldest equality delete is {lag:.0f} s old; the policy converts at "
            f"{policy.convert.age_seconds:.0f} s."
        )
        return HealthStatus.LAGGING, *_why_late(health, JobKind.CONVERT, late, paused)
    staged = counted(health.staged_snapshots, "staged snapshot")
    stales_at = _stales_at(health, policy, last_jobs, enrolled_at)
    if stales_at is not None and now > stales_at:
        late = (
            f"The oldest of {staged} is {health.staged_age_seconds(now):.0f} s old; the policy publishes at "
            f"{policy.publish.age_seconds:.0f} s."
        )
        return HealthStatus.LAGGING, *_why_late(health, JobKind.PUBLISH, late, paused)
    # A failed conversion that left nothing pending is none by now, nor is such a publication. Rows that were
    # refused say nothing of the table.
    failed = [
        job
        for job in last_jobs
        if job.status == JobStatus.FAILED.value
        and job.kind not in (JobKind.CONVERT.value, JobKind.PUBLISH.value)
        and not JobKind(job.kind).writes_rows
    ]
    if (wear := _wear(key_sets, policy)) is not None:
        causes = [_failure(health, job) for job in failed if job.kind == JobKind.COMPACT.value]
        if paused is not None:
            causes.append((f"Nothing compacts it: {paused}.", _RESUME))
        by_itself = "The policy compacts by itself; the table's plan says when."
        remedies = [remedy for _, remedy in causes] or [
            by_itself if policy.compact.enabled else "Request a compact job."
        ]
        return HealthStatus.DEGRADED, " ".join([wear, *(cause for cause, _ in causes)]), " ".join(remedies)
    if health.kept_snapshots > KEPT:
        return (
            HealthStatus.DEGRADED,
            f"The staging branch has {health.kept_snapshots:,} snapshots, which make the table's metadata"
            " large and its commits slow; Flink needs all of them until the branch begins anew.",
            "Request a publish job with `renew` when the writer is stopped, or commits less often.",
        )
    if failed:
        return HealthStatus.DEGRADED, *_failure(health, failed[0])
    if (overdue := _overdue(health, now)) is not None:
        return HealthStatus.DEGRADED, *overdue
    indexed = next((job for job in last_jobs if job.kind in (JobKind.INDEX, JobKind.REBUILD)), None)
    if indexed is not None and (caveat := caveat_of(JobKind(indexed.kind), indexed.result, dry_run=False)):
        return HealthStatus.DEGRADED, f"{caveat.title}. {caveat.detail}", caveat.remedy
    pending = counted(health.pending_equality_delete_files, "equality delete file")
    if not policy.convert.enabled and health.pending_equality_delete_files:
        return (
            HealthStatus.HEALTHY,
            f"{pending} pending, the oldest {aged(lag)} old; the policy converts nothing by itself.",
            "Request a convert job, or attach the policy `standard`.",
        )
    if health.pending_equality_delete_files and paused is not None:
        return HealthStatus.HEALTHY, f"{pending} pending, and {paused}.", _RESUME
    if health.pending_equality_delete_files:
        return (
            HealthStatus.HEALTHY,
            f"{pending} pending, as the policy allows.",
            None,
        )
    if health.staging_is_cut:
        told = f" {stopped.get('reason')}" if stopped else ""
        return HealthStatus.HEALTHY, f"{_CUT}{told}", _BEGIN_ANEW
    if stopped:
        return HealthStatus.HEALTHY, str(stopped.get("reason")), stopped.get("remedy")
    if health.staged_snapshots and not policy.publish.enabled:
        return (
            HealthStatus.HEALTHY,
            f"{staged}; the policy publishes nothing by itself.",
            "Request a publish job, or attach the policy `standard`.",
        )
    if health.staged_snapshots:
        return HealthStatus.HEALTHY, f"{staged}, as the policy allows.", None
    return HealthStatus.HEALTHY, "No equality deletes are pending.", None


def _why_late(health: TableHealth, kind: JobKind, late: str, paused: str | None) -> tuple[str, str]:
    """That a table lags, in words, and what to do."""
    if paused is not None:
        does = "publishes" if kind is JobKind.PUBLISH else "converts"
        return f"{late} Nothing {does} them: {paused}.", _RESUME
    held_up = health.decisions.get(kind.value, {})
    if held_up.get("code") in ("outside-window", "budget-spent"):
        return f"{late} {held_up['sentence']}", _WIDEN.format(kind.value)
    return late, "Check that the list of workers has one that runs; add workers if all are busy."


def _overdue(health: TableHealth, now: datetime) -> tuple[str, str] | None:
    """That maintenance which the policy wants does not come about, in words, and what to do."""
    due = [(one["due_since"], kind) for kind, one in health.decisions.items() if "due_since" in one]
    if not due:
        return None
    since, kind = min(due)
    if now - datetime.fromisoformat(since) <= OVERDUE:
        return None
    decision = health.decisions[kind]
    if decision["code"] in ("outside-window", "budget-spent"):
        remedy = _WIDEN
    elif decision["code"] == "sort-order-missing":
        remedy = "Give the table a sort order, or let the policy choose `binpack`."
    else:
        remedy = "See the last {} jobs, and whether workers have time for them."
    words = JobKind(kind).words
    return f"Maintenance is overdue ({words}). {decision['sentence']}", remedy.format(words)


def _hindrance(health: TableHealth, last_jobs: Sequence[Job]) -> Job | None:
    """The failed job that keeps deletes from being converted, or what is staged from being published."""
    published = next((job for job in last_jobs if job.kind == JobKind.PUBLISH.value), None)
    may_wait = health.staged_snapshots or health.staging_is_unproven
    if published is not None and published.status == JobStatus.FAILED.value and may_wait:
        return published
    needed = [job for job in last_jobs if job.kind in (JobKind.INDEX.value, JobKind.CONVERT.value)]
    for job in needed:
        is_pending = job.kind == JobKind.CONVERT.value and health.pending_equality_delete_files > 0
        if job.status == JobStatus.FAILED.value and (job is needed[0] or is_pending):
            return job
    return None


def _failure(health: TableHealth, job: Job) -> tuple[str, str]:
    """That a job failed, in words, and what to do."""
    error, decision = job.error or {}, health.decisions.get(job.kind, {})
    pause = f" {decision['sentence']}" if decision.get("action") == "backoff" else ""
    title = error.get("title", "no reason was reported")
    reason = f"The last {JobKind(job.kind).words} job failed: {title}.{pause}"
    return reason, error.get("remedy") or f"See job {job.id}."


def _wear(key_sets: Sequence[KeySetReport], policy: EffectivePolicy) -> str | None:
    """How an index is well past what the policy compacts; each key set has one of its own."""
    deadest = max(key_sets, key=lambda key_set: key_set.dead_ratio, default=None)
    if deadest and (1 - deadest.dead_ratio) * _COMPACTION_PATIENCE < 1 - policy.compact.dead_ratio:
        return (
            f"{deadest.dead_ratio:.0%} of the index entries of ({', '.join(deadest.columns)}) point to files "
            f"that are gone (policy: {policy.compact.dead_ratio:.0%})."
        )
    longest = max(key_sets, key=lambda key_set: key_set.sorted_runs, default=None)
    if longest and longest.sorted_runs > policy.compact.sorted_runs * _COMPACTION_PATIENCE:
        return (
            f"The index of ({', '.join(longest.columns)}) has {longest.sorted_runs} sorted runs "
            f"(policy: {policy.compact.sorted_runs}); lookups read all of them."
        )
    return None


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


def _lags_at(
    health: TableHealth, policy: EffectivePolicy, last_jobs: Sequence[Job], enrolled_at: datetime
) -> datetime | None:
    """Until when the pending deletes are as the policy promises; None while it promises nothing of any."""
    if not policy.convert.enabled:
        return None
    kinds = (JobKind.INDEX, JobKind.CONVERT)
    return _late_at(
        health.oldest_equality_delete_at, policy.convert.age_seconds, kinds, last_jobs, enrolled_at
    )


def _stales_at(
    health: TableHealth, policy: EffectivePolicy, last_jobs: Sequence[Job], enrolled_at: datetime
) -> datetime | None:
    """The same of what is staged."""
    if not policy.publish.enabled:
        return None
    kinds = (JobKind.INDEX, JobKind.CONVERT, JobKind.PUBLISH)
    return _late_at(health.oldest_staged_at, policy.publish.age_seconds, kinds, last_jobs, enrolled_at)


def _late_at(
    oldest: datetime | None,
    age_seconds: float,
    kinds: Collection[JobKind],
    last_jobs: Sequence[Job],
    enrolled_at: datetime,
) -> datetime | None:
    """When a job is late that is due at an age, no sooner than the table came under the policy.

    That is once it takes as long again, or longer than the job that may run just then and itself.
    kinds: of these jobs.
    """
    if oldest is None:
        return None
    took = [
        (job.ended_at - job.started_at).total_seconds()
        for job in last_jobs
        if job.kind in kinds
        and job.status == JobStatus.SUCCEEDED.value
        and not job.failures  # which would count the pauses between attempts
        and job.started_at is not None
        and job.ended_at is not None
    ]
    due_at = max(oldest, enrolled_at) + timedelta(seconds=age_seconds)
    return due_at + timedelta(seconds=max(age_seconds, 2 * max(took, default=0.0), PATIENCE_SECONDS))


def begins_to_lag_at(
    session: Session, table: EnrolledTable, health: TableHealth, policy: EffectivePolicy, now: datetime
) -> datetime | None:
    """When time alone will make the table lag; None if it does already, or never will."""
    if health.oldest_equality_delete_at is None and health.oldest_staged_at is None:
        return None
    jobs = last_jobs(session, table.id)
    found = [late_at(health, policy, jobs, table.created_at) for late_at in (_lags_at, _stales_at)]
    return min((at for at in found if at is not None and at >= now), default=None)


def get_health(session: Session, table: EnrolledTable, policy: EffectivePolicy | None = None) -> HealthView:
    """The health of a table now. policy: of the table, if it is known already."""
    now = utc_now()
    health = session.get(TableHealth, table.id) or TableHealth(table_id=table.id)
    key_sets = view_key_sets(health, now)
    totals = total(key_sets)
    catalog = session.get_one(Catalog, table.catalog_id)
    paused = pause_reason(table, catalog, is_system_paused=is_system_paused(session))
    status, reason, remedy = judge(
        health,
        key_sets,
        policy or effective_policy(session, table),
        last_jobs(session, table.id),
        paused,
        table.created_at,
        now,
    )
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
        reader_cost=view_reader_cost(health),
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
    found = session.exec(select(TableHealth).where(col(TableHealth.table_id).in_(table_ids)))
    return {health.table_id: total(view_key_sets(health, now)).coverage for health in found}


@dataclass(frozen=True)
class ReadTotals:
    """What reading all tables once costs, by the read by which tables are compared, and what maintaining them
    has cost so far."""

    seconds: float
    overhead_seconds: float
    """For deletes and small files."""
    before_seconds: float
    """Before files last went, of each table where any did."""
    point_seconds: float
    """Of a read that looks for one key."""
    point_overhead_seconds: float
    delete_files: int
    """That are joined with data files."""
    delete_bytes: int
    avoided_seconds: float
    """So much more it would be had no job taken that away."""
    saved_seconds: float
    """The sum of that over time since each was enrolled, for as many reads as policies say."""
    maintenance_seconds: float

    @property
    def overhead_ratio(self) -> float:
        return _ratio(self.seconds, self.overhead_seconds)

    @property
    def point_overhead_ratio(self) -> float:
        return _ratio(self.point_seconds, self.point_overhead_seconds)


def _ratio(seconds: float, overhead_seconds: float) -> float:
    fresh = seconds - overhead_seconds
    return seconds / fresh if fresh else 1.0


@dataclass(frozen=True)
class Summary:
    """All enrolled tables together."""

    tables: Counter[HealthStatus]
    pending_equality_delete_files: int
    pending_equality_deletes: int
    oldest_age_seconds: float
    oldest_awaited_seconds: float
    """Of tables that are not paused, and whose policy converts by itself."""
    snapshots: int
    small_data_files: int
    small_delete_files: int
    small_manifests: int
    reads: ReadTotals
    saved_ever_seconds: float
    """Of reads, also of tables that are enrolled no more: it only grows."""
    staged_rows: int
    oldest_staged_seconds: float
    """Of tables that are not paused, and whose policy publishes by itself."""
    oldest_due_seconds: float
    """For which maintenance that a policy wants has been due."""


_SUMMED = (
    "pending_equality_delete_files",
    "pending_equality_deletes",
    "snapshots",
    "small_data_files",
    "small_delete_files",
    "small_manifests",
    "staged_rows",
    "delete_files",
    "delete_bytes",
    "read_seconds",
    "read_overhead_seconds",
    "read_before_seconds",
    "point_read_seconds",
    "point_read_overhead_seconds",
    "read_avoided_seconds",
    "read_saved_seconds",
    "maintenance_seconds",
)
"""Columns of TableHealth."""


def summarize(session: Session, now: datetime) -> Summary:
    """What the last poll of each table found; as many queries, however many tables there are."""
    # As floats: SQLite's sum of integers fails beyond 64 bits.
    sums = [func.coalesce(func.sum(cast(getattr(TableHealth, name), Float)), 0) for name in _SUMMED]
    oldest = [func.min(TableHealth.oldest_equality_delete_at), func.min(TableHealth.maintenance_due_at)]
    groups = (col(TableHealth.status), col(TableHealth.is_removed))
    rows = session.execute(select_columns(*groups, func.count(), *oldest, *sums).group_by(*groups)).all()
    found = [row for row in rows if not row[1]]
    tables: Counter[HealthStatus] = Counter()
    for status, _, number, *_ in found:
        tables[HealthStatus(status)] += number
    enrolled = select(func.count()).select_from(EnrolledTable).where(col(EnrolledTable.deleted_at).is_(None))
    # Those that nothing is known of have no row.
    tables[HealthStatus.UNKNOWN] += max(session.exec(enrolled).one() - tables.total(), 0)
    of_all = _added_up(rows)
    of = _added_up(found)
    return Summary(
        tables=tables,
        pending_equality_delete_files=int(of["pending_equality_delete_files"]),
        pending_equality_deletes=int(of["pending_equality_deletes"]),
        oldest_age_seconds=age_seconds(_oldest(row[3] for row in found), now),
        oldest_awaited_seconds=age_seconds(
            _oldest_awaited(session, col(TableHealth.oldest_equality_delete_at), JobKind.CONVERT), now
        ),
        snapshots=int(of["snapshots"]),
        small_data_files=int(of["small_data_files"]),
        small_delete_files=int(of["small_delete_files"]),
        small_manifests=int(of["small_manifests"]),
        reads=ReadTotals(
            seconds=of["read_seconds"],
            overhead_seconds=of["read_overhead_seconds"],
            before_seconds=of["read_before_seconds"],
            point_seconds=of["point_read_seconds"],
            point_overhead_seconds=of["point_read_overhead_seconds"],
            delete_files=int(of["delete_files"]),
            delete_bytes=int(of["delete_bytes"]),
            avoided_seconds=of["read_avoided_seconds"],
            saved_seconds=of["read_saved_seconds"],
            maintenance_seconds=of["maintenance_seconds"],
        ),
        saved_ever_seconds=of_all["read_saved_seconds"],
        staged_rows=int(of["staged_rows"]),
        oldest_staged_seconds=age_seconds(
            _oldest_awaited(session, col(TableHealth.oldest_staged_at), JobKind.PUBLISH), now
        ),
        # One that can't be looked at is told of as such, and nobody knows what it still wants.
        oldest_due_seconds=age_seconds(
            _oldest(row[4] for row in found if row[0] != HealthStatus.UNKNOWN.value), now
        ),
    )


def _oldest(moments: Iterable[datetime | None]) -> datetime | None:
    return min((at for at in moments if at is not None), default=None)


def _added_up(rows: Sequence[Any]) -> dict[str, float]:
    """The sums of several groups of tables, by the names of their columns."""
    return {name: sum(row[5 + number] for row in rows) for number, name in enumerate(_SUMMED)}


def _oldest_awaited(session: Session, moment: Mapped[datetime | None], kind: JobKind) -> datetime | None:
    """The oldest one of all tables for which a job of a kind starts by itself, as the last decision says."""
    oldest_first = session.exec(
        select(moment, TableHealth.decisions)
        .where(~col(TableHealth.is_removed), moment.is_not(None))
        .order_by(moment)
        .execution_options(yield_per=100)
    )
    with closing(oldest_first):
        for at, decisions in oldest_first:
            if decisions.get(kind.value, {}).get("code") not in ("policy-off", "paused"):
                return at
    return None


class Troubled(NamedTuple):
    table_id: str
    table: str
    catalog: str
    reason: str
    what_to_do: str | None


def tables_with_status(session: Session, status: HealthStatus, number: int) -> list[Troubled]:
    """So many enrolled tables at most that have a status by their last poll, by name, with its reason."""
    rows = session.execute(
        select_columns(
            col(EnrolledTable.id),
            col(EnrolledTable.name),
            col(Catalog.name),
            col(TableHealth.status_reason),
            col(TableHealth.what_to_do),
        )
        .join(TableHealth, col(TableHealth.table_id) == col(EnrolledTable.id))
        .join(Catalog, col(Catalog.id) == col(EnrolledTable.catalog_id))
        .where(col(TableHealth.status) == status.value, col(EnrolledTable.deleted_at).is_(None))
        .order_by(col(EnrolledTable.name), col(EnrolledTable.id))
        .limit(number)
    )
    return [Troubled(*row) for row in rows]


@dataclass(frozen=True)
class FailedPoll:
    """A table that cannot be looked at, and why."""

    table_id: str
    table: str
    catalog_id: str
    catalog: str
    error: Mapping[str, Any]
    """`code`, `title`, `detail` and `remedy`."""


def failed_polls(session: Session, number: int) -> list[FailedPoll]:
    """So many tables at most whose last poll failed for a reason of their own, by catalog and name."""
    chosen = _failed(_CODE.not_in(_OF_CATALOGS)).order_by(col(Catalog.name), col(EnrolledTable.name))
    return [FailedPoll(*row) for row in session.execute(chosen.limit(number))]


def failed_with_their_catalogs(session: Session) -> list[tuple[FailedPoll, int]]:
    """Of each catalog that failed when its tables were polled: the first of them by name, and how many.

    None of these is read but the first: all tables of a large catalog fail at the same time.
    """
    counted = session.execute(
        _failed(_CODE.in_(_OF_CATALOGS))
        .with_only_columns(col(Catalog.id), func.count(), maintain_column_froms=True)
        .group_by(col(Catalog.id), col(Catalog.name))
        .order_by(col(Catalog.name))
    ).all()
    found = []
    for catalog_id, number in counted:
        first = _failed(_CODE.in_(_OF_CATALOGS), col(Catalog.id) == catalog_id)
        row = session.execute(first.order_by(col(EnrolledTable.name)).limit(1)).one()
        found.append((FailedPoll(*row), number))
    return found


def _failed(*which: ColumnElement[bool]) -> Select[Any]:
    return (
        select_columns(
            col(EnrolledTable.id),
            col(EnrolledTable.name),
            col(Catalog.id),
            col(Catalog.name),
            col(TableHealth.poll_error),
        )
        .join(TableHealth, col(TableHealth.table_id) == col(EnrolledTable.id))
        .join(Catalog, col(Catalog.id) == col(EnrolledTable.catalog_id))
        .where(~col(TableHealth.is_removed), col(TableHealth.poll_error).is_not(None), *which)
    )


def total_pending(session: Session, since: datetime, now: datetime) -> list[tuple[datetime, int]]:
    """Equality deletes pending in all tables that were enrolled, oldest first, from their first sample on.

    Each is the total at the end of a minute, of a longer interval if there are too many of them, or now.
    The first one is of `since`, if anything was pending before or nothing has been since.
    """
    began = minute_of(since)
    first = session.exec(select(func.min(PendingChange.minute)).where(PendingChange.minute >= began)).one()
    has_older = _has_changes_before(session, began)
    span = minute_of(now) - (began if first is None or has_older else first)
    step = next(minutes for most, minutes in _STEPS if span <= most)
    began = began // step * step
    interval = (col(PendingChange.minute) // step).label("interval")
    counted = select(func.coalesce(func.sum(TableHealth.counted_equality_deletes), 0))
    # By one statement, or a change that comes meanwhile would be in one of both alone.
    changes = session.exec(
        select(interval, func.sum(PendingChange.equality_deletes), counted.scalar_subquery())
        .where(PendingChange.minute >= began)
        .group_by(interval)
        .order_by(interval)
    ).all()
    # From the end: what is older than the changes that are kept is in no row any more.
    total = int(changes[0][2] if changes else session.exec(counted).one())
    total -= sum(int(change) for _, change, _ in changes)
    totals = {since: total} if total or has_older or (not changes and _is_any_measured(session)) else {}
    for number, change, _ in changes:
        total += int(change)
        end = datetime.fromtimestamp((number + 1) * step * 60, UTC)
        totals[min(end, now)] = total
    return list(totals.items())


def _is_any_measured(session: Session) -> bool:
    return (
        session.exec(
            select(TableHealth.table_id).where(col(TableHealth.measured_at).is_not(None)).limit(1)
        ).first()
        is not None
    )


def _has_changes_before(session: Session, minute: int) -> bool:
    older = select(PendingChange.minute).where(PendingChange.minute < minute).limit(1)
    return session.exec(older).first() is not None


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
_LAST_SAMPLE = (
    select(HealthSample)
    .where(HealthSample.table_id == bindparam("table_id"))
    .order_by(col(HealthSample.id).desc())
    .limit(1)
)


def last_jobs(session: Session, table_id: str) -> Sequence[Job]:
    """The last job of each kind that succeeded or failed, latest first."""
    return session.exec(_LAST_JOBS, params={"table_id": table_id}).all()


def store_status(
    session: Session, table: EnrolledTable, health: TableHealth, policy: EffectivePolicy | None = None
) -> HealthView:
    """Keep the status of now for lists, which can't judge every table anew."""
    view = get_health(session, table, policy)
    health.status, health.status_reason = view.status.value, view.status_reason
    health.what_to_do = view.what_to_do
    session.add(health)
    return view


_AGES = ("lag_seconds", "staged_age_seconds")
"""Of a sample: what grows by itself while nothing changes."""
_OF_TIME = {
    *("id", "at", "resolution", "hour_most_deletes", "hour_longest_lag_seconds"),
    *("day_most_deletes", "day_longest_lag_seconds"),
}
"""Of a sample: what follows from when it was taken, and from those before it."""


def record_sample(
    session: Session, table: EnrolledTable, health: TableHealth, policy: EffectivePolicy, now: datetime
) -> None:
    """Store the status, and append a sample if the figures changed, or if the last one is a while ago."""
    view = store_status(session, table, health, policy)
    last = _last_sample(session, table.id)
    of_shape = {"data_files", "rows", "vectors", "positions", "data_bytes", "delete_bytes"}
    shape: dict[str, Any] = health.reader_shapes.get("now", {})
    alike = {*_OF_TIME, "unconvertible", "key_sets", *of_shape}
    sample = HealthSample(
        at=now,
        unconvertible=len(view.unconvertible),
        key_sets=[one.model_dump(include=set(KeySetSample.model_fields)) for one in view.key_sets],
        **view.model_dump(include=HealthSample.model_fields.keys() - alike),
        **{name: shape[name] for name in of_shape & shape.keys()},
    )
    ignored = {*_OF_TIME, *_AGES}
    if (
        last is None
        or last.model_dump(exclude=ignored) != sample.model_dump(exclude=ignored)
        or now - last.at >= timedelta(seconds=SAMPLE_SECONDS)
    ):
        append_sample(session, last, sample)
    count_pending(session, health, view.pending_equality_deletes, now)


def unseen_after(settings: Settings) -> timedelta:
    """Figures of a table that nobody has looked at for longer say nothing of now."""
    return timedelta(seconds=max(_UNSEEN_SECONDS, _MISSED_POLLS * settings.poll_interval_seconds))


def keep_last_look(session: Session, settings: Settings, health: TableHealth, now: datetime) -> None:
    """Append a sample of the last look at a table in which nothing but ages had changed until then.

    While that is so, tables are not measured. Without it, history would not show how long the lag became, nor
    that nobody has looked since: then the sample's status is `unknown`.
    """
    last = _last_sample(session, health.table_id)
    if last is None or health.measured_at is None:
        return
    is_unseen = now - health.measured_at > unseen_after(settings)
    ages = {name: age for name in _AGES if (age := getattr(last, name))}
    since = max(health.measured_at - last.at, timedelta())
    if is_unseen or (ages and since >= timedelta(seconds=SAMPLE_SECONDS)):
        grown = {
            "id": None,
            "at": last.at + since,
            "status": HealthStatus.UNKNOWN.value if is_unseen else last.status,
            **{name: age + since.total_seconds() for name, age in ages.items()},
        }
        append_sample(session, last, HealthSample(**last.model_dump() | grown))
        session.flush()


def _last_sample(session: Session, table_id: str) -> HealthSample | None:
    return session.exec(_LAST_SAMPLE, params={"table_id": table_id}).first()


def append_sample(session: Session, last: HealthSample | None, sample: HealthSample) -> None:
    """Add the latest sample of a table; last: the one before it. Both are of UTC.

    The last of an hour or a day stays longer than others, since its figures hold until the next one, and has
    the most of these.
    """
    is_of_day = last is not None and last.at.date() == sample.at.date()
    is_of_hour = is_of_day and last is not None and last.at.hour == sample.at.hour
    deletes, lag = sample.pending_equality_deletes, sample.lag_seconds
    sample.resolution = Resolution.DAY
    sample.hour_most_deletes = sample.day_most_deletes = deletes
    sample.hour_longest_lag_seconds = sample.day_longest_lag_seconds = lag
    if last is not None and is_of_hour:
        sample.hour_most_deletes = max(deletes, last.hour_most_deletes)
        sample.hour_longest_lag_seconds = max(lag, last.hour_longest_lag_seconds)
    if last is not None and is_of_day:
        sample.day_most_deletes = max(deletes, last.day_most_deletes)
        sample.day_longest_lag_seconds = max(lag, last.day_longest_lag_seconds)
        last.resolution = Resolution.ALL if is_of_hour else Resolution.HOUR
    session.add(sample)


def samples_around(
    session: Session, table_id: str, begins: datetime, ends: datetime
) -> tuple[HealthSample | None, HealthSample | None]:
    """What was seen of a table last before something began, and first after it ended."""
    of_table = select(HealthSample).where(HealthSample.table_id == table_id)
    place = col(HealthSample.id)
    return (
        session.exec(of_table.where(HealthSample.at < begins).order_by(place.desc()).limit(1)).first(),
        session.exec(of_table.where(HealthSample.at >= ends).order_by(place).limit(1)).first(),
    )


def at_least(resolution: Resolution) -> list[str]:
    """What is stored of samples that are as coarse, or coarser."""
    return [each.value for each in list(Resolution)[list(Resolution).index(resolution) :]]


def list_history(
    session: Session,
    page: PageRequest,
    table_id: str,
    *,
    resolution: Resolution = Resolution.ALL,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Page[HealthSampleView]:
    """Samples from `since` until before `until`: all that are kept, or the last of each hour or day."""
    query = select(HealthSample).where(HealthSample.table_id == table_id)
    if resolution is not Resolution.ALL:
        query = query.where(col(HealthSample.resolution).in_(at_least(resolution)))
    query = query.where(*within(col(HealthSample.at), since, until))
    return read_page(
        session,
        query,
        page,
        SORTING,
        lambda rows: [HealthSampleView.model_validate(row, from_attributes=True) for row in rows],
    )
