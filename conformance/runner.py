"""Runs a reader over the cases, and tells what it made of each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from conformance.asking import Answer, Outcome, Reader, local_path
from conformance.case import CONVERTED, TABLE, WRITTEN, Case, Reading, write
from conformance.compare import difference

OUTCOMES: tuple[Outcome, ...] = ("pass", "deviates", "refused", "crashed", "skipped")


@dataclass(frozen=True)
class Result:
    """reason: what was seen wrong, or why nothing was."""

    reading: str
    outcome: Outcome
    reason: str = ""


def chosen(cases: Iterable[Case], patterns: Sequence[str]) -> list[Case]:
    """Those whose name is like any pattern, as in a shell; all without patterns."""
    return [case for case in cases if not patterns or any(fnmatchcase(case.name, one) for one in patterns)]


def write_all(
    cases: Iterable[Case], directory: Path, location: str | None = None, *, versions: Sequence[int] = (2, 3)
) -> list[Reading]:
    """Writes the cases under a directory. location: what metadata calls it; else its `file:` URI.

    Raises OSError.
    """
    place = (directory.absolute().as_uri() if location is None else location).rstrip("/")
    return [
        reading
        for case in cases
        for version in case.versions
        if version in versions
        for reading in write(case, version, directory, place)
    ]


def run(reader: Reader, readings: Iterable[Reading], asked: Callable[[Reading], bool]) -> Iterator[Result]:
    """asked: whether the reader can be told to read this. Its words of paths are without the directory."""
    for reading in readings:
        if not asked(reading):
            yield Result(reading.name, "skipped", "the command takes no {snapshot}")
            continue
        table = reading.metadata.rpartition("/metadata/")[0]
        values = {
            "metadata": local_path(reading.metadata),
            "table": local_path(table),
            "snapshot": str(reading.snapshot_id),
        }
        yield _judged(reading, reader.ask(values), table.rpartition("/")[0])


def _judged(reading: Reading, answer: Answer, case: str) -> Result:
    if answer.crashed:
        return Result(reading.name, "crashed", _portable(answer.crashed, case))
    if answer.refused:
        outcome: Outcome = "refused" if reading.case.is_defined else "pass"
        return Result(reading.name, outcome, _portable(answer.refused, case))
    differs = difference(reading.fields, reading.rows, answer.rows, reading.open_ids)
    return Result(reading.name, "deviates" if differs else "pass", differs)


def _portable(words: str, case: str) -> str:
    """Without the place of the case, which differs from machine to machine."""
    path = local_path(case)
    for place in (case, f"file:{path}", path):
        for directory in (TABLE, CONVERTED):
            words = words.replace(f"{place}/{directory}", "TABLE")
    return words


# What is told.


def summary(results: Sequence[Result]) -> str:
    counts = Counter(result.outcome for result in results)
    return ", ".join(f"{counts[outcome]} {_WORDS[outcome]}" for outcome in OUTCOMES if counts[outcome])


_WORDS = {
    "pass": "passed",
    "deviates": "deviated",
    "refused": "were refused",
    "crashed": "crashed",
    "skipped": "were skipped",
}


def table_of(results: Sequence[Result]) -> str:
    """A line for each case, and a column for each version before and after the conversion."""
    columns = [f"v{version}/{state}" for version in (2, 3) for state in (WRITTEN, CONVERTED)]
    cells: dict[str, dict[str, str]] = {}
    for result in results:
        name, _, column = result.reading.partition("/")
        cells.setdefault(name, {})[column] = result.outcome
    width = max((len(name) for name in cells), default=0)
    lines = [" ".join([" " * width, *(f"{column:13}" for column in columns)]).rstrip()]
    lines += [
        " ".join([f"{name:{width}}", *(f"{of.get(column, ''):13}" for column in columns)]).rstrip()
        for name, of in cells.items()
    ]
    return "\n".join(lines)


def report(results: Sequence[Result]) -> str:
    """As JSON: how many passed, and all others with their reasons."""
    told: Mapping[str, object] = {
        "counts": dict(Counter(result.outcome for result in results)),
        "others": {
            result.reading: {"outcome": result.outcome, "reason": result.reason}
            for result in results
            if result.outcome != "pass"
        },
    }
    return json.dumps(told, indent=1, ensure_ascii=False) + "\n"
