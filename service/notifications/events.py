"""Where files were written, as events of S3, Google's Cloud Storage and Azure's Blob Storage tell.

Nothing in one is believed but that something may have been written there.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any
from urllib.parse import unquote_plus, urlsplit

from service.errors import InvalidError
from service.notifications.models import FILES_AT_MOST

_REMEDY = (
    "Send what S3 (notifications, or EventBridge), Cloud Storage (by Pub/Sub) or Event Grid sends; or name"
    " tables or files at /catalogs/{catalog_id}/notifications."
)


def places_of(event: dict[str, Any]) -> list[str]:
    """Where files were written. Raises InvalidError for what is no event of a store."""
    try:
        found = list(islice(_places(event), FILES_AT_MOST + 1))
        if len(found) > FILES_AT_MOST:
            raise ValueError(f"it tells of more than {FILES_AT_MOST} files")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidError(
            "event-not-understood", f"It is no event of an object store that is known: {error!r}.", _REMEDY
        ) from None
    return found


def _places(event: dict[str, Any]) -> Iterator[str]:
    match event:
        case {"Records": list(records)}:  # S3's own notifications, also in a message of SQS or Lambda
            for record in records:
                yield _s3(record["s3"], encoded=True)
        case {"source": "aws.s3", "detail": dict(detail)}:  # by EventBridge
            yield _s3(detail, encoded=False)
        case {"message": {"attributes": dict(attributes)}}:  # Cloud Storage, pushed by Pub/Sub
            yield f"gs://{attributes['bucketId']}/{attributes['objectId']}"
        case {"type": str(kind), "data": {"url": str(url)}} if kind.startswith("Microsoft.Storage."):
            yield _azure(url)  # Event Grid, as CloudEvents
        case {"eventType": str(kind), "data": {"url": str(url)}} if kind.startswith("Microsoft.Storage."):
            yield _azure(url)  # and in its own schema
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
