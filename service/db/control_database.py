"""Which files are the database that the service keeps its own tables in, and whether a uri names it.

A catalog there would show the service's tables to whoever may register catalogs, and a worker would write
beside them.
"""

import socket
from pathlib import Path
from urllib.parse import unquote

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from trust.addresses import literal_addresses, unwrapped

_HERE = "this machine"
_PORT = "5432"


def is_database_of(database_url: str, uri: str, *, resolve: bool = False) -> bool:
    """Whether a uri names the same PostgreSQL database.

    resolve: also ask what hosts are called otherwise. Nobody can tell so of what a proxy leads to.
    """
    try:
        own, other = make_url(database_url), make_url(uri)
    except (ArgumentError, ValueError):
        return False
    if own.get_backend_name() != "postgresql" or other.get_backend_name() != "postgresql":
        return False
    if _name(own) != _name(other):
        return False
    return not _servers(own, resolve=resolve).isdisjoint(_servers(other, resolve=resolve))


def files_of(database_url: str) -> tuple[str, ...]:
    """The files of a SQLite database, the database first; none of another kind, and of one in memory."""
    url = make_url(database_url)
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return ()
    path = Path(url.database.removeprefix("file:").partition("?")[0]).resolve()
    return tuple(f"{path}{suffix}" for suffix in ("", "-wal", "-shm", "-journal"))


def _name(url: URL) -> str:
    """Of the database; libpq takes that of the user if there is none."""
    named = url.database or _first(url, "dbname") or url.username or ""
    return unquote(named).strip("/")


def _servers(url: URL, *, resolve: bool) -> set[tuple[str, str]]:
    """Each host that it may be, in all its spellings, with the port."""
    hosts = _all(url, "hostaddr") or _all(url, "host") or [url.host or ""]
    ports = _all(url, "port") or [str(url.port or "")]
    servers = set()
    for number, given in enumerate(hosts):
        host, _, port = given.rpartition(":") if _has_port(given) else (given, "", "")
        port = port or (ports[number] if number < len(ports) else ports[0]) or _PORT
        servers |= {(spelling, port) for spelling in _spellings(host, resolve=resolve)}
    return servers


def _has_port(host: str) -> bool:
    return not host.startswith("/") and host.count(":") == 1


def _spellings(host: str, *, resolve: bool) -> set[str]:
    name = host.strip("[]").lower().rstrip(".")
    if not name or host.startswith(("/", "@")):  # a socket in a directory
        return {_HERE}
    addresses = literal_addresses(name)
    found = {
        _HERE if one.is_loopback or one.is_unspecified else str(one) for one in map(unwrapped, addresses)
    }
    if found or not resolve:
        return found or {name}
    try:
        resolved = {str(item[4][0]) for item in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return {name}
    return {name}.union(*(_spellings(one, resolve=False) for one in resolved))


def _all(url: URL, parameter: str) -> list[str]:
    value = url.query.get(parameter, ())
    return [one for part in ([value] if isinstance(value, str) else value) for one in part.split(",")]


def _first(url: URL, parameter: str) -> str | None:
    return next(iter(_all(url, parameter)), None)
