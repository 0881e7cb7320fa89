"""What a catalog may reach: the places, the addresses and the secrets that the operator allows.

A record is an admin's, but what a catalog answers is not: where the metadata of a table lies, what a name
resolves to. So everything is checked when a record is written and again when it is used, after references and
names are resolved.
"""

import re
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from service.errors import InvalidError, UnreachableError
from service.records.catalogs import CatalogType
from service.settings import Settings
from stores.catalog_properties import FILE_IO
from trust.egress import WORDS, AmbiguousHostError, HostNotAllowedError, hosts_of, names_host
from trust.locations import AmbiguousLocationError, LocationNotAllowedError, is_absolute, sqlite_path
from trust.properties import DATABASE_OPTIONS, chooses_code, unknown_database_options
from trust.secrets import is_reference

_SCHEMES = {
    CatalogType.SQL: ("sqlite", "postgresql", "postgresql+psycopg", "postgresql+psycopg2"),
    CatalogType.REST: ("http", "https"),
    CatalogType.HIVE: ("thrift",),
}
_EXAMPLES = {
    CatalogType.SQL: "postgresql://host/database",
    CatalogType.REST: "https://host/path",
    CatalogType.HIVE: "thrift://host:9083",
}


def check_location(settings: Settings, location: str) -> None:
    """Raise InvalidError unless a place is absolute and allowed."""
    if not is_absolute(location):
        raise InvalidError("location-not-absolute", f"{location!r} means another place to every process.")
    try:
        settings.places.check(location)
    except LocationNotAllowedError as error:
        raise _not_allowed(location, error) from None


def _not_allowed(location: str, error: LocationNotAllowedError) -> InvalidError:
    return InvalidError(
        "location-not-allowed",
        error.detail,
        error.remedy,
        location=location,
        setting="ICESTREAM_ALLOWED_LOCATIONS",
    )


def check_record(settings: Settings, kind: CatalogType, properties: Mapping[str, str]) -> None:
    """Raise InvalidError for what a record must not name. Asks no name server.

    References are judged as such; what they resolve to, once they are: call it again with the result.
    """
    for key, value in properties.items():
        if is_reference(key, value):
            check_reference(settings, key, value)
            continue
        _check_code(key, value)
        for location in _locations(kind, key, value):
            check_location(settings, location)
    uri = properties.get("uri", "")
    if uri and not is_reference("uri", uri):
        _check_uri(kind, uri)
        if kind is CatalogType.SQL:
            _check_other_database(settings, uri, resolve=False)
    for host in _hosts({key: value for key, value in properties.items() if not is_reference(key, value)}):
        check_host(settings, host)


def check_reachable(settings: Settings, kind: CatalogType, properties: Mapping[str, str]) -> None:
    """The same of resolved properties, right before they are used: names are resolved too."""
    check_record(settings, kind, properties)
    for host in _hosts(properties):
        addresses_of(settings, host, None)
    if kind is CatalogType.SQL:
        _check_other_database(settings, properties.get("uri", ""), resolve=True)


def _check_other_database(settings: Settings, uri: str, *, resolve: bool) -> None:
    if not settings.is_control_database(uri, resolve=resolve):
        return
    parts = urlsplit(uri)  # without its password
    place = f"{parts.hostname}{parts.path}"
    raise InvalidError(
        "location-not-allowed",
        f"{place!r} is the database in which the service keeps its own tables.",
        "Keep catalogs in a database of their own.",
        location=place,
        setting="ICESTREAM_DATABASE_URL",
    )


def check_file_io(settings: Settings, properties: Mapping[str, object]) -> None:
    """Check the endpoints among the file properties that a catalog or a table gave."""
    given = {
        key: value
        for key, value in properties.items()
        if key.startswith(FILE_IO) and isinstance(value, str) and not chooses_code(key, value)
    }
    for host in _hosts(given):
        addresses_of(settings, host, None)


