"""Jobs that wait in the service's queue, of tables that nobody reads."""

from __future__ import annotations

from collections.abc import Sequence

from sqlmodel import Session, select

from service.db.database import Database, utc_now
from service.jobs import queue
from service.policies.effective import effective_policy
from service.policies.service import ensure_built_in
from service.records.catalogs import Catalog
from service.records.jobs import JobKind
from service.records.tables import EnrolledTable, add_table

CATALOGS = 5


def register(database: Database, tables: int) -> None:
    """So many tables, in several catalogs."""
    with database.write() as session:
        ensure_built_in(session)
        for number in range(CATALOGS):
            catalog = new_catalog(session, f"catalog-{number}", "sql", {})
            names = [f"t{table}" for table in range(tables // CATALOGS)]
            new_tables(session, catalog, names, f"file:///{number}")


def enqueue(database: Database) -> int:
    """A conversion of each table; how many these are."""
    with database.write() as session:
        tables = session.exec(select(EnrolledTable)).all()
        for table in tables:
            policy = effective_policy(session, table)
            queue.enqueue(session, table, JobKind.CONVERT, policy, utc_now(), requested_by="bench")
    return len(tables)


def new_catalog(session: Session, name: str, kind: str, properties: dict[str, str]) -> Catalog:
    catalog = Catalog(name=name, type=kind, properties=properties)
    session.add(catalog)
    session.flush()
    return catalog


def new_tables(
    session: Session, catalog: Catalog, names: Sequence[str], location: str, table_uuid: str | None = None
) -> list[str]:
    """Their ids. table_uuid: of all of them, if they share the metadata of one table."""
    tables = [
        EnrolledTable(
            catalog_id=catalog.id,
            identifier=["db", name],
            namespace="db",
            name=f"db.{name}",
            table_uuid=table_uuid or f"{catalog.name}-{name}",
            format_version=2,
            location=location,
        )
        for name in names
    ]
    for table in tables:
        add_table(session, table)
    session.flush()
    return [table.id for table in tables]
