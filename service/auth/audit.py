"""Record and list audit entries."""

from contextvars import ContextVar
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, insert
from sqlmodel import Session, col, select

from service.auth.models import AuditEntryView, Principal
from service.db.database import utc_now
from service.http.paging import Page, PageRequest, Sorting, read_page, within
from service.records.audit import AuditEntry

SORTING = Sorting({"id": AuditEntry.id, "at": AuditEntry.at}, key=AuditEntry.id, default="-id")
_INSERT = insert(AuditEntry)
current_request_id: ContextVar[str | None] = ContextVar("current_request_id", default=None)


def record(
    session: Session,
    principal: Principal,
    action: str,
    target: str,
    outcome: Literal["allowed", "denied"],
    **fields: Any,
) -> None:
    """Add one entry; it is committed together with what it describes."""
    entry = {
        "at": utc_now(),
        "principal": principal.name,
        "role": principal.role.value,
        "action": action,
        "target": target,
        "outcome": outcome,
        "request_id": current_request_id.get(),
        "fields": fields,
    }
    # Past the session, in its transaction: a third of the time, of which a question about a key has little.
    session.connection().execute(_INSERT, entry)


def list_entries(
    session: Session,
    page: PageRequest,
    *,
    outcome: str | None = None,
    action: str | None = None,
    principal: str | None = None,
    target: str | None = None,
    request_id: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Page[AuditEntryView]:
    """Entries from `since` until before `until`."""
    rest: list[ColumnElement[bool]] = []
    for column, wanted in (
        (AuditEntry.outcome, outcome),
        (AuditEntry.action, action),
        (AuditEntry.principal, principal),
        (AuditEntry.target, target),
        (AuditEntry.request_id, request_id),
    ):
        if wanted is not None:
            rest.append(col(column) == wanted)
    query = select(AuditEntry).where(*within(col(AuditEntry.at), since, until))
    return read_page(
        session,
        query,
        page,
        SORTING,
        lambda rows: [AuditEntryView.model_validate(row, from_attributes=True) for row in rows],
        *rest,
    )
