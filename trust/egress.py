"""What hosts a catalog may reach, by the rules of the service.

The service judges a catalog's record. A worker judges it again where it is used, by what names resolve to
on its machine, and with it whatever the catalog answers.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trust.addresses import Address, is_internal, unwrapped

_HOST_KEY = re.compile(r"(^|[._-])(uri|url|endpoint|host|hostname|authority)$")
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://([^/?#;,\s]+)")
# No addresses: names inside catalogs, and claims of tokens. A warehouse is judged as a location.
_WORDS = frozenset(("warehouse", "scope", "audience", "resource", "prefix", "name", "catalog_name"))


class HostNotAllowedError(Exception):
    """A catalog, or what it answers, leads to a host that the operator has not allowed; final."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The hosts that catalogs may connect to.

    rules: the service's, in lower case: names, `*.domain`, addresses, networks, and `*` for each address that
    is not internal to a machine. None allows everything.
    """

    rules: tuple[str, ...] | None = None

    def check(self, properties: Mapping[str, str]) -> None:
        """Raises HostNotAllowedError for a host that properties name, and OSError for an unknown one."""
        if self.rules is not None:
            for host in _hosts(properties):
                self.addresses_of(host, None)

    def addresses_of(self, host: str, port: int | None) -> list[str]:
        """What a host's name resolves to, every address of which is allowed. Raises as `check` does."""
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError(f"{host!r} is no host's name") from error
        addresses = list(dict.fromkeys(str(item[4][0]) for item in found))
        for address in addresses:
            if not self._allows(host, ipaddress.ip_address(address.partition("%")[0])):
                shown = repr(host) if host == address else f"{host!r}, which is {address},"
                raise HostNotAllowedError(
                    f"{shown} is not among the hosts that catalogs may reach (ICESTREAM_ALLOWED_HOSTS)"
                )
        return addresses

    def _allows(self, host: str, address: Address) -> bool:
        name, inner = host.lower().rstrip("."), unwrapped(address)
        if self.rules is None:
            return True
        for rule in self.rules:
            if rule == "*":
                is_meant = not is_internal(inner)
            elif rule.startswith("*."):
                is_meant = name.endswith(rule[1:])
            else:
                is_meant = name == rule or _is_in(inner, rule)
            if is_meant:
                return True
        return False


def _hosts(properties: Mapping[str, str]) -> Iterator[str]:
    """Every host that properties name: in URLs anywhere in a value, and bare where the key says so."""
    for key, value in properties.items():
        if key in _WORDS or key.startswith("header.") or value.startswith(("sqlite", "file:", "/")):
            continue
        authorities = _URL.findall(value)
        if not authorities and _HOST_KEY.search(key) and value:
            authorities = [value.partition("/")[0]]
        for authority in authorities:
            match = re.match(r"^\[([^\]]*)\]|^([^:]*)", authority.rpartition("@")[2])
            if match and (name := match.group(1) or match.group(2)):
                yield name


def _is_in(address: Address, rule: str) -> bool:
    try:
        return address in ipaddress.ip_network(rule, strict=False)
    except ValueError:  # a name
        return False
