"""Enrolled tables: one row per (catalog, identifier, branch).

Parts of an identifier may hold dots, so dotted names are for people and filters; tables go by the parts.
"""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import BigInteger, Index, text
from sqlmodel import Field, Session, SQLModel

from service.db.database import FOR_UPDATE, Json, UtcDateTime, new_id, utc_now
from service.errors import NotFoundError
from service.records.catalogs import Catalog
from service.records.health import TableHealth


class EnrolledTable(SQLModel, table=True):
    __tablename__ = "tables"
    __table_args__ = (
        Index(
            "uq_tables_identifier_branch",
            "catalog_id",
            "identifier",
            "branch",
            unique=True,
            sqlite_where=text("deleted_at IS NULL"),
            postgresql_where=text("deleted_at IS NULL"),
        ),
        # The order in which they are listed.
        Index(
            "ix_tables_name",
            "name",
            "id",
            sqlite_where=text("deleted_at IS NULL"),
            postgresql_where=text("deleted_at IS NULL"),
        ),
    )

    id: str = Field(default_factory=new_id, primary_key=True)
    catalog_id: str = Field(foreign_key="catalogs.id", index=True)
    identifier: list[str] = Field(sa_type=Json)
    namespace: str
    """The identifier without its last part, with dots."""
    name: str
    """The identifier with dots."""
    branch: str = "main"
    key_sets: list[list[str]] = Field(default_factory=list, sa_type=Json)
    """Declared keys, as column names; more are found by the worker."""
    publish_from: str | None = None
    """The staging branch that is published on the branch: empty for none, None for what the policy says."""
    table_uuid: str = Field(index=True)
    """The Iceberg table: enrolments of several branches share it, and its index."""
    format_version: int
    location: str
    other_locations: list[str] = Field(default_factory=list, sa_type=Json)
    """Where its properties say that its files go."""
    paused: bool = False
    version: int = 1
    created_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    updated_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    deleted_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class AddressCounter(SQLModel, table=True):
    """The next free row address of an Iceberg table's index; outlives enrolments, as the index does."""

    __tablename__ = "address_counters"

    table_uuid: str = Field(primary_key=True)
    next_address: int = Field(default=0, sa_type=BigInteger)


def add_table(session: Session, table: EnrolledTable) -> None:
    """Enrol it, with a health that nothing is known of."""
    session.add(table)
    session.flush()
    session.add(TableHealth(table_id=table.id))


def get_table(session: Session, table_id: str, *, for_update: bool = False) -> EnrolledTable:
    """Raises NotFoundError."""
    row = session.get(EnrolledTable, table_id, with_for_update=FOR_UPDATE if for_update else None)
    if row is None or row.deleted_at is not None:
        raise not_enrolled(table_id)
    return row


def full_name(table: EnrolledTable, catalog: Catalog) -> str:
    return f"{catalog.name}.{table.name}"


def quoted_name(catalog: str, identifier: Iterable[str]) -> str:
    """No other table's, whatever dots are in parts of names: these are quoted as in Spark's SQL."""
    parts = (catalog, *identifier)
    return ".".join(f"`{part.replace('`', '``')}`" if set(".`") & set(part) else part for part in parts)


def audited_name(session: Session, table: EnrolledTable) -> str:
    """What was done to the table is listed by this: another catalog may have one of the same name."""
    return quoted_name(session.get_one(Catalog, table.catalog_id).name, table.identifier)


def not_enrolled(named: str) -> NotFoundError:
    """named: by an id or a name that no table has."""
    return NotFoundError(
        "table-not-enrolled",
        f"There is no enrolled table {named!r}.",
        "Look in the list of tables, or enrol it.",
    )
