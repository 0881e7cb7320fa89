"""The pages of erasures: the list, the form with a dry run before it is for good, and what became of each.

What was typed is part of no page and no address but the answer to the form: refused, or a dry run's.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from service.auth.access import Operator, Viewer
from service.auth.models import Principal
from service.db.database import CurrentDatabase, ReadSession
from service.erasures import service as erasures
from service.erasures.models import ErasurePlan, ErasureRequest
from service.errors import IcestreamError
from service.http.paging import PageRequest
from service.settings import CurrentSettings
from service.ui.forms import Form, Typed, see
from service.ui.pages import PageRoute, render
from service.ui.writes import parsed_json

router = APIRouter(prefix="/erasures", route_class=PageRoute)


@router.get("")
def show_erasures(
    request: Request,
    session: ReadSession,
    reader: Viewer,
    page: Annotated[PageRequest, Depends(erasures.SORTING.page_request)],
) -> Response:
    found = erasures.list_erasures(session, page)
    return render(
        request,
        "erasures/list.html",
        reader,
        erasures=found.items,
        next_cursor=found.next_cursor,
        total=found.counted,
        sort=page.sort,
    )


@router.get("/new")
def show_erasure_form(request: Request, sender: Operator) -> Response:
    return _form(request, sender, Form.of(dry_run="true"))


@router.post("/new")
def create_erasure(
    request: Request, database: CurrentDatabase, settings: CurrentSettings, sender: Operator, typed: Typed
) -> Response:
    try:
        asked = typed.read(ErasureRequest, _asked(typed))
        with database.write() as session:
            made = erasures.create_erasure(session, settings, sender, asked)
    except IcestreamError as error:
        return _form(request, sender, typed.refused(error))
    if isinstance(made, ErasurePlan):
        return _form(request, sender, typed, made)
    return see(f"/erasures/{made.id}")


@router.get("/{erasure_id}")
def show_erasure(request: Request, session: ReadSession, reader: Viewer, erasure_id: str) -> Response:
    erasure = erasures.get_erasure(session, erasure_id)
    return render(
        request,
        "erasures/show.html",
        reader,
        erasure=erasures.view(session, erasure),
        reports=erasures.read_reports(session, erasure),
    )


def _asked(typed: Form) -> dict[str, Any]:
    """The body of the call that the form stands for. Raises InvalidError."""
    files = typed.lines("files") or None
    return {
        "keys": None if files and not typed["keys"] else parsed_json(typed["keys"], "keys"),
        "files": files,
        "tables": typed.listed("tables") or None,
        "pattern": typed.given("pattern"),
        "key_columns": typed.listed("key_columns") or None,
        "expire_snapshots": typed["expire_snapshots"] != "false",
        "note": typed.given("note"),
        "dry_run": typed["dry_run"] != "false",
    }


def _form(request: Request, sender: Principal, form: Form, plan: ErasurePlan | None = None) -> Response:
    return render(request, "erasures/new.html", sender, status_code=form.status_code, form=form, plan=plan)
