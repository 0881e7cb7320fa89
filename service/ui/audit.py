"""The page of the audit log, for admins."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from service.auth import audit
from service.auth.access import Admin
from service.auth.models import AuditFilter
from service.db.database import ReadSession
from service.http.paging import PageRequest
from service.ui.pages import PageRoute, TypedTime, render

router = APIRouter(route_class=PageRoute)


@router.get("/audit")
def show_audit(
    request: Request,
    session: ReadSession,
    reader: Admin,
    page: Annotated[PageRequest, Depends(audit.SORTING.page_request)],
    which: Annotated[AuditFilter, Depends()],
    since: TypedTime | None = None,
    until: TypedTime | None = None,
) -> Response:
    found = audit.list_entries(session, page, which, since=since, until=until)
    return render(
        request,
        "audit/list.html",
        reader,
        entries=found.items,
        next_cursor=found.next_cursor,
        total=found.counted,
        sort=page.sort,
        which=which,
        since=since,
        until=until,
    )
