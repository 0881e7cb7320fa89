"""Names for a shell that completes a command, asked of the service: quietly, and not for long."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from typer import Context

from service.command.columns import table_name

Ask = Callable[..., Any]
"""A call of the API: its method, its path after the version, and options as httpx has them."""
Complete = Callable[[Context, str], list[str]]
"""What stands on the line so far, and the word that was begun: by what it may be completed."""
_SECONDS = 2.0
_MOST = 100
"""From either end of the list."""
_UNQUOTED = re.compile(r"[\w./-]+", re.ASCII)
"""Shells evaluate what they are offered, and others name tables: no name that means more than itself."""


def names_of(path: str) -> Complete:
    """What completes a word to the name of something that is listed at `path` of the API."""

    def offer(_: Context, incomplete: str) -> list[str]:
        known = _asked(lambda ask: [one["name"] for one in _listed(ask, path, incomplete)])
        return _offered(known, incomplete)

    return _enrolled_tables if path == "/tables" else offer


def _enrolled_tables(context: Context, incomplete: str) -> list[str]:
    """Of the catalog that the line names, if it does."""
    catalog = _catalog(context)

    def read(ask: Ask) -> list[str]:
        listed = _listed(ask, "/tables", incomplete, catalog)
        return [name for one in listed for name in (table_name(one), one["name"]) if name]

    found = _offered(_asked(read), incomplete)
    # Of a name that can be told with its catalog or without, the one that says more.
    return [name for name in found if not any(other.endswith(f".{name}") for other in found)]


def tables_to_enroll(context: Context, incomplete: str) -> list[str]:
    """What completes a word to the name of a table that its catalog has and nobody has enrolled. Only names
    are read, and only once it is clear of which catalog."""
    if incomplete and not _UNQUOTED.fullmatch(incomplete):
        return []
    catalog = _catalog(context)
    known = _asked(lambda ask: _left_in(ask, catalog, incomplete) if catalog else _to_enroll(ask, incomplete))
    found = _offered(known, incomplete)
    return found if len(found) <= 2 * _MOST else found[:_MOST] + found[-_MOST:]


def _catalog(context: Context) -> str | None:
    """Which one an option before the word names."""
    return context.params.get("catalog") or None


def _to_enroll(ask: Ask, incomplete: str) -> list[str]:
    catalogs = [f"{one['name']}." for one in ask("GET", "/catalogs")["items"]]
    begun = [name for name in catalogs if incomplete.startswith(name)]
    chosen = [max(begun, key=len)] if begun else [name for name in catalogs if name.startswith(incomplete)]
    if len(chosen) != 1:
        return chosen
    (catalog,) = chosen
    name = incomplete.removeprefix(catalog) if begun else ""
    return [catalog + one for one in _left_in(ask, catalog.removesuffix("."), name)]


def _left_in(ask: Ask, catalog: str, incomplete: str) -> list[str]:
    """Tables of a catalog that nobody has enrolled, without its name."""
    asked = {"catalog": catalog, "pattern": f"{incomplete}*", "dry_run": True}
    there = ask("POST", "/tables/enroll-by-pattern", json=asked)["matched"]
    enrolled = {one["name"] for one in _listed(ask, "/tables", incomplete, catalog)}
    return [name for name in there if name not in enrolled]


def _asked(read: Callable[[Ask], list[str]]) -> list[str]:
    """Nothing of a service that does not answer, or not to this key, or not soon."""
    import httpx

    from icestream.connection import Connection, json_of
    from icestream.errors import IcestreamError
    from service.command import saved_login

    try:
        login = saved_login.find()
        with Connection(login.url, login.api_key) as connection:

            def ask(method: str, path: str, **options: Any) -> Any:
                return json_of(connection.request(method, f"/api/v1{path}", timeout=_SECONDS, **options))

            return read(ask)
    except (IcestreamError, httpx.HTTPError, LookupError, TypeError, ValueError):
        return []


def _listed(ask: Ask, path: str, incomplete: str, catalog: str | None = None) -> list[Any]:
    """What is listed at a path of the API, and may be what a word begins to name."""
    asked = {"prefix" if path == "/tables" else "search": incomplete, "limit": _MOST}
    if catalog is not None:
        asked["catalog"] = catalog
    answer = ask("GET", path, params={**asked, "sort": "name"})
    items = list(answer["items"])
    if answer["next_cursor"]:
        # What the first and the last one have in common is what a shell may fill in.
        items += ask("GET", path, params={**asked, "sort": "-name"})["items"]
    return items


def _offered(known: Iterable[str], incomplete: str) -> list[str]:
    return sorted({name for name in known if name.startswith(incomplete) and _UNQUOTED.fullmatch(name)})
