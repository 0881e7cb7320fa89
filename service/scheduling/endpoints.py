"""HTTP calls about what the scheduler will do."""

from typing import Annotated

from fastapi import APIRouter, Depends

from service.auth.access import Access, Viewer
from service.auth.models import Principal
from service.db.database import ReadSession, utc_now
from service.http.messages import TableId
from service.http.routing import ApiRoute
from service.policies.mistakes import find_mistakes, refuse_mistakes
from service.records.api_keys import Role
from service.records.health import TableHealth
from service.records.tables import get_table
from service.scheduling.models import PolicyPreview, PolicyReplay, ReplayRequest
from service.scheduling.preview import preview
from service.scheduling.replay import replay
from service.settings import CurrentSettings

router = APIRouter(prefix="/tables", tags=["tables"], route_class=ApiRoute)


@router.get("/{table_id}/policy/preview")
def preview_table_policy(session: ReadSession, _caller: Viewer, table_id: TableId) -> PolicyPreview:
    """Show what the policy would start within the next 24 hours, when and why, if nothing is written
    meanwhile."""
    table = get_table(session, table_id)
    health = session.get_one(TableHealth, table.id)
    return preview(session, table, health, utc_now())


@router.post("/{table_id}/policy/replay")
def replay_table_policy(
    session: ReadSession,
    settings: CurrentSettings,
    _caller: Annotated[Principal, Depends(Access(Role.OPERATOR, reads=True))],
    table_id: TableId,
    body: ReplayRequest,
) -> PolicyReplay:
    """Try other settings on what the table saw in the last seven days; nothing is changed."""
    table = get_table(session, table_id)
    refuse_mistakes(find_mistakes(session, settings, body.settings))
    health = session.get_one(TableHealth, table.id)
    return replay(session, table, health, body.settings, body.policy, utc_now())
