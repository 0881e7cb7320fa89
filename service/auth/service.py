"""API keys, login links, browser sessions, and the one check that every write goes through.

Secrets are random with at least 256 bits, so a plain SHA-256 of them is enough to store.
"""

import hashlib
import hmac
import secrets
from contextlib import suppress
from datetime import datetime, timedelta

from sqlalchemy import bindparam, or_
from sqlalchemy.exc import OperationalError
from sqlmodel import Session, and_, col, select

from service.auth import audit
from service.auth.models import (
    SYSTEM,
    ApiKeyRequest,
    ApiKeyView,
    CreatedApiKey,
    Principal,
    RotationRequest,
    Scope,
)
from service.db.database import Database, utc_now
from service.errors import ConflictError, ForbiddenError, NotFoundError, StartError, UnauthenticatedError
from service.http.paging import Page, PageRequest, Sorting, read_page
from service.records.api_keys import ApiKey, BrowserSession, KeyState, LoginToken, Role
from service.settings import Settings

KEY_PREFIX = "ice_"
LOGIN_LINK_LIFETIME = timedelta(minutes=10)
_EMBEDDED_WORKER = "embedded worker"
_GIVEN = "(given)"
"""In place of the first characters of a secret that is a setting."""
_OF_SECRET = select(ApiKey).where(
    or_(col(ApiKey.key_hash) == bindparam("hashed"), col(ApiKey.previous_key_hash) == bindparam("hashed"))
)
"""Built once: that takes longer than the database, and stands before every request."""
SORTING = Sorting(
    {
        "name": ApiKey.name,
        "created_at": ApiKey.created_at,
        "expires_at": ApiKey.expires_at,
        "last_used_at": ApiKey.last_used_at,
    },
    key=ApiKey.id,
    default="created_at",
)


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def authorize(
    session: Session, principal: Principal, needed: Role, action: str, target: str, **fields: object
) -> None:
    """Record that `principal` does `action`, or raise ForbiddenError (which is recorded as denied).

    Every service function that writes calls this first, whether it was reached over HTTP or from a page.
    """
    require_role(principal, needed, action, target)
    audit.record(session, principal, action, target, "allowed", **fields)


def require_role(principal: Principal, needed: Role, action: str, target: str) -> None:
    """Raise ForbiddenError unless `principal` may do `action`; for slow work before the transaction."""
    if not principal.role.allows(needed):
        raise forbidden(principal, needed, action, target)


def forbidden(principal: Principal, needed: Role, action: str, target: str) -> ForbiddenError:
    return ForbiddenError(
        "forbidden",
        f"{principal.name!r} has the role {principal.role.value}; this needs {needed.value}.",
        f"Use a key with the role {needed.value}, or ask an admin for one.",
        action=action,
        target=target,
    )


def create_api_key(
    session: Session, principal: Principal, request: ApiKeyRequest, *, key: str | None = None
) -> CreatedApiKey:
    """Make a key; the answer is the only place where it can ever be read."""
    scopes = sorted({scope.value for scope in request.scopes}) if request.scopes is not None else None
    limits = {"role": request.role.value, "scopes": scopes, "tables": request.tables}
    limits = {name: limit for name, limit in limits.items() if limit is not None}
    authorize(session, principal, Role.ADMIN, "api_key.create", request.name, **limits)
    secret = key or _new_key()
    row = ApiKey(
        name=request.name,
        role=request.role.value,
        scopes=scopes,
        tables=request.tables,
        key_hash=hash_secret(secret),
        prefix=_shown_prefix(secret) if key is None else _GIVEN,
        created_by=principal.name,
        expires_at=request.expires_at,
    )
    session.add(row)
    session.flush()
    return CreatedApiKey(**_key_view(row).model_dump(), key=secret)


def rotate_api_key(
    session: Session, principal: Principal, key_id: str, request: RotationRequest
) -> CreatedApiKey:
    """Give a key a new secret at once; the old one, and the sessions that it opened, end with the grace.

    A secret that an earlier rotation had left good ends at once. Raises ConflictError for a key that is not
    active, for one whose secret is a setting, and for one that has another secret than the request says.
    """
    row = _get_api_key(session, key_id, for_update=True)
    authorize(session, principal, Role.ADMIN, "api_key.rotate", row.name, id=key_id)
    now = utc_now()
    if not row.is_valid(now):
        raise ConflictError(
            "api-key-not-active", f"The key {row.name!r} is {row.state(now).value}.", "Make a new one."
        )
    if row.prefix == _GIVEN:
        raise ConflictError(
            "api-key-given",
            "Its secret is a setting: ICESTREAM_BOOTSTRAP_KEY or ICESTREAM_BOOTSTRAP_WORKER_KEY.",
            "Start the service with another secret in that setting, then revoke this key.",
        )
    if request.prefix is not None and request.prefix != row.prefix:
        raise ConflictError(
            "api-key-rotated",
            f"The secret of {row.name!r} begins with {row.prefix} now, not with {request.prefix}.",
            "Use the secret that somebody has made meanwhile, or rotate the key as it is now.",
        )
    ends_at = now + timedelta(seconds=request.grace_seconds)
    secret = _new_key()
    row.previous_key_hash, row.previous_expires_at = row.key_hash, ends_at
    row.key_hash, row.prefix, row.rotated_at = hash_secret(secret), _shown_prefix(secret), now
    if "expires_at" in request.model_fields_set:
        row.expires_at = request.expires_at
    session.add(row)
    for opened in session.exec(select(BrowserSession).where(BrowserSession.api_key_id == key_id)):
        opened.expires_at = min(opened.expires_at, ends_at)
        session.add(opened)
    session.flush()
    return CreatedApiKey(**_key_view(row).model_dump(), key=secret)


