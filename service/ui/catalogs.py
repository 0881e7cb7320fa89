"""The pages of catalogs: how they are reached, whether that works, and the forms that change it."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from sqlmodel import Session

from service.auth.access import Admin, Operator, Viewer
from service.auth.models import Principal
from service.catalogs import service as catalogs
from service.catalogs.endpoints import OpenCatalogs
from service.catalogs.models import CatalogCheck, CatalogPatch, CatalogRequest, CatalogView
from service.catalogs.secrets import mask_secrets
from service.catalogs.threads import waits_for_catalog
from service.db.database import CurrentDatabase, ReadSession
from service.discovery import patterns
from service.errors import IcestreamError, InvalidError
from service.http.paging import EVERYTHING, PageRequest, Search
from service.policies import service as policies
from service.records.catalogs import CatalogStatus, CatalogType
from service.settings import CurrentSettings
from service.tables import service as tables
from service.tables.models import TableFilter
from service.ui.forms import Form, Typed, see
from service.ui.pages import PageRoute, render

router = APIRouter(prefix="/catalogs", route_class=PageRoute)

_OF_PROPERTIES = {
    "missing_property": "properties",
    "property_not_allowed": "properties",
    "secret_in_clear": "properties",
    "secret_not_allowed": "properties",
    "host_not_allowed": "properties",
    "uri_not_supported": "properties",
    "location_not_allowed": "properties",
    "location_not_absolute": "properties",
    "index_place_not_supported": "index_warehouse",
    "catalog_exists": "name",
}
"""Which field an error is about."""
_PROPERTY = "property."


@dataclass(frozen=True)
class _Asked:
    """A property that the form of a type has a field for."""

    name: str
    label: str
    placeholder: str
    help: str = ""
    is_needed: bool = True


_WAREHOUSE = _Asked("warehouse", "Warehouse", "s3://lake/warehouse", "Where its tables lie.")
_ASKED: dict[CatalogType, tuple[_Asked, ...]] = {
    CatalogType.SQL: (
        _Asked(
            "uri",
            "Database",
            "sqlite:////data/catalog.db",
            "Or postgresql://host/database, as a reference such as env:CATALOG_URI if it has a password.",
        ),
        _WAREHOUSE,
    ),
    CatalogType.REST: (
        _Asked("uri", "Address", "https://catalog.example.com", "It ends before /v1/config."),
        _Asked("warehouse", "Warehouse", "lake", "Its name there, if there are several.", is_needed=False),
        _Asked(
            "credential",
            "Credential",
            "env:CATALOG_CREDENTIAL",
            "A reference to id:secret, for OAuth; nothing if the catalog asks for none.",
            is_needed=False,
        ),
        _Asked(
            "token", "Token", "env:CATALOG_TOKEN", "A reference, if it takes no credential.", is_needed=False
        ),
    ),
    CatalogType.HIVE: (_Asked("uri", "Metastore", "thrift://metastore:9083"),),
    CatalogType.GLUE: (
        _Asked(
            "glue.region",
            "Region",
            "eu-central-1",
            "Credentials are those of the service, unless other properties name some.",
            is_needed=False,
        ),
    ),
    CatalogType.HADOOP: (_WAREHOUSE,),
}
"""What each type is asked for by name; all else goes as further properties."""


@router.get("")
def show_catalogs(
    request: Request,
    session: ReadSession,
    reader: Viewer,
    page: Annotated[PageRequest, Depends(catalogs.SORTING.page_request)],
    search: Search = None,
    kind: Annotated[CatalogType | None, Query(alias="type")] = None,
    paused: bool | None = None,
    status: CatalogStatus | None = None,
) -> Response:
    found = catalogs.list_catalogs(session, page, search=search, kind=kind, paused=paused, status=status)
    return render(
        request,
        "catalogs/list.html",
        reader,
        catalogs=found.items,
        next_cursor=found.next_cursor,
        total=found.counted,
        sort=page.sort,
        search=search,
        type=kind,
        types=list(CatalogType),
        paused=paused,
        status=status,
        statuses=list(CatalogStatus),
        counts=catalogs.count_catalogs(session, search=search, kind=kind, paused=paused),
    )


@router.get("/new")
def show_new_catalog(
    request: Request,
    sender: Admin,
    kind: Annotated[CatalogType, Query(alias="type")] = CatalogType.SQL,
) -> Response:
    return _catalog_form(request, sender, Form.of(type=kind.value))


@router.post("/new")
@waits_for_catalog(lambda given: str(given["typed"]["name"]))
def create_catalog(
    request: Request,
    database: CurrentDatabase,
    settings: CurrentSettings,
    sender: Admin,
    typed: Typed,
    kind: Annotated[CatalogType, Query(alias="type")] = CatalogType.SQL,
) -> Response:
    """Register a catalog; or try how it answers (`try`), or have the form for another type (`type`): then
    it comes back with what was found, or with what both types have."""
    if typed["what"] == "type":
        return _catalog_form(request, sender, _as_type(typed, kind))
    try:
        body = typed.read(CatalogRequest, _said(typed) | {"type": typed["type"]})
        if typed["what"] == "try":
            with database.write() as session:
                catalogs.authorize_trial(session, sender, body.name)
            return _catalog_form(request, sender, typed, check=catalogs.try_connection(settings, body))
        with database.write() as session:
            created = catalogs.create_catalog(session, settings, sender, body)
    except IcestreamError as error:
        return _catalog_form(request, sender, typed.refused(error, **_OF_PROPERTIES))
    return see(f"/catalogs/{created.id}")


@router.get("/{catalog_id}")
def show_catalog(
    request: Request, session: ReadSession, settings: CurrentSettings, reader: Viewer, catalog_id: str
) -> Response:
    return _catalog_page(request, session, settings, reader, catalog_id)


@router.post("/{catalog_id}/check")
@waits_for_catalog(lambda given: str(given["catalog_id"]))
def check_catalog(
    request: Request,
    database: CurrentDatabase,
    settings: CurrentSettings,
    opened: OpenCatalogs,
    sender: Operator,
    catalog_id: str,
) -> Response:
    """The catalog's page with what the check found."""
    with database.write() as session:
        catalog = catalogs.authorize_check(session, sender, catalog_id)
    check = catalogs.check_connection(settings, opened, catalog)
    with database.read() as session:
        return _catalog_page(request, session, settings, sender, catalog_id, check)


