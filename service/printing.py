"""Answers of the API on a terminal: as tables for people, as JSON for programs."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.remote import Json, Output

_FIRST = (
    "id",
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
    plain = [name for name, value in rows[0].items() if not isinstance(value, dict | list)]
    columns = [name for name in _FIRST if name in plain]
    columns += [name for name in plain if name not in columns][: max(0, _COLUMNS - len(columns))]
    table = Table(*(column.replace("_", " ") for column in columns), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    # A terminal folds what is too wide; in a pipe, lines and words stay whole.
    whole = Console(width=_WIDEST).measure(table).maximum
    Console(highlight=False, width=None if _out.is_terminal else whole, soft_wrap=True).print(table)


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
    return Text(str(value))
