"""Register, change, check and remove catalogs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from sqlalchemy import ColumnElement, delete, func
from sqlmodel import Session, and_, col, or_, select
from sqlmodel.sql.expression import SelectOfScalar

from service.auth.models import SYSTEM, Principal
from service.auth.service import authorize
from service.catalogs import iceberg
from service.catalogs.allowlists import check_location, check_record
from service.catalogs.check import CatalogProbe
from service.catalogs.iceberg import IcebergCatalogs
from service.catalogs.models import CatalogCheck, CatalogPatch, CatalogRequest, CatalogView
from service.catalogs.secrets import check_properties, mask_secrets
from service.db import private_files
from service.db.database import FOR_UPDATE, utc_now
from service.errors import ConflictError, InvalidError, NotFoundError, UnreachableError
from service.http.etags import check_version, store_change
from service.http.paging import Page, PageRequest, Sorting, read_page
from service.records.api_keys import Role
from service.records.catalogs import Catalog, CatalogHealth, CatalogStatus, CatalogType
from service.records.health import HealthStatus, TableHealth
from service.records.jobs import Job, JobKind, JobStatus
from service.records.notifications import NotificationSender
from service.records.patterns import EnrollmentPattern
from service.records.tables import EnrolledTable
from service.settings import Settings
from trust.locations import can_hold_index, is_table_bucket, is_under

_REQUIRED: dict[CatalogType, tuple[str, ...]] = {
    CatalogType.SQL: ("uri", "warehouse"),
    CatalogType.REST: ("uri",),
    CatalogType.HIVE: ("uri",),
    CatalogType.GLUE: (),
    CatalogType.HADOOP: ("warehouse",),
}
EMBEDDED = "embedded"
"""The catalog that comes with `icestream up`."""
SORTING = Sorting(
    {
        "name": Catalog.name,
        "type": Catalog.type,
        "created_at": Catalog.created_at,
        "updated_at": Catalog.updated_at,
    },
    key=Catalog.id,
    default="name",
)


def create_catalog(
    session: Session, settings: Settings, principal: Principal, request: CatalogRequest
) -> CatalogView:
    """Register a catalog; it need not be reachable yet."""
    authorize(session, principal, Role.ADMIN, "catalog.create", request.name)
    check_catalog(settings, request.type, request.properties, request.index_warehouse)
    _check_name_is_free(session, request.name)
    row = Catalog(
        name=request.name,
        type=request.type.value,
        properties=request.properties,
        index_warehouse=request.index_warehouse,
        max_running_jobs=request.max_running_jobs,
    )
    session.add(row)
    session.flush()
    return view(session, row)


def list_catalogs(
    session: Session,
    page: PageRequest,
    *,
    search: str | None = None,
    kind: CatalogType | None = None,
    paused: bool | None = None,
    status: CatalogStatus | None = None,
) -> Page[CatalogView]:
    """Registered catalogs; `search` is a part of the name."""
    query = select(Catalog).where(*_chosen(search, kind, paused))
    if status is not None:
        others = [one.value for one in CatalogStatus if one is not status]
        stored = select(CatalogHealth.catalog_id)
        # One that was never asked has no row.
        is_unknown = col(Catalog.id).not_in(stored.where(col(CatalogHealth.status).in_(others)))
        is_status = col(Catalog.id).in_(stored.where(CatalogHealth.status == status.value))
        query = query.where(is_unknown if status is CatalogStatus.UNKNOWN else is_status)
    return read_page(session, query, page, SORTING, partial(_views, session))


def list_names(session: Session, *, search: str | None = None) -> list[str]:
    """Of registered catalogs, in order: what a form offers."""
    registered = select(Catalog.name).where(*_chosen(search, None, None))
    return list(session.exec(registered.order_by(col(Catalog.name))))


def list_registrations(session: Session) -> list[tuple[datetime, str]]:
    """When each of the registered catalogs was, and its name: the first one first."""
    registered = select(Catalog.created_at, Catalog.name).where(*_chosen(None, None, None))
    return list(session.exec(registered.order_by(col(Catalog.created_at))))


def _chosen(search: str | None, kind: CatalogType | None, paused: bool | None) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [col(Catalog.deleted_at).is_(None)]
    if search:
        conditions.append(col(Catalog.name).icontains(search, autoescape=True))
    if kind is not None:
        conditions.append(col(Catalog.type) == kind.value)
    if paused is not None:
        conditions.append(col(Catalog.paused) == paused)
    return conditions


def count_catalogs(
    session: Session,
    *,
    search: str | None = None,
    kind: CatalogType | None = None,
    paused: bool | None = None,
) -> Counter[CatalogStatus]:
    """How many catalogs `list_catalogs` would list of each status."""
    status = func.coalesce(CatalogHealth.status, CatalogStatus.UNKNOWN.value)
    counted = session.exec(
        select(status, func.count())
        .select_from(Catalog)
        .join(CatalogHealth, col(CatalogHealth.catalog_id) == col(Catalog.id), isouter=True)
        .where(*_chosen(search, kind, paused))
        .group_by(status)
    )
    return Counter({CatalogStatus(word): number for word, number in counted})


class Cost(NamedTuple):
    """What asking all catalogs costs."""

    requests: int
    """So far, of those that are registered no more too."""
    latency_seconds: float
    """Lately, of the slowest one that answers; or 0."""


def cost_of_catalogs(session: Session) -> Cost:
    requests = session.exec(select(func.sum(CatalogHealth.requests))).one()
    slowest = session.exec(
        select(func.max(CatalogHealth.latency_seconds))
        .join(Catalog, col(Catalog.id) == col(CatalogHealth.catalog_id))
        .where(col(Catalog.deleted_at).is_(None), CatalogHealth.status == CatalogStatus.REACHABLE.value)
    ).one()
    return Cost(int(requests or 0), slowest or 0.0)


def list_unreachable(session: Session) -> list[tuple[Catalog, CatalogHealth]]:
    """Registered catalogs that do not answer, by name."""
    query = (
        select(Catalog, CatalogHealth)
        .join(CatalogHealth, col(CatalogHealth.catalog_id) == col(Catalog.id))
        .where(col(Catalog.deleted_at).is_(None), CatalogHealth.status == CatalogStatus.UNREACHABLE.value)
        .order_by(col(Catalog.name))
    )
    return list(session.exec(query))


def get_catalog(session: Session, catalog_id: str, *, for_update: bool = False) -> Catalog:
    """By id or name. Raises NotFoundError."""
    row = find_catalog(session, catalog_id, for_update=for_update)
    if row is None:
        raise NotFoundError(
            "catalog-not-found", f"There is no catalog {catalog_id!r}.", "Look in the list of catalogs."
        )
    return row


def find_catalog(session: Session, name_or_id: str, *, for_update: bool = False) -> Catalog | None:
    query = select(Catalog).where(
        col(Catalog.deleted_at).is_(None), or_(Catalog.id == name_or_id, Catalog.name == name_or_id)
    )
    if for_update:
        query = query.with_for_update(key_share=FOR_UPDATE["key_share"]).execution_options(
            populate_existing=True
        )
    return session.exec(query).first()


def update_catalog(
    session: Session,
    settings: Settings,
    principal: Principal,
    catalog_id: str,
    patch: CatalogPatch,
    if_match: str,
) -> CatalogView:
    """Change a catalog that nobody changed meanwhile."""
    row = get_catalog(session, catalog_id, for_update=True)
    # What is done to tables is written with the catalog's name: so is what that becomes.
    said: dict[str, object] = {"fields": sorted(patch.model_fields_set)}
    said |= {"name": patch.name} if patch.name else {}
    authorize(session, principal, Role.ADMIN, "catalog.update", row.name, **said)
    check_version(if_match, row.version)
    properties = dict(row.properties)
    for key, value in (patch.properties or {}).items():
        if value is None:
            properties.pop(key, None)
        else:
            properties[key] = value
    place = patch.index_warehouse if "index_warehouse" in patch.model_fields_set else row.index_warehouse
    check_catalog(settings, CatalogType(row.type), properties, place)
    new_warehouse = place or settings.index_warehouse
    for table in session.exec(_tables_of(row.id)):
        check_index_place(new_warehouse, table.location)
    if new_warehouse.rstrip("/") != index_warehouse(settings, row).rstrip("/"):
        _check_no_index_is_left(session, row)
    if patch.name is not None and patch.name != row.name:
        _check_name_is_free(session, patch.name)
        # The name was also the name inside a sql database: keep pointing at the same tables.
        if row.type == CatalogType.SQL.value and "catalog_name" not in properties:
            properties["catalog_name"] = row.name
        row.name = patch.name
    row.properties, row.index_warehouse = properties, place
    if "max_running_jobs" in patch.model_fields_set:
        row.max_running_jobs = patch.max_running_jobs
    store_change(session, row)
    return view(session, row)


def pause_catalog(session: Session, principal: Principal, catalog_id: str, *, paused: bool) -> CatalogView:
    """While paused, no job of any of its tables starts; running ones end as usual."""
    row = get_catalog(session, catalog_id, for_update=True)
    authorize(session, principal, Role.OPERATOR, "catalog.pause" if paused else "catalog.resume", row.name)
    if row.paused == paused:
        return view(session, row)
    row.paused = paused
    store_change(session, row)
    return view(session, row)


def delete_catalog(
    session: Session, principal: Principal, catalog_id: str, *, if_match: str | None = None
) -> None:
    """Forget a catalog, its patterns and its senders; refused while tables are enrolled from it."""
    row = get_catalog(session, catalog_id, for_update=True)
    authorize(session, principal, Role.ADMIN, "catalog.delete", row.name)
    check_version(if_match, row.version)
    tables = session.exec(_tables_of(row.id).limit(6)).all()
    if tables:
        names = ", ".join(table.name for table in tables[:5]) + (", ..." if len(tables) > 5 else "")
        raise ConflictError(
            "catalog-in-use", f"Catalog {row.name!r} is used by {names}.", "Remove those tables first."
        )
    session.exec(delete(EnrollmentPattern).where(col(EnrollmentPattern.catalog_id) == row.id))
    session.exec(delete(NotificationSender).where(col(NotificationSender.catalog_id) == row.id))
    row.deleted_at = utc_now()
    session.add(row)


def authorize_check(session: Session, principal: Principal, catalog_id: str) -> Catalog:
    """The catalog that is about to be checked."""
    row = get_catalog(session, catalog_id)
    authorize(session, principal, Role.OPERATOR, "catalog.check", row.name)
    return row


def check_connection(settings: Settings, catalogs: IcebergCatalogs, catalog: Catalog) -> CatalogCheck:
    """Try a catalog and say in words what was seen. Slow: call it outside any transaction."""
    # What was open before may hold old secrets.
    catalogs.forget(catalog.id)
    with catalogs.observations.of(catalog.id) as asking:
        check = CatalogProbe(settings, catalog, index_warehouse(settings, catalog)).run()
        asking.opened()
        if check.status == "unreachable":
            asking.error = UnreachableError("catalog-unreachable", check.explanation, check.remedy)
    return check


def try_connection(settings: Settings, request: CatalogRequest) -> CatalogCheck:
    """What a check would say of a catalog that is not registered yet. Slow, as `check_connection`.

    Raises InvalidError for what could not be registered.
    """
    check_catalog(settings, request.type, request.properties, request.index_warehouse)
    catalog = Catalog(
        name=request.name,
        type=request.type.value,
        properties=request.properties,
        index_warehouse=request.index_warehouse,
    )
    return CatalogProbe(settings, catalog, index_warehouse(settings, catalog)).run()


def authorize_trial(session: Session, principal: Principal, name: str) -> None:
    """Whoever may register a catalog may try it before."""
    authorize(session, principal, Role.ADMIN, "catalog.check", name)


def register_embedded_catalog(session: Session, settings: Settings) -> CatalogView:
    """The catalog of `icestream up` in the data directory, created empty before it is registered first.

    Nothing else makes a catalog's database: one that is gone since then is told of as any other is.
    """
    existing = find_catalog(session, EMBEDDED)
    if existing is not None:
        return view(session, existing)
    uri = f"sqlite:///{settings.data_dir / 'catalog.db'}"
    warehouse = f"file://{settings.data_dir / 'warehouse'}"
    settings.data_dir.mkdir(parents=True, mode=0o700, exist_ok=True)
    private_files.make_file(settings.data_dir / "catalog.db")
    iceberg.create_sql_catalog(EMBEDDED, uri, warehouse)
    request = CatalogRequest(
        name=EMBEDDED, type=CatalogType.SQL, properties={"uri": uri, "warehouse": warehouse}
    )
    return create_catalog(session, settings, SYSTEM, request)


def check_catalog(
    settings: Settings, kind: CatalogType, properties: Mapping[str, str], index_warehouse: str | None
) -> None:
    """Raise InvalidError unless type, properties and places go together and are allowed."""
    missing = [name for name in _REQUIRED[kind] if not properties.get(name)]
    if missing:
        raise InvalidError(
            "missing-property",
            f"A catalog of type {kind.value} needs: {', '.join(missing)}.",
            "Add them under `properties`.",
        )
    check_properties(properties)
    check_record(settings, kind, properties)
    if index_warehouse is not None:
        check_location(settings, index_warehouse)
        if not can_hold_index(index_warehouse):
            why = (
                "lies in a bucket of S3 Tables, where files of an index can be neither listed nor deleted"
                if is_table_bucket(index_warehouse)
                else "is on a store whose commits are not known to be exclusive"
            )
            raise InvalidError("index-place-not-supported", f"{index_warehouse!r} {why}.")


def index_warehouse(settings: Settings, catalog: Catalog) -> str:
    """Where the indexes of a catalog's tables go."""
    return catalog.index_warehouse or settings.index_warehouse


