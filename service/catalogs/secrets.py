"""Secret references in catalog properties: `env:NAME` and `file:/path`, resolved at use and never stored.

`warehouse` and `uri` name places, and `file:/x` is a place: there only `env:` is a reference.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from service.errors import InvalidError

PLACES = frozenset({"warehouse", "uri"})
_SECRET_KEY = re.compile(
    r"(password|passphrase|secret|token|credentials?|authorization|api-key|account-key|private-key"
    r"|secret-access-key|connection-string)$|^header\..*(auth|cookie|key|token|secret|session)"
)
_PASSWORD_IN_URI = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*://[^/@:]*:[^/@]+@")


def is_reference(key: str, value: str) -> bool:
    return value.startswith("env:") or (value.startswith("file:/") and key not in PLACES)


def check_properties(properties: Mapping[str, str]) -> None:
    """Raise InvalidError for a secret in clear, or a property that makes PyIceberg load code by name."""
    for key, value in properties.items():
        if key.startswith("py-") or key in ("type", "name"):
            raise InvalidError(
                "property-not-allowed",
                "This catalog property is not allowed",
                f"{key!r} would change which code reads the catalog.",
                "Leave it out; `type` is a field of the catalog itself.",
            )
        if value.startswith("env:ICESTREAM_"):
            raise InvalidError(
                "property-not-allowed",
                "This catalog property is not allowed",
                f"{key!r} refers to {value!r}.",
                "Put the secret in an environment variable of its own.",
            )
        in_clear = _SECRET_KEY.search(key.lower()) and not is_reference(key, value)
        if in_clear or _PASSWORD_IN_URI.match(value):
            raise InvalidError(
                "secret-in-clear",
                "A secret must not be stored in clear",
                f"The property {key!r} holds a secret.",
                "Put it in an environment variable or a file that service and worker both see, "
                "and give `env:NAME` or `file:/path` as the value.",
            )


def resolve(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties with every reference replaced by its secret. Never log, store or return the result."""
    return {
        key: _resolve(key, value) if is_reference(key, value) else value for key, value in properties.items()
    }


def _resolve(key: str, value: str) -> str:
    if value.startswith("env:"):
        name = value.removeprefix("env:")
        if name in os.environ:
            return os.environ[name]
        missing = f"the environment variable {name} is not set"
    else:
        path = Path("/" + value.removeprefix("file:").lstrip("/"))
        try:
            return path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            missing = f"{path} cannot be read: {reason}"
    raise InvalidError(
        "secret-unavailable",
        "A secret of the catalog cannot be resolved",
        f"The property {key!r} is {value!r}, but {missing}.",
        "Make it available to the service (and to the workers), or change the property.",
    )
