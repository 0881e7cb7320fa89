"""The one reading of locations: what is checked is what is opened.

A `%` is a character of a name: nothing here decodes it, and neither do PyIceberg, Arrow, obstore and Java's
file systems. What one of several readers could take for another place is refused instead: `..`, encoded dots,
control characters, a host of `file:`, odd buckets. A local place is judged by its links too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

from trust.refusals import NotAllowedError

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):(?=/)")
# Spellings of the same object store.
_SAME_SCHEME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "wasbs": "wasb"}
# Buckets and containers become part of a host's name, or stand before it.
_BUCKET, _CONTAINER = r"[A-Za-z0-9._-]*", r"([A-Za-z0-9$_-]+(@[A-Za-z0-9.-]+)?)?"
_AUTHORITIES = {"s3": _BUCKET, "gs": _BUCKET, "abfs": _CONTAINER, "wasb": _CONTAINER, "file": "(localhost)?"}
_ANY_AUTHORITY = r"[A-Za-z0-9._-]*(:[0-9]+)?|\[[0-9a-fA-F:.]+\](:[0-9]+)?"
_INDEX_SCHEMES = ("file", "s3", "gs", "abfs")
# Characters that some parsers drop.
_ODD = re.compile(r"[\x00-\x1f\x7f]")
_ENCODED = re.compile(r"%[0-9a-fA-F]{2}")
_O_PATH: int | None = getattr(os, "O_PATH", None)
"""Of Linux: to open a file for nothing but its name."""
_SQLITE = re.compile(r"sqlite:///([^?#]*)(?:\?([^#]*))?", re.DOTALL)


class LocationNotAllowedError(NotAllowedError):
    """A table, its metadata or its catalog names a place that the operator has not allowed; final."""

    remedy = (
        "If that is meant, add it or a URI prefix of it to ICESTREAM_ALLOWED_LOCATIONS, with commas in "
        "between, and start the service again."
    )


class AmbiguousLocationError(LocationNotAllowedError):
    """A location that could be taken for another place than the one that was checked; final."""

    remedy = "Spell it in the one way that all read alike, or give another place."


class OwnFileError(LocationNotAllowedError):
    """A location of what the service keeps for itself, such as its own database; final."""

    remedy = "Give another place."


@dataclass(frozen=True, slots=True)
class Location:
    """A place, as everybody reads it.

    scheme: in lower case, as it was spelled; `file` if there was none. authority: bucket, container with its
    host, or host; empty for a local place. path: begins with a slash, unless it is empty; a local one has no
    slash at its end, nor two in a row, which on an object store are names.
    """

    scheme: str
    authority: str
    path: str

    @property
    def store(self) -> str:
        """One name for the schemes of one store."""
        return _SAME_SCHEME.get(self.scheme, self.scheme)

    @property
    def is_local(self) -> bool:
        return self.scheme == "file"

    def is_under(self, root: Location) -> bool:
        """Whether it is `root` or lies inside it."""
        if self.store != root.store:
            return False
        base = root.path.rstrip("/")
        if not root.authority and not base and not root.is_local:
            return True
        return self.authority == root.authority and (self.path.rstrip("/") + "/").startswith(base + "/")

    def __str__(self) -> str:
        if self.is_local:
            return f"file:{self.path}"
        return f"{self.store}://{self.authority}{self.path.rstrip('/')}"


@lru_cache(64)  # each is checked, and then opened, and with each of them come the allowed ones
def parse_location(location: str) -> Location:
    """Raises AmbiguousLocationError, for a relative location too."""
    match = _SCHEME.match(location)
    scheme = match[1].lower() if match else "file"
    rest = location[match.end() :] if match else location
    if not rest.startswith("/"):
        raise AmbiguousLocationError(f"{location!r} is not absolute")
    if odd := _ODD.search(location):
        raise AmbiguousLocationError(f"{location!r} has the character {odd[0]!r}, which not all read alike")
    authority, path = "", rest
    if match and rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        path = slash + path
    store = _SAME_SCHEME.get(scheme, scheme)
    is_split = rest.startswith("//") or store not in _AUTHORITIES or scheme == "file"
    if not is_split or not re.fullmatch(_AUTHORITIES.get(store, _ANY_AUTHORITY), authority):
        raise AmbiguousLocationError(f"{location!r} names no bucket, container or host that all read alike")
    # A backslash is a character of a name, unless somebody takes it for a slash.
    if any(_decoded(name) in (".", "..") for name in re.split(r"[/\\]", path)):
        raise AmbiguousLocationError(
            f"{location!r} has a name . or .., which not all read alike; give the place without"
        )
    if scheme == "file":
        return Location("file", "", "/" + "/".join(name for name in path.split("/") if name))
    return Location(scheme, authority, path)


def _decoded(name: str) -> str:
    """However often it was encoded; only dots matter, so nothing longer than those."""
    while name.startswith((".", "%")) and len(name) <= 60 and (once := unquote(name)) != name:
        name = once
    return name


def normalize_location(location: str) -> str:
    """One spelling per place, to compare; what can't be read as one is only itself."""
    try:
        return str(parse_location(location))
    except AmbiguousLocationError:
        return location


def is_under(location: str, root: str) -> bool:
    """Whether `location` is `root` or lies inside it; not if it can't be read."""
    try:
        return parse_location(location).is_under(parse_location(root))
    except AmbiguousLocationError:
        return False


