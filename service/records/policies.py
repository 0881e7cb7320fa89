"""Policies, and where they are attached."""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlmodel import Field, SQLModel

from service.db.database import Json, UtcDateTime, new_id, utc_now

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Policy(SQLModel, table=True):
    __tablename__ = "policies"

    id: str = Field(default_factory=new_id, primary_key=True)
    name: str = Field(unique=True)
    description: str = ""
    built_in: bool = False
    settings: dict[str, Any] = Field(default_factory=dict, sa_type=Json)
    version: int = 1
    created_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)
    updated_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)


class Level(StrEnum):
    """The levels go from the widest to the narrowest; the narrowest one that sets a value wins."""

    SYSTEM = "system"
    CATALOG = "catalog"
    NAMESPACE = "namespace"
    TABLE = "table"


class PolicyAttachment(SQLModel, table=True):
    __tablename__ = "policy_attachments"

    target: str = Field(primary_key=True)
    """One policy a place: `system`, `catalog:<id>`, `namespace:<catalog id>:<parts, JSON>`, `table:<id>`."""
    level: str
    catalog_id: str | None = Field(default=None, foreign_key="catalogs.id", index=True)
    namespace: list[str] | None = Field(default=None, sa_type=Json)
    table_id: str | None = Field(default=None, foreign_key="tables.id", index=True)
    policy_id: str = Field(foreign_key="policies.id", index=True)
    updated_at: datetime = Field(default_factory=utc_now, sa_type=UtcDateTime)

    @property
    def version(self) -> int:
        """When it was attached, in microseconds: one that is made anew has another than the one before."""
        return (self.updated_at - _EPOCH) // timedelta(microseconds=1)
