"""PyIceberg's FileIO on Arrow's file systems, for what catalogs say of S3, Google's and Azure's stores.

PyIceberg opens S3 and local disks as they are wanted here. To Google's store it takes no token whose end is
not known, and to Azure's it needs a later Arrow than pypaimon allows. Properties may be spelled as PyIceberg
or as Iceberg's Java has them, secrets resolved.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs as pafs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT

from stores.azure import AZURE_SCHEMES, AzureAccount, AzureHandler, azure_container
from trust.locations import parse_location
from trust.properties import without_code

GOOGLE_SCHEMES = frozenset(("gs", "gcs"))

_GOOGLE_RETRIES = timedelta(minutes=1)  # Arrow goes on for a quarter of an hour


class LocationFileIO(PyArrowFileIO):
    """Opens a location as `trust.locations` reads it: as no URL with a query, and with nothing encoded.

    Loads no code by its name: among its properties are those of tables and answers of catalogs, and
    `s3.retry-strategy-impl` is called.
    """

    def __init__(self, properties: Mapping[str, Any] = EMPTY_DICT) -> None:
        super().__init__(without_code(properties))

    @staticmethod
    def parse_location(
        location: str,
        properties: Mapping[str, Any] = EMPTY_DICT,  # noqa: ARG004
    ) -> tuple[str, str, str]:
        """(scheme, netloc, path) of a location; on a store, the path begins with the bucket or container.

        Raises AmbiguousLocationError.
        """
        place = parse_location(location)
        root = azure_container(place.authority) if place.scheme in AZURE_SCHEMES else place.authority
        if place.scheme in ("hdfs", "viewfs"):
            root = ""
        return place.scheme, place.authority, root + place.path

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> pafs.FileSystem:
        if scheme in GOOGLE_SCHEMES:
            return _google_file_system(self.properties)
        if scheme in AZURE_SCHEMES:
            return pafs.PyFileSystem(AzureHandler(AzureAccount.of(netloc or "", self.properties)))
        return super()._initialize_fs(scheme, netloc)


def _google_file_system(properties: Mapping[str, str]) -> pafs.FileSystem:
    options: dict[str, Any] = {"retry_time_limit": _GOOGLE_RETRIES}
    if token := properties.get("gcs.oauth2.token"):
        ends_at = properties.get("gcs.oauth2.token-expires-at")
        options["access_token"] = token
        # Arrow wants to know the end, and does nothing about it.
        options["credential_token_expiration"] = (
            datetime.fromtimestamp(int(ends_at) / 1000, UTC) if ends_at else datetime(9999, 1, 1, tzinfo=UTC)
        )
    elif is_google_public(properties):
        options["anonymous"] = True
    if host := properties.get("gcs.service.host"):
        parts = urlsplit(host)
        options |= {"scheme": parts.scheme, "endpoint_override": parts.netloc}
    for option, key in (
        ("project_id", "gcs.project-id"),
        ("default_bucket_location", "gcs.default-bucket-location"),
    ):
        if value := properties.get(key):
            options[option] = value
    return pafs.GcsFileSystem(**options)


def is_google_public(properties: Mapping[str, str]) -> bool:
    """Whether Google's store is asked without credentials."""
    return properties.get("gcs.no-auth", "").lower() == "true"
