"""The page of the audit log, for admins."""

from datetime import timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from service.audit import service as audit
from service.auth.access import Admin
from service.database import ReadSession, utc_now
from service.paging import PageRequest
from service.ui.pages import PageRoute, render

router = APIRouter(route_class=PageRoute)
_SPANS = {1: "hour", 24: "day", 168: "week", 720: "30 days"}


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
    hours: Annotated[int | None, Query(ge=1, le=100_000)] = None,
) -> Response:
    found = audit.list_entries(
        session,
        page,
        outcome=outcome,
        action=action,
        principal=principal,
        target=target,
        request_id=request_id,
        since=utc_now() - timedelta(hours=hours) if hours else None,
    )
    return render(
        request,
        "audit/list.html",
        reader,
        entries=found.items,
        next_cursor=found.next_cursor,
        sort=page.sort,
        outcome=outcome,
        action=action,
        who=principal,
        target=target,
        request_id=request_id,
        hours=hours,
        spans=_SPANS,
    )
