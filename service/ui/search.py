"""One place to go from: what has a name with these words in it, or exactly this id."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from sqlmodel import Session, SQLModel

from service.auth.access import Viewer
from service.auth.models import Principal
from service.catalogs import service as catalogs
from service.db.database import ReadSession
from service.http.paging import Page, PageRequest, Search
from service.policies import service as policies
from service.policies.models import PolicyView
from service.records.erasures import Erasure
from service.records.jobs import Job
from service.records.keys import Role
from service.records.tables import EnrolledTable
from service.settings import CurrentSettings, Settings
from service.tables import service as tables
from service.tables.models import TableView
from service.ui.pages import PageRoute, render
from service.webhooks import service as webhooks
from service.webhooks.models import WebhookView

router = APIRouter(prefix="/search", route_class=PageRoute)
_Named = Page[TableView] | Page[PolicyView] | Page[WebhookView]
_FIRST = 8
"""So many of each kind are named; the list of the kind has the rest."""
_BY_NAME = PageRequest(limit=_FIRST, sort="name")
_WITH_IDS: Sequence[tuple[type[SQLModel], str, str]] = (
    (EnrolledTable, "Table", "/tables"),
    (Job, "Job", "/jobs"),
    (Erasure, "Erasure", "/erasures"),
)


@dataclass(frozen=True)
class Kind:
    """What was found of one kind: pairs of words and an address, and where the rest is, if there is more."""

    name: str
    items: Sequence[tuple[str, str]]
    rest: str | None = None


@router.get("")
def show_found(
    request: Request, session: ReadSession, settings: CurrentSettings, reader: Viewer, search: Search = None
) -> Response:
    words = (search or "").strip()
    found = _found(session, settings, reader, words) if words else []
    return render(request, "search/show.html", reader, search=words, kinds=found)


def _found(session: Session, settings: Settings, reader: Principal, words: str) -> list[Kind]:
    by_id = []
    for kind, name, place in _WITH_IDS:
        row = session.get(kind, words)
        if row is not None and getattr(row, "deleted_at", None) is None:
            by_id.append((f"{name} {words}", f"{place}/{words}"))
    lists: list[tuple[str, str, _Named]] = [
        ("Tables", "/tables", tables.list_tables(session, settings, _BY_NAME, search=words)),
        ("Policies", "/policies", policies.list_policies(session, _BY_NAME, search=words)),
    ]
    if reader.role.allows(Role.ADMIN):
        lists.append(("Webhooks", "/webhooks", webhooks.list_webhooks(session, _BY_NAME, search=words)))
    kinds = [Kind("By id", by_id)]
    for name, place, page in lists:
        items = [(item.name, f"{place}/{item.id}") for item in page.items]
        kinds.append(Kind(name, items, place if page.next_cursor else None))
    names = catalogs.list_names(session, search=words)
    registered = [(name, f"/catalogs/{name}") for name in names[:_FIRST]]
    kinds.insert(2, Kind("Catalogs", registered, "/catalogs" if len(names) > _FIRST else None))
    return [kind for kind in kinds if kind.items]
