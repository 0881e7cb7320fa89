"""The state of a table that decisions depend on, read from the database."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from statistics import median
from typing import Any

from sqlalchemy import bindparam
from sqlmodel import Session, col, select

from service.catalogs.measure import Past, Volume
from service.index_health.reader_cost import fresh_shape
from service.index_health.service import LATEST, RecentJobs, recent_jobs
from service.jobs.budgets import spent_budget, spent_budget_of
from service.jobs.index_reports import rewritable
from service.jobs.views import why_paused
from service.policies.effective import effective_policy
from service.policies.models import EffectivePolicy
from service.reader_cost import Shape, shape_of, small_files
from service.records.health import TableHealth
from service.records.jobs import REQUEST, Job, JobKind, JobStatus
from service.records.tables import EnrolledTable
from service.scheduling.clock import CLOCK_TOLERANCE
from service.scheduling.facts import (
    SCHEDULED,
    WAITS,
    LastJob,
    StagedState,
    TableState,
    grown_files,
    may_take_some_again,
)

_LOOKED_BACK = 20
"""Jobs: after so many failures the pause is as long as it gets."""
_INDEXING_STAGES = frozenset({"index", "compact", "commit_index"})
_NOTHING = Shape(0, 0).as_json()


# Putting a statement together takes longer than most take to run.
_ENDED = (
    select(Job)
    .where(
        Job.table_id == bindparam("table_id"),
        Job.kind == bindparam("kind"),
        ~col(Job.dry_run),
        col(Job.status).in_((JobStatus.SUCCEEDED.value, JobStatus.FAILED.value)),
    )
    .order_by(col(Job.ended_at).desc())
    .limit(bindparam("most"))
)


@dataclass(frozen=True)
class Known:
    """What decisions on a table go by besides its health."""

    policy: EffectivePolicy
    paused: str | None
    """Why no job starts, if so."""
    jobs: RecentJobs


def read_known(session: Session, table: EnrolledTable, now: datetime) -> Known:
    jobs = recent_jobs(session, table, now + CLOCK_TOLERANCE)
    return Known(effective_policy(session, table), why_paused(session, table), jobs)


def table_state(
    session: Session, table: EnrolledTable, health: TableHealth, known: Known, now: datetime
) -> TableState:
    policy, active = known.policy, [job for job in known.jobs.active if not job.dry_run]
    spent = spent_budget(session, table, policy, now)
    spent_of = {
        kind: found
        for kind in SCHEDULED
        if (found := spent_budget_of(session, table, policy, kind, now)) is not None
    }

    def has_turn(job: Job) -> bool:
        may_start = job.trigger == REQUEST or (spent is None and JobKind(job.kind) not in spent_of)
        is_first = not job.failures and job.available_at <= now
        return is_first and job.priority >= policy.schedule.priority and may_start

    present = {JobKind(job.kind) for job in active if job.status == JobStatus.RUNNING.value or has_turn(job)}
    last = {
        kind: _last_job(session, health, kind, jobs, policy)
        for kind, jobs in known.jobs.ended.items()
        if kind in SCHEDULED
    }
    now_stored = health.reader_shapes.get("now")
    shape = shape_of(now_stored) if now_stored is not None else None
    return TableState(
        paused=known.paused,
        has_keys=health.has_keys,
        new=Volume(health.new_data_files, health.new_rows, health.new_bytes),
        indexed_at=health.indexed_at,
        pending_delete_files=health.pending_equality_delete_files,
        convertible=Volume(
            health.convertible_delete_files, health.convertible_deletes, health.convertible_bytes
        ),
        oldest_convertible_at=health.oldest_convertible_at,
        staged=_staged(health) if policy.publish.source else None,
        small_data_files=health.small_data_files,
        deleted_data_files=health.deleted_data_files,
        small_delete_files=health.small_delete_files,
        small_manifests=health.small_manifests if table.branch == "main" else 0,
        past=Past(health.snapshots, health.oldest_snapshot_id, health.oldest_snapshot_at),
        done_elsewhere=health.others_seen_at,
        sorted_runs=max((key_set["sorted_runs"] for key_set in health.key_sets), default=0),
        dead_ratio=max((key_set["dead_ratio"] for key_set in health.key_sets), default=0.0),
        dead_bytes=max(
            (int(key_set["dead_ratio"] * key_set["bytes"]) for key_set in health.key_sets), default=0
        ),
        unverified=Volume(health.unverified_data_files, health.unverified_rows, health.unverified_bytes),
        has_index=any(key_set["generation"] for key_set in health.key_sets),
        enrolled_at=table.created_at,
        active=frozenset(JobKind(job.kind) for job in active),
        held=frozenset(JobKind(job.kind) for job in active if job.held_because is not None),
        later=frozenset(JobKind(job.kind) for job in active) - present,
        running=frozenset(JobKind(job.kind) for job in active if job.status == JobStatus.RUNNING.value),
        spent=spent,
        spent_of=spent_of,
        last={kind: job for kind, job in last.items() if job is not None},
        shape=shape,
        fresh=fresh_shape(health, shape) if shape is not None else None,
        grown_files=_grown_files(health, policy),
        new_small_files=_new_small_files(health),
        has_sort_order=health.has_sort_order,
        rows_deleted_since=health.rows_deleted_since if table.format_version > 2 else None,
        waits_since=waits_since(health.decisions),
    )


def waits_since(decisions: Mapping[str, Mapping[str, Any]]) -> dict[JobKind, datetime]:
    """As `TableState` has it. decisions: as the table's health has them."""
    return {
        JobKind(kind): datetime.fromisoformat(told["since"])
        for kind, told in decisions.items()
        if told.get("code") in WAITS
    }


