"""Which tables of a catalog hold equality deletes, and what readers pay: a few tables with each call, however
many there are."""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextvars import copy_context

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
from service.quantities import aged, counted
from service.reader_cost import HEADLINE, model
from service.records.catalogs import Catalog
from service.records.tables import EnrolledTable
from service.settings import Settings
from service.tables.service import check_places, miss
from trust.bounds import checked_names

_BY_NAME, _BY_COST = "identifier", "read_overhead_seconds"
candidates_page = page_request([_BY_NAME, _BY_COST], f"-{_BY_COST}", limit=20, most=100)
"""The dependency of the endpoint. What reads cost is only known of tables looked at: by that, each page is
sorted by itself."""
_AT_ONCE = 4
_TABLE_SECONDS = 20.0


def find_candidates(
    database: Database,
    settings: Settings,
    catalogs: IcebergCatalogs,
    catalog_id: str,
    page: PageRequest,
    *,
    namespace: Sequence[str] | None = None,
    only_with_deletes: bool = True,
) -> CandidatePage:
    """Look at the tables of a page. Slow: outside any transaction.

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
    is_descending = sort == f"-{_BY_NAME}"
    waiting = names[::-1] if is_descending else names
    if page.cursor is not None:
        last = read_cursor(page, sort, _read_name)
        waiting = [name for name in waiting if (name < last if is_descending else name > last)]
    chosen = waiting[: page.limit]
    items = _look_at_all(settings, catalogs, catalog, chosen, enrolled)
    if sort.endswith(_BY_COST):
        sign = -1 if sort.startswith("-") else 1
        items.sort(key=lambda one: sign * one.read_overhead_seconds)
    shown = [one for one in items if not only_with_deletes or one.equality_delete_files or one.problem]
    following = make_cursor(page, sort, chosen[-1]) if len(waiting) > page.limit else None
    return CandidatePage(items=shown, next_cursor=following, looked_at=len(chosen), tables=len(names))


def _read_name(value: object) -> Identifier:
    return TypeAdapter(tuple[str, ...]).validate_python(value, strict=False)


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
    names: list[Identifier],
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
        check_places(settings, index_warehouse(settings, catalog), table)
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
    raise InvalidError(
        "key-not-supported",
        f"{len(staying):,} of {counted(len(files), 'equality delete file')} cannot be converted: "
        f"the key ({keys}) has floating-point columns, about which engines disagree.",
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
