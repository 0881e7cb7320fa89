"""HTTP calls about what the scheduler will do."""

from fastapi import APIRouter

from service.auth.access import Viewer
from service.db.database import ReadSession, utc_now
from service.http.messages import TableId
from service.http.routing import ApiRoute
from service.records.health import TableHealth
from service.records.tables import get_table
from service.scheduling.models import PolicyPreview
from service.scheduling.preview import preview

router = APIRouter(prefix="/tables", tags=["tables"], route_class=ApiRoute)


@router.get("/{table_id}/policy/preview")
def preview_table_policy(session: ReadSession, _caller: Viewer, table_id: TableId) -> PolicyPreview:
    """Show what the policy would start within the next 24 hours, when and why, if nothing is written
    meanwhile."""
    table = get_table(session, table_id)
    health = session.get(TableHealth, table.id) or TableHealth(table_id=table.id)
    return preview(session, table, health, utc_now())
