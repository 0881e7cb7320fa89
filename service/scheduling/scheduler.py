"""Policies -> jobs: decisions are carried out and recorded.

Every decision can be read: triggers as the job's `trigger` and event, refusals as events of the table (once,
when they begin), and the latest of each kind in the table's health.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from sqlmodel import Session

from service.index_health.service import recent_jobs
from service.index_health.status import OVERDUE
from service.jobs import claims, queue
from service.jobs.events import table_event
from service.jobs.service import of_policy
from service.policies.models import EffectivePolicy
from service.policies.schedules import fires, next_opening
from service.records.health import TableHealth
from service.records.jobs import POLICY, JobKind
from service.records.tables import EnrolledTable
from service.scheduling import clock
from service.scheduling.decisions import NOT_COUNTED, cron_of, deadlines, decide, decide_kind
from service.scheduling.facts import WAITS, Action, Decision, TableState, weighing, windows_of
from service.scheduling.state import Known, table_state, waits_since
from service.scheduling.worth import Weighing

_DUE = frozenset({"outside-window", "budget-spent", "sort-order-missing"})
"""Codes of decisions that keep a job waiting which is due."""
_STILL_DUE = WAITS | {"active", "min-interval", NOT_COUNTED}
"""Of those that do so where it was due before: it may fail, or wait for a worker."""


@dataclass(frozen=True)
class Scheduled:
    decide_at: datetime | None
    """When time alone may make another decision; None if it never does."""
    told: Sequence[dict[str, Any]]
    """Events that are to be written yet: with all else of a look, for which there is one statement."""


def schedule(
    session: Session, table: EnrolledTable, health: TableHealth, known: Known, now: datetime
) -> Scheduled:
    """Queue what the table's policy asks for; record each decision.

    known: as `read_known` has it.
    """
    clock.correct_times(session, table, health, known.jobs.ended_later, now)
    if known.jobs.ended_later:
        known = replace(known, jobs=recent_jobs(session, table, now + clock.CLOCK_TOLERANCE))
    policy = known.policy
    state = table_state(session, table, health, known, now)
    decisions = dict(health.decisions)
    if affordable := [kind for kind in state.held if state.budget_spent(kind) is None]:
        claims.release_held(session, table.id, affordable, now)
    weighed = weighing(state, policy)
    decided = decide(state, policy, now, weighed)
    told: list[dict[str, Any]] = []
    for number, decision in enumerate(decided):
        before = decisions.get(decision.kind.value, {})
        began = before.get("code") != decision.code or before.get("action") != decision.action.value
        waits_on = {before.get("code"), decision.code} <= WAITS
        due = due_since(decision, state, policy, before.get("due_since"), now)
        sentence = decision.sentence
        if due is not None and now - due > OVERDUE:
            sentence += f" It has been due since {due:%Y-%m-%d %H:%M} UTC."
        decisions[decision.kind.value] = {
            "action": decision.action.value,
            "code": decision.code,
            "sentence": sentence,
            "since": queue.rfc3339(now) if began and not waits_on else before["since"],
            **({"due_since": queue.rfc3339(due)} if due is not None else {}),
        }
        if decision.action is Action.TRIGGER:
            queue.enqueue(
                session,
                table,
                decision.kind,
                policy,
                now - timedelta(microseconds=len(decided) - number),  # in order: what expires comes last
                parameters=_parameters(decision, policy),
                trigger=decision.sentence,
                requested_by=POLICY,
                active=known.jobs.active,
                told=told,
            )
        elif began and decision.action is not Action.WAIT:
            kind = f"decision.{decision.action.value}"
            what = {"job_kind": decision.kind.value, "code": decision.code}
            told.append(table_event(table.id, kind, decision.sentence, now, **what))
    # Of a table whose staging branch was taken back, nothing is decided any more.
    health.decisions = {kind: decisions[kind] for kind in decisions if kind in state.kinds}
    all_due = [one["due_since"] for one in health.decisions.values() if "due_since" in one]
    health.maintenance_due_at = datetime.fromisoformat(min(all_due)) if all_due else None
    state = replace(state, waits_since=waits_since(health.decisions))
    return Scheduled(_decides_at(state, policy, now, decided, weighed), told)


def due_since(
    decision: Decision, state: TableState, policy: EffectivePolicy, before: str | None, now: datetime
) -> datetime | None:
    """Since when maintenance that the policy wants has not come about: for want of its window, budget or a
    worker, or since it fails. Where its window is to open first, that moment; None if nothing is wanted.

    before: what this was at the decision before.
    """
    if not decision.kind.is_maintenance:
        return None
    has_failed = decision.action is Action.BACKOFF and decision.code.startswith("failed")
    is_due = decision.action is Action.TRIGGER or decision.code in _DUE or has_failed
    if not is_due and decision.code not in _STILL_DUE:
        return None
    last = state.last.get(decision.kind)
    if before is not None:
        began = datetime.fromisoformat(before)
        if last is None or last.succeeded_at is None or last.succeeded_at <= began:
            return began
    if not is_due:
        return None
    if decision.code == "outside-window":
        return next_opening(windows_of(policy, decision.kind), policy.schedule.time_zone, now)
    return now


def _parameters(decision: Decision, policy: EffectivePolicy) -> dict[str, Any] | None:
    kind = decision.kind
    if kind is JobKind.PUBLISH:
        return {"from": policy.publish.source}
    if not kind.is_maintenance:
        return None
    parameters = of_policy(kind, policy)
    if decision.delete_ratio is not None:
        parameters["delete_ratio_threshold"] = min(
            decision.delete_ratio, policy.rewrite_data_files.delete_ratio_threshold
        )
    return parameters


def _decides_at(
    state: TableState,
    policy: EffectivePolicy,
    now: datetime,
    decided: Sequence[Decision],
    weighed: Weighing | None,
) -> datetime | None:
    """The next moment at which time alone makes other decisions than those of now, or may do so."""
    # Many kinds have their moments in common.
    for moment in sorted(set(_changes(state, policy, now, weighed))):
        for decision in decided:
            then = decide_kind(decision.kind, state, policy, moment, weighed, tells_cost=False)
            if (then.action, then.code) != (decision.action, decision.code):
                return moment
    return None


def _changes(
    state: TableState, policy: EffectivePolicy, now: datetime, weighed: Weighing | None
) -> Iterator[datetime]:
    """The next moments, of each kind, at which time alone may make another decision."""
    yield from (deadline for deadline in deadlines(state, policy, weighed) if deadline > now)
    zone = policy.schedule.time_zone
    for cron in cron_of(policy).values():
        if cron:
            yield from islice(fires(cron, zone, now, now + timedelta(days=366)), 1)
    for kind in state.kinds:
        if windows := windows_of(policy, kind):
            yield next_opening(windows, zone, now)