def is_absolute(location: str) -> bool:
    """Whether this is a URI with a scheme or an absolute path, so that every process reads it alike."""
    return location.startswith("/") or _SCHEME.match(location) is not None


def can_hold_index(location: str) -> bool:
    """Whether the store can write a file only if it is absent, which commits to an index rest on.

    Of an object store that speaks S3, the scheme alone does not tell. obstore, which writes it, encodes a
    backslash. A bucket of S3 Tables lets nobody list and delete, which compactions of an index do.
    """
    is_known = parse_location(location).store in _INDEX_SCHEMES and "\\" not in location
    return is_known and not is_table_bucket(location)


def is_table_bucket(location: str) -> bool:
    """Whether it lies in a bucket that S3 Tables has made for a table; no other bucket has such a name.

    Files are written and read there, and nobody may list or delete any. Raises AmbiguousLocationError.
    """
    place = parse_location(location)
    return place.store == "s3" and place.authority.endswith("--table-s3")


def is_any_azure_account(location: str) -> bool:
    """Whether it is a place on Azure without a container: whoever writes a location chooses the host then."""
    return re.fullmatch(r"(abfs|wasb)s?:(/|//\.{0,2}(/.*)?)", location, re.IGNORECASE) is not None


def sqlite_path(uri: str) -> str | None:
    """The file of `sqlite:////path`, which is to be opened by this path alone; None for another database.

    Raises AmbiguousLocationError: SQLAlchemy decodes what JDBC and SQLite do not.
    """
    if not uri.strip().lower().startswith("sqlite"):
        return None
    match = _SQLITE.fullmatch(uri)
    if match is None or _ENCODED.search(match[1]) or _ODD.search(uri) or "\\" in uri:
        raise AmbiguousLocationError(
            f"{uri!r} is not sqlite:////path, or has a character that not all read alike; write it as it is, "
            "not encoded, and without ? and #"
        )
    return match[1]


@dataclass(frozen=True, slots=True)
class Places:
    """Where catalogs, tables and indexes may lie.

    roots: the places, with what is inside; None for everywhere. own: files and folders of the service itself,
    which are nobody else's, wherever they lie.
    """

    roots: tuple[str, ...] | None = None
    own: tuple[str, ...] = ()

    def check(self, location: str) -> Location:
        """The place. Raises LocationNotAllowedError, and looks where links lead just now."""
        place = parse_location(location)
        roots = [parse_location(root) for root in self.roots or ()]
        if self.roots is not None and not any(map(place.is_under, roots)):
            raise LocationNotAllowedError(
                f"{location} lies outside the places that the service allows (ICESTREAM_ALLOWED_LOCATIONS)"
            )
        if place.is_local and (self.roots is not None or self.own):
            real = Location("file", "", _real_path(place.path))
            # Without a link on the way there is none on the way to its root.
            if real != place and self.roots is not None:
                led_to = (Location("file", "", os.path.realpath(one.path)) for one in roots if one.is_local)
                if not any(map(real.is_under, led_to)):
                    raise LocationNotAllowedError(
                        f"{location} leads by a link to {real.path}, which lies outside the places that the "
                        "service allows (ICESTREAM_ALLOWED_LOCATIONS)"
                    )
            if is_one_of(real.path, self.own):
                raise OwnFileError(f"{location} is a file that the service keeps for itself")
        return place


def _real_path(path: str) -> str:
    """Where an absolute path without dots leads just now: as `os.path.realpath`, which asks about each folder
    on the way, and takes half the time of a check for that."""
    return path if _has_no_link(path) else os.path.realpath(path)


def _has_no_link(path: str) -> bool:
    """Whether Linux says, of what the path opens, that it is reached by this very path. No if in doubt.

    That is as true as an answer of `realpath`, and is given for one moment: a link that somebody puts on the
    way before is followed, and told.
    """
    if _O_PATH is None or path.endswith("(deleted)"):  # which Linux adds to what has no name any more
        return False
    try:
        return _opened_path(path, _O_PATH) == path
    except FileNotFoundError:  # as of each file that is to be written
        folder = os.path.dirname(path)  # noqa: PTH120 - each file of a table is asked about
        with suppress(OSError):
            return _opened_path(folder, _O_PATH) == folder and not os.path.lexists(path)
    except OSError:
        pass
    return False


def _opened_path(path: str, flags: int) -> str:
    """By which the system reaches what a path names, which it need not let anybody read."""
    opened = os.open(path, flags | os.O_CLOEXEC)
    try:
        return os.readlink(f"/proc/self/fd/{opened}")  # noqa: PTH115
    finally:
        os.close(opened)


def is_one_of(path: str, own: Iterable[str]) -> bool:
    """Whether a path without links is one of some files, by whatever name, or in one of some folders."""
    files = _without_links(tuple(own))
    if any(path == one or path.startswith(f"{one}/") for one in files):
        return True
    identity = _identity(path)
    return identity is not None and any(_identity(one) == identity for one in files)


@lru_cache(maxsize=8)  # each file of a table is asked about
def _without_links(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(os.path.realpath, paths))


def _identity(path: str) -> tuple[int, int] | None:
    """By which a file is told from any other; None if it is not there."""
    try:
        found = os.stat(path)  # noqa: PTH116 - each file of a table is asked about
    except OSError:
        return None
    return found.st_dev, found.st_ino
