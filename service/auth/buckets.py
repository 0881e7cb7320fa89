"""What limits count with: buckets of calls, by a caller's address or credential, in bounded memory."""

import hashlib
import ipaddress
import math
from collections import OrderedDict
from typing import Generic, TypeVar

from service.errors import IcestreamError
from trust.addresses import unwrapped

REMEMBERED = 10_000
"""Of callers, and of credentials that were good: the ones not seen for longest are forgotten."""
Value = TypeVar("Value")


class Bucket:
    """Holds a minute's worth of calls, filled again as time passes."""

    def __init__(self, per_minute: int, now: float) -> None:
        self._per_minute, self._left, self._at = per_minute, float(per_minute), now

    def wait_seconds(self, now: float, count: int = 1) -> float:
        """How long until so many calls, of a minute's worth at most; 0 for at once."""
        self._left = min(self._per_minute, self._left + (now - self._at) * self._per_minute / 60)
        self._at = now
        return max(0.0, (count - self._left) * 60 / self._per_minute)

    def take(self, count: int = 1) -> None:
        self._left -= count

    def give_back(self) -> None:
        """A call that was taken and does not count."""
        self._left += 1


class Recent(Generic[Value]):
    """The values used last, by key."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> Value | None:
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key]

    def put(self, key: str, value: Value) -> Value:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > REMEMBERED:
            self._values.popitem(last=False)
        return value

    def forget(self, key: str) -> None:
        self._values.pop(key, None)


def digest_of(credential: str) -> str:
    """What is remembered of a credential, which itself lies in no memory for long."""
    return hashlib.sha256(credential.encode()).hexdigest()


def network_of(host: str) -> str:
    """Who counts as one stranger: an IPv4 address, however written; of IPv6 a /64, all of one host."""
    try:
        address = unwrapped(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        return host
    return str(ipaddress.ip_network((address, 64), strict=False) if address.version == 6 else address)


def site_of(network: str) -> str | None:
    """The /48 that a /64 is in, of which one site has all; None for an IPv4 address."""
    try:
        return str(ipaddress.IPv6Network(network).supernet(new_prefix=48))
    except ValueError:
        return None


def too_many(what: str, per_minute: int, wait_seconds: float) -> IcestreamError:
    """The answer to a call that came too early."""
    seconds = math.ceil(wait_seconds)
    return IcestreamError(
        "too-many-requests",
        f"{what} more than {per_minute} times a minute; the next one is answered in {seconds} s.",
        "Wait so long, then try again. Scripts that wait for a job can follow the stream of events instead.",
        retry_after_seconds=seconds,
    )
