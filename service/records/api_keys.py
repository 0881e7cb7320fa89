"""Roles; and keys, one-time login tokens and browser sessions. Only hashes of secrets are stored."""

from datetime import datetime
from enum import StrEnum
from typing import Self

from sqlmodel import Field, SQLModel

from service.db.database import Json, UtcDateTime, new_id, utc_now


class Role(StrEnum):
    """The roles are viewer < operator < admin; worker stands apart and reports about jobs only."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    WORKER = "worker"

    def allows(self, needed: Self) -> bool:
        """Whether somebody with this role may do what `needed` may."""
        if self is Role.ADMIN:
            return True
        if Role.WORKER in (self, needed):
            return self is needed
        ladder = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)
        return ladder.index(self) >= ladder.index(needed)


class KeyState(StrEnum):
    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


class ApiKey(SQLModel, table=True):
    __tablename__ = "api_keys"

    id: str = Field(default_factory=new_id, primary_key=True)
    name: str
    role: str
    key_hash: str = Field(unique=True)
    scopes: list[str] | None = Field(default=None, sa_type=Json)
    """None: all that the role allows."""
    tables: list[str] | None = Field(default=None, sa_type=Json)
    """Patterns of full names, of tables whose keys may be asked for; None: all."""
    prefix: str
    """The first characters, to tell keys apart in lists."""
    created_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    created_by: str
    expires_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    last_used_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    revoked_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    rotated_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    previous_key_hash: str | None = Field(default=None, index=True, unique=True)
    """Of the secret before the last rotation, which is good until `previous_expires_at`."""
    previous_expires_at: datetime | None = Field(default=None, sa_type=UtcDateTime)

    def state(self, now: datetime) -> KeyState:
        if self.revoked_at is not None:
            return KeyState.REVOKED
        if self.expires_at is not None and self.expires_at <= now:
            return KeyState.EXPIRED
        return KeyState.ACTIVE

    def is_valid(self, now: datetime) -> bool:
        return self.state(now) is KeyState.ACTIVE


class LoginToken(SQLModel, table=True):
    """Good for one login."""

    __tablename__ = "login_tokens"

    token_hash: str = Field(primary_key=True)
    name: str
    role: str
    expires_at: datetime = Field(sa_type=UtcDateTime)
    used_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class BrowserSession(SQLModel, table=True):
    __tablename__ = "browser_sessions"

    token_hash: str = Field(primary_key=True)
    id: str = Field(default_factory=new_id)
    name: str
    role: str
    api_key_id: str | None = Field(default=None, foreign_key="api_keys.id", index=True)
    """The key that opened it: revoking the key ends the session."""
    created_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    expires_at: datetime = Field(sa_type=UtcDateTime)
