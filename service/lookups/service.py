"""Who asks about which keys of which table, and where that is."""

import re
from typing import Any

from sqlmodel import Session

from service.auth import audit
from service.auth.models import Principal
from service.catalogs.iceberg import IcebergCatalogs
from service.catalogs.service import index_warehouse
from service.errors import ForbiddenError, IcestreamError
from service.lookups.metadata_locations import Head
from service.lookups.models import LookupOptions
from service.lookups.servers import OutdatedError
from service.records.catalogs import Catalog
from service.records.tables import EnrolledTable, get_table
from service.settings import Settings


def asked_about(session: Session, caller: Principal, table_id: str) -> tuple[EnrolledTable, Catalog]:
    """The table and its catalog.

    Raises NotFoundError, or ForbiddenError for a caller who may ask about other tables alone.
    """
    table = get_table(session, table_id)
    catalog = session.get_one(Catalog, table.catalog_id)
    _check_tables(caller, _full_name(catalog, table))
    return table, catalog


def record(
    session: Session, caller: Principal, catalog: Catalog, table: EnrolledTable, **counts: int
) -> None:
    """In the audit log: who asks about how many keys, and never which.

    counts: of keys, and what else the audit log tells.
    """
    audit.record(session, caller, "table.look_up", _full_name(catalog, table), "allowed", **counts)


def _full_name(catalog: Catalog, table: EnrolledTable) -> str:
    return f"{catalog.name}.{table.name}"


def _check_tables(caller: Principal, table: str) -> None:
    if caller.tables is None or any(_means(pattern, table) for pattern in caller.tables):
        return
    raise ForbiddenError(
        "out-of-scope",
        f"{caller.name!r} is only for keys of {', '.join(caller.tables)}.",
        "Use a key that is for this table as well.",
        action="table.look_up",
        target=table,
    )


def _means(pattern: str, table: str) -> bool:
    """Only `*` stands for other text: what else is a sign to `fnmatch` may be in a name."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), table, re.DOTALL) is not None


def metadata_location(catalogs: IcebergCatalogs, catalog: Catalog, table: EnrolledTable) -> str:
    """Where the table's newest metadata lies. Raises UnreachableError or InvalidError."""
    identifier = tuple(table.identifier)
    with catalogs.open(catalog) as source:
        found = source.metadata_locations([identifier]).get(identifier)
    return found or catalogs.load(catalog, identifier).metadata_location


def question(
    settings: Settings, catalog: Catalog, table: EnrolledTable, head: Head, request: LookupOptions
) -> dict[str, Any]:
    """What a lookup server is sent: all that it needs to know, but for keys in Arrow."""
    return {
        "table": {
            "metadata_location": head.metadata_location,
            "head_age_seconds": head.age_seconds,
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
