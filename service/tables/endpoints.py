"""HTTP calls about enrolled tables."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from service.auth.access import Operator, Viewer
from service.catalogs.endpoints import OpenCatalogs
from service.catalogs.threads import waits_for_catalog
from service.db.database import CurrentDatabase, ReadSession, WriteSession
from service.http.etags import IfMatch, OptionalIfMatch, with_etag
from service.http.messages import TableId
from service.http.paging import Page, PageRequest
from service.http.problem_documents import UNREACHABLE_RESPONSE
from service.http.routing import ApiRoute
from service.jobs.models import JobView
from service.jobs.views import view
from service.policies.effective import explain_policy
from service.policies.models import EffectivePolicyView
from service.records import tables as rows
from service.settings import CurrentSettings
from service.tables import enrolment, service
from service.tables.models import (
    PatternRequest,
    PatternResult,
    TableFilter,
    TablePatch,
    TableRequest,
    TableView,
)

router = APIRouter(prefix="/tables", tags=["tables"], route_class=ApiRoute)


@waits_for_catalog(lambda given: str(given["body"].catalog))
def _load(
    request: Request,  # noqa: ARG001 - whose end is waited for
    database: CurrentDatabase,
    catalogs: OpenCatalogs,
    caller: Operator,
    body: TableRequest,
) -> enrolment.LoadedTable:
    return enrolment.load_for_enrolment(database, catalogs, caller, body)


@waits_for_catalog(lambda given: str(given["body"].catalog))
def _load_pattern(
    request: Request,  # noqa: ARG001 - whose end is waited for
    database: CurrentDatabase,
    catalogs: OpenCatalogs,
    caller: Operator,
    body: PatternRequest,
) -> enrolment.LoadedPattern:
    return enrolment.load_pattern(database, catalogs, caller, body)


@waits_for_catalog(lambda given: str(given["table_id"]), is_table=True)
def _load_columns(
    request: Request,  # noqa: ARG001 - whose end is waited for
    database: CurrentDatabase,
    catalogs: OpenCatalogs,
    caller: Operator,
    table_id: TableId,
    body: TablePatch,
) -> frozenset[str] | None:
    return service.load_columns(database, catalogs, caller, table_id, body)


# What is loaded comes before the session: nobody waits for a catalog with one.
@router.post("", status_code=201, responses=UNREACHABLE_RESPONSE)
def enroll_table(
    loaded: Annotated[enrolment.LoadedTable, Depends(_load)],
    session: WriteSession,
    settings: CurrentSettings,
    caller: Operator,
    body: TableRequest,
    response: Response,
) -> TableView:
    """Enrol a table. It is loaded from its catalog at once, so a wrong name is found here."""
    return with_etag(response, enrolment.enroll_table(session, settings, caller, body, loaded))


@router.post("/enroll-by-pattern", responses=UNREACHABLE_RESPONSE)
def enroll_by_pattern(
    found: Annotated[enrolment.LoadedPattern, Depends(_load_pattern)],
    session: WriteSession,
    settings: CurrentSettings,
    caller: Operator,
    body: PatternRequest,
) -> PatternResult:
    """Enrol every table whose dotted name matches a pattern, up to 200; `dry_run` only lists them.

    For more of them, or for those that are created later, make a standing pattern: `POST /patterns`.
    """
    matched, loaded, failed = found
    return enrolment.enroll_pattern(session, settings, caller, body, matched, loaded, failed)


@router.get("")
def list_tables(
    session: ReadSession,
    settings: CurrentSettings,
    _caller: Viewer,
    page: Annotated[PageRequest, Depends(service.SORTING.page_request)],
    which: Annotated[TableFilter, Depends()],
    prefix: Annotated[
        str | None,
        Query(
            max_length=1000,
            description="Only tables are listed whose name begins with this, with the name of the catalog "
            "before it or without.",
        ),
    ] = None,
) -> Page[TableView]:
    """List enrolled tables. `sort=-status` shows those first whose health is gravest: blocked, unknown,
    lagging, degraded, healthy."""
    return service.list_tables(session, settings, page, which, prefix=prefix)


@router.get("/{table_id}")
def get_table(
    session: ReadSession, settings: CurrentSettings, _caller: Viewer, table_id: TableId, response: Response
) -> TableView:
    """Show one enrolled table; the ETag of the answer is what a change of it must name."""
    return with_etag(response, service.view(session, settings, rows.get_table(session, table_id)))


@router.patch("/{table_id}")
def update_table(
    columns: Annotated[frozenset[str] | None, Depends(_load_columns)],
    session: WriteSession,
    settings: CurrentSettings,
    caller: Operator,
    table_id: TableId,
    body: TablePatch,
    if_match: IfMatch,
    response: Response,
    leave_staged: Annotated[
        bool,
        Query(
            description="The staging branch changes even if it has what is not published: that stays there."
        ),
    ] = False,
) -> TableView:
    """Change policy, declared keys or staging branch; needs If-Match.

    Columns of new keys must be in the table. While its catalog can't be reached they are taken unseen, and
    the next job that indexes tells what does not fit.
    """
    updated = service.update_table(
        session, settings, caller, table_id, body, if_match, columns, leave_staged=leave_staged
    )
    return with_etag(response, updated)


@router.delete(
    "/{table_id}",
    status_code=204,
    response_model=None,
    responses={
        202: {
            "model": JobView,
            "description": ("The job that deletes the index is the answer, with drop_index."),
        }
    },
)
def delete_table(
    session: WriteSession,
    caller: Operator,
    table_id: TableId,
    response: Response,
    drop_index: Annotated[bool, Query(description="The files of its index are deleted, too.")] = False,
    leave_staged: Annotated[
        bool,
        Query(description="The table is removed even if its staging branch has what is not published."),
    ] = False,
    if_match: OptionalIfMatch = None,
) -> JobView | None:
    """Forget a table, and with drop_index its index. The Iceberg table stays as it is."""
    job = service.delete_table(
        session, caller, table_id, drop_index=drop_index, leave_staged=leave_staged, if_match=if_match
    )
    if job is None:
        return None
    response.status_code = 202
    return view(session, job)


@router.post("/{table_id}/pause")
def pause_table(
    session: WriteSession, settings: CurrentSettings, caller: Operator, table_id: TableId
) -> TableView:
    """Start none of its jobs until resumed; a running one ends as usual."""
    return service.pause_table(session, settings, caller, table_id, paused=True)


@router.post("/{table_id}/resume")
def resume_table(
    session: WriteSession, settings: CurrentSettings, caller: Operator, table_id: TableId
) -> TableView:
    """Let its jobs start again, unless its catalog or the system is paused."""
    return service.pause_table(session, settings, caller, table_id, paused=False)


@router.get("/{table_id}/policy")
def get_table_policy(session: ReadSession, _caller: Viewer, table_id: TableId) -> EffectivePolicyView:
    """Show the policy that holds for a table, with the place that each value comes from."""
    return explain_policy(session, rows.get_table(session, table_id))
