"""Standing patterns: made, changed, removed, and compared with their catalogs again and again.

Invariant: a table that somebody removed is not enrolled again by a pattern that was there before.
"""

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase

from sqlmodel import Session, col, or_, select

from service.auth.models import SYSTEM, Principal
from service.auth.service import authorize
from service.catalogs.iceberg import IcebergCatalogs, budget_seconds
from service.catalogs.metadata_locations import Identifier
from service.catalogs.service import find_catalog
from service.db.database import FOR_UPDATE, Database, utc_now
from service.discovery.candidates import list_names
from service.discovery.models import StandingPatternPatch, StandingPatternRequest, StandingPatternView
from service.errors import IcestreamError, InvalidError, NotFoundError
from service.http.etags import check_version, store_change
from service.http.paging import Page, PageRequest, Sorting, read_page
from service.jobs.events import record_table_event
from service.policies.service import policy_of_request
from service.records.api_keys import Role
from service.records.catalogs import Catalog
from service.records.patterns import EnrollmentPattern
from service.records.policies import Policy
from service.records.tables import EnrolledTable
from service.settings import Settings
from service.tables import enrolment
from service.tables.models import PatternMiss, Staging, TableRequest
from trust.bounds import Budget

SORTING = Sorting(
    {"created_at": EnrollmentPattern.created_at}, key=EnrollmentPattern.id, default="created_at"
)
_RUNNING = (
    select(EnrollmentPattern.id, EnrollmentPattern.catalog_id)
    .join(Catalog, col(Catalog.id) == col(EnrollmentPattern.catalog_id))
    .where(~col(EnrollmentPattern.paused), ~col(Catalog.paused), col(Catalog.deleted_at).is_(None))
)
_SILENCES = 20
"""Of a catalog, that a run may last in all."""
_TABLES_AT_ONCE = 50
"""A pattern that matches thousands of tables enrols them over several runs."""
_log = logging.getLogger("icestream.patterns")


def create_pattern(
    session: Session, principal: Principal, request: StandingPatternRequest
) -> StandingPatternView:
    """Make a pattern; it enrols nothing before its first run."""
    authorize(session, principal, Role.OPERATOR, "pattern.create", f"{request.catalog}.{request.pattern}")
    catalog = find_catalog(session, request.catalog)
    if catalog is None:
        raise InvalidError(
            "catalog-not-found", f"There is no catalog {request.catalog!r}.", "Register it first."
        )
    policy = policy_of_request(session, request.policy) if request.policy is not None else None
    row = EnrollmentPattern(
        catalog_id=catalog.id,
        pattern=request.pattern,
        exclude=request.exclude,
        branch=request.branch,
        publish_from=request.publish.source if request.publish is not None else None,
        policy_id=policy.id if policy else None,
        created_by=principal.name,
    )
    session.add(row)
    session.flush()
    return view(session, row)


def list_patterns(
    session: Session, page: PageRequest, *, catalog: str | None = None, search: str | None = None
) -> Page[StandingPatternView]:
    """Patterns of all catalogs, or of one; `search` is a part of the pattern."""
    query = select(EnrollmentPattern)
    if search:
        query = query.where(col(EnrollmentPattern.pattern).icontains(search, autoescape=True))
    if catalog is not None:
        found = find_catalog(session, catalog)
        query = query.where(EnrollmentPattern.catalog_id == (found.id if found else ""))
    return read_page(session, query, page, SORTING, lambda rows: [view(session, row) for row in rows])


def get_pattern(session: Session, pattern_id: str, *, for_update: bool = False) -> EnrollmentPattern:
    """Raises NotFoundError."""
    row = session.get(EnrollmentPattern, pattern_id, with_for_update=FOR_UPDATE if for_update else None)
    if row is None:
        raise NotFoundError(
            "pattern-not-found",
            f"There is no standing pattern {pattern_id!r}.",
            "Look in the list of patterns.",
        )
    return row


def update_pattern(
    session: Session, principal: Principal, pattern_id: str, patch: StandingPatternPatch, if_match: str
) -> StandingPatternView:
    """Change a pattern that nobody changed meanwhile."""
    row = get_pattern(session, pattern_id, for_update=True)
    authorize(
        session,
        principal,
        Role.OPERATOR,
        "pattern.update",
        row.pattern,
        fields=sorted(patch.model_fields_set),
    )
    check_version(if_match, row.version)
    if patch.pattern is not None:
        row.pattern = patch.pattern
    if patch.exclude is not None:
        row.exclude = patch.exclude
    if patch.paused is not None:
        row.paused = patch.paused
    if "policy" in patch.model_fields_set:
        row.policy_id = policy_of_request(session, patch.policy).id if patch.policy is not None else None
    store_change(session, row)
    return view(session, row)


def delete_pattern(
    session: Session, principal: Principal, pattern_id: str, *, if_match: str | None = None
) -> None:
    """Forget a pattern; what it has enrolled stays enrolled."""
    row = get_pattern(session, pattern_id, for_update=True)
    authorize(session, principal, Role.OPERATOR, "pattern.delete", row.pattern)
    check_version(if_match, row.version)
    session.delete(row)


def view(session: Session, row: EnrollmentPattern) -> StandingPatternView:
    policy = session.get(Policy, row.policy_id) if row.policy_id is not None else None
    return StandingPatternView(
        **row.model_dump(exclude={"policy_id", "publish_from", "failures"}),
        publish=_staging_of(row),
        catalog=session.get_one(Catalog, row.catalog_id).name,
        policy=policy.name if policy else None,
        failures=[PatternMiss.model_validate(one) for one in row.failures],
    )


