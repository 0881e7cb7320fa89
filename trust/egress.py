"""What hosts a catalog may reach, by the rules of the service.

The service judges a catalog's record. A worker judges it again where it is used, by what names resolve to
on its machine, and both judge whatever the catalog answers.

A value names a host only if all that read it find the same one there: Python's parsers, Java's, and that of
AWS, which ends a host at the first colon. All other spellings are refused.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trust.addresses import Address, is_internal, literal_addresses, unwrapped
from trust.locations import AmbiguousLocationError, sqlite_path
from trust.refusals import NotAllowedError

_HOST_KEY = re.compile(r"(^|[._-])(uri|url|endpoint|host|hostname|authority)$")
_HOST = r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?"
_URL = re.compile(rf"(https?)://{_HOST}(/[\w.~%!$&'()*+,;=:@/-]*)?", re.ASCII)
_BARE = re.compile(_HOST, re.ASCII)
_METASTORE = re.compile(rf"thrift://{_HOST}/?", re.ASCII)
# A user's name and password end where all find the end: at the one `@`.
_DATABASE = re.compile(rf"postgres(?:ql)?(?:\+\w+)?://(?:[^@/?#\\\s]*@)?{_HOST}(?:[/?][^@#\\\s]*)?", re.ASCII)
_ANY_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://([^/?#\s]*)")
_AZURE = re.compile(r"(abfs|wasb)s?", re.IGNORECASE)
_CONTAINER = re.compile(r"[\w$-]+@", re.ASCII)
WORDS = frozenset(("warehouse", "scope", "audience", "resource", "prefix", "name", "catalog_name"))
"""No addresses: names inside catalogs, and claims of tokens. A warehouse is judged as a location."""
# Without a scheme, Arrow finds no host there, and asks Google.
_ONLY_URL = "gcs.service.host"


class HostNotAllowedError(NotAllowedError):
    """A catalog, or what it answers, leads to a host that the operator has not allowed; final.

    address: of the host, if that is what is not allowed, and not the name.
    """

    remedy = (
        "If that is meant, add it to ICESTREAM_ALLOWED_HOSTS (names, *.domain, addresses, networks; * for "
        "each address that is not internal to a machine), and start the service again."
    )

    def __init__(self, host: str, address: str | None = None) -> None:
        shown = repr(host) if address in (None, host) else f"{host!r}, which is {address},"
        super().__init__(f"{shown} is not among the hosts that catalogs and webhooks may reach")
        self.host = host


class AmbiguousHostError(HostNotAllowedError):
    """A property has to name a host, and does so in no way that all read alike. The value may be secret."""

    remedy = "Write it as https://host:port/path: without a user, a query, a fragment and a backslash."

    def __init__(self, key: str) -> None:
        Exception.__init__(
            self,
            f"{key!r} has to name one host, and is written so that some programs could find another one "
            "there, or none",
        )


@dataclass(frozen=True, slots=True)
class Egress:
    """The hosts that catalogs may connect to.

    rules: the service's, in lower case: names, `*.domain`, addresses, networks, and `*` for each address that
    is not internal to a machine. None allows everything.
    """

    rules: tuple[str, ...] | None = None

    def check(self, properties: Mapping[str, str]) -> None:
        """Raises HostNotAllowedError for a host that properties name, and OSError for an unknown one."""
        if self.rules is not None:
            for host in hosts_of(properties):
                self.addresses_of(host, None)

    def check_host(self, host: str) -> None:
        """The same of a host by its name, or as the address that it is. Asks no name server."""
        literal = literal_addresses(host)
        for address in literal:
            if not self._allows(host, address):
                raise HostNotAllowedError(host, str(address))
        if not literal and not self._allows(host, None):
            raise HostNotAllowedError(host)

    def addresses_of(self, host: str, port: int | None) -> list[str]:
        """What a host's name resolves to, every address of which is allowed. Raises as `check` does."""
        self.check_host(host)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError(f"{host!r} is no host's name") from error
        addresses = list(dict.fromkeys(str(item[4][0]) for item in found))
        for address in addresses:
            if not self._allows(host, ipaddress.ip_address(address.partition("%")[0])):
                raise HostNotAllowedError(host, address)
        return addresses

    def _allows(self, host: str, address: Address | None) -> bool:
        """Whether it may be connected to there; without an address: whether it may be, wherever it is."""
        if self.rules is None:
            return True
        name = host.lower().rstrip(".")
        inner = unwrapped(address) if address is not None else None
        for rule in self.rules:
            if rule == "*":
                is_meant = inner is None or not is_internal(inner)
            elif rule.startswith("*."):
                is_meant = name.endswith(rule[1:])
            else:
                is_meant = name == rule or (inner is not None and _is_in(inner, rule))
            if is_meant:
                return True
        return False


def names_host(key: str) -> bool:
    """Whether the values of a property are hosts or addresses of servers, whatever they look like."""
    return _HOST_KEY.search(key) is not None


def hosts_of(properties: Mapping[str, str]) -> Iterator[str]:
    """Every host that properties name, secrets resolved: where the key says so, and in URLs in other values.

    Raises AmbiguousHostError.
    """
    for key, value in properties.items():
        if key in WORDS or key.startswith("header.") or not value:
            continue
        hosts = _of_server(key, value) if names_host(key) else _of_text(value)
        for host in hosts:
            if host is None:
                raise AmbiguousHostError(key)
            yield host.strip("[]")


def origin(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port; None for what different parsers could take for different hosts."""
    match = _URL.fullmatch(url)
    if match is None:
        return None
    return match[1], match[2].lower().rstrip("."), int(match[3] or {"http": 80, "https": 443}[match[1]])


def _of_server(key: str, value: str) -> Iterator[str | None]:
    """None where they are ambiguous."""
    if key == "uri":
        try:
            if sqlite_path(value) is not None:
                return
        except AmbiguousLocationError:
            yield None
            return
        if value.startswith("thrift:"):
            for one in value.split(","):  # in the order to try
                yield _host(_METASTORE, one)
            return
        if value.startswith("postgres"):
            yield _host(_DATABASE, value)
            return
    if (found := origin(value)) is not None:
        yield found[1]
    else:
        yield None if key.endswith(_ONLY_URL) else _host(_BARE, value)


def _of_text(value: str) -> Iterator[str | None]:
    for scheme, authority in _ANY_URL.findall(value):
        is_azure = _AZURE.fullmatch(scheme)
        place = _CONTAINER.sub("", authority, count=1) if is_azure else authority.partition(";")[0]
        if place or scheme.lower() in ("http", "https"):
            yield _host(_BARE, place)


def _host(spelling: re.Pattern[str], value: str) -> str | None:
    match = spelling.fullmatch(value)
    return match[1] if match is not None else None


def _is_in(address: Address, rule: str) -> bool:
    try:
        return address in ipaddress.ip_network(rule, strict=False)
    except ValueError:  # a name
        return False
