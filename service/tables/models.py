"""What is asked and told about enrolled tables."""

from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, field_validator
from pydantic import Field as ModelField
from pyiceberg.table.refs import MAIN_BRANCH

from service.http.messages import Message, example
from service.records.health import HealthStatus

Identifier = Annotated[
    list[Annotated[str, ModelField(min_length=1)]], ModelField(min_length=2, max_length=20)
]
KeySet = Annotated[list[Annotated[str, ModelField(min_length=1)]], ModelField(min_length=1)]


class Staging(Message):
    """A staging branch is published on the table's branch by jobs."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, serialize_by_alias=True)

    source: str = ModelField(alias="from", min_length=1)
    """This is the branch that the writer commits to, and that nobody reads: what is published leaves it. It
    need not exist yet, and is never `main`."""

    @field_validator("source")
    @classmethod
    def _is_not_main(cls, source: str) -> str:
        if source == MAIN_BRANCH:
            raise ValueError(
                "readers read main, and a staging branch is emptied: name the one that the writer commits to"
            )
        return source


class TableRequest(Message):
    """A table to be enrolled."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra=example(
            {"catalog": "local", "identifier": ["sales", "orders"], "policy": "standard"},
        ),
    )

    catalog: str = ModelField(min_length=1)
    """The catalog is given by name or id."""
    identifier: Identifier
    """The identifier has the namespace's parts, then the table's name: `["db", "t"]`."""
    branch: str = ModelField(default="main", min_length=1)
    """The branch whose equality deletes are converted."""
    policy: str | None = None
    """Name or id; null inherits from namespace, catalog, system."""
    key_sets: list[KeySet] | None = None
    """Keys to index before any equality delete has named them, as column names; others are found."""
    publish: Staging | None = None
    """A staging branch is published on the branch, which then gets no equality delete; null for none."""


class PatternRequest(Message):
    """Enrol every table whose dotted name matches a shell-style pattern, such as `sales.*`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra=example(
            {"catalog": "local", "pattern": "sales.*", "exclude": ["sales.tmp_*"], "dry_run": True},
        ),
    )

    catalog: str = ModelField(min_length=1)
    """The catalog is given by name or id."""
    pattern: str = ModelField(min_length=1)
    """The pattern is of dotted names: `*` stands for anything, `?` for one character, `[abc]` for one of
    these."""
    exclude: list[str] = ModelField(default_factory=list)
    """Tables that match these patterns are left out."""
    branch: str = ModelField(default="main", min_length=1)
    """This branch of each table is enrolled."""
    policy: str | None = None
    """Name or id of a policy to attach to each; null inherits."""
    publish: Staging | None = None
    """This staging branch of each table is published on its branch; null for none."""
    dry_run: bool = False
    """Only say which tables match."""


class TablePatch(Message):
    """Fields left out stay."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra=example(
            {"policy": "manual", "key_sets": [["id"]]},
        ),
    )

    policy: str | None = None
    """Null goes back to inheriting."""
    key_sets: list[KeySet] | None = None
    """The declared keys are lists of column names; null or an empty list for none."""
    publish: Staging | None = None
    """A staging branch is published on the table's branch; null publishes nothing any more."""


class TableView(Message):
    """A table as it is enrolled."""

    id: str
    """The id names the enrolment."""
    catalog_id: str
    """The catalog that knows the table."""
    catalog: str
    """The catalog has this name."""
    identifier: list[str]
    """The identifier has the namespace's parts, then the table's name."""
    name: str
    """The name is the identifier with dots."""
    branch: str
    """The branch that is worked on."""
    policy: str | None
    """The policy attached to this very table; null means inherited."""
    key_sets: list[list[str]]
    """The declared keys are lists of column names."""
    publish: Staging | None
    """The staging branch that is published on the branch; null if none is."""
    table_uuid: str
    """The id that Iceberg itself gives the table."""
    format_version: int
    """The Iceberg table has the format version 2 or 3."""
    location: str
    """Where the table lies."""
    index_warehouse: str
    """Where its index lies."""
    paused: bool
    """While true, none of its jobs starts."""
    status: HealthStatus
    """One word says how the table was doing at its last poll."""
    status_reason: str
    """Why the status is what it is; what to do about it says the table's health."""
    pending_equality_deletes: int
    """The live equality delete files have so many rows, as of the last poll."""
    pending_equality_delete_files: int
    """So many equality delete files are live."""
    lag_seconds: float
    """Age of the oldest live equality delete file; 0 when there is none."""
    measured_at: datetime | None
    """When it was polled last; null before the first time."""
    version: int
    """Counts its changes; also its ETag."""
    created_at: datetime
    """When it was enrolled."""
    updated_at: datetime
    """When the enrolment was changed last."""


class PatternMiss(Message):
    """A table that could not be enrolled."""

    identifier: list[str]
    """The identifier has the namespace's parts, then the table's name."""
    type: str
    """The type says which problem it was, as in problem documents."""
    detail: str
    """What happened."""
    remedy: str
    """What to do about it."""


class PatternResult(Message):
    """What has become of each table that the pattern matched."""

    dry_run: bool
    """Whether nothing was enrolled because that was asked for."""
    matched: list[str]
    """Every table that the pattern matched is listed by its dotted name."""
    enrolled: list[TableView]
    """The tables that this request has enrolled."""
    already_enrolled: list[TableView]
    """Tables that were enrolled before."""
    failed: list[PatternMiss]
    """Tables that could not be enrolled."""
