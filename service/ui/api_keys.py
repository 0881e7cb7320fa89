"""The page of API keys, for admins. A key itself is on the page that answers its making, and nowhere else."""

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request, Response

from service.auth import service as auth
from service.auth.access import Admin
from service.auth.models import ApiKeyRequest, CreatedApiKey, Principal, RotationRequest, Scope
from service.db.database import CurrentDatabase, ReadSession
from service.errors import IcestreamError
from service.http.paging import PageRequest, Search
from service.records.api_keys import KeyState, Role
from service.ui.forms import Form as Fields
from service.ui.forms import Typed, see
from service.ui.pages import PageRoute, render

router = APIRouter(prefix="/api-keys", route_class=PageRoute)


@router.get("")
def show_keys(
    request: Request,
    session: ReadSession,
    reader: Admin,
    page: Annotated[PageRequest, Depends(auth.SORTING.page_request)],
    state: KeyState | None = None,
    role: Role | None = None,
    search: Search = None,
) -> Response:
    found = auth.list_api_keys(session, page, state=state, role=role, search=search)
    return render(
        request,
        "keys/list.html",
        reader,
        keys=found.items,
        next_cursor=found.next_cursor,
        total=found.counted,
        sort=page.sort,
        state=state,
        states=list(KeyState),
        role=role,
        roles=list(Role),
        search=search,
    )


@router.get("/new")
def show_key_form(request: Request, sender: Admin) -> Response:
    return _key_form(request, sender, Fields.of(role="viewer"))


@router.post("/new")
def create_key(request: Request, database: CurrentDatabase, sender: Admin, typed: Typed) -> Response:
    expires_on = typed.given("expires_at")
    try:
        body = typed.read(
            ApiKeyRequest,
            {
                "name": typed["name"],
                "role": typed["role"],
                "scopes": typed.all("scopes") or None,
                "tables": typed.lines("tables") or None,
                "expires_at": f"{expires_on}T00:00:00Z" if expires_on else None,
            },
        )
        with database.write() as session:
            created = auth.create_api_key(session, sender, body)
    except IcestreamError as error:
        return _key_form(request, sender, typed.refused(error))
    return _key_page(request, sender, created)


@router.post("/{key_id}/rotate")
def rotate_key(
    request: Request,
    database: CurrentDatabase,
    sender: Admin,
    key_id: str,
    prefix: Annotated[str, Form()] = "",
    grace_seconds: Annotated[int, Form(ge=0, le=30 * 86_400)] = 0,
) -> Response:
    """prefix: of the secret that the page showed."""
    asked = RotationRequest(grace_seconds=grace_seconds, prefix=prefix)
    with database.write() as session:
        rotated = auth.rotate_api_key(session, sender, key_id, asked)
    return _key_page(request, sender, rotated)


@router.post("/{key_id}/revoke")
def revoke_key(database: CurrentDatabase, sender: Admin, key_id: str) -> Response:
    with database.write() as session:
        auth.revoke_api_key(session, sender, key_id)
    return see("/api-keys")


def _key_form(request: Request, sender: Principal, form: Fields) -> Response:
    return render(
        request,
        "keys/form.html",
        sender,
        status_code=form.status_code,
        form=form,
        roles=list(Role),
        scopes=list(Scope),
    )


def _key_page(request: Request, sender: Principal, key: CreatedApiKey) -> Response:
    return render(request, "keys/made.html", sender, key=key)
