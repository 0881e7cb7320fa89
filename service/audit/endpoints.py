"""HTTP calls of the audit log."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from service.audit import service
from service.audit.models import AuditEntryView
from service.auth.principals import Admin
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
) -> Page[AuditEntryView]:
    """Every write that was allowed or denied, newest first."""
    return service.list_entries(
        session, page, outcome=outcome, action=action, principal=principal, target=target
    )
