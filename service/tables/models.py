"""What is asked and told about enrolled tables."""

from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict
from pydantic import Field as ModelField

from service.http.messages import Message, example
from service.records.health import HealthStatus

Identifier = Annotated[
    list[Annotated[str, ModelField(min_length=1)]], ModelField(min_length=2, max_length=20)
]
KeySet = Annotated[list[Annotated[str, ModelField(min_length=1)]], ModelField(min_length=1)]


class TableRequest(Message):
    """A table to be enrolled."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra=example(
            {"catalog": "local", "identifier": ["sales", "orders"], "policy": "standard"},
        ),
    )

    catalog: str = ModelField(min_length=1)
    """Name or id."""
    identifier: Identifier
    """Namespace parts, then the table name: `["db", "t"]`."""
    branch: str = ModelField(default="main", min_length=1)
    """The branch whose equality deletes are converted."""
    policy: str | None = None
    """Name or id; null inherits from namespace, catalog, system."""
    key_sets: list[KeySet] | None = None
    """Keys to index before any equality delete has named them, as column names; others are found."""


class PatternRequest(Message):
    """Enrol every table whose dotted name matches a shell-style pattern, such as `sales.*`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra=example(
            {"catalog": "local", "pattern": "sales.*", "exclude": ["sales.tmp_*"], "dry_run": True},
        ),
    )

    catalog: str = ModelField(min_length=1)
    """Name or id."""
    pattern: str = ModelField(min_length=1)
    """`*` stands for anything, `?` for one character, `[abc]` for one of these."""
    exclude: list[str] = ModelField(default_factory=list)
    """Patterns of tables to leave out."""
    branch: str = ModelField(default="main", min_length=1)
    """The branch of each table."""
    policy: str | None = None
    """Name or id of a policy to attach to each; null inherits."""
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
    """Declared keys, as column names; null or an empty list for none."""


class TableView(Message):
    """An enrolled table."""

    id: str
    """Identifies the enrolment."""
    catalog_id: str
    """The catalog that knows the table."""
    catalog: str
    """Name of that catalog."""
    identifier: list[str]
    """Namespace parts, then the table name."""
    name: str
    """The identifier with dots."""
    branch: str
    """The branch that is worked on."""
    policy: str | None
    """The policy attached to this very table; null means inherited."""
    key_sets: list[list[str]]
    """Declared keys, as column names."""
    table_uuid: str
    """Iceberg's own id of the table."""
    format_version: int
    """Of the Iceberg table: 2 or 3."""
    location: str
    """Where the table lies."""
    index_warehouse: str
    """Where its index lies."""
    paused: bool
    """While true, none of its jobs starts."""
    status: HealthStatus
    """Its health in one word, as of its last poll."""
    status_reason: str
    """Why the status is what it is; what to do about it says the table's health."""
    version: int
    """Counts its changes; also its ETag."""
    created_at: datetime
    """When it was enrolled."""
    updated_at: datetime
    """When the enrolment was changed last."""


class PatternMiss(Message):
    """A table that could not be enrolled."""

    identifier: list[str]
    """Namespace parts, then the table name."""
    type: str
    """Which problem it was, as in problem documents."""
    detail: str
    """What happened."""
    remedy: str
    """What to do about it."""


class PatternResult(Message):
    """What became of each table that the pattern matched."""

    dry_run: bool
    """Whether nothing was enrolled because that was asked for."""
    matched: list[str]
    """Dotted names of every table that the pattern matched."""
    enrolled: list[TableView]
    """Tables enrolled by this request."""
    already_enrolled: list[TableView]
    """Tables that were enrolled before."""
    failed: list[PatternMiss]
    """Tables that could not be enrolled."""
