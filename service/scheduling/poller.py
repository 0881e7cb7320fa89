"""Poll catalogs for new snapshots, store what is found, and let the scheduler decide on it.

Each poll is: read the row, look at Iceberg with no transaction open, then store and schedule in one
transaction. Only the replica that holds the scheduling lease polls (service.scheduling.background).
"""

import hashlib
import heapq
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from pyiceberg.table import Table
from sqlalchemy import bindparam, delete, func, true, update
from sqlalchemy import select as select_columns
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session, col

from service import __version__
from service.catalogs.allowlists import check_location
from service.catalogs.iceberg import IcebergCatalogs, budget_seconds
from service.catalogs.measure import ManifestCache, Measurement, measure
from service.catalogs.metadata_locations import (
    AT_ONCE,
    TOLD_SINGLY,
    TOLD_TOGETHER,
    Identifier,
)
from service.db.database import Database, utc_now
from service.errors import IcestreamError, UnreachableError
from service.index_health.pace import Pace
from service.jobs.events import last_of_tables, latest_event_id
from service.jobs.queue import is_system_paused
from service.jobs.stream import settled_heads
from service.records.catalogs import Catalog, CatalogType
from service.records.health import TableHealth
from service.records.jobs import JobStatus
from service.records.notifications import Notification
from service.records.policies import Level, Policy, PolicyAttachment
from service.records.tables import EnrolledTable
from service.scheduling.looks import LONGEST_FRESH_SECONDS, Polled, store_failure, store_look
from service.settings import Settings
from trust.bounds import Budget
from trust.locations import normalize_location

_log = logging.getLogger("icestream.poller")
_LONGEST_BACKOFF_SECONDS = 300.0
_QUEUED_POLLS = 50
"""For each thread, so that it has work until the next tick."""
_ATTEMPT_ENDED = frozenset({"job.retry", *(f"job.{status.value}" for status in JobStatus if status.is_final)})
"""Events after which another job may have its turn, if only until the next attempt."""
_READ_SINGLY = 10_000
"""Events after a start: of those before the last of them, none comes any more, whoever writes them."""
_SILENCES = 20
"""Of a catalog, that a poll may last in all: the first of a table may have thousands of manifests to read."""
_LOOKED_AT_ONCE = 500
"""Rows in one transaction."""
_POLLED = (
    select_columns(
        EnrolledTable,
        Catalog,
        col(TableHealth.report_snapshot_id),
        col(TableHealth.indexed_snapshot_id),
        col(TableHealth.verified_snapshot_id),
    )
    .join(Catalog, col(Catalog.id) == col(EnrolledTable.catalog_id))
    .join(TableHealth, col(TableHealth.table_id) == col(EnrolledTable.id))
    .where(col(EnrolledTable.id) == bindparam("table_id"), col(EnrolledTable.deleted_at).is_(None))
)
_TOLD = select_columns(col(Notification.id), col(Notification.table_id)).limit(5_000)
_FORGET = delete(Notification).where(col(Notification.id) == bindparam("number"))
_NOTE_SAME = (
    update(TableHealth)
    .where(col(TableHealth.table_id).in_(bindparam("table_ids", expanding=True)))
    .values(measured_at=bindparam("now"))
)
_NOTED_INTERVALS = 6
"""After so many, it is noted once more that nothing has changed: of thousands of tables, noting that costs
more than finding it out."""
_PATIENCE_IF_TOLD = 6
"""Times the interval that a table waits for its next poll if its last change was told by a notification."""
_AGAIN_SECONDS = (1.0, 2.0, 4.0)
"""Between the next looks at a table that is told to have changed and has not: a metadata file, of which
stores tell, is written before the catalog names it. One more look for each of these is all that a lie costs
besides its own, and none follows another within the first of them, however much is told."""
_PATIENCE_IF_QUIET = 12
"""The same at most where each table costs a request, once it has been quiet for long."""
# What is attached to a single table is told by the table's version.
_ATTACHED = (
    select_columns(func.count(), func.max(PolicyAttachment.updated_at))
    .where(col(PolicyAttachment.level) != Level.TABLE.value)
    .subquery()
)
_ENROLLED = select_columns(
    func.count(),
    func.count(col(EnrolledTable.deleted_at)),
    func.sum(col(EnrolledTable.version)),
    func.max(col(EnrolledTable.id)),
).subquery()
_CATALOGS = select_columns(func.count(), func.sum(col(Catalog.version))).subquery()
_POLICIES = select_columns(func.max(col(Policy.updated_at))).subquery()
_STATE = select_columns(_ATTACHED, _POLICIES, _ENROLLED, _CATALOGS).select_from(
    _ATTACHED.join(_POLICIES, true()).join(_ENROLLED, true()).join(_CATALOGS, true())
)
"""Each is one row. While all stay as they are, so most likely do the tables."""
_LISTED_ANYWAY_SECONDS = 60.0
"""Since the list of the tables was read last, whatever tells that it is another now."""


