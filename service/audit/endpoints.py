"""HTTP calls of the audit log."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import AwareDatetime

from service.audit import service
from service.audit.models import AuditEntryView
from service.auth.access import Admin
from service.database import ReadSession
from service.paging import Page, Paging
from service.routing import ApiRoute

router = APIRouter(tags=["audit"], route_class=ApiRoute)


@router.get("/audit")
def list_audit_entries(
    session: ReadSession,
    _caller: Admin,
    page: Paging,
    outcome: Annotated[Literal["allowed", "denied"] | None, Query()] = None,
    action: str | None = None,
    principal: str | None = None,
    target: str | None = None,
    since: Annotated[AwareDatetime | None, Query(description="Not before this time.")] = None,
    until: Annotated[AwareDatetime | None, Query(description="Before this time.")] = None,
) -> Page[AuditEntryView]:
    """Every change that was allowed, and everything that was denied to somebody known; newest first.

    An allowed change has the name of what it did (`table.pause`), a denied call is named by its route.
    """
    return service.list_entries(
        session,
        page,
        outcome=outcome,
        action=action,
        principal=principal,
        target=target,
        since=since,
        until=until,
    )
