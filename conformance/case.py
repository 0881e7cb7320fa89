"""What a case is, and where it lies once it is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from conformance.converted import convert
from conformance.table import Table
from conformance.types import Field, Row, to_json

WRITTEN, CONVERTED = "written", "converted"
TABLE = "table"


@dataclass(frozen=True)
class Expected:
    """rows: what a reader must see. at: the snapshot that it reads; None for the current one.
    open_ids: of rows that it may see or not, since the spec leaves it open."""

    rows: Sequence[Row]
    at: int | None = None
    open_ids: tuple[int, ...] = ()


Build = Callable[[Table], "Expected | Sequence[Row]"]


@dataclass(frozen=True)
class Case:
    """rule: what a reader must do. section: of the Iceberg spec, that says so.

    is_defined: whether the spec says what is to be seen; otherwise a reader may refuse the table, and see
    some rows or not.
    """

    name: str
    rule: str
    section: str
    build: Build
    versions: tuple[int, ...] = (2, 3)
    is_defined: bool = True


@dataclass(frozen=True)
class Reading:
    """A table that is there, at one snapshot, and its rows as JSON."""

    case: Case
    format_version: int
    state: str  # as it was written, or converted
    metadata: str
    snapshot_id: int
    is_current: bool
    fields: Sequence[Field]
    rows: Sequence[dict[str, Any]]
    open_ids: Sequence[int]

    @property
    def name(self) -> str:
        return f"{self.case.name}/v{self.format_version}/{self.state}"


@dataclass
class Cases:
    """A list of cases, which functions join: their name and docstring are the case's name and rule."""

    section: str
    all: list[Case] = field(default_factory=list)

    def case(
        self, section: str | None = None, *, versions: tuple[int, ...] = (2, 3), is_defined: bool = True
    ) -> Callable[[Build], Build]:
        def add(build: Build) -> Build:
            rule = " ".join((build.__doc__ or "").split())
            name = build.__name__.replace("_", "-")
            self.all.append(Case(name, rule, section or self.section, build, versions, is_defined))
            return build

        return add


def write(case: Case, format_version: int, directory: Path, location: str) -> list[Reading]:
    """Writes a case under a directory, which metadata calls `location`, and returns what can be read there.

    The same bytes for the same location. Raises OSError.
    """
    name = f"{case.name}/v{format_version}"
    folder = directory / name
    table = Table(folder / TABLE, f"{location}/{name}/{TABLE}", name, format_version)
    built = case.build(table)
    expected = built if isinstance(built, Expected) else Expected(built)
    # Else it would depend on the reader's ways which schema it shows at a snapshot.
    assert table.snapshots[-1]["schema-id"] == table.schemas[-1]["schema-id"]
    kinds = {one["name"]: one["type"] for one in table.schema}
    rows = [{name: to_json(kind, row.get(name)) for name, kind in kinds.items()} for row in expected.rows]
    written = table.write_metadata("00001-written.metadata.json")
    snapshot_id = table.current if expected.at is None else expected.at
    is_current = snapshot_id == table.current

    def reading(state: str, metadata: str, at: int) -> Reading:
        return Reading(
            case, format_version, state, metadata, at, is_current, table.schema, rows, expected.open_ids
        )

    readings = [reading(WRITTEN, written, snapshot_id)]
    if is_current and case.is_defined and convert(table, [row["id"] for row in expected.rows]):
        # In a directory of its own, so that who reads the newest metadata of a directory reads either state.
        twin = replace(table, directory=folder / CONVERTED, location=f"{location}/{name}/{CONVERTED}")
        metadata = twin.write_metadata("00002-converted.metadata.json")
        readings.append(reading(CONVERTED, metadata, table.current))
    (folder / "expected.jsonl").write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))
    described = {
        "name": case.name,
        "rule": case.rule,
        "section": case.section,
        "format-version": format_version,
        "is-defined": case.is_defined,
        "open-ids": list(expected.open_ids),
        "schema": table.schemas[-1],
        "readings": {
            one.state: {"metadata": one.metadata, "snapshot-id": one.snapshot_id, "is-current": is_current}
            for one in readings
        },
    }
    (folder / "case.json").write_text(json.dumps(described, indent=2) + "\n")
    return readings