@dataclass(frozen=True)
class _Basis:
    """What a poll takes into account besides the Iceberg table and time, as it is stored."""

    known: str
    """Digest of what decisions depend on."""
    event: int
    """Id of the last event that was heard of."""
    is_notified: bool
    """Whether the table is said to have changed."""
    state: str | None
    """As Polled.metadata_state was before."""
    tells: bool
    """Whether its last change before was told."""
    again: int
    """How many looks were to come soon, this one included, for a change that was told before."""

    def is_told(self, polled: Polled) -> bool:
        """Whether its last change was told. Once one that is told did not come soon, it is waited for as if
        nobody had told it."""
        if self.is_notified or self.again:
            return polled.metadata_state not in (None, self.state)
        return self.tells

    def looks_again(self, polled: Polled) -> int:
        """How many looks are to come soon now."""
        if polled.metadata_state is None or polled.metadata_state != self.state:
            return 0
        return len(_AGAIN_SECONDS) if self.is_notified else max(self.again - 1, 0)

    def note(self, polled: Polled, pace: Pace) -> dict[str, Any]:
        """As TableHealth.last_poll."""
        again = self.looks_again(polled)
        awaited_until = utc_now() + timedelta(seconds=sum(_AGAIN_SECONDS[-again:])) if again else None
        return {
            "metadata_location": polled.metadata_location,
            "metadata_state": polled.metadata_state,
            "is_told": self.is_told(polled),
            "awaited_until": awaited_until.isoformat() if awaited_until is not None else None,
            **pace.stored(),
            "decide_at": polled.decide_at.isoformat() if polled.decide_at is not None else None,
            "read_within": polled.read_within,
            "known": self.known,
            "event": self.event,
        }


@dataclass
class _Tracked:
    """An enrolled table, between its polls."""

    identifier: Identifier
    known: Hashable
    """What decisions depend on, besides the Iceberg table and time."""
    heard: int = 0
    """How often something was heard of it: that a job has ended, or that somebody has committed."""
    heard_until: int = 0
    """Id of the last event that was heard of when it was polled last, before this poller was there."""
    polled: Hashable = None
    """Both when the last poll began; others if there is news."""
    is_notified: bool = False
    """Whether it is said to have changed since the last poll began."""
    tells: bool = False
    """Whether its last change was told, and not found out."""
    again: int = 0
    """How many looks are to come soon, since it is said to have changed and has not."""
    next_at: float = 0.0
    fresh_until: float = 0.0
    """While its metadata stays, no look at it can find anything else until `decide_at`; after this, it is
    read again anyway. 0 if that has moved, or is not known."""
    decide_at: datetime | None = None
    pace: Pace = field(default_factory=Pace)
    state: str | None = None
    """As Polled.metadata_state was."""
    note_at: float = 0.0
    """Until then, that nothing has changed is not worth noting."""
    is_busy: bool = False
    wake_at: float = 0.0
    """Nothing is due before: most ticks look at nothing else of most tables."""

    @property
    def news(self) -> Hashable:
        return self.known, self.heard

    def hear(self) -> None:
        self.heard += 1
        self.wake_at = 0.0

    def rest(self, now: float, moment: datetime, *, goes_along: bool) -> None:
        """Until something may be due, as far as that is known. Clocks may jump, so no longer than to the next
        poll, or than to that of all with which it goes along."""
        self.wake_at = self.fresh_until or self.next_at
        if not goes_along:
            self.wake_at = min(self.wake_at, self.next_at)
        if self.decide_at is not None:
            self.wake_at = min(self.wake_at, now + (self.decide_at - moment).total_seconds())
        if self.news != self.polled:
            self.wake_at = 0.0

    def is_settled(self, moment: datetime) -> bool:
        """Whether only its metadata location can tell anything new, also while it waits to be read anyway."""
        is_decided = self.decide_at is None or moment < self.decide_at
        return self.news == self.polled and self.fresh_until > 0 and is_decided


