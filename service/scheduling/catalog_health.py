"""Whether each catalog answers, as was seen when it was asked for anything, and an event if that changes."""

from datetime import datetime

from sqlmodel import Session, col, select

from service.catalogs.observations import Observations, Seen
from service.db.database import FOR_UPDATE, Database, insert_into
from service.quantities import aged
from service.records.catalogs import Catalog, CatalogHealth, CatalogStatus
from service.webhooks.outbox import write_event

_FAILURES = 2
"""In a row: a single one may be a connection that broke."""


def store_observations(database: Database, observations: Observations, now: datetime) -> None:
    """Take what was seen since the last time into the database; every replica does this for itself."""
    taken = observations.take()
    if not taken:
        return
    with database.write() as session:
        known = session.exec(select(Catalog).where(col(Catalog.id).in_(taken)).order_by(col(Catalog.id)))
        for catalog in known.all():
            if catalog.deleted_at is None:
                _store(session, catalog, taken[catalog.id], now)


def _store(session: Session, catalog: Catalog, seen: Seen, now: datetime) -> None:
    new = CatalogHealth(catalog_id=catalog.id).model_dump()
    session.execute(insert_into(session, CatalogHealth).values(new).on_conflict_do_nothing())
    health = session.get_one(CatalogHealth, catalog.id, with_for_update=FOR_UPDATE)
    health.requests += seen.requests
    if seen.answered_at is not None:
        health.answered_at, health.failures, health.failed_at, health.error = seen.answered_at, 0, None, None
        if seen.answered:
            health.latency_seconds = seen.seconds / seen.answered
    if seen.failures:
        health.failures += seen.failures
        health.failed_at, health.error = health.failed_at or seen.failed_at, seen.error
    session.add(health)
    before = CatalogStatus(health.status)
    if health.failures >= _FAILURES:
        if before is not CatalogStatus.UNREACHABLE:
            health.status, health.since = CatalogStatus.UNREACHABLE.value, health.failed_at
            error = health.error or {}
            _tell(session, catalog, "unreachable", str(error.get("detail")), now, **error)
    elif seen.answered_at is not None and before is not CatalogStatus.REACHABLE:
        if before is CatalogStatus.UNREACHABLE:
            away = aged(max((seen.answered_at - (health.since or now)).total_seconds(), 0.0))
            _tell(
                session, catalog, "recovered", f"Catalog {catalog.name!r} answers again, after {away}.", now
            )
        health.status, health.since = CatalogStatus.REACHABLE.value, seen.answered_at


def _tell(
    session: Session, catalog: Catalog, what: str, message: str, now: datetime, **fields: object
) -> None:
    write_event(
        session,
        at=now,
        kind=f"catalog.{what}",
        level="error" if what == "unreachable" else "info",
        message=message,
        table_id=None,
        job_id=None,
        attempt=None,
        fields={"catalog_id": catalog.id, "catalog": catalog.name, **fields},
    )
