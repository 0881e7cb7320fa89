"""Standing patterns, and candidates: tables of a catalog with what conversion would do for them."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import ConfigDict
from pydantic import Field as ModelField

from service.http.messages import ClosedMessage, Message, example
from service.tables.models import PatternMiss, Staging

NamePattern = Annotated[str, ModelField(min_length=1, max_length=500)]


class StandingPatternRequest(ClosedMessage):
    """Enrol every table whose dotted name matches, those that are created later too."""

    model_config = ConfigDict(
        json_schema_extra=example({"catalog": "lake", "pattern": "sales.*", "exclude": ["sales.tmp_*"]}),
    )

    catalog: str = ModelField(min_length=1)
    """The catalog is given by name or id."""
    pattern: NamePattern
    """A shell-style pattern of dotted names: `*` is any text, `?` any character, `[ab]` one of these."""
    exclude: list[NamePattern] = ModelField(default_factory=list, max_length=100)
    """Tables that match these patterns are left out."""
    branch: str = ModelField(default="main", min_length=1)
    """This branch of each table is enrolled."""
    policy: str | None = None
    """Each table gets the policy of this name or id; null inherits."""
    publish: Staging | None = None
    """This staging branch of each table is published on its branch; null for what its policy says."""


class StandingPatternPatch(ClosedMessage):
    """Fields left out stay. Tables that are enrolled already stay enrolled."""

    model_config = ConfigDict(json_schema_extra=example({"paused": True}))

    pattern: NamePattern | None = None
    """The pattern of dotted names is written as for a shell."""
    exclude: Annotated[list[NamePattern], ModelField(max_length=100)] | None = None
    """Tables that match these patterns are left out."""
    policy: str | None = None
    """Tables to come get the policy of this name or id; null inherits."""
    paused: bool | None = None
    """While true, the pattern enrols no tables."""


class StandingPatternView(Message):
    """This is a pattern, and what came of it when it was last compared with the catalog."""

    id: str
    """The id names the pattern in later calls."""
    catalog_id: str
    """The pattern is compared with tables of the catalog of this id."""
    catalog: str
    """The pattern is compared with tables of the catalog of this name."""
    pattern: str
    """The pattern of dotted names is written as for a shell."""
    exclude: list[str]
    """Tables that match these patterns are left out."""
    branch: str
    """This branch of each table is enrolled."""
    policy: str | None
    """Each table gets the policy of this name; null means inherited."""
    publish: Staging | None
    """This staging branch of each table is published on its branch; null for what its policy says."""
    paused: bool
    """While true, the pattern enrols no tables."""
    version: int
    """Counts its changes; also its ETag."""
    created_by: str
    """The pattern was made by the holder of this name."""
    created_at: datetime
    """The pattern was made at this time."""
    updated_at: datetime
    """The pattern was last changed at this time."""
    evaluated_at: datetime | None
    """The pattern was last compared with the catalog at this time; null means never."""
    matched: int
    """This many tables matched when the pattern was last compared with the catalog."""
    enrolled: int
    """The pattern has enrolled this many tables so far."""
    error: dict[str, Any] | None
    """The last comparison failed with this error (`type`, `detail` and `remedy`), since the catalog could not
    be looked at; null if it could."""
    failures: list[PatternMiss]
    """These tables matched and could not be enrolled, with the reason; they are tried again."""


class Candidate(Message):
    """This is a table of a catalog, and the equality deletes that it holds."""

    identifier: list[str]
    """The identifier has the namespace's parts, then the table's name."""
    name: str
    """The name is the identifier with dots."""
    summary: str
    """The summary says in words what equality deletes the table holds."""
    table_id: str | None
    """The branch main of the table is enrolled under this id; null if it is not."""
    format_version: int | None
    """The Iceberg table has this format version; null if it could not be read."""
    equality_delete_files: int
    """This many equality delete files are live on branch main."""
    equality_deletes: int
    """The equality delete files have this many rows."""
    equality_delete_bytes: int
    """The equality delete files have this many bytes."""
    data_files: int
    """The table has this many data files."""
    read_seconds: float
    """A full read of the table takes this many seconds of Spark's processor time now, as a model estimates
    it."""
    read_overhead_seconds: float
    """This part of `read_seconds` goes for deletes and small files; for deletes alone if the table has
    partitions."""
    oldest_at: datetime | None
    """The oldest of the equality delete files was committed at this time; null without any."""
    key_sets: list[list[str]]
    """The equality deletes name rows by these columns: a list for each key set."""
    problem: PatternMiss | None
    """The table cannot be looked at, enrolled or converted in full for this reason; null if it can."""


class CandidatePage(Message):
    """Tables of a catalog that were looked at: of these, those whose readers pay most come first."""

    items: list[Candidate]
    """The tables that were looked at and fit the request."""
    next_cursor: str | None
    """The next call is given this as `cursor`; null once all tables were looked at and listed."""
    looked_at: int
    """This many tables, the first ones by name, were looked at for this page and those before it."""
    tables: int
    """The catalog has this many tables."""
    ranked_anew: bool
    """The first tables by name are ranked alone, and later pages may list others once more, if this is true:
    what was seen for the pages before is known no longer, and to look at all of it would take too long."""
