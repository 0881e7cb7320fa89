"""Writes by key in plain words: what each makes of the rows that it meets, at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Row(NamedTuple):
    id: int
    region: str | None
    value: int

    def key(self, columns: Sequence[str]) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in columns)


@dataclass(frozen=True)
class Effect:
    """What a write makes of the rows of a table. left_out: numbers of rows that were sent."""

    rows: list[Row]
    added: int
    deleted: int
    left_out: list[int]

    @property
    def is_nothing(self) -> bool:
        return not self.added and not self.deleted


@dataclass(frozen=True)
class Write:
    """kind: upsert or delete, of the rows' keys. options: of an upsert."""

    kind: str
    key: Sequence[str]
    rows: Sequence[Row]
    options: Mapping[str, Any] = field(default_factory=dict)

    def on(self, there: list[Row]) -> Effect:
        """Of rows with one key, the last counts."""
        numbers = {row.key(self.key): at for at, row in enumerate(self.rows)}
        sent = {at: self.rows[at] for at in sorted(numbers.values())}
        counts = {at: row for at, row in sent.items() if self._counts(row, there)}
        gone = {row.key(self.key) for row in counts.values()}
        kept = [row for row in there if row.key(self.key) not in gone]
        added = list(counts.values()) if self.kind == "upsert" else []
        left_out = [at for at in sent if at not in counts]
        return Effect(kept + added, len(added), len(there) - len(kept), left_out)

    def _counts(self, row: Row, there: list[Row]) -> bool:
        same = [one for one in there if one.key(self.key) == row.key(self.key)]
        if self.options.get("insert_only"):
            return not same
        if "only_if_newer_than" in self.options:
            return all(row.value > one.value for one in same)
        return True

    def __str__(self) -> str:
        rows = [tuple(row) if self.kind == "upsert" else row.key(self.key) for row in self.rows]
        return f"{self.kind} {rows}" + (f" {dict(self.options)}" if self.options else "")
