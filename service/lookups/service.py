"""Who asks about which keys of which table, and where that is."""

from typing import Any

from sqlmodel import Session

from service.auth import audit
from service.auth.models import Principal
from service.catalogs.iceberg import IcebergCatalogs
from service.catalogs.service import index_warehouse
from service.db.database import is_id
from service.errors import ForbiddenError, IcestreamError
from service.lookups.metadata_locations import MetadataLocation
from service.lookups.models import LookupOptions
from service.lookups.servers import OutdatedError
from service.records.catalogs import Catalog
from service.records.tables import (
    EnrolledTable,
    audited_name,
    full_name,
    get_table,
    not_enrolled,
    quoted_name,
)
from service.settings import Settings
from service.tables.names import are_named, enrolled_tables, only_one


def asked_about(session: Session, caller: Principal, named: str) -> tuple[EnrolledTable, Catalog]:
    """The table and its catalog.

    named: by its id; or by its name, with the catalog's before it or without, as far as one table has it that
    the caller may ask about. To whoever may ask about some alone, other names say nothing of what there is.

    Raises NotFoundError, InvalidError, or ForbiddenError for a caller who may ask about other tables alone.
    """
    if is_id(named):
        table = get_table(session, named)
        found = table, session.get_one(Catalog, table.catalog_id)
        if not _may_ask(caller, full_name(*found)):
            raise _not_for(caller, audited_name(session, table))
        return found
    tables = session.exec(enrolled_tables().where(are_named([named]))).all()
    asked = [pair for pair in tables if _may_ask(caller, full_name(*pair))]
    if not asked and caller.tables is not None:
        raise _not_for(caller, named)
    if not asked:
        raise not_enrolled(named)
    return only_one(named, asked)


def record(
    session: Session, caller: Principal, catalog: Catalog, table: EnrolledTable, **counts: int
) -> None:
    """In the audit log: who asks about how many keys, and never which.

    counts: of keys, and what else the audit log tells.
    """
    audit.record(
        session, caller, "table.look_up", quoted_name(catalog.name, table.identifier), "allowed", **counts
    )


def _may_ask(caller: Principal, table: str) -> bool:
    return caller.tables is None or any(_means(pattern, table) for pattern in caller.tables)


def _not_for(caller: Principal, table: str) -> ForbiddenError:
    return ForbiddenError(
        "out-of-scope",
        f"{caller.name!r} is only for keys of {', '.join(caller.tables or ())}.",
        "Use a key that is for this table as well.",
        action="table.look_up",
        target=table,
    )


def _means(pattern: str, table: str) -> bool:
    """Only `*` stands for other text: what else is a sign to `fnmatch` may be in a name.

    Each part is looked for once, behind the one before: the first place leaves most for the next ones.
    """
    first, *parts = pattern.split("*")
    if not parts:
        return pattern == table
    *parts, last = parts
    at = len(first)
    for part in parts:
        found = table.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return table.startswith(first) and table.endswith(last) and at <= len(table) - len(last)


def metadata_location(catalogs: IcebergCatalogs, catalog: Catalog, table: EnrolledTable) -> str:
    """Where the table's newest metadata lies. Raises UnreachableError or InvalidError."""
    identifier = tuple(table.identifier)
    with catalogs.open(catalog) as source:
        found = source.metadata_locations([identifier]).get(identifier)
    return found or catalogs.load(catalog, identifier).metadata_location


def question(
    settings: Settings,
    catalog: Catalog,
    table: EnrolledTable,
    location: MetadataLocation,
    request: LookupOptions,
) -> dict[str, Any]:
    """What a lookup server is sent: all that it needs to know, but for keys in Arrow."""
    return {
        "table": {
            "metadata_location": location.metadata_location,
            "head_age_seconds": location.age_seconds,
            "branch": table.branch,
            "key_sets": table.key_sets,
            "properties": catalog.properties,
            "index": {"warehouse": index_warehouse(settings, catalog)},
            "allowed_locations": list(settings.location_roots),
            "allowed_hosts": list(settings.host_rules),
            "allowed_secrets": list(settings.secret_rules),
            "own_files": list(settings.own_files),
        },
        "question": request.model_dump(exclude={"max_staleness_seconds"}),
    }


_OF_AN_OLD_HEAD = frozenset(
    {"lookup-failed", "not-covered", "unknown-columns", "unknown-key-columns", "unknown-snapshot"}
)
"""Refusals that a newer head may not meet with: what they miss may have been added, or indexed, since."""


def may_know_too_little(error: IcestreamError) -> bool:
    """Whether a question may have failed since the table's head that it was asked with is an old one."""
    return isinstance(error, OutdatedError) or error.slug in _OF_AN_OLD_HEAD