class PatternRunner:
    """Compares each pattern with its catalog from time to time.

    Each catalog has a thread of its own, so that none waits for one that is slow.
    """

    def __init__(self, database: Database, settings: Settings, catalogs: IcebergCatalogs) -> None:
        self._database, self._settings, self._catalogs = database, settings, catalogs
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._lock = threading.Lock()
        self._next: dict[str, float] = {}

    def run_due(self) -> None:
        """Start with every pattern whose time has come."""
        with self._database.read() as session:
            due = session.exec(_RUNNING).all()
        now = time.monotonic()
        for catalog_id in self._threads.keys() - {catalog_id for _, catalog_id in due}:
            self._threads.pop(catalog_id).shutdown(wait=False)
        for pattern_id, catalog_id in due:
            with self._lock:
                if now < self._next.get(pattern_id, 0.0):
                    continue
                self._next[pattern_id] = float("inf")  # until this run has ended
            self._thread(catalog_id).submit(self._run_and_plan, pattern_id)

    def _thread(self, catalog_id: str) -> ThreadPoolExecutor:
        if catalog_id not in self._threads:
            self._threads[catalog_id] = ThreadPoolExecutor(1, f"patterns-{catalog_id[:8]}")
        return self._threads[catalog_id]

    def stop(self) -> None:
        for thread in self._threads.values():
            thread.shutdown(wait=True, cancel_futures=True)

    def _run_and_plan(self, pattern_id: str) -> None:
        try:
            with Budget(budget_seconds(self._settings, _SILENCES)):
                self.run(pattern_id)
        except Exception:
            _log.exception("Pattern %s failed", pattern_id)
        with self._lock:
            self._next[pattern_id] = time.monotonic() + self._settings.pattern_interval_seconds

    def run(self, pattern_id: str) -> None:
        """Compare one pattern with its catalog now, and enrol what is new."""
        with self._database.read() as session:
            row = session.get(EnrollmentPattern, pattern_id)
            if row is None:
                return
            catalog = session.get_one(Catalog, row.catalog_id)
            known = set(self._known(session, row))
        try:
            names = list_names(self._catalogs, catalog)
        except IcestreamError as error:
            self._store(pattern_id, error=error)
            return
        matched = [name for name in names if _matches(row, name)]
        failures: list[PatternMiss] = []
        enrolled = 0
        for name in _in_turn(row, [name for name in matched if name not in known])[:_TABLES_AT_ONCE]:
            try:
                self._enroll(row, catalog, name)
                enrolled += 1
            except IcestreamError as error:
                failures.append(enrolment.miss(name, error))
        self._store(pattern_id, matched=len(matched), enrolled=enrolled, failures=failures)

    def _known(self, session: Session, row: EnrollmentPattern) -> Iterator[Identifier]:
        """What is enrolled, and what was removed since the pattern was made."""
        rows = session.exec(
            select(EnrolledTable).where(
                EnrolledTable.catalog_id == row.catalog_id,
                EnrolledTable.branch == row.branch,
                or_(col(EnrolledTable.deleted_at).is_(None), col(EnrolledTable.deleted_at) > row.created_at),
            )
        )
        return (tuple(each.identifier) for each in rows)

    def _enroll(self, row: EnrollmentPattern, catalog: Catalog, name: Identifier) -> None:
        request = TableRequest(
            catalog=catalog.id,
            identifier=list(name),
            branch=row.branch,
            policy=row.policy_id,
            publish=_staging_of(row),
        )
        loaded = enrolment.load_for_enrolment(self._database, self._catalogs, SYSTEM, request)
        with self._database.write() as session:
            made = enrolment.enroll_table(session, self._settings, SYSTEM, request, loaded)
            sentence = f"Enrolled by the pattern {row.pattern!r} of {row.created_by}."
            record_table_event(session, made.id, "table.enrolled", sentence, utc_now(), pattern_id=row.id)

    def _store(
        self,
        pattern_id: str,
        *,
        matched: int | None = None,
        enrolled: int = 0,
        failures: list[PatternMiss] | None = None,
        error: IcestreamError | None = None,
    ) -> None:
        with self._database.write() as session:
            row = session.get(EnrollmentPattern, pattern_id)
            if row is None:
                return
            row.evaluated_at = utc_now()
            row.error = (
                {"type": error.type, "detail": error.detail, "remedy": error.remedy} if error else None
            )
            if error is None:
                row.matched = matched or 0
                row.enrolled += enrolled
                row.failures = [one.model_dump() for one in failures or []]
            session.add(row)


def _staging_of(row: EnrollmentPattern) -> Staging | None:
    return Staging(source=row.publish_from) if row.publish_from is not None else None


def _matches(row: EnrollmentPattern, name: Identifier) -> bool:
    dotted = ".".join(name)
    return fnmatchcase(dotted, row.pattern) and not any(fnmatchcase(dotted, one) for one in row.exclude)


def _in_turn(row: EnrollmentPattern, names: list[Identifier]) -> list[Identifier]:
    """In order from behind the last failure on, so that tables that always fail keep no other waiting."""
    last = tuple(row.failures[-1]["identifier"]) if row.failures else ()
    return sorted(names, key=lambda name: (name <= last, name))
