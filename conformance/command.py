"""`icestream conformance`: lists the cases, writes them, or runs a reader over them."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from conformance.asking import placeholders, reader_of
from conformance.case import Case
from conformance.cases import ALL
from conformance.readers import BUILT_IN
from conformance.runner import chosen, report, run, summary, table_of, write_all


def conformance(
    patterns: Sequence[str],
    *,
    reader: str | None,
    lists: bool,
    directory: Path | None,
    location: str | None,
    version: int | None,
    timeout_seconds: float,
    report_to: Path | None,
) -> int:
    """What the command prints goes to standard output. Returns its exit code.

    Raises ValueError for what was asked wrongly, OSError where files can't be written.
    """
    cases = _cases(patterns)
    if lists:
        for case in cases:
            _say(f"{case.name}  [{case.section}]\n    {case.rule}")
        return 0
    if reader is None and directory is None:
        raise ValueError("Name a reader by --reader, a directory by --write, or ask for a --list.")
    if location is not None and directory is None:
        raise ValueError("--location is of files that --write keeps.")
    command = _command(reader) if reader is not None else ""
    with ExitStack() as closing:
        if directory is None:
            directory = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="conformance-")))
        elif directory.exists() and any(directory.iterdir()):
            raise ValueError(f"{directory} is not empty.")
        readings = write_all(cases, directory, location, versions=[version] if version else (2, 3))
        if reader is None:
            _say(f"{len(readings)} tables of {len(cases)} cases are in {directory}.")
            return 0
        asked = reader_of(command, timeout_seconds)
        closing.callback(asked.close)
        takes = placeholders(command)
        any_snapshot = "snapshot" in takes or not takes
        results = []
        for result in run(asked, readings, lambda one: any_snapshot or one.is_current):
            results.append(result)
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{len(results)} of {len(readings)} ")
                sys.stderr.flush()
    _say(table_of(results))
    wrong = [one for one in results if one.outcome not in ("pass", "skipped")]
    if wrong:
        _say("")
    for one in wrong:
        _say(f"{one.reading} {one.outcome}: {one.reason}")
    _say(f"\nOf {len(results)} tables, {summary(results)}.")
    if report_to is not None:
        report_to.write_text(report(results))
    return 1 if wrong else 0


def _cases(patterns: Sequence[str]) -> list[Case]:
    cases = chosen(ALL, patterns)
    if not cases:
        raise ValueError(f"No case is named like {', '.join(patterns)}; --list shows all.")
    return cases


def _command(reader: str) -> str:
    """The reader's own, or that of a reader that is brought along."""
    first, *rest = reader.split(maxsplit=1) or [""]
    if first not in BUILT_IN or placeholders(reader):  # else the program of that name
        return reader
    return " ".join([shlex.quote(sys.executable), "-m", f"conformance.readers.{first}", *rest])


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
