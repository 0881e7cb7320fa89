"""What a reference of a catalog stands for: `env:NAME`, or the text of the file of `file:/path`."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trust.locations import AmbiguousLocationError, Location, is_one_of, is_under, parse_location

PLACES = frozenset(("warehouse", "uri"))
"""Properties that name places: there `file:/path` is one, and no reference."""
OPEN_HEADERS = frozenset(("header.x-iceberg-access-delegation", "header.polaris-realm"))
"""Of the headers that a record has sent, those that the protocol knows as no secrets."""
MAX_SECRET_BYTES = 65_536
MASK = "***"
"""What is shown instead of a secret."""
_SHORTEST_SECRET = 4  # a shorter one is part of other words
_AUTHORIZATION = re.compile(r"\b((?:Basic|(?i:Bearer))\s+)[\w.~+/=-]{8,}")
_PSEUDO = ("/proc", "/sys", "/dev")
"""What processes and devices tell is no secret of a catalog's, even where every file is allowed."""


class SecretUnreadableError(Exception):
    """Why a file is not read as a secret, in words that follow its path."""


def is_reference(key: str, value: str) -> bool:
    """Whether a property has a reference in place of a secret."""
    return value.startswith("env:") or (value.startswith("file:/") and key not in PLACES)


def is_own_setting(reference: str) -> bool:
    """Whether it is a setting of Icestream itself, which is never a catalog's."""
    return reference.startswith("env:ICESTREAM_")


def parts_of(secret: str) -> set[str]:
    """A secret, and what drivers show of it: parts of id:secret, and of a database's address."""
    try:
        password = urlsplit(secret).password or ""
    except ValueError:
        password = ""
    return {secret, password, unquote(password), secret.partition(":")[2]}


def redacted(said: str, secrets: Iterable[str]) -> str:
    """A text without these secrets, and without what follows `Bearer` and `Basic`."""
    # One may be a part of another.
    for secret in sorted({one for one in secrets if len(one) >= _SHORTEST_SECRET}, key=len, reverse=True):
        said = said.replace(secret, MASK)
    return _AUTHORIZATION.sub(rf"\1{MASK}", said)


def may_read(reference: str, allowed: Iterable[str]) -> bool:
    """Whether the operator lets catalogs use a secret. allowed: beginnings of `env:NAME`, and directories."""
    if reference.startswith("env:"):
        return any(reference.startswith(rule) for rule in allowed if rule.startswith("env:"))
    return any(is_under(reference, rule) for rule in allowed if rule.startswith("file:/"))


def read_secret(reference: str, allowed: Sequence[str] | None = None, own: Iterable[str] = ()) -> str:
    """The text of the file of `file:/path`, stripped. Raises SecretUnreadableError.

    A link is followed within the directory that is allowed, as Kubernetes lays out its secrets. allowed: as
    of `may_read`; None for every file. own: files of the service itself.
    """
    try:
        path = parse_location(reference).path
    except AmbiguousLocationError:
        raise SecretUnreadableError("is no path that all read alike") from None
    real = os.path.realpath(path)
    if allowed is not None and not _is_allowed(path, real, allowed):
        raise SecretUnreadableError("leads outside the directories of ICESTREAM_ALLOWED_SECRETS")
    if is_one_of(real, own):
        raise SecretUnreadableError("is a file of the service itself")
    if any(f"{real}/".startswith(f"{place}/") for place in _PSEUDO):
        raise SecretUnreadableError("is not on a disk, but what the system tells of processes or devices")
    try:
        # Nothing waits for a pipe's other end, and nobody puts a link there meanwhile.
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_dev in _pseudo_devices():
                raise SecretUnreadableError("is no regular file")
            content = file.read(MAX_SECRET_BYTES + 1)
        if len(content) > MAX_SECRET_BYTES:
            raise SecretUnreadableError(f"has more than {MAX_SECRET_BYTES:,} bytes, as no secret has")
        return content.decode().strip()
    except OSError as error:
        raise SecretUnreadableError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SecretUnreadableError("cannot be read: it is not text") from None


def _is_allowed(path: str, real: str, allowed: Iterable[str]) -> bool:
    """By the same rule before and behind its links."""
    for rule in allowed:
        with suppress(AmbiguousLocationError):
            if rule.startswith("file:/"):
                root = parse_location(rule)
                real_root = Location("file", "", os.path.realpath(root.path))
                if Location("file", "", path).is_under(root) and Location("file", "", real).is_under(
                    real_root
                ):
                    return True
    return False


def _pseudo_devices() -> set[int]:
    """Of the file systems that have no disk, wherever else they are mounted."""
    found = set()
    for place in ("/proc", "/sys"):
        with suppress(OSError):
            found.add(Path(place).stat().st_dev)
    return found - {Path("/").stat().st_dev}
