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
Heads = dict[Identifier, str]
"""Tables that are not there, or whose head is not known, are left out."""

AT_ONCE = {
    CatalogType.SQL: 10_000,
    CatalogType.GLUE: 10_000,
    CatalogType.HIVE: 500,
    CatalogType.REST: 25,
    CatalogType.HADOOP: 25,
}
"""Of how many tables to ask in one go, so that it takes a second or so even where each costs a call."""
_GLUE_CALLS = 10
"""Of fewer tables of a database, each is asked for; of more, the database is listed, 100 at a time."""


def heads_reader(kind: CatalogType, catalog: Any) -> Callable[[Sequence[Identifier]], Heads]:
    """A function from tables of an open catalog to their heads; it raises what PyIceberg raises."""
    if kind is CatalogType.REST:
        return _RestHeads(catalog).read
    if kind is CatalogType.SQL:
        return partial(_sql_heads, catalog)
    return partial(_hive_heads if kind is CatalogType.HIVE else _glue_heads, catalog)


@read_again_if_changed
def _sql_heads(catalog: SqlCatalog, tables: Sequence[Identifier]) -> Heads:
    """One query for all tables of the catalog."""
    query = select(
        IcebergTables.table_namespace, IcebergTables.table_name, IcebergTables.metadata_location
    ).where(IcebergTables.catalog_name == catalog.name)
    with catalog.engine.connect() as connection:
        found = {(namespace, name): head for namespace, name, head in connection.execute(query) if head}
    # Such a catalog knows namespaces with dots only, in which parts with dots can't be told from others.
    keys = {table: (".".join(table[:-1]), table[-1]) for table in tables}
    return {table: found[key] for table, key in keys.items() if key in found}


class _RestHeads:
    """One conditional request for each table: 304 without a body where the server knows ETags.

    Others answer with the metadata, of the snapshots only those that branches and tags name.
    """

    def __init__(self, catalog: GuardedRestCatalog) -> None:
        self._catalog = catalog
        self._seen: dict[Identifier, tuple[str, str]] = {}
        """ETag and head."""

    def read(self, tables: Sequence[Identifier]) -> Heads:
        found: Heads = {}
        for table in tables:
            tag, head = self._seen.get(table, (None, None))
            try:
                answer = self._catalog.load_if_changed(table, tag)
            except (NoSuchTableError, NoSuchNamespaceError):
                self._seen.pop(table, None)
                continue
            if answer.status_code != HTTPStatus.NOT_MODIFIED:
                head = answer.json().get("metadata-location")
                if head and (tag := answer.headers.get("ETag")):
                    self._seen[table] = tag, head
            if head:
                found[table] = head
        return found


def _hive_heads(catalog: "HiveCatalog", tables: Sequence[Identifier]) -> Heads:
    """One call for each database."""
    from thrift.Thrift import TApplicationException

    found: Heads = {}
    with catalog._client as client:
        for database, names in _by_database(tables).items():
            try:
                answer = client.get_table_objects_by_name(database, sorted(names))
            except TApplicationException as error:
                if error.type == TApplicationException.MISSING_RESULT:
                    continue  # the database is not there: the client knows no exceptions of this call
                raise
            found |= _heads_of(names, ((one.tableName, one.parameters) for one in answer))
    return found


def _glue_heads(catalog: "GlueCatalog", tables: Sequence[Identifier]) -> Heads:
    glue = catalog.glue
    found: Heads = {}
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
        found |= _heads_of(names, ((one["Name"], one.get("Parameters")) for one in listed))
    return found


def _by_database(tables: Sequence[Identifier]) -> dict[str, dict[str, Identifier]]:
    """Database -> name -> table; these catalogs know lower case only."""
    found: dict[str, dict[str, Identifier]] = defaultdict(dict)
    for table in tables:
        found[".".join(table[:-1]).lower()][table[-1].lower()] = table
    return found


def _heads_of(names: dict[str, Identifier], answer: Iterable[tuple[str, dict[str, str] | None]]) -> Heads:
    heads = {name: (parameters or {}).get(METADATA_LOCATION) for name, parameters in answer}
    return {names[name]: head for name, head in heads.items() if head and name in names}
