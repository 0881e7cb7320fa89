"""What conversions and rewritings of data files leave to each other. Pure.

A rewriting converts what is pending by itself, so one of the two is enough at a time
(docs/decisions/64-a-rewriting-instead-of-a-conversion.md).
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from service.policies.models import EffectivePolicy
from service.policies.schedules import is_open
from service.records.jobs import JobKind
from service.scheduling.facts import WITH_CONVERSION, Action, Decision, TableState, weigh, windows_of
from service.scheduling.worth import FIRST_SECONDS, Weighing

_PATIENCE_WITH_CONVERSIONS = 2
"""Times `convert.age_seconds` that a rewriting waits at most to take the place of one."""
_SLACK_SECONDS = 30.0
"""By which a rewriting starts earlier than it must to end in time: a look may come late, so may its end."""


def may_be_left_to_rewriting(
    conversion: Decision, state: TableState, policy: EffectivePolicy, now: datetime, seconds: float
) -> bool:
    """Whether one that takes so long converts what is pending before that is as old as it may be."""
    oldest = state.oldest_convertible_at
    age = (now - oldest).total_seconds() if oldest is not None else 0.0
    return age + seconds < policy.convert.age_seconds and conversion.code != "cron"


def rewriting_seconds(state: TableState, policy: EffectivePolicy, weighed: Weighing | None) -> float:
    """What one takes: by the table's history, or else estimated."""
    last = state.last.get(JobKind.REWRITE_DATA_FILES)
    if last is not None and last.seconds is not None:
        return last.seconds
    weighed = weighed or weigh(state, policy)
    return weighed.rewrite_seconds if weighed is not None else FIRST_SECONDS


def with_conversion(
    rewriting: Decision,
    state: TableState,
    policy: EffectivePolicy,
    now: datetime,
    weighed: Weighing | None,
    due: Callable[[datetime], Decision],
) -> Decision:
    """A rewriting that is due right after a conversion waits until the next one is, and takes its place.

    It waits for none if it could not start at the end of the wait, since its window has closed by then.
    due: tells of a time whether a conversion is due then.
    """
    kind, seconds = JobKind.CONVERT, rewriting_seconds(state, policy, weighed)
    # A long one would never be in time.
    is_long = seconds > policy.convert.age_seconds / 2
    if rewriting.action is not Action.TRIGGER or is_long or kind in state.later:
        return rewriting

    conversion, last = due(now), state.last.get(kind)
    until = state.waits_since.get(rewriting.kind, now) + _longest_wait(policy)
    if conversion.code == "active":
        told = "A conversion is queued or runs: the next one that is due is left to this job."
    elif Action.TRIGGER in (conversion.action, due(now + timedelta(seconds=seconds + _SLACK_SECONDS)).action):
        if may_be_left_to_rewriting(conversion, state, policy, now, seconds):
            return rewriting
        told = "Pending deletes can't wait until this job has ended, so they are converted first."
    elif conversion.action is Action.WAIT and last is not None and last.committed_at is not None:
        waits = _patience_with_rewriting(policy, weighed)
        until = min(until, last.committed_at + timedelta(seconds=waits))
        ago = (now - last.committed_at).total_seconds()
        told = (
            f"The last conversion ended only {ago:.0f} s ago: this job takes the place of the next one, and"
            f" starts {waits:.0f} s after the last one if none is due by then."
        )
    else:
        return rewriting
    windows = windows_of(policy, rewriting.kind)
    if now >= until or not is_open(windows, policy.schedule.time_zone, now, until):
        return rewriting
    return Decision(rewriting.kind, Action.WAIT, WITH_CONVERSION, f"{rewriting.sentence} {told}")


def _longest_wait(policy: EffectivePolicy) -> timedelta:
    """That of a rewriting for conversions, however many come first since deletes get too old."""
    return timedelta(seconds=_PATIENCE_WITH_CONVERSIONS * policy.convert.age_seconds)


def _patience_with_rewriting(policy: EffectivePolicy, weighed: Weighing | None) -> float:
    """Seconds after a conversion that a rewriting waits for the next one at most."""
    most = min(policy.convert.age_seconds, policy.rewrite_data_files.min_interval_seconds)
    return min(most, weighed.patience_seconds) if weighed is not None else most


def with_conversion_until(
    state: TableState, policy: EffectivePolicy, weighed: Weighing | None
) -> Iterator[datetime]:
    """When time alone ends that a rewriting waits for a conversion."""
    if (waits_since := state.waits_since.get(JobKind.REWRITE_DATA_FILES)) is not None:
        yield waits_since + _longest_wait(policy)
    last = state.last.get(JobKind.CONVERT)
    if last is not None and last.committed_at is not None:
        yield last.committed_at + timedelta(seconds=_patience_with_rewriting(policy, weighed))
    if state.oldest_convertible_at is not None:
        ahead = timedelta(seconds=rewriting_seconds(state, policy, weighed) + _SLACK_SECONDS)
        yield state.oldest_convertible_at + timedelta(seconds=policy.convert.age_seconds) - ahead
        if weighed is not None and (worth_at := weighed.conversion_worth_at()) is not None:
            yield worth_at - ahead
