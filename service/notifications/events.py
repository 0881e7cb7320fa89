"""What events of object stores and catalogs say: which tables were changed, or where files were written.

They come as S3, Cloud Storage, Azure, Polaris and Lakekeeper make them. Nothing in one is believed but that
something may have been committed there.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any
from urllib.parse import unquote, unquote_plus, urlsplit

from pydantic import ValidationError

from service.errors import InvalidError
from service.notifications.models import FILES_AT_MOST, TABLES_AT_MOST, CatalogNotification

_REMEDY = (
    "Send what S3 (notifications, or EventBridge), Cloud Storage (by Pub/Sub), Event Grid, Polaris or"
    " Lakekeeper make, one event or a list of them; or name `tables` or `locations`."
)
_POLARIS = frozenset({"AFTER_CREATE_TABLE", "AFTER_REGISTER_TABLE", "AFTER_UPDATE_TABLE"})
"""A table that is only loaded has an event too: each look of the service's would ask for another one."""
_LAKEKEEPER = frozenset({"createTable", "registerTable", "updateTable"})
_LEVELS = "\x1f"
"""What Iceberg's REST protocol puts between the levels of a namespace."""


def told_by(events: Sequence[Any]) -> CatalogNotification:
    """What may have been committed; it may name nothing. Raises InvalidError for what is no known event."""
    try:
        told = list(islice(chain.from_iterable(map(_told, events)), TABLES_AT_MOST + FILES_AT_MOST + 1))
        tables = [name for name, place in told if place is None]
        locations = [place for _, place in told if place is not None]
        if len(tables) > TABLES_AT_MOST or len(locations) > FILES_AT_MOST:
            raise ValueError(f"it tells of more than {TABLES_AT_MOST} tables or {FILES_AT_MOST} files")
        return CatalogNotification.model_construct(tables=tables, locations=locations)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidError(
            "event-not-understood", f"It is no event that is known: {_words(error)}.", _REMEDY
        ) from None


def event_in(headers: Mapping[str, str], body: Any) -> Any:
    """A CloudEvent in binary mode, whose attributes are headers, as it is in structured mode."""
    if "ce-specversion" not in headers:
        return body
    attributes = {
        name.removeprefix("ce-"): unquote(value) for name, value in headers.items() if name.startswith("ce-")
    }
    return attributes | {"data": body}


def _words(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(one["msg"] for one in error.errors())
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)


def _told(event: Any) -> Iterator[tuple[str, str | None]]:
    """Names of tables, without the catalog's; or empty ones with the place of a file."""
    match event:
        case {"Records": list(records)}:  # S3's own notifications, also in a message of SQS or Lambda
            for record in records:
                yield "", _s3(record["s3"], encoded=True)
        case {"source": "aws.s3", "detail": dict(detail)}:  # by EventBridge
            yield "", _s3(detail, encoded=False)
        case {"message": {"attributes": dict(attributes)}}:  # Cloud Storage, pushed by Pub/Sub
            yield "", f"gs://{attributes['bucketId']}/{attributes['objectId']}"
        case {"type": str(kind), "data": {"url": str(url)}} if kind.startswith("Microsoft.Storage."):
            yield "", _azure(url)  # Event Grid, as CloudEvents
        case {"eventType": str(kind), "data": {"url": str(url)}} if kind.startswith("Microsoft.Storage."):
            yield "", _azure(url)  # and in its own schema
        case {"event_type": str(kind), "realm_id": _}:  # Polaris, by Kafka
            if kind in _POLARIS:
                yield ".".join([*event["namespace"], event["table_name"]]), None
        case {"type": str(kind), "tabular-type": str(of)}:  # Lakekeeper, a CloudEvent by NATS or Kafka
            if kind in _LAKEKEEPER and of == "Table":
                yield f"{event['namespace'].replace(_LEVELS, '.')}.{event['name']}", None
        case {"tables": _} | {"locations": _}:
            told = CatalogNotification.model_validate(event)
            yield from ((name, None) for name in told.tables)
            yield from (("", place) for place in told.locations)
        case _:
            raise ValueError("it has none of the fields by which they are told apart")


def _s3(told: dict[str, Any], *, encoded: bool) -> str:
    key = str(told["object"]["key"])
    return f"s3://{told['bucket']['name']}/{unquote_plus(key) if encoded else key}"


def _azure(url: str) -> str:
    """`https://account.blob.core.windows.net/container/path`, as Iceberg has it."""
    parts = urlsplit(url)
    account, _, domain = (parts.hostname or "").partition(".")
    container, _, path = parts.path.removeprefix("/").partition("/")
    suffix = domain.partition(".")[2]
    return f"abfs://{container}@{account}.dfs.{suffix}/{path}"
