"""What cases share: the shortest table, and its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conformance.table import Table
from conformance.types import Row, Type, field


def keyed(table: Table, kind: Type = "int") -> None:
    """The columns `id`, which tells rows apart, and `k`, by which deletes find them."""
    table.set_schema(field(1, "id", "long"), field(2, "k", kind))


def row(i: int, k: Any) -> Row:
    return {"id": i, "k": k}


def rows(keys: Sequence[Any], first: int = 0) -> list[Row]:
    """A row of each key, with ids from `first` on."""
    return [row(first + at, k) for at, k in enumerate(keys)]


def key(k: Any) -> Row:
    return {"k": k}
