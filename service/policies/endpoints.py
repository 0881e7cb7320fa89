"""HTTP calls about policies and where they are attached."""

from fastapi import APIRouter, Response

from service.auth.access import Operator, Viewer
from service.conditional import IfMatch, set_etag
from service.database import ReadSession, WriteSession
from service.paging import Page, Paging
from service.policies import service
from service.policies.models import AttachmentRequest, AttachmentView, PolicyPatch, PolicyRequest, PolicyView
from service.routing import ApiRoute

router = APIRouter(tags=["policies"], route_class=ApiRoute)


@router.post("/policies", status_code=201)
def create_policy(
    session: WriteSession, caller: Operator, body: PolicyRequest, response: Response
) -> PolicyView:
    """Make a policy. Values left out are inherited from wherever it is attached."""
    created = service.create_policy(session, caller, body)
    set_etag(response, created.version)
    return created


@router.get("/policies")
def list_policies(session: ReadSession, _caller: Viewer, page: Paging) -> Page[PolicyView]:
    return service.list_policies(session, page)


@router.get("/policies/{policy_id}")
def get_policy(session: ReadSession, _caller: Viewer, policy_id: str, response: Response) -> PolicyView:
    """One policy, by id or name."""
    found = service.view(service.get_policy(session, policy_id))
    set_etag(response, found.version)
    return found


@router.patch("/policies/{policy_id}")
def update_policy(
    session: WriteSession,
    caller: Operator,
    policy_id: str,
    body: PolicyPatch,
    if_match: IfMatch,
    response: Response,
) -> PolicyView:
    """Change a policy (settings as a whole); needs If-Match."""
    updated = service.update_policy(session, caller, policy_id, body, if_match)
    set_etag(response, updated.version)
    return updated


@router.delete("/policies/{policy_id}", status_code=204)
def delete_policy(session: WriteSession, caller: Operator, policy_id: str) -> None:
    """Remove a policy that is attached nowhere."""
    service.delete_policy(session, caller, policy_id)


@router.put("/policy-attachments")
def attach_policy(session: WriteSession, caller: Operator, body: AttachmentRequest) -> AttachmentView | None:
    """Attach a policy to the system, a catalog, a namespace or a table; a null policy detaches."""
    return service.attach_policy(session, caller, body)


@router.get("/policy-attachments")
def list_attachments(session: ReadSession, _caller: Viewer, page: Paging) -> Page[AttachmentView]:
    return service.list_attachments(session, page)
