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
    """The catalog is of this type, as PyIceberg names them."""
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
    """The catalog gets this new name; ids and enrolled tables stay."""
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
    """The detail says in words what happened."""
    remedy: str
    """The remedy says what to do about the problem."""


class CatalogHealthView(Message):
    """This is how a catalog does, as was seen whenever it was asked for something: by polls, patterns,
    requests and checks."""

    status: CatalogStatus
    """The catalog has this status, as its latest requests have shown."""
    since: datetime | None
    """The catalog has had its status since this time: since its first answer, or since what failed first;
    null while the status is unknown."""
    answered_at: datetime | None
    """The catalog last answered at this time; null if it never did."""
    latency_seconds: float | None
    """A request took this many seconds lately, on average, with what was read after it; null before an
    answer."""
    error: CatalogError | None
    """Requests have failed with this error since the catalog last answered; null if none has."""
    requests: int
    """The catalog was sent this many requests so far."""
    tables: dict[HealthStatus, int]
    """The catalog has this many enrolled tables of each health."""


class CatalogView(Message):
    """This is a catalog as it is registered."""

    id: str
    """The id names the catalog, whatever it is called."""
    name: str
    """The name is unique among catalogs."""
    type: CatalogType
    """The catalog is of this type, as PyIceberg names them."""
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
    """The catalog was registered at this time."""
    updated_at: datetime
    """The registration was last changed at this time."""
    health: CatalogHealthView
    """The catalog was seen to do like this whenever it was asked for something."""


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
    """The step tried this, such as to `connect`."""
    status: Literal["ok", "failed", "skipped"]
    """The step is `skipped` if there was nothing to do, or if it rests on one that failed."""
    detail: str
    """The detail says in words what the step saw."""
    remedy: str | None
    """The remedy says what to do about a step that failed; null for others."""
    seconds: float
    """The step took this many seconds."""


class CatalogCheck(Message):
    """This says whether the catalog can be used, what it shows, and what fails."""

    ok: bool
    """The catalog can be used if this is true: no step has failed."""
    status: Literal["ok", "warning", "unreachable", "unusable"]
    """The catalog is `ok`; `warning` if it answered, and shows no tables; `unreachable` if it does not show
    its tables; `unusable` if it does, but they can't be read, or the index warehouse can't be written to."""
    explanation: str
    """The explanation says in words what was seen: by the first step that failed, if one did."""
    remedy: str | None
    """The remedy says what to do about what was seen; null if there is nothing to do."""
    namespaces: list[str]
    """The namespaces are listed as dotted names."""
    tables: list[str]
    """These are the first tables that were found, as dotted names."""
    table_count: int
    """The catalog shows this many tables in all."""
    seconds: float
    """All steps together took this many seconds."""
    steps: list[CheckStep]
    """The steps are in the order in which they were tried."""
