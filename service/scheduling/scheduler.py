"""Policies -> jobs. `decide` is pure; `schedule` carries its decisions out and records them.

Every decision can be read: triggers as the job's `trigger` and event, refusals as events of the table (once,
when they begin), and the latest of each kind in the table's health.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from heapq import merge
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

from sqlmodel import Session, col, select

from service.catalogs.measure import Volume
from service.jobs import claims, queue
from service.jobs.budgets import SpentBudget, spent_budget
from service.jobs.events import record_table_event
from service.jobs.service import pause_reason, read_others, waiting_for
from service.jobs.status import backoff_seconds
from service.policies.models import EffectivePolicy, EffectiveSchedulePolicy
from service.policies.schedules import fires, is_open, last_fire, next_opening, openings
from service.policies.service import effective_policy
from service.quantities import counted, sized
from service.records.catalogs import Catalog
from service.records.health import TableHealth
from service.records.jobs import POLICY, REQUEST, Job, JobKind, JobStatus
from service.records.tables import EnrolledTable
from service.scheduling import clock
from service.scheduling.models import PlannedJob, PolicyPreview

SCHEDULED = (JobKind.INDEX, JobKind.CONVERT, JobKind.COMPACT, JobKind.VERIFY)
PREVIEWED = timedelta(hours=24)
_PREVIEWED_STARTS = 288
"""After the first: one every five minutes."""
_LOOKED_BACK = 20
"""Jobs: after so many failures the pause is as long as it gets."""


class Action(StrEnum):
    TRIGGER = "trigger"
    WAIT = "wait"
    """Nothing to do yet; the normal state."""
    SKIP = "skip"
    """Something else than the triggers stands in the way."""
    BACKOFF = "backoff"
    """The last jobs got nowhere."""


@dataclass(frozen=True)
class Decision:
    kind: JobKind
    action: Action
    code: str
    sentence: str


@dataclass(frozen=True)
class LastJob:
    """The latest ended job of a kind that was not cancelled."""

    ended_at: datetime
    failed: int = 0
    """How many started by itself and failed, one after the other, up to it and under the present policy."""
    failed_at: datetime | None = None
    """When the latest of these ended."""
    cause: str = ""
    """Why."""
    idle: int = 0
    """How many in a row found nothing to do, up to it; 0 once the table has changed since."""


@dataclass(frozen=True)
class TableState:
    """All that a decision depends on, besides policy and time."""

    paused: str | None
    has_keys: bool
    new: Volume
    """Data files since the last index job."""
    pending_delete_files: int
    convertible: Volume
    """Equality delete files."""
    oldest_convertible_at: datetime | None
    sorted_runs: int
    """The most that one key set has, as last reported."""
    dead_ratio: float
    """The highest of one key set, as last reported."""
    dead_bytes: int
    """The most of one key set."""
    unverified: Volume
    """Data files since the last verification."""
    has_index: bool
    enrolled_at: datetime
    active: frozenset[JobKind]
    """Kinds with a queued or running job."""
    held: frozenset[JobKind]
    """Those of them that wait because a budget is spent."""
    spent: SpentBudget | None
    last: dict[JobKind, LastJob]


def decide(state: TableState, policy: EffectivePolicy, now: datetime) -> list[Decision]:
    """One decision each for index, convert, compact and verify."""
    return [_decide(kind, state, policy, now) for kind in SCHEDULED]


def _decide(kind: JobKind, state: TableState, policy: EffectivePolicy, now: datetime) -> Decision:
    decision = _DECIDE[kind](state, policy, now)
    return _in_window(_within_budget(decision, state, now), policy.schedule, now)


def _within_budget(decision: Decision, state: TableState, now: datetime) -> Decision:
    """A job that is due, or was queued before, waits while a budget is spent."""
    spent = state.spent
    waits = decision.action is Action.TRIGGER or (decision.code == "active" and decision.kind in state.held)
    if spent is None or now >= spent.until or not waits:
        return decision
    return Decision(
        decision.kind,
        Action.SKIP,
        "budget-spent",
        f"{decision.sentence} It waits until {spent.until:%Y-%m-%d %H:%M:%S} UTC, since {spent.reason}. "
        "Requesting one runs it at once.",
    )


def _in_window(decision: Decision, schedule: EffectiveSchedulePolicy, now: datetime) -> Decision:
    """A job that is due waits for a window of the policy."""
    zone, windows = schedule.time_zone, schedule.windows
    if decision.action is not Action.TRIGGER or is_open(windows, zone, now):
        return decision
    opens = next_opening(windows, zone, now).astimezone(ZoneInfo(zone))
    return Decision(
        decision.kind,
        Action.SKIP,
        "outside-window",
        f"{decision.sentence} It starts by itself only within {' or '.join(map(str, windows))} ({zone}), "
        f"next {opens:%Y-%m-%d %H:%M}. Requesting one runs it at once.",
    )


def _fired(cron: str, state: TableState, policy: EffectivePolicy, kind: JobKind, now: datetime) -> str | None:
    """Why a cron expression asks for a job now: it came since the last one; None if it does not."""
    if not cron:
        return None
    zone = policy.schedule.time_zone
    fire = last_fire(cron, zone, now)
    last = state.last.get(kind)
    if fire <= (last.ended_at if last is not None else state.enrolled_at):
        return None
    return f"due since {fire.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M} {zone} (cron: {cron})."


@dataclass(frozen=True)
class _Trigger:
    """A figure, and what the policy lets it come to."""

    code: str
    found: float
    limit: float
    words: str
    """The figure in words."""
    limit_words: str

    @property
    def is_reached(self) -> bool:
        return self.found >= self.limit

    def __str__(self) -> str:
        return f"{self.words} (policy: {self.limit_words})"


def _of_count(code: str, found: int, limit: int, noun: str) -> _Trigger:
    return _Trigger(code, found, limit, counted(found, noun), f"{limit:,}")


def _of_bytes(code: str, found: int, limit: int, what: str) -> _Trigger:
    return _Trigger(code, found, limit, f"{sized(found)} of {what}", sized(limit))


def _of_seconds(found: float, limit: float, words: str) -> _Trigger:
    return _Trigger("age", found, limit, words.format(f"{found:.0f} s"), f"{limit:.0f} s")


def _first_reached(kind: JobKind, triggers: Sequence[_Trigger]) -> Decision | None:
    reached = next((trigger for trigger in triggers if trigger.is_reached), None)
    return None if reached is None else Decision(kind, Action.TRIGGER, reached.code, _sentence([reached]))


def _below(kind: JobKind, triggers: Sequence[_Trigger]) -> Decision:
    return Decision(kind, Action.WAIT, "below-triggers", _sentence(triggers))


def _sentence(triggers: Sequence[_Trigger]) -> str:
    words = ", ".join(map(str, triggers))
    return f"{words[0].upper()}{words[1:]}."


def _decide_index(state: TableState, policy: EffectivePolicy, now: datetime) -> Decision:
    kind, new, policy_of_kind = JobKind.INDEX, state.new, policy.index
    refusal = _refusal(kind, state, now, enabled=policy_of_kind.enabled)
    if refusal is not None:
        return refusal
    if not new.files:
        return Decision(kind, Action.WAIT, "nothing-new", "No data files are new since the last index job.")
    if not state.has_keys:
        return Decision(
            kind,
            Action.SKIP,
            "no-key-set",
            "There is no key to index by: no equality deletes, no identifier fields, and none is declared. "
            "Declare key_sets to index ahead of the first delete.",
        )
    backoff = _backoff(kind, state, policy, now)
    if backoff is not None:
        return backoff
    last, files = state.last.get(kind), counted(new.files, "new data file")
    if last is None:
        return Decision(kind, Action.TRIGGER, "first", f"{files} and no index job yet.")
    since = (now - last.ended_at).total_seconds()
    volume = (
        _of_count("data-files", new.files, policy_of_kind.data_files, "new data file"),
        _of_count("rows", new.rows, policy_of_kind.rows, "new row"),
        _of_bytes("bytes", new.bytes, policy_of_kind.bytes, "new files"),
    )
    age = _of_seconds(since, policy_of_kind.age_seconds, "{} since the last index job")
    if (found := _first_reached(kind, volume)) is not None:
        return found
    if (due := _fired(policy_of_kind.cron, state, policy, kind, now)) is not None:
        return Decision(kind, Action.TRIGGER, "cron", f"{files}, {due}")
    if age.is_reached:
        return Decision(kind, Action.TRIGGER, age.code, f"{files}, {age}.")
    return _below(kind, (*volume, age))


def _decide_convert(state: TableState, policy: EffectivePolicy, now: datetime) -> Decision:
    kind, pending, policy_of_kind = JobKind.CONVERT, state.convertible, policy.convert
    refusal = _refusal(kind, state, now, enabled=policy_of_kind.enabled)
    if refusal is not None:
        return refusal
    if not pending.files and state.pending_delete_files:
        return Decision(
            kind,
            Action.SKIP,
            "unconvertible",
            f"{counted(state.pending_delete_files, 'equality delete file')} pending, none can be converted; "
            "the table's health names the reasons.",
        )
    if not pending.files:
        return Decision(kind, Action.WAIT, "nothing-pending", "No equality deletes are pending.")
    backoff = _backoff(kind, state, policy, now)
    if backoff is not None:
        return backoff
    age = (now - state.oldest_convertible_at).total_seconds() if state.oldest_convertible_at else 0.0
    triggers = (
        _of_count("delete-files", pending.files, policy_of_kind.delete_files, "equality delete file"),
        _of_count("deletes", pending.rows, policy_of_kind.deletes, "equality delete"),
        _of_bytes("bytes", pending.bytes, policy_of_kind.bytes, "equality delete files"),
        _of_seconds(age, policy_of_kind.age_seconds, "the oldest equality delete is {} old"),
    )
    if (found := _first_reached(kind, triggers)) is not None:
        return found
    if (due := _fired(policy_of_kind.cron, state, policy, kind, now)) is not None:
        sentence = f"{counted(pending.files, 'equality delete file')}, {due}"
        return Decision(kind, Action.TRIGGER, "cron", sentence)
    return _below(kind, triggers)


def _decide_compact(state: TableState, policy: EffectivePolicy, now: datetime) -> Decision:
    kind, triggers = JobKind.COMPACT, policy.compact
    refusal = _refusal(kind, state, now, enabled=triggers.enabled)
    if refusal is not None:
        return refusal
    runs = counted(state.sorted_runs, "sorted run")
    dead = f"{state.dead_ratio:.0%} dead entries ({sized(state.dead_bytes)})"
    limits = f"(policy: {triggers.sorted_runs:,}, {triggers.dead_ratio:.0%} or {sized(triggers.dead_bytes)})"
    sentence = f"The index has {runs} and {dead} {limits}."
    if state.sorted_runs >= triggers.sorted_runs:
        code = "sorted-runs"
    elif state.dead_ratio >= triggers.dead_ratio:
        code = "dead-entries"
    elif state.dead_bytes >= triggers.dead_bytes:
        code = "dead-bytes"
    elif state.has_index and (due := _fired(triggers.cron, state, policy, kind, now)) is not None:
        code, sentence = "cron", f"The index has {runs} and {dead}, {due}"
    else:
        return Decision(kind, Action.WAIT, "below-triggers", sentence)
    backoff = _backoff(kind, state, policy, now)
    if backoff is not None:
        return backoff
    last = state.last.get(kind)
    if last is not None:
        since = (now - last.ended_at).total_seconds()
        if since < triggers.min_interval_seconds:
            interval = f"{since:.0f} s ago (policy: {triggers.min_interval_seconds:.0f} s)"
            return Decision(
                kind, Action.WAIT, "min-interval", f"{sentence} It was last compacted only {interval}."
            )
    return Decision(kind, Action.TRIGGER, code, sentence)


def _decide_verify(state: TableState, policy: EffectivePolicy, now: datetime) -> Decision:
    kind, policy_of_kind, new = JobKind.VERIFY, policy.verify, state.unverified
    refusal = _refusal(kind, state, now, enabled=policy_of_kind.enabled)
    if refusal is not None:
        return refusal
    if not state.has_index:
        return Decision(kind, Action.WAIT, "no-index", "There is no index to verify yet.")
    backoff = _backoff(kind, state, policy, now)
    if backoff is not None:
        return backoff
    if (due := _fired(policy_of_kind.cron, state, policy, kind, now)) is not None:
        return Decision(kind, Action.TRIGGER, "cron", f"A verification is {due}")
    last = state.last.get(kind)
    since = (now - (last.ended_at if last is not None else state.enrolled_at)).total_seconds()
    triggers = (
        _of_seconds(since, policy_of_kind.age_seconds, "the index was not verified for {}"),
        _of_count("data-files", new.files, policy_of_kind.data_files, "unverified data file"),
        _of_count("rows", new.rows, policy_of_kind.rows, "unverified row"),
        _of_bytes("bytes", new.bytes, policy_of_kind.bytes, "unverified files"),
    )
    return _first_reached(kind, triggers) or _below(kind, triggers)


_DECIDE = {
    JobKind.INDEX: _decide_index,
    JobKind.CONVERT: _decide_convert,
    JobKind.COMPACT: _decide_compact,
    JobKind.VERIFY: _decide_verify,
}


def _refusal(kind: JobKind, state: TableState, now: datetime, *, enabled: bool) -> Decision | None:
    if not enabled:
        return Decision(
            kind,
            Action.SKIP,
            "policy-off",
            f"The policy starts no {kind.value} jobs; they run on request only.",
        )
    if state.paused is not None:
        return Decision(kind, Action.SKIP, "paused", f"No {kind.value} job is started: {state.paused}.")
    is_let_go = kind in state.held and state.spent is not None and now >= state.spent.until
    if kind in state.active and not is_let_go:
        return Decision(kind, Action.WAIT, "active", f"A {kind.value} job is queued or running.")
    return None


def _backoff(kind: JobKind, state: TableState, policy: EffectivePolicy, now: datetime) -> Decision | None:
    last = state.last.get(kind)
    until = _pause_ends(last, policy) if last is not None else None
    if last is None or until is None or now >= until:
        return None
    count = last.failed or last.idle
    jobs = f"the last {kind.value} job" if count == 1 else f"the last {count} {kind.value} jobs"
    why = (
        f"{jobs} failed: {last.cause.rstrip('.')}. A success or another policy ends the pause"
        if last.failed
        else f"{jobs} found nothing to do. Any change of the table ends the pause"
    )
    return Decision(
        kind,
        Action.BACKOFF,
        f"{'failed' if last.failed else 'idle'}-{count}",
        f"Paused until {until:%Y-%m-%d %H:%M:%S} UTC because {why}; requesting a job runs it at once.",
    )


def preview(session: Session, table: EnrolledTable, health: TableHealth, now: datetime) -> PolicyPreview:
    """What would start of each kind within a day, if nothing is written to the table meanwhile.

    After the first of a kind, or the running one, that supposes that each succeeds and leaves nothing to do.
    """
    policy = effective_policy(session, table)
    state = _state(session, table, health, policy, now)
    zone, windows = policy.schedule.time_zone, policy.schedule.windows
    until = now + PREVIEWED
    crons = {
        JobKind.INDEX: policy.index.cron,
        JobKind.CONVERT: policy.convert.cron,
        JobKind.COMPACT: policy.compact.cron,
        JobKind.VERIFY: policy.verify.cron,
    }
    opens_at = openings(windows, zone, now, until)
    planned = []
    queued = _queued(session, table, state, now, until)
    running = _running(session, table)
    for kind in SCHEDULED:
        cron_at = list(fires(crons[kind], zone, now, until)) if crons[kind] else []
        moments = sorted({*cron_at, *opens_at})
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
                or _next_start(kind, state, policy, [now, *moments], now, until)
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
                now=_decide(kind, state, policy, now).sentence,
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
    deadlines = sorted(each for each in _deadlines(state, policy) if begin < each <= until)
    for moment in merge(deadlines, moments):
        decision = _decide(kind, state, policy, moment)
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
        state = _after(state, kind, at)
        following = _next_start(kind, state, policy, moments[bisect_right(moments, at) :], at, until)
        if following is None:
            return
        at, _ = following
        yield at


def _after(state: TableState, kind: JobKind, at: datetime) -> TableState:
    """Once a job of a kind has succeeded and left nothing to do."""
    before = state.last.get(kind)
    idle = 0
    if kind is JobKind.COMPACT and state.sorted_runs <= 1 and not state.dead_bytes:
        idle = 1 + (before.idle if before is not None else 0)
    state = replace(
        state,
        active=state.active - {kind},
        held=state.held - {kind},
        last={**state.last, kind: LastJob(at, idle=idle)},
    )
    match kind:
        case JobKind.INDEX:
            return replace(state, new=Volume(), has_index=True)
        case JobKind.CONVERT:
            left = state.pending_delete_files - state.convertible.files
            return replace(state, pending_delete_files=left, convertible=Volume(), oldest_convertible_at=None)
        case JobKind.COMPACT:
            return replace(state, sorted_runs=min(state.sorted_runs, 1), dead_ratio=0.0, dead_bytes=0)
        case _:
            return replace(state, unverified=Volume())


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
    others = read_others(session, jobs)
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


def _pause_ends(last: LastJob, policy: EffectivePolicy) -> datetime | None:
    """Until when no job of a kind starts by itself; None if nothing holds it up."""
    retries, schedule = policy.retries, policy.schedule
    if last.failed:
        delay = backoff_seconds(last.failed, retries.pause_seconds, retries.max_pause_seconds)
        return (last.failed_at or last.ended_at) + timedelta(seconds=delay)
    if last.idle:
        delay = backoff_seconds(last.idle, schedule.idle_pause_seconds, schedule.max_idle_pause_seconds)
        return last.ended_at + timedelta(seconds=delay)
    return None


def _deadlines(state: TableState, policy: EffectivePolicy) -> Iterator[datetime]:
    """When time alone makes another decision."""
    if state.spent is not None:
        yield state.spent.until
    if state.oldest_convertible_at is not None:
        yield state.oldest_convertible_at + timedelta(seconds=policy.convert.age_seconds)
    ages = {
        JobKind.INDEX: policy.index.age_seconds,
        JobKind.COMPACT: policy.compact.min_interval_seconds,
        JobKind.VERIFY: policy.verify.age_seconds,
    }
    for kind in SCHEDULED:
        last = state.last.get(kind)
        began = last.ended_at if last is not None else state.enrolled_at
        yield began + timedelta(seconds=ages.get(kind, 0.0))
        if last is not None and (pause_ends := _pause_ends(last, policy)) is not None:
            yield pause_ends


def schedule(
    session: Session,
    table: EnrolledTable,
    health: TableHealth,
    now: datetime,
    policy: EffectivePolicy | None = None,
) -> datetime | None:
    """Queue what the table's policy asks for (`policy`, if it is known already); record each decision.

    Returns when time alone may make another decision; None if it never does.
    """
    clock.correct_times(session, table, now)
    policy = policy or effective_policy(session, table)
    state = _state(session, table, health, policy, now)
    decisions = dict(health.decisions)
    if state.held and state.spent is None:
        claims.release_held(session, table.id, now)
    decided = decide(state, policy, now)
    for decision in decided:
        before = decisions.get(decision.kind.value, {})
        began = before.get("code") != decision.code or before.get("action") != decision.action.value
        decisions[decision.kind.value] = {
            "action": decision.action.value,
            "code": decision.code,
            "sentence": decision.sentence,
            "since": queue.rfc3339(now) if began else before["since"],
        }
        if decision.action is Action.TRIGGER:
            queue.enqueue(
                session, table, decision.kind, policy, now, trigger=decision.sentence, requested_by=POLICY
            )
        elif began and decision.action is not Action.WAIT:
            record_table_event(
                session,
                table.id,
                f"decision.{decision.action.value}",
                decision.sentence,
                now,
                job_kind=decision.kind.value,
                code=decision.code,
            )
    health.decisions = decisions
    session.add(health)
    return _decides_at(state, policy, now, decided)


def _decides_at(
    state: TableState, policy: EffectivePolicy, now: datetime, decided: Sequence[Decision]
) -> datetime | None:
    """The next moment at which time alone makes other decisions than those of now, or may do so."""
    kept = [(decision.action, decision.code) for decision in decided]
    for moment in sorted(_changes(state, policy, now)):
        then = decide(state, policy, moment)
        if [(decision.action, decision.code) for decision in then] != kept:
            return moment
    return None


def _changes(state: TableState, policy: EffectivePolicy, now: datetime) -> Iterator[datetime]:
    """The next moments, of each kind, at which time alone may make another decision."""
    yield from (deadline for deadline in _deadlines(state, policy) if deadline > now)
    zone, windows = policy.schedule.time_zone, policy.schedule.windows
    for cron in (policy.index.cron, policy.convert.cron, policy.compact.cron, policy.verify.cron):
        if cron:
            yield from islice(fires(cron, zone, now, now + timedelta(days=366)), 1)
    if windows:
        yield next_opening(windows, zone, now)


def _state(
    session: Session, table: EnrolledTable, health: TableHealth, policy: EffectivePolicy, now: datetime
) -> TableState:
    active = session.exec(
        select(Job.kind, Job.held_because).where(
            Job.table_id == table.id,
            ~col(Job.dry_run),
            col(Job.status).in_((JobStatus.QUEUED.value, JobStatus.RUNNING.value)),
        )
    ).all()
    ended = select(Job.kind).where(Job.table_id == table.id, col(Job.ended_at).is_not(None)).distinct()
    kinds = set(session.exec(ended))
    last = {
        kind: _last_job(session, health, kind, policy.digest) for kind in SCHEDULED if kind.value in kinds
    }
    return TableState(
        paused=pause_reason(
            table,
            session.get_one(Catalog, table.catalog_id),
            is_system_paused=queue.is_system_paused(session),
        ),
        has_keys=health.has_keys,
        new=Volume(health.new_data_files, health.new_rows, health.new_bytes),
        pending_delete_files=health.pending_equality_delete_files,
        convertible=Volume(
            health.convertible_delete_files, health.convertible_deletes, health.convertible_bytes
        ),
        oldest_convertible_at=health.oldest_convertible_at,
        sorted_runs=max((key_set["sorted_runs"] for key_set in health.key_sets), default=0),
        dead_ratio=max((key_set["dead_ratio"] for key_set in health.key_sets), default=0.0),
        dead_bytes=max(
            (int(key_set["dead_ratio"] * key_set["bytes"]) for key_set in health.key_sets), default=0
        ),
        unverified=Volume(health.unverified_data_files, health.unverified_rows, health.unverified_bytes),
        has_index=any(key_set["generation"] for key_set in health.key_sets),
        enrolled_at=table.created_at,
        active=frozenset(JobKind(kind) for kind, _ in active),
        held=frozenset(JobKind(kind) for kind, held_because in active if held_because is not None),
        spent=spent_budget(session, table, policy, now),
        last={kind: job for kind, job in last.items() if job is not None},
    )


def _last_job(session: Session, health: TableHealth, kind: JobKind, policy_digest: str) -> LastJob | None:
    ended = session.exec(
        select(Job)
        .where(
            Job.table_id == health.table_id,
            Job.kind == kind.value,
            ~col(Job.dry_run),
            col(Job.status).in_((JobStatus.SUCCEEDED.value, JobStatus.FAILED.value)),
        )
        .order_by(col(Job.ended_at).desc())
        .limit(_LOOKED_BACK)
    ).all()
    if not ended or ended[0].ended_at is None:
        return None
    since_success = list(takewhile(lambda job: job.status == JobStatus.FAILED.value, ended))
    failed = [job for job in since_success if job.trigger != REQUEST and job.policy_digest == policy_digest]
    idle = takewhile(lambda job: _is_idle(job, health.iceberg_snapshot_id), ended)
    return LastJob(
        ended[0].ended_at,
        failed=len(failed),
        failed_at=failed[0].ended_at if failed else None,
        cause=str((failed[0].error or {}).get("title", "no reason was reported")) if failed else "",
        idle=sum(1 for _ in idle),
    )


def _is_idle(job: Job, snapshot_id: int | None) -> bool:
    """Whether a job found nothing to do in the table as it still is."""
    if job.status != JobStatus.SUCCEEDED.value or job.seen_snapshot_id != snapshot_id:
        return False
    result = job.result or {}
    key_sets = result.get("key_sets") or []
    match JobKind(job.kind):
        case JobKind.CONVERT:
            return result.get("equality_delete_files_removed") == 0
        case JobKind.INDEX:
            return bool(key_sets) and all(each.get("files_indexed") == 0 for each in key_sets)
        case JobKind.COMPACT:
            return bool(key_sets) and all(
                each.get("bytes_written") == 0 and each.get("files_deleted") == 0 for each in key_sets
            )
        case _:
            return False
