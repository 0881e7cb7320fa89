"""Names for a shell that completes a command, asked of the service: quietly, and not for long."""

import re
from collections.abc import Callable
from typing import Any

from service.command.columns import table_name

_SECONDS = 2.0
_MOST = 100
"""From either end of the list."""
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
                begins = {"prefix" if path == "/tables" else "search": incomplete, "limit": _MOST}

                def read(**asked: str) -> Any:
                    answer = connection.request(
                        "GET", f"/api/v1{path}", params={**begins, **asked}, timeout=_SECONDS
                    )
                    return json_of(answer)

                answer = read(sort="name")
                items = answer["items"]
                if answer["next_cursor"]:
                    # What the first and the last one have in common is what a shell may fill in.
                    items += read(sort="-name")["items"]
            known = [name for one in items for name in {table_name(one), one["name"]} if name]
        except (IcestreamError, httpx.HTTPError, LookupError, TypeError, ValueError):
            return []
        found = [name for name in known if name.startswith(incomplete) and _UNQUOTED.fullmatch(name)]
        # Of a name that can be told with its catalog or without, the one that says more.
        whole = [name for name in found if not any(other.endswith(f".{name}") for other in found)]
        return sorted(set(whole))

    return offer
