"""`make fault-figures`: runs the tests of faults and writes what came of each into docs/faults.md.

Which fault a test is of says the table there. A test that fails is counted as a loss: of a job, of a row, of
a live file, or of something that was left behind. `--rows 'orphan|manifest'` runs those whose row has such
words, and keeps the figures of the others with their day.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import pytest

from tests.faults.recovery import FOLLOWED, INJECTED, LIVE_FILES

DOCUMENT = Path(__file__).parents[2] / "docs" / "faults.md"
_TESTS = Path(__file__).parents[1]
_CLOCK = "a clock jumps"  # where the times that the service recorded tell nothing
_ALL = "all"
BEGIN, END = "<!-- figures: made by make fault-figures -->", "<!-- end of figures -->"


@dataclass
class Figures:
    """Of one fault. followed: seconds and the lease, of each attempt that another one followed."""

    injected: int = 0
    losses: int = 0
    live_files: int = 0
    followed: list[tuple[float, float]] = field(default_factory=list)

    def row(self, day: str) -> Row:
        counts = self.injected, self.losses, self.live_files
        if not self.followed:
            return Row(*counts, day=day)
        seconds = [seconds for seconds, _ in self.followed]
        leases = max(seconds / lease for seconds, lease in self.followed)
        return Row(*counts, statistics.median(seconds), max(seconds), leases, day)


@dataclass(frozen=True)
class Row:
    """Of the table of figures. live_files: so many were looked for, and each of them once by each test that
    has it. median, longest: seconds until an attempt was followed, None if none was; leases: the longest in
    leases. day: on which it was tried."""

    injected: int
    losses: int
    live_files: int
    median: float | None = None
    longest: float | None = None
    leases: float | None = None
    day: str = ""

    @classmethod
    def parse(cls, cells: Sequence[str]) -> Self:
        *counts, day = cells
        injected, losses, live_files = (int(cell or 0) for cell in counts[:3])
        median, longest, leases = (float(cell.removesuffix(" s")) if cell else None for cell in counts[3:])
        return cls(injected, losses, live_files, median, longest, leases, day)

    def __str__(self) -> str:
        counts = str(self.injected), str(self.losses), str(self.live_files or "")
        seconds = ("" if one is None else f"{one:.1f} s" for one in (self.median, self.longest))
        leases = "" if self.leases is None else f"{self.leases:.1f}"
        return " | ".join([*counts, *seconds, leases, self.day])


class Collector:
    """A plugin of pytest that runs the tests of some faults, and tells what they report once a fault has no
    more of them."""

    def __init__(self, faults: Mapping[str, str], rows: str, tell: Callable[[str, Figures], object]) -> None:
        """faults: by test. rows: a regular expression that is in each fault which counts."""
        self._faults, self._rows, self._tell = faults, rows, tell
        self._figures: dict[str, Figures] = defaultdict(Figures)
        self._left: Counter[str | None] = Counter()
        self._ran: set[str] = set()

    def _fault_of(self, node_id: str) -> str | None:
        fault = fault_of(self._faults, node_id)
        return fault if fault is not None and re.search(self._rows, fault) else None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self._fault_of(item.nodeid) is not None]
        self._left.update(self._fault_of(item.nodeid) for item in items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        fault = self._fault_of(report.nodeid)
        if fault is None:
            return
        figures = self._figures[fault]
        figures.losses += report.failed
        if report.when == "call" and not report.skipped:
            self._ran.add(report.nodeid)
        if report.when != "teardown":
            return
        if report.nodeid in self._ran:
            told = dict(report.user_properties)
            figures.injected += int(str(told.get(INJECTED, 1)))
            figures.live_files += int(str(told.get(LIVE_FILES, 0)))
            if not fault.startswith(_CLOCK):
                figures.followed += told.get(FOLLOWED, [])  # type: ignore[arg-type]
        self._left[fault] -= 1
        if not self._left[fault]:
            self._tell(fault, figures)


def name_of(node_id: str) -> str:
    """The function of a test, without its parameters."""
    return node_id.partition("[")[0].rpartition("::")[2]


def fault_of(faults: Mapping[str, str], node_id: str) -> str | None:
    """The fault that a test is of: `test_x[a]` has the cases of `test_x` whose first parameter is `a`."""
    first = re.match(r"\w+", node_id.partition("[")[2])
    name = name_of(node_id)
    return faults.get(f"{name}[{first[0]}]" if first else name, faults.get(name))


def faults_by_test(document: str) -> dict[str, str]:
    """The fault that each test shows, by the document's first table."""
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| (`test_[^|]+) \|$", document, re.MULTILINE)
    return {test: fault for fault, tests in rows for test in re.findall(r"`(\w+(?:\[\w+\])?)`", tests)}


def places(tests: Iterable[str]) -> dict[str, list[Path]]:
    """The files in which the function of each test is."""
    found: dict[str, list[Path]] = {name_of(test): [] for test in tests}
    for file in sorted(_TESTS.rglob("test_*.py")):
        for test in found.keys() & set(re.findall(r"^ *def (test_\w+)\(", file.read_text(), re.MULTILINE)):
            found[test].append(file)
    return found


def section(rows: Mapping[str, Row], faults: Sequence[str]) -> str:
    """faults: in the order of the document."""
    known = [(fault, rows[fault]) for fault in faults if fault in rows]
    total = Row(
        sum(row.injected for _, row in known),
        sum(row.losses for _, row in known),
        sum(row.live_files for _, row in known),
        None,
        max((row.longest for _, row in known if row.longest is not None), default=None),
        max((row.leases for _, row in known if row.leases is not None), default=None),
    )
    return "\n".join(
        [
            BEGIN,
            "",
            "| fault | injected | losses | live files | followed after, median | longest | in leases | on |",
            "|---|---:|---:|---:|---:|---:|---:|---|",
            *(f"| {fault} | {row} |" for fault, row in [*known, (_ALL, total)]),
            END,
        ]
    )


def parsed(text: str) -> dict[str, Row]:
    """The counterpart of `section`."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")][1:]
    cells = ([cell.strip() for cell in row] for row in rows)
    return {fault: Row.parse(figures) for fault, *figures in cells if fault != _ALL}


def write(fault: str, figures: Figures) -> None:
    """Into the document as it is by now, whatever runs beside."""
    day = datetime.now(UTC).date().isoformat()
    document = DOCUMENT.read_text()
    before, _, rest = document.partition(BEGIN)
    of_before, _, after = rest.partition(END)
    faults = list(dict.fromkeys(faults_by_test(document).values()))
    rows = parsed(of_before) | {fault: figures.row(day)}
    DOCUMENT.write_text(f"{before}{section(rows, faults)}{after}")


def main(arguments: Sequence[str]) -> int:
    """arguments: of pytest, on top of the tests that the document names; and which rows."""
    parser = argparse.ArgumentParser(prog="make fault-figures", allow_abbrev=False)
    parser.add_argument("--rows", default="", help="a regular expression that is in a row's fault")
    chosen, further = parser.parse_known_args(arguments)
    faults = faults_by_test(DOCUMENT.read_text())
    tests = [test for test, fault in faults.items() if re.search(chosen.rows, fault)]
    # Those of real processes are last, so that a fault does not wait for others.
    files = sorted({str(file) for of_test in places(tests).values() for file in of_test}, reverse=True)
    return int(pytest.main([*files, *further], [Collector(faults, chosen.rows, write)]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
