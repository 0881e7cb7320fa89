"""Sessions of requests that connect to allowed addresses only, whatever the environment says.

A proxy would connect for them, to addresses that nobody has checked, and its connections know no bounds; a
.netrc would send credentials that no record names. Of the environment, only whom to trust counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from requests import Response, Session
from requests.adapters import HTTPAdapter
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from trust.bounded_http import BoundedConnection, BoundedSecureConnection
from trust.rest_answers import GIVE_AS_URI, SentElsewhereError


def certificates() -> str | None:
    """The file or folder of authorities that the operator names; None for those that requests brings."""
    return os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or None


def confine(session: Session, addresses_of: Callable[[str, int | None], list[str]]) -> None:
    """Let the adapters that a session has by now connect only to what is allowed at that very moment.

    addresses_of: those of a host and port; raises for what is not allowed.
    """
    session.trust_env = False
    session.verify = certificates() or True

    class Pinned(BoundedConnection):
        def _new_conn(self) -> Any:
            # Certificates and headers go by the name.
            name = self._dns_host
            *others, last = addresses_of(name, self.port)
            try:
                for self._dns_host in others:
                    with suppress(NewConnectionError, ConnectTimeoutError):
                        return super()._new_conn()
                self._dns_host = last
                return super()._new_conn()
            finally:
                self._dns_host = name

    class PinnedSecure(Pinned, BoundedSecureConnection):
        pass

    pools = {
        "http": type("PlainPool", (HTTPConnectionPool,), {"ConnectionCls": Pinned}),
        "https": type("SecurePool", (HTTPSConnectionPool,), {"ConnectionCls": PinnedSecure}),
    }
    for adapter in session.adapters.values():
        if isinstance(adapter, HTTPAdapter):
            adapter.poolmanager.pool_classes_by_scheme = pools


def check_redirect(response: Response, redacted: Callable[[str], str]) -> None:
    """Before anybody follows it. Raises SentElsewhereError, in whose words is no secret of the location."""
    if response.is_redirect:
        response.close()  # nobody reads it
        location = redacted(response.headers["location"])
        raise SentElsewhereError(
            f"{response.request.url} redirects to {location}. It is not followed: the credentials would go "
            "there too.",
            GIVE_AS_URI,
        )