def check_index_place(index_warehouse: str, table_location: str) -> None:
    """Raise InvalidError if Iceberg's orphan-file removal could delete the index."""
    if is_under(index_warehouse, table_location):
        raise InvalidError(
            "index-inside-table",
            f"The index warehouse {index_warehouse!r} lies inside the table's location {table_location!r}, "
            "where removing orphan files would delete it.",
        )


def _check_no_index_is_left(session: Session, catalog: Catalog) -> None:
    """Raise ConflictError if tables have indexes at the present place, or get or lose them just now.

    No job would look there again: keys that are erased would stay in them, and receipts call these gone.
    """
    indexed = [
        name
        for name, key_sets in session.exec(
            select(EnrolledTable.name, TableHealth.key_sets)
            .join(TableHealth, col(TableHealth.table_id) == EnrolledTable.id)
            .where(EnrolledTable.catalog_id == catalog.id, col(EnrolledTable.deleted_at).is_(None))
        )
        if key_sets
    ]
    at_work = session.exec(
        select(EnrolledTable.name)
        .join(Job, col(Job.table_id) == EnrolledTable.id)
        .where(
            EnrolledTable.catalog_id == catalog.id,
            or_(
                Job.status == JobStatus.RUNNING.value,
                and_(Job.status == JobStatus.QUEUED.value, Job.kind == JobKind.DROP_INDEX.value),
            ),
        )
    )
    if names := sorted({*indexed, *at_work}):
        told = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise ConflictError(
            "index-left-behind",
            f"Indexes of tables of catalog {catalog.name!r} lie in the index warehouse that it has: {told}.",
        )


