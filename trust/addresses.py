"""What addresses stand for: service and worker must not differ in which of them are a machine's own."""

import ipaddress
import socket

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Where clouds tell a machine its credentials, beyond the link-local addresses.
_METADATA = frozenset(
    map(ipaddress.ip_address, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254"))
)


def literal_addresses(host: str) -> list[Address]:
    """The address that a host is in itself, in any spelling (127.1, 0x7f000001); nothing for a name."""
    name = host.lower().rstrip(".")
    if name in ("localhost", "localhost.localdomain") or name.endswith(".localhost"):
        return [ipaddress.ip_address("127.0.0.1")]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return []
    return [ipaddress.ip_address(str(item[4][0]).partition("%")[0]) for item in found]


def unwrapped(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def is_internal(address: Address) -> bool:
    """Whether only this machine answers there, or what tells it its secrets."""
    return (
        address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address.is_multicast
        or address in _METADATA
    )
