"""What is asked and told about enrolled tables."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import Query
from pydantic import ConfigDict
from pydantic import Field as ModelField

from service.http.messages import ClosedMessage, Message, example
from service.http.paging import Search
from service.policies.settings import StagingBranch
from service.records.health import HealthStatus

Identifier = Annotated[
    list[Annotated[str, ModelField(min_length=1)]], ModelField(min_length=2, max_length=20)
]
KeySet = Annotated[list[Annotated[str, ModelField(min_length=1)]], ModelField(min_length=1)]


@dataclass(frozen=True)
class TableFilter:
    """Which enrolled tables a call lists, as its parameters say."""

    catalog: Annotated[
        str | None,
        Query(description="Only tables of this catalog are listed, which is given by name or id."),
    ] = None
    namespace: Annotated[
        str | None,
        Query(description="Only tables in or under this namespace are listed, which is written with dots."),
    ] = None
    search: Search = None
    paused: Annotated[
        bool | None, Query(description="Only those that are paused are listed, or only others.")
    ] = None
    status: Annotated[
        HealthStatus | None,
        Query(description="Only tables that had this health at their last poll are listed."),
    ] = None


class Staging(ClosedMessage):
    """A staging branch is published on the table's branch by jobs."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    source: StagingBranch = ModelField(alias="from")
    """The writer commits to this branch, and nobody reads it, since what is published leaves it. It need not
    exist yet, and is never `main` nor `none`. Empty for none, whatever the policy says."""


class TableRequest(ClosedMessage):
    """A table to be enrolled."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {"catalog": "local", "identifier": ["sales", "orders"], "policy": "standard"},
        ),
    )

    catalog: str = ModelField(min_length=1)
    """The catalog is given by name or id."""
    identifier: Identifier
    """The identifier has the namespace's parts, then the table's name: `["db", "t"]`."""
    branch: str = ModelField(default="main", min_length=1)
    """The equality deletes of this branch are converted."""
    policy: str | None = None
    """The policy has this name or id; null inherits from namespace, catalog, system."""
    key_sets: list[KeySet] | None = None
    """Keys to index before any equality delete has named them, as column names; others are found."""
    publish: Staging | None = None
    """A staging branch is published on the branch, which then gets no equality delete; null for what the
    policy says."""


class PatternRequest(ClosedMessage):
    """Enrol every table whose dotted name matches a shell-style pattern, such as `sales.*`."""

    model_config = ConfigDict(
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
    """The policy of this name or id is attached to each; null inherits."""
    publish: Staging | None = None
    """This staging branch of each table is published on its branch; null for what its policy says."""
    dry_run: bool = False
    """Show which tables match, and enrol none."""


class TablePatch(ClosedMessage):
    """Fields left out stay."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {"policy": "manual", "key_sets": [["id"]]},
        ),
    )

    policy: str | None = None
    """The table gets the policy of this name or id; null goes back to inheriting."""
    key_sets: list[KeySet] | None = None
    """The declared keys are lists of column names; null or an empty list for none."""
    publish: Staging | None = None
    """A staging branch is published on the table's branch; null for what the policy says."""


class TableView(Message):
    """This is a table as it is enrolled."""

    id: str
    """The enrolment is named by this id in later calls."""
    catalog_id: str
    """The table is in the catalog of this id."""
    catalog: str
    """The table is in the catalog of this name."""
    identifier: list[str]
    """The identifier has the namespace's parts, then the table's name."""
    name: str
    """The name is the identifier with dots."""
    branch: str
    """Jobs of the enrolment work on this branch of the table."""
    policy: str | None
    """This policy is attached to this very table; null means inherited."""
    key_sets: list[list[str]]
    """The declared keys are lists of column names."""
    publish: Staging | None
    """The enrolment says which staging branch is published on the branch; null for what the policy says."""
    staging_branch: str | None
    """This staging branch is published, whether the enrolment or the policy says so; null if none is."""
    table_uuid: str
    """Iceberg itself gives the table this id."""
    format_version: int
    """The Iceberg table has the format version 2 or 3."""
    location: str
    """The table's metadata and files lie at this place, a URI."""
    index_warehouse: str
    """The table's indexes lie in this warehouse, a URI."""
    paused: bool
    """While true, none of its jobs starts."""
    status: HealthStatus
    """One word says how the table was doing at its last poll."""
    status_reason: str
    """The table has its status for this reason, in words."""
    what_to_do: str | None
    """A person should do this about the status; null if nothing is to be done."""
    pending_equality_deletes: int
    """The live equality delete files have this many rows, as of the last poll."""
    pending_equality_delete_files: int
    """The table has this many live equality delete files."""
    lag_seconds: float
    """The oldest live equality delete file is this many seconds old; 0 when there is none."""
    read_seconds: float
    """A full read of the table takes this many seconds of Spark's processor time now, as a model estimates
    it; the table's health has more."""
    read_overhead_seconds: float
    """This part of `read_seconds` goes for deletes and small files."""
    measured_at: datetime | None
    """The table was last polled at this time, or up to six intervals later; null before the first time."""
    version: int
    """Counts its changes; also its ETag."""
    created_at: datetime
    """The table was enrolled at this time."""
    updated_at: datetime
    """The enrolment was changed last at this time."""


class PatternMiss(Message):
    """This is a table that could not be enrolled."""

    identifier: list[str]
    """The identifier has the namespace's parts, then the table's name."""
    type: str
    """The type says which problem it was, as in problem documents."""
    detail: str
    """The detail says in words what happened."""
    remedy: str
    """The remedy says what to do so that the table can be enrolled."""


class PatternResult(Message):
    """This is what has become of each table that the pattern matched."""

    dry_run: bool
    """The tables were only looked for, and none was enrolled, if this is true."""
    matched: list[str]
    """Every table that the pattern matched is listed by its dotted name."""
    enrolled: list[TableView]
    """This request has enrolled these tables."""
    already_enrolled: list[TableView]
    """The pattern matched these tables, which were enrolled before."""
    failed: list[PatternMiss]
    """The pattern matched these tables, which could not be enrolled."""
