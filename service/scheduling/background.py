"""What runs beside the requests: give up on lost attempts, follow the clock, poll catalogs, note how they do,
send webhooks, forget what is old.

Every replica observes the leases; the one that holds the scheduling lease acts. That lease only saves work:
two replicas that both believe to hold it would still add no job twice and end no attempt that goes on.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlmodel import col, select

from service.catalogs.iceberg import IcebergCatalogs
from service.db.database import Database, new_id, utc_now
from service.discovery.patterns import PatternRunner
from service.errors import is_database_trouble
from service.jobs import attempts
from service.jobs.leases import LeaseObserver
from service.records.system import Lease
from service.scheduling.catalog_health import store_observations
from service.scheduling.clock import CLOCK_TOLERANCE, follow_clock
from service.scheduling.poller import Poller
from service.scheduling.retention import forget
from service.settings import Settings
from service.webhooks.sender import WebhookSender

_log = logging.getLogger("icestream.background")
_LEASE = "scheduler"
_CLEAN_UP_SECONDS = 3600.0
_OBSERVED_SECONDS = 10.0
"""For so long, numbers and times of a catalog's answers wait: of most it is known that they answer."""
_TOGETHER_SECONDS = 0.05
"""What comes so soon after another is dealt with in one tick."""


@dataclass(frozen=True)
class Clock:
    """The time of day, which may jump, and one that does not."""

    wall: Callable[[], datetime] = utc_now
    monotonic: Callable[[], float] = time.monotonic


SYSTEM_CLOCK = Clock()


