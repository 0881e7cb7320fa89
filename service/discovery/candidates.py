"""Which tables of a catalog hold equality deletes, and what readers pay.

What a read costs is known of a table only once it was looked at. So a call looks at as many as it has time
for, which are all of most catalogs, and ranks these; of others, the pages that follow rank the next ones.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextvars import copy_context
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from pydantic import TypeAdapter
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.schema import index_by_id
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, FloatType
from sqlmodel import col, select

from service.catalogs.iceberg import IcebergCatalogs, unreachable
from service.catalogs.measure import EqualityDelete, ManifestCache, measure
from service.catalogs.metadata_locations import Identifier
from service.catalogs.service import get_catalog, index_warehouse
from service.db.database import Database, utc_now
from service.discovery.models import Candidate, CandidatePage
from service.errors import IcestreamError, InvalidError
from service.http.paging import PageRequest, make_cursor, page_request, read_cursor
from service.quantities import aged
from service.reader_cost import HEADLINE, model
from service.records.catalogs import Catalog
from service.records.tables import EnrolledTable
from service.settings import Settings
from service.tables.enrolment import check_places, miss
from stores.table_metadata import named_places
from telemetry.plurals import counted
from trust.bounds import checked_names

_BY_NAME, _BY_COST = "identifier", "read_overhead_seconds"
candidates_page = page_request([_BY_NAME, _BY_COST], f"-{_BY_COST}", limit=20, most=100)
"""The dependency of the endpoint."""
_AT_ONCE = 4
_ROUND = 20
"""Tables are looked at between two looks at the time."""
_RANKING_SECONDS = 8.0
"""So long a call looks at tables before it ranks them."""
_KEPT_SECONDS = 300.0
"""So long what was seen is good for the pages that follow."""
_KEPT = 10_000
_TABLE_SECONDS = 20.0
_LONGEST_KEY = 500
"""Characters, in a sentence about it."""


class Looks:
    """What was seen of tables lately, for the pages that follow the first; thread-safe."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, Identifier], tuple[float, Candidate]] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, catalog_id: str, names: Sequence[Identifier], seen: Sequence[Candidate]) -> None:
        with self._lock:
            now = time.monotonic()
            for name, one in zip(names, seen, strict=True):
                self._seen[catalog_id, name] = (now, one)
                self._seen.move_to_end((catalog_id, name))
            while self._seen and (len(self._seen) > _KEPT or self._oldest_at() <= now - _KEPT_SECONDS):
                self._seen.popitem(last=False)

    def _oldest_at(self) -> float:
        return next(iter(self._seen.values()))[0]

    def of(self, catalog_id: str, name: Identifier) -> Candidate | None:
        with self._lock:
            at, one = self._seen.get((catalog_id, name), (0.0, None))
        return one if time.monotonic() - at < _KEPT_SECONDS else None


def _get_looks(request: Request) -> Looks:
    looks: Looks = request.app.state.looks
    return looks


RecentLooks = Annotated[Looks, Depends(_get_looks)]


@dataclass(frozen=True)
class _Place:
    """Where a ranking goes on: of the tables after one name, up to another, behind what was shown last."""

    after: Identifier | None = None
    until: Identifier | None = None
    cost: float | None = None
    name: Identifier = ()

    def values(self) -> tuple[object, ...]:
        return self.after, self.until, self.cost, self.name


def find_candidates(
    database: Database,
    settings: Settings,
    catalogs: IcebergCatalogs,
    looks: Looks,
    catalog_id: str,
    page: PageRequest,
    *,
    namespace: Sequence[str] | None = None,
    only_with_deletes: bool = True,
) -> CandidatePage:
    """Look at the tables of a page, or at all that it ranks. Slow: outside any transaction.

    Raises NotFoundError, UnreachableError, or InvalidError for a namespace that is not there and for a cursor
    that was made with another sort or other filters, or by nobody.
    """
    with database.read() as session:
        catalog = get_catalog(session, catalog_id)
        rows = session.exec(
            select(EnrolledTable).where(
                EnrolledTable.catalog_id == catalog.id,
                EnrolledTable.branch == "main",
                col(EnrolledTable.deleted_at).is_(None),
            )
        ).all()
    enrolled = {tuple(row.identifier): row.id for row in rows}
    names = list_names(catalogs, catalog, tuple(namespace) if namespace else None)
    sort = page.sort or f"-{_BY_COST}"

    def look(chosen: Sequence[Identifier]) -> list[Candidate]:
        seen = _look_at_all(settings, catalogs, catalog, chosen, enrolled)
        looks.keep(catalog.id, chosen, seen)
        return seen

    def is_shown(one: Candidate) -> bool:
        return not only_with_deletes or bool(one.equality_delete_files or one.problem)

    if sort.endswith(_BY_COST):

        def known(name: Identifier) -> Candidate | None:
            one = looks.of(catalog.id, name)
            return one and one.model_copy(update={"table_id": enrolled.get(name)})

        return _rank(names, page, sort, look, known, is_shown)
    is_descending = sort == f"-{_BY_NAME}"
    waiting = names[::-1] if is_descending else names
    if page.cursor is not None:
        last = read_cursor(page, sort, _read_name)
        waiting = [name for name in waiting if (name < last if is_descending else name > last)]
    chosen = waiting[: page.limit]
    shown = list(filter(is_shown, look(chosen)))
    following = make_cursor(page, sort, chosen[-1]) if len(waiting) > page.limit else None
    looked_at = len(names) - len(waiting) + len(chosen)
    return CandidatePage(
        items=shown, next_cursor=following, looked_at=looked_at, tables=len(names), ranked_anew=False
    )


