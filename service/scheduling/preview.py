"""What would start of a table's jobs within a day, by the decisions that its policy will make."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from heapq import merge

from sqlmodel import Session, col, select

from service.catalogs.measure import Past, Volume
from service.jobs.views import read_others, waiting_for
from service.policies.models import EffectivePolicy
from service.policies.schedules import fires, openings
from service.records.catalogs import Catalog
from service.records.health import TableHealth
from service.records.jobs import Job, JobKind, JobStatus
from service.records.tables import EnrolledTable
from service.scheduling.decisions import cron_of, deadlines, decide_kind
from service.scheduling.facts import (
    WITH_REWRITING,
    Action,
    LastJob,
    StagedState,
    TableState,
    weighing,
    windows_of,
)
from service.scheduling.models import PlannedJob, PolicyPreview
from service.scheduling.state import read_known, table_state

PREVIEWED = timedelta(hours=24)
_PREVIEWED_STARTS = 288
"""After the first: one every five minutes."""


def preview(session: Session, table: EnrolledTable, health: TableHealth, now: datetime) -> PolicyPreview:
    """What would start of each kind within a day, if nothing is written to the table meanwhile.

    After the first of a kind, or the running one, that supposes that each succeeds and leaves nothing to do.
    """
    known = read_known(session, table, now)
    policy = known.policy
    state = table_state(session, table, health, known, now)
    zone = policy.schedule.time_zone
    until = now + PREVIEWED
    crons = cron_of(policy)
    opens_at = openings(policy.schedule.windows, zone, now, until)
    planned = []
    queued = _queued(session, table, state, now, until)
    running = _running(session, table)
    for kind in state.kinds:
        cron_at = list(fires(crons[kind], zone, now, until)) if crons[kind] else []
        moments = sorted({*cron_at, *openings(windows_of(policy, kind), zone, now, until)})
        if kind in running and kind not in queued:
            repeats = _repeats(kind, state, policy, moments, now, until)
            starts_at = next(repeats, None)
            why = (
                None
                if starts_at is None
                else f"Job {running[kind]} is running; this supposes that it succeeds soon."
            )
        else:
            starts_at, why = (
                queued.get(kind)
                or _next_start(
                    kind, _once_rewritten(kind, state, policy, now), policy, [now, *moments], now, until
                )
                or (None, None)
            )
            repeats = (
                iter(()) if starts_at is None else _repeats(kind, state, policy, moments, starts_at, until)
            )
        planned.append(
            PlannedJob(
                kind=kind,
                starts_at=starts_at,
                why=why,
                now=decide_kind(kind, state, policy, now).sentence,
                then_at=list(repeats),
                cron_at=cron_at,
            )
        )
    return PolicyPreview(
        table_id=table.id,
        from_time=now,
        until_time=until,
        time_zone=zone,
        jobs=planned,
        windows_open_at=opens_at,
    )


def _once_rewritten(kind: JobKind, state: TableState, policy: EffectivePolicy, now: datetime) -> TableState:
    """With data files rewritten, if a job of a kind waits for that."""
    waits = decide_kind(kind, state, policy, now).code == WITH_REWRITING
    return _after(state, policy, JobKind.REWRITE_DATA_FILES, now) if waits else state


def _next_start(
    kind: JobKind,
    state: TableState,
    policy: EffectivePolicy,
    moments: Sequence[datetime],
    begin: datetime,
    until: datetime,
) -> tuple[datetime, str] | None:
    """The first moment at which a job of a kind starts by itself, and why.

    moments: when its cron expression comes and windows open, in order; deadlines are looked at, too.
    """
    due = sorted(each for each in deadlines(state, policy) if begin < each <= until)
    for moment in merge(due, moments):
        decision = decide_kind(kind, state, policy, moment)
        if decision.action is Action.TRIGGER:
            return moment, decision.sentence
    return None


def _repeats(
    kind: JobKind,
    state: TableState,
    policy: EffectivePolicy,
    moments: Sequence[datetime],
    first: datetime,
    until: datetime,
) -> Iterator[datetime]:
    """When further jobs of a kind would start after the first one, until then; not all of very many."""
    at = first
    for _ in range(_PREVIEWED_STARTS):
        state = _after(state, policy, kind, at)
        following = _next_start(kind, state, policy, moments[bisect_right(moments, at) :], at, until)
        if following is None:
            return
        at, _ = following
        yield at


def _after(state: TableState, policy: EffectivePolicy, kind: JobKind, at: datetime) -> TableState:
    """Once a job of a kind has succeeded and left nothing to do."""
    before = state.last.get(kind)
    idle = 0
    if kind is JobKind.COMPACT and state.sorted_runs <= 1 and not state.dead_bytes:
        idle = 1 + (before.idle if before is not None else 0)
    state = replace(
        state,
        active=state.active - {kind},
        held=state.held - {kind},
        later=state.later - {kind},
        last={
            **state.last,
            kind: LastJob(
                at, idle=idle, committed_at=at, seconds=before.seconds if before is not None else None
            ),
        },
    )
    match kind:
        case JobKind.INDEX:
            return replace(state, new=Volume(), has_index=True)
        case JobKind.CONVERT:
            weighed = weighing(state, policy)
            shape = weighed.readers.converted if weighed is not None else state.shape
            return replace(_converted(state), shape=shape)
        case JobKind.PUBLISH:
            return replace(state, staged=StagedState())
        case JobKind.REWRITE_DATA_FILES:
            return replace(
                _converted(state),
                small_data_files=0,
                deleted_data_files=0,
                grown_files=0,
                new_small_files=0,
                rows_deleted_since=None,
                shape=state.fresh,
                waits_since={},
            )
        case JobKind.REWRITE_POSITION_DELETE_FILES:
            return replace(state, small_delete_files=0)
        case JobKind.REWRITE_MANIFESTS:
            return replace(state, small_manifests=0)
        case JobKind.EXPIRE_SNAPSHOTS:
            return replace(state, past=Past())
        case JobKind.COMPACT:
            return replace(state, sorted_runs=min(state.sorted_runs, 1), dead_ratio=0.0, dead_bytes=0)
        case _:
            return replace(state, unverified=Volume())


def _converted(state: TableState) -> TableState:
    """Without what is pending and can be converted, as a rewriting leaves it too."""
    left = state.pending_delete_files - state.convertible.files
    return replace(state, pending_delete_files=left, convertible=Volume(), oldest_convertible_at=None)


def _queued(
    session: Session, table: EnrolledTable, state: TableState, now: datetime, until: datetime
) -> dict[JobKind, tuple[datetime, str]]:
    """When jobs that are queued start before `until`, and what they wait for; the first of each kind.

    Those that a spent budget holds are left to `decide`.
    """
    if state.paused is not None:
        return {}
    jobs = session.exec(
        select(Job)
        .where(
            Job.table_id == table.id,
            ~col(Job.dry_run),
            Job.status == JobStatus.QUEUED.value,
            col(Job.held_because).is_(None),
            Job.available_at <= until,
        )
        .order_by(col(Job.available_at).desc())
    ).all()
    catalog = session.get_one(Catalog, table.catalog_id)
    others = read_others(session, jobs, [catalog])
    return {
        JobKind(job.kind): (
            max(job.available_at, now),
            f"Job {job.id} is queued. {waiting_for(job, table, catalog, others)}",
        )
        for job in jobs
    }


def _running(session: Session, table: EnrolledTable) -> dict[JobKind, str]:
    """Ids of jobs that run."""
    jobs = session.exec(
        select(Job.kind, Job.id).where(
            Job.table_id == table.id, ~col(Job.dry_run), Job.status == JobStatus.RUNNING.value
        )
    )
    return {JobKind(kind): job_id for kind, job_id in jobs}
