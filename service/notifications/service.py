"""Take down which tables are said to have changed; the replica that polls looks at them.

Whoever may notify can make the service look at a table, and nothing else: what is told is compared with what
is enrolled, and never opened.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from sqlalchemy import bindparam, insert
from sqlmodel import Session, col, select

from service.db.database import utc_now
from service.notifications.models import CatalogNotification, Notified
from service.records.catalogs import Catalog
from service.records.health import TableHealth
from service.records.notifications import Notification
from service.records.tables import EnrolledTable
from trust.locations import AmbiguousLocationError, Location, normalize_location, parse_location

_METADATA_FILE = ".metadata.json"
_AT_ONCE = 500
"""Values in one query: SQLite takes some thousands at most."""
_PARENTS = 4
"""How far above a metadata file the table's location may be: two is usual."""
_ENROLLED = {
    column: select(compared, EnrolledTable.id).where(
        EnrolledTable.catalog_id == bindparam("catalog_id"),
        col(EnrolledTable.deleted_at).is_(None),
        compared.in_(bindparam("values", expanding=True)),
    )
    for column, compared in (("name", col(EnrolledTable.name)), ("location", col(EnrolledTable.location)))
}
"""Made once: putting a statement together takes longer than most take to run."""
_SEEN = select(TableHealth.table_id, TableHealth.last_poll).where(
    col(TableHealth.table_id).in_(bindparam("table_ids", expanding=True))
)
_NOTE = insert(Notification)
_SPELLINGS = {"s3": ("s3", "s3a", "s3n"), "gs": ("gs", "gcs"), "abfs": ("abfs", "abfss")}
"""Of what one place is enrolled as."""


def notify_of_table(session: Session, table: EnrolledTable) -> Notified:
    session.add(Notification(table_id=table.id))
    return Notified(notified=1, unknown=0)


def notify_of_tables(session: Session, catalog: Catalog, told: CatalogNotification) -> Notified:
    """Of names, and of places where metadata files were written."""
    # As commands take them, too: a namespace may have the catalog's name.
    names = {name: {name, re.sub(f"^{re.escape(catalog.name)}[./]", "", name)} for name in told.tables}
    by_name = _enrolled(session, catalog, "name", {one for each in names.values() for one in each})
    parents = {place: set(_parents(place)) for place in told.locations}
    by_place = _enrolled(session, catalog, "location", {one for each in parents.values() for one in each})
    known = sum(not names[name].isdisjoint(by_name) for name in told.tables)
    known += sum(not each.isdisjoint(by_place) for each in parents.values())
    files: dict[str, set[str]] = {}
    for place, folders in parents.items():
        for table_id in {one for folder in folders for one in by_place.get(folder, ())}:
            files.setdefault(table_id, set()).add(normalize_location(place))
    found = {table_id for ids in by_name.values() for table_id in ids} | _not_seen(session, files)
    if found:
        now = utc_now()
        session.connection().execute(_NOTE, [{"table_id": each, "at": now} for each in sorted(found)])
    return Notified(notified=len(found), unknown=len(told.tables) + len(told.locations) - known)


def _enrolled(session: Session, catalog: Catalog, column: str, values: Iterable[str]) -> dict[str, list[str]]:
    """Ids of a catalog's tables, by those values of a column that they have."""
    found: dict[str, list[str]] = {}
    wanted = sorted(set(values))
    for start in range(0, len(wanted), _AT_ONCE):
        asked = {"catalog_id": catalog.id, "values": wanted[start : start + _AT_ONCE]}
        for value, table_id in session.connection().execute(_ENROLLED[column], asked):
            found.setdefault(value, []).append(table_id)
    return found


def _not_seen(session: Session, files: Mapping[str, set[str]]) -> set[str]:
    """The tables, by their ids, whose last look found another metadata file than those that were written: an
    event may come when the commit has been seen, as after a job of the service's own."""
    if not files:
        return set()
    found = session.connection().execute(_SEEN, {"table_ids": list(files)})
    last = {table_id: polled["metadata_location"] for table_id, polled in found if polled is not None}
    return {
        table_id
        for table_id, written in files.items()
        if last.get(table_id) is None or written != {normalize_location(last[table_id])}
    }


def _parents(place: str) -> Iterator[str]:
    """Where the table of a metadata file may lie, as it may be spelled."""
    try:
        location = parse_location(place)
    except AmbiguousLocationError:
        return
    # A commit writes one; whatever else is written may never be committed.
    if not location.path.removesuffix(".gz").endswith(_METADATA_FILE):
        return
    path = location.path
    for _ in range(_PARENTS):
        if path := path.rpartition("/")[0]:
            yield from _spelled(location, path)


def _spelled(location: Location, path: str) -> Iterator[str]:
    starts = [
        f"{scheme}://{location.authority}" for scheme in _SPELLINGS.get(location.store, [location.scheme])
    ]
    if location.is_local:
        starts = ["", "file:", "file://"]
    for start in starts:
        yield from (f"{start}{path}", f"{start}{path}/")
