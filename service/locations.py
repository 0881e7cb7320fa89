"""Comparing locations: `file:///x`, `file:/x` and `/x` are one place, and a prefix ends at a separator."""

import posixpath
import re

_SCHEME = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]*):(?=/)")
# Spellings of the same object store.
_SAME_SCHEME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "wasbs": "wasb"}
_INDEX_SCHEMES = ("file", "s3", "gs", "abfs")


def normalize_location(location: str) -> str:
    """One spelling per place: lower-case scheme, `..` resolved, no slash at the end, local as `file:/...`."""
    match = _SCHEME.match(location)
    scheme = match.group(1).lower() if match else "file"
    rest = location[match.end() :] if match else location
    if scheme == "file":
        if rest.startswith("//"):
            # file://localhost/x and file:///x name the same file; any other authority is part of the path.
            authority, _, path = rest[2:].partition("/")
            rest = "/" + path if authority in ("", "localhost") else "/" + rest[2:]
        return "file:" + posixpath.normpath("/" + rest.lstrip("/"))
    authority, _, path = rest.lstrip("/").partition("/")
    # Joined to the root before it is normalised, so that `..` cannot climb out of the bucket.
    path = posixpath.normpath("/" + path.lstrip("/")) if path else ""
    return f"{_SAME_SCHEME.get(scheme, scheme)}://{authority}{path.rstrip('/')}"


def local_path(location: str) -> str | None:
    """The path of a local file as it is written, `..` included; None for a place elsewhere."""
    match = _SCHEME.match(location)
    if match is not None and match.group(1).lower() != "file":
        return None
    rest = location[match.end() :] if match else location
    return "/" + rest.removeprefix("//localhost/").lstrip("/")


def is_under(location: str, root: str) -> bool:
    """Whether `location` is `root` or lies inside it."""
    normal, base = normalize_location(location), normalize_location(root)
    return normal == base or normal.startswith(base.rstrip("/") + "/")


def is_absolute(location: str) -> bool:
    """Whether this is a URI with a scheme or an absolute path, so that every process reads it alike."""
    return location.startswith("/") or _SCHEME.match(location) is not None


def can_hold_index(location: str) -> bool:
    """Whether the store can write a file only if it is absent, which commits to an index rest on.

    Of an object store that speaks S3, the scheme alone does not tell.
    """
    return normalize_location(location).partition(":")[0] in _INDEX_SCHEMES


def is_any_azure_account(location: str) -> bool:
    """Whether it is a place on Azure without a container: whoever writes a location chooses the host then."""
    return re.fullmatch(r"(abfs|wasb)://\.{0,2}(/.*)?", normalize_location(location)) is not None
