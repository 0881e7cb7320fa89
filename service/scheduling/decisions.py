"""What a policy asks for of a table as it is: a decision of each kind of job, in words. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from service.jobs.status import backoff_seconds
from service.policies.models import EffectivePolicy
from service.policies.schedules import is_open, last_fire, next_opening
from service.quantities import sized
from service.records.health import DONE_ELSEWHERE_FOR
from service.records.jobs import JobKind
from service.scheduling.facts import (
    WITH_CONVERSION,
    WITH_REWRITING,
    Action,
    Decision,
    LastJob,
    StagedState,
    TableState,
    is_indexed,
    weighing,
    windows_of,
)
from service.scheduling.rewriting_or_conversion import (
    may_be_left_to_rewriting,
    rewriting_seconds,
    with_conversion,
    with_conversion_until,
)
from service.scheduling.worth import Weighing
from staging.history import KEPT
from telemetry.plurals import counted

_AGE = "age"
"""The code of a decision for a job since something is as old as it may be."""
_SOON_SECONDS = 90.0
"""After a job: what comes within them, by time alone, and does or undoes the same, comes soon. A minute, and
half a minute by which a job may take longer than the last ones did."""
NOT_COUNTED = "not-counted"
"""The code of a decision to wait for a job that counts what a rewriting of data files would take."""
WORK = {
    JobKind.EXPIRE_SNAPSHOTS: "Expiry",
    JobKind.REWRITE_DATA_FILES: "Compaction",
    JobKind.REWRITE_POSITION_DELETE_FILES: "Rewriting position deletes",
    JobKind.REWRITE_MANIFESTS: "Rewriting manifests",
}
"""Of maintenance, in a sentence."""


def decide(
    state: TableState, policy: EffectivePolicy, now: datetime, weighed: Weighing | None = None
) -> list[Decision]:
    """One decision for each kind that may start by itself. weighed: as for `decide_kind`."""
    weighed = weighed or weighing(state, policy)
    return [decide_kind(kind, state, policy, now, weighed) for kind in state.kinds]


def cron_of(policy: EffectivePolicy) -> dict[JobKind, str]:
    """The cron expression of each kind; empty for none."""
    return {
        JobKind.INDEX: policy.index.cron,
        JobKind.CONVERT: policy.convert.cron,
        JobKind.PUBLISH: policy.publish.cron,
        JobKind.REWRITE_DATA_FILES: policy.rewrite_data_files.cron,
        JobKind.REWRITE_POSITION_DELETE_FILES: policy.rewrite_position_delete_files.cron,
        JobKind.REWRITE_MANIFESTS: policy.rewrite_manifests.cron,
        JobKind.EXPIRE_SNAPSHOTS: policy.expire_snapshots.cron,
        JobKind.COMPACT: policy.compact.cron,
        JobKind.VERIFY: policy.verify.cron,
    }


def decide_kind(
    kind: JobKind,
    state: TableState,
    policy: EffectivePolicy,
    now: datetime,
    weighed: Weighing | None = None,
    *,
    tells_cost: bool = True,
) -> Decision:
    """weighed: what `weighing` has found, if it is known already. tells_cost: whether the sentence does."""
    decide_weighed = _DECIDE_WEIGHED.get(kind)
    if decide_weighed is None:
        decision = _DECIDE[kind](state, policy, now)
    else:
        weighed = weighed or weighing(state, policy)
        decision = decide_weighed(state, policy, now, weighed)
        if weighed is not None and tells_cost:
            decision = replace(decision, sentence=f"{decision.sentence} {weighed.words(now)}")
    decision = _in_window(_within_budget(decision, state, now), policy, now)
    return _beside_another(_left_to_rewriting(decision, state, policy, now, weighed), state, now)


def _left_to_rewriting(
    decision: Decision, state: TableState, policy: EffectivePolicy, now: datetime, weighed: Weighing | None
) -> Decision:
    """What a rewriting of data files undoes waits for one that comes soon."""
    undone = (JobKind.REWRITE_POSITION_DELETE_FILES, JobKind.REWRITE_MANIFESTS, JobKind.COMPACT)
    # Where one may always be near, nothing waits: it would for ever.
    soon, rewriting = _soon(decision.kind, state), JobKind.REWRITE_DATA_FILES
    is_rare = timedelta(seconds=policy.rewrite_data_files.min_interval_seconds) > soon
    is_due = decision.action is Action.TRIGGER and decision.code != "cron"
    if decision.kind not in undone or not is_due or not is_rare:
        return decision
    if not _comes_until(now + soon, rewriting, state, policy, now, weighed):
        return decision
    told = f"{decision.sentence} It waits for the rewriting of data files that comes first, and may undo it."
    return Decision(decision.kind, Action.WAIT, WITH_REWRITING, told)


def _comes_first(other: JobKind, state: TableState) -> bool:
    """Whether a job of the other kind runs, or is queued and has its turn before any that is queued now."""
    return other in state.active - state.later


def _comes_until(
    until: datetime,
    other: JobKind,
    state: TableState,
    policy: EffectivePolicy,
    now: datetime,
    weighed: Weighing | None,
) -> bool:
    """Whether a job of the other kind waits for nothing but a worker, or will by then by time alone."""
    if other in state.active:
        return _comes_first(other, state)
    if not getattr(policy, other.value).enabled:
        return False
    moments = (moment for moment in deadlines(state, policy, weighed) if now < moment <= until)
    return any(
        decide_kind(other, state, policy, at, weighed, tells_cost=False).action is Action.TRIGGER
        for at in (now, *moments)
    )


def _soon(kind: JobKind, state: TableState) -> timedelta:
    """Within which another job comes soon that may undo what one of this kind does which starts now."""
    return _usual_time(kind, state) + timedelta(seconds=_SOON_SECONDS)


def _usual_time(kind: JobKind, state: TableState) -> timedelta:
    """What jobs of a kind usually take; nothing before the first one."""
    last = state.last.get(kind)
    return timedelta(seconds=(last.seconds if last is not None else None) or 0.0)


def _beside_another(decision: Decision, state: TableState, now: datetime) -> Decision:
    """Says that somebody else does the same, and what follows if ours does it, too."""
    seen_at = state.done_elsewhere.get(decision.kind)
    is_off = decision.code == "policy-off"
    if seen_at is None or (not is_off and now - seen_at >= DONE_ELSEWHERE_FOR):
        return decision
    seen = f"seen last at {seen_at:%Y-%m-%d %H:%M:%S} UTC"
    told = f"is done by another, {seen}."
    if not is_off:
        told = (
            f"is done by another as well, {seen}: of two that do the same, one works for nothing. Switch one"
            " of them off."
        )
    return replace(decision, sentence=f"{decision.sentence} {WORK[decision.kind]} {told}")


def _within_budget(decision: Decision, state: TableState, now: datetime) -> Decision:
    """A job that is due, or was queued before, waits while a budget is spent."""
    spent = state.budget_spent(decision.kind)
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


def _in_window(decision: Decision, policy: EffectivePolicy, now: datetime) -> Decision:
    """A job that is due waits for a window of the policy."""
    zone, windows = policy.schedule.time_zone, windows_of(policy, decision.kind)
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
    return _Trigger(_AGE, found, limit, words.format(f"{found:.0f} s"), f"{limit:.0f} s")


def _first_reached(kind: JobKind, triggers: Sequence[_Trigger]) -> Decision | None:
    reached = next((trigger for trigger in triggers if trigger.is_reached), None)
    return None if reached is None else Decision(kind, Action.TRIGGER, reached.code, _sentence([reached]))


def _reached_or_due(kind: JobKind, triggers: Sequence[_Trigger], pending: str, due: str | None) -> Decision:
    """pending: what waits, in words. due: as `_fired` says."""
    if (found := _first_reached(kind, triggers)) is not None:
        return found
    if due is not None:
        return Decision(kind, Action.TRIGGER, "cron", f"{pending}, {due}")
    return _below(kind, triggers)


def _below(kind: JobKind, triggers: Sequence[_Trigger]) -> Decision:
    return Decision(kind, Action.WAIT, "below-triggers", _sentence(triggers))


def _sentence(triggers: Sequence[_Trigger]) -> str:
    words = ", ".join(map(str, triggers))
    return f"{words[0].upper()}{words[1:]}."


def _decide_index(state: TableState, policy: EffectivePolicy, now: datetime) -> Decision:
    """What is due is left to another job that comes first, or soon if no limit but that of age is reached."""
    kind, found, last = JobKind.INDEX, _indexing_due(state, policy, now), state.last.get(JobKind.INDEX)
    if found.action is not Action.TRIGGER or found.code == "cron":
        return found
    others = (
        (JobKind.CONVERT, WITH_CONVERSION, "conversion"),
        (JobKind.REWRITE_DATA_FILES, WITH_REWRITING, "rewriting"),
    )
    for other, code, named in others:
        if _comes_first(other, state):
            told = f"{found.sentence} A {named} is queued or runs, which comes first and may index them."
            return Decision(kind, Action.WAIT, code, told)
    if found.code != _AGE or last is None or state.indexed_at is None:
        return found
    # One that does not come, or can't index them, leaves them to an index job in the end.
    patience = timedelta(seconds=policy.index.age_seconds)
    until = min(state.waits_since.get(kind, now) + patience, now + _soon(kind, state))
    for other, code, named in others[1:] if last.failed else others:  # then conversions only convert
        if now < until and _comes_until(until, other, state, policy, now, weighing(state, policy)):
            told = (
                f"{found.sentence} The {named} that comes soon may index them; else a job does,"
                f" {patience.total_seconds():.0f} s after it began to wait."
            )
            return Decision(kind, Action.WAIT, code, told)
    return found


def _indexing_due(state: TableState, policy: EffectivePolicy, now: datetime) -> Decision:
    """Whether new data files are to be indexed, by this job or by another."""
    kind, new, policy_of_kind = JobKind.INDEX, state.new, policy.index
    refusal = _refusal(kind, state, now, enabled=policy_of_kind.enabled)
    if refusal is not None:
        return refusal
    if not new.files:
        return Decision(kind, Action.WAIT, "nothing-new", "No data files are new since the last indexing.")
    if not state.has_keys:
        return Decision(
            kind,
            Action.SKIP,
            "no-key-set",
            "There is no key to index by: no equality deletes, no identifier fields, and none is declared. "
            "Declare keys to index ahead of the first delete.",
        )
    backoff = _backoff(kind, state, policy, now)
    if backoff is not None:
        return backoff
    last, files = state.last.get(kind), counted(new.files, "new data file")
    if last is None:
        return Decision(kind, Action.TRIGGER, "first", f"{files} and no index job yet.")
    since = (now - _indexed_at(last, state)).total_seconds()
    volume = (
        _of_count("data-files", new.files, policy_of_kind.data_files, "new data file"),
        _of_count("rows", new.rows, policy_of_kind.rows, "new row"),
        _of_bytes("bytes", new.bytes, policy_of_kind.bytes, "new files"),
    )
    age = _of_seconds(since, policy_of_kind.age_seconds, "{} since the last indexing")
    if (found := _first_reached(kind, volume)) is not None:
        return found
    if (due := _fired(policy_of_kind.cron, state, policy, kind, now)) is not None:
        return Decision(kind, Action.TRIGGER, "cron", f"{files}, {due}")
    if not age.is_reached:
        return _below(kind, (*volume, age))
    return Decision(kind, Action.TRIGGER, age.code, f"{files}, {age}.")


def _indexed_at(last: LastJob, state: TableState) -> datetime:
    """When new data files were looked at last, by an index job or by another one that has indexed them."""
    return max(filter(None, (last.ended_at, state.indexed_at)))


def _decide_convert(
    state: TableState, policy: EffectivePolicy, now: datetime, weighed: Weighing | None
) -> Decision:
    kind, rewriting = JobKind.CONVERT, JobKind.REWRITE_DATA_FILES
    found = _conversion_due(state, policy, now, weighed)
    if found.action is not Action.TRIGGER:
        return found
    is_left = rewriting in state.running or (found.code != "cron" and _comes_first(rewriting, state))
    if not is_left:
        seconds = rewriting_seconds(state, policy, weighed)
        # One that may start before this job would have ended.
        until = now + _usual_time(kind, state)
        is_left = may_be_left_to_rewriting(found, state, policy, until, seconds) and _comes_until(
            until, rewriting, state, policy, now, weighed
        )
    if not is_left:
        return found
    told = f"{found.sentence} Data files are rewritten, which converts what is pending first."
    return Decision(kind, Action.WAIT, "rewriting", told)


def _conversion_due(
    state: TableState, policy: EffectivePolicy, now: datetime, weighed: Weighing | None
) -> Decision:
    """Whether pending deletes are to be converted, by this job or by a rewriting."""
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
    due = _fired(policy_of_kind.cron, state, policy, kind, now)
    words = counted(pending.files, "equality delete file")
    if weighed is None:
        return _reached_or_due(kind, triggers, words, due)
    found = _reached_or_due(kind, triggers[-1:], words, due)
    if found.action is Action.TRIGGER:
        return found
    if weighed.are_deletes_too_dear:
        return Decision(kind, Action.TRIGGER, "read-cost", f"{words} pending, too dear for each read.")
    if weighed.is_conversion_worth_it(now):
        told = f"{words} pending, for which readers have paid as much as a conversion costs."
        return Decision(kind, Action.TRIGGER, "worthwhile", told)
    return found


def _decide_publish(state: TableState, policy: EffectivePolicy, now: datetime) -> Decision:
    kind, staged, policy_of_kind = JobKind.PUBLISH, state.staged or StagedState(), policy.publish
    refusal = _refusal(kind, state, now, enabled=policy_of_kind.enabled)
    if refusal is not None:
        return refusal
    if staged.trouble is not None:
        return Decision(kind, Action.SKIP, "unpublishable", staged.trouble)
    last = state.last.get(kind)
    is_proven = staged.unproven_id is None or (last is not None and last.seen_id == staged.unproven_id)
    if not staged.snapshots and is_proven and staged.kept <= KEPT:
        return Decision(kind, Action.WAIT, "nothing-staged", "Nothing is staged that is not published.")
    backoff = _backoff(kind, state, policy, now)
    if backoff is not None:
        return backoff
    if not staged.snapshots and is_proven:
        told = (
            f"The staging branch has {staged.kept:,} snapshots (limit: {KEPT:,}): a job lets it begin anew."
        )
        return Decision(kind, Action.TRIGGER, "kept-snapshots", told)
    if not staged.snapshots:
        told = "Expiry has taken what says that the branch still has what was published: a job looks."
        return Decision(kind, Action.TRIGGER, "unproven", told)
    age = (now - staged.oldest_at).total_seconds() if staged.oldest_at else 0.0
    triggers = (
        _of_count("rows", staged.rows, policy_of_kind.rows, "staged row"),
        _of_seconds(age, policy_of_kind.age_seconds, "the oldest staged snapshot is {} old"),
    )
    due = _fired(policy_of_kind.cron, state, policy, kind, now)
    return _reached_or_due(kind, triggers, counted(staged.snapshots, "staged snapshot"), due)


def _decide_expire_snapshots(state: TableState, policy: EffectivePolicy, now: datetime) -> Decision:
    kind, past, policy_of_kind = JobKind.EXPIRE_SNAPSHOTS, state.past, policy.expire_snapshots
    refusal = _refusal(kind, state, now, enabled=policy_of_kind.enabled)
    if refusal is not None:
        return refusal
    age = (now - past.oldest_at).total_seconds() if past.oldest_at is not None else 0.0
    if past.oldest_at is None or age < policy_of_kind.older_than_seconds:
        told = f"No snapshot of the past is older than {policy_of_kind.older_than_seconds:.0f} s."
        return Decision(kind, Action.WAIT, "nothing-old", told)
    backoff = _backoff(kind, state, policy, now)
    if backoff is not None:
        return backoff
    triggers = (
        _of_count("snapshots", past.snapshots, policy_of_kind.snapshots, "snapshot"),
        _of_seconds(age, policy_of_kind.age_seconds, "the oldest snapshot of the past is {} old"),
    )
    due = _fired(policy_of_kind.cron, state, policy, kind, now)
    found = _reached_or_due(kind, triggers, counted(past.snapshots, "snapshot"), due)
    return _not_too_soon(found, state, policy_of_kind.min_interval_seconds, now)


def _decide_rewrite_data_files(
    state: TableState, policy: EffectivePolicy, now: datetime, weighed: Weighing | None
) -> Decision:
    limits, small, deleted = policy.rewrite_data_files, state.small_data_files, state.deleted_data_files
    # With something to convert, a rewriting is not for nothing even if too few are in one partition. Of a
    # table that is not indexed, no other job counts them.
    new = state.new_small_files if state.convertible.files or not is_indexed(state, policy) else 0
    words = counted(small + new, "small data file")
    triggers = (
        _Trigger(
            "small-data-files",
            small + new,
            limits.small_data_files,
            f"{words}, {new:,} of them since the last job" if new else words,
            f"{limits.small_data_files:,}",
        ),
        _Trigger(
            "deleted-data-files",
            deleted,
            limits.deleted_data_files,
            f"{counted(deleted, 'data file')} with many deleted rows",
            f"{limits.deleted_data_files:,}",
        ),
    )
    told = "The last job saw no data files that are small and many enough, or have many deleted rows."
    nothing = None if small or deleted or new else told
    found = _decide_rewriting(JobKind.REWRITE_DATA_FILES, state, policy, now, triggers, nothing, weighed)
    if _is_counted_first(found, state, policy, now):
        told = f"{found.sentence} The index job that comes first counts which files it would take."
        return replace(found, action=Action.WAIT, code=NOT_COUNTED, sentence=told)
    if found.action is not Action.TRIGGER or limits.strategy != "sort" or state.has_sort_order is not False:

        def due(at: datetime) -> Decision:
            conversion = _within_budget(_conversion_due(state, policy, at, weighed), state, at)
            return _in_window(conversion, policy, at)

        return with_conversion(found, state, policy, now, weighed, due)
    told = (
        f"{found.sentence} It waits: the table has no sort order, by which the policy wants rows sorted. "
        "Give it one (ALTER TABLE ... WRITE ORDERED BY), or choose binpack."
    )
    return replace(found, action=Action.SKIP, code="sort-order-missing", sentence=told)


def _is_counted_first(found: Decision, state: TableState, policy: EffectivePolicy, now: datetime) -> bool:
    """Whether a rewriting that has nothing to convert may find no file to take, since nobody has counted any,
    and an index job comes soon, which does.

    It counts no files by the share of deleted rows that a rewriting for these goes by, and none if it fails.
    """
    kind = JobKind.INDEX
    is_due = found.action is Action.TRIGGER and found.code not in ("cron", "deleted-rows")
    if not is_due or state.convertible.files or state.small_data_files or state.deleted_data_files:
        return False
    last = state.last.get(kind)
    if last is not None and last.failed:
        return False
    if kind in state.active:
        return _comes_first(kind, state)
    due = (
        _in_window(_within_budget(_indexing_due(state, policy, at), state, at), policy, at)
        for at in (now, now + timedelta(seconds=_SOON_SECONDS))
    )
    return any(one.action is Action.TRIGGER for one in due)


def _decide_rewrite_position_delete_files(
    state: TableState, policy: EffectivePolicy, now: datetime
) -> Decision:
    kind, small = JobKind.REWRITE_POSITION_DELETE_FILES, state.small_delete_files
    limit = policy.rewrite_position_delete_files.small_delete_files
    triggers = (_of_count("small-delete-files", small, limit, "small position delete file"),)
    nothing = None if small else "The last job saw no position delete files that are small and many enough."
    return _decide_rewriting(kind, state, policy, now, triggers, nothing)


def _decide_rewrite_manifests(state: TableState, policy: EffectivePolicy, now: datetime) -> Decision:
    small, limit = state.small_manifests, policy.rewrite_manifests.manifests
    triggers = (_of_count("manifests", small, limit, "small manifest"),)
    nothing = None if small >= 2 else "There are no two small manifests."
    return _decide_rewriting(JobKind.REWRITE_MANIFESTS, state, policy, now, triggers, nothing)


def _decide_rewriting(
    kind: JobKind,
    state: TableState,
    policy: EffectivePolicy,
    now: datetime,
    triggers: Sequence[_Trigger],
    nothing: str | None,
    weighed: Weighing | None = None,
) -> Decision:
    """nothing: says so, if there is nothing to rewrite. weighed: what readers pay, if that counts as well."""
    policy_of_kind = getattr(policy, kind.value)
    refusal = _refusal(kind, state, now, enabled=policy_of_kind.enabled)
    if refusal is not None:
        return refusal
    worthwhile = _worthwhile(kind, weighed, now)
    if nothing is not None and worthwhile is None:
        return Decision(kind, Action.WAIT, "nothing-small", nothing)
    due, last = _fired(policy_of_kind.cron, state, policy, kind, now), state.last.get(kind)
    figures = ", ".join(one.words for one in triggers)
    is_idle = last is not None and last.idle and not _takes_more(worthwhile, last)
    if kind is not JobKind.REWRITE_MANIFESTS and is_idle and due is None:
        told = f"The last job could rewrite none of them ({figures}): the next one waits for another number."
        return Decision(kind, Action.WAIT, "none-rewritable", told)
    backoff = _backoff(kind, state, policy, now)
    if backoff is not None:
        return backoff
    found = worthwhile or _reached_or_due(kind, triggers, figures, due)
    return _not_too_soon(found, state, policy_of_kind.min_interval_seconds, now)


def _takes_more(found: Decision | None, last: LastJob) -> bool:
    """Whether a job is for files with so few deleted rows that the last one left them.

    Of all rows, twice its ratio are deleted: if that is more than the last one went by, some file had enough.
    """
    ratio = found.delete_ratio if found is not None else None
    return ratio is not None and 2 * ratio <= last.delete_ratio


def _worthwhile(kind: JobKind, weighed: Weighing | None, now: datetime) -> Decision | None:
    """That data files are to be rewritten for their readers, and why; None if not, or not yet."""
    if weighed is None:
        return None
    if weighed.are_deleted_rows_too_dear or weighed.is_rewriting_all_worth_it(now):
        why = (
            "Deleted rows are too dear for each read"
            if weighed.are_deleted_rows_too_dear
            else "Readers have paid as much for deleted rows as writing all data files anew costs"
        )
        ratio = weighed.delete_ratio
        share = f"{ratio:.2%} of the" if ratio is not None else "many"
        told = f"{why}: of all sizes, files go of which {share} rows are deleted."
        return Decision(kind, Action.TRIGGER, "deleted-rows", told, ratio)
    if not weighed.saved_by_rewriting > 0:
        return None
    if weighed.are_files_too_dear:
        return Decision(
            kind, Action.TRIGGER, "read-cost", "Small files and vectors are too dear for each read."
        )
    if weighed.is_rewriting_worth_it(now):
        told = "Readers have paid as much for small files and vectors as a rewriting costs."
        return Decision(kind, Action.TRIGGER, "worthwhile", told)
    soon = now + timedelta(seconds=weighed.convert_seconds + _SOON_SECONDS)
    if weighed.is_conversion_worth_it(now) and weighed.is_rewriting_worth_it(soon):
        told = (
            "Right after a conversion that is due, readers will have paid as much for small files and vectors"
            " as a rewriting costs, so that one is due, too."
        )
        return Decision(kind, Action.TRIGGER, "worthwhile", told)
    return None


def _not_too_soon(decision: Decision, state: TableState, min_seconds: float, now: datetime) -> Decision:
    last = state.last.get(decision.kind)
    since = (now - last.ended_at).total_seconds() if last is not None else min_seconds
    if decision.action is not Action.TRIGGER or since >= min_seconds:
        return decision
    told = (
        f"{decision.sentence} The last such job ended only {since:.0f} s ago (policy: {min_seconds:.0f} s)."
    )
    return Decision(decision.kind, Action.WAIT, "min-interval", told)


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
    found = Decision(kind, Action.TRIGGER, code, sentence)
    return _not_too_soon(found, state, triggers.min_interval_seconds, now)


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


_DECIDE_WEIGHED = {
    JobKind.CONVERT: _decide_convert,
    JobKind.REWRITE_DATA_FILES: _decide_rewrite_data_files,
}
"""By what readers pay, if the policy goes by that."""
_DECIDE = {
    JobKind.INDEX: _decide_index,
    JobKind.PUBLISH: _decide_publish,
    JobKind.REWRITE_POSITION_DELETE_FILES: _decide_rewrite_position_delete_files,
    JobKind.REWRITE_MANIFESTS: _decide_rewrite_manifests,
    JobKind.EXPIRE_SNAPSHOTS: _decide_expire_snapshots,
    JobKind.COMPACT: _decide_compact,
    JobKind.VERIFY: _decide_verify,
}


def _refusal(kind: JobKind, state: TableState, now: datetime, *, enabled: bool) -> Decision | None:
    if not enabled:
        return Decision(
            kind,
            Action.SKIP,
            "policy-off",
            f"The policy starts no {kind.words} jobs; they run on request only.",
        )
    if state.paused is not None:
        return Decision(kind, Action.SKIP, "paused", f"No {kind.words} job is started: {state.paused}.")
    spent = state.budget_spent(kind)
    is_let_go = kind in state.held and spent is not None and now >= spent.until
    if kind in state.active and not is_let_go:
        return Decision(kind, Action.WAIT, "active", "Such a job is queued or running.")
    return None


def _backoff(kind: JobKind, state: TableState, policy: EffectivePolicy, now: datetime) -> Decision | None:
    last = state.last.get(kind)
    until = _pause_ends(last, policy) if last is not None else None
    if last is None or until is None or now >= until:
        return None
    count = last.failed or last.idle
    jobs = f"the last {kind.words} job" if count == 1 else f"the last {count} {kind.words} jobs"
    if last.failed:
        why = f"{jobs} failed: {last.cause.rstrip('.')}. A success or another policy ends the pause"
    elif kind is JobKind.PUBLISH and state.staged is not None and not state.staged.snapshots:
        why = f"{jobs} found nothing to publish. Whatever is staged ends the pause"
    elif kind is JobKind.PUBLISH:
        why = f"{jobs} could not publish the first staged snapshot. Another one in its place ends the pause"
    else:
        why = f"{jobs} found nothing to do. Any change of the table ends the pause"
    return Decision(
        kind,
        Action.BACKOFF,
        f"{'failed' if last.failed else 'idle'}-{count}",
        f"Paused until {until:%Y-%m-%d %H:%M:%S} UTC because {why}; requesting a job runs it at once.",
    )


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


def deadlines(
    state: TableState, policy: EffectivePolicy, weighed: Weighing | None = None
) -> Iterator[datetime]:
    """When time alone makes another decision. weighed: as for `decide_kind`."""
    for spent in filter(None, (state.spent, *state.spent_of.values())):
        yield spent.until
    if state.oldest_convertible_at is not None:
        yield state.oldest_convertible_at + timedelta(seconds=policy.convert.age_seconds)
    if state.staged is not None and state.staged.oldest_at is not None:
        yield state.staged.oldest_at + timedelta(seconds=policy.publish.age_seconds)
    if state.past.oldest_at is not None and policy.expire_snapshots.enabled:
        yield state.past.oldest_at + timedelta(seconds=policy.expire_snapshots.older_than_seconds)
        yield state.past.oldest_at + timedelta(seconds=policy.expire_snapshots.age_seconds)
    if (weighed := weighed or weighing(state, policy)) is not None:
        yield from weighed.moments()
    if policy.rewrite_data_files.enabled:
        yield from with_conversion_until(state, policy, weighed)
    ages = {
        JobKind.INDEX: policy.index.age_seconds,
        JobKind.REWRITE_DATA_FILES: policy.rewrite_data_files.min_interval_seconds,
        JobKind.REWRITE_POSITION_DELETE_FILES: policy.rewrite_position_delete_files.min_interval_seconds,
        JobKind.REWRITE_MANIFESTS: policy.rewrite_manifests.min_interval_seconds,
        JobKind.EXPIRE_SNAPSHOTS: policy.expire_snapshots.min_interval_seconds,
        JobKind.COMPACT: policy.compact.min_interval_seconds,
        JobKind.VERIFY: policy.verify.age_seconds,
    }
    for kind in state.kinds:
        if not getattr(policy, kind.value).enabled:
            continue
        last = state.last.get(kind)
        began = last.ended_at if last is not None else state.enrolled_at
        if kind is JobKind.INDEX and last is not None:
            began = _indexed_at(last, state)
        yield began + timedelta(seconds=ages.get(kind, 0.0))
        if kind is JobKind.INDEX and kind in state.waits_since:
            yield state.waits_since[kind] + timedelta(seconds=policy.index.age_seconds)
        if last is not None and (pause_ends := _pause_ends(last, policy)) is not None:
            yield pause_ends
