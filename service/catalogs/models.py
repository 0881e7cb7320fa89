"""What is asked and told about catalogs."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict
from pydantic import Field as ModelField

from service.http.messages import ClosedMessage, Message, Name, example
from service.records.catalogs import CatalogStatus, CatalogType
from service.records.health import HealthStatus

Limit = Annotated[
    int | None, ModelField(ge=1, description="This many jobs of its tables run at a time; null for no limit.")
]


class CatalogRequest(ClosedMessage):
    """A catalog of type `sql` needs `uri` (sqlite:////abs/cat.db or postgresql://...) and `warehouse`
    (file:///... or s3://...)."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {
                "name": "local",
                "type": "sql",
                "properties": {"uri": "sqlite:////data/catalog.db", "warehouse": "file:///data/warehouse"},
            },
            {
                "name": "lake",
                "type": "rest",
                "properties": {"uri": "https://catalog.example.com", "token": "env:CATALOG_TOKEN"},
                "index_warehouse": "s3://lake/icestream-index",
            },
        ),
    )

    name: Name
    """The name is unique among catalogs, and has letters, digits and `_.-`."""
    type: CatalogType
    """The catalog is of this type."""
    properties: dict[str, str] = ModelField(default_factory=dict)
    """These are PyIceberg's properties for this type. Secrets are references: `env:NAME` or `file:/path`.
    Those with `index.` before their names, as in `index.s3.access-key-id`, are for the index warehouse
    alone."""
    index_warehouse: str | None = None
    """Indexes of its tables go here; null means the default of the installation."""
    max_running_jobs: Limit = None


class CatalogPatch(ClosedMessage):
    """Fields left out stay; a property set to null is removed (RFC 7396)."""

    model_config = ConfigDict(
        json_schema_extra=example(
            {"properties": {"token": "env:CATALOG_TOKEN", "credential": None}},
        ),
    )

    name: Name | None = None
    """It gets this new name; ids and enrolled tables stay."""
    properties: dict[str, str | None] | None = None
    """Properties to set, or with null to remove."""
    index_warehouse: str | None = None
    """Indexes of its tables go here; null means the default of the installation."""
    max_running_jobs: Limit = None


class CatalogError(Message):
    """This is why a catalog could not be asked."""

    code: str
    """The code names the kind of problem."""
    title: str
    """The title says in short what is the matter."""
    detail: str
    """This is what happened, in words."""
    remedy: str
    """This is what to do about it."""


class CatalogHealthView(Message):
    """This is how a catalog does, as was seen whenever it was asked for something: by polls, patterns,
    requests and checks."""

    status: CatalogStatus
    """This is the status of the catalog."""
    since: datetime | None
    """It has had this status since then: since its first answer, or since what failed first; null while the
    status is unknown."""
    answered_at: datetime | None
    """It answered last at this time; null if it never did."""
    latency_seconds: float | None
    """A request took this long lately, on average, with what was read after it; null before an answer."""
    error: CatalogError | None
    """This is what failed since it answered last; null if nothing did."""
    requests: int
    """The catalog was sent this many requests so far."""
    tables: dict[HealthStatus, int]
    """This counts its enrolled tables with each health."""


class CatalogView(Message):
    """This is a catalog as it is registered."""

    id: str
    """The id names the catalog, whatever it is called."""
    name: str
    """The name is unique among catalogs."""
    type: CatalogType
    """The catalog is of this type."""
    properties: dict[str, str]
    """The properties have references instead of secrets."""
    index_warehouse: str | None
    """Indexes of its tables go here; null means the default of the installation."""
    max_running_jobs: int | None
    """This many jobs of its tables run at a time at most; null for no limit."""
    paused: bool
    """While true, no job of its tables starts."""
    version: int
    """Counts its changes; also its ETag."""
    created_at: datetime
    """It was registered at this time."""
    updated_at: datetime
    """It was changed last at this time."""
    health: CatalogHealthView
    """This is how it does."""


StepName = Literal[
    "secrets",
    "name_resolution",
    "connect",
    "tls",
    "credentials",
    "permission",
    "warehouse",
    "index_warehouse",
]


class CheckStep(Message):
    """This is one thing that was tried."""

    name: StepName
    """This is what it was about."""
    status: Literal["ok", "failed", "skipped"]
    """It is `skipped` if there was nothing to do, or if it rests on a step that failed."""
    detail: str
    """This is what was seen, in words."""
    remedy: str | None
    """This is what to do about it; null unless it failed."""
    seconds: float
    """It took this long."""


class CatalogCheck(Message):
    """This says whether the catalog can be used, what it shows, and what fails."""

    ok: bool
    """This says whether no step failed."""
    status: Literal["ok", "warning", "unreachable", "unusable"]
    """It is `warning` if the catalog answered, and shows no tables; `unreachable` if it does not show its
    tables; `unusable` if it does, but they can't be read, or the index warehouse can't be written to."""
    explanation: str
    """This is what was seen, in words: of the first step that failed, if one did."""
    remedy: str | None
    """This is what to do about it; null if there is nothing to do."""
    namespaces: list[str]
    """The namespaces are listed as dotted names."""
    tables: list[str]
    """These are the first tables that were found, as dotted names."""
    table_count: int
    """It shows this many tables in all."""
    seconds: float
    """It took this long in all."""
    steps: list[CheckStep]
    """The steps are in the order in which they were tried."""
