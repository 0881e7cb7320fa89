"""`icestream tables lookup`: keys from the command line or a file, and where their rows are."""

import csv
import json
from collections.abc import Iterator, Sequence
from functools import reduce
from io import StringIO
from pathlib import Path
from typing import Any

import typer

from icestream.client import WAIT_SECONDS, parts_of, pinned
from service.command.calls import Client
from service.command.operations import Json, Output
from service.command.printing import print_answer

_PLACE = ("live", "data_file", "position", "deleted_by")


def look_up(table: str, keys: Sequence[str], file: Path | None, options: Json, output: Output) -> None:
    """Prints where the rows of keys are.

    keys: each as `column=value`, with commas between columns, or a JSON object. file: of CSV with a header,
    or a JSON object in each line; `-` is standard input.
    """
    asked = [_key(text) for text in keys] + (list(_read(file)) if file is not None else [])
    if not asked:
        raise typer.BadParameter("Name keys by --key or --file.")
    with Client(WAIT_SECONDS) as client:
        path = client.lookups_path(table)

        def ask(part: Sequence[Json], options: Json) -> tuple[Json, Json]:
            answer: Json = client.send("POST", path, body=options | {"keys": part})
            return answer, answer

        answer = reduce(_joined, pinned(parts_of(asked), ask, options))
    if output in (Output.JSON, Output.YAML):
        print_answer(answer, output)
    else:
        print_answer({"items": list(_rows(answer["results"]))}, output)


def _joined(answer: Json, part: Json) -> Json:
    return answer | {
        "results": answer["results"] + part["results"],
        "rows_scanned": answer["rows_scanned"] + part["rows_scanned"],
    }


def _rows(results: Sequence[Json]) -> Iterator[Json]:
    """With columns named as those of `Answer.to_pandas`: any name may be one of the table's own."""
    selected = dict.fromkeys(
        name for found in results for match in found["matches"] for name in match.get("row") or ()
    )
    nothing = dict.fromkeys((*_PLACE, "row"))
    for found in results:
        key = {f"key.{name}": value for name, value in found["key"].items()}
        for match in found["matches"] or [nothing]:
            row = match.get("row") or selected
            place = {name: match[name] for name in _PLACE}
            yield key | place | {f"row.{name}": row[name] for name in selected}


def _key(text: str) -> Json:
    if text.lstrip().startswith("{"):
        return _object(text, f"--key {text}")
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(name and equals for name, equals, _ in pairs):
        raise typer.BadParameter(f"--key {text!r} is neither column=value nor a JSON object.")
    return {name.strip(): value for name, _, value in pairs}


def _read(file: Path) -> Iterator[Json]:
    content = typer.get_binary_stream("stdin").read() if str(file) == "-" else file.read_bytes()
    try:
        # Bytes, so that no line break within a value becomes another one.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{file} is no UTF-8: {error}.") from error
    if text.lstrip().startswith("{"):
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield _object(line, f"Line {number} of {file}")
        return
    if text.lstrip().startswith("["):
        raise typer.BadParameter(f"{file} is a list of JSON: write its objects alone, each in a line.")
    reader = csv.DictReader(StringIO(text, newline=""))
    try:
        for row in reader:
            if None in row or None in row.values():
                raise typer.BadParameter(
                    f"Line {reader.line_num} of {file} has not as many values as the header."
                )
            yield dict(row)
    except csv.Error as error:
        raise typer.BadParameter(f"Line {reader.line_num} of {file} is no CSV: {error}.") from error


def _object(text: str, what: str) -> Json:
    try:
        found: Any = json.loads(text, object_pairs_hook=_named_once)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{what} is no JSON: {error}.") from error
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{what} is no JSON object.")
    return found


def _named_once(pairs: list[tuple[str, Any]]) -> Json:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name stands twice in an object")
    return dict(pairs)
