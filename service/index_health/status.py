"""The status word of a table, the reason, and what to do, of what is known of it. Pure."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from service.jobs.caveats import caveat_of
from service.policies.models import EffectivePolicy
from service.quantities import aged
from service.records.health import HealthStatus, TableHealth
from service.records.jobs import Job, JobKind, JobStatus
from service.records.reports import KeySetReport
from staging.history import StagingBranchNotFoundError
from telemetry.plurals import counted

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


class Finding(NamedTuple):
    """Of a table: its status, the reason, and what to do, if anything."""

    status: HealthStatus
    reason: str
    remedy: str | None


@dataclass(frozen=True, slots=True)
class _Facts:
    """last_jobs, paused: as of `judge`."""

    health: TableHealth
    key_sets: Sequence[KeySetReport]
    policy: EffectivePolicy
    last_jobs: Sequence[Job]
    paused: str | None
    enrolled_at: datetime
    now: datetime

    @property
    def stopped(self) -> dict[str, Any]:
        """Why what is staged is not published."""
        return self.health.stopped_at or {}

    @property
    def has_no_staging_branch(self) -> bool:
        return self.stopped.get("code") == StagingBranchNotFoundError.code

    @property
    def staged(self) -> str:
        return counted(self.health.staged_snapshots, "staged snapshot")

    @property
    def failed(self) -> list[Job]:
        """The last of each kind that failed and that still says something of the table.

        A failed conversion that left nothing pending is none by now, nor is such a publication. Rows that
        were refused say nothing of the table.
        """
        return [
            job
            for job in self.last_jobs
            if job.status == JobStatus.FAILED.value
            and job.kind not in (JobKind.CONVERT.value, JobKind.PUBLISH.value)
            and not JobKind(job.kind).writes_rows
        ]


def judge(
    health: TableHealth,
    key_sets: Sequence[KeySetReport],
    policy: EffectivePolicy,
    last_jobs: Sequence[Job],
    paused: str | None,
    enrolled_at: datetime,
    now: datetime,
) -> Finding:
    """The gravest finding. Pure.

    last_jobs: the last of each kind that succeeded or failed, latest first.
    paused: why no job of the table starts, if so.
    """
    facts = _Facts(health, key_sets, policy, last_jobs, paused, enrolled_at, now)
    found = (look(facts) for look in _GRAVEST_FIRST)
    return next((finding for finding in found if finding is not None), _NOTHING_PENDING)


def _unknown(facts: _Facts) -> Finding | None:
    health = facts.health
    if (error := health.poll_error) is not None:
        return Finding(HealthStatus.UNKNOWN, str(error["detail"]), str(error["remedy"]))
    if health.measured_at is None and health.reported_at is None:
        return Finding(HealthStatus.UNKNOWN, "The table was not looked at yet.", "Wait for the next poll.")
    return None


def _unconvertible(facts: _Facts) -> Finding | None:
    if not facts.health.unconvertible:
        return None
    first, number = facts.health.unconvertible[0], len(facts.health.unconvertible)
    # The cause first, and the path last: lists cut long texts off.
    return Finding(
        HealthStatus.BLOCKED,
        f"{counted(number, 'equality delete file')} cannot be converted: {first['reason']} "
        f"({'the first is ' if number > 1 else ''}{first['file_path']})",
        first.get("remedy") or "Go by the reason that is given for each of the files.",
    )


def _publication_stopped(facts: _Facts) -> Finding | None:
    stopped = facts.stopped
    if not stopped or facts.has_no_staging_branch:
        return None
    reason = str(stopped.get("reason"))
    if stopped.get("snapshot_id") is not None:
        reason = f"Nothing is published from staged snapshot {stopped['snapshot_id']} on: {reason}"
    return Finding(HealthStatus.BLOCKED, reason, stopped.get("remedy") or "Go by the reason.")


def _hindered(facts: _Facts) -> Finding | None:
    if (hindrance := _hindrance(facts.health, facts.last_jobs)) is None:
        return None
    return Finding(HealthStatus.BLOCKED, *_failure(facts.health, hindrance))


def _late_conversion(facts: _Facts) -> Finding | None:
    health, policy = facts.health, facts.policy
    late_at = conversion_late_at(health, policy, facts.last_jobs, facts.enrolled_at)
    if late_at is None or facts.now <= late_at:
        return None
    late = (
        f"The oldest equality delete is {health.lag_seconds(facts.now):.0f} s old; the policy converts at "
        f"{policy.convert.age_seconds:.0f} s."
    )
    return Finding(HealthStatus.LAGGING, *_why_late(health, JobKind.CONVERT, late, facts.paused))


def _late_publication(facts: _Facts) -> Finding | None:
    health, policy = facts.health, facts.policy
    late_at = publication_late_at(health, policy, facts.last_jobs, facts.enrolled_at)
    if late_at is None or facts.now <= late_at:
        return None
    late = (
        f"The oldest of {facts.staged} is {health.staged_age_seconds(facts.now):.0f} s old; the policy "
        f"publishes at {policy.publish.age_seconds:.0f} s."
    )
    return Finding(HealthStatus.LAGGING, *_why_late(health, JobKind.PUBLISH, late, facts.paused))


def _worn_index(facts: _Facts) -> Finding | None:
    if (wear := _wear(facts.key_sets, facts.policy)) is None:
        return None
    causes = [_failure(facts.health, job) for job in facts.failed if job.kind == JobKind.COMPACT.value]
    if facts.paused is not None:
        causes.append((f"Nothing compacts it: {facts.paused}.", _RESUME))
    by_itself = "The policy compacts by itself; the table's plan says when."
    remedies = [remedy for _, remedy in causes] or [
        by_itself if facts.policy.compact.enabled else "Request a compact job."
    ]
    reason = " ".join([wear, *(cause for cause, _ in causes)])
    return Finding(HealthStatus.DEGRADED, reason, " ".join(remedies))


def _long_staging_branch(facts: _Facts) -> Finding | None:
    if facts.health.kept_snapshots <= KEPT:
        return None
    return Finding(
        HealthStatus.DEGRADED,
        f"The staging branch has {facts.health.kept_snapshots:,} snapshots, which make the table's metadata"
        " large and its commits slow; Flink needs all of them until the branch begins anew.",
        "Request a publish job with `renew` when the writer is stopped, or commits less often.",
    )


def _failed_job(facts: _Facts) -> Finding | None:
    if not (failed := facts.failed):
        return None
    return Finding(HealthStatus.DEGRADED, *_failure(facts.health, failed[0]))


def _overdue_maintenance(facts: _Facts) -> Finding | None:
    if (overdue := _overdue(facts.health, facts.now)) is None:
        return None
    return Finding(HealthStatus.DEGRADED, *overdue)


def _index_caveat(facts: _Facts) -> Finding | None:
    indexed = next((job for job in facts.last_jobs if job.kind in (JobKind.INDEX, JobKind.REBUILD)), None)
    if indexed is None:
        return None
    if (caveat := caveat_of(JobKind(indexed.kind), indexed.result, dry_run=False)) is None:
        return None
    return Finding(HealthStatus.DEGRADED, f"{caveat.title}. {caveat.detail}", caveat.remedy)


def _pending(facts: _Facts) -> Finding | None:
    if not (number := facts.health.pending_equality_delete_files):
        return None
    pending = f"{counted(number, 'equality delete file')} pending"
    if not facts.policy.convert.enabled:
        age = aged(facts.health.lag_seconds(facts.now))
        return Finding(
            HealthStatus.HEALTHY,
            f"{pending}, the oldest {age} old; the policy converts nothing by itself.",
            "Request a convert job, or attach the policy `standard`.",
        )
    if facts.paused is not None:
        return Finding(HealthStatus.HEALTHY, f"{pending}, and {facts.paused}.", _RESUME)
    return Finding(HealthStatus.HEALTHY, f"{pending}, as the policy allows.", None)


def _cut_staging_branch(facts: _Facts) -> Finding | None:
    if not facts.health.staging_is_cut:
        return None
    told = f" {facts.stopped.get('reason')}" if facts.stopped else ""
    return Finding(HealthStatus.HEALTHY, f"{_CUT}{told}", _BEGIN_ANEW)


def _missing_staging_branch(facts: _Facts) -> Finding | None:
    if not facts.has_no_staging_branch:
        return None
    return Finding(HealthStatus.HEALTHY, str(facts.stopped.get("reason")), facts.stopped.get("remedy"))


def _staged(facts: _Facts) -> Finding | None:
    if not facts.health.staged_snapshots:
        return None
    if not facts.policy.publish.enabled:
        return Finding(
            HealthStatus.HEALTHY,
            f"{facts.staged}; the policy publishes nothing by itself.",
            "Request a publish job, or attach the policy `standard`.",
        )
    return Finding(HealthStatus.HEALTHY, f"{facts.staged}, as the policy allows.", None)


_GRAVEST_FIRST: tuple[Callable[[_Facts], Finding | None], ...] = (
    _unknown,
    _unconvertible,
    _publication_stopped,
    _hindered,
    _late_conversion,
    _late_publication,
    _worn_index,
    _long_staging_branch,
    _failed_job,
    _overdue_maintenance,
    _index_caveat,
    _pending,
    _cut_staging_branch,
    _missing_staging_branch,
    _staged,
)
_NOTHING_PENDING = Finding(HealthStatus.HEALTHY, "No equality deletes are pending.", None)


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


def overdue_at(health: TableHealth, now: datetime) -> datetime | None:
    """When time alone will make maintenance overdue; None if it is already, or none is due."""
    if health.maintenance_due_at is None:
        return None
    # A moment later: what is due for just so long is not overdue yet.
    at = health.maintenance_due_at + OVERDUE + timedelta(microseconds=1)
    return at if at > now else None


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