def list_api_keys(
    session: Session,
    page: PageRequest,
    *,
    state: KeyState | None = None,
    role: Role | None = None,
    search: str | None = None,
) -> Page[ApiKeyView]:
    """All keys, revoked and expired ones too; `search` is a part of the name."""
    query = select(ApiKey)
    if role is not None:
        query = query.where(ApiKey.role == role.value)
    if search:
        query = query.where(col(ApiKey.name).icontains(search, autoescape=True))
    if state is not None:
        is_revoked = col(ApiKey.revoked_at).is_not(None)
        is_over = and_(col(ApiKey.expires_at).is_not(None), col(ApiKey.expires_at) <= utc_now())
        query = query.where(
            {
                KeyState.REVOKED: is_revoked,
                KeyState.EXPIRED: and_(~is_revoked, is_over),
                KeyState.ACTIVE: and_(~is_revoked, ~is_over),
            }[state]
        )
    return read_page(session, query, page, SORTING, lambda rows: [_key_view(row) for row in rows])


def revoke_api_key(session: Session, principal: Principal, key_id: str) -> ApiKeyView:
    """End a key and every browser session that it opened; revoking twice changes nothing."""
    row = _get_api_key(session, key_id)
    authorize(session, principal, Role.ADMIN, "api_key.revoke", row.name, id=key_id)
    row.revoked_at = row.revoked_at or utc_now()
    session.add(row)
    for opened in session.exec(select(BrowserSession).where(BrowserSession.api_key_id == key_id)):
        session.delete(opened)
    return _key_view(row)


def ensure_bootstrap_keys(session: Session, settings: Settings) -> None:
    """Make ICESTREAM_BOOTSTRAP_KEY an admin key and ICESTREAM_BOOTSTRAP_WORKER_KEY a worker's, unless known.

    Raises StartError when one is too short, or when the service would be reachable from other machines
    with no admin at all, neither by a key nor by the issuer of tokens.
    """
    settings.check_bootstrap_keys()
    given = (
        ("bootstrap", Role.ADMIN, settings.bootstrap_key),
        ("bootstrap worker", Role.WORKER, settings.bootstrap_worker_key),
    )
    for name, role, secret in given:
        key = secret and secret.get_secret_value()
        if key and session.exec(select(ApiKey).where(ApiKey.key_hash == hash_secret(key))).first() is None:
            create_api_key(session, SYSTEM, ApiKeyRequest(name=name, role=role), key=key)
    if settings.bootstrap_key is not None:
        return
    now = utc_now()
    admins = session.exec(select(ApiKey).where(ApiKey.role == Role.ADMIN.value)).all()
    has_admin = any(key.is_valid(now) for key in admins) or Role.ADMIN in settings.oidc_roles.values()
    if settings.is_public and not has_admin:
        raise StartError(
            f"Refusing to listen on {settings.host}, which other machines can reach, without any admin key. "
            "Set ICESTREAM_BOOTSTRAP_KEY to a secret of 32 characters or more, map a group of "
            "your OpenID Connect issuer to the role admin, or listen on 127.0.0.1."
        )


def provision_worker_key(session: Session) -> str:
    """A fresh key for the worker that `up` starts; the one of the previous start is revoked."""
    now = utc_now()
    for row in session.exec(
        select(ApiKey).where(ApiKey.name == _EMBEDDED_WORKER, col(ApiKey.revoked_at).is_(None))
    ):
        row.revoked_at = now
        session.add(row)
    return create_api_key(session, SYSTEM, ApiKeyRequest(name=_EMBEDDED_WORKER, role=Role.WORKER)).key


def find_api_key_principal(database: Database, key: str) -> Principal | None:
    """Who holds this key, or None if it is unknown, revoked or expired."""
    now = utc_now()
    with database.read() as session:
        found = _find_valid_key(session, key, now)
    if found is None:
        return None
    row, _ = found
    if row.last_used_at is None or now - row.last_used_at > timedelta(minutes=5):
        # Who may read is not refused because nothing can be written; a call that writes says so itself.
        with suppress(OperationalError), database.write() as session:
            used = session.get_one(ApiKey, row.id)
            used.last_used_at = now
            session.add(used)
    scopes = frozenset(map(Scope, row.scopes)) if row.scopes is not None else None
    tables = tuple(row.tables) if row.tables is not None else None
    return Principal("api_key", row.id, row.name, Role(row.role), scopes=scopes, tables=tables)


