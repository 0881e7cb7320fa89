"""One place to go from: what has a name with these words in it, or an id that begins like that; and pages."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import sqlalchemy as sa
from fastapi import APIRouter, Request, Response
from sqlmodel import Session, SQLModel

from service.auth import service as auth
from service.auth.access import Viewer
from service.auth.models import ApiKeyView, Principal
from service.catalogs import service as catalogs
from service.db.database import ReadSession
from service.discovery import patterns
from service.discovery.models import StandingPatternView
from service.http.paging import Page, PageRequest, Search
from service.notifications import senders
from service.notifications.models import SenderView
from service.policies import service as policies
from service.policies.models import PolicyView
from service.records.api_keys import Role
from service.records.erasures import Erasure
from service.records.jobs import Job
from service.records.tables import EnrolledTable
from service.settings import CurrentSettings, Settings
from service.tables import service as tables
from service.tables.models import TableFilter, TableView
from service.ui.pages import PLACES, PLACES_OF_ADMINS, PageRoute, render
from service.webhooks import service as webhooks
from service.webhooks.models import WebhookView
from service.workers import service as workers
from service.workers.models import WorkerView

router = APIRouter(prefix="/search", route_class=PageRoute)
_Item = TableView | PolicyView | StandingPatternView | WorkerView | WebhookView | SenderView | ApiKeyView
_Listed = tuple[str, str, Page[Any]]
"""What is found is called so, its list is there, and this is its first page."""
_FIRST = 8
"""So many of each kind are named; the list of the kind has the rest."""
_BEGINS_ID = re.compile(r"[0-9a-f]{8}[0-9a-f-]{0,28}")
"""At least as much of one as pages show."""
_BY_NAME = PageRequest(limit=_FIRST, sort="name")
_LATEST = PageRequest(limit=_FIRST, sort="-created_at")
_PAGES = (
    *((place, name, "", Role.VIEWER) for place, name in PLACES),
    ("/patterns", "Patterns", "", Role.VIEWER),
    ("/docs", "API", "documentation", Role.VIEWER),
    *((place, name, "", Role.ADMIN) for place, name in PLACES_OF_ADMINS),
    ("/tables/new", "Enrol a table", "add new", Role.OPERATOR),
    ("/patterns/new", "New pattern", "add make create enrol tables", Role.OPERATOR),
    ("/policies/new", "New policy", "add make create", Role.OPERATOR),
    ("/erasures/new", "New erasure", "make create erase keys rows", Role.OPERATOR),
    ("/catalogs/new", "Register a catalog", "add new connect", Role.ADMIN),
    ("/webhooks/new", "New webhook", "add make create", Role.ADMIN),
    ("/senders/new", "New sender", "add make create notifications", Role.ADMIN),
    ("/api-keys/new", "New key", "add make create API", Role.ADMIN),
)
"""What they are called, by what other words they are found, and who may open them."""
_WITH_IDS: Sequence[tuple[type[SQLModel], str, str]] = (
    (EnrolledTable, "Table", "/tables"),
    (Job, "Job", "/jobs"),
    (Erasure, "Erasure", "/erasures"),
)


@dataclass(frozen=True)
class Kind:
    """What was found of one kind: pairs of words and an address, and that of the rest, if there is more."""

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
        for row_id in _ids(session, kind, words):
            by_id.append((f"{name} {row_id}", f"{place}/{row_id}"))
    found: list[_Listed] = [
        ("Tables", "/tables", tables.list_tables(session, settings, _BY_NAME, TableFilter(search=words))),
        ("Policies", "/policies", policies.list_policies(session, _BY_NAME, search=words)),
        ("Patterns", "/patterns", patterns.list_patterns(session, _LATEST, search=words)),
        ("Workers", "/workers", workers.list_workers(session, settings, _BY_NAME, search=words)),
    ]
    if reader.role.allows(Role.ADMIN):
        found += [
            ("Webhooks", "/webhooks", webhooks.list_webhooks(session, _BY_NAME, search=words)),
            ("Senders of notifications", "/senders", senders.list_senders(session, _BY_NAME, search=words)),
            ("API keys", "/api-keys", auth.list_api_keys(session, _BY_NAME, search=words)),
        ]
    typed = words.casefold().split()
    pages = [
        (name, place)
        for place, name, others, role in _PAGES
        if reader.role.allows(role) and all(f" {word}" in f" {name} {others}".casefold() for word in typed)
    ]
    kinds = [Kind("By id", by_id)]
    # As the command line writes them. A catalog's name may have dots itself.
    for catalog in catalogs.list_names(session):
        rest = words.removeprefix(f"{catalog}.")
        if rest in ("", words):
            continue
        whole = tables.list_tables(session, settings, _BY_NAME, TableFilter(catalog=catalog, search=rest))
        named = [(_name(item), f"/tables/{item.id}") for item in whole.items]
        more = _rest("/tables", whole.next_cursor, catalog=catalog, search=rest)
        kinds.append(Kind(f"Tables of {catalog}", named, more))
    for name, place, page in found:
        # Once each: workers that start again have the name that they had.
        items = dict.fromkeys((_name(item), _address(place, item)) for item in page.items)
        kinds.append(Kind(name, list(items), _rest(place, page.next_cursor, search=words)))
    names = catalogs.list_names(session, search=words)
    registered = [(name, f"/catalogs/{name}") for name in names[:_FIRST]]
    of_catalogs = Kind("Catalogs", registered, _rest("/catalogs", len(names) > _FIRST, search=words))
    kinds.insert(len(kinds) - len(found) + 1, of_catalogs)
    kinds.append(Kind("Pages", pages))  # whose words are in names of tables, too
    return [kind for kind in kinds if kind.items]


def _name(item: _Item) -> str:
    """Of a table, as the command line writes it: several catalogs may have one of the same name."""
    if isinstance(item, StandingPatternView):
        return f"{item.catalog}.{item.pattern}"
    return f"{item.catalog}.{item.name}" if isinstance(item, TableView) else item.name


def _address(place: str, item: _Item) -> str:
    """Its page; or the list with it, of what has none."""
    if isinstance(item, WorkerView | SenderView | ApiKeyView):
        return f"{place}?{urlencode({'search': item.name})}"
    return f"{place}/{item.id}"


def _rest(place: str, is_more: object, **filters: str) -> str | None:
    return f"{place}?{urlencode(filters)}" if is_more else None


def _ids(session: Session, kind: type[SQLModel], words: str) -> list[str]:
    """Those that begin like this, of what is there still."""
    if not _BEGINS_ID.fullmatch(words):
        return []
    columns = sa.inspect(kind).columns
    known, deleted_at = columns["id"], columns.get("deleted_at")
    # An index leads to a range, and no id has a letter behind f.
    query = sa.select(known).where(known >= words, known < f"{words}g").order_by(known).limit(_FIRST)
    return list(session.scalars(query if deleted_at is None else query.where(deleted_at.is_(None))))