def _grown_files(health: TableHealth, policy: EffectivePolicy) -> int:
    """Data files that a rewriting may take besides those of the last report: new, or with new vectors."""
    grown = _since_report(health, "data_files") + _since_report(health, "vectors")
    are_reported = "reported" in health.reader_shapes
    return grown_files(health, policy, grown, health.partitions, are_reported=are_reported)


def _new_small_files(health: TableHealth) -> int:
    """Of the data files since the last report."""
    files, size = _since_report(health, "data_files"), _since_report(health, "data_bytes")
    return small_files(files, size, health.target_file_bytes)


def _since_report(health: TableHealth, name: str) -> int:
    """How much more of it the table has now: all, if no job has reported; 0 until the look after a report."""
    now, reported = health.reader_shapes.get("now"), health.reader_shapes.get("reported", _NOTHING)
    return max(now[name] - reported[name], 0) if now and reported else 0


def _staged(health: TableHealth) -> StagedState:
    stopped = health.stopped_at or {}
    trouble = None if stopped.get("snapshot_id") is not None else stopped.get("reason")
    unproven = health.iceberg_snapshot_id if health.staging_is_unproven else None
    return StagedState(
        health.staged_snapshots,
        health.staged_rows,
        health.oldest_staged_at,
        trouble,
        unproven,
        health.kept_snapshots,
    )


def _last_job(
    session: Session, health: TableHealth, kind: JobKind, ended: Sequence[Job], policy: EffectivePolicy
) -> LastJob | None:
    """ended: the latest of its kind."""
    if len(ended) == LATEST and not _says_all(ended, health, policy):
        named = {"table_id": health.table_id, "kind": kind.value, "most": _LOOKED_BACK}
        ended = session.exec(_ENDED, params=named).all()
    if ended[0].ended_at is None:
        return None
    since_success = list(takewhile(lambda job: job.status == JobStatus.FAILED.value, ended))
    failed = [job for job in since_success if job.trigger != REQUEST and job.policy_digest == policy.digest]
    idle = takewhile(lambda job: _is_idle(job, health, policy), ended)
    took = [
        (job, max((job.ended_at - job.started_at).total_seconds() - _indexing_seconds(job), 0.0))
        for job in ended
        if _tells_time(job) and job.started_at is not None and job.ended_at is not None
    ]
    seconds = [each for _, each in took[:LATEST]]
    return LastJob(
        ended[0].ended_at,
        failed=len(failed),
        failed_at=failed[0].ended_at if failed else None,
        cause=str((failed[0].error or {}).get("title", "no reason was reported")) if failed else "",
        idle=sum(1 for _ in idle),
        succeeded_at=next((job.ended_at for job in ended if job.status == JobStatus.SUCCEEDED.value), None),
        has_succeeded=any(job.status == JobStatus.SUCCEEDED.value for job in ended),
        has_counted=any(
            job.status == JobStatus.SUCCEEDED.value and job.policy_digest == policy.digest for job in ended
        ),
        committed_at=next((job.ended_at for job in ended if _has_committed(job)), None),
        seconds=median(seconds) if seconds else None,
        delete_ratio=float(ended[0].parameters.get("delete_ratio_threshold") or 1.0),
        works=tuple((work, each) for job, each in took if (work := _bytes_rewritten(job))),
        seen_id=ended[0].seen_snapshot_id if ended[0].status == JobStatus.SUCCEEDED.value else None,
    )