def check_reference(settings: Settings, key: str, reference: str) -> None:
    """Raise InvalidError unless the operator lets catalogs use this secret."""
    if not settings.allows_secret(reference):
        raise InvalidError(
            "secret-not-allowed",
            f"{key!r} refers to {reference!r}, which the operator has not allowed.",
            "Add it to ICESTREAM_ALLOWED_SECRETS, a comma-separated list of beginnings of variable names "
            "(env:LAKE_) and of directories (file:/run/secrets/lake), and start the service again.",
            setting="ICESTREAM_ALLOWED_SECRETS",
        )


def check_host(settings: Settings, host: str) -> None:
    """Raise InvalidError for a host that is not allowed by name, or is an address that is not."""
    try:
        settings.egress.check_host(host)
    except HostNotAllowedError as error:
        raise _refused(error) from None


def addresses_of(settings: Settings, host: str, port: int | None) -> list[str]:
    """What a host's name resolves to, every address of which is allowed. Asks name servers.

    Raises InvalidError if one is not, UnreachableError if the name is unknown.
    """
    try:
        return settings.egress.addresses_of(host, port)
    except HostNotAllowedError as error:
        raise _refused(error) from None
    except OSError as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnreachableError(
            "host-unknown", f"{host!r} cannot be resolved to an address: {reason}."
        ) from None


def _check_code(key: str, value: str) -> None:
    if chooses_code(key, value):
        raise InvalidError(
            "property-not-allowed",
            f"{key!r} would change which code reads the catalog, or which files that code reads.",
            "Leave it out.",
        )


def _check_uri(kind: CatalogType, uri: str) -> None:
    schemes = _SCHEMES.get(kind)
    if schemes is None:
        return
    # Hive takes several addresses, in the order to try.
    for one in uri.split(",") if kind is CatalogType.HIVE else [uri]:
        try:
            parts = urlsplit(one)
            is_complete = parts.scheme == "sqlite" or bool(parts.hostname)
            _ = parts.port
            # What opens a database must find the host that is checked here.
            if kind is CatalogType.SQL and (make_url(one).host != parts.hostname or "@" in parts.path):
                is_complete = False
        except (ValueError, ArgumentError):
            parts, is_complete = urlsplit(""), False
        if parts.scheme not in schemes or not is_complete or re.search(r"[\x00-\x1f\x7f\\]", one):
            raise InvalidError(
                "uri-not-supported",
                f"A catalog of type {kind.value} has one of {', '.join(schemes)}, and a host.",
                f"Correct `uri`, such as {_EXAMPLES[kind]}.",
            )
        if kind is CatalogType.SQL and (unknown := unknown_database_options(uri)):
            raise InvalidError(
                "property-not-allowed",
                f"{', '.join(unknown)} could make the driver read files, load code, or go elsewhere.",
                f"Leave it out; allowed are: {', '.join(sorted(DATABASE_OPTIONS))}.",
            )


def _locations(kind: CatalogType, key: str, value: str) -> Iterator[str]:
    if key == "warehouse":
        # A REST catalog's warehouse may be a mere name, and Glue's may be left out.
        if value and (kind is not CatalogType.REST or is_absolute(value)):
            yield value
    elif key == "uri":
        if kind is CatalogType.SQL:
            try:
                path = sqlite_path(value)
            except AmbiguousLocationError as error:
                raise _not_allowed(value, error) from None
            if path is not None:
                yield path
    elif key in WORDS or key.startswith("header.") or names_host(key):
        return
    elif value.startswith(("/", "~")) or value.lower().startswith("file:"):
        yield value


def _hosts(properties: Mapping[str, str]) -> list[str]:
    try:
        return list(hosts_of(properties))
    except AmbiguousHostError as error:
        raise InvalidError("host-not-allowed", error.detail, error.remedy) from None


def _refused(error: HostNotAllowedError) -> InvalidError:
    return InvalidError(
        "host-not-allowed",
        error.detail,
        error.remedy,
        setting="ICESTREAM_ALLOWED_HOSTS",
        host=error.host,
    )
