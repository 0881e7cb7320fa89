"""Another policy on what a table has seen: its last days, replayed under it, beside what really happened."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import pairwise

from sqlmodel import Session

from service.errors import IcestreamError, InvalidError
from service.policies.effective import chain, effective_policy, policy_with
from service.policies.service import policy_of_request
from service.policies.settings import PolicySettings
from service.quantities import aged
from service.records.health import TableHealth
from service.records.tables import EnrolledTable
from service.scheduling.history import (
    COARSE,
    MOST_ARRIVALS,
    SPAN,
    History,
    arrivals_of,
    beginning_of,
    costs_of,
    happened,
    read_history,
    reads_of,
)
from service.scheduling.models import (
    PolicyReplay,
    ReadSeconds,
    ReplayedInterval,
    ReplayedJobs,
    ReplayedOutcome,
)
from service.scheduling.simulation import (
    REPLAYED,
    Arrival,
    Outcome,
    Pending,
    simulate,
)
from telemetry.plurals import counted

_SHOWN = 84
"""Moments, or intervals: of seven days, each two hours."""
_turn = threading.Lock()


def replay(
    session: Session,
    table: EnrolledTable,
    health: TableHealth,
    wanted: PolicySettings,
    changed: str | None,
    now: datetime,
) -> PolicyReplay:
    """The table's last seven days under other settings: of the policy `changed`, or of one of its own.

    Raises InvalidError, and IcestreamError `replay-busy` while another one is made.
    """
    row = policy_of_request(session, changed) if changed is not None else None
    edited, present = policy_with(session, table, wanted, row), effective_policy(session, table)
    with _one_at_a_time():
        history = read_history(session, table.id, now - SPAN)
        if not history.samples:
            told = f"Nothing was kept of table {table.name} in the last seven days."
            raise InvalidError("nothing-to-replay", told)
        arrivals = arrivals_of(history)
        since = history.samples[0].at
        is_cut = len(arrivals) == MOST_ARRIVALS
        if is_cut:
            since = arrivals[0].at
            arrivals = arrivals[1:]
        costs = costs_of(history)
        beginning = beginning_of(history, since, table, health)
        outcomes = [simulate(beginning, arrivals, each, now, costs) for each in (present, edited)]
        # Of the same span, whichever was cut off first.
        until = min(one.until for one in outcomes)
        outcomes = [
            one if one.until == until else simulate(beginning, arrivals, each, until, costs)
            for one, each in zip(outcomes, (present, edited), strict=True)
        ]
        was = happened(history, beginning.at, until, arrivals)
        target = present.rewrite_data_files.target_file_size_bytes or health.target_file_bytes
        was.reads = reads_of(history.samples, beginning.at, until, health.partitions, target)
    sentences = _estimated_from(
        session, table, history, arrivals, beginning.at, until, is_cut=is_cut or until < now
    )
    views = [_view(one) for one in (was, *outcomes)]
    return PolicyReplay(
        table_id=table.id,
        from_time=beginning.at,
        until_time=until,
        happened=views[0],
        present=views[1],
        edited=views[2],
        off=_off(views[0], views[1]),
        estimated_from=list(sentences),
    )


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Each takes a processor for a second or so. None waits, as it would with a thread and a connection."""
    if not _turn.acquire(blocking=False):
        raise IcestreamError("replay-busy", "Others try policies at this moment, one at a time.")
    try:
        yield
    finally:
        _turn.release()


