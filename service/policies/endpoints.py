"""HTTP calls about policies and where they are attached."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool

from service.auth.access import Operator, Viewer
from service.db.database import ReadSession, WriteSession, get_database
from service.http.etags import IfMatch, OptionalIfMatch, with_etag
from service.http.messages import PolicyId
from service.http.paging import Page, PageRequest, Search
from service.http.routing import ApiRoute, Handler
from service.policies import service
from service.policies.mistakes import find_mistakes
from service.policies.models import AttachmentRequest, AttachmentView, PolicyPatch, PolicyRequest, PolicyView
from service.policies.settings import PolicySettings
from service.records.policies import Level
from service.settings import CurrentSettings, Settings


class PolicyRoute(ApiRoute):
    """Lists what only the service finds wrong with settings beside what is wrong with the body, so that one
    answer has every mistake."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def handle_policy(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                found = await run_in_threadpool(_further_mistakes, request, error.body)
                raise RequestValidationError([*error.errors(), *found], body=error.body) from error

        return handle_policy


def _further_mistakes(request: Request, body: Any) -> list[dict[str, Any]]:
    """What is wrong with the settings in a body without those that are wrong by themselves."""
    if not isinstance(body, dict) or "settings" not in body:
        return []
    settings: Settings = request.app.state.settings
    with get_database(request).read() as session:
        row = service.find_policy(session, request.path_params.get("policy_id", ""))
        wanted = PolicySettings.valid_part(body["settings"])
        mistakes = find_mistakes(session, settings, wanted, row)
    return [
        {"loc": (finding["field"],), "msg": finding["message"]}
        for mistake in mistakes
        for finding in mistake.extra["errors"]
    ]


router = APIRouter(tags=["policies"], route_class=PolicyRoute)
LeaveStaged = Annotated[
    bool,
    Query(description="Staging branches change even if they have what is not published: that stays there."),
]


@router.post("/policies", status_code=201)
def create_policy(
    session: WriteSession,
    settings: CurrentSettings,
    caller: Operator,
    body: PolicyRequest,
    response: Response,
) -> PolicyView:
    """Make a policy. Values left out are inherited from wherever it is attached."""
    return with_etag(response, service.create_policy(session, settings, caller, body))


@router.get("/policies")
def list_policies(
    session: ReadSession,
    _caller: Viewer,
    page: Annotated[PageRequest, Depends(service.SORTING.page_request)],
    search: Search = None,
    built_in: Annotated[
        bool | None, Query(description="Only built-in policies are listed, or only others.")
    ] = None,
) -> Page[PolicyView]:
    """List all policies, built-in ones too."""
    return service.list_policies(session, page, search=search, built_in=built_in)


@router.get("/policies/{policy_id}")
def get_policy(session: ReadSession, _caller: Viewer, policy_id: PolicyId, response: Response) -> PolicyView:
    """Show one policy, by id or name."""
    return with_etag(response, service.view(service.get_policy(session, policy_id)))


@router.patch("/policies/{policy_id}")
def update_policy(
    session: WriteSession,
    settings: CurrentSettings,
    caller: Operator,
    policy_id: PolicyId,
    body: PolicyPatch,
    if_match: IfMatch,
    response: Response,
    leave_staged: LeaveStaged = False,
) -> PolicyView:
    """Change a policy (settings as a whole); needs If-Match, and of the system's policy an admin."""
    updated = service.update_policy(
        session, settings, caller, policy_id, body, if_match, leave_staged=leave_staged
    )
    return with_etag(response, updated)


@router.delete("/policies/{policy_id}", status_code=204)
def delete_policy(
    session: WriteSession, caller: Operator, policy_id: PolicyId, if_match: OptionalIfMatch = None
) -> None:
    """Remove a policy that is attached nowhere and that no pattern names."""
    service.delete_policy(session, caller, policy_id, if_match=if_match)


@router.put("/policy-attachments")
def attach_policy(
    session: WriteSession,
    caller: Operator,
    body: AttachmentRequest,
    response: Response,
    if_match: OptionalIfMatch = None,
    leave_staged: LeaveStaged = False,
) -> AttachmentView | None:
    """Attach a policy to the system, a catalog, a namespace or a table; a null policy detaches.

    With If-Match only in place of the attachment with that `version`.
    """
    attached = service.attach_policy(session, caller, body, if_match, leave_staged=leave_staged)
    return None if attached is None else with_etag(response, attached)


@router.get("/policy-attachments")
def list_attachments(
    session: ReadSession,
    _caller: Viewer,
    page: Annotated[PageRequest, Depends(service.ATTACHMENT_SORTING.page_request)],
    level: Annotated[Level | None, Query(description="Only attachments at this level are listed.")] = None,
    catalog: Annotated[
        str | None,
        Query(
            description="Only those to this catalog or its namespaces are listed; it is given by name or id."
        ),
    ] = None,
    policy: Annotated[
        str | None, Query(description="Only those of this policy are listed, which is given by name or id.")
    ] = None,
) -> Page[AttachmentView]:
    """List where policies are attached."""
    return service.list_attachments(session, page, level=level, catalog=catalog, policy=policy)