def _says_all(latest: Sequence[Job], health: TableHealth, policy: EffectivePolicy) -> bool:
    """Whether the latest jobs of a kind say what is asked of all: none failed or was idle just now, and what
    they took is known, if jobs of that kind commit."""
    if latest[0].status == JobStatus.FAILED.value or _is_idle(latest[0], health, policy):
        return False
    return all(map(_tells_time, latest)) or not any("commits" in (job.result or {}) for job in latest)


def _tells_time(job: Job) -> bool:
    """Whether the time that a job took is that of the work, without pauses between attempts."""
    return job.status == JobStatus.SUCCEEDED.value and not job.failures and _has_committed(job)


def _indexing_seconds(job: Job) -> float:
    """What a conversion took for what an index job would have done."""
    if job.kind != JobKind.CONVERT.value:
        return 0.0
    stages = (job.result or {}).get("stages") or ()
    return sum(float(stage["seconds"]) for stage in stages if stage["name"] in _INDEXING_STAGES)


def _bytes_rewritten(job: Job) -> float:
    """Of data files; 0 if a job is none that rewrites them."""
    return float(((job.result or {}).get("data_files") or {}).get("bytes_rewritten") or 0)


def _has_committed(job: Job) -> bool:
    """Whether a job did something."""
    commits = (job.result or {}).get("commits")
    return isinstance(commits, int) and commits > 0


def _is_idle(job: Job, health: TableHealth, policy: EffectivePolicy) -> bool:
    """Whether a job found nothing to do in the table as it still is."""
    result = job.result or {}
    if job.status != JobStatus.SUCCEEDED.value:
        return False
    if job.kind == JobKind.PUBLISH.value:
        # Whatever happens on the table's own branch, a staged snapshot stays what it is.
        stopped = result.get("stopped_at") or {}
        if result.get("renewed") or stopped.get("snapshot_id") != health.first_staged_id:
            return False
        # It may have taken checkpoints without changes, which the table's health does not count as staged.
        is_empty = health.first_staged_id is None and result.get("commits") == 0
        return is_empty or result.get("staged_snapshots") == 0
    counted = rewritable(job.kind, health)
    if counted is not None:
        # Some of these can't be written anew, and not every count knows which: as long as it is the same, and
        # nobody asks for others, there is nothing else to find, whatever is committed.
        is_same = job.seen_rewritable == counted and job.policy_digest == policy.digest
        if not is_same or job.trigger == REQUEST:
            return False
        # Of a table that nobody deletes from, no job counts what comes.
        is_data = job.kind == JobKind.REWRITE_DATA_FILES.value
        if is_data and may_take_some_again(health, policy, _grown_files(health, policy)):
            return False
    elif job.seen_snapshot_id != health.iceberg_snapshot_id:
        return False
    key_sets = result.get("key_sets") or []
    match JobKind(job.kind):
        case JobKind.CONVERT:
            return result.get("equality_delete_files_removed") == 0
        case JobKind.REWRITE_DATA_FILES:
            return (result.get("data_files") or {}).get("data_files_rewritten") == 0
        case JobKind.REWRITE_POSITION_DELETE_FILES:
            return (result.get("delete_files") or {}).get("delete_files_rewritten") == 0
        case JobKind.REWRITE_MANIFESTS:
            return (result.get("manifests") or {}).get("manifests_rewritten") == 0
        case JobKind.EXPIRE_SNAPSHOTS:
            return (result.get("expiry") or {}).get("snapshots_expired") == 0
        case JobKind.INDEX:
            return bool(key_sets) and all(each.get("files_indexed") == 0 for each in key_sets)
        case JobKind.COMPACT:
            return bool(key_sets) and all(
                each.get("bytes_written") == 0 and each.get("files_deleted") == 0 for each in key_sets
            )
        case _:
            return False
