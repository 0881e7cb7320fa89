"""How long history stays: what is older than the settings say goes, a small batch at a time.

Never removed: what runs or waits, leases and address counters, attempts whose files a later job may still
have to remove, with their jobs, and the last ended job of each kind of a table, by which policies tell time.
"""

from collections import Counter
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, delete, exists, inspect, tuple_
from sqlalchemy.orm import aliased
from sqlmodel import Session, SQLModel, col, or_, select

from service.db.database import Database
from service.http.routing import IdempotentAnswer
from service.records.api_keys import BrowserSession, LoginToken
from service.records.audit import AuditEntry
from service.records.health import (
    KEPT_CHANGES,
    MERGED_CHANGES,
    HealthSample,
    PendingChange,
    Resolution,
    add_change,
    minute_of,
)
from service.records.jobs import Attempt, Event, Job, JobStatus
from service.records.webhooks import WebhookDelivery
from service.records.workers import Worker
from service.settings import Settings

BATCH = 500
_ENDED = (JobStatus.SUCCEEDED.value, JobStatus.FAILED.value, JobStatus.CANCELLED.value)
_TELLING = _ENDED[:2]


def forget(database: Database, settings: Settings, now: datetime) -> bool:
    """Remove a batch of each kind of history, each in a transaction of its own; whether more may be left."""
    more = False
    for remove in (
        _jobs,
        _events,
        _progress,
        _audit,
        _samples,
        _totals,
        _merge_totals,
        _answers,
        _tokens,
        _sessions,
        _workers,
        _deliveries,
    ):
        with database.write() as session:
            more |= remove(session, settings, now) == BATCH
    return more


def _jobs(session: Session, settings: Settings, now: datetime) -> int:
    """Ended jobs, with their attempts and events."""
    later = aliased(Job)
    has_later = exists().where(
        col(later.table_id) == col(Job.table_id),
        col(later.kind) == col(Job.kind),
        ~col(later.dry_run),
        col(later.status).in_(_TELLING),
        col(later.ended_at) > col(Job.ended_at),
    )
    may_have_left_files = exists().where(col(Attempt.job_id) == col(Job.id), col(Attempt.plans).is_not(None))
    chosen = session.exec(
        select(Job.id)
        .where(
            col(Job.status).in_(_ENDED),
            col(Job.ended_at) < now - timedelta(days=settings.job_history_days),
            or_(col(Job.dry_run), ~col(Job.status).in_(_TELLING), has_later),
            ~may_have_left_files,
        )
        .order_by(col(Job.ended_at))
        .limit(BATCH)
    ).all()
    session.execute(delete(Event).where(col(Event.job_id).in_(chosen)))
    session.execute(delete(Attempt).where(col(Attempt.job_id).in_(chosen)))
    session.execute(delete(Job).where(col(Job.id).in_(chosen)))
    return len(chosen)


def _events(session: Session, settings: Settings, now: datetime) -> int:
    """Events of tables that belong to no job."""
    before = now - timedelta(days=settings.job_history_days)
    return _remove(session, Event, col(Event.job_id).is_(None), col(Event.at) < before)


def _progress(session: Session, settings: Settings, now: datetime) -> int:
    """Of no use once it is old, while every other event stays with its job."""
    before = now - timedelta(days=min(settings.history_days, settings.job_history_days))
    return _remove(session, Event, col(Event.kind) == "job.progress", col(Event.at) < before)


def _audit(session: Session, settings: Settings, now: datetime) -> int:
    before = now - timedelta(days=settings.audit_history_days)
    return _remove(session, AuditEntry, col(AuditEntry.at) < before)


def _samples(session: Session, settings: Settings, now: datetime) -> int:
    """Thinned as they grow old: all, then the last of each hour, then the last of each day."""
    fine, hourly, daily = (
        now - timedelta(days=days)
        for days in (settings.fine_history_days, settings.history_days, settings.daily_history_days)
    )
    resolution, at = col(HealthSample.resolution), col(HealthSample.at)
    too_old = or_(
        and_(resolution == Resolution.ALL, at < fine),
        and_(resolution == Resolution.HOUR, at < hourly),
        at < daily,
    )
    return _remove(session, HealthSample, too_old)


def _totals(session: Session, settings: Settings, now: datetime) -> int:  # noqa: ARG001 - as the others
    return _remove(session, PendingChange, col(PendingChange.minute) < minute_of(now - KEPT_CHANGES))


def _merge_totals(session: Session, settings: Settings, now: datetime) -> int:  # noqa: ARG001 - as the others
    """Merge changes as they grow old; how many rows went."""
    gone = 0
    keys = inspect(PendingChange).primary_key
    for age, minutes in MERGED_CHANGES:
        minute, part = col(PendingChange.minute), col(PendingChange.part)
        whole = minute_of(now - age) // minutes * minutes
        finer = select(*keys).where(minute < whole, or_(part != 0, minute % minutes != 0)).order_by(minute)
        # What another replica has merged meanwhile is not there any more: no change counts twice.
        removed = session.execute(
            delete(PendingChange)
            .where(tuple_(*keys).in_(finer.limit(BATCH - gone)))
            .returning(minute, col(PendingChange.equality_deletes))
        ).all()
        merged: Counter[int] = Counter()
        for row in removed:
            merged[row.minute // minutes * minutes] += row.equality_deletes
        for first, change in sorted(merged.items()):
            add_change(session, first, 0, change)
        gone += len(removed)
    return gone


def _answers(session: Session, settings: Settings, now: datetime) -> int:
    before = now - timedelta(days=settings.answer_days)
    return _remove(session, IdempotentAnswer, col(IdempotentAnswer.created_at) < before)


def _tokens(session: Session, settings: Settings, now: datetime) -> int:  # noqa: ARG001 - as the others
    return _remove(session, LoginToken, col(LoginToken.expires_at) < now)


def _sessions(session: Session, settings: Settings, now: datetime) -> int:  # noqa: ARG001 - as the others
    return _remove(session, BrowserSession, col(BrowserSession.expires_at) < now)


def _workers(session: Session, settings: Settings, now: datetime) -> int:
    """Each start of a worker has a row of its own; attempts name it."""
    before = now - timedelta(days=settings.job_history_days)
    has_attempts = exists().where(col(Attempt.worker_id) == col(Worker.id))
    return _remove(session, Worker, col(Worker.last_seen_at) < before, ~has_attempts)


def _deliveries(session: Session, settings: Settings, now: datetime) -> int:
    before = now - timedelta(days=settings.webhook_history_days)
    return _remove(session, WebhookDelivery, col(WebhookDelivery.created_at) < before)


def _remove(session: Session, model: type[SQLModel], *conditions: ColumnElement[bool]) -> int:
    """Remove a batch of the rows that meet all conditions, and say how many."""
    keys = inspect(model).primary_key
    chosen = select(*keys).where(*conditions).limit(BATCH)
    removed = session.execute(delete(model).where(tuple_(*keys).in_(chosen)).returning(keys[0]))
    return len(removed.all())
