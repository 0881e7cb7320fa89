"""HTTP with the service, as the command line and the client speak it."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote
from uuid import UUID

import httpx

from icestream.errors import ForbiddenError, SetupError, UnknownNameError, UnreachableError, refusal

WHERE: Final = "ICESTREAM_URL says where it is, and ICESTREAM_API_KEY who calls."
_TIMEOUT_SECONDS: Final = 60.0
_PAGE_ITEMS: Final = 500
_LATER: Final = (429, 503)
_SHORTEST_WAIT_SECONDS: Final = 0.2
_NOUNS: Final = {
    "/tables": "table",
    "/api-keys": "API key",
    "/webhooks": "webhook",
    "/notification-senders": "sender",
    "/patterns": "pattern",
}

Json = dict[str, Any]


class Connection:
    """To one service, by one API key."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        ca_file: str | Path | None = None,
        wait_seconds: float = 0,
    ) -> None:
        """url, api_key: ICESTREAM_URL and ICESTREAM_API_KEY, if they are not given. ca_file: certificates of
        who has signed the service's own, in PEM. wait_seconds: how long one call may wait for a service that
        says when to come again. Only calls that change nothing may be made then, since they are repeated.

        Raises SetupError.
        """
        key = api_key or os.environ.get("ICESTREAM_API_KEY")
        if not key:
            raise SetupError(
                "ICESTREAM_API_KEY is not set.",
                "Set it to a key that was made on the page, or to what the service was started with as "
                "ICESTREAM_BOOTSTRAP_KEY. With that one, `icestream auth create-api-key` makes others.",
            )
        self._wait_seconds = wait_seconds
        try:
            self.http = httpx.Client(
                base_url=url or os.environ.get("ICESTREAM_URL", "http://127.0.0.1:8000"),
                headers={"Authorization": f"Bearer {key}"},
                timeout=_TIMEOUT_SECONDS,
                follow_redirects=False,
                verify=True if ca_file is None else ssl.create_default_context(cafile=ca_file),
            )
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise SetupError(f"No call can be made with this address and key: {error}.", WHERE) from None
        except OSError as error:
            raise SetupError(f"The certificates in {ca_file} can't be read: {error}.", WHERE) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.http.close()

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """options: as httpx has them. Raises IcestreamError."""
        give_up_at = monotonic() + self._wait_seconds
        may_have_happened = False
        while True:
            try:
                answer = self.http.request(method, path, **options)
            except (httpx.TransportError, httpx.InvalidURL) as error:
                raise self.unreachable(error) from error
            may_have_happened |= answer.is_server_error
            wait_seconds = max(_retry_after(answer), _SHORTEST_WAIT_SECONDS)
            if answer.status_code not in _LATER or monotonic() + wait_seconds > give_up_at:
                break
            sleep(wait_seconds)
        if not answer.is_success:
            raise refusal(answer, may_have_happened=may_have_happened)
        return answer

    def unreachable(self, error: Exception) -> UnreachableError:
        reason = re.sub(r"^\[Errno -?\d+\] ", "", str(error))
        return UnreachableError(f"The service at {self.http.base_url} can't be reached: {reason}.", WHERE)

    def read_list(
        self, path: str, query: Mapping[str, Any], limit: int | None = None, page_items: int = _PAGE_ITEMS
    ) -> Json:
        """Items of as many pages as it takes to have `limit` of them; all, without one.

        Raises IcestreamError.
        """
        items: list[Any] = []
        totals: Json = {}
        while True:
            rest = page_items if limit is None else min(page_items, limit - len(items))
            page = json_of(self.request("GET", path, params={**query, "limit": rest}))
            if not isinstance(page, dict) or "items" not in page:
                raise UnreachableError(f"What answers at {self.http.base_url} is not Icestream.", WHERE)
            items += page["items"]
            # Of all pages, which the first one alone tells.
            totals = totals or {name: page[name] for name in ("total", "total_is_least") if name in page}
            cursor = page["next_cursor"]
            if cursor is None or (limit is not None and len(items) >= limit):
                return {**page, **totals, "items": items}
            query = {**query, "cursor": cursor}

    def table_id(self, named: str) -> str:
        """Of a table that is named by it or by its name. Raises IcestreamError."""
        return named if is_id(named) else str(self.find("/tables", "name", named)["id"])

    def lookups_path(self, named: str) -> str:
        """Where keys of a table are asked about; the service knows it by its name, too."""
        if "/" in named:  # which ends a name in a path, however it is written
            try:
                named = self.table_id(named)
            except ForbiddenError:  # a key for lookups alone lists no tables
                catalog, _, table = named.partition("/")
                if "/" in table:
                    raise
                named = f"{catalog}.{table}"
        return f"/api/v1/tables/{quote(named, safe='')}/lookups"

    def find(self, path: str, field: str, named: str) -> Json:
        """What is listed at `path` of the API with this name in `field`; a table's or a pattern's may have
        its catalog's before it. Raises IcestreamError."""
        # Of what may be named with its catalog, as catalog.namespace.table or catalog/namespace.table.
        has_catalog = path in ("/tables", "/patterns")
        search = named.rpartition("/")[2].rpartition(".")[2] if has_catalog else named
        found = self.read_list(f"/api/v1{path}", {"search": search})["items"]
        exact: list[Json] = [one for one in found if named in _names(one, field)]
        if not exact:
            raise UnknownNameError(
                f"No {_NOUNS[path]} is named {named}.", "Look at the list, or give the id."
            )
        if len(exact) > 1:
            ids = "; ".join(f"{one['id']} is {_described(one, field)}" for one in exact)
            raise UnknownNameError(
                f"{len(exact)} {_NOUNS[path]}s are named {named}.", f"Give the id of one: {ids}."
            )
        return exact[0]


def is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def json_of(answer: httpx.Response) -> Any:
    """Of JSON, what it says; else its text."""
    if not answer.content:
        return None
    is_json = answer.headers.get("Content-Type", "").startswith("application/json")
    return answer.json() if is_json else answer.text


def _retry_after(answer: httpx.Response) -> float:
    given = answer.headers.get("Retry-After", "")
    return float(given) if given.isdecimal() else 1.0


def _names(one: Json, field: str) -> tuple[str, ...]:
    """All that a thing can be called by."""
    name, catalog = one[field], one.get("catalog")
    return (name,) if catalog is None else (name, f"{catalog}.{name}", f"{catalog}/{name}")


def _described(one: Json, field: str) -> str:
    branch = f" on branch {one['branch']}" if "branch" in one else ""
    return f"{one[field]} of catalog {one['catalog']}{branch}" if "catalog" in one else str(one[field])
