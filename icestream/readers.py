"""Which deletes of an Iceberg table an engine reads, as `readers.toml` has it with date and source.

A reader is named by its engine, with its version if that matters: `athena`, `trino-475`.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

Sight = Literal["reads", "refuses", "unknown"]
"""Of a table: whether an engine reads it, and shows no row that is deleted."""
_NAME = re.compile(r"([a-z]{1,40})(?:-([0-9]{1,6}(?:\.[0-9]{1,6}){0,3}))?")


@dataclass(frozen=True, slots=True)
class Reader:
    """What is known of an engine, in one version or in all that are meant. source: of that."""

    name: str
    equality_deletes: Sight = "unknown"
    position_deletes: Sight = "unknown"
    deletion_vectors: Sight = "unknown"
    source: str = ""
    looked_at: str = ""
    note: str = ""

    def before(self, format_version: int) -> Sight:
        """What it sees of a table with equality deletes. A table of version 3 is nothing for whoever knows no
        deletion vectors."""
        return _of_all([self.equality_deletes, *([self.deletion_vectors] if format_version > 2 else [])])

    def after(self, format_version: int, *, some_stay: bool = False) -> Sight:
        """What it sees of the table with position deletes or deletion vectors in their place.

        some_stay: of the equality deletes, beside these.
        """
        seen = [self.deletion_vectors if format_version > 2 else self.position_deletes]
        return _of_all([*seen, self.before(format_version)] if some_stay else seen)


def _of_all(seen: list[Sight]) -> Sight:
    return "refuses" if "refuses" in seen else "unknown" if "unknown" in seen else "reads"


def reader(name: str) -> Reader:
    """What is known of it; of an engine that `engines` does not have, that is nothing.

    Without a version, it is what holds for all versions that are known.

    Raises ValueError for what is no name of a reader.
    """
    matched = _NAME.fullmatch(name)
    if matched is None:
        raise ValueError(
            f"{name!r} is no engine in small letters, with or without -VERSION: trino, or trino-475;"
            f" known are {', '.join(engines())}"
        )
    entries = [one for one in _entries() if one["engine"] == matched[1]]
    if matched[2] is not None:
        entries = [one for one in entries if _version(one.get("since", "0")) <= _version(matched[2])][-1:]

    def sight(of: str) -> Sight:
        found: set[Sight] = {one.get(of, "unknown") for one in entries}
        return found.pop() if len(found) == 1 else "unknown"

    last = entries[-1] if entries else {}
    return Reader(
        name,
        sight("equality_deletes"),
        sight("position_deletes"),
        sight("deletion_vectors"),
        last.get("source", ""),
        str(last.get("looked_at", "")),
        last.get("note", ""),
    )


def engines() -> list[str]:
    """By name."""
    return sorted({one["engine"] for one in _entries()})


@cache
def _entries() -> list[dict[str, Any]]:
    """Of one engine, older versions first."""
    found: list[dict[str, Any]] = tomllib.loads(files("icestream").joinpath("readers.toml").read_text())[
        "reader"
    ]
    return found


def _version(text: str) -> tuple[int, ...]:
    """18 and 18.0 are one version."""
    parts = list(map(int, text.split(".")))
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)