class Background:
    """A thread that ticks; `tick` may also be called by itself."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        catalogs: IcebergCatalogs,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._database, self._settings, self._clock = database, settings, clock
        self._observations = catalogs.observations
        self.poller = Poller(database, settings, catalogs, clock.monotonic)
        self.patterns = PatternRunner(database, settings, catalogs)
        self.webhooks = WebhookSender(database, settings, clock.wall)
        self._holder = new_id()
        # Half, so that another replica has taken over before an attempt's lease runs out.
        self._lease_seconds = settings.lease_seconds / 2
        self._renew_at: float | None = None
        self._schedulers = LeaseObserver[str, tuple[str, int]](self._lease_seconds, clock.monotonic)
        self._attempts = LeaseObserver[attempts.RunningAttempt, int](settings.lease_seconds, clock.monotonic)
        self._timeouts = LeaseObserver[attempts.RunningAttempt, None](settings.lease_seconds, clock.monotonic)
        self._clocks: tuple[datetime, float] | None = None
        self._clean_up_at = self._observe_at = 0.0
        self._stopping, self._woken = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="background", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Look for news of tables now, and not when the interval is over."""
        self._woken.set()

    def stop(self) -> None:
        self._stopping.set()
        self.wake()
        if self._thread.is_alive():
            self._thread.join()
        self.patterns.stop()
        self.webhooks.stop()
        self.poller.stop()
        try:
            store_observations(self._database, self._observations, self._clock.wall())
        except SQLAlchemyError as error:
            _log.warning("What was seen of catalogs was not noted: %s", error)
        self._release_lease()

    def _run(self) -> None:
        tick_at = self._clock.monotonic()
        while not self._stopping.is_set():
            try:
                if self._clock.monotonic() >= tick_at:
                    tick_at = self._clock.monotonic() + self._settings.scheduler_interval_seconds
                    self.tick()
                elif self.hold_lease():
                    self.poller.poll_news()
            except Exception as error:
                if is_database_trouble(error):
                    _log.warning("The control database does not answer, trying again: %s", error)
                else:
                    _log.exception("A background tick failed")
            self._stopping.wait(_TOGETHER_SECONDS)
            self._woken.wait(max(tick_at - self._clock.monotonic(), 0))
            self._woken.clear()

    def tick(self) -> None:
        """Do once whatever is due, if this replica holds the lease."""
        holds = self.hold_lease()
        with self._database.read() as session:
            expired = self._attempts.look(attempts.leases(session))
            timeouts = attempts.timeouts(session)
        if self._observations.has_news or self._clock.monotonic() >= self._observe_at:
            self._observe_at = self._clock.monotonic() + _OBSERVED_SECONDS
            store_observations(self._database, self._observations, self._clock.wall())
        # A worker ends its attempt by itself, and has a lease's time to tell.
        patience = {attempt: limit + self._settings.lease_seconds for attempt, limit in timeouts.items()}
        overdue = self._timeouts.look(dict.fromkeys(timeouts), patience)
        if not holds:
            self._clocks = None
            return
        if expired:
            self._give_up(expired)
        if overdue:
            self._time_out(overdue)
        self._follow_clock()
        self.patterns.run_due()
        self.poller.poll_due()
        self.webhooks.send_due()
        if self._clock.monotonic() >= self._clean_up_at:
            # A little with each tick, so that nothing else waits for it.
            more = forget(self._database, self._settings, self._clock.wall())
            self._clean_up_at = self._clock.monotonic() + (0 if more else _CLEAN_UP_SECONDS)

    def hold_lease(self) -> bool:
        """Take or keep the lease; False while another replica has it."""
        # Renewed at half time, so that ticks seldom write.
        if self._renew_at is not None and self._clock.monotonic() < self._renew_at:
            return True
        self._renew_at = None
        asked_at = self._clock.monotonic()
        try:
            with self._database.write() as session:
                lease = session.exec(select(Lease).where(Lease.name == _LEASE).with_for_update()).first()
                if lease is None:
                    lease = Lease(name=_LEASE, holder=self._holder, expires_at=self._clock.wall())
                elif lease.holder != self._holder:
                    if not self._schedulers.look({_LEASE: (lease.holder, lease.renewals)}):
                        return False
                    _log.warning("The replica that scheduled is silent; this one takes over")
                lease.holder = self._holder
                lease.renewals += 1
                lease.expires_at = self._clock.wall() + timedelta(seconds=self._lease_seconds)
                session.add(lease)
        except IntegrityError:
            # Another replica inserted the row first.
            return False
        self._renew_at = asked_at + self._lease_seconds / 2
        return True

    def _release_lease(self) -> None:
        """Let the next replica, or the next start of this one, schedule at once."""
        if self._renew_at is None:
            return
        self._renew_at = None
        try:
            with self._database.write() as session:
                session.exec(
                    delete(Lease).where(col(Lease.name) == _LEASE, col(Lease.holder) == self._holder)
                )
        except SQLAlchemyError as error:
            _log.warning("The scheduling lease was not handed back: %s", error)

    def _give_up(self, expired: dict[attempts.RunningAttempt, int]) -> None:
        for attempt, renewals in expired.items():
            # Each by itself: what is locked for one waits for nothing that others have.
            with self._database.write() as session:
                lost = attempts.give_up(session, attempt, renewals, self._clock.wall())
            if lost:
                _log.warning("Attempt %s of job %s was lost", attempt[1], attempt[0])

    def _time_out(self, overdue: Collection[attempts.RunningAttempt]) -> None:
        for attempt in overdue:
            with self._database.write() as session:
                ended = attempts.time_out(session, attempt, self._clock.wall())
            if ended:
                _log.warning("Attempt %s of job %s took too long", attempt[1], attempt[0])

    def _follow_clock(self) -> None:
        """After the clock was set back, let queued jobs wait no longer than they would have."""
        now, moment = self._clock.wall(), self._clock.monotonic()
        set_back = timedelta()
        if self._clocks is not None:
            then, moment_then = self._clocks
            set_back = timedelta(seconds=moment - moment_then) - (now - then)
            if set_back <= CLOCK_TOLERANCE:
                self._clocks = now, moment
                return
            _log.warning("The clock was set back by %.0f s", set_back.total_seconds())
        with self._database.write() as session:
            for job in follow_clock(session, set_back, now):
                _log.warning("Job %s waits until %s", job.id, job.available_at)
        # Only now: if the database failed, the next tick still sees the jump.
        self._clocks = now, moment
