"""What the service sends a lookup server: where a table is, and what somebody asks about it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from trust.egress import Egress
from worker.contract.control_plane import AssignedIndex
from worker.io.storage import ALLOWED_LOCATIONS, OWN_FILES

KEYS = 10_000
"""Of one question at most."""
_COLUMNS = 1_000


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class AskedTable(_Body):
    """properties: of the catalog's record, with references in the place of secrets."""

    metadata_location: str
    branch: str = "main"
    key_sets: list[list[str]] = []
    properties: dict[str, str]
    index: AssignedIndex
    allowed_locations: list[str] | None = None
    allowed_hosts: list[str] | None = None
    allowed_secrets: list[str] | None = None
    own_files: list[str] = []

    @property
    def egress(self) -> Egress:
        """The hosts that the service lets the catalog lead to."""
        return Egress(None if self.allowed_hosts is None else tuple(self.allowed_hosts))

    @property
    def location_limits(self) -> dict[str, str]:
        """What limits a `Storage` to the places that the service allows."""
        allowed = self.allowed_locations
        roots = {} if allowed is None else {ALLOWED_LOCATIONS: "\n".join(allowed)}
        return roots | ({OWN_FILES: "\n".join(self.own_files)} if self.own_files else {})


class AskedKeys(_Body):
    """keys: a value for each key column, as Iceberg writes it in JSON. select: columns to show."""

    keys: list[dict[str, Any]] = Field(min_length=1, max_length=KEYS)
    key_columns: list[str] | None = Field(default=None, min_length=1, max_length=_COLUMNS)
    branch: str | None = None
    snapshot_id: int | None = None
    select: list[str] | None = Field(default=None, min_length=1, max_length=_COLUMNS)


class LookupRequest(_Body):
    table: AskedTable
    question: AskedKeys
