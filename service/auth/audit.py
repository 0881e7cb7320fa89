"""Record and list audit entries."""

from contextvars import ContextVar
from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import insert
from sqlmodel import Session, col, select

from service.auth.models import AuditEntryView, AuditFilter, Principal
from service.db.database import utc_now
from service.http.paging import Page, PageRequest, Sorting, read_page, within
from service.records.audit import AuditEntry

SORTING = Sorting({"id": AuditEntry.id, "at": AuditEntry.at}, key=AuditEntry.id, default="-id")
_EVERY = AuditFilter()
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
    which: AuditFilter = _EVERY,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Page[AuditEntryView]:
    """Entries from `since` until before `until`."""
    named = asdict(which).items()
    rest = [getattr(AuditEntry, name) == wanted for name, wanted in named if wanted is not None]
    query = select(AuditEntry).where(*within(col(AuditEntry.at), since, until))
    return read_page(
        session,
        query,
        page,
        SORTING,
        lambda rows: [AuditEntryView.model_validate(row, from_attributes=True) for row in rows],
        *rest,
    )