@dataclass
class _Lane:
    """The tables of one catalog: a slow catalog keeps its own threads busy and nobody else's."""

    threads: ThreadPoolExecutor
    type: CatalogType
    interval: float
    """Seconds."""
    tables: dict[str, _Tracked] = field(default_factory=dict)
    busy: int = 0
    """Polls under way or waiting."""
    waiting: list[tuple[str, _Tracked]] = field(default_factory=list)
    """What is polled as soon as a thread is free, in the order in which its time came."""
    sweeps: int = 0
    settled: deque[str] = field(default_factory=deque)
    """Tables whose metadata locations are to be compared, what waits longest first; new with each tick."""
    together_at: float = 0.0
    """When the metadata locations of those that go along are compared next."""
    failures: int = 0
    next_at: float = 0.0

    def awake(self, at: float) -> list[tuple[str, _Tracked]]:
        """The tables of which something may be due by then."""
        return [
            (key, table) for key, table in self.tables.items() if table.wake_at <= at and not table.is_busy
        ]

    def goes_along(self, table: _Tracked) -> bool:
        """Whether its metadata location is compared when those of all others are, and has no turn of its own:
        where one answer tells of all, turns of thousands cost more than that."""
        return self.type in TOLD_TOGETHER and not table.again and table.pace.seconds >= self.interval