def _check_name_is_free(session: Session, name: str) -> None:
    taken = session.exec(
        select(func.count())
        .select_from(Catalog)
        .where(Catalog.name == name, col(Catalog.deleted_at).is_(None))
    ).one()
    if taken:
        raise ConflictError(
            "catalog-exists",
            f"{name!r} is taken.",
            "Choose another name, or change the catalog that is there.",
        )


def _tables_of(catalog_id: str) -> SelectOfScalar[EnrolledTable]:
    return select(EnrolledTable).where(
        EnrolledTable.catalog_id == catalog_id, col(EnrolledTable.deleted_at).is_(None)
    )


def view(session: Session, row: Catalog) -> CatalogView:
    return _views(session, [row])[0]


def _views(session: Session, rows: Sequence[Catalog]) -> list[CatalogView]:
    ids = [row.id for row in rows]
    seen = session.exec(select(CatalogHealth).where(col(CatalogHealth.catalog_id).in_(ids))).all()
    healths = {health.catalog_id: health for health in seen}
    counts = _count_tables(session, ids)
    return [
        CatalogView.model_validate(
            row.model_dump()
            | {
                "properties": mask_secrets(row.properties),
                "health": healths.get(row.id, CatalogHealth(catalog_id=row.id)).model_dump()
                | {"tables": {status: counts[row.id, status] for status in HealthStatus}},
            }
        )
        for row in rows
    ]


def _count_tables(session: Session, catalog_ids: Sequence[str]) -> Counter[tuple[str, HealthStatus]]:
    """Enrolled tables by catalog and health."""
    status = col(TableHealth.status)
    counted = session.exec(
        select(EnrolledTable.catalog_id, status, func.count())
        .join(TableHealth, col(TableHealth.table_id) == col(EnrolledTable.id))
        .where(col(EnrolledTable.catalog_id).in_(catalog_ids), col(EnrolledTable.deleted_at).is_(None))
        .group_by(col(EnrolledTable.catalog_id), status)
    )
    return Counter({(catalog_id, HealthStatus(word)): number for catalog_id, word, number in counted})
