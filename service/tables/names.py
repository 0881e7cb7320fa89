"""Enrolled tables by their dotted names, with the catalog's before them or without."""

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, or_
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import Select

from service.errors import InvalidError
from service.records.catalogs import Catalog
from service.records.tables import EnrolledTable, full_name, not_enrolled

Pair = tuple[EnrolledTable, Catalog]


def enrolled_tables() -> Select[EnrolledTable, Catalog]:
    """All of them with their catalogs, by names and branches."""
    return (
        select(EnrolledTable, Catalog)
        .join(Catalog, col(Catalog.id) == col(EnrolledTable.catalog_id))
        .where(col(EnrolledTable.deleted_at).is_(None))
        .order_by(col(Catalog.name), col(EnrolledTable.name), col(EnrolledTable.branch))
    )


def are_named(names: Collection[str]) -> ColumnElement[bool]:
    """Whether a table of `enrolled_tables` has one of some names."""
    with_catalog = col(Catalog.name) + "." + col(EnrolledTable.name)
    return or_(col(EnrolledTable.name).in_(names), with_catalog.in_(names))


def find_table(session: Session, name: str) -> EnrolledTable:
    """The one table that has an id or a name, with the catalog's before it or without.

    Raises NotFoundError, or InvalidError if several have the name.
    """
    found = session.exec(enrolled_tables().where(or_(col(EnrolledTable.id) == name, are_named([name])))).all()
    if not found:
        raise not_enrolled(name)
    return only_one(name, found)[0]


def only_one(name: str, found: Sequence[Pair]) -> Pair:
    """found: the tables that a name means, at least one. Raises InvalidError for several."""
    if len(found) > 1:
        ids = "; ".join(f"{pair[0].id} is {full_name(*pair)}, branch {pair[0].branch}" for pair in found)
        raise InvalidError(
            "table-ambiguous", f"{len(found)} tables are named {name!r}.", f"Give an id: {ids}."
        )
    return found[0]
