"""Answers of the API on a terminal: as tables for people, as JSON for programs."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.command.operations import Json, Output

_FIRST = (
    "at",
    "name",
    "catalog",
    "table",
    "kind",
    "type",
    "level",
    "status",
    "role",
    "state",
    "outcome",
)
"""What comes first in a row; then the other plain fields as they stand, as long as there is room."""
_COLUMNS = 9
_COLUMNS_WITH_REASON = 6
_REASONS = ("problem", "error", "caveat", "waiting_for", "status_reason")
"""Where a row says why it is as it is: in words, or as a problem with its detail and remedy."""
_WIDEST = 10_000
_out = Console(highlight=False, soft_wrap=True)


def print_answer(answer: Any, output: Output) -> None:
    """Prints an answer; of a list, `items` are its rows."""
    if output is Output.JSON:
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
    elif isinstance(answer, dict) and isinstance(answer.get("items"), list):
        _print_rows(answer["items"])
        if answer.get("next_cursor"):
            Console(stderr=True).print("There are more: --limit tells how many are shown.", style="dim")
    elif isinstance(answer, dict):
        _print_fields(answer)
    elif answer is not None:
        sys.stdout.write(str(answer).rstrip("\n") + "\n")


def _print_rows(rows: Sequence[Json]) -> None:
    if not rows:
        Console(stderr=True).print("None.", style="dim")
        return
    reasons = [reason_of(row) for row in rows]
    plain = [name for name in rows[0] if _is_plain(name, rows)]
    columns = [name for name in _FIRST if name in plain]
    most = _COLUMNS_WITH_REASON if any(reasons) else _COLUMNS
    columns += [name for name in plain if name not in columns][: max(0, most - len(columns))]
    if "id" in rows[0]:
        columns.insert(len(columns) if "name" in plain else 0, "id")
    headings = [column.replace("_", " ") for column in columns] + ["reason"] * any(reasons)
    table = Table(*headings, box=None, pad_edge=False)
    for row, reason in zip(rows, reasons, strict=True):
        cells = [_cell(row.get(column)) for column in columns]
        table.add_row(*cells, *([_cell(reason)] if any(reasons) else ()))
    # A terminal folds what is too wide; in a pipe, lines and words stay whole.
    whole = Console(width=_WIDEST).measure(table).maximum
    Console(highlight=False, width=None if _out.is_terminal else whole, soft_wrap=True).print(table)


def reason_of(row: Json) -> str | None:
    """Why something is as it is and what to do, as far as an item of a list tells."""
    for name in _REASONS:
        told = row.get(name)
        if isinstance(told, dict):
            title = f"{told['title']}: " if told.get("title") else ""
            told = title + " ".join(str(told[part]) for part in ("detail", "remedy") if told.get(part))
        if told and isinstance(told, str):
            return " ".join(told.split())
    return None


def _is_plain(name: str, rows: Sequence[Json]) -> bool:
    """Whether it gets a column: no lists, no ids of what is named, nothing the reason says."""
    if name in ("id", "table_uuid", *_REASONS) or name.removesuffix("_id") in rows[0].keys() - {name}:
        return False
    return not any(isinstance(row.get(name), dict | list) for row in rows)


def _print_fields(fields: Json) -> None:
    table = Table.grid("", "", padding=(0, 2))
    for name, value in fields.items():
        table.add_row(Text(name.replace("_", " "), style="dim"), _cell(value))
    _out.print(table)


def _cell(value: Any) -> Text:
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, dict | list):
        return Text(json.dumps(value, indent=2) if value else "-")
    # What a catalog or a writer of a table has named must not steer the terminal.
    shown = (one if one.isprintable() or one == "\n" else "\N{REPLACEMENT CHARACTER}" for one in str(value))
    return Text("".join(shown))