def _rank(
    names: list[Identifier],
    page: PageRequest,
    sort: str,
    look: Callable[[Sequence[Identifier]], list[Candidate]],
    known: Callable[[Identifier], Candidate | None],
    is_shown: Callable[[Candidate], bool],
) -> CandidatePage:
    """A page of the tables that were looked at in the time that there is, by what their readers pay."""
    place = read_cursor(page, sort, _read_place) if page.cursor is not None else _Place()
    waiting = [name for name in names if place.after is None or name > place.after]
    found: dict[Identifier, Candidate] = {}

    def look_on(chosen: Sequence[Identifier], at_least: int) -> Sequence[Identifier]:
        """As long as there is time; what is left then."""
        begun_at, done = time.monotonic(), 0
        while done < len(chosen) and (done < at_least or time.monotonic() - begun_at < _RANKING_SECONDS):
            part = chosen[done : done + _ROUND]
            found.update(zip(part, look(part), strict=True))
            done += len(part)
        return chosen[done:]

    until = place.until
    if until is None:
        look_on(waiting, page.limit)
        left: Sequence[Identifier] = ()
    else:
        chosen = [name for name in waiting if name <= until]
        found |= {name: one for name in chosen if (one := known(name)) is not None}
        # What was seen may be forgotten: it was long ago, or another replica saw it.
        left = look_on([name for name in chosen if name not in found], _ROUND)
        if left:
            found = {name: one for name, one in found.items() if name < left[0]}
            until = max(found)
    sign = -1 if sort.startswith("-") else 1
    ranked = sorted((sign * one.read_overhead_seconds, name) for name, one in found.items() if is_shown(one))
    if place.cost is not None:
        ranked = [one for one in ranked if one > (place.cost, place.name)]
    shown = ranked[: page.limit]
    # Tables of the page before may have been dropped since.
    until = until or max(found, default=place.after)
    looked_at = sum(until is not None and name <= until for name in names)
    following = None
    if len(ranked) > page.limit:
        following = _Place(place.after, until, *shown[-1])
    elif looked_at < len(names):
        following = _Place(until)
    return CandidatePage(
        items=[found[name] for _, name in shown],
        next_cursor=make_cursor(page, sort, *following.values()) if following else None,
        looked_at=looked_at,
        tables=len(names),
        ranked_anew=bool(left),
    )


def _read_name(value: object) -> Identifier:
    return TypeAdapter(tuple[str, ...]).validate_python(value, strict=False)


def _read_place(*values: object) -> _Place:
    after, until, cost, name = values
    return _Place(
        None if after is None else _read_name(after),
        None if until is None else _read_name(until),
        None if cost is None else TypeAdapter(float).validate_python(cost, strict=False),
        _read_name(name),
    )


def list_names(
    catalogs: IcebergCatalogs, catalog: Catalog, namespace: Identifier | None = None
) -> list[Identifier]:
    """The identifiers of all tables of a catalog, or of one namespace, in order."""
    try:
        with catalogs.open(catalog) as source:
            namespaces = source.namespaces() if namespace is None else [namespace]
            listed = (name for each in namespaces for name in source.tables(each))
            return sorted(set(checked_names(listed, "tables")))
    except NoSuchNamespaceError as error:
        raise InvalidError(
            "namespace-not-found", f"Catalog {catalog.name!r} has no namespace {'.'.join(namespace or ())!r}."
        ) from error


