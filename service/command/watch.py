"""`icestream status` and `top`: is all well, and what goes on, on one screen."""

import time
from collections.abc import Callable
from typing import Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from icestream.connection import Connection, Json, json_of
from icestream.errors import IcestreamError
from service.command import saved_login
from service.command.calls import end
from service.command.operations import Output
from service.command.printing import harmless, labelled, print_answer, rows_table
from service.quantities import brief, sized
from telemetry.plurals import counted

_MOST = 100
"""Tables, jobs or workers that are asked for: more than a screen shows."""
_HEAD_LINES = 4
_IN_FRAME = (("jobs", "workers", "catalogs"), ("pending", "tables"))
"""Figures of a line each, what is looked for most first: the end of a line may be cut off."""
_LEAST_LINES = 3
_STYLES = {"error": "red", "warning": "yellow"}
_PIPE_LINES = 60
_WIDEST = 10_000


def status(output: Output) -> None:
    """Ends with 1 if anything needs a person, or if nobody can be asked."""
    with _connect() as connection:
        try:
            overview = _read(connection, "/overview")
        except IcestreamError as error:
            end(error)
        if output in (Output.JSON, Output.YAML):
            print_answer(overview, output)
        else:
            console = Console(highlight=False)
            if not console.is_terminal:
                console = Console(highlight=False, width=_WIDEST)
            figures = [labelled(f"{name:<9}", words) for name, words in _figures(overview).items()]
            for line in [_head(connection, overview), Text(), *figures, *_concerns(overview)]:
                console.print(line)
    if overview["concerns"]:
        raise typer.Exit(1)


def top(interval_seconds: float) -> None:
    """Draws until Ctrl-C; where the output is no terminal, once."""
    console = Console(highlight=False)
    with _connect() as connection:
        if console.is_terminal:
            follow(console, lambda: _frame(connection, console.width, console.height), interval_seconds)
            return
        try:
            frame = _frame(connection, None, _PIPE_LINES)
        except IcestreamError as error:
            end(error)
    Console(highlight=False, width=_WIDEST, soft_wrap=True).print(frame)


def follow(console: Console, read: Callable[[], RenderableType], interval_seconds: float) -> None:
    """Shows what `read` makes, and again after each interval, until Ctrl-C. A service that is away may come
    back."""
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                try:
                    frame = read()
                except IcestreamError as error:
                    frame = Text(harmless(f"{error.detail}\n{error.remedy}"), style="red")
                live.update(frame, refresh=True)
                time.sleep(interval_seconds)
    except KeyboardInterrupt:
        return


def _connect() -> Connection:
    try:
        login = saved_login.find()
        return Connection(login.url, login.api_key)
    except IcestreamError as error:
        end(error)


def _read(connection: Connection, path: str, query: Json | None = None) -> Any:
    """Raises IcestreamError."""
    return json_of(connection.request("GET", f"/api/v1{path}", params=query))


def _head(connection: Connection, overview: Json) -> Text:
    number = len(overview["concerns"])
    is_well = "all is well" if not number else f"{counted(number, 'thing')} to look at"
    style = _STYLES[overview["concerns"][0]["severity"]] if number else "green"
    where = f"Icestream {overview['version']} at {str(connection.http.base_url).rstrip('/')}: "
    return Text.assemble(harmless(where), (f"{is_well}.", style))


def _figures(overview: Json) -> dict[str, str]:
    """What there is of each kind, in words."""
    by_status = {name: number for name, number in overview["tables"].items() if number}
    told = ", ".join(f"{number:,} {name}" for name, number in by_status.items())
    pending = (
        f"{counted(overview['pending_equality_deletes'], 'equality delete')} in "
        f"{counted(overview['pending_equality_delete_files'], 'file')}, "
        f"the oldest {brief(overview['lag_seconds'])} old"
    )
    return {
        "tables": told or "none is enrolled: `icestream tables enroll`",
        "catalogs": _catalogs(overview["catalogs"]),
        "pending": pending if overview["pending_equality_delete_files"] else "nothing",
        **({"reads": _reads(overview), "files": _files(overview)} if overview["read_seconds"] else {}),
        **({"staged": counted(overview["staged_rows"], "row")} if overview["staged_rows"] else {}),
        "jobs": f"{overview['running_jobs']:,} running, {overview['queued_jobs']:,} waiting",
        "workers": f"{overview['alive_workers']:,} alive",
    }


