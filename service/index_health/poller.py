"""Poll catalogs for new snapshots, store what is found, and let the scheduler decide on it.

Each poll is: read the row, look at Iceberg with no transaction open, then store and schedule in one
transaction. Only the replica that holds the scheduling lease polls (service.background).
"""

import logging
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from pyiceberg.table import Table
from sqlmodel import Session, col, select

from service.catalogs.iceberg import IcebergCatalogs
from service.catalogs.models import Catalog
from service.catalogs.reach import check_location
from service.database import Database, utc_now
from service.errors import IcestreamError, UnreachableError
from service.index_health.measure import ManifestCache, Measurement, measure
from service.index_health.models import TableHealth
from service.index_health.reports import health_of
from service.index_health.service import record_sample
from service.jobs.events import record_table_event
from service.jobs.scheduler import schedule
from service.locations import normalize_location
from service.settings import Settings
from service.tables.models import EnrolledTable

_log = logging.getLogger("icestream.poller")
_LONGEST_BACKOFF_SECONDS = 300.0


@dataclass(frozen=True)
class Due:
    """What the poller needs to know of a table to plan its next poll."""

    table_id: str
    catalog_id: str
    reported_at: datetime | None


class Poller:
    """Plans polls with jitter, a backoff per catalog, and a limit per catalog; polls in threads."""

    def __init__(self, database: Database, settings: Settings, catalogs: IcebergCatalogs) -> None:
        self._database, self._settings, self._catalogs = database, settings, catalogs
        self._cache = ManifestCache()
        self._pool = ThreadPoolExecutor(settings.poller_threads, thread_name_prefix="poller")
        self._lock = threading.Lock()
        self._next: dict[str, float] = {}
        self._seen_report: dict[str, datetime | None] = {}
        self._catalog_failures: Counter[str] = Counter()
        self._catalog_next: dict[str, float] = {}
        self._busy: dict[str, str] = {}
        """Tables being polled now, with their catalogs."""

    def poll_due(self) -> None:
        """Start a poll of every table whose time has come, or about which a worker just reported."""
        now = time.monotonic()
        with self._database.read() as session:
            rows = session.exec(
                select(EnrolledTable.id, EnrolledTable.catalog_id, TableHealth.reported_at)
                .join(TableHealth, col(TableHealth.table_id) == col(EnrolledTable.id), isouter=True)
                .where(col(EnrolledTable.deleted_at).is_(None))
            ).all()
        for due in (Due(*row) for row in rows):
            with self._lock:
                if not self._is_due(due, now):
                    continue
                self._busy[due.table_id] = due.catalog_id
            self._pool.submit(self._poll_and_plan, due)

    def stop(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _is_due(self, due: Due, now: float) -> bool:
        if due.table_id in self._busy or now < self._catalog_next.get(due.catalog_id, 0.0):
            return False
        if (
            sum(catalog == due.catalog_id for catalog in self._busy.values())
            >= self._settings.polls_per_catalog
        ):
            return False
        is_news = due.reported_at is not None and due.reported_at != self._seen_report.get(due.table_id)
        return is_news or now >= self._next.get(due.table_id, 0.0)

    def _poll_and_plan(self, due: Due) -> None:
        is_reachable = True
        try:
            is_reachable = self.poll(due.table_id)
        except Exception:
            _log.exception("Polling table %s failed", due.table_id)
        interval = self._settings.poll_interval_seconds
        with self._lock:
            self._busy.pop(due.table_id, None)
            self._seen_report[due.table_id] = due.reported_at
            self._next[due.table_id] = time.monotonic() + interval * random.uniform(0.9, 1.1)  # noqa: S311
            if is_reachable:
                self._catalog_failures.pop(due.catalog_id, None)
                self._catalog_next.pop(due.catalog_id, None)
            else:
                self._catalog_failures[due.catalog_id] += 1
                doubled = interval * 2.0 ** min(self._catalog_failures[due.catalog_id], 30)
                self._catalog_next[due.catalog_id] = time.monotonic() + min(doubled, _LONGEST_BACKOFF_SECONDS)

    def poll(self, table_id: str) -> bool:
        """Measure one table now, store it, schedule. False if the catalog could not be reached."""
        with self._database.read() as session:
            table = session.get(EnrolledTable, table_id)
            if table is None or table.deleted_at is not None:
                return True
            catalog = session.get_one(Catalog, table.catalog_id)
            known = session.get(TableHealth, table_id) or TableHealth(table_id=table_id)
        try:
            loaded, found = self._look(table, catalog, known)
        except IcestreamError as error:
            with self._database.write() as session:
                self._store_failure(session, table_id, error)
            return not isinstance(error, UnreachableError)
        with self._database.write() as session:
            self._store(session, table_id, loaded, found)
        return True

    def _look(self, table: EnrolledTable, catalog: Catalog, known: TableHealth) -> tuple[Table, Measurement]:
        with self._catalogs.open(catalog):
            loaded = self._catalogs.load(catalog, tuple(table.identifier))
            location = loaded.location()
            if normalize_location(location) != normalize_location(table.location):
                check_location(self._settings, location)
            since = {None, known.report_snapshot_id, known.indexed_snapshot_id, known.verified_snapshot_id}
            with self._catalogs.reading(catalog, tuple(table.identifier)):
                return loaded, measure(loaded, table.branch, self._cache, since)

    def _store_failure(self, session: Session, table_id: str, error: IcestreamError) -> None:
        now = utc_now()
        health = health_of(session, table_id)
        health.poll_failures += 1
        problem = {"code": error.slug, "title": error.title, "detail": error.detail, "remedy": error.remedy}
        if health.poll_error != problem:
            record_table_event(session, table_id, "poll.failed", error.detail, now, level="error", **problem)
        health.poll_error = problem
        session.add(health)

    def _store(self, session: Session, table_id: str, loaded: Table, found: Measurement) -> None:
        now = utc_now()
        table = session.get_one(EnrolledTable, table_id)
        if table.deleted_at is not None:
            return
        health = health_of(session, table_id)
        if health.poll_error is not None:
            record_table_event(session, table_id, "poll.recovered", "The table can be read again.", now)
            health.poll_failures, health.poll_error = 0, None
        self._follow(session, table, health, loaded, now)
        blocked = {normalize_location(delete["file_path"]) for delete in health.unconvertible}
        pending = found.equality_deletes
        convertible = [delete for delete in pending if normalize_location(delete.file_path) not in blocked]
        # A report names files that are gone by now: they block nothing any more.
        live = {normalize_location(delete.file_path) for delete in pending}
        health.unconvertible = [
            delete for delete in health.unconvertible if normalize_location(delete["file_path"]) in live
        ]
        health.measured_at = now
        health.iceberg_snapshot_id = found.iceberg_snapshot_id
        health.pending_equality_delete_files = len(pending)
        health.pending_equality_deletes = sum(delete.record_count for delete in pending)
        health.oldest_equality_delete_at = min((delete.committed_at for delete in pending), default=None)
        health.convertible_delete_files = len(convertible)
        health.convertible_deletes = sum(delete.record_count for delete in convertible)
        health.convertible_bytes = sum(delete.size_bytes for delete in convertible)
        health.oldest_convertible_at = min((delete.committed_at for delete in convertible), default=None)
        health.data_files = found.data_files
        everything = found.new_since[None]
        new = found.new_since.get(health.indexed_snapshot_id, everything)
        health.new_data_files, health.new_rows, health.new_bytes = new.files, new.rows, new.bytes
        unverified = found.new_since.get(health.verified_snapshot_id, everything)
        health.unverified_data_files = unverified.files
        health.unverified_rows, health.unverified_bytes = unverified.rows, unverified.bytes
        reported = max((item["files_total"] - item["files_covered"] for item in health.key_sets), default=0)
        added = found.new_since.get(health.report_snapshot_id, everything)
        health.unindexed_data_files = min(reported + added.files, found.data_files)
        health.has_keys = bool(table.key_sets or found.has_identifier_fields or pending or health.key_sets)
        session.add(health)
        session.flush()
        schedule(session, table, health, now)
        record_sample(session, table, now)

    def _follow(
        self, session: Session, table: EnrolledTable, health: TableHealth, loaded: Table, now: datetime
    ) -> None:
        """Take over what changed about the table itself; a new UUID is another table of the same name."""
        uuid = str(loaded.metadata.table_uuid)
        if uuid != table.table_uuid:
            record_table_event(
                session,
                table.id,
                "table.replaced",
                f"The catalog now holds another table of this name (UUID {uuid}, was {table.table_uuid}); "
                "its index starts anew.",
                now,
                level="warning",
            )
            health.key_sets, health.unconvertible = [], []
            health.report_snapshot_id = health.indexed_snapshot_id = health.verified_snapshot_id = None
        if uuid != table.table_uuid or table.format_version != loaded.metadata.format_version:
            table.table_uuid, table.format_version = uuid, loaded.metadata.format_version
        table.location = loaded.location()
        session.add(table)
