"""Secret references in catalog properties: `env:NAME` and `file:/path`, resolved at use and never stored."""

import os
import re
from collections.abc import Mapping, Sequence

from service.errors import InvalidError
from stores.catalog_properties import INDEX, STORES
from trust.secrets import (
    MASK,
    OPEN_HEADERS,
    SecretUnreadableError,
    is_own_setting,
    is_reference,
    read_secret,
)

# Anywhere in a key: clouds put an account behind it (`adls.sas-token.acc.dfs.core.windows.net`).
_SECRET_WORD = re.compile(
    r"passw|passphrase|pwd|secret|token|credential|authorization|connection-string|cookie|signature"
    r"|(^|[._-])sas([._-]|$)|(api|account|access|private)[._-]?key|key$"
)
# What a key says about a secret, rather than the secret.
_ABOUT_SECRET = re.compile(
    r"[._-](id|name|type|enabled|path|uri|url|endpoint|provider|ms)$|keyid$|expires-(at|in)"
)
_URL = re.compile(r"\b([a-z][a-z0-9+.-]*)://([^/?#\s,]*)([^#\s,]*)", re.IGNORECASE)
_DATABASES = ("postgresql", "sqlite")
_AZURE = ("abfs", "abfss", "wasb", "wasbs")


def check_properties(properties: Mapping[str, str]) -> None:
    """Raise InvalidError for a secret in clear, or a property that makes PyIceberg load code by name."""
    for key, value in properties.items():
        if key.startswith("py-") or key in ("type", "name"):
            raise InvalidError(
                "property-not-allowed",
                f"{key!r} would change which code reads the catalog.",
                "Leave it out; `type` is a field of the catalog itself.",
            )
        if key.startswith(INDEX) and not key.removeprefix(INDEX).startswith(STORES):
            raise InvalidError(
                "property-not-allowed",
                f"{key!r} does not tell how to reach the place of indexes.",
                f"What does begins with {', '.join(INDEX + store for store in STORES)}; where indexes lie is "
                "`index_warehouse`, a field of the catalog itself.",
            )
        if is_own_setting(value):
            raise InvalidError(
                "property-not-allowed",
                f"{key!r} refers to {value!r}.",
                "Put the secret in an environment variable of its own.",
            )
        if key == "auth":
            raise InvalidError(
                "property-not-allowed",
                "'auth' would hold secrets among other things, and can be no reference.",
                "Give `credential`, `token` or `header.Authorization` as a reference instead.",
            )
        if not is_reference(key, value) and (_names_secret(key.lower()) or _has_secret(value)):
            raise InvalidError(
                "secret-in-clear",
                f"The property {key!r} holds a secret.",
                "Put it in an environment variable or a file that service and worker both see, "
                "and give `env:NAME` or `file:/path` as the value (in `uri`, `env:NAME`).",
            )


def mask_secrets(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties without secrets in clear, which earlier versions took; masks are refused like these."""
    return {
        key: _masked(key, value) if not is_reference(key, value) else value
        for key, value in properties.items()
    }


def _masked(key: str, value: str) -> str:
    if key == "auth" or _names_secret(key.lower()):
        return MASK
    if not _has_secret(value):
        return value
    return _URL.sub(
        lambda url: f"{url[1]}://{MASK}:{MASK}@{url[2].rpartition('@')[2]}{url[3].partition('?')[0]}", value
    )


def _names_secret(key: str) -> bool:
    if key.startswith("header."):
        return key not in OPEN_HEADERS
    return bool(_SECRET_WORD.search(key)) and not _ABOUT_SECRET.search(key)


def _has_secret(value: str) -> bool:
    """Whether a URL in it says more than a place: a user, or a query, which may be a signature.

    A database's may name a user without password, and allowlists.py knows all that its query may say; what
    precedes the `@` of Azure's is a container.
    """
    for scheme, authority, rest in _URL.findall(value):
        user, at, _ = authority.rpartition("@")
        kind = scheme.lower().partition("+")[0]
        if ":" in user or (at and kind not in (*_DATABASES, *_AZURE)):
            return True
        if "?" in rest and kind in ("http", "https"):
            return True
    return False


def resolve(
    properties: Mapping[str, str], allowed: Sequence[str] | None = None, own: Sequence[str] = ()
) -> dict[str, str]:
    """The properties with every reference replaced by its secret. Never log, store or return the result.

    allowed, own: as of `read_secret`.
    """
    return {
        key: _resolve(key, value, allowed, own) if is_reference(key, value) else value
        for key, value in properties.items()
    }


def _resolve(key: str, value: str, allowed: Sequence[str] | None, own: Sequence[str]) -> str:
    if value.startswith("env:"):
        name = value.removeprefix("env:")
        if name in os.environ:
            return os.environ[name]
        missing = f"the environment variable {name} is not set"
    else:
        try:
            return read_secret(value, allowed, own)
        except SecretUnreadableError as error:
            missing = f"that file {error}"
    raise InvalidError(
        "secret-unavailable",
        f"The property {key!r} is {value!r}, but {missing}.",
        "Make it available to the service (a catalog's also to the workers), or change the property.",
    )
