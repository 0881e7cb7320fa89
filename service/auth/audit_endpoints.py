"""HTTP calls of the audit log."""

from typing import Annotated

from fastapi import APIRouter, Depends

from service.auth import audit
from service.auth.access import Admin
from service.auth.models import AuditEntryView, AuditFilter
from service.db.database import ReadSession
from service.http.paging import Page, PageRequest, Since, Until
from service.http.routing import ApiRoute

router = APIRouter(tags=["audit"], route_class=ApiRoute)


@router.get("/audit")
def list_audit_entries(
    session: ReadSession,
    _caller: Admin,
    page: Annotated[PageRequest, Depends(audit.SORTING.page_request)],
    which: Annotated[AuditFilter, Depends()],
    since: Since = None,
    until: Until = None,
) -> Page[AuditEntryView]:
    """List every change that was allowed, and everything that was denied to somebody known; newest first. An
    allowed change has the name of what it did (`table.pause`), a denied call is named by its route.
    """
    return audit.list_entries(session, page, which, since=since, until=until)
