"""The status word of a table, the reason, and what to do, of what is known of it. Pure."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from service.jobs.caveats import caveat_of
from service.policies.models import EffectivePolicy
from service.quantities import aged, counted
from service.records.health import HealthStatus, TableHealth
from service.records.jobs import Job, JobKind, JobStatus
from service.records.reports import KeySetReport
from staging.history import StagingBranchNotFoundError

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
_COMPACTION_PATIENCE = 2
"""Degraded begins where a lookup costs so many times what it does when the policy compacts."""


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
    lags_at = conversion_late_at(health, policy, last_jobs, enrolled_at)
    if lags_at is not None and now > lags_at:
        late = (
            f"The oldest equality delete is {lag:.0f} s old; the policy converts at "
            f"{policy.convert.age_seconds:.0f} s."
        )
        return HealthStatus.LAGGING, *_why_late(health, JobKind.CONVERT, late, paused)
    staged = counted(health.staged_snapshots, "staged snapshot")
    stales_at = publication_late_at(health, policy, last_jobs, enrolled_at)
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


def conversion_late_at(
    health: TableHealth, policy: EffectivePolicy, last_jobs: Sequence[Job], enrolled_at: datetime
) -> datetime | None:
    """Until when the pending deletes are as the policy promises; None while it promises nothing of any."""
    if not policy.convert.enabled:
        return None
    kinds = (JobKind.INDEX, JobKind.CONVERT)
    return _late_at(
        health.oldest_equality_delete_at, policy.convert.age_seconds, kinds, last_jobs, enrolled_at
    )


def publication_late_at(
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