class Poller:
    """Plans polls with jitter, and with threads, a limit and a backoff for each catalog.

    A table of which all is known until its metadata location moves, or until a moment that its policy names,
    is only asked for that, many at a time. All that is kept in memory is some hundred bytes for each table.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        catalogs: IcebergCatalogs,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._settings, self._catalogs = database, settings, catalogs
        self._monotonic = monotonic
        self._noted_seconds = _NOTED_INTERVALS * settings.poll_interval_seconds
        self._cache = ManifestCache()
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}
        self._is_stopping = False
        self._list_at = 0.0
        self._listed: Hashable = None
        """What was found when tables were listed last; while it stays, so most likely did they."""
        self._heard: int | None = None
        """Id of the last event that was looked at."""
        self._same: set[str] = set()
        """Tables whose metadata lies where it lay, which is to be noted with the next tick."""
        # Secrets are masked in it; the URL of a database may hold one that is not.
        shown = settings.model_dump_json(exclude={"database_url"})
        self._software = f"{__version__} {shown}"

    def poll_due(self) -> None:
        """Start to poll every table whose time has come, or about which there is news."""
        with self._database.read() as session:
            self._list(session, self._monotonic())
        self._hear()
        self._note_same()
        for catalog_id, lane in list(self._lanes.items()):
            with self._lock:
                self._start_due(catalog_id, lane)

    def poll_news(self) -> None:
        """Start to poll the tables alone of which something is heard; with thousands of them, each look at
        all takes a while."""
        heard = self._hear()
        with self._lock:
            known = {
                table_id: lane for lane in self._lanes.values() for table_id in lane.tables.keys() & heard
            }
            if len(known) == len(heard):
                now = self._monotonic()
                for table_id, lane in known.items():
                    if now >= lane.next_at:
                        self._start_at_once(lane, table_id, lane.tables[table_id])
                return
        self.poll_due()  # one of them has just been enrolled

    def stop(self) -> None:
        with self._lock:
            self._is_stopping = True
        for lane in self._lanes.values():
            lane.threads.shutdown(wait=True, cancel_futures=True)

    def _list(self, session: Session, now: float) -> None:
        """Follow which tables there are, and what is known of them, if that may have changed."""
        found = tuple(session.execute(_STATE).one())
        general = (found[:3], is_system_paused(session))
        state = (general, *found[3:])
        # Listing thousands of tables costs a tenth of a second and more, and ticks come each second.
        if state == self._listed and now < self._list_at:
            return
        self._listed, self._list_at = state, now + _LISTED_ANYWAY_SECONDS
        rows = session.execute(
            select_columns(
                col(EnrolledTable.id),
                col(EnrolledTable.catalog_id),
                col(EnrolledTable.identifier),
                col(Catalog.type),
                col(EnrolledTable.version),
                col(Catalog.version),
            )
            .join(Catalog, col(Catalog.id) == col(EnrolledTable.catalog_id))
            .where(col(EnrolledTable.deleted_at).is_(None))
        ).all()
        polled = self._last_polls(session) if self._heard is None else {}
        with self._lock:
            of_catalogs: dict[str, set[str]] = {}
            for table_id, catalog_id, identifier, kind, *versions in rows:
                of_catalogs.setdefault(catalog_id, set()).add(table_id)
                known = (general, *versions)
                lane = self._lane(catalog_id, CatalogType(kind))
                if (tracked := lane.tables.get(table_id)) is None:
                    tracked = lane.tables[table_id] = _Tracked(tuple(identifier), known)
                elif tracked.known != known:
                    tracked.known, tracked.wake_at = known, 0.0
                if table_id in polled:
                    self._go_on(tracked, polled[table_id], now)
            for catalog_id, lane in list(self._lanes.items()):
                for table_id in lane.tables.keys() - of_catalogs.get(catalog_id, set()):
                    del lane.tables[table_id]
                if not lane.tables and not lane.busy and not lane.sweeps:
                    lane.threads.shutdown(wait=False)
                    del self._lanes[catalog_id]

    def _last_polls(self, session: Session) -> dict[str, dict[str, Any]]:
        """Of tables that were polled before this poller was there, by it or by other replicas."""
        query = (
            select_columns(col(TableHealth.table_id), col(TableHealth.last_poll))
            .join(EnrolledTable, col(EnrolledTable.id) == col(TableHealth.table_id))
            .where(col(EnrolledTable.deleted_at).is_(None))
        )
        polled = {table_id: last for table_id, last in session.execute(query).all() if last is not None}
        if not polled:
            return {}
        # What has ended since is heard of, and lets these tables be polled.
        oldest = min(last["event"] for last in polled.values())
        self._heard = max(oldest, latest_event_id(session) - _READ_SINGLY)
        ended = last_of_tables(session, _ATTEMPT_ENDED, oldest, self._heard)
        return {table: last for table, last in polled.items() if ended.get(table, 0) <= last["event"]}

    def _go_on(self, table: _Tracked, last: dict[str, Any], now: float) -> None:
        """As if this poller had polled the table, unless what decisions depend on is another now."""
        if last["known"] != self._digest(table.known):
            return
        table.polled, table.state = table.news, last["metadata_state"]
        table.decide_at = datetime.fromisoformat(last["decide_at"]) if last["decide_at"] is not None else None
        table.pace = Pace.of(last)
        table.tells = last["is_told"]
        table.heard_until = last["event"]
        within = min(last["read_within"], LONGEST_FRESH_SECONDS)
        table.fresh_until = now + within * random.uniform(0, 1)  # noqa: S311 - no secret

    def _digest(self, known: Hashable) -> str:
        return hashlib.sha256(f"{self._software} {known}".encode()).hexdigest()

    def _lane(self, catalog_id: str, kind: CatalogType) -> _Lane:
        if catalog_id not in self._lanes:
            threads = ThreadPoolExecutor(self._settings.polls_per_catalog, f"poller-{catalog_id[:8]}")
            self._lanes[catalog_id] = _Lane(threads, kind, self._settings.poll_interval_seconds)
        return self._lanes[catalog_id]

    def _hear(self) -> set[str]:
        """The tables of which an attempt has ended, or that somebody tells of; this is remembered of each."""
        with self._database.read() as session:
            ended = self._tables_of_ended_attempts(session)
            told = session.execute(_TOLD).all()
        notified = {table_id for _, table_id in told}
        heard = ended.keys() | notified
        with self._lock:
            for lane in self._lanes.values():
                for table_id in lane.tables.keys() & heard:
                    table = lane.tables[table_id]
                    if table_id not in notified and ended[table_id] <= table.heard_until:
                        heard.remove(table_id)
                        continue
                    table.hear()
                    table.is_notified |= table_id in notified
        if told:
            # They are gone once it is remembered what they say: after a start, every location is compared.
            with self._database.write() as session:
                session.connection().execute(_FORGET, [{"number": number} for number, _ in told])
        return heard

    def _tables_of_ended_attempts(self, session: Session) -> dict[str, int]:
        """With the id of the last event of each."""
        # By the ids of events, since clocks of replicas differ.
        if self._heard is None:
            self._heard = latest_event_id(session)
            return {}
        ended: dict[str, int] = {}
        for found in settled_heads(session.connection(), self._heard):
            self._heard = found[-1].id
            ended |= {one.table_id: one.id for one in found if one.kind in _ATTEMPT_ENDED and one.table_id}
        return ended

    def _start_due(self, catalog_id: str, lane: _Lane) -> None:
        now, moment = self._monotonic(), utc_now()
        if self._is_stopping or now < lane.next_at:
            return
        due: list[tuple[bool, bool, float, str]] = []
        settled: list[tuple[float, str]] = []
        for table_id, table in lane.awake(now):
            is_settled = table.is_settled(moment)
            if is_settled and now >= table.next_at and not lane.goes_along(table):
                settled.append((table.next_at, table_id))
            if is_settled and now < table.fresh_until:
                continue
            has_news = table.news != table.polled
            if now >= table.next_at or has_news or table.fresh_until:
                # Comparing locations meanwhile takes no table's turn away.
                turn = min(table.next_at, table.fresh_until or table.next_at)
                due.append((not table.is_notified, not has_news, turn, table_id))
        # A few for each thread: whatever becomes urgent meanwhile goes before the rest.
        room = max(self._room(lane), sum(not is_untold for is_untold, *_ in due))
        for *_, table_id in heapq.nsmallest(room, due):
            self._start_poll(lane, table_id)
        lane.settled = deque(table_id for _, table_id in sorted(settled))
        has_thread = lane.sweeps < self._settings.polls_per_catalog
        if now >= lane.together_at and lane.type in TOLD_TOGETHER and has_thread:
            along = {table_id: table for table_id, table in lane.tables.items() if lane.goes_along(table)}
            seconds = min((table.pace.seconds for table in along.values()), default=lane.interval)
            lane.together_at = now + _about(seconds)
            lane.settled.extend(along)
        self._start_sweeps(catalog_id, lane, moment)

    def _room(self, lane: _Lane) -> int:
        return max(self._settings.polls_per_catalog * _QUEUED_POLLS - lane.busy, 0)

    def _start_at_once(self, lane: _Lane, table_id: str, table: _Tracked) -> None:
        """Poll a table with news before its time has come, if a thread is free soon; what somebody tells of
        waits for none."""
        is_kept = lane.tables.get(table_id) is table and not self._is_stopping
        if is_kept and not table.is_busy and (table.is_notified or self._room(lane)):
            self._start_poll(lane, table_id)

    def _start_poll(self, lane: _Lane, table_id: str) -> None:
        table = lane.tables[table_id]
        table.is_busy = True
        lane.busy += 1
        lane.waiting.append((table_id, table))
        lane.threads.submit(self._poll_next, lane)

    def _poll_next(self, lane: _Lane) -> None:
        with self._lock:
            # What somebody tells of waits for none of those whose time came.
            chosen = min(lane.waiting, key=lambda waiting: not waiting[1].is_notified)
            lane.waiting.remove(chosen)
        self._poll_and_plan(lane, *chosen)

    def _start_sweeps(self, catalog_id: str, lane: _Lane, moment: datetime) -> None:
        while lane.settled and lane.sweeps < self._settings.polls_per_catalog:
            chosen: dict[str, _Tracked] = {}
            while lane.settled and len(chosen) < AT_ONCE[lane.type]:
                table_id = lane.settled.popleft()
                table = lane.tables.get(table_id)
                if table is None or table.is_busy:
                    continue
                if table.is_settled(moment):
                    table.is_busy, chosen[table_id] = True, table
                else:
                    table.wake_at = 0.0
            if chosen:
                lane.sweeps += 1
                lane.threads.submit(self._sweep, catalog_id, lane, chosen)

    def _sweep(self, catalog_id: str, lane: _Lane, tables: dict[str, _Tracked]) -> None:
        """Compare the metadata locations of tables in which nothing goes on; what moved is polled at once."""
        states: dict[Identifier, str] = {}
        try:
            with self._database.read() as session:
                catalog = session.get_one(Catalog, catalog_id)
            with self._budget(), self._catalogs.open(catalog) as source:
                states = source.metadata_states([table.identifier for table in tables.values()])
        except IcestreamError:
            pass  # polling each table tells it
        except Exception:
            _log.exception("Asking catalog %s for the metadata locations of its tables failed", catalog_id)
        same = [
            table_id
            for table_id, table in tables.items()
            if table.state is not None and states.get(table.identifier) == table.state
        ]
        now, moment, moved = self._monotonic(), utc_now(), tables.keys() - set(same)
        with self._lock:
            lane.sweeps -= 1
            noted = [table_id for table_id in same if now >= tables[table_id].note_at]
            self._same.update(noted)
            for table_id in noted:
                tables[table_id].note_at = now + self._noted_seconds
            if not same:
                # So it is when the catalog fails: then the polls of these tables find out more.
                lane.settled.clear()
            for table_id, table in tables.items():
                table.is_busy = False
                if table_id in moved:
                    table.fresh_until = table.next_at = 0.0
                    table.tells = False
                    if table.identifier in states:  # it has moved
                        self._start_at_once(lane, table_id, table)
                elif table.is_notified or table.wake_at <= now or not lane.goes_along(table):
                    table.again = max(table.again - 1, 0)
                    table.next_at = now + self._interval(table, moment)
                    if table.is_notified:
                        self._start_at_once(lane, table_id, table)
                else:
                    continue
                table.rest(now, moment, goes_along=lane.goes_along(table))
            if not self._is_stopping:
                self._start_sweeps(catalog_id, lane, moment)

    def _note_same(self) -> None:
        """That tables were looked at in which nothing changed."""
        with self._lock:
            same, self._same = list(self._same), set()
        try:
            for start in range(0, len(same), _LOOKED_AT_ONCE):
                chosen = same[start : start + _LOOKED_AT_ONCE]
                with self._database.write() as session:
                    session.connection().execute(_NOTE_SAME, {"table_ids": chosen, "now": utc_now()})
        except SQLAlchemyError as error:
            _log.warning("That nothing changed could not be noted: %s", error)

    def _poll_and_plan(self, lane: _Lane, table_id: str, table: _Tracked) -> None:
        with self._lock:
            news = table.news
            basis = _Basis(
                self._digest(table.known),
                self._heard or 0,
                table.is_notified,
                table.state,
                table.tells,
                table.again,
            )
            table.is_notified = False
        found = Polled(is_reachable=True)
        try:
            found = self.poll(table_id, basis)
        except Exception:
            _log.exception("Polling table %s failed", table_id)
        now, moment = self._monotonic(), utc_now()
        with self._lock:
            lane.busy -= 1
            table.tells, table.again = basis.is_told(found), basis.looks_again(found)
            table.is_busy, table.polled, table.state = False, news, found.metadata_state
            table.pace, table.decide_at = self._pace(lane.type, found, basis), found.decide_at
            table.next_at = now + self._interval(table, moment)
            table.fresh_until = 0.0
            if found.metadata_state is not None:
                table.note_at = now + self._noted_seconds
                table.fresh_until = now + found.read_within * random.uniform(0.5, 1)  # noqa: S311 - no secret
            if goes_along := lane.goes_along(table):
                lane.together_at = min(lane.together_at, table.next_at)
            table.rest(now, moment, goes_along=goes_along)
            if found.is_reachable:
                lane.failures, lane.next_at = 0, 0.0
                if table.is_notified:  # while it was polled
                    self._start_at_once(lane, table_id, table)
            else:
                lane.failures += 1
                doubled = self._settings.poll_interval_seconds * 2.0 ** min(lane.failures, 30)
                lane.next_at = now + min(doubled, _LONGEST_BACKOFF_SECONDS)

    def _interval(self, table: _Tracked, moment: datetime) -> float:
        usual = _about(table.pace.every_seconds(moment))
        return min(_AGAIN_SECONDS[-table.again], usual) if table.again else usual

    def _pace(self, kind: CatalogType, polled: Polled, basis: _Basis) -> Pace:
        """How often a table is polled, more or less, of which nobody tells anything."""
        interval = self._settings.poll_interval_seconds
        seconds = min(interval, polled.look_within)
        if basis.is_told(polled):
            seconds = max(seconds, self._settings.scheduler_interval_seconds) * _PATIENCE_IF_TOLD
        most = min(interval * _PATIENCE_IF_QUIET, polled.look_within) if kind in TOLD_SINGLY else 0.0
        return Pace(seconds, max(seconds, most), polled.changed_at)

    def _budget(self) -> Budget:
        return Budget(budget_seconds(self._settings, _SILENCES))

    def poll(self, table_id: str, basis: _Basis | None = None) -> Polled:
        """Measure one table now, store it, schedule."""
        with self._database.read() as session:
            row = session.execute(_POLLED, {"table_id": table_id}).first()
        if row is None:
            return Polled(is_reachable=True)
        table, catalog, *seen = row
        try:
            with self._budget():
                loaded, found = self._look(table, catalog, {None, *seen})
        except IcestreamError as error:
            with self._database.write() as session:
                store_failure(session, table_id, error)
            # A table that is too large says nothing of the others.
            is_unreachable = isinstance(error, UnreachableError) and error.slug != "catalog-limit-exceeded"
            return Polled(is_reachable=not is_unreachable)
        note = partial(self._noted, CatalogType(catalog.type), basis) if basis is not None else None
        with self._database.write() as session:
            return store_look(session, self._settings, table_id, loaded, found, note)

    def _noted(self, kind: CatalogType, basis: _Basis, polled: Polled) -> dict[str, Any]:
        return basis.note(polled, self._pace(kind, polled, basis))

    def _look(
        self, table: EnrolledTable, catalog: Catalog, since: set[int | None]
    ) -> tuple[Table, Measurement]:
        with self._catalogs.open(catalog):
            loaded = self._catalogs.load(catalog, tuple(table.identifier))
            location = loaded.location()
            if normalize_location(location) != normalize_location(table.location):
                check_location(self._settings, location)
            with self._catalogs.reading(catalog, tuple(table.identifier)):
                return loaded, measure(loaded, table.branch, self._cache, since)


def _about(seconds: float) -> float:
    return seconds * random.uniform(0.9, 1.1)  # noqa: S311 - no secret
