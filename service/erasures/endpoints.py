"""HTTP calls that erase keys from tables, and hand out receipts."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from service.auth.access import Operator, Viewer
from service.db.database import CurrentDatabase, ReadSession, WriteSession
from service.erasures import service
from service.erasures.models import ErasurePlan, ErasureRequest, ErasureSummary, ErasureView, Receipt
from service.http.paging import Page, PageRequest, Since, Until
from service.http.routing import ApiRoute
from service.settings import CurrentSettings

router = APIRouter(tags=["erasures"], route_class=ApiRoute)
ErasureId = Annotated[str, Path(description="The id names an erasure.")]


@router.post("/erasures", status_code=202)
def create_erasure(
    session: WriteSession, settings: CurrentSettings, caller: Operator, body: ErasureRequest
) -> ErasureView | ErasurePlan:
    """Queue a job for each table, which deletes the rows of keys, rewrites the files that had them, expires
    snapshots, and looks for the keys in all that is left.

    All tables are taken, or the request is refused. Keys of the request are kept until each job has ended,
    shown to nobody, and from then on as keyed hashes alone. A dry run says which tables are meant.
    """
    return service.create_erasure(session, settings, caller, body)


@router.get("/erasures")
def list_erasures(
    session: ReadSession,
    _caller: Viewer,
    page: Annotated[PageRequest, Depends(service.SORTING.page_request)],
    since: Since = None,
    until: Until = None,
) -> Page[ErasureSummary]:
    """List erasures, the latest first; `since` and `until` go by `created_at`."""
    return service.list_erasures(session, page, since=since, until=until)


@router.get("/erasures/{erasure_id}")
def get_erasure(session: ReadSession, _caller: Viewer, erasure_id: ErasureId) -> ErasureView:
    """Show one erasure with its tables, and how far the job of each has come."""
    return service.view(session, service.get_erasure(session, erasure_id))


@router.get("/erasures/{erasure_id}/receipt", response_model=Receipt)
def get_erasure_receipt(
    database: CurrentDatabase, settings: CurrentSettings, _caller: Viewer, erasure_id: ErasureId
) -> Response:
    """Show what has become of each key in each table, signed as webhooks are (`webhook-id`,
    `webhook-timestamp`, `webhook-signature`). It is `complete` once all jobs have ended, and then it is the
    same to the byte each time.
    """
    body, headers = service.read_receipt(database, settings, erasure_id)
    return Response(body, media_type="application/json", headers=headers)
