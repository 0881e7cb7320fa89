"""Which properties choose code: what a library would import, load or call because somebody names it.

Iceberg's properties of that kind end alike in all its modules (`io-impl`, `client.factory`), and so do
Hadoop's and PyIceberg's; drivers of databases have no such habit, so of theirs those are listed that do not.
`tests/test_code_properties.py` compares this with what the installed versions know.
"""

import re
from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import parse_qsl

V = TypeVar("V")
_CODE = re.compile(
    # `client.credentials-provider.x` is for the provider.
    r"(^|[._-])(impl|impls|class|classes|class-?name|classpath|factory|factories|plugin|plugins|provider|providers"
    r"|configurer|extension|extensions|jar|jars)($|\.)",
    re.IGNORECASE,
)
_PREFIXES = ("py-", "hadoop.", "fs.", "java.", "javax.", "spark.")
"""Configurations of whole systems, where any key may name a class."""
_EXACT = frozenset(("auth",))  # PyIceberg's, which may hold one
_NO_CODE = frozenset(("s3.write.storage-class",))
# A name that Iceberg does not know is one of a class.
_AUTH_KEYS = frozenset(("rest.auth.type", "rest.auth.sigv4.delegate-auth-type"))
_AUTH_TYPES = frozenset(("none", "basic", "oauth2", "google", "sigv4"))

DATABASE_OPTIONS = frozenset(
    (
        "timeout",
        "sslmode",
        "connect_timeout",
        "connectTimeout",
        "socketTimeout",
        "tcpKeepAlive",
        "application_name",
    )
)
"""Of a database's address. Others choose files, code or servers (libpq's `host`, JDBC's `socketFactory`)."""
_JDBC = DATABASE_OPTIONS | {"schema-version", "user", "password", "busy_timeout", "strict-mode"}

LOCATION_PROVIDERS = ("write.location-provider.impl", "write.py-location-provider.impl")
"""By which a table names a class that would say where its files go: Java's, and PyIceberg's."""
LOCATION_PROPERTIES = (
    "write.data.path",
    "write.object-storage.enabled",
    "write.object-storage.partitioned-paths",
)
"""By which a table says itself where its delete files go."""


def chooses_code(key: str, value: object = None) -> bool:
    """Whether a property chooses what is loaded or called, in Python, Java or a database's driver.

    value: as it will be used; of most keys it does not matter.
    """
    if key in _AUTH_KEYS:
        return value not in _AUTH_TYPES
    if key.startswith("jdbc."):
        return key.removeprefix("jdbc.") not in _JDBC
    if key in _EXACT or key.startswith(_PREFIXES):
        return True
    return key not in _NO_CODE and _CODE.search(key) is not None


def without_code(properties: Mapping[str, V]) -> dict[str, V]:
    """The properties that choose no code."""
    return {key: value for key, value in properties.items() if not chooses_code(key, value)}


def unknown_database_options(uri: str) -> list[str]:
    """Options in a database's address that are not known to be harmless."""
    named = {name for name, _ in parse_qsl(uri.partition("?")[2], keep_blank_values=True)}
    return sorted(named - DATABASE_OPTIONS)
