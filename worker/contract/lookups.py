"""What the service sends a lookup server: where a table is, and what somebody asks about it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from worker.contract.control_plane import AssignedIndex, Body, Limits

SECONDS_LEFT = "Icestream-Seconds-Left"
"""The header that tells for how long the answer is waited for, in seconds from when the question is sent."""
KEYS = 10_000
"""Of one question at most."""
_COLUMNS = 1_000


class AskedTable(Limits):
    """properties: of the catalog's record, with references in the place of secrets. head_age_seconds: since
    the catalog named the metadata location."""

    metadata_location: str
    head_age_seconds: float = Field(default=0, ge=0, allow_inf_nan=False)
    branch: str = "main"
    key_sets: list[list[str]] = Field(default_factory=list)
    properties: dict[str, str]
    index: AssignedIndex


class AskedKeys(Body):
    """keys: a value for each key column, as Iceberg writes it in JSON; none if they come as Arrow. select:
    columns to show. schema_id: of the schema that has them, else it is the table's for a branch, and the
    snapshot's own for time travel."""

    keys: list[dict[str, Any]] = Field(default_factory=list, max_length=KEYS)
    key_columns: list[str] | None = Field(default=None, min_length=1, max_length=_COLUMNS)
    branch: str | None = None
    snapshot_id: int | None = None
    schema_id: int | None = None
    select: list[str] | None = Field(default=None, min_length=1, max_length=_COLUMNS)


class LookupRequest(Body):
    table: AskedTable
    question: AskedKeys