def create_login_link(
    database: Database, base_url: str, *, name: str = "local user", role: Role = Role.ADMIN
) -> str:
    """A link that logs one browser in, once, within ten minutes: `{base_url}/login?token=...`."""
    token = secrets.token_urlsafe(32)
    with database.write() as session:
        audit.record(session, SYSTEM, "login_link.create", name, "allowed", role=role.value)
        session.add(
            LoginToken(
                token_hash=hash_secret(token),
                name=name,
                role=role.value,
                expires_at=utc_now() + LOGIN_LINK_LIFETIME,
            )
        )
    return f"{base_url.rstrip('/')}/login?token={token}"


def log_in_with_token(session: Session, settings: Settings, token: str) -> str:
    """Use up a one-time token; return the secret of a new browser session.

    Raises UnauthenticatedError when the token is unknown, used or expired.
    """
    now = utc_now()
    row = session.exec(
        select(LoginToken).where(LoginToken.token_hash == hash_secret(token)).with_for_update()
    ).first()
    if row is None or row.used_at is not None or row.expires_at <= now:
        raise UnauthenticatedError(
            "login-link-invalid", "This one was used already, has expired, or was never made."
        )
    row.used_at = now
    session.add(row)
    holder = Principal("session", "", row.name, Role(row.role))
    audit.record(session, holder, "login_link.use", row.name, "allowed")
    return _open_browser_session(session, settings, row.name, Role(row.role), None, now)


def log_in_with_key(session: Session, settings: Settings, key: str) -> str:
    """Open a browser session for the holder of an API key; return its secret."""
    now = utc_now()
    found = _find_valid_key(session, key, now)
    if found is None:
        raise invalid_key()
    row, ends_at = found
    if row.scopes is not None:
        raise UnauthenticatedError(
            "api-key-scoped",
            f"The key {row.name!r} is only for {', '.join(row.scopes)}, and pages show more than that.",
        )
    return _open_browser_session(session, settings, row.name, Role(row.role), row.id, now, ends_at)


def find_session_principal(database: Database, token: str) -> Principal | None:
    """Who is logged in with this session secret, or None."""
    with database.read() as session:
        row = session.get(BrowserSession, hash_secret(token))
    if row is None or row.expires_at <= utc_now():
        return None
    return Principal("session", row.id, row.name, Role(row.role), csrf_token=csrf_token_of(token))


def log_out(session: Session, token: str) -> None:
    """End the session of this secret, if there is one."""
    row = session.get(BrowserSession, hash_secret(token))
    if row is not None:
        session.delete(row)


def csrf_token_of(session_token: str) -> str:
    """Derived from the session secret, which no other site can read; nothing more to store."""
    return hmac.new(session_token.encode(), b"csrf", hashlib.sha256).hexdigest()


def invalid_key() -> UnauthenticatedError:
    return UnauthenticatedError("invalid-api-key", "It is unknown, revoked or expired.")


def _open_browser_session(
    session: Session,
    settings: Settings,
    name: str,
    role: Role,
    api_key_id: str | None,
    now: datetime,
    ends_at: datetime | None = None,
) -> str:
    token = secrets.token_urlsafe(32)
    expires_at = now + timedelta(hours=settings.session_hours)
    session.add(
        BrowserSession(
            token_hash=hash_secret(token),
            name=name,
            role=role.value,
            api_key_id=api_key_id,
            expires_at=min(expires_at, ends_at) if ends_at else expires_at,
        )
    )
    return token


def _get_api_key(session: Session, key_id: str, *, for_update: bool = False) -> ApiKey:
    row = session.get(ApiKey, key_id, with_for_update=for_update)
    if row is None:
        raise NotFoundError(
            "api-key-not-found", f"There is no API key {key_id}.", "Look in the list of API keys."
        )
    return row


def _find_valid_key(session: Session, key: str, now: datetime) -> tuple[ApiKey, datetime | None] | None:
    """The key that has this secret, now or still, and when the secret ends; None if there is no valid one."""
    hashed = hash_secret(key)
    row = session.exec(_OF_SECRET, params={"hashed": hashed}).first()
    if row is None or not row.is_valid(now):
        return None
    if row.key_hash == hashed:
        return row, row.expires_at
    ends_at = row.previous_expires_at
    if ends_at is None or ends_at <= now:
        return None
    return row, min(ends_at, row.expires_at or ends_at)


def _new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def _shown_prefix(secret: str) -> str:
    return secret[:8]


def _key_view(row: ApiKey) -> ApiKeyView:
    return ApiKeyView.model_validate(row.model_dump() | {"state": row.state(utc_now())})
