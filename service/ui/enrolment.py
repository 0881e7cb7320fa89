"""The form that enrols a table."""

from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from sqlmodel import Session

from service.auth.access import Operator, Viewer
from service.auth.models import Principal
from service.catalogs import service as catalogs
from service.catalogs.endpoints import OpenCatalogs
from service.database import CurrentDatabase, ReadSession
from service.errors import ForbiddenError, IcestreamError, InvalidError
from service.paging import PageRequest
from service.policies import service as policies
from service.settings import CurrentSettings
from service.tables import service as tables
from service.tables.models import TableRequest
from service.ui.pages import PageRoute, address_of, render

router = APIRouter(route_class=PageRoute)


@router.get("/tables/new")
def show_table_form(request: Request, session: ReadSession, reader: Viewer, catalog: str = "") -> Response:
    return _table_form(request, session, reader, {"catalog": catalog, "branch": "main"})


@router.post("/tables/new")
def register_table(
    request: Request,
    database: CurrentDatabase,
    opened: OpenCatalogs,
    settings: CurrentSettings,
    sender: Operator,
    catalog: Annotated[str, Form()] = "",
    identifier: Annotated[str, Form()] = "",
    branch: Annotated[str, Form()] = "main",
    policy: Annotated[str, Form()] = "",
    key_columns: Annotated[str, Form()] = "",
) -> Response:
    """Enrol a table; what was typed comes back together with what is wrong about it."""
    typed = {
        "catalog": catalog,
        "identifier": identifier,
        "branch": branch,
        "policy": policy,
        "key_columns": key_columns,
    }
    try:
        body = _table_request(typed)
        loaded = tables.load_for_enrolment(database, opened, sender, body)
        with database.write() as session:
            created = tables.enroll_table(session, settings, sender, body, loaded)
    except ForbiddenError:
        raise
    except IcestreamError as error:
        with database.read() as session:
            return _table_form(request, session, sender, typed, error)
    return RedirectResponse(f"/tables/{created.id}", 303)


def _table_form(
    request: Request,
    session: Session,
    reader: Principal,
    typed: dict[str, str],
    error: IcestreamError | None = None,
) -> Response:
    everything = PageRequest(limit=500)
    return render(
        request,
        "tables/enrol.html",
        reader,
        status_code=error.status_code if error else 200,
        typed={"catalog": "", "identifier": "", "branch": "main", "policy": "", "key_columns": "", **typed},
        error=error,
        catalogs=catalogs.list_catalogs(session, everything).items,
        policies=policies.list_policies(session, everything).items,
        address=address_of(request),
    )


def _table_request(typed: dict[str, str]) -> TableRequest:
    columns = [column.strip() for column in typed["key_columns"].split(",") if column.strip()]
    try:
        return TableRequest(
            catalog=typed["catalog"],
            identifier=[part.strip() for part in typed["identifier"].strip().split(".")],
            branch=typed["branch"].strip() or "main",
            policy=typed["policy"] or None,
            key_sets=[columns] if columns else None,
        )
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0])
        asked = {
            "catalog": "Choose the catalog that knows the table.",
            "identifier": "Write namespace and table with a dot in between, such as sales.orders.",
        }
        raise InvalidError(
            "validation-error",
            "The form is not complete",
            asked.get(field, f"{field}: {error.errors()[0]['msg']}."),
            "Correct it and send the form again.",
        ) from error
