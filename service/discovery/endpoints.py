"""HTTP calls about tables that could be enrolled, and patterns that enrol them."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from service.auth.access import Operator, Viewer
from service.catalogs.endpoints import OpenCatalogs
from service.catalogs.threads import waits_for_catalog
from service.db.database import CurrentDatabase, ReadSession, WriteSession
from service.discovery import candidates, patterns
from service.discovery.models import (
    CandidatePage,
    StandingPatternPatch,
    StandingPatternRequest,
    StandingPatternView,
)
from service.http.etags import IfMatch, OptionalIfMatch, with_etag
from service.http.messages import CatalogId
from service.http.paging import Page, PageRequest, Search
from service.http.problem_documents import UNREACHABLE_RESPONSE
from service.http.routing import ApiRoute
from service.settings import CurrentSettings

router = APIRouter(tags=["discovery"], route_class=ApiRoute)
PatternId = Annotated[str, Path(description="The id names a standing pattern.")]


@router.get("/catalogs/{catalog_id}/candidates", responses=UNREACHABLE_RESPONSE)
@waits_for_catalog(lambda given: str(given["catalog_id"]))
def find_candidates(
    request: Request,  # noqa: ARG001 - whose end is waited for
    database: CurrentDatabase,
    settings: CurrentSettings,
    catalogs: OpenCatalogs,
    looks: candidates.RecentLooks,
    _caller: Operator,
    catalog_id: CatalogId,
    page: Annotated[PageRequest, Depends(candidates.candidates_page)],
    namespace: Annotated[
        list[str] | None,
        Query(description="Only tables of this namespace are looked at: its parts, one after the other."),
    ] = None,
    all_tables: Annotated[
        bool, Query(description="Tables without equality deletes are listed, too.")
    ] = False,
) -> CandidatePage:
    """Tell which tables of a catalog hold equality deletes: how many, how old, by which keys they delete, and
    what readers pay.

    By what reads cost, all tables are looked at and ranked, or as many of them by name as can be in some
    seconds; the pages after these rank the next ones, so `looked_at` less than `tables` means that others may
    cost more. By name, the tables of the page are looked at alone.
    """
    return candidates.find_candidates(
        database,
        settings,
        catalogs,
        looks,
        catalog_id,
        page,
        namespace=namespace,
        only_with_deletes=not all_tables,
    )


@router.post("/patterns", status_code=201)
def create_pattern(
    session: WriteSession, caller: Operator, body: StandingPatternRequest, response: Response
) -> StandingPatternView:
    """Make a standing pattern: it enrols what matches, and tables that are created later too."""
    return with_etag(response, patterns.create_pattern(session, caller, body))


@router.get("/patterns")
def list_patterns(
    session: ReadSession,
    _caller: Viewer,
    page: Annotated[PageRequest, Depends(patterns.SORTING.page_request)],
    catalog: Annotated[
        str | None,
        Query(description="Only those of this catalog are listed, which is given by name or id."),
    ] = None,
    search: Search = None,
) -> Page[StandingPatternView]:
    """List standing patterns, with what came of them."""
    return patterns.list_patterns(session, page, catalog=catalog, search=search)


@router.get("/patterns/{pattern_id}")
def get_pattern(
    session: ReadSession, _caller: Viewer, pattern_id: PatternId, response: Response
) -> StandingPatternView:
    """Show one standing pattern; the ETag of the answer is what a change of it must name."""
    return with_etag(response, patterns.view(session, patterns.get_pattern(session, pattern_id)))


@router.patch("/patterns/{pattern_id}")
def update_pattern(
    session: WriteSession,
    caller: Operator,
    pattern_id: PatternId,
    body: StandingPatternPatch,
    if_match: IfMatch,
    response: Response,
) -> StandingPatternView:
    """Change, pause or resume a standing pattern; needs If-Match."""
    return with_etag(response, patterns.update_pattern(session, caller, pattern_id, body, if_match))


@router.delete("/patterns/{pattern_id}", status_code=204)
def delete_pattern(
    session: WriteSession, caller: Operator, pattern_id: PatternId, if_match: OptionalIfMatch = None
) -> None:
    """Forget a standing pattern; what it has enrolled stays enrolled."""
    patterns.delete_pattern(session, caller, pattern_id, if_match=if_match)
