"""What a catalog's record says by itself: its secrets, and how files are opened. Needs no JVM."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

from stores.azure import azure_host
from stores.catalog_properties import FILE_IO, of_index, of_tables
from trust.rest_answers import RENEWALS
from trust.secrets import (
    PLACES,
    SecretUnreadableError,
    is_own_setting,
    is_reference,
    may_read,
    parts_of,
    read_secret,
)
from worker.contract.control_plane import Limits
from worker.io.storage import Storage
from worker.process.errors import JobError


class CatalogError(JobError):
    """A table can't be opened; the text names the cause."""

    code = "catalog_unreachable"
    title = "The catalog can't be used"
    remedy = "Check the catalog, correct its address or credentials, then retry."


class SecretUnresolvedError(CatalogError):
    """A property refers to an environment variable or a file that this process does not have."""


def resolve_secrets(
    properties: Mapping[str, str], allowed: Sequence[str] | None = None, own: Sequence[str] = ()
) -> dict[str, str]:
    """Replaces `env:NAME` by the variable's value and `file:/path` by the file's text, stripped.

    `warehouse` and `uri` are places, so `file:/path` stays one there. allowed: beginnings of the variables,
    and directories of the files, that may be read; None for all but Icestream's own settings. own: files of
    the service itself. The service checked the record when it was written, perhaps under other settings.
    Raises SecretUnresolvedError.
    """
    for key, value in properties.items():
        if allowed is not None and not _may_resolve(key, value, allowed):
            raise SecretUnresolvedError(
                f"Catalog property {key} refers to {value}, which the service has not given to catalogs "
                "(ICESTREAM_ALLOWED_SECRETS)."
            )
    return {key: _resolve(key, value, allowed, own) for key, value in properties.items()}


def _may_resolve(key: str, value: str, allowed: Sequence[str]) -> bool:
    return not is_reference(key, value) or may_read(value, allowed)


def secrets_of(properties: Mapping[str, str]) -> set[str]:
    """What references stand for, and the parts of it that are secret: nothing of it is to be logged or told.

    What can't be resolved is no secret yet.
    """
    secrets: set[str] = set()
    for key, value in properties.items():
        with suppress(SecretUnresolvedError):
            secret = _resolve(key, value)
            if secret == value or (key in PLACES and not _holds_secret(secret)):
                continue
            secrets |= parts_of(secret)
    return secrets


def _holds_secret(place: str) -> bool:
    """Whether an address says more than a place: without a user and a query it is part of files' names."""
    return "@" in place or "?" in place


def _resolve(key: str, value: str, allowed: Sequence[str] | None = None, own: Sequence[str] = ()) -> str:
    if value.startswith("env:"):
        variable = value.removeprefix("env:")
        if is_own_setting(value):
            raise SecretUnresolvedError(f"Catalog property {key} refers to a setting of Icestream itself.")
        if variable not in os.environ:
            raise SecretUnresolvedError(
                f"Catalog property {key} refers to the environment variable {variable}, which is not set."
            )
        return os.environ[variable]
    if is_reference(key, value):
        try:
            return read_secret(value, allowed, own)
        except SecretUnreadableError as error:
            raise SecretUnresolvedError(
                f"Catalog property {key} refers to {value}, but that file {error}."
            ) from None
    return value


def table_file_io_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """What `Storage` needs for the files of tables, as far as the record says it; a catalog may vend more.

    properties: the catalog's, secrets resolved.
    """
    return python_properties(of_tables(properties))


def given_file_io_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """What a catalog record says of files, for places that are no table's. properties: secrets resolved."""
    given = {key: value for key, value in properties.items() if key.startswith(FILE_IO)}
    warehouse = properties.get("warehouse", "")
    # Tells whose account credentials are for.
    return given | {"warehouse": warehouse} if azure_host(warehouse) else given


def index_file_io_properties(properties: Mapping[str, str], index_warehouse: str) -> dict[str, str]:
    """What `Storage` needs for the files of indexes; empty if a record says nothing of them.

    properties: the catalog's, secrets resolved.
    """
    return python_properties(of_index(properties, index_warehouse))


def index_storage_of(
    properties: Mapping[str, str], index_warehouse: str, limits: Limits, tables: Storage
) -> Storage:
    """How files of indexes are opened: with the record's credentials for these, or else as its tables'.

    properties: the catalog's, secrets resolved. Raises HostNotAllowedError, and OSError for an unknown host.
    """
    given = index_file_io_properties(properties, index_warehouse)
    if not given:
        return tables
    limits.egress.check(given)
    return Storage(given | limits.location_limits)


def python_properties(java: Mapping[str, str]) -> dict[str, str]:
    """The file properties among Java's, in PyIceberg's words; `stores` knows Azure's in Java's, too."""
    # An empty one stands for a record's that is not to be used beside what a catalog vends. Where that is had
    # anew is for Java alone: they travel to tasks.
    given = given_file_io_properties(java)
    python = {key: value for key, value in given.items() if value and key not in RENEWALS}
    if "s3.path-style-access" in python:
        by_path = python.pop("s3.path-style-access").lower() == "true"
        python["s3.force-virtual-addressing"] = "false" if by_path else "true"
    if "client.region" in python:
        python.setdefault("s3.region", python["client.region"])
    return python
