"""Names for a shell that completes a command, asked of the service: quietly, and not for long."""

import re
from collections.abc import Callable

from service.command.columns import table_name

_SECONDS = 2.0
_MOST = 100
_UNQUOTED = re.compile(r"[\w./-]+", re.ASCII)
"""Shells evaluate what they are offered, and others name tables: no name that means more than itself."""


def names_of(path: str) -> Callable[[str], list[str]]:
    """What completes a word to the name of something that is listed at `path` of the API."""

    def offer(incomplete: str) -> list[str]:
        import httpx

        from icestream.connection import Connection, json_of
        from icestream.errors import IcestreamError
        from service.command import saved_login

        try:
            login = saved_login.find()
            with Connection(login.url, login.api_key) as connection:
                # Without a dot, it may be the name of a catalog that begins a table's.
                _, dot, last = incomplete.rpartition(".")
                asked = {"search": last if dot or path != "/tables" else "", "limit": _MOST}
                answer = connection.request("GET", f"/api/v1{path}", params=asked, timeout=_SECONDS)
            items = json_of(answer)["items"]
            known = [name for one in items for name in {table_name(one), one["name"]} if name]
        except (IcestreamError, httpx.HTTPError, LookupError, TypeError, ValueError):
            return []
        found = [name for name in known if name.startswith(incomplete) and _UNQUOTED.fullmatch(name)]
        # Of a name that can be told with its catalog or without, the one that says more.
        whole = [name for name in found if not any(other.endswith(f".{name}") for other in found)]
        return sorted(set(whole))

    return offer