@router.get("/{catalog_id}/edit")
def show_catalog_form(request: Request, session: ReadSession, sender: Admin, catalog_id: str) -> Response:
    catalog = catalogs.view(session, catalogs.get_catalog(session, catalog_id))
    return _catalog_form(request, sender, _filled(catalog), catalog)


@router.post("/{catalog_id}/edit")
def update_catalog(
    request: Request,
    database: CurrentDatabase,
    settings: CurrentSettings,
    sender: Admin,
    catalog_id: str,
    typed: Typed,
) -> Response:
    with database.read() as session:
        catalog = catalogs.view(session, catalogs.get_catalog(session, catalog_id))
    try:
        said = _said(typed)
        removed = dict.fromkeys(catalog.properties.keys() - said["properties"].keys())
        body = typed.read(CatalogPatch, said | {"properties": said["properties"] | removed})
        with database.write() as session:
            catalogs.update_catalog(session, settings, sender, catalog_id, body, typed.if_match)
    except IcestreamError as error:
        with database.read() as session:
            catalog = catalogs.view(session, catalogs.get_catalog(session, catalog_id))
        form = typed.refused(error, **_OF_PROPERTIES).beside(_filled(catalog))
        return _catalog_form(request, sender, form, catalog)
    return see(f"/catalogs/{catalog_id}")


@router.post("/{catalog_id}/delete")
def delete_catalog(
    request: Request,
    database: CurrentDatabase,
    settings: CurrentSettings,
    sender: Admin,
    catalog_id: str,
    typed: Typed,
) -> Response:
    try:
        with database.write() as session:
            catalogs.delete_catalog(session, sender, catalog_id, if_match=typed.if_match)
    except IcestreamError as error:
        form = typed.refused(error)
        with database.read() as session:
            return _catalog_page(request, session, settings, sender, catalog_id, form=form)
    return see("/catalogs")


