"""PyIceberg's FileIO on Arrow's file systems, for what catalogs say of S3, Google's and Azure's stores.

PyIceberg opens local disks as they are wanted here, and S3 once it is told by whose keys: Arrow finds none of
a profile's role, goes on without any, and renews none that it was given. To Google's store it takes no token
whose end is not known, and to Azure's it needs a later Arrow than pypaimon allows. Properties may be spelled
as PyIceberg or as Iceberg's Java has them, secrets resolved.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs as pafs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.utils.properties import property_as_bool

from stores.aws import S3_SCHEMES, Identity, Keys
from stores.azure import AZURE_SCHEMES, AzureAccount, AzureHandler, azure_container
from stores.objects import ResultOf, S3Object, s3_store
from trust.locations import parse_location
from trust.properties import without_code

S3_KEYS = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
_S3_IDENTITY = (
    *S3_KEYS,
    *(name.replace("s3.", "client.") for name in S3_KEYS),
    *(f"{prefix}.{name}" for prefix in ("s3", "client") for name in ("role-", "profile-name")),
)
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
GOOGLE_SCHEMES = frozenset(("gs", "gcs"))

_GOOGLE_RETRIES = timedelta(minutes=1)  # Arrow goes on for a quarter of an hour


class LocationFileIO(PyArrowFileIO):
    """Opens a location as `trust.locations` reads it: as no URL with a query, and with nothing encoded.

    Loads no code by its name: among its properties are those of tables and answers of catalogs, and
    `s3.retry-strategy-impl` is called.
    """

    def __init__(self, properties: Mapping[str, Any] = EMPTY_DICT) -> None:
        super().__init__(without_code(properties))
        self._opened = lru_cache(maxsize=16)(self._open)
        self._s3_stores = lru_cache(maxsize=16)(partial(s3_store, properties=self.properties))
        self.fs_by_scheme = self._file_system

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

    def s3_keys(self) -> Keys | None:
        """By which S3 is asked now; None for without any. Raises CredentialsError."""
        if str(self.properties.get("s3.anonymous", "")).lower() == "true":
            return None
        return Identity.of(self.properties, "s3").keys()

    def is_object(self, location: str) -> bool:
        """Whether a location is on S3, and Arrow need not find the region of the bucket."""
        scheme, _, _ = self.parse_location(location, self.properties)
        return scheme in S3_SCHEMES and _knows_region(self.properties)

    def s3_object(self, location: str, result_of: ResultOf = Future.result) -> S3Object | None:
        """What a location names; None unless `is_object`. Raises pa.ArrowInvalid as `object_key` does.

        result_of: waits for an answer.
        """
        if not self.is_object(location):
            return None
        bucket, key = object_key(location)
        store_name = f"{self.properties.get('s3.endpoint', '')}/{bucket}"
        return S3Object(self._s3_stores(bucket, keys=self.s3_keys()), key, location, store_name, result_of)

    def _file_system(self, scheme: str, netloc: str | None = None) -> pafs.FileSystem:
        """Files that are open go on with the keys that they were opened with."""
        return self._opened(scheme, netloc, self.s3_keys() if scheme in S3_SCHEMES else None)

    def _open(self, scheme: str, netloc: str | None, keys: Keys | None) -> pafs.FileSystem:
        if scheme in GOOGLE_SCHEMES:
            return _google_file_system(self.properties)
        if scheme in AZURE_SCHEMES:
            return pafs.PyFileSystem(AzureHandler(AzureAccount.of(netloc or "", self.properties)))
        if keys is None:
            return self._initialize_fs(scheme, netloc)
        others = {key: value for key, value in self.properties.items() if not key.startswith(_S3_IDENTITY)}
        named = zip(S3_KEYS, keys, strict=True)
        given = others | {name: value for name, value in named if value}
        return PyArrowFileIO(given)._initialize_fs(scheme, netloc)


def _knows_region(properties: Mapping[str, Any]) -> bool:
    """Whether no bucket's region has to be found: it is named, or the store is not Amazon's and has none."""
    if property_as_bool(dict(properties), "s3.resolve-region", False):
        return False
    if any(properties.get(name) for name in ("s3.region", "client.region")):
        return True
    endpoint = str(properties.get("s3.endpoint", ""))
    return bool(endpoint) and not (urlsplit(endpoint).hostname or "").endswith(_AMAZON)


def object_key(location: str) -> tuple[str, str]:
    """(authority, key) of a location on an object store.

    Raises pa.ArrowInvalid for a key with an empty name in it, as Arrow does: obstore would leave that out,
    and open another object than Java and Spark.
    """
    place = parse_location(location)
    key = place.path.removeprefix("/")
    if not all(key.split("/")):
        raise pa.ArrowInvalid(f"{location!r} has an empty name: two slashes in a row, or one at its end")
    return place.authority, key


def _google_file_system(properties: Mapping[str, str]) -> pafs.FileSystem:
    options: dict[str, Any] = {"retry_time_limit": _GOOGLE_RETRIES}
    if token := properties.get("gcs.oauth2.token"):
        options["access_token"] = token
        # Arrow wants to know the end, and does nothing about it.
        options["credential_token_expiration"] = datetime(9999, 1, 1, tzinfo=UTC)
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
