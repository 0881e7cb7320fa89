"""What runs beside the requests, in the one replica that holds the scheduling lease: give up on lost
attempts, poll catalogs, forget what is old.

The lease only saves work: two replicas that both believe to hold it would still add no job twice.
"""

import logging
import threading
import time
from datetime import timedelta

from sqlalchemy import delete
from sqlalchemy.exc import IntegrityError
from sqlmodel import col, select

from service.auth.models import BrowserSession, LoginToken
from service.catalogs.iceberg import IcebergCatalogs
from service.database import Database, new_id, utc_now
from service.index_health.poller import Poller
from service.index_health.service import forget_samples
from service.jobs.models import Event, Job, Lease
from service.jobs.queue import give_up_expired
from service.jobs.status import JobStatus
from service.routing import IdempotentAnswer
from service.settings import Settings

_log = logging.getLogger("icestream.background")
_LEASE = "scheduler"
_LEASE_SECONDS = 15.0
_CLEAN_UP_SECONDS = 3600.0


class Background:
    """A thread that ticks; `tick` may also be called by itself."""

    def __init__(self, database: Database, settings: Settings, catalogs: IcebergCatalogs) -> None:
        self._database, self._settings = database, settings
        self.poller = Poller(database, settings, catalogs)
        self._holder = new_id()
        self._held_until = 0.0
        self._clean_up_at = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="background", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self.poller.stop()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.tick()
            except Exception:
                # The database may be away for a while; the next tick tries again.
                _log.exception("A background tick failed")
            self._stopping.wait(self._settings.scheduler_interval_seconds)

    def tick(self) -> None:
        """Do once whatever is due, if this replica holds the lease."""
        if not self.hold_lease():
            return
        self._give_up_expired()
        self.poller.poll_due()
        if time.monotonic() >= self._clean_up_at:
            self._clean_up_at = time.monotonic() + _CLEAN_UP_SECONDS
            self._clean_up()

    def hold_lease(self) -> bool:
        """Take or keep the lease; False while another replica has it."""
        # Renewed at half time, so that ticks seldom write.
        if time.monotonic() < self._held_until - _LEASE_SECONDS / 2:
            return True
        now = utc_now()
        asked_at = time.monotonic()
        try:
            with self._database.write() as session:
                lease = session.exec(select(Lease).where(Lease.name == _LEASE).with_for_update()).first()
                if lease is None:
                    lease = Lease(name=_LEASE, holder=self._holder, expires_at=now)
                elif lease.holder != self._holder and lease.expires_at > now:
                    return False
                lease.holder = self._holder
                lease.expires_at = now + timedelta(seconds=_LEASE_SECONDS)
                session.add(lease)
        except IntegrityError:
            # Another replica inserted the row first.
            return False
        self._held_until = asked_at + _LEASE_SECONDS
        return True

    def _give_up_expired(self) -> None:
        now = utc_now()
        with self._database.read() as session:
            query = select(Job.id).where(
                Job.status == JobStatus.RUNNING.value, col(Job.lease_expires_at) < now
            )
            if session.exec(query.limit(1)).first() is None:
                return
        with self._database.write() as session:
            for job in give_up_expired(session, now):
                _log.warning("Attempt %s of job %s was lost", job.attempt, job.id)

    def _clean_up(self) -> None:
        now = utc_now()
        before = now - timedelta(days=self._settings.history_days)
        with self._database.write() as session:
            forget_samples(session, before)
            session.exec(delete(IdempotentAnswer).where(col(IdempotentAnswer.created_at) < before))
            session.exec(delete(LoginToken).where(col(LoginToken.expires_at) < now))
            session.exec(delete(BrowserSession).where(col(BrowserSession.expires_at) < now))
            # Progress is of no use once it is old; every other event stays.
            session.exec(delete(Event).where(col(Event.kind) == "job.progress", col(Event.at) < before))