def _figure(name: str, words: str) -> Text:
    return Text.assemble((f"{name:<9}", "dim"), harmless(words))


def _catalogs(by_status: Json) -> str:
    """By whether they answer."""
    words = {"reachable": "reachable", "unreachable": "unreachable", "unknown": "not asked yet"}
    told = [f"{by_status[name]:,} {said}" for name, said in words.items() if by_status[name]]
    return ", ".join(told) or "none is registered: `icestream catalogs create`"


def _reads(overview: Json) -> str:
    """What readers pay, and how that has changed."""
    seconds, overhead = overview["read_seconds"], overview["read_overhead_seconds"]
    saved, avoided = overview["read_saved_seconds"], overview["read_avoided_seconds"]
    point, point_overhead = overview["point_read_seconds"], overview["point_read_overhead_seconds"]
    return (
        f"a full read of all takes about {brief(seconds)}, {brief(overhead)} of it for deletes and small "
        f"files, {brief(avoided)} less than without jobs, which have saved {brief(saved)} so far; a point "
        f"read takes {brief(point)}, {brief(point_overhead)} of it for these"
    )


def _files(overview: Json) -> str:
    """What readers join, and what jobs would write anew."""
    kinds = {"data": "data file", "delete": "delete file"}
    small = [counted(overview[f"small_{name}_files"], noun) for name, noun in kinds.items()]
    return (
        f"a full read joins {counted(overview['delete_files'], 'delete file')} "
        f"({sized(overview['delete_bytes'])}); small are {', '.join(small)} and "
        f"{counted(overview['small_manifests'], 'manifest')}; {counted(overview['snapshots'], 'snapshot')}"
    )


def _concerns(overview: Json) -> list[RenderableType]:
    """Each with what to do about it."""
    lines: list[RenderableType] = []
    for one in overview["concerns"]:
        title = harmless(one["title"], lines=False)
        lines += [Text(), Text(title, style=f"bold {_STYLES.get(one['severity'], '')}")]
        for words in (one["detail"], one["remedy"]):
            if words:
                words = Text(" ".join(harmless(words).split()))
                lines.append(Padding(words, (0, 0, 0, 2), expand=False))
    return lines


def _frame(connection: Connection, width: int | None, height: int) -> Group:
    """The fullest tables, the running jobs, and the workers, in as many lines as there are."""
    overview = _read(connection, "/overview")
    lists = {
        "list_workers": _read(connection, "/workers", {"alive": True, "limit": _MOST}),
        "list_jobs": _read(connection, "/jobs", {"status": "running", "limit": _MOST}),
        "list_tables": _read(connection, "/tables", {"sort": "-pending_equality_deletes", "limit": _MOST}),
    }
    tables = lists["list_tables"]["items"]
    tables.sort(key=lambda one: (one["pending_equality_deletes"], one["lag_seconds"]), reverse=True)
    left = height - _HEAD_LINES
    parts: list[RenderableType] = []
    for share, (operation_id, found) in zip((4, 2, 1), lists.items(), strict=True):
        # A blank line, a title, and the headings.
        shown = found["items"][: max(left // share - 3, _LEAST_LINES)]
        noun = operation_id.removeprefix("list_")
        if shown:
            left -= len(shown) + 3
            table = rows_table(shown, operation_id, width=width)
            part: list[RenderableType] = [Text(), Text(noun, style="bold"), table]
        else:
            left -= 2
            part = [Text(), Text(f"no {noun.removesuffix('s')}", style="dim")]
        parts = part + parts
    figures = {name: _figure(name, words) for name, words in _figures(overview).items()}
    lines = [[figures[name] for name in names] for names in _IN_FRAME]
    head = [_head(connection, overview), *map(Text("   ").join, lines)]
    for line in head:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*head, *parts)
