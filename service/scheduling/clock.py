"""The queue after the clock was set back, or was ahead: nothing waits for a time that comes too late."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlmodel import Session, col, or_, select

from service.jobs.events import record_job_event
from service.jobs.queue import rfc3339
from service.records.health import TableHealth
from service.records.jobs import Attempt, Job, JobStatus
from service.records.tables import EnrolledTable

CLOCK_TOLERANCE = timedelta(seconds=3)
"""So much a clock may be off, or a transaction late, without being said to have been set back."""


def follow_clock(session: Session, set_back: timedelta, now: datetime) -> list[Job]:
    """Let no queued job wait for a time that a clock which was set back reaches too late.

    No pause is longer than the longest of its job, which tells of a clock that was set back unseen.
    """
    query = select(Job).where(
        Job.status == JobStatus.QUEUED.value,
        col(Job.available_at) > now,
        # A user's time is one of the clock.
        or_(Job.attempt > 0, col(Job.run_at).is_(None)),
    )
    moved = []
    for job in session.exec(query.with_for_update(skip_locked=True)):
        longest = timedelta(seconds=job.max_backoff_seconds)
        available_at = max(min(job.available_at - set_back, now + longest), now)
        if job.available_at - available_at <= CLOCK_TOLERANCE:
            continue
        earlier = (job.available_at - available_at).total_seconds()
        job.available_at = available_at
        session.add(job)
        record_job_event(
            session,
            job,
            "job.clock",
            f"The clock of the service was set back: the job may start {earlier:.0f} s earlier by it.",
            now,
            level="warning",
            available_at=rfc3339(available_at),
        )
        moved.append(job)
    return moved


def _is_ahead(at: datetime, now: datetime) -> bool:
    return at - now > CLOCK_TOLERANCE


def _corrected(decision: dict[str, Any], now: datetime) -> dict[str, Any]:
    """A decision that nobody has made later than now; its window may be still to come."""
    names = ("since",) if decision.get("code") == "outside-window" else ("since", "due_since")
    return {
        name: rfc3339(now) if name in names and _is_ahead(datetime.fromisoformat(told), now) else told
        for name, told in decision.items()
    }


def correct_times(
    session: Session, table: EnrolledTable, health: TableHealth, ended_later: Sequence[Job], now: datetime
) -> None:
    """Let nothing of a table have happened at a time that is still to come, after the clock was set back.

    Times between that are kept: the latest becomes `now`. Otherwise no age or pause would pass until then.

    ended_later: its jobs that did so after `now`, as far as a clock may be off.
    """
    if _is_ahead(table.created_at, now):
        table.created_at = now
    if health.indexed_at is not None and _is_ahead(health.indexed_at, now):
        health.indexed_at = now
    if health.rows_deleted_since is not None and _is_ahead(health.rows_deleted_since, now):
        health.rows_deleted_since = now
    health.decisions = {kind: _corrected(one, now) for kind, one in health.decisions.items()}
    ends = {job.id: job.ended_at for job in ended_later if job.ended_at is not None}
    if not ends:
        return
    ahead = max(ends.values()) - now
    for job in ended_later:
        job.ended_at = ends[job.id] - ahead
        job.started_at = min(job.started_at or job.ended_at, job.ended_at)
        sentence = f"It ended {ahead.total_seconds():.0f} s earlier: the clock of the service was ahead."
        record_job_event(session, job, "job.clock", sentence, now, level="warning")
    attempts = select(Attempt).where(col(Attempt.job_id).in_(list(ends)), col(Attempt.ended_at) > now)
    for attempt in session.exec(attempts).all():
        assert attempt.ended_at is not None
        attempt.ended_at -= ahead
        attempt.started_at = min(attempt.started_at, attempt.ended_at)
        session.add(attempt)
    session.add_all(ended_later)
    session.flush()
