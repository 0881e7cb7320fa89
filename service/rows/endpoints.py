"""HTTP calls that write rows of tables."""

from fastapi import APIRouter

from service.auth.access import Operator
from service.db.database import WriteSession
from service.http.messages import TableId
from service.http.routing import ApiRoute
from service.jobs.models import JobView
from service.rows import service
from service.rows.models import DeleteRequest, UpsertRequest
from service.settings import CurrentSettings

router = APIRouter(tags=["rows"], route_class=ApiRoute)


@router.post("/tables/{table_id}/rows/upsert", status_code=202)
def upsert_rows(
    session: WriteSession,
    settings: CurrentSettings,
    caller: Operator,
    table_id: TableId,
    body: UpsertRequest,
) -> JobView:
    """Queue a job that adds rows and deletes those of the same keys, in one commit.

    Its result says what it did. Rows of the request are kept until it has ended, and shown to nobody.
    """
    return service.upsert_rows(session, settings, caller, table_id, body)


@router.post("/tables/{table_id}/rows/delete", status_code=202)
def delete_rows(
    session: WriteSession,
    settings: CurrentSettings,
    caller: Operator,
    table_id: TableId,
    body: DeleteRequest,
) -> JobView:
    """Queue a job that deletes the rows of keys, in whatever partition they lie, in one commit."""
    return service.delete_rows(session, settings, caller, table_id, body)