def _estimated_from(
    session: Session,
    table: EnrolledTable,
    history: History,
    arrivals: Sequence[Arrival],
    since: datetime,
    until: datetime,
    *,
    is_cut: bool,
) -> Iterator[str]:
    """In sentences."""
    commits = sum(one.commits for one in arrivals if since < one.at <= until)
    samples = sum(since <= one.at <= until for one in history.samples)
    yield (
        f"Samples of the table's health of {aged((until - since).total_seconds())}, {samples:,}"
        f" of them, tell of what {counted(commits, 'commit')} of others than jobs did."
    )
    if is_cut:
        yield "More has happened within seven days than is replayed: this is a part of them."
    apart = [(one.at, later.at) for one, later in pairwise(history.samples)]
    gaps = [min(end, until) - max(begin, since) for begin, end in apart if end - begin > COARSE]
    if wide := sum((gap for gap in gaps if gap > timedelta(0)), timedelta()):
        yield (
            f"For {aged(wide.total_seconds())} of them only a sample each hour is kept, or nothing was"
            " written: commits of such an hour are taken to have come evenly."
        )
    ran = {job.kind for job in history.jobs}
    known = [kind for kind in REPLAYED if kind in ran]
    told = ", ".join(f"{sum(1 for job in history.jobs if job.kind is kind):,} {kind.words}" for kind in known)
    yield f"What jobs cost is told by those that ran: {told or 'none'}."
    if guessed := [kind.words for kind in REPLAYED if kind not in ran]:
        yield f"None of these ran, so they are taken to cost what is usual: {', '.join(guessed)}."
    changes = [max(attachment.updated_at, policy.updated_at) for attachment, policy in chain(session, table)]
    if (changed := max(changes)) > since:
        yield (
            f"The present policy holds since {changed:%Y-%m-%d %H:%M} UTC: what happened before that was"
            " another's doing."
        )
    yield "Not replayed: publications, failures, pauses, what was requested, and budgets."


def _view(outcome: Outcome) -> ReplayedOutcome:
    step = max(len(outcome.reads) // _SHOWN, 1)
    return ReplayedOutcome(
        jobs=[
            ReplayedJobs(
                kind=kind,
                jobs=outcome.jobs[kind].jobs,
                seconds=round(outcome.jobs[kind].seconds, 3),
                bytes_written=round(outcome.jobs[kind].bytes_written),
            )
            for kind in REPLAYED
            if kind in outcome.jobs
        ],
        lag_seconds_median=round(outcome.lag_seconds_median, 3),
        lag_seconds_max=round(outcome.lag_seconds_max, 3),
        bytes_written=round(outcome.bytes_written),
        write_amplification=outcome.write_amplification,
        delete_files_written=round(outcome.delete_files_written),
        delete_files_rewritten=round(outcome.delete_files_rewritten),
        read_seconds=outcome.read_seconds,
        read_ratio=outcome.read_ratio,
        reads=[
            ReadSeconds(at=one.at, seconds=one.seconds, fresh_seconds=one.fresh_seconds)
            for one in outcome.reads[::step]
        ],
        intervals=intervals(outcome),
    )


def intervals(outcome: Outcome) -> list[ReplayedInterval]:
    """What came of a table over time, with no peak lost."""
    since, until = outcome.since, outcome.until
    length = max((until - since) / _SHOWN, timedelta(seconds=1))
    found = [
        ReplayedInterval(begins_at=since + length * number, pending_equality_deletes=0, lag_seconds=0, jobs=0)
        for number in range(max(round((until - since) / length), 1))
    ]

    def number_at(at: datetime) -> int:
        return min(max(int((at - since) / length), 0), len(found) - 1)

    for one, later in pairwise([*outcome.pending, Pending(until, 0, None)]):
        for part in found[number_at(one.at) : number_at(later.at) + 1]:
            end = min(later.at, part.begins_at + length)
            if end <= part.begins_at:
                continue
            part.pending_equality_deletes = max(part.pending_equality_deletes, one.equality_deletes)
            if one.since is not None:
                part.lag_seconds = max(part.lag_seconds, round((end - one.since).total_seconds(), 3))
    for ran in outcome.ran:
        found[number_at(ran.ended_at)].jobs += 1
    return found


def _off(was: ReplayedOutcome, replayed: ReplayedOutcome) -> dict[str, float]:
    figures: dict[str, tuple[float, float | None]] = {
        name: (getattr(was, name), getattr(replayed, name))
        for name in (
            "lag_seconds_median",
            "lag_seconds_max",
            "bytes_written",
            "delete_files_written",
            "delete_files_rewritten",
            "read_seconds",
        )
    }
    figures["jobs"] = (sum(one.jobs for one in was.jobs), sum(one.jobs for one in replayed.jobs))
    return {name: later / before for name, (before, later) in figures.items() if before and later is not None}