def _look_at_all(
    settings: Settings,
    catalogs: IcebergCatalogs,
    catalog: Catalog,
    names: Sequence[Identifier],
    enrolled: dict[Identifier, str],
) -> list[Candidate]:
    """A table that does not answer in time holds up no other one."""
    threads = ThreadPoolExecutor(_AT_ONCE, "candidates")
    try:
        futures: list[tuple[Identifier, Future[Candidate]]] = [
            (
                name,
                # Within the budget of the request.
                threads.submit(
                    copy_context().run, _look_at, settings, catalogs, catalog, name, enrolled.get(name)
                ),
            )
            for name in names
        ]
        deadline = time.monotonic() + _TABLE_SECONDS * (1 + len(names) / _AT_ONCE)
        found = []
        for name, future in futures:
            try:
                found.append(future.result(max(deadline - time.monotonic(), 0)))
            except FutureTimeoutError:
                late = unreachable(catalog, TimeoutError("the table's metadata did not come in time"))
                found.append(_problem(name, enrolled.get(name), late))
        return found
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _look_at(
    settings: Settings, catalogs: IcebergCatalogs, catalog: Catalog, name: Identifier, table_id: str | None
) -> Candidate:
    try:
        table = catalogs.load(catalog, name)
        with catalogs.open(catalog), catalogs.reading(catalog, name):
            found = measure(table, "main", ManifestCache(), set())
    except (NoSuchTableError, IcestreamError) as error:
        return _problem(name, table_id, error)
    now = utc_now()
    files = found.equality_deletes
    oldest = min((file.committed_at for file in files), default=None)
    shape = found.shape
    read_seconds = model().seconds(shape, *HEADLINE)
    fresh = shape.fresh(None if found.is_partitioned else 1, found.target_file_bytes)
    problem = None
    staying = _with_float_keys(table, files)
    try:
        warehouse, others = index_warehouse(settings, catalog), named_places(table.properties)
        check_places(settings, warehouse, table.location(), others)
        _check_keys(table, files, staying)
    except InvalidError as error:
        problem = miss(name, error)
    summary = "It holds no equality deletes."
    if oldest is not None:
        age = aged((now - oldest).total_seconds())
        summary = f"It holds equality deletes: {counted(len(files), 'file')}, the oldest {age} old."
    if staying:
        some = f"{len(staying):,} of the files cannot be converted."
        summary += " They cannot be converted." if len(staying) == len(files) else f" {some}"
    return Candidate(
        identifier=list(name),
        name=".".join(name),
        summary=summary,
        table_id=table_id,
        format_version=table.metadata.format_version,
        equality_delete_files=len(files),
        equality_deletes=sum(file.record_count for file in files),
        equality_delete_bytes=sum(file.size_bytes for file in files),
        data_files=found.data_files,
        read_seconds=read_seconds,
        read_overhead_seconds=read_seconds - model().seconds(fresh, *HEADLINE),
        oldest_at=oldest,
        key_sets=_key_sets(table, files),
        problem=problem,
    )


def _key_sets(table: Table, files: Sequence[EqualityDelete]) -> list[list[str]]:
    """Columns that were dropped since are shown by their field ids."""
    ids = sorted({file.equality_field_ids for file in files})
    schema = table.schema()
    return [[schema.find_column_name(one) or f"field {one}" for one in key_set] for key_set in ids]


def _with_float_keys(table: Table, files: Sequence[EqualityDelete]) -> Sequence[EqualityDelete]:
    floats = {
        one
        for schema in table.schemas().values()
        for one, field in index_by_id(schema).items()
        if isinstance(field.field_type, FloatType | DoubleType)
    }
    return [file for file in files if floats.intersection(file.equality_field_ids)]


def _check_keys(table: Table, files: Sequence[EqualityDelete], staying: Sequence[EqualityDelete]) -> None:
    """Raises InvalidError if there are files that stay, whatever is converted."""
    if not staying:
        return
    keys = "; ".join(", ".join(key_set) for key_set in _key_sets(table, staying))
    some = keys if len(keys) <= _LONGEST_KEY else f"{keys[:_LONGEST_KEY]}…"
    raise InvalidError(
        "key-not-supported",
        f"{len(staying):,} of {counted(len(files), 'equality delete file')} cannot be converted: "
        f"the key ({some}) has floating-point columns, about which engines disagree.",
        "Give the writer a key without floating-point columns. "
        + (
            "Until then nothing of this table can be converted."
            if len(staying) == len(files)
            else "What it has written with this key stays in the table; the other files would be converted."
        ),
    )


def _problem(name: Identifier, table_id: str | None, error: Exception) -> Candidate:
    return Candidate(
        identifier=list(name),
        name=".".join(name),
        summary="It could not be looked at.",
        table_id=table_id,
        format_version=None,
        equality_delete_files=0,
        equality_deletes=0,
        equality_delete_bytes=0,
        data_files=0,
        read_seconds=0,
        read_overhead_seconds=0,
        oldest_at=None,
        key_sets=[],
        problem=miss(name, error),
    )
