"""Who calls, with which part of a role; and what is asked and told about keys and the audit log."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from fastapi import Query
from pydantic import ConfigDict, StringConstraints, model_validator
from pydantic import Field as ModelField

from service.http.messages import Message, UtcTime, example
from service.records.api_keys import KeyState, Role


class Scope(StrEnum):
    """This is a part of what a role allows: the calls under one heading of /docs, or those that only read.
    There is none for making keys, which could allow more than the key that makes them.
    """

    AUDIT_READ = "audit:read"
    AUTH_READ = "auth:read"
    CATALOGS_READ = "catalogs:read"
    CATALOGS_WRITE = "catalogs:write"
    DISCOVERY_READ = "discovery:read"
    DISCOVERY_WRITE = "discovery:write"
    ERASURES_READ = "erasures:read"
    ERASURES_WRITE = "erasures:write"
    HEALTH_READ = "health:read"
    JOBS_READ = "jobs:read"
    JOBS_WRITE = "jobs:write"
    LOOKUPS_READ = "lookups:read"
    NOTIFICATIONS_READ = "notifications:read"
    NOTIFICATIONS_WRITE = "notifications:write"
    POLICIES_READ = "policies:read"
    POLICIES_WRITE = "policies:write"
    ROWS_WRITE = "rows:write"
    TABLES_READ = "tables:read"
    TABLES_WRITE = "tables:write"
    WEBHOOKS_READ = "webhooks:read"
    WEBHOOKS_WRITE = "webhooks:write"
    WORKERS_READ = "workers:read"
    WORKERS_WRITE = "workers:write"


@dataclass(frozen=True)
class Principal:
    """Who is calling."""

    kind: Literal["api_key", "session", "oidc", "system", "anonymous"]
    id: str
    name: str
    role: Role
    csrf_token: str | None = None
    """Set for browser sessions: forms and scripts of the page must send it back."""
    scopes: frozenset[Scope] | None = None
    """None: all that the role allows."""
    tables: tuple[str, ...] | None = None
    """Patterns of full names, such as `lake.sales.*`: whose keys may be asked for. None: all."""

    @property
    def key(self) -> str:
        """One for each principal, of whatever kind."""
        return f"{self.kind}:{self.id}"


SYSTEM = Principal("system", "system", "icestream", Role.ADMIN)
"""The service itself: `up` and the scheduler."""


TablePattern = Annotated[str, StringConstraints(min_length=1, max_length=1_000)]


class ApiKeyRequest(Message):
    """An API key to be made."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {
                "name": "grafana",
                "role": "viewer",
                "scopes": ["health:read", "tables:read"],
                "expires_at": "2030-01-01T00:00:00Z",
            },
        )
    )

    name: str = ModelField(min_length=1, max_length=200)
    """People know the key by its name, which need not be unique."""
    role: Role
    """The key may do what this role allows."""
    scopes: list[Scope] | None = ModelField(default=None, min_length=1)
    """The key may call only what these scopes name: headings of /docs, where `write` includes `read`; null is
    all that its role may. A key with scopes cannot sign in a browser."""
    tables: list[TablePattern] | None = ModelField(default=None, min_length=1, max_length=1_000)
    """The key may ask for keys of these tables alone, by full names with `*` for any text, such as
    `lake.sales.*`; null for all. Only for a key whose one scope is `lookups:read`: every other part of the
    API tells of all tables."""
    expires_at: UtcTime | None = None
    """The key ends at this time; null for never."""

    @model_validator(mode="after")
    def _check_tables(self) -> Self:
        if self.tables is not None and set(self.scopes or ()) != {Scope.LOOKUPS_READ}:
            raise ValueError("tables can be given for the one scope lookups:read only")
        return self


class RotationRequest(Message):
    """This is how a key gets a new secret."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {"grace_seconds": 3600},
        )
    )

    grace_seconds: int = ModelField(ge=0, le=30 * 24 * 3600)
    """The old secret stays good beside the new one for this many seconds; 0 ends it at once."""
    expires_at: UtcTime | None = None
    """The key expires at this time from now on; left out, the time stays as it is."""
    prefix: str | None = None
    """First characters of the secret to be replaced: 409 if somebody was faster. Left out: any."""


class ApiKeyView(Message):
    """This is an API key as it is shown, which is without the key."""

    id: str
    """The id names the key in later calls."""
    name: str
    """The name is as it was given when the key was made."""
    role: Role
    """The key may do what this role allows."""
    scopes: list[Scope] | None
    """The key may use these parts alone of what its role allows; null for all."""
    tables: list[str] | None
    """The tables whose keys may be asked for, by patterns of their full names; null for all."""
    state: KeyState
    """The key can be used while it is `active`."""
    prefix: str
    """First characters of the key, to tell keys apart."""
    created_at: datetime
    """The key was made at this time."""
    created_by: str
    """The key was made by the holder of this name."""
    expires_at: datetime | None
    """The key ends at this time; null for never."""
    last_used_at: datetime | None
    """The key was last used at this time, give or take five minutes; null for never."""
    revoked_at: datetime | None
    """The key was revoked at this time; null if it was not."""
    rotated_at: datetime | None
    """The key got its present secret at this time; null if that is its first."""
    previous_expires_at: datetime | None
    """The secret before the last rotation is good until this time."""


class CreatedApiKey(ApiKeyView):
    """This is a new API key, or one that got a new secret."""

    key: str
    """The secret of the key is shown this once; only its hash is stored."""


class Me(Message):
    """This is who the credentials of a request belong to."""

    name: str
    """The caller is called so: by the name of the API key, or of the person who signed in."""
    role: Role
    """The caller may do what this role allows."""
    scopes: list[Scope] | None
    """The caller may use these parts alone of what the role allows; null for all."""
    kind: str
    """The credentials are an `api_key`, a `session` or of another kind."""


@dataclass(frozen=True)
class AuditFilter:
    """Which entries of the audit log a call lists, as its parameters say; named as the entry's columns."""

    outcome: Annotated[
        Literal["allowed", "denied"] | None,
        Query(description="Only what was allowed is listed, or only what was not."),
    ] = None
    action: Annotated[
        str | None, Query(description="Only entries of this action are listed, such as `table.enroll`.")
    ] = None
    principal: Annotated[
        str | None, Query(description="Only what the holder of this name did is listed.")
    ] = None
    target: Annotated[str | None, Query(description="Only what was done to this is listed.")] = None
    request_id: Annotated[
        str | None, Query(description="Only what the request with this X-Request-ID did is listed.")
    ] = None


class AuditEntryView(Message):
    """This is what somebody did, or was not allowed to do."""

    id: int
    """The id of the entry is larger than those of earlier entries."""
    at: datetime
    """The entry was written at this time."""
    principal: str
    """The action was one by the holder of this name: that of an API key, of a person who signed in, or
    `icestream` for the service itself."""
    role: str
    """The caller had this role then."""
    action: str
    """The action has a name, such as `table.enroll`."""
    target: str
    """The action was done to this: a name, an id, or the path that was called."""
    outcome: Literal["allowed", "denied"]
    """The action was `allowed` or `denied`."""
    request_id: str | None
    """The request that did it had this X-Request-ID; null for what the service did by itself."""
    fields: dict[str, Any]
    """The entry has more about the action here, such as `dry_run` or the `reason` of a denial."""
