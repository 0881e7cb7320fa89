"""The page of the audit log, for admins."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response

from service.auth import audit
from service.auth.access import Admin
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
    outcome: Literal["allowed", "denied"] | None = None,
    action: str | None = None,
    principal: str | None = None,
    target: str | None = None,
    request_id: str | None = None,
    since: TypedTime | None = None,
    until: TypedTime | None = None,
) -> Response:
    found = audit.list_entries(
        session,
        page,
        outcome=outcome,
        action=action,
        principal=principal,
        target=target,
        request_id=request_id,
        since=since,
        until=until,
    )
    return render(
        request,
        "audit/list.html",
        reader,
        entries=found.items,
        next_cursor=found.next_cursor,
        total=found.counted,
        sort=page.sort,
        outcome=outcome,
        action=action,
        who=principal,
        target=target,
        request_id=request_id,
        since=since,
        until=until,
    )
