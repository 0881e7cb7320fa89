"""HTTP calls about API keys and the caller."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from service.auth import service
from service.auth.access import Admin, SignedIn
from service.auth.models import ApiKeyRequest, ApiKeyView, CreatedApiKey, Me, RotationRequest
from service.db.database import ReadSession, WriteSession
from service.http.messages import KeyId
from service.http.paging import Page, PageRequest, Search
from service.http.routing import ApiRoute
from service.records.api_keys import KeyState, Role

router = APIRouter(tags=["auth"], route_class=ApiRoute)


@router.get("/me")
def who_am_i(caller: SignedIn) -> Me:
    """Tell who the credentials of this request belong to."""
    scopes = sorted(caller.scopes) if caller.scopes is not None else None
    return Me(name=caller.name, role=caller.role, scopes=scopes, kind=caller.kind)


@router.post("/api-keys", status_code=201)
def create_api_key(session: WriteSession, caller: Admin, body: ApiKeyRequest) -> CreatedApiKey:
    """Make an API key. The key itself is shown in this answer only."""
    return service.create_api_key(session, caller, body)


@router.get("/api-keys")
def list_api_keys(
    session: ReadSession,
    _caller: Admin,
    page: Annotated[PageRequest, Depends(service.SORTING.page_request)],
    state: Annotated[KeyState | None, Query(description="Only keys in this state are listed.")] = None,
    role: Annotated[Role | None, Query(description="Only keys with this role are listed.")] = None,
    search: Search = None,
) -> Page[ApiKeyView]:
    """List all API keys, revoked and expired ones too; never the keys themselves."""
    return service.list_api_keys(session, page, state=state, role=role, search=search)


@router.post("/api-keys/{key_id}/rotate")
def rotate_api_key(
    session: WriteSession, caller: Admin, key_id: KeyId, body: RotationRequest
) -> CreatedApiKey:
    """Give a key a new secret, shown in this answer only; the old one is good for `grace_seconds` more."""
    return service.rotate_api_key(session, caller, key_id, body)


@router.delete("/api-keys/{key_id}")
def revoke_api_key(session: WriteSession, caller: Admin, key_id: KeyId) -> ApiKeyView:
    """Revoke a key and end the browser sessions that it opened."""
    return service.revoke_api_key(session, caller, key_id)
