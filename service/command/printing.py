"""Answers of the API on a terminal: tables and trees for people, JSON and YAML for programs.

Nothing that a table, a catalog or a worker has named steers the terminal: of all words, only characters that
can be printed are.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import yaml
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from service.command.answers import as_shown
from service.command.columns import (
    OF_TABLES,
    Column,
    columns,
    reason_heading,
    reason_of,
    shown,
    table_name,
)
from service.command.operations import Json, Output

_REASON_CELLS = 24
"""So much of the reason is left before columns go."""
_KEPT = 2
"""Columns that are there however narrow the terminal is."""
_LEAST_CELLS = 8
_NAMES_SHARE = 0.35
"""So much of the width is left to the first column, which has names, before others go."""
_NAMES = ("table", "action", "target")
"""Other columns with names, of which a part is better than nothing."""
_GAP = 2
_LINE_CELLS = 60
"""Of a list of words, what is longer has a line for each."""
_UNFOLDED = 5
"""A list of more things within an answer is a table."""
_THINGS = 20
"""So many of them are shown."""
_THINGS_WITH_PARTS = 10
"""And so many of those that take several lines each."""
_WHOLE = frozenset({"remedy", "matches", "refused_because"})
"""What says what to do or why not, or has rows of a table, loses nothing to columns."""
_BRANCH_CELLS = 4
_WIDEST = 100_000
_STYLES = {
    **dict.fromkeys(("healthy", "succeeded", "delivered", "active", "reachable"), "green"),
    **dict.fromkeys(("lagging", "degraded", "pending", "warning"), "yellow"),
    **dict.fromkeys(("blocked", "unknown", "unreachable", "failed", "dead", "denied", "error"), "red"),
    "running": "cyan",
}
_COLOURED = ("status", "state", "outcome", "level")


def harmless(text: str, *, lines: bool = True) -> str:
    """Without characters that steer a terminal or turn its text round. lines: whether it may have several."""
    kept = "\n" if lines else ""
    return "".join(one if one.isprintable() or one in kept else "\N{REPLACEMENT CHARACTER}" for one in text)


def print_answer(answer: Any, output: Output, operation_id: str = "") -> None:
    """Prints an answer; of a list, `items` are its rows, and the operation tells its columns."""
    if output is Output.JSON:
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
    elif output is Output.YAML:
        sys.stdout.write(yaml.safe_dump(answer, sort_keys=False, width=_WIDEST))
    elif isinstance(answer, dict) and isinstance(answer.get("items"), list):
        print_rows(answer["items"], operation_id, wide=output is Output.WIDE)
        if answer.get("next_cursor"):
            Console(stderr=True).print(_how_many_more(answer), style="dim")
    elif isinstance(answer, dict):
        fields, rows = as_shown(operation_id, answer)
        _print_tree(fields)
        if rows:
            print_rows(rows, operation_id, wide=output is Output.WIDE)
    elif answer is None:
        Console(stderr=True).print("Done.", style="dim")
    else:
        sys.stdout.write(harmless(str(answer)).rstrip("\n") + "\n")


def _how_many_more(answer: Json) -> str:
    if (total := answer.get("total")) is None:
        return "There are more: --limit tells how many are shown."
    least = " at least" if answer.get("total_is_least") else ""
    return f"{len(answer['items']):,} of{least} {total:,} are shown: --limit tells how many."


def print_rows(rows: Sequence[Json], operation_id: str = "", *, wide: bool = False) -> None:
    if not rows:
        Console(stderr=True).print("None.", style="dim")
        return
    console = Console(highlight=False)
    # In a pipe, lines and words stay whole.
    is_whole = wide or not console.is_terminal
    table = rows_table(rows, operation_id, wide=wide, width=None if is_whole else console.width)
    if is_whole:
        console = Console(highlight=False, width=_WIDEST, soft_wrap=True)
        console = Console(highlight=False, width=console.measure(table).maximum, soft_wrap=True)
    console.print(table)


def rows_table(
    rows: Sequence[Json], operation_id: str, *, wide: bool = False, width: int | None = None
) -> Table:
    """A line for each row, none of which is longer than `width`, if it is given: then columns go for which
    those of more importance leave no room, and at last the end of the reason, and of the first column, which
    has the name."""
    told = {
        column: [_plain(column.show(row)) for row in rows]
        for column in columns(operation_id, rows, wide=wide)
    }
    reasons = [_plain(reason_of(row)) for row in rows]
    widths = {column: max(map(cell_len, [column.heading, *cells])) for column, cells in told.items()}
    reason_width = max(map(cell_len, reasons))
    if width is not None:
        reason_width = _fit(widths, reason_width, width)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for column, its_width in widths.items():
        side: Literal["left", "right"] = "right" if column.is_number else "left"
        heading = Text(_plain(column.heading))
        table.add_column(heading, justify=side, width=its_width, no_wrap=True, overflow="ellipsis")
    if reason_width:
        table.add_column(reason_heading(rows), width=reason_width, no_wrap=True, overflow="ellipsis")
    for index, reason in enumerate(reasons):
        cells = [_cell(column.heading, told[column][index]) for column in widths]
        table.add_row(*cells, *([Text(reason)] if reason_width else ()))
    return table


def _fit(widths: dict[Column, int], reason_width: int, width: int) -> int:
    """Makes columns narrower, or leaves them out, until all fit; the width that is left for the reason."""
    first, *others = widths
    least = min(reason_width, _REASON_CELLS)
    gaps = _GAP * (len(widths) - (0 if reason_width else 1))
    # Names give way first, and again when nothing else is left.
    lacking = min(width - sum(widths.values()) - gaps - min(reason_width, 2 * _REASON_CELLS), 0)
    widths[first] = min(widths[first], max(widths[first] + lacking, int(width * _NAMES_SHARE)))
    left = width - widths[first] - least - (_GAP if least else 0)
    for number, column in enumerate(others, 2):
        room = left - _GAP
        if column.heading in _NAMES and room >= _LEAST_CELLS:
            widths[column] = min(widths[column], room)
        if number > _KEPT and widths[column] > room:
            del widths[column]
        else:
            left = room - widths[column]
    left += least
    least = min(reason_width, _LEAST_CELLS)
    widths[first] = max(widths[first] + min(left - least, 0), min(widths[first], _LEAST_CELLS))
    return min(reason_width, max(left, least))


def _plain(value: str | None) -> str:
    return harmless(value or "", lines=False)


def _cell(heading: str, word: str) -> Text:
    if not word:
        return Text("-", style="dim")
    return Text(word, style=_STYLES.get(word, "") if heading in _COLOURED else "")


def _print_tree(answer: Json) -> None:
    console = Console(highlight=False)
    tree = Tree("", hide_root=True, guide_style="dim")
    _grow(tree, answer, console.width if console.is_terminal else None)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDEST, soft_wrap=True)
    console.print(tree)


def _grow(tree: Tree, fields: Mapping[str, Any], room: int | None, above: str = "") -> None:
    """What is nested becomes branches; the names of what is not are as wide as each other.

    room: so many cells are left of a line. above: that of the columns of a table, if these are some.
    """
    fields = fields if above else _named_in_full(fields)
    flat = [str(name) for name, value in fields.items() if not _branches(value)]
    width = max((cell_len(_plain(name)) for name in flat), default=0)
    for name, value in fields.items():
        label = _plain(str(name))
        label = label if above else label.replace("_", " ")
        of_table = above or (f"{name}." if f"{name}." in OF_TABLES else "")
        if branches := _branches(value):
            branch = tree.add(Text(label, style="bold"))
            within = None if room is None else room - _BRANCH_CELLS
            if not of_table and _has_columns(value):
                branch.add(rows_table(value[:_THINGS], "", width=within))
                branches = _left_out(value, _THINGS)
            for under, one in branches:
                if isinstance(one, Mapping) and one:
                    deeper = branch.add(Text(under, style="dim")) if under else branch
                    _grow(deeper, one, within and within - _BRANCH_CELLS * bool(under), of_table)
                else:
                    branch.add(_leaf(under, one, 0, of_table))
        else:
            tree.add(_leaf(label, value, width, f"{above}{name}"))


def _named_in_full(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """With a table's name as commands take it."""
    name = "table" if "table" in fields else "name" if "identifier" in fields else None
    if name is None or not isinstance(fields[name], str) or not fields.get("catalog"):
        return fields
    return {one: fields[one] for one in fields if one != "catalog"} | {name: table_name(dict(fields))}


