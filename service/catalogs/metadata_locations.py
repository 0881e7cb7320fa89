"""Where the metadata of many tables lies, asked as cheaply as each type of catalog can tell it.

Polls compare this with what they saw last and read only the tables that moved.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import METADATA_LOCATION
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from sqlalchemy import select

from service.catalogs.clients import GuardedRestCatalog
from service.catalogs.sqlite import read_again_if_changed
from service.records.catalogs import CatalogType

if TYPE_CHECKING:
    from pyiceberg.catalog.glue import GlueCatalog
    from pyiceberg.catalog.hive import HiveCatalog

Identifier = tuple[str, ...]
MetadataLocations = dict[Identifier, str]
"""Tables that are not there, or whose location is not known, are left out."""

AT_ONCE = {
    CatalogType.SQL: 1_000_000,
    CatalogType.GLUE: 10_000,
    CatalogType.HIVE: 500,
    CatalogType.REST: 25,
    CatalogType.HADOOP: 25,
}
"""Of how many tables to ask in one go, so that it takes a second or so even where each costs a call."""
TOLD_TOGETHER = frozenset((CatalogType.SQL,))
"""Where one answer tells of all tables, of however few is asked."""
TOLD_SINGLY = frozenset((CatalogType.REST, CatalogType.HADOOP))
"""Where each table costs a request of its own."""
_GLUE_CALLS = 10
"""Of fewer tables of a database, each is asked for; of more, the database is listed, 100 at a time."""


def metadata_locations_reader(
    kind: CatalogType, catalog: Any
) -> Callable[[Sequence[Identifier]], MetadataLocations]:
    """A function that asks an open catalog about tables; it raises what PyIceberg raises."""
    if kind is CatalogType.REST:
        return _RestLocations(catalog).read
    if kind is CatalogType.SQL:
        return partial(_sql_locations, catalog)
    return partial(_hive_locations if kind is CatalogType.HIVE else _glue_locations, catalog)


@read_again_if_changed
def _sql_locations(catalog: SqlCatalog, tables: Sequence[Identifier]) -> MetadataLocations:
    """One query for all tables of the catalog."""
    query = select(
        IcebergTables.table_namespace, IcebergTables.table_name, IcebergTables.metadata_location
    ).where(IcebergTables.catalog_name == catalog.name)
    if (of_tables := catalog._iceberg_type_filter()) is not None:
        query = query.where(of_tables)
    with catalog.engine.connect() as connection:
        # At once: fetched one by one, each row costs more than all the rest.
        rows = connection.execute(query).all()
    found = {(namespace, name): location for namespace, name, location in rows if location}
    # Such a catalog knows namespaces with dots only, in which parts with dots can't be told from others.
    keys = {table: (".".join(table[:-1]), table[-1]) for table in tables}
    return {table: found[key] for table, key in keys.items() if key in found}


class _RestLocations:
    """One conditional request for each table: 304 without a body where the server knows ETags.

    Others answer with the metadata, of the snapshots only those that branches and tags name.
    """

    def __init__(self, catalog: GuardedRestCatalog) -> None:
        self._catalog = catalog
        self._seen: dict[Identifier, tuple[str, str]] = {}
        """ETag and metadata location."""
        self._knows_etags = True

    def read(self, tables: Sequence[Identifier]) -> MetadataLocations:
        seen = {table: self._seen[table] for table in tables if table in self._seen}
        found: MetadataLocations = {}
        if self._knows_etags:
            unchanged = self._catalog.unchanged({table: tag for table, (tag, _) in seen.items()})
            found = {table: seen[table][1] for table in unchanged}
        for table in tables:
            if table not in found and (location := self._location(table)) is not None:
                found[table] = location
        return found

    def _location(self, table: Identifier) -> str | None:
        tag, location = self._seen.get(table, (None, None))
        try:
            answer = self._catalog.load_if_changed(table, tag)
        except (NoSuchTableError, NoSuchNamespaceError):
            self._seen.pop(table, None)
            return None
        if answer.status_code != HTTPStatus.NOT_MODIFIED:
            new_tag = answer.headers.get("ETag")
            self._knows_etags &= new_tag is None or new_tag != tag
            location = answer.json().get("metadata-location")
            if location and new_tag:
                self._seen[table] = new_tag, location
        return location


def _hive_locations(catalog: "HiveCatalog", tables: Sequence[Identifier]) -> MetadataLocations:
    """One call for each database."""
    from thrift.Thrift import TApplicationException

    found: MetadataLocations = {}
    with catalog._client as client:
        for database, names in _by_database(tables).items():
            try:
                answer = client.get_table_objects_by_name(database, sorted(names))
            except TApplicationException as error:
                if error.type == TApplicationException.MISSING_RESULT:
                    continue  # the database is not there: the client knows no exceptions of this call
                raise
            found |= _locations_of(names, ((one.tableName, one.parameters) for one in answer))
    return found


def _glue_locations(catalog: "GlueCatalog", tables: Sequence[Identifier]) -> MetadataLocations:
    glue = catalog.glue
    found: MetadataLocations = {}
    for database, names in _by_database(tables).items():
        listed = []
        if len(names) > _GLUE_CALLS:
            pages = glue.get_paginator("get_tables").paginate(DatabaseName=database)
            try:
                listed = [one for page in pages for one in page["TableList"]]
            except glue.exceptions.EntityNotFoundException:
                continue
        else:
            for name in names:
                try:
                    listed.append(glue.get_table(DatabaseName=database, Name=name)["Table"])
                except glue.exceptions.EntityNotFoundException:
                    continue
        found |= _locations_of(names, ((one["Name"], one.get("Parameters")) for one in listed))
    return found


def _by_database(tables: Sequence[Identifier]) -> dict[str, dict[str, Identifier]]:
    """Database -> name -> table; these catalogs know lower case only."""
    found: dict[str, dict[str, Identifier]] = defaultdict(dict)
    for table in tables:
        found[".".join(table[:-1]).lower()][table[-1].lower()] = table
    return found


def _locations_of(
    names: dict[str, Identifier], answer: Iterable[tuple[str, dict[str, str] | None]]
) -> MetadataLocations:
    locations = {name: (parameters or {}).get(METADATA_LOCATION) for name, parameters in answer}
    return {names[name]: location for name, location in locations.items() if location and name in names}
