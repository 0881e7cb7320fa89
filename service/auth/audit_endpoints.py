"""HTTP calls of the audit log."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query

from service.auth import audit
from service.auth.access import Admin
from service.auth.models import AuditEntryView
from service.db.database import ReadSession
from service.http.paging import Page, PageRequest, Since, Until
from service.http.routing import ApiRoute

router = APIRouter(tags=["audit"], route_class=ApiRoute)


@router.get("/audit")
def list_audit_entries(
    session: ReadSession,
    _caller: Admin,
    page: Annotated[PageRequest, Depends(audit.SORTING.page_request)],
    outcome: Annotated[
        Literal["allowed", "denied"] | None,
        Query(description="Only what was allowed is listed, or only what was not."),
    ] = None,
    action: Annotated[
        str | None, Query(description="Only entries of this action are listed, such as `table.enroll`.")
    ] = None,
    principal: Annotated[
        str | None, Query(description="Only what the holder of this name did is listed.")
    ] = None,
    target: Annotated[str | None, Query(description="Only what was done to this is listed.")] = None,
    request_id: Annotated[
        str | None, Query(description="Only what the request with this X-Request-ID did is listed.")
    ] = None,
    since: Since = None,
    until: Until = None,
) -> Page[AuditEntryView]:
    """List every change that was allowed, and everything that was denied to somebody known; newest first. An
    allowed change has the name of what it did (`table.pause`), a denied call is named by its route.
    """
    return audit.list_entries(
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