def _branches(value: Any) -> list[tuple[str, Any]]:
    """The parts of what has several, with what each is called; of a list, by its name or number."""
    if isinstance(value, Mapping):
        return [("", value)] if value else []
    if not isinstance(value, list):
        return []
    if any(isinstance(one, Mapping | list) for one in value):
        are_rows = any(isinstance(one, Mapping) and "matches" in one for one in value)
        most = len(value) if are_rows else _THINGS_WITH_PARTS  # what was asked for is told of each
        told = [(_called(one, number), one) for number, one in enumerate(value[:most], 1)]
        return told + _left_out(value, most)
    are_words = any(isinstance(one, str) for one in value) and sum(map(len, map(str, value))) > _LINE_CELLS
    return [(str(number), one) for number, one in enumerate(value, 1)] if are_words else []


def _left_out(things: Sequence[Any], most: int) -> list[tuple[str, Any]]:
    more = len(things) - most
    return [("and", f"{more:,} more: -o json shows them")] if more > 0 else []


def _has_columns(value: Any) -> bool:
    """Whether a list of things is told as a table."""
    return (
        isinstance(value, list)
        and len(value) > _UNFOLDED
        and all(isinstance(one, Mapping) and not _has_parts(one) for one in value)
        and bool(columns("", value, wide=False))
    )


def _has_parts(thing: Mapping[str, Any]) -> bool:
    """Whether columns would not tell all that matters of it."""
    return not _WHOLE.isdisjoint(thing) or any(
        (isinstance(value, Mapping) and value)
        or (isinstance(value, list) and any(isinstance(one, Mapping) for one in value))
        for value in thing.values()
    )


def _called(one: Any, number: int) -> str:
    name = one.get("name") if isinstance(one, Mapping) else None
    return _plain(f"{number} {name}" if isinstance(name, str) else str(number))


def _leaf(label: str, value: Any, width: int, name: str = "") -> RenderableType:
    padded = label + " " * (width - cell_len(label))
    return labelled(f"{padded}  ", harmless(shown(name, value) or "-"))


def labelled(label: str, words: str) -> RenderableType:
    """Words behind what they are about, and beside it on every line that they need."""
    line = Text.assemble((label, "dim"), words)
    if line.cell_len <= _LINE_CELLS and "\n" not in words:
        return line
    grid = Table.grid()
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label), Text(words))
    return grid