@router.post("/{catalog_id}/{action}")
def pause_catalog(
    database: CurrentDatabase, sender: Operator, catalog_id: str, action: Literal["pause", "resume"]
) -> Response:
    with database.write() as session:
        catalogs.pause_catalog(session, sender, catalog_id, paused=action == "pause")
    return see(f"/catalogs/{catalog_id}")


def _catalog_page(
    request: Request,
    session: Session,
    settings: CurrentSettings,
    reader: Principal,
    catalog_id: str,
    check: CatalogCheck | None = None,
    form: Form | None = None,
) -> Response:
    form = form or Form.of()
    row = catalogs.get_catalog(session, catalog_id)
    return render(
        request,
        "catalogs/show.html",
        reader,
        status_code=form.status_code,
        form=form,
        catalog=catalogs.view(session, row),
        index_warehouse=catalogs.index_warehouse(settings, row),
        check=check,
        tables=tables.list_tables(session, settings, PageRequest(limit=10), TableFilter(catalog=row.id)),
        patterns=patterns.list_patterns(session, PageRequest(limit=10), catalog=row.id),
        attachments=policies.list_attachments(session, PageRequest(limit=EVERYTHING), catalog=row.id).items,
    )


def _catalog_form(
    request: Request,
    sender: Principal,
    form: Form,
    catalog: CatalogView | None = None,
    check: CatalogCheck | None = None,
) -> Response:
    is_known = form["type"] in {kind.value for kind in CatalogType}
    return render(
        request,
        "catalogs/form.html",
        sender,
        status_code=form.status_code,
        form=form,
        catalog=catalog,
        types=list(CatalogType),
        asked=_ASKED[CatalogType(form["type"])] if is_known and catalog is None else (),
        check=check,
    )


def _filled(catalog: CatalogView) -> Form:
    return Form.of(
        name=catalog.name,
        type=catalog.type.value,
        properties="\n".join(f"{name} = {value}" for name, value in catalog.properties.items()),
        index_warehouse=catalog.index_warehouse or "",
        max_running_jobs="" if catalog.max_running_jobs is None else str(catalog.max_running_jobs),
        version=str(catalog.version),
    )


def _as_type(typed: Form, kind: CatalogType) -> Form:
    """What was typed, as far as a type asks for it, too; but for secrets in clear."""
    asked = {one.name for one in _ASKED[kind]}
    properties = {
        _PROPERTY + name: text
        for name, text in typed.fields(_PROPERTY)
        if name in asked and _is_open(name, text)
    }
    lines = [line for line in typed.lines("properties") if _is_open(*line.partition("=")[::2])]
    kept = {name: typed[name] for name in ("name", "index_warehouse", "max_running_jobs")}
    return Form.of(type=kind.value, properties="\n".join(lines), **kept, **properties)


def _is_open(name: str, value: str) -> bool:
    """Whether a property is no secret in clear."""
    said = {name.strip(): value.strip()}
    return mask_secrets(said) == said


def _said(typed: Form) -> dict[str, Any]:
    """What a form says of a catalog, but its type. Raises InvalidError."""
    properties: dict[str, str] = {}
    for line in typed.lines("properties"):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name or name in properties:
            why = f"{name!r} is there twice" if name in properties else "no name and = stand before a value"
            raise InvalidError(
                "validation-error",
                f"{line!r}: {why}.",
                "Write one property a line, as in: uri = https://catalog.example.com",
                title="The form is not complete",
                errors=[{"field": "properties", "message": f"{line!r}: {why}."}],
            )
        properties[name] = value
    for field, text in typed.fields(_PROPERTY):
        if text:
            properties[field] = text
    return {
        "name": typed["name"],
        "properties": properties,
        "index_warehouse": typed.given("index_warehouse"),
        "max_running_jobs": typed.given("max_running_jobs"),
    }
